"""Measurements of the figures of a `Model`, on this machine's GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpukit import device
from gpukit.backend import cuda
from gpukit.streams.kernels import SleepKernel
from gpukit.streams.model import Model
from gpukit.streams.pipeline import Pipeline, prepare_copy
from gpukit.streams.schedule import Schedule, require_gpu
from gpukit.timing import Timer
from warpstep.values import check_int

__all__ = ["copy_speeds", "engine_starts", "measured_model", "operation_seconds"]

REPEATS = 5
#: Cycles that the device sleeps while the host queues what is measured.
HOLD = 400_000
#: Operations queued to measure the cost of each.
QUEUED = 64


def measured_model(nbytes: int = 2**27) -> Model:
    """Measure the figures of this machine, for `gpukit.streams.modelled` and `predicted`.

    Parameters
    ----------
    nbytes : int
        Bytes of one copy, 4 or more. Larger copies come closer to the full speed.

    Raises
    ------
    EmulatedTimeError
        On the emulator.

    Examples
    --------
    >>> model = measured_model()  # doctest: +SKIP
    """
    require_gpu("a measured model")
    check_int("nbytes", nbytes, 4)
    info: Any = device.info()
    speeds, starts = copy_speeds(nbytes), engine_starts()
    return Model(
        name=f"the figures of this {info.name}, measured",
        copy_in=speeds["copy in"],
        copy_out=speeds["copy out"],
        both_in=min(speeds["copy in, both"] / speeds["copy in"], 1.0),
        both_out=min(speeds["copy out, both"] / speeds["copy out"], 1.0),
        pageable_in=speeds["copy in, pageable"],
        pageable_out=speeds["copy out, pageable"],
        copy_start=starts["copy"],
        kernel_start=starts["kernel"],
        issue=operation_seconds(),
        copy_engines=info.async_engine_count,
        concurrent_kernels=info.concurrent_kernels,
    )


def copy_speeds(nbytes: int) -> dict[str, float]:
    """Measure bytes per second of copies of ``nbytes``: each direction alone, from pinned and from pageable memory, and
    both at the same time.
    """
    held = [cuda.device_array(nbytes, np.uint8) for _ in range(2)]
    pinned = [cuda.pinned_array(nbytes, np.uint8) for _ in range(2)]
    pageable = [np.ones(nbytes, np.uint8) for _ in range(2)]
    for host in pinned:
        host[...] = 1

    def copies(hosts):
        """A copy in from the first of two host arrays, and one out to the second."""
        return [
            ("copy in", lambda stream: held[0].copy_to_device(hosts[0], stream=stream)),
            ("copy out", lambda stream: held[1].copy_to_host(hosts[1], stream=stream)),
        ]

    found = {}
    for suffix, hosts in (("", pinned), (", pageable", pageable)):
        for copy in copies(hosts):
            found[copy[0] + suffix] = _speed([copy], nbytes, queued=hosts is pinned)[0]
    found["copy in, both"], found["copy out, both"] = _speed(copies(pinned), nbytes)
    return found


def _speed(operations: Sequence[tuple[str, Callable]], nbytes: int, queued: bool = True) -> list[float]:
    """Median bytes per second of each of some concurrent copies, one per stream.

    ``queued``: queue all of them before the first may start. Not for pageable memory, where the host's part of the copy
    belongs to its time.
    """
    schedule, small = Schedule(), cuda.device_array(1, np.float32)
    if queued:
        hold = SleepKernel(HOLD, 1, 1).prepared(small, small, schedule.stream(0))
        nothing = cuda.device_array(0, np.int64)
        schedule.add("kernel", lambda _: hold(nothing))
    for stream, (engine, action) in enumerate(operations):
        schedule.add(engine, action, stream, after=[0] if queued else [])
    runs = []
    for _ in range(REPEATS):
        timeline: Any = schedule.run(record=True)
        bars = {bar.engine: bar for bar in timeline.bars}
        runs.append([nbytes / (bars[engine].end - bars[engine].start) for engine, _ in operations])
    return np.median(runs, axis=0).tolist()


def engine_starts() -> dict[str, float]:
    """Measure the seconds of overhead of a "copy" and of a "kernel" on its engine, queued many at a time."""
    small, host = cuda.device_array(1, np.float32), cuda.pinned_array(1, np.float32)
    stream, nothing = cuda.stream(), cuda.device_array(0, np.int64)
    hold, kernel = (SleepKernel(cycles, 1, 1).prepared(small, small, stream) for cycles in (10 * HOLD, 0))
    found = {}
    for name, queue in {"copy": prepare_copy(small, host, stream), "kernel": lambda _: kernel(nothing)}.items():
        seconds = []
        for _ in range(REPEATS):
            hold(nothing)
            with Timer(device="gpu", unit="s", stream=stream, show=False) as timer:
                for _ in range(QUEUED):
                    queue(stream)
            seconds.append(timer.elapsed / QUEUED)
        found[name] = float(np.median(seconds))
    return found


def operation_seconds() -> float:
    """Measure the seconds of a pipeline per operation where there is next to nothing to copy and to compute: what the
    host takes to queue it, or the device to go on to the next.
    """
    pipeline = Pipeline(SleepKernel(0), np.zeros(QUEUED, np.float32), chunks=QUEUED)
    seconds = []
    for _ in range(REPEATS + 1):
        with Timer(unit="s", show=False) as timer:
            pipeline.run()
        seconds.append(timer.elapsed)
    return float(np.median(seconds[1:])) / len(pipeline.schedule.operations)
