"""The functions on the emulator."""

from gpukit.backend import types
from gpukit.intrinsics import functions
from gpukit.intrinsics.signatures import COPIES, LOADS, PRODUCTS, STORES, TENSOR_KINDS
from warpstep.compiler import calls, ops
from warpstep.compiler.expressions import Op, Trait
from warpstep.compiler.values import counted
from warpstep.limits import WARP


@calls.entry(functions.clock64, functions.globaltimer)
def _emulate_clock(t, call):
    return Op("K.read_clock()", ops.ACTION)(), call.result


@calls.entry(functions.smid)
def _emulate_smid(t, call):
    return Op("K.smid()", ops.STATE)(), call.result


@calls.entry(functions.byte_perm)
def _emulate_byte_perm(t, call):
    values = [t.value(argument, types.uint32) for argument in call.arguments]
    return counted(Op("byte_perm")(*values), types.uint32), call.result


@calls.entry(functions.round_to_bfloat16)
def _emulate_rounding(t, call):
    return Op("to_bfloat16")(t.value(call.arguments[0], types.float32)), call.result


@calls.entry(functions.match_byte)
def _emulate_match_byte(t, call):
    value = t.b.temporary(Op("{} & 255")(t.value(call.arguments[0], types.uint32)))
    t.barrier("warp", calls.WHOLE_WARP)
    return calls.MATCH("any", 0xFFFFFFFF, value), call.result


@calls.entry(functions.dp2a_lo, functions.dp2a_hi)
def _emulate_dot_pair(t, call):
    values = [t.value(argument, types.uint32) for argument in call.arguments]
    return counted(Op("dot_pair")(*values, 0 if call.key is functions.dp2a_lo else 2), types.uint32), call.result


@calls.entry(functions.dp4a)
def _emulate_dot(t, call):
    values = [t.value(argument, call.result) for argument in call.arguments]
    return counted(Op("dot_bytes")(*values), call.result), call.result


@calls.entry(functions.mma)
def _emulate_mma(t, call):
    operands = [t.b.temporary(t.value(argument)) for argument in call.arguments[:3]]
    t.barrier("warp", calls.WHOLE_WARP)
    name, sizes = PRODUCTS[call.types[0].dtype, call.types[2].dtype]
    a, b, c = map(len, call.types[:3])
    rows, columns, depth = sizes[a, b, c]
    if not isinstance(call.types[3], types.Omitted):
        operands[:2] = (t.b.temporary(Op("halves_of")(words)) for words in operands[:2])
    made = Op("K.mma({}, {}, {}, m, {})", ops.ACTION)(*operands, t.site(op="mma"))
    return made.counting((TENSOR_KINDS[name], 2 * rows * columns * depth // WARP)), call.result


@calls.entry(*LOADS)
def _emulate_load(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "load")
    load = ops.LOAD_WIDE(t.value(call.arguments[0]), index, len(call.result), site)
    if call.result.dtype != call.types[0].dtype:
        load = Op("tuple(value.astype(np.int32) for value in {})")(load)
    return load, call.result


@calls.entry(*STORES)
def _emulate_store(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "store")
    values = ops.TUPLE(*(t.value(value, call.types[0].dtype) for value in call.arguments[2:]))
    t.b.emit(ops.STORE_WIDE(t.value(call.arguments[0]), index, values, site))


_BEGIN_COPY = Op("M.begin_copy({}, {}, {}, {}, {}, {}, m, {}, {})", ops.ACTION)


@calls.entry(*COPIES)
def _emulate_copy(t, call):
    target, index, source, source_index, *guard = call.arguments
    places = [t.site(target.unversioned_name, "store"), t.site(source.unversioned_name, "load")]
    index, source_index = (t.index(i, at)[0] for i, at in ((index, call.types[0]), (source_index, call.types[2])))
    guard = None if isinstance(call.types[4], types.Omitted) else t.value(guard[0], types.boolean)
    arrays = t.value(target), t.value(source)
    t.b.emit(_BEGIN_COPY(arrays[0], index, arrays[1], source_index, COPIES[call.key], guard, *places))


@calls.entry(functions.commit_copies)
def _emulate_commit(t, call):
    t.b.emit(Op("M.commit_copies(m)", ops.ACTION)())


@calls.entry(functions.wait_copies)
def _emulate_wait(t, call):
    t.b.emit(Op("M.wait_copies({}, m)", ops.ACTION | Trait.WRITES_ANY)(call.types[0].literal_value))
