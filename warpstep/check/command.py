"""The command ``gpukit check``."""

import argparse
import ast
import json
import os
import re
import sys
import tomllib
from functools import partial
from pathlib import Path

from warpstep.check.checking import Finding, check_text

#: The rules; docs/check.md describes them.
NAMES = {
    "GK000": "syntax-error",
    "GK101": "literal-makes-float64",
    "GK102": "integer-makes-float64",
    "GK103": "float64-argument",
    "GK104": "int64-division",
    "GK201": "unguarded-index",
    "GK202": "divergent-barrier",
    "GK203": "range-without-step",
    "GK204": "missing-barrier",
    "GK205": "update-without-atomic",
    "GK301": "shape-not-constant",
    "GK302": "numpy-in-kernel",
    "GK303": "kernel-returns-value",
    "GK304": "launch-without-configuration",
    "GK305": "swapped-configuration",
}
#: What a file has that has kernels.
_ABOUT = re.compile(r"cuda\s*\.\s*jit\b|\bfrom\s+[\w.]*cuda[\w.]*\s+import\b.*\bjit\b")
_LINE = re.compile(r"\bline (\d+)\b")
_TIMED = re.compile(r"^(\s*)%(?:time|timeit)\s+(?:-\S+\s+)*")
_SKIPPED = {"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"}


def main(argv=None) -> int:
    """Check files and folders; returns 1 if there are findings, 2 if a path or a setting is wrong."""
    parser = argparse.ArgumentParser(
        prog="gpukit check", description="Find mistakes in @cuda.jit kernels from their source."
    )
    parser.add_argument("paths", nargs="*", default=["."], metavar="FILE_OR_FOLDER", help="default: the current folder")
    parser.add_argument("--format", choices=["text", "json", "github"], default="text")
    parser.add_argument("--select", type=_codes, help="report these rules only: GK101,GK2")
    parser.add_argument("--ignore", type=_codes, help="leave these rules out")
    arguments = parser.parse_args(argv)
    try:
        select, ignore = _settings(Path.cwd())
        files = [file for path in arguments.paths for file in _files(Path(path))]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    select = arguments.select or select or ("GK",)
    ignore = arguments.ignore or ignore or ()
    found = []
    for file in files:
        for place, finding in _check(file):
            if finding.code.startswith(tuple(select)) and not finding.code.startswith(tuple(ignore)):
                found.append((file, place, finding))
    _print(found, len(files), arguments.format)
    return int(bool(found))


def _codes(text):
    codes = [code.strip() for code in text.split(",")]
    _check_codes(codes, argparse.ArgumentTypeError)
    return codes


def _check_codes(codes, error):
    for code in codes:
        if not any(code and name.startswith(code) for name in NAMES):
            raise error(f"there is no rule {code!r}; there are {', '.join(NAMES)}")


def _settings(folder):
    """Return (select, ignore) of ``[tool.gpukit.check]`` in the nearest pyproject.toml."""
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            try:
                settings = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("gpukit", {}).get("check", {})
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"{file}: {error}") from None
            for name, codes in settings.items():
                if name not in ("select", "ignore") or not isinstance(codes, list):
                    raise ValueError(
                        f"{file}: [tool.gpukit.check] has select and ignore, lists of codes; not {name} = {codes!r}"
                    )
                _check_codes(map(str, codes), ValueError)
            return settings.get("select"), settings.get("ignore")
    return None, None


def _files(path):
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path}: there is no such file or folder")
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
        found += [Path(folder, name) for name in sorted(names) if name.endswith((".py", ".ipynb"))]
    return [file for file in found if file.exists()]  # no links to what is not there


def _check(file):
    """Return (place, finding) for all findings of a file; the place of a notebook's is "cell 3:", else ""."""
    try:
        text = file.read_text("utf-8-sig", errors="replace")
    except OSError as error:
        return [("", Finding(1, 1, "GK000", f"cannot be read: {error.strerror}"))]
    if not _ABOUT.search(text):
        return []
    if file.suffix != ".ipynb":
        return [("", finding) for finding in check_text(text)]
    try:
        cells = json.loads(text)["cells"]
        sources = [(n, "".join(c["source"])) for n, c in enumerate(cells, 1) if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        return [("", Finding(1, 1, "GK000", "is not a notebook"))]
    return _check_cells(sources)


def _check_cells(sources):
    """Check the cells of a notebook as one program, without the commands of IPython and cells that are no Python."""
    lines, places = [], []
    for number, source in sources:
        cell = [_plain(line) for line in source.splitlines()]
        try:
            ast.parse("\n".join(cell))
        except (SyntaxError, ValueError):
            continue
        lines += cell
        places += [(number, line) for line in range(1, len(cell) + 1)]
    found = []
    for finding in check_text("\n".join(lines) + "\n"):
        number, line = places[finding.line - 1]
        message = _LINE.sub(partial(_in_cell, places, number), finding.message)
        found.append((f"cell {number}:", Finding(line, finding.column, finding.code, message)))
    return found


def _in_cell(places, here, match):
    cell, line = places[int(match[1]) - 1]
    return f"line {line}" + f" of cell {cell}" * (cell != here)


def _plain(line):
    """Return a line of a cell as Python."""
    line = _TIMED.sub(r"\1", line)
    code = line.lstrip()
    return line[: len(line) - len(code)] + "pass" if code.startswith(("%", "!", "?")) else line


def _print(found, count, style):
    if style == "json":
        rows = [
            {"file": str(file), "cell": int(place[5:-1]) if place else None, "line": f.line, "column": f.column}
            | {"code": f.code, "name": NAMES[f.code], "message": f.message}
            for file, place, f in found
        ]
        print(json.dumps(rows, indent=2))
        return
    for file, place, f in found:
        if style == "github":
            text = f"{f.code} {place}{f.message}".replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            print(f"::error file={file},line={f.line},col={f.column},title=gpukit {f.code}::{text}")
        else:
            print(f"{file}:{place}{f.line}:{f.column}: {f.code} {f.message}")
    if style == "text":
        many = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "No findings"
        print(f"{many} in {count} file{'s' * (count != 1)}.", file=sys.stderr)
