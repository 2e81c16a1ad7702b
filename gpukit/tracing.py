"""The names of a trace and of what is in it, public here since the first version."""

from warpstep.tracer import trace
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
from warpstep.tracing.trace import Trace, compare

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
