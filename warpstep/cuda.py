"""``from warpstep import cuda``: stands in for ``numba.cuda``.

Host functions are the emulator's. Everything that a kernel uses (``grid``, ``threadIdx``, ``shared``, ``atomic``,
types ...) is numba.cuda's own object, so a kernel means the same here as on a GPU, and Numba can type it.
"""

import importlib
import sys
from types import ModuleType

from warpstep import _numba
from warpstep.api import arrays as _arrays
from warpstep.api import context as _context
from warpstep.api import reimported as _reimported
from warpstep.api import sharing as _sharing
from warpstep.api.host import *  # noqa: F403 - its __all__ is the list of host functions
from warpstep.compiler.frontend import infer as _infer
from warpstep.launch import jit  # noqa: F401

_here = sys.modules[__name__]

#: Modules that hold device functions, types or settings: Numba's own are used.
_MODULES = (
    "bf16",
    "cache_hints",
    "cg",
    "config",
    "errors",
    "extending",
    "fp16",
    "fp8",
    "intrinsics",
    "libdevice",
    "literal",
    "stubs",
    "types",
    "vector_types",
)

_DRIVER = "it needs the CUDA driver or toolkit, and the emulator has neither"
_MEMORY = "emulated memory is not managed through the driver"
#: What cannot be emulated, and why.
_MISSING = {
    "BaseCUDAMemoryManager": _MEMORY,
    "GetIpcHandleMixin": _MEMORY,
    "HostOnlyCUDAMemoryManager": _MEMORY,
    "MappedMemory": _MEMORY,
    "MemoryPointer": _MEMORY,
    "PinnedMemory": _MEMORY,
    "driver": _DRIVER,
    "nvvm": _DRIVER,
    "runtime": _DRIVER,
}


IpcHandle = _sharing.IpcHandle


def _take_over():
    """Take every public name of numba.cuda, but for host functions, which are here already, and other modules."""
    for name in dir(_numba.cuda):
        if name.startswith("_") or name in globals() or name in _MISSING:
            continue
        value = getattr(_numba.cuda, name)
        if not isinstance(value, ModuleType) or name in _MODULES:
            globals()[name] = value


class _Namespace:
    """Internals of numba.cuda, as far as scripts use them."""

    def __init__(self, name, **members):
        self.__dict__.update(members)
        self.__name__ = name

    def __getattr__(self, name):
        raise AttributeError(f"the emulator has no {self.__name__}.{name}: {_DRIVER}")


#: Functions of numba-cuda that read only the shape, strides and flags of an array, which the emulator's have too.
_LAYOUT_FUNCTIONS = (
    "array_core",
    "check_array_compatibility",
    "errmsg_contiguous_buffer",
    "is_contiguous",
    "is_cuda_ndarray",
    "require_cuda_ndarray",
    "sentry_contiguous",
    "verify_cuda_ndarray_interface",
)
devicearray = _Namespace(
    "cuda.cudadrv.devicearray",
    DeviceNDArray=_arrays.DeviceArray,
    DeviceRecord=_arrays.DeviceRecord,
    IpcArrayHandle=_arrays.IpcArrayHandle,
    ManagedNDArray=_arrays.ManagedArray,
    MappedNDArray=_arrays.MappedArray,
    auto_device=_arrays.auto_device,
    from_array_like=_arrays.from_array_like,
    from_record_like=_arrays.from_record_like,
    **{name: getattr(_numba.devicearray, name) for name in _LAYOUT_FUNCTIONS},
)
devices = _Namespace(
    "cuda.cudadrv.devices",
    get_context=_context.get_context,
    gpus=_context.gpus,
    require_context=require_context,  # noqa: F405
    reset=_context.reset,
)
cudadrv = _Namespace("cuda.cudadrv", devicearray=devicearray, devices=devices, error=_numba.driver_errors)

reduce = Reduce = _reimported.second_copy(_numba.REDUCTION, _here).Reduce
vectorize, guvectorize = _reimported.ufunc_decorators(_here, lambda function, args: _infer(function, args).return_type)

_take_over()


def __getattr__(name):
    if name in _MISSING:
        raise AttributeError(f"the emulator has no cuda.{name}: {_MISSING[name]}")
    if name == "random":
        # Loading it compiles nothing, but brings in Numba's CPU target.
        value = _reimported.second_copy(_numba.RANDOM, _here)
    elif name in _MODULES:
        value = importlib.import_module(f"{_numba.cuda.__name__}.{name}")
    elif hasattr(_numba.cuda, name):
        raise AttributeError(f"the emulator has no cuda.{name}: it is internal to numba.cuda")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


@_numba.cudadecl.register_attr
class _ModuleTemplate(_numba.AttributeTemplate):
    """Types the attributes of this module in kernels as those of numba.cuda."""

    key = _numba.types.Module(_here)

    def generic_resolve(self, module, attr):
        if hasattr(_numba.cuda, attr):
            return self.context.resolve_getattr(_numba.types.Module(_numba.cuda), attr)
        return self.context.resolve_module_constants(module, attr)
