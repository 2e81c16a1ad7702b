"""Former names: what was public before the packages were parted is found where it is now."""

import importlib
import subprocess
import sys

import pytest

import gpukit
import warpstep
from gpukit import _moved


def test_the_emulator_is_warpstep():
    import gpukit.emulator.cuda as from_import
    from gpukit.emulator import KernelError, cuda

    assert gpukit.emulator is warpstep and cuda is from_import is warpstep.cuda
    assert KernelError is warpstep.KernelError
    assert importlib.import_module("gpukit.emulator.device") is importlib.import_module("warpstep.device")


@pytest.mark.parametrize("former", _moved.MOVED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_former_name_is_the_present_module(former):
    present = importlib.import_module(_moved.MOVED[former])
    assert importlib.import_module(former) is present
    assert present.__spec__.name == present.__name__ == _moved.MOVED[former]


def test_a_former_name_warns_and_a_name_that_never_was_is_an_error():
    code = "import gpukit.operands, gpukit.benchmarks.shared_memory, gpukit.emulator.cuda"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "gpukit.operands is now gpukit._host.arrays" in done.stderr and "emulator" not in done.stderr
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        importlib.import_module("gpukit.emulator.no_such")
    with pytest.raises(AttributeError, match="no_such"):
        _ = gpukit.no_such


def test_every_name_is_there():
    assert [name for name in gpukit.__all__ if not hasattr(gpukit, name)] == []
    assert [name for name in warpstep.__all__ if not hasattr(warpstep, name)] == []
