"""Parts of numba-cuda that are written in terms of ``numba.cuda`` itself, made to work on the emulator.

Its ``reduce``, ``vectorize``, ``guvectorize`` and ``random`` allocate, copy and launch through ``numba.cuda``. They are
loaded a second time with the emulator's module in its place, so that they do here what they do on a GPU.
"""

import builtins
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from warpstep._numba import IMPORT_OF_CUDA, UFUNC_DECORATORS, VECTORIZERS


def second_copy(name: str, cuda, replaced: dict | None = None) -> Any:
    """Load a module of numba-cuda once more, for use with another ``cuda``.

    Parameters
    ----------
    name : str
        As in ``import``.
    cuda : module
        What ``from numba import cuda`` gives inside the copy.
    replaced : dict, optional
        {module name: what ``from that_module import ...`` takes its names from instead}.

    Returns
    -------
    module
        Not in ``sys.modules``: everyone else goes on with the first copy.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module {name}", name=name)
    module = importlib.util.module_from_spec(spec)
    replaced = replaced or {}
    package, attribute = IMPORT_OF_CUDA

    def import_(wanted, globals=None, locals=None, fromlist=(), level=0):
        if level == 0 and wanted == package and fromlist == (attribute,):
            return SimpleNamespace(**{attribute: cuda})
        if level == 0 and wanted in replaced:
            return replaced[wanted]
        return builtins.__import__(wanted, globals, locals, fromlist, level)

    # A function has the builtins of the module that defines it, so import statements in functions come here too.
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}
    spec.loader.exec_module(module)
    return module


def ufunc_decorators(cuda, infer: Callable) -> tuple[Callable, Callable]:
    """Make ``vectorize`` and ``guvectorize`` for the emulator.

    ``infer(function, argument_types)`` gives the type that a device function returns, which numba-cuda reads off the
    compiled function.
    """
    vectorizers = second_copy(VECTORIZERS, cuda)

    class Vectorize(vectorizers.CUDAVectorize):
        def _compile_core(self, sig):
            core = cuda.jit(device=True)(self.pyfunc)
            return core, infer(self.pyfunc, sig.args) if sig.return_type is None else sig.return_type

    vectorizers.CUDAVectorize = Vectorize
    decorators = second_copy(UFUNC_DECORATORS, cuda, {VECTORIZERS: vectorizers})
    return decorators.vectorize, decorators.guvectorize
