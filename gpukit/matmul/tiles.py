"""Matrix products with one thread per element of the result (A6, A10 to A12).

1. `naive`: every thread reads its row of a and its column of b from global memory.
2. `naive_uncoalesced`: the same with rows along threadIdx.x, so that a warp reads 32 rows of a.
3. `naive_float64`: the same as 1 with one literal that makes every sum a float64.
4. `naive_uint32`: the same as 1 with unsigned 32-bit indices.
5. `tiled`: tiles in shared memory, which a block reads once and uses ``tile`` times.
6. `tiled_conflict`: rows along threadIdx.x, so that a warp walks down the columns of the tiles: bank conflicts.
7. `tiled_padded`: the same with a pad in each row of the tiles, which spreads the columns over the banks.
8. `tiled_swizzled`: the same with the columns of each row in another order, which needs no pad.
9. `dynamic`: 5 with shared memory whose size comes with the launch.
10. `dynamic_conflict`, `dynamic_padded`: 6 and 7 with such memory.
"""

import functools

import numba
import numpy as np

from gpukit._host.checks import check_dtype
from gpukit.backend import cuda, types, uint32
from warpstep.values import check_int

__all__ = [
    "dynamic",
    "dynamic_conflict",
    "dynamic_padded",
    "naive",
    "naive_float64",
    "naive_uint32",
    "naive_uncoalesced",
    "on_cpu",
    "right_pad",
    "tiled",
    "tiled_conflict",
    "tiled_padded",
    "tiled_swizzled",
]


# -- on the host (A6) ------------------------------------------------------------------------------


@numba.njit
def on_cpu(a, b):
    """Compute a @ b by three loops on one core of the CPU, each sum in the type of ``a`` (A6).

    Compiled by ``numba.njit``: Python itself would take minutes where this takes a second.
    """
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    for row in range(a.shape[0]):
        for col in range(b.shape[1]):
            total = a.dtype.type(0)
            for k in range(a.shape[1]):
                total += a[row, k] * b[k, col]
            out[row, col] = total
    return out


# -- one thread per element (A6) -------------------------------------------------------------------


@cuda.jit
def naive(a, b, out):
    """Neighbouring threads compute neighbouring columns. Each reads a row of a and a column of b: 2 M N K values."""
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = out.dtype.type(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def naive_uncoalesced(a, b, out):
    """Neighbouring threads compute neighbouring rows, whose elements are far apart in memory."""
    row, col = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = out.dtype.type(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def naive_float64(a, b, out):
    """naive with another literal: 0.0 is a float64, and so is every sum with it."""
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def naive_uint32(a, b, out):
    """naive with unsigned 32-bit indices: no 64-bit sums, and no test for a negative index.

    Numba makes the sum of two uint32 a 64-bit number, so every step is cast back.
    """
    x, y = cuda.grid(2)
    col, row = types.uint32(x), types.uint32(y)
    if row < out.shape[0] and col < out.shape[1]:
        total = out.dtype.type(0)
        k, depth = types.uint32(0), types.uint32(a.shape[1])
        while k < depth:  # range() would count in 64 bits
            total += a[row, k] * b[k, col]
            k = types.uint32(k + types.uint32(1))
        out[row, col] = total


# -- tiles in static shared memory (A10) -----------------------------------------------------------


@functools.cache
def tiled(dtype, tile, pad=0):
    """Make the kernel with square tiles in shared memory.

    One thread of a block reads a value from global memory and ``tile`` threads use it: 2 M N K / tile values are read.
    """
    pitch = tile + pad

    @cuda.jit
    def tiled(a, b, out):
        tile_a = cuda.shared.array((tile, pitch), dtype)
        tile_b = cuda.shared.array((tile, pitch), dtype)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        col, row = cuda.grid(2)
        total = dtype(0)
        for first in range(0, a.shape[1], tile):
            # Zeros stand for what lies outside of the matrices. No thread may return early: all of them load.
            tile_a[ty, tx] = a[row, first + tx] if row < a.shape[0] and first + tx < a.shape[1] else dtype(0)
            tile_b[ty, tx] = b[first + ty, col] if first + ty < b.shape[0] and col < b.shape[1] else dtype(0)
            cuda.syncthreads()  # both tiles are complete
            for k in range(tile):
                total += tile_a[ty, k] * tile_b[k, tx]
            cuda.syncthreads()  # all threads have used both: they may be overwritten
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = total

    return tiled


# -- bank conflicts, static (A12) ------------------------------------------------------------------


@functools.cache
def tiled_conflict(dtype, tile, pad=0):
    """Make the kernel like tiled with the roles of threadIdx.x and .y exchanged.

    A warp walks down the columns of the tiles. Rows of ``tile`` elements put a column into a few banks only; ``pad``
    more elements per row spread it.
    """
    pitch = tile + pad

    @cuda.jit
    def tiled_conflict(a, b, out):
        tile_a = cuda.shared.array((tile, pitch), dtype)
        tile_b = cuda.shared.array((tile, pitch), dtype)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.grid(2)
        total = dtype(0)
        for first in range(0, a.shape[1], tile):
            tile_a[tx, ty] = a[row, first + ty] if row < a.shape[0] and first + ty < a.shape[1] else dtype(0)
            tile_b[tx, ty] = b[first + tx, col] if first + tx < b.shape[0] and col < b.shape[1] else dtype(0)
            cuda.syncthreads()
            for k in range(tile):
                total += tile_a[tx, k] * tile_b[k, ty]
            cuda.syncthreads()
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = total

    return tiled_conflict


def tiled_padded(dtype, tile, pad=None):
    """Make `tiled_conflict` with ``pad`` more elements in each row of the tiles, `right_pad` unless given.

    Examples
    --------
    See `matmul`.
    """
    return tiled_conflict(dtype, tile, right_pad(dtype, tile) if pad is None else pad)


@functools.cache
def tiled_swizzled(dtype, tile):
    """Make `tiled_conflict` without a pad: element (r, c) of a tile is stored in column ``c ^ (r & mask)`` of its row.

    The rows that together fill the 32 banks once have the same mask; the next rows have another order of columns.
    """
    mask = -right_pad(dtype, tile)

    @cuda.jit
    def tiled_swizzled(a, b, out):
        tile_a = cuda.shared.array((tile, tile), dtype)
        tile_b = cuda.shared.array((tile, tile), dtype)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.grid(2)
        swizzled = ty ^ (tx & mask)
        total = dtype(0)
        for first in range(0, a.shape[1], tile):
            tile_a[tx, swizzled] = a[row, first + ty] if row < a.shape[0] and first + ty < a.shape[1] else dtype(0)
            tile_b[tx, swizzled] = b[first + tx, col] if first + tx < b.shape[0] and col < b.shape[1] else dtype(0)
            cuda.syncthreads()
            for k in range(tile):
                total += tile_a[tx, k ^ (tx & mask)] * tile_b[k, ty ^ (k & mask)]
            cuda.syncthreads()
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = total

    return tiled_swizzled


def right_pad(dtype, tile):
    """Choose the pad per row with which a warp has no bank conflicts when it walks down the columns of a tile.

    It is the number of columns that a warp covers at a time: 32 lanes of 4 bytes are served together, of 8 bytes 16.

    Parameters
    ----------
    dtype : numpy or numba dtype
        float32 or float64.
    tile : int
        8, 16 or 32.

    Returns
    -------
    int

    Examples
    --------
    >>> right_pad(np.float32, 16), right_pad(np.float64, 16)
    (2, 1)
    """
    dtype = check_dtype("dtype", str(dtype) if isinstance(dtype, types.Type) else dtype)
    return max(1, 128 // max(dtype.itemsize, 1) // check_int("tile", tile, 1))


# -- dynamic shared memory (A11, A12) --------------------------------------------------------------


@functools.cache
def dynamic(dtype):
    """Make the kernel for any tile: its size comes with the launch.

    So do ``depth``, the columns of a that are loaded at a time (a multiple of the tile), and the shared memory for
    both. The compiler cannot fold them into addresses, so the indices are cheap by hand: they step through the buffer
    instead of multiplying, and they are unsigned, since Numba tests a signed index for being negative.
    """

    @cuda.jit
    def dynamic(a, b, out, depth):
        buffer = cuda.shared.array(0, dtype)  # one buffer of the size that the launch gives
        tile, depth, one = uint32(cuda.blockDim.x), uint32(depth), uint32(1)
        second = uint32(tile * depth)  # tile rows of depth elements of a, then depth rows of tile elements of b
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        col, row = cuda.grid(2)
        total = dtype(0)
        first = 0
        while first < a.shape[1]:
            k = uint32(0)
            while k < depth:
                ka, kb = first + k + tx, first + k + ty
                buffer[uint32(ty * depth + k + tx)] = a[row, ka] if row < a.shape[0] and ka < a.shape[1] else dtype(0)
                at_b = uint32(second + (k + ty) * tile + tx)
                buffer[at_b] = b[kb, col] if kb < b.shape[0] and col < b.shape[1] else dtype(0)
                k = uint32(k + tile)
            cuda.syncthreads()
            at_a, at_b = uint32(ty * depth), uint32(second + tx)
            for _ in range(depth):
                total += buffer[at_a] * buffer[at_b]
                at_a, at_b = uint32(at_a + one), uint32(at_b + tile)
            cuda.syncthreads()
            first += depth
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = total

    return dynamic


@functools.cache
def dynamic_conflict(dtype):
    """Make the kernel like dynamic with the roles of threadIdx.x and .y exchanged.

    Its last argument, ``pad``, is 0 for conflicts: so many elements more in each row.
    """

    @cuda.jit
    def dynamic_conflict(a, b, out, depth, pad):
        buffer = cuda.shared.array(0, dtype)
        tile, depth, one = uint32(cuda.blockDim.x), uint32(depth), uint32(1)
        pitch_a, pitch_b = uint32(depth + uint32(pad)), uint32(tile + uint32(pad))
        second = uint32(tile * pitch_a)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        row, col = cuda.grid(2)
        total = dtype(0)
        first = 0
        while first < a.shape[1]:
            k = uint32(0)
            while k < depth:
                ka, kb = first + k + ty, first + k + tx
                buffer[uint32(tx * pitch_a + k + ty)] = a[row, ka] if row < a.shape[0] and ka < a.shape[1] else dtype(0)
                at_b = uint32(second + (k + tx) * pitch_b + ty)
                buffer[at_b] = b[kb, col] if kb < b.shape[0] and col < b.shape[1] else dtype(0)
                k = uint32(k + tile)
            cuda.syncthreads()
            at_a, at_b = uint32(tx * pitch_a), uint32(second + ty)
            for _ in range(depth):
                total += buffer[at_a] * buffer[at_b]
                at_a, at_b = uint32(at_a + one), uint32(at_b + pitch_b)
            cuda.syncthreads()
            first += depth
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = total

    return dynamic_conflict


def dynamic_padded(dtype):
    """Make the kernel of `dynamic_conflict`, to be launched with a pad.

    Examples
    --------
    See `matmul`.
    """
    return dynamic_conflict(dtype)
