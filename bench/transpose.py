"""``gpukit bench transpose``: time the transposes of chapter 04 beside CuPy and PyTorch, and count with Nsight Compute.

Every transpose is checked first; then all are timed in turns, with a cold L2 cache.
"""

from functools import partial

import numpy as np
from numba.cuda import types

from bench import common
from bench.evidence import counters
from gpukit import results, timing, transpose
from gpukit.backend import cuda

__all__ = ["TRANSPOSE_SHAPES", "measure", "measurements"]

TRANSPOSE_SHAPES = ((8192, 8192), (16384, 16384), (8191, 8195), (1_000_000, 68))
#: Shapes at which the other sizes of elements are timed too.
OTHER_DTYPES = ((8192, 8192), (8191, 8195))
#: Tiles of "wide", and tiles and rows of threads of "tall", that ``--choices`` compares.
WIDE_CHOICES = (32, 64)
TALL_CHOICES = ((32, 8), (32, 16), (32, 4), (64, 4), (64, 8), (64, 16))
#: The size at which ncu counts, which runs every kernel many times.
COUNTED = 2048


@cuda.jit
def clear(out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = 0


@cuda.jit
def count_wrong(a, out, is_copy, wrong):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        found = out[row, col] if is_copy else out[col, row]
        if found != a[row, col]:
            cuda.atomic.add(wrong, 0, 1)


def _is_right(launch, a, out, is_copy):
    """Launch with an output of zeros and compare on the device, which is fast for gigabytes."""
    wrong = cuda.to_device(np.zeros(1, np.int64))
    clear[common.grid_for(out.shape, (32, 32)), (32, 32)](out)
    launch(a, out)
    count_wrong[common.grid_for(a.shape, (32, 32)), (32, 32)](a, out, is_copy, wrong)
    return wrong.copy_to_host()[0] == 0


def measure(shape, dtype, choices=False, report=print):
    """Check and time all transposes and copies at one shape.

    Returns
    -------
    list of dict
        Records of the right results.
    bool
        Whether all results were right.
    """
    dtype, rng = np.dtype(dtype), np.random.default_rng(3)
    host = rng.integers(0, 256, (shape[0], shape[1] * dtype.itemsize), np.uint8).view(f"u{dtype.itemsize}")
    a, out = cuda.to_device(host), cuda.device_array(shape[::-1], host.dtype)
    copied = out.reshape(*shape)
    runs, all_right = {}, True
    for name, launch, is_copy in _configured(shape, host.dtype, choices):
        target = copied if is_copy else out
        if _is_right(launch, a, target, is_copy):
            runs[name] = partial(launch, a, target)
        else:
            all_right = False
            report(f"  WRONG: {name}")
    runs["memcpy"] = partial(copied.copy_to_device, a)
    for name, library in common.libraries().items():
        runs |= _library_transposes(name, library, a, out, copied)
    records = []
    for name, result in timing.bench_many(runs, min_time=0.1, warmup=0.02).items():
        records.append(results.of_timing("transpose", "time", name, shape, dtype, result))
        report(f"  {name:24} {result.median * 1e3:9.4f} ms  {result.gbps(2 * host.nbytes):7.0f} GB/s")
    return records, all_right


def _configured(shape, dtype, choices):
    """Yield (name, launch, whether it copies) of every kernel that takes this shape and dtype."""
    lanes = 2 if dtype.itemsize == 8 else 4
    divisible = shape[0] % lanes == 0 and shape[1] % lanes == 0
    for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
        fits = divisible or not variant.startswith("wide")
        fits = fits and (variant != "thin" or min(shape) <= transpose.MAX_SIDE)
        if fits and not (variant == "wide_copy" and lanes == 2):
            yield variant, transpose.configure(variant, shape, dtype), variant in transpose.CONTROLS
    if not choices:
        return
    number = getattr(types, dtype.name)
    for size in WIDE_CHOICES if divisible and lanes == 4 else ():
        grid, block = common.grid_for(shape, (size, size)), (size // 4, size // 4)
        yield f"wide {size}", transpose.wide(number, size)[grid, block], False
    for size, rows in TALL_CHOICES:
        if size * (size + 1) * dtype.itemsize <= 48 * 1024:
            grid = common.grid_for(shape, (size, size))
            yield f"tall {size} rows {rows}", transpose.tall(number, size, rows)[grid, (32, rows)], False


def _library_transposes(name, library, a, out, copied):
    if name == "cupy":
        a, out, copied = (library.asarray(x) for x in (a, out, copied))
        return {"cupy": partial(library.copyto, out, a.T), "cupy copy": partial(library.copyto, copied, a)}
    signed = {"uint8": "uint8", "uint16": "int16", "uint32": "int32", "uint64": "int64"}[a.dtype.name]
    a, out, copied = (library.as_tensor(x.view(np.dtype(signed)), device="cuda") for x in (a, out, copied))
    return {"torch": partial(out.copy_, a.t()), "torch copy": partial(copied.copy_, a)}


def count_in_child(size):
    """Launch each kernel once, under ncu."""
    a = cuda.to_device(np.random.default_rng(3).integers(0, 99, (size, size)).astype(np.uint32))
    out = cuda.device_array_like(a)
    for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
        counters.launch_counted({"variant": variant}, transpose.configure(variant, (size, size)), (a, out))


def add_options(parser):
    """Add the option to compare tiles and blocks."""
    parser.add_argument("--choices", action="store_true", help="compare sizes of tiles and blocks too")


def measurements(options):
    """Yield (title, function); with ``--quick`` for one shape and dtype only, without counters."""
    for shape in TRANSPOSE_SHAPES[: 1 if options.quick else None]:
        others = (np.uint8, np.uint16, np.uint64) if shape in OTHER_DTYPES and not options.quick else ()
        for dtype in (np.float32, *others):
            title = f"transpose {' x '.join(map(str, shape))} {np.dtype(dtype).name}"
            yield title, partial(measure, shape, dtype, options.choices and dtype == np.float32)
    if not options.quick:
        head = "transpose", [COUNTED] * 2, "uint32"
        yield f"transpose, counters at {COUNTED}", partial(counters.measure_launches, count_in_child, COUNTED, *head)
