"""What a call of a known function becomes: Python's builtins, the math module, NumPy's scalar functions, and everything
under ``numba.cuda``.

Each entry of a table takes the translator and a `Call`, and returns (expression, Numba type), or None for no value.
"""

import cmath
import functools
import inspect
import math
import operator
import struct
from typing import NamedTuple

import numpy as np

from warpstep._numba import (
    SAME_FUNCTIONS,
    GridGroup,
    NumbaValueError,
    VectorType,
    can_allocate,
    cuda,
    fp16,
    has_ufunc,
    libdevice,
    signature,
    types,
    ufunc_find_matching_loop,
    unliteral,
    vector_parts,
)
from warpstep.compiler import ops, vectors
from warpstep.compiler.blocks import Lowered
from warpstep.compiler.expressions import NONE, ZERO, Op, Trait, scalar
from warpstep.compiler.frontend import Implementation, typing_context
from warpstep.compiler.values import Constant, counted, dtype_of
from warpstep.limits import WARP
from warpstep.machine import arithmetic

TABLE = {}


class Call(NamedTuple):
    """One call: variables (or constant defaults) and their types after Numba's conversions."""

    arguments: list
    types: tuple
    result: object
    key: object
    expr: object


class RecursiveFunction:
    """A function that calls itself, run by the lanes that call it; lowered after the calls of it."""

    lowered: Lowered

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


def function(t, function_type, arguments, signature, expr):
    """Translate a call of a function that Numba knows by name, not a device function, or ``np.float32(x)``."""
    if isinstance(function_type, types.NumberClass):
        key = complex if isinstance(signature.return_type, types.Complex) else float
    else:
        key = function_type.typing_key
    key = SAME_FUNCTIONS.get(key, key)
    call = Call(arguments, tuple(signature.args), signature.return_type, key, expr)
    if any(map(_is_foreign, call.types)):
        return _overload(t, function_type, call)
    if key in TABLE:
        return TABLE[key](t, call)
    if key.__class__ is tuple and key[0].__class__ in TABLE:  # a function of a library that is no Python
        return TABLE[key[0].__class__](t, call)
    if isinstance(key, np.ufunc):
        return _ufunc(t, call)
    if getattr(key, "__module__", None) == "_operator" and not isinstance(key, type):
        if len(arguments) == 1:
            return t.unary(key, signature, arguments[0])
        return t.operation(
            getattr(operator, key.__name__.lstrip("i"), key) if key not in _PLAIN_OPERATORS else key,
            signature,
            arguments,
        )
    if vectors.is_vector(call.result):
        return vectors.construct(t, call)
    if getattr(key, "__module__", None) == libdevice.__name__ and (op := libdevice_operation(key.__name__)):
        return _libdevice(t, call, op)
    return _overload(t, function_type, call)


def _is_foreign(type_):
    """True for a type that is defined by a program, and for the group of a grid, whose functions a program defines."""
    return isinstance(type_, GridGroup) or not type(type_).__module__.startswith("numba")


_PLAIN_OPERATORS = {operator.invert, operator.is_, operator.is_not, operator.index}


def _overload(t, function_type, call):
    """Call what Numba implements in Python (``@overload``), or with a lowering function."""
    implementation = _implementation(function_type, signature(call.result, *call.types))
    if isinstance(implementation, Implementation):
        return _call_implementation(t, implementation, call)
    name = getattr(call.key, "__qualname__", getattr(call.key, "__name__", repr(call.key)))
    if name == "mark_try_block":
        t.unsupported("a try statement, which Numba cannot compile for a GPU,")
    return _lowered(t, function_type, call, f"a call of {getattr(call.key, '__module__', '')}.{name}")


def _implementation(function_type, sig):
    """Return the key of the implementation that Numba's inference chose."""
    try:
        return function_type.get_impl_key(sig)
    except KeyError:
        function_type.get_call_type(typing_context(), sig.args, {})
    return function_type.get_impl_key(sig)


def _call_implementation(t, implementation, call):
    dispatcher, argument_types = implementation
    bound = t.bind(inspect.signature(dispatcher.py_func), call.arguments, {})
    return t.call_function(dispatcher, t.argument_values(bound, argument_types), call.result, call.result)


def _lowered(t, function_type, call, what):
    arguments = [(t.value(a, at), at) for a, at in zip(call.arguments, call.types, strict=True)]
    sig = signature(call.result, *call.types)

    def emit(context, builder, values):
        return context.get_function(function_type, sig)(builder, values)

    return t.lowered(emit, arguments, call.result, what)


def _overloaded(t, function, arguments, types_, result):
    """Call a function that ``@overload_method`` or ``@overload_attribute`` implements."""
    function_type = typing_context().resolve_value_type(function)
    sig = function_type.get_call_type(typing_context(), types_, {})
    return _overload(t, function_type, Call(arguments, tuple(sig.args), sig.return_type, function, None))


#: Dates, and the numbers that they are divided and multiplied by.
_TIMES = types.NPDatetime | types.NPTimedelta | types.Integer | types.Float


def operator_of_other_types(t, function_, sig, operands):
    """Apply an operator that a program defines for its types."""
    if vectors.is_vector(sig.return_type):
        return vectors.operation(t, function_, sig, operands)
    if all(isinstance(unliteral(at), _TIMES) for at in sig.args) and function_ in ops.OPERATORS:
        values = (t.value(v, at) for v, at in zip(operands, sig.args, strict=True))  # NumPy's arithmetic is Numba's
        return ops.CAST(ops.OPERATORS[function_](*values), dtype_of(sig.return_type)), sig.return_type
    types_ = ", ".join(map(str, sig.args))
    function_type = typing_context().resolve_value_type(function_)
    call = Call(list(operands), tuple(sig.args), sig.return_type, function_, None)
    implementation = _implementation(function_type, sig)
    if isinstance(implementation, Implementation):
        return _call_implementation(t, implementation, call)
    return _lowered(t, function_type, call, f"the operator {function_.__name__} on {types_}")


def _values(t, call, as_type=None):
    """Return the arguments of a call, converted to the types of the signature or all to one."""
    return [t.value(a, as_type or at) for a, at in zip(call.arguments, call.types, strict=True)]


def _constant(t, call, index):
    known = t.known(call.arguments[index])
    return known.value if known else t.unsupported(f"a value of argument {index} that is not a constant")


# -- conversions and builtins ------------------------------------------------------------------------------------------


@entry(int, float, bool)
def _convert(t, call):
    text = call.types[0]
    if isinstance(text, types.StringLiteral) and isinstance(call.result, types.Float):  # float("inf")
        return scalar(float(text.literal_value), dtype_of(call.result)), call.result
    return t.cast(_values(t, call)[0], call.types[0], call.result), call.result


@entry(complex)
def _complex(t, call):
    values = list(zip(_values(t, call), call.types, strict=True))
    if len(values) == 1:
        return t.cast(*values[0], call.result), call.result
    return Op("make_complex")(*(t.cast(v, at, call.result.underlying_float) for v, at in values)), call.result


_ABS = Op("np.abs")


@entry(abs, fp16.habs)
def _absolute(t, call):
    if vectors.is_vector(call.result):
        return vectors.operation(t, abs, signature(call.result, *call.types), call.arguments)
    # The device negates an int16 in a 32-bit register.
    argument = call.result if call.types[0] == types.int16 else call.types[0]
    return counted(_ABS(t.value(call.arguments[0], argument)), call.types[0]), call.result


@entry(min, max)
def _extreme(t, call):
    kind = "min" if call.key is min else "max"
    is_float = isinstance(unliteral(call.result), types.Float)
    # Only two floats of 32 or 64 bits become one instruction. Anything else Numba compares one by one: a NaN that comes
    # first then stays.
    by_instruction = len(call.types) == 2 and all(at in (types.float32, types.float64) for at in call.types)
    op = Op(f"f{kind}" if by_instruction else f"compare_{kind}" if is_float else f"np.{kind}imum")
    if len(call.arguments) == 1 and isinstance(call.types[0], types.BaseTuple):
        items = t.b.temporary(t.value(call.arguments[0]))
        values = [t.cast(ops.ITEM(items, i), item, call.result) for i, item in enumerate(call.types[0].types)]
    else:
        values = [t.value(a, call.result) for a in call.arguments]
    return functools.reduce(lambda a, b: counted(op(a, b), call.result), values), call.result


@entry(round)
def _round(t, call):
    values = _values(t, call)
    if len(values) == 1:
        return t.cast(counted(Op("np.rint")(*values), call.types[0]), call.types[0], call.result), call.result
    return counted(Op("round_digits")(*values), call.types[0]), call.types[0]


@entry(pow)
def _pow(t, call):
    return t.power(signature(call.result, *call.types), call.arguments), call.result


@entry(divmod)
def _divmod(t, call):
    item = call.result.types[0]
    a, b = (t.b.temporary(t.value(v, item)) for v in call.arguments)
    if isinstance(item, types.Float):
        return Op("divmod_float")(a, b), call.result
    return ops.TUPLE(ops.FLOOR_DIVIDE(a, b), ops.OPERATORS[operator.mod](a, b)), call.result


@entry(len)
def _len(t, call):
    owner = call.types[0]
    if is_string(owner):
        return Op("string_length")(t.value(call.arguments[0], _as_string(owner))), types.int64
    if isinstance(owner, types.NumpyFlatType):
        return Op("{}[1].size")(t.value(call.arguments[0])), types.int64
    if isinstance(owner, types.BaseTuple):
        return scalar(len(owner), np.int64), types.int64
    if isinstance(owner, types.RangeType):
        return ops.ITEM(t.value(call.arguments[0]), 1), types.int64
    return Op("np.int64({}.shape[0])", Trait.SHAPE)(t.value(call.arguments[0])), types.int64


def is_string(type_):
    return isinstance(unliteral(type_), types.UnicodeType | types.UnicodeCharSeq | types.CharSeq | types.Bytes)


def _as_string(type_):
    """Return the type of a string that is not a literal."""
    return types.unicode_type if isinstance(type_, types.StringLiteral) else type_


@entry(ord)
def _ord(t, call):
    return Op("code_point")(t.value(call.arguments[0], _as_string(call.types[0]))), call.result


@entry(range)
def _range(t, call):
    dtype = call.result.dtype
    values = [t.value(a, dtype) for a in call.arguments]
    zero, one = (scalar(n, dtype_of(dtype)) for n in (0, 1))
    start, stop, step = (zero, values[0], one) if len(values) == 1 else (*values, one)[:3]
    # How many turns there are takes a division by an unknown step.
    slow = len(values) == 3 and t.known(call.arguments[2]) is None and dtype.bitwidth == 64
    made = ops.RANGE(start, stop, step, t.site(op="loop"))
    return made.counting(*["int64_divisions"] * slow), call.result


@entry(slice)
def _slice(t, call):
    bounds = [
        NONE if isinstance(at, types.NoneType) else t.value(a, types.int64)
        for a, at in zip(call.arguments, call.types, strict=True)
    ]
    return ops.SLICE(*bounds), call.result


@entry(tuple)
def _tuple(t, call):
    return t.value(call.arguments[0]), call.result


@entry(cuda.cg.this_grid)
def _nothing(t, call):
    return None


@entry(breakpoint)
def _breakpoint(t, call):
    t.pools.breakpoints = True
    if t.pools.stops is not None:
        t.b.emit(ops.BREAKPOINT(t.site()))


# -- iteration ---------------------------------------------------------------------------------------------------------


@entry(enumerate)
def _enumerate(t, call):
    start = t.value(call.arguments[1], types.int64) if len(call.arguments) > 1 else ZERO
    return ops.TUPLE("enumerate", start, get_iterator(t, call.arguments[0])), call.result


@entry(iter)
def _iter(t, call):
    return get_iterator(t, call.arguments[0]), call.result


@entry(next)
def _next(t, call):
    """Translate ``next(iterator)``; at its end the thread ends."""
    iterator = t.name_of(call.arguments[0].name)
    step = t.b.temporary(iterator_step(t, call.types[0], iterator))
    t.b.emit(ops.AFTER(step), iterator)
    t.raise_unless(ops.ITEM(step, 1), StopIteration())
    return ops.ITEM(step, 0), call.result


@entry(np.nditer)
def _nditer(t, call):
    operands = t.value(call.arguments[0])
    if not isinstance(call.types[0], types.BaseTuple):
        operands = ops.TUPLE(operands)
    if not all(isinstance(a, types.Array) for a in call.result.arrays):
        t.unsupported("np.nditer of a number")
    return ops.TUPLE("nditer", operands, ZERO, call.result.layout), call.result


@entry(np.ndenumerate)
def _ndenumerate(t, call):
    return ops.TUPLE("ndenumerate", t.value(call.arguments[0]), ZERO), call.result


@entry(np.ndindex)
def _ndindex(t, call):
    if call.types and isinstance(call.types[0], types.BaseTuple):
        shape = t.value(call.arguments[0], types.UniTuple(types.intp, len(call.types[0])))
    else:
        shape = ops.TUPLE(*(t.value(a, types.intp) for a in call.arguments))
    return ops.TUPLE("ndindex", shape, ZERO), call.result


@entry(zip)
def _zip(t, call):
    return ops.TUPLE("zip", *(get_iterator(t, a) for a in call.arguments)), call.result


def get_iterator(t, variable):
    """Return the initial state of an iteration."""
    type_ = t.type_of(variable)
    if isinstance(type_, types.Array):
        return ops.TUPLE("array", t.value(variable), ZERO)
    if isinstance(type_, types.BaseTuple):
        return ops.TUPLE("tuple", t.value(variable), ZERO)
    if isinstance(type_, types.RangeType | types.IteratorType):
        return t.value(variable)
    return t.unsupported(f"a loop over {type_}")


def iterator_step(t, type_, state):
    return ops.RANGE_NEXT(state) if isinstance(type_, types.RangeIteratorType) else _ITERATE(state, t.site(op="load"))


#: A step of an iteration over anything but a range, like `ops.RANGE_NEXT`.
_ITERATE = Op("iterate(M, {}, m, {})", Trait.EFFECT)


# -- math --------------------------------------------------------------------------------------------------------------

_LOG, _FMA = Op("np.log"), Op("fma")
_HALF_FMA = Op("({0}.astype(np.float64) * {1}.astype(np.float64) + {2}.astype(np.float64)).astype(np.float16)")
_SAME_NAME = "ceil floor trunc exp exp2 expm1 sqrt log log2 log10 log1p sin cos tan sinh cosh tanh degrees radians"
_COMPLEX_NAMES = "exp sqrt log10 sin cos tan sinh cosh tanh"
_INVERSE = "asin acos atan asinh acosh atanh"
_TESTS = "isnan isinf isfinite"


def _numpy(module, names, prefix="np."):
    """Map functions of a module to NumPy functions of the same names."""
    return {getattr(module, name): Op(f"{prefix}{name}") for name in names.split()}


_HALF = {
    **{
        f"h{n}": ops.OPERATORS[getattr(operator, n)] for n in ("add", "sub", "mul", "neg", "eq", "ge", "gt", "le", "lt")
    },
    **{f"h{n}": Op(f"np.{n}") for n in "sin cos log log2 log10 exp exp2 sqrt floor ceil trunc rint".split()},
    "hdiv": ops.DIV,
    "hne": Op("ordered_ne"),
    "hmax": Op("fmax"),
    "hmin": Op("fmin"),
    "hexp10": Op("(np.float16(10) ** {})"),
    "hrsqrt": Op("(np.float16(1) / np.sqrt({}))"),
    "hrcp": Op("(np.float16(1) / {})"),
}
#: Functions that take their arguments as they are.
_AS_THEY_ARE = {
    **_numpy(math, _TESTS),
    **_numpy(cmath, _TESTS),
    **_numpy(math, "frexp modf", ""),
    **_numpy(cuda, "popc brev clz ffs", ""),
    **_numpy(math, "ldexp"),
    **{getattr(fp16, name): op for name, op in _HALF.items() if hasattr(fp16, name)},
}
#: Functions whose arguments Numba converts to the type of the result first.
_CONVERTED = {
    **_numpy(math, _SAME_NAME),
    **_numpy(cmath, _COMPLEX_NAMES),
    **{getattr(module, n): Op(f"np.arc{n[1:]}") for module in (math, cmath) for n in _INVERSE.split()},
    **_numpy(math, "erf erfc gamma lgamma remainder", ""),
    **_numpy(math, "hypot fmod copysign nextafter"),
    **_numpy(cuda, "cbrt"),
    math.fabs: _ABS,
    math.atan2: Op("np.arctan2"),
}


@entry(*_AS_THEY_ARE)
def _math_as_they_are(t, call):
    if call.key is cuda.ffs and call.types[0].bitwidth < 32:
        t.unsupported(f"cuda.ffs of {call.types[0]}, which Numba cannot compile for a GPU,")
    return counted(_AS_THEY_ARE[call.key](*_values(t, call)), call.types[0]), call.result


@entry(*_CONVERTED)
def _math(t, call):
    if isinstance(call.result, types.Integer) and isinstance(call.types[0], types.Float):  # numba-cuda-mlir's math.ceil
        (argument,), (type_,) = _values(t, call), call.types
        return t.cast(counted(_CONVERTED[call.key](argument), type_), type_, call.result), call.result
    return counted(_CONVERTED[call.key](*_values(t, call, call.result)), call.result), call.result


@entry(cmath.log)
def _complex_log(t, call):
    return functools.reduce(ops.DIV, map(_LOG, _values(t, call, call.result))), call.result


@entry(math.pow)
def _math_pow(t, call):
    base, exponent = call.types
    if isinstance(exponent, types.Integer) and isinstance(base, types.Float):
        values = t.value(call.arguments[0], call.result), t.value(call.arguments[1], exponent)
        return counted(ops.POWER_FLOAT_INT(*values), call.result), call.result
    return counted(ops.POWER_FLOAT(*_values(t, call, call.result)), call.result), call.result


@entry(cuda.fma, fp16.hfma)
def _fma(t, call):
    op = _HALF_FMA if call.key is fp16.hfma else _FMA
    return counted(op(*_values(t, call, call.result)), call.result, 2), call.result


@entry(cuda.selp)
def _selp(t, call):
    condition = t.cast(t.value(call.arguments[0]), call.types[0], types.boolean)
    a, b = (t.value(v, call.result) for v in call.arguments[1:])
    return Op("select")(condition, a, b), call.result


def _ufunc(t, call):
    """Translate a NumPy ufunc of scalars."""
    name = call.key.__name__
    if not has_ufunc(call.key):
        what = f"np.{name} of numbers, which Numba cannot compile for a GPU"
        t.unsupported(f"{what} (the math module or an operator can do it),")
    if any(isinstance(at, types.Array) for at in call.types):
        return _array_ufunc(t, call)
    if not all(isinstance(at, types.Number | types.Boolean) for at in (*call.types, call.result)):
        t.unsupported(f"np.{name} with several results")
    # NumPy may have a loop that Numba has not (float16 for small integers): the arguments get the types of Numba's
    # loop.
    loop = ufunc_find_matching_loop(call.key, tuple(unliteral(at) for at in call.types))
    values = [t.value(a, at) for a, at in zip(call.arguments, loop.inputs, strict=True)]
    quotient = Trait.QUOTIENT if call.key is np.floor_divide else Trait.NONE
    computed = Op(_SIGNED_ZEROS.get(call.key, f"np.{name}"), quotient)(*values)
    return counted(ops.CAST(computed, dtype_of(call.result)), call.result), call.result


def _array_ufunc(t, call):
    """Translate ``np.add(a, b, out)``: every thread computes all elements, as on the device."""
    name = call.key.__name__
    operands = call.arguments[: call.key.nin]
    if call.key.nout != 1 or len(call.arguments) != call.key.nin + 1:
        t.unsupported(f"np.{name} of arrays without an array for its result: a kernel cannot allocate one,")
    elements = tuple(unliteral(getattr(at, "dtype", at)) for at in call.types)
    loop = ufunc_find_matching_loop(call.key, elements)
    function = getattr(arithmetic, _SIGNED_ZEROS.get(call.key, ""), call.key)
    values = ops.TUPLE(*(t.value(a) for a in operands))
    wanted = ops.TUPLE(*(dtype_of(at) for at in loop.inputs))
    site = t.site(call.arguments[-1].unversioned_name, "store")
    return _ELEMENTWISE(function, values, wanted, t.value(call.arguments[-1]), site), call.result


_ELEMENTWISE = Op("elementwise(M, {}, {}, {}, {}, m, {})", Trait.EFFECT | Trait.WRITES_ANY)


_SIGNED_ZEROS = {np.maximum: "maximum", np.minimum: "minimum", np.fmax: "numpy_fmax", np.fmin: "numpy_fmin"}

_ROUNDINGS = {"rn": "rint", "rd": "floor", "ru": "ceil", "rz": "trunc"}
_CONVERSIONS = "double2float", *(f"{i}2{f}" for i in ("int", "uint", "ll", "ull") for f in ("float", "double"))
_INTEGERS = {"int": "i4", "uint": "u4", "ll": "i8", "ull": "u8"}
_LIBDEVICE = {
    **{n: Op(f"np.{n}") for n in "sin cos tan sinh cosh tanh exp exp2 expm1 log log2 log10 log1p sqrt cbrt".split()},
    **{n: Op(f"np.{n}") for n in "ceil floor trunc rint hypot fmod copysign nextafter ldexp".split()},
    **{f"a{n}": Op(f"np.arc{n}") for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    **{n: Op(n) for n in "fmin fmax erf erfc lgamma clz popc brev ffs frexp modf remainder byte_perm".split()},
    **{f"{n}{kind}": Op(f"np.{n}") for n in ("isnan", "isinf", "signbit") for kind in "df"},
    **{n: Op("np.isfinite") for n in ("finitef", "isfinited")},
    **{n: Op("high_product") for n in ("mulhi", "umulhi", "mul64hi", "umul64hi")},
    **{n: Op("({0} >> 1) + ({1} >> 1) + ({0} & {1} & 1)") for n in ("hadd", "uhadd")},
    **{n: Op("({0} >> 1) + ({1} >> 1) + (({0} | {1}) & 1)") for n in ("rhadd", "urhadd")},
    **{n: Op("np.maximum({0}, {1}) - np.minimum({0}, {1}) + {2}") for n in ("sad", "usad")},
    **{f"{n}_rn": ops.POS for n in _CONVERSIONS},
    **{
        f"{old}2{new}_{mode}": functools.partial(lambda f, d, x: ops.FLOAT_TO_INT(f(x), np.dtype(d)), Op(f"np.{f}"), d)
        for old in ("float", "double")
        for new, d in _INTEGERS.items()
        for mode, f in _ROUNDINGS.items()
    },
    **{
        f"{kind}{n}_rn": op
        for kind in "df"
        for n, op in {"add": ops.ADD, "sub": ops.SUB, "mul": ops.MUL, "div": ops.DIV}.items()
    },
    **{n: Op("(1 / np.sqrt({}))", Trait.QUOTIENT) for n in ("rsqrt", "frsqrt_rn")},
    **{n: Op("(1 / {})", Trait.QUOTIENT) for n in ("rcp_rn", "frcp_rn", "drcp_rn")},
    **{n: Op("np.sqrt") for n in ("fsqrt_rn", "dsqrt_rn")},
    **dict.fromkeys(("fma", "fma_rn", "fmaf_rn"), _FMA),
    **{
        f"{name}_{mode}": Op(f"rounded('{operation}', '{mode}', {', '.join(['{}'] * count)})")
        for operation, count, names in (
            *((op, 2, (f"d{op}", f"f{op}")) for op in ("add", "sub", "mul", "div")),
            *((op, 1, (f"d{op}", f"f{op}")) for op in ("sqrt", "rcp")),
            ("fma", 3, ("fma", "fmaf")),
            *((f, 1, [n for n in _CONVERSIONS if n.endswith(f"2{f}")]) for f in ("float", "double")),
        )
        for name in names
        for mode in ("rd", "ru", "rz")
    },
    **{n: Op(n) for n in "erfinv erfcinv erfcx normcdfinv j0 j1 jn y0 y1 yn remquo".split()},
    **{n: Op("np.minimum") for n in ("min", "umin", "llmin", "ullmin")},
    **{n: Op("np.maximum") for n in ("max", "umax", "llmax", "ullmax")},
    "fabs": _ABS,
    "pow": ops.POWER_FLOAT,
    "powi": ops.POWER_FLOAT_INT,
    "exp10": Op("(10 **{})"),
    "tgamma": Op("gamma"),
    "fdivide": ops.DIV,
    "fdim": Op("np.maximum({0} - {1}, 0)"),
    "rcbrt": Op("(1 / np.cbrt({}))", Trait.QUOTIENT),
    "scalbn": Op("np.ldexp"),
    **dict.fromkeys(("nearbyint", "llrint", "llrintf"), Op("np.rint")),
    **dict.fromkeys(("logb", "ilogb"), Op("(np.frexp({})[1] - 1)")),
    **dict.fromkeys(("round", "llround", "llroundf"), Op("np.copysign(np.floor(np.abs({0}) + 0.5), {0})")),
    "normcdf": Op("(erfc({0} * -(0.5**0.5)) / 2)"),
    "sincos": Op("(np.sin({0}), np.cos({0}))"),
    "sinpi": Op("np.sin(np.fmod({0}, 2) * np.pi)"),
    "cospi": Op("np.cos(np.fmod({0}, 2) * np.pi)"),
    "sincospi": Op("(np.sin(np.fmod({0}, 2) * np.pi), np.cos(np.fmod({0}, 2) * np.pi))"),
    "mul24": Op("((({0} << 8) >> 8) * (({1} << 8) >> 8))"),
    "umul24": Op("(({0} & 0xFFFFFF) * ({1} & 0xFFFFFF))"),
    "half2float": Op("bitcast({}, np.float16)"),
    "float2half_rn": Op("bitcast(({}).astype(np.float16), np.int16)"),
    "float_as_int": Op("bitcast({}, np.int32)"),
    "int_as_float": Op("bitcast({}, np.float32)"),
    "double_as_longlong": Op("bitcast({}, np.int64)"),
    "longlong_as_double": Op("bitcast({}, np.float64)"),
    "double2hiint": Op("(bitcast({}, np.int64) >> 32)"),
    "double2loint": Op("bitcast({}, np.int64)"),
    "hiloint2double": Op("bitcast((({0}).astype(np.int64) << 32) | ({1}.astype(np.int64) & 0xFFFFFFFF), np.float64)"),
    "abs": _ABS,
    "saturatef": Op("np.clip(np.where(np.isnan({0}), np.float32(0), {0}), np.float32(0), np.float32(1))"),
}


def libdevice_operation(name):
    """Find a function of ``cuda.libdevice``; ``fast_sinf``, ``sinf`` and ``sin`` are one operation."""
    name = name.removeprefix("fast_")
    names = (name, name.removesuffix("f"), name.removeprefix("ll"), name.removesuffix("ll"))
    return next((_LIBDEVICE[n] for n in names if n in _LIBDEVICE), None)


def _libdevice(t, call, op):
    expression = counted(op(*_values(t, call)), call.types[0], 2 if op is _FMA else 1)
    if isinstance(call.result, types.BaseTuple):
        return expression, call.result
    return ops.CAST(expression, dtype_of(call.result)), call.result


# -- the execution model -----------------------------------------------------------------------------------------------

_COUNT, _VOTE = Op("K.count({}, {}, m)", ops.STATE), Op("K.vote({}, {}, {}, m)", ops.STATE)
MATCH, _NAMED = Op("K.match({}, {}, {}, m)", ops.STATE), Op("K.named({})", ops.STATE)
#: The lanes that an operation of the whole warp waits for.
WHOLE_WARP = _NAMED(scalar(-1, np.int32))
_SHUFFLE = Op("K.shuffle({}, {}, {}, {}, m, {})", ops.ACTION)
_LANEID = Op("K.laneid()", ops.STATE)
_LANEMASK_LT = Op("((np.int64(1) << {}.astype(np.int64)) - np.int64(1)).astype(np.uint32)", Trait.NEGATIVE)


@entry(cuda.grid, cuda.gridsize)
def _grid(t, call):
    op = ops.GRID if call.key is cuda.grid else ops.GRIDSIZE
    dimensions = _constant(t, call, 0)
    item = call.result if dimensions == 1 else call.result.types[0]  # int64, or int32 with numba-cuda-mlir
    values = [t.cast(op(axis), types.int64, item) for axis in range(dimensions)]
    return values[0] if dimensions == 1 else ops.TUPLE(*values), call.result


@entry(cuda.syncthreads)
def _syncthreads(t, call):
    t.barrier("block")


@entry(cuda.syncthreads_count, cuda.syncthreads_and, cuda.syncthreads_or)
def _syncthreads_vote(t, call):
    mode = next(n for n in ("count", "and", "or") if call.key is getattr(cuda, f"syncthreads_{n}"))
    predicate = t.b.temporary(_values(t, call)[0])
    t.barrier("block")
    return _COUNT(mode, predicate), call.result


@entry(cuda.syncwarp)
def _syncwarp(t, call):
    mask = _values(t, call)[0] if call.arguments else scalar(-1, np.int32)
    t.pools.partial_warps |= bool(call.arguments)
    t.barrier("warp", _NAMED(mask), op="syncwarp")


def _warp_arguments(t, call):
    """Return the arguments of a warp operation, evaluated before its lanes synchronise."""
    values = [t.b.temporary(v) for v in _values(t, call)]
    t.barrier("warp", _NAMED(values[0]))
    return values


@entry(cuda.shfl_sync, cuda.shfl_up_sync, cuda.shfl_down_sync, cuda.shfl_xor_sync)
def _shuffle(t, call):
    modes = {cuda.shfl_sync: "idx", cuda.shfl_up_sync: "up", cuda.shfl_down_sync: "down", cuda.shfl_xor_sync: "xor"}
    values = _warp_arguments(t, call)
    return _SHUFFLE(modes[call.key], *values, t.site(op="shuffle")), call.result


@entry(cuda.all_sync, cuda.any_sync, cuda.eq_sync, cuda.ballot_sync)
def _vote(t, call):
    mode = next(n for n in ("all", "any", "eq", "ballot") if call.key is getattr(cuda, f"{n}_sync"))
    mask, predicate = _warp_arguments(t, call)
    predicate = t.cast(predicate, call.types[1], types.boolean)
    return _VOTE(mode, mask, predicate), call.result


@entry(cuda.match_any_sync, cuda.match_all_sync)
def _match(t, call):
    mode = "any" if call.key is cuda.match_any_sync else "all"
    mask, value = _warp_arguments(t, call)
    return MATCH(mode, mask, value), call.result


@entry(cuda.activemask)
def _activemask(t, call):
    return Op("K.activemask(m)", ops.ACTION)(), call.result


@entry(cuda.lanemask_lt)
def _lanemask_lt(t, call):
    return _LANEMASK_LT(_LANEID()), call.result


@entry(cuda.threadfence, cuda.threadfence_block, cuda.threadfence_system)
def _fence(t, call):
    t.pools.fences = True
    t.b.emit(Op("K.fence(m, {})", ops.ACTION)(call.key is not cuda.threadfence_block))


@entry(cuda.nanosleep)
def _nanosleep(t, call):
    t.b.emit(Op("K.sleep", ops.ACTION)(*_values(t, call)))


# -- memory ------------------------------------------------------------------------------------------------------------


def _fixed_shape(t, variable, type_):
    """The shape of a shared or local array, which has to be known while compiling."""
    parts = type_.types if isinstance(type_, types.BaseTuple) else (type_,)
    if all(isinstance(part, types.Literal) for part in parts):
        return tuple(int(part.literal_value) for part in parts)
    known = t.folded(variable)
    if known is None:
        raise t.unsupported("a shared or local array whose shape is no constant")
    return tuple(map(int, known.value)) if isinstance(known.value, tuple) else (int(known.value),)


def _check_alignment(t, alignment):
    """Raise NumbaValueError for an alignment that Numba refuses on a GPU."""
    pointer = struct.calcsize("P")
    if alignment < pointer or alignment & (alignment - 1):
        raise NumbaValueError(
            f"alignment is {alignment}; it must be a power of 2 and a multiple of {pointer} "
            f"({t.filename}, line {t.line})"
        )


@entry(cuda.shared.array, cuda.local.array)
def _array(t, call):
    shape = _fixed_shape(t, call.arguments[0], call.types[0])
    alignment = 0
    if len(call.types) > 2 and isinstance(call.types[2], types.IntegerLiteral):
        alignment = call.types[2].literal_value
        _check_alignment(t, alignment)
    dtype = dtype_of(call.result.dtype)
    shared = call.key is cuda.shared.array
    table = t.pools.static_shared if shared else t.pools.local_bytes
    # One array for each place in the source, however often its function is inlined.
    key = t.pools.once(call.expr, lambda: len(table))
    table[key] = math.prod(shape) * dtype.itemsize
    if shared and alignment:
        t.pools.shared_alignment[key] = alignment
    name = t.array_name or ("shared" if shared else "local")
    made = ops.SHARED_ARRAY if shared else ops.LOCAL_ARRAY
    return made(key, ops.TUPLE(*shape), dtype, name), call.result


@entry(cuda.const.array_like)
def _const_array_like(t, call):
    return t.constant_array(_constant(t, call, 0)), call.result


_ATOMICS = {
    getattr(cuda.atomic, n): n.rstrip("_")
    for n in ("add", "sub", "and_", "or_", "xor", "max", "min", "nanmax", "nanmin", "inc", "dec", "exch", "cas")
}


@entry(*_ATOMICS, cuda.atomic.compare_and_swap)
def _atomic(t, call):
    dtype = call.types[0].dtype
    if call.key is cuda.atomic.compare_and_swap:
        op, index, operands = "cas", ops.INDEX(ZERO), call.arguments[1:]
    else:
        op, operands = _ATOMICS[call.key], call.arguments[2:]
        index = t.index(call.arguments[1], call.types[0])[0]
    name = call.arguments[0].unversioned_name
    values = [t.value(v, dtype) for v in operands]
    second = values[1] if len(values) == 2 else NONE
    array = t.value(call.arguments[0])
    return ops.ATOMIC(array, op, index, values[0], second, t.site(name, "atomic")), call.result


_CACHED_LOADS = tuple(getattr(cuda, n) for n in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"))
#: Those that ask the memory again each time, so that a loop may wait for another thread.
_POLLS = cuda.ldcg, cuda.ldcv
_CACHED_STORES = tuple(getattr(cuda, n) for n in ("stcg", "stcs", "stwb", "stwt"))


@entry(*_CACHED_LOADS)
def _cached_load(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    op = "poll" if call.key in _POLLS else "load"
    return t.load(call.arguments[0], call.types[0], index, True, call.result, op)


@entry(*_CACHED_STORES)
def _cached_store(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "store")
    value = t.value(call.arguments[2], call.types[0].dtype)
    t.b.emit(ops.STORE(t.value(call.arguments[0]), index, value, site))


# -- attributes and methods --------------------------------------------------------------------------------------------


def attribute(t, target, expr, owner, type_):
    """Translate ``array.shape``, ``record.x``, ``math.pi``, ``cuda.laneid`` ..."""
    name = expr.attr
    if isinstance(owner, types.Module) and name in _SPECIAL_REGISTERS:
        return _SPECIAL_REGISTERS[name], types.int32
    if isinstance(owner, types.Module | types.EnumClass):
        source = owner.pymod if isinstance(owner, types.Module) else owner.instance_class
        t.frame.known[target] = Constant(getattr(source, name))
        return None
    if isinstance(owner, types.Array):
        return _array_attribute(t, expr.value, owner, name, type_)
    if isinstance(owner, types.Record):
        return t.load_field(expr.value, name), type_
    if isinstance(owner, VectorType):
        return ops.ITEM(t.value(expr.value), "xyzw".index(name)), vector_parts(owner)[0]
    if isinstance(owner, types.Complex) and name in ("real", "imag"):
        return _PARTS[name](t.value(expr.value)), owner.underlying_float
    if isinstance(owner, types.Integer | types.Float) and name in ("real", "imag"):
        value = t.value(expr.value)
        return (value if name == "real" else ops.MUL(value, 0)), type_
    if isinstance(owner, types.NamedTuple | types.NamedUniTuple):
        place = owner.fields.index(name)
        return ops.ITEM(t.value(expr.value), place), unliteral(owner.types[place])
    if isinstance(owner, types.EnumMember):  # at run time an enum member is its value
        return t.value(expr.value), type_
    return _other_attribute(t, expr.value, owner, name, type_)


def _other_attribute(t, variable, owner, name, type_):
    """Translate an attribute that a program defines."""
    template = typing_context().find_matching_getattr_template(owner, name)["template"]
    if getattr(template, "_overload_func", None):
        return _overloaded(t, template._overload_func, [variable], (owner,), type_)

    def emit(context, builder, values):
        return context.get_getattr(owner, name)(context, builder, owner, *values, name)

    return t.lowered(emit, [(t.value(variable), owner)], type_, f"the attribute {name} of {owner}")


#: Attributes of ``numba.cuda`` that a kernel reads as numbers.
_SPECIAL_REGISTERS = {"laneid": _LANEID(), "warpsize": scalar(WARP, np.int32)}
_PARTS = {"real": Op("{}.real"), "imag": Op("{}.imag")}
_TRANSPOSED = Op("{0}.with_window({0}.base, {0}.shape[::-1], {0}.strides[::-1])", Trait.SHAPE)
#: Attributes of any array, and their types.
_ARRAY_ATTRIBUTES = {
    "shape": (Op("tuple([n if n.__class__ is not int else np.int64(n) for n in {}.shape])", Trait.SHAPE), None),
    "strides": (Op("tuple([np.int64(n * {0}.dtype.itemsize) for n in {0}.strides])"), None),
    "size": (Op("{}.size"), types.int64),
    "itemsize": (Op("np.int64({}.dtype.itemsize)"), types.int64),
    "nbytes": (Op("({0}.size * np.int64({0}.dtype.itemsize))"), types.int64),
    "T": (_TRANSPOSED, None),
}
_COMPLEX_PART, _FIELD_VIEW = Op("complex_part"), Op("field_view")
_RETYPED, _RESHAPED = Op("M.retyped", ops.STATE), Op("reshaped(K, {}, {}, {})")


def _array_attribute(t, variable, owner, name, type_):
    view = t.value(variable)
    if name in _ARRAY_ATTRIBUTES:
        op, own_type = _ARRAY_ATTRIBUTES[name]
        return op(view), own_type or type_
    if name == "ndim":
        return scalar(owner.ndim, np.int64), types.int64
    if name == "flat":
        return ops.TUPLE("flat", view, ZERO), type_
    if isinstance(owner.dtype, types.Record) and name in owner.dtype.fields:
        return field_array(t, variable, name, type_)
    if isinstance(owner.dtype, types.Complex) and name in ("real", "imag"):
        return _COMPLEX_PART(view, int(name == "imag")), type_
    return _other_attribute(t, variable, owner, name, type_)


def array_attribute(view, name):
    """Return the expression of the shape or strides of an array."""
    return _ARRAY_ATTRIBUTES[name][0](view)


def field_array(t, variable, name, type_):
    """Translate ``records.x`` or ``records["x"]``, the array of one field."""
    return _FIELD_VIEW(t.value(variable), name), type_


def method(t, owner, function_type, arguments, signature):
    """Translate ``array.view(...)``, ``grid.sync()`` and other methods."""
    key = function_type.typing_key
    name = key.split(".")[-1] if isinstance(key, str) else key[1]
    this = function_type.this
    if isinstance(this, GridGroup) and name == "sync":
        t.pools.cooperative = True
        t.barrier("grid")
        return scalar(0, np.int32), types.int32
    if isinstance(this, types.Integer) and name == "bit_count":
        value = t.value(owner, signature.recvr or this)
        return t.cast(_AS_THEY_ARE[cuda.popc](value), this, signature.return_type), signature.return_type
    if isinstance(this, types.Array) and name in _ARRAY_METHODS:
        return _array_method(t, owner, this, name, arguments, signature)
    if isinstance(this, types.Array) and name == "ravel" and this.layout == "C" and can_allocate():
        return _RESHAPED(t.value(owner), ops.TUPLE(scalar(-1, np.int64)), t.site()), signature.return_type
    if isinstance(this, types.Array) and name in ("ravel", "flatten", "copy"):
        t.unsupported(f"the array method {name}, which allocates and which Numba cannot compile for a GPU,")
    if isinstance(this, types.Complex) and name == "conjugate":
        return Op("np.conjugate")(t.value(owner)), this
    types_ = this, *signature.args
    if hasattr(function_type.template, "_overload_func"):
        return _overloaded(t, function_type.template._overload_func, [owner, *arguments], types_, signature.return_type)
    call = Call([owner, *arguments], types_, signature.return_type, key, None)
    return _lowered(t, function_type, call, f"the method {name} of {this}")


_ARRAY_METHODS = ("view", "reshape", "transpose", "item")


def flat(view, site):
    """Return the expression for all elements of a contiguous array in one dimension."""
    return _RESHAPED(view, ops.TUPLE(scalar(-1, np.int64)), site)


def _array_method(t, owner, this, name, arguments, signature):
    view = t.value(owner)
    if name == "view":
        return _RETYPED(view, dtype_of(signature.return_type.dtype), t.site()), signature.return_type
    if name == "reshape":
        return _RESHAPED(view, _new_shape(t, arguments), t.site()), signature.return_type
    if name == "transpose" and not arguments:
        return _TRANSPOSED(view), signature.return_type
    if name == "item" and not arguments:
        return ops.LOAD(view, ops.INDEX(*[ZERO] * this.ndim), t.site(owner.unversioned_name, "load")), this.dtype
    return t.unsupported(f"the array method {name}")


def _new_shape(t, arguments):
    if len(arguments) == 1 and isinstance(t.type_of(arguments[0]), types.BaseTuple):
        return t.value(arguments[0])
    return ops.TUPLE(*(t.value(a, types.int64) for a in arguments))


_STRING_COMPARISONS = {
    operator.eq: Op("np.equal"),
    operator.ne: Op("np.not_equal"),
    operator.lt: Op("np.less"),
    operator.le: Op("np.less_equal"),
    operator.gt: Op("np.greater"),
    operator.ge: Op("np.greater_equal"),
}


def _value_type(type_):
    """Return the type of an enum member's value; other types as they are."""
    return type_.dtype if isinstance(type_, types.EnumMember) else type_


def is_number(type_):
    return isinstance(_value_type(type_), types.Number | types.Boolean)


def structured_operator(t, function_, signature, operands):
    """Translate an operator on tuples or None."""
    if all(isinstance(at, types.EnumMember) for at in signature.args):  # its members are single objects
        function_ = {operator.is_: operator.eq, operator.is_not: operator.ne}.get(function_, function_)
    first, second = (_value_type(unliteral(at)) for at in signature.args)
    optional = isinstance(first, types.Optional) or isinstance(second, types.Optional)
    if function_ in (operator.is_, operator.is_not) and not optional:
        same = isinstance(first, types.NoneType) and isinstance(second, types.NoneType)
        return scalar(same == (function_ is operator.is_), np.bool_), types.boolean
    if isinstance(first, types.BaseTuple) and isinstance(second, types.BaseTuple):
        a, b = (t.b.temporary(t.value(v)) for v in operands)
        if function_ is operator.add:
            return ops.ADD(a, b), signature.return_type
        nested = any(isinstance(item, types.BaseTuple) for item in (*first.types, *second.types))
        if function_ in (operator.eq, operator.ne) and len(first) == len(second) and not nested:
            pairs = [ops.EQ(ops.ITEM(a, i), ops.ITEM(b, i)) for i in range(len(first))]
            same = functools.reduce(ops.AND, pairs) if pairs else scalar(True, np.bool_)
            return (same if function_ is operator.eq else ops.NOT(same)), types.boolean
    if function_ in _STRING_COMPARISONS and is_string(first) and is_string(second):
        values = (t.value(v, _as_string(at)) for v, at in zip(operands, signature.args, strict=True))
        return _STRING_COMPARISONS[function_](*values), types.boolean
    if function_ is operator.contains and isinstance(first, types.BaseTuple) and not _is_foreign(second):
        items = t.b.temporary(t.value(operands[0]))
        value = t.value(operands[1], _as_string(signature.args[1]))
        equal = _STRING_COMPARISONS[operator.eq] if is_string(second) else ops.EQ
        found = [equal(ops.ITEM(items, i), value) for i in range(len(first))]
        return functools.reduce(ops.OR, found) if found else scalar(False, np.bool_), types.boolean
    return operator_of_other_types(t, function_, signature, operands)
