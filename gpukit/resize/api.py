"""``resize``, ``letterbox`` and ``blob``: check, choose a kernel, launch."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukit._host.arrays import (
    check_alike,
    check_apart,
    check_array,
    check_not_captured,
    device_made_current,
    dtype_of,
    made_current,
    span,
    stream_for,
)
from gpukit._host.call import Problem, call
from gpukit._host.checks import check_dtype
from gpukit._host.new_arrays import new_like
from gpukit._host.transfers import to_device
from gpukit._host.work_memory import state_of
from gpukit.backend import cuda, on_gpu
from gpukit.resize import cost, frames
from gpukit.resize.frames import Frames
from gpukit.resize.placing import CHANNELS, Letterbox, Placement, as_fill, as_three, check_size, place
from warpstep.values import check_choice, check_flag

__all__ = ["METHODS", "blob", "letterbox", "resize"]

METHODS = ("bilinear", "nearest")
PLANES = (np.dtype(np.float32), np.dtype(np.float16))


def resize(
    image: Any,
    size: tuple[int, int],
    method: str = "bilinear",
    *,
    swap_rb: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Resize an image, or each image of a batch (A14).

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3), or sequence of N of shape (H, W, 3)
        uint8 or float32; H and W from 1 to ``MAX_PIXELS``, N also 0. The images of a sequence may differ in size. A
        device array is read where it is, planes viewed as (H, W, 3) and the first three of four channels included, if
        its rows are a whole number of pixels apart. In a sequence, an image whose pixels are apart is copied first.
    size : tuple of 2 int
        Height and width of the result, from 1 to ``MAX_PIXELS``. (OpenCV takes the width first.)
    method : str
        "bilinear": ``cv2.resize`` with INTER_LINEAR, within 1 level for uint8. "nearest": equal to INTER_NEAREST, which
        goes by the corners of pixels and not by their centres. (INTER_NEAREST_EXACT takes the centres; its results
        differ between OpenCV 4 and 5.) Neither averages when it reduces.
    swap_rb : bool
        Exchange the first and the last channel.
    out : array of shape (height, width, 3) or (N, height, width, 3), optional
        Of the same kind and dtype. On the device it must not share memory with ``image``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array
        ``out`` if that was given, otherwise a new array of the same library as ``image``.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind or out of range. Nothing was launched.

    Examples
    --------
    >>> resize(np.zeros((1080, 1920, 3), np.uint8), (540, 960)).shape
    (540, 960, 3)
    """
    settings = _resizing, size, method, swap_rb
    if type(size) is not tuple:
        settings = _settings(*settings)
    if isinstance(image, (list, tuple)):  # noqa: UP038 - a union takes longer
        return _fit_sequence(settings, image, out, stream)[0]
    return call(_batch, (image,), out, stream, settings)


def letterbox(
    image: Any,
    size: tuple[int, int],
    fill: Any = 0,
    center: bool = True,
    swap_rb: bool = True,
    *,
    out: Any = None,
    stream: Any = None,
) -> Letterbox:
    """Fit an image, or each image of a batch, into a size: its aspect ratio is kept, a border fills the rest (A14).

    The picture equals ``resize`` of the whole image to the size that ``placement`` computes. A `Placement` also maps
    coordinates to the target and back.

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3), or sequence of N of shape (H, W, 3)
        As for ``resize``.
    size : tuple of 2 int
        Height and width of the result, from 1 to ``MAX_PIXELS``.
    fill : number or sequence of 3 numbers
        Value of the border, in the channel order of the result; for uint8 ints from 0 to 255.
    center : bool
        False puts the picture in the top left corner.
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
        For an argument of another kind or out of range. Nothing was launched.

    Examples
    --------
    >>> boxed = letterbox(np.zeros((1080, 1920, 3), np.uint8), (640, 640), fill=114)
    >>> boxed.image.shape, boxed.top, boxed.left
    ((640, 640, 3), 140, 0)
    """
    return _boxed(_settings(_letterboxing, size, fill, center, swap_rb), image, out, stream)


def blob(
    image: Any,
    size: tuple[int, int],
    mean: Any = 0,
    factor: Any = 1 / 255,
    fill: Any = 0,
    center: bool = True,
    swap_rb: bool = True,
    *,
    dtype: Any = np.float32,
    out: Any = None,
    stream: Any = None,
) -> Letterbox:
    """Make the input of a network: ``letterbox``, then (value - mean) * factor, in a plane for each channel (A14).

    Conventions are those of ``cv2.dnn.blobFromImage``. With the mean and the deviation of values from 0 to 1, pass 255
    times the mean and 1 / (255 deviation).

    Parameters
    ----------
    image : ndarray or device array, shape (H, W, 3) or (N, H, W, 3), or sequence of N of shape (H, W, 3)
        As for ``resize``.
    size, fill, center, swap_rb
        As for ``letterbox``; ``mean`` and ``factor`` apply to the border too.
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
        For an argument of another kind or out of range. Nothing was launched.

    Examples
    --------
    >>> planes = blob(np.zeros((2, 90, 160, 3), np.uint8), (64, 64)).image
    >>> planes.shape, planes.dtype
    ((2, 3, 64, 64), dtype('float32'))
    """
    settings = _settings(_normalising, size, mean, factor, fill, center, swap_rb, dtype)
    return _boxed(settings, image, out, stream)


# -- what is asked for -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Request:
    """What a call asks for, apart from its images. Requests that are alike are one object, so they compare at no cost.

    Attributes
    ----------
    size : (int, int)
        Height and width of the result.
    method : str
    letterbox : bool
        Keep the aspect ratio.
    center : bool
    fill : number or tuple
        Checked with the image: the border has its dtype.
    swap : int
    mean, factor : tuple of 3 float32, or None
    dtype : NumPy dtype or None
        Of planes; None for pixels.
    """

    size: tuple[int, int]
    method: str
    letterbox: bool
    center: bool
    fill: Any
    swap: int
    mean: tuple | None
    factor: tuple | None
    dtype: np.dtype | None

    def shape(self, batch: tuple) -> tuple:
        """The shape of the result; ``batch`` is () or (N,)."""
        return (*batch, CHANNELS, *self.size) if self.dtype else (*batch, *self.size, CHANNELS)

    def place(self, source: tuple) -> Placement:
        """Where the picture of an image lies in the target."""
        return place(source, self.size, self.center) if self.letterbox else Placement(1, *self.size, 0, 0, source)

    # Planners of `gpukit._host.call`. As methods of the request, `packed` and `gathered` make it a part of a key.

    def batch(self, problem: Problem) -> list[tuple]:
        """The launches for an image, or for a batch of one size."""
        (image,) = problem.inputs
        frames.check_image("image", image, (3, 4))
        shape = self.shape(tuple(image.shape[:-3]))
        if problem.out is not None:
            self.check_out(problem.out, shape, image)
            check_apart("out", problem.out, image=image)
        target = problem.output(shape, self.dtype)
        if 0 in shape:
            return []
        place = self.place(tuple(image.shape[-3:-1]))
        return self._launches(frames.from_batch(image, place[1:5], problem.on_device), target, problem)

    def packed(self, problem: Problem) -> list[tuple]:
        """The launches for images of many sizes that are copied to the device at once."""
        images = problem.inputs
        target = problem.output(self.shape((len(images),)), self.dtype)
        places = [self.place(tuple(image.shape[:2]))[1:5] for image in images]
        return self._launches(frames.pack(images, places, problem.stream), target, problem)

    def gathered(self, problem: Problem) -> list[tuple]:
        """The launches for images of many sizes that are read where they are, by the table of their geometry."""
        target = problem.output(problem.out.shape, dtype_of(problem.out), like=problem.out)
        return self._launches(Frames(*problem.inputs), target, problem)

    def _launches(self, images, target, problem):
        dtype = np.dtype(np.float32 if images.flat.dtype.kind == "f" else np.uint8)
        normalise = () if self.dtype is None else (self.mean, self.factor)
        arguments = as_fill(self.fill, dtype), *normalise, self.swap
        return cost.launches(images, target, arguments, self.dtype is not None, self.method, problem.stream)

    def check_out(self, out: Any, shape: tuple, image: Any) -> None:
        """TypeError or ValueError unless ``out`` is like the result."""
        check_array("out", out, len(shape))
        check_alike("out", out, "image", image, shape, self.dtype)


def _settings(make, *parameters):
    """The function that makes the `Request`, and what a caller passed: the settings of a call.

    Short lists and arrays become tuples, so that calls with them are repeated too.
    """
    if _LISTS.isdisjoint(map(type, parameters)):
        return make, *parameters
    return make, *(tuple(p) if isinstance(p, list | np.ndarray) and _is_short(p) else p for p in parameters)


_LISTS = frozenset({list, np.ndarray})


def _is_short(values):
    """Whether a list or array can be one of two or three numbers."""
    return len(values) <= CHANNELS if isinstance(values, list) else values.ndim == 1 and values.size <= CHANNELS


def _resizing(size, method, swap_rb):
    return _request(size, method, False, False, 0, swap_rb, None, None, None)


def _letterboxing(size, fill, center, swap_rb):
    return _request(size, "bilinear", True, center, fill, swap_rb, None, None, None)


def _normalising(size, mean, factor, fill, center, swap_rb, dtype):
    return _request(size, "bilinear", True, center, fill, swap_rb, mean, factor, dtype)


def _request(*parameters):
    """The `Request` for what a caller passed; always the same one for the same parameters."""
    try:
        return _known_request(parameters, _types(parameters))
    except Exception:  # an argument cannot be hashed, or is refused
        return _checked_request(*parameters)


def _types(parameters):
    """What tells (4, 5), which is a size, from (4.0, 5.0), which is equal to it and none."""
    return tuple([tuple(map(type, p)) if type(p) is tuple else type(p) for p in parameters])


@functools.lru_cache(maxsize=1024)
def _known_request(parameters, _):
    return _checked_request(*parameters)


def _checked_request(size, method, letterbox, center, fill, swap, mean, factor, dtype):
    size = check_size("size", size)
    check_choice("method", method, METHODS)
    center, swap = check_flag("center", center), check_flag("swap_rb", swap)
    if any(value is not None for value in (mean, factor, dtype)):
        dtype = check_dtype("dtype", dtype, PLANES)
        mean, factor = as_three("mean", mean, np.float32), as_three("factor", factor, np.float32)
    return Request(size, method, letterbox, center, fill, int(swap), mean, factor, dtype)


# -- from images to launches -----------------------------------------------------------------------


def _batch(problem):
    """The launches for an image, or for a batch of one size."""
    make, *parameters = problem.settings
    return make(*parameters).batch(problem)


def _boxed(settings, image, out, stream):
    """The result with its place, or places."""
    if isinstance(image, (list, tuple)):  # noqa: UP038
        result, sizes = _fit_sequence(settings, image, out, stream)
        places = [_place(size, *settings) for size in sizes]
        return Letterbox(result, *(tuple(getattr(p, name) for p in places) for name in ("scale", "top", "left")))
    result = call(_batch, (image,), out, stream, settings)
    try:
        found = _place(image.shape[-3:-1], *settings)
    except TypeError:  # a setting cannot be hashed
        found = _place.__wrapped__(image.shape[-3:-1], *settings)
    return Letterbox(result, found.scale, found.top, found.left)


@functools.lru_cache(maxsize=1024)
def _place(source, make, *parameters):
    """Where the picture of an image of this size lies in the target of a call that has been made."""
    return make(*parameters).place(tuple(source))


def _fit_sequence(settings, images, out, stream):
    """The result for images of many sizes, and a list of their sizes."""
    make, *parameters = settings
    request, images = make(*parameters), list(images)
    if not images:
        raise ValueError("image is an empty sequence; it must hold at least one image")
    if device := device_made_current((*images, out)):
        with device:
            return _fit_sequence(settings, images, out, stream)
    given, stream = stream, stream_for(stream, images[0])
    check_not_captured(stream, "a sequence of images needs a table, which is copied from the host")
    if out is None and given is not None and (current := made_current(given, images[0])):
        with current:
            return _fit_sequence(settings, images, out, given)
    like, located = images[0], frames.locate(images, stream)
    if located is None:
        frames.check_images(images)
        if cuda.is_cuda_array(like):
            images = [frames.with_rows(image, functools.partial(to_device, stream=stream)) for image in images]
            located = frames.locate(images, stream)
    sizes = [tuple(image.shape[:2]) for image in images] if located is None else [layout.size for layout, _ in located]
    shape = request.shape((len(images),))
    if out is not None:
        request.check_out(out, shape, like)
        _check_apart(out, images, located or [])
    if located is None or not on_gpu():
        return call(request.packed, tuple(images), out, stream), sizes
    if out is None:
        out = new_like(like, shape, request.dtype or located[0][0].dtype, stream)
    with state_of(stream).lock:
        gathered = frames.gather(images, located, [request.place(size)[1:5] for size in sizes], stream)
        return call(request.gathered, tuple(gathered), out, stream), sizes


def _check_apart(out, images, located):
    """ValueError if ``out`` shares memory with one of the images; only those near it are looked at closely."""
    low, high = span(out) if located else (0, 0)
    for i, (layout, start) in enumerate(located):
        if start < high and low < start + layout.nbytes:
            check_apart("out", out, **{f"image[{i}]": images[i]})
