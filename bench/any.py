"""Random problems through gpukit's public functions, beside every library that takes them.

Each problem is checked against a reference in float64 first. Then two times are taken: of the device, with a cold L2
cache, and of a call with the wait for its result, as a NumPy-like program makes it: new output, host's clock.

Most of a problem's time goes to the compilation of kernels for its arrays. So several processes share the problems.
They compile at the same time; while one of them measures, all others wait.
"""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from bench import _child, common, ratios
from bench.problems import FUNCTIONS, KEPT, Problem, draw
from gpukit import results, timing
from gpukit.backend import cuda
from warpstep.report.table import Table

__all__ = [
    "add_options",
    "call_times",
    "distribution",
    "measure",
    "measure_in_child",
    "measure_part",
    "ratios_of",
    "run",
]

#: Repetitions of each function for the device's time; and for a call, and calls of one repetition.
REPEAT, CALLS, CALL_REPEAT = 7, 5, 7
#: Seconds below which there are more repetitions: single ones differ by a tenth there. For a call, all of them together
#: would last two milliseconds otherwise, in which the processor may change its clock.
SHORT, SHORT_REPEAT = 15e-6, 25
SHORT_CALL, SHORT_CALL_REPEAT = 100e-6, 41
#: Seconds from which on a repetition is one call, and there are few: a library can take seconds where gpukit does not.
LONG_CALL, LONG_CALL_REPEAT = 20e-3, 3
LOWEST = 10
#: Processes, unless more are asked for.
MAX_JOBS = 8
#: Seconds without a first answer, or a further one, after which a process is ended: a kernel may hang.
PATIENCE = 120.0, 60.0


def add_options(parser):
    """Add the options of ``gpukit bench any``."""
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[1], help="of the problems (default: 1); each has --count of them"
    )
    parser.add_argument("--count", type=int, default=150, help="of problems, over all functions (default: 150)")
    parser.add_argument(
        "--function", action="append", choices=FUNCTIONS, help="draw for this one only; may be repeated"
    )
    parser.add_argument("--seconds", type=float, help="stop after so many")
    jobs = max(1, min(MAX_JOBS, (os.cpu_count() or 1) // 2))
    parser.add_argument("--jobs", type=int, default=jobs, help=f"processes that share the problems (default: {jobs})")


def problems_of(seeds: list[int], count: int, functions: list[str]) -> list[Problem]:
    """Draw the problems of a run, function by function and seed by seed in turns, before them the kept ones."""
    generators = [np.random.default_rng(seed) for seed in seeds]
    kept = [Problem(function, settings) for function, settings in KEPT if function in functions]
    return kept + [draw(functions[i % len(functions)], rng) for i in range(count) for rng in generators]


@contextlib.contextmanager
def holding(path: str, alone: bool):
    """Hold a lock in a file, ``alone`` or with others that do not ask for that."""
    import fcntl  # not on Windows, where this module can be imported all the same

    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def measure(problem: Problem, rng: np.random.Generator, lock: str = os.devnull) -> tuple[list[dict[str, Any]], bool]:
    """Check a problem, and time it beside the libraries; return (records, whether the result was right)."""
    found = common.libraries()
    torch, cupy = found.get("torch"), found.get("cupy")
    torch.backends.cudnn.benchmark = True
    with holding(lock, alone=False):
        arrays = problem.make(rng, torch)
        began = time.perf_counter()
        right = problem.is_right(problem.call(arrays), arrays)
        first = time.perf_counter() - began
        runs = {"gpukit": problem.bind(arrays)} | problem.rivals(arrays, torch, cupy)
        if problem.function != "conv2d":  # CuPy compiles its kernels now
            runs = _running(runs, problem)
    if not right:
        print(f"  WRONG: {problem}", flush=True)
    with holding(lock, alone=True):
        if problem.function == "conv2d":  # cuDNN times its algorithms at the first call, so it must be alone
            runs = _running(runs, problem)
        device = timing.bench_many(runs, repeat=REPEAT, warmup=0.001)
        if device["gpukit"].median < SHORT:
            device = timing.bench_many(runs, repeat=SHORT_REPEAT, warmup=0)
        call = call_times(runs)
    what = problem.shape, problem.dtype
    records = [
        results.of_timing("any", case, name, *what, timed, problem=problem.settings)
        for case, timings in ((problem.function, device), (f"{problem.function}, call", call))
        for name, timed in timings.items()
    ]
    if first > 5:
        print(f"  the first call took {first:.1f} s: {problem}")
    return records, right


def _running(runs: dict[str, Callable], problem: Problem) -> dict[str, Callable]:
    """Call each function once; those of libraries that do not take this problem are left out."""
    found = {}
    for name, run in runs.items():
        try:
            run()
            cuda.synchronize()
        except Exception as error:
            if name == "gpukit":
                raise
            print(f"  {name} does not take {problem}: {type(error).__name__}", flush=True)
            continue
        found[name] = run
    return found


def measure_part(part: int, jobs: int, drawn: list, stop: float | None, lock: str) -> None:
    """Measure every ``jobs``-th problem, in a child process, and answer [number, records, whether all was right]."""
    for i, problem in list(enumerate(problems_of(*drawn)))[part::jobs]:
        if stop and time.time() > stop:
            return
        try:
            records, right = measure(problem, np.random.default_rng([*drawn[0], i]), lock)
        except Exception as error:
            print(f"  FAILED: {problem}: {type(error).__name__}: {error}", flush=True)
            records, right = [], False
        _child.answer([i, records, right])


def call_times(runs: dict[str, Callable]) -> dict[str, timing.Timing]:
    """Time calls with the wait for their results, in turns, every second one in the opposite order."""
    first = [_seconds_of_calls(run, 1) for run in runs.values()]  # not counted
    repeat, calls = SHORT_CALL_REPEAT if min(first) < SHORT_CALL else CALL_REPEAT, CALLS
    if max(first) > LONG_CALL:
        repeat, calls = LONG_CALL_REPEAT, 1
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeat):
        for name in runs if turn % 2 else reversed(runs):
            samples[name].append(_seconds_of_calls(runs[name], calls))
    return {name: timing.Timing(tuple(of_run), name, "cpu", calls) for name, of_run in samples.items()}


def _seconds_of_calls(run: Callable, calls: int) -> float:
    run()  # not counted: the function before it has filled the processor's caches
    cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        run()
        cuda.synchronize()
    return (time.perf_counter() - began) / calls


def run(options) -> int:
    """Measure, and print the distribution of the ratios and the lowest ones; return the exit status."""
    if "torch" not in common.libraries():
        raise common.MissingLibrary("PyTorch is not installed: there is nothing to measure beside")
    functions = options.function or list(FUNCTIONS)
    count = 12 if options.quick else options.count
    head = results.machine() | {"seed": options.seed, "count": count}
    print(common.described(head))
    drawn, stop = [options.seed, count, functions], time.time() + options.seconds if options.seconds else None
    found: dict[int, list] = {}
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(options.jobs) as pool:
        parts = [
            pool.submit(measure_in_child, found, part, options.jobs, drawn, stop, lock.name)
            for part in range(options.jobs)
        ]
        try:
            all_right = all(part.result() for part in parts)
        except KeyboardInterrupt:  # the children have been interrupted too
            all_right = False
    answers = sorted((answer for of_part in found.values() for answer in of_part), key=lambda answer: answer[0])
    records = [record for _, of_problem, _ in answers for record in of_problem]
    print(f"{len(answers)} problems of {len(problems_of(*drawn))}")
    results.save(options.save, records, head)
    for part in ("device", "call"):
        print(f"\n{tables(records, part)}")
    return int(not (all_right and all(right for *_, right in answers)))


def measure_in_child(found: dict[int, list], part: int, jobs: int, drawn: list, *arguments: Any) -> bool:
    """Put the answers of one part of the problems into ``found``; return whether its process ended as it should."""
    report = partial(found.__setitem__, part)
    child = _child.run(measure_part, part, jobs, drawn, *arguments, patience=PATIENCE, capture=False, report=report)
    found[part] = child.answers
    if child.status in (0, -signal.SIGINT):
        return child.status == 0
    left = problems_of(*drawn)[part::jobs][len(child.answers) :]
    if left:
        problem, *after = left
        how = "gave no answer for too long" if child.timed_out else f"ended with status {child.status}"
        print(f"  A process {how}, and {len(after)} problems after this one are left out: {problem}", flush=True)
    return False


def ratios_of(records: list[dict[str, Any]]) -> dict[str, list[tuple[float, dict, dict]]]:
    """Return {case: [(fastest library over gpukit, gpukit's record, the library's), ...]}, the lowest ratio first.

    The cases are in the order of `FUNCTIONS`.
    """
    found: dict[str, list] = {}

    def place(pair):
        return [*FUNCTIONS].index(pair.problem["case"].partition(",")[0]), pair.ratio

    for pair in sorted(ratios.pair_up(records), key=place):
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
