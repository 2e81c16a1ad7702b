"""Machine code for operations on numbers, with the results of their NumPy form."""

import functools
from typing import Any

import numpy as np

from warpstep.compiler import ops
from warpstep.threadwise.engine import ir
from warpstep.threadwise.table import HANDLERS, constant, handles, is_float, promote
from warpstep.threadwise.ufuncs import call_ufunc
from warpstep.threadwise.values import BOOL, I32, Complex, NotNative, Number, Static, Tuple, llvm_type

# -- arithmetic --------------------------------------------------------------------------------------------------------


def _arithmetic(integer, floating):
    def handler(f, a, b):
        if isinstance(a, Tuple):
            if integer != "add":
                raise NotNative("an operator on tuples")
            return Tuple((*a, *b))
        a, b = promote(f, a, b)
        if isinstance(a, Complex):
            return _COMPLEX[integer](f, a, b)
        if a.dtype.kind == "b":
            raise NotNative("arithmetic on booleans")
        return Number(getattr(f.b, floating if is_float(a) else integer)(a.value, b.value), a.dtype)

    return handler


HANDLERS[ops.ADD.template] = _arithmetic("add", "fadd")
HANDLERS[ops.SUB.template] = _arithmetic("sub", "fsub")
HANDLERS[ops.MUL.template] = _arithmetic("mul", "fmul")


def _complex_add(f, a, b):
    return Complex(f.b.fadd(a.real, b.real), f.b.fadd(a.imag, b.imag), a.dtype)


def _complex_sub(f, a, b):
    return Complex(f.b.fsub(a.real, b.real), f.b.fsub(a.imag, b.imag), a.dtype)


def _complex_mul(f, a, b):
    m = f.b
    real = m.fsub(m.fmul(a.real, b.real), m.fmul(a.imag, b.imag))
    return Complex(real, m.fadd(m.fmul(a.real, b.imag), m.fmul(a.imag, b.real)), a.dtype)


_COMPLEX: Any = {"add": _complex_add, "sub": _complex_sub, "mul": _complex_mul}


@handles(ops.DIV)
def _divide(f, a, b):
    a, b = promote(f, a, b)
    if isinstance(a, Complex):
        return _complex_div(f, a, b)
    if not is_float(a):
        raise NotNative("a true division of integers")
    return Number(f.b.fdiv(a.value, b.value), a.dtype)


def _complex_div(f, a, b):
    """Divide by Smith's method, as NumPy does."""
    m = f.b
    size = 8 * a.part_dtype.itemsize

    def fabs(x):
        return f.call(f"llvm.fabs.f{size}", x.type, [x])

    swap = m.fcmp_ordered("<", fabs(b.real), fabs(b.imag))
    big, small = m.select(swap, b.imag, b.real), m.select(swap, b.real, b.imag)
    ratio = m.fdiv(small, big)
    scale = m.fdiv(ir.Constant(big.type, 1.0), m.fadd(big, m.fmul(small, ratio)))
    real = m.select(swap, m.fadd(m.fmul(a.real, ratio), a.imag), m.fadd(a.real, m.fmul(a.imag, ratio)))
    imag = m.select(swap, m.fsub(m.fmul(a.imag, ratio), a.real), m.fsub(a.imag, m.fmul(a.real, ratio)))
    zero = m.and_(*(m.fcmp_ordered("==", fabs(x), ir.Constant(x.type, 0.0)) for x in (b.real, b.imag)))
    real = m.select(zero, m.fdiv(a.real, fabs(b.real)), m.fmul(real, scale))
    imag = m.select(zero, m.fdiv(a.imag, fabs(b.real)), m.fmul(imag, scale))
    return Complex(real, imag, a.dtype)


@handles(ops.FLOOR_DIVIDE, ops.OPERATORS[ops.operator.floordiv])
def _floor_divide(f, a, b):
    return _floor_divmod(f, a, b)[0]


@handles(ops.OPERATORS[ops.operator.mod])
def _modulo(f, a, b):
    return _floor_divmod(f, a, b)[1]


def _floor_divmod(f, a, b):
    """Divide integers as NumPy: 0 by zero, and 0 for the one quotient that overflows."""
    a, b = promote(f, a, b)
    if a.dtype.kind not in "iu":
        raise NotNative("a floor division of something else than integers")
    m, zero, one = f.b, constant(a, 0), constant(a, 1)
    by_zero = m.icmp_signed("==", b.value, zero)
    if a.dtype.kind == "u":
        divisor = m.select(by_zero, one, b.value)
        quotient = m.select(by_zero, zero, m.udiv(a.value, divisor))
        return Number(quotient, a.dtype), Number(m.select(by_zero, zero, m.urem(a.value, divisor)), a.dtype)
    minus = m.icmp_signed("==", b.value, constant(a, -1))
    special = m.or_(by_zero, minus)
    divisor = m.select(special, one, b.value)
    quotient, rest = m.sdiv(a.value, divisor), m.srem(a.value, divisor)
    below = m.and_(m.icmp_signed("!=", rest, zero), m.icmp_signed("<", m.xor(rest, divisor), zero))
    quotient = m.select(below, m.sub(quotient, one), quotient)
    rest = m.select(below, m.add(rest, divisor), rest)
    lowest = constant(a, -1 << (a.value.type.width - 1))
    overflow = m.icmp_signed("==", a.value, lowest)
    negated = m.select(overflow, zero, m.sub(zero, a.value))
    quotient = m.select(by_zero, zero, m.select(minus, negated, quotient))
    return Number(quotient, a.dtype), Number(m.select(special, zero, rest), a.dtype)


@handles(ops.NEG)
def _negative(f, a):
    if isinstance(a, Complex):
        return Complex(f.b.fneg(a.real), f.b.fneg(a.imag), a.dtype)
    return Number(f.b.fneg(a.value) if is_float(a) else f.b.neg(a.value), a.dtype)


@handles(ops.NOT)
def _not(f, a):
    return Number(f.b.not_(f.cast(a, BOOL).value), BOOL)


@handles(ops.OPERATORS[ops.operator.invert])
def _invert(f, a):
    return Number(f.b.not_(a.value), a.dtype)


def _bitwise(name):
    def handler(f, a, b):
        a, b = promote(f, a, b)
        if a.dtype.kind not in "biu":
            raise NotNative("bits of something else than integers")
        return Number(getattr(f.b, name)(a.value, b.value), a.dtype)

    return handler


HANDLERS[ops.AND.template], HANDLERS[ops.OR.template] = _bitwise("and_"), _bitwise("or_")
HANDLERS[ops.OPERATORS[ops.operator.xor].template] = _bitwise("xor")


@handles(ops.OPERATORS[ops.operator.lshift])
def _shift_left(f, a, b):
    a, b = promote(f, a, b)
    inside, by = _shift_range(f, a, b)
    return Number(f.b.select(inside, f.b.shl(a.value, by), constant(a, 0)), a.dtype)


@handles(ops.OPERATORS[ops.operator.rshift])
def _shift_right(f, a, b):
    a, b = promote(f, a, b)
    inside, by = _shift_range(f, a, b)
    if a.dtype.kind == "u":
        return Number(f.b.select(inside, f.b.lshr(a.value, by), constant(a, 0)), a.dtype)
    beyond = f.b.ashr(a.value, constant(a, a.value.type.width - 1))
    return Number(f.b.select(inside, f.b.ashr(a.value, by), beyond), a.dtype)


def _shift_range(f, a, b):
    """Tell whether a shift is less than the width, and give one that is."""
    inside = f.b.icmp_unsigned("<", b.value, constant(a, a.value.type.width))
    return inside, f.b.select(inside, b.value, constant(a, 0))


def comparison(symbol):
    def handler(f, a, b):
        if isinstance(a, Static | Tuple) or isinstance(b, Static | Tuple):
            raise NotNative("a comparison of something else than numbers")
        if {a.dtype.kind, b.dtype.kind} == {"i", "u"}:
            raise NotNative("a comparison of integers with and without a sign")
        a, b = promote(f, a, b)
        if isinstance(a, Complex):
            return _complex_comparison(f, symbol, a, b)
        if is_float(a):
            compare = f.b.fcmp_unordered if symbol == "!=" else f.b.fcmp_ordered
        else:
            compare = f.b.icmp_signed if a.dtype.kind == "i" else f.b.icmp_unsigned
        return Number(compare(symbol, a.value, b.value), BOOL)

    return handler


def _complex_comparison(f, symbol, a, b):
    if symbol not in ("==", "!="):
        raise NotNative("an order of complex numbers")
    same = f.b.and_(f.b.fcmp_ordered("==", a.real, b.real), f.b.fcmp_ordered("==", a.imag, b.imag))
    return Number(same if symbol == "==" else f.b.not_(same), BOOL)


for _symbol in ("<", "<=", ">", ">=", "==", "!="):
    HANDLERS[f"({{}} {_symbol} {{}})"] = comparison(_symbol)


@handles("select")
def select(f, condition, a, b) -> Any:
    if isinstance(a, Tuple):
        return Tuple(select(f, condition, x, y) for x, y in zip(a, b, strict=True))
    a, b = promote(f, a, b)
    if isinstance(a, Complex):
        real, imag = (f.b.select(condition.value, x, y) for x, y in ((a.real, b.real), (a.imag, b.imag)))
        return Complex(real, imag, a.dtype)
    return Number(f.b.select(condition.value, a.value, b.value), a.dtype)


# -- extremes ----------------------------------------------------------------------------------------------------------


def integer_extreme(symbol):
    def handler(f, a, b):
        a, b = promote(f, a, b)
        if is_float(a):
            raise NotNative("np.minimum or np.maximum of floats")
        compare = f.b.icmp_signed if a.dtype.kind == "i" else f.b.icmp_unsigned
        return Number(f.b.select(compare(symbol, a.value, b.value), a.value, b.value), a.dtype)

    return handler


HANDLERS["np.minimum"], HANDLERS["np.maximum"] = integer_extreme("<"), integer_extreme(">")


def _float_extreme(symbol):
    """``fmin`` and ``fmax``: a number beats a NaN; of two zeros fmin takes -0.0 and fmax 0.0."""

    def handler(f, a, b):
        a, b = promote(f, a, b)
        if not is_float(a):
            return integer_extreme(symbol)(f, a, b)
        m = f.b
        better = m.fcmp_ordered(symbol, a.value, b.value)
        chosen = m.select(better, a.value, b.value)
        bits = ir.IntType(8 * a.dtype.itemsize)
        negative = m.icmp_signed("<", m.bitcast(a.value, bits), ir.Constant(bits, 0))
        zeros = m.fcmp_ordered("==", a.value, b.value)  # equal: the same number, or two zeros
        pair = (a.value, b.value) if symbol == "<" else (b.value, a.value)
        chosen = m.select(zeros, m.select(negative, *pair), chosen)
        chosen = m.select(m.fcmp_unordered("uno", b.value, b.value), a.value, chosen)
        return Number(chosen, a.dtype)

    return handler


HANDLERS["fmin"], HANDLERS["fmax"] = _float_extreme("<"), _float_extreme(">")


def _python_extreme(symbol):
    def handler(f, first, second):
        first, second = promote(f, first, second)
        better = f.b.fcmp_ordered(symbol, second.value, first.value)
        return Number(f.b.select(better, second.value, first.value), first.dtype)

    return handler


HANDLERS["compare_min"], HANDLERS["compare_max"] = _python_extreme("<"), _python_extreme(">")


def _numpy_extreme(symbol, nan_wins):
    """``np.maximum`` and its like on the device: of two zeros the first; a NaN wins or loses."""

    def handler(f, a, b):
        a, b = promote(f, a, b)
        if not is_float(a):
            return integer_extreme(symbol)(f, a, b)
        m = f.b
        first = m.fcmp_ordered(f"{symbol}=", a.value, b.value)
        nan = a if nan_wins else b
        first = m.or_(first, m.fcmp_unordered("uno", nan.value, nan.value))
        return Number(m.select(first, a.value, b.value), a.dtype)

    return handler


HANDLERS["maximum"], HANDLERS["minimum"] = _numpy_extreme(">", True), _numpy_extreme("<", True)
HANDLERS["numpy_fmax"], HANDLERS["numpy_fmin"] = _numpy_extreme(">", False), _numpy_extreme("<", False)


# -- functions ---------------------------------------------------------------------------------------------------------


@handles("np.abs")
def _absolute(f, a):
    if isinstance(a, Complex):
        return call_ufunc(f, np.abs, a)
    if is_float(a):
        return _intrinsic("fabs")(f, a)
    if a.dtype.kind == "u":
        return a
    negative = f.b.icmp_signed("<", a.value, constant(a, 0))
    return Number(f.b.select(negative, f.b.neg(a.value), a.value), a.dtype)


def _intrinsic(name):
    def handler(f, a):
        if not is_float(a):
            raise NotNative(f"{name} of integers")
        return Number(f.call(f"llvm.{name}.f{8 * a.dtype.itemsize}", a.value.type, [a.value]), a.dtype)

    return handler


for _name in ("sqrt", "floor", "ceil", "trunc", "rint"):
    HANDLERS[f"np.{_name}"] = _intrinsic(_name)


@handles("np.copysign")
def _copysign(f, a, b):
    a, b = promote(f, a, b)
    return Number(f.call(f"llvm.copysign.f{8 * a.dtype.itemsize}", a.value.type, [a.value, b.value]), a.dtype)


def _test(name, compare, limit=None):
    """``isnan``, ``isinf`` and ``isfinite``: compare the magnitude of a float with a limit."""

    def handler(f, a):
        if isinstance(a, Complex):
            return call_ufunc(f, getattr(np, name), a)
        magnitude = _intrinsic("fabs")(f, a).value
        other = magnitude if limit is None else f.number(limit, a.dtype).value
        unordered = f.b.fcmp_unordered("uno", magnitude, other)
        return Number(unordered if compare is None else f.b.fcmp_ordered(compare, magnitude, other), BOOL)

    return handler


HANDLERS["np.isnan"] = _test("isnan", None)
HANDLERS["np.isinf"] = _test("isinf", "==", np.inf)
HANDLERS["np.isfinite"] = _test("isfinite", "<", np.inf)


@handles("(1 / np.sqrt({}))")
def _rsqrt(f, a):
    return Number(f.b.fdiv(f.number(1, a.dtype).value, _intrinsic("sqrt")(f, a).value), a.dtype)


@handles("(1 / {})")
def _reciprocal(f, a):
    return Number(f.b.fdiv(f.number(1, a.dtype).value, a.value), a.dtype)


@handles("fma")
def _fma(f, a, b, c):
    a, b, c = promote(f, a, b, c)
    if a.dtype.itemsize == 8:
        return Number(f.call("llvm.fma.f64", a.value.type, [a.value, b.value, c.value]), a.dtype)
    x, y, z = (f.cast(n, np.float64).value for n in (a, b, c))
    return f.cast(Number(f.b.fadd(f.b.fmul(x, y), z), np.dtype(np.float64)), a.dtype)


@handles("divmod_float")
def _divmod_float(f, a, b):
    a, b = promote(f, a, b)
    m, zero, one = f.b, f.number(0, a.dtype).value, f.number(1, a.dtype).value
    minus_zero = f.number(-0.0, a.dtype).value
    size = 8 * a.dtype.itemsize

    def unary(name, value):
        return f.call(f"llvm.{name}.f{size}", value.type, [value])

    quotient = m.fdiv(a.value, b.value)
    rest = _fma(f, Number(m.fneg(unary("trunc", quotient)), a.dtype), b, a).value
    whole = m.fdiv(m.fsub(a.value, rest), b.value)
    negative = m.fcmp_ordered("<", b.value, zero)
    unequal = m.fcmp_unordered("!=", rest, zero)
    other_sign = m.and_(unequal, m.xor(negative, m.fcmp_ordered("<", rest, zero)))
    whole = m.select(other_sign, m.fsub(whole, one), whole)
    signed_zero = m.select(negative, minus_zero, zero)
    plain = rest
    rest = m.select(m.fcmp_ordered("==", rest, zero), signed_zero, m.select(other_sign, m.fadd(rest, b.value), rest))
    below = unary("floor", whole)
    half = f.number(0.5, a.dtype).value
    rounded = m.select(m.fcmp_ordered(">", m.fsub(whole, below), half), m.fadd(below, one), below)
    proper = m.fcmp_ordered("one", whole, zero)
    floor = m.select(proper, rounded, m.fdiv(m.fmul(m.fmul(whole, whole), a.value), b.value))
    by_zero = m.fcmp_ordered("==", b.value, zero)
    return Tuple(
        (
            Number(m.select(by_zero, quotient, floor), a.dtype),
            Number(m.select(by_zero, plain, rest), a.dtype),
        )
    )


@handles(ops.FLOOR_DIVIDE_FLOAT)
def _floor_divide_float(f, a, b):
    return _divmod_float(f, a, b)[0]


@handles(ops.MODULO_FLOAT)
def _modulo_float(f, a, b):
    return _divmod_float(f, a, b)[1]


@handles(ops.POWER_CONSTANT)
def _power_constant(f, base, exponent):
    if not isinstance(exponent, Static):
        raise NotNative("a power that is not constant")
    exponent = exponent.value
    multiply = HANDLERS[ops.MUL.template]
    result, square, left = None, base, abs(exponent)
    while left:
        if left & 1:
            result = square if result is None else multiply(f, result, square)
        left >>= 1
        if left:
            square = multiply(f, square, square)
    if isinstance(base, Complex):
        if exponent <= 0:
            raise NotNative("a negative power of a complex number")
        return result
    result = f.number(1, base.dtype) if result is None else result
    if exponent >= 0:
        return result
    if not is_float(base):
        raise NotNative("a negative power of an integer")
    return Number(f.b.fdiv(f.number(1, base.dtype).value, result.value), base.dtype)


@handles(ops.POWER_FLOAT)
def _power_float(f, base, exponent):
    base, exponent = promote(f, base, exponent)
    if isinstance(base, Complex):
        raise NotNative("a complex power")
    result = call_ufunc(f, np.power, base, exponent)
    m = f.b
    magnitude = _absolute(f, base)
    infinite, zero = f.number(np.inf, base.dtype).value, f.number(0, base.dtype).value
    odd = m.or_(*(m.fcmp_ordered("==", magnitude.value, limit) for limit in (infinite, zero)))
    half = m.fcmp_ordered("==", exponent.value, f.number(0.5, base.dtype).value)
    return Number(m.select(m.and_(half, odd), magnitude.value, result.value), base.dtype)


def _power_loop(f, base, exponent):
    """``base ** abs(exponent)`` by squaring."""
    b = f.b
    left, result, square = (f.slots.alloca(v.value.type) for v in (exponent, base, base))
    zero, one = constant(exponent, 0), constant(exponent, 1)
    b.store(_absolute(f, exponent).value, left)
    b.store(f.number(1, base.dtype).value, result)
    b.store(base.value, square)
    head, body, done = (f.function.append_basic_block(name) for name in ("power", "square", "powered"))
    b.branch(head)
    b.position_at_end(head)
    b.cbranch(b.icmp_unsigned("!=", b.load(left), zero), body, done)
    b.position_at_end(body)
    multiply = b.fmul if is_float(base) else b.mul
    odd = b.icmp_unsigned("!=", b.and_(b.load(left), one), zero)
    b.store(b.select(odd, multiply(b.load(result), b.load(square)), b.load(result)), result)
    b.store(multiply(b.load(square), b.load(square)), square)
    b.store(b.lshr(b.load(left), one), left)
    b.branch(head)
    b.position_at_end(done)
    return Number(b.load(result), base.dtype)


@handles(ops.POWER_FLOAT_INT)
def _power_float_int(f, base, exponent):
    result = _power_loop(f, base, exponent)
    if exponent.dtype.kind == "u":
        return result
    negative = f.b.icmp_signed("<", exponent.value, constant(exponent, 0))
    inverse = f.b.fdiv(f.number(1, base.dtype).value, result.value)
    return Number(f.b.select(negative, inverse, result.value), base.dtype)


@handles(ops.POWER_INT)
def _power_int(f, base, exponent):
    result = _power_loop(f, base, exponent)
    if exponent.dtype.kind == "u":
        return result
    m, zero, one = f.b, constant(base, 0), constant(base, 1)
    negative = m.icmp_signed("<", exponent.value, constant(exponent, 0))
    unit = m.icmp_signed("==", base.value, one)
    if base.dtype.kind == "i":
        unit = m.or_(unit, m.icmp_signed("==", base.value, constant(base, -1)))
    inverse = m.select(unit, result.value, zero)
    lowest = constant(base, -1 << (base.value.type.width - 1))
    inverse = m.select(m.icmp_signed("==", base.value, zero), lowest, inverse)
    return Number(m.select(negative, inverse, result.value), base.dtype)


def _bits(name, *more):
    def handler(f, a):
        width = 8 * a.dtype.itemsize
        type_ = ir.IntType(width)
        return Number(f.call(f"llvm.{name}.i{width}", type_, [a.value, *(ir.Constant(*m) for m in more)]), a.dtype)

    return handler


HANDLERS["popc"] = _bits("ctpop")
HANDLERS["clz"] = _bits("ctlz", (ir.IntType(1), 0))
HANDLERS["brev"] = _bits("bitreverse")


@handles("ffs")
def _ffs(f, a):
    zeros = _bits("cttz", (ir.IntType(1), 0))(f, a)
    found = f.cast(Number(f.b.add(zeros.value, constant(a, 1)), a.dtype), np.uint32)
    none = f.b.icmp_unsigned("==", a.value, constant(a, 0))
    return Number(f.b.select(none, ir.Constant(I32, 0), found.value), np.dtype(np.uint32))


for _name in ("int32", "float32", "int64", "float64"):
    HANDLERS[f"bitcast({{}}, np.{_name})"] = functools.partial(
        lambda f, a, dtype: Number(f.b.bitcast(a.value, llvm_type(dtype)), dtype), dtype=np.dtype(_name)
    )


@handles("make_complex")
def _make_complex(f, real, imag):
    real, imag = promote(f, real, imag)
    return Complex(real.value, imag.value, np.dtype(f"c{2 * real.dtype.itemsize}"))


def _part(name):
    def handler(f, value):
        if not isinstance(value, Complex):
            raise NotNative("a part of a real number")
        return Number(getattr(value, name), value.part_dtype)

    return handler


HANDLERS["{}.real"], HANDLERS["{}.imag"] = _part("real"), _part("imag")


@handles("np.conjugate")
def _conjugate(f, value):
    return Complex(value.real, f.b.fneg(value.imag), value.dtype)


@handles(ops.FLOAT_TO_INT)
def float_to_int(f, value, dtype):
    """Truncate and saturate; NaN gives 0, but the most negative bits where 64 bits are involved."""
    dtype, b = np.dtype(dtype.value), f.b
    if dtype.itemsize == 1:
        return f.cast(float_to_int(f, value, Static(np.dtype(f"{dtype.kind}2"))), dtype)
    type_, limits = llvm_type(dtype), np.iinfo(dtype)
    top = f.number(2.0 ** (dtype.itemsize * 8 - (dtype.kind == "i")), value.dtype).value
    low = f.number(limits.min, value.dtype).value
    whole = f.call(f"llvm.trunc.f{8 * value.dtype.itemsize}", value.value.type, [value.value])
    above, below = b.fcmp_ordered(">=", whole, top), b.fcmp_ordered("<", whole, low)
    nan = b.fcmp_unordered("uno", whole, whole)
    outside = b.or_(nan, b.or_(above, below))
    safe = b.select(outside, ir.Constant(whole.type, 0), whole)
    result = b.fptosi(safe, type_) if dtype.kind == "i" else b.fptoui(safe, type_)
    result = b.select(above, ir.Constant(type_, int(limits.max)), result)
    result = b.select(below, ir.Constant(type_, int(limits.min)), result)
    wide = 8 in (value.dtype.itemsize, dtype.itemsize)
    lowest = ir.Constant(type_, 1 << (dtype.itemsize * 8 - 1) if wide else 0)
    return Number(b.select(nan, lowest, result), dtype)
