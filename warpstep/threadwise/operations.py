"""Machine code for tuples, indices, arrays, records and atomic operations."""

import functools

import numpy as np

from warpstep.compiler import ops
from warpstep.limits import WARP
from warpstep.threadwise.arithmetic import comparison, integer_extreme, select
from warpstep.threadwise.engine import ir
from warpstep.threadwise.table import HANDLERS, constant, handles, is_float, promote
from warpstep.threadwise.values import (
    BOOL,
    I32,
    I64,
    INT32,
    INT64,
    NOTHING,
    POINTER,
    Array,
    Buffer,
    Complex,
    NotNative,
    Number,
    Record,
    Slice,
    Static,
    Status,
    Tuple,
)

# -- values ------------------------------------------------------------------------------------------------------------


@handles(ops.TUPLE)
def _tuple(f, *items):
    return Tuple(items)


@handles(ops.UNSIGNED, ops.POS)
def _same(f, value):
    return value


@handles(ops.ITEM)
def _item(f, items, index):
    if not isinstance(items, Tuple) or not isinstance(index, Static):
        raise NotNative("an item of something else than a tuple")
    return items[index.value]


@handles(ops.TUPLE_ITEM)
def _tuple_item(f, items, index, site):
    count = ir.Constant(I64, len(items))
    place = f.inside(index, count)
    result = items[0]
    for i in range(1, len(items)):
        result = select(f, Number(f.b.icmp_signed("==", place, ir.Constant(I64, i)), BOOL), items[i], result)
    return result


@handles(ops.SLICE)
def _slice(f, *bounds):
    start, stop, step = {1: (NOTHING, *bounds, NOTHING), 2: (*bounds, NOTHING)}.get(len(bounds), bounds)
    return Slice(start, stop, step)


@handles(ops.TO_INDEX)
def _to_index(f, value):
    top = ir.Constant(I64, 1 << 62)
    return Number(f.b.select(f.b.icmp_unsigned("<", value.value, top), value.value, top), INT64)


@handles(ops.CAST)
def _cast(f, value, dtype):
    return f.cast(value, dtype.value)


# -- indices -----------------------------------------------------------------------------------------------------------


def _dim3(name):
    def handler(f, axis):
        source = getattr(f, name)[axis.value]
        return Number(f.b.load(source) if name in ("thread", "block") else source, INT32)

    return handler


for _name, _source in {
    "threadIdx": "thread",
    "blockIdx": "block",
    "blockDim": "block_extents",
    "gridDim": "grid_extents",
}.items():
    HANDLERS[ops.DIM3[_name].template] = _dim3(_source)


def _wide(f, value):
    return f.b.sext(value, I64)


@handles(ops.GRID)
def _grid(f, axis):
    block, thread = (_wide(f, f.b.load(place[axis.value])) for place in (f.block, f.thread))
    return Number(f.b.add(f.b.mul(block, _wide(f, f.block_extents[axis.value])), thread), INT64)


@handles(ops.GRIDSIZE)
def _gridsize(f, axis):
    return Number(f.b.mul(_wide(f, f.block_extents[axis.value]), _wide(f, f.grid_extents[axis.value])), INT64)


@handles("K.laneid()")
def _laneid(f):
    x, y, z = (f.b.load(slot) for slot in f.thread)
    linear = f.b.add(x, f.b.mul(f.block_extents[0], f.b.add(y, f.b.mul(f.block_extents[1], z))))
    return Number(f.b.and_(linear, ir.Constant(I32, WARP - 1)), INT32)


@handles(ops.RANGE)
def _range(f, start, stop, step, site):
    start, stop, step = promote(f, start, stop, step)
    m, zero = f.b, constant(start, 0)
    f.leave_if(m.icmp_signed("==", step.value, zero), Status.ERROR)
    compare = m.icmp_signed if start.dtype.kind == "i" else m.icmp_unsigned
    first, last, stride = (f.cast(n, INT64).value for n in (start, stop, step))
    one, none = ir.Constant(I64, 1), ir.Constant(I64, 0)
    forward = compare(">", step.value, zero)
    up = m.and_(forward, compare("<", start.value, stop.value))
    down = m.and_(compare("<", step.value, zero), compare(">", start.value, stop.value))
    size = m.select(forward, stride, m.neg(stride))
    distance = m.select(forward, m.sub(last, first), m.sub(first, last))
    turns = m.add(m.udiv(m.sub(distance, one), size), one)
    length = m.select(m.or_(up, down), turns, none)
    return Tuple((start, Number(length, INT64), step))


@handles(ops.RANGE_NEXT)
def _range_next(f, state):
    current, left, step = state
    there = Number(f.b.icmp_signed(">", left.value, ir.Constant(I64, 0)), BOOL)
    following = Number(f.b.add(current.value, step.value), current.dtype)
    return Tuple((current, there, Tuple((following, Number(f.b.sub(left.value, ir.Constant(I64, 1)), INT64), step))))


@handles(ops.PAIR)
def _pair(f, step):
    return Tuple(step[:2])


@handles(ops.AFTER)
def _after(f, step):
    return step[2]


@handles("iterate(M, {}, m, {})")
def _iterate(f, state, site):
    """Step over an array, a tuple, ``enumerate`` or ``zip``: (value, whether there is one, state after it)."""
    kind = state[0].value if isinstance(state[0], Static) else "range"
    return Tuple(_STEPS[kind](f, state, site))


def _after_one(f, count):
    return Number(f.b.add(count.value, ir.Constant(I64, 1)), INT64)


def _step_range(f, state, site):
    return _range_next(f, state)


def _step_array(f, state, site):
    kind, array, i = state
    b = f.b
    valid = b.icmp_signed("<", i.value, array.shape[0])
    pointer = b.gep(array.pointer, [b.mul(i.value, array.strides[0])])
    after = Tuple((kind, array, _after_one(f, i)))
    if len(array.shape) > 1:
        return Array(array.buffer, array.dtype, pointer, array.shape[1:], array.strides[1:]), Number(valid, BOOL), after
    if array.dtype.names is not None:
        return Record(array.buffer, array.dtype, pointer), Number(valid, BOOL), after
    slot = f.slots.alloca(ir.ArrayType(ir.IntType(8), array.dtype.itemsize))
    own = f.slots.bitcast(slot, POINTER)
    buffer = Buffer("step", "local", own)
    with b.if_then(valid):
        f.store(buffer, own, f.load(array.buffer, pointer, array.dtype))
    return f.load(buffer, own, array.dtype), Number(valid, BOOL), after


def _step_tuple(f, state, site):
    kind, items, i = state
    value = items[0]
    for place in range(1, len(items)):
        reached = f.b.icmp_signed(">=", i.value, ir.Constant(I64, place))
        value = select(f, Number(reached, BOOL), items[place], value)
    valid = f.b.icmp_signed("<", i.value, ir.Constant(I64, len(items)))
    return value, Number(valid, BOOL), Tuple((kind, items, _after_one(f, i)))


def _step_enumerate(f, state, site):
    kind, count, inner = state
    value, valid, inner = _iterate(f, inner, site)
    return Tuple((count, value)), valid, Tuple((kind, _after_one(f, count), inner))


def _step_zip(f, state, site):
    steps = [_iterate(f, inner, site) for inner in state[1:]]
    valid = functools.reduce(f.b.and_, (step[1].value for step in steps))
    values, after = (Tuple(step[k] for step in steps) for k in (0, 2))
    return values, Number(valid, BOOL), Tuple((state[0], *after))


_STEPS = {
    "range": _step_range,
    "array": _step_array,
    "tuple": _step_tuple,
    "enumerate": _step_enumerate,
    "zip": _step_zip,
}


# -- arrays ------------------------------------------------------------------------------------------------------------


@handles(ops.LOAD)
def _load(f, array, index, site):
    return f.load(array.buffer, f.element(array, index), array.dtype)


@handles(ops.STORE)
def _store(f, array, index, value, site):
    if isinstance(value, Number | Complex) and value.dtype != array.dtype:
        value = f.cast(value, array.dtype)
    f.store(array.buffer, f.element(array, index), value)
    return NOTHING


@handles("np.int64({}.shape[0])")
def _length(f, array):
    if isinstance(array, Tuple):
        return f.number(len(array), INT64)
    return Number(array.shape[0], INT64)


@handles("tuple([n if n.__class__ is not int else np.int64(n) for n in {}.shape])")
def _shape(f, array):
    return Tuple(Number(extent, INT64) for extent in array.shape)


@handles("tuple([np.int64(n * {0}.dtype.itemsize) for n in {0}.strides])")
def _strides(f, array):
    return Tuple(Number(stride, INT64) for stride in array.strides)


@handles("{}.size")
def _size(f, array):
    return Number(functools.reduce(f.b.mul, array.shape, ir.Constant(I64, 1)), INT64)


@handles("np.int64({}.dtype.itemsize)")
def _itemsize(f, array):
    return f.number(array.dtype.itemsize, INT64)


@handles("{0}.with_window({0}.base, {0}.shape[::-1], {0}.strides[::-1])")
def _transposed(f, array):
    return Array(array.buffer, array.dtype, array.pointer, array.shape[::-1], array.strides[::-1])


@handles(ops.WINDOW)
def _window(f, array, index, site):
    pointer, shape, strides = array.pointer, [], []
    index = (*index, *[Slice(NOTHING, NOTHING, NOTHING)] * (len(array.shape) - len(index)))
    for i, extent, stride in zip(index, array.shape, array.strides, strict=True):
        if isinstance(i, Slice):
            start, length, step = _resolve_slice(f, i, extent)
            pointer = f.b.gep(pointer, [f.b.mul(start, stride)])
            shape.append(length)
            strides.append(f.b.mul(step, stride))
        else:
            pointer = f.b.gep(pointer, [f.b.mul(f.inside(i, extent), stride)])
    return Array(array.buffer, array.dtype, pointer, tuple(shape), tuple(strides))


def _resolve_slice(f, index, extent):
    """Return the start, length and step of a slice, as Python clamps them."""
    step = 1 if index.step == NOTHING else index.step.value
    if not isinstance(step, int):
        if not isinstance(step, ir.Constant):
            raise NotNative("a slice whose step is no constant")
        step = step.constant
    m, zero, one = f.b, ir.Constant(I64, 0), ir.Constant(I64, 1)
    last = m.sub(extent, one)
    lowest, highest = (zero, extent) if step > 0 else (ir.Constant(I64, -1), last)

    def clamp(bound, default):
        if bound == NOTHING:
            return default
        value = f.cast(bound, INT64).value
        value = m.select(m.icmp_signed("<", value, zero), m.add(value, extent), value)
        value = m.select(m.icmp_signed("<", value, lowest), lowest, value)
        return m.select(m.icmp_signed("<", value, highest), value, highest)

    start = clamp(index.start, zero if step > 0 else last)
    stop = clamp(index.stop, extent if step > 0 else lowest)
    distance = m.sub(stop, start) if step > 0 else m.sub(start, stop)
    size = ir.Constant(I64, abs(step))
    length = m.sdiv(m.add(distance, ir.Constant(I64, abs(step) - 1)), size)
    return start, m.select(m.icmp_signed("<", distance, zero), zero, length), ir.Constant(I64, step)


@handles(ops.LOCAL_ARRAY)
def _local_array(f, key, shape, dtype, name):
    return f.local_array(key.value, tuple(item.value for item in shape), np.dtype(dtype.value))


# -- records -----------------------------------------------------------------------------------------------------------


@handles(ops.RECORD)
def _record(f, array, index, site):
    return Record(array.buffer, array.dtype, f.element(array, index))


def _field(f, record, name):
    dtype, offset = record.dtype.fields[name.value][:2]
    return dtype, f.b.gep(record.pointer, [ir.Constant(I64, offset)])


@handles(ops.LOAD_FIELD)
def _load_field(f, record, name, site):
    dtype, pointer = _field(f, record, name)
    if dtype.names is not None:
        return Record(record.buffer, dtype, pointer)
    if dtype.subdtype is not None:
        raise NotNative("a field that is an array")
    return f.load(record.buffer, pointer, dtype)


@handles(ops.STORE_FIELD)
def _store_field(f, record, name, value, site):
    dtype, pointer = _field(f, record, name)
    if dtype.names is not None or dtype.subdtype is not None or not isinstance(value, Number | Complex):
        raise NotNative("an assignment to a field that is no number")
    f.store(record.buffer, pointer, f.cast(value, dtype))
    return NOTHING


# -- atomic operations -------------------------------------------------------------------------------------------------


@handles(ops.ATOMIC, ops.ATOMIC_UNUSED)
def _atomic(f, array, op, index, value, second, site):
    """Do the operation; the threads of a kernel with atomics run one after another."""
    if array.buffer.space == "local":
        raise NotNative("an atomic operation on a local array")
    pointer = f.element(array, index)
    old = f.load(array.buffer, pointer, array.dtype, note=False)
    value = f.cast(value, array.dtype)
    second = None if second == NOTHING else f.cast(second, array.dtype)
    f.store(array.buffer, pointer, _ATOMIC_STEPS[op.value](f, old, value, second), atomic=True)
    return old


def _atomic_operator(op):
    return lambda f, old, value, second: HANDLERS[op.template](f, old, value)


def _atomic_extreme(symbol, nan_stays):
    def step(f, old, value, second):
        m = f.b
        if not is_float(old):
            return integer_extreme(symbol)(f, old, value)
        better = m.fcmp_ordered(symbol, value.value, old.value)
        if not nan_stays:
            nan = m.fcmp_unordered("uno", old.value, old.value)
            better = m.or_(better, m.and_(nan, m.fcmp_ordered("ord", value.value, value.value)))
        return Number(m.select(better, value.value, old.value), old.dtype)

    return step


def _atomic_inc(f, old, limit, second):
    m = f.b
    wraps = m.icmp_unsigned(">=", old.value, limit.value)
    return Number(m.select(wraps, constant(old, 0), m.add(old.value, constant(old, 1))), old.dtype)


def _atomic_dec(f, old, limit, second):
    m = f.b
    wraps = m.or_(m.icmp_unsigned("==", old.value, constant(old, 0)), m.icmp_unsigned(">", old.value, limit.value))
    return Number(m.select(wraps, limit.value, m.sub(old.value, constant(old, 1))), old.dtype)


def _atomic_cas(f, old, expected, new):
    same = comparison("==")(f, old, expected)
    return select(f, same, new, old)


_ATOMIC_STEPS = {
    "add": _atomic_operator(ops.ADD),
    "sub": _atomic_operator(ops.SUB),
    "and": _atomic_operator(ops.AND),
    "or": _atomic_operator(ops.OR),
    "xor": _atomic_operator(ops.OPERATORS[ops.operator.xor]),
    "max": _atomic_extreme(">", True),
    "min": _atomic_extreme("<", True),
    "nanmax": _atomic_extreme(">", False),
    "nanmin": _atomic_extreme("<", False),
    "inc": _atomic_inc,
    "dec": _atomic_dec,
    "exch": lambda f, old, value, second: value,
    "cas": _atomic_cas,
}
