"""Operations in streams, and what waits for what (source row A13).

Operations of one stream run in order. Those of different streams run in any order, and at the same time, unless an
event orders them. A `Schedule` holds such a program: it can be run, drawn, checked for races, and simulated on a model
of a device.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpukit import device
from gpukit._host.arrays import configure_quietly, stream_of
from gpukit._numba import prepare_call
from gpukit.backend import cuda, on_gpu
from gpukit.intrinsics import globaltimer
from gpukit.streams.kernels import NEVER
from gpukit.streams.timeline import ENGINES, PEER_COPY, Bar, Timeline
from gpukit.timing import EmulatedTimeError
from warpstep.values import (
    check_callable,
    check_choice,
    check_flag,
    check_int,
    check_items,
    check_number,
    check_text,
    describe,
)

__all__ = ["Operation", "Race", "Schedule", "is_done", "require_gpu"]

#: Nanoseconds that the device is kept busy while the host queues what must run back to back.
HOLD = 200_000
#: Streams of a schedule.
MAX_STREAMS = 4096


def is_done(stream: Any) -> bool:
    """Ask whether all work queued in a stream so far is done. Returns at once and needs no callback.

    Parameters
    ----------
    stream : 0 or a CUDA stream

    Returns
    -------
    bool
        Always True on the emulator, which runs each operation when it is queued.

    Examples
    --------
    >>> stream = cuda.stream()
    >>> stream.synchronize()
    >>> is_done(stream)
    True
    """
    mark = cuda.event(timing=False)
    mark.record(stream_of(stream))
    return mark.query()


class Operation(NamedTuple):
    """One entry of a `Schedule`, as `Schedule.add` appends it."""

    name: str
    engine: str
    stream: int
    action: Callable
    task: int
    after: tuple = ()
    reads: tuple = ()
    writes: tuple = ()
    nbytes: int = 0
    seconds: float = 0.0
    share: float = 1.0
    pageable: bool = False
    takes_stamps: bool = False
    device: int | None = None
    peer: int | None = None
    peer_bytes: int = 0


class Race(NamedTuple):
    """Two unordered operations that use one buffer, at least one of them to write."""

    first: str
    second: str
    buffer: str

    def __str__(self):
        return f"{self.first} and {self.second} both use {self.buffer}, and nothing says which comes first"


@cuda.jit
def note_time(stamps, wait):
    """Wait for ``wait`` nanoseconds, then store the time in stamps[0, 0]."""
    began = globaltimer()
    while globaltimer() - began < wait:
        pass
    stamps[0, 0] = globaltimer()


class Schedule:
    """A program of operations for several streams, in the order in which the host queues them.

    Examples
    --------
    >>> @cuda.jit
    ... def add_one(x):
    ...     x[cuda.grid(1)] += 1
    >>> x = cuda.to_device(np.zeros(512))
    >>> schedule = Schedule()
    >>> first = schedule.add("kernel", lambda stream: add_one[8, 64, stream](x), stream=0, writes=["x"])
    >>> second = schedule.add("kernel", lambda stream: add_one[8, 64, stream](x), stream=1, after=[first], writes=["x"])
    >>> schedule.run()
    >>> cuda.synchronize()
    >>> float(x.copy_to_host()[0])
    2.0

    Attributes
    ----------
    operations : list of Operation
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._streams: dict[int | None, list] = {}
        self._recorder = None
        self._programs = {}

    def add(
        self,
        engine: str,
        action: Callable,
        stream: int = 0,
        *,
        name: str | None = None,
        task: int | None = None,
        after: Iterable[int] = (),
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        **cost: Any,
    ) -> int:
        """Append an operation.

        Parameters
        ----------
        engine : {"copy in", "kernel", "copy out", "peer copy"}
            The engine of the device that does the work. A peer copy is in a stream of the device that it copies from.
        action : callable
            ``action(stream)`` queues the work in a CUDA stream. With ``takes_stamps`` it is ``action(stream, stamps)``:
            stamps is an int64 device array, either empty, or of two elements in which the kernel keeps the minimum of
            its blocks' start times and the maximum of their end times, by ``globaltimer``.
        stream : int
            Number of the stream, from 0. Each device has its own.
        name : str, optional
            Engine and task unless given.
        task : int, optional
            Task that the operation belongs to, shown in plots; the number of the operation unless given.
        after : iterable of int
            Operations that it waits for by an event, besides those before it in its stream.
        reads, writes : iterable of str
            Names of the buffers it uses, for `races`.
        **cost
            What `gpukit.streams.modelled` needs to know. ``nbytes`` (int): bytes that a copy moves. ``seconds``
            (float): duration of a kernel. ``share`` (float, 1 unless given): the part of the device that a kernel
            fills; kernels whose shares add up to at most 1 run concurrently. ``pageable`` (bool): the host memory of a
            copy is not pinned, so the host waits for the copy. ``takes_stamps`` (bool): see ``action``. With several
            devices: ``device`` (int), whose stream it is, the current one unless given; ``peer`` (int), the device that
            a peer copy writes to, or that a kernel reads ``peer_bytes`` (int) from.

        Returns
        -------
        int
            The number of the operation.

        Raises
        ------
        TypeError, ValueError
            For an argument that is not as above.
        """
        number = len(self.operations)
        check_choice("engine", engine, (*ENGINES, PEER_COPY))
        check_callable("action", action, "a function of a stream")
        stream = check_int("stream", stream, 0, MAX_STREAMS - 1)
        after = tuple(check_int("after", other, 0) for other in check_items("after", after, "ints"))
        for other in after:
            if other >= number:
                raise ValueError(f"after names operation {describe(other)}; there are {number} before this one")
        reads, writes = (
            tuple(check_text(what, name) for name in check_items(what, names, "names of buffers"))
            for what, names in (("reads", reads), ("writes", writes))
        )
        _check_cost(**cost)
        task = number if task is None else check_int("task", task, 0)
        name = f"{engine} {task}" if name is None else check_text("name", name)
        operation = Operation(name, engine, stream, action, task, after, reads, writes, **cost)
        self.operations.append(operation)
        self._recorder, self._programs = None, {}
        return number

    # -- order ---------------------------------------------------------------------------------------------------------

    def waits(self) -> list[int]:
        """For each operation, all operations that are ordered before it, as bits: bit i for operation i."""
        last, before = {}, []
        for operation in self.operations:
            ordered = list(operation.after)
            queue = operation.device, operation.stream
            if queue in last:
                ordered.append(last[queue])
            bits = 0
            for other in ordered:
                bits |= before[other] | 1 << other
            last[queue] = len(before)
            before.append(bits)
        return before

    def races(self) -> list[Race]:
        """Find the unordered pairs of operations that use one buffer, at least one of them to write."""
        before, found, users = self.waits(), [], {}
        for number, operation in enumerate(self.operations):
            for buffer in dict.fromkeys((*operation.reads, *operation.writes)):
                writes = buffer in operation.writes
                for other, other_writes in users.setdefault(buffer, []):
                    if (writes or other_writes) and not before[number] >> other & 1:
                        found.append(Race(self.operations[other].name, operation.name, buffer))
                users[buffer].append((number, writes))
        return found

    # -- running -------------------------------------------------------------------------------------------------------

    def stream(self, number: int, device: int | None = None) -> Any:
        """Return the CUDA stream with this number of a device, which is created on first use."""
        number = check_int("number", number, 0, MAX_STREAMS - 1)
        streams = self._streams.setdefault(device, [])
        with on_device(device):
            while len(streams) <= number:
                streams.append(cuda.stream())
        return streams[number]

    def run(self, record: bool = False) -> Timeline | None:
        """Queue all operations, in order, and wait until they are done.

        Parameters
        ----------
        record : bool
            Record when each operation started and ended; only on a GPU. Two events per operation tell, and for kernels
            that take stamps the device's clock. A kernel without stamps is shown from the moment when its stream came
            to it, which may be before the device had room for it.

        Returns
        -------
        Timeline or None
            None unless ``record`` is true.

        Raises
        ------
        EmulatedTimeError
            If ``record`` is true on the emulator: `gpukit.streams.modelled` simulates the schedule on a model instead.
        """
        recorder = None
        if check_flag("record", record):
            require_gpu("a timeline")
            recorder = self._recorder = self._recorder or _Recorder(self.operations)
        program = self._program(recorder)
        if recorder:
            recorder.begin()
        _queue(program, self._crosses())
        for number, streams in self._streams.items():
            with on_device(number):
                for stream in streams:
                    stream.synchronize()
        return recorder.timeline() if recorder else None

    def queue(self) -> None:
        """Queue all operations, in order, and do not wait."""
        _queue(self._program(None), self._crosses())

    def _crosses(self):
        return any(device is not None for device in self._streams)

    def _program(self, recorder):
        """The calls that queue everything, in order; made once, so that a run costs the host little."""
        if recorder not in self._programs:
            awaited = {other for operation in self.operations for other in operation.after}
            events = {number: _event(self.operations[number].device, timing=False) for number in awaited}
            no_stamps, calls, current = cuda.device_array(0, np.int64), [], None
            for number, operation in enumerate(self.operations):
                if operation.device != current:
                    calls += _switch(current, operation.device)
                    current = operation.device
                stream = self.stream(operation.stream, operation.device)
                queues = ((other, self.operations[other]) for other in operation.after)
                here = operation.device, operation.stream
                others = [other for other, before in queues if (before.device, before.stream) != here]
                calls += [_event_call("cuStreamWaitEvent", events[other], stream) for other in others]
                stamps = [recorder.rows[number] if recorder else no_stamps] if operation.takes_stamps else []
                action = partial(operation.action, stream, *stamps)
                calls += recorder.around(number, action, stream) if recorder else [action]
                calls += [_event_call("cuEventRecord", events[number], stream)] if number in awaited else []
            self._programs[recorder] = calls + _switch(current, None)
        return self._programs[recorder]


def on_device(device: int | None) -> Any:
    """Make a context manager that makes a device the current one; None leaves the current one as it is."""
    return nullcontext() if device is None else cuda.gpus[device]


def _event(device, timing=True):
    with on_device(device):
        return cuda.event(timing=timing)


def _event_call(name, event, stream):
    """The call that records an event in a stream, or has the stream wait for it."""
    if not on_gpu():
        return partial(event.record if name == "cuEventRecord" else event.wait, stream)
    pair = event.handle, stream.handle
    if name == "cuEventRecord":
        return prepare_call(name, *pair, keep=(event, stream))
    return prepare_call(name, *reversed(pair), 0, keep=(event, stream))


def _switch(old, new):
    """The calls that make another device the current one; after the last one `_queue` brings back the one before."""
    if on_gpu():
        return [] if new is None else [_bring(cuda.gpus[new].get_primary_context())]
    leave = [] if old is None else [partial(cuda.gpus[old].__exit__, None, None, None)]
    return leave + ([] if new is None else [cuda.gpus[new].__enter__])


def _check_cost(
    nbytes=0, seconds=0.0, share=1.0, pageable=False, takes_stamps=False, device=None, peer=None, peer_bytes=0
):
    check_int("nbytes", nbytes, 0)
    check_int("peer_bytes", peer_bytes, 0)
    for name, number in (("device", device), ("peer", peer)):
        if number is not None:
            check_int(name, number, 0, len(cuda.gpus) - 1)
    for name, value in (("seconds", seconds), ("share", share)):
        check_number(name, value, 0)
    for name, value in (("pageable", pageable), ("takes_stamps", takes_stamps)):
        check_flag(name, value)


def _bring(context):
    return prepare_call("cuCtxSetCurrent", context.handle, keep=context)


def _queue(program, crosses):
    """Make the calls; where they cross devices, make the one of before the current one again."""
    here = cuda.current_context()  # bind it to this thread, which may not be the one that made the schedule
    try:
        for call in program:
            call()
    finally:
        if crosses and on_gpu():
            _bring(here)()


def require_gpu(what: str) -> None:
    """Raise EmulatedTimeError on the emulator, for ``what`` shows times."""
    if not on_gpu():
        raise EmulatedTimeError(
            f"{what} shows times, and the emulator has none. gpukit.streams.modelled(schedule) plays a schedule "
            "through on a model of a GPU, and says that it is one; timelines recorded on a GPU come with gpukit"
        )


class _Recorder:
    """The events and stamps of one schedule, reused by each recorded run."""

    def __init__(self, operations):
        self.operations = operations
        count = len(self.operations)
        self.starts, self.ends = ([_event(operation.device) for operation in operations] for _ in range(2))
        self.before, self.origin = cuda.event(), cuda.event()
        here = cuda.current_context().device.id
        others = {operation.device for operation in operations} - {None, here}
        self.origins = {device: _event(device) for device in others}
        self.fresh = np.full((count + 1, 2), (NEVER, -1), np.int64)
        self.stamps = cuda.device_array((count + 1, 2), np.int64)
        self.rows = [self.stamps[number + 1] for number in range(count)]
        self.note_time = configure_quietly(note_time, 1, 1)
        self.note_time(self.stamps, 0)  # compiles

    def around(self, number, action, stream):
        """The calls that run an operation between its two events."""
        return [partial(self.starts[number].record, stream), action, partial(self.ends[number].record, stream)]

    def begin(self):
        """Mark time 0 on both clocks, that of the events and that of the stamps."""
        self.stamps.copy_to_device(self.fresh)
        self.note_time(self.stamps, HOLD)  # while it waits, the next three are queued, to run back to back
        self.before.record()
        self.note_time(self.stamps, 0)
        self.origin.record()
        for number, origin in self.origins.items():  # time 0 of the other devices, some microseconds later
            with on_device(number):
                self.origin.wait()
                origin.record()

    def timeline(self):
        """Bars of everything that ran, from 0 on."""
        stamps = self.stamps.copy_to_host()
        # Stamp 0 was taken somewhere between two events: assume the middle.
        zero = 0.5e-3 * self.before.elapsed_time(self.origin)
        free, bars, spans = {}, [], []
        for operation, start, end in zip(self.operations, self.starts, self.ends, strict=True):
            origin = self.origins.get(operation.device, self.origin)
            with on_device(operation.device):
                spans.append((1e-3 * origin.elapsed_time(start), 1e-3 * origin.elapsed_time(end)))
        for number in sorted(range(len(spans)), key=lambda number: spans[number][1]):
            operation, (start, end) = self.operations[number], spans[number]
            if stamps[number + 1, 1] >= 0:
                start, end = (stamps[number + 1] - stamps[0, 0]) * 1e-9 - zero
            elif operation.engine != "kernel":
                # The event tells when the stream came to the copy; its engine may have been busy until later.
                unit = operation.device, operation.engine, operation.peer
                start = min(max(start, free.get(unit, 0.0)), end)
                free[unit] = end
            place = operation.name, operation.task, operation.stream, operation.engine
            bars.append(Bar(*place, float(start), float(end), operation.device or 0))
        return Timeline.from_zero(bars, device.info().name, False)
