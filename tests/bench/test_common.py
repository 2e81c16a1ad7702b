"""`bench.common` and `bench.cpu`: a run keeps what it has, and wrong results are noticed."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from made_up import HEAD, record

from bench import __main__ as benchmarks
from bench import common, cpu
from gpukit import on_gpu, results

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
