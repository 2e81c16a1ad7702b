"""The only file of gpukit that names numba-cuda's private modules: its next release is adapted to here.

What needs the driver is imported when it is called: without a GPU none is loaded.
"""

# ruff: noqa: E402
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import contextlib
import ctypes
import functools
import json
import sys
import time
import zlib
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

#: When this process began to load what makes code for a GPU.
LOADED = time.time()

from gpukit._native import bind
from warpstep import _compilers
from warpstep.stack import with_room

_compilers.require(_compilers.NUMBA_CUDA)

# isort: split
import numba.cuda
import numpy as np
from numba.cuda import cgutils as _cgutils
from numba.cuda import cudadecl as _cudadecl
from numba.cuda import cudaimpl as _cudaimpl
from numba.cuda import typing as _typing
from numba.cuda.core import config, errors, targetconfig
from numba.cuda.np import arrayobj, numpy_support
from numba.cuda.typing import templates
from numba.cuda.typing.typeof import Purpose, typeof

#: Where numba-cuda is installed.
FOLDER = str(Path(numba.cuda.__file__).parent)
#: Whether each thread has a default stream of its own (NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM).
PER_THREAD_DEFAULT_STREAM = bool(config.CUDA_PER_THREAD_DEFAULT_STREAM)

# Without types: pyright looks them up in Numba, where numba-cuda's redirection does not reach.
NumbaPerformanceWarning: Any = errors.NumbaPerformanceWarning
NumbaTypeError: Any = errors.NumbaTypeError
# How a function of `gpukit.intrinsics` is typed and lowered.
AbstractTemplate: Any = templates.AbstractTemplate
ConcreteTemplate: Any = templates.ConcreteTemplate
signature: Any = _typing.signature
cudadecl: Any = _cudadecl
cudaimpl: Any = _cudaimpl
cgutils: Any = _cgutils
fix_integer_index: Any = arrayobj.fix_integer_index


# -- types -----------------------------------------------------------------------------------------


def argument_type(value) -> Any:
    """Numba's type of a kernel argument."""
    return typeof(value, Purpose.argument)


def dtype_of_type(type_) -> np.dtype:
    """The NumPy dtype of a Numba type."""
    return numpy_support.as_dtype(type_)


def overload(function: Callable) -> Callable:
    """Decorate what chooses a function's implementation in kernels by the types of its arguments."""
    from numba.cuda.extending import overload

    return overload(function)


def target_capability() -> tuple[int, int] | None:
    """The compute capability that the function being typed is compiled for; None if that is left open."""
    flags = targetconfig.ConfigStack.top_or_none()
    found = None if flags is None else flags.compute_capability
    return None if found is None else tuple(found)[:2]


# -- kernels ---------------------------------------------------------------------------------------


def launch_configuration_class() -> type:
    """The class of ``kernel[grid, block]``."""
    from numba.cuda.dispatcher import _LaunchConfiguration

    return _LaunchConfiguration


@with_room
def compiled_kernel(launch, args: tuple) -> Any:
    """Find the compiled kernel that a configured one launches for these arguments, or compile it."""
    from numba.cuda import dispatcher
    from numba.cuda.dispatcher import _dispatcher

    kernel = launch.dispatcher
    if kernel.specialized:
        return next(iter(kernel.overloads.values()))
    name = getattr(dispatcher, "_LAUNCH_CONFIG_KW", None)  # from 0.30 on
    with quickly():
        return _dispatcher.Dispatcher._cuda_call(kernel, *args, **({name: launch} if name else {}))


@contextlib.contextmanager
def quickly():
    """Compile kernels in about half the time; the machine code is the same."""
    from warpstep._numba import quick_passes

    with quick_passes(), quick_library(), _compilers.paused_collector():
        yield


@contextlib.contextmanager
def quick_library():
    """Let Numba hand each module to NVVM once, and make no PTX of kernels that nvJitLink links from another form.

    A function that two others call belongs to both of them, and Numba prints its module for each. In PTX it looks for
    the names of functions to link, which are in the LLVM IR too, except for those that manage memory. PTX would take a
    fifth of the time to compile a kernel.
    """
    from numba.cuda.codegen import CUDACodeLibrary

    def get_asm_str(self, cc=None):
        if self._lto and not getattr(config, "CUDA_ENABLE_NRT", False):
            return self.get_llvm_str()
        return "\n".join(self.get_asm_strs(cc=cc))

    whole = _whole_library()
    CUDACodeLibrary.get_asm_str, CUDACodeLibrary.llvm_strs = get_asm_str, property(_texts_of)
    try:
        yield
    finally:
        CUDACodeLibrary.get_asm_str, CUDACodeLibrary.llvm_strs = whole


@functools.cache
def _whole_library():
    from numba.cuda.codegen import CUDACodeLibrary

    return CUDACodeLibrary.get_asm_str, CUDACodeLibrary.llvm_strs


def _texts_of(library):
    """Print the LLVM IR of a kernel, and of each function that it calls unless it was printed for another kernel."""
    if library._llvm_strs is None:
        own, *others = dict.fromkeys(library.modules)
        library._llvm_strs = [str(own), *map(_text_of, others)]
    return library._llvm_strs


def _text_of(module):
    """Print the module of a function, unless it was printed with the same linkage: kernels for debuggers change it."""
    linkage = [function.linkage for function in module.functions]
    if module.__dict__.get("printed", ([None],))[0] != linkage:
        module.printed = linkage, str(module)
    return module.printed[1]


def cache_compiled(kernel, load: Callable, save: Callable):
    """Have a kernel call ``load(kernel, argument types)`` before it compiles, and ``save(kernel, argument types,
    compiled)`` afterwards. The former returns a compiled kernel, or None.
    """
    from numba.cuda.dispatcher import NullCache

    if type(kernel._cache) is not NullCache:
        return

    class Cache(NullCache):
        def load_overload(self, sig, target_context):
            return load(kernel, sig) if isinstance(sig, tuple) else None

        def save_overload(self, sig, data):
            if isinstance(sig, tuple):
                save(kernel, sig, data)

    kernel._cache = Cache()
    kernel.compile = quickly()(kernel.compile)  # a plain launch calls it too


#: Settings of Numba that change no machine code.
HARMLESS = {
    "CACHE_DIR",
    "CACHE_LOCATOR_CLASSES",
    "COLOR_SCHEME",
    "CUDA_LOW_OCCUPANCY_WARNINGS",
    "CUDA_WARN_ON_IMPLICIT_COPY",
    "DISABLE_PERFORMANCE_WARNINGS",
    "FULL_TRACEBACKS",
    "NUMBA_DEFAULT_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "SHOW_HELP",
}


def compiler_settings() -> tuple:
    """All that decides, beside the kernel, what machine code comes of it: device, versions, libraries and settings."""
    settings = {name: repr(value) for name, value in vars(config).items() if name.isupper() and name not in HARMLESS}
    return *_compiler(), tuple(current_gpu().compute_capability), sorted(settings.items())


@functools.cache
def _compiler():
    """Versions of Python and of all that compiles, and the libraries' files: their versions say less."""
    import cuda.bindings
    import cuda.core
    import llvmlite
    import numba
    import numba_cuda
    from cuda.pathfinder import load_nvidia_dynamic_lib

    packages = numba, numba_cuda, llvmlite, np, cuda.bindings, cuda.core
    versions = [f"{package.__name__} {package.__version__}" for package in packages]
    places = [find_libdevice()[0]]
    for name in ("nvvm", "nvJitLink"):
        try:
            places.append(load_nvidia_dynamic_lib(name).abs_path)
        except Exception:  # the driver links where there is no such library
            places.append(None)
    found = [place and (place, Path(place).stat().st_size, Path(place).stat().st_mtime_ns) for place in places]
    return sys.version, versions, found, numba_driver().get_version()


def pack_compiled(compiled) -> tuple[dict, bytes, bytes]:
    """Take a compiled kernel apart: what JSON can hold; compressed: machine code, and LLVM IR.

    Raises
    ------
    ValueError
        If more than these belongs to it.
    """
    library = compiled._codelibrary
    is_sensitive = getattr(compiled, "launch_config_sensitive", False)  # from 0.30 on
    more = compiled.debug, compiled.extensions, is_sensitive, library.referenced_objects
    if any(more) or library._linking_files or library._setup_functions or library._teardown_functions:
        raise ValueError(f"{compiled.entry_name} is more than its code")
    ((capability, cubin),) = library._cubin_cache.items()
    head = {
        "capability": capability,
        "kernel": {
            "cooperative": compiled.cooperative,
            "name": compiled.entry_name,
            "lineinfo": compiled.lineinfo,
        },
        "library": {
            "name": library.name,
            "entry_name": library._entry_name,
            "max_registers": library._max_registers,
            "nvvm_options": library._nvvm_options,
            "needs_cudadevrt": library.needs_cudadevrt,
            "use_cooperative": library.use_cooperative,
            "lto": library._lto,
        },
    }
    if hasattr(compiled, "shared_memory_carveout"):  # from 0.26 on
        head["kernel"]["shared_memory_carveout"] = compiled.shared_memory_carveout
    return head, zlib.compress(cubin.code), zlib.compress(json.dumps(library.llvm_strs).encode())


def unpack_compiled(parts: tuple[dict, bytes, bytes], argument_types: tuple) -> Any:
    """Put a compiled kernel together, and load it for the current device."""
    from cuda.core import ObjectCode
    from numba.cuda import types
    from numba.cuda.dispatcher import _Kernel

    head, cubin, text = parts
    codes = {tuple(head["capability"]): ObjectCode.from_cubin(zlib.decompress(cubin))}
    no_others = {"llvm_strs": None, "ptx_cache": {}, "linkerinfo_cache": {}, "nrt": False, "codegen": None}
    library = _kept_library()._rebuild(cubin_cache=codes, **no_others, **head["library"])
    library.text = text
    sig = signature(types.void, *argument_types)
    plain = {"debug": False, "call_helper": None, "extensions": []}
    compiled = _Kernel._rebuild(signature=sig, codelibrary=library, **plain, **head["kernel"])
    compiled.objectmode = False
    compiled.bind()
    return compiled


@functools.cache
def _kept_library():
    """The class of the code of a kernel that was compiled earlier."""
    from numba.cuda.codegen import CUDACodeLibrary

    class Library(CUDACodeLibrary):
        text: bytes

        @property
        def llvm_strs(self):  # for a device of another compute capability, and for ``inspect_llvm``
            return json.loads(zlib.decompress(self.text))

    return Library


def function_of(compiled) -> Any:
    """The driver's function of a compiled kernel, loaded for the current device."""
    return compiled._codelibrary.get_cufunc()


def share_memory(most: int) -> None:
    """Let all arrays of more than so many bytes that are made from now on lie in the same memory, of that size.

    It is for a process in which nobody reads or writes them.
    """
    from numba.cuda.cudadrv.driver import MemoryPointer

    manager = numba.cuda.current_context().memory_manager
    allocate, context = manager.memalloc, numba.cuda.current_context()
    shared = allocate(most)

    def memalloc(size):
        return allocate(size) if size <= most else MemoryPointer(context, shared.device_pointer, size, owner=shared)

    manager.memalloc = memalloc


def free_when_short(free: Callable[[], None]) -> None:
    """Call ``free()`` where the current device has no memory left for an array, which is then tried once more."""
    manager = numba.cuda.current_context().memory_manager
    allocate = manager.memalloc

    def memalloc(size):
        try:
            return allocate(size)
        except cuda_api_error() as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
        free()
        return allocate(size)

    manager.memalloc = memalloc


# -- the driver ------------------------------------------------------------------------------------


def numba_driver() -> Any:
    """Numba's driver: its functions raise where those of ``cuda.bindings`` return an error."""
    from numba.cuda.cudadrv.driver import driver

    return driver


def driver_call(name: str, *arguments: int) -> Callable[[], int]:
    """Prepare a call of a function of the driver with these numbers, handles, and addresses of what the caller keeps
    alive. It returns the driver's error code, 0 for none.

    It takes the host less time than one by ``cuda.bindings``, which converts each argument anew.
    """
    return bind(driver_function(name), *arguments)


@functools.cache
def driver_function(name: str) -> int:
    """Find the address of a function of the driver."""
    from cuda.bindings import driver

    flags = driver.CUdriverProcAddress_flags
    wanted = (
        flags.CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
        if PER_THREAD_DEFAULT_STREAM
        else flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
    )
    error, address, _ = driver.cuGetProcAddress(name.encode(), 12000, int(wanted))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise cuda_api_error()(error, f"the driver has no {name}: {error.name}")
    return int(address)


def make_is_captured(handle: int) -> Callable[[], bool]:
    """Make a function that tells whether a CUDA graph records what is queued in the stream with this handle."""
    status = ctypes.c_int()
    ask = driver_call("cuStreamIsCapturing", handle, ctypes.addressof(status))
    return lambda: ask() == 0 and status.value != 0


def make_is_device(device: int) -> Callable[[], bool]:
    """Make a function that tells whether the device with this number is the thread's current one."""
    from cuda.bindings import driver

    ask = driver.cuCtxGetDevice

    def is_current():
        error, number = ask()
        return not error and int(number) == device

    return is_current


@contextlib.contextmanager
def beside_a_capture():
    """Let this thread allocate memory and load kernels while a stream is captured: otherwise that ends the capture."""
    relaxed = ctypes.c_int(2)
    exchange = driver_call("cuThreadExchangeStreamCaptureMode", ctypes.addressof(relaxed))
    exchange()
    try:
        yield
    finally:
        exchange()


def prepare_call(name: str, *args: Any, keep: Any) -> Callable[[], None]:
    """Prepare a call as `driver_call` does, of which an error is raised; ``keep`` is kept alive with it."""
    call = driver_call(name, *map(int, args))

    def checked(keep=keep):
        if code := call():
            from cuda.bindings import driver

            error = driver.CUresult(code)
            raise cuda_api_error()(error, f"Call to {name} results in {error.name}")

    return checked


def current_gpu() -> Any:
    """Numba's current device, also where gpukit uses the emulator."""
    return numba.cuda.get_current_device()


def cuda_api_error() -> type[Exception]:
    """The exception that `numba_driver` raises."""
    from numba.cuda.cudadrv.driver import CudaAPIError

    return CudaAPIError


def device_memset(array, value: int, nbytes: int, stream):
    """Queue the setting of the first bytes of a device array."""
    from numba.cuda.cudadrv.driver import device_memset

    device_memset(array, value, nbytes, stream)


def device_array_class() -> type:
    """The class of Numba's device arrays."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    return DeviceNDArray


def device_array_base() -> type:
    """The class of all arrays of Numba that the device sees, mapped and managed ones too."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArrayBase

    return DeviceNDArrayBase


def make_array_in(like, give_back: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make ``make(block)``: a device array as ``like`` is, in a block of memory: a `device_pointer`, and more.

    ``give_back(block)`` is called once neither the array nor a slice of it is left. One array costs the host a fraction
    of what ``cuda.device_array`` does.
    """
    from numba.cuda.cudadrv.driver import MemoryPointer

    kind, new = type(like), object.__new__
    attributes = {name: value for name, value in vars(like).items() if name not in ("gpu_data", "_gpukit_place")}

    def go_back(loan):
        give_back(loan.block)

    # Loans have all but two attributes from their class: to set them would take longer than all else.
    shared = vars(MemoryPointer(like.gpu_data.context, None, like.alloc_size))
    further = {"handle": property(attrgetter("device_pointer")), "__del__": go_back}
    loan_class = type("Loan", (MemoryPointer,), shared | further)

    def make(block):
        array, loan = new(kind), new(loan_class)
        loan.block, loan.device_pointer = block, block[0]
        array.__dict__ = own = attributes.copy()
        own["gpu_data"] = loan
        return array

    return make


def device_pointer(address: int) -> Any:
    """An address as Numba's memory has it."""
    from cuda.bindings.driver import CUdeviceptr

    return CUdeviceptr(address)


def find_libdevice():
    """(path or None, how it was found) of the library of device functions."""
    from numba.cuda import cuda_paths

    found = cuda_paths._get_libdevice_path()
    return found.info, found.by


def enable_peer(context, peer) -> None:
    """Let kernels of the current context reach memory of another one; it may be so already."""
    try:
        context.enable_peer_access(peer.handle)
    except cuda_api_error() as error:
        if "PEER_ACCESS_ALREADY_ENABLED" not in str(error):
            raise
