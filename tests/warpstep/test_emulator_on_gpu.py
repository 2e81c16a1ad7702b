"""The emulator against a real GPU: the same kernels on both, random ones and a table of written ones.

    python -m pytest tests/warpstep/test_emulator_on_gpu.py -m gpu

The kernels run in child processes, for a kernel that goes wrong on the GPU takes its process with it. With the
environment variable ``GPUKIT_DEVICE_REPORT`` set to a file name, all that is not equal is written there as JSON.
``tests/warpstep/random_kernels.py --gpu`` compares as many random kernels as one likes.
"""

import os

import device_runs
import pytest
from kernels import on_device

RANDOM_KERNELS = 150
FIRST_SEED = 1

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def answers():
    """What came of every kernel: {case: answer}."""
    cases = [f"table:{name}" for name in on_device.CASES]
    cases += [f"random:{seed}" for seed in range(FIRST_SEED, FIRST_SEED + RANDOM_KERNELS)]
    found = device_runs.run_all(cases, on_gpu=True)
    if os.environ.get("GPUKIT_DEVICE_REPORT"):
        device_runs.write_report(os.environ["GPUKIT_DEVICE_REPORT"], found)
    return found


def check(answers, prefix, count):
    part = {case: answer for case, answer in answers.items() if case.startswith(prefix)}
    assert len(part) == count
    if any(answer["status"] not in device_runs.GOOD for answer in part.values()):
        pytest.fail(device_runs.summary(part), pytrace=False)


def test_written_kernels(answers):
    check(answers, "table:", len(on_device.CASES))


def test_random_kernels(answers):
    check(answers, "random:", RANDOM_KERNELS)
    compared = [c for c, a in answers.items() if c.startswith("random:") and a["status"] == "same"]
    assert len(compared) > 0.9 * RANDOM_KERNELS, "too many random kernels that neither side takes"
