"""Streams and events of the emulator (source row A13).

The emulator does each operation when it is asked for, in the order of the program. That is one of the orders that CUDA
allows, so a program that is correct on a GPU gives the same results here. There is no time: what measures it raises.
"""

import asyncio
import itertools
import math
import warnings
import weakref
from contextlib import contextmanager
from typing import Any, NoReturn

from warpstep import device
from warpstep._numba import CudaAPIError, CUresult
from warpstep.api import order
from warpstep.errors import UnsupportedError
from warpstep.values import check_type, describe

DEFAULT, LEGACY, PER_THREAD = 0, 1, 2
_NAMES = {
    DEFAULT: "Default CUDA stream",
    LEGACY: "Legacy default CUDA stream",
    PER_THREAD: "Per-thread default CUDA stream",
}
_handles = itertools.count(0x10)
#: The streams that exist, by their handles.
_live = weakref.WeakValueDictionary()


class Stream:
    """A queue of operations. Each has been done by the time that the call which asked for it returns.

    Attributes
    ----------
    handle : int
    external : bool
        True if made by `external_stream`.
    device : int or None
        The number of the device that it belongs to; None for a default stream, of which every device has its own.
    """

    def __init__(self, handle=None, external=False):
        self.device = None if handle in _NAMES else device.number()
        self.handle = next(_handles) if handle is None else handle
        self.external = external
        _live[self.handle] = self

    def __int__(self):
        return self.handle

    def __cuda_stream__(self):
        """(0, handle): what other libraries ask a stream for."""
        return 0, self.handle

    def __repr__(self):
        name = _NAMES.get(self.handle, f"{'External ' if self.external else ''}CUDA stream {self.handle}")
        return f"<{name} (emulated)>"

    def synchronize(self):
        """Wait until all operations of the stream are done; here they always are."""
        if order.watched():
            order.wait_on_host(order.record(key_of(self)))

    @contextmanager
    def auto_synchronize(self):
        """``with stream.auto_synchronize(): ...``: synchronise when the block ends."""
        yield self
        self.synchronize()

    def add_callback(self, callback, arg=None):
        """Call ``callback(stream, status, arg)`` when the operations before it are done: at once. ``status`` is 0.

        An exception in the callback becomes a warning, since on a GPU it happens in a thread of the driver.
        """
        try:
            callback(self, 0, arg)
        except Exception as error:
            warnings.warn(f"Exception in stream callback: {error}", stacklevel=2)

    def async_done(self) -> asyncio.Future:
        """Return a future that resolves to the stream when the operations before it are done.

        RuntimeError without a running event loop.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def resolve():
            if not future.done():
                future.set_result(self)

        loop.call_soon(resolve)
        return future


def check_stream(stream):
    """Raise TypeError for what is no stream: neither a Stream, nor the handle of one that exists, nor 0 or None.

    0 and None mean the default stream.
    """
    if isinstance(stream, Stream):
        return
    try:
        if not stream:
            return
    except Exception:  # such as an array, whose truth is ambiguous
        raise TypeError(f"Expected a Stream object or 0, got {type(stream).__name__}") from None
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream in _NAMES or stream in _live:
            return
        raise TypeError(
            f"Expected a Stream object or 0, got int {describe(stream)}, which is the handle of no stream here"
        )
    raise TypeError(f"Expected a Stream object or 0, got {type(stream).__name__}")


def device_of(stream) -> int:
    """The number of the device that a stream belongs to: the current one for a default stream."""
    found = stream if isinstance(stream, Stream) else _live.get(stream)
    return device.number() if found is None or found.device is None else found.device


def key_of(stream) -> order.Key:
    """The stream by the number of its device and its handle, of which 0 stands for the default stream."""
    handle = int(stream or 0)
    return device_of(stream), 0 if handle == LEGACY else handle


class Event:
    """A mark in a stream.

    Parameters
    ----------
    timing : bool
        As for ``numba.cuda.event``; without it `elapsed_time` is an error on a GPU as well.
    """

    def __init__(self, timing=True):
        self.timing = timing
        self.recorded = False
        self.device = device.number()
        self._before: order.Clock = {}

    def record(self, stream: Any = 0):
        """Set the mark after everything that the stream has been asked to do.

        CudaAPIError for a stream of another device than the event's.
        """
        check_stream(stream)
        if device_of(stream) != self.device:
            code = CUresult.CUDA_ERROR_INVALID_HANDLE
            raise CudaAPIError(
                code,
                f"Call to cuEventRecord results in {code.name}: the stream belongs to device {device_of(stream)}, the "
                f"event to device {self.device}",
            )
        self.recorded = True
        if order.watched():
            self._before = order.record(key_of(stream))

    def query(self) -> bool:
        """True when everything before the mark is done; as in CUDA, also if it was never recorded."""
        self.synchronize()
        return True

    def synchronize(self):
        """Wait until everything before the mark is done; here it always is."""
        if self._before:
            order.wait_on_host(self._before)

    def wait(self, stream: Any = 0):
        """Let what the stream is asked to do from now on wait for the mark."""
        check_stream(stream)
        if self._before:
            order.wait(key_of(stream), self._before)

    def elapsed_time(self, evtend: "Event") -> float:
        """Raise: see `event_elapsed_time`."""
        return event_elapsed_time(self, evtend)


def event_elapsed_time(evtstart: Event, evtend: Event) -> NoReturn:
    """Raise: the emulator has no time to measure between two events.

    Raises
    ------
    CudaAPIError
        ``CUDA_ERROR_INVALID_HANDLE``, as on a GPU, if one of the events was never recorded or was made with
        ``timing=False``.
    UnsupportedError
        Otherwise: an emulated time would mean nothing.
    """
    _check_measurable(evtstart, evtend)
    raise UnsupportedError(
        f"{_NO_TIME}: measure on a GPU, or look at the recorded results of one; what a kernel does can be counted "
        "without a GPU by gpukit.trace"
    )


_NO_TIME = "the emulator has no time, so there is none between two events"


def _check_measurable(evtstart, evtend):
    for role, mark in (("start", evtstart), ("end", evtend)):
        check_type(f"evt{role}", mark, Event, "an event")
        fault = None if mark.recorded else "has not been recorded"
        fault = fault if evtstart.device == mark.device else "belongs to another device"
        fault = fault if mark.timing else "was made with timing=False"
        if fault:
            code = CUresult.CUDA_ERROR_INVALID_HANDLE
            raise CudaAPIError(code, f"Call to cuEventElapsedTime results in {code.name}: the {role} event {fault}")


# -- for programs that know nothing of the emulator --------------------------------------------------------------------


class GuestEvent(Event):
    """An event of a program that was written for a GPU: measuring between two does not end it."""

    def elapsed_time(self, evtend: Event) -> float:
        """Return NaN: see `guest_elapsed_time`."""
        return _not_a_time(self, evtend)


def guest_event(timing: bool = True) -> GuestEvent:
    """``cuda.event`` where the emulator stands in for ``numba.cuda``: its elapsed time is NaN."""
    return GuestEvent(timing)


def guest_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Return NaN, with one warning in a process: a time would be made up, an error would end the program.

    Raises
    ------
    CudaAPIError
        As `event_elapsed_time`.
    """
    return _not_a_time(evtstart, evtend)


def _not_a_time(evtstart, evtend):
    global _warned
    _check_measurable(evtstart, evtend)
    if not _warned:
        _warned = True
        warnings.warn(f"{_NO_TIME}: it is nan, here and wherever this program measures it", stacklevel=3)
    return math.nan


_warned = False
