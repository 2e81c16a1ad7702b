"""The ladder: a sum of float32, one idea per kernel.

1. ``interleaved_divergent``: a tree in shared memory; neighbours are added first, by every second thread.
2. ``interleaved_conflict``: whole warps work or rest. No divergence, but bank conflicts.
3. ``sequential``: halves are added first. Neighbouring threads read neighbouring words: no conflicts.
4. ``first_add``: two elements for each thread, added on the way in.
5. ``shuffle``: registers in place of shared memory, one barrier in place of nine.
6. ``grid_stride``: as many blocks as the device holds, each thread with many elements.
7. ``wide``: 128-bit loads.
8. ``one_launch``: the last block to finish adds up the sums of the others.

Not a rung: ``atomic``, one atomic addition per block in place of the last step.

All but ``one_launch`` leave one sum per block in ``out``; a further launch adds those up, until one is left. A sum
reads each element once and writes almost nothing, so a kernel is as good as the bandwidth that it reaches.
"""

from typing import Any

import numpy as np

from gpukit._host.arrays import check_alike, check_array, stream_of
from gpukit.backend import cuda, float32, int32
from gpukit.intrinsics import load4
from gpukit.reduce.primitives import is_last
from warpstep.integers import ceil_div
from warpstep.values import check_choice

__all__ = [
    "THREADS",
    "VARIANTS",
    "atomic",
    "first_add",
    "grid_stride",
    "interleaved_conflict",
    "interleaved_divergent",
    "one_launch",
    "sequential",
    "shuffle",
    "steps",
    "wide",
]

THREADS = 256
WARPS = THREADS // 32
#: The mask of a whole warp.
FULL = 0xFFFFFFFF
#: Loads that a thread has under way at a time, from ``grid_stride`` on and from ``wide`` on.
LOADS = 8
WIDE_LOADS = 4
#: Blocks per multiprocessor from ``grid_stride`` on.
BLOCKS = 8


# -- one element per thread, a tree in shared memory -----------------------------------------------


@cuda.jit
def interleaved_divergent(x, out):
    """Neighbours first: threads 0, 2, 4 ... add, then 0, 4, 8 ... In every warp some lanes wait for others."""
    values = cuda.shared.array(THREADS, float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        if tid % (2 * step) == 0:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step *= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


@cuda.jit
def interleaved_conflict(x, out):
    """The same additions by threads 0, 1, 2 ...: whole warps work or rest, but lanes read elements 2 * step apart."""
    values = cuda.shared.array(THREADS, float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        at = 2 * step * tid
        if at < THREADS:
            values[at] += values[at + step]
        cuda.syncthreads()
        step *= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


@cuda.jit
def sequential(x, out):
    """Halves first: thread t adds element t + step to its own, so neighbouring lanes read neighbouring elements."""
    values = cuda.shared.array(THREADS, float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if tid < step:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


@cuda.jit
def first_add(x, out):
    """Half of the threads of ``sequential`` never add. With two elements each, all of them do, in registers."""
    values = cuda.shared.array(THREADS, float32)
    tid = cuda.threadIdx.x
    i = 2 * THREADS * cuda.blockIdx.x + tid
    total = x[i] if i < x.size else float32(0)
    if i + THREADS < x.size:
        total += x[i + THREADS]
    values[tid] = total
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if tid < step:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


# -- warp shuffles ---------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(total):
    """Sum over a warp, in all of its lanes: five shuffles, no shared memory and no barrier."""
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    return total


@cuda.jit(device=True)
def block_sum(total, values):
    """Sum over a block, in its first warp: one value of each warp goes through shared memory, with one barrier."""
    total = warp_sum(total)
    tid = cuda.threadIdx.x
    if tid % 32 == 0:
        values[tid // 32] = total
    cuda.syncthreads()
    if tid < 32:
        total = warp_sum(values[tid] if tid < WARPS else float32(0))
    return total


@cuda.jit
def shuffle(x, out):
    """``first_add`` with registers in place of the tree in shared memory: one barrier in place of nine."""
    values = cuda.shared.array(WARPS, float32)
    tid = cuda.threadIdx.x
    i = 2 * THREADS * cuda.blockIdx.x + tid
    total = x[i] if i < x.size else float32(0)
    if i + THREADS < x.size:
        total += x[i + THREADS]
    total = block_sum(total, values)
    if tid == 0:
        out[cuda.blockIdx.x] = total


# -- as many blocks as the device holds, each thread with many elements ----------------------------


@cuda.jit(device=True)
def stride_sum(x):
    """Sum a thread's share of a grid-stride loop. LOADS loads are under way before the first is added."""
    start, step = cuda.grid(1), cuda.gridsize(1)
    held = cuda.local.array(LOADS, float32)
    total, i = float32(0), start
    while i + (LOADS - 1) * step < x.size:
        for k in range(LOADS):
            held[k] = x[i + k * step]
        for k in range(LOADS):
            total += held[k]
        i += LOADS * step
    while i < x.size:
        total += x[i]
        i += step
    return total


@cuda.jit
def grid_stride(x, out):
    """What a block costs, its launch and its tree, is paid once for thousands of elements, not for 512."""
    values = cuda.shared.array(WARPS, float32)
    total = block_sum(stride_sum(x), values)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit(device=True)
def wide_sum(x):
    """``stride_sum`` with 128-bit loads: a quarter of the instructions. The first threads add the last elements."""
    start, step, chunks = cuda.grid(1), cuda.gridsize(1), x.size // 4
    held = cuda.local.array((WIDE_LOADS, 4), float32)
    total, i = float32(0), start
    while i + (WIDE_LOADS - 1) * step < chunks:
        for k in range(WIDE_LOADS):
            held[k, 0], held[k, 1], held[k, 2], held[k, 3] = load4(x, 4 * (i + k * step))
        for k in range(WIDE_LOADS):
            total += (held[k, 0] + held[k, 1]) + (held[k, 2] + held[k, 3])
        i += WIDE_LOADS * step
    while i < chunks:
        a, b, c, d = load4(x, 4 * i)
        total += (a + b) + (c + d)
        i += step
    if 4 * chunks + start < x.size:
        total += x[4 * chunks + start]
    return total


@cuda.jit
def wide(x, out):
    """128-bit loads: four times the bytes under way for each instruction."""
    values = cuda.shared.array(WARPS, float32)
    total = block_sum(wide_sum(x), values)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def one_launch(x, out, partials, counters):
    """``wide``, and the last block to finish adds up the sums of the others: no second launch."""
    values = cuda.shared.array(WARPS, float32)
    flag = cuda.shared.array(1, int32)
    total = block_sum(wide_sum(x), values)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total
    if is_last(counters, 0, cuda.gridDim.x, flag):
        total, i = float32(0), cuda.threadIdx.x
        while i < cuda.gridDim.x:
            total += partials[i]
            i += THREADS
        total = block_sum(total, values)
        if cuda.threadIdx.x == 0:
            out[0] = total


@cuda.jit
def atomic(x, out):
    """``wide`` with one atomic addition per block to out[0], which must be 0.

    There is no second launch, but no fixed order either, so the bits differ from run to run.
    """
    values = cuda.shared.array(WARPS, float32)
    total = block_sum(wide_sum(x), values)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total)


# -- to launch them --------------------------------------------------------------------------------

#: The rungs, in order.
VARIANTS = {
    "interleaved_divergent": interleaved_divergent,
    "interleaved_conflict": interleaved_conflict,
    "sequential": sequential,
    "first_add": first_add,
    "shuffle": shuffle,
    "grid_stride": grid_stride,
    "wide": wide,
    "one_launch": one_launch,
}
#: Elements of a thread in the rungs without a loop over elements.
ELEMENTS = {"interleaved_divergent": 1, "interleaved_conflict": 1, "sequential": 1, "first_add": 2, "shuffle": 2}


def steps(variant: str, x: Any, out: Any, stream: Any = None) -> list[tuple]:
    """The launches of one sum, to be made, traced or timed in this order: ``for launch, arguments in steps(...)``.

    Parameters
    ----------
    variant : str
        One of ``VARIANTS``.
    x : C-contiguous device array of one dimension, float32
        One element or more. Aligned to 16 bytes, as a new array is, from "wide" on.
    out : device array of one float32
        For the sum.
    stream : CUDA stream, optional

    Returns
    -------
    list of (launch, arguments)
        Buffers for the sums of the blocks are among the arguments: they live as long as the list.

    Raises
    ------
    TypeError, ValueError
        For another variant or other arrays, or if there is nothing to add.

    Examples
    --------
    >>> x, out = cuda.to_device(np.ones(1000, np.float32)), cuda.to_device(np.zeros(1, np.float32))
    >>> for launch, arguments in steps("wide", x, out):
    ...     launch(*arguments)
    >>> out.copy_to_host()
    array([1000.], dtype=float32)
    """
    check_variant(variant)
    for name, array in {"x": x, "out": out}.items():
        check_array(name, array, 1, (np.float32,))
    if x.shape[0] == 0:
        raise ValueError("x has no elements; it must have one or more")
    check_alike("out", out, "x", x, (1,))
    stream, kernel = stream_of(stream), VARIANTS[variant]
    if variant == "one_launch":
        blocks = _blocks(variant, x.size)
        partials = cuda.device_array(blocks, np.float32, stream=stream)
        counters = cuda.to_device(np.zeros(1, np.uint32), stream=stream)
        return [(kernel[blocks, THREADS, stream], (x, out, partials, counters))]
    launches = []
    while True:
        blocks = _blocks(variant, x.size)
        if blocks == 1:
            return [*launches, (kernel[1, THREADS, stream], (x, out))]
        partials = cuda.device_array(blocks, np.float32, stream=stream)
        launches.append((kernel[blocks, THREADS, stream], (x, partials)))
        x = partials


def check_variant(variant: str) -> None:
    """ValueError unless the variant is one of ``VARIANTS``."""
    check_choice("variant", variant, VARIANTS)


def _blocks(variant, size):
    """Blocks of a launch over so many elements; one for what a block can do alone."""
    if variant in ELEMENTS:
        return ceil_div(size, ELEMENTS[variant] * THREADS)
    limit = BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT
    return 1 if size <= limit else min(limit, ceil_div(size, 16 * THREADS))
