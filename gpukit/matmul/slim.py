"""A product with a K of a few: the result is large beside what it takes to compute it, and is written row by row."""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float32, int32, types, uint32, uint64
from gpukit.divisors import divided
from gpukit.intrinsics import commit_copies, copy_async, load4, wait_copies
from gpukit.intrinsics.bfloat16 import bfloat16_of
from gpukit.matmul.operands import starts_of
from gpukit.matmul.vector import make_number, total_of
from warpstep.integers import next_power_of_two
from warpstep.limits import WARP

__all__ = ["THREADS", "SlimTile", "choose_slim", "slim"]

#: The largest K, that of tiles as wide as a few rows, and of up to 32 long rows. The threads of a block.
MAX_K, MAX_WIDE_K, MAX_FEW_K, THREADS = 20, 16, 24, 256
#: That of wide rows of float64 that begin at multiples of 32 bytes, a sector.
MAX_DOUBLE_K = 8
#: Elements of a wide load; lanes that copy neighbours along K.
FOUR, SECTOR = 4, 8
#: The fewest columns of a result, by the bytes of an element. With 256 or more of them, one of up to 8 rows has tiles
#: as wide as they are.
MIN_COLUMNS, MIN_LONG, FEW_ROWS = {2: 64, 4: 33, 8: 64}, 256, 8
#: Fewest results of many rows of a few columns, and the most columns that others take.
MIN_MANY, SHORT_ROW = 1 << 18, 16
#: Wide rows of float32 have fewer columns than a block.
MAX_WIDE_COLUMNS = 64
#: Up to so many columns of all matrices a block has half as many, so that there are more.
MAX_NARROW = 1 << 16
#: Fewest results: of any elements, of short ones, of float32 for larger tiles, of float64 in wide rows. Loads of short
#: ones that a thread has under way.
MIN_RESULTS, MIN_SHORT, MIN_LARGE, MIN_DOUBLE, LOADS = 1 << 11, 1 << 20, 3 << 18, 1 << 19, 8


class SlimTile(NamedTuple):
    """The shape of a block's work.

    A warp stores whole rows, which begin anywhere; the tiles of the large products store four elements to a thread, one
    by one where rows are not aligned.

    Attributes
    ----------
    warp_rows : int
        Rows of a warp, all of them in each of its threads.
    lane_columns : int
        Columns of a thread, each 32 from the next.
    warps_down : int
        Warps below each other; the others stand beside them.
    depth : int
        The largest K.
    """

    warp_rows: int
    lane_columns: int
    warps_down: int
    depth: int

    @property
    def rows(self) -> int:
        """Of the result that a block computes."""
        return self.warp_rows * self.warps_down

    @property
    def columns(self) -> int:
        """Of the result that a block computes."""
        return WARP * self.lane_columns * (THREADS // WARP // self.warps_down)


def choose_slim(m: int, n: int, k: int, batch: int, itemsize: int, wide: bool) -> SlimTile | None:
    """Choose a tile; None where another kernel is faster: with a larger K, and with ``wide`` rows, which begin at
    multiples of 16 bytes, unless there are only a few, or a few columns.
    """
    is_short = itemsize == 2
    if not is_short and 0 < k <= MAX_WIDE_K and SHORT_ROW < n < MIN_COLUMNS[itemsize]:  # many short rows
        tile = SlimTile(16, 1, 8, MAX_WIDE_K) if n <= WARP else SlimTile(8, 2, 8, MAX_WIDE_K)
        return tile if m >= tile.rows and m * n * batch >= MIN_MANY else None
    if itemsize == 4 and MAX_K < k <= MAX_FEW_K and m <= WARP and n >= MIN_LONG and not wide:
        return SlimTile(8, 4, 4, MAX_FEW_K) if m * n * batch >= MIN_LARGE else None
    if k == 0 or k > MAX_K or n < MIN_COLUMNS[itemsize] or m * n * batch < (MIN_SHORT if is_short else MIN_RESULTS):
        return None
    if m <= FEW_ROWS and n >= MIN_LONG and k <= MAX_WIDE_K:
        is_narrow = itemsize == 8 or n * batch <= MAX_NARROW
        return SlimTile(next_power_of_two(m), 1 if is_narrow else 2, 1, MAX_WIDE_K)
    if is_short or wide and not _takes_wide(m, n, k, batch, itemsize):
        return None
    depth = MAX_WIDE_K if k <= MAX_WIDE_K else MAX_K
    if itemsize == 8:
        return SlimTile(8, 2, 4 if m <= WARP else 8, depth)
    if m * n * batch < MIN_LARGE:
        return SlimTile(8, 2, 8, depth)
    return SlimTile(8, 4, 8, depth) if (n - 1) % 128 >= 64 else SlimTile(16, 2, 8, depth)


def _takes_wide(m, n, k, batch, itemsize):
    """Whether wide rows are written by `slim` too: a few columns of float32, and a small K in float64. There other
    tiles store parts of sectors where rows do not begin at multiples of one.
    """
    if itemsize == 4:
        return n < MAX_WIDE_COLUMNS and m * n * batch >= MIN_LARGE
    return m * n * batch >= MIN_DOUBLE and k <= (MAX_WIDE_K if n % FOUR else MAX_DOUBLE_K)


@functools.cache
def slim(element, tile, layout, adds):
    """Make the kernel of out = alpha a b + beta out for a K of at most ``tile.depth``, with the arguments of `fast`.

    Blocks along x compute the tiles of ``out``, row by row, those along z the matrices. Without ``adds`` beta is
    ignored, and ``out`` is not read. Elements of 2 bytes, uint16 for bfloat16, are added up in float32.
    """
    warp_rows, lane_columns, warps_down, depth = tile
    rows, columns, warp_columns = tile.rows, tile.columns, WARP * tile.lane_columns
    total, number, is_bfloat16 = total_of(element), make_number(element), element == types.uint16
    # Rows of shared memory are longer, so that a column of them lies in more banks.
    row_a, row_b = rows + FOUR, columns + 1
    read_rows = make_read_rows(warp_rows, total)
    make = make_load if element.bitwidth == 16 else make_copy
    copy_a, copy_b = make(element, layout[0] == "N", rows), make(element, layout[1] == "T", columns)

    @cuda.jit
    def slim(a, b, out, sizes, which, matrix_steps, alpha, beta):
        left = cuda.shared.array((depth, row_a), total, alignment=16)
        right = cuda.shared.array((depth, row_b), total)
        factors = cuda.local.array(warp_rows, total)
        sums = cuda.local.array((warp_rows, lane_columns), total)
        held = cuda.local.array(lane_columns, total)
        m, n, k, pitch_a, pitch_b, pitch_out, across, _ = sizes
        row, col = divided(uint32(cuda.blockIdx.x), across)
        row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
        z = uint32(which[0] + uint32(cuda.blockIdx.z))
        from_a, from_b = starts_of(z, which, matrix_steps)
        copy_a(left, a, from_a, row, uint32(m - row), k, pitch_a)
        copy_b(right, b, from_b, col, uint32(n - col), k, pitch_b)
        commit_copies()
        for i in range(warp_rows):
            for j in range(lane_columns):
                sums[i, j] = total(0)
        warp, lane = uint32(cuda.threadIdx.x) // uint32(32), uint32(cuda.threadIdx.x) % uint32(32)
        my_row = warp % uint32(warps_down) * uint32(warp_rows)
        my_col = warp // uint32(warps_down) * uint32(warp_columns) + lane
        wait_copies(0)
        cuda.syncthreads()
        kk = uint32(0)
        while kk < k:
            for j in range(lane_columns):
                held[j] = right[kk, my_col + uint32(32 * j)]
            read_rows(factors, left, kk, my_row)
            for i in range(warp_rows):
                for j in range(lane_columns):
                    sums[i, j] += factors[i] * held[j]
            kk = uint32(kk + uint32(1))
        at = (uint64(z) * m + uint64(row + my_row)) * pitch_out + uint64(col + my_col)
        rows_left, columns_left = int32(m - row) - int32(my_row), int32(n - col) - int32(my_col)
        if adds and rows_left > 0 and columns_left > 0:
            # No branch and no store is between the loads, so they overlap; what lies outside is read inside.
            for i in range(warp_rows):
                down = at + uint64(min(i, rows_left - 1)) * uint64(pitch_out)
                for j in range(lane_columns):
                    old = number(out[down + uint64(min(32 * j, (columns_left - 1) // 32 * 32))])
                    sums[i, j] = alpha * sums[i, j] + beta * old
        for i in range(warp_rows):
            if i < rows_left:
                for j in range(lane_columns):
                    if 32 * j < columns_left:
                        value = sums[i, j] if adds else alpha * sums[i, j]
                        out[at + uint64(32 * j)] = bfloat16_of(value) if is_bfloat16 else element(value)
            at += uint64(pitch_out)

    return slim


@functools.cache
def make_read_rows(count, total):
    """Make the device function that reads so many rows of a warp, for one k."""

    @cuda.jit(device=True, forceinline=True)
    def read_one_by_one(held, left, kk, row):
        for i in range(count):
            held[i] = left[kk, row + uint32(i)]

    @cuda.jit(device=True, forceinline=True)
    def read_by_four(held, left, kk, row):
        for i in range(0, count, FOUR):
            held[i], held[i + 1], held[i + 2], held[i + 3] = load4(left, (kk, row + uint32(i)))

    return read_by_four if count % FOUR == 0 and total == float32 else read_one_by_one


@functools.cache
def make_place(along, extent):
    """Make the device function that finds element ``i`` of a part of a matrix, as it lies in memory: its place in the
    part, its k, and where it is in the matrix.
    """

    @cuda.jit(device=True, forceinline=True)
    def place_of(i, start, first, k, pitch):
        if along:
            place, at = i // k, i % k
            return place, at, start + uint64(uint32(first + place)) * pitch + at
        place, at = i % uint32(extent), i // uint32(extent)
        return place, at, start + uint64(at) * pitch + uint32(first + place)

    return place_of


@functools.cache
def make_copy(element, along, extent):
    """Make the device function that begins to copy a part of a matrix to rows of shared memory for each k; zeros for
    what lies outside.
    """
    place_of = make_place(along, extent)

    at_once = THREADS // SECTOR

    @cuda.jit(device=True, forceinline=True)
    def copy_along(tile, matrix, start, first, left, k, pitch):
        tid = uint32(cuda.threadIdx.x)
        r, kk = tid // uint32(SECTOR), tid % uint32(SECTOR)
        while kk < k:
            for i in range(0, extent, at_once):
                place = uint32(r + uint32(i))
                source = start + uint64(uint32(first + place)) * pitch + kk
                if extent % at_once == 0 or place < uint32(extent):
                    copy_async(tile, (kk, place), matrix, source, place < left)
            kk = uint32(kk + uint32(SECTOR))

    @cuda.jit(device=True, forceinline=True)
    def copy(tile, matrix, start, first, left, k, pitch):
        i = uint32(cuda.threadIdx.x)
        while i < uint32(k * uint32(extent)):
            place, at, source = place_of(i, start, first, k, pitch)
            copy_async(tile, (at, place), matrix, source, place < left)
            i = uint32(i + uint32(THREADS))

    if along:
        return copy_along
    return copy


@functools.cache
def make_load(element, along, extent):
    """Make the device function that does as `make_copy`'s, at once, for elements too short for copies."""
    place_of, number = make_place(along, extent), make_number(element)

    @cuda.jit(device=True, forceinline=True)
    def load(tile, matrix, start, first, left, k, pitch):
        held = cuda.local.array(LOADS, element)
        i, size = uint32(cuda.threadIdx.x), uint32(k * uint32(extent))
        while i < size:
            for j in range(LOADS):
                place, at, source = place_of(uint32(i + uint32(j * THREADS)), start, first, k, pitch)
                held[j] = element(0)
                if place < left and at < k and uint32(i + uint32(j * THREADS)) < size:
                    held[j] = matrix[source]
            for j in range(LOADS):
                place, at, _ = place_of(uint32(i + uint32(j * THREADS)), start, first, k, pitch)
                if uint32(i + uint32(j * THREADS)) < size:
                    tile[at, place] = number(held[j])
            i = uint32(i + uint32(LOADS * THREADS))

    return load
