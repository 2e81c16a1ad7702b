"""One way to run a function of `bench` in a child process: under a profiler, in Numba's simulator, or where it may die.

The child appends a line of JSON to a file for each answer, so that answers survive whatever a kernel, a profiler or a
crash prints.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Child", "answer", "run"]

ROOT = Path(__file__).resolve().parents[1]
#: Environment variable that holds the path of the file of answers.
ANSWERS = "GPUKIT_BENCH_ANSWERS"


@dataclass(frozen=True)
class Child:
    """How a child process ended.

    Attributes
    ----------
    answers : list
        What it answered, in order.
    output : str
        What it and the command that it ran under printed; "" if that was not captured.
    status : int
        Exit status.
    timed_out : bool
        True if it was ended because no answer came.
    """

    answers: list
    output: str
    status: int
    timed_out: bool = False


def run(
    function: Callable,
    *arguments: Any,
    under: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    patience: tuple[float, float] | None = None,
    capture: bool = True,
    report: Callable[[list], Any] | None = None,
) -> Child:
    """Call a function of a module in a child process and wait for its end.

    Parameters
    ----------
    function : callable
        Found by its module and name. What it returns is its last answer; `answer` gives earlier ones.
    *arguments
        Anything that JSON can hold.
    under : sequence of str
        A command that the child runs under, such as a profiler.
    environment : dict, optional
        Variables to set.
    patience : (float, float), optional
        Seconds to wait for the first answer, and for each one after it; then the child is ended.
    capture : bool
        Keep what is printed; otherwise it is shown.
    report : callable, optional
        Told all answers so far whenever there are new ones.

    Returns
    -------
    Child
    """
    call = [f"{function.__module__}:{function.__qualname__}", json.dumps(arguments)]
    command = [*under, sys.executable, "-m", "bench._child", *call]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "output"), "w+", errors="replace") as output:
        answers = Path(folder, "answers")
        answers.touch()
        variables = os.environ | {"PYTHONPATH": path, ANSWERS: str(answers)} | (environment or {})
        shown = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True} if capture else {}
        process = subprocess.Popen(command, env=variables, **shown)
        try:
            timed_out = _watch(process, answers, patience, report or (lambda found: None))
        finally:
            if process.poll() is None:
                _end(process, None)
        output.seek(0)
        return Child([said for _, said in _read(answers)], output.read(), process.returncode, timed_out)


def answer(what: Any) -> None:
    """Give an answer to the process that called `run`; nothing happens in a process that was started otherwise."""
    if ANSWERS in os.environ:
        with open(os.environ[ANSWERS], "a") as file:
            file.write(json.dumps([os.getpid(), what]) + "\n")


def _read(path):
    """[(process id, answer), ...] so far; a line that is not complete yet is left out."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _watch(process, path, patience, report):
    """Wait for the end of a process; end one that gives no answer for too long, and return True then."""
    known, since = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(0.05)
        answers = _read(path)
        if len(answers) > known:
            known, since = len(answers), time.monotonic()
            report([said for _, said in answers])
        if patience and time.monotonic() - since > patience[known > 0]:
            _end(process, answers[-1][0] if answers else None)
            return True
    return False


def _end(process, pid):
    """Kill the function's own process first, so that the command around it can report, then everything."""
    if pid is not None:
        _kill(os.kill, pid)
    try:
        process.wait(timeout=10 if pid else 1)
    except subprocess.TimeoutExpired:
        own_group = os.getpgid(process.pid) == process.pid
        _kill(os.killpg if own_group else os.kill, process.pid)
        process.wait()


def _kill(kill, pid):
    try:
        kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _main(name, arguments):
    module, _, function = name.partition(":")
    result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    if result is not None:
        answer(result)


if __name__ == "__main__":
    _main(*sys.argv[1:])
