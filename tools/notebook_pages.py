"""Turn notebooks that have run into HTML pages with an index."""

import re
from dataclasses import dataclass
from pathlib import Path

from notebook_run import Result, output_path, result_path
from notebook_text import read_notebook

TEMPLATES = Path(__file__).resolve().parent
PAGE = TEMPLATES / "page"


@dataclass
class Chapter:
    """A notebook that has run, or has failed if there is no ``result``."""

    path: Path
    title: str
    summary: str
    minutes: int | None
    result: Result | None

    @property
    def href(self):
        return f"{self.path.stem}.html"

    @property
    def ran(self):
        if self.result is None:
            return "This notebook did not run to its end"
        return f"Run on {self.result.device} in {self.result.seconds:.1f} s, {self.result.date}"


def heading(notebook):
    """Return the title of a notebook (its first heading) and its summary (how it goes on), as plain text."""
    for cell in notebook.cells:
        found = cell.cell_type == "markdown" and re.search(r"^# +(.+?) *$", cell.source, re.MULTILINE)
        if found:
            paragraph = cell.source[found.end() :].strip().split("\n\n")[0]
            starts_plainly = not re.match(r"[#>|*<!-]|\d+\.", paragraph)
            return _plain(found[1]), _first_sentences(_plain(" ".join(paragraph.split()))) if starts_plainly else ""
    return "", ""


def reading_time(notebook):
    """Return the minutes that the opening of a notebook states, or None."""
    opening = "\n".join(cell.source for cell in notebook.cells[:3] if cell.cell_type == "markdown")
    found = re.search(r"(\d+) minutes", opening)
    return int(found[1]) if found else None


def write_pages(paths, build):
    """Write the index, and a page for each notebook of ``paths`` that has outputs in ``build``."""
    import jinja2

    chapters = []
    for path in paths:
        if output_path(path, build).exists():
            notebook, result = read_notebook(path), Result.load(result_path(path, build))
            title, summary = heading(notebook)
            chapters.append(Chapter(path, title or path.stem, summary, reading_time(notebook), result))
    exporter, style = _exporter(), _style()
    for before, chapter, after in zip([None, *chapters], chapters, [*chapters[1:], None], strict=False):
        notebook = read_notebook(output_path(chapter.path, build))
        notebook.metadata["title"] = f"{chapter.title} - gpukit"
        has_mathematics = any(cell.cell_type == "markdown" and "$" in cell.source for cell in notebook.cells)
        page = {
            "style": style,
            "before": before,
            "chapter": chapter,
            "after": after,
            "has_mathematics": has_mathematics,
        }
        body, _ = exporter.from_notebook_node(notebook, resources={"page": page})
        for other in chapters:  # links from notebook to notebook lead from page to page
            body = body.replace(f'href="{other.path.name}', f'href="{other.href}')
        (build / chapter.href).write_text(_with_sections(body), encoding="utf-8")
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(PAGE), autoescape=True)
    index = templates.get_template("contents.html.j2").render(chapters=chapters, style=style)
    (build / "index.html").write_text(index, encoding="utf-8")


def _exporter():
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    config = Config({"CSSHTMLHeaderPreprocessor": {"style": "default"}})
    return HTMLExporter(config=config, template_name="page", extra_template_basedirs=[str(TEMPLATES)])


def _style():
    """The pages' style sheet, with colours of code for dark pages; nbconvert brings those for light ones."""
    from pygments.formatters import HtmlFormatter

    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return (PAGE / "style.css").read_text(encoding="utf-8") + f"\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _with_sections(body):
    """Put the list of a page's sections where the template asks for it."""
    found = re.findall(r'<h2 id="([^"]*)">(.*?)<a class="anchor-link"', body, re.DOTALL)
    items = "".join(f'<li><a href="#{anchor}">{words.strip()}</a></li>' for anchor, words in found)
    return body.replace("<!-- sections -->", f"<ul>{items}</ul>")


def _first_sentences(text, room=320):
    """The first sentence, and what else of the paragraph has room in a summary."""
    sentences = re.findall(r"\S.*?[.!?](?=\s|$)", text)
    kept = sentences[:1]
    for sentence in sentences[1:]:
        if len(" ".join([*kept, sentence])) > room:
            break
        kept.append(sentence)
    return " ".join(kept)


def _plain(markdown):
    """Return one line of Markdown as plain text: links keep their words, code and emphasis lose their marks."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"(\*\*|__|`|(?<!\w)\*|\*(?!\w))", "", text)
