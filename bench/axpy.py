"""``gpukit bench axpy``: time chapter 01's grid-stride loop (row B1) by the number of its blocks.

Times are of the device, with a cold L2 cache.
"""

from functools import partial

import numpy as np

from gpukit import indexing, results, timing
from gpukit.backend import cuda

__all__ = ["BLOCKS", "FACTOR", "SIZE", "THREADS", "measure", "measurements"]

SIZE = 2**25
THREADS = 256
BLOCKS = tuple(2**k for k in range(13))
FACTOR = np.float32(2.5)


def measure(size=SIZE, blocks=BLOCKS, report=print):
    """Check, then time the launches of ``out = FACTOR * x + y`` of ``size`` float32 by so many blocks, in turns.

    Returns
    -------
    list of dict
        Records of the right results. "nbytes" is what a launch reads and writes.
    bool
        Whether all results were right.
    """
    random = np.random.default_rng(size)
    x, y = (random.random(size, np.float32) for _ in range(2))
    expected = (float(FACTOR) * x.astype(np.float64) + y).astype(np.float32)
    vectors, out = [cuda.to_device(vector) for vector in (x, y)], cuda.device_array(size, np.float32)
    runs = {count: partial(indexing.axpy_grid_stride[count, THREADS], FACTOR, *vectors, out) for count in blocks}
    right = {count: run for count, run in runs.items() if _is_right(run, out, expected)}
    for count in runs.keys() - right:
        report(f"  WRONG: {count} blocks")
    records = []
    timings = timing.bench_many(right, min_time=0.1, warmup=0.02) if right else {}
    for count, timed in timings.items():
        head = "indexing", "axpy", f"{count} blocks", (size,), "float32", timed
        records.append(results.of_timing(*head, blocks=count, threads=THREADS, nbytes=3 * x.nbytes))
        report(f"  {count:5} blocks {timing.format_seconds(timed.median):>10} {timed.gbps(3 * x.nbytes):8.1f} GB/s")
    return records, len(right) == len(runs)


def _is_right(run, out, expected):
    out.copy_to_device(np.full(out.shape, np.nan, np.float32))
    run()
    return np.allclose(out.copy_to_host(), expected, rtol=1e-6, atol=0)


def measurements(options):
    """Yield (title, function); with ``--quick`` for every fourth number of blocks."""
    yield f"axpy, {SIZE:,} float32", partial(measure, blocks=BLOCKS[:: 4 if options.quick else 1])
