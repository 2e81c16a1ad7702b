"""The child processes of the measurements: their answers survive what they print, and how they end."""

import os
import sys
import time
from pathlib import Path

import pytest

from bench import _child


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The functions of this file can be imported in a child."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def square(numbers):
    for number in numbers:
        print("noise", end="")
        _child.answer(number**2)
    return "done"


def test_answers_and_output_are_kept_apart():
    told = []
    child = _child.run(square, [2, 3], report=told.append)
    assert (child.answers, child.output, child.status, child.timed_out) == ([4, 9, "done"], "noisenoise", 0, False)
    assert all(answers == child.answers[: len(answers)] for answers in told)


def test_the_calling_process_answers_nobody():
    assert square([2]) == "done"


def fail(message):
    _child.answer("begun")
    raise ValueError(message)


def test_an_exception_is_in_the_output():
    child = _child.run(fail, "no memory")
    assert child.answers == ["begun"] and child.status == 1 and "ValueError: no memory" in child.output


def die():
    _child.answer("begun")
    os._exit(3)


def test_answers_before_a_crash_are_kept():
    child = _child.run(die)
    assert (child.answers, child.status) == (["begun"], 3)


def hang(answers):
    for i in range(answers):
        _child.answer(i)
    time.sleep(600)


@pytest.mark.parametrize(("answers", "patience"), [(0, (1, 600)), (2, (600, 0.5))])
def test_a_child_that_hangs_is_ended(answers, patience):
    child = _child.run(hang, answers, patience=patience)
    assert child.timed_out and child.status and child.answers == list(range(answers))


def variable(name):
    return os.environ[name]


def test_the_environment_and_the_command_around_it():
    under = [sys.executable, "-c", "import subprocess, sys; print('under'); sys.exit(subprocess.call(sys.argv[1:]))"]
    child = _child.run(variable, "WORD", under=under, environment={"WORD": "set"})
    assert child.answers == ["set"] and child.output == "under\n" and child.status == 0


def test_what_is_not_captured_is_shown(capfd):
    child = _child.run(square, [2], capture=False)
    assert child.output == "" and capfd.readouterr().out == "noise" and child.answers[-1] == "done"
