"""``gpukit bench emulator``: both sides are measured and checked."""

from dataclasses import replace

import numpy as np
import pytest

from bench import __main__ as benchmarks
from bench import _child, emulator, programs
from bench.emulator import Case
from gpukit import results, timing
from warpstep import cuda

TINY = (Case("vector_add", 600, 3), Case("tiled_matmul", 16, 2), Case("naive_matmul", 20, 1, simulate=False))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(emulator, "QUICK", TINY)
    monkeypatch.setattr(emulator, "QUICK_PROGRAMS", ())


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


def test_a_program_is_compared_with_a_cpu_loop_and_the_simulator(monkeypatch):
    def make_loop(body):
        return lambda items, *arguments: [body(i, *arguments) for i in range(items)]

    monkeypatch.setattr(programs, "make_loop", make_loop)  # Numba takes seconds to compile one
    rows = []
    (program,) = (p for p in emulator.PROGRAMS if p.name == "collatz")
    records, right = emulator._compared(program, 100, rows)
    assert right and {r["variant"]: r["shape"] for r in records} == {
        "emulator, first run": [100],
        "emulator, repeated": [100],
        "numba.njit(parallel=True)": [100],
        "emulator, small": [program.small],
        "simulator, small": [program.small],
    }


@pytest.mark.parametrize("program", emulator.PROGRAMS, ids=lambda p: p.name)
def test_programs_give_on_the_emulator_what_their_loops_give_in_python(program):
    items, *arrays = program.data(program.small)
    a, b, expected = (array.copy() for array in arrays)
    with np.errstate(over="ignore"):
        for step in range(min(program.steps(program.small), 20)):
            for i in range(items):
                program.body(i, step, *((b, a) if program.swaps and step % 2 else (a, b)), expected)
    steps = replace(program, steps=lambda size: min(program.steps(size), 20))
    np.testing.assert_allclose(steps.launches(cuda, program.small)(), expected, rtol=1e-9)


def forgets_the_last(a, b, out):
    i = emulator.cuda.grid(1)
    if i < out.size - 1:
        out[i] = a[i] + b[i]


def test_a_wrong_result_is_exit_status_1(tiny, monkeypatch, capsys):
    monkeypatch.setattr(emulator, "QUICK", TINY[:1])
    monkeypatch.setitem(emulator.KERNELS, "vector_add", forgets_the_last)
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
