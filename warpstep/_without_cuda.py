"""What numba-cuda imports and only a GPU needs, for machines where it is not installed.

The packages ``cuda.bindings``, ``cuda.core`` and ``cuda.pathfinder``, and numba-cuda's own binary extensions, exist for
few platforms, and the emulator runs nothing of them. What numba-cuda's modules do with them while they are imported
(base classes, enumerations, versions) works with these stand-ins. The rest raises ImportError when it is used.
"""

import enum
import importlib
import importlib.metadata
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Numba's own binary modules, which do the same for a CPU.
_NUMBAS = {
    "numba.cuda.cext._helperlib": "numba._helperlib",
    "numba.cuda.cext._typeconv": "numba.core.typeconv._typeconv",
    "numba.cuda.cext.mviewbuf": "numba.mviewbuf",
}
#: (major, minor) of the CUDA whose bindings these stand for.
_VERSION = 13, 0


class _Dispatcher:
    """The base class of numba-cuda's dispatchers, which launches kernels on a GPU."""

    def __init__(self, *args, **kwargs):
        pass


def _for_a_gpu(*args, **kwargs):
    raise ImportError("this needs a GPU and the packages cuda-bindings and cuda-core, which are not installed")


#: The modules, and in each what is used while numba-cuda is imported, or by the emulator.
_MODULES = {
    "cuda": {},
    "cuda.bindings": {},
    "cuda.bindings.driver": {
        "CUresult": enum.IntEnum(
            "CUresult",
            {
                "CUDA_SUCCESS": 0,
                "CUDA_ERROR_INVALID_VALUE": 1,
                "CUDA_ERROR_OUT_OF_MEMORY": 2,
                "CUDA_ERROR_NOT_INITIALIZED": 3,
                "CUDA_ERROR_INVALID_DEVICE": 101,
                "CUDA_ERROR_INVALID_CONTEXT": 201,
                "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED": 217,
                "CUDA_ERROR_INVALID_HANDLE": 400,
                "CUDA_ERROR_NOT_READY": 600,
                "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED": 704,
            },
        ),
        "CUdevice_attribute": enum.IntEnum("CUdevice_attribute", []),
        "CUjitInputType": enum.IntEnum(
            "CUjitInputType", [f"CU_JIT_INPUT_{n}" for n in "CUBIN PTX FATBINARY OBJECT LIBRARY NVVM".split()], start=0
        ),
    },
    "cuda.bindings.nvrtc": {},
    "cuda.bindings.nvvm": {"nvvmError": type("nvvmError", (Exception,), {})},
    "cuda.bindings.runtime": {
        "cudaRoundMode": enum.IntEnum(
            "cudaRoundMode", [f"cudaRound{n}" for n in ("Nearest", "Zero", "PosInf", "MinInf")], start=0
        ),
        "getLocalRuntimeVersion": lambda: (0, 1000 * _VERSION[0]),
    },
    "cuda.bindings.utils": {"get_cuda_native_handle": _for_a_gpu},
    "cuda.core": {"__version__": "1.0.0", "launch": _for_a_gpu},
    "cuda.core._utils": {},
    "cuda.core._utils.cuda_utils": {},
    "cuda.core.graph": {},
    "cuda.core.utils": {},
    "cuda.pathfinder": {"DynamicLibNotFoundError": type("DynamicLibNotFoundError", (RuntimeError,), {})},
    **dict.fromkeys(_NUMBAS, {}),
    "numba.cuda.cext._dispatcher": {
        "Dispatcher": _Dispatcher,
        "typeof_init": lambda *args: None,
        "get_current_launch_config": lambda: None,
    },
}


class _Finder:
    """The last entry of ``sys.meta_path``: it is asked for what nobody else has."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, _Loader(), is_package=name.startswith("cuda")) if name in _MODULES else None


class _Loader(Loader):
    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        name = module.__name__
        if name in _NUMBAS:
            vars(module).update(vars(importlib.import_module(_NUMBAS[name])), __name__=name)
        vars(module).update(_MODULES[name])


class _Module(ModuleType):
    def __getattr__(self, name):
        """Make a class that is there to be named, as a base or in ``isinstance``."""
        if not name[0].isupper():
            raise AttributeError(f"{self.__name__}.{name}: cuda-bindings or cuda-core is not installed")
        value = type(name, (), {"__module__": self.__name__, "__new__": _for_a_gpu})
        setattr(self, name, value)
        return value


def bindings_version() -> tuple:
    """(major, minor) of the CUDA that the bindings are for."""
    try:
        major, minor, *_ = importlib.metadata.version("cuda-bindings").split(".")
    except importlib.metadata.PackageNotFoundError:
        return _VERSION
    return int(major), int(minor)


def allow() -> None:
    """Let numba-cuda be imported where these packages are not installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
