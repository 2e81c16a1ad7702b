"""``gpukit bench errors``: launches that go wrong on purpose, and what is said of each (source row A7).

Each is made twice: as numba.cuda and the driver report it, and inside of ``errors.checked()``. On a GPU some of them
end the CUDA context, and one never returns: there each runs in a child process of its own. On the emulator none harms
the process, and `run` stays in it.
"""

import argparse
import json
import linecache
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numba.cuda.core.errors import NumbaPerformanceWarning

from gpukit import backend, device, errors, intrinsics, results
from gpukit.backend import ENVIRONMENT_VARIABLE, cuda, on_gpu

__all__ = ["MISTAKES", "RECORDED", "Outcome", "emulated", "recorded", "run"]

RECORDED = Path(__file__).resolve().parents[2] / "data" / "results" / "errors-h200.json"
CHILD_SECONDS = 20  # compilation included; what runs longer never ends

MISTAKES = {}


def mistake(function):
    """Enter a function into ``MISTAKES``: it launches, and does not wait."""
    MISTAKES[function.__name__] = function
    return function


@cuda.jit
def add_one(array):
    i = cuda.grid(1)
    if i < array.size:
        array[i] += 1


# -- refused at the launch -------------------------------------------------------------------------


@mistake
def block_too_large():
    """64 x 64 threads in a block: the documents' first case."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[1, (64, 64)](array)


@mistake
def grid_too_large():
    """65,536 blocks along y."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[(1, 65_536), 32](array)


@mistake
def empty_grid():
    """No block at all: what a ceil-division gives for no elements."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[0, 32](array)


@mistake
def too_much_shared_memory():
    """300,000 bytes of dynamic shared memory."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[1, 32, 0, 300_000](array)


@cuda.jit(launch_bounds=128)
def add_one_bounded(array):
    i = cuda.grid(1)
    if i < array.size:
        array[i] += 1


@mistake
def beyond_launch_bounds():
    """256 threads for a kernel that was compiled for 128."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one_bounded[1, 256](array)


@cuda.jit
def sum_in_registers(x, out):
    """Holds 8 x 10 sums in each thread: one register for each, and some more."""
    sums = cuda.local.array((8, 10), np.float32)
    i = cuda.grid(1)
    for row in range(8):
        for col in range(10):
            sums[row, col] = 0
    for step in range(64):
        for row in range(8):
            for col in range(10):
                sums[row, col] += x[i + row] * x[i + step + col]
    for row in range(8):
        for col in range(10):
            out[i] += sums[row, col]


@mistake
def too_many_registers():
    """1024 threads of a kernel that needs more than 64 registers for each."""
    x, out = cuda.to_device(np.ones(1100, np.float32)), cuda.to_device(np.zeros(1024, np.float32))
    sum_in_registers[1, 1024](x, out)


# -- nobody notices, on a GPU ----------------------------------------------------------------------


@cuda.jit
def add_one_unguarded(array):
    array[cuda.grid(1)] += 1


@mistake
def past_the_end():
    """Eight threads more than elements. The eight floats behind belong to the same allocation."""
    array = cuda.to_device(np.zeros(32, np.float32))
    add_one_unguarded[1, 32](array[:24])


# -- wrong on the device ---------------------------------------------------------------------------


@cuda.jit
def add_one_far_away(array):
    array[cuda.grid(1) + (1 << 40)] += 1


@mistake
def far_out_of_bounds():
    """An index a million million elements past the end, where no memory is allocated."""
    array = cuda.to_device(np.zeros(32, np.float32))
    add_one_far_away[1, 32](array)


@cuda.jit
def sum_four(array, out):
    a, b, c, d = intrinsics.load4(array, cuda.grid(1))
    out[cuda.grid(1)] = a + b + c + d


@mistake
def misaligned_load():
    """Sixteen bytes at once, from addresses that are multiples of four."""
    array, out = cuda.to_device(np.ones(64, np.float32)), cuda.to_device(np.zeros(32, np.float32))
    sum_four[1, 32](array, out)


@cuda.jit
def wait_for_change(array):
    while array[0] == 0:
        cuda.threadfence()


@mistake
def endless_loop():
    """A thread waits for a value that no thread will ever write."""
    array = cuda.to_device(np.zeros(1, np.float32))
    wait_for_change[1, 1](array)


# -- what was said ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What happened to one mistake.

    Attributes
    ----------
    mistake : str
        Its name in ``MISTAKES``.
    checked : bool
        Made inside of ``errors.checked()``.
    stage : str
        Where the error came up: "launch", "synchronize", "checked" (the ``with`` statement), "nowhere", or "no end"
        if the process had to be stopped.
    error, message : str
        The exception's class and text; empty if there was none.
    kind : str or None
        Of a KernelError.
    code : str
        The line of source that the error names, if it names one.
    sticky : bool or None
        As the error says; None if it does not say.
    afterwards : str
        What came of another launch in the same process, of a kernel that is right: "works", or its error.
    """

    mistake: str
    checked: bool
    stage: str
    error: str = ""
    message: str = ""
    kind: str | None = None
    code: str = ""
    sticky: bool | None = None
    afterwards: str = ""

    def __str__(self):
        said = f"{self.error}: {self.message}" if self.error else "no error"
        where = {
            "launch": "at the launch",
            "synchronize": "not at the launch, but at the next synchronisation",
            "checked": "in errors.checked()",
            "nowhere": "neither at the launch nor at the next synchronisation",
            "no end": f"the process was stopped after {CHILD_SECONDS} s",
        }[self.stage]
        lines = [f"{self.mistake}: {where}", *(f"  {line}" for line in said.splitlines())]
        if self.afterwards:
            lines.append(f"  afterwards: {self.afterwards}")
        return "\n".join(lines)


def run(name, checked=True):
    """Make a mistake and say what came of it; on a GPU in a child process, which it may cost.

    Parameters
    ----------
    name : str
        One of ``MISTAKES``.
    checked : bool
        Inside of ``errors.checked()``.

    Returns
    -------
    Outcome

    Raises
    ------
    ValueError
        If there is no such mistake.
    RuntimeError
        If the child process fails for another reason; the message holds its output.
    """
    if name not in MISTAKES:
        raise ValueError(f"name is {name!r}; it must be one of {', '.join(MISTAKES)}")
    if not on_gpu():
        return _attempt(name, checked)
    try:
        return _in_child("gpu", checked, name)[0]
    except subprocess.TimeoutExpired:
        return Outcome(name, checked, "no end")


def emulated(checked=True):
    """All mistakes in the emulator, which survives them, on any machine.

    Returns
    -------
    dict of str to Outcome
    """
    if on_gpu():
        return dict(zip(MISTAKES, _in_child("emulator", checked, *MISTAKES), strict=True))
    return {name: _attempt(name, checked) for name in MISTAKES}


def _in_child(where, checked, *names):
    command = [sys.executable, "-m", "bench.evidence.launch_errors", str(int(checked)), *names]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = os.environ | {ENVIRONMENT_VARIABLE: where, "PYTHONPATH": path}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS)
    # A lost context makes noise while the interpreter shuts down, and may end the process by a signal.
    answers = [Outcome(**json.loads(line)) for line in child.stdout.splitlines() if line.startswith("{")]
    if len(answers) != len(names):
        text = f"the child process ended with status {child.returncode} after {len(answers)} answers"
        raise RuntimeError(f"{', '.join(names)}: {text}:\n{child.stderr}")
    return answers


def _attempt(name, checked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        stage, error = (_checked if checked else _raw)(MISTAKES[name])
        afterwards = _afterwards()
    if error is None:
        return Outcome(name, checked, stage, afterwards=afterwards)
    launch = getattr(error, "launch", None)
    filename, line = getattr(error, "filename", None), getattr(error, "line", None)
    if launch is not None and line is None:
        filename, line = launch.filename, launch.line
    return Outcome(
        name,
        checked,
        stage,
        _class_name(error),
        str(error),
        getattr(error, "kind", None),
        linecache.getline(filename, line).strip() if line else "",
        getattr(error, "sticky", None),
        afterwards,
    )


def _raw(make):
    """Where it went wrong, and the exception."""
    stage = "launch"
    try:
        make()
        stage = "synchronize"
        cuda.synchronize()
    except Exception as error:
        return stage, error
    return "nowhere", None


def _checked(make):
    try:
        with errors.checked():
            make()
    except Exception as error:
        return "checked", error
    return "nowhere", None


def _afterwards():
    """Use the device for something that is right."""
    try:
        array = cuda.to_device(np.zeros(32, np.float32))
        add_one[1, 32](array)
        return "works" if (array.copy_to_host() == 1).all() else "wrong result"
    except Exception as error:
        return f"{_class_name(error)}: {error}"


def _class_name(error):
    kind = type(error)
    ours = kind.__module__.startswith(("gpukit", "warpstep", "builtins"))
    return kind.__name__ if ours else f"{kind.__module__}.{kind.__name__}"


# -- the record ------------------------------------------------------------------------------------


def recorded(name, checked=True):
    """What was said on the GPU that ``RECORDED`` was made on.

    Returns
    -------
    Outcome

    Raises
    ------
    KeyError
        If the record has no such mistake.
    """
    for record in json.loads(RECORDED.read_text())["records"]:
        if (record["backend"], record["mistake"], record["checked"]) == ("gpu", name, checked):
            return Outcome(**{key: value for key, value in record.items() if key != "backend"})
    raise KeyError(name)


def measure(jobs=4):
    """All mistakes, raw and checked, as they go into the record."""
    cases = [(name, checked) for name in MISTAKES for checked in (False, True)]
    if not on_gpu():
        return [run(*case) for case in cases]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda case: run(*case), cases))


def main(argv=None):
    """Run ``gpukit bench errors``; give back the exit status."""
    text = "Make launches that go wrong, and print what the driver says of each and what errors.checked() makes of it."
    parser = argparse.ArgumentParser(prog="gpukit bench errors", description=text)
    parser.add_argument("--save", metavar="FILE", type=Path, help=f"also write it to FILE ({RECORDED.name} is one)")
    parser.add_argument("--jobs", metavar="N", type=int, default=4, help="child processes at a time (default: 4)")
    options = parser.parse_args(argv)
    outcomes = measure(options.jobs)
    for outcome in outcomes:
        print(outcome, end="\n\n")
    if options.save is not None:
        head = results.machine() if on_gpu() else {"gpu": device.info().name}
        records = [{"backend": backend.NAME} | asdict(outcome) for outcome in outcomes]
        if on_gpu():
            records += [{"backend": "emulator"} | asdict(outcome) for outcome in emulated().values()]
        record = head | {"records": records}
        options.save.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _child(checked, *names):
    for name in names:
        print(json.dumps(asdict(_attempt(name, bool(int(checked))))), flush=True)
    os._exit(0)  # no clean-up on a context that may be lost


if __name__ == "__main__":
    # The same module as others import it: what numba.cuda compiles belongs to a named module.
    from bench.evidence import launch_errors as mistakes

    mistakes._child(*sys.argv[1:])
