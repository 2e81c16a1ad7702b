"""What numba-cuda's compiler makes of a kernel for a GPU: LLVM IR, PTX, SASS. It needs the compiler, but no GPU."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CellType, FunctionType

from warpstep._numba import (
    COMPILER_MISSING,
    CUDADispatcher,
    GPUKernel,
    cuda,
    device_queries,
    global_compiler_lock,
    have_linker,
)
from warpstep.errors import UnsupportedError

#: Options of ``cuda.jit`` that change the code of a kernel.
_OPTIONS = frozenset(
    "debug extensions fastmath forceinline inline launch_bounds lineinfo link lto max_registers opt".split()
)
_depth = 0


def is_compiling() -> bool:
    """True while code for a GPU is compiled: a kernel's callees must be compiled then, not only typed."""
    return _depth > 0


@contextlib.contextmanager
def compiling_for(device) -> Iterator[None]:
    """Let numba-cuda compile for an emulated device, where it would ask the driver for a real one.

    Raises
    ------
    UnsupportedError
        If the compiler is not installed.
    """
    global _depth
    with global_compiler_lock, device_queries(device):
        _depth += 1
        try:
            yield
        except COMPILER_MISSING as error:
            found = " ".join(str(error).split())
            raise UnsupportedError(
                "the code of a kernel for a GPU is made by NVIDIA's compiler, which is not installed: `pip install "
                f"numba-cuda[cu13]` brings it, no GPU is needed ({type(error).__name__}: {found})"
            ) from None
        finally:
            _depth -= 1


def compile_kernel(function: Callable, argument_types: tuple, options: dict):
    """Compile a kernel as numba-cuda does at its first launch; returns numba-cuda's own object for it.

    To be called within `compiling_for`.
    """
    if GPUKernel is None:
        raise UnsupportedError("the code of a kernel for a GPU can be shown with numba-cuda, not with numba-cuda-mlir")
    lto = have_linker() and not options["debug"]  # as ``numba.cuda.jit`` decides
    chosen = {"lto": lto} | {name: options[name] for name in _OPTIONS & options.keys()}
    return GPUKernel(of_numba(function), argument_types, **chosen)


def as_dispatcher(function: Callable, options: dict) -> CUDADispatcher:
    """Make numba-cuda's own dispatcher of a device function, for kernels that are compiled for a GPU."""
    return CUDADispatcher(of_numba(function), {"opt": True, "lto": False} | options)


def of_numba(function: Callable) -> Callable:
    """Return a function that means the same with ``numba.cuda`` where it names the emulator's module."""
    if not isinstance(function, FunctionType):
        return function
    emulated = sys.modules["warpstep.cuda"]
    cells = function.__closure__ or ()
    names = [name for name in function.__code__.co_names if function.__globals__.get(name) is emulated]
    if not names and all(not _holds(cell, emulated) for cell in cells):
        return function
    cells = tuple(CellType(cuda) if _holds(cell, emulated) else cell for cell in cells)
    scope = {**function.__globals__, **dict.fromkeys(names, cuda)}
    same = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    same.__kwdefaults__, same.__module__ = function.__kwdefaults__, function.__module__
    same.__qualname__ = function.__qualname__
    return same


def _holds(cell, value):
    try:
        return cell.cell_contents is value
    except ValueError:  # an empty cell
        return False
