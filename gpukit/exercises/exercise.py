"""What an exercise is: a specification in NumPy, inputs, solutions, and wrong answers with what to say about each.

A solution marks its hole, from which the starter is made::

    # HOLE about 2 lines: add the elements of the threads that have one
    #| out[i] = x[i] + y[i]
    if i < out.size:
        out[i] = x[i] + y[i]
    # END

Lines after ``#|`` stand in the starter instead of the solution; without any it is ``...``.
"""

import inspect
import itertools
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOLE = re.compile(r"^( *)# HOLE ?(.*)\n((?: *#\|.*\n)*)((?:.*\n)*?) *# END *\n", re.MULTILINE)


# -- inputs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Out:
    """An array that the kernel has to fill: it comes full of poison, and no element may stay so.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype
    """

    shape: int | tuple[int, ...]
    dtype: Any = np.float32

    def make(self, expected: np.ndarray) -> np.ndarray:
        """Make the array for a launch; nothing in it equals what is expected."""
        array = np.empty(self.shape, self.dtype)
        if array.dtype == bool:
            array[...] = ~expected
        elif array.dtype.kind in "fc":
            array[...] = np.nan
        else:
            array.view(np.uint8)[...] = 0xA5
        return array


@dataclass(frozen=True)
class InOut:
    """An array that the kernel reads and changes. The specification gets it as it was before the launch."""

    array: np.ndarray

    def make(self, expected: np.ndarray) -> np.ndarray:
        return self.array.copy()


@dataclass(frozen=True)
class Case:
    """One launch of the answer, or one call of it where the answer is a function.

    Parameters
    ----------
    args : tuple
        Arrays, numbers, `Out` and `InOut`, in the order of the kernel's parameters.
    grid, block : int or tuple of int
    shared_bytes : int
        Dynamic shared memory.
    label : str
        What the verdict calls it: "n = 1000". The launch is named as well.
    counted : bool
        Whether `KernelExercise.limits` hold for it. They are for full tiles; a ragged edge may cost more.
    """

    args: tuple
    grid: int | tuple[int, ...] = 1
    block: int | tuple[int, ...] = 1
    shared_bytes: int = 0
    label: str = ""
    counted: bool = True


@dataclass(frozen=True)
class Wrong:
    """A wrong answer, and what the learner who wrote it needs to hear.

    Parameters
    ----------
    says : str
        One or two sentences: what happens, and why.
    answer : mapping of str to str, or the answer itself
        Edits of the first solution, each of text that occurs once in it; or a kernel, a function, a value.
    reason : str
        Why it must be refused: one of `gpukit.exercises.REASONS`, or "cost: " and the name of a limit.
    """

    says: str
    answer: Any
    reason: str = "wrong"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a result that has the right value.

    Parameters
    ----------
    kind : str
        One of `gpukit.exercises.REASONS`, "race" for example, or "cost: " and what there is too much of.
    message : str
        What was found.
    """

    kind: str
    message: str
    count: int = 1


@dataclass(frozen=True)
class Reviewed:
    """A result that `FunctionExercise.call` has looked at: the value to compare, and the faults."""

    value: Any
    faults: Sequence[Fault] = ()


# -- exercises ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exercise:
    """What all kinds of exercise have.

    Parameters
    ----------
    name : str
        The chapter's number and a word: "04-pad".
    task : str
        One sentence in the imperative.
    spec : callable
        The specification: a plain NumPy function of the arguments that are not `Out`. It returns what the outputs must
        be: one array, or a tuple of them.
    cases : callable
        Yields `Case` from a ``numpy.random.Generator``: random values, ragged sizes, one element, values that expose
        an order or a missing step, launches that the page does not show.
    solutions : sequence
        At least two that differ. The first is the one that is shown, has the hole, and sets par. Others may be edits
        of it, as for `Wrong`.
    wrong : sequence of Wrong
        At least six.
    hints : sequence of str
        From a nudge to nearly the solution.
    why : str
        Why the solution is as it is.
    rtol : float
        Tolerance for floats, relative to the largest magnitude expected.
    """

    name: str
    task: str
    spec: Callable
    cases: Callable[[np.random.Generator], Iterator[Case]]
    solutions: Sequence[Any]
    wrong: Sequence[Wrong]
    hints: Sequence[str]
    why: str
    rtol: float = 1e-5

    @property
    def chapter(self) -> str:
        """str : The number in front of the name, "05b"."""
        return self.name.split("-")[0]

    @property
    def starter(self) -> str:
        """str : What stands in the notebook: the first solution with a hole."""
        return HOLE.sub(_unfilled, self._marked())

    @property
    def solved(self) -> str:
        """str : The same with the solution in place of the hole."""
        return HOLE.sub(lambda hole: hole[4], self._marked())

    @property
    def answers(self) -> list[tuple[Wrong, Any]]:
        """list of (Wrong, answer) : The wrong answers, edits applied."""
        return [(wrong, self._edited(wrong.answer)) for wrong in self.wrong]

    @property
    def accepted(self) -> list[Any]:
        """list : The solutions, edits applied."""
        return [self._edited(solution) for solution in self.solutions]

    def all_cases(self) -> list[Case]:
        """Make the cases: the same in every process, and on every machine."""
        return list(self.cases(np.random.default_rng(list(self.name.encode()))))

    def untouched(self, answer: Any) -> bool:
        """Tell whether an answer is the starter as it came."""
        if answer is None:
            return True
        text = source_of(answer)
        return text is not None and _code_of(text) == _code_of(self.starter)

    def made_from(self, text: str) -> Any:
        """Make an answer from source text, as a notebook cell would."""
        return _define(text, inspect.unwrap(function_of(self.solutions[0])), self.name)

    def _marked(self):
        text = source_of(self.solutions[0])
        assert text is not None
        return text

    def _edited(self, answer):
        if not isinstance(answer, Mapping):
            return answer
        text = self.solved
        for old, new in answer.items():
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} occurs {text.count(old)} times in the solution, not once")
            text = text.replace(old, new)
        return self.made_from(text)


@dataclass(frozen=True)
class KernelExercise(Exercise):
    """The answer is a kernel, or a device function from which ``make`` builds one.

    Parameters
    ----------
    limits : mapping of str to float
        Counts that the answer may not exceed, as multiples of the first solution's: {"global sectors": 1.0}. The names
        are those of `gpukit.exercises.METRICS`.
    make : callable, optional
        Makes the kernel that is launched from the answer.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    make: Callable | None = None


@dataclass(frozen=True)
class FunctionExercise(Exercise):
    """The answer is a function of the host; what it returns for each case is compared with the specification.

    Parameters
    ----------
    call : callable, optional
        Takes the answer and the arguments and returns what is compared, if that is not the function's result. A
        `Reviewed` value has its faults with it.
    """

    call: Callable | None = None


@dataclass(frozen=True)
class AnswerExercise(Exercise):
    """The answer is a value: a prediction. ``spec()`` computes it, so that nobody has typed it.

    Parameters
    ----------
    variable : str
        What the page calls it; the starter is ``variable = None``.
    """

    cases: Callable = lambda rng: iter((Case(()),))
    solutions: Sequence[Any] = ()
    wrong: Sequence[Wrong] = ()
    hints: Sequence[str] = ()
    why: str = ""
    variable: str = "my_answer"

    @property
    def starter(self) -> str:
        return f"{self.variable} = None"

    @property
    def solved(self) -> str:
        return f"{self.variable} = {self.spec()!r}"

    def untouched(self, answer: Any) -> bool:
        return answer is None

    def made_from(self, text: str) -> Any:
        found: dict[str, Any] = {}
        exec(text, {"np": np}, found)
        return found[self.variable]

    def _edited(self, answer):
        return answer


# -- sources --------------------------------------------------------------------------------------------------------


def function_of(answer: Any) -> Any:
    """Return the Python function behind a kernel, a device function or a plain function."""
    return getattr(answer, "py_func", answer)


def source_of(answer: Any) -> str | None:
    """Return the source of an answer without its indentation; None where there is none."""
    try:
        return textwrap.dedent(inspect.getsource(function_of(answer)))
    except (OSError, TypeError):
        return None


def _unfilled(hole):
    indent, task, given = hole[1], hole[2], hole[3]
    lines = [line.split("#|", 1)[1].removeprefix(" ") for line in given.splitlines()] or ["..."]
    task = task[:1].upper() + task[1:]
    note = textwrap.wrap(task, 96 - len(indent), initial_indent="# ", subsequent_indent="# ")
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in [*note, *lines])


def _code_of(text):
    """The statements of a function, without its comments, blank lines and the name it was given."""
    lines = (re.sub(r"#.*", "", line).rstrip() for line in text.splitlines())
    return [line for line in lines if line]


_numbers = itertools.count()


def _define(text, like, name):
    """Run a definition in the namespace of another function, with lines that messages can name."""
    filename = f"<{name}, answer {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = dict(like.__globals__)
    before = dict(namespace)
    exec(compile(text, filename, "exec"), namespace)
    made = [value for key, value in namespace.items() if value is not before.get(key) and key != "__builtins__"]
    return made[-1]
