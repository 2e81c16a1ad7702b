"""Operations in streams, and what waits for what (source row A13).

Operations of one stream run one after the other; those of different streams run in any order and at the same time,
unless an event stands between them. A `Schedule` holds a program of this kind, so that it can be run, drawn, checked
for what nothing orders, and played through on a modelled device.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpukit import device
from gpukit._host.arrays import configured
from gpukit.backend import cuda, on_gpu
from gpukit.intrinsics import globaltimer
from gpukit.streams.kernels import NEVER
from gpukit.streams.timeline import ENGINES, Bar, Timeline
from warpstep.checks import check_int

__all__ = ["Operation", "Race", "Schedule", "is_done"]

HOLD = 200_000  # nanoseconds


def is_done(stream):
    """Whether a stream has done everything that it was asked to do so far. Returns at once and needs no callback.

    Parameters
    ----------
    stream : 0 or a CUDA stream

    Returns
    -------
    bool
        Always True on the emulator, which does each operation when it is asked for.
    """
    mark = cuda.event(timing=False)
    mark.record(stream)
    return mark.query()


class Operation(NamedTuple):
    """One entry of a `Schedule`; the arguments of `Schedule.add`."""

    name: str
    engine: str
    stream: int
    action: Any
    task: int
    after: tuple
    reads: tuple
    writes: tuple
    nbytes: int
    seconds: float
    share: float
    pageable: bool
    takes_stamps: bool


class Race(NamedTuple):
    """Two operations that use one buffer, at least one to write, with nothing that orders them."""

    first: str
    second: str
    buffer: str

    def __str__(self):
        return f"{self.first} and {self.second} both use {self.buffer}, and nothing says which comes first"


@cuda.jit
def note_time(stamps, wait):
    """stamps[0, 0] = the time, after so many nanoseconds."""
    began = globaltimer()
    while globaltimer() - began < wait:
        pass
    stamps[0, 0] = globaltimer()


class Schedule:
    """A program of operations for several streams, in the order in which the host asks for them.

    Examples
    --------
    >>> schedule = Schedule()
    >>> first = schedule.add("kernel", lambda stream: produce[8, 64, stream](x), stream=0, writes=["x"])
    >>> second = schedule.add("kernel", lambda stream: use[8, 64, stream](x, y), stream=1, after=[first], reads=["x"])
    >>> schedule.run()

    Attributes
    ----------
    operations : list of Operation
    """

    def __init__(self):
        self.operations = []
        self._streams = []
        self._recorder = None
        self._programs = {}

    def add(
        self,
        engine,
        action,
        stream=0,
        *,
        name=None,
        task=None,
        after=(),
        reads=(),
        writes=(),
        nbytes=0,
        seconds=0.0,
        share=1.0,
        pageable=False,
        takes_stamps=False,
    ):
        """Add an operation behind all others.

        Parameters
        ----------
        engine : {"copy in", "kernel", "copy out"}
            What does the work.
        action : callable
            ``action(stream)`` queues the work in the CUDA stream that it is given. With ``takes_stamps``, it is
            ``action(stream, stamps)``: stamps is an int64 device array, empty, or of two elements that the kernel
            makes the minimum of its blocks' beginnings and the maximum of their ends, by ``globaltimer``.
        stream : int
            Number of the stream, from 0.
        name : str, optional
            What it is called; the engine and the task unless given.
        task : int, optional
            What it belongs to, for the picture; the number of the operation unless given.
        after : iterable of int
            Operations that it waits for by an event, besides those before it in its stream.
        reads, writes : iterable of str
            The buffers that it uses, for `races`.
        nbytes, seconds : int, float
            What a copy moves, and how long a kernel takes, for `gpukit.streams.modelled`.
        share : float
            The share of the device that a kernel fills, from 0 to 1: kernels whose shares fit can run at a time.
        pageable : bool
            The copy's host memory is not pinned: the host waits for it.

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
        if engine not in ENGINES:
            raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(map(repr, ENGINES))}")
        if not callable(action):
            raise TypeError(f"action is {action!r}; it must be a function of a stream")
        check_int("stream", stream, 0)
        after = tuple(after)
        for other in after:
            if check_int("after", other, 0) >= number:
                raise ValueError(f"after names operation {other}; there are {number} before this one")
        task = number if task is None else task
        operation = Operation(
            f"{engine} {task}" if name is None else name,
            engine,
            stream,
            action,
            task,
            after,
            tuple(reads),
            tuple(writes),
            nbytes,
            seconds,
            share,
            pageable,
            takes_stamps,
        )
        self.operations.append(operation)
        self._recorder, self._programs = None, {}
        return number

    # -- what is ordered, and what is not --------------------------------------------------------------------------

    def waits(self):
        """list of int : for each operation, those that come before it in any case, as bits: bit i for operation i."""
        last, before = {}, []
        for operation in self.operations:
            ordered = list(operation.after)
            if operation.stream in last:
                ordered.append(last[operation.stream])
            bits = 0
            for other in ordered:
                bits |= before[other] | 1 << other
            last[operation.stream] = len(before)
            before.append(bits)
        return before

    def races(self):
        """list of Race : pairs of operations that use a buffer, at least one to write, and that nothing orders."""
        before, found, users = self.waits(), [], {}
        for number, operation in enumerate(self.operations):
            for buffer in dict.fromkeys((*operation.reads, *operation.writes)):
                writes = buffer in operation.writes
                for other, other_writes in users.setdefault(buffer, []):
                    if (writes or other_writes) and not before[number] >> other & 1:
                        found.append(Race(self.operations[other].name, operation.name, buffer))
                users[buffer].append((number, writes))
        return found

    # -- running ---------------------------------------------------------------------------------------------------

    def stream(self, number):
        """CUDA stream : the one that has this number; made when it is first asked for."""
        while len(self._streams) <= number:
            self._streams.append(cuda.stream())
        return self._streams[number]

    def run(self, record=False):
        """Ask the device for all operations, in order, and wait until they are done.

        Parameters
        ----------
        record : bool
            Note when each one began and ended; only on a GPU. Two events per operation tell, and for kernels that take
            stamps their own clock. A kernel without is shown from when its stream came to it, which may be before the
            device had room for it.

        Returns
        -------
        Timeline or None
            None unless ``record`` is true.

        Raises
        ------
        EmulatedTimeError
            If ``record`` is true on the emulator: `gpukit.streams.modelled` plays the schedule through on a model.
        """
        recorder = None
        if record:
            _check_gpu("a timeline")
            recorder = self._recorder = self._recorder or _Recorder(self.operations)
        program = self._program(recorder)
        if recorder:
            recorder.begin()
        _ask(program)
        for stream in self._streams:
            stream.synchronize()
        return recorder.timeline() if recorder else None

    def queue(self):
        """Ask the device for all operations, in order, and do not wait."""
        _ask(self._program(None))

    def _program(self, recorder):
        """What the host does, call by call; made once."""
        if recorder not in self._programs:
            awaited = {other for operation in self.operations for other in operation.after}
            marks = {number: cuda.event(timing=False) for number in awaited}
            calls = []
            for number, operation in enumerate(self.operations):
                stream = self.stream(operation.stream)
                others = [other for other in operation.after if self.operations[other].stream != operation.stream]
                calls += [partial(marks[other].wait, stream) for other in others]
                stamps = [recorder.rows[number] if recorder else _no_stamps()] if operation.takes_stamps else []
                action = partial(operation.action, stream, *stamps)
                calls += recorder.around(number, action, stream) if recorder else [action]
                calls += [partial(marks[number].record, stream)] if number in awaited else []
            self._programs[recorder] = calls
        return self._programs[recorder]


def _ask(program):
    cuda.current_context()  # makes it that of this thread, which need not be the one that made the schedule
    for call in program:
        call()


def _check_gpu(what):
    from gpukit.timing import EmulatedTimeError

    if not on_gpu():
        raise EmulatedTimeError(
            f"{what} shows times, and the emulator has none. gpukit.streams.modelled(schedule) plays a schedule "
            "through on a model of a GPU, and says that it is one; timelines recorded on a GPU come with gpukit"
        )


def _no_stamps():
    return cuda.device_array(0, np.int64)


class _Recorder:
    """The events and stamps of one schedule, used again for each recorded run."""

    def __init__(self, operations):
        self.operations = operations
        count = len(self.operations)
        self.starts = [cuda.event() for _ in range(count)]
        self.ends = [cuda.event() for _ in range(count)]
        self.before, self.origin = cuda.event(), cuda.event()
        self.fresh = np.full((count + 1, 2), (NEVER, -1), np.int64)
        self.stamps = cuda.device_array((count + 1, 2), np.int64)
        self.rows = [self.stamps[number + 1] for number in range(count)]
        self.note = configured(note_time, 1, 1)
        self.note(self.stamps, 0)  # compiles

    def around(self, number, action, stream):
        """The calls that record an operation."""
        return [partial(self.starts[number].record, stream), action, partial(self.ends[number].record, stream)]

    def begin(self):
        """Set time 0, on the clock of the events and on that of the stamps."""
        self.stamps.copy_to_device(self.fresh)
        self.note(self.stamps, HOLD)  # while it waits, the next three are asked for, to run close behind each other
        self.before.record()
        self.note(self.stamps, 0)
        self.origin.record()

    def timeline(self):
        """Bars of everything that ran, from 0 on."""
        stamps = self.stamps.copy_to_host()
        # The stamp was made between two events; half of what lies between them is what it can be wrong by.
        zero = 0.5e-3 * self.before.elapsed_time(self.origin)
        free, bars = dict.fromkeys(ENGINES, 0.0), []
        spans = [
            (1e-3 * self.origin.elapsed_time(start), 1e-3 * self.origin.elapsed_time(end))
            for start, end in zip(self.starts, self.ends, strict=True)
        ]
        for number in sorted(range(len(spans)), key=lambda number: spans[number][1]):
            operation, (start, end) = self.operations[number], spans[number]
            if stamps[number + 1, 1] >= 0:
                start, end = (stamps[number + 1] - stamps[0, 0]) * 1e-9 - zero
            elif operation.engine != "kernel":
                # Its event says when the stream came to the copy; the engine may have been at another one until later.
                start = min(max(start, free[operation.engine]), end)
                free[operation.engine] = end
            bars.append(
                Bar(operation.name, operation.task, operation.stream, operation.engine, float(start), float(end))
            )
        first = min((bar.start for bar in bars), default=0.0)
        bars = [bar._replace(start=bar.start - first, end=bar.end - first) for bar in bars]
        return Timeline(tuple(sorted(bars, key=lambda bar: bar.start)), device.info().name, False)
