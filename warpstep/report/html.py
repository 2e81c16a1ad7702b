"""A trace as HTML: what a notebook shows for it."""

import io
import keyword
import tokenize
from html import escape

from warpstep.report import sections
from warpstep.tracing.records import Finding

__all__ = ["html"]

# No colour is taken from the page around it, apart from the text's: what is tinted is tinted half transparent, so that
# it stands on a light and on a dark page alike. The class is doubled to outrank what JupyterLab says of tables.
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
.gpukit-trace .k { color: var(--jp-mirror-editor-keyword-color, #8250df); }
.gpukit-trace .s { color: var(--jp-mirror-editor-string-color, #a0522d); }
.gpukit-trace .c { opacity: .6; font-style: italic; }
"""


def html(recording):
    """A trace as HTML that stands alone: no scripts, no ids, nothing from the net.

    Findings come first; then totals, the kernel's source with the counts of its accesses beside it, advice, coverage,
    and, folded up, branches, barriers and arithmetic.

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
        _box(recording.findings, recording, "bad", "the result is wrong, or will be some day"),
        _facts(recording),
        _listing(recording),
        _box(recording.advice, recording, "", "slow rather than wrong"),
        *(_section(section) for section in sections.tables(recording)),
    ]
    return framed("".join(parts))


def framed(body):
    """``body`` with the style of all views."""
    return f'<style>{STYLE}</style><div class="gpukit-trace">{body}</div>'


def _head(recording):
    facts = " · ".join(sections.about(recording))
    return (
        f'<div class="head"><span class="name">{escape(sections.launch(recording))}</span> '
        f'<span class="soft">{escape(facts)}</span></div>'
    )


def _facts(recording):
    tiles = "".join(
        f'<div class="fact"><div class="what">{escape(what)}</div><div class="figure">{escape(figure)}</div>'
        f'<div class="remark">{escape(remark)}</div></div>'
        for what, figure, remark in sections.totals(recording)
    )
    return f'<div class="facts">{tiles}</div>'


# -- findings and advice ----------------------------------------------------------------------------


def _box(items, recording, look, meaning):
    """Findings or advice, those with one cure together."""
    if not items:
        return ""
    noun = sections.plural(len(items), "finding") if look else "Advice"
    body = ""
    for cure, places in sections.grouped(items):
        body += "".join(_item(place, recording) for place in places) + f"<p>→ {escape(cure)}</p>"
    return f'<div class="box {look}"><span class="title">{noun}</span>: {meaning}{body}</div>'


def _item(records, recording):
    """The records of one line."""
    first = records[0]
    place = sections.where(first, recording)
    title = f'<span class="kind">{escape(first.kind)}</span>'
    title += f", {escape(place)}" if place else ""
    title += f": <code>{escape(first.code)}</code>" if first.code else ""
    messages = ""
    for record in records:
        involved = f" ({sections.involved(record, recording)})" if isinstance(record, Finding) else ""
        messages += f'<p>{escape(record.message)}<span class="soft">{escape(involved)}</span></p>'
    return f'<div class="item"><p>{title}</p>{messages}</div>'


# -- the source beside the counts -------------------------------------------------------------------


def _listing(recording):
    lines, outside = sections.listing(recording), sections.elsewhere(recording)
    shown = [*lines, *(line for _, line in outside)]
    accesses = [access for line in shown for access in line.accesses]
    if not shown:
        return ""
    columns = _columns(accesses)
    code = dict(enumerate(_highlighted(sections.code(recording)), recording.source[0]))
    rows = [_line(line, code.get(line.number) or escape(line.code), columns) for line in lines]
    before = None
    for place, line in outside:
        name = place.partition(" of ")[2] or "outside of the kernel"
        if name != before:
            title = f'<td class="words soft" colspan="{1 + len(columns)}">{escape(name)}</td>'
            rows.append(f'<tr class="outside"><td></td>{title}</tr>')
        rows.append(_line(line, escape(line.code), columns))
        before = name
    heads = "".join(f"<th{_words(name)}>{name}</th>" for name in columns)
    heads = f'<thead><tr><th></th><th class="words">source</th>{heads}</tr></thead>'
    body = f"<tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="listing">{heads}{body}</table></div>{_legend(accesses)}'


def _columns(accesses):
    """For each column that says something, what stands in it for an access, as HTML."""
    most = {unit: max((sections.cost(a) for a in accesses if sections.unit(a) == unit), default=0) for unit in UNITS}
    columns = {
        "access": lambda a: escape(sections.target(a)),
        "requests": lambda a: sections.whole(a.requests),
        "wavefronts": lambda a: sections.whole(a.wavefronts) if a.space == "shared" else "",
        "sectors": lambda a: sections.whole(a.sectors) if a.space != "shared" else "",
        "ideal": lambda a: sections.whole(sections.ideal_cost(a)),
        "": lambda a: _bar(sections.cost(a), sections.ideal_cost(a), most[sections.unit(a)]),
        "conflicts": lambda a: sections.whole(a.bank_conflicts) if a.bank_conflicts else "",
        "lanes": lambda a: sections.lanes(a.active_lanes),
    }
    return {name: cell for name, cell in columns.items() if any(cell(access) for access in accesses)}


UNITS = ("wavefronts", "sectors")
WORDS = ("access", "")


def _words(name):
    return ' class="words"' if name in WORDS else ""


def _bar(cost, ideal, most):
    """What would do and what is more than that, as parts of the highest cost of any access in the same unit."""
    if not most:
        return ""
    parts = [min(cost, ideal), max(cost - ideal, 0)]
    bars = "".join(f'<i style="width:{100 * part / most:.1f}%"></i>' for part in parts)
    return f'<span class="bar" title="{sections.ratio(cost, ideal)}">{bars}</span>'


def _line(line, code, columns):
    """The rows of one line of the source, one for each access; its number and its code span them."""
    look = " ".join(name for name in ("worst", "finding") if getattr(line, name))
    span = f' rowspan="{len(line.accesses)}"' if len(line.accesses) > 1 else ""
    hang = len(line.code) - len(line.code.lstrip()) + 4  # where the line goes on if it is wrapped
    code = f'<pre style="padding-left: {hang}ch; text-indent: -{hang}ch">{code}</pre>'
    left = f'<td class="number"{span}><span>{line.number or ""}</span></td>'
    if not line.accesses:
        return f'<tr class="{look}">{left}<td class="code" colspan="{1 + len(columns)}">{code}</td></tr>'
    left += f'<td class="code"{span}>{code}</td>'
    rows = []
    for access in line.accesses:
        cells = "".join(_cell(name, cell, access) for name, cell in columns.items())
        rows.append(f'<tr class="{look}">{left}{cells}</tr>')
        left = ""
    return "".join(rows)


def _cell(name, cell, access):
    text = cell(access)
    if text and name in UNITS and sections.wasted(access):
        text = f'<span class="over">{text}</span>'
    return f"<td{_words(name)}>{text}</td>"


def _legend(accesses):
    if not accesses:
        return ""
    return (
        '<p class="legend"><span class="key"></span>the fewest possible <span class="key more"></span>more than that: '
        "wavefronts in shared memory, 32-byte sectors in global and local memory</p>"
    )


def _highlighted(lines):
    """Lines of Python as HTML, with keywords, strings and comments marked; plain if they cannot be told apart."""
    marks = [[] for _ in lines]
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            look = _look(token)
            for row in range(token.start[0], token.end[0] + 1) if look else ():
                start = token.start[1] if row == token.start[0] else 0
                end = token.end[1] if row == token.end[0] else len(lines[row - 1])
                marks[row - 1].append((start, end, look))
    except (tokenize.TokenError, SyntaxError):
        return [escape(line) for line in lines]
    return [_marked(line, spans) for line, spans in zip(lines, marks, strict=True)]


def _look(token):
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "k"
    return {tokenize.STRING: "s", tokenize.COMMENT: "c"}.get(token.type)


def _marked(line, spans):
    text, at = "", 0
    for start, end, look in spans:
        text += f'{escape(line[at:start])}<span class="{look}">{escape(line[start:end])}</span>'
        at = end
    return text + escape(line[at:])


# -- tables -----------------------------------------------------------------------------------------


def _section(section):
    """A table under a heading that folds it up; coverage is open, for what it misses must be seen."""
    opened = " open" if section.title.startswith("Coverage") else ""
    return f"<details{opened}><summary>{escape(section.title)}</summary>{table(section)}</details>"


def table(section):
    """A `sections.Section` as HTML."""
    looks = [' class="words"' if name in section.words else "" for name in section.header]

    def row(cells, tag):
        return "<tr>" + "".join(
            f"<{tag}{look}>{_code(name, cell) if tag == 'td' else escape(cell)}</{tag}>"
            for name, cell, look in zip(section.header, cells, looks, strict=True)
        ) + "</tr>"  # fmt: skip

    body = "".join(row(cells, "td") for cells in section.rows)
    return f'<div class="scroll"><table><thead>{row(section.header, "th")}</thead><tbody>{body}</tbody></table></div>'


def _code(name, cell):
    return f"<code>{escape(cell)}</code>" if name in ("code", "branch", "barrier") and cell else escape(cell)
