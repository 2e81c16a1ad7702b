"""``gpukit bench``: several measurements in one run, gpukit beside the libraries, and against an earlier record."""

import argparse
import contextlib
import functools
import gc
import importlib
import os
import re
import sys
import tempfile
import time
import traceback
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import bench as benchmarks
from bench import common, ratios, readme, turns
from gpukit import results
from gpukit.backend import on_gpu

__all__ = ["FELL", "Options", "file_name", "parser", "run"]

#: Exit status when a ratio to a library fell by more than is allowed.
FELL = 3
INTERRUPTED = 130
#: What mostly asks for times by the host's clock: it runs when nothing else does.
ALONE = ("cpu", "emulator", "streams", "clinic")
#: What measures in processes of its own, and takes ``--jobs`` itself.
WITH_JOBS = ("conv", "predictions")
#: What is of the host's CPU, also where there is a GPU.
ON_CPU = ("cpu", "emulator")


def parser():
    """The options that all measurements share."""
    lines = "".join(f"  {name:12}{entry[2]}\n" for name, entry in benchmarks.COMMANDS.items())
    made = argparse.ArgumentParser(
        prog="gpukit bench",
        usage="gpukit bench [NAME ...] [--quick] [--jobs N] [--save [PATH]] [--compare [FILE] [--max-fall PERCENT]]",
        description="Measure gpukit beside the libraries: results are checked, then all are timed in turns, with a "
        f"cold L2 cache.\nNAME is one or more of\n\n{lines}\nWithout a name: all timings of all chapters; without "
        f"a GPU {', '.join(benchmarks.WITHOUT_GPU)}.",
        epilog="`gpukit bench NAME --help` lists what a single measurement takes besides.\nExit status: 0; 1 if a "
        "result was wrong, a measurement failed, or --max-fall had no ratio to judge;\n"
        f"{FELL} if a ratio fell by more than --max-fall.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--quick", action="store_true", help="few sizes: a minute or two for all")
    made.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        help="processes that compile side by side, of which one at a time uses the GPU (default: one less than half of "
        "the cores, at most 15, and 8 GiB of the GPU's memory for each); 1: one after the other",
    )
    made.add_argument(
        "--save",
        metavar="PATH",
        nargs="?",
        const=str(results.RECORDED),
        help="keep the records: in this folder, or for one measurement in this .json file (default: data/results)",
    )
    made.add_argument(
        "--compare",
        metavar="FILE",
        nargs="?",
        const=str(results.RECORDED),
        help="say what got faster or slower since a record: a .json file, or a folder with one for each measurement "
        "on this GPU (default: data/results)",
    )
    made.add_argument(
        "--max-fall",
        metavar="PERCENT",
        type=float,
        help=f"with --compare: exit status {FELL} if a ratio to a library fell by more, 1 if there is none to judge",
    )
    return made


@dataclass(frozen=True)
class Options:
    """What ``gpukit bench`` was asked for: paths, or None; ``further`` goes to the one measurement that is run."""

    quick: bool = False
    save: Path | None = None
    compare: Path | None = None
    max_fall: float | None = None
    jobs: int | None = None
    further: tuple = ()


def run(names, options):
    """Measure, print how gpukit compares with the libraries, and compare with a record if asked to.

    Parameters
    ----------
    names : sequence of str
        Of ``benchmarks.COMMANDS``; none for all that this machine can measure.
    options : Options

    Returns
    -------
    int
        The exit status.
    """
    names, targets, status = list(names) or _defaults(), {}, 0
    # Before anything is measured, as the new records may go where the old ones are.
    before = {name: _recorded(name, options) for name in names} if options.compare else {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            path = _target(name, options, Path(scratch))
            targets[name] = path, _written(path)
        try:
            for right in _measurements(names, {name: path for name, (path, _) in targets.items()}, options):
                status |= not right
        except KeyboardInterrupt:
            print("\nInterrupted: what follows is of what was measured by then.")
            status = INTERRUPTED
        measured = {name: results.read(path) for name, (path, old) in targets.items() if _written(path) != old}
    _conclude(measured)
    if options.save == results.RECORDED and measured and readme.README.is_file():
        readme.main([])
    if options.compare is not None:
        status = _compare(measured, before, options.max_fall) or status
    return int(status)


def _defaults():
    if on_gpu():
        return [name for name in benchmarks.COMMANDS if name not in benchmarks.OTHERS]
    left = [n for n in benchmarks.COMMANDS if n not in benchmarks.OTHERS and n not in benchmarks.WITHOUT_GPU]
    print("There is no GPU here. What can be measured without one is measured; left out, because an emulated time")
    print(f"would say nothing about a GPU: {', '.join(left)}. Recorded times of a GPU are in {results.RECORDED}.")
    return list(benchmarks.WITHOUT_GPU)


def _written(path):
    """When a file was written; None if there is none."""
    return path.stat().st_mtime_ns if path.is_file() else None


def _target(name, options, scratch):
    """Where a measurement writes its records: where the user wants them, or where they are read from and forgotten."""
    if options.save is not None and options.save.suffix == ".json":
        return options.save
    folder = options.save or scratch
    folder.mkdir(parents=True, exist_ok=True)
    return folder / file_name(name, _machine(name), options.quick)


@functools.cache
def _gpu():
    """Name of the GPU, asked once. Power limit and clocks may change in a run: each measurement keeps its own."""
    return results.machine()["gpu"]


def _machine(name):
    """What a measurement's file is named after."""
    if on_gpu() and name not in ON_CPU:
        return _gpu()
    if name != "predictions":
        return "host"
    from bench import predictions

    return results.read(predictions.RECORDED)[0]["gpu"]  # made anew beside the times of that GPU


def file_name(name, machine, quick=False):
    """File of a measurement on a machine: ``file_name("reduce", "NVIDIA H200")`` is "reduce-h200.json"."""
    words = [word for word in re.findall(r"[a-z0-9]+", machine.lower()) if word not in ("nvidia", "geforce", "tesla")]
    return "-".join([name.replace("_", "-"), *words, *(["quick"] if quick else [])]) + ".json"


def _measurements(names, paths, options):
    """Run each measurement; yields whether all went well in it. Those that can be run side by side come first."""
    jobs = turns.processes(share=2) if options.jobs is None else options.jobs
    together = [name for name in names if name not in ALONE and name not in benchmarks.OTHERS] if jobs > 1 else []
    together = together if len(together) > 1 else []
    order, began = [*together, *(name for name in names if name not in together)], time.perf_counter()

    def title(place, name):
        passed = common.progress(place, len(order), time.perf_counter() - began, name)
        print(f"== {passed}: {benchmarks.COMMANDS[name][2]}", flush=True)

    works = [partial(_measure_apart, name, paths[name], options) for name in together]
    for place, (right, text) in enumerate(_in_processes(works, jobs)):
        title(place, order[place])
        print(text, end="", flush=True)
        yield right
    for place, name in enumerate(order[len(together) :], len(together)):
        title(place, name)
        yield _measure(name, paths[name], options)
        _free()


def _in_processes(works, jobs):
    """What each of some functions gives; one whose process dies went wrong, and the others are asked all the same."""
    done = 0
    with contextlib.suppress(BrokenProcessPool):
        for result in turns.side_by_side(works, jobs, fresh=True):
            yield result
            done += 1
    # Which of the processes died is not known: those whose results are missing are asked one after the other.
    for work in works[done:]:
        try:
            yield turns.apart(work)
        except BrokenProcessPool:
            yield False, "  FAILED: its process died\n"


def _measure_apart(name, path, options):
    """In a process of several: whether all went well, and what was printed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        with _printing_to(printed):
            common.libraries()
            try:
                with turns.mine():
                    right = _measure(name, path, options)
                    _free()
            except Exception:  # an error of the device itself, which comes up again whatever is asked of it
                traceback.print_exc()
                right = False
            print(f"used the GPU for {turns.held():.0f} s")
        printed.seek(0)
        return right, printed.read()


@contextlib.contextmanager
def _printing_to(file):
    """What this process and those that it starts print goes to a file."""
    sys.stdout.flush(), sys.stderr.flush()
    before = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        yield
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        for number, old in zip((1, 2), before, strict=True):
            os.dup2(old, number)
            os.close(old)


def _measure(name, path, options):
    """Run one measurement; whether all went well. What it raises ends this one, not those that follow."""
    module, before, _ = benchmarks.COMMANDS[name]
    chosen = ["--quick"] if options.quick else []
    if options.jobs is not None and name in WITH_JOBS:
        chosen += ["--jobs", str(options.jobs)]
    argv = benchmarks.OTHERS.get(name, ["--save", str(path), *chosen, *options.further])
    try:
        return importlib.import_module(module).main(*before, argv) == 0
    except Exception:
        traceback.print_exc()
        print(f"{name} failed", file=sys.stderr)
        return False


def _free():
    """Give back what the libraries keep of the device's memory, so that each measurement finds all of it."""
    gc.collect()
    for name in common.LIBRARIES:
        library = sys.modules.get(name)
        if library and on_gpu():
            if name == "cupy":
                library.get_default_memory_pool().free_all_blocks()
            else:
                library.cuda.empty_cache()


def _conclude(measured):
    """Print the table of gpukit beside the libraries."""
    found, machines = [], {}
    for head, records in measured.values():
        pairs, text = ratios.pairs(records), common.described(head)
        found += pairs
        # Some records say of the same machine which CPU it has too.
        if pairs and len(text) > len(machines.get(_timed(head), "")):
            machines[_timed(head)] = text
    if not found:
        return
    print(f"\ngpukit beside the fastest library, on {' and '.join(machines.values())}\n")
    print(ratios.table_of_pairs(found), end="\n\n")
    good = [pair.ratio for pair in found if pair.valid]
    ahead = sum(ratio >= 1 for ratio in good)
    print("The ratio is the library's time over gpukit's: above 1, gpukit is faster.")
    if good:
        print(f"gpukit is at least as fast in {ahead} of {len(good)}; the lowest ratio is {min(good):.2f}.")
    if len(good) < len(found):
        print(f"{len(found) - len(good)} are not counted: their times spread too widely. Measure again, undisturbed.")
    if common.missing():
        print(f"Not installed here, and left out: {', '.join(common.missing())}.")


def _recorded(name, options):
    """(file, head, records) of an earlier run of a measurement on this machine; None for the last two if none is there.

    A quick run is compared with a quick one if there is one.
    """
    path = options.compare
    if path.suffix != ".json":
        quick, whole = (path / file_name(name, _machine(name), quick) for quick in (True, False))
        path = quick if options.quick and quick.is_file() else whole
    return (path, *(results.read(path) if path.is_file() else (None, None)))


def _timed(head):
    """What a record's times are of: a GPU, or without one a CPU."""
    return head.get("gpu") or head.get("cpu")


def _compare(measured, before, max_fall):
    """Print what changed since a record; the exit status for that."""
    found = []
    for name, (head, records) in measured.items():
        path, old_head, old = before[name]
        if old is None:
            print(f"{name}: there is no {path} to compare with; gpukit bench --save makes one")
            continue
        same = _timed(old_head) == _timed(head)
        changes = ratios.changes(records, old, times=same)
        again = f"{sum(change.unit == 'ratio' for change in changes)} of its {len(ratios.pairs(old))} ratios"
        print(f"{name}: {again} to a library were measured again: {path}, {common.described(old_head)}", end="")
        print("" if same else "; as that is another machine, only ratios are compared")
        found += changes
    if found:
        print(f"\n{ratios.table_of_changes(found)}")
    if max_fall is None:
        return 0
    both = [change for change in found if change.unit == "ratio"]
    if any(change.judged for change in both):
        return _judge(both, max_fall)
    print(f"--max-fall {max_fall:g}: there is no ratio to judge: {_no_ratio(measured, both)}. Exit status 1.")
    return 1


def _judge(changes, max_fall):
    """Say which ratios fell by more than so many percent; the exit status for that."""
    fallen = ratios.falls(changes, max_fall)
    for change in fallen:
        print(f"FELL by {1 - change.gain:.0%}: {change.what}: {change.before:.2f} to {change.now:.2f}: {change.sides}")
    of = sum(change.judged for change in changes)
    print(f"--max-fall {max_fall:g}: {len(fallen)} of {of} ratios to a library fell by more than that.", end="")
    print(f" Exit status {FELL}." if fallen else "")
    return FELL if fallen else 0


def _no_ratio(measured, both):
    """Why no ratio of this run can be judged."""
    if both:
        return "none was steady enough to compare; measure again, undisturbed"
    if any(ratios.pairs(records) for _, records in measured.values()):
        return "the record has none of those that were measured"
    if not on_gpu():
        return "libraries are timed on a GPU, and there is none here"
    return f"no library was timed beside gpukit; not installed: {', '.join(common.missing()) or 'none'}"
