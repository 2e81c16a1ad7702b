"""A parsed file: what its names mean, its kernels, and the launches of them."""

import ast
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

#: Modules whose ``cuda`` this is about.
_PACKAGES = ("numba", "numba_cuda", "numba_cuda_mlir", "gpukit", "gpukit.backend", "warpstep")
_SHORT = {"f2": "float16", "f4": "float32", "f8": "float64", "float": "float64", "double": "float64", "int": "int64"}
_SHORT |= {f"{kind}{n}": f"{name}{8 * n}" for kind, name in (("i", "int"), ("u", "uint")) for n in (1, 2, 4, 8)}
_SHORT |= {"float_": "float64", "intp": "int64", "uintp": "uint64", "int_": "int64", "boolean": "bool", "b1": "bool"}
TYPES = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} - {"float8"} | {"bool_"}
#: Assumed where a file does not define them, as after ``from numba import *``.
_USUAL = {"np": "numpy", "numpy": "numpy", "math": "math", "cuda": "cuda", "numba": "numba", "nb": "numba"}


def short_name(name: str) -> str:
    """Return the dotted name of what is imported, with one name for every ``cuda``: "cuda.jit", "numpy.sqrt"."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        if parts[i - 1] in ("cuda", "numba_cuda") and ".".join(parts[: i - 1]) in _PACKAGES:
            return ".".join(["cuda", *parts[i:]])
    return name


def type_name(dotted: str) -> str:
    """Return the NumPy name of a type: "float32" for "numba.types.float32" and "f4"; "" for what is no type."""
    last = dotted.rpartition(".")[2]
    name = _SHORT.get(last, last)
    return name if name in TYPES else ""


class Scope:
    """The names that one function, or the module, binds."""

    def __init__(self, node, parent=None):
        self.node, self.parent = node, parent
        self.names = {}
        if not isinstance(node, ast.Module):
            given = node.args
            for arg in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]:
                if arg is not None:
                    self._bind(arg.arg, arg)
        self._enter(node.body)

    def _bind(self, name, what):
        self.names.setdefault(name, []).append(what)

    def _enter(self, body):
        for node in body:
            for sub in _within(node):
                if isinstance(sub, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self._bind(sub.name, sub)
                elif isinstance(sub, ast.Import | ast.ImportFrom):
                    self._import(sub)
                elif isinstance(sub, ast.Assign) and len(sub.targets) == 1 and isinstance(sub.targets[0], ast.Name):
                    self._bind(sub.targets[0].id, sub.value)
                elif isinstance(sub, ast.Name) and isinstance(sub.ctx, ast.Store):
                    parent = getattr(sub, "plain", False)
                    if not parent:
                        self._bind(sub.id, None)

    def _import(self, node):
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                self._bind(name, alias.name if alias.asname else name)
            else:
                self._bind(alias.asname or alias.name, f"{node.module or ''}.{alias.name}")

    def find(self, name):
        """Return (binding, scope): a node, the dotted name of an import, or None if it is not known or not unique."""
        bound, scope = self.bindings(name)
        if scope is None:
            return _USUAL.get(name) or (name if name in TYPES else None), None
        names = {short_name(b) for b in bound if isinstance(b, str)}
        if len(names) == 1 and all(isinstance(b, str) for b in bound):
            return names.pop(), scope
        return (bound[0] if len(bound) == 1 else None), scope

    def bindings(self, name):
        """Return (everything that the name is bound to, scope) of the nearest scope that binds it."""
        scope = self
        while scope is not None and name not in scope.names:
            scope = scope.parent
        return ([], None) if scope is None else (scope.names[name], scope)

    def dotted(self, node) -> str:
        """Return the full name of an expression such as ``cuda.jit``, or ""."""
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return short_name(f"{base}.{node.attr}") if base else ""
        if not isinstance(node, ast.Name):
            return ""
        bound, scope = self.find(node.id)
        if isinstance(bound, str):
            return bound
        if isinstance(bound, ast.Name | ast.Attribute) and scope is not None and getattr(bound, "id", "") != node.id:
            return scope.dotted(bound)
        return ""


def _within(node):
    """Walk a statement without entering the functions and classes that it defines."""
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        node.targets[0].plain = True  # pyright: ignore[reportAttributeAccessIssue]
    for child in ast.iter_child_nodes(node):
        yield from _within(child)


@dataclass
class Kernel:
    """A function that ``cuda.jit`` compiles."""

    node: ast.FunctionDef
    scope: Scope
    device: bool
    #: Types of its parameters that a signature states: (name of the type, dimensions).
    stated: dict = field(default_factory=dict)
    has_signature: bool = False
    #: True if the name of the function is that of the kernel.
    decorated: bool = False

    @property
    def parameters(self):
        return [a.arg for a in (*self.node.args.posonlyargs, *self.node.args.args)]


@dataclass
class Launch:
    """A call ``kernel[configuration](arguments)``; without brackets, ``configuration`` is None."""

    kernel: Kernel
    call: ast.Call
    scope: Scope
    configuration: list | None
    compiled: bool  # it stands in a function that cuda.jit compiles
    is_forall: bool = False


class Source:
    """One parsed file."""

    def __init__(self, text: str):
        self.text = text
        self.tree = ast.parse(text)
        self.module = Scope(self.tree)
        self.scopes: dict[ast.AST, Scope] = {self.tree: self.module}
        self._open(self.tree, self.module)
        self.kernels: dict[Any, Kernel] = {}
        for node, scope in list(self.scopes.items()):
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    self._jit(decorator, node, scope.parent)
        for scope, call in self.calls:
            self._jit_call(call, scope)

    def _open(self, node, scope):
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                # A method sees the module's names, not its class's.
                inner = self.scopes[child] = Scope(child, scope)
            self._open(child, inner)

    @cached_property
    def calls(self) -> list[tuple[Scope, ast.Call]]:
        found = []

        def walk(node, scope):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Call):
                    found.append((scope, child))
                walk(child, self.scopes.get(child, scope))

        walk(self.tree, self.module)
        return found

    # -- kernels --

    def _jit(self, decorator, function, scope, function_first=False):
        options = decorator if isinstance(decorator, ast.Call) else None
        if scope.dotted(options.func if options else decorator) != "cuda.jit":
            return
        kernel = Kernel(function, scope, False, decorated=decorator in function.decorator_list)
        if options:
            given = {k.arg: k.value for k in options.keywords}
            kernel.device = not _is_false(given.get("device"))
            arguments = options.args[function_first:]
            signature = arguments[0] if arguments else given.get("signature", given.get("func_or_sig"))
            if signature is not None and not isinstance(signature, ast.Constant | ast.Lambda):
                kernel.has_signature = True
            self._sign(kernel, signature)
        self.kernels[function] = kernel

    def _jit_call(self, call, scope):
        """Enter the function of ``cuda.jit(function)`` and ``cuda.jit(signature)(function)``."""
        function, maker = self._jitted(call, scope)
        if function is not None and function not in self.kernels:
            self._jit(maker, function, self.scopes[function].parent, function_first=maker is call)

    def _jitted(self, call, scope):
        """Return (function, call of cuda.jit) of ``cuda.jit(function)`` and ``cuda.jit(signature)(function)``."""
        maker = call.func if isinstance(call.func, ast.Call) else call
        if scope.dotted(maker.func) == "cuda.jit" and call.args and isinstance(call.args[0], ast.Name):
            function, _ = scope.find(call.args[0].id)
            if isinstance(function, ast.FunctionDef):
                return function, maker
        return None, None

    def _sign(self, kernel, signature):
        if isinstance(signature, ast.Constant) and isinstance(signature.value, str):
            try:
                signature = ast.parse(signature.value.strip(), mode="eval").body
            except SyntaxError:
                return
        if isinstance(signature, ast.Name):
            bound, _ = kernel.scope.find(signature.id)
            if not isinstance(bound, str) and bound is not signature:
                self._sign(kernel, bound)
            return
        if isinstance(signature, ast.List):
            signature = signature.elts[0] if len(signature.elts) == 1 else None
        types = signature.args if isinstance(signature, ast.Call) else getattr(signature, "elts", None)
        if types is None:
            return
        kernel.has_signature = True
        for parameter, type_ in zip(kernel.parameters, types, strict=False):
            ndim = 0
            if isinstance(type_, ast.Subscript):
                ndim = len(type_.slice.elts) if isinstance(type_.slice, ast.Tuple) else 1
                type_ = type_.value
            name = type_name(kernel.scope.dotted(type_) or getattr(type_, "id", ""))
            kernel.stated[parameter] = (name, ndim)

    # -- launches --

    @cached_property
    def launches(self) -> list[Launch]:
        found = []
        for scope, call in self.calls:
            target, configuration, forall = call.func, None, False
            if isinstance(target, ast.Subscript):
                configuration = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
                target = target.value
            elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
                if target.func.attr != "forall":
                    continue
                target, configuration, forall = target.func.value, [], True
            if isinstance(target, ast.Name):
                function, where = scope.find(target.id)
                if isinstance(function, ast.Call):
                    function, _ = self._jitted(function, where)
                kernel = self.kernels.get(function)
                if kernel and (configuration is not None or kernel.decorated):
                    found.append(Launch(kernel, call, scope, configuration, self._is_compiled(scope), forall))
        return found

    def _is_compiled(self, scope):
        while scope is not None:
            node = scope.node
            if node in self.kernels or getattr(node, "decorator_list", None):
                return True
            scope = scope.parent
        return False

    def launches_of(self, kernel) -> list[Launch]:
        return [x for x in self.launches if x.kernel is kernel and x.configuration is not None]


def _is_false(node):
    return node is None or (isinstance(node, ast.Constant) and not node.value)
