"""Matrix transpose: a copy whose reads and writes can both run along rows only by way of shared memory.

Each kernel reads M N values and writes M N values, so the plain copy is the ceiling for all of them.

1. `copy`, `copy_shared`: controls, a copy straight and one through shared memory.
2. `naive`: reads along rows of a, writes down columns of out. `naive_gather`: the other way round.
3. `tiled`: transposes a tile in shared memory, with bank conflicts.
4. `tiled_padded`: the same with a pad of one element per row, without conflicts.
5. `tiled_swizzled`: the same with the columns of each row in another order, without conflicts and without a pad.
6. `tall`: larger tiles, and every thread loads all of its values before it stores the first. `tall_pairs`: the same
   for elements of 16 bytes.
7. `wide`: 128-bit accesses; a thread transposes 4 x 4 elements in its registers. `wide_pairs`: 2 x 2 of 8 bytes.
   `wide_copy`: its control.
8. `thin`: few rows or columns. `line`: a single row or column.

The kernels move bits: ``transpose`` passes elements of any type as unsigned integers of the same size.
"""

import functools

import numpy as np
from numpy.typing import DTypeLike

from gpukit._host.arrays import (
    address_of,
    as_device_array,
    check_alike,
    check_apart,
    check_array,
    configure_quietly,
    device_array_of,
    dtype_of,
    stream_of,
    window,
)
from gpukit._host.call import Problem, call
from gpukit._host.checks import check_dtype, check_sizes
from gpukit._host.transfers import copy_launches
from gpukit.backend import cuda, int64, types, uint32, uint64
from gpukit.intrinsics import load2, load4, store2, store4
from warpstep.integers import ceil_div
from warpstep.limits import BANKS, MAX_GRID_YZ, WARP, WORD
from warpstep.values import check_choice

__all__ = [
    "CONTROLS",
    "ITEMSIZES",
    "TILE",
    "VARIANTS",
    "configure",
    "copy",
    "copy_shared",
    "naive",
    "naive_gather",
    "tall",
    "tiled",
    "tiled_padded",
    "tiled_swizzled",
    "transpose",
    "wide",
    "wide_copy",
    "wide_pairs",
]

TILE = 32
ROWS = 8  # of threads in a block; each thread takes every eighth row of its tile
STEPS = TILE // ROWS
ITEMSIZES = (1, 2, 4, 8)
PAIRS_PITCH = 2 * TILE + 2

# Indices are unsigned: Numba tests a signed index for being negative at every access, and kernels that only move data
# would spend their time on that. Both sides of a comparison are unsigned: Numba compares a signed and an unsigned
# number as float64.


# -- controls: the ceilings -----------------------------------------------------------------------


@cuda.jit
def copy(a, out):
    """out = a, with the threads and tiles of the transposes.

    Each thread loads all of its values before it stores the first: the compiler cannot tell that a and out do not
    overlap, and would let every load wait for the store before it.
    """
    rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
    held = cuda.local.array(STEPS, a.dtype)
    col = uint32(cuda.blockIdx.x * TILE + cuda.threadIdx.x)
    first = uint32(cuda.blockIdx.y * TILE + cuda.threadIdx.y)
    for step in range(STEPS):
        row = first + uint32(step * ROWS)
        held[step] = a[row, col] if row < rows and col < columns else a.dtype.type(0)
    for step in range(STEPS):
        row = first + uint32(step * ROWS)
        if row < rows and col < columns:
            out[row, col] = held[step]


@functools.cache
def copy_shared(dtype):
    """Make the kernel that copies through shared memory: what a transpose costs more is the transposing."""

    @cuda.jit
    def copy_shared(a, out):
        tile = cuda.shared.array((TILE, TILE), dtype)
        rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        col = uint32(cuda.blockIdx.x * TILE) + tx
        first = uint32(cuda.blockIdx.y * TILE) + ty
        for step in range(0, TILE, ROWS):
            row = first + uint32(step)
            if row < rows and col < columns:
                tile[ty + uint32(step), tx] = a[row, col]
        cuda.syncthreads()
        for step in range(0, TILE, ROWS):
            row = first + uint32(step)
            if row < rows and col < columns:
                out[row, col] = tile[ty + uint32(step), tx]

    return copy_shared


# -- straight from memory to memory ----------------------------------------------------------------


@cuda.jit
def naive(a, out):
    """A warp reads along a row of a and writes down a column of out: 32 sectors for 32 values."""
    rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
    held = cuda.local.array(STEPS, a.dtype)
    col = uint32(cuda.blockIdx.x * TILE + cuda.threadIdx.x)
    first = uint32(cuda.blockIdx.y * TILE + cuda.threadIdx.y)
    for step in range(STEPS):
        row = first + uint32(step * ROWS)
        held[step] = a[row, col] if row < rows and col < columns else a.dtype.type(0)
    for step in range(STEPS):
        row = first + uint32(step * ROWS)
        if row < rows and col < columns:
            out[col, row] = held[step]


@cuda.jit
def naive_gather(a, out):
    """A warp reads down a column of a and writes along a row of out."""
    rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
    held = cuda.local.array(STEPS, a.dtype)
    row = uint32(cuda.blockIdx.y * TILE + cuda.threadIdx.x)
    first = uint32(cuda.blockIdx.x * TILE + cuda.threadIdx.y)
    for step in range(STEPS):
        col = first + uint32(step * ROWS)
        held[step] = a[row, col] if row < rows and col < columns else a.dtype.type(0)
    for step in range(STEPS):
        col = first + uint32(step * ROWS)
        if row < rows and col < columns:
            out[col, row] = held[step]


# -- through shared memory -------------------------------------------------------------------------


@functools.cache
def tiled(dtype, pad=0):
    """Make the kernel that reads a tile along its rows, transposes it in shared memory, and writes along rows of out.

    In shared memory a warp walks down a column of the tile: all 32 elements lie in one bank. With ``pad`` more elements
    per row, 1 for 4-byte elements, they lie in 32 different banks.
    """
    pitch = TILE + pad

    @cuda.jit
    def tiled(a, out):
        tile = cuda.shared.array((TILE, pitch), dtype)
        rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        col = uint32(cuda.blockIdx.x * TILE) + tx
        first = uint32(cuda.blockIdx.y * TILE) + ty
        for step in range(0, TILE, ROWS):
            row = first + uint32(step)
            if row < rows and col < columns:
                tile[ty + uint32(step), tx] = a[row, col]
        cuda.syncthreads()
        col = uint32(cuda.blockIdx.y * TILE) + tx  # in out, whose blocks are those of a with x and y exchanged
        first = uint32(cuda.blockIdx.x * TILE) + ty
        for step in range(0, TILE, ROWS):
            row = first + uint32(step)
            if row < columns and col < rows:
                out[row, col] = tile[tx, ty + uint32(step)]

    return tiled


def tiled_padded(dtype):
    """Make `tiled` with a pad of one element.

    Examples
    --------
    See `transpose`.
    """
    return tiled(dtype, 1)


@functools.cache
def tiled_swizzled(dtype):
    """Make `tiled` with element (r, c) of the tile in column ``c ^ r`` of its row."""

    @cuda.jit
    def tiled_swizzled(a, out):
        tile = cuda.shared.array((TILE, TILE), dtype)
        rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        col = uint32(cuda.blockIdx.x * TILE) + tx
        first = uint32(cuda.blockIdx.y * TILE) + ty
        for step in range(0, TILE, ROWS):
            row = first + uint32(step)
            if row < rows and col < columns:
                tile[ty + uint32(step), tx ^ (ty + uint32(step))] = a[row, col]
        cuda.syncthreads()
        col = uint32(cuda.blockIdx.y * TILE) + tx
        first = uint32(cuda.blockIdx.x * TILE) + ty
        for step in range(0, TILE, ROWS):
            row = first + uint32(step)
            if row < columns and col < rows:
                out[row, col] = tile[tx, (ty + uint32(step)) ^ tx]

    return tiled_swizzled


@functools.cache
def tall(dtype, size, height):
    """Make `tiled_padded` for tiles of ``size`` x ``size`` and blocks of 32 x ``height`` threads.

    Every thread loads all of its values before it stores the first one, so that many loads overlap.
    """
    pitch = size + 1
    across, down = size // 32, size // height

    @cuda.jit
    def tall(a, out):
        tile = cuda.shared.array((size, pitch), dtype)
        rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
        held = cuda.local.array((down, across), dtype)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        row0, col0 = uint32(cuda.blockIdx.y * size), uint32(cuda.blockIdx.x * size)
        for i in range(down):
            for j in range(across):
                row, col = row0 + ty + uint32(i * height), col0 + tx + uint32(j * 32)
                held[i, j] = a[row, col] if row < rows and col < columns else dtype(0)
        for i in range(down):
            for j in range(across):
                tile[ty + uint32(i * height), tx + uint32(j * 32)] = held[i, j]
        cuda.syncthreads()
        for i in range(down):
            for j in range(across):
                row, col = col0 + ty + uint32(i * height), row0 + tx + uint32(j * 32)
                if row < columns and col < rows:
                    out[row, col] = tile[tx + uint32(j * 32), ty + uint32(i * height)]

    return tall


@cuda.jit
def tall_pairs(a, out, rows, columns, down, across, first):
    """Transpose a matrix of pairs in tiles of 32 x 32, from row ``first`` on; a pair is loaded and stored as one.

    Neighbours in a are ``down`` and ``across`` elements apart. Rows in shared memory are a pair longer than the tile:
    the eight threads that are served at a time, down a column, use different banks.
    """
    tile = cuda.shared.array((TILE, PAIRS_PITCH), uint64, alignment=16)
    held = cuda.local.array((STEPS, 2), uint64)
    rows, columns, down, across = uint64(rows), uint64(columns), uint64(down), uint64(across)
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row0, col0 = uint64(first) + uint64(cuda.blockIdx.y) * uint64(TILE), uint64(cuda.blockIdx.x) * uint64(TILE)
    for step in range(STEPS):
        row, col = row0 + uint64(ty + uint32(step * ROWS)), col0 + uint64(tx)
        has = row < rows and col < columns
        held[step, 0], held[step, 1] = load2(a, row * down + col * across if has else uint64(0))
    for step in range(STEPS):
        store2(tile, (ty + uint32(step * ROWS), uint32(uint32(2) * tx)), held[step, 0], held[step, 1])
    cuda.syncthreads()
    for step in range(STEPS):
        row, col = col0 + uint64(ty + uint32(step * ROWS)), row0 + uint64(tx)
        if row < columns and col < rows:
            p = load2(tile, (tx, uint32(uint32(2) * (ty + uint32(step * ROWS)))))
            store2(out, uint64(2) * (row * rows + col), p[0], p[1])


# -- 128 bits at a time ----------------------------------------------------------------------------


@functools.cache
def wide(dtype, size):
    """Make the kernel in which a thread transposes 4 x 4 elements in its registers, with four elements per access.

    For elements of up to 4 bytes, M and N multiples of 4, and 16-byte aligned matrices; blocks of size/4 x size/4
    threads. A tile is a square of chunks of four elements; chunk (x, y) is stored at ``x ^ y`` of its row, so that
    neither stores nor loads have bank conflicts.
    """

    @cuda.jit
    def wide(a, out):
        tile = cuda.shared.array((size, size), dtype, alignment=16)
        rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
        x, y = uint32(4 * cuda.threadIdx.x), uint32(4 * cuda.threadIdx.y)
        row, col = uint32(cuda.blockIdx.y * size) + y, uint32(cuda.blockIdx.x * size) + x
        if row < rows and col < columns:
            p = load4(a, (row, col))
            q = load4(a, (row + uint32(1), col))
            r = load4(a, (row + uint32(2), col))
            s = load4(a, (row + uint32(3), col))
            store4(tile, (x, x ^ y), p[0], q[0], r[0], s[0])
            store4(tile, (x + uint32(1), x ^ y), p[1], q[1], r[1], s[1])
            store4(tile, (x + uint32(2), x ^ y), p[2], q[2], r[2], s[2])
            store4(tile, (x + uint32(3), x ^ y), p[3], q[3], r[3], s[3])
        cuda.syncthreads()
        row, col = uint32(cuda.blockIdx.x * size) + y, uint32(cuda.blockIdx.y * size) + x
        if row < columns and col < rows:
            for i in range(4):
                p = load4(tile, (y + uint32(i), x ^ y))
                store4(out, (row + uint32(i), col), p[0], p[1], p[2], p[3])

    return wide


@functools.cache
def wide_pairs(dtype, size):
    """Make `wide` for elements of 8 bytes: 2 x 2 of them, two per access."""

    @cuda.jit
    def wide_pairs(a, out):
        tile = cuda.shared.array((size, size), dtype, alignment=16)
        rows, columns = uint32(a.shape[0]), uint32(a.shape[1])
        x, y = uint32(2 * cuda.threadIdx.x), uint32(2 * cuda.threadIdx.y)
        row, col = uint32(cuda.blockIdx.y * size) + y, uint32(cuda.blockIdx.x * size) + x
        if row < rows and col < columns:
            p = load2(a, (row, col))
            q = load2(a, (row + uint32(1), col))
            store2(tile, (x, x ^ y), p[0], q[0])
            store2(tile, (x + uint32(1), x ^ y), p[1], q[1])
        cuda.syncthreads()
        row, col = uint32(cuda.blockIdx.x * size) + y, uint32(cuda.blockIdx.y * size) + x
        if row < columns and col < rows:
            for i in range(2):
                p = load2(tile, (y + uint32(i), x ^ y))
                store2(out, (row + uint32(i), col), p[0], p[1])

    return wide_pairs


#: Up to how many rows or columns "thin" is faster than "tall".
MAX_THIN = 24
#: The same for "tall_pairs" and a plain copy.
MAX_THIN_PAIRS = 7
#: Threads of a block of "thin", elements that each should have, and those that it has under way.
THIN_THREADS, THIN_ELEMENTS, THIN_LOADS = 128, 16, 8
#: Blocks of "thin" that a multiprocessor should have; the longest short rows that one has the shared memory for.
THIN_BLOCKS, MAX_SIDE = 4, 4096


def thin_length(side: int, length: int) -> int:
    """Compute how many of ``length`` rows with ``side`` columns a block of `thin` takes: up to ``THIN_ELEMENTS`` for a
    thread, or fewer so that there are blocks for all multiprocessors; a multiple of 32, if it is so many.
    """
    wanted = ceil_div(length, THIN_BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT)
    most = max(THIN_THREADS, THIN_THREADS * THIN_ELEMENTS // side) if side <= MAX_THIN else MAX_SIDE // side
    return min(ceil_div(wanted, WARP) * WARP, most // WARP * WARP or most)


def thin_shift(side: int, itemsize: int) -> int:
    """Compute how many elements, as a power of two, a pad of one bank follows in the tile of `thin`: a row of the 32
    banks, or almost a row of the matrix, if that is longer. Then neighbouring rows begin in different banks.
    """
    return max(BANKS * WORD // itemsize, side).bit_length() - 1


@cuda.jit(device=True)
def down_columns(col, i, at, side, length):
    """(col, i, at) of a thread's next element of `thin`: that of the next column, or of its next row."""
    col, i, at = uint32(col + uint32(1)), uint32(i + uint32(1)), at + length
    if col == side:
        return uint32(0), uint32(i + uint32(uint32(THIN_THREADS - 1) * side)), at + uint64(THIN_THREADS) - side * length
    return col, i, at


@functools.cache
def thin(dtype, gaps=False):
    """Make the kernel for few columns, or few rows, which lets a warp read and write along memory all the same.

    With ``gaps``, elements of ``a`` may be any distance apart.

    The short rows of a block lie in memory as one piece, and all threads walk along it. On the other side a thread goes
    down the columns from its own row on, and its neighbours take the next rows. Each thread has several loads under
    way, and finds its elements in steps, without divisions.
    """
    itemsize, loads, threads = dtype.bitwidth // 8, THIN_LOADS, THIN_THREADS
    bank_row, pad = BANKS * WORD // itemsize, max(WORD // itemsize, 1)

    @cuda.jit(device=True)
    def place(i, shift):
        return uint32(i + uint32(uint32(i >> shift) * uint32(pad)))

    @cuda.jit(device=True)
    def element(a, at, row, col):
        return a[row, col] if gaps else a.flat[at]

    @cuda.jit(device=True)
    def along_rows(row, col, side, down, across):
        """(row, col) of a thread's next element along rows: ``down`` rows and ``across`` columns on."""
        if gaps:
            row, col = row + uint64(down), uint32(col + across)
            if col >= side:
                row, col = row + uint64(1), uint32(col - side)
        return row, col

    @cuda.jit
    def thin(a, out):
        tile = cuda.shared.array(0, dtype)
        held = cuda.local.array(loads, dtype)
        elements = cuda.local.array(loads, uint32)
        tall = a.shape[0] > a.shape[1]
        side, length = (uint32(a.shape[1]), uint64(a.shape[0])) if tall else (uint32(a.shape[0]), uint64(a.shape[1]))
        shift = uint32(31 - cuda.clz(uint32(max(side, uint32(bank_row)))))  # as `thin_shift`
        each = uint32((length + uint64(cuda.gridDim.x) - uint64(1)) // uint64(cuda.gridDim.x))
        if each > uint32(WARP):
            each = uint32(uint32(each + uint32(WARP - 1)) // uint32(WARP) * uint32(WARP))  # as `thin_length`
        first, tid = uint64(cuda.blockIdx.x) * uint64(each), uint32(cuda.threadIdx.x)
        total = uint32(uint32(min(uint64(each), length - first)) * side)
        # Element i of the short rows, and at which place: along them, and down the columns from one's own row on.
        i, at = tid, first * uint64(side) + uint64(tid)
        col, j, to = uint32(0), uint32(tid * side), first + uint64(tid)
        if tall:
            row, column = first + uint64(tid // side), uint32(tid % side)
            down, across = uint32(uint32(threads) // side), uint32(uint32(threads) % side)
            while i < total:
                for k in range(loads):
                    has = uint32(i + uint32(k * threads)) < total
                    held[k] = element(a, at + uint64(k * threads), row, column) if has else dtype(0)
                    row, column = along_rows(row, column, side, down, across)
                for k in range(loads):
                    if uint32(i + uint32(k * threads)) < total:
                        tile[place(uint32(i + uint32(k * threads)), shift)] = held[k]
                i, at = uint32(i + uint32(loads * threads)), at + uint64(loads * threads)
            cuda.syncthreads()
            while j < total:
                out.flat[to] = tile[place(j, shift)]
                col, j, to = down_columns(col, j, to, side, length)
            return
        while j < total:
            for k in range(loads):
                elements[k], held[k] = j, element(a, to, col, to - col * length) if j < total else dtype(0)
                col, j, to = down_columns(col, j, to, side, length)
            for k in range(loads):
                if elements[k] < total:
                    tile[place(elements[k], shift)] = held[k]
        cuda.syncthreads()
        while i < total:
            out.flat[at] = tile[place(i, shift)]
            i, at = uint32(i + uint32(threads)), at + uint64(threads)

    return thin


# -- few elements, and a single row or column ------------------------------------------------------------------------

#: Elements up to which a plain copy is the fastest, of any matrix and of one with few rows or columns.
FEW, FEW_THIN = 1 << 16, 1 << 20
#: Threads of a block of `line`, and accesses of each.
FLAT_THREADS, FLAT_LOADS = 256, 4


@functools.cache
def line(dtype):
    """Make the kernel for a single row or column, whose transpose lies in memory as it does: a copy by 16 bytes.

    It takes both flat, as words and as they are: the first thread copies what is left at the end.
    """
    lanes = 16 // (dtype.bitwidth // 8)

    @cuda.jit
    def line(words, out_words, a, out):
        held = cuda.local.array((FLAT_LOADS, 4), uint32)
        first, chunks = int64(cuda.blockIdx.x) * FLAT_THREADS * FLAT_LOADS + cuda.threadIdx.x, words.size // 4
        for k in range(FLAT_LOADS):
            i = uint64(4 * min(first + k * FLAT_THREADS, chunks - 1))
            held[k, 0], held[k, 1], held[k, 2], held[k, 3] = load4(words, i)
        for k in range(FLAT_LOADS):
            i = first + k * FLAT_THREADS
            if i < chunks:
                store4(out_words, uint64(4 * i), held[k, 0], held[k, 1], held[k, 2], held[k, 3])
        if first == 0:
            for i in range(chunks * lanes, a.size):
                out[i] = a[i]

    return line


@cuda.jit
def wide_copy(a, out):
    """out = a for elements of up to 4 bytes, four at a time, with the threads and tiles of `wide`."""
    row = uint32(4 * (cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y))
    col = uint32(4 * (cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x))
    if row < uint32(a.shape[0]) and col < uint32(a.shape[1]):
        p = load4(a, (row, col))
        q = load4(a, (row + uint32(1), col))
        r = load4(a, (row + uint32(2), col))
        s = load4(a, (row + uint32(3), col))
        store4(out, (row, col), p[0], p[1], p[2], p[3])
        store4(out, (row + uint32(1), col), q[0], q[1], q[2], q[3])
        store4(out, (row + uint32(2), col), r[0], r[1], r[2], r[3])
        store4(out, (row + uint32(3), col), s[0], s[1], s[2], s[3])


# -- host functions --------------------------------------------------------------------------------

#: What ``transpose`` takes as ``variant``, besides "auto": the name of a kernel, or of the function that makes it.
VARIANTS = {
    "naive": naive,
    "naive_gather": naive_gather,
    "tiled": tiled,
    "tiled_padded": tiled_padded,
    "tiled_swizzled": tiled_swizzled,
    "tall": tall,
    "wide": wide,
    "thin": thin,
}
#: Kernels of ``configure`` that copy: the transposes are measured against them.
CONTROLS = {"copy": copy, "copy_shared": copy_shared, "wide_copy": wide_copy}
#: The variants that are kernels as they are; the others are made for a dtype.
PLAIN = ("copy", "naive", "naive_gather")
#: Rows or columns of blocks in one launch: the limit of ``gridDim.y``.
MAX_BLOCKS = MAX_GRID_YZ
#: Tile and rows of threads of "tall".
TALL = (64, 8)
#: Of "wide", by bytes of an element: the kernel, its tile, and the elements of an access.
WIDE = {1: (wide, 64, 4), 2: (wide, 64, 4), 4: (wide, 64, 4), 8: (wide_pairs, 32, 2)}


def transpose(a, variant: str = "auto", *, out=None, stream=None):
    """Transpose a matrix, as a copy whose rows follow one another.

    Parameters
    ----------
    a : ndarray or device array, shape (M, N)
        Any M and N, also 0; elements of 1, 2, 4 or 8 bytes: integers, floats, booleans, complex64, dates; with "auto"
        also of 16, such as complex128. "auto" takes an array on the device with any strides; for the other variants,
        one that is not C-contiguous is copied first.
    variant : str
        One of ``VARIANTS``, or "auto": "thin" for few rows or columns, "wide" where it can be, "tall" elsewhere; for
        small matrices, and for a single row or column, kernels without shared memory.
        "wide" needs M and N in multiples of 4 (of 2 for elements of 8 bytes) and memory aligned to 16 bytes.
    out : array of shape (N, M), optional
        Of the same kind and dtype. On the device it must not share memory with ``a``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, M)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.

    Examples
    --------
    >>> import numpy as np
    >>> from gpukit import transpose
    >>> transpose.transpose(np.array([[1, 2, 3], [4, 5, 6]]))
    array([[1, 4],
           [2, 5],
           [3, 6]])
    """
    return call(_transposed, (a,), out, stream, (variant,))


def _transposed(problem: Problem):
    (a,), (variant,) = problem.inputs, problem.settings
    _check(a, variant, problem.out)
    rows, columns = a.shape
    target = problem.output((columns, rows))
    if target.size == 0:
        return []
    if target.dtype.itemsize == 16:
        source = as_device_array(a) if cuda.is_cuda_array(a) else problem.on_device(a)
        return _launches_of_pairs(source, target, problem.stream)
    if variant != "auto" or not cuda.is_cuda_array(a):
        return _launches(variant, problem.on_device(a), target, problem.stream)
    a = as_device_array(a)
    if a.strides[1] == a.dtype.itemsize or _is_turned(a) or _is_thin_with_gaps(a):
        return _launches(variant, a, target, problem.stream)
    return copy_launches(device_array_of(target.shape, a.strides[::-1], a.dtype, a), target, problem.stream)


def _is_turned(a):
    """Whether the elements of a device array lie in memory as those of its transpose should, without gaps."""
    (rows, columns), (down, across) = a.shape, a.strides
    return (rows == 1 or down == a.dtype.itemsize) and (columns == 1 or across == rows * a.dtype.itemsize)


def _launches(variant, source, target, stream):
    """List (launch, arguments) for a target that is contiguous, and a source whose rows "auto" allows to be apart."""
    bits, size = np.dtype(f"u{source.dtype.itemsize}"), source.size
    shape, strides = source.shape, source.strides
    if variant == "auto" and _is_turned(source):  # one row, whose transpose is a copy
        shape, strides, target = (1, size), (source.nbytes, bits.itemsize), target.reshape(size, 1)
    source, target = device_array_of(shape, strides, bits, source), target.view(bits)
    if variant == "auto" and shape[0] == 1 and size > FEW and _are_aligned(source, target):
        flat = source.reshape(size), target.reshape(size)
        words = [window(array, np.uint32, source.nbytes // 16 * 4) for array in flat]
        blocks = ceil_div(source.nbytes // 16, FLAT_THREADS * FLAT_LOADS)
        launch = configure_quietly(line(getattr(types, bits.name)), blocks, FLAT_THREADS, stream)
        return [(launch, (*words, *flat))]
    if variant == "auto" and _is_for_copy(source):
        return copy_launches(device_array_of(target.shape, strides[::-1], bits, source), target, stream)
    chosen = _choose(variant, source, target)
    step = MAX_BLOCKS * TILE
    parts = [(source, target)]
    if chosen != "thin" and source.shape[0] > step:
        chosen = "tiled_padded" if chosen == "wide" else chosen
        parts = [(source[row : row + step], target[:, row : row + step]) for row in range(0, source.shape[0], step)]
    if chosen == "thin" and not source.is_c_contiguous():
        return [(_configure_thin(source.shape, bits, stream, gaps=True), parts[0])]
    return [(configure(chosen, part[0].shape, bits, stream=stream), part) for part in parts]


def _launches_of_pairs(source, target, stream):
    """List (launch, arguments) for elements of 16 bytes, as pairs of 8, or as complex numbers."""
    (rows, columns), (down, across), bits = source.shape, source.strides, np.dtype(np.uint64)
    is_aligned = (address_of(source) | address_of(target) | down | across) % 16 == 0
    is_thin = 1 < min(rows, columns) <= MAX_THIN_PAIRS and source.size > FEW
    if is_thin and 0 < across <= down:
        numbers = np.dtype(np.complex128)
        launch = _configure_thin(source.shape, numbers, stream, not source.is_c_contiguous())
        return [(launch, tuple(device_array_of(a.shape, a.strides, numbers, a) for a in (source, target)))]
    if not 0 < across <= down or is_thin or min(rows, columns) == 1 or not is_aligned:
        source = device_array_of((columns, rows, 2), (across, down, 8), bits, source)
        return copy_launches(source, device_array_of(source.shape, (16 * rows, 16, 8), bits, target), stream)
    count = ((rows - 1) * down + (columns - 1) * across) // 8 + 2
    flat, made = (window(source, bits, count), window(target, bits, 2 * target.size)), []
    for first in range(0, rows, MAX_BLOCKS * TILE):
        grid = ceil_div(columns, TILE), min(MAX_BLOCKS, ceil_div(rows - first, TILE))
        launch = configure_quietly(tall_pairs, grid, (TILE, ROWS), stream)
        made.append((launch, (*flat, rows, columns, down // 8, across // 8, first)))
    return made


def configure(variant: str, shape: tuple[int, int], dtype: DTypeLike = np.uint32, *, stream=None):
    """Configure the launch that ``transpose`` makes, to be traced or timed: call it with a and out.

    Parameters
    ----------
    variant : str
        One of ``VARIANTS`` and ``CONTROLS``.
    shape : tuple of 2 int
        Of a: M, at most 2,097,120, and N, 1 or more.
    dtype : NumPy dtype
        Of a and out, an integer or float of 1, 2, 4 or 8 bytes.
    stream : CUDA stream, optional

    Returns
    -------
    ``kernel[grid, block, stream]``

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Examples
    --------
    >>> a, out = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    >>> gpukit.trace(configure("tiled", a.shape, a.dtype), a, out).total("shared", "load").bank_conflicts
    3968
    """
    dtype = check_dtype("dtype", dtype)
    shape = _check_configuration(variant, shape, dtype)
    rows, columns = shape
    if variant == "thin":
        return _configure_thin(shape, dtype, stream_of(stream))
    kernel, size, block = _kernel(variant, getattr(types, dtype.name), dtype.itemsize)
    return configure_quietly(kernel, (ceil_div(columns, size), ceil_div(rows, size)), block, stream_of(stream))


def _configure_thin(shape, dtype, stream, gaps=False):
    side, length = sorted(shape)
    each = thin_length(side, length)
    pads = each * side >> thin_shift(side, dtype.itemsize)
    shared = each * side * dtype.itemsize + pads * max(WORD, dtype.itemsize)
    return configure_quietly(
        thin(getattr(types, dtype.name), gaps), ceil_div(length, each), THIN_THREADS, stream, shared
    )


def _kernel(variant, number, itemsize):
    """(kernel, its tile, its block)."""
    if variant in ("wide", "wide_copy"):
        make, size, lanes = WIDE[itemsize]
        return wide_copy if variant == "wide_copy" else make(number, size), size, (size // lanes, size // lanes)
    if variant == "tall":
        return tall(number, *TALL), TALL[0], (32, TALL[1])
    kernel = (CONTROLS | VARIANTS)[variant]
    return kernel if variant in PLAIN else kernel(number), TILE, (TILE, ROWS)


def _check_configuration(variant, shape, dtype):
    """Check the arguments of `configure`; returns the shape as ints."""
    check_choice("variant", variant, (*CONTROLS, *VARIANTS))
    rows = 2**31 - 1 if variant == "thin" else MAX_BLOCKS * TILE
    shape = check_sizes("shape", shape, (1, 1), (rows, 2**31 - 1), "a tuple of 2 ints, M and N")
    if dtype.kind not in "iuf" or dtype.itemsize not in ITEMSIZES:
        raise TypeError(f"dtype is {dtype}; it must be an integer or a float of 1, 2, 4 or 8 bytes")
    if variant == "thin" and min(shape) > MAX_SIDE:
        raise ValueError(f"shape is {tuple(shape)}; one must be at most {MAX_SIDE} for variant 'thin'")
    if variant in ("wide", "wide_copy"):
        _check_multiples("shape is", shape, dtype)
    if variant == "wide_copy" and dtype.itemsize == 8:
        raise TypeError(f"dtype is {dtype}; wide_copy is for elements of up to 4 bytes")
    return shape


def _check_multiples(what, shape, dtype):
    _, _, lanes = WIDE[dtype.itemsize]
    if any(n % lanes for n in shape):
        raise ValueError(f"{what} {tuple(shape)}; both must be multiples of {lanes} for variant 'wide'")


def _check(a, variant, out):
    check_array("a", a, 2)
    dtype = dtype_of(a)
    if dtype.hasobject or dtype.itemsize not in (*ITEMSIZES, 16):
        raise TypeError(f"a has dtype {dtype}; its elements must be numbers of 1, 2, 4, 8 or 16 bytes")
    check_choice("variant", variant, VARIANTS, also="auto")
    if dtype.itemsize == 16 and variant != "auto":
        raise ValueError(f"variant is {variant!r} and a has dtype {dtype}; it must be 'auto' for elements of 16 bytes")
    if out is not None:
        check_array("out", out, 2)
        check_alike("out", out, "a", a, (a.shape[1], a.shape[0]))
        check_apart("out", out, a=a)
    if variant == "wide":
        _check_multiples("a has shape", a.shape, dtype)
        for name, array in {"a": a, "out": out}.items():
            if array is not None and not _is_aligned(array):
                raise ValueError(f"variant is 'wide' and the memory of {name} is not aligned to 16 bytes")


def _is_aligned(array):
    """Whether chunks of 16 bytes can be loaded; arrays that are copied first are aligned."""
    if not cuda.is_cuda_array(array):
        return True
    array = as_device_array(array)
    return not array.is_c_contiguous() or address_of(array) % 16 == 0


def _are_aligned(source, target):
    return _is_aligned(source) and _is_aligned(target)


def _is_for_copy(source):
    """Whether elements are few, or lie in few rows or columns whose neighbours in memory are not along the rows: a copy
    needs no shared memory for these.
    """
    if min(source.shape) > MAX_THIN:
        return source.size <= FEW
    return source.size <= FEW_THIN or not (source.is_c_contiguous() or _is_thin_with_gaps(source))


def _is_thin_with_gaps(source):
    """Whether "thin" takes a device array that is not contiguous."""
    down, across = source.strides
    return 1 < min(source.shape) <= MAX_THIN and (down == 0 or 0 < across <= down)


def _choose(variant, source, target):
    """The variant to launch for device arrays: "wide" needs whole chunks that are aligned."""
    if variant != "auto":
        return variant
    _, _, lanes = WIDE[source.dtype.itemsize]
    if min(source.shape) <= MAX_THIN:
        return "thin"
    whole = all(n % lanes == 0 for n in source.shape)
    fits = whole and source.is_c_contiguous() and _are_aligned(source, target)
    return "wide" if fits else "tall"
