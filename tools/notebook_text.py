"""The notebooks and their text.

``notebooks/text/*.py`` (py:percent) are the sources; ``notebooks/*.ipynb`` hold the same cells with their outputs.
"""

import ast
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"

# What a text may say about a cell: tags, and `jupyter={"source_hidden": true}` or `{"outputs_hidden": true}`.
CELL_METADATA = ("tags", "jupyter")
# All that a committed notebook says about its kernel: the same on every machine and with every Python.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "name": "python",
        "version": "3",
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "pygments_lexer": "ipython3",
    },
}


def texts(folder=NOTEBOOKS):
    """List the text sources of the notebooks in ``folder``, in the order of the course."""
    return sorted((folder / "text").glob("*.py"))


def notebooks(folder=NOTEBOOKS):
    """List the notebooks in ``folder``, in the order of the course."""
    return sorted(folder.glob("*.ipynb"))


def number(path):
    """Return the number of a chapter: ``05``, or ``05b`` for its second part."""
    return path.stem.partition("_")[0]


def read_text(path):
    """Read a py:percent file as a notebook without outputs."""
    import jupytext

    return _normal(jupytext.read(path, fmt="py:percent"))


def read_notebook(path):
    """Read a notebook with its outputs."""
    import nbformat

    return nbformat.read(path, as_version=4)


def write_notebook(notebook, path):
    """Write a notebook so that the same content gives the same bytes. Returns whether the file has changed."""
    import nbformat

    content = nbformat.writes(_normal(notebook), version=4) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == content:
        return False
    path.write_text(content, encoding="utf-8")
    return True


def sync(path):
    """Refresh the notebook of a text source: cells whose source is unchanged keep their outputs, others lose them.
    Listings of gpukit's functions are renewed.

    Returns the notebook's path, and whether it has changed.
    """
    target = path.parent.parent / f"{path.stem}.ipynb"
    notebook = read_text(path)
    if target.exists():
        _keep_outputs(notebook, read_notebook(target))
    renew_listings(notebook)
    return target, write_notebook(notebook, target)


def renew_listings(notebook):
    """Put today's source into the outputs of cells that end with ``show.source(...)``, which need no device."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any("show.source(" in cell.source for cell in cells):
        return
    names = {}
    for cell in cells:
        statements = _statements(cell.source)
        imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), "imports", "exec"), names)
        last = ast.unparse(statements[-1]) if statements else ""
        if last.startswith("show.source("):
            shown = eval(last, names)
            for output in cell.outputs:
                if "data" in output:
                    output.data |= {"text/plain": repr(shown), "text/html": shown._repr_html_()}


def _statements(source):
    """The statements of a cell; none if it has lines that are not Python's."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def _keep_outputs(notebook, old):
    """Give code cells the outputs of the old cell with the same source; jupytext's rule keeps an edited cell's too."""
    known = {}
    for cell in old.cells:
        if cell.cell_type == "code":
            known.setdefault(cell.source, []).append(cell)
    for cell in notebook.cells:
        if cell.cell_type == "code" and known.get(cell.source):
            same = known[cell.source].pop(0)
            cell.outputs, cell.execution_count = same.outputs, same.execution_count


def _normal(notebook):
    """Replace what differs from run to run: the kernel's description, cell ids, execution times."""
    import nbformat

    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen = {}
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata})
        digest = hashlib.sha1(f"{cell.cell_type}:{cell.source}".encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return notebook
