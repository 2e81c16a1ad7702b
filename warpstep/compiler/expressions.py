"""Structured expressions of a lowered kernel, and the NumPy source that they become.

The compiler builds, rewrites and analyses trees of `Expression`. Every operation states by its `Trait` what an analysis
may assume of it. Its template is for `Printer` alone, which writes the source once the program is final; in it
K is the batch, M its memory and m the mask of the running lanes.
"""

import enum
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from warpstep.machine import arithmetic
from warpstep.machine.memory import merge
from warpstep.machine.scheduler import TICK


class Trait(enum.Flag):
    """What an analysis must know of an operation besides its operands."""

    NONE = 0
    #: Is evaluated even if its value is not used.
    EFFECT = enum.auto()
    #: Depends on more than its operands: on memory, or on which lanes run.
    IMPURE = enum.auto()
    #: May differ between the lanes of a warp although its operands agree.
    LANES = enum.auto()
    #: Reads indices or dimensions of the launch.
    LAUNCH = enum.auto()
    #: Reads the shape of an array.
    SHAPE = enum.auto()
    #: May be negative although no operand is.
    NEGATIVE = enum.auto()
    #: Divides by its last operand.
    QUOTIENT = enum.auto()
    #: Writes to the array that is its first operand.
    WRITES = enum.auto()
    #: May write to any array among its operands.
    WRITES_ANY = enum.auto()


@dataclass(frozen=True, eq=False)
class Op:
    """An operation: its source, a template of the operands or the name of a function, and its traits.

    Calling it builds an `Expression`; operands that are no expressions become constants.
    """

    template: str
    traits: Trait = Trait.NONE

    def __call__(self, *operands):
        return Expression(self, tuple(o if isinstance(o, Expression) else constant(o) for o in operands))


@dataclass(frozen=True, eq=False)
class Expression:
    """An operation applied to operands. Immutable, so trees may share parts.

    Attributes
    ----------
    op : Op
    operands : tuple of Expression
    value : object
        The number of a variable, the value of a constant.
    arithmetic : tuple of str
        Kinds of arithmetic that a trace counts for this operation.
    """

    op: Op
    operands: tuple = ()
    value: object = None
    arithmetic: tuple = ()

    @cached_property
    def traits(self):
        """Trait : of all operations in the tree."""
        found = self.op.traits
        for operand in self.operands:
            found |= operand.traits
        return found

    @cached_property
    def variables(self):
        """tuple of Expression : the variables in the tree, each once."""
        if self.op is VARIABLE:
            return (self,)
        return tuple(dict.fromkeys(v for operand in self.operands for v in operand.variables))

    @cached_property
    def operations(self):
        """tuple of str : kinds of arithmetic in the tree."""
        return sum((operand.operations for operand in self.operands), self.arithmetic)

    def walk(self):
        """Yield every expression of the tree, the root first."""
        yield self
        for operand in self.operands:
            yield from operand.walk()

    def substitute(self, new):
        """The tree with parts replaced; ``new`` is {part: what it becomes}, by identity."""
        if self in new:
            return new[self]
        operands = tuple(operand.substitute(new) for operand in self.operands)
        return self if operands == self.operands else replace(self, operands=operands)


# -- leaves ------------------------------------------------------------------------------------------------------------

VARIABLE, CONSTANT = Op("v"), Op("c")


def variable(number):
    """A variable of the written program."""
    return Expression(VARIABLE, value=number)


def constant(value):
    """A value known while compiling."""
    return Expression(CONSTANT, value=value)


def scalar(value, dtype):
    """A typed NumPy scalar; integers wrap."""
    dtype = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if isinstance(value, int) and dtype.kind in "iu":
            bits = value & ((1 << dtype.itemsize * 8) - 1)
            return constant(np.array(bits, f"u{dtype.itemsize}").view(dtype)[()])
        return constant(dtype.type(value))


NONE, ELLIPSIS, ZERO = constant(None), constant(...), scalar(0, np.int64)


# -- source ------------------------------------------------------------------------------------------------------------


class Printer:
    """Writes expressions as Python source.

    Attributes
    ----------
    names : dict
        What the source refers to, by name: the functions of the machine, and constants.
    """

    #: Functions that templates name, besides those of `arithmetic`.
    functions = {"np": np, "B_": np.bool_, "merge": merge, "TICK": TICK} | {
        n: getattr(arithmetic, n) for n in dir(arithmetic) if not n.startswith("_") and n not in ("np", "math")
    }

    def __init__(self):
        self.names = dict(self.functions)
        self._by_key = {}

    @classmethod
    def function(cls, function):
        """Make a function known to the written programs; a decorator."""
        cls.functions[function.__name__] = function
        return function

    def text(self, expression):
        """Source of an expression."""
        op = expression.op
        if op is VARIABLE:
            return f"v{expression.value}"
        if op is CONSTANT:
            return self._constant(expression.value)
        operands = [self.text(operand) for operand in expression.operands]
        if op.template == "()":
            return "(" + "".join(f"{operand}, " for operand in operands) + ")"
        is_name = op.template.replace(".", "").isidentifier()
        return f"{op.template}({', '.join(operands)})" if is_name else op.template.format(*operands)

    def _constant(self, value):
        if value is None or value is ... or isinstance(value, bool | int | str):
            return repr(value)
        key = (value.dtype.str, value.tobytes()) if isinstance(value, np.generic) else id(value)
        if key not in self._by_key:
            self._by_key[key] = f"c{len(self.names)}"
            self.names[self._by_key[key]] = value
        return self._by_key[key]
