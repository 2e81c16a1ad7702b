"""Host functions: from arrays of any kind to the launches of one product, or of many."""

from math import prod

import numpy as np

from gpukit import intrinsics
from gpukit._host.arrays import (
    address_of,
    check_alike,
    check_apart,
    check_array,
    configured,
    dtype_of,
    stream_of,
)
from gpukit._host.call import call
from gpukit._host.work_memory import WorkMemory
from gpukit.backend import cuda, types
from gpukit.matmul import fast as fast_kernel
from gpukit.matmul import ladder, tiles
from gpukit.matmul.cost import choose
from warpstep.checks import check_int

__all__ = ["DTYPES", "LADDER", "MOST_BLOCKS", "SIMPLE", "TILES", "VARIANTS", "configure", "launches", "matmul", "steps"]

DTYPES = (np.float32, np.float64)
TILES = (8, 16, 32)
MOST_PAD = 8
#: Rows or columns of blocks, or matrices, in one launch: the limit of ``gridDim.y`` and ``gridDim.z``.
MOST_BLOCKS = 65535

#: The variants that `configure` knows: a thread has one element.
SIMPLE = (
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
#: From the first tile in registers to the fast product, one idea each.
LADDER = (
    "registers_1d",
    "registers_2d",
    "wide",
    "transposed",
    "padded",
    "double_buffered",
    "warp_tiles",
    "read_ahead",
    "asynchronous",
    "fast",
)
#: What ``matmul`` takes as ``variant``, besides "auto".
VARIANTS = SIMPLE + LADDER
#: Those of the ladder that are for float64 too.
ANY_DTYPE = ("registers_1d", "registers_2d")
#: Variants in which threadIdx.x walks along the rows of the result.
ROWS_ALONG_X = ("naive_uncoalesced", "tiled_conflict", "tiled_padded", "tiled_swizzled", "dynamic_conflict")
ROWS_ALONG_X += ("dynamic_padded",)

#: From this K on the largest tile stores its sums one by one. Four at a time want registers that follow one another,
#: and the multiply-adds of the loop then have to take what is left: 2 % at 4096 x 4096 x 4096.
DEEP = 512


def matmul(a, b, variant="auto", *, alpha=1.0, beta=0.0, out=None, stream=None, tile=16, pad=None, depth=None):
    """alpha (a @ b) + beta out, by one of the kernels of this package (A6, A10 to A12).

    Parameters
    ----------
    a, b : ndarray or device array, shapes (..., M, K) and (..., K, N), float32 or float64, alike
        Any M, N and K, also 0. Both of NumPy, or both on the device (anything with ``__cuda_array_interface__``). Axes
        before the last two count matrices, and are broadcast as ``numpy.matmul`` does it. The kernels want rows one
        after the other; an array that is not C-contiguous, such as a transposed one, is copied.
    variant : str
        One of ``VARIANTS``, or "auto": the fastest for the shape. Sums are in the type of the inputs except for
        "naive_float64". All of ``LADDER`` but the first two are for float32.
    alpha, beta : float
        As in BLAS: ``out`` is not read if beta is 0. With another beta it must be given.
    out : array of shape (..., M, N), optional
        Of the same kind and dtype. On the device it must not share memory with ``a`` or ``b``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.
    tile : 8, 16 or 32
        For ``SIMPLE``: blocks have tile x tile threads, tiles of shared memory as many elements.
    pad : int, optional
        0 to 8 further elements in each row of a tile, for the variants "tiled_padded" and "dynamic_padded";
        ``right_pad(dtype, tile)`` unless given. The documents have 1.
    depth : int, optional
        For the dynamic variants, a multiple of ``tile``: how many columns of ``a`` and rows of ``b`` are loaded at a
        time. ``tile`` unless given. More than 48 KB of shared memory is asked for as the device demands it.

    Returns
    -------
    ndarray or device array, shape (..., M, N)
        ``out`` if that was given, otherwise a new array of the same library. The same input gives the same bits.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    return call(_product, (a, b), out, stream, (variant, alpha, beta, tile, pad, depth))


def _product(problem):
    (a, b), (variant, alpha, beta, *options) = problem.inputs, problem.settings
    shape = _check_operands(a, b, problem.out)
    _check_scalars(alpha, beta, problem.out)
    make = _maker(variant, dtype_of(a), shape[-2:], *options)
    out = problem.output(shape, keep=beta != 0)
    if out.size == 0:
        return []
    a, b = problem.on_device(a), problem.on_device(b)
    return list(_all_steps(make, a, b, out, alpha, beta, problem.work))


def steps(variant, a, b, out, *, alpha=1.0, beta=0.0, stream=None, tile=16, pad=None, depth=None):
    """The launches of one product, to be made, traced or timed in this order: ``for launch, arguments in steps(...)``.

    Parameters
    ----------
    variant, alpha, beta, tile, pad, depth, stream
        As for `matmul`.
    a, b, out : C-contiguous arrays
        As for `matmul`, none of them empty; device arrays, or NumPy arrays to be traced.

    Returns
    -------
    list of (launch, arguments)
        Work memory is among the arguments: it lives as long as the list.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    _check_operands(a, b, out)
    _check_scalars(alpha, beta, out)
    if 0 in (*a.shape, *b.shape, *out.shape):
        raise ValueError(f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; they must not be empty")
    make = _maker(variant, dtype_of(a), out.shape[-2:], tile, pad, depth)
    return list(_all_steps(make, a, b, out, alpha, beta, WorkMemory(stream_of(stream))))


def launches(a, b, out, work, alpha=1.0, beta=0.0):
    """The launches of `matmul` with "auto", for functions that compute a product on the way.

    Parameters
    ----------
    a, b, out : C-contiguous device arrays, as for `matmul`
        Not checked; none of them empty.
    work : WorkMemory
    alpha, beta : float

    Returns
    -------
    list of (launch, arguments)
    """
    make = _maker("auto", dtype_of(a), out.shape[-2:], 16, None, None)
    return list(_all_steps(make, a, b, out, alpha, beta, work))


# -- checks ----------------------------------------------------------------------------------------


def _check_operands(a, b, out):
    """The shape of the result, after a check of the arrays."""
    for name, array in (("a", a), ("b", b)):
        check_array(name, array, 2, DTYPES, more=True)
    check_alike("b", b, "a", a)
    shapes = f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}"
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{shapes}; b must have as many rows as a has columns")
    try:
        lead = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except ValueError:
        raise ValueError(f"{shapes}; the axes before the last two must be alike, or 1") from None
    shape = (*lead, a.shape[-2], b.shape[-1])
    if out is not None:
        check_array("out", out, len(shape), DTYPES)
        check_alike("out", out, "a", a, shape)
        check_apart("out", out, a=a, b=b)
    return shape


def _check_scalars(alpha, beta, out):
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; it must be a number")
    if beta != 0 and out is None:
        raise ValueError(f"beta is {beta}; out must be given, for beta out is added to the product")


# -- which launches --------------------------------------------------------------------------------


class _Launcher:
    """A kernel with what its launch needs beside the shape of the result."""

    def __init__(self, kernel, tile, threads=None, rows_along_x=False, shared_bytes=0, further=()):
        self.kernel, self.tile, self.rows_along_x = kernel, tile, rows_along_x
        self.threads = (tile, tile) if threads is None else threads
        self.shared_bytes, self.further = shared_bytes, further

    def configure(self, shape, stream):
        rows, columns = (-(-n // self.tile) for n in shape)
        grid = (rows, columns) if self.rows_along_x else (columns, rows)
        return configured(self.kernel, grid, self.threads, stream, self.shared_bytes)


def _auto_float64(shape):
    """A column per thread, if that makes tiles enough for all multiprocessors; a square takes too many registers."""
    tiles_in_all = -(-shape[0] // ladder.TILE_1D) * -(-shape[1] // ladder.TILE_1D)
    return "registers_1d" if tiles_in_all >= cuda.get_current_device().MULTIPROCESSOR_COUNT else "tiled"


def _maker(variant, dtype, shape, tile, pad, depth):
    """What `_all_steps` makes the launches with, after a check: a launcher, or the name of a rung of the ladder."""
    if variant == "auto":
        variant = "fast" if dtype == np.float32 else _auto_float64(shape)
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be 'auto' or one of {', '.join(VARIANTS)}")
    if variant in SIMPLE:
        return _simple_launcher(variant, dtype, tile, pad, depth)
    for name, value, default in (("tile", tile, 16), ("pad", pad, None), ("depth", depth, None)):
        if value != default:
            raise ValueError(f"{name} is {value!r}; variant {variant!r} has none: leave it out")
    if dtype != np.float32 and variant not in ANY_DTYPE:
        raise TypeError(f"a has dtype {dtype}; variant {variant!r} is for float32")
    return variant


def _all_steps(maker, a, b, out, alpha, beta, work):
    """The launches for contiguous arrays of any number of dimensions, none of them empty unless K is 0."""
    lead = tuple(out.shape[:-2])
    if maker == "fast":
        yield from _fast_steps(a, b, out, alpha, beta, work)
        return
    for index in np.ndindex(*lead):
        parts = (_matrix(array, index) for array in (a, b, out))
        yield from _simple_steps(maker, *parts, alpha, beta, work)


def _matrix(array, index):
    """The matrix of an array that belongs to an index of the result."""
    index = index[len(index) - len(array.shape) + 2 :]
    return array[tuple(0 if n == 1 else i for i, n in zip(index, array.shape, strict=False))] if index else array


def _simple_steps(maker, a, b, out, alpha, beta, work):
    """One product by a kernel that computes out = a b, and another for alpha and beta if they are not 1 and 0."""
    product, (rows, columns) = out, out.shape
    if beta != 0:
        product = work.take("product", out.size, dtype_of(out)).reshape(out.shape)
    launcher = maker
    if not isinstance(maker, _Launcher):
        launcher = _ladder_launcher(maker, dtype_of(a), _is_aligned(a, b, product))
    step = MOST_BLOCKS * launcher.tile
    for row in range(0, rows, step):
        for col in range(0, columns, step):
            part = a, b, product
            if rows > step or columns > step:
                part = a[row : row + step], b[:, col : col + step], product[row : row + step, col : col + step]
            yield launcher.configure(part[2].shape, work.stream), (*part, *launcher.further)
    if alpha != 1 or beta != 0:
        yield _scaling(product, out, alpha, beta, work.stream)


def _scaling(product, out, alpha, beta, stream):
    number = dtype_of(out).type
    launch = configured(fast_kernel.scale(beta != 0), min(-(-out.size // 256), MOST_BLOCKS), 256, stream)
    return launch, (product.reshape(-1), out.reshape(-1), number(alpha), number(beta))


def _is_aligned(*arrays):
    """Whether all rows begin at multiples of 16 bytes."""
    return all(array.shape[-1] * dtype_of(array).itemsize % 16 == 0 and address_of(array) % 16 == 0 for array in arrays)


def _ladder_launcher(variant, dtype, aligned):
    """The kernel of a rung below the last."""
    if variant in ANY_DTYPE:
        kernel = getattr(ladder, variant)(types.float32 if dtype == np.float32 else types.float64)
    else:
        kernel = getattr(ladder, variant)(aligned)
    if variant == "registers_1d":
        return _Launcher(kernel, ladder.TILE_1D, ladder.THREADS_1D)
    return _Launcher(kernel, ladder.TILE, ladder.THREADS)


# -- the fast product ------------------------------------------------------------------------------


def _fast_steps(a, b, out, alpha, beta, work):
    lead = tuple(out.shape[:-2])
    rules = [_rule(tuple(array.shape[:-2]), lead) for array in (a, b)]
    if None in rules:  # matrices of one operand come back in an order that no rule gives: axis by axis
        for i in range(lead[0]):
            parts = (array[0 if array.shape[0] == 1 else i] if array.ndim == out.ndim else array for array in (a, b))
            yield from _fast_steps(*parts, out[i], alpha, beta, work)
        return
    batch, (m, k), n = prod(lead), a.shape[-2:], b.shape[-1]
    if rules == [(1, batch), (batch, 1)] and batch > 1:  # the same b for all: more rows of one product
        m, batch, rules = batch * m, 1, [(1, 1), (1, 1)]
    wide_b, wide_out = _is_aligned(b), _is_aligned(out)
    pieces, widen = choose(m, n, k, batch, wide_b, cuda.get_current_device().MULTIPROCESSOR_COUNT)
    a, b, out, pitch = a.reshape(-1), b.reshape(-1), out.reshape(-1), n
    if widen:
        pitch, wide_b = -(-n // 4) * 4, True
        target = work.take("wide_b", b.size // n * pitch, np.float32)
        grid = -(-pitch // 256), min(b.size // n, MOST_BLOCKS)
        yield configured(fast_kernel.widen, grid, 256, work.stream), (b, target, np.uint32(n), np.uint32(pitch))
        b = target
    for piece in pieces:
        arrays = a[piece.row * k :], b[piece.col :], out[piece.row * n + piece.col :]
        which = (batch, *rules[0], *rules[1])
        yield from _piece_steps(piece, *arrays, k, pitch, n, which, wide_b, wide_out, alpha, beta, work)


def _piece_steps(piece, a, b, out, k, pitch_b, pitch_out, which, wide_b, wide_out, alpha, beta, work):
    """The launches for one piece; ``which`` begins with the number of matrices."""
    (batch, *rules), m, n, parts = which, piece.rows, piece.columns, piece.parts
    numbers = np.float32(alpha), np.float32(beta)
    target, pitch, form = out, pitch_out, (alpha != 1 or beta != 0, beta != 0)
    if parts > 1:
        pitch, form = n, (False, False)
        target = work.take("parts", batch * parts * m * n, np.float32)
    wide = (wide_out if parts == 1 else n % 4 == 0) and (k < DEEP or piece.tile.thread_columns < 16)
    kernel = fast_kernel.fast(piece.tile, wide_b, wide, *form)
    grid = -(-m // piece.tile.rows) * -(-n // piece.tile.columns), parts
    sizes = tuple(np.uint32(size) for size in (m, n, k, pitch_b, pitch))
    for z in range(0, batch, MOST_BLOCKS):
        launch = configured(kernel, (*grid, min(batch - z, MOST_BLOCKS)), piece.tile.threads, work.stream)
        yield launch, (a, b, target, sizes, tuple(np.uint32(x) for x in (z, *rules)), *numbers)
    if parts > 1:
        width = 4 if n % 4 == 0 else 1
        groups = fast_kernel.GROUPS if parts >= fast_kernel.MANY and m * n * batch <= fast_kernel.SMALL else 1
        threads = fast_kernel.SUM_THREADS
        kernel = fast_kernel.sum_parts(width, groups, beta != 0)
        launch = configured(kernel, (-(-m * n // (threads // groups * width)), batch), threads, work.stream)
        sizes = tuple(np.uint32(size) for size in (parts, m, n, pitch_out))
        yield launch, (target, out, *sizes, *numbers)


def _rule(own, lead):
    """(div, mod) so that matrix z of the result needs matrix z // div % mod of an operand with these leading axes; None
    if there is no such rule.
    """
    own = (1,) * (len(lead) - len(own)) + own
    axes = [(mine, all_) for mine, all_ in zip(own, lead, strict=True) if all_ > 1]
    there = [i for i, (mine, _) in enumerate(axes) if mine > 1]
    if not there:
        return prod(lead), 1
    first, last = there[0], there[-1]
    if len(there) != last - first + 1:
        return None
    return prod(all_ for _, all_ in axes[last + 1 :]), prod(all_ for _, all_ in axes[first : last + 1])


# -- one element per thread ------------------------------------------------------------------------


def configure(variant, shape, dtype=np.float32, *, tile=16, pad=None, depth=None, stream=None):
    """The launch that `matmul` makes, to be traced or timed: call it with a, b and out, and what else it returns.

    Parameters
    ----------
    variant : str
        One of ``SIMPLE``; `steps` is for all others.
    tile, pad, depth, stream
        As for `matmul`.
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
    if variant not in SIMPLE:
        raise ValueError(f"variant is {variant!r}; it must be one of {', '.join(SIMPLE)}")
    for axis, size in enumerate(shape):
        check_int(f"shape[{axis}]", size, 1, MOST_BLOCKS * 8)
    launcher = _simple_launcher(variant, np.dtype(dtype), tile, pad, depth)
    return launcher.configure(shape, stream_of(stream)), launcher.further


def _simple_launcher(variant, dtype, tile, pad, depth):
    """The kernel of a variant, after a check of everything that it is made with."""
    if check_int("tile", tile, 8, 32) not in TILES:
        raise ValueError(f"tile is {tile}; it must be 8, 16 or 32")
    pad = _pad(variant, dtype, tile, pad)
    depth = _depth(variant, tile, depth)
    family, _, form = variant.partition("_")
    rows_along_x = variant in ROWS_ALONG_X
    number = types.float32 if dtype == np.float32 else types.float64
    if family == "naive":
        return _Launcher(getattr(tiles, variant), tile, rows_along_x=rows_along_x)
    if family == "tiled":
        make = {"": tiles.tiled, "swizzled": tiles.swizzled}.get(form)
        kernel = make(number, tile) if make else tiles.swapped(number, tile, pad)
        return _Launcher(kernel, tile, rows_along_x=rows_along_x)
    nbytes = (tile * (depth + pad) + depth * (tile + pad)) * dtype.itemsize
    kernel = tiles.dynamic_swapped(number) if rows_along_x else tiles.dynamic(number)
    _allow(kernel, nbytes, tile, depth)
    further = (depth, pad) if rows_along_x else (depth,)
    return _Launcher(kernel, tile, rows_along_x=rows_along_x, shared_bytes=nbytes, further=further)


def _pad(variant, dtype, tile, pad):
    if variant not in ("tiled_padded", "dynamic_padded"):
        if pad is not None:
            raise ValueError(f"pad is {pad!r}; variant {variant!r} has none: leave it out")
        return 0
    return tiles.right_pad(dtype, tile) if pad is None else check_int("pad", pad, 0, MOST_PAD)


def _depth(variant, tile, depth):
    if depth is None:
        return tile
    if not variant.startswith("dynamic"):
        raise ValueError(f"depth is {depth!r}; it is for the dynamic variants, not {variant!r}: leave it out")
    if check_int("depth", depth, tile) % tile:
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
