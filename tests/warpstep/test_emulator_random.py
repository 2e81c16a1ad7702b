"""Random kernels in the emulator, against the same kernels on Numba's CPU target, thread after thread."""

import numpy as np
import oracle
import pytest
import random_kernels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpstep import cuda, launch

randoms = st.randoms(use_true_random=False)
many_choices = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def describe(case, differences):
    shown = "\n".join(f"{name}{at}: emulator {ours!r}, CPU {theirs!r}" for name, at, ours, theirs in differences[:8])
    return f"{len(differences)} elements differ; grid {case.grid}, block {case.block}\n{case.source}\n{shown}"


def agree(write, random):
    case = write(random, "random_kernel")
    differences = case.differences(case.run(cuda), oracle.run(case))
    assert not differences, describe(case, differences)


@settings(max_examples=8, suppress_health_check=many_choices)
@given(randoms)
def test_threads_on_their_own(random):
    agree(random_kernels.independent, random)


@settings(max_examples=5, suppress_health_check=many_choices)
@given(randoms)
def test_threads_that_meet(random):
    agree(random_kernels.cooperative, random)


@pytest.mark.parametrize("seed", range(100, 110))
def test_the_size_of_batches_changes_nothing(seed, monkeypatch):
    """All blocks at once or one after another: every bit is the same, of floats too."""
    case = random_kernels.generate(seed)
    together = case.run(cuda)
    monkeypatch.setattr(launch, "BATCH_LANES", 1)
    apart = case.run(cuda)
    for name, array in together.items():
        np.testing.assert_array_equal(apart[name], array, name)


def test_a_wrong_bit_is_seen():
    """The comparison rejects an integer that is off by one, and a float that is off by more than its bound."""
    case = random_kernels.generate(7)
    right = case.run(cuda)
    written = [a for a in case.arguments if a.written]
    assert not case.differences(right, right) and {a.data.dtype.kind for a in written} >= {"f", "i"}
    for argument in written:
        wrong = {name: array.copy() for name, array in right.items()}
        first = wrong[argument.name].reshape(-1)[:1]
        first += first.dtype.type(1) if argument.data.dtype.kind != "f" else first.dtype.type(1e-3)
        assert argument.error < 1e-3 and len(case.differences(wrong, right)) == 1
