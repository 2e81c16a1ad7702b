"""Windows on images: where they lie, and the checks of everything that this follows from."""

from math import gcd
from typing import NamedTuple

import numpy as np

from gpukit._host.arrays import check_alike, check_apart, check_array
from gpukit.backend import cuda, uint32, uint64
from warpstep.checks import check_int

__all__ = ["DTYPES", "Divisor", "Windows", "check_out", "check_shape", "check_size", "divided", "pair", "windows"]

DTYPES = (np.float32, np.float64)
#: Threads of a row of blocks, and planes or pixels along a padded image: indices have 32 bits and no sign.
MOST_THREADS = 2**31 - 1
MOST_PIXELS = MOST_PLANES = 2**30


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
    # Of the values of a kernel that meet a pixel the next is so many further, in a window so many before.
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
    def counts(self):
        """KH KW and OH OW."""
        return int(self.taps.value), int(self.positions.value)

    @property
    def is_image(self):
        """Whether the columns are the image itself: windows of one pixel, one on each."""
        steps_of_one = self.stride_h.value == self.stride_w.value == 1 and self.padding_h == self.padding_w == 0
        return bool(self.counts[0] == 1 and steps_of_one)

    @property
    def out_size(self):
        """OH and OW."""
        return int(self.out_h), int(self.out_w.value)


@cuda.jit(device=True)
def divided(n, by):
    """Quotient and remainder of n < 2^31 by a Divisor."""
    quotient = uint32(uint64(n) * uint64(by.factor) >> uint64(by.shift))
    return quotient, uint32(n - quotient * by.value)


def divisor(value):
    """The Divisor that is exact for every number below 2^31.

    With 2^s the power of 2 that is not below value, the factor is 2^(31 + s) / value rounded up, by less than 1. Times
    n < 2^31 that is less than 2^31, and 2^(31 + s) / value, by which quotients of neighbours differ, is not less.
    """
    shift = 31 + (value - 1).bit_length()
    return Divisor(np.uint32(value), np.uint32(-(-(1 << shift) // value)), np.uint32(shift))


def windows(size, kernel_size, stride, padding, dilation):
    """The Windows of images of a size (H, W), after a check of all that they follow from."""
    kernel = pair("kernel_size", kernel_size, 1)
    stride, padding, dilation = pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)
    out = []
    for axis, name in enumerate(("rows", "columns")):
        padded, covered = size[axis] + 2 * padding[axis], dilation[axis] * (kernel[axis] - 1) + 1
        if padded > MOST_PIXELS:
            raise ValueError(f"the images have {padded} {name} with their padding; at most {MOST_PIXELS} are possible")
        if covered > padded:
            raise ValueError(
                f"kernel_size is {kernel} with dilation {dilation}, {covered} {name}; "
                f"the images have {padded} with their padding, and one window at least must fit"
            )
        out.append((padded - covered) // stride[axis] + 1)
    for name, (first, second) in {"OH OW": out, "H W": size, "KH KW": kernel}.items():
        if first * second > MOST_THREADS:
            raise ValueError(f"{name} is {first} * {second}; it must be at most {MOST_THREADS}")
    # A stride beyond the image is never taken; a divisor must have 32 bits.
    stride, dilation = ([min(n, MOST_PIXELS) for n in steps] for steps in (stride, dilation))
    common = [gcd(*steps) for steps in zip(stride, dilation, strict=True)]
    meet = [n // g for steps in (stride, dilation) for n, g in zip(steps, common, strict=True)]
    numbers = (np.uint32(n) for n in (*padding, *dilation, *meet))
    # No row of an image without columns has a pixel, and a divisor is not 0.
    image = np.uint32(size[0] if size[1] else 0), divisor(max(size[1], 1)), divisor(max(size[0] * size[1], 1))
    outside = np.uint32(out[0]), divisor(out[1]), divisor(out[0] * out[1])
    steps, taps = map(divisor, stride), divisor(kernel[0] * kernel[1])
    return Windows(np.uint32(kernel[0]), divisor(kernel[1]), *steps, *numbers, *image, *outside, taps)


def pair(name, value, least):
    """An int or two of them as two ints, none below ``least``."""
    if not isinstance(value, tuple | list):
        return (check_int(name, value, least),) * 2
    if len(value) != 2:
        raise ValueError(f"{name} is {value!r}; it must be an int or two of them")
    return tuple(check_int(f"{name}[{axis}]", n, least) for axis, n in enumerate(value))


def check_shape(shape, least=(1, 1, 0, 0), name="shape"):
    """``shape`` as N, C, H, W, none of which is less than its least."""
    if len(shape) != 4:
        raise ValueError(f"{name} is {tuple(shape)}; it must be N, C, H, W")
    return [check_int(f"{name}[{axis}]", n, few) for axis, (n, few) in enumerate(zip(shape, least, strict=True))]


def check_size(name, planes, threads):
    """ValueError if there are too many channels in all samples, or threads of what ``threads`` names."""
    if planes > MOST_PLANES:
        raise ValueError(f"{name} is too large: it has {planes} channels in all samples, at most {MOST_PLANES} can be")
    for what, count in threads.items():
        if count > MOST_THREADS:
            raise ValueError(f"{name} is too large: {what} is {count}; it must be at most {MOST_THREADS}")


def check_out(out, shape, name, like, dtypes=DTYPES, apart=True, **others):
    """``out`` is as ``like``, of the shape, and apart from it and the others, or it is None."""
    if out is None:
        return
    check_array("out", out, len(shape), dtypes)
    check_alike("out", out, name, like, shape)
    if apart:
        check_apart("out", out, **{name: like}, **others)
