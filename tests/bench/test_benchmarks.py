"""``gpukit bench``: what runs, what is compared and judged, and that it notices wrong results."""

import importlib
import os
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import __main__ as benchmarks
from bench import _child, common, cpu, emulator, ratios
from bench.emulator import Case
from gpukit import on_gpu, results, timing

HEAD = {"gpu": "NVIDIA H200", "driver": "580", "power_limit": 700.0, "date": "2026-11-21"}


def record(variant, value, spread=0.01, **further):
    head = {"chapter": "reduce", "case": "sum", "variant": variant, "shape": [1024], "dtype": "float32"}
    return head | {"value": value, "unit": "s", "spread": spread, "n": 10} | further


# -- gpukit beside the libraries ---------------------------------------------------------------------------------------


def test_the_fastest_of_both_sides_are_compared():
    records = [record("tree", 5.0), record("wide", 2.0, tile=4), record("cupy", 4.0), record("torch (sum)", 3.0)]
    (pair,) = ratios.pairs(records)
    assert (pair.ours["variant"], pair.theirs["variant"], pair.ratio) == ("wide", "torch (sum)", 1.5)
    assert pair.valid and pair.remark == ""


@pytest.mark.parametrize(
    ("variant", "library"),
    [
        ("cuBLAS", "cublas"),
        ("cublas (torch)", "cublas"),
        ("cub", "cub"),
        ("cuda.core.launch, arguments packed before", "cuda.core"),
        ("cudnn (torch)", "cudnn"),
        ("cupy, RawKernel", "cupy"),
        ("cupyx zoom", "cupyx"),
        ("opencv, 16 cores", "opencv"),
        ("torch.add(x, y, alpha=3, out=out)", "torch"),
        ("torchvision", "torchvision"),
        ("CUDA graph of 1, replayed", None),
        ("configuration bound before, arrays of CuPy", None),
        ("reduce (torch)", None),
    ],
)
def test_every_library_is_counted(variant, library):
    assert ratios.library_of(record(variant, 1.0)) == library
    assert library in {None, *ratios.LIBRARIES}


@pytest.mark.parametrize("name", ["copy", "wide_copy", "memcpy", "torch copy", "cupy copy"])
def test_controls_are_on_no_side(name):
    (pair,) = ratios.pairs([record("tree", 5.0), record("torch", 3.0), record(name, 0.1)])
    assert (pair.ours["variant"], pair.theirs["variant"]) == ("tree", "torch")


@pytest.mark.parametrize(
    "other",
    [{"shape": [1025]}, {"dtype": "float16"}, {"case": "max"}, {"chapter": "x"}, {"clock": "host"}, {"unit": "B/s"}],
)
def test_sides_that_did_not_do_the_same_are_not_compared(other):
    assert ratios.pairs([record("tree", 5.0), record("torch", 3.0)])
    assert not ratios.pairs([record("tree", 5.0, **other), record("torch", 3.0)])


def test_what_a_library_says_of_the_problem_must_hold_for_ours():
    ours = [record("a", 1.0, stride=1), record("b", 2.0, stride=2, tile=16), record("c", 3.0)]
    (first, second) = ratios.pairs([*ours, record("cudnn (torch)", 6.0, stride=2), record("torch", 9.0, stride=(1, 2))])
    assert first.ours["variant"] == "b" and first.ratio == 3.0
    assert second.ours["variant"] == "c", "which says nothing of its stride"
    assert first.key != second.key


def test_what_is_no_distribution_or_no_rival_is_left_out():
    known, unknown = record("torch", 3.0), record("tree", 5.0, spread=None)
    assert not ratios.pairs([unknown, known])
    assert not ratios.pairs([record("loops", 5.0, case="cpu"), record("opencv", 3.0, case="cpu")])


def test_runs_in_one_file_are_not_mixed():
    records = [record("tree", 5.0), record("torch", 4.0), record("tree", 1.0, run="b"), record("torch", 3.0, run="b")]
    assert [pair.ratio for pair in ratios.pairs(records)] == [0.8, 3.0]
    assert ratios.pairs(records[1:3]) == []


def test_a_wide_spread_makes_a_ratio_invalid():
    (pair,) = ratios.pairs([record("tree", 5.0), record("torch", 3.0, spread=0.31, invalid=True)])
    assert not pair.valid and pair.remark == "INVALID: library's spread 31%"
    assert "INVALID" in str(ratios.table_of_pairs([pair]))


# -- against an earlier run --------------------------------------------------------------------------------------------


def run_of(ours, theirs=3.0, variant="tree", **further):
    return [record(variant, ours, **further), record("torch", theirs)]


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_changes_are_of_times_and_of_ratios(before, now):
    time, library, ratio = ratios.changes(run_of(now), run_of(before))
    assert (time.before, time.now, time.unit) == (before, now, "s") and library.gain == 1
    assert (ratio.before, ratio.now) == (pytest.approx(3 / before), pytest.approx(3 / now))
    assert time.gain == pytest.approx(before / now) and ratio.gain == pytest.approx(before / now)
    fallen = ratios.falls([time, library, ratio], 10)
    assert fallen == ([ratio] if ratio.gain < 0.9 else [])


def test_other_gpus_are_compared_by_ratio_only():
    (change,) = ratios.changes(run_of(3.0), run_of(1.5), times=False)
    assert change.unit == "ratio" and change.gain == 0.5


def test_a_slower_library_is_no_gain_and_a_faster_one_a_fall():
    *_, ratio = ratios.changes(run_of(1.0, theirs=2.0), run_of(1.0, theirs=3.0))
    assert ratios.falls([ratio], 30) == [ratio] and not ratios.falls([ratio], 40)


def test_what_was_not_steady_is_not_judged():
    found = ratios.changes(run_of(9.0, invalid=True), run_of(1.0))
    assert not ratios.falls(found, 10)
    assert "2 were not steady enough" in ratios.table_of_changes(found)


def test_the_table_says_what_changed():
    text = ratios.table_of_changes(ratios.changes(run_of(2.0), run_of(1.0)))
    assert re.search("slower +1.000 s +2.000 s +100%", text) and re.search("ratio fell +3.00 +1.50 +50%", text)
    assert "1 of 3 are within 3%" in text


def test_a_fall_says_which_side_changed():
    *_, ratio = ratios.changes(run_of(2.0, variant="wide"), run_of(1.0))
    assert ratio.sides == "gpukit 1.000 s (tree), now 2.000 s (wide); library 3.000 s (torch), now 3.000 s (torch)"
    worse = ratios.Change("other", 4.0, 1.0, "ratio")
    assert ratios.falls([ratio, worse], 10) == [worse, ratio]


# -- the command -------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(benchmarks, "_measure_apart", benchmarks._measure)  # the chapters are made up in this process
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


def test_a_chapter_whose_process_dies_is_a_failure(chapters, tmp_path, monkeypatch, capfd):
    monkeypatch.undo()
    monkeypatch.setattr(benchmarks, "measure_in_child", die)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert benchmarks._measure_apart("axpy", tmp_path / "axpy.json", SimpleNamespace(quick=True)) == 1
    assert "FAILED: the process of axpy ended with status 3" in capfd.readouterr().err


@pytest.mark.skipif(on_gpu(), reason="it would time")
def test_a_chapter_among_others_runs_in_a_process_of_its_own(tmp_path, capfd):
    assert benchmarks._measure_apart("axpy", tmp_path / "axpy.json", SimpleNamespace(quick=True)) == 1
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
    names = [benchmarks._target(name, options, None).name for name in ("predictions", "counters", "cpu")]
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
    ],
)
def test_a_mistaken_command_is_explained(chapters, argv, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmarks.main(argv)
    assert message in capsys.readouterr().err and not chapters.ran


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
    assert benchmarks._target("ceilings", options, None).parent == results.CEILINGS
    assert results.path_in(Path("elsewhere"), "ceilings-g.json") == Path("elsewhere/ceilings-g.json")


def test_recorded_ceilings_are_compared_with(monkeypatch):
    monkeypatch.setattr(benchmarks, "_machine", lambda name: "NVIDIA H200")
    options = SimpleNamespace(compare=results.RECORDED, quick=False)
    path, head, records = benchmarks._recorded("ceilings", options)
    assert path.parent == results.CEILINGS and head["gpu"] == "NVIDIA H200" and records


# -- what the measurements share ---------------------------------------------------------------------------------------


def test_a_run_keeps_what_it_has_and_goes_on(tmp_path, capsys, monkeypatch):
    path, seen = tmp_path / "r.json", []

    def fails():
        seen.append(len(results.read(path)[1]))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(common, "sm_mhz", lambda: 1980)
    first = [record("tree", 1.0), record("host's", 1.0, clock="host"), record("single", 1.0, spread=None)]
    measurements = [("first", lambda: (first, True)), ("second", fails), ("third", lambda: ([record("x", 1.0)], True))]
    assert not common.run(iter(measurements), path, HEAD)
    assert seen == [3], "saved after each, for a run that is cut short"
    assert [r.get("sm_mhz") for r in results.read(path)[1]] == [1980, None, None, 1980]
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "NVIDIA H200, driver 580, 700 W; 2026-11-21"
    assert lines[1] == f"[{'.' * 24}] 0/3 0:00  first" and lines[2].startswith(f"[{'#' * 8}{'.' * 16}] 1/3")
    assert "  FAILED: second" in lines and "RuntimeError: out of memory" in printed.err


def test_libraries_work_in_float32_proper(monkeypatch, capsys):
    tf32 = SimpleNamespace(allow_tf32=True)
    torch = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=tf32), cudnn=SimpleNamespace()))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", None)
    common.libraries.cache_clear()
    try:
        assert common.libraries() == {"torch": torch} and common.missing() == ["cupy"]
        assert not tf32.allow_tf32 and not torch.backends.cudnn.allow_tf32
    finally:
        common.libraries.cache_clear()
    assert capsys.readouterr().err == "cupy is not installed: left out\n"


def test_libraries_multiply_the_same_arrays(monkeypatch):
    torch = SimpleNamespace(as_tensor=lambda x, device: x if device == "cuda" else None, matmul=np.matmul)
    libraries = {"cupy": SimpleNamespace(asarray=lambda x: x, matmul=np.matmul), "torch": torch}
    monkeypatch.setattr(common, "libraries", lambda: libraries)
    a, b = np.full((2, 3), 2.0), np.ones((3, 4))
    for names in (common.LIBRARIES, ("torch",)):
        out = np.zeros((2, 4))
        runs = common.library_products(a, b, out, names)
        assert list(runs) == [f"cublas ({name})" for name in names]
        for run in runs.values():
            out[...] = 0
            run()
            assert (out == 6).all()
    libraries.clear()
    assert common.library_products(a, b, out) == {}


def test_the_clock_is_asked_of_a_gpu_only():
    mhz = common.sm_mhz()
    assert 100 < mhz < 5000 if on_gpu() else mhz is None


# -- references on the CPU ---------------------------------------------------------------------------------------------

SMALL = {"product": (17, 5, 9), "transpose": (33, 7), "sum": (1001,), "resize": (37, 51, 3)}


@pytest.mark.parametrize("case", cpu.CASES)
def test_references_agree_and_one_wrong_element_is_noticed(case):
    runs, is_right = cpu.CASES[case](SMALL[case], np.random.default_rng(1))
    for name, call in runs.items():
        found = np.array(call(), dtype=np.float64)
        assert is_right(found), name
        assert not is_right(
            np.where(np.arange(found.size).reshape(found.shape) == found.size - 1, found * 2 + 9, found)
        )
        assert not is_right(np.full_like(found, np.nan))


def test_a_wrong_reference_is_not_recorded(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cpu, "SIZES", {"sum": (SMALL["sum"],)})
    monkeypatch.setattr(cpu, "SECONDS", 1e-4)
    monkeypatch.setattr(cpu, "sum_loop", lambda x: x[:-1].sum())
    path = tmp_path / "cpu.json"
    assert benchmarks.main(["cpu", "--save", str(path)]) == 1
    assert "WRONG: one loop, one core" in capsys.readouterr().out
    head, records = results.read(path)
    assert [r["variant"] for r in records] == ["numpy", "opencv"] and head["cpu"] == results.cpu_name()
    assert all(r["clock"] == "host" for r in records)


# -- the emulator ------------------------------------------------------------------------------------------------------

TINY = (Case("vector_add", 600, 3), Case("tiled_matmul", 16, 2), Case("naive_matmul", 20, 1, simulate=False))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(emulator, "QUICK", TINY)


def test_a_run_measures_both_sides(tiny, tmp_path, capsys):
    file = tmp_path / "figures.json"
    assert benchmarks.main(["emulator", "--quick", "--save", str(file)]) == 0
    printed = capsys.readouterr().out
    head, records = results.read(file)
    assert head["cpu"] in printed.splitlines()[1]
    values = {(r["case"], r["variant"]): r["value"] for r in records}
    vector, tiled, naive = (case.title for case in TINY)
    assert len(values) == len(records) == 8 and (naive, "simulator") not in values
    assert values[tiled, "simulator"] > 0.01, "256 Python threads with barriers take longer than that"
    ratio = values[vector, "simulator"] / values[vector, "emulator, repeated"]
    assert f"{ratio:,.0f} x" in printed
    assert next(r["n"] for r in records if r["variant"] == "emulator, repeated") == 3
    assert printed.count(" right\n") == 3 and "WRONG" not in printed


def forgets_the_last(a, b, out):
    i = emulator.cuda.grid(1)
    if i < out.size - 1:
        out[i] = a[i] + b[i]


def test_a_wrong_result_is_exit_status_1(tiny, monkeypatch, capsys):
    monkeypatch.setattr(emulator, "QUICK", TINY[:1])
    monkeypatch.setattr(emulator, "vector_add", forgets_the_last)
    assert benchmarks.main(["emulator", "--quick"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_failing_simulator_is_exit_status_1(tiny, monkeypatch, capsys):
    monkeypatch.setattr(_child.sys, "executable", "/bin/false")
    assert benchmarks.main(["emulator", "--quick"]) == 1
    assert "Numba's simulator failed on vector add, 600 threads" in capsys.readouterr().err


@pytest.mark.parametrize("error", [1e-3, -1e-3, float("nan")])
def test_one_wrong_element_is_noticed(error):
    for case in TINY:
        a, b = case.inputs()
        out = a + b if case.kernel == "vector_add" else a @ b
        assert case.is_right(out, a, b)
        out.flat[-1] += error
        assert not case.is_right(out, a, b)


def test_samples_become_records():
    measured = emulator.Measured(0.5, [0.1, 0.2, 0.3])
    first, repeated = emulator.records_of(TINY[0], measured, None)
    assert (first["value"], repeated["value"], repeated["n"]) == (0.5, 0.2, 3)
    assert repeated["quartiles"] == list(timing.Timing((0.1, 0.2, 0.3)).quartiles)
    measured.right = False
    assert emulator.records_of(TINY[0], measured, emulator.Measured(1.0, right=False)) == []
