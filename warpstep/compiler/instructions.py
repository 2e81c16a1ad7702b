"""Instructions that nobody wrote: what it takes to compute addresses, to count the turns of loops, and to compute with
whole numbers.

A compiler decides that, and this is an estimate of what it decides, by four rules. A loop over a constant range is
unrolled, so what depends on its variable alone is known while compiling. What does not change within a loop is computed
before it. An index with a sign that may be negative is looked at: Numba counts negative ones from the end. Numbers of
64 bits take two registers, and two instructions.
"""

import re
from collections import defaultdict

_VARIABLE = re.compile(r"\bv\d+\b")
_CONSTANT = re.compile(r"\bc\d+\b")
_RANGE = re.compile(r"K\.range\((.*?), (.*?), (.*?), m, \d+\)$")
_NEXT = re.compile(r"range_next\((v\d+)\)$")
_AFTER = re.compile(r"v\d+\[2\]$")
_ACCESSED = re.compile(r"\((v\d+), \(")
_ON_CHIP = re.compile(r"K\.(shared|local)_array")
_PAIR = re.compile(r"\((v\d+)\[0\], v\d+\[1\]\)$")
_CUT = re.compile(r"\((v\d+)\)\.astype\((d\d+)\)$")
_QUOTIENT = re.compile(r" (?://|/|%) |\b(?:floor_divide|modulo)\w*\(")
_BEFORE_DIVISOR = re.compile(r" (?://|/|%) |, ")
_TAKEN = re.compile(r"(v\d+)\[(\d+)\]")
_TUPLE = re.compile(r"\(((?:[^,()]+, )+)\)$")
#: Sums, and products with what is known: they become parts of an address.
_LINEAR = re.compile(r"^[\s()\w.+*-]*$")
#: What is computed from its operands alone, whenever that is: no load, no call of what may differ from time to time.
_IMPURE = re.compile(r"\b(?:load|store|M\.|S\.|K\.(?!thread|block|grid|gridsize)|atomic\d|f\d+\.run|clock)")

#: What lanes of a warp may have different values of.
_LANES = re.compile(
    r"\b(?:load|M\.|K\.thread\[|K\.grid\(|K\.lane|K\.(?!thread_count|block|range|grid)|atomic\d|f\d+\.run)"
)
#: Steps back that are looked into, from a value to what it is computed from.
FAR = 60
#: Turns up to which a compiler unrolls a loop.
UNROLLED = 32
#: Instructions of a warp, read off the machine code of two matrix products, for a look at the sign of an index; for a
#: product of 64 bits; for a sum of two parts of an address, its scaling, and a step from one to the next.
SIGN, PRODUCT, SUM, SCALING, STEP = 5, 4, 2, 2, 1
#: For a turn of a loop over a range, and its value, if that is used; for a turn if their number is known; for a branch.
TURN, VALUE, COUNTED, BRANCH = 5, 5, 1, 1
OPERATION = {"int32": 1, "int64": 2, "int64_divisions": 20}
#: More of them for a quotient, by a variable and by a constant, as the machine code of a resize has it.
QUOTIENT = {"int32": (16, 3), "int64": (16, 3), "fp32": (9, 9), "fp64": (20, 20)}


def count(blocks, loops, names):
    """For each block the instructions that a warp runs for it, besides those that are written.

    Parameters
    ----------
    blocks : list of program.Block
    loops : dict
        {header: set of blocks} of every natural loop.
    names : dict
        Constants by name.

    Returns
    -------
    list of [int, int]
        All of them, and those for values that all lanes of a warp share.
    """
    code = _Code(blocks, loops, names)
    for label in range(len(blocks)):
        code.add_block(label)
    return code.found


class _Code:
    """What is known of a lowered function while it is compiled."""

    def __init__(self, blocks, loops, names):
        self.blocks, self.loops, self.names = blocks, loops, names
        self.found = [[0, 0] for _ in blocks]
        #: What was found out before: {(variable, loop, static): whether it varies}, variables that are not negative,
        #: {variable: whether all lanes of a warp share its value}.
        self.known, self.not_negative, self.shared = {}, set(), {}
        self.definitions, self.users = {}, defaultdict(list)
        for label, block in enumerate(blocks):
            for statement in block.statements:
                self.definitions.setdefault(statement.target, []).append((label, statement.expression))
                for name in {*_VARIABLE.findall(statement.expression)}:
                    self.users[name].append(statement)
        self.carried = self._carried()
        self.static = self._static()
        self.unrolled = {header for header in loops if self._is_unrolled(header)}
        self.counted = {header for header in loops if self._is_counted(header)} - self.unrolled

    # -- what is known while compiling -------------------------------------------------------------

    def _static(self):
        """Variables that are constants once the loops over constant ranges are unrolled."""
        found = set(self.definitions)
        while True:
            kept = {name for name in found if self._may_be_static(name, found)}
            if kept == found:
                return found
            found = kept

    def _may_be_static(self, name, static):
        definitions = self.definitions[name]
        if len(definitions) > 1 and not self._is_iterator(definitions) and name in self.carried:
            return False
        return all(self._is_static(expression, static) for _, expression in definitions)

    def _carried(self):
        """Variables with several definitions that depend on their own last value."""
        found = set()
        for name, definitions in self.definitions.items():
            seen, stack = set(), [text for _, text in definitions] if len(definitions) > 1 else []
            while stack:
                new = set(_VARIABLE.findall(stack.pop())) - seen
                seen |= new
                stack += [text for other in new for _, text in self.definitions.get(other, ())]
            if name in seen:
                found.add(name)
        return found

    def _is_iterator(self, definitions):
        """Whether these are the begin of an iteration over a range and what each turn leaves of it."""
        texts = [text for _, text in definitions]
        begins = [text for text in texts if not _AFTER.match(text)]
        if len(begins) == len(texts):
            return False
        origins = [self.definitions.get(text, [(0, text)]) for text in begins]
        return all(len(origin) == 1 and _RANGE.match(origin[0][1]) for origin in origins)

    def _is_static(self, expression, static):
        made = _RANGE.match(expression)
        if made:
            turns = self._turns(made.groups())
            return turns is not None and turns <= UNROLLED
        if _IMPURE.search(expression) or "K." in expression or ".shape" in expression:
            return False
        return all(name in static for name in _VARIABLE.findall(expression))

    def _turns(self, bounds):
        values = [self.names.get(text) if _CONSTANT.fullmatch(text) else None for text in bounds]
        if any(value is None for value in values):
            return None
        return len(range(*map(int, values)))

    def _is_unrolled(self, header):
        turns = self._iterators(header)
        return bool(turns) and all(name in self.static for name in turns)

    def _is_counted(self, header):
        """Whether the number of turns is known, though too many to unroll them all."""
        begins = [
            self.definitions.get(text, [(0, text)])
            for name in self._iterators(header)
            for _, text in self.definitions[name]
            if not _AFTER.match(text)
        ]
        made = [_RANGE.match(definitions[0][1]) for definitions in begins]
        return bool(made) and all(range_ and self._turns(range_.groups()) is not None for range_ in made)

    def _iterators(self, label):
        return [m[1] for s in self.blocks[label].statements if (m := _NEXT.match(s.expression))]

    # -- what changes ------------------------------------------------------------------------------

    def around(self, label):
        """(header, blocks) of the innermost loop around a block; (None, None) without one."""
        loops = [(header, body) for header, body in self.loops.items() if label in body]
        return min(loops, key=lambda loop: len(loop[1]), default=(None, None))

    def home(self, label, expression):
        """The block in which an expression is computed: before all loops in which it does not change."""
        header, body = self.around(label)
        while header is not None and not self.varies(expression, body, header in self.unrolled):
            entries = (n for n, block in enumerate(self.blocks) if n not in body and header in block.end.successors())
            label = next(entries, None)
            if label is None:  # the function begins with the loop
                return header
            header, body = self.around(label)
        return label

    def varies(self, expression, loop, static=False, seen=()):
        """Whether what an expression needs is computed anew in each turn of a loop, or at all where there is none.

        ``loop``: the blocks of the loop; ``static``: whether what depends on the variables of unrolled loops counts.
        """
        if _IMPURE.search(expression) or (loop is None and "K." in expression):
            return True
        return any(self._variable_varies(name, loop, static, seen) for name in {*_VARIABLE.findall(expression)})

    def _variable_varies(self, name, loop, static, seen):
        if (name in self.static and not static) or name not in self.definitions:  # known while compiling; a parameter
            return False
        if name in seen or len(seen) > FAR:  # it depends on its own last value
            return True
        key = name, id(loop), static
        if key not in self.known:
            inside = [made for made in self.definitions[name] if loop is None or made[0] in loop]
            self.known[key] = len(inside) > 1 or any(
                self.varies(text, loop, static, (*seen, name)) for _, text in inside
            )
        return self.known[key]

    def may_be_negative(self, expression, seen=()):
        """Whether the compiler must think so."""
        if "-" in expression or _IMPURE.search(expression) or "K.grid" in expression or ".shape" in expression:
            return True
        names = {*_VARIABLE.findall(expression)} - self.static
        return any(self.names[name] < 0 for name in _CONSTANT.findall(expression)) or any(
            name not in self.not_negative and self._variable_may_be_negative(name, seen) for name in names
        )

    def _variable_may_be_negative(self, name, seen):
        definitions = self.definitions.get(name, ())
        if (
            len(definitions) != 1
            or name in seen
            or len(seen) > FAR
            or self.may_be_negative(definitions[0][1], (*seen, name))
        ):
            return True
        self.not_negative.add(name)
        return False

    def is_shared(self, expression, seen=()):
        """Whether all lanes of a warp have the same value, as far as the compiler can see."""
        if _LANES.search(expression):
            return False
        names = {*_VARIABLE.findall(expression)} - self.static - set(seen)
        return all(self._variable_is_shared(name, seen) for name in names)

    def _variable_is_shared(self, name, seen):
        if len(seen) > FAR:
            return False
        if name not in self.shared:
            definitions = self.definitions.get(name, ())
            self.shared[name] = all(self.is_shared(text, (*seen, name)) for _, text in definitions)
        return self.shared[name]

    # -- instructions ------------------------------------------------------------------------------

    def add(self, label, number, shared):
        self.found[label][0] += number
        self.found[label][1] += number * shared

    def add_block(self, label):
        block = self.blocks[label]
        for statement in block.statements:
            iterator = _NEXT.match(statement.expression)
            if not iterator:
                self.add_address(label, statement)
                self.add_arithmetic(label, statement)
            elif iterator[1] not in self.static:
                turn = TURN + VALUE * self._is_used(statement.target)
                self.add(label, COUNTED if label in self.counted else turn, self.is_shared(iterator[1]))
        condition = getattr(block.end, "condition", None)
        if condition and label not in self.unrolled | self.counted and self.varies(condition, None):
            self.add(label, BRANCH, False)

    def _is_used(self, step):
        """Whether the values are used that an iteration steps through, and not only that there is one."""
        pairs = [user.target for user in self.users[step] if _PAIR.match(user.expression)]
        return any(user.expression == f"{pair}[0]" for pair in pairs for user in self.users[pair])

    def _is_cut(self, target):
        """Whether no more than 32 bits of a value are used."""
        cuts = [_CUT.match(user.expression) for user in self.users[target]]
        return bool(cuts) and all(cut and self.names[cut[2]].itemsize <= 4 for cut in cuts)

    def add_arithmetic(self, label, statement):
        """Whole numbers, and what a quotient takes besides the operation that is written."""
        cost = OPERATION | ({"int64": 1} if self._is_cut(statement.target) else {})
        kinds = set(statement.operations)
        number = sum(cost.get(kind, 0) for kind in statement.operations)
        if "int64_divisions" not in kinds and _QUOTIENT.search(statement.expression):
            known = {*_VARIABLE.findall(_BEFORE_DIVISOR.split(statement.expression)[-1])} <= self.static
            number += max((QUOTIENT[kind][known] for kind in kinds & QUOTIENT.keys()), default=0)
        if number and statement.target not in self.static and self.varies(statement.expression, None):
            home = self.home(label, statement.expression)
            if not self._is_unrolled_sum(home, statement.expression):
                self.add(home, number, self.is_shared(statement.expression))

    def _is_unrolled_sum(self, home, expression):
        """Whether it is a known distance from what was computed before a loop that is unrolled."""
        header, body = self.around(home)
        return header in self.unrolled and not self.varies(expression, body) and bool(_LINEAR.match(expression))

    def add_address(self, label, statement):
        """What it takes to reach the element that a statement loads or stores."""
        space, last = self._space(statement), len(statement.indices) - 1
        product, scaling, total = (1, 1, 1) if space == "shared" else (PRODUCT, SCALING, SUM)
        scaled = None
        for place, (part, signed) in enumerate(statement.indices):
            part = self._item(part)
            if space == "local" or not self.varies(part, None):
                continue
            home = self.home(label, part)
            header, body = self.around(home)
            looked_at = signed and self.may_be_negative(part)
            fixed = header in self.unrolled and not self.varies(part, body)
            if header is None or looked_at or header in self.unrolled:
                self.add(home, SIGN * looked_at + product * (place < last and not fixed), self.is_shared(part))
                self.add(home, total, False)
                scaled = label if label in (home, scaled) else home
            else:
                self.add(home, STEP, False)  # from the address of the turn before
        if scaled is not None:
            self.add(scaled, scaling, False)

    def _item(self, part):
        """An index, or what it is if it was taken out of a tuple."""
        taken = _TAKEN.search(part)
        definitions = self.definitions.get(taken[1], ()) if taken else ()
        made = _TUPLE.match(definitions[0][1]) if len(definitions) == 1 else None
        items = made[1].split(", ") if made else []
        return part.replace(taken[0], items[int(taken[2])]) if int(taken[2] if taken else 0) < len(items) else part

    def _space(self, statement):
        """ "shared", "local", or "" for an array that the kernel was given."""
        array = _ACCESSED.search(statement.expression)
        definitions = self.definitions.get(array[1], ()) if array else ()
        return next((made[1] for _, text in definitions if (made := _ON_CHIP.match(text))), "")
