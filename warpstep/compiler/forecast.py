"""Proofs that a loop goes round more often than the limit, from intervals of its variables.

``while i < n: i -= 1`` never repeats a state. But i changes by -1 in each turn, so it stays below n for as many turns
as the limit allows. A turn is evaluated once for all values that variables and elements of arrays may have by then.
What `Forecast` does not know may have any value, and then there is no proof.
"""

import functools
import math
import operator
from typing import Any, NamedTuple

import numpy as np

from warpstep.compiler import ops
from warpstep.compiler.expressions import LITERAL, VARIABLE, Trait
from warpstep.machine.memory import View, overlap

#: Times that a guess of what a turn changes is widened.
ATTEMPTS = 4
#: Elements of the largest array that is searched for its least and greatest.
MAX_ELEMENTS = 1 << 20


class Number(NamedTuple):
    """The values that a scalar may have: ``low`` plus multiples of ``step`` up to ``high``; one value for step 0.

    If there is a ``base``, a variable or an element of an array, it is what that was when the turn began, plus
    ``least`` to ``most``.
    """

    low: Any
    high: Any
    step: int
    dtype: np.dtype
    base: Any = None
    least: Any = 0
    most: Any = 0


class Cell(NamedTuple):
    """An element of an array, at an index that does not change in the loop."""

    array: Any
    index: tuple


class _MayEnd(Exception):
    pass


class Forecast:
    """One loop, at one of its back edges.

    Parameters
    ----------
    blocks : list of blocks.Block
    header : int
    body : set of int
    inner : set of int
        Labels of the blocks of inner loops.
    state : dict
        {variable: value at the header}, of all variables that are live there.
    mask : mask or None
        The lanes in the loop.
    memory : machine.memory.Memory
    """

    def __init__(self, blocks, header, body, inner, state, mask, memory):
        self.blocks, self.header, self.body = blocks, header, body
        self.state, self.mask, self.memory = state, mask, memory
        self.order = _order(blocks, header, body)
        self.changing = {s.target for label in body for s in blocks[label].statements}
        #: Variables that an inner loop changes, and whether it changes memory.
        self.unknown = {s.target for label in inner for s in blocks[label].statements}
        self.written_inside = any(True for label in inner for s in blocks[label].statements for _ in _writes(s))
        self.written = self._buffers_written()
        #: The index of each element, what lanes find there, and how many of them share one.
        self._indices, self._found = {}, {}

    def _buffers_written(self):
        """The buffers that the loop writes; None for any."""
        found = []
        for statement in (s for label in self.body for s in self.blocks[label].statements):
            for node in _writes(statement):
                view = self.state.get(node.operands[0])
                if not isinstance(view, View) or node.op.traits & Trait.WRITES_ANY:
                    return None
                found.append(view.items)
        return found

    def outlasts(self, turns):
        """True if the loop certainly goes round so many times."""
        before = {v: None if v in self.unknown else self._hull(value) for v, value in self.state.items()}
        region = dict(before)
        try:
            for attempt in range(ATTEMPTS):
                known = set(before)
                after = self._turn(before, region)
                varying = {k: after.get(k, self._at_start(k)) for k in before if self._varies(k)}
                # The first guess is too wide, for the rounding of floats grows with them.
                times = turns if attempt else turns + turns // 16
                reached = {k: _grown(k, before[k], left, times) for k, left in varying.items()}
                if attempt and known == set(before) and all(_contains(region[k], v) for k, v in reached.items()):
                    return True
                for key, value in reached.items():
                    if attempt == ATTEMPTS - 2 and not _contains(region[key], value):
                        region[key] = None
                    else:
                        region[key] = _join(region[key], value) if attempt else value
        except _MayEnd:
            pass
        return False

    # -- one turn ------------------------------------------------------------------------------------------------------

    def _turn(self, before, region):
        """Evaluate a turn that begins anywhere in a region; returns what it leaves.

        Elements of arrays that are found on the way join the state ``before`` all turns, and the region.
        """
        self.before, self.region = before, region
        environments = {self.header: {key: self._at_start(key) for key in region}}
        after = None
        for label in self.order:
            env = environments.get(label)
            if env is None:
                continue
            for statement in self.blocks[label].statements:
                self._statement(statement, env)
            for target in self._targets(self.blocks[label].end, env):
                if target not in self.body:
                    raise _MayEnd
                if target == self.header:
                    after = self._meet(after, env)
                elif target not in environments or self.order.index(target) > self.order.index(label):
                    environments[target] = self._meet(environments.get(target), env)
        return after or {}

    def _at_start(self, key):
        value = self.region.get(key)
        return value if value is None or not self._varies(key) else value._replace(base=key, least=0, most=0)

    def _varies(self, key):
        return isinstance(key, Cell) or key in self.changing

    def _meet(self, one, other):
        if one is None:
            return dict(other)
        both = one.keys() | other.keys()
        return {k: _join(one.get(k, self._at_start(k)), other.get(k, self._at_start(k))) for k in both}

    def _targets(self, end, env):
        condition = self._value(end.operand, env) if len(end.targets) > 1 else None
        if condition is None:
            return end.targets
        return end.targets[:1] * bool(condition.high) + end.targets[1:] * (not condition.low)

    def _statement(self, statement, env):
        value = self._value(statement.expression, env)
        if statement.target is not None:
            env[statement.target] = None if statement.target in self.unknown else value
        for node in _writes(statement):
            if node.op is ops.STORE:
                self._store(node.operands[0], node.operands[1], self._value(node.operands[2], env), env)
            elif node.op is ops.ATOMIC_UNUSED:
                self._atomic(node, env)
            elif node.op is not ops.ATOMIC:
                raise _MayEnd

    # -- memory --------------------------------------------------------------------------------------------------------

    def _cell(self, array, index):
        """Name the element of an array that each lane accesses in every turn; None if it may change."""
        fixed = [self._fixed(i) for i in index.operands] if index.op is ops.INDEX else [None]
        parts = [part for part in fixed if part]
        if len(parts) < len(fixed):
            return None
        cell = Cell(array, tuple(name for name, _ in parts))
        self._indices[cell] = tuple(value for _, value in parts)
        return cell

    def _fixed(self, expression):
        """Name and evaluate an expression that has the same value in every turn; None if it may not."""
        if expression.op is LITERAL:
            return int(expression.value), expression.value
        if expression.op is VARIABLE:
            return (expression, self.state[expression]) if self.state.keys() - self.changing >= {expression} else None
        inner = self._fixed(expression.operands[0]) if expression.op is ops.CAST else None
        dtype = inner and expression.operands[1].value
        return inner and ((inner[0], dtype), inner[1].astype(dtype))

    def _load(self, array, index, env):
        view = self.state.get(array)
        if not isinstance(view, View) or view.dtype.kind not in "iuf" or view.dtype != view.items.dtype:
            return None
        if not overlap(self.written, [view.items]):
            return _hull(view.items) if view.items.size <= MAX_ELEMENTS else None
        cell = self._cell(array, index)
        if cell is None or self.written_inside:
            return None
        if cell not in self.before:
            self._found[cell] = found, _ = self._elements(cell)
            self.before[cell] = self.region[cell] = _hull(found)
        return env.get(cell, self._at_start(cell))

    def _elements(self, cell):
        """What the lanes find in a cell, and how many lanes share an element."""
        view = self.state[cell.array]
        position = self.memory.position(view, self._indices[cell], self.mask, None)
        lanes = np.broadcast_to(True if self.mask is None else self.mask, self.memory.lane.shape)
        found = np.broadcast_to(self.memory.fetch(view, position), lanes.shape)[lanes]
        if view.space == "local":
            return found, 1
        place = np.broadcast_to(position + self.memory.block_row * np.int64(view.row), lanes.shape)[lanes]
        return found, int(np.unique(place, return_counts=True)[1].max())

    def _store(self, array, index, value, env):
        """Store each lane's value: lanes that share an element change it by up to the sum of their changes."""
        view = self.state.get(array)
        if not isinstance(view, View):
            raise _MayEnd
        cell = self._cell(array, index)
        reached = [self._value(i, env) for i in index.operands] if index.op is ops.INDEX else []
        for other in [k for k in self.before if isinstance(k, Cell) and k != cell]:
            if overlap([view.items], [self.state[other.array].items]) and not self._apart(array, reached, other):
                raise _MayEnd
        if cell not in self.before:
            return
        env[cell] = None
        if value is not None and value.base == cell and self.region[cell] is not None:
            _, lanes = self._found[cell]
            least, most = value.least, value.most
            if lanes > 1:
                least, most = min(0, lanes * least), max(0, lanes * most)
            changed = _shifted(self.region[cell], least, most)
            env[cell] = changed and changed._replace(base=cell, least=least, most=most)

    def _apart(self, array, reached, cell):
        """True if an index reaches no element of the same array that the cell may be."""
        shape = self.state[array].shape
        if array is not cell.array or len(reached) != len(shape):
            return False
        fixed = [self._hull(i) for i in self._indices[cell]]
        return any(
            mine and theirs and min(mine.low, theirs.low) >= 0 and not _compare(mine, theirs, "eq").high
            for mine, theirs in zip(reached, fixed, strict=True)
        )

    def _atomic(self, node, env):
        """Add to or subtract from an element; returns what a lane may find there."""
        array, op, index, value = node.operands[:4]
        old, operand = self._load(array, index, env), self._value(value, env)
        if old is None or operand is None or op.value not in ("add", "sub"):
            raise _MayEnd
        self._store(array, index, (_add if op.value == "add" else _subtract)(old, operand), env)
        return _join(old, env[self._cell(array, index)])

    # -- values --------------------------------------------------------------------------------------------------------

    def _hull(self, value):
        if not isinstance(value, np.generic | np.ndarray) or value.dtype.kind not in "iufb":
            return None
        if isinstance(value, np.ndarray) and self.mask is not None:
            value = np.broadcast_to(value, self.memory.lane.shape)[np.broadcast_to(self.mask, self.memory.lane.shape)]
        return _hull(value)

    def _value(self, expression, env):
        """Evaluate an expression: a `Number`, or None if it may be anything."""
        op, operands = expression.op, expression.operands
        if op is VARIABLE:
            return env.get(expression)
        if op is LITERAL:
            return self._hull(expression.value)
        if op is ops.LOAD:
            return self._load(operands[0], operands[1], env)
        if op is ops.ATOMIC:
            return self._atomic(expression, env)
        values = [self._value(operand, env) for operand in operands[: 1 if op is ops.CAST else None]]
        if op is ops.CAST:
            return values[0] and _cast(values[0], operands[1].value)
        rule = _RULES.get(op)
        return rule(*values) if rule and all(values) else None


# -- numbers -----------------------------------------------------------------------------------------------------------


def _hull(values):
    """The `Number` that any of these NumPy values may be; None for NaNs and what is no number."""
    dtype = values.dtype
    if dtype.kind == "f":
        low, high = float(values.min()), float(values.max())
        return Number(low, high, int(low != high), dtype) if math.isfinite(low) and math.isfinite(high) else None
    low, high = int(values.min()), int(values.max())
    apart = np.asarray(values).ravel().astype(np.int64).view(np.uint64) - np.array(low % 2**64, np.uint64)
    return Number(low, high, int(np.gcd.reduce(apart)), dtype)


def _make(low, high, step, dtype, base=None, least=0, most=0):
    """A `Number` of a type; any number of the type if it may wrap, None if it may be infinite."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            low, high = float(dtype.type(low)), float(dtype.type(high))
        error = float(np.finfo(dtype).eps) * max(abs(low), abs(high))
        made = Number(low, high, int(low != high), dtype, base, least - error, most + error)
        return made if math.isfinite(low) and math.isfinite(high) else None
    if dtype.kind == "b":
        return Number(low, high, step, dtype)
    limits = np.iinfo(dtype)
    if low < limits.min or high > limits.max:
        return Number(int(limits.min), int(limits.max), 1, dtype)
    return Number(low, high, step, dtype, base, least, most)


def _add(a, b):
    dtype = np.result_type(a.dtype, b.dtype)
    if a.base is None:
        a, b = b, a
    base, least, most = (a.base, a.least + b.low, a.most + b.high) if b.base is None else (None, 0, 0)
    return _make(a.low + b.low, a.high + b.high, math.gcd(a.step, b.step), dtype, base, least, most)


def _subtract(a, b):
    dtype = np.result_type(a.dtype, b.dtype)
    base, least, most = (a.base, a.least - b.high, a.most - b.low) if b.base is None else (None, 0, 0)
    return _make(a.low - b.high, a.high - b.low, math.gcd(a.step, b.step), dtype, base, least, most)


def _multiply(a, b):
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    if a.step == 0:
        a, b = b, a
    step = a.step * abs(b.low) if b.step == 0 and isinstance(b.low, int) else 1
    return _make(min(ends), max(ends), step, np.result_type(a.dtype, b.dtype))


def _remainder(a, b):
    if b.step or b.low <= 0 or b.dtype.kind == "f":
        return None
    return _make(0, min(b.low - 1, a.high) if a.low >= 0 else b.low - 1, 1, np.result_type(a.dtype, b.dtype))


def _and(a, b):
    dtype = np.result_type(a.dtype, b.dtype)
    if max(a.low, b.low) < 0:
        return None
    return _make(min(a.low, b.low) if dtype.kind == "b" else 0, min(x.high for x in (a, b) if x.low >= 0), 1, dtype)


def _or(a, b):
    both = a.dtype.kind == b.dtype.kind == "b"
    return _make(max(a.low, b.low), max(a.high, b.high), 1, a.dtype) if both else None


def _compare(a, b, how):
    """Compare two numbers: True, False, or either of them."""
    if how in ("gt", "ge"):
        return _compare(b, a, {"gt": "lt", "ge": "le"}[how])
    if how == "ne":
        return _not(_compare(a, b, "eq"))
    if how == "lt":
        always, never = a.high < b.low, a.low >= b.high
    elif how == "le":
        always, never = a.high <= b.low, a.low > b.high
    else:
        always, never = a.low == a.high == b.low == b.high, a.high < b.low or b.high < a.low
        step = math.gcd(a.step, b.step) if "f" not in (a.dtype.kind, b.dtype.kind) else 1
        never = never or (step > 1 and (a.low - b.low) % step != 0)
    return Number(int(always), int(not never), int(not always and not never), np.dtype(bool))


def _not(a):
    return Number(int(not a.high), int(not a.low), a.step, np.dtype(bool))


def _cast(a, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "f" and a.dtype.kind != "f" and max(abs(a.low), abs(a.high)) >> (np.finfo(dtype).nmant + 1):
        return None
    if dtype.kind not in "iuf" or (dtype.kind != "f" and a.dtype.kind == "f"):
        return None
    return _make(a.low, a.high, a.step, dtype, a.base, a.least, a.most)


def _join(a, b):
    if a is None or b is None or a.dtype != b.dtype:
        return None
    low, high = min(a.low, b.low), max(a.high, b.high)
    step = 1 if a.dtype.kind == "f" else math.gcd(a.step, b.step, abs(a.low - b.low))
    if a.base != b.base:
        return Number(low, high, step, a.dtype)
    return Number(low, high, step, a.dtype, a.base, min(a.least, b.least), max(a.most, b.most))


def _shifted(a, least, most, times=1):
    """``a`` after up to so many changes by ``least`` to ``most``."""
    low, high = (min(0, times * least), max(0, times * most)) if times > 1 else (least, most)
    step = math.gcd(a.step, abs(least)) if least == most and isinstance(least, int) else 1
    return _make(a.low + low, a.high + high, step, a.dtype)


def _grown(key, before, after, turns):
    """What may have become of a number after so many turns, if one of them leaves ``after``."""
    if before is None or after is None:
        return None
    if after.base != key or after.dtype != before.dtype:
        return _join(before, after._replace(base=None))
    return _shifted(before, after.least, after.most, turns)


def _contains(region, value):
    if region is None or value is None:
        return region is None
    if region.dtype.kind != "f" and region.step != 1:
        step = region.step or 1 << 70
        if value.step % step or (value.low - region.low) % step:
            return False
    return region.low <= value.low and value.high <= region.high


_RULES = {ops.ADD: _add, ops.SUB: _subtract, ops.MUL: _multiply, ops.NOT: _not, ops.AND: _and, ops.OR: _or}
_RULES |= {
    ops.OPERATORS[getattr(operator, name)]: functools.partial(_compare, how=name)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_RULES[ops.OPERATORS[operator.mod]] = _remainder


# -- blocks ------------------------------------------------------------------------------------------------------------


def _writes(statement):
    """The operations of a statement that write memory."""
    if not statement.expression.traits & (Trait.WRITES | Trait.WRITES_ANY):
        return []
    return [node for node in statement.expression.walk() if node.op.traits & (Trait.WRITES | Trait.WRITES_ANY)]


def _order(blocks, header, body):
    """Labels of a loop's blocks, each after those that lead to it in the same turn."""
    done, result = set(), []

    def visit(label):
        done.add(label)
        for target in blocks[label].end.targets:
            if target in body and target not in done:
                visit(target)
        result.append(label)

    visit(header)
    return result[::-1]
