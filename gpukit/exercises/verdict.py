"""What a learner is told about an answer, as text and as HTML."""

import html
from dataclasses import dataclass

import numpy as np

from gpukit.exercises.exercise import AnswerExercise, Case, Exercise, KernelExercise
from gpukit.exercises.grading import SCORED, Outcome, par

#: Findings that a verdict prints.
MAX_FINDINGS = 3
#: What to do about operations in float64 that the solution does without.
DOUBLES = "a literal such as 0.0 is float64, and np.float32(0) is not."
#: Why a barrier that only some threads reach is no finding, and what to do.
RETURNED = "A GPU does not wait for them, but the next change may keep them: let all threads of the block reach it."


@dataclass(frozen=True)
class Verdict:
    """What is to be said of an answer. `check` shows it; ``str(verdict)`` is its text.

    Attributes
    ----------
    name : str
    passed : bool
    untouched : bool
        The answer is the starter as it came.
    reasons : tuple of str
        Why it was refused, each one of `REASONS` or "cost: " and the name of a limit.
    says : str
        The sentence for a mistake that was recognised; "" if none was.
    score, par : int or None
        Sectors, wavefronts and barriers of the last counted launch, and the solution's: fewer are better, as in golf.
        None for what is not traced.
    lines : tuple of (str, str)
        What the reviewer says: a heading and a text each.
    """

    name: str
    passed: bool
    untouched: bool = False
    reasons: tuple[str, ...] = ()
    says: str = ""
    score: int | None = None
    par: int | None = None
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        return f"{self.name}: {'passed' if self.passed else 'not started' if self.untouched else 'not yet'}"

    def __str__(self) -> str:
        indent = "\n" + " " * 10
        return "\n".join([self.title, *(f"  {head:<8}{indent.join(text.splitlines())}" for head, text in self.lines)])

    def __repr__(self) -> str:
        return f"<Verdict {self.title}>"

    def _repr_html_(self) -> str:
        color, mark = ("#24914a", "✓") if self.passed else ("#888888", "○") if self.untouched else ("#c76a10", "✗")
        look = "margin: 0; background: none; white-space: pre-wrap; word-break: normal"
        # A notebook's rules align cells to the right, whatever the cell says; the div outranks them.
        rows = "".join(
            f'<tr style="background: none"><td style="vertical-align: top"><b>{html.escape(head)}</b></td>'
            f'<td><div align="left"><pre style="{look}">{html.escape(text)}</pre></div></td></tr>'
            for head, text in self.lines
        )
        title = f'<b style="color:{color}">{mark} {html.escape(self.title)}</b>'
        return f'<div style="border-left:4px solid {color};padding-left:8px">{title}<table>{rows}</table></div>'

    def _ipython_display_(self) -> None:
        """Show nothing: `check` has shown it already."""


def untouched(exercise: Exercise) -> Verdict:
    """Make the verdict of an answer that nobody has written yet."""
    return Verdict(exercise.name, False, untouched=True, lines=(("task", exercise.task),))


def verdict(exercise: Exercise, outcomes: list[Outcome], says: str = "") -> Verdict:
    """Put outcomes into words.

    Parameters
    ----------
    exercise : Exercise
    outcomes : list of Outcome
    says : str
        What a known mistake deserves to hear.
    """
    reasons = tuple(dict.fromkeys(reason for outcome in outcomes for reason in outcome.reasons))
    lines, traced = [("mistake", says)] if says else [], isinstance(exercise, KernelExercise)
    broken = next((outcome for outcome in outcomes if outcome.error), None)
    wrong = next((outcome for outcome in outcomes if outcome.element), None)
    unsound = next((outcome for outcome in outcomes if outcome.findings), None)
    costly = next((outcome for outcome in outcomes if any(r.startswith("cost: ") for r in outcome.reasons)), None)
    if broken:
        lines.append(("runs", f"No. {broken.error}"))
    if wrong:
        about = _about_prediction if isinstance(exercise, AnswerExercise) else _about_element
        lines.append(("right", about(wrong)))
    elif not broken and (traced or not unsound):
        predicted = isinstance(exercise, AnswerExercise)
        lines.append(("right", f"Yes. {exercise.why}".rstrip() if predicted else f"Yes, in {_cases(outcomes)}."))
    if unsound:
        lines += [("sound", _about_findings(unsound))] if traced else _about_faults(unsound)
    elif traced and not broken:
        sound = "Yes: no race, no access out of bounds, no barrier that threads miss."
        lines.append(("sound", sound + _about_left(outcomes)))
    if costly and traced:
        lines.append(("good", _about_cost(exercise, costly, outcomes.index(costly))))
    score, allowed = _score(exercise, outcomes) if not reasons else (None, None)
    if score is not None:
        lines.append(("good", _about_score(exercise, outcomes, score, allowed)))
    if reasons and not says and exercise.hints:
        lines.append(("hint", f'exercises.hint("{exercise.name}")'))
    return Verdict(exercise.name, not reasons, False, reasons, says, score, allowed, tuple(lines))


def _cases(outcomes):
    return "1 case" if len(outcomes) == 1 else f"{len(outcomes)} cases"


def _launch(case: Case):
    shared = f", 0, {case.shared_bytes}" if case.shared_bytes else ""
    label = f" ({case.label})" if case.label else ""
    return f"kernel[{case.grid}, {case.block}{shared}]{label}"


def _about_element(outcome):
    element, case = outcome.element, outcome.case
    if case.args and (case.grid, case.block) != (1, 1):
        where = f" in {_launch(case)}"
    else:
        where = f" for {case.label}" if case.label else ""
    if not element.written:
        text = f"No. {element.name} is never written{where}; it must be {_value(element.expected)}."
    elif element.got is None:
        text = f"No. The function returns None{where}; a return is missing."
    else:
        name = element.name.replace("the result", "The result")
        text = f"No. {name} is {_value(element.got)}{where}; it must be {_value(element.expected)}."
    if element.thread is not None:
        text += f"\nThread {element.thread} of block {element.block} wrote it."
    if element.size > 1:
        text += f" {element.count:,} of {element.size:,} elements {'is' if element.count == 1 else 'are'} wrong."
    return text


def _about_prediction(outcome):
    """What is wrong with a predicted value. The right one stays for the learner to find."""
    element = outcome.element
    if element.size == 1:
        asked = np.size(element.expected)
        wanted = f" {asked} values are asked for." if np.size(element.got) != asked > 1 else ""
        return f"No: {_value(element.got)} is not right.{wanted}"
    counted = f"{element.count:,} of {element.size:,} {'is' if element.count == 1 else 'are'} wrong"
    return f"No: {counted}, the first of them {_value(element.got)} at index {element.at}."


def _value(value):
    if isinstance(value, str):
        return repr(str(value))  # not np.str_('...')
    return f"{value:.9g}" if hasattr(value, "dtype") and value.dtype.kind == "f" and value.ndim == 0 else f"{value}"


def _about_findings(outcome):
    first = {(found.line, found.kind): found for found in reversed(outcome.findings)}  # one of a kind for each line
    shown = [found for found in outcome.findings if first[found.line, found.kind] is found][:MAX_FINDINGS]
    texts = [f"line {f.line}, {f.kind}: {f.code}\n{f.message}\n-> {f.cure}" for f in shown]
    more = len(outcome.findings) - len(shown)
    return "\n".join([f"No, in {_launch(outcome.case)}.", *texts, *([f"{more} more"] if more > 0 else [])])


def _about_left(outcomes):
    line = next((outcome.left for outcome in outcomes if outcome.left), None)
    return f"\nIn line {line} threads wait that others never reach: these have returned. {RETURNED}" if line else ""


def _about_faults(outcome):
    """Lines on the faults of a result: what is wrong, what is unsound, what costs too much."""
    of_case = f" for {outcome.case.label}" if outcome.case.label else ""
    texts = {"right": [], "sound": [], "good": []}
    for fault in outcome.findings:
        head = "right" if fault.kind == "wrong" else "good" if fault.kind.startswith("cost: ") else "sound"
        texts[head].append(fault.message)
    for head, found in texts.items():
        if found:
            more = [f"{len(found) - MAX_FINDINGS} more"] if len(found) > MAX_FINDINGS else []
            yield head, "\n".join([f"{'Not yet' if head == 'good' else 'No'}{of_case}:", *found[:MAX_FINDINGS], *more])


def _about_cost(exercise, outcome, index):
    allowed = par(exercise)[index]
    over = [reason.removeprefix("cost: ") for reason in outcome.reasons if reason.startswith("cost: ")]
    texts = [f"{outcome.counts[name]:,} {name}, {exercise.limits[name] * allowed[name]:,.0f} will do" for name in over]
    return f"Not yet, in {_launch(outcome.case)}: " + "; ".join(texts) + "."


def _score(exercise, outcomes):
    """Sectors, wavefronts and barriers of the last counted case, and those of the solution."""
    if not isinstance(exercise, KernelExercise):
        return None, None
    last = max((i for i, outcome in enumerate(outcomes) if outcome.case.counted), default=None)
    if last is None:
        return None, None
    return tuple(sum(counts[name] for name in SCORED) for counts in (outcomes[last].counts, par(exercise)[last]))


def _about_score(exercise, outcomes, score, allowed):
    last = max(i for i, outcome in enumerate(outcomes) if outcome.case.counted)
    counts, best = outcomes[last].counts, par(exercise)[last]
    parts = [f"{counts[name]:,} {name} (par {best[name]:,})" for name in SCORED if counts[name] or best[name]]
    verdict = "Par." if score == allowed else f"{abs(score - allowed):,} {'under' if score < allowed else 'over'} par."
    doubles, few = counts["float64 operations"], best["float64 operations"]
    note = f" {doubles:,} operations in float64 (par {few:,}): {DOUBLES}" if doubles > few else ""
    return f"{verdict} {', '.join(parts)}.{note}"
