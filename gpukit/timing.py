"""Timers and benchmarks for host code and for GPU kernels (source row A15).

``Timer`` times one stretch of code. ``bench`` repeats a function and gives the distribution of its times, and
``bench_many`` does so for several functions in rounds. A GPU is timed by events that the device stamps. The emulator's
duration says nothing about a GPU, so there they raise ``EmulatedTimeError``.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukit._host.arrays import configure_quietly
from gpukit._numba import device_memset
from gpukit.backend import cuda, on_gpu
from warpstep.report.units import UNITS, format_seconds
from warpstep.values import (
    check_callable,
    check_choice,
    check_flag,
    check_number,
    check_text,
    check_type,
    describe,
    is_int,
)

__all__ = ["UNITS", "EmulatedTimeError", "Timer", "Timing", "bench", "bench_many", "format_seconds"]

DEVICES = ("cpu", "gpu")

#: A larger interquartile range, over the median, marks a result as noisy; a larger one as invalid.
NOISY_SPREAD = 0.05
MAX_SPREAD = 0.1
#: Seconds that an event resolves, in two steps.
RESOLUTION = 1e-6
#: Fewer repetitions do not show the spread.
MIN_FOR_SPREAD = 5
#: Repetitions that ``bench`` chooses between unless told.
MIN_REPETITIONS, MAX_REPETITIONS = 10, 1000
#: Beyond these, a number of repetitions, of calls or of seconds is a mistake.
MAX_COUNT, MAX_SECONDS = 10**6, 3600
#: Seconds of calls that ``calls="auto"`` times as one: an event resolves about 0.5 us, so 0.25 % of it.
AUTO_REGION = 200e-6
#: Calls in a repetition; the driver's launch queue holds about twice as many.
MAX_CALLS = 500
#: Nanoseconds that the device is kept busy before a repetition, at first and at most, and of one ``nanosleep``.
FIRST_HOLD, MAX_HOLD = 50_000, 20_000_000
HOLD_STEP = 10_000
#: A function that runs for longer than this many holds in a row, each longer than the last, waits for the device.
MAX_OUTLASTED = 3


class EmulatedTimeError(RuntimeError):
    """Raised for a GPU time where kernels run on the emulator, whose duration says nothing about a GPU."""


def _check_device(device, what):
    check_choice("device", device, DEVICES)
    if device == "gpu" and not on_gpu():
        raise EmulatedTimeError(
            f"{what} times a GPU, but kernels run on the emulator here, whose duration says nothing about a GPU. "
            "For exact counts use gpukit.trace(kernel[grid, block], *args), for times the results recorded on a GPU, "
            "for host code device='cpu'"
        )


class Timer:
    """Time a stretch of code on the CPU or on the GPU and say how long it took (source row A15).

    Use it as a context manager, or call ``start`` and ``stop``; it can be used again.

    Parameters
    ----------
    message : str
        Printed before the time, as ``message: 1.234 ms``.
    unit : {"s", "ms", "us", "ns"}
        Unit of ``elapsed`` and of what is printed.
    device : {"cpu", "gpu"}
        "cpu" reads the host's monotonic clock. Around a kernel launch that is the time to *queue* the kernel, unless
        the code synchronises. "gpu" records an event in ``stream`` before and after, and waits for the second one.
    stream : 0 or a CUDA stream
        In which a GPU timer records; 0 is the default stream.
    show : bool
        Print when the timer stops. A ``with`` block that an exception leaves prints nothing.

    Raises
    ------
    ValueError
        For another unit or device.
    EmulatedTimeError
        For ``device="gpu"`` on the emulator.
    """

    def __init__(self, message: str = "", unit: str = "ms", device: str = "cpu", stream: Any = 0, *, show: bool = True):
        check_text("message", message)
        check_choice("unit", unit, UNITS)
        _check_device(device, "Timer")
        show = check_flag("show", show)
        self.message, self.unit, self.device, self.stream, self.show = message, unit, device, stream, show
        self._begin: Any = None
        self._seconds: float | None = None

    def start(self) -> "Timer":
        """Start the clock and return the timer. RuntimeError if it runs already."""
        if self._begin is not None:
            raise RuntimeError("the timer runs already: stop() it before the next start()")
        self._seconds = None
        if self.device == "gpu":
            self._begin = cuda.event()
            self._begin.record(self.stream)
        else:
            self._begin = time.perf_counter_ns()
        return self

    def stop(self) -> float:
        """Stop the clock, print unless ``show`` is false, return ``elapsed``. RuntimeError if it does not run."""
        if self._begin is None:
            raise RuntimeError("the timer does not run: start() it first")
        self._seconds = self._read()
        self._begin = None
        if self.show:
            print(self)
        return self.elapsed

    def _read(self):
        if self.device == "cpu":
            return (time.perf_counter_ns() - self._begin) * 1e-9
        end = cuda.event()
        end.record(self.stream)
        end.synchronize()
        return self._begin.elapsed_time(end) * 1e-3

    @property
    def elapsed(self) -> float:
        """float: the time from ``start`` to ``stop`` in ``unit``. RuntimeError before the timer has stopped."""
        if self._seconds is None:
            raise RuntimeError("the timer has not stopped: elapsed is known after stop(), or after the with block")
        return self._seconds / UNITS[self.unit]

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self.stop()
        else:
            self._begin = None

    def __str__(self):
        time_text = f"{self.elapsed:.3f} {self.unit}" if self._seconds is not None else "not stopped"
        return f"{self.message}: {time_text}" if self.message else time_text


@dataclass(frozen=True)
class Timing:
    """The distribution of the time of one call, over many repetitions.

    Attributes
    ----------
    samples : tuple of float
        Seconds per call of each repetition, in order.
    name : str
    device : {"cpu", "gpu"}
    calls : int
        Calls timed together in one repetition; a sample is their mean.
    l2_flushed : bool
        Whether the L2 cache was flushed before every repetition.
    host_seconds : float
        Median seconds that the host spent inside one call: on a GPU the cost of the launch, unless the function waits
        for the device.
    queued_ahead : int
        Repetitions that were wholly queued before the device reached them. Their samples are the device's time alone;
        in the others the device may have waited for the host.
    """

    samples: tuple = field(repr=False)
    name: str = ""
    device: str = "gpu"
    calls: int = 1
    l2_flushed: bool = False
    host_seconds: float = 0.0
    queued_ahead: int = 0

    def __post_init__(self):
        if not self.samples:
            raise ValueError(f"samples is {describe(self.samples)}; it must hold the seconds of one repetition or more")

    @property
    def n(self) -> int:
        """int: the number of repetitions."""
        return len(self.samples)

    @property
    def median(self) -> float:
        """float: median seconds per call."""
        return float(np.median(self.samples))

    @property
    def quartiles(self) -> tuple[float, float]:
        """tuple of 2 float: first and third quartile of the seconds per call, as ``numpy.quantile`` gives them."""
        first, third = np.quantile(self.samples, (0.25, 0.75))
        return float(first), float(third)

    @property
    def minimum(self) -> float:
        """float: minimum of the seconds per call."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """float: the interquartile range over the median, without a unit."""
        first, third = self.quartiles
        if third == first:
            return 0.0
        return (third - first) / self.median if self.median else math.inf

    @property
    def noisy(self) -> bool:
        """bool: True if the spread is more than 5 %, or if fewer than 5 repetitions leave it unknown."""
        return self.n < MIN_FOR_SPREAD or self.spread > NOISY_SPREAD

    @property
    def valid(self) -> bool:
        """bool: False if the interquartile range is more than 10 % of the median, plus the 1 us that events resolve."""
        first, third = self.quartiles
        return third - first <= MAX_SPREAD * self.median + (RESOLUTION if self.device == "gpu" else 0.0)

    @property
    def launch_bound(self) -> bool:
        """bool: True if the median may include launch cost: half of the repetitions or more were not queued ahead."""
        return self.device == "gpu" and 2 * self.queued_ahead <= self.n

    def rate(self, amount: float) -> float:
        """Units per second at the median, for a call that handles ``amount`` units (bytes, elements, images)."""
        check_number("amount", amount)
        return amount / self.median if self.median else math.inf

    def gbps(self, nbytes: float) -> float:
        """GB/s (10**9 bytes) at the median, for a call that reads and writes ``nbytes`` bytes in all."""
        return self.rate(check_number("nbytes", nbytes)) * 1e-9

    def tflops(self, flops: float) -> float:
        """TFLOP/s (10**12) at the median, for a call of ``flops`` operations (a multiply-add is two)."""
        return self.rate(check_number("flops", flops)) * 1e-12

    @property
    def timed(self) -> str:
        """str: what a sample is, in one sentence."""
        unit = "one call" if self.calls == 1 else f"mean of {self.calls} calls back to back"
        if self.device == "cpu":
            return f"{unit}, host clock"
        cache = "L2 not flushed"
        if self.l2_flushed:
            cache = "L2 flushed" if self.calls == 1 else "L2 flushed before the first"
        if self.queued_ahead == self.n:
            return f"{unit}, device time, {cache}, launch cost not included"
        late = self.n - self.queued_ahead
        host = format_seconds(self.host_seconds)
        return (
            f"{unit}, device time, {cache}, but in {late} of {self.n} repetitions the device may have waited for "
            f"the host ({host} per call there)"
        )

    def __str__(self):
        first, third = self.quartiles
        label = f"{self.name}: " if self.name else ""
        text = (
            f"{label}{format_seconds(self.median)} (quartiles {format_seconds(first)} to {format_seconds(third)}, "
            f"minimum {format_seconds(self.minimum)}, n = {self.n}; {self.timed})"
        )
        if self.n < MIN_FOR_SPREAD:
            return f"{text}  NOISY? fewer than {MIN_FOR_SPREAD} repetitions do not show the spread"
        if self.noisy:
            return f"{text}  NOISY: interquartile range {self.spread:.1%} of the median, more than {NOISY_SPREAD:.0%}"
        return text

    def __repr__(self):
        return f"<Timing {self}>"


def bench(
    fn: Callable[[], Any],
    *,
    name: str = "",
    device: str = "gpu",
    warmup: float = 0.05,
    min_time: float = 0.2,
    repeat: int | None = None,
    calls: int | str = 1,
    l2_flush: bool = True,
    setup: Callable[[], Any] | None = None,
    stream: Any = 0,
) -> Timing:
    """Time a function by repeating it (source row A15).

    A repetition is ``setup``, on a GPU the L2 flush, and then ``calls`` calls of ``fn``, which are timed. On a GPU the
    time is between two events in ``stream``. The repetition is queued while the device is still busy with the flush, or
    with a short wait if the flush ends too early. So the launch, which costs the host 10 to 20 us, is not in the time
    even of a kernel of 2 us. If that fails, for example because ``fn`` waits for the device, ``Timing.timed`` and
    ``Timing.launch_bound`` say so.

    Parameters
    ----------
    fn : callable
        Called without arguments. On a GPU it must queue its work in ``stream`` or in the default stream.
    name : str
        Shown with the result.
    device : {"gpu", "cpu"}
        "cpu" times host code by the host's clock, on any machine.
    warmup : float
        Seconds of untimed repetitions before: the first call compiles, and clocks rise. Unless 0, at least one.
    min_time : float
        Seconds of timed repetitions; there are 10 to 1000 of them.
    repeat : int, optional
        The number of timed repetitions, in place of ``min_time``.
    calls : int or "auto"
        Calls per repetition, timed as one; "auto" makes as many as last 200 us. Only the first finds L2 flushed.
    l2_flush : bool
        On a GPU, write a buffer of twice the L2 cache before each repetition, untimed, so that ``fn`` finds its inputs
        in memory and not in the cache. The cache is then full of dirty lines, as after another kernel; their
        write-back is in the time (``gpukit bench ceilings`` measures it). No effect with ``device="cpu"``.
    setup : callable, optional
        Called without arguments before each repetition and before the flush, untimed.
    stream : 0 or a CUDA stream

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind or out of range; the message names it.
    EmulatedTimeError
        For ``device="gpu"`` on the emulator.

    Examples
    --------
    >>> bench(lambda: sorted(range(1000)), device="cpu", repeat=20).n
    20
    """
    return bench_many(
        {check_text("name", name): fn},
        device=device,
        warmup=warmup,
        min_time=min_time,
        repeat=repeat,
        calls=calls,
        l2_flush=l2_flush,
        setup=setup,
        stream=stream,
    )[name]


def bench_many(
    functions: dict[str, Callable[[], Any]],
    *,
    device: str = "gpu",
    warmup: float = 0.05,
    min_time: float = 0.2,
    repeat: int | None = None,
    calls: int | str = 1,
    l2_flush: bool = True,
    setup: Callable[[], Any] | dict[str, Callable[[], Any]] | None = None,
    stream: Any = 0,
) -> dict[str, Timing]:
    """Time several functions in rounds, with one repetition of each per round.

    Clocks and temperature drift while a benchmark runs; in rounds the drift affects all functions alike. Every second
    round runs in the opposite order, so that a steady drift cancels between neighbours too.

    Parameters
    ----------
    functions : dict of str to callable
        As ``fn`` of ``bench``, by name.
    setup : callable or dict of str to callable, optional
        One for all functions, or one by name.
    min_time : float
        Seconds of timed repetitions for each function, on average; all get the same number.
    device, warmup, repeat, calls, l2_flush, stream
        As for ``bench``.

    Returns
    -------
    dict of str to Timing
        In the order of ``functions``.

    Raises
    ------
    TypeError, ValueError, EmulatedTimeError
        As for ``bench``.

    Examples
    --------
    >>> functions = {"sorted": lambda: sorted(range(99)), "list": lambda: list(range(99))}
    >>> timings = bench_many(functions, device="cpu", repeat=20)
    >>> sorted(timings)
    ['list', 'sorted']
    """
    _check_device(device, "bench")
    _check_functions(functions)
    _check_counts(warmup, min_time, repeat, calls)
    l2_flush, setups = check_flag("l2_flush", l2_flush), _setups(setup, functions)
    meter = _GpuMeter(stream, l2_flush) if device == "gpu" else _CpuMeter()
    cases = [
        _Case(name, fn, setups.get(name), 1 if isinstance(calls, str) else calls) for name, fn in functions.items()
    ]
    seconds = sum(_warm_up(meter, case, warmup, calls == "auto") for case in cases)
    if repeat is None:
        wanted = min_time * len(cases) / seconds if seconds else MAX_REPETITIONS
        repeat = min(max(math.ceil(wanted), MIN_REPETITIONS), MAX_REPETITIONS)
    for turn in range(repeat):
        for case in cases if turn % 2 == 0 else reversed(cases):
            meter.repetition(case)
    return {case.name: meter.timing(case) for case in cases}


def _check_functions(functions):
    check_type("functions", functions, dict, "a dict of names to callables")
    if not functions:
        raise ValueError("functions is empty; it must hold at least one callable")
    for name, fn in functions.items():
        if not callable(fn):
            called = f"functions[{name!r}]" if name else "fn"
            raise TypeError(
                f"{called} is {describe(fn)}; it must be callable without arguments (wrap a launch in a lambda)"
            )


def _check_counts(warmup, min_time, repeat, calls):
    for name, seconds in {"warmup": warmup, "min_time": min_time}.items():
        if check_number(name, seconds, 0) > MAX_SECONDS or (name, seconds) == ("min_time", 0):
            least = "more than 0" if name == "min_time" else "0 or more"
            raise ValueError(f"{name} is {seconds}; it must be a number of seconds, {least}, {MAX_SECONDS} at most")
    if repeat is not None and not (is_int(repeat) and 1 <= repeat <= MAX_COUNT):
        raise ValueError(f"repeat is {describe(repeat)}; it must be a whole number from 1 to {MAX_COUNT:,}, or None")
    if not (isinstance(calls, str) and calls == "auto") and not (is_int(calls) and 1 <= calls <= MAX_COUNT):
        raise ValueError(f"calls is {describe(calls)}; it must be a whole number from 1 to {MAX_COUNT:,}, or 'auto'")
    if warmup == 0 and (repeat is None or calls == "auto"):
        raise ValueError("warmup is 0; without a warm-up repeat must be given and calls must be a number")


def _setups(setup, functions):
    if setup is None:
        return {}
    setups = setup if isinstance(setup, dict) else dict.fromkeys(functions, setup)
    for name, call in setups.items():
        if name not in functions:
            raise ValueError(
                f"setup is given for {describe(name)}, which is not among the functions: {', '.join(functions)}"
            )
        check_callable("setup", call, "callable without arguments")
    return setups


class _Case:
    """One function and its measurements."""

    def __init__(self, name, fn, setup, calls):
        self.name, self.fn, self.setup, self.calls = name, fn, setup, calls
        # Nanoseconds that the device is kept busy before each repetition; None once that has proved useless.
        self.hold = 0
        self.outlasted = 0  # holds in a row that the function ran for longer than
        self.forget()

    def forget(self):
        self.regions = []  # seconds, or pairs of events: one for each repetition
        self.host = []  # seconds that the host spent in the calls of one repetition
        self.queued = 0

    def run(self):
        begin = time.perf_counter_ns()
        for _ in range(self.calls):
            self.fn()
        self.host.append((time.perf_counter_ns() - begin) * 1e-9)


def _warm_up(meter, case, warmup, auto_calls):
    """Repeat for ``warmup`` seconds, choose ``case.calls`` if asked to, return the last repetition's wall seconds."""
    if warmup == 0:
        return 0.0
    seconds = _timed_alone(meter, case)  # it compiles, so its time is discarded
    begin = time.perf_counter_ns()
    while True:
        seconds = _timed_alone(meter, case)
        if auto_calls:
            auto_calls = False
            case.calls = min(max(math.ceil(AUTO_REGION / max(meter.seconds(case)[-1], 1e-9)), 1), MAX_CALLS)
        if (time.perf_counter_ns() - begin) * 1e-9 >= warmup:
            break
    case.forget()
    return seconds


def _timed_alone(meter, case):
    begin = time.perf_counter_ns()
    meter.repetition(case)
    meter.finish()
    return (time.perf_counter_ns() - begin) * 1e-9


class _CpuMeter:
    """Repetitions by the host's clock."""

    def repetition(self, case):
        if case.setup:
            case.setup()
        case.run()
        case.regions.append(case.host[-1])

    def finish(self):
        pass

    def seconds(self, case):
        return case.regions

    def timing(self, case):
        samples = tuple(seconds / case.calls for seconds in case.regions)
        return Timing(samples, case.name, "cpu", case.calls, host_seconds=float(np.median(samples)))


class _GpuMeter:
    """Repetitions by events in a stream, each queued while the device is still busy."""

    def __init__(self, stream, l2_flush):
        self.stream = stream
        self.flush = _make_flush(stream) if l2_flush else None
        self.hold = _make_hold(stream)

    def repetition(self, case):
        start, end = cuda.event(), cuda.event()
        if case.setup:
            case.setup()
        if self.flush:
            self.flush()
        if case.hold:
            self.hold(case.hold)
        start.record(self.stream)
        case.run()
        end.record(self.stream)
        case.regions.append((start, end))
        # The device has not passed the start event yet, so all that is timed was queued ahead of it.
        if not start.query():
            case.queued += 1
            case.outlasted = 0
        elif case.hold is not None:
            host = int(case.host[-1] * 1e9)
            case.outlasted = case.outlasted + 1 if 0 < case.hold <= host else 0
            if case.hold >= MAX_HOLD or case.outlasted == MAX_OUTLASTED:
                case.hold = None
            else:
                case.hold = min(max(4 * host, 2 * case.hold), MAX_HOLD) if case.hold else FIRST_HOLD

    def finish(self):
        cuda.synchronize()

    def seconds(self, case):
        return [start.elapsed_time(end) * 1e-3 for start, end in case.regions]

    def timing(self, case):
        self.finish()
        samples = tuple(seconds / case.calls for seconds in self.seconds(case))
        host = float(np.median(case.host)) / case.calls
        return Timing(samples, case.name, "gpu", case.calls, self.flush is not None, host, case.queued)


def _make_flush(stream):
    """Make a function that fills the L2 cache with a buffer of twice its size, by a memset in the stream."""
    nbytes = 2 * cuda.get_current_device().L2_CACHE_SIZE
    return functools.partial(device_memset, cuda.device_array(nbytes, np.uint8), 0, nbytes, stream)


@cuda.jit
def hold(steps):
    """Keep the device busy with one thread that touches no memory."""
    for _ in range(steps):
        cuda.nanosleep(HOLD_STEP)


def _make_hold(stream):
    """Make a function that launches `hold` for some nanoseconds; a nanosleep may last up to twice its argument."""
    launch = configure_quietly(hold, 1, 1, stream)
    return lambda nanoseconds: launch(math.ceil(nanoseconds / HOLD_STEP))
