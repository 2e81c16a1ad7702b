"""Estimate of the instructions that the source does not show: addressing, loop counters and integer arithmetic.

The GPU's compiler decides on them. This predicts its decisions by four rules. A loop over a constant range is unrolled,
so what depends on its variable alone is known while compiling. Loop invariants are computed before the loop. An index
of a signed type that may be negative is tested: Numba counts negative ones from the end. Numbers of 64 bits take two
registers, and two instructions.
"""

from collections import defaultdict

from warpstep.compiler import ops
from warpstep.compiler.blocks import Branch
from warpstep.compiler.expressions import LITERAL, VARIABLE, Trait

#: Operations of sums and products, which become parts of an address.
_LINEAR = {VARIABLE, LITERAL, ops.ADD, ops.SUB, ops.MUL, ops.NEG, ops.POS, ops.CAST, ops.GRID, ops.GRIDSIZE}
#: Items of a tuple that an index is traced to.
_PLAIN = {VARIABLE, LITERAL, ops.ITEM}
#: Definitions followed from a value back to what it is computed from.
MAX_DEPTH = 60
#: Largest trip count of a loop that a compiler unrolls.
MAX_UNROLLED = 32
#: Instructions of a warp, read off the machine code of two matrix products, for a test of the sign of an index; for a
#: product of 64 bits; for a sum of two parts of an address, its scaling, and a step from one to the next.
SIGN, PRODUCT, SUM, SCALING, STEP = 5, 4, 2, 2, 1
#: For an iteration over a range, and its value, if used; for one of a known number of iterations; for a branch.
ITERATION, VALUE, COUNTED, BRANCH = 5, 5, 1, 1
OPERATION = {"int32": 1, "int64": 2, "int64_divisions": 20}
#: Additional ones for a quotient, by a variable and by a constant, as the machine code of a resize has it.
QUOTIENT = {"int32": (16, 3), "int64": (16, 3), "fp32": (9, 9), "fp64": (20, 20)}


def overhead(functions):
    """Estimate the instructions of all functions of a kernel.

    Parameters
    ----------
    functions : list of (labels, blocks, control-flow graph)

    Returns
    -------
    dict
        {label of a block: [instructions that a warp runs for it beyond the operations in the source, those of them
        for values that all lanes of a warp share]}.
    """
    found = {}
    for labels, blocks, graph in functions:
        found |= zip(labels, _Estimate(blocks, graph).found, strict=True)
    return found


class _Estimate:
    """What is known of one function while it is compiled, and the instructions of each of its blocks."""

    def __init__(self, blocks, graph):
        self.blocks, self.graph, self.loops = blocks, graph, graph.loops()
        self.found = [[0, 0] for _ in blocks]
        #: Caches: {(variable, loop, static): whether it varies}, variables that are not negative, {variable: whether
        #: all lanes of a warp share its value}.
        self.known, self.not_negative, self.shared = {}, set(), {}
        self.definitions, self.users = {}, defaultdict(list)
        for label, block in enumerate(blocks):
            for statement in block.statements:
                self.definitions.setdefault(statement.target, []).append((label, statement.expression))
                for variable in statement.expression.variables:
                    self.users[variable].append(statement)
        self.carried = {name for name, made in self.definitions.items() if len(made) > 1 and self._is_carried(name)}
        self.static = self._static()
        self.unrolled = {header for header in self.loops if self._is_unrolled(header)}
        self.counted = {header for header in self.loops if self._is_counted(header)} - self.unrolled
        for label in range(len(blocks)):
            self.add_block(label)

    # -- what is known while compiling -------------------------------------------------------------

    def _is_carried(self, variable):
        """Return whether a variable depends on its own previous value."""
        seen, stack = set(), [variable]
        while stack:
            made = self.definitions.get(stack.pop(), ())
            new = {other for _, expression in made for other in expression.variables} - seen
            seen |= new
            stack += new
        return variable in seen

    def _static(self):
        """Find the variables that are constants once loops over constant ranges are unrolled."""
        found, left = set(self.definitions), list(self.definitions)
        while left:
            variable = left.pop()
            if variable in found and not self._may_be_static(variable, found):
                found.remove(variable)
                left += [user.target for user in self.users[variable]]
        return found

    def _may_be_static(self, variable, static):
        definitions = self.definitions[variable]
        if variable in self.carried and not self._is_iterator(definitions):
            return False
        return all(self._is_static(expression, static) for _, expression in definitions)

    def _ranges(self, definitions):
        """Return the ranges that an iteration may begin with; None for anything but a range."""
        starts = [expression for _, expression in definitions if expression.op is not ops.AFTER]
        origins = [self.definitions.get(start, [(0, start)]) for start in starts]
        return [made[0][1] if len(made) == 1 and made[0][1].op is ops.RANGE else None for made in origins]

    def _is_iterator(self, definitions):
        """Return whether these are the start of an iteration over a range and its steps."""
        ranges = self._ranges(definitions)
        return len(ranges) < len(definitions) and None not in ranges

    def _is_static(self, expression, static):
        if expression.op is ops.RANGE:
            count = _trip_count(expression)
            return count is not None and count <= MAX_UNROLLED
        if expression.traits & (Trait.IMPURE | Trait.LAUNCH | Trait.SHAPE):
            return False
        return static.issuperset(expression.variables)

    def _is_unrolled(self, header):
        iterators = self._iterators(header)
        return bool(iterators) and self.static.issuperset(iterators)

    def _is_counted(self, header):
        """Return whether the trip count of a loop is known."""
        ranges = [found for name in self._iterators(header) for found in self._ranges(self.definitions[name])]
        return bool(ranges) and all(found is not None and _trip_count(found) is not None for found in ranges)

    def _iterators(self, label):
        expressions = [s.expression for s in self.blocks[label].statements]
        return [expression.operands[0] for expression in expressions if expression.op is ops.RANGE_NEXT]

    # -- what changes ------------------------------------------------------------------------------

    def innermost_loop(self, label):
        """Return the innermost loop around a block; None without one."""
        return next(iter(self.graph.in_loops(label)), None)

    def home(self, label, expression):
        """Return the block in which an expression is computed: before all loops that it is invariant in."""
        loop = self.innermost_loop(label)
        while loop is not None and not self.varies(expression, loop, loop.header in self.unrolled):
            if not loop.entries:  # the function begins with the loop
                return loop.header
            label = min(loop.entries)
            loop = self.innermost_loop(label)
        return label

    def varies(self, expression, loop, static=False, seen=()):
        """Return whether an expression changes between the iterations of a loop or, for None, is computed at run time.

        ``static``: whether the variables of unrolled loops count as changing.
        """
        if expression.traits & (Trait.IMPURE if loop is not None else Trait.IMPURE | Trait.LAUNCH):
            return True
        return any(self._variable_varies(variable, loop, static, seen) for variable in expression.variables)

    def _variable_varies(self, variable, loop, static, seen):
        if (variable in self.static and not static) or variable not in self.definitions:  # a constant, a parameter
            return False
        if variable in seen or len(seen) > MAX_DEPTH:  # it depends on its own previous value
            return True
        key = variable, loop and loop.header, static
        if key not in self.known:
            inside = [made for label, made in self.definitions[variable] if loop is None or label in loop.body]
            self.known[key] = len(inside) > 1 or any(
                self.varies(expression, loop, static, (*seen, variable)) for expression in inside
            )
        return self.known[key]

    def may_be_negative(self, expression, seen=()):
        """Return whether the compiler must assume that a value may be negative."""
        if expression.traits & (Trait.NEGATIVE | Trait.IMPURE | Trait.SHAPE):
            return True
        return any(
            variable not in self.static
            and variable not in self.not_negative
            and self._variable_may_be_negative(variable, seen)
            for variable in expression.variables
        )

    def _variable_may_be_negative(self, variable, seen):
        definitions = self.definitions.get(variable, ())
        if (
            len(definitions) != 1
            or variable in seen
            or len(seen) > MAX_DEPTH
            or self.may_be_negative(definitions[0][1], (*seen, variable))
        ):
            return True
        self.not_negative.add(variable)
        return False

    def is_shared(self, expression, seen=()):
        """Return whether the compiler can prove that all lanes of a warp have the same value."""
        if expression.traits & Trait.LANES:
            return False
        variables = (v for v in expression.variables if v not in self.static and v not in seen)
        return all(self._variable_is_shared(variable, seen) for variable in variables)

    def _variable_is_shared(self, variable, seen):
        if len(seen) > MAX_DEPTH:
            return False
        if variable not in self.shared:
            definitions = self.definitions.get(variable, ())
            self.shared[variable] = all(self.is_shared(made, (*seen, variable)) for _, made in definitions)
        return self.shared[variable]

    # -- instructions ------------------------------------------------------------------------------

    def add(self, label, number, shared):
        self.found[label][0] += number
        self.found[label][1] += number * shared

    def add_block(self, label):
        block = self.blocks[label]
        for statement in block.statements:
            if statement.expression.op is not ops.RANGE_NEXT:
                self.add_address(label, statement.expression)
                self.add_arithmetic(label, statement)
                continue
            (iterator,) = statement.expression.operands
            if iterator not in self.static:
                turn = ITERATION + VALUE * self._is_used(statement.target)
                self.add(label, COUNTED if label in self.counted else turn, self.is_shared(iterator))
        if isinstance(block.end, Branch) and label not in self.unrolled | self.counted:
            self.add(label, BRANCH * self.varies(block.end.operand, None), False)

    def _is_used(self, step):
        """Return whether the values of an iteration are used, beyond whether there is one."""
        pairs = [user.target for user in self.users[step] if user.expression.op is ops.PAIR]
        taken = [user.expression for pair in pairs for user in self.users[pair] if user.expression.op is ops.ITEM]
        return any(expression.operands[1].value == 0 for expression in taken)

    def _is_cut(self, variable):
        """Return whether at most 32 bits of a value are used."""
        users = [user.expression for user in self.users[variable]]
        return bool(users) and all(
            user.op is ops.CAST and user.operands[0] is variable and user.operands[1].value.itemsize <= 4
            for user in users
        )

    def add_arithmetic(self, label, statement):
        """Add integer operations, and what a quotient takes beyond its one operation."""
        expression, target = statement.expression, statement.target
        cost = OPERATION | ({"int64": 1} if self._is_cut(target) else {})
        kinds = set(expression.operations)
        number = sum(cost.get(kind, 0) for kind in expression.operations)
        if "int64_divisions" not in kinds and expression.traits & Trait.QUOTIENT:
            quotient = next(node for node in expression.walk() if node.op.traits & Trait.QUOTIENT)
            known = self.static.issuperset(quotient.operands[-1].variables)
            number += max((QUOTIENT[kind][known] for kind in kinds & QUOTIENT.keys()), default=0)
        if number and target not in self.static and self.varies(expression, None):
            home = self.home(label, expression)
            if not self._is_unrolled_sum(home, expression):
                self.add(home, number, self.is_shared(expression))

    def _is_unrolled_sum(self, home, expression):
        """Return whether it is at a constant distance from a value computed before an unrolled loop."""
        loop = self.innermost_loop(home)
        unrolled = loop is not None and loop.header in self.unrolled
        return unrolled and not self.varies(expression, loop) and all(node.op in _LINEAR for node in expression.walk())

    def add_address(self, label, expression):
        """Add the address computation of the elements that an expression accesses."""
        indices = [node for node in expression.walk() if node.op is ops.INDEX and node.variables]
        parts = [part for index in indices for part in index.operands]
        space, scaled = self._space(expression) if parts else None, None
        product, scaling, total = (1, 1, 1) if space is ops.SHARED_ARRAY else (PRODUCT, SCALING, SUM)
        for place, part in enumerate(map(self._item, parts), 1):
            if space is ops.LOCAL_ARRAY or not self.varies(part, None):
                continue
            home = self.home(label, part)
            loop = self.innermost_loop(home)
            unrolled = loop is not None and loop.header in self.unrolled
            tested = part.op is not ops.UNSIGNED and self.may_be_negative(part)
            if loop is None or tested or unrolled:
                fixed = unrolled and not self.varies(part, loop)
                self.add(home, SIGN * tested + product * (place < len(parts) and not fixed), self.is_shared(part))
                self.add(home, total, False)
                scaled = label if label in (home, scaled) else home
            else:
                self.add(home, STEP, False)  # from the address of the iteration before
        if scaled is not None:
            self.add(scaled, scaling, False)

    def _item(self, part):
        """Return an index with an item of a tuple replaced by what the tuple was built from."""
        for taken in (node for node in part.walk() if node.op is ops.ITEM):
            definitions = self.definitions.get(taken.operands[0], ())
            made = definitions[0][1] if len(definitions) == 1 else part
            number = taken.operands[1].value
            if made.op is ops.TUPLE and 0 <= number < len(made.operands) and all(o.op in _PLAIN for o in made.operands):
                return part.substitute({taken: made.operands[number]})
            break
        return part

    def _space(self, expression):
        """Return the operation that makes the accessed array, if it is a shared or local one; else None."""
        # The index of an atomic comes third: its address is costed as one in global memory.
        nodes = (node for node in expression.walk() if len(node.operands) > 1 and node.operands[1].op is ops.INDEX)
        array = next((node.operands[0] for node in nodes), None)
        made = (expression.op for _, expression in self.definitions.get(array, ()))
        return next((op for op in made if op in (ops.SHARED_ARRAY, ops.LOCAL_ARRAY)), None)


def _trip_count(range_):
    """Return the trip count of a range with constant bounds, else None."""
    bounds = range_.operands[:3]
    return len(range(*(int(b.value) for b in bounds))) if all(b.op is LITERAL for b in bounds) else None
