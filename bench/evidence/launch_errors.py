"""``gpukit bench errors``: make launches that go wrong on purpose, and print each error (source row A7).

Each launch is made twice: as numba.cuda and the driver report it, and inside ``errors.checked()``. On a GPU some of
them end the CUDA context, and one never returns: there each runs in a child process of its own. The emulator survives
all of them in one process.
"""

import linecache
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numba.cuda.core.errors import NumbaPerformanceWarning

from bench import _child
from gpukit import backend, device, errors, intrinsics, results
from gpukit.backend import ENVIRONMENT_VARIABLE, cuda, on_gpu

__all__ = ["MISTAKES", "RECORDED", "Outcome", "emulated", "make", "recorded"]

RECORDED = results.RECORDED / "errors-h200.json"
CHILD_SECONDS = 20  # compilation included; a launch that takes longer never ends

MISTAKES = {}


def mistake(function):
    """Register a function that launches, and does not wait, in ``MISTAKES``."""
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
    """Launch 64 x 64 threads in a block: the documents' first case."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[1, (64, 64)](array)


@mistake
def grid_too_large():
    """Launch 65,536 blocks along y."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[(1, 65_536), 32](array)


@mistake
def empty_grid():
    """Launch no block, as a ceil-division gives for no elements."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[0, 32](array)


@mistake
def too_much_shared_memory():
    """Ask for 300,000 bytes of dynamic shared memory."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one[1, 32, 0, 300_000](array)


@cuda.jit(launch_bounds=128)
def add_one_bounded(array):
    i = cuda.grid(1)
    if i < array.size:
        array[i] += 1


@mistake
def beyond_launch_bounds():
    """Launch 256 threads of a kernel that was compiled for 128."""
    array = cuda.to_device(np.zeros(4096, np.float32))
    add_one_bounded[1, 256](array)


@cuda.jit
def sum_in_registers(x, out):
    """Hold 8 x 10 sums in each thread: a register for each, and some more."""
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
    """Launch 1024 threads of a kernel that needs more than 64 registers per thread."""
    x, out = cuda.to_device(np.ones(1100, np.float32)), cuda.to_device(np.zeros(1024, np.float32))
    sum_in_registers[1, 1024](x, out)


# -- unnoticed on a GPU ----------------------------------------------------------------------------


@cuda.jit
def add_one_unguarded(array):
    array[cuda.grid(1)] += 1


@mistake
def past_the_end():
    """Launch eight threads more than elements. The eight floats after the end belong to the same allocation."""
    array = cuda.to_device(np.zeros(32, np.float32))
    add_one_unguarded[1, 32](array[:24])


# -- wrong on the device ---------------------------------------------------------------------------


@cuda.jit
def add_one_far_away(array):
    array[cuda.grid(1) + (1 << 40)] += 1


@mistake
def far_out_of_bounds():
    """Access an element 2^40 past the end, where no memory is allocated."""
    array = cuda.to_device(np.zeros(32, np.float32))
    add_one_far_away[1, 32](array)


@cuda.jit
def sum_four(array, out):
    a, b, c, d = intrinsics.load4(array, cuda.grid(1))
    out[cuda.grid(1)] = a + b + c + d


@mistake
def misaligned_load():
    """Load sixteen bytes at once, from addresses that are multiples of four."""
    array, out = cuda.to_device(np.ones(64, np.float32)), cuda.to_device(np.zeros(32, np.float32))
    sum_four[1, 32](array, out)


@cuda.jit
def wait_for_change(array):
    while array[0] == 0:
        cuda.threadfence()


@mistake
def endless_loop():
    """Wait for a value that no thread writes."""
    array = cuda.to_device(np.zeros(1, np.float32))
    wait_for_change[1, 1](array)


# -- outcomes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The outcome of one mistake.

    Attributes
    ----------
    mistake : str
        Its name in ``MISTAKES``.
    checked : bool
        Whether it was made inside ``errors.checked()``.
    stage : str
        Where the error was raised: "launch", "synchronize", "checked" (the ``with`` statement), "nowhere", or "no end"
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
        The outcome of a correct launch in the same process after it: "works", or its error.
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


def make(name, checked=True):
    """Make a mistake and return its outcome; on a GPU in a child process, which may not survive it.

    Parameters
    ----------
    name : str
        One of ``MISTAKES``.
    checked : bool
        Inside ``errors.checked()``.

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
    return _in_child("gpu", checked, name)[0]


def emulated(checked=True):
    """Make all mistakes in the emulator, which survives them, on any machine.

    Returns
    -------
    dict of str to Outcome
    """
    if on_gpu():
        return dict(zip(MISTAKES, _in_child("emulator", checked, *MISTAKES), strict=True))
    return {name: _attempt(name, checked) for name in MISTAKES}


def _in_child(where, checked, *names):
    child = _child.run(
        attempt_all, checked, names, environment={ENVIRONMENT_VARIABLE: where}, patience=(CHILD_SECONDS,) * 2
    )
    answers = [Outcome(**said) for said in child.answers]
    if child.timed_out:
        answers.append(Outcome(names[len(answers)], checked, "no end"))
    # A lost context makes noise while the interpreter shuts down, and may end the process by a signal.
    if len(answers) != len(names):
        text = f"the child process ended with status {child.status} after {len(answers)} answers"
        raise RuntimeError(f"{', '.join(names)}: {text}:\n{child.output}")
    return answers


def attempt_all(checked, names):
    """Make mistakes in this process, with an answer for each."""
    for name in names:
        _child.answer(asdict(_attempt(name, checked)))
    os._exit(0)  # no clean-up on a context that may be lost


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


def _raw(launch):
    """Return where it went wrong, and the exception."""
    stage = "launch"
    try:
        launch()
        stage = "synchronize"
        cuda.synchronize()
    except Exception as error:
        return stage, error
    return "nowhere", None


def _checked(launch):
    try:
        with errors.checked():
            launch()
    except Exception as error:
        return "checked", error
    return "nowhere", None


def _afterwards():
    """Launch a correct kernel; return "works", or what is wrong."""
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


def recorded(name, checked=True, where="gpu"):
    """Return the recorded outcome on a backend: on the GPU that ``RECORDED`` was made on, or on the emulator.

    Returns
    -------
    Outcome

    Raises
    ------
    KeyError
        If the record has no such mistake.
    """
    for record in results.read(RECORDED)[1]:
        if (record["backend"], record["mistake"], record["checked"]) == (where, name, checked):
            return Outcome(**{key: value for key, value in record.items() if key != "backend"})
    raise KeyError(name)


def measure(jobs=4):
    """Make all mistakes, raw and checked; return the outcomes."""
    cases = [(name, checked) for name in MISTAKES for checked in (False, True)]
    if not on_gpu():
        return [make(*case) for case in cases]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda case: make(*case), cases))


def add_options(parser):
    """Add the options of ``gpukit bench errors``."""
    parser.add_argument("--save", metavar="FILE", type=Path, help=f"also write it to FILE ({RECORDED.name} is one)")
    parser.add_argument("--jobs", metavar="N", type=int, default=4, help="child processes at a time (default: 4)")


def run(options):
    """Run ``gpukit bench errors``; return the exit status."""
    outcomes = measure(options.jobs)
    for outcome in outcomes:
        print(outcome, end="\n\n")
    if options.save is not None:
        head = results.machine() if on_gpu() else {"gpu": device.info().name}
        records = [{"backend": backend.NAME} | asdict(outcome) for outcome in outcomes]
        if on_gpu():
            records += [{"backend": "emulator"} | asdict(outcome) for outcome in emulated().values()]
        results.save(options.save, records, head)
    return 0
