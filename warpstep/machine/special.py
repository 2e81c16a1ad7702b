"""Functions of libdevice that neither NumPy nor the math module has, for NumPy scalars and arrays of lanes."""

import ctypes
import functools
import math
import operator
import os
from fractions import Fraction

import numpy as np

from warpstep.machine.arithmetic import by_element, fma

# -- directed rounding -------------------------------------------------------------------------------------------------

#: By operation: its result rounded to nearest, and the sign of how far the true result lies above a value.
_OPERATIONS = {
    "add": (operator.add, lambda value, a, b: a + b - value),
    "sub": (operator.sub, lambda value, a, b: a - b - value),
    "mul": (operator.mul, lambda value, a, b: a * b - value),
    "div": (operator.truediv, lambda value, a, b: a / b - value),
    "fma": (fma, lambda value, a, b, c: a * b + c - value),
    "sqrt": (np.sqrt, lambda value, a: a - value * value),
    "rcp": (np.reciprocal, lambda value, a: 1 / a - value),
    "float": (lambda a: a.astype(np.float32), lambda value, a: a - value),
    "double": (lambda a: a.astype(np.float64), lambda value, a: a - value),
}
#: By operation: the two numbers whose sum is zero where the result is.
_TERMS = {
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, -b),
    "fma": lambda a, b, c: (math.copysign(1, a) * b, c),
}


def rounded(operation, mode, *args):
    """Compute with a result that is rounded down ("rd"), up ("ru") or towards zero ("rz")."""
    lanes = np.broadcast_arrays(*args)
    nearest, above = _OPERATIONS[operation]
    result = np.array(nearest(*lanes))
    flat = result.reshape(-1)
    for lane, values in enumerate(zip(*(a.reshape(-1).tolist() for a in lanes), strict=True)):
        if not math.isnan(flat[lane]) and all(map(math.isfinite, values)):
            flat[lane] = _rounded(flat[lane], operation, above, mode, values)
    return result if result.ndim else result[()]


def _rounded(value, operation, above, mode, values):
    infinite = value.dtype.type(math.inf)
    if math.isinf(value):
        side = -value if operation not in ("div", "rcp") or values[-1] else 0  # division by zero is exact
    else:
        side = above(Fraction(float(value)), *map(Fraction, values))
    if side > 0 and (mode == "ru" or (mode == "rz" and value < 0)):
        return np.nextafter(value, infinite)
    if side < 0 and (mode == "rd" or (mode == "rz" and value > 0)):
        return np.nextafter(value, -infinite)
    if side == 0 and value == 0 and mode == "rd" and operation in _TERMS:
        first, second = _TERMS[operation](*values)
        return value if math.copysign(1, first) == math.copysign(1, second) else -abs(value)
    return value


# -- the error function ------------------------------------------------------------------------------------------------


def _erfcinv(q):
    if not 0 < q < 2:
        return {0: math.inf, 2: -math.inf}.get(q, math.nan)
    if q > 1:
        return -_erfcinv(2 - q)
    # Winitzki's approximation; Halley's steps then treble the digits.
    log = math.log(q) + math.log(2 - q)
    half = 2 / (math.pi * 0.147) + log / 2
    x = math.sqrt(max(math.sqrt(half * half - log / 0.147) - half, 0.0))
    for _ in range(3):
        root = math.exp(x * x / 2)  # its square would be infinite for subnormal numbers
        step = (q - math.erfc(x)) * root * root * (math.sqrt(math.pi) / 2)
        x -= step / (1 + step * x)
    return x


def _erfinv(x):
    if abs(x) >= 0.5:
        return math.copysign(_erfcinv(1 - abs(x)), x)
    y = x * math.sqrt(math.pi) / 2
    for _ in range(4):
        step = (math.erf(y) - x) * math.exp(y * y) * (math.sqrt(math.pi) / 2)
        y -= step / (1 + step * y)
    return y


def _erfcx(x):
    if x < -27:
        return math.inf
    if x < 10:
        high = float(np.float32(x))  # its square is exact
        return math.exp(high * high) * math.exp((x - high) * (x + high)) * math.erfc(x)
    series = term = 1.0
    for n in range(1, 12):
        term *= -(2 * n - 1) / (2 * x * x)
        series += term
    return series / (x * math.sqrt(math.pi))


erfinv, erfcinv, erfcx = by_element(_erfinv), by_element(_erfcinv), by_element(_erfcx)
normcdfinv = by_element(lambda p: -math.sqrt(2) * _erfcinv(2 * p))

# -- Bessel functions --------------------------------------------------------------------------------------------------


@functools.cache
def _bessel(name):
    """``j0`` and its like, of the C library."""
    windows = os.name == "nt"
    function = getattr(ctypes.CDLL("ucrtbase" if windows else None), "_" * windows + name)
    function.restype = ctypes.c_double
    function.argtypes = [*[ctypes.c_int] * name.endswith("n"), ctypes.c_double]
    return function


def _of_order(name):
    apply = by_element(lambda x, n: _bessel(name)(n, x))
    return lambda n, x: apply(x, n)


j0, j1, y0, y1 = (by_element(lambda x, name=name: _bessel(name)(x)) for name in ("j0", "j1", "y0", "y1"))
jn, yn = _of_order("jn"), _of_order("yn")

# -- the remainder -----------------------------------------------------------------------------------------------------


def remquo(a, b):
    """``math.remainder(a, b)``, and the three lowest bits of the rounded quotient, with its sign."""
    lanes = np.broadcast_arrays(a, b)
    remainders = np.empty(lanes[0].shape, a.dtype)
    quotients = np.zeros(lanes[0].shape, np.int32)
    pairs = zip(*(v.reshape(-1).tolist() for v in lanes), strict=True)
    for lane, (x, y) in enumerate(pairs):
        if not math.isfinite(x) or math.isnan(y) or y == 0:
            remainders.reshape(-1)[lane] = math.nan
            continue
        rest = remainders.reshape(-1)[lane] = math.remainder(x, y)
        whole = 0 if math.isinf(y) else round((Fraction(x) - Fraction(rest)) / Fraction(y))
        quotients.reshape(-1)[lane] = (abs(whole) & 7) * (-1 if whole < 0 else 1)
    return (remainders, quotients) if remainders.ndim else (remainders[()], quotients[()])
