"""Random kernels whose threads meet: barriers and shared memory, votes, shuffles, groups of lanes."""

import math

from kernels.bounds import FLOATS, INTEGERS, boolean, cast, integer, modulo
from kernels.cases import Choice, Code, Repeat, Together
from numba.cuda import types

SHUFFLED = (types.int32, types.int64, *FLOATS)
WARP = 32


def types_of(env):
    return {name: value.type for name, value in env.items()}


class Cooperation:
    """Writes the body of a kernel as nodes; ``writer`` (a Statements) writes what threads do on their own."""

    def __init__(self, writer):
        self.w = writer
        self.case = writer.case
        self.threads = math.prod(self.case.block)
        self.rest = self.threads % WARP
        self._masks()
        self.before = types_of(writer.env)

    def _masks(self):
        """``mask`` and ``lanes``: the lanes of this thread's warp, as bits and as a number."""
        whole, rest, last = f"np.uint32({0xFFFFFFFF})", f"np.uint32({(1 << self.rest) - 1})", self.threads // WARP
        choose = f"{{}} if t // {WARP} < {last} else {{}}" if self.rest else "{}"
        self.case.prologue += [
            ("mask", choose.format(whole, rest), types.uint32),
            ("lanes", choose.format(WARP, self.rest), types.int64),
        ]

    # Pieces

    def flush(self, nodes):
        """Close the statements written so far: what follows is for all threads."""
        w = self.w
        if w.lines:
            nodes.append(Code(w.lines, self.before, types_of(w.env)))
        w.lines, w.locals = [], []
        self.before = types_of(w.env)

    def together(self, nodes, line, what, result=None, group=None):
        """Add a statement of all threads; gives the variable of its result."""
        self.flush(nodes)
        target = None
        if result is not None:
            name = self.w.fresh()
            self.w.learn(name, result)
            line, target = f"{name} = {line}", (name, result.type)
        nodes.append(Together(line, what, target, group))
        self.before = types_of(self.w.env)

    def barrier(self, nodes):
        self.together(nodes, "cuda.syncthreads()", ("barrier",))

    def code(self):
        for _ in range(self.w.number(1, 3)):
            self.w.statement(2)

    # Shared memory

    def shared(self, type_, shape):
        name = f"sh{len(self.case.shared)}"
        self.case.shared.append((name, shape, str(type_)))
        return name

    def exchange(self, nodes):
        """Write one's own element of a shared array, read others'."""
        w, (columns, *_) = self.w, self.case.block
        value = w.bind(w.typed(w.pick(*INTEGERS, *FLOATS), 2))
        rows, flat = self.threads // columns, w.chance(60)
        name = self.shared(value.type, self.threads if flat else (rows, columns + w.number(0, 1)))
        w.write(f"{name}[{'t' if flat else f't // {columns}, tx'}] = {value.text}")
        self.barrier(nodes)
        for _ in range(w.number(1, 2)):
            far = self.neighbour(self.threads) if flat else f"{self.neighbour(rows)}, {self.neighbour(columns)}"
            w.bind(value.named(f"{name}[{far}]"))
        self.barrier(nodes)

    def neighbour(self, size):
        w = self.w
        return w.pick(f"(t + {w.number(0, 40)}) % {size}", f"{size - 1} - t % {size}", w.index_value(size))

    def exchange_in_warp(self, nodes):
        """The same within a warp: syncwarp is enough."""
        w = self.w
        value = w.bind(w.typed(w.pick(*INTEGERS, *FLOATS), 2))
        name = self.shared(value.type, self.threads)
        w.write(f"{name}[t] = {value.text}")
        line = w.pick("cuda.syncwarp()", "cuda.syncwarp(mask)") if not self.rest else "cuda.syncwarp(mask)"
        self.together(nodes, line, ("barrier",))
        w.bind(value.named(f"{name}[t // {WARP} * {WARP} + (lane + {w.number(0, 31)}) % lanes]"))
        self.barrier(nodes)

    def histogram(self, nodes):
        """Atomics on a shared array that the first threads fill."""
        w = self.w
        size = w.number(1, min(self.threads, 8))
        type_ = w.pick(types.int32, types.int64, types.uint32)
        operation, name = w.pick("add", "max", "or_", "xor", "min", "and_"), self.shared(type_, size)
        w.write(f"if t < {size}:")
        w.write(f"    {name}[t] = {w.number(0, 9)}")
        self.barrier(nodes)
        for _ in range(w.number(1, 2)):
            w.write(f"cuda.atomic.{operation}({name}, {w.index_value(size)}, {w.typed(type_, 1).text})")
        self.barrier(nodes)
        w.bind(integer(f"{name}[{w.position(size)}]", type_))
        self.barrier(nodes)

    def tree(self, nodes):
        """A reduction that halves its threads, or a scan that doubles its distance."""
        w = self.w
        type_, k, turns = w.pick(*INTEGERS), w.fresh("k"), (self.threads - 1).bit_length()
        name = self.shared(type_, self.threads)
        sign = w.pick("^", "|", *([] if type_ == types.int64 else ["+", "*"]))  # which must not overflow
        w.write(f"{name}[t] = {w.typed(type_, 2).text}")
        self.barrier(nodes)
        body, old = [], w.fresh("x")
        if w.chance(50):
            step = f"{1 << turns} >> ({k} + 1)"
            steps = [
                [f"if t < {step} and t + ({step}) < {self.threads}:", f"    {name}[t] {sign}= {name}[t + ({step})]"]
            ]
        else:
            read = [f"{old} = {name}[t - (1 << {k})] if t >= 1 << {k} else {name}[t]"]
            steps = [read, [f"if t >= 1 << {k}:", f"    {name}[t] = {name}[t] {sign} {old}"]]
        known = types_of(w.env) | {k: types.int64, old: type_}
        for lines in steps:
            body += [Code(lines, known, known), Together("cuda.syncthreads()", ("barrier",))]
        self.flush(nodes)
        nodes.append(Repeat(k, turns, body))
        w.bind(integer(f"{name}[{w.pick('0', 't', f'{self.threads - 1} - t')}]", type_))
        self.barrier(nodes)

    def counted(self, nodes):
        w, mode = self.w, self.w.pick("count", "and", "or")
        yes = w.bind(cast(w.condition(1), types.int32))
        result = integer("", types.int32, 0, self.threads)
        self.together(nodes, f"cuda.syncthreads_{mode}({yes.text})", ("count", mode, yes.text), result)

    # Warps

    def warp(self, nodes, width=WARP):
        """An operation of a whole warp, or of each group of ``width`` lanes with the mask ``group``."""
        operation = self.w.pick(self.shuffle, self.shuffle, self.vote, self.match)
        operation(nodes, width, "mask" if width == WARP else "group")

    def shuffle(self, nodes, width, mask):
        """In a group or a partial warp, a lane must not read one that does not take part."""
        w = self.w
        value = w.bind(w.typed(w.pick(*SHUFFLED), 2))
        whole = width == WARP
        mode = w.pick("idx", "xor", *(["up"] if whole else []), *(["down"] if whole and not self.rest else []))
        if mode == "idx":
            source = w.index_value("lanes" if whole else width)
            operand = w.bind(integer(source if whole else f"lane // {width} * {width} + {source}", types.int64)).text
        else:
            # Lanes below a power of two that divides their number meet each other only.
            lanes = self.rest & -self.rest if mode == "xor" and whole and self.rest else width
            operand = str(w.number(0, lanes - 1))
            if w.chance(30):
                operand = w.bind(modulo(w.integer(1), lanes)).text
        function = "shfl_sync" if mode == "idx" else f"shfl_{mode}_sync"
        line = f"cuda.{function}({mask}, {value.text}, {operand})"
        self.together(nodes, line, ("shuffle", mode, value.text, operand), value, mask)

    def vote(self, nodes, width, mask):
        mode = self.w.pick("all", "any", "eq", "ballot")
        yes = self.w.bind(self.w.condition(1))
        result = integer("", types.int32) if mode == "ballot" else boolean("")
        self.together(nodes, f"cuda.{mode}_sync({mask}, {yes.text})", ("vote", mode, yes.text), result, mask)

    def match(self, nodes, width, mask):
        few = self.w.bind(cast(modulo(self.w.integer(1), 3), self.w.pick(types.int32, types.int64)))
        line = f"cuda.match_any_sync({mask}, {few.text})"
        self.together(nodes, line, ("match", few.text), integer("", types.int32), mask)

    def groups(self, nodes):
        """Groups of lanes, each with its own mask: all of them at once, or apart."""
        w = self.w
        widths = [n for n in (4, 8, 16) if self.threads % n == 0]
        if not widths:
            return
        width = w.pick(*widths)
        chosen = w.bind(boolean(f"(lane // {width} % {w.pick(2, 3)} == {w.number(0, 1)})"))
        w.write(f"group = np.uint32(np.uint32({(1 << width) - 1}) << np.uint32(lane // {width} * {width}))")
        w.env["group"] = integer("group", types.uint32)
        if w.chance(40):
            self.warp(nodes, width)
        else:
            self.choice(nodes, chosen.text, lambda inner: self.warp(inner, width))
        del w.env["group"]
        self.before = types_of(w.env)

    # Control flow that all threads of a block share

    def choice(self, nodes, condition, write):
        """A branch; ``write(nodes)`` writes what threads do together in an arm."""
        w = self.w
        self.flush(nodes)
        entered = w.enter_loop()
        env, arms = dict(w.env), []
        for arm in range(w.pick(1, 2)):
            w.env, inner = dict(env), []
            self.before = types_of(env)
            self.code()
            if arm == 0 or w.chance(50):
                write(inner)
            w.write("pass")
            self.flush(inner)
            arms.append(inner)
        w.leave(entered)
        self.before = types_of(w.env)
        nodes.append(Choice(condition, arms[0], arms[1] if len(arms) > 1 else []))

    def uniform_choice(self, nodes, depth):
        by = self.w.pick("b % 2 == 0", "bx == 0", "b % 3 != 1", "cuda.blockDim.x > 8")
        condition = self.w.bind(boolean(f"({by})"))
        self.choice(nodes, condition.text, lambda inner: self.step(inner, depth - 1))

    def uniform_loop(self, nodes, depth):
        w = self.w
        self.flush(nodes)
        entered = w.enter_loop()
        name, count, body = w.fresh("k"), w.number(1, 3), []
        w.env[name] = integer(name, types.int64, 0, count)
        self.before = types_of(w.env)
        w.loops.append(count)
        for _ in range(w.number(1, 2)):
            self.step(body, depth - 1)
        self.code()
        self.flush(body)
        w.loops.pop()
        w.leave(entered)
        self.before = types_of(w.env)
        nodes.append(Repeat(name, count, body))

    def step(self, nodes, depth):
        """One step that threads take together, with code before it."""
        self.code()
        rules = [
            (self.exchange, 5),
            (self.exchange_in_warp, 2),
            (self.histogram, 2),
            (self.tree, 2),
            (self.counted, 2),
            (self.warp, 7),
            (self.groups, 3),
        ]
        if depth > 0:
            rules += [(lambda n: self.uniform_choice(n, depth), 2), (lambda n: self.uniform_loop(n, depth), 2)]
        self.w.by_weight(rules)(nodes)
