"""The one switch: ``cuda`` is ``numba.cuda`` where a GPU can be used, and the emulator, ``warpstep``, elsewhere.

The number types that kernels name (``float32``, ``uint32``, ``types``) are Numba's on both.

The environment variable ``GPUKIT_BACKEND`` overrides the choice: ``emulator`` takes the emulator even on a GPU machine,
``gpu`` insists on the GPU and says at import what is missing if it cannot be used.
"""

import os
from typing import TYPE_CHECKING, Any

import warpstep._compilers  # noqa: F401 - before numba.cuda
from warpstep import run

ENVIRONMENT_VARIABLE = "GPUKIT_BACKEND"
CHOICES = ("gpu", "emulator")


class BackendError(ImportError):
    """The backend asked for in ``GPUKIT_BACKEND`` cannot be used, or is not one of ``gpu`` and ``emulator``."""


def why_no_gpu():
    """Say why ``numba.cuda`` finds no GPU.

    Returns
    -------
    str or None
        None if a GPU can be used; otherwise one sentence.

    Examples
    --------
    >>> reason = why_no_gpu()
    """
    try:
        import numba.cuda as numba_cuda
    except ImportError as error:
        return f"numba.cuda cannot be imported ({error})"
    if not hasattr(numba_cuda, "float32"):  # the one that older versions of Numba bring along
        return "numba-cuda is missing"
    try:
        if numba_cuda.is_available():
            return None
        if len(numba_cuda.gpus) == 0:
            return "the driver reports no GPU"
    except numba_cuda.CudaSupportError as error:
        if "driver library cannot be found" in str(error):
            return "no NVIDIA driver is installed"
        return " ".join(str(error).split()).rstrip(" :")
    except Exception as error:  # a driver that numba-cuda does not know what to make of
        return f"the driver does not start ({type(error).__name__}: {error})"
    return "the CUDA libraries that numba.cuda needs are not complete"


def _choose():
    asked = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower()
    if asked and asked not in CHOICES:
        raise BackendError(f"{ENVIRONMENT_VARIABLE} is {asked!r}; it must be one of {', '.join(CHOICES)}, or unset")
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip() not in ("", "0"):
        raise BackendError("NUMBA_ENABLE_CUDASIM puts Numba's simulator in place of numba.cuda: unset it to use gpukit")
    if run.installed():
        return "emulator", "the emulator stands in for numba.cuda"
    if asked == "emulator":
        return "emulator", f"{ENVIRONMENT_VARIABLE}=emulator"
    missing = why_no_gpu()
    if missing is None:
        return "gpu", "a GPU was found" if not asked else f"{ENVIRONMENT_VARIABLE}=gpu"
    if asked == "gpu":
        raise BackendError(
            f"{ENVIRONMENT_VARIABLE}=gpu, but {missing}. `gpukit doctor` says how to mend it; unset "
            f"{ENVIRONMENT_VARIABLE} to use the emulator"
        )
    return "emulator", missing


#: "gpu" or "emulator", and one sentence that says why.
NAME, REASON = _choose()

if TYPE_CHECKING:  # Numba's own have no annotations
    from warpstep import cuda

    float32: Any
    float64: Any
    int32: Any
    int64: Any
    types: Any
    uint8: Any
    uint32: Any
    uint64: Any
else:
    if NAME == "gpu":
        from numba import cuda
        from numba.cuda import float32, float64, int32, int64, types, uint8, uint32, uint64
        from numba.cuda import random as random  # makes cuda.random, which the emulator has too
    else:  # numba-cuda-mlir's types, if that types the kernels
        from warpstep import cuda
        from warpstep.cuda import float32, float64, int32, int64, types, uint8, uint32, uint64

__all__ = [
    "CHOICES",
    "ENVIRONMENT_VARIABLE",
    "NAME",
    "REASON",
    "BackendError",
    "cuda",
    "float32",
    "float64",
    "int32",
    "int64",
    "on_gpu",
    "types",
    "uint8",
    "uint32",
    "uint64",
    "why_no_gpu",
]


def on_gpu():
    """True if kernels run on a real GPU, False if they run on the emulator.

    Examples
    --------
    >>> where = "on a GPU" if gpukit.on_gpu() else "on the emulator"
    """
    return NAME == "gpu" and not run.installed()
