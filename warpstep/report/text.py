"""A trace as plain text, for ``print(trace)``."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from warpstep.report import facts
from warpstep.report.table import WIDTH
from warpstep.tracing.records import Finding, Recording, check_trace

__all__ = ["render", "render_findings", "wrapped"]

MIN_CODE = 28  # columns that the source gets at least


def render(trace: Recording) -> str:
    """Write a trace as text of at most 120 columns (as far as names and figures allow).

    The status comes first, then findings, then the kernel's source beside the counts of its accesses. Lines of device
    functions, branches, barriers, arithmetic, coverage and advice follow if there are any, then traffic and occupancy.

    Raises
    ------
    TypeError
        If ``trace`` is something else.
    """
    check_trace("trace", trace)
    parts = [
        _head(trace),
        _findings(trace, trace.findings),
        _listing(trace),
        *(table.text() for table in facts.tables(trace)),
        _remarks(f"Advice: {facts.SLOW}", trace.advice, trace),
        _totals(trace),
    ]
    return "\n\n".join(part for part in parts if part)


def render_findings(trace: Recording, findings: Sequence[Finding]) -> str:
    """Write findings of a trace without the rest of it: the launch and its file, then each finding with its cure."""
    place = f" at {trace.filename}:{trace.source[0]}" if trace.source[0] else f" in {trace.filename}"
    return f"{facts.launch(trace)}{place}\n{_findings(trace, findings)}"


def _findings(trace, findings):
    return _remarks(f"{facts.plural(len(findings), 'finding').upper()}: {facts.WRONG}", findings, trace)


def _head(trace):
    lines = [f"{facts.status(trace)}: {facts.launch(trace)}", *wrapped("; ".join(facts.about(trace)), "  ")]
    return "\n".join([*lines, *(f"  {line}" for line in trace.stopped.splitlines())])


def wrapped(text: str, indent: str, first: str | None = None) -> list[str]:
    """Wrap a text into lines that are indented, the first one by ``first`` if that is given."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent)


def _remarks(title, records, trace):
    """Findings or advice, those with one cure together."""
    lines = [title] if records else []
    for cure, places in facts.grouped(records):
        for place in places:
            first = place[0]
            head = "  " + ", ".join(filter(None, [first.kind, facts.location(first, trace)]))
            lines.append(head + (f":  {first.code}" if first.code else ""))
            for record in place:
                lines += wrapped(record.message + facts.involved(record, trace), "      ")
        lines += wrapped(cure, "         ", "      -> ")
    return "\n".join(lines)


# -- the source beside the counts ----------------------------------------------------------------------------------


def _listing(trace):
    lines, outside = facts.listing(trace), facts.elsewhere(trace)
    every = [*lines, *(line for _, line in outside)]
    if not every:
        return ""
    header, counts = _counts([access for line in every for access in line.accesses])
    margin = 2 + max(2, *(len(str(line.number or "")) for line in every)) + 2
    longest = max(len("source"), *(len(line.code) for line in every))
    width = max(MIN_CODE, min(longest, WIDTH - margin - len(header) - 2))
    text = [f"{'line':>{margin - 2}}  {'source':<{width}}  {header}".rstrip()]
    text += [row for line in lines for row in _rows(line, margin, width, counts)]
    before = None
    for name, line in outside:
        if name != before:
            text.append(f"{'':{margin}}-- {name} --")
        text += _rows(line, margin, width, counts)
        before = name
    return "\n".join([*text, *_legend(trace)])


def _counts(accesses):
    """The header of the counts, and the counts of each access by its identity."""
    columns = []
    for name, cells in facts.columns(accesses).items():
        width = max(map(len, [name, *cells]))
        columns.append([cell.ljust(width) if name == "access" else cell.rjust(width) for cell in [name, *cells]])
    header, *rows = ["  ".join(row) for row in zip(*columns, strict=True)] or [""]
    return header, {id(access): row for access, row in zip(accesses, rows, strict=True)}


def _rows(line, margin, width, counts) -> Iterable[str]:
    """The rows of one line of the source: one for each access, or more for wrapped code."""
    marks = "!" * line.finding + ">" * line.worst
    right = [counts[id(access)] for access in line.accesses]
    room = width if right else WIDTH - margin  # without counts the code has the whole row
    indent = " " * min(len(line.code) - len(line.code.lstrip()) + 4, room // 2)
    code = textwrap.wrap(line.code, room, subsequent_indent=indent) or [""]
    left = f"{marks:<2}{line.number or '':>{margin - 4}}"
    for part, count in zip_longest(code, right, fillvalue=""):
        yield f"{left:<{margin}}{part:<{width}}  {count}".rstrip()
        left = ""


def _legend(trace):
    worst = facts.worst_place(trace)
    if worst is None:
        return []
    chosen = [a for a in trace.accesses if (a.filename, a.line) == worst]
    parts = []
    for unit in facts.UNITS:
        total = sum(facts.cost(a) for a in chosen if facts.unit(a) == unit)
        more = sum(facts.wasted(a) for a in chosen if facts.unit(a) == unit)
        if more > 0:
            parts.append(f"{more:,} of {total:,} {unit} more than needed")
    return [f">  line {worst[1]} wastes most: {' and '.join(parts)}"]


def _totals(trace):
    totals = facts.totals(trace)
    widths = [max(len(fact[i]) for fact in totals) for i in (0, 1)]
    lines = []
    for name, figure, remark in totals:
        left = f"{name:<{widths[0]}}  {figure:>{widths[1]}}  "
        lines += wrapped(remark, " " * len(left), left)
    return "\n".join(lines)
