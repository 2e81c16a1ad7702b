"""Random problems through gpukit's public functions, beside every library that takes them.

Each problem is checked against a reference in float64 first. Then two times are taken: of the device, with a cold L2
cache, and of a call with the wait for its result, as a NumPy-like program makes it: new output, host's clock.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import common, ratios
from bench.problems import FUNCTIONS, KEPT, Problem, draw
from gpukit import results, timing
from gpukit.backend import cuda
from warpstep.report.table import Table

__all__ = ["add_options", "distribution", "measure", "ratios_of", "run"]

#: Repetitions of each function for the device's time; and for a call, and calls of one repetition.
REPEAT, CALLS, CALL_REPEAT = 7, 5, 7
LOWEST = 10


def add_options(parser):
    """Add the options of ``gpukit bench any``."""
    parser.add_argument("--seed", type=int, default=1, help="of the problems (default: 1)")
    parser.add_argument("--count", type=int, default=150, help="of problems, over all functions (default: 150)")
    parser.add_argument(
        "--function", action="append", choices=FUNCTIONS, help="draw for this one only; may be repeated"
    )
    parser.add_argument("--seconds", type=float, help="stop after so many")


def problems_of(seed: int, count: int, functions: list[str]) -> list[Problem]:
    """Draw the problems of a run, function by function in turns, before them the kept ones."""
    rng = np.random.default_rng(seed)
    kept = [Problem(function, settings) for function, settings in KEPT if function in functions]
    return kept + [draw(functions[i % len(functions)], rng) for i in range(count)]


def measure(problem: Problem, rng: np.random.Generator) -> tuple[list[dict[str, Any]], bool]:
    """Check a problem, and time it beside the libraries; return (records, whether the result was right)."""
    found = common.libraries()
    torch, cupy = found.get("torch"), found.get("cupy")
    torch.backends.cudnn.benchmark = True
    arrays = problem.make(rng, torch)
    began = time.perf_counter()
    right = problem.is_right(problem.call(arrays), arrays)
    first = time.perf_counter() - began
    if not right:
        print(f"  WRONG: {problem}", flush=True)
    runs = {"gpukit": problem.bind(arrays)} | problem.rivals(arrays, torch, cupy)
    for name in list(runs):
        try:
            runs[name]()
            cuda.synchronize()
        except Exception as error:  # a library that does not take this problem
            if name == "gpukit":
                raise
            print(f"  {name} does not take {problem}: {type(error).__name__}")
            del runs[name]
    device = timing.bench_many(runs, repeat=REPEAT, warmup=0.001)
    call = {name: timing.Timing(tuple(samples), name, "cpu", CALLS) for name, samples in _call_times(runs).items()}
    what = problem.shape, problem.dtype
    records = [
        results.of_timing("any", case, name, *what, timed, problem=problem.settings)
        for case, timings in ((problem.function, device), (f"{problem.function}, call", call))
        for name, timed in timings.items()
    ]
    if first > 5:
        print(f"  the first call took {first:.1f} s: {problem}")
    return records, right


def _call_times(runs: dict[str, Callable]) -> dict[str, list[float]]:
    """Time calls with the wait for their results, in turns."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(CALL_REPEAT + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                run()
                cuda.synchronize()
            if turn:
                samples[name].append((time.perf_counter() - began) / CALLS)
    return samples


def run(options) -> int:
    """Measure, and print the distribution of the ratios and the lowest ones; return the exit status."""
    if "torch" not in common.libraries():
        raise common.MissingLibrary("PyTorch is not installed: there is nothing to measure beside")
    functions = options.function or list(FUNCTIONS)
    count = 12 if options.quick else options.count
    rng, head = np.random.default_rng(options.seed), results.machine() | {"seed": options.seed, "count": count}
    print(common.described(head))
    records, all_right, began = [], True, time.perf_counter()
    for done, problem in enumerate(problems_of(options.seed, count, functions)):
        if options.seconds and time.perf_counter() - began > options.seconds:
            print(f"{options.seconds:g} seconds are over after {done} problems")
            break
        try:
            more, right = measure(problem, rng)
        except Exception as error:
            print(f"  FAILED: {problem}: {type(error).__name__}: {error}", flush=True)
            all_right = False
            continue
        records += more
        all_right &= right
    results.save(options.save, records, head)
    for part in ("device", "call"):
        print(f"\n{tables(records, part)}")
    return int(not all_right)


def ratios_of(records: list[dict[str, Any]]) -> dict[str, list[tuple[float, dict, dict]]]:
    """Return {case: [(fastest library over gpukit, gpukit's record, the library's), ...]}, the lowest ratio first."""
    found: dict[str, list] = {}
    for pair in sorted(ratios.pair_up(records), key=lambda pair: pair.ratio):
        found.setdefault(pair.problem["case"], []).append((pair.ratio, pair.ours, pair.theirs))
    return found


def distribution(triples: list[tuple[float, dict, dict]], limits: tuple[float, ...]) -> list[str]:
    """Return the share of the ratios at or above each limit, their median, and the lowest."""
    values = np.array([ratio for ratio, _, _ in triples])
    shares = [f"{np.mean(values >= limit):.0%}" for limit in limits]
    return [*shares, f"{np.median(values):.2f}", f"{values.min():.2f}"]


def tables(records: list[dict[str, Any]], part: str) -> str:
    """Lay out the distribution of one of the two times, and its lowest ratios."""
    found = {case: rows for case, rows in ratios_of(records).items() if case.endswith(", call") == (part == "call")}
    rows = []
    for case, triples in found.items():
        rows.append([case, str(len(triples)), *distribution(triples, (1, 0.9, 0.85))])
    title = "Device time, cold L2" if part == "device" else "Call and wait"
    header = ["function", "problems", "ahead", ">= 0.9", ">= 0.85", "median", "lowest"]
    text = Table(header, rows, f"{title}: the fastest library's time over gpukit's").text()
    lowest = sorted((row for triples in found.values() for row in triples), key=lambda row: row[0])[:LOWEST]
    lines = [
        [
            f"{ratio:.2f}",
            f"{ours['value'] * 1e6:.1f}",
            f"{theirs['value'] * 1e6:.1f}",
            theirs["variant"],
            str(Problem(ours["case"].partition(",")[0], ours["problem"])),
        ]
        for ratio, ours, theirs in lowest
    ]
    return text + "\n" + Table(["ratio", "us", "library's", "library", "problem"], lines, "The lowest").text()
