"""Judge an answer as a reviewer would: does it run, is it right, is it sound, is it good?"""

import functools
import re
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpukit.errors import KernelError, LaunchError
from gpukit.exercises.exercise import (
    AnswerExercise,
    Case,
    Exercise,
    Fault,
    InOut,
    KernelExercise,
    Out,
    Reviewed,
    function_of,
)
from warpstep import set_loop_limit, trace
from warpstep.tracing.records import FINDINGS, Finding, element_name

#: What `Wrong.reason` can be, besides "cost: " and a metric.
REASONS = (
    "no kernel",
    "does not compile",
    "cannot be launched",
    "raises",
    "no-progress",
    *FINDINGS,
    "unwritten",
    "wrong",
)

#: How often a loop may go round in a check; solutions stay below 2,000.
MAX_TURNS = 50_000

#: What the compiler says in its own words, by a pattern, and what it means.
PLAIN = {
    r"<function (shared|local)\.array": (
        "The shape of a shared or local array must be constant: numbers or global names, no variable or computation."
    ),
    r"to none for '\$.*return_value": "A kernel returns nothing. Store the result in one of its arrays.",
    r"NRT required but not enabled": "A thread works on single elements: index the arrays, x[i] for example.",
}

#: Counts of a trace that a limit can name, and that make the score.
METRICS = {
    "global sectors": lambda t: t.total("global").sectors,
    "global load sectors": lambda t: t.total("global", "load").sectors,
    "global store sectors": lambda t: t.total("global", "store").sectors,
    "global requests": lambda t: t.total("global").requests,
    "global atomics": lambda t: t.total("global", "atomic").requests,
    "shared wavefronts": lambda t: t.total("shared").wavefronts,
    "bank conflicts": lambda t: t.total("shared").bank_conflicts,
    "shared atomics": lambda t: t.total("shared", "atomic").requests,
    "local requests": lambda t: t.total("local").requests,
    "float32 operations": lambda t: sum(line.fp32 for line in t.operations),
    "float64 operations": lambda t: sum(line.fp64 + line.fp64_conversions for line in t.operations),
    "barriers": lambda t: sum(barrier.passed for barrier in t.barriers if barrier.kind != "warp"),
}
#: Of which the score is the sum: what a launch asks of memory, and how often its blocks wait.
SCORED = ("global sectors", "shared wavefronts", "barriers")


@dataclass
class Element:
    """The first element that is wrong.

    Attributes
    ----------
    name : str
        As the source would name it: ``out[3, 0]``.
    at : int
        Its position in C order.
    expected, got : scalar
    count, size : int
        Elements that are wrong, and all there are.
    written : bool
        False if no thread wrote it.
    block, thread : tuple of 3 int or None
        The thread that wrote it last.
    """

    name: str
    at: int
    expected: Any
    got: Any
    count: int
    size: int
    written: bool = True
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None


@dataclass(eq=False)  # its arrays cannot be compared
class Outcome:
    """What became of one case.

    Attributes
    ----------
    case : Case
    reasons : list of str
        Why the answer must be refused; none if it is as it should be.
    error : str
        Of the compiler, the launch or the function.
    element : Element or None
    findings : list of Finding or Fault
    left : int
        The line of a barrier at which threads waited for others that had returned; 0 if there is none.
    counts : dict of str to int
    outputs : tuple
        Arrays, or what the function returned.
    """

    case: Case
    reasons: list[str] = field(default_factory=list)
    error: str = ""
    element: Element | None = None
    findings: list[Finding | Fault] = field(default_factory=list)
    left: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    outputs: tuple = ()


def judge(exercise: Exercise, answer: Any) -> Iterator[Outcome]:
    """Run an answer on the cases of an exercise, one after the other, until one cannot be run."""
    kernel = functools.cache(lambda: _kernel_of(exercise, answer))  # one for all cases: they share what is compiled
    for i, case in enumerate(exercise.all_cases()):
        outcome = Outcome(case)
        inputs = [arg.array if isinstance(arg, InOut) else arg for arg in case.args if not isinstance(arg, Out)]
        expected = exercise.spec(*(value.copy() if isinstance(value, np.ndarray) else value for value in inputs))
        if not isinstance(exercise, KernelExercise):
            _call(exercise, answer, outcome, expected)
        else:
            _launch(exercise, kernel, outcome, expected if isinstance(expected, tuple) else (expected,))
            if exercise.limits and case.counted and not outcome.reasons:
                outcome.reasons = _over(exercise, outcome.counts, par(exercise)[i])
        yield outcome
        if outcome.error:
            return


def _over(exercise, counts, allowed):
    return [f"cost: {name}" for name, factor in exercise.limits.items() if counts[name] > factor * allowed[name]]


def par(exercise: Exercise) -> list[dict[str, int]]:
    """Count what the first solution does in each case."""
    if exercise.name not in _par:
        unlimited = replace(exercise, limits={}) if isinstance(exercise, KernelExercise) else exercise
        _par[exercise.name] = [outcome.counts for outcome in judge(unlimited, exercise.solutions[0])]
    return _par[exercise.name]


_par: dict[str, list[dict[str, int]]] = {}


# -- kernels --------------------------------------------------------------------------------------------------------


def _kernel_of(exercise, answer):
    if exercise.make and not hasattr(answer, "py_func"):
        raise TypeError("this is no device function; write @cuda.jit(device=True) above a function, and pass its name")
    return exercise.make(answer) if exercise.make else answer


def _launch(exercise, kernel, outcome, expected):
    case = outcome.case
    outputs = [i for i, arg in enumerate(case.args) if isinstance(arg, Out | InOut)]
    args = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in case.args]
    for i, values in zip(outputs, expected, strict=True):
        args[i] = case.args[i].make(values)
    poisoned = [args[i].copy() for i in outputs]
    traced = _traced(kernel, case, args, outcome)
    if traced is None:
        return
    outcome.outputs = tuple(args[i] for i in outputs)
    outcome.findings = list(traced.findings)
    outcome.left = next((advice.line for advice in traced.advice if advice.kind == "returned-before-barrier"), 0)
    outcome.counts = {name: int(count(traced)) for name, count in METRICS.items()}
    names = function_of(kernel()).__code__.co_varnames
    for i, values, fresh in zip(outputs, expected, poisoned, strict=True):
        wrong = _first_wrong(names[i], args[i], values, exercise.rtol)
        if wrong is not None and outcome.element is None:
            outcome.element = _with_writer(wrong, traced, names[i], args[i], fresh, isinstance(case.args[i], Out))
    if outcome.element is not None:
        outcome.reasons.append("wrong" if outcome.element.written else "unwritten")
    outcome.reasons += [kind for kind in FINDINGS if any(found.kind == kind for found in traced.findings)]


def _traced(kernel, case, args, outcome):
    """The trace of a case; None, with the reason in the outcome, where the answer cannot be run."""
    try:
        made = kernel()
        if not hasattr(made, "py_func") or not hasattr(made, "__getitem__"):
            outcome.reasons, outcome.error = ["no kernel"], _no_kernel(made)
            return None
        configured = made[case.grid, case.block, 0, case.shared_bytes]
        with _few_turns():
            return trace(configured, *args, heat=True)
    except LaunchError as error:
        outcome.reasons, outcome.error = ["cannot be launched"], str(error)
    except KernelError as error:
        outcome.reasons, outcome.error = [error.kind], str(error).split(" GPUKIT_LOOP_LIMIT")[0]
    except Exception as error:  # whatever the compiler has to say about somebody's source
        outcome.reasons, outcome.error = ["does not compile"], _short(error)
    return None


@contextmanager
def _few_turns() -> Iterator[None]:
    """Stop an endless loop within seconds: the inputs of an exercise are small."""
    with _turns:
        before = set_loop_limit(MAX_TURNS)
        try:
            set_loop_limit(min(before, MAX_TURNS))
            yield
        finally:
            set_loop_limit(before)


_turns = threading.Lock()  # the limit is the process's


def _no_kernel(answer):
    if hasattr(answer, "griddim"):
        return "this is a launch; pass the kernel alone, without [grid, block]"
    if callable(answer) and not isinstance(answer, type):
        name = getattr(answer, "__name__", "it")
        return f"{name} is a plain Python function; write @cuda.jit above it to make it a kernel"
    return f"{answer!r:.60} is no kernel"


def _first_wrong(name, got, expected, rtol):
    expected = np.asarray(expected)
    if got.shape != expected.shape:
        raise ValueError(f"the specification gives an array of shape {expected.shape}, {name} has {got.shape}")
    wrong = np.flatnonzero(~_equal(got, expected, rtol).reshape(-1))
    if not wrong.size:
        return None
    at = int(wrong[0])
    pair = expected.reshape(-1)[at], got.reshape(-1)[at]
    return Element(element_name(name, at, got.shape), at, *pair, int(wrong.size), got.size)


def _equal(got, expected, rtol):
    if expected.dtype.kind not in "fc":
        return got == expected
    finite = np.abs(expected[np.isfinite(expected)])
    with np.errstate(invalid="ignore", over="ignore"):
        return np.isclose(got, expected, rtol=rtol, atol=rtol * float(finite.max(initial=0)), equal_nan=True)


def _with_writer(element, traced, name, array, poisoned, must_write):
    """The element with the thread that wrote it, as far as the trace can tell."""
    heat = next((h for h in traced.heat or () if h.array == name and h.width == 1), None)
    at = element.at
    if heat is None:
        element.written = not must_write or array.tobytes() != poisoned.tobytes()
    elif heat.writer[at] < 0:
        element.written = not must_write
    else:
        element.block = tuple(int(i) for i in np.unravel_index(heat.writer[at], traced.grid[::-1])[::-1])
        element.thread = tuple(int(i) for i in np.unravel_index(heat.thread[at], traced.block[::-1])[::-1])
    return element


# -- functions and values -------------------------------------------------------------------------------------------


def _call(exercise, answer, outcome, expected):
    """Call a function with the arguments of a case, or take the value as it is, and compare."""
    if isinstance(exercise, AnswerExercise):
        got, expected = (list(value) if isinstance(value, tuple) else value for value in (answer, expected))
    else:
        try:
            call = exercise.call or (lambda answer, *args: answer(*args))
            got = call(answer, *outcome.case.args)
        except Exception as error:  # whatever somebody's function raises
            outcome.reasons, outcome.error = ["raises"], f"{_short(error)}{_line_of(error, answer)}"
            return
    if isinstance(got, Reviewed):
        outcome.findings, got = list(got.faults), got.value
    if isinstance(expected, tuple) and isinstance(got, list):
        got = tuple(got)
    outcome.outputs = got if isinstance(got, tuple) else (got,)
    values = expected if isinstance(expected, tuple) else (expected,)
    if len(values) != len(outcome.outputs):
        outcome.reasons, outcome.element = ["wrong"], Element("the result", 0, expected, got, 1, 1)
    for i, (value, found) in enumerate(zip(values, outcome.outputs, strict=False)):
        name = f"result[{i}]" if len(values) > 1 else "the result" if np.ndim(value) == 0 else "result"
        wrong = _differs(name, found, value, exercise.rtol)
        if wrong is not None and outcome.element is None:
            outcome.reasons, outcome.element = ["wrong"], wrong
    outcome.reasons += dict.fromkeys(fault.kind for fault in outcome.findings)


def _differs(name, got, expected, rtol):
    """The first wrong element of a result; the result itself where it is of another kind."""
    try:
        array, wanted = np.asarray(got), np.asarray(expected)
        comparable = array.shape == wanted.shape and (array.dtype.kind in "biufc") == (wanted.dtype.kind in "biufc")
    except ValueError:
        comparable = False
    if not comparable:
        return Element(name, 0, expected, got, 1, 1)
    if wanted.ndim == 0:
        same = bool(_equal(array, wanted, rtol)) if wanted.dtype.kind in "biufc" else got == expected
        return None if same else Element(name, 0, expected, got, 1, 1)
    return _first_wrong(name, array, wanted, rtol)


def _short(error):
    """The lines of an error that say something to a learner: the cause, and the line of the source."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # numba-cuda colours its messages
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    refused = [line.strip() for line in lines if line.lstrip().startswith("NumbaTypeError: ")]
    if refused:  # a function for kernels says itself what it takes
        return "\n".join([refused[0], *(line for line in lines if line.startswith("File "))])
    kept = [line for line in lines if not line.startswith(("Failed in", "During:", "For more information"))]
    said = [sentence for pattern, sentence in PLAIN.items() if re.search(pattern, text)]
    return "\n".join([*said, f"{type(error).__name__}: {kept[0] if kept else ''}", *kept[1 : 3 if said else 8]])


def _line_of(error, answer):
    """The line of an answer in which it raised."""
    code = getattr(function_of(answer), "__code__", None)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if code and frame.filename == code.co_filename
    ]
    return f"\nline {frames[-1].lineno}: {frames[-1].line}" if frames else ""
