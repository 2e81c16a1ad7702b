"""Resizing images: every pixel of the target asks where in the source it lies, and mixes what it finds there.

All kernels have one thread for each pixel of the target, which handles its three channels, in every frame of the batch
that its layer of the grid takes. They read the pixels that are needed of N H W 3 values and write N height width 3.
With ``swap`` they exchange the first and the last channel on the way (BGR to RGB and back) at no cost in traffic.

The centre of pixel i lies at i + 0.5. Target pixel x of ``size`` therefore lies at ``(x + 0.5) * n / size - 0.5`` among
the n pixels of the source: between two of them, or up to half a pixel beyond the first or the last, which then counts
alone.
"""

import functools
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import float32, float64, int32, types, uint8, uint32

from gpukit.backend import cuda
from gpukit.checks import whole
from gpukit.operands import Output, check_alike, check_apart, check_array, configured, dtype_of, stream_of, to_device

__all__ = [
    "BLOCK",
    "CHANNELS",
    "METHODS",
    "MOST_PIXELS",
    "Letterbox",
    "Placement",
    "bilinear",
    "blob",
    "letterbox",
    "letterbox_centred",
    "letterbox_corner",
    "letterbox_planes",
    "nearest",
    "placement",
    "resize",
]

CHANNELS = 3
BLOCK = (32, 8)  # threads: a warp writes 32 pixels of one row, 96 bytes of uint8
ONE = 2048  # as a weight of OpenCV's fixed point
HALF = np.float32(0.5)

# Numba widens integers to 64 bits when it computes with them; the casts to 32 take each result back, and the compiler
# then does the whole in 32 bits.


# -- where a pixel of the target lies in the source ------------------------------------------------


@cuda.jit(device=True)
def neighbours(x, n, size):
    """(first, second, weight): the two of n source pixels around target pixel x of ``size``, and the second's share.

    The place is a fraction with the denominator 2 size, exact in integers: the formula in float32 would be off by a ten
    thousandth of a pixel at the far end of a frame of 2000. The whole part is counted from -1.
    """
    denominator = uint32(uint32(2) * size)
    numerator = uint32(uint32(uint32(2) * x + uint32(1)) * n + size)
    part = uint32(numerator // denominator)
    rest = uint32(numerator - uint32(part * denominator))
    first = uint32(max(part, uint32(1)) - uint32(1))
    second = uint32(min(part, uint32(n - uint32(1))))
    return first, second, float32(rest) / float32(denominator)


# -- mixing four pixels ----------------------------------------------------------------------------


@cuda.jit(device=True)
def mix_floats(image, frame, down, across, channel):
    """The value at a place in an image of float32: its four pixels, each weighted by the area opposite to it."""
    y, x = down[2], across[2]
    top_left, top_right = image[frame, down[0], across[0], channel], image[frame, down[0], across[1], channel]
    low_left, low_right = image[frame, down[1], across[0], channel], image[frame, down[1], across[1], channel]
    one = float32(1)
    top = (one - x) * top_left + x * top_right
    low = (one - x) * low_left + x * low_right
    return (one - y) * top + y * low


@cuda.jit(device=True)
def mix_bytes(image, frame, down, across, channel):
    """The value at a place in an image of uint8, in OpenCV's fixed point: weights in 2048ths, and its shifts.

    Float32 would be closer to the truth, and equal to OpenCV's result in 7 pixels of 8 only.
    """
    y = int32(down[2] * float32(ONE) + HALF)
    x = int32(across[2] * float32(ONE) + HALF)
    y_rest, x_rest = int32(int32(ONE) - y), int32(int32(ONE) - x)
    top_left, top_right = image[frame, down[0], across[0], channel], image[frame, down[0], across[1], channel]
    low_left, low_right = image[frame, down[1], across[0], channel], image[frame, down[1], across[1], channel]
    top = int32(int32(x_rest * int32(top_left)) + int32(x * int32(top_right)))
    low = int32(int32(x_rest * int32(low_left)) + int32(x * int32(low_right)))
    top = int32(int32(y_rest * int32(top >> 4)) >> 16)
    low = int32(int32(y * int32(low >> 4)) >> 16)
    return uint8(int32(int32(top + low) + int32(2)) >> 2)


# -- the ladder ------------------------------------------------------------------------------------


@cuda.jit
def nearest(image, out, down, across, swap):
    """The source pixel under the top left corner of the target pixel: row int(y * down), column int(x * across).

    The scales are float64, on purpose: where ``x * across`` should be whole, OpenCV's rounding decides.
    """
    x, y = cuda.grid(2)
    if x < out.shape[2] and y < out.shape[1]:
        row, col = uint32(float64(uint32(y)) * down), uint32(float64(uint32(x)) * across)
        frame = cuda.blockIdx.z
        while frame < out.shape[0]:
            for channel in range(3):
                out[frame, y, x, channel] = image[frame, row, col, 2 - channel if swap else channel]
            frame += cuda.gridDim.z


@functools.cache
def bilinear(mix):
    """Kernel: four source pixels around the place of each target pixel, mixed by ``mix_bytes`` or ``mix_floats``."""

    @cuda.jit
    def bilinear(image, out, swap):
        x, y = cuda.grid(2)
        if x < out.shape[2] and y < out.shape[1]:
            down = neighbours(uint32(y), uint32(image.shape[1]), uint32(out.shape[1]))
            across = neighbours(uint32(x), uint32(image.shape[2]), uint32(out.shape[2]))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    source = 2 - channel if swap else channel
                    out[frame, y, x, channel] = mix(image, frame, down, across, source)
                frame += cuda.gridDim.z

    return bilinear


@functools.cache
def letterbox_corner(mix):
    """Kernel: the image resized to ``height`` x ``width``, at the top left of the target; ``fill`` elsewhere."""

    @cuda.jit
    def letterbox_corner(image, out, height, width, fill, swap):
        x, y = cuda.grid(2)
        if x < out.shape[2] and y < out.shape[1]:
            inside = x < width and y < height
            down = neighbours(uint32(y), uint32(image.shape[1]), uint32(height))
            across = neighbours(uint32(x), uint32(image.shape[2]), uint32(width))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    value = fill[channel]
                    if inside:
                        value = mix(image, frame, down, across, 2 - channel if swap else channel)
                    out[frame, y, x, channel] = value
                frame += cuda.gridDim.z

    return letterbox_corner


@functools.cache
def letterbox_centred(mix):
    """Kernel: the image resized to ``height`` x ``width``, from row ``top`` and column ``left`` of the target on."""

    @cuda.jit
    def letterbox_centred(image, out, height, width, top, left, fill, swap):
        x, y = cuda.grid(2)
        if x < out.shape[2] and y < out.shape[1]:
            # What lies above or to the left wraps round to a large number: one comparison finds both sides.
            row, col = uint32(y - top), uint32(x - left)
            inside = row < uint32(height) and col < uint32(width)
            down = neighbours(row, uint32(image.shape[1]), uint32(height))
            across = neighbours(col, uint32(image.shape[2]), uint32(width))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    value = fill[channel]
                    if inside:
                        value = mix(image, frame, down, across, 2 - channel if swap else channel)
                    out[frame, y, x, channel] = value
                frame += cuda.gridDim.z

    return letterbox_centred


@functools.cache
def letterbox_planes(mix, number):
    """Kernel: the pixels of ``letterbox_centred`` as (value - mean) * factor, in planes: out is (N, 3, H, W).

    A warp's store to a plane is of 32 neighbours, where those to whole pixels are three apart.
    """

    @cuda.jit
    def letterbox_planes(image, out, height, width, top, left, fill, mean, factor, swap):
        x, y = cuda.grid(2)
        if x < out.shape[3] and y < out.shape[2]:
            row, col = uint32(y - top), uint32(x - left)
            inside = row < uint32(height) and col < uint32(width)
            down = neighbours(row, uint32(image.shape[1]), uint32(height))
            across = neighbours(col, uint32(image.shape[2]), uint32(width))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    value = fill[channel]
                    if inside:
                        value = mix(image, frame, down, across, 2 - channel if swap else channel)
                    out[frame, channel, y, x] = number((float32(value) - mean[channel]) * factor[channel])
                frame += cuda.gridDim.z

    return letterbox_planes


# -- host functions --------------------------------------------------------------------------------

METHODS = ("bilinear", "nearest")
#: Rows or columns of an image, at most: up to here 32 bits hold what ``neighbours`` computes.
MOST_PIXELS = 32767
#: Frames with a layer of the grid of their own; more share them.
MOST_LAYERS = 65535

DTYPES = {np.dtype(np.uint8): mix_bytes, np.dtype(np.float32): mix_floats}
PLANES = {np.dtype(np.float32): float32, np.dtype(np.float16): types.float16}


class Letterbox(NamedTuple):
    """What ``letterbox`` and ``blob`` give back: the image, target pixels per source pixel, and the first
    row and column of the picture.
    """

    image: Any
    scale: float
    top: int
    left: int


class Placement(NamedTuple):
    """Where a letterbox has the picture, and the way there and back for coordinates.

    Points are arrays of shape (..., 2), x and y in pixels, or boxes of shape (..., 4), two points each. Whole numbers
    are the edges of pixels, as in the boxes of detectors: pixel i reaches from i to i + 1, its centre is at i + 0.5.

    Attributes
    ----------
    scale : float
        Target pixels per source pixel, before the size is rounded.
    height, width : int
        Size of the picture in the target.
    top, left : int
        Its first row and column.
    source : tuple of 2 int
        Height and width of the source.
    """

    scale: float
    height: int
    width: int
    top: int
    left: int
    source: tuple

    def to_target(self, points):
        """Source coordinates as coordinates in the target, float64; ValueError or TypeError for other shapes."""
        pairs, shape = _pairs(points)
        return (pairs * self._scales() + (self.left, self.top)).reshape(shape)

    def to_source(self, points):
        """Target coordinates as coordinates in the source, float64; those in the border lie outside of the image."""
        pairs, shape = _pairs(points)
        return ((pairs - (self.left, self.top)) / self._scales()).reshape(shape)

    def _scales(self):
        """Of x and of y: the rounded size makes each a little different from ``scale``."""
        rows, columns = self.source
        return np.array([self.width / columns, self.height / rows])


def _pairs(points):
    points = np.asarray(points)
    if points.dtype.kind not in "iuf":
        raise TypeError(f"points has dtype {points.dtype}; it must be a type of real numbers")
    if points.ndim == 0 or points.shape[-1] not in (2, 4):
        raise ValueError(f"points has shape {points.shape}; it must end in 2 (x, y) or 4 (x, y, x, y)")
    return points.astype(np.float64).reshape(*points.shape[:-1], -1, 2), points.shape


def placement(source, target, center=True):
    """Where ``letterbox`` puts an image.

    One scale serves both axes, the largest with which the image fits; the size is rounded to whole pixels, at least 1;
    a centred picture has the odd row or column of the border below or to the right of it.

    Parameters
    ----------
    source, target : tuple of 2 int
        Height and width of the image and of what it has to fit in, from 1 to ``MOST_PIXELS``.
    center : bool
        False for the top left corner.

    Returns
    -------
    Placement

    Raises
    ------
    TypeError, ValueError
        For a size that is not as above.
    """
    rows, columns = _size("source", source)
    most_rows, most_columns = _size("target", target)
    scale = min(most_rows / rows, most_columns / columns)
    height, width = max(1, round(rows * scale)), max(1, round(columns * scale))
    top, left = ((most_rows - height) // 2, (most_columns - width) // 2) if center else (0, 0)
    return Placement(scale, height, width, top, left, (rows, columns))


def resize(image, size, method="bilinear", *, swap_rb=False, out=None, stream=None):
    """An image, or each of a batch, at another size: A14.

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3)
        uint8 or float32; H and W from 1 to ``MOST_PIXELS``, N also 0. One that is not C-contiguous is copied first.
    size : tuple of 2 int
        Height and width of the result, from 1 to ``MOST_PIXELS``. (OpenCV takes the width first.)
    method : str
        "bilinear": as ``cv2.resize`` with INTER_LINEAR, within 1 level for uint8. "nearest": as with INTER_NEAREST,
        equal to it, which goes by the corners of pixels and not by their centres. (INTER_NEAREST_EXACT takes the
        centres, and has had different results in OpenCV 4 and 5.) Neither averages when it reduces.
    swap_rb : bool
        Exchange the first and the last channel.
    out : array of shape (height, width, 3) or (N, height, width, 3), optional
        Of the same kind and dtype. On the device it must not share memory with ``image``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array
        ``out`` if that was given, otherwise a new array of the same library as ``image``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    size = _size("size", size)
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; it must be one of {', '.join(METHODS)}")
    shape = _check(image, size)
    _check_out(image, shape, out)
    if method == "bilinear":
        return _launch(bilinear(DTYPES[dtype_of(image)]), image, shape, out, stream, int(bool(swap_rb)))
    scales = [_nearest_scale(n, wanted) for n, wanted in zip(image.shape[-3:-1], size, strict=True)]
    return _launch(nearest, image, shape, out, stream, *scales, int(bool(swap_rb)))


def letterbox(image, size, fill=0, center=True, swap_rb=True, *, out=None, stream=None):
    """An image, or each of a batch, made to fit a size with its aspect ratio kept, and a border around it: A14.

    The picture is what ``resize`` makes of the whole image at the size that ``placement`` says; that function also
    gives the way there and back for coordinates.

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3)
        As for ``resize``.
    size : tuple of 2 int
        Height and width of the result, from 1 to ``MOST_PIXELS``.
    fill : number or sequence of 3 numbers
        Value of the border, in the channel order of the result: for uint8 whole, from 0 to 255.
    center : bool
        False for the picture in the top left corner.
    swap_rb : bool
        Exchange the first and the last channel of the picture: OpenCV's BGR becomes the RGB of most networks.
    out, stream
        As for ``resize``.

    Returns
    -------
    Letterbox
        (image, scale, top, left).

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    size = _size("size", size)
    shape = _check(image, size)
    _check_out(image, shape, out)
    dtype = dtype_of(image)
    fill = _fill(fill, dtype)
    place = placement(image.shape[-3:-1], size, center)
    mix, swap = DTYPES[dtype], int(bool(swap_rb))
    if center:
        where = place.height, place.width, place.top, place.left
        result = _launch(letterbox_centred(mix), image, shape, out, stream, *where, fill, swap)
    else:
        result = _launch(letterbox_corner(mix), image, shape, out, stream, place.height, place.width, fill, swap)
    return Letterbox(result, place.scale, place.top, place.left)


def blob(
    image, size, mean=0, factor=1 / 255, fill=0, center=True, swap_rb=True, *, dtype=np.float32, out=None, stream=None
):
    """The input of a network: ``letterbox``, then (value - mean) * factor in float32, a plane for each channel: A14.

    The conventions are those of ``cv2.dnn.blobFromImage``: with the mean and the deviation of values from 0 to 1, pass
    255 times the mean and 1 / (255 deviation).

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3)
        As for ``resize``.
    size, fill, center, swap_rb
        As for ``letterbox``; the border, too, gets ``mean`` and ``factor``.
    mean, factor : number or sequence of 3 numbers
        In the channel order of the result.
    dtype : NumPy dtype
        Of the result: float32 or float16.
    out : array of shape (3, height, width) or (N, 3, height, width), optional
        Of the same kind as ``image``, with ``dtype``. On the device it must not share memory with ``image``.
    stream
        As for ``resize``.

    Returns
    -------
    Letterbox
        (image, scale, top, left).

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    size = _size("size", size)
    rows, columns = size
    shape = (*_check(image, size)[:-3], CHANNELS, rows, columns)
    dtype = np.dtype(dtype)
    if dtype not in PLANES:
        raise TypeError(f"dtype is {dtype}; it must be {' or '.join(map(str, PLANES))}")
    _check_out(image, shape, out, dtype)
    fill = _fill(fill, dtype_of(image))
    mean, factor = _three("mean", mean, np.float32), _three("factor", factor, np.float32)
    place = placement(image.shape[-3:-1], size, center)
    kernel = letterbox_planes(DTYPES[dtype_of(image)], PLANES[dtype])
    where = place.height, place.width, place.top, place.left
    result = _launch(kernel, image, shape, out, stream, *where, fill, mean, factor, int(bool(swap_rb)), dtype=dtype)
    return Letterbox(result, place.scale, place.top, place.left)


def _launch(kernel, image, shape, out, stream, *arguments, dtype=None):
    """The result of a kernel that takes the source, the target, both with four dimensions, and what follows them."""
    stream = stream_of(stream)
    result = Output(image, shape, out, stream, dtype)
    frames = shape[0] if len(shape) == 4 else 1
    height, width = shape[-2:] if dtype else shape[-3:-1]
    if frames:
        source = to_device(image, stream).reshape(frames, *image.shape[-3:])
        target = result.device.reshape(frames, *shape[-3:])
        grid = -(-width // BLOCK[0]), -(-height // BLOCK[1]), min(frames, MOST_LAYERS)
        configured(kernel, grid, BLOCK, stream)(source, target, *arguments)
    return result.finish()


def _nearest_scale(n, size):
    """Source pixels per target pixel with both of OpenCV's roundings."""
    return np.float64(1 / (size / n))


def _size(name, size):
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise TypeError(f"{name} is {size!r}; it must be a tuple of 2 ints, height and width")
    return tuple(whole(f"{name}[{axis}]", n, 1, MOST_PIXELS) for axis, n in enumerate(size))


def _three(name, value, dtype, kind=Real, what="real number"):
    """One number or three as three of the dtype."""
    values = tuple(value) if isinstance(value, tuple | list | np.ndarray) else (value,) * CHANNELS
    if len(values) != CHANNELS or not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
        raise TypeError(f"{name} is {value!r}; it must be one {what} or {CHANNELS} of them")
    return tuple(dtype(v) for v in values)


def _fill(fill, dtype):
    """``fill`` as three numbers of an image's dtype."""
    if dtype.kind == "f":
        return _three("fill", fill, dtype.type)
    values = _three("fill", fill, int, Integral, "int")
    if not all(0 <= v <= 255 for v in values):
        raise ValueError(f"fill is {fill!r}; it must be from 0 to 255 for an image of {dtype}")
    return tuple(dtype.type(v) for v in values)


def _check(image, size):
    """Shape of the image at another size, once it is as it must be."""
    check_array("image", image, (3, 4), DTYPES)
    rows, columns, channels = image.shape[-3:]
    if channels != CHANNELS:
        raise ValueError(f"image has shape {tuple(image.shape)}; its last dimension must be {CHANNELS}, the channels")
    if not (1 <= rows <= MOST_PIXELS and 1 <= columns <= MOST_PIXELS):
        what = f"its height and width must be from 1 to {MOST_PIXELS}"
        raise ValueError(f"image has shape {tuple(image.shape)}; {what}")
    return (*image.shape[:-3], *size, CHANNELS)


def _check_out(image, shape, out, dtype=None):
    if out is None:
        return
    check_array("out", out, len(shape))
    check_alike("out", out, "image", image, shape, dtype)
    check_apart("out", out, image=image)
