"""Shared by the measurements: the libraries beside gpukit, and a run that saves after each measurement."""

import functools
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gpukit import results
from gpukit.backend import cuda, on_gpu
from gpukit.intrinsics import clock64, globaltimer
from warpstep.integers import ceil_div

__all__ = [
    "LIBRARIES",
    "MissingLibrary",
    "grid_for",
    "launch_all",
    "libraries",
    "library_products",
    "machine_and_cpu",
    "missing",
    "run",
    "sm_mhz",
    "wait_for",
]

#: Libraries that are timed beside gpukit where they are installed.
LIBRARIES = ("cupy", "torch")
CLOCKED = 100_000  # nanoseconds
BAR = 24  # characters


def launch_all(launches: Iterable[tuple]) -> None:
    """Make the launches of a list of (launch, arguments), in order."""
    for launch, arguments in launches:
        launch(*arguments)


def grid_for(shape, block, rows_along_x=False):
    """Return the grid of blocks that covers a result of so many rows and columns."""
    across = shape if rows_along_x else shape[::-1]
    return tuple(ceil_div(size, threads) for size, threads in zip(across, block, strict=True))


def wait_for(run: Callable[[], Any]) -> None:
    """Call ``run`` and wait for the device."""
    run()
    cuda.synchronize()


class MissingLibrary(ImportError):
    """Raised if a library that a measurement needs is not installed."""


@functools.cache
def libraries() -> dict[str, Any]:
    """Import CuPy and PyTorch, if installed; return {name: module}. TF32 is turned off."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = __import__(name)
        except ImportError:
            print(f"{name} is not installed: left out", file=sys.stderr)
    if "torch" in found:
        found["torch"].backends.cuda.matmul.allow_tf32 = False
        found["torch"].backends.cudnn.allow_tf32 = False  # convolutions have it on by default
    return found


def library_products(a, b, out, names=LIBRARIES):
    """Return {"cublas (torch)": function, ...} that multiply two device arrays, for the libraries installed."""
    runs = {}
    for name in names:
        library = libraries().get(name)
        if library is not None:
            view = functools.partial(library.as_tensor, device="cuda") if name == "torch" else library.asarray
            runs[f"cublas ({name})"] = functools.partial(library.matmul, view(a), view(b), out=view(out))
    return runs


def missing() -> list[str]:
    """List the libraries that are not installed here."""
    return [name for name in LIBRARIES if name not in libraries()]


def machine_and_cpu() -> dict[str, Any]:
    """Describe the GPU and the CPU, for records of times that depend on both."""
    host = results.host()
    return results.machine() | {name: host[name] for name in ("cpu", "cores")}


# -- the clock ---------------------------------------------------------------------------------------------------------


@cuda.jit
def count_cycles(nanoseconds, out):
    """Count cycles and nanoseconds of one thread that waits for so long."""
    cycles, began = clock64(), globaltimer()
    now = began
    while now - began < nanoseconds:
        now = globaltimer()
    out[0] = clock64() - cycles
    out[1] = now - began


def sm_mhz() -> int | None:
    """Measure the clock of a multiprocessor at this moment, in MHz; None without a GPU.

    Right after a measurement, before the clock drops, it is the clock that the measurement ran at.
    """
    if not on_gpu():
        return None
    out = cuda.device_array(2, np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba warns of a grid this small
        count_cycles[1, 1](CLOCKED, out)
    cycles, nanoseconds = out.copy_to_host()
    return round(1e3 * float(cycles) / float(nanoseconds))


# -- a run -------------------------------------------------------------------------------------------------------------


def run(measurements: Iterable[tuple[str, Callable]], path: str | Path | None = None, head: dict | None = None) -> bool:
    """Measure one thing after another and save the records after each, so that a run that is cut short keeps them.

    A measurement that raises is reported as failed, and the next ones are made. Records of times on the device get
    "sm_mhz", the clock of the multiprocessors after the measurement.

    Parameters
    ----------
    measurements : iterable of (str, function)
        A title, and a function that returns (records, whether all results were right).
    path : str or Path, optional
    head : dict, optional
        Saved with the records; ``results.machine()`` unless given.

    Returns
    -------
    bool
        Whether all results were right, and nothing failed.
    """
    measurements = list(measurements)
    head, records, all_right = results.machine() if head is None else head, [], True
    print(described(head))
    began = time.perf_counter()
    for done, (title, measure) in enumerate(measurements):
        print(progress(done, len(measurements), time.perf_counter() - began, title), flush=True)
        try:
            more, right = measure()
            mhz = sm_mhz()
        except Exception:
            traceback.print_exc()
            print(f"  FAILED: {title}")
            all_right = False
            continue
        records += [record | {"sm_mhz": mhz} if mhz and _timed_on_device(record) else record for record in more]
        all_right &= right
        if path:
            results.save(path, records, head)
    print(progress(len(measurements), len(measurements), time.perf_counter() - began, "done"), flush=True)
    return all_right


def _timed_on_device(record):
    return record.get("unit") == "s" and record.get("clock") != "host" and record.get("spread") is not None


def described(head: dict) -> str:
    """Describe the machine of a record in a line."""
    clocks, power = head.get("most_mhz") or {}, head.get("power_limit")
    parts = [
        head.get("gpu"),
        head.get("driver") and f"driver {head['driver']}",
        power and f"{power:g} W",
        clocks.get("sm") and f"at most {clocks['sm']:g} MHz",
        head.get("cpu") and f"{head['cpu']}, {head['cores']} cores",
    ]
    return f"{', '.join(str(part) for part in parts if part)}; {head['date']}"


def progress(done: int, of: int, seconds: float, title: str) -> str:
    """Return a line with a progress bar, the time passed and a title."""
    filled = BAR * done // of if of else BAR
    minutes, rest = divmod(int(seconds), 60)
    return f"[{'#' * filled}{'.' * (BAR - filled)}] {done}/{of} {minutes}:{rest:02}  {title}"
