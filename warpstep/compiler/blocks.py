"""The lowered form of a function: basic blocks of statements, and the NumPy program that runs them in lockstep.

`Builder` collects blocks while the typed IR is translated; `Builder.finish` cleans them up, finds the variables that
waiting lanes still need, orders the blocks so that diverged lanes reconverge, and writes one Python function: a loop
over the program counter.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from warpstep._numba import CFGraph
from warpstep.compiler import ops
from warpstep.compiler.expressions import VARIABLE, Expression, Printer, Trait, variable
from warpstep.compiler.loops import Loops
from warpstep.integers import ceil_div
from warpstep.limits import SHARED_ALIGNMENT
from warpstep.machine.progress import CHECK_INTERVAL, SHORT_INTERVAL

#: Barriers that are called where no lanes wait, too: what they wait for are not lanes alone.
ALWAYS = ("grid", "phase", "named")

#: Files of functions that work for the line that calls them: their accesses are that line's, their arithmetic nobody's.
LIBRARIES: set[str] = set()


def _aligned(nbytes, alignment):
    return ceil_div(nbytes, alignment) * alignment


class FrameInfo:
    """A function of the source in which a kernel can stop: the kernel, or a device function that is called at a line.

    Attributes
    ----------
    function : function
    caller : FrameInfo or None
    line : int
        Line of the call in the caller.
    depth : int
        Calls from the kernel to here.
    variables : dict
        {name in the source: number by which a `Batch` is told its value}.
    """

    def __init__(self, function, caller, line):
        self.function, self.caller, self.line = function, caller, line
        self.depth = 0 if caller is None else caller.depth + 1
        self.variables = {}


class Stop(NamedTuple):
    """A place where a kernel can be stopped: the start of a line."""

    line: int
    filename: str
    frame: FrameInfo


class Site(NamedTuple):
    """One place in the source that touches memory, waits or loops."""

    line: int
    filename: str
    array: str | None = None
    op: str | None = None


@dataclass
class Statement:
    """``target = expression``; without a target it is evaluated for its effect."""

    target: Expression | None
    expression: Expression
    #: (file, line) of the kernel's source.
    place: tuple | None = None

    @property
    def has_effect(self):
        return bool(self.expression.traits & Trait.EFFECT)


@dataclass
class End:
    """How a block ends. ``targets``: labels of the blocks where its lanes may go on."""

    targets: tuple
    operand: Expression | None = None
    site: int | None = None

    @property
    def variables(self):
        return self.operand.variables if self.operand else ()


class Jump(End):
    """Go on at the only target."""


class Branch(End):
    """Go on at the first target where the operand is true, at the second elsewhere."""


class Leave(End):
    """Return from the function; the operand is the result of a function that is called, not inlined."""


@dataclass
class Barrier(End):
    """Wait for other lanes: those of the block, of the grid, or those that the operand names, or for a phase."""

    kind: str = "block"


@dataclass
class Block:
    statements: list = field(default_factory=list)
    end: End | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """A lowered kernel.

    Attributes
    ----------
    run : function
        ``run(batch, mask, *arguments)``.
    traced_run : function
        Returns the same for a batch that traces: it reports which basic blocks run, and never skips a barrier.
    source : str
        The NumPy program, for reading.
    sites : list of Site
    operations : list of Counter
        {((file, line), kind): operations of one thread} of each basic block, by the label that `traced_run` reports.
    lines : list of list
        (file, line) of the statements of each basic block, by the same labels.
    overhead : function
        Returns estimated instructions of a warp that the source does not show, by the same labels.
    written : frozenset of int
        Positions of the parameters whose memory the kernel may write.
    fences : bool
        True if the kernel has a memory fence.
    partial_warps : bool
        True if a ``syncwarp`` of the kernel takes a mask.
    static_shared : dict
        Bytes of every static shared array, by key; 0 for dynamic ones.
    shared_alignment : dict
        The alignment that the source gives a shared array, by key.
    local_bytes : int
        Bytes of local arrays per thread.
    constant_bytes : int
        Bytes of the global arrays that it has as constants.
    cooperative : bool
        True if the kernel synchronises the grid.
    breakpoints : bool
        True if the kernel calls ``breakpoint``.
    stops : list of Stop or None
        Of a program for the debugger: where it can be stopped.
    places : dict
        {file name of a generated function: {its line: (file, line) of the kernel's source}}.
    parameters : list of Expression
    blocks : list of Block
        What `run` was generated from.
    """

    name: str
    run: Callable
    traced_run: Callable
    source: str
    sites: list
    operations: list
    lines: list
    overhead: Callable
    written: frozenset
    fences: bool
    partial_warps: bool
    static_shared: dict
    shared_alignment: dict
    local_bytes: int
    constant_bytes: int
    cooperative: bool
    breakpoints: bool
    stops: list | None
    places: dict
    parameters: list
    blocks: list

    @functools.cached_property
    def static_bytes(self) -> int:
        """Bytes of static shared memory of a block, up to where dynamic shared memory begins if the kernel has some.

        They are those of the device, whose compiler leaves no gaps.
        """
        nbytes = sum(self.static_shared.values())
        has_dynamic = not all(self.static_shared.values())
        return _aligned(nbytes, self.dynamic_alignment) if has_dynamic else nbytes

    @functools.cached_property
    def dynamic_alignment(self) -> int:
        """Alignment of dynamic shared memory."""
        dynamic = [key for key, nbytes in self.static_shared.items() if not nbytes]
        return max([SHARED_ALIGNMENT, *(self.shared_alignment.get(key, 0) for key in dynamic)])

    @functools.cached_property
    def shared_addresses(self) -> tuple[dict, int]:
        """({key of a shared array: its byte offset in a block's shared memory}, that of dynamic shared memory)."""
        addresses, end = {}, 0
        for key, nbytes in self.static_shared.items():
            if nbytes:
                end = _aligned(end, max(SHARED_ALIGNMENT, self.shared_alignment.get(key, 0)))
            addresses[key] = end
            end += nbytes
        return addresses, _aligned(end, self.dynamic_alignment)

    def place_of(self, error):
        """Return (file, line) of the kernel's source where an exception was raised; None if unknown."""
        traceback, found = error.__traceback__, None
        while traceback is not None:
            lines = self.places.get(traceback.tb_frame.f_code.co_filename)
            found = found if lines is None else lines.get(traceback.tb_lineno, found)
            traceback = traceback.tb_next
        return found


class Lowered(NamedTuple):
    """One generated function, a function that returns its traced form, its source, the parameters it may write, all its
    parameters and its blocks."""

    run: Callable
    traced: Callable
    source: str
    written: frozenset
    parameters: list
    blocks: list


class Builder:
    """Blocks of one function under construction. Its pools are shared with the functions that it calls."""

    def __init__(self, name, pools):
        self.name = name
        self.pools = pools
        self.blocks = [Block()]
        self.current = 0
        self.counter = 0
        #: (file, line) of the source that is being translated.
        self.place = None

    def variable(self):
        self.counter += 1
        return variable(self.counter)

    def new_block(self):
        self.blocks.append(Block())
        return len(self.blocks) - 1

    def emit(self, expression, target=None):
        """Append a statement to the current block; return ``target``."""
        self.blocks[self.current].statements.append(Statement(target, expression, self.place))
        return target

    def temporary(self, expression):
        """Evaluate an expression into a new variable."""
        return self.emit(expression, self.variable())

    def end(self, end):
        """End the current block, unless it has ended."""
        if self.blocks[self.current].end is None:
            self.blocks[self.current].end = end

    # -- finishing -----------------------------------------------------------------------------------------------------

    def finish(self, parameters):
        """Generate and compile the function; return it as `Lowered`."""
        self._propagate_copies(parameters)
        self._drop_unused()
        written = _written(self.blocks, parameters)
        blocks = _renumber(self._join_chains())
        graph = _graph(blocks)
        live_in = _liveness(blocks)
        bodies = {header: loop.body for header, loop in graph.loops().items()}
        order = _reconvergence_order(blocks, bodies)
        ranks = [0] * len(blocks)
        for rank, block in enumerate(order):
            ranks[block] = rank
        states = {header: _by_number(live_in[header]) for header in bodies}
        constants = {"ORDER": ranks, "LIVE": _bit_sets(live_in)[0], "LOOPS": Loops(blocks, bodies, states)}
        labels = self.pools.count_operations(blocks)
        self.pools.functions.append((labels, blocks, graph))

        def generate(traced):
            writer = _Writer(self.pools.printer, parameters, blocks, graph.loops(), live_in, labels if traced else None)
            source = writer.write()
            filename = f"<lockstep {len(self.pools.places)} {self.name}>"
            self.pools.places[filename] = writer.places
            namespace = self.pools.printer.names | constants
            exec(compile(source, filename, "exec"), namespace)
            return namespace["run"], source

        run, source = generate(traced=False)
        return Lowered(run, functools.cache(lambda: generate(traced=True)[0]), source, written, parameters, blocks)

    def _statements(self):
        return [statement for block in self.blocks for statement in block.statements]

    def _propagate_copies(self, parameters):
        """Replace v2 by v1 where ``v2 = v1`` is the only definition of v2, and v1 has only one too."""
        definitions = Counter(parameters)
        definitions.update(s.target for s in self._statements())
        alias = {}
        for s in self._statements():
            if s.expression.op is VARIABLE and definitions[s.target] == definitions[s.expression] == 1:
                alias[s.target] = s.expression
        for copy in alias:
            while alias[copy] in alias:
                alias[copy] = alias[alias[copy]]
        for block in self.blocks:
            block.statements = [s for s in block.statements if s.target not in alias]
            for statement in block.statements:
                statement.expression = statement.expression.substitute(alias)
            if block.end is not None and block.end.operand:
                block.end.operand = block.end.operand.substitute(alias)

    def _drop_unused(self):
        """Drop statements without effect whose value is not used, and unused values of the others."""
        dropped = True
        while dropped:
            used = {v for s in self._statements() for v in s.expression.variables}
            used.update(v for block in self.blocks if block.end is not None for v in block.end.variables)
            dropped = False
            for block in self.blocks:
                kept = [s for s in block.statements if s.has_effect or s.target in used]
                dropped |= len(kept) != len(block.statements)
                block.statements = kept
        for statement in self._statements():
            if statement.target not in used:
                statement.target = None
                if statement.expression.op is ops.ATOMIC:
                    statement.expression = ops.ATOMIC_UNUSED(*statement.expression.operands)

    def _join_chains(self):
        """Return the reachable blocks by label, with straight runs joined into one."""
        graph = _graph(self.blocks)
        blocks = {label: self.blocks[label] for label in sorted(graph.nodes())}
        for label in list(blocks):
            while label in blocks and isinstance(blocks[label].end, Jump):
                (target,) = blocks[label].end.targets
                if target in (label, 0) or len([*graph.predecessors(target)]) != 1:
                    break
                follower = blocks.pop(target)
                blocks[label] = Block(blocks[label].statements + follower.statements, follower.end)
        return blocks


class Pools:
    """What the functions of one kernel share."""

    def __init__(self, debugging=False):
        self.printer = Printer()
        self.sites = []
        self.breakpoints = False
        #: Places where the debugger can stop; None in a program that runs without it.
        self.stops = [] if debugging else None
        #: Variables of the source that the debugger is told of.
        self.variables = 0
        self.operations = []
        #: (file, line) of the statements of each basic block, by the same labels.
        self.lines = []
        #: (labels, blocks, control-flow graph) of each function.
        self.functions = []
        self.fences = False
        self.partial_warps = False
        self.static_shared = {}
        self.shared_alignment = {}
        self.local_bytes = {}
        self.cooperative = False
        #: {file name of a generated function: {its line: (file, line) of the kernel's source}}
        self.places = {}
        #: The functions that call themselves, by dispatcher and argument types.
        self.recursive = {}
        #: Memory of constant arrays, kept for as long as the kernel.
        self.allocations = []
        self._by_key = {}

    def once(self, key, make):
        """Return what ``make()`` returned for this key the first time."""
        if key not in self._by_key:
            self._by_key[key] = make()
        return self._by_key[key]

    def site(self, site):
        """Return the number of a site."""
        return self.once(site, lambda: self.sites.append(site) or len(self.sites) - 1)

    def count_operations(self, blocks):
        """Add what one thread computes in each block to `operations`; return its index there, or None."""
        labels = []
        for block in blocks:
            labels.append(len(self.operations) if block.statements else None)
            if block.statements:
                own = [s for s in block.statements if s.place is None or s.place[0] not in LIBRARIES]
                counts = Counter()
                for statement in own:
                    for kind in statement.expression.operations:
                        name, times = kind if kind.__class__ is tuple else (kind, 1)
                        counts[statement.place, name] += times
                self.operations.append(counts)
                places = [s.place for s in block.statements if s.place]
                self.lines.append([place for place, _ in itertools.groupby(places)])
        return labels


# -- analyses ----------------------------------------------------------------------------------------------------------


def _written(blocks, parameters):
    """Find the positions of the parameters whose memory may be written: those that reach a store."""
    statements = [s for block in blocks for s in block.statements]
    wanted = set()
    storing = (s.expression for s in statements if s.expression.traits & (Trait.WRITES | Trait.WRITES_ANY))
    for node in (node for expression in storing for node in expression.walk()):
        if node.op.traits & Trait.WRITES:
            wanted.update(node.operands[0].variables)
        elif node.op.traits & Trait.WRITES_ANY:
            wanted.update(node.variables)
    before = None
    while before != len(wanted):
        before = len(wanted)
        for statement in statements:
            if statement.target in wanted:
                wanted.update(statement.expression.variables)
    return frozenset(i for i, parameter in enumerate(parameters) if parameter in wanted)


def _renumber(blocks):
    """Relabel blocks 0, 1, 2 ... in the order of the source."""
    number = {label: i for i, label in enumerate(blocks)}
    for block in blocks.values():
        block.end.targets = tuple(number[target] for target in block.end.targets)
    return list(blocks.values())


def _graph(blocks):
    """Build the control-flow graph, which starts at block 0."""
    graph = CFGraph()
    for label in range(len(blocks)):
        graph.add_node(label)
    for label, block in enumerate(blocks):
        for target in block.end.targets if block.end else ():
            graph.add_edge(label, target)
    graph.set_entry_point(0)
    graph.process()
    return graph


def _reconvergence_order(blocks, loops):
    """Order labels so that diverged lanes reconverge: the waiting group that comes first runs first.

    A loop comes before its exits and its header after its body, so lanes wait for those still in the body.
    """

    def arrange(members, barred):
        outermost = [h for h in loops if h in members and h not in barred]
        outermost = [
            h for h in outermost if not any(h in loops[o] and o != h and loops[h] < loops[o] for o in outermost)
        ]
        owner = {label: header for header in outermost for label in loops[header] & members}
        nodes = sorted({owner.get(label, label) for label in members})
        edges = {node: [] for node in nodes}
        for label in members:
            source = owner.get(label, label)
            for target in blocks[label].end.targets:
                if target in members and target not in barred:
                    sink = owner.get(target, target)
                    if sink != source:
                        edges[source].append(sink)
        result = []
        for node in _topological(nodes, edges):
            if node in outermost:
                result.extend(arrange((loops[node] & members) - {node}, barred | {node}))
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
    """Find the variables live at the start of each block."""
    uses, defines = [], []
    for block in blocks:
        read, written = set(), set()
        for statement in block.statements:
            read.update(v for v in statement.expression.variables if v not in written)
            written.add(statement.target)
        read.update(v for v in block.end.variables if v not in written)
        uses.append(read)
        defines.append(written)
    live_in = [set(u) for u in uses]
    changed = True
    while changed:
        changed = False
        for label in reversed(range(len(blocks))):
            out = set().union(*(live_in[target] for target in blocks[label].end.targets))
            now = uses[label] | (out - defines[label])
            if now != live_in[label]:
                live_in[label] = now
                changed = True
    return live_in


def _by_number(variables):
    return sorted(variables, key=lambda variable: variable.value)


def _bit_sets(live_in):
    """Return the live sets as bit sets, and the bit of each variable."""
    bit = {v: 1 << i for i, v in enumerate(_by_number(set().union(*live_in)))}
    return [sum(bit[v] for v in live) for live in live_in], bit


# -- writing -----------------------------------------------------------------------------------------------------------


class _Writer:
    """Python source of one function.

    ==== =====================================================
    K    the batch of blocks
    M    its memory
    S    the scheduler
    m    mask of the running lanes; None for all
    L    bit set of the variables that waiting lanes need
    n    back edges, up to CHECK_INTERVAL
    pc   label of the running block
    c    condition of a branch
    v1   a variable
    c1   a literal; int64_7 an integer, float32 a dtype
    ==== =====================================================
    """

    def __init__(self, printer, parameters, blocks, loops, live_in, labels=None):
        """``labels``: of the blocks in a trace; None generates the plain program."""
        self.text = printer.text
        self.parameters = parameters
        self.blocks = blocks
        self.loops = loops
        self.live_in = live_in
        self.labels = labels
        self.bit = _bit_sets(live_in)[1]
        self.returns_value = any(isinstance(b.end, Leave) and b.end.operand for b in blocks)
        self.lines = []
        self.places = {}

    def write(self):
        self.line(0, f"def run(K, m{''.join(', ' + self.text(p) for p in self.parameters)}):")
        self.line(1, "S = K.scheduler(ORDER, LIVE, LOOPS, m)")
        self.line(1, "M = K.memory")
        self.line(1, "load, store = M.load, M.store")
        names = [self.text(v) for v in _by_number(self.bit.keys() - set(self.parameters))]
        for start in range(0, len(names), 12):
            self.line(1, " = ".join(names[start : start + 12]) + " = None")
        self.line(1, "pc = L = 0")
        self.line(1, f"n = {CHECK_INTERVAL - SHORT_INTERVAL}")
        if self.returns_value:
            self.line(1, "result = None")
        self.line(1, "while True:")
        self.dispatch(0, len(self.blocks), 2)
        return "\n".join(self.lines) + "\n"

    def line(self, depth, text):
        self.lines.append("    " * depth + text)

    def dispatch(self, first, last, depth):
        """Find the block of ``pc`` by binary search."""
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
            if i in last_use:
                self.line(depth, "del " + ", ".join(map(self.text, last_use[i])))
        self._end(label, block.end, depth)

    def _last_uses(self, block):
        """Return the variables of this block only, by the statement that uses them last."""
        last = {}
        for i, statement in enumerate(block.statements):
            last |= dict.fromkeys(statement.expression.variables, i)
            last.setdefault(statement.target, i)
        result = {}
        own = {s.target for s in block.statements} - self.bit.keys() - set(block.end.variables) - {None}
        for name, i in last.items():
            if name in own:
                result.setdefault(i, []).append(name)
        return result

    def _statement(self, statement):
        expression = self.text(statement.expression)
        if statement.target is None:
            return expression
        target = self.text(statement.target)
        if statement.target not in self.bit:
            return f"{target} = {expression}"
        needed = f"L & {self.bit[statement.target]}"
        return f"{target} = ({expression}) if not {needed} else merge(m, {expression}, {target})"

    def _end(self, label, end, depth):
        for target in end.targets:
            if target in self.loops and label in self.loops[target].body:
                self._tick(target, end.site, depth)
        operand = self.text(end.operand) if end.operand else None
        if isinstance(end, Leave):
            if operand:
                self.line(depth, f"result = merge(m, {operand}, result)")
            self.line(depth, "pc, m, L = S.leave(m)")
            self.line(depth, "if pc < 0:")
            self.line(depth + 1, "return result" if self.returns_value else "return None")
        elif isinstance(end, Branch):
            if_true, if_false = end.targets
            self.line(depth, f"c = {operand}")
            self.line(depth, "if c.__class__ is B_:")
            self.line(depth + 1, f"pc = {if_true} if c else {if_false}")
            self.line(depth + 1, "if S.waiting:")
            self.line(depth + 2, "pc, m, L = S.go(pc, m)")
            self.line(depth, "else:")
            self.line(depth + 1, f"pc, m, L = S.branch(c, {if_true}, {if_false}, m, {end.site})")
        elif isinstance(end, Barrier) and (self.labels is not None or end.kind in ALWAYS):
            self.line(depth, self._barrier(end, operand))
        else:
            (target,) = end.targets
            self.line(depth, f"pc = {target}")
            self.line(depth, "if S.waiting:")
            barrier = isinstance(end, Barrier)
            self.line(depth + 1, self._barrier(end, operand) if barrier else f"pc, m, L = S.go({target}, m)")
        self.line(depth, "continue")

    def _barrier(self, end, members):
        named = f", {members}" if members else ""
        return f"pc, m, L = S.barrier({end.targets[0]}, m, {end.kind!r}, {end.site}{named})"

    def _tick(self, header, site, depth):
        """Count a back edge; every so often check that the loop makes progress."""
        state = "".join(f"{self.text(v)}, " for v in _by_number(self.live_in[header]))
        self.line(depth, "n += 1")
        self.line(depth, "if n >= CHECK_INTERVAL:")
        self.line(depth + 1, f"n = S.tick({header}, m, ({state}), {site})")
