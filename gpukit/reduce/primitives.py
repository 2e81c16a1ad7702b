"""The primitives that the kernels are put together from, as device functions (D2): read a few elements into registers,
combine them inside the thread, then across lanes and warps. All of them keep the elements in order.

Each is made for its constants, so that its loops unroll and its tile has registers of its own.
"""

import functools

from gpukit.backend import cuda, uint32, uint64
from gpukit.intrinsics import load2, load4, load8, load16

__all__ = [
    "WARP",
    "checked_taker",
    "folder",
    "gatherer",
    "is_last",
    "lane_combiner",
    "loader",
    "reader",
    "sharer",
    "taker",
    "warp_combiner",
    "whole",
]

WARP = 32
FULL = 0xFFFFFFFF
#: The type of indices and sizes. Of a signed index Numba asks whether it is negative, and of the sum of a signed and an
#: unsigned number it makes a float64.
whole = uint64


@functools.cache
def loader(vector):
    """Device function ``load(x, at)``: a tuple of ``vector`` neighbouring elements, in one access."""
    if vector > 1:
        return {2: load2, 4: load4, 8: load8, 16: load16}[vector]

    @cuda.jit(device=True)
    def load(x, at):
        return (x[at],)

    return load


@functools.cache
def reader(operation, vector):
    """Device function ``read(x, at, tile, place)``: ``vector`` elements in one access, transformed, into a tile."""
    transform, inside, load = operation.transform, operation.inside, loader(vector)

    @cuda.jit(device=True)
    def read(x, at, tile, place):
        values = load(x, at)
        for v in range(vector):
            tile[place + v] = inside(transform(values[v]))

    return read


@functools.cache
def taker(operation, vector):
    """Device function ``take(x, at)``: ``vector`` elements in one access, transformed and combined."""
    inside, read, fold = operation.inside, reader(operation, vector), folder(operation, vector)

    @cuda.jit(device=True)
    def take(x, at):
        held = cuda.local.array(vector, inside)
        read(x, at, held, 0)
        fold(held)
        return held[0]

    return take


@functools.cache
def checked_taker(operation, vector):
    """Device function ``take_checked(x, first, place, n)``: the same of those that are in a row of ``n`` elements (D3).

    The row begins at ``first``. ``place`` may lie before its begin: unsigned numbers wrap to ones that are too large.
    """
    combine, transform, identity = operation.combine, operation.transform, operation.identity
    inside, take = operation.inside, taker(operation, vector)

    @cuda.jit(device=True)
    def take_checked(x, first, place, n):
        if place < n and place + whole(vector) <= n:
            return take(x, first + place)
        value = inside(identity)
        for v in range(vector):
            if place + whole(v) < n:
                value = inside(combine(value, inside(transform(x[first + place + whole(v)]))))
        return value

    return take_checked


@functools.cache
def folder(operation, size, each=1):
    """Device function ``fold(tile)``: of ``size`` values, neighbours are combined until ``each`` values are left.

    The values are ``size / each`` groups of ``each``; first ones of groups are combined with first ones, and so on.
    As a tree, and not one after the other: no value goes through more than log2(size / each) roundings, and additions
    do not have to wait for one another. Both sizes are powers of two.
    """
    combine, inside, half = operation.combine, operation.inside, size // 2
    if size == each:

        @cuda.jit(device=True)
        def fold(tile):
            pass

        return fold
    rest = folder(operation, half, each)

    @cuda.jit(device=True)
    def fold(tile):
        for i in range(half):
            left = i + i // each * each
            tile[i] = inside(combine(tile[left], tile[left + each]))
        rest(tile)

    return fold


@functools.cache
def lane_combiner(operation, lanes=WARP, step=1):
    """Device function: combine the values of ``lanes`` lanes that are ``step`` apart, in their order; the first of them
    gets the result.
    """
    combine, accumulator, carrier = operation.combine, operation.accumulator, operation.carrier

    @cuda.jit(device=True)
    def across_lanes(value):
        distance = step
        while distance < lanes * step:
            other = cuda.shfl_down_sync(FULL, carrier(value), distance)
            value = accumulator(combine(value, accumulator(other)))
            distance *= 2
        return value

    return across_lanes


@functools.cache
def sharer(operation):
    """Device function ``share(index, sharers, run, tiles)``: the tiles that one of several takes: (first, step, stop).

    If the order does not matter, those that work at the same time take neighbouring tiles: what is read at one time
    lies together in memory, which is faster. If it does, each takes a run of ``run`` neighbouring tiles.
    """
    if operation.commutative:

        @cuda.jit(device=True)
        def share(index, sharers, run, tiles):
            return index, sharers, tiles

    else:

        @cuda.jit(device=True)
        def share(index, sharers, run, tiles):
            return index * run, whole(1), min(index * run + run, tiles)

    return share


@functools.cache
def gatherer(operation, loads, each=1, lanes=WARP, step=1):
    """Device function ``gather(tile)``: combine what lanes hold of ``loads`` accesses, until ``each`` values are left.

    The order of elements is: first access of the first lane, of the next lane, ..., second access of the first lane.
    If it does not matter to the operation, each lane combines its own, and lanes are combined once, at the end. If it
    does, lanes are combined for each access; the first lane gets the result.
    """
    fold, inside, accumulator = folder(operation, loads * each, each), operation.inside, operation.accumulator
    if operation.commutative:
        return fold
    across_lanes = lane_combiner(operation, lanes, step)

    @cuda.jit(device=True)
    def gather(tile):
        for i in range(loads * each):
            tile[i] = inside(across_lanes(accumulator(tile[i])))
        fold(tile)

    return gather


@functools.cache
def warp_combiner(operation, threads):
    """Device function ``across_warps(value, shared)``: combine the values of the first lanes of a block's warps.

    ``shared`` has a place for each warp. Every thread must call it; thread 0 gets the result.
    """
    warps = threads // WARP
    accumulator, across_lanes = operation.accumulator, lane_combiner(operation, warps)

    @cuda.jit(device=True)
    def across_warps(value, shared):
        tid = cuda.threadIdx.x
        if tid % WARP == 0:
            shared[tid // WARP] = value
        cuda.syncthreads()
        if tid < WARP:
            value = across_lanes(shared[tid % warps])
        cuda.syncthreads()  # shared may be used again
        return accumulator(value)

    return across_warps


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
