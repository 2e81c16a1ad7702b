"""One walk through a kernel, with what is known of its variables: types, threads, bounds, stores before barriers."""

import ast
import operator
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from warpstep.check import hosts
from warpstep.check.numpy_functions import METHODS, MISSING, RANDOM
from warpstep.check.source import Kernel, Source, type_name
from warpstep.check.updates import is_update, leaves_many, may_take_turns
from warpstep.check.values import NONE, UNKNOWN, Value, atom, combine, constant, is_exact, join, multiply, number

_AXES = {"x": "0", "y": "1", "z": "2"}
_BARRIERS = ("cuda.syncthreads", "cuda.syncthreads_and", "cuda.syncthreads_or", "cuda.syncthreads_count")
#: Functions of ``cuda`` that order nothing.
_PLAIN = ("cuda.grid", "cuda.gridsize", "cuda.shared.array", "cuda.local.array", "cuda.const.array_like", "cuda.atomic")
_CEIL = re.compile(r"ceil|cdiv|div_?up|round_?up")
_OPERATORS: Any = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_OPERATORS |= {ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow}
_FLOAT_MATH = (
    "sqrt",
    "exp",
    "log",
    "log2",
    "log10",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sinh",
    "cosh",
    "pow",
    "atan",
    "atan2",
)
_FLOAT_MATH += (
    "asin",
    "acos",
    "expm1",
    "log1p",
    "fabs",
    "hypot",
    "erf",
    "erfc",
    "exp2",
    "power",
    "arctan",
    "arctan2",
    "fmod",
)


@dataclass
class State:
    """What holds at one point of the kernel."""

    names: dict = field(default_factory=dict)
    #: Tags that a test on the way here has bounded.
    guards: frozenset = NONE
    #: Stores to shared memory since the last barrier: (array, indices, node, in a branch of a few threads).
    stores: tuple = ()
    #: True if a test on the way here may have left one thread.
    few: bool = False

    def copy(self):
        return replace(self, names=dict(self.names))


class Walk:
    """Walks a kernel. ``found`` holds (code, node, message).

    ``integers`` holds the parameters that are used as integers; the walk adds to it, and is repeated until it stays.
    """

    def __init__(self, source: Source, kernel: Kernel, integers: set):
        self.source, self.kernel, self.integers = source, kernel, integers
        self.found = {}
        self.float32 = self.float64 = False
        #: Shapes may vary in numba-cuda-mlir, and NumPy makes arrays with Numba's runtime (NRT) and in its simulator.
        self.allocates = any(name in source.text for name in ("numba_cuda_mlir", "NRT", "CUDASIM"))
        self.silent = 0
        self.branches = []  # the tags of the tests around a statement
        self.scope = source.scopes[kernel.node]
        self.state = State()
        self.launches = source.launches_of(kernel)
        for position, name in enumerate(kernel.parameters):
            self.state.names[name] = self._parameter(name, position)
        self.overruns = any(map(_may_overrun, self.launches))
        #: True if threads may take turns in a way that the walk does not see.
        self.in_turns = kernel.device or may_take_turns(kernel.node, self.scope) or any(map(_has_one, self.launches))

    def run(self):
        self.body(self.kernel.node.body)
        if self.float64 or not self.float32:
            self.found = {key: f for key, f in self.found.items() if f[0] not in ("GK101", "GK102")}
        if self.in_turns:
            self.found = {key: f for key, f in self.found.items() if f[0] != "GK205"}
        return self.found

    def report(self, code, node, message):
        if not self.silent:
            self.found.setdefault((code, node.lineno, node.col_offset), (code, node, message))

    # -- parameters --

    def _parameter(self, name, position):
        """Return the value of a parameter: what the signature says, or the launches, or what is assumed."""
        common: dict[str, Any] = {"name": name, "space": "global"}
        if name in self.kernel.stated:
            type_, ndim = self.kernel.stated[name]
            self._sees(number(type_))
            return Value("array", element=type_, **common) if ndim else number(type_, name=name)
        is_array = name in _subscripted(self.kernel.node)
        given = [(x.call.args[position : position + 1] or [None], x.scope) for x in self.launches]
        types = {hosts.type_of(argument, scope) for (argument,), scope in given}
        self.float64 |= "float64" in types
        type_ = types.pop() if len(types) == 1 else ""
        if name in self.integers:
            common |= {"space": "global" * is_array, "sure": False}
            return Value("array", element="int32", **common) if is_array else number("int32", **common)
        if is_array:
            stated = type_ or self.kernel.has_signature or self.kernel.device
            assumed = not stated and "float32" in self.source.text and (self.launches or self.kernel.decorated)
            element = "float32" if assumed else type_ if type_ not in ("float", "int") else ""
            self._sees(number(element))
            return Value("array", element=element, sure=not assumed, **common)
        return Value(name=name) if type_ in ("", "float") else number("int64" if type_ == "int" else type_, name=name)

    def _sees(self, value):
        self.float32 |= value.is_float32
        self.float64 |= value.is_float64 and not value.causes and value.const is None

    def _is_integer(self, value):
        """Note that a parameter, or the elements of one, are integers: they are used as such."""
        if value.name and not (value.sure and value.kind):
            self.integers.add(value.name)

    # -- statements --

    def body(self, statements):
        """Walk a block; returns "return", "break" or "" for how it ends."""
        for statement in statements:
            end = self.statement(statement)
            if end:
                return end
        return ""

    def statement(self, node):
        match node:
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self.assign(target, value, node.value)
                    if isinstance(target, ast.Subscript) and is_update(target, node.value):
                        self._check_update(target)
            case ast.AnnAssign(value=ast.expr()):
                self.assign(node.target, self.value(node.value), node.value)
            case ast.AugAssign():
                load = ast.copy_location(_loaded(node.target), node.target)
                value = self.operate(node, node.op, load, node.value)
                self.assign(node.target, value, node.value)
                if isinstance(node.target, ast.Subscript):
                    self._check_update(node.target)
            case ast.If():
                return self.branch(node)
            case ast.For():
                self.loop(node, lambda: self.assign(node.target, self.turns(node), node.iter))
            case ast.While():
                self.loop(node, None)
            case ast.Return():
                if node.value is not None:
                    self.value(node.value)
                return "return"
            case ast.Raise():
                return "return"
            case ast.Break() | ast.Continue():
                return "break"
            case ast.Expr():
                self.value(node.value)
            case ast.With() | ast.Try():
                return self.body(node.body)
        return ""

    def assign(self, target, value, source):
        if isinstance(target, ast.Name):
            if value.kind == "int" and value.linear is None:
                value = replace(value, linear=atom(f"{target.id}@{target.lineno}"))
            self.state.names[target.id] = replace(value, name=value.name if value.space else "")
        elif isinstance(target, ast.Tuple | ast.List):
            items = value.items if len(value.items) == len(target.elts) else [replace(UNKNOWN, tags=value.tags)] * 99
            for element, item in zip(target.elts, items, strict=False):
                self.assign(element, item, source)
        elif isinstance(target, ast.Subscript):
            array, index = self.value(target.value), self.indices(target.slice)
            self.access(target, array, index, True)
            if array.kind == "array" and array.element in ("float64", "") and value.is_float64:
                self.costs(value, source)

    def branch(self, node):
        test = self.value(node.test)
        few = [self.state.few or not leaves_many(self.value, node.test, holds) for holds in (True, False)]
        self.branches.append(test.tags)
        before, left = self.state, self.state.few
        outcomes = []
        for body, is_few in zip((node.body, node.orelse), few, strict=True):
            self.state = replace(before.copy(), guards=before.guards | test.tests, few=is_few)
            end = self.body(body)
            left |= self.state.few and not (is_few or end)
            outcomes.append((end, self.state))
        self.branches.pop()
        alive = [state for end, state in outcomes if not end]
        if not alive:
            self.state = before
            return "return" if any(end == "return" for end, _ in outcomes) else "break"
        if len(alive) == 1:
            self.state = alive[0]
            return ""
        self.state = State(_join(alive[0].names, alive[1].names, node, test), before.guards, (), left)
        self.state.stores = _common(before, *alive)
        return ""

    def loop(self, node, enter):
        """Walk a loop twice: the second time with the types that its variables have after a first turn."""
        before = self.state
        names = before.names
        for silent in (1, 0):
            self.silent += silent
            self.state = replace(before, names=dict(names))
            if enter:
                tags = self.value(node.iter).tags
                enter()
            else:
                test = self.value(node.test)
                tags, self.state.guards = test.tags, before.guards | test.tests
                self.state.few |= not leaves_many(self.value, node.test, True)
            self.branches.append(tags)
            self.body(node.body)
            self.branches.pop()
            self.silent -= silent
            names = _join(before.names, self.state.names, node, None)
        self.state = replace(before, names=names, stores=_common(before, self.state))
        self.body(node.orelse)

    def turns(self, node):
        """Return the loop variable's value."""
        call = node.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("range", "prange")):
            return Value(tags=self.value(call).tags)
        bounds = [self.value(a) for a in call.args]
        for bound in bounds:
            self._is_integer(bound)
        self._check_range(node, call, bounds)
        tags = NONE.union(*(b.tags for b in bounds))
        raw = bounds[min(1, len(bounds) - 1)].raw if bounds else NONE
        name = getattr(node.target, "id", "")
        return Value("int", 64, tags=tags, raw=raw, linear=atom(f"{name}@{node.lineno}"))

    def _check_range(self, node, call, bounds):
        """GK203: each thread goes on to the end, which is the same for all, and writes what it passes."""
        is_one = len(bounds) == 2 or (len(bounds) == 3 and bounds[2].const == 1)
        if not is_one or not {"t0", "b0"} <= bounds[0].raw or not isinstance(node.target, ast.Name):
            return
        if bounds[1].tags:  # a piece of its own for each thread
            return
        start, used = call.args[0], []
        if isinstance(start, ast.Name):
            used = [n for n in ast.walk(self.kernel.node) if isinstance(n, ast.Name) and n.id == start.id]
        stored = any(
            isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) and ast.unparse(n.slice) == node.target.id
            for n in ast.walk(node)
        )
        if stored and len(used) <= 2:
            text = "every thread also does the work of those after it: give the range a step, cuda.gridsize(1)"
            self.report("GK203", call, text)

    # -- memory --

    def indices(self, node):
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        values = [self.value(p) for p in parts]
        for value in values:
            self._is_integer(value)
        return values

    def access(self, node, array, index, is_store):
        """Note a load or store of ``array[index]``, and return what is loaded."""
        tags = array.tags.union(*(i.tags for i in index))
        if array.kind == "tuple":
            const = index[0].const if index else None
            is_known = isinstance(const, int) and -len(array.items) <= const < len(array.items)
            return array.items[const] if is_known else UNKNOWN
        if array.kind != "array":
            return Value(tags=tags, name=array.name if array.space else "")
        if array.space == "global":
            self._check_guard(node, array, index)
        elif array.space == "shared":
            self._check_order(node, array, index, is_store)
        loaded = number(array.element, array.sure, tags=tags, name=array.name)
        self._sees(loaded)
        if loaded.kind == "int":
            loaded = replace(loaded, linear=atom(f"@{node.lineno}:{node.col_offset}"))
        return loaded

    def _check_guard(self, node, array, index):
        """GK201."""
        guards, axes = self.state.guards, {tag[1] for tag in self.state.guards}
        if not self.overruns:
            return
        for part in index:
            if part.unbounded and not part.raw & guards and not {tag[1] for tag in part.raw} & axes:
                text = f"{ast.unparse(node)}: the index counts the threads of the grid and nothing bounds it; test it "
                self.report("GK201", node, f"{text}first, as in `if i < {array.name}.shape[0]`")
                self.overruns = bool(self.silent)  # one finding says it
                return

    def _check_order(self, node, array, index, is_store):
        """GK204."""
        forms = tuple(i.linear for i in index)
        few = any({tag[0] for tag in tags} == {"t"} for tags in self.branches)
        if is_store:
            self.state.stores += ((array.name, forms, tuple(index), node.lineno, few),)
            return
        stores = [s for s in self.state.stores if s[0] == array.name and len(s[1]) == len(forms)]
        if any(s[1] == forms and (not s[4] or few or any(i.varies for i in s[2])) for s in stores):
            return
        for _, written, their, line, theirs_few in stores:
            if _is_another(written, their, theirs_few, forms, index, few):
                text = (
                    f"{ast.unparse(node)} was written by another thread in line {line}: cuda.syncthreads() between them"
                )
                self.report("GK204", node, text)

    def _check_update(self, node):
        """GK205."""
        array, index = self.value(node.value), self.indices(node.slice)
        known = array.kind == "array" and array.space in ("global", "shared") and all(i.kind == "int" for i in index)
        if known and not self.state.few and not any(v.varies for v in (array, *index)):
            text = f"many threads update {ast.unparse(node)} at once, and all but one of the updates are lost: "
            self.report("GK205", node, f"{text}use cuda.atomic, or a sum of the block first")

    # -- expressions --

    def value(self, node) -> Value:
        match node:
            case ast.Constant():
                return constant(node.value, node)
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.access(node, self.value(node.value), self.indices(node.slice), False)
            case ast.BinOp():
                return self.operate(node, node.op, node.left, node.right)
            case ast.UnaryOp():
                return self.unary(node)
            case ast.BoolOp():
                return self.logic(node)
            case ast.Compare():
                return self.compare(node)
            case ast.Call():
                return self.call(node)
            case ast.IfExp():
                test = self.value(node.test)
                before = self.state.guards
                self.state.guards = before | test.tests
                self.branches.append(test.tags)
                a, b = self.value(node.body), self.value(node.orelse)
                self.branches.pop()
                self.state.guards = before
                joined = join(a, b, f"?@{node.lineno}:{node.col_offset}")
                return replace(joined, tags=joined.tags | test.tags, raw=joined.raw - test.tests)
            case ast.Tuple() | ast.List():
                items = tuple(self.value(e) for e in node.elts)
                return Value("tuple", items=items, tags=NONE.union(*(i.tags for i in items)))
        return Value(
            tags=NONE.union(*(self.value(c).tags for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)))
        )

    def name(self, node):
        if node.id in self.state.names:
            return self.state.names[node.id]
        bound, scope = self.scope.find(node.id)
        if scope is self.scope:
            return UNKNOWN
        if isinstance(bound, str) or bound is None:
            return Value("name", name=bound) if bound else Value(literal=True)
        if isinstance(bound, ast.FunctionDef):
            return Value("name", name=f"{bound.name}()")
        if isinstance(bound, ast.expr) and scope is not None and not isinstance(bound, ast.Name | ast.List | ast.Dict):
            return self._frozen(node, bound, scope)
        dotted = self.scope.dotted(node)
        return Value("name", name=dotted) if dotted else Value(literal=True)

    def _frozen(self, node, bound, scope):
        """Return the value that a name from around the kernel has."""
        state, self.state, own, self.scope = self.state, State(), self.scope, scope
        self.silent += 1
        value = self.value(bound)
        self.silent -= 1
        self.state, self.scope = state, own
        if value.kind == "name":
            return value
        causes = (("GK101", node, "float64" if value.kind == "float" else "an integer"),) if value.causes else ()
        if value.kind not in ("int", "float", "tuple"):
            value = UNKNOWN
        return replace(value, literal=True, causes=causes, tags=NONE, raw=NONE)

    def attribute(self, node):
        base = self.value(node.value)
        if base.kind == "name":
            dotted = self.scope.dotted(node) or f"{base.name}.{node.attr}"
            axis = _AXES.get(node.attr)
            if base.name in ("cuda.threadIdx", "cuda.blockIdx") and axis:
                tags = frozenset({("t" if base.name == "cuda.threadIdx" else "b") + axis})
                return Value("int", 32, tags=tags, raw=tags, linear=atom(dotted))
            if base.name in ("cuda.blockDim", "cuda.gridDim"):
                return Value("int", 32, linear=atom(dotted))
            if dotted == "cuda.laneid":
                return Value("int", 32, tags=frozenset({"t0"}), linear=atom(dotted))
            if dotted in ("math.pi", "math.e", "math.tau", "numpy.pi", "numpy.e"):
                return constant(3.14159, node)
            if dotted in ("math.inf", "numpy.inf", "math.nan", "numpy.nan"):
                return constant(float("inf"), node)
            return Value("name", name=dotted)
        if node.attr == "shape" and base.kind == "array":
            size = [Value("int", 64, linear=atom(f"{base.name}.shape[{i}]")) for i in range(8)]
            return Value("tuple", items=tuple(size))
        if node.attr in ("size", "ndim"):
            return Value("int", 64, linear=atom(f"{base.name}.{node.attr}"))
        return Value("array", element=base.element, space=base.space, name=base.name) if node.attr == "T" else UNKNOWN

    def unary(self, node):
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub) and value.const is not None and value.kind in ("int", "float"):
            linear = (-value.const, NONE) if value.kind == "int" else None
            return replace(value, const=-value.const, linear=linear)
        if isinstance(node.op, ast.USub):
            return replace(value, linear=combine((0, NONE), value.linear, -1), const=None, literal=False)
        return replace(
            value, const=None, linear=None, literal=False, kind="bool" if isinstance(node.op, ast.Not) else value.kind
        )

    def logic(self, node):
        before, tags, tests = self.state.guards, NONE, NONE
        for part in node.values:
            value = self.value(part)
            tags, tests = tags | value.tags, tests | value.tests
            self.state.guards |= value.tests
        self.state.guards = before
        return Value("bool", 8, tags=tags, tests=tests)

    def compare(self, node):
        values = [self.value(v) for v in (node.left, *node.comparators)]
        operands = (node.left, *node.comparators)
        for (a, x), (b, y) in pairwise(zip(values, operands, strict=True)):
            if a.raw and not b.kind:
                self._is_integer(b)
            if b.raw and not a.kind:
                self._is_integer(a)
            if {a.kind, b.kind} <= {"int", "float"} and "float" in (a.kind, b.kind):
                self._mixes(node, a, b, x, y)
        tags = NONE.union(*(v.tags for v in values))
        return Value("bool", 8, tags=tags, tests=NONE.union(*(v.raw | v.tests for v in values)))

    # -- arithmetic --

    def costs(self, value, node):
        """Report what made a float64 of which something is computed."""
        if value.const is not None and value.narrow:
            return
        for code, cause, text in value.causes:
            what = ast.unparse(cause)
            if code == "GK101":
                text = f"is {text}, so line {node.lineno} computes in float64: write float32({what})"
            if code:
                self.report(code, cause, f"{what} {text}")

    def _mixes(self, node, a, b, x, y):
        """Report an operation in float64 whose operands are ``a`` and ``b``."""
        for value, other, where in ((a, b, x), (b, a, y)):
            if value.is_float64:
                self.costs(value, node)
            elif value.is_wide_int and value.const is None and other.is_float32 and other.sure and value.sure:
                text = f"{ast.unparse(where)} is an integer of {value.bits} bits, which makes this a float64"
                self.report("GK102", where, f"{text}: write float32({ast.unparse(where)})")

    def operate(self, node, op, left, right):
        a, b = self.value(left), self.value(right)
        common: dict[str, Any] = {"tags": a.tags | b.tags, "raw": a.raw | b.raw, "tests": a.tests | b.tests}
        if isinstance(op, ast.Mod):
            common["raw"] = b.raw
        elif isinstance(op, ast.BitAnd):
            common["raw"] = a.raw & b.raw
        if isinstance(op, ast.LShift | ast.RShift | ast.BitAnd | ast.BitOr | ast.BitXor):
            self._is_integer(a)
            self._is_integer(b)
            return Value("int", 64, **common)
        if not a.kind or not b.kind:
            return Value(**common)
        if {a.kind, b.kind} <= {"int", "bool"}:
            return self._integers(node, op, a, b, common)
        if {a.kind, b.kind} <= {"int", "float", "bool"}:
            return self._floats(node, op, a, b, left, right, common)
        return Value(**common)

    def _integers(self, node, op, a, b, common):
        consts = a.const is not None and b.const is not None
        if isinstance(op, ast.Div):
            if consts:
                return replace(constant(a.const / b.const, node) if b.const else UNKNOWN, literal=False)
            causes = (("GK102", node, "divides integers, which gives a float64: convert one to float32 first"),)
            value = Value("float", 64, causes=causes, sure=a.sure and b.sure, **common)
            if value.sure:
                self.costs(value, node)
            return value
        if isinstance(op, ast.FloorDiv | ast.Mod):
            unsigned = all(not v.signed and v.bits <= 32 for v in (a, b))
            deliberate = isinstance(getattr(node, "right", None), ast.Call)  # uint64(n): somebody has thought of it
            if b.const is None and not b.literal and not unsigned and not deliberate:
                text = f"{ast.unparse(node)} divides 64-bit integers, which takes dozens of instructions: "
                self.report("GK104", node, f"{text}make the divisor a constant, or divide uint32 values")
        folded = _fold(op, a.const, b.const) if consts else None
        if isinstance(folded, float):
            return constant(folded, node)
        linear = None
        if isinstance(op, ast.Add | ast.Sub):
            linear = combine(a.linear, b.linear, 1 if isinstance(op, ast.Add) else -1)
        elif isinstance(op, ast.Mult):
            linear = multiply(a.linear, b.linear)
        if folded is not None:
            linear = (folded, NONE)
            if not _has_names(node):  # Python folds it before Numba sees it
                return constant(folded, node)
        if linear is None:
            linear = atom(f"@{node.lineno}:{node.col_offset}")
        signed, sure = a.signed or b.signed, a.sure and b.sure
        causes = (("GK101", node, "an integer"),) if folded is not None else ()
        return Value("int", 64, signed, const=folded, linear=linear, sure=sure, causes=causes, **common)

    def _floats(self, node, op, a, b, left, right, common):
        sure = a.sure and b.sure
        if a.is_float64 and not a.causes or b.is_float64 and not b.causes:
            self._sees(replace(a, const=None) if a.is_float64 else b)
            return Value("float", 64, **common)
        if all(v.is_float32 or v.kind == "bool" or v.bits <= 16 for v in (a, b)):
            return Value("float", max(a.bits, b.bits) if "bool" not in (a.kind, b.kind) else 32, sure=sure, **common)
        if a.const is not None and b.const is not None:
            folded = _fold(op, a.const, b.const)
            return constant(float(folded), node) if isinstance(folded, int | float) else Value("float", 64, **common)
        if isinstance(op, ast.Pow) and a.is_float32 and b.kind == "int" and b.const is not None:
            return Value("float", 32, sure=sure, **common)
        if isinstance(op, ast.Pow) and b.kind == "int":
            b = replace(b, causes=())
        # An integer literal makes a float64 of a float32 only if that is sure: an assumed one may be an integer itself.
        causes = tuple(c for v in (a, b) if v.is_float64 or v.const is not None and sure for c in v.causes)
        simple = isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div)
        single = simple and all(v.is_float32 or _is_exact_constant(v) for v in (a, b))
        if not causes and not any(v.is_wide_int and v.const is None for v in (a, b)):
            return Value(**common)
        if not single:
            self._mixes(node, a, b, left, right)
            for value in (a, b):
                if value.const is not None and not (simple and _is_exact_constant(value)):
                    self.costs(replace(value, narrow=False), node)
        known = causes or (("", node, ""),)  # reported, if it is sure
        return Value("float", 64, causes=known, narrow=single, sure=sure, **common)

    # -- calls --

    def call(self, node):
        dotted = self.scope.dotted(node.func)
        if isinstance(node.func, ast.Name) and node.func.id in self.state.names:
            dotted = self.state.names[node.func.id].name
        arguments = [self.value(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        arguments += [self.value(k.value) for k in node.keywords]
        tags = NONE.union(*(a.tags for a in arguments))
        value = self._called(node, dotted, arguments, tags)
        # A comparison of f(i) bounds i.
        return replace(value, tests=value.tests.union(*(a.raw | a.tests for a in arguments)))

    def _called(self, node, dotted, arguments, tags):
        last = dotted.rpartition(".")[2] or getattr(node.func, "id", "")
        if dotted.startswith("cuda."):
            return self._cuda_call(node, dotted, last, arguments, tags)
        if type_name(dotted) or (last in ("float", "int", "bool") and not dotted.partition(".")[2]):
            return self._cast(node, type_name(dotted) or last, arguments, tags)
        instead = RANDOM if dotted.startswith("numpy.random.") else MISSING.get(last, "")
        if instead and dotted.rpartition(".")[0] in ("numpy", "numpy.random") and not self.allocates:
            self.report("GK302", node.func, f"{ast.unparse(node.func)} is not there in a kernel: {instead}")
        if dotted.partition(".")[0] in ("math", "numpy") and last in _FLOAT_MATH:
            return self._math(node, arguments, tags)
        if last in ("min", "max") and not dotted.partition(".")[2] and len(arguments) > 1:
            return self._extreme(node, arguments, tags)
        if last in ("abs", "len", "range", "round", "divmod"):
            kind = arguments[0] if arguments and last == "abs" else UNKNOWN
            if last == "len":
                return Value("int", 64, linear=atom(ast.unparse(node)))
            return replace(kind, const=None, linear=None, literal=False, tags=tags, raw=kind.raw)
        if isinstance(node.func, ast.Attribute) and not dotted:
            base = self.value(node.func.value)
            if base.kind == "array" and base.space and node.func.attr in METHODS:
                self.report("GK302", node, f"arrays have no {node.func.attr}() in a kernel: {METHODS[node.func.attr]}")
        self.in_turns = True  # for all that is known here
        self._orders(node)
        return Value(tags=tags)

    def _orders(self, node):
        """Forget the stores before what may hold a barrier, and check where it stands."""
        self.state.stores = ()
        function = self.source.module.find(node.func.id)[0] if isinstance(node.func, ast.Name) else None
        is_barrier = self.scope.dotted(node.func) in _BARRIERS
        if isinstance(function, ast.FunctionDef) and function in self.source.kernels:
            scope = self.source.scopes[function]
            is_barrier = any(isinstance(n, ast.Call) and scope.dotted(n.func) in _BARRIERS for n in ast.walk(function))
        if is_barrier and any(tag[0] == "t" for tags in self.branches for tag in tags):
            text = "the barrier stands in a branch or loop that depends on the thread: the others do not reach it"
            self.report("GK202", node, text)

    def _cuda_call(self, node, dotted, last, arguments, tags):
        if dotted == "cuda.grid" and arguments:
            axes = [frozenset({f"t{i}", f"b{i}"}) for i in range(_dimensions(arguments))]
            values = [Value("int", 64, tags=t, raw=t, linear=atom(f"cuda.grid({i})")) for i, t in enumerate(axes)]
            return values[0] if len(values) == 1 else Value("tuple", items=tuple(values))
        if dotted == "cuda.gridsize" and arguments:
            sizes = [Value("int", 64, linear=atom(f"cuda.gridsize({i})")) for i in range(_dimensions(arguments))]
            return sizes[0] if len(sizes) == 1 else Value("tuple", items=tuple(sizes))
        if dotted in ("cuda.shared.array", "cuda.local.array"):
            return self._allocate(node, dotted)
        if dotted.startswith("cuda.atomic.") and len(node.args) > 1:
            subscript = ast.copy_location(ast.Subscript(node.args[0], node.args[1], ast.Load()), node)
            array = self.value(node.args[0])
            if array.space == "global":
                self._check_guard(subscript, array, self.indices(node.args[1]))
            return Value(tags=tags | {"t0"})
        if type_name(last):
            return self._cast(node, type_name(last), arguments, tags)
        if not dotted.startswith(_PLAIN):
            self._orders(node)
        return Value(tags=NONE if dotted in _BARRIERS else tags)

    def _allocate(self, node, dotted):
        """GK301, and the value of a shared or local array."""
        given = dict(zip(("shape", "dtype"), node.args, strict=False)) | {k.arg: k.value for k in node.keywords}
        shape = None if self.allocates else given.get("shape")
        for part in shape.elts if isinstance(shape, ast.Tuple | ast.List) else [shape]:
            if part is not None and self._check_shape(part):
                break
        dtype = given.get("dtype")
        element = ""
        if isinstance(dtype, ast.Constant) and isinstance(dtype.value, str):
            element = type_name(dtype.value)
        elif dtype is not None:
            element = type_name(self.value(dtype).name or self.scope.dotted(dtype))
        self._sees(number(element))
        return Value("array", element=element, space=dotted.split(".")[1], name=f"{node.lineno}:{node.col_offset}")

    def _check_shape(self, part):
        value = self.value(part)
        if value.literal:
            return False
        text = ast.unparse(part)
        if isinstance(part, ast.Name) and part.id in self.kernel.parameters and self.kernel.device:
            return False
        if isinstance(part, ast.BinOp) and all(self.value(side).literal for side in (part.left, part.right)):
            message = f"a shape has to be a constant, and arithmetic in a kernel is none: compute {text} outside of it"
        elif value.kind == "int" or (isinstance(part, ast.Name) and part.id in self.kernel.parameters):
            message = f"{text} is not a constant: make the kernel in a function that gets it, def make_kernel(n): ..."
        else:
            return False
        self.report("GK301", part, message)
        return True

    def _cast(self, node, name, arguments, tags):
        raw = NONE.union(*(a.raw for a in arguments))
        value = arguments[0] if arguments else UNKNOWN
        if name == "float":
            causes = (("GK102", node, "is float64: write float32(...)"),)
            return Value("float", 64, causes=causes, tags=tags, raw=raw)
        if name == "int":
            self.costs(value, node)
            name = "int64"
        cast = number(name, tags=tags, raw=raw, linear=value.linear, literal=value.literal)
        if cast.kind == value.kind == "int":
            cast = replace(cast, const=value.const)
        if not (cast.is_float64 and value.const is not None):
            self._sees(cast)
        return cast

    def _math(self, node, arguments, tags):
        kinds = [a for a in arguments if a.const is None]
        if not kinds:
            return constant(0.1, node)
        if any(not a.kind for a in arguments):
            return Value(tags=tags)
        if all(a.is_float32 for a in kinds) and all(a.const is None for a in arguments):
            return Value("float", 32, tags=tags, sure=all(a.sure for a in kinds))
        for argument in arguments:
            if argument.is_float64 or any(a.is_float32 for a in kinds):
                self.costs(replace(argument, narrow=False) if argument.const is not None else argument, node)
        causes = tuple(c for a in arguments for c in a.causes)
        if all(a.kind == "int" for a in kinds):
            causes = (("GK102", node, "takes an integer and gives a float64: convert it to float32 first"),)
        value = Value("float", 64, causes=causes, tags=tags)
        if all(a.kind == "int" and a.sure for a in kinds):
            self.costs(value, node)
        return value

    def _extreme(self, node, arguments, tags):
        """``min`` and ``max``: one bounded argument bounds the result."""
        kinds = {a.kind for a in arguments}
        raw = frozenset.intersection(*(a.raw for a in arguments))
        if kinds == {"int"}:
            return Value("int", 64, tags=tags, raw=raw)
        if kinds <= {"int", "float"} and any(a.is_float32 for a in arguments):
            wide = [a for a in arguments if not a.is_float32]
            for value in wide:
                if value.kind == "float" or all(a.sure for a in arguments):
                    self.costs(replace(value, narrow=False), node)
            causes = tuple(c for a in wide for c in a.causes)
            return (
                Value("float", 64 if wide else 32, tags=tags, causes=causes) if causes or not wide else Value(tags=tags)
            )
        return Value(tags=tags, raw=raw)


# -- helpers -----------------------------------------------------------------------------------------------------------


def _loaded(target):
    """Return the target of ``x += 1`` as an expression that reads it."""
    fields = {name: getattr(target, name) for name in target._fields} | {"ctx": ast.Load()}
    return type(target)(**fields)


def _dimensions(arguments):
    return arguments[0].const if arguments[0].const in (1, 2, 3) else 1


def _has_names(node):
    return any(isinstance(n, ast.Name | ast.Attribute) for n in ast.walk(node))


def _is_exact_constant(value):
    return value.const is not None and is_exact(value.const)


def _fold(op, a, b):
    try:
        if isinstance(op, ast.Pow) and (abs(a) > 64 or abs(b) > 64):
            return None
        return _OPERATORS[type(op)](a, b) if max(abs(a), abs(b)) < 2**64 else None
    except (ArithmeticError, KeyError):
        return None


def _join(a, b, node, test):
    """Join the variables of two paths. After a test, what they set differently depends on it, and is bounded by it."""
    names = {}
    for name in a.keys() | b.keys():
        if name not in a or name not in b:
            value = a.get(name) or b[name]
            names[name] = replace(value, tags=value.tags | (test.tags if test else NONE), const=None)
            continue
        value = join(a[name], b[name], f"{name}@{node.lineno}")
        if test is not None and a[name] != b[name]:
            value = replace(value, tags=value.tags | test.tags, raw=value.raw - test.tests)
        names[name] = value
    return names


def _common(before, *states):
    """Return the stores that are pending after a branch or loop: none if one of its paths may have a barrier."""
    if any(state.stores[: len(before.stores)] != before.stores for state in states):
        return ()
    return tuple(dict.fromkeys(s for state in states for s in state.stores))


def _is_another(written, their, theirs_few, forms, index, few):
    """Return True if a thread certainly loads, at ``forms``, what another one has stored at ``written``."""
    if any(form is None for form in (*written, *forms)):
        return False
    if not any(i.varies for i in their):  # one thread stores, all load
        return theirs_few and not few and written == forms
    if theirs_few:
        return False
    if sorted(map(str, written)) == sorted(map(str, forms)) and sum(i.varies for i in their) > 1 and written != forms:
        return True
    differs = False
    for theirs, mine, stored, loaded in zip(written, forms, their, index, strict=True):
        if theirs == mine:
            continue
        differs = True
        if not stored.varies:
            return False
        if not loaded.varies:
            if few and not mine[1]:  # one thread, perhaps its own element
                return False
        elif not few and _is_mirrored(theirs[1], mine[1]):
            continue
        elif theirs[1] != mine[1] or not any(abs(f) == 1 and n.startswith("cuda.threadIdx") for n, f in theirs[1]):
            return False
    return differs


def _is_mirrored(written, loaded):
    """Return True for indices that run in opposite directions: only a thread in the middle has its own element."""
    written, loaded = dict(written), dict(loaded)
    apart = {name for name in written.keys() | loaded.keys() if written.get(name) != loaded.get(name)}
    turned = {name for name in apart if name.startswith("cuda.threadIdx")}
    alike = all(name.startswith(("cuda.blockDim", "cuda.gridDim")) for name in apart - turned)
    opposite = all(abs(written.get(name, 0)) == 1 and loaded.get(name) == -written[name] for name in turned)
    return len(turned) == 1 and alike and opposite


def _subscripted(function):
    """Return the names that a function indexes, or asks for a shape."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            names.add(node.value.id)
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in ("shape", "size", "ndim")
            and isinstance(node.value, ast.Name)
        ):
            names.add(node.value.id)
    return names


def _has_one(launch):
    """Return True for a launch with one thread per block."""
    threads = (launch.configuration or [])[1:2]
    return bool(threads) and ast.unparse(threads[0]) in ("1", "(1,)", "(1, 1)", "(1, 1, 1)")


def _may_overrun(launch):
    """Return True if the number of blocks is rounded up, so that there may be more threads than elements."""
    return launch.is_forall or (launch.configuration and _is_rounded_up(launch.configuration[0], launch.scope))


def _is_rounded_up(node, scope, depth=0):
    match node:
        case ast.Name() if depth < 5:
            bound, where = scope.bindings(node.id)
            return bool(bound) and all(isinstance(b, ast.expr) and _is_rounded_up(b, where, depth + 1) for b in bound)
        case ast.Tuple():
            return any(_is_rounded_up(e, scope, depth) for e in node.elts)
        case ast.Call():
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            return bool(_CEIL.search(name.lower())) or any(_is_rounded_up(a, scope, depth) for a in node.args)
        case ast.UnaryOp(op=ast.USub(), operand=ast.BinOp(op=ast.FloorDiv())):
            return True
        case ast.BinOp(op=ast.FloorDiv() | ast.Div(), left=ast.BinOp(op=ast.Add() | ast.Sub())):
            return True
        case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.FloorDiv()) | ast.Call(), right=ast.Constant(value=1)):
            return True
    return False
