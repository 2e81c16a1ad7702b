"""What a learner has done, kept in the user's state directory."""

import html
import json
import os
import sys
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
    """Read the progress: for each exercise tries, hints, passed, score. A file that cannot be read counts as none."""
    try:
        found = json.loads(state_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}


def record(name: str, **changes) -> None:
    """Add to the record of one exercise: ``tries=1`` and ``hints=1`` are added up, the rest is set."""
    found = load()
    entry = found.setdefault(name, {"tries": 0, "hints": 0, "passed": False})
    for key, value in changes.items():
        entry[key] = entry.get(key, 0) + value if key in ("tries", "hints") else value
    path = state_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(found, indent=1), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        warnings.warn(f"progress is not kept: {error}", stacklevel=3)


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
