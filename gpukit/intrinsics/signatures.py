"""The types that the functions take and return, the same on a GPU and on the emulator."""

import inspect

from gpukit._numba import AbstractTemplate, ConcreteTemplate, NumbaTypeError, cudadecl, signature
from gpukit.backend import types
from gpukit.intrinsics import functions

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


def _load_type(function, count):
    @cudadecl.registry.register_global(function)
    class Load(AbstractTemplate):
        def generic(self, args, kws):
            array, index = _bind(function, args, kws)
            _check(function.__name__, count, array, index)
            item = types.int32 if count > 4 and array.dtype.bitwidth == 8 else array.dtype
            typed = signature(types.UniTuple(item, count), array, index)
            return typed.replace(pysig=inspect.signature(function))


def _store_type(function, count):
    @cudadecl.registry.register_global(function)
    class Store(AbstractTemplate):
        def generic(self, args, kws):
            array, index, *values = _bind(function, args, kws)
            _check(function.__name__, count, array, index)
            if not all(isinstance(value, types.Number | types.Boolean) for value in values):
                shown = ", ".join(map(str, values))
                raise NumbaTypeError(f"{function.__name__}: the values are {shown}; they must be numbers")
            typed = signature(types.void, array, index, *[array.dtype] * count)
            return typed.replace(pysig=inspect.signature(function))


def _bind(function, args, kws):
    """Sort argument types into the order of the parameters."""
    return inspect.signature(function).bind(*args, **kws).args


for _function, _count in ((functions.load2, 2), (functions.load4, 4), (functions.load8, 8), (functions.load16, 16)):
    _load_type(_function, _count)
for _function, _count in ((functions.store2, 2), (functions.store4, 4)):
    _store_type(_function, _count)


#: How many elements each copies.
COPIES = {functions.copy_async: 1, functions.copy_async2: 2, functions.copy_async4: 4}


def _copy_type(function, count):
    @cudadecl.registry.register_global(function)
    class Copy(AbstractTemplate):
        def generic(self, args, kws):
            bound = inspect.signature(function).bind(*args, **kws)
            target, index, source, source_index, *guard = bound.args
            _check_copy(function.__name__, count, target, source)
            _check(function.__name__, count, target, index, "target", "index")
            _check(function.__name__, count, source, source_index, "source", "source_index")
            if guard and not isinstance(guard[0], types.Boolean | types.Integer):
                raise NumbaTypeError(f"{function.__name__}: guard is {guard[0]}; it must be a bool")
            guard = types.boolean if guard else types.Omitted(True)
            typed = signature(types.void, target, index, source, source_index, guard)
            return typed.replace(pysig=inspect.signature(function))


def _check_copy(name, count, target, source):
    if isinstance(target, types.Array) and isinstance(source, types.Array):
        size = count * target.dtype.bitwidth // 8 if hasattr(target.dtype, "bitwidth") else 0
        if target.dtype != source.dtype:
            raise NumbaTypeError(f"{name}: target holds {target.dtype} and source {source.dtype}; they must be alike")
        if size not in COPY_WIDTHS:
            raise NumbaTypeError(f"{name}: {count} of {target.dtype} are no copy of 4, 8 or 16 bytes")


for _function, _count in COPIES.items():
    _copy_type(_function, _count)


@cudadecl.registry.register_global(functions.commit_copies)
class _Commit(AbstractTemplate):
    def generic(self, args, kws):
        return signature(types.void) if not args and not kws else None


@cudadecl.registry.register_global(functions.wait_copies)
class _Wait(AbstractTemplate):
    prefer_literal = True

    def generic(self, args, kws):
        (most,) = _bind(functions.wait_copies, args, kws)
        if not isinstance(most, types.IntegerLiteral) or most.literal_value < 0:
            raise NumbaTypeError(f"wait_copies: most is {most}; it must be a constant, 0 or more")
        return signature(types.void, most).replace(pysig=inspect.signature(functions.wait_copies))


#: Functions that read a special register: its name, the size of a value in bits, and whether it changes as time passes.
REGISTERS = {
    functions.clock64: ("clock64", 64, True),
    functions.globaltimer: ("globaltimer", 64, True),
    functions.smid: ("smid", 32, False),
}


def _register_type(function, bits):
    @cudadecl.registry.register_global(function)
    class Read(ConcreteTemplate):
        key = function
        cases = (signature(types.int64 if bits == 64 else types.int32),)


for _function, (_, _bits, _) in REGISTERS.items():
    _register_type(_function, _bits)


#: Functions of three uint32 that are one instruction.
THREE_WORDS = {
    functions.byte_perm: "prmt.b32",
    functions.dp2a_lo: "dp2a.lo.u32.u32",
    functions.dp2a_hi: "dp2a.hi.u32.u32",
}


def _three_words_type(function):
    @cudadecl.registry.register_global(function)
    class OfThree(ConcreteTemplate):
        key = function
        cases = (signature(*[types.uint32] * 4),)


for _function in THREE_WORDS:
    _three_words_type(_function)


@cudadecl.registry.register_global(functions.dp4a)
class _Dot(ConcreteTemplate):
    key = functions.dp4a
    cases = tuple(signature(*[number] * 4) for number in (types.int32, types.uint32))
