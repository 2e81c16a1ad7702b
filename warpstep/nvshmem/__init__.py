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
from warpstep.values import check_callable, check_int, check_items

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

    Examples
    --------
    >>> from warpstep.nvshmem.core.device.numba import my_pe, put_signal, signal_wait
    >>> SET, EQ = core.SignalOp.SIGNAL_SET, core.ComparisonType.CMP_EQ
    >>> @cuda.jit
    ... def exchange(own, inbox, signal):
    ...     own[0] = my_pe()
    ...     put_signal(inbox, own, signal, 1, SET, 1 - my_pe())
    ...     signal_wait(signal, EQ, 1)
    >>> def program(rank, nranks, uid):
    ...     core.init(uid=uid, rank=rank, nranks=nranks, initializer_method="uid")
    ...     own, inbox, signal = core.array(1), core.array(1), core.array(1, "uint64")
    ...     signal.copy_to_device(np.zeros(1, np.uint64))
    ...     core.barrier_all(cuda.default_stream())
    ...     exchange[1, 1](own, inbox, signal)
    ...     received = float(inbox.copy_to_host()[0])
    ...     core.finalize()
    ...     return received
    >>> run(program, pes=2)
    [1.0, 0.0]
    """
    check_callable("program", program, "a function of rank, nranks and uid")
    args = check_items("args", args, "a sequence of arguments")
    world, uid = World(check_int("pes", pes, 1, MAX_DEVICES)), core.get_unique_id()
    before = count()
    set_device(count=max(before, pes))
    try:
        return world.run(program, (len(world.elements), uid, *args))
    finally:
        set_device(count=before)
