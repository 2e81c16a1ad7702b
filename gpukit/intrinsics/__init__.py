"""What plain ``numba.cuda`` lacks: several neighbouring elements in one access, asynchronous copies, tensor cores,
barriers of some threads, clocks, byte instructions, and more than 48 KB of dynamic shared memory.

A function for kernels has four parts, and a new one needs them too: its name and documentation in ``functions``, its
type in ``signatures``, its code for a GPU in ``gpu``, and what it does without one in ``emulated``. `commit_copies` is
the shortest to begin with.

A *tile* is a C-contiguous array in shared memory; its last axis is a row. The rows of what `wgmma` reads have 16, 32,
64 or 128 bytes, and the row's length is also how the tile is swizzled: in a tile with rows of 128 bytes, the 16 bytes
at place p of row r are at place p ^ (r % 8). With rows of 64 bytes that is p ^ (r // 2 % 4), of 32 bytes
p ^ (r // 4 % 2). Rows of 16 bytes are not swizzled. `copy_tensor` swizzles as it copies, by the `tensor_map`. The
pattern belongs to the addresses: a tile starts at a multiple of 8 rows, 1,024 bytes if they have 128.

The type of the elements decides how they are multiplied: float16, float32 (as TF32), int8, and uint16 for bfloat16.
Kernels of Numba hold a bfloat16 as the bits of a uint16, the upper half of a float32's: view a PyTorch tensor as
``torch.uint16``, an array of ``ml_dtypes`` as ``numpy.uint16``.

`set_cluster_size` gives a kernel clusters of blocks, which ``kernel[grid, block]`` of numba-cuda 0.30 has no place for.
"""

from gpukit.intrinsics import emulated, gpu  # noqa: F401 (they register the functions)
from gpukit.intrinsics.clusters import set_cluster_size
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
    match_byte,
    mma,
    smid,
    store2,
    store4,
    wait_copies,
)
from gpukit.intrinsics.tiles import emulated as _emulated_tiles  # noqa: F401
from gpukit.intrinsics.tiles import gpu as _tiles_gpu  # noqa: F401
from gpukit.intrinsics.tiles.functions import (
    cluster_sync,
    commit_stores,
    copy_tensor,
    copy_windows,
    decrease_registers,
    fence_async,
    fence_barrier_init,
    fence_tensor_map,
    inc_acq_rel,
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
from gpukit.intrinsics.tiles.tensor_map import tensor_map, window_map

__all__ = [
    "allow_dynamic_shared",
    "byte_perm",
    "clock64",
    "cluster_sync",
    "commit_copies",
    "commit_stores",
    "copy_async",
    "copy_async16",
    "copy_async2",
    "copy_async4",
    "copy_async8",
    "copy_tensor",
    "copy_windows",
    "decrease_registers",
    "dp2a_hi",
    "dp2a_lo",
    "dp4a",
    "fence_async",
    "fence_barrier_init",
    "fence_tensor_map",
    "globaltimer",
    "inc_acq_rel",
    "increase_registers",
    "ldmatrix1",
    "ldmatrix2",
    "ldmatrix4",
    "load16",
    "load2",
    "load4",
    "load8",
    "load_acquire",
    "match_byte",
    "mbarrier_arrive",
    "mbarrier_expect",
    "mbarrier_init",
    "mbarrier_wait",
    "mma",
    "named_barrier",
    "set_cluster_size",
    "smid",
    "store2",
    "store4",
    "store_fragment",
    "store_release",
    "store_tensor",
    "tensor_map",
    "view_at",
    "wait_copies",
    "wait_stores",
    "wgmma",
    "wgmma_commit",
    "wgmma_fence",
    "wgmma_wait",
    "window_map",
    "zeros",
]
