"""Random statements of one thread, with the scopes, types and ranges of its variables."""

import math

import numpy as np
from kernels.bounds import (
    CAST,
    FLOATS,
    INTEGERS,
    Sum,
    Value,
    cast,
    contained,
    converted,
    integer,
    integer_binary,
    literal,
    merged,
    modulo,
)
from kernels.cases import Case
from kernels.expressions import Expressions
from numba.cuda import types

from warpstep.compiler.frontend import typing_context

ATOMIC_TYPES = (types.int32, types.int64, types.uint32, types.uint64)
ORDERLESS = ("add", "max", "min", "and_", "or_", "xor")
#: What a thread may do to an element that only it touches.
OWN = (*ORDERLESS, "sub", "exch", "cas")


class Statements(Expressions):
    """Writes statements.

    Attributes
    ----------
    lines, indent
        Source so far.
    loops : list of int
        Most turns of each loop around this place.
    assignable : set of str or None
        In a loop, the variables that may be assigned: their ranges are unknown from its start. None outside of loops.
    sums : dict
        {name: Sum} of the float variables that the loops add to; they cannot be read there.
    budget : int
        Statements still to write.
    own_loops : int
        How many of these loops a thread may leave by itself.
    may_return : bool
        Whether a thread may return early.
    """

    def __init__(self, random, case):
        super().__init__(random, case)
        self.lines, self.indent = [], 0
        self.counter = 0
        self.loops, self.assignable, self.sums = [], None, {}
        self.budget = 0
        self.own_loops, self.may_return = 0, False
        self.functions = []
        self.atomic_targets = {}
        self.locals = []

    def fresh(self, prefix="v"):
        self.counter += 1
        return f"{prefix}{self.counter}"

    def write(self, line):
        self.lines.append("    " * self.indent + line)

    def learn(self, name, value):
        """A variable can be read from now on."""
        self.env[name] = value.named(name)
        if self.assignable is not None:
            self.assignable.add(name)

    def bind(self, value, name=None):
        """``name = value``, a new variable if no name is given."""
        name = name or self.fresh()
        self.write(f"{name} = {value.text}")
        self.learn(name, value)
        return self.env[name]

    def block(self, statements, depth):
        """A nested block. True if control may go on after it."""
        self.indent += 1
        before = len(self.lines)
        goes_on = all(self.statement(depth) for _ in range(statements))
        if len(self.lines) == before:
            self.write("pass")
        self.indent -= 1
        return goes_on

    def statement(self, depth):
        """One random statement (or none, where the dice want what is not possible); False if control ends there."""
        self.budget -= 1
        deeper = depth > 0 and self.budget > 0
        rules = [
            (self.define, 30),
            (self.assign, 20),
            (self.store, 12),
            (self.atomic, 6),
            (self.unpack, 6),
            (self.local_array, 4),
            (self.use_local, 14 if self.locals else 0),
            (self.call, 5),
            (self.add_up, 16 if self.sums else 0),
            (self.view, 4),
            (lambda: self.branch(depth - 1), 16 if deeper else 0),
            (lambda: self.loop(depth - 1), 12 if deeper else 0),
            (self.leave_loop, 8 if self.own_loops else 0),
            (self.early_return, 2 if self.may_return else 0),
        ]
        return self.by_weight(rules)() is not False

    # Variables

    def define(self):
        self.bind(self.value(3))

    def targets(self, kind=object):
        """Names of the variables that may be assigned here."""
        names = [n for n, v in self.env.items() if n.startswith("v") and isinstance(v.type, kind)]
        return [n for n in names if self.assignable is None or n in self.assignable]

    def assign(self):
        """A new value for a variable; of any type, except in a loop."""
        names = self.targets()
        if not names:
            return self.define()
        name = self.pick(*names)
        if self.assignable is not None:
            return self._assign_same_type(name)
        old = self.env[name]
        if isinstance(old.type, types.Integer) and self.chance(40):
            sign, operand = self.pick("+", "-", "*", "//", "%", "&", "|", "^"), self.integer(2)
            value = integer_binary(sign, old, operand)
            if value is not None:
                self.write(f"{name} {sign}= {operand.text}")
                self.learn(name, value)
                return None
        return self.bind(self.value(3), name)

    def _assign_same_type(self, name):
        old = self.env[name]
        if isinstance(old.type, types.Float):
            return
        value = None
        if isinstance(old.type, types.Integer) and self.chance(60):
            value = contained(self.pick("+", "-", "*", "^"), old, self.integer(2))
        value = value or self.typed(old.type, 2)
        self.write(f"{name} = {value.text if value.type == old.type else cast(value, old.type).text}")
        self.env[name] = integer(name, old.type)

    def unpack(self):
        self.pick(self._pair, self._tuple_indexed, self._swap, self._nested)()

    def _pair(self):
        names, values = (self.fresh(), self.fresh()), (self.value(2), self.value(2))
        self.write(f"{', '.join(names)} = {', '.join(v.text for v in values)}")
        for name, value in zip(names, values, strict=True):
            self.learn(name, value)

    def _tuple_indexed(self):
        """A tuple of one type, with an index that may differ by thread."""
        type_ = self.pick(*INTEGERS)
        items = [self.typed(type_, 1) for _ in range(self.number(1, 4))]
        name = self.fresh("p")
        self.write(f"{name} = ({', '.join(v.text for v in items)},)")
        self.bind(integer(f"{name}[{self.position(len(items))}]", type_))

    def _nested(self):
        a, b, c = (self.value(1) for _ in range(3))
        name = self.fresh("p")
        self.write(f"{name} = ({a.text}, ({b.text}, {c.text}))")
        value, where = self.pick((a, "[0]"), (b, "[1][0]"), (c, "[-1][1]"))
        self.bind(value.named(name + where))

    def _swap(self):
        names = self.targets(types.Integer)
        pairs = [(a, b) for a in names for b in names if a < b and self.env[a].type == self.env[b].type]
        if pairs:
            a, b = self.pick(*pairs)
            self.write(f"{a}, {b} = {b}, {a}")
            self.env[a], self.env[b] = self.env[b].named(a), self.env[a].named(b)

    # Branches

    def branch(self, depth):
        outer, ends = dict(self.env), []
        for arm in range(self.pick(1, 1, 2, 2, 3)):
            self.write(f"{'elif' if arm else 'if'} {self.condition(2).text}:")
            self._arm(depth, outer, ends)
        if self.chance(60):
            self.write("else:")
            self._arm(depth, outer, ends)
        else:
            ends.append(outer)
        self.env = merged(outer, ends)
        return bool(ends)

    def _arm(self, depth, outer, ends):
        self.env, held = dict(outer), list(self.locals)
        if self.block(self.number(1, 3), depth):
            ends.append(self.env)
        self.env, self.locals = dict(outer), held

    def early_return(self):
        self.write(f"if {self.comparison(1).text}:")
        self.write("    return")

    # Loops

    def loop(self, depth):
        entered = self.enter_loop(sums=not self.loops)
        kind = self.pick("range", "range", "while", "forever", "array", "pairs")
        self.loops.append(getattr(self, f"_{kind}_head")())
        inner = set(self.env)
        self.own_loops += 1
        self.block(self.number(1, 4), depth)
        self.own_loops -= 1
        self.loops.pop()
        if kind in ("range", "while") and self.chance(20):
            self.env = {n: v for n, v in self.env.items() if n in inner and n in entered.env}
            self.write("else:")
            self.block(1, 0)
        self.leave(entered)

    def enter_loop(self, sums=False):
        """Choose what the body may assign, before it is written: what it reads depends on that."""
        entered = Entered(dict(self.env), list(self.locals), self.assignable)
        entered.chosen = {n for n in self.targets((types.Integer, types.Boolean)) if self.chance(50)}
        for name in entered.chosen:
            self.env[name] = integer(name, self.env[name].type)
        for name in self.targets(types.Float) if sums else ():
            if self.chance(50):
                self.sums[name] = Sum(self.env.pop(name), self.chance(30))
                entered.sums.append(name)
        self.assignable = set(entered.chosen)
        return entered

    def leave(self, entered):
        """The variables after a loop."""
        self.env = {n: integer(n, v.type) if n in entered.chosen else v for n, v in entered.env.items()}
        for name in entered.sums:
            self.env[name] = self.sums.pop(name).result(name)
        self.locals, self.assignable = entered.locals, entered.assignable

    def bound(self):
        """An expression from 0 to 7, the same for all threads or not."""
        value = literal(self.number(0, 7)) if self.chance(30) else modulo(self.integer(1), 8)
        return value or literal(3)

    def _range_head(self):
        """``for k in range(...)``; gives the most turns, as the other heads do."""
        name, stop = self.fresh("k"), self.bound()
        kind = self.number(0, 3)
        if kind == 0:
            start, step = self.number(-3, 3), self.pick(1, 2, 3, -1, -2)
            bounds = (start, stop.text, step) if step > 0 else (stop.text, start, step)
            self.write(f"for {name} in range({', '.join(map(str, bounds))}):")
            self.env[name] = integer(name, types.int64, -10, 10)
            return 11
        if kind == 1:
            stop = cast(stop, self.pick(types.int32, types.uint32, types.uint64, types.int8))
        type_ = typing_context().resolve_function_type(range, (stop.type,), {}).return_type.dtype
        self.write(f"for {name} in range({stop.text}):")
        self.env[name] = integer(name, type_, 0, 7)
        return 7

    def _while_head(self):
        name = self.fresh("w")
        self.write(f"{name} = {self.bound().text}")
        self.env[name] = integer(name, types.int64, -1, 7)
        condition = self.condition(1).text
        more = self.pick("", "", f" and {condition}", f" and ({condition} or {name} > 2)")
        self.write(f"while {name} > 0{more}:")
        self.write(f"    {name} -= 1")
        return 7

    def _forever_head(self):
        name = self.fresh("w")
        self.write(f"{name} = {self.number(0, 5)}")
        self.env[name] = integer(name, types.int64, 0, 9)
        self.write("while True:")
        self.write(f"    {name} += 1")
        self.write(f"    if {name} > 8 or {self.condition(1).text}:")
        self.write("        break")
        return 9

    def _array_head(self):
        array, name = self.vector(), self.fresh("x")
        self.write(f"for {name} in {array.name}[:{self.number(0, 6)}]:")
        self.env[name] = self.loaded(array, name)
        return 6

    def _pairs_head(self):
        first, second, k, x = self.vector(), self.vector(), self.fresh("k"), self.fresh("x")
        if self.chance(50):
            self.write(f"for {k}, {x} in enumerate({first.name}[:{self.number(0, 6)}]):")
            self.env[k] = integer(k, types.int64, 0, 6)
        else:
            self.write(f"for {k}, {x} in zip({second.name}[:{self.number(0, 6)}], {first.name}):")
            self.env[k] = self.loaded(second, k)
        self.env[x] = self.loaded(first, x)
        return 6

    def vector(self):
        """A 1-D input."""
        array = self.an_input(self.pick(*INTEGERS, *FLOATS))
        while len(array.shape) > 1:
            array = self.an_input(self.pick(*INTEGERS, *FLOATS))
        return array

    def leave_loop(self):
        self.write(f"if {self.condition(1).text}:")
        self.write(f"    {self.pick('break', 'continue')}")

    def add_up(self):
        """Add to a float variable, so that its bounds stay known."""
        name = self.pick(*self.sums)
        total, turns = self.sums[name], math.prod(self.loops)
        type_ = total.start.type
        value = self.typed(type_, 2)
        if value.size * turns > 1e5:
            return
        if total.decays:
            self.write(f"{name} = {name} * {CAST[type_]}(0.5) + {value.text}")
        else:
            self.write(f"{name} {self.pick('+', '-')}= {value.text}")
        total.add(value, turns)

    # Stores

    def output(self, type_):
        """An array in which each thread writes elements of its own."""
        known = [a for a in self.case.arguments if a.name.startswith("o") and a.type == type_]
        if known and (len(known) > 1 or self.chance(60)):
            return self.pick(*known)
        shape = (self.total, *((self.number(2, 4),) if self.chance(30) else ()))
        data = self.contents(shape, type_)
        return self.add_argument("o", np.asfortranarray(data) if self.chance(20) else data, written=True)

    def own_element(self, array):
        """This thread's place in an output."""
        return f"{array.name}[i{f', {self.number(0, array.data.shape[1] - 1)}' if array.data.ndim == 2 else ''}]"

    def store(self):
        if self.chance(80):
            self.save(self.value(3))
            return
        type_ = self.pick(*INTEGERS)
        self.change(self.own_element(self.output(type_)), type_)

    def change(self, element, type_):
        """``element op= value``, where that does not overflow."""
        sign, value = self.pick("+", "-", "*", "^"), self.integer(2)
        if integer_binary(sign, integer(element, type_), value) is None:
            sign = "^"
        self.write(f"{element} {sign}= {value.text}")

    def save(self, value):
        """Store a value to an output of its type, or of another that it converts to."""
        stored = converted(value, self.pick(value.type, value.type, *INTEGERS, *FLOATS, types.boolean)) or value
        array = self.output(stored.type)
        array.error = max(array.error, stored.error)
        self.write(f"{self.own_element(array)} = {value.text}")

    # Atomics

    def atomic(self):
        (self._own_atomic if self.chance(30) else self._orderless_atomic)()

    def _orderless_atomic(self):
        """On elements that many threads change, in ways that come to the same in any order."""
        family = self.pick(*ORDERLESS)
        type_ = self.pick(*(FLOATS if family == "add" and self.chance(30) else ATOMIC_TYPES))
        array = self._atomic_target(family, type_)
        # Sums of small whole numbers are exact in floats too.
        value = cast(self.small_integer(1) if isinstance(type_, types.Float) else self.integer(2), type_)
        size = array.data.shape[0]
        at = self.pick(f"i % {size}", f"tx % {size}", "0", self.index_value(size))
        index = at if array.data.ndim == 1 else f"({at}, {self.number(0, 1)})"
        operation = self.pick("add", "sub") if family == "add" else family
        self.write(f"cuda.atomic.{operation}({array.name}, {index}, {value.text})")

    def _atomic_target(self, family, type_):
        """The array that only this family of atomics touches."""
        key = family, type_
        if key not in self.atomic_targets:
            shape = (self.number(1, 9),) if self.chance(70) else (self.number(1, 5), 2)
            data = self.contents(shape, type_)
            data = np.round(data) if isinstance(type_, types.Float) else data
            self.atomic_targets[key] = self.add_argument("h", data, written=True)
        return self.atomic_targets[key]

    def _own_atomic(self):
        """On an element of the thread's own, where the old value is certain."""
        type_ = self.pick(*ATOMIC_TYPES)
        operation = self.pick(*OWN, *(() if type_.signed else ("inc", "dec")))
        array = self.add_argument("c", self.contents((self.total,), type_), written=True)
        operands = [self.typed(type_, 1).text for _ in range(2 if operation == "cas" else 1)]
        self.bind(integer(f"cuda.atomic.{operation}({array.name}, i, {', '.join(operands)})", type_))

    # Local arrays, views

    def local_array(self):
        if self.indent or len(self.locals) > 2:
            return
        type_ = self.pick(*INTEGERS, *FLOATS, types.boolean)
        name, k = self.fresh("l"), self.fresh("k")
        shape = (self.number(1, 6),) if self.chance(70) else (self.number(1, 4), self.number(1, 4))
        dtype = "bool_" if type_ == types.boolean else type_
        self.write(f"{name} = cuda.local.array({shape if len(shape) > 1 else shape[0]}, np.{dtype})")
        self.write(f"for {k} in range({math.prod(shape)}):")
        self.write(f"    {name}[{k if len(shape) == 1 else f'{k} // {shape[1]}, {k} % {shape[1]}'}] = {k}")
        self.locals.append((name, type_, shape))

    def use_local(self):
        name, type_, shape = self.pick(*self.locals)
        where = ", ".join(self.position(n) for n in shape)
        if self.chance(40):
            self.bind(self.local_element(name, type_, where))
            return
        if isinstance(type_, types.Integer) and self.chance(50):
            self.change(f"{name}[{where}]", type_)
            return
        value = self.element(type_, exact=True) if isinstance(type_, types.Float) else self.integer(2)
        self.write(f"{name}[{where}] = {value.text}")

    def local_element(self, name, type_, where):
        text = f"{name}[{where}]"
        return Value(text, type_, -16, 16, 0.0, -2) if isinstance(type_, types.Float) else integer(text, type_)

    def view(self):
        """Part of an input, read at one place."""
        array, name = self.an_input(self.pick(*INTEGERS, *FLOATS, types.boolean)), self.fresh("s")
        shape = array.shape
        if len(shape) == 1:
            start = self.number(0, shape[0] - 1)
            part = self.pick(f"{start}:", "::-1", f"{start}::2", f"-{start + 1}:")
            self.write(f"{name} = {array.name}[{part}]")
            where = self.index_value(f"{name}.size")
        elif len(shape) == 2:
            row, column = self.position(shape[0]), self.position(shape[1])
            self.write(f"{name} = {array.name}{self.pick(f'[{row}]', f'.T[{column}]', f'[:, {column}]')}")
            where = f"{self.pick('i', 't', 'tx')} % {name}.shape[0]"
        else:
            self.write(f"{name} = {array.name}[{self.position(shape[0])}, ::-1]")
            where = ", ".join(self.position(n) for n in shape[1:])
        self.bind(self.loaded(array, f"{name}[{where}]"))

    # Device functions

    def call(self):
        if len(self.functions) < 3 and self.chance(60):
            self.functions.append(DeviceFunction(self))
        if not self.functions:
            return
        function = self.pick(*self.functions)
        values = [self.typed(type_, 1).text for type_ in function.types]
        self.bind(integer(function.call(values), function.result))


class Entered:
    """What was known when a loop began."""

    def __init__(self, env, locals_, assignable):
        self.env, self.locals, self.assignable = env, locals_, assignable
        self.chosen, self.sums = set(), []


class DeviceFunction:
    """A device function of integers with default arguments and several returns; it may call those written before it.

    ``caller`` is the writer of the kernel that gets it.
    """

    def __init__(self, caller):
        self.random = caller
        self.name = f"dev{len(caller.functions)}"
        count = caller.number(1, 3)
        self.defaults = caller.number(0, count - 1)
        self.parameters = list("pqr"[:count])
        typed = [caller.pick(*INTEGERS) for _ in range(count - self.defaults)]
        self.types = typed + [types.int64] * self.defaults
        self.result = caller.pick(*INTEGERS)
        shown = [f"{p}={caller.number(-5, 9)}" for p in self.parameters[len(typed) :]]
        head = f"@cuda.jit(device=True)\ndef {self.name}({', '.join(self.parameters[: len(typed)] + shown)}):\n"
        caller.case.functions += head + "\n".join(self._body(caller)) + "\n\n\n"

    def _body(self, caller):
        w = Statements(caller.random, Case(""))
        w.env = {p: integer(p, t) for p, t in zip(self.parameters, self.types, strict=True)}
        w.indent, w.has_arrays = 1, False
        for _ in range(w.number(0, 2)):
            w.define()
        if caller.functions and w.chance(40):
            other = w.pick(*caller.functions)
            w.bind(integer(other.call([w.typed(t, 1).text for t in other.types]), other.result))
        self._return(w, w.comparison(1).text)
        if w.chance(50):
            k = w.fresh("k")
            w.write(f"for {k} in range({w.bound().text}):")
            w.env[k] = integer(k, types.int64, 0, 7)
            w.indent += 1
            self._return(w, w.comparison(1).text)
            w.indent -= 1
            del w.env[k]
        w.write(f"return {w.typed(self.result, 2).text}")
        return w.lines

    def _return(self, w, condition):
        w.write(f"if {condition}:")
        w.write(f"    return {w.typed(self.result, 1).text}")

    def call(self, values):
        """Text of a call: some of the defaults left out, the last argument by name now and then."""
        given = len(values) - self.random.number(0, self.defaults)
        values = values[:given]
        if self.random.chance(30):
            values[-1] = f"{self.parameters[given - 1]}={values[-1]}"
        return f"{self.name}({', '.join(values)})"
