"""The product of float64 matrices on tensor cores: a tile of ``out`` for a block, a part of it for a warp.

Copies are those of `gpukit.matmul.fast`. A warp multiplies 16 x 4 of ``a`` by 4 x 8 of ``b`` in one instruction, of
which the lanes hold little, so that they can read the next operands while the tensor cores work on the present ones.
The instruction for a K of 16 is 5 % faster when nothing has to be read, but leaves no registers for that.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float64, int64, uint32, uint64
from gpukit.intrinsics import commit_copies, mma, store2, wait_copies
from gpukit.matmul.fast import make_copy_across, make_copy_along, make_start

__all__ = ["DEPTH", "PAD", "DoubleTile", "double"]

#: K of a step, and of an instruction.
DEPTH, SMALL = 16, 4
#: Rows of shared memory are this much longer than the tile, so that the operands of half a warp, four neighbours in
#: each of four rows, lie in different banks.
PAD = 4


class DoubleTile(NamedTuple):
    """The shape of a block's work, in elements of ``out`` but for the last two.

    Attributes
    ----------
    rows, columns : int
        Of a block.
    warp_rows, warp_columns : int
        Of a warp, in multiples of 16 and 8.
    stages : int
        Steps for which there is shared memory: one is multiplied while the others are copied. 2 or more.
    depth : int
        Of a step.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    depth: int = DEPTH

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return 8 * self.stages * DEPTH * (self.rows + self.columns + 2 * PAD)


@functools.cache
def double(tile, layout, wide_a, wide_b, wide_out, scales=False, adds=False):
    """Make the kernel of out = alpha a b + beta out in float64, with the parameters and arguments of `fast`.

    Launch it with ``tile.shared_bytes`` of dynamic shared memory.
    """
    rows, columns, warp_rows, warp_columns, stages, _ = tile
    down, across, warps_across = warp_rows // 16, warp_columns // 8, columns // warp_columns
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    row_a, row_b = rows + PAD, columns + PAD
    stage_a, stage_size = DEPTH * row_a, DEPTH * (row_a + row_b)
    last_stage, pending, ahead = (stages - 1) * stage_size, stages - 2, (stages - 1) * DEPTH
    start_a, start_b = make_start(rows, along_a, wide_a, 8), make_start(columns, along_b, wide_b, 8)
    copy_a, copy_b = (
        make_copy_along(extent, tile, row, 8) if along else make_copy_across(extent, tile, row, wide, 8)
        for extent, row, along, wide in ((rows, row_a, along_a, wide_a), (columns, row_b, along_b, wide_b))
    )
    clear, read, multiply = make_clear(tile), make_read(tile), make_multiply(tile)
    store = make_store(tile, wide_out, scales, adds)

    @cuda.jit
    def double(a, b, out, sizes, which, matrix_steps, alpha, beta):
        tiles = cuda.shared.array(0, float64)
        sums = cuda.local.array((down, across, 4), float64)
        left = cuda.local.array((2, down, 2), float64)
        right = cuda.local.array((2, across), float64)
        m, n, k, pitch_a, pitch_b, pitch_out = sizes
        # The block: a tile of out, a part of K, a matrix.
        block, parts = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.y)
        blocks_across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        row, col = uint32(block // blocks_across * rows), uint32(block % blocks_across * columns)
        steps_in_all = uint32(uint32(k + uint32(DEPTH - 1)) // uint32(DEPTH))
        part = uint32(uint32(steps_in_all + parts - uint32(1)) // parts * DEPTH)
        first = uint32(uint32(cuda.blockIdx.y) * part)
        limit = uint32(min(k, uint32(first + part)))
        rows_left, columns_left = uint32(m - row), uint32(n - col)
        z = uint32(which[0] + uint32(cuda.blockIdx.z))
        z_a = uint32(uint32(z // which[1]) % which[2])
        z_b = uint32(uint32(z // which[3]) % which[4])
        # The thread: a lane of a warp, which has a place in the tile.
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid // uint32(32), tid % uint32(32)
        warp_row, warp_col = warp // warps_across * warp_rows, warp % warps_across * warp_columns
        from_a = uint64(z_a) * matrix_steps[0] + start_a(row, first, pitch_a)
        from_b = uint64(z_b) * matrix_steps[1] + start_b(col, first, pitch_b)
        step_a = uint64(0 if along_a else DEPTH) * pitch_a
        step_b = uint64(0 if along_b else DEPTH) * pitch_b
        clear(sums, left, right, 1)
        for stage in range(stages - 1):
            copy_a(tiles, uint64(stage * stage_size), a, from_a, first, limit, rows_left, pitch_a)
            copy_b(tiles, uint64(stage * stage_size + stage_a), b, from_b, first, limit, columns_left, pitch_b)
            commit_copies()
            first, from_a, from_b = uint32(first + DEPTH), from_a + step_a, from_b + step_b
        stage, free, end = uint32(0), uint32(last_stage), uint32(limit + ahead)
        # Where the lane's elements of a and b lie in a stage.
        my_a = uint64(lane % uint32(4) * uint32(row_a) + warp_row + lane // uint32(4))
        my_b = uint64(uint32(stage_a) + lane % uint32(4) * uint32(row_b) + warp_col + lane // uint32(4))
        while first < end:
            wait_copies(pending)
            cuda.syncthreads()
            at_a, at_b = uint64(stage) + my_a, uint64(stage) + my_b
            read(tiles, at_a, at_b, left, right, 0)
            # The last products of the step before overlap with these loads.
            multiply(sums, left, right, 1)
            copy_a(tiles, uint64(free), a, from_a, first, limit, rows_left, pitch_a)
            copy_b(tiles, uint64(free) + uint64(stage_a), b, from_b, first, limit, columns_left, pitch_b)
            commit_copies()
            read(tiles, at_a + uint64(SMALL * row_a), at_b + uint64(SMALL * row_b), left, right, 1)
            multiply(sums, left, right, 0)
            read(tiles, at_a + uint64(2 * SMALL * row_a), at_b + uint64(2 * SMALL * row_b), left, right, 0)
            multiply(sums, left, right, 1)
            read(tiles, at_a + uint64(3 * SMALL * row_a), at_b + uint64(3 * SMALL * row_b), left, right, 1)
            multiply(sums, left, right, 0)
            first, from_a, from_b = uint32(first + DEPTH), from_a + step_a, from_b + step_b
            free = stage
            stage = uint32(stage + stage_size if stage < last_stage else 0)
        multiply(sums, left, right, 1)
        place_row, place_col = uint64(warp_row + lane // uint32(4)), uint64(warp_col + lane % uint32(4) * uint32(2))
        start = ((uint64(z) * parts + uint64(cuda.blockIdx.y)) * m + row + place_row) * pitch_out + col + place_col
        store(out, start, sums, int64(rows_left) - place_row, int64(columns_left) - place_col, pitch_out, alpha, beta)

    return double


@functools.cache
def make_clear(tile):
    """Make the device function that sets the sums, and one set of operands, to zero."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def clear(sums, left, right, which):
        for i in range(down):
            left[which, i, 0], left[which, i, 1] = 0.0, 0.0
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] = 0.0
        for j in range(across):
            right[which, j] = 0.0

    return clear


@functools.cache
def make_read(tile):
    """Make the device function by which a lane reads its operands of one instruction after the other for one K."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def read(tiles, at_a, at_b, left, right, which):
        for i in range(down):
            left[which, i, 0] = tiles[at_a + uint64(16 * i)]
            left[which, i, 1] = tiles[at_a + uint64(16 * i + 8)]
        for j in range(across):
            right[which, j] = tiles[at_b + uint64(8 * j)]

    return read


@functools.cache
def make_multiply(tile):
    """Make the device function by which a warp multiplies one set of operands."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, left, right, which):
        for i in range(down):
            for j in range(across):
                rows, old = (left[which, i, 0], left[which, i, 1]), tuple_of(sums, i, j)
                sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = mma(rows, (right[which, j],), old)

    return multiply


@cuda.jit(device=True, forceinline=True)
def tuple_of(sums, i, j):
    return sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]


@functools.cache
def make_store(tile, wide, scales, adds):
    """Make the device function that stores a lane's sums."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def store_pair(out, at, columns_left, first, second, alpha, beta):
        if scales:
            first, second = alpha * first, alpha * second
        if wide:
            if adds:
                first, second = first + beta * out[at], second + beta * out[at + uint64(1)]
            store2(out, at, first, second)
        else:
            out[at] = first + beta * out[at] if adds else first
            if columns_left > 1:
                out[at + uint64(1)] = second + beta * out[at + uint64(1)] if adds else second

    @cuda.jit(device=True, forceinline=True)
    def store(out, start, sums, rows_left, columns_left, pitch, alpha, beta):
        for i in range(down):
            for half in range(2):
                row = 16 * i + 8 * half
                for j in range(across):
                    if row < rows_left and 8 * j < columns_left:
                        at, left = uint64(start + uint64(row) * pitch + uint64(8 * j)), columns_left - 8 * j
                        store_pair(out, at, left, sums[i, j, 2 * half], sums[i, j, 2 * half + 1], alpha, beta)

    return store
