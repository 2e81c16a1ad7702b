"""Tables: text when printed, HTML in a notebook."""

import re
import textwrap
from collections.abc import Collection, Sequence
from html import escape

from warpstep.values import check_items, check_text, is_int

__all__ = ["WIDTH", "Table"]

#: Columns of printed text.
WIDTH = 120
#: Columns that a wrapped column of words keeps.
MIN_WORDS = 28


class Table:
    """A table: text when printed, HTML in a notebook.

    Parameters
    ----------
    header : sequence of str
        The name of each column.
    rows : sequence of sequences of str or int
        An int gets commas between its thousands.
    title : str, optional
    words : collection of str, optional
        Columns of words, by name. They are aligned to the left, and the widest is wrapped if the text would be wider
        than 120 columns. Unless given, these are the columns with a cell that starts with a letter, or has
        two words or more.
    code : collection of str, optional
        Columns of source code, by name: monospaced in HTML.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, or rows of other lengths than the header.

    Examples
    --------
    >>> print(Table(["kernel", "us", "bytes"], [["copy", "1.5", 4096], ["transpose", "12.25", 512]]))
    kernel        us  bytes
    copy         1.5  4,096
    transpose  12.25    512
    """

    def __init__(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str | int]],
        title: str = "",
        *,
        words: Collection[str] | None = None,
        code: Collection[str] = (),
    ):
        self.header, self.title, self.code = _texts("header", header), check_text("title", title), _texts("code", code)
        self.rows = [_cells(f"rows[{i}]", row) for i, row in enumerate(check_items("rows", rows, "a sequence of rows"))]
        for i, row in enumerate(self.rows):
            if len(row) != len(self.header):
                raise ValueError(f"rows[{i}] has {len(row)} cells; it must have {len(self.header)}, as header has")
        if words is None:
            columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
            words = [n for n, cells in zip(self.header, columns, strict=True) if any(map(_is_words, cells))]
        self.words = _texts("words", words)

    def text(self) -> str:
        """The table as text: the title, then one line for each row, cells two blanks apart."""
        indent = "  " if self.title else ""
        rows = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        excess = len(indent) + sum(widths) + 2 * (len(widths) - 1) - WIDTH
        left = [name in self.words for name in self.header]
        if excess > 0 and any(left):
            widest = max((i for i, words in enumerate(left) if words), key=lambda i: widths[i])
            widths[widest] = min(widths[widest], max(MIN_WORDS, widths[widest] - excess))
        lines = [self.title] if self.title else []
        for row in rows:
            cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
            for i in range(max(map(len, cells), default=0)):
                parts = [cell[i] if i < len(cell) else "" for cell in cells]
                parts = [p.ljust(w) if side else p.rjust(w) for p, w, side in zip(parts, widths, left, strict=True)]
                lines.append((indent + "  ".join(parts)).rstrip())
        return "\n".join(lines)

    def html(self) -> str:
        """The table as an HTML ``table``, without the title."""
        body = "".join(self._row(row, "td") for row in self.rows)
        return f"<table><thead>{self._row(self.header, 'th')}</thead><tbody>{body}</tbody></table>"

    def _row(self, cells: Sequence[str], tag: str) -> str:
        parts = []
        for name, cell in zip(self.header, cells, strict=True):
            text = escape(cell)
            if tag == "td" and cell and name in self.code:
                text = f"<code>{text}</code>"
            # A code host removes the style, and then aligns all cells to the right: the div outlives that.
            left = f'<{tag}><div align="left">{text}</div></{tag}>'
            parts.append(left if name in self.words else f'<{tag} style="text-align: right">{text}</{tag}>')
        return f"<tr>{''.join(parts)}</tr>"

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.title)}</b></p>" * bool(self.title) + self.html()


def _is_words(cell):
    """Tell words ("copy", "1 frame, call and wait") from figures ("64 of 64", "1.5 ms")."""
    return cell[:1].isalpha() or len(re.findall(r"[^\W\d_]{2,}", cell)) > 1


def _cells(name, values):
    cells = check_items(name, values, "a sequence of str")
    return _texts(name, [f"{cell:,}" if is_int(cell) else cell for cell in cells])


def _texts(name, values):
    return [check_text(f"{name}[{i}]", v) for i, v in enumerate(check_items(name, values, "a sequence of str"))]
