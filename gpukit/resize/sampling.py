"""Where a pixel of the target lies in the source, and what is mixed from what lies there.

The centre of pixel i is at i + 0.5. Pixel x of a target of ``size`` pixels therefore lies at ``(x + 0.5) * n / size -
0.5`` among the n pixels of the source: between two of them, or up to half a pixel beyond the first or the last, which
then counts alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.cuda import float32, float64, int32, uint32, uint64

from gpukit.backend import cuda

__all__ = [
    "BYTES",
    "FLOATS",
    "NEAREST",
    "ONE",
    "WORDS",
    "Sampler",
    "mix_bytes",
    "mix_floats",
    "neighbours",
    "neighbours_fixed",
]

ONE = 2048  # as a weight of OpenCV's fixed point
HALF = np.float32(0.5)

# Numba widens integers to 64 bits when it computes with them; the casts to 32 take each result back, and the compiler
# then does the whole in 32 bits.


@cuda.jit(device=True)
def neighbours(x, n, size):
    """(first, second, share): the two of n source pixels around target pixel x of ``size``, and the second's share.

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


# -- mixing ----------------------------------------------------------------------------------------


@cuda.jit(device=True)
def mix_floats(top_left, top_right, low_left, low_right, x, y):
    """Four values, each weighted by the area opposite to it; x and y are the shares of the right and the lower ones."""
    one = float32(1)
    top = (one - x) * top_left + x * top_right
    low = (one - x) * low_left + x * low_right
    return (one - y) * top + y * low


@cuda.jit(device=True)
def mix_bytes(top_left, top_right, low_left, low_right, x, y):
    """The same of bytes in OpenCV's fixed point: shares in 2048ths, and its shifts.

    Float32 would be closer to the truth, and equal to OpenCV's result in 7 pixels of 8 only.
    """
    x_rest, y_rest = int32(int32(ONE) - x), int32(int32(ONE) - y)
    top = int32(int32(x_rest * int32(top_left)) + int32(x * int32(top_right)))
    low = int32(int32(x_rest * int32(low_left)) + int32(x * int32(low_right)))
    top = int32(int32(y_rest * int32(top >> 4)) >> 16)
    low = int32(int32(y * int32(low >> 4)) >> 16)
    return int32(int32(int32(top + low) + int32(2)) >> 2)


@cuda.jit(device=True)
def mix_floats_across(left, right, x):
    """``mix_floats`` where the lower row has no share."""
    return (float32(1) - x) * left + x * right


@cuda.jit(device=True)
def mix_bytes_across(left, right, x):
    """``mix_bytes`` where the lower row has no share."""
    top = int32(int32(int32(int32(ONE) - x) * int32(left)) + int32(x * int32(right)))
    return int32(int32(int32(top >> 9) + int32(2)) >> 2)


# -- the three channels of one place ---------------------------------------------------------------


class Sampler(NamedTuple):
    """How a kernel of ``kernels`` samples images of one kind, from a flat array of their elements.

    Attributes
    ----------
    row, column : device functions of (x, n, size)
        (first, second, share): the rows or columns that count for x, and the share of the second.
    pixel : device function of (image, place, low, beside, x, y)
        The three channels: ``place`` and ``low`` are where in the array the pixels in the first column are, of the
        first row and of the second, ``beside`` the way to the second column, x and y the shares.
    share : Numba type
        Of a share.
    """

    row: Any
    column: Any
    pixel: Any
    share: Any


@cuda.jit(device=True)
def neighbours_fixed(x, n, size):
    """``neighbours`` with the share in 2048ths."""
    first, second, share = neighbours(x, n, size)
    return first, second, int32(share * float32(ONE) + HALF)


@cuda.jit(device=True)
def pixel_bytes(image, place, low, beside, x, y):
    right = place + beside
    left_0, left_1, left_2 = image[place], image[place + uint64(1)], image[place + uint64(2)]
    right_0, right_1, right_2 = image[right], image[right + uint64(1)], image[right + uint64(2)]
    if y == int32(0):  # the same for a whole warp, which then has no need of the lower row
        return (
            mix_bytes_across(left_0, right_0, x),
            mix_bytes_across(left_1, right_1, x),
            mix_bytes_across(left_2, right_2, x),
        )
    right = low + beside
    return (
        mix_bytes(left_0, right_0, image[low], image[right], x, y),
        mix_bytes(left_1, right_1, image[low + uint64(1)], image[right + uint64(1)], x, y),
        mix_bytes(left_2, right_2, image[low + uint64(2)], image[right + uint64(2)], x, y),
    )


@cuda.jit(device=True)
def pixel_floats(image, place, low, beside, x, y):
    right = place + beside
    left_0, left_1, left_2 = image[place], image[place + uint64(1)], image[place + uint64(2)]
    right_0, right_1, right_2 = image[right], image[right + uint64(1)], image[right + uint64(2)]
    if y == float32(0):
        return (
            mix_floats_across(left_0, right_0, x),
            mix_floats_across(left_1, right_1, x),
            mix_floats_across(left_2, right_2, x),
        )
    right = low + beside
    return (
        mix_floats(left_0, right_0, image[low], image[right], x, y),
        mix_floats(left_1, right_1, image[low + uint64(1)], image[right + uint64(1)], x, y),
        mix_floats(left_2, right_2, image[low + uint64(2)], image[right + uint64(2)], x, y),
    )


# -- bytes, four at a time -------------------------------------------------------------------------


@cuda.jit(device=True)
def columns_of_pair(x, n, size):
    """``neighbours_fixed`` with a second column that follows the first: at the borders, one of the two has no share."""
    first, second, share = neighbours_fixed(x, n, size)
    if first == second:
        share = int32(0) if first == uint32(0) else int32(ONE)
        first = uint32(0) if first == uint32(0) else uint32(first - uint32(1))
    return first, uint32(first + uint32(1)), share


@cuda.jit(device=True)
def six_bytes(words, place):
    """The pixel at byte ``place`` and its right neighbour: (the first four bytes, the two after), little-endian."""
    i = place >> uint64(2)
    first, second, third = words[i], words[i + uint64(1)], words[(place + uint64(5)) >> uint64(2)]
    shift = uint64(uint32(uint32(place) & uint32(3)) << uint32(3))
    head = uint32((uint64(second) << uint64(32) | uint64(first)) >> shift)
    tail = uint32((uint64(third) << uint64(32) | uint64(second)) >> shift)
    return head, tail


@cuda.jit(device=True)
def byte_of(word, i):
    return uint32(uint32(word >> uint32(8 * i)) & uint32(255))


@cuda.jit(device=True)
def pixel_words(words, place, low, beside, x, y):
    head, tail = six_bytes(words, place)
    if y == int32(0):
        return (
            mix_bytes_across(byte_of(head, 0), byte_of(head, 3), x),
            mix_bytes_across(byte_of(head, 1), byte_of(tail, 0), x),
            mix_bytes_across(byte_of(head, 2), byte_of(tail, 1), x),
        )
    low_head, low_tail = six_bytes(words, low)
    return (
        mix_bytes(byte_of(head, 0), byte_of(head, 3), byte_of(low_head, 0), byte_of(low_head, 3), x, y),
        mix_bytes(byte_of(head, 1), byte_of(tail, 0), byte_of(low_head, 1), byte_of(low_tail, 0), x, y),
        mix_bytes(byte_of(head, 2), byte_of(tail, 1), byte_of(low_head, 2), byte_of(low_tail, 1), x, y),
    )


# -- nearest ---------------------------------------------------------------------------------------


@cuda.jit(device=True)
def nearest(x, n, size):
    """The source pixel under the corner of the target's, with both of OpenCV's roundings in float64."""
    scale = float64(1) / (float64(size) / float64(n))
    first = uint32(float64(x) * scale)
    return first, first, int32(0)


@cuda.jit(device=True)
def pixel_nearest(image, place, low, beside, x, y):
    return image[place], image[place + uint64(1)], image[place + uint64(2)]


#: Bilinear, of uint8 element by element, of uint8 as uint32 words of little-endian memory (images of two columns or
#: more), of float32; and the nearest pixel of either.
BYTES = Sampler(neighbours_fixed, neighbours_fixed, pixel_bytes, int32)
WORDS = Sampler(neighbours_fixed, columns_of_pair, pixel_words, int32)
FLOATS = Sampler(neighbours, neighbours, pixel_floats, float32)
NEAREST = Sampler(nearest, nearest, pixel_nearest, int32)
