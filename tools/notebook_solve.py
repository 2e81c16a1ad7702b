"""Notebooks with the solutions of their exercises in place of the starters."""

import json
import os
import re
import subprocess
import sys

from notebook_text import ROOT

CHECK = re.compile(r"\bexercises\.check\(\s*\"([^\"]+)\"")
ANSWERS = (
    "import json, sys; from gpukit import exercises as e; "
    "sys.stdout.write(json.dumps({n: (e.starter(n), e.solved(n)) for n in e.names()}))"
)


class StarterError(ValueError):
    """A notebook and the registry of exercises disagree."""


def answers():
    """Return {name: (starter, solution)} of all exercises. A child process asks: this one stays off the GPU."""
    environment = {**os.environ, "GPUKIT_BACKEND": "emulator"}
    command = [sys.executable, "-c", ANSWERS]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment).stdout)


def checks(notebook):
    """List (index of the cell, name) for each exercise that a notebook checks."""
    cells = enumerate(notebook.cells)
    return [(i, name) for i, cell in cells if cell.cell_type == "code" for name in CHECK.findall(cell.source)]


def fill(notebook, answers):
    """Put solutions in place of the starters: each in the cell of its check, or the nearest one above.

    StarterError for a check whose exercise is not among ``answers``, or whose starter does not stand there as it is.
    """
    for index, name in checks(notebook):
        if name not in answers:
            raise StarterError(f"{name} is checked, but there is no such exercise")
        starter, solution = (text.strip("\n") for text in answers[name])
        line = re.compile(rf"^{re.escape(starter)}(?=\s*(#.*)?$)", re.MULTILINE)
        above = [cell for cell in notebook.cells[index::-1] if cell.cell_type == "code" and line.search(cell.source)]
        if not above:
            raise StarterError(
                f"{name} is checked, but its starter stands neither in that cell nor above it:\n{starter}"
            )
        above[0].source = line.sub(lambda _, text=solution: text, above[0].source, count=1)


def refused(notebook):
    """List (index of the cell, what was shown) for each check of a notebook that has run and did not pass."""
    found = []
    for index, name in checks(notebook):
        outputs = notebook.cells[index].outputs
        shown = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
        if not any(f"{name}: passed" in text.splitlines() for text in shown):
            found.append((index, "\n".join([f"{name} did not pass with its solution", *shown])))
    return found
