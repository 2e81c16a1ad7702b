"""A trace as plain text: what ``print(trace)`` shows."""

import textwrap
from itertools import zip_longest

from warpstep.report import sections

__all__ = ["report"]

WIDTH = 120  # columns of a report
SHORTEST_CODE = 28  # columns that the source gets at least


def report(recording):
    """A trace as text of at most 120 columns (as far as names and figures allow).

    Findings come first; then the kernel's source beside the counts of its accesses; then, each only where there is
    something to say, lines of device functions, branches, barriers, arithmetic, coverage, advice, traffic, occupancy.

    Parameters
    ----------
    recording : warpstep.tracing.records.Recording

    Returns
    -------
    str

    Raises
    ------
    TypeError
        If ``recording`` is something else.
    """
    sections.check("recording", recording)
    parts = [
        _head(recording),
        _findings(recording),
        _listing(recording),
        *(_section(section) for section in sections.tables(recording)),
        _advice(recording),
        _totals(recording),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(recording):
    facts = "; ".join(sections.about(recording))
    return "\n".join([sections.launch(recording), *wrapped(facts, "  ")])


def wrapped(text, indent, first=None):
    """The lines of a text, all after the first one indented."""
    first = indent if first is None else first
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent)


# -- findings and advice ----------------------------------------------------------------------------


def _findings(recording):
    title = f"{sections.plural(len(recording.findings), 'finding').upper()}: the result is wrong, or will be some day"
    return _remarks(title, recording.findings, recording, lambda f: f" ({sections.involved(f, recording)})")


def _advice(recording):
    return _remarks("Advice: slow rather than wrong", recording.advice, recording, lambda advice: "")


def _remarks(title, records, recording, more):
    """Findings or advice, those with one cure together."""
    lines = [title] if records else []
    for cure, places in sections.grouped(records):
        for place in places:
            lines.append(_title(place[0], recording))
            for record in place:
                lines += wrapped(record.message + more(record), "      ")
        lines += wrapped(cure, "         ", "      -> ")
    return "\n".join(lines)


def _title(record, recording):
    title = "  " + ", ".join(filter(None, [record.kind, sections.where(record, recording)]))
    return title + (f":  {record.code}" if record.code else "")


# -- the source beside the counts -------------------------------------------------------------------


def _listing(recording):
    lines, outside = sections.listing(recording), sections.elsewhere(recording)
    shown = [*lines, *(line for _, line in outside)]
    if not shown:
        return ""
    header, counts = _counts([access for line in shown for access in line.accesses])
    margin = _margin(shown)
    longest = max(len("source"), *(len(line.code) for line in shown))
    width = max(SHORTEST_CODE, min(longest, WIDTH - margin - len(header) - 2))
    text = [f"{'line':>{margin - 2}}  {'source':<{width}}  {header}".rstrip()]
    text += [row for line in lines for row in _rows(line, margin, width, counts)]
    before = None
    for place, line in outside:
        name = place.partition(" of ")[2]
        if name != before:
            text.append(f"{'':{margin}}-- {name or 'outside of the kernel'} --")
        text += _rows(line, margin, width, counts)
        before = name
    return "\n".join([*text, *_legend(recording)])


def _margin(lines):
    """Columns for the marks, the number of the line, and the blanks after them."""
    return 2 + max(2, *(len(str(line.number or "")) for line in lines)) + 2


def _counts(accesses):
    """The header, and by the identity of each access its counts; columns that say nothing are left out."""
    columns = {
        "access": [sections.target(a) for a in accesses],
        "requests": [sections.whole(a.requests) for a in accesses],
        "wavefronts": [sections.whole(a.wavefronts) if a.space == "shared" else "" for a in accesses],
        "sectors": [sections.whole(a.sectors) if a.space != "shared" else "" for a in accesses],
        "ideal": [sections.whole(sections.ideal_cost(a)) for a in accesses],
        "conflicts": [sections.whole(a.bank_conflicts) if a.bank_conflicts else "" for a in accesses],
        "lanes": [sections.lanes(a.active_lanes) for a in accesses],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    aligned = []
    for name, cells in columns.items():
        width = max(map(len, [name, *cells]))
        aligned.append([cell.ljust(width) if name == "access" else cell.rjust(width) for cell in [name, *cells]])
    header, *rows = ["  ".join(row) for row in zip(*aligned, strict=True)] or [""]
    return header, {id(access): row for access, row in zip(accesses, rows, strict=True)}


def _rows(line, margin, width, counts):
    """The rows of one line of the source: as many as its accesses need, or its code when it is wrapped."""
    marks = "!" * line.finding + ">" * line.worst
    right = [counts[id(access)] for access in line.accesses]
    room = width if right else WIDTH - margin  # nothing beside it: the code has the whole row
    indent = " " * min(len(line.code) - len(line.code.lstrip()) + 4, room // 2)
    code = textwrap.wrap(line.code, room, subsequent_indent=indent) or [""]
    left = f"{marks:<2}{line.number or '':>{margin - 4}}"
    for part, count in zip_longest(code, right, fillvalue=""):
        yield f"{left:<{margin}}{part:<{width}}  {count}".rstrip()
        left = ""


def _legend(recording):
    worst = sections.worst_place(recording)
    if worst is None:
        return []
    chosen = [a for a in recording.accesses if (a.filename, a.line) == worst]
    parts = []
    for unit in ("wavefronts", "sectors"):
        mine = [a for a in chosen if sections.unit(a) == unit]
        total, ideal = sum(map(sections.cost, mine)), sum(map(sections.ideal_cost, mine))
        if total > ideal:
            parts.append(f"{sections.whole(total - ideal)} of {sections.whole(total)} {unit} more than needed")
    return [f">  line {worst[1]} wastes most: {' and '.join(parts)}"]


# -- tables and totals ------------------------------------------------------------------------------


def _section(section):
    """A table; the texts of its widest column of words are wrapped to fit."""
    return "\n".join([section.title, *table(section, "  ")])


def table(section, indent=""):
    """The lines of a `sections.Section`."""
    rows = [section.header, *section.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = WIDTH - len(indent) - 2 * (len(widths) - 1)
    if sum(widths) > room and section.words:
        words = [i for i, name in enumerate(section.header) if name in section.words]
        widest = max(words, key=lambda i: widths[i])
        widths[widest] = max(SHORTEST_CODE, widths[widest] - (sum(widths) - room))
    left = [name in section.words for name in section.header]
    lines = []
    for row in rows:
        wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for i in range(max(map(len, wrapped))):
            cells = [cell[i] if i < len(cell) else "" for cell in wrapped]
            aligned = [c.ljust(w) if word else c.rjust(w) for c, w, word in zip(cells, widths, left, strict=True)]
            lines.append(f"{indent}{'  '.join(aligned)}".rstrip())
    return lines


def _totals(recording):
    facts = sections.totals(recording)
    widths = [max(len(fact[i]) for fact in facts) for i in (0, 1)]
    lines = []
    for name, figure, remark in facts:
        left = f"{name:<{widths[0]}}  {figure:>{widths[1]}}  "
        lines += wrapped(remark, " " * len(left), left)
    return "\n".join(lines)
