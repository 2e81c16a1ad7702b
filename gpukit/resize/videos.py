"""Frames one after another: each is copied to the device, fitted and normalised while the next are on their way.

A frame passes three stages: its copy, the kernel, and whoever uses the result. With a frame in each of them, a video
takes as long as the slowest stage and not as long as their sum (A13).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpukit._host.arrays import is_pinned
from gpukit._host.transfers import upload
from gpukit.backend import cuda
from gpukit.resize.api import _request, blob
from gpukit.resize.frames import check_image
from gpukit.resize.placing import CHANNELS, Letterbox, check_size
from warpstep.values import check_int, type_name

__all__ = ["MAX_DEPTH", "video"]

MAX_DEPTH = 64
#: Places in memory whose kind is remembered.
MAX_KNOWN = 256


def video(
    frames: Iterable[np.ndarray],
    size: tuple[int, int],
    mean: Any = 0,
    factor: Any = 1 / 255,
    fill: Any = 0,
    center: bool = True,
    swap_rb: bool = True,
    *,
    dtype: Any = np.float32,
    depth: int = 4,
) -> Iterator[Letterbox]:
    """Apply ``blob`` to each frame of a video, on the device, in order (A13, A14).

    Parameters
    ----------
    frames : iterable of ndarray, shape (H, W, 3)
        uint8 or float32, all alike, any number of them. A frame in pinned memory (``cuda.pinned_array``) is copied from
        where it is; any other frame is copied to pinned memory first, by a thread. A frame must not change until its
        result comes: a reader that fills one array again and again must yield copies.
    size, mean, factor, fill, center, swap_rb, dtype
        As for ``blob``.
    depth : int
        Frames in flight, from 1 to ``MAX_DEPTH``; each has device memory and a stream of its own.

    Returns
    -------
    iterator of Letterbox
        (image, scale, top, left) of each frame. The image is a device array of shape (3, height, width), complete and
        valid until the next one is asked for.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind, at once; for a frame of another kind, when it is read.

    Examples
    --------
    >>> frames = (np.full((40, 60, 3), 255, np.uint8) for _ in range(3))
    >>> [blob.image.shape for blob in video(frames, (32, 32))]
    [(3, 32, 32), (3, 32, 32), (3, 32, 32)]
    """
    depth = check_int("depth", depth, 1, MAX_DEPTH)
    size = check_size("size", size)
    _request(size, "bilinear", True, center, fill, swap_rb, mean, factor, dtype)
    try:
        frames = iter(frames)
    except TypeError:
        raise TypeError(f"frames is {type_name(frames)}; it must be an iterable of NumPy arrays") from None
    return _results(frames, (size, mean, factor, fill, center, swap_rb), dtype, depth)


def _results(frames, parameters, dtype, depth):
    free, under_way, first, known = [], deque(), None, {}
    with ThreadPoolExecutor(depth, initializer=cuda.current_context) as pool:
        for number, frame in enumerate(frames):
            check_image(f"frames[{number}]", frame, (3,))
            if not isinstance(frame, np.ndarray):
                raise TypeError(f"frames[{number}] is {type_name(frame)}; it must be a NumPy array")
            if first is None:
                first = frame
                free = [_Slot(frame, parameters, dtype) for _ in range(depth)]
            elif (frame.shape, frame.dtype) != (first.shape, first.dtype):
                what = f"{first.shape}, {first.dtype}"
                raise ValueError(f"frames[{number}] is not of the shape and dtype of the first: {what}")
            slot = free.pop()
            slot.begin(frame, _is_pinned(frame, known), pool)
            under_way.append(slot)
            if not free:
                yield under_way[0].result()
                free.append(under_way.popleft())
        while under_way:
            yield under_way.popleft().result()


def _is_pinned(frame, known):
    """Whether a frame can be copied from where it is; the driver is asked once for each address.

    The answer may be wrong once the memory there belongs to another array. That costs time and nothing else.
    """
    place = frame.ctypes.data, frame.nbytes, frame.flags.c_contiguous
    if place not in known:
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[place] = frame.flags.c_contiguous and is_pinned(frame)
    return known[place]


class _Slot:
    """Memory and a stream for one frame at a time."""

    def __init__(self, frame, parameters, dtype):
        self.parameters, self.dtype = parameters, dtype
        self.stream = cuda.stream()
        self.device = cuda.device_array(frame.shape, frame.dtype)
        height, width = parameters[0]
        self.out = cuda.device_array((CHANNELS, height, width), dtype)
        self.pinned: Any = None
        self.boxed: Any = None
        self.work: Any = None

    def begin(self, frame, pinned, pool):
        """Take a frame; if it is not pinned, a thread copies it to pinned memory."""
        self.work = None
        if pinned:
            self.launch(frame)
        else:
            self.work = pool.submit(self.fill, frame)

    def fill(self, frame):
        if self.pinned is None:
            self.pinned = cuda.pinned_array(frame.shape, frame.dtype)
        np.copyto(self.pinned, frame)
        self.launch(self.pinned)

    def launch(self, source):
        """Queue the copy to the device and the kernel."""
        self.source = source  # alive until it is copied
        upload(self.device, source, self.stream)
        self.boxed = blob(self.device, *self.parameters, dtype=self.dtype, out=self.out, stream=self.stream)

    def result(self):
        """Wait for the frame."""
        if self.work is not None:
            self.work.result()
        self.stream.synchronize()
        return self.boxed
