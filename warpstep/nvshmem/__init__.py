"""NVSHMEM without a GPU: programs for nvshmem4py and its Numba bindings, on emulated processing elements.

`core` and `bindings` have the names of the package ``nvshmem``. `run` starts the processing elements, which a launcher
does on a cluster.
"""

from collections.abc import Callable, Sequence
from typing import Any

from warpstep.device import MAX_DEVICES, count, set_device
from warpstep.machine.pes import Stuck, World
from warpstep.nvshmem import core
from warpstep.nvshmem.bindings.device import numba as _bindings  # noqa: F401
from warpstep.nvshmem.core.device import numba as _device  # noqa: F401
from warpstep.values import check_callable, check_int

__all__ = ["Stuck", "core", "run"]


def run(program: Callable, pes: int = 2, args: Sequence = ()) -> list[Any]:
    """Run a program on processing elements, each with a device of its own.

    They take turns where one waits for another, always in the same order.

    Parameters
    ----------
    program : function
        Called in each element as ``program(rank, nranks, uid, *args)``; it gives the first three to
        ``nvshmem.core.init``.
    pes : int
        How many elements there are, at most 8.
    args : sequence

    Returns
    -------
    list
        What the calls returned.

    Raises
    ------
    KernelError
        If a kernel waits for a signal that never comes; it names PE and line.
    Stuck
        If elements wait for each other on the host.
    """
    check_callable("program", program, "a function of rank, nranks and uid")
    world, uid = World(check_int("pes", pes, 1, MAX_DEVICES)), core.get_unique_id()
    before = count()
    set_device(count=max(before, pes))
    try:
        return world.run(program, (len(world.elements), uid, *args))
    finally:
        set_device(count=before)
