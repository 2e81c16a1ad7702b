"""Exercises with graders that are proven: each refuses a list of wrong answers, and says what went wrong.

``check(name, answer)`` is a review of an answer, ``hint`` and ``solution`` help, ``progress`` draws what is done.
``names()`` lists the exercises; the specifications stand in ``gpukit/exercises/chapter_*.py``.
"""

import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

from gpukit.exercises import progress as _progress
from gpukit.exercises import recognition, verdict
from gpukit.exercises.exercise import (
    AnswerExercise,
    Case,
    Exercise,
    Fault,
    FunctionExercise,
    InOut,
    KernelExercise,
    Out,
    Reviewed,
    Wrong,
)
from gpukit.exercises.grading import METRICS, REASONS, judge
from gpukit.exercises.verdict import Verdict
from gpukit.show import Source
from warpstep.values import check_int, check_text, describe

__all__ = [
    "METRICS",
    "REASONS",
    "AnswerExercise",
    "Case",
    "Exercise",
    "Fault",
    "FunctionExercise",
    "InOut",
    "KernelExercise",
    "Out",
    "Reviewed",
    "Verdict",
    "Wrong",
    "check",
    "get",
    "hint",
    "names",
    "progress",
    "solution",
    "solved",
    "starter",
]


def names() -> list[str]:
    """List the names of all exercises, in the order of the course.

    Examples
    --------
    >>> from gpukit import exercises
    >>> "01-guard" in exercises.names()
    True
    """
    return [exercise.name for chapter in _chapters() for exercise in _of_chapter(chapter)]


def get(name: str) -> Exercise:
    """Return an exercise.

    Raises
    ------
    ValueError
        If there is none of that name; the message has the nearest ones.

    Examples
    --------
    >>> get("01-guard").name
    '01-guard'
    """
    name = check_text("name", name)
    chapter = name.split("-")[0]
    if chapter in _chapters():
        for exercise in _of_chapter(chapter):
            if exercise.name == name:
                return exercise
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.3)
    raise ValueError(f"name is {describe(name)}, and there is no such exercise; near: {', '.join(near) or 'none'}")


def check(name: str, answer: Any) -> Verdict:
    """Review an answer: does it run, is it right, is it sound, is it good?

    The answer runs in the emulator, with or without a GPU, on inputs of its own: random, ragged, one element. The
    verdict is shown at once. It names the first wrong element and the thread that wrote it, what is unsound (races,
    accesses out of bounds, barriers that threads miss), and what costs more than it must. It names known mistakes.
    The starter as it came is "not started" and raises nothing, so that a page with open exercises runs to its end.

    Parameters
    ----------
    name : str
        As in `names`.
    answer : kernel, device function, function or value
        What the exercise asks for.

    Returns
    -------
    Verdict
        With ``passed``.

    Raises
    ------
    ValueError
        If there is no exercise of that name.

    Examples
    --------
    >>> @cuda.jit
    ... def add(x, y, out):
    ...     i = cuda.grid(1)
    ...     out[i] = x[i] + y[i]
    >>> verdict = check("01-guard", add)  # doctest: +ELLIPSIS
    01-guard: ...
    >>> verdict.passed
    False
    """
    exercise = get(name)
    if exercise.untouched(answer):
        found = verdict.untouched(exercise)
    else:
        outcomes = list(judge(exercise, answer))
        found = verdict.verdict(exercise, outcomes, recognition.sentence(exercise, outcomes))
    _show(found)
    _progress.keep(found)
    return found


def hint(name: str, number: int | None = None) -> None:
    """Print a hint: the next one at each call, or that of a number.

    Parameters
    ----------
    name : str
    number : int, optional
        Counted from 1.

    Raises
    ------
    ValueError
        If there is no exercise of that name, or no hint of that number.

    Examples
    --------
    >>> hint("01-guard", 1)
    Hint 1 of 3: cuda.grid(1) is the index of a thread in the whole grid.
    """
    exercise = get(name)
    hints = exercise.hints
    if number is None:
        number = min(_progress.load().get(name, {}).get("hints", 0) + 1, len(hints))
        _progress.record(name, hints=1)
    number = check_int("number", number, minimum=1, maximum=len(hints))
    after = "" if number < len(hints) else f'\nThat was the last one. There is exercises.solution("{name}").'
    print(f"Hint {number} of {len(hints)}: {hints[number - 1]}{after}")


def solution(name: str) -> Source:
    """Show a solution, and why it is as it is.

    Raises
    ------
    ValueError
        If there is no exercise of that name.

    Examples
    --------
    >>> shown = solution("01-guard")
    """
    exercise = get(name)
    why = "\n".join(f"# {line}" for line in exercise.why.splitlines())
    return Source(f"a solution of {name}", f"{exercise.solved.rstrip()}\n\n{why}")


def starter(name: str) -> str:
    """Return the source that stands in the notebook: the solution with a hole.

    Raises
    ------
    ValueError
        If there is no exercise of that name.

    Examples
    --------
    >>> print(starter("01-guard").strip())
    @cuda.jit
    def add(x, y, out):
        # About 3 lines: find the index of this thread in the grid; if there is such an element, add
        ...
    """
    return get(name).starter


def solved(name: str) -> str:
    """Return the source with the solution in place of the hole.

    Raises
    ------
    ValueError
        If there is no exercise of that name.

    Examples
    --------
    >>> source = solved("01-guard")
    """
    return get(name).solved


def progress() -> _progress.Progress:
    """Show which exercises are passed, tried and open, by chapter.

    The record lies in the user's state directory, or in the folder that ``GPUKIT_STATE`` names.

    Examples
    --------
    >>> overview = progress()
    """
    chapters = {chapter: [exercise.name for exercise in _of_chapter(chapter)] for chapter in _chapters()}
    return _progress.Progress(chapters, _progress.load())


def _chapters():
    files = Path(__file__).parent.glob("chapter_*.py")
    return sorted(path.stem.removeprefix("chapter_") for path in files)


def _of_chapter(chapter):
    module = importlib.import_module(f"gpukit.exercises.chapter_{chapter}")
    return module.EXERCISES


def _show(found):
    """Display in a notebook, print elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and shell.has_trait("kernel"):
        from IPython.display import display

        display({"text/html": found._repr_html_(), "text/plain": str(found)}, raw=True)
    else:
        print(found)
