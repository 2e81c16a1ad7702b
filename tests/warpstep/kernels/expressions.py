"""Random expressions over the variables and arrays that a kernel has at one place."""

import math
import operator
from dataclasses import replace

import numpy as np
from kernels.bounds import (
    FLOATS,
    INTEGERS,
    LARGEST,
    SMOOTH,
    STEPS,
    Value,
    as_int64,
    boolean,
    cast,
    contained,
    converted,
    either,
    float_binary,
    integer,
    integer_binary,
    joined,
    literal,
    modulo,
    result_type,
    rounded,
)
from kernels.cases import Argument
from numba import cuda
from numba.cuda import types
from numba.cuda.np import numpy_support
from numba.cuda.ufuncs import ufunc_db

NUMBERS = (0, 1, 2, 3, 5, 7, 10, 31, 32, 64, 100, 255, 1000, 65535, 2**31 - 1, 2**31, 2**40)


class Expressions:
    """Writes expressions; reads of arrays add arguments to the case.

    Attributes
    ----------
    env : dict
        The variables that can be read: {name: Value}.
    total : int
        Threads that get past the kernel's first lines; ``i`` numbers them.
    has_arrays : bool
        False in a device function, which sees its parameters only.
    """

    def __init__(self, random, case):
        self.random, self.case = random, case
        self.env = {}
        self.total = 0
        self.has_arrays = True

    # Choices

    def chance(self, percent):
        return self.random.randrange(100) < percent

    def pick(self, *choices):
        return choices[self.random.randrange(len(choices))]

    def number(self, low, high):
        return self.random.randint(low, high)

    def by_weight(self, rules):
        """One of (rule, weight) pairs."""
        at = self.random.randrange(sum(weight for _, weight in rules))
        for rule, weight in rules:
            at -= weight
            if at < 0:
                return rule
        raise ValueError("the weights are all 0")

    # Arrays that are read

    def contents(self, shape, type_, exact=True):
        """Random elements: many small integers, and the ends of the type; exact floats are quarters."""
        random = np.random.default_rng(self.random.randrange(1 << 30))
        dtype = numpy_support.as_dtype(type_)
        if dtype.kind == "b":
            return random.random(shape) < 0.5
        if dtype.kind == "f":
            values = random.integers(-64, 65, shape) / 4 if exact else random.uniform(-8, 8, shape)
            return values.astype(dtype)
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        values = random.integers(least, most, shape, dtype, endpoint=True)
        small = random.integers(-3 if least < 0 else 0, 20, shape).astype(dtype)
        ends = random.choice(np.array([least, most, 0, 1], dtype), shape)
        kind = random.random(shape)
        return np.where(kind < 0.4, values, np.where(kind < 0.9, small, ends))

    def add_argument(self, prefix, data, view=None, written=False):
        argument = Argument(f"{prefix}{len(self.case.arguments)}", data, view, written=written)
        self.case.arguments.append(argument)
        return argument

    def new_input(self, type_, exact):
        """A new array to read, of 1 to 3 dimensions: contiguous, a slice with steps, backwards, column-major."""
        ndim = self.pick(1, 1, 1, 2, 2, 3)
        if ndim > 1:
            shape = [self.number(1, 9) for _ in range(ndim)]
        else:
            shape = [max(1, self.pick(self.total, self.number(1, 40)))]
        steps = [self.pick(1, 1, 1, 2, -1) for _ in shape]
        data = self.contents(tuple(n * abs(s) for n, s in zip(shape, steps, strict=True)), type_, exact)
        if ndim > 1 and self.chance(30):
            data = np.asfortranarray(data)
        view = tuple(slice(None, None, s) for s in steps) if set(steps) != {1} else None
        return self.add_argument("e" if exact else "a", data, view)

    def an_input(self, type_, exact=False):
        """An array of a type that is only read: a known one, or a new one."""
        exact = exact and isinstance(type_, types.Float)
        prefix = "e" if exact else "a"
        known = [a for a in self.case.arguments if not a.written and a.type == type_ and a.name.startswith(prefix)]
        return self.pick(*known) if known and self.chance(75) else self.new_input(type_, exact)

    def element(self, type_, exact=False):
        """``array[index]`` of an input."""
        array = self.an_input(type_, exact)
        return self.loaded(array, f"{array.name}[{', '.join(self.position(n) for n in array.shape)}]")

    def loaded(self, array, text):
        """A value read from an input."""
        if not isinstance(array.type, types.Float):
            return integer(text, array.type)
        exact = array.name.startswith("e")
        return Value(text, array.type, -16, 16, 0.0, -2) if exact else Value(text, array.type, -8, 8, 0.0, -53)

    def position(self, extent):
        """An index within an extent."""
        kind = self.number(0, 9) if self.has_arrays else 6
        if extent >= self.total and kind < 6:
            ahead = f"(i + {self.number(0, 9)}) % {extent}"
            return self.pick("i", "i", f"{extent} - 1 - i", "-1 - i", ahead, "np.uint64(i)")
        if kind == 6:
            return str(self.number(-extent, extent - 1))
        if kind < 9:
            return f"{self.pick('i', 't', 'tx', 'b')} % {extent}"
        return f"np.int64({self.integer_leaf().text}) % {extent}"

    # Leaves

    def variables(self, kind):
        """Readable variables of a kind: types.Integer, types.Float or types.Boolean."""
        return [v for v in self.env.values() if isinstance(v.type, kind)]

    def integer_literal(self):
        value = self.pick(*NUMBERS)
        value = -value if self.chance(25) else value
        return replace(literal(value), text=hex(value)) if value > 0 and self.chance(50) else literal(value)

    def integer_leaf(self):
        known = self.variables(types.Integer)
        kind = self.number(0, 9)
        if kind < 5 and known:
            return self.pick(*known)
        if kind < 8 and self.has_arrays:
            return self.element(self.pick(*INTEGERS))
        if kind == 8 and self.has_arrays and self.case.arguments:
            name = self.pick(*self.case.arguments).name
            text = self.pick(f"{name}.size", f"len({name})", f"{name}.shape[0]", f"{name}.ndim", f"{name}.shape[-1]")
            return integer(text, types.int64, 0, 100_000)
        return self.integer_literal()

    def float_leaf(self, exact=False):
        known = [v for v in self.variables(types.Float) if v.exact or not exact]
        kind = self.number(0, 9)
        if kind < 5 and known:
            return self.pick(*known)
        if kind < 8 and self.has_arrays:
            return self.element(self.pick(*FLOATS), exact=exact or self.chance(40))
        value = self.pick(0.5, 1.0, 2.0, -1.5, 0.25, 3.0, -4.0, 10.0)
        written = Value(f"({value})", types.float64, value, value, 0.0, -2)
        return cast(written, types.float32) if self.chance(50) else written

    def boolean_leaf(self):
        known = self.variables(types.Boolean)
        if known and self.chance(60):
            return self.pick(*known)
        if not self.has_arrays:
            return boolean(f"({self.integer_leaf().text} < {self.integer_leaf().text})")
        return self.element(types.boolean)

    # Integers

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
            (self._integer_choice, 10),
            (self._truncated, 6),
            (self._selected, 4),
        )
        value = self.by_weight(rules)(depth - 1)
        return value if value and isinstance(value.type, types.Integer) else self.integer_leaf()

    def _operand(self, depth):
        return self.boolean_leaf() if self.chance(8) else self.integer(depth)

    def _arithmetic(self, depth):
        sign = self.pick("+", "-", "*", "+", "-", "&", "|", "^")
        return contained(sign, self._operand(depth), self._operand(depth))

    def _division(self, depth):
        divisor = self.integer(depth) if self.chance(60) else self.integer_literal()
        return integer_binary(self.pick("//", "%"), self.integer(depth), divisor)

    def _shift(self, depth):
        amount = literal(self.number(0, 63))
        if self.chance(70):
            amount = integer_binary("&", self.integer(depth), literal(31))
        return amount and integer_binary(self.pick("<<", ">>"), self.integer(depth), amount)

    def _cast_integer(self, depth):
        if self.chance(80):
            return cast(self._operand(depth), self.pick(*INTEGERS))
        value = self.integer(depth)
        return converted(value, result_type(int, value), f"int({value.text})")

    def _unary(self, depth):
        sign, function = self.pick(("-", operator.neg), ("~", operator.invert), ("+", operator.pos), ("abs", abs))
        value = self.integer(depth)
        type_ = result_type(function, value, kind=types.Integer)
        if type_ is None or (value.type.signed and value.low == value.type.minval and sign in ("-", "abs")):
            return None
        text = f"abs({value.text})" if sign == "abs" else f"({sign}{value.text})"
        value = converted(value, type_)
        if sign == "abs":
            return integer(text, type_, 0, value.size)
        ends = {"-": (-value.high, -value.low), "~": (~value.high, ~value.low), "+": (value.low, value.high)}
        return integer(text, type_, *ends[sign])

    def _bit_function(self, depth):
        function = self.pick(cuda.popc, cuda.clz, cuda.ffs, cuda.brev)
        widths = (types.uint32, types.uint64, types.int32, types.int64)
        value = cast(self.integer(depth), self.pick(*widths[: 2 if function is cuda.brev else 4]))
        type_ = result_type(function, value)
        ends = () if function is cuda.brev else (0, 64)
        return integer(f"cuda.{function.__name__}({value.text})", type_, *ends)

    def _integer_power(self, depth):
        base = modulo(self.integer(depth), 97)  # powers of larger numbers overflow
        if self.chance(60):
            exponent = self.number(0, 7)
            shown, type_ = exponent, types.IntegerLiteral(exponent)
        else:
            variable = integer_binary("&", self.integer(0), literal(7))
            if variable is None:
                return None
            shown, type_ = variable.text, variable.type
        found = result_type(operator.pow, base, type_, kind=types.Integer)
        return found and integer(f"({base.text} ** {shown})", found)

    def _integer_extreme(self, depth):
        function = self.pick(min, max)
        values = [self.integer(depth) for _ in range(self.pick(2, 2, 3))]
        type_ = result_type(function, *values, kind=types.Integer)
        if type_ is None:
            return None
        text = f"{function.__name__}({', '.join(v.text for v in values)})"
        values = [converted(v, type_) for v in values]
        return integer(text, type_, function(v.low for v in values), function(v.high for v in values))

    def _integer_choice(self, depth):
        first, second = self.integer(depth), self.integer(depth)
        if self.chance(25):
            return either(first, second, f"({first.text} {self.pick('and', 'or')} {second.text})", types.Integer)
        return self.conditional(first, second, types.Integer, depth)

    def conditional(self, first, second, kind, depth):
        """``first if condition else second``."""
        return either(first, second, f"({first.text} if {self.condition(depth).text} else {second.text})", kind)

    def _truncated(self, depth):
        value = self.real(depth, exact=True)
        if self.chance(30):
            type_ = result_type(round, value, kind=types.Integer)
            fits = type_ is not None and value.exact and value.size < 2**40
            ends = math.floor(value.low), math.ceil(value.high)
            return integer(f"round({value.text})", type_, *ends) if fits else None
        if self.chance(40):
            return converted(value, types.int64, f"int({value.text})")
        return cast(value, self.pick(types.int64, types.int32, types.int16, types.int8))

    def _selected(self, depth):
        type_ = self.pick(types.int32, types.int64, types.int16)
        first, second = cast(self.integer(depth), type_), cast(self.integer(depth), type_)
        found = result_type(cuda.selp, types.boolean, first, second)
        text = f"cuda.selp({self.condition(depth).text}, {first.text}, {second.text})"
        return found and joined(converted(first, found), converted(second, found), text)

    # Conditions

    def condition(self, depth):
        """A random boolean expression."""
        kind = self.number(0, 9)
        if depth > 0 and kind < 3:
            first, second = self.condition(depth - 1), self.condition(depth - 1)
            return boolean(f"({first.text} {self.pick('and', 'or')} {second.text})")
        if depth > 0 and kind == 3:
            return boolean(f"(not {self.condition(depth - 1).text})")
        if kind == 4:
            return self.boolean_leaf()
        if kind == 5 and self.has_arrays:
            return self.guarded()
        return self.comparison(max(depth, 0))

    def comparison(self, depth):
        sign = self.pick("<", "<=", ">", ">=", "==", "!=")
        if self.chance(20):
            first, second = self.real(depth, exact=True), self.real(depth, exact=True)
        else:
            first, second = self.integer(depth), self.integer(depth)
        chained = f" {self.pick('<', '!=', '>=')} {self.integer_literal().text}" if self.chance(15) else ""
        return boolean(f"({first.text} {sign} {second.text}{chained})")

    def guarded(self):
        """A condition whose second half reads out of range where the first does not hold."""
        array = self.an_input(self.pick(*INTEGERS, types.boolean))
        if len(array.shape) > 1:
            return self.boolean_leaf()
        ahead, size = self.number(0, 12), array.shape[0]
        read = f"{array.name}[i + {ahead}]"
        if self.chance(50):
            return boolean(f"(i + {ahead} < {size} and {read} > {self.number(-2, 5)})")
        return boolean(f"(i + {ahead} >= {array.name}.size or {read} == {self.number(0, 5)})")

    # Floats

    def real(self, depth, exact=False):
        """A random float expression; an exact one where asked for."""
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
        value = self.by_weight(rules)(depth - 1, exact)
        fits = value is not None and value.size <= LARGEST[value.type] and (value.exact or not exact)
        return value if fits else self.float_leaf(exact)

    def _float_arithmetic(self, depth, exact):
        first = self.real(depth, exact)
        second = self.small_integer(depth) if self.chance(20) else self.real(depth, exact)
        if self.chance(20):
            first, second = second, first
        return float_binary(self.pick("+", "-", "*"), first, second)

    def small_integer(self, depth):
        """An integer that a float holds exactly."""
        value = self.integer(depth)
        return value if value.size <= 1000 else modulo(value, 97)

    def _float_cast(self, depth, exact):
        if self.chance(50):
            return cast(self.real(depth, exact), self.pick(*FLOATS))
        value = self.small_integer(depth)
        if self.chance(40):
            return converted(value, types.float64, f"float({value.text})")
        return cast(value, self.pick(*FLOATS))

    def _float_choice(self, depth, exact):
        return self.conditional(self.real(depth, exact), self.real(depth, exact), types.Float, depth)

    def _float_extreme(self, depth, exact):
        first, second = self.real(depth, exact), self.real(depth, exact)
        name, function = self.pick(("min", min), ("max", max), ("np.minimum", np.minimum), ("np.fmax", np.fmax))
        type_ = result_type(function, first, second)
        text = f"{name}({first.text}, {second.text})"
        return type_ and joined(converted(first, type_), converted(second, type_), text)

    def _float_step(self, depth, exact):
        value = self.real(depth, exact=True)
        name = self.pick(*STEPS)
        type_ = result_type(getattr(math, name), value, kind=types.Float)
        if type_ is None or not value.exact:
            return None
        ends = float(math.floor(value.low)), float(math.ceil(value.high))
        return rounded(f"math.{name}({value.text})", type_, *ends, 0.0, 0)

    def _float_floor(self, depth, exact):
        divisor = float(self.pick(2, 3, 0.75, -1.5, -4))
        divisor = Value(f"({divisor})", types.float64, divisor, divisor, 0.0, -2)
        return float_binary(self.pick("//", "%"), self.real(depth, True), divisor)

    def _float_unary(self, depth, exact):
        value = self.real(depth, exact)
        if self.chance(50):
            return self._magnitude(value)
        return replace(value, text=f"(-{value.text})", low=-value.high, high=-value.low)

    def _magnitude(self, value):
        return replace(value, text=f"abs({value.text})", low=0.0, high=value.size)

    def _float_quotient(self, depth, exact):
        more = Value("np.float32(1.5)", types.float32, 1.5, 1.5, 0.0, -1)
        below = float_binary("+", self._magnitude(self.real(depth)), more)
        return below and float_binary("/", self.real(depth), below)

    def _float_function(self, depth, exact):
        name, module = self.pick(*SMOOTH), self.pick("math", "math", "np")
        function, value = SMOOTH[name], self.real(depth)
        if not function.usable(value):
            # Most work on a small positive number.
            eighth = Value("np.float32(0.125)", types.float32, 0.125, 0.125, 0.0, -3)
            half = Value("np.float32(0.5)", types.float32, 0.5, 0.5, 0.0, -1)
            value = float_binary("*", self._magnitude(value), eighth)
            value = value and float_binary("+", value, half)
            if value is None or not function.usable(value):
                return None
        written = {"asinh": "arcsinh", "atan": "arctan"}.get(name, name) if module == "np" else name
        callee = getattr({"np": np, "math": math}[module], written, None)
        if module == "np" and callee not in ufunc_db():
            return None
        type_ = result_type(callee, value)
        return type_ and function.of(f"{module}.{written}({value.text})", type_, value)

    def _fma(self, depth, exact):
        type_ = self.pick(*FLOATS)
        a, b, c = (cast(self.real(depth), type_) for _ in range(3))
        product = float_binary("*", a, b)
        total = product and float_binary("+", product, c)
        return total and total.named(f"cuda.fma({a.text}, {b.text}, {c.text})")

    def _float_power(self, depth, exact):
        value, exponent = self.real(depth), self.number(0, 4)
        type_ = result_type(operator.pow, value, types.IntegerLiteral(exponent))
        result = Value("", type_, 1.0, 1.0)
        for _ in range(exponent):
            result = result and float_binary("*", result, value)
        return result and result.named(f"({value.text} ** {exponent})")

    # Anything

    def value(self, depth):
        """A random expression of any type."""
        kind = self.number(0, 9)
        if kind < 6:
            return self.integer(depth)
        return self.real(depth, exact=self.chance(30)) if kind < 9 else self.condition(depth)

    def typed(self, type_, depth):
        """A random expression of a type, converted to it if need be; None if that has no defined result."""
        if isinstance(type_, types.Float):
            value = self.real(depth)
        else:
            value = self.condition(depth) if type_ == types.boolean else self.integer(depth)
        return value if value.type == type_ else cast(value, type_)

    def index_value(self, size):
        """A random index from 0 to size - 1, as text."""
        return f"{as_int64(self.integer(1)).text} % {size}"
