"""A trace as one HTML page, with a slider over the steps of its first block."""

import json
import linecache
from html import escape
from importlib.resources import files

from warpstep.limits import BANKS, SECTOR, WARP, WORD
from warpstep.report import facts, html
from warpstep.tracing.records import Recording, check_trace

__all__ = ["render"]

#: Characters of the steps in a page, which would otherwise grow without bound.
MAX_CHARACTERS = 700_000
#: Characters of a line of source.
MAX_LINE = 160


def render(trace: Recording) -> str:
    """Write a trace as a page of HTML that needs nothing else: its steps, then the report of `html.render`.

    Raises
    ------
    TypeError
        If ``trace`` is something else.
    """
    check_trace("trace", trace)
    title = escape(facts.launch(trace))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_resource("page.css")}</style>'
        f"</head><body>{_player(trace)}{html.render(trace)}</body></html>\n"
    )


def _player(trace):
    data = _data(trace)
    if data is None:
        return ""
    # In a script of JSON only "<" can end the element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"{_resource('page.html')}"
        f'<script type="application/json" id="steps">{text}</script><script>{_resource("page.js")}</script>'
    )


def _data(trace):
    """What the page's script gets; None without steps."""
    if trace.steps is None or not trace.steps.data["steps"]:
        return None
    data = dict(trace.steps.data)
    steps, size = [], 0
    for step in data["steps"]:
        size += len(json.dumps(step, separators=(",", ":")))
        if size > MAX_CHARACTERS:
            break
        steps.append(step)
    cut = len(steps) < len(data["steps"]) or not data["complete"]
    return data | {
        "steps": steps,
        "kernel": facts.launch(trace),
        "cut": cut,
        "source": _source(trace, data["files"], steps),
        "limits": {"warp": WARP, "banks": BANKS, "word": WORD, "sector": SECTOR},
    }


def _source(trace, names, steps):
    """[file, line, text] of the kernel's source, then of the lines elsewhere that run; file -1 for a heading."""
    first, code = trace.source[0], facts.code(trace)
    number = names.index(trace.filename) if trace.filename in names else 0
    lines = [[number, first + i, facts.shorten(text, MAX_LINE)] for i, text in enumerate(code)]
    known = {(file, line) for file, line, _ in lines}
    others = sorted({(file, line) for file, line, *_ in steps} - known)
    before = None
    for file, line in others:
        if file != before:
            lines.append([-1, 0, facts.file_name(names[file])])
            before = file
        lines.append([file, line, facts.shorten(linecache.getline(names[file], line).rstrip(), MAX_LINE)])
    return lines


def _resource(name):
    return files("warpstep.report").joinpath(name).read_text(encoding="utf-8")
