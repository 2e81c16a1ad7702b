"""gpukit: a course in GPU programming that runs, with or without a GPU.

``from gpukit import cuda`` gives ``numba.cuda`` on a machine with a GPU and gpukit's emulator elsewhere. Everything is
imported when it is first used, so that ``gpukit doctor`` runs where Numba or NumPy are broken.
"""

import importlib

__version__ = "0.1.0"

_FROM_BACKEND = ("cuda", "on_gpu")
_FROM_TRACING = ("compare", "trace")
_FROM_PREDICTION = ("predict",)
#: What ``%load_ext gpukit`` and ``%unload_ext gpukit`` call.
_FROM_RUN = ("load_ipython_extension", "unload_ipython_extension")
_MODULES = (
    "backend",
    "benchmarks",
    "calibration",
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
    "operands",
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

__all__ = [*_FROM_BACKEND, *_FROM_TRACING, *_FROM_PREDICTION, *_MODULES]


def __getattr__(name):
    if name in _FROM_BACKEND:
        return getattr(importlib.import_module("gpukit.backend"), name)
    if name in _FROM_TRACING:
        return getattr(importlib.import_module("gpukit.tracing"), name)
    if name in _FROM_PREDICTION:
        return getattr(importlib.import_module("gpukit.prediction"), name)
    if name in _FROM_RUN:
        return getattr(importlib.import_module("gpukit.run"), name)
    if name in _MODULES:
        return importlib.import_module(f"gpukit.{name}")
    raise AttributeError(f"module 'gpukit' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
