"""Where a letterbox has its picture, and what host functions make of their arguments."""

import functools
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from warpstep.checks import check_int

__all__ = ["CHANNELS", "MOST_PIXELS", "Letterbox", "Placement", "fill_of", "placed", "placement", "size_of", "three"]

CHANNELS = 3
#: Rows or columns of an image, at most: up to here 32 bits hold what ``sampling.neighbours`` computes.
MOST_PIXELS = 32767


class Letterbox(NamedTuple):
    """What ``letterbox`` and ``blob`` give back: the image, target pixels per source pixel, and the first row and
    column of the picture; of a sequence of images a tuple of each of the three, with one item for each image.
    """

    image: Any
    scale: float | tuple
    top: int | tuple
    left: int | tuple


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
    return placed(size_of("source", source), size_of("target", target), bool(center))


@functools.lru_cache(maxsize=1024)
def placed(source, target, center):
    """``placement`` of sizes that are as they must be."""
    (rows, columns), (most_rows, most_columns) = source, target
    scale = min(most_rows / rows, most_columns / columns)
    height, width = max(1, round(rows * scale)), max(1, round(columns * scale))
    top, left = ((most_rows - height) // 2, (most_columns - width) // 2) if center else (0, 0)
    return Placement(scale, height, width, top, left, source)


def size_of(name, size):
    """Height and width of an image as two ints; TypeError or ValueError if they are not as they must be."""
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise TypeError(f"{name} is {size!r}; it must be a tuple of 2 ints, height and width")
    return tuple(check_int(f"{name}[{axis}]", n, 1, MOST_PIXELS) for axis, n in enumerate(size))


def three(name, value, dtype, kind=Real, what="real number"):
    """One number or three as a tuple of three of the dtype; TypeError if they are not of the kind."""
    values = tuple(value) if isinstance(value, tuple | list | np.ndarray) else (value,) * CHANNELS
    if len(values) != CHANNELS or not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
        raise TypeError(f"{name} is {value!r}; it must be one {what} or {CHANNELS} of them")
    return tuple(dtype(v) for v in values)


def fill_of(fill, dtype):
    """``fill`` as three numbers of an image's dtype."""
    if dtype.kind == "f":
        return three("fill", fill, dtype.type)
    values = three("fill", fill, int, Integral, "int")
    if not all(0 <= v <= 255 for v in values):
        raise ValueError(f"fill is {fill!r}; it must be from 0 to 255 for an image of {dtype}")
    return tuple(dtype.type(v) for v in values)
