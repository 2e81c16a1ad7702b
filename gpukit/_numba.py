"""The only file of gpukit that names numba-cuda's private modules: its next release is adapted to here.

What needs the driver is imported when it is called: without a GPU none is loaded.
"""

# ruff: noqa: E402
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import ctypes
import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warpstep import _compilers

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


def compiled_kernel(launch, args: tuple) -> Any:
    """Find the compiled kernel that a configured one launches for these arguments, or compile it."""
    from numba.cuda.dispatcher import _LAUNCH_CONFIG_KW, _dispatcher

    kernel, collects = launch.dispatcher, gc.isenabled()
    if kernel.specialized:
        return next(iter(kernel.overloads.values()))
    gc.disable()  # it takes a quarter of the time of Numba's compiler, which makes many objects
    try:
        return _dispatcher.Dispatcher._cuda_call(kernel, *args, **{_LAUNCH_CONFIG_KW: launch})
    finally:
        if collects:
            gc.enable()


def function_of(compiled) -> Any:
    """The driver's function of a compiled kernel, loaded for the current device."""
    return compiled._codelibrary.get_cufunc()


# -- the driver ------------------------------------------------------------------------------------


def numba_driver() -> Any:
    """Numba's driver: its functions raise where those of ``cuda.bindings`` return an error."""
    from numba.cuda.cudadrv.driver import driver

    return driver


@functools.cache
def driver_function(name: str) -> Any:
    """A function of the driver by ctypes: called with ctypes values, it returns the driver's error code, 0 for none.

    A call takes the host less time than one by ``cuda.bindings``, which converts each argument anew.
    """
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
    return ctypes.CFUNCTYPE(ctypes.c_int)(int(address))


def prepare_call(name: str, *args: Any, keep: Any = None) -> Callable[[], None]:
    """Prepare a call of the driver, which costs a fraction of one through Numba's; ``keep`` is kept alive with it.

    Each of ``args`` is a number, or (type, number): ("CUstream", 0).
    """
    from cuda.bindings import driver

    function, success = getattr(driver, name), driver.CUresult.CUDA_SUCCESS
    made = tuple(getattr(driver, arg[0])(int(arg[1])) if isinstance(arg, tuple) else arg for arg in args)

    def call(keep=keep):
        error = function(*made)[0]
        if error != success:
            raise cuda_api_error()(error, f"Call to {name} results in {error.name}")

    return call


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
