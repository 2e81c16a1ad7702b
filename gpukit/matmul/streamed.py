"""The fast product of large float32 matrices on compute capability 9.0: a thread copies, the others only multiply.

What is beside the multiply-adds decides the time of `gpukit.matmul.fast.fast`: a tenth of the instructions in its loop.
The threads that multiply here have no copies, no bounds and no barrier in it. A ring of deep stages lies between them
and the thread that copies, by tensor maps, with two barriers for each stage, as in `gpukit.matmul.warpgroups`. A block
computes one tile after the other, so the first stages of the next one arrive while the threads store the last one.
"""

import functools

from gpukit.backend import cuda, float32, uint8, uint32, uint64
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
from gpukit.matmul.fast import make_clear, make_multiply, make_read, make_steps
from gpukit.matmul.raster import matrices_of, place
from gpukit.matmul.turned import make_following
from warpstep.limits import GROUP

__all__ = ["STEP", "boxes_of", "is_streamed", "shared_bytes_of", "streamed", "threads_of"]

#: How the operands lie: both across K.
LAYOUT = "TN"
#: Rows of K in a stage, and stages of shared memory.
STEP, STAGES = 32, 4
#: The least K: the first copies and the last stores are long beside the steps of a smaller one.
MIN_K = 96
#: Elements from row to row of what a warp gathers: lanes that hold neighbours in four rows write to different banks.
GATHERED = 129
#: Registers of a thread in the first group, of which one copies, and of one that multiplies: together those of three
#: groups with 168. With 216 the compiler finds no registers in different banks for all multiply-adds; with 224 fewer
#: operands come from the reuse cache.
FEW_REGISTERS, MANY_REGISTERS = 24, 240


def is_streamed(k: int, alpha: float, beta: float) -> bool:
    """Whether products of this K and with these factors may be computed here, on this device. With alpha and beta the
    compiler finds no registers in different banks: the loop takes longer than that of `fast`.
    """
    return k >= MIN_K and alpha == 1 and beta == 0 and cuda.get_current_device().compute_capability[0] == 9


def boxes_of(tile) -> tuple[tuple, tuple]:
    """The boxes of the tensor maps of ``a`` and ``b``: (matrices, rows of K, rows or columns of a tile)."""
    return (1, STEP, tile.rows), (1, STEP, tile.columns)


def threads_of(tile) -> int:
    """Threads of a block."""
    return GROUP + tile.threads


def shared_bytes_of(tile) -> int:
    """Bytes of dynamic shared memory of a block."""
    return STAGES * (4 * STEP * (tile.rows + tile.columns) + 16) + 4 * (gathered_size(tile) + tile.threads)


def gathered_size(tile) -> int:
    """Elements of shared memory in which the warps of a block gather rows of the result."""
    return tile.threads // 32 * tile.lane_rows * GATHERED


@functools.cache
def make_store(tile, first=0, count=None):
    """Make the device function by which a warp stores its sums: rows that it gathers in shared memory.

    A warp writes whole cache lines so, wherever the rows begin. The threads write to shared memory element by element:
    four at a time would need consecutive registers, and the multiply-adds of the loop then get the remaining ones.

    The function takes ``count`` of a thread's rows from ``first`` on, all unless given. The compiler does not unroll a
    loop of all, so it calls those for half of them.
    """
    lane_rows, columns = tile.lane_rows, tile.thread_columns
    lane_columns, row_step, column_step = 32 // lane_rows, 4 * lane_rows, 128 // lane_rows
    across, count = lane_columns * columns, tile.thread_rows if count is None else count
    if count > 1:
        store_first = make_store(tile, first, count // 2)
        store_second = make_store(tile, first + count // 2, count - count // 2)

        @cuda.jit(device=True, forceinline=True)
        def store(out, gathered, warp, lane, sums, start, rows_left, columns_left, pitch):
            """Store the sums of a warp, whose first one is element ``start``, as far as there are rows and columns."""
            store_first(out, gathered, warp, lane, sums, start, rows_left, columns_left, pitch)
            store_second(out, gathered, warp, lane, sums, start, rows_left, columns_left, pitch)

        return store
    down = first // 4 * row_step + first % 4

    @cuda.jit(device=True, forceinline=True)
    def store_rows(out, gathered, warp, lane, sums, start, rows_left, columns_left, pitch):
        mine = uint32(warp * uint32(lane_rows * GATHERED))
        at = mine + lane // uint32(lane_columns) * uint32(GATHERED) + lane % uint32(lane_columns) * uint32(4)
        cuda.syncwarp()
        for j in range(columns):
            gathered[at + uint32(j // 4 * column_step + j % 4)] = sums[first, j]
        cuda.syncwarp()
        for q in range(lane_rows):
            row = uint32(down + 4 * q)
            for col in range(0, across, 32):
                if row < rows_left and lane + uint32(col) < columns_left:
                    value = gathered[mine + uint32(q * GATHERED + col) + lane]
                    out[start + uint64(row) * uint64(pitch) + uint64(lane + uint32(col))] = value

    return store_rows


@functools.cache
def streamed(tile):
    """Make the kernel of out = a b, for operands that lie across K.

    Parameters
    ----------
    tile : Tile

    Returns
    -------
    kernel
        ``kernel[blocks, threads_of(tile), stream, shared_bytes_of(tile)](map_a, map_b, out, (m, n, k, pitch), order)``,
        with the `Order` of its tiles, and the elements from row to row of ``out``. The tensor maps have the boxes of
        `boxes_of`, on arrays of three axes.
    """
    rows, columns, chunk, thread_rows, thread_columns, lane_rows, _, _ = tile
    lane_columns, warps = 32 // lane_rows, tile.threads // 32
    warp_rows, warp_columns = lane_rows * thread_rows, lane_columns * thread_columns
    warps_across = columns // warp_columns
    stage_a, stage_size = STEP * rows, STEP * (rows + columns)
    full_at, held, last = 4 * STAGES * stage_size, gathered_size(tile), (chunk - 1) % 2
    clear, read, multiply = make_clear(tile), make_read(tile), make_multiply(tile)
    steps = make_steps(tile, read, multiply, chunk - 1, LAYOUT, True)
    store, following, tile_threads = make_store(tile), make_following(STAGES), tile.threads

    @cuda.jit(launch_bounds=(threads_of(tile), 1))
    def streamed(map_a, map_b, out, sizes, order):
        memory = cuda.shared.array(0, uint8, alignment=128)
        tiles = view_at(memory, 0, STAGES * stage_size, float32)
        full = view_at(memory, full_at, STAGES, uint64)
        free = view_at(memory, full_at + 8 * STAGES, STAGES, uint64)
        gathered = view_at(memory, full_at + 16 * STAGES, held, float32)
        threads = view_at(memory, full_at + 16 * STAGES + 4 * held, tile_threads, uint32)
        tid = uint32(cuda.threadIdx.x)
        if tid == 0:
            fence_tensor_map(map_a)
            fence_tensor_map(map_b)
            for stage in range(STAGES):
                mbarrier_init(full, stage, 1)
                mbarrier_init(free, stage, warps)
            fence_barrier_init()
        (m, n, k, pitch), number, stage = sizes, uint32(cuda.blockIdx.x), uint32(0)
        cuda.syncthreads()
        if tid < uint32(GROUP):
            decrease_registers(FEW_REGISTERS)
            parity = uint32(1)
            while number < order.tiles and tid == 0:
                z, _, row, col, step, end = place(number, order)
                z_a, z_b = matrices_of(z, order)
                row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
                while step < end:
                    mbarrier_wait(free, stage, parity)
                    mbarrier_expect(full, stage, 4 * stage_size)
                    at, first = stage * uint32(stage_size), uint32(step * uint32(STEP))
                    copy_tensor(tiles, at, map_a, (z_a, first, row), full, stage)
                    copy_tensor(tiles, at + uint32(stage_a), map_b, (z_b, first, col), full, stage)
                    step = uint32(step + uint32(1))
                    stage, parity = following(stage, parity)
                number = uint32(number + uint32(cuda.gridDim.x))
            return
        increase_registers(MANY_REGISTERS)
        sums = cuda.local.array((thread_rows, thread_columns), float32)
        left = cuda.local.array((2, thread_rows), float32)
        right = cuda.local.array((2, thread_columns), float32)
        tid = uint32(tid - uint32(GROUP))
        warp, lane = tid // 32, tid % 32
        my_row = uint32(warp // warps_across * warp_rows + lane // lane_columns * 4)
        my_col = uint32(warp % warps_across * warp_columns + lane % lane_columns * 4)
        threads[tid] = tid
        parity = uint32(0)
        while number < order.tiles:
            z, part, row, col, step, end = place(number, order)
            first, limit = uint32(step * uint32(STEP)), uint32(min(k, uint32(end * uint32(STEP))))
            clear(sums, left, right, last)
            while first < limit:
                mbarrier_wait(full, stage, parity)
                end = uint32(min(limit, uint32(first + uint32(STEP))))
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
            # From memory, or else what follows from it is kept in registers during the loop, which has none left.
            warp, lane = threads[tid] // 32, threads[tid] % 32
            row = uint32(row * uint32(rows) + warp // warps_across * warp_rows)
            col = uint32(col * uint32(columns) + warp % warps_across * warp_columns)
            start = (uint64(z) * uint64(order.parts.value) + uint64(part)) * uint64(m) + uint64(row)
            start = start * uint64(pitch) + uint64(col)
            rows_left, columns_left = max(row, m) - row, max(col, n) - col
            store(out, gathered, warp, lane, sums, start, rows_left, columns_left, pitch)
            number = uint32(number + uint32(cuda.gridDim.x))

    return streamed
