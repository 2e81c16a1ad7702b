"""A stand-in for `cuda` that carries out copies and launches at once, and keeps them as a `Schedule` to be reviewed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpukit.streams import Schedule

#: Seconds of the longest operation in the schedule; others are shorter in proportion to their bytes.
LONGEST = 1e-3


def _nothing(stream):
    """Stand for an operation that has been carried out already."""


class Watched:
    """What the answer gets as ``cuda``: streams, copies, and the default stream, which waits for all others.

    Parameters
    ----------
    nbytes : int
        Of a copy that takes ``LONGEST``.
    rate : float
        Bytes per second of a copy on the model.

    Attributes
    ----------
    schedule : Schedule
        What has been enqueued; what waits for what is in ``after``.
    pageable : list of str
        Copies out to arrays that are not pinned, for which the host waits.
    """

    def __init__(self, nbytes: int, rate: float):
        self.schedule = Schedule()
        self._scale = LONGEST / nbytes
        self._rate = rate
        self._streams, self._last, self._waited = 0, {}, []
        self._buffers = 0
        self.pageable: list[str] = []

    def stream(self) -> "WatchedStream":
        """Make a stream. Number 0 is the default stream."""
        self._streams += 1
        return WatchedStream(self, self._streams)

    def synchronize(self) -> None:
        """Wait for everything: nothing that is enqueued later can overlap with it."""
        self._waited = list(self._last.values())

    def to_device(self, array: np.ndarray, stream: Any = 0) -> "WatchedArray":
        """Copy an array to the device."""
        made = self.device_array(array.shape, array.dtype)
        made.copy_to_device(array, stream)
        return made

    def device_array(self, shape: Any, dtype: Any = np.float64, stream: Any = 0) -> "WatchedArray":
        """Allocate an array."""
        self._buffers += 1
        values = np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype)
        return WatchedArray(self, values, f"array {self._buffers}")

    def device_array_like(self, array: Any, stream: Any = 0) -> "WatchedArray":
        """Allocate an array like another."""
        return self.device_array(array.shape, array.dtype)

    def enqueue(self, engine: str, stream: Any, nbytes: int, **uses: Any) -> None:
        """Note an operation, and what it waits for besides its stream."""
        number = stream.number if isinstance(stream, WatchedStream) else 0
        after = list(self._last.values()) if number == 0 else [*self._waited, *self._default()]
        seconds = nbytes * self._scale
        task = sum(operation.engine == engine for operation in self.schedule.operations)
        uses |= {"seconds": seconds} if engine == "kernel" else {"nbytes": round(seconds * self._rate)}
        self._last[number] = self.schedule.add(engine, _nothing, number, task=task, after=after, **uses)

    def unfinished(self) -> list[str]:
        """List the operations that the host has not waited for: the last of each stream."""
        return [self.schedule.operations[last].name for last in self._last.values() if last not in self._waited]

    def wait_for(self, number: int) -> None:
        """Let the host wait for a stream."""
        self._waited += [self._last[number]] if number in self._last else []

    def hold(self, stream: Any) -> None:
        """Let the host wait for a stream of the answer's, or the default stream."""
        self.wait_for(stream.number if isinstance(stream, WatchedStream) else 0)

    def __getattr__(self, name: str) -> Any:
        known = "device_array, device_array_like, stream, synchronize and to_device"
        raise AttributeError(f"the check's stand-in for cuda has no {name}; it has {known}")

    def _default(self):
        return [self._last[0]] if 0 in self._last else []


class WatchedStream:
    """A stream of `Watched`."""

    def __init__(self, watched: Watched, number: int):
        self._watched, self.number = watched, number

    def synchronize(self) -> None:
        self._watched.wait_for(self.number)

    @contextmanager
    def auto_synchronize(self) -> Iterator["WatchedStream"]:
        yield self
        self.synchronize()


class WatchedArray:
    """A device array of `Watched`."""

    def __init__(self, watched: Watched, values: np.ndarray, name: str):
        self._watched, self.values, self.name = watched, values, name
        self.shape, self.dtype, self.size, self.nbytes = values.shape, values.dtype, values.size, values.nbytes

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> "WatchedArray":
        return WatchedArray(self._watched, self.values[index], self.name)

    def copy_to_device(self, array: np.ndarray, stream: Any = 0) -> None:
        self.values[...] = array
        self._watched.enqueue("copy in", stream, self.nbytes, writes=[self.name])

    def copy_to_host(self, array: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        host = np.empty_like(self.values) if array is None else array
        host[...] = self.values
        self._watched.enqueue("copy out", stream, self.nbytes, reads=[self.name])
        if array is None:  # the array that the caller gets is pageable, so the copy ends before the call returns
            self._watched.pageable.append(self._watched.schedule.operations[-1].name)
            self._watched.hold(stream)
        return host


class WatchedKernel:
    """A kernel with a thread for each element, whose results a NumPy function computes.

    Attributes
    ----------
    blocks : list of int
        Threads per block of each launch.
    """

    def __init__(self, watched: Watched, function: Any):
        self._watched, self._function = watched, function
        self.blocks: list[int] = []

    def __getitem__(self, configuration: tuple) -> Any:
        grid, block, stream = (*configuration, 0)[:3]

        def launch(source, target):
            threads = int(np.prod(grid) * np.prod(block))
            self.blocks.append(int(np.prod(block)))
            target.values.reshape(-1)[:threads] = self._function(source.values.reshape(-1)[:threads])
            self._watched.enqueue("kernel", stream, source.nbytes, reads=[source.name], writes=[target.name])

        return launch
