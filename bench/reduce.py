"""``gpukit bench reduce``: time the ladder's kernels and ``reduce`` beside CuPy, PyTorch and a plain copy.

Each result is checked first; then all are timed in turns, with a cold L2 cache. The kernels are timed on the device,
and calls with their launch by the host's clock.
"""

import math
from functools import partial

import numpy as np

from bench import common
from gpukit import launching, operators, results, timing
from gpukit.backend import cuda
from gpukit.reduce import ladder
from gpukit.reduce.api import reduce

__all__ = [
    "CASES",
    "COUNTED",
    "LADDER_SIZES",
    "SHAPES",
    "fill",
    "measure_case",
    "measure_counted",
    "measure_ladder",
    "measurements",
]

LADDER_SIZES = tuple(2**k for k in (12, 16, 18, 20, 22, 24, 26, 28))
#: (shape, axis)
SHAPES = (
    ((2**20,), None),
    ((2**24,), None),
    ((2**28,), None),
    ((30522, 10240), 0),
    ((256, 64, 64, 32), 0),
    ((128, 4096, 4095), 1),
    ((65536, 1000), -1),
    ((10**6, 32), -1),
)
#: (shape, axis, dtype, op)
CASES = (
    *((shape, axis, "float32", op) for shape, axis in SHAPES for op in ("sum", "mean", "max")),
    *(((2**28,), None, dtype, "sum") for dtype in ("int8", "float16", "int32", "float64")),
    *(((30522, 10240), 0, dtype, "sum") for dtype in ("int8", "float16")),
    *(((65536, 1000), -1, dtype, "sum") for dtype in ("int8", "float16")),
    ((30522, 10241), 0, "int8", "sum"),
    ((30522, 10241), 0, "float16", "sum"),
    ((65536, 1001), -1, "float32", "sum"),
    ((256, 3, 224, 224), 1, "float32", "sum"),
    *((shape, axis, "float32", "function") for shape, axis in SHAPES[2:]),
)
#: (size, op) of calls that are timed with their launch.
COUNTED = (
    *((2**k, "sum") for k in (12, 16, 20, 24, 28)),
    *((2**k, op) for k in (20, 24) for op in ("mean", "max")),
)
SECONDS = 0.04  # of timed repetitions for each function


def add(a, b):
    """Add two numbers: a function of the user's, whose order ``reduce`` must keep."""
    return a + b


def _operation(op):
    return (add, 0.0) if op == "function" else op


@cuda.jit
def fill(x):
    """Fill with pseudo-random numbers from -100 to 100, the same in every run; whole ones for integer dtypes."""
    i = cuda.grid(1)
    while i < x.size:
        bits = np.uint32(i) * np.uint32(2654435761)
        bits = np.uint32(bits) ^ np.uint32(np.uint32(bits) >> np.uint32(15))
        bits = np.uint32(bits * np.uint32(2246822519))
        bits = np.uint32(bits) ^ np.uint32(np.uint32(bits) >> np.uint32(13))
        x[i] = x.dtype.type(np.float32(np.int64(bits) % 20001 - 10000) * np.float32(0.01))
        i += cuda.gridsize(1)


def _filled(shape, dtype):
    x = cuda.device_array(math.prod(shape), dtype)
    fill[2048, 256](x)
    return x.reshape(shape)


def _is_right(x, axis, op, got):
    """Compare a result with NumPy's (or CuPy's) in float64, up to a few roundings of the sum of magnitudes."""
    library = common.libraries().get("cupy", np)
    x = library.asarray(x if library is not np else x.copy_to_host())
    got = library.asarray(got if library is not np else got.copy_to_host()).reshape(-1)
    if op == "max":
        return bool((got == x.max(axis).reshape(-1)).all())
    op = "sum" if op == "function" else op
    number = library.int64 if x.dtype.kind == "i" else library.float64
    exact = getattr(library, op)(x, axis, dtype=library.float64 if op == "mean" else number).reshape(-1)
    if x.dtype.kind == "i":
        return bool((got == exact).all())
    magnitude = getattr(library, op)(abs(x), axis, dtype=library.float64).reshape(-1)
    # Roundings of a tree of float32, and the one of the result.
    bound = 32 * np.finfo(np.float32).eps * magnitude + np.finfo(np.dtype(str(got.dtype))).eps * abs(exact)
    finite = abs(exact) < np.finfo(np.dtype(str(got.dtype))).max
    return bool(((abs(got - exact) <= bound) | ~finite).all())


def measure_ladder(size, libraries, report=print):
    """Check and time all rungs at one size.

    Returns
    -------
    list of dict
        Records; none of a rung whose result is wrong.
    bool
        Whether all results were right.
    """
    x, out = _filled((size,), np.float32), cuda.device_array(1, np.float32)
    copied, again = cuda.device_array(size, np.float32), cuda.device_array(size, np.float32)
    zero, runs, all_right = cuda.to_device(np.zeros(1, np.float32)), {}, True
    rungs = {variant: ladder.steps(variant, x, out) for variant in ladder.VARIANTS}
    _, (_, sums) = rungs["wide"][0]
    rungs["atomic"] = [(out.copy_to_device, (zero,)), (ladder.atomic[sums.size, ladder.THREADS], (x, out))]
    for variant, steps in rungs.items():
        out.copy_to_device(np.full(1, np.nan, np.float32))
        common.launch_all(steps)
        if _is_right(x, None, "sum", out):
            runs[variant] = partial(common.launch_all, steps)
        else:
            all_right = False
            report(f"  WRONG: {variant}")
    runs["copy"] = partial(copied.copy_to_device, again)
    runs |= _library_runs(libraries, x, None, "sum", np.float32)
    records = []
    for name, result in timing.bench_many(runs, min_time=SECONDS, warmup=0.01).items():
        records.append(results.of_timing("reduce", "ladder", name, (size,), "float32", result))
        moved = (2 if name == "copy" else 1) * 4 * size
        report(f"  {name:24} {result.median * 1e6:9.2f} us  {result.gbps(moved):7.0f} GB/s")
    return records, all_right


def _library_runs(libraries, x, axis, op, result):
    """Return {name: function} of the libraries' reductions of the same memory, with outputs allocated before."""
    runs, shape = {}, _result_shape(x.shape, axis)
    if "cupy" in libraries:
        cupy = libraries["cupy"]
        runs["cupy"] = partial(getattr(cupy, op), cupy.asarray(x), axis, out=cupy.empty(shape, result))
    if "torch" in libraries:
        torch = libraries["torch"]
        values = torch.as_tensor(x, device="cuda")
        out = torch.empty(shape, dtype=getattr(torch, np.dtype(result).name), device="cuda")
        dims = tuple(range(x.ndim)) if axis is None else (axis,)
        runs["torch"] = partial(getattr(torch, "amax" if op == "max" else op), values, dims, out=out)
    return runs


def _result_shape(shape, axis):
    return () if axis is None else tuple(n for i, n in enumerate(shape) if i != axis % len(shape))


def measure_case(shape, axis, dtype, op, libraries, report=print):
    """Check and time ``reduce`` beside the libraries; return (records, whether it was right).

    The host's time of a call, which only a long kernel hides, has a record of its own.
    """
    x, result = _filled(shape, dtype), operators.result_dtype(op, np.dtype(dtype))
    out = _filled(_result_shape(shape, axis), result)  # memory that was freed may hold the right result
    reduce(x, axis, _operation(op), out=out)
    if not _is_right(x, axis, op, out):
        report("  WRONG: reduce")
        return [], False
    runs = {"reduce": partial(reduce, x, axis, _operation(op), out=out)}
    runs |= {} if op == "function" else _library_runs(libraries, x, axis, op, result)
    records, unknown = [], {"spread": None, "quartiles": None}
    case = f"{op} over {'all' if axis is None else f'axis {axis % len(shape)}'}"
    for name, timed in timing.bench_many(runs, min_time=SECONDS, warmup=0.01).items():
        record = results.of_timing("reduce", case, name, shape, dtype, timed, op=op)
        records += [record, record | {"case": f"{case}, host", "value": timed.host_seconds} | unknown]
        speed = f"{timed.median * 1e6:9.2f} us  {timed.gbps(x.nbytes):7.0f} GB/s"
        report(f"  {name:24} {speed}  host {timed.host_seconds * 1e6:6.1f} us")
    return records, True


def measure_counted(size, op, libraries, report=print):
    """Check and time calls with the wait for their result, by the host's clock; return (records, all right).

    ``reduce`` takes an array of each library beside that library's own function.
    """
    x, out = _filled((size,), np.float32), cuda.device_array((), np.float32)
    arrays = {"reduce": x} | {f"reduce ({name})": _as_array(libraries[name], x) for name in libraries}
    runs, all_right = {}, True
    for name, array in arrays.items():
        # Libraries keep memory for results; Numba would allocate it each time.
        runs[name] = partial(reduce, array, None, op, out=out if array is x else None)
        if not _is_right(x, None, op, cuda.as_cuda_array(runs[name]())):
            all_right = False
            report(f"  WRONG: {name}")
            del runs[name]
    for name, library in libraries.items():
        runs[name] = partial(getattr(library, op), arrays[f"reduce ({name})"])
    # Twice the L2 cache: nothing of x is left in it.
    flush = launching.prepare(
        fill[2048, 256], cuda.device_array(cuda.get_current_device().L2_CACHE_SIZE // 2, np.float32)
    )

    def cold():
        flush()
        cuda.synchronize()

    runs = {name: partial(common.wait_for, run) for name, run in runs.items()}
    records = []
    for name, timed in timing.bench_many(runs, device="cpu", setup=cold, min_time=SECONDS, warmup=0.01).items():
        case = f"{op} over all, launch counted"
        records.append(results.of_timing("reduce", case, name, (size,), "float32", timed, op=op))
        report(f"  {name:24} {timed.median * 1e6:9.2f} us")
    return records, all_right


def _as_array(library, x):
    return library.asarray(x, device="cuda") if library.__name__ == "torch" else library.asarray(x)


def measurements(options):
    """Yield (title, function); with ``--quick`` for one size of the ladder and the first shapes only."""
    libraries = common.libraries()
    for case in CASES[: 3 if options.quick else None]:
        shape, axis, dtype, op = case
        yield f"{op} of {' x '.join(map(str, shape))} {dtype}, axis {axis}", partial(measure_case, *case, libraries)
    for size, op in COUNTED[2:3] if options.quick else COUNTED:
        yield f"{op} of {size:,} float32, launch counted", partial(measure_counted, size, op, libraries)
    for size in LADDER_SIZES[3:4] if options.quick else LADDER_SIZES:
        yield f"ladder, {size:,} float32", partial(measure_ladder, size, libraries)
