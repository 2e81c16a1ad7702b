"""Many small products, several of them in a block: those of a batch, or groups of rows by a matrix of few columns.

A thread computes up to 4 x 4 of a result. Several groups of threads may divide K. The rows of a block's results follow
one another in memory: it gathers them in shared memory, and stores them together, wherever they begin.
"""

import functools
from typing import NamedTuple

import numpy as np

from gpukit.backend import cuda, types, uint32, uint64
from gpukit.divisors import Divisor, divided, make_divisor
from gpukit.intrinsics import commit_copies, copy_async, copy_async4, load4, store4, wait_copies
from gpukit.intrinsics.bfloat16 import bfloat16_of
from gpukit.matmul.operands import start_of
from gpukit.matmul.vector import make_number, total_of
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["MAX_COLUMNS", "Packing", "holds_whole", "pack", "packed", "packed_time", "square_of", "takes_vectors"]

#: Rows of a thread, and columns at most; elements of a wide copy.
SQUARE, WIDE = 4, 4
#: The most rows and columns of a unit, threads of a block, and bytes of its shared memory.
MAX_ROWS, MAX_COLUMNS, MAX_THREADS, MAX_SHARED = 32, 64, 256, 40 << 10
#: Blocks that a multiprocessor should have where K is cut in parts; threads of a block that hide what it waits for, and
#: of all multiprocessors; K for each thread, the least of it, and of a part; most parts.
BLOCKS, FEW_THREADS, ENOUGH, SHARE, MIN_SHARE, MIN_PART, MAX_PARTS = 4, 64, 1 << 14, 16, 4, 512, 528
#: Elements of ``out`` that a thread loads before it stores any, and short elements of operands.
LOADS, SHORT_LOADS = 4, 16
#: Rows for each column of ``b`` that a block has where it has the same ``b`` for all.
ROWS_PER_COLUMN = 4
#: Microseconds of a launch, of each k up to a limit, of 10^6 threads, of a k of these, and of 10^6 bytes by the bytes
#: of an element, measured on an H200.
LAUNCH, STEP, MAX_STEPS, MILLION_THREADS, MILLION_STEPS = 6.0, 0.045, 300, 8.0, 0.6
MEGABYTE = {2: 0.65, 4: 0.22, 8: 0.22}
#: The most columns of ``b`` for many rows. A larger K is for results of a few elements.
MAX_TALL, MAX_K, MAX_DEEP = 16, 4096, 128
#: Matrices by vectors: the most elements of small matrices, and of those of 2 bytes an element; the largest K of other
#: matrices along K, and across it; the fewest elements of these along K, and the fewest results in float64 or across K.
MAX_MATRIX, MAX_SHORT, MAX_ALONG, MAX_ACROSS, MIN_ALONG, MIN_RESULTS = 1 << 12, 1 << 11, 64, 16, 1 << 16, 1 << 12
#: The fewest elements of all small matrices along K: with fewer, each matrix has a block.
MIN_SMALL = 1 << 17
#: Across a K larger than this, small matrices of 4 or 8 bytes an element have a block each too, unless there are more
#: than so many of them, with at most as many elements each.
FEW_K, MANY_TINY = 64, 1 << 10


def packed_time(m: int, n: int, k: int, batch: int, itemsize: int) -> float:
    """Predict the microseconds of a product by `packed`; infinity for sizes that it is not for."""
    tall = m > MAX_COLUMNS or batch == 1
    if n > (MAX_TALL if tall else MAX_COLUMNS) or k > MAX_K and m * n > MAX_DEEP:
        return float("inf")
    squares = ceil_div(m, SQUARE) * ceil_div(n, SQUARE) * batch / 1e6
    nbytes = itemsize * batch * (m * k + k * n + m * n) / 1e6
    steps = STEP * min(k, MAX_STEPS)
    return LAUNCH + steps + squares * (MILLION_THREADS + MILLION_STEPS * k) + MEGABYTE[itemsize] * nbytes


def takes_vectors(count: int, k: int, batch: int, is_along: bool, itemsize: int, wide: bool) -> bool:
    """Whether `packed` is faster for matrices of ``count`` rows by vectors; ``is_along``: they lie along K; ``wide``:
    in rows that begin and end at multiples of 16 bytes.
    """
    if itemsize == 2 and wide and not is_along:
        return False
    small = batch > WARP and count * k <= (MAX_SHORT if itemsize == 2 else MAX_MATRIX)
    results, elements = count * batch, count * batch * k
    if is_along:
        small = small and elements >= MIN_SMALL
        many = results >= MIN_RESULTS if itemsize == 8 else not wide and elements >= MIN_ALONG
        many = many and k <= MAX_ALONG
    else:
        small = small and (itemsize == 2 or k <= FEW_K or batch > MANY_TINY >= count * k)
        many = results >= MIN_RESULTS and k <= MAX_ACROSS
    return k > 0 and (small or many)


def holds_whole(m: int, n: int, k: int, itemsize: int) -> bool:
    """Whether the shared memory of a block holds a unit, and its columns, for all of K."""
    return (min(m, MAX_ROWS) + n) * (k + WIDE) * itemsize <= MAX_SHARED


class Packing(NamedTuple):
    """How blocks pack units: matrices of ``out``, or groups of their rows."""

    units: np.uint32  # in all
    count: Divisor  # of a block
    rows: Divisor  # of a unit
    columns: Divisor
    depth: Divisor  # of K at a time
    lanes: Divisor  # threads of a unit, for one share of K
    across: Divisor  # of them beside each other
    per_matrix: Divisor
    inner_a: Divisor  # copies in a row of memory, of a unit
    inner_b: Divisor
    shares: np.uint32  # of K, each with threads of its own
    share: np.uint32  # of the depth
    part: np.uint32  # of K, for blocks along y
    slots: np.uint32  # matrices of b in a block
    # Whether what a block needs of an operand is in one piece; whether it stores four elements at a time.
    dense_a: np.uint32
    dense_b: np.uint32
    wide_out: np.uint32

    @property
    def threads(self) -> int:
        """int: of a block."""
        return ceil_div(int(self.count.value) * int(self.lanes.value) * int(self.shares), 32) * 32

    @property
    def blocks(self) -> int:
        """int: along x."""
        return ceil_div(int(self.units), int(self.count.value))

    @property
    def elements(self) -> int:
        """int: of dynamic shared memory."""
        rows, columns, depth, count = (int(x.value) for x in (self.rows, self.columns, self.depth, self.count))
        held = count * held_by(rows, depth) + int(self.slots) * held_by(columns, depth)
        return max(held, int(self.shares) * count * rows * columns)


def held_by(extent: int, depth: int) -> int:
    """Elements of shared memory for a part of a matrix that lies either way."""
    return max(extent * (depth + WIDE), (extent + WIDE) * depth)


def square_of(n: int, whole: bool) -> int:
    """Columns of a thread: all of a few, three where four would leave many outside; four with ``whole`` ones."""
    if whole or n == SQUARE:
        return SQUARE
    return n if n < SQUARE else 3 if n in (5, 6, 9) else SQUARE


@functools.lru_cache(4096)
def pack(m, n, k, batch, itemsize, multiprocessors, layout, square, wide, dense, shares_b, wide_out):
    """Pack units, and divide K: (Packing, parts of K). ``dense`` are the operands whose matrices are without gaps;
    ``shares_b``: all matrices have the same ``b``.
    """
    groups = ceil_div(m, MAX_ROWS)
    rows = m if groups == 1 else min(MAX_ROWS, ceil_div(ceil_div(m, groups), SQUARE) * SQUARE)
    if groups > 1 and batch > 1 and dense[0] and layout[0] == "N":  # so that what a block needs is in one piece
        rows = max((n for n in range(MAX_ROWS // 2, MAX_ROWS + 1) if m % n == 0), default=rows)
    groups = ceil_div(m, rows)
    units, across, width = groups * batch, ceil_div(n, square), WIDE if wide else 1
    lanes = ceil_div(rows, SQUARE) * across
    parts = 1
    if units < multiprocessors:
        parts = max(1, min(ceil_div(multiprocessors * BLOCKS, units), k // MIN_PART, MAX_PARTS))
    part = ceil_div(ceil_div(k, parts), width) * width
    shares = _choose_shares(units * lanes * parts, lanes, part)
    count = ceil_div(FEW_THREADS, lanes * shares)
    if groups > 1 or shares_b:
        count = max(count, ceil_div(ROWS_PER_COLUMN * n, rows))
    count = 1 if parts > 1 else max(1, min(count, MAX_THREADS // (lanes * shares), units // multiprocessors))
    slots, depth = _fit(count, groups, rows, n, part, itemsize, shares_b, width)
    while depth < part and count > 1:
        count = ceil_div(count, 2)
        slots, depth = _fit(count, groups, rows, n, part, itemsize, shares_b, width)
    depth = ceil_div(ceil_div(part, ceil_div(part, depth)), width) * width
    part = ceil_div(part, depth) * depth
    parts, whole = ceil_div(k, part), depth == k
    inner_a, inner_b = depth if layout[0] == "N" else rows, depth if layout[1] == "T" else n
    # The rows of a matrix, and its groups of them, follow one another.
    follow = groups == 1 or layout[0] == "N" and (batch == 1 or m % rows == 0)
    packing = Packing(
        units=np.uint32(units),
        count=make_divisor(count),
        rows=make_divisor(rows),
        columns=make_divisor(n),
        depth=make_divisor(depth),
        lanes=make_divisor(lanes),
        across=make_divisor(across),
        per_matrix=make_divisor(groups),
        inner_a=make_divisor(inner_a // width),
        inner_b=make_divisor(inner_b // width),
        shares=np.uint32(shares),
        share=np.uint32(ceil_div(ceil_div(depth, shares), width) * width),
        part=np.uint32(part),
        slots=np.uint32(slots),
        dense_a=np.uint32(dense[0] and whole and follow),
        dense_b=np.uint32(dense[1] and whole),
        wide_out=np.uint32(wide_out),
    )
    return packing, parts


def _choose_shares(threads, lanes, part):
    """Groups of threads that divide K."""
    shares = max(1, part // SHARE)
    if threads * shares < ENOUGH:
        shares = min(part // MIN_SHARE, ENOUGH // threads)
    return max(1, min(shares, MAX_THREADS // 2 // lanes))


def _fit(count, groups, rows, columns, part, itemsize, shares_b, width):
    """Matrices of ``b`` for so many units of a block, and the K for which its shared memory holds all."""
    slots = 1 if shares_b else min(count, (count + groups - 2) // groups + 1)
    per_k = count * (rows + WIDE) + slots * (columns + WIDE)
    room = MAX_SHARED // itemsize - WIDE * (count * rows + slots * columns)
    return slots, max(width, min(part, room // per_k))


@functools.cache
def packed(element, result, layout, square, wide, adds):
    """Make the kernel of out = alpha a b + beta out, for matrices with at most ``MAX_COLUMNS`` columns.

    Launch it as ``kernel[(packing.blocks, parts), packing.threads](a, b, out, sizes, packing, which, steps, alpha,
    beta)`` with ``packing.elements`` of dynamic shared memory. ``sizes`` is (m, n, k, pitch of a, pitch of b),
    the rest is as of `gpukit.matmul.fast.fast`. With several parts of K a block has one unit.

    Parameters
    ----------
    element, result : Numba type
        Of the operands, and of ``out``. Elements of 2 bytes, uint16 for bfloat16, are float32 in shared memory.
    square : int
        Columns of a thread, 1 to 4.
    wide : bool
        Whether operands are copied and read by four elements: for both, what lies together in memory, of K or of the
        other axis, begins and ends at multiples of 16 bytes.
    adds : bool
        Whether to apply beta. If False, ``out`` is not read.
    """
    total, along_a, along_b = total_of(element), layout[0] == "N", layout[1] == "T"
    copy_dense = make_copy_dense(element, wide)
    copy_a, copy_b = make_copy(element, along_a, wide), make_copy(element, along_b, wide)
    places_a, places_b = make_places(along_a, wide, SQUARE), make_places(along_b, wide, square)
    multiply = (make_multiply_wide if wide else make_multiply)(total, along_a, along_b, square)
    gather = make_gather(square, wide and not along_a, wide and not along_b)
    pad, store = WIDE if wide else 1, make_store(result, adds)

    @cuda.jit
    def packed(a, b, out, sizes, packing, which, steps, alpha, beta):
        tiles = cuda.shared.array(0, total, alignment=16)
        sums = cuda.local.array((SQUARE, square), total)
        from_a, from_b = cuda.local.array(SQUARE, uint32), cuda.local.array(square, uint32)
        m, n, k, pitch_a, pitch_b = sizes
        count, rows, depth = packing.count.value, packing.rows.value, packing.depth.value
        # The block: some units, a part of K.
        first_unit = uint32(uint32(cuda.blockIdx.x) * count)
        here = min(count, uint32(packing.units - first_unit))
        z0, group0 = divided(first_unit, packing.per_matrix)
        last_z, last_group = divided(uint32(first_unit + here - uint32(1)), packing.per_matrix)
        first = uint32(uint32(cuda.blockIdx.y) * packing.part)
        limit = min(k, uint32(first + packing.part))
        slots = min(packing.slots, uint32(last_z - z0 + uint32(1)))
        # Its rows of out.
        row0 = uint32(group0 * rows)
        begin = uint64(z0) * m + row0
        rows_here = uint32(uint64(last_z) * m + min(m, uint32(uint32(last_group + uint32(1)) * rows)) - begin)
        # The thread: a share of the depth, a unit, a place in it.
        place, lane = divided(uint32(cuda.threadIdx.x), packing.lanes)
        share, unit = divided(place, packing.count)
        down, right = divided(lane, packing.across)
        z, group = divided(uint32(first_unit + unit), packing.per_matrix)
        works = (share < packing.shares) & (unit < here)
        slot = uint32(z - z0) if packing.slots > 1 else uint32(0)
        high = uint32((rows + uint32(SQUARE - 1)) // uint32(SQUARE))
        from_here = uint32(0)
        rows_left = min(rows, uint32(m - uint32(group * rows)))
        size_a = places_a(from_a, from_here, unit, down, high, rows_left, packing.rows, packing.depth, count)
        places_b(from_b, size_a, slot, right, packing.across.value, n, packing.columns, packing.depth, packing.slots)
        for i in range(SQUARE):
            for j in range(square):
                sums[i, j] = total(0)
        low = uint32(share * packing.share)
        top = min(depth, uint32(low + packing.share))
        while first < limit:
            if packing.dense_a:
                source = uint64(z0) * steps[0] + uint64(row0) * uint64(k)
                copy_dense(tiles, from_here, a, source, uint32(rows_here * k), packing.inner_a)
            else:
                copy_a(tiles, from_here, a, here, packing.rows, packing.depth, packing.inner_a, first_unit,
                       packing.per_matrix, m, first, limit, pitch_a, which[1:4], steps[:2])  # fmt: skip
            if packing.dense_b:
                source = uint64(z0) * steps[2]
                copy_dense(tiles, size_a, b, source, uint32(slots * uint32(n * k)), packing.inner_b)
            else:
                copy_b(tiles, size_a, b, slots, packing.columns, packing.depth, packing.inner_b, z0,
                       ONE, n, first, limit, pitch_b, which[4:], steps[2:])  # fmt: skip
            commit_copies()
            wait_copies(0)
            cuda.syncthreads()
            if works:
                multiply(sums, tiles, from_a, from_b, low, top, uint32(rows | uint32(pad)), uint32(n | uint32(pad)))
            first = uint32(first + depth)
            cuda.syncthreads()
        room = uint32(uint32(count * rows) * n)
        if works:
            above = uint32(group * rows)
            at = uint32(share * room + uint32(uint64(z) * m + above - begin) * n)
            gather(tiles, at, sums, down, high, right, packing.across.value, rows_left, n)
        cuda.syncthreads()
        start = ((uint64(z0) * uint64(cuda.gridDim.y) + uint64(cuda.blockIdx.y)) * m + row0) * n
        store(out, start, tiles, uint32(rows_here * n), packing.shares, room, packing.wide_out, alpha, beta)

    return packed


# -- from global to shared memory ------------------------------------------------------------------

#: Groups of rows of a ``b``.
ONE = make_divisor(1)


@functools.cache
def make_copy_dense(element, wide):
    """Make the device function that begins to copy so many elements that follow one another."""
    copy_elements, width = (copy_async4, WIDE) if wide else (copy_async, 1)
    (fetch, put), loads = make_fetch(element, wide), SHORT_LOADS // width

    @cuda.jit(device=True, forceinline=True)
    def copy_dense(tiles, to, matrix, source, size, inner):
        extent = uint32(inner.value * uint32(width))
        pitch, i = uint32(extent | uint32(width)), uint32(uint32(cuda.threadIdx.x) * uint32(width))
        step = uint32(uint32(cuda.blockDim.x) * uint32(width))
        if pitch == extent:
            while i < size:
                copy_elements(tiles, uint64(to + i), matrix, source + uint64(i))
                i = uint32(i + step)
        else:
            while i < size:
                row, _ = divided(uint32(i // uint32(width)), inner)
                copy_elements(tiles, uint64(to + i + row * uint32(pitch - extent)), matrix, source + uint64(i))
                i = uint32(i + step)

    @cuda.jit(device=True, forceinline=True)
    def load_dense(tiles, to, matrix, source, size, inner):
        held = cuda.local.array((loads, width), element)
        extent = uint32(inner.value * uint32(width))
        gap, i = uint32(uint32(extent | uint32(width)) - extent), uint32(uint32(cuda.threadIdx.x) * uint32(width))
        step = uint32(uint32(cuda.blockDim.x) * uint32(width))
        while i < size:
            for j in range(loads):
                at = uint32(i + uint32(j) * step)
                fetch(held, j, matrix, source + uint64(at if at < size else i))
            for j in range(loads):
                at = uint32(i + uint32(j) * step)
                if at < size:
                    row, _ = divided(uint32(at // uint32(width)), inner)
                    put(tiles, uint32(to + at + row * gap), held, j)
            i = uint32(i + uint32(loads) * step)

    return load_dense if element.bitwidth == 16 else copy_dense


@functools.cache
def make_copy(element, along, wide):
    """Make the device function that begins to copy parts of matrices, ``extent`` by ``depth`` each, that lie along K or
    across it; zeros for what lies outside.
    """
    copy_elements, width = (copy_async4, WIDE) if wide else (copy_async, 1)
    (fetch, put), loads = make_fetch(element, wide), SHORT_LOADS // width

    @cuda.jit(device=True, forceinline=True)
    def place_of(i, extent, outer, inner, first_unit, groups, size, first, limit, pitch, rule, steps):
        """Where copy ``i`` lies in shared memory and in that of the matrix, and whether it lies in the matrix."""
        row, col = divided(i, inner)
        unit, down = divided(row, outer)
        z, group = divided(uint32(first_unit + unit), groups)
        z, _ = divided(z, rule[0])
        _, z = divided(z, rule[1])
        col = uint32(col * uint32(width))
        x, kk = (down, col) if along else (col, down)
        x, kk = uint32(group * extent.value + x), uint32(first + kk)
        source = start_of(z, rule[2], steps[0], steps[1])
        source += uint64(x) * pitch + kk if along else uint64(kk) * pitch + x
        at = uint32(row * uint32(uint32(inner.value * uint32(width)) | uint32(width)) + col)
        return at, source, (x < size) & (kk < limit)

    @cuda.jit(device=True, forceinline=True)
    def copy(
        tiles, to, matrix, units, extent, depth, inner, first_unit, groups, size, first, limit, pitch, rule, steps
    ):
        outer = extent if along else depth
        i, end = uint32(cuda.threadIdx.x), uint32(uint32(units * outer.value) * inner.value)
        while i < end:
            at, source, inside = place_of(
                i, extent, outer, inner, first_unit, groups, size, first, limit, pitch, rule, steps
            )
            copy_elements(tiles, uint64(to + at), matrix, source, inside)
            i = uint32(i + uint32(cuda.blockDim.x))

    @cuda.jit(device=True, forceinline=True)
    def load(
        tiles, to, matrix, units, extent, depth, inner, first_unit, groups, size, first, limit, pitch, rule, steps
    ):
        held, places = cuda.local.array((loads, width), element), cuda.local.array(loads, uint32)
        outer = extent if along else depth
        i, end = uint32(cuda.threadIdx.x), uint32(uint32(units * outer.value) * inner.value)
        while i < end:
            for j in range(loads):
                places[j], source, inside = place_of(
                    min(uint32(i + uint32(j) * uint32(cuda.blockDim.x)), uint32(end - uint32(1))),
                    extent, outer, inner, first_unit, groups, size, first, limit, pitch, rule, steps,
                )  # fmt: skip
                for e in range(width):
                    held[j, e] = element(0)
                if inside:
                    fetch(held, j, matrix, source)
            for j in range(loads):
                if uint32(i + uint32(j) * uint32(cuda.blockDim.x)) < end:
                    put(tiles, uint32(to + places[j]), held, j)
            i = uint32(i + uint32(loads) * uint32(cuda.blockDim.x))

    return load if element.bitwidth == 16 else copy


@functools.cache
def make_fetch(element, wide):
    """Make two device functions: the first loads short elements, one or four, to a row of ``held``; the second stores
    these to shared memory as numbers.
    """
    number = make_number(element)

    @cuda.jit(device=True, forceinline=True)
    def fetch(held, j, matrix, source):
        held[j, 0] = matrix[source]

    @cuda.jit(device=True, forceinline=True)
    def put(tiles, at, held, j):
        tiles[at] = number(held[j, 0])

    @cuda.jit(device=True, forceinline=True)
    def fetch_four(held, j, matrix, source):
        held[j, 0], held[j, 1], held[j, 2], held[j, 3] = load4(matrix, source)

    @cuda.jit(device=True, forceinline=True)
    def put_four(tiles, at, held, j):
        store4(tiles, at, number(held[j, 0]), number(held[j, 1]), number(held[j, 2]), number(held[j, 3]))

    return (fetch_four, put_four) if wide else (fetch, put)


# -- in the registers of a thread ------------------------------------------------------------------


@functools.cache
def make_places(along, wide, count):
    """Make the device function that finds a thread's rows, or columns, in shared memory; returns where the operand ends
    there. They are neighbours if they are read together, and otherwise neighbours of those of the next thread.
    """
    width, together = WIDE if wide else 1, wide and not along

    @cuda.jit(device=True, forceinline=True)
    def places(found, to, unit, lane, lanes, left, extent, depth, units):
        inner, outer = (depth, extent) if along else (extent, depth)
        pitch = uint32(inner.value | uint32(width))
        start = uint32(to + uint32(unit * outer.value) * pitch)
        for i in range(count):
            if together:  # those past the last read the last ones, which begin at a multiple of 16 bytes too
                x = uint32(min(uint32(lane * uint32(count)), uint32(left - uint32(count))) + uint32(i))
            else:
                x = min(uint32(lane + uint32(i) * lanes), uint32(left - uint32(1)))
            found[i] = uint32(start + x * pitch if along else start + x)
        return uint32(to + uint32(units * outer.value) * pitch)

    return places


@functools.cache
def make_multiply(total, along_a, along_b, square):
    """Make the device function by which a thread multiplies its share of the depth."""

    @cuda.jit(device=True, forceinline=True)
    def step(sums, left, right, tiles, from_a, from_b, at_a, at_b):
        for i in range(SQUARE):
            left[i] = tiles[uint64(from_a[i]) + at_a]
        for j in range(square):
            right[j] = tiles[uint64(from_b[j]) + at_b]
        for i in range(SQUARE):
            for j in range(square):
                sums[i, j] += left[i] * right[j]

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, tiles, from_a, from_b, kk, limit, pitch_a, pitch_b):
        left, right = cuda.local.array(SQUARE, total), cuda.local.array(square, total)
        step_a, step_b = uint64(1 if along_a else pitch_a), uint64(1 if along_b else pitch_b)
        at_a, at_b = uint64(kk) * step_a, uint64(kk) * step_b
        while kk + uint32(3) < limit:
            for e in range(4):
                step(sums, left, right, tiles, from_a, from_b, at_a + uint64(e) * step_a, at_b + uint64(e) * step_b)
            at_a, at_b, kk = at_a + uint64(4) * step_a, at_b + uint64(4) * step_b, uint32(kk + uint32(4))
        while kk < limit:
            step(sums, left, right, tiles, from_a, from_b, at_a, at_b)
            at_a, at_b, kk = at_a + step_a, at_b + step_b, uint32(kk + uint32(1))

    return multiply


@functools.cache
def make_read(along, count):
    """Make the device function that reads an operand for four k: an array of them for each row, or column."""

    @cuda.jit(device=True, forceinline=True)
    def read(held, tiles, places, kk, pitch):
        if along:
            for i in range(count):
                w, x, y, z = load4(tiles, uint64(places[i]) + uint64(kk))
                held[i, 0], held[i, 1], held[i, 2], held[i, 3] = w, x, y, z
        else:
            for e in range(4):
                w, x, y, z = load4(tiles, uint64(places[0] + uint32(kk + uint32(e)) * pitch))
                held[0, e], held[1, e], held[2, e], held[3, e] = w, x, y, z

    return read


@functools.cache
def make_multiply_wide(total, along_a, along_b, square):
    """Make the device function that does as `make_multiply`'s for four k at a time."""
    read_a, read_b = make_read(along_a, SQUARE), make_read(along_b, square)

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, tiles, from_a, from_b, kk, limit, pitch_a, pitch_b):
        left, right = cuda.local.array((SQUARE, 4), total), cuda.local.array((square, 4), total)
        while kk < limit:
            read_a(left, tiles, from_a, kk, pitch_a)
            read_b(right, tiles, from_b, kk, pitch_b)
            for e in range(4):
                for i in range(SQUARE):
                    for j in range(square):
                        sums[i, j] += left[i, e] * right[j, e]
            kk = uint32(kk + uint32(4))

    return multiply


# -- from registers to global memory ---------------------------------------------------------------


@functools.cache
def make_gather(square, together_a, together_b):
    """Make the device function by which a thread leaves its sums in shared memory, as they will lie in ``out``."""

    @cuda.jit(device=True, forceinline=True)
    def gather(tiles, at, sums, down, high, right, across, rows, n):
        for i in range(SQUARE):
            row = uint32(down * uint32(SQUARE) + uint32(i)) if together_a else uint32(down + uint32(i) * high)
            for j in range(square):
                col = uint32(right * uint32(square) + uint32(j)) if together_b else uint32(right + uint32(j) * across)
                if row < rows and col < n:
                    tiles[at + row * n + col] = sums[i, j]

    return gather


@functools.cache
def make_store(element, adds):
    """Make the device function by which a block adds up the shares of K, and stores its results."""
    total, number, is_bfloat16 = total_of(element), make_number(element), element == types.uint16

    @cuda.jit(device=True, forceinline=True)
    def store(out, start, tiles, size, shares, room, wide, alpha, beta):
        held = cuda.local.array(LOADS, total)
        i, step = uint32(cuda.threadIdx.x), uint32(cuda.blockDim.x)
        while i < size:
            for j in range(LOADS if adds else 0):  # they overlap; a store between them would hold up the next
                at = uint32(i + uint32(j) * step)
                held[j] = number(out[start + uint64(at)]) if at < size else total(0)
            for j in range(LOADS):
                if i < size:
                    value = tiles[i]
                    for other in range(1, shares):
                        value += tiles[uint32(other) * room + i]
                    value = alpha * value + beta * held[j] if adds else alpha * value
                    out[start + uint64(i)] = bfloat16_of(value) if is_bfloat16 else element(value)
                i = uint32(i + step)

    @cuda.jit(device=True, forceinline=True)
    def store_any(out, start, tiles, size, shares, room, wide, alpha, beta):
        if not wide:
            store(out, start, tiles, size, shares, room, wide, alpha, beta)
            return
        i = uint32(uint32(cuda.threadIdx.x) * uint32(4))
        while i < size:
            w, x, y, z = load4(tiles, i)
            for other in range(1, shares):
                more = load4(tiles, uint32(other) * room + i)
                w, x, y, z = w + more[0], x + more[1], y + more[2], z + more[3]
            store4(out, start + uint64(i), alpha * w, alpha * x, alpha * y, alpha * z)
            i = uint32(i + uint32(cuda.blockDim.x * 4))

    return store if adds or element.bitwidth != 32 else store_any
