"""Launches of a call, recorded so that a call like it repeats them with its own arrays' addresses."""

import ctypes
import functools
import threading
from collections import OrderedDict
from threading import get_ident
from typing import Any

from gpukit._host.arrays import address_of, as_device_array, handle_of, span, stream_of
from gpukit._host.keys import ALIGNMENT, READERS, exact_settings, make_locate, settings_key
from gpukit._host.new_arrays import make_like
from gpukit._host.work_memory import Buffers, WorkMemory, state_of
from gpukit._numba import PER_THREAD_DEFAULT_STREAM

__all__ = ["MAX_KEPT", "LaunchCache", "RecordedCall", "queue_of"]

#: Bytes of memory that a recorded call may keep alive.
MAX_KEPT = 64 << 20
#: Parts of a key before those of the settings: planner, queue, whether the result is new, number of inputs.
OTHERS = 4
#: Those of a call without work memory: they never change.
_NO_BUFFERS = Buffers()


class RecordedCall:
    """Prepared launches of one call, and which of their arrays lie in its inputs or in its outputs.

    The launches read these addresses from the call's own block of memory: first those of the inputs and outputs, then
    those that lie inside of them, or in work memory.

    Parameters
    ----------
    prepared : list of Prepared
    inputs : tuple of device arrays or None
    outputs : list of Output
        One of them may have the caller's ``out``; several are new.
    work : WorkMemory, optional
        Memory of the stream that the launches use. It is not kept: each replay finds it where it is by then.

    Attributes
    ----------
    key : tuple
        Its key in the cache.
    locate : function
        As of `make_locate`, for the inputs and ``out``, if that was given.
    blank : list of int
        As long as what ``locate`` writes.
    launches : list of Prepared
    start : function
        Makes them; if it is one, its own ``start``.
    own : slice
        Where the addresses of inputs and outputs are in the block.
    replayable : bool
        Whether it can stand for other calls: the launches use every input and output in place, except for empty
        ones, these do not overlap, except for inputs that begin together, and the launches keep little other memory
        alive.
    """

    __slots__ = (
        "blank",
        "block",
        "buffers",
        "key",
        "launches",
        "locate",
        "lock",
        "make_output",
        "maps",
        "moves",
        "own",
        "places",
        "reach",
        "replayable",
        "start",
        "version",
        "work",
        "_held",
    )

    def __init__(self, prepared, inputs, outputs, work: WorkMemory | None = None):
        stream, given = outputs[0].stream, inputs if outputs[0].is_new else (*inputs, outputs[0].out)
        inputs, outputs = [array for array in inputs if array is not None], [output.target for output in outputs]
        self.lock, self.work = state_of(stream).lock, work
        self._held = [] if work is None else [_Held(work, key, size) for key, size in work.taken.items()]
        self.buffers = work.buffers if work is not None and self._held else _NO_BUFFERS
        self.version = self.buffers.version
        makers = [make_like(inputs[0], tuple(output.shape), output.dtype, stream) for output in outputs]
        self.make_output = makers[0] if len(makers) == 1 else lambda pointers: [make(pointers) for make in makers]
        arrays = [*map(as_device_array, inputs), *outputs]
        starts, spans = [address_of(array) for array in arrays], [span(array) for array in arrays]
        *reaches, (low, high) = [(low - at, high - at) for (low, high), at in zip(spans, starts, strict=True)]
        #: (i, low, high): input i overlaps the last output if it begins between so many bytes after that.
        self.reach = [(i, low - own_high, high - own_low) for i, (own_low, own_high) in enumerate(reaches)]
        used, kept = self._bind(prepared, starts, spans)
        self.moves = bool(self.places or self.maps)
        self.own = slice(len(arrays))
        self.launches = prepared
        self.start: Any = prepared[0].start if len(prepared) == 1 else functools.partial(_start_all, prepared)
        self.blank = [0] * len(given)
        self.locate = make_locate(given, handle_of(stream), repeats=True)
        last = len(inputs)  # an address of 0 is that of no memory that can be told from another
        apart = all(
            a[1] <= b[0] or b[1] <= a[0] or i < last and starts[i] == starts[j] != 0
            for i, a in enumerate(spans)
            for j, b in enumerate(spans[:i])
        )
        # Nothing can be read from an empty array. Without launches a new output must be one.
        empty = {i for i, (low, high) in enumerate(spans) if low == high}
        needed = range(0 if prepared else len(inputs), len(arrays))
        self.replayable = apart and (used | empty).issuperset(needed) and kept <= MAX_KEPT

    def _bind(self, prepared, starts, spans) -> tuple[set[int], int]:
        """Have the launches read addresses from the block; return which arrays they use, and bytes that they keep."""
        moved = [] if self.work is None else [_Map(movable) for movable in self.work.maps]
        owners = {address_of(each.map.memory): each for each in moved}
        cells: dict[tuple[Any, int], int] = {(i, 0): i for i in range(len(starts))}
        addresses, used, kept = list(starts), set(), 0
        bound: list[dict[int, int]] = [{} for _ in prepared]
        for launch, positions in zip(prepared, bound, strict=True):
            for position, array in launch.arrays():
                address, (low, high) = address_of(array), span(array)
                owner, offset = owners.get(address), 0
                if owner is None:
                    owner, offset = self._owner_of(array, starts, spans, used)
                if owner is None:
                    kept += high - low
                    continue
                positions[position] = cells.setdefault((owner, offset), len(cells))
                addresses += [address] * (len(cells) - len(addresses))
        self.block = (ctypes.c_uint64 * len(cells))(*addresses)
        for launch, positions in zip(prepared, bound, strict=True):
            launch.bind(positions, self.block)
        #: (cell, number of a pointer, bytes to add), and (map, number of a pointer, bytes to add).
        self.places, self.maps = [], []
        for (owner, offset), cell in cells.items():
            if not isinstance(owner, int):
                owner.uses.append((cell, offset))
            elif offset:
                self.places.append((cell, owner, offset))
        for each in moved:
            owner, offset = self._owner_of(each.map.array, starts, spans, used)
            if isinstance(owner, int):
                self.maps.append((each, owner, offset))
            elif owner is not None:
                owner.maps.append((each, offset))
            each.map.release()
        return used, kept

    def _owner_of(self, array, starts, spans, used: set[int]) -> tuple[Any, int]:
        """Find what an array lies in, and its offset there in bytes.

        That is an array of the call, by its number, which goes into ``used``; work memory; or None.
        """
        low, high = span(array)
        inside = [i for i, (start, stop) in enumerate(spans) if start <= low < high <= stop]
        if inside:
            used.update(i for i in inside if starts[i] == starts[inside[0]])
            return inside[0], address_of(array) - starts[inside[0]]
        for held in self._held:
            if held.start <= low < high <= held.stop:
                return held, address_of(array) - held.start
        return None, 0

    def again(self, pointers: list, out=None) -> Any:
        """Repeat the launches with inputs, and ``out`` if given, at these addresses; returns ``out`` or what is new."""
        if out is None:
            make_output = self.make_output  # called from a local name, what a slot holds is found in less time
            out = make_output(pointers)
        lock = self.lock
        lock.acquire()  # a with statement takes twice as long
        try:
            self.block[self.own] = pointers
            if self.buffers.version != self.version:
                self.find_work()
            if self.moves:
                self.move(pointers)
            start = self.start
            if code := start():
                self.launches[0].failed(code)
        finally:
            lock.release()
        return out

    def overlaps(self, pointers):
        """Whether the output, which is the last pointer, shares memory with an input."""
        out = pointers[-1]
        for i, least, most in self.reach:
            if least < pointers[i] - out < most:
                return True
        return False

    def find_work(self):
        """Find the work memory where it is now, and write its cells."""
        for held in self._held:
            held.find(self.block)
        self.version = self.buffers.version

    def move(self, pointers):
        """Write the cells of what lies inside of arrays."""
        for cell, source, offset in self.places:
            self.block[cell] = pointers[source] + offset
        for each, source, offset in self.maps:
            each.move(pointers[source] + offset, self.block)


def _start_all(prepared):
    for launch in prepared:
        if code := launch.start():
            launch.failed(code)


def queue_of(stream) -> Any:
    """What stands for a stream in keys: None for the default one, or the thread's number where each has its own."""
    return (stream is not None and stream_of(stream)) or (get_ident() if PER_THREAD_DEFAULT_STREAM else None)


class _Held:
    """Work memory of a stream, under a key, and the arguments of launches that lie in it.

    Attributes
    ----------
    uses : list of (cell of the block, bytes from the start)
    maps : list of (_Map, bytes from the start)
    """

    __slots__ = ("key", "maps", "size", "start", "stop", "uses", "work")

    def __init__(self, work: WorkMemory, key: tuple, size: int):
        self.work, self.key, self.size, self.uses, self.maps = work, key, size, [], []
        self.start, self.stop = span(work.find(key, size))

    def find(self, block):
        """Find the memory where it is now, or make it again, and write the block's cells."""
        self.start, self.stop = span(self.work.find(self.key, self.size))
        for cell, offset in self.uses:
            block[cell] = self.start + offset
        for each, offset in self.maps:
            each.move(self.start + offset, block)


class _Map:
    """A tensor map, and the arguments of launches that are it.

    Attributes
    ----------
    uses : list of (cell of the block, 0)
    """

    __slots__ = ("address", "map", "uses")

    def __init__(self, map):
        self.map, self.uses, self.address = map, [], address_of(map.array)

    def move(self, address, block):
        """Describe the array at another address, and write the block's cells."""
        if address != self.address:
            place = address_of(self.map.at(address))
            for cell, _ in self.uses:
                block[cell] = place
            self.address = address


class LaunchCache:
    """Recorded calls by key; the least recently used are dropped first.

    Order is tracked only once the cache is half full.

    Attributes
    ----------
    crowded : bool
        Whether it is more than half full.
    calls : OrderedDict
        By planner, queue, whether the result is new, number of inputs, `settings_key`, and the keys of the arrays.
    latest : dict
        By the same, but with the settings as they are, and for the arrays the size of the first: (the latest call, its
        `exact_settings`). It stands for calls with these very objects. A call usually has them: defaults, small ints,
        constants of the caller. And its arrays usually are alike.
    """

    def __init__(self, max_calls: int = 1024):
        self.max_calls, self.crowded = max_calls, False
        self.calls, self.latest = OrderedDict(), {}
        self._lock = threading.Lock()

    def find(self, plan, inputs: tuple, out, stream, settings: tuple) -> tuple:
        """Find a call by its key; it becomes the latest of its kind.

        Returns
        -------
        recorded : RecordedCall or None
            None if there is no such call.
        key : tuple or None
            None if the call cannot be repeated.
        pointers : list of int
            Addresses of the inputs, and of ``out`` if that was given.
        """
        try:
            stream = stream_of(stream)
            kind = plan, queue_of(stream), out is None, len(inputs), inputs[0].nbytes, settings
            recorded, key, pointers = self._find(kind, inputs if out is None else (*inputs, out), handle_of(stream))
        except Exception:  # a setting cannot be hashed or compared, or an argument is not what it must be
            return None, None, None
        if recorded is not None and out is not None and recorded.overlaps(pointers):
            recorded = None
        if recorded is not None and self.crowded:
            self.touch(key)
        return recorded, key, pointers

    def _find(self, kind, arrays, handle):
        by_value, constant = settings_key(kind[-1])
        key, pointers = [*kind[:OTHERS], by_value], []
        for array in arrays:
            if array is None:
                key.append(None)
                continue
            pointer = READERS[type(array)](array, handle, key)
            if pointer is None:
                return None, None, None
            key.append(pointer % ALIGNMENT)
            pointers.append(pointer)
        apart = len({*pointers}) == len(pointers)
        if not apart:
            # Two inputs share memory: nothing tells which of them an argument of a launch came from.
            key.append(tuple(map(pointers.index, pointers)))
        key = tuple(key)
        recorded = self.calls.get(key)
        if recorded is not None and constant and apart:
            if len(self.latest) >= self.max_calls:
                self.latest.clear()
            self.latest[kind] = recorded, exact_settings(kind[-1])
        return recorded, key, pointers

    def touch(self, key):
        """Count a call as used just now."""
        with self._lock:
            if key in self.calls:
                self.calls.move_to_end(key)

    def store(self, key, call: RecordedCall):
        with self._lock:
            call.key, self.calls[key] = key, call  # in this order: other threads see a call that is whole
            while len(self.calls) > self.max_calls:
                self.calls.popitem(last=False)
                self.latest.clear()
            self.crowded = len(self.calls) > self.max_calls // 2

    def clear(self):
        with self._lock:
            self.calls.clear()
            self.latest.clear()
            self.crowded = False
