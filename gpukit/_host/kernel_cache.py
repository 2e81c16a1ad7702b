"""Compiled kernels of gpukit's own functions, kept on disk: no process compiles what an earlier one has.

The name of a file is a hash of all that decides the machine code: the kernel with everything it reaches, the types of
its arguments, gpukit's sources, the compiler and its settings. Where one of these differs, so does the name: no file is
ever out of date. Without the files kernels are compiled, so an error in reading or writing one is not the caller's.
"""

import contextlib
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

from gpukit import _numba
from gpukit._host import kernel_files
from gpukit._host.fingerprint import fingerprint
from gpukit.backend import on_gpu

__all__ = ["keep_compiled", "path_of"]

PACKAGE = Path(__file__).parents[1]


def keep_compiled(launch: Any):
    """Let the kernel of a launch look on disk before it compiles, and leave there what it compiles, if it is gpukit's.

    A user's kernel stays as it is, and so does one of the emulator.
    """
    with contextlib.suppress(Exception):
        if on_gpu() and launch.dispatcher.py_func.__module__.startswith("gpukit."):
            _numba.cache_compiled(launch.dispatcher, _load, _save)


def _load(kernel, argument_types):
    """The compiled kernel for these types of arguments, as an earlier process left it; None if there is none."""
    with contextlib.suppress(Exception):
        found = kernel_files.read(path_of(kernel, argument_types))
        if found is not None:
            return _numba.unpack_compiled(found, argument_types)
    return None


def _save(kernel, argument_types, compiled):
    """Leave a compiled kernel for later processes, unless sources have changed: it may be of another version."""
    with contextlib.suppress(Exception):
        path, parts = path_of(kernel, argument_types), _numba.pack_compiled(compiled)
        hash_sources()
        kernel_files.write(path, *parts)
        kernel_files.tidy(path.parent)


def path_of(kernel, argument_types) -> Path:
    """Return the file of a compiled kernel; an exception if there cannot be one."""
    place = kernel_files.folder()
    if place is None:
        raise LookupError("no files are wanted")
    key = fingerprint(kernel, argument_types, _numba.compiler_settings(), _sources())
    return place / f"{kernel.py_func.__name__}-{key.hex()[:40]}{kernel_files.SUFFIX}"


def hash_sources() -> bytes:
    """Hash gpukit's sources: no kernel leads to the functions that write the code of its intrinsics.

    Raises
    ------
    RuntimeError
        If there are none, or one has changed since this process began, which may have loaded what was there before.
    """
    found, paths = hashlib.sha256(), sorted(PACKAGE.rglob("*.py"))
    if not paths:
        raise RuntimeError(f"{PACKAGE} has no sources")
    for path in paths:
        with open(path, "rb") as file:
            status, data = os.fstat(file.fileno()), file.read()
        if max(status.st_mtime, status.st_ctime) > _numba.LOADED:
            raise RuntimeError(f"{path} has changed")
        found.update(f"{path.relative_to(PACKAGE).as_posix()} {len(data)} ".encode() + data)
    return found.digest()


_sources = functools.cache(hash_sources)
