"""``gpukit bench naive`` checks what it times, and the record of chapter 02 is complete."""

from types import SimpleNamespace

import pytest

from bench import __main__ as benchmarks
from bench import common, naive
from bench.evidence import launch_errors as mistakes
from gpukit import cuda, on_gpu, results, timing

SASS = """
.text.naive:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDG.E R2, desc[UR4][R4.64] ;
        /*0020*/                   LDG.E R3, desc[UR4][R6.64] ;
        /*0030*/                   LDG.E R8, desc[UR4][R4.64+0x4] ;
        /*0040*/                   LDG.E R9, desc[UR4][R6.64+0x4] ;
        /*0050*/                   FFMA R10, R2, R3, R10 ;
        /*0060*/                   FFMA R10, R8, R9, R10 ;
        /*0070*/              @!P0 BRA `(.L_x_0) ;
        /*0080*/              @!P1 BRA `(.L_x_2) ;
.L_x_1:
        /*0090*/                   LDG.E R2, desc[UR4][R4.64] ;
        /*00a0*/                   LDG.E R3, desc[UR4][R6.64] ;
        /*00b0*/                   FFMA R10, R2, R3, R10 ;
        /*00c0*/               @P2 BRA `(.L_x_1) ;
.L_x_2:
        /*00d0*/                   EXIT ;
.L_x_3:
        /*00e0*/                   BRA `(.L_x_3) ;
"""


def test_grids_cover_the_result():
    assert common.grid_for((100, 1000), (32, 8)) == (32, 13)
    assert common.grid_for((100, 1000), (32, 8), rows_along_x=True) == (4, 125)


def test_instructions_are_those_of_the_unrolled_loop():
    compiled = SimpleNamespace(inspect_sass=lambda: SASS)
    kernel = SimpleNamespace(typeof_pyval=type, compile=lambda signature: compiled)
    assert naive.instructions_per_step(kernel, None) == 7 / 2


def test_every_measurement_checks_its_result(monkeypatch, capsys):
    """On the emulator too, with a clock that is not used for anything."""
    bench = timing.bench
    monkeypatch.setattr(timing, "bench", lambda fn, **_: bench(fn, device="cpu", warmup=0, repeat=1))
    monkeypatch.setattr(naive, "instructions_per_step", lambda kernel, matrix: 36.0)
    monkeypatch.setattr(naive, "BLOCKS", ((1, 1), (5, 3), (32, 8)))
    monkeypatch.setattr(naive, "END_TO_END", ((16, 16),))
    recorder = naive.Recorder(67)
    for case, measure in naive.MEASURES.items():
        if case != "library":
            measure(recorder)
    right = {r["variant"]: r["right"] for r in recorder.records if "right" in r}
    assert [name for name, value in right.items() if not value] == ["1-D grid, 32 x 32"]
    assert capsys.readouterr().out.count("\n") == len(recorder.records)
    monkeypatch.setattr(naive, "grid_for", lambda *shape, **axes: (1, 1))
    with pytest.raises(AssertionError, match="block 1 x 1 at 67: the result is wrong"):
        naive.sweep(recorder)


@pytest.mark.parametrize("n", naive.SIZES)
@pytest.mark.parametrize("case", naive.MEASURES)
def test_the_record_has_what_the_chapter_shows(case, n):
    cases = [case, "instructions"] if case == "types" else [case]
    records = results.load("naive-h200", case=cases, shape=(n, n, n), dtype="float32")
    assert records and all(r["value"] > 0 and r["gpu"].startswith("NVIDIA") and r["date"] for r in records)
    if case == "block":
        assert [tuple(r["block"]) for r in records] == list(naive.BLOCKS)
        assert all(r["right"] for r in records)
    if case == "types":
        assert {"naive", "naive_float64", "naive_uint32"} <= {r["variant"] for r in records}


def test_the_record_of_mistakes_is_complete():
    for name in mistakes.MISTAKES:
        for checked in (False, True):
            outcome = mistakes.recorded(name, checked)
            assert outcome.error or outcome.stage in ("nowhere", "no end")


@pytest.mark.skipif(on_gpu(), reason="it would run for minutes")
def test_without_a_gpu_nothing_is_timed(tmp_path, capsys):
    target = tmp_path / "naive.json"
    assert benchmarks.main(["naive", "--save", str(target)]) == 1
    assert "no GPU" in capsys.readouterr().err and not target.exists()
    with pytest.raises(FileNotFoundError, match="recorded are"):
        results.load("no-such-record")


@pytest.fixture
def quick_run(monkeypatch, tmp_path):
    bench = timing.bench
    monkeypatch.setattr(timing, "bench", lambda fn, **_: bench(fn, device="cpu", warmup=0, repeat=1))
    monkeypatch.setattr(benchmarks, "on_gpu", lambda: True)
    monkeypatch.setattr(benchmarks, "_gpu", lambda: "A")
    monkeypatch.setattr(naive.common, "machine_and_cpu", lambda: {"gpu": "A", "date": "2026-11-21"})
    cases = ("axis", "types", "incomplete")
    monkeypatch.setattr(naive, "MEASURES", {case: naive.MEASURES[case] for case in cases})
    monkeypatch.setattr(naive, "instructions_per_step", lambda kernel, matrix: 36.0)
    monkeypatch.setattr(naive, "SIZES", (67, 4096))
    path = tmp_path / "naive.json"
    return path, lambda: benchmarks.main(["naive", "--quick", "--sizes", "67", "4096", "--save", str(path)])


def test_a_quick_run_is_of_one_size(quick_run):
    path, run = quick_run
    assert run() == 0
    records = results.read(path)[1]
    assert {tuple(r["shape"]) for r in records} == {(67, 67, 67)}
    assert {r["dtype"] for r in records} == {"float32", "float64"}
    assert len({str(r) for r in records}) == len(records)


@cuda.jit
def first_matrix_twice(a, b, out):
    row, col = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = out.dtype.type(0)
        for k in range(a.shape[1]):
            total += a[row, k] * a[k, col]
        out[row, col] = total


def test_a_wrong_kernel_is_said_and_the_rest_is_kept(quick_run, monkeypatch, capsys):
    path, run = quick_run
    monkeypatch.setattr(naive.matmul, "naive_uncoalesced", first_matrix_twice)
    assert run() == 1
    assert "WRONG: axis rows, 16 x 16 at 67: the result is wrong" in capsys.readouterr().out
    kept = {(r["case"], r["variant"]) for r in results.read(path)[1]}
    assert ("axis", "columns, 16 x 16") in kept and ("types", "naive") in kept
    assert not any(variant.startswith("rows") for _, variant in kept)
