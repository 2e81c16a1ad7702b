"""The lowered form of a function: basic blocks of NumPy statements, and the Python source that runs them in lockstep.

`Builder` collects blocks while the typed IR is translated; `Builder.finish` cleans them up, works out what every
waiting lane still needs, orders the blocks so that lanes which part meet again, and writes one Python function: a loop
over the program counter.
"""

import functools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from warpstep.compiler import instructions as overhead
from warpstep.machine import arithmetic
from warpstep.machine.memory import merge
from warpstep.machine.scheduler import SOON, TICK

_VARIABLE = re.compile(r"\bv\d+\b")


class Site(NamedTuple):
    """One place in the source that touches memory, waits or loops."""

    line: int
    filename: str
    array: str | None = None
    op: str | None = None


@dataclass
class Statement:
    """``target = expression``; kept even if the target is unused where ``effect`` is set."""

    target: str | None
    expression: str
    effect: bool = False
    place: tuple | None = None
    #: Kinds of arithmetic that the expression does, for a trace.
    operations: tuple = ()
    #: (expression, whether its type has a sign) of each index of the element that it accesses.
    indices: tuple = ()


@dataclass
class Jump:
    target: int
    site: int

    def successors(self):
        return (self.target,)

    def text(self):
        return ""

    def rename(self, rename):
        return None


@dataclass
class Branch:
    condition: str
    if_true: int
    if_false: int
    site: int

    def successors(self):
        return (self.if_true, self.if_false)

    def text(self):
        return self.condition

    def rename(self, rename):
        self.condition = rename(self.condition)


@dataclass
class Leave:
    """Return from the function; ``result`` is the returned expression of a function that is called, not inlined."""

    result: str | None = None

    def successors(self):
        return ()

    def text(self):
        return self.result or ""

    def rename(self, rename):
        if self.result:
            self.result = rename(self.result)


@dataclass
class Barrier:
    """Wait for the other lanes, then go on at ``target``.

    ``members``: the expression of the lanes a warp barrier names.
    """

    target: int
    kind: str
    members: str | None
    site: int

    def successors(self):
        return (self.target,)

    def text(self):
        return self.members or ""

    def rename(self, rename):
        if self.members:
            self.members = rename(self.members)


@dataclass
class Block:
    statements: list = field(default_factory=list)
    end: object = None


@dataclass(frozen=True, eq=False)
class Program:
    """A kernel, lowered.

    Attributes
    ----------
    run : function
        ``run(batch, mask, *arguments)``.
    traced_run : function
        The same for a `traced.TracedBatch`: it says which basic blocks run, and never skips a barrier.
    source : str
        The NumPy program, for those who want to read it.
    sites : list of Site
    operations : list of Counter
        {((file, line), kind): operations of one thread} of each basic block that `traced_run` names.
    unwritten : function
        By name of a basic block the instructions of a warp in it that nobody wrote, by estimate.
    written : frozenset of int
        Parameters whose memory the kernel may write, by position.
    fences : bool
        True if the kernel has a memory fence.
    static_shared : dict
        Bytes of every static shared array, by key.
    local_bytes : int
        Bytes of local arrays for each thread.
    cooperative : bool
        True if the kernel synchronises the whole grid.
    places : dict
        From lines of the written functions to lines of the kernel's source.
    """

    name: str
    run: object
    traced_run: object
    source: str
    sites: list
    operations: list
    unwritten: object
    written: frozenset
    fences: bool
    static_shared: dict
    local_bytes: int
    cooperative: bool
    places: dict

    def place_of(self, error):
        """(file, line) of the kernel's source where an exception came up; None if that is not known."""
        traceback, found = error.__traceback__, None
        while traceback is not None:
            lines = self.places.get(traceback.tb_frame.f_code.co_filename)
            found = found if lines is None else lines.get(traceback.tb_lineno, found)
            traceback = traceback.tb_next
        return found


class Lowered(NamedTuple):
    """One written function: itself, what gives its traced form, its source, and which parameters it may write."""

    run: object
    traced: object
    source: str
    written: frozenset


class Builder:
    """Blocks of one function under construction. Pools (constants, sites) are shared with the functions it calls."""

    def __init__(self, name, pools=None):
        self.name = name
        self.pools = pools or Pools()
        self.blocks = [Block()]
        self.current = 0
        self.counter = 0
        #: (file, line) of the source that is being translated.
        self.place = None
        #: Kinds of arithmetic in the expression that is being made.
        self.operations = []
        #: Its indices.
        self.indices = []

    def variable(self):
        self.counter += 1
        return f"v{self.counter}"

    def new_block(self):
        self.blocks.append(Block())
        return len(self.blocks) - 1

    def emit(self, expression, target=None, effect=False):
        statement = Statement(target, expression, effect, self.place, tuple(self.operations), tuple(self.indices))
        self.operations, self.indices = [], []
        self.blocks[self.current].statements.append(statement)
        return target

    def temporary(self, expression, effect=False):
        """Evaluate an expression into a new variable."""
        return self.emit(expression, self.variable(), effect)

    def end(self, terminator):
        if self.blocks[self.current].end is None:
            self.blocks[self.current].end = terminator

    # -- finishing -----------------------------------------------------------------------------------------------------

    def finish(self, parameters):
        """Write and compile the function; returns `Lowered`."""
        self._propagate_copies(parameters)
        self._drop_unused()
        written = _written(self.blocks, parameters)
        blocks = self._join_chains()
        blocks = _renumber(blocks)
        loops = _natural_loops(blocks)
        order = _reconvergence_order(blocks, loops)
        live_in = _liveness(blocks)
        ranks = [0] * len(blocks)
        for rank, block in enumerate(order):
            ranks[block] = rank
        constants = {"ORDER": ranks, "LIVE": _bit_sets(live_in)[0]}
        labels = self.pools.count_operations(blocks)
        self.pools.functions.append((labels, blocks, loops))

        def written_as(traced):
            writer = _Writer(self.name, parameters, blocks, loops, live_in, labels if traced else None)
            source = writer.write()
            filename = f"<lockstep {len(self.pools.places)} {self.name}>"
            self.pools.places[filename] = writer.places
            namespace = self.pools.names | constants
            exec(compile(source, filename, "exec"), namespace)
            return namespace["run"], source

        run, source = written_as(traced=False)
        return Lowered(run, functools.cache(lambda: written_as(traced=True)[0]), source, written)

    def _propagate_copies(self, parameters):
        """Where ``v2 = v1`` is the only definition of v2, and v1 has but one too, use v1 itself."""
        definitions = dict.fromkeys(parameters, 1)
        for block in self.blocks:
            for statement in block.statements:
                definitions[statement.target] = definitions.get(statement.target, 0) + 1
        alias = {}
        for block in self.blocks:
            for s in block.statements:
                if (
                    _VARIABLE.fullmatch(s.expression)
                    and definitions[s.target] == 1
                    and definitions.get(s.expression) == 1
                ):
                    alias[s.target] = s.expression

        def original(match):
            name = match.group()
            while name in alias:
                name = alias[name]
            return name

        for block in self.blocks:
            block.statements = [s for s in block.statements if s.target not in alias]
            for statement in block.statements:
                statement.expression = _VARIABLE.sub(original, statement.expression)
                statement.indices = tuple((_VARIABLE.sub(original, part), sign) for part, sign in statement.indices)
            if block.end is not None:
                block.end.rename(lambda text: _VARIABLE.sub(original, text))

    def _drop_unused(self):
        while True:
            used = set()
            for block in self.blocks:
                for statement in block.statements:
                    used.update(_VARIABLE.findall(statement.expression))
                if block.end is not None:
                    used.update(_VARIABLE.findall(block.end.text()))
            dropped = False
            for block in self.blocks:
                for statement in block.statements:
                    if statement.effect and statement.target not in used:
                        statement.target = None
                        statement.expression = statement.expression.replace("wants_old=True", "wants_old=False")
                kept = [s for s in block.statements if s.effect or s.target in used]
                dropped |= len(kept) != len(block.statements)
                block.statements = kept
            if not dropped:
                return

    def _join_chains(self):
        """Reachable blocks only, each straight run of them as one."""
        blocks = _reachable(self.blocks)
        entries = dict.fromkeys(blocks, 0)
        for block in blocks.values():
            for successor in block.end.successors():
                entries[successor] += 1
        for label in list(blocks):
            while label in blocks and isinstance(blocks[label].end, Jump):
                target = blocks[label].end.target
                if entries[target] != 1 or target in (label, 0):
                    break
                follower = blocks.pop(target)
                blocks[label] = Block(blocks[label].statements + follower.statements, follower.end)
        return blocks


class Pools:
    """Names that the written functions share: constants, dtypes, helpers, called functions."""

    def __init__(self):
        self.names = {
            "np": np,
            "B_": np.bool_,
            "merge": merge,
            "TICK": TICK,
            **{n: getattr(arithmetic, n) for n in dir(arithmetic) if not n.startswith("_") and n not in ("np", "math")},
        }
        self.sites = []
        self.operations = []
        #: (labels, blocks, loops) of each written function.
        self.functions = []
        self.fences = False
        self.static_shared = {}
        self.local_bytes = {}
        self.cooperative = False
        #: {file name of a written function: {its line: (file, line) of the kernel's source}}
        self.places = {}
        self._by_key = {}

    def add(self, prefix, value, key=None):
        """A global name for an object; equal keys share one name."""
        if key is not None and key in self._by_key:
            return self._by_key[key]
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        if key is not None:
            self._by_key[key] = name
        return name

    def scalar(self, value, dtype):
        """A typed NumPy scalar constant."""
        dtype = np.dtype(dtype)
        with np.errstate(all="ignore"):
            if isinstance(value, int) and dtype.kind in "iu":
                bits = value & ((1 << dtype.itemsize * 8) - 1)
                typed = np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
            else:
                typed = dtype.type(value)
        return self.add("c", typed, (dtype.str, typed.tobytes()))

    def text(self, text):
        """A string. Never written into the program itself, where it could look like a variable."""
        return self.add("s", str(text), ("text", str(text)))

    def dtype(self, dtype):
        return self.add("d", np.dtype(dtype), ("dtype", str(np.dtype(dtype))))

    def count_operations(self, blocks):
        """For each block the label under which `operations` holds what one thread computes in it; None for nothing."""
        labels = []
        for block in blocks:
            counted = Counter((s.place, kind) for s in block.statements for kind in s.operations)
            labels.append(len(self.operations) if block.statements else None)
            if block.statements:
                self.operations.append(counted)
        return labels

    @functools.cache  # noqa: B019  (a kernel is there for as long as what this refers to)
    def unwritten(self):
        """By label the instructions of a warp that nobody wrote, by estimate."""
        found = {}
        for labels, blocks, loops in self.functions:
            found |= zip(labels, overhead.count(blocks, loops, self.names), strict=True)
        return found

    def site(self, site):
        key = ("site", site)
        if key not in self._by_key:
            self._by_key[key] = len(self.sites)
            self.sites.append(site)
        return self._by_key[key]


#: What writes to the array that is its first argument.
_WRITES = re.compile(r"\b(?:store|M\.assign_slice|M\.store_wide)\((\w+)|\batomic\d+\(M, '\w+', (\w+)")
#: What may write to any array that it is given: to records, ufuncs of arrays, and recursive functions.
_MAY_WRITE = re.compile(r"\bM\.(?:copy_record|store_field)\(|\bf\d+\.run\(|\belementwise\d+\(")


def _written(blocks, parameters):
    """Positions of the parameters whose memory may be written: those that a store can be traced back to."""
    statements = [s for block in blocks for s in block.statements]
    wanted = set()
    for statement in statements:
        for match in _WRITES.finditer(statement.expression):
            wanted.update(group for group in match.groups() if group)
        if _MAY_WRITE.search(statement.expression):
            wanted.update(_VARIABLE.findall(statement.expression))
    before = None
    while before != len(wanted):
        before = len(wanted)
        for statement in statements:
            if statement.target in wanted:
                wanted.update(_VARIABLE.findall(statement.expression))
    return frozenset(i for i, name in enumerate(parameters) if name in wanted)


def _reachable(blocks):
    found, stack = {}, [0]
    while stack:
        label = stack.pop()
        if label in found:
            continue
        found[label] = blocks[label]
        stack.extend(blocks[label].end.successors())
    return dict(sorted(found.items()))


def _renumber(blocks):
    """Labels 0, 1, 2 ... in the order of the source."""
    number = {label: i for i, label in enumerate(blocks)}
    for block in blocks.values():
        end = block.end
        if isinstance(end, Branch):
            end.if_true, end.if_false = number[end.if_true], number[end.if_false]
        elif not isinstance(end, Leave):
            end.target = number[end.target]
    return list(blocks.values())


# -- analyses ----------------------------------------------------------------------------------------------------------


def _natural_loops(blocks):
    """{header: set of blocks} of every natural loop (dominators by iteration; kernels are small)."""
    successors = [block.end.successors() for block in blocks]
    predecessors = [[] for _ in blocks]
    for label, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(label)
    everything = (1 << len(blocks)) - 1
    dominators = [everything] * len(blocks)
    dominators[0] = 1
    changed = True
    while changed:
        changed = False
        for label in range(1, len(blocks)):
            common = everything
            for predecessor in predecessors[label]:
                common &= dominators[predecessor]
            common |= 1 << label
            if common != dominators[label]:
                dominators[label] = common
                changed = True
    loops = {}
    for label, targets in enumerate(successors):
        for header in targets:
            if dominators[label] >> header & 1:
                body = loops.setdefault(header, {header})
                stack = [label]
                while stack:
                    inside = stack.pop()
                    if inside not in body:
                        body.add(inside)
                        stack.extend(predecessors[inside])
    return loops


def _reconvergence_order(blocks, loops):
    """Blocks by rank.

    Before its exits a loop, in it the header last, so that lanes wait for those still in the body.
    """

    def arrange(members, barred):
        outermost = [h for h in loops if h in members and h not in barred]
        outermost = [
            h for h in outermost if not any(h in loops[o] and o != h and loops[h] < loops[o] for o in outermost)
        ]
        owner = {}
        for header in outermost:
            for label in loops[header] & members:
                owner[label] = header
        nodes = sorted({owner.get(label, label) for label in members})
        edges = {node: [] for node in nodes}
        for label in members:
            source = owner.get(label, label)
            for target in blocks[label].end.successors():
                if target in members and target not in barred:
                    sink = owner.get(target, target)
                    if sink != source:
                        edges[source].append(sink)
        result = []
        for node in _topological(nodes, edges):
            if node in outermost:
                result.extend(arrange((loops[node] & members) - {node}, barred | {node}))
                result.append(node)
            else:
                result.append(node)
        return result

    return arrange(set(range(len(blocks))), frozenset())


def _topological(nodes, edges):
    done, result = set(), []
    for root in nodes:
        stack = [(root, iter(sorted(edges[root], reverse=True)))] if root not in done else []
        done.add(root)
        while stack:
            node, targets = stack[-1]
            target = next((t for t in targets if t not in done), None)
            if target is None:
                result.append(node)
                stack.pop()
            else:
                done.add(target)
                stack.append((target, iter(sorted(edges[target], reverse=True))))
    return result[::-1]


def _liveness(blocks):
    """Variables that each block may read before it writes them, itself or later."""
    uses, defines = [], []
    for block in blocks:
        read, written = set(), set()
        for statement in block.statements:
            read.update(v for v in _VARIABLE.findall(statement.expression) if v not in written)
            if statement.target is not None:
                written.add(statement.target)
        read.update(v for v in _VARIABLE.findall(block.end.text()) if v not in written)
        uses.append(read)
        defines.append(written)
    live_in = [set(u) for u in uses]
    changed = True
    while changed:
        changed = False
        for label in reversed(range(len(blocks))):
            out = set().union(*(live_in[s] for s in blocks[label].end.successors()))
            now = uses[label] | (out - defines[label])
            if now != live_in[label]:
                live_in[label] = now
                changed = True
    return live_in


def _bit_sets(live_in):
    """Live sets as integers, and the bit of each variable."""
    names = sorted(set().union(*live_in), key=lambda v: int(v[1:]))
    bit = {name: 1 << i for i, name in enumerate(names)}
    return [sum(bit[v] for v in live) for live in live_in], bit


# -- writing -----------------------------------------------------------------------------------------------------------


class _Writer:
    """Python source of one function.

    Locals: K the batch, S the scheduler, pc, m the running lanes, L what waiting lanes still need, n back edges.
    """

    def __init__(self, name, parameters, blocks, loops, live_in, labels=None):
        """``labels``: the names of the blocks in a trace; None writes the plain program."""
        self.labels = labels
        self.name = name
        self.parameters = parameters
        self.blocks = blocks
        self.loops = loops
        self.live_in = live_in
        self.bit = _bit_sets(live_in)[1]
        self.returns_value = any(isinstance(b.end, Leave) and b.end.result for b in blocks)
        self.lines = []
        self.places = {}

    def write(self):
        self.line(0, f"def run(K, m{''.join(', ' + p for p in self.parameters)}):")
        self.line(1, "S = K.scheduler(ORDER, LIVE, m)")
        self.line(1, "M = K.memory")
        self.line(1, "load, store = M.load, M.store")
        names = sorted(set(self.bit) - set(self.parameters), key=lambda v: int(v[1:]))
        for start in range(0, len(names), 12):
            self.line(1, " = ".join(names[start : start + 12]) + " = None")
        self.line(1, "pc = L = 0")
        self.line(1, f"n = {TICK - SOON}")
        if self.returns_value:
            self.line(1, "result = None")
        self.line(1, "while True:")
        self.dispatch(0, len(self.blocks), 2)
        return "\n".join(self.lines) + "\n"

    def line(self, depth, text):
        self.lines.append("    " * depth + text)

    def dispatch(self, first, last, depth):
        """Find the block of ``pc`` by halving."""
        if last - first == 1:
            self.block(first, depth)
            return
        middle = (first + last) // 2
        self.line(depth, f"if pc < {middle}:")
        self.dispatch(first, middle, depth + 1)
        self.line(depth, "else:")
        self.dispatch(middle, last, depth + 1)

    def block(self, label, depth):
        block = self.blocks[label]
        last_use = self._last_uses(block)
        if self.labels is not None and self.labels[label] is not None:
            self.line(depth, f"K.enter({self.labels[label]}, m)")
        for i, statement in enumerate(block.statements):
            self.line(depth, self._statement(statement))
            self.places[len(self.lines)] = statement.place
            dead = last_use.get(i)
            if dead:
                self.line(depth, "del " + ", ".join(sorted(dead)))
        self._end(label, block.end, depth)

    def _last_uses(self, block):
        """Variables of this block only, by the statement after which nothing needs them."""
        last = {}
        for i, statement in enumerate(block.statements):
            for name in _VARIABLE.findall(statement.expression):
                last[name] = i
            if statement.target is not None:
                last.setdefault(statement.target, i)
        at_end = set(_VARIABLE.findall(block.end.text()))
        result = {}
        own = {s.target for s in block.statements}
        for name, i in last.items():
            if name in own and name not in self.bit and name not in at_end:
                result.setdefault(i, set()).add(name)
        return result

    def _statement(self, statement):
        target, expression = statement.target, statement.expression
        if target is None:
            return expression
        if target in self.bit:
            return f"{target} = ({expression}) if not L & {self.bit[target]} else merge(m, {expression}, {target})"
        return f"{target} = {expression}"

    def _end(self, label, end, depth):
        for successor in end.successors():
            if label in self.loops.get(successor, ()):
                self._tick(successor, end.site, depth)
        if isinstance(end, Leave):
            if end.result:
                self.line(depth, f"result = merge(m, {end.result}, result)")
            self.line(depth, "pc, m, L = S.leave(m)")
            self.line(depth, "if pc < 0:")
            self.line(depth + 1, "return result" if self.returns_value else "return None")
        elif isinstance(end, Branch):
            self.line(depth, f"c = {end.condition}")
            self.line(depth, "if c.__class__ is B_:")
            self.line(depth + 1, f"pc = {end.if_true} if c else {end.if_false}")
            self.line(depth + 1, "if S.waiting:")
            self.line(depth + 2, "pc, m, L = S.go(pc, m)")
            self.line(depth, "else:")
            self.line(depth + 1, f"pc, m, L = S.branch(c, {end.if_true}, {end.if_false}, m, {end.site})")
        elif isinstance(end, Barrier):
            members = f", {end.members}" if end.members else ""
            if self.labels is None:
                self.line(depth, f"pc = {end.target}")
                self.line(depth, "if S.waiting:")
                depth += 1
            self.line(depth, f"pc, m, L = S.barrier({end.target}, m, {end.kind!r}, {end.site}{members})")
            depth -= self.labels is None
        else:
            self.line(depth, f"pc = {end.target}")
            self.line(depth, "if S.waiting:")
            self.line(depth + 1, f"pc, m, L = S.go({end.target}, m)")
        self.line(depth, "continue")

    def _tick(self, header, site, depth):
        """On a back edge: count, and now and then ask whether the loop still gets anywhere."""
        state = "".join(f"{v}, " for v in sorted(self.live_in[header]))
        self.line(depth, "n += 1")
        self.line(depth, "if n >= TICK:")
        self.line(depth + 1, f"n = S.tick({header}, m, ({state}), {site})")
