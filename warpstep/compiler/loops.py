"""What decides whether a loop goes round again: what the conditions of its exits depend on, in variables and memory.

Nothing here runs before a loop has gone round many times.
"""

import functools
from typing import NamedTuple

from warpstep.compiler import ops
from warpstep.compiler.expressions import VARIABLE, Trait
from warpstep.compiler.forecast import Forecast

#: Operations that read the memory of their first operand, that write it, and that depend on their operands alone.
_READS = frozenset((ops.LOAD, ops.LOAD_WIDE, ops.ATOMIC, ops.LOAD_FIELD))
_WRITES_FIRST = frozenset((ops.COPY_RECORD, ops.STORE_FIELD))
_WINDOWS = frozenset((ops.WINDOW, ops.RECORD))
_KNOWN = _WINDOWS | {ops.RANGE, ops.RANGE_NEXT, ops.SHARED_ARRAY, ops.LOCAL_ARRAY, ops.CONSTANT_RECORD, ops.TUPLE_ITEM}


class Control(NamedTuple):
    """What the exits of a loop depend on, as positions in the state at its header.

    Attributes
    ----------
    variables : tuple of int
    arrays : tuple of int, or None
        Those whose elements matter; None if any memory may.
    written : tuple of int, or None
        The arrays that the rest of the loop may write, in turns to come if not in this one; None if it may be any.
    """

    variables: tuple
    arrays: tuple | None
    written: tuple | None


class Loops:
    """The loops of a function.

    Parameters
    ----------
    blocks : list of blocks.Block
    bodies : dict
        {label of a header: labels of the loop's blocks, inner loops included}.
    states : dict
        {label of a header: the variables whose values make its state, in order}.
    """

    def __init__(self, blocks, bodies, states):
        self.blocks = blocks
        self.bodies = bodies
        self.states = states

    def encloses(self, outer, inner):
        """True if the loop with header ``inner`` lies in the one with header ``outer``."""
        return inner != outer and inner in self.bodies[outer]

    @functools.cache  # noqa: B019 (one for each function of a kernel, kept as long)
    def control(self, header):
        """Return the `Control` of the loop with this header."""
        slice_ = Slice(self.blocks, header, self.bodies[header])
        state = self.states[header]

        def positions(variables):
            known = variables is not None and variables <= set(state)
            return tuple(i for i, v in enumerate(state) if v in variables) if known else None

        variables = tuple(i for i, v in enumerate(state) if v in slice_.variables)
        return Control(variables, positions(slice_.arrays), positions(slice_.written))

    def outlasts(self, header, turns, state, mask, memory):
        """True if a loop, in this state at a back edge, certainly goes round so many times."""
        body = self.bodies[header]
        inner = set().union(*(self.bodies[h] for h in self.bodies if self.encloses(header, h)))
        variables = dict(zip(self.states[header], state, strict=True))
        return Forecast(self.blocks, header, body, inner, variables, mask, memory).outlasts(turns)


class Slice:
    """The part of a loop that its exits depend on.

    Attributes
    ----------
    variables : set of Expression
    arrays : set of Expression, or None
        The variables of the arrays that it reads; None if it reads other memory, or the clock.
    written : set of Expression, or None
        Those of the arrays that the other statements of the loop write.
    """

    def __init__(self, blocks, header, body):
        self.blocks, self.header, self.body = blocks, header, body
        self.variables, self.arrays = set(), set()
        self.written = set()
        self._done = set()
        self._definitions = {}
        for label in body:
            for statement in blocks[label].statements:
                self._definitions.setdefault(statement.target, []).append((label, statement.expression))
        for label in body:
            if not body.issuperset(blocks[label].end.targets):
                self._add_branch(label)
        for label in body:
            for statement in blocks[label].statements:
                if statement.target is None or statement.target not in self.variables:
                    self._add_writes(statement.expression)

    def _add_branch(self, label):
        if ("branch", label) in self._done:
            return
        self._done.add(("branch", label))
        if self.blocks[label].end.operand is not None:
            self._add(self.blocks[label].end.operand)
        self._add_block(label)

    def _add_block(self, label):
        """Add what decides whether a block runs."""
        if ("block", label) in self._done or label == self.header:
            return
        self._done.add(("block", label))
        for branch in self._reaching(lambda targets: label in targets) & self._reaching(self._ends_turn, label):
            if len(self.blocks[branch].end.targets) > 1:
                self._add_branch(branch)

    def _ends_turn(self, targets):
        return self.header in targets or not self.body.issuperset(targets)

    def _reaching(self, is_goal, avoided=None):
        """Find the blocks from which a turn may still get to a goal, without passing the block to avoid."""
        found = {b for b in self.body if b != avoided and is_goal(self.blocks[b].end.targets)}
        grown = True
        while grown:
            more = {
                b
                for b in self.body - found
                if b != avoided and any(t in found and t != self.header for t in self.blocks[b].end.targets)
            }
            found |= more
            grown = bool(more)
        return found

    def _add(self, expression):
        for node in expression.walk():
            if node.op is VARIABLE:
                self._add_variable(node)
            elif node.op in _READS:
                self.arrays = self._with_array(self.arrays, node.operands[0])
            elif node.op.traits & (Trait.IMPURE | Trait.EFFECT) and node.op not in _KNOWN:
                self.arrays = None

    def _add_variable(self, variable):
        if variable in self.variables:
            return
        self.variables.add(variable)
        for label, expression in self._definitions.get(variable, ()):
            self._add(expression)
            self._add_block(label)

    def _add_writes(self, expression):
        if not expression.traits & (Trait.WRITES | Trait.WRITES_ANY):
            return
        for node in expression.walk():
            if node.op.traits & Trait.WRITES or node.op in _WRITES_FIRST:
                self.written = self._with_array(self.written, node.operands[0])
            elif node.op.traits & Trait.WRITES_ANY:
                self.written = None

    def _with_array(self, arrays, expression):
        """Add an array, one from before the loop or a window on one, to a set; None if it is another one."""
        passed = set()  # two arrays that are swapped in each turn lead back to themselves
        while arrays is not None and expression not in passed:
            passed.add(expression)
            definitions = [d for _, d in self._definitions.get(expression, ())]
            if expression.op in _WINDOWS:
                expression = expression.operands[0]
            elif expression.op is not VARIABLE:
                return None
            elif not definitions:
                return arrays | {expression}
            elif len(definitions) == 1 and definitions[0].op in (VARIABLE, *_WINDOWS):
                expression = definitions[0]
        return None
