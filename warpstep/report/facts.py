"""The content of a trace's views, before it becomes text or HTML: lines with their counts, facts, tables."""

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import PurePath

from warpstep.report.table import Table
from warpstep.tracing.records import Access, Finding, Place, Recording

#: A run of more source lines than this without any record is cut in the middle, to ``CONTEXT`` lines at either end.
MAX_QUIET, CONTEXT = 8, 2
#: Lines of a docstring that are listed; of a longer one only the first is.
MAX_DOCSTRING = 3

#: Titles of the counts of `Operations`, for the tables.
ARITHMETIC = {
    "fp16": "FP16",
    "fp32": "FP32",
    "fp64": "FP64",
    "int32": "int32",
    "int64": "int64",
    "int64_divisions": "int64 divisions",
    "fp64_conversions": "FP64 conversions",
    "tensor_fp16": "tensor FP16",
    "tensor_tf32": "tensor TF32",
    "tensor_fp64": "tensor FP64",
    "tensor_int8": "tensor int8",
}
UNITS = ("wavefronts", "sectors")
WRONG = "the result is wrong, or can be"
SLOW = "slow rather than wrong"


@dataclass(frozen=True)
class Line:
    """A line of the listing.

    Attributes
    ----------
    number : int or None
        None if lines are left out here; ``code`` then says how many.
    code : str
        With the indentation that it has in the kernel.
    accesses : list of Access
    worst, finding : bool
        True for the line that wastes most, and for a line with a finding.
    """

    number: int | None
    code: str
    accesses: list[Access]
    worst: bool = False
    finding: bool = False


# -- words ---------------------------------------------------------------------------------------------------------


def format_count(number: int) -> str:
    """``12,345``; empty for 0."""
    return f"{number:,}" if number else ""


def format_lanes(mean: float) -> str:
    """Write mean active lanes: ``32``, ``16.5``."""
    return f"{mean:.1f}".removesuffix(".0")


def format_ratio(cost: float, ideal: float) -> str:
    """``8 x``, ``1.25 x``; ``1.00 x`` for almost the same; empty if ``ideal`` is 0."""
    if not ideal:
        return ""
    times = cost / ideal
    text = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
    return f"{'1.00' if text == '1' and cost != ideal else text} x"


def plural(count: int, noun: str) -> str:
    """``1 finding``, ``2 findings``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: int) -> str:
    """``2,048 B``, ``3.0 MiB``."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 10 * 1024**power or (power > 1 and count >= 1024**power):
            return f"{count / 1024**power:,.1f} {unit}"
    return f"{count:,} B"


def format_dims(shape: Sequence[int]) -> str:
    """Write the size of a grid or block: (4, 1, 1) as ``4``, (2, 2, 1) as ``(2, 2)``."""
    used = max(i + 1 for i in range(3) if i == 0 or shape[i] > 1)
    return str(shape[0]) if used == 1 else str(tuple(shape[:used]))


def format_index(position: Sequence[int], shape: Sequence[int]) -> str:
    """Write a ``threadIdx`` or ``blockIdx`` with as many numbers as the block or the grid has dimensions."""
    used = max(i + 1 for i in range(3) if i == 0 or shape[i] > 1 or position[i])
    return str(position[0]) if used == 1 else str(tuple(position[:used]))


def join_words(items: Iterable[str], limit: int = 4) -> str:
    """``a``, ``a and b``, ``a, b and c``, ``a, b, c, d and 3 more``."""
    words = list(items)
    words = words if len(words) <= limit else [*words[:limit], f"{len(words) - limit} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def shorten(text: str, limit: int) -> str:
    """Cut a text to ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def file_name(filename: str) -> str:
    """The name of a file without its folders; ``a notebook cell`` for the names that IPython makes up."""
    parts = PurePath(filename).parts
    if filename.startswith("<ipython-input") or any(part.startswith("ipykernel_") for part in parts):
        return "a notebook cell"
    return parts[-1] if parts else filename


def location(record: Place, trace: Recording) -> str:
    """``line 12``, with the name of the file unless it is the kernel's; empty for a record without a line."""
    if not record.line:
        return ""
    if record.filename == trace.filename:
        return f"line {record.line}"
    name = file_name(record.filename)
    return f"line {record.line} of {'another notebook cell' if name == 'a notebook cell' else name}"


# -- facts ---------------------------------------------------------------------------------------------------------


def launch(trace: Recording) -> str:
    """``kernel[(4, 4), (16, 16)]``."""
    return f"{trace.kernel}[{format_dims(trace.grid)}, {format_dims(trace.block)}]"


def status(trace: Recording) -> str:
    """``complete``, ``PARTIAL`` or ``STOPPED``: nobody should overlook the last two."""
    return trace.status if trace.status == "complete" else trace.status.upper()


def about(trace: Recording) -> list[str]:
    """Short texts about the launch: its size, what was traced, its file."""
    blocks, threads = prod(trace.grid), prod(trace.block)
    facts = [trace.where] * bool(trace.where) + [f"{plural(blocks, 'block')} of {plural(threads, 'thread')}"]
    if trace.occupancy.shared_bytes:
        dynamic = f", {trace.shared_bytes:,} of them dynamic" if trace.shared_bytes else ""
        facts.append(f"{trace.occupancy.shared_bytes:,} bytes of shared memory per block{dynamic}")
    if trace.status == "stopped":
        facts.append(f"{trace.blocks:,} of {blocks:,} blocks begun, counts until the error")
    elif trace.status == "partial":
        facts.append(f"{trace.blocks:,} of {blocks:,} blocks traced, counts scaled to all")
    elif blocks > 1:
        facts.append("all blocks traced")
    if trace.filename:
        facts.append(file_name(trace.filename) + (f", line {trace.source[0]}" if trace.source[0] else ""))
    return facts


def totals(trace: Recording) -> list[tuple[str, str, str]]:
    """(name, figure, remark) for the memory spaces in use, traffic and occupancy."""
    facts = []
    for space in ("shared", "global", "local"):
        chosen = [access for access in trace.accesses if access.space == space]
        if chosen:
            total, ideal = sum(map(cost, chosen)), sum(map(ideal_cost, chosen))
            remark = "none more than needed" if total == ideal else f"{format_ratio(total, ideal)} the {ideal:,} needed"
            facts.append((f"{space.capitalize()} memory", f"{total:,} {unit(chosen[0])}", remark))
    traffic, occupancy = trace.traffic, trace.occupancy
    if traffic.moved_bytes:
        remark = f"for {format_bytes(traffic.needed_bytes)} of distinct elements"
        facts.append(("Traffic", f"{format_bytes(traffic.moved_bytes)} moved", remark))
    if link := sum(access.link_bytes for access in trace.accesses):
        facts.append(("Link", f"{format_bytes(link)} moved", "to and from the memory of other devices"))
    if traffic.flops:
        remark = f"{traffic.flops:,} FLOP over the bytes needed"
        facts.append(("Intensity", f"{traffic.intensity:.3g} FLOP/B", remark))
    registers = "registers unknown" if occupancy.registers is None else f"{occupancy.registers} registers"
    remark = f"{occupancy.warps} of {occupancy.max_warps} warps, limited by {occupancy.limited_by}; {registers}"
    facts.append(("Occupancy", f"{100 * occupancy.fraction:.0f} %", f"{remark}; {occupancy.device}"))
    return facts


def grouped(records):
    """Group findings or advice by kind and cure, then by line: [(cure, [records of one line, ...])]."""
    groups = defaultdict(list)
    for record in records:
        groups[record.kind, record.cure].append(record)
    return [(cure, list(by_place(group).values())) for (_, cure), group in groups.items()]


def involved(record: Place, trace: Recording) -> str:
    """`` (block 0, threads 0 and 32; 480 cases in all)`` for a finding; empty for advice."""
    if not isinstance(record, Finding):
        return ""
    threads = [format_index(thread, trace.block) for thread in record.threads]
    text = f"block {format_index(record.block, trace.grid)}"
    if threads:
        text += f", thread{'s' * (len(threads) > 1)} {join_words(threads)}"
    return f" ({text}; {record.count:,} cases in all)" if record.count > 1 else f" ({text})"


# -- lines ---------------------------------------------------------------------------------------------------------


def cost(access: Access) -> int:
    """Wavefronts of an access to shared memory, sectors of one to global or local memory."""
    return access.wavefronts if access.space == "shared" else access.sectors


def ideal_cost(access: Access) -> int:
    """The least possible `cost`."""
    return access.ideal_wavefronts if access.space == "shared" else access.ideal_sectors


def wasted(access: Access) -> int:
    """The part of `cost` over the ideal."""
    return cost(access) - ideal_cost(access)


def unit(access: Access) -> str:
    """The unit of `cost`."""
    return "wavefronts" if access.space == "shared" else "sectors"


def target(access: Access) -> str:
    """``load tile``, ``store partial (local)``, ``load a (16 B)`` for several elements at once."""
    wide = access.worst is not None and access.itemsize > access.worst.dtype.itemsize
    remarks = ["local"] * (access.space == "local") + [f"{access.itemsize} B"] * wide
    return f"{access.op} {access.array}" + f" ({', '.join(remarks)})" * bool(remarks)


def columns(accesses: Sequence[Access]) -> dict[str, list[str]]:
    """The columns beside the source: a cell for each access. Columns of empty cells are left out."""
    made = {
        "access": [target(a) for a in accesses],
        "requests": [f"{a.requests:,}" for a in accesses],
        "wavefronts": [f"{a.wavefronts:,}" if a.space == "shared" else "" for a in accesses],
        "sectors": [f"{a.sectors:,}" if a.space != "shared" else "" for a in accesses],
        "ideal": [f"{ideal_cost(a):,}" for a in accesses],
        "link": [f"{a.link_bytes:,} B" if a.link_bytes else "" for a in accesses],
        "conflicts": [format_count(a.bank_conflicts) for a in accesses],
        "lanes": [format_lanes(a.active_lanes) for a in accesses],
    }
    return {name: cells for name, cells in made.items() if any(cells)}


def worst_place(trace: Recording) -> tuple[str, int] | None:
    """(filename, line) with the most wavefronts and sectors over the ideal; None if nothing is wasted."""
    sums = defaultdict(int)
    for access in trace.accesses:
        sums[access.filename, access.line] += wasted(access)
    place = max(sums, key=sums.__getitem__, default=None)
    return place if place and sums[place] > 0 else None


def code(trace: Recording) -> list[str]:
    """The lines of the kernel's source, dedented."""
    lines = textwrap.dedent(trace.source[1].expandtabs(4)).rstrip().splitlines()
    return [line.rstrip() for line in lines]


def listing(trace: Recording) -> list[Line]:
    """The kernel's source, dedented.

    A long docstring is cut to its first line, and a long run of lines without a record loses its middle.
    """
    first, source = trace.source[0], code(trace)
    accesses, found, worst = by_place(trace.accesses), by_place(trace.findings), worst_place(trace)
    busy = by_place(
        [*trace.accesses, *trace.branches, *trace.barriers, *trace.operations, *trace.findings, *trace.advice]
    )
    docstring = _docstring(source)
    lines, quiet = [], []
    for number, text in enumerate(source, first):
        place = trace.filename, number
        if number - first in docstring:
            if number - first == docstring[-1]:
                lines += [*_cut(quiet), _left_out(len(docstring))]
                quiet = []
            continue
        line = Line(number, text, accesses.get(place, []), place == worst, place in found)
        if place in busy:
            lines += [*_cut(quiet), line]
            quiet = []
        else:
            quiet.append(line)
    return lines + _cut(quiet)


def elsewhere(trace: Recording) -> list[tuple[str, Line]]:
    """Lines outside of the kernel's source that have accesses, each with the name of its file."""
    first, text = trace.source
    inside = range(first, first + len(text.splitlines())) if text else ()
    found, worst = by_place(trace.findings), worst_place(trace)
    lines = []
    for place, accesses in by_place(trace.accesses).items():
        if place[0] == trace.filename and place[1] in inside:
            continue
        name = location(accesses[0], trace).partition(" of ")[2] or "outside of the kernel"
        lines.append((name, Line(place[1], accesses[0].code, accesses, place == worst, place in found)))
    return lines


def by_place(records) -> dict[tuple[str, int], list]:
    """Group records by (filename, line)."""
    places = defaultdict(list)
    for record in records:
        places[record.filename, record.line].append(record)
    return dict(places)


def _cut(quiet):
    if len(quiet) <= MAX_QUIET:
        return quiet
    return [*quiet[:CONTEXT], _left_out(len(quiet) - 2 * CONTEXT), *quiet[-CONTEXT:]]


def _left_out(count):
    return Line(None, f"⋮  {plural(count, 'line')}", [])


def _docstring(source):
    """The lines of a long docstring after its first, counted from 0."""
    try:
        function = ast.parse("\n".join(source)).body[0]
    except (SyntaxError, IndexError):
        return range(0)
    if not isinstance(function, ast.FunctionDef) or ast.get_docstring(function) is None:
        return range(0)
    lines = range(function.body[0].lineno, function.body[0].end_lineno or 0)
    return lines if len(lines) >= MAX_DOCSTRING else range(0)


# -- tables --------------------------------------------------------------------------------------------------------


def tables(trace: Recording) -> list[Table]:
    """The tables after the source, without those that have no rows."""
    made = (_branches(trace), _barriers(trace), _arithmetic(trace), _coverage(trace))
    return [table for table in made if table.rows]


def _branches(trace):
    rows = [
        [location(b, trace), b.code, f"{b.split:,} of {b.warps:,}", format_lanes(b.waiting_lanes)]
        for b in trace.branches
        if b.split
    ]
    header = ["line", "branch", "warps split", "lanes that wait"]
    return Table(header, rows, "Branches that split warps", words=("line", "branch"), code=("branch",))


def _barriers(trace):
    by = {"block": "block", "warp": "warp", "grid": "block of the grid"}
    rows = [
        [location(b, trace), b.code, f"{plural(b.passed, 'time')} by a {by[b.kind]}"]
        for b in trace.barriers
        if b.passed
    ]
    return Table(["line", "barrier", "passed"], rows, "Barriers", words=("line", "barrier"), code=("barrier",))


def _arithmetic(trace):
    used = [name for name in ARITHMETIC if any(getattr(o, name) for o in trace.operations)]
    lines = [o for o in trace.operations if any(getattr(o, name) for name in used)]
    rows = [
        [location(o, trace), o.code, *(format_count(getattr(o, name)) for name in used), format_lanes(o.active_lanes)]
        for o in lines
    ]
    if len(rows) > 1:
        rows.append(["total", "", *(format_count(sum(getattr(o, name) for o in lines)) for name in used), ""])
    header = ["line", "code", *(ARITHMETIC[name] for name in used), "lanes"]
    return Table(header, rows, "Arithmetic, operations of all threads", words=("line", "code"), code=("code",))


def _coverage(trace):
    rows = []
    for c in trace.coverage:
        first = c.first_unwritten
        missing = f"{c.array}[{', '.join(map(str, first))}]" if c.written and first is not None else ""
        shape = " x ".join(map(str, c.shape)) or "1"
        rows.append([c.array, shape, str(c.dtype), _part(c.read, c.elements), _part(c.written, c.elements), missing])
    header = ["array", "shape", "dtype", "read", "written", "first not written"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    by = "" if trace.status == "complete" else ", by the blocks that were traced"
    title = f"Coverage, distinct elements of each array{by}"
    return Table(header, rows, title, words=("array", "shape", "dtype", "first not written"))


def _part(count, total):
    if not count:
        return "none"
    return f"all {total:,}" if count == total else f"{count:,} of {total:,}"
