"""The ladder: a scan of float32, one idea per kernel. All are inclusive: ``out[i] = x[0] + ... + x[i]``.

1. ``hillis_steele``: every element adds the one 1, 2, 4 ... before it. Few steps, n log n additions.
2. ``blelloch``: a tree up, and a tree down. About 2 n additions, and bank conflicts.
3. ``blelloch_padded``: one word of pad for every 32. No conflicts.
4. ``shuffles``: scans of warps in registers, then one of the warps' totals.
5. ``look_back``: one pass. A block adds up what the blocks before it have published, while they run.

Rungs 1 to 4 scan the elements of a block and leave its total. Further launches scan the totals and add them to the
blocks (``add_totals``): x is read once, and the result written, read and written again. ``look_back`` reads and writes
once.
"""

from typing import Any

import numpy as np

from gpukit._host.arrays import check_alike, check_array, stream_of
from gpukit.backend import cuda, float32, int32
from gpukit.scan.primitives import block_scan
from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.values import check_choice

__all__ = [
    "THREADS",
    "VARIANTS",
    "add_totals",
    "blelloch",
    "blelloch_padded",
    "hillis_steele",
    "look_back",
    "shuffles",
    "steps",
]

THREADS = 256
WARPS = THREADS // WARP
#: Elements of a block in the trees: two for each thread.
LEAVES = 2 * THREADS
PADDED = LEAVES + LEAVES // WARP
#: The mask of a whole warp.
FULL = 0xFFFFFFFF
#: What a block has published in ``look_back``: its own total, or that of all blocks up to it.
OWN, ALL = 1, 2


# -- the elements of a block ----------------------------------------------------------------------------------------


@cuda.jit
def hillis_steele(x, out, totals):
    """Add the element ``distance`` before, which doubles. Two copies, because all threads read before any writes."""
    held = cuda.shared.array((2, THREADS), float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    held[0, tid] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    now, distance = 0, 1
    while distance < THREADS:
        value = held[now, tid]
        if tid >= distance:
            value += held[now, tid - distance]
        now = 1 - now
        held[now, tid] = value
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = held[now, tid]
    if tid == THREADS - 1:
        totals[cuda.blockIdx.x] = held[now, tid]


@cuda.jit
def blelloch(x, out, totals):
    """Sum up a tree of 512 leaves, put 0 at the root, hand down: left gets its parent's, right adds its sibling's."""
    held = cuda.shared.array(LEAVES, float32)
    tid, first = cuda.threadIdx.x, cuda.blockIdx.x * LEAVES
    for leaf in range(tid, LEAVES, THREADS):
        held[leaf] = x[first + leaf] if first + leaf < x.size else float32(0)
    step, nodes = 1, THREADS
    while nodes > 0:
        cuda.syncthreads()
        if tid < nodes:
            right = 2 * step * (tid + 1) - 1
            held[right] += held[right - step]
        step, nodes = 2 * step, nodes // 2
    cuda.syncthreads()
    if tid == 0:
        totals[cuda.blockIdx.x] = held[LEAVES - 1]
        held[LEAVES - 1] = 0
    nodes = 1
    while nodes <= THREADS:
        step //= 2
        cuda.syncthreads()
        if tid < nodes:
            right = 2 * step * (tid + 1) - 1
            left = held[right - step]
            held[right - step] = held[right]
            held[right] += left
        nodes *= 2
    cuda.syncthreads()
    for leaf in range(tid, LEAVES, THREADS):
        if first + leaf < x.size:
            out[first + leaf] = held[leaf] + x[first + leaf]  # the tree leaves out the element itself


@cuda.jit
def blelloch_padded(x, out, totals):
    """The same with element p in word p + p // 32: elements that are 2 * step apart lie in different banks."""
    held = cuda.shared.array(PADDED, float32)
    tid, first = cuda.threadIdx.x, cuda.blockIdx.x * LEAVES
    for leaf in range(tid, LEAVES, THREADS):
        held[leaf + leaf // WARP] = x[first + leaf] if first + leaf < x.size else float32(0)
    step, nodes = 1, THREADS
    while nodes > 0:
        cuda.syncthreads()
        if tid < nodes:
            right = 2 * step * (tid + 1) - 1
            left = right - step
            held[right + right // WARP] += held[left + left // WARP]
        step, nodes = 2 * step, nodes // 2
    cuda.syncthreads()
    if tid == 0:
        totals[cuda.blockIdx.x] = held[PADDED - 2]  # the last element: 511 + 15
        held[PADDED - 2] = 0
    nodes = 1
    while nodes <= THREADS:
        step //= 2
        cuda.syncthreads()
        if tid < nodes:
            right = 2 * step * (tid + 1) - 1
            left = right - step
            right, left = right + right // WARP, left + left // WARP
            value = held[left]
            held[left] = held[right]
            held[right] += value
        nodes *= 2
    cuda.syncthreads()
    for leaf in range(tid, LEAVES, THREADS):
        if first + leaf < x.size:
            out[first + leaf] = held[leaf + leaf // WARP] + x[first + leaf]


@cuda.jit
def shuffles(x, out, totals):
    """Scan each warp in registers: five shuffles. Then one warp scans the totals of the warps."""
    of_warps = cuda.shared.array(WARP, float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    lane, warp = tid % WARP, tid // WARP
    value = x[i] if i < x.size else float32(0)
    distance = 1
    while distance < WARP:
        before = cuda.shfl_up_sync(FULL, value, distance)
        if lane >= distance:
            value += before
        distance *= 2
    if lane == WARP - 1:
        of_warps[warp] = value
    cuda.syncthreads()
    if warp == 0:
        total = of_warps[lane] if lane < WARPS else float32(0)
        distance = 1
        while distance < WARPS:
            before = cuda.shfl_up_sync(FULL, total, distance)
            if lane >= distance:
                total += before
            distance *= 2
        of_warps[lane] = total
    cuda.syncthreads()
    if warp > 0:
        value += of_warps[warp - 1]
    if i < x.size:
        out[i] = value
    if tid == THREADS - 1:
        totals[cuda.blockIdx.x] = value


@cuda.jit
def add_totals(out, totals, each):
    """Add to each element the total of all blocks before its own; a block had ``each`` elements."""
    i = cuda.grid(1)
    if i < out.size and i >= each:
        out[i] += totals[i // each - 1]


# -- one pass -------------------------------------------------------------------------------------------------------

_scan_block = block_scan(THREADS)


@cuda.jit
def clear(flags):
    i = cuda.grid(1)
    if i < flags.size:
        flags[i] = 0


@cuda.jit
def look_back(x, out, own, upto, flags):
    """Publish the block's total, and add up those of the blocks before, until one has published the total up to it.

    Blocks number themselves as they start (``flags[0]``), so that those before are running already, and will publish.
    """
    shared = cuda.shared.array(1, float32)
    number = cuda.shared.array(1, int32)
    tid = cuda.threadIdx.x
    if tid == 0:
        number[0] = cuda.atomic.add(flags, 0, 1)
    cuda.syncthreads()
    block = number[0]
    i = block * THREADS + tid
    value, total = _scan_block(x[i] if i < x.size else float32(0))
    if tid == 0:
        own[block] = total
        cuda.threadfence()  # the total comes before its flag
        cuda.atomic.exch(flags, block + 1, OWN)
        before, look = float32(0), block - 1
        while look >= 0:
            flag = cuda.atomic.add(flags, look + 1, 0)
            if flag == OWN or flag == ALL:
                cuda.threadfence()  # the flag comes before its total
                if flag == ALL:
                    before += upto[look]
                    break
                before += own[look]
                look -= 1
        upto[block] = before + total
        cuda.threadfence()
        cuda.atomic.exch(flags, block + 1, ALL)
        shared[0] = before
    cuda.syncthreads()
    if i < x.size:
        out[i] = value + shared[0]


# -- to launch them -------------------------------------------------------------------------------------------------

#: The rungs, in order.
VARIANTS = {
    "hillis_steele": hillis_steele,
    "blelloch": blelloch,
    "blelloch_padded": blelloch_padded,
    "shuffles": shuffles,
    "look_back": look_back,
}


def steps(variant: str, x: Any, out: Any, stream: Any = None) -> list[tuple]:
    """The launches of one scan, to be made, traced or timed in this order: ``for launch, arguments in steps(...)``.

    Parameters
    ----------
    variant : str
        One of ``VARIANTS``.
    x, out : device arrays of one dimension, float32
        Of the same length, one element or more.
    stream : CUDA stream, optional

    Returns
    -------
    list of (launch, arguments)
        Buffers for the totals of the blocks are among the arguments: they live as long as the list.

    Raises
    ------
    TypeError, ValueError
        For another variant or other arrays.

    Examples
    --------
    >>> x, out = cuda.to_device(np.ones(5, np.float32)), cuda.to_device(np.zeros(5, np.float32))
    >>> for launch, arguments in steps("blelloch", x, out):
    ...     launch(*arguments)
    >>> out.copy_to_host()
    array([1., 2., 3., 4., 5.], dtype=float32)
    """
    check_choice("variant", variant, VARIANTS)
    for name, array in {"x": x, "out": out}.items():
        check_array(name, array, 1, (np.float32,))
    check_alike("out", out, "x", x, x.shape)
    if x.shape[0] == 0:
        raise ValueError("x has no elements; it must have one or more")
    stream, kernel, size = stream_of(stream), VARIANTS[variant], x.shape[0]
    each = LEAVES if variant.startswith("blelloch") else THREADS
    blocks = ceil_div(size, each)
    if variant == "look_back":
        own, upto = (cuda.device_array(blocks, np.float32, stream=stream) for _ in range(2))
        flags = cuda.device_array(blocks + 1, np.int32, stream=stream)
        launch = clear[ceil_div(flags.size, THREADS), THREADS, stream]
        return [(launch, (flags,)), (kernel[blocks, THREADS, stream], (x, out, own, upto, flags))]
    totals = cuda.device_array(blocks, np.float32, stream=stream)
    launches = [(kernel[blocks, THREADS, stream], (x, out, totals))]
    if blocks == 1:
        return launches
    scanned = cuda.device_array(blocks, np.float32, stream=stream)
    launches += steps(variant, totals, scanned, stream)
    add = add_totals[ceil_div(size, THREADS), THREADS, stream]
    return [*launches, (add, (out, scanned, each))]
