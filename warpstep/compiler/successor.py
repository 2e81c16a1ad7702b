"""What numba-cuda-mlir has in a kernel and numba-cuda has not: ``cuda.vector`` and ``cuda.intrin``."""

import cmath
import itertools
import math
import operator

from warpstep._numba import extern_functions, types, vector, vector_parts
from warpstep.compiler import calls, ops, vectors
from warpstep.compiler.expressions import Op, scalar
from warpstep.compiler.values import counted, dtype_of
from warpstep.limits import WARP

#: Bytes of the widest access of one instruction.
_WIDEST = 16

# -- cuda.vector -------------------------------------------------------------------------------------------------------


class _Access:
    """The accesses of ``cuda.vector.load`` and ``store``: one for as many elements as an instruction can take."""

    def __init__(self, t, call, op, type_, alignment):
        array, index = call.arguments[:2]
        self.owner = call.types[0]
        self.view, self.site = t.value(array), t.site(array.unversioned_name, op)
        parts = t.index(index, self.owner)[0].operands
        if len(parts) < self.owner.ndim:  # the place among all elements
            self.view = t.b.temporary(calls.flat(self.view, self.site))
        self.parts = [t.b.temporary(part) for part in parts]
        shape = type_.shape
        fitting = min(alignment, _WIDEST) // dtype_of(self.owner.dtype).itemsize
        self.wide = math.gcd(max(1, fitting), shape[-1])
        rows = itertools.product(*map(range, shape[:-1]), range(0, shape[-1], self.wide))
        self.indices = [self._index(offsets) for offsets in rows]

    def _index(self, offsets):
        parts = list(self.parts)
        for place, offset in zip(range(-1, -len(offsets) - 1, -1), reversed(offsets), strict=True):
            parts[place] = ops.ADD(parts[place], scalar(offset, "int64")) if offset else parts[place]
        return ops.INDEX(*parts)


def _alignment(t, call):
    known = t.known(call.arguments[3]) if len(call.arguments) > 3 else None
    return (known and known.value) or 0


def _load(t, call):
    access = _Access(t, call, "load", call.result, _alignment(t, call))
    items = []
    for index in access.indices:
        if access.wide == 1:
            items.append(t.b.temporary(ops.LOAD(access.view, index, access.site)))
        else:
            loaded = t.b.temporary(ops.LOAD_WIDE(access.view, index, access.wide, access.site))
            items += [ops.ITEM(loaded, i) for i in range(access.wide)]
    return ops.TUPLE(*items), call.result


def _store(t, call):
    access = _Access(t, call, "store", call.types[2], _alignment(t, call))
    items = vectors.elements(t, call.arguments[2], call.types[2], access.owner.dtype, vector_parts(call.types[2])[1])
    for k, index in enumerate(access.indices):
        part = items[k * access.wide : (k + 1) * access.wide]
        if access.wide == 1:
            t.b.emit(ops.STORE(access.view, index, *part, access.site))
        else:
            t.b.emit(ops.STORE_WIDE(access.view, index, ops.TUPLE(*part), access.site))


# -- cuda.intrin -------------------------------------------------------------------------------------------------------

_LINEAR = Op(
    "(K.thread[0] + K.thread_count[0] * (K.thread[1] + K.thread_count[1] * K.thread[2]))", ops.DIM3["threadIdx"].traits
)
_SLEEP, _FFS = Op("K.sleep", ops.ACTION), Op("ffs")


def _intrinsic(t, call):
    """Translate a function of ``cuda.intrin``, or refuse it by its name."""
    _, name = call.key
    if name == "barrier":
        return t.barrier("block")
    if name == "nanosleep":
        return t.b.emit(_SLEEP(t.value(call.arguments[0], types.uint32)))
    if name == "warp_idx":
        return ops.CAST(ops.OPERATORS[operator.floordiv](_LINEAR(), WARP), "int32"), call.result
    if name in ("ffs", "ffsll", "__nv_ffs", "__nv_ffsll"):
        return counted(_FFS(t.value(call.arguments[0], call.types[0])), call.types[0]), call.result
    return t.unsupported(f"cuda.intrin.{name}, an intrinsic of numba-cuda-mlir,")


# -- the rest ----------------------------------------------------------------------------------------------------------


#: The imaginary part is 0 at the angle 0, for an infinite radius too.
_RECT = Op(
    "make_complex({0} * np.cos({1}), "
    "np.where({1} == 0, {1} * np.copysign({1}.dtype.type(1), {0}), {0} * np.sin({1})).astype({1}.dtype))"
)


def _rect(t, call):
    """Translate ``cmath.rect``, which numba-cuda implements in Python."""
    part = call.result.underlying_float
    values = (t.b.temporary(t.value(a, part)) for a in call.arguments)
    return counted(_RECT(*values), part, 4), call.result


if vector is not None:
    calls.entry(cmath.rect)(_rect)
    calls.entry(vector.load)(_load)
    calls.entry(vector.store)(_store)
    calls.entry(extern_functions)(_intrinsic)
