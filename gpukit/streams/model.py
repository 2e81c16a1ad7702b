"""How long a pipeline should take: a formula, and a simulation of a schedule on a model of a device.

Nothing here is measured, and everything says so. The figures of the default model come from one machine.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from gpukit.streams.schedule import Operation, Schedule
from gpukit.streams.timeline import PEER_COPY, Bar, Timeline
from warpstep.values import check_flag, check_int, check_number, check_text, check_type

__all__ = ["Model", "best_chunks", "best_speedup", "modelled", "predicted"]

#: Beyond this, numbers of chunks are mistakes.
MAX_CHUNKS = 2**31 - 1


def predicted(copy_in: float, kernel: float, copy_out: float, chunks: int, launch: float = 0.0) -> float:
    """Predict the seconds of a pipeline of equal chunks: (h + k + d) / N + (N - 1) / N max(h, k, d) + N t.

    One chunk goes through all three stages, the other N - 1 wait for the slowest stage, and queuing a chunk takes t.

    Parameters
    ----------
    copy_in, kernel, copy_out : float
        Seconds of each stage for the whole array: h, k and d.
    chunks : int
        N, 1 or more.
    launch : float
        Seconds of overhead per chunk: t.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind or below its least value, here and in the other functions of this module.

    Examples
    --------
    >>> round(1000 * predicted(1e-3, 2e-3, 1e-3, chunks=10), 3)
    2.2
    """
    (copy_in, kernel, copy_out), chunks = _stages(copy_in, kernel, copy_out), check_int("chunks", chunks, 1, MAX_CHUNKS)
    check_number("launch", launch, 0)
    whole = copy_in + kernel + copy_out
    return whole / chunks + (chunks - 1) / chunks * max(copy_in, kernel, copy_out) + chunks * launch


def best_chunks(copy_in: float, kernel: float, copy_out: float, launch: float, most: int = 1024) -> int:
    """Find the N from 1 to ``most`` that minimises `predicted`: near the root of (h + k + d - max(h, k, d)) / t.

    Examples
    --------
    >>> best_chunks(1e-3, 2e-3, 1e-3, launch=1e-5)
    14
    """
    stages, most = _stages(copy_in, kernel, copy_out), check_int("most", most, 1, MAX_CHUNKS)
    launch = float(check_number("launch", launch, 0))
    hidden = sum(sorted(stages)[:2])
    near = max(math.isqrt(int(min(hidden / launch, most**2))), 1) if launch > 0 else most
    return min(
        (n for n in (near, near + 1) if n <= most), key=lambda n: predicted(copy_in, kernel, copy_out, n, launch)
    )


def best_speedup(copy_in: float, kernel: float, copy_out: float, both: float | None = None) -> float:
    """Bound the speedup of overlap: (h + k + d) over the longest stage.

    ``both`` is the time to copy the whole array in and out at once. It exceeds that of either direction alone where
    the two share bandwidth.

    Examples
    --------
    >>> best_speedup(1e-3, 2e-3, 1e-3)
    2.0
    """
    stages = _stages(copy_in, kernel, copy_out)
    longest = max(*stages, 0.0 if both is None else float(check_number("both", both, 0)))
    if longest == 0:
        raise ValueError("copy_in, kernel and copy_out are all 0; one of them must be more")
    return sum(stages) / longest


def _stages(copy_in, kernel, copy_out):
    stages = {"copy_in": copy_in, "kernel": kernel, "copy_out": copy_out}
    return tuple(float(check_number(name, seconds, 0)) for name, seconds in stages.items())


@dataclass(frozen=True)
class Model:
    """The figures of a device that `modelled` simulates.

    The defaults describe an H200 on PCIe 5. Speeds are as ``gpukit bench streams`` measured them; the costs of an
    operation are fitted so that modelled pipelines are within a tenth of measured ones.

    Attributes
    ----------
    name : str
    copy_in, copy_out : float
        Bytes per second between pinned memory and the device, one direction alone.
    both_in, both_out : float
        Share of its speed that each direction keeps while the other is busy.
    pageable_in, pageable_out : float
        Bytes per second from and to memory that is not pinned.
    memory : float
        Bytes per second of a kernel, for kernels whose duration is not given.
    copy_start, kernel_start : float
        Seconds of overhead per operation of an engine.
    issue : float
        Seconds that the host needs to queue an operation.
    copy_engines : int
        With 1, copies in and out take turns; with 0 they take turns with kernels too.
    concurrent_kernels : bool
        Whether kernels that do not fill the device run concurrently.
    link : float
        Bytes per second from one device to another, each direction of each pair; 0 if they are not linked: then a
        copy goes through the host.
    link_start : float
        Seconds until the first byte arrives.
    shared_host : bool
        Whether the copies of all devices to and from the host share one link.
    in_order : bool
        Whether an engine runs operations in the order in which they were queued, even if a later one is ready first, as
        the first devices with streams did.
    """

    name: str = "the figures of an H200 on PCIe 5"
    copy_in: float = 55.3e9
    copy_out: float = 55.3e9
    both_in: float = 0.93
    both_out: float = 0.92
    pageable_in: float = 9.8e9
    pageable_out: float = 17.9e9
    memory: float = 4.2e12
    copy_start: float = 5.6e-6
    kernel_start: float = 2e-6
    issue: float = 4.3e-6
    copy_engines: int = 3
    concurrent_kernels: bool = True
    link: float = 374e9
    link_start: float = 9e-6
    shared_host: bool = False
    in_order: bool = False

    def __post_init__(self):
        check_text("name", self.name)
        check_int("copy_engines", self.copy_engines, 0)
        for name in ("concurrent_kernels", "shared_host", "in_order"):
            check_flag(name, getattr(self, name))
        for name in ("copy_in", "copy_out", "both_in", "both_out", "pageable_in", "pageable_out", "memory"):
            if check_number(name, getattr(self, name), 0) == 0:
                raise ValueError(f"{name} is 0; it must be more")
        for name in ("copy_start", "kernel_start", "issue", "link", "link_start"):
            check_number(name, getattr(self, name), 0)

    def replace(self, **changes: Any) -> "Model":
        """Copy the model with other figures."""
        return dataclasses.replace(self, **changes)

    but = replace  # its former name

    def seconds(self, operation: Operation) -> float:
        """Seconds that an operation occupies its engine while no other copy is running."""
        if operation.engine == PEER_COPY:
            return self.link_start + operation.nbytes / (self.link or min(self.copy_in, self.copy_out) / 2)
        if operation.engine == "kernel":
            alone = operation.seconds or operation.nbytes / self.memory
            over = self.link_start + operation.peer_bytes / self.link if operation.peer_bytes and self.link else 0.0
            return self.kernel_start + max(alone, over)
        direction = "in" if operation.engine == "copy in" else "out"
        rate = getattr(self, f"pageable_{direction}" if operation.pageable else f"copy_{direction}")
        return self.copy_start + operation.nbytes / rate

    def place(self, engine: str) -> str:
        """Name the unit that does an engine's work: engines of one unit take turns."""
        if self.copy_engines == 0:
            return "all"
        return "copy" if self.copy_engines == 1 and engine != "kernel" else engine

    def unit(self, operation: Operation) -> tuple:
        """Name the unit of an operation's device; a link has one for each direction."""
        device = 0 if operation.device is None else operation.device
        if operation.engine == PEER_COPY:
            return PEER_COPY, device, operation.peer
        if self.shared_host and operation.engine != "kernel":
            device = 0
        return self.place(operation.engine), device


def modelled(schedule: Schedule, model: Model | None = None) -> Timeline:
    """Simulate a schedule on a model of a device: no time is measured, on any machine.

    The host queues one operation after another. An operation starts when those it waits for are done and its engine is
    free; of several, the one that was queued first.

    Parameters
    ----------
    schedule : Schedule
    model : Model, optional
        The defaults of `Model` unless given.

    Returns
    -------
    Timeline
        With ``modelled`` True.

    Examples
    --------
    >>> schedule = Schedule()
    >>> copied = schedule.add("copy in", lambda stream: None, stream=0, nbytes=2**20)
    >>> len(modelled(schedule).bars)
    1
    """
    check_type("schedule", schedule, Schedule, "a Schedule")
    check_type("model", model, (Model, type(None)), "a Model or None")
    return _Simulation(schedule.operations, Model() if model is None else model).run()


class _Simulation:
    """One run of a schedule on a model."""

    def __init__(self, operations, model):
        self.operations, self.model = operations, model
        self.now = self.host = 0.0  # the time, and when the host queues its next operation
        self.queued = 0  # operations
        self.waiting, self.running = [], {}  # numbers; {number: seconds of work left}
        self.started, self.ended = {}, {}
        last, self.before = {}, []
        for number, operation in enumerate(operations):
            queue = operation.device, operation.stream
            self.before.append({*operation.after, *([last[queue]] if queue in last else [])})
            last[queue] = number

    def run(self):
        while len(self.ended) < len(self.operations):
            self._queue()
            self._start()
            self._advance()
        bars = [
            Bar(o.name, o.task, o.stream, o.engine, self.started[i], self.ended[i], o.device or 0)
            for i, o in enumerate(self.operations)
        ]
        return Timeline.from_zero(bars, self.model.name, True)

    def _queue(self):
        """Queue what the host gets to by now. It waits for each copy of memory that is not pinned."""
        while self.queued < len(self.operations) and self.host <= self.now:
            if self.queued and self.operations[self.queued - 1].pageable and self.queued - 1 not in self.ended:
                return
            self.waiting.append(self.queued)
            self.queued += 1
            self.host = self.now + self.model.issue

    def _start(self):
        """Start every waiting operation that can start now."""
        passed = set()
        for number in list(self.waiting):
            operation = self.operations[number]
            place = self.model.unit(operation)
            ready = self.before[number] <= self.ended.keys()
            if ready and self._has_room(operation, place) and not (self.model.in_order and place in passed):
                self.waiting.remove(number)
                self.running[number] = self.model.seconds(operation)
                self.started[number] = self.now
            else:
                passed.add(place)

    def _has_room(self, operation, place):
        others = [self.operations[i] for i in self.running if self.model.unit(self.operations[i]) == place]
        if operation.engine != "kernel" or place[0] != "kernel" or not self.model.concurrent_kernels:
            return not others
        return not others or sum(other.share for other in others) + operation.share <= 1

    def _speed(self, number):
        operation = self.operations[number]
        engine = operation.engine
        here = (self.operations[i] for i in self.running)
        engines = {other.engine for other in here if self.model.shared_host or other.device == operation.device}
        if not {"copy in", "copy out"} <= engines or engine not in ("copy in", "copy out"):
            return 1.0
        return self.model.both_in if engine == "copy in" else self.model.both_out

    def _advance(self):
        """Move the time on to the next change."""
        speeds = {number: self._speed(number) for number in self.running}
        steps = [left / speeds[number] for number, left in self.running.items()]
        if self.queued < len(self.operations) and self.host > self.now:
            steps.append(self.host - self.now)
        step = min(steps)
        self.now += step
        for number, speed in speeds.items():
            self.running[number] -= step * speed
            if self.running[number] <= 1e-15:
                del self.running[number]
                self.ended[number] = self.now
