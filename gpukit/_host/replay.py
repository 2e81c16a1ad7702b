"""Launches of a call, recorded so that a call like it repeats them with its own arrays' addresses."""

import threading
from collections import OrderedDict
from threading import get_ident
from typing import Any

from gpukit._host.arrays import address_of, as_device_array, handle_of, make_like, span, stream_of
from gpukit._host.keys import READERS, settings_key
from gpukit._host.work_memory import StreamState, WorkMemory
from gpukit._numba import PER_THREAD_DEFAULT_STREAM

__all__ = ["MAX_KEPT", "LaunchCache", "RecordedCall", "repeat"]

#: Bytes of memory that a recorded call may keep alive.
MAX_KEPT = 64 << 20
#: Parts of a key before those of the settings: planner, queue, whether the result is new.
OTHERS = 3


class RecordedCall:
    """Prepared launches of one call, and which of their arrays lie in its inputs or in its outputs.

    Parameters
    ----------
    prepared : list of Prepared
    inputs : list of device arrays
    outputs : list of device arrays
        As the launches write them. One of them may be the caller's ``out``; several are new.
    state : StreamState
    work : WorkMemory, optional
        Memory of the stream that the launches use. It is not kept: each replay finds it where it is by then.

    Attributes
    ----------
    replayable : bool
        Whether it can stand for other calls: the launches use every input and output in place, these do not
        overlap, except for inputs that begin together, and the launches keep little other memory alive.
    """

    __slots__ = (
        "launches",
        "lock",
        "make_output",
        "maps",
        "places",
        "reach",
        "replayable",
        "version",
        "work",
        "_held",
    )

    def __init__(self, prepared, inputs, outputs, state: StreamState, work: WorkMemory | None = None):
        self.lock, self.work = state.lock, work
        self._held = [] if work is None else [_Held(work, key, size) for key, size in work.taken.items()]
        self.version = None if work is None else work.buffers.version
        makers = [make_like(inputs[0], tuple(output.shape), output.dtype) for output in outputs]
        self.make_output = makers[0] if len(makers) == 1 else lambda pointers: [make(pointers) for make in makers]
        arrays = [*map(as_device_array, inputs), *outputs]
        starts, spans = [address_of(array) for array in arrays], [span(array) for array in arrays]
        self.reach = [(low - start, high - start) for (low, high), start in zip(spans, starts, strict=True)]
        self.launches = [(launch, launch.start) for launch in prepared]
        #: (memory, index, number of a pointer, bytes to add): where the launches read addresses in inputs and output.
        self.places: list[tuple] = []
        used, kept = set(), 0
        moved = [] if work is None else [_Map(movable) for movable in work.maps]
        maps = {address_of(each.map.memory): each for each in moved}
        for launch in prepared:
            bound = {}
            for position, array in launch.arrays():
                low, high = span(array)
                inside = [i for i, (start, stop) in enumerate(spans) if start <= low < high <= stop]
                own = next((held for held in self._held if held.start <= low < high <= held.stop), None)
                if low in maps:
                    bound[position] = maps[low].uses, ()
                elif inside:
                    bound[position] = self.places, (inside[0], address_of(array) - starts[inside[0]])
                    used.update(i for i in inside if starts[i] == starts[inside[0]])
                elif own is not None:
                    bound[position] = own.uses, (address_of(array) - own.start,)
                else:
                    kept += high - low
            for position, place in launch.bind(bound).items():
                uses, rest = bound[position]
                uses.append((*place, *rest))
        self.maps = []
        for each in moved:
            low, high = span(each.map.array)
            inside = [i for i, (start, stop) in enumerate(spans) if start <= low < high <= stop]
            own = next((held for held in self._held if held.start <= low < high <= held.stop), None)
            if inside:
                self.maps.append((each, inside[0], low - starts[inside[0]]))
                used.update(i for i in inside if starts[i] == starts[inside[0]])
            elif own is not None:
                own.maps.append((each, low - own.start))
            each.map.release()
        count = len(inputs)  # an address of 0 is that of no memory that can be told from another
        apart = all(
            a[1] <= b[0] or b[1] <= a[0] or i < count and starts[i] == starts[j] != 0
            for i, a in enumerate(spans)
            for j, b in enumerate(spans[:i])
        )
        self.replayable = apart and used.issuperset(range(len(spans))) and kept <= MAX_KEPT

    def overlaps(self, pointers):
        """Whether the output, which is the last pointer, shares memory with an input."""
        *others, out = pointers
        low, high = self.reach[-1]
        start, stop = out + low, out + high
        for pointer, (low, high) in zip(others, self.reach):  # noqa: B905 - the argument takes longer than the rest
            if pointer + low < stop and start < pointer + high:
                return True
        return False

    def find_work(self):
        """Find the work memory where it is now."""
        assert self.work is not None
        for held in self._held:
            held.find()
        self.version = self.work.buffers.version


def repeat(
    cache: "LaunchCache", plan, inputs: tuple, out, stream, settings: tuple, find: bool = False
) -> tuple[Any, Any, Any]:
    """Repeat the launches of an earlier call like this one with the arrays of this one; with ``find`` only look for it.

    It is one function because a small problem waits for it: every further frame costs such a call a few percent.

    Returns
    -------
    recorded : RecordedCall or None
        None if there is no such call: nothing has been launched.
    key : tuple or None
        None if the call cannot be repeated.
    result : array, list of arrays, or None
        ``out``, or what is new.
    """
    try:
        handle = 0 if stream is None else handle_of(stream_of(stream))
        queue = stream or (get_ident() if PER_THREAD_DEFAULT_STREAM else None)
        key, pointers = [plan, queue, out is None, *map(id, settings)], []
        for array in inputs if out is None else (*inputs, out):
            if array is None:
                key.append(None)
                continue
            pointer = READERS[type(array)](array, handle, key)
            if pointer is None:
                return None, None, None
            key.append(pointer % 16)
            pointers.append(pointer)
        if len(pointers) > 1 and len({*pointers}) != len(pointers):
            # Two inputs share memory: nothing tells which of them an argument of a launch came from.
            key.append(tuple(map(pointers.index, pointers)))
        key = tuple(key)
        recorded, key, _ = cache.known.get(key) or cache.find(key, settings)
    except Exception:  # a setting cannot be hashed or compared, or an argument is not what it must be
        return None, None, None
    if recorded is None or (out is not None and recorded.overlaps(pointers)):
        return None, key, None
    if len(cache.calls) > cache.half:
        cache.touch(key)
    if find:
        return recorded, key, None
    if out is None:
        out = recorded.make_output(pointers)
    recorded.lock.acquire()  # a with statement takes twice as long
    try:
        if recorded.work is not None and recorded.version != recorded.work.buffers.version:
            recorded.find_work()
        for each, source, offset in recorded.maps:
            each.move(pointers[source] + offset)
        for memory, index, source, offset in recorded.places:
            memory[index] = pointers[source] + offset
        for launch, start in recorded.launches:
            if code := start():
                launch.failed(code)
    finally:
        recorded.lock.release()
    return recorded, key, out


class _Held:
    """Work memory of a stream, under a key, and the arguments of launches that lie in it.

    Attributes
    ----------
    uses : list of (memory, index, bytes from the start)
        Where launches read the addresses.
    maps : list of (_Map, bytes from the start)
    """

    __slots__ = ("key", "maps", "size", "start", "stop", "uses", "work")

    def __init__(self, work: WorkMemory, key: tuple, size: int):
        self.work, self.key, self.size, self.uses, self.maps = work, key, size, [], []
        self.start, self.stop = span(work.find(key, size))

    def find(self):
        """Find the memory where it is now, or make it again, and tell the launches."""
        self.start, self.stop = span(self.work.find(self.key, self.size))
        for memory, index, offset in self.uses:
            memory[index] = self.start + offset
        for each, offset in self.maps:
            each.move(self.start + offset)


class _Map:
    """A tensor map, and the arguments of launches that are it.

    Attributes
    ----------
    uses : list of (memory, index)
        Where launches read its address.
    """

    __slots__ = ("address", "map", "uses")

    def __init__(self, map):
        self.map, self.uses, self.address = map, [], address_of(map.array)

    def move(self, address):
        """Describe the array at another address, and tell the launches."""
        if address != self.address:
            place = address_of(self.map.at(address))
            for memory, index in self.uses:
                memory[index] = place
            self.address = address


class LaunchCache:
    """Recorded calls by key; the least recently used are dropped first.

    Order is tracked only once the cache is half full.

    Attributes
    ----------
    calls : OrderedDict
        By `settings_key` and the keys of the arrays.
    known : dict
        {key: (recorded call, its key in ``calls``, settings)}. These keys have the ids of the settings, which takes
        less time; the ids stay theirs as long as the settings are kept. A call usually has the very settings of the one
        before: defaults, small ints, constants of the caller.
    """

    def __init__(self, max_calls: int = 1024):
        self.max_calls, self.half = max_calls, max_calls // 2
        self.calls, self.known = OrderedDict(), {}
        self._lock = threading.Lock()

    def find(self, key: tuple, settings: tuple) -> tuple:
        """Find what ``known`` has for a key, which is not there yet; None for a call that is not recorded."""
        by_value, constant = settings_key(settings)
        own = (*key[:OTHERS], by_value, *key[OTHERS + len(settings) :])
        found = self.calls.get(own), own, settings
        if constant and found[0] is not None:
            if len(self.known) >= self.max_calls:
                self.known.clear()
            self.known[key] = found
        return found

    def touch(self, key):
        """Count a call as used just now."""
        with self._lock:
            if key in self.calls:
                self.calls.move_to_end(key)

    def store(self, key, call: RecordedCall):
        with self._lock:
            self.calls[key] = call
            while len(self.calls) > self.max_calls:
                self.calls.popitem(last=False)
                self.known.clear()

    def clear(self):
        with self._lock:
            self.calls.clear()
            self.known.clear()
