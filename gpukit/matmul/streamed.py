"""The fast product of large float32 matrices on compute capability 9.0: a thread copies, the others only multiply.

What is beside the multiply-adds decides the time of `gpukit.matmul.fast.fast`: a tenth of the instructions in its loop.
The threads that multiply here have no copies, no bounds and no barrier in it. A ring of deep stages lies between them
and the thread that copies, by tensor maps, with two barriers for each stage, as in `gpukit.matmul.warpgroups`.
"""

import functools

from gpukit.backend import cuda, float32, int64, uint8, uint32, uint64
from gpukit.intrinsics import (
    copy_tensor,
    decrease_registers,
    fence_barrier_init,
    fence_tensor_map,
    increase_registers,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    view_at,
)
from gpukit.matmul.fast import make_clear, make_multiply, make_read, make_steps, make_store
from gpukit.matmul.operands import block_of, matrices_of
from gpukit.matmul.turned import make_following
from warpstep.limits import GROUP

__all__ = ["LAYOUT", "boxes_of", "is_streamed", "shared_bytes_of", "streamed", "threads_of"]

#: How the operands lie: both across K.
LAYOUT = "TN"
#: Rows of K in a stage, and stages of shared memory.
DEPTH, STAGES = 32, 4
#: The least K: single stores take long.
MIN_K = 512
#: Registers of a thread in the first group, of which one copies, and of one that multiplies: together those of three
#: groups with 168. The compiler avoids register banks best with these: with 72 and 216, 4096 x 4096 x 4096 takes 3 %
#: longer on an H200.
FEW_REGISTERS, MANY_REGISTERS = 56, 224


def is_streamed(tile, k: int, alpha: float, beta: float) -> bool:
    """Whether such tiles may be computed here: the largest ones, of a deep product, on compute capability 9.0. With
    alpha and beta the compiler finds no registers in different banks: the loop takes longer than that of `fast`.
    """
    fits = tile.thread_columns == 16 and k >= MIN_K and alpha == 1 and beta == 0
    return fits and cuda.get_current_device().compute_capability[0] == 9


def boxes_of(tile) -> tuple[tuple, tuple]:
    """The boxes of the tensor maps of ``a`` and ``b``: (matrices, rows of K, rows or columns of a tile)."""
    return (1, DEPTH, tile.rows), (1, DEPTH, tile.columns)


def threads_of(tile) -> int:
    """Threads of a block."""
    return GROUP + tile.threads


def shared_bytes_of(tile) -> int:
    """Bytes of dynamic shared memory of a block."""
    return STAGES * (4 * DEPTH * (tile.rows + tile.columns) + 16)


@functools.cache
def streamed(tile):
    """Make the kernel of out = a b, for operands that lie across K.

    Parameters
    ----------
    tile : Tile

    Returns
    -------
    kernel
        ``kernel[(tiles, parts, matrices), threads_of(tile), stream, shared_bytes_of(tile)](map_a, map_b, out, sizes,
        which, steps, alpha, beta)``, as of `gpukit.matmul.fast.fast`; the last three are not used. The tensor maps have
        the boxes of `boxes_of`, on arrays of three axes.
    """
    rows, columns, chunk, thread_rows, thread_columns, lane_rows, _, _ = tile
    lane_columns, warps = 32 // lane_rows, tile.threads // 32
    warp_rows, warp_columns = lane_rows * thread_rows, lane_columns * thread_columns
    warps_across = columns // warp_columns
    stage_a, stage_size = DEPTH * rows, DEPTH * (rows + columns)
    full_at, last = 4 * STAGES * stage_size, (chunk - 1) % 2
    clear, read, multiply = make_clear(tile), make_read(tile), make_multiply(tile)
    steps = make_steps(tile, read, multiply, chunk - 1, LAYOUT, True)
    # Single stores, as in `fast`: those of four would need consecutive registers.
    store, following = make_store(tile, False), make_following(STAGES)

    @cuda.jit(launch_bounds=(threads_of(tile), 1))
    def streamed(map_a, map_b, out, sizes, which, matrix_steps, alpha, beta):
        memory = cuda.shared.array(0, uint8, alignment=128)
        tiles = view_at(memory, 0, STAGES * stage_size, float32)
        full = view_at(memory, full_at, STAGES, uint64)
        free = view_at(memory, full_at + 8 * STAGES, STAGES, uint64)
        tid = uint32(cuda.threadIdx.x)
        if tid == 0:
            fence_tensor_map(map_a)
            fence_tensor_map(map_b)
            for stage in range(STAGES):
                mbarrier_init(full, stage, 1)
                mbarrier_init(free, stage, warps)
            fence_barrier_init()
        m, _, _, _, _, pitch_out, _, _ = sizes
        row, col, first, limit, rows_left, columns_left, z = block_of(sizes, which, rows, columns)
        cuda.syncthreads()
        stage = uint32(0)
        if tid < uint32(GROUP):
            decrease_registers(FEW_REGISTERS)
            z_a, z_b = matrices_of(z, which)
            parity = uint32(1)
            while first < limit and tid == 0:
                mbarrier_wait(free, stage, parity)
                mbarrier_expect(full, stage, 4 * stage_size)
                at = stage * uint32(stage_size)
                copy_tensor(tiles, at, map_a, (z_a, first, row), full, stage)
                copy_tensor(tiles, at + uint32(stage_a), map_b, (z_b, first, col), full, stage)
                first = uint32(first + uint32(DEPTH))
                stage, parity = following(stage, parity)
            return
        increase_registers(MANY_REGISTERS)
        sums = cuda.local.array((thread_rows, thread_columns), float32)
        left = cuda.local.array((2, thread_rows), float32)
        right = cuda.local.array((2, thread_columns), float32)
        warp, lane = (tid - uint32(GROUP)) // 32, tid % 32
        my_row = uint32(warp // warps_across * warp_rows + lane // lane_columns * 4)
        my_col = uint32(warp % warps_across * warp_columns + lane % lane_columns * 4)
        clear(sums, left, right, last)
        parity = uint32(0)
        while first < limit:
            mbarrier_wait(full, stage, parity)
            end = uint32(min(limit, uint32(first + uint32(DEPTH))))
            base = stage * uint32(stage_size)
            at_a, at_b = uint64(base + my_row), uint64(base + uint32(stage_a) + my_col)
            while first < end:
                read(tiles, at_a, at_b, left, right, uint32(0))
                # The last products of the step before overlap with the first loads, as in `fast`.
                multiply(sums, left, right, uint32(last))
                steps(tiles, at_a, at_b, sums, left, right, uint32(1))
                at_a, at_b = at_a + uint64(chunk * rows), at_b + uint64(chunk * columns)
                first = uint32(first + uint32(chunk))
            cuda.syncwarp()
            if lane == 0:
                mbarrier_arrive(free, stage)
            stage, parity = following(stage, parity)
        multiply(sums, left, right, uint32(last))
        part = uint64(z) * uint64(cuda.gridDim.y) + uint64(cuda.blockIdx.y)
        start = (part * m + row + my_row) * pitch_out + col + my_col
        left_down, left_across = int64(rows_left) - my_row, int64(columns_left) - my_col
        store(out, start, sums, left_down, left_across, pitch_out, tiles)

    return streamed
