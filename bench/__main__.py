"""``gpukit bench``: measure gpukit beside the libraries, chapter by chapter, and compare with earlier records."""

import argparse
import functools
import importlib
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from itertools import takewhile
from pathlib import Path

from numba.cuda.core.errors import NumbaPerformanceWarning

from bench import _child, common, ratios, readme
from gpukit import results
from gpukit.backend import on_gpu

__all__ = ["COMMANDS", "FELL", "TOOLS", "WITHOUT_GPU", "main", "make_parser"]

#: Exit status when a ratio to a library fell by more than is allowed.
FELL = 3
INTERRUPTED = 130

#: The commands after ``gpukit bench``: module and description.
COMMANDS = {
    "emulator": ("bench.emulator", "how fast the emulator is, beside Numba's own simulator"),
    "counters": ("bench.evidence.counters", "the trace's counts, beside Nsight Compute's counters"),
    "findings": ("bench.evidence.sanitizer", "the errors that the trace finds, beside compute-sanitizer's"),
    "errors": ("bench.evidence.launch_errors", "what is said of launches that go wrong on purpose"),
    "cpu": ("bench.cpu", "NumPy, OpenCV and plain loops on this machine's CPU"),
    "axpy": ("bench.axpy", "the grid-stride loop by the number of its blocks, on a GPU"),
    "naive": ("bench.naive", "the matrix product with one thread per element, on a GPU"),
    "matmul": ("bench.matmul", "matrix products on a GPU, beside cuBLAS"),
    "transpose": ("bench.transpose", "transposes on a GPU, beside CuPy and PyTorch"),
    "streams": ("bench.streams", "copies, pipelines and launches on a GPU, beside CuPy and PyTorch"),
    "fast-matmul": ("bench.fast_matmul", "products all the way to the speed of cuBLAS, and its map"),
    "reduce": ("bench.reduce", "reductions on a GPU, beside a copy, CuPy and PyTorch"),
    "scan": ("bench.scan", "scans, histograms, compaction and sorts on a GPU, beside CuPy and PyTorch"),
    "tensor": ("bench.tensor", "products on tensor cores in every format, beside cuBLAS"),
    "resize": ("bench.resize", "resizing of frames on a GPU, beside PyTorch, CuPy and OpenCV"),
    "conv": ("bench.conv", "convolutions on a GPU, beside cuDNN, unfold and fold"),
    "multi": ("bench.multi", "several GPUs against one, and an all-reduce beside NCCL"),
    "ceilings": ("bench.ceilings", "what a GPU can do at most: arithmetic, caches, memory, launches"),
    "predictions": ("bench.predictions", "predicted times of kernels, beside their times"),
    "pitfalls": ("bench.pitfalls", "five slow kernels and their fixes, on a GPU"),
    "profile": ("bench.profile", "(keeps what profilers say of a product, on a GPU)"),
    "code": ("bench.code", "(registers, occupancy and instructions of the matrix products)"),
    "any": ("bench.any", "random problems through the public functions, beside every library"),
    "readme": ("bench.readme", "(writes the README's tables and its picture)"),
}
#: Commands with tables and options of their own, and their arguments when they run among others. They save nothing that
#: could be compared. On a GPU, where their profilers take long, they run only when they are named.
TOOLS = {"counters": ["--brief"], "findings": [], "errors": [], "profile": [], "code": [], "readme": []}
#: What runs where there is no GPU and nothing is named.
WITHOUT_GPU = ("emulator", "counters", "predictions", "cpu")
#: What is measured on the host's CPU, also where there is a GPU.
ON_CPU = ("emulator", "cpu")
#: What always runs in a process of its own. PyTorch never destroys its NCCL communicators and has no call that does, so
#: the end of a process that has made some is not defined: with two H200 it was a segmentation fault.
APART = ("multi",)


# -- the command line --------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Run ``gpukit bench`` with these arguments; return the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    names = list(takewhile(lambda word: not word.startswith("-"), argv))
    rest = argv[len(names) :]
    unknown = [name for name in names if name not in COMMANDS]
    if unknown:
        make_parser().error(f"there is no {unknown[0]!r}; there are {', '.join(COMMANDS)}")
    if len(names) == 1 and names[0] in TOOLS:
        return _run_tool(names[0], rest)
    parser = make_parser(names)
    options, further = parser.parse_known_args(rest)
    if further:
        parser.error(f"unrecognized arguments: {' '.join(further)} (names come first, then options)")
    for option, path in (("--save", options.save), ("--compare", options.compare)):
        if path and str(path) in COMMANDS:
            parser.error(f"{option} {path}: names come first, then options")
    if options.save and options.save.suffix == ".json" and len(names) != 1:
        parser.error(f"--save {options.save}: several measurements need a folder")
    if options.compare and not options.compare.exists():
        parser.error(f"--compare {options.compare}: it is not there")
    if options.max_fall is not None and not options.compare:
        parser.error("--max-fall needs --compare")
    if options.max_fall is not None and not options.max_fall >= 0:
        parser.error(f"--max-fall {options.max_fall:g}: it must be a percentage, 0 or more")
    _check_save(parser, options)
    return run(names, options)


def _check_save(parser, options, file=False):
    """Refuse a file that cannot be written, before anything is measured; any path is one if ``file`` is true."""
    path = Path(getattr(options, "save", None) or ".")
    if path == Path(".") or (path.suffix != ".json" and not file):
        return  # a folder, which is made
    if not path.parent.is_dir():
        parser.error(f"--save {path}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"--save {path}: it cannot be written")


def make_parser(names=()):
    """Make the parser for some commands: of a tool's own options, or of the options that all measurements share.

    A single measurement has its own options too.
    """
    add_options = _module(names[0], "add_options", lambda parser: None) if len(names) == 1 else lambda parser: None
    if len(names) == 1 and names[0] in TOOLS:
        doc = importlib.import_module(COMMANDS[names[0]][0]).__doc__
        parser = argparse.ArgumentParser(prog=f"gpukit bench {names[0]}", description=doc)
    else:
        parser = _make_shared_parser()
    add_options(parser)
    return parser


def _make_shared_parser():
    lines = "".join(f"  {name:12}{text}\n" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="gpukit bench",
        usage="gpukit bench [NAME ...] [--quick] [--save [PATH]] [--compare [FILE] [--max-fall PERCENT]]",
        description="Measure gpukit beside the libraries: results are checked, then all are timed in turns, with a "
        f"cold L2 cache.\nNAME is one or more of\n\n{lines}\nWithout a name: all timings of all chapters; without "
        f"a GPU {', '.join(WITHOUT_GPU)}.",
        epilog="`gpukit bench NAME --help` lists the options of a single measurement too.\nExit status: 0; 1 if a "
        "result was wrong, a measurement failed, or --max-fall had no ratio to judge;\n"
        f"{FELL} if a ratio fell by more than --max-fall.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    recorded = {"nargs": "?", "const": results.RECORDED, "type": Path}
    parser.add_argument("--quick", action="store_true", help="few sizes: some minutes for all")
    parser.add_argument(
        "--save",
        metavar="PATH",
        **recorded,
        help="keep the records: in this folder, or for one measurement in this .json file (default: data/results)",
    )
    parser.add_argument(
        "--compare",
        metavar="FILE",
        **recorded,
        help="say what got faster or slower since a record: a .json file, or a folder with one for each measurement "
        "on this GPU (default: data/results)",
    )
    parser.add_argument(
        "--max-fall",
        metavar="PERCENT",
        type=float,
        help=f"with --compare: exit status {FELL} if a ratio to a library fell by more, 1 if there is none to judge",
    )
    return parser


def _module(name, attribute, default=None):
    """Return an attribute of a command's module."""
    return getattr(importlib.import_module(COMMANDS[name][0]), attribute, default)


def _run_tool(name, argv):
    """Run a command that has options of its own; return its exit status."""
    parser = make_parser([name])
    options = parser.parse_args(argv)
    _check_save(parser, options, file=name != "profile")  # it writes a folder
    warnings.simplefilter("ignore", NumbaPerformanceWarning)
    return _module(name, "run")(options)


# -- a run -------------------------------------------------------------------------------------------------------------


def run(names, options):
    """Measure, and print gpukit beside the libraries and, with ``--compare``, beside an earlier record.

    Parameters
    ----------
    names : sequence of str
        Keys of `COMMANDS`; none for all that this machine can measure.
    options : argparse.Namespace
        As `make_parser` gives them.

    Returns
    -------
    int
        The exit status.
    """
    names, status = list(names) or _defaults(), 0
    # Before anything is measured, as the new records may go where the old ones are.
    try:
        before = {name: find_record(name, options) for name in names} if options.compare else {}
    except ValueError as error:
        print(f"gpukit bench: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        targets = {name: target_of(name, options, Path(scratch)) for name in names}
        written = {name: _time_written(path) for name, path in targets.items()}
        try:
            status = _measure_all(targets, options)
        except KeyboardInterrupt:
            print("\nInterrupted: what follows is of what was measured by then.")
            status = INTERRUPTED
        measured = {n: results.read(path) for n, path in targets.items() if _time_written(path) != written[n]}
    _conclude(measured)
    if options.save and options.save.resolve() == results.RECORDED and measured and readme.README.is_file():
        readme.write()
    if options.compare is not None:
        status = _compare(measured, before, options.max_fall) or status
    return int(status)


def _defaults():
    timed = [name for name in COMMANDS if name not in TOOLS]
    if on_gpu():
        return timed
    left = [name for name in timed if name not in WITHOUT_GPU]
    print("There is no GPU here. What can be measured without one is measured; left out, because an emulated time")
    print(f"would say nothing about a GPU: {', '.join(left)}. Recorded times of a GPU are in {results.RECORDED}.")
    return list(WITHOUT_GPU)


def _time_written(path):
    """Return when a file was written; None if there is none."""
    return path.stat().st_mtime_ns if path.is_file() else None


def _measure_all(targets, options):
    """Run one measurement after the other; return 1 if a result was wrong or something failed, or else 0."""
    began, status = time.perf_counter(), 0
    for place, (name, path) in enumerate(targets.items()):
        passed = common.progress(place, len(targets), time.perf_counter() - began, name)
        print(f"== {passed}: {COMMANDS[name][1]}", flush=True)
        if len(targets) == 1 and name not in APART:
            status = measure(name, path, options)
        else:
            status |= measure_apart(name, path, options)
    return status


def measure_apart(name, path, options):
    """Run a measurement in a process of its own, so that a crash costs only its own records."""
    child = _child.run(measure_in_child, name, str(path), options.quick, capture=False)
    if not child.answers:
        print(f"  FAILED: the process of {name} ended with status {child.status}", file=sys.stderr)
    elif child.status:
        print(f"  all was measured; then the process of {name} ended with status {child.status}", file=sys.stderr)
    return child.answers[-1] if child.answers else 1


def measure_in_child(name, path, quick):
    """Run a measurement among others; return 1 if a result was wrong or something failed, or else 0."""
    return measure(name, Path(path), argparse.Namespace(quick=quick))


def measure(name, path, options):
    """Run a measurement, or a tool among others, here; return 1 if something was wrong or failed, or else 0."""
    try:
        if name in TOOLS:
            return int(_run_tool(name, TOOLS[name]) != 0)
        if name not in WITHOUT_GPU and not on_gpu():
            print("There is no GPU here, so there is nothing to time.", file=sys.stderr)
            return 1
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        options = argparse.Namespace(**_defaults_of(name) | vars(options) | {"save": path})
        if run_all := _module(name, "run"):
            return run_all(options)
        head = _module(name, "head", results.machine)()
        return int(not common.run(_module(name, "measurements")(options), path, head))
    except common.MissingLibrary as error:
        print(error, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        print(f"{name} failed", file=sys.stderr)
        return 1


def _defaults_of(name):
    return vars(make_parser([name]).parse_args([]))


# -- files of records --------------------------------------------------------------------------------------------------


def target_of(name, options, scratch):
    """Return the file that a measurement writes: where the user wants it, or where it is read from and forgotten."""
    if options.save is not None and options.save.suffix == ".json":
        return options.save
    folder = options.save or scratch
    folder.mkdir(parents=True, exist_ok=True)
    return results.path_in(folder, file_name(name, machine_of(name), options.quick))


def find_record(name, options):
    """Return (file, head, records) of an earlier run of a measurement on this machine; None for the last two if none
    is there. A quick run is compared with a quick one if there is one.
    """
    path = options.compare
    if path.suffix != ".json":
        quick, full = (results.path_in(path, file_name(name, machine_of(name), quick)) for quick in (True, False))
        path = quick if options.quick and quick.is_file() else full
    return (path, *(results.read(path) if path.is_file() else (None, None)))


def machine_of(name):
    """Name the machine that a measurement's file is called after."""
    if on_gpu() and name not in ON_CPU:
        return _module(name, "machine_name", str)(_gpu())
    if name != "predictions":
        return "host"
    return results.read(_module(name, "RECORDED"))[0]["gpu"]  # predicted again for that GPU


@functools.cache
def _gpu():
    """Ask once for the name of the GPU."""
    return results.machine()["gpu"]


def file_name(name, machine, quick=False):
    """Name the file of a measurement on a machine: ``file_name("reduce", "NVIDIA H200")`` is "reduce-h200.json"."""
    words = [word for word in re.findall(r"[a-z0-9]+", machine.lower()) if word not in ("nvidia", "geforce", "tesla")]
    return "-".join([name.replace("_", "-"), *words, *(["quick"] if quick else [])]) + ".json"


# -- tables of a run ---------------------------------------------------------------------------------------------------


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


def _timed(head):
    """Name the device of a record's times: a GPU, or without one a CPU."""
    return head.get("gpu") or head.get("cpu")


def _compare(measured, before, max_fall):
    """Print the changes since a record; return the exit status."""
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
    """Print which ratios fell by more than so many percent; return the exit status."""
    fallen = ratios.falls(changes, max_fall)
    for change in fallen:
        print(f"FELL by {1 - change.gain:.0%}: {change.what}: {change.before:.2f} to {change.now:.2f}: {change.sides}")
    of = sum(change.judged for change in changes)
    print(f"--max-fall {max_fall:g}: {len(fallen)} of {of} ratios to a library fell by more than that.", end="")
    print(f" Exit status {FELL}." if fallen else "")
    return FELL if fallen else 0


def _no_ratio(measured, both):
    """Say why no ratio of this run can be judged."""
    if both:
        return "none was steady enough to compare; measure again, undisturbed"
    if any(ratios.pairs(records) for _, records in measured.values()):
        return "the record has none of those that were measured"
    if not on_gpu():
        return "libraries are timed on a GPU, and there is none here"
    return f"no library was timed beside gpukit; not installed: {', '.join(common.missing()) or 'none'}"


if __name__ == "__main__":
    sys.exit(main())
