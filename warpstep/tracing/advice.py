"""Advice on what is slow rather than wrong in a traced launch."""

import linecache

from warpstep.tracing.records import Advice

#: Accesses are uncoalesced if they move more than this many times the sectors that their elements need.
MAX_SECTORS_RATIO = 1.5
#: A branch leaves lanes idle if more than this share of its warps split and at least so many lanes wait. The guard of a
#: ragged grid stays below.
MAX_SPLIT_SHARE = 0.25
MIN_WAITING_LANES = 8
#: So does a line with more than this share of the arithmetic, idle lanes included, and fewer active lanes than this.
MAX_BUSY_SHARE = 0.5
MIN_ACTIVE_LANES = 8
_ARITHMETIC = ("fp16", "fp32", "fp64", "int32", "int64")


def advise(prepared, recorder, accesses, branches, operations, coverage) -> list[Advice]:
    """Make advice, in the order of the source; ``coverage``: of arrays whose unwritten elements are worth a word."""
    found = [
        *_wide_arithmetic(prepared, operations),
        *_accesses(accesses),
        *_branches(branches),
        *_idle(operations, prepared),
        *_barriers(recorder),
    ]
    found.sort(key=lambda a: a.line)
    return found + _unwritten(prepared, coverage)


def _wide_arithmetic(prepared, operations):
    """Name float64 if all arrays are narrower, and divisions of 64-bit integers."""
    wide_arrays = any(array.dtype.kind in "fc" and array.dtype.itemsize >= 8 for _, array in prepared.transfers.arrays)
    for line in operations:
        if not line.threads:
            continue
        count = line.fp64 + line.fp64_conversions
        if count and not wide_arrays:
            yield Advice(
                **line.place,
                kind="float64",
                message=f"float64 operations and conversions: {_each(count, line)} each time a thread runs "
                "the line, though no array holds float64",
                cure="A literal such as 0.5 is float64, and so are an integer divided by an integer and a float32 "
                "combined with an integer, as in `x[i] if i < n else 0`: write float32(0.5), float32(0), and convert "
                "before dividing.",
            )
        if line.int64_divisions:
            yield Advice(
                **line.place,
                kind="int64-division",
                message=f"divisions of 64-bit integers: {_each(line.int64_divisions, line)} each time a thread runs "
                "the line, dozens of instructions each",
                cure="Divide uint32 or int32 values, or use a power of two; a range() whose step varies divides too.",
            )


def _each(count, line):
    each = count / line.threads
    return f"{each:.0f}" if each == round(each) else f"{each:.1f}"


def _accesses(accesses):
    for access in accesses:
        if access.space != "shared" and access.sectors > MAX_SECTORS_RATIO * access.ideal_sectors:
            times = access.sectors / access.ideal_sectors
            yield Advice(
                **access.place,
                kind="uncoalesced",
                message=f"{access.op}s of {access.array} touch {access.sectors / access.requests:.1f} sectors per "
                f"request, {times:.1f} times what the elements need",
                cure="Let neighbouring threads (threadIdx.x) access neighbouring elements, and start rows at "
                "multiples of 32 bytes.",
            )
        if access.bank_conflicts and access.op != "atomic":
            yield Advice(
                **access.place,
                kind="bank-conflicts",
                message=f"{access.op}s of {access.array} take {access.wavefronts / access.requests:.1f} wavefronts per "
                f"request where {access.ideal_wavefronts / access.requests:.1f} would do",
                cure="Let the lanes of a warp walk along a row, or pad the rows so that a column's words fall into "
                "different banks.",
            )


def _branches(branches):
    for branch in branches:
        waiting = branch.waiting_lanes
        if branch.split > MAX_SPLIT_SHARE * branch.warps and waiting >= MIN_WAITING_LANES:
            yield Advice(
                **branch.place,
                kind="idle-lanes",
                message=f"{branch.split:,} of {branch.warps:,} warps split; {waiting:.1f} lanes wait on average",
                cure="Let whole warps decide alike: choose by threadIdx.x // 32 or by block, or give the active work "
                "to consecutive threads.",
            )


def _idle(operations, prepared):
    """Name lines of long loops with few lanes left: their warp split once, and runs on with few lanes."""
    if prepared.run.threads < MIN_ACTIVE_LANES:
        return  # so small a block has no more lanes
    lanes = {line: line.threads / line.active_lanes for line in operations if line.threads}
    every = {line: sum(getattr(line, kind) for kind in _ARITHMETIC) / line.threads * lanes[line] for line in lanes}
    most = sum(every.values())
    for line, amount in every.items():
        if amount > MAX_BUSY_SHARE * most and line.active_lanes < MIN_ACTIVE_LANES:
            yield Advice(
                **line.place,
                kind="idle-lanes",
                message=f"{line.active_lanes:.1f} of 32 lanes are active at this line, which has "
                f"{amount / most:.0%} of the arithmetic",
                cure="A warp goes on until its last lane is done: give lanes of a warp about the same amount of work, "
                "by sorting it for example.",
            )


def _barriers(recorder):
    for number, (block, thread) in recorder.returned.items():
        site = recorder.sites[number]
        yield Advice(
            site.line,
            site.filename,
            linecache.getline(site.filename, site.line).strip(),
            "returned-before-barrier",
            f"thread {thread} of block {block} has returned before others wait here",
            "This is allowed since compute capability 7.0, but the work of the returned threads is not done: guard the "
            "work, not the whole thread.",
        )


def _unwritten(prepared, coverage):
    """Name arrays of which the launch wrote only a part."""
    function = prepared.overload.kernel.py_func
    line, filename = function.__code__.co_firstlineno, function.__code__.co_filename
    return [
        Advice(
            line,
            filename,
            linecache.getline(filename, line).strip(),
            "unwritten",
            f"{array.elements - array.written:,} of {array.elements:,} elements of {array.array} were not written, the "
            f"first at {array.first_unwritten if len(array.first_unwritten) != 1 else array.first_unwritten[0]}",
            "If all of it should be: check the grid (as many dimensions as the problem, rounded up) and the guard.",
        )
        for array in coverage
        if array.first_unwritten is not None
    ]
