"""Run somebody's file of solutions again: the same verdicts and scores on any machine."""

import json
import linecache
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpukit import exercises
from gpukit.exercises.verdict import Verdict


def verify(path: str | os.PathLike) -> list[Verdict]:
    """Run a notebook or a script, and collect the verdict of each exercise that it checks.

    The file is a program and can do whatever a program can: verify the files of people you trust, or in a container.
    Cells that raise or exit are passed over. Of several checks of one exercise the last counts. Your own progress stays
    as it is.

    Parameters
    ----------
    path : path
        Of a ``.py`` or an ``.ipynb`` file.

    Raises
    ------
    ValueError
        If the file is of another kind, or is no notebook in spite of its name.
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
        with _state_of_its_own():
            for number, text in enumerate(cells, 1):
                _run(f"<{path.name}, cell {number}>", text, namespace)
    finally:
        exercises.check = checked
    return [found[name] for name in exercises.names() if name in found]


@contextmanager
def _state_of_its_own() -> Iterator[None]:
    """Keep progress in an empty folder: the file is somebody else's."""
    before = os.environ.get("GPUKIT_STATE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUKIT_STATE"] = folder
        try:
            yield
        finally:
            os.environ.pop("GPUKIT_STATE")
            os.environ |= {} if before is None else {"GPUKIT_STATE": before}


def _cells(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [text]
    try:
        sources = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is no notebook: {type(error).__name__}: {error}") from error
    return ["".join(line for line in source.splitlines(True) if not line.startswith(("%", "!"))) for source in sources]


def _run(filename, text, namespace):
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    try:
        exec(compile(text, filename, "exec"), namespace)
    except (Exception, SystemExit) as error:  # a cell of somebody's notebook; the exercises after it count all the same
        print(f"{filename}: {type(error).__name__}: {error}", file=sys.stderr)
