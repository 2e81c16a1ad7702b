"""Images as the fast kernels read them: checked, on the device, and described by where each lies.

A batch is read where it is. So are the images of a sequence on a GPU, wherever each of them lies; NumPy images of a
sequence are packed and copied at once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import (
    address_of,
    allocate,
    as_device_array,
    check_alike,
    check_array,
    device_array_of,
    handle_of,
    span,
    stream_of,
    window,
)
from gpukit._host.keys import array_key, layout_of
from gpukit._host.transfers import upload
from gpukit._host.work_memory import state_of
from gpukit.backend import cuda
from gpukit.resize.placing import CHANNELS, MAX_PIXELS
from warpstep.integers import ceil_div

__all__ = [
    "DTYPES",
    "WORD",
    "Frames",
    "Layout",
    "check_image",
    "check_images",
    "from_batch",
    "gather",
    "locate",
    "pack",
    "with_rows",
]

DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))
#: Four bytes of an image in one element.
WORD = np.dtype(np.uint32)


class Frames(NamedTuple):
    """Images on the device, as the fast kernels read them.

    Attributes
    ----------
    flat : device array
        Of the images' elements, or of words of four bytes, with one dimension. With two, of channels and pixels: images
        whose pixels do not follow one another, such as planes.
    geometry : tuple of numbers, or device array of int64
        ``fast.FIELDS`` of frames that are alike, or of each frame: there, the bits of those that are float64. Of frames
        that are alike, ``start`` is the distance from frame to frame. With two dimensions of ``flat``, distances count
        pixels.
    """

    flat: Any
    geometry: Any

    @property
    def alike(self) -> bool:
        return isinstance(self.geometry, tuple)

    @property
    def apart(self) -> bool:
        return self.flat.ndim == 2


def check_image(name: str, image: Any, dimensions: tuple[int, ...]) -> None:
    """TypeError or ValueError unless an array is an image, or a batch, that the kernels take."""
    check_array(name, image, 0, DTYPES, more=True)
    if len(image.shape) not in dimensions or image.shape[-1] != CHANNELS:
        forms = {3: f"(H, W, {CHANNELS})", 4: f"(N, H, W, {CHANNELS})"}
        what = " or ".join(forms[n] for n in dimensions)
        raise ValueError(f"{name} has shape {tuple(image.shape)}; it must be {what}")
    rows, columns, _ = image.shape[-3:]
    if not (1 <= rows <= MAX_PIXELS and 1 <= columns <= MAX_PIXELS):
        what = f"its height and width must be from 1 to {MAX_PIXELS}"
        raise ValueError(f"{name} has shape {tuple(image.shape)}; {what}")


def check_images(images: list) -> None:
    """The same for the images of a sequence, which must be alike."""
    for i, image in enumerate(images):
        check_image(f"image[{i}]", image, (3,))
        if i:
            check_alike(f"image[{i}]", image, "image[0]", images[0])


# -- one array ---------------------------------------------------------------------------------------


def with_rows(image: Any, copy: Callable) -> Any:
    """An image or batch as a device array whose rows have their pixels one after another: itself or a ``copy``."""
    if cuda.is_cuda_array(image):
        array = as_device_array(image)
        if _has_rows(array):
            return array
    return copy(image)


def _has_rows(array):
    """Whether the pixels of each row follow one another."""
    (pixel, value), item = array.strides[-2:], array.dtype.itemsize
    aligned = all(stride >= 0 and stride % item == 0 for stride in array.strides)
    return aligned and value == item and (pixel == CHANNELS * item or array.shape[-2] == 1)


def _channels_apart(array, place):
    """`Frames` of channels and pixels; None if rows or frames are no whole number of pixels from each other."""
    frame = array.strides[0] if len(array.shape) == 4 and array.shape[0] > 1 else 0
    (row, pixel, value), (rows, columns), item = array.strides[-3:], array.shape[-3:-1], array.dtype.itemsize
    if pixel <= 0 or pixel % item or value % item or any(n < 0 or n % pixel for n in (row, frame)):
        return None
    frames = array.shape[0] if frame else 1
    count = ((frames - 1) * frame + (rows - 1) * row) // pixel + columns
    flat = device_array_of((CHANNELS, count), (value, pixel), array.dtype, array)
    return Frames(flat, _with_scales((frame // pixel, row // pixel, rows, columns, *place)))


def from_batch(image: Any, place: Sequence[int], copy: Callable) -> Frames:
    """`Frames` of an image or of a batch of one size; ``place`` is (height, width, top, left) in the target."""
    if cuda.is_cuda_array(image) and not _has_rows(array := as_device_array(image)):
        if found := _channels_apart(array, place):
            return found
    array = with_rows(image, copy)
    low, high = span(array)
    item = array.dtype.itemsize
    pitch = array.strides[0] // item if len(array.shape) == 4 else 0
    flat = window(array, array.dtype, (high - low) // item)
    flat, (geometry,) = _in_words(flat, [(pitch, array.strides[-3] // item, *array.shape[-3:-1], *place)])
    return Frames(flat, _with_scales(geometry))


def _with_scales(fields):
    """Fields with the last two: quotients of sizes, rounded as OpenCV does. A GPU takes long for a division."""
    _, _, rows, columns, height, width, _, _ = fields
    return *fields, 1 / (height / rows), 1 / (width / columns)


def _table(fields):
    """The fields of each frame as int64, with the bits of those that are float64."""
    numbers = [_with_scales(own) for own in fields]
    scales = np.array([own[8:] for own in numbers], np.float64)
    return np.hstack([np.array([own[:8] for own in numbers], np.int64), scales.view(np.int64)])


def _in_words(flat, fields):
    """Bytes as words of four, if every row begins with a word and has two pixels or more; otherwise as they are."""
    starts = all(start % 4 == 0 and pitch % 4 == 0 for start, pitch, *_ in fields)
    if flat.dtype != np.uint8 or not starts or address_of(flat) % 4 or flat.size % 4 or any(f[3] < 2 for f in fields):
        return flat, fields
    return window(flat, WORD, flat.size // 4), [(start // 4, pitch // 4, *rest) for start, pitch, *rest in fields]


# -- images of many sizes ----------------------------------------------------------------------------


class Layout(NamedTuple):
    """An image on the device, apart from its address.

    Attributes
    ----------
    dtype : NumPy dtype
    size : (int, int)
        Height and width.
    pitch : int
        Elements from row to row.
    nbytes : int
        From its first byte to its last.
    device : int or None
    """

    dtype: np.dtype
    size: tuple[int, int]
    pitch: int
    nbytes: int
    device: int | None


def locate(images: list, stream: Any) -> list[tuple[Layout, int]] | None:
    """(layout, address) of device images, without the cost of the array interface.

    None unless the kernels can read all of them where they are: for images that must be copied, and for wrong ones.
    """
    handle, found = handle_of(stream_of(stream)), []
    for image in images:
        key, start = array_key(image, handle) or (None, 0)
        layout = key and _layout(key)
        if not layout or found and (layout.dtype is not found[0][0].dtype or layout.device != found[0][0].device):
            return None
        found.append((layout, start))
    return found


@functools.lru_cache(maxsize=4096)
def _layout(key):
    """`Layout` of an image with this key of `array_key`; None if the kernels cannot read it where it is."""
    layout = layout_of(key)
    if layout is None or len(layout[1]) != 3 or layout[0] not in DTYPES:
        return None
    dtype, (rows, columns, channels), (pitch, pixel, value) = layout
    if channels != CHANNELS or not (1 <= rows <= MAX_PIXELS and 1 <= columns <= MAX_PIXELS):
        return None
    item = dtype.itemsize
    if value != item or (pixel != CHANNELS * item and columns > 1) or pitch < 0 or pitch % item:
        return None
    nbytes = (rows - 1) * pitch + columns * CHANNELS * item
    return Layout(DTYPES[DTYPES.index(dtype)], (rows, columns), pitch // item, nbytes, key[-1])


def gather(images: list, located: list[tuple[Layout, int]], places: list[tuple], stream: Any) -> Frames:
    """`Frames` of device images, read where they are; for a GPU, and under the lock of the stream's state.

    The flat array begins with the first image in memory. Nothing between the images is touched. Their table is the same
    memory for as many images on the stream, so that a call like an earlier one differs in addresses alone.
    """
    dtype = located[0][0].dtype
    starts = [start for _, start in located]
    low, unit, element, per = min(starts), dtype.itemsize, dtype, 1
    if unit == 1 and not any(start % 4 or layout.pitch % 4 or layout.size[1] < 2 for layout, start in located):
        unit, element, per = 4, WORD, 4
    fields = [
        ((start - low) // unit, layout.pitch // per, *layout.size, *place)
        for (layout, start), place in zip(located, places, strict=True)
    ]
    values, buffers = _table(fields), state_of(stream).buffers
    key = cuda.get_current_device().id, f"geometry of {len(fields)} frames"
    table = buffers.get(key)
    if table is None:
        table = buffers[key] = cuda.device_array(values.shape, np.int64)
    upload(table, values, stream)
    return Frames(window(images[starts.index(low)], element, 1), table)


def pack(images: list, places: list[tuple], stream: Any) -> Frames:
    """`Frames` of NumPy images of many sizes: they go to the device in one copy, their rows padded to words.

    Device images are copied to the host first: on the emulator there is no memory between arrays, which `gather` needs.
    """
    hosts = [image.copy_to_host() if cuda.is_cuda_array(image) else image for image in images]
    pitches = [4 * ceil_div(CHANNELS * host.shape[1], 4) for host in hosts]
    sizes = [host.shape[0] * pitch for host, pitch in zip(hosts, pitches, strict=True)]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    flat = allocate("image", (sum(sizes),), hosts[0].dtype, stream)  # refused before broadcast images are copied
    packed = np.zeros(flat.size, flat.dtype)
    for host, start, size, pitch in zip(hosts, starts, sizes, pitches, strict=True):
        rows = packed[start : start + size].reshape(-1, pitch)
        rows[:, : CHANNELS * host.shape[1]] = host.reshape(host.shape[0], -1)
    fields = [
        (start, pitch, *host.shape[:2], *place)
        for host, start, pitch, place in zip(hosts, starts, pitches, places, strict=True)
    ]
    flat.copy_to_device(packed, stream=stream)
    flat, fields = _in_words(flat, fields)
    return Frames(flat, cuda.to_device(_table(fields), stream=stream))
