"""``gpukit bench findings``: run planted bugs under gpukit's trace, compute-sanitizer and Numba's simulator.

Wrong kernels may end their CUDA context or never return, and the simulator takes over ``numba.cuda`` in a whole
process. Both therefore run in child processes, many at a time, each with a few kernels. If a child dies or hangs, the
kernels that are left go to another one. Without a GPU the trace is compared with what was recorded on an H200.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench import _child
from bench.corpus.bugs import CORRECT, PLANTED
from gpukit import results
from warpstep.report.table import Table

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: The tool of compute-sanitizer that looks for each kind of finding.
TOOL_OF = {
    "race": "racecheck",
    "out-of-bounds": "memcheck",
    "misaligned": "memcheck",
    "negative-index": "memcheck",
    "uninitialised-read": "initcheck",
    "barrier-divergence": "synccheck",
}
BENCH = Path(__file__).resolve().parents[1]
RECORDED = BENCH / "records" / "findings-h200.json"
SIMULATOR = "simulator"
#: Options of compute-sanitizer; those that its version does not know are left out. With padding, the element after the
#: last one of an array does not belong to the next array.
OPTIONS = {
    "all": ("--print-limit=100000", "--launch-timeout=60", "--show-backtrace=device", "--error-exitcode=77"),
    "memcheck": ("--destroy-on-device-error=kernel", "--padding=4096", "--report-api-errors=no"),
    "racecheck": ("--racecheck-report=analysis",),
    "initcheck": ("--initcheck-address-space=all",),
    "synccheck": (),
}
KERNELS_PER_CHILD = 8
#: Seconds that a child may take to start, and then for each kernel, compilation included.
PATIENCE = (90, 30)
RAW_LINES = 6


class SanitizerError(RuntimeError):
    """Raised if compute-sanitizer is missing; the message says what to do."""


# -- reading compute-sanitizer's reports -----------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """A tool's report about one kernel; equal reports of many threads are counted together.

    Attributes
    ----------
    kind : str
        Its first words: "Invalid __global__ read", "Error: race", "Barrier error: divergent thread(s) in block" ...
    lines : tuple of int
        Lines of the kernels' file that it names.
    count : int
        Reports, of a race the hazards (one for each byte).
    """

    kind: str
    lines: tuple
    count: int


PREFIX = re.compile(r"^=+ ?")
#: First lines of reports, and their kinds.
HEADLINES = (
    (re.compile(r"((?:Invalid|Potential invalid) __\w+__ \w+) of size"), "{0}"),
    (re.compile(r"(Uninitialized __\w+__ memory read)"), "{0}"),
    (re.compile(r"(Error|Warning|Info): Race reported between", re.IGNORECASE), "{0}: race"),
    (re.compile(r"(Error|Warning|Info): .*(RAW|WAR|WAW) hazard detected", re.IGNORECASE), "{0}: {1} hazard"),
    (re.compile(r"Barrier error detected\.\s*(.*?)\.?\s*$"), "Barrier error: {0}"),
    (re.compile(r"(Deadlock detected|Malloc/Free error|Program hit)"), "{0}"),
)
HAZARDS = re.compile(r"\[([\d,]+) hazards?\]")


def _headline(text):
    for pattern, form in HEADLINES:
        match = pattern.match(text)
        if match:
            return form.format(*map(str.lower, match.groups())).capitalize()
    return None


def _blocks(text):
    """Yield (kind, lines without their prefix) of each report."""
    kind, block = None, []
    for line in text.splitlines():
        if not PREFIX.match(line):
            continue
        content = PREFIX.sub("", line, count=1).strip()
        found = _headline(content)
        if found or not content or "SUMMARY" in content or content == "COMPUTE-SANITIZER":
            if kind:
                yield kind, block
            kind, block = found, []
        if kind:
            block.append(content)
    if kind:
        yield kind, block


def _kernel_of(text, names):
    """Find the kernel that a report names, demangled or mangled; None if it names none."""
    for name in names:
        if re.search(rf"(?<![A-Za-z_]){name}(?![a-z0-9_])", text):
            return name
    return None


def parse(text, names, filename="bugs.py"):
    """Read the output of one of compute-sanitizer's tools.

    Parameters
    ----------
    text : str
    names : iterable of str
        Kernels that were launched.
    filename : str
        Lines of this file are kept.

    Returns
    -------
    dict of {str or None: (list of Report, list of str)}
        For each kernel that has reports, these and the first lines of the first; None: those that name no kernel.
    """
    place = re.compile(rf"{re.escape(filename)}:(\d+)")
    counts, raw = {}, {}
    for kind, block in _blocks(text):
        said = [line for line in block if not line.startswith(("Host Frame", "Saved host backtrace"))]
        whole = "\n".join(said)
        name = _kernel_of(whole, names)
        lines = tuple(dict.fromkeys(int(n) for n in place.findall(whole)))
        hazards = sum(int(n.replace(",", "")) for n in HAZARDS.findall(whole))
        counts.setdefault(name, Counter())[kind, lines] += hazards or 1
        raw.setdefault(name, said[:RAW_LINES])
    return {
        name: ([Report(kind, lines, count) for (kind, lines), count in found.items()], raw[name])
        for name, found in counts.items()
    }


# -- child processes -------------------------------------------------------------------------------


def launch_kernels(mode, names):
    """Launch kernels one after the other, with an answer before and after each; stop if the GPU's context is lost."""
    from numba import cuda

    for name in names:
        _child.answer({"start": name})
        outcome = _attempt(cuda, name, mode)
        _child.answer({"name": name, **outcome})
        if mode != SIMULATOR and outcome["status"] == "raised" and _context_lost(cuda):
            return


def _attempt(cuda, name, mode):
    """Launch one kernel; return its outcome, for the simulator with the contents of its arrays."""
    case = (PLANTED | CORRECT)[name]
    options = {} if mode == SIMULATOR else {"lineinfo": True}
    try:
        arguments = case.arguments(cuda)
        case.configured(cuda, **options)(*arguments)
        cuda.synchronize()
        result = {"status": "ran"}
        if mode == SIMULATOR:
            result["arrays"] = _contents(arguments)
    except BaseException as error:  # the simulator raises any of them
        traceback.print_exc()
        return {"status": "raised", "error": type(error).__name__, "detail": " ".join(str(error).split())[:300]}
    return result


def _contents(arguments):
    return [a.copy_to_host().tolist() for a in arguments if hasattr(a, "copy_to_host")]


def _context_lost(cuda):
    try:
        cuda.to_device(np.zeros(1)).copy_to_host()
    except Exception:
        return True
    return False


def run_kernels(mode, names, raw=None, under=(), environment=None):
    """Run kernels in child processes, under a command such as compute-sanitizer.

    Parameters
    ----------
    mode : str
        One of `TOOLS`, or `SIMULATOR`.
    names : list of str
    raw : Path, optional
        Folder for everything that is printed.
    under, environment
        As for `bench._child.run`.

    Returns
    -------
    tuple
        {kernel: outcome} and all that was printed. The status of an outcome is "ran", "raised", "timed out", "died" or
        "did not start".
    """
    outcomes, printed, left = {}, [], list(names)
    while left:
        child = _child.run(launch_kernels, mode, left, under=under, environment=environment, patience=PATIENCE)
        found = _outcomes(child) or {name: {"status": "did not start", "detail": child.output[-1500:]} for name in left}
        if raw:
            (raw / f"{mode}-{left[0]}.log").write_text(child.output)
        printed.append(child.output)
        outcomes |= found
        left = [name for name in left if name not in outcomes]
    return outcomes, "\n".join(printed)


def _outcomes(child):
    """Return {kernel: outcome} of a child, also of the kernel that ended it."""
    outcomes, running = {}, None
    for said in child.answers:
        running = said.get("start")
        if "name" in said:
            outcomes[said.pop("name")] = said
    if running:
        status = "timed out" if child.timed_out else "died"
        outcomes[running] = {"status": status, "detail": f"exit status {child.status}"}
    return outcomes


# -- compute-sanitizer -----------------------------------------------------------------------------


def find_sanitizer():
    """Find compute-sanitizer on the PATH, in a CUDA toolkit or in NVIDIA's wheel; SanitizerError if it is not there."""
    found = shutil.which("compute-sanitizer")
    if found:
        return found
    folders = [Path(p) for p in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if p]
    folders += sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    folders += [folder for path in sys.path for folder in Path(path).glob("nvidia/*") if folder.is_dir()]
    for folder in folders:
        for place in ("bin", "compute-sanitizer", "extras/compute-sanitizer"):
            candidate = folder / place / "compute-sanitizer"
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return str(candidate)
    raise SanitizerError("compute-sanitizer is not on the PATH nor in /usr/local/cuda*; it comes with the CUDA toolkit")


def _command(program, tool, known):
    wanted = (*OPTIONS["all"], *OPTIONS[tool])
    options = [part for option in wanted if option.partition("=")[0] in known for part in option.split("=", 1)]
    return [program, "--tool", tool, *options]


def run_sanitizer(program, tools, names, raw, workers, report):
    """Run kernels under each tool.

    Returns
    -------
    dict of {tool: {kernel: dict}}
        ``status``, ``reports`` (kind, code of the lines, count), ``raw`` (first lines of the first report).
    """
    known = _output([program, "--help"])
    chunks = [names[i : i + KERNELS_PER_CHILD] for i in range(0, len(names), KERNELS_PER_CHILD)]
    jobs = [(tool, chunk) for chunk in chunks for tool in tools]
    results = {tool: {} for tool in tools}
    with ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda job: run_kernels(*job, raw, _command(program, job[0], known)), jobs)
        for (tool, chunk), (outcomes, text) in zip(jobs, done, strict=True):
            results[tool] |= _results(outcomes, parse(text, chunk))
            report(f"{tool}: {len(results[tool])} of {len(names)} kernels")
    return results


def _results(outcomes, parsed):
    """Join the outcomes of some kernels with the reports about them."""
    results = {}
    for name, outcome in outcomes.items():
        reports, raw = parsed.get(name, ([], []))
        results[name] = outcome | {"reports": [_stored(r) for r in reports], "raw": raw}
    if None in parsed:
        first = next(iter(results.values()))
        first["unattributed"] = parsed[None][1]
    return results


def _stored(report):
    """Return a report as it is stored: with the code of its lines, as their numbers change when the file is edited."""
    return {"kind": report.kind, "code": [code_of(line) for line in report.lines], "count": report.count}


def code_of(line):
    """Return the text of a line of the planted kernels."""
    return ((BENCH / "corpus" / "bugs.py").read_text().splitlines())[line - 1].strip()


# -- Numba's simulator -----------------------------------------------------------------------------


def run_simulator(raw, workers, report):
    """Run the wrong kernels in Numba's simulator.

    Returns
    -------
    dict of {kernel: str}
        "raises ...", "cannot run: ...", "hangs", "wrong result", "no error" (right, or nothing to compare with).
    """
    names = list(PLANTED)
    chunks = [names[i : i + KERNELS_PER_CHILD] for i in range(0, len(names), KERNELS_PER_CHILD)]
    outcomes = {}
    with ThreadPoolExecutor(workers) as pool:
        simulate = partial(run_kernels, SIMULATOR, raw=raw, environment={"NUMBA_ENABLE_CUDASIM": "1"})
        for found, _ in pool.map(simulate, chunks):
            outcomes |= found
            report(f"simulator: {len(outcomes)} of {len(names)} kernels")
    return {name: _simulated(PLANTED[name], outcome) for name, outcome in outcomes.items()}


def _simulated(case, outcome):
    if outcome["status"] == "raised":
        if outcome["error"] in ("AttributeError", "NameError", "NotImplementedError"):
            return f"cannot run: {outcome['detail']}"
        return f"raises {outcome['error']}"
    if outcome["status"] != "ran":
        return "hangs" if outcome["status"] == "timed out" else outcome["status"]
    expected = _expected(case)
    if expected is None:
        return "no error"
    right = all(_same(a, b) for a, b in zip(outcome["arrays"], expected, strict=True))
    return "no error" if right else "wrong result"


def _expected(case):
    """Return what the corrected twin leaves in the same arrays, by the emulator; None if there is no such twin."""
    from warpstep import cuda

    twins = [c for c in CORRECT.values() if case.name in c.mends and c.make is case.make]
    if not twins:
        return None
    arguments = twins[0].arguments(cuda)
    twins[0].configured(cuda)(*arguments)
    return _contents(arguments)


def _same(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-4, equal_nan=True)


# -- gpukit's trace, and the table -----------------------------------------------------------------


def trace_findings(case):
    """Trace one kernel; return its findings."""
    import gpukit
    from warpstep import cuda

    return gpukit.trace(case.configured(cuda), *case.arguments(cuda)).findings


def _found_here(case):
    """Trace one kernel; return {kind: lines} of its findings."""
    lines = {}
    for finding in trace_findings(case):
        lines.setdefault(finding.kind, set()).add(finding.line)
    return {kind: sorted(found) for kind, found in lines.items()}


def _machine(program):
    """Describe the machine that compute-sanitizer ran on."""
    from gpukit import results  # not in the simulator's process, which cannot import the backend

    number = re.search(r"Version (\S+)", _output([program, "--version"]))
    return results.machine(("numba", "numba-cuda", "numpy")) | {
        "compute-sanitizer": number[1] if number else "",
        "python": platform.python_version(),
    }


def _output(command):
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return (result.stdout + result.stderr).strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def measure(tools=TOOLS, raw=None, workers=None, simulator=True, names=None, report=lambda text: None):
    """Run all kernels under compute-sanitizer's tools, and the wrong ones in Numba's simulator.

    Parameters
    ----------
    tools : sequence of str
        Of `TOOLS`.
    raw : Path, optional
        Folder for everything that the tools print; not kept unless given.
    workers : int, optional
        Children at a time; by default two less than there are cores.
    simulator : bool
    names : list of str, optional
        Kernels; by default all.
    report : function of str
        Told the progress.

    Returns
    -------
    dict
        ``machine``, and ``kernels``: {name: {tool: its reports, "simulator": str}}.

    Raises
    ------
    SanitizerError
        If there is no compute-sanitizer.
    """
    program = find_sanitizer()
    workers = workers or max(1, (os.cpu_count() or 4) - 2)
    names = names or [*PLANTED, *CORRECT]
    if raw:
        raw.mkdir(parents=True, exist_ok=True)
    found = run_sanitizer(program, tools, names, raw, workers, report)
    simulated = run_simulator(raw, workers, report) if simulator else {}
    kernels = {name: {tool: found[tool][name] for tool in tools} for name in names}
    for name in simulated.keys() & kernels.keys():
        kernels[name][SIMULATOR] = simulated[name]
    return {"machine": _machine(program), "kernels": kernels}


def _tool_cell(result):
    """Return a tool's report in a word or two."""
    if result is None:
        return ""
    said = sum(r["count"] for r in result["reports"])
    if said:
        return f"{said} x {_short(result['reports'][0]['kind'])}"
    return {"ran": "-", "raised": "launch fails", "timed out": "hangs"}.get(result["status"], result["status"])


def _short(kind):
    return re.sub(r"__|Barrier error: |Uninitialized | memory|Invalid ", "", kind)


def _here_cell(case, found):
    """Return the line of the right finding, or what is wrong with the trace's findings."""
    if case.kind is None:
        return "-" if not found else "FALSE: " + ", ".join(found)
    if case.kind not in found:
        return "exempt" if case.exempt else "MISSED"
    wanted = case.lines("bug") | case.lines("other")
    places = ", ".join(map(str, found[case.kind]))
    return f"line {places}" if set(found[case.kind]) <= wanted else f"line {places}, NOT {sorted(wanted)}"


def table(record, found):
    """Return a table with a line for each kernel and a column for each tool.

    Parameters
    ----------
    record : dict
        As `measure` gives it.
    found : dict of {kernel: {kind: lines}}
        The trace's findings.
    """
    columns = [tool for tool in TOOLS if any(tool in kernel for kernel in record["kernels"].values())]
    rows = [("kernel", "kind", "gpukit.trace", *columns, "Numba's simulator")]
    for name, case in (PLANTED | CORRECT).items():
        said = record["kernels"].get(name, {})
        cells = [_tool_cell(said.get(tool)) for tool in columns]
        simulated = said.get(SIMULATOR, "").partition(":")[0]
        rows.append((name, case.kind or "correct", _here_cell(case, found[name]), *cells, simulated))
    return Table(rows[0], rows[1:], words=rows[0])


def count(record, found):
    """Count {tool: (wrong kernels that it finds, correct kernels that it blames)}; None if these were not run."""

    def reports(tool, name):
        return bool(record["kernels"].get(name, {}).get(tool, {}).get("reports"))

    def simulated(name):
        return record["kernels"].get(name, {}).get(SIMULATOR, "").startswith(("raises", "hangs", "wrong"))

    finders = {"gpukit.trace": lambda name: bool(found[name])}
    finders |= {tool: partial(reports, tool) for tool in TOOLS}
    finders["any of these"] = lambda name: any(reports(tool, name) for tool in TOOLS)
    counts = {tool: (sum(map(finds, PLANTED)), sum(map(finds, CORRECT))) for tool, finds in finders.items()}
    return counts | {"Numba's simulator": (sum(map(simulated, PLANTED)), None)}


def summary(record, found):
    """Return text: the number of wrong kernels that each tool finds, and of correct ones that it blames."""
    lines = [f"{'':20}{len(PLANTED)} wrong kernels: found   {len(CORRECT)} correct kernels: blamed"]
    for tool, (caught, blamed) in count(record, found).items():
        lines.append(f"{tool:20}{caught:23}{'not run' if blamed is None else blamed:>28}")
    return "\n".join(lines)


def add_options(parser):
    """Add the options of ``gpukit bench findings``."""
    parser.add_argument("--save", metavar="FILE", help="write what compute-sanitizer and the simulator report")
    parser.add_argument("--tools", default=",".join(TOOLS), help="of compute-sanitizer (default: %(default)s)")
    parser.add_argument("--raw", metavar="FOLDER", type=Path, help="keep everything that the tools print there")
    parser.add_argument("--workers", type=int, metavar="N", help="processes at a time (default: cores less two)")
    parser.add_argument("--kernels", metavar="NAMES", help="only these, separated by commas")
    parser.add_argument("--no-simulator", action="store_true", help="leave Numba's simulator out")
    parser.add_argument("--no-trace", action="store_true", help="only run the tools and write the file")


def run(options):
    """Run ``gpukit bench findings``; return the exit status."""
    tools = options.tools.split(",")
    names = options.kernels.split(",") if options.kernels else None
    for given, allowed, option in ((tools, TOOLS, "--tools"), (names or (), PLANTED | CORRECT, "--kernels")):
        unknown = [name for name in given if name not in allowed]
        if unknown:
            print(f"{option}: there is no {unknown[0]!r}; there are {', '.join(allowed)}", file=sys.stderr)
            return 2
    try:
        record = _record(options, tools, names)
    except SanitizerError as error:
        print(error, file=sys.stderr)
        return 1
    if options.no_trace:
        return 0
    found = {name: _found_here(case) for name, case in (PLANTED | CORRECT).items()}
    print(table(record, found))
    print(summary(record, found))
    return 0


def _record(options, tools, names):
    """Measure where there is a GPU; otherwise read the record of the repository."""
    from gpukit import backend

    if backend.why_no_gpu() is None:
        shown = {"report": lambda text: print(f"  {text}", file=sys.stderr)}
        record = measure(tools, options.raw, options.workers, not options.no_simulator, names, **shown)
        if options.save:
            Path(options.save).write_text(json.dumps(record, indent=1) + "\n")
    elif RECORDED.exists():
        record = results.read_json(RECORDED, "record of findings")
    else:
        raise SanitizerError(f"this machine has no GPU, and {RECORDED} is not there")
    machine = record["machine"]
    print(f"compute-sanitizer {machine['compute-sanitizer']} on {machine['gpu']}, {machine['date']}")
    return record
