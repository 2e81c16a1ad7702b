"""The lower bound of a launch's time (`warpstep.prediction`), and the ceilings of this machine's GPU."""

import functools

from gpukit import _bench
from gpukit.backend import on_gpu
from gpukit.timing import EmulatedTimeError
from warpstep.prediction import RECORDED, Ceilings, Prediction, Use, from_records, of_records, predict, recorded

__all__ = [
    "RECORDED",
    "Ceilings",
    "Prediction",
    "Use",
    "from_records",
    "measured",
    "of_records",
    "predict",
    "recorded",
]


@functools.cache
def measured() -> Ceilings:
    """Measure the `Ceilings` of this machine's GPU. The first call takes some seconds and needs a checkout of gpukit.

    Raises
    ------
    gpukit.timing.EmulatedTimeError
        Without a GPU.
    """
    if not on_gpu():
        raise EmulatedTimeError("ceilings are measured on a GPU, and kernels run on the emulator here: use recorded()")
    return from_records(_bench.load("bench.ceilings").measured())
