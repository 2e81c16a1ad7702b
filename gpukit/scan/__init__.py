"""Scans (prefix sums): from a block's to one pass over memory.

- ``primitives``: scans of a warp and of a block, also for kernels of yours (`warp_scan`, `block_scan`).
- ``fast``, ``cost``: the kernels of ``scan``, and which of them for a shape.
- ``api``: ``scan`` along any axis of any array.
"""

from gpukit.scan.api import scan
from gpukit.scan.primitives import block_scan, warp_scan

__all__ = ["block_scan", "scan", "warp_scan"]
