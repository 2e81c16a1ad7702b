"""``gpukit bench predictions``: predict the times of the chapters' kernels from traces, beside their times on a GPU.

Each kernel is predicted from its trace alone, and with the instructions that Nsight Compute counted. On a GPU its
ceilings are measured, and kernels are checked, timed with a cold L2 cache, and run under ncu if it is installed.
Without a GPU the traces are made anew, and everything that was measured is taken from the record, the ceilings too.
"""

import functools
import json
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from bench import _child, ceilings, common
from bench.evidence import counters
from bench.matmul import PRODUCTS
from gpukit import matmul, prediction, resize, results, timing, transpose
from gpukit.backend import cuda, on_gpu
from gpukit.conv import api as conv
from gpukit.conv import columns, cost
from gpukit.reduce import ladder
from gpukit.resize import ladder as resize_ladder
from warpstep import trace

__all__ = [
    "EXECUTED",
    "LEAST",
    "OPTIONS",
    "RECORDED",
    "WITHIN",
    "Case",
    "cases",
    "ceilings_of",
    "key_of",
    "measure",
    "near",
    "paired",
    "predicted",
    "summary",
    "with_predictions",
]

RECORDED = "predictions-h200"
#: A prediction is near if it and the measured time differ by this factor at most.
WITHIN = 1.5
#: Fields that tell variants of one name apart.
OPTIONS = ("tile", "pad", "depth")
INSTRUCTIONS = "smsp__inst_executed.sum"
#: Cases of the records: measured; predicted from the trace alone; predicted with the counted instructions.
MEASURED = ("time", "instructions")
LEAST, EXECUTED = "least time", "least time, instructions counted"


@dataclass(frozen=True)
class Case:
    """A kernel of a chapter, or several that are launched one after the other, at one shape.

    Attributes
    ----------
    chapter, variant : str
    shape : tuple of int
    dtype : str
    make : function
        Returns (list of (launch, arguments), output, function that checks an output) with the arrays on the device.
    traced : function
        Returns a list of (trace, grid or None), as `warpstep.prediction.predict` takes them.
    options : dict
        Fields that tell variants of one name apart.
    recorded : dict
        Where the chapter's own measurement recorded the time: "source" is the name of the file, the rest are fields of
        the record besides the variant, shape and options of the case.
    """

    chapter: str
    variant: str
    shape: tuple
    dtype: str
    make: object = field(repr=False)
    traced: object = field(repr=False)
    options: dict = field(default_factory=dict)
    recorded: dict = field(default_factory=dict)

    @property
    def title(self):
        return " ".join([self.variant, *(f"{key} {value}" for key, value in self.options.items())])

    @property
    def text(self):
        """Identify this case as `key_of` does a record."""
        return key_of(self.key)

    @property
    def key(self):
        """Return the first fields of a record of this case."""
        return {"chapter": self.chapter, "variant": self.variant, "shape": list(self.shape), "dtype": self.dtype} | (
            self.options
        )


# -- the kernels of the chapters ---------------------------------------------------------------------------------------


@functools.cache
def _matrices(n, dtype):
    """Return two random matrices, and some rows of the exact product."""
    random = np.random.default_rng(n)
    a, b = (random.standard_normal((n, n)).astype(dtype) for _ in range(2))
    rows = random.choice(n, 16, replace=False)
    exact = a[rows].astype(np.float64) @ b
    return a, b, rows, exact


def _product(variant, n, dtype, options):
    a, b, rows, exact = _matrices(n, dtype)
    a, b, out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((n, n), dtype)

    def right(got):
        return np.allclose(got[rows], exact, atol=n * np.finfo(dtype).eps)

    return matmul.steps(variant, a, b, out, **options), out, right


def _sampled(make, blocks=1):
    """Trace some blocks of every launch of a case."""
    return [(trace(launch, *arguments, blocks=blocks), None) for launch, arguments in make()[0]]


#: Square products: of float32 and of float64 at the first size, the rungs of the fast product at the second.
PRODUCT_SIZE, LADDER_SIZE = 1024, 4096


def products():
    simple = [*PRODUCTS, {"variant": "naive_uint32", "tile": 16}]
    for dtype in ("float32", "float64"):
        for chosen in simple:
            options = {key: value for key, value in chosen.items() if key != "variant"}
            make = partial(_product, chosen["variant"], PRODUCT_SIZE, dtype, options)
            shape, recorded = (PRODUCT_SIZE,) * 3, {"source": "matmul-h200", "case": "time"}
            if chosen["variant"] == "naive_uint32":
                options, recorded = {}, {"source": "naive-h200", "case": "types"}
            yield Case("matmul", chosen["variant"], shape, dtype, make, partial(_sampled, make), options, recorded)
    for variant in matmul.LADDER:
        make, recorded = partial(_product, variant, LADDER_SIZE, "float32", {}), {"source": "fast_matmul-h200"}
        recorded["case"] = "ladder"
        shape = (LADDER_SIZE,) * 3
        yield Case("matmul", variant, shape, "float32", make, partial(_sampled, make), {}, recorded)


TRANSPOSED, TRACED = 8192, 512


@functools.cache
def _matrix(n):
    return np.random.default_rng(3).integers(0, 99, (n, n), np.uint32)


def _transposed(variant, n=TRANSPOSED):
    host = _matrix(n)
    a, out = cuda.to_device(host), cuda.device_array((n, n), np.uint32)
    turned = host if variant in transpose.CONTROLS else host.T
    return [(transpose.configure(variant, (n, n)), (a, out))], out, partial(np.array_equal, turned)


def _of_a_part(variant):
    """Trace a small transpose, whose blocks do what those of the large one do; return it with the large one's grid."""
    ((launch, arguments),) = _transposed(variant, TRACED)[0]
    return [(trace(launch, *arguments), transpose.configure(variant, (TRANSPOSED,) * 2).griddim)]


def transposes():
    for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
        make = partial(_transposed, variant)
        shape, recorded = (TRANSPOSED,) * 2, {"source": "transpose-h200", "case": "time"}
        yield Case("transpose", variant, shape, "float32", make, partial(_of_a_part, variant), {}, recorded)


SUMMED = (2**20, 2**24)


@functools.cache
def _values(size):
    values = np.random.default_rng(4).random(size, np.float32)
    return values, values.sum(dtype=np.float64)


def _sum(variant, size):
    values, exact = _values(size)
    x, out = cuda.to_device(values), cuda.device_array(1, np.float32)
    return ladder.steps(variant, x, out), out, lambda got: np.allclose(got, exact, rtol=1e-5)


def sums():
    for size in SUMMED:
        for variant in ladder.VARIANTS:
            make = partial(_sum, variant, size)
            # The last block of "one_launch" does more than the others, so all of them must run.
            blocks = None if variant == "one_launch" else 8
            recorded = {"source": "reduce-h200", "case": "ladder"}
            yield Case("reduce", variant, (size,), "float32", make, partial(_sampled, make, blocks), {}, recorded)


#: Frames of a camera, and the size that they are resized to.
FRAMES, FITTED = (32, 1080, 1920, 3), (640, 640)


@functools.cache
def _frames(count):
    return np.random.default_rng(5).integers(0, 256, (count, *FRAMES[1:]), np.uint8)


def _fit(rung, count=FRAMES[0]):
    host = _frames(count)
    frames = cuda.to_device(host)
    planes = rung == "letterbox_planes"
    shape, dtype = ((3, *FITTED), np.float32) if planes else ((*FITTED, 3), np.uint8)
    out = cuda.device_array((count, *shape), dtype)

    def right(got):
        # The last frame by the host functions, whose own tests compare them with OpenCV.
        if rung in ("nearest", "bilinear"):
            expected = resize.resize(host[-1], FITTED, rung, swap_rb=True)
        else:
            expected = resize.letterbox(host[-1], FITTED, center=rung != "letterbox_corner").image
        return np.abs((got[-1].transpose(1, 2, 0) if planes else got[-1]) - expected.astype(np.float32)).max() <= 1

    return [resize_ladder.rung(rung, frames, out, swap_rb=True)], out, right


def _of_one_frame(rung):
    """Trace some blocks for one frame; return that with the grid for all."""
    ((launch, arguments),) = _fit(rung, 1)[0]
    return [(trace(launch, *arguments, blocks=64), (*launch.griddim[:2], FRAMES[0]))]


def fittings():
    for rung in resize_ladder.VARIANTS:
        recorded = {"source": "resize-h200", "case": rung.partition("_")[0]}
        yield Case("resize", rung, FRAMES, "uint8", partial(_fit, rung), partial(_of_one_frame, rung), {}, recorded)


#: The article's convolution (E8): samples, channels, height, width; its weights; and the images of im2col.
CONVOLVED, WEIGHTS, WINDOWED = (1, 6, 512, 768), (6, 6, 6, 6), (16, 64, 56, 56)


@functools.cache
def _images(shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def _convolution(algorithm):
    x, weight = _images(CONVOLVED), _images(WEIGHTS)
    on_device, weights = cuda.to_device(x), cuda.to_device(weight)
    bias = np.arange(WEIGHTS[0], dtype=np.float32)
    height, width = (n - k + 1 for n, k in zip(CONVOLVED[2:], WEIGHTS[2:], strict=True))
    out = cuda.device_array((CONVOLVED[0], WEIGHTS[0], height, width), np.float32)
    places = np.random.default_rng(8).integers(0, (height, width), (16, 2))
    places = np.concatenate([places, [[0, 0], [height - 1, width - 1]]])

    def right(got):
        for row, col in places:
            window = x[0, :, row : row + WEIGHTS[2], col : col + WEIGHTS[3]].astype(np.float64)
            if not np.allclose(got[0, :, row, col], np.einsum("ochw,chw->o", weight, window) + bias, atol=1e-4):
                return False
        return bool(np.isfinite(got).all())

    return conv.steps(algorithm, on_device, weights, out, cuda.to_device(bias)), out, right


def _windows(x):
    """Compute the columns of 3 x 3 windows of an image with a border of zeros."""
    samples, channels, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).transpose(0, 1, 4, 5, 2, 3)
    return windows.reshape(samples, channels * 9, height * width)


def _to_columns(variant):
    x = _images(WINDOWED)
    on_device = cuda.to_device(x)
    launch, further = conv.configure_im2col(variant, WINDOWED, 3, padding=1)
    out = cuda.device_array(9 * x.size, np.float32)
    return (
        [(launch, (on_device.reshape(x.size), out, *further))],
        out,
        lambda got: np.array_equal(got, _windows(x).ravel()),
    )


def convolutions():
    for algorithm in cost.DIRECT:
        make, recorded = partial(_convolution, algorithm), {"source": "conv-h200", "case": "ladder"}
        yield Case("conv", algorithm, CONVOLVED, "float32", make, partial(_sampled, make, 8), {}, recorded)
    for variant in columns.VARIANTS:
        make, recorded = partial(_to_columns, variant), {"source": "conv-h200", "case": "im2col", "kernel": 3}
        yield Case("conv", variant, WINDOWED, "float32", make, partial(_sampled, make, 16), {}, recorded)


#: By chapter.
FAMILIES = {
    "matmul": products,
    "transpose": transposes,
    "reduce": sums,
    "resize": fittings,
    "conv": convolutions,
}


def cases(chapters=None):
    """List the cases of all chapters, or of those named."""
    return [case for name in chapters or FAMILIES for case in FAMILIES[name]()]


# -- predictions -------------------------------------------------------------------------------------------------------


def predicted(traced, instructions=None, ceilings=None):
    """Predict each launch of a case; their times add up.

    Parameters
    ----------
    traced : list of (trace, grid or None)
        ``case.traced()``.
    instructions : list of int, optional
        Executed by each launch.
    ceilings : warpstep.prediction.Ceilings, optional

    Returns
    -------
    list of warpstep.prediction.Prediction
    """
    instructions = [None] * len(traced) if instructions is None else instructions
    return [
        prediction.predict(found, grid=grid, instructions=number, ceilings=ceilings)
        for (found, grid), number in zip(traced, instructions, strict=True)
    ]


def with_predictions(records, ceilings, chosen, report=print):
    """Return measured records with predictions from traces that are made here.

    Parameters
    ----------
    records : list of dict
        Times and instructions; predictions among them are left out.
    ceilings : warpstep.prediction.Ceilings
    chosen : list of Case
    report : callable
        Told each case, as text.

    Returns
    -------
    list of dict
    """
    kept = {(record["case"], key_of(record)): record for record in records if record["case"] in MEASURED}
    times, made = chapters_times(), []
    for case in chosen:
        measured = [kept[name, case.text] for name in MEASURED if (name, case.text) in kept]
        traced = case.traced()
        found = [_record(case, predicted(traced, None, ceilings), LEAST), *measured]
        for record in measured:
            if record["case"] == "instructions":
                found.append(_record(case, predicted(traced, record["each"], ceilings), EXECUTED))
        report(f"  {_line(found, times.get(case.text))}")
        made += found
    return made


def _record(case, predictions, name):
    """Make the record of a prediction: the sum of the launches, and the limit of the longest of them."""
    longest = max(predictions, key=lambda p: p.seconds)
    return case.key | {
        "case": name,
        "value": sum(p.seconds for p in predictions),
        "unit": "s",
        "limit": longest.limit,
        "flops": sum(p.flops for p in predictions),
        "bytes": sum(p.nbytes for p in predictions),
        "uses": {resource: use.seconds for resource, use in longest.uses.items()},
    }


# -- on a GPU ----------------------------------------------------------------------------------------------------------


def measure(chosen, report=print):
    """Check and time cases on a GPU.

    Returns
    -------
    list of dict
        Records of the right results.
    bool
        Whether all results were right.
    """
    records, all_right = [], True
    for case in chosen:
        steps, out, is_right = case.make()
        wrong = np.nan if out.dtype.kind == "f" else np.iinfo(out.dtype).max
        out.copy_to_device(np.full(out.shape, wrong, out.dtype))
        common.launch_all(steps)
        right = is_right(out.copy_to_host())
        if right:
            timed = timing.bench(partial(common.launch_all, steps), min_time=0.02, warmup=0.01)
            head = case.chapter, "time", case.variant, case.shape, case.dtype
            records.append(results.of_timing(*head, timed, **case.options))
        all_right &= right
        time = timing.format_seconds(timed.median) if right else "WRONG"
        report(f"  {case.chapter:10}{case.title:32} {case.dtype:8} {time:>10}")
    return records, all_right


def count_instructions(chosen, report=print):
    """Count with Nsight Compute the instructions that the launches of cases execute.

    Returns
    -------
    list of dict
        Records, "each" with the numbers of a case's launches; none without ncu.
    bool
        True.

    Raises
    ------
    bench.evidence.counters.ProfilerError
        If ncu fails; the message has its output.
    """
    ncu = counters.find_ncu()
    if ncu is None:
        report("  ncu is not installed: instructions are not counted")
        return [], True
    options = f"--target-processes application-only --profile-from-start off --page raw --metrics {INSTRUCTIONS}"
    child = counters.run_ncu(ncu, options.split(), launch_cases, [case.text for case in chosen])
    launches = child.answers
    rows = [int(float(row[INSTRUCTIONS].replace(",", ""))) for _, row in counters.read_csv(child.output)]
    if child.status or sum(launches) != len(rows) or len(launches) != len(chosen):
        raise counters.ProfilerError(f"{len(rows)} rows for {launches} launches\n{child.output}")
    records, ends = [], np.cumsum(launches)
    for case, number, end in zip(chosen, launches, ends, strict=True):
        each = rows[end - number : end]
        records.append(case.key | {"case": "instructions", "value": sum(each), "unit": "1", "each": each})
        report(f"  {case.chapter:10}{case.title:32} {case.dtype:8} {sum(each):16,} instructions")
    return records, True


def launch_cases(texts):
    """Launch the cases with these texts under ncu, after all are compiled; answer with the launches of each."""
    known = {case.text: case for case in cases()}
    made = [known[text].make()[0] for text in texts]
    for steps in made:
        common.launch_all(steps)
    cuda.synchronize()
    cuda.profile_start()
    for steps in made:
        common.launch_all(steps)
        cuda.synchronize()
        _child.answer(len(steps))
    cuda.profile_stop()


# -- summaries ---------------------------------------------------------------------------------------------------------


def _line(records, recorded):
    """Format a case as a line: limit, least time, time, and the ratio of the time to each prediction."""
    values = {"time": recorded and recorded["value"]} | {record["case"]: record["value"] for record in records}
    shape = " x ".join(map(str, records[0]["shape"]))
    options = [f"{name} {records[0][name]}" for name in OPTIONS if name in records[0]]
    title = " ".join([records[0]["chapter"], records[0]["variant"], *options, shape, records[0]["dtype"]])
    text = f"{title:64} {records[0]['limit']:18} {timing.format_seconds(values[LEAST]):>10}"
    if values["time"]:
        text += f" {timing.format_seconds(values['time']):>10}"
        text += "".join(f" {values['time'] / values[name]:6.2f}" for name in (LEAST, EXECUTED) if name in values)
    return text


def near(pairs):
    """Count the pairs (predicted, measured) that differ by a factor of `WITHIN` at most."""
    return sum(1 / WITHIN <= measured / least <= WITHIN for least, measured in pairs)


def chapters_times():
    """Return {key: record} of the times that the chapters' own measurements recorded and that come with gpukit."""
    times = {}
    for case in cases():
        wanted = dict(case.recorded)
        try:
            records = results.load(wanted.pop("source"))
            wanted |= {"variant": case.variant, "shape": case.shape, "dtype": case.dtype, **case.options}
            times[case.text] = results.first(records, **wanted)
        except (FileNotFoundError, LookupError):
            continue  # neither the chapter nor the kernel need be recorded
    return times


def paired(records, name=LEAST):
    """Return [(prediction's record, time's record), ...] of the cases that have both.

    Times are those among the records, or the chapters' if there are none.
    """
    times = {key_of(record): record for record in records if record["case"] == "time"} or chapters_times()
    found = [(record, times.get(key_of(record))) for record in records if record["case"] == name]
    return [(least, measured) for least, measured in found if measured]


def key_of(record):
    """Identify a record's case by a text: chapter, variant, shape, dtype, options."""
    named = {name: record.get(name) for name in ("chapter", "variant", "dtype", *OPTIONS)}
    return json.dumps(named | {"shape": list(record["shape"])})


def ceilings_of(head):
    """Return the `warpstep.prediction.Ceilings` of a record's run, from its head (``results.read``)."""
    values = head["ceilings"]
    return prediction.Ceilings(**values | {"written_back": tuple(map(tuple, values["written_back"]))})


def summary(records):
    """Return text: the number of predictions that are near, from the trace alone and with counted instructions."""
    lines = []
    for name in (LEAST, EXECUTED):
        pairs = [(least["value"], measured["value"]) for least, measured in paired(records, name)]
        if pairs:
            ratios = sorted(measured / least for least, measured in pairs)
            lines.append(
                f"{name}: {near(pairs)} of {len(pairs)} within a factor of {WITHIN}; measured over predicted: median "
                f"{np.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}"
            )
    return "\n".join(lines)


def add_options(parser):
    """Add the option to trace nothing."""
    parser.add_argument(
        "--measure-only", action="store_true", help="on a GPU: trace nothing; predictions are then made without one"
    )


def run(options):
    """Measure, or read the record; predict, save and print. Return 1 if a result was wrong, or else 0.

    With ``--quick`` for the transposes only, without instructions.
    """
    chosen = cases(["transpose"] if options.quick else None)
    if on_gpu():
        head, records, right = _measured(chosen, options)
        if options.measure_only:
            return 0 if right else 1
    else:
        (head, records), right = results.read(RECORDED), True
    records = with_predictions(records, ceilings_of(head), chosen)
    results.save(options.save, records, head)
    print(summary(records))
    return 0 if right else 1


def _measured(chosen, options):
    """Measure the ceilings and the cases; return (head, records, whether all results were right)."""
    limits = prediction.from_records(ceilings.measured())
    head, records = results.machine() | {"ceilings": asdict(limits)}, []

    def keep(measurement):
        more, right = measurement(chosen)
        records.extend(more)
        return more, right

    measurements = [("times", partial(keep, measure))]
    if not options.quick:
        measurements.append(("instructions", partial(keep, count_instructions)))
    right = common.run(measurements, options.save, head)
    return head, records, right
