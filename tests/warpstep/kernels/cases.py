"""A random kernel, finished: its source as a tree, its launch and arguments, and how to judge what it wrote."""

import linecache
import math
from dataclasses import dataclass, field

import numpy as np
from numba.cuda.np import numpy_support


@dataclass
class Argument:
    """An array argument.

    Attributes
    ----------
    data : array
        Contents before the launch.
    view : tuple of slices or None
        The part of it that is passed to the kernel.
    error : float
        Largest error of a float in it after the launch.
    written : bool
        True if the kernel writes to it.
    """

    name: str
    data: np.ndarray
    view: tuple | None = None
    error: float = 0.0
    written: bool = False

    def host(self):
        """(a copy of the data, the part that is passed)."""
        return self._parts(self.data.copy(order="K"))

    def on(self, module):
        """The same on a device."""
        return self._parts(module.to_device(self.data.copy(order="K")))

    def _parts(self, whole):
        return whole, whole if self.view is None else whole[self.view]

    @property
    def shape(self):
        return self.host()[1].shape

    @property
    def type(self):
        return numpy_support.from_dtype(self.data.dtype)


@dataclass
class Case:
    """A kernel with everything needed to launch it and to judge what it wrote.

    Attributes
    ----------
    functions : str
        Source of the device functions.
    prologue : list of (name, expression, Numba type)
        The thread indices that the kernel starts with.
    shared : list of (name, shape: int or tuple, dtype name)
    nodes : list of Code, Together, Choice and Repeat
        The kernel's body.
    scalars : list of (name, value)
        The arguments after the arrays.
    """

    name: str
    grid: tuple = (1, 1, 1)
    block: tuple = (1, 1, 1)
    functions: str = ""
    nodes: list = field(default_factory=list)
    arguments: list = field(default_factory=list)
    scalars: list = field(default_factory=list)
    prologue: list = field(default_factory=list)
    shared: list = field(default_factory=list)

    @property
    def source(self):
        names = [a.name for a in self.arguments] + [name for name, _ in self.scalars]
        lines = [self.functions] if self.functions else []
        lines.append(f"def kernel({', '.join(names)}):")
        lines += [f"    {name} = {expression}" for name, expression, _ in self.prologue]
        lines += [f"    {name} = cuda.shared.array({shape}, np.{dtype})" for name, shape, dtype in self.shared]
        for node in self.nodes:
            lines += node.text(1)
        return "\n".join(lines) + "\n"

    def function(self, module):
        """The kernel as a plain function, where ``cuda`` in the source means ``module``."""
        namespace = {"cuda": module, "np": np, "math": math}
        file = f"<{self.name}>"
        source = self.source
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        exec(compile(source, file, "exec"), namespace)
        return namespace["kernel"]

    def run(self, module):
        """Launch on a device; give its arrays as they are afterwards, by name."""
        arrays = [a.on(module) for a in self.arguments]
        launch = module.jit(self.function(module))[self.grid, self.block]
        launch(*(part for _, part in arrays), *(value for _, value in self.scalars))
        return {a.name: whole.copy_to_host() for a, (whole, _) in zip(self.arguments, arrays, strict=True)}

    def differences(self, found, expected):
        """What two runs disagree about: a list of (array, index, found, expected).

        Either run may be off by the error bound, so floats may differ by twice that.
        """
        result = []
        for argument in self.arguments:
            ours, theirs = found[argument.name], expected[argument.name]
            result += compare(argument.name, ours, theirs, 2.0 * argument.error)
        return result

    def describe(self, name, at):
        """More about an element that differs."""
        return ""


def compare(name, found, expected, error=0.0):
    """Elements of two arrays that differ: floats by more than ``error``, all else by a bit."""
    same = found == expected
    if found.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            same |= (np.abs(found - expected) <= error) | (np.isnan(found) & np.isnan(expected))
    places = (tuple(int(i) for i in at) for at in np.argwhere(~same))
    return [(name, at, found[at], expected[at]) for at in places]


# The nodes of a body; ``text(indent)`` gives the lines of source.


def _indented(indent, line):
    return "    " * indent + line


def _texts(nodes, indent):
    return [line for node in nodes for line in node.text(indent)]


class Code:
    """Statements that threads run on their own.

    ``before`` and ``after``: {name: Numba type} of the variables that threads have then.
    """

    def __init__(self, lines, before, after):
        self.lines, self.before, self.after = lines, before, after

    def text(self, indent):
        return [_indented(indent, line) for line in self.lines]


class Together:
    """One statement that the threads of a block or warp run together.

    ``what`` says which one, by the names of the variables in it: ("barrier",), ("count", mode, predicate),
    ("shuffle", mode, value, operand), ("vote", mode, predicate) or ("match", value). ``target`` is None or the
    (name, type) of the variable that gets the result. ``group`` says who takes part: None for the block, "mask" for the
    warp, "group" for the lanes that the variable of that name names.
    """

    def __init__(self, line, what, target=None, group=None):
        self.line, self.what, self.target, self.group = line, what, target, group

    def text(self, indent):
        return [_indented(indent, self.line)]


class Choice:
    """A branch that all threads of a block, or of a group of lanes, take alike; the condition is a variable."""

    def __init__(self, condition, then, otherwise):
        self.condition, self.then, self.otherwise = condition, then, otherwise

    def text(self, indent):
        lines = [_indented(indent, f"if {self.condition}:"), *_texts(self.then, indent + 1)]
        if self.otherwise:
            lines += [_indented(indent, "else:"), *_texts(self.otherwise, indent + 1)]
        return lines


class Repeat:
    """A loop that all threads run ``count`` times."""

    def __init__(self, variable, count, body):
        self.variable, self.count, self.body = variable, count, body

    def text(self, indent):
        head = _indented(indent, f"for {self.variable} in range({self.count}):")
        return [head, *_texts(self.body, indent + 1)]
