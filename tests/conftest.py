"""What all tests share: those marked ``gpu`` are skipped without one, figures open no window, examples repeat."""

import gc
import os

import hypothesis
import pytest

import warpstep._compilers  # noqa: F401 - tests import numba.cuda themselves

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
# The same examples in every run, so that a failure is found where it was made; no deadline, for compiling is slow.
hypothesis.settings.register_profile("gpukit", derandomize=True, deadline=None)
hypothesis.settings.load_profile("gpukit")

#: Memory of a GPU for each process that tests on it, whose arrays are smaller than those that are timed.
MEMORY = 4 * 2**30
#: Processes on a GPU. Each loads Numba, which takes longer than to compile a kernel.
MAX_WORKERS = 15


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """``-n auto``: a process for each core, or as many as can share the GPU."""
    from gpukit import backend, results

    cores = results.cores()
    if not backend.on_gpu():
        return cores
    fitting = backend.cuda.current_context().get_memory_info().total // MEMORY
    return max(1, min(cores - 1, fitting, MAX_WORKERS))


def pytest_sessionfinish():
    # pytest collects garbage before it ends: seconds, after thousands of tests. xdist interrupts a process that takes
    # more than 5 seconds to end.
    gc.freeze()


def pytest_collection_finish():
    gc.freeze()  # the collector of garbage would visit all modules, again and again


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from gpukit import backend

    if not backend.on_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {backend.REASON}"))


@pytest.fixture(autouse=True, scope="session")
def _no_progress_of_the_user(tmp_path_factory):
    os.environ["GPUKIT_STATE"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def undisturbed():
    """For a test whose times or free memory are wrong while other tests use the GPU."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) > 1:
        pytest.skip("other tests would disturb it: make test ARGS='-n 0 -k NAME'")
