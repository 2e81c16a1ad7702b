"""``gpukit bench ceilings``, ``predictions`` and ``profile``: kernels are right, predictions near the records."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import gpukit
from bench import __main__ as benchmarks
from bench import ceilings, code, profile
from bench import predictions as bench
from gpukit import results, timing, transpose
from gpukit.backend import cuda
from warpstep import prediction


@pytest.mark.skipif(gpukit.on_gpu(), reason="small sizes for the emulator")
def test_kernels_that_measure_ceilings_are_right(monkeypatch):
    for name, value in {
        "count_full_blocks": lambda: 2,
        "L2_BYTES": 2**16,
        "COPIED": 2**25,
        "L2_STRIDES": (1, 8),
    }.items():
        monkeypatch.setattr(ceilings, name, value)
    made = [(ceilings.multiprocessor_cases, 16), (ceilings.cache_cases, 64), (ceilings.memory_cases,)]
    for make, *turns in made:
        for case in make(*turns):
            assert case.is_right(), (case.case, case.variant)
            case.right = lambda out: bool((out == 12345).any())
            assert not case.is_right(), (case.case, case.variant)


@pytest.mark.skipif(gpukit.on_gpu(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["ceilings", "pitfalls", "profile"])
def test_without_a_gpu_nothing_is_timed(name, capsys):
    assert benchmarks.main([name]) == 1
    assert "no GPU" in capsys.readouterr().err


# -- predicted and measured --------------------------------------------------------------------------------------------


def test_most_predictions_are_near_what_was_measured():
    records = results.load(bench.RECORDED)
    assert {bench.key_of(record) for record in records} <= {case.text for case in bench.cases()}, "no dead ones"
    for name, fewest, share in ((bench.LEAST, 90, 2 / 3), (bench.EXECUTED, 70, 0.85)):
        pairs = [(least["value"], time["value"]) for least, time in bench.paired(records, name)]
        assert len(pairs) >= fewest
        assert bench.near(pairs) >= share * len(pairs)


def test_kernels_that_the_constants_were_not_taken_from_are_as_near():
    pairs = bench.paired(results.load(bench.RECORDED))
    others = [(least["value"], time["value"]) for least, time in pairs if least["chapter"] not in ("matmul", "resize")]
    assert len(others) >= 35 and bench.near(others) >= 0.75 * len(others)


def is_what_traces_say(source, chosen):
    """Compare a record's predictions with those of traces made now, with the ceilings of the record's run."""
    limits, records = bench.ceilings_of(results.read(source)[0]), results.load(source, case=bench.LEAST)
    for case in chosen:
        wanted = {"variant": case.variant, "shape": case.shape, "dtype": case.dtype, **case.options}
        seconds = sum(p.seconds for p in bench.predicted(case.traced(), ceilings=limits))
        assert seconds == pytest.approx(results.first(records, **wanted)["value"]), case


def test_the_record_is_what_traces_say_now():
    chosen = [case for case in bench.cases(["transpose"]) if case.variant in ("copy", "naive", "tiled")]
    chosen += [case for case in bench.cases(["matmul"]) if case.title in ("naive tile 16", "tiled tile 16")][:2]
    is_what_traces_say(bench.RECORDED, chosen)


@pytest.mark.parametrize("options", [[], ["--measure-only"]])
def test_a_record_made_on_a_gpu_keeps_the_ceilings_of_its_run(tmp_path, monkeypatch, options):
    chosen, path = list(bench.transposes())[:2], tmp_path / "predictions-g.json"
    limits = replace(prediction.recorded(), device="G", l2_stores=0.1e9)
    times = [record for record in results.read(bench.RECORDED)[1] if record["case"] == "time"]
    monkeypatch.setattr(bench, "FAMILIES", {"transpose": lambda: chosen})
    monkeypatch.setattr(bench, "RECORDED", path)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(bench, "on_gpu", lambda: True)
        on_gpu.setattr(results, "machine", lambda: {"gpu": "G", "date": "2026-11-21"})
        on_gpu.setattr(bench.ceilings, "measured", list)
        on_gpu.setattr(bench.prediction, "from_records", lambda records: limits)
        on_gpu.setattr(bench, "measure", lambda chosen: (times, True))
        on_gpu.setattr(bench, "count_instructions", lambda chosen: ([], True))
        on_gpu.setattr(benchmarks, "on_gpu", lambda: True)
        assert benchmarks.main(["predictions", "--save", str(path), *options]) == 0
    assert bench.ceilings_of(results.read(path)[0]) == limits != prediction.recorded()
    if "--measure-only" in options:
        monkeypatch.setattr(bench, "on_gpu", lambda: False)
        assert benchmarks.main(["predictions", "--save", str(path)]) == 0
    is_what_traces_say(path, chosen)


@pytest.mark.skipif(gpukit.on_gpu(), reason="the record is of another run")
def test_predictions_are_made_anew_and_what_was_measured_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "FAMILIES", {"transpose": lambda: list(bench.transposes())[:2]})
    path = tmp_path / "again.json"
    assert benchmarks.main(["predictions", "--save", str(path)]) == 0
    head, records = results.read(path)
    assert head == results.read(bench.RECORDED)[0]
    assert [record["variant"] for record in records if record["case"] == bench.LEAST] == ["copy", "copy_shared"]
    assert [record["case"] for record in records[:4]] == [bench.LEAST, "time", "instructions", bench.EXECUTED]
    assert all(record in results.read(bench.RECORDED)[1] for record in records if record["case"] == "instructions")
    assert "2 of 2 within a factor of 1.5" in capsys.readouterr().out


def test_near_counts_both_sides():
    assert bench.near([(1, 1), (1, 1.5), (1.5, 1), (1, 1.51), (1.51, 1)]) == 3


# -- profiles ----------------------------------------------------------------------------------------------------------

NCU = """==PROF== Connected
"ID","Process ID","Process Name","Host Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","77","python3","somewhere","tiled","Occupancy","Achieved Occupancy","%","90.90"
"0","77","python3","somewhere","tiled","SpeedOfLight","","",""
"1","77","python3","somewhere","swapped","Launch Statistics","Threads","thread","1,048,576"
"""


def test_a_report_keeps_figures_and_nothing_of_the_machine():
    rows = profile.of_ncu(NCU)
    assert rows == [
        {"kernel": "tiled", "section": "Occupancy", "metric": "Achieved Occupancy", "unit": "%", "value": "90.90"},
        {"kernel": "tiled_conflict", "section": "Launch Statistics", "metric": "Threads", "unit": "thread"}
        | {"value": "1048576"},
    ]


def test_tables_come_back_as_they_were_written(monkeypatch, tmp_path):
    rows = profile.of_ncu(NCU)
    profile.write_table(tmp_path / "a.csv", rows, "a GPU, a day")
    monkeypatch.setattr(results, "PROFILES", tmp_path)
    assert results.profile("a") == ("a GPU, a day", rows)


def test_a_timeline_is_in_order_and_begins_at_zero():
    events = [
        {"cat": "kernel", "name": "a::b::add[abi:v1](float)", "ts": 30.5, "dur": 2},
        {"cat": "cuda_driver", "name": "cuLaunchKernelEx", "ts": 10.25, "dur": 4},
        {"cat": "overhead", "name": "x", "ts": 1, "dur": 1},
        {"name": "no category"},
    ]
    first, second = profile.of_events(events)
    assert first == {"lane": "host", "name": "cuLaunchKernelEx", "begin": 0, "duration": 4}
    assert second == {"lane": "device", "name": "add", "begin": 20.25, "duration": 2}


def test_machine_code_shows_what_the_compiler_merged():
    loop = code.loop_of((profile.FOLDER / profile.SASS).read_text())
    counts = Counter(map(code.opcode, loop))
    # Sixteen multiply-adds of a tile, with a load of tile_b for each, and one of tile_a for every four.
    assert (counts["FFMA"], counts["LDS"], counts["LDS.128"]) == (16, 16, 4)
    assert code.opcode("@!P0 LDG.E R4, desc[UR6][R8.64]") == "LDG.E"


def test_recorded_profiles_name_no_machine():
    for path in profile.FOLDER.iterdir():
        text = path.read_text()
        assert not any(word in text.lower() for word in ("process", "host name", "/home", "127.0.0.1")), path


def test_the_report_the_counters_and_the_record_are_of_the_same_kernels():
    _, rows = results.profile("matmul-h200")
    wanted = {"shape": (profile.SIZE,) * 3, "dtype": "float32", "tile": profile.TILE}
    for kernel in profile.KERNELS:
        values = {row["metric"]: row["value"] for row in rows if row["kernel"] == kernel}
        for source in ("matmul-h200", bench.RECORDED):
            counted = results.first(results.load(source, case="instructions"), variant=kernel, **wanted)
            assert int(values["Executed Instructions"]) == counted["value"]


def test_cases_are_checked_before_they_are_timed(monkeypatch, capsys):
    x, out = cuda.to_device(np.ones((40, 33), np.float32)), cuda.device_array((33, 40), np.float32)
    launch = transpose.configure("tiled", (40, 33))

    def make_case(variant, expected):
        steps = [(launch, (x, out))]
        return bench.Case("transpose", variant, (40, 33), "float32", lambda: (steps, out, expected), None)

    monkeypatch.setattr(timing, "bench", lambda run, **_: run() or timing.Timing((1e-3,) * 5))
    cases = [make_case("right", lambda got: (got == 1).all()), make_case("wrong", lambda got: (got == 2).all())]
    records, right = bench.measure(cases)
    assert not right and [record["variant"] for record in records] == ["right"]
    assert "WRONG" in capsys.readouterr().out
