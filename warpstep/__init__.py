"""warpstep: runs ``@cuda.jit`` kernels on the CPU, every thread of many blocks in lockstep, and says what they do.

``from warpstep import cuda`` stands in for ``numba.cuda``. ``warpstep.trace(kernel[grid, block], *args)`` counts every
access, bank conflict and sector by source line and finds races; ``warpstep.predict`` bounds the time on a GPU.
``warpstep.nvshmem`` runs programs for several GPUs that talk from inside their kernels.
"""

import importlib
import sys
from typing import TYPE_CHECKING

from warpstep import hooks

if TYPE_CHECKING:  # what editors and type checkers read; __getattr__ does the same at run time
    from warpstep import cuda, nvshmem
    from warpstep.debugger import debug
    from warpstep.device import device as use_device
    from warpstep.device import set_device
    from warpstep.errors import KernelError, LaunchError, UnsupportedError
    from warpstep.launch import set_loop_limit
    from warpstep.prediction import predict
    from warpstep.report.comparison import compare
    from warpstep.tracer import Trace, load_trace, trace

if sys.version_info < (3, 11):  # noqa: UP036 - for clones, which pip did not check
    raise ImportError(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}")

__all__ = [
    "KernelError",
    "LaunchError",
    "Trace",
    "UnsupportedError",
    "compare",
    "cuda",
    "debug",
    "load_trace",
    "nvshmem",
    "predict",
    "set_device",
    "set_loop_limit",
    "trace",
    "use_device",
]

#: Where each name comes from. They are imported when first used, so that ``import warpstep`` stays cheap.
_SOURCES = {
    "KernelError": ("errors", "KernelError"),
    "LaunchError": ("errors", "LaunchError"),
    "Trace": ("tracer", "Trace"),
    "UnsupportedError": ("errors", "UnsupportedError"),
    "compare": ("report.comparison", "compare"),
    "debug": ("debugger", "debug"),
    "load_trace": ("tracer", "load_trace"),
    "predict": ("prediction", "predict"),
    "set_device": ("device", "set_device"),
    "set_loop_limit": ("launch", "set_loop_limit"),
    "trace": ("tracer", "trace"),
    "use_device": ("device", "device"),
}


def __getattr__(name):
    if name in ("cuda", "nvshmem"):
        return importlib.import_module(f"warpstep.{name}")
    if name in _SOURCES:
        module, attribute = _SOURCES[name]
        return getattr(importlib.import_module(f"warpstep.{module}"), attribute)
    raise AttributeError(f"module 'warpstep' has no attribute {name!r}")


def _attach(prepared):
    return importlib.import_module("warpstep.debugger").attach(prepared)


hooks.attach = _attach


def __dir__():
    return sorted([*globals(), *__all__])
