"""Work memory: device memory for what the launches of a call leave to each other, kept for the next call on the stream.

Calls on one stream follow one another, so they share the memory. Calls on different streams may overlap, so each stream
has memory of its own. Only the launches of one call must not be interleaved with another thread's on the same stream:
the stream's lock is held while a call queues them.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukit._numba import PER_THREAD_DEFAULT_STREAM, device_memset
from gpukit.backend import cuda, on_gpu
from warpstep.integers import next_power_of_two

__all__ = ["Buffers", "StreamState", "WorkMemory", "free_work_memory", "state_of"]

#: Buffers up to this many bytes are powers of two, so that few are ever allocated; larger ones are as large as needed.
MAX_ROUNDED = 64 << 20
#: The purposes of the counters.
ZEROS, FLAGS = "zeros", "flags"


class Buffers(dict):
    """Arrays by key; ``version`` is another number after every change."""

    version = 0

    def __setitem__(self, key, array):
        super().__setitem__(key, array)
        self.version += 1

    def clear(self):
        super().clear()
        self.version += 1


class StreamState:
    """The lock and the work memory of one stream.

    Attributes
    ----------
    lock : threading.RLock
        Held while the launches of a call are queued.
    buffers : Buffers
        (device, purpose) -> device array.
    """

    __slots__ = ("__weakref__", "buffers", "lock")

    def __init__(self):
        self.lock = threading.RLock()
        self.buffers = Buffers()


class WorkMemory:
    """Work memory for the launches of one call.

    Parameters
    ----------
    stream : 0 or a CUDA stream
    buffers : Buffers, optional
        Of the stream's `StreamState`: the memory is shared with its other calls. Otherwise it belongs to this object
        and to the arguments that it is passed in.
    allocate : function, optional
        From a number of bytes to a flat device array of them.

    Attributes
    ----------
    recorded : bool
        Whether ``allocate`` was given: a CUDA graph records the launches, and makes them when all that is allocated
        here and now may be gone.
    """

    def __init__(self, stream, buffers: "Buffers | None" = None, allocate: Callable[[int], Any] | None = None):
        self.stream, self.recorded = stream, allocate is not None
        self.buffers = Buffers() if buffers is None else buffers
        self._allocate = allocate or (lambda nbytes: cuda.device_array(nbytes, np.uint8))
        #: What has been taken: (device, purpose) -> bytes, or counters.
        self.taken: dict[tuple, int] = {}
        #: The `gpukit.matmul.maps.MovableMap`s that the launches read.
        self.maps: list = []

    def take(self, purpose: str, size: int, dtype) -> Any:
        """A flat device array of ``size`` elements with any contents.

        Each purpose has its own memory, the same one every time that it is asked for: a later launch may overwrite what
        an earlier one has read.
        """
        dtype = np.dtype(dtype)
        buffer = self.find((cuda.get_current_device().id, purpose), max(size, 1) * dtype.itemsize)
        return buffer[: size * dtype.itemsize].view(dtype)

    def zeros(self, count: int):
        """At least ``count`` counters, uint32, all 0; the kernels that use them must leave them at 0."""
        return self.find((cuda.get_current_device().id, ZEROS), count)

    def flags(self, count: int):
        """At least ``count`` counters, uint32, that are 0 at first and keep what kernels leave there.

        The kernels must tell their launch's flags from those of earlier ones, also of other kernels.
        """
        return self.find((cuda.get_current_device().id, FLAGS), count)

    def find(self, key: tuple, size: int):
        """The memory of (device, purpose), made or made larger if it has less than ``size`` bytes, or counters."""
        self.taken[key] = max(size, self.taken.get(key, 0))
        buffer = self.buffers.get(key)
        if buffer is not None and buffer.size >= size:
            return buffer
        # Not bound to the stream: as a value of _states, it would keep its key alive.
        if key[1] in (ZEROS, FLAGS):
            buffer = self._allocate(4 * next_power_of_two(size)).view(np.uint32)
            _clear(buffer, self.stream)
        else:
            buffer = self._allocate(_rounded(size))
        with state_of(self.stream).lock:  # while another thread queues what uses the memory before
            self.buffers[key] = buffer
        return buffer


def _clear(buffer, stream):
    """Queue that all bytes become 0: a graph that records it does so again each time that it runs."""
    if on_gpu():
        device_memset(buffer, 0, buffer.nbytes, stream)
    else:
        buffer.copy_to_device(np.zeros(buffer.shape, buffer.dtype), stream=stream)


def _rounded(nbytes):
    return next_power_of_two(nbytes) if nbytes <= MAX_ROUNDED else nbytes


_default = StreamState()
#: The default streams of the threads, in a process in which each has one of its own.
_default_of_thread = threading.local()
_states = weakref.WeakKeyDictionary()
_states_lock = threading.Lock()


def state_of(stream) -> StreamState:
    """The `StreamState` of a stream; 0 is the default stream."""
    if not stream:
        return _default_state()
    with _states_lock:
        return _states.setdefault(stream, StreamState())


def _default_state():
    if not PER_THREAD_DEFAULT_STREAM:
        return _default
    if not hasattr(_default_of_thread, "state"):
        _default_of_thread.state = StreamState()
    return _default_of_thread.state


def free_work_memory():
    """Let go of the work memory of all streams; of default streams, of this thread's."""
    with _states_lock:
        states = [_default_state(), *_states.values()]
    for state in states:
        with state.lock:  # a repeated call finds its buffers, then queues what uses them
            state.buffers.clear()
