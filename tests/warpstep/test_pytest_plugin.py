"""``pytest --gpukit``: whole projects that know nothing of gpukit, in processes of their own."""

import os
import re
import subprocess
import sys
import textwrap

import warpstep

#: Nothing of the environment that changes what pytest prints (CI: summaries are not cut short) or which backend runs.
UNWANTED = {"GPUKIT_BACKEND", "NUMBA_ENABLE_CUDASIM", "PYTEST_ADDOPTS", "CI", "BUILD_NUMBER", "FORCE_COLOR"}
CLEAN = {name: value for name, value in os.environ.items() if name not in UNWANTED}
PROJECT = {
    "conftest.py": """
        import numba.cuda
        import pytest

        AT_IMPORT = numba.cuda.is_available()

        @pytest.fixture
        def on_device():
            from numba.cuda import to_device
            return to_device
    """,
    "kernels.py": """
        from numba import cuda

        @cuda.jit
        def double(x):
            i = cuda.grid(1)
            if i < x.size:
                x[i] *= 2

        @cuda.jit
        def total(x, out):
            out[0] += x[cuda.grid(1)]

        @cuda.jit
        def beyond(x):
            x[cuda.grid(1)] = 1
    """,
    "test_it.py": """
        import unittest

        import numpy as np
        import pytest
        from conftest import AT_IMPORT
        from numba import cuda

        import kernels

        @pytest.mark.skipif(not cuda.is_available(), reason="no GPU")
        def test_right(on_device):
            assert AT_IMPORT
            d = on_device(np.ones(100))
            kernels.double[4, 32](d)
            assert (d.copy_to_host() == 2).all()

        def launch():
            for size in (32, 64):
                kernels.total[1, size](np.arange(64.0), np.zeros(1))

        def test_race():
            launch()

        @pytest.mark.gpukit(allow=["race:kernels.py"])
        def test_race_that_is_known():
            launch()

        def test_race_and_wrong():
            launch()
            assert False, "wrong"

        @pytest.mark.xfail(strict=True)
        def test_that_is_known_to_fail():
            launch()
            raise NotImplementedError

        @pytest.fixture
        def prepared():
            launch()

        def test_in_a_fixture(prepared):
            pass

        def test_beyond():
            kernels.beyond[1, 64](np.zeros(60))

        class TestUnit(unittest.TestCase):
            def test_race(self):
                launch()

            def test_skipped(self):
                self.skipTest("why not")
    """,
}
OF_ALL = "test_it.py::test_"


def pytest_in(folder, *arguments, files=PROJECT):
    """Run pytest in a folder with these files, with this plugin and pytest-xdist alone; returns (status, output)."""
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    root = os.path.dirname(os.path.dirname(warpstep.__file__))
    plugins = ("-p", "warpstep.pytest_plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *arguments],
        cwd=folder,
        env=CLEAN | {"PYTHONPATH": root, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def outcomes(output):
    return {name.removeprefix(OF_ALL): word for word, name in re.findall(r"^(\w+) (test_it\.py::\S+)", output, re.M)}


def test_the_emulator_is_there_before_the_conftest(tmp_path):
    status, output = pytest_in(tmp_path, "--gpukit", "test_it.py", "-rA", "--strict-markers")
    assert "gpukit: numba.cuda is the emulator, compute capability 9.0\n" in output
    found = outcomes(output)
    assert status == 1 and found.pop("beyond") == found.pop("race_and_wrong") == "FAILED", output
    assert found.pop("that_is_known_to_fail") == "XFAIL"
    assert set(found.values()) == {"PASSED"} and len(found) == 5, output
    assert "index 60 is out of bounds for global array 'x' of shape (60,)" in output and "kernels.py:16" in output


def test_findings_fail_the_test_that_caused_them(tmp_path):
    """Also in the workers of pytest-xdist; but for those that the project or a test allows."""
    allow = "gpukit_allow=out-of-bounds:beyond"
    status, output = pytest_in(tmp_path, "--gpukit=strict", "-n", "2", "-rA", "-o", allow)
    assert status == 1 and "findings fail tests" in output
    race = r"total\[1, 32\] at \S*kernels\.py:10\n1 FINDING: .*\n  race, line 12:  out\[0\] \+= x\[cuda\.grid\(1\)\]\n"
    assert len(re.findall(race, output)) == 4, output  # once in each test, although it is in two launches
    assert re.search(r"thread \(0, 0, 0\) writes out\[0\].*, thread \(31, 0, 0\) reads it at line 12", output)
    assert "AssertionError: wrong" in output and "out-of-bounds" not in output.replace(allow, "")
    assert outcomes(output) == {
        "right": "PASSED",
        "race": "FAILED",
        "race_that_is_known": "PASSED",
        "race_and_wrong": "FAILED",
        "that_is_known_to_fail": "XFAIL",
        "in_a_fixture": "ERROR",
        "beyond": "PASSED",
        "test_it.py::TestUnit::test_race": "FAILED",
    }


def test_nothing_happens_without_the_option_and_the_simulator_is_refused(tmp_path, monkeypatch):
    few = {"test_it.py": "import sys\ndef test_nothing(): assert 'warpstep.run' not in sys.modules"}
    assert pytest_in(tmp_path, "-q", "--strict-markers", files=few)[0] == 0
    monkeypatch.setitem(CLEAN, "NUMBA_ENABLE_CUDASIM", "1")
    status, output = pytest_in(tmp_path, "--gpukit", files=few)
    assert status == 4 and "--gpukit: NUMBA_ENABLE_CUDASIM puts Numba's simulator" in output
    assert "ignored explicit argument 'no'" in pytest_in(tmp_path, "--gpukit=no", files=few)[1]
