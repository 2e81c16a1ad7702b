"""Structured expressions of a lowered kernel, and the NumPy source that they become.

The compiler builds, rewrites and analyses trees of `Expression`. Every operation states by its `Trait` what an analysis
may assume of it. Its template is for `Printer` alone, which writes the source once the program is final. In a
template K is the batch, M its memory and m the mask of the running lanes.
"""

from dataclasses import dataclass

import numpy as np

from warpstep.machine import arithmetic, sequences, special, symmetric
from warpstep.machine.atomics import atomic
from warpstep.machine.memory import merge
from warpstep.machine.progress import CHECK_INTERVAL
from warpstep.machine.tensor import halves_of, words_as


class Trait:
    """Properties of an operation that analyses use: bits in a plain integer, for speed."""

    NONE = 0
    #: Is evaluated even if its value is not used.
    EFFECT = 1
    #: Depends on more than its operands: on memory, or on which lanes run.
    IMPURE = 2
    #: May differ between the lanes of a warp although its operands agree.
    LANES = 4
    #: Reads indices or dimensions of the launch.
    LAUNCH = 8
    #: Reads the shape of an array.
    SHAPE = 16
    #: May be negative although no operand is.
    NEGATIVE = 32
    #: Divides by its last operand.
    QUOTIENT = 64
    #: Writes to the array that is its first operand.
    WRITES = 128
    #: May write to any array among its operands.
    WRITES_ANY = 256


@dataclass(frozen=True, eq=False)
class Op:
    """An operation: the template of its source, or the name of a function, and its traits.

    Calling it builds an `Expression`; operands that are not expressions become literals.
    """

    template: str
    traits: int = Trait.NONE

    def __call__(self, *operands):
        return Expression(self, tuple([o if o.__class__ is Expression else literal(o) for o in operands]))


class Expression:
    """An operation applied to operands. Never changed once built, so that trees may share parts.

    Attributes
    ----------
    op : Op
    operands : tuple of Expression
    value : object
        The number of a variable, the value of a literal.
    arithmetic : tuple
        Kinds of arithmetic that a trace counts for this operation: str, or (str, how often).
    traits : int
        Of all operations in the tree.
    variables : tuple of Expression
        The variables in the tree, each once.
    """

    __slots__ = ("arithmetic", "op", "operands", "traits", "value", "variables")

    def __init__(self, op, operands=(), value=None, arithmetic=()):
        self.op, self.operands, self.value, self.arithmetic = op, operands, value, arithmetic
        self.traits = op.traits
        for operand in operands:
            self.traits |= operand.traits
        found = [variable for operand in operands for variable in operand.variables]
        self.variables = (self,) if op is VARIABLE else tuple(dict.fromkeys(found) if len(found) > 1 else found)

    def counting(self, *kinds):
        """Return the same operation, for which a trace counts more kinds of arithmetic."""
        return Expression(self.op, self.operands, self.value, self.arithmetic + kinds) if kinds else self

    @property
    def operations(self):
        """list : kinds of arithmetic in the tree."""
        return [kind for node in self.walk() for kind in node.arithmetic]

    def walk(self):
        """Yield every expression of the tree, the root first."""
        yield self
        for operand in self.operands:
            yield from operand.walk()

    def substitute(self, new):
        """Return the tree with parts replaced; ``new`` maps parts, by identity, to expressions."""
        if self in new:
            return new[self]
        operands = tuple(operand.substitute(new) for operand in self.operands)
        return self if operands == self.operands else Expression(self.op, operands, self.value, self.arithmetic)


# -- leaves ------------------------------------------------------------------------------------------------------------

VARIABLE, LITERAL = Op("v"), Op("c")


def variable(number):
    """Return a new variable of the generated program."""
    return Expression(VARIABLE, value=number)


def literal(value):
    """Return a leaf that holds a value: a NumPy scalar, dtype or array, or what Python has a notation for."""
    made = Expression(LITERAL, value=value)
    if isinstance(value, int | np.integer | np.floating) and value < 0:
        made.traits = Trait.NEGATIVE
    return made


def scalar(value, dtype):
    """Return a literal of a NumPy scalar type; integers wrap."""
    dtype = np.dtype(dtype)
    if isinstance(value, int) and dtype.kind in "iu":
        bits = value & ((1 << dtype.itemsize * 8) - 1)
        return literal(np.array(bits, f"u{dtype.itemsize}").view(dtype)[()])
    with np.errstate(all="ignore"):
        return literal(dtype.type(value))


NONE, ELLIPSIS, ZERO = literal(None), literal(...), scalar(0, np.int64)


# -- source ------------------------------------------------------------------------------------------------------------


#: Functions that templates name.
_FUNCTIONS = {"np": np, "B_": np.bool_, "merge": merge, "CHECK_INTERVAL": CHECK_INTERVAL, "atomic": atomic}
_FUNCTIONS |= {"halves_of": halves_of, "words_as": words_as}
for _module in (arithmetic, sequences, special, symmetric):
    _FUNCTIONS |= {name: value for name, value in vars(_module).items() if callable(value) and name[0].islower()}


class Printer:
    """Writes expressions as Python source.

    Attributes
    ----------
    names : dict
        What the source refers to, by name: functions of the machine, and literals.
    """

    def __init__(self):
        self.names = dict(_FUNCTIONS)
        self._by_key = {}

    def text(self, expression):
        """Return the source of an expression."""
        op = expression.op
        if op is VARIABLE:
            return f"v{expression.value}"
        if op is LITERAL:
            return self._literal(expression.value)
        operands = [self.text(operand) for operand in expression.operands]
        if op.template == "()":
            return "(" + "".join(f"{operand}, " for operand in operands) + ")"
        is_name = op.template.replace(".", "").isidentifier()
        return f"{op.template}({', '.join(operands)})" if is_name else op.template.format(*operands)

    def _literal(self, value):
        if value is None or value is ... or isinstance(value, bool | int | str):
            return repr(value)
        key = (value.dtype.str, value.tobytes()) if isinstance(value, np.generic) else id(value)
        if key not in self._by_key:
            self._by_key[key] = _readable_name(value) or f"c{len(self.names)}"
            self.names[self._by_key[key]] = value
        return self._by_key[key]


def _readable_name(value):
    """Return ``float32`` for that dtype and ``int64_7`` for that integer; None for anything else."""
    if isinstance(value, np.dtype) and value.isbuiltin == 1:
        return value.name
    return f"{value.dtype}_{value}".replace("-", "minus_") if isinstance(value, np.integer) else None
