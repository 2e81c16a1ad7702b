"""How long a pipeline should take: a formula, and a modelled device on which a schedule is played through.

Nothing here is measured, and everything says so. The figures of the default model come from one machine.
"""

import math
from dataclasses import dataclass, replace

from gpukit.streams.timeline import Bar, Timeline

__all__ = ["Model", "best_chunks", "best_speedup", "modelled", "predicted"]


def predicted(copy_in, kernel, copy_out, chunks, launch=0.0):
    """Seconds of a pipeline of equal chunks: (h + k + d) / N + (N - 1) / N max(h, k, d) + N t.

    One chunk goes through all three stages; meanwhile, and after that, the slowest stage is what all others wait for;
    and every chunk costs something to ask for.

    Parameters
    ----------
    copy_in, kernel, copy_out : float
        Seconds that each stage takes for the whole: h, k and d.
    chunks : int
        N, 1 or more.
    launch : float
        t: seconds that each chunk costs besides.

    Returns
    -------
    float
    """
    whole = copy_in + kernel + copy_out
    return whole / chunks + (chunks - 1) / chunks * max(copy_in, kernel, copy_out) + chunks * launch


def best_chunks(copy_in, kernel, copy_out, launch, most=1024):
    """The N from 1 to ``most`` for which `predicted` is least: near the root of (h + k + d - max(h, k, d)) / t."""
    hidden = copy_in + kernel + copy_out - max(copy_in, kernel, copy_out)
    near = min(max(math.isqrt(int(hidden / launch)), 1), most) if launch > 0 else most
    return min(
        (n for n in (near, near + 1) if n <= most), key=lambda n: predicted(copy_in, kernel, copy_out, n, launch)
    )


def best_speedup(copy_in, kernel, copy_out, both=None):
    """The most that overlap can gain: (h + k + d) over the stage that takes longest.

    ``both`` is how long it takes to copy the whole in and out at the same time, which is longer than either alone where
    the two directions share something.
    """
    return (copy_in + kernel + copy_out) / max(copy_in, kernel, copy_out, both or 0.0)


@dataclass(frozen=True)
class Model:
    """A device as `modelled` knows it.

    The defaults are an H200 on PCIe 5: speeds as `gpukit bench streams` measured them, and what an operation costs such
    that its pipelines come out as they were measured, within a tenth.

    Attributes
    ----------
    name : str
    copy_in, copy_out : float
        Bytes per second between pinned memory and the device, one direction alone.
    both_in, both_out : float
        The share of its speed that a direction keeps while the other one is busy.
    pageable_in, pageable_out : float
        Bytes per second from and to memory that is not pinned.
    memory : float
        Bytes per second that a kernel reads and writes, for kernels that do not say how long they take.
    copy_start, kernel_start : float
        Seconds that every operation costs its engine besides.
    issue : float
        Seconds from one operation that the host asks for to the next.
    copy_engines : int
        With 1, copies in and out take turns; with 0 they do so with kernels too.
    concurrent_kernels : bool
        Kernels that do not fill the device run at the same time.
    in_order : bool
        An engine takes operations in the order in which they were asked for, whichever is ready: what the first
        devices with streams did.
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
    issue: float = 5e-6
    copy_engines: int = 3
    concurrent_kernels: bool = True
    in_order: bool = False

    def but(self, **changes):
        """The same model with other values."""
        return replace(self, **changes)

    def seconds(self, operation):
        """float : how long an operation keeps its engine, while no other copy is under way."""
        if operation.engine == "kernel":
            return self.kernel_start + (operation.seconds or operation.nbytes / self.memory)
        direction = "in" if operation.engine == "copy in" else "out"
        rate = getattr(self, f"pageable_{direction}" if operation.pageable else f"copy_{direction}")
        return self.copy_start + operation.nbytes / rate

    def place(self, engine):
        """str : what an engine shares its place with."""
        if self.copy_engines == 0:
            return "all"
        return "copy" if self.copy_engines == 1 and engine != "kernel" else engine


def modelled(schedule, model=None):
    """Play a schedule through on a modelled device: no time is measured, on any machine.

    The host asks for one operation after the other. An operation starts when those that it waits for are done and its
    engine has room; of several that could, the one that was asked for first.

    Parameters
    ----------
    schedule : Schedule
    model : Model, optional
        The defaults of `Model` unless given.

    Returns
    -------
    Timeline
        With ``modelled`` True.
    """
    return _Play(schedule.operations, Model() if model is None else model).run()


class _Play:
    """One run of a schedule on a model."""

    def __init__(self, operations, model):
        self.operations, self.model = operations, model
        self.now = self.host = 0.0
        self.asked = 0  # operations that the host has asked for
        self.waiting, self.running = [], {}  # numbers; {number: seconds of work that are left}
        self.started, self.ended = {}, {}
        last, self.before = {}, []
        for number, operation in enumerate(operations):
            self.before.append({*operation.after, *([last[operation.stream]] if operation.stream in last else [])})
            last[operation.stream] = number

    def run(self):
        while len(self.ended) < len(self.operations):
            self._ask()
            self._start()
            self._advance()
        bars = [
            Bar(o.name, o.task, o.stream, o.engine, self.started[i], self.ended[i])
            for i, o in enumerate(self.operations)
        ]
        first = min((bar.start for bar in bars), default=0.0)
        bars = [bar._replace(start=bar.start - first, end=bar.end - first) for bar in bars]
        return Timeline(tuple(sorted(bars, key=lambda bar: bar.start)), self.model.name, True)

    def _ask(self):
        """What the host has asked for by now. It waits for a copy of memory that is not pinned."""
        while self.asked < len(self.operations) and self.host <= self.now:
            if self.asked and self.operations[self.asked - 1].pageable and self.asked - 1 not in self.ended:
                return
            self.waiting.append(self.asked)
            self.asked += 1
            self.host = self.now + self.model.issue

    def _start(self):
        passed = set()
        for number in list(self.waiting):
            operation = self.operations[number]
            place = self.model.place(operation.engine)
            ready = self.before[number] <= self.ended.keys()
            if ready and self._room(operation, place) and not (self.model.in_order and place in passed):
                self.waiting.remove(number)
                self.running[number] = self.model.seconds(operation)
                self.started[number] = self.now
            else:
                passed.add(place)

    def _room(self, operation, place):
        others = [self.operations[i] for i in self.running if self.model.place(self.operations[i].engine) == place]
        if operation.engine != "kernel" or place != "kernel" or not self.model.concurrent_kernels:
            return not others
        return not others or sum(other.share for other in others) + operation.share <= 1

    def _speed(self, number):
        engines = {self.operations[i].engine for i in self.running}
        engine = self.operations[number].engine
        if not {"copy in", "copy out"} <= engines or engine == "kernel":
            return 1.0
        return self.model.both_in if engine == "copy in" else self.model.both_out

    def _advance(self):
        """On to the next moment at which anything changes."""
        speeds = {number: self._speed(number) for number in self.running}
        steps = [left / speeds[number] for number, left in self.running.items()]
        if self.asked < len(self.operations) and self.host > self.now:
            steps.append(self.host - self.now)
        step = min(steps)
        self.now += step
        for number, speed in speeds.items():
            self.running[number] -= step * speed
            if self.running[number] <= 1e-15:
                del self.running[number]
                self.ended[number] = self.now
