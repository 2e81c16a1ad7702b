"""``gpukit bench emulator``: its figures, its exit status, and that it notices a wrong result on either side."""

import json

import pytest

from gpukit import benchmarks
from gpukit.benchmarks import emulator
from gpukit.benchmarks.emulator import Case

SMALL = (Case("vector_add", 600, 3), Case("tiled_matmul", 16, 2), Case("naive_matmul", 20, 1, simulate=False))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(emulator, "QUICK", SMALL)


def test_a_run_measures_both_sides(small, tmp_path, capsys):
    file = tmp_path / "figures.json"
    assert benchmarks.main(["emulator", "--quick", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["machine"]["cpu"] in printed.splitlines()[0]
    vector, tiled, naive = record["cases"]
    assert vector["emulator_repetitions"] == 3 and vector["simulator_right"] and naive["emulator_right"]
    assert vector["ratio_repeated"] == pytest.approx(vector["simulator"] / vector["emulator_repeated"])
    assert tiled["ratio_first"] == pytest.approx(tiled["simulator"] / tiled["emulator_first"])
    assert tiled["simulator"] > 0.01, "256 Python threads with barriers take longer than that"
    assert "simulator" not in naive
    assert printed.count(" right\n") == 3 and "WRONG" not in printed


def forgets_the_last(a, b, out):
    i = emulator.cuda.grid(1)
    if i < out.size - 1:
        out[i] = a[i] + b[i]


def test_a_wrong_result_is_exit_status_1(small, monkeypatch, capsys):
    monkeypatch.setattr(emulator, "QUICK", SMALL[:1])
    monkeypatch.setattr(emulator, "vector_add", forgets_the_last)
    assert benchmarks.main(["emulator", "--quick"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_failing_simulator_is_exit_status_1(small, monkeypatch, capsys):
    monkeypatch.setattr(emulator.sys, "executable", "/bin/false")
    assert benchmarks.main(["emulator", "--quick"]) == 1
    assert "Numba's simulator failed on vector add, 600 threads" in capsys.readouterr().err


@pytest.mark.parametrize("error", [1e-3, -1e-3, float("nan")])
def test_one_wrong_element_is_noticed(error):
    for case in SMALL:
        a, b = case.inputs()
        out = a + b if case.kernel == "vector_add" else a @ b
        assert case.is_right(out, a, b)
        out.flat[-1] += error
        assert not case.is_right(out, a, b)
