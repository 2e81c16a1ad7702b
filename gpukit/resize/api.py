"""``resize``, ``letterbox`` and ``blob``: check, choose a kernel, launch."""

import functools
import threading
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import (
    Output,
    address_of,
    as_device_array,
    check_alike,
    check_apart,
    check_array,
    configured,
    dtype_of,
    new_like,
    span,
    stream_of,
    to_device,
    window,
)
from gpukit.backend import cuda, float32, on_gpu, types, uint8
from gpukit.launching import Plans, handle_of, layout_of, look, upload
from gpukit.resize import fast as kernels
from gpukit.resize import sampling
from gpukit.resize.placing import (
    CHANNELS,
    MOST_PIXELS,
    Letterbox,
    Placement,
    fill_of,
    placed,
    placement,
    size_of,
    three,
)

__all__ = ["METHODS", "blob", "letterbox", "resize"]

METHODS = ("bilinear", "nearest")
#: Layers of a grid, at most; frames that are alike share them, images of many sizes have a launch for each so many.
MOST_LAYERS = 65535
#: Blocks that a launch should have, before each has more to do: about as many as a large GPU runs at a time.
MANY_BLOCKS = 1600
#: Rows that a thread goes through, if that leaves so many blocks, and if not: by the kernels; as fastest on an H200.
ROWS = {kernels.planes: (4, 1), kernels.pixels: (4, 1), kernels.values: (8, 2)}

#: Of four bytes of an image in one element.
WORD = np.dtype(np.uint32)
SAMPLERS = {np.dtype(np.uint8): sampling.BYTES, np.dtype(np.float32): sampling.FLOATS, WORD: sampling.WORDS}
NEAREST = {np.dtype(np.uint8): sampling.NEAREST, np.dtype(np.float32): sampling.NEAREST, WORD: sampling.NEAREST_WORDS}
DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))
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
    sources = _Sources(image, stream)
    shape = (*sources.batch, *size, CHANNELS)
    sources.check_out(out, shape)
    places = [Placement(1, *size, 0, 0, source) for source in sources.sizes]
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
    sources = _Sources(image, stream)
    shape = (*sources.batch, *size, CHANNELS)
    sources.check_out(out, shape)
    fill = fill_of(fill, sources.dtype)
    places = sources.places(size, center)
    return sources.boxed(_launch(call, sources, places, shape, stream, (fill, int(bool(swap_rb)))), places)


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
    sources = _Sources(image, stream)
    shape = (*sources.batch, CHANNELS, *size)
    sources.check_out(out, shape, dtype)
    fill = fill_of(fill, sources.dtype)
    mean, factor = three("mean", mean, np.float32), three("factor", factor, np.float32)
    further = fill, mean, factor, int(bool(swap_rb))
    places = sources.places(size, center)
    return sources.boxed(_launch(call, sources, places, shape, stream, further, dtype), places)


def _call(image, out, stream, *parameters):
    """A call of `Plans`, by arguments that can be looked up. That of a sequence has no plan: `_launch_where_they_lie`
    has one that serves for other sizes too.
    """
    try:
        return _plans.call((image,), out, stream, _token(parameters, tuple(map(_kinds, parameters))))
    except TypeError:  # something that cannot be hashed: a list or an array for three numbers, or what is refused later
        plain = (tuple(p) if isinstance(p, list | np.ndarray) and np.ndim(p) == 1 else p for p in parameters)
        return _plans.call((image,), out, stream, *plain)


def _kinds(parameter):
    """What tells (4, 5), which is a size, from (4.0, 5.0), which is equal to it and none."""
    return tuple(map(type, parameter)) if type(parameter) is tuple else type(parameter)


@functools.lru_cache(maxsize=1024)
def _token(parameters, kinds):
    """An object that stands for parameters, quicker to look up than they are."""
    return object()


def _boxed(result, image, size, center):
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
    seen : list of (`_Facts`, address of the first byte) or None
        Of a sequence of device arrays that the kernels can read where they lie.
    batch : tuple
        What the shape of the result begins with: () or (N,).
    sizes : list of (int, int)
        Height and width of each of ``images``.
    dtype : NumPy dtype
    """

    def __init__(self, image, stream):
        self.sequence = isinstance(image, list | tuple)
        self.images = list(image) if self.sequence else [image]
        if not self.images:
            raise ValueError("image is an empty sequence; it must hold at least one image")
        self.seen = _seen(self.images, stream) if self.sequence else None
        if self.seen:
            self.dtype, self.sizes = self.seen[0][0].dtype, [facts.size for facts, _ in self.seen]
        else:
            self._check()
            self.dtype = dtype_of(self.images[0])
            self.sizes = [tuple(one.shape[-3:-1]) for one in self.images]
        self.batch = (len(self.images),) if self.sequence else tuple(image.shape[:-3])

    def _check(self):
        for i, one in enumerate(self.images):
            name = self._name(i)
            check_image(name, one, 3 if self.sequence else (3, 4))
            if i:
                check_alike(name, one, "image[0]", self.images[0])

    def _name(self, i):
        return f"image[{i}]" if self.sequence else "image"

    def check_out(self, out, shape, dtype=None):
        if out is None:
            return
        check_array("out", out, len(shape))
        check_alike("out", out, "image", self.images[0], shape, dtype)
        near = range(len(self.images))
        if self.seen:
            low, high = span(out)
            near = [i for i, (facts, start) in enumerate(self.seen) if start < high and low < start + facts.nbytes]
        for i in near:
            check_apart("out", out, **{self._name(i): self.images[i]})

    def places(self, size, center):
        """`Placement` of each."""
        return [placed(source, size, bool(center)) for source in self.sizes]

    def boxed(self, result, places):
        """Letterbox of a result: of a sequence with a tuple of each of its numbers."""
        scales, _, _, tops, lefts, _ = zip(*places, strict=True)
        return Letterbox(result, *((scales, tops, lefts) if self.sequence else (scales[0], tops[0], lefts[0])))


class _Facts(NamedTuple):
    """An image, without where it is: ``pitch`` is the way from row to row, in elements, ``nbytes`` reach from its first
    byte to its last.
    """

    dtype: Any
    size: tuple
    pitch: int
    nbytes: int
    device: int | None


def _seen(images, stream):
    """[(`_Facts`, address), ...] of a sequence, without the cost of the array interface; None if it must be looked at
    closely: for what is to be refused, and for what has to be copied.
    """
    handle, found = handle_of(stream_of(stream)), []
    for image in images:
        seen = look(image, handle)
        facts = seen and _facts(seen[0])
        if not facts or found and (facts.dtype is not found[0][0].dtype or facts.device != found[0][0].device):
            return None
        found.append((facts, seen[1]))
    return found


@functools.lru_cache(maxsize=4096)
def _facts(key):
    """`_Facts` of an image with this key of `look`; None if the kernels do not take it as it is."""
    layout = layout_of(key)
    if layout is None or len(layout[1]) != 3 or layout[0] not in DTYPES:
        return None
    dtype, (rows, columns, channels), (pitch, pixel, value) = layout
    if channels != CHANNELS or not (1 <= rows <= MOST_PIXELS and 1 <= columns <= MOST_PIXELS):
        return None
    item = dtype.itemsize
    if value != item or (pixel != CHANNELS * item and columns > 1) or pitch < 0 or pitch % item:
        return None
    nbytes = (rows - 1) * pitch + columns * CHANNELS * item
    return _Facts(DTYPES[DTYPES.index(dtype)], (rows, columns), pitch // item, nbytes, key[-1])


def check_image(name, image, dimensions):
    """TypeError or ValueError unless an array is an image, or a batch, that the kernels take."""
    check_array(name, image, dimensions, DTYPES)
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
    table : device array, optional
        The fields of frames that are not alike, if they are on the device already.
    """

    flat: Any
    fields: list
    alike: bool
    table: Any = None

    def in_words(self):
        """The same of bytes with four in an element; None if rows do not begin with one, or have no two pixels."""
        if self.flat.dtype != np.uint8:
            return None
        starts = all(start % 4 == 0 and pitch % 4 == 0 for start, pitch, *_ in self.fields)
        if not starts or address_of(self.flat) % 4 or self.flat.size % 4 or any(f[3] < 2 for f in self.fields):
            return None
        fields = [(start // 4, pitch // 4, *rest) for start, pitch, *rest in self.fields]
        return Frames(window(self.flat, np.uint32, self.flat.size // 4), fields, self.alike)

    def geometry(self, stream):
        """What ``of_all`` or ``of_each`` takes."""
        if self.alike:
            return self.fields[0]
        return _table(self.fields, stream) if self.table is None else self.table


def _launch(call, sources, places, shape, stream, further, dtype=None, method="bilinear"):
    """The result of ``planes``, if there is a dtype, or of ``pixels``."""
    stream = stream_of(stream)
    places = [place[1:5] for place in places]
    if sources.seen and on_gpu():
        return _launch_where_they_lie(sources, places, shape, call.out, stream, further, dtype, method)
    result = Output(sources.images[0], shape, call.out, stream, dtype)
    if 0 in shape:
        return result.finish()
    if not sources.sequence:
        frames = alike(_in_rows(sources.images[0], stream), places[0])
        return call.first(launches(frames, result.device, further, dtype, method, stream), result)
    arrays = [_in_rows(image, stream) if cuda.is_cuda_array(image) else image for image in sources.images]
    frames = _together(arrays, places, stream)
    with _tables_lock:
        return call.first(launches(frames, result.device, further, dtype, method, stream), result)


def _launch_where_they_lie(sources, places, shape, out, stream, further, dtype, method):
    """The result of a sequence of device arrays, read where they are.

    The flat array that the kernels take begins with the first of them in memory, and nothing is touched of what lies
    between them. Its size, and theirs, are no part of the plan: only the table that says where they lie is new.
    """
    item = sources.dtype.itemsize
    starts = [start for _, start in sources.seen]
    low = min(starts)
    words = item == 1 and all(not (start % 4 or facts.pitch % 4 or facts.size[1] < 2) for facts, start in sources.seen)
    unit, element, per = (4, WORD, 4) if words else (item, sources.dtype, 1)
    fields = [
        ((start - low) // unit, facts.pitch // per, *facts.size, *place)
        for (facts, start), place in zip(sources.seen, places, strict=True)
    ]
    flat = window(sources.images[starts.index(low)], element, 1)
    if out is None:
        out = new_like(sources.images[0], shape, sources.dtype if dtype is None else dtype, stream)
    with _tables_lock:
        table = _table(fields, stream)
        call = _plans.call((flat, table), out, stream, _token((sources.dtype, method, further), "of each"))
        if call.plan is not None:
            return call.again()
        result = Output(sources.images[0], shape, out, stream, dtype)
        frames = Frames(flat, fields, False, table)
        return call.first(launches(frames, result.device, further, dtype, method, stream), result)


#: From when a table is written to when the launch that reads it is queued no other call may have it.
_tables_lock = threading.Lock()


def _table(fields, stream):
    """The fields of frames as an array on the device, the same memory for as many frames and the same stream."""
    values = np.array(fields, np.int64)
    # The default stream may be one for each thread.
    table = _memory(values.shape, stream, cuda.get_current_device().id, threading.get_ident())
    upload(table, values, stream)
    return table


@functools.lru_cache(maxsize=64)
def _memory(shape, stream, device, thread):
    return cuda.device_array(shape, np.int64)


def launches(frames, target, further, dtype=None, method="bilinear", stream=0):
    """[(configured kernel, arguments), ...] for `Frames` and a contiguous target; the kernels have ``further``."""
    count = target.shape[0] if target.ndim == 4 else 1
    size = target.shape[-2:] if dtype else target.shape[-3:-1]
    frames = frames.in_words() or frames
    sampler = (NEAREST if method == "nearest" else SAMPLERS)[frames.flat.dtype]
    geometry, fields_of = frames.geometry(stream), kernels.of_all if frames.alike else kernels.of_each
    make, across = kernels.planes if dtype else kernels.pixels, -(-size[1] // kernels.SPAN)
    if make is kernels.pixels and frames.flat.dtype.kind == "f":
        make, across = kernels.values, -(-CHANNELS * size[1] // kernels.LANES)
        kernel = make(sampler, fields_of)
    else:
        kernel = make(sampler, NUMBERS[target.dtype], fields_of)
    rows, grid = _grid(ROWS[make], across, size[0], count, frames.alike and make is kernels.pixels)
    together = int(size[1] % 4 == 0 and address_of(target) % (4 * target.dtype.itemsize) == 0)
    found = []
    for first in range(0, count, count if frames.alike else MOST_LAYERS):
        last = count if frames.alike else min(count, first + MOST_LAYERS)
        launch = configured(kernel, (*grid[:2], min(grid[2], last - first)), kernels.BLOCK, stream)
        work = first, last, *size, rows, together
        found.append((launch, (frames.flat, geometry, target.reshape(-1), work, *further)))
    return found


def _grid(rows, across, height, count, share):
    """(rows that a thread goes through, grid).

    With few blocks each thread has few rows, so that every multiprocessor has some to do; with many it has several, and
    with ``share`` those of several frames, so that what it computes about its columns serves for more pixels.
    """
    many, few = rows
    rows = many if across * -(-height // (kernels.WARPS * many)) * count >= MANY_BLOCKS else few
    down = -(-height // (kernels.WARPS * rows))
    layers = min(count, MOST_LAYERS, -(-2 * MANY_BLOCKS // (across * down)) if share else count)
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
