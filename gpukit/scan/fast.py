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
from gpukit.scan.primitives import make_fold_lanes, make_scan_lanes, make_scan_warps, make_shift_lanes
from warpstep.limits import WARP

__all__ = ["FLAGS", "GROUP", "make_columns", "make_groups", "make_tiles"]

FULL = 0xFFFFFFFF
#: Tiles of a group, and groups of a section: what one warp reads at a time.
GROUP = WARP
#: Where the ticket, the number of the last launch, and the flags of the tiles lie among the counters.
TICKET, LAUNCH, FLAGS = 0, 1, WARP


# -- a lane's elements ----------------------------------------------------------------------------------------------


@functools.cache
def make_take(operation, vector):
    """Make ``take(x, first, place, n, tile, at)``: scan ``vector`` neighbouring elements of a row into a tile.

    Elements past the end of the row, which begins at ``first`` and has ``n``, count as the identity.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    load = make_load(vector)

    @cuda.jit(device=True)
    def take(x, first, place, n, tile, at):
        if place + uint64(vector) <= n:
            values = load(x, first + place)
            for v in range(vector):
                tile[at + v] = accumulator(values[v])
        else:
            for v in range(vector):
                has = place + uint64(v) < n
                tile[at + v] = accumulator(x[first + place + uint64(v)]) if has else accumulator(identity)
        for v in range(1, vector):
            tile[at + v] = accumulator(combine(tile[at + v - 1], tile[at + v]))

    return take


@functools.cache
def make_put(operation, vector, exclusive):
    """Make ``put(out, first, place, n, tile, at, prefix)``: write a lane's scan, with what comes before it."""
    combine, finish, result = operation.combine, operation.finish, operation.result
    store = make_store(vector, result.itemsize)
    number = getattr(types, result.name)

    @cuda.jit(device=True)
    def put(out, first, place, n, tile, at, prefix):
        made = cuda.local.array(vector, number)
        for v in range(vector):
            if exclusive:
                made[v] = finish(combine(prefix, tile[at + v - 1]) if v > 0 else prefix, 1)
            else:
                made[v] = finish(combine(prefix, tile[at + v]), 1)
        if place + uint64(vector) <= n:
            store(out, first + place, made, 0)
        else:
            for v in range(vector):
                if place + uint64(v) < n:
                    out[first + place + uint64(v)] = made[v]

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
            held = scan_lanes(tile[r * vector + vector - 1])
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
    take, put = make_take(operation, vector), make_put(operation, vector, exclusive)
    scan_rounds, accumulator = make_scan_rounds(operation, vector, rounds, lanes), operation.accumulator
    held = vector * rounds

    @cuda.jit
    def groups(x, out, outer, n):
        tile = cuda.local.array(held, accumulator)
        prefixes = cuda.local.array(rounds, accumulator)
        tid, outer, n = uint64(cuda.threadIdx.x), uint64(outer), uint64(n)
        row = uint64(cuda.blockIdx.x) * uint64(threads // lanes) + tid // uint64(lanes)
        size = n if row < outer else uint64(0)  # a lane without a row takes part in the shuffles
        place = tid % uint64(lanes) * uint64(vector)
        for r in range(rounds):
            take(x, row * n, place + uint64(r * lanes * vector), size, tile, r * vector)
        scan_rounds(tile, prefixes)
        for r in range(rounds):
            put(out, row * n, place + uint64(r * lanes * vector), size, tile, r * vector, prefixes[r])

    return groups


@functools.cache
def make_tiles(operation, vector, rounds, threads, exclusive, alone):
    """Make the kernel ``tiles``: each block scans a tile of ``threads * vector * rounds`` elements of a row.

    With ``alone`` a row is one tile, and nobody looks back.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    take, put = make_take(operation, vector), make_put(operation, vector, exclusive)
    scan_rounds, scan_warps = make_scan_rounds(operation, vector, rounds), make_scan_warps(operation, threads)
    begin, look_back = make_begin(), make_look_back(operation)
    size, of_warp, held = threads * vector * rounds, WARP * vector * rounds, vector * rounds

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
        place = part * uint64(size) + tid // uint64(WARP) * uint64(of_warp) + tid % uint64(WARP) * uint64(vector)
        for r in range(rounds):
            take(x, row * n, place + uint64(r * WARP * vector), n, tile, r * vector)
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
        for r in range(rounds):
            prefix = accumulator(combine(before, prefixes[r]))
            put(out, row * n, place + uint64(r * WARP * vector), n, tile, r * vector, prefix)

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


# -- columns --------------------------------------------------------------------------------------------------------


@functools.cache
def make_columns(operation, vector, loads, exclusive, part):
    """Make the kernel ``columns``: a thread goes down ``rows`` rows of ``vector`` columns, ``loads`` rows at a time.

    ``part`` is "all" where the rows are not shared, else "amounts" for the kernel that finds what each share of rows
    amounts to, and "scan" for the one that scans it, which begins with what the shares before it amount to.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    take_row, put = _make_take_row(vector), make_put(operation, vector, False)
    after = 0 if exclusive else 1

    @cuda.jit
    def columns(x, out, amounts, outer, n, inner, rows):
        held = cuda.local.array((loads, vector), accumulator)
        total = cuda.local.array(vector, accumulator)
        none = cuda.local.array(vector, accumulator)
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
        while row < stop:
            for k in range(loads):
                take_row(x, (o * n + min(row + uint64(k), stop - uint64(1))) * inner + column, held, k)
            for k in range(loads):
                if row + uint64(k) < stop:
                    for v in range(vector):
                        none[v] = total[v]
                        total[v] = accumulator(combine(total[v], held[k, v]))
                    at = (o * n + row + uint64(k)) * inner
                    if part != "amounts":
                        if after == 1:
                            put(out, at, column, inner, total, 0, accumulator(identity))
                        else:
                            put(out, at, column, inner, none, 0, accumulator(identity))
            row += uint64(loads)
        if part == "amounts":
            at = (share * uint64(outer) + o) * inner + column
            for v in range(vector):
                amounts[at + uint64(v)] = total[v]

    return columns


@functools.cache
def _make_take_row(vector):
    load = make_load(vector)

    @cuda.jit(device=True)
    def take_row(x, at, held, k):
        values = load(x, at)
        for v in range(vector):
            held[k, v] = values[v]

    return take_row
