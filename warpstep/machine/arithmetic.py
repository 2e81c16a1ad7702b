"""Scalar operations whose results on the device differ from NumPy's, for NumPy scalars and arrays of lanes."""

import math

import numpy as np

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def select(condition, if_true, if_false):
    """``if_true if condition else if_false`` by lane."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, if_true, if_false)
    return if_true if condition else if_false


def float_to_int(value, dtype):
    """Convert a float to an integer as the device's cvt does: truncate towards zero, saturate at the type's limits.

    Types of 8 bits are converted to 16 bits first and then wrap. A half saturates at 8 bits, and is rounded to the
    nearest integer, for Numba converts it with CUDA's ``__half2int_rn``. NaN gives 0, but the most negative bit pattern
    where 64 bits are involved.
    """
    dtype = np.dtype(dtype)
    if dtype.itemsize == 1 and value.dtype != np.float16:
        return float_to_int(value, f"{dtype.kind}2").astype(dtype)
    value = np.asanyarray(value)
    wide = 8 in (value.dtype.itemsize, dtype.itemsize)
    value = np.rint(value).astype(np.float32) if value.dtype == np.float16 else np.trunc(value)
    limits = np.iinfo(dtype)
    # The largest integer is not a float of the same width: compare with the power of two above it.
    top = value.dtype.type(2.0) ** (dtype.itemsize * 8 - (dtype.kind == "i"))
    inside = (value >= limits.min) & (value < top)
    result = np.where(inside, value, 0).astype(dtype)
    result = np.where(value >= top, dtype.type(limits.max), result)
    result = np.where(value < limits.min, dtype.type(limits.min), result)
    if wide:
        lowest = np.array(1 << (dtype.itemsize * 8 - 1), f"u{dtype.itemsize}").view(dtype)
        result = np.where(np.isnan(value), lowest, result)
    return result if result.ndim else result[()]


def to_index(value):
    """Convert a uint64 index to int64, without wrapping to a negative one."""
    return np.minimum(value, np.uint64(1 << 62)).astype(np.int64)


def power_int(base, exponent):
    """``base ** exponent`` for integers of one type, as Numba computes it.

    By squaring, wrapping; 0 ** negative is the smallest integer.
    """
    base, exponent = np.broadcast_arrays(base, exponent)
    dtype = base.dtype
    result = _power(base, exponent)
    negative = exponent < 0
    if negative.any():
        one = (base == 1) | (base == dtype.type(-1) if dtype.kind == "i" else False)
        inverse = np.where(one, result, dtype.type(0))
        inverse = np.where(base == 0, np.array(-1 << (dtype.itemsize * 8 - 1), np.int64).astype(dtype), inverse)
        result = np.where(negative, inverse, result)
    return result if result.ndim else result[()]


def power_float_int(base, exponent):
    """Raise a float to a variable integer power, by squaring in the float's type."""
    base, exponent = np.broadcast_arrays(base, exponent)
    result = _power(base, exponent)
    result = np.where(exponent < 0, base.dtype.type(1) / result, result)
    return result if result.ndim else result[()]


def _power(base, exponent):
    """``base ** abs(exponent)`` by squaring, for arrays of one shape."""
    left = _unsigned(np.abs(exponent))  # abs of the smallest integer is itself: its bits are the magnitude
    result, square = np.ones(base.shape, base.dtype), base.copy()
    while (left != 0).any():
        result = np.where(left & left.dtype.type(1), result * square, result)
        square = square * square
        left = left >> left.dtype.type(1)
    return result


def power_constant(base, exponent):
    """Raise a value to a constant integer power, with the multiplications in Numba's order."""
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


def compare_max(first, second):
    """``max`` of floats as Python compares them: the first unless the second is greater."""
    return select(second > first, second, first)


def compare_min(first, second):
    """``min`` of floats as Python compares them: the first unless the second is less."""
    return select(second < first, second, first)


def popc(value):
    return np.bitwise_count(_unsigned(value)).astype(value.dtype)


def brev(value):
    """Reverse the bits (uint32, uint64)."""
    bits = value.dtype.itemsize * 8
    result = np.zeros_like(value)
    for bit in range(bits):
        result = result | (((value >> value.dtype.type(bit)) & value.dtype.type(1)) << value.dtype.type(bits - 1 - bit))
    return result


def to_bfloat16(value):
    """The bits of the nearest bfloat16, ties to even."""
    bits = value.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(value != value, np.uint32(0x7FFF), rounded).astype(np.uint16)


def byte_perm(low, high, selector):
    """Pick four of the eight bytes of two uint32 by the selector's four lowest digits; digits from 8 on pick signs."""
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    result = np.zeros_like(both)
    for place in range(0, 32, 8):
        digit = (selector >> np.uint32(place // 2)) & np.uint32(15)
        byte = (both >> ((digit & np.uint32(7)) * np.uint64(8))) & np.uint64(255)
        sign = (byte >> np.uint64(7)) * np.uint64(255)
        result |= np.where(digit & np.uint32(8), sign, byte) << np.uint64(place)
    return result.astype(np.uint32)


def dot_pair(pair, values, total, first):
    """Add to total the two 16-bit numbers in ``pair`` times bytes ``first`` and ``first + 1`` of ``values``."""
    low = (pair & np.uint32(0xFFFF)) * ((values >> np.uint32(8 * first)) & np.uint32(255))
    return total + low + (pair >> np.uint32(16)) * ((values >> np.uint32(8 * first + 8)) & np.uint32(255))


def dot_bytes(a, b, total):
    """Add to total the products of the four bytes of a and b, signed if they are int32."""
    byte = np.int8 if total.dtype == np.int32 else np.uint8
    for place in range(0, 32, 8):
        first, second = ((value >> value.dtype.type(place)).astype(byte).astype(total.dtype) for value in (a, b))
        total = total + first * second
    return total


def clz(value):
    """Count the leading zero bits."""
    bits = value.dtype.itemsize * 8
    left = _unsigned(value)
    for shift in (32, 16, 8, 4, 2, 1):
        if shift < bits:
            left = left | (left >> left.dtype.type(shift))
    return (bits - np.bitwise_count(left)).astype(value.dtype)


def ffs(value):
    """Find the lowest set bit, counted from 1; 0 if there is none."""
    unsigned = _unsigned(value)
    lowest = unsigned & (~unsigned + unsigned.dtype.type(1))
    below = np.bitwise_count(lowest - lowest.dtype.type(1))
    return np.where(unsigned == 0, 0, below + 1).astype(np.uint32)[()]


def trailing_zeros(value):
    """Count the trailing zero bits; all bits of zero."""
    unsigned = _unsigned(value)
    return np.bitwise_count(~unsigned & (unsigned - unsigned.dtype.type(1))).astype(value.dtype)


def _unsigned(value):
    return value.view(_UNSIGNED[value.dtype.itemsize])


def bitcast(value, dtype):
    """Read the bits as another type of the same size."""
    return value.view(dtype)


def fma(a, b, c):
    """a * b + c with one rounding: float32 through float64, where the product is exact; float64 in two parts."""
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    product = a * b
    total = product + c
    # Add back at the end what the product and the sum lost to rounding (Dekker, Knuth).
    lost_product = _product_error(a, b, product)
    part = total - product
    lost_sum = (product - (total - part)) + (c - part)
    exact = total + (lost_sum + lost_product)
    return select(np.isfinite(exact), exact, total)


def _product_error(a, b, product):
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(value):
    scaled = value * np.float64(134217729.0)  # 2**27 + 1
    high = scaled - (scaled - value)
    return high, value - high


def floor_divide(a, b):
    """``a // b`` of integers; 0 for a division by zero and for the one quotient that overflows."""
    quotient = a // b
    if a.dtype.kind != "i" or not np.any(b == -1):
        return quotient
    return select((b == -1) & (a == np.iinfo(a.dtype).min), a.dtype.type(0), quotient)


def high_product(a, b):
    """Return the upper half of the product of two integers."""
    bits = a.dtype.itemsize * 8
    if bits == 32:
        return (a.astype(f"{a.dtype.kind}8") * b.astype(f"{a.dtype.kind}8")) >> 32
    half, low = a.dtype.type(32), a.dtype.type(0xFFFFFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low, b >> half, b & low
    middle = a_high * b_low + (_unsigned(a_low * b_low) >> np.uint64(32)).astype(a.dtype)
    other = a_low * b_high + (middle & low)
    return a_high * b_high + (middle >> half) + (other >> half)


def string_length(value):
    return np.char.str_len(value).astype(np.int64)[()]


def code_point(value):
    """Return ``ord`` of strings of one character."""
    return np.asanyarray(value).astype("U1").view(np.uint32).astype(np.int32).reshape(np.shape(value))[()]


def divide_towards_zero(a, b):
    """Divide integers as the device's instruction does."""
    return (a - np.fmod(a, b)) // b


def divmod_float(a, b):
    """``divmod(a, b)`` of floats with Numba's steps on the device's remainder.

    The device has no exact remainder: it takes ``a - trunc(a / b) * b``, which is NaN for an infinite ``b``.
    """
    kind = a.dtype.type
    quotient = a / b
    rest = fma(-np.trunc(quotient), b, a)
    whole = (a - rest) / b
    other_sign = (rest != 0) & ((b < 0) != (rest < 0))
    whole = select(other_sign, whole - kind(1), whole)
    zero = select(b < 0, kind(-0.0), kind(0.0))
    rest, plain = select(rest == 0, zero, select(other_sign, rest + b, rest)), rest
    below = np.floor(whole)
    rounded = select(whole - below > kind(0.5), below + kind(1), below)
    floor = select((whole != 0) & ~np.isnan(whole), rounded, whole * whole * a / b)
    return select(b == 0, quotient, floor), select(b == 0, plain, rest)


def floor_divide_float(a, b):
    return divmod_float(a, b)[0]


def modulo_float(a, b):
    return divmod_float(a, b)[1]


def power_float(base, exponent):
    """``base ** exponent`` of floats as C's pow.

    NumPy takes a square root for the exponent 0.5, which differs at -inf and -0.
    """
    result = np.power(base, exponent)
    special = (exponent == 0.5) & (np.isinf(base) | (base == 0))
    return select(special, np.abs(base), result) if np.any(special) else result


def fmax(a, b):
    """The greater of two floats; prefers a number to a NaN, and 0.0 to -0.0."""
    return _where_zeros(np.fmax(a, b), a, b, lambda: select(np.signbit(a), b, a))


def fmin(a, b):
    """The smaller of two floats; prefers a number to a NaN, and -0.0 to 0.0."""
    return _where_zeros(np.fmin(a, b), a, b, lambda: select(np.signbit(a), a, b))


def ordered_ne(a, b):
    """``fp16.hne``: false if either is NaN."""
    return (a < b) | (a > b)


def first_of_zeros(ufunc):
    """Make np.maximum and its like as Numba writes them: of 0.0 and -0.0 the first argument wins."""
    return lambda a, b: _where_zeros(ufunc(a, b), a, b, lambda: a)


def _where_zeros(result, a, b, choose):
    if a.dtype.kind != "f":
        return result
    zeros = (a == 0) & (b == 0)
    return select(zeros, choose(), result) if np.any(zeros) else result


maximum, minimum = first_of_zeros(np.maximum), first_of_zeros(np.minimum)
numpy_fmax, numpy_fmin = first_of_zeros(np.fmax), first_of_zeros(np.fmin)


def by_element(function):
    """Make a function over lanes from a scalar one of the math module, where NumPy has no ufunc."""

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
gamma = by_element(lambda x: math.copysign(math.inf, x) if x == 0 else math.gamma(x))
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
    wide = np.asanyarray(value).astype(np.float64)
    shift = np.asanyarray(digits).astype(np.float64)
    first, second = 10.0 ** np.abs(np.where(shift > 22, shift - 22, shift)), np.where(shift > 22, 1e22, 1.0)
    scaled = np.where(shift >= 0, wide * first * second, wide / first)
    whole = np.rint(scaled) + 0.0  # by way of an integer: there is no -0.0
    result = np.where(shift >= 0, whole / second / first, whole * first)
    result = np.where(np.isfinite(wide) & np.isfinite(scaled), result, wide).astype(value.dtype)
    return result if result.ndim else result[()]


def make_complex(real, imaginary):
    """Make a complex number from its parts; a sum would turn inf into NaN."""
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
    """Count the iterations of a ``range`` (int64) whose ends and step may differ by thread; wraps modulo 2**64."""
    if not any(isinstance(v, np.ndarray) for v in (start, stop, step)):
        return np.int64(len(range(int(start), int(stop), int(step))))
    first, last, stride = (np.asanyarray(v).astype(np.int64).view(np.uint64) for v in (start, stop, step))
    up, down = (step > 0) & (start < stop), (step < 0) & (start > stop)
    one = np.uint64(1)
    upward = (last - first - one) // np.where(step > 0, stride, one) + one
    downward = (first - last - one) // np.where(step < 0, -stride, one) + one
    return np.where(up, upward, np.where(down, downward, np.uint64(0))).astype(np.int64)


def range_next(state):
    """Step over a range, whose state is (next value, iterations left, step): (value, if there is one, next state)."""
    current, left, step = state
    return current, left > 0, (current + step, left - np.int64(1), step)
