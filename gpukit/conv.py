"""Convolution as a matrix product: images as columns of windows, columns back as images, and the product (B3, B4, C1).

Images have the shape (N, C, H, W): samples, channels, height, width. A kernel of KH x KW values, set down on an image
at every step of the stride, gives OH x OW windows. As columns they have the shape (N, C KH KW, OH OW): the rows are
ordered by channel, kernel row and kernel column, the columns by out row and out column.
"""

from typing import NamedTuple

import numpy as np
from numba.cuda import uint32, uint64

from gpukit import matmul
from gpukit.backend import cuda
from gpukit.checks import whole
from gpukit.operands import (
    Output,
    check_alike,
    check_apart,
    check_array,
    configured,
    dtype_of,
    share_memory,
    stream_of,
    to_device,
)

__all__ = [
    "ALGORITHMS",
    "DTYPES",
    "REQUESTS",
    "VARIANTS",
    "add_bias",
    "col2im",
    "configure_col2im",
    "configure_im2col",
    "conv2d",
    "element",
    "gather",
    "im2col",
    "window",
    "workspace_size",
]

DTYPES = (np.float32, np.float64)
BLOCK = 256
#: Planes that the threads of "element" for one row of blocks cover: as 8 values are one or two whole sectors of 32
#: bytes, rows of blocks begin at a sector whatever KH KW OH OW is.
GROUP = 8
#: Values for a thread of "element", from as many planes, if that leaves more blocks than a GPU holds at a time.
VALUES, ENOUGH_BLOCKS = 8, 2048
#: Rows of blocks in a launch: the limit of ``gridDim.y``. A thread goes on to further planes.
MOST_ROWS = 65535
#: Threads of a row of blocks, and planes or pixels along a padded image: indices have 32 bits and no sign.
MOST_THREADS = 2**31 - 1
MOST_PIXELS = MOST_PLANES = 2**30


# -- kernels ---------------------------------------------------------------------------------------

# The channels of all samples are one sequence of N C planes of H x W pixels, each with KH KW rows of the columns.
# Threads along x are for the values of ``group`` planes, so that what they work out of their number serves for every
# plane that blocks along y, and the loop, bring them to.
#
# A coordinate left of or above the image is a negative number, and as an unsigned one it is beyond 2^31: the comparison
# with the image's size finds both. The sum of two uint32 has 64 bits in Numba, so every step is cast back.


class Divisor(NamedTuple):
    """A number to divide by, with the factor and shift that do it: a GPU has no instruction for integer division."""

    value: np.uint32
    factor: np.uint32
    shift: np.uint32


class Windows(NamedTuple):
    """What the kernels know of the images and of their windows."""

    kernel_h: np.uint32
    kernel_w: Divisor
    stride_h: Divisor
    stride_w: Divisor
    padding_h: np.uint32
    padding_w: np.uint32
    dilation_h: np.uint32
    dilation_w: np.uint32
    width: Divisor
    pixels: Divisor  # H W
    out_h: np.uint32
    out_w: Divisor
    positions: Divisor  # OH OW
    taps: Divisor  # KH KW


@cuda.jit(device=True)
def divided(n, by):
    """Quotient and remainder of n < 2^31 by a Divisor."""
    quotient = uint32(uint64(n) * uint64(by.factor) >> uint64(by.shift))
    return quotient, uint32(n - quotient * by.value)


@cuda.jit
def window(x, columns, at, group):
    """One thread per (channel, out row, out column): it writes the KH KW values of its window (B3).

    Neighbouring threads write neighbouring columns of a row. Unless OH OW is a multiple of 8, rows begin in the middle
    of a sector of 32 bytes, so a warp writes parts of one sector more.
    """
    height, width, one = uint32(x.shape[1]), uint32(x.shape[2]), uint32(1)
    first, position = divided(uint32(cuda.grid(1)), at.positions)
    oh, ow = divided(position, at.out_w)
    top, left = uint32(oh * at.stride_h.value - at.padding_h), uint32(ow * at.stride_w.value - at.padding_w)
    plane = uint32(first + group * uint32(cuda.blockIdx.y))
    while first < group and plane < uint32(x.shape[0]):
        tap, kh = uint32(0), uint32(0)
        while kh < at.kernel_h:
            row, kw = uint32(top + kh * at.dilation_h), uint32(0)
            while kw < at.kernel_w.value:
                col = uint32(left + kw * at.dilation_w)
                inside = row < height and col < width
                columns[plane, tap, position] = x[plane, row, col] if inside else x.dtype.type(0)
                tap, kw = uint32(tap + one), uint32(kw + one)
            kh = uint32(kh + one)
        plane = uint32(plane + group * uint32(cuda.gridDim.y))


@cuda.jit
def element(x, columns, at, group):
    """One thread per value of the columns of ``group`` planes: KH KW times as many threads as windows.

    Threads count through the columns from one row to the next without a gap, so a warp writes whole sectors whatever
    OH OW is. The divisions that find a thread's pixel are done once for all of its planes.
    """
    number, position = divided(uint32(cuda.grid(1)), at.positions)
    first, tap = divided(number, at.taps)
    kh, kw = divided(tap, at.kernel_w)
    oh, ow = divided(position, at.out_w)
    row = uint32(oh * at.stride_h.value + kh * at.dilation_h - at.padding_h)
    col = uint32(ow * at.stride_w.value + kw * at.dilation_w - at.padding_w)
    inside = row < uint32(x.shape[1]) and col < uint32(x.shape[2])
    plane = uint32(first + group * uint32(cuda.blockIdx.y))
    while first < group and plane < uint32(x.shape[0]):
        columns[plane, tap, position] = x[plane, row, col] if inside else x.dtype.type(0)
        plane = uint32(plane + group * uint32(cuda.gridDim.y))


@cuda.jit
def gather(columns, image, at, group, add):
    """One thread per pixel: it sums that pixel's values in all the windows that cover it, without atomics (B4).

    A window covers the pixel with its value (kh, kw) if the way from the window's corner is a whole number of strides.
    """
    one = uint32(1)
    first, place = divided(uint32(cuda.grid(1)), at.pixels)
    row, col = divided(place, at.width)
    plane = uint32(first + group * uint32(cuda.blockIdx.y))
    while first < group and plane < uint32(image.shape[0]):
        total = image[plane, row, col] if add else image.dtype.type(0)
        tap, kh = uint32(0), uint32(0)
        while kh < at.kernel_h:
            oh, beside_h = divided(uint32(row + at.padding_h - kh * at.dilation_h), at.stride_h)
            kw = uint32(0)
            while kw < at.kernel_w.value:
                ow, beside_w = divided(uint32(col + at.padding_w - kw * at.dilation_w), at.stride_w)
                if oh < at.out_h and ow < at.out_w.value and beside_h == uint32(0) and beside_w == uint32(0):
                    total += columns[plane, tap, uint32(oh * at.out_w.value + ow)]
                tap, kw = uint32(tap + one), uint32(kw + one)
            kh = uint32(kh + one)
        image[plane, row, col] = total
        plane = uint32(plane + group * uint32(cuda.gridDim.y))


@cuda.jit
def add_bias(out, bias, positions):
    """out[c, i] += bias[c] for a sample's out channels, each with ``positions``, a Divisor, values."""
    i = uint32(cuda.grid(1))
    c, position = divided(i, positions)
    if c < uint32(out.shape[0]):
        out[c, position] += bias[c]


# -- im2col and col2im -----------------------------------------------------------------------------

#: What ``im2col`` takes as ``variant``, besides "auto".
VARIANTS = ("window", "element")
#: What ``col2im`` does with its result.
REQUESTS = ("write", "inplace", "add", "null")


def im2col(x, kernel_size, stride=1, padding=0, dilation=1, variant="auto", *, out=None, stream=None):
    """The windows of images as columns of a matrix: (N, C, H, W) becomes (N, C KH KW, OH OW) (B3).

    Row ``(c KH + kh) KW + kw`` and column ``oh OW + ow`` hold the pixel of channel c in row ``oh stride_h + kh
    dilation_h - padding_h`` and column ``ow stride_w + kw dilation_w - padding_w``, or zero outside of the image. It
    reads N C H W values and writes N C KH KW OH OW, with ``OH = (H + 2 padding_h - dilation_h (KH - 1) - 1) // stride_h
    + 1`` and OW alike. PyTorch's name for it is unfold.

    Parameters
    ----------
    x : ndarray or device array, shape (N, C, H, W), float32 or float64
        Any sizes, also 0. One that is not C-contiguous is copied first.
    kernel_size, stride, dilation : int or 2 int, 1 or more
        The same for rows and columns, or (for rows, for columns).
    padding : int or 2 int, 0 or more
        Rows and columns of zeros on each side. The padded image must hold a window.
    variant : str
        "window", the documents' kernel; "element", a thread for each value of eight channels; or "auto", which is
        "element" unless eight channels have 2**31 or more values.
    out : array of shape (N, C KH KW, OH OW), optional
        Of the same kind and dtype. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, C KH KW, OH OW)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    check_array("x", x, 4, DTYPES)
    samples, channels, height, width = x.shape
    at = _windows((height, width), kernel_size, stride, padding, dilation)
    variant, (taps, positions) = _choose(variant, samples, channels, at), _counts(at)
    shape = samples, channels * taps, positions
    _check_out(out, shape, "x", x)
    stream = stream_of(stream)
    result = Output(x, shape, out, stream)
    if samples and channels:
        _write_columns(variant, to_device(x, stream), result.device, at, stream)
    return result.finish()


def configure_im2col(variant, shape, kernel_size, stride=1, padding=0, dilation=1, *, stream=None):
    """The launch that ``im2col`` makes, to be traced or timed: call it with planes, columns and what else it returns.

    Parameters
    ----------
    variant : str
        One of ``VARIANTS``.
    shape : tuple of 4 int
        Of x: N, C, H and W; N and C are 1 or more.
    kernel_size, stride, padding, dilation, stream
        As for ``im2col``.

    Returns
    -------
    launch : ``kernel[grid, block, stream]``
    further : tuple
        The kernel's arguments after the planes, x as (N C, H, W), and the columns, as (N C, KH KW, OH OW):
        ``launch(planes, columns, *further)``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    samples, channels, height, width = _check_shape(shape)
    at = _windows((height, width), kernel_size, stride, padding, dilation)
    if variant == "auto":
        raise ValueError(f"variant is 'auto'; it must be one of {', '.join(VARIANTS)}")
    variant = _choose(variant, samples, channels, at)
    return _launch_im2col(variant, samples, channels, at, stream_of(stream))


def col2im(
    columns,
    output_size,
    kernel_size,
    stride=1,
    padding=0,
    dilation=1,
    out=None,
    request="write",
    *,
    stream=None,
):
    """Images in which every pixel is the sum of its values in all windows: (N, C KH KW, OH OW) to (N, C, H, W) (B4).

    The adjoint of ``im2col``: the sum of ``im2col(x) * y`` is that of ``x * col2im(y)``. Each thread gathers the values
    of one pixel, in the order of the kernel, so the result is the same in every run. PyTorch's name for it is fold.

    Parameters
    ----------
    columns : ndarray or device array, shape (N, C KH KW, OH OW), float32 or float64
        Any N and C, also 0.
    output_size : int or 2 int, 0 or more
        H and W.
    kernel_size, stride, padding, dilation
        As for ``im2col``; OH and OW follow from them.
    out : array of shape (N, C, H, W), optional
        Of the same kind and dtype.
    request : str
        "write" overwrites ``out``, or makes a new array. The others need an ``out``. "inplace" overwrites it too, and
        then it may share memory with ``columns``, which are copied first if it does. "add" adds to what is in it.
        "null" leaves it as it is and launches nothing.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, C, H, W)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    check_array("columns", columns, 3, DTYPES)
    size = _pair("output_size", output_size, 0)
    at = _windows(size, kernel_size, stride, padding, dilation)
    samples, channels = _check_columns(columns, size, at)
    shape = samples, channels, *size
    if request not in REQUESTS:
        raise ValueError(f"request is {request!r}; it must be one of {', '.join(REQUESTS)}")
    if out is None and request != "write":
        raise ValueError(f"out is None; it must be an array of shape {shape} for the request {request!r}")
    _check_out(out, shape, "columns", columns, apart=request in ("write", "add"))
    if request == "null":
        return out
    stream = stream_of(stream)
    result = Output(columns, shape, out, stream, keep=request == "add")
    if result.device.size:
        source = to_device(columns, stream)
        if share_memory(source, result.device):
            shared, source = source, cuda.device_array(source.shape, source.dtype, stream=stream)
            source.copy_to_device(shared, stream=stream)
        launch, further = _launch(gather, samples, channels, int(at.pixels.value), at, stream)
        source, image = (a.reshape(samples * channels, *of) for a, of in ((source, _counts(at)), (result.device, size)))
        launch(source, image, *further, request == "add")
    return result.finish()


def configure_col2im(shape, kernel_size, stride=1, padding=0, dilation=1, *, request="write", stream=None):
    """The launch that ``col2im`` makes, to be traced or timed: call it with columns, planes and what else it returns.

    Parameters
    ----------
    shape : tuple of 4 int
        Of out: N, C, H and W; all are 1 or more.
    kernel_size, stride, padding, dilation, stream
        As for ``im2col``.
    request : str
        "write" or "add".

    Returns
    -------
    launch : ``kernel[grid, block, stream]``
    further : tuple
        The kernel's arguments after the columns, as (N C, KH KW, OH OW), and the planes, out as (N C, H, W):
        ``launch(columns, planes, *further)``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    samples, channels, height, width = _check_shape(shape, (1, 1, 1, 1))
    at = _windows((height, width), kernel_size, stride, padding, dilation)
    if request not in ("write", "add"):
        raise ValueError(f"request is {request!r}; it must be write or add")
    _check_size("shape", samples * channels, {"C H W": channels * height * width})
    launch, further = _launch(gather, samples, channels, height * width, at, stream_of(stream))
    return launch, (*further, request == "add")


# -- convolution -----------------------------------------------------------------------------------

#: What ``conv2d`` takes as ``algorithm``.
ALGORITHMS = ("im2col",)


def conv2d(
    x,
    weight,
    bias=None,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    algorithm="im2col",
    *,
    out=None,
    workspace=None,
    stream=None,
):
    """Convolution as neural networks have it, which does not turn the kernel round (a cross-correlation) (C1).

    Sample by sample, ``im2col`` writes the windows to one workspace, and for each group a product of the weights, M x
    K, and that group's columns, K x OH OW, is the result for M = O / groups out channels, with K = C / groups KH KW.

    Parameters
    ----------
    x : ndarray or device array, shape (N, C, H, W), float32 or float64
        Any N, also 0.
    weight : array of shape (O, C / groups, KH, KW)
        Of the same kind and dtype. C and O must be multiples of ``groups``.
    bias : array of shape (O,), optional
        Of the same kind and dtype; it is added to every value of its out channel.
    stride, padding, dilation
        As for ``im2col``.
    groups : int, 1 or more
        Out channels of a group are made of the same group's channels of x alone.
    algorithm : str
        "im2col".
    out : array of shape (N, O, OH, OW), optional
        Of the same kind and dtype. On the device it must not share memory with the others.
    workspace : device array of one dimension, optional
        C-contiguous, of the dtype of x, with at least ``workspace_size`` elements: for who calls often and wants no
        allocation. It must not share memory with the others, and calls in several streams need one each.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, O, OH, OW)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    _check_operands(x, weight, bias, groups, algorithm)
    samples, channels, height, width = x.shape
    at = _windows((height, width), tuple(weight.shape[2:]), stride, padding, dilation)
    variant = _choose("auto", samples, channels, at)
    shape = samples, weight.shape[0], int(at.out_h), int(at.out_w.value)
    taps, positions = _counts(at)
    rows = channels * taps
    _check_size("weight", 1, {"O OH OW": shape[1] * positions})
    _check_out(out, shape, "x", x, weight=weight, **({} if bias is None else {"bias": bias}))
    others = {"x": x, "weight": weight, "bias": bias, "out": out}
    _check_workspace(workspace, rows * positions, dtype_of(x), others)
    stream = stream_of(stream)
    result = Output(x, shape, out, stream)
    if result.device.size:
        operands = (None if array is None else to_device(array, stream) for array in (x, weight, bias))
        if workspace is None:
            workspace = cuda.device_array(rows * positions, dtype_of(x), stream=stream)
        columns = cuda.as_cuda_array(workspace)[: rows * positions].reshape(1, rows, positions)
        _multiply(*operands, groups, at, variant, columns, result.device, stream)
    return result.finish()


def workspace_size(x_shape, kernel_size, stride=1, padding=0, dilation=1):
    """Elements of the workspace of ``conv2d(..., algorithm="im2col")``: C KH KW OH OW, one sample's columns (C2).

    Parameters
    ----------
    x_shape : tuple of 4 int
        N, C, H and W.
    kernel_size, stride, padding, dilation
        As for ``im2col``.

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    _, channels, height, width = _check_shape(x_shape, (0, 0, 0, 0))
    at = _windows((height, width), kernel_size, stride, padding, dilation)
    taps, positions = _counts(at)
    return channels * taps * positions


def _multiply(x, weight, bias, groups, at, variant, columns, out, stream):
    """Launch all kernels of a convolution of contiguous device arrays; ``columns`` is the workspace."""
    samples, made, positions = x.shape[0], weight.shape[0], columns.shape[2]
    m, k = made // groups, columns.shape[1] // groups
    weight, out = weight.reshape(made, k), out.reshape(samples, made, positions)
    for sample in range(samples):
        _write_columns(variant, x[sample : sample + 1], columns, at, stream)
        for group in range(groups):
            of_group = slice(group * m, (group + 1) * m)
            part = columns[0, group * k : (group + 1) * k]
            matmul.matmul(weight[of_group], part, out=out[sample, of_group], stream=stream)
        if bias is not None:
            grid = -(-made * positions // BLOCK)
            configured(add_bias, grid, BLOCK, stream)(out[sample], bias, at.positions)


# -- launches --------------------------------------------------------------------------------------


def _launch(kernel, rows, group, values, at, stream):
    """Launch and further arguments for ``group`` planes of ``values`` threads along x, and so many rows of blocks."""
    grid = -(-group * values // BLOCK), min(rows, MOST_ROWS)
    return configured(kernel, grid, BLOCK, stream), (at, np.uint32(group))


def _launch_im2col(variant, samples, channels, at, stream):
    taps, positions = _counts(at)
    if variant == "window":
        return _launch(window, samples, channels, positions, at, stream)
    planes = samples * channels
    group = min(planes, GROUP)
    rows, blocks = -(-planes // group), -(-group * taps * positions // BLOCK)
    rows = min(rows, max(-(-rows // VALUES), -(-ENOUGH_BLOCKS // blocks)))
    return _launch(element, rows, group, taps * positions, at, stream)


def _write_columns(variant, x, columns, at, stream):
    """Launch im2col from images to columns, both contiguous device arrays."""
    samples, channels, height, width = x.shape
    launch, further = _launch_im2col(variant, samples, channels, at, stream)
    planes = samples * channels
    launch(x.reshape(planes, height, width), columns.reshape(planes, *_counts(at)), *further)


def _choose(variant, samples, channels, at):
    """The variant of im2col to launch, if there are not too many threads for it."""
    if variant != "auto" and variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be 'auto' or one of {', '.join(VARIANTS)}")
    taps, positions = _counts(at)
    values = min(GROUP, samples * channels) * taps * positions
    if variant == "auto":
        variant = "element" if values <= MOST_THREADS else "window"
    counts = {"8 KH KW OH OW": values} if variant == "element" else {"C OH OW": channels * positions}
    _check_size("x", samples * channels, counts)
    return variant


# -- arguments -------------------------------------------------------------------------------------


def _divisor(value):
    """The Divisor that is exact for every number below 2^31.

    With 2^s the power of 2 that is not below value, the factor is 2^(31 + s) / value rounded up, by less than 1. Times
    n < 2^31 that is less than 2^31, and 2^(31 + s) / value, by which quotients of neighbours differ, is not less.
    """
    shift = 31 + (value - 1).bit_length()
    return Divisor(np.uint32(value), np.uint32(-(-(1 << shift) // value)), np.uint32(shift))


def _windows(size, kernel_size, stride, padding, dilation):
    """The Windows of images of a size (H, W), after a check of all that they follow from."""
    kernel = _pair("kernel_size", kernel_size, 1)
    stride, padding, dilation = _pair("stride", stride, 1), _pair("padding", padding, 0), _pair("dilation", dilation, 1)
    out = []
    for axis, name in enumerate(("rows", "columns")):
        padded, span = size[axis] + 2 * padding[axis], dilation[axis] * (kernel[axis] - 1) + 1
        if padded > MOST_PIXELS:
            raise ValueError(f"the images have {padded} {name} with their padding; at most {MOST_PIXELS} are possible")
        if span > padded:
            raise ValueError(
                f"kernel_size is {kernel} with dilation {dilation}, {span} {name}; "
                f"the images have {padded} with their padding, and one window at least must fit"
            )
        out.append((padded - span) // stride[axis] + 1)
    for name, (first, second) in {"OH OW": out, "H W": size, "KH KW": kernel}.items():
        if first * second > MOST_THREADS:
            raise ValueError(f"{name} is {first} * {second}; it must be at most {MOST_THREADS}")
    # A stride beyond the image is never taken; a divisor must have 32 bits and not be 0.
    steps = [_divisor(min(n, MOST_PIXELS)) for n in stride]
    numbers = (np.uint32(min(n, MOST_PIXELS)) for n in (*padding, *dilation))
    image = _divisor(max(size[1], 1)), _divisor(max(size[0] * size[1], 1))
    outside = np.uint32(out[0]), _divisor(out[1]), _divisor(out[0] * out[1])
    taps = _divisor(kernel[0] * kernel[1])
    return Windows(np.uint32(kernel[0]), _divisor(kernel[1]), *steps, *numbers, *image, *outside, taps)


def _counts(at):
    """KH KW and OH OW."""
    return int(at.taps.value), int(at.positions.value)


def _pair(name, value, least):
    if not isinstance(value, tuple | list):
        return (whole(name, value, least),) * 2
    if len(value) != 2:
        raise ValueError(f"{name} is {value!r}; it must be an int or two of them")
    return tuple(whole(f"{name}[{axis}]", n, least) for axis, n in enumerate(value))


def _check_shape(shape, least=(1, 1, 0, 0)):
    """``shape`` as N, C, H, W, none of which is less than its least."""
    if len(shape) != 4:
        raise ValueError(f"shape is {tuple(shape)}; it must be N, C, H, W")
    return [whole(f"shape[{axis}]", n, few) for axis, (n, few) in enumerate(zip(shape, least, strict=True))]


def _check_size(name, planes, threads):
    if planes > MOST_PLANES:
        raise ValueError(f"{name} is too large: it has {planes} channels in all samples, at most {MOST_PLANES} can be")
    for what, count in threads.items():
        if count > MOST_THREADS:
            raise ValueError(f"{name} is too large: {what} is {count}; it must be at most {MOST_THREADS}")


def _check_columns(columns, size, at):
    """N and C of the images of a size (H, W) that columns belong to."""
    (samples, rows, found), (taps, positions) = columns.shape, _counts(at)
    if rows % taps:
        raise ValueError(f"columns has {rows} rows; it must have a multiple of {taps}, the values of kernel_size")
    if found != positions:
        expected = f"{positions}, which is {int(at.out_h)} * {int(at.out_w.value)} windows"
        raise ValueError(f"columns has {found} columns; it must have {expected}")
    channels = rows // taps
    _check_size("columns", samples * channels, {"C H W": channels * size[0] * size[1]})
    return samples, channels


def _check_out(out, shape, name, like, apart=True, **others):
    """``out`` is as ``like``, of the shape, and apart from it and the others, or it is None."""
    if out is None:
        return
    check_array("out", out, len(shape), DTYPES)
    check_alike("out", out, name, like, shape)
    if apart:
        check_apart("out", out, **{name: like}, **others)


def _check_operands(x, weight, bias, groups, algorithm):
    check_array("x", x, 4, DTYPES)
    check_array("weight", weight, 4, DTYPES)
    check_alike("weight", weight, "x", x)
    groups, channels, made = whole("groups", groups, 1), x.shape[1], weight.shape[0]
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm is {algorithm!r}; it must be one of {', '.join(map(repr, ALGORITHMS))}")
    if channels == 0 or channels % groups:
        raise ValueError(f"x has {channels} channels; it must have a multiple of groups, {groups}")
    if weight.shape[1] != channels // groups or 0 in weight.shape[2:]:
        expected = f"(O, {channels // groups}, KH, KW), as x has {channels} channels in {groups} groups"
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be {expected}")
    if made % groups:
        raise ValueError(f"weight has {made} out channels; it must have a multiple of groups, {groups}")
    if bias is not None:
        check_array("bias", bias, 1, DTYPES)
        check_alike("bias", bias, "x", x, (made,))


def _check_workspace(workspace, size, dtype, others):
    if workspace is None:
        return
    if not cuda.is_cuda_array(workspace):
        raise TypeError(f"workspace is a {type(workspace).__name__}; it must be a device array")
    check_array("workspace", workspace, 1, (dtype,))
    if workspace.shape[0] < size or not cuda.as_cuda_array(workspace).is_c_contiguous():
        raise ValueError(f"workspace has shape {tuple(workspace.shape)}; it must be contiguous, of {size} or more")
    on_device = {name: array for name, array in others.items() if cuda.is_cuda_array(array)}
    check_apart("workspace", workspace, **on_device)
