"""The compilers whose type inference the emulator can use: numba-cuda and its successor, numba-cuda-mlir.

A process uses one. The first of these decides: the environment variable ``GPUKIT_FRONTEND``; `choose`, which
`warpstep.run` calls when a program imports one of them; what is imported already; what is installed.
"""

import contextlib
import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator

import numpy as np

from warpstep import _without_cuda

NUMBA_CUDA, MLIR = "numba-cuda", "numba-cuda-mlir"
ENVIRONMENT_VARIABLE = "GPUKIT_FRONTEND"
#: The module that programs import from each, the package it comes in, and what it needs besides.
MODULES = {NUMBA_CUDA: "numba.cuda", MLIR: "numba_cuda_mlir.cuda"}
_PACKAGES = {NUMBA_CUDA: ("numba", "numba_cuda"), MLIR: ("numba_cuda_mlir",)}

MISSING = "{0} is missing: `pip install {0}`; `gpukit doctor` says more"

_chosen = None

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # gone since NumPy 2.5, and numba-cuda up to 0.30 looks it up at import
# NumPy 2.5 warns of a duration without a unit, which numba-cuda makes at import: under -W error that ends there.
warnings.filterwarnings("ignore", "The 'generic' unit", DeprecationWarning, r"numba\.cuda\.np\.npdatetime_helpers")
_without_cuda.allow()


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the garbage collector while a compiler is imported or runs: it visits all of Numba, and finds little."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def installed(compiler: str) -> bool:
    """True if a compiler can be imported. The copy of numba-cuda that is built into Numba does not count."""
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES[compiler]):
        return False
    if compiler != NUMBA_CUDA:
        return True
    # It puts itself in the place of Numba's copy when Python starts, which some environments prevent.
    spec = importlib.util.find_spec("numba.cuda")
    return spec is not None and "numba_cuda" in (spec.origin or "")


def require(compiler: str) -> None:
    """ImportError if a compiler cannot be imported."""
    if not installed(compiler):
        raise ImportError(MISSING.format(compiler))


def chosen() -> str | None:
    """The compiler that this process uses, or None as long as nothing has decided."""
    return _chosen


def is_open() -> bool:
    """True as long as the program can decide: several compilers are installed, and it has imported none."""
    return (
        _chosen is None
        and not os.environ.get(ENVIRONMENT_VARIABLE)
        and all(map(installed, MODULES))
        and not any(module in sys.modules for module in MODULES.values())
    )


def choose(wanted: str | None = None) -> str:
    """Return the compiler that this process uses; ``wanted`` if nothing has decided so far and it is installed.

    ImportError if there is none, or if ``GPUKIT_FRONTEND`` names one that does not exist or is not installed.
    """
    global _chosen
    if _chosen is None:
        _chosen = _asked_for() or _first_of(wanted)
    return _chosen


def _asked_for():
    asked = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower()
    if not asked:
        return None
    if asked not in MODULES:
        raise ImportError(f"{ENVIRONMENT_VARIABLE} is {asked!r}; it must be one of {', '.join(MODULES)}, or unset")
    if not installed(asked):
        raise ImportError(f"{ENVIRONMENT_VARIABLE}={asked}, but it is not installed: `pip install {asked}`")
    return asked


def _first_of(wanted):
    loaded = [compiler for compiler, module in MODULES.items() if module in sys.modules]
    found = next((c for c in (wanted, *loaded, *MODULES) if c is not None and installed(c)), NUMBA_CUDA)
    require(found)
    return found
