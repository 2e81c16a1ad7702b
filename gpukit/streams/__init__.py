"""Streams and events: copies and kernels that overlap, what ran when, and how much overlap can gain (A13, C3).

``lesson`` is the plain loop: ``pipelined``, with ``to_device`` and ``copy_to_host`` on several streams. ``pipeline``
does the same for any kernel, and can be recorded. ``schedule`` holds operations, streams and events, and finds races;
``timeline`` shows what ran when; ``model`` simulates a schedule where there is no GPU, and ``measure`` measures a
model's figures. ``kernels`` has kernels of a chosen duration.
"""

from gpukit.streams.kernels import SleepKernel, WorkKernel, scrambled
from gpukit.streams.lesson import pipelined
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
    "pipelined",
    "predicted",
    "run_pipeline",
    "scrambled",
]
