"""Streams and events: copies and kernels that overlap, what really ran when, and the limit of it (A13, C3)."""

from gpukit.streams.kernels import SleepKernel, WorkKernel, scrambled
from gpukit.streams.measure import measured_model
from gpukit.streams.model import Model, best_chunks, best_speedup, modelled, predicted
from gpukit.streams.pipeline import Pipeline, Run, is_pinned, run_pipeline
from gpukit.streams.schedule import Operation, Race, Schedule, is_done
from gpukit.streams.timeline import ENGINES, Bar, Timeline

__all__ = [
    "ENGINES",
    "Bar",
    "Model",
    "Operation",
    "Pipeline",
    "Race",
    "Run",
    "Schedule",
    "SleepKernel",
    "Timeline",
    "WorkKernel",
    "best_chunks",
    "best_speedup",
    "is_done",
    "is_pinned",
    "measured_model",
    "modelled",
    "predicted",
    "run_pipeline",
    "scrambled",
]
