"""The primitives that the kernels are put together from, as device functions (D2): read a few elements into registers,
combine them inside the thread, then across lanes and warps. All of them keep the elements in order.

1. ``make_load``, ``make_read``: elements into a tile of registers, in one access.
2. ``make_fold``: combine the tile inside the thread. ``make_take`` reads and folds at once, ``make_take_checked`` and
   ``make_take_edge`` what of that is in a row, ``make_take_columns`` several short rows.
3. ``make_combine_lanes``, ``make_combine_warps``: across a warp and a block. ``make_gather``: fold and lanes, in order.
4. ``make_share``: which tiles each of several warps takes. ``is_last``: which block finishes last.

Each device function is compiled for its constants, so that its loops unroll and its tile stays in registers. Indices
and sizes are uint64: Numba checks a signed index for being negative, and adds signed to unsigned numbers in float64.
"""

import functools

from gpukit.backend import cuda, int32, int64, uint32, uint64
from gpukit.intrinsics import inc_acq_rel
from gpukit.intrinsics.vectors import make_load
from warpstep.limits import WARP

__all__ = [
    "is_last",
    "make_combine_lanes",
    "make_combine_warps",
    "make_fold",
    "make_gather",
    "make_load",
    "make_read",
    "make_share",
    "make_take",
    "make_take_checked",
    "make_take_columns",
    "make_take_edge",
    "make_take_if",
]

#: The mask of a whole warp.
FULL = 0xFFFFFFFF


@functools.cache
def make_read(operation, vector):
    """Make ``read(x, at, tile, place)``: ``vector`` elements in one access, transformed, into a tile."""
    transform, thread_type, load = operation.transform, operation.thread_type, make_load(vector)

    @cuda.jit(device=True)
    def read(x, at, tile, place):
        values = load(x, at)
        for v in range(vector):
            tile[place + v] = thread_type(transform(values[v]))

    return read


@functools.cache
def make_take(operation, vector):
    """Make ``take(x, at)``: ``vector`` elements in one access, transformed and combined."""
    thread_type, read, fold = operation.thread_type, make_read(operation, vector), make_fold(operation, vector)

    @cuda.jit(device=True)
    def take(x, at):
        held = cuda.local.array(vector, thread_type)
        read(x, at, held, 0)
        fold(held)
        return held[0]

    return take


@functools.cache
def make_take_if(operation, vector):
    """Make ``take_if(x, at, has)``: ``take`` if ``has``, and otherwise the identity; loads overlap either way.

    A load of one element has a predicate. Other threads that have none read the first elements: with what follows the
    load of several, a branch would be left.
    """
    take, identity, thread_type = make_take(operation, vector), operation.identity, operation.thread_type

    @cuda.jit(device=True)
    def take_if(x, at, has):
        if vector == 1:
            value = thread_type(identity)
            if has:
                value = take(x, at)
            return value
        value = take(x, at if has else uint64(0))
        return value if has else thread_type(identity)

    return take_if


@functools.cache
def make_take_columns(operation, vector, each):
    """Make ``take_columns(x, at, has, tile, place)``: what `make_take_if` does, for rows of ``each`` elements one after
    the other: ``each`` totals into a tile.
    """
    read, fold = make_read(operation, vector), make_fold(operation, vector, each)
    identity, thread_type = operation.identity, operation.thread_type

    @cuda.jit(device=True)
    def take_columns(x, at, has, tile, place):
        held = cuda.local.array(vector, thread_type)
        read(x, at if has else uint64(0), held, 0)
        fold(held)
        for e in range(each):
            tile[place + e] = held[e] if has else thread_type(identity)

    return take_columns


@functools.cache
def make_take_checked(operation, vector):
    """Make ``take_checked(x, first, place, n)``: ``take``, of those elements that are in a row of ``n`` (D3).

    The row begins at ``first``. ``place`` counts from there; one before the row wraps round. Elements of other rows are
    read too, in one access, but those before the first row and after the last are not.
    """
    transform, identity, thread_type = operation.transform, operation.identity, operation.thread_type
    load, fold = make_load(vector), make_fold(operation, vector)

    @cuda.jit(device=True)
    def take_checked(x, first, place, n):
        read = cuda.local.array(vector, x.dtype)
        held = cuda.local.array(vector, thread_type)
        at, most = first + place, int64(vector)
        low = uint32(min(max(-int64(place), int64(0)), most))
        high = uint32(min(max(int64(n - place), int64(0)), most))
        for v in range(vector):
            read[v] = x.dtype.type(0)
        # Elements are used after both branches: no thread waits for the loads of others before it loads its own.
        if low < high and at < uint64(x.size) and at + uint64(vector) <= uint64(x.size):
            values = load(x, at)
            for v in range(vector):
                read[v] = values[v]
        else:
            for v in range(vector):
                if uint32(uint32(v) - low) < uint32(high - low):
                    read[v] = x[at + uint64(v)]
        for v in range(vector):
            value = thread_type(transform(read[v]))
            held[v] = value if uint32(uint32(v) - low) < uint32(high - low) else thread_type(identity)
        fold(held)
        return held[0]

    return take_checked


@functools.cache
def make_take_edge(operation, vector, loads):
    """Make ``take_edge(x, first, place, n, tile)``: what `make_take_checked` does, for ``loads`` accesses of a lane.

    Those of a warp follow one another. All elements from the first access to the last are in ``x``, though not in the
    row, so loads need no branch for single elements, and overlap.
    """
    transform, identity, thread_type = operation.transform, operation.identity, operation.thread_type
    load, fold, access, size = make_load(vector), make_fold(operation, vector), WARP * vector, vector * loads

    @cuda.jit(device=True)
    def take_edge(x, first, place, n, tile):
        read = cuda.local.array(size, x.dtype)
        held = cuda.local.array(vector, thread_type)
        low = int32(min(max(-int64(place), int64(0)), int64(vector)))
        high = int32(min(max(int64(n - place), int64(0)), int64(access * loads)))
        for k in range(loads):
            for v in range(vector):
                read[k * vector + v] = x.dtype.type(0)
            if int32(k * access) < high:
                values = load(x, first + place + uint64(k * access))
                for v in range(vector):
                    read[k * vector + v] = values[v]
        for k in range(loads):
            for v in range(vector):
                value = thread_type(transform(read[k * vector + v]))
                inside = int32(k * access + v) < high and (k > 0 or int32(v) >= low)
                held[v] = value if inside else thread_type(identity)
            fold(held)
            tile[k] = held[0]

    return take_edge


@functools.cache
def make_fold(operation, size, each=1):
    """Make ``fold(tile)``: combine neighbours among ``size`` values until ``each`` values are left.

    The values are ``size / each`` groups of ``each``, and groups are combined element by element. They form a tree: no
    value goes through more than log2(size / each) roundings, and additions do not wait for one another. Both sizes are
    powers of two.
    """
    combine, thread_type, half = operation.combine, operation.thread_type, size // 2
    if size == each:

        @cuda.jit(device=True)
        def fold(tile):
            pass

        return fold
    rest = make_fold(operation, half, each)

    @cuda.jit(device=True)
    def fold(tile):
        for i in range(half):
            left = i + i // each * each
            tile[i] = thread_type(combine(tile[left], tile[left + each]))
        rest(tile)

    return fold


@functools.cache
def make_combine_lanes(operation, lanes=WARP, step=1, few=False):
    """Make ``combine_lanes(value)``: combine the values of ``lanes`` lanes that are ``step`` apart, in their order.

    The first of them gets the result. With ``few``, all their elements could be those of one thread.
    """
    combine, accumulator, number = operation.combine, operation.accumulator, operation.accumulator
    if few or operation.partial.itemsize < 4:  # shuffles and registers are of 32 bits
        number = operation.thread_type
    shuffle_type = operation.shuffle_type if number is accumulator else number

    @cuda.jit(device=True)
    def combine_lanes(value):
        value, distance = number(value), step
        while distance < lanes * step:
            other = cuda.shfl_down_sync(FULL, shuffle_type(value), distance)
            value = number(combine(value, number(other)))
            distance *= 2
        return accumulator(value)

    return combine_lanes


@functools.cache
def make_share(operation):
    """Make ``share(index, sharers, run, tiles)``: (first, step, stop) of the tiles that sharer ``index`` takes.

    If the order does not matter, sharers that run at the same time take neighbouring tiles: reads that lie together in
    memory are faster. If it does, each sharer takes a run of ``run`` neighbouring tiles.
    """
    commutative = operation.commutative

    @cuda.jit(device=True)
    def share(index, sharers, run, tiles):
        if commutative:
            return index, sharers, tiles
        return index * run, uint64(1), min(index * run + run, tiles)

    return share


@functools.cache
def make_gather(operation, loads, each=1, lanes=WARP, step=1):
    """Make ``gather(tile)``: combine what lanes hold of ``loads`` accesses, until ``each`` values are left.

    The elements are ordered by access, then by lane. If their order does not matter, each lane combines its own, and
    lanes are combined once, at the end. If it does, lanes are combined for each access; the first lane gets the result.
    """
    fold = make_fold(operation, loads * each, each)
    if operation.commutative:
        return fold
    thread_type, accumulator = operation.thread_type, operation.accumulator
    combine_lanes = make_combine_lanes(operation, lanes, step)

    @cuda.jit(device=True)
    def gather(tile):
        for i in range(loads * each):
            tile[i] = thread_type(combine_lanes(accumulator(tile[i])))
        fold(tile)

    return gather


@functools.cache
def make_combine_warps(operation, threads):
    """Make ``combine_warps(value, shared)``: combine the values of the first lanes of a block's warps.

    ``shared`` has an element for each warp. Every thread must call it; thread 0 gets the result.
    """
    warps = threads // WARP
    accumulator, combine_lanes = operation.accumulator, make_combine_lanes(operation, warps)

    @cuda.jit(device=True)
    def combine_warps(value, shared):
        tid = uint32(cuda.threadIdx.x)
        if tid % uint32(WARP) == uint32(0):
            shared[tid // uint32(WARP)] = value
        cuda.syncthreads()
        if tid < uint32(WARP):
            value = combine_lanes(shared[tid % uint32(warps)])
        cuda.syncthreads()  # shared may be written again
        return accumulator(value)

    return combine_warps


@cuda.jit(device=True)
def is_last(counters, place, blocks, flag):
    """Whether this block is the last of ``blocks`` to arrive here; all of its threads must call it.

    After it, the last block may read all that the threads of any block wrote before it. ``counters`` are uint32; they
    count up to ``blocks`` and wrap to 0 for the next launch. ``flag`` is a shared array of one int32.
    """
    cuda.syncthreads()  # the whole block has written
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        last = uint32(uint32(blocks) - uint32(1))
        # The writes come before the count, and the count before the reads. It wraps to 0 at the last block.
        flag[0] = 1 if inc_acq_rel(counters, place, last) == last else 0
    cuda.syncthreads()
    return flag[0] == 1
