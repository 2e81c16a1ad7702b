"""Python source as HTML."""

import io
import keyword
import tokenize
from collections.abc import Sequence
from html import escape

__all__ = ["highlighted"]

# Written into each element, because code hosts and a notebook that is not trusted drop style sheets. The colours are
# readable on light and dark pages.
KEYWORD, STRING, COMMENT = "color: #9965d8", "color: #b0672e", "opacity: 0.7; font-style: italic"


def highlighted(lines: Sequence[str]) -> list[str]:
    """Escape lines of Python for HTML and colour their keywords, strings and comments; plain if they do not parse."""
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
        return KEYWORD
    return {tokenize.STRING: STRING, tokenize.COMMENT: COMMENT}.get(token.type)


def _marked(line, spans):
    text, at = "", 0
    for start, end, look in spans:
        text += f'{escape(line[at:start])}<span style="{look}">{escape(line[start:end])}</span>'
        at = end
    return text + escape(line[at:])
