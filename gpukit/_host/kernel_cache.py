"""Compiled kernels of gpukit's own functions, kept on disk: no process compiles what an earlier one has.

The name of a file is a hash of all that decides the machine code: the kernel with everything it reaches, the types of
its arguments, gpukit's sources, the compiler and its settings. Where one of these differs, so does the name: no file is
ever out of date. Without the files all works as well, after kernels are compiled, so their errors are not the caller's.
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

__all__ = ["keep_compiled"]

PACKAGE = Path(__file__).parents[1]


def keep_compiled(kernel: Any):
    """Let a kernel of gpukit look on disk before it compiles, and leave there what it compiles.

    A user's kernel stays as it is, and so does one of the emulator.
    """
    if on_gpu() and kernel.py_func.__module__.startswith("gpukit."):
        with contextlib.suppress(Exception):
            _numba.cache_compiled(kernel, _load, _save)


def _load(kernel, argument_types):
    """The compiled kernel for these types of arguments, as an earlier process left it; None if there is none."""
    with contextlib.suppress(Exception):
        found = kernel_files.read(_path(kernel, argument_types))
        if found is not None:
            return _numba.unpack_compiled(found, argument_types)
    return None


def _save(kernel, argument_types, compiled):
    with contextlib.suppress(Exception):
        path, parts = _path(kernel, argument_types), _numba.pack_compiled(compiled)
        kernel_files.write(path, *parts)
        kernel_files.tidy(path.parent)


def _path(kernel, argument_types) -> Path:
    """The file of a compiled kernel; an exception if it is not to be kept."""
    place = kernel_files.folder()
    if place is None:
        raise LookupError("no files are wanted")
    key = fingerprint(kernel, argument_types, _numba.compiler_settings(), sources())
    return place / f"{kernel.py_func.__name__}-{key.hex()[:40]}{kernel_files.SUFFIX}"


@functools.cache
def sources() -> bytes:
    """Hash gpukit's sources: no kernel leads to the functions that write the code of its intrinsics.

    Raises
    ------
    RuntimeError
        If a file has changed since this process began, for it may have loaded what was there before.
    """
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        with open(path, "rb") as file:
            status, data = os.fstat(file.fileno()), file.read()
        if max(status.st_mtime, status.st_ctime) > _numba.LOADED:
            raise RuntimeError(f"{path} has changed")
        found.update(f"{path.relative_to(PACKAGE).as_posix()} {len(data)} ".encode() + data)
    return found.digest()
