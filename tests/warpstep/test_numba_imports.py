"""Where warpstep depends on Numba: in ``warpstep/_numba.py`` alone."""

import ast
from pathlib import Path

import pytest

import warpstep

ROOT = Path(warpstep.__file__).parent
FILES = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]


def imported_packages(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("source", ["import numba.cuda.core", "def f():\n    from numba import cuda"])
def test_an_import_of_numba_is_found(source):
    assert "numba" in imported_packages(source)


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "_numba.py"], ids=str)
def test_no_other_file_imports_numba_or_the_driver(path):
    found = {"numba", "numba_cuda", "llvmlite", "cuda"} & set(imported_packages((ROOT / path).read_text()))
    assert not found, f"{path} imports {found}; take it from warpstep._numba"
