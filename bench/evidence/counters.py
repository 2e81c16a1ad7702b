"""``gpukit bench counters``: compare what `gpukit.trace` counts with Nsight Compute's counters, kernel by kernel.

With a GPU and ``ncu`` the kernels run once under the profiler, in a child process that launches each once and nothing
else. Otherwise the trace is compared with the counters in `RECORDED`. Exit status: 0 if every counter that the compiler
leaves as written is equal, 1 if one differs, 2 if there is nothing to compare with.
"""

import csv
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import _child
from bench.corpus.kernels import CASES
from gpukit import results
from gpukit.backend import why_no_gpu
from warpstep.report.table import Table

RECORDED = Path(__file__).resolve().parents[1] / "records" / "counters-h200.json"

#: Their versions decide what is compiled and counted.
PACKAGES = ("numba", "numba-cuda", "numpy")
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_EXECUTED = "smsp__sass_inst_executed_op_shared"
#: Sectors of all stores to local memory, those of Numba's own included.
LOCAL_STORES = "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum"
_THREADS = "smsp__sass_thread_inst_executed_op"


@dataclass(frozen=True)
class Figure:
    """A count of a trace, and the metrics whose weighted sum is the same count on the hardware.

    Attributes
    ----------
    group : str
        The figure is compared in the cases that list this group in `Case.what`.
    space, op : str
        The accesses that are summed; ``op`` may name several.
    field : str
        Of `warpstep.tracing.Access`; of `warpstep.tracing.Operations` if the space is "arithmetic".
    metrics : dict
        Weight by metric.
    """

    group: str
    space: str
    op: str
    field: str
    metrics: dict

    @property
    def title(self):
        return f"{self.space} {self.op} {self.field}" if self.op else self.field

    def traced(self, trace):
        """Return the count of a trace."""
        if self.space == "arithmetic":
            return sum(getattr(operations, self.field) for operations in trace.operations)
        ops = self.op.split(", ")
        return sum(getattr(a, self.field) for a in trace.accesses if a.space == self.space and a.op in ops)

    def measured(self, values):
        """Return the hardware's count from values by metric, or None if one was not measured."""
        if any(values.get(metric) is None for metric in self.metrics):
            return None
        return sum(weight * values[metric] for metric, weight in self.metrics.items())


def _one(*names):
    return dict.fromkeys(names, 1)


#: The operations of tensor cores, by kind.
TENSOR_METRICS = {
    "tensor_fp16": ("hgmma_src_fp16", "hgmma_src_bf16_dst_fp32", "hmma_src_fp16_dst_fp32", "hmma_src_bf16_dst_fp32"),
    "tensor_tf32": ("hgmma_src_tf32_dst_fp32", "hmma_src_tf32_dst_fp32"),
    "tensor_int8": ("igmma_src_int8", "imma_src_int8"),
}


def _figures():
    for group, op, short in (("shared", "load", "ld"), ("shared", "store", "st"), ("atomic", "atomic", "atom")):
        yield Figure(group, "shared", op, "requests", _one(f"{_EXECUTED}_{short}.sum"))
        yield Figure(group, "shared", op, "wavefronts", _one(f"{_WAVEFRONTS}_op_{short}.sum"))
        yield Figure(group, "shared", op, "bank_conflicts", _one(f"{_CONFLICTS}_op_{short}.sum"))
    every = "load, store, atomic"
    yield Figure("shared lines", "shared", every, "wavefronts", _one("memory_l1_wavefronts_shared"))
    yield Figure("shared lines", "shared", every, "ideal_wavefronts", _one("memory_l1_wavefronts_shared_ideal"))
    for op, short in (("load", "ld"), ("store", "st")):
        for field in ("requests", "sectors"):
            yield Figure("global", "global", op, field, _one(f"l1tex__t_{field}_pipe_lsu_mem_global_op_{short}.sum"))
    for group, field in (("atomic", "requests"), ("atomic sectors", "sectors")):
        metric = f"l1tex__t_{field}_pipe_lsu_mem_global_op_"
        yield Figure(group, "global", "atomic", field, _one(f"{metric}atom.sum", f"{metric}red.sum"))
    yield Figure("global lines", "global", every, "sectors", _one("memory_l2_theoretical_sectors_global"))
    yield Figure("global lines", "global", every, "ideal_sectors", _one("memory_l2_theoretical_sectors_global_ideal"))
    # Local stores are left out: Numba fills a local array with zeros where its function begins.
    yield Figure("local", "local", "load", "requests", _one("smsp__inst_executed_op_local_ld.sum"))
    yield Figure("local", "local", "load", "sectors", _one("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum"))
    yield Figure("matrices", "shared", "load", "requests", _one("smsp__sass_inst_executed_op_ldsm.sum"))
    yield Figure("matrices", "shared", "load", "wavefronts", _one(f"{_WAVEFRONTS}_op_ld.sum"))
    yield Figure("matrices", "shared", "load", "bank_conflicts", _one(f"{_CONFLICTS}_op_ld.sum"))
    yield Figure("tensor", "shared", "tensor load", "wavefronts", _one(f"{_WAVEFRONTS}_op_gmma.sum"))
    # A commit of stores is a request too: compared where there are loads alone.
    yield Figure("tensor requests", "global", "tensor load", "requests", _one("l1tex__tmain_requests.sum"))
    metric = "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum"
    yield Figure("tensor", "global", "tensor load", "sectors", _one(metric))
    metric = "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum"
    yield Figure("tensor", "global", "tensor store", "sectors", _one(metric))
    for field, kinds in TENSOR_METRICS.items():
        yield Figure("tensor", "arithmetic", "", field, _one(*(f"sm__ops_path_tensor_op_{kind}.sum" for kind in kinds)))
    for letter, field in (("f", "fp32"), ("d", "fp64")):
        names = {f"{_THREADS}_{letter}{op}_pred_on.sum": weight for op, weight in (("add", 1), ("mul", 1), ("fma", 2))}
        yield Figure("arithmetic", "arithmetic", "", field, names)


#: What is compared.
FIGURES = tuple(_figures())
#: Recorded too, to explain counts that differ.
FURTHER = (
    "smsp__inst_executed.sum",
    f"{_WAVEFRONTS}.sum",
    f"{_CONFLICTS}.sum",
    f"{_EXECUTED}.sum",
    "smsp__inst_executed_op_shared_atom.sum",
    "smsp__inst_executed_op_shared_atom_dot_alu.sum",
    "smsp__inst_executed_op_shared_atom_dot_cas.sum",
    LOCAL_STORES,
    "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum",
    "smsp__inst_executed_op_local_st.sum",
    "memory_l2_theoretical_sectors_local",
    "smsp__sass_branch_targets.sum",
    "smsp__sass_branch_targets_threads_divergent.sum",
    "smsp__branch_targets_threads_divergent",
)
METRICS = tuple(dict.fromkeys([*(metric for figure in FIGURES for metric in figure.metrics), *FURTHER]))
#: Every ncu knows this metric: if it cannot be read, none can.
_SURE = "smsp__inst_executed.sum"


class ProfilerError(RuntimeError):
    """Raised if ncu did not run, or its table is incomplete; the message holds its output."""


# -- the profiler ------------------------------------------------------------------------------------------------------


def find_ncu():
    """Return the path of ``ncu``, or None."""
    found = shutil.which("ncu")
    if found:
        return found
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [root / "bin" / "ncu" for root in (*roots, Path("/usr/local/cuda"))]
    candidates += sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    return next((str(path) for path in candidates if path.is_file()), None)


def run_ncu(ncu, options, function, *arguments, report=None):
    """Run a function of `bench` under ncu, in a child process that fails if it finds no GPU.

    Parameters
    ----------
    ncu : str
    options : list of str
        Besides those for CSV, and for a clock that is left as it is.
    function, *arguments, report
        As for `bench._child.run`.

    Returns
    -------
    bench._child.Child
    """
    under = [ncu, *"--clock-control none --csv --print-units base".split(), *options]
    environment = {"GPUKIT_BACKEND": "gpu", "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}
    return _child.run(function, *arguments, under=under, environment=environment, report=report)


def profile(ncu, metrics, cases, report=lambda done: None):
    """Launch cases under ncu.

    Parameters
    ----------
    ncu : str
    metrics : sequence of str
    cases : sequence of Case
    report : callable
        Told the number of launches done.

    Returns
    -------
    tuple of (str, int)
        All that was printed, and ncu's exit status.
    """
    options = [*"--cache-control none --page raw --kernel-name-base function --metrics".split(), ",".join(metrics)]
    numbers = [CASES.index(case) for case in cases]
    child = run_ncu(ncu, options, launch_cases, numbers, report=lambda answers: report(len(answers)))
    return child.output, child.status


def launch_cases(numbers):
    """Launch the cases with these indices once each, under ncu."""
    from gpukit import cuda

    for number in numbers:
        case = CASES[number]
        arguments = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in case.arguments()]
        case.launch(*arguments)
        cuda.synchronize()
        _child.answer(number)


def read_csv(text):
    """Read the rows of ncu's table: a list of (kernel name, {column: text}).

    The table starts at the line whose first column is "ID". Lines before it are messages, and the row below it, without
    an ID, holds units.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return []
    table = [line for line in lines[start:] if line.startswith('"')]
    return [(row["Kernel Name"], row) for row in csv.DictReader(table) if row["ID"].strip()]


def _number(text):
    """Read a number of ncu's table; None for "n/a" and the like."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(value) if value == int(value) else value


def known_metrics(ncu, metrics):
    """List the metrics that this ncu can read on this GPU, found by profiling one launch; ProfilerError if none."""
    output, status = profile(ncu, [_SURE], CASES[:1])
    if status or not read_csv(output):
        raise ProfilerError(_explain(output))
    return _readable(ncu, list(metrics))


def _readable(ncu, metrics):
    if not metrics:
        return []
    output, status = profile(ncu, metrics, CASES[:1])
    rows = read_csv(output)
    if status == 0 and rows:
        return [metric for metric in metrics if metric in rows[0][1]]
    complaints = "\n".join(line for line in output.splitlines() if line.startswith(("==ERROR==", "==WARNING==")))
    named = [metric for metric in metrics if re.search(rf"(?<![\w.]){re.escape(metric)}(?![\w.])", complaints)]
    if named and len(named) < len(metrics):
        return _readable(ncu, [metric for metric in metrics if metric not in named])
    if len(metrics) == 1:
        return []
    half = len(metrics) // 2
    return _readable(ncu, metrics[:half]) + _readable(ncu, metrics[half:])


def _explain(output):
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "ncu may not read the GPU's counters: run as root, in a container with --cap-add=SYS_ADMIN, or set the "
            "driver's option NVreg_RestrictProfilingToAdminUsers=0"
        )
    return f"ncu failed:\n{output.strip()[-3000:]}"


def measure(ncu, cases, report=lambda text: None):
    """Run cases under ncu.

    Parameters
    ----------
    ncu : str
        Path of the profiler.
    cases : sequence of Case
    report : callable
        Told what happens, as text.

    Returns
    -------
    tuple of (dict, str)
        The record that ``--save`` writes, and ncu's output.

    Raises
    ------
    ProfilerError
        If ncu fails, or did not see one launch for each case.
    """
    report("asking ncu which metrics it knows ...")
    metrics = known_metrics(ncu, METRICS)
    unknown = [metric for metric in METRICS if metric not in metrics]
    if unknown:
        report(f"ncu does not know: {', '.join(unknown)}")
    report(f"{len(cases)} launches, {len(metrics)} metrics")

    def progress(done):
        if done % 50 == 0:
            report(f"  {done} of {len(cases)}")

    output, status = profile(ncu, metrics, cases, progress)
    rows = read_csv(output)
    kernels = [case.kernel.py_func.__name__ for case in cases]
    seen = [kernel for kernel, _ in rows]
    if status or len(rows) != len(cases) or any(k not in s for k, s in zip(kernels, seen, strict=True)):
        raise ProfilerError(f"{len(rows)} launches in ncu's table, expected {len(cases)}. {_explain(output)}")
    record = _about(ncu) | {"unknown_metrics": unknown, "metrics": metrics}
    record["cases"] = {
        case.name: [_number(row[metric]) for metric in metrics] for case, (_, row) in zip(cases, rows, strict=True)
    }
    return record, output


def _about(ncu):
    """Describe the machine and the profiler of a record."""
    text = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", text)
    return results.machine(PACKAGES) | {
        "ncu": found.group(1) if found else text.strip(),
        "python": platform.python_version(),
    }


# -- the kernels of a chapter ------------------------------------------------------------------------------------------

#: Metrics that are recorded for the kernels of a chapter, by the name of their case.
LAUNCH_METRICS = {
    "shared wavefronts": "memory_l1_wavefronts_shared",
    "shared wavefronts, ideal": "memory_l1_wavefronts_shared_ideal",
    "shared load wavefronts": f"{_WAVEFRONTS}_op_ld.sum",
    "shared store wavefronts": f"{_WAVEFRONTS}_op_st.sum",
    "shared load requests": f"{_EXECUTED}_ld.sum",
    "shared store requests": f"{_EXECUTED}_st.sum",
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "global load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "instructions": _SURE,
}


def launch_counted(known, launch, arguments):
    """Launch a kernel once under ncu; answer with ``known``, the fields of its records, and with its registers."""
    from gpukit import cuda

    launch(*arguments)
    cuda.synchronize()
    kernel = launch.dispatcher
    compiled = kernel.compile(tuple(kernel.typeof_pyval(x) for x in arguments))
    _child.answer(known | {"registers": compiled.regs_per_thread})


def measure_launches(function, size, chapter, shape, dtype, report=print):
    """Count with Nsight Compute in each kernel that a function launches with `launch_counted`.

    Returns
    -------
    list of dict
        Records; none without ncu.
    bool
        True.

    Raises
    ------
    ProfilerError
        If ncu fails.
    """
    ncu = find_ncu()
    if ncu is None:
        report("ncu is not installed: no counters")
        return [], True
    known = known_metrics(ncu, LAUNCH_METRICS.values())
    options = "--target-processes application-only --cache-control none --page raw --metrics".split()
    child = run_ncu(ncu, [*options, ",".join(known)], function, size)
    rows = read_csv(child.output)
    if child.status or len(rows) != len(child.answers) or not rows:
        raise ProfilerError(f"{len(rows)} rows for {len(child.answers)} launches\n{child.output}")
    records = []
    for launch, (_, row) in zip(child.answers, rows, strict=True):
        counts = {case: row[metric] for case, metric in LAUNCH_METRICS.items() if metric in known}
        variant = launch.pop("variant")
        for case, text in {"registers": str(launch.pop("registers")), **counts}.items():
            value = int(float(text.replace(",", "")))
            records.append(results.record(chapter, case, variant, shape, dtype, value, "1", **launch))
    return records, True


# -- records -----------------------------------------------------------------------------------------------------------


def save(record, path):
    """Write a record, one case on a line."""
    head = {key: value for key, value in record.items() if key != "cases"}
    cases = ",\n".join(f"    {json.dumps(name)}: {json.dumps(values)}" for name, values in record["cases"].items())
    text = json.dumps(head, indent=2)
    Path(path).write_text(f'{text[: text.rindex("}")].rstrip()},\n  "cases": {{\n{cases}\n  }}\n}}\n')


def load(path=RECORDED):
    """Read a record: its dict, with ``cases`` as {name: {metric: value}}."""
    record = results.read_json(path, "file of counters")
    if not isinstance(record, dict) or not {"cases", "metrics"} <= record.keys():
        raise ValueError(f'{path} is no file of counters: it needs "cases" and "metrics"')
    record["cases"] = {
        name: dict(zip(record["metrics"], values, strict=True)) for name, values in record["cases"].items()
    }
    return record


# -- the comparison ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One figure of one case; ``exempt`` if the compiler does not leave this case as written."""

    case: str
    figure: str
    traced: int
    measured: int
    exempt: bool

    @property
    def equal(self):
        return self.traced == self.measured


def traced(case):
    """Trace a case."""
    import gpukit

    return gpukit.trace(case.launch, *case.arguments())


def compare(case, trace, values):
    """Compare a case's trace with the hardware's values by metric; return a list of `Comparison`."""
    result = []
    for figure in FIGURES:
        measured = figure.measured(values)
        if figure.group in case.what and measured is not None:
            result.append(Comparison(case.name, figure.title, figure.traced(trace), measured, bool(case.merges)))
    return result


def _table(header, rows):
    return Table(header, [[str(cell) for cell in row] for row in rows])


def _print_comparisons(comparisons, every, brief):
    """Print the figures that differ (``every``: all; ``brief``: without merged ones), then the sums by figure."""
    shown = [c for c in comparisons if every or not (c.equal or brief and c.exempt)]
    if shown:
        words = {True: "equal", False: "DIFFERENT"}
        rows = [
            (c.case, c.figure, c.traced, c.measured, "merged" if c.exempt and not c.equal else words[c.equal])
            for c in shown
        ]
        print(_table(("case", "counter", "trace", "hardware", "result"), rows), end="\n\n")
    counted = [c for c in comparisons if not c.exempt]
    compared, equal = Counter(c.figure for c in counted), Counter(c.figure for c in counted if c.equal)
    rows = [(figure, number, equal[figure]) for figure, number in compared.items()]
    print(_table(("counter", "cases", "equal"), rows))


def _record_for(options, cases):
    """Measure the record to compare with, or read it from a file."""
    ncu = None if options.recorded or why_no_gpu() else find_ncu()
    if ncu is None:
        if options.save or options.raw:
            missing = why_no_gpu() or ("--recorded measures nothing" if options.recorded else "ncu was not found")
            raise ProfilerError(f"--save and --raw need a GPU and Nsight Compute's ncu: {missing}")
        path = Path(options.recorded or RECORDED)
        if not path.is_file():
            raise ProfilerError(f"there is no ncu with a GPU here, and no recorded counters in {path}")
        return load(path)
    record, output = measure(ncu, cases, lambda text: print(text, file=sys.stderr))
    if options.raw:
        Path(options.raw).write_text(output)
    if options.save:
        save(record, options.save)
    return record | {"cases": {n: dict(zip(record["metrics"], v, strict=True)) for n, v in record["cases"].items()}}


def add_options(parser):
    """Add the options of ``gpukit bench counters``."""
    parser.add_argument("--save", metavar="FILE", help="write the measured counters to FILE (JSON)")
    parser.add_argument("--raw", metavar="FILE", help="write ncu's own output to FILE")
    parser.add_argument("--recorded", metavar="FILE", help="compare with these counters even if there is a GPU")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the cases whose name contains TEXT")
    parser.add_argument("--all", action="store_true", help="print every counter, not only those that differ")
    parser.add_argument("--brief", action="store_true", help="leave out those that a compiler merged")


def run(options):
    """Run ``gpukit bench counters``; return the exit status."""
    cases = [case for case in CASES if options.only in case.name]
    if not cases:
        print(f"--only {options.only!r} names no case", file=sys.stderr)
        return 2
    try:
        record = _record_for(options, cases)
    except ProfilerError as error:
        print(error, file=sys.stderr)
        return 2
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    print(f"{record['gpu']}, driver {record['driver']}, ncu {record['ncu']}, {versions}; {record['date']}")
    known = record["cases"]
    comparisons = [c for case in cases if case.name in known for c in compare(case, traced(case), known[case.name])]
    _print_comparisons(comparisons, options.all, options.brief)
    missing = [case.name for case in cases if case.name not in known]
    if missing:
        print(f"Not recorded: {', '.join(missing)}")
    return int(bool(missing) or any(not c.equal and not c.exempt for c in comparisons))
