"""Types of the arguments of launches, from how the host makes them."""

import ast

from warpstep.check.source import type_name

#: Functions that make an array: where their dtype stands among the arguments, and which one they take without it.
_MAKERS: dict[str, tuple[int, str]] = dict.fromkeys(("zeros", "ones", "empty"), (1, "float64"))
_MAKERS |= dict.fromkeys(("device_array", "pinned_array", "mapped_array", "managed_array"), (1, "float64"))
_MAKERS |= {"full": (2, ""), "array": (1, ""), "asarray": (1, ""), "arange": (3, ""), "linspace": (9, "float64")}
_RANDOM = dict.fromkeys(("rand", "random", "randn", "normal", "uniform", "random_sample", "standard_normal"), "float64")
_SAME = ("to_device", "copy", "reshape", "ravel", "flatten", "ascontiguousarray", "copy_to_host", "transpose", "T")
_LIKE = ("zeros_like", "ones_like", "empty_like", "full_like", "device_array_like")


def type_of(node, scope, depth=0) -> str:
    """Return the NumPy type of an expression or its elements: "float32"; "float" of a Python float, "" if unknown."""
    if depth > 8 or node is None:
        return ""
    if isinstance(node, ast.Name):
        bound, where = scope.bindings(node.id)
        types = {type_of(b, where, depth + 1) if isinstance(b, ast.expr) else "" for b in bound}
        return types.pop() if len(types) == 1 else "float64" * ("float64" in types)
    if isinstance(node, ast.Constant):
        return {float: "float", int: "int"}.get(type(node.value), "")
    if isinstance(node, ast.List | ast.Tuple):
        types = {type_of(e, scope, depth + 1) for e in node.elts}
        return next((t for t in ("float64", "float") if t in types), types.pop() if len(types) == 1 else "")
    if isinstance(node, ast.UnaryOp):
        return type_of(node.operand, scope, depth + 1)
    if isinstance(node, ast.Subscript | ast.Attribute):
        same = isinstance(node, ast.Subscript) or node.attr in _SAME
        return _array(type_of(node.value, scope, depth + 1)) if same else ""
    if isinstance(node, ast.BinOp):
        sides = {type_of(side, scope, depth + 1) for side in (node.left, node.right)}
        sides -= {"float", "int"} if sides & {"float32", "float64"} else {"int"} if "float" in sides else set()
        sides -= {""} if any(isinstance(s, ast.Constant) for s in (node.left, node.right)) else set()
        return sides.pop() if len(sides) == 1 else ""
    return _made(node, scope, depth) if isinstance(node, ast.Call) else ""


def _array(name):
    return "" if name in ("float", "int") else name


def _made(call, scope, depth):
    dotted = scope.dotted(call.func)
    last = dotted.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    given = {k.arg: k.value for k in call.keywords}
    if "dtype" in given:
        return _dtype(given["dtype"], scope)
    if type_name(dotted) and dotted.partition(".")[0] not in ("int", "float"):
        return type_name(dotted)
    if last in ("astype", "view") and call.args:
        return _dtype(call.args[0], scope)
    if dotted.startswith("torch."):
        return "float32" if last in ("zeros", "ones", "empty", "rand", "randn") else ""
    if last in _LIKE:
        return type_of(call.args[0], scope, depth + 1) if call.args else ""
    if last in _SAME:
        source = call.func.value if isinstance(call.func, ast.Attribute) and not dotted else (call.args or [None])[0]
        return _array(type_of(source, scope, depth + 1))
    if last in _RANDOM and "random" in (dotted or ast.unparse(call.func)):
        return _RANDOM[last]
    if last in _MAKERS and dotted.partition(".")[0] in ("numpy", "cuda", "cupy"):
        position, default = _MAKERS[last]
        if len(call.args) > position:
            return _dtype(call.args[position], scope)
        same = last in ("array", "asarray") and call.args
        if last == "arange":
            has_float = any(
                isinstance(n, ast.Constant) and isinstance(n.value, float) for a in call.args for n in ast.walk(a)
            )
            return "float64" if has_float else "int64"
        if same:
            kind = type_of(call.args[0], scope, depth + 1)
            return {"float": "float64", "int": "int64"}.get(kind, kind)
        return default
    return ""


def _dtype(node, scope):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return type_name(node.value)
    if isinstance(node, ast.Name) and node.id in ("float", "int"):
        return node.id + "64"
    bound = scope.find(node.id)[0] if isinstance(node, ast.Name) else None
    return type_name(bound if isinstance(bound, str) else scope.dotted(node))
