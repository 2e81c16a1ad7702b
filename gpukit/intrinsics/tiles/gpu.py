"""The functions on a GPU: instructions of PTX. Shared memory is addressed by 32 bits, as the instructions want it."""

import functools
from typing import Any

from llvmlite import ir

from gpukit._numba import cgutils, cudaimpl, fix_integer_index
from gpukit.backend import types
from gpukit.intrinsics.gpu import SHARED, cache_policy, emit, pack_words
from gpukit.intrinsics.tiles import functions
from gpukit.intrinsics.tiles.signatures import MATRICES, OPERANDS

WORD, LONG = ir.IntType(32), ir.IntType(64)
#: The letter of a register in a constraint, by the type of its number.
LETTERS = {types.float32: "f", types.int32: "r", types.float64: "d"}


def _word(value):
    return ir.Constant(WORD, value)


def _lower(function, *kinds):
    """Decorate the code of a function that returns nothing, or what the code returns."""

    def decorate(generate):
        @cudaimpl.lower(function, *kinds)
        def generate_call(context, builder, signature, arguments):
            result = generate(context, builder, signature, arguments)
            return context.get_dummy_value() if result is None else result

        return generate

    return decorate


def _literal(kind) -> Any:
    return getattr(kind, "literal_value", getattr(kind, "value", None))


# -- addresses -------------------------------------------------------------------------------------


def _base(context, builder, array_type, array):
    """The address of an array in shared memory, of 32 bits."""
    struct = context.make_array(array_type)(context, builder, value=array)
    data = struct.data
    return builder.ptrtoint(builder.addrspacecast(data, ir.PointerType(data.type.pointee, SHARED)), WORD), struct


def _offset(context, builder, struct, index_type, index, units=0):
    """The offset of an element in units of 2 ** ``units`` bytes, of 32 bits; rows have a multiple of them."""
    index_types = index_type.types if isinstance(index_type, types.BaseTuple) else (index_type,)
    indices = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else (index,)
    extents, strides = (cgutils.unpack_tuple(builder, part) for part in (struct.shape, struct.strides))
    total = _word(0)
    for kind, i, extent, stride in zip(index_types, indices, extents, strides, strict=True):
        # A negative index counts from the end; an unsigned one needs no test.
        wrapped, step = fix_integer_index(context, builder, kind, i, extent), builder.trunc(stride, WORD)
        wrapped = builder.trunc(wrapped, WORD)
        if stride is strides[-1]:
            part = builder.lshr(builder.mul(wrapped, step), _word(units))
        else:
            part = builder.mul(wrapped, builder.lshr(step, _word(units)))
        total = builder.add(total, part)
    return total


def _address(context, builder, array_type, array, index_type, index):
    """The address of an element in shared memory, of 32 bits."""
    base, struct = _base(context, builder, array_type, array)
    return builder.add(base, _offset(context, builder, struct, index_type, index))


def _pointer(context, builder, array_type, array, index_type, index):
    """The address of an element in any memory, of 64 bits."""
    index_types = index_type.types if isinstance(index_type, types.BaseTuple) else (index_type,)
    indices = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else (index,)
    struct = context.make_array(array_type)(context, builder, value=array)
    extents = cgutils.unpack_tuple(builder, struct.shape)
    indices = [fix_integer_index(context, builder, *each) for each in zip(index_types, indices, extents, strict=True)]
    return cgutils.get_item_pointer(context, builder, array_type, struct, indices)


@_lower(functions.view_at, types.Array, types.Any, types.Any, types.Any)
def _view(context, builder, signature, arguments):
    result_type, (buffer_type, offset_type, shape_type, _) = signature.return_type, signature.args
    buffer, offset, shape, _ = arguments
    start = _pointer(context, builder, buffer_type, buffer, offset_type, offset)
    extents = cgutils.unpack_tuple(builder, shape) if isinstance(shape_type, types.BaseTuple) else [shape]
    kinds = shape_type.types if isinstance(shape_type, types.BaseTuple) else [shape_type]
    extents = [context.cast(builder, *each, types.intp) for each in zip(extents, kinds, strict=True)]
    size = ir.Constant(LONG, result_type.dtype.bitwidth // 8)
    strides, step = [], size
    for extent in reversed(extents):
        strides.insert(0, step)
        step = builder.mul(step, extent)
    result = context.make_array(result_type)(context, builder)
    context.populate_array(
        result,
        data=builder.bitcast(start, result.data.type),
        shape=cgutils.pack_array(builder, extents),
        strides=cgutils.pack_array(builder, strides),
        itemsize=size,
        meminfo=None,
    )
    return result._getvalue()


# -- fragments -------------------------------------------------------------------------------------


def _load_matrices(count, context, builder, signature, arguments):
    tile, index = arguments[:2]
    tile_type, index_type, trans = signature.args
    address = _address(context, builder, tile_type, tile, index_type, index)
    names = ", ".join(f"${i}" for i in range(count))
    across = ".trans" if _literal(trans) else ""
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{across}.shared.b16 {{{names}}}, [${count}];"
    kind = ir.LiteralStructType([WORD] * count) if count > 1 else WORD
    found = emit(builder, text, ",".join(["=r"] * count + ["r"]), [address], kind)
    words = [builder.extract_value(found, i) for i in range(count)] if count > 1 else [found]
    item = signature.return_type.dtype
    if item == types.float16:
        half = context.get_value_type(item)
        parts = [builder.lshr(word, _word(16 * i)) if i else word for word in words for i in range(2)]
        words = [builder.bitcast(builder.trunc(part, ir.IntType(16)), half) for part in parts]
    elif item == types.float32:
        words = [builder.bitcast(word, ir.FloatType()) for word in words]
    return context.make_tuple(builder, signature.return_type, words)


for _function, _count in MATRICES.items():
    _lower(_function, types.Array, types.Any, types.Any)(functools.partial(_load_matrices, _count))


@_lower(functions.zeros, types.Any, types.Any)
def _zeros(context, builder, signature, arguments):
    number = context.get_constant(signature.return_type.dtype, 0)
    return context.make_tuple(builder, signature.return_type, [number] * signature.return_type.count)


def _converted(context, builder, value, held, kind):
    """A sum as an element of an array; uint16 stands for bfloat16."""
    if kind == types.uint16:
        return emit(builder, "cvt.rn.bf16.f32 $0, $1;", "=h,f", [value], ir.IntType(16), fixed=False)
    if kind == types.float16:
        bits = emit(builder, "cvt.rn.f16.f32 $0, $1;", "=h,f", [value], ir.IntType(16), fixed=False)
        return builder.bitcast(bits, context.get_data_type(kind))
    return context.cast(builder, value, held, kind)


@_lower(functions.store_fragment, types.Array, types.Any, types.Any, types.Any)
def _store_fragment(context, builder, signature, arguments):
    array_type, corner_type, values_type, guard = signature.args
    array, corner, values = arguments[:3]
    values, guard = cgutils.unpack_tuple(builder, values), _literal(guard)
    struct = context.make_array(array_type)(context, builder, value=array)
    lane = emit(builder, "mov.u32 $0, %laneid;", "=r", (), WORD, fixed=False)
    row, column = (
        context.cast(builder, part, kind, types.int64)
        for part, kind in zip(cgutils.unpack_tuple(builder, corner), corner_type.types, strict=True)
    )
    row = builder.add(row, builder.zext(builder.lshr(lane, _word(2)), LONG))
    column = builder.add(column, builder.zext(builder.shl(builder.and_(lane, _word(3)), _word(1)), LONG))
    extents = cgutils.unpack_tuple(builder, struct.shape)
    kind, width = array_type.dtype, array_type.dtype.bitwidth // 8
    for half in range(2):
        here = builder.add(row, ir.Constant(LONG, 8 * half))
        fits = builder.icmp_signed("<", here, extents[0]) if guard else None
        first = cgutils.get_item_pointer(context, builder, array_type, struct, [here, column])
        for part in range(len(values) // 4):
            pair = [
                _converted(context, builder, values[4 * part + 2 * half + i], values_type.dtype, kind) for i in range(2)
            ]
            at = builder.gep(first, [_word(8 * part)])
            if not guard:
                vector = ir.Constant(ir.VectorType(at.type.pointee, 2), ir.Undefined)
                for i, value in enumerate(pair):
                    vector = builder.insert_element(vector, value, _word(i))
                builder.store(vector, builder.bitcast(at, vector.type.as_pointer()), align=2 * width)
                continue
            for i, value in enumerate(pair):
                there = builder.icmp_signed("<", builder.add(column, ir.Constant(LONG, 8 * part + i)), extents[1])
                with builder.if_then(builder.and_(fits, there)):
                    builder.store(value, builder.gep(at, [_word(i)]))


# -- barriers --------------------------------------------------------------------------------------


def _barrier_code(function, text, operands):
    @_lower(function, types.Array, types.Any, *[types.uint32] * operands)
    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        emit(builder, text, ",".join("r" * (1 + operands)), [address, *arguments[2:]])


_barrier_code(functions.mbarrier_init, "mbarrier.init.shared::cta.b64 [$0], $1;", 1)
_barrier_code(
    functions.mbarrier_expect, "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [$0], $1; }", 1
)
_barrier_code(
    functions.mbarrier_wait,
    "{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra AGAIN; }",
    1,
)


@_lower(functions.mbarrier_arrive, types.Array, types.Any, types.Any)
def _arrive(context, builder, signature, arguments):
    (barriers_type, i_type, rank_type), (barriers, i, rank) = signature.args, arguments
    address = _address(context, builder, barriers_type, barriers, i_type, i)
    if isinstance(rank_type, types.Omitted):
        emit(builder, "{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [$0]; }", "r", [address])
        return
    # An arrival that releases to the whole cluster waits for all memory accesses of the warp first: 0.6 us.
    text = "mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [there];"
    emit(builder, f"{{ .reg .b32 there; {text} }}", "r,r", [address, rank])


@_lower(functions.cluster_sync, types.Any)
def _cluster_sync(context, builder, signature, arguments):
    emit(builder, f"barrier.cluster.arrive{'.relaxed' if _literal(signature.args[0]) else ''}; barrier.cluster.wait;")


def _plain_code(function, text):
    @_lower(function)
    def generate(context, builder, signature, arguments):
        emit(builder, text)


_plain_code(functions.fence_barrier_init, "fence.mbarrier_init.release.cluster;")
_plain_code(functions.fence_async, "fence.proxy.async.shared::cta;")
_plain_code(functions.commit_stores, "cp.async.bulk.commit_group;")
_plain_code(functions.wgmma_fence, "wgmma.fence.sync.aligned;")
_plain_code(functions.wgmma_commit, "wgmma.commit_group.sync.aligned;")


@_lower(functions.named_barrier, types.uint32, types.uint32)
def _named_barrier(context, builder, signature, arguments):
    emit(builder, "bar.sync $0, $1;", "r,r", arguments)


def _literal_code(function, text):
    @_lower(function, types.IntegerLiteral)
    def generate(context, builder, signature, arguments):
        emit(builder, text.format(signature.args[0].literal_value))


_literal_code(functions.wait_stores, "cp.async.bulk.wait_group.read {};")
_literal_code(functions.decrease_registers, "setmaxnreg.dec.sync.aligned.u32 {};")
_literal_code(functions.increase_registers, "setmaxnreg.inc.sync.aligned.u32 {};")


# -- copies of tensors -----------------------------------------------------------------------------


def _map_address(context, builder, map_type, map):
    return builder.ptrtoint(context.make_array(map_type)(context, builder, value=map).data, LONG)


def _coordinates(context, builder, corner_type, corner):
    """The corner, the last axis first."""
    parts = zip(cgutils.unpack_tuple(builder, corner), corner_type.types, strict=True)
    return [context.cast(builder, part, kind, types.int32) for part, kind in parts][::-1]


def _all_blocks(builder):
    """Make the mask of all blocks of the cluster, a bit for each."""
    text = "mov.u32 count, %cluster_nctarank; shl.b32 count, 1, count; sub.u32 count, count, 1; cvt.u16.u32 $0, count;"
    return emit(builder, f"{{ .reg .b32 count; {text} }}", "=h", (), ir.IntType(16), fixed=False)


@_lower(functions.copy_tensor, types.Array, types.Any, types.Array, types.BaseTuple, types.Array, *[types.Any] * 3)
def _copy_tensor(context, builder, signature, arguments):
    target_type, index_type, map_type, corner_type, barriers_type, i_type, once_type, everywhere = signature.args
    target, index, map, corner, barriers, i, once, _ = arguments
    corner = _coordinates(context, builder, corner_type, corner)
    places = ", ".join(f"${3 + axis}" for axis in range(len(corner)))
    has_policy, everywhere = not isinstance(once_type, types.Omitted), _literal(everywhere)
    forms = ".multicast::cluster" * everywhere + ".L2::cache_hint" * has_policy
    more = "".join(f", ${3 + len(corner) + extra}" for extra in range(everywhere + has_policy))
    text = (
        f"cp.async.bulk.tensor.{len(corner)}d.shared::cluster.global.mbarrier::complete_tx::bytes{forms} "
        f"[$0], [$1, {{{places}}}], [$2]{more};"
    )
    operands = [
        _address(context, builder, target_type, target, index_type, index),
        _map_address(context, builder, map_type, map),
        _address(context, builder, barriers_type, barriers, i_type, i),
        *corner,
        *([_all_blocks(builder)] if everywhere else []),
        *([cache_policy(builder, once)] if has_policy else []),
    ]
    emit(builder, text, ",".join(["r", "l", "r", *"r" * len(corner), *"h" * everywhere, *"l" * has_policy]), operands)


@_lower(
    functions.copy_windows,
    types.Array,
    types.Any,
    types.Array,
    types.BaseTuple,
    types.BaseTuple,
    types.Array,
    types.Any,
)
def _copy_windows(context, builder, signature, arguments):
    target_type, index_type, map_type, corner_type, pixel_type, barriers_type, i_type = signature.args
    target, index, map, corner, pixel, barriers, i = arguments
    text = (
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[$0], [$1, {$3, $4, $5, $6}], [$2], {$7, $8};"
    )
    offsets = _coordinates(context, builder, pixel_type, pixel)
    operands = [
        _address(context, builder, target_type, target, index_type, index),
        _map_address(context, builder, map_type, map),
        _address(context, builder, barriers_type, barriers, i_type, i),
        *_coordinates(context, builder, corner_type, corner),
        *(builder.trunc(offset, ir.IntType(16)) for offset in offsets),
    ]
    emit(builder, text, "r,l,r,r,r,r,r,h,h", operands)


@_lower(functions.store_tensor, types.Array, types.BaseTuple, types.Array, types.Any)
def _store_tensor(context, builder, signature, arguments):
    map_type, corner_type, source_type, index_type = signature.args
    map, corner, source, index = arguments
    corner = _coordinates(context, builder, corner_type, corner)
    places = ", ".join(f"${2 + axis}" for axis in range(len(corner)))
    text = f"cp.async.bulk.tensor.{len(corner)}d.global.shared::cta.bulk_group [$1, {{{places}}}], [$0];"
    operands = [
        _address(context, builder, source_type, source, index_type, index),
        _map_address(context, builder, map_type, map),
        *corner,
    ]
    emit(builder, text, ",".join(["r", "l", *"r" * len(corner)]), operands)


@_lower(functions.fence_tensor_map, types.Array)
def _fence_tensor_map(context, builder, signature, arguments):
    address = _map_address(context, builder, signature.args[0], arguments[0])
    emit(builder, "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "l", [address])


# -- products of four warps ------------------------------------------------------------------------

#: Where the parts of a descriptor lie: the distance of parts in 16 bytes, and how rows are swizzled. The distance of 8
#: rows begins at bit 32.
PARTS_AT, SWIZZLE_AT = 16, 62
#: How rows are swizzled, by their bytes.
SWIZZLES = {128: 1, 64: 2, 32: 3}


def _descriptor(context, builder, tile_type, tile, index_type, index, trans):
    """Where a tile lies and how, as `wgmma` wants it: all but the address is constant where the tile's shape is."""
    base, struct = _base(context, builder, tile_type, tile)
    strides = [builder.trunc(s, WORD) for s in cgutils.unpack_tuple(builder, struct.strides)]
    row = strides[-2]
    rows = builder.shl(row, _word(3))
    parts = strides[-3] if len(strides) > 2 else _word(16)
    swizzle = _word(0)
    for nbytes, code in SWIZZLES.items():
        swizzle = builder.select(builder.icmp_unsigned("==", row, _word(nbytes)), _word(code), swizzle)
    if trans:  # without a swizzle the two distances change places
        plain = builder.icmp_unsigned("==", swizzle, _word(0))
        rows, parts = builder.select(plain, parts, rows), builder.select(plain, rows, parts)
    # In units of 16 bytes: what does not change in a loop is one number, to which each product adds its own.
    start = builder.lshr(builder.and_(base, _word(0x3FFFF)), _word(4))
    low = builder.add(start, builder.shl(builder.lshr(parts, _word(4)), _word(PARTS_AT)))
    low = builder.add(low, _offset(context, builder, struct, index_type, index, units=4))
    high = builder.or_(builder.lshr(rows, _word(4)), builder.shl(swizzle, _word(SWIZZLE_AT - 32)))
    total = builder.shl(builder.zext(high, LONG), ir.Constant(LONG, 32))
    return builder.or_(total, builder.zext(low, LONG))


@_lower(functions.wgmma, *[types.Any] * 8)
def _multiply_tiles(context, builder, signature, arguments):
    sums_type, a_type, a_index_type, b_type, b_index_type, trans_a, trans_b, add_type = signature.args
    sums, a, a_index, b, b_index, _, _, add = arguments
    name, depth, total = OPERANDS[b_type.dtype]
    sums, trans_a, trans_b = cgutils.unpack_tuple(builder, sums), _literal(trans_a), _literal(trans_b)
    count = len(sums)
    if isinstance(a_type, types.Array):
        left = [_descriptor(context, builder, a_type, a, a_index_type, a_index, trans_a)]
    else:
        held = cgutils.unpack_tuple(builder, a)
        kind = {types.float16: "f16", types.float32: "tf32"}.get(a_type.dtype, "words")
        left = pack_words(builder, held, kind)
    right = _descriptor(context, builder, b_type, b, b_index_type, b_index, trans_b)
    add = _word(int(add_type.value)) if isinstance(add_type, types.Omitted) else builder.zext(add, WORD)
    names = iter(f"${i}" for i in range(2 * count, 2 * count + len(left) + 2))
    first = ", ".join(next(names) for _ in left)
    first = first if len(left) == 1 else f"{{{first}}}"
    result = "s32" if total == types.int32 else "f32"
    flags = "" if total == types.int32 else ", 1, 1"
    if b_type.dtype.bitwidth == 16:
        flags += f", {int(trans_a)}, {int(trans_b)}" if len(left) == 1 else f", {int(trans_b)}"
    outputs = ", ".join(f"${i}" for i in range(count))
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{2 * count}k{depth}.{result}.{name}.{name} {{{outputs}}}, {first}, "
        f"{next(names)}, add{flags};"
    )
    text = f"{{ .reg .pred add; setp.ne.b32 add, {next(names)}, 0; {text} }}"
    letter = LETTERS[total]
    letters = ["l"] if len(left) == 1 else ["r"] * 4
    constraints = [f"={letter}"] * count + [str(i) for i in range(count)] + letters + ["l", "r"]
    return _tied(context, builder, text, constraints, [*sums, *left, right, add], signature)


def _tied(context, builder, text, constraints, operands, signature):
    """Emit an instruction that changes a tuple's registers in place; return the tuple."""
    count = len(signature.return_type)
    kind = ir.LiteralStructType([operands[0].type] * count)
    found = emit(builder, text, ",".join(constraints), operands, kind)
    return context.make_tuple(builder, signature.return_type, [builder.extract_value(found, i) for i in range(count)])


@_lower(functions.wgmma_wait, types.Any, types.UniTuple)
def _wait_products(context, builder, signature, arguments):
    sums = cgutils.unpack_tuple(builder, arguments[1])
    letter = LETTERS[signature.return_type.dtype]
    constraints = [f"={letter}"] * len(sums) + [str(i) for i in range(len(sums))]
    text = f"wgmma.wait_group.sync.aligned {_literal(signature.args[0])};"
    return _tied(context, builder, text, constraints, sums, signature)


# -- words that order others -----------------------------------------------------------------------


def _as_word(builder, value, bits):
    return builder.bitcast(value, ir.IntType(bits))


@_lower(functions.load_acquire, types.Array, types.Any)
def _load_acquire(context, builder, signature, arguments):
    pointer = _pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
    bits = signature.return_type.bitwidth
    letter = "r" if bits == 32 else "l"
    address = builder.ptrtoint(pointer, LONG)
    found = emit(builder, f"ld.acquire.gpu.b{bits} $0, [$1];", f"={letter},l", [address], ir.IntType(bits))
    return builder.bitcast(found, context.get_value_type(signature.return_type))


@_lower(functions.store_release, types.Array, types.Any, types.Any)
def _store_release(context, builder, signature, arguments):
    pointer = _pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
    bits = signature.args[0].dtype.bitwidth
    word = _as_word(builder, arguments[2], bits)
    letter = "r" if bits == 32 else "l"
    emit(builder, f"st.release.gpu.b{bits} [$0], $1;", f"l,{letter}", [builder.ptrtoint(pointer, LONG), word])


@_lower(functions.inc_acq_rel, types.Array, types.Any, types.Any)
def _inc_acq_rel(context, builder, signature, arguments):
    pointer = _pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
    operands = [builder.ptrtoint(pointer, LONG), arguments[2]]
    return emit(builder, "atom.acq_rel.gpu.inc.u32 $0, [$1], $2;", "=r,l,r", operands, ir.IntType(32))
