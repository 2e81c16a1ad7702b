"""The functions on a GPU: LLVM code, and instructions of PTX."""

import functools

from llvmlite import ir

from gpukit._numba import cgutils, cudaimpl, fix_integer_index
from gpukit.backend import types
from gpukit.intrinsics.functions import (
    commit_copies,
    load2,
    load4,
    load8,
    load16,
    match_byte,
    mma,
    round_to_bfloat16,
    store2,
    store4,
    wait_copies,
)
from gpukit.intrinsics.signatures import COPIES, PRODUCTS, REGISTERS, THREE_WORDS

# -- special registers and byte instructions, in PTX ------------------------------------------------


def emit(builder, text, constraints="", operands=(), result=None, fixed=True):
    """Emit an instruction of PTX. One that is ``fixed`` is not removed, and no memory access is moved across it."""
    function = ir.FunctionType(result or ir.VoidType(), [operand.type for operand in operands])
    constraints = ",".join(filter(None, (constraints, "~{memory}" if fixed else "")))
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect=fixed), operands)


def _register_code(function, name, bits, moves):
    @cudaimpl.lower(function)
    def generate_read(context, builder, signature, arguments):
        constraint = "=l" if bits == 64 else "=r"
        return emit(builder, f"mov.u{bits} $0, %{name};", constraint, (), ir.IntType(bits), fixed=moves)


for _function, _register in REGISTERS.items():
    _register_code(_function, *_register)


def _three_words_code(function, instruction, type_):
    @cudaimpl.lower(function, *[type_] * 3)
    def generate_three_words(context, builder, signature, arguments):
        text = f"{instruction} $0, $1, $2, $3;"
        return emit(builder, text, "=r,r,r,r", arguments, ir.IntType(32), fixed=False)


for _function, _instructions in THREE_WORDS.items():
    for _type, _name in _instructions.items():
        _three_words_code(_function, _name, _type)


@cudaimpl.lower(round_to_bfloat16, types.float32)
def _generate_rounding(context, builder, signature, arguments):
    return emit(builder, "cvt.rn.bf16.f32 $0, $1;", "=h,f", arguments, ir.IntType(16), fixed=False)


@cudaimpl.lower(match_byte, types.uint32)
def _generate_match_byte(context, builder, signature, arguments):
    """For each bit, keep the lanes that vote as this one does."""
    text = "{ .reg .pred has; .reg .b32 votes; mov.b32 $0, 0xffffffff; "
    for bit in range(8):
        text += f"and.b32 votes, $1, {1 << bit}; setp.ne.u32 has, votes, 0; "
        text += "vote.sync.ballot.b32 votes, has, 0xffffffff; @!has not.b32 votes, votes; and.b32 $0, $0, votes; "
    return emit(builder, text + "}", "=&r,r", arguments, ir.IntType(32))


# -- tensor cores ----------------------------------------------------------------------------------


@cudaimpl.lower(mma, types.UniTuple, types.UniTuple, types.UniTuple, types.Any)
def _generate_product(context, builder, signature, arguments):
    left, right, total = (cgutils.unpack_tuple(builder, argument) for argument in arguments[:3])
    name, sizes = PRODUCTS[signature.args[0].dtype, signature.args[2].dtype]
    rows, columns, depth = sizes[len(left), len(right), len(total)]
    result = {"f64": "f64", "s8": "s32"}.get(name, "f32")
    parts = [pack_words(builder, left, name), pack_words(builder, right, name), total]
    if not isinstance(signature.args[3], types.Omitted):
        name = "f16"
    count, operands = len(total), [item for part in parts for item in part]
    names, groups = [f"${i}" for i in range(count + len(operands))], []
    for size in (count, *map(len, parts)):
        groups.append("{" + ", ".join(names[:size]) + "}")
        del names[:size]
    kinds = f"{result}.{name}.{name}.{result}"
    text = f"mma.sync.aligned.m{rows}n{columns}k{depth}.row.col.{kinds} {', '.join(groups)};"
    number = operands[-1].type
    function = ir.FunctionType(ir.LiteralStructType([number] * count), [operand.type for operand in operands])
    letter = {"f64": "d", "f32": "f", "s32": "r"}
    inputs = [letter["f64" if name == "f64" else "s32"]] * (len(operands) - count) + [letter[result]] * count
    constraints = ",".join([f"={letter[result]}"] * count + inputs)
    # All lanes run it together, so it must not move into a branch.
    result = builder.call(ir.InlineAsm(function, text, constraints, side_effect=True), operands)
    items = [builder.extract_value(result, i) for i in range(count)]
    return context.make_tuple(builder, signature.return_type, items)


def pack_words(builder, items, kind):
    """The registers of an operand: words, each of two float16 or of the bits of a float32; float64 as they are."""
    word = ir.IntType(32)
    if kind == "tf32":
        return [builder.bitcast(item, word) for item in items]
    if kind != "f16":
        return items
    bits = [builder.zext(builder.bitcast(item, ir.IntType(16)), word) for item in items]
    upper = [builder.shl(high, ir.Constant(word, 16)) for high in bits[1::2]]
    return [builder.or_(low, high) for low, high in zip(bits[::2], upper, strict=True)]


# -- wide accesses: a pointer to the element becomes a pointer to a vector -------------------------


def _vector_pointer(context, builder, array_type, array, index_type, index, count):
    """(pointer to a vector of ``count`` elements at an index, its alignment in bytes)."""
    index_types = index_type.types if isinstance(index_type, types.BaseTuple) else (index_type,)
    indices = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else (index,)
    struct = context.make_array(array_type)(context, builder, value=array)
    extents = cgutils.unpack_tuple(builder, struct.shape)
    # A negative index counts from the end; an unsigned one needs no test.
    indices = [fix_integer_index(context, builder, *each) for each in zip(index_types, indices, extents, strict=True)]
    pointer = cgutils.get_item_pointer(context, builder, array_type, struct, indices)
    vector = ir.VectorType(context.get_data_type(array_type.dtype), count)
    return builder.bitcast(pointer, vector.as_pointer()), array_type.dtype.bitwidth // 8 * count


def _load_vector(builder, pointer, width, once):
    """Load a vector; with ``once`` from global memory, for caches to evict first. PTX has no such short vectors."""
    if not once or width < 8:
        return builder.load(pointer, align=width)
    word, count = ir.IntType(32), width // 4
    names = ", ".join(f"${i}" for i in range(count))
    text = f"ld.global.cs.v{count}.b32 {{{names}}}, [${count}];"
    result = ir.LiteralStructType([word] * count)
    words = emit(builder, text, "=r," * count + "l", [builder.ptrtoint(pointer, ir.IntType(64))], result)
    vector = ir.Constant(ir.VectorType(word, count), ir.Undefined)
    for i in range(count):
        vector = builder.insert_element(vector, builder.extract_value(words, i), ir.Constant(word, i))
    return builder.bitcast(vector, pointer.type.pointee)


def _load_words(builder, pointer, width, signed, once):
    """Load a vector of short elements as words: PTX has no vectors of more than four elements."""
    word, item = ir.IntType(32), pointer.type.pointee.element
    size = width // pointer.type.pointee.count
    words = _load_vector(builder, builder.bitcast(pointer, ir.VectorType(word, width // 4).as_pointer()), width, once)
    items = []
    for i in range(width // 4):
        held = builder.extract_element(words, ir.Constant(word, i))
        for place in range(0, 4, size):
            if size == 1:
                items.append(_byte(builder, held, place, signed))
            else:
                part = builder.trunc(builder.lshr(held, ir.Constant(word, 8 * place)), ir.IntType(16))
                items.append(builder.bitcast(part, item))
    return items


def _byte(builder, word, place, signed):
    """Extract a byte of a word as a word. Each digit of ``chosen`` selects a byte; 8 more its sign, and 4 a zero."""
    chosen = 0x1110 * (8 + place if signed else 4) + place
    return emit(builder, f"prmt.b32 $0, $1, 0, {chosen};", "=r,r", [word], word.type, fixed=False)


@cudaimpl.lower(load2, types.Array, types.Any, types.Any)
@cudaimpl.lower(load4, types.Array, types.Any, types.Any)
@cudaimpl.lower(load8, types.Array, types.Any, types.Any)
@cudaimpl.lower(load16, types.Array, types.Any, types.Any)
def _generate_load(context, builder, signature, arguments):
    array_type, index_type, once = signature.args
    count = len(signature.return_type)
    pointer, width = _vector_pointer(context, builder, array_type, arguments[0], index_type, arguments[1], count)
    is_once = getattr(once, "literal_value", False)
    if count > 4:
        items = _load_words(builder, pointer, width, getattr(array_type.dtype, "signed", True), is_once)
    else:
        vector = _load_vector(builder, pointer, width, is_once)
        items = [builder.extract_element(vector, ir.Constant(ir.IntType(32), i)) for i in range(count)]
    return context.make_tuple(builder, signature.return_type, items)


@cudaimpl.lower(store2, types.Array, types.Any, *[types.Any] * 2)
@cudaimpl.lower(store4, types.Array, types.Any, *[types.Any] * 4)
def _generate_store(context, builder, signature, arguments):
    (array, index, *values), (array_type, index_type, *_) = arguments, signature.args
    pointer, width = _vector_pointer(context, builder, array_type, array, index_type, index, len(values))
    vector = ir.Constant(pointer.type.pointee, ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.Constant(ir.IntType(32), i))
    builder.store(vector, pointer, align=width)
    return context.get_dummy_value()


#: The address space of shared memory in LLVM.
SHARED = 3
#: Policies of the L2 cache, as `createpolicy` makes them: which lines it evicts first.
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000


def cache_policy(builder, once):
    """The policy for what is read once, or more often."""
    word = ir.IntType(64)
    return builder.select(once, ir.Constant(word, EVICT_FIRST), ir.Constant(word, EVICT_NORMAL))


def _generate_copy(count, context, builder, signature, arguments):
    target_type, target_index_type, source_type, source_index_type, guard_type = signature.args
    target, target_index, source, source_index, guard = arguments
    target, width = _vector_pointer(context, builder, target_type, target, target_index_type, target_index, count)
    source, _ = _vector_pointer(context, builder, source_type, source, source_index_type, source_index, count)
    number, address = ir.IntType(32), ir.IntType(64)
    # The instruction takes the address within shared memory, of 32 bits.
    target = builder.ptrtoint(builder.addrspacecast(target, ir.PointerType(target.type.pointee, SHARED)), number)
    operands = [target, builder.ptrtoint(source, address)]
    cache = "cg" if width == 16 else "ca"
    text = f"cp.async.{cache}.shared.global [$0], [$1], {width}"
    if isinstance(guard_type, types.Omitted):
        emit(builder, f"{text};", "r,l", operands)
    else:
        operands.append(builder.zext(guard, number))
        emit(builder, f"{{ .reg .pred skip; setp.eq.u32 skip, $2, 0; {text}, skip; }}", "r,l,r", operands)
    return context.get_dummy_value()


for _function, _count in COPIES.items():
    for _guard in (types.Omitted, types.boolean):
        _lower = cudaimpl.lower(_function, types.Array, types.Any, types.Array, types.Any, _guard)
        _lower(functools.partial(_generate_copy, _count))


@cudaimpl.lower(commit_copies)
def _generate_commit(context, builder, signature, arguments):
    emit(builder, "cp.async.commit_group;")
    return context.get_dummy_value()


@cudaimpl.lower(wait_copies, types.IntegerLiteral)
def _generate_wait(context, builder, signature, arguments):
    emit(builder, f"cp.async.wait_group {signature.args[0].literal_value};")
    return context.get_dummy_value()
