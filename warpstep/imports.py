"""What happens when a program imports a compiler while the emulator stands in its place.

The compiler that this process uses is loaded as always; the emulator then takes its place. The other one, installed or
not, is another name for it: ``from numba_cuda_mlir import cuda`` gives what ``from numba import cuda`` gives. NVSHMEM,
installed or not, is the emulator's.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from warpstep import _compilers
from warpstep._compilers import MLIR, NUMBA_CUDA

#: Modules whose import decides which compiler is used, and the other modules that `Imports` watches.
_DECIDING = {"numba.cuda": NUMBA_CUDA, "numba_cuda_mlir": MLIR}
_WATCHED = {*_DECIDING, *_compilers.MODULES.values(), "warpstep.cuda"}
#: By the compiler that is used: prefixes of the other's modules, and of those that stand for them.
_STAND_INS = {
    NUMBA_CUDA: {
        "numba_cuda_mlir.numba_cuda": ["numba.cuda"],
        "numba_cuda_mlir.cuda": ["numba.cuda"],
        "numba_cuda_mlir": ["numba.cuda"],
    },
    MLIR: {"numba.cuda": ["numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda"]},
}


#: What programs take from ``numba_cuda_mlir.cuda`` and numba-cuda has not.
_OF_THE_SUCCESSOR = frozenset(
    "compile_cubin compile_for compile_mlir experimental inline_ptx intrin tensor_map vector".split()
)


def missing(name: str):
    """The ``__getattr__`` of ``numba.cuda`` while it is another name for ``numba_cuda_mlir.cuda``."""
    if name in _OF_THE_SUCCESSOR:
        raise AttributeError(
            f"cuda.{name} belongs to numba-cuda-mlir, and numba-cuda types the kernels of this process: `pip install "
            f"numba-cuda-mlir` and import it first, or set {_compilers.ENVIRONMENT_VARIABLE}={MLIR}"
        )
    raise AttributeError(f"module 'numba.cuda' has no attribute {name!r}")


class Imports:
    """An entry of ``sys.meta_path``; ``when_loaded()`` is called once the emulator and its compiler are loaded."""

    def __init__(self, when_loaded: Callable[[], None]):
        self._when_loaded = when_loaded
        self._searching = None
        self._made = {}

    def find_spec(self, name, path=None, target=None):
        if name == self._searching or name.partition(".")[0] not in ("numba", "numba_cuda_mlir", "nvshmem", "warpstep"):
            return None
        if name.partition(".")[0] == "nvshmem":
            return ModuleSpec(name, _StandIn(self._stand_in(name, [f"warpstep.{name}"])))
        for prefix, others in _STAND_INS.get(_compilers.chosen() or "", {}).items():
            if f"{name}.".startswith(f"{prefix}."):
                return ModuleSpec(name, _StandIn(self._stand_in(name, [o + name[len(prefix) :] for o in others])))
        return self._watched(name) if name in _WATCHED else None

    def remove(self) -> None:
        """Leave ``sys.meta_path``, and with it every module that stands for another."""
        sys.meta_path.remove(self)
        for name, module in self._made.items():
            sys.modules.pop(name, None)
            parent, _, attribute = name.rpartition(".")
            if vars(sys.modules.get(parent, self)).get(attribute) is module and parent not in self._made:
                delattr(sys.modules[parent], attribute)

    def _stand_in(self, name, others):
        if name == "numba_cuda_mlir":
            module = ModuleType(name, "numba-cuda and the emulator in place of numba-cuda-mlir.")
            vars(module).update(__path__=[], __version__=importlib.metadata.version("numba-cuda"))
            vars(module)["__getattr__"] = functools.partial(_submodule, name, others[0])
        else:
            module = _first_module(name, others)
        self._made[name] = module
        return module

    def _watched(self, name):
        before, self._searching = self._searching, name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = before
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(self._load, spec.loader, load)
        return spec

    def _load(self, loader, load, module):
        del loader.exec_module  # once
        name = module.__name__
        if name in _DECIDING:
            _compilers.choose(_DECIDING[name])
        load(module)
        if name == "warpstep.cuda":
            self._when_loaded()
        elif name in _compilers.MODULES.values():
            parent, _, attribute = name.rpartition(".")
            setattr(sys.modules[parent], attribute, module)  # as the import would do after this
            importlib.import_module("warpstep.cuda")  # unless it is what imports the compiler


class _StandIn(Loader):
    """The loader of a module that has another name as well."""

    def __init__(self, module):
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        if self._spec is not None:
            module.__spec__ = self._spec


def _first_module(name, others):
    for other in others:
        try:
            return importlib.import_module(other)
        except ModuleNotFoundError as error:
            if error.name != other:
                raise
    if name.startswith("nvshmem"):
        raise ModuleNotFoundError(f"No module named {name!r}: the emulator has none", name=name)
    raise ModuleNotFoundError(
        f"No module named {name!r}: the emulator types kernels with {_compilers.chosen()} in this process, which has "
        f"none. {_compilers.ENVIRONMENT_VARIABLE} chooses the compiler",
        name=name,
    )


def _submodule(package, other, name):
    """``package.name`` where nobody has imported the module."""
    if not name.startswith("__"):
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError:
            module = importlib.import_module(other)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
