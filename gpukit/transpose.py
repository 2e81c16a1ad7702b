"""Transposing a matrix: a copy in which reads and writes cannot both walk along rows, unless shared memory turns them.

Each kernel reads M N values and writes M N values, so the plain copy is the ceiling for all of them. They move bits and
do not look at them: ``transpose`` gives them elements of any type as unsigned integers of the same size.
"""

import functools

import numpy as np

from gpukit._host.arrays import (
    address_of,
    as_device_array,
    check_alike,
    check_apart,
    check_array,
    configured,
    dtype_of,
    stream_of,
)
from gpukit._host.call import call
from gpukit.backend import cuda, types, uint32
from gpukit.intrinsics import load2, load4, store2, store4
from warpstep.checks import check_int

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

# Indices are unsigned in what follows: Numba asks of a signed one, at every access, whether it is negative, and kernels
# that do nothing but move data would spend their time on that. What they are compared with must be unsigned too: for
# one of each kind, Numba compares both as float64.


# -- controls: how fast would it be if nothing had to turn? ----------------------------------------


@cuda.jit
def copy(a, out):
    """out = a, with the threads and tiles of the transposes.

    Each thread loads all of its values before it stores the first: the compiler does not know that a and out are apart,
    and would let every load wait for the store before it.
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
    """Kernel that copies through shared memory, so that what is left of a transpose's cost is the turning."""

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
    """The other way round: a warp reads down a column of a and writes along a row of out."""
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
    """Kernel that reads a tile along its rows, turns it in shared memory, and writes along the rows of out.

    In shared memory a warp then walks down a column of the tile: ``pad`` more elements per row, 1 for 4-byte elements,
    put it into 32 different banks.
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


@functools.cache
def tiled_swizzled(dtype):
    """Kernel like tiled, without a pad: element (r, c) of the tile is stored in column ``c ^ r`` of its row."""

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
    """Kernel like tiled with a pad of 1, for tiles of ``size`` x ``size`` and blocks of 32 x ``height`` threads.

    Every thread loads all of its values before it stores the first one, so that many loads are under way at a time.
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


# -- 128 bits at a time ----------------------------------------------------------------------------


@functools.cache
def wide(dtype, size):
    """Kernel in which a thread turns 4 x 4 elements in its registers, and moves four neighbours in every access.

    For elements of up to 4 bytes, M and N multiples of 4, and 16-byte aligned matrices; blocks of size/4 x size/4
    threads. A tile is a square of chunks of four elements; chunk (x, y) is stored at ``x ^ y`` of its row, so that
    neither walk has bank conflicts.
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
    """Kernel like wide for elements of 8 bytes: 2 x 2 of them, two in every access."""

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


@cuda.jit
def wide_copy(a, out):
    """out = a for elements of up to 4 bytes, four at a time, with the threads and tiles of wide: its ceiling."""
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

#: What ``transpose`` takes as ``variant``, besides "auto".
VARIANTS = ("naive", "naive_gather", "tiled", "tiled_padded", "tiled_swizzled", "tall", "wide")
#: Kernels of ``configure`` that copy: what the transposes are measured against.
CONTROLS = ("copy", "copy_shared", "wide_copy")
#: Rows or columns of blocks in one launch: the limit of ``gridDim.y``.
MOST_BLOCKS = 65535
#: Tile and rows of threads of "tall", tile of "wide" by size of an element in bytes.
TALL = (64, 8)
WIDE = {1: 64, 2: 64, 4: 64, 8: 32}


def transpose(a, variant="auto", *, out=None, stream=None):
    """The transposed matrix, as a copy whose rows follow one another.

    Parameters
    ----------
    a : ndarray or device array, shape (M, N)
        Any M and N, also 0; elements of 1, 2, 4 or 8 bytes: integers, floats, booleans, complex64, dates. One that is
        not C-contiguous is copied first.
    variant : str
        One of ``VARIANTS``, or "auto": "wide" where it can be, "tall" elsewhere. "wide" needs M and N in multiples of
        4 (of 2 for elements of 8 bytes) and memory aligned to 16 bytes.
    out : array of shape (N, M), optional
        Of the same kind and dtype. On the device it must not share memory with ``a``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, M)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    return call(_transposed, (a,), out, stream, (variant,))


def _transposed(problem):
    (a,), (variant,) = problem.inputs, problem.settings
    _check(a, variant, problem.out)
    rows, columns = a.shape
    target = problem.output((columns, rows))
    if target.size == 0:
        return []
    return _launches(variant, problem.on_device(a), target, problem.stream)


def _launches(variant, source, target, stream):
    """[(launch, arguments), ...] for contiguous device arrays."""
    bits = np.dtype(f"u{source.dtype.itemsize}")
    source, target = source.view(bits), target.view(bits)
    chosen = _choose(variant, source, target)
    step = MOST_BLOCKS * TILE
    if source.shape[0] <= step:
        return [(configure(chosen, source.shape, bits, stream=stream), (source, target))]
    launches = []
    for row in range(0, source.shape[0], step):
        part = source[row : row + step]
        launch = configure("tiled_padded" if chosen == "wide" else chosen, part.shape, bits, stream=stream)
        launches.append((launch, (part, target[:, row : row + step])))
    return launches


def configure(variant, shape, dtype=np.uint32, *, stream=None):
    """The launch that ``transpose`` makes, to be traced or timed: call it with a and out.

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
    """
    dtype = np.dtype(dtype)
    _check_configuration(variant, shape, dtype)
    make, size, block = _kernel(variant, getattr(types, dtype.name), dtype.itemsize)
    rows, columns = shape
    return configured(make(), (-(-columns // size), -(-rows // size)), block, stream_of(stream))


def _kernel(variant, number, itemsize):
    """(what makes the kernel, its tile, its block)."""
    if variant in ("wide", "wide_copy"):
        size, lanes = WIDE[itemsize], _lanes(itemsize)
        wide_kernel = wide if lanes == 4 else wide_pairs
        make = (lambda: wide_kernel(number, size)) if variant == "wide" else lambda: wide_copy
        return make, size, (size // lanes, size // lanes)
    if variant == "tall":
        return lambda: tall(number, *TALL), TALL[0], (32, TALL[1])
    kernels = {
        "copy": lambda: copy,
        "copy_shared": lambda: copy_shared(number),
        "naive": lambda: naive,
        "naive_gather": lambda: naive_gather,
        "tiled": lambda: tiled(number),
        "tiled_padded": lambda: tiled(number, 1),
        "tiled_swizzled": lambda: tiled_swizzled(number),
    }
    return kernels[variant], TILE, (TILE, ROWS)


def _lanes(itemsize):
    """Elements that "wide" moves in one access."""
    return 2 if itemsize == 8 else 4


def _check_configuration(variant, shape, dtype):
    if variant not in (*CONTROLS, *VARIANTS):
        raise ValueError(f"variant is {variant!r}; it must be one of {', '.join((*CONTROLS, *VARIANTS))}")
    for axis, most in ((0, MOST_BLOCKS * TILE), (1, 2**31 - 1)):
        check_int(f"shape[{axis}]", shape[axis], 1, most)
    if dtype.kind not in "iuf" or dtype.itemsize not in ITEMSIZES:
        raise TypeError(f"dtype is {dtype}; it must be an integer or a float of 1, 2, 4 or 8 bytes")
    if variant.startswith("wide"):
        _check_multiples("shape is", shape, dtype)
    if variant == "wide_copy" and dtype.itemsize == 8:
        raise TypeError(f"dtype is {dtype}; wide_copy is for elements of up to 4 bytes")


def _check_multiples(what, shape, dtype):
    lanes = _lanes(dtype.itemsize)
    if any(n % lanes for n in shape):
        raise ValueError(f"{what} {tuple(shape)}; both must be multiples of {lanes} for variant 'wide'")


def _check(a, variant, out):
    check_array("a", a, 2)
    dtype = dtype_of(a)
    if dtype.hasobject or dtype.itemsize not in ITEMSIZES:
        raise TypeError(f"a has dtype {dtype}; its elements must be numbers of 1, 2, 4 or 8 bytes")
    if variant != "auto" and variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be 'auto' or one of {', '.join(VARIANTS)}")
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
    """Whether chunks of 16 bytes can be loaded from a device array; NumPy arrays and others are copied to such."""
    if not cuda.is_cuda_array(array):
        return True
    array = as_device_array(array)
    return not array.is_c_contiguous() or address_of(array) % 16 == 0


def _choose(variant, source, target):
    """The variant to launch for contiguous device arrays: "wide" is for whole chunks that are aligned."""
    if variant != "auto":
        return variant
    lanes = _lanes(source.dtype.itemsize)
    fits = all(n % lanes == 0 for n in source.shape) and _is_aligned(source) and _is_aligned(target)
    return "wide" if fits else "tall"
