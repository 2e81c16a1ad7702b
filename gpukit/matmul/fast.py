"""The fast product of float32 matrices: a tile of ``out`` for a block, for a warp, for a thread.

A block goes through K in steps of ``depth``: asynchronous copies bring the next parts of ``a`` and ``b`` to shared
memory while its threads multiply the present ones. A thread reads the values for the next k to one set of registers
while it multiplies those in another.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from gpukit.backend import cuda, float32, int64, types, uint32, uint64
from gpukit.divisors import make_divisor
from gpukit.intrinsics import commit_copies, copy_async, copy_async2, copy_async4, load4, store4, wait_copies
from gpukit.intrinsics.bfloat16 import bfloat16_of, float_of
from gpukit.matmul.operands import block_of, make_starts, start_of, starts_of
from warpstep.integers import ceil_div

__all__ = ["LAYOUTS", "PAD", "Tile", "choose_sum", "fast", "scale", "sizes_of", "sum_parts", "turn", "widen"]

#: The pad of a row of shared memory that holds a column of a: 8 lanes that copy neighbours of a row of a, for 4 rows,
#: write to 32 different banks, and four elements of the next row still begin at a multiple of 16 bytes. Without it
#: 4096 x 4096 x 4096 takes 6 % longer on an H200, where all gains named here were measured.
PAD = 4
#: Bytes of a sector, which lanes copy that take neighbours of a row of a; and of the widest copy.
SECTOR, WIDEST = 32, 16
#: How ``a`` and ``b`` lie in memory, as in BLAS: row by row (N), or transposed, column by column (T).
LAYOUTS = ("NN", "NT", "TN", "TT")


class Tile(NamedTuple):
    """The shape of a block's work; sizes in elements, except for the last three.

    Attributes
    ----------
    rows, columns : int
        Of ``out`` that a block computes.
    depth : int
        Columns of ``a``, and rows of ``b``, in shared memory for one step; a multiple of 8.
    thread_rows, thread_columns : int
        Of ``out`` that a thread computes, in squares of 4 x 4.
    lane_rows : int
        Rows that the 32 lanes of a warp stand in.
    stages : int
        Steps for which there is shared memory: one is multiplied while the others are copied. 3 or more.
    slices : int
        Groups of warps that divide the depth of each step, so that a small tile keeps a multiprocessor busy.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    lane_rows: int
    stages: int
    slices: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.columns // (self.thread_rows * self.thread_columns) * self.slices

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, for ``a`` and ``b`` that lie row by row."""
        return 4 * self.stages * self.depth * (self.rows + PAD + self.columns)


@functools.cache
def fast(tile, wide_b, wide_out, scales=False, adds=False, layout="NN", wide_a=False, gathers=False):
    """Make the kernel of out = alpha a b + beta out, for matrices one after the other in flat arrays.

    Blocks along x compute the tiles of ``out``, row by row. Blocks along y take parts of K, each with a result of its
    own, which `sum_parts` adds up. Blocks along z take the matrices.

    Parameters
    ----------
    tile : Tile
    wide_b, wide_out : bool
        Whether ``b`` is copied, and ``out`` stored, by four elements: the rows must begin at multiples of 16 bytes. An
        operand whose neighbours in memory are along K is copied one by one.
    scales, adds : bool
        Whether to apply alpha and beta. If False, the argument is ignored; without beta ``out`` is not read.
    layout : str
        One of ``LAYOUTS``.
    wide_a : bool
        As ``wide_b``, for an ``a`` that lies column by column.
    gathers : bool
        Whether a warp gathers its rows in shared memory to store neighbours together, where ``out`` is not wide.

    Returns
    -------
    kernel
        ``kernel[(tiles, parts, matrices), tile.threads](a, b, out, sizes, which, steps, alpha, beta)``. ``sizes`` is
        `sizes_of` the tile; ``which`` and ``steps`` are `which_of` and `steps_of` the operands, of
        `gpukit.matmul.operands`.
    """
    rows, columns, depth, thread_rows, thread_columns, lane_rows, stages, slices = tile
    lane_columns, slice_threads, slice_depth = 32 // lane_rows, tile.threads // slices, depth // slices
    warp_rows, warp_columns = lane_rows * thread_rows, lane_columns * thread_columns
    warps_across = columns // warp_columns
    # Shared memory: for each stage the part of a, a column in a row, then that of b.
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    row_a, row_b = pitches(tile, layout)
    stage_a, stage_size = depth * row_a, depth * (row_a + row_b)
    all_tiles, last_stage = stages * stage_size, (stages - 1) * stage_size
    pending, ahead, last = stages - 2, (stages - 1) * depth, (slice_depth - 1) % 2
    # What comes before the loop decides how the compiler orders the loads of the largest tile in it. With a along K it
    # takes 2 % longer unless they are held back as in `make_steps`, with a across K 1 % unless the starts are divided.
    is_largest = thread_columns == 16
    holds_loads, divides = is_largest and along_a, is_largest and not along_a
    find_starts = make_starts(divided_slowly)[1] if divides else starts_of
    copy_tiles, join = make_copy_tiles(tile, wide_b, layout, wide_a), make_join(tile)
    combine = make_combine(tile, wide_out, adds)
    store = make_store_rows(tile) if gathers else make_store(tile, wide_out)
    start_a, start_b = make_start(rows, along_a, wide_a), make_start(columns, along_b, wide_b)
    clear, read, multiply = make_clear(tile), make_read(tile), make_multiply(tile)
    steps = make_steps(tile, read, multiply, slice_depth - 1, layout, is_largest)

    @cuda.jit
    def fast(a, b, out, sizes, which, matrix_steps, alpha, beta):
        tiles = cuda.shared.array(all_tiles, float32, alignment=16)
        sums = cuda.local.array((thread_rows, thread_columns), float32)
        left = cuda.local.array((2, thread_rows), float32)
        right = cuda.local.array((2, thread_columns), float32)
        m, _, _, pitch_a, pitch_b, pitch_out, _, _ = sizes
        row, col, first, limit, rows_left, columns_left, z = block_of(sizes, which, rows, columns)
        start_of_a, start_of_b = find_starts(z, which, matrix_steps)
        # The thread: a slice of the depth, a place in its warp, which has a place in the tile.
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid % slice_threads // 32, tid % 32
        my_row = uint32(warp // warps_across * warp_rows + lane // lane_columns * 4)
        my_col = uint32(warp % warps_across * warp_columns + lane % lane_columns * 4)
        my_slice = tid // slice_threads * slice_depth
        # Where its copies begin.
        from_a = start_of_a + start_a(row, first, pitch_a)
        from_b = start_of_b + start_b(col, first, pitch_b)
        step_a = uint64(0 if along_a else depth) * pitch_a
        step_b = uint64(0 if along_b else depth) * pitch_b
        clear(sums, left, right, last)
        for stage in range(stages - 1):
            to = uint32(stage * stage_size)
            copy_tiles(tiles, to, a, b, from_a, from_b, first, limit, rows_left, columns_left, pitch_a, pitch_b)
            first, from_a, from_b = uint32(first + depth), from_a + step_a, from_b + step_b
        stage, free, end = uint32(0), uint32(last_stage), uint32(limit + ahead)
        while first < end:
            wait_copies(pending)
            cuda.syncthreads()
            at_a = uint64(stage) + uint64(my_slice * row_a + my_row)
            at_b = uint64(stage) + uint64(stage_a + my_slice * row_b + my_col)
            read(tiles, at_a, at_b, left, right, uint32(0))
            if holds_loads:
                cuda.syncwarp()
            # The last products of the step before overlap with the first loads. In their own step, before the barrier,
            # they cost 4 % more.
            multiply(sums, left, right, uint32(last))
            if holds_loads:
                cuda.syncwarp()
            copy_tiles(tiles, free, a, b, from_a, from_b, first, limit, rows_left, columns_left, pitch_a, pitch_b)
            steps(tiles, at_a, at_b, sums, left, right, uint32(1))
            first, from_a, from_b = uint32(first + depth), from_a + step_a, from_b + step_b
            free = stage
            stage = uint32(stage + stage_size if stage < last_stage else 0)
        multiply(sums, left, right, uint32(last))
        if join(tiles, sums):
            part = uint64(z) * uint64(cuda.gridDim.y) + uint64(cuda.blockIdx.y)
            start = (part * m + row + my_row) * pitch_out + col + my_col
            left_down, left_across = int64(rows_left) - my_row, int64(columns_left) - my_col
            if scales:
                combine(out, start, sums, left_down, left_across, pitch_out, alpha, beta)
            store(out, start, sums, left_down, left_across, pitch_out, tiles)

    return fast


def sizes_of(tile: Any, m: int, n: int, k: int, pitches: tuple[int, int, int], parts: int = 1) -> tuple:
    """The sizes that a kernel with tiles needs: m, n, k, elements from row to row of ``a``, of ``b``, of ``out`` (from
    column to column if they lie so), tiles beside each other, K of a part. A GPU has no instruction to divide by
    numbers that are not known before: with five divisions a small product takes longer.
    """
    part = ceil_div(ceil_div(k, tile.depth), parts) * tile.depth
    return *map(np.uint32, (m, n, k, *pitches)), make_divisor(ceil_div(n, tile.columns)), np.uint32(part)


@cuda.jit(device=True, forceinline=True)
def divided_slowly(n, by):
    """What `divided` gives, by the instructions of a division."""
    return uint32(n // by.value), uint32(n % by.value)


# -- from global to shared memory ------------------------------------------------------------------


def pitches(tile: Tile, layout: str) -> tuple[int, int]:
    """Elements of a row of shared memory for ``a``, and for ``b``: with a pad where it is written down its columns."""
    return tile.rows + PAD * (layout[0] == "N"), tile.columns + PAD * (layout[1] == "T")


@functools.cache
def make_start(extent, along, wide, itemsize=4):
    """Make the device function that finds where the copies of a thread begin in a matrix."""
    width, lanes = WIDEST // itemsize if wide else 1, SECTOR // itemsize

    @cuda.jit(device=True, forceinline=True)
    def start(place, first, pitch):
        tid = uint32(cuda.threadIdx.x)
        if along:  # the copies add ``first``
            return (uint64(place) + uint64(tid // lanes)) * pitch + uint64(tid % lanes)
        return (uint64(first) + uint64(tid * width // extent)) * pitch + place + uint64(tid * width % extent)

    return start


@functools.cache
def make_copy_tiles(tile, wide_b, layout="NN", wide_a=False):
    """Make the device function that begins the copies of one step, as one group."""
    row_a, row_b = pitches(tile, layout)
    stage_a = tile.depth * row_a
    copy_a, copy_b = (
        make_copy_along(extent, tile, pitch) if along else make_copy_across(extent, tile, pitch, wide)
        for extent, pitch, along, wide in (
            (tile.rows, row_a, layout[0] == "N", wide_a),
            (tile.columns, row_b, layout[1] == "T", wide_b),
        )
    )

    @cuda.jit(device=True, forceinline=True)
    def copy_tiles(tiles, to, a, b, from_a, from_b, first, limit, rows_left, columns_left, pitch_a, pitch_b):
        """Copy columns of a, and rows of b, from ``first`` on to the stage that begins at ``to``; zeros for what lies
        outside of the matrices.
        """
        copy_a(tiles, uint64(to), a, from_a, first, limit, rows_left, pitch_a)
        copy_b(tiles, uint64(to) + uint64(stage_a), b, from_b, first, limit, columns_left, pitch_b)
        commit_copies()

    return copy_tiles


@functools.cache
def make_copy_along(extent, tile, row, itemsize=4):
    """Make the device function that copies a part of a matrix whose neighbours in memory are along K.

    Elements are copied one by one, so that they arrive transposed: the lanes of a sector take neighbours.
    """
    depth, lanes = tile.depth, SECTOR // itemsize
    at_once = tile.threads // lanes
    whole = extent % at_once == 0

    @cuda.jit(device=True, forceinline=True)
    def copy_along(tiles, to, matrix, start, first, limit, left, pitch):
        tid = uint32(cuda.threadIdx.x)
        r, k = tid // uint32(lanes), tid % uint32(lanes)
        at = to + uint64(k * uint32(row) + r)
        for j in range(0, depth, lanes):
            for i in range(0, extent, at_once):
                if whole or r + i < extent:
                    inside = (uint32(first + k + j) < limit) & (uint32(r + i) < left)
                    source = start + first + uint64(pitch) * uint64(i) + uint64(j)
                    copy_async(tiles, at + uint64(j * row + i), matrix, source, inside)

    return copy_along


@functools.cache
def make_copy_across(extent, tile, row, wide, itemsize=4):
    """Make the device function that copies a part of a matrix whose neighbours in memory are across K.

    16 bytes are copied at a time where the rows begin at multiples of them.
    """
    depth, width, stage = tile.depth, WIDEST // itemsize if wide else 1, tile.depth * extent
    copy = {1: copy_async, 2: copy_async2, 4: copy_async4}[width]
    at_once, per_row = tile.threads * width, extent // width
    all_copy = at_once % extent == 0 or extent % at_once == 0
    at_once = at_once if all_copy else at_once // extent * extent
    whole = stage % at_once == 0

    @cuda.jit(device=True, forceinline=True)
    def copy_across(tiles, to, matrix, start, first, limit, left, pitch):
        tid = uint32(cuda.threadIdx.x)
        k, c = tid // uint32(per_row), tid % uint32(per_row) * uint32(width)
        at = to + uint64(k * uint32(row) + c)
        for i in range(0, stage, at_once):
            down, across = i // extent, i % extent
            if (whole or k + down < depth) and (all_copy or tid < uint32(at_once // width)):
                inside = (uint32(first + k + down) < limit) & (uint32(c + across) < left)
                source = start + uint64(pitch) * uint64(down) + uint64(across)
                copy(tiles, at + uint64(down * row + across), matrix, source, inside)

    return copy_across


# -- in the registers of a thread ------------------------------------------------------------------


@functools.cache
def make_clear(tile):
    """Make the device function that sets the sums, and one set of values, to zero."""
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns

    @cuda.jit(device=True, forceinline=True)
    def clear(sums, left, right, which):
        for i in range(thread_rows):
            left[which, i] = float32(0)
            for j in range(thread_columns):
                sums[i, j] = float32(0)
        for j in range(thread_columns):
            right[which, j] = float32(0)

    return clear


@functools.cache
def make_read(tile):
    """Make the device function that reads a thread's rows of a, and its columns of b, for one k."""
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    row_step, column_step = 4 * tile.lane_rows, 128 // tile.lane_rows

    @cuda.jit(device=True, forceinline=True)
    def read(tiles, at_a, at_b, left, right, which):
        """Read squares of 4 x 4: one for each lane of the warp, then the next ones."""
        for i in range(0, thread_rows, 4):
            w, x, y, z = load4(tiles, at_a + uint64(i // 4 * row_step))
            left[which, i], left[which, i + 1], left[which, i + 2], left[which, i + 3] = w, x, y, z
        for j in range(0, thread_columns, 4):
            w, x, y, z = load4(tiles, at_b + uint64(j // 4 * column_step))
            right[which, j], right[which, j + 1], right[which, j + 2], right[which, j + 3] = w, x, y, z

    return read


@functools.cache
def make_multiply(tile):
    """Make the device function that adds all products for one k."""
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, left, right, which):
        """Multiply up one column and down the next: neighbouring products share a value, which is not read from the
        registers again. Always down takes 3 % longer, along the rows 9 %.
        """
        for j in range(thread_columns):
            for i in range(thread_rows):
                turn = i if j % 2 == 1 else thread_rows - 1 - i
                sums[turn, j] += left[which, turn] * right[which, j]

    return multiply


@functools.cache
def make_steps(tile, read, multiply, count, layout="NN", holds_loads=False):
    """Make the device function that reads for k while it multiplies what was read for k - 1, for ``count`` k from the
    given one on.

    The compiler does not unroll a loop of this size, so a function calls that of half the steps twice.
    """
    (row_a, row_b), half = pitches(tile, layout), count // 2
    if count > 1:
        first = make_steps(tile, read, multiply, half, layout, holds_loads)
        second = make_steps(tile, read, multiply, count - half, layout, holds_loads)

        @cuda.jit(device=True, forceinline=True)
        def steps(tiles, at_a, at_b, sums, left, right, k):
            first(tiles, at_a, at_b, sums, left, right, k)
            second(tiles, at_a, at_b, sums, left, right, uint32(k + uint32(half)))

        return steps

    @cuda.jit(device=True, forceinline=True)
    def step(tiles, at_a, at_b, sums, left, right, k):
        now, then = uint32(k % uint32(2)), uint32((k + uint32(1)) % uint32(2))
        read(tiles, at_a + uint64(k * uint32(row_a)), at_b + uint64(k * uint32(row_b)), left, right, now)
        if holds_loads:
            # Loads are not moved across it. The compiler would move them down, to where their values are used, and
            # some would arrive too late: 2.7 % with the largest tile.
            cuda.syncwarp()
        multiply(sums, left, right, then)

    return step


@functools.cache
def make_join(tile):
    """Make the device function that adds up the sums of the slices."""
    slices, rows, columns, slice_threads = tile.slices, tile.rows, tile.columns, tile.threads // tile.slices
    groups = tile.thread_columns // 4
    thread_rows, slice_size, group_size = tile.thread_rows, rows * columns, 4 * slice_threads

    @cuda.jit(device=True, forceinline=True)
    def join(tiles, sums):
        """Add up the sums of all slices in the threads of the first; True for these threads."""
        if slices == 1:
            return True
        wait_copies(0)
        cuda.syncthreads()
        mine, at = cuda.threadIdx.x // slice_threads, cuda.threadIdx.x % slice_threads * 4
        if mine > 0:
            for i in range(thread_rows):
                for g in range(groups):
                    to = uint64((mine - 1) * slice_size + (i * groups + g) * group_size + at)
                    store4(tiles, to, sums[i, 4 * g], sums[i, 4 * g + 1], sums[i, 4 * g + 2], sums[i, 4 * g + 3])
        cuda.syncthreads()
        if mine > 0:
            return False
        for other in range(slices - 1):
            for i in range(thread_rows):
                for g in range(groups):
                    w, x, y, z = load4(tiles, uint64(other * slice_size + (i * groups + g) * group_size + at))
                    sums[i, 4 * g] += w
                    sums[i, 4 * g + 1] += x
                    sums[i, 4 * g + 2] += y
                    sums[i, 4 * g + 3] += z
        return True

    return join


@functools.cache
def make_combine(tile, wide, adds):
    """Make the device function that turns a thread's sums into alpha sums + beta out."""
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    row_step, column_step = 4 * tile.lane_rows, 128 // tile.lane_rows

    @cuda.jit(device=True, forceinline=True)
    def load_some(out, at, across, last):
        if wide:
            return load4(out, uint64(at + across))
        x, y, z = min(across + 1, last), min(across + 2, last), min(across + 3, last)
        return out[at + across], out[at + x], out[at + y], out[at + z]

    @cuda.jit(device=True, forceinline=True)
    def combine(out, start, sums, rows_left, columns_left, pitch, alpha, beta):
        for i in range(thread_rows):
            for j in range(thread_columns):
                sums[i, j] *= alpha
        # No branch and no store is between the loads, so they overlap; what lies outside is read inside.
        if adds and rows_left > 0 and columns_left > 0:
            for i in range(thread_rows):
                at = int64(start) + min(int64(i // 4 * row_step + i % 4), rows_left - 1) * int64(pitch)
                for j in range(0, thread_columns, 4):
                    last = columns_left - (4 if wide else 1)
                    old = load_some(out, at, min(int64(j // 4 * column_step), last), last)
                    sums[i, j] += beta * old[0]
                    sums[i, j + 1] += beta * old[1]
                    sums[i, j + 2] += beta * old[2]
                    sums[i, j + 3] += beta * old[3]

    return combine


@functools.cache
def make_store(tile, wide):
    """Make the device function that stores a thread's sums."""
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    row_step, column_step = 4 * tile.lane_rows, 128 // tile.lane_rows

    @cuda.jit(device=True, forceinline=True)
    def store_four(out, at, columns_left, w, x, y, z):
        if wide:
            store4(out, at, w, x, y, z)
        else:
            out[at] = w
            if columns_left > 1:
                out[at + uint64(1)] = x
            if columns_left > 2:
                out[at + uint64(2)] = y
            if columns_left > 3:
                out[at + uint64(3)] = z

    @cuda.jit(device=True, forceinline=True)
    def store(out, start, sums, rows_left, columns_left, pitch, tiles):
        """Store a thread's sums from element ``start`` on, as far as there are rows and columns."""
        for i in range(thread_rows):
            down = i // 4 * row_step + i % 4
            for j in range(0, thread_columns, 4):
                across = j // 4 * column_step
                if down < rows_left and across < columns_left:
                    at, left = uint64(start + uint64(down) * pitch + across), columns_left - across
                    store_four(out, at, left, sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])

    return store


@functools.cache
def make_store_rows(tile):
    """Make the device function by which a warp gathers each of its rows in shared memory, and stores it whole."""
    thread_rows, thread_columns, lane_rows, slices = tile.thread_rows, tile.thread_columns, tile.lane_rows, tile.slices
    row_step, column_step, lane_columns = 4 * lane_rows, 128 // lane_rows, 32 // lane_rows
    across = lane_columns * thread_columns  # columns of a warp
    lanes, held = min(across, 32), lane_rows * across
    kept = (slices - 1) * tile.rows * tile.columns  # what `join` reads

    @cuda.jit(device=True, forceinline=True)
    def store(out, start, sums, rows_left, columns_left, pitch, tiles):
        if slices == 1:  # otherwise `join` has waited
            wait_copies(0)
            cuda.syncthreads()
        warp, lane = uint32(cuda.threadIdx.x) // uint32(32), uint32(cuda.threadIdx.x) % uint32(32)
        down, right = lane // uint32(lane_columns), lane % uint32(lane_columns)
        # From the warp's first row and column on.
        my_row, my_col, first = down * uint32(4), right * uint32(4), uint32(kept) + warp * uint32(held)
        start -= uint64(my_row) * pitch + uint64(my_col)
        rows_left, columns_left = rows_left + int64(my_row), columns_left + int64(my_col)
        r, c = lane // uint32(lanes), lane % uint32(lanes)
        for i in range(thread_rows):
            cuda.syncwarp()
            for j in range(0, thread_columns, 4):
                at = uint64(first + down * uint32(across) + uint32(j // 4 * column_step) + my_col)
                store4(tiles, at, sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])
            cuda.syncwarp()
            for q in range(0, lane_rows, 32 // lanes):
                row = uint32(uint32(i // 4 * row_step + i % 4 + 4 * q) + r * uint32(4))
                for col in range(0, across, 32):
                    if row < rows_left and uint32(c + uint32(col)) < columns_left:
                        value = tiles[uint64(first + (uint32(q) + r) * uint32(across) + c + uint32(col))]
                        out[start + uint64(row) * pitch + uint64(c + uint32(col))] = value

    return store


# -- parts of K, rows of any length, alpha and beta ------------------------------------------------

#: Threads of a block of `sum_parts`.
SUM_THREADS = 256
#: Groups of them that divide the parts: (how many, fewest parts, most elements of the result).
GROUPS = (32, 128, 1 << 15), (8, 12, 1 << 17)


def choose_sum(
    count: int, shape: tuple[int, int, int], itemsize: int, adds: bool = False, number=float32, element=None
) -> tuple[Any, int]:
    """The `sum_parts` for ``count`` parts of (matrices, m, n) elements of so many bytes, and its blocks along x."""
    batch, m, n = shape
    width = 4 if n % 4 == 0 and itemsize == 4 else 1
    fitting = (groups for groups, fewest, most in GROUPS if count >= fewest and batch * m * n <= most)
    groups = next(fitting, 1)
    return sum_parts(width, groups, adds, number, element), ceil_div(m * n, SUM_THREADS // groups * width)


@functools.cache
def sum_parts(width, groups, adds, number, element):
    """Make the kernel of out = alpha times the sum of the parts of K + beta out, always in the same order.

    ``parts`` holds ``count`` results of m * n elements for each matrix, of type ``number``. A thread adds up ``width``
    neighbours, 4 or 1 (n is a multiple of it), of every part, or of every 8th or 32nd with as many ``groups``. Blocks
    along y take the matrices. ``element`` is the type of ``out`` if that is another one; uint16 stands for bfloat16.
    """
    lanes = SUM_THREADS // groups
    narrow = element == types.uint16

    @cuda.jit(device=True, forceinline=True)
    def added(out, to, total, alpha, beta):
        if not adds:
            return number(alpha * total)
        return number(alpha * total + beta * (float_of(out[to]) if narrow else number(out[to])))

    @cuda.jit(device=True, forceinline=True)
    def store_sum(out, to, total):
        out[to] = bfloat16_of(total) if narrow else total

    @cuda.jit
    def sum_parts(parts, out, count, m, n, pitch, alpha, beta):
        sums = cuda.shared.array((groups, lanes, width), number, alignment=16)
        lane, group = uint32(cuda.threadIdx.x % lanes), uint32(cuda.threadIdx.x // lanes)
        at, size = uint32((cuda.blockIdx.x * lanes + lane) * width), uint64(m) * uint64(n)
        w, x, y, z = number(0), number(0), number(0), number(0)
        if at < size:
            start = uint64(cuda.blockIdx.y) * count * size + at
            for part in range(group, count, groups):
                if width == 4:
                    more = load4(parts, start + uint64(part) * size)
                    w, x, y, z = w + more[0], x + more[1], y + more[2], z + more[3]
                else:
                    w += parts[start + uint64(part) * size]
        if groups > 1:
            sums[group, lane, 0] = w
            if width == 4:
                sums[group, lane, 1], sums[group, lane, 2], sums[group, lane, 3] = x, y, z
            cuda.syncthreads()
            for other in range(1, groups if group == 0 else 1):
                w += sums[other, lane, 0]
                if width == 4:
                    x, y, z = x + sums[other, lane, 1], y + sums[other, lane, 2], z + sums[other, lane, 3]
        if group == 0 and at < size:
            to = (uint64(cuda.blockIdx.y) * m + uint64(at // n)) * pitch + uint64(at % n)
            second, third, fourth = to + uint64(1), to + uint64(2), to + uint64(3)
            w = added(out, to, w, alpha, beta)
            if width == 4:  # all is loaded before the first store, so that the loads overlap
                x, y = added(out, second, x, alpha, beta), added(out, third, y, alpha, beta)
                z = added(out, fourth, z, alpha, beta)
                store_sum(out, second, x)
                store_sum(out, third, y)
                store_sum(out, fourth, z)
            store_sum(out, to, w)

    return sum_parts


@cuda.jit
def widen(b, wide, k, group, steps, columns, pitch_b, pitch):
    """Copy matrices of ``k`` rows to rows of ``pitch`` elements, each of which begins at a multiple of 16 bytes.

    Its matrices begin where `start_of` finds them, with ``steps`` for its step and jump. In ``b`` there are ``pitch_b``
    elements from row to row, of which ``columns`` are used.
    """
    col, row = uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x), uint64(cuda.blockIdx.y)
    while row * pitch < wide.size and col < pitch:
        source = start_of(uint32(row // uint64(k)), group, steps[0], steps[1]) + row % uint64(k) * pitch_b + col
        wide[row * pitch + col] = b[source] if col < columns else float32(0)
        row += uint64(cuda.gridDim.y)


#: Rows and columns of a block of `turn`, and rows of its threads.
TURN_TILE, TURN_ROWS = 32, 8
TURN_SHAPE = TURN_TILE, TURN_TILE + 1


@cuda.jit
def turn(a, turned, rows, columns, group, steps, pitch_a, pitch):
    """Copy matrices of ``rows`` x ``columns`` so that the elements of a column follow one another.

    Those of ``a`` begin as for `widen`, and have ``pitch_a`` elements from row to row; ``turned`` has ``pitch`` from
    column to column. Blocks along z take the matrices.
    """
    tile = cuda.shared.array(TURN_SHAPE, float32)
    x, y, z = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint64(cuda.blockIdx.z)
    start = start_of(uint32(z), group, steps[0], steps[1])
    row, col = uint32(cuda.blockIdx.y * TURN_TILE), uint32(cuda.blockIdx.x * TURN_TILE)
    for i in range(0, TURN_TILE, TURN_ROWS):
        r, c = uint32(row + y + uint32(i)), uint32(col + x)
        if r < rows and c < columns:
            tile[uint32(y + uint32(i)), x] = a[start + uint64(r) * pitch_a + c]
    cuda.syncthreads()
    for i in range(0, TURN_TILE, TURN_ROWS):
        r, c = uint32(row + x), uint32(col + y + uint32(i))
        if r < rows and c < columns:
            turned[(z * columns + c) * pitch + r] = tile[x, uint32(y + uint32(i))]


@functools.cache
def scale(adds):
    """Make the kernel of out = alpha product + beta out, for flat arrays of any float dtype."""

    @cuda.jit
    def scale(product, out, alpha, beta):
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            out[i] = alpha * product[i] + beta * out[i] if adds else alpha * product[i]

    return scale
