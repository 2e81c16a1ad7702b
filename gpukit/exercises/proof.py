"""Prove the graders: starters fail, solutions pass, and every wrong answer is refused for the right reason."""

import time
from dataclasses import dataclass, field

from gpukit.exercises.exercise import AnswerExercise, Exercise
from gpukit.exercises.grading import judge
from gpukit.exercises.recognition import known, sentence

#: Wrong answers that an exercise has at least; a prediction needs fewer.
MIN_WRONG, MIN_WRONG_VALUES = 6, 2


@dataclass
class Proof:
    """What was shown of one exercise.

    Attributes
    ----------
    name : str
    wrong : int
        Wrong answers, all of which must be refused.
    unnamed : list of int
        Those that behave like another one, so that no sentence is said: counted from 1.
    faults : list of str
        What does not hold.
    seconds : float
    """

    name: str
    wrong: int = 0
    unnamed: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


def prove(exercise: Exercise) -> Proof:
    """Judge the starter, the solutions and the wrong answers of an exercise."""
    found, began = Proof(exercise.name, len(exercise.wrong)), time.perf_counter()
    _prove_parts(exercise, found.faults)
    if not _reasons(exercise, exercise.made_from(exercise.starter)):
        found.faults.append("the starter passes")
    for i, answer in enumerate([exercise.made_from(exercise.solved), *exercise.accepted]):
        if reasons := _reasons(exercise, answer):
            found.faults.append(f"{f'solution {i}' if i else 'the solved starter'} is refused: {', '.join(reasons)}")
    for i, answer in enumerate(known(exercise), 1):
        wrong, outcomes = answer.wrong, list(answer.outcomes())
        reasons = [reason for outcome in outcomes for reason in outcome.reasons]
        if wrong.reason not in reasons:
            was = ", ".join(dict.fromkeys(reasons)) or "it passes"
            found.faults.append(f"wrong answer {i} must be refused for {wrong.reason!r}: {was}")
        elif sentence(exercise, outcomes) != wrong.says:
            found.unnamed.append(i)
    found.seconds = time.perf_counter() - began
    return found


def _prove_parts(exercise, faults):
    asks_value = isinstance(exercise, AnswerExercise)
    needed = MIN_WRONG_VALUES if asks_value else MIN_WRONG
    if len(exercise.wrong) < needed:
        faults.append(f"{len(exercise.wrong)} wrong answers; {needed} are needed")
    if len({wrong.says for wrong in exercise.wrong}) < len(exercise.wrong):
        faults.append("two wrong answers have the same sentence")
    if not asks_value and len(exercise.solutions) < 2:
        faults.append("two different solutions are needed")
    if not exercise.hints or not exercise.why:
        faults.append("hints and a reason are needed")


def _reasons(exercise, answer):
    return list(dict.fromkeys(reason for outcome in judge(exercise, answer) for reason in outcome.reasons))
