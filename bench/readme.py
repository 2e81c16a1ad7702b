"""``gpukit bench readme``: write the README's tables, generated sentences and picture from notebooks and records."""

import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from statistics import median

from bench import common, ratios
from gpukit import results, timing

__all__ = [
    "AFTERWARDS",
    "HEADLINES",
    "Headline",
    "ReadmeError",
    "chapters",
    "headlines",
    "measured",
    "summed",
    "written",
]

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "bench" / "records"
README, TEXTS, PICTURE = ROOT / "README.md", ROOT / "notebooks" / "text", ROOT / "docs" / "picture.png"
EMULATOR_PAGE, PERFORMANCE = ROOT / "docs" / "emulator.md", ROOT / "docs" / "performance.md"

#: The goal of each chapter.
AFTERWARDS = {
    "00": "tell where a notebook runs, write a first kernel and launch it over a photograph",
    "01": "compute which element a thread works on, in one to three dimensions, for any size",
    "02": "write a matrix product, and choose its block and its types",
    "02b": "catch launches that fail, and launches that lie",
    "03": "write kernels with tiles in shared memory, and show what a missing barrier does",
    "04": "count the wavefronts of any access to shared memory, and choose a pad or a swizzle without conflicts",
    "05": "keep a tile of a product in registers, load 16 bytes at a time, double-buffer, and say what each gains",
    "05b": "explain what the last steps to a library's speed cost, and choose a kernel for a shape",
    "06": "overlap copies and kernels, predict what that gains, and launch in a few microseconds",
    "07": "reduce over any axes at the speed of memory, and explain each step that leads there",
    "08": "resize, letterbox and normalise batches of frames in one kernel, to OpenCV's pixels",
    "09": "write convolutions as matrix products and directly, and say when each is faster",
    "09b": "say which ideas make a direct convolution fast, and which do not",
    "10": "read a profiler's report beside a trace, predict a kernel's time, and cure a slow one",
    "11": "scan, select, count and sort in parallel, and say what blocks must publish before what",
    "12": "multiply with one instruction of a tensor core, feed it from memory, and say what its precision costs",
    "13": "divide work among several GPUs, hide what they exchange, and say what is lost and why",
    "99": "solve a problem on your own, from its specification to a kernel at par",
}


class ReadmeError(Exception):
    """Raised if a source of the README is missing; the message says which, and where it belongs."""


# -- chapters ----------------------------------------------------------------------------------------------------------


def chapters():
    """Return the table of chapters, Markdown: a line for each notebook."""
    lines = ["| | chapter | afterwards you can |", "|---|---|---|"]
    for path in sorted(TEXTS.parent.glob("*.ipynb")):
        text = (TEXTS / f"{path.stem}.py").read_text(encoding="utf-8")
        number = path.stem.split("_")[0]
        title = re.search(r"^# # (?:\d\d\w? )?(.+)$", text, re.MULTILINE)
        if title is None or number not in AFTERWARDS:
            raise ReadmeError(f"{path.stem} lacks its title, or its goal in bench/readme.py")
        lines.append(f"| {number} | [{title[1].strip()}](notebooks/{path.stem}.ipynb) | {AFTERWARDS[number]} |")
    return "\n".join(lines)


# -- results -----------------------------------------------------------------------------------------------------------

#: The launch that a script should use.
LAUNCH = "gpukit.launching, same arguments"


@dataclass(frozen=True)
class Headline:
    """A line of the table of results.

    Attributes
    ----------
    what : str
    record : str
        Name of the record, for ``results.read``.
    variant : str
        The variant that a user gets by default.
    problem : dict
        Fields of the problem; a shape as a tuple.
    amount : float
        Work of a call: bytes for "GB/s", operations for "TFLOP/s". 0: the time is shown.
    unit : str
    first : bool
        Whether the README shows it: the first of its kind.
    """

    what: str
    record: str
    variant: str
    problem: dict = field(default_factory=dict)
    amount: float = 0.0
    unit: str = ""
    first: bool = False

    def pair(self):
        """Return the `ratios.Pair`; None if the record does not exist yet; ReadmeError if it lacks the problem."""
        if not (results.RECORDED / f"{self.record}.json").is_file():
            return None
        fitting = [
            pair
            for pair in _pairs(self.record, self.variant)
            if all(pair.problem.get(key) == value for key, value in self.problem.items())
        ]
        if len(fitting) != 1:
            raise ReadmeError(
                f"{self.what}: {self.record}.json has {len(fitting)} problems with {self.problem}, not one"
            )
        return fitting[0]

    def figure(self, record):
        """Format the speed or time of one side."""
        if not self.amount:
            return timing.format_seconds(record["value"])
        rate = self.amount / record["value"] / {"GB/s": 1e9, "TFLOP/s": 1e12, "frames/s": 1.0}[self.unit]
        return f"{rate:,.0f} {self.unit}" if rate >= 100 else f"{rate:.1f} {self.unit}"


@cache
def _pairs(record, variant):
    """Pair one of gpukit's variants with the libraries."""
    return ratios.pairs([r for r in results.read(record)[1] if r["variant"] == variant or ratios.library_of(r)])


def _product(what, n, first=False):
    problem = {"case": "shape", "shape": (n, n, n), "dtype": "float32"}
    return Headline(what, "fast-matmul-h200", "fast", problem, 2.0 * n**3, "TFLOP/s", first)


def _sum(what, case, *shape, first=False):
    problem = {"case": case, "shape": shape, "dtype": "float32"}
    return Headline(what, "reduce-h200", "reduce", problem, 4.0 * prod(shape), "GB/s", first)


def _scan(what, variant, case, size, nbytes=0, first=False):
    problem = {"case": case, "shape": (size,), "dtype": "float32"}
    return Headline(what, "scan-h200", variant, problem, float(nbytes * size), "GB/s", first)


def _convolution(what, case, shape, kernel, variant="direct", first=False):
    problem = {"case": case, "shape": shape, "dtype": "float32", "kernel": kernel}
    return Headline(what, "conv-h200", variant, problem, first=first)


def _transpose(what, *shape):
    problem = {"case": "time", "shape": shape, "dtype": "float32"}
    return Headline(what, "transpose-h200", "wide", problem, 8.0 * prod(shape), "GB/s", first=True)


#: The lines of the table of results: each kind of work at a size or two.
HEADLINES = (
    _product("matrix product, 4096 x 4096", 4096, first=True),
    _product("matrix product, 1024 x 1024", 1024),
    _transpose("transpose, 8192 x 8192", 8192, 8192),
    _sum("sum of 2^28 numbers", "sum over all", 2**28, first=True),
    _sum("sum over the first axis, 30522 x 10240", "sum over axis 0", 30522, 10240),
    _sum("sum over the last axis, 65536 x 1000", "sum over axis 1", 65536, 1000),
    Headline(
        "letterbox and normalise, 32 frames of 1920 x 1080",
        "resize-h200",
        "blob",
        {"case": "blob", "shape": (32, 1080, 1920, 3), "dtype": "float32"},
        32.0,
        "frames/s",
        first=True,
    ),
    _convolution("convolution 6 x 6, 6 to 6 channels, 512 x 768", "article", (1, 6, 512, 768), 6, first=True),
    _convolution("convolution 5 x 5, 16 to 16 channels, 512 x 512", "map", (1, 16, 512, 512), 5, "fourier"),
    _scan("running sum of 2^28 numbers", "scan", "sum over all", 2**28, 8, first=True),
    _scan("running sum of 2^20 numbers", "scan", "sum over all", 2**20, 8),
    _scan("sort of 2^28 numbers", "sort", "sort, keys", 2**28, first=True),
    _scan("histogram of 2^28 numbers, 256 bins", "histogram", "histogram, uniform", 2**28, 4),
    Headline("launch of a prepared kernel, on the host", "streams-h200", LAUNCH, {"case": "launch"}, first=True),
)


def headlines():
    """Return the lines that the README shows, Markdown: one of each kind of work, and the device."""
    lines, heads = _compared(headline for headline in HEADLINES if headline.first)
    return "\n".join([*lines, "", *(f"Recorded on {gpu}." for gpu in dict.fromkeys(head["gpu"] for head in heads))])


def measured():
    """Return all lines of the table of results, Markdown, with the machine below them."""
    lines, heads = _compared(HEADLINES)
    return "\n".join([*lines, "", summed(), "", *_machines(heads)])


def _compared(headlines):
    lines = ["| float32 | gpukit | the fastest library | ratio |", "|---|--:|--:|--:|"]
    heads = []
    for headline in headlines:
        pair = headline.pair()
        if pair is not None:
            ours, theirs = headline.figure(pair.ours), headline.figure(pair.theirs)
            library = ratios.LIBRARIES[ratios.library_of(pair.theirs)]
            ratio = f"**{pair.ratio:.2f}**" if pair.valid else "unsteady"
            lines.append(f"| {headline.what} | {ours} | {theirs} ({library}) | {ratio} |")
            head = results.read(headline.record)[0]
            heads.append(head | {"date": pair.ours.get("date", head["date"])})
    return lines, heads


#: Cases without gpukit's best: steps towards it, and float64 without tensor cores.
WITHOUT_BEST = "ladder", "float64"
#: The records that hold gpukit's best beside the libraries, and their contents.
KINDS = {
    "fast-matmul-h200": "matrix products",
    "transpose-h200": "transposes",
    "reduce-h200": "reductions",
    "tensor-h200": "products on tensor cores",
    "scan-h200": "scans, histograms, sorts, compaction",
    "resize-h200": "resizing",
    "conv-h200": "convolutions, im2col, col2im",
}


def summed():
    """Return the table of all problems by kind, Markdown, with gpukit's fastest variant for each."""
    lines = ["| all that was measured | problems | gpukit as fast or faster | median ratio | lowest |"]
    lines.append("|---|--:|--:|--:|---|")
    for record, kind in KINDS.items():
        if (results.RECORDED / f"{record}.json").is_file():
            found = ratios.pairs(results.read(record)[1])
            found = [pair for pair in found if pair.valid and pair.problem["case"] not in WITHOUT_BEST]
            ahead, middle = sum(pair.ratio >= 1 for pair in found), median(pair.ratio for pair in found)
            lowest = min(found, key=lambda pair: pair.ratio)
            worst = f"{lowest.ratio:.2f} ({ratios.size_of(lowest.problem)})"
            lines.append(f"| {kind} | {len(found)} | {ahead} | {middle:.2f} | {worst} |")
    return "\n".join(lines)


#: The record of ``gpukit bench any``, and what its table shows.
RANDOM = "any-h200"
RANDOMS = (
    "Problems of random sizes, types and layouts, and all that were once found slow, each beside the fastest library "
    "that takes it (`gpukit bench any`): the share where gpukit is ahead, the share where its ratio is at least 0.9, "
    "the median and the lowest ratio. First for the device's time, with a cold L2 cache, then for a call that waits "
    "for its result. `blob` is letterbox and normalise, into planes for a network."
)


def randoms():
    """Return the table of the random problems by function, Markdown; nothing if no record holds them."""
    from bench import any as bench

    if not (results.RECORDED / f"{RANDOM}.json").is_file():
        return ""
    head, records = results.read(RANDOM)
    found = bench.ratios_of(records)
    functions = [case for case in found if f"{case}, call" in found]
    rows = [(name, found[name], found[f"{name}, call"]) for name in functions]
    rows.append(("**all**", *([triple for row in rows for triple in row[side]] for side in (1, 2))))
    header = "| random problems | number | ahead | ≥ 0.9 | median | lowest | call: ahead | ≥ 0.9 | median | lowest |"
    lines = [header, "|---|" + "--:|" * 9]
    for name, device, call in rows:
        cells = [str(len(device)), *bench.distribution(device, (1, 0.9)), *bench.distribution(call, (1, 0.9))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([RANDOMS, "", *lines, "", f"Recorded on {head['gpu']}."])


def _machines(heads):
    """Yield a sentence for each machine: versions, and the date, or the first and the last."""
    alike = {}
    for head in heads:
        alike.setdefault((head["gpu"], head["driver"], head["power_limit"]), []).append(head)
    for group in alike.values():
        found = sorted({f"{name} {number}" for head in group for name, number in head["versions"].items()})
        days = sorted({head["date"] for head in group})
        machine = max(group, key=len) | {"date": " to ".join(dict.fromkeys((days[0], days[-1])))}
        yield f"Measured on {common.described(machine)} ({', '.join(found)})."


EMULATOR, SIMULATOR = "emulator-host", "Numba's simulator"


def emulator():
    """Return a sentence on the emulator's speed, by the third quartile of its launches."""
    head, records = results.read(EMULATOR)
    values = {(r["case"], r["variant"]): r["quartiles"][1] for r in records}
    cases = [case for case, variant in values if variant == "simulator"]
    parts = [
        f"{case}: three launches of four within {_short(values[case, 'emulator, repeated'])}, Numba's own simulator "
        f"{_short(values[case, 'simulator'])}"
        for case in cases
    ]
    return f"On {head['cores']} cores of an {head['cpu']}: {'; '.join(parts)} (`gpukit bench emulator`)."


def _short(seconds):
    return f"{seconds:.2g} s" if seconds >= 1 else f"{seconds * 1e3:.2g} ms"


def predicted():
    """Return a sentence on the accuracy of predicted times."""
    from bench import predictions as bench

    head, records = results.read(bench.RECORDED)
    pairs = [(least["value"], measured["value"]) for least, measured in bench.paired(records)]
    return (
        "`trace.predict()` divides these counts by what a GPU can do: how long a launch takes at least, and what "
        f"limits it. From the trace alone, {bench.near(pairs)} of the {len(pairs)} kernels of the course come within "
        f"a factor of {bench.WITHIN} of their time on an {head['gpu']} (`gpukit bench predictions`)."
    )


def compatibility():
    """Return sentences on the tests of numba-cuda and of its successor."""
    tests, passed, version = _passed("compatibility.json", "numba-cuda")
    theirs, emulated, successor = _passed("compatibility-mlir.json", "numba-cuda-mlir")
    return (
        f"Of the {tests:,} tests that come with numba-cuda {version}, run without a GPU but with NVIDIA's compiler, "
        f"the emulator passes {passed['emulator']:,} and Numba's simulator {passed['simulator']:,}; of the {theirs:,} "
        f"of numba-cuda-mlir {successor}, which has no simulator, the emulator passes {emulated['emulator']:,} "
        "(`python tools/compatibility.py --table` lists the reasons)."
    )


def _passed(name, package):
    """Read a record of tests: how many there are, {way: passed}, and the version of the package they come with."""
    stored = results.read_json(RECORDS / name, "record of compatibility")
    outcomes = [outcome.split() for tests in stored["tests"].values() for outcome in tests.values()]
    passed = {way: sum(outcome[n] == "pass" for outcome in outcomes) for n, way in enumerate(stored["ways"])}
    return len(outcomes), passed, stored["versions"][package]


def evidence():
    """Return list items on the trace's counts and findings, beside NVIDIA's tools."""
    from bench.corpus.kernels import CASES
    from bench.evidence import counters, sanitizer

    cases = {**sanitizer.PLANTED, **sanitizer.CORRECT}
    # What the trace must find, which the tests of its findings check.
    found = {name: {case.kind: []} if case.kind and not case.exempt else {} for name, case in cases.items()}
    counts = sanitizer.count(results.read_json(sanitizer.RECORDED, "record of findings"), found)
    wrong, correct = len(sanitizer.PLANTED), len(sanitizer.CORRECT)
    return (
        f"- **The counts are the hardware's:** equal to Nsight Compute's on an {counters.load()['gpu']} for "
        f"{len(CASES)} kernels (`gpukit bench counters`). Where a compiler changes the accesses, the trace shows the "
        "kernel as written.\n"
        f"- **It finds what sanitizers miss:** of {wrong} small wrong kernels the trace finds "
        f"{counts['gpukit.trace'][0]} at their line, compute-sanitizer's four tools together "
        f"{counts['any of these'][0]}, Numba's simulator {counts[SIMULATOR][0]}. Of {correct} correct kernels that "
        f"look suspicious it blames {counts['gpukit.trace'][1] or 'none'} (`gpukit bench findings`)."
    )


# -- the picture -------------------------------------------------------------------------------------------------------

SIDE = 64  # of the matrix that is transposed for it
TITLES = {"tiled": "a column of a tile", "tiled_padded": "its rows padded by one"}
#: Records and cases of the bars, in order of preference.
LADDERS = (("fast-matmul-h200", "ladder"), ("matmul-h200", "time"))
#: Names of the bars, by variant.
RUNGS = {
    "naive": "one thread per element",
    "tiled": "tiles in shared memory",
    "registers_1d": "sums in registers, 1-D",
    "registers_2d": "sums in registers, 2-D",
    "wide": "128-bit loads",
    "transposed_padded": "transposed and padded",
    "double_buffered": "double buffers",
    "warp_tiles": "tiles of warps",
    "read_ahead": "values read ahead",
    "asynchronous": "asynchronous copies",
    "fast": "fast",
}
PRODUCT = {"shape": (4096, 4096, 4096), "dtype": "float32", "unit": "s"}


def _requests():
    """Return title, wavefronts of the worst load, and the bank of each of its lanes, for two transposes."""
    import numpy as np

    import gpukit
    from gpukit import transpose

    x = np.zeros((SIDE, SIDE), np.float32)
    found = []
    for variant in TITLES:
        trace = gpukit.trace(transpose.configure(variant, x.shape), x, np.empty_like(x))
        loads = [access for access in trace.accesses if (access.space, access.op) == ("shared", "load")]
        request = max(loads, key=lambda access: access.wavefronts).worst
        found.append((TITLES[variant], request.wavefronts, [int(a) // 4 % 32 for a in request.addresses]))
    return found


def _bars():
    """Return (name, TFLOP/s) of each rung, cuBLAS last, and the GPU."""
    record, case = next(pair for pair in LADDERS if (results.RECORDED / f"{pair[0]}.json").is_file())
    records = results.load(record, case=case, **PRODUCT)
    found = {}
    for variant, name in RUNGS.items():
        if known := [record for record in records if record["variant"] == variant]:
            found[name] = min(known, key=_seconds)
    found["cuBLAS"] = min((r for r in records if ratios.library_of(r)), key=_seconds)
    flops = 2 * prod(PRODUCT["shape"])
    return [(name, flops / r["value"] * 1e-12) for name, r in found.items()], records[0]["gpu"]


def _seconds(record):
    return record["value"]


def _digest(requests, bars):
    return hashlib.sha256(json.dumps([requests, bars]).encode()).hexdigest()


def draw(path, requests, bars):
    """Write the picture, with the digest of its data in its metadata."""
    from matplotlib import pyplot as plt

    from gpukit import plot

    mark = f"left: counted by gpukit.trace, on any machine; right: recorded on {bars[1]}"
    with plot.figure(columns=3, size=(9.4, 3.1), mark=mark, width_ratios=(1, 1, 1.5)) as axes:
        for ax, request in zip(axes, requests, strict=False):
            _draw_banks(ax, *request)
        axes[0].set_ylabel("lane of the warp")
        _draw_bars(axes[2], *bars)
        made = axes[0].get_figure()
        made.savefig(path, dpi=160, metadata={"Description": _digest(requests, bars), "Software": None})
        plt.close(made)


def _draw_banks(ax, title, wavefronts, banks):
    from matplotlib.patches import Rectangle

    from warpstep.report.axes import PALETTE

    color = PALETTE[6] if wavefronts > 1 else PALETTE[5]
    for lane, bank in enumerate(banks):
        ax.add_patch(Rectangle((bank, lane), 1, 1, facecolor=color))
    ax.set(xlim=(0, 32), ylim=(32, 0), aspect="equal", xticks=(0, 8, 16, 24, 32), yticks=(0, 8, 16, 24, 32))
    ax.set_xlabel("bank of shared memory")
    ax.set_title(f"{title}\n{wavefronts} wavefront{'s' if wavefronts > 1 else ''}")
    ax.grid(color="#EDEDED", linewidth=0.6)


def _draw_bars(ax, rates, gpu):
    from warpstep.report.axes import FAINT, PALETTE

    names, values = zip(*rates, strict=True)
    bars = ax.barh(names, values, color=[PALETTE[5]] * (len(values) - 1) + [FAINT])
    ax.bar_label(bars, [f"{value:.1f}" for value in values], padding=3)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.15 * max(values)), title="4096 x 4096 float32 product\nTFLOP/s")


def _drawn(path):
    """Read the digest of a picture; None if there is none."""
    if not path.is_file():
        return None
    found = re.search(rb"Description\x00([0-9a-f]{64})", path.read_bytes())
    return found[1].decode() if found else None


# -- the command -------------------------------------------------------------------------------------------------------

#: The parts of each page that are written.
TABLES = {
    README: {"chapters": chapters, "evidence": evidence, "randoms": randoms, "headlines": headlines},
    EMULATOR_PAGE: {"emulator": emulator, "compatibility": compatibility, "predictions": predicted},
    PERFORMANCE: {"results": measured},
}


def written(path, tables):
    """Return the text of a page with its tables up to date."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name}: gpukit bench readme writes this -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ReadmeError(f"{path.name} must have the lines {begin} and {end} once each")
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = "\n\n".join([f"{head}{begin}", *filter(None, [table()]), f"{end}{tail}"])
    return text


def add_options(parser):
    """Add the option to check only."""
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if something is out of date"
    )


def run(options):
    """Run ``gpukit bench readme``; return the exit status."""
    return write(options.check)


def write(check=False):
    """Bring the pages and the picture up to date, or only check them; return the exit status."""
    missing = [path for path in TABLES if not path.is_file()]
    if missing:
        print(f"{missing[0]} is not there: this command is for a clone of the repository", file=sys.stderr)
        return 1
    try:
        pages = {path: written(path, tables) for path, tables in TABLES.items()}
        shown = _requests(), _bars()
    except (ReadmeError, LookupError) as error:
        print(error, file=sys.stderr)
        return 1
    stale = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    if _drawn(PICTURE) != _digest(*shown):
        stale.append(PICTURE)
    names = " and ".join(path.name for path in stale)
    if check or not stale:
        print(f"out of date: {names}" if names else "README.md, its picture and docs are up to date")
        return 1 if names else 0
    for path in stale:
        if path == PICTURE:
            draw(PICTURE, *shown)
        else:
            path.write_text(pages[path], encoding="utf-8")
    print(f"written: {names}")
    return 0
