"""What all tests share: those marked ``gpu`` are skipped without one, figures open no window, examples repeat."""

import os

import hypothesis
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
# The same examples in every run, so that a failure is found where it was made; no deadline, for compiling is slow.
hypothesis.settings.register_profile("gpukit", derandomize=True, deadline=None)
hypothesis.settings.load_profile("gpukit")


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from gpukit import backend

    if not backend.on_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {backend.REASON}"))
