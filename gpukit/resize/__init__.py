"""Resizing images, with OpenCV's results and at the speed of memory (A14).

- ``ladder``: from the nearest pixel to a letterbox in planes, one idea per kernel. Begin here.
- ``sampling``: where a pixel lies, and how its neighbours are mixed. ``placing``: where a letterbox has its picture.
- ``fast``, ``cost``: the kernels of the host functions, and which of them for which frames.
- ``api``, ``frames``: ``resize``, ``letterbox`` and ``blob`` of images, batches, and sequences of images of many sizes.
- ``videos``: ``blob`` of frames one after another. ``traffic``: the bytes that must move.
"""

from gpukit.resize.api import METHODS, blob, letterbox, resize
from gpukit.resize.ladder import VARIANTS
from gpukit.resize.placing import CHANNELS, MAX_PIXELS, Letterbox, Placement, placement
from gpukit.resize.traffic import least_bytes
from gpukit.resize.videos import video

#: The name that ``MAX_PIXELS`` had.
MOST_PIXELS = MAX_PIXELS

__all__ = [
    "CHANNELS",
    "MAX_PIXELS",
    "METHODS",
    "MOST_PIXELS",
    "VARIANTS",
    "Letterbox",
    "Placement",
    "blob",
    "least_bytes",
    "letterbox",
    "placement",
    "resize",
    "video",
]
