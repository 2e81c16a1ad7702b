"""The site: lay out the pages in build/site-source, and let Sphinx build build/site from them.

README.md is the front page; docs/, the notebooks as stored, and the project's own pages follow. Written here are an API
page for each module, from its ``__all__``, a page for each file of tests that another page links to, and the traces of
the gallery.
"""

import argparse
import ast
import importlib
import inspect
import itertools
import json
import linecache
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

GALLERY = ROOT / "docs" / "gallery.md"
#: A block of Python in a page.
BLOCK = re.compile(r"^```python\n(.+?)^```\n", re.DOTALL | re.MULTILINE)

#: A block of code, code in a line, or a link of Markdown; of these only links have groups.
LINK = re.compile(r"```[\s\S]*?```|`(?:[^`\n]|\n(?!\n))+`|(?<!!)\[([^][]+)\]\(([\w./-]+)((?:#[\w-]+)?)\)")

#: The front page's contents: a heading, and the pages below it.
CONTENTS = {
    "The course": ["notebooks/[0-9]*"],
    "Guides and reference": ["docs/install", "docs/emulator", "api/index", "docs/*"],
    "The project": ["CHANGELOG", "CONTRIBUTING", "ARCHITECTURE", "SECURITY", "CODE_OF_CONDUCT"],
}

#: The modules whose public names are documented, in the order of the contents.
MODULES = {
    "Launch and look": [
        "gpukit",
        "warpstep",
        "gpukit.tracing",
        "gpukit.prediction",
        "gpukit.launching",
        "gpukit.errors",
        "warpstep.nvshmem",
    ],
    "The chapters": [
        "gpukit.indexing",
        "gpukit.matmul",
        "gpukit.transpose",
        "gpukit.streams",
        "gpukit.reduce",
        "gpukit.scan",
        "gpukit.tensor",
        "gpukit.multi",
        "gpukit.resize",
        "gpukit.conv",
        "gpukit.pitfalls",
        "gpukit.exercises",
    ],
    "Devices, times, figures": [
        "gpukit.backend",
        "gpukit.device",
        "gpukit.intrinsics",
        "gpukit.timing",
        "gpukit.results",
        "gpukit.show",
        "gpukit.plot",
    ],
}

NAMES_OF_EXAMPLES = """\
The public names of gpukit, by module. An example knows the names of its page, and what every page takes for granted:

>>> import numpy as np
>>> import gpukit
>>> from gpukit import cuda
"""


def main(argv=None):
    """Build the site. Returns Sphinx's exit status: 1 if there was a warning."""
    parser = argparse.ArgumentParser(prog="tools/make_site.py", description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the folder for both (default: build)")
    arguments = parser.parse_args(argv)
    os.environ |= {"GPUKIT_BACKEND": "emulator", "MPLBACKEND": "Agg"}  # the same pages on every machine
    source, site = arguments.build / "site-source", arguments.build / "site"
    lay_out(source)
    save_traces(site / "docs" / "traces")

    from sphinx.cmd.build import build_main

    options = ["-b", "html", "-c", str(ROOT / "docs"), "-d", str(arguments.build / "site-doctrees")]
    status = build_main([*options, "-q", "--fail-on-warning", "--keep-going", str(source), str(site)])
    if status == 0:
        print(f"site: {site / 'index.html'}")
    return status


def lay_out(source):
    """Write the pages that Sphinx reads. A page that has not changed keeps its time, so that it is not built again."""
    pages = dict(_pages()) | dict(_api())
    pages |= dict(_tests("\n".join(text for path, text in pages.items() if path.endswith(".md"))))
    for path in source.rglob("*") if source.is_dir() else ():
        if path.is_file() and str(path.relative_to(source)) not in pages:
            path.unlink()
    for name, text in pages.items():
        path, content = source / name, text if isinstance(text, bytes) else text.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


# -- what the repository holds -----------------------------------------------------------------------------------------


def _pages():
    """Yield (path, text) of the front page, docs, notebooks and the project's pages."""
    yield (
        "index.md",
        _linked(ROOT / "README.md") + "".join(_toctree(caption, pages) for caption, pages in CONTENTS.items()),
    )
    for path in [*ROOT.glob("[A-Z]*.md"), *(ROOT / "docs").glob("*.md")]:
        if path.name != "README.md":
            text = _linked(path)
            yield path.relative_to(ROOT).as_posix(), _with_traces(text) if path == GALLERY else text
    for path in [ROOT / "LICENSE", ROOT / "CITATION.cff", *(ROOT / "docs").glob("*.png")]:
        yield path.relative_to(ROOT).as_posix(), path.read_bytes()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        yield path.relative_to(ROOT).as_posix(), _notebook(path)


def _linked(path):
    """Read a page; let its links lead to where the site has a page: a package's API, a test, the front page.

    A link to any other folder keeps only its words.
    """

    def link(match):
        words, target, anchor = match.groups()
        if words is None:  # code: `kernel[grid, block](x)` is no link
            return match[0]
        file = (path.parent / target).resolve()
        up, name = "../" * len(path.parent.relative_to(ROOT).parts), file.relative_to(ROOT).as_posix()
        if file.is_dir():
            module = name.replace("/", ".")
            return f"[{words}]({up}api/{module}.rst)" if module in itertools.chain(*MODULES.values()) else words
        if name == "README.md":
            name = "index.md"
        elif file.suffix == ".py":
            name, anchor = f"{name}.md", f"#{words}" if words.startswith("test_") else ""
            words = words.replace("_", "_\N{ZERO WIDTH SPACE}")  # where a long name may be broken
        return f"[{words}]({up}{name}{anchor})"

    return LINK.sub(link, path.read_text(encoding="utf-8"))


def _toctree(caption, pages):
    return f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n:glob:\n\n" + "\n".join(pages) + "\n```\n"


def _notebook(path):
    """Return a notebook with what JupyterLab folds marked for Sphinx."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        folded = cell["metadata"].get("jupyter", {})
        tags = [
            tag for tag, key in (("hide-input", "source_hidden"), ("hide-output", "outputs_hidden")) if folded.get(key)
        ]
        if cell["cell_type"] == "code" and tags:
            cell["metadata"]["tags"] = tags
    return json.dumps(notebook)


# -- the gallery -------------------------------------------------------------------------------------------------------


def run_blocks(page):
    """Run each block of Python in a page by itself, and yield the names that it leaves."""
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1):
        name = f"{page.name}, block {number}"
        linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
        names = {"__name__": "__main__"}
        exec(compile(block, name, "exec"), names)
        yield names


def save_traces(folder):
    """Write the page of each trace in the gallery."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, names in enumerate(run_blocks(GALLERY), start=1):
        names["trace"].save_html(folder / f"{number}.html")


def _with_traces(text):
    """Put the page of its trace after each block of the gallery."""
    numbers = itertools.count(1)

    def block(match):
        page = f"traces/{next(numbers)}.html"
        frame = f'<iframe class="trace" src="{page}" title="Report of the trace" loading="lazy"></iframe>'
        return f'{match[0]}\n{frame}\n<p class="trace"><a href="{page}">The trace on a page of its own</a></p>\n'

    return BLOCK.sub(block, text)


# -- what is written from the code -------------------------------------------------------------------------------------


def _api():
    """Yield (path, text) of a page for each module, and of their index."""
    lines, seen = ["API reference", "=============", "", NAMES_OF_EXAMPLES, ""], {}
    for caption, modules in MODULES.items():
        about = [inspect.getdoc(importlib.import_module(module)).split("\n\n")[0] for module in modules]
        listed = [
            f"- :doc:`{module}`: {' '.join(text.removeprefix(f'{module}: ').split())}"
            for module, text in zip(modules, about, strict=True)
        ]
        lines += [caption, "-" * len(caption), "", *listed, ""]
        lines += [".. toctree::", "   :hidden:", "", *(f"   {module}" for module in modules), ""]
        for module in modules:
            yield f"api/{module}.rst", _module(module, seen)
    yield "api/index.rst", "\n".join(lines)


def _module(name, seen):
    """Write the page of a module: its docstring, then its public functions, classes and kernels.

    What an earlier page documents, which ``seen`` knows, is linked.
    """
    module = importlib.import_module(name)
    lines = [name, "=" * len(name), "", f".. py:module:: {name}", "", inspect.getdoc(module), ""]
    known = []
    for public in module.__all__:
        value = getattr(module, public)
        written = inspect.unwrap(getattr(value, "py_func", value))  # of a kernel, or of a factory that caches
        if not (isinstance(value, type) or inspect.isfunction(written)):
            continue
        if id(value) in seen:
            known.append(f":py:obj:`{public} <{seen[id(value)]}>`")
            continue
        seen[id(value)] = f"{name}.{public}"
        lines += _entry(seen[id(value)], value, written)
    return "\n".join([*lines, f"Documented elsewhere: {', '.join(known)}." if known else "", ""])


def _entry(name, value, written):
    """Return the lines that document a class, a function or a kernel."""
    if isinstance(value, type):
        return [f".. autoclass:: {name}", "   :members:", ""]
    if inspect.isfunction(value):
        return [f".. autofunction:: {name}", ""]
    from sphinx.ext.napoleon import NumpyDocstring

    text = str(NumpyDocstring(inspect.getdoc(written) or "")).splitlines()
    return [f".. py:function:: {name}{inspect.signature(written)}", "", *(f"   {line}" for line in text), ""]


def _tests(text):
    """Yield (path, text) of a page for each test file that a page links to: a section for each test, to link to."""
    for name in sorted(set(re.findall(r"\]\([./]*(tests/\w+/\w+\.py)\.md", text))):
        source = (ROOT / name).read_text(encoding="utf-8")
        lines, sections, end = source.splitlines(), [], 0
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
                if not sections:  # what the file begins with, its imports for example
                    sections, end = [_code(lines[:first])], first
                sections.append(f"({node.name})=\n## `{node.name}`\n\n{_code(lines[end : node.end_lineno])}")
                end = node.end_lineno
        yield f"{name}.md", f"---\norphan: true\n---\n\n# `{name}`\n\n" + "\n".join(sections)


def _code(lines):
    return "```python\n" + "\n".join(lines).strip("\n") + "\n```\n"


if __name__ == "__main__":
    sys.exit(main())
