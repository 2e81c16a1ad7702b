"""Where warpstep depends on Numba: in a file for each of the compilers that it can use."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import warpstep

ROOT = Path(warpstep.__file__).parent
FILES = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
OF_COMPILERS = "_numba_cuda.py", "_numba_cuda_quick.py", "_numba_cuda_mlir.py"


def imported_packages(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("source", ["import numba.cuda.core", "def f():\n    from numba import cuda"])
def test_an_import_of_numba_is_found(source):
    assert "numba" in imported_packages(source)


@pytest.mark.parametrize("path", [path for path in FILES if path.name not in OF_COMPILERS], ids=str)
def test_no_other_file_imports_numba_or_the_driver(path):
    found = {"numba", "numba_cuda", "numba_cuda_mlir", "llvmlite", "cuda"} & set(
        imported_packages((ROOT / path).read_text())
    )
    if path == Path("threadwise", "engine.py"):  # the optional LLVM, without which the emulator works too
        found.discard("llvmlite")
    assert not found, f"{path} imports {found}; take it from warpstep._numba"


ALONE = """
import sys
sys.modules["gpukit"] = sys.modules["bench"] = None  # an import of them fails
import numpy as np
import warpstep
from warpstep import cuda, run

@cuda.jit
def add(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] + 1

x = np.zeros(64, np.float32)
trace = warpstep.trace(add[2, 32], x, x)
print(trace.total("global", "load").sectors, len(trace.findings), "add" in str(trace), trace.predict().seconds > 0)
with run.emulated():
    print(run.installed(), x.sum())
"""


def test_warpstep_works_without_gpukit():
    result = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=ROOT.parent)
    assert (result.stdout, result.stderr) == ("8 0 True True\nTrue 64.0\n", "")
