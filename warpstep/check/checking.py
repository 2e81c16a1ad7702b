"""All findings of one file."""

import ast
import re
from dataclasses import dataclass

from warpstep.check.hosts import type_of
from warpstep.check.kernel import Walk
from warpstep.check.source import Kernel, Launch, Source

#: Threads that a block may have, on every device.
MAX_THREADS = 1024
_IGNORE = re.compile(r"#\s*gpukit:\s*ignore(?:\[([^\]]*)\])?")
_BLOCKS, _THREADS = re.compile(r"block|grid|bpg"), re.compile(r"thread|tpb|block_?(dim|size)")


@dataclass(frozen=True, order=True)
class Finding:
    line: int
    column: int
    code: str
    message: str


def check_text(text: str) -> list[Finding]:
    """Return the findings of a Python source, in the order of its lines."""
    try:
        source = Source(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        return [Finding(line, column, "GK000", f"cannot be parsed: {getattr(error, 'msg', error)}")]
    found = []
    for kernel in source.kernels.values():
        found += _walk(source, kernel)
        found += _returns(source, kernel)
    for launch in source.launches:
        found += _configuration(launch)
    lines = text.splitlines()
    made = {Finding(node.lineno, node.col_offset + 1, code, message) for code, node, message in found}
    return sorted(f for f in made if not _is_ignored(lines[f.line - 1], f.code))


def _is_ignored(line, code):
    found = _IGNORE.search(line)
    return bool(found) and (found[1] is None or code in [c.strip() for c in found[1].split(",")])


def _walk(source, kernel):
    integers = set()
    while True:
        before = set(integers)
        walk = Walk(source, kernel, integers)
        found = walk.run()
        if integers == before:
            break
    arguments = _arguments(source, kernel, walk) if walk.float32 and not walk.float64 else []
    return [*found.values(), *arguments]


def _arguments(source: Source, kernel: Kernel, walk: Walk):
    """GK103: a parameter that arithmetic uses, and for which a launch passes a Python float."""
    used = {
        side.id
        for node in ast.walk(kernel.node)
        if isinstance(node, ast.BinOp)
        for side in (node.left, node.right)
        if isinstance(side, ast.Name)
    }
    for launch in [] if kernel.has_signature else source.launches_of(kernel):
        for name, argument in zip(kernel.parameters, launch.call.args, strict=False):
            if name in used - walk.integers and type_of(argument, launch.scope) == "float":
                text = ast.unparse(argument)
                yield (
                    "GK103",
                    argument,
                    f"{text} arrives as a float64, and arithmetic with {name} is float64 too: np.float32({text})",
                )


def _returns(source: Source, kernel: Kernel):
    """GK303: of a function that is launched, or takes the position of its thread and is called nowhere."""
    if kernel.device or kernel.has_signature:
        return
    calls = [launch for launch in source.launches if launch.kernel is kernel]
    if not any(launch.configuration is not None for launch in calls):
        names = {
            source.scopes[kernel.node].dotted(n)
            for n in ast.walk(kernel.node)
            if isinstance(n, ast.Attribute | ast.Name)
        }
        if calls or not names & {"cuda.grid", "cuda.threadIdx", "cuda.blockIdx"}:
            return
    for node in _own(kernel.node):
        # A call may give None.
        if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Call | ast.Constant):
            yield "GK303", node, f"{kernel.node.name} is a kernel and has no result: write it into an array"


def _own(function):
    """Walk a function without the functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
            yield child
            yield from _own(child)


def _configuration(launch: Launch):
    """GK304 and GK305."""
    name = launch.kernel.node.name
    if launch.configuration is None:
        if not launch.compiled and not launch.kernel.device:
            yield "GK304", launch.call, f"{name} is launched without a configuration: {name}[blocks, threads](...)"
        return
    if len(launch.configuration) < 2:
        return
    blocks, threads = launch.configuration[:2]
    if _literal(threads) > MAX_THREADS:
        text = (
            f"{_literal(threads)} threads per block, of {MAX_THREADS} at most: the configuration is [blocks, threads]"
        )
        yield "GK305", threads, text
        return
    first, second = (n.id.lower() if isinstance(n, ast.Name) else "" for n in (blocks, threads))
    is_threads = _THREADS.search(first) and not re.search(r"grid|blocks|bpg|num_?block|nblock", first)
    if is_threads and _BLOCKS.search(second) and not _THREADS.search(second):
        yield "GK305", blocks, f"{blocks.id} and {threads.id} look swapped: the configuration is [blocks, threads]"


def _literal(node):
    """Return the number of threads that a literal says, or 0."""
    product = 1
    for part in node.elts if isinstance(node, ast.Tuple) else [node]:
        if not isinstance(part, ast.Constant) or not isinstance(part.value, int):
            return 0
        product *= part.value
    return product
