"""Two traces side by side."""

import difflib
from collections.abc import Callable, Iterator
from html import escape

from warpstep.report import facts, html, text
from warpstep.report.table import Table
from warpstep.tracing.records import OPERATIONS, SPACES, Access, Recording, check_trace

__all__ = ["Comparison", "compare"]


class Comparison:
    """Two traces side by side: text when printed, HTML in a notebook.

    Attributes
    ----------
    a, b : Trace
    names : tuple of 2 str
        What the two are called: their kernels' names, or "first" and "second" for launches of one kernel.
    tables : list of Table
        Totals, and, if the kernels have lines in common, the accesses by line.
    """

    def __init__(self, a: Recording, b: Recording):
        self.a, self.b = a, b
        self.names = (a.kernel, b.kernel) if a.kernel != b.kernel else ("first", "second")
        self.tables = [table for table in (_totals(a, b, self.names), _lines(a, b, self.names)) if table.rows]

    def __str__(self) -> str:
        heads = []
        for name, trace in zip(self.names, (self.a, self.b), strict=True):
            about = f"{facts.status(trace)}; {'; '.join(facts.about(trace))}"
            name = "" if name == trace.kernel else f"{name}: "
            heads += text.wrapped(about, "   ", f"{name}{facts.launch(trace)}  ")
        return "\n\n".join(["\n".join(heads), *(table.text() for table in self.tables)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads = ""
        for name, trace in zip(self.names, (self.a, self.b), strict=True):
            name = "" if name == trace.kernel else f"{name}: "
            heads += html.heading(trace, name + facts.status(trace))
        tables = "".join(f"<p><b>{escape(t.title)}</b></p>{html.scrolling(t)}" for t in self.tables)
        return html.framed(heads + tables)


def compare(first: Recording, second: Recording) -> Comparison:
    """Lay two traces side by side, with the ratio of the second to the first.

    Memory accesses are summed by space and operation; arithmetic, findings, traffic and occupancy follow. Lines are
    compared if the kernels share some of their text: two launches of one kernel, or a kernel before and after a change.
    A changed line stands beside the line that replaces it.

    Parameters
    ----------
    first, second : Trace

    Raises
    ------
    TypeError
        If one is something else.

    Examples
    --------
    >>> @cuda.jit
    ... def scale(x, out):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         out[i] = 2 * x[i]
    >>> x, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    >>> few, many = gpukit.trace(scale[4, 256], x, out), gpukit.trace(scale[8, 128], x, out)
    >>> comparison = gpukit.compare(few, many)  # prints as a table
    """
    check_trace("first", first)
    check_trace("second", second)
    return Comparison(first, second)


# -- totals --------------------------------------------------------------------------------------------------------


def _totals(a, b, names):
    rows = []
    for name, measure in _measures():
        values = measure(a), measure(b)
        if any(values):
            rows.append([name, *map(_written, values), _times(*values)])
    rows.append(["occupancy is limited by", a.occupancy.limited_by, b.occupancy.limited_by, ""])
    return Table(["", *names, "ratio"], rows, "Totals", words=("",))


def _measures() -> Iterator[tuple[str, Callable[[Recording], float]]]:
    """(name, function of a trace) for each row of the totals."""
    for space in ("shared", *(s for s in SPACES if s != "shared")):
        unit = "wavefronts" if space == "shared" else "sectors"
        for op in OPERATIONS:
            yield f"{space} {op}: requests", _sum(space, op, lambda access: access.requests)
            yield f"{space} {op}: {unit}", _sum(space, op, facts.cost)
            yield f"{space} {op}: {unit} more than needed", _sum(space, op, facts.wasted)
    for name, title in facts.ARITHMETIC.items():
        yield title, lambda t, name=name: sum(getattr(o, name) for o in t.operations)
    yield "branches: warps split", lambda t: sum(branch.split for branch in t.branches)
    yield "barriers passed", lambda t: sum(barrier.passed for barrier in t.barriers)
    yield "bytes needed", lambda t: t.traffic.needed_bytes
    yield "bytes moved", lambda t: t.traffic.moved_bytes
    yield "intensity, FLOP/B", lambda t: float(t.traffic.intensity)
    yield "shared memory per block, bytes", lambda t: t.occupancy.shared_bytes
    yield "occupancy, %", lambda t: 100.0 * t.occupancy.fraction
    yield "findings", lambda t: len(t.findings)


def _sum(space, op, count: Callable[[Access], int]):
    return lambda t: sum(count(access) for access in t.accesses if (access.space, access.op) == (space, op))


def _written(value):
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


def _times(one, other):
    if not one:
        return "new"
    if not other:
        return "gone"
    return "=" if one == other else facts.format_ratio(other, one)


# -- lines ---------------------------------------------------------------------------------------------------------


def _lines(a, b, names):
    """The accesses by line; no rows unless the kernels have a line with accesses in common."""
    header = ["line", "line", "code", "access", *names, "ideal", "ideal", "ratio"]
    pairs = _pairs(*(list(facts.by_place(trace.accesses).values()) for trace in (a, b)))
    rows = []
    if any(one and other and one[0].code == other[0].code for one, other in pairs):
        rows = [row for one, other in pairs for row in _line(one, other)]
    title = f"By line, {' then '.join(names)}: wavefronts in shared memory, sectors elsewhere"
    return Table(header, rows, title, words=("code", "access"), code=("code",))


def _pairs(a, b):
    """Pair lines with the same code, and those in the same place between them; [] stands for no partner."""
    codes = [[line[0].code for line in lines] for lines in (a, b)]
    pairs = []
    for _, a0, a1, b0, b1 in difflib.SequenceMatcher(None, *codes, autojunk=False).get_opcodes():
        ones, others = a[a0:a1], b[b0:b1]
        if len(ones) == len(others):
            pairs += zip(ones, others, strict=True)
        else:
            pairs += [(one, []) for one in ones] + [([], other) for other in others]
    return pairs


def _line(one, other):
    """The rows of two lines: one for each access of either."""
    keys = {}
    for side, accesses in enumerate((one, other)):
        for access in accesses:
            keys.setdefault((access.space, facts.target(access)), [None, None])[side] = access
    places = [f"{line[0].line}" if line else "" for line in (one, other)]
    codes = list(dict.fromkeys(line[0].code for line in (one, other) if line))
    codes[1:] = [f"→ {code}" for code in codes[1:]]
    rows = []
    for (_, target), pair in keys.items():
        counts = [f"{facts.cost(x):,}" if x else "" for x in pair]
        ideal = [f"{facts.ideal_cost(x):,}" if x else "" for x in pair]
        times = _times(*(facts.cost(x) if x else 0 for x in pair))
        rows.append([*places, codes.pop(0) if codes else "", target, *counts, *ideal, times])
        places = ["", ""]
    return rows + [["", "", code, *[""] * 6] for code in codes]
