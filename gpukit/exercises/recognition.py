"""Recognise a mistake: an answer that does what one of the known wrong answers does, and no other."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpukit.exercises.exercise import Exercise, Fault, Wrong
from gpukit.exercises.grading import Outcome, judge

#: Counts of which any at all is the mistake, however many there are.
AVOIDABLE = ("bank conflicts", "float64 operations", "local requests")
#: Where the compiler complains, and the names that it gives to values: they differ from answer to answer.
PLACE = re.compile(r" \([^()]*, line \d+, in \w+\)$|File .*, line \d+|\$[\w.]+")


class Known:
    """A wrong answer, which runs as far as somebody asks, and once."""

    def __init__(self, exercise: Exercise, wrong: Wrong, answer: Any):
        self.wrong = wrong
        self._rest, self._done = judge(exercise, answer), list[Outcome]()

    def outcomes(self) -> Iterator[Outcome]:
        """Yield what became of each case."""
        for i in itertools.count():
            if i == len(self._done):
                self._done += itertools.islice(self._rest, 1)
            if i == len(self._done):
                return
            yield self._done[i]


_known: dict[str, list[Known]] = {}


def known(exercise: Exercise) -> list[Known]:
    """Return the wrong answers of an exercise; they are compiled once, and keep their outcomes."""
    if exercise.name not in _known:
        _known[exercise.name] = [Known(exercise, wrong, answer) for wrong, answer in exercise.answers]
    return _known[exercise.name]


def sentence(exercise: Exercise, outcomes: list[Outcome]) -> str:
    """Return what is to be said of the one wrong answer that behaves the same; "" if none does, or several do.

    Answers are alike that have the same results and reasons, and the same count of what costs too much. Among several,
    how often each finding occurs decides, and then all of their counts.
    """
    if not any(outcome.reasons for outcome in outcomes):
        return ""
    alike = [answer for answer in known(exercise) if _behaves(answer, outcomes)]
    for facts in (_found, lambda outcome: outcome.counts):
        if len(alike) > 1:
            alike = [a for a in alike if list(map(facts, a.outcomes())) == list(map(facts, outcomes))]
    return alike[0].wrong.says if len(alike) == 1 else ""


def _behaves(answer, outcomes):
    """Whether an answer does the same in all cases; it runs only until it does not."""
    number = 0
    for theirs in answer.outcomes():
        if number == len(outcomes) or not _same_outcome(theirs, outcomes[number]):
            return False
        number += 1
    return number == len(outcomes)


def _same_outcome(a: Outcome, b: Outcome):
    if a.reasons != b.reasons or len(a.outputs) != len(b.outputs):
        return False
    if _found(a)["out-of-bounds"] != _found(b)["out-of-bounds"]:  # skipped accesses leave no trace in the outputs
        return False
    if _excess(a) != _excess(b) or _stores(a) != _stores(b) or _complaint(a) != _complaint(b):
        return False
    return all(_same_values(x, y) for x, y in zip(a.outputs, b.outputs, strict=True))


def _excess(outcome):
    """The counts that are too high, and what faults say of them: there are many ways to waste."""
    costs = [reason.removeprefix("cost: ") for reason in outcome.reasons if reason.startswith("cost: ")]
    faults = [
        found.message for found in outcome.findings if isinstance(found, Fault) and found.kind.startswith("cost: ")
    ]
    return [outcome.counts.get(name) for name in costs if name not in AVOIDABLE], faults


def _stores(outcome):
    """Whether anything is stored: nothing at all, and something in the wrong array, leave the same outputs."""
    return outcome.counts.get("global store sectors", 0) > 0


def _complaint(outcome):
    """What the compiler says, as far as it is about the mistake and not about where it stands."""
    if "does not compile" not in outcome.reasons:
        return []
    return [PLACE.sub("", line) for line in outcome.error.splitlines()[:2]]


def _found(outcome):
    """How often each kind of finding occurs; faults are told apart by what they say."""
    counts: Counter[str] = Counter()
    for found in outcome.findings:
        counts[found.message if isinstance(found, Fault) else found.kind] += found.count
    return counts


def _same_values(x, y):
    try:
        x, y = np.asarray(x), np.asarray(y)
    except ValueError:
        return False
    if x.shape != y.shape:
        return False
    if x.dtype.kind in "fc" and y.dtype.kind in "fc":
        return np.allclose(x, y, rtol=1e-4, equal_nan=True)
    return bool(np.array_equal(x, y))
