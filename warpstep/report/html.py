"""A trace as HTML, for notebooks."""

import re
from html import escape

from warpstep.report import facts
from warpstep.report.code import highlighted
from warpstep.report.table import Table
from warpstep.tracing.records import Recording, check_trace

__all__ = ["framed", "render", "scrolling"]

# What follows must be legible where none of it arrives: a code host removes style sheets and style attributes, a
# notebook that is not trusted removes style sheets. So elements carry the structure (tables, bold, bars of characters,
# `div align`, which outranks a page's rule for the cell around it), style attributes what JupyterLab's rules for tables
# would spoil, and the sheet only refines. Tints are half transparent: they fit light and dark pages alike. The class is
# doubled to outrank JupyterLab's rules.
BAD, NOTE, FINE = "#d55e00", "#e0a000", "#3d8fc4"
FAINT = {BAD: "rgba(213, 94, 0, 0.14)", NOTE: "rgba(224, 160, 0, 0.12)"}
STYLE = """
.gpukit-trace { --line: rgba(128, 128, 128, .28); --shade: rgba(128, 128, 128, .09);
  --mono: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, monospace);
  font-size: 13px; line-height: 1.45; max-width: 1100px; margin: .4em 0 .8em; }
.gpukit-trace.gpukit-trace p { margin: 0 0 .4em; max-width: none; line-height: inherit; }
.gpukit-trace .soft { opacity: .68; }
.gpukit-trace.gpukit-trace :not(pre) > code { font-family: var(--mono); font-size: 12px; background: none; padding: 0;
  color: inherit; border: none; }
.gpukit-trace.gpukit-trace :not(pre) > .name { font-size: 15px; font-weight: 600; }
.gpukit-trace.gpukit-trace blockquote { border-radius: 0 6px 6px 0; color: inherit; font-style: normal;
  max-width: none; }
.gpukit-trace.gpukit-trace blockquote p:last-child { margin: 0; }
.gpukit-trace.gpukit-trace table { border: none; border-collapse: collapse; margin: .3em 0; font-size: 12px;
  line-height: 1.4; font-variant-numeric: tabular-nums; display: table; width: auto; max-width: none; color: inherit; }
.gpukit-trace.gpukit-trace table tbody tr, .gpukit-trace.gpukit-trace table tbody tr:hover { background: none; }
.gpukit-trace.gpukit-trace table th, .gpukit-trace.gpukit-trace table td { border: none; padding: .1em .5em;
  text-align: right; vertical-align: baseline; white-space: nowrap; max-width: none; }
.gpukit-trace.gpukit-trace table th { font-weight: 400; opacity: .68; border-bottom: 1px solid var(--line); }
.gpukit-trace.gpukit-trace .facts, .gpukit-trace .facts tbody { display: block; }
.gpukit-trace.gpukit-trace .facts tr { display: flex; flex-wrap: wrap; gap: .55em; }
.gpukit-trace.gpukit-trace .facts td { background: var(--shade); border-radius: 6px; padding: .45em .8em;
  flex: 1 1 9.5em; white-space: normal; }
.gpukit-trace .facts small { font-size: 11px; opacity: .75; }
.gpukit-trace .facts b { font-size: 15px; font-weight: 600; white-space: nowrap; }
.gpukit-trace.gpukit-trace .scroll :not(pre) > code { display: block; max-width: 34em; white-space: normal;
  padding-left: 2em; text-indent: -2em; }
.gpukit-trace.gpukit-trace .listing :not(pre) > code { max-width: none; line-height: 1.5; }
.gpukit-trace.gpukit-trace .listing td.number { border-left: 3px solid transparent; padding-left: .6em; opacity: .6; }
.gpukit-trace.gpukit-trace .listing tr.outside > td { border-top: 1px solid var(--line); }
.gpukit-trace.gpukit-trace .listing tr.worst > td.number { border-left-color: #e0a000; opacity: 1; }
.gpukit-trace.gpukit-trace .listing tr.finding > td.number { border-left-color: #d55e00; opacity: 1; }
.gpukit-trace.gpukit-trace .listing .bar small { font: 9px/1 var(--mono); }
.gpukit-trace.gpukit-trace pre { font: 12px/1.5 var(--mono); color: inherit; background: none; border: none;
  margin: 0; padding: 0; white-space: pre-wrap; word-break: normal; }
.gpukit-trace .legend { font-size: 11px; }
.gpukit-trace details { margin: .35em 0; }
.gpukit-trace summary { cursor: pointer; }
"""


def render(trace: Recording) -> str:
    """Write a trace as HTML that stands alone: no scripts, no ids, nothing from the net.

    The status comes first, then findings, totals, the kernel's source beside the counts of its accesses, advice,
    coverage, and, folded up, branches, barriers and arithmetic.

    Raises
    ------
    TypeError
        If ``trace`` is something else.
    """
    check_trace("trace", trace)
    count = facts.plural(len(trace.findings), "finding")
    parts = [
        _head(trace),
        _box(f"<b>{count}</b>: {facts.WRONG}", trace.findings, trace, BAD),
        _totals(trace),
        _listing(trace),
        _box(f"<b>Advice</b>: {facts.SLOW}", trace.advice, trace, NOTE),
        *map(_folded, facts.tables(trace)),
    ]
    return framed("".join(parts))


def framed(body: str) -> str:
    """Put ``body`` into the style of all views."""
    return f'<style>{STYLE}</style><div class="gpukit-trace">{body}</div>'


def scrolling(table: Table) -> str:
    """A table that scrolls by itself if the page is too narrow."""
    return _scrolling(table.html())


def heading(trace: Recording, name: str) -> str:
    """One line about a launch, after its ``name`` in bold: its status, or a letter."""
    about = " · ".join(facts.about(trace))
    return (
        f'<p><b>{escape(name)}</b> <code class="name">{escape(facts.launch(trace))}</code> '
        f'<span class="soft">{escape(about)}</span></p>'
    )


def _scrolling(table):
    return f'<div class="scroll" style="overflow-x: auto">{table}</div>'


def _head(trace):
    stopped = _quoted(f"<pre>{escape(trace.stopped)}</pre>", BAD) if trace.stopped else ""
    return heading(trace, facts.status(trace)) + stopped


def _quoted(body, colour):
    look = f"border-left: 4px solid {colour}; background: {FAINT[colour]}; padding: 0.5em 0.9em; margin: 0.6em 0"
    return f'<blockquote style="{look}">{body}</blockquote>'


def _totals(trace):
    tiles = "".join(
        f'<td><div align="left"><small>{escape(what)}</small><br/><b>{escape(figure)}</b><br/>'
        f"<small>{escape(remark)}</small></div></td>"
        for what, figure, remark in facts.totals(trace)
    )
    return _scrolling(f'<table class="facts" style="table-layout: auto"><tbody><tr>{tiles}</tr></tbody></table>')


def _folded(table):
    """A table under a heading that folds it up. Coverage is open: what it misses must be seen."""
    opened = " open" if table.title.startswith("Coverage") else ""
    return f"<details{opened}><summary>{escape(table.title)}</summary>{scrolling(table)}</details>"


# -- findings and advice -------------------------------------------------------------------------------------------


def _box(title, records, trace, colour):
    """Findings or advice, those with one cure together."""
    if not records:
        return ""
    body = "".join(
        "".join(_item(place, trace) for place in places) + f"<p>→ {escape(cure)}</p>"
        for cure, places in facts.grouped(records)
    )
    return _quoted(f"<p>{title}</p>{body}", colour)


def _item(records, trace):
    """The records of one line."""
    first = records[0]
    place = facts.location(first, trace)
    title = f"<b>{escape(first.kind)}</b>"
    title += f", {escape(place)}" if place else ""
    title += f": <code>{escape(first.code)}</code>" if first.code else ""
    messages = "".join(
        f'<br/>{escape(r.message)}<span class="soft">{escape(facts.involved(r, trace))}</span>' for r in records
    )
    return f"<p>{title}{messages}</p>"


# -- the source beside the counts ----------------------------------------------------------------------------------

LEFT = ("source", "access", "")  # columns that are aligned to the left
NO_BREAK = "\N{NO-BREAK SPACE}"
BARS = 10  # characters of the longest bar
MORE = f'<span style="color: {BAD}">{{}}</span>'
LEAST = f'<span style="color: {FINE}">{{}}</span>'


def _listing(trace):
    lines, outside = facts.listing(trace), facts.elsewhere(trace)
    accesses = [access for line in (*lines, *(line for _, line in outside)) for access in line.accesses]
    if not lines and not outside:
        return ""
    columns = _columns(accesses)
    cells = dict(zip(map(id, accesses), zip(*columns.values(), strict=True), strict=True))
    code = dict(enumerate(highlighted(facts.code(trace)), trace.source[0]))
    rows = [_line(line, code.get(line.number or 0) or escape(line.code), cells, len(columns)) for line in lines]
    before = None
    for name, line in outside:
        if name != before:
            title = f'<td colspan="{1 + len(columns)}"><div align="left">{escape(name)}</div></td>'
            rows.append(f'<tr class="outside"><td></td>{title}</tr>')
        rows.append(_line(line, escape(line.code), cells, len(columns)))
        before = name
    heads = "".join(_cell("th", name, name) for name in ("source", *columns))
    table = f"<thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    table = f'<table class="listing" style="table-layout: auto">{table}</table>'
    return _scrolling(table) + _legend(accesses)


def _cell(tag, column, content):
    look = ' class="bar"' if not column else ""
    return f"<{tag}{look}>" + (f'<div align="left">{content}</div>' if column in LEFT else content) + f"</{tag}>"


def _columns(accesses):
    """{column: a cell of HTML for each access}: those of `facts.columns`, with bars after the ideal."""
    highest = {unit: max((facts.cost(a) for a in accesses if facts.unit(a) == unit), default=0) for unit in facts.UNITS}
    columns = {}
    for name, texts in facts.columns(accesses).items():
        cells = [escape(text) for text in texts]
        if name in facts.UNITS:
            over = [bool(text) and facts.wasted(a) > 0 for text, a in zip(texts, accesses, strict=True)]
            cells = [f"<b>{cell}</b>" if o else cell for cell, o in zip(cells, over, strict=True)]
        columns[name] = [_cell("td", name, cell) for cell in cells]
        if name == "ideal" and any(highest.values()):
            bars = [_bar(facts.cost(a), facts.ideal_cost(a), highest[facts.unit(a)]) for a in accesses]
            columns[""] = [_cell("td", "", bar) for bar in bars]
    return columns


def _bar(cost, ideal, highest):
    """The ideal and the rest of the cost in characters, as parts of the highest cost of any access in this unit."""
    if not cost:
        return ""
    length = max(round(BARS * cost / highest), 1 + (0 < ideal < cost))
    more = min(max(round(BARS * (cost - ideal) / highest), cost > ideal), length - (ideal > 0))
    bar = LEAST.format("█" * (length - more)) + (MORE.format("▒" * more) if more else "")
    return f"<small>{bar}</small>"


def _line(line, code, cells, columns):
    """The rows of one line of the source, one for each access; its number and its code span them."""
    look = " ".join(name for name in ("worst", "finding") if getattr(line, name))
    tint = f' style="background: {FAINT[BAD if line.finding else NOTE]}"' if look else ""
    begin = f'<tr class="{look}" align="right"{tint}>'
    span = f' rowspan="{len(line.accesses)}"' if len(line.accesses) > 1 else ""
    code = f'<div align="left" style="min-width: 20em">{_code(code, line.code)}</div>'
    number = str(line.number or "")
    left = f'<td class="number"{span}>{f"<b>{number}</b>" if look else number}</td>'
    if not line.accesses:
        return f'{begin}{left}<td colspan="{1 + columns}">{code}</td></tr>'
    left += f"<td{span}>{code}</td>"
    first, *others = ("".join(cells[id(access)]) for access in line.accesses)
    return "".join(f"{begin}{row}</tr>" for row in (left + first, *others))


def _code(code, text):
    """A line of source whose blanks stay; if it is too long, it goes on four characters to the right of its beginning.

    Not a ``pre``, for which pages have margins and break lines within words.
    """
    hang = 0.6 * (len(text) - len(text.lstrip()) + 4)
    code = re.sub("^ +", lambda blanks: NO_BREAK * len(blanks[0]), code)
    code = re.sub("  +", lambda blanks: NO_BREAK * (len(blanks[0]) - 1) + " ", code)
    look = f"display: block; padding: 0 0 0 {hang:.1f}em; text-indent: -{hang:.1f}em; background: none"
    return f'<code style="{look}">{code}</code>'


def _legend(accesses):
    if not accesses:
        return ""
    return (
        f'<p class="legend">{LEAST.format("█")} the fewest possible, {MORE.format("▒")} more than that: '
        "wavefronts in shared memory, 32-byte sectors in global and local memory</p>"
    )
