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
    copy_async16,
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
from gpukit.intrinsics.tiles import emulated as _emulated_tiles  # noqa: F401
from gpukit.intrinsics.tiles import gpu as _tiles_gpu  # noqa: F401
from gpukit.intrinsics.tiles.functions import (  # noqa: F401
    commit_stores,
    copy_tensor,
    decrease_registers,
    fence_async,
    fence_barrier_init,
    fence_tensor_map,
    increase_registers,
    ldmatrix1,
    ldmatrix2,
    ldmatrix4,
    load_acquire,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    named_barrier,
    store_fragment,
    store_release,
    store_tensor,
    view_at,
    wait_stores,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)
from gpukit.intrinsics.tiles.tensor_map import tensor_map  # noqa: F401

__all__ = [
    "allow_dynamic_shared",
    "byte_perm",
    "clock64",
    "commit_copies",
    "copy_async",
    "copy_async2",
    "copy_async4",
    "copy_async8",
    "copy_async16",
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
