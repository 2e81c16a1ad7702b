"""The product of float64 matrices on tensor cores: a tile of ``out`` for a block, a part of it for a warp.

A block goes through K in steps, as in `gpukit.matmul.fast`. A warp multiplies 16 x 8 of ``a`` by 8 x 8 of ``b`` in one
instruction. It reads the operands of the next ones while the tensor cores work on the present ones: with K = 16 there
would be no registers for that, and with K = 4 the same work takes 6 % longer on an H200. There all figures in this file
were measured, for 4096 x 4096 x 4096.

In shared memory an operand lies as it does in global memory, so that it is copied by 16 bytes. To transpose it on the
way, by 8 bytes at a time, takes 10 % longer for one operand, and 35 % for both.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float64, int64, uint32, uint64
from gpukit.intrinsics import commit_copies, copy_async, copy_async2, load2, mma, store2, wait_copies
from gpukit.matmul.operands import block_of, starts_of
from warpstep.integers import ceil_div

__all__ = ["DEPTH", "PAD", "DoubleTile", "double"]

#: K of a step, and of an instruction.
DEPTH, SMALL = 16, 8
#: In shared memory an operand that lies across K has this pad, so that the four rows that half a warp reads lie in
#: different banks. In one that lies along K element k of row x is at place k ^ x % 4 * 4 for that.
PAD = 4
#: Rows from a lane to the next one with the same k, by whether ``a`` lies along K. If not, a lane reads two neighbours.
LANE_ROWS = {True: 1, False: 2}


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
        Of a step: as many times ``DEPTH`` as groups of warps divide it, so that a small tile keeps a multiprocessor
        busy.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    depth: int = DEPTH

    @property
    def slice_threads(self) -> int:
        """Threads of a group that has a slice of the depth."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def slices(self) -> int:
        """Groups that divide the depth."""
        return self.depth // DEPTH

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.slice_threads * self.slices

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return 8 * self.stages * self.depth * (self.rows + self.columns + 2 * PAD)


@functools.cache
def double(tile, layout, wide_a, wide_b, wide_out, scales=False, adds=False):
    """Make the kernel of out = alpha a b + beta out in float64, with the parameters and arguments of `fast`.

    Operands that are wide are copied by 16 bytes in any layout. Launch it with ``tile.shared_bytes`` of dynamic shared
    memory.
    """
    rows, columns, warp_rows, warp_columns, stages, depth = tile
    down, across, warps_across = warp_rows // 16, warp_columns // 8, columns // warp_columns
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    stage_a = size_of(rows, along_a)
    stage_size = stage_a + size_of(columns, along_b)
    last_stage, pending, ahead = (stages - 1) * stage_size, stages - 2, (stages - 1) * depth
    thread_of, join = make_thread(tile, stages * stage_size), make_join(tile)
    start_a, start_b = make_start(tile, rows, along_a, wide_a), make_start(tile, columns, along_b, wide_b)
    copy_a, copies_a = make_copy(tile, rows, along_a, wide_a)
    copy_b, copies_b = make_copy(tile, columns, along_b, wide_b)
    read_a, read_b = make_read_a(tile, along_a), make_read_b(tile, along_b)
    multiply_copy_a, multiply_copy_b = make_multiply(tile, copy_a, copies_a), make_multiply(tile, copy_b, copies_b)
    multiply = make_multiply(tile, copy_a, 0)
    clear, combine, store = make_clear(tile), make_combine(tile, along_a, adds), make_store(tile, along_a, wide_out)
    at_a, at_b = make_place(rows, along_a, LANE_ROWS[along_a]), make_place(columns, along_b, 1)
    row_step = LANE_ROWS[along_a]

    @cuda.jit
    def double(a, b, out, sizes, which, matrix_steps, alpha, beta):
        tiles = cuda.shared.array(0, float64, alignment=128)
        sums = cuda.local.array((down, across, 4), float64)
        left = cuda.local.array((2, down, 4), float64)
        right = cuda.local.array((2, across, 2), float64)
        m, _, _, pitch_a, pitch_b, pitch_out, _, _ = sizes
        row, col, first, limit, rows_left, columns_left, z = block_of(sizes, which, rows, columns)
        start_of_a, start_of_b = starts_of(z, which, matrix_steps)
        # The thread: a lane of a warp, which has a place in the tile, of a group with a slice of each step.
        tid, mine, slice_first = thread_of()
        first, limit_ahead = uint32(first + slice_first), uint32(limit + uint32(ahead) + slice_first)
        warp, lane = tid // uint32(32), tid % uint32(32)
        warp_row = uint32(warp // uint32(warps_across) * uint32(warp_rows))
        warp_col = uint32(warp % uint32(warps_across) * uint32(warp_columns))
        from_a = start_of_a + start_a(row, first, pitch_a)
        from_b = start_of_b + start_b(col, first, pitch_b)
        step_a = uint64(0 if along_a else depth) * pitch_a
        step_b = uint64(0 if along_b else depth) * pitch_b
        clear(sums, left, right)
        for stage in range(stages - 1):
            to = uint32(mine + uint32(stage * stage_size))
            for piece in range(copies_a):
                copy_a(tiles, to, a, from_a, first, limit, rows_left, pitch_a, piece)
            to = uint32(to + uint32(stage_a))
            for piece in range(copies_b):
                copy_b(tiles, to, b, from_b, first, limit, columns_left, pitch_b, piece)
            commit_copies()
            first, from_a, from_b = uint32(first + depth), from_a + step_a, from_b + step_b
        stage, free = mine, uint32(mine + uint32(last_stage))
        my_a, my_b = at_a(warp_row, lane), uint32(stage_a) + at_b(warp_col, lane)
        while first < limit_ahead:
            wait_copies(pending)
            cuda.syncthreads()
            from_shared_a, from_shared_b = uint32(stage + my_a), uint32(stage + my_b)
            read_a(tiles, from_shared_a, 0, left)
            read_b(tiles, from_shared_b, 0, right)
            # The last products of the step before overlap with these loads.
            multiply_copy_a(sums, left, right, 1, tiles, free, a, from_a, first, limit, rows_left, pitch_a)
            read_a(tiles, from_shared_a, 1, left)
            read_b(tiles, from_shared_b, 1, right)
            to = uint32(free + uint32(stage_a))
            multiply_copy_b(sums, left, right, 0, tiles, to, b, from_b, first, limit, columns_left, pitch_b)
            commit_copies()
            first, from_a, from_b = uint32(first + depth), from_a + step_a, from_b + step_b
            free = stage
            stage = uint32(stage + stage_size if stage < mine + uint32(last_stage) else mine)
        multiply(sums, left, right, 1, tiles, free, a, from_a, first, limit, rows_left, pitch_a)
        if not join(tiles, sums):
            return
        place_row = uint64(warp_row + lane // uint32(4) * uint32(row_step))
        place_col = uint64(warp_col + lane % uint32(4) * uint32(2))
        part = uint64(z) * uint64(cuda.gridDim.y) + uint64(cuda.blockIdx.y)
        start = (part * m + row + place_row) * pitch_out + col + place_col
        left_down, left_across = int64(rows_left) - int64(place_row), int64(columns_left) - int64(place_col)
        if scales:
            combine(out, start, sums, left_down, left_across, pitch_out, alpha, beta)
        store(out, start, sums, left_down, left_across, pitch_out)

    return double


# -- from global to shared memory ------------------------------------------------------------------


def size_of(extent, along):
    """Elements of an operand's part of a stage."""
    return DEPTH * (extent if along else extent + PAD)


def lanes_of(extent, along, wide):
    """Threads that copy what lies in a row of memory, and the elements that each takes."""
    width = 2 if wide else 1
    return (DEPTH if along else extent) // width, width


@functools.cache
def make_thread(tile, size):
    """Make the device function that finds a thread's number in its group, where the group's stages of so many elements
    begin in shared memory, and where its slice of a step begins.
    """
    threads, slices = tile.slice_threads, tile.slices

    @cuda.jit(device=True, forceinline=True)
    def thread_alone():
        return uint32(cuda.threadIdx.x), uint32(0), uint32(0)

    @cuda.jit(device=True, forceinline=True)
    def thread_of_slice():
        tid = uint32(cuda.threadIdx.x)
        mine = tid // uint32(threads)
        return tid % uint32(threads), mine * uint32(size), mine * uint32(DEPTH)

    return thread_alone if slices == 1 else thread_of_slice


@functools.cache
def make_start(tile, extent, along, wide):
    """Make the device function that finds where the copies of a thread begin in a matrix; along K without ``first``."""
    (lanes, width), thread_of = lanes_of(extent, along, wide), make_thread(tile, 0)

    @cuda.jit(device=True, forceinline=True)
    def start(place, first, pitch):
        tid, _, _ = thread_of()
        r, c = tid // uint32(lanes), tid % uint32(lanes) * uint32(width)
        if along:
            return (uint64(place) + r) * pitch + c
        return (uint64(first) + r) * pitch + uint64(place) + c

    return start


@functools.cache
def make_copy(tile, extent, along, wide):
    """Make the device function that begins one of a thread's copies of a part of a matrix; and find how many it has.

    What lies outside of the matrix becomes zeros.
    """
    lanes, width = lanes_of(extent, along, wide)
    height, pitch_shared = (extent, DEPTH) if along else (DEPTH, extent + PAD)
    at_once, copy_elements = tile.slice_threads // lanes, copy_async2 if wide else copy_async
    whole, thread_of = height % at_once == 0, make_thread(tile, 0)

    @cuda.jit(device=True, forceinline=True)
    def copy(tiles, to, matrix, start, first, limit, left, pitch, piece):
        (tid, _, _), i = thread_of(), uint32(piece * at_once)
        r, c = tid // uint32(lanes), tid % uint32(lanes) * uint32(width)
        at = uint32(to + r * uint32(pitch_shared) + (c ^ r % uint32(4) * uint32(4) if along else c))
        k, x = (uint32(first + c), uint32(r + i)) if along else (uint32(first + r + i), c)
        if whole or uint32(r + i) < uint32(height):
            source = start + uint64(pitch) * uint64(i) + uint64(first if along else uint32(0))
            copy_elements(tiles, at + i * uint32(pitch_shared), matrix, source, (k < limit) & (x < left))

    return copy, ceil_div(height, at_once)


# -- from shared memory to registers, and to the tensor cores --------------------------------------


@functools.cache
def make_place(extent, along, step):
    """Make the device function that finds a lane's first element in an operand's part of a stage, with lanes of
    neighbouring rows (or columns) so far from each other.
    """

    @cuda.jit(device=True, forceinline=True)
    def place(first, lane):
        x, k = first + lane // uint32(4) * uint32(step), lane % uint32(4)
        return uint32(x * uint32(DEPTH) + (k ^ x % uint32(4) * uint32(4)) if along else k * uint32(extent + PAD) + x)

    return place


@functools.cache
def make_read_a(tile, along):
    """Make the device function by which a lane reads its elements of ``a`` for one half of a step."""
    down, pitch = tile.warp_rows // 16, tile.rows + PAD

    @cuda.jit(device=True, forceinline=True)
    def read_a(tiles, at, half, left):
        for i in range(down):
            for e in range(0, 4, 2):
                k = SMALL * half + 2 * e
                if along:
                    row = (at ^ uint32(k)) + uint32(16 * i * DEPTH)
                    left[half, i, e], left[half, i, e + 1] = tiles[row], tiles[row + uint32(8 * DEPTH)]
                else:
                    left[half, i, e], left[half, i, e + 1] = load2(tiles, at + uint32(k * pitch + 16 * i))

    return read_a


@functools.cache
def make_read_b(tile, along):
    """Make the device function by which a lane reads its elements of ``b`` for one half of a step."""
    across, pitch = tile.warp_columns // 8, tile.columns + PAD

    @cuda.jit(device=True, forceinline=True)
    def read_b(tiles, at, half, right):
        for j in range(across):
            for e in range(2):
                k = SMALL * half + 4 * e
                right[half, j, e] = tiles[
                    (at ^ uint32(k)) + uint32(8 * j * DEPTH) if along else at + uint32(k * pitch + 8 * j)
                ]

    return read_b


@functools.cache
def make_clear(tile):
    """Make the device function that sets the sums, and the second set of operands, to zero."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def clear(sums, left, right):
        for i in range(down):
            for e in range(4):
                left[1, i, e] = 0.0
                for j in range(across):
                    sums[i, j, e] = 0.0
        for j in range(across):
            right[1, j, 0], right[1, j, 1] = 0.0, 0.0

    return clear


@functools.cache
def make_multiply(tile, copy, copies):
    """Make the device function by which a warp multiplies one set of operands, and begins copies on the way.

    A copy that waits for the memory pipeline holds up the products that follow. With all copies in one place the kernel
    takes up to 5 % longer.
    """
    down, across = tile.warp_rows // 16, tile.warp_columns // 8
    products = down * across
    at_once, every = ceil_div(copies, products), max(1, products // max(1, copies))

    @cuda.jit(device=True, forceinline=True)
    def product(sums, left, right, which, i, j):
        old = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
        rows = left[which, i, 0], left[which, i, 1], left[which, i, 2], left[which, i, 3]
        return mma(rows, (right[which, j, 0], right[which, j, 1]), old)

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, left, right, which, tiles, to, matrix, start, first, limit, room, pitch):
        for i in range(down):
            for j in range(across):
                w, x, y, z = product(sums, left, right, which, i, j)
                sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = w, x, y, z
                done = i * across + j + 1
                for c in range(at_once):
                    piece = (done // every - 1) * at_once + c
                    if done % every == 0 and piece < copies:
                        copy(tiles, to, matrix, start, first, limit, room, pitch, piece)

    return multiply


# -- from registers to global memory ---------------------------------------------------------------


@functools.cache
def make_join(tile):
    """Make the device function that adds up the sums of the slices in the threads of the first: True for these."""
    down, across, slices = tile.warp_rows // 16, tile.warp_columns // 8, tile.slices
    threads, area = tile.slice_threads, tile.rows * tile.columns

    @cuda.jit(device=True, forceinline=True)
    def join(tiles, sums):
        if slices == 1:
            return True
        tid, mine = uint32(cuda.threadIdx.x) % uint32(threads), uint32(cuda.threadIdx.x) // uint32(threads)
        wait_copies(0)
        cuda.syncthreads()
        if mine > 0:
            to = (mine - uint32(1)) * uint32(area) + tid
            for i in range(down):
                for j in range(across):
                    for e in range(4):
                        tiles[to + uint32(((i * across + j) * 4 + e) * threads)] = sums[i, j, e]
        cuda.syncthreads()
        if mine > 0:
            return False
        for other in range(slices - 1):
            for i in range(down):
                for j in range(across):
                    for e in range(4):
                        sums[i, j, e] += tiles[tid + uint32(other * area + ((i * across + j) * 4 + e) * threads)]
        return True

    return join


@functools.cache
def make_combine(tile, along_a, adds):
    """Make the device function that turns a lane's sums into alpha sums + beta out."""
    down, across, half_step = tile.warp_rows // 16, tile.warp_columns // 8, 8 if along_a else 1

    @cuda.jit(device=True, forceinline=True)
    def combine(out, start, sums, rows_left, columns_left, pitch, alpha, beta):
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] *= alpha
        # No branch and no store is between the loads, so they overlap; what lies outside is read inside.
        if adds and rows_left > 0 and columns_left > 0:
            for i in range(down):
                for half in range(2):
                    at = int64(start) + min(int64(16 * i + half_step * half), rows_left - 1) * int64(pitch)
                    for j in range(across):
                        for e in range(2):
                            sums[i, j, 2 * half + e] += beta * out[at + min(int64(8 * j + e), columns_left - 1)]

    return combine


@functools.cache
def make_store(tile, along_a, wide):
    """Make the device function that stores a lane's sums."""
    down, across, half_step = tile.warp_rows // 16, tile.warp_columns // 8, 8 if along_a else 1

    @cuda.jit(device=True, forceinline=True)
    def store_pair(out, at, columns_left, first, second):
        if wide:
            store2(out, at, first, second)
        else:
            out[at] = first
            if columns_left > 1:
                out[at + uint64(1)] = second

    @cuda.jit(device=True, forceinline=True)
    def store(out, start, sums, rows_left, columns_left, pitch):
        for i in range(down):
            for half in range(2):
                row = 16 * i + half_step * half
                for j in range(across):
                    if row < rows_left and 8 * j < columns_left:
                        at, left = uint64(start + uint64(row) * pitch + uint64(8 * j)), columns_left - 8 * j
                        store_pair(out, at, left, sums[i, j, 2 * half], sums[i, j, 2 * half + 1])

    return store
