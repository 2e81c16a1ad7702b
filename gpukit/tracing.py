"""The names of a trace and of its records, public here since the first version."""

from warpstep.report.comparison import compare
from warpstep.tracer import Trace, load_trace, trace
from warpstep.tracing.records import (
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
    "load_trace",
    "trace",
]
