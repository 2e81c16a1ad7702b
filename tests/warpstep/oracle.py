"""Runs random kernels without a GPU and without the emulator: thread after thread, compiled by Numba's own CPU target.

What threads do on their own is compiled as it stands, with the thread's indices as arguments. Where they meet
(barriers, warp operations) the kernel is cut, and what happens there is computed here for all threads, from the
definition of the operation.
"""

import math
import re
from types import ModuleType

import numba
import numpy as np
from kernels.cases import Choice, Code, Together
from numba.cuda.np import numpy_support
from numba.extending import overload

compiled = numba.njit(error_model="numpy")
WARP = 32


# What CUDA has and the CPU has not


def popc(x):
    """Bits of ``x`` that are set. Like those below, for compiled code."""


def clz(x):
    """Zero bits above the highest that is set."""


def ffs(x):
    """Position of the lowest bit that is set, from 1."""


def brev(x):
    """Bits in reverse order."""


@compiled
def _bit(x, k):
    return (np.uint64(x) >> np.uint64(k)) & np.uint64(1)


@overload(popc)
def _popc(x):
    width, kind = x.bitwidth, x

    def count(x):
        found = 0
        for k in range(width):
            found += _bit(x, k)
        return kind(found)

    return count


@overload(clz)
def _clz(x):
    width, kind = x.bitwidth, x

    def count(x):
        for k in range(width):
            if _bit(x, width - 1 - k):
                return kind(k)
        return kind(width)

    return count


@overload(ffs)
def _ffs(x):
    width = x.bitwidth

    def position(x):
        for k in range(width):
            if _bit(x, k):
                return np.uint32(k + 1)
        return np.uint32(0)

    return position


@overload(brev)
def _brev(x):
    width, kind = x.bitwidth, x

    def reverse(x):
        result = np.uint64(0)
        for k in range(width):
            result |= _bit(x, k) << np.uint64(width - 1 - k)
        return kind(result)

    return reverse


@compiled
def fma(a, b, c):
    return a * b + c


@compiled
def selp(condition, a, b):
    return a if condition else b


def _atomic(update):
    """An atomic operation where nothing else runs: the new value is ``update(old, operand)``."""
    update = compiled(update)

    @compiled
    def atomic(array, index, operand):
        old = array[index]
        array[index] = update(old, operand)
        return old

    return atomic


@compiled
def compare_and_swap(array, index, expected, new):
    old = array[index]
    if old == expected:
        array[index] = new
    return old


ATOMICS = {
    "add": _atomic(lambda old, x: old + x),
    "sub": _atomic(lambda old, x: old - x),
    "max": _atomic(lambda old, x: max(old, x)),
    "min": _atomic(lambda old, x: min(old, x)),
    "and_": _atomic(lambda old, x: old & x),
    "or_": _atomic(lambda old, x: old | x),
    "xor": _atomic(lambda old, x: old ^ x),
    "exch": _atomic(lambda old, x: x),
    "inc": _atomic(lambda old, x: np.uint64(0) if old >= x else old + np.uint64(1)),
    "dec": _atomic(lambda old, x: np.uint64(x) if old == 0 or old > x else old - np.uint64(1)),
    "cas": compare_and_swap,
}


def _float_result(name):
    """``math.floor`` and its like give an integer on the CPU, a float on a device."""
    function = getattr(np, name)
    return compiled(lambda x: function(x))


def _modules():
    """What the names ``cuda`` and ``math`` mean in the code of a thread."""
    cuda, atomic, mathematics = (ModuleType(name) for name in ("cuda", "atomic", "math"))
    vars(atomic).update(ATOMICS)
    members = {"popc": popc, "clz": clz, "ffs": ffs, "brev": brev, "fma": fma, "selp": selp, "atomic": atomic}
    vars(cuda).update(members, jit=lambda device: compiled)
    vars(mathematics).update({n: f for n, f in vars(math).items() if not n.startswith("_")})
    vars(mathematics).update({n: _float_result(n) for n in ("floor", "ceil", "trunc")})
    return {"cuda": cuda, "math": mathematics, "np": np}


MODULES = _modules()


# The kernel


class Run:
    """One launch of a random kernel.

    ``state`` holds the variables of all threads, by name: arrays of shape (blocks, threads).
    """

    def __init__(self, case):
        self.case = case
        self.threads, self.blocks = math.prod(case.block), math.prod(case.grid)
        self.shape = self.blocks, self.threads
        self.whole = {}
        self.arrays = {}
        for argument in case.arguments:
            self.whole[argument.name], self.arrays[argument.name] = argument.host()
        shapes = {name: shape if isinstance(shape, tuple) else (shape,) for name, shape, _ in case.shared}
        self.shared = {name: np.zeros((self.blocks, *shapes[name]), dtype) for name, _, dtype in case.shared}
        self.namespace = dict(MODULES)
        exec(case.functions, self.namespace)
        self.state = self._indices()

    def _indices(self):
        """The thread indices and masks that the kernel's first lines compute, from their meaning."""
        block, thread = (a.astype(np.int64) for a in np.indices(self.shape))
        (nx, ny, _), (gx, gy, _) = self.case.block, self.case.grid
        values = {"t": thread, "b": block, "i": block * self.threads + thread, "lane": thread % WARP}
        values |= {"tx": thread % nx, "ty": thread // nx % ny, "tz": thread // (nx * ny)}
        values |= {"bx": block % gx, "by": block // gx % gy, "bz": block // (gx * gy)}
        values["lanes"] = np.minimum(WARP, self.threads - thread // WARP * WARP)
        values["mask"] = (1 << values["lanes"]) - 1
        return {name: values[name].astype(numpy_support.as_dtype(type_)) for name, _, type_ in self.case.prologue}

    def run(self):
        """The contents of the arrays afterwards, by name."""
        everyone = np.ones(self.shape, bool)
        for node in self.case.nodes:
            self.step(node, everyone)
        return self.whole

    def step(self, node, active):
        if isinstance(node, Code):
            self.code(node, active)
        elif isinstance(node, Together):
            self.together(node, active)
        elif isinstance(node, Choice):
            condition = self.state[node.condition].astype(bool)
            for nodes, part in ((node.then, active & condition), (node.otherwise, active & ~condition)):
                for inner in nodes:
                    self.step(inner, part)
        else:
            for turn in range(node.count):
                self.set(node.variable, np.full(self.shape, turn), np.int64, active)
                for inner in node.body:
                    self.step(inner, active)

    def set(self, name, values, dtype, active):
        """Give a variable values in the active threads. A definition of another type replaces it."""
        old = self.state.get(name)
        if old is None or old.dtype != dtype:
            old = self.state[name] = np.zeros(self.shape, dtype) if old is None else old.astype(dtype)
        old[active] = np.broadcast_to(values, self.shape)[active]

    # Threads on their own

    def code(self, node, active):
        text = "\n".join(node.lines)
        words = set(re.findall(r"\b[a-z]\w*\b", text))
        arrays = [n for n in self.arrays if n in words]
        shared = [n for n in self.shared if n in words]
        scalars = [(n, v) for n, v in self.case.scalars if n in words]
        indices = {name: type_ for name, _, type_ in self.case.prologue}
        known = node.before | indices
        given = [n for n in known if n in words and n in self.state]
        constant = {*indices, *(n for n, _ in self.case.scalars)}
        results = [n for n in node.after if n in words and n not in constant]
        function = self.compile(text, [*arrays, *shared, *(n for n, _ in scalars), *given], results)
        outputs = {n: np.zeros(self.shape, numpy_support.as_dtype(node.after[n])) for n in results}
        columns = [self.state[n].astype(numpy_support.as_dtype(known[n])) for n in given]
        for block, thread in np.argwhere(active):
            values = (column[block, thread] for column in columns)
            arguments = [*(self.arrays[n] for n in arrays), *(self.shared[n][block] for n in shared)]
            result = function(*arguments, *(v for _, v in scalars), *values)
            for name, value in zip(results, result or (), strict=bool(result)):
                outputs[name][block, thread] = value
        for name in results:
            self.set(name, outputs[name], outputs[name].dtype, active)

    def compile(self, text, parameters, results):
        text = text.replace("cuda.local.array(", "np.empty(").replace("cuda.blockDim.x", str(self.case.block[0]))
        ending = f"return ({', '.join(results)},)" if results else "return None"
        lines = [f"def thread({', '.join(parameters)}):", *text.split("\n"), ending]
        exec("\n    ".join(lines), self.namespace)
        return compiled(self.namespace["thread"])

    # Threads together

    def together(self, node, active):
        kind, *rest = node.what
        if kind == "barrier":
            return
        name, type_ = node.target
        values = getattr(self, f"_{kind}")(*rest, self._groups(node.group, active))
        self.set(name, values, numpy_support.as_dtype(type_), active)

    def _groups(self, group, active):
        """(blocks, threads, threads) of truth: which active threads take part together with each."""
        i = np.arange(self.threads)
        if group is None:
            same = np.ones((self.threads, self.threads), bool)
        else:
            same = i[:, None] // WARP == i // WARP
        same = np.broadcast_to(same, (self.blocks, self.threads, self.threads))
        if group == "group":
            bits = self.state["group"].astype(np.int64)[:, :, None] >> i % WARP & 1
            same = same & (bits == 1)
        return same & active[:, None, :]

    def _count(self, mode, predicate, groups):
        return self._vote(mode, predicate, groups)

    def _vote(self, mode, predicate, groups):
        yes = groups & (self.state[predicate] != 0)[:, None, :]
        if mode == "ballot":
            return self._as_bits(yes)
        number, all_ = yes.sum(axis=2), groups.sum(axis=2)
        results = {"count": number, "or": number > 0, "any": number > 0, "and": number == all_, "all": number == all_}
        return results[mode] if mode in results else (number == 0) | (number == all_)

    def _match(self, value, groups):
        values = self.state[value]
        return self._as_bits(groups & (values[:, :, None] == values[:, None, :]))

    def _as_bits(self, lanes):
        weights = np.int64(1) << np.arange(self.threads) % WARP
        return (lanes * weights).sum(axis=2).astype(np.uint32).view(np.int32)

    def _shuffle(self, mode, value, operand, groups):
        lane = np.arange(self.threads) % WARP
        operand = self.state[operand].astype(np.int64) if operand in self.state else int(operand)
        source = {"idx": operand + 0 * lane, "xor": lane ^ operand, "up": lane - operand, "down": lane + operand}[mode]
        source = np.where((source < 0) | (source >= WARP), lane, source) + np.arange(self.threads) // WARP * WARP
        return np.take_along_axis(self.state[value], np.broadcast_to(source, self.shape), axis=1)


def run(case):
    """What a random kernel leaves in its arrays, by name."""
    with np.errstate(all="ignore"):
        return Run(case).run()
