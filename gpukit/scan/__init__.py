"""Scans (prefix sums), and what is built from them: histograms, compaction, sorting.

- ``primitives``: scans of a warp and of a block, also for kernels of yours (`warp_scan`, `block_scan`).
- ``fast``, ``cost``, ``api``: ``scan`` along any axis of any array, in one pass.
- ``counting``: ``histogram``. ``selecting``: ``compress``, ``nonzero``. ``sorting``: ``sort``, ``argsort``.
"""

from gpukit.scan.api import scan
from gpukit.scan.counting import histogram
from gpukit.scan.primitives import block_scan, warp_scan
from gpukit.scan.selecting import compress, nonzero
from gpukit.scan.sorting import argsort, sort

__all__ = ["argsort", "block_scan", "compress", "histogram", "nonzero", "scan", "sort", "warp_scan"]
