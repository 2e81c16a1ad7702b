"""What plain ``numba.cuda`` lacks: several neighbouring elements in one access, clocks, much dynamic shared memory.

Everything in gpukit that is not plain ``numba.cuda`` is in this module.
"""

import inspect

from llvmlite import ir
from numba.cuda import cgutils, cudadecl, cudaimpl, types
from numba.cuda.api_util import normalize_indices
from numba.cuda.core.errors import NumbaTypeError
from numba.cuda.typing import signature
from numba.cuda.typing.templates import AbstractTemplate, ConcreteTemplate

from gpukit.checks import whole
from gpukit.emulator import LaunchError, calls
from gpukit.emulator.launch import Kernel

#: Bytes of one access that the hardware knows.
WIDTHS = (2, 4, 8, 16)


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


def store2(array, index, a, b):
    """Store two neighbouring elements in one access; ``array`` and ``index`` as for `load2`.

    The values are converted to the array's dtype.
    """
    _of_a_kernel("store2")


def store4(array, index, a, b, c, d):
    """Store four neighbouring elements in one access: `store2` of twice as many, of up to 4 bytes each."""
    _of_a_kernel("store4")


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
    whole("nbytes", nbytes, 0)
    if isinstance(kernel, Kernel):
        kernel.allow_dynamic_shared(nbytes)
        return
    nbytes = max(nbytes, getattr(kernel, "dynamic_shared", 0))
    for compiled in kernel.overloads.values():
        _allow_compiled(compiled, nbytes)
    if not hasattr(kernel, "dynamic_shared"):
        add_overload = kernel.add_overload

        def add_and_allow(compiled, argument_types):
            _allow_compiled(compiled, kernel.dynamic_shared)
            add_overload(compiled, argument_types)

        # Numba calls this for every kernel that it has compiled, or found in its cache on disk.
        kernel.add_overload = add_and_allow
    kernel.dynamic_shared = nbytes


def _allow_compiled(compiled, nbytes):
    """Set the driver's limit of one compiled kernel, where it is not higher already."""
    from cuda.bindings.driver import CUfunction_attribute
    from numba.cuda.cudadrv.driver import driver

    function = compiled._codelibrary.get_cufunc()
    static, most = function.attrs.shared, function.device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    if static + nbytes > most:
        raise LaunchError(
            f"{compiled.py_func.__name__}: {nbytes:,} bytes of dynamic shared memory asked for beside {static:,} "
            f"static; this device allows {most:,} together"
        )
    # Without a call of its own a kernel may have as much as is left of 48 KB; the attribute must not go below that.
    if static + nbytes > function.device.MAX_SHARED_MEMORY_PER_BLOCK:
        attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.cuKernelSetAttribute(attribute, nbytes, function.handle, function.device.id)


# -- types: the same on a GPU and on the emulator ----------------------------------------------------------------------


def _check(name, count, array, index):
    """NumbaTypeError if the types are not those of a wide access."""
    if not isinstance(array, types.Array) or array.layout != "C":
        raise NumbaTypeError(f"{name}: array is {array}; it must be a C-contiguous array")
    size = array.dtype.bitwidth // 8 if isinstance(array.dtype, types.Integer | types.Float) else 0
    if size * count not in WIDTHS:
        raise NumbaTypeError(
            f"{name}: array holds {array.dtype}; it must hold integers or floats of at most {16 // count} bytes, since "
            f"one access has at most 16"
        )
    parts = index.types if isinstance(index, types.BaseTuple) else (index,)
    if len(parts) != array.ndim or not all(isinstance(part, types.Integer) for part in parts):
        raise NumbaTypeError(
            f"{name}: index is {index}; it must be one integer for each of the array's {array.ndim} axes"
        )


def _load_type(function, count):
    @cudadecl.registry.register_global(function)
    class Load(AbstractTemplate):
        def generic(self, args, kws):
            array, index = _bind(function, args, kws)
            _check(function.__name__, count, array, index)
            typed = signature(types.UniTuple(array.dtype, count), array, index)
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


for _function, _count in ((load2, 2), (load4, 4)):
    _load_type(_function, _count)
for _function, _count in ((store2, 2), (store4, 4)):
    _store_type(_function, _count)


#: Functions that read a special register: its name, the size of a value in bits, and whether it changes as time passes.
_REGISTERS = {clock64: ("clock64", 64, True), globaltimer: ("globaltimer", 64, True), smid: ("smid", 32, False)}


def _register_type(function, bits):
    @cudadecl.registry.register_global(function)
    class Read(ConcreteTemplate):
        key = function
        cases = (signature(types.int64 if bits == 64 else types.int32),)


for _function, (_, _bits, _) in _REGISTERS.items():
    _register_type(_function, _bits)


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


# -- on a GPU: a pointer to the element becomes a pointer to a vector --------------------------------------------------


def _vector_pointer(context, builder, array_type, array, index_type, index, count):
    """(pointer to a vector of ``count`` elements at an index, its alignment in bytes)."""
    index_type, indices = normalize_indices(context, builder, index_type, index, array_type, array_type.dtype)
    struct = context.make_array(array_type)(context, builder, value=array)
    pointer = cgutils.get_item_pointer(context, builder, array_type, struct, indices, wraparound=True)
    vector = ir.VectorType(context.get_data_type(array_type.dtype), count)
    return builder.bitcast(pointer, vector.as_pointer()), array_type.dtype.bitwidth // 8 * count


@cudaimpl.lower(load2, types.Array, types.Any)
@cudaimpl.lower(load4, types.Array, types.Any)
def _generate_load(context, builder, signature, arguments):
    array_type, index_type = signature.args
    count = len(signature.return_type)
    pointer, width = _vector_pointer(context, builder, array_type, arguments[0], index_type, arguments[1], count)
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


# -- on the emulator ---------------------------------------------------------------------------------------------------


@calls.entry(clock64, globaltimer)
def _emulate_clock(t, call):
    return "K.read_clock()", call.result, True


@calls.entry(smid)
def _emulate_smid(t, call):
    return "K.smid()", call.result, False


@calls.entry(load2, load4)
def _emulate_load(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "load")
    count = len(call.result)
    return f"M.load_wide({t.value(call.arguments[0])}, {index}, {count}, m, {site})", call.result, True


@calls.entry(store2, store4)
def _emulate_store(t, call):
    index, _ = t.index(call.arguments[1], call.types[0])
    site = t.site(call.arguments[0].unversioned_name, "store")
    values = "".join(f"{t.value(value, call.types[0].dtype)}, " for value in call.arguments[2:])
    t.b.emit(f"M.store_wide({t.value(call.arguments[0])}, {index}, ({values}), m, {site})", effect=True)
