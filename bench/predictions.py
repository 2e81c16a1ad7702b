"""``gpukit bench predictions``: for the kernels of the chapters the least time that a trace gives, beside the time on a
GPU, and beside the least time with the instructions that Nsight Compute counted.

On a GPU its ceilings are measured, and kernels are checked, timed with a cold L2 cache, and, if ncu is there, run once
more under it. Without one the traces are made anew, and what was measured is taken from the record: the ceilings too,
which it keeps, so that every prediction in it belongs to them.
"""

import argparse
import functools
import json
import re
import sys
import warnings
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
from numba.cuda.core.errors import NumbaPerformanceWarning

from bench import common, compiling, turns
from bench.evidence import counters
from bench.shared_memory import PRODUCTS
from gpukit import matmul, resize, results, timing, transpose
from gpukit.backend import cuda, on_gpu
from gpukit.conv import api as conv
from gpukit.conv import columns
from gpukit.conv import cost as choice
from gpukit.reduce import ladder
from gpukit.resize import ladder as resize_ladder
from warpstep import prediction, trace

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
    "main",
    "measure",
    "near",
    "paired",
    "predicted",
    "summary",
    "with_predictions",
]

#: The record that comes with gpukit, for ``results.load``.
RECORDED = "predictions-h200"
#: A prediction is called near if the measured time is at most so many times it, or the other way round.
WITHIN = 1.5
#: What else tells one variant from others.
OPTIONS = ("tile", "pad", "depth")
INSTRUCTIONS = "smsp__inst_executed.sum"
#: Cases of the records that hold what was measured, and predictions: from the trace alone, and with the instructions.
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
        Gives (list of (launch, arguments), output, function that tells whether an output is right) with the arrays
        on the device.
    traced : function
        Gives a list of (trace, grid or None): what `warpstep.prediction.predict` takes.
    options : dict
        What else tells the variant from others.
    recorded : dict
        Where the time is that the chapter's own measurement recorded: "source" is the name of the record, the rest what
        its record has, besides the variant, shape and options of the case.
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
        """What tells this case from others, as `key_of` gives it for its records."""
        return key_of(self.key)

    @property
    def key(self):
        """What a record of this case begins with."""
        return {"chapter": self.chapter, "variant": self.variant, "shape": list(self.shape), "dtype": self.dtype} | (
            self.options
        )


# -- the kernels of the chapters ---------------------------------------------------------------------------------------


@functools.cache
def _matrices(n, dtype):
    """Two random matrices and an output on the device, and some rows of the exact product."""
    with turns.elsewhere():
        random = np.random.default_rng(n)
        a, b = (random.standard_normal((n, n)).astype(dtype) for _ in range(2))
        rows = random.choice(n, 16, replace=False)
        exact = a[rows].astype(np.float64) @ b
    return cuda.to_device(a), cuda.to_device(b), cuda.device_array((n, n), dtype), rows, exact


def _product(variant, n, dtype, options):
    a, b, out, rows, exact = _matrices(n, dtype)

    def right(got):
        return np.allclose(got[rows], exact, atol=n * np.finfo(dtype).eps)

    return matmul.steps(variant, a, b, out, **options), out, right


def _launches(make):
    """The launches of a case, to be traced: only what puts their arrays on the device needs a turn."""
    with turns.mine():
        return make()[0]


def _sampled(make, blocks=1):
    """Traces of some blocks of every launch of a case."""
    return [(trace(launch, *arguments, blocks=blocks), None) for launch, arguments in _launches(make)]


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
    with turns.elsewhere():
        host = np.random.default_rng(3).integers(0, 99, (n, n), np.uint32)
    return host, cuda.to_device(host), cuda.device_array((n, n), np.uint32)


def _transposed(variant, n=TRANSPOSED):
    host, a, out = _matrix(n)
    turned = host if variant in transpose.CONTROLS else host.T
    return [(transpose.configure(variant, (n, n)), (a, out))], out, partial(np.array_equal, turned)


def _of_a_part(variant):
    """The trace of a small transpose, whose blocks do what those of the large one do, and the large one's grid."""
    ((launch, arguments),) = _launches(partial(_transposed, variant, TRACED))
    return [(trace(launch, *arguments), transpose.configure(variant, (TRANSPOSED,) * 2).griddim)]


def transposes():
    for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
        make = partial(_transposed, variant)
        shape, recorded = (TRANSPOSED,) * 2, {"source": "transpose-h200", "case": "time"}
        yield Case("transpose", variant, shape, "float32", make, partial(_of_a_part, variant), {}, recorded)


SUMMED = (2**20, 2**24)


@functools.cache
def _values(size):
    host = np.random.default_rng(4).random(size, np.float32)
    return cuda.to_device(host), cuda.device_array(1, np.float32), host.sum(dtype=np.float64)


def _sum(variant, size):
    x, out, exact = _values(size)
    return ladder.steps(variant, x, out), out, lambda got: np.allclose(got, exact, rtol=1e-5)


def sums():
    for size in SUMMED:
        for variant in ladder.VARIANTS:
            make = partial(_sum, variant, size)
            # Blocks of "one_launch" wait for nobody, but the last one does more: all of them must run.
            blocks = None if variant == "one_launch" else 8
            recorded = {"source": "reduce-h200", "case": "ladder"}
            yield Case("reduce", variant, (size,), "float32", make, partial(_sampled, make, blocks), {}, recorded)


#: Frames as a camera gives them, and what they are fitted into.
FRAMES, FITTED = (32, 1080, 1920, 3), (640, 640)


@functools.cache
def _frames(count):
    with turns.elsewhere():
        host = np.random.default_rng(5).integers(0, 256, (count, *FRAMES[1:]), np.uint8)
    return host, cuda.to_device(host)


def _fit(rung, count=FRAMES[0]):
    host, frames = _frames(count)
    planes = rung == "letterbox_planes"
    shape, dtype = ((3, *FITTED), np.float32) if planes else ((*FITTED, 3), np.uint8)
    out = cuda.device_array((count, *shape), dtype)

    def right(got):
        # The last frame as the host functions fit it, which their own tests compare with OpenCV.
        if rung in ("nearest", "bilinear"):
            expected = resize.resize(host[-1], FITTED, rung, swap_rb=True)
        else:
            expected = resize.letterbox(host[-1], FITTED, center=rung != "letterbox_corner").image
        return np.abs((got[-1].transpose(1, 2, 0) if planes else got[-1]) - expected.astype(np.float32)).max() <= 1

    return [resize_ladder.rung(rung, frames, out, swap_rb=True)], out, right


def _of_one_frame(rung):
    """The trace of some blocks for one frame, and the grid for all."""
    ((launch, arguments),) = _launches(partial(_fit, rung, 1))
    return [(trace(launch, *arguments, blocks=64), (*launch.griddim[:2], FRAMES[0]))]


def fittings():
    for rung in resize_ladder.RUNGS:
        recorded = {"source": "resize-h200", "case": rung.partition("_")[0]}
        yield Case("resize", rung, FRAMES, "uint8", partial(_fit, rung), partial(_of_one_frame, rung), {}, recorded)


#: The article's convolution (E8): samples, channels, height, width; its weights; and what is cut into windows of 3 x 3.
CONVOLVED, WEIGHTS, WINDOWED = (1, 6, 512, 768), (6, 6, 6, 6), (16, 64, 56, 56)


@functools.cache
def _images(shape):
    host = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    return host, cuda.to_device(host)


def _convolution(algorithm):
    (x, on_device), (weight, weights) = _images(CONVOLVED), _images(WEIGHTS)
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
    """The columns of 3 x 3 windows of an image with a border of zeros."""
    samples, channels, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).transpose(0, 1, 4, 5, 2, 3)
    return windows.reshape(samples, channels * 9, height * width)


def _to_columns(variant):
    x, on_device = _images(WINDOWED)
    launch, further = columns.configure_im2col(variant, WINDOWED, 3, padding=1)
    out = cuda.device_array(9 * x.size, np.float32)
    return (
        [(launch, (on_device.reshape(x.size), out, *further))],
        out,
        lambda got: np.array_equal(got, _windows(x).ravel()),
    )


def convolutions():
    for algorithm in choice.LADDER:
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
    """list of Case: of all chapters, or of those named."""
    return [case for name in chapters or FAMILIES for case in FAMILIES[name]()]


# -- predictions -------------------------------------------------------------------------------------------------------


def predicted(traced, instructions=None, ceilings=None):
    """The predictions of a case's launches, in their order; their times add up.

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


def with_predictions(records, ceilings, chosen, jobs=1, report=print):
    """What was measured, with predictions from traces that are made here.

    Parameters
    ----------
    records : list of dict
        Times and instructions, as `measure` gives them; predictions among them are left out.
    ceilings : warpstep.prediction.Ceilings
    chosen : list of Case
    jobs : int
        Processes that trace side by side.
    report : callable
        Told each case, as text.

    Returns
    -------
    list of dict
    """
    kept = {(record["case"], key_of(record)): record for record in records if record["case"] in MEASURED}
    times, made, works = chapters_times(), [], []
    measured = [[kept[name, case.text] for name in MEASURED if (name, case.text) in kept] for case in chosen]
    for number, mine in zip(_numbers(chosen), measured, strict=True):
        executed = [record["each"] for record in mine if record["case"] == "instructions"]
        works.append(partial(_traced, number, executed, ceilings))
    # A long trace comes first, so that it is not the last that all wait for.
    order = sorted(range(len(works)), key=lambda n: -max(chosen[n].shape)) if jobs > 1 else range(len(works))
    found = dict(zip(order, turns.side_by_side([works[n] for n in order], jobs), strict=True))
    for n, mine in enumerate(measured):
        mine = [found[n][0], *mine, *found[n][1:]]
        report(f"  {_line(mine, times.get(chosen[n].text))}")
        made += mine
    return made


def _traced(number, executed, ceilings):
    """The records of a case's predictions: from the trace alone, and with the instructions if they were counted."""
    case = cases()[number]
    traced = case.traced()
    counted = [_record(case, predicted(traced, each, ceilings), EXECUTED) for each in executed]
    return [_record(case, predicted(traced, None, ceilings), LEAST), *counted]


def _record(case, predictions, name):
    """The record of what was predicted: the sum of the launches, and what limits the longest of them."""
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


def measure(chosen, jobs=None, report=print):
    """Check and time cases on a GPU, in several processes that take turns.

    Parameters
    ----------
    chosen : list of Case
    jobs : int, optional
        How many processes; as many as make sense unless given.

    Returns
    -------
    list of dict
        Records; no time of a case whose result is wrong.
    bool
        Whether all results were right.
    """
    numbers = _numbers(chosen)
    records = []
    for case, record in zip(chosen, turns.side_by_side([partial(_timed, n) for n in numbers], jobs), strict=True):
        records.append(record)
        time = "WRONG" if record is None else timing.format_seconds(record["value"])
        report(f"  {case.chapter:10}{case.title:32} {case.dtype:8} {time:>10}")
    return [record for record in records if record], all(records)


def _numbers(chosen):
    """The places of cases among all: what another process is told."""
    places = {case.text: number for number, case in enumerate(cases())}
    return [places[case.text] for case in chosen]


def _timed(number):
    """The record of one case's time; None if its result is wrong."""
    case = cases()[number]
    with turns.mine():
        steps, out, right = case.make()
        wrong = np.nan if out.dtype.kind == "f" else np.iinfo(out.dtype).max
        out.copy_to_device(np.full(out.shape, wrong, out.dtype))
        common.launch_all(steps)
        found = out.copy_to_host()
        with turns.elsewhere():
            if not right(found):
                return None
        timed = timing.bench(partial(common.launch_all, steps), min_time=0.02, warmup=0.01)
    return results.of_timing(case.chapter, "time", case.variant, case.shape, case.dtype, timed, **case.options)


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
        If ncu fails; the message has what it said.
    """
    ncu = counters.find_ncu()
    if ncu is None:
        report("  ncu is not installed: instructions are not counted")
        return [], True
    options = f"--target-processes application-only --profile-from-start off --page raw --metrics {INSTRUCTIONS}"
    done = counters.run(ncu, options.split(), "bench.predictions", *_numbers(chosen))
    launches = [int(number) for number in re.findall(r"^launches: (\d+)$", done.stdout, re.MULTILINE)]
    rows = [int(float(row[INSTRUCTIONS].replace(",", ""))) for _, row in counters.read_csv(done.stdout)]
    if done.returncode or sum(launches) != len(rows) or len(launches) != len(chosen):
        raise counters.ProfilerError(f"{len(rows)} rows for {launches} launches\n{done.stdout}\n{done.stderr}")
    records, ends = [], np.cumsum(launches)
    for case, number, end in zip(chosen, launches, ends, strict=True):
        each = rows[end - number : end]
        records.append(case.key | {"case": "instructions", "value": sum(each), "unit": "1", "each": each})
        report(f"  {case.chapter:10}{case.title:32} {case.dtype:8} {sum(each):16,} instructions")
    return records, True


def _count_child(numbers):
    """What runs under ncu: some cases once, after all are compiled; a line for each says how many launches it has."""
    known = cases()
    made = [known[number].make()[0] for number in numbers]
    compiling.compile_first([step for steps in made for step in steps])
    for steps in made:
        common.launch_all(steps)
    cuda.synchronize()
    cuda.profile_start()
    for steps in made:
        common.launch_all(steps)
        cuda.synchronize()
        print("launches:", len(steps), flush=True)
    cuda.profile_stop()


# -- the command -------------------------------------------------------------------------------------------------------


def _line(records, recorded):
    """A case as a line: what limits, the least time, the time, and how many times the predictions it is."""
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
    """How many of (predicted, measured) differ by a factor of `WITHIN` at most."""
    return sum(1 / WITHIN <= measured / least <= WITHIN for least, measured in pairs)


def chapters_times():
    """{key: record} of the times that the chapters' own measurements recorded, as far as they come with gpukit."""
    times = {}
    for case in cases():
        wanted = dict(case.recorded)
        try:
            records = results.load(wanted.pop("source"))
            wanted |= {"variant": case.variant, "shape": case.shape, "dtype": case.dtype, **case.options}
            times[case.text] = results.first(records, **wanted)
        except (FileNotFoundError, LookupError):
            continue  # a chapter that has not been recorded, or not this kernel
    return times


def paired(records, name=LEAST):
    """[(record of what was predicted, record of what was measured), ...] of the cases that have both.

    Times are those among the records, or where there are none, the chapters'.
    """
    times = {key_of(record): record for record in records if record["case"] == "time"} or chapters_times()
    found = [(record, times.get(key_of(record))) for record in records if record["case"] == name]
    return [(least, measured) for least, measured in found if measured]


def key_of(record):
    """What tells a record's case from others, as text: chapter, variant, shape, dtype, options."""
    named = {name: record.get(name) for name in ("chapter", "variant", "dtype", *OPTIONS)}
    return json.dumps(named | {"shape": list(record["shape"])})


def ceilings_of(head):
    """The `warpstep.prediction.Ceilings` of the run that a record is of, by what it says once (``results.read``)."""
    values = head["ceilings"]
    return prediction.Ceilings(**values | {"written_back": tuple(map(tuple, values["written_back"]))})


def summary(records):
    """Text: how many predictions are near, from the trace alone and with the instructions that were counted."""
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


def main(argv=None):
    """Run ``gpukit bench predictions``; give back the exit status."""
    parser = argparse.ArgumentParser(prog="gpukit bench predictions", description=__doc__)
    parser.add_argument("--save", metavar="FILE", help="write the records to FILE")
    parser.add_argument("--quick", action="store_true", help="the transposes only, and no instructions")
    parser.add_argument("--jobs", type=int, help="processes that compile side by side (default: by the machine)")
    parser.add_argument(
        "--measure-only", action="store_true", help="on a GPU: trace nothing; predictions are then made without one"
    )
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore", NumbaPerformanceWarning)
    chosen = cases(["transpose"] if options.quick else None)
    if on_gpu():
        head, records, right = _measured(chosen, options)
        if options.measure_only:
            return 0 if right else 1
    else:
        (head, records), right = results.read(RECORDED), True
    jobs = results.cores() if options.jobs is None else options.jobs
    with turns.elsewhere():
        records = with_predictions(records, ceilings_of(head), chosen, 1 if options.quick else jobs)
    if options.save:
        results.save(options.save, records, head)
    print(summary(records))
    return 0 if right else 1


def _measured(chosen, options):
    """(head, records, whether all results were right) of what is measured now; kept in a file, if one is given."""
    head, records = results.machine() | {"ceilings": asdict(prediction.measured())}, []

    def keep(measurement):
        more, right = measurement(chosen)
        records.extend(more)
        return more, right

    measurements = [("times", partial(keep, partial(measure, jobs=options.jobs)))]
    if not options.quick:
        measurements.append(("instructions", partial(keep, count_instructions)))
    right = common.run(measurements, options.save, head)
    return head, records, right


if __name__ == "__main__":
    _count_child(map(int, sys.argv[1:]))
