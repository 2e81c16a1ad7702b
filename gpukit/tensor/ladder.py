"""A product on tensor cores: float16 matrices, float32 sums, one idea per kernel, each built on the one before.

1. `one_warp`: a warp computes 16 x 8 elements, and loads its operands one by one from global memory.
2. `shared_tiles`: a block of 8 warps computes 128 x 128 from tiles in shared memory.
3. `ldmatrix`: one instruction loads a whole operand; a pad keeps its rows in different banks.
4. `stages`: asynchronous copies to shared memory; two steps are in flight while one is multiplied.
5. `swizzled`: each row's columns are permuted; no pad is needed.
6. `tma_wgmma`: one thread starts the copies, and four warps multiply together, straight from shared memory.
7. `specialised`: one warp only copies, eight only multiply, and each block computes several tiles.

`gpukit.matmul.matmul` goes on from the last. Kernel 1 takes any matrices. The others copy rows 16 bytes at a time, so a
row's length must be a multiple of 8; `steps` pads other matrices first.
"""

from typing import Any

import numpy as np

from gpukit._host.arrays import check_array, stream_of
from gpukit.backend import cuda, float32, types, uint8, uint32, uint64
from gpukit.intrinsics import (
    allow_dynamic_shared,
    commit_copies,
    copy_async8,
    copy_tensor,
    fence_barrier_init,
    ldmatrix4,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    mma,
    store_fragment,
    tensor_map,
    view_at,
    wait_copies,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)
from warpstep.integers import ceil_div
from warpstep.values import check_choice

__all__ = [
    "VARIANTS",
    "ldmatrix",
    "multiply_by",
    "one_warp",
    "shared_tiles",
    "specialised",
    "stages",
    "steps",
    "swizzled",
    "tma_wgmma",
]

float16 = types.float16
#: Rows, columns and K of one instruction.
M, N, K = 16, 8, 16
#: Rows and columns of a block's tile, and the K of a step.
ROWS, COLUMNS, DEPTH = 128, 128, 64
#: Rows and columns of a warp's tile: 2 x 4 warps.
WARP_ROWS, WARP_COLUMNS = 64, 32
THREADS = 256
#: The pad of a row: 16 bytes, so that the next row begins 4 banks further on.
PAD = 8
PITCH_A, PITCH_B = DEPTH + PAD, COLUMNS + PAD
#: Copies of 16 bytes in a row.
GROUPS_A, GROUPS_B = DEPTH // 8, COLUMNS // 8
#: Pairs of tiles in shared memory: one in use, the others on their way.
STAGES = 3
PENDING = STAGES - 2
#: Bytes of the tiles of a in all stages, and of all tiles.
PADDED_A = 2 * STAGES * ROWS * PITCH_A
PADDED_BYTES = PADDED_A + 2 * STAGES * DEPTH * PITCH_B
SWIZZLED_A = 2 * STAGES * ROWS * DEPTH
SWIZZLED_BYTES = SWIZZLED_A + 2 * STAGES * DEPTH * COLUMNS
#: Instructions of a warp for each K of 16: down and across.
DOWN, ACROSS = WARP_ROWS // M, WARP_COLUMNS // N


@cuda.jit(device=True, forceinline=True)
def at(array, row, col):
    """An element, or zero beyond the edge."""
    return array[row, col] if row < array.shape[0] and col < array.shape[1] else float16(0)


@cuda.jit(device=True, forceinline=True)
def put(out, row, col, value):
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = value


# -- one warp -------------------------------------------------------------------------------------------------------


@cuda.jit
def one_warp(a, b, out):
    """A block is a warp and computes 16 x 8 elements. Blocks of 32 threads."""
    row, col = cuda.blockIdx.y * M, cuda.blockIdx.x * N
    g, t = cuda.laneid // 4, 2 * (cuda.laneid % 4)
    c = float32(0), float32(0), float32(0), float32(0)
    for k in range(0, a.shape[1], K):
        left = (
            at(a, row + g, k + t),
            at(a, row + g, k + t + 1),
            at(a, row + g + 8, k + t),
            at(a, row + g + 8, k + t + 1),
            at(a, row + g, k + t + 8),
            at(a, row + g, k + t + 9),
            at(a, row + g + 8, k + t + 8),
            at(a, row + g + 8, k + t + 9),
        )
        right = (
            at(b, k + t, col + g),
            at(b, k + t + 1, col + g),
            at(b, k + t + 8, col + g),
            at(b, k + t + 9, col + g),
        )
        c = mma(left, right, c)
    put(out, row + g, col + t, c[0])
    put(out, row + g, col + t + 1, c[1])
    put(out, row + g + 8, col + t, c[2])
    put(out, row + g + 8, col + t + 1, c[3])


# -- what the kernels with tiles share --------------------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def clear(sums):
    for i in range(DOWN):
        for j in range(ACROSS):
            for e in range(4):
                sums[i, j, e] = 0


@cuda.jit(device=True, forceinline=True)
def multiply(sums, i, j, left, right):
    """Add one product to four sums of the lane."""
    old = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
    sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = mma(left, right, old)


@cuda.jit(device=True, forceinline=True)
def store(out, row, col, sums):
    """Store the sums of a warp, whose tile begins at (row, col)."""
    row, col = row + cuda.laneid // 4, col + 2 * (cuda.laneid % 4)
    for i in range(DOWN):
        for j in range(ACROSS):
            for e in range(4):
                put(out, row + i * M + 8 * (e // 2), col + j * N + e % 2, sums[i, j, e])


# -- tiles in shared memory -------------------------------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def copy_tiles(tile_a, tile_b, a, b, row, col, k):
    """Begin to copy a pair of tiles, 16 bytes at a time; zeros beyond the edges."""
    tid = uint32(cuda.threadIdx.x)
    row, col, k = uint32(row), uint32(col), uint32(k)  # unsigned: an index that may be negative costs a test
    for first in range(0, ROWS, THREADS // GROUPS_A):
        r, c = uint32(first + tid // GROUPS_A), uint32(tid % GROUPS_A * 8)
        inside = row + r < uint32(a.shape[0]) and k + c < uint32(a.shape[1])
        copy_async8(tile_a, (r, c), a, (row + r, k + c), inside)
    for first in range(0, DEPTH, THREADS // GROUPS_B):
        r, c = uint32(first + tid // GROUPS_B), uint32(tid % GROUPS_B * 8)
        inside = k + r < uint32(b.shape[0]) and col + c < uint32(b.shape[1])
        copy_async8(tile_b, (r, c), b, (k + r, col + c), inside)
    commit_copies()


@cuda.jit(device=True, forceinline=True)
def read_a(tile, row, k):
    """A lane's eight elements of a, from the place of the instruction's operand in the tile."""
    row, k = row + cuda.laneid // 4, k + 2 * (cuda.laneid % 4)
    return (
        tile[row, k],
        tile[row, k + 1],
        tile[row + 8, k],
        tile[row + 8, k + 1],
        tile[row, k + 8],
        tile[row, k + 9],
        tile[row + 8, k + 8],
        tile[row + 8, k + 9],
    )


@cuda.jit(device=True, forceinline=True)
def read_b(tile, k, col):
    """A lane's four elements of b."""
    k, col = k + 2 * (cuda.laneid % 4), col + cuda.laneid // 4
    return tile[k, col], tile[k + 1, col], tile[k + 8, col], tile[k + 9, col]


@cuda.jit
def shared_tiles(a, b, out):
    """A block computes 128 x 128 elements, each of its 8 warps 64 x 32. Blocks of 256 threads."""
    tile_a = cuda.shared.array((ROWS, DEPTH), float16, alignment=16)
    tile_b = cuda.shared.array((DEPTH, COLUMNS), float16, alignment=16)
    sums = cuda.local.array((DOWN, ACROSS, 4), float32)
    row, col, warp = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLUMNS, cuda.threadIdx.x // 32
    my_row, my_col = warp // 4 * WARP_ROWS, warp % 4 * WARP_COLUMNS
    clear(sums)
    for first in range(0, a.shape[1], DEPTH):
        copy_tiles(tile_a, tile_b, a, b, row, col, first)
        wait_copies(0)
        cuda.syncthreads()
        for k in range(0, DEPTH, K):
            for i in range(DOWN):
                left = read_a(tile_a, my_row + i * M, k)
                for j in range(ACROSS):
                    multiply(sums, i, j, left, read_b(tile_b, k, my_col + j * N))
        cuda.syncthreads()
    store(out, row + my_row, col + my_col, sums)


# -- one instruction for an operand -----------------------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def multiply_tiles(sums, tile_a, tile_b, my_row, my_col):
    """Multiply a warp's 64 rows of a tile of a by its 32 columns of a tile of b."""
    r, c = cuda.laneid % 16, cuda.laneid // 16 * 8  # the 8 elements whose address this lane gives
    for k in range(0, DEPTH, K):
        right = ldmatrix4(tile_b, (k + r, my_col + c), True)  # columns 0 to 15
        further = ldmatrix4(tile_b, (k + r, my_col + 16 + c), True)
        for i in range(DOWN):
            multiply_row(sums, i, ldmatrix4(tile_a, (my_row + i * M + r, k + c)), right, further)


@cuda.jit(device=True, forceinline=True)
def multiply_row(sums, i, left, right, further):
    """Multiply 16 rows by 32 columns."""
    multiply(sums, i, 0, left, right[:4])
    multiply(sums, i, 1, left, right[4:])
    multiply(sums, i, 2, left, further[:4])
    multiply(sums, i, 3, left, further[4:])


@cuda.jit
def ldmatrix(a, b, out):
    """The same with operands that are loaded as matrices of 8 x 8, from padded rows. Blocks of 256 threads."""
    tile_a = cuda.shared.array((ROWS, PITCH_A), float16, alignment=16)
    tile_b = cuda.shared.array((DEPTH, PITCH_B), float16, alignment=16)
    sums = cuda.local.array((DOWN, ACROSS, 4), float32)
    row, col, warp = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLUMNS, cuda.threadIdx.x // 32
    my_row, my_col = warp // 4 * WARP_ROWS, warp % 4 * WARP_COLUMNS
    clear(sums)
    for first in range(0, a.shape[1], DEPTH):
        copy_tiles(tile_a, tile_b, a, b, row, col, first)
        wait_copies(0)
        cuda.syncthreads()
        multiply_tiles(sums, tile_a, tile_b, my_row, my_col)
        cuda.syncthreads()
    store(out, row + my_row, col + my_col, sums)


# -- copies in the background -----------------------------------------------------------------------------------------


@cuda.jit
def stages(a, b, out):
    """The same with copies that are under way while earlier tiles are multiplied. Blocks of 256 threads."""
    buffer = cuda.shared.array(0, uint8, alignment=1024)
    tiles_a = view_at(buffer, 0, (STAGES, ROWS, PITCH_A), float16)
    tiles_b = view_at(buffer, PADDED_A, (STAGES, DEPTH, PITCH_B), float16)
    sums = cuda.local.array((DOWN, ACROSS, 4), float32)
    row, col, warp = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLUMNS, cuda.threadIdx.x // 32
    my_row, my_col = warp // 4 * WARP_ROWS, warp % 4 * WARP_COLUMNS
    clear(sums)
    for stage in range(STAGES - 1):
        copy_tiles(tiles_a[stage], tiles_b[stage], a, b, row, col, stage * DEPTH)
    stage, free = 0, STAGES - 1
    for first in range(0, a.shape[1], DEPTH):
        wait_copies(PENDING)
        cuda.syncthreads()
        copy_tiles(tiles_a[free], tiles_b[free], a, b, row, col, first + (STAGES - 1) * DEPTH)
        multiply_tiles(sums, tiles_a[stage], tiles_b[stage], my_row, my_col)
        stage, free = (stage + 1) % STAGES, stage
    store(out, row + my_row, col + my_col, sums)


@cuda.jit
def swizzled(a, b, out):
    """The same without a pad: in row r, the 8 elements at place p are at place p ^ r % 8. Blocks of 256 threads."""
    buffer = cuda.shared.array(0, uint8, alignment=1024)
    tiles_a = view_at(buffer, 0, (STAGES, ROWS, DEPTH), float16)
    tiles_b = view_at(buffer, SWIZZLED_A, (STAGES, DEPTH, COLUMNS), float16)
    sums = cuda.local.array((DOWN, ACROSS, 4), float32)
    row, col, warp = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLUMNS, cuda.threadIdx.x // 32
    my_row, my_col = warp // 4 * WARP_ROWS, warp % 4 * WARP_COLUMNS
    clear(sums)
    for stage in range(STAGES - 1):
        copy_swizzled(tiles_a[stage], tiles_b[stage], a, b, row, col, stage * DEPTH)
    stage, free = 0, STAGES - 1
    for first in range(0, a.shape[1], DEPTH):
        wait_copies(PENDING)
        cuda.syncthreads()
        copy_swizzled(tiles_a[free], tiles_b[free], a, b, row, col, first + (STAGES - 1) * DEPTH)
        multiply_swizzled(sums, tiles_a[stage], tiles_b[stage], my_row, my_col)
        stage, free = (stage + 1) % STAGES, stage
    store(out, row + my_row, col + my_col, sums)


@cuda.jit(device=True, forceinline=True)
def copy_swizzled(tile_a, tile_b, a, b, row, col, k):
    tid = uint32(cuda.threadIdx.x)
    row, col, k = uint32(row), uint32(col), uint32(k)
    for first in range(0, ROWS, THREADS // GROUPS_A):
        r, c = uint32(first + tid // GROUPS_A), uint32(tid % GROUPS_A * 8)
        inside = row + r < uint32(a.shape[0]) and k + c < uint32(a.shape[1])
        copy_async8(tile_a, (r, c ^ r % 8 * 8), a, (row + r, k + c), inside)
    for first in range(0, DEPTH, THREADS // GROUPS_B):
        r, c = uint32(first + tid // GROUPS_B), uint32(tid % GROUPS_B * 8)
        inside = k + r < uint32(b.shape[0]) and col + c < uint32(b.shape[1])
        copy_async8(tile_b, (r, c ^ r % 8 * 8), b, (k + r, col + c), inside)
    commit_copies()


@cuda.jit(device=True, forceinline=True)
def multiply_swizzled(sums, tile_a, tile_b, my_row, my_col):
    r, c = cuda.laneid % 16, cuda.laneid // 16 * 8
    swap = r % 8 * 8  # all rows that this lane gives are r more than a multiple of 16
    for k in range(0, DEPTH, K):
        right = ldmatrix4(tile_b, (k + r, my_col + c ^ swap), True)
        further = ldmatrix4(tile_b, (k + r, my_col + 16 + c ^ swap), True)
        for i in range(DOWN):
            multiply_row(sums, i, ldmatrix4(tile_a, (my_row + i * M + r, k + c ^ swap)), right, further)


# -- four warps together ----------------------------------------------------------------------------------------------

#: Rows of a product of four warps; rows of 128 bytes in shared memory, and how many lie side by side in a tile of b.
GROUP_ROWS, WIDE = 64, 64
PARTS = COLUMNS // WIDE
#: Sums of a lane.
SUMS = COLUMNS // 2
RING = 4
RING_A = 2 * RING * GROUP_ROWS * WIDE
RING_BYTES = RING_A + 2 * RING * WIDE * COLUMNS
#: Bytes that a step copies.
STEP_BYTES = RING_BYTES // RING


@cuda.jit
def tma_wgmma(a, b, out, depth):
    """Four warps compute 64 x 128. ``a`` and ``b`` are tensor maps, and ``depth`` is K. Blocks of 128 threads."""
    buffer = cuda.shared.array(0, uint8, alignment=1024)
    tiles_a = view_at(buffer, 0, (RING, GROUP_ROWS, WIDE), float16)
    tiles_b = view_at(buffer, RING_A, (RING, PARTS, WIDE, WIDE), float16)
    full = view_at(buffer, RING_BYTES, RING, uint64)  # a barrier for each stage: its tiles are here
    row, col, tid = cuda.blockIdx.y * GROUP_ROWS, cuda.blockIdx.x * COLUMNS, cuda.threadIdx.x
    steps = (depth + WIDE - 1) // WIDE
    if tid == 0:
        for stage in range(RING):
            mbarrier_init(full, stage, 1)
        fence_barrier_init()
        for step in range(min(RING - 1, steps)):
            copy_step(tiles_a, tiles_b, full, step, a, b, row, col)
    cuda.syncthreads()
    sums = zeros(SUMS)
    for step in range(steps):
        stage = step % RING
        if tid == 0 and step + RING - 1 < steps:
            copy_step(tiles_a, tiles_b, full, step + RING - 1, a, b, row, col)
        mbarrier_wait(full, stage, step // RING % 2)
        wgmma_fence()
        for k in range(0, WIDE, K):
            sums = wgmma(sums, tiles_a, (stage, 0, k), tiles_b, (stage, 0, k, 0), False, True)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        cuda.syncthreads()  # all four warps have read the stage: it may be overwritten
    store_fragment(out, (row + tid // 32 * 16, col), sums, True)


@cuda.jit(device=True, forceinline=True)
def copy_step(tiles_a, tiles_b, full, step, a, b, row, col):
    """Begin to copy the tiles of a step; beyond the edges there are zeros. One thread does it."""
    stage, first = step % RING, step * WIDE
    mbarrier_expect(full, stage, STEP_BYTES)
    copy_tensor(tiles_a, (stage, 0, 0), a, (row, first), full, stage)
    for part in range(PARTS):
        copy_tensor(tiles_b, (stage, part, 0, 0), b, (first, col + part * WIDE), full, stage)


# -- a warp that copies, and warps that multiply ----------------------------------------------------------------------

#: Groups of four warps that multiply, rows and columns of a block's tile, and the sums of a lane.
GROUPS, TALL, BROAD, BROAD_SUMS = 2, 128, 256, 128
BROAD_PARTS = BROAD // WIDE
TALL_A = 2 * RING * TALL * WIDE
TALL_BYTES = TALL_A + 2 * RING * WIDE * BROAD


@cuda.jit
def specialised(a, b, out, depth):
    """Blocks compute tile after tile of 128 x 256: a warp copies, two groups multiply. Blocks of 288 threads."""
    buffer = cuda.shared.array(0, uint8, alignment=1024)
    tiles_a = view_at(buffer, 0, (RING, TALL, WIDE), float16)
    tiles_b = view_at(buffer, TALL_A, (RING, BROAD_PARTS, WIDE, WIDE), float16)
    full = view_at(buffer, TALL_BYTES, RING, uint64)  # the tiles of a stage are here
    free = view_at(buffer, TALL_BYTES + 8 * RING, RING, uint64)  # both groups have read them
    tid, group = cuda.threadIdx.x, cuda.threadIdx.x // 128
    across, steps = (out.shape[1] + BROAD - 1) // BROAD, (depth + WIDE - 1) // WIDE
    tiles = across * ((out.shape[0] + TALL - 1) // TALL)
    if tid == 0:
        for stage in range(RING):
            mbarrier_init(full, stage, 1)
            mbarrier_init(free, stage, GROUPS)
        fence_barrier_init()
    cuda.syncthreads()
    turn = 0  # counts the steps of all tiles
    if group == GROUPS:
        if tid == GROUPS * 128:
            for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                row, col = tile // across * TALL, tile % across * BROAD
                for step in range(steps):
                    stage, first = turn % RING, step * WIDE
                    mbarrier_wait(free, stage, 1 - turn // RING % 2)
                    mbarrier_expect(full, stage, TALL_BYTES // RING)
                    copy_tensor(tiles_a, (stage, 0, 0), a, (row, first), full, stage)
                    for part in range(BROAD_PARTS):
                        copy_tensor(tiles_b, (stage, part, 0, 0), b, (first, col + part * WIDE), full, stage)
                    turn += 1
    else:
        top = group * GROUP_ROWS
        for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            row, col = tile // across * TALL, tile % across * BROAD
            sums = zeros(BROAD_SUMS)
            for _ in range(steps):
                stage = turn % RING
                mbarrier_wait(full, stage, turn // RING % 2)
                wgmma_fence()
                for k in range(0, WIDE, K):
                    sums = wgmma(sums, tiles_a, (stage, top, k), tiles_b, (stage, 0, k, 0), False, True)
                wgmma_commit()
                sums = wgmma_wait(0, sums)
                if tid % 128 == 0:
                    mbarrier_arrive(free, stage)
                turn += 1
            store_fragment(out, (row + tid // 32 * 16, col), sums, True)


# -- to launch them ---------------------------------------------------------------------------------------------------

#: The rungs, in order.
VARIANTS = {
    "one_warp": one_warp,
    "shared_tiles": shared_tiles,
    "ldmatrix": ldmatrix,
    "stages": stages,
    "swizzled": swizzled,
    "tma_wgmma": tma_wgmma,
    "specialised": specialised,
}
#: Rows and columns of a block's tile, its threads, and its dynamic shared memory.
BLOCKS = {
    "one_warp": (M, N, 32, 0),
    "shared_tiles": (ROWS, COLUMNS, THREADS, 0),
    "ldmatrix": (ROWS, COLUMNS, THREADS, 0),
    "stages": (ROWS, COLUMNS, THREADS, PADDED_BYTES),
    "swizzled": (ROWS, COLUMNS, THREADS, SWIZZLED_BYTES),
    "tma_wgmma": (GROUP_ROWS, COLUMNS, 128, RING_BYTES + 8 * RING),
    "specialised": (TALL, BROAD, 32 * (4 * GROUPS + 1), TALL_BYTES + 16 * RING),
}


@cuda.jit
def pad_rows(matrix, out):
    """Copy a matrix into one with longer rows, which end in zeros."""
    i = cuda.grid(1)
    if i < out.size:
        row, col = i // out.shape[1], i % out.shape[1]
        out[row, col] = matrix[row, col] if col < matrix.shape[1] else float16(0)


def steps(variant: str, a: Any, b: Any, out: Any, stream: Any = None) -> list[tuple]:
    """The launches of one product, to be made, traced or timed in this order: ``for launch, arguments in steps(...)``.

    Parameters
    ----------
    variant : str
        One of ``VARIANTS``. "tma_wgmma" and "specialised" need compute capability 9.0, the others 8.0.
    a, b : device arrays of two dimensions, float16
        (M, K) and (K, N), with an element or more.
    out : device array, float32
        (M, N).
    stream : CUDA stream, optional

    Returns
    -------
    list of (launch, arguments)
        The last one multiplies. Launches before it pad rows whose length is no multiple of 8, for kernels that
        need it.

    Raises
    ------
    TypeError, ValueError
        For another variant or other arrays.

    Examples
    --------
    >>> a, b = cuda.to_device(np.eye(4, dtype=np.float16)), cuda.to_device(np.ones((4, 3), np.float16))
    >>> out = cuda.device_array((4, 3), np.float32)
    >>> for launch, arguments in steps("shared_tiles", a, b, out):
    ...     launch(*arguments)
    >>> out.copy_to_host()[0]
    array([1., 1., 1.], dtype=float32)
    """
    check_choice("variant", variant, VARIANTS)
    for name, array, dtype in (("a", a, np.float16), ("b", b, np.float16), ("out", out, np.float32)):
        check_array(name, array, 2, (dtype,))
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k or out.shape != (m, n) or 0 in (m, n, k):
        raise ValueError(f"a {a.shape}, b {b.shape} and out {out.shape} are no product of one element or more")
    stream, launches = stream_of(stream), []
    if variant != "one_warp":
        a, b = (_padded(matrix, stream, launches) for matrix in (a, b))
    kernel, (rows, columns, threads, shared) = VARIANTS[variant], BLOCKS[variant]
    grid: Any = ceil_div(n, columns), ceil_div(m, rows)
    if shared:
        allow_dynamic_shared(kernel, shared)
    arguments = a, b, out
    if variant in ("tma_wgmma", "specialised"):
        arguments = tensor_map(a, (rows, WIDE)), tensor_map(b, (WIDE, WIDE)), out, k
    if variant == "specialised":
        grid = min(grid[0] * grid[1], cuda.get_current_device().MULTIPROCESSOR_COUNT)
    return [*launches, (kernel[grid, threads, stream, shared], arguments)]


def _padded(matrix, stream, launches):
    rows, columns = matrix.shape
    if columns % 8 == 0:
        return matrix
    wide = cuda.device_array((rows, 8 * ceil_div(columns, 8)), np.float16, stream=stream)
    launches.append((pad_rows[ceil_div(wide.size, THREADS), THREADS, stream], (matrix, wide)))
    return wide


def multiply_by(a: np.ndarray, b: np.ndarray, variant: str) -> np.ndarray:
    """Multiply float16 matrices of the host with a rung of the ladder; return float32.

    TypeError or ValueError as from `steps`.

    Examples
    --------
    >>> multiply_by(np.eye(2, dtype=np.float16), np.ones((2, 2), np.float16), "one_warp")
    array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    for name, matrix in (("a", a), ("b", b)):
        check_array(name, matrix, 2, (np.float16,))
    out = cuda.device_array((a.shape[0], b.shape[1]), np.float32)
    for launch, arguments in steps(variant, cuda.to_device(a), cuda.to_device(b), out):
        launch(*arguments)
    return out.copy_to_host()
