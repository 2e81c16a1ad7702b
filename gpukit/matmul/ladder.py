"""From a tile in registers to asynchronous copies: one idea per kernel, each built on the one before.

1. `registers_1d`: a thread computes 8 elements of a column: 9 loads from shared memory for 8 products, not 16.
2. `registers_2d`: a thread computes 8 x 8 elements: 16 loads for 64 products.
3. `wide`: 128-bit accesses, four elements in one instruction.
4. `transposed`: columns of a are rows in shared memory, so that they are read by 128 bits too.
5. `transposed_padded`: a pad in these rows, which removes the bank conflicts of the stores.
6. `double_buffered`: the next tiles are loaded while these are multiplied; one barrier per step in place of two.
7. `warp_tiles`: each warp has a tile, and neighbouring lanes read neighbouring words: no load has a bank conflict.
8. `read_ahead`: a second set of registers; a thread reads the values for the next k while it multiplies these.
9. `asynchronous`: copies to shared memory that need no registers, so that two steps are under way.

The tenth is `gpukit.matmul.fast`. A block computes a tile of ``out``, a thread 8 or 64 elements of it in registers.
Each kernel is made by a function. ``aligned`` says whether the rows of ``a``, ``b`` and ``out`` begin at multiples of
16 bytes: only then may four elements move at a time.
"""

import functools

from gpukit.backend import cuda, float32, uint32
from gpukit.intrinsics import commit_copies, copy_async, copy_async4, load4, store4, wait_copies

__all__ = [
    "asynchronous",
    "double_buffered",
    "read_ahead",
    "registers_1d",
    "registers_2d",
    "transposed",
    "transposed_padded",
    "warp_tiles",
    "wide",
]

#: Rows and columns of a block's tile from registers_2d on.
TILE = 128
#: Columns of ``a``, and rows of ``b``, in shared memory at a time.
DEPTH = 8
#: Rows and columns of the tile that a thread computes.
PER_THREAD = 8
THREADS_ACROSS = TILE // PER_THREAD
THREADS = THREADS_ACROSS * THREADS_ACROSS
#: The same for registers_1d, where a thread computes part of one column.
TILE_1D = 64
THREADS_1D = TILE_1D * TILE_1D // PER_THREAD
#: The pad of a row of 128 float32: the least that keeps the next one at a multiple of 16 bytes.
PAD = 4


# -- a tile in registers ---------------------------------------------------------------------------


@functools.cache
def registers_1d(dtype):
    """Make the kernel in which a thread computes 8 elements of a column: 9 loads from shared memory for 8 products.

    Blocks of 512 threads, tiles of 64 x 64.
    """

    @cuda.jit
    def registers_1d(a, b, out):
        tile_a = cuda.shared.array((TILE_1D, DEPTH), dtype)
        tile_b = cuda.shared.array((DEPTH, TILE_1D), dtype)
        sums = cuda.local.array(PER_THREAD, dtype)
        tid = uint32(cuda.threadIdx.x)
        my_row, my_col = tid // TILE_1D * PER_THREAD, tid % TILE_1D
        row, col = uint32(cuda.blockIdx.y) * TILE_1D, uint32(cuda.blockIdx.x) * TILE_1D
        for i in range(PER_THREAD):
            sums[i] = dtype(0)
        for first in range(0, a.shape[1], DEPTH):
            r, k = tid // DEPTH, tid % DEPTH
            inside = row + r < a.shape[0] and first + k < a.shape[1]
            tile_a[r, k] = a[row + r, first + k] if inside else dtype(0)
            k, c = tid // TILE_1D, tid % TILE_1D
            inside = first + k < b.shape[0] and col + c < b.shape[1]
            tile_b[k, c] = b[first + k, col + c] if inside else dtype(0)
            cuda.syncthreads()
            for k in range(DEPTH):
                right = tile_b[k, my_col]
                for i in range(PER_THREAD):
                    sums[i] += tile_a[my_row + i, k] * right
            cuda.syncthreads()
        for i in range(PER_THREAD):
            if row + my_row + i < out.shape[0] and col + my_col < out.shape[1]:
                out[row + my_row + i, col + my_col] = sums[i]

    return registers_1d


@functools.cache
def registers_2d(dtype):
    """Make the kernel in which a thread computes 8 x 8 elements: 16 loads from shared memory for 64 products.

    Blocks of 256 threads, tiles of 128 x 128.
    """

    @cuda.jit
    def registers_2d(a, b, out):
        tile_a = cuda.shared.array((TILE, DEPTH), dtype)
        tile_b = cuda.shared.array((DEPTH, TILE), dtype)
        sums = cuda.local.array((PER_THREAD, PER_THREAD), dtype)
        left, right = cuda.local.array(PER_THREAD, dtype), cuda.local.array(PER_THREAD, dtype)
        tid = uint32(cuda.threadIdx.x)
        my_row, my_col = tid // THREADS_ACROSS * PER_THREAD, tid % THREADS_ACROSS * PER_THREAD
        row, col = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
        clear(sums)
        for first in range(0, a.shape[1], DEPTH):
            for at in range(tid, TILE * DEPTH, THREADS):
                r, k = at // DEPTH, at % DEPTH
                inside = row + r < a.shape[0] and first + k < a.shape[1]
                tile_a[r, k] = a[row + r, first + k] if inside else dtype(0)
                k, c = at // TILE, at % TILE
                inside = first + k < b.shape[0] and col + c < b.shape[1]
                tile_b[k, c] = b[first + k, col + c] if inside else dtype(0)
            cuda.syncthreads()
            for k in range(DEPTH):
                for i in range(PER_THREAD):
                    left[i] = tile_a[my_row + i, k]
                    right[i] = tile_b[k, my_col + i]
                multiply(sums, left, right)
            cuda.syncthreads()
        for i in range(PER_THREAD):
            for j in range(PER_THREAD):
                if row + my_row + i < out.shape[0] and col + my_col + j < out.shape[1]:
                    out[row + my_row + i, col + my_col + j] = sums[i, j]

    return registers_2d


@cuda.jit(device=True, forceinline=True)
def clear(sums):
    for i in range(PER_THREAD):
        for j in range(PER_THREAD):
            sums[i, j] = 0


@cuda.jit(device=True, forceinline=True)
def multiply(sums, left, right):
    """Add the products of each value of ``left`` with each of ``right`` to the thread's sums."""
    for i in range(PER_THREAD):
        for j in range(PER_THREAD):
            sums[i, j] += left[i] * right[j]


# -- four elements at a time -----------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def load_or_zero(array, row, col):
    return array[row, col] if row < array.shape[0] and col < array.shape[1] else float32(0)


@functools.cache
def make_load_four(aligned):
    @cuda.jit(device=True, forceinline=True)
    def load_four(array, row, col):
        """Load four neighbours of a row; zeros outside of the matrix."""
        if aligned:
            if row < array.shape[0] and col < array.shape[1]:
                return load4(array, (row, col))
            return float32(0), float32(0), float32(0), float32(0)
        w, x = load_or_zero(array, row, col), load_or_zero(array, row, col + 1)
        y, z = load_or_zero(array, row, col + 2), load_or_zero(array, row, col + 3)
        return w, x, y, z

    return load_four


@functools.cache
def make_store_sums(aligned):
    @cuda.jit(device=True, forceinline=True)
    def store_sums(out, sums, row, col, next_row, next_col):
        """Store a thread's sums: 2 x 2 squares of 4 x 4, ``next_row`` rows and ``next_col`` columns apart."""
        for i in range(PER_THREAD):
            r = row + i // 4 * next_row + i % 4
            for j in range(0, PER_THREAD, 4):
                c = col + j // 4 * next_col
                if aligned:
                    if r < out.shape[0] and c < out.shape[1]:
                        store4(out, (r, c), sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])
                else:
                    for q in range(4):
                        if r < out.shape[0] and c + q < out.shape[1]:
                            out[r, c + q] = sums[i, j + q]

    return store_sums


@functools.cache
def wide(aligned):
    """Make registers_2d with 128-bit accesses: to the matrices, to the tile of b, and to the result."""
    load_four, store_sums = make_load_four(aligned), make_store_sums(aligned)

    @cuda.jit
    def wide(a, b, out):
        tile_a = cuda.shared.array((TILE, DEPTH), float32, alignment=16)
        tile_b = cuda.shared.array((DEPTH, TILE), float32, alignment=16)
        sums = cuda.local.array((PER_THREAD, PER_THREAD), float32)
        left, right = cuda.local.array(PER_THREAD, float32), cuda.local.array(PER_THREAD, float32)
        tid = uint32(cuda.threadIdx.x)
        my_row, my_col = tid // THREADS_ACROSS * PER_THREAD, tid % THREADS_ACROSS * PER_THREAD
        row, col = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
        clear(sums)
        for first in range(0, a.shape[1], DEPTH):
            r, k = tid // 2, tid % 2 * 4  # two threads for a row of tile_a
            w, x, y, z = load_four(a, row + r, first + k)
            store4(tile_a, (r, k), w, x, y, z)
            k, c = tid // 32, tid % 32 * 4  # a warp for a row of tile_b
            w, x, y, z = load_four(b, first + k, col + c)
            store4(tile_b, (k, c), w, x, y, z)
            cuda.syncthreads()
            for k in range(DEPTH):
                for i in range(PER_THREAD):
                    left[i] = tile_a[my_row + i, k]
                read(tile_b, k, my_col, 4, right)
                multiply(sums, left, right)
            cuda.syncthreads()
        store_sums(out, sums, row + my_row, col + my_col, 4, 4)

    return wide


@cuda.jit(device=True, forceinline=True)
def read(tile, k, first, step, values):
    """Read eight values of row k of a tile: four from ``first`` on, and four ``step`` columns further."""
    values[0], values[1], values[2], values[3] = load4(tile, (k, first))
    values[4], values[5], values[6], values[7] = load4(tile, (k, first + step))


@functools.cache
def transposed(aligned, pad=0):
    """Make wide with columns of a as rows in shared memory: a thread's 8 rows of it are two loads there too.

    Four neighbours of a row of a go to four rows of the tile, one by one.
    """
    load_four, store_sums = make_load_four(aligned), make_store_sums(aligned)
    pitch = TILE + pad

    @cuda.jit
    def transposed(a, b, out):
        tile_a = cuda.shared.array((DEPTH, pitch), float32, alignment=16)
        tile_b = cuda.shared.array((DEPTH, TILE), float32, alignment=16)
        sums = cuda.local.array((PER_THREAD, PER_THREAD), float32)
        left, right = cuda.local.array(PER_THREAD, float32), cuda.local.array(PER_THREAD, float32)
        tid = uint32(cuda.threadIdx.x)
        my_row, my_col = tid // THREADS_ACROSS * PER_THREAD, tid % THREADS_ACROSS * PER_THREAD
        row, col = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
        clear(sums)
        for first in range(0, a.shape[1], DEPTH):
            r, k = tid // 2, tid % 2 * 4
            tile_a[k, r], tile_a[k + 1, r], tile_a[k + 2, r], tile_a[k + 3, r] = load_four(a, row + r, first + k)
            k, c = tid // 32, tid % 32 * 4
            w, x, y, z = load_four(b, first + k, col + c)
            store4(tile_b, (k, c), w, x, y, z)
            cuda.syncthreads()
            for k in range(DEPTH):
                read(tile_a, k, my_row, 4, left)
                read(tile_b, k, my_col, 4, right)
                multiply(sums, left, right)
            cuda.syncthreads()
        store_sums(out, sums, row + my_row, col + my_col, 4, 4)

    return transposed


def transposed_padded(aligned):
    """Make transposed with four more elements in each row of the tile of a.

    Rows k and k + 4, which the two lanes for a row of a store to, no longer begin in the same bank.

    Examples
    --------
    See `matmul`.
    """
    return transposed(aligned, PAD)


# -- which thread has which elements ---------------------------------------------------------------

#: The tile of a warp: a block has 4 x 2 warps, a warp 4 x 8 lanes. A thread computes four squares of 4 x 4, so that
#: neighbouring lanes read neighbouring words: 8 lanes read the 32 banks once, and the 4 rows of lanes the same words.
WARP_ROWS, WARP_COLUMNS = 32, 64
#: From one square of a thread to the next.
NEXT_ROW, NEXT_COLUMN = 16, 32


@cuda.jit(device=True, forceinline=True)
def place(tid):
    """Find (first row, first column) of a thread's share of a block's tile."""
    warp, lane = tid // 32, tid % 32
    return warp // 2 * WARP_ROWS + lane // 8 * 4, warp % 2 * WARP_COLUMNS + lane % 8 * 4


# -- the next tiles while these are multiplied -----------------------------------------------------


@functools.cache
def double_buffered(aligned, lanes=False):
    """Make transposed_padded with two pairs of tiles.

    The next tiles are on their way to registers while these are multiplied, and are then stored to the other pair. One
    barrier per step is enough.
    """
    load_four, store_sums = make_load_four(aligned), make_store_sums(aligned)
    pitch = TILE + PAD
    next_row, next_col = (NEXT_ROW, NEXT_COLUMN) if lanes else (4, 4)

    @cuda.jit
    def double_buffered(a, b, out):
        tile_a = cuda.shared.array((2, DEPTH, pitch), float32, alignment=16)
        tile_b = cuda.shared.array((2, DEPTH, TILE), float32, alignment=16)
        sums = cuda.local.array((PER_THREAD, PER_THREAD), float32)
        left, right = cuda.local.array(PER_THREAD, float32), cuda.local.array(PER_THREAD, float32)
        tid = uint32(cuda.threadIdx.x)
        my_row, my_col = (
            place(tid) if lanes else (tid // THREADS_ACROSS * PER_THREAD, tid % THREADS_ACROSS * PER_THREAD)
        )
        row, col = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
        r, ka, kb, c = tid // 2, tid % 2 * 4, tid // 32, tid % 32 * 4
        clear(sums)
        from_a, from_b = load_four(a, row + r, ka), load_four(b, kb, col + c)
        stage = 0
        for first in range(DEPTH, a.shape[1] + DEPTH, DEPTH):
            for i in range(4):
                tile_a[stage, ka + i, r] = from_a[i]
            store4(tile_b, (stage, kb, c), from_b[0], from_b[1], from_b[2], from_b[3])
            cuda.syncthreads()
            from_a, from_b = load_four(a, row + r, first + ka), load_four(b, first + kb, col + c)
            for k in range(DEPTH):
                read(tile_a[stage], k, my_row, next_row, left)
                read(tile_b[stage], k, my_col, next_col, right)
                multiply(sums, left, right)
            stage = 1 - stage
        store_sums(out, sums, row + my_row, col + my_col, next_row, next_col)

    return double_buffered


def warp_tiles(aligned):
    """Make double_buffered with a tile for each warp, whose lanes share it so that no load has a bank conflict.

    Examples
    --------
    See `matmul`.
    """
    return double_buffered(aligned, lanes=True)


# -- the next values while these are multiplied ----------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def multiply_in_turns(sums, left, right, which):
    """multiply for one of two sets of values, up one column and down the next.

    Neighbouring products share a value, which is not read from the registers again.
    """
    for j in range(PER_THREAD):
        for i in range(PER_THREAD):
            turn = i if j % 2 == 1 else PER_THREAD - 1 - i
            sums[turn, j] += left[which, turn] * right[which, j]


@cuda.jit(device=True, forceinline=True)
def finish(tile_a, tile_b, my_row, my_col, sums, left, right):
    """Add the products of the last k."""
    multiply_in_turns(sums, left, right, (DEPTH - 1) % 2)


def make_steps(k):
    """Make the device function that reads for k while it multiplies what was read for k - 1, and so on to the last k.

    The compiler does not unroll a loop of this size, so each k has a function, and calls that of the next.
    """
    if k == DEPTH:
        return finish
    rest = make_steps(k + 1)

    @cuda.jit(device=True, forceinline=True)
    def step(tile_a, tile_b, my_row, my_col, sums, left, right):
        read(tile_a, k, my_row, NEXT_ROW, left[k % 2])
        read(tile_b, k, my_col, NEXT_COLUMN, right[k % 2])
        if k > 0:
            multiply_in_turns(sums, left, right, (k - 1) % 2)
        rest(tile_a, tile_b, my_row, my_col, sums, left, right)

    return step


multiply_tiles = make_steps(0)


@functools.cache
def read_ahead(aligned):
    """Make warp_tiles with two sets of registers: a thread reads for the next k while it multiplies these values."""
    load_four, store_sums = make_load_four(aligned), make_store_sums(aligned)
    pitch = TILE + PAD

    @cuda.jit
    def read_ahead(a, b, out):
        tile_a = cuda.shared.array((2, DEPTH, pitch), float32, alignment=16)
        tile_b = cuda.shared.array((2, DEPTH, TILE), float32, alignment=16)
        sums = cuda.local.array((PER_THREAD, PER_THREAD), float32)
        left, right = cuda.local.array((2, PER_THREAD), float32), cuda.local.array((2, PER_THREAD), float32)
        tid = uint32(cuda.threadIdx.x)
        my_row, my_col = place(tid)
        row, col = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
        r, ka, kb, c = tid // 2, tid % 2 * 4, tid // 32, tid % 32 * 4
        clear(sums)
        from_a, from_b = load_four(a, row + r, ka), load_four(b, kb, col + c)
        stage = 0
        for first in range(DEPTH, a.shape[1] + DEPTH, DEPTH):
            for i in range(4):
                tile_a[stage, ka + i, r] = from_a[i]
            store4(tile_b, (stage, kb, c), from_b[0], from_b[1], from_b[2], from_b[3])
            cuda.syncthreads()
            from_a, from_b = load_four(a, row + r, first + ka), load_four(b, first + kb, col + c)
            multiply_tiles(tile_a[stage], tile_b[stage], my_row, my_col, sums, left, right)
            stage = 1 - stage
        store_sums(out, sums, row + my_row, col + my_col, NEXT_ROW, NEXT_COLUMN)

    return read_ahead


# -- copies that need no registers -----------------------------------------------------------------

STAGES = 3
PENDING = STAGES - 2


@functools.cache
def asynchronous(aligned):
    """Make read_ahead with asynchronous copies, which need no registers: two steps are under way, in a ring of three
    pairs of tiles.

    The elements of a are copied one by one, so that they arrive transposed.
    """
    store_sums = make_store_sums(aligned)
    pitch = TILE + PAD

    @cuda.jit(device=True, forceinline=True)
    def copy_tiles(a, b, tile_a, tile_b, stage, first, row, col):
        tid = uint32(cuda.threadIdx.x)
        r, k = tid // DEPTH, tid % DEPTH
        for i in range(0, TILE, THREADS // DEPTH):
            inside = row + r + i < a.shape[0] and first + k < a.shape[1]
            copy_async(tile_a, (stage, k, r + i), a, (row + r + i, first + k), inside)
        k, c = tid // 32, tid % 32 * 4
        if aligned:
            inside = first + k < b.shape[0] and col + c < b.shape[1]
            copy_async4(tile_b, (stage, k, c), b, (first + k, col + c), inside)
        else:
            for q in range(4):
                inside = first + k < b.shape[0] and col + c + q < b.shape[1]
                copy_async(tile_b, (stage, k, c + q), b, (first + k, col + c + q), inside)
        commit_copies()

    @cuda.jit
    def asynchronous(a, b, out):
        tile_a = cuda.shared.array((STAGES, DEPTH, pitch), float32, alignment=16)
        tile_b = cuda.shared.array((STAGES, DEPTH, TILE), float32, alignment=16)
        sums = cuda.local.array((PER_THREAD, PER_THREAD), float32)
        left, right = cuda.local.array((2, PER_THREAD), float32), cuda.local.array((2, PER_THREAD), float32)
        my_row, my_col = place(uint32(cuda.threadIdx.x))
        row, col = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
        clear(sums)
        for stage in range(STAGES - 1):
            copy_tiles(a, b, tile_a, tile_b, stage, stage * DEPTH, row, col)
        stage, free = uint32(0), uint32(STAGES - 1)
        for first in range(0, a.shape[1], DEPTH):
            wait_copies(PENDING)  # this thread's copies of this step's tiles are complete
            cuda.syncthreads()  # and all others'; no thread reads the tiles of the step before any more
            copy_tiles(a, b, tile_a, tile_b, free, first + (STAGES - 1) * DEPTH, row, col)
            multiply_tiles(tile_a[stage], tile_b[stage], my_row, my_col, sums, left, right)
            free, stage = stage, uint32(stage + 1 if stage < STAGES - 1 else 0)
        store_sums(out, sums, row + my_row, col + my_col, NEXT_ROW, NEXT_COLUMN)

    return asynchronous
