"""The primitives that the kernels are put together from, as device functions (D2): read a small tile into registers,
combine it inside the thread, then across lanes and warps.

Each is made for its constants, so that its loops unroll and its tile has registers of its own.
"""

import functools

from numba.cuda import uint32, uint64

from gpukit.backend import cuda
from gpukit.intrinsics import load2, load4

__all__ = ["WARP", "block_combiner", "folder", "lane_combiner", "reader"]

WARP = 32
FULL = 0xFFFFFFFF


@functools.cache
def reader(operation, vector, spacing=1):
    """Device function ``read(x, at, tile, place)``: ``vector`` elements in one access, transformed, into every
    ``spacing``-th place of a tile.
    """
    transform, inside = operation.transform, operation.inside

    if vector == 1:

        @cuda.jit(device=True)
        def read(x, at, tile, place):
            tile[place] = inside(transform(x[at]))

    elif vector == 2:

        @cuda.jit(device=True)
        def read(x, at, tile, place):
            a, b = load2(x, at)
            tile[place] = inside(transform(a))
            tile[place + spacing] = inside(transform(b))

    else:

        @cuda.jit(device=True)
        def read(x, at, tile, place):
            a, b, c, d = load4(x, at)
            tile[place] = inside(transform(a))
            tile[place + spacing] = inside(transform(b))
            tile[place + 2 * spacing] = inside(transform(c))
            tile[place + 3 * spacing] = inside(transform(d))

    return read


@functools.cache
def folder(operation, size, stop=1):
    """Device function ``fold(tile)``: the ``size`` values of a tile are combined by halves until ``stop`` are left.

    By halves, and not one after the other: no value goes through more than log2(size / stop) roundings, and additions
    do not have to wait for one another. Both sizes are powers of two.
    """
    combine, inside, half = operation.combine, operation.inside, size // 2
    if size == stop:

        @cuda.jit(device=True)
        def fold(tile):
            pass

        return fold
    rest = folder(operation, half, stop)

    @cuda.jit(device=True)
    def fold(tile):
        for i in range(half):
            tile[i] = inside(combine(tile[i], tile[i + half]))
        rest(tile)

    return fold


@functools.cache
def lane_combiner(operation, width=WARP):
    """Device function: combine the values of each ``width`` neighbouring lanes; all of them get the result."""
    combine, accumulator, carrier = operation.combine, operation.accumulator, operation.carrier

    @cuda.jit(device=True)
    def across_lanes(value):
        distance = width // 2
        while distance > 0:
            other = cuda.shfl_xor_sync(FULL, carrier(value), distance)
            value = accumulator(combine(value, accumulator(other)))
            distance //= 2
        return value

    return across_lanes


@functools.cache
def block_combiner(operation, threads):
    """Device function ``across_block(value, shared)``: combine the values of all ``threads`` of a block.

    ``shared`` has a place for each warp. Every thread must call it; thread 0 gets the result.
    """
    warps = threads // WARP
    accumulator, identity = operation.accumulator, operation.identity
    across_lanes, across_warps = lane_combiner(operation), lane_combiner(operation, warps)

    @cuda.jit(device=True)
    def across_block(value, shared):
        value = across_lanes(value)
        if warps == 1:
            return value
        tid = cuda.threadIdx.x
        if tid % WARP == 0:
            shared[tid // WARP] = value
        cuda.syncthreads()
        if tid < WARP:
            value = across_warps(shared[tid] if tid < warps else accumulator(identity))
        cuda.syncthreads()  # shared may be used again
        return value

    return across_block


@cuda.jit(device=True)
def is_last(counters, place, blocks, flag):
    """Whether this block is the last of ``blocks`` to come here; all of its threads must call it.

    What the threads of each block have written before, the last block may read after. ``counters``, of uint32, count
    up to ``blocks`` and are 0 again for the next launch. ``flag`` is a shared array of one int32.
    """
    cuda.syncthreads()  # the whole block has written
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        cuda.threadfence()  # first what is written, then the count
        last = uint32(uint32(blocks) - uint32(1))
        flag[0] = 1 if cuda.atomic.inc(counters, place, last) == last else 0  # at last it wraps to 0
        cuda.threadfence()  # first the count, then what is read
    cuda.syncthreads()
    return flag[0] == 1


@cuda.jit(device=True)
def whole(value):
    """An index or a size as an unsigned number of 64 bits. Numba asks of a signed index whether it is negative, and
    makes a float64 of a sum of a signed and an unsigned number.
    """
    return uint64(value)
