"""Two traces side by side."""

import difflib
from html import escape

from warpstep.report import html as page
from warpstep.report import sections, text
from warpstep.report.sections import Section

__all__ = ["Comparison", "compare"]

SPACES = {"shared": "wavefronts", "global": "sectors", "local": "sectors"}
OPS = ("load", "store", "atomic")


class Comparison:
    """Two traces side by side: text when printed, HTML in a notebook.

    Attributes
    ----------
    a, b : warpstep.tracing.records.Recording
    tables : list of warpstep.report.sections.Section
        Totals, and, where the kernels have lines in common, the accesses by line.
    """

    def __init__(self, a, b):
        self.a, self.b = a, b
        self.tables = [section for section in (_totals(a, b), _lines(a, b)) if section.rows]

    def __str__(self):
        heads = []
        for name, recording in (("a", self.a), ("b", self.b)):
            about = "; ".join(sections.about(recording))
            heads += text.wrapped(about, "   ", f"{name}  {sections.launch(recording)}  ")
        parts = ["\n".join([section.title, *text.table(section, "  ")]) for section in self.tables]
        return "\n\n".join(["\n".join(heads), *parts])

    __repr__ = __str__

    def _repr_html_(self):
        heads = "".join(
            f'<div class="head"><b>{name}</b> <span class="name">{escape(sections.launch(recording))}</span> '
            f'<span class="soft">{escape(" · ".join(sections.about(recording)))}</span></div>'
            for name, recording in (("a", self.a), ("b", self.b))
        )
        tables = "".join(f'<p class="heading">{escape(s.title)}</p>{page.table(s)}' for s in self.tables)
        return page.framed(heads + tables)


def compare(a, b):
    """Lay two traces side by side, with the ratio of b to a.

    Memory accesses are summed by space and operation; arithmetic, findings, traffic and occupancy follow. Lines are
    compared where the kernels share some of their text: two launches of one kernel, or a kernel before and after a
    change. A line that was changed is shown with what stands in its place.

    Parameters
    ----------
    a, b : warpstep.tracing.records.Recording

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError
        If ``a`` or ``b`` is something else.
    """
    sections.check("a", a)
    sections.check("b", b)
    return Comparison(a, b)


# -- totals -----------------------------------------------------------------------------------------


def _totals(a, b):
    rows = []
    for name, value in _measures():
        one, other = value(a), value(b)
        if one or other:
            rows.append([name, _written(one), _written(other), _times(one, other)])
    rows.append(["occupancy is limited by", a.occupancy.limited_by, b.occupancy.limited_by, ""])
    return Section("Totals", ["", "a", "b", "b / a"], rows, ("",))


def _measures():
    """(name, function of a recording) for each row of the totals."""
    for space, unit in SPACES.items():
        for op in OPS:
            yield f"{space} {op}: requests", _sum(space, op, lambda access: access.requests)
            yield f"{space} {op}: {unit}", _sum(space, op, sections.cost)
            yield f"{space} {op}: {unit} more than needed", _sum(space, op, sections.wasted)
    for name, title in sections.ARITHMETIC.items():
        yield title, lambda r, name=name: sum(getattr(o, name) for o in r.operations)
    yield "branches: warps split", lambda r: sum(branch.split for branch in r.branches)
    yield "barriers passed", lambda r: sum(barrier.passed for barrier in r.barriers)
    yield "bytes needed", lambda r: r.traffic.needed_bytes
    yield "bytes moved", lambda r: r.traffic.moved_bytes
    yield "intensity, FLOP/B", lambda r: float(r.traffic.intensity)
    yield "shared memory per block, bytes", lambda r: r.occupancy.shared_bytes
    yield "occupancy, %", lambda r: 100.0 * r.occupancy.fraction
    yield "findings", lambda r: len(r.findings)


def _sum(space, op, count):
    return lambda r: sum(count(access) for access in r.accesses if (access.space, access.op) == (space, op))


def _written(value):
    return f"{value:.3g}" if isinstance(value, float) else sections.whole(value)


def _times(one, other):
    if not one:
        return "new"
    if not other:
        return "gone"
    return "=" if one == other else sections.ratio(other, one)


# -- lines ------------------------------------------------------------------------------------------


def _lines(a, b):
    """The accesses by line; a Section without rows if the kernels have no line with accesses in common."""
    header = ["line a", "line b", "code", "access", "a", "b", "ideal a", "ideal b", "b / a"]
    pairs = _pairs(_by_line(a), _by_line(b))
    rows = []
    if any(one and other and one[0].code == other[0].code for one, other in pairs):
        for one, other in pairs:
            rows += _line(one, other)
    return Section("By line: wavefronts in shared memory, sectors elsewhere", header, rows, ("code", "access"))


def _by_line(recording):
    """The accesses of each line, in the order of the source."""
    lines = {}
    for access in recording.accesses:
        lines.setdefault((access.filename, access.line), []).append(access)
    return list(lines.values())


def _pairs(a, b):
    """Lines with the same code, and, between them, lines in the same place; None for a line without a partner."""
    codes = [[line[0].code for line in lines] for lines in (a, b)]
    pairs = []
    for _, a0, a1, b0, b1 in difflib.SequenceMatcher(None, *codes, autojunk=False).get_opcodes():
        ones, others = a[a0:a1], b[b0:b1]
        if len(ones) == len(others):
            pairs += zip(ones, others, strict=True)
        else:
            pairs += [(one, None) for one in ones] + [(None, other) for other in others]
    return pairs


def _line(one, other):
    """The rows of two lines: one for each access of either."""
    keys = {}
    for side, accesses in enumerate((one or [], other or [])):
        for access in accesses:
            keys.setdefault((access.space, sections.target(access)), [None, None])[side] = access
    places = [f"{line[0].line}" if line else "" for line in (one, other)]
    codes = list(dict.fromkeys(line[0].code for line in (one, other) if line))
    codes[1:] = [f"→ {code}" for code in codes[1:]]
    rows = []
    for (_, target), pair in keys.items():
        counts = [sections.whole(sections.cost(x)) if x else "" for x in pair]
        ideal = [sections.whole(sections.ideal_cost(x)) if x else "" for x in pair]
        times = _times(*(sections.cost(x) if x else 0 for x in pair))
        rows.append([*places, codes.pop(0) if codes else "", target, *counts, *ideal, times])
        places = ["", ""]
    return rows + [["", "", code, "", "", "", "", "", ""] for code in codes]
