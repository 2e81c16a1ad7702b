"""``resize``, ``letterbox`` and ``blob``: check, choose a kernel, launch."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import float32, types, uint8

from gpukit.backend import cuda, on_gpu
from gpukit.launching import Plans
from gpukit.operands import (
    Output,
    address_of,
    as_device_array,
    check_alike,
    check_apart,
    check_array,
    configured,
    dtype_of,
    span,
    stream_of,
    to_device,
    window,
)
from gpukit.resize import kernels, sampling
from gpukit.resize.placing import CHANNELS, MOST_PIXELS, Letterbox, fill_of, placement, size_of, three

__all__ = ["METHODS", "blob", "letterbox", "resize"]

METHODS = ("bilinear", "nearest")
#: Layers of a grid, at most; frames that are alike share them, images of many sizes have a launch for each so many.
MOST_LAYERS = 65535
#: Blocks that a launch should have, before each has more to do: a large GPU runs about half as many at a time.
MANY_BLOCKS = 800

SAMPLERS = {np.dtype(np.uint8): sampling.BYTES, np.dtype(np.float32): sampling.FLOATS}
NUMBERS = {np.dtype(np.uint8): uint8, np.dtype(np.float32): float32, np.dtype(np.float16): types.float16}
PLANES = (np.dtype(np.float32), np.dtype(np.float16))

_plans = Plans()


def resize(image, size, method="bilinear", *, swap_rb=False, out=None, stream=None):
    """An image, or each of a batch, at another size: A14.

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3), or sequence of N of shape (H, W, 3)
        uint8 or float32; H and W from 1 to ``MOST_PIXELS``, N also 0. Those of a sequence may differ in size. The three
        values of a pixel and the pixels of a row must follow one another, or it is copied first; rows may be apart.
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
    call = _call(image, out, stream, "resize", size, method, swap_rb)
    if call.plan is not None:
        return call.again()
    size = size_of("size", size)
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; it must be one of {', '.join(METHODS)}")
    sources = _Sources(image)
    shape = (*sources.batch, *size, CHANNELS)
    sources.check_out(out, shape)
    places = [(*size, 0, 0)] * len(sources.sizes)
    black = fill_of(0, sources.dtype)
    return _launch(call, sources, places, shape, stream, (black, int(bool(swap_rb))), method=method)


def letterbox(image, size, fill=0, center=True, swap_rb=True, *, out=None, stream=None):
    """An image, or each of a batch, made to fit a size with its aspect ratio kept, and a border around it: A14.

    The picture is what ``resize`` makes of the whole image at the size that ``placement`` says; that function also
    gives the way there and back for coordinates.

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3), or sequence of N of shape (H, W, 3)
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
    call = _call(image, out, stream, "letterbox", size, fill, center, swap_rb)
    if call.plan is not None:
        return _boxed(call.again(), image, size, center)
    size = size_of("size", size)
    sources = _Sources(image)
    shape = (*sources.batch, *size, CHANNELS)
    sources.check_out(out, shape)
    fill = fill_of(fill, sources.dtype)
    places = [placement(source, size, center)[1:5] for source in sources.sizes]
    return _boxed(_launch(call, sources, places, shape, stream, (fill, int(bool(swap_rb)))), image, size, center)


def blob(
    image, size, mean=0, factor=1 / 255, fill=0, center=True, swap_rb=True, *, dtype=np.float32, out=None, stream=None
):
    """The input of a network: ``letterbox``, then (value - mean) * factor in float32, a plane for each channel: A14.

    The conventions are those of ``cv2.dnn.blobFromImage``: with the mean and the deviation of values from 0 to 1, pass
    255 times the mean and 1 / (255 deviation).

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3), or sequence of N of shape (H, W, 3)
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
    call = _call(image, out, stream, "blob", size, mean, factor, fill, center, swap_rb, dtype)
    if call.plan is not None:
        return _boxed(call.again(), image, size, center)
    size = size_of("size", size)
    dtype = np.dtype(dtype)
    if dtype not in PLANES:
        raise TypeError(f"dtype is {dtype}; it must be {' or '.join(map(str, PLANES))}")
    sources = _Sources(image)
    shape = (*sources.batch, CHANNELS, *size)
    sources.check_out(out, shape, dtype)
    fill = fill_of(fill, sources.dtype)
    mean, factor = three("mean", mean, np.float32), three("factor", factor, np.float32)
    places = [placement(source, size, center)[1:5] for source in sources.sizes]
    further = fill, mean, factor, int(bool(swap_rb))
    return _boxed(_launch(call, sources, places, shape, stream, further, dtype), image, size, center)


def _call(image, out, stream, *parameters):
    """A call of `Plans`, by arguments that can be looked up."""
    inputs = tuple(image) if isinstance(image, list | tuple) else (image,)
    try:
        return _plans.call(inputs, out, stream, _token(*parameters))
    except TypeError:  # something that cannot be hashed: a list or an array for three numbers, or what is refused later
        plain = (tuple(p) if isinstance(p, list | np.ndarray) and np.ndim(p) == 1 else p for p in parameters)
        return _plans.call(inputs, out, stream, *plain)


@functools.lru_cache(maxsize=1024, typed=True)
def _token(*parameters):
    """An object that stands for parameters, quicker to look up than they are."""
    return object()


def _boxed(result, image, size, center):
    if isinstance(image, list | tuple):
        boxes = zip(*(_box(tuple(one.shape), tuple(size), center) for one in image), strict=True)
        return Letterbox(result, *boxes)
    return Letterbox(result, *_box(tuple(image.shape), tuple(size), center))


@functools.lru_cache(maxsize=1024)
def _box(shape, size, center):
    place = placement(shape[-3:-1], size, center)
    return place.scale, place.top, place.left


# -- what is given ---------------------------------------------------------------------------------


class _Sources:
    """The images of a call, once they are as they must be.

    Attributes
    ----------
    images : list of arrays
        One, with three or four dimensions, or all of a sequence.
    batch : tuple
        What the shape of the result begins with: () or (N,).
    sizes : list of (int, int)
        Height and width of each of ``images``.
    dtype : NumPy dtype
    """

    def __init__(self, image):
        self.sequence = isinstance(image, list | tuple)
        self.images = list(image) if self.sequence else [image]
        if not self.images:
            raise ValueError("image is an empty sequence; it must hold at least one image")
        for i, one in enumerate(self.images):
            name = f"image[{i}]" if self.sequence else "image"
            check_image(name, one, 3 if self.sequence else (3, 4))
            if i:
                check_alike(name, one, "image[0]", self.images[0])
        self.dtype = dtype_of(self.images[0])
        self.batch = (len(self.images),) if self.sequence else tuple(image.shape[:-3])
        self.sizes = [tuple(one.shape[-3:-1]) for one in self.images]

    def check_out(self, out, shape, dtype=None):
        if out is None:
            return
        check_array("out", out, len(shape))
        check_alike("out", out, "image", self.images[0], shape, dtype)
        for i, one in enumerate(self.images):
            check_apart("out", out, **{f"image[{i}]" if self.sequence else "image": one})


def check_image(name, image, dimensions):
    """TypeError or ValueError unless an array is an image, or a batch, that the kernels take."""
    check_array(name, image, dimensions, SAMPLERS)
    rows, columns, channels = image.shape[-3:]
    if channels != CHANNELS:
        raise ValueError(f"{name} has shape {tuple(image.shape)}; its last dimension must be {CHANNELS}, the channels")
    if not (1 <= rows <= MOST_PIXELS and 1 <= columns <= MOST_PIXELS):
        what = f"its height and width must be from 1 to {MOST_PIXELS}"
        raise ValueError(f"{name} has shape {tuple(image.shape)}; {what}")


# -- the launch ------------------------------------------------------------------------------------


class Frames(NamedTuple):
    """Frames on the device, as the kernels take them.

    Attributes
    ----------
    flat : device array with one dimension
        In which all of them lie.
    fields : list of tuple
        For each frame ``kernels.FIELDS``; or of frames that are alike one, with the way from frame to frame as start.
    alike : bool
    """

    flat: Any
    fields: list
    alike: bool

    def in_words(self):
        """The same with four bytes in an element; None if rows do not begin with one, or have no two pixels."""
        starts = all(start % 4 == 0 and pitch % 4 == 0 for start, pitch, *_ in self.fields)
        if not starts or address_of(self.flat) % 4 or self.flat.size % 4 or any(f[3] < 2 for f in self.fields):
            return None
        fields = [(start // 4, pitch // 4, *rest) for start, pitch, *rest in self.fields]
        return Frames(window(self.flat, np.uint32, self.flat.size // 4), fields, self.alike)

    def geometry(self, stream):
        """What ``of_all`` or ``of_each`` takes."""
        return self.fields[0] if self.alike else cuda.to_device(np.array(self.fields, np.int64), stream=stream)


def _launch(call, sources, places, shape, stream, further, dtype=None, method="bilinear"):
    """The result of ``planes``, if there is a dtype, or of ``pixels``."""
    stream = stream_of(stream)
    result = Output(sources.images[0], shape, call.out, stream, dtype)
    if 0 in shape:
        return result.finish()
    if sources.sequence:
        arrays = [_in_rows(image, stream) if cuda.is_cuda_array(image) else image for image in sources.images]
        frames = _together(arrays, places, stream)
    else:
        frames = alike(_in_rows(sources.images[0], stream), places[0])
    return call.first(launches(frames, result.device, further, dtype, method, stream), result)


def launches(frames, target, further, dtype=None, method="bilinear", stream=0):
    """[(configured kernel, arguments), ...] for `Frames` and a contiguous target; the kernels have ``further``."""
    count = target.shape[0] if target.ndim == 4 else 1
    size = target.shape[-2:] if dtype else target.shape[-3:-1]
    sampler, number = SAMPLERS[frames.flat.dtype], NUMBERS[target.dtype]
    if method == "nearest":
        sampler = sampling.NEAREST
    elif sampler is sampling.BYTES and (words := frames.in_words()):
        sampler, frames = sampling.WORDS, words
    geometry, fields_of = frames.geometry(stream), kernels.of_all if frames.alike else kernels.of_each
    rows, grid = _grid(size, count, frames.alike and not dtype)
    together = int(size[1] % 4 == 0 and address_of(target) % (4 * target.dtype.itemsize) == 0)
    kernel = (kernels.planes if dtype else kernels.pixels)(sampler, number, fields_of)
    found = []
    for first in range(0, count, count if frames.alike else MOST_LAYERS):
        last = count if frames.alike else min(count, first + MOST_LAYERS)
        launch = configured(kernel, (*grid[:2], min(grid[2], last - first)), kernels.BLOCK, stream)
        work = first, last, *size, rows, together
        found.append((launch, (frames.flat, geometry, target.reshape(-1), work, *further)))
    return found


def _grid(size, count, share):
    """(rows that a thread goes through, grid).

    With few blocks each thread has one row, so that every multiprocessor has some to do; with many it has several, and
    with ``share`` those of several frames, so that what it computes about its columns serves for more pixels: what was
    fastest on an H200, for planes without.
    """
    height, width = size
    across = -(-width // kernels.SPAN)
    rows = kernels.MOST_ROWS if across * -(-height // kernels.BAND) * count >= MANY_BLOCKS else 1
    down = -(-height // (kernels.WARPS * rows))
    layers = min(count, MOST_LAYERS, -(-MANY_BLOCKS // (across * down)) if share else count)
    return rows, (across, down, layers)


def _in_rows(image, stream):
    """An image or batch as a device array whose rows have their pixels one after another: itself or a copy."""
    if cuda.is_cuda_array(image):
        array = as_device_array(image)
        pixel, value = array.strides[-2:]
        item = array.dtype.itemsize
        aligned = all(stride >= 0 and stride % item == 0 for stride in array.strides)
        if aligned and value == item and (pixel == CHANNELS * item or array.shape[-2] == 1):
            return array
    return to_device(image, stream)


def alike(array, place):
    """`Frames` of an image or of a batch of one size, with its place in the target."""
    low, high = span(array)
    item = array.dtype.itemsize
    frame_pitch = array.strides[0] // item if len(array.shape) == 4 else 0
    flat = window(array, array.dtype, (high - low) // item)
    return Frames(flat, [(frame_pitch, array.strides[-3] // item, *array.shape[-3:-1], *place)], True)


def _together(arrays, places, stream):
    """`Frames` of images of many sizes, each with its place in the target.

    NumPy arrays go to the device in one copy, their rows padded to words. On a GPU device arrays stay where they are:
    the flat array reaches from the first of them to the last, and nothing is touched of what lies between. The emulator
    has no memory between its arrays; they are copied there.
    """
    dtype = dtype_of(arrays[0])
    if cuda.is_cuda_array(arrays[0]) and on_gpu():
        spans = [span(array) for array in arrays]
        low, high = min(start for start, _ in spans), max(stop for _, stop in spans)
        lowest = next(array for array, (start, _) in zip(arrays, spans, strict=True) if start == low)
        flat = window(lowest, dtype, (high - low) // dtype.itemsize)
        starts = [(start - low) // dtype.itemsize for start, _ in spans]
        pitches = [array.strides[0] // dtype.itemsize for array in arrays]
    else:
        hosts = [array.copy_to_host() if cuda.is_cuda_array(array) else array for array in arrays]
        pitches = [-(-CHANNELS * host.shape[1] // 4) * 4 for host in hosts]
        sizes = [host.shape[0] * pitch for host, pitch in zip(hosts, pitches, strict=True)]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        packed = np.zeros(sum(sizes), dtype)
        for host, start, size, pitch in zip(hosts, starts, sizes, pitches, strict=True):
            rows = packed[start : start + size].reshape(-1, pitch)
            rows[:, : CHANNELS * host.shape[1]] = host.reshape(host.shape[0], -1)
        flat = cuda.to_device(packed, stream=stream)
    fields = [
        (start, pitch, *array.shape[:2], *place)
        for array, start, pitch, place in zip(arrays, starts, pitches, places, strict=True)
    ]
    return Frames(flat, fields, False)
