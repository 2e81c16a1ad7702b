"""Fingerprint a kernel: a hash of all in Python that decides its machine code.

Factories make kernels, so code alone says little: the constants, types and device functions that a kernel was made for
lie in cells and globals. The fingerprint follows all of them. Where it finds something that it cannot tell from others
by its contents, it raises `Unknown` instead of a guess.
"""

import functools
import hashlib
import types as python
from enum import Enum
from typing import Any

import numpy as np

from gpukit.backend import types

__all__ = ["Unknown", "fingerprint"]

#: Types whose ``repr`` is exact.
PLAIN = {type(None), type(...), bool, int, float, complex, str, bytes}
#: What decides how code runs, beside its constants.
CODE = (
    "co_qualname",
    "co_code",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_argcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_exceptiontable",
    "co_firstlineno",
    "co_linetable",
)
#: Packages of which a name and the package's version say what it is. gpukit's sources count as its version.
VERSIONED = {"_operator", "builtins", "cuda", "gpukit", "math", "numba", "numpy"}
#: Packages whose modules hold constants that kernels read.
OWN = {"gpukit", "warpstep"}
#: Types of Numba that their names tell apart.
NAMED_TYPES = (types.Number, types.Boolean, types.NoneType)


class Unknown(TypeError):
    """Something that a kernel uses, and whose contents cannot be read."""


def fingerprint(*values) -> bytes:
    """Hash kernels, functions, types and constants, with everything that they reach.

    Raises
    ------
    Unknown
        If there is something among it that has no fingerprint.
    """
    walk = _Walk()
    for value in values:
        walk.add(value)
    return walk.digest()


class _Walk:
    def __init__(self):
        self._words: list[str] = []
        #: Numbers of the functions, kernels and objects on the way, by id: they may lead back to themselves.
        self._seen: dict[int, int] = {}

    def add(self, value: Any):
        kind = type(value)
        if kind in PLAIN:
            self._write(kind.__name__, repr(value))
        elif isinstance(value, tuple) or kind is list:
            self._several(_name(kind), value)
        elif kind is dict:
            self._several("dict", [part for item in value.items() for part in item])
        elif kind in (set, frozenset):
            self._write(kind.__name__, *sorted(fingerprint(part).hex() for part in value))
        elif kind is python.CodeType:
            self._write(*_code(value))
        elif isinstance(value, types.Type):
            self._type(value)
        elif isinstance(value, np.dtype):
            self._write("dtype", repr(value))
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            self._several("array", [value.dtype, value.shape, value.strides, value.tobytes()])
        elif isinstance(value, Enum):
            self._several(_name(kind), [value.name, value.value])
        elif id(value) in self._seen:
            self._write("seen", str(self._seen[id(value)]))
        else:
            self._seen[id(value)] = len(self._seen)
            self._object(value, kind)

    def _object(self, value, kind):
        if hasattr(value, "py_func") and hasattr(value, "targetoptions"):
            self._several("kernel", [value.py_func, value.targetoptions])
        elif kind is python.FunctionType:
            self._function(value)
        elif _package(value) in VERSIONED and hasattr(value, "__name__") and kind is not python.MethodType:
            self._write("name", _name(value))
        elif _package(kind) in OWN and hasattr(value, "__dict__"):
            self._several(_name(kind), [vars(value)])
        else:
            raise Unknown(f"{value!r}, of {kind.__module__}.{kind.__qualname__}")

    def _type(self, value):
        """One of Numba's types."""
        self._write(_name(type(value)), str(value))
        if isinstance(value, types.BaseTuple):
            self._several("parts", [getattr(value, "instance_class", None), *value])
        elif isinstance(value, types.Array):
            self.add(value.dtype)
        elif not isinstance(value, NAMED_TYPES):
            raise Unknown(f"the type {value}")

    def _function(self, function):
        code, names = function.__code__, sorted(_names(function.__code__))
        self._several("function", [function.__module__, code, function.__defaults__, function.__kwdefaults__])
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._write("cell", name)
            self.add(cell.cell_contents)
        for name in names:
            if name in function.__globals__:
                self._named(name, function.__globals__[name], names)

    def _named(self, name, value, names):
        """A global, and of a module the attributes that may be meant: they are among the ``names`` of the code."""
        self._write("global", name)
        if type(value) is not python.ModuleType or _package(value) not in OWN:
            self.add(value)
        elif id(value) not in self._seen:
            self._seen[id(value)] = len(self._seen)
            for attribute in names:
                if hasattr(value, attribute):
                    self._named(f"{value.__name__}.{attribute}", getattr(value, attribute), names)

    def _several(self, name, values):
        self._write(name, str(len(values)))
        for value in values:
            self.add(value)

    def _write(self, *words: str):
        self._words += words

    def digest(self) -> bytes:
        """The hash of all words, each with its length: no two lists of words read the same."""
        text = "".join([f"{len(word)}:{word}" for word in self._words])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@functools.lru_cache(maxsize=4096)
def _code(code) -> list[str]:
    """The words for code, which kernels of one factory share."""
    walk = _Walk()
    walk.add([getattr(code, name) for name in CODE])
    walk.add(code.co_consts)
    return ["code", walk.digest().hex()]


@functools.lru_cache(maxsize=4096)
def _names(code):
    """The globals and attributes that code looks up, and that code in it does."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if type(constant) is python.CodeType:
            found |= _names(constant)
    return found


def _name(value):
    """The name of a module, a class or a function, with that of its module."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"


def _package(value):
    """The package of a module, a class or a function; "" if it has none."""
    return str(getattr(value, "__module__", None) or getattr(value, "__name__", "")).partition(".")[0]
