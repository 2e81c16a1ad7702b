"""What plain ``numba.cuda`` lacks: several neighbouring elements in one access, asynchronous copies, clocks, and much
dynamic shared memory.

Everything in gpukit that is not plain ``numba.cuda`` is in this module. A function for kernels has four parts here, and
a new one needs them too: the function itself with its docstring, which outside of a kernel only says that it is for
kernels; its type, by which Numba knows what a call gives and refuses what cannot be; the code for a GPU, LLVM's or an
instruction of PTX; and what it does on the emulator. `commit_copies` is the shortest to begin with.
"""

import functools
import inspect

from llvmlite import ir
from numba.cuda import cgutils, cudadecl, cudaimpl, types
from numba.cuda.core.errors import NumbaTypeError
from numba.cuda.np.arrayobj import fix_integer_index
from numba.cuda.typing import signature
from numba.cuda.typing.templates import AbstractTemplate, ConcreteTemplate

from warpstep import LaunchError
from warpstep.checks import check_int
from warpstep.compiler import calls, ops
from warpstep.compiler.expressions import Op
from warpstep.compiler.values import counted
from warpstep.launch import Kernel

#: Bytes of one access that the hardware knows.
WIDTHS = (2, 4, 8, 16)
#: Bytes of one asynchronous copy.
COPY_WIDTHS = (4, 8, 16)


def _of_a_kernel(name):
    raise TypeError(f"{name} is for kernels and device functions: call it from a function under cuda.jit")


def load2(array, index):
    """Load two neighbouring elements in one access; for kernels and device functions.

    Parameters
    ----------
    array : C-contiguous array
        Of integers or floats of up to 8 bytes, in global or shared memory.
    index : int, or tuple of int
        Of the first element. Its address must be a multiple of the access's width, twice the size of an element: the
        GPU stops with a misaligned address otherwise. The two elements must lie in the array.

    Returns
    -------
    tuple of 2
        The elements, of the array's dtype.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: the array or the index is none of the above.
    """
    _of_a_kernel("load2")


def load4(array, index):
    """Load four neighbouring elements in one access: `load2` of twice as many, of up to 4 bytes each.

    For float32 that is 128 bits, the widest access there is: a quarter of the instructions of four plain loads.
    """
    _of_a_kernel("load4")


def load8(array, index):
    """Load eight neighbouring elements in one access: `load2` of four times as many, of up to 2 bytes each.

    Elements of 1 byte come as int32, which is how registers hold them: one instruction takes a byte out of a word.
    """
    _of_a_kernel("load8")


def load16(array, index):
    """Load sixteen neighbouring elements in one access: `load2` of eight times as many, of 1 byte each, as int32."""
    _of_a_kernel("load16")


def store2(array, index, a, b):
    """Store two neighbouring elements in one access; ``array`` and ``index`` as for `load2`.

    The values are converted to the array's dtype.
    """
    _of_a_kernel("store2")


def store4(array, index, a, b, c, d):
    """Store four neighbouring elements in one access: `store2` of twice as many, of up to 4 bytes each."""
    _of_a_kernel("store4")


def copy_async(target, index, source, source_index, guard=True):
    """Begin to copy an element from global to shared memory, and go on at once; for kernels and device functions.

    The element goes past the registers of the thread. It is there when the thread that began the copy has waited for
    it by `wait_copies`; for the other threads of the block, after a barrier that follows this wait. Until then nobody
    may read or write it there.

    Parameters
    ----------
    target : C-contiguous array in shared memory
    index : int, or tuple of int
        Where the element goes. For `copy_async2` and `copy_async4` it is that of the first element, and its address a
        multiple of the bytes copied; so is that of the source.
    source : C-contiguous array in global memory, of the same dtype
        A copy has 4, 8 or 16 bytes: one element of 4 or 8 bytes, two of 2, 4 or 8, or four of 1, 2 or 4.
    source_index : int, or tuple of int
    guard : bool
        False: the source is not read, and zeros are copied. ``source_index`` may then lie outside.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: an argument is none of the above.
    """
    _of_a_kernel("copy_async")


def copy_async2(target, index, source, source_index, guard=True):
    """Begin to copy two neighbouring elements from global to shared memory, otherwise like `copy_async`."""
    _of_a_kernel("copy_async2")


def copy_async4(target, index, source, source_index, guard=True):
    """Begin to copy four neighbouring elements from global to shared memory, otherwise like `copy_async`.

    For float32 these are 16 bytes, and they go past the L1 cache too.
    """
    _of_a_kernel("copy_async4")


def commit_copies():
    """Make the copies that this thread has begun since the last call a group that it can wait for.

    A group may be empty.
    """
    _of_a_kernel("commit_copies")


def wait_copies(most):
    """Wait until at most the ``most`` youngest groups of this thread's copies are still under way.

    Parameters
    ----------
    most : literal int, 0 or more
        0 waits for all groups. The hardware takes the number as part of the instruction, so it cannot be a variable.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: ``most`` is not a constant.
    """
    _of_a_kernel("wait_copies")


def clock64():
    """Cycles that the clock of the thread's multiprocessor has counted; for kernels and device functions.

    Every call reads anew. The clocks of two multiprocessors have nothing to do with each other. On the emulator the
    counter only says what came first: it is no time.

    Returns
    -------
    int64
    """
    _of_a_kernel("clock64")


def globaltimer():
    """Nanoseconds on a clock that all multiprocessors share, and all kernels; for kernels and device functions.

    It moves in steps: of 32 ns on an H200, of about a microsecond on some other cards. Every call reads anew. On the
    emulator it is the counter of `clock64`.

    Returns
    -------
    int64
    """
    _of_a_kernel("globaltimer")


def smid():
    """Number of the multiprocessor that the thread runs on, from 0; for kernels and device functions.

    On the emulator blocks are dealt out in turn; a GPU gives the next block to whichever has room.

    Returns
    -------
    int32
    """
    _of_a_kernel("smid")


def byte_perm(low, high, selector):
    """Any four of the eight bytes of two uint32, in one instruction; for kernels and device functions.

    Parameters
    ----------
    low, high : uint32
        With bytes 0 to 3 and 4 to 7, the lowest first.
    selector : uint32
        Its four lowest hexadecimal digits say which bytes: 0x5410 puts bytes 0 and 1 of low below those of high. A
        digit with 8 added gives 8 times that byte's highest bit.

    Returns
    -------
    uint32
    """
    _of_a_kernel("byte_perm")


def dp2a_lo(pair, values, total):
    """Two products and their sum in one instruction, for compute capability 6.1 and later; for kernels and device
    functions.

    Parameters
    ----------
    pair : uint32
        Two 16-bit numbers without a sign.
    values : uint32
        Four bytes, of which the two lowest count: the lower one is multiplied with the lower number.
    total : uint32
        What is added.

    Returns
    -------
    uint32
    """
    _of_a_kernel("dp2a_lo")


def dp2a_hi(pair, values, total):
    """`dp2a_lo` with the two highest bytes of ``values``."""
    _of_a_kernel("dp2a_hi")


def dp4a(a, b, total):
    """Four products, of bytes, and their sum in one instruction, for compute capability 6.1 and later; for kernels and
    device functions.

    Parameters
    ----------
    a, b : int32 or uint32, both alike
        Four int8 or four uint8 in one number.
    total : of the same type
        What is added.

    Returns
    -------
    int32 or uint32
    """
    _of_a_kernel("dp4a")


# -- for the host ------------------------------------------------------------------------------------------------------


def allow_dynamic_shared(kernel, nbytes):
    """Let launches of a kernel ask for more dynamic shared memory than the 48 KB that any kernel may have.

    Call it once, before the launch: ``allow_dynamic_shared(kernel, nbytes)``, then
    ``kernel[grid, block, stream, nbytes](...)``. It holds for the argument types that are compiled already, on the
    current device, and for those compiled later, on the device that is current then. A kernel made by
    ``kernel.specialize`` needs a call of its own.

    Parameters
    ----------
    kernel : a kernel of ``cuda.jit``
        Of `gpukit.cuda`, or of ``numba.cuda`` where there is a GPU.
    nbytes : int
        The most that a launch may ask for, in bytes. A call with less than before changes nothing.

    Raises
    ------
    TypeError, ValueError
        If ``kernel`` is not a kernel, or ``nbytes`` is not an int of 0 or more.
    LaunchError
        If the device does not allow so much, beside the kernel's static shared memory: now, or for argument types that
        come later when they are compiled. ``gpukit.device.info().shared_memory_per_block_optin`` is what it allows.
    """
    if not hasattr(kernel, "py_func") or kernel.targetoptions.get("device"):
        raise TypeError(f"kernel is {kernel!r}; it must be a kernel made by cuda.jit")
    check_int("nbytes", nbytes, 0)
    if isinstance(kernel, Kernel):
        kernel.allow_dynamic_shared(nbytes)
        return
    from numba import cuda

    _check_optin(kernel.py_func.__name__, 0, nbytes, cuda.get_current_device())
    nbytes = max(nbytes, getattr(kernel, "dynamic_shared", 0))
    for compiled in kernel.overloads.values():
        _allow_compiled(kernel.py_func.__name__, compiled, nbytes)
    if not hasattr(kernel, "dynamic_shared"):
        add_overload = kernel.add_overload

        def add_and_allow(compiled, argument_types):
            _allow_compiled(kernel.py_func.__name__, compiled, kernel.dynamic_shared)
            add_overload(compiled, argument_types)

        # Numba calls this for every kernel that it has compiled, or found in its cache on disk.
        kernel.add_overload = add_and_allow
    kernel.dynamic_shared = nbytes


def _check_optin(name, static, nbytes, device):
    most = device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    if static + nbytes > most:
        raise LaunchError(
            f"{name}: {nbytes:,} bytes of dynamic shared memory asked for beside {static:,} static; this device "
            f"allows {most:,} together"
        )


def _allow_compiled(name, compiled, nbytes):
    """Set the driver's limit of one compiled kernel, where it is not higher already."""
    from cuda.bindings.driver import CUfunction_attribute
    from numba.cuda.cudadrv.driver import driver

    function = compiled._codelibrary.get_cufunc()
    static = function.attrs.shared
    _check_optin(name, static, nbytes, function.device)
    # Without a call of its own a kernel may have as much as is left of 48 KB; the attribute must not go below that.
    if static + nbytes > function.device.MAX_SHARED_MEMORY_PER_BLOCK:
        attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.cuKernelSetAttribute(attribute, nbytes, function.handle, function.device.id)


# -- types: the same on a GPU and on the emulator ----------------------------------------------------------------------


def _check(name, count, array, index, array_name="array", index_name="index"):
    """NumbaTypeError if the types are not those of a wide access."""
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
    """Argument types in the order of the parameters."""
    return inspect.signature(function).bind(*args, **kws).args


LOADS = {2: load2, 4: load4, 8: load8, 16: load16}
for _count, _function in LOADS.items():
    _load_type(_function, _count)
for _function, _count in ((store2, 2), (store4, 4)):
    _store_type(_function, _count)


#: How many elements each copies.
_COPIES = {copy_async: 1, copy_async2: 2, copy_async4: 4}


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


for _function, _count in _COPIES.items():
    _copy_type(_function, _count)


@cudadecl.registry.register_global(commit_copies)
class _Commit(AbstractTemplate):
    def generic(self, args, kws):
        return signature(types.void) if not args and not kws else None


@cudadecl.registry.register_global(wait_copies)
class _Wait(AbstractTemplate):
    prefer_literal = True

    def generic(self, args, kws):
        (most,) = _bind(wait_copies, args, kws)
        if not isinstance(most, types.IntegerLiteral) or most.literal_value < 0:
            raise NumbaTypeError(f"wait_copies: most is {most}; it must be a constant, 0 or more")
        return signature(types.void, most).replace(pysig=inspect.signature(wait_copies))


#: Functions that read a special register: its name, the size of a value in bits, and whether it changes as time passes.
_REGISTERS = {clock64: ("clock64", 64, True), globaltimer: ("globaltimer", 64, True), smid: ("smid", 32, False)}


def _register_type(function, bits):
    @cudadecl.registry.register_global(function)
    class Read(ConcreteTemplate):
        key = function
        cases = (signature(types.int64 if bits == 64 else types.int32),)


for _function, (_, _bits, _) in _REGISTERS.items():
    _register_type(_function, _bits)


#: Functions of three uint32 that are one instruction.
_OF_THREE = {byte_perm: "prmt.b32", dp2a_lo: "dp2a.lo.u32.u32", dp2a_hi: "dp2a.hi.u32.u32"}


def _of_three_type(function):
    @cudadecl.registry.register_global(function)
    class OfThree(ConcreteTemplate):
        key = function
        cases = (signature(*[types.uint32] * 4),)


for _function in _OF_THREE:
    _of_three_type(_function)


@cudadecl.registry.register_global(dp4a)
class _Dot(ConcreteTemplate):
    key = dp4a
    cases = tuple(signature(*[number] * 4) for number in (types.int32, types.uint32))


# -- on a GPU: special registers, read in PTX --------------------------------------------------------------------------


def _register_code(function, name, bits, moves):
    @cudaimpl.lower(function)
    def generate_read(context, builder, signature, arguments):
        asm_type = ir.FunctionType(ir.IntType(bits), [])
        # A clock is read where it stands in the source: no access to memory is moved from one side to the other.
        constraint = ("=l" if bits == 64 else "=r") + (",~{memory}" if moves else "")
        asm = ir.InlineAsm(asm_type, f"mov.u{bits} $0, %{name};", constraint, side_effect=moves)
        return builder.call(asm, [])


for _function, _register in _REGISTERS.items():
    _register_code(_function, *_register)


def _of_three_code(function, instruction, type_):
    @cudaimpl.lower(function, *[type_] * 3)
    def generate_of_three(context, builder, signature, arguments):
        number = ir.IntType(32)
        asm_type = ir.FunctionType(number, [number] * 3)
        return builder.call(ir.InlineAsm(asm_type, f"{instruction} $0, $1, $2, $3;", "=r,r,r,r"), arguments)


for _function, _instruction in _OF_THREE.items():
    _of_three_code(_function, _instruction, types.uint32)
_of_three_code(dp4a, "dp4a.s32.s32", types.int32)
_of_three_code(dp4a, "dp4a.u32.u32", types.uint32)


# -- on a GPU: a pointer to the element becomes a pointer to a vector --------------------------------------------------


def _vector_pointer(context, builder, array_type, array, index_type, index, count):
    """(pointer to a vector of ``count`` elements at an index, its alignment in bytes)."""
    index_types = index_type.types if isinstance(index_type, types.BaseTuple) else (index_type,)
    indices = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else (index,)
    struct = context.make_array(array_type)(context, builder, value=array)
    extents = cgutils.unpack_tuple(builder, struct.shape)
    # A negative index counts from the end; one without a sign needs no look.
    indices = [fix_integer_index(context, builder, *each) for each in zip(index_types, indices, extents, strict=True)]
    pointer = cgutils.get_item_pointer(context, builder, array_type, struct, indices)
    vector = ir.VectorType(context.get_data_type(array_type.dtype), count)
    return builder.bitcast(pointer, vector.as_pointer()), array_type.dtype.bitwidth // 8 * count


def _load_words(builder, pointer, width, signed):
    """The elements of a vector of short elements. PTX has no vectors of more than four, so words are loaded."""
    word, item = ir.IntType(32), pointer.type.pointee.element
    size = width // pointer.type.pointee.count
    words = builder.load(builder.bitcast(pointer, ir.VectorType(word, width // 4).as_pointer()), align=width)
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
    """A byte of a word as a word: each digit of ``chosen`` says which byte goes where, 8 more that its sign does, and 4
    is a zero.
    """
    chosen = 0x1110 * (8 + place if signed else 4) + place
    function = ir.FunctionType(word.type, [word.type])
    return builder.call(ir.InlineAsm(function, f"prmt.b32 $0, $1, 0, {chosen};", "=r,r"), [word])


@cudaimpl.lower(load2, types.Array, types.Any)
@cudaimpl.lower(load4, types.Array, types.Any)
@cudaimpl.lower(load8, types.Array, types.Any)
@cudaimpl.lower(load16, types.Array, types.Any)
def _generate_load(context, builder, signature, arguments):
    array_type, index_type = signature.args
    count = len(signature.return_type)
    pointer, width = _vector_pointer(context, builder, array_type, arguments[0], index_type, arguments[1], count)
    if count > 4:
        items = _load_words(builder, pointer, width, getattr(array_type.dtype, "signed", True))
    else:
        vector = builder.load(pointer, align=width)
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


#: The number of the address space of shared memory.
SHARED = 3


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
        _assembly(builder, f"{text};", "r,l", operands)
    else:
        operands.append(builder.zext(guard, number))
        _assembly(builder, f"{{ .reg .pred skip; setp.eq.u32 skip, $2, 0; {text}, skip; }}", "r,l,r", operands)
    return context.get_dummy_value()


def _assembly(builder, text, constraints="", operands=()):
    """One instruction of PTX that gives nothing back, and that no access to memory is moved across."""
    function = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
    constraints = ",".join(filter(None, (constraints, "~{memory}")))
    builder.call(ir.InlineAsm(function, text, constraints, side_effect=True), operands)


for _function, _count in _COPIES.items():
    for _guard in (types.Omitted, types.boolean):
        _lower = cudaimpl.lower(_function, types.Array, types.Any, types.Array, types.Any, _guard)
        _lower(functools.partial(_generate_copy, _count))


@cudaimpl.lower(commit_copies)
def _generate_commit(context, builder, signature, arguments):
    _assembly(builder, "cp.async.commit_group;")
    return context.get_dummy_value()


@cudaimpl.lower(wait_copies, types.IntegerLiteral)
def _generate_wait(context, builder, signature, arguments):
    _assembly(builder, f"cp.async.wait_group {signature.args[0].literal_value};")
    return context.get_dummy_value()


# -- on the emulator ---------------------------------------------------------------------------------------------------


@calls.entry(clock64, globaltimer)
def _emulate_clock(t, call):
    return Op("K.read_clock()", ops.ACTION)(), call.result


@calls.entry(smid)
def _emulate_smid(t, call):
    return Op("K.smid()", ops.STATE)(), call.result


@calls.entry(byte_perm)
def _emulate_byte_perm(t, call):
    values = [t.value(argument, types.uint32) for argument in call.arguments]
    return counted(Op("byte_perm")(*values), types.uint32), call.result


@calls.entry(dp2a_lo, dp2a_hi)
def _emulate_dot_pair(t, call):
    values = [t.value(argument, types.uint32) for argument in call.arguments]
    return counted(Op("dot_pair")(*values, 0 if call.key is dp2a_lo else 2), types.uint32), call.result


@calls.entry(dp4a)
def _emulate_dot(t, call):
    values = [t.value(argument, call.result) for argument in call.arguments]
    return counted(Op("dot_bytes")(*values), call.result), call.result


@calls.entry(load2, load4, load8, load16)
def _emulate_load(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "load")
    load = ops.LOAD_WIDE(t.value(call.arguments[0]), index, len(call.result), site)
    if call.result.dtype != call.types[0].dtype:
        load = Op("tuple(value.astype(np.int32) for value in {})")(load)
    return load, call.result


@calls.entry(store2, store4)
def _emulate_store(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "store")
    values = ops.TUPLE(*(t.value(value, call.types[0].dtype) for value in call.arguments[2:]))
    t.b.emit(ops.STORE_WIDE(t.value(call.arguments[0]), index, values, site))


_BEGIN_COPY = Op("M.begin_copy({}, {}, {}, {}, {}, {}, m, {}, {})", ops.ACTION)


@calls.entry(*_COPIES)
def _emulate_copy(t, call):
    target, index, source, source_index, *guard = call.arguments
    places = [t.site(target.unversioned_name, "store"), t.site(source.unversioned_name, "load")]
    index, source_index = (t.index(i, at)[0] for i, at in ((index, call.types[0]), (source_index, call.types[2])))
    guard = None if isinstance(call.types[4], types.Omitted) else t.value(guard[0], types.boolean)
    arrays = t.value(target), t.value(source)
    t.b.emit(_BEGIN_COPY(arrays[0], index, arrays[1], source_index, _COPIES[call.key], guard, *places))


@calls.entry(commit_copies)
def _emulate_commit(t, call):
    t.b.emit(Op("M.commit_copies(m)", ops.ACTION)())


@calls.entry(wait_copies)
def _emulate_wait(t, call):
    t.b.emit(Op("M.wait_copies({}, m)", ops.ACTION)(call.types[0].literal_value))
