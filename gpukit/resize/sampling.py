"""Where a pixel of the target lies in the source, and how its neighbours are mixed.

The centre of pixel i is at i + 0.5. Pixel x of a target of ``size`` pixels therefore lies at ``(x + 0.5) * n / size -
0.5`` among the n pixels of the source: between two of them, or up to half a pixel beyond the first or the last, which
then counts alone.

1. ``neighbours``: the two source pixels around a place, and the share of the second.
2. ``mix``: four values by their shares, by `mix_floats` or, as OpenCV does it, `mix_bytes`.
3. ``Sampler``: how the fast kernels read the three channels of a place, from elements or from words of four bytes.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from gpukit._numba import overload
from gpukit.backend import cuda, float32, float64, int32, types, uint32, uint64
from gpukit.intrinsics import byte_perm, dp2a_hi, dp2a_lo

__all__ = [
    "BYTES",
    "BYTES_APART",
    "FLOATS",
    "FLOATS_APART",
    "NEAREST",
    "NEAREST_APART",
    "NEAREST_WORDS",
    "ONE",
    "WORDS",
    "Sampler",
    "mix",
    "mix_bytes",
    "mix_floats",
    "neighbours",
    "neighbours_fixed",
]

#: A share of 1 in OpenCV's fixed point.
ONE = 2048
HALF = np.float32(0.5)

# Numba widens integers to 64 bits. The casts take each result back to 32, so that the compiler computes in 32 bits.


@cuda.jit(device=True)
def neighbours(x, n, size):
    """Find the two of n source pixels around target pixel x of ``size``: (first, second, share of the second).

    The place is a fraction with the denominator 2 * size, exact in integers. In float32 it would be off by a ten
    thousandth of a pixel at the far end of a frame of 2000. Its whole part counts from -1.
    """
    x, n, size = uint32(x), uint32(n), uint32(size)
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
    """Weight each of four values by the area opposite to it; x and y are the shares of the right and the lower ones."""
    one = float32(1)
    top = (one - x) * top_left + x * top_right
    low = (one - x) * low_left + x * low_right
    return (one - y) * top + y * low


@cuda.jit(device=True)
def mix_bytes(top_left, top_right, low_left, low_right, x, y):
    """Do the same to bytes in OpenCV's fixed point: shares in 2048ths, and its shifts.

    Float32 would be more exact, but equal to OpenCV's result in 7 pixels of 8 only.
    """
    x_rest = int32(int32(ONE) - x)
    top = int32(int32(x_rest * int32(top_left)) + int32(x * int32(top_right)))
    low = int32(int32(x_rest * int32(low_left)) + int32(x * int32(low_right)))
    return mix_rows(top, low, y)


@cuda.jit(device=True)
def mix_rows(top, low, y):
    """Finish ``mix_bytes`` once each row is mixed, in 2048ths."""
    top = int32(int32(int32(int32(ONE) - y) * int32(top >> 4)) >> 16)
    low = int32(int32(y * int32(low >> 4)) >> 16)
    return int32(int32(int32(top + low) + int32(2)) >> 2)


@cuda.jit(device=True)
def fixed(share):
    """A share in 2048ths."""
    return int32(share * float32(ONE) + HALF)


def mix(top_left, top_right, low_left, low_right, x, y):
    """Mix four values in a kernel: integers by `mix_bytes`, floats by `mix_floats`. Shares are float32."""
    raise TypeError("mix is for kernels: call it from a function under cuda.jit")


@overload(mix)
def _mix_of_type(top_left, top_right, low_left, low_right, x, y):
    """Choose by the type of the values, when a kernel is compiled."""
    return _mix_integers if isinstance(top_left, types.Integer) else mix_floats.py_func


def _mix_integers(top_left, top_right, low_left, low_right, x, y):
    return mix_bytes(top_left, top_right, low_left, low_right, fixed(x), fixed(y))


# -- the three channels of one place ---------------------------------------------------------------


class Sampler(NamedTuple):
    """How a fast kernel samples images of one kind, from a flat array of their elements.

    Attributes
    ----------
    row : device function of (y, n, size, scale)
        (first, second, share): the rows with a share in row y, and the share of the second. ``scale`` is n / size, with
        OpenCV's roundings.
    column : device function of (x, n, size, scale)
        The same of columns, in the form that ``one`` and ``both`` take.
    one : device function of (image, line, column)
        The three channels where one row counts alone. ``line`` is the index of the row's first element.
    both : device function of (image, line, low, column, y)
        The three channels where two rows count; the second begins at ``low`` and has the share y.
    share : Numba type
        Of a row's share, and of a column's.
    mix : device function of (top_left, top_right, low_left, low_right, x, y), optional
        One value of four. For elements that hold one channel.
    apart : int
        Distance in a row between the four pixels of a thread. With 1 it stores them in one access. With 32 the lanes
        of a warp load neighbours, which float32 needs because its pixels are far between.
    """

    row: Any
    column: Any
    one: Any
    both: Any
    share: Any
    mix: Any = None
    apart: int = 1


@cuda.jit(device=True)
def neighbours_exact(x, n, size, _):
    """``neighbours`` in the form of a sampler."""
    return neighbours(x, n, size)


@cuda.jit(device=True)
def neighbours_fixed(x, n, size, _):
    """``neighbours`` with the share in 2048ths."""
    first, second, share = neighbours(x, n, size)
    return first, second, fixed(share)


@functools.cache
def make_column_of_values(place, step=3):
    """Make ``column_of_values(x, n, size, scale)``: (index in a row of the first pixel, of the second, its share).

    From pixel to pixel an index grows by ``step``: 1 in an array that has the channels as its first axis.
    """

    @cuda.jit(device=True)
    def column_of_values(x, n, size, scale):
        first, second, share = place(x, n, size, scale)
        return uint32(uint32(step) * first), uint32(uint32(step) * second), share

    return column_of_values


def three_values(image, line, at):
    """Load the channels of a pixel in a kernel: neighbours in a flat array, or a column of an array of two axes."""
    raise TypeError("three_values is for kernels: call it from a function under cuda.jit")


@overload(three_values)
def _three_values_of(image, line, at):
    """Choose by the array's dimensions, when a kernel is compiled."""
    return _three_neighbours if image.ndim == 1 else _three_of_column


def _three_neighbours(image, line, at):
    i = line + uint64(at)
    return image[i], image[i + uint64(1)], image[i + uint64(2)]


def _three_of_column(image, line, at):
    i = line + uint64(at)
    return image[uint32(0), i], image[uint32(1), i], image[uint32(2), i]


@functools.cache
def make_one_row(mix, share):
    """Make ``one_row(image, line, column)``: two values of each channel, mixed by ``mix_bytes`` or ``mix_floats``."""

    @cuda.jit(device=True)
    def one_row(image, line, column):
        left, right, x = column
        p, q = three_values(image, line, left), three_values(image, line, right)
        none = share(0)
        return (
            mix(p[0], q[0], p[0], q[0], x, none),
            mix(p[1], q[1], p[1], q[1], x, none),
            mix(p[2], q[2], p[2], q[2], x, none),
        )

    return one_row


@functools.cache
def make_both_rows(mix):
    """Make ``both_rows(image, line, low, column, y)``: four values of each channel, mixed by one of those."""

    @cuda.jit(device=True)
    def both_rows(image, line, low, column, y):
        left, right, x = column
        p, q = three_values(image, line, left), three_values(image, line, right)
        r, s = three_values(image, low, left), three_values(image, low, right)
        return mix(p[0], q[0], r[0], s[0], x, y), mix(p[1], q[1], r[1], s[1], x, y), mix(p[2], q[2], r[2], s[2], x, y)

    return both_rows


# -- bytes, four at a time -------------------------------------------------------------------------


@cuda.jit(device=True)
def column_of_words(x, n, size, scale):
    """Locate two neighbouring pixels in words, in images of two columns or more: (begin, more words, late, shares).

    Their bytes begin in word ``begin``, ``late`` bits after its first, and reach into so many more words. ``shares``
    has both shares as the halves of a word. A second pixel without a share is left out.
    """
    first, second, share = neighbours_fixed(x, n, size, scale)
    if first == second:  # beyond the centres at the borders one of the two has no share
        share = int32(0) if first == uint32(0) else int32(ONE)
        first = uint32(max(first, uint32(1)) - uint32(1))
    place = uint32(uint32(3) * first)
    last = uint32(place + (uint32(2) if share == int32(0) else uint32(5)))
    begin = uint32(place >> uint32(2))
    shares = uint32(uint32(share) << uint32(16)) | uint32(int32(ONE) - share)
    late = uint32(uint32(place & uint32(3)) << uint32(3))
    return begin, uint32(uint32(last >> uint32(2)) - begin), late, shares


@cuda.jit(device=True)
def words_across(words, line, column, more):
    """Mix the channels of a pixel with those of its right neighbour, in 2048ths, and add ``more`` to each.

    Words are little-endian: ``head`` gets the first four of the six bytes, ``tail`` the other two. A word that is not
    loaded holds nothing with a share.
    """
    begin, more_words, late, shares = column
    i = line + uint64(begin)
    first = words[i]
    second = words[i + uint64(1)] if more_words > uint32(0) else first
    third = words[i + uint64(2)] if more_words > uint32(1) else second
    head = uint32((uint64(second) << uint64(32) | uint64(first)) >> uint64(late))
    tail = uint32((uint64(third) << uint64(32) | uint64(second)) >> uint64(late))
    two, last = byte_perm(head, tail, 0x4130), byte_perm(head, tail, 0x5252)
    return int32(dp2a_lo(shares, two, more)), int32(dp2a_hi(shares, two, more)), int32(dp2a_lo(shares, last, more))


@cuda.jit(device=True)
def one_row_of_words(words, line, column):
    a, b, c = words_across(words, line, column, uint32(ONE // 2))
    return int32(a >> 11), int32(b >> 11), int32(c >> 11)


@cuda.jit(device=True)
def both_rows_of_words(words, line, low, column, y):
    a, b, c = words_across(words, line, column, uint32(0))
    p, q, r = words_across(words, low, column, uint32(0))
    return mix_rows(a, p, y), mix_rows(b, q, y), mix_rows(c, r, y)


# -- nearest ---------------------------------------------------------------------------------------


@cuda.jit(device=True)
def nearest_place(x, n, size, scale):
    """Find the source pixel under the corner of the target's."""
    first = uint32(float64(x) * scale)
    return first, first, int32(0)


@cuda.jit(device=True)
def one_pixel(image, line, column):
    return three_values(image, line, column[0])


@cuda.jit(device=True)
def first_of_four(a, b, c, d, x, y):
    return a


@cuda.jit(device=True)
def one_pixel_of_both(image, line, low, column, y):
    return three_values(image, line, column[0])


@cuda.jit(device=True)
def nearest_column_of_words(x, n, size, scale):
    """Locate a pixel in words: (begin, more words, late) as in `column_of_words`."""
    first, _, _ = nearest_place(x, n, size, scale)
    place = uint32(uint32(3) * first)
    begin, end = uint32(place >> uint32(2)), uint32(uint32(place + uint32(2)) >> uint32(2))
    return begin, uint32(end - begin), uint32(uint32(place & uint32(3)) << uint32(3))


@cuda.jit(device=True)
def one_pixel_of_words(words, line, column):
    begin, more_words, late = column
    i = line + uint64(begin)
    first = words[i]
    second = words[i + uint64(1)] if more_words > uint32(0) else first
    three = uint32((uint64(second) << uint64(32) | uint64(first)) >> uint64(late))
    low = uint32(255)
    return uint32(three & low), uint32(uint32(three >> uint32(8)) & low), uint32(uint32(three >> uint32(16)) & low)


@cuda.jit(device=True)
def one_pixel_of_words_of_both(words, line, low, column, y):
    return one_pixel_of_words(words, line, column)


#: Bilinear, of uint8 element by element.
BYTES = Sampler(
    row=neighbours_fixed,
    column=make_column_of_values(neighbours_fixed),
    one=make_one_row(mix_bytes, int32),
    both=make_both_rows(mix_bytes),
    share=int32,
)
#: Bilinear, of uint8 as little-endian uint32 words, with a word at the begin of every row.
WORDS = Sampler(
    row=neighbours_fixed, column=column_of_words, one=one_row_of_words, both=both_rows_of_words, share=int32
)
#: Bilinear, of float32.
FLOATS = Sampler(
    row=neighbours_exact,
    column=make_column_of_values(neighbours_exact),
    one=make_one_row(mix_floats, float32),
    both=make_both_rows(mix_floats),
    share=float32,
    mix=mix_floats,
    apart=32,
)
#: The nearest pixel, of elements and of words.
NEAREST = Sampler(
    row=nearest_place,
    column=make_column_of_values(nearest_place),
    one=one_pixel,
    both=one_pixel_of_both,
    share=int32,
    mix=first_of_four,
)
NEAREST_WORDS = Sampler(
    row=nearest_place,
    column=nearest_column_of_words,
    one=one_pixel_of_words,
    both=one_pixel_of_words_of_both,
    share=int32,
)
#: Of arrays with two axes, the channels and the pixels.
BYTES_APART, FLOATS_APART = (
    sampler._replace(column=make_column_of_values(sampler.row, 1)) for sampler in (BYTES, FLOATS)
)
NEAREST_APART = NEAREST._replace(column=make_column_of_values(nearest_place, 1))
