"""`gpukit.trace` counts what the hardware counts: the calibration set against the counters that Nsight Compute read on
an H200, and against figures worked out by hand.
"""

import json
import sys

import pytest

from bench import __main__ as benchmarks
from bench.corpus.kernels import CASES, GROUPS
from bench.evidence import counters

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def record():
    return counters.load(counters.RECORDED)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_counts_are_those_of_the_hardware(case, record):
    trace = counters.traced(case)
    assert not trace.findings
    comparisons = counters.compare(case, trace, record["cases"][case.name])
    assert comparisons, "nothing was compared"
    different = [f"{c.figure}: {c.traced}, hardware {c.measured}" for c in comparisons if not c.equal and not c.exempt]
    assert not different


def test_every_figure_was_measured(record):
    unmeasured = [metric for figure in counters.FIGURES for metric in figure.metrics if metric not in record["metrics"]]
    assert not unmeasured
    assert {group for case in CASES for group in case.what} == set(GROUPS)
    assert len(record["cases"]) == len(BY_NAME) == len(CASES)


# -- by hand -----------------------------------------------------------------------------------------------------------

#: Wavefronts of the loads from shared memory, and of the stores: (case, requests, wavefronts).
SHARED = [
    *((f"float32, stride {stride}", 1, 1) for stride in (1, 3, 5, 33)),
    *((f"float32, stride {stride}", 1, stride) for stride in (2, 4, 8, 16, 32)),
    ("float32, stride 6", 1, 2),
    ("float32, stride 12", 1, 4),
    ("float32, stride 24", 1, 8),
    ("uint8, stride 1", 1, 1),
    ("uint8, stride 4", 1, 1),
    ("uint8, stride 8", 1, 2),
    ("int16, stride 2", 1, 1),
    ("int16, stride 32", 1, 16),
    ("float64, stride 1", 1, 2),
    ("float64, stride 2", 1, 4),
    ("float64, stride 4", 1, 8),
    ("float64, stride 16", 1, 32),
    ("4 float32, stride 1", 1, 4),
    ("4 float32, stride 2", 1, 8),
    ("4 float32, stride 4", 1, 16),
    ("block 16x16, tile[ty][tx], padding 0", 8, 8),
    ("block 16x16, tile[tx][ty], padding 0", 8, 64),
    ("block 16x16, tile[tx][ty], padding 1", 8, 16),
    ("block 16x16, tile[tx][ty], padding 2", 8, 8),
    ("block 32x32, tile[tx][ty], padding 0", 32, 1024),
    ("block 32x32, tile[tx][ty], padding 1", 32, 32),
    ("tile_columns, pitch 16", 8, 64),
    ("tile_columns, pitch 17", 8, 16),
]
#: Sectors of one operation in global memory, 2 blocks of 128 threads: (case, operation, sectors).
GLOBAL = [
    ("global, float32, load, stride 1", "load", 32),
    ("global, float32, load, offset 1", "load", 40),
    ("global, float32, load, offset 8", "load", 32),
    ("global, float32, load, stride 2", "load", 64),
    ("global, float32, load, stride 8", "load", 256),
    ("global, float32, store, stride 32", "store", 256),
    ("global, uint8, load, stride 1", "load", 8),
    ("global, uint8, store, offset 1", "store", 16),
    ("global, float64, load, offset 1", "load", 72),
    ("global, 4 float32, stride 1, offset 0", "load", 128),
    ("global, 4 float32, stride 1, offset 1", "store", 8 * 17),
]


@pytest.mark.parametrize(("name", "requests", "wavefronts"), SHARED)
def test_wavefronts_worked_out_by_hand(name, requests, wavefronts):
    trace = counters.traced(BY_NAME[name])
    width = 4 if name.startswith("4 float32") else 2 if name.startswith("float64") else 1
    for op in ("load", "store"):
        total = trace.total("shared", op)
        assert (total.requests, total.wavefronts, total.ideal_wavefronts) == (requests, wavefronts, width * requests)
        assert total.bank_conflicts == wavefronts - width * requests


@pytest.mark.parametrize(("name", "op", "sectors"), GLOBAL)
def test_sectors_worked_out_by_hand(name, op, sectors):
    total = counters.traced(BY_NAME[name]).total("global", op)
    assert (total.requests, total.sectors) == (8, sectors)


# -- as written --------------------------------------------------------------------------------------------------------


def test_what_the_compiler_merges_is_counted_as_written():
    """The textbook's product is the one whose loop the compiler cannot see through, and counts as that does."""
    textbook, tiled = (counters.traced(BY_NAME[f"matmul, {name}"]) for name in ("textbook", "tiled"))
    for space in ("shared", "global"):
        for op in ("load", "store"):
            assert textbook.total(space, op) == tiled.total(space, op)
    # 4 blocks of 8 warps, 2 tiles of 16 steps: one load from each tile.
    assert textbook.total("shared", "load").requests == 4 * 8 * 2 * 16 * 2


def test_what_the_compiler_splits_is_counted_as_written():
    trace = counters.traced(BY_NAME["complex64, copy"])
    for op in ("load", "store"):
        total = trace.total("global", op)
        assert (total.requests, total.sectors) == (4, 128 * 8 // 32)


@pytest.mark.parametrize("case", [c for c in CASES if "local" in c.what], ids=lambda c: c.name)
def test_numba_fills_local_arrays_with_zeros(case, record):
    """What the hardware stores beyond the kernel's own stores: each word of each lane once, at 4 sectors for a warp."""
    warps, words = 2, 48 * case.inputs[1].itemsize // 4
    measured = record["cases"][case.name][counters.LOCAL_STORES]
    assert measured == counters.traced(case).total("local", "store").sectors + 4 * words * warps


@pytest.mark.parametrize("case", [c for c in CASES if c.name.startswith("shared atomic, float")], ids=lambda c: c.name)
def test_a_float_atomic_is_one_request_of_a_warp(case):
    assert counters.traced(case).total("shared", "atomic").requests == 256 // 32


# -- the command -------------------------------------------------------------------------------------------------------


def test_bench_counters_compares_with_a_record(record, tmp_path, capsys):
    """Exit status 0, 1 for a counter that differs, 2 without anything to compare with."""
    name, metric = "float32, stride 2", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
    arguments = ["counters", "--only", name, "--recorded"]
    assert benchmarks.main([*arguments, str(counters.RECORDED)]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out

    changed = json.loads(counters.RECORDED.read_text())
    changed["cases"][name][changed["metrics"].index(metric)] += 1
    file = tmp_path / "changed.json"
    counters.save(changed, file)
    assert benchmarks.main([*arguments, str(file)]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name}  "))
    assert line.split()[-6:] == ["shared", "load", "wavefronts", "2", "3", "DIFFERENT"]

    assert benchmarks.main([*arguments, str(tmp_path / "none.json")]) == 2
    assert "no recorded counters" in capsys.readouterr().err


CSV = """\
==PROF== Connected to process 7
==PROF== Profiling "exchange" - 0: 0%....50%....100% - 9 passes
"ID","Process ID","Kernel Name","Block Size","first.sum","second.sum"
"","","","","inst","inst"
"0","7","gpukit::exchange(Array<int, 1, C>)","(32, 1, 1)","1,024","n/a"
==PROF== Disconnected from process 7
"""


class Ncu:
    """In place of ncu: refuses some metrics, naming them or not, and has no column for others."""

    def __init__(self, refused, silent=False, missing=()):
        self.refused, self.silent, self.missing = set(refused), silent, set(missing)

    def __call__(self, ncu, metrics, cases, report=None):
        refused = self.refused.intersection(metrics)
        if refused:
            named = "" if self.silent else " ".join(refused)
            return f"==ERROR== Failed to find metric {named}\n", 1
        columns = [metric for metric in metrics if metric not in self.missing]
        head = ",".join(f'"{column}"' for column in ("ID", "Kernel Name", *columns))
        rows = (f'"{n}","{case.kernel.py_func.__name__}"' + ',"5"' * len(columns) for n, case in enumerate(cases))
        return "\n".join(["==PROF== Connected", head, '"",""' + ',"inst"' * len(columns), *rows]), 0


def test_a_module_runs_under_ncu_on_a_gpu_only(tmp_path):
    ncu = tmp_path / "ncu"
    ncu.write_text('#!/bin/sh\necho "$@"\necho "$GPUKIT_BACKEND" >&2\nexit 3\n')
    ncu.chmod(0o755)
    child = counters.run_ncu(str(ncu), ["--page", "raw"], counters.launch_cases, [7])
    assert child.output.split() == [
        *("--clock-control", "none", "--csv", "--print-units", "base", "--page", "raw"),
        *(sys.executable, "-m", "bench._child", "bench.evidence.counters:launch_cases", "[[7]]", "gpu"),
    ]
    assert child.status == 3


def test_ncus_table_is_read():
    ((kernel, row),) = counters.read_csv(CSV)
    assert kernel == "gpukit::exchange(Array<int, 1, C>)"
    assert row["first.sum"] == "1,024" and row["second.sum"] == "n/a"
    assert counters.read_csv("==ERROR== No kernels were profiled\n") == []


@pytest.mark.parametrize("silent", [False, True])
def test_metrics_that_ncu_does_not_know_are_left_out(monkeypatch, silent):
    refused, missing = {counters.METRICS[3], counters.METRICS[-1]}, {counters.METRICS[5]}
    monkeypatch.setattr(counters, "profile", Ncu(refused, silent, missing))
    expected = [metric for metric in counters.METRICS if metric not in refused | missing]
    assert counters.known_metrics("ncu", counters.METRICS) == expected


def test_a_measurement_is_saved_and_read_back(monkeypatch, tmp_path):
    monkeypatch.setattr(counters, "profile", Ncu({"memory_l1_wavefronts_shared"}))
    monkeypatch.setattr(counters, "_about", lambda ncu: {"gpu": "H200"})
    saved, _ = counters.measure("ncu", CASES[:3])
    counters.save(saved, tmp_path / "counters.json")
    read = counters.load(tmp_path / "counters.json")
    assert read["gpu"] == "H200" and read["unknown_metrics"] == ["memory_l1_wavefronts_shared"]
    assert read["cases"] == {case.name: dict.fromkeys(read["metrics"], 5) for case in CASES[:3]}


def test_a_launch_too_many_is_an_error(monkeypatch):
    fake = Ncu(())
    monkeypatch.setattr(counters, "profile", lambda ncu, metrics, cases, report=None: fake(ncu, metrics, CASES[:4]))
    with pytest.raises(counters.ProfilerError, match="4 launches in ncu's table, expected 3"):
        counters.measure("ncu", CASES[:3])
