"""The notebooks as committed, and the tools that make them. `make notebooks` is what runs all of them."""

import ast
import copy
import json
import os
import re
import shutil
import sys
from pathlib import Path

import notebook_pages
import notebook_run
import notebook_solve
import notebook_text
import pytest

import notebooks
from gpukit import exercises

COMMITTED = notebook_text.notebooks()
TEXTS = notebook_text.texts()
# Folders of the machine a notebook was recorded on, and addresses that change from run to run.
MACHINE = re.compile(r"(?<![\w.~/-])/(root|home|Users|tmp|work\w*|mnt|opt|usr|var|data)/[\w.-]+|\bat 0x[0-9a-f]{6,}")


def by_name(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def words(output):
    """All text in an output; pictures, whose letters are data, are left out."""
    found = [output.get("text", ""), output.get("ename", ""), *output.get("traceback", [])]
    for kind, content in output.get("data", {}).items():
        if kind == "image/svg+xml" or not kind.startswith("image/"):
            found.append(content if isinstance(content, str) else json.dumps(content))
    return "\n".join(found)


def test_every_chapter_has_a_number_of_its_own():
    numbers = [notebook_text.number(path) for path in TEXTS]
    assert numbers[0] == "00" and sorted(set(numbers)) == numbers  # 05b is the optional second part of 05
    assert all(re.fullmatch(r"\d\d[b-z]?", number) for number in numbers)
    assert [path.stem for path in COMMITTED] == [path.stem for path in TEXTS]
    assert TEXTS


def test_the_map_on_the_first_page_names_every_chapter():
    first, *others = TEXTS
    linked = re.findall(r"^# \| \[[^]]+\]\((\w+)\.ipynb\)", first.read_text(encoding="utf-8"), re.MULTILINE)
    assert linked == [path.stem for path in others]


@by_name(TEXTS)
def test_a_notebook_imports_what_a_learner_knows(path):
    """gpukit, NumPy, matplotlib and the standard library; chapter 08 compares with OpenCV."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    known = {"gpukit", "numpy", "matplotlib", *sys.stdlib_module_names} | (
        {"cv2"} if path.stem == "08_resize" else set()
    )
    assert {name.partition(".")[0] for name in imported} - known == set()


@by_name(TEXTS)
def test_notebook_agrees_with_its_text(path):
    notebook = notebook_text.read_notebook(path.parent.parent / f"{path.stem}.ipynb")
    text = notebook_text.read_text(path)
    advice = "run `make sync` after a change of the text; a change made in Jupyter has to go into the text first"
    assert [(c.cell_type, c.source) for c in notebook.cells] == [(c.cell_type, c.source) for c in text.cells], advice
    assert [c.metadata for c in notebook.cells] == [c.metadata for c in text.cells], advice


@by_name(COMMITTED)
def test_notebook_is_as_the_tools_write_it(path, tmp_path):
    import nbformat

    nbformat.validate(notebook_text.read_notebook(path))
    same = Path(shutil.copy(path, tmp_path))
    assert not notebook_text.write_notebook(notebook_text.read_notebook(same), same), "run `make sync`"


@by_name(COMMITTED)
def test_listings_show_todays_source(path):
    notebook = notebook_text.read_notebook(path)
    shown = copy.deepcopy(notebook)
    notebook_text.renew_listings(shown)
    assert [cell.outputs for cell in shown.cells if "outputs" in cell] == [
        cell.outputs for cell in notebook.cells if "outputs" in cell
    ], "run `make sync`"


def test_sync_renews_listings_and_nothing_else(course, run):
    text = "# %%\nfrom gpukit import indexing, show\n\n# %%\nshow.source(indexing.index_in_block)\n\n# %%\nobject()\n"
    (course / "text" / "02_listing.py").write_text(text)
    run("record", "02")
    path = course / "02_listing.ipynb"
    right, notebook = path.read_text(), notebook_text.read_notebook(path)
    notebook.cells[1].outputs[0].data["text/plain"] = notebook.cells[1].outputs[0].data["text/html"] = "yesterday's"
    notebook_text.write_notebook(notebook, path)
    assert path.read_text() != right
    run("sync")
    assert path.read_text() == right and "def index_in_block" in right


#: The most lines of a cell in which there is no kernel.
LONG = 20


@by_name(TEXTS)
def test_a_long_cell_holds_a_kernel_or_is_folded(path):
    """What draws a figure or fills a table belongs into gpukit or bench, or into a cell that opens folded."""

    def is_kernel(node):
        return isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)

    long = [
        cell.source.partition("\n")[0]
        for cell in notebook_text.read_text(path).cells
        if cell.cell_type == "code" and len(cell.source.splitlines()) > LONG
        if not cell.metadata.get("jupyter", {}).get("source_hidden")
        if not any(map(is_kernel, ast.walk(ast.parse(cell.source))))
    ]
    assert not long


@by_name(COMMITTED)
def test_every_cell_was_run_in_order_and_without_error(path):
    cells = [cell for cell in notebook_text.read_notebook(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `make record`"
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [words(output) for output in outputs if output.output_type == "error"]
    assert not [words(output) for output in outputs if output.get("name") == "stderr"]


@by_name(COMMITTED)
def test_cells_that_show_something_have_an_output(path):
    for cell in notebook_text.read_notebook(path).cells:
        if cell.cell_type == "code" and re.match(
            r"((print|display|(plot|show)\.\w+)\(|[\w.]+$)", cell.source.strip().splitlines()[-1]
        ):
            assert cell.outputs, f"no output below {cell.source!r}: run `make record`"


@by_name(COMMITTED)
def test_pictures_have_an_alternative_text(path):
    outputs = [output for cell in notebook_text.read_notebook(path).cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    texts = [output.metadata.get("image/png", {}).get("alt", "") for output in pictures]
    assert all(texts), "a figure needs a title or labels"


@by_name(COMMITTED)
def test_nothing_of_a_machine_in_sources_or_outputs(path):
    for cell in notebook_text.read_notebook(path).cells:
        for text in [cell.source, *map(words, cell.get("outputs", []))]:
            assert not MACHINE.search(text), f"{MACHINE.search(text)[0]} in cell {cell.source[:60]!r}"


@by_name(COMMITTED)
def test_opens_with_what_it_offers_and_asks(path):
    cells = notebook_text.read_notebook(path).cells
    assert cells[0].cell_type == "markdown"
    title, summary = notebook_pages.heading(notebook_text.read_notebook(path))
    assert title
    assert summary, "the first sentence below the title is the summary in the index"
    opening = "\n".join(cell.source for cell in cells[:3] if cell.cell_type == "markdown").lower()
    assert "you will be able to" in opening
    assert "need" in opening
    assert re.search(r"\d+ minutes", opening)


# The tools, on notebooks made for the purpose.

GOOD = """# %% [markdown]
# # A *good* one
#
# It works, as [the next](01_bad.ipynb) does not. More of it. Time: 9 minutes.
#
# ## A `section` & more

# %%
import os
print("hello from", os.getcwd())

# %% jupyter={"source_hidden": true}
object()

# %% jupyter={"outputs_hidden": true}
class Figure:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"image/png": "iVBORw0="}, {"image/png": {"alt": "Time & place", "width": 9}}

Figure()
"""
BAD = """# %% [markdown]
# # Bad

# %%
numerator = 1

# %%
ratio = numerator / 0
print(ratio)
"""


@pytest.fixture
def course(tmp_path):
    """A folder with two notebooks made from their texts; the second one fails in its second cell."""
    (tmp_path / "text").mkdir()
    for name, source in (("00_good", GOOD), ("01_bad", BAD)):
        (tmp_path / "text" / f"{name}.py").write_text(source)
        notebook_text.sync(tmp_path / "text" / f"{name}.py")
    return tmp_path


@pytest.fixture
def run(course, monkeypatch, capsys):
    """Run the tool on the folder; gives back its exit status and what it printed."""
    monkeypatch.setattr(notebook_run, "device_line", lambda: "a device of the test")

    def _run(command, *options):
        status = notebooks.main(["--folder", str(course), command, *options])
        return status, capsys.readouterr().out

    return _run


def test_run_names_what_fails_shows_it_and_leaves_the_notebooks(course, run):
    before = {path: path.read_bytes() for path in course.glob("*.ipynb")}
    build = course / "build"
    status, said = run("run", "--build", str(build))
    assert status == 1
    assert re.search(r"^00_good \.\.\. \d+\.\d s$", said, re.MULTILINE)
    assert "01_bad: code cell 2 failed\n    | ratio = numerator / 0\n" in said
    assert "ZeroDivisionError: division by zero" in said
    assert said.endswith("1 of 2 notebooks failed: 01_bad\n")
    assert {path: path.read_bytes() for path in course.glob("*.ipynb")} == before

    good, bad, index = ((build / f"{name}.html").read_text() for name in ("00_good", "01_bad", "index"))
    assert f"hello from {course}" in good
    assert 'href="01_bad.html"' in good
    assert "Run on a device of the test" in good
    assert good.count("<summary>Show code</summary>") == good.count("<summary>Show output</summary>") == 1
    assert 'alt="Time &amp; place"' in good
    assert "ZeroDivisionError" in bad
    assert "A good one" in index
    assert "It works, as the next does not. More of it. Time: 9 minutes.</p>" in index
    assert "9 minutes to work through. Run on a device of the test in " in index
    assert good.count('<li><a href="#A-section-&amp;-more">A <code>section</code> &amp; more</a></li>') == 2
    assert '<h2 id="A-section-&amp;-more">' in good
    assert "failed" in index

    status, said = run("run", "--build", str(build))
    assert status == 1
    assert "00_good ... up to date" in said
    assert "01_bad ... FAILED" in said
    (course / "text" / "00_good.py").write_text(GOOD + "\n# %%\nprint('changed')\n")
    run("sync")
    status, said = run("run", "--build", str(build), "00")
    assert status == 0
    assert "up to date" not in said
    assert "changed" in (build / "00_good.html").read_text()


def test_only_means_one_chapter_when_it_is_a_number(tmp_path):
    for name in ("05_fast", "05b_faster", "06_other"):
        (tmp_path / f"{name}.ipynb").write_text("")

    def chosen(*names):
        return [path.stem for path in notebooks.choose(tmp_path, names)]

    assert chosen("05") == ["05_fast"]
    assert chosen("06", "05b") == ["05b_faster", "06_other"]
    assert chosen("05_f") == ["05_fast"] and chosen("0") == chosen() == ["05_fast", "05b_faster", "06_other"]
    with pytest.raises(SystemExit, match="no notebook whose name begins with 07"):
        chosen("05", "07")


def test_a_kernel_that_dies_and_a_cell_that_hangs_are_named(tmp_path):
    import nbformat

    for source, timeout, reason in (
        ("import os; os._exit(1)", 60, "DeadKernel"),
        ("while True: pass", 1, "TimeoutError"),
    ):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        with pytest.raises(notebook_run.NotebookError, match=rf"x: code cell 1 failed(.|\n)*{reason}"):
            notebook_run.execute(notebook, "x", tmp_path, timeout)


def test_record_stores_outputs_without_the_machine(course, run, monkeypatch):
    monkeypatch.setattr(notebook_run, "ROOT", course)
    status, _ = run("record", "00")
    assert status == 0
    path = course / "00_good.ipynb"
    first = path.read_bytes()
    printed, shown, drawn = (cell.outputs[0] for cell in notebook_text.read_notebook(path).cells[1:])
    assert printed.text == "hello from .\n"
    assert shown.data["text/plain"] == "<object at 0x...>"
    assert drawn.metadata == {"image/png": {"alt": "Time & place"}}
    run("record", "00")
    assert path.read_bytes() == first


def test_sync_keeps_outputs_of_unchanged_cells_only(course, run):
    run("record", "00")
    (course / "text" / "00_good.py").write_text(GOOD.replace("object()", "object"))
    run("sync")
    kept, changed, _ = notebook_text.read_notebook(course / "00_good.ipynb").cells[1:]
    assert kept.outputs
    assert kept.execution_count == 1
    assert not changed.outputs
    assert changed.execution_count is None


def test_each_exercise_stands_in_its_chapter_as_it_is_registered():
    starters = {name: (exercises.starter(name), "") for name in exercises.names()}
    used = []
    for path in TEXTS:
        page = notebook_text.read_text(path)
        here = [name for _, name in notebook_solve.checks(page)]
        notebook_solve.fill(page, starters)
        assert {name.split("-")[0] for name in here} <= {notebook_text.number(path)}
        used += here
    assert sorted(used) == sorted(starters)


SOLVABLE = """# %%
class exercises:
    def check(name, answer):
        print(f"{name}: {'passed' if answer else 'not yet'}")

my_answer = None  # a number

# %%
exercises.check("00-count", my_answer)

# %%
def double(x):
    # About 1 line: ...
    ...


exercises.check("00-double", double(2))
"""
DOUBLE = "def double(x):\n    # About 1 line: ...\n    ...\n"


def test_a_run_with_solutions_names_a_check_that_is_not_passed(course, run, monkeypatch):
    (course / "text" / "00_good.py").write_text(SOLVABLE)
    notebook_text.sync(course / "text" / "00_good.py")
    before = (course / "00_good.ipynb").read_bytes()
    answers = {"00-count": ("my_answer = None", "my_answer = 7")}
    monkeypatch.setattr(notebook_solve, "answers", lambda: answers)

    def solved(solution):
        answers["00-double"] = DOUBLE, f"def double(x):\n    return {solution}\n"
        return run("run", "--solved", "--build", str(course / "build"), "00")

    status, said = solved("x - x")
    assert status == 1 and "00_good: code cell 3 failed\n    | def double(x):\n    |     return x - x\n" in said
    assert "00-double did not pass with its solution\n00-double: not yet" in said
    status, said = solved("2 * x")
    assert status == 0 and (course / "00_good.ipynb").read_bytes() == before
    page = (course / "build" / "solved" / "00_good.html").read_text()
    assert "00-count: passed" in page and "00-double: passed" in page
    (course / "text" / "00_good.py").write_text(SOLVABLE.replace("About 1 line", "About one line"))
    notebook_text.sync(course / "text" / "00_good.py")
    status, said = solved("2 * x")
    assert status == 1 and "00-double is checked, but its starter stands neither in that cell nor above it" in said


class TestWork:
    @pytest.fixture
    def work(self, course, run, tmp_path_factory, monkeypatch):
        """Call the tool on a folder for copies; gives back what it printed."""
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        (course / "AGENTS.md").write_text("Tutor.")

        def _work(command="work", *names):
            status, said = run(command, *names, "--work", str(course / "work"))
            assert status == 0
            return said

        return _work

    def test_copies_are_signed_and_links_lead_from_copy_to_copy(self, course, work):
        from nbformat.sign import NotebookNotary

        assert work() == ""
        made = notebook_text.read_notebook(course / "work" / "00_good.ipynb")
        assert sorted(path.name for path in (course / "work").glob("[!.]*")) == [
            "00_good.ipynb",
            "01_bad.ipynb",
            "AGENTS.md",
        ]
        assert "(01_bad.ipynb)" in made.cells[0].source
        notary = NotebookNotary()
        assert notary.check_signature(made)
        notary.store.close()

    def test_what_a_learner_changed_stays_and_a_newer_original_is_named(self, course, work):
        work()
        mine = course / "work" / "00_good.ipynb"
        mine.write_text("my work")
        assert work() == "" and mine.read_text() == "my work"
        for name in ("00_good", "01_bad"):
            (course / "text" / f"{name}.py").write_text("# %%\nprint('new')\n")
            notebook_text.sync(course / "text" / f"{name}.py")
        said = work()
        assert "newer than your copies in work/: 00_good\n" in said and "make fresh ONLY=00 " in said
        assert mine.read_text() == "my work"
        assert "new" in (course / "work" / "01_bad.ipynb").read_text(), "nobody has changed this copy"
        assert work() == said

    def test_a_fresh_copy_keeps_the_old_one(self, course, work):
        work()
        mine, backups = course / "work" / "00_good.ipynb", course / "work" / "backups"
        for version in ("first", "second"):
            mine.write_text(version)
            said = work("fresh", "00")
            assert mine.read_bytes() == (course / "00_good.ipynb").read_bytes()
            assert "your copy is now work/backups/00_good-20" in said
        assert sorted(path.read_text() for path in backups.iterdir()) == ["first", "second"]
        assert "your copy" not in work("fresh", "00"), "it was as in the course"
        with pytest.raises(SystemExit, match="which chapter"):
            work("fresh")


def test_recorded_text_loses_paths_and_addresses():
    site = os.path.dirname(os.path.dirname(pytest.__file__))
    said = f"{site}/numba/x.py:3: Warning\n/tmp/ipykernel_12/345.py:1 at {notebook_text.ROOT}/gpukit/y.py <f at 0x7fab>"
    assert notebook_run.scrub_text(said) == "site-packages/numba/x.py:3: Warning\n<cell>:1 at gpukit/y.py <f at 0x...>"
