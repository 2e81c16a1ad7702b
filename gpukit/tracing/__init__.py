"""What a kernel does, by line: `trace` runs a launch in the emulator and counts and checks every access.

``gpukit.trace`` and ``gpukit.compare`` are these functions.
"""

from gpukit.tracing.records import (
    Access,
    Advice,
    Barrier,
    Branch,
    Coverage,
    Finding,
    Occupancy,
    Operations,
    Request,
    Total,
    Traffic,
)
from gpukit.tracing.report import Trace, compare
from gpukit.tracing.tracer import trace

__all__ = [
    "Access",
    "Advice",
    "Barrier",
    "Branch",
    "Coverage",
    "Finding",
    "Occupancy",
    "Operations",
    "Request",
    "Total",
    "Trace",
    "Traffic",
    "compare",
    "trace",
]
