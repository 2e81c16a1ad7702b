"""What the site shows beside the notebooks. `make site` builds it, and fails where a link leads nowhere."""

import ast
import inspect
import itertools
import re

import make_site
import pytest

import gpukit
from gpukit import intrinsics
from warpstep._numba import cuda
from warpstep.compiler import calls

DOCS = make_site.ROOT / "docs"


def test_code_with_brackets_is_no_link():
    assert "`kernel[grid, block, stream, bytes](args)`" in make_site._linked(DOCS / "coming-from.md")


@pytest.mark.parametrize("name", ["coming-from", "gallery"])
def test_its_code_runs(name):
    assert sum(1 for _ in make_site.run_blocks(DOCS / f"{name}.md")) > 2


def test_each_rule_of_the_emulator_names_a_test_that_there_is():
    rows = [row for row in (DOCS / "semantics.md").read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    for row in rows:
        named = re.findall(r"\[(\w+)\]\(\.\./(tests/\w+/\w+\.py)\)", row)
        assert named or row.startswith("| construct |"), row
        for test, path in named:
            tree = ast.parse((make_site.ROOT / path).read_text(encoding="utf-8"))
            assert test in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], f"{path}: {test}"


def test_each_instruction_has_a_rule():
    """What a kernel can call of ``cuda`` and of ``gpukit.intrinsics`` is named in the first column; editors know it."""
    rows = re.findall(r"^\| (.+?) \|", (DOCS / "semantics.md").read_text(encoding="utf-8"), re.MULTILINE)
    stub = (make_site.ROOT / "warpstep" / "cuda.pyi").read_text(encoding="utf-8")
    named = {name.split(".")[-1] for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    listed = [
        name for module in (cuda, cuda.atomic) for name in dir(module) if _translated(getattr(module, name, None))
    ]
    assert len(listed) > 50 and {*listed, *_callable_in_kernels()} - named == set()
    assert [name for name in listed if not re.search(rf"^ *(def )?{name}\b", stub, re.MULTILINE)] == []


def _callable_in_kernels():
    functions = {name for name in dir(intrinsics) if inspect.isfunction(getattr(intrinsics, name))}
    return {name for name in functions if not name.startswith("_")} | set(intrinsics.__all__)


def _translated(value):
    try:
        return value in calls.TABLE
    except TypeError:  # not hashable
        return False


def test_every_public_module_has_a_page():
    documented = set(itertools.chain(*make_site.MODULES.values()))
    modules = {f"gpukit.{name}" for name, (_, attribute) in gpukit._SOURCES.items() if attribute is None}
    assert modules - documented == {"gpukit.doctor"}, "list it in tools/make_site.py"
