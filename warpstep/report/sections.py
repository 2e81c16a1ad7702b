"""What the views of a trace say, before it becomes text or HTML: lines with their counts, facts, tables."""

import ast
import textwrap
from collections import defaultdict
from dataclasses import dataclass, fields
from math import prod
from pathlib import PurePath

from warpstep.tracing.records import Place, Recording

#: A run of more source lines than this without any record is cut in the middle, to ``CONTEXT`` lines at either end.
LONGEST_QUIET, CONTEXT = 8, 2
LONGEST_DOCSTRING = 3  # lines; of one that is longer only the first is shown

#: Titles of the counts of `Operations`, for the tables.
ARITHMETIC = {
    "fp16": "FP16",
    "fp32": "FP32",
    "fp64": "FP64",
    "int32": "int32",
    "int64": "int64",
    "int64_divisions": "int64 divisions",
    "fp64_conversions": "FP64 conversions",
}


@dataclass(frozen=True)
class Line:
    """A line of the listing.

    Attributes
    ----------
    number : int or None
        None where lines are left out; ``code`` then says how many.
    code : str
        With the indentation that it has in the kernel.
    accesses : list of Access
    worst, finding : bool
        Is it the line that wastes most; is there a finding at it.
    """

    number: int | None
    code: str
    accesses: list
    worst: bool = False
    finding: bool = False


@dataclass(frozen=True)
class Section:
    """A table: cells are str; the columns named in ``words`` hold text, the others figures."""

    title: str
    header: list
    rows: list
    words: tuple = ()


def check(name, recording):
    """TypeError if this is not a recording."""
    if not isinstance(recording, Recording):
        raise TypeError(f"{name} is {_short(repr(recording), 60)}; it must be a trace, as gpukit.trace gives it back")


# -- words ------------------------------------------------------------------------------------------


def whole(number):
    """A count, with commas."""
    return f"{number:,}"


def lanes(mean):
    """Mean active lanes: ``32``, ``16.5``."""
    return f"{mean:.1f}".removesuffix(".0")


def ratio(cost, ideal):
    """``8 x``, ``1.25 x``; ``1.00 x`` for almost the same; empty where there is nothing to divide by."""
    if not ideal:
        return ""
    times = cost / ideal
    text = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
    return f"{'1.00' if text == '1' and cost != ideal else text} x"


def plural(count, noun):
    """``1 finding``, ``2 findings``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def amount(count):
    """A number of bytes: ``2,048 B``, ``3.0 MiB``."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 10 * 1024**power or (power > 1 and count >= 1024**power):
            return f"{count / 1024**power:,.1f} {unit}"
    return f"{count:,} B"


def size(shape):
    """(4, 1, 1) as ``4``, (2, 2, 1) as ``(2, 2)``."""
    used = tuple(shape[: max(i + 1 for i in range(3) if shape[i] > 1 or i == 0)])
    return str(used[0]) if len(used) == 1 else str(used)


def index(position, shape):
    """A ``threadIdx`` or ``blockIdx`` with as many numbers as the block or the grid has dimensions."""
    used = max(i + 1 for i in range(3) if shape[i] > 1 or position[i] or i == 0)
    return str(position[0]) if used == 1 else str(tuple(position[:used]))


def listed(items, most=4):
    """``a``, ``a and b``, ``a, b and c``, ``a, b, c, d and 3 more``."""
    items = list(items)
    shown = items if len(items) <= most else [*items[:most], f"{len(items) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def file_name(filename):
    """The name of a file without its folders; those of notebook cells, made up by IPython, as ``a notebook cell``."""
    parts = PurePath(filename).parts
    if filename.startswith("<ipython-input") or any(part.startswith("ipykernel_") for part in parts):
        return "a notebook cell"
    return parts[-1] if parts else filename


def where(record, recording):
    """``line 12``, with the name of the file where it is not the kernel's; empty for a record without a line."""
    if not record.line:
        return ""
    if record.filename == recording.filename:
        return f"line {record.line}"
    name = file_name(record.filename)
    return f"line {record.line} of {'another notebook cell' if name == 'a notebook cell' else name}"


def _short(text, most):
    return text if len(text) <= most else text[: most - 1] + "…"


# -- facts ------------------------------------------------------------------------------------------


def sampled(recording):
    """Were only some of the blocks traced."""
    return recording.blocks < prod(recording.grid)


def launch(recording):
    """``kernel[(4, 4), (16, 16)]``."""
    return f"{recording.kernel}[{size(recording.grid)}, {size(recording.block)}]"


def about(recording):
    """What there is to know about the launch, as a list of short texts."""
    blocks, threads = prod(recording.grid), prod(recording.block)
    facts = [f"{plural(blocks, 'block')} of {plural(threads, 'thread')}"]
    if recording.occupancy.shared_bytes:
        dynamic = f", {whole(recording.shared_bytes)} of them dynamic" if recording.shared_bytes else ""
        facts.append(f"{whole(recording.occupancy.shared_bytes)} bytes of shared memory per block{dynamic}")
    if sampled(recording):
        facts.append(f"{whole(recording.blocks)} of {whole(blocks)} blocks traced, counts scaled to all")
    elif blocks > 1:
        facts.append("all blocks traced")
    if recording.filename:
        facts.append(file_name(recording.filename) + (f", line {recording.source[0]}" if recording.source[0] else ""))
    return facts


def totals(recording):
    """(what, figure, remark) for memory, traffic and occupancy; only what is there."""
    facts = []
    for space in ("shared", "global", "local"):
        chosen = [access for access in recording.accesses if access.space == space]
        if chosen:
            name, what = f"{space.capitalize()} memory", unit(chosen[0])
            total, ideal = sum(map(cost, chosen)), sum(map(ideal_cost, chosen))
            remark = "none more than needed" if total == ideal else f"{ratio(total, ideal)} the {whole(ideal)} needed"
            facts.append((name, f"{whole(total)} {what}", remark))
    traffic, occupancy = recording.traffic, recording.occupancy
    if traffic.moved_bytes:
        remark = f"for {amount(traffic.needed_bytes)} of distinct elements"
        facts.append(("Traffic", f"{amount(traffic.moved_bytes)} moved", remark))
    if traffic.flops:
        remark = f"{whole(traffic.flops)} FLOP over the bytes needed"
        facts.append(("Intensity", f"{traffic.intensity:.3g} FLOP/B", remark))
    registers = f"{occupancy.registers} registers" if occupancy.registers is not None else "registers not reckoned with"
    remark = f"{occupancy.warps} of {occupancy.max_warps} warps, limited by {occupancy.limited_by}; {registers}"
    facts.append(("Occupancy", f"{100 * occupancy.fraction:.0f} %", f"{remark}; {occupancy.device}"))
    return facts


def grouped(records):
    """Findings or advice, those of one kind and one cure together: [(cure, [those of one line, ...])]."""
    groups = {}
    for record in records:
        lines = groups.setdefault((record.kind, record.cure), {})
        lines.setdefault((record.filename, record.line), []).append(record)
    return [(cure, list(lines.values())) for (_, cure), lines in groups.items()]


def involved(finding, recording):
    """``block 0, threads 0 and 32; 480 cases``."""
    threads = [index(thread, recording.block) for thread in finding.threads]
    text = f"block {index(finding.block, recording.grid)}"
    if threads:
        text += f", thread{'s' * (len(threads) > 1)} {listed(threads)}"
    return text + (f"; {whole(finding.count)} cases in all" if finding.count > 1 else "")


# -- lines ------------------------------------------------------------------------------------------


def cost(access):
    """Wavefronts of an access to shared memory, sectors of one to global or local memory."""
    return access.wavefronts if access.space == "shared" else access.sectors


def ideal_cost(access):
    """The fewest of ``cost``."""
    return access.ideal_wavefronts if access.space == "shared" else access.ideal_sectors


def wasted(access):
    """What of ``cost`` is over the ideal."""
    return cost(access) - ideal_cost(access)


def unit(access):
    """What ``cost`` counts."""
    return "wavefronts" if access.space == "shared" else "sectors"


def target(access):
    """``load tile``, ``store partial (local)``, ``load a (16 B)`` for several elements at once."""
    wide = access.worst is not None and access.itemsize > access.worst.dtype.itemsize
    remarks = ["local"] * (access.space == "local") + [f"{access.itemsize} B"] * wide
    return f"{access.op} {access.array}" + f" ({', '.join(remarks)})" * bool(remarks)


def worst_place(recording):
    """(filename, line) where the most wavefronts and sectors over the ideal are; None if there are none."""
    sums = defaultdict(int)
    for access in recording.accesses:
        sums[access.filename, access.line] += wasted(access)
    place = max(sums, key=sums.get, default=None)
    return place if place and sums[place] > 0 else None


def code(recording):
    """The lines of the kernel's source, dedented."""
    lines = textwrap.dedent(recording.source[1].expandtabs(4)).rstrip().splitlines()
    return [line.rstrip() for line in lines]


def listing(recording):
    """The kernel's source as a list of `Line`, dedented.

    Left out are a long docstring but for its first line, and the middle of long runs that nothing is recorded at.
    """
    first, lines_of_code = recording.source[0], code(recording)
    accesses, found = _by_place(recording.accesses), _by_place(recording.findings)
    worst, busy = worst_place(recording), _by_place(_records(recording))
    docstring = _docstring(lines_of_code)
    lines, quiet = [], []
    for number, source in enumerate(lines_of_code, first):
        if number - first in docstring:
            if number - first == docstring[-1]:
                lines += [*_cut(quiet), _left_out(len(docstring))]
                quiet = []
            continue
        place = recording.filename, number
        line = Line(number, source, accesses.get(place, []), place == worst, place in found)
        if place not in busy:
            quiet.append(line)
            continue
        lines += [*_cut(quiet), line]
        quiet = []
    return lines + _cut(quiet)


def elsewhere(recording):
    """Records' lines outside of the kernel's source that have accesses, as (place, `Line`)."""
    first, text = recording.source
    inside = range(first, first + len(text.splitlines())) if text else ()
    found, worst = _by_place(recording.findings), worst_place(recording)
    lines = []
    for (filename, number), accesses in _by_place(recording.accesses).items():
        if filename == recording.filename and number in inside:
            continue
        place = filename, number
        line = Line(number, accesses[0].code, accesses, place == worst, place in found)
        lines.append((where(accesses[0], recording), line))
    return lines


def _by_place(records):
    places = defaultdict(list)
    for record in records:
        places[record.filename, record.line].append(record)
    return dict(places)


def _records(recording):
    for item in fields(recording):
        value = getattr(recording, item.name)
        if isinstance(value, list):
            yield from (record for record in value if isinstance(record, Place))


def _cut(quiet):
    if len(quiet) <= LONGEST_QUIET:
        return quiet
    return [*quiet[:CONTEXT], _left_out(len(quiet) - 2 * CONTEXT), *quiet[-CONTEXT:]]


def _left_out(count):
    return Line(None, f"⋮  {plural(count, 'line')}", [])


def _docstring(code):
    """The lines of a function's docstring after its first, counted from 0; none if they are few."""
    try:
        body = ast.parse("\n".join(code)).body[0].body
        first = body[0].value
        lines = range(first.lineno, first.end_lineno)
    except (SyntaxError, IndexError, AttributeError):
        return range(0)
    is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
    return lines if is_text and len(lines) >= LONGEST_DOCSTRING else range(0)


# -- tables -----------------------------------------------------------------------------------------


def tables(recording):
    """The tables after the source, as a list of `Section`; only those with something to say."""
    made = (_branches(recording), _barriers(recording), _arithmetic(recording), _coverage(recording))
    return [section for section in made if section.rows]


def _branches(recording):
    rows = [
        [where(b, recording), b.code, f"{whole(b.split)} of {whole(b.warps)}", lanes(b.waiting_lanes)]
        for b in recording.branches
        if b.split
    ]
    header = ["line", "branch", "warps split", "lanes that wait"]
    return Section("Branches that split warps", header, rows, ("line", "branch"))


def _barriers(recording):
    by = {"block": "block", "warp": "warp", "grid": "block of the grid"}
    rows = [
        [where(b, recording), b.code, f"{plural(b.passed, 'time')} by a {by[b.kind]}"]
        for b in recording.barriers
        if b.passed
    ]
    return Section("Barriers", ["line", "barrier", "passed"], rows, ("line", "barrier"))


def _arithmetic(recording):
    used = [name for name in ARITHMETIC if any(getattr(o, name) for o in recording.operations)]
    lines = [o for o in recording.operations if any(getattr(o, name) for name in used)]
    rows = [
        [where(o, recording), o.code, *(_figure(getattr(o, name)) for name in used), lanes(o.active_lanes)]
        for o in lines
    ]
    if len(rows) > 1:
        rows.append(["total", "", *(_figure(sum(getattr(o, name) for o in lines)) for name in used), ""])
    header = ["line", "code", *(ARITHMETIC[name] for name in used), "lanes"]
    return Section("Arithmetic, operations of all threads", header, rows, ("line", "code"))


def _coverage(recording):
    rows = []
    for c in recording.coverage:
        first = c.first_unwritten
        missing = f"{c.array}[{', '.join(map(str, first))}]" if c.written and first is not None else ""
        shape = " x ".join(map(str, c.shape)) or "1"
        rows.append([c.array, shape, str(c.dtype), _part(c.read, c.elements), _part(c.written, c.elements), missing])
    header = ["array", "shape", "dtype", "read", "written", "first not written"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    words = ("array", "shape", "dtype", "first not written")
    by = ", by the blocks that were traced" if sampled(recording) else ""
    return Section(f"Coverage, distinct elements of each array{by}", header, rows, words)


def _figure(count):
    return whole(count) if count else ""


def _part(count, of):
    if not count:
        return "none"
    return f"all {whole(of)}" if count == of else f"{whole(count)} of {whole(of)}"
