"""Where a letterbox has its picture, and the checks of sizes, borders and channel values."""

import functools
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.checks import as_numbers
from warpstep.values import check_flag, check_int, check_number, describe

__all__ = [
    "CHANNELS",
    "MAX_PIXELS",
    "Letterbox",
    "Placement",
    "as_fill",
    "as_three",
    "check_size",
    "place",
    "placement",
]

CHANNELS = 3
#: Max rows and columns of an image: up to here ``sampling.neighbours`` fits in 32 bits.
MAX_PIXELS = 32767


class Letterbox(NamedTuple):
    """The result of ``letterbox`` and ``blob``.

    Attributes
    ----------
    image : array
    scale : float
        Target pixels per source pixel. For a sequence of images a tuple, and so are ``top`` and ``left``.
    top, left : int
        First row and column of the picture.
    """

    image: Any
    scale: float | tuple
    top: int | tuple
    left: int | tuple


class Placement(NamedTuple):
    """Where a letterbox has its picture. Maps coordinates to the target and back.

    Points are arrays of shape (..., 2), x and y in pixels, or boxes of shape (..., 4), two points each. As in the boxes
    of detectors, whole numbers are the edges of pixels: pixel i reaches from i to i + 1, its centre is at i + 0.5.

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

    def to_target(self, points: Any) -> np.ndarray:
        """Map source coordinates to the target, in float64; ValueError or TypeError for other shapes."""
        pairs, shape = _pairs(points)
        return (pairs * self._scales() + (self.left, self.top)).reshape(shape)

    def to_source(self, points: Any) -> np.ndarray:
        """Map target coordinates to the source, in float64; those in the border end up outside of the image."""
        pairs, shape = _pairs(points)
        return ((pairs - (self.left, self.top)) / self._scales()).reshape(shape)

    def _scales(self):
        """The scales of x and y: rounded sizes make each a little different from ``scale``."""
        rows, columns = self.source
        return np.array([self.width / columns, self.height / rows])


def _pairs(points):
    points = as_numbers("points", points)
    if points.ndim == 0 or points.shape[-1] not in (2, 4):
        raise ValueError(f"points has shape {points.shape}; it must end in 2 (x, y) or 4 (x, y, x, y)")
    return points.astype(np.float64).reshape(*points.shape[:-1], -1, 2), points.shape


def placement(source: tuple[int, int], target: tuple[int, int], center: bool = True) -> Placement:
    """Compute where ``letterbox`` puts an image.

    Both axes have the same scale, the largest with which the image fits. The size is rounded to whole pixels, at least
    1. If the border of a centred picture is odd, the further row or column is below it or to its right.

    Parameters
    ----------
    source, target : tuple of 2 int
        Height and width of the image and of what it has to fit in, from 1 to ``MAX_PIXELS``.
    center : bool
        False for the top left corner.

    Returns
    -------
    Placement

    Raises
    ------
    TypeError, ValueError
        For another size.

    Examples
    --------
    >>> place = placement((1080, 1920), (640, 640))
    >>> place.height, place.width, place.top, place.left
    (360, 640, 140, 0)
    """
    return place(check_size("source", source), check_size("target", target), check_flag("center", center))


@functools.lru_cache(maxsize=1024)
def place(source: tuple[int, int], target: tuple[int, int], center: bool) -> Placement:
    """``placement`` of sizes that have been checked."""
    (rows, columns), (max_rows, max_columns) = source, target
    scale = min(max_rows / rows, max_columns / columns)
    height, width = max(1, round(rows * scale)), max(1, round(columns * scale))
    top, left = ((max_rows - height) // 2, (max_columns - width) // 2) if center else (0, 0)
    return Placement(scale, height, width, top, left, source)


def check_size(name: str, size: Any) -> tuple[int, int]:
    """Height and width of an image as two ints; TypeError or ValueError for anything else."""
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise TypeError(f"{name} is {describe(size)}; it must be a tuple of 2 ints, height and width")
    height, width = (check_int(f"{name}[{axis}]", n, 1, MAX_PIXELS) for axis, n in enumerate(size))
    return height, width


def as_three(name: str, value: Any, dtype: type, kind: type = Real, what: str = "real number") -> tuple:
    """One number or three as a tuple of three of the dtype; TypeError for another kind."""
    several = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
    values = value if several else (value,) * CHANNELS
    if len(values) != CHANNELS or not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
        raise TypeError(f"{name} is {describe(value)}; it must be one {what} or {CHANNELS} of them")
    with np.errstate(over="ignore"):
        numbers = tuple(dtype(check_number(name, v)) for v in values)
    if any(np.isinf(number) and not np.isinf(v) for number, v in zip(numbers, values, strict=True)):
        raise ValueError(f"{name} is {describe(value)}; it must be within the range of {dtype.__name__}")
    return numbers


def as_fill(fill: Any, dtype: np.dtype) -> tuple:
    """``fill`` as three numbers of an image's dtype."""
    if dtype.kind == "f":
        return as_three("fill", fill, dtype.type)
    values = as_three("fill", fill, int, Integral, "int")
    if not all(0 <= v <= 255 for v in values):
        raise ValueError(f"fill is {describe(fill)}; it must be from 0 to 255 for an image of {dtype}")
    return tuple(dtype.type(v) for v in values)
