"""What numba-cuda's compiler leaves out in `quick_passes` changes nothing of the typed IR."""

import contextlib
import functools
import operator
import re

import numpy as np
import pytest

from warpstep import _compilers
from warpstep._numba import NUMBA_ERRORS, numpy_support, quick_passes, types
from warpstep.compiler import frontend

pytestmark = pytest.mark.skipif(_compilers.chosen() == _compilers.MLIR, reason="of numba-cuda's passes")

NUMBERS = types.Array(types.float32, 1, "C")
RECORDS = types.Array(numpy_support.from_dtype(np.dtype([("a", "f4"), ("b", "i4")])), 1, "C")
FIELD = "a"


def loops(x, out):
    for i in range(x.size):
        if x[i] < 0:
            continue
        if x[i] > 2:
            continue
        out[i] += x[i]
    while out[0] > 0:
        out[0] -= 1
        if x[0]:
            continue


def closures(x, out):
    def add(value):
        return value + x[1]

    out[0] = add(x[0])


def conversions(x, out):
    for i in range(np.uint32(3)):
        out[i] = np.float32(x[np.int32(i)]) + np.float32(i) + np.float64(1)


def reductions(x, out):
    out[0] = functools.reduce(operator.add, (x[0], x[1], x[2]))


def lists(x, out):
    taken = np.array([x[0], x[1]])
    out[0] = taken[0]


def comprehensions(x, out):
    out[0] = np.array([value * 2 for value in x])[0]


def fields(x, out):
    for name in ("a",):
        out[0] = x[0][FIELD] + x[0]["b"] + x[0][name]


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (loops, NUMBERS),
        (closures, NUMBERS),
        (conversions, NUMBERS),
        (reductions, NUMBERS),
        (lists, NUMBERS),
        (comprehensions, NUMBERS),
        (fields, RECORDS),
    ],
)
def test_the_typed_ir_is_the_same(function, argument, monkeypatch):
    def typed():
        try:
            found = frontend._run_front_end(function, (argument, NUMBERS), types.void, False, (9, 0))
        except NUMBA_ERRORS as error:  # kernels may have no lists
            return str(error).split()
        order = list(found.blocks)  # blocks and inlined functions are numbered on from call to call
        ends = [[order.index(label) for label in block.terminator.get_targets()] for block in found.blocks.values()]
        texts = [str(statement) for block in found.blocks.values() for statement in block.body[:-1]]
        texts += sorted(f"{name} {type_}" for name, type_ in found.typemap.items())
        return ends, [re.sub(r"_v\d+", "", text) for text in texts]

    monkeypatch.setattr(frontend, "quick_passes", lambda types_only: quick_passes())
    quick = typed()
    monkeypatch.setattr(frontend, "quick_passes", lambda types_only: contextlib.nullcontext())
    assert typed() == quick


def test_what_is_declared_while_the_lists_are_read_is_read_too():
    """Modules that Numba imports on the way declare more, also in a list that has been read by then."""
    from numba.cuda.typing.context import BaseContext
    from numba.cuda.typing.templates import Registry

    registry, functions = Registry(), [loops, closures, conversions]
    declared = [*functions]

    class Context(BaseContext):
        def load_additional_registries(self):
            self.install_registry(registry)
            if declared:
                registry.register_global(declared.pop(), types.none)

    context = Context()
    with quick_passes():
        context.refresh()
    assert [context._lookup_global(function) for function in functions] == [types.none] * 3
