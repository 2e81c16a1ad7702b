"""Structured expressions: their traits, their source, and that no analysis depends on the source."""

import ast

import numpy as np
from numba.cuda import float32, types

from warpstep import cuda
from warpstep.compiler import calls, ops
from warpstep.compiler.expressions import VARIABLE, Op, Printer, Trait, literal, scalar, variable
from warpstep.compiler.frontend import infer
from warpstep.compiler.translate import lower
from warpstep.machine.batch import Batch
from warpstep.machine.memory import Memory

ARRAY = types.Array(types.float32, 2, "C")


def test_traits_and_variables_are_those_of_the_tree():
    a, b = variable(1), variable(2)
    tree = ops.ADD(ops.CAST(ops.LOAD(a, ops.INDEX(b), 0), np.dtype(np.int64)), ops.SUB(b, 1))
    assert tree.variables == (a, b)
    assert tree.traits == ops.ACTION | Trait.NEGATIVE
    assert ops.ADD(a, b).traits == Trait.NONE
    assert literal(-1).traits == scalar(-1.5, np.float32).traits == Trait.NEGATIVE
    assert scalar(0, np.int32).traits == literal("-").traits == Trait.NONE


def test_arithmetic_is_counted_in_the_whole_tree():
    product = ops.MUL(variable(1), variable(2)).counting("fp32")
    assert ops.ADD(product, product).counting("fp32", "fp32").operations == ["fp32"] * 4


def test_substitution_leaves_other_parts_as_they_are():
    a, b, c = map(variable, (1, 2, 3))
    kept = ops.MUL(b, b)
    changed = ops.ADD(a, kept).counting("int32").substitute({a: c})
    assert changed.variables == (c, b) and changed.operands[1] is kept and changed.operations == ["int32"]


def test_source():
    printer = Printer()
    index = ops.INDEX(variable(1), scalar(2, np.int64))
    source = printer.text(ops.LOAD(variable(3), index, 7))
    assert source == "load(v3, (v1, int64_2, ), m, 7)" and printer.names["int64_2"] == 2
    assert printer.text(ops.CAST(variable(1), np.dtype(np.float32))) == "(v1).astype(float32)"
    assert printer.text(ops.TUPLE()) == "()" and printer.text(literal("v1")) == "'v1'"
    assert printer.text(scalar(-2, np.int32)) == "int32_minus_2"
    assert printer.text(scalar(0.0, np.float32)) != printer.text(scalar(-0.0, np.float32))


OPERATIONS = [
    op
    for module in (ops, calls)
    for value in vars(module).values()
    for op in (value.values() if isinstance(value, dict) else [value])
    if isinstance(op, Op) and op.template != "()"
]


def test_every_operation_names_what_the_machine_has():
    owners = {
        "K": {*dir(Batch), "thread", "block", "thread_count", "block_count"},
        "M": {*dir(Memory)},
        "np": {*dir(np)},
    }
    free = {*Printer().names, *owners, "m", "n", "load", "store", "slice", "tuple"}
    for op in OPERATIONS:
        source = op.template.format(*["v1"] * 9) if "{" in op.template else op.template
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners:
                assert node.attr in owners[node.value.id], source
            elif isinstance(node, ast.Name) and node.id not in ("v1", "value"):
                assert node.id in free, source


@cuda.jit
def tiled(a, b, out):
    tile = cuda.shared.array((8, 8), float32)
    x, y = cuda.grid(2)
    total = float32(0)
    for k in range(a.shape[1] // 8):
        tile[cuda.threadIdx.y, cuda.threadIdx.x] = a[x, k * 8 + cuda.threadIdx.x] / b[x, 1]
        cuda.syncthreads()
        for j in range(8):
            total += tile[j, cuda.threadIdx.x] * b[k, j]
        cuda.syncthreads()
    if x < out.shape[0]:
        out[x, y] = total
    cuda.atomic.add(out, (x % 3, 0), total)


def opaque(self, expression):
    """Source in which every operation has a meaningless name."""
    if expression.op is VARIABLE:
        return f"v{expression.value}"
    return f"f{id(expression.op)}({', '.join(self.text(operand) for operand in expression.operands)})"


def test_no_analysis_depends_on_the_source(monkeypatch):
    typed = infer(tiled, (ARRAY,) * 3, types.void)
    program = lower(typed, {})
    monkeypatch.setattr(Printer, "text", opaque)
    unreadable = lower(typed, {})
    assert "load(" in program.source and "load(" not in unreadable.source.split("while True:")[1]
    assert unreadable.overhead() == program.overhead() and any(sum(n) for n in program.overhead().values())
    assert (unreadable.operations, unreadable.sites) == (program.operations, program.sites)
    assert unreadable.written == program.written == {2}
