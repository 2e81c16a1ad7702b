"""What comes before what on the streams of several devices, as the host has asked for it.

The emulator does each operation at once; on GPUs, operations of different streams are ordered by events and
synchronisations alone. With several devices, each copy notes the bytes that it uses, so that a trace can say that
nothing orders its kernel after the copy. Host threads count as one.
"""

import itertools
import os
import sys
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from warpstep import device

#: A stream: the number of its device, and its handle; 0 for the default stream.
Key = tuple[int, int]
#: Of each stream the last operation known to be over.
Clock = dict[Key, int]

_lock = threading.RLock()
_ticks = itertools.count(1)
_host: Clock = {}
_streams: dict[Key, Clock] = {}
_uses: weakref.WeakKeyDictionary[Any, list["Use"]] = weakref.WeakKeyDictionary()
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Mark(NamedTuple):
    """An operation in a stream, with what comes before it."""

    key: Key
    tick: int
    before: Clock


class Use(NamedTuple):
    """What an operation does to one allocation: flags of the bytes that it reads and writes, None for none."""

    key: Key
    tick: int
    read: np.ndarray | slice | None
    written: np.ndarray | slice | None
    what: str


def watched() -> bool:
    """True with several devices: only then is order noted."""
    return device.count() > 1


def queue(key: Key) -> Mark:
    """Add an operation to a stream."""
    with _lock:
        clock = record(key)
        tick = clock[key] = next(_ticks)
        _streams[key] = clock
        return Mark(key, tick, dict(clock))


def record(key: Key) -> Clock:
    """What is over once all that a stream has been asked to do is: an event that is recorded in it."""
    with _lock:
        clock = dict(_host)
        _join(clock, _streams.get(key, {}))
        # The default stream of a device waits for its other streams, and they for it.
        for other, theirs in _streams.items():
            if other[0] == key[0] and 0 in (other[1], key[1]):
                _join(clock, theirs)
        return clock


def wait(key: Key, clock: Clock) -> None:
    """Let what a stream is asked to do from now on wait for an event."""
    with _lock:
        _join(_streams.setdefault(key, {}), clock)


def wait_on_host(clock: Clock) -> None:
    """Let the host wait for an event, or for all that a stream has been asked to do."""
    with _lock:
        _join(_host, clock)


def wait_for_device(number: int) -> None:
    """Let the host wait for all streams of a device."""
    with _lock:
        for key, clock in _streams.items():
            if key[0] == number:
                _join(_host, clock)


def _join(clock, other):
    for key, tick in other.items():
        if tick > clock.get(key, 0):
            clock[key] = tick


# -- what uses which memory --------------------------------------------------------------------------------------------


def note(allocation: Any, use: Use) -> None:
    """Note what an operation does to an allocation."""
    with _lock:
        left = [u for u in _uses.get(allocation, ()) if u.tick > _host.get(u.key, 0)]
        _uses[allocation] = [*left, use]


def unordered(allocation: Any, mark: Mark) -> list[Use]:
    """The uses of an allocation that nothing orders before an operation."""
    with _lock:
        return [u for u in _uses.get(allocation, ()) if u.tick > mark.before.get(u.key, 0)]


def copied(key: Key, target: Any, source: Any, waits: bool) -> None:
    """Note a copy in a stream, to or from device memory or both (a `DevicePointer` or None each).

    ``waits``: the host waits for it.
    """
    memories = [memory for memory in (target, source) if memory is not None]
    keys = [key]
    if key[1] == 0 and len(memories) == 2:  # without a stream it waits for both devices, and they for it
        keys += [(memory.allocation.device, 0) for memory in memories]
    with _lock:
        for other in keys:
            wait(key, record(other))
        mark = queue(key)
        for other in keys:
            wait(other, mark.before)
        if waits:
            wait_on_host(mark.before)
            return
        what = f"a copy in {_name(key)} at {_place()}"
        for memory in memories:
            part = slice(memory.offset, memory.offset + memory.size)
            use = Use(key, mark.tick, *((part, None) if memory is source else (None, part)), what)
            note(memory.allocation, use)


def _name(key):
    stream = f"stream {key[1]}" if key[1] else "the default stream"
    return f"{stream} of device {key[0]}"


def describe(mark: Mark) -> str:
    """Name the stream of an operation."""
    return _name(mark.key)


def _place():
    """The line of the program that called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
