"""`gpukit.results`, and the records of `gpukit bench matmul` and `gpukit bench transpose`."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from bench import __main__ as benchmarks
from bench import matmul, transpose
from gpukit import matmul as chapter
from gpukit import results, timing
from gpukit.backend import cuda

HEAD = {"gpu": "A", "driver": "1", "power_limit": 700.0, "versions": {"numba": "1"}, "date": "2026-11-21"}


def timed(seconds):
    return timing.Timing((seconds,) * 9 + (2 * seconds,))


def test_records_come_back_as_they_were(tmp_path):
    path = tmp_path / "some.json"
    records = [
        results.of_timing("matmul", "time", variant, (4, 5, 6), np.dtype(np.float32), timed(value), tile=tile)
        for variant, tile, value in (("naive", 16, 2.0), ("tiled", 16, 1.0), ("tiled", 32, 0.5))
    ]
    results.save(path, records, HEAD)
    loaded = results.load(path)
    assert loaded == [HEAD | record | {"shape": (4, 5, 6)} for record in records]
    assert loaded[0]["value"] == 2.0 and loaded[0]["unit"] == "s" and loaded[0]["n"] == 10
    assert [r["value"] for r in results.load(path, variant="tiled", shape=(4, 5, 6))] == [1.0, 0.5]
    assert [r["value"] for r in results.load(path, tile=(32, 8), variant=["naive", "tiled"])] == [0.5]
    assert results.first(loaded, variant="tiled")["value"] == 1.0
    with pytest.raises(LookupError, match="no record with variant='fast', tile=8"):
        results.first(loaded, variant="fast", tile=8)
    table = results.table(loaded, {"kernel": "variant", "ms": lambda r: f"{r['value'] * 1e3:.0f}", "pad": "pad"})
    assert table.rows == [["naive", "2000", ""], ["tiled", "1000", ""], ["tiled", "500", ""]]
    assert results.table([{"kernel": "naive", "ms": 2}, {"ms": 1, "pad": 4}]).rows == [
        ["naive", "2", ""],
        ["", "1", "4"],
    ]


def test_a_record_says_what_speaks_against_it():
    def record(samples, **further):
        return results.of_timing("matmul", "time", "naive", (4,), "float32", timing.Timing(samples, **further))

    steady, wide = (1.0, 1.0, 1.01, 1.02, 1.02), (0.5, 0.5, 1.0, 2.0, 2.0)
    found = record(steady, queued_ahead=5)
    assert set(found) - {"chapter", "case", "variant", "shape", "dtype"} == {
        "value",
        "unit",
        "spread",
        "n",
        "quartiles",
    }
    assert found["value"] == 1.01 and found["quartiles"] == [1.0, 1.02]
    assert record(wide)["invalid"] is record(wide)["launch_bound"] is True
    assert record(steady, device="cpu")["clock"] == "host"
    assert set(record(wide, device="cpu")) - set(results.FOUND) == {"chapter", "case", "variant", "shape", "dtype"}


def test_a_machine_is_what_its_driver_says(monkeypatch):
    said = "NVIDIA H200, 580.1, 700.00, 1980, [N/A]\nNVIDIA H200, 580.1, 700.00, 1980, 3201\n"
    monkeypatch.setattr(results.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    machine = results.machine(("numpy", "no-such-package"))
    assert (machine["gpu"], machine["driver"], machine["power_limit"]) == ("NVIDIA H200", "580.1", 700.0)
    assert machine["most_mhz"] == {"sm": 1980.0, "memory": None} and machine["versions"] == {"numpy": np.__version__}


def test_a_missing_file_is_named():
    with pytest.raises(
        FileNotFoundError, match="nothing.json is not there; recorded are .*ceilings-h200, .*matmul-h200"
    ):
        results.load("nothing")


@pytest.mark.parametrize("content", [b"", b'{"gpu": ', b"[]", b"3", b"{}", b'{"records": [1]}', b"\xff\xfe{}"])
def test_a_corrupted_file_is_named(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is no file of records: "):
        results.load(path)


def test_documents_figures_are_those_of_their_tables():
    first, second = results.documents("A12")["tables"]
    times = [row["milliseconds"] for row in first["rows"]]
    assert times == [113.36, 114.30, 73.32, 141.76, 107.33, 90.05, 191.80, 108.73]
    assert {row["variant"]: row["milliseconds"] for row in second["rows"]}["tiled"] == 72.75
    assert [row["milliseconds"] for row in results.documents("A10")["tables"][0]["rows"]] == [101.8, 63.5]


@pytest.fixture
def small(monkeypatch):
    """Both benchmarks at small sizes, with made-up times."""

    def bench_many(functions, **_):
        for function in functions.values():
            function()
        return {name: timed(1e-3) for name in functions}

    def counters(function, size, chapter, shape, dtype):
        return [results.record(chapter, "registers", "naive", shape, dtype, 9, "1")], True

    monkeypatch.setattr(benchmarks, "on_gpu", lambda: True)
    monkeypatch.setattr(benchmarks, "_gpu", lambda: "A")
    monkeypatch.setattr(matmul.counters, "measure_launches", counters)
    monkeypatch.setattr(timing, "bench_many", bench_many)
    monkeypatch.setattr(results, "machine", lambda: HEAD)
    monkeypatch.setattr(matmul, "PRODUCT_SIZES", ((64, np.float32, 10), (40, np.float64, None)))
    monkeypatch.setattr(transpose, "TRANSPOSE_SHAPES", ((64, 132), (65, 131)))
    monkeypatch.setattr(transpose, "OTHER_DTYPES", ((64, 132),))


@pytest.mark.parametrize("chapter", ["matmul", "transpose"])
def test_a_benchmark_writes_records(small, chapter, tmp_path, capsys):
    path = tmp_path / "records.json"
    options = ["--choices"] if chapter == "transpose" else []
    assert benchmarks.main([chapter, "--save", str(path), *options]) == 0
    assert "WRONG" not in capsys.readouterr().out
    records = results.load(path)
    keys = {json.dumps({k: v for k, v in r.items() if k not in results.FOUND}) for r in records}
    assert len(keys) == len(records), "each record is of something else"
    assert {r["dtype"] for r in records if r["case"] == "time"} == (
        {"float32", "float64"} if chapter == "matmul" else {"float32", "uint8", "uint16", "uint64"}
    )
    assert results.first(records, case="registers")["value"] == 9


@cuda.jit
def first_matrix_twice(a, b, out):
    """The documents' mistake: a @ a, which is right where both operands are alike."""
    row, col = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = out.dtype.type(0)
        for k in range(a.shape[1]):
            total += a[row, k] * a[k, col]
        out[row, col] = total


def test_a_wrong_kernel_is_not_recorded(small, monkeypatch, tmp_path, capsys):
    path = tmp_path / "records.json"
    monkeypatch.setitem(chapter.VARIANTS, "tiled_swizzled", lambda dtype, tile: first_matrix_twice)
    assert benchmarks.main(["matmul", "--quick", "--save", str(path)]) == 1
    assert "WRONG: tiled_swizzled tile 16" in capsys.readouterr().out
    recorded = {r["variant"] for r in results.load(path)}
    assert "tiled_conflict" in recorded and "tiled_swizzled" not in recorded


def test_without_a_gpu_nothing_is_timed(monkeypatch, capsys):
    monkeypatch.setattr(benchmarks, "on_gpu", lambda: False)
    assert benchmarks.main(["matmul"]) == 1
    assert "no GPU" in capsys.readouterr().err
