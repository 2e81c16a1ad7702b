"""The README's scripts run, its links exist, and its tables and figures are those of the records."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import wheel
import yaml

import gpukit
from bench import __main__ as benchmarks
from bench import readme
from bench.corpus import kernels
from bench.evidence import sanitizer
from gpukit import results

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
README = PAGES["README.md"]
WORDS = " ".join(" ".join(PAGES.values()).split())


def output_of(script, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_scripts_run(tmp_path):
    (script,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    report = output_of(script, tmp_path)
    assert report.split()[0] in ("False", "True")
    assert "race, line" in report and report.endswith("8\n['race']\n")

    first, traced, debugged = re.findall(r"```python\n(.+?)```", PAGES["emulator.md"], re.DOTALL)
    assert output_of(first, tmp_path).split() in (["False", "1998.0"], ["True", "1998.0"])
    report = output_of(traced, tmp_path)
    session = output_of(traced + debugged, tmp_path).removeprefix(report)
    assert re.search(r"^> +3  line \d+ +3  +3\.0$", session, re.MULTILINE) and "shift was ended" in session


def test_its_targets_and_files_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = re.findall(r"^make ([a-z]+)", README, re.MULTILINE)
    told = " ".join(re.findall(r"`make ([a-z ]+)", README)).split()
    assert shown == ["lab"]
    assert set(shown + told) <= set(targets)

    for name, page in PAGES.items():
        folder = ROOT if name == "README.md" else ROOT / "docs"
        text = re.sub(r"```.+?```|`[^`\n]+`", "", page, flags=re.DOTALL)
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
        assert [link for link in links if not (folder / link).exists()] == [], name


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.+?`) \|", PAGES["install.md"], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(extras)
    matrix = yaml.safe_load((ROOT / ".github/workflows/newest.yml").read_text())["jobs"]["extras"]["strategy"]["matrix"]
    assert set(wheel.EXTRAS) == set(matrix["extra"]) == set(extras)


def test_its_commands_are_understood(monkeypatch):
    asked = []
    monkeypatch.setattr("bench.__main__.run", lambda names, options: asked.append((names, options)) or 0)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    commands = re.findall(r"gpukit bench ?([^`#\n}]*)", re.sub(r"<!--.*?-->", "", PAGES["performance.md"]))
    for command in commands:
        words = command.split()
        if not {"NAME", "readme", "counters", "findings"} & set(words):
            assert benchmarks.main(words) == 0
    assert (["matmul", "reduce"], True) in [(names, options.quick) for names, options in asked]
    assert any(options.max_fall == 10 for _, options in asked)


# -- what is written by a command --------------------------------------------------------------------------------------


def test_its_tables_and_its_picture_are_up_to_date(capsys):
    assert readme.write(check=True) == 0, f"{capsys.readouterr()}: `gpukit bench readme` mends it"


def test_every_chapter_is_in_the_table():
    chapters = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    rows = [line for line in readme.chapters().splitlines() if "](notebooks/" in line]
    assert [re.search(r"notebooks/(.+)\.ipynb", row)[1] for row in rows] == chapters
    for chapter, row in zip(chapters, rows, strict=True):
        number, name, afterwards = (cell.strip() for cell in row.strip("|").split("|"))
        assert number == chapter.split("_")[0] and name and afterwards


def test_every_topic_of_the_documents_has_a_section():
    rows = re.findall(r"^\| ([A-E]\d+) \|.*\|(.+)\|$", PAGES["sources.md"], re.MULTILINE)
    counts = zip("ABCDE", (15, 4, 3, 3, 8), strict=True)
    assert [row for row, _ in rows] == [f"{letter}{n}" for letter, count in counts for n in range(1, count + 1)]
    for row, places in rows:
        found = re.findall(r"\[(.+?)\]\(../notebooks/(.+?)\.ipynb\)", places)
        assert found, row
        for heading, chapter in found:
            text = (readme.TEXTS / f"{chapter}.py").read_text(encoding="utf-8")
            assert re.search(rf"^# ##* {re.escape(heading)}$", text, re.MULTILINE), f"{row}: {chapter}, {heading}"


@pytest.fixture
def copies(monkeypatch, tmp_path):
    """Copies of the pages and of the picture, for the command to write."""
    tables = {tmp_path / path.name: parts for path, parts in readme.TABLES.items()}
    for path in tables:
        path.write_text(PAGES[path.name])
    monkeypatch.setattr(readme, "TABLES", tables)
    monkeypatch.setattr(readme, "PICTURE", tmp_path / "picture.png")
    return tmp_path


def test_a_table_that_drifts_is_noticed(copies, monkeypatch, capsys):
    page = copies / "performance.md"
    page.write_text(PAGES[page.name].replace("GB/s", "GB/h"))
    assert readme.write(check=True) == 1
    assert "performance.md and picture.png" in capsys.readouterr().out and not readme.PICTURE.exists()
    assert readme.write() == 0 and page.read_text() == PAGES[page.name]
    assert readme.PICTURE.read_bytes().startswith(b"\x89PNG") and readme.write(check=True) == 0
    monkeypatch.setattr(readme, "RUNGS", {"naive": "naive"})
    assert readme.write(check=True) == 1


def test_a_lost_marker_is_an_error(copies, capsys):
    page = copies / "performance.md"
    page.write_text(PAGES[page.name].replace("<!-- end of results -->", ""))
    assert readme.write() == 1
    assert "end of results" in capsys.readouterr().err
    page.unlink()
    assert readme.write() == 1 and "clone" in capsys.readouterr().err


# -- the table of results ----------------------------------------------------------------------------------------------


def recorded(monkeypatch, tmp_path, *records):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    monkeypatch.setattr(readme, "KINDS", {})
    readme._pairs.cache_clear()
    head = {"gpu": "G", "driver": "1", "power_limit": 500.0, "versions": {"numba": "2"}, "date": "2026-11-21"}
    results.save(tmp_path / "some-g.json", records, head)


def line(variant, seconds, **further):
    head = {"chapter": "c", "case": "time", "variant": variant, "shape": [1000], "dtype": "float32"}
    return head | {"value": seconds, "unit": "s", "spread": 0.0, "n": 9} | further


@pytest.fixture(autouse=True)
def fresh():
    yield
    readme._pairs.cache_clear()


@pytest.mark.parametrize(
    ("rate", "figures"),
    [({"amount": 3e9, "unit": "GB/s"}, ("1,500 GB/s", "1,000 GB/s")), ({}, ("2.000 ms", "3.000 ms"))],
)
def test_a_headline_is_the_ratio_of_its_records(monkeypatch, tmp_path, rate, figures):
    recorded(monkeypatch, tmp_path, line("fast", 2e-3), line("tuned", 1e-3), line("cublas (torch)", 3e-3))
    headline = readme.Headline("work", "some-g", "fast", {"case": "time", "shape": (1000,)}, **rate)
    monkeypatch.setattr(readme, "HEADLINES", (headline, readme.Headline("later", "other-g", "fast")))
    text = readme.measured()
    assert f"| work | {figures[0]} | {figures[1]} (cuBLAS) | **1.50** |" in text and "later" not in text
    assert "Measured on G, driver 1, 500 W; 2026-11-21 (numba 2)." in text


def test_an_unsteady_ratio_is_not_shown(monkeypatch, tmp_path):
    recorded(monkeypatch, tmp_path, line("fast", 2e-3, invalid=True), line("torch", 3e-3))
    monkeypatch.setattr(readme, "HEADLINES", (readme.Headline("work", "some-g", "fast"),))
    assert "| unsteady |" in readme.measured() and "1.50" not in readme.measured()


def test_all_problems_are_summed_by_kind(monkeypatch, tmp_path):
    times = {100: (1.0, 2.0), 200: (1.0, 0.5), 300: (1.0, 4.0)}
    records = [line(v, t, shape=[n]) for n, pair in times.items() for v, t in zip(("a", "torch"), pair, strict=True)]
    rungs = [line("a", 9.0, case="ladder"), line("torch", 1.0, case="ladder")]
    unsteady = [line("a", 9.0, shape=[7], invalid=True), line("torch", 1.0, shape=[7])]
    recorded(monkeypatch, tmp_path, *records, *rungs, *unsteady)
    monkeypatch.setattr(readme, "KINDS", {"some-g": "sums", "other-g": "others"})
    assert readme.summed().splitlines()[2:] == ["| sums | 3 | 2 | 2.00 | 0.50 (200 float32) |"]


def test_random_problems_are_shown_by_function(monkeypatch, tmp_path):
    times = [("sort", 2.0), ("sort", 0.95), ("sort, call", 0.5), ("sort, call", 3.0)]
    records = [
        line(variant, seconds, chapter="any", case=case, problem={"turn": turn})
        for turn, (case, theirs) in enumerate(times)
        for variant, seconds in (("gpukit", 1.0), ("torch", theirs))
    ]
    recorded(monkeypatch, tmp_path, *records)
    assert readme.randoms() == ""
    monkeypatch.setattr(readme, "RANDOM", "some-g")
    row = "| 2 | 50% | 100% | 1.48 | 0.95 | 50% | 50% | 1.75 | 0.50 |"
    assert readme.randoms().splitlines()[4:6] == [f"| sort {row}", f"| **all** {row}"]


def test_the_launch_headline_compares_with_the_fastest_library():
    """Whatever its name: a form that is neither gpukit's nor plain Numba's is a library's."""
    own = ("gpukit", "kernel[grid, block]", "explicit signature", "configuration bound", "both")
    launches = [r for r in results.load("streams-h200", case="launch") if not r["variant"].startswith(own)]
    (headline,) = (headline for headline in readme.HEADLINES if headline.record == "streams-h200")
    assert headline.pair().theirs["value"] == min(record["value"] for record in launches)


def test_a_headline_without_its_problem_is_an_error(monkeypatch, tmp_path):
    recorded(monkeypatch, tmp_path, line("fast", 2e-3), line("torch", 3e-3))
    with pytest.raises(readme.ReadmeError, match="has 0 problems"):
        readme.Headline("work", "some-g", "fast", {"case": "other"}).pair()


# -- figures ----------------------------------------------------------------------------------------------------------


def test_its_figures_are_those_of_the_records():
    cases = f"{len(kernels.CASES)} kernels (`gpukit bench counters`)"
    assert cases in WORDS

    wrong, correct = sanitizer.PLANTED, sanitizer.CORRECT
    found = {name: {case.kind: []} if case.kind and not case.exempt else {} for name, case in (wrong | correct).items()}
    summary = sanitizer.summary(json.loads(sanitizer.RECORDED.read_text()), found).splitlines()
    counts = {row[:20].strip(): row[20:43].strip() for row in summary[1:]}
    simulator = counts["Numba's simulator"]
    assert (
        f"of {len(wrong)} small wrong kernels the trace finds {counts['gpukit.trace']} at their line, "
        f"compute-sanitizer's four tools together {counts['any of these']}, Numba's simulator {simulator}. Of "
        f"{len(correct)} correct kernels"
    ) in WORDS

    for name, words in (
        ("compatibility", "Of the {0:,} tests that come with numba-cuda"),
        ("compatibility", "the emulator passes {emulator:,} and Numba's simulator {simulator:,};"),
        (
            "compatibility-mlir",
            "of the {0:,} of numba-cuda-mlir {version}, which has no simulator, the emulator passes",
        ),
        ("compatibility-mlir", "the emulator passes {emulator:,} ("),
    ):
        stored = json.loads((ROOT / "bench" / "records" / f"{name}.json").read_text())
        outcomes = [outcome.split() for tests in stored["tests"].values() for outcome in tests.values()]
        passed = {way: sum(o[place] == "pass" for o in outcomes) for place, way in enumerate(stored["ways"])}
        version = stored["versions"].get("numba-cuda-mlir")
        assert words.format(len(outcomes), version=version, **passed) in WORDS


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license", "type"} <= set(citation)
    assert (citation["title"], citation["version"], citation["license"]) == ("gpukit", gpukit.__version__, "MIT")
    assert all(author["name"] for author in citation["authors"])


def test_the_changes_begin_with_this_version():
    heading = re.search(r"^## (\S+?)(,|$)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading[1] == gpukit.__version__


def test_the_workflow_judges_ratios():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step for step in workflow["jobs"]["gpu"]["steps"] if "make bench" in step.get("run", "")]
    (step,) = steps
    words = re.search(r'ARGS="(.+)"', step["run"])[1].replace("$MAX_FALL", "10").split()
    assert "--max-fall" in words and "--compare" in words and step["if"]
    assert benchmarks.make_parser().parse_args(words).compare == results.RECORDED
