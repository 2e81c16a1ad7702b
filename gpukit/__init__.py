"""gpukit: a course in GPU programming that runs, with or without a GPU.

``from gpukit import cuda`` gives ``numba.cuda`` on a machine with a GPU and gpukit's emulator elsewhere. Everything is
imported when it is first used, so that ``gpukit doctor`` runs where Numba or NumPy are broken.
"""

import importlib

__version__ = "0.1.0"

_FROM_BACKEND = ("cuda", "on_gpu")
_FROM_WARPSTEP = ("compare", "predict", "trace")
#: What ``%load_ext gpukit`` and ``%unload_ext gpukit`` call.
_FROM_RUN = ("load_ipython_extension", "unload_ipython_extension")
_MODULES = (
    "backend",
    "clinic",
    "conv",
    "device",
    "doctor",
    "emulator",
    "errors",
    "indexing",
    "intrinsics",
    "launching",
    "matmul",
    "pitfalls",
    "plot",
    "prediction",
    "reduce",
    "resize",
    "results",
    "run",
    "show",
    "streams",
    "timing",
    "tracing",
    "transpose",
)

__all__ = [*_FROM_BACKEND, *_FROM_WARPSTEP, *_MODULES]


def __getattr__(name):
    if name in _FROM_BACKEND:
        return getattr(importlib.import_module("gpukit.backend"), name)
    if name in _FROM_WARPSTEP:
        return getattr(importlib.import_module("warpstep"), name)
    if name in _FROM_RUN:
        return getattr(importlib.import_module("warpstep.run"), name)
    if name in _MODULES:
        return importlib.import_module(f"gpukit.{name}")
    raise AttributeError(f"module 'gpukit' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
