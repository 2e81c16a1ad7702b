"""The functions of this chapter: ``im2col``, ``col2im`` and ``conv2d`` for arrays of any kind (B3, B4, C1, C2, E)."""

from typing import Any

import numpy as np

from gpukit import matmul
from gpukit._host.arrays import (
    as_device_array,
    as_words,
    check_alike,
    check_apart,
    check_array,
    check_kind,
    check_writable,
    device_array_of,
    dtype_of,
    is_bfloat16,
    name_of,
    share_memory,
    stream_of,
)
from gpukit._host.call import call, forget
from gpukit._host.work_memory import WorkMemory
from gpukit.backend import cuda
from gpukit.conv import columns as column_kernels
from gpukit.conv.columns import VARIANTS, choose, is_wide
from gpukit.conv.cost import (
    DIRECT,
    WORKSPACE,
    Convolution,
    choose_algorithm,
    depthwise_reads_last,
    direct_launch,
    direct_reads_last,
)
from gpukit.conv.fourier import fourier_launches
from gpukit.conv.gemm import first_launch, implicit_launches, lies_last, reads_last, takes_first
from gpukit.conv.windows import DTYPES, Geometry, check_out, check_shape, check_size, make_geometry, pair
from warpstep.limits import MAX_GRID_YZ
from warpstep.values import check_choice, check_int, type_name

__all__ = [
    "ALGORITHMS",
    "CONV_DTYPES",
    "REQUESTS",
    "col2im",
    "configure_col2im",
    "configure_im2col",
    "conv2d",
    "extra_memory",
    "free_workspaces",
    "im2col",
    "steps",
    "workspace_size",
]

#: What ``conv2d`` takes as ``algorithm``, besides "auto": the matrix product of windows, in memory and on the way, the
#: product of spectra, the kernels for groups of one channel and for sums of few terms, the fastest direct kernel for
#: the shape, and each direct kernel by name.
ALGORITHMS = ("im2col", "implicit", "fourier", "depthwise", "short", "apart", "direct", *DIRECT)
#: Besides bfloat16, which has several dtypes in NumPy, and which each algorithm takes that takes float16.
CONV_DTYPES = (np.float16, np.float32, np.float64)
#: Dtypes of most kernels, which sum elements of two bytes in float32, and of those that take others.
DIRECT_DTYPES = np.float16, np.float32
ALLOWED = {
    "auto": CONV_DTYPES,
    "im2col": (np.float32, np.float64),
    "fourier": (np.float32, np.float64),
    "depthwise": CONV_DTYPES,
}
#: What ``col2im`` does with its result.
REQUESTS = ("write", "inplace", "add", "null")

Pair = int | tuple[int, int]
Shape = tuple[int, int, int, int]


# -- im2col (B3) -----------------------------------------------------------------------------------


def im2col(
    x: Any,
    kernel_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    variant: str = "auto",
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Write the windows of images as columns of a matrix: (N, C, H, W) to (N, C KH KW, OH OW) (B3).

    Row ``(c KH + kh) KW + kw`` and column ``oh OW + ow`` hold the pixel of channel c in row ``oh stride_h + kh
    dilation_h - padding_h`` and column ``ow stride_w + kw dilation_w - padding_w``, or zero outside of the image. It
    reads N C H W values and writes N C KH KW OH OW, with ``OH = (H + 2 padding_h - dilation_h (KH - 1) - 1) // stride_h
    + 1`` and OW alike. PyTorch calls it unfold.

    Parameters
    ----------
    x : ndarray or device array, shape (N, C, H, W), float32 or float64
        Any sizes, also 0. Copied first if it is not C-contiguous.
    kernel_size, stride, dilation : int or 2 int, 1 or more
        For rows and columns, or (for rows, for columns).
    padding : int or 2 int, 0 or more, or "valid" or "same"
        Rows and columns of zeros on each side. At least one window must fit into the padded image. "valid" is 0. "same"
        is as many as make OH H and OW W, for a stride of 1; the odd one of them, as for a kernel of even size, comes
        behind the last pixel, as in PyTorch.
    variant : str
        A kernel of `gpukit.conv.columns`, or "auto", the first of these that fits: "rows", a block per rows of windows,
        for OW of 96 or more and KW from 5 to 16; "quads", a thread per four windows, for float32 and an OW that is a
        multiple of 4; "aligned", a thread per window that keeps to sectors, for OW of 8 or more and KW up to 16;
        "element", a thread per value, unless eight channels have 2**31 or more; "im2col_naive", the documents' kernel.
    out : array of shape (N, C KH KW, OH OW), optional
        Same kind and dtype. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, C KH KW, OH OW)
        ``out`` if given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, which the message names. Nothing is launched then.

    Examples
    --------
    >>> x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> im2col(x, 2)
    array([[[0., 1., 3., 4.],
            [1., 2., 4., 5.],
            [3., 4., 6., 7.],
            [4., 5., 7., 8.]]], dtype=float32)
    """
    return call(_columns_of_images, (x,), out, stream, (kernel_size, stride, padding, dilation, variant))


def _columns_of_images(problem):
    (x,), (*how, variant) = problem.inputs, problem.settings
    check_array("x", x, 4, DTYPES)
    samples, channels, height, width = x.shape
    geometry = make_geometry((height, width), *how)
    taps, positions = geometry.counts
    shape = samples, channels * taps, positions
    check_out(problem.out, shape, "x", x)
    wide = dtype_of(x) == np.float32 if problem.out is None else is_wide(problem.out)  # new arrays are aligned
    variant = choose(variant, samples, channels, geometry, wide)
    target = problem.output(shape)
    if target.size == 0:
        return []
    return [column_kernels.launch_im2col(variant, problem.on_device(x), target, geometry, problem.stream)]


def configure_im2col(
    variant: str,
    shape: Shape,
    kernel_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    *,
    stream: Any = None,
) -> tuple:
    """Configure the launch that ``im2col`` makes, to trace or time it: ``launch(x, columns, *further)``.

    Parameters
    ----------
    variant : str
        A kernel of ``VARIANTS``. The columns for "quads" must begin at a multiple of 16 bytes.
    shape : tuple of 4 int
        N, C, H and W of x; N and C are 1 or more.
    kernel_size, stride, padding, dilation, stream
        As for ``im2col``.

    Returns
    -------
    launch : ``kernel[grid, block, stream]``
    further : tuple
        The kernel's arguments after x and the columns, both flat.

    Examples
    --------
    >>> x, columns = np.ones((1, 1, 4, 4), np.float32), np.zeros((4, 9), np.float32)
    >>> launch, further = configure_im2col("im2col_naive", x.shape, 2)
    >>> launch(x.ravel(), columns.ravel(), *further)
    >>> bool((columns == 1).all())
    True
    """
    samples, channels, height, width = check_shape(shape)
    geometry = make_geometry((height, width), kernel_size, stride, padding, dilation, "shape")
    if isinstance(variant, str) and variant == "auto":
        raise ValueError(f"variant is 'auto'; it must be one of {', '.join(VARIANTS)}")
    variant = choose(variant, samples, channels, geometry, True)
    return column_kernels.configure_im2col(variant, samples * channels, geometry, stream_of(stream))


# -- col2im (B4) -----------------------------------------------------------------------------------


def col2im(
    columns: Any,
    output_size: Pair,
    kernel_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    out: Any = None,
    request: str = "write",
    *,
    stream: Any = None,
) -> Any:
    """Sum up columns to images, each pixel over all windows that cover it: (N, C KH KW, OH OW) to (N, C, H, W) (B4).

    The adjoint of ``im2col``: the sum of ``im2col(x) * y`` is that of ``x * col2im(y)``. One thread gathers all the
    values of a pixel, in the order of the kernel, so every run gives the same result. PyTorch calls it fold.

    Parameters
    ----------
    columns : ndarray or device array, shape (N, C KH KW, OH OW), float32 or float64
        Any N and C, also 0.
    output_size : int or 2 int, 0 or more
        H and W.
    kernel_size, stride, padding, dilation
        As for ``im2col``; OH and OW follow from them.
    out : array of shape (N, C, H, W), optional
        Same kind and dtype.
    request : str
        "write" overwrites ``out``, or makes a new array. The others need an ``out``. "inplace" overwrites it, too, and
        it may share memory with ``columns``, which are copied first if it does. "add" adds to its contents. "null"
        leaves it as it is and launches nothing.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, C, H, W)
        ``out`` if given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, which the message names. Nothing is launched then.

    Examples
    --------
    How many windows of 2 x 2 cover each pixel:

    >>> col2im(np.ones((1, 4, 4), np.float32), 3, 2)
    array([[[[1., 2., 1.],
             [2., 4., 2.],
             [1., 2., 1.]]]], dtype=float32)
    """
    return call(
        _images_of_columns, (columns,), out, stream, (output_size, kernel_size, stride, padding, dilation, request)
    )


def _images_of_columns(problem):
    (columns,), out, (size, *how, request) = problem.inputs, problem.out, problem.settings
    check_array("columns", columns, 3, DTYPES)
    size = pair("output_size", size, 0)
    geometry = make_geometry(size, *how, source="output_size")
    shape = *_check_columns(columns, geometry), *size
    check_choice("request", request, REQUESTS)
    if out is None and request != "write":
        raise ValueError(f"out is None; it must be an array of shape {shape} for the request {request!r}")
    check_out(out, shape, "columns", columns, apart=request in ("write", "add"))
    if request == "null":
        return []
    target = problem.output(shape, keep=request == "add")
    if target.size == 0:
        return []
    source = problem.on_device(columns)
    if share_memory(source, target):
        source = problem.copy(source)
    planes = shape[0] * shape[1]
    flat = source.reshape(planes, source.size // planes), target.reshape(planes, -1)
    return column_kernels.launches_of_col2im(*flat, geometry, request == "add", problem.stream)


def configure_col2im(
    shape: Shape,
    kernel_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    *,
    request: str = "write",
    stream: Any = None,
) -> tuple:
    """Configure the launch that ``col2im`` makes, to trace or time it: ``launch(columns, out, *further)``.

    Parameters
    ----------
    shape : tuple of 4 int
        N, C, H and W of out, which must begin at a multiple of 16 bytes; all are 1 or more.
    kernel_size, stride, padding, dilation, stream
        As for ``im2col``.
    request : str
        "write" or "add".

    Returns
    -------
    launch : ``kernel[grid, block, stream]``
    further : tuple
        The kernel's arguments after the columns and out, both flat.

    Examples
    --------
    >>> columns, x = np.ones((4, 9), np.float32), np.zeros((1, 1, 4, 4), np.float32)
    >>> launch, further = configure_col2im(x.shape, 2)
    >>> launch(columns.ravel(), x.ravel(), *further)
    >>> x[0, 0]
    array([[1., 2., 2., 1.],
           [2., 4., 4., 2.],
           [2., 4., 4., 2.],
           [1., 2., 2., 1.]], dtype=float32)
    """
    samples, channels, height, width = check_shape(shape, (1, 1, 1, 1))
    geometry = make_geometry((height, width), kernel_size, stride, padding, dilation, "shape")
    check_choice("request", request, ("write", "add"))
    check_size("shape", samples * channels, **{"C H W": channels * height * width})
    if samples * channels > MAX_GRID_YZ:
        raise ValueError(f"shape is {tuple(shape)}; one launch is for at most {MAX_GRID_YZ} channels in all samples")
    return column_kernels.configure_col2im(samples * channels, geometry, request == "add", stream_of(stream), True)


def _check_columns(columns, geometry):
    """N and C of the images that columns belong to."""
    (samples, rows, found), (taps, positions) = columns.shape, geometry.counts
    if rows % taps:
        raise ValueError(f"columns has {rows} rows; it must have a multiple of {taps}, the values of kernel_size")
    if found != positions:
        expected = f"{positions}, which is {geometry.out_size[0]} * {geometry.out_size[1]} windows"
        reason = "by output_size, kernel_size, stride, padding and dilation"
        raise ValueError(f"columns has {found} columns; it must have {expected} {reason}")
    check_size("columns", samples * (rows // taps))
    return samples, rows // taps


# -- conv2d (C1, C2, E) ----------------------------------------------------------------------------


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    algorithm: str = "auto",
    *,
    out: Any = None,
    workspace: Any = None,
    stream: Any = None,
) -> Any:
    """Convolve as neural networks do, which is a cross-correlation: the kernel is not flipped (C1, E).

    "im2col" writes the windows of a few samples at a time to a workspace. The result of each sample and group is the
    product of the weights, M x K, and that group's columns, K x OH OW, for M = O / groups out channels and K = C /
    groups KH KW. Where windows are single pixels, the image itself is the matrix; where they are whole images, all
    samples are one. "implicit" is the same product, of all samples at once, whose columns exist in shared memory only.
    "fourier" multiplies the spectra of the kernel and of tiles of the images, which takes fewer operations if the
    kernel is large. The direct kernels need no memory.

    Parameters
    ----------
    x : ndarray or device array, shape (N, C, H, W), float16, bfloat16, float32 or float64
        Any N, also 0. Sums of float16 and bfloat16 are float32.
    weight : array of shape (O, C / groups, KH, KW)
        Same kind and dtype. C and O must be multiples of ``groups``.
    bias : array of shape (O,), optional
        Same kind and dtype; added to every value of its out channel.
    stride, padding, dilation
        As for ``im2col``.
    groups : int, 1 or more
        The out channels of a group depend on the channels of x in that group only.
    algorithm : str
        One of ``ALGORITHMS``, or "auto": "direct", "implicit", "fourier" or "im2col", whichever a cost model expects to
        be fastest. "im2col" and "fourier" are not for float16 and bfloat16, and float64 is for these two and
        "depthwise". "implicit" takes kernels of up to 16 rows and 15 columns, and on compute capability 9.0 larger
        ones, too, if there is one group. It uses tensor cores for elements of two bytes, and on compute capability 9.0,
        where that is faster, for float32 too: each number is split into two of TF32. Errors stay as small as those of
        sums in float32, but sums of large integers may be off in the last place, and an infinity in a window may become
        NaN. "fourier" is for one group and kernels of up to 29 x 29 pixels, gaps included. Its errors are those of sums
        in the operands' dtype as long as the values of an image are alike: they are relative to the largest ones within
        32 x 32 pixels, where an infinity makes all results NaN. "depthwise" is for groups of one channel of x and
        kernels of up to 49 values. "short" is for sums of up to 64 terms, C / groups KH KW; "apart" for groups of up to
        4 out channels, where a pixel lies in 2 windows or fewer on average. "direct" is the fastest direct kernel,
        these three included, "depthwise" where several groups have one channel. Where a value has 100 terms or more,
        neighbours may share products: along rows if the kernel has 5 columns or more ("paired"), along columns if it
        has a multiple of 3 rows ("winograd"). Errors are somewhat larger then, and an infinity may become NaN, too.
        "naive" to "winograd" are the direct kernels by name, for learners. "paired" needs a kernel of 2 columns or
        more, and a stride and dilation of 1 along rows; "winograd" a multiple of 3 rows, and a stride and dilation of 1
        along columns.
    out : array of shape (N, O, OH, OW), optional
        Same kind and dtype. On the device it must not share memory with the others.
    workspace : device array of one dimension, optional
        For "im2col", the others ignore it: C-contiguous, of the dtype of x, with at least ``workspace_size`` elements,
        and apart from the others. Without one, gpukit keeps one per stream, until ``free_workspaces``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, O, OH, OW)
        ``out`` if given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, which the message names. Nothing is launched then.

    Examples
    --------
    >>> x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> edges = np.array([[[[-1, 1]]]], np.float32)
    >>> conv2d(x, edges)
    array([[[[1., 1.],
             [1., 1.],
             [1., 1.]]]], dtype=float32)
    """
    # In a list a workspace cannot be hashed: such calls are not recorded.
    settings = stride, padding, dilation, groups, algorithm, None if workspace is None else [workspace]
    return call(_convolution, (x, weight) if bias is None else (x, weight, bias), out, stream, settings)


def _convolution(problem):
    (x, weight, *bias), (*how, workspace) = problem.inputs, problem.settings
    bias = bias[0] if bias else None
    geometry, shape, algorithm, groups = _check(x, weight, bias, *how)
    operands = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    check_out(problem.out, shape, "x", x, _dtypes_like(x), **operands)
    workspace = None if workspace is None else workspace[0]
    _check_workspace(workspace, x, geometry, operands | ({} if problem.out is None else {"out": problem.out}))
    out = as_words(problem.output(shape))
    if out.size == 0:
        return []
    if cuda.is_cuda_array(x):
        x = as_device_array(x)
    x, weight, bias = as_words(x), as_words(weight), None if bias is None else as_words(bias)
    before = []
    ways = {"implicit": reads_last, "depthwise": depthwise_reads_last, "direct": direct_reads_last}
    ways |= {"short": lambda x, *_: lies_last(x)}
    reads = ways.get(algorithm)
    if reads is None or not reads(x, weight.shape, geometry, groups):
        if takes_first(x):
            x, launch = first_launch(x, geometry, problem.work)
            before.append(launch)
            geometry = geometry.sampled() if geometry.is_sampled else geometry
        else:
            x = problem.on_device(x)
    convolution = Convolution(x, problem.on_device(weight), problem.on_device(bias), out, geometry, groups)
    return before + _launches(algorithm, convolution, workspace, problem.work)


def steps(
    algorithm: str,
    x: Any,
    weight: Any,
    out: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    stream: Any = None,
) -> list:
    """List the launches of one convolution, to trace or time them: ``for launch, arguments in steps(...)``.

    Parameters
    ----------
    algorithm, stride, padding, dilation, groups, stream
        As for `conv2d`.
    x, weight, out, bias : C-contiguous arrays
        As for `conv2d`, none of them empty; device arrays, or NumPy arrays to be traced.

    Returns
    -------
    list of (launch, arguments)
        In order. A workspace is among the arguments: it lives as long as the list.

    Examples
    --------
    >>> x, weight = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)
    >>> out = np.zeros((1, 1, 2, 2), np.float32)
    >>> len(steps("im2col", x, weight, out)), len(steps("direct", x, weight, out))
    (2, 1)
    """
    geometry, shape, algorithm, groups = _check(x, weight, bias, stride, padding, dilation, groups, algorithm)
    check_array("out", out, 4, _dtypes_like(x))
    check_out(out, shape, "x", x, _dtypes_like(x))
    if 0 in (*x.shape, *out.shape):
        raise ValueError(f"x has shape {tuple(x.shape)} and out {tuple(out.shape)}; they must not be empty")
    workspace = None
    if algorithm == "im2col" and isinstance(x, np.ndarray):
        workspace = np.empty(_samples_at_once(x, geometry, None) * _columns_size(x, geometry), x.dtype)
    operands = (as_device_array(a) if cuda.is_cuda_array(a) else a for a in (x, weight, bias, out))
    operands = (None if a is None else as_words(a) for a in operands)
    convolution = Convolution._make((*operands, geometry, groups))
    return _launches(algorithm, convolution, workspace, WorkMemory(stream_of(stream)))


def workspace_size(
    x_shape: Shape, kernel_size: Pair, stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1
) -> int:
    """Count the elements of the workspace of ``conv2d(..., algorithm="im2col")``: C KH KW OH OW, of one sample (C2).

    Parameters
    ----------
    x_shape : tuple of 4 int
        N, C, H and W.
    kernel_size, stride, padding, dilation
        As for ``im2col``.

    Examples
    --------
    >>> workspace_size((64, 128, 7, 7), 3, padding=1)
    56448
    """
    _, channels, height, width = check_shape(x_shape, (0, 0, 0, 0), "x_shape")
    taps, positions = make_geometry((height, width), kernel_size, stride, padding, dilation, "x_shape").counts
    return channels * taps * positions


def extra_memory(
    x_shape: Shape,
    weight_shape: Shape,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    itemsize: int = 4,
) -> dict[str, int]:
    """Count the bytes that three ways to convolve one sample need beside x, weight and out (C2).

    "im2col" repeats every pixel KH KW times. A sparse matrix with a row for each value of the result and a column for
    each pixel repeats every weight OH OW times, with an index of 4 bytes each. "direct" needs nothing.

    Parameters
    ----------
    x_shape, weight_shape : tuple of 4 int
        As for `conv2d`.
    stride, padding, dilation, groups
        As for `conv2d`.
    itemsize : int
        Bytes of an element.

    Returns
    -------
    dict of str to int
        "im2col", "sparse" and "direct".

    Examples
    --------
    >>> extra_memory((1, 3, 32, 32), (8, 3, 3, 3))
    {'im2col': 97200, 'sparse': 1555200, 'direct': 0}
    """
    out_channels, channels, kernel_h, kernel_w = check_shape(weight_shape, (0, 0, 1, 1), "weight_shape")
    groups, itemsize, sizes = check_int("groups", groups, 1), check_int("itemsize", itemsize, 1), (0, 0, 0, 0)
    x_shape = check_shape(x_shape, sizes, "x_shape")
    if channels * groups != x_shape[1]:
        raise ValueError(f"weight_shape is {tuple(weight_shape)}; x_shape is {tuple(x_shape)}, and groups is {groups}")
    taps, positions = make_geometry(x_shape[2:], (kernel_h, kernel_w), stride, padding, dilation, "x_shape").counts
    return {
        "im2col": channels * groups * taps * positions * itemsize,
        "sparse": out_channels * channels * taps * positions * (itemsize + 4),
        "direct": 0,
    }


def free_workspaces() -> None:
    """Let go of the memory that gpukit keeps for each stream, the workspaces of "im2col" included.

    Examples
    --------
    >>> free_workspaces()
    """
    forget()


# -- launches --------------------------------------------------------------------------------------


def _launches(algorithm: str, convolution: Convolution, workspace: Any, work: WorkMemory) -> list:
    """[(launch, arguments), ...] of one convolution."""
    if algorithm == "implicit":
        return implicit_launches(convolution, work)
    if algorithm == "fourier":
        return fourier_launches(convolution, work)
    if algorithm != "im2col":
        return [direct_launch(algorithm, convolution, work.stream)]
    x, weight, bias, out, geometry, groups = convolution
    (taps, positions), (samples, channels) = geometry.counts, x.shape[:2]
    m, k, at_once = weight.shape[0] // groups, channels // groups * taps, _samples_at_once(x, geometry, workspace)
    if geometry.is_whole and groups == 1 and bias is None:  # samples are the rows of one product
        return _multiply(x.reshape(samples, k), _turned(weight.reshape(m, k)), out.reshape(samples, m), None, 1, work)
    weight, launches = weight.reshape(groups, m, k), []
    if not geometry.is_image:
        if workspace is None:
            workspace = work.take("columns", at_once * _columns_size(x, geometry), dtype_of(x))
        variant = choose("auto", at_once, channels, geometry, is_wide(workspace))
    for first in range(0, samples, at_once):
        part = x if at_once >= samples else x[first : first + at_once]  # an empty x cannot be sliced
        count, matrices = part.shape[0], part
        if not geometry.is_image:
            matrices = workspace[: count * _columns_size(x, geometry)]
            launches.append(column_kernels.launch_im2col(variant, part, matrices, geometry, work.stream))
        matrices = matrices.reshape(count, groups, k, positions)
        product = out[first : first + count].reshape(count, groups, m, positions)
        launches += _multiply(weight, matrices, product, bias, positions, work)
    return launches


def _multiply(a, b, product, bias, positions, work):
    """[(launch, arguments), ...] of a product with so many neighbours to a plane of the result, and of its bias."""
    dtype, launches = dtype_of(product), []
    # What has two bytes is added to the bias, so that it is rounded once.
    first = bias is not None and dtype.itemsize == 2
    if first:
        launches.append(column_kernels.launch_spread(product, bias, positions, work.stream))
    factors = (factor.view("V2") if dtype == np.uint16 else factor for factor in (a, b, product))
    launches += matmul.steps("auto", *factors, beta=float(first), stream=work.stream, work=work)
    if bias is not None and not first:
        launches.append(column_kernels.launch_bias(product, bias, work.stream))
    return launches


def _turned(matrix):
    """View a matrix with its rows as columns."""
    if isinstance(matrix, np.ndarray):
        return matrix.T
    return device_array_of(matrix.shape[::-1], matrix.strides[::-1], matrix.dtype, matrix)


def _columns_size(x, geometry):
    """Elements of the columns of one sample."""
    return x.shape[1] * geometry.counts[0] * geometry.counts[1]


def _samples_at_once(x, geometry, workspace):
    """Samples whose columns fit into the workspace, or into ``WORKSPACE`` bytes if it is None; at least one."""
    if geometry.is_image:
        return x.shape[0]
    size = WORKSPACE // dtype_of(x).itemsize if workspace is None else workspace.shape[0]
    return max(1, min(x.shape[0], size // _columns_size(x, geometry)))


# -- checks ----------------------------------------------------------------------------------------


def _check(x, weight, bias, stride, padding, dilation, groups, algorithm) -> tuple[Geometry, tuple, str, int]:
    """Check the operands; gives the geometry, the shape of the result, the algorithm to take and the groups."""
    check_kind("x", x)
    dtypes = _dtypes_like(x)
    check_array("x", x, 4, dtypes)
    check_array("weight", weight, 4, dtypes)
    check_alike("weight", weight, "x", x)
    groups, channels, out_channels = check_int("groups", groups, 1), x.shape[1], weight.shape[0]
    check_choice("algorithm", algorithm, ALGORITHMS, also="auto")
    allowed = ALLOWED.get(algorithm, DIRECT_DTYPES)
    if (np.float16 if is_bfloat16(dtype_of(x)) else dtype_of(x)) not in allowed:
        names = " or ".join(str(np.dtype(d)) for d in allowed) + " or bfloat16" * (np.float16 in allowed)
        raise TypeError(f"x has dtype {name_of(dtype_of(x))}; it must be {names} for the algorithm {algorithm!r}")
    if channels == 0 or channels % groups:
        raise ValueError(f"x has {channels} channels; it must have 1 or more, and a multiple of groups, {groups}")
    if weight.shape[1] != channels // groups or 0 in weight.shape[2:]:
        why = f"as x has {channels} channels and groups is {groups}"
        expected = f"(O, {channels // groups}, KH, KW), {why}; KH and KW must be 1 or more"
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be {expected}")
    if out_channels % groups:
        raise ValueError(f"weight has {out_channels} out channels; it must have a multiple of groups, {groups}")
    if bias is not None:
        check_array("bias", bias, 1, dtypes)
        check_alike("bias", bias, "x", x, (out_channels,))
    geometry = make_geometry(tuple(x.shape[2:]), tuple(weight.shape[2:]), stride, padding, dilation)
    check_size("x", x.shape[0] * channels)
    check_size("weight", 1, **{"C / groups KH KW": weight.shape[1] * geometry.counts[0]})
    last = groups == 1 and lies_last(as_device_array(x) if cuda.is_cuda_array(x) else x)
    how = geometry, groups, dtype_of(x), last, bias is not None
    algorithm = choose_algorithm(algorithm, x.shape, weight.shape, *how)
    return geometry, (x.shape[0], out_channels, *geometry.out_size), algorithm, groups


def _dtypes_like(x):
    """The dtypes that arrays may have; of bfloat16, those that `check_alike` allows."""
    return None if is_bfloat16(dtype_of(x)) else (*CONV_DTYPES, np.dtype("V2"))


def _check_workspace(workspace, x, geometry, others):
    if workspace is None:
        return
    check_array("workspace", workspace, 1, (dtype_of(x),))
    check_writable("workspace", workspace)
    if not cuda.is_cuda_array(workspace):
        raise TypeError(f"workspace is {type_name(workspace)}; it must be a device array")
    size = _columns_size(x, geometry)
    if workspace.shape[0] < size or not cuda.as_cuda_array(workspace).is_c_contiguous():
        raise ValueError(f"workspace has shape {tuple(workspace.shape)}; it must be contiguous, of {size} or more")
    check_apart("workspace", workspace, **{name: a for name, a in others.items() if cuda.is_cuda_array(a)})
