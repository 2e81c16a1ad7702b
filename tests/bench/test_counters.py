"""What Nsight Compute counts in the kernels of a chapter, and in the cases of predictions, becomes records."""

import pytest

from bench import predictions
from bench._child import Child
from bench.evidence import counters

LAUNCHED = [{"variant": "naive", "tile": 16, "registers": 32}, {"variant": "tiled", "tile": 8, "registers": 40}]


@pytest.fixture
def ncu(monkeypatch):
    """In place of ncu: a table of one metric, "1,024" for the first launch, then one more for each."""

    def run_ncu(path, options, function, *arguments, report=None):
        metric, rows = options[-1].split(",")[-1], run_ncu.rows
        lines = [f'"{n}","kernel","{1024 + n:,}"' for n in range(rows)]
        table = "\n".join(["==PROF== Connected", f'"ID","Kernel Name","{metric}"', '"","","inst"', *lines])
        return Child(run_ncu.answers, table, 0)

    monkeypatch.setattr(counters, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(counters, "known_metrics", lambda path, metrics: ["smsp__inst_executed.sum"])
    monkeypatch.setattr(counters, "run_ncu", run_ncu)
    return run_ncu


def test_counters_of_launches_become_records(ncu):
    ncu.answers, ncu.rows = [dict(launch) for launch in LAUNCHED], 2
    records, right = counters.measure_launches(print, 64, "matmul", [64] * 3, "float32")
    assert right and [(r["variant"], r["tile"], r["case"], r["value"]) for r in records] == [
        ("naive", 16, "registers", 32),
        ("naive", 16, "instructions", 1024),
        ("tiled", 8, "registers", 40),
        ("tiled", 8, "instructions", 1025),
    ]
    assert {(r["unit"], r["dtype"], tuple(r["shape"])) for r in records} == {("1", "float32", (64, 64, 64))}


def test_a_launch_that_ncu_missed_is_an_error(ncu):
    ncu.answers, ncu.rows = [dict(launch) for launch in LAUNCHED], 1
    with pytest.raises(counters.ProfilerError, match="1 rows for 2 launches"):
        counters.measure_launches(print, 64, "matmul", [64] * 3, "float32")


def test_without_ncu_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(counters, "find_ncu", lambda: None)
    said = []
    assert counters.measure_launches(print, 64, "matmul", [64] * 3, "float32", said.append) == ([], True)
    assert predictions.count_instructions([], said.append) == ([], True) and len(said) == 2


def test_instructions_of_several_launches_add_up(ncu):
    chosen = predictions.cases(["reduce"])[:2]
    ncu.answers, ncu.rows = [2, 1], 3
    records, right = predictions.count_instructions(chosen, lambda line: None)
    assert right and [(r["each"], r["value"]) for r in records] == [([1024, 1025], 2049), ([1026], 1026)]
    assert [predictions.key_of(r) for r in records] == [case.text for case in chosen]
