"""The choice between GPU and emulator, each in a process of its own."""

import os
import subprocess
import sys

import pytest

CLEAN = {k: v for k, v in os.environ.items() if k not in ("GPUKIT_BACKEND", "NUMBA_ENABLE_CUDASIM")}


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env=CLEAN | environment, capture_output=True, text=True)


def test_the_emulator_can_be_asked_for_on_any_machine():
    code = "import gpukit; print(gpukit.on_gpu(), gpukit.cuda.__name__, gpukit.backend.REASON)"
    assert run(code, GPUKIT_BACKEND="emulator").stdout.split() == [
        "False",
        "warpstep.cuda",
        "GPUKIT_BACKEND=emulator",
    ]


def test_without_a_wish_the_machine_decides():
    result = run("import gpukit, numba.cuda as n; print(gpukit.on_gpu(), n.is_available(), gpukit.cuda is n)")
    assert result.stdout.split() in (["True"] * 3, ["False"] * 3), result.stderr


def test_both_have_random_numbers():
    result = run("from gpukit import cuda; print(cuda.random.create_xoroshiro128p_states(3, seed=1)[0]['s0'])")
    assert result.stdout.split() == [str(0x910A2DEC89025CC1)], result.stderr  # splitmix64's first for this seed


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"GPUKIT_BACKEND": "tpu"}, ["GPUKIT_BACKEND is 'tpu'", "gpu, emulator"]),
        ({"NUMBA_ENABLE_CUDASIM": "1"}, ["NUMBA_ENABLE_CUDASIM", "unset it"]),
        ({"GPUKIT_BACKEND": "gpu", "CUDA_VISIBLE_DEVICES": ""}, ["GPUKIT_BACKEND=gpu, but", "gpukit doctor"]),
    ],
)
def test_a_wish_that_cannot_be_met_says_what_is_missing(environment, words):
    result = run("from gpukit import cuda", **environment)
    assert result.returncode == 1
    assert all(word in result.stderr.splitlines()[-1] for word in words), result.stderr


WITHOUT_NUMBA_CUDA = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "NumbaCudaFinder"]
"""


@pytest.mark.parametrize(
    "code",
    [
        "from gpukit import cuda",
        "from gpukit import intrinsics",
        "import gpukit._numba",
        "from warpstep import cuda",
        "from gpukit.__main__ import main; sys.exit(main(['run', 'script.py']))",
        "sys.modules['numba'] = None; from gpukit import cuda",
    ],
)
def test_a_missing_numba_cuda_is_named_with_the_way_out(code):
    result = run(WITHOUT_NUMBA_CUDA + code)
    assert result.returncode in (1, 2)
    last = result.stderr.splitlines()[-1]
    assert last.endswith(": numba-cuda is missing: `pip install numba-cuda`; `gpukit doctor` says more"), result.stderr


def test_an_old_python_is_named():
    result = run("import sys; sys.version_info = (3, 9, 18); from gpukit import cuda")
    assert result.stderr.splitlines()[-1].startswith("ImportError: Python 3.11 or newer is needed; this is ")


def test_a_driver_that_numba_cuda_cannot_handle_leaves_the_emulator():
    break_driver = "import numba.cuda; numba.cuda.is_available = lambda: int('4242 is no CUresult')\n"
    result = run(break_driver + "import gpukit; print(gpukit.on_gpu(), gpukit.backend.REASON)")
    assert result.stdout.startswith("False the driver does not start (ValueError: ") and "4242" in result.stdout


def test_importing_gpukit_alone_loads_neither_numba_nor_numpy():
    result = run("import sys, gpukit; print(sorted({'numba', 'numpy'} & set(sys.modules)))")
    assert result.stdout.strip() == "[]", result.stderr
