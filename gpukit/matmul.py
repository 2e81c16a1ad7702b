"""Matrix products: one thread per element, tiles in shared memory, bank conflicts and their cures (A6, A10 to A12).

Throughout, ``a`` has M rows and K columns, ``b`` K rows and N columns, ``out`` M rows and N columns. A kernel made by a
function has that function's arguments as constants, so the compiler knows the shape of its tiles and unrolls its loops.
"""

import functools

import numba
import numpy as np
from numba.cuda import types, uint32

from gpukit import intrinsics
from gpukit.backend import cuda
from gpukit.checks import whole
from gpukit.operands import Output, check_alike, check_apart, check_array, configured, dtype_of, stream_of, to_device

__all__ = [
    "DTYPES",
    "TILES",
    "VARIANTS",
    "configure",
    "dynamic",
    "dynamic_swapped",
    "matmul",
    "naive",
    "naive_float64",
    "naive_uint32",
    "naive_uncoalesced",
    "on_cpu",
    "right_pad",
    "swapped",
    "swizzled",
    "tiled",
]

DTYPES = (np.float32, np.float64)
TILES = (8, 16, 32)
MOST_PAD = 8
#: Rows or columns of blocks in one launch: the limit of ``gridDim.y``.
MOST_BLOCKS = 65535


# -- on the host (A6) ------------------------------------------------------------------------------


@numba.njit
def on_cpu(a, b):
    """a @ b by three loops, one sum in the type of ``a`` per element (A6).

    Compiled by ``numba.njit`` for one core of the CPU; Python itself would take minutes where this takes a second.
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
    """The same, but neighbouring threads compute neighbouring rows, whose elements are far apart in memory."""
    row, col = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = out.dtype.type(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def naive_float64(a, b, out):
    """The same as naive but for one literal: 0.0 is a float64, and so is every sum with it."""
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def naive_uint32(a, b, out):
    """The same as naive with indices of 32 bits and no sign: no 64-bit sums, and no check whether an index is negative.

    Numba would make the sum of two uint32 a 64-bit number, so every step is cast back.
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
    """Kernel with square tiles in shared memory: each value is read from global memory by one thread of a block and
    used by ``tile`` of them, so 2 M N K / tile values are read.
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
            # What lies outside of the matrices counts as zero. No thread may leave early: all of them load.
            tile_a[ty, tx] = a[row, first + tx] if row < a.shape[0] and first + tx < a.shape[1] else dtype(0)
            tile_b[ty, tx] = b[first + ty, col] if first + ty < b.shape[0] and col < b.shape[1] else dtype(0)
            cuda.syncthreads()  # both tiles are complete
            for k in range(tile):
                total += tile_a[ty, k] * tile_b[k, tx]
            cuda.syncthreads()  # nobody needs them any more
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = total

    return tiled


# -- bank conflicts, static (A12) ------------------------------------------------------------------


@functools.cache
def swapped(dtype, tile, pad=0):
    """Kernel like tiled with the roles of threadIdx.x and .y exchanged: a warp walks down the columns of the tiles.

    Rows of ``tile`` elements put a column into a few banks only; ``pad`` more elements per row spread it.
    """
    pitch = tile + pad

    @cuda.jit
    def swapped(a, b, out):
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

    return swapped


@functools.cache
def swizzled(dtype, tile):
    """Kernel like swapped, without a pad: element (r, c) of a tile is stored in column ``c ^ (r & mask)`` of its row.

    The rows that together fill the 32 banks once have the same mask; the next ones have another order of columns.
    """
    mask = -right_pad(dtype, tile)

    @cuda.jit
    def swizzled(a, b, out):
        tile_a = cuda.shared.array((tile, tile), dtype)
        tile_b = cuda.shared.array((tile, tile), dtype)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.grid(2)
        place = ty ^ (tx & mask)
        total = dtype(0)
        for first in range(0, a.shape[1], tile):
            tile_a[tx, place] = a[row, first + ty] if row < a.shape[0] and first + ty < a.shape[1] else dtype(0)
            tile_b[tx, place] = b[first + tx, col] if first + tx < b.shape[0] and col < b.shape[1] else dtype(0)
            cuda.syncthreads()
            for k in range(tile):
                total += tile_a[tx, k ^ (tx & mask)] * tile_b[k, ty ^ (k & mask)]
            cuda.syncthreads()
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = total

    return swizzled


def right_pad(dtype, tile):
    """Elements of pad per row that leave a warp without conflicts when it walks down the columns of a tile.

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
    """
    lanes = 128 // np.dtype(str(dtype) if isinstance(dtype, types.Type) else dtype).itemsize
    return max(1, lanes // tile)


# -- dynamic shared memory (A11, A12) --------------------------------------------------------------


@functools.cache
def dynamic(dtype):
    """Kernel for any tile: its size comes with the launch, and so do ``depth``, the columns of a that are loaded at a
    time (a multiple of the tile), and the shared memory for both. The compiler knows none of them.

    What it does not know it cannot fold into addresses, so the indices are made cheap by hand: they step through the
    buffer in place of multiplications, and they are unsigned, for Numba asks of a signed index whether it is negative.
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
def dynamic_swapped(dtype):
    """Kernel like dynamic with the roles of threadIdx.x and .y exchanged, and ``pad`` more elements per row."""

    @cuda.jit
    def dynamic_swapped(a, b, out, depth, pad):
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

    return dynamic_swapped


# -- host functions --------------------------------------------------------------------------------

#: What ``matmul`` takes as ``variant``, besides "auto".
VARIANTS = (
    "naive",
    "naive_uncoalesced",
    "naive_float64",
    "naive_uint32",
    "tiled",
    "tiled_conflict",
    "tiled_padded",
    "tiled_swizzled",
    "dynamic",
    "dynamic_conflict",
    "dynamic_padded",
)
#: What "auto" stands for: the fastest of them.
BEST = "tiled"
#: Variants in which threadIdx.x walks along the rows of the result.
ROWS_ALONG_X = ("naive_uncoalesced", "tiled_conflict", "tiled_padded", "tiled_swizzled", "dynamic_conflict")
ROWS_ALONG_X += ("dynamic_padded",)


def matmul(a, b, variant="auto", *, out=None, stream=None, tile=16, pad=None, depth=None):
    """a @ b by one of the kernels of this module (A6, A10 to A12).

    Parameters
    ----------
    a, b : ndarray or device array, shapes (M, K) and (K, N), float32 or float64, alike
        Any M, N and K, also 0. Both of NumPy, or both on the device (anything with ``__cuda_array_interface__``). The
        kernels want rows one after the other; an array that is not C-contiguous, such as a transposed one, is copied.
    variant : str
        One of ``VARIANTS``, or "auto" for the fastest. Sums are in the type of the inputs except for "naive_float64".
    out : array of shape (M, N), optional
        Of the same kind and dtype. On the device it must not share memory with ``a`` or ``b``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.
    tile : 8, 16 or 32
        Blocks have tile x tile threads, tiles of shared memory as many elements.
    pad : int, optional
        0 to 8 further elements in each row of a tile, for the variants "tiled_padded" and "dynamic_padded";
        ``right_pad(dtype, tile)`` unless given. The documents have 1.
    depth : int, optional
        For the dynamic variants, a multiple of ``tile``: how many columns of ``a`` and rows of ``b`` are loaded at a
        time. ``tile`` unless given. More than 48 KB of shared memory is asked for as the device demands it.

    Returns
    -------
    ndarray or device array, shape (M, N)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    _check_operands(a, b, out)
    dtype, stream = dtype_of(a), stream_of(stream)
    launcher = _launcher(variant, dtype, tile, pad, depth)
    rows, columns = a.shape[0], b.shape[1]
    result = Output(a, (rows, columns), out, stream)
    a, b = to_device(a, stream), to_device(b, stream)
    step = MOST_BLOCKS * tile
    for row in range(0, rows, step):
        for col in range(0, columns, step):
            part = a, b, result.device
            if rows > step or columns > step:
                part = a[row : row + step], b[:, col : col + step], result.device[row : row + step, col : col + step]
            launcher.configure(part[2].shape, stream)(*part, *launcher.further)
    return result.finish()


def configure(variant, shape, dtype=np.float32, *, tile=16, pad=None, depth=None, stream=None):
    """The launch that ``matmul`` makes, to be traced or timed: call it with a, b and out, and what else it returns.

    Parameters
    ----------
    variant, tile, pad, depth, stream
        As for ``matmul``.
    shape : tuple of 2 int
        M and N, 1 or more.
    dtype : float32 or float64

    Returns
    -------
    launch : ``kernel[grid, block, stream, shared_bytes]``
    further : tuple
        The kernel's arguments after a, b and out: ``launch(a, b, out, *further)``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    if np.dtype(dtype) not in DTYPES:
        raise TypeError(f"dtype is {np.dtype(dtype)}; it must be float32 or float64")
    for axis, size in enumerate(shape):
        whole(f"shape[{axis}]", size, 1, MOST_BLOCKS * 8)
    launcher = _launcher(variant, np.dtype(dtype), tile, pad, depth)
    return launcher.configure(shape, stream_of(stream)), launcher.further


class _Launcher:
    """A kernel with what its launch needs beside the shape of the result."""

    def __init__(self, kernel, tile, rows_along_x, shared_bytes=0, further=()):
        self.kernel, self.tile, self.rows_along_x = kernel, tile, rows_along_x
        self.shared_bytes, self.further = shared_bytes, further

    def configure(self, shape, stream):
        rows, columns = (-(-n // self.tile) for n in shape)
        grid = (rows, columns) if self.rows_along_x else (columns, rows)
        return configured(self.kernel, grid, (self.tile, self.tile), stream, self.shared_bytes)


def _launcher(variant, dtype, tile, pad, depth):
    """The kernel of a variant, after a check of everything that it is made with."""
    variant = BEST if variant == "auto" else variant
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be 'auto' or one of {', '.join(VARIANTS)}")
    if whole("tile", tile, 8, 32) not in TILES:
        raise ValueError(f"tile is {tile}; it must be 8, 16 or 32")
    pad = _pad(variant, dtype, tile, pad)
    depth = _depth(variant, tile, depth)
    family, _, form = variant.partition("_")
    rows_along_x = variant in ROWS_ALONG_X
    number = types.float32 if dtype == np.float32 else types.float64
    if family == "naive":
        kernel = {"": naive, "uncoalesced": naive_uncoalesced, "float64": naive_float64, "uint32": naive_uint32}[form]
        return _Launcher(kernel, tile, rows_along_x)
    if family == "tiled":
        kernel = {"": tiled, "swizzled": swizzled}.get(form)
        kernel = kernel(number, tile) if kernel else swapped(number, tile, pad)
        return _Launcher(kernel, tile, rows_along_x)
    nbytes = (tile * (depth + pad) + depth * (tile + pad)) * dtype.itemsize
    kernel = dynamic_swapped(number) if rows_along_x else dynamic(number)
    _allow(kernel, nbytes, tile, depth)
    return _Launcher(kernel, tile, rows_along_x, nbytes, (depth, pad) if rows_along_x else (depth,))


def _pad(variant, dtype, tile, pad):
    if variant not in ("tiled_padded", "dynamic_padded"):
        if pad is not None:
            raise ValueError(f"pad is {pad!r}; variant {variant!r} has none: leave it out")
        return 0
    return right_pad(dtype, tile) if pad is None else whole("pad", pad, 0, MOST_PAD)


def _depth(variant, tile, depth):
    if depth is None:
        return tile
    if not variant.startswith("dynamic"):
        raise ValueError(f"depth is {depth!r}; it is for the dynamic variants, not {variant!r}: leave it out")
    if whole("depth", depth, tile) % tile:
        raise ValueError(f"depth is {depth}; it must be a multiple of tile, {tile}")
    return int(depth)


def _allow(kernel, nbytes, tile, depth):
    """Let a kernel have its shared memory, if the device has so much."""
    device = cuda.get_current_device()
    if nbytes > device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        raise ValueError(
            f"depth is {depth}; with tile {tile} that is {nbytes:,} bytes of shared memory per block, and this device "
            f"allows {device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:,}"
        )
    if nbytes > device.MAX_SHARED_MEMORY_PER_BLOCK:
        intrinsics.allow_dynamic_shared(kernel, nbytes)


def _check_operands(a, b, out):
    check_array("a", a, 2, DTYPES)
    check_array("b", b, 2, DTYPES)
    check_alike("b", b, "a", a)
    if a.shape[1] != b.shape[0]:
        shapes = f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}"
        raise ValueError(f"{shapes}; b must have as many rows as a has columns")
    if out is not None:
        check_array("out", out, 2, DTYPES)
        check_alike("out", out, "a", a, (a.shape[0], b.shape[1]))
        check_apart("out", out, a=a, b=b)
