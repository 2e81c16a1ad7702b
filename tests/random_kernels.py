"""Randomly written CUDA kernels, as Python source, with the error that their floating point may have.

``generate(random)`` writes one from any object with the methods of ``random.Random``: from a seed for bulk runs, or from
hypothesis, which then shrinks it. A kernel has no data race and no undefined behaviour, so that two machines that run it
must agree: on every bit of integers, and of floats within twice the error bound that the generator carries along with each
expression (a device may fuse a*b+c). A float that is not exact feeds no branch, no index and no integer.

Run as a script on a GPU machine to compare the device with the emulator in bulk; ``--help`` lists the options.
"""

import argparse
import functools
import linecache
import math
import operator
import random as python_random
import sys
from dataclasses import dataclass, field, replace

import numpy as np
from numba import cuda
from numba.cuda import types
from numba.cuda.np import numpy_support

from gpukit.emulator.frontend import typing_context

INTEGERS = (
    types.int8,
    types.int16,
    types.int32,
    types.int64,
    types.uint8,
    types.uint16,
    types.uint32,
    types.uint64,
)
FLOATS = (types.float32, types.float64)
#: Largest magnitude that a float expression may reach: enough to vary, far from overflow.
LARGEST = {types.float32: 1e6, types.float64: 1e9}
MANTISSA = {types.float32: 24, types.float64: 53}
#: Error of a mathematical function beyond that of its argument, in units of half a last place of its largest value.
FUNCTION_ERROR = 8


# values with types and bounds


@dataclass(frozen=True)
class Value:
    """An expression: its text, Numba type, range, largest error (floats), and the finest bit of an exact float (2**grain)."""

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


@functools.cache
def unified(first, second):
    """The type of a variable that holds both, or None."""
    return typing_context().unify_types(first, second)


def limits(type_):
    if type_ == types.boolean:
        return 0, 1
    return type_.minval, type_.maxval


def integer(text, type_, low=None, high=None):
    """An integer or boolean value; a range that does not fit the type wraps, so that anything is possible."""
    least, most = limits(type_)
    if low is None or low < least or high > most:
        low, high = least, most
    return Value(text, type_, int(low), int(high))


def rounded(text, type_, low, high, error, grain=None):
    """The float result of one rounding. ``grain`` is given where the operands are exact: the result is too, if it fits."""
    size = max(abs(low), abs(high))
    if grain is not None and error == 0.0 and size < 2.0 ** (MANTISSA[type_] + grain):
        return Value(text, type_, low, high, 0.0, grain)
    return Value(text, type_, low, high, error + (size + error) * 2.0 ** -MANTISSA[type_])


def converted(value, type_, text=None):
    """The value as another type, as a device converts it; None where that is not defined or not exact enough."""
    text = value.text if text is None else text
    if value.type == type_:
        return replace(value, text=text)
    if type_ == types.boolean:
        return integer(text, type_) if value.exact else None
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


# a finished kernel


@dataclass
class Argument:
    """An array argument: contents before the launch, the view of it that is passed, the float error that it may end with."""

    name: str
    data: np.ndarray
    view: tuple | None = None
    error: float = 0.0
    written: bool = False

    def on(self, module):
        """(the array to compare afterwards, the array to pass) on a device."""
        whole = module.to_device(self.data.copy(order="K"))
        return whole, whole if self.view is None else whole[self.view]

    def host(self):
        """The same on the host."""
        whole = self.data.copy(order="K")
        return whole, whole if self.view is None else whole[self.view]

    @property
    def type(self):
        return numpy_support.from_dtype(self.data.dtype)


@dataclass
class Case:
    """A kernel with everything needed to launch it and to judge what it wrote."""

    name: str
    functions: str
    nodes: list
    grid: tuple
    block: tuple
    arguments: list = field(default_factory=list)
    scalars: list = field(default_factory=list)
    prologue: list = field(default_factory=list)
    shared: list = field(default_factory=list)

    @property
    def source(self):
        names = [a.name for a in self.arguments] + [name for name, _ in self.scalars]
        lines = [self.functions] if self.functions else []
        lines.append(f"def kernel({', '.join(names)}):")
        lines += [f"    {name} = {expression}" for name, expression, _ in self.prologue]
        lines += [f"    {name} = cuda.shared.array({shape}, np.{dtype})" for name, shape, dtype in self.shared]
        for node in self.nodes:
            lines += node.text(1)
        return "\n".join(lines) + "\n"

    def compile(self, module):
        """The kernel as ``module.jit`` makes it, where ``cuda`` in the source means ``module``."""
        return module.jit(self.function(module))

    def function(self, module):
        namespace = {"cuda": module, "np": np, "math": math}
        file = f"<{self.name}>"
        source = self.source
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        exec(compile(source, file, "exec"), namespace)
        return namespace["kernel"]

    def run(self, module):
        """Launch on a device; give its arrays as they are afterwards, by name."""
        arrays = [a.on(module) for a in self.arguments]
        launch = self.compile(module)[self.grid, self.block]
        launch(*(part for _, part in arrays), *(value for _, value in self.scalars))
        return {a.name: whole.copy_to_host() for a, (whole, _) in zip(self.arguments, arrays, strict=True)}

    def describe(self, name, at):
        """More about an element that differs."""
        return ""

    def differences(self, found, expected):
        """What two runs disagree about: a list of (array, index, found, expected), the worst first."""
        result = []
        for argument in self.arguments:
            result += compare(argument.name, found[argument.name], expected[argument.name], 2.0 * argument.error)
        return result


def compare(name, found, expected, error=0.0):
    """Elements of two arrays that differ: floats by more than ``error``, all else by a bit."""
    if found.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            same = (found == expected) | (np.abs(found - expected) <= error) | (np.isnan(found) & np.isnan(expected))
    else:
        same = found == expected
    places = np.argwhere(~same)
    return [(name, tuple(int(i) for i in at), found[tuple(at)], expected[tuple(at)]) for at in places]


class Code:
    """Statements that threads run on their own."""

    def __init__(self, lines, before, after):
        self.lines = lines
        #: Types of the variables that threads have before and after them.
        self.before, self.after = before, after

    def text(self, indent):
        return ["    " * indent + line for line in self.lines]


class Together:
    """One statement that the threads of a block or warp run together.

    ``what`` says which, for those who run it without a device: ("barrier",), ("count", mode, predicate),
    ("shuffle", mode, value, operand), ("vote", mode, predicate), ("match", value), the names of the variables in them; ``group`` is the
    expression of the lanes that take part. ``target`` is None or (name, type) of the variable that gets the result.
    """

    def __init__(self, line, what, target=None, group=None):
        self.line, self.what, self.target, self.group = line, what, target, group

    def text(self, indent):
        return ["    " * indent + self.line]


class Choice:
    """A branch that all threads of a block (``by`` "block") or of a group of lanes take alike; the condition is a variable."""

    def __init__(self, condition, then, otherwise):
        self.condition, self.then, self.otherwise = condition, then, otherwise

    def text(self, indent):
        lines = ["    " * indent + f"if {self.condition}:"]
        for node in self.then:
            lines += node.text(indent + 1)
        if self.otherwise:
            lines.append("    " * indent + "else:")
            for node in self.otherwise:
                lines += node.text(indent + 1)
        return lines


class Repeat:
    """A loop that all threads run equally often."""

    def __init__(self, variable, count, body):
        self.variable, self.count, self.body = variable, count, body

    def text(self, indent):
        lines = ["    " * indent + f"for {self.variable} in range({self.count}):"]
        for node in self.body:
            lines += node.text(indent + 1)
        return lines


# expressions


def product_range(a, b):
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def bit_range(name, type_, a, b):
    """Range of ``a & b`` and its relatives, where the signs are known."""
    if name == "&" and (a.low >= 0 or b.low >= 0):
        known = [v.high for v in (a, b) if v.low >= 0]
        return 0, min(known)
    if a.low >= 0 and b.low >= 0:
        return 0, (1 << max(a.high, b.high).bit_length()) - 1
    return None, None


def quotient_range(name, a, b):
    """Range of integer ``//`` and ``%``; by zero they give 0."""
    if name == "//":
        return -a.size, a.size
    if b.low >= 0:
        return 0, max(b.high - 1, 0)
    return -b.size, b.size


BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "/": operator.truediv,
}


def integer_binary(name, a, b):
    """``a name b`` for integers and booleans, or None if Numba refuses it or the result is not defined."""
    found = signature(BINARY[name], a.type, b.type)
    if found is None or isinstance(found[0], types.Float):
        return None
    type_ = found[0]
    text = f"({a.text} {name} {b.text})"
    if type_ == types.boolean:
        return integer(text, type_)
    if a.low == a.high and b.low == b.high and name in ("*", "<<"):
        return None  # Numba folds constants, and refuses those that do not fit
    if name in ("<<", ">>"):
        return shifted(name, text, type_, a, b)
    a, b = converted(a, type_), converted(b, type_)
    if name in ("//", "%"):
        # The quotient of the smallest integer and -1 does not fit.
        if a.low == type_.minval and type_.signed and b.low <= -1 <= b.high:
            return None
        return integer(text, type_, *quotient_range(name, a, b))
    if name in "&|^":
        return integer(text, type_, *bit_range(name, type_, a, b))
    if name == "*":
        return integer(text, type_, *product_range(a, b))
    ends = (a.low + b.low, a.high + b.high) if name == "+" else (a.low - b.high, a.high - b.low)
    return integer(text, type_, *ends)


def shifted(name, text, type_, a, b):
    if b.low < 0 or b.high >= type_.bitwidth:
        return None
    a = converted(a, type_)
    if name == "<<":
        return integer(text, type_, min(a.low, a.low << b.high), max(a.high, a.high << b.high))
    return integer(text, type_, min(a.low, a.low >> b.high, a.low >> b.low), max(a.high >> b.low, a.high >> b.high, 0))


def float_binary(name, a, b):
    """``a name b`` where the result is a float, with its error; None if it is refused, too large or not defined."""
    found = signature(BINARY[name], a.type, b.type)
    if found is None or not isinstance(found[0], types.Float):
        return None
    type_ = found[0]
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
    finest = 2.0 ** min(a.grain, b.grain)
    if name == "%":
        return rounded(text, type_, -b.size, b.size, 0.0, min(a.grain, b.grain))
    return rounded(text, type_, -a.size / finest, a.size / finest, 0.0, 0)


def _exp_bound(v):
    return math.exp(v.high)


@dataclass(frozen=True)
class Function:
    """A mathematical function: where it may be used, its range and the largest slope there."""

    usable: object
    range: object
    slope: object


SMOOTH = {
    "sqrt": Function(lambda v: v.low >= 0.25, lambda v: (0, math.sqrt(v.high)), lambda v: 1.0),
    "sin": Function(lambda v: v.size <= 1e4, lambda v: (-1, 1), lambda v: 1.0),
    "cos": Function(lambda v: v.size <= 1e4, lambda v: (-1, 1), lambda v: 1.0),
    "exp": Function(lambda v: v.high <= 8, lambda v: (0, _exp_bound(v)), _exp_bound),
    "expm1": Function(lambda v: v.high <= 8, lambda v: (-1, _exp_bound(v)), _exp_bound),
    "log": Function(lambda v: v.low >= 0.25, lambda v: (-2, abs(math.log(v.high)) + 2), lambda v: 4.0),
    "log1p": Function(lambda v: v.low >= -0.5, lambda v: (-1, abs(math.log1p(v.high)) + 1), lambda v: 2.0),
    "log2": Function(lambda v: v.low >= 0.25, lambda v: (-2, abs(math.log2(v.high)) + 2), lambda v: 6.0),
    "log10": Function(lambda v: v.low >= 0.25, lambda v: (-1, abs(math.log10(v.high)) + 1), lambda v: 2.0),
    "atan": Function(lambda v: True, lambda v: (-1.6, 1.6), lambda v: 1.0),
    "tanh": Function(lambda v: True, lambda v: (-1, 1), lambda v: 1.0),
    "asinh": Function(lambda v: True, lambda v: (-v.size, v.size), lambda v: 1.0),
    "erf": Function(lambda v: True, lambda v: (-1, 1), lambda v: 1.2),
    "fabs": Function(lambda v: True, lambda v: (0, v.size), lambda v: 1.0),
}
#: Functions that jump, for exact floats only.
STEPS = ("floor", "ceil", "trunc")


class Generator:
    """Writes one kernel."""

    def __init__(self, random, name):
        self.random = random
        self.case = Case(name, "", [], (1,), (1,))
        self.env = {}
        self.lines = []
        self.indent = 0
        self.counter = 0
        self.loops = []
        #: Outside variables that the body of a loop may assign: integers keep their type; floats only add up.
        self.assignable = None
        self.sums = {}
        self.total = 0
        self.device_functions = []
        self.atomic_targets = {}
        self.outputs = {}
        self.locals = []
        self.budget = 0
        self.may_return = False
        self.has_arrays = True

    # random choices

    def chance(self, percent):
        return self.random.randrange(100) < percent

    def pick(self, *choices):
        return choices[self.random.randrange(len(choices))]

    def number(self, low, high):
        return self.random.randint(low, high)

    def fresh(self, prefix="v"):
        self.counter += 1
        return f"{prefix}{self.counter}"

    # leaves

    def variables(self, kind):
        """Readable variables of a kind: types.Integer, types.Float or types.Boolean."""
        return [v for v in self.env.values() if isinstance(v.type, kind)]

    def integer_literal(self):
        value = self.pick(0, 1, 2, 3, 5, 7, 10, 31, 32, 64, 100, 255, 1000, 65535, 2**31 - 1, 2**31, 2**40)
        if self.chance(25):
            value = -value
        text = f"({value})" if value < 0 else self.pick(str(value), hex(value))
        return Value(text, types.int64, value, value)

    def integer_leaf(self):
        known = self.variables(types.Integer)
        kind = self.number(0, 9)
        if kind < 5 and known:
            return self.pick(*known)
        if kind < 8 and self.has_arrays:
            return self.element(self.pick(*INTEGERS))
        if kind == 8 and self.has_arrays and self.case.arguments:
            array = self.pick(*self.case.arguments)
            if array.written:
                return self.integer_literal()
            shown = self.pick(
                f"{array.name}.size", f"len({array.name})", f"{array.name}.shape[0]", f"{array.name}.ndim"
            )
            return integer(shown, types.int64, 0, 100_000)
        return self.integer_literal()

    def float_leaf(self, exact=False):
        known = [v for v in self.variables(types.Float) if v.exact or not exact]
        kind = self.number(0, 9)
        if kind < 5 and known:
            return self.pick(*known)
        if kind < 8 and self.has_arrays:
            return self.element(self.pick(*FLOATS), exact=exact or self.chance(40))
        value = self.pick(0.5, 1.0, 2.0, -1.5, 0.25, 3.0, -4.0, 10.0)
        literal = Value(f"({value})", types.float64, value, value, 0.0, -2)
        return cast(literal, types.float32) if self.chance(50) else literal

    def boolean_leaf(self):
        known = self.variables(types.Boolean)
        if known and self.chance(60):
            return self.pick(*known)
        if not self.has_arrays:
            return integer(f"({self.integer_leaf().text} < {self.integer_leaf().text})", types.boolean)
        return self.element(types.boolean)

    # arrays that are read

    def contents(self, shape, type_, exact):
        seed = self.random.randrange(1 << 30)
        random = np.random.default_rng(seed)
        dtype = numpy_support.as_dtype(type_)
        if dtype.kind == "b":
            return random.random(shape) < 0.5
        if dtype.kind == "f":
            if exact:
                return (random.integers(-64, 65, shape) / 4).astype(dtype)
            return random.uniform(-8, 8, shape).astype(dtype)
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        values = random.integers(least, most, shape, dtype, endpoint=True)
        small = random.integers(-3 if least < 0 else 0, 20, shape).astype(dtype)
        edges = random.choice(np.array([least, most, 0, 1], dtype), shape)
        kind = random.random(shape)
        return np.where(kind < 0.4, values, np.where(kind < 0.9, small, edges))

    def new_input(self, type_, exact):
        ndim = self.pick(1, 1, 1, 2, 2, 3)
        shape = (
            tuple(self.number(1, 9) for _ in range(ndim))
            if ndim > 1
            else (max(1, self.pick(self.total, self.number(1, 40))),)
        )
        steps = [self.pick(1, 1, 1, 2, -1) for _ in shape]
        whole = tuple(n * abs(s) for n, s in zip(shape, steps, strict=True))
        data = self.contents(whole, type_, exact)
        if ndim > 1 and self.chance(30):
            data = np.asfortranarray(data)
        view = None if all(s == 1 for s in steps) else tuple(slice(None, None, s) for s in steps)
        name = f"{'e' if exact else 'a'}{len(self.case.arguments)}"
        argument = Argument(name, data, view)
        self.case.arguments.append(argument)
        return argument

    def an_input(self, type_, exact=False):
        known = [
            a
            for a in self.case.arguments
            if not a.written
            and a.type == type_
            and (not isinstance(type_, types.Float) or a.name.startswith("e") == exact)
        ]
        if known and self.chance(75):
            return self.pick(*known)
        return self.new_input(type_, exact and isinstance(type_, types.Float))

    def element(self, type_, exact=False):
        """``array[index]`` of an input."""
        array = self.an_input(type_, exact)
        return self.loaded(array, f"{array.name}[{self.index_of(array)}]")

    def loaded(self, array, text):
        type_ = array.type
        if isinstance(type_, types.Float):
            return (
                Value(text, type_, -16, 16, 0.0, -2)
                if array.name.startswith("e")
                else Value(text, type_, -8, 8, 0.0, -53)
            )
        return integer(text, type_)

    def index_of(self, array):
        shape = array.host()[1].shape
        parts = [self.position(extent) for extent in shape]
        return ", ".join(parts)

    def position(self, extent):
        """Expression of an index within the extent."""
        kind = self.number(0, 9)
        if extent >= self.total and kind < 6:
            return self.pick(
                "i", "i", f"{extent} - 1 - i", "-1 - i", f"(i + {self.number(0, 9)}) % {extent}", "np.uint64(i)"
            )
        if kind == 6 or not self.has_arrays:
            return str(self.number(-extent, extent - 1))
        if kind < 9:
            return f"{self.pick('i', 't', 'tx', 'b')} % {extent}"
        return f"np.int64({self.integer_leaf().text}) % {extent}"

    # integer expressions

    def integer(self, depth):
        """A random integer expression."""
        if depth <= 0 or self.chance(15):
            return self.integer_leaf()
        rules = (
            (self._arithmetic, 30),
            (self._division, 10),
            (self._shift, 8),
            (self._cast_integer, 12),
            (self._unary, 6),
            (self._bit_function, 6),
            (self._integer_power, 4),
            (self._integer_extreme, 6),
            (self._integer_choice, 8),
            (self._truncated, 6),
            (self._selected, 4),
        )
        value = self._by_weight(rules)(depth - 1)
        return value if value and isinstance(value.type, types.Integer) else self.integer_leaf()

    def _by_weight(self, rules):
        at = self.random.randrange(sum(weight for _, weight in rules))
        for rule, weight in rules:
            at -= weight
            if at < 0:
                return rule
        raise AssertionError

    def _operand(self, depth):
        return self.boolean_leaf() if self.chance(8) else self.integer(depth)

    def _arithmetic(self, depth):
        return integer_binary(
            self.pick("+", "-", "*", "+", "-", "&", "|", "^"), self._operand(depth), self._operand(depth)
        )

    def _division(self, depth):
        divisor = self.integer(depth) if self.chance(60) else self.integer_literal()
        return integer_binary(self.pick("//", "%"), self.integer(depth), divisor)

    def _shift(self, depth):
        amount = integer_binary("&", self.integer(depth), Value("31", types.int64, 31, 31))
        if self.chance(30):
            count = self.number(0, 63)
            amount = Value(str(count), types.int64, count, count)
        return amount and integer_binary(self.pick("<<", ">>"), self.integer(depth), amount)

    def _cast_integer(self, depth):
        if self.chance(20):
            value = self.integer(depth)
            found = signature(int, value.type)
            return found and converted(value, found[0], f"int({value.text})")
        return cast(self._operand(depth), self.pick(*INTEGERS))

    def _unary(self, depth):
        name, function = self.pick(("-", operator.neg), ("~", operator.invert), ("abs", abs), ("+", operator.pos))
        value = self.integer(depth)
        found = signature(function, value.type)
        if found is None or not isinstance(found[0], types.Integer):
            return None
        text = f"abs({value.text})" if name == "abs" else f"({name}{value.text})"
        value = converted(value, found[0])
        if name == "abs":
            return None if value.low == found[0].minval and found[0].signed else integer(text, found[0], 0, value.size)
        ends = {"-": (-value.high, -value.low), "~": (~value.high, ~value.low), "+": (value.low, value.high)}[name]
        return integer(text, found[0], *ends)

    def _bit_function(self, depth):
        function = self.pick(cuda.popc, cuda.clz, cuda.ffs, cuda.brev)
        widths = (
            (types.uint32, types.uint64)
            if function is cuda.brev
            else (types.int32, types.int64, types.uint32, types.uint64)
        )
        value = cast(self.integer(depth), self.pick(*widths))
        found = signature(function, value.type)
        if found is None:
            return None
        text = f"cuda.{function.__name__}({value.text})"
        return integer(text, found[0]) if function is cuda.brev else integer(text, found[0], 0, 64)

    def _integer_power(self, depth):
        base = self.integer(depth)
        if base.low == base.high:
            return None
        if self.chance(60):
            exponent = self.number(0, 5)
            found = signature(operator.pow, base.type, types.IntegerLiteral(exponent))
            text = f"({base.text} ** {exponent})"
        else:
            bits = integer_binary("&", self.integer(0), Value("7", types.int64, 7, 7))
            found = bits and signature(operator.pow, base.type, bits.type)
            text = bits and f"({base.text} ** {bits.text})"
        return integer(text, found[0]) if found and isinstance(found[0], types.Integer) else None

    def _integer_extreme(self, depth):
        name = self.pick("min", "max")
        values = [self.integer(depth) for _ in range(self.pick(2, 2, 3))]
        found = signature({"min": min, "max": max}[name], *(v.type for v in values))
        if found is None or not isinstance(found[0], types.Integer):
            return None
        values = [converted(v, found[0], v.text) for v in values]
        text = f"{name}({', '.join(v.text for v in values)})"
        function = min if name == "min" else max
        return integer(text, found[0], function(v.low for v in values), function(v.high for v in values))

    def _integer_choice(self, depth):
        return self.choice(self.integer(depth), self.integer(depth), types.Integer, depth)

    def choice(self, first, second, kind, depth):
        """``first if condition else second``."""
        type_ = unified(first.type, second.type)
        if type_ is None or not isinstance(type_, kind):
            return None
        text = f"({first.text} if {self.condition(depth).text} else {second.text})"
        return joined(converted(first, type_), converted(second, type_), text)

    def _truncated(self, depth):
        value = self.real(depth, exact=True)
        if self.chance(30):
            found = signature(round, value.type)
            if found is None or not value.exact or value.size > 2**40:
                return None
            return integer(f"round({value.text})", found[0], math.floor(value.low), math.ceil(value.high))
        type_ = self.pick(types.int64, types.int64, types.int32, types.int16, types.int8)
        if type_ == types.int64 and self.chance(50):
            return converted(value, types.int64, f"int({value.text})")
        return cast(value, type_)

    def _selected(self, depth):
        type_ = self.pick(types.int32, types.int64, types.int16)
        first, second = cast(self.integer(depth), type_), cast(self.integer(depth), type_)
        found = signature(cuda.selp, types.boolean, type_, type_)
        text = f"cuda.selp({self.condition(depth).text}, {first.text}, {second.text})"
        return found and joined(converted(first, found[0]), converted(second, found[0]), text)

    # conditions

    def condition(self, depth):
        kind = self.number(0, 9)
        if depth > 0 and kind < 3:
            joint = self.pick("and", "or")
            return integer(
                f"({self.condition(depth - 1).text} {joint} {self.condition(depth - 1).text})", types.boolean
            )
        if depth > 0 and kind == 3:
            return integer(f"(not {self.condition(depth - 1).text})", types.boolean)
        if kind == 4:
            return self.boolean_leaf()
        if kind == 5 and self.has_arrays:
            return self.guarded()
        return self.comparison(max(depth, 0))

    def comparison(self, depth):
        name = self.pick("<", "<=", ">", ">=", "==", "!=")
        if self.chance(20):
            first, second = self.real(depth, exact=True), self.real(depth, exact=True)
        else:
            first, second = self.integer(depth), self.integer(depth)
        if self.chance(15):
            third = self.integer_literal()
            return integer(
                f"({first.text} {name} {second.text} {self.pick('<', '!=', '>=')} {third.text})", types.boolean
            )
        return integer(f"({first.text} {name} {second.text})", types.boolean)

    def guarded(self):
        """A condition whose second half would be out of range where the first does not hold."""
        array = self.an_input(self.pick(*INTEGERS, types.boolean))
        shape = array.host()[1].shape
        if len(shape) > 1:
            return self.boolean_leaf()
        ahead = self.number(0, 12)
        inside, outside = f"i + {ahead} < {shape[0]}", f"i + {ahead} >= {array.name}.size"
        read = f"{array.name}[i + {ahead}]"
        if self.chance(50):
            return integer(f"({inside} and {read} > {self.number(-2, 5)})", types.boolean)
        return integer(f"({outside} or {read} == {self.number(0, 5)})", types.boolean)

    # float expressions

    def real(self, depth, exact=False):
        """A random float expression; an exact one where asked for (or a leaf, if none comes out)."""
        if depth <= 0 or self.chance(15):
            return self.float_leaf(exact)
        rules = [
            (self._float_arithmetic, 40),
            (self._float_cast, 10),
            (self._float_choice, 8),
            (self._float_extreme, 6),
            (self._float_step, 6),
            (self._float_floor, 6),
            (self._float_unary, 6),
        ]
        if not exact:
            rules += [(self._float_quotient, 8), (self._float_function, 14), (self._fma, 5), (self._float_power, 5)]
        value = self._by_weight(rules)(depth - 1, exact)
        if value is None or value.size > LARGEST[value.type] or (exact and not value.exact):
            return self.float_leaf(exact)
        return value

    def _float_arithmetic(self, depth, exact):
        first = self.real(depth, exact)
        second = self.small_integer(depth) if self.chance(20) else self.real(depth, exact)
        if self.chance(20):
            first, second = second, first
        return float_binary(self.pick("+", "-", "*"), first, second)

    def small_integer(self, depth):
        value = self.integer(depth)
        if value.size > 1000:
            value = integer_binary(
                "%", converted(value, types.int64, f"np.int64({value.text})"), Value("97", types.int64, 97, 97)
            )
        return value

    def _float_cast(self, depth, exact):
        if self.chance(50):
            value = self.small_integer(depth)
            if self.chance(40):
                return converted(value, types.float64, f"float({value.text})")
            return cast(value, self.pick(*FLOATS))
        return cast(self.real(depth, exact), self.pick(*FLOATS))

    def _float_choice(self, depth, exact):
        return self.choice(self.real(depth, exact), self.real(depth, exact), types.Float, depth)

    def _float_extreme(self, depth, exact):
        first, second = self.real(depth, exact), self.real(depth, exact)
        name, function = self.pick(("min", min), ("max", max), ("np.minimum", np.minimum), ("np.fmax", np.fmax))
        found = signature(function, first.type, second.type)
        if found is None:
            return None
        return joined(converted(first, found[0]), converted(second, found[0]), f"{name}({first.text}, {second.text})")

    def _float_step(self, depth, exact):
        value = self.real(depth, exact=True)
        name = self.pick(*STEPS)
        found = signature(getattr(math, name), value.type)
        if found is None or not value.exact:
            return None
        low, high, text = math.floor(value.low), math.ceil(value.high), f"math.{name}({value.text})"
        if isinstance(found[0], types.Integer):
            return converted(integer(text, found[0], low, high), types.float64, f"float({text})")
        return rounded(text, found[0], low, high, 0.0, 0)

    def _float_floor(self, depth, exact):
        divisor = float(self.pick(2, 3, 0.75, -1.5, -4))
        return float_binary(
            self.pick("//", "%"),
            self.real(depth, True),
            Value(f"({divisor})", types.float64, divisor, divisor, 0.0, -2),
        )

    def _float_unary(self, depth, exact):
        value = self.real(depth, exact)
        if self.chance(50):
            return replace(value, text=f"(-{value.text})", low=-value.high, high=-value.low)
        return replace(value, text=f"abs({value.text})", low=0.0, high=value.size)

    def _float_quotient(self, depth, exact):
        divisor = self.real(depth)
        divisor = replace(divisor, text=f"abs({divisor.text})", low=0.0, high=divisor.size)
        one = Value("np.float32(1.5)", types.float32, 1.5, 1.5, 0.0, -1)
        below = float_binary("+", divisor, one)
        return below and float_binary("/", self.real(depth), below)

    def _float_function(self, depth, exact):
        name = self.pick(*SMOOTH)
        rule = SMOOTH[name]
        value = self.real(depth)
        if not rule.usable(value):
            value = replace(
                value, text=f"(abs({value.text}) * np.float32(0.125))", low=0.0, high=value.size / 8, error=value.error
            )
            value = rounded(value.text, value.type, value.low, value.high, value.error)
            value = float_binary("+", value, Value("np.float32(0.5)", types.float32, 0.5, 0.5, 0.0, -1))
            if value is None or not rule.usable(value):
                return None
        module = "np" if name not in ("erf",) and self.chance(25) else "math"
        written = {"asinh": "arcsinh", "atan": "arctan"}.get(name, name) if module == "np" else name
        found = signature(getattr({"np": np, "math": math}[module], written), value.type)
        if found is None:
            return None
        low, high = (float(end) for end in rule.range(value))
        error = rule.slope(value) * value.error + FUNCTION_ERROR * max(abs(low), abs(high)) * 2.0 ** -MANTISSA[found[0]]
        return rounded(f"{module}.{written}({value.text})", found[0], low, high, error)

    def _fma(self, depth, exact):
        type_ = self.pick(*FLOATS)
        a, b, c = (cast(self.real(depth), type_) for _ in range(3))
        product = float_binary("*", a, b)
        total = product and float_binary("+", product, c)
        return total and replace(total, text=f"cuda.fma({a.text}, {b.text}, {c.text})")

    def _float_power(self, depth, exact):
        value, exponent = self.real(depth), self.number(0, 4)
        found = signature(operator.pow, value.type, types.IntegerLiteral(exponent))
        result = Value("", found[0], 1.0, 1.0)
        for _ in range(exponent):
            result = result and float_binary("*", result, value)
        return result and replace(result, text=f"({value.text} ** {exponent})")

    # statements

    def write(self, line):
        self.lines.append("    " * self.indent + line)

    def block(self, statements, depth):
        """A nested block: its own scope of new variables. True if control may go on after it."""
        self.indent += 1
        before = len(self.lines)
        goes_on = True
        for _ in range(statements):
            if not self.statement(depth):
                goes_on = False
                break
        if len(self.lines) == before:
            self.write("pass")
        self.indent -= 1
        return goes_on

    def statement(self, depth):
        """One random statement; False if control does not go on after it."""
        self.budget -= 1
        rules = [
            (self.define, 30),
            (self.assign, 20),
            (self.store, 12),
            (self.atomic, 6),
            (self.unpack, 5),
            (self.local_array, 4),
            (self.use_local, 6 if self.locals else 0),
            (self.call, 5),
            (self.add_up, 16 if self.sums else 0),
            (self.view, 4),
        ]
        if depth > 0 and self.budget > 0:
            rules += [(lambda: self.branch(depth - 1), 16), (lambda: self.loop(depth - 1), 12)]
        if self.loops:
            rules += [(self.leave_loop, 5)]
        if self.may_return:
            rules += [(self.early_return, 2)]
        result = self._by_weight([r for r in rules if r[1]])()
        return result is not False

    def bind(self, name, value):
        """``name = value``; the variable can be read from now on."""
        self.write(f"{name} = {value.text}")
        self.env[name] = replace(value, text=name)
        if self.assignable is not None:
            self.assignable.add(name)

    def value(self, depth):
        kind = self.number(0, 9)
        if kind < 6:
            return self.integer(depth)
        return self.real(depth, exact=self.chance(30)) if kind < 9 else self.condition(depth)

    def define(self):
        self.bind(self.fresh(), self.value(3))

    def targets(self):
        """Variables that may be assigned here: all outside of loops; in a loop those chosen at its start, and its own."""
        names = [n for n in self.env if n.startswith("v")]
        return names if self.assignable is None else [n for n in names if n in self.assignable]

    def assign(self):
        names = self.targets()
        if not names:
            return self.define()
        name = self.pick(*names)
        old = self.env[name]
        if self.assignable is not None:
            return self._assign_same_type(name, old)
        if isinstance(old.type, types.Integer) and self.chance(40):
            value = self._augmented(old)
            if value is not None:
                sign, operand, value = value
                self.write(f"{name} {sign}= {operand}")
                self.env[name] = replace(value, text=name)
                return None
        return self.bind(name, self.value(3))

    def _augmented(self, old):
        sign = self.pick("+", "-", "*", "//", "%", "&", "|", "^")
        operand = self.integer(2)
        value = integer_binary(sign, old, operand)
        return value and (sign, operand.text, value)

    def _assign_same_type(self, name, old):
        if isinstance(old.type, types.Integer):
            value = integer_binary(self.pick("+", "-", "*", "^"), old, self.integer(2))
            if value is None or self.chance(40):
                value = self.integer(3)
            self.write(f"{name} = {value.text if value.type == old.type else cast(value, old.type).text}")
        elif old.type == types.boolean:
            self.write(f"{name} = {self.comparison(2).text}")
        else:
            return
        self.env[name] = integer(name, old.type)

    # branches

    def branch(self, depth):
        outer = dict(self.env)
        ends = []
        arms = self.pick(1, 1, 2, 2, 3)
        for arm in range(arms):
            word = "if" if arm == 0 else "elif"
            self.write(f"{word} {self.condition(2).text}:")
            self._arm(depth, outer, ends)
        if self.chance(60):
            self.write("else:")
            self._arm(depth, outer, ends)
        else:
            ends.append(outer)
        self.env = merged(outer, ends)
        return bool(ends)

    def _arm(self, depth, outer, ends):
        self.env = dict(outer)
        held = list(self.locals)
        if self.block(self.number(1, 3), depth):
            ends.append(self.env)
        self.env = dict(outer)
        self.locals = held

    # loops

    def loop(self, depth):
        outer, locals_before = dict(self.env), list(self.locals)
        assignable_before, sums_before = self.assignable, dict(self.sums)
        chosen = self._choose_assigned(sums=not self.loops)
        kind = self.pick("range", "range", "while", "array", "pairs")
        trips = getattr(self, f"_{kind}_head")()
        self.loops.append(trips)
        inner = dict(self.env)
        self.block(self.number(1, 4), depth)
        self.loops.pop()
        if kind in ("range", "while") and self.chance(20):
            self.env = {n: v for n, v in inner.items() if n in outer}
            self.write("else:")
            self.block(1, 0)
        self.locals = locals_before
        self.assignable = assignable_before
        after = {n: integer(n, v.type) if n in chosen else v for n, v in outer.items()}
        for name in [n for n in self.sums if n not in sums_before]:
            after[name] = self.sums[name].result(name)
            del self.sums[name]
        self.env = after

    def _choose_assigned(self, sums=False):
        """Which variables of outside the body may change, before it is written: what it reads depends on that."""
        names = [n for n in self.targets() if not isinstance(self.env[n].type, types.Float)]
        chosen = {n for n in names if self.chance(50)}
        for name in chosen:
            self.env[name] = integer(name, self.env[name].type)
        if sums:
            for name in [n for n in self.targets() if isinstance(self.env[n].type, types.Float)]:
                if self.chance(50):
                    self.sums[name] = Sum(self.env.pop(name), self.chance(30))
        self.assignable = set(chosen)
        return chosen

    def bound(self, most=7):
        """An integer expression from 0 to ``most`` (7 or less), the same for all threads or not."""
        if self.chance(30):
            return Value(str(self.number(0, most)), types.int64, 0, most)
        value = integer_binary(
            "%", cast(self.integer(1), types.int64), Value(str(most + 1), types.int64, most + 1, most + 1)
        )
        return value if value is not None else Value("3", types.int64, 3, 3)

    def _range_head(self):
        name = self.fresh("k")
        kind = self.number(0, 3)
        stop = self.bound()
        if kind == 0:
            start, step = self.number(-3, 3), self.pick(1, 2, 3, -1, -2)
            first = f"{start}, {stop.text}, {step}" if step > 0 else f"{stop.text}, {start}, {step}"
            self.write(f"for {name} in range({first}):")
            self.env[name] = integer(name, types.int64, -10, 10)
        elif kind == 1:
            type_ = self.pick(types.int32, types.uint32, types.uint64, types.int8)
            found = typing_context().resolve_function_type(range, (type_,), {}).return_type.dtype
            self.write(f"for {name} in range({cast(stop, type_).text}):")
            self.env[name] = integer(name, found, 0, 7)
        else:
            self.write(f"for {name} in range({stop.text}):")
            self.env[name] = integer(name, types.int64, 0, 7)
        return 11

    def _while_head(self):
        name = self.fresh("w")
        self.write(f"{name} = {self.bound().text}")
        self.env[name] = integer(name, types.int64, -1, 7)
        condition = self.condition(1).text
        extra = self.pick("", "", f" and {condition}", f" and ({condition} or {name} > 2)")
        self.write(f"while {name} > 0{extra}:")
        self.write(f"    {name} -= 1")
        return 7

    def _array_head(self):
        array = self.pick_vector()
        name = self.fresh("x")
        self.write(f"for {name} in {array.name}[:{self.number(0, 6)}]:")
        self.env[name] = replace(self.loaded(array, name), text=name)
        return 6

    def _pairs_head(self):
        first, second = self.pick_vector(), self.pick_vector()
        k, x = self.fresh("k"), self.fresh("x")
        if self.chance(50):
            self.write(f"for {k}, {x} in enumerate({first.name}[:{self.number(0, 6)}]):")
            self.env[k] = integer(k, types.int64, 0, 6)
        else:
            self.write(f"for {k}, {x} in zip({second.name}[:{self.number(0, 6)}], {first.name}):")
            self.env[k] = replace(self.loaded(second, k), text=k)
        self.env[x] = replace(self.loaded(first, x), text=x)
        return 6

    def pick_vector(self):
        while True:
            array = self.an_input(self.pick(*INTEGERS, *FLOATS))
            if array.host()[1].ndim == 1:
                return array

    def leave_loop(self):
        word = self.pick("break", "continue")
        self.write(f"if {self.condition(1).text}:")
        self.write(f"    {word}")

    def early_return(self):
        self.write(f"if {self.comparison(1).text}:")
        self.write("    return")

    def add_up(self):
        """A sum over the turns of a loop: ``acc += e``, or ``acc = acc * 0.5 + e``, which stays bounded."""
        name = self.pick(*self.sums)
        total = self.sums[name]
        value = self.real(2)
        type_ = total.start.type
        value = value if value.type == type_ else cast(value, type_)
        turns = math.prod(self.loops)
        if value.size * turns > 1e5:
            return
        if total.decays:
            self.write(f"{name} = {name} * {CAST[type_]}(0.5) + {value.text}")
        else:
            self.write(f"{name} {self.pick('+', '-')}= {value.text}")
        total.add(value, turns)

    # stores

    def output(self, type_):
        """An array that each thread writes its own elements of."""
        known = [a for a in self.outputs.values() if a.type == type_]
        if known and (len(known) > 1 or self.chance(60)):
            return self.pick(*known)
        shape = (self.total, *((self.number(2, 4),) if self.chance(30) else ()))
        name = f"o{len(self.case.arguments)}"
        data = (
            np.asfortranarray(self.contents(shape, type_, True))
            if self.chance(20)
            else self.contents(shape, type_, True)
        )
        argument = Argument(name, data, written=True)
        self.case.arguments.append(argument)
        self.outputs[name] = argument
        return argument

    def store(self):
        self.save(self.value(3))

    def save(self, value):
        """Store a value to an output of its type, or of another that it converts to."""
        choices = [value.type, value.type, self.pick(*INTEGERS, *FLOATS, types.boolean)]
        type_ = self.pick(*choices)
        stored = converted(value, type_)
        if stored is None:
            type_ = value.type
            stored = value
        target = self.output(type_)
        target.error = max(target.error, stored.error)
        second = f", {self.number(0, target.data.shape[1] - 1)}" if target.data.ndim == 2 else ""
        self.write(f"{target.name}[i{second}] = {value.text}")

    # atomics

    def atomic(self):
        if self.chance(30):
            return self.atomic_with_old_value()
        family = self.pick("add", "max", "min", "and_", "or_", "xor")
        type_ = self.pick(types.int32, types.int64, types.uint32, types.uint64)
        if family == "add" and self.chance(30):
            type_ = self.pick(*FLOATS)
        name, array = self.atomic_target(family, type_)
        if isinstance(type_, types.Float):
            value = Value(f"{CAST[type_]}({self.small_integer(1).text})", type_, 0, 0)
        else:
            value = cast(self.integer(2), type_)
        operation = self.pick("add", "sub") if family == "add" else family
        size = array.data.shape[0]
        at = self.pick(f"i % {size}", f"tx % {size}", "0", f"np.int64({self.integer(1).text}) % {size}")
        index = at if array.data.ndim == 1 else f"({at}, {self.number(0, 1)})"
        self.write(f"cuda.atomic.{operation}({name}, {index}, {value.text})")
        return None

    def atomic_target(self, family, type_):
        """An array that is only touched by one family of atomics: its contents do not depend on their order."""
        key = family, type_
        if key not in self.atomic_targets:
            name = f"h{len(self.case.arguments)}"
            shape = (self.number(1, 9),) if self.chance(70) else (self.number(1, 5), 2)
            data = self.contents(shape, type_, False)
            if isinstance(type_, types.Float):
                data = np.round(data)
            argument = Argument(name, data, written=True)
            self.case.arguments.append(argument)
            self.atomic_targets[key] = name, argument
        return self.atomic_targets[key]

    def atomic_with_old_value(self):
        """Each thread has its own element: the old value is certain."""
        type_ = self.pick(types.int32, types.int64, types.uint32, types.uint64)
        operations = ["add", "sub", "max", "min", "and_", "or_", "xor", "exch", "cas"]
        operations += ["inc", "dec"] if not type_.signed else []
        operation = self.pick(*operations)
        name = f"c{len(self.case.arguments)}"
        data = self.contents((self.total,), type_, False)
        self.case.arguments.append(Argument(name, data, written=True))
        values = ", ".join(cast(self.integer(1), type_).text for _ in range(2 if operation == "cas" else 1))
        self.bind(self.fresh(), integer(f"cuda.atomic.{operation}({name}, i, {values})", type_))

    # tuples, local arrays, views, device functions

    def unpack(self):
        kind = self.number(0, 3)
        if kind == 0:
            first, second = self.value(2), self.value(2)
            a, b = self.fresh(), self.fresh()
            self.write(f"{a}, {b} = {first.text}, {second.text}")
            self.env[a], self.env[b] = replace(first, text=a), replace(second, text=b)
        elif kind == 1:
            self._tuple_indexed()
        elif kind == 2:
            self._swap()
        else:
            values = [self.value(1) for _ in range(3)]
            name = self.fresh("p")
            self.write(f"{name} = ({', '.join(v.text for v in values)})")
            at = self.number(0, 2)
            self.bind(self.fresh(), replace(values[at], text=f"{name}[{at - 3 if self.chance(30) else at}]"))

    def _tuple_indexed(self):
        type_ = self.pick(*INTEGERS)
        values = [cast(self.integer(1), type_) for _ in range(self.number(1, 4))]
        name = self.fresh("p")
        self.write(f"{name} = ({', '.join(v.text for v in values)},)")
        self.bind(self.fresh(), integer(f"{name}[{self.position(len(values))}]", type_))

    def _swap(self):
        names = [n for n in self.targets() if isinstance(self.env[n].type, types.Integer)]
        for first in names:
            for second in names:
                if first < second and self.env[first].type == self.env[second].type:
                    self.write(f"{first}, {second} = {second}, {first}")
                    a, b = self.env[first], self.env[second]
                    self.env[first], self.env[second] = replace(b, text=first), replace(a, text=second)
                    return

    def local_array(self):
        if self.indent or len(self.locals) > 2:
            return
        type_ = self.pick(*INTEGERS, *FLOATS, types.boolean)
        name = self.fresh("l")
        shape = (self.number(1, 6),) if self.chance(70) else (self.number(1, 4), self.number(1, 4))
        self.write(
            f"{name} = cuda.local.array({shape if len(shape) > 1 else shape[0]}, np.{'bool_' if type_ == types.boolean else type_})"
        )
        k = self.fresh("k")
        if len(shape) == 1:
            self.write(f"for {k} in range({shape[0]}):")
            self.write(f"    {name}[{k}] = {k}")
        else:
            self.write(f"for {k} in range({shape[0] * shape[1]}):")
            self.write(f"    {name}[{k} // {shape[1]}, {k} % {shape[1]}] = {k}")
        self.locals.append((name, type_, shape))

    def use_local(self):
        name, type_, shape = self.pick(*self.locals)
        index = ", ".join(self.position(n) for n in shape)
        text = f"{name}[{index}]"
        if self.chance(50):
            value = self.element(type_, exact=True) if isinstance(type_, types.Float) else self.value(2)
            if converted(value, type_) is not None:
                self.write(f"{text} = {value.text}")
        elif isinstance(type_, types.Float):
            self.bind(self.fresh(), Value(text, type_, -16, 16, 0.0, -2))
        else:
            self.bind(self.fresh(), integer(text, type_))

    def view(self):
        """A slice of an input, read at one place."""
        array = self.an_input(self.pick(*INTEGERS, *FLOATS, types.boolean))
        shape = array.host()[1].shape
        name = self.fresh("s")
        if len(shape) == 1:
            start = self.number(0, shape[0] - 1)
            self.write(f"{name} = {array.name}[{self.pick(f'{start}:', '::-1', f'{start}::2', f'-{start + 1}:')}]")
            where = f"np.int64({self.integer(1).text}) % {name}.size"
        elif len(shape) == 2:
            row, column = self.position(shape[0]), self.position(shape[1])
            self.write(
                f"{name} = {self.pick(f'{array.name}[{row}]', f'{array.name}.T[{column}]', f'{array.name}[:, {column}]')}"
            )
            where = f"{self.pick('i', 't', 'tx')} % {name}.shape[0]"
        else:
            self.write(f"{name} = {array.name}[{self.position(shape[0])}, ::-1]")
            where = ", ".join(self.position(n) for n in shape[1:])
        self.bind(self.fresh(), self.loaded(array, f"{name}[{where}]"))

    def call(self):
        if len(self.device_functions) < 2 and self.chance(60):
            self.device_functions.append(device_function(self))
        if not self.device_functions:
            return
        name, parameters, defaults, result = self.pick(*self.device_functions)
        given = len(parameters) - (self.number(0, defaults) if defaults else 0)
        arguments = [cast(self.integer(1), type_).text for _, type_ in parameters[:given]]
        if arguments and self.chance(30):
            arguments[-1] = f"{parameters[given - 1][0]}={arguments[-1]}"
        self.bind(self.fresh(), integer(f"{name}({', '.join(arguments)})", result))


@dataclass
class Sum:
    """A float variable that a loop adds to: its bounds after the loop."""

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
        start = self.start
        if not self.turns:
            return replace(start, text=name)
        unit = 2.0 ** -MANTISSA[start.type]
        if self.decays:
            size = max(start.size, 2 * self.size)
            error = start.error + 2 * (self.error + 4 * unit * size)
        else:
            size = start.size + self.size
            error = start.error + self.error + self.turns * unit * 2 * size
        return Value(name, start.type, -size, size, error)


def joined(first, second, text):
    """A value that is one or the other."""
    if first is None or second is None:
        return None
    low, high = min(first.low, second.low), max(first.high, second.high)
    if not isinstance(first.type, types.Float):
        return integer(text, first.type, low, high)
    return Value(text, first.type, low, high, max(first.error, second.error), min(first.grain, second.grain))


def merged(outer, ends):
    """The variables after a branch, from those at the end of each arm."""
    result = {}
    for name in outer if ends else ():
        value = ends[0][name] if name in ends[0] else None
        for env in ends[1:]:
            other = env.get(name)
            type_ = value and other and unified(value.type, other.type)
            value = type_ and joined(converted(value, type_), converted(other, type_), name)
        if value:
            result[name] = replace(value, text=name)
    return result


def device_function(outer):
    """Write a device function of integers with several returns; (name, parameters, how many have defaults, result type)."""
    inner = Generator(outer.random, "")
    name = f"dev{len(outer.device_functions)}"
    parameters = [(p, outer.pick(*INTEGERS)) for p in "pqr"[: outer.number(1, 3)]]
    defaults = outer.number(0, len(parameters) - 1)
    first_default = len(parameters) - defaults
    inner.env = {p: integer(p, types.int64 if k >= first_default else t) for k, (p, t) in enumerate(parameters)}
    parameters = [(p, types.int64 if k >= first_default else t) for k, (p, t) in enumerate(parameters)]
    result = outer.pick(*INTEGERS)
    inner.indent = 1
    inner.has_arrays = False
    for _ in range(outer.number(0, 2)):
        inner.define()
    inner.write(f"if {inner.comparison(1).text}:")
    inner.write(f"    return {cast(inner.integer(2), result).text}")
    if outer.chance(50):
        k = inner.fresh("k")
        inner.write(f"for {k} in range({inner.bound().text}):")
        inner.env[k] = integer(k, types.int64, 0, 7)
        inner.write(f"    if {inner.comparison(1).text}:")
        inner.write(f"        return {cast(inner.integer(1), result).text}")
        del inner.env[k]
    inner.write(f"return {cast(inner.integer(2), result).text}")
    shown = [f"{p}={outer.number(-5, 9)}" if k >= first_default else p for k, (p, _) in enumerate(parameters)]
    head = f"@cuda.jit(device=True)\ndef {name}({', '.join(shown)}):\n"
    outer.case.functions += head + "\n".join(inner.lines) + "\n\n\n"
    return name, parameters, defaults, result


# whole kernels

BLOCKS = (
    1,
    7,
    32,
    33,
    40,
    64,
    96,
    (8, 4),
    (5, 7),
    (16, 3),
    (32, 2),
    (4, 3, 2),
    (2, 3, 7),
    (8, 2, 4),
    (1, 40),
    (1, 1, 33),
)
GRIDS = (1, 2, 3, 5, (2, 2), (3, 1), (1, 3), (2, 1, 3), (1, 2, 2))


def three(extents):
    return ((extents,) if isinstance(extents, int) else extents) + (1, 1, 1)[
        : 3 - (1 if isinstance(extents, int) else len(extents))
    ]


#: Variables that every kernel starts with: name, expression, type. The linear indices are int64, as Numba computes them.
INDICES = [
    *((f"t{a}", f"cuda.threadIdx.{a}", types.int32) for a in "xyz"),
    *((f"b{a}", f"cuda.blockIdx.{a}", types.int32) for a in "xyz"),
    ("t", "tx + cuda.blockDim.x * (ty + cuda.blockDim.y * tz)", types.int64),
    ("b", "bx + cuda.gridDim.x * (by + cuda.gridDim.y * bz)", types.int64),
    ("i", "t + b * {threads}", types.int64),
    ("lane", "{lane}", types.int32),
]


def indices_of(block, b, t):
    """The values of `INDICES` in thread ``t`` of block ``b``, for those who run a kernel without a device."""
    (nx, ny, _), (gx, gy, _) = block
    thread = (t % nx, t // nx % ny, t // (nx * ny))
    place = (b % gx, b // gx % gy, b // (gx * gy))
    return thread, place


def start(random, name, guarded):
    """A generator with a launch configuration, the thread indices as variables, and some scalar arguments."""
    g = Generator(random, name)
    block, grid = three(g.pick(*BLOCKS)), three(g.pick(*GRIDS))
    threads = math.prod(block)
    g.case.grid, g.case.block = grid, block
    g.total = math.prod(grid) * threads
    flat = block[1:] == (1, 1) and grid[1:] == (1, 1)
    whole = {"threads": threads, "lane": "cuda.laneid" if g.chance(50) else "np.int32(t % 32)"}
    for variable, expression, type_ in INDICES:
        if variable == "i" and flat:
            expression = "cuda.grid(1)"
        g.case.prologue.append((variable, expression.format(**whole), type_))
        g.env[variable] = integer(variable, type_, 0, g.total)
    for k in range(g.number(0, 2)):
        type_ = g.pick(types.int64, types.int32, types.uint8, types.float64, types.float32)
        number = g.number(-20, 20) if type_ != types.uint8 else g.number(0, 20)
        scalar = numpy_support.as_dtype(type_).type(number)
        g.case.scalars.append((f"g{k}", scalar if type_ not in (types.int64, types.float64) else scalar.item()))
        g.env[f"g{k}"] = Value(f"g{k}", type_, number, number)
    if guarded and g.chance(60):
        g.total = g.number(1, g.total)
        g.case.scalars.append(("n", g.total))
        g.write("if i >= n:")
        g.write("    return")
    return g


def types_of(env):
    return {name: value.type for name, value in env.items()}


def save_all(g):
    """Store what the variables hold at the end."""
    for name, value in list(g.env.items()):
        if name.startswith("v"):
            g.save(replace(value, text=name))


def independent(random, name="independent"):
    """A kernel of threads that do not wait for each other."""
    g = start(random, name, guarded=True)
    g.may_return = g.chance(30)
    g.budget = g.number(6, 26)
    before = types_of(g.env)
    while g.budget > 0:
        g.statement(3)
    save_all(g)
    g.case.nodes.append(Code(g.lines, before, types_of(g.env)))
    return g.case


class Cooperation:
    """Writes kernels whose threads exchange values: through shared memory and barriers, and within warps."""

    def __init__(self, random, name):
        self.g = start(random, name, guarded=False)
        self.g.write("pass")
        self.threads = math.prod(self.g.case.block)
        self.rest = self.threads % 32
        self.before = types_of(self.g.env)
        self._masks()

    def _masks(self):
        """``mask`` and ``lanes``: the lanes of this thread's warp, as bits and as a number."""
        whole, rest = f"np.uint32({0xFFFFFFFF})", f"np.uint32({(1 << self.rest) - 1})"
        last = self.threads // 32
        full = f"t // 32 < {last}"
        self.g.case.prologue += [
            ("mask", f"{whole} if {full} else {rest}" if self.rest else whole, types.uint32),
            ("lanes", f"32 if {full} else {self.rest}" if self.rest else "32", types.int64),
        ]

    # pieces of thread code

    def flush(self, nodes):
        """Close the statements written so far: what follows needs all threads."""
        g = self.g
        if g.lines:
            nodes.append(Code(g.lines, self.before, types_of(g.env)))
        g.lines, g.locals = [], []
        self.before = types_of(g.env)

    def together(self, nodes, line, what, target=None, group=None):
        self.flush(nodes)
        if target is not None:
            name, value = target
            line = f"{name} = {line}"
            self.g.env[name] = replace(value, text=name)
            if self.g.assignable is not None:
                self.g.assignable.add(name)
            target = name, value.type
        nodes.append(Together(line, what, target, group))
        self.before = types_of(self.g.env)

    def variable(self, value):
        name = self.g.fresh()
        self.g.bind(name, value)
        return self.g.env[name]

    def code(self):
        for _ in range(self.g.number(1, 3)):
            self.g.statement(2)

    # exchanges

    def numeric(self, *allowed):
        """A new variable of one of these types."""
        type_ = self.g.pick(*allowed)
        value = self.g.real(2) if isinstance(type_, types.Float) else self.g.integer(2)
        return self.variable(value if value.type == type_ else cast(value, type_))

    def shared(self, type_, size):
        name = f"sh{len(self.g.case.shared)}"
        dtype = "bool_" if type_ == types.boolean else str(type_)
        self.g.case.shared.append((name, size, dtype))
        return name

    def exchange(self, nodes):
        """Write one's own element of a shared array, read others'."""
        g = self.g
        value = self.numeric(*INTEGERS, *FLOATS)
        rows, columns = self.threads // g.case.block[0], g.case.block[0]
        flat = g.chance(60)
        name = self.shared(value.type, self.threads if flat else f"({rows}, {columns + g.number(0, 1)})")
        g.write(f"{name}[{'t' if flat else f't // {columns}, tx'}] = {value.text}")
        self.together(nodes, "cuda.syncthreads()", ("barrier",))
        for _ in range(g.number(1, 2)):
            far = self.neighbour(self.threads) if flat else f"{self.neighbour(rows)}, {self.neighbour(columns)}"
            g.bind(g.fresh(), replace(value, text=f"{name}[{far}]"))
        if g.chance(30) or g.assignable is not None:
            self.together(nodes, "cuda.syncthreads()", ("barrier",))

    def neighbour(self, size):
        g = self.g
        return g.pick(
            f"(t + {g.number(0, 40)}) % {size}", f"{size - 1} - t % {size}", f"np.int64({g.integer(1).text}) % {size}"
        )

    def histogram(self, nodes):
        """Atomics on a shared array that the first threads clear."""
        g = self.g
        size = g.number(1, min(self.threads, 8))
        type_, family = (
            g.pick(types.int32, types.int64, types.uint32),
            g.pick("add", "max", "or_", "xor", "min", "and_"),
        )
        name = self.shared(type_, size)
        g.write(f"if t < {size}:")
        g.write(f"    {name}[t] = {g.number(0, 9)}")
        self.together(nodes, "cuda.syncthreads()", ("barrier",))
        for _ in range(g.number(1, 2)):
            index = f"np.int64({g.integer(1).text}) % {size}"
            g.write(f"cuda.atomic.{family}({name}, {index}, {cast(g.integer(1), type_).text})")
        self.together(nodes, "cuda.syncthreads()", ("barrier",))
        g.bind(g.fresh(), integer(f"{name}[{g.position(size)}]", type_))
        if g.assignable is not None:
            self.together(nodes, "cuda.syncthreads()", ("barrier",))

    def counted(self, nodes):
        g = self.g
        mode = g.pick("count", "and", "or")
        yes = self.variable(cast(g.condition(1), types.int32))
        result = g.fresh(), integer("", types.int32, 0, self.threads)
        self.together(nodes, f"cuda.syncthreads_{mode}({yes.text})", ("count", mode, yes.text), result)

    # warps

    def warp(self, nodes, width=32):
        """An operation of a whole warp, or of each group of ``width`` lanes with the mask ``group``."""
        self.g.pick(self.shuffle, self.shuffle, self.vote, self.match)(nodes, width)

    def _mask(self, width):
        return "mask" if width == 32 else "group"

    def shuffle(self, nodes, width):
        g = self.g
        value = self.numeric(types.int32, types.int64, *FLOATS)
        # In a partial warp, or a group, a lane must not read one that does not take part.
        modes = ["idx", "xor"] + (["up"] if width == 32 else []) + (["down"] if width == 32 and not self.rest else [])
        mode = g.pick(*modes)
        if mode == "idx":
            source = f"np.int64({g.integer(1).text})"
            text = f"{source} % lanes" if width == 32 else f"lane // {width} * {width} + {source} % {width}"
            operand = self.variable(integer(text, types.int64, 0, 31)).text
        elif mode == "xor":
            most = width if width < 32 or not self.rest else self.rest & -self.rest
            operand = str(g.number(0, most - 1))
        else:
            operand = str(g.number(0, 31))
        function = "shfl_sync" if mode == "idx" else f"shfl_{mode}_sync"
        line = f"cuda.{function}({self._mask(width)}, {value.text}, {operand})"
        self.together(nodes, line, ("shuffle", mode, value.text, operand), (g.fresh(), value), self._mask(width))

    def vote(self, nodes, width):
        g = self.g
        mode = g.pick("all", "any", "eq", "ballot")
        yes = self.variable(g.condition(1))
        result = g.fresh(), integer("", types.int32 if mode == "ballot" else types.boolean)
        line = f"cuda.{mode}_sync({self._mask(width)}, {yes.text})"
        self.together(nodes, line, ("vote", mode, yes.text), result, self._mask(width))

    def match(self, nodes, width):
        g = self.g
        value = g.integer(1)
        type_ = g.pick(types.int32, types.int64)
        few = integer_binary(
            "%", converted(value, types.int64, f"np.int64({value.text})"), Value("3", types.int64, 3, 3)
        )
        few = self.variable(cast(few, type_))
        result = g.fresh(), integer("", types.int32)
        self.together(
            nodes,
            f"cuda.match_any_sync({self._mask(width)}, {few.text})",
            ("match", few.text),
            result,
            self._mask(width),
        )

    def groups(self, nodes):
        """Groups of lanes, each with its own mask: all of them, or only some."""
        g = self.g
        widths = [w for w in (4, 8, 16) if self.threads % w == 0]
        if not widths:
            return
        width = g.pick(*widths)
        everyone = g.chance(40)
        chosen = self.variable(integer(f"(lane // {width} % {g.pick(2, 3)} == {g.number(0, 1)})", types.boolean))
        mask = f"np.uint32({(1 << width) - 1}) << np.uint32(lane // {width} * {width})"
        g.write(f"group = np.uint32({mask})")
        self.g.env["group"] = integer("group", types.uint32)
        if everyone:
            self.warp(nodes, width)
        else:
            self.choice(nodes, chosen.text, lambda inner: self.warp(inner, width))
        del self.g.env["group"]
        self.before = types_of(g.env)

    # control flow that all threads of a block share

    def choice(self, nodes, condition, write):
        g = self.g
        self.flush(nodes)
        arms = []
        before, assignable = dict(g.env), g.assignable
        chosen = g._choose_assigned()
        entered = dict(g.env)
        for arm in range(g.pick(1, 2)):
            g.env = dict(entered)
            self.before = types_of(g.env)
            inner = []
            self.code()
            if arm == 0 or g.chance(50):
                write(inner)
            self.flush(inner)
            arms.append(inner)
        g.env = {n: integer(n, v.type) if n in chosen else v for n, v in before.items()}
        g.assignable = assignable
        self.before = types_of(g.env)
        nodes.append(Choice(condition, arms[0], arms[1] if len(arms) > 1 else []))

    def uniform_choice(self, nodes, depth):
        by = self.g.pick("b % 2 == 0", "bx == 0", "b % 3 != 1", "cuda.blockDim.x > 8")
        condition = self.variable(integer(f"({by})", types.boolean))
        self.choice(nodes, condition.text, lambda inner: self.cooperate(inner, depth - 1))

    def uniform_loop(self, nodes, depth):
        g = self.g
        self.flush(nodes)
        before, assignable = dict(g.env), g.assignable
        chosen = g._choose_assigned()
        name, count = g.fresh("k"), g.number(1, 3)
        g.env[name] = integer(name, types.int64, 0, count)
        self.before = types_of(g.env)
        g.loops.append(count)
        can_leave, body = g.leave_loop, []
        g.leave_loop = g.define  # a thread that leaves would be missed at the barriers
        for _ in range(g.number(1, 2)):
            self.cooperate(body, depth - 1)
        self.code()
        self.flush(body)
        g.leave_loop = can_leave
        g.loops.pop()
        g.env = {n: integer(n, v.type) if n in chosen else v for n, v in before.items()}
        g.assignable = assignable
        self.before = types_of(g.env)
        nodes.append(Repeat(name, count, body))

    def cooperate(self, nodes, depth):
        """One step that threads take together, with code before it."""
        self.code()
        rules = [
            (lambda n: self.exchange(n), 5),
            (lambda n: self.histogram(n), 2),
            (lambda n: self.counted(n), 2),
            (lambda n: self.warp(n), 6),
            (lambda n: self.groups(n), 2),
        ]
        if depth > 0:
            rules += [(lambda n: self.uniform_choice(n, depth), 2), (lambda n: self.uniform_loop(n, depth), 2)]
        self.g._by_weight(rules)(nodes)

    def finish(self):
        nodes = self.g.case.nodes
        for _ in range(self.g.number(2, 5)):
            self.g.budget = 8
            self.cooperate(nodes, 2)
        self.code()
        save_all(self.g)
        self.flush(nodes)
        return self.g.case


def cooperative(random, name="cooperative"):
    """A kernel of threads that meet at barriers and exchange values."""
    return Cooperation(random, name).finish()


def generate(random, name="random"):
    """A random kernel: from a seed (int) or any object with the methods of ``random.Random``."""
    if isinstance(random, int):
        random = python_random.Random(random)
    return (independent if random.randrange(100) < 55 else cooperative)(random, name)


def main(arguments=None):
    """Compare many random kernels, from the command line."""
    import device_runs

    parser = argparse.ArgumentParser(
        description="Run random kernels in the emulator and, with --gpu, on the GPU too, and compare."
    )
    parser.add_argument(
        "--gpu", action="store_true", help="compare with the GPU; without it the kernels only have to run"
    )
    parser.add_argument("--count", type=int, default=100, help="number of kernels (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first kernel; the others follow (default 1)")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--jobs", type=int, help="processes at once")
    parser.add_argument(
        "--table", nargs="*", metavar="TEXT", help="the table of written kernels instead (those whose names hold TEXT)"
    )
    parser.add_argument("--report", metavar="FILE", help="write the failures to FILE as JSON")
    parser.add_argument("--show", action="store_true", help="only print the kernel of --seed")
    options = parser.parse_args(arguments)
    if options.show:
        print(generate(options.seed).source)
        return 0
    if options.table is None:
        cases = [f"random:{seed}" for seed in range(options.seed, options.seed + options.count)]
    else:
        from kernels import on_device

        cases = [f"table:{n}" for n in on_device.CASES if not options.table or any(text in n for text in options.table)]

    def progress(case, answer, done):
        if answer["status"] not in device_runs.GOOD or done % 100 == 0:
            print(f"[{done}/{len(cases)}] {case} {answer['status']}", flush=True)

    answers = device_runs.run_all(cases, options.gpu, options.jobs, options.minutes, progress)
    print(device_runs.summary(answers))
    if options.report:
        device_runs.write_report(options.report, answers)
    return 0 if all(a["status"] in device_runs.GOOD for a in answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
