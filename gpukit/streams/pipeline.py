"""Pipelines: copy in, compute and copy out, in chunks that overlap (source rows A13 and C3).

The loop itself is in `gpukit.streams.lesson`. Here its operations are prepared once, so that a run costs the host
little, and put into a `Schedule`, so that they can be recorded, checked and modelled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from gpukit._host.arrays import check_kind, configure_quietly, is_pinned
from gpukit._numba import prepare_call
from gpukit.backend import cuda, on_gpu
from gpukit.launching import prepare
from gpukit.streams.kernels import BLOCK, occupancy
from gpukit.streams.model import Model, modelled
from gpukit.streams.schedule import Schedule, on_device, require_gpu
from gpukit.streams.timeline import Timeline
from warpstep.checks import as_dim3
from warpstep.integers import ceil_div
from warpstep.values import check_choice, check_flag, check_int, check_items, describe, has_attributes, type_name

__all__ = ["BUFFERS", "ORDERS", "Pipeline", "Run", "is_pinned", "prepare_copy", "run_pipeline", "split_rows"]

#: The accepted values of ``order`` and ``buffers``.
ORDERS = ("depth", "breadth")
BUFFERS = ("task", "stream", "shared")
#: Tasks of a pipeline, at most.
MAX_CHUNKS = 4096
MAX_ROWS = 2**63 - 1


def run_pipeline(
    kernel: Any,
    x: np.ndarray,
    *,
    chunks: int | Sequence[int] = 4,
    streams: int = 4,
    order: str = "depth",
    pinned: bool = True,
    buffers: str = "task",
    out: np.ndarray | None = None,
) -> "Run":
    """Run a kernel over an array in chunks, so that copies and kernels overlap (A13).

    Each chunk is a task of three operations in one stream: copy its rows to the device, run the kernel, copy its rows
    of the result back. Task i goes to stream i modulo ``streams``.

    Memory, streams and events are made for this one run, which may take longer than the run: a `Pipeline` keeps them.

    Parameters
    ----------
    kernel
        One of: a kernel of ``cuda.jit`` with two arguments, the task's part of ``x`` and its part of the result, which
        is launched with a thread for each element of the latter, in blocks of 256; ``kernel[grid, block]``, launched
        like that; a `SleepKernel` or `WorkKernel`; or a function of (source, target, stream) that queues work on two
        device arrays in this stream, and in no other one.
    x : ndarray, shape (n, ...)
        Any dtype. An array that is not contiguous, or not pinned where it should be, is copied first.
    chunks : int, or sequence of int
        The number of tasks, at most 4,096, of rows as equal as can be, or the rows of each. A task without rows does
        nothing.
    streams : int
        The number of streams, 1 or more.
    order : {"depth", "breadth"}
        Queue all of a task before the next one; or, for as many tasks as there are streams, all copies in, then all
        kernels, then all copies out.
    pinned : bool
        Copy from and to page-locked memory. False: from and to the arrays as they are; if these are pageable, no copy
        overlaps with anything.
    buffers : {"task", "stream", "shared"}
        What has device memory of its own: each task; each stream, whose tasks run in order anyway; or nothing, as in
        the documents: a race, and a wrong result. `Schedule.races` finds it.
    out : ndarray, shape (n, ...), optional
        For the result; any row shape and dtype. Without it the result is like ``x``.

    Returns
    -------
    Run
        With ``result``, the ``schedule``, and on a GPU a measured ``timeline``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, which the message names. Nothing is launched then.

    Examples
    --------
    >>> run = run_pipeline(WorkKernel(rounds=3), np.arange(1000, dtype=np.uint32), chunks=8)
    >>> bool((run.result == scrambled(np.arange(1000, dtype=np.uint32), 3)).all())
    True
    >>> len(run.schedule.operations), run.schedule.races()
    (24, [])
    """
    pipeline = Pipeline(kernel, x, chunks=chunks, streams=streams, order=order, pinned=pinned, buffers=buffers, out=out)
    return pipeline.run(record=on_gpu())


@dataclass(frozen=True)
class Run:
    """The result of `run_pipeline` and `Pipeline.run`.

    Attributes
    ----------
    result : ndarray
    schedule : Schedule
        The operations that were queued, in order. It keeps the tasks' device memory alive.
    measured : Timeline or None
    """

    result: np.ndarray = field(repr=False)
    schedule: Schedule = field(repr=False)
    measured: Timeline | None = None

    @property
    def timeline(self) -> Timeline:
        """What ran when, measured. Raises EmulatedTimeError on the emulator, ValueError if it was not recorded."""
        if self.measured is None:
            require_gpu("a timeline")
            raise ValueError("this run was not recorded: run(record=True) does")
        return self.measured

    def modelled(self, model: Model | None = None) -> Timeline:
        """Simulate the same operations on a model. See `gpukit.streams.modelled`."""
        return modelled(self.schedule, model)


class Pipeline:
    """A pipeline that can run many times: device memory, streams and events are made once.

    Parameters
    ----------
    kernel, x, chunks, streams, order, pinned, buffers, out
        As for `run_pipeline`. For speed, pass pinned ``x`` and ``out`` (``cuda.pinned_array``): otherwise each run also
        copies from and to pinned memory on the host.
    devices : sequence of int, optional
        The devices that take turns with the tasks, each with ``streams`` streams; the current one unless given.

    Attributes
    ----------
    sizes : tuple of int
        Rows of each task.
    schedule : Schedule
    """

    def __init__(
        self,
        kernel: Any,
        x: np.ndarray,
        *,
        chunks: int | Sequence[int] = 4,
        streams: int = 4,
        order: str = "depth",
        pinned: bool = True,
        buffers: str = "task",
        out: np.ndarray | None = None,
        devices: Sequence[int] | None = None,
    ) -> None:
        adapted = _adapt(kernel)
        _check(x, out, order, buffers)
        pinned, streams = check_flag("pinned", pinned), check_int("streams", streams, 1)
        self.sizes = split_rows(chunks, len(x))
        self.x = x
        self.out = _host_memory(x, pinned) if out is None else out
        self._source, self._target = _staged(self.x, pinned), _staged(self.out, pinned)
        self.schedule = Schedule()
        turns = (None,) if devices is None else tuple(devices)
        tasks = self._tasks(adapted, streams, buffers, pinned, turns)
        together = 1 if order == "depth" else streams * len(turns)
        for first in range(0, len(tasks), together):
            for stage in zip(*tasks[first : first + together], strict=True):
                for operation in stage:
                    self.schedule.add(**operation)

    def run(self, record: bool = False) -> Run:
        """Run all tasks and wait for them.

        Parameters
        ----------
        record : bool
            Measure a timeline, too; only on a GPU.
        """
        if self._source is not self.x:
            self._source[...] = self.x
        timeline = self.schedule.run(record)
        if self._target is not self.out:
            self.out[...] = self._target
        return Run(self.out, self.schedule, timeline)

    def _tasks(self, kernel, streams, buffers, pinned, devices):
        """The three operations of each task, as arguments of `Schedule.add`."""
        starts, memory, tasks = np.cumsum((0, *self.sizes)), {}, []
        for place, number in enumerate(number for number, rows in enumerate(self.sizes) if rows):
            turn, device = divmod(place, len(devices))
            stream, device = turn % streams, devices[device]
            rows, start = self.sizes[number], int(starts[number])
            key = ({"task": number, "stream": stream, "shared": 0}[buffers], device)
            if key not in memory:
                held = rows if buffers == "task" else max(self.sizes)
                with on_device(device):
                    memory[key] = [
                        cuda.device_array((held, *host.shape[1:]), host.dtype) for host in (self._source, self._target)
                    ]
            source, target = (held if len(held) == rows else held[:rows] for held in memory[key])
            x, out = (host[start : start + rows] for host in (self._source, self._target))
            queue = self.schedule.stream(stream, device)
            with on_device(device):
                launch, cost = kernel(source, target, queue)
            name = str(key[0]) if device is None else f"{key[0]} of GPU {device}"
            given, made, both = [f"source {name}"], [f"target {name}"], x.nbytes + out.nbytes
            common = {"stream": stream, "task": number, "device": device}
            copy = common | {"pageable": not pinned}
            stages = (
                dict(copy, engine="copy in", action=prepare_copy(source, x, queue), writes=given, nbytes=x.nbytes),
                dict(common, engine="kernel", action=launch, reads=given, writes=made, nbytes=both, **cost),
                dict(copy, engine="copy out", action=prepare_copy(out, target, queue), reads=made, nbytes=out.nbytes),
            )
            tasks.append(stages)
        return tasks


def prepare_copy(target: Any, source: Any, stream: Any) -> Callable:
    """Prepare a copy between host and device, or between devices: a function that queues it.

    On a GPU that is one driver call, at a fraction of what ``copy_to_device`` and ``copy_to_host`` cost the host.
    """
    to_device, from_host = not isinstance(target, np.ndarray), isinstance(source, np.ndarray)
    if source.nbytes == 0:
        return lambda _: None
    if not on_gpu():
        return lambda _: target.copy_to_device(source) if to_device else source.copy_to_host(target)
    name = f"cuMemcpy{'H' if from_host else 'D'}to{'D' if to_device else 'H'}Async"
    addresses = [
        array.ctypes.data if isinstance(array, np.ndarray) else array.device_ctypes_pointer.value
        for array in (target, source)
    ]
    call = prepare_call(name, *addresses, source.nbytes, stream.handle, keep=(target, source, stream))
    return lambda _: call()


# -- arguments -----------------------------------------------------------------------------------------------------


def _check(x, out, order, buffers):
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x is {type_name(x)}; it must be a NumPy array: a pipeline copies it to the device")
    check_kind("x", x)
    if x.ndim == 0:
        raise ValueError("x has shape (); it must have one dimension or more")
    if x.dtype.hasobject:
        raise TypeError(f"x has dtype {x.dtype}; it must hold no Python objects")
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out is {type_name(out)}; it must be a NumPy array")
        check_kind("out", out)
        if out.ndim == 0 or len(out) != len(x):
            raise ValueError(f"out has shape {out.shape}; it must have {len(x)} rows, as x has")
        if not out.flags.writeable or out.dtype.hasobject:
            raise ValueError("out is read-only or holds Python objects; it must be an array that can be written")
        if np.may_share_memory(x, out):
            raise ValueError("out shares memory with x; they must be apart")
    check_choice("order", order, ORDERS)
    check_choice("buffers", buffers, BUFFERS)


def split_rows(chunks: Any, rows: int) -> tuple[int, ...]:
    """Compute the rows of each task. ``chunks`` equal ones, the first ones longer by one where they do not divide."""
    if isinstance(chunks, Integral) and not isinstance(chunks, bool):
        count = check_int("chunks", chunks, 1, MAX_CHUNKS)
        return tuple(rows // count + (i < rows % count) for i in range(count))
    what = f"an int, 1 or more, or the rows of each task, {MAX_CHUNKS:,} at most"
    items = check_items("chunks", chunks, what, MAX_CHUNKS)
    sizes = tuple(check_int(f"chunks[{i}]", size, 0, MAX_ROWS) for i, size in enumerate(items))
    if sum(sizes) != rows:
        raise ValueError(f"chunks has {sum(sizes)} rows in all; x has {rows}")
    return sizes


# -- kernels -------------------------------------------------------------------------------------------------------


def _adapt(kernel):
    """Make a function of any kernel that a pipeline takes; TypeError for others.

    For (source, target, stream) it returns a function that queues the kernel, and its cost for `Schedule.add`.
    """
    if has_attributes(kernel, "prepared", "seconds", "share"):
        return partial(_adapt_timed, kernel)
    configuration = kernel.dispatcher if has_attributes(kernel, "dispatcher", "griddim") else None
    dispatcher = kernel if configuration is None else configuration
    if has_attributes(dispatcher, "py_func", "targetoptions"):
        if dispatcher.targetoptions.get("device"):
            raise TypeError(f"kernel is the device function {dispatcher.py_func.__name__}; it must be a kernel")
        return partial(_adapt_launch, dispatcher, None if configuration is None else kernel)
    if not callable(kernel):
        raise TypeError(f"kernel is {describe(kernel)}; it must be a kernel, or a function of (source, target, stream)")
    return lambda source, target, _: (lambda stream: kernel(source, target, stream), {})


def _adapt_timed(kernel, source, target, stream):
    launch, elements = kernel.prepared(source, target, stream), target.size
    cost = {"seconds": kernel.seconds(elements), "share": kernel.share(elements), "takes_stamps": True}
    return lambda _, stamps: launch(stamps), cost


def _adapt_launch(kernel, configuration, source, target, stream):
    if configuration is not None:
        grid, block, shared = configuration.griddim, configuration.blockdim, configuration.sharedmem
    elif target.size:
        grid, block, shared = ceil_div(target.size, BLOCK), BLOCK, 0
    else:
        return lambda _: None, {}
    launch = configure_quietly(kernel, grid, block, stream, shared)
    cost = {"share": occupancy(as_dim3("grid", grid), as_dim3("block", block))[0]} if target.size else {}
    if kernel.targetoptions.get("debug"):
        return lambda _: launch(source, target), cost
    prepared = prepare(launch, source, target)
    return lambda _: prepared(), cost


# -- memory --------------------------------------------------------------------------------------------------------


def _staged(array, pinned):
    """The array itself, or staging memory for it, if the array cannot be copied from and to directly."""
    # Numba copies a read-only array, and frees the copy while the device may still be reading it.
    if array.flags.c_contiguous and array.flags.writeable and (not pinned or is_pinned(array)):
        return array
    return _host_memory(array, pinned)


def _host_memory(like, pinned):
    """A new array of the shape and dtype of another."""
    # The driver cannot pin 0 bytes.
    return cuda.pinned_array(like.shape, like.dtype) if pinned and like.nbytes else np.empty(like.shape, like.dtype)
