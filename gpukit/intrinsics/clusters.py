"""The size of a kernel's clusters, which numba-cuda's launches have no place for."""

from gpukit._numba import function_of, numba_driver
from gpukit.intrinsics.dynamic_shared import call_when_compiled, check_kernel
from warpstep.launch import Kernel
from warpstep.values import check_int

__all__ = ["set_cluster_size"]

#: Blocks of a cluster that every device with clusters allows.
MAX_BLOCKS = 8


def set_cluster_size(kernel, blocks: int):
    """Set how many consecutive blocks along x form a cluster in launches of a kernel.

    Call it before the first launch on each device. ``gridDim.x`` must then be a multiple of ``blocks``. The blocks of a
    cluster run at the same time on neighbouring multiprocessors. They may wait for one another and copy to one
    another's shared memory: see `cluster_sync`. Needs compute capability 9.0.

    Parameters
    ----------
    kernel : a kernel of ``cuda.jit``
        Of `gpukit.cuda`, or of ``numba.cuda`` where there is a GPU.
    blocks : int
        Blocks of a cluster, 1 to 8.

    Raises
    ------
    TypeError, ValueError
        If ``kernel`` is not a kernel, or ``blocks`` not an int from 1 to 8.

    Examples
    --------
    See `cluster_sync`.
    """
    check_kernel(kernel)
    blocks = check_int("blocks", blocks, 1, MAX_BLOCKS)
    if not isinstance(kernel, Kernel):
        if not hasattr(kernel, "cluster"):
            call_when_compiled(kernel, lambda compiled: _set_compiled(compiled, kernel.cluster))
        for compiled in kernel.overloads.values():
            _set_compiled(compiled, blocks)
    kernel.cluster = blocks


def _set_compiled(compiled, blocks):
    """Set the driver's attributes of one compiled kernel."""
    from cuda.bindings.driver import CUfunction_attribute as Attribute

    function = function_of(compiled)
    for axis, count in (("WIDTH", blocks), ("HEIGHT", 1), ("DEPTH", 1)):
        attribute = getattr(Attribute, f"CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_{axis}")
        numba_driver().cuKernelSetAttribute(attribute, count, function.handle, function.device.id)
