"""``gpukit bench tensor``: time products on tensor cores beside cuBLAS in the same run, and measure their errors.

Each result is compared with float64 before it is timed. The L2 cache is cold, and times are without the launch. The
kernels of the ladder add float16 products to float32 and store float32; cuBLAS stores what it multiplies. Whatever is
beside cuBLAS needs PyTorch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench import common
from bench.fast_matmul import filled, poison
from gpukit import intrinsics, matmul, results, tensor, timing
from gpukit.backend import cuda
from gpukit.matmul.cost import TENSOR_SPEEDS
from gpukit.matmul.warps import warps
from warpstep.integers import ceil_div

__all__ = ["CASES", "FORMATS", "LADDER_SIZES", "measure_format", "measure_ladder", "measure_warps", "measurements"]

LADDER_SIZES = (4096, 1024, 2048, 8192, 512)
#: The format of the inputs; "tf32" and "high" are the precision of `matmul.matmul` for float32.
FORMATS = ("float16", "bfloat16", "int8", "tf32", "high", "float64")
#: (format, (M, N, K)); the last ones are ragged or thin. What matters most comes first: a run that is cut short keeps
#: what it has measured.
CASES = (
    *((name, (4096,) * 3) for name in FORMATS),
    *((name, (n,) * 3) for n in (2048, 1024, 8192, 512) for name in ("float16", "bfloat16")),
    *((name, shape) for shape in ((4097, 4095, 4100), (64, 4096, 4096)) for name in ("float16", "tf32")),
    *((name, (n,) * 3) for n in (2048, 8192, 1024) for name in ("int8", "tf32", "float64", "high")),
)
#: Roundings of an input, relative to its size: half of the last bit.
ROUNDINGS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "tf32": 2.0**-10, "high": 2.0**-19, "float64": 2.0**-52}
ROWS = 256  # of the result that are compared
SLOW = {"one_warp": 4096, "shared_tiles": 4096, "ldmatrix": 4096}  # the largest size that they are timed at
LONG = 2e11  # operations above which fewer repetitions are enough


def _timed(case, shape, dtype, runs, report, **further):
    """Time functions in turns; return records."""
    flops = 2.0 * np.prod(shape)
    repeat = 5 if flops > LONG else None
    timings = timing.bench_many(runs, repeat=repeat, warmup=0.005, min_time=0.02)
    best = next((timings[name].median for name in timings if "cublas" in name), None)
    records = []
    for name, timed in timings.items():
        records.append(results.of_timing("tensor", case, name, shape, dtype, timed, **further))
        ratio = f"{best / timed.median:6.3f} of cuBLAS" if best else ""
        report(f"  {name:16} {timed.median * 1e6:10.2f} us {timed.tflops(flops):7.2f} TFLOP/s {ratio}")
    return records


# -- the ladder --------------------------------------------------------------------------------------------------------


def measure_ladder(size, libraries, report=print):
    """Check and time the rungs at one size, and `matmul.matmul`; return (records, whether all results were right)."""
    shape, library = (size, size, size), common.libraries().get("cupy", np)
    a, b = (filled((size, size), seed, np.float16) for seed in (1, 2))
    out, halves = cuda.device_array((size, size), np.float32), cuda.device_array((size, size), np.float16)
    left, right = (library.asarray(x if library is not np else x.copy_to_host()) for x in (a, b))
    exact = left[:ROWS].astype(library.float64) @ right.astype(library.float64)
    runs: dict[str, Callable[[], Any]] = {
        name: partial(common.launch_all, tensor.steps(name, a, b, out))
        for name in tensor.VARIANTS
        if size <= SLOW.get(name, size)
    }
    all_right = True
    for name, run in list(runs.items()):
        poison(out)
        run()
        got = library.asarray(out if library is not np else out.copy_to_host())
        if not bool(library.isfinite(got).all() and (abs(got[:ROWS] - exact) <= 1e-6 * size).all()):
            all_right = False
            report(f"  WRONG: {name}")
            del runs[name]
    runs["fast"] = partial(matmul.matmul, a, b, out=halves)
    if "torch" in libraries:
        torch = libraries["torch"]
        x, y = (torch.as_tensor(matrix, device="cuda") for matrix in (a, b))
        runs["cublas (torch)"] = partial(torch.matmul, x, y, out=torch.empty_like(x))
    return _timed("ladder", shape, "float16", runs, report), all_right


def _single_warps(a, b, out):
    """Make a launch of the kernel that older GPUs take, which multiplies by `mma` alone."""
    n, tile = a.shape[0], TENSOR_SPEEDS["warps"][0].tile
    kernel = warps(tile, "float16", "NN", False, True)
    intrinsics.allow_dynamic_shared(kernel, tile.shared_bytes)
    blocks = ceil_div(n, tile.rows) * ceil_div(n, tile.columns), 1, 1
    one, nothing = np.uint32(1), np.uint32(0)
    factors = np.float32(1), np.float32(0)
    arguments = (np.uint32(n),) * 5, (nothing, one, one, one, one), (np.uint64(0),) * 2, factors
    bits = (matrix.reshape(-1).view(np.uint16) for matrix in (a, b))
    words = out.reshape(-1).view(np.uint32)
    return partial(kernel[blocks, tile.threads, 0, tile.shared_bytes], *bits, words, *arguments)


def measure_warps(size, libraries, report=print):
    """Check and time the product by single warps, which has no `wgmma`; return (records, whether it was right)."""
    library = common.libraries().get("cupy", np)
    a, b = (filled((size, size), seed, np.float16) for seed in (1, 2))
    out = cuda.to_device(np.full((size, size), np.nan, np.float16))
    run = _single_warps(a, b, out)
    run()
    left, right, got = (library.asarray(x if library is not np else x.copy_to_host()) for x in (a, b, out))
    exact = left[:ROWS].astype(library.float64) @ right.astype(library.float64)
    if not bool(library.isfinite(got).all() and (abs(got[:ROWS] - exact) <= 2e-3 * size**0.5).all()):
        report("  WRONG: warps")
        return [], False
    runs = {"warps": run}
    if "torch" in libraries:  # a name that tables of ratios pass over: gpukit has a faster kernel
        torch = libraries["torch"]
        x, y = (torch.as_tensor(matrix, device="cuda") for matrix in (a, b))
        runs["beside: cublas (torch)"] = partial(torch.matmul, x, y, out=torch.empty_like(x))
    return _timed("mma", (size, size, size), "float16", runs, report), True


# -- formats beside cuBLAS ---------------------------------------------------------------------------------------------


def _inputs(torch, name, shape):
    """Matrices of a format, and the result of one."""
    (m, n, k), number = shape, torch.Generator("cuda").manual_seed(7)
    if name == "int8":
        make = partial(torch.randint, -128, 128, dtype=torch.int8, device="cuda", generator=number)
        return make((m, k)), make((k, n)), torch.empty((m, n), dtype=torch.int32, device="cuda")
    dtype = {"tf32": torch.float32, "high": torch.float32}.get(name) or getattr(torch, name)
    a, b = (torch.randn(size, device="cuda", generator=number).to(dtype) for size in ((m, k), (k, n)))
    return a, b, torch.empty((m, n), dtype=dtype, device="cuda")


def _error(torch, name, a, b, got):
    """The largest error of the first rows, as a share of the sums of magnitudes; and whether it is small enough."""
    left, right = a[:ROWS].double(), b.double()
    error = ((got[:ROWS].double() - left @ right).abs() / (left.abs() @ right.abs())).max().item()
    if name == "int8":
        return error, error == 0
    own = ROUNDINGS[name] if name in ("float16", "bfloat16") else 0  # the result is rounded too
    summed = (2.0**-52 if name == "float64" else 2.0**-23) * (2 + a.shape[1] ** 0.5)
    return error, error <= own + summed + (2 * ROUNDINGS[name] if name in ("tf32", "high") else 0)


def measure_format(name, shape, libraries, report=print):
    """Check and time one format at one shape, beside cuBLAS; return (records, whether it was right)."""
    torch = libraries["torch"]
    a, b, out = _inputs(torch, name, shape)
    precision = {"precision": name} if name in ("tf32", "high") else {}
    run = partial(matmul.matmul, a, b, out=out, **precision)
    out.fill_(float("nan") if out.is_floating_point() else -1)
    run()
    error, right = _error(torch, name, a, b, out)
    if not right:
        report(f"  WRONG: {name}, error {error:.1e}")
        return [], False
    theirs = torch.empty_like(out)
    library = partial(torch.matmul, a, b, out=theirs)
    if name == "int8":
        columns = b.t().contiguous().t()  # the layout that it is fastest with
        whole = shape[0] > 16 and not (shape[1] % 8 or shape[2] % 8)
        library = partial(torch._int_mm, a, columns, out=theirs) if whole else None
    runs = {"fast": run} | ({"cublas (torch)": library} if library else {})
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"  # "high" stands beside cuBLAS in float32
    try:
        records = _timed("format", shape, name, runs, report)
        records.append(results.record("tensor", "error", "fast", shape, name, error, "of the sum of magnitudes"))
        if library:
            library()
            error, _ = _error(torch, name, a, b, theirs)
            records.append(results.record("tensor", "error", "cublas (torch)", shape, name, error, records[-1]["unit"]))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return records, True


def measurements(options):
    """Yield (title, function); with ``--quick`` for one size of each only."""
    libraries = common.libraries()
    ladder = [(f"ladder, {n} x {n} x {n} float16", partial(measure_ladder, n, libraries)) for n in LADDER_SIZES]
    formats = [
        (f"{name}, {' x '.join(map(str, shape))}", partial(measure_format, name, shape, libraries))
        for name, shape in CASES
        if "torch" in libraries
    ]
    ladder[1:1] = [(f"mma alone, {n} x {n} x {n} float16", partial(measure_warps, n, libraries)) for n in (4096, 8192)]
    first = [*ladder[:2], *formats[: len(FORMATS)]]
    yield from first if options.quick else [*first, *ladder[2:], *formats[len(FORMATS) :]]
