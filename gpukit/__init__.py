"""gpukit: a course in GPU programming that runs, with or without a GPU.

``from gpukit import cuda`` is ``numba.cuda`` on a machine with a GPU, and gpukit's emulator elsewhere.

Every name is imported when it is first used, so that ``gpukit doctor`` runs where Numba or NumPy are broken.
"""

import importlib
from typing import TYPE_CHECKING

from gpukit import _moved

if TYPE_CHECKING:  # what editors and type checkers read; __getattr__ does the same at run time
    import warpstep as emulator
    from gpukit import (
        backend,
        conv,
        device,
        doctor,
        errors,
        exercises,
        indexing,
        intrinsics,
        launching,
        matmul,
        multi,
        pitfalls,
        plot,
        prediction,
        reduce,
        resize,
        results,
        scan,
        show,
        streams,
        tensor,
        timing,
        tracing,
        transpose,
    )
    from gpukit.backend import cuda, on_gpu
    from gpukit.replaying import replay
    from warpstep import compare, debug, load_trace, predict, run, trace

_moved.install()

__version__ = "0.2.0"

#: Where each name comes from: a module, or a module and a name in it.
_SOURCES = {
    "compare": ("warpstep", "compare"),
    "cuda": ("gpukit.backend", "cuda"),
    "debug": ("warpstep", "debug"),
    "load_trace": ("warpstep", "load_trace"),
    "load_ipython_extension": ("warpstep.run", "load_ipython_extension"),  # %load_ext gpukit
    "on_gpu": ("gpukit.backend", "on_gpu"),
    "predict": ("warpstep", "predict"),
    "replay": ("gpukit.replaying", "replay"),
    "trace": ("warpstep", "trace"),
    "unload_ipython_extension": ("warpstep.run", "unload_ipython_extension"),
    "backend": ("gpukit.backend", None),
    "conv": ("gpukit.conv", None),
    "device": ("gpukit.device", None),
    "doctor": ("gpukit.doctor", None),
    "errors": ("gpukit.errors", None),
    "exercises": ("gpukit.exercises", None),
    "indexing": ("gpukit.indexing", None),
    "intrinsics": ("gpukit.intrinsics", None),
    "launching": ("gpukit.launching", None),
    "matmul": ("gpukit.matmul", None),
    "multi": ("gpukit.multi", None),
    "pitfalls": ("gpukit.pitfalls", None),
    "plot": ("gpukit.plot", None),
    "prediction": ("gpukit.prediction", None),
    "reduce": ("gpukit.reduce", None),
    "resize": ("gpukit.resize", None),
    "results": ("gpukit.results", None),
    "scan": ("gpukit.scan", None),
    "show": ("gpukit.show", None),
    "streams": ("gpukit.streams", None),
    "tensor": ("gpukit.tensor", None),
    "timing": ("gpukit.timing", None),
    "tracing": ("gpukit.tracing", None),
    "transpose": ("gpukit.transpose", None),
}

__all__ = [
    "compare",
    "cuda",
    "debug",
    "load_trace",
    "on_gpu",
    "predict",
    "replay",
    "trace",
    "backend",
    "conv",
    "device",
    "doctor",
    "emulator",
    "errors",
    "exercises",
    "indexing",
    "intrinsics",
    "launching",
    "matmul",
    "multi",
    "pitfalls",
    "plot",
    "prediction",
    "reduce",
    "resize",
    "results",
    "run",
    "scan",
    "show",
    "streams",
    "tensor",
    "timing",
    "tracing",
    "transpose",
]


def __getattr__(name):
    if name == "clinic" or f"gpukit.{name}" in _moved.MOVED:  # modules that have moved
        return importlib.import_module(f"gpukit.{name}")
    if name not in _SOURCES:
        raise AttributeError(f"module 'gpukit' has no attribute {name!r}")
    module, attribute = _SOURCES[name]
    value = importlib.import_module(module)
    return value if attribute is None else getattr(value, attribute)


def __dir__():
    return sorted([*globals(), *__all__])
