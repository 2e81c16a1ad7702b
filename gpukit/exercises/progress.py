"""What a learner has done, kept in the user's state directory."""

import html
import json
import os
import sys
import threading
import warnings
from pathlib import Path

from gpukit.exercises.verdict import Verdict


def state_file() -> Path:
    """Return the file of the progress: in ``GPUKIT_STATE`` if that is set, else where the system keeps such things."""
    named = os.environ.get("GPUKIT_STATE")
    if named:
        return Path(named) / "exercises.json"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "gpukit" / "exercises.json"


def load() -> dict[str, dict]:
    """Read the progress: for each exercise tries, hints, passed, score. What cannot be read counts as none."""
    return {name: _entry(found) for name, found in _read().items() if isinstance(found, dict)}


#: What the record of an exercise holds: a value that will do, and the types that it may have.
FIELDS = {"tries": (0, int), "hints": (0, int), "passed": (False, bool), "score": (None, int), "par": (None, int)}


def _read():
    """Read the file as it is: a later gpukit may have left more in it."""
    try:
        found = json.loads(state_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _entry(found):
    """The record of an exercise, with what is of another type replaced."""
    fields = ((key, found.get(key), *FIELDS[key]) for key in FIELDS)
    return found | {key: value if isinstance(value, kind) else default for key, value, default, kind in fields}


def record(name: str, **changes) -> None:
    """Add to the record of one exercise: ``tries=1`` and ``hints=1`` are added up, the rest is set."""
    path = state_file()
    with _lock:
        found = _read()
        before = found.get(name)
        entry = found[name] = _entry(before if isinstance(before, dict) else {})
        for key, value in changes.items():
            entry[key] = entry[key] + value if key in ("tries", "hints") else value
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.write_text(json.dumps(found, indent=1), encoding="utf-8")
            os.replace(partial, path)
        except OSError as error:
            warnings.warn(f"progress is not kept: {error}", stacklevel=4)


_lock = threading.Lock()  # of threads; two processes that write at the same moment may lose one try


def keep(verdict: Verdict) -> None:
    """Record a verdict. What has passed once stays passed, with the lowest score."""
    if verdict.untouched:
        return
    before = load().get(verdict.name, {})
    changes: dict = {"tries": 0 if before.get("passed") else 1}
    if verdict.passed:
        scores = [score for score in (before.get("score"), verdict.score) if score is not None]
        changes |= {"passed": True, "score": min(scores, default=None), "par": verdict.par}
    record(verdict.name, **changes)


class Progress:
    """The exercises of each chapter: passed, tried, not begun.

    Attributes
    ----------
    chapters : dict of str to list of str
        Names of the exercises by chapter.
    records : dict of str to dict
        Of each exercise that was tried: tries, hints, passed, score, par.
    """

    MARKS = {"passed": "■", "tried": "◧", "open": "□"}

    def __init__(self, chapters: dict[str, list[str]], records: dict[str, dict]):
        self.chapters, self.records = chapters, records

    def state(self, name: str) -> str:
        """Return "passed", "tried" or "open"."""
        entry = self.records.get(name)
        return "open" if entry is None else "passed" if entry.get("passed") else "tried"

    @property
    def passed(self) -> int:
        """int : Exercises passed."""
        return sum(self.state(name) == "passed" for names in self.chapters.values() for name in names)

    def _head(self):
        return f"{self.passed} of {sum(map(len, self.chapters.values()))} exercises passed"

    def __str__(self) -> str:
        rows = [self._head()]
        for chapter, names in self.chapters.items():
            marks = "".join(self.MARKS[self.state(name)] for name in names)
            left = [name for name in names if self.state(name) != "passed"]
            rows.append(f"  {chapter:<4}{marks:<8}  {'next: ' + left[0] if left else 'done'}")
        return "\n".join(rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = []
        for chapter, names in self.chapters.items():
            cells = "".join(self._cell(name) for name in names)
            rows.append(f'<tr><td><b>{html.escape(chapter)}</b></td><td><div align="left">{cells}</div></td></tr>')
        return f"<b>{self._head()}</b><table>{''.join(rows)}</table>"

    def _cell(self, name):
        colors = {"passed": "#24914a", "tried": "#c76a10", "open": "#888888"}  # readable on light and dark pages
        word, state = name.split("-", 1)[1], self.state(name)
        return f'<span style="color:{colors[state]}">{self.MARKS[state]}&nbsp;{html.escape(word)}</span> &ensp; '
