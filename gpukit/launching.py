"""Cheap repeated launches (C3): `prepare` makes a kernel ready once, with its types found out and its arguments packed.

``kernel[grid, block](*args)`` works out at every call what types the arguments have, which compiled kernel that means,
and how each argument is passed. A program that launches the same kernel thousands of times can do this once. gpukit's
own functions do so: `gpukit._host.call` repeats the launches of a call with other arrays.
"""

from gpukit._host.arrays import handle_of, upload
from gpukit._host.keys import array_key, layout_of
from gpukit._host.keys import array_key as look
from gpukit._host.prepared import Prepared, prepare

__all__ = ["Prepared", "array_key", "handle_of", "layout_of", "look", "prepare", "upload"]
