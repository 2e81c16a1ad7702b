"""Types and functions that a program teaches numba-cuda: classes with a data model, overloads, and intrinsics.

An intrinsic's LLVM IR runs twice: translated by the emulator, and compiled for this machine's CPU by Numba.
"""

import math
import operator

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import extending as cpu
from numba.cuda import cgutils, types
from numba.cuda.cudadecl import registry
from numba.cuda.cudaimpl import lower_attr
from numba.cuda.extending import (
    core_models,
    intrinsic,
    lower_builtin,
    make_attribute_wrapper,
    overload,
    overload_attribute,
    overload_method,
    register_model,
    type_callable,
    typeof_impl,
)
from numba.cuda.typing.templates import AttributeTemplate
from releases import fails_before

from warpstep import UnsupportedError, cuda, trace

# -- a class with a data model -----------------------------------------------------------------------------------------


class Interval:
    def __init__(self, lo, hi):
        self.lo, self.hi = lo, hi


class IntervalType(types.Type):
    def __init__(self):
        super().__init__(name="Interval")


interval = IntervalType()


@typeof_impl.register(Interval)
def _typeof(value, context):
    return interval


@type_callable(Interval)
def _type_interval(context):
    return lambda lo, hi: interval


@register_model(IntervalType)
class IntervalModel(core_models.StructModel):
    def __init__(self, manager, type_):
        super().__init__(manager, type_, [("lo", types.float64), ("hi", types.float64)])


for _name in ("lo", "hi"):
    make_attribute_wrapper(IntervalType, _name, _name)


@lower_builtin(Interval, types.Number, types.Number)
def _make_interval(context, builder, sig, args):
    made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    made.lo, made.hi = (
        context.cast(builder, value, type_, types.float64) for value, type_ in zip(args, sig.args, strict=True)
    )
    return made._getvalue()


@registry.register_attr
class IntervalAttributes(AttributeTemplate):
    key = IntervalType

    def resolve_middle(self, type_):
        return types.float64


@lower_attr(IntervalType, "middle")
def _middle(context, builder, type_, value):
    both = builder.fadd(builder.extract_value(value, 0), builder.extract_value(value, 1))
    return builder.fdiv(both, context.get_constant(types.float64, 2.0))


@overload_attribute(IntervalType, "width")
def _width(iv):
    return lambda iv: iv.hi - iv.lo


@overload_method(IntervalType, "scaled")
def _scaled(iv, by=2):
    return lambda iv, by=2: Interval(iv.lo * by, iv.hi * by)


@overload(operator.add)
def _add(a, b):
    if isinstance(a, IntervalType) and isinstance(b, IntervalType):
        return lambda a, b: Interval(a.lo + b.lo, a.hi + b.hi)
    return None


@overload(operator.neg)
def _neg(a):
    if isinstance(a, IntervalType):
        return lambda a: Interval(-a.hi, -a.lo)
    return None


@overload(operator.contains)
def _contains(a, x):
    if isinstance(a, IntervalType):
        return lambda a, x: a.lo <= x < a.hi
    return None


@overload(operator.getitem)
def _getitem(a, i):
    if isinstance(a, IntervalType):
        return lambda a, i: a.lo if i == 0 else a.hi
    return None


@overload(abs)
def _abs(a):
    if isinstance(a, IntervalType):
        return lambda a: abs(a.hi - a.lo)
    return None


@numba.njit
def hull(a, b):
    return Interval(min(a.lo, b.lo), max(a.hi, b.hi))


def test_attributes_methods_and_operators_of_a_class():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        a = Interval(i, 4) if i % 2 else Interval(1.5, 2.5)
        for _ in range(i):
            a = a + Interval(0, 1)
        row = out[i]
        row[0], row[1], row[2], row[3] = a.lo, a.hi, a.width, a.middle
        row[4], row[5] = a.scaled().hi, a.scaled(by=3).lo
        row[6], row[7], row[8] = (-a).lo, 2.0 in a, a[i]
        row[9], row[10] = abs(a), hull(a, Interval(0, 0)).lo

    out = np.zeros((4, 11))
    kernel[1, 4](out)
    for i, row in enumerate(out):
        lo, hi = (float(i), 4.0 + i) if i % 2 else (1.5, 2.5 + i)
        item = lo if i == 0 else hi
        expected = lo, hi, hi - lo, (lo + hi) / 2, hi * 2, lo * 3, -hi, lo <= 2 < hi, item, hi - lo, min(lo, 0)
        assert row.tolist() == list(expected)


def test_values_of_a_class_in_tuples_and_in_local_and_shared_memory():
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        pair = (Interval(i, 2 * i), 7)
        mine = cuda.local.array(2, interval)
        mine[1] = pair[0]
        shared = cuda.shared.array(32, interval)
        shared[i] = mine[1]
        cuda.syncthreads()
        step = 16
        while step > 0:
            if i < step:
                shared[i] = shared[i] + shared[i + step]
            cuda.syncthreads()
            step //= 2
        if i == 0:
            out[0], out[1] = shared[0].lo, shared[0].hi

    out = np.zeros(2)
    kernel[1, 32](out)
    assert out.tolist() == [496, 992]
    result = trace(kernel[1, 32], out)
    assert result.status == "complete" and not result.findings


def test_an_argument_of_a_class_is_refused_by_name():
    @cuda.jit
    def kernel(iv, out):
        out[0] = iv.lo

    with pytest.raises(TypeError, match="argument iv of type Interval cannot be passed to a kernel"):
        kernel[1, 1](Interval(1.0, 2.0), np.zeros(1))


# -- intrinsics --------------------------------------------------------------------------------------------------------


def loop(context, builder, sig, args):
    total = cgutils.alloca_once_value(builder, context.get_constant(types.int64, 0))
    with cgutils.for_range(builder, builder.and_(args[0], ir.Constant(args[0].type, 7))) as turn:
        builder.store(builder.add(builder.load(total), builder.mul(turn.index, args[1])), total)
    return builder.load(total)


def branches(context, builder, sig, args):
    negative = builder.icmp_signed("<", args[0], args[1])
    with builder.if_else(negative) as (then, otherwise):
        with then:
            first, first_block = builder.sub(args[1], args[0]), builder.block
        with otherwise:
            second, second_block = builder.xor(args[0], args[1]), builder.block
    result = builder.phi(args[0].type)
    result.add_incoming(first, first_block)
    result.add_incoming(second, second_block)
    return result


def switch(context, builder, sig, args):
    result, end = cgutils.alloca_once(builder, args[0].type), builder.append_basic_block("end")
    blocks = [builder.append_basic_block() for _ in range(3)]
    chosen = builder.switch(builder.and_(args[0], ir.Constant(args[0].type, 3)), blocks[2])
    for i, block in enumerate(blocks):
        if i < 2:
            chosen.add_case(ir.Constant(args[0].type, i), block)
        with builder.goto_block(block):
            builder.store(builder.add(args[1], ir.Constant(args[1].type, i * 100)), result)
            builder.branch(end)
    builder.position_at_end(end)
    return builder.load(result)


def swapped_phis(context, builder, sig, args):
    """Exchange two values three times: phi nodes take their values at once."""
    start, body, end = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(body)
    builder.position_at_end(body)
    a, b, n = (builder.phi(ir.IntType(64)) for _ in range(3))
    after = builder.add(n, ir.Constant(n.type, 1))
    for phi, first, again in ((a, args[0], b), (b, args[1], a), (n, ir.Constant(n.type, 0), after)):
        phi.add_incoming(first, start)
        phi.add_incoming(again, body)
    builder.cbranch(builder.icmp_signed("<", after, ir.Constant(n.type, 3)), body, end)
    builder.position_at_end(end)
    return builder.sub(builder.mul(a, ir.Constant(a.type, 3)), b)


def arithmetic(context, builder, sig, args):
    a, b = args
    odd = builder.or_(b, ir.Constant(b.type, 1))
    results = [builder.sdiv(a, odd), builder.srem(a, odd), builder.udiv(a, odd), builder.urem(a, odd)]
    shift = builder.and_(b, ir.Constant(b.type, 31))
    results += [builder.shl(a, shift), builder.lshr(a, shift), builder.ashr(a, shift)]
    for condition in ("<", ">=", "==", "!="):
        results.append(builder.zext(builder.icmp_unsigned(condition, a, b), a.type))
        results.append(builder.sext(builder.icmp_signed(condition, a, b), a.type))
    narrow = builder.trunc(a, ir.IntType(8))
    results += [
        builder.sext(narrow, a.type),
        builder.zext(narrow, a.type),
        builder.select(builder.trunc(b, ir.IntType(1)), a, b),
    ]
    for name in ("llvm.ctpop", "llvm.bitreverse"):
        results.append(builder.call(builder.module.declare_intrinsic(name, [a.type]), [a]))
    total = results[0]
    for value in results[1:]:
        total = builder.xor(builder.mul(total, ir.Constant(a.type, 31)), value)
    return total


def floats(context, builder, sig, args):
    x, y = (builder.sitofp(a, ir.DoubleType()) for a in args)
    quotient = builder.fdiv(x, builder.fadd(y, ir.Constant(y.type, 0.25)))
    root = builder.call(builder.module.declare_intrinsic("llvm.fabs", [x.type]), [quotient])
    less = builder.fcmp_ordered("<", quotient, x)
    unordered = builder.fcmp_unordered("uno", builder.fdiv(x, x), y)
    small = builder.fptrunc(builder.select(less, root, builder.fneg(x)), ir.FloatType())
    whole = builder.fptosi(builder.frem(builder.fpext(small, x.type), ir.Constant(x.type, 1e6)), args[0].type)
    return builder.add(builder.add(whole, builder.bitcast(y, args[0].type)), builder.zext(unordered, whole.type))


def python(context, builder, sig, args):
    def implementation(a, b):
        return max(a, b) // 3 + (1 if a > b else 2)

    both = context.compile_internal(builder, implementation, sig, args)
    product = context.get_function(operator.mul, sig)
    return product(builder, (both, args[0]))


def tuples(context, builder, sig, args):
    pair = types.UniTuple(types.int64, 2)
    made = context.make_tuple(builder, pair, (args[1], args[0]))
    made = builder.insert_value(made, builder.add(builder.extract_value(made, 0), args[0]), 0)
    return builder.sub(builder.extract_value(made, 0), builder.extract_value(made, 1))


INTRINSICS = (loop, branches, switch, swapped_phis, arithmetic, floats, python, tuples)


def _intrinsic(decorator, codegen, int64):
    def typed(typingctx, a, b):
        return int64(int64, int64), codegen

    typed.__name__ = codegen.__name__
    return decorator(typed)


@pytest.mark.parametrize("codegen", INTRINSICS, ids=lambda f: f.__name__)
def test_an_intrinsic_computes_what_it_computes_on_a_cpu(codegen):
    emulated = _intrinsic(intrinsic, codegen, types.int64)
    compiled = _intrinsic(cpu.intrinsic, codegen, numba.int64)

    @cuda.jit
    def kernel(a, b, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = emulated(a[i], b[i])

    @numba.njit
    def on_cpu(a, b, out):
        for i in range(out.size):
            out[i] = compiled(a[i], b[i])

    rng = np.random.default_rng(7)
    a, b = (rng.integers(-(1 << bits), 1 << bits, 40) for bits in (40, 20))
    a[:8], b[:8] = np.arange(8) - 3, 2
    out, expected = np.zeros(40, np.int64), np.zeros(40, np.int64)
    kernel[2, 32](a, b, out)
    on_cpu(a, b, expected)
    np.testing.assert_array_equal(out, expected)


@intrinsic
def store_doubled(typingctx, array, index, value):
    def codegen(context, builder, sig, args):
        made = context.make_array(sig.args[0])(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, sig.args[0], made, [args[1]])
        before = builder.load(place)
        builder.store(builder.fadd(before, builder.fmul(args[2], ir.Constant(args[2].type, 2.0))), place)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def not_negative(typingctx, value):
    def codegen(context, builder, sig, args):
        with builder.if_then(builder.icmp_signed("<", args[0], context.get_constant(types.int64, 0))):
            context.call_conv.return_user_exc(builder, ValueError, ("negative",))
        return args[0]

    return types.int64(types.int64), codegen


@intrinsic
def clock(typingctx):
    def codegen(context, builder, sig, args):
        type_ = ir.FunctionType(ir.IntType(64), [])
        return builder.call(ir.InlineAsm(type_, "mov.u64 $0, %clock64;", "=l"), [])

    return types.int64(), codegen


def test_an_intrinsic_reads_and_writes_memory():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        local = cuda.local.array(4, types.float64)
        local[1] = 5
        store_doubled(local, 1, float(i))
        store_doubled(out[::2], i, local[1])

    out = np.ones(8)
    kernel[1, 4](out)
    assert out.tolist() == [11, 1, 15, 1, 19, 1, 23, 1]
    (store,) = [a for a in trace(kernel[1, 4], out).accesses if a.op == "store" and a.space == "global"]
    assert store.requests == 1 and store.active_lanes == 4


def test_an_intrinsic_raises_in_the_kernel():
    def body(out):
        i = cuda.grid(1)
        out[i] = not_negative(i - 2)

    out = np.full(4, 9)
    cuda.jit(body)[1, 4](out)
    assert out.tolist() == [9, 9, 0, 1]
    with pytest.raises(ValueError, match="negative"):
        cuda.jit(debug=True, opt=False)(body)[1, 4](out)


def test_what_an_intrinsic_cannot_do_is_named():
    @cuda.jit
    def kernel(out):
        out[0] = clock()

    with pytest.raises(UnsupportedError, match=r"inline assembler.*clock64.*line \d+, in kernel"):
        kernel[1, 1](np.zeros(1, np.int64))


# -- overloads ---------------------------------------------------------------------------------------------------------


def area(shape):
    raise NotImplementedError


@overload(area)
def _area(shape):
    if isinstance(shape, types.BaseTuple):
        return lambda shape: shape[0] * shape[1]
    if isinstance(shape, types.Float):
        return lambda shape: math.pi * shape**2
    return None


@cpu.overload(area, target="cuda", inline="always")
def _area_of_int(shape):
    if isinstance(shape, types.Integer):

        def implementation(shape):
            side = cuda.local.array(1, types.float64)
            side[0] = shape
            return side[0] * side[0]

        return implementation
    return None


def test_overloads_by_type():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        out[i] = area((i, 2)) + area(float(i))

    out = np.zeros(4)
    kernel[1, 4](out)
    np.testing.assert_allclose(out, [i * 2 + math.pi * i**2 for i in range(4)])


@fails_before((0, 29), KeyError, "its search for dead code does not read the IR that Numba's own overloads inline")
def test_inlined_overloads_of_numba():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        out[i] = area(i) + area(float(i))

    out = np.zeros(4)
    kernel[1, 4](out)
    np.testing.assert_allclose(out, [i * i + math.pi * i**2 for i in range(4)])
