"""A product with a K of a few: the result is large beside what it takes to compute it, and is written row by row."""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, uint32, uint64
from gpukit.intrinsics import commit_copies, copy_async, wait_copies
from warpstep.integers import next_power_of_two
from warpstep.limits import WARP

__all__ = ["THREADS", "SlimTile", "choose_slim", "slim"]

#: The largest K; the threads of a block.
MAX_K, THREADS = 16, 256
#: The fewest columns of a result. With 256 or more of them, one of up to 8 rows has tiles as wide as they are.
MIN_COLUMNS, MIN_LONG, FEW_ROWS = 64, 256, 8


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
    """

    warp_rows: int
    lane_columns: int
    warps_down: int

    @property
    def rows(self) -> int:
        """Of the result that a block computes."""
        return self.warp_rows * self.warps_down

    @property
    def columns(self) -> int:
        """Of the result that a block computes."""
        return WARP * self.lane_columns * (THREADS // WARP // self.warps_down)


def choose_slim(m: int, n: int, k: int, itemsize: int, wide: bool) -> SlimTile | None:
    """Choose a tile; None where `fast` is faster: with a larger K, and with ``wide`` rows of ``out``, which begin at
    multiples of 16 bytes, unless there are only a few.
    """
    if k == 0 or k > MAX_K or n < MIN_COLUMNS:
        return None
    if m <= FEW_ROWS and n >= MIN_LONG:
        return SlimTile(next_power_of_two(m), 8 // itemsize, 1)
    return None if wide else SlimTile(8, 2, 4)


@functools.cache
def slim(number, tile, layout, adds):
    """Make the kernel of out = alpha a b + beta out for a K of at most ``MAX_K``, with the arguments of `fast`.

    Blocks along x compute the tiles of ``out``, row by row, those along z the matrices. Without ``adds`` beta is
    ignored, and ``out`` is not read.
    """
    warp_rows, lane_columns, warps_down = tile
    rows, columns, warp_columns = tile.rows, tile.columns, WARP * tile.lane_columns
    # Rows of shared memory are longer by one, so that a column of them lies in different banks.
    row_a, row_b = rows + 1, columns + 1
    copy_a, copy_b = make_copy(layout[0] == "N", rows), make_copy(layout[1] == "T", columns)

    @cuda.jit
    def slim(a, b, out, sizes, which, matrix_steps, alpha, beta):
        left, right = cuda.shared.array((MAX_K, row_a), number), cuda.shared.array((MAX_K, row_b), number)
        sums = cuda.local.array((warp_rows, lane_columns), number)
        held = cuda.local.array(lane_columns, number)
        m, n, k, pitch_a, pitch_b, pitch_out = sizes
        block, across = uint32(cuda.blockIdx.x), uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        row, col = uint32(block // across * uint32(rows)), uint32(block % across * uint32(columns))
        z = uint32(which[0] + uint32(cuda.blockIdx.z))
        from_a = uint64(uint32(uint32(z // which[1]) % which[2])) * matrix_steps[0]
        from_b = uint64(uint32(uint32(z // which[3]) % which[4])) * matrix_steps[1]
        copy_a(left, a, from_a, row, uint32(m - row), k, pitch_a)
        copy_b(right, b, from_b, col, uint32(n - col), k, pitch_b)
        commit_copies()
        for i in range(warp_rows):
            for j in range(lane_columns):
                sums[i, j] = number(0)
        warp, lane = uint32(cuda.threadIdx.x) // uint32(32), uint32(cuda.threadIdx.x) % uint32(32)
        my_row = warp % uint32(warps_down) * uint32(warp_rows)
        my_col = warp // uint32(warps_down) * uint32(warp_columns) + lane
        wait_copies(0)
        cuda.syncthreads()
        at = uint32(0)
        while at < k:
            for j in range(lane_columns):
                held[j] = right[at, my_col + uint32(32 * j)]
            for i in range(warp_rows):
                value = left[at, my_row + uint32(i)]
                for j in range(lane_columns):
                    sums[i, j] += value * held[j]
            at = uint32(at + uint32(1))
        for i in range(warp_rows):
            down = uint32(row + my_row + uint32(i))
            start = (uint64(z) * m + down) * pitch_out
            for j in range(lane_columns):
                place = uint32(col + my_col + uint32(32 * j))
                if down < m and place < n:
                    value = alpha * sums[i, j]
                    out[start + place] = value + beta * out[start + place] if adds else value

    return slim


@functools.cache
def make_copy(along, extent):
    """Make the device function that begins to copy a part of a matrix, as it lies in memory, to rows of shared memory
    for each k; zeros for what lies outside.
    """

    @cuda.jit(device=True, forceinline=True)
    def copy(tile, matrix, start, first, left, k, pitch):
        i = uint32(cuda.threadIdx.x)
        while i < uint32(k * uint32(extent)):
            place, at = (i // k, i % k) if along else (i % uint32(extent), i // uint32(extent))
            if along:
                source = start + uint64(uint32(first + place)) * pitch + at
            else:
                source = start + uint64(at) * pitch + uint32(first + place)
            copy_async(tile, (at, place), matrix, source, place < left)
            i = uint32(i + uint32(THREADS))

    return copy
