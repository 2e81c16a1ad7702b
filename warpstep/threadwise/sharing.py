"""Which arguments of a kernel threads may share: found in the lowered program, so that only these are watched."""

from collections import Counter
from dataclasses import dataclass, field

from warpstep.compiler import ops
from warpstep.compiler.expressions import LITERAL, VARIABLE

#: Operations whose value is a part of their first operand.
_PARTS = {
    ops.WINDOW.template,
    ops.RECORD.template,
    ops.LOAD_FIELD.template,
    "{0}.with_window({0}.base, {0}.shape[::-1], {0}.strides[::-1])",
}
#: Operations that look at an array and not at its elements.
_MEASURES = {
    "np.int64({}.shape[0])",
    "tuple([n if n.__class__ is not int else np.int64(n) for n in {}.shape])",
    "tuple([np.int64(n * {0}.dtype.itemsize) for n in {0}.strides])",
    "{}.size",
    "np.int64({}.dtype.itemsize)",
}
_CONTAINERS = {ops.TUPLE.template, ops.ITEM.template, VARIABLE.template}


@dataclass
class Use:
    """How a kernel uses the memory of one parameter.

    Attributes
    ----------
    reads, writes, atomics : bool
    own : set or None
        The indices of threads and blocks that every access has at the same place of its subscript: (place, (name,
        axis)). None before the first access.
    """

    reads: bool = False
    writes: bool = False
    atomics: bool = False
    own: set | None = field(default=None)

    def add(self, kind, index):
        setattr(self, kind, True)
        self.own = index if self.own is None else self.own & index

    def is_shared(self, grid, block):
        """True if threads of such a launch may read or write what another one writes."""
        if self.reads + self.writes + self.atomics < 2:
            return False
        tags = {tag for _, tag in self.own or ()}
        return not all(_covers(tags, axis, grid[axis], block[axis]) for axis in range(3))


def _covers(tags, axis, blocks, threads):
    """True if an element with these indices belongs to one position along an axis."""
    if ("grid", axis) in tags:
        return True
    return (threads == 1 or ("thread", axis) in tags) and (blocks == 1 or ("block", axis) in tags)


def find_uses(program):
    """Return {position of a parameter: Use} of a lowered kernel."""
    return _Search(program).uses


class _Search:
    def __init__(self, program):
        statements = [s for block in program.blocks for s in block.statements]
        counts = Counter(program.parameters)
        counts.update(s.target for s in statements)
        self.definitions = {s.target: s.expression for s in statements if counts[s.target] == 1}
        self.roots = {parameter: {i} for i, parameter in enumerate(program.parameters)}
        self._follow(statements)
        self.uses = {i: Use() for i in range(len(program.parameters))}
        for statement in statements:
            for node in statement.expression.walk():
                self._access(node)

    def _follow(self, statements):
        """Find the parameters that each variable may be a part of."""
        before = -1
        while before != sum(map(len, self.roots.values())):
            before = sum(map(len, self.roots.values()))
            for statement in statements:
                found = self._root(statement.expression)
                if found and statement.target is not None:
                    self.roots[statement.target] = self.roots.get(statement.target, set()) | found

    def _root(self, expression):
        if expression.op is VARIABLE:
            return self.roots.get(expression, set())
        if expression.op.template in _PARTS:
            return self._root(expression.operands[0])
        if expression.op.template in _CONTAINERS:
            return set().union(*map(self._root, expression.operands))
        return set()

    def _access(self, node):
        kind = {ops.LOAD: "reads", ops.STORE: "writes", ops.ATOMIC: "atomics", ops.ATOMIC_UNUSED: "atomics"}.get(
            node.op
        )
        if node.op in (ops.LOAD_FIELD, ops.STORE_FIELD):
            kind = "reads" if node.op is ops.LOAD_FIELD else "writes"
            index = self._record_index(node.operands[0])
        elif kind is None:
            self._other(node)
            return
        else:
            index = self._index(node.operands[0], node.operands[2 if kind == "atomics" else 1])
        for position in self._root(node.operands[0]):
            self.uses[position].add(kind, index)

    def _other(self, node):
        """Take an operation that is not known to leave its operands alone for one that reads all of them."""
        if node.op.template in _PARTS | _CONTAINERS | _MEASURES:
            return
        for position in set().union(*map(self._root, node.operands)):
            self.uses[position].add("reads", set())

    def _record_index(self, record):
        made = self._defined(record)
        return self._index(*made.operands[:2]) if made.op is ops.RECORD else set()

    def _index(self, array, index):
        """Return the thread and block indices in a subscript of a whole argument."""
        if self._defined(array).op is not VARIABLE:
            return set()
        index = self._defined(index)
        if index.op.template != ops.INDEX.template:
            return set()
        tags = ((place, self._tag(part)) for place, part in enumerate(index.operands))
        return {(place, tag) for place, tag in tags if tag is not None}

    def _defined(self, expression):
        """Follow copies to where a value is made."""
        while expression.op is VARIABLE and expression in self.definitions:
            expression = self.definitions[expression]
        return expression

    def _tag(self, expression):
        """Return which index of the launch an expression is, or None."""
        expression = self._defined(expression)
        template = expression.op.template
        if template in (ops.CAST.template, ops.UNSIGNED.template):
            return self._tag(expression.operands[0])
        if template == ops.GRID.template:
            return "grid", expression.operands[0].value
        if template == ops.DIM3["threadIdx"].template:
            return "thread", expression.operands[0].value
        if template == ops.DIM3["blockIdx"].template:
            return "block", expression.operands[0].value
        if template == ops.ITEM.template:
            items, place = self._defined(expression.operands[0]), expression.operands[1]
            if items.op.template == ops.TUPLE.template and place.op is LITERAL:
                return self._tag(items.operands[place.value])
        if template == ops.ADD.template:
            return self._sum(*map(self._defined, expression.operands))
        return None

    def _sum(self, first, second):
        """``blockIdx.x * blockDim.x + threadIdx.x`` is the position in the grid."""
        for product, rest in ((first, second), (second, first)):
            thread = self._tag(rest)
            product = self._plain(product)
            if thread is None or thread[0] != "thread" or product.op.template != ops.MUL.template:
                continue
            factors = [self._plain(o) for o in product.operands]
            names = {f.op.template: f.operands[0].value for f in factors if f.op.template in _DIMENSIONS}
            if names == dict.fromkeys(_DIMENSIONS, thread[1]):
                return "grid", thread[1]
        return None

    def _plain(self, expression):
        expression = self._defined(expression)
        while expression.op.template in (ops.CAST.template, ops.UNSIGNED.template):
            expression = self._defined(expression.operands[0])
        return expression


_DIMENSIONS = (ops.DIM3["blockIdx"].template, ops.DIM3["blockDim"].template)
