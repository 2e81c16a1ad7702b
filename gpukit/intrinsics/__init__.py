"""What plain ``numba.cuda`` lacks: several neighbouring elements in one access, asynchronous copies, clocks, byte
instructions, and more than 48 KB of dynamic shared memory.

A function for kernels has four parts, and a new one needs them too: its name and documentation in ``functions``, its
type in ``signatures``, its code for a GPU in ``gpu``, and what it does without one in ``emulated``. `commit_copies` is
the shortest to begin with.
"""

from gpukit.intrinsics import emulated, gpu  # noqa: F401 (they register the functions)
from gpukit.intrinsics.dynamic_shared import allow_dynamic_shared
from gpukit.intrinsics.functions import (
    byte_perm,
    clock64,
    commit_copies,
    copy_async,
    copy_async2,
    copy_async4,
    copy_async8,
    dp2a_hi,
    dp2a_lo,
    dp4a,
    globaltimer,
    load2,
    load4,
    load8,
    load16,
    mma,
    smid,
    store2,
    store4,
    wait_copies,
)

__all__ = [
    "allow_dynamic_shared",
    "byte_perm",
    "clock64",
    "commit_copies",
    "copy_async",
    "copy_async2",
    "copy_async4",
    "copy_async8",
    "dp2a_hi",
    "dp2a_lo",
    "dp4a",
    "globaltimer",
    "load16",
    "mma",
    "load2",
    "load4",
    "load8",
    "smid",
    "store2",
    "store4",
    "wait_copies",
]
