"""The geometry of windows on images, and the checks of the arguments that it follows from."""

from math import gcd
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import check_alike, check_apart, check_array
from gpukit._host.checks import check_sizes
from gpukit.divisors import Divisor, divided, make_divisor
from warpstep.integers import ceil_div
from warpstep.values import check_int, describe, is_int

__all__ = [
    "DTYPES",
    "Divisor",
    "Geometry",
    "check_out",
    "check_shape",
    "check_size",
    "covered",
    "divided",
    "make_divisor",
    "make_geometry",
    "pair",
]

DTYPES = (np.float32, np.float64)
#: Limits of the threads of a launch, and of planes and of pixels along a padded image: indices are unsigned, 32 bits.
MAX_THREADS = 2**31 - 1
MAX_PIXELS = MAX_PLANES = 2**30


class Geometry(NamedTuple):
    """The sizes of images, and where their windows lie, as kernels need them."""

    kernel_h: np.uint32
    kernel_w: Divisor
    stride_h: Divisor
    stride_w: Divisor
    padding_h: np.uint32
    padding_w: np.uint32
    dilation_h: np.uint32
    dilation_w: np.uint32
    # The values of a kernel that cover one pixel are next_h, next_w apart; their windows are back_h, back_w apart.
    next_h: np.uint32
    next_w: np.uint32
    back_h: np.uint32
    back_w: np.uint32
    height: np.uint32
    width: Divisor
    pixels: Divisor  # H W
    out_h: np.uint32
    out_w: Divisor
    positions: Divisor  # OH OW
    taps: Divisor  # KH KW

    @property
    def counts(self) -> tuple[int, int]:
        """KH KW and OH OW."""
        return int(self.taps.value), int(self.positions.value)

    @property
    def rows_read(self) -> int:
        """Rows of an image that lie in windows, at most: strides, or gaps in kernels, may pass over others."""
        apart = int(self.stride_h.value) // int(self.next_h)
        return min(ceil_div(int(self.height), apart), int(self.out_h) * int(self.kernel_h))

    @property
    def is_image(self) -> bool:
        """Whether the columns are the image itself: one window on each pixel, and of that pixel only."""
        steps_of_one = self.stride_h.value == self.stride_w.value == 1 and self.padding_h == self.padding_w == 0
        return bool(self.counts[0] == 1 and steps_of_one)

    @property
    def is_sampled(self) -> bool:
        """Whether windows are single pixels, some rows or columns apart: of an image with these pixels only, each is
        one.
        """
        steps = self.stride_h.value, self.stride_w.value
        return bool(self.counts[0] == 1 and steps != (1, 1) and self.padding_h == self.padding_w == 0)

    @property
    def is_whole(self) -> bool:
        """Whether there is one window, the whole image."""
        no_padding = self.padding_h == self.padding_w == 0
        is_as_large = self.kernel_h == self.height and self.kernel_w.value == self.width.value
        return bool(is_as_large and no_padding and self.counts[1] == 1)

    @property
    def is_symmetric(self) -> bool:
        """Whether no window ends further behind the image than the first one begins before it."""
        down = covered(*map(int, (self.out_h, self.stride_h.value, self.kernel_h, self.dilation_h)))
        across = covered(*map(int, (self.out_w.value, self.stride_w.value, self.kernel_w.value, self.dilation_w)))
        height, width = int(self.height) + 2 * int(self.padding_h), int(self.width.value) + 2 * int(self.padding_w)
        return down <= height and across <= width

    @property
    def out_size(self) -> tuple[int, int]:
        """OH and OW."""
        return int(self.out_h), int(self.out_w.value)

    def sampled(self) -> "Geometry":
        """Make the geometry of images with the pixels of the windows only, where `is_sampled`."""
        return make_geometry(self.out_size, 1, 1, 0, 1)


def make_geometry(
    size: tuple[int, int], kernel_size: Any, stride: Any, padding: Any, dilation: Any, source: str = "x"
) -> Geometry:
    """Check the arguments that windows on images of a size (H, W) follow from, and make their Geometry.

    ``source`` names the argument that the size comes from.
    """
    kernel, stride = pair("kernel_size", kernel_size, 1), pair("stride", stride, 1)
    dilation = pair("dilation", dilation, 1)
    padding, in_all = _padding(padding, kernel, stride, dilation)
    out = []
    for axis, name in enumerate(("rows", "columns")):
        padded, own = size[axis] + in_all[axis], covered(1, stride[axis], kernel[axis], dilation[axis])
        if padded > MAX_PIXELS:
            raise ValueError(
                f"the images of {source} have {padded} {name} with their padding; at most {MAX_PIXELS} are possible"
            )
        if own > padded:
            raise ValueError(
                f"kernel_size is {kernel} with dilation {dilation}, {own} {name}; "
                f"the images of {source} have {padded} with their padding, and one window at least must fit"
            )
        out.append((padded - own) // stride[axis] + 1)
    for name, (first, second) in {"OH OW": out, "H W": size, "KH KW": kernel}.items():
        if first * second > MAX_THREADS:
            raise ValueError(f"{name} is {first} * {second}; it must be at most {MAX_THREADS}")
    # A stride beyond the image is never taken; a divisor must have 32 bits.
    stride, dilation = ([min(n, MAX_PIXELS) for n in steps] for steps in (stride, dilation))
    common = [gcd(*steps) for steps in zip(stride, dilation, strict=True)]
    next_tap = [n // g for n, g in zip(stride, common, strict=True)]
    windows_back = [n // g for n, g in zip(dilation, common, strict=True)]
    numbers = (np.uint32(n) for n in (*padding, *dilation, *next_tap, *windows_back))
    # An image without columns has no rows either, as a divisor must not be 0.
    height, (width, pixels) = (size[0] if size[1] else 0), (max(size[1], 1), max(size[0] * size[1], 1))
    image = np.uint32(height), make_divisor(width), make_divisor(pixels)
    outside = np.uint32(out[0]), make_divisor(out[1]), make_divisor(out[0] * out[1])
    steps, taps = map(make_divisor, stride), make_divisor(kernel[0] * kernel[1])
    return Geometry._make((np.uint32(kernel[0]), make_divisor(kernel[1]), *steps, *numbers, *image, *outside, taps))


def _padding(value, kernel, stride, dilation):
    """Count rows and columns of zeros before the first pixel, and on both sides together."""
    if not isinstance(value, str):
        before = pair("padding", value, 0)
        return before, tuple(2 * n for n in before)
    if value not in ("valid", "same"):
        raise ValueError(f"padding is {describe(value)}; it must be 'valid', 'same', an int or two of them")
    if value == "same" and stride != (1, 1):
        raise ValueError(f"padding is 'same' and stride {stride}; for that, stride must be 1")
    in_all = tuple((n - 1) * gap if value == "same" else 0 for n, gap in zip(kernel, dilation, strict=True))
    return tuple(n // 2 for n in in_all), in_all


def covered(count: int, stride: int, kernel: int, dilation: int) -> int:
    """Count the pixels along an axis, gaps included, that ``count`` neighbouring windows cover."""
    return (count - 1) * stride + (kernel - 1) * dilation + 1


def pair(name: str, value: Any, least: int) -> tuple[int, int]:
    """Convert an int or two of them to two ints, none below ``least``."""
    if not isinstance(value, tuple | list):
        if not is_int(value):
            raise TypeError(f"{name} is {describe(value)}; it must be an int or two of them, {least} or more")
        both = check_int(name, value, least)
        return both, both
    if len(value) != 2:
        raise ValueError(f"{name} is {describe(value)}; it must be an int or two of them")
    return check_int(f"{name}[0]", value[0], least), check_int(f"{name}[1]", value[1], least)


def check_shape(shape: tuple, least: tuple = (1, 1, 0, 0), name: str = "shape") -> tuple[int, int, int, int]:
    """Check N, C, H and W, none of which may be below its least."""
    return check_sizes(name, shape, least, (None,) * 4, "N, C, H, W")


def check_size(name: str, planes: int, **threads: int) -> None:
    """Raise ValueError if there are too many channels in all samples, or threads."""
    if planes > MAX_PLANES:
        raise ValueError(f"{name} is too large: it has {planes} channels in all samples, at most {MAX_PLANES} can be")
    for what, count in threads.items():
        if count > MAX_THREADS:
            raise ValueError(f"{name} is too large: {what} is {count}; it must be at most {MAX_THREADS}")


def check_out(
    out: Any, shape: tuple, name: str, like: Any, dtypes: tuple | None = DTYPES, apart: bool = True, **others: Any
) -> None:
    """Check that ``out``, if it is not None, is like ``like``, of the shape, and apart from it and the others."""
    if out is None:
        return
    check_array("out", out, len(shape), dtypes)
    check_alike("out", out, name, like, shape)
    if apart:
        check_apart("out", out, **{name: like, **others})
