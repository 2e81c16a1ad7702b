"""Turn notebooks that have run into HTML pages with an index."""

import html
import re
from dataclasses import dataclass
from pathlib import Path

from notebook_text import read_notebook

TEMPLATES = Path(__file__).resolve().parent
STYLE = TEMPLATES / "page" / "style.css"


@dataclass
class Chapter:
    """One line of the index: a notebook that has run, with its ``result``, or that has failed (``result`` is None)."""

    path: Path
    result: object
    title: str = ""
    summary: str = ""

    def __post_init__(self):
        self.title, self.summary = heading(read_notebook(self.path))
        self.title = self.title or self.path.stem

    @property
    def href(self):
        return f"{self.path.stem}.html"

    @property
    def ran(self):
        if self.result is None:
            return "This notebook did not run to its end"
        return f"Run on {self.result.device} in {self.result.seconds:.1f} s, {self.result.date}"


def heading(notebook):
    """The title of a notebook (its first heading) and its summary (the first sentence after that), as plain text."""
    for cell in notebook.cells:
        found = cell.cell_type == "markdown" and re.search(r"^# +(.+?) *$", cell.source, re.MULTILINE)
        if found:
            paragraph = cell.source[found.end() :].strip().split("\n\n")[0]
            sentence = re.match(r".+?[.!?](?=\s|$)", " ".join(paragraph.split()))
            starts_plainly = not re.match(r"[#>|*<!-]|\d+\.", paragraph)
            return _plain(found[1]), _plain(sentence[0]) if sentence and starts_plainly else ""
    return "", ""


def write_pages(chapters, outputs, build):
    """Write one page per chapter, and the index.

    Parameters
    ----------
    chapters : list of Chapter
        In the order of the course.
    outputs : list of pathlib.Path
        For each chapter the notebook with its outputs.
    build : pathlib.Path
        The folder that receives the pages.

    Returns
    -------
    pathlib.Path
        The index.
    """
    exporter = _exporter()
    for place, (chapter, output) in enumerate(zip(chapters, outputs, strict=True)):
        notebook = read_notebook(output)
        page = {
            "style": STYLE.read_text(encoding="utf-8"),
            "before": chapters[place - 1] if place else None,
            "after": chapters[place + 1] if place + 1 < len(chapters) else None,
            "ran": chapter.ran,
            "failed": chapter.result is None,
            "has_mathematics": any(cell.cell_type == "markdown" and "$" in cell.source for cell in notebook.cells),
        }
        notebook.metadata["title"] = f"{chapter.title} - gpukit"
        body, _ = exporter.from_notebook_node(notebook, resources={"page": page})
        (build / chapter.href).write_text(_link_pages(body, chapters), encoding="utf-8")
    index = build / "index.html"
    index.write_text(_index(chapters), encoding="utf-8")
    return index


def _exporter():
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    config = Config({"CSSHTMLHeaderPreprocessor": {"style": "default"}})
    return HTMLExporter(config=config, template_name="page", extra_template_basedirs=[str(TEMPLATES)])


def _link_pages(body, chapters):
    """Let links from notebook to notebook lead from page to page."""
    for chapter in chapters:
        body = body.replace(f'href="{chapter.path.name}', f'href="{chapter.href}')
    return body


def _index(chapters):
    rows = "\n".join(_row(chapter) for chapter in chapters)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gpukit</title>
<style>{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<h1>gpukit</h1>
<p>A course in GPU programming that runs, with a GPU or without one. Each page is a notebook as it ran on this machine;
to change its cells and run them, open it with <code>make lab</code>.</p>
<table class="chapters">
<thead><tr><th>Chapter</th><th>Run on</th><th class="number">Time</th><th class="number">Date</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</main>
</body>
</html>
"""


def _row(chapter):
    name = f'<a href="{chapter.href}">{html.escape(chapter.title)}</a>'
    summary = f'<div class="summary">{html.escape(chapter.summary)}</div>' if chapter.summary else ""
    if chapter.result is None:
        return f'<tr><td>{name}{summary}</td><td class="failed" colspan="3">failed</td></tr>'
    result = chapter.result
    return (
        f"<tr><td>{name}{summary}</td><td>{html.escape(result.device)}</td>"
        f'<td class="number">{result.seconds:.1f} s</td><td class="number">{result.date}</td></tr>'
    )


def _plain(markdown):
    """One line of Markdown as plain text: links keep their words, code and emphasis lose their marks."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"(\*\*|__|`|(?<!\w)\*|\*(?!\w))", "", text)
