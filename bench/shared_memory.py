"""``gpukit bench matmul`` and ``gpukit bench transpose``: the kernels of the chapters on a GPU, each checked and then
timed beside the libraries' in turns, and what Nsight Compute counts in them.
"""

import argparse
import json
import sys
from functools import partial

import numpy as np
from numba.cuda import types

from bench import common, compiling
from bench.evidence import counters
from gpukit import matmul, results, timing, transpose
from gpukit.backend import cuda

#: Metrics of Nsight Compute that are recorded, by the name of their case.
METRICS = {
    "shared wavefronts": "memory_l1_wavefronts_shared",
    "shared wavefronts, ideal": "memory_l1_wavefronts_shared_ideal",
    "shared load wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared store wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared load requests": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared store requests": "smsp__sass_inst_executed_op_shared_st.sum",
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "global load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "instructions": "smsp__inst_executed.sum",
}


#: The size at which they are counted: ncu runs every kernel many times.
COUNTED = {"matmul": 1024, "transpose": 2048}


# -- matrix products ---------------------------------------------------------------------------------------------------

#: Variants of the product: the documents' (tile 16, pad 1), then what they did not try.
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


def _square(size, dtype, seed):
    """A random matrix on the device and its NumPy original."""
    host = np.random.default_rng(seed).standard_normal((size, size)).astype(dtype)
    return host, cuda.to_device(host)


def _title(choice):
    return " ".join([choice["variant"], *(f"{key} {value}" for key, value in choice.items() if key != "variant")])


def _exact(a, b):
    """a @ b in float64 and the magnitudes that its rounding errors are measured by, on the device if CuPy is there."""
    library = common.libraries().get("cupy", np)
    a, b = (library.asarray(x if library is not np else x.copy_to_host()).astype(library.float64) for x in (a, b))
    return library, a @ b, abs(a) @ abs(b)


def _is_right(library, out, exact, magnitude, dtype, terms):
    """Whether every element is as near as a sum of ``terms`` products in this type must be."""
    found = library.asarray(out if library is not np else out.copy_to_host())
    bound = 2 * np.finfo(dtype).eps * np.sqrt(terms) * magnitude
    return bool((abs(found - exact) <= bound).all())


def _poison(out):
    out.copy_to_device(np.full(out.shape, np.nan, out.dtype))


def _quietly(text):
    """What is reported is not shown."""


def measure_products(size, dtype, repeat, report=print):
    """Check and time all variants at one size.

    Returns
    -------
    list of dict
        Records; none of a variant whose result is wrong.
    bool
        Whether all results were right.
    """
    dtype, shape = np.dtype(dtype), (size, size, size)
    (_, a), (_, b) = _square(size, dtype, 1), _square(size, dtype, 2)
    out = cuda.device_array((size, size), dtype)
    reference = _exact(a, b)
    runs, known, all_right, launches = {}, {}, True, []
    for choice in PRODUCTS:
        options = {key: value for key, value in choice.items() if key != "variant"}
        launches.append(matmul.configure(choice["variant"], (size, size), dtype, **options))
    compiling.compile_first([(launch, (a, b, out, *further)) for launch, further in launches], report=_quietly)
    for choice, (launch, further) in zip(PRODUCTS, launches, strict=True):
        _poison(out)
        launch(a, b, out, *further)
        right = _is_right(*reference[:1], out, *reference[1:], dtype, size)
        all_right &= right
        if right:
            runs[_title(choice)], known[_title(choice)] = partial(launch, a, b, out, *further), choice
        else:
            report(f"  WRONG: {_title(choice)}")
    libraries = common.library_products(a, b, out)
    runs, known = runs | libraries, known | {name: {"variant": name} for name in libraries}
    timings = timing.bench_many(runs, repeat=repeat, warmup=0.02, min_time=0.1)
    records = []
    for title, result in timings.items():
        choice = dict(known[title])
        records.append(results.of_timing("matmul", "time", choice.pop("variant"), shape, dtype, result, **choice))
        report(f"  {title:32} {result.median * 1e3:9.3f} ms  {result.tflops(2 * size**3):6.2f} TFLOP/s")
    return records, all_right


# -- transposes --------------------------------------------------------------------------------------------------------

TRANSPOSE_SHAPES = ((8192, 8192), (16384, 16384), (8191, 8195), (1_000_000, 68))
#: Shapes at which the other sizes of elements are timed too.
OTHER_DTYPES = ((8192, 8192), (8191, 8195))
#: Tiles of "wide", tiles and rows of threads of "tall" that ``--choices`` compares.
WIDE_CHOICES = (32, 64)
TALL_CHOICES = ((32, 8), (32, 16), (32, 4), (64, 4), (64, 8), (64, 16))


@cuda.jit
def spoil(out):
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


def _moves_all(launch, a, out, is_copy):
    """Launch with an output of zeros and compare on the device, where gigabytes are compared in no time."""
    wrong = cuda.to_device(np.zeros(1, np.int64))
    spoil[(-(-out.shape[1] // 32), -(-out.shape[0] // 32)), (32, 32)](out)
    launch(a, out)
    count_wrong[(-(-a.shape[1] // 32), -(-a.shape[0] // 32)), (32, 32)](a, out, is_copy, wrong)
    return wrong.copy_to_host()[0] == 0


def measure_transposes(shape, dtype, choices=False, report=print):
    """Check and time all transposes and copies at one shape; returns as ``measure_products`` does."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(3)
    host = rng.integers(0, 256, (shape[0], shape[1] * dtype.itemsize), np.uint8).view(f"u{dtype.itemsize}")
    a, out = cuda.to_device(host), cuda.device_array(shape[::-1], host.dtype)
    copied = out.reshape(*shape)
    runs, all_right = {}, True
    found = list(_transposes(shape, host.dtype, choices))
    compiling.compile_first(
        [(launch, (a, copied if is_copy else out)) for _, launch, is_copy in found], report=_quietly
    )
    for name, launch, is_copy in found:
        target = copied if is_copy else out
        if _moves_all(launch, a, target, is_copy):
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


def _transposes(shape, dtype, choices):
    """(name, launch, whether it copies) of every kernel that fits."""
    lanes = 2 if dtype.itemsize == 8 else 4
    whole = shape[0] % lanes == 0 and shape[1] % lanes == 0
    for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
        fits = whole or not variant.startswith("wide")
        if fits and not (variant == "wide_copy" and lanes == 2):
            yield variant, transpose.configure(variant, shape, dtype), variant in transpose.CONTROLS
    if not choices:
        return
    number = getattr(types, dtype.name)
    for size in WIDE_CHOICES if whole and lanes == 4 else ():
        grid, block = (-(-shape[1] // size), -(-shape[0] // size)), (size // 4, size // 4)
        yield f"wide {size}", transpose.wide(number, size)[grid, block], False
    for size, rows in TALL_CHOICES:
        if size * (size + 1) * dtype.itemsize <= 48 * 1024:
            grid = -(-shape[1] // size), -(-shape[0] // size)
            yield f"tall {size} rows {rows}", transpose.tall(number, size, rows)[grid, (32, rows)], False


def _library_transposes(name, library, a, out, copied):
    if name == "cupy":
        a, out, copied = (library.asarray(x) for x in (a, out, copied))
        return {"cupy": partial(library.copyto, out, a.T), "cupy copy": partial(library.copyto, copied, a)}
    signed = {"uint8": "uint8", "uint16": "int16", "uint32": "int32", "uint64": "int64"}[a.dtype.name]
    a, out, copied = (library.as_tensor(x.view(np.dtype(signed)), device="cuda") for x in (a, out, copied))
    return {"torch": partial(out.copy_, a.t()), "torch copy": partial(copied.copy_, a)}


# -- counters ----------------------------------------------------------------------------------------------------------


def _counted_launches(chapter, size):
    """(record without value, launch, arguments) of each kernel that is counted, on the device."""
    if chapter == "matmul":
        (_, a), (_, b) = _square(size, np.float32, 1), _square(size, np.float32, 2)
        out = cuda.device_array_like(a)
        for choice in PRODUCTS:
            options = {key: value for key, value in choice.items() if key != "variant"}
            launch, further = matmul.configure(choice["variant"], (size, size), np.float32, **options)
            yield {"variant": choice["variant"], **options}, launch, (a, b, out, *further)
    else:
        a = cuda.to_device(np.random.default_rng(3).integers(0, 99, (size, size)).astype(np.uint32))
        out = cuda.device_array_like(a)
        for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
            yield {"variant": variant}, transpose.configure(variant, (size, size)), (a, out)


def _count_child(chapter, size):
    """What runs under ncu: each kernel once; a line for each says which it is and how many registers it has."""
    found = list(_counted_launches(chapter, size))
    compiling.compile_first([(launch, arguments) for _, launch, arguments in found])
    for known, launch, arguments in found:
        launch(*arguments)
        cuda.synchronize()
        dispatcher = launch.dispatcher
        compiled = dispatcher.compile(tuple(dispatcher.typeof_pyval(x) for x in arguments))
        print("counted:", json.dumps(known | {"registers": compiled.regs_per_thread}), flush=True)


def measure_counters(chapter, size, report=print):
    """What Nsight Compute counts in each kernel of a chapter, once, at one size; a list of records."""
    ncu = counters.find_ncu()
    if ncu is None:
        report("ncu is not installed: no counters")
        return []
    known = counters.known_metrics(ncu, METRICS.values())
    options = "--target-processes application-only --cache-control none --page raw --metrics".split()
    done = counters.run(ncu, [*options, ",".join(known)], "bench.shared_memory", chapter, size)
    launches = [json.loads(x.partition(":")[2]) for x in done.stdout.splitlines() if x.startswith("counted:")]
    rows = counters.read_csv(done.stdout)
    if done.returncode or len(rows) != len(launches) or not rows:
        raise counters.ProfilerError(f"{len(rows)} rows for {len(launches)} launches\n{done.stdout}\n{done.stderr}")
    shape, dtype = ([size] * 3, "float32") if chapter == "matmul" else ([size] * 2, "uint32")
    records = []
    for launch, (_, row) in zip(launches, rows, strict=True):
        counts = {case: row[metric] for case, metric in METRICS.items() if metric in known}
        for case, text in {"registers": str(launch.pop("registers")), **counts}.items():
            head = {"chapter": chapter, "case": case, "variant": launch["variant"], "shape": shape, "dtype": dtype}
            records.append(head | launch | {"value": int(float(text.replace(",", ""))), "unit": "1"})
    return records


# -- the command -------------------------------------------------------------------------------------------------------


def main(chapter, argv):
    """Run ``gpukit bench matmul`` or ``gpukit bench transpose``; give back the exit status."""
    parser = argparse.ArgumentParser(prog=f"gpukit bench {chapter}", description=__doc__)
    parser.add_argument("--save", metavar="FILE", help="write the records to FILE")
    parser.add_argument("--quick", action="store_true", help="one size only, without counters")
    if chapter == "transpose":
        parser.add_argument("--choices", action="store_true", help="compare sizes of tiles and blocks too")
    options = parser.parse_args(argv)
    if not common.has_gpu():
        return 1
    return 0 if common.run(_runs(chapter, options), options.save) else 1


def _runs(chapter, options):
    """(title, what measures it) of each measurement."""
    for shape, dtype, measure in _timings(chapter, options):
        yield f"{chapter} {' x '.join(map(str, shape))} {np.dtype(dtype).name}", measure
    if not options.quick:
        size = COUNTED[chapter]
        yield f"{chapter}, counters at {size}", lambda: (measure_counters(chapter, size), True)


def _timings(chapter, options):
    """(shape, dtype, what measures them) of each measurement."""
    if chapter == "matmul":
        for size, dtype, repeat in PRODUCT_SIZES[1:2] if options.quick else PRODUCT_SIZES:
            yield (size, size, size), dtype, partial(measure_products, size, dtype, repeat)
        return
    for shape in TRANSPOSE_SHAPES[: 1 if options.quick else None]:
        others = (np.uint8, np.uint16, np.uint64) if shape in OTHER_DTYPES and not options.quick else ()
        for dtype in (np.float32, *others):
            choices = options.choices and dtype == np.float32
            yield shape, dtype, partial(measure_transposes, shape, dtype, choices)


if __name__ == "__main__":
    _count_child(sys.argv[1], int(sys.argv[2]))
