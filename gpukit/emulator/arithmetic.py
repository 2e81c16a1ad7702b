"""Scalar operations with the device's results, for NumPy scalars and arrays of lanes alike.

Only what a plain NumPy operator does not already do as the device does it stands here.
"""

import math

import numpy as np

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def select(condition, if_true, if_false):
    """``if_true if condition else if_false`` by lane; both are values."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, if_true, if_false)
    return if_true if condition else if_false


def float_to_int(value, dtype):
    """Truncate towards zero and saturate at the ends of the integer type, NaN to 0: what the device's cvt does.

    Types of less than 32 bits are converted to 32 bits first and then wrap.
    """
    dtype = np.dtype(dtype)
    if dtype.itemsize < 4:
        return float_to_int(value, np.int32 if dtype.kind == "i" else np.uint32).astype(dtype)
    value = np.asarray(value)
    if value.dtype == np.float16:
        value = value.astype(np.float32)
    limits = np.iinfo(dtype)
    # The largest integer is not a float of the same width: compare with the power of two above it.
    top = value.dtype.type(2.0) ** (dtype.itemsize * 8 - (dtype.kind == "i"))
    inside = np.where(
        (value > limits.min - 1.0 if dtype.itemsize == 4 else value >= limits.min) & (value < top), value, 0
    )
    result = np.trunc(inside).astype(dtype)
    result = np.where(value >= top, dtype.type(limits.max), result)
    result = np.where(value <= limits.min, dtype.type(limits.min), result)
    return result if result.ndim else result[()]


def to_index(value):
    """A uint64 index as int64, without wrapping to a negative one."""
    return np.minimum(value, np.uint64(1 << 62)).astype(np.int64)


def power_int(base, exponent):
    """``base ** exponent`` for integers of one type, as Numba computes it.

    By squaring, wrapping; 0 ** negative is the smallest integer.
    """
    base, exponent = np.broadcast_arrays(base, exponent)
    dtype = base.dtype
    left = np.abs(exponent) if exponent.dtype.kind == "i" else exponent.copy()
    result, square = np.ones(base.shape, dtype), base.copy()
    while (left != 0).any():
        result = np.where(left & left.dtype.type(1), result * square, result)
        square = square * square
        left = left >> left.dtype.type(1)
    negative = exponent < 0
    if negative.any():
        one = (base == 1) | (base == dtype.type(-1) if dtype.kind == "i" else False)
        inverse = np.where(one, result, dtype.type(0))
        inverse = np.where(base == 0, np.array(-1 << (dtype.itemsize * 8 - 1), np.int64).astype(dtype), inverse)
        result = np.where(negative, inverse, result)
    return result if result.ndim else result[()]


def power_float_int(base, exponent):
    """A float to a variable integer power, by squaring in the float's type."""
    base, exponent = np.broadcast_arrays(base, exponent)
    left = np.abs(exponent)
    result, square = np.ones(base.shape, base.dtype), base.copy()
    while (left != 0).any():
        result = np.where(left & left.dtype.type(1), result * square, result)
        square = square * square
        left = left >> left.dtype.type(1)
    result = np.where(exponent < 0, base.dtype.type(1) / result, result)
    return result if result.ndim else result[()]


def power_constant(base, exponent):
    """A value to a constant integer power, with the multiplications in Numba's order."""
    one = base.dtype.type(1)
    result, square, left = one, base, abs(exponent)
    while left:
        if left & 1:
            result = result * square
        left >>= 1
        if left:
            square = square * square
    if exponent >= 0:
        return result
    if base.dtype.kind == "f":
        return one / result
    return power_int(base, base.dtype.type(exponent))


def popc(value):
    return np.bitwise_count(_unsigned(value)).astype(value.dtype)


def brev(value):
    """Bits in reverse order (uint32, uint64)."""
    bits = value.dtype.itemsize * 8
    result = np.zeros_like(value)
    for bit in range(bits):
        result = result | (((value >> value.dtype.type(bit)) & value.dtype.type(1)) << value.dtype.type(bits - 1 - bit))
    return result


def clz(value):
    """Leading zero bits."""
    bits = value.dtype.itemsize * 8
    left = _unsigned(value)
    for shift in (32, 16, 8, 4, 2, 1):
        if shift < bits:
            left = left | (left >> left.dtype.type(shift))
    return (bits - np.bitwise_count(left)).astype(value.dtype)


def ffs(value):
    """Position of the lowest set bit, counted from 1; 0 if there is none."""
    unsigned = _unsigned(value)
    lowest = unsigned & (~unsigned + unsigned.dtype.type(1))
    below = np.bitwise_count(lowest - lowest.dtype.type(1))
    return np.where(unsigned == 0, 0, below + 1).astype(np.uint32)[()]


def _unsigned(value):
    return value.view(_UNSIGNED[value.dtype.itemsize])


def bitcast(value, dtype):
    """The same bits as another type of the same size."""
    return value.view(dtype)


def fma(a, b, c):
    """a * b + c with one rounding.

    Float32 through float64 (the product is exact there); float64 through long double, within half a unit more.
    """
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    wide = np.longdouble
    return (np.asarray(a).astype(wide) * np.asarray(b).astype(wide) + np.asarray(c).astype(wide)).astype(np.float64)[()]


def by_element(function):
    """A scalar function of the math module over lanes, for what NumPy has no ufunc for."""

    def apply(*args):
        dtype = args[0].dtype
        if not any(isinstance(a, np.ndarray) for a in args):
            return dtype.type(_guarded(function, *(a.item() for a in args)))
        lanes = np.broadcast_arrays(*args)
        flat = [a.reshape(-1).tolist() for a in lanes]
        result = np.array([_guarded(function, *values) for values in zip(*flat, strict=True)], np.float64)
        return result.reshape(lanes[0].shape).astype(dtype)

    return apply


def _guarded(function, *args):
    try:
        return function(*args)
    except (ValueError, ZeroDivisionError):
        return math.nan
    except OverflowError:
        return math.inf


erf = by_element(math.erf)
erfc = by_element(math.erfc)
gamma = by_element(lambda x: math.inf if x == 0 else math.gamma(x))
lgamma = by_element(lambda x: math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x))
remainder = by_element(math.remainder)


def frexp(value):
    fraction, exponent = np.frexp(value)
    return fraction, exponent.astype(np.int32)


def modf(value):
    fraction, whole = np.modf(value)
    return fraction, whole


def round_digits(value, digits):
    """``round(x, n)`` as Numba computes it: scaled in float64, half to even."""
    wide = np.asarray(value).astype(np.float64)
    shift = np.asarray(digits).astype(np.float64)
    first, second = 10.0 ** np.abs(np.where(shift > 22, shift - 22, shift)), np.where(shift > 22, 1e22, 1.0)
    scaled = np.where(shift >= 0, wide * first * second, wide / first)
    whole = np.rint(scaled)
    result = np.where(shift >= 0, whole / second / first, whole * first)
    result = np.where(np.isfinite(wide) & np.isfinite(scaled), result, wide).astype(value.dtype)
    return result if result.ndim else result[()]


def make_complex(real, imaginary):
    """A complex number from its parts; a sum would turn inf into NaN."""
    dtype = np.result_type(real.dtype, np.complex64)
    result = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), dtype)
    result.real, result.imag = real, imaginary
    return result if result.ndim else result[()]


def choose(items, index):
    """``items[index]`` of a homogeneous tuple; the index may differ by thread and is in range."""
    if not isinstance(index, np.ndarray):
        return items[int(index)]
    result = items[0]
    for i in range(1, len(items)):
        result = np.where(index == i, items[i], result)
    return result


def range_length(start, stop, step):
    """Turns of a ``range`` (int64); its ends and step may differ by thread. The distance is taken modulo 2**64."""
    if not any(isinstance(v, np.ndarray) for v in (start, stop, step)):
        return np.int64(len(range(int(start), int(stop), int(step))))
    first, last, stride = (np.asarray(v).astype(np.int64).view(np.uint64) for v in (start, stop, step))
    up, down = (step > 0) & (start < stop), (step < 0) & (start > stop)
    one = np.uint64(1)
    upward = (last - first - one) // np.where(step > 0, stride, one) + one
    downward = (first - last - one) // np.where(step < 0, -stride, one) + one
    return np.where(up, upward, np.where(down, downward, np.uint64(0))).astype(np.int64)


def range_next(state):
    """(value, whether there is one, state after it) of a range: (next value, turns left, step)."""
    current, left, step = state
    return current, left > 0, (current + step, left - np.int64(1), step)
