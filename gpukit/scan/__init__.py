"""Scans (prefix sums), and what is built from them: histograms, compaction, sorting.

- ``ladder``: a scan of float32 in five kernels, one idea each. Begin here.
- ``primitives``: scans of a warp and of a block, also for kernels of yours (`warp_scan`, `block_scan`).
- ``fast``, ``cost``, ``api``: ``scan`` along any axis of any array, in one pass.
- ``counting``: ``histogram``. ``selecting``: ``compress``, ``nonzero``. ``sorting``: ``sort``, ``argsort``.
  ``largest``: ``topk``. ``segments``: ``segmented_reduce``, ``segmented_scan``.
"""

from gpukit.scan.api import scan, scan_by
from gpukit.scan.counting import histogram
from gpukit.scan.ladder import VARIANTS, steps
from gpukit.scan.largest import topk
from gpukit.scan.primitives import block_scan, warp_scan
from gpukit.scan.segments import segmented_reduce, segmented_scan
from gpukit.scan.selecting import compress, nonzero
from gpukit.scan.sorting import argsort, sort

__all__ = [
    "VARIANTS",
    "argsort",
    "block_scan",
    "compress",
    "histogram",
    "nonzero",
    "scan",
    "scan_by",
    "segmented_reduce",
    "segmented_scan",
    "sort",
    "steps",
    "topk",
    "warp_scan",
]
