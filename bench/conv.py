"""``gpukit bench conv``: time convolutions beside cuDNN, and im2col and col2im beside PyTorch's unfold and fold.

Each result is checked first; then all are timed in turns, with a cold L2 cache, small convolutions by the host's clock
too. cuDNN is in benchmark mode, where it tries all of its algorithms and keeps the fastest, and without TF32. Kernels
are compiled for each size, which takes most of the time.
"""

import contextlib
import itertools
from functools import partial
from typing import NamedTuple

import numpy as np

from bench import common, problems
from bench.networks import NETWORKS, SAMPLES
from gpukit import conv, launching, results, timing
from gpukit.backend import cuda
from gpukit.conv import cost
from gpukit.conv.windows import make_geometry

__all__ = [
    "ARTICLE",
    "CELLS",
    "CHANNELS",
    "COLUMNS",
    "IMAGES",
    "KERNELS",
    "SMALL",
    "Problem",
    "measure",
    "measure_calls",
    "measure_columns",
    "measure_layer",
    "measurements",
]


class Problem(NamedTuple):
    """One convolution: x is (samples, channels, height, width), weight (out_channels, channels, kernel, kernel)."""

    samples: int
    channels: int
    size: tuple
    out_channels: int
    kernel: int
    stride: int = 1
    padding: int = 0

    @property
    def x_shape(self):
        """Shape of x."""
        return self.samples, self.channels, *self.size

    @property
    def weight_shape(self):
        """Shape of the weights."""
        return self.out_channels, self.channels, self.kernel, self.kernel

    @property
    def flops(self):
        """Operations of a direct convolution: two per multiply-add."""
        out = [(n + 2 * self.padding - self.kernel) // self.stride + 1 for n in self.size]
        return 2 * self.samples * self.out_channels * out[0] * out[1] * self.channels * self.kernel**2

    def described(self):
        """Return the fields of a record that describe it."""
        return {
            "out_channels": self.out_channels,
            "kernel": self.kernel,
            "stride": self.stride,
            "padding": self.padding,
        }


#: The article's own convolution (E8).
ARTICLE = Problem(1, 6, (512, 768), 6, 6)
#: The map: as many out channels as in channels, images as (samples, height and width), padded to keep their size.
CHANNELS, KERNELS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 3, 5, 7, 9, 11)
IMAGES = ((1, 512), (16, 56))
CELLS = tuple(
    Problem(samples, channels, (size, size), channels, kernel, 1, kernel // 2)
    for channels in CHANNELS
    for kernel in KERNELS
    for samples, size in IMAGES
)
#: Further ones: small images in large batches, strides, the first layer of a network.
OTHERS = (
    Problem(64, 128, (14, 14), 128, 3, 1, 1),
    Problem(64, 16, (14, 14), 16, 5, 1, 2),
    Problem(64, 128, (7, 7), 128, 3, 1, 1),
    Problem(32, 128, (28, 28), 128, 3, 1, 1),
    Problem(16, 16, (112, 112), 16, 3, 2, 1),
    Problem(16, 64, (56, 56), 64, 3, 2, 1),
    Problem(16, 3, (224, 224), 64, 7, 2, 3),
)
#: im2col and col2im: (shape, kernel, stride, padding, dilation).
COLUMNS = (
    ((1, 6, 512, 768), 6, 1, 0, 1),
    ((16, 64, 56, 56), 3, 1, 1, 1),
    ((32, 128, 28, 28), 3, 1, 1, 1),
    ((8, 16, 127, 129), 3, 1, 0, 1),
    ((64, 3, 224, 224), 7, 2, 3, 1),
    ((1, 64, 128, 128), 5, 1, 2, 2),
    ((32, 64, 56, 56), 3, 2, 1, 1),
)
SECONDS = 0.015  # of timed repetitions for each function
LONG = 1e11  # operations above which five repetitions are enough
MAX_COLUMNS = 2**32  # bytes of a sample's columns beyond which im2col is left out
#: Layouts that are timed for each convolution of the map: the chosen one only; and the ratio of predicted times up to
#: which im2col is timed as well.
LAYOUTS, COMPARABLE = 1, 2
#: Small convolutions, whose calls are timed by the host's clock, many in a row.
SMALL = (
    Problem(1, 3, (32, 32), 8, 3, 1, 1),
    Problem(1, 16, (56, 56), 16, 3, 1, 1),
    Problem(16, 16, (56, 56), 16, 3, 1, 1),
)
BY_THE_HOST = {"device": "cpu", "calls": 20, "min_time": 0.05}
#: Kernels of the ladder, timed for the article's convolution.
RUNGS = tuple(cost.DIRECT)[:-1]


# -- convolutions ------------------------------------------------------------------------------------------------------


def _allocate(problem, dtype):
    """Allocate x, weight and out as tensors on the device."""
    torch = common.libraries()["torch"]
    out = [(n + 2 * problem.padding - problem.kernel) // problem.stride + 1 for n in problem.size]
    shapes = problem.x_shape, problem.weight_shape, (problem.samples, problem.out_channels, *out)
    return [torch.empty(shape, dtype=getattr(torch, dtype), device="cuda") for shape in shapes]


def _fill(x, weight, problem):
    """Fill both with random numbers; return a function that checks a result.

    All values are compared roughly with cuDNN's float32 result; a few out channels of the first and last sample are
    compared with float64. A float32 sum of n normal products is about sqrt(n), and each of its n steps rounds to 2^-24
    of that: errors are about 2e-8 n, and the largest of millions is ten to fifteen times that. A missing product is
    about 1.
    """
    torch = common.libraries()["torch"]
    torch.manual_seed(1)
    x.normal_()
    weight.normal_()
    how = {"stride": problem.stride, "padding": problem.padding}
    # PyTorch caches the algorithm of the first call for a shape, so that call must be in benchmark mode.
    torch.backends.cudnn.benchmark = True
    about = torch.nn.functional.conv2d(x.float(), weight.float(), **how)
    torch.backends.cudnn.benchmark = False
    chosen = sorted({round(k * (problem.out_channels - 1) / 3) for k in range(4)})
    samples = sorted({0, problem.samples - 1})
    exact = torch.nn.functional.conv2d(x[samples].double(), weight[chosen].double(), **how)
    torch.backends.cudnn.benchmark = True
    terms, rounding = problem.channels * problem.kernel**2, 2e-3 if x.dtype == torch.float16 else 0

    def is_right(out):
        picked = out[samples][:, chosen].double()
        near = ((picked - exact).abs() <= 1e-5 + 5e-7 * terms + rounding * exact.abs()).all()
        alike = ((out.float() - about).abs() <= 1e-2 + 1e-3 * terms**0.5 + rounding * about.abs()).all()
        return bool(near) and bool(alike)

    return is_right


def launches_of(problem, x, weight, out, algorithms, layouts):
    """Return {(variant, layout as text): prepared launches} of everything to be timed."""
    arrays, ways = [cuda.as_cuda_array(array) for array in (x, weight, out)], {}
    for name in algorithms:
        ways[name, None] = conv.steps(name, *arrays, stride=problem.stride, padding=problem.padding)
    geometry = make_geometry(problem.size, problem.kernel, problem.stride, problem.padding, 1)
    wide, dtype = cost.is_wide(arrays[0], geometry), arrays[0].dtype
    convolution = cost.Convolution(*arrays[:2], None, arrays[2], geometry, 1)
    for layout in _different(
        cost.layouts_of(problem.x_shape, problem.weight_shape, geometry, 1, wide, dtype, 8), layouts
    ):
        launch = cost.launch_specialised(layout, convolution, 0, wide)
        ways["direct", layout.text] = [launch]
    return {key: [launching.prepare(launch, *of) for launch, of in way] for key, way in ways.items()}


def _different(layouts, count):
    """Return the first layouts that differ in the work of a thread."""
    found = {}
    for layout in layouts:
        found.setdefault((layout.channels_per_thread, layout.channel_groups, layout.run), layout)
    return list(found.values())[:count]


def _repeat(launches):
    for launch in launches:
        launch()


def _time(runs, few, **options):
    """Call `timing.bench_many` for names that are tuples; ``few`` asks for few repetitions."""
    options["repeat"] = 5 if few else None
    timings = timing.bench_many({str(key): run for key, run in runs.items()}, min_time=SECONDS, warmup=0.005, **options)
    return dict(zip(runs, timings.values(), strict=True))


def measure(problem, case="map", dtype="float32", algorithms=(), layouts=LAYOUTS, report=print):
    """Check and time the direct kernel by several layouts, further algorithms, and cuDNN.

    Returns
    -------
    list of dict
        Records of the right results.
    bool
        Whether all results were right.
    """
    x, weight, out = _allocate(problem, dtype)
    ways, torch = launches_of(problem, x, weight, out, algorithms, layouts), common.libraries()["torch"]
    runs, hot, wrong = {}, {}, []
    is_right = _fill(x, weight, problem)
    for key, launches in ways.items():
        out.fill_(float("nan"))
        _repeat(launches)
        if is_right(out):
            runs[key] = partial(_repeat, launches)
        else:
            wrong.append(key)
    how = {"stride": problem.stride, "padding": problem.padding}
    runs["cudnn (torch)", None] = partial(torch.nn.functional.conv2d, x, weight, **how)
    cold = _time(runs, problem.flops > LONG)
    if case == "article":
        hot = _time(runs, False, l2_flush=False)
    records, cudnn = [], cold["cudnn (torch)", None].median
    lines = [f"{problem.x_shape} to {problem.out_channels} by {problem.kernel}", *(f"  WRONG: {key}" for key in wrong)]
    for name, timings in ((case, cold), (f"{case}, hot", hot)):
        for (variant, layout), timed in timings.items():
            further = problem.described() | ({"layout": layout} if layout else {})
            records.append(results.of_timing("conv", name, variant, problem.x_shape, dtype, timed, **further))
            speed = f"{timed.median * 1e6:9.2f} us {timed.tflops(problem.flops):6.1f} TFLOP/s"
            lines.append(f"  {name:12} {variant:14} {layout or '':30} {speed} {cudnn / timed.median:6.2f} of cuDNN")
    report("\n".join(lines))
    return records, not wrong


# -- im2col and col2im -------------------------------------------------------------------------------------------------


def measure_columns(shape, kernel, stride, padding, dilation, report=print):
    """Check and time all variants of im2col, and col2im, beside PyTorch's and a copy; return as ``measure`` does."""
    torch, how = common.libraries()["torch"], {"stride": stride, "padding": padding, "dilation": dilation}
    counts = make_geometry(shape[2:], kernel, stride, padding, dilation).counts
    x, back = (torch.empty(shape, device="cuda") for _ in range(2))
    wide = shape[0], shape[1] * counts[0], counts[1]
    columns, out = (torch.empty(wide, device="cuda") for _ in range(2))
    x.normal_()
    columns.copy_(torch.nn.functional.unfold(x, kernel, **how))
    image = torch.nn.functional.fold(columns, shape[2:], kernel, **how)
    runs, wrong = {}, []
    for key, launch in column_launches(x, back, columns, out, kernel, how).items():
        target, right = (out, columns) if key[0] == "im2col" else (back, image)
        target.fill_(float("nan"))
        launch()
        if torch.allclose(target, right, rtol=1e-5, atol=1e-5):
            runs[key] = launch
        else:
            wrong.append(key)
    moved = 4 * (x.numel() + columns.numel())
    many, copied = (torch.empty(moved // 8, device="cuda").normal_() for _ in range(2))
    runs["im2col", "torch (unfold)"] = partial(torch.nn.functional.unfold, x, kernel, **how)
    runs["im2col", "copy"] = partial(copied.copy_, many)  # of as many bytes as im2col moves
    runs["im2col", "copy of the columns"] = partial(out.copy_, columns)
    runs["col2im", "torch (fold)"] = partial(torch.nn.functional.fold, columns, shape[2:], kernel, **how)
    records = []
    lines = [f"{shape} by {kernel}, stride {stride}, dilation {dilation}", *(f"  WRONG: {key}" for key in wrong)]
    for (case, variant), timed in _time(runs, False).items():
        nbytes = 8 * columns.numel() if variant == "copy of the columns" else moved
        further = {"kernel": kernel, **how, "nbytes": nbytes}
        records.append(results.of_timing("conv", case, variant, shape, "float32", timed, **further))
        lines.append(f"  {case} {variant:14} {timed.median * 1e6:9.2f} us {timed.gbps(nbytes):6.0f} GB/s")
    report("\n".join(lines))
    return records, not wrong


def column_launches(x, back, columns, out, kernel, how):
    """Return {(case, variant): prepared launch}: im2col from x to out, col2im from columns to back."""
    x, back, columns, out, shape = (*(cuda.as_cuda_array(t.reshape(-1)) for t in (x, back, columns, out)), x.shape)
    launches = {}
    for variant in conv.VARIANTS:
        with contextlib.suppress(ValueError):  # a variant that does not take these windows
            launch, further = conv.configure_im2col(variant, tuple(shape), kernel, **how)
            launches["im2col", variant] = launching.prepare(launch, x, out, *further)
    launch, further = conv.configure_col2im(tuple(shape), kernel, **how)
    launches["col2im", launch.dispatcher.py_func.__name__] = launching.prepare(launch, columns, back, *further)
    return launches


# -- the host's part ---------------------------------------------------------------------------------------------------


def measure_calls(problem, report=print):
    """Time ``conv2d`` on PyTorch's tensors beside PyTorch's own by the host's clock: the host's part of a call, and a
    call with the wait for its result. Return as ``measure`` does.
    """
    x, weight, out = _allocate(problem, "float32")
    torch, how = common.libraries()["torch"], (problem.stride, problem.padding)
    runs = {
        "conv2d (torch)": partial(conv.conv2d, x, weight, None, *how, out=out),
        "conv2d (torch), new result": partial(conv.conv2d, x, weight, None, *how),
        "torch (conv2d)": partial(torch.nn.functional.conv2d, x, weight, None, *how),
    }
    records, lines = [], [f"{problem.x_shape} to {problem.out_channels} by {problem.kernel}, by the host's clock"]
    is_right = _fill(x, weight, problem)
    wrong = [name for name, run in runs.items() if not is_right(run())]
    waited = {name: partial(common.wait_for, run) for name, run in runs.items()}
    for case, chosen, setup in (("host", runs, cuda.synchronize), ("call and wait", waited, None)):
        timings = timing.bench_many(chosen, warmup=0.01, setup=setup, **BY_THE_HOST)
        for name, timed in timings.items():
            further = problem.described()
            records.append(results.of_timing("conv", case, name, problem.x_shape, "float32", timed, **further))
            lines.append(f"  {case:14} {name:28} {timed.median * 1e6:9.2f} us")
    report("\n".join([*lines, *(f"  WRONG: {name}" for name in wrong)]))
    return records, not wrong


# -- layers of networks ------------------------------------------------------------------------------------------------


def measure_layer(network, layer, samples, report=print):
    """Check and time `conv2d` and cuDNN for a layer of a network; return as ``measure`` does."""
    problem, torch = problems.Problem("conv2d", layer.problem(samples)), common.libraries()["torch"]
    torch.backends.cudnn.benchmark = True
    arrays = problem.make(np.random.default_rng(1), torch)
    if not problem.is_right(problem.call(arrays), arrays):
        report(f"WRONG: {problem}")
        return [], False
    runs = {"conv2d": problem.bind(arrays)} | problem.rivals(arrays, torch)
    timings = timing.bench_many(runs, min_time=SECONDS, warmup=0.005)
    case, further = f"{network}, {samples} images", layer.problem(samples)
    records = [
        results.of_timing("conv", case, name, problem.shape, "float32", timed, problem=further)
        for name, timed in timings.items()
    ]
    ours, theirs = (timed.median * 1e6 for timed in timings.values())
    report(f"{network}: {problem}: {ours:.1f} us, cuDNN {theirs:.1f}, {theirs / ours:.2f}")
    return records, True


# -- all of them -------------------------------------------------------------------------------------------------------


def _is_comparable(problem):
    """Decide whether im2col is worth timing beside the direct kernel."""
    how = problem.kernel, problem.stride, problem.padding
    if 4 * conv.workspace_size(problem.x_shape, *how) > MAX_COLUMNS:
        return False
    times = cost.expected(problem.x_shape, problem.weight_shape, make_geometry(problem.size, *how, 1), 1)
    return times["im2col"] <= COMPARABLE * times["direct"]


def algorithms_of(problem):
    """Return what is timed besides the direct kernel: what ``conv2d`` picks, implicit GEMM, im2col if comparable."""
    geometry = make_geometry(problem.size, problem.kernel, problem.stride, problem.padding, 1)
    dtype = np.dtype("float32")
    chosen = cost.choose_algorithm("auto", problem.x_shape, problem.weight_shape, geometry, 1, dtype)
    ways = dict.fromkeys(("im2col", "implicit", chosen) if _is_comparable(problem) else ("implicit", chosen))
    return tuple(way for way in ways if way != "direct")


def measurements(options):
    """Yield (title, function), the most important first; with ``--quick`` for the article's convolution only."""
    if "torch" not in common.libraries():
        raise common.MissingLibrary("PyTorch is not installed: there is no cuDNN to measure beside")
    yield "the article's convolution", partial(measure, ARTICLE, "article", algorithms=("im2col",), layouts=4)
    if options.quick:
        return
    for dtype in ("float32", "float16"):
        yield f"ladder, {dtype}", partial(measure, ARTICLE, "ladder", dtype, RUNGS, 1)
    for case in COLUMNS:
        yield f"im2col and col2im of {case[0]}", partial(measure_columns, *case)
    for problem in SMALL:
        yield f"calls for {problem.x_shape}", partial(measure_calls, problem)
    for cell in (*CELLS, *OTHERS):
        ways = algorithms_of(cell)
        yield f"{cell.x_shape} to {cell.out_channels} by {cell.kernel}", partial(measure, cell, algorithms=ways)
    for (network, layers), samples in itertools.product(NETWORKS.items(), SAMPLES):
        for layer in layers:
            yield f"{network}: {layer}, {samples} images", partial(measure_layer, network, layer, samples)
