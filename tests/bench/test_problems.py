"""`bench.problems` and ``gpukit bench any``: random problems for gpukit's functions, small enough for the emulator."""

import json
import time

import numpy as np
import pytest

from bench import any as bench_any
from bench._child import Child
from bench.problems import FUNCTIONS, KEPT, Problem, draw
from gpukit import results

#: Sizes up to these; of reductions and transposes, elements.
SCALES = {"matmul": 40, "conv2d": 10, "reduce": 2000, "transpose": 3000, "resize": 30, "blob": 30}
SCALES |= {"scan": 2000, "histogram": 3000, "compress": 9000, "sort": 3000, "topk": 3000}
#: Problems of those whose kernels take long to translate, and of the others.
COUNTS, COUNT = {"matmul": 5, "conv2d": 3, "reduce": 4, "scan": 4, "histogram": 3, "compress": 3}, 6
COUNTS |= {"sort": 2, "topk": 2}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_random_problems_are_solved(function):
    rng = np.random.default_rng(19)
    for _ in range(COUNTS.get(function, COUNT)):
        problem = draw(function, rng, SCALES[function])
        arrays = problem.make(rng)
        before = [None if array is None else array.copy() for array in arrays]
        result = problem.call(arrays)
        assert problem.is_right(result, arrays), problem
        for array, kept in zip(arrays, before, strict=True):
            assert array is None or np.array_equal(array, kept), problem


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_wrong_result_is_seen(function):
    rng = np.random.default_rng(20)
    problem = draw(function, rng, SCALES[function])
    arrays = problem.make(rng)
    result = problem.call(arrays)
    parts = [np.array(part) for part in (result if isinstance(result, tuple) else (result,))]
    parts[0].flat[0] += 7
    assert not problem.is_right(parts if isinstance(result, tuple) else parts[0], arrays)


def test_a_product_may_be_smaller_than_a_normal_number():
    """Correctly rounded results are right; those one step further are not."""
    problem = Problem("matmul", {"lead": [[], []], "mnk": [50, 70, 2], "dtype": "float16", "layout": "TN"})
    a, b = arrays = [array * np.float16(2.0**-9) for array in problem.make(np.random.default_rng(21))]
    rounded = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)
    assert problem.is_right(rounded, arrays) and problem.is_right(problem.call(arrays), arrays)
    assert not problem.is_right(rounded + np.finfo(np.float16).smallest_subnormal, arrays)


def test_a_problem_is_told_by_its_settings():
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    for function in FUNCTIONS:
        problem = draw(function, rng)
        assert draw(function, again) == problem
        assert Problem(function, json.loads(json.dumps(problem.settings))) == problem
        assert str(problem).startswith(function) and problem.shape and problem.dtype
    assert {function for function, _ in KEPT} <= set(FUNCTIONS)


def test_processes_share_the_problems(monkeypatch, tmp_path):
    """Each answers for its own ones, also for one that fails."""

    def measure(problem, rng, lock):
        with bench_any.holding(lock, alone=True):
            if problem.function == "reduce":
                raise ValueError("made up")
        return [str(problem)], True

    monkeypatch.setattr(bench_any, "measure", measure)
    monkeypatch.setenv("GPUKIT_BENCH_ANSWERS", str(tmp_path / "answers"))
    drawn = [3, 4], 6, ["resize", "reduce"]
    for part in range(2):
        bench_any.measure_part(part, 2, drawn, None, str(tmp_path / "answers"))
    problems = bench_any.problems_of(*drawn)
    answers = [json.loads(line)[1] for line in (tmp_path / "answers").read_text().splitlines()]
    expected = [[i, [], False] if p.function == "reduce" else [i, [str(p)], True] for i, p in enumerate(problems)]
    assert sorted(answers) == expected


@pytest.mark.parametrize("timed_out", [True, False])
def test_a_process_that_ends_early_is_reported_with_its_problem(monkeypatch, capsys, timed_out):
    drawn, found = [[3], 6, ["resize", "reduce"]], {}
    ended = Child([[1, [], True]], "", -9, timed_out)
    monkeypatch.setattr(bench_any._child, "run", lambda *_, report, **__: report([[1, [], True]]) or ended)
    assert not bench_any.measure_in_child(found, 1, 2, drawn, None, "lock")
    left = bench_any.problems_of(*drawn)[3::2]
    said = capsys.readouterr().out
    assert found == {1: ended.answers} and str(left[0]) in said and f"{len(left) - 1} problems after" in said
    assert ("no answer" in said) == timed_out


def test_a_slow_library_is_called_a_few_times():
    """PyTorch scans some problems in seconds, and a process must answer within a minute."""
    calls = dict.fromkeys(("slow", "fast"), 0)

    def count(name, seconds):
        calls[name] += 1
        time.sleep(seconds)

    runs = {"slow": lambda: count("slow", 1.2 * bench_any.LONG_CALL), "fast": lambda: count("fast", 0)}
    timings = bench_any.call_times(runs)
    assert calls["slow"] <= 8 and timings["slow"].median > bench_any.LONG_CALL > timings["fast"].median
    bench_any.call_times({"fast": runs["fast"]})
    assert calls["fast"] > 8 + bench_any.CALLS * bench_any.CALL_REPEAT


def test_seeds_draw_as_each_would_alone():
    alone = [bench_any.problems_of([seed], 4, ["scan", "sort"]) for seed in (3, 4)]
    kept = len(alone[0]) - 4
    both = bench_any.problems_of([3, 4], 4, ["scan", "sort"])
    assert both[:kept] == alone[0][:kept] == alone[1][:kept]
    assert [both[kept::2], both[kept + 1 :: 2]] == [problems[kept:] for problems in alone]


def test_the_distribution_of_the_ratios():
    settings = {"shape": [3, 4], "dtype": "float32"}
    records = [
        results.record("any", "transpose", variant, (3, 4), "float32", value, problem=settings | {"turn": turn})
        for turn, values in enumerate(((1.0, 2.0, 0.5), (1.0, 1.0, 4.0), (1.0, 3.0, 2.0)))
        for variant, value in zip(("gpukit", "torch", "cupy"), values, strict=True)
    ]
    assert [ratio for ratio, _, _ in bench_any.ratios_of(records)["transpose"]] == [0.5, 1.0, 2.0]
    text = bench_any.tables(records, "device")
    assert "67%" in text and "1.00" in text and "0.50" in text
