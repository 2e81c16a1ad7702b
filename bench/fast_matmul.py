"""``gpukit bench fast-matmul``: time float32 products beside cuBLAS in the same run (rows A10 to A12, C1).

Every product is compared with float64 before it is timed. TF32 is off, the L2 cache is cold, and times are without the
launch.
"""

from functools import partial

import numpy as np
from numba.cuda import float32, uint32

from bench import common
from bench.ceilings import CHAINS, FULL, THREADS, UNROLL, multiply_adds
from gpukit import matmul, results, timing
from gpukit.backend import cuda

__all__ = ["BATCHES", "LADDER", "MAP_DEPTHS", "MAP_SIZES", "SHAPES", "measure_shape", "measurements"]


#: (M, N, K) of the shapes that count: squares, then thin, ragged, shallow and deep ones.
SQUARES = tuple((n, n, n) for n in (256, 512, 768, 1024, 1536, 2048, 4096, 8192))
THIN = tuple(shape for n in (16, 64, 1000, 4097) for shape in ((n, 4096, 4096), (4096, n, 4096)))
ODD = ((1000, 1000, 1000), (1001, 1001, 1001), (4097, 4097, 4097), (513, 4097, 1023), (16, 4097, 4096))
DEEP = tuple((n, n, k) for k in (64, 32768) for n in (1024, 4096))
SHAPES = (*SQUARES, *THIN, *ODD, *DEEP)
#: The map of sizes: M = N across, K down.
MAP_SIZES = (64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192)
MAP_DEPTHS = (64, 256, 1024, 4096, 16384, 32768)
#: (matrices, M, N, K); negative matrices share one left operand, as the weights of a convolution.
BATCHES = ((64, 128, 128, 128), (16, 512, 512, 512), (1000, 32, 32, 32), (-32, 64, 3136, 576))
#: The variants of the ladder, and the sizes that it is measured at.
LADDER = ("naive", "tiled", *matmul.LADDER)
LADDER_SIZES = (4096, 1024)
#: The variants that float64 is measured with here: those without tensor cores. `bench.tensor` measures the fastest.
FLOAT64 = ("tiled", "registers_1d", "registers_2d")
MIB = 1 << 20
#: Operations above which fewer repetitions are enough.
LONG = 2e11


@cuda.jit
def fill(x, seed):
    """Fill with pseudo-random numbers from -1 to 1: the upper bits of a hash of the position."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        bits = uint32((i + seed) * 2654435761)
        bits = uint32((bits ^ (bits >> 15)) * 2246822519)
        bits = uint32((bits ^ (bits >> 13)) * 3266489917)
        x[i] = float32(uint32(bits ^ (bits >> 16)) >> 8) * float32(2.0**-23) - float32(1)


def filled(shape, seed, dtype=np.float32):
    """Return a device array of pseudo-random numbers from -1 to 1."""
    array = cuda.device_array(shape, dtype)
    fill[1024, 256](array.reshape(-1), seed)
    return array


def is_right(a, b, got):
    """Compare a product with float64, within the rounding errors of sums of so many terms."""
    library = common.libraries().get("cupy", np)
    a, b, got = (library.asarray(x if library is not np else x.copy_to_host()) for x in (a, b, got))
    bound = 2 * np.finfo(np.float32).eps * np.sqrt(a.shape[-1] + 1)
    if str(got.dtype) == "float64":
        bound = 2 * np.finfo(np.float64).eps * (a.shape[-1] + 1)
    step = max(1, MIB * 16 // max(1, b.shape[-1] * got.shape[-2] if got.ndim > 2 else b.shape[-1]))
    for first in range(0, got.shape[0], step):
        rows = slice(first, first + step)
        left, right = a[rows].astype(library.float64), (b if b.ndim == 2 else b[rows]).astype(library.float64)
        error = abs(got[rows] - left @ right)
        if not bool((error <= bound * (abs(left) @ abs(right)) + 1e-30).all()):
            return False
    return True


def poison(out):
    """Fill an output with NaN, so that elements that are not written show."""
    fill_with_nan[1024, 256](out.reshape(-1))


@cuda.jit
def fill_with_nan(x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] = np.nan


def timed(case, shape, runs, flops, further=None, report=print):
    """Time some products of one shape in turns; return a list of records."""
    repeat = 5 if flops > LONG else None
    timings = timing.bench_many(runs, repeat=repeat, warmup=0.005, min_time=0.02)
    best = min((timings[name].median for name in timings if name.startswith("cublas")), default=None)
    records = []
    for name, result in timings.items():
        records.append(results.of_timing("fast_matmul", case, name, shape, "float32", result, **(further or {})))
        ratio = f"{best / result.median:6.3f} of cuBLAS" if best else ""
        speed = f"{result.median * 1e6:11.2f} us {result.tflops(flops):7.2f} TFLOP/s"
        report(f"  {shape!s:22} {name:20} {speed} {ratio}")
    return records


# -- measurements ---------------------------------------------------------------------------------


def measure_shape(case, shape, names=("torch",), report=print):
    """Check and time `matmul.matmul` at one shape, beside cuBLAS; return (records, whether it was right)."""
    m, n, k = shape
    a, b, out = filled((m, k), 1), filled((k, n), 2), cuda.device_array((m, n), np.float32)
    poison(out)
    matmul.matmul(a, b, out=out)
    if not is_right(a, b, out):
        report(f"  WRONG: {shape}")
        return [], False
    runs = {"fast": partial(matmul.matmul, a, b, out=out)} | common.library_products(a, b, out, names)
    return timed(case, shape, runs, 2 * m * n * k, report=report), True


def measure_shapes(case, shapes, names=("torch",), report=print):
    """Check and time several shapes, as `measure_shape` does one."""
    records, all_right = [], True
    for shape in shapes:
        more, right = measure_shape(case, shape, names, report)
        records += more
        all_right &= right
    return records, all_right


def measure_batches(report=print):
    """Check and time batches of products, beside cuBLAS."""
    records, all_right = [], True
    for count, m, n, k in BATCHES:
        shared, count = count < 0, abs(count)
        a, b = filled((m, k) if shared else (count, m, k), 1), filled((count, k, n), 2)
        out = cuda.device_array((count, m, n), np.float32)
        poison(out)
        matmul.matmul(a, b, out=out)
        whole = a if not shared else filled((count, m, k), 1)
        if shared:
            for z in range(count):
                whole[z].copy_to_device(a)
        if not is_right(whole, b, out):
            report(f"  WRONG: {count} x {m} x {n} x {k}")
            all_right = False
            continue
        runs = {"fast": partial(matmul.matmul, a, b, out=out)} | common.library_products(a, b, out, ("torch",))
        records += timed("batch", (count, m, n, k), runs, 2 * count * m * n * k, {"shared": shared}, report)
    return records, all_right


def measure_ladder(size, report=print):
    """Check and time the ladder at one size, beside cuBLAS; return (records, whether all were right)."""
    a, b, out = filled((size, size), 1), filled((size, size), 2), cuda.device_array((size, size), np.float32)
    runs, all_right = {}, True
    for variant in LADDER:
        launches = matmul.steps(variant, a, b, out)
        poison(out)
        common.launch_all(launches)
        if is_right(a, b, out):
            runs[variant] = partial(common.launch_all, launches)
        else:
            all_right = False
            report(f"  WRONG: {variant}")
    runs |= common.library_products(a, b, out)
    return timed("ladder", (size,) * 3, runs, 2 * size**3, report=report), all_right


def measure_float64(report=print):
    """Check and time float64 products by several variants, beside cuBLAS."""
    records, all_right = [], True
    for size in (256, 1024):
        a, b = (filled((size, size), seed, np.float64) for seed in (1, 2))
        out, runs = cuda.device_array((size, size), np.float64), {}
        for variant in FLOAT64:
            poison(out)
            matmul.matmul(a, b, variant, out=out)
            if is_right(a, b, out):
                runs[variant] = partial(matmul.matmul, a, b, variant, out=out)
            else:
                all_right = False
                report(f"  WRONG: {variant}, float64")
        runs |= common.library_products(a, b, out, ("torch",))
        records += [
            record | {"dtype": "float64"} for record in timed("float64", (size,) * 3, runs, 2 * size**3, report=report)
        ]
    return records, all_right


def measure_limit(turns=2000, report=print):
    """Time the multiprocessors' limit: multiply-adds in registers, eight independent ones per thread."""
    blocks = FULL * cuda.get_current_device().MULTIPROCESSOR_COUNT
    out = cuda.device_array(blocks * THREADS, np.float32)
    run = partial(multiply_adds(float32)[blocks, THREADS], np.float32(0.5), turns, out)
    result = timing.bench(run, warmup=0.02, min_time=0.05, l2_flush=False)
    flops = 2 * turns * UNROLL * CHAINS * blocks * THREADS
    record = results.of_timing("fast_matmul", "limit", "multiply-add", (), "float32", result)
    report(f"  multiply-adds {flops / result.median * 1e-12:6.2f} TFLOP/s")
    return [record | {"value": flops / result.median, "unit": "FLOP/s"}], bool((out.copy_to_host() == CHAINS).all())


def measurements(options):
    """Yield (title, function); with ``--quick`` for the limit, the ladder and the squares only."""
    yield "limit", measure_limit
    yield "squares", partial(measure_shapes, "shape", SQUARES)
    for size in LADDER_SIZES[: 1 if options.quick else None]:
        yield f"ladder at {size}", partial(measure_ladder, size)
    if options.quick:
        return
    yield "thin, ragged, shallow and deep", partial(measure_shapes, "shape", (*THIN, *ODD, *DEEP))
    yield "batches", measure_batches
    yield "float64", measure_float64
    for size in MAP_SIZES:
        yield f"map, M = N = {size}", partial(measure_shapes, "map", [(size, size, k) for k in MAP_DEPTHS])
