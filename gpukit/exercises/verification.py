"""Run somebody's file of solutions again: the same verdicts and scores on any machine."""

import json
import linecache
import os
import sys
from pathlib import Path

from gpukit import exercises
from gpukit.exercises.verdict import Verdict


def verify(path: str | os.PathLike) -> list[Verdict]:
    """Run a notebook or a script, and collect the verdict of each exercise that it checks.

    The file is a program and can do whatever a program can: verify the files of people you trust, or in a container.
    Cells that raise are passed over. Of several checks of one exercise the last counts.

    Parameters
    ----------
    path : path
        Of a ``.py`` or an ``.ipynb`` file.

    Raises
    ------
    ValueError
        If the file is of another kind.
    """
    path = Path(path)
    if path.suffix not in (".py", ".ipynb"):
        raise ValueError(f"path is {str(path)!r}; it must be a .py or an .ipynb file")
    cells = _cells(path)
    os.environ.setdefault("MPLBACKEND", "Agg")
    found: dict[str, Verdict] = {}
    checked = exercises.check

    def collecting(name, answer):
        found[name] = checked(name, answer)
        return found[name]

    namespace = {"__name__": "__main__"}
    exercises.check = collecting
    try:
        for number, text in enumerate(cells, 1):
            _run(f"<{path.name}, cell {number}>", text, namespace)
    finally:
        exercises.check = checked
    return [found[name] for name in exercises.names() if name in found]


def _cells(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [text]
    cells = json.loads(text).get("cells", [])
    sources = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
    return ["".join(line for line in source.splitlines(True) if not line.startswith(("%", "!"))) for source in sources]


def _run(filename, text, namespace):
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    try:
        exec(compile(text, filename, "exec"), namespace)
    except Exception as error:  # a cell of somebody's notebook; the exercises after it count all the same
        print(f"{filename}: {type(error).__name__}: {error}", file=sys.stderr)
