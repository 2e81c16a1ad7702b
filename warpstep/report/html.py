"""A trace as HTML, for notebooks."""

from html import escape

from warpstep.report import facts
from warpstep.report.code import highlighted
from warpstep.report.table import Table
from warpstep.tracing.records import Recording, check_trace

__all__ = ["framed", "render", "scrolling"]

# Tints are half transparent, so that they fit light and dark pages alike; the text has the colour of the page's. The
# class is doubled to outrank JupyterLab's rules for tables.
STYLE = """
.gpukit-trace { --bad: #d55e00; --fine: #3d8fc4; --note: #e0a000; --line: rgba(128, 128, 128, .28);
  --shade: rgba(128, 128, 128, .09); --mono: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, monospace);
  font-size: 13px; line-height: 1.45; max-width: 1100px; margin: .4em 0 .8em; }
.gpukit-trace.gpukit-trace p { margin: 0; max-width: none; line-height: inherit; }
.gpukit-trace .soft { opacity: .68; }
.gpukit-trace .head { display: flex; flex-wrap: wrap; gap: 0 1em; align-items: baseline; }
.gpukit-trace .name { font: 600 15px var(--mono); }
.gpukit-trace .heading { font-weight: 600; padding-top: .8em; }
.gpukit-trace .facts { display: flex; flex-wrap: wrap; gap: .55em; margin: .7em 0; }
.gpukit-trace .fact { background: var(--shade); border-radius: 6px; padding: .45em .8em; flex: 1 1 9.5em; }
.gpukit-trace .fact .what { font-size: 11px; opacity: .68; }
.gpukit-trace .fact .figure { font-size: 15px; font-weight: 600; white-space: nowrap; }
.gpukit-trace .fact .remark { font-size: 11px; opacity: .8; }
.gpukit-trace .box { border-left: 4px solid var(--note); background: rgba(224, 160, 0, .10); border-radius: 0 6px 6px 0;
  padding: .55em .9em; margin: .7em 0; }
.gpukit-trace .box.bad { border-color: var(--bad); background: rgba(213, 94, 0, .12); }
.gpukit-trace .box .title { font-weight: 600; }
.gpukit-trace .item { margin-top: .55em; }
.gpukit-trace .item .kind { font-weight: 600; }
.gpukit-trace.gpukit-trace code { font-family: var(--mono); font-size: 12px; background: none; padding: 0;
  color: inherit; border: none; }
.gpukit-trace .scroll { overflow-x: auto; }
.gpukit-trace.gpukit-trace .scroll td > code { display: block; max-width: 34em; white-space: normal;
  padding-left: 2em; text-indent: -2em; }
.gpukit-trace.gpukit-trace table { border-collapse: collapse; border: none; margin: .3em 0; font-size: 12px;
  line-height: 1.4; font-variant-numeric: tabular-nums; display: table; width: auto; max-width: none;
  table-layout: auto; color: inherit; }
.gpukit-trace.gpukit-trace table tbody tr, .gpukit-trace.gpukit-trace table tbody tr:hover { background: none; }
.gpukit-trace.gpukit-trace table th, .gpukit-trace.gpukit-trace table td { border: none; padding: .1em .5em;
  text-align: right; vertical-align: baseline; white-space: nowrap; max-width: none; }
.gpukit-trace.gpukit-trace table th { font-weight: 400; opacity: .68; border-bottom: 1px solid var(--line); }
.gpukit-trace.gpukit-trace table .words { text-align: left; }
.gpukit-trace.gpukit-trace .listing .code { font: 12px/1.5 var(--mono); white-space: normal; text-align: left;
  min-width: 22em; }
.gpukit-trace.gpukit-trace .listing .number { font: 12px/1.5 var(--mono); padding-left: .6em; border-left: 3px solid
  transparent; }
.gpukit-trace.gpukit-trace pre { font: inherit; color: inherit; background: none; border: none; margin: 0; padding: 0;
  overflow: visible; white-space: pre-wrap; word-break: normal; overflow-wrap: break-word; }
.gpukit-trace .number span { opacity: .5; }
.gpukit-trace.gpukit-trace .listing tr.outside > td { border-top: 1px solid var(--line); }
.gpukit-trace.gpukit-trace .listing tr.worst > td { background: rgba(224, 160, 0, .13); }
.gpukit-trace.gpukit-trace .listing tr.worst > td.number { border-left-color: var(--note); }
.gpukit-trace.gpukit-trace .listing tr.finding > td { background: rgba(213, 94, 0, .14); }
.gpukit-trace.gpukit-trace .listing tr.finding > td.number { border-left-color: var(--bad); }
.gpukit-trace .bar { display: inline-block; width: 76px; height: 8px; border-radius: 2px; overflow: hidden;
  background: var(--shade); vertical-align: 0; }
.gpukit-trace .bar i { display: block; float: left; height: 100%; background: var(--fine); }
.gpukit-trace .bar i + i { background: var(--bad); }
.gpukit-trace .over { font-weight: 600; }
.gpukit-trace .key { display: inline-block; width: 9px; height: 9px; border-radius: 2px; background: var(--fine);
  margin: 0 .35em 0 .9em; }
.gpukit-trace .key.more { background: var(--bad); }
.gpukit-trace .legend { font-size: 11px; opacity: .8; }
.gpukit-trace .legend .key:first-child { margin-left: 0; }
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
        _box(f'<span class="title">{count}</span>: {facts.WRONG}', trace.findings, trace, "bad"),
        _totals(trace),
        _listing(trace),
        _box(f'<span class="title">Advice</span>: {facts.SLOW}', trace.advice, trace),
        *map(_folded, facts.tables(trace)),
    ]
    return framed("".join(parts))


def framed(body: str) -> str:
    """Put ``body`` into the style of all views."""
    return f'<style>{STYLE}</style><div class="gpukit-trace">{body}</div>'


def scrolling(table: Table) -> str:
    """A table that scrolls by itself if the page is too narrow."""
    return f'<div class="scroll">{table.html()}</div>'


def heading(trace: Recording, name: str) -> str:
    """One line about a launch, after its ``name`` in bold: its status, or a letter."""
    about = " · ".join(facts.about(trace))
    return (
        f'<div class="head"><b>{escape(name)}</b> <span class="name">{escape(facts.launch(trace))}</span> '
        f'<span class="soft">{escape(about)}</span></div>'
    )


def _head(trace):
    stopped = f'<div class="box bad"><pre>{escape(trace.stopped)}</pre></div>' if trace.stopped else ""
    return heading(trace, facts.status(trace)) + stopped


def _totals(trace):
    tiles = "".join(
        f'<div class="fact"><div class="what">{escape(what)}</div><div class="figure">{escape(figure)}</div>'
        f'<div class="remark">{escape(remark)}</div></div>'
        for what, figure, remark in facts.totals(trace)
    )
    return f'<div class="facts">{tiles}</div>'


def _folded(table):
    """A table under a heading that folds it up. Coverage is open: what it misses must be seen."""
    opened = " open" if table.title.startswith("Coverage") else ""
    return f"<details{opened}><summary>{escape(table.title)}</summary>{scrolling(table)}</details>"


# -- findings and advice -------------------------------------------------------------------------------------------


def _box(title, records, trace, look=""):
    """Findings or advice, those with one cure together."""
    if not records:
        return ""
    body = "".join(
        "".join(_item(place, trace) for place in places) + f"<p>→ {escape(cure)}</p>"
        for cure, places in facts.grouped(records)
    )
    return f'<div class="box {look}">{title}{body}</div>'


def _item(records, trace):
    """The records of one line."""
    first = records[0]
    place = facts.location(first, trace)
    title = f'<span class="kind">{escape(first.kind)}</span>'
    title += f", {escape(place)}" if place else ""
    title += f": <code>{escape(first.code)}</code>" if first.code else ""
    messages = "".join(
        f'<p>{escape(r.message)}<span class="soft">{escape(facts.involved(r, trace))}</span></p>' for r in records
    )
    return f'<div class="item"><p>{title}</p>{messages}</div>'


# -- the source beside the counts ----------------------------------------------------------------------------------

LEFT = ("access", "")  # columns that are aligned to the left


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
            title = f'<td class="words soft" colspan="{1 + len(columns)}">{escape(name)}</td>'
            rows.append(f'<tr class="outside"><td></td>{title}</tr>')
        rows.append(_line(line, escape(line.code), cells, len(columns)))
        before = name
    heads = "".join(_cell("th", name, name) for name in columns)
    heads = f'<thead><tr><th></th><th class="words">source</th>{heads}</tr></thead>'
    body = f"<tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="listing">{heads}{body}</table></div>{_legend(accesses)}'


def _cell(tag, column, content):
    look = ' class="words"' if column in LEFT else ""
    return f"<{tag}{look}>{content}</{tag}>"


def _columns(accesses):
    """{column: a cell of HTML for each access}: those of `facts.columns`, with bars after the ideal."""
    highest = {unit: max((facts.cost(a) for a in accesses if facts.unit(a) == unit), default=0) for unit in facts.UNITS}
    columns = {}
    for name, texts in facts.columns(accesses).items():
        cells = [escape(text) for text in texts]
        if name in facts.UNITS:
            over = [bool(text) and facts.wasted(a) > 0 for text, a in zip(texts, accesses, strict=True)]
            cells = [f'<span class="over">{c}</span>' if o else c for c, o in zip(cells, over, strict=True)]
        columns[name] = [_cell("td", name, cell) for cell in cells]
        if name == "ideal" and any(highest.values()):
            bars = [_bar(facts.cost(a), facts.ideal_cost(a), highest[facts.unit(a)]) for a in accesses]
            columns[""] = [_cell("td", "", bar) for bar in bars]
    return columns


def _bar(cost, ideal, highest):
    """The ideal and the rest of the cost, as parts of the highest cost of any access in the same unit."""
    if not highest:
        return ""
    parts = [min(cost, ideal), max(cost - ideal, 0)]
    bars = "".join(f'<i style="width:{100 * part / highest:.1f}%"></i>' for part in parts)
    return f'<span class="bar" title="{facts.format_ratio(cost, ideal)}">{bars}</span>'


def _line(line, code, cells, columns):
    """The rows of one line of the source, one for each access; its number and its code span them."""
    look = " ".join(name for name in ("worst", "finding") if getattr(line, name))
    span = f' rowspan="{len(line.accesses)}"' if len(line.accesses) > 1 else ""
    hang = len(line.code) - len(line.code.lstrip()) + 4  # the indentation of a wrapped line
    code = f'<pre style="padding-left: {hang}ch; text-indent: -{hang}ch">{code}</pre>'
    left = f'<td class="number"{span}><span>{line.number or ""}</span></td>'
    if not line.accesses:
        return f'<tr class="{look}">{left}<td class="code" colspan="{1 + columns}">{code}</td></tr>'
    left += f'<td class="code"{span}>{code}</td>'
    first, *others = ("".join(cells[id(access)]) for access in line.accesses)
    return "".join(f'<tr class="{look}">{row}</tr>' for row in (left + first, *others))


def _legend(accesses):
    if not accesses:
        return ""
    return (
        '<p class="legend"><span class="key"></span>the fewest possible <span class="key more"></span>more than that: '
        "wavefronts in shared memory, 32-byte sectors in global and local memory</p>"
    )
