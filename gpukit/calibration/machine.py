"""What measurements were taken on."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpukit import device
from gpukit.backend import on_gpu

PACKAGES = ("numba", "numba-cuda", "cuda-core", "cuda-bindings", "numpy", "torch", "cupy-cuda13x", "cupy-cuda12x")


def machine():
    """GPU, driver, power limit, CPU, versions of packages and date, as they go into a record.

    Returns
    -------
    dict
        ``gpu`` (the emulated device's name where there is none), ``driver`` and ``power_limit`` (None without a GPU),
        ``cpu``, ``cores`` (that this process may use), ``python``, ``versions``, ``date``.
    """
    driver = power = None
    if on_gpu():
        driver, power = _query("driver_version"), _query("power.limit")
    return {
        "gpu": device.info().name,
        "driver": driver,
        "power_limit": power,
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "versions": _versions(),
        "date": datetime.date.today().isoformat(),
    }


def _query(what):
    """What nvidia-smi says of the first GPU; None if it does not."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={what}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def cpu_name():
    """As the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
