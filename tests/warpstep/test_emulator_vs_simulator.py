"""The emulator against Numba's own simulator, on kernels and inputs for which the simulator is right."""

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from warpstep import cuda as emulated_cuda

SOURCE = Path(__file__).parent / "kernels" / "differential.py"
SEEDS = (1, 2)
ULPS = 2  # the last places that two float64 mathematics libraries may differ by


def _load():
    spec = importlib.util.spec_from_file_location("differential", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kernels = _load()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """What the simulator makes of every case and seed. A child process: the variable must precede the import."""
    file = tmp_path_factory.mktemp("simulator") / "outputs.pickle"
    command = [sys.executable, "-P", "-B", SOURCE, file, *map(str, SEEDS)]
    child = subprocess.run(command, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return pickle.loads(file.read_bytes())


def assert_same(found, expected, what):
    """float64 within its last places, complex128 within those of its magnitude (it may be fused); the rest equal."""
    assert found.dtype == expected.dtype and found.shape == expected.shape, what
    if found.dtype.kind in "fc" and found.dtype != np.float32:
        far = ~(np.abs(found - expected) <= ULPS * np.spacing(np.abs(expected)))
        far &= found != expected  # infinities
        assert not far.any(), f"{what}: {found[far][:4]}, the simulator {expected[far][:4]}, at {np.argwhere(far)[:4]}"
    else:
        np.testing.assert_array_equal(found, expected, what)


@pytest.mark.parametrize("name", kernels.CASES)
def test_same_results(simulated, name):
    for seed in SEEDS:
        before = kernels.CASES[name][2](np.random.default_rng(seed))
        expected = simulated[name, seed]
        found = kernels.run(emulated_cuda, name, seed)
        changed = False
        for position, values in enumerate(zip(before, found, expected, strict=True)):
            if isinstance(values[0], np.ndarray):
                original, ours, theirs = values
                assert_same(ours, theirs, f"{name}, seed {seed}, argument {position}")
                changed |= not np.array_equal(original, theirs)
        assert changed, "the kernel wrote nothing"


def test_the_comparison_sees_one_wrong_value():
    exact = np.array([1.0, -2.0, 3e300])
    assert_same(np.nextafter(exact, np.inf), exact, "one place")
    for wrong in (exact * (1 + 1e-15), np.array([1.0, -2.0, np.nan]), np.array([1.0, -2.0, np.inf])):
        with pytest.raises(AssertionError):
            assert_same(wrong, exact, "")
    with pytest.raises(AssertionError):
        assert_same(np.array([1, 2]), np.array([1, 3]), "")
