"""What decides whether a loop goes round again: what the conditions of its exits depend on, in variables and memory.

Nothing here runs before a loop has gone round many times.
"""

import functools
from typing import NamedTuple

from warpstep.compiler import ops
from warpstep.compiler.expressions import VARIABLE, Trait

#: Operations that read the memory of their first operand, and those that depend on their operands alone.
_READS = frozenset((ops.LOAD, ops.LOAD_WIDE, ops.ATOMIC, ops.LOAD_FIELD))
_WINDOWS = frozenset((ops.WINDOW, ops.RECORD))
_KNOWN = _WINDOWS | {ops.RANGE, ops.RANGE_NEXT, ops.SHARED_ARRAY, ops.LOCAL_ARRAY, ops.CONSTANT_RECORD, ops.TUPLE_ITEM}


class Control(NamedTuple):
    """What the exits of a loop depend on, as positions in the state at its header.

    Attributes
    ----------
    variables : tuple of int
    arrays : tuple of int, or None
        Those whose elements matter; None if any memory may.
    """

    variables: tuple
    arrays: tuple | None


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
        arrays = None
        if slice_.arrays is not None and slice_.arrays <= set(state):
            arrays = tuple(i for i, v in enumerate(state) if v in slice_.arrays)
        return Control(tuple(i for i, v in enumerate(state) if v in slice_.variables), arrays)


class Slice:
    """The part of a loop that its exits depend on.

    Attributes
    ----------
    variables : set of Expression
    arrays : set of Expression, or None
        The variables of the arrays that it reads; None if it reads other memory, or the clock.
    """

    def __init__(self, blocks, header, body):
        self.blocks, self.header, self.body = blocks, header, body
        self.variables, self.arrays = set(), set()
        self._done = set()
        self._definitions = {}
        for label in body:
            for statement in blocks[label].statements:
                self._definitions.setdefault(statement.target, []).append((label, statement.expression))
        for label in body:
            if not body.issuperset(blocks[label].end.targets):
                self._add_branch(label)

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
                self._add_array(node.operands[0])
            elif node.op.traits & (Trait.IMPURE | Trait.EFFECT) and node.op not in _KNOWN:
                self.arrays = None

    def _add_variable(self, variable):
        if variable in self.variables:
            return
        self.variables.add(variable)
        for label, expression in self._definitions.get(variable, ()):
            self._add(expression)
            self._add_block(label)

    def _add_array(self, expression):
        """Note the array that is read: one from before the loop, or a window on one."""
        if self.arrays is None:
            return
        definitions = [d for _, d in self._definitions.get(expression, ())]
        if expression.op in _WINDOWS:
            self._add_array(expression.operands[0])
        elif expression.op is VARIABLE and not definitions:
            self.arrays.add(expression)
        elif expression.op is VARIABLE and len(definitions) == 1 and definitions[0].op in (VARIABLE, *_WINDOWS):
            self._add_array(definitions[0].operands[0] if definitions[0].operands else definitions[0])
        else:
            self.arrays = None
