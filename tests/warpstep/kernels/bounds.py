"""Expressions of kernels with their Numba type, their range, and the error that their floating point may have.

Types are asked of Numba's inference. Ranges keep integers where their use is defined (shifts, divisions, indices,
conversions), and floats where an error bound holds. A float that is exact has error 0.
"""

import functools
import math
import operator
import re
from dataclasses import dataclass, replace

from numba import cuda
from numba.cuda import types

from warpstep.compiler.frontend import typing_context

SIGNED = (types.int8, types.int16, types.int32, types.int64)
UNSIGNED = (types.uint8, types.uint16, types.uint32, types.uint64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (types.float32, types.float64)
#: Largest magnitude that a float expression may reach: enough to vary, far from overflow.
LARGEST = {types.float32: 1e6, types.float64: 1e9}
MANTISSA = {types.float32: 24, types.float64: 53}
#: Error of a mathematical function beyond that of its argument, in units of half a last place of its largest value.
FUNCTION_ERROR = 8
#: An expression of nothing but literals.
LITERALS = re.compile(r"(0x[0-9a-f]+|[^a-z])*")


@dataclass(frozen=True)
class Value:
    """An expression: its text, Numba type, range, largest error (floats) and finest bit (exact floats: 2**grain)."""

    text: str
    type: object
    low: float
    high: float
    error: float = 0.0
    grain: int = 0

    @property
    def size(self):
        return max(abs(self.low), abs(self.high))

    @property
    def exact(self):
        return self.error == 0.0

    def named(self, text):
        return replace(self, text=text)


# What Numba makes of it


@functools.cache
def signature(function, *argument_types):
    """(result type, argument types after conversion) that Numba's inference finds for a call, or None."""
    context = typing_context()
    try:
        if getattr(function, "__module__", "").startswith("numba.cuda"):
            callee = context.resolve_getattr(types.Module(cuda), function.__name__)
        else:
            callee = context.resolve_value_type(function)
        found = context.resolve_function_type(callee, argument_types, {})
    except Exception:  # whatever Numba raises for a call that it does not accept
        return None
    return None if found is None else (found.return_type, found.args)


def result_type(function, *values, kind=types.Number):
    """The type of a call with these values; None if Numba refuses it or the type is not of this kind."""
    found = signature(function, *(v.type if isinstance(v, Value) else v for v in values))
    return found[0] if found is not None and isinstance(found[0], kind) else None


@functools.cache
def unified(first, second):
    """The type of a variable that holds both, or None."""
    return typing_context().unify_types(first, second)


# Values of a type


def limits(type_):
    return (0, 1) if type_ == types.boolean else (type_.minval, type_.maxval)


def integer(text, type_, low=None, high=None):
    """An integer or boolean; a range that does not fit the type wraps, so that anything is possible."""
    least, most = limits(type_)
    if low is None or low < least or high > most:
        low, high = least, most
    return Value(text, type_, int(low), int(high))


def boolean(text):
    return integer(text, types.boolean)


def literal(number):
    """An integer literal: int64."""
    return Value(f"({number})" if number < 0 else str(number), types.int64, number, number)


def rounded(text, type_, low, high, error, grain=None):
    """The float result of one rounding. Where the operands are exact, with ``grain``, it is too, if it fits."""
    size = max(abs(low), abs(high))
    if grain is not None and error == 0.0 and size < 2.0 ** (MANTISSA[type_] + grain):
        return Value(text, type_, low, high, 0.0, grain)
    return Value(text, type_, low, high, error + (size + error) * 2.0 ** -MANTISSA[type_])


def converted(value, type_, text=None):
    """The value as another type, as a device converts it; None where that is not defined or not exact enough."""
    text = value.text if text is None else text
    if value.type == type_:
        return value.named(text)
    if type_ == types.boolean:
        return boolean(text) if value.exact else None
    if isinstance(type_, types.Float):
        if isinstance(value.type, types.Float):
            return rounded(text, type_, value.low, value.high, value.error, value.grain)
        return rounded(text, type_, float(value.low), float(value.high), 0.0, 0)
    if isinstance(value.type, types.Float):
        least, most = limits(type_)
        low, high = math.trunc(value.low), math.trunc(value.high)
        return integer(text, type_, low, high) if value.exact and least <= low and high <= most else None
    return integer(text, type_, value.low, value.high)


CAST = {t: f"np.{t}" for t in (*INTEGERS, *FLOATS)} | {types.boolean: "bool"}


def cast(value, type_):
    """The value converted by a call, as ``np.int8(x)``."""
    return converted(value, type_, f"{CAST[type_]}({value.text})")


def as_int64(value):
    return cast(value, types.int64)


def joined(first, second, text):
    """A value that is one or the other; None if either is."""
    if first is None or second is None:
        return None
    low, high = min(first.low, second.low), max(first.high, second.high)
    if not isinstance(first.type, types.Float):
        return integer(text, first.type, low, high)
    return Value(text, first.type, low, high, max(first.error, second.error), min(first.grain, second.grain))


def either(first, second, text, kind):
    """A value that is one or the other of two types, as Numba unifies them; None if the result is not of this kind."""
    type_ = unified(first.type, second.type)
    if type_ is None or not isinstance(type_, kind):
        return None
    return joined(converted(first, type_), converted(second, type_), text)


def merged(outer, ends):
    """The variables after a branch, from those at the end of each arm: {name: Value}."""
    result = {}
    for name in outer if ends else ():
        value = ends[0].get(name)
        for env in ends[1:]:
            value = value and name in env and either(value, env[name], name, object) or None
        if value:
            result[name] = value.named(name)
    return result


# Operators

BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


def product_range(a, b):
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def bit_range(name, a, b):
    """Range of ``a & b`` and its relatives, where the signs are known."""
    if name == "&" and (a.low >= 0 or b.low >= 0):
        return 0, min(v.high for v in (a, b) if v.low >= 0)
    if a.low >= 0 and b.low >= 0:
        return 0, (1 << max(a.high, b.high).bit_length()) - 1
    return None, None


def quotient_range(name, a, b):
    """Range of integer ``//`` and ``%``; by zero they give 0."""
    if name == "//":
        return -a.size, a.size
    return (0, max(b.high - 1, 0)) if b.low >= 0 else (-b.size, b.size)


def integer_binary(name, a, b):
    """``a name b`` for integers and booleans, or None if Numba refuses it or the result is not defined."""
    type_ = result_type(BINARY[name], a, b, kind=(types.Integer, types.Boolean))
    text = f"({a.text} {name} {b.text})"
    if type_ is None or type_ == types.boolean:
        return type_ and boolean(text)
    if name in ("*", "<<") and LITERALS.fullmatch(text):
        return None  # Python folds literals, and Numba refuses those that do not fit
    if name in ("<<", ">>"):
        return shifted(name, text, type_, a, b)
    a, b = converted(a, type_), converted(b, type_)
    if name in ("//", "%"):
        # The quotient of the smallest integer and -1 does not fit.
        if a.low == type_.minval and type_.signed and b.low <= -1 <= b.high:
            return None
        return integer(text, type_, *quotient_range(name, a, b))
    if name in "&|^":
        return integer(text, type_, *bit_range(name, a, b))
    ends = {
        "+": (a.low + b.low, a.high + b.high),
        "-": (a.low - b.high, a.high - b.low),
        "*": product_range(a, b),
    }[name]
    # Numba tells the compiler that signed arithmetic does not overflow: where it does, the result is not defined.
    overflows = type_.signed and not type_.minval <= ends[0] <= ends[1] <= type_.maxval
    return None if overflows else integer(text, type_, *ends)


def contained(name, a, b):
    """``a name b``, with the operands cut to 32 bits if it could overflow."""
    cut = (cast(v, types.int32) if isinstance(v.type, types.Integer) else v for v in (a, b))
    return integer_binary(name, a, b) or integer_binary(name, *cut)


def shifted(name, text, type_, a, b):
    """A shift, by less than the width of the type."""
    if b.low < 0 or b.high >= type_.bitwidth:
        return None
    a = converted(a, type_)
    if name == "<<":
        return integer(text, type_, min(a.low, a.low << b.high), max(a.high, a.high << b.high))
    return integer(text, type_, min(a.low >> b.high, a.low >> b.low), max(a.high >> b.low, a.high >> b.high))


def modulo(value, number):
    """``np.int64(value) % number``: from 0 to number - 1."""
    return integer_binary("%", as_int64(value), literal(number))


def float_binary(name, a, b):
    """``a name b`` where the result is a float, with its error; None if it is refused, too large or not defined."""
    type_ = result_type(BINARY[name], a, b, kind=types.Float)
    if type_ is None:
        return None
    text = f"({a.text} {name} {b.text})"
    a, b = converted(a, type_), converted(b, type_)
    if name in "+-":
        low, high = (a.low + b.low, a.high + b.high) if name == "+" else (a.low - b.high, a.high - b.low)
        result = rounded(text, type_, low, high, a.error + b.error, _grain(min(a.grain, b.grain), a, b))
    elif name == "*":
        error = a.size * b.error + b.size * a.error + a.error * b.error
        result = rounded(text, type_, *product_range(a, b), error, _grain(a.grain + b.grain, a, b))
    elif name == "/":
        result = _quotient(text, type_, a, b)
    else:
        result = _float_floor(name, text, type_, a, b)
    return result if result is not None and result.size <= LARGEST[type_] else None


def _grain(grain, *operands):
    return grain if all(v.exact for v in operands) else None


def _quotient(text, type_, a, b):
    nearest = min(abs(b.low), abs(b.high)) - b.error
    if b.low <= 0 <= b.high or nearest < 1e-3:
        return None
    size = a.size / nearest
    return rounded(text, type_, -size, size, (a.error + size * b.error) / nearest)


def _float_floor(name, text, type_, a, b):
    """``//`` and ``%`` jump: only exact operands, and a divisor that is not 0."""
    if not (a.exact and b.exact) or b.low <= 0 <= b.high:
        return None
    finest = min(a.grain, b.grain)
    if name == "%":
        return rounded(text, type_, -b.size, b.size, 0.0, finest)
    return rounded(text, type_, -a.size / 2.0**finest, a.size / 2.0**finest, 0.0, 0)


# Functions


@dataclass(frozen=True)
class Function:
    """A mathematical function: where it may be used, its range there, and its largest slope."""

    usable: object
    range: object
    slope: object

    def of(self, text, type_, value):
        """The function of a value, with the error that passes through and its own."""
        low, high = (float(end) for end in self.range(value))
        own = FUNCTION_ERROR * max(abs(low), abs(high)) * 2.0 ** -MANTISSA[type_]
        return rounded(text, type_, low, high, self.slope(value) * value.error + own)


def _exp(v):
    return math.exp(v.high)


def _small(v):
    return v.high <= 8


def _positive(v):
    return v.low >= 0.25


def _anywhere(v):
    return v.size <= 1e4


SMOOTH = {
    "sqrt": Function(_positive, lambda v: (0, math.sqrt(v.high)), lambda v: 1.0),
    "sin": Function(_anywhere, lambda v: (-1, 1), lambda v: 1.0),
    "cos": Function(_anywhere, lambda v: (-1, 1), lambda v: 1.0),
    "exp": Function(_small, lambda v: (0, _exp(v)), _exp),
    "expm1": Function(_small, lambda v: (-1, _exp(v)), _exp),
    "log": Function(_positive, lambda v: (-2, abs(math.log(v.high)) + 2), lambda v: 4.0),
    "log1p": Function(lambda v: v.low >= -0.5, lambda v: (-1, abs(math.log1p(v.high)) + 1), lambda v: 2.0),
    "log2": Function(_positive, lambda v: (-2, abs(math.log2(v.high)) + 2), lambda v: 6.0),
    "log10": Function(_positive, lambda v: (-1, abs(math.log10(v.high)) + 1), lambda v: 2.0),
    "atan": Function(_anywhere, lambda v: (-1.6, 1.6), lambda v: 1.0),
    "tanh": Function(_anywhere, lambda v: (-1, 1), lambda v: 1.0),
    "asinh": Function(_anywhere, lambda v: (-v.size, v.size), lambda v: 1.0),
    "erf": Function(_anywhere, lambda v: (-1, 1), lambda v: 1.2),
    "fabs": Function(_anywhere, lambda v: (0, v.size), lambda v: 1.0),
}
#: Functions that jump, for exact floats only.
STEPS = ("floor", "ceil", "trunc")


@dataclass
class Sum:
    """A float variable that a loop adds to: ``acc += e``, or ``acc = acc * 0.5 + e``, which stays bounded."""

    start: Value
    decays: bool
    size: float = 0.0
    error: float = 0.0
    turns: int = 0

    def add(self, value, turns):
        if self.decays:
            self.size, self.error = max(self.size, value.size), max(self.error, value.error)
        else:
            self.size += value.size * turns
            self.error += value.error * turns
        self.turns += turns

    def result(self, name):
        """The variable after the loop."""
        start = self.start
        if not self.turns:
            return start.named(name)
        unit = 2.0 ** -MANTISSA[start.type]
        if self.decays:
            size = max(start.size, 2 * self.size)
            error = start.error + 2 * (self.error + 4 * unit * size)
        else:
            size = start.size + self.size
            error = start.error + self.error + self.turns * unit * 2 * size
        return Value(name, start.type, -size, size, error)
