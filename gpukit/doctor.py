"""Diagnose this machine: what it has for gpukit, what is wrong, and the command that fixes it.

``probe`` looks, ``diagnose`` judges, ``report`` prints. Only ``probe`` touches the machine. It loads the driver through
ctypes, and tries what may fail or crash (NumPy, Numba, OpenCV, a kernel) in a child process, so the doctor works where
the packages do not.
"""

from __future__ import annotations  # it runs on Pythons that are too old for gpukit, and says so

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

MIN_PYTHON, MAX_PYTHON = (3, 11), (3, 14)
FIRST_BAD_NUMPY = (2, 6)
MIN_CAPABILITY = {12: (5, 0), 13: (7, 5)}  # what each major version of the CUDA toolkit still compiles for
VARIABLES = re.compile(
    r"GPUKIT_\w+|NUMBA_ENABLE_CUDASIM|NUMBA_DISABLE_(CUDA|JIT)|NUMBA_CUDA_\w+"
    r"|CUDA_(HOME|PATH|VISIBLE_DEVICES)|LD_LIBRARY_PATH"
)
PACKAGES = (
    "gpukit", "numba", "numba-cuda", "llvmlite", "numpy", "matplotlib", "opencv-python", "opencv-python-headless",
    "jupyter", "jupyterlab", "ipykernel", "cuda-bindings", "cuda-core", "cuda-pathfinder", "cupy-cuda12x",
    "cupy-cuda13x", "torch", "nvidia-nvvm", "nvidia-cuda-nvrtc", "nvidia-nvjitlink", "nvidia-cuda-runtime",
)  # fmt: skip
# Modules and the requirements that bring them: what kernels need, and what figures and notebooks need besides.
MODULES = {"numpy": "numpy<2.6", "numba": "numba", "numba.cuda": "numba-cuda"}
NOTEBOOK_MODULES = {"matplotlib": "matplotlib", "cv2": "opencv-python", "ipykernel": "jupyter"}
OPENCV = ("opencv-python", "opencv-python-headless")
CUDA_13_WHEELS = ("nvidia-nvvm", "nvidia-cuda-nvrtc", "nvidia-nvjitlink", "nvidia-cuda-runtime")
NO_DEVICE, NO_DRIVER = 100, -1
# What the driver says when it cannot start, and what helps.
DRIVER_ERRORS = {
    NO_DRIVER: ("a libcuda without cuInit was found, which is no driver", "unset LD_LIBRARY_PATH"),
    34: ("the libcuda found is the toolkit's stub, not a driver", "unset LD_LIBRARY_PATH"),
    802: ("the driver waits for the fabric manager", "sudo systemctl start nvidia-fabricmanager"),
    803: ("the driver's kernel module and its libraries differ in version", "sudo reboot"),
    804: ("the compatibility package of CUDA does not support this GPU", "sudo apt remove 'cuda-compat-*'"),
    999: ("the driver does not start; its memory module may not be loaded", "sudo nvidia-modprobe -u -c=0"),
}
TRIAL = "from gpukit.doctor import _trial; _trial()"
NVIDIA_VENDOR = "0x10de"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes
    ----------
    what : str
        The problem, in one line.
    fix : str
        The command that fixes it.
    blocks : bool
        True if no kernel runs until it is fixed. False if gpukit works meanwhile, as a rule on the emulator.
    """

    what: str
    fix: str
    blocks: bool = True


def probe() -> dict:
    """Look at this machine.

    Returns
    -------
    dict
        "system", "python", "environment", "packages" (name to version), "pci" (NVIDIA cards on the bus), "driver"
        ("found", "error", "cuda", "version"), "gpus", "cache" (of compiled kernels: "folder" or None, "private",
        "kernels", "bytes"), and what the trial process found: "imports" (module to error or
        None), "numba_cuda", "toolkit", "backend", "kernel", "died" (the step that ended the process, or None).
    """
    driver, gpus = probe_driver()
    return {
        "system": _probe_system(),
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "environment": {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "pci": _nvidia_cards(),
        "driver": driver,
        "gpus": gpus,
        "cache": _probe_cache(),
        **_try_out(),
    }


def probe_driver() -> tuple[dict, list[dict]]:
    """Ask the NVIDIA driver, without any CUDA package.

    Returns
    -------
    (dict, list of dict)
        The driver: "found" (bool), "error" (code of cuInit, 0 if it works, `NO_DRIVER` if there is no cuInit), "cuda"
        (newest CUDA version it supports, as (major, minor), or None), "version" (str or None). The GPUs: "name",
        "capability" (major, minor), "memory" (in bytes).
    """
    driver = {"found": False, "error": 0, "cuda": None, "version": None}
    library = _load("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
    if library is None:
        return driver, []
    number = ctypes.c_int()
    driver["found"] = True
    if not hasattr(library, "cuInit"):
        return {**driver, "error": NO_DRIVER}, []
    driver["error"] = library.cuInit(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        driver["cuda"] = (number.value // 1000, number.value % 1000 // 10)
    driver["version"] = _driver_release()
    if driver["error"] or library.cuDeviceGetCount(ctypes.byref(number)):
        return driver, []
    return driver, [_probe_gpu(library, ordinal) for ordinal in range(number.value)]


def wheel_extra(driver: dict, gpus: list[dict]) -> str:
    """Return the extra of gpukit ("cu12", "cu13") whose CUDA wheels fit a driver and its GPUs; "" if there is none."""
    if not gpus or not driver["cuda"]:
        return ""
    for major in sorted(MIN_CAPABILITY, reverse=True):
        if driver["cuda"][0] >= major and all(tuple(gpu["capability"]) >= MIN_CAPABILITY[major] for gpu in gpus):
            return f"cu{major}"
    return ""


def linux_wheel() -> list[str]:
    """Return pip's arguments that install numba-cuda on macOS, for which it has no wheels.

    The emulator needs none of the binaries in a wheel: one for Linux will do.
    """
    options = ["--no-deps", "--only-binary=:all:", "--platform=manylinux_2_28_x86_64"]
    return ["install", *options, f"--target={sysconfig.get_path('purelib')}", "numba-cuda<0.31"]


def device_line() -> str:
    """Say in one line where kernels run: the GPU with driver and CUDA version, or the emulator."""
    from gpukit.backend import on_gpu

    if not on_gpu():
        return "gpukit's emulator"
    driver, gpus = probe_driver()
    return f"{gpus[0]['name']} (driver {driver['version']}, CUDA {_dotted(driver['cuda'])})"


def diagnose(machine: dict) -> list[Problem]:
    """Judge what ``probe`` found.

    Parameters
    ----------
    machine : dict
        As ``probe`` returns it.

    Returns
    -------
    list of Problem
        Those that keep work from starting first; empty if all is well. No GPU at all is no problem.
    """
    found = [
        *_judge_python(machine),
        *_judge_environment(machine),
        *_judge_packages(machine),
        *_judge_driver(machine),
        *_judge_toolkit(machine),
    ]
    if not any(problem.blocks for problem in found):
        found += _judge_kernel(machine)
    return sorted(dict.fromkeys(found), key=lambda problem: not problem.blocks)


def report(machine: dict, problems: list[Problem]) -> str:
    """Write the findings as text for a terminal."""
    system, python, backend = machine["system"], machine["python"], machine["backend"]
    packages = machine["packages"]
    rows = [
        ("System", f"{system['name']}, {system['machine']}{', WSL' if system['wsl'] else ''}"),
        ("Python", f"{python['version']} ({_short(python['executable'])})"),
        ("GPU", _describe_gpus(machine)),
        ("Driver", _describe_driver(machine["driver"])),
        ("CUDA", _describe_toolkit(machine["toolkit"])),
        ("Backend", f"{backend['name']}: {backend['reason']}" if backend else "none"),
        ("Kernel", _describe_kernel(machine["kernel"])),
        ("Cache", _describe_cache(machine["cache"], backend)),
        ("Packages", "\n".join(f"{name} {version}" for name, version in packages.items())),
        ("numba.cuda", machine["numba_cuda"]["implementation"] if machine["numba_cuda"] else "cannot be imported"),
        ("Settings", "\n".join(f"{name}={value}" for name, value in machine["environment"].items()) or "none"),
    ]
    lines = [f"{label:<12}{text.replace(chr(10), chr(10) + ' ' * 12)}" for label, text in rows]
    lines.append("")
    for problem in problems:
        lines.append(f"{'Problem' if problem.blocks else 'Note':<12}{problem.what}: {problem.fix}")
    blocked = any(problem.blocks for problem in problems)
    lines.append("Work cannot start yet: see above." if blocked else "Work can start.")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run ``gpukit doctor``: print what this machine has. Returns 0 if kernels can run, 1 if not."""
    machine = probe()
    problems = diagnose(machine)
    print(report(machine, problems))
    return int(any(problem.blocks for problem in problems))


# --- looking ----------------------------------------------------------------------------------------------------------


def _probe_system():
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, AttributeError):  # older Pythons do not have it
        name = platform.platform()
    container = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    return {
        "name": name,
        "machine": platform.machine(),
        "wsl": "microsoft" in platform.release().lower(),
        "container": container,
    }


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probe_cache():
    """The folder of compiled kernels, and what it holds."""
    from gpukit._host import kernel_files

    try:
        folder = kernel_files.folder()
        private = folder is None or not folder.exists() or kernel_files.is_private(folder)
    except (OSError, RuntimeError):  # no home directory, or not one that the user may read
        return {"folder": None, "private": True, "kernels": 0, "bytes": 0}
    found = kernel_files.files(folder) if folder else []
    size = sum(size for _, size, _ in found)
    return {"folder": folder and str(folder), "private": private, "kernels": len(found), "bytes": size}


def _nvidia_cards(bus=Path("/sys/bus/pci/devices")):
    """Addresses on the PCI bus of NVIDIA's display and 3D controllers (class 03)."""
    cards = []
    for device in sorted(bus.glob("*")):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == NVIDIA_VENDOR and kind.startswith("0x03"):
            cards.append(device.name)
    return cards


def _load(*names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _driver_release():
    """The driver's version, such as "580.95.05", from its management library; None if that does not say."""
    library = _load("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
    if library is None or library.nvmlInit_v2():
        return None
    text = ctypes.create_string_buffer(80)
    failed = library.nvmlSystemGetDriverVersion(text, len(text))
    library.nvmlShutdown()
    return None if failed else text.value.decode()


def _probe_gpu(library, ordinal):
    device, number = ctypes.c_int(), ctypes.c_int()
    memory, name = ctypes.c_size_t(), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    return {"name": name.value.decode(), "capability": tuple(capability), "memory": memory.value}


# --- trying out, in a process of its own ------------------------------------------------------------------------------


def _try_out(timeout=300):
    """Run ``_trial`` in a new process and gather what it says, as far as it gets."""
    found = {"imports": {}, "numba_cuda": None, "toolkit": {}, "backend": None, "kernel": None, "died": None}
    command = [sys.executable, "-c", TRIAL]
    environment = {**os.environ, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "MPLBACKEND": "Agg"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)
        said, status = done.stdout, done.returncode
        last_words = done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired as error:
        said, status, last_words = (error.stdout or b"").decode(), 1, [f"no answer within {timeout} s"]
    step = "start"
    for line in said.splitlines():
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        step = message.pop("step", step)
        found["imports"].update(message.pop("imports", {}))
        found.update(message)
    if status:
        found["died"] = {"step": step, "reason": " ".join(last_words) or f"ended by signal {-status}"}
    return found


def _trial():
    """Import, choose the backend, run a kernel; say each step before it begins, for it may be the last."""
    for module in (*MODULES, *NOTEBOOK_MODULES):
        _say(step=f"import {module}")
        _say(imports={module: _error_of(lambda module=module: _import(module))})
    if importlib.util.find_spec("numba") and "numba.cuda" in sys.modules:
        import numba.cuda

        implementation = getattr(numba.cuda, "implementation", "Built-in")
        _say(numba_cuda={"implementation": implementation, "simulator": bool(numba.cuda.config.ENABLE_CUDASIM)})  # pyright: ignore
        _say(step="find the CUDA pieces")
        _say(toolkit=_probe_toolkit())
    _say(step="choose the backend")
    error = _error_of(lambda: importlib.import_module("gpukit.backend"))
    if error:
        _say(backend={"name": "none", "reason": error})
        return
    from gpukit import backend

    _say(backend={"name": backend.NAME, "reason": backend.REASON}, step="run a kernel")
    began = time.perf_counter()
    error = _error_of(_run_kernel)
    _say(kernel={"error": error, "seconds": time.perf_counter() - began, "where": backend.NAME})


def _import(module):
    if importlib.import_module(module).__file__ is None:  # an empty folder that an uninstalled package has left
        raise ImportError(f"the files of {module} are gone")


def _say(**message):
    print(json.dumps(message), flush=True)


def _error_of(action):
    """What ``action`` raises, as one line; None if it raises nothing."""
    try:
        action()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return None


def _probe_toolkit():
    """Where numba-cuda finds its CUDA pieces: name to "path", "via" and "version" (each may be None)."""
    pieces = {name: _locate(lambda name=name: _locate_library(name)) for name in ("nvvm", "nvrtc", "nvJitLink")}
    pieces["libdevice"] = _locate(_locate_libdevice)
    return pieces


def _locate(action):
    try:
        return action()
    except Exception:
        return {"path": None, "via": None, "version": None}


def _locate_library(name):
    from cuda import pathfinder

    library = pathfinder.load_nvidia_dynamic_lib(name)
    asked = {"nvrtc": "nvrtcVersion", "nvJitLink": "nvJitLinkVersion"}.get(name)
    version = None
    if asked:
        major, minor = ctypes.c_int(), ctypes.c_int()
        if getattr(ctypes.CDLL(library.abs_path), asked)(ctypes.byref(major), ctypes.byref(minor)) == 0:
            version = (major.value, minor.value)
    return {"path": library.abs_path, "via": library.found_via, "version": version}


def _locate_libdevice():
    from gpukit._numba import find_libdevice

    path, by = find_libdevice()
    return {"path": path, "via": by if path else None, "version": None}


def _run_kernel():
    """Compile and launch a small kernel that needs libdevice too, and check what it computes."""
    import math

    import numpy as np

    from gpukit.backend import cuda

    @cuda.jit
    def rotate(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = math.sin(x[i]) + i

    x = np.linspace(0, 1, 100)
    y = np.zeros_like(x)
    rotate[4, 32](x, y)
    if not np.allclose(y, np.sin(x) + np.arange(x.size)):
        raise AssertionError("the kernel ran, but its result is wrong")


# --- judging ----------------------------------------------------------------------------------------------------------


def _judge_python(machine):
    version = _numbers(machine["python"]["version"])
    if MIN_PYTHON <= version <= MAX_PYTHON:
        return
    kind = "old" if version < MIN_PYTHON else "new"
    supported = f"{_dotted(MIN_PYTHON)} to {_dotted(MAX_PYTHON)}"
    yield Problem(
        f"Python {machine['python']['version']} is too {kind}, gpukit supports {supported}",
        f"make distclean && make notebooks PYTHON=python{_dotted(MAX_PYTHON)}",
    )


def _judge_environment(machine):
    simulator = (machine["numba_cuda"] or {}).get("simulator")
    if simulator:
        by_variable = "NUMBA_ENABLE_CUDASIM" in machine["environment"]
        yield Problem(
            "Numba's own simulator is switched on and takes the place of the GPU and of gpukit's emulator",
            "unset NUMBA_ENABLE_CUDASIM" if by_variable else "sed -i '/enable_cudasim/d' .numba_config.yaml",
        )
    if (machine["backend"] or {}).get("name") != "none":
        return
    asked = machine["environment"].get("GPUKIT_BACKEND")
    numbers = {"GPUKIT_LOOP_LIMIT": "a positive int", "GPUKIT_DEVICES": "an int from 1 to 8"}
    wrong = next((name for name in numbers if name in machine["backend"]["reason"]), None)
    if wrong:
        yield Problem(f"{wrong}={machine['environment'].get(wrong)} is not {numbers[wrong]}", f"unset {wrong}")
    elif asked:
        yield Problem(f"the backend GPUKIT_BACKEND={asked} cannot be used", "unset GPUKIT_BACKEND")


def _judge_packages(machine):
    packages, imports, pip = machine["packages"], machine["imports"], _pip(machine)
    works = machine["kernel"] and not machine["kernel"]["error"]
    # The emulator runs without the packages that numba.cuda itself needs.
    broken = [module for module in MODULES if imports.get(module) and not (works and module == "numba.cuda")]
    if not works and "numpy" not in broken and _numbers(packages.get("numpy", "0")) >= FIRST_BAD_NUMPY:
        what = f"NumPy {packages['numpy']} is too new for numba-cuda {packages.get('numba-cuda', '')}".rstrip()
        yield Problem(what, f"{pip} install 'numpy<2.6'")
        broken = [module for module in broken if not module.startswith("numba")]
    if machine["numba_cuda"] and machine["numba_cuda"]["implementation"] != "NVIDIA":
        force = "--force-reinstall --no-deps " if "numba-cuda" in packages else ""
        what = "numba.cuda is the copy built into Numba, not NVIDIA's numba-cuda"
        yield Problem(what, f"{pip} install {force}'{MODULES['numba.cuda']}'")
    # Where NumPy or Numba fail, so does what builds on them.
    if "numpy" in broken:
        broken = ["numpy"]
    elif "numba" in broken:
        broken = ["numba"]
    for module in broken:
        requirement = MODULES[module]
        if re.split("[^\\w-]", requirement)[0] in packages:
            yield _judge_import(machine, module, requirement)
        else:
            lacks_wheels = requirement == "numba-cuda" and machine["system"]["name"].startswith("macOS")
            arguments = shlex.join(linux_wheel()) if lacks_wheels else f"install '{requirement}'"
            yield Problem(f"{requirement} is not installed", f"{pip} {arguments}")
    if "numpy" not in broken:
        yield from _judge_notebook_packages(machine)


def _judge_notebook_packages(machine):
    """Judge what figures and notebooks need: kernels run without it."""
    packages, broken = machine["packages"], [m for m in NOTEBOOK_MODULES if machine["imports"].get(m)]
    named = {"cv2": OPENCV, "ipykernel": ("ipykernel",)}
    missing = [module for module in broken if not any(name in packages for name in named.get(module, (module,)))]
    if missing:
        what = f"notebooks and figures need {', '.join(NOTEBOOK_MODULES[module] for module in missing)}"
        yield Problem(what, f"{_pip(machine)} install 'gpukit[notebooks]'", blocks=False)
    for module in broken:
        if module not in missing:
            judge = _judge_opencv if module == "cv2" else _judge_import
            yield judge(machine, module, named.get(module, (module,))[0], blocks=False)


def _judge_import(machine, module, requirement, blocks=True):
    what = f"{module} cannot be imported ({machine['imports'][module]})"
    return Problem(what, f"{_pip(machine)} install --force-reinstall --no-deps '{requirement}'", blocks)


def _judge_opencv(machine, module, requirement, blocks):
    variants = [name for name in OPENCV if name in machine["packages"]]
    library = re.search(r"(lib[\w.+-]+): cannot open shared object", machine["imports"]["cv2"])
    if not (library or len(variants) == 2):
        return _judge_import(machine, module, requirement, blocks)
    if library:
        what = f"OpenCV needs {library[1]}, which this system does not have; the headless build needs nothing"
    else:
        what = "opencv-python and opencv-python-headless overwrite each other's files"
    pip = _pip(machine)
    return Problem(what, f"{pip} uninstall -y {' '.join(variants)} && {pip} install opencv-python-headless", blocks)


def _judge_driver(machine):
    driver, cards, settings = machine["driver"], machine["pci"], machine["environment"]
    if machine["gpus"]:
        if not wheel_extra(driver, machine["gpus"]):
            what = f"{_describe_driver(driver)} or the GPU is too old for numba-cuda, which needs CUDA 12"
            yield Problem(what, _driver_command(machine), blocks=False)
    elif driver["error"] == NO_DEVICE and settings.get("CUDA_VISIBLE_DEVICES") is not None:
        yield Problem("CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES", blocks=False)
    elif driver["error"] in DRIVER_ERRORS:
        what, fix = DRIVER_ERRORS[driver["error"]]
        found_by_path = fix != "unset LD_LIBRARY_PATH" or "LD_LIBRARY_PATH" in settings
        yield Problem(what, fix if found_by_path else _driver_command(machine), blocks=False)
    elif driver["error"] not in (0, NO_DEVICE):
        what = f"the driver does not start: cuInit fails with error {driver['error']}"
        yield Problem(what, _driver_command(machine), blocks=False)
    elif cards:
        works = "finds no GPU" if driver["found"] else "is not there"
        what = f"an NVIDIA card is on the PCI bus ({', '.join(cards)}), but the driver {works}"
        yield Problem(what, _driver_command(machine), blocks=False)


def _judge_toolkit(machine):
    """Judge whether the CUDA pieces fit the GPU and its driver, unless a kernel has run there, or none is to."""
    backend, kernel = machine["backend"] or {}, machine["kernel"] or {}
    extra = wheel_extra(machine["driver"], machine["gpus"])
    ran = kernel.get("where") == "gpu" and not kernel["error"]
    if not extra or ran or machine["environment"].get("GPUKIT_BACKEND") == "emulator":
        return
    blocks = backend.get("name") == "gpu"
    newest = int(extra.removeprefix("cu"))
    missing = [name for name, piece in machine["toolkit"].items() if not piece["path"]]
    toolkit = machine["toolkit"].get("nvrtc", {}).get("version")
    bindings = machine["packages"].get("cuda-bindings", "0")
    partner = f"{machine['gpus'][0]['name']} with {_describe_driver(machine['driver'])}"
    if toolkit and toolkit[0] > newest:
        what = f"the CUDA {_dotted(toolkit)} toolkit is too new for the {partner} (UNSUPPORTED_PTX_VERSION)"
    elif missing:
        what = f"CUDA pieces that numba-cuda needs are missing ({', '.join(missing)})"
    elif _numbers(bindings)[0] > newest:
        what = f"cuda-bindings {bindings} is too new for the {partner}"
    else:
        return
    yield Problem(what, _install_extra(machine, extra), blocks)


def _judge_kernel(machine):
    kernel, died, driver = machine["kernel"], machine["died"], machine["driver"]
    reinstall = f"{_pip(machine)} install --force-reinstall {' '.join(map(shlex.quote, MODULES.values()))}"
    fix = "export GPUKIT_BACKEND=emulator" if machine["gpus"] else reinstall
    if died:
        yield Problem(f"the trial ended at the step '{died['step']}' ({died['reason']})", fix)
    elif kernel is None:
        yield Problem(f"gpukit cannot choose a backend ({machine['backend']['reason']})", fix)
    elif kernel["error"] and "UNSUPPORTED_PTX_VERSION" in kernel["error"]:
        what = "the CUDA toolkit makes PTX that is newer than the driver (UNSUPPORTED_PTX_VERSION)"
        compiler = "nvvm" if driver["cuda"][0] >= 13 else "nvcc"
        toolkit = f"cuda-toolkit[cudart,nvjitlink,nvrtc,{compiler}]=={_dotted(driver['cuda'])}.*"
        yield Problem(what, f"{_pip(machine)} install '{toolkit}'")
    elif kernel["error"]:
        what = f"a small kernel fails on the {kernel['where']} ({kernel['error']})"
        yield Problem(what, fix if kernel["where"] == "gpu" else reinstall)


def _pip(machine):
    return f"{shlex.quote(_short(machine['python']['executable']))} -m pip"


def _install_extra(machine, extra):
    """The command that installs an extra. Wheels of CUDA 13 are found before those of CUDA 12: they go first."""
    command = f"{_pip(machine)} install 'gpukit[{extra}]'"
    newer = [name for name in CUDA_13_WHEELS if name in machine["packages"]]
    if extra == "cu13" or not newer:
        return command
    return f"{_pip(machine)} uninstall -y {' '.join(newer)} && {command}"


def _driver_command(machine):
    system = machine["system"]
    if system["container"] and not machine["driver"]["found"]:
        return "start the container with `docker run --gpus all`"
    if "Ubuntu" in system["name"]:
        return "sudo ubuntu-drivers install && sudo reboot"
    return "sudo apt install nvidia-driver && sudo reboot"


# --- describing -------------------------------------------------------------------------------------------------------


def _numbers(version):
    """The first two numbers of a version: "2.4.6" gives (2, 4)."""
    found = re.findall(r"\d+", version)[:2]
    return tuple(int(number) for number in found)


def _dotted(version):
    return ".".join(str(number) for number in version)


def _short(path):
    """A path as one would type it here: relative if it lies below the current folder."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _describe_gpus(machine):
    lines = [
        f"{gpu['name']}, compute capability {_dotted(gpu['capability'])}, {gpu['memory'] / 2**30:.1f} GiB"
        for gpu in machine["gpus"]
    ]
    if not lines and machine["pci"]:
        return f"none in reach, though the PCI bus has one ({', '.join(machine['pci'])})"
    return "\n".join(lines) or "none"


def _describe_driver(driver):
    if not driver["found"]:
        return "none"
    cuda = f", for CUDA up to {_dotted(driver['cuda'])}" if driver["cuda"] else ""
    error = f", cuInit fails with error {driver['error']}" if driver["error"] > 0 else ""
    return f"NVIDIA driver {driver['version'] or 'of unknown version'}{cuda}{error}"


def _describe_toolkit(toolkit):
    if not any(piece["path"] for piece in toolkit.values()):
        return "no toolkit"
    lines = []
    for name, piece in toolkit.items():
        version = f" {_dotted(piece['version'])}" if piece["version"] else ""
        lines.append(f"{name}{version}: {piece['path']} ({piece['via']})" if piece["path"] else f"{name}: not found")
    return "\n".join(lines)


def _describe_cache(cache, backend):
    if not cache["folder"]:
        return "none: kernels are compiled by each process"
    if not cache["private"]:
        return f"{cache['folder']} is not used: others own it or may write to it"
    text = f"{cache['kernels']} compiled kernels, {cache['bytes'] / 2**20:.1f} MiB, in {cache['folder']}"
    if backend and backend["name"] == "gpu":
        text += "\n`gpukit compile matmul reduce` adds those for all shapes, so that no call compiles one"
    return text


def _describe_kernel(kernel):
    if kernel is None:
        return "not tried"
    if kernel["error"]:
        return f"fails on the {kernel['where']}: {kernel['error']}"
    return f"compiled, launched on the {kernel['where']} and checked in {kernel['seconds']:.1f} s"
