"""The command ``gpukit bench``: what runs, what is compared and judged, and its exit statuses."""

import importlib
import os
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import HEAD, record, run_of

from bench import __main__ as benchmarks
from bench import _child, common
from gpukit import on_gpu, results


@pytest.fixture
def chapters(monkeypatch):
    """``gpukit bench`` with made-up chapters on a made-up GPU: {name: its runs as (records, right) or an exception}."""
    ran, runs = [], {"one": (run_of(1.0), True), "two": (run_of(2.0, chapter="conv"), True), "tool": ([], True)}
    runs["two"][0][1]["chapter"] = "conv"

    def measured(name):
        if isinstance(runs[name], BaseException):
            raise runs[name]
        return runs[name]

    def make_module(name):
        def measurements(options):
            ran.append((name, {key: value for key, value in vars(options).items() if key in ("quick", "sizes")}))
            return [("it", lambda: measured(name))]

        def add_options(parser):
            parser.add_argument("--sizes", nargs="+", type=int, default=(1, 2))

        return SimpleNamespace(measurements=measurements, add_options=add_options, __doc__=name)

    def run_tool(options):
        ran.append(("tool", vars(options)))
        return 0

    def add_tool_options(parser):
        parser.add_argument("--brief", action="store_true")
        parser.add_argument("--save")

    commands = {name: (f"bench_{name}", f"what {name} measures") for name in runs}
    for name, (module, _) in commands.items():
        monkeypatch.setitem(sys.modules, module, make_module(name))
    tool = SimpleNamespace(run=run_tool, add_options=add_tool_options, __doc__="a tool")
    monkeypatch.setitem(sys.modules, "bench_tool", tool)
    monkeypatch.setattr(benchmarks, "COMMANDS", commands)
    monkeypatch.setattr(benchmarks, "TOOLS", {"tool": ["--brief"]})
    monkeypatch.setattr(benchmarks, "WITHOUT_GPU", ("tool", "two"))
    monkeypatch.setattr(benchmarks, "on_gpu", lambda: True)
    monkeypatch.setattr(benchmarks, "measure_apart", benchmarks.measure)  # the chapters are made up in this process
    asked = []
    monkeypatch.setattr(results, "machine", lambda: asked.append("machine") or HEAD)
    monkeypatch.setattr(common, "libraries", lambda: {"torch": SimpleNamespace()})
    benchmarks._gpu.cache_clear()
    yield SimpleNamespace(runs=runs, ran=ran, asked=asked)
    benchmarks._gpu.cache_clear()


QUICK, ALL = {"quick": True, "sizes": (1, 2)}, {"quick": False, "sizes": (1, 2)}


def test_all_chapters_run_and_are_compared(chapters, tmp_path, capsys):
    assert benchmarks.main(["--quick", "--save", str(tmp_path / "new")]) == 0
    assert chapters.ran == [("one", QUICK), ("two", QUICK)]
    printed = capsys.readouterr().out
    assert "gpukit is at least as fast in 2 of 2; the lowest ratio is 1.50." in printed
    assert "NVIDIA H200, driver 580, 700 W; 2026-11-21" in printed and "left out: cupy." in printed
    files = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert files == ["one-h200-quick.json", "two-h200-quick.json"]
    assert results.read(tmp_path / "new" / files[0])[0] == HEAD
    assert chapters.asked == ["machine"] * 3, "once for the names of all files, once for the head of each"


def die(name, path, quick):
    os._exit(3)


def die_after_the_answer(name, path, quick):
    _child.answer(0)
    os._exit(3)


def test_a_chapter_whose_process_dies_is_a_failure(chapters, tmp_path, monkeypatch, capfd):
    monkeypatch.undo()
    monkeypatch.setattr(benchmarks, "measure_in_child", die)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert benchmarks.measure_apart("axpy", tmp_path / "axpy.json", SimpleNamespace(quick=True)) == 1
    assert "FAILED: the process of axpy ended with status 3" in capfd.readouterr().err


def test_a_crash_after_all_was_measured_is_said_and_is_no_failure(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(benchmarks, "measure_in_child", die_after_the_answer)
    monkeypatch.setattr(benchmarks, "APART", ("axpy",))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert benchmarks.main(["axpy", "--save", str(tmp_path / "axpy.json")]) == 0
    assert "all was measured; then the process of axpy ended with status 3" in capfd.readouterr().err


@pytest.mark.skipif(on_gpu(), reason="it would time")
def test_a_chapter_among_others_runs_in_a_process_of_its_own(tmp_path, capfd):
    assert benchmarks.measure_apart("axpy", tmp_path / "axpy.json", SimpleNamespace(quick=True)) == 1
    assert "There is no GPU here, so there is nothing to time." in capfd.readouterr().err


def test_records_of_the_repository_bring_the_readme_up_to_date(chapters, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(benchmarks.readme, "write", lambda: written.append("README"))
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    assert benchmarks.main(["one", "--save", str(tmp_path / "elsewhere")]) == 0 and not written
    assert benchmarks.main(["one", "--save"]) == 0 and written == ["README"]
    assert (tmp_path / "one-h200.json").is_file()


def test_predictions_without_a_gpu_are_of_the_gpu_that_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "on_gpu", lambda: False)
    options = SimpleNamespace(save=tmp_path, quick=False)
    names = [benchmarks.target_of(name, options, None).name for name in ("predictions", "counters", "cpu")]
    assert names == ["predictions-h200.json", "counters-host.json", "cpu-host.json"]


def test_one_chapter_takes_its_own_options_and_file(chapters, tmp_path):
    assert benchmarks.main(["two", "--save", str(tmp_path / "x.json"), "--sizes", "3", "4"]) == 0
    assert chapters.ran == [("two", {"quick": False, "sizes": [3, 4]})]
    assert len(results.read(tmp_path / "x.json")[1]) == 2


def test_a_tool_gets_what_follows_its_name(chapters):
    assert benchmarks.main(["tool", "--save", "f"]) == 0
    assert benchmarks.main(["tool", "one"]) == 0
    alone, among_others = {"brief": False, "save": "f"}, {"brief": True, "save": None}
    assert chapters.ran == [("tool", alone), ("tool", among_others), ("one", ALL)]


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), ([], False)])
def test_a_failure_is_exit_status_1_and_the_rest_runs(chapters, failure, capsys):
    chapters.runs["one"] = failure
    assert benchmarks.main([]) == 1
    assert [name for name, _ in chapters.ran] == ["one", "two"]
    printed = capsys.readouterr()
    assert "in 1 of 1; the lowest ratio is 1.50" in printed.out
    assert ("out of memory" in printed.err) == isinstance(failure, Exception)


def test_a_chapter_that_does_not_begin_is_a_failure(chapters, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["bench_one"], "measurements", lambda options: 1 / 0)
    assert benchmarks.main([]) == 1
    printed = capsys.readouterr()
    assert "one failed" in printed.err and "in 1 of 1" in printed.out


def test_a_record_of_before_is_not_taken_for_a_new_one(chapters, tmp_path, capsys):
    path = tmp_path / "x.json"
    results.save(path, run_of(1.0), HEAD)
    chapters.runs["one"] = RuntimeError("no GPU")
    assert benchmarks.main(["one", "--save", str(path)]) == 1
    assert "ratio" not in capsys.readouterr().out and len(results.read(path)[1]) == 2


def test_an_interrupted_run_shows_what_it_has(chapters, capsys):
    chapters.runs["two"] = KeyboardInterrupt()
    assert benchmarks.main([]) == benchmarks.INTERRUPTED
    assert "in 1 of 1; the lowest ratio is 3.00" in capsys.readouterr().out


def test_without_a_gpu_the_rest_is_measured_and_said(chapters, monkeypatch, capsys):
    monkeypatch.setattr(benchmarks, "on_gpu", lambda: False)
    assert benchmarks.main([]) == 0
    assert [name for name, _ in chapters.ran] == ["tool", "two"]
    printed = capsys.readouterr().out
    assert printed.startswith("There is no GPU here.") and "a GPU: one. Recorded" in printed


@pytest.mark.parametrize(
    ("ours", "options", "status"),
    [
        (1.05, ["--max-fall", "10"], 0),
        (1.25, ["--max-fall", "10"], benchmarks.FELL),
        (1.25, ["--max-fall", "30"], 0),
        (9.0, [], 0),
    ],
)
def test_a_ratio_that_falls_is_judged(chapters, tmp_path, capsys, ours, options, status):
    folder = str(tmp_path)
    assert benchmarks.main(["--save", folder]) == 0
    chapters.runs["one"] = run_of(ours), True
    assert benchmarks.main(["--save", folder, "--compare", folder, *options]) == status, (
        "not with what it has just saved"
    )
    printed = capsys.readouterr().out
    assert "one: 1 of its 1 ratios to a library were measured again" in printed
    fell = status == benchmarks.FELL
    assert ("FELL by 20%: reduce, sum, 1,024 float32: 3.00 to 2.40: gpukit 1.000 s" in printed) == fell
    assert (f"{int(fell)} of 2 ratios to a library fell by more than that." in printed) == bool(options)
    assert ("Exit status 3." in printed) == fell
    assert benchmarks.main(["--compare", folder, "--max-fall", "1"]) == 0, "the new record is the measure now"


def test_a_wrong_result_outweighs_a_ratio_that_holds(chapters, tmp_path):
    benchmarks.main(["--save", str(tmp_path)])
    chapters.runs["one"] = run_of(1.0), False
    assert benchmarks.main(["--compare", str(tmp_path), "--max-fall", "10"]) == 1


def test_a_check_that_compares_nothing_does_not_pass(chapters, tmp_path, monkeypatch, capsys):
    folder = str(tmp_path)
    assert benchmarks.main(["--compare", folder]) == 0
    assert "gpukit bench --save makes one" in capsys.readouterr().out
    judged = partial(benchmarks.main, ["one", "--compare", folder, "--max-fall", "10"])

    def why():
        return re.search("there is no ratio to judge: (.+). Exit status 1.", capsys.readouterr().out)[1]

    assert judged() == 1 and why() == "the record has none of those that were measured"
    benchmarks.main(["--save", folder])
    chapters.runs["one"] = run_of(1.0, invalid=True), True
    assert judged() == 1 and why().startswith("none was steady enough")
    chapters.runs["one"] = [record("tree", 1.0)], True
    assert judged() == 1 and why() == "no library was timed beside gpukit; not installed: cupy"
    monkeypatch.setattr(benchmarks, "on_gpu", lambda: False)
    assert judged() == 1 and why() == "libraries are timed on a GPU, and there is none here"


@pytest.mark.parametrize("other", [{"gpu": "NVIDIA A100"}, {"gpu": None, "cpu": "some CPU", "cores": 4}])
def test_another_machine_is_compared_by_ratio(chapters, tmp_path, capsys, other):
    path = tmp_path / "other.json"
    results.save(path, run_of(0.5, theirs=1.5), HEAD | other)
    assert benchmarks.main(["one", "--compare", str(path), "--max-fall", "1"]) == 0
    printed = capsys.readouterr().out
    assert "another machine, only ratios are compared" in printed and "1 of 1 are within" in printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["three"], "there is no 'three'; there are one, two, tool"),
        (["one", "two", "--sizes", "3"], "unrecognized arguments: --sizes 3"),
        (["--quick", "one"], "unrecognized arguments: one (names come first"),
        (["--save", "one"], "--save one: names come first"),
        (["one", "two", "--save", "x.json"], "several measurements need a folder"),
        (["--compare", "/not/there"], "--compare /not/there: it is not there"),
        (["one", "--max-fall", "3"], "--max-fall needs --compare"),
        (["one", "--compare", ".", "--max-fall", "-1"], "--max-fall -1: it must be a percentage, 0 or more"),
        (["one", "--compare", ".", "--max-fall", "nan"], "--max-fall nan: it must be a percentage, 0 or more"),
        (["one", "--save", "/no/folder/x.json"], "--save /no/folder/x.json: there is no folder /no/folder"),
        (["tool", "--save", "/no/folder/x.json"], "--save /no/folder/x.json: there is no folder /no/folder"),
        (["tool", "--save", "/no/folder/x"], "--save /no/folder/x: there is no folder /no/folder"),
    ],
)
def test_a_mistaken_command_is_explained(chapters, argv, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmarks.main(argv)
    assert message in capsys.readouterr().err and not chapters.ran


def test_a_folder_is_no_file_to_save_in(chapters, tmp_path, capsys):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(SystemExit, match="2"):
        benchmarks.main(["one", "--save", str(tmp_path / "x.json")])
    assert "x.json: it cannot be written" in capsys.readouterr().err and not chapters.ran


def test_a_corrupted_record_is_named_before_anything_is_measured(chapters, tmp_path, capsys):
    path = tmp_path / "one-h200.json"
    path.write_text('{"gpu": "NVIDIA')
    assert benchmarks.main(["one", "--compare", str(path)]) == 2
    assert f"gpukit bench: {path} is no file of records: " in capsys.readouterr().err and not chapters.ran


@pytest.mark.parametrize(
    ("machine", "file"),
    [
        ("NVIDIA H200", "reduce-h200.json"),
        ("NVIDIA GeForce RTX 3090", "reduce-rtx-3090.json"),
        ("NVIDIA A100-SXM4-80GB", "reduce-a100-sxm4-80gb.json"),
        ("host", "reduce-host.json"),
    ],
)
def test_a_file_is_named_after_its_machine(machine, file):
    assert benchmarks.file_name("reduce", machine) == file
    assert benchmarks.file_name("re_duce", machine) == file.replace("reduce", "re-duce")
    assert benchmarks.file_name("reduce", machine, quick=True) == file.replace(".json", "-quick.json")


def test_every_command_has_its_module():
    for name, (module, text) in benchmarks.COMMANDS.items():
        module = importlib.import_module(module)
        assert text and callable(getattr(module, "run", None) or module.measurements), name
        assert (name in benchmarks.TOOLS) <= hasattr(module, "run")
        assert "quick" in benchmarks.make_parser([name]).parse_args([]) or name in benchmarks.TOOLS
    assert {*benchmarks.TOOLS, *benchmarks.WITHOUT_GPU, *benchmarks.ON_CPU} <= set(benchmarks.COMMANDS)


def test_ceilings_are_saved_where_they_are_predicted_from():
    options = SimpleNamespace(save=results.RECORDED, compare=results.RECORDED, quick=False)
    assert benchmarks.target_of("ceilings", options, None).parent == results.CEILINGS
    assert results.path_in(Path("elsewhere"), "ceilings-g.json") == Path("elsewhere/ceilings-g.json")


def test_recorded_ceilings_are_compared_with(monkeypatch):
    monkeypatch.setattr(benchmarks, "machine_of", lambda name: "NVIDIA H200")
    options = SimpleNamespace(compare=results.RECORDED, quick=False)
    path, head, records = benchmarks.find_record("ceilings", options)
    assert path.parent == results.CEILINGS and head["gpu"] == "NVIDIA H200" and records
