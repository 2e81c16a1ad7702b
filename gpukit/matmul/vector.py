"""A matrix by a vector, or by up to four, at the speed of memory: every element of the matrix is read once.

`along` is for a matrix whose neighbours in memory are added up, `across` for one whose neighbours belong to different
results. Blocks along y take parts of K. The last block to finish adds their sums up, always in the same order.
`several` is for a few vectors.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float32, float64, types, uint32, uint64
from gpukit.intrinsics import load2, load4, load8
from gpukit.intrinsics.bfloat16 import bfloat16_of, float_of
from gpukit.matmul.operands import starts_of
from warpstep.integers import ceil_div, next_power_of_two

__all__ = [
    "APART",
    "THREADS",
    "Shape",
    "across",
    "along",
    "choose_vector",
    "several",
    "takes_apart",
    "takes_several",
    "total_of",
]

#: Threads of a block, and of a warp; warps of a block.
THREADS, LANES = 256, 32
GROUPS = THREADS // LANES
#: Loads of a thread that are under way before it uses the first value: of 16 bytes each, in few blocks or in many, and
#: of single elements, of 8 bytes and of fewer.
UNROLL_FEW, UNROLL, UNROLL_DOUBLE, UNROLL_SINGLE = 8, 4, 8, 16
#: Blocks that a multiprocessor has registers for. Without this bound the compiler saves registers and moves loads after
#: uses of those before: 4096 x 4096 takes 5 % longer on an H200.
RESIDENT = 4
#: Blocks that a multiprocessor should have, and the least elements of K in a part.
BLOCKS, MIN_ACROSS, MIN_ALONG = 3, 256, 4096
#: Up to this K a warp of `along` has a row of its own; up to the second one if there are rows enough. For longer ones a
#: block has it. Where there are few rows, up to eight for each multiprocessor, half a block has one that is longer
#: than the third, and than a warp loads at once.
MAX_WARP_K, MAX_LONG_K, MIN_HALF_K = 2048, 8192, 256
#: Up to this K, and to so many rounds of loads, all blocks of `across` have whole columns: to add up parts takes 1 us.
MAX_WHOLE_K, MAX_ROUNDS = 512, 4
#: Up to this K a thread of `across` may have a column of its own. Where there are not more results than this, times
#: those of a load, at most so many threads read a row, and there are fewer parts.
MAX_BLOCK_K, FEW_LANES, FEW_RESULTS, FEW_BLOCKS = 32, 8, 4096, 2
#: Rows that do not begin at multiples of 16 bytes: if there are so many, twice so few threads of `along` read one, and
#: so few if there are twice as many.
MANY_ROWS, NARROW_LANES = 1 << 15, 8
#: With more lanes than these for all rows, fewer share one, but for so many.
MANY_LANES, MIN_SHARED = 1 << 20, 2
#: Elements of a thread of `across` that are apart, and the fewest of all matrices for that.
APART, MIN_APART = 4, 1 << 22
#: `several` takes so many vectors at most, by a matrix of so many rows of so many elements at least.
MAX_VECTORS, MIN_ROWS, MIN_ROW = 4, 1024, 256
#: Rows that do not begin at multiples of 16 bytes must have so many elements, all together.
MIN_SEVERAL = 1 << 22


class Shape(NamedTuple):
    """How a product by a vector is divided.

    Attributes
    ----------
    lanes : int
        Threads for one row.
    columns : int
        Results of a block.
    parts : int
        Of K.
    """

    lanes: int
    columns: int
    parts: int


def choose_vector(
    count: int, k: int, batch: int, is_along: bool, width: int, multiprocessors: int, apart: bool = False
) -> Shape:
    """Divide a product of ``count`` results of ``k`` terms each; the matrix is read ``width`` elements at a time."""
    blocks_each, enough = BLOCKS, count * batch >= multiprocessors * BLOCKS * GROUPS
    if is_along:
        lanes = min(LANES, next_power_of_two(max(1 if width > 1 else 2, ceil_div(k, width))))
        many = THREADS // 2 if width == 1 and k < THREADS * UNROLL_SINGLE else THREADS
        lanes = lanes if k <= (MAX_LONG_K if enough else MAX_WARP_K) else many
        if count * batch <= multiprocessors * GROUPS and k > max(MIN_HALF_K, LANES * UNROLL * width):
            lanes = max(lanes, THREADS // 2)
        if width == 1 and count * batch >= MANY_ROWS:
            lanes = min(lanes, NARROW_LANES if count * batch >= 2 * MANY_ROWS else 2 * NARROW_LANES)
        # Warps that come and go cost more than the loads: of many rows a lane has several.
        while MIN_SHARED < lanes <= LANES and count * batch * lanes > MANY_LANES and k * 2 <= UNROLL * width * lanes:
            lanes //= 2
    elif count * batch <= FEW_RESULTS * width and not apart:
        lanes, blocks_each = min(FEW_LANES, next_power_of_two(ceil_div(count, width))), FEW_BLOCKS
    else:
        lanes = min(LANES, next_power_of_two(ceil_div(count, width)))
        lanes = THREADS if width == 1 and k <= MAX_BLOCK_K and count * batch >= multiprocessors * THREADS else lanes
    columns = THREADS // lanes if is_along else lanes * width
    blocks = ceil_div(count, columns) * batch
    round_ = THREADS // lanes * (UNROLL if width > 1 else UNROLL_DOUBLE)
    most = max(1, k // (MIN_ALONG if is_along else max(MIN_ACROSS, round_)))
    most = most if is_along or k > max(MAX_WHOLE_K, MAX_ROUNDS * round_) else 1
    return Shape(lanes, columns, min(most, max(1, multiprocessors * blocks_each // blocks)))


def takes_apart(count: int, k: int, batch: int) -> bool:
    """Whether a thread of `across` should have elements that are apart, in rows that are not aligned."""
    return count >= APART * LANES and k > MAX_BLOCK_K and count * k * batch >= MIN_APART


def total_of(element):
    """The type of sums; uint16 stands for bfloat16."""
    return float64 if element == float64 else float32


@functools.cache
def make_number(element):
    """Make the device function that turns an element into a number to add."""
    total = total_of(element)

    @cuda.jit(device=True, forceinline=True)
    def number(x):
        return total(x)

    return float_of if element == types.uint16 else number


@functools.cache
def make_load(element, width, once, apart=False):
    """Make the device function that reads 1, 2, 4 or 8 neighbours, as a tuple of that many numbers; with ``once`` those
    of a matrix, which caches need not keep. ``apart``: four elements, as many apart as a warp has lanes.
    """
    number, load_wide = make_number(element), {1: None, 2: load2, 4: load4, 8: load8}[width]

    @cuda.jit(device=True, forceinline=True)
    def load(array, at):
        return (number(array[at]),)

    @cuda.jit(device=True, forceinline=True)
    def load_some(array, at):
        return load_wide(array, at, once)

    @cuda.jit(device=True, forceinline=True)
    def load_eight(array, at):
        s, t, u, v, w, x, y, z = load_wide(array, at, once)
        return number(s), number(t), number(u), number(v), number(w), number(x), number(y), number(z)

    @cuda.jit(device=True, forceinline=True)
    def load_apart(array, at):
        second, third, fourth = at + uint64(LANES), at + uint64(2 * LANES), at + uint64(3 * LANES)
        return number(array[at]), number(array[second]), number(array[third]), number(array[fourth])

    return load_apart if apart else {1: load, 8: load_eight}.get(width, load_some)


@functools.cache
def make_load_many(load, count):
    """Make the device function that loads ``count`` times, ``step`` elements apart: pairs of pairs of what is read."""
    if count == 1:

        @cuda.jit(device=True, forceinline=True)
        def load_one(array, at, step):
            return load(array, at)

        return load_one
    half, rest = make_load_many(load, count // 2), count // 2

    @cuda.jit(device=True, forceinline=True)
    def load_many(array, at, step):
        return half(array, at, step), half(array, at + uint64(rest) * step, step)

    return load_many


@functools.cache
def make_add_many(add, count):
    """Make the device function that adds what `make_load_many` has read, times elements of the vector."""
    if count == 1:

        @cuda.jit(device=True, forceinline=True)
        def add_one(sums, values, vector, at, step):
            add(sums, values, vector, at, step, True)

        return add_one
    half, rest = make_add_many(add, count // 2), count // 2

    @cuda.jit(device=True, forceinline=True)
    def add_many(sums, values, vector, at, step):
        half(sums, values[0], vector, at, step)
        half(sums, values[1], vector, at + uint64(rest) * step, step)

    return add_many


@functools.cache
def make_add_each(add, count):
    """Make the device function that adds what `make_load_many` has read, times elements of several vectors that are so
    far ``apart``.
    """
    if count == 1:

        @cuda.jit(device=True, forceinline=True)
        def add_one(sums, values, vector, at, step, apart):
            add(sums, values, vector, at, apart)

        return add_one
    half, rest = make_add_each(add, count // 2), count // 2

    @cuda.jit(device=True, forceinline=True)
    def add_each(sums, values, vector, at, step, apart):
        half(sums, values[0], vector, at, step, apart)
        half(sums, values[1], vector, at + uint64(rest) * step, step, apart)

    return add_each


@functools.cache
def make_load_last(load, count):
    """Make the device function that does as `make_load_many`'s from element ``i`` of a row on, or a column, as far as
    there are elements before ``limit``; for others it loads ``first`` again, so that no load is behind a branch.
    """
    if count == 1:

        @cuda.jit(device=True, forceinline=True)
        def load_one(array, at, stride, i, limit, first, step):
            return load(array, at + (i if i < limit else first) * stride)

        return load_one
    half, rest = make_load_last(load, count // 2), count // 2

    @cuda.jit(device=True, forceinline=True)
    def load_last(array, at, stride, i, limit, first, step):
        more = i + uint64(rest) * step
        return half(array, at, stride, i, limit, first, step), half(array, at, stride, more, limit, first, step)

    return load_last


@functools.cache
def make_add_last(add, count):
    """Make the device function that adds what `make_load_last` has read, times elements of the vector."""
    if count == 1:

        @cuda.jit(device=True, forceinline=True)
        def add_one(sums, values, vector, of, inc, i, limit, first, step):
            add(sums, values, vector, of + (i if i < limit else first) * inc, inc, i < limit)

        return add_one
    half, rest = make_add_last(add, count // 2), count // 2

    @cuda.jit(device=True, forceinline=True)
    def add_last(sums, values, vector, of, inc, i, limit, first, step):
        more = i + uint64(rest) * step
        half(sums, values[0], vector, of, inc, i, limit, first, step)
        half(sums, values[1], vector, of, inc, more, limit, first, step)

    return add_last


def unroll_of(element, width, few_lanes=False):
    """The loads of a round; more with ``few_lanes``, of blocks that do not fill the device, if there are registers."""
    if width > 1:
        return UNROLL_FEW if few_lanes and element == float32 else UNROLL
    return UNROLL_DOUBLE if element == float64 else UNROLL_SINGLE


@functools.cache
def make_walk(load, add, step, count):
    """Make the device function by which a thread adds up its share of K, from ``i`` to ``limit`` by ``step``.

    All ``count`` loads of the matrix in a round are under way before the first value is used, also in the last round.
    """
    load_many, add_many, more = make_load_many(load, count), make_add_many(add, count), (count - 1) * step
    few = max(UNROLL, count // 2)
    load_last, add_last = make_load_last(load, few), make_add_last(add, few)

    @cuda.jit(device=True, forceinline=True)
    def walk(sums, matrix, at, stride, vector, of, inc, i, limit):
        while i + uint64(more) < limit:
            values = load_many(matrix, at + i * stride, uint64(step) * stride)
            add_many(sums, values, vector, of + i * inc, uint64(step) * inc)
            i += uint64(count * step)
        while i < limit:
            values = load_last(matrix, at, stride, i, limit, i, uint64(step))
            add_last(sums, values, vector, of, inc, i, limit, i, uint64(step))
            i += uint64(few * step)

    return walk


@functools.cache
def make_finish(element, columns, adds):
    """Make the device function that stores a block's ``columns`` results, or adds up all parts of them in the last
    block. All threads of a block call it; the first ``columns`` have the block's sums.
    """
    dtype, number, is_bfloat16 = total_of(element), make_number(element), element == types.uint16
    slots = THREADS // columns

    @cuda.jit(device=True, forceinline=True)
    def finish(count, total, out, partials, counters, alpha, beta):
        tid, parts, part = uint32(cuda.threadIdx.x), uint32(cuda.gridDim.y), uint32(cuda.blockIdx.y)
        z, col = uint64(cuda.blockIdx.z), tid % uint32(columns)
        at = uint64(cuda.blockIdx.x) * uint64(columns) + uint64(col)
        mine = tid < columns and at < count
        if parts > 1:
            last, of_slots = cuda.shared.array(1, uint32), cuda.shared.array((slots, columns), dtype)
            if mine:
                partials[(z * parts + part) * count + at] = total
            cuda.syncthreads()
            if tid == 0:
                counter = uint64(z * uint64(cuda.gridDim.x) + uint64(cuda.blockIdx.x))
                cuda.threadfence()
                last[0] = cuda.atomic.inc(counters, counter, uint32(parts - uint32(1)))
                cuda.threadfence()
            cuda.syncthreads()
            if last[0] != parts - uint32(1):
                return
            # All threads read parts, so that many of them are under way.
            total, slot = dtype(0), tid // uint32(columns)
            if at < count:
                for other in range(slot, parts, slots):
                    total += partials[(z * parts + uint64(other)) * count + at]
            of_slots[slot, col] = total
            cuda.syncthreads()
            for other in range(1, min(uint32(slots), parts)):
                total += of_slots[other, col]
        if mine:
            to = z * count + at
            total = alpha * total + beta * number(out[to]) if adds else alpha * total
            out[to] = bfloat16_of(total) if is_bfloat16 else element(total)

    return finish


@functools.cache
def along(element, lanes, width, adds):
    """Make the kernel of out[r] = alpha sum of matrix[r, k] vector[k] + beta out[r], for rows that follow K in memory.

    ``lanes`` threads, 2 to 32, 128 or 256, read a row, ``width`` elements at a time: 16 bytes, or 1 where the rows
    do not begin at multiples of them or the vector has gaps. Elements of 2 bytes are added up in float32. Call
    ``kernel[(blocks, parts, matrices), 256](matrix, vector, out, partials, counters, sizes, which, steps, alpha,
    beta)`` with sizes (count, k, elements from row to row, from element to element of the vector), and with which and
    steps of `which_of` and `steps_of` of `gpukit.matmul.operands`, for the matrix and the vector.
    """
    rows, chunk, entry = THREADS // lanes, lanes * width, min(lanes, LANES)
    load, finish, dtype = make_load(element, width, False), make_finish(element, rows, adds), total_of(element)
    entries, others, halves = THREADS // entry, lanes // entry, tuple(h for h in (16, 8, 4, 2, 1) if h < entry)

    @cuda.jit(device=True, forceinline=True)
    def add(sums, values, vector, at, step, inside):
        factors = load(vector, at)
        for j in range(width):
            sums[0] += values[j] * factors[j] if inside else dtype(0)

    walk = make_walk(make_load(element, width, True), add, chunk, unroll_of(element, width))

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def along(matrix, vector, out, partials, counters, sizes, which, steps, alpha, beta):
        count, k, pitch, inc = sizes
        tid, z = uint32(cuda.threadIdx.x), uint32(which[0] + uint32(cuda.blockIdx.z))
        lane, row = tid % uint32(lanes), uint32(cuda.blockIdx.x) * uint32(rows) + tid // uint32(lanes)
        parts = uint32(cuda.gridDim.y)
        share = uint32((k + parts * uint32(chunk) - uint32(1)) // (parts * uint32(chunk)) * uint32(chunk))
        first = uint32(cuda.blockIdx.y) * share
        limit = min(k, first + share)
        mine = cuda.local.array(1, dtype)
        mine[0] = dtype(0)
        if row < count:
            at, of = starts_of(z, which, steps)
            at += uint64(row) * pitch
            i = uint64(first + lane * uint32(width))
            walk(mine, matrix, at, uint64(1), vector, of, uint64(inc), i, uint64(limit))
        total = mine[0]
        if entry > 1:
            for half in halves:
                total += cuda.shfl_down_sync(0xFFFFFFFF, total, half)
        sums = cuda.shared.array(entries, dtype)
        if lane % uint32(entry) == 0:
            sums[tid // uint32(entry)] = total
        cuda.syncthreads()
        place = tid % uint32(rows) * uint32(others)
        total = sums[place]
        for other in range(1, others):
            total += sums[place + uint32(other)]
        finish(uint64(count), total, out, partials, counters, alpha, beta)

    return along


@functools.cache
def make_join_lanes(lanes, width):
    """Make the device function that adds up the sums of those lanes of a warp that have the same columns."""
    halves = tuple(half for half in (16, 8, 4, 2, 1) if half >= lanes)

    @cuda.jit(device=True, forceinline=True)
    def join_lanes(sums):
        for half in halves:
            for j in range(width):
                sums[j] += cuda.shfl_down_sync(0xFFFFFFFF, sums[j], half)

    @cuda.jit(device=True, forceinline=True)
    def leave(sums):
        pass

    return join_lanes if halves else leave


@functools.cache
def across(element, lanes, width, adds, apart=False):
    """Make the kernel of out[c] = alpha sum of matrix[k, c] vector[k] + beta out[c], for rows that follow c in memory.

    ``lanes`` threads read a row, each ``width`` neighbours of it: a warp every eighth row, with a small K a block all
    rows, and of a few columns each thread a row. Launched as `along`; ``width`` is not 1 where the rows begin at
    multiples of 16 bytes. With ``apart`` the four elements of each of 32 lanes are not neighbours, but those of the
    warp are; there are 128 columns or more.
    """
    columns, groups = lanes * width, THREADS // lanes
    held, join_lanes = min(groups, GROUPS), make_join_lanes(lanes, width)
    finish, dtype, number = make_finish(element, columns, adds), total_of(element), make_number(element)
    unroll = unroll_of(element, width, lanes <= FEW_LANES)
    whole = groups * unroll

    @cuda.jit(device=True, forceinline=True)
    def add(sums, values, vector, at, step, inside):
        factor = number(vector[at])
        for j in range(width):
            sums[j] += values[j] * factor if inside else dtype(0)

    walk = make_walk(make_load(element, width, True, apart), add, groups, unroll)
    lane_step, next_column = (1, LANES) if apart else (width, 1)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def across(matrix, vector, out, partials, counters, sizes, which, steps, alpha, beta):
        shared = cuda.shared.array((held, columns), dtype)
        sums = cuda.local.array(width, dtype)
        count, k, pitch, inc = sizes
        tid, z = uint32(cuda.threadIdx.x), uint32(which[0] + uint32(cuda.blockIdx.z))
        group, lane = tid // uint32(lanes), tid % uint32(lanes)
        col = uint32(cuda.blockIdx.x) * uint32(columns)
        # With ``apart`` the columns of the last block begin earlier, so that it reads nothing outside.
        early = uint32(max(uint32(col + uint32(columns)), count) - count) if apart else uint32(0)
        col = uint32(col - early + lane * uint32(lane_step))
        parts = uint32(cuda.gridDim.y)
        # Whole rounds of the loop below, except for the last part.
        share = uint32((k + parts * uint32(whole) - uint32(1)) // (parts * uint32(whole)) * uint32(whole))
        first = uint32(cuda.blockIdx.y) * share
        limit = min(k, first + share)
        for j in range(width):
            sums[j] = dtype(0)
        if col < count:
            at, of = starts_of(z, which, steps)
            at += uint64(col)
            i = uint64(first + group)
            walk(sums, matrix, at, uint64(pitch), vector, of, uint64(inc), i, uint64(limit))
        join_lanes(sums)
        if group % uint32(groups // held) == 0:
            for j in range(width):
                place = lane * uint32(lane_step) + uint32(j * next_column)
                shared[group // uint32(groups // held), place] = sums[j]
        cuda.syncthreads()
        total = dtype(0)
        for other in range(held):
            total += shared[other, (tid + early) % uint32(columns)]
        finish(uint64(count), total, out, partials, counters, alpha, beta)

    return across


def takes_several(count: int, vectors: int, k: int, batch: int, wide: bool) -> bool:
    """Whether `several` is faster than the tiles of large products: it needs rows for all multiprocessors. ``wide``:
    they begin and end at multiples of 16 bytes.
    """
    fits = vectors <= MAX_VECTORS and count * batch >= MIN_ROWS and k >= MIN_ROW
    return fits and (wide or count * k * batch >= MIN_SEVERAL)


@functools.cache
def several(element, vectors, width, adds):
    """Make the kernel of `along` for 2 to 4 vectors at a time, without parts of K: a warp has a row.

    Call ``kernel[(blocks, 1, matrices), 256](matrix, vector, out, sizes, which, steps, alpha, beta)`` with sizes
    (count, k, elements from row to row of the matrix, from vector to vector, in ``out`` from vector to vector and from
    row to row); the other arguments are as of `along`.
    """
    load, load_once, step = make_load(element, width, False), make_load(element, width, True), LANES * width
    unroll, halves = UNROLL if width > 1 else UNROLL_DOUBLE, (16, 8, 4, 2, 1)
    load_many, more = make_load_many(load_once, unroll), (unroll - 1) * step

    @cuda.jit(device=True, forceinline=True)
    def add(sums, values, vector, at, apart):
        for v in range(vectors):
            factors = load(vector, at + uint64(v) * apart)
            for j in range(width):
                sums[v] += values[j] * factors[j]

    add_each = make_add_each(add, unroll)

    # Registers for the sums, for the loads of the matrix and for as many of the vectors.
    @cuda.jit(launch_bounds=(THREADS, RESIDENT // 2))
    def several(matrix, vector, out, sizes, which, steps, alpha, beta):
        sums = cuda.local.array(vectors, element)
        count, k, pitch, apart, down, across = sizes
        tid, z = uint32(cuda.threadIdx.x), uint32(which[0] + uint32(cuda.blockIdx.z))
        lane, row = tid % uint32(LANES), uint32(cuda.blockIdx.x) * uint32(GROUPS) + tid // uint32(LANES)
        if row >= count:
            return
        at, of = starts_of(z, which, steps)
        at += uint64(row) * pitch
        for v in range(vectors):
            sums[v] = element(0)
        i = uint64(lane * uint32(width))
        while i + uint64(more) < k:
            values = load_many(matrix, at + i, uint64(step))
            add_each(sums, values, vector, of + i, uint64(step), uint64(apart))
            i += uint64(unroll * step)
        while i < k:
            add(sums, load_once(matrix, at + i), vector, of + i, uint64(apart))
            i += uint64(step)
        for v in range(vectors):
            for half in halves:
                sums[v] += cuda.shfl_down_sync(0xFFFFFFFF, sums[v], half)
            if lane == 0:
                to = uint64(z) * count * uint64(vectors) + uint64(v) * down + uint64(row) * across
                out[to] = alpha * sums[v] + beta * out[to] if adds else alpha * sums[v]

    return several
