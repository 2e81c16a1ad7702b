"""Copies of the notebooks to work in, so that a clone stays as it was: git and the tests see the originals only."""

import hashlib
import json
import shutil
import time
from pathlib import Path

from notebook_text import NOTEBOOKS, ROOT, notebooks, number, read_notebook

WORK = ROOT / "work"
#: In the folder of the copies: the digest of each original when its copy was made.
RECORD = ".originals.json"


def prepare(work: Path = WORK, folder: Path = NOTEBOOKS) -> list[str]:
    """Copy what is not in ``work`` yet, and what is there as it was copied and has a newer original.

    All other copies stay. Returns lines to tell the learner.
    """
    work.mkdir(exist_ok=True)
    known, newer, said = _load(work), [], []
    for original in _originals(folder):
        copy, now = work / original.name, _digest(original)
        before = known.get(original.name)
        if not copy.exists() or (before != now and _digest(copy) == before):
            _copy(original, copy)
            known[original.name] = now
        elif before != now and _digest(copy) != now:
            newer.append(original)
    _save(work, known)
    if newer:
        said = [
            f"newer than your copies in {work.name}/: {', '.join(path.stem for path in newer)}",
            f"make fresh ONLY={_quoted(newer)} takes the new ones and keeps yours as backups",
        ]
    return said


def renew(paths: list[Path], work: Path = WORK) -> list[str]:
    """Copy these originals again; a copy that differs goes to ``work/backups``, with the time in its name."""
    work.mkdir(exist_ok=True)
    known, said = _load(work), []
    for original in paths:
        copy = work / original.name
        kept = ""
        if copy.exists() and _digest(copy) != _digest(original):
            kept = f"; your copy is now {_back_up(copy).relative_to(work.parent)}"
        _copy(original, copy)
        known[original.name] = _digest(original)
        said.append(f"{work.name}/{copy.name} is as in the course{kept}")
    _save(work, known)
    return said


def _originals(folder):
    return [*notebooks(folder), *folder.glob("AGENTS.md")]


def _copy(original, copy):
    shutil.copyfile(original, copy)
    if copy.suffix == ".ipynb":
        _trust(copy)


def _trust(path):
    """Sign a notebook's outputs as one's own, so that JupyterLab shows them with their style."""
    from nbformat.sign import NotebookNotary

    try:
        notary = NotebookNotary()
        notary.sign(read_notebook(path))
        notary.store.close()
    except OSError as error:
        print(f"{path.name} is not trusted, and shows its outputs without style: {error}")


def _back_up(copy):
    folder = copy.parent / "backups"
    folder.mkdir(exist_ok=True)
    name = f"{copy.stem}-{time.strftime('%Y-%m-%d-%H%M%S')}"
    taken = sum(path.stem.startswith(name) for path in folder.iterdir())
    return copy.rename(folder / f"{name}{f'-{taken + 1}' if taken else ''}{copy.suffix}")


def _quoted(paths):
    names = " ".join(number(path) for path in paths)
    return names if len(paths) == 1 else f'"{names}"'


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _load(work):
    try:
        found = json.loads((work / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _save(work, known):
    (work / RECORD).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
