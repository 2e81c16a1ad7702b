"""Kernels that scan a contiguous array seen as (outer, n, inner) along its middle axis, at the speed of memory.

1. ``groups``: inner is 1 and n is small. Some lanes of a warp take a row.
2. ``tiles``: inner is 1 and n is large. A block takes a tile of a row, and looks back at the tiles before it.
3. ``columns``: inner is more than 1. A thread takes neighbouring columns, and goes down their rows.
4. ``stripes``: inner is more than 1. A block takes neighbouring columns, and its threads share their rows.

A tile needs the sum of all tiles before it. It does not wait for its neighbour's result, which would make a chain of
all tiles, but for the totals of earlier tiles. 32 tiles are a group, 32 groups a section. The last tile of a group
publishes its total, the last tile of a section the total up to its end. A tile combines the sections before its own,
the groups before its own, and the tiles before it in its group: the same combinations in every run, so the bits are
the same too. Where all blocks can run at once, a block's index is its tile's. Otherwise blocks draw the numbers of
their tiles from a counter as they start, so a tile waits only for tiles that running blocks have drawn before it.

A tile's elements wait in shared memory: registers would hold fewer tiles, and while tiles wait, memory is idle.
"""

import functools

from gpukit.backend import cuda, int32, int64, types, uint32, uint64
from gpukit.divisors import MAX_DIVIDED, divided
from gpukit.intrinsics import commit_copies, copy_async, copy_async2, copy_async4, load_acquire, wait_copies
from gpukit.intrinsics.vectors import make_load, make_store
from gpukit.scan.primitives import (
    FULL,
    make_fold_lanes,
    make_scan_lanes,
    make_scan_totals,
    make_shift_lanes,
)
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = [
    "FIRST",
    "GROUP",
    "count_words",
    "draw",
    "make_columns",
    "make_groups",
    "make_look_back",
    "make_offsets",
    "make_stripes",
    "make_tiles",
]

#: Tiles of a group, and groups of a section: what one warp reads at a time.
GROUP = WARP
#: Where what blocks have published begins among the words, and the lower half of a word.
FIRST, LOWER = WARP // 2, (1 << 32) - 1
#: Registers of a thread of ``tiles`` at most, by the bytes of an accumulator: where it holds its elements, and where
#: they are in shared memory. There, for 4 bytes, more blocks on a multiprocessor are worth a few spills.
REGISTERS, STAGED_REGISTERS = {4: 64, 8: 80}, {4: 40, 8: 64}
#: Nanoseconds between two looks at a word.
NAP = 20


# -- a lane's elements ----------------------------------------------------------------------------------------------


@functools.cache
def make_take(operation, vector, rounds, _=0):
    """Make ``take(x, at, left, tile, own, step)``: read the elements of a lane into a tile of its own.

    A round is ``vector`` neighbouring elements; the next begins ``step`` elements later. The lane's first element is
    ``at``, and ``left`` of the row's are there from it on. Those past the end count as the identity. No loop has a
    branch on a lane's place, so that all are unrolled and the tile stays in registers.
    """
    accumulator, identity, load = operation.accumulator, operation.identity, make_load(vector)
    several = vector * rounds > 1

    @cuda.jit(device=True)
    def take(x, at, left, tile, _, step):
        if several and left >= int32((rounds - 1) * step + vector):
            for r in range(rounds):
                values = load(x, at + uint64(r * step))
                for v in range(vector):
                    tile[r * vector + v] = accumulator(values[v])
        else:
            for r in range(rounds):
                for v in range(vector):
                    inside = int32(r * step + v) < left
                    value = accumulator(x[at + uint64(int32(r * step + v) if inside else int32(0))])
                    tile[r * vector + v] = value if inside else accumulator(identity)

    return take


@functools.cache
def make_stage(operation, vector, rounds, pitch):
    """Make ``stage(x, at, left, tile, own, step)``: begin to copy the elements of a lane to a tile in shared memory.

    A round lies ``pitch`` elements after the one before, the first at ``own``: a thread reads what it has copied.
    Elements past the end of the row are the identity.
    """
    copy, identity = {1: copy_async, 2: copy_async2, 4: copy_async4}[vector], operation.identity

    @cuda.jit(device=True)
    def stage(x, at, left, tile, own, step):
        for r in range(rounds):
            if int32(r * step + vector) <= left:
                copy(tile, own + uint32(r * pitch), x, at + uint64(r * step))
            else:
                for v in range(vector):
                    tile[own + uint32(r * pitch + v)] = identity
                    if int32(r * step + v) < left:
                        tile[own + uint32(r * pitch + v)] = x[at + uint64(r * step + v)]
        commit_copies()

    return stage


@functools.cache
def make_round_of(operation, vector, pitch):
    """Make ``round_of(tile, own, r, values)``: the elements of a round of a lane.

    Without a ``pitch`` the tile is in registers, and ``r`` must be constant.
    """
    accumulator, load = operation.accumulator, make_load(vector)

    @cuda.jit(device=True)
    def round_of(tile, own, r, values):
        if pitch:
            found = load(tile, own + uint32(r * pitch))
            for v in range(vector):
                values[v] = accumulator(found[v])
        else:
            for v in range(vector):
                values[v] = tile[r * vector + v]

    return round_of


@functools.cache
def make_put(operation, vector, rounds, exclusive, pitch=0):
    """Make ``put(out, at, left, tile, own, step, prefixes, before)``: write a lane's scan, where `make_take` has read.

    ``prefixes`` come before the rounds of the lane, ``before`` before all of them.
    """
    combine, accumulator, finish, result = operation.combine, operation.accumulator, operation.finish, operation.result
    store, number = make_store(vector, result.itemsize), getattr(types, result.name)
    round_of, several = make_round_of(operation, vector, pitch), vector * rounds > 1

    @cuda.jit(device=True)
    def put(out, at, left, tile, own, step, prefixes, before):
        made, values = cuda.local.array(vector, number), cuda.local.array(vector, accumulator)
        for r in range(rounds):
            held = accumulator(combine(before, prefixes[r]))
            round_of(tile, own, uint32(r), values)
            for v in range(vector):
                if exclusive:
                    made[v] = finish(held, 1)
                held = accumulator(combine(held, values[v]))
                if not exclusive:
                    made[v] = finish(held, 1)
            if several and left >= int32((rounds - 1) * step + vector):
                store(out, at + uint64(r * step), made, 0)
            else:
                for v in range(vector):
                    if int32(r * step + v) < left:
                        out[at + uint64(r * step + v)] = made[v]

    return put


@cuda.jit(device=True)
def place_of(first, place, n, most):
    """(Where a lane's first element is, how many of the row's there are from it on). ``first`` is where the row begins.

    A lane with none gets the row's first element, to read something.
    """
    left = int32(max(int64(0), min(int64(n) - int64(place), int64(most))))
    return first + (place if left > 0 else uint64(0)), left


@functools.cache
def make_scan_rounds(operation, vector, rounds, pitch=0):
    """Make ``scan_rounds(tile, own, prefixes, lanes)``: what comes before each of a lane's rounds among ``lanes``.

    A round is ``vector`` elements of each lane, and lies in memory before the next. Returns what all rounds amount to.
    """
    accumulator, identity = operation.accumulator, operation.identity
    scan_some = _make_scan_some(operation, vector, rounds, pitch)

    @cuda.jit(device=True)
    def scan_rounds(tile, own, prefixes, lanes):
        return scan_some(tile, own, prefixes, uint32(0), accumulator(identity), lanes)

    return scan_rounds


@functools.cache
def _make_scan_some(operation, vector, count, pitch):
    """Make ``scan_some(tile, own, prefixes, first, before, lanes)``: scan ``count`` rounds, from ``first`` on; return
    what all up to them amount to.

    There is no loop over the rounds. The compiler would take the comparisons of a lane with the distances out of it,
    and lane 0 would run shuffles of its own, which the warp has to wait for.
    """
    combine, accumulator, shuffle_type = operation.combine, operation.accumulator, operation.shuffle_type
    if count > 1:
        half, some = count // 2, _make_scan_some(operation, vector, count // 2, pitch)

        @cuda.jit(device=True)
        def scan_some(tile, own, prefixes, first, before, lanes):
            before = some(tile, own, prefixes, first, before, lanes)
            return some(tile, own, prefixes, uint32(first + uint32(half)), before, lanes)

        return scan_some
    scan_lanes, shift_lanes = make_scan_lanes(operation), make_shift_lanes(operation)
    round_of = make_round_of(operation, vector, pitch)

    @cuda.jit(device=True)
    def scan_one(tile, own, prefixes, r, before, lanes):
        values = cuda.local.array(vector, accumulator)
        round_of(tile, own, r, values)
        held = values[0]
        for v in range(1, vector):
            held = accumulator(combine(held, values[v]))
        held = scan_lanes(held, lanes, 1)
        prefixes[r] = accumulator(combine(before, shift_lanes(held, lanes, 1)))
        last = int32(uint32(cuda.laneid) | uint32(uint32(lanes) - uint32(1)))
        return accumulator(combine(before, accumulator(cuda.shfl_sync(FULL, shuffle_type(held), last))))

    return scan_one


# -- rows -----------------------------------------------------------------------------------------------------------


@functools.cache
def make_groups(operation, vector, lanes, rounds, threads, exclusive):
    """Make the kernel ``groups``: ``lanes`` lanes scan a row of at most lanes * vector * rounds elements."""
    step, held, accumulator, identity = lanes * vector, vector * rounds, operation.accumulator, operation.identity
    most = (rounds - 1) * step + vector
    take, put = make_take(operation, vector, rounds), make_put(operation, vector, rounds, exclusive)
    scan_rounds = make_scan_rounds(operation, vector, rounds)

    @cuda.jit
    def groups(x, out, outer, n):
        tile = cuda.local.array(held, accumulator)
        prefixes = cuda.local.array(rounds, accumulator)
        tid, outer, n = uint64(cuda.threadIdx.x), uint64(outer), uint64(n)
        row = uint64(cuda.blockIdx.x) * uint64(threads // lanes) + tid // uint64(lanes)
        # A lane without a row takes part in the shuffles. It reads the first row: the warp has one kind of loads then.
        at, left = place_of(row * n if row < outer else uint64(0), tid % uint64(lanes) * uint64(vector), n, most)
        # Not literals, for each of which the functions would be compiled again.
        take(x, at, left, tile, 0, uint32(step))
        scan_rounds(tile, 0, prefixes, uint32(lanes))
        if row < outer:
            put(out, at, left, tile, 0, uint32(step), prefixes, accumulator(identity))

    return groups


@functools.cache
def make_tiles(operation, vector, rounds, threads, exclusive, count, staged=False):
    """Make the kernel ``tiles``: each block scans a tile of ``threads * vector * rounds`` elements of a row.

    A row has as many tiles as ``count`` says: "one", which may be smaller and of fewer threads, "few" if no more than a
    block has threads, or "many". The elements of a ``staged`` tile are in shared memory. If the blocks are
    ``resident``, all of them can run at once.
    """
    combine, accumulator = operation.combine, operation.accumulator
    step, held, size = WARP * vector, vector * rounds, threads * vector * rounds
    most, pitch = (rounds - 1) * step + vector, threads * vector if staged else 0
    put = make_put(operation, vector, rounds, exclusive, pitch)
    scan_rounds = make_scan_rounds(operation, vector, rounds, pitch=pitch)
    read = (make_stage if staged else make_take)(operation, vector, rounds, pitch)
    scan_lanes, scan_totals = make_scan_lanes(operation), make_scan_totals(operation)
    look_back = make_look_back(operation)
    collect, alone, few = make_collect(operation), count == "one", count == "few"

    @cuda.jit(max_registers=registers_of(operation, staged))
    def tiles(x, out, words, n, tiles_of_row, resident):
        tile = cuda.shared.array(size, x.dtype, alignment=16) if staged else cuda.local.array(held, accumulator)
        prefixes = cuda.local.array(rounds, accumulator)
        shared = cuda.shared.array(1, accumulator)
        drawn = cuda.shared.array(2, uint32)
        tid, n, tiles_of_row = uint64(cuda.threadIdx.x), uint64(n), uint32(tiles_of_row)
        index, own = uint32(cuda.blockIdx.x), uint32(uint32(cuda.threadIdx.x) * uint32(vector))
        if not alone and not resident:
            draw(words, drawn)
            cuda.syncthreads()
            index = drawn[0]
        row, part = uint64(index), uint64(0)
        if not alone:
            row, part = uint64(index // tiles_of_row), uint64(uint32(index % tiles_of_row))
        place = part * uint64(size) + tid // uint64(WARP) * uint64(step * rounds) + tid % uint64(WARP) * uint64(vector)
        at, left = place_of(row * n, place, n, most)
        read(x, at, left, tile, own, step)
        if not alone and resident:  # for the launch's number
            draw(words, drawn)
        if staged:
            wait_copies(0)
        lane_total = scan_rounds(tile, own, prefixes, WARP)
        before, total = scan_totals(lane_total)
        if not alone:
            if few:
                found = collect(words, row, part, uint64(tiles_of_row), drawn[1], total)
                _, prefix = scan_totals(scan_lanes(found, WARP, 1))
            else:
                if tid < uint64(WARP):
                    prefix = look_back(words, row, part, uint64(tiles_of_row), drawn[1], total)
                    if tid == uint64(0):
                        shared[0] = prefix
                cuda.syncthreads()
                prefix = shared[0]
            before = accumulator(combine(prefix, before))
        put(out, at, left, tile, own, step, prefixes, before)

    return tiles


def registers_of(operation, staged: bool) -> int:
    """Registers of a thread of ``tiles``, at most."""
    return (STAGED_REGISTERS if staged else REGISTERS)[max(4, operation.partial.itemsize)]


# -- looking back ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def draw(words, drawn):
    """Draw a block's tile, ``drawn[0]``, in the order in which blocks start, and the launch's number, ``drawn[1]``.

    A block draws when it is ready to begin: one that drew ahead, while it scanned another tile, would keep all those
    waiting that have drawn after it. The launch's number tells what this launch has published from what earlier ones
    did, so that nothing need be cleared. It is in the upper half of the word that is drawn from. The last to draw
    prepares the word for the next launch.
    """
    if cuda.threadIdx.x == 0:
        word, blocks = cuda.atomic.add(words, 0, uint64(1)), uint32(cuda.gridDim.x)
        drawn[0], drawn[1] = uint32(word), uint32(word >> uint64(32)) + uint32(1)
        if drawn[0] == uint32(blocks - uint32(1)):
            cuda.atomic.add(words, 0, uint64(1 << 32) - uint64(blocks))


@functools.cache
def make_publish(operation):
    """Make ``publish(words, at, launch, value)``: leave a value for other blocks.

    A word has the launch's number in its upper half, and in its lower half 32 bits of the value. It is written and read
    as one, so that a value needs no flag and no fence; one of 8 bytes takes two words.
    """
    to_bits, wide = _bits_of(operation.partial)[0], operation.partial.itemsize == 8

    @cuda.jit(device=True)
    def publish(words, at, launch, value):
        upper, bits = uint64(launch) << uint64(32), uint64(to_bits(value))
        if wide:
            cuda.atomic.exch(words, at, upper | (bits & uint64(LOWER)))
            cuda.atomic.exch(words, at + uint64(1), upper | (bits >> uint64(32)))
        else:
            cuda.atomic.exch(words, at, upper | bits)

    return publish


@functools.cache
def make_receive(operation):
    """Make ``receive(words, at, launch, low, high)``: a published value, as soon as it is there.

    ``low`` and ``high`` are what its words, or the only one, held a moment ago.
    """
    from_bits, wide = _bits_of(operation.partial)[1], operation.partial.itemsize == 8

    @cuda.jit(device=True)
    def receive(words, at, launch, low, high):
        while uint32(low >> uint64(32)) != launch:
            cuda.nanosleep(NAP)
            low = load_acquire(words, at)
        if wide:
            while uint32(high >> uint64(32)) != launch:
                cuda.nanosleep(NAP)
                high = load_acquire(words, at + uint64(1))
            return from_bits((high << uint64(32)) | (low & uint64(LOWER)))
        return from_bits(low & uint64(LOWER))

    return receive


def _bits_of(dtype):
    """Device functions from a value to its bits, an unsigned number, and from uint64 back."""
    number = getattr(types, dtype.name)
    if dtype.kind == "f":
        to, back = {
            4: (cuda.libdevice.float_as_int, cuda.libdevice.int_as_float),
            8: (cuda.libdevice.double_as_longlong, cuda.libdevice.longlong_as_double),
        }[dtype.itemsize]
        held, bits = (types.int64, uint64) if dtype.itemsize == 8 else (types.int32, uint32)

        @cuda.jit(device=True)
        def to_bits(value):
            return bits(to(value))

        @cuda.jit(device=True)
        def from_bits(word):
            return back(held(word))

        return to_bits, from_bits
    unsigned = getattr(types, f"uint{8 * dtype.itemsize}")

    @cuda.jit(device=True)
    def to_unsigned(value):
        return unsigned(value)

    @cuda.jit(device=True)
    def from_unsigned(word):
        return number(word)

    return to_unsigned, from_unsigned


@functools.cache
def make_look_back(operation):
    """Make ``look_back(words, row, part, count, launch, total)``: what all tiles before a tile amount to.

    The first warp of a block calls it. ``words`` hold what each tile, group and section of a row amounts to.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    shuffle_type = operation.shuffle_type
    fold_lanes, publish, receive = make_fold_lanes(operation), make_publish(operation), make_receive(operation)
    each = words_of(operation)

    @cuda.jit(device=True)
    def look_back(words, row, part, count, launch, total):
        lane, part, count = uint32(cuda.laneid), uint32(part), uint32(count)
        group, section = uint32(part // uint32(GROUP)), uint32(part // uint32(GROUP * GROUP))
        tile, in_section = uint32(part % uint32(GROUP)), uint32(group % uint32(GROUP))
        groups = uint32(uint32(count + uint32(GROUP - 1)) // uint32(GROUP))
        sections = uint32(uint32(groups + uint32(GROUP - 1)) // uint32(GROUP))
        first = uint64(FIRST) + uint64(row) * uint64(uint32(count + groups + sections)) * uint64(each)
        first_group, first_section = first + uint64(count) * uint64(each), first + uint64(count + groups) * uint64(each)
        if lane == uint32(0):
            publish(words, first + uint64(part) * uint64(each), launch, total)

        # The loads of all three levels overlap: most of what they read is there already.
        begins = uint32(group * uint32(GROUP))
        at_tile = first + uint64(begins + (lane if lane < tile else uint32(0))) * uint64(each)
        begins = uint32(section * uint32(GROUP))
        at_group = first_group + uint64(begins + (lane if lane < in_section else uint32(0))) * uint64(each)
        wanted = section > uint32(0) and lane == uint32(0)
        at_section = first_section + uint64(section - uint32(1) if wanted else uint32(0)) * uint64(each)
        tile_low, tile_high = load_acquire(words, at_tile), load_acquire(words, at_tile + uint64(each - 1))
        group_low, group_high = load_acquire(words, at_group), load_acquire(words, at_group + uint64(each - 1))
        low, high = load_acquire(words, at_section), load_acquire(words, at_section + uint64(each - 1))

        held = accumulator(identity)
        if lane < tile:
            held = receive(words, at_tile, launch, tile_low, tile_high)
        cuda.syncwarp()
        prefix = tiles = fold_lanes(held)
        if tile == uint32(GROUP - 1) and lane == uint32(0):
            publish(words, first_group + uint64(group) * uint64(each), launch, accumulator(combine(tiles, total)))
        if group > uint32(0):
            held = accumulator(identity)
            if lane < in_section:
                held = receive(words, at_group, launch, group_low, group_high)
            cuda.syncwarp()
            groups_before = fold_lanes(held)
            held = accumulator(identity)
            if wanted:
                held = receive(words, at_section, launch, low, high)
            cuda.syncwarp()
            held = accumulator(cuda.shfl_sync(FULL, shuffle_type(held), 0))
            prefix = accumulator(combine(combine(held, groups_before), tiles))
        if tile == uint32(GROUP - 1) and in_section == uint32(GROUP - 1) and lane == uint32(0):
            publish(words, first_section + uint64(section) * uint64(each), launch, accumulator(combine(prefix, total)))
        return prefix

    return look_back


@functools.cache
def make_collect(operation):
    """Make ``collect(words, row, part, count, launch, total)``: what one of the tiles before a tile amounts to.

    Each thread of a block gets another tile's, where a row has no more tiles than a block has threads. That is one step
    where `make_look_back` takes several.
    """
    accumulator, identity, each = operation.accumulator, operation.identity, words_of(operation)
    publish, receive = make_publish(operation), make_receive(operation)

    @cuda.jit(device=True)
    def collect(words, row, part, count, launch, total):
        tid, first, held = uint64(cuda.threadIdx.x), uint64(FIRST) + row * count * uint64(each), accumulator(identity)
        if tid == uint64(0):
            publish(words, first + part * uint64(each), launch, total)
        if tid < part:
            at = first + tid * uint64(each)
            held = receive(words, at, launch, load_acquire(words, at), load_acquire(words, at + uint64(each - 1)))
        cuda.syncwarp()
        return held

    return collect


def words_of(operation) -> int:
    """Words that a published value takes."""
    return 2 if operation.partial.itemsize == 8 else 1


def count_words(operation, rows: int, tiles: int) -> int:
    """Count the words that the tiles of all rows need: for their totals, and those of their groups and sections."""
    groups = ceil_div(tiles, GROUP)
    return FIRST + rows * (tiles + groups + ceil_div(groups, GROUP)) * words_of(operation)


# -- columns --------------------------------------------------------------------------------------------------------


@functools.cache
def make_columns(operation, vector, loads, once, exclusive, part):
    """Make the kernel ``columns``: a thread goes down ``rows`` rows of ``vector`` columns, ``loads`` rows at a time.

    With ``once`` there are no more rows than that. ``divisor`` divides by the accesses to a row.

    ``part`` is "all" where the rows are not shared, else "amounts" for the kernel that finds what each share of rows
    amounts to. The kernel of "scan" scans a share and begins with what those before it amount to; that of "rest" reads
    this, as ``offsets`` has left it.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    load, write = make_load(vector), _make_write(operation, vector, exclusive)
    # Numba would compile a comparison of strings, which takes longer than all else.
    begins_with_rest, adds_those_before, only_amounts = (part == name for name in ("rest", "scan", "amounts"))
    shares_rows = part != "all"

    @cuda.jit
    def columns(x, out, amounts, outer, n, inner, rows, divisor):
        held = cuda.local.array((loads, vector), accumulator)
        total = cuda.local.array(vector, accumulator)
        n, inner = uint64(n), uint64(inner)
        across = inner // uint64(vector)
        i = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
        if i >= uint64(outer) * across:
            return
        o = uint64(divided(uint32(i), divisor)[0]) if i < uint64(MAX_DIVIDED) else i // across
        column, share, row, stop = (i - o * across) * uint64(vector), uint64(0), uint64(0), n
        if shares_rows:
            share, rows = uint64(cuda.blockIdx.y), uint64(rows)
            row, stop = share * rows, min(share * rows + rows, n)
        place = (share * uint64(outer) + o) * inner + column
        for v in range(vector):
            total[v] = amounts[place + uint64(v)] if begins_with_rest else accumulator(identity)
        if adds_those_before:
            for s in range(share):
                at = (uint64(s) * uint64(outer) + o) * inner + column
                for v in range(vector):
                    total[v] = accumulator(combine(total[v], amounts[at + uint64(v)]))
        at = (o * n + row) * inner + column
        while row < stop:
            here, left = at, uint32(min(stop - row, uint64(loads)))
            for k in range(loads):  # rows past the last one are the last one again: no branch, so all loads overlap
                values = load(x, here)
                here += inner if uint32(k + 1) < left else uint64(0)
                for v in range(vector):
                    held[k, v] = accumulator(values[v])
            for k in range(loads):
                if uint32(k) < left:
                    write(out, at, held, k, total, not only_amounts)
                    at += inner
            if once:
                break
            row += uint64(loads)
        if only_amounts:
            for v in range(vector):
                amounts[place + uint64(v)] = total[v]

    return columns


@functools.cache
def make_offsets(operation, threads, loads):
    """Make the kernel ``offsets``, which replaces amounts of (shares, columns) by those of all shares before each.

    A block takes ``width`` columns, and each of its threads a run of shares, with ``loads`` amounts under way.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity

    @cuda.jit
    def offsets(amounts, columns, shares, width):
        shared = cuda.shared.array(threads, accumulator)
        held = cuda.local.array(loads, accumulator)
        columns, shares, width = uint64(columns), uint64(shares), uint32(width)
        tid = uint32(cuda.threadIdx.x)
        column = uint64(cuda.blockIdx.x) * uint64(width) + uint64(tid % width)
        run = (shares + uint64(threads // width) - uint64(1)) // uint64(threads // width)
        first, total = uint64(tid // width) * run, accumulator(identity)
        stop = min(first + run, shares) if column < columns else first
        for writes in (False, True):
            share = first
            while share < stop:
                last = stop - uint64(1) - share
                for k in range(loads):
                    held[k] = amounts[(share + min(uint64(k), last)) * columns + column]
                for k in range(loads):
                    if uint64(k) <= last:
                        if writes:
                            amounts[(share + uint64(k)) * columns + column] = total
                        total = accumulator(combine(total, held[k]))
                share += uint64(loads)
            if not writes:  # combine the runs before this one
                distance = width
                while distance < uint32(threads):
                    shared[tid] = total
                    cuda.syncthreads()
                    if tid >= distance:
                        total = accumulator(combine(shared[tid - distance], total))
                    cuda.syncthreads()
                    distance *= uint32(2)
                shared[tid] = total
                cuda.syncthreads()
                total = shared[tid - width] if tid >= width else accumulator(identity)

    return offsets


@functools.cache
def make_stripes(operation, vector, threads, columns, loads, exclusive):
    """Make the kernel ``stripes``: a block of ``2**high`` warps shares the rows of ``2**wide * vector`` columns.

    It has at most so many ``threads`` and ``columns``.

    A thread holds ``loads`` rows of ``vector`` columns in registers. The totals of threads that hold the same columns
    are scanned across the warp, then across the block. ``across``, a Divisor, is the number of blocks that take the
    columns of one index of the outer axis.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    load, write = make_load(vector), _make_write(operation, vector, exclusive)
    places, shuffle_type = threads // WARP * columns, operation.shuffle_type
    scan_lanes, shift_lanes = make_scan_lanes(operation), make_shift_lanes(operation)

    @cuda.jit
    def stripes(x, out, n, inner, across, wide, high):
        held, total = cuda.local.array((loads, vector), accumulator), cuda.local.array(vector, accumulator)
        ends = cuda.shared.array(places, accumulator)
        tid, n, inner, wide = uint32(cuda.threadIdx.x), uint64(n), uint64(inner), uint32(wide)
        warp, warps = tid // uint32(WARP), uint32(uint32(1) << uint32(high))
        width, own_columns = uint32(uint32(1) << wide), uint32(uint32(vector) << wide)
        own = uint32(uint32(tid & uint32(width - uint32(1))) * uint32(vector))
        # The place of a warp's total of a column: neighbouring lanes scan those of a column.
        place = uint32(uint32(tid & uint32(warps - uint32(1))) * own_columns + uint32(tid >> uint32(high)))
        o, part = divided(uint32(cuda.blockIdx.x), across)
        column = uint64(part) * uint64(own_columns) + uint64(own)
        first = uint64(o) * n * inner + (column if column < inner else uint64(0))
        row, carry, base = uint64(tid >> wide) * uint64(loads), accumulator(identity), uint64(0)
        rows_of_tile = uint64(uint32(uint32(cuda.blockDim.x) >> wide) * uint32(loads))
        while base < n:
            left, at = uint32(0), first
            if row < n:
                left, at = uint32(min(n - row, uint64(loads))), first + row * inner
            here = at
            for k in range(loads):  # rows past the last one are the last one again: no branch, so all loads overlap
                values = load(x, here)
                here += inner if uint32(k + 1) < left else uint64(0)
                for v in range(vector):
                    held[k, v] = accumulator(values[v]) if uint32(k) < left else accumulator(identity)
            for v in range(vector):
                upto = held[0, v]
                for k in range(1, loads):
                    upto = accumulator(combine(upto, held[k, v]))
                upto = scan_lanes(upto, WARP, width)
                total[v] = shift_lanes(upto, WARP, width)
                if uint32(cuda.laneid) + width >= uint32(WARP):
                    ends[warp * own_columns + own + uint32(v)] = upto
            cuda.syncthreads()
            has_total = uint32(tid >> uint32(high)) < own_columns
            upto = scan_lanes(ends[place] if has_total else accumulator(identity), warps, 1)
            before = accumulator(combine(carry, shift_lanes(upto, warps, 1)))
            if has_total:
                ends[place] = before
            last = int32(uint32(cuda.laneid) | uint32(warps - uint32(1)))
            carry = accumulator(combine(carry, accumulator(cuda.shfl_sync(FULL, shuffle_type(upto), last))))
            cuda.syncthreads()
            for v in range(vector):
                total[v] = accumulator(combine(ends[warp * own_columns + own + uint32(v)], total[v]))
            for k in range(loads):
                if column < inner and uint32(k) < left:
                    write(out, at, held, k, total, True)
                    at += inner
            base, row = base + rows_of_tile, row + rows_of_tile
            if base < n:
                cuda.syncthreads()  # ends may be written again

    return stripes


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
