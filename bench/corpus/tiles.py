"""Kernels with tiles in shared memory, for tensor cores: what loads matrices, multiplies tiles, and copies them.

The tests run them against NumPy; `bench.corpus.kernels` has cases of them whose counts Nsight Compute has measured.
"""

import numpy as np

from gpukit import intrinsics
from gpukit.backend import cuda, float32, int32, types, uint8, uint64
from gpukit.intrinsics import (
    commit_stores,
    copy_tensor,
    fence_async,
    fence_barrier_init,
    ldmatrix1,
    ldmatrix2,
    ldmatrix4,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    mma,
    store_fragment,
    store_tensor,
    tensor_map,
    view_at,
    wait_stores,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)
from warpstep.integers import ceil_div

float16 = types.float16


def numba_type(dtype):
    return getattr(types, np.dtype(dtype).name)


def to_bfloat16(x):
    """The bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def numbers(random, dtype, shape, exact=True):
    """Random elements that a tile can hold; ``exact``: small integers, whose products have exact sums."""
    values = random.integers(-9, 10, shape) if exact else random.standard_normal(shape)
    if np.dtype(dtype) == np.uint8:
        return np.abs(values).astype(np.uint8)
    return to_bfloat16(values) if np.dtype(dtype) == np.uint16 else values.astype(dtype)


def values_of(array):
    return from_bfloat16(array).astype(np.float64) if array.dtype == np.uint16 else array.astype(np.float64)


def swizzled(tile):
    """A tile of rows of 16 to 128 bytes as it lies in shared memory: places of 16 bytes change by row."""
    nbytes = tile.shape[-1] * tile.itemsize
    if nbytes not in (32, 64, 128):
        return tile
    rows = np.ascontiguousarray(tile).view(np.uint8).reshape(-1, nbytes // 16, 16)
    row, place = np.arange(rows.shape[0])[:, None], np.arange(nbytes // 16)
    return rows[row, place ^ row // (128 // nbytes) % (nbytes // 16)].reshape(-1).view(tile.dtype).reshape(tile.shape)


def matrix_loader(count, dtype, trans, width):
    load, held = {1: ldmatrix1, 2: ldmatrix2, 4: ldmatrix4}[count], numba_type(dtype)

    @cuda.jit
    def load_matrices(source, rows, columns, out):
        tile = cuda.shared.array((64, width), held, alignment=16)
        lane = cuda.threadIdx.x
        for i in range(lane, 64 * width, 32):
            tile[i // width, i % width] = source[i // width, i % width]
        cuda.syncthreads()
        found = load(tile, (rows[lane], columns[lane]), trans)
        for i in range(len(found)):
            out[lane, i] = found[i]

    return load_matrices


def tile_multiplier(dtype, columns, trans_a, trans_b, registers, row_bytes):
    """A kernel that multiplies 64 x depth by depth x columns, by tiles that lie as `wgmma` wants them."""
    held, sums = numba_type(dtype), columns // 2
    span, step = row_bytes // np.dtype(dtype).itemsize, 32 // np.dtype(dtype).itemsize
    depth = 2 * step
    shape_a, shape_b = tile_shape(64, depth, span, trans_a), tile_shape(columns, depth, span, trans_b)
    total = int32 if np.dtype(dtype).itemsize == 1 else float32
    size_a, size_b = int(np.prod(shape_a)), int(np.prod(shape_b))
    nbytes = np.dtype(dtype).itemsize

    @cuda.jit
    def multiply(a, b, out):
        buffer = cuda.shared.array(0, uint8, alignment=1024)
        left = view_at(buffer, 0, shape_a, held)
        right = view_at(buffer, (size_a * nbytes + 1023) // 1024 * 1024, shape_b, held)
        flat_left, flat_right = (
            view_at(buffer, 0, size_a, held),
            view_at(buffer, (size_a * nbytes + 1023) // 1024 * 1024, size_b, held),
        )
        tid = cuda.threadIdx.x
        for i in range(tid, size_a, 128):
            flat_left[i] = a[i]
        for i in range(tid, size_b, 128):
            flat_right[i] = b[i]
        fence_async()
        cuda.syncthreads()
        warp, lane = tid // 32, tid % 32
        sum = zeros(sums, total)
        if registers:
            first = ldmatrix4(left, (0, 16 * warp + lane % 16, step // 2 * (lane // 16)))
            second = ldmatrix4(left, (1, 16 * warp + lane % 16, step // 2 * (lane // 16)))
            wgmma_fence()
            sum = wgmma(sum, first, None, right, place(trans_b, 0, step, span), trans_b=trans_b, add=False)
            sum = wgmma(sum, second, None, right, place(trans_b, 1, step, span), trans_b=trans_b)
        else:
            wgmma_fence()
            for k in range(2):
                sum = wgmma(
                    sum,
                    left,
                    place(trans_a, k, step, span),
                    right,
                    place(trans_b, k, step, span),
                    trans_a=trans_a,
                    trans_b=trans_b,
                )
        wgmma_commit()
        sum = wgmma_wait(0, sum)
        store_fragment(out, (16 * warp, 0), sum)

    return multiply, size_a * nbytes + 1024 + size_b * nbytes


@cuda.jit(device=True)
def place(trans, k, step, span):
    """The index in a tile (part, row, column) of step ``k`` along K."""
    if trans:
        return 0, k * step, 0
    return k * step // span, 0, k * step % span


def tile_shape(count, depth, span, trans):
    """Parts, rows and columns of a tile of ``count`` rows along K, or of the rows of K if it is transposed."""
    if trans:
        return ceil_div(count, span), depth, span
    return ceil_div(depth, span), count, span


def as_tile(matrix, span, trans):
    """A matrix (rows, K) as it lies in a tile."""
    rows = matrix.T if trans else matrix
    shape = tile_shape(*matrix.shape, span, trans)
    padded = np.zeros((shape[1], shape[0] * span), matrix.dtype)
    padded[:, : rows.shape[1]] = rows
    parts = padded.reshape(shape[1], shape[0], span).transpose(1, 0, 2)
    return swizzled(np.ascontiguousarray(parts)).reshape(-1)


PRODUCTS = [
    (np.float16, 64, False, False, False, 128),
    (np.float16, 8, True, True, False, 64),
    (np.uint16, 256, False, True, False, 128),
    (np.uint16, 40, True, False, False, 32),
    (np.float16, 128, True, True, False, 32),
    (np.float16, 16, False, False, False, 16),
    (np.float16, 24, True, True, False, 16),
    (np.float32, 32, False, False, False, 64),
    (np.float32, 8, False, False, False, 16),
    (np.int8, 48, False, False, False, 128),
    (np.uint8, 16, False, False, False, 32),
]
HELD = [(np.float16, 64, True, 32), (np.uint16, 16, False, 32), (np.float32, 32, False, 32), (np.int8, 32, False, 32)]
PRODUCTS += [(dtype, columns, False, trans, True, nbytes) for dtype, columns, trans, nbytes in HELD]


STAGES, ROWS, COLUMNS, DEPTH = 3, 128, 64, 64
SUMS = COLUMNS // 2


def product_pipeline(wait=True, release=True, expect=True, done=True, fence=True, parity=0):
    """A product of matrices: a warp copies tiles, two groups of four warps multiply them; with mistakes on demand."""
    size_a, size_b = ROWS * DEPTH * 2, COLUMNS * DEPTH * 2

    @cuda.jit(launch_bounds=384)
    def multiply(a, b, out, depth):
        buffer = cuda.shared.array(0, uint8, alignment=1024)
        left = view_at(buffer, 0, (STAGES, ROWS, DEPTH), float16)
        right = view_at(buffer, STAGES * size_a, (STAGES, DEPTH, COLUMNS), float16)
        full = view_at(buffer, STAGES * (size_a + size_b), STAGES, uint64)
        free = view_at(buffer, STAGES * (size_a + size_b) + 64, STAGES, uint64)
        tid = cuda.threadIdx.x
        group = tid // 128
        if tid == 0:
            for stage in range(STAGES):
                mbarrier_init(full, stage, 1)
                mbarrier_init(free, stage, 2)
            fence_barrier_init()
        cuda.syncthreads()
        row, column = ROWS * cuda.blockIdx.y, COLUMNS * cuda.blockIdx.x
        steps = (depth + DEPTH - 1) // DEPTH
        if group == 2:
            if tid == 256:
                for i in range(steps):
                    stage = i % STAGES
                    if release:
                        mbarrier_wait(free, stage, (i // STAGES + 1) % 2)
                    if expect:
                        mbarrier_expect(full, stage, size_a + size_b)
                    else:
                        mbarrier_expect(full, stage, size_a)
                    copy_tensor(left, (stage, 0, 0), a, (row, i * DEPTH), full, stage)
                    copy_tensor(right, (stage, 0, 0), b, (i * DEPTH, column), full, stage)
        else:
            sums = zeros(SUMS)
            for i in range(steps):
                stage = i % STAGES
                if wait:
                    mbarrier_wait(full, stage, (i // STAGES + parity) % 2)
                if fence:
                    wgmma_fence()
                for k in range(DEPTH // 16):
                    sums = wgmma(sums, left, (stage, 64 * group, 16 * k), right, (stage, 16 * k, 0), trans_b=True)
                wgmma_commit()
                if done:
                    sums = wgmma_wait(0, sums)
                if tid % 128 == 0:
                    mbarrier_arrive(free, stage)
            store_fragment(out, (row + tid // 32 % 4 * 16 + 64 * group, column), sums, guard=True)

    return multiply, STAGES * (size_a + size_b) + 128


def launch_product(made, m, n, k):
    random = np.random.default_rng(m)
    kernel, nbytes = made
    pad = -n % 8
    a, b = numbers(random, np.float16, (m, k)), numbers(random, np.float16, (k, n + pad))
    out = np.full((m, n), np.nan, np.float32)
    maps = [tensor_map(cuda.to_device(x), box) for x, box in ((a, (ROWS, DEPTH)), (b, (DEPTH, COLUMNS)))]
    intrinsics.allow_dynamic_shared(kernel, nbytes)
    grid = ceil_div(n, COLUMNS), ceil_div(m, ROWS)
    return kernel[grid, 384, 0, nbytes], (*maps, out, k), out, values_of(a) @ values_of(b)[:, :n]


# -- kernels for counters alone ----------------------------------------------------------------------------------------


def row_matrix_loader(count, pitch):
    """Make a kernel that loads matrices from a tile whose rows hold their numbers, at any of 64 rows."""
    load = {1: ldmatrix1, 2: ldmatrix2, 4: ldmatrix4}[count]

    @cuda.jit
    def load_matrices(rows, columns, out):
        tile = cuda.shared.array((64, pitch), types.uint16, alignment=16)
        lane = cuda.threadIdx.x
        for row in range(64):
            tile[row, lane] = row
            tile[row, lane + 32] = row
        cuda.syncthreads()
        found = load(tile, (rows[lane], columns[lane]))
        for i in range(count):
            out[lane, i] = found[i]

    return load_matrices


@cuda.jit
def warp_product(a, b, out):
    """Multiply words that hold elements along K: of TF32, two bfloat16, or four int8."""
    lane = cuda.threadIdx.x
    zero = out[lane, 0]
    left = a[lane, 0], a[lane, 1], a[lane, 2], a[lane, 3]
    c = mma(left, (b[lane, 0], b[lane, 1]), (zero, zero, zero, zero))
    for i in range(4):
        out[lane, i] = c[i]


def tile_product(name, columns):
    """Make a kernel that copies tiles with rows of 128 bytes, multiplies them, and copies the sums back."""
    dtype = getattr(types, name)
    span, sums = 128 * 8 // dtype.bitwidth, columns // 2
    steps, step = 4, span // 4
    nbytes = 128 * (64 + columns)
    total = int32 if name == "int8" else float32

    @cuda.jit
    def multiply_tiles(a, b, c, count):
        left = cuda.shared.array((64, span), dtype, alignment=1024)
        right = cuda.shared.array((columns, span), dtype, alignment=1024)
        result = cuda.shared.array((64, columns), total, alignment=1024)
        barriers = cuda.shared.array(1, types.uint64)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(barriers, 0, 1)
            fence_barrier_init()
        cuda.syncthreads()
        held = zeros(sums, total)
        for i in range(count):
            if tid == 0:
                mbarrier_expect(barriers, 0, nbytes)
                copy_tensor(left, (0, 0), a, (64 * cuda.blockIdx.x, i * span), barriers, 0)
                copy_tensor(right, (0, 0), b, (0, i * span), barriers, 0)
            mbarrier_wait(barriers, 0, i % 2)
            wgmma_fence()
            for k in range(steps):
                held = wgmma(held, left, (0, k * step), right, (0, k * step))
            wgmma_commit()
            held = wgmma_wait(0, held)
            cuda.syncthreads()
        store_fragment(result, (16 * (tid // 32), 0), held)
        fence_async()
        cuda.syncthreads()
        if tid == 0:
            store_tensor(c, (64 * cuda.blockIdx.x, 0), result, (0, 0))
            commit_stores()
            wait_stores(0)

    return multiply_tiles


def tile_maps(dtype, columns):
    """The arguments of `tile_product`, for three blocks and three steps along K."""
    span, total = 128 // dtype.itemsize, np.int32 if dtype == np.int8 else np.float32
    a, b = (cuda.to_device(np.zeros((rows, 3 * span), dtype)) for rows in (192, columns))
    c = cuda.to_device(np.zeros((192, columns), total))
    return tensor_map(a, (64, span)), tensor_map(b, (columns, span)), tensor_map(c, (64, columns), 0), 3
