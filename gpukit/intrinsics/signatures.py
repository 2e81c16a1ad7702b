"""The types that the functions take and return, the same on a GPU and on the emulator."""

import inspect

from gpukit._numba import AbstractTemplate, ConcreteTemplate, NumbaTypeError, cudadecl, signature, target_capability
from gpukit.backend import types
from gpukit.intrinsics import functions

#: How many elements each loads, stores or copies.
LOADS = {functions.load2: 2, functions.load4: 4, functions.load8: 8, functions.load16: 16}
STORES = {functions.store2: 2, functions.store4: 4}
COPIES = {
    functions.copy_async: 1,
    functions.copy_async2: 2,
    functions.copy_async4: 4,
    functions.copy_async8: 8,
    functions.copy_async16: 16,
}
#: Functions that read a special register: its name, the size of a value in bits, and whether it changes as time passes.
REGISTERS = {
    functions.clock64: ("clock64", 64, True),
    functions.globaltimer: ("globaltimer", 64, True),
    functions.smid: ("smid", 32, False),
}
#: Functions of three words of one type that are one instruction, by that type.
THREE_WORDS = {
    functions.byte_perm: {types.uint32: "prmt.b32"},
    functions.dp2a_lo: {types.uint32: "dp2a.lo.u32.u32"},
    functions.dp2a_hi: {types.uint32: "dp2a.hi.u32.u32"},
    functions.dp4a: {types.int32: "dp4a.s32.s32", types.uint32: "dp4a.u32.u32"},
}
#: Products of tensor cores: by the type of a lane's elements of a and b, and that of c; by how many of each it holds:
#: rows, columns and K. The names are those of PTX.
PRODUCTS = {
    (types.float64, types.float64): (
        "f64",
        {(8, 4, 4): (16, 8, 16), (4, 2, 4): (16, 8, 8), (2, 1, 4): (16, 8, 4), (1, 1, 2): (8, 8, 4)},
    ),
    (types.float32, types.float32): ("tf32", {(4, 2, 4): (16, 8, 8), (2, 1, 4): (16, 8, 4)}),
    (types.float16, types.float32): ("f16", {(8, 4, 4): (16, 8, 16), (4, 2, 4): (16, 8, 8)}),
    (types.uint32, types.float32): ("bf16", {(4, 2, 4): (16, 8, 16), (2, 1, 4): (16, 8, 8)}),
    (types.int32, types.int32): ("s8", {(4, 2, 4): (16, 8, 32), (2, 1, 4): (16, 8, 16)}),
}
#: As what a trace counts the operations of a product, by its name in PTX.
TENSOR_KINDS = {
    "f64": "tensor_fp64",
    "tf32": "tensor_tf32",
    "f16": "tensor_fp16",
    "bf16": "tensor_fp16",
    "s8": "tensor_int8",
    "u8": "tensor_int8",
}
#: Bytes of one access that the hardware knows.
WIDTHS = (2, 4, 8, 16)
#: Bytes of one asynchronous copy.
COPY_WIDTHS = (4, 8, 16)


def _check(name, count, array, index, array_name="array", index_name="index"):
    """Raise NumbaTypeError if the types are not those of a wide access."""
    if not isinstance(array, types.Array) or array.layout != "C":
        raise NumbaTypeError(f"{name}: {array_name} is {array}; it must be a C-contiguous array")
    size = array.dtype.bitwidth // 8 if isinstance(array.dtype, types.Integer | types.Float) else 0
    if size * count not in WIDTHS:
        most = f"{16 // count} bytes" if count < 16 else "1 byte"
        raise NumbaTypeError(
            f"{name}: {array_name} holds {array.dtype}; it must hold integers or floats of at most {most}, since one "
            f"access has at most 16"
        )
    parts = index.types if isinstance(index, types.BaseTuple) else (index,)
    if len(parts) != array.ndim or not all(isinstance(part, types.Integer) for part in parts):
        raise NumbaTypeError(
            f"{name}: {index_name} is {index}; it must be one integer for each of the {array_name}'s {array.ndim} axes"
        )


def _check_copy(name, count, target, source):
    if isinstance(target, types.Array) and isinstance(source, types.Array):
        size = count * target.dtype.bitwidth // 8 if hasattr(target.dtype, "bitwidth") else 0
        if target.dtype != source.dtype:
            raise NumbaTypeError(f"{name}: target holds {target.dtype} and source {source.dtype}; they must be alike")
        if size not in COPY_WIDTHS:
            raise NumbaTypeError(f"{name}: {count} of {target.dtype} are no copy of 4, 8 or 16 bytes")


def _load_types(name, count, array, index, once):
    array, index = types.unliteral(array), types.unliteral(index)
    _check(name, count, array, index)
    if not isinstance(once, types.Omitted | types.BooleanLiteral):
        raise NumbaTypeError(f"{name}: once is {once}; it must be True or False, as a constant")
    item = types.int32 if count > 4 and array.dtype.bitwidth == 8 else array.dtype
    return types.UniTuple(item, count), array, index, once


def _store_types(name, count, array, index, *values):
    _check(name, count, array, index)
    if not all(isinstance(value, types.Number | types.Boolean) for value in values):
        raise NumbaTypeError(f"{name}: the values are {', '.join(map(str, values))}; they must be numbers")
    return types.void, array, index, *[array.dtype] * count


def _copy_types(name, count, target, index, source, source_index, guard):
    _check_copy(name, count, target, source)
    _check(name, count, target, index, "target", "index")
    _check(name, count, source, source_index, "source", "source_index")
    if not isinstance(guard, types.Boolean | types.Integer | types.Omitted):
        raise NumbaTypeError(f"{name}: guard is {guard}; it must be a bool")
    guard = guard if isinstance(guard, types.Omitted) else types.boolean
    return types.void, target, index, source, source_index, guard


def flag_type(name, parameter, kind):
    """The type of an argument that is a bool, or left out."""
    if not isinstance(kind, types.Boolean | types.Omitted):
        raise NumbaTypeError(f"{name}: {parameter} is {kind}; it must be a bool")
    return kind if isinstance(kind, types.Omitted) else types.boolean


def _wait_types(name, count, most):
    if not isinstance(most, types.IntegerLiteral) or most.literal_value < 0:
        raise NumbaTypeError(f"{name}: most is {most}; it must be a constant, 0 or more")
    return types.void, most


def _product_types(name, count, a, b, c, dtype):
    operands, halves = (a, b, c), getattr(dtype, "dtype", None) == types.float16
    if not halves and not isinstance(dtype, types.Omitted):
        raise NumbaTypeError(f"{name}: dtype is {dtype}; it must be float16, or left out")
    counts = tuple(len(operand) if isinstance(operand, types.UniTuple) else 0 for operand in operands)
    held = [operand.dtype if isinstance(operand, types.UniTuple) else None for operand in operands]
    kind, sizes = PRODUCTS.get((held[0], held[2]), ("", {})) if held[0] == held[1] else ("", {})
    if counts not in sizes:
        meant = [pair for pair in PRODUCTS if pair[0] in held[:2]]
        allowed = "; ".join(
            f"{left} and {total}: " + ", or ".join(f"{a}, {b} and {c}" for a, b, c in PRODUCTS[left, total][1])
            for left, total in meant or PRODUCTS
        )
        found = ", ".join(map(str, operands))
        raise NumbaTypeError(f"{name}: a, b and c are {found}; they must be tuples of one of these ({allowed})")
    if halves and held[0] != types.uint32:
        raise NumbaTypeError(f"{name}: dtype is {dtype}, and a is {a}; it must be a tuple of uint32 then")
    kind, (rows, _, depth) = "f16" if halves else kind, sizes[counts[0], counts[1], counts[2]]
    needed = {("f64", 16): (9, 0), ("f16", 8): (7, 5)}.get((kind, rows if kind == "f64" else depth), (8, 0))
    check_capability(f"{name} of {held[0]} with {rows} rows and K = {depth}", needed)
    return c, *operands, dtype


def check_capability(name, needed):
    """Raise NumbaTypeError if what the kernel is compiled for is older than an instruction."""
    found = target_capability()
    if found is not None and found < needed:
        raise NumbaTypeError(
            "{} needs compute capability {}.{}, and the device has {}.{}".format(name, *needed, *found)
        )


def register(function, count, types_of, literals=False):
    """Register a function of ``count`` elements, whose result and arguments have the types that ``types_of`` finds.

    An argument that is left out is ``Omitted``.
    """
    parameters = inspect.signature(function)

    @cudadecl.registry.register_global(function)
    class OfAny(AbstractTemplate):
        prefer_literal = literals

        def generic(self, args, kws):
            given = parameters.bind(*args, **kws).arguments
            folded = [given.get(name, types.Omitted(p.default)) for name, p in parameters.parameters.items()]
            found = types_of(function.__name__, count, *folded)
            return signature(*found).replace(pysig=parameters)


def _register_cases(function, *signatures):
    """Register a function with given types of its result and arguments."""

    @cudadecl.registry.register_global(function)
    class OfThese(ConcreteTemplate):
        key = function
        cases = signatures


for _functions, _types_of in ((LOADS, _load_types), (STORES, _store_types), (COPIES, _copy_types)):
    for _function, _count in _functions.items():
        register(_function, _count, _types_of, literals=_types_of is _load_types)
register(functions.wait_copies, 0, _wait_types, literals=True)
register(functions.mma, 0, _product_types)
for _function, (_, _bits, _) in REGISTERS.items():
    _register_cases(_function, signature(types.int64 if _bits == 64 else types.int32))
for _function, _instructions in THREE_WORDS.items():
    _register_cases(_function, *(signature(*[word] * 4) for word in _instructions))
_register_cases(functions.commit_copies, signature(types.void))
_register_cases(functions.round_to_bfloat16, signature(types.uint16, types.float32))
_register_cases(functions.match_byte, signature(types.uint32, types.uint32))
