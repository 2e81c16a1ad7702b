"""Resizing images, with OpenCV's result and at the speed of memory: A14.

``resize``, ``letterbox`` and ``blob`` take frames, batches and sequences of images of many sizes; ``video`` takes
frames one after another; ``placement`` maps coordinates both ways. ``ladder`` has the steps that lead there, one idea
per kernel; ``sampling`` where a pixel lies and how its neighbours are mixed, and ``kernels`` what is launched.
"""

from gpukit.resize.api import METHODS, blob, letterbox, resize
from gpukit.resize.frames import video
from gpukit.resize.placing import CHANNELS, MOST_PIXELS, Letterbox, Placement, placement
from gpukit.resize.traffic import least_bytes

__all__ = [
    "CHANNELS",
    "METHODS",
    "MOST_PIXELS",
    "Letterbox",
    "Placement",
    "blob",
    "least_bytes",
    "letterbox",
    "placement",
    "resize",
    "video",
]
