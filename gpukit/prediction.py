"""The lower bound of a launch's time (`warpstep.prediction`), and the ceilings of this machine's GPU."""

import functools

from gpukit import _bench
from gpukit.backend import on_gpu
from gpukit.timing import EmulatedTimeError
from warpstep.prediction import *  # noqa: F403
from warpstep.prediction import __all__ as _names
from warpstep.prediction import from_records

__all__ = [*_names, "measured"]


@functools.cache
def measured():
    """Measure the `Ceilings` of this machine's GPU. The first call takes some seconds and needs a checkout of gpukit.

    Raises
    ------
    gpukit.timing.EmulatedTimeError
        Without a GPU.
    """
    if not on_gpu():
        raise EmulatedTimeError("ceilings are measured on a GPU, and kernels run on the emulator here: use recorded()")
    return from_records(_bench.load("bench.ceilings").measured())
