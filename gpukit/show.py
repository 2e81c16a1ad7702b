"""What notebooks show besides figures: the source of a kernel, and tables of records."""

import ast
import inspect
import textwrap
from collections.abc import Sequence
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from warpstep.report.code import highlighted
from warpstep.report.table import Table
from warpstep.values import check_int, check_items, check_text, describe, has_attributes, type_name

__all__ = ["Source", "Table", "source", "table"]

# Written into the element: style sheets do not reach a notebook that is not trusted, and some pages set no font for
# output. Long lines scroll.
STYLE = (
    "white-space: pre; overflow-x: auto; margin: 0.4em 0; padding: 0.7em 0.9em; border-radius: 6px; line-height: 1.5; "
    "font-size: 13px; font-family: Menlo, Consolas, 'DejaVu Sans Mono', monospace; background: rgba(128, 128, 128, 0.1)"
)
PACKAGE = Path(__file__).resolve().parent


class Source:
    """Source text: highlighted in a notebook, plain when printed."""

    def __init__(self, place, text):
        self.place, self.text = place, text

    def __str__(self):
        return f"# {self.place}\n{self.text}"

    __repr__ = __str__

    def _repr_html_(self):
        code = "\n".join(highlighted(self.text.splitlines()))
        return f'<code>{escape(self.place)}</code><pre style="{STYLE}">{code}</pre>'


def source(*things: Any) -> Source:
    """Show the source of kernels, device functions or plain functions.

    Parameters
    ----------
    *things
        One or more of one file.

    Returns
    -------
    Source
        With the file and the line of the first one.

    Raises
    ------
    TypeError
        For no argument, or for one that has no Python source.

    Examples
    --------
    >>> shown = source(gpukit.indexing.index_in_block)
    >>> "cuda.threadIdx.x" in str(shown)
    True
    """
    if not things:
        raise TypeError("source needs at least one function, for example source(indexing.record_threads)")
    functions = [thing.py_func if has_attributes(thing, "py_func") else thing for thing in things]
    functions = [inspect.unwrap(f) if has_attributes(f, "__wrapped__") else f for f in functions]
    for thing, function in zip(things, functions, strict=True):
        if not inspect.isfunction(function):
            raise TypeError(f"{describe(thing)} has no Python source; source shows kernels and functions")
    path, line = Path(inspect.getfile(functions[0])), inspect.getsourcelines(functions[0])[1]
    place = path.relative_to(PACKAGE.parent).as_posix() if path.is_relative_to(PACKAGE) else path.name
    return Source(f"{place}, line {line}", "\n\n".join(map(_source_to_read, functions)))


def _source_to_read(function):
    """The source of a function with the first paragraph of each docstring; ``help`` shows the rest."""
    lines = textwrap.dedent(inspect.getsource(function)).rstrip().splitlines()
    docs = [
        node.body[0]
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
    ]
    for doc in sorted(docs, key=lambda doc: doc.lineno, reverse=True):
        first, last = doc.lineno - 1, doc.end_lineno or doc.lineno
        end = next((i for i in range(first, last) if not lines[i].strip()), last)
        if end < last:
            quotes = lines[last - 1].rstrip()[-3:]
            lines[first:last] = [*lines[first : end - 1], lines[end - 1].rstrip() + quotes]
    return "\n".join(lines)


def table(records: np.ndarray, columns: Sequence[str] | None = None, rows: int = 16) -> Table:
    """Show records as a table.

    Parameters
    ----------
    records : structured ndarray, shape (n,)
        A ``thread_table`` for example.
    columns : sequence of str, optional
        The fields to show, in this order; all unless given.
    rows : int
        The most rows, 3 or more; of a longer table the first ones and the last are shown.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; the message names it.

    Examples
    --------
    >>> print(table(gpukit.indexing.thread_table(2, 2), ["block_index", "index"]))
    block_index  index
              0      0
              0      1
              1      2
              1      3
    """
    if not isinstance(records, np.ndarray) or records.dtype.names is None:
        raise TypeError(f"records is {type_name(records)}; it must be a structured NumPy array")
    if records.ndim != 1:
        raise ValueError(f"records has shape {records.shape}; it must have one dimension")
    columns = list(records.dtype.names) if columns is None else check_items("columns", columns, "names of fields")
    for name in columns:
        if check_text("columns", name) not in records.dtype.names:
            raise ValueError(f"columns has {name!r}; it must be among {', '.join(records.dtype.names)}")
    check_int("rows", rows, 3)
    first = records if len(records) <= rows else records[: rows - 2]
    lines = [[_cell(record[name]) for name in columns] for record in first]
    if len(records) > rows:
        lines += [["…"] * len(columns), [_cell(records[-1][name]) for name in columns]]
    return Table(columns, lines)


def _cell(value):
    if np.ndim(value):
        return f"({', '.join(map(str, value))})"
    return f"{value:,}" if isinstance(value, Integral) else str(value)
