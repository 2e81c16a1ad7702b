"""Kernels that scan a contiguous array seen as (outer, n, inner) along its middle axis, at the speed of memory.

1. ``groups``: inner is 1 and n is small. Some lanes of a warp take a row.
2. ``tiles``: inner is 1 and n is large. A block takes a tile of a row, and looks back at the tiles before it.
3. ``columns``: inner is more than 1. A thread takes neighbouring columns, and goes down their rows.

A tile needs the sum of all tiles before it. It does not wait for its neighbour's result, which would make a chain of
all tiles, but for the totals of earlier tiles. 32 tiles are a group, 32 groups a section. The last tile of a group
publishes its total, the last tile of a section the total up to its end. A tile combines the sections before its own,
the groups before its own, and the tiles before it in its group: the same combinations in every run, so the bits are
the same too. Tiles are numbered as blocks start, so those that a block waits for are running.
"""

import functools

from gpukit.backend import cuda, types, uint32, uint64
from gpukit.intrinsics.vectors import make_load, make_store
from gpukit.scan.primitives import FULL, make_fold_lanes, make_scan_lanes, make_scan_warps, make_shift_lanes
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["FLAGS", "GROUP", "count_published", "make_columns", "make_groups", "make_tiles"]

#: Tiles of a group, and groups of a section: what one warp reads at a time.
GROUP = WARP
#: Where the ticket, the number of the last launch, and the flags of the tiles lie among the counters.
TICKET, LAUNCH, FLAGS = 0, 1, WARP


# -- a lane's elements ----------------------------------------------------------------------------------------------


@functools.cache
def make_take(operation, vector, rounds, step):
    """Make ``take(x, first, place, n, whole, tile)``: read the elements of a lane into a tile.

    A round is ``vector`` neighbouring elements; the next begins ``step`` elements later. The row begins at ``first``
    and has ``n`` elements. Where not all that a block takes are in it (``whole``), those past its end count as the
    identity. No loop has a branch on a lane's place, so that all are unrolled and the tile stays in registers.
    """
    accumulator, identity, load = operation.accumulator, operation.identity, make_load(vector)

    @cuda.jit(device=True)
    def take(x, first, place, n, whole, tile):
        if whole:
            for r in range(rounds):
                values = load(x, first + place + uint64(r * step))
                for v in range(vector):
                    tile[r * vector + v] = accumulator(values[v])
        else:
            for r in range(rounds):
                for v in range(vector):
                    at = place + uint64(r * step + v)
                    value = accumulator(x[first + at if at < n else uint64(0)])
                    tile[r * vector + v] = value if at < n else accumulator(identity)

    return take


@functools.cache
def make_put(operation, vector, rounds, step, exclusive):
    """Make ``put(out, first, place, n, whole, tile, prefixes, before)``: write a lane's scan.

    ``prefixes`` come before the rounds of the lane, ``before`` before all of them.
    """
    combine, accumulator, finish, result = operation.combine, operation.accumulator, operation.finish, operation.result
    store, number = make_store(vector, result.itemsize), getattr(types, result.name)

    @cuda.jit(device=True)
    def put(out, first, place, n, whole, tile, prefixes, before):
        made = cuda.local.array(vector, number)
        for r in range(rounds):
            held = accumulator(combine(before, prefixes[r]))
            for v in range(vector):
                if exclusive:
                    made[v] = finish(held, 1)
                held = accumulator(combine(held, tile[r * vector + v]))
                if not exclusive:
                    made[v] = finish(held, 1)
            at = place + uint64(r * step)
            if whole:
                store(out, first + at, made, 0)
            else:
                for v in range(vector):
                    if at + uint64(v) < n:
                        out[first + at + uint64(v)] = made[v]

    return put


@functools.cache
def make_scan_rounds(operation, vector, rounds, lanes=WARP):
    """Make ``scan_rounds(tile, prefixes)``: what comes before each of a lane's rounds in its group of lanes.

    A round is ``vector`` elements of each lane, and lies in memory before the next. Returns what all rounds amount to.
    """
    combine, accumulator, shuffle_type = operation.combine, operation.accumulator, operation.shuffle_type
    identity = operation.identity
    scan_lanes, shift_lanes = make_scan_lanes(operation, lanes), make_shift_lanes(operation, lanes)

    @cuda.jit(device=True)
    def scan_rounds(tile, prefixes):
        ends = cuda.local.array(rounds, accumulator)
        for r in range(rounds):  # these do not depend on one another: their latencies overlap
            held = tile[r * vector]
            for v in range(1, vector):
                held = accumulator(combine(held, tile[r * vector + v]))
            held = scan_lanes(held)
            prefixes[r] = shift_lanes(held)
            last = cuda.laneid // lanes * lanes + lanes - 1
            ends[r] = accumulator(cuda.shfl_sync(FULL, shuffle_type(held), last))
        before = accumulator(identity)
        for r in range(rounds):
            prefixes[r] = accumulator(combine(before, prefixes[r]))
            before = accumulator(combine(before, ends[r]))
        return before

    return scan_rounds


# -- rows -----------------------------------------------------------------------------------------------------------


@functools.cache
def make_groups(operation, vector, lanes, rounds, threads, exclusive):
    """Make the kernel ``groups``: ``lanes`` lanes scan a row of at most lanes * vector * rounds elements."""
    step, held, accumulator, identity = lanes * vector, vector * rounds, operation.accumulator, operation.identity
    take, put = make_take(operation, vector, rounds, step), make_put(operation, vector, rounds, step, exclusive)
    scan_rounds = make_scan_rounds(operation, vector, rounds, lanes)

    @cuda.jit
    def groups(x, out, outer, n):
        tile = cuda.local.array(held, accumulator)
        prefixes = cuda.local.array(rounds, accumulator)
        tid, outer, n = uint64(cuda.threadIdx.x), uint64(outer), uint64(n)
        row = uint64(cuda.blockIdx.x) * uint64(threads // lanes) + tid // uint64(lanes)
        size = n if row < outer else uint64(0)  # a lane without a row takes part in the shuffles
        whole = size == uint64(step * rounds)
        place = tid % uint64(lanes) * uint64(vector)
        take(x, row * n, place, size, whole, tile)
        scan_rounds(tile, prefixes)
        put(out, row * n, place, size, whole, tile, prefixes, accumulator(identity))

    return groups


@functools.cache
def make_tiles(operation, vector, rounds, threads, exclusive, alone):
    """Make the kernel ``tiles``: each block scans a tile of ``threads * vector * rounds`` elements of a row.

    With ``alone`` a row is one tile, and nobody looks back.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    step, held, size = WARP * vector, vector * rounds, threads * vector * rounds
    take, put = make_take(operation, vector, rounds, step), make_put(operation, vector, rounds, step, exclusive)
    scan_rounds, scan_warps = make_scan_rounds(operation, vector, rounds), make_scan_warps(operation, threads)
    begin, look_back = make_begin(), make_look_back(operation)

    @cuda.jit
    def tiles(x, out, published, counters, n, tiles_of_row):
        tile = cuda.local.array(held, accumulator)
        prefixes = cuda.local.array(rounds, accumulator)
        shared = cuda.shared.array(1, accumulator)
        start = cuda.shared.array(2, uint32)
        tid, n, count = uint64(cuda.threadIdx.x), uint64(n), uint64(tiles_of_row)
        index = uint64(cuda.blockIdx.x)
        if not alone:
            begin(counters, start)
            index = uint64(start[0])
        row = index // count
        part = index - row * count
        whole = part * uint64(size) + uint64(size) <= n
        place = part * uint64(size) + tid // uint64(WARP) * uint64(step * rounds) + tid % uint64(WARP) * uint64(vector)
        take(x, row * n, place, n, whole, tile)
        own = scan_rounds(tile, prefixes)
        # One lane stands for its warp: the others add nothing to the scan of the block.
        last = tid % uint64(WARP) == uint64(WARP - 1)
        before, _, total = scan_warps(own if last else accumulator(identity))
        if not alone:
            if tid < uint64(WARP):
                prefix = look_back(published, counters, row, part, count, start[1], total)
                if tid == uint64(0):
                    shared[0] = prefix
            cuda.syncthreads()
            before = accumulator(combine(shared[0], before))
        put(out, row * n, place, n, whole, tile, prefixes, before)

    return tiles


# -- looking back ---------------------------------------------------------------------------------------------------


@functools.cache
def make_begin():
    """Make ``begin(counters, start)``: tiles in the order in which blocks start, and a launch number.

    The number tells flags of this launch from those of earlier ones, so they need not be cleared.
    """

    @cuda.jit(device=True)
    def begin(counters, start):
        if cuda.threadIdx.x == 0:
            start[1] = cuda.atomic.add(counters, LAUNCH, uint32(0)) + uint32(1)
            cuda.threadfence()  # the number is read before the ticket is drawn
            last = uint32(cuda.gridDim.x - 1)
            start[0] = cuda.atomic.inc(counters, TICKET, last)  # back to 0 for the next launch
            if start[0] == last:  # all blocks have read the number
                cuda.atomic.add(counters, LAUNCH, uint32(1))
        cuda.syncthreads()

    return begin


@functools.cache
def make_look_back(operation):
    """Make ``look_back(published, counters, row, part, count, launch, total)``: what all tiles before a tile amount to.

    The first warp of a block calls it. ``published`` holds what each tile, group and section of a row amounts to, and
    ``counters`` a flag for each, which is the launch's number once it is there.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    fold_lanes = make_fold_lanes(operation)

    @cuda.jit(device=True)
    def publish(published, counters, at, launch, value):
        if cuda.laneid == 0:
            published[at] = value
            cuda.threadfence()  # the value comes before its flag
            cuda.atomic.exch(counters, at + uint64(FLAGS), launch)

    @cuda.jit(device=True)
    def read(published, counters, at, launch, wanted):
        value = accumulator(identity)
        if wanted:
            while cuda.atomic.add(counters, at + uint64(FLAGS), uint32(0)) != launch:
                cuda.nanosleep(20)
            cuda.threadfence()  # the flag comes before its value
            value = accumulator(published[at])
        cuda.syncwarp()
        return value

    @cuda.jit(device=True)
    def look_back(published, counters, row, part, count, launch, total):
        lane = uint64(cuda.laneid)
        group, section = part // uint64(GROUP), part // uint64(GROUP * GROUP)
        tile, in_section = part - group * uint64(GROUP), group - section * uint64(GROUP)
        groups = (count + uint64(GROUP - 1)) // uint64(GROUP)
        sections = (groups + uint64(GROUP - 1)) // uint64(GROUP)
        first = row * (count + groups + sections)
        first_group, first_section = first + count, first + count + groups
        publish(published, counters, first + part, launch, total)

        held = read(published, counters, first + group * uint64(GROUP) + lane, launch, lane < tile)
        tiles = fold_lanes(held)
        if tile == uint64(GROUP - 1):
            amount = accumulator(combine(tiles, total))
            publish(published, counters, first_group + group, launch, amount)
        at = first_group + section * uint64(GROUP) + lane
        held = read(published, counters, at, launch, lane < in_section)
        groups_before = fold_lanes(held)
        wanted = section > uint64(0) and lane == uint64(0)
        at = first_section + section - uint64(1) if wanted else first_section
        held = read(published, counters, at, launch, wanted)
        prefix = accumulator(combine(combine(fold_lanes(held), groups_before), tiles))
        if tile == uint64(GROUP - 1) and in_section == uint64(GROUP - 1):
            publish(published, counters, first_section + section, launch, accumulator(combine(prefix, total)))
        return prefix

    return look_back


def count_published(tiles: int) -> int:
    """Count what the tiles of a row publish: their totals, and those of their groups and sections."""
    groups = ceil_div(tiles, GROUP)
    return tiles + groups + ceil_div(groups, GROUP)


# -- columns --------------------------------------------------------------------------------------------------------


@functools.cache
def make_columns(operation, vector, loads, exclusive, part):
    """Make the kernel ``columns``: a thread goes down ``rows`` rows of ``vector`` columns, ``loads`` rows at a time.

    ``part`` is "all" where the rows are not shared, else "amounts" for the kernel that finds what each share of rows
    amounts to, and "scan" for the one that scans it, which begins with what the shares before it amount to.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    load, write = make_load(vector), _make_write(operation, vector, exclusive)

    @cuda.jit
    def columns(x, out, amounts, outer, n, inner, rows):
        held = cuda.local.array((loads, vector), accumulator)
        total = cuda.local.array(vector, accumulator)
        n, inner, rows = uint64(n), uint64(inner), uint64(rows)
        across = inner // uint64(vector)
        i = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
        if i >= uint64(outer) * across:
            return
        o = i // across
        column, share = (i - o * across) * uint64(vector), uint64(cuda.blockIdx.y)
        for v in range(vector):
            total[v] = accumulator(identity)
        if part == "scan":
            for s in range(share):
                at = (uint64(s) * uint64(outer) + o) * inner + column
                for v in range(vector):
                    total[v] = accumulator(combine(total[v], amounts[at + uint64(v)]))
        row, stop = share * rows, min(share * rows + rows, n)
        at = (o * n + row) * inner + column
        while row < stop:
            last = stop - uint64(1) - row
            for k in range(loads):  # rows past the last one are the last one again: no branch, so all loads overlap
                values = load(x, at + min(uint64(k), last) * inner)
                for v in range(vector):
                    held[k, v] = accumulator(values[v])
            for k in range(loads):
                if uint64(k) <= last:
                    write(out, at, held, k, total, part != "amounts")
                    at += inner
            row += uint64(loads)
        if part == "amounts":
            at = (share * uint64(outer) + o) * inner + column
            for v in range(vector):
                amounts[at + uint64(v)] = total[v]

    return columns


@functools.cache
def _make_write(operation, vector, exclusive):
    combine, accumulator, finish, result = operation.combine, operation.accumulator, operation.finish, operation.result
    store, number = make_store(vector, result.itemsize), getattr(types, result.name)

    @cuda.jit(device=True)
    def write(out, at, held, k, total, stores):
        """Add row ``k`` of ``held`` to the totals, and write them, as they were before it if ``exclusive``."""
        made = cuda.local.array(vector, number)
        for v in range(vector):
            if exclusive:
                made[v] = finish(total[v], 1)
            total[v] = accumulator(combine(total[v], held[k, v]))
            if not exclusive:
                made[v] = finish(total[v], 1)
        if stores:
            store(out, at, made, 0)

    return write
