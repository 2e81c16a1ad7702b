"""``gpukit bench scan``: time scans, histograms, compaction, sorting and top-k beside CuPy, PyTorch and a plain copy.

CUB is timed by way of ``cuda.compute`` too, from the package ``cuda-cccl``, if that is installed. Each result is
checked first; then all are timed in turns on the device, with a cold L2 cache. `compress` and some of the libraries'
functions wait for the device inside the call: such records say that they are bound by the launch.
"""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench import common
from bench.reduce import fill
from gpukit import results, scan, timing
from gpukit.backend import cuda
from gpukit.scan import counting, ladder

__all__ = [
    "CASES",
    "HISTOGRAMS",
    "LADDER_SIZES",
    "ROWS",
    "SELECTIONS",
    "SORTS",
    "TOPS",
    "measure_case",
    "measure_histogram",
    "measure_ladder",
    "measure_rows",
    "measure_selection",
    "measure_sort",
    "measure_top",
    "measurements",
]

LADDER_SIZES = tuple(2**k for k in (16, 18, 20, 22, 24, 26, 28))
#: (shape, axis, dtype)
CASES = (
    *(((2**k,), None, dtype) for dtype in ("float32", "int32", "float64") for k in (16, 20, 24, 28)),
    *((shape, 1, "float32") for shape in ((4096, 4096), (65536, 1000), (10**6, 32))),
    *((shape, 0, "float32") for shape in ((4096, 4096), (30522, 10240))),
    *(((4096, 4096), axis, dtype) for axis in (1, 0) for dtype in ("int32", "float64")),
)
BINS = 256
#: What CUB is called in the records.
CUB = "cub (cuda.compute)"
#: (size, dtype, "uniform" or "constant")
HISTOGRAMS = tuple(
    (2**k, dtype, values) for dtype in ("uint8", "float32") for values in ("uniform", "constant") for k in (20, 24, 28)
)
#: (size, dtype, "keys" or "pairs" or "argsort")
SORTS = (
    *((2**k, dtype, "keys") for dtype in ("int32", "float32") for k in (16, 20, 24, 28)),
    *((2**k, "int32", what) for what in ("pairs", "argsort") for k in (16, 20, 24, 28)),
)
#: (shape, dtype): sorts of rows
ROWS = (((4096, 4096), "float32"), ((65536, 1000), "float32"), ((10**6, 32), "int32"))
#: (shape, k)
TOPS = (((2**20,), 16), ((2**24,), 16), ((2**28,), 16), ((2**24,), 4096), ((4096, 4096), 16), ((65536, 1000), 16))
#: (size, share of the elements that are selected)
SELECTIONS = tuple((2**k, share) for share in (0.5, 0.01) for k in (16, 20, 24, 28))
SECONDS = 0.03  # of timed repetitions for each function
#: Elements of the histograms that take long: those for reading, and PyTorch's of one value.
MAX_LESSON = 2**24


@cuda.jit
def fill_bits(x):
    """Fill an array of uint32 with pseudo-random bits, the same in every run."""
    i = cuda.grid(1)
    while i < x.size:
        bits = np.uint32(i) * np.uint32(2654435761)
        bits = np.uint32(bits) ^ np.uint32(np.uint32(bits) >> np.uint32(16))
        bits = np.uint32(bits * np.uint32(2246822507))
        bits = np.uint32(bits) ^ np.uint32(np.uint32(bits) >> np.uint32(13))
        bits = np.uint32(bits * np.uint32(3266489909))
        x[i] = np.uint32(bits) ^ np.uint32(np.uint32(bits) >> np.uint32(16))
        i += cuda.gridsize(1)


@functools.cache
def _cub() -> Any:
    """CUB's interface for Python; None if it is not installed."""
    try:
        import cuda.compute as found  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return found


def _filled(shape, dtype):
    """Random numbers from -100 to 100. Outputs begin so too: memory that was freed may hold the right result."""
    x = cuda.device_array(math.prod(shape), dtype)
    fill[2048, 256](x)
    return x.reshape(*shape)


def _bits(size, dtype):
    """An array of integers with random bits."""
    x = cuda.device_array(-(-size * np.dtype(dtype).itemsize // 4), np.uint32)
    fill_bits[2048, 256](x)
    return x.view(dtype)[:size]


def _library():
    return common.libraries().get("cupy", np)


def _seen(x):
    """An array as the library that checks it sees it."""
    return _library().asarray(x if _library() is not np or isinstance(x, np.ndarray) else x.copy_to_host())


def _timed(case, shape, dtype, runs, nbytes, report, **further):
    """Time functions in turns; return records of their times, and of the host's time of a call."""
    records, unknown = [], {"spread": None, "quartiles": None}
    for name, timed in timing.bench_many(runs, min_time=SECONDS, warmup=0.01).items():
        record = results.of_timing("scan", case, name, shape, dtype, timed, **further)
        records += [record, record | {"case": f"{case}, host", "value": timed.host_seconds} | unknown]
        speed = f"{timed.median * 1e6:9.2f} us  {timed.gbps(nbytes):7.0f} GB/s"
        report(f"  {name:24} {speed}  host {timed.host_seconds * 1e6:6.1f} us")
    return records


# -- scans -------------------------------------------------------------------------------------------------------------


def _is_scan(x, axis, got):
    """Compare sums with those in float64, up to some tens of roundings of the sum of magnitudes."""
    library, x, got = _library(), _seen(x), _seen(got)
    exact = library.cumsum(x, axis, dtype=library.int64 if x.dtype.kind == "i" else library.float64)
    if x.dtype.kind == "i":
        return bool((got == exact).all())
    eps = float(np.finfo(np.dtype(str(x.dtype))).eps)
    magnitude = library.cumsum(abs(x), axis, dtype=library.float64)
    return bool((abs(got - exact) <= 64 * eps * magnitude).all())


def _library_scans(libraries, x, axis, result):
    """Return {name: function} of the libraries' sums of the same memory, with outputs allocated before."""
    runs = {}
    if "cupy" in libraries:
        cupy = libraries["cupy"]
        runs["cupy"] = partial(cupy.cumsum, cupy.asarray(x), axis, out=cupy.empty(x.shape, result))
    if "torch" in libraries:
        torch = libraries["torch"]
        values = torch.as_tensor(x, device="cuda")
        out = torch.empty(x.shape, dtype=getattr(torch, np.dtype(result).name), device="cuda")
        runs["torch"] = partial(torch.cumsum, values, axis or 0, out=out)
    if _cub() and axis is None and x.dtype == result:
        out = cuda.device_array(x.shape, result)
        runs[CUB] = partial(_cub().inclusive_scan, d_in=x, d_out=out, op=_cub().OpKind.PLUS, num_items=x.size)
    return runs


def measure_ladder(size, libraries, report=print):
    """Check and time all rungs at one size, and `scan.scan`; return (records, whether all results were right)."""
    x, out = _filled((size,), np.float32), cuda.device_array(size, np.float32)
    again, all_right = cuda.device_array(size, np.float32), True
    runs = {name: partial(common.launch_all, ladder.steps(name, x, out)) for name in ladder.VARIANTS}
    runs["scan"] = partial(scan.scan, x, out=out)
    for name, run in list(runs.items()):
        fill[2048, 256](out)
        run()
        if not _is_scan(x, None, out):
            all_right = False
            report(f"  WRONG: {name}")
            del runs[name]
    runs |= {"copy": partial(again.copy_to_device, x)} | _library_scans(libraries, x, None, np.float32)
    records = _timed("ladder", (size,), "float32", runs, 8 * size, report)
    return [record for record in records if record["case"] == "ladder"], all_right


def measure_case(shape, axis, dtype, libraries, report=print):
    """Check and time `scan.scan` beside the libraries; return (records, whether it was right)."""
    x, result = _filled(shape, dtype), np.dtype("int64" if dtype == "int32" else dtype)
    out, copied = _filled(shape, result), cuda.device_array(shape, dtype)
    run = partial(scan.scan, x, axis, out=out)
    run()
    if not _is_scan(x, axis, out):
        report("  WRONG: scan")
        return [], False
    runs = {"scan": run} | _library_scans(libraries, x, axis, result)
    runs["copy"] = partial(copied.copy_to_device, x)
    case = f"sum over {'all' if axis is None else f'axis {axis}'}"
    return _timed(case, shape, dtype, runs, math.prod(shape) * (x.dtype.itemsize + result.itemsize), report), True


# -- histograms --------------------------------------------------------------------------------------------------------


def _counts(x, span):
    """Count without a histogram: from the places of the edges among the sorted values, none of which is the last."""
    library, x = _library(), _seen(x)
    if x.dtype == np.uint8:
        return library.bincount(x, minlength=BINS)
    edges = library.asarray(np.histogram_bin_edges(np.zeros(0, np.float32), BINS, span).astype(np.float32))
    return library.diff(library.searchsorted(library.sort(x), edges))


def measure_histogram(size, dtype, values, libraries, report=print):
    """Check and time histograms of 256 bins; return (records, whether all were right).

    Bytes are counted by the kernels for reading too.
    """
    x = _bits(size, "uint8") if dtype == "uint8" else _filled((size,), dtype)
    if values == "constant":
        x.copy_to_device(np.full(size, 7, dtype))
    span, out = (0, 256) if dtype == "uint8" else (-100, 101), _filled((BINS,), np.int64)
    zero = cuda.to_device(np.zeros(BINS, np.int64))
    runs: dict[str, Callable[[], Any]] = {"histogram": partial(scan.histogram, x, BINS, span, out=out)}
    if dtype == "uint8" and size <= MAX_LESSON:
        blocks = counting.BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT
        for kernel in (counting.global_atomics, counting.shared_atomics):
            steps = [(out.copy_to_device, (zero,)), (kernel[blocks, counting.THREADS], (x, out))]
            runs[kernel.py_func.__name__] = partial(common.launch_all, steps)
    expected, all_right = _counts(x, span), True
    for name, run in list(runs.items()):
        out.copy_to_device(np.full(BINS, -1, np.int64))
        run()
        if not (_seen(out) == expected).all():
            all_right = False
            report(f"  WRONG: {name}")
            del runs[name]
    if "cupy" in libraries:
        cupy = libraries["cupy"]
        runs["cupy"] = partial(cupy.histogram, cupy.asarray(x), BINS, span)
    if "torch" in libraries and (values == "uniform" or size <= MAX_LESSON):
        torch = libraries["torch"]
        tensor = torch.as_tensor(x, device="cuda")
        count = partial(torch.bincount, minlength=BINS) if dtype == "uint8" else partial(torch.histc, bins=BINS)
        runs["torch"] = partial(count, tensor) if dtype == "uint8" else partial(count, tensor, min=span[0], max=span[1])
    if _cub():
        low, high = (getattr(np, "int32" if dtype == "uint8" else dtype)(edge) for edge in span)
        own = {"d_histogram": cuda.device_array(BINS, np.int32), "num_output_levels": BINS + 1}
        levels = {"lower_level": low, "upper_level": high}
        runs[CUB] = partial(_cub().histogram_even, d_samples=x, num_samples=size, **own, **levels)
    if not runs:
        return [], all_right
    return _timed(f"histogram, {values}", (size,), dtype, runs, x.nbytes, report, bins=BINS), all_right


# -- sorting and compaction --------------------------------------------------------------------------------------------


def _is_order(x, order):
    """Tell whether indices put an array into order, each once, and equal elements in the order they had."""
    library, x, order = _library(), _seen(x), _seen(order)
    taken, seen = x[order], library.zeros(x.size, bool)
    seen[order] = True
    rising = (taken[1:] > taken[:-1]) | (taken[1:] == taken[:-1]) & (order[1:] > order[:-1])
    return bool(seen.all() and rising.all())


def _library_sorts(libraries, x, values, what):
    """Return {name: function}: of these only CUB sorts pairs; the others take the values in an argsort's order."""
    runs = {}
    if "cupy" in libraries:
        cupy = libraries["cupy"]
        keys, taken = cupy.asarray(x), cupy.asarray(values)
        order = partial(cupy.argsort, keys)
        runs["cupy"] = {"keys": partial(cupy.sort, keys), "argsort": order, "pairs": lambda: taken[order()]}[what]
    if "torch" in libraries:
        torch = libraries["torch"]
        tensor, found = torch.as_tensor(x, device="cuda"), torch.as_tensor(values, device="cuda")
        both = partial(torch.sort, tensor, stable=True)
        runs["torch"] = {"keys": both, "argsort": both, "pairs": lambda: found[both().indices]}[what]
    if _cub() and what != "argsort":
        moved = {"d_in_values": values, "d_out_values": cuda.device_array(x.size, values.dtype)}
        keys = {"d_in_keys": x, "d_out_keys": cuda.device_array(x.size, x.dtype), "num_items": x.size}
        options = keys | (moved if what == "pairs" else {})
        runs[CUB] = partial(_cub().radix_sort, **options, order=_cub().SortOrder.ASCENDING)
    return runs


def measure_sort(size, dtype, what, libraries, report=print):
    """Check and time a sort of keys, of pairs with int32 values, or of indices; return (records, whether right)."""
    x = _bits(size, dtype) if dtype == "int32" else _filled((size,), dtype)
    values = cuda.to_device(np.arange(size, dtype=np.int32))
    out = _filled((size,), {"keys": dtype, "pairs": np.int32, "argsort": np.int64}[what])
    if what == "argsort":
        run = partial(scan.argsort, x, out=out)
    else:
        run = partial(scan.sort, x, values if what == "pairs" else None, out=out)
    run()
    right = bool((_seen(out) == _library().sort(_seen(x))).all()) if what == "keys" else _is_order(x, out)
    if not right:
        report("  WRONG: sort")
        return [], False
    runs = {"sort": run} | _library_sorts(libraries, x, values, what)
    return _timed(f"sort, {what}", (size,), dtype, runs, x.nbytes + out.nbytes, report), True


def measure_rows(shape, dtype, libraries, report=print):
    """Check and time a sort of rows; return (records, whether it was right)."""
    x, out = _filled(shape, dtype), _filled(shape, dtype)
    run = partial(scan.sort, x, out=out)
    run()
    if not bool((_seen(out) == _library().sort(_seen(x), -1)).all()):
        report("  WRONG: sort")
        return [], False
    runs: dict[str, Callable[[], Any]] = {"sort": run}
    if "cupy" in libraries:
        runs["cupy"] = partial(libraries["cupy"].sort, libraries["cupy"].asarray(x), -1)
    if "torch" in libraries:
        runs["torch"] = partial(libraries["torch"].sort, libraries["torch"].as_tensor(x, device="cuda"))
    return _timed("sort, rows", shape, dtype, runs, 2 * x.nbytes, report), True


def measure_top(shape, k, libraries, report=print):
    """Check and time a top-k of the last axis of float32; return (records, whether it was right)."""
    x = _filled(shape, np.float32)
    values, indices = scan.topk(x, k)
    ordered = _library().sort(_seen(x), -1)[..., : -k - 1 : -1]
    taken = _library().take_along_axis(_seen(x), _seen(indices), -1)
    if not bool((_seen(values) == ordered).all() and (taken == ordered).all()):
        report("  WRONG: topk")
        return [], False
    runs: dict[str, Callable[[], Any]] = {"topk": partial(scan.topk, x, k)}
    if "torch" in libraries:  # its memory for the result costs less than a new array of Numba's
        torch = libraries["torch"]
        tensor = torch.as_tensor(x, device="cuda")
        runs = {"topk": partial(scan.topk, tensor, k), "torch": partial(torch.topk, tensor, k)}
    return _timed("topk", shape, "float32", runs, x.nbytes, report, k=k), True


def measure_selection(size, share, libraries, report=print):
    """Check and time a compaction of float32; return (records, whether it was right)."""
    x, chosen = _filled((size,), np.float32), _bits(size, np.uint32)
    mask = cuda.to_device(chosen.copy_to_host() < share * 2**32)
    if "torch" in libraries:  # its memory for the result costs less than a new array of Numba's
        mask, x = (libraries["torch"].as_tensor(array, device="cuda") for array in (mask, x))
    run = partial(scan.compress, mask, x)
    expected = _seen(x)[_seen(mask)]
    if not _library().array_equal(_seen(run()), expected):
        report("  WRONG: compress")
        return [], False
    runs: dict[str, Callable[[], Any]] = {"compress": run}
    if "cupy" in libraries:
        values, wanted = (libraries["cupy"].asarray(array) for array in (x, mask))
        runs["cupy"] = lambda: values[wanted]
    if "torch" in libraries:
        torch = libraries["torch"]
        runs["torch"] = partial(torch.masked_select, *(torch.as_tensor(array, device="cuda") for array in (x, mask)))
    return _timed("compress", (size,), "float32", runs, 5 * size + expected.nbytes, report, share=share), True


def measurements(options):
    """Yield (title, function); with ``--quick`` for the first sizes of each only."""
    libraries, quick = common.libraries(), options.quick
    for size in LADDER_SIZES[2:3] if quick else LADDER_SIZES:
        yield f"ladder, {size:,} float32", partial(measure_ladder, size, libraries)
    for shape, axis, dtype in CASES[1:2] if quick else CASES:
        title = f"scan of {' x '.join(map(str, shape))} {dtype}, axis {axis}"
        yield title, partial(measure_case, shape, axis, dtype, libraries)
    for case in HISTOGRAMS[:1] if quick else HISTOGRAMS:
        size, dtype, values = case
        yield f"histogram of {size:,} {values} {dtype}", partial(measure_histogram, *case, libraries)
    for case in SORTS[1:2] if quick else SORTS:
        size, dtype, what = case
        yield f"sort of {size:,} {dtype}, {what}", partial(measure_sort, *case, libraries)
    for shape, dtype in ROWS[1:2] if quick else ROWS:
        title = f"sort of the rows of {' x '.join(map(str, shape))} {dtype}"
        yield title, partial(measure_rows, shape, dtype, libraries)
    for shape, k in TOPS[:1] if quick else TOPS:
        yield f"the {k:,} largest of {' x '.join(map(str, shape))} float32", partial(measure_top, shape, k, libraries)
    for case in SELECTIONS[1:2] if quick else SELECTIONS:
        yield f"compaction of {case[0]:,} float32, {case[1]:.0%} of them", partial(measure_selection, *case, libraries)
