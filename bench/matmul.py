"""``gpukit bench matmul``: time the matrix products of chapters 03 and 04 beside cuBLAS, and count with Nsight Compute.

Every product is checked first; then all are timed in turns, with a cold L2 cache.
"""

from functools import partial

import numpy as np

from bench import common
from bench.evidence import counters
from gpukit import matmul, results, timing
from gpukit.backend import cuda

__all__ = ["PRODUCTS", "PRODUCT_SIZES", "measure", "measurements"]

#: Variants of the product: the documents' (tile 16, pad 1), then others.
PRODUCTS = (
    *({"variant": v, "tile": 16} for v in ("naive", "naive_uncoalesced", "naive_float64")),
    *({"variant": v, "tile": tile} for tile in (16, 32) for v in ("tiled", "tiled_conflict", "tiled_swizzled")),
    *({"variant": v, "tile": tile} for tile in (16, 32) for v in ("dynamic", "dynamic_conflict")),
    *({"variant": v, "tile": 16, "pad": p} for v in ("tiled_padded", "dynamic_padded") for p in (1, 2)),
    *({"variant": v, "tile": 32, "pad": 1} for v in ("tiled_padded", "dynamic_padded")),
    {"variant": "tiled_padded", "tile": 32, "pad": 2},
    {"variant": "tiled", "tile": 8},
    {"variant": "dynamic", "tile": 32, "depth": 256},
)
#: (size, dtype, repetitions or None for as many as it takes)
PRODUCT_SIZES = ((4096, np.float32, 7), (1024, np.float32, None), (1024, np.float64, None))
#: The size at which ncu counts, which runs every kernel many times.
COUNTED = 1024


def measure(size, dtype, repeat, report=print):
    """Check and time all variants at one size.

    Returns
    -------
    list of dict
        Records of the right results.
    bool
        Whether all results were right.
    """
    dtype, shape = np.dtype(dtype), (size, size, size)
    a, b = (_square(size, dtype, seed) for seed in (1, 2))
    out = cuda.device_array((size, size), dtype)
    is_right, runs, known, all_right = _make_check(a, b, out), {}, {}, True
    for choice, launch, further in _configured(size, dtype):
        out.copy_to_device(np.full(out.shape, np.nan, dtype))
        launch(a, b, out, *further)
        if is_right():
            runs[_title(choice)], known[_title(choice)] = partial(launch, a, b, out, *further), choice
        else:
            all_right = False
            report(f"  WRONG: {_title(choice)}")
    libraries = common.library_products(a, b, out)
    runs, known = runs | libraries, known | {name: {"variant": name} for name in libraries}
    records = []
    for title, result in timing.bench_many(runs, repeat=repeat, warmup=0.02, min_time=0.1).items():
        choice = dict(known[title])
        records.append(results.of_timing("matmul", "time", choice.pop("variant"), shape, dtype, result, **choice))
        report(f"  {title:32} {result.median * 1e3:9.3f} ms  {result.tflops(2 * size**3):6.2f} TFLOP/s")
    return records, all_right


def _square(size, dtype, seed):
    """Return a random matrix on the device."""
    return cuda.to_device(np.random.default_rng(seed).standard_normal((size, size)).astype(dtype))


def _configured(size, dtype):
    """Yield (choice, launch, further arguments) of all products."""
    for choice in PRODUCTS:
        options = {key: value for key, value in choice.items() if key != "variant"}
        yield choice, *matmul.configure(choice["variant"], (size, size), dtype, **options)


def _title(choice):
    return " ".join([choice["variant"], *(f"{key} {value}" for key, value in choice.items() if key != "variant")])


def _make_check(a, b, out):
    """Make a function that compares ``out`` with float64, within the rounding errors of sums of so many terms.

    The comparison runs on the device if CuPy is installed.
    """
    library = common.libraries().get("cupy", np)
    a, b = (library.asarray(x if library is not np else x.copy_to_host()).astype(library.float64) for x in (a, b))
    exact, bound = a @ b, 2 * np.finfo(out.dtype).eps * np.sqrt(len(a)) * (abs(a) @ abs(b))

    def is_right():
        found = library.asarray(out if library is not np else out.copy_to_host())
        return bool((abs(found - exact) <= bound).all())

    return is_right


def count_in_child(size):
    """Launch each product once, under ncu."""
    a, b = (_square(size, np.float32, seed) for seed in (1, 2))
    out = cuda.device_array_like(a)
    for choice, launch, further in _configured(size, np.float32):
        counters.launch_counted(choice, launch, (a, b, out, *further))


def measurements(options):
    """Yield (title, function); with ``--quick`` for one size only, without counters."""
    for size, dtype, repeat in PRODUCT_SIZES[1:2] if options.quick else PRODUCT_SIZES:
        title = f"matmul {size} x {size} x {size} {np.dtype(dtype).name}"
        yield title, partial(measure, size, dtype, repeat)
    if not options.quick:
        head = "matmul", [COUNTED] * 3, "float32"
        yield f"matmul, counters at {COUNTED}", partial(counters.measure_launches, count_in_child, COUNTED, *head)
