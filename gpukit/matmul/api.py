"""``matmul``: from arrays of any kind to the launches of one product, or of many."""

import functools
from math import prod
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from gpukit import intrinsics
from gpukit._host.arrays import (
    address_of,
    as_device_array,
    as_words,
    check_alike,
    check_apart,
    check_array,
    check_kind,
    configure_quietly,
    dtype_of,
    is_bfloat16,
    name_of,
    stream_of,
)
from gpukit._host.call import Problem, call
from gpukit._host.checks import check_dtype, check_sizes
from gpukit._host.work_memory import WorkMemory
from gpukit._numba import dtype_of_type
from gpukit.backend import cuda, float32, float64, types
from gpukit.divisors import make_divisor
from gpukit.matmul import ladder, slim, tiles
from gpukit.matmul.cost import STREAMED, Piece, choose, choose_turns, prefers_packed, time_to_stream
from gpukit.matmul.double import DoubleTile, double
from gpukit.matmul.fast import SUM_THREADS, TURN_ROWS, TURN_TILE, choose_sum, fast, scale, sizes_of, turn, widen
from gpukit.matmul.maps import movable_map
from gpukit.matmul.operands import (
    Flat,
    Operand,
    as_rows,
    broadcast_rule,
    is_aligned,
    is_dense,
    lie_along,
    operand,
    steps_of,
    turned,
    which_of,
)
from gpukit.matmul.packed import MAX_COLUMNS, holds_whole, pack, packed, square_of, takes_vectors
from gpukit.matmul.raster import make_order
from gpukit.matmul.shifted import choose_shifts, shifted, takes_shifted
from gpukit.matmul.streamed import STEP, boxes_of, is_streamed, shared_bytes_of, streamed, threads_of
from gpukit.matmul.tensor import array_of, both_rows, reads_grouped, takes_high, tensor_launches, whole_chunks
from gpukit.matmul.vector import (
    APART,
    THREADS,
    across,
    along,
    choose_vector,
    several,
    takes_apart,
    takes_several,
    total_of,
)
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ, WARP
from warpstep.values import check_choice, check_int, check_number, check_type, describe

__all__ = ["DTYPES", "LADDER", "MAX_BLOCKS", "SIMPLE", "TILES", "VARIANTS", "configure", "matmul", "steps"]

#: Variants in which a thread has one element; `configure` knows them.
_SIMPLE = {
    "naive": tiles.naive,
    "naive_uncoalesced": tiles.naive_uncoalesced,
    "naive_float64": tiles.naive_float64,
    "naive_uint32": tiles.naive_uint32,
    "tiled": tiles.tiled,
    "tiled_conflict": tiles.tiled_conflict,
    "tiled_padded": tiles.tiled_padded,
    "tiled_swizzled": tiles.tiled_swizzled,
    "dynamic": tiles.dynamic,
    "dynamic_conflict": tiles.dynamic_conflict,
    "dynamic_padded": tiles.dynamic_padded,
}
#: From the first tile in registers to the fast product, one idea each.
_LADDER = {
    "registers_1d": ladder.registers_1d,
    "registers_2d": ladder.registers_2d,
    "wide": ladder.wide,
    "transposed": ladder.transposed,
    "transposed_padded": ladder.transposed_padded,
    "double_buffered": ladder.double_buffered,
    "warp_tiles": ladder.warp_tiles,
    "read_ahead": ladder.read_ahead,
    "asynchronous": ladder.asynchronous,
    "fast": fast,
}
#: What `matmul` takes as ``variant``, besides "auto": the name of a kernel, or of the function that makes it.
VARIANTS = _SIMPLE | _LADDER
SIMPLE, LADDER = tuple(_SIMPLE), tuple(_LADDER)
#: Names that variants have had.
FORMER = {"padded": "transposed_padded"}
#: How the kernels of ``tiles`` are made: not at all, by dtype and tile (and a pad), by dtype.
PLAIN = ("naive", "naive_uncoalesced", "naive_float64", "naive_uint32")
STATIC = ("tiled", "tiled_conflict", "tiled_padded", "tiled_swizzled")
DYNAMIC = ("dynamic", "dynamic_conflict", "dynamic_padded")
PADDED = ("tiled_padded", "dynamic_padded")
#: Variants in which threadIdx.x walks along the rows of the result.
ROWS_ALONG_X = ("naive_uncoalesced", *STATIC[1:], *DYNAMIC[1:])
#: Variants of the ladder that are for float64 too.
ANY_DTYPE = ("registers_1d", "registers_2d")

DTYPES = (np.float32, np.float64)
#: What tensor cores multiply besides; 2 bytes of no type stand for bfloat16.
SHORT_DTYPES = (np.float16, np.dtype("V2"), np.int8)
#: How float32 is multiplied, and the format of `gpukit.matmul.formats` for that, if it is on tensor cores.
PRECISIONS = {"highest": None, "high": "high", "tf32": "tf32"}
#: Formats of products that `packed` computes too.
PACKED_FORMATS = None, "float16", "bfloat16"
NUMBERS = {np.dtype(np.float32): float32, np.dtype(np.float64): float64}
#: Elements of products with one row or column; uint16 holds bfloat16.
ELEMENTS = NUMBERS | {np.dtype(np.float16): types.float16, np.dtype(np.uint16): types.uint16}
TILES = (8, 16, 32)
MAX_PAD = 8
#: Rows or columns of blocks, or matrices, in one launch: the limit of ``gridDim.y`` and ``gridDim.z``.
MAX_BLOCKS = MAX_GRID_YZ
#: From this K on the largest tile stores its sums one by one. Stores of four need consecutive registers, and the
#: multiply-adds of the loop then get the remaining ones: 2 % at 4096 x 4096 x 4096.
SINGLE_STORES_MIN_K = 512
#: Tiles of so many elements gather rows that are not aligned before they store them, but for such a K.
MIN_GATHERED = 64 * 64
#: Elements of a matrix from which on a few vectors are transposed for it, and how many times smaller these must be.
MIN_TURNED_FOR, MIN_TIMES_FEW = 1 << 22, 16


def matmul(
    a,
    b,
    variant: str = "auto",
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out=None,
    stream=None,
    tile: int = 16,
    pad: int | None = None,
    depth: int | None = None,
    precision: str = "highest",
):
    """Compute alpha (a @ b) + beta out by one of the kernels of this package (A6, A10 to A12).

    Parameters
    ----------
    a, b : ndarray or device array, shapes (..., M, K) or (K,), and (..., K, N) or (K,), alike
        Of float32, float64, float16, bfloat16 (of PyTorch, CuPy or ml_dtypes) or int8. Any M, N and K, also 0. Both of
        NumPy, or both on the device (anything with ``__cuda_array_interface__``). Axes before the last two count
        matrices, and are broadcast as by ``numpy.matmul``. One axis is a row of ``a`` or a column of ``b``, and the
        result lacks the axis of length 1. On the device "auto" and "fast" read matrices as they are if
        their rows or their columns are contiguous: transposed ones, parts of others. A large product of float32 takes
        work memory of the size of ``a`` and ``b``, for transposed copies. The other variants copy what is not
        C-contiguous first.
    variant : str
        One of ``VARIANTS``, or "auto": the fastest for the shape. It has kernels of its own for a few rows or columns,
        for a small K, for many small matrices, and for float64, with tensor cores (compute capability 9.0). Sums are in
        the type of the inputs except for "naive_float64". All of ``LADDER`` but the first two are for float32. float16,
        bfloat16 and int8 have "auto" and "fast" only, on tensor cores (compute capability 8.0): sums are in float32,
        rounded once at the end, or in int32.
    alpha, beta : float
        As in BLAS: ``out`` is not read if beta is 0. With another beta it must be given. For int8 they are ints.
    out : array of shape (..., M, N), optional
        Of the same kind, and of the dtype of the result. On the device it must not share memory with ``a`` or ``b``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.
    tile : 8, 16 or 32
        For ``SIMPLE``: blocks have tile x tile threads, tiles of shared memory as many elements.
    pad : int, optional
        0 to 8 more elements in each row of a tile, for the variants "tiled_padded" and "dynamic_padded";
        ``right_pad(dtype, tile)`` unless given. The documents have 1.
    depth : int, optional
        For the dynamic variants, a multiple of ``tile``: how many columns of ``a`` and rows of ``b`` are loaded at a
        time. ``tile`` unless given. More than 48 KB of shared memory is opted in to.
    precision : "highest", "high" or "tf32"
        For products of float32 by "auto" or "fast"; other dtypes have only one.

        - "highest": float32 throughout.
        - "high": each element is split into two numbers of TF32, and three products on tensor cores are added: about 21
          of float32's 24 bits, where PyTorch's ``set_float32_matmul_precision("high")`` allows 11. An infinite element
          makes its row or column NaN. Products that take longer so, such as those of a few rows, are computed as by
          "highest".
        - "tf32": one product on tensor cores, whose operands have 11 bits: what PyTorch computes on a GPU for "high"
          and for ``torch.backends.cuda.matmul.fp32_precision = "tf32"``. Sums are in float32.

    Returns
    -------
    ndarray or device array, shape (..., M, N)
        Without M for a row ``a``, and without N for a column ``b``: ``out`` if that was given, otherwise a new array of
        the same library, or a NumPy scalar for two vectors of NumPy; int32 for int8, otherwise of the dtype of the
        operands. The same input gives the same bits.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    LaunchError
        If the device's compute capability is below that of the tensor cores that are needed.

    Examples
    --------
    >>> import numpy as np
    >>> from gpukit import matmul
    >>> a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    >>> matmul.matmul(a, b, "tiled")
    array([[3., 3., 3., 3.],
           [3., 3., 3., 3.]], dtype=float32)
    """
    return call(_product, (a, b), out, stream, (variant, alpha, beta, tile, pad, depth, precision))


def _product(problem: Problem):
    (a, b), (variant, alpha, beta, *options) = problem.inputs, problem.settings
    shape = _check_operands(a, b, problem.out, dimensions=1)
    _check_scalars(alpha, beta, problem.out, dtype_of(a))
    rows, columns = len(a.shape) == 1, len(b.shape) == 1
    matrices = shape[: len(shape) - 2 + rows + columns]
    matrices += (1 if rows else a.shape[-2], 1 if columns else b.shape[-1])
    make_launches = _resolve(variant, dtype_of(a), matrices[-2:], *options)
    out = problem.output(shape, _result_dtype(a), keep=beta != 0)
    if out.size == 0:
        return []
    a = problem.on_device(a).reshape(1, -1) if rows else a
    b = problem.on_device(b).reshape(-1, 1) if columns else b
    a, b, out = as_words(a), as_words(b), as_words(out.reshape(matrices))
    return list(make_launches(a, b, out, alpha, beta, problem.work, problem.on_device))


def _result_dtype(a):
    return np.dtype(np.int32) if dtype_of(a) == np.int8 else dtype_of(a)


def steps(
    variant: str,
    a,
    b,
    out,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    stream=None,
    tile: int = 16,
    pad: int | None = None,
    depth: int | None = None,
    precision: str = "highest",
    work: WorkMemory | None = None,
) -> list:
    """List the launches of one product, to be made, traced or timed: ``for launch, arguments in steps(...)``.

    Parameters
    ----------
    variant, alpha, beta, tile, pad, depth, precision, stream
        As for `matmul`.
    a, b, out : C-contiguous arrays
        As for `matmul`, none of them empty; device arrays, or NumPy arrays to be traced.
    work : WorkMemory, optional
        Of a function that computes the product on the way; new memory, which lives as long as the list, unless given.

    Returns
    -------
    list of (launch, arguments)

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Examples
    --------
    >>> a, out = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    >>> [gpukit.trace(launch, *arguments).status for launch, arguments in steps("tiled", a, a, out)]
    ['complete']
    """
    check_type("work", work, (WorkMemory, type(None)), "a WorkMemory or None")
    _check_matrix("out", out, (*DTYPES, *SHORT_DTYPES, np.int32))
    _check_operands(a, b, out)
    _check_scalars(alpha, beta, out, dtype_of(a))
    if 0 in (*a.shape, *b.shape, *out.shape):
        raise ValueError(f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; they must not be empty")
    make_launches = _resolve(variant, dtype_of(a), out.shape[-2:], tile, pad, depth, precision)
    a, b, out = as_words(a), as_words(b), as_words(out)
    return list(make_launches(a, b, out, alpha, beta, work or WorkMemory(stream_of(stream))))


def configure(
    variant: str,
    shape: tuple[int, int],
    dtype: DTypeLike = np.float32,
    *,
    tile: int = 16,
    pad: int | None = None,
    depth: int | None = None,
    stream=None,
):
    """Configure the launch that `matmul` makes, to be traced or timed.

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
        Call ``launch(a, b, out, *further)``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Examples
    --------
    >>> a, b = np.ones((30, 40), np.float32), np.ones((40, 50), np.float32)
    >>> out = np.zeros((30, 50), np.float32)
    >>> launch, further = configure("tiled", out.shape, out.dtype)
    >>> gpukit.trace(launch, a, b, out, *further).findings
    []
    """
    check_choice("variant", variant, SIMPLE)
    shape = check_sizes("shape", shape, (1, 1), (MAX_BLOCKS * 8,) * 2, "a tuple of 2 ints, M and N")
    form = _simple_form(variant, check_dtype("dtype", dtype, DTYPES), tile, pad, depth)
    return form.configure(shape, stream_of(stream)), form.further


# -- checks ----------------------------------------------------------------------------------------


def _check_matrix(name, array, dtypes, dimensions=2):
    """Check an array of so many axes or more; bfloat16 has more than one NumPy dtype."""
    check_kind(name, array)
    check_array(name, array, dimensions, None if is_bfloat16(dtype_of(array)) else dtypes, more=True)


def _check_operands(a, b, out, dimensions=2):
    """Check the arrays, of so many axes or more; returns the shape of the result."""
    for name, array in (("a", a), ("b", b)):
        _check_matrix(name, array, (*DTYPES, *SHORT_DTYPES), dimensions)
    check_alike("b", b, "a", a)
    shapes = f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}"
    if a.shape[-1] != b.shape[-2:][0]:
        raise ValueError(f"{shapes}; b must have as many rows as a has columns")
    try:
        lead = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except ValueError:
        raise ValueError(f"{shapes}; the axes before the last two must be alike, or 1") from None
    shape = (*lead, *a.shape[-2:-1], *b.shape[-2:][1:])
    if out is not None:
        check_array("out", out, len(shape))
        check_alike("out", out, "a", a, shape, _result_dtype(a))
        check_apart("out", out, a=a, b=b)
    return shape


def _check_scalars(alpha, beta, out, dtype):
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_number(name, value)
        if dtype == np.int8 and not (abs(value) < 2**31 and value == int(value)):
            raise ValueError(f"{name} is {value}; for int8 it must be an int of 32 bits")
    if beta != 0 and out is None:
        raise ValueError(f"beta is {beta}; out must be given, for beta out is added to the product")


# -- a variant and its options ---------------------------------------------------------------------


def _resolve(variant, dtype, shape, tile=16, pad=None, depth=None, precision="highest"):
    """Check a variant with its options; returns ``make_launches(a, b, out, alpha, beta, work)``."""
    check_choice("variant", variant, (*VARIANTS, *FORMER), also="auto")
    check_choice("precision", precision, tuple(PRECISIONS))
    variant = FORMER.get(variant, variant)
    format_name = _format_of(dtype, precision)
    if format_name is not None:
        if variant not in ("auto", "fast"):
            what = f"a has dtype {name_of(dtype)}" if dtype != np.float32 else f"precision is {precision!r}"
            raise TypeError(f"{what}; variant must be 'auto' or 'fast' for that, not {variant!r}")
        _check_no_options(variant, tile, pad, depth)
        return functools.partial(_fast_launches, vectors=variant == "auto", format_name=format_name)
    if variant == "auto":
        if dtype == np.float32 or 1 in shape or _has_tensor_cores():
            _check_no_options(variant, tile, pad, depth)
            return functools.partial(_fast_launches, vectors=True)
        variant = _choose_float64(shape)
    if variant in SIMPLE:
        form = _simple_form(variant, dtype, tile, pad, depth)
        return functools.partial(_matrix_by_matrix, lambda aligned: form)
    _check_no_options(variant, tile, pad, depth)
    if dtype != np.float32 and variant not in ANY_DTYPE:
        raise TypeError(f"a has dtype {dtype}; variant {variant!r} is for float32")
    if variant == "fast":
        return _fast_launches
    return functools.partial(_matrix_by_matrix, functools.partial(_ladder_form, variant, dtype))


def _check_no_options(variant, tile, pad, depth):
    """Refuse options of the kernels of ``tiles``."""
    for name, value, default in (("tile", tile, 16), ("pad", pad, None), ("depth", depth, None)):
        if not isinstance(value, Integral | None) or value != default:
            raise ValueError(f"{name} is {describe(value)}; variant {variant!r} has none: leave it out")


def _format_of(dtype, precision):
    """The format for tensor cores, one of ``FORMATS`` or "high"; None for kernels of the dtype's own arithmetic."""
    if is_bfloat16(dtype):
        return "bfloat16"
    return PRECISIONS[precision] if dtype == np.float32 else {"float16": "float16", "int8": "int8"}.get(dtype.name)


def _has_tensor_cores():
    """Whether the device multiplies float64 in matrices of 16 x 16 by 16 x 8."""
    return cuda.get_current_device().compute_capability >= (9, 0)


def _choose_float64(shape):
    """A column per thread, if the tiles are enough for all multiprocessors; a square takes too many registers."""
    blocks = ceil_div(shape[0], ladder.TILE_1D) * ceil_div(shape[1], ladder.TILE_1D)
    return "registers_1d" if blocks >= cuda.get_current_device().MULTIPROCESSOR_COUNT else "tiled"


class _Form(NamedTuple):
    """A kernel, and what its launch needs beside the shape of the result.

    Attributes
    ----------
    tile : int
        Rows and columns of the result that a block computes.
    rows_along_x : bool
        Whether blockIdx.x counts rows.
    further : tuple
        Arguments after a, b and out.
    """

    kernel: Any
    tile: int
    threads: Any
    rows_along_x: bool = False
    shared_bytes: int = 0
    further: tuple = ()

    def configure(self, shape, stream):
        rows, columns = (ceil_div(n, self.tile) for n in shape)
        grid = (rows, columns) if self.rows_along_x else (columns, rows)
        return configure_quietly(self.kernel, grid, self.threads, stream, self.shared_bytes)


def _simple_form(variant, dtype, tile, pad, depth):
    """The form of a kernel of ``tiles``, after a check of its options."""
    tile = check_int("tile", tile, 8, 32)
    if tile not in TILES:
        raise ValueError(f"tile is {tile}; it must be 8, 16 or 32")
    pad, depth = _check_pad(variant, dtype, tile, pad), _check_depth(variant, tile, depth)
    make, number, rows_along_x = VARIANTS[variant], NUMBERS[dtype], variant in ROWS_ALONG_X
    if variant in PLAIN:
        return _Form(make, tile, (tile, tile), rows_along_x)
    if variant in STATIC:
        kernel = make(number, tile, pad) if variant in PADDED else make(number, tile)
        return _Form(kernel, tile, (tile, tile), rows_along_x)
    kernel, nbytes = make(number), (tile * (depth + pad) + depth * (tile + pad)) * dtype.itemsize
    _opt_in(kernel, nbytes, tile, depth)
    return _Form(kernel, tile, (tile, tile), rows_along_x, nbytes, (depth, pad) if rows_along_x else (depth,))


def _check_pad(variant, dtype, tile, pad):
    if variant in PADDED:
        return tiles.right_pad(dtype, tile) if pad is None else check_int("pad", pad, 0, MAX_PAD)
    if pad is not None:
        raise ValueError(f"pad is {describe(pad)}; variant {variant!r} has none: leave it out")
    return 0


def _check_depth(variant, tile, depth):
    if depth is None:
        return tile
    if variant not in DYNAMIC:
        raise ValueError(f"depth is {describe(depth)}; it is for the dynamic variants, not {variant!r}: leave it out")
    depth = check_int("depth", depth, tile)
    if depth % tile:
        raise ValueError(f"depth is {depth}; it must be a multiple of tile, {tile}")
    return depth


def _opt_in(kernel, nbytes, tile, depth):
    """Opt in to more than 48 KB of dynamic shared memory, if the device has as much."""
    device = cuda.get_current_device()
    if nbytes > device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        raise ValueError(
            f"depth is {depth}; with tile {tile} that is {nbytes:,} bytes of shared memory per block, and this device "
            f"allows {device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:,}"
        )
    if nbytes > device.MAX_SHARED_MEMORY_PER_BLOCK:
        intrinsics.allow_dynamic_shared(kernel, nbytes)


def _ladder_form(variant, dtype, aligned):
    """The form of a kernel of ``ladder``."""
    kernel = VARIANTS[variant](NUMBERS[dtype] if variant in ANY_DTYPE else aligned)
    if variant == "registers_1d":
        return _Form(kernel, ladder.TILE_1D, ladder.THREADS_1D)
    return _Form(kernel, ladder.TILE, ladder.THREADS)


# -- launches: one matrix after the other ----------------------------------------------------------


def _matrix_by_matrix(make_form, a, b, out, alpha, beta, work, on_device=None):
    """The launches for arrays of any number of dimensions; only K may be 0. ``on_device`` makes them C-contiguous."""
    if on_device is not None:
        a, b = on_device(a), on_device(b)
    for index in np.ndindex(*out.shape[:-2]):
        matrices = _matrix(a, index), _matrix(b, index), _matrix(out, index)
        yield from _matrix_launches(make_form, *matrices, alpha, beta, work)


def _matrix(array, index):
    """The matrix of an array that belongs to an index of the result."""
    index = index[len(index) - len(array.shape) + 2 :]
    if not index:
        return array
    index = tuple(0 if n == 1 else i for i, n in zip(index, array.shape, strict=False))
    return _part(array, index, array.shape[-2:])


def _part(array, index, shape):
    """``array[index]``, which has this shape. A device array without elements cannot be indexed."""
    return array[index] if array.size else array.reshape(shape)


def _matrix_launches(make_form, a, b, out, alpha, beta, work):
    """One product by a kernel that computes out = a b, and another for alpha and beta if they are not 1 and 0."""
    product, (rows, columns) = out, out.shape
    if beta != 0:
        product = work.take("product", out.size, dtype_of(out)).reshape(out.shape)
    form = make_form(is_aligned(a, b, product))
    step = MAX_BLOCKS * form.tile
    for row in range(0, rows, step):
        for col in range(0, columns, step):
            part = a, b, product
            if rows > step or columns > step:
                block, k = product[row : row + step, col : col + step], a.shape[1]
                first = _part(a, slice(row, row + step), (block.shape[0], k))
                part = first, _part(b, (slice(None), slice(col, col + step)), (k, block.shape[1])), block
            yield form.configure(part[2].shape, work.stream), (*part, *form.further)
    if alpha != 1 or beta != 0:
        yield _launch_scale(product, out, alpha, beta, work.stream)


def _launch_scale(product, out, alpha, beta, stream):
    number = dtype_of(out).type
    launch = configure_quietly(scale(beta != 0), min(ceil_div(out.size, 256), MAX_BLOCKS), 256, stream)
    return launch, (product.reshape(-1), out.reshape(-1), number(alpha), number(beta))


# -- launches: the fast product --------------------------------------------------------------------


def _fast_launches(a, b, out, alpha, beta, work, on_device=None, *, vectors=False, format_name=None):
    """The launches for operands that lie in any way; ``on_device`` makes a C-contiguous copy of those that cannot be
    read as they are. With ``vectors`` a single row or column, a few of them, and a small K have kernels of their own.
    With a format other products are on tensor cores.
    """
    lead, (m, k), n = tuple(out.shape[:-2]), a.shape[-2:], b.shape[-1]
    operands, arrays = [], (a, b)
    may_group = format_name is None or format_name in ("float16", "bfloat16") and on_device is not None
    for array in arrays:
        if on_device is not None:
            array = as_device_array(array) if cuda.is_cuda_array(array) else on_device(array)
        found = operand(array, lead, may_group)
        if found is None and broadcast_rule(tuple(array.shape[:-2]), lead) is not None and on_device is not None:
            found = operand(on_device(array), lead)
        operands.append(found)
    if None in operands and not lead:
        name, array = ("a", a) if operands[0] is None else ("b", b)
        raise ValueError(
            f"{name} has strides {tuple(array.strides)}; elements of its rows or columns must be neighbours"
        )
    if None in operands:  # one index of the first axis after the other
        for i in range(lead[0]):
            parts = _along_first_axis(a, i, out.ndim), _along_first_axis(b, i, out.ndim)
            yield from _fast_launches(
                *parts, out[i], alpha, beta, work, on_device, vectors=vectors, format_name=format_name
            )
        return
    a, b, batch = *operands, prod(lead)
    rules, is_double = (a.rule, b.rule), dtype_of(out) == np.float64
    follow, is_grouped = a.layout == "N" and a.step == m * a.pitch and not a.inner, a.inner or b.inner
    # Rows by a matrix are one product of it, for which a GPU may have no kernel in float64.
    alone = is_double and m == 1 and not _has_tensor_cores()
    if rules == ((1, batch), (batch, 1)) and batch > 1 and follow and not alone:
        # The same b for all: more rows of one product.
        m, batch = batch * m, 1
        a, b = a._replace(rule=(1, 1), step=0), b._replace(rule=(1, 1), step=0)
    elif rules == ((batch, 1), (1, batch)) and n == 1 < m and lie_along(b, k) and not (is_grouped or is_double):
        # The same a for all columns: one product of these, as rows, by its transpose.
        (a, b), m, n, batch = (as_rows(b, k), turned(a)._replace(rule=(1, 1), step=0)), batch, m, 1
        out = out.reshape(m, n)
    flat = Flat(a, b, out.reshape(-1), k, n, batch, is_aligned(out), alpha, beta)
    as_they_are = not is_grouped or format_name is None
    as_they_are = as_they_are or 1 < min(m, n) and k > 0 and reads_grouped(flat, m, n, str(format_name))
    if on_device is not None and not as_they_are:
        a, b = (on_device(array) if found.inner else array for array, found in zip(arrays, operands, strict=True))
        yield from _fast_launches(a, b, out, alpha, beta, work, on_device, vectors=vectors, format_name=format_name)
        return
    vectors = vectors and (not is_grouped or format_name is None)
    if format_name == "high" and not takes_high(flat, m, n) or format_name == "tf32" and k <= slim.MAX_K:
        format_name = None
    if vectors and format_name is None and _turns_few(flat, m, n):
        launch, flat = _turn_few(flat, m, n, work)
        yield launch
        yield from _several_launches(flat, m, n, work)
        return
    if vectors and format_name in PACKED_FORMATS and _takes_packed(flat, m, n):
        yield from _packed_launches(flat, m, n, work)
        return
    if vectors and 1 in (m, n) and dtype_of(a.flat) in ELEMENTS:
        yield from _vector_launches(flat, m, n, work)
        return
    tile = _choose_slim(flat, m, n, format_name) if vectors else None
    if tile is not None:
        yield from _slim_launches(tile, flat, m, n, work)
        return
    if format_name is not None:
        yield from tensor_launches(flat, m, n, format_name, work)
        return
    if vectors and _takes_several(flat, m, n):
        yield from _several_launches(flat, m, n, work)
        return
    yield from _tiled_launches(flat, m, n, work)


def _tiled_launches(flat: Flat, m, n, work):
    """A product of float32 or float64 by tiles, in pieces, after those copies of the operands that pay."""
    a, b, k, batch, is_double = flat.a, flat.b, flat.k, flat.batch, dtype_of(flat.out) == np.float64
    device = cuda.get_current_device()
    multiprocessors, shared_bytes = device.MULTIPROCESSOR_COUNT, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    wide, double = b.wide or b.layout == "T", (a.wide, b.wide, shared_bytes) if is_double else None
    layout, counts = a.layout + b.layout, (a.rule[1], b.rule[1])
    # Tensor maps of three axes describe no groups of matrices.
    streams = not is_double and is_streamed(k, flat.alpha, flat.beta) and not (a.inner or b.inner)
    streaming = time_to_stream(layout, (a.wide, b.wide), m, n, k, counts) if streams else float("inf")
    choice = choose(m, n, k, batch, wide, multiprocessors, double, layout, streaming)
    if choice.widens or choice.streams and not b.wide and b.layout == "N":
        launch, b = _launch_widen(b, "wide b", k, n, work)
        yield launch
    if choice.streams and not a.wide and a.layout == "T":
        launch, a = _launch_widen(a, "wide a", k, m, work)
        yield launch
    if is_double:
        turns = False, False
    elif choice.streams:
        turns = a.layout == "N", b.layout == "T"
    else:
        turns = choose_turns(choice.pieces[0].tile, layout, m, n, k, batch, counts, multiprocessors)
    if turns[0]:
        launch, a = _launch_turn(a, "turned a", m, k, work)
        yield launch
    if turns[1]:
        launch, b = _launch_turn(b, "turned b", n, k, work)
        yield launch
    flat = flat._replace(a=a, b=b)
    for piece in choice.pieces:
        yield from _piece_launches(piece, flat, choice.streams, work)


def _launch_widen(operand: Operand, name, rows, columns, work):
    """Copy an operand of ``rows`` and ``columns`` in memory to rows that begin at multiples of 16 bytes: the launch,
    and the copy.
    """
    count, pitch = rows * operand.rule[1], ceil_div(columns, 4) * 4
    wide = work.take(name, count * pitch, np.float32)
    launch = configure_quietly(widen, (ceil_div(pitch, 256), min(count, MAX_BLOCKS)), 256, work.stream)
    sizes = np.uint32(columns), np.uint32(operand.pitch), np.uint32(pitch)
    copy = operand._replace(flat=wide, pitch=pitch, step=rows * pitch, wide=True, inner=0)
    group = make_divisor(operand.inner or 1)
    return (launch, (operand.flat, wide, np.uint32(rows), group, steps_of(operand), *sizes)), copy


def _launch_turn(operand: Operand, name, rows, columns, work):
    """Transpose an operand of ``rows`` across K, and ``columns`` along it, in memory: the launch, and the copy."""
    pitch, count = ceil_div(rows, 4) * 4, operand.rule[1]
    turned = work.take(name, count * columns * pitch, np.float32)
    blocks = ceil_div(columns, TURN_TILE), ceil_div(rows, TURN_TILE), count
    launch = configure_quietly(turn, blocks, (TURN_TILE, TURN_ROWS), work.stream)
    sizes, pitches = (np.uint32(rows), np.uint32(columns)), (np.uint32(operand.pitch), np.uint32(pitch))
    layout = "T" if operand.layout == "N" else "N"
    copy = Operand(turned, layout, pitch, columns * pitch, operand.rule, True)
    return (launch, (operand.flat, turned, *sizes, make_divisor(operand.inner or 1), steps_of(operand), *pitches)), copy


def _choose_slim(flat: Flat, m, n, format_name):
    """The tile for a small K; None where others are faster. Tensor cores have kernels of their own for small results of
    short elements, and for operands that they can read as they are.
    """
    itemsize = dtype_of(flat.out).itemsize
    if format_name is None:
        return slim.choose_slim(m, n, flat.k, flat.batch, itemsize, flat.wide_out)
    if itemsize != 2:
        return None
    return slim.choose_slim(m, n, flat.k, flat.batch, itemsize, flat.a.wide and flat.b.wide)


def _slim_launches(tile: slim.SlimTile, flat: Flat, m, n, work):
    """A product with a small K."""
    dtype = dtype_of(flat.out)
    total = dtype_of_type(total_of(ELEMENTS[dtype]))
    kernel = slim.slim(ELEMENTS[dtype], tile, flat.a.layout + flat.b.layout, flat.beta != 0)
    sizes = sizes_of(tile, m, n, flat.k, (flat.a.pitch, flat.b.pitch, flat.pitch_out))
    tiles, factors = ceil_div(m, tile.rows) * ceil_div(n, tile.columns), (total.type(flat.alpha), total.type(flat.beta))
    for z in range(0, flat.batch, MAX_BLOCKS):
        blocks = tiles, 1, min(flat.batch - z, MAX_BLOCKS)
        launch = configure_quietly(kernel, blocks, slim.THREADS, work.stream)
        which = which_of(z, flat.a, flat.b)
        yield launch, (flat.a.flat, flat.b.flat, flat.out, sizes, which, steps_of(flat.a, flat.b), *factors)


def _copies_apart(flat: Flat, m, n):
    """Whether `packed` copies rows of ``a`` by single elements that are not in one piece."""
    a, b, k, batch, itemsize = flat.a, flat.b, flat.k, flat.batch, dtype_of(flat.out).itemsize
    if itemsize == 4 and _has_wholes(a, k if a.layout == "N" else m) and _has_wholes(b, k if b.layout == "T" else n):
        return False
    dense = (a.layout == "N" or m <= MAX_COLUMNS) and is_dense(a, m, k, a.layout == "N", batch)
    return not dense or not holds_whole(m, n, k, itemsize)


def _takes_packed(flat: Flat, m, n):
    """Whether small matrices, or a few columns, are multiplied by `packed`."""
    if 1 in (m, n):
        is_along = flat.a.layout == "N" if n == 1 else flat.b.layout == "T"
        matrix = flat.a if n == 1 else flat.b
        if _takes_shifted(flat, max(m, n), is_along):
            return False
        return takes_vectors(max(m, n), flat.k, flat.batch, is_along, dtype_of(flat.out).itemsize, matrix.wide)
    multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
    apart, itemsize = _copies_apart(flat, m, n), dtype_of(flat.out).itemsize
    return prefers_packed(m, n, flat.k, flat.batch, itemsize, multiprocessors, apart)


def _packed_launches(flat: Flat, m, n, work):
    """Many small products, or many rows by a small matrix."""
    if m == 1:  # one row is a column of the transpose
        m, n, flat = n, m, flat._replace(a=turned(flat.b), b=turned(flat.a))
    a, b, k, batch, element = flat.a, flat.b, flat.k, flat.batch, ELEMENTS[dtype_of(flat.out)]
    layout, dtype = a.layout + b.layout, dtype_of_type(total_of(element))
    inner_a, inner_b = k if layout[0] == "N" else m, k if layout[1] == "T" else n
    wide = dtype == np.float32 and _has_wholes(a, inner_a) and _has_wholes(b, inner_b)
    square = square_of(n, wide and layout[1] == "N")
    one_b = b.rule[1] == 1
    dense = is_dense(a, m, k, a.layout == "N", batch), is_dense(b, n, k, b.layout == "T", 1 if one_b else batch)
    multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
    wide_out = n % 4 == 0 and address_of(flat.out) % 16 == 0
    sizes = m, n, k, batch, dtype.itemsize, multiprocessors
    packing, parts = pack(*sizes, layout, square, wide, dense, one_b, wide_out)
    target = flat.out if parts == 1 else work.take("parts", batch * parts * m * n, dtype)
    factors = dtype.type(flat.alpha), dtype.type(flat.beta)
    # Parts are added up, and scaled, afterwards.
    adds, now = flat.beta != 0 and parts == 1, factors if parts == 1 else (dtype.type(1), dtype.type(0))
    result = element if parts == 1 else total_of(element)
    kernel = packed(element, result, layout, square, wide, adds)
    shared_bytes = packing.elements * dtype.itemsize
    launch = configure_quietly(kernel, (packing.blocks, parts), packing.threads, work.stream, shared_bytes)
    sizes = tuple(map(np.uint32, (m, n, k, a.pitch, b.pitch)))
    yield launch, (a.flat, b.flat, target, sizes, packing, which_of(0, a, b), steps_of(a, b), *now)
    if parts > 1:
        yield _launch_sum((m, n, parts), target, flat.out, flat._replace(pitch_out=n), factors, work.stream)


def _has_wholes(matrix: Operand, extent, width=4):
    """Whether what lies together in memory begins and ends at multiples of so many elements."""
    sizes = address_of(matrix.flat) // dtype_of(matrix.flat).itemsize, matrix.pitch, matrix.step, matrix.jump, extent
    return all(size % width == 0 for size in sizes)


def _vector_launches(flat: Flat, m, n, work):
    """A product with one row or one column: the other operand is a matrix, which is read once."""
    dtype = dtype_of(flat.out)
    count, matrix, vector = (m, flat.a, flat.b) if n == 1 else (n, flat.b, flat.a)
    # The matrix as (count, K): by rows for n = 1, and by columns of b otherwise.
    is_along = (matrix.layout == "N") == (n == 1)
    inc = vector.pitch if vector.layout == ("N" if n == 1 else "T") else 1
    if _takes_shifted(flat, count, is_along):
        yield from _shifted_launches(flat, count, matrix, vector, inc, work)
        return
    sizes = address_of(vector.flat), vector.step * dtype.itemsize, vector.jump * dtype.itemsize
    wide = all(size % 16 == 0 for size in sizes)
    width = 16 // dtype.itemsize if matrix.wide and (not is_along or inc == 1 and wide) else 1
    apart = width == 1 and not is_along and takes_apart(count, flat.k, flat.batch)
    width = APART if apart else width
    multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
    shape = choose_vector(count, flat.k, flat.batch, is_along, width, multiprocessors, apart)
    element, adds = ELEMENTS[dtype], flat.beta != 0
    kernel = along(element, shape.lanes, width, adds) if is_along else across(element, shape.lanes, width, adds, apart)
    blocks = ceil_div(count, shape.columns)
    sizes = tuple(np.uint32(size) for size in (count, flat.k, matrix.pitch, inc))
    total = dtype_of_type(total_of(element))
    factors = total.type(flat.alpha), total.type(flat.beta)
    for first in range(0, flat.batch, MAX_BLOCKS):
        batch = min(flat.batch - first, MAX_BLOCKS)
        partials = work.take("vector parts", batch * shape.parts * count if shape.parts > 1 else 1, total)
        counters = work.zeros(batch * blocks if shape.parts > 1 else 1)
        which = which_of(first, matrix, vector)
        launch = configure_quietly(kernel, (blocks, shape.parts, batch), THREADS, work.stream)
        out, steps = flat.out[first * count :], steps_of(matrix, vector)
        yield launch, (matrix.flat, vector.flat, out, partials, counters, sizes, which, steps, *factors)


def _takes_shifted(flat: Flat, count, is_along):
    """Whether short elements of many rows along K are multiplied by a vector on tensor cores."""
    short = is_along and dtype_of(flat.out).itemsize == 2
    return short and takes_shifted(count, flat.k, flat.batch) and cuda.get_current_device().compute_capability >= (8, 0)


def _shifted_launches(flat: Flat, count, matrix, vector, inc, work):
    """A product of many rows along K by a vector, on tensor cores."""
    dtype, multiprocessors = dtype_of(flat.out), cuda.get_current_device().MULTIPROCESSOR_COUNT
    shape = choose_shifts(count, flat.k, flat.batch, matrix.wide, multiprocessors)
    name = "float16" if dtype == np.float16 else "bfloat16"
    kernel = shifted(name, matrix.wide, flat.beta != 0, shape.together)
    bits = vector.flat.view(np.uint16)
    head, words = whole_chunks(matrix.flat.view(np.uint16))
    sizes = tuple(np.uint32(size) for size in (count, flat.k, matrix.pitch, inc, head, shape.turns))
    factors = np.float32(flat.alpha), np.float32(flat.beta)
    for first in range(0, flat.batch, MAX_BLOCKS):
        blocks = shape.blocks, 1, min(flat.batch - first, MAX_BLOCKS)
        launch = configure_quietly(kernel, blocks, WARP * shape.warps, work.stream, shape.shared_bytes)
        which, out = which_of(first, matrix, vector), flat.out[first * count :]
        yield launch, (matrix.flat, words, bits, vector.flat, out, sizes, which, steps_of(matrix, vector), *factors)


def _takes_several(flat: Flat, m, n):
    """Whether a matrix of float32 is multiplied by a few vectors, all along K, as `several` reads them."""
    fits = (flat.a.layout, flat.b.layout) == ("N", "T") and dtype_of(flat.out) == np.float32
    wide = flat.a.wide and flat.b.wide
    return fits and takes_several(max(m, n), min(m, n), flat.k, flat.batch, wide)


def _turns_few(flat: Flat, m, n):
    """Whether a few vectors of float32 that lie across K are transposed for `several`, as the matrix lies along K."""
    (count, matrix), (vectors, few) = ((n, flat.b), (m, flat.a)) if m < n else ((m, flat.a), (n, flat.b))
    fits = (matrix.layout == "N") == (few.layout == "N") == (m > n) and matrix.wide
    fits = fits and max(few.rule[1], ceil_div(flat.k, TURN_TILE)) <= MAX_BLOCKS
    size = count * flat.k * matrix.rule[1]
    is_small = vectors * flat.k * few.rule[1] <= size // MIN_TIMES_FEW
    # Where it copies rows of b by four elements, `packed` is faster.
    is_taken = vectors > 1 and (m < n or n % 4) and takes_several(count, vectors, flat.k, flat.batch, True)
    return dtype_of(flat.out) == np.float32 and fits and is_small and size >= MIN_TURNED_FOR and bool(is_taken)


def _turn_few(flat: Flat, m, n, work):
    """Transpose a few vectors: the launch, and the operands that the product then has."""
    if m < n:
        launch, turned = _launch_turn(flat.a, "turned a", flat.k, m, work)
        return launch, flat._replace(a=turned)
    launch, turned = _launch_turn(flat.b, "turned b", flat.k, n, work)
    return launch, flat._replace(b=turned)


def _several_launches(flat: Flat, m, n, work):
    """A product with a few rows or columns, without parts of K."""
    count, vectors, dtype = max(m, n), min(m, n), dtype_of(flat.out)
    matrix, vector, apart = (flat.b, flat.a, (n, 1)) if m < n else (flat.a, flat.b, (1, n))
    width = next((n for n in (4, 2) if all(_has_wholes(x, flat.k, n) for x in (matrix, vector))), 1)
    kernel = several(NUMBERS[dtype], vectors, width, flat.beta != 0)
    sizes = tuple(np.uint32(size) for size in (count, flat.k, matrix.pitch, vector.pitch, *apart))
    steps, factors = steps_of(matrix, vector), (dtype.type(flat.alpha), dtype.type(flat.beta))
    for first in range(0, flat.batch, MAX_BLOCKS):
        blocks = ceil_div(count, THREADS // WARP), 1, min(flat.batch - first, MAX_BLOCKS)
        launch = configure_quietly(kernel, blocks, THREADS, work.stream)
        which = which_of(first, matrix, vector)
        yield launch, (matrix.flat, vector.flat, flat.out, sizes, which, steps, *factors)


def _piece_launches(piece: Piece, flat: Flat, streams, work):
    tile, m, n, parts, batch = piece.tile, piece.rows, piece.columns, piece.parts, flat.batch
    a, b = flat.a.at(piece.row, 0), flat.b.at(0, piece.col)
    out = flat.out[piece.row * flat.pitch_out + piece.col :]
    dtype = dtype_of(flat.out)
    numbers = dtype.type(flat.alpha), dtype.type(flat.beta)
    if parts == 1:
        target, pitch, wide = out, flat.pitch_out, flat.wide_out
        scales, adds = flat.alpha != 1 or flat.beta != 0, flat.beta != 0
    else:
        target, pitch, wide = work.take("parts", batch * parts * m * n, dtype), n, n * dtype.itemsize % 16 == 0
        scales, adds = False, False
    if streams and tile == STREAMED.tile:
        flat = flat._replace(a=flat.a._replace(flat=a), b=flat.b._replace(flat=b))
        yield _launch_streamed(tile, flat, target, (m, n, parts), pitch, work)
    else:
        layout, shared_bytes = flat.a.layout + flat.b.layout, 0
        wide_a, wide_b = flat.a.wide and layout[0] == "T", flat.b.wide and layout[1] == "N"
        if isinstance(tile, DoubleTile):
            kernel, shared_bytes = double(tile, layout, flat.a.wide, flat.b.wide, wide, scales, adds), tile.shared_bytes
            intrinsics.allow_dynamic_shared(kernel, shared_bytes)
        else:
            wide = wide and (flat.k < SINGLE_STORES_MIN_K or tile.thread_columns < 16)
            gathers = not wide and flat.k < SINGLE_STORES_MIN_K and tile.rows * tile.columns >= MIN_GATHERED
            kernel = fast(tile, wide_b, wide, scales, adds, layout, wide_a, gathers)
        grid = ceil_div(m, tile.rows) * ceil_div(n, tile.columns), parts
        sizes = sizes_of(tile, m, n, flat.k, (flat.a.pitch, flat.b.pitch, pitch), parts)
        for z in range(0, batch, MAX_BLOCKS):
            blocks = *grid, min(batch - z, MAX_BLOCKS)
            launch = configure_quietly(kernel, blocks, tile.threads, work.stream, shared_bytes)
            which = which_of(z, flat.a, flat.b)
            yield launch, (a, b, target, sizes, which, steps_of(flat.a, flat.b), *numbers)
    if parts > 1:
        yield _launch_sum((m, n, parts), target, out, flat, numbers, work.stream)


def _launch_streamed(tile, flat: Flat, out, shape, pitch, work):
    """Make the launch of `streamed` for matrices of a ``shape`` (m, n, parts of K)."""
    (m, n, parts), kernel, shared_bytes = shape, streamed(tile), shared_bytes_of(tile)
    operands = zip(both_rows(flat, m, n), boxes_of(tile), strict=True)
    maps = [movable_map(array_of(rows), box, work) for rows, box in operands]
    intrinsics.allow_dynamic_shared(kernel, shared_bytes)
    down, across = ceil_div(m, tile.rows), ceil_div(n, tile.columns)
    order = make_order(down, across, ceil_div(flat.k, STEP), parts, flat.batch, (flat.a.rule, flat.b.rule))
    blocks = min(int(order.tiles), cuda.get_current_device().MULTIPROCESSOR_COUNT)
    launch = configure_quietly(kernel, blocks, threads_of(tile), work.stream, shared_bytes)
    return launch, (*maps, out, tuple(map(np.uint32, (m, n, flat.k, pitch))), order)


def _launch_sum(shape, parts, out, flat, numbers, stream):
    """Add up the parts of K, of matrices of a ``shape`` (m, n, how many parts)."""
    (m, n, count), element = shape, ELEMENTS[dtype_of(out)]
    total = total_of(element)
    kernel, blocks = choose_sum(count, (flat.batch, m, n), total.bitwidth // 8, flat.beta != 0, total, element)
    launch = configure_quietly(kernel, (blocks, flat.batch), SUM_THREADS, stream)
    return launch, (parts, out, *(np.uint32(size) for size in (count, m, n, flat.pitch_out)), *numbers)


def _along_first_axis(array, i, dimensions):
    """What of an operand belongs to index ``i`` of a result of so many dimensions."""
    if array.ndim != dimensions:
        return array
    return _part(array, 0 if array.shape[0] == 1 else i, array.shape[1:])
