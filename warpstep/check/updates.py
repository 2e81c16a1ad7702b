"""GK205: an update such as ``out[0] += x[i]`` that many threads make at once, without an atomic operation."""

import ast
from collections.abc import Callable

from warpstep.check.source import Scope
from warpstep.check.values import Value


def is_update(target, value) -> bool:
    """True for ``target = value`` where the target's element is read: ``out[0] = out[0] + x[i]``."""
    text = ast.unparse(target)
    return any(isinstance(n, ast.Subscript) and ast.unparse(n) == text for n in ast.walk(value))


def may_take_turns(function: ast.FunctionDef, scope: Scope) -> bool:
    """True if a kernel has no threads that differ, or uses what an atomic operation returns, which may be a lock."""
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
    alone = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Expr)}
    if any(scope.dotted(call.func).startswith("cuda.atomic.") and id(call) not in alone for call in calls):
        return True
    names = {scope.dotted(n) for n in ast.walk(function) if isinstance(n, ast.Attribute)}
    return not any(name.startswith("cuda.threadIdx") or name in ("cuda.grid", "cuda.laneid") for name in names)


def leaves_many(value_of: Callable[[ast.expr], Value], test: ast.expr, holds: bool) -> bool:
    """True if many threads of a block go on where a test is true, or false: it bounds an index, or looks at data.

    Tests that one thread alone may pass, and tests of which nothing is known, give False.
    """
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return leaves_many(value_of, test.operand, not holds)
        case ast.BoolOp():
            return all(leaves_many(value_of, part, holds) for part in test.values)
        case ast.Compare(ops=[ast.Lt() | ast.LtE()], comparators=[other]):
            low, high = test.left, other
        case ast.Compare(ops=[ast.Gt() | ast.GtE()], comparators=[other]):
            low, high = other, test.left
        case _:
            return not value_of(test).varies
    low, high = (value_of(side) for side in ((low, high) if holds else (high, low)))
    if not (low.varies or high.varies) or "float" in (low.kind, high.kind):
        return True
    if low.varies:  # i < n
        return not high.varies and (high.const is None or high.const > 1)
    return low.const in (-1, 0, 1)  # i > 0
