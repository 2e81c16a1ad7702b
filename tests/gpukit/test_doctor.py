"""The doctor's advice on simulated machines, and its run on this one."""

import ast
import copy
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpukit import doctor

PIECE = {"path": "/usr/lib/piece", "via": "site-packages", "version": None}
TOOLKIT = dict.fromkeys(("nvvm", "nvrtc", "nvJitLink", "libdevice"), PIECE)
H200 = {"name": "NVIDIA H200", "capability": (9, 0), "memory": 150_000_000_000}
NO_DRIVER = {"found": False, "error": 0, "cuda": None, "version": None}


def driver(*cuda, error=0):
    return {"found": True, "error": error, "cuda": cuda, "version": "580.95.05"}


def toolkit(*version):
    return {**TOOLKIT, "nvrtc": {**PIECE, "version": version}}


def machine(**differences):
    """A machine without a GPU on which all is well, but for the given differences (dicts are merged)."""
    well = {
        "system": {"name": "Debian GNU/Linux 12 (bookworm)", "machine": "x86_64", "wsl": False, "container": False},
        "python": {"version": "3.12.1", "executable": "/venv/bin/python"},
        "environment": {},
        "packages": {
            "gpukit": "0.1.0",
            "numba": "0.68.1",
            "numba-cuda": "0.30.4",
            "numpy": "2.4.6",
            "matplotlib": "3.11.0",
            "opencv-python": "5.0",
            "ipykernel": "7.0",
        },
        "pci": [],
        "driver": NO_DRIVER,
        "gpus": [],
        "cache": {"folder": "/home/me/.cache/gpukit", "private": True, "kernels": 0, "bytes": 0},
        "imports": dict.fromkeys((*doctor.MODULES, *doctor.NOTEBOOK_MODULES)),
        "numba_cuda": {"implementation": "NVIDIA", "simulator": False},
        "toolkit": {name: {"path": None, "via": None, "version": None} for name in TOOLKIT},
        "backend": {"name": "emulator", "reason": "no GPU"},
        "kernel": kernel(None, "emulator"),
        "died": None,
    }
    for name, value in copy.deepcopy(differences).items():
        well[name] = {**well[name], **value} if isinstance(value, dict) and isinstance(well[name], dict) else value
    well["packages"] = {name: version for name, version in well["packages"].items() if version is not None}
    return well


def gpu_machine(**differences):
    """A machine whose GPU runs kernels, but for the given differences."""
    well = {
        "pci": ["0000:18:00.0"],
        "driver": driver(13, 0),
        "gpus": [H200],
        "toolkit": toolkit(13, 0),
        "backend": {"name": "gpu", "reason": "a GPU was found"},
        "kernel": kernel(None),
    }
    return machine(**{**well, **differences})


def kernel(error, where="gpu"):
    return {"error": error, "seconds": 0.1, "where": where}


def broken(**errors):
    return {name.replace("_", "."): error for name, error in errors.items()}


PIP = "/venv/bin/python -m pip"
NO_NOTEBOOKS = dict.fromkeys(("matplotlib", "opencv-python", "ipykernel"))
CASES = {
    "NumPy 2.6": (  # numba-cuda notices late: `import numba.cuda` works
        machine(
            packages={"numpy": "2.6.0"},
            backend={"name": "none", "reason": "AttributeError: module 'numpy' has no attribute 'trapz'"},
            kernel=None,
        ),
        ("NumPy 2.6.0 is too new for numba-cuda 0.30.4", f"{PIP} install 'numpy<2.6'", True),
    ),
    "built-in numba.cuda": (
        machine(numba_cuda={"implementation": "Built-in"}, packages={"numba-cuda": "0.30.4"}),
        ("built into Numba", f"{PIP} install --force-reinstall --no-deps 'numba-cuda'", True),
    ),
    "Numba's simulator": (
        machine(numba_cuda={"simulator": True}, environment={"NUMBA_ENABLE_CUDASIM": "1"}),
        ("simulator is switched on", "unset NUMBA_ENABLE_CUDASIM", True),
    ),
    "Python too new": (
        machine(python={"version": "3.15.0"}),
        ("Python 3.15.0 is too new, gpukit supports 3.11 to 3.14", "make notebooks PYTHON=python3.14", True),
    ),
    "Python too old": (machine(python={"version": "3.9.18"}), ("Python 3.9.18 is too old", "PYTHON=python3.14", True)),
    "no numba-cuda on macOS": (
        machine(
            imports=broken(numba_cuda="No module"),
            packages={"numba-cuda": None},
            system={"name": "macOS-15.1-arm64-arm-64bit"},
            kernel=kernel("ImportError", "emulator"),
        ),
        ("numba-cuda is not installed", f"{PIP} install --no-deps --only-binary=:all: --platform=manylinux", True),
    ),
    "no Numba": (
        machine(
            imports=broken(numba="No module", numba_cuda="No module"), packages={"numba": "", "numba-cuda": "0.30"}
        ),
        ("numba cannot be imported", f"{PIP} install --force-reinstall --no-deps 'numba'", True),
    ),
    "OpenCV misses a library": (
        machine(imports={"cv2": "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"}),
        ("OpenCV needs libGL.so.1", f"{PIP} uninstall -y opencv-python && {PIP} install opencv-python-headless", False),
    ),
    "nothing for notebooks": (
        machine(imports=broken(matplotlib="No module", cv2="No module", ipykernel="No module"), packages=NO_NOTEBOOKS),
        ("notebooks and figures need matplotlib, opencv-python, jupyter", f"{PIP} install 'gpukit[notebooks]'", False),
    ),
    "matplotlib does not work": (
        machine(imports={"matplotlib": "ImportError: numpy.core.multiarray failed to import"}),
        ("matplotlib cannot be imported", f"{PIP} install --force-reinstall --no-deps 'matplotlib'", False),
    ),
    "NumPy does not work": (
        machine(imports=dict.fromkeys(("numpy", "numba", "numba.cuda", "matplotlib", "cv2"), "ImportError")),
        ("numpy cannot be imported", f"{PIP} install --force-reinstall --no-deps 'numpy<2.6'", True),
    ),
    "two builds of OpenCV": (
        machine(imports={"cv2": "AttributeError: imread"}, packages={"opencv-python-headless": "5.0"}),
        (
            "overwrite each other",
            f"-y opencv-python opencv-python-headless && {PIP} install opencv-python-headless",
            False,
        ),
    ),
    "no driver on Debian": (
        machine(pci=["18:00.0"]),
        ("an NVIDIA card is on the PCI bus (18:00.0), but the driver is not there", "apt install nvidia-driver", False),
    ),
    "no driver on Ubuntu": (
        machine(pci=["0000:18:00.0"], system={"name": "Ubuntu 24.04.3 LTS"}),
        ("the driver is not there", "sudo ubuntu-drivers install", False),
    ),
    "container without its GPU": (
        machine(pci=["0000:18:00.0"], system={"container": True}),
        ("the driver is not there", "docker run --gpus all", False),
    ),
    "GPU hidden": (
        machine(pci=["x"], driver=driver(13, 0, error=100), environment={"CUDA_VISIBLE_DEVICES": ""}),
        ("CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES", False),
    ),
    "driver updated, not restarted": (
        machine(pci=["x"], driver=driver(13, 0, error=803)),
        ("differ in version", "sudo reboot", False),
    ),
    "compatibility package on another card": (
        machine(pci=["x"], driver=driver(13, 0, error=804)),
        ("does not support this GPU", "sudo apt remove 'cuda-compat-*'", False),
    ),
    "driver does not start": (
        machine(driver=driver(13, 0, error=999)),
        ("the driver does not start", "sudo nvidia-modprobe -u -c=0", False),
    ),
    "error that nobody knows": (
        machine(pci=["x"], driver=driver(13, 0, error=4242), system={"name": "Ubuntu 24.04.3 LTS"}),
        ("cuInit fails with error 4242", "sudo ubuntu-drivers install", False),
    ),
    "stub on the path": (
        machine(driver=driver(13, 0, error=34), environment={"LD_LIBRARY_PATH": "/x"}),
        ("the toolkit's stub", "unset LD_LIBRARY_PATH", False),
    ),
    "libcuda that is none": (
        machine(driver={**NO_DRIVER, "found": True, "error": doctor.NO_DRIVER}),
        ("without cuInit", "sudo apt install nvidia-driver", False),
    ),
    "loop limit that is no number": (
        machine(
            environment={"GPUKIT_LOOP_LIMIT": "abc"},
            backend={"name": "none", "reason": "ImportError: GPUKIT_LOOP_LIMIT is 'abc'; it must be an int"},
            kernel=None,
        ),
        ("GPUKIT_LOOP_LIMIT=abc is not a positive int", "unset GPUKIT_LOOP_LIMIT", True),
    ),
    "driver too old for the toolkit": (
        gpu_machine(
            driver=driver(12, 4),
            packages={"nvidia-nvvm": "13.0.88"},
            kernel=kernel("LinkerError: [222] CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        ),
        ("the CUDA 13.0 toolkit is too new", f"{PIP} uninstall -y nvidia-nvvm && {PIP} install 'gpukit[cu12]'", True),
    ),
    "card too old for the toolkit": (
        gpu_machine(gpus=[{**H200, "name": "Tesla V100", "capability": (7, 0)}], kernel=kernel("no kernel image")),
        ("the CUDA 13.0 toolkit is too new for the Tesla V100", "install 'gpukit[cu12]'", True),
    ),
    "driver too old for CUDA 12": (
        gpu_machine(driver=driver(11, 4), kernel=kernel(None, "emulator"), backend={"name": "emulator"}),
        ("for CUDA up to 11.4 or the GPU is too old", "sudo apt install nvidia-driver", False),
    ),
    "PTX newer than the driver, same major version": (
        gpu_machine(toolkit=toolkit(13, 2), kernel=kernel("LinkerError: CUDA_ERROR_UNSUPPORTED_PTX_VERSION")),
        (
            "newer than the driver (UNSUPPORTED_PTX_VERSION)",
            f"{PIP} install 'cuda-toolkit[cudart,nvjitlink,nvrtc,nvvm]==13.0.*'",
            True,
        ),
    ),
    "CUDA pieces missing": (
        gpu_machine(
            toolkit={**toolkit(13, 0), "nvvm": {"path": None, "via": None, "version": None}},
            backend={"name": "emulator", "reason": "the CUDA libraries are not complete"},
            kernel=kernel(None, "emulator"),
        ),
        ("CUDA pieces that numba-cuda needs are missing (nvvm)", f"{PIP} install 'gpukit[cu13]'", False),
    ),
    "GPU asked for in vain": (
        machine(environment={"GPUKIT_BACKEND": "gpu"}, backend={"name": "none", "reason": "BackendError"}, kernel=None),
        ("GPUKIT_BACKEND=gpu cannot be used", "unset GPUKIT_BACKEND", True),
    ),
    "trial process killed": (
        gpu_machine(died={"step": "run a kernel", "reason": "ended by signal 11"}, kernel=None),
        ("ended at the step 'run a kernel' (ended by signal 11)", "export GPUKIT_BACKEND=emulator", True),
    ),
    "kernel fails on the emulator": (
        machine(kernel=kernel("AssertionError: wrong", "emulator")),
        ("a small kernel fails on the emulator", f"{PIP} install --force-reinstall 'numpy<2.6' numba numba-cuda", True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_problem_and_the_command_that_fixes_it(case):
    simulated, (what, fix, blocks) = CASES[case]
    (problem,) = doctor.diagnose(simulated)
    assert what in problem.what
    assert fix in problem.fix
    assert problem.blocks is blocks
    line = next(line for line in doctor.report(simulated, [problem]).splitlines() if problem.what in line)
    assert line.endswith(problem.fix)


@pytest.mark.parametrize(
    "well",
    [
        machine(),
        gpu_machine(),
        gpu_machine(
            environment={"GPUKIT_BACKEND": "emulator"}, toolkit=machine()["toolkit"], backend={"name": "emulator"}
        ),
        machine(packages={"numpy": "2.6.0"}),  # with a numba-cuda that can work with it
        machine(driver=driver(13, 0, error=doctor.NO_DEVICE)),  # an image for GPUs, run where there is none
        machine(imports={"numba.cuda": "CUDA Python bindings not found"}),  # the emulator needs none
    ],
    ids=["no GPU", "GPU", "emulator on a GPU machine", "newer NumPy", "driver without GPU", "no CUDA packages"],
)
def test_nothing_to_fix(well):
    assert doctor.diagnose(well) == []
    assert doctor.report(well, []).endswith("Work can start.")
    assert ("gpukit compile" in doctor.report(well, [])) == (well["backend"]["name"] == "gpu")


def test_problems_that_block_come_first():
    both = machine(pci=["x"], python={"version": "3.15.0"})
    assert [problem.blocks for problem in doctor.diagnose(both)] == [True, False]


@pytest.mark.parametrize(
    ("cuda", "capability", "extra"),
    [
        ((13, 0), (9, 0), "cu13"),
        ((12, 9), (9, 0), "cu12"),
        ((13, 0), (7, 0), "cu12"),
        ((11, 8), (8, 6), ""),
        (None, (8, 6), ""),
    ],
)
def test_wheels_fit_driver_and_card(cuda, capability, extra):
    assert doctor.wheel_extra({"cuda": cuda}, [{"capability": capability}]) == extra
    assert doctor.wheel_extra({"cuda": cuda}, []) == ""


def test_a_libcuda_without_cuinit_is_no_driver(monkeypatch):
    monkeypatch.setattr(doctor, "_load", lambda *names: object())
    found, gpus = doctor.probe_driver()
    assert (found["found"], found["error"], gpus) == (True, doctor.NO_DRIVER, [])


@pytest.mark.parametrize("name", ["__init__", "__main__", "_moved", "_bench", "doctor"])
def test_the_doctor_can_be_read_by_older_pythons(name):
    path = Path(doctor.__file__).with_name(f"{name}.py")
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    later = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    unions = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    assert later or not unions, "annotations such as `str | None` need `from __future__ import annotations`"


def test_the_doctor_speaks_on_an_old_python(monkeypatch):
    monkeypatch.delattr(platform, "freedesktop_os_release")
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.18")
    monkeypatch.setattr(
        doctor,
        "_try_out",
        lambda: {key: machine()[key] for key in ("imports", "numba_cuda", "toolkit", "backend", "kernel", "died")},
    )
    found = doctor.probe()
    assert "Python 3.9.18 is too old, gpukit supports 3.11 to 3.14" in doctor.report(found, doctor.diagnose(found))


def test_only_nvidia_display_controllers_count(tmp_path):
    for name, vendor, kind in [("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert doctor._nvidia_cards(tmp_path) == ["a"]


def test_the_trial_says_how_far_it_came(monkeypatch):
    said = {"step": "import cv2", "imports": {"numpy": None}}
    monkeypatch.setattr(doctor, "TRIAL", f"import json, os; print(json.dumps({said}), flush=True); os._exit(7)")
    found = doctor._try_out()
    assert found["imports"] == {"numpy": None}
    assert found["died"]["step"] == "import cv2"


def test_the_command_works_here():
    done = subprocess.run([sys.executable, "-m", "gpukit", "doctor"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "launched on the" in done.stdout
    assert done.stdout.rstrip().endswith("Work can start.")


def test_kernels_need_nothing_of_the_notebooks():
    """gpukit imports and runs without matplotlib, OpenCV and Jupyter; its figures say what to install."""
    code = """
        import pkgutil, sys
        sys.modules.update(dict.fromkeys(("matplotlib", "cv2", "ipykernel", "IPython", "jupyter_client")))
        import gpukit
        from gpukit import cuda
        names = {module.name for module in pkgutil.iter_modules(gpukit.__path__)} - {"plot", "__main__"}
        for name in sorted(names):
            __import__(f"gpukit.{name}")
        try:
            import gpukit.plot
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout == 'gpukit.plot needs matplotlib: pip install "gpukit[notebooks]"\n', done.stderr


def test_work_can_start_with_numba_numba_cuda_and_numpy_alone(tmp_path):
    hidden = ("matplotlib", "cv2", "ipykernel", "IPython", "jupyter_client", "torch", "cupy")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({hidden}))\n")
    path = os.pathsep.join([str(tmp_path), str(Path(doctor.__file__).parents[1])])
    command = [sys.executable, "-m", "gpukit", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "matplotlib" in done.stdout and done.stdout.rstrip().endswith("Work can start.")
