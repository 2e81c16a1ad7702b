"""What a call of a known function becomes: Python's builtins, the math module, NumPy's scalar functions, and everything
under ``numba.cuda``.

Each entry of a table takes the translator and a `Call`, and returns (expression, Numba type, whether it has an effect)
or None for no value.
"""

import cmath
import functools
import inspect
import math
import operator
import struct
from typing import NamedTuple

import numpy as np
from numba import cuda
from numba.cuda import fp16, libdevice, types
from numba.cuda.core import ir
from numba.cuda.core.errors import NumbaValueError
from numba.cuda.np.numpy_support import ufunc_find_matching_loop
from numba.cuda.types.ext_types import GridGroup
from numba.cuda.ufuncs import ufunc_db
from numba.cuda.utils import order_by_target_specificity
from numba.cuda.vector_types import VectorType

from warpstep.compiler.frontend import typing_context, unliteral
from warpstep.compiler.values import Known, dtype_of
from warpstep.errors import UnsupportedError
from warpstep.machine import arithmetic
from warpstep.machine.atomics import atomic
from warpstep.machine.memory import Either, View, contiguous

TABLE = {}


class Call(NamedTuple):
    """One call: variables (or known defaults) and their types after Numba's conversions."""

    arguments: list
    types: tuple
    result: object
    key: object
    expr: object


class Forward:
    """A recursive function: written after the calls of it."""

    lowered = None

    def run(self, batch, mask, *arguments):
        batch.depth += 1
        try:
            run = self.lowered.traced() if batch.traced else self.lowered.run
            return run(batch, mask, *arguments)
        finally:
            batch.depth -= 1


def entry(*keys):
    def register(handler):
        for key in keys:
            TABLE[key] = handler
        return handler

    return register


def function(t, target, function_type, arguments, signature, type_, expr):
    """A call of a plain (not device) function."""
    key = function_type.typing_key
    call = Call(arguments, tuple(signature.args), signature.return_type, key, expr)
    if key in TABLE:
        return TABLE[key](t, call)
    if isinstance(key, np.ufunc):
        return _ufunc(t, call)
    if getattr(key, "__module__", None) == "_operator" and not isinstance(key, type):
        if len(arguments) == 1:
            return t.unary(key, signature, arguments[0])
        return t.operation(
            getattr(operator, key.__name__.lstrip("i"), key) if key not in _PLAIN_OPERATORS else key,
            signature,
            arguments,
            type_,
        )
    if isinstance(unliteral(call.result), VectorType):
        return _vector(t, call)
    if _libdevice_name(key):
        return _libdevice(t, call)
    return _overload(t, function_type, call)


_PLAIN_OPERATORS = {operator.invert, operator.is_, operator.is_not, operator.index}


def _overload(t, function_type, call):
    """A function that Numba implements in Python (``@overload``): its implementation is inlined."""
    # In the order in which Numba's inference tried them.
    for template in order_by_target_specificity(function_type.templates, fnkey=call.key):
        if hasattr(template, "_get_impl") and hasattr(template, "_overload_func"):
            return _inline_overload(t, template, call)
    name = getattr(call.key, "__qualname__", getattr(call.key, "__name__", repr(call.key)))
    return t.unsupported(f"a call of {getattr(call.key, '__module__', '')}.{name}")


def _inline_overload(t, template, call):
    dispatcher, types_ = template(typing_context())._get_impl(call.types, {})
    given = [*call.arguments, *(Known(at.value) for at in types_[len(call.arguments) :])]  # defaults come last
    arguments = [
        (a if isinstance(at, types.Omitted) else t.value(a, at), at) for a, at in zip(given, types_, strict=True)
    ]
    result = t.b.variable()
    return_type = t.inline(dispatcher, tuple(types_), arguments, result)
    return None if isinstance(return_type, types.NoneType) else (result, return_type, False)


def bind_arguments(function_, expr, t):
    """Variables of a device function's call in the order of its parameters; `Known` for a default."""
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function_).parameters.values()):
        t.unsupported("a device function with *arguments")
    bound = inspect.signature(function_).bind(*t.positional_arguments(expr), **dict(expr.kws))
    bound.apply_defaults()
    return [v if isinstance(v, ir.Var) else Known(v) for v in bound.arguments.values()]


def _values(t, call):
    return [t.value(a, at) for a, at in zip(call.arguments, call.types, strict=True)]


def _constant(t, call, index):
    known = t.known(call.arguments[index])
    if known is None:
        t.unsupported(f"a value of argument {index} that is not a constant")
    return known.value


# -- conversions and builtins ------------------------------------------------------------------------------------------


def convert(t, arguments, signature):
    """``np.float32(x)``, ``int(x)``."""
    return _converted(t, arguments[0], signature.args[0], signature.return_type), signature.return_type, False


def _converted(t, argument, from_type, to_type):
    """The expression of a conversion. That of a constant costs nothing: the compiler does it."""
    before = len(t.b.operations)
    expression = t.cast(t.value(argument, from_type), from_type, to_type)
    if t.known(argument) is not None:
        del t.b.operations[before:]
    return expression


@entry(int, float, bool)
def _convert(t, call):
    return _converted(t, call.arguments[0], call.types[0], call.result), call.result, False


@entry(complex)
def _complex(t, call):
    values = list(zip(_values(t, call), call.types, strict=True))
    if len(values) == 1:
        return t.cast(*values[0], call.result), call.result, False
    parts = [t.cast(v, at, call.result.underlying_float) for v, at in values]
    return f"make_complex({parts[0]}, {parts[1]})", call.result, False


@entry(abs, fp16.habs)
def _absolute(t, call):
    t.count(call.types[0])
    if call.types[0] == types.int16:  # the device negates in a 32-bit register
        return f"np.abs({t.value(call.arguments[0], call.result)})", call.result, False
    return f"np.abs({_values(t, call)[0]})", call.result, False


@entry(min, max)
def _extreme(t, call):
    kind = "min" if call.key is min else "max"
    is_float = isinstance(unliteral(call.result), types.Float)
    # Only two floats of 32 or 64 bits become one instruction. Anything else Numba compares one by one: a NaN that comes
    # first then stays.
    by_instruction = len(call.types) == 2 and all(at in (types.float32, types.float64) for at in call.types)
    name = f"f{kind}" if by_instruction else f"compare_{kind}" if is_float else f"np.{kind}imum"
    if len(call.arguments) == 1 and isinstance(call.types[0], types.BaseTuple):
        items = t.b.temporary(t.value(call.arguments[0]))
        values = [t.cast(f"{items}[{i}]", item, call.result) for i, item in enumerate(call.types[0].types)]
    else:
        values = [t.value(a, call.result) for a in call.arguments]
    result = values[0]
    t.count(call.result, len(values) - 1)
    for value in values[1:]:
        result = f"{name}({result}, {value})"
    return result, call.result, False


@entry(round)
def _round(t, call):
    values = _values(t, call)
    t.count(call.types[0])
    if len(values) == 1:
        return t.cast(f"np.rint({values[0]})", call.types[0], call.result), call.result, False
    return f"round_digits({values[0]}, {values[1]})", call.types[0], False


@entry(pow)
def _pow(t, call):
    return t.power(call_signature(call), call.arguments), call.result, False


def call_signature(call):
    from numba.cuda.typing import signature

    return signature(call.result, *call.types)


@entry(divmod)
def _divmod(t, call):
    item = call.result.types[0]
    a, b = (t.b.temporary(t.value(v, item)) for v in call.arguments)
    if isinstance(item, types.Float):
        return f"divmod_float({a}, {b})", call.result, False
    return f"(floor_divide({a}, {b}), {a} % {b})", call.result, False


@entry(len)
def _len(t, call):
    owner = call.types[0]
    if isinstance(owner, types.BaseTuple):
        return t.pools.scalar(len(owner), np.int64), types.int64, False
    if isinstance(owner, types.RangeType):
        return f"{t.value(call.arguments[0])}[1]", types.int64, False
    return f"np.int64({t.value(call.arguments[0])}.shape[0])", types.int64, False


@entry(range)
def _range(t, call):
    dtype = call.result.dtype
    values = [t.value(a, dtype) for a in call.arguments]
    zero, one = (t.pools.scalar(n, dtype_of(dtype)) for n in (0, 1))
    if len(values) == 3 and t.known(call.arguments[2]) is None and dtype.bitwidth == 64:
        t.b.operations.append("int64_divisions")  # how many turns there are
    start, stop, step = (zero, values[0], one) if len(values) == 1 else (*values, one)[:3]
    return f"K.range({start}, {stop}, {step}, m, {t.site(op='loop')})", call.result, False


@entry(slice)
def _slice(t, call):
    bounds = [
        "None" if isinstance(at, types.NoneType) else t.value(a, types.int64)
        for a, at in zip(call.arguments, call.types, strict=True)
    ]
    return f"slice({', '.join(bounds)})", call.result, False


@entry(tuple)
def _tuple(t, call):
    return t.value(call.arguments[0]), call.result, False


@entry(breakpoint)
def _nothing(t, call):
    return None


# -- iteration ---------------------------------------------------------------------------------------------------------


@entry(enumerate)
def _enumerate(t, call):
    start = t.value(call.arguments[1], types.int64) if len(call.arguments) > 1 else t.pools.scalar(0, np.int64)
    return f"('enumerate', {start}, {get_iterator(t, call.arguments[0])})", call.result, False


@entry(zip)
def _zip(t, call):
    return "('zip', " + "".join(f"{get_iterator(t, a)}, " for a in call.arguments) + ")", call.result, False


def get_iterator(t, variable):
    """Initial state of an iteration."""
    type_ = t.type_of(variable)
    if isinstance(type_, types.Array):
        return f"('array', {t.value(variable)}, {t.pools.scalar(0, np.int64)})"
    if isinstance(type_, types.BaseTuple):
        return f"('tuple', {t.value(variable)}, {t.pools.scalar(0, np.int64)})"
    if isinstance(type_, types.RangeType | types.IteratorType):
        return t.value(variable)
    return t.unsupported(f"a loop over {type_}")


def iterator_step(t, type_, state):
    if isinstance(type_, types.RangeIteratorType):
        return f"range_next({state})"
    step = t.pools.add("step", iterate, ("function", iterate))
    return f"{step}(M, {state}, m, {t.site(op='load')})"


def iterate(memory, state, mask, site):
    """One step over an array, a tuple, ``enumerate`` or ``zip``: (value, whether there is one, state after it)."""
    return _STEPS[state[0]](memory, state, mask, site)


def _step_array(memory, state, mask, site):
    kind, view, i = state
    extent = view.shape[0]
    valid = i < np.int64(extent) if isinstance(extent, int) else i < extent
    after = (kind, view, i + np.int64(1))
    there = np.logical_and(valid, True if mask is None else mask)
    if not np.any(there):
        return None, valid, after
    index = (np.minimum(i, np.maximum(extent - np.int64(1), np.int64(0))),)
    there = None if np.all(there) else there
    if len(view.shape) > 1:
        return memory.window(view, index, there, site), valid, after
    if view.dtype.names is not None:
        return memory.record(view, index, there, site), valid, after
    return memory.load(view, index, there, site), valid, after


def _step_tuple(memory, state, mask, site):
    kind, items, i = state
    last = np.int64(len(items) - 1)
    return arithmetic.choose(items, np.minimum(i, last)), i <= last, (kind, items, i + np.int64(1))


def _step_enumerate(memory, state, mask, site):
    kind, count, inner = state
    value, valid, inner = _step(memory, inner, mask, site)
    return (count, value), valid, (kind, count + np.int64(1), inner)


def _step_zip(memory, state, mask, site):
    steps = [_step(memory, inner, mask, site) for inner in state[1:]]
    valid = functools.reduce(operator.and_, (s[1] for s in steps))
    return tuple(s[0] for s in steps), valid, (state[0], *(s[2] for s in steps))


def _step(memory, state, mask, site):
    return iterate(memory, state, mask, site) if isinstance(state[0], str) else arithmetic.range_next(state)


_STEPS = {"array": _step_array, "tuple": _step_tuple, "enumerate": _step_enumerate, "zip": _step_zip}


# -- math --------------------------------------------------------------------------------------------------------------

_UNARY = {
    math.fabs: "np.abs",
    math.ceil: "np.ceil",
    math.floor: "np.floor",
    math.trunc: "np.trunc",
    math.exp: "np.exp",
    math.exp2: "np.exp2",
    math.expm1: "np.expm1",
    math.sqrt: "np.sqrt",
    math.log: "np.log",
    math.log2: "np.log2",
    math.log10: "np.log10",
    math.log1p: "np.log1p",
    math.sin: "np.sin",
    math.cos: "np.cos",
    math.tan: "np.tan",
    math.asin: "np.arcsin",
    math.acos: "np.arccos",
    math.atan: "np.arctan",
    math.sinh: "np.sinh",
    math.cosh: "np.cosh",
    math.tanh: "np.tanh",
    math.asinh: "np.arcsinh",
    math.acosh: "np.arccosh",
    math.atanh: "np.arctanh",
    math.degrees: "np.degrees",
    math.radians: "np.radians",
    math.isnan: "np.isnan",
    math.isinf: "np.isinf",
    math.isfinite: "np.isfinite",
    **{
        getattr(cmath, n): f"np.{n}"
        for n in ("exp", "sqrt", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", "isnan", "isinf", "isfinite")
    },
    **{getattr(cmath, n): f"np.arc{n[1:]}" for n in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    math.erf: "erf",
    math.erfc: "erfc",
    math.gamma: "gamma",
    math.lgamma: "lgamma",
    math.frexp: "frexp",
    math.modf: "modf",
    cuda.cbrt: "np.cbrt",
    cuda.popc: "popc",
    cuda.brev: "brev",
    cuda.clz: "clz",
    cuda.ffs: "ffs",
}
_BINARY = {
    math.atan2: "np.arctan2",
    math.hypot: "np.hypot",
    math.fmod: "np.fmod",
    math.copysign: "np.copysign",
    math.nextafter: "np.nextafter",
    math.remainder: "remainder",
    math.ldexp: "np.ldexp",
}
#: Of these, the ones with a float result take their arguments as that float: Numba converts integers first.
_KEEP_TYPES = ("np.isnan", "np.isinf", "np.isfinite", "popc", "brev", "clz", "ffs", "frexp", "modf", "np.ldexp")


@entry(*_UNARY, *_BINARY)
def _math(t, call):
    name = _UNARY.get(call.key) or _BINARY[call.key]
    if call.key is cuda.ffs and call.types[0].bitwidth < 32:
        t.unsupported(f"cuda.ffs of {call.types[0]}, which numba-cuda cannot compile for a GPU,")
    if name in _KEEP_TYPES:
        values = _values(t, call)
    else:
        values = [t.value(a, call.result) for a in call.arguments]
    t.count(call.types[0] if name in _KEEP_TYPES else call.result)
    return f"{name}({', '.join(values)})", call.result, False


@entry(cmath.log)
def _complex_log(t, call):
    values = [t.value(a, call.result) for a in call.arguments]
    return " / ".join(f"np.log({v})" for v in values), call.result, False


@entry(math.pow)
def _math_pow(t, call):
    base, exponent = call.types
    t.count(call.result)
    if isinstance(exponent, types.Integer) and isinstance(base, types.Float):
        return (
            f"power_float_int({t.value(call.arguments[0], call.result)}, {t.value(call.arguments[1], exponent)})",
            call.result,
            False,
        )
    return "power_float({}, {})".format(*(t.value(a, call.result) for a in call.arguments)), call.result, False


@entry(cuda.fma, fp16.hfma)
def _fma(t, call):
    values = [t.value(a, call.result) for a in call.arguments]
    t.count(call.result, 2)
    if call.key is fp16.hfma:
        wide = [f"{v}.astype(np.float64)" for v in values]
        return "({} * {} + {}).astype(np.float16)".format(*wide), call.result, False
    return f"fma({', '.join(values)})", call.result, False


@entry(cuda.selp)
def _selp(t, call):
    condition = t.cast(t.value(call.arguments[0]), call.types[0], types.boolean)
    a, b = (t.value(v, call.result) for v in call.arguments[1:])
    return f"select({condition}, {a}, {b})", call.result, False


def _ufunc(t, call):
    """A NumPy ufunc on scalars."""
    name = call.key.__name__
    if call.key not in ufunc_db():
        what = f"np.{name} of numbers, which numba-cuda cannot compile for a GPU"
        t.unsupported(f"{what} (the math module or an operator can do it),")
    if any(isinstance(at, types.Array) for at in call.types):
        return _array_ufunc(t, call)
    if not all(isinstance(at, types.Number | types.Boolean) for at in (*call.types, call.result)):
        t.unsupported(f"np.{name} with several results")
    # NumPy may have a loop that Numba has not (float16 for small integers): the arguments get the types of Numba's
    # loop.
    loop = ufunc_find_matching_loop(call.key, tuple(unliteral(at) for at in call.types))
    values = [t.value(a, at) for a, at in zip(call.arguments, loop.inputs, strict=True)]
    t.count(call.result)
    function = _SIGNED_ZEROS.get(call.key, f"np.{name}")
    return f"{function}({', '.join(values)}).astype({t.pools.dtype(dtype_of(call.result))})", call.result, False


def _array_ufunc(t, call):
    """``np.add(a, b, out)``: every thread goes through all elements, as on the device."""
    name = call.key.__name__
    operands = call.arguments[: call.key.nin]
    if call.key.nout != 1 or len(call.arguments) != call.key.nin + 1:
        t.unsupported(f"np.{name} of arrays without an array for its result: a kernel cannot allocate one,")
    elements = tuple(unliteral(getattr(at, "dtype", at)) for at in call.types)
    loop = ufunc_find_matching_loop(call.key, elements)
    function = getattr(arithmetic, _SIGNED_ZEROS.get(call.key, ""), call.key)
    do = t.pools.add("elementwise", elementwise, ("function", elementwise))
    values = "".join(f"{t.value(a)}, " for a in operands)
    wanted = t.pools.add("types", tuple(dtype_of(at) for at in loop.inputs))
    out = t.value(call.arguments[-1])
    site = t.site(call.arguments[-1].unversioned_name, "store")
    return f"{do}(M, {t.pools.add('u', function)}, ({values}), {wanted}, {out}, m, {site})", call.result, True


def elementwise(memory, function, operands, dtypes, out, mask, site):
    """Apply a ufunc to arrays (and numbers), which broadcast, and store every element of ``out``."""
    if not all(isinstance(extent, int) for extent in out.shape):
        memory.batch.unsupported(site, "a ufunc of an array whose shape differs by thread")
    for place in np.ndindex(*out.shape):
        values = []
        for operand, dtype in zip(operands, dtypes, strict=True):
            value = operand
            if isinstance(operand, View | Either):
                index = place[len(place) - len(operand.shape) :]
                fits = [np.int64(0 if extent == 1 else i) for i, extent in zip(index, operand.shape, strict=True)]
                value = memory.load(operand, tuple(fits), mask, site)
            values.append(value.astype(dtype))
        result = function(*values)
        to_integer = result.dtype.kind == "f" and out.dtype.kind in "iu"
        result = arithmetic.float_to_int(result, out.dtype) if to_integer else result.astype(out.dtype)
        memory.store(out, tuple(np.int64(i) for i in place), result, mask, site)
    return out


_SIGNED_ZEROS = {np.maximum: "maximum", np.minimum: "minimum", np.fmax: "numpy_fmax", np.fmin: "numpy_fmin"}

_HALF = {
    "hadd": "({} + {})",
    "hsub": "({} - {})",
    "hmul": "({} * {})",
    "hdiv": "({} / {})",
    "hneg": "(-{})",
    "heq": "({} == {})",
    "hne": "ordered_ne({}, {})",
    "hge": "({} >= {})",
    "hgt": "({} > {})",
    "hle": "({} <= {})",
    "hlt": "({} < {})",
    "hmax": "fmax({}, {})",
    "hmin": "fmin({}, {})",
    "hsin": "np.sin({})",
    "hcos": "np.cos({})",
    "hlog": "np.log({})",
    "hlog2": "np.log2({})",
    "hlog10": "np.log10({})",
    "hexp": "np.exp({})",
    "hexp2": "np.exp2({})",
    "hexp10": "(np.float16(10) ** {})",
    "hsqrt": "np.sqrt({})",
    "hrsqrt": "(np.float16(1) / np.sqrt({}))",
    "hrcp": "(np.float16(1) / {})",
    "hfloor": "np.floor({})",
    "hceil": "np.ceil({})",
    "htrunc": "np.trunc({})",
    "hrint": "np.rint({})",
}


@entry(*(getattr(fp16, name) for name in _HALF if hasattr(fp16, name)))
def _half(t, call):
    name = next(n for n in _HALF if getattr(fp16, n, None) is call.key)
    t.count(types.float16)
    return _HALF[name].format(*_values(t, call)), call.result, False


_LIBDEVICE = {
    **{
        n: f"np.{n}"
        for n in (
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sqrt",
            "cbrt",
        )
    },
    **{n: f"np.{n}" for n in ("ceil", "floor", "trunc", "rint", "hypot", "fmod", "copysign", "nextafter", "ldexp")},
    **{a: f"np.arc{a[1:]}" for a in ("asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2")},
    "fabs": "np.abs",
    "fmin": "fmin",
    "fmax": "fmax",
    "pow": "np.power",
    "exp10": "(10 **{0})",
    "erf": "erf",
    "erfc": "erfc",
    "tgamma": "gamma",
    "lgamma": "lgamma",
    "fma": "fma",
    "rsqrt": "(1 / np.sqrt({0}))",
    "rcp_rn": "(1 / {0})",
    "fdivide": "({0} / {1})",
    "fadd_rn": "({0} + {1})",
    "fsub_rn": "({0} - {1})",
    "fmul_rn": "({0} * {1})",
    "fdiv_rn": "({0} / {1})",
    "fsqrt_rn": "np.sqrt({0})",
    "float_as_int": "bitcast({0}, np.int32)",
    "int_as_float": "bitcast({0}, np.float32)",
    "double_as_longlong": "bitcast({0}, np.int64)",
    "longlong_as_double": "bitcast({0}, np.float64)",
    "clz": "clz",
    "popc": "popc",
    "brev": "brev",
    "ffs": "ffs",
    "abs": "np.abs",
    "min": "np.minimum",
    "max": "np.maximum",
    "umin": "np.minimum",
    "umax": "np.maximum",
    "saturatef": "np.clip(np.where(np.isnan({0}), np.float32(0), {0}), np.float32(0), np.float32(1))",
}


def _libdevice_name(key):
    """The entry of `_LIBDEVICE` for a function of ``cuda.libdevice``.

    ``fast_sinf`` and ``sinf`` and ``sin`` are one.
    """
    if getattr(key, "__module__", None) != libdevice.__name__:
        return None
    name = key.__name__.removeprefix("fast_")
    for candidate in (name, name.removesuffix("f"), name.removeprefix("ll"), name.removesuffix("ll")):
        if candidate in _LIBDEVICE:
            return candidate
    return None


def _libdevice(t, call):
    template = _LIBDEVICE[_libdevice_name(call.key)]
    t.count(call.types[0], 2 if template == "fma" else 1)
    values = [f"({v})" for v in _values(t, call)]
    expression = template.format(*values) if "{" in template else f"{template}({', '.join(values)})"
    result = call.result
    if isinstance(result, types.BaseTuple):
        return expression, result, False
    return f"({expression}).astype({t.pools.dtype(dtype_of(result))})", result, False


# -- vector types ------------------------------------------------------------------------------------------------------


def _vector(t, call):
    """``float32x4(a, b, c, d)``, where an argument may itself be a vector: a tuple of its elements."""
    base = call.result.base_type
    parts = []
    for argument, type_ in zip(call.arguments, call.types, strict=True):
        if isinstance(type_, VectorType):
            whole = t.b.temporary(t.value(argument))
            parts += [t.cast(f"{whole}[{i}]", type_.base_type, base) for i in range(type_.num_elements)]
        else:
            parts.append(t.value(argument, base))
    return "(" + "".join(f"{p}, " for p in parts) + ")", call.result, False


# -- the execution model -----------------------------------------------------------------------------------------------


@entry(cuda.grid, cuda.gridsize)
def _grid(t, call):
    name = "grid" if call.key is cuda.grid else "gridsize"
    dimensions = _constant(t, call, 0)
    values = [f"K.{name}({axis})" for axis in range(dimensions)]
    if dimensions == 1:
        return values[0], call.result, False
    return "(" + "".join(f"{v}, " for v in values) + ")", call.result, False


@entry(cuda.syncthreads)
def _syncthreads(t, call):
    t.barrier("block")


@entry(cuda.syncthreads_count, cuda.syncthreads_and, cuda.syncthreads_or)
def _syncthreads_vote(t, call):
    mode = next(n for n in ("count", "and", "or") if call.key is getattr(cuda, f"syncthreads_{n}"))
    predicate = t.b.temporary(_values(t, call)[0])
    t.barrier("block")
    return f"K.count({mode!r}, {predicate}, m)", call.result, False


@entry(cuda.syncwarp)
def _syncwarp(t, call):
    mask = _values(t, call)[0] if call.arguments else t.pools.scalar(-1, np.int32)
    t.barrier("warp", f"K.named({mask})", op="syncwarp")


def _warp_arguments(t, call):
    """The arguments of a warp operation, evaluated before its lanes meet."""
    values = [t.b.temporary(v) for v in _values(t, call)]
    t.barrier("warp", f"K.named({values[0]})")
    return values


@entry(cuda.shfl_sync, cuda.shfl_up_sync, cuda.shfl_down_sync, cuda.shfl_xor_sync)
def _shuffle(t, call):
    mode = {cuda.shfl_sync: "idx", cuda.shfl_up_sync: "up", cuda.shfl_down_sync: "down", cuda.shfl_xor_sync: "xor"}[
        call.key
    ]
    values = ", ".join(_warp_arguments(t, call))
    return f"K.shuffle({mode!r}, {values}, m, {t.site(op='shuffle')})", call.result, True


@entry(cuda.all_sync, cuda.any_sync, cuda.eq_sync, cuda.ballot_sync)
def _vote(t, call):
    mode = next(n for n in ("all", "any", "eq", "ballot") if call.key is getattr(cuda, f"{n}_sync"))
    mask, predicate = _warp_arguments(t, call)
    predicate = t.cast(predicate, call.types[1], types.boolean)
    return f"K.vote({mode!r}, {mask}, {predicate}, m)", call.result, False


@entry(cuda.match_any_sync, cuda.match_all_sync)
def _match(t, call):
    mode = "any" if call.key is cuda.match_any_sync else "all"
    mask, value = _warp_arguments(t, call)
    return f"K.match({mode!r}, {mask}, {value}, m)", call.result, False


@entry(cuda.activemask)
def _activemask(t, call):
    return "K.activemask(m)", call.result, True


@entry(cuda.lanemask_lt)
def _lanemask_lt(t, call):
    return "((np.int64(1) << K.laneid().astype(np.int64)) - np.int64(1)).astype(np.uint32)", call.result, False


@entry(cuda.threadfence, cuda.threadfence_block, cuda.threadfence_system)
def _fence(t, call):
    t.pools.fences = True
    t.b.emit(f"K.fence(m, {call.key is not cuda.threadfence_block})", effect=True)


@entry(cuda.nanosleep)
def _nanosleep(t, call):
    t.b.emit(f"K.sleep({_values(t, call)[0]})", effect=True)


@entry(cuda.cg.this_grid)
def _this_grid(t, call):
    return None


# -- memory ------------------------------------------------------------------------------------------------------------


def _literal_shape(type_):
    if isinstance(type_, types.BaseTuple):
        return tuple(int(item.literal_value) for item in type_.types)
    return (int(type_.literal_value),)


def _check_alignment(t, alignment):
    """NumbaValueError for what Numba does not take on a GPU, though 4 would do for words."""
    pointer = struct.calcsize("P")
    if alignment < pointer or alignment & (alignment - 1):
        raise NumbaValueError(
            f"alignment is {alignment}; it must be a power of 2 and a multiple of {pointer} "
            f"({t.frame.typed.filename}, line {t.line})"
        )


@entry(cuda.shared.array, cuda.local.array)
def _array(t, call):
    shape = _literal_shape(call.types[0])
    if len(call.types) > 2 and isinstance(call.types[2], types.IntegerLiteral):
        _check_alignment(t, call.types[2].literal_value)
    dtype = dtype_of(call.result.dtype)
    kind = "shared" if call.key is cuda.shared.array else "local"
    # One array for each place in the source, however often its function is inlined.
    key = t.pools.add("key", (kind, t.line, call.expr), ("place", id(call.expr)))
    table = t.pools.static_shared if kind == "shared" else t.pools.local_bytes
    table[key] = math.prod(shape) * dtype.itemsize
    name = t.array_name or kind
    shown = "(" + "".join(f"{n}, " for n in shape) + ")"
    return f"K.{kind}_array({key!r}, {shown}, {t.pools.dtype(dtype)}, {t.pools.text(name)})", call.result, False


@entry(cuda.const.array_like)
def _const_array_like(t, call):
    return t.constant_array(_constant(t, call, 0)), call.result, False


_ATOMICS = {
    getattr(cuda.atomic, n): n.rstrip("_")
    for n in ("add", "sub", "and_", "or_", "xor", "max", "min", "nanmax", "nanmin", "inc", "dec", "exch", "cas")
}


@entry(*_ATOMICS, cuda.atomic.compare_and_swap)
def _atomic(t, call):
    dtype = call.types[0].dtype
    if call.key is cuda.atomic.compare_and_swap:
        op, index, operands = "cas", f"({t.pools.scalar(0, np.int64)},)", call.arguments[1:]
    else:
        op, operands = _ATOMICS[call.key], call.arguments[2:]
        index = t.index(call.arguments[1], call.types[0])[0]
    name = call.arguments[0].unversioned_name
    values = [t.value(v, dtype) for v in operands]
    second = values[1] if len(values) == 2 else "None"
    do = t.pools.add("atomic", atomic, ("function", atomic))
    array = t.value(call.arguments[0])
    return (
        f"{do}(M, {op!r}, {array}, {index}, {values[0]}, {second}, m, {t.site(name, 'atomic')}, wants_old=True)",
        call.result,
        True,
    )


_CACHED_LOADS = tuple(getattr(cuda, n) for n in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"))
_CACHED_STORES = tuple(getattr(cuda, n) for n in ("stcg", "stcs", "stwb", "stwt"))


@entry(*_CACHED_LOADS)
def _cached_load(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "load")
    return f"load({t.value(call.arguments[0])}, {index}, m, {site})", call.result, True


@entry(*_CACHED_STORES)
def _cached_store(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "store")
    value = t.value(call.arguments[2], call.types[0].dtype)
    t.b.emit(f"store({t.value(call.arguments[0])}, {index}, {value}, m, {site})", effect=True)


# -- attributes and methods --------------------------------------------------------------------------------------------


def attribute(t, target, expr, owner, type_):
    """``array.shape``, ``record.x``, ``math.pi``, ``cuda.laneid`` ..."""
    name = expr.attr
    if isinstance(owner, types.Module):
        return _module_attribute(t, target, owner, name, type_)
    if isinstance(owner, types.Array):
        return _array_attribute(t, expr.value, owner, name, type_)
    if isinstance(owner, types.Record):
        return t.load_field(expr.value, name), type_, True
    if isinstance(owner, VectorType):
        return f"{t.value(expr.value)}[{owner.attr_names.index(name)}]", owner.base_type, False
    if isinstance(owner, types.Complex) and name in ("real", "imag"):
        return f"{t.value(expr.value)}.{name}", owner.underlying_float, False
    if isinstance(owner, types.Integer | types.Float) and name in ("real", "imag"):
        value = t.value(expr.value)
        return (value if name == "real" else f"({value} * 0)"), type_, False
    if isinstance(owner, types.NamedTuple | types.NamedUniTuple):
        return (
            f"{t.value(expr.value)}[{owner.fields.index(name)}]",
            unliteral(owner.types[owner.fields.index(name)]),
            False,
        )
    if isinstance(owner, types.EnumMember | types.EnumClass):
        return _enum_attribute(t, target, expr, type_)
    return t.unsupported(f"the attribute {name} of {owner}")


def _module_attribute(t, target, owner, name, type_):
    if name == "laneid":
        return "K.laneid()", types.int32, False
    if name == "warpsize":
        return t.pools.scalar(32, np.int32), types.int32, False
    value = getattr(owner.pymod, name)
    t.frame.known[target] = Known(value)
    return None


def _enum_attribute(t, target, expr, type_):
    """``Color.red``, ``Color.red.value``; at run time an enum member is its value."""
    owner = t.type_of(expr.value)
    if isinstance(owner, types.EnumClass):
        t.frame.known[target] = Known(getattr(owner.instance_class, expr.attr))
        return None
    return t.value(expr.value), type_, False


def _array_attribute(t, variable, owner, name, type_):
    view = t.value(variable)
    if name == "shape":
        return f"tuple([n if n.__class__ is not int else np.int64(n) for n in {view}.shape])", type_, False
    if name == "strides":
        return f"tuple([np.int64(n * {view}.dtype.itemsize) for n in {view}.strides])", type_, False
    if name == "ndim":
        return t.pools.scalar(owner.ndim, np.int64), types.int64, False
    if name in ("size", "nbytes", "itemsize"):
        size = f"{view}.size"
        itemsize = f"np.int64({view}.dtype.itemsize)"
        return {"size": size, "itemsize": itemsize, "nbytes": f"({size} * {itemsize})"}[name], types.int64, False
    if name == "T":
        return f"{view}.with_window({view}.base, {view}.shape[::-1], {view}.strides[::-1])", type_, False
    if isinstance(owner.dtype, types.Record) and name in owner.dtype.fields:
        return field_array(t, variable, name, type_)
    if isinstance(owner.dtype, types.Complex) and name in ("real", "imag"):
        part = t.pools.add("part", _complex_part, ("function", _complex_part))
        return f"{part}({view}, {int(name == 'imag')})", type_, False
    return t.unsupported(f"the array attribute {name}")


def _complex_part(view, which):
    """``z.real`` (0) or ``z.imag`` (1) of an array: every other float."""
    if view.space == "local":
        raise UnsupportedError(f"the real or imaginary part of local array {view.name!r} as an array")
    view.all_known()
    items = view.items.view(f"f{view.dtype.itemsize // 2}")
    strides = tuple(2 * s for s in view.strides)
    return View(view.space, items, 2 * view.base + which, view.shape, strides, view.name, view.address, 2 * view.row)


def field_array(t, variable, name, type_):
    """``records.x`` or ``records["x"]``: the array of one field."""
    select = t.pools.add("field", _field_view, ("function", _field_view))
    return f"{select}({t.value(variable)}, {t.pools.text(name)})", type_, False


def _field_view(view, name):
    dtype, offset = view.dtype.fields[name][:2]
    if view.space == "local" or dtype.subdtype is not None:
        raise UnsupportedError(f"field {name!r} of all records of {view.space} array {view.name!r} as one array")
    view.all_known()
    size = view.dtype.itemsize
    result = View(
        view.space,
        view.items.view(np.uint8),
        view.base * size + offset,
        view.shape,
        tuple(s * size for s in view.strides),
        f"{view.name}.{name}",
    )
    result.dtype, result.row, result.whole, result.address = dtype, view.row * size, False, view.address
    return result


def method(t, target, owner, function_type, arguments, signature, type_):
    """``array.view(...)``, ``grid.sync()`` and other methods."""
    key = function_type.typing_key
    name = key.split(".")[-1] if isinstance(key, str) else key[1]
    this = function_type.this
    if isinstance(this, GridGroup) and name == "sync":
        t.pools.cooperative = True
        t.barrier("grid")
        return t.pools.scalar(0, np.int32), types.int32, False
    if isinstance(this, types.Integer) and name == "bit_count":
        return (
            t.cast(f"popc({t.value(owner, signature.recvr or this)})", this, signature.return_type),
            signature.return_type,
            False,
        )
    if isinstance(this, types.Array) and name in _ARRAY_METHODS:
        return _array_method(t, owner, this, name, arguments, signature)
    if isinstance(this, types.Array) and name in ("ravel", "flatten", "copy"):
        t.unsupported(f"the array method {name}, which allocates and which numba-cuda cannot compile for a GPU,")
    if hasattr(function_type.template, "_get_impl"):
        call = Call([owner, *arguments], (this, *signature.args), signature.return_type, key, None)
        return _inline_overload(t, function_type.template, call)
    if isinstance(this, types.Complex) and name == "conjugate":
        return f"np.conjugate({t.value(owner)})", this, False
    return t.unsupported(f"the method {name} of {this}")


_ARRAY_METHODS = ("view", "reshape", "transpose", "item")


def _array_method(t, owner, this, name, arguments, signature):
    view = t.value(owner)
    if name == "view":
        dtype = t.pools.dtype(dtype_of(signature.return_type.dtype))
        return f"M.retyped({view}, {dtype}, {t.site()})", signature.return_type, False
    if name == "reshape":
        shape = _new_shape(t, arguments)
        reshape = t.pools.add("reshape", _reshape, ("function", _reshape))
        return f"{reshape}(K, {view}, {shape}, {t.site()})", signature.return_type, False
    if name == "transpose" and not arguments:
        return (
            f"{view}.with_window({view}.base, {view}.shape[::-1], {view}.strides[::-1])",
            signature.return_type,
            False,
        )
    if name == "item" and not arguments:
        zero = t.pools.scalar(0, np.int64)
        return (
            f"load({view}, ({f'{zero}, ' * this.ndim}), m, {t.site(owner.unversioned_name, 'load')})",
            this.dtype,
            True,
        )
    return t.unsupported(f"the array method {name}")


def _new_shape(t, arguments):
    if len(arguments) == 1 and isinstance(t.type_of(arguments[0]), types.BaseTuple):
        return t.value(arguments[0])
    return "(" + "".join(f"{t.value(a, types.int64)}, " for a in arguments) + ")"


def _reshape(batch, view, shape, site):

    if view.strides != contiguous(view.shape) or any(isinstance(n, np.ndarray) for n in shape):
        batch.unsupported(site, "a reshape of an array that is not contiguous, or to a shape that differs by thread")
    size = math.prod(view.shape)
    shape = [int(n) for n in shape]
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = size // known if known else 0
    if math.prod(shape) != size:
        batch.unsupported(site, f"a reshape of {size} elements to {tuple(shape)}")
    return view.with_window(view.base, tuple(shape), contiguous(shape))


def structured_operator(t, function_, signature, operands):
    """Operators on tuples and None."""
    first, second = (unliteral(at) for at in signature.args)
    if function_ in (operator.is_, operator.is_not):
        same = isinstance(first, types.NoneType) and isinstance(second, types.NoneType)
        return t.pools.scalar(same == (function_ is operator.is_), np.bool_), types.boolean, False
    if isinstance(first, types.BaseTuple) and isinstance(second, types.BaseTuple):
        a, b = (t.b.temporary(t.value(v)) for v in operands)
        if function_ is operator.add:
            return f"({a} + {b})", signature.return_type, False
        nested = any(isinstance(item, types.BaseTuple) for item in (*first.types, *second.types))
        if function_ in (operator.eq, operator.ne) and len(first) == len(second) and not nested:
            pairs = " & ".join(f"({a}[{i}] == {b}[{i}])" for i in range(len(first))) or "np.bool_(True)"
            return (pairs if function_ is operator.eq else f"np.logical_not({pairs})"), types.boolean, False
    if function_ is operator.contains and isinstance(first, types.BaseTuple):
        items = t.b.temporary(t.value(operands[0]))
        value = t.value(operands[1])
        return (
            " | ".join(f"({items}[{i}] == {value})" for i in range(len(first))) or "np.bool_(False)",
            types.boolean,
            False,
        )
    return t.unsupported(f"the operator {function_.__name__} on {first} and {second}")
