"""Frames one after another: copied to the device, made to fit and normalised, while those that follow are on their way.

A frame passes three places, its way there, the kernel, and whoever uses the result; with one frame in each of them at a
time, a video takes as long as the slowest of the three and not as long as their sum (A13).
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpukit.backend import cuda
from gpukit.launching import upload
from gpukit.resize.api import blob, check_image
from gpukit.resize.placing import size_of
from gpukit.streams import is_pinned
from warpstep.checks import check_int

__all__ = ["MOST_DEPTH", "video"]

MOST_DEPTH = 64
MOST_KNOWN = 256


def video(frames, size, mean=0, factor=1 / 255, fill=0, center=True, swap_rb=True, *, dtype=np.float32, depth=4):
    """What ``blob`` makes of each frame of a video, on the device, in order (A13, A14).

    Parameters
    ----------
    frames : iterable of ndarray, shape (H, W, 3)
        uint8 or float32, all alike, as many as there are. A frame in pinned memory (``cuda.pinned_array``) is copied
        from where it is; any other frame goes to pinned memory first, in a thread of its own. Each must stay as it is
        until its result comes: a reader that has one array for all frames gives a copy of it.
    size, mean, factor, fill, center, swap_rb, dtype
        As for ``blob``.
    depth : int
        Frames under way at a time, from 1 to ``MOST_DEPTH``; each has device memory and a stream of its own.

    Returns
    -------
    iterator of Letterbox
        (image, scale, top, left) of each frame: the image is a device array of shape (3, height, width), complete, and
        good until the next one is asked for.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, at once; for a frame that is not, when it is read.
    """
    depth = check_int("depth", depth, 1, MOST_DEPTH)
    size_of("size", size)
    return _results(iter(frames), (size, mean, factor, fill, center, swap_rb), dtype, depth)


def _results(frames, parameters, dtype, depth):
    free, under_way, first, known = [], deque(), None, {}
    with ThreadPoolExecutor(depth, initializer=cuda.current_context) as pool:
        for number, frame in enumerate(frames):
            if first is None:
                first = frame
                check_image("frames[0]", frame, 3)
                free = [_Slot(frame, parameters, dtype) for _ in range(depth)]
            elif not isinstance(frame, np.ndarray) or (frame.shape, frame.dtype) != (first.shape, first.dtype):
                raise ValueError(f"frames[{number}] is not of the shape and dtype of the first: {_described(first)}")
            slot = free.pop()
            slot.begin(frame, _is_pinned(frame, known), pool)
            under_way.append(slot)
            if not free:
                yield under_way[0].result()
                free.append(under_way.popleft())
        while under_way:
            yield under_way.popleft().result()


def _described(frame):
    return f"{frame.shape}, {frame.dtype}"


def _is_pinned(frame, known):
    """Whether a frame can be copied from where it is; asked once for each place, as long as ``known`` is small: after
    the memory there has been given to another the answer may be wrong, and then it costs time and nothing else.
    """
    place = frame.ctypes.data, frame.nbytes, frame.flags.c_contiguous
    if place not in known:
        if len(known) >= MOST_KNOWN:
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
        self.out = cuda.device_array((3, height, width), dtype)
        self.pinned = self.source = self.boxed = self.work = None

    def begin(self, frame, pinned, pool):
        """Take a frame in; if it is not pinned, a thread copies it to where it is."""
        self.work = None
        if pinned:
            self.source = frame
            self.launch()
        else:
            self.work = pool.submit(self.fill, frame)

    def fill(self, frame):
        if self.pinned is None:
            self.pinned = cuda.pinned_array(frame.shape, frame.dtype)
        np.copyto(self.pinned, frame)
        self.source = self.pinned
        self.launch()

    def launch(self):
        """Queue the copy to the device and the kernel."""
        upload(self.device, self.source, self.stream)
        self.boxed = blob(self.device, *self.parameters, dtype=self.dtype, out=self.out, stream=self.stream)

    def result(self):
        """Wait for the frame."""
        if self.work is not None:
            self.work.result()
        self.stream.synchronize()
        return self.boxed
