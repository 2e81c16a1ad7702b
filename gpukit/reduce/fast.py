"""Kernels that reduce a contiguous array seen as (outer, n, inner) over its middle axis.

``rows``: inner is 1 and n is large; warps share a row. ``groups``: inner is 1 and n is small; a warp takes one row or
several. ``columns``: inner is more than 1; neighbouring threads take neighbouring columns, and share the rows.
``skewed``: the same for rows that begin at any address. ``cells``: the same with n so small, and so many columns, that
a thread takes all rows of its own. All read n * outer * inner elements once. Where several blocks share a result, the
one that finishes last combines what they have found, always in the same order. Nothing is added atomically: the bits
are the same in every run.
"""

import functools

from gpukit.backend import cuda, int32
from gpukit.reduce.primitives import (
    WARP,
    checked_taker,
    folder,
    gatherer,
    is_last,
    lane_combiner,
    loader,
    reader,
    sharer,
    taker,
    warp_combiner,
    whole,
)

__all__ = ["cells", "columns", "groups", "rows", "rows_of_warp", "skewed"]


@functools.cache
def rows(operation, vector, threads, loads):
    """Kernel: ``splits`` blocks share a row, and their warps its tiles: see `sharer`.

    A tile is ``32 * vector * loads`` elements: each lane has ``loads`` accesses of ``vector`` elements under way before
    it combines the first. Tiles begin at aligned addresses; row 0 begins ``offset`` elements after one. Whole tiles are
    read without a check, those at the ends of a row with one (D3).
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    inside, finish, commutative = operation.inside, operation.finish, operation.commutative
    warps, access, tile_size = threads // WARP, WARP * vector, WARP * vector * loads
    take, take_checked = taker(operation, vector), checked_taker(operation, vector)
    share, gather = sharer(operation), gatherer(operation, loads)
    across_lanes, across_warps = lane_combiner(operation), warp_combiner(operation, threads)

    @cuda.jit
    def rows(x, out, partials, counters, n, splits, run, offset, count):
        shared = cuda.shared.array(WARP, accumulator)
        flag = cuda.shared.array(1, int32)
        tile = cuda.local.array(loads, inside)
        tid, n, splits = whole(cuda.threadIdx.x), whole(n), whole(splits)
        row = whole(cuda.blockIdx.x) // splits
        part = whole(cuda.blockIdx.x) - row * splits
        first = row * n
        before = (whole(offset) + first) % whole(vector)
        # Places are counted from the aligned address. This warp takes tiles that begin at u, u + step ... below stop.
        u, step, stop = share(
            part * whole(warps) + tid // whole(WARP),
            splits * whole(warps),
            whole(run),
            (before + n + whole(tile_size - 1)) // whole(tile_size),
        )
        u, step, stop = u * whole(tile_size), step * whole(tile_size), min(stop * whole(tile_size), before + n)
        total, lane = inside(identity), tid % whole(WARP) * whole(vector) - before
        while u < stop:
            if u < before or u + whole(tile_size) > stop:
                for k in range(loads):
                    tile[k] = take_checked(x, first, u + lane + whole(k * access), n)
                gather(tile)
                total = inside(combine(total, tile[0]))
                u += step
            while u + whole(tile_size) <= stop:
                at = first + lane + u
                for k in range(loads):
                    tile[k] = take(x, at + whole(k * access))
                gather(tile)
                total = inside(combine(total, tile[0]))
                u += step
        total = accumulator(total)
        total = across_warps(across_lanes(total) if commutative else total, shared)
        if splits == whole(1):
            if tid == whole(0):
                out[row] = finish(total, count)
            return
        if tid == whole(0):
            partials[row * splits + part] = total
        if is_last(counters, row, splits, flag):
            total, each = accumulator(identity), (splits + whole(threads - 1)) // whole(threads)
            part = tid * each
            while part < min(tid * each + each, splits):
                total = accumulator(combine(total, partials[row * splits + part]))
                part += whole(1)
            total = across_warps(across_lanes(total), shared)
            if tid == whole(0):
                out[row] = finish(total, count)

    return rows


@functools.cache
def groups(operation, vector, lanes, loads, several, threads):
    """Kernel: each ``lanes`` neighbouring lanes take ``several`` rows of at most lanes * vector * loads elements.

    They hold all of a row in registers. Neighbouring groups take neighbouring rows, so a warp reads without gaps.
    """
    accumulator, identity, inside = operation.accumulator, operation.identity, operation.inside
    finish, commutative = operation.finish, operation.commutative
    held, rows_of_block = loads * several, threads // lanes * several
    take, gather = taker(operation, vector), gatherer(operation, loads, several, lanes)
    across_lanes = lane_combiner(operation, lanes)

    @cuda.jit
    def groups(x, out, outer, n, count):
        tile = cuda.local.array(held, inside)
        tid, outer, n = whole(cuda.threadIdx.x), whole(outer), whole(n)
        lane = tid % whole(lanes)
        first = whole(cuda.blockIdx.x) * whole(rows_of_block) + tid // whole(lanes)
        for r in range(several):
            row = first + whole(r * (threads // lanes))
            for k in range(loads):
                at = (lane + whole(k * lanes)) * whole(vector)
                has = row < outer and at < n
                # Who has nothing reads the first: with no branch around them, all loads are under way at once.
                value = take(x, row * n + at if has else whole(0))
                tile[k * several + r] = value if has else inside(identity)
        gather(tile)
        for r in range(several):
            row, total = first + whole(r * (threads // lanes)), accumulator(tile[r])
            if commutative:
                total = across_lanes(total)
            if lane == whole(0) and row < outer:
                out[row] = finish(total, count)

    return groups


@functools.cache
def cells(operation, vector, loads, threads):
    """Kernel: a thread takes ``vector`` neighbouring columns, all rows of them, ``loads`` rows under way at a time."""
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    inside, finish, held = operation.inside, operation.finish, vector * loads
    read, fold = reader(operation, vector), folder(operation, held, vector)

    @cuda.jit
    def cells(x, out, outer, n, inner, count):
        tile = cuda.local.array(held, inside)
        totals = cuda.local.array(vector, accumulator)
        n, inner = whole(n), whole(inner)
        across = inner // whole(vector)
        i = whole(cuda.blockIdx.x) * whole(threads) + whole(cuda.threadIdx.x)
        if i >= whole(outer) * across:
            return
        o = i // across
        place = o * inner + (i - o * across) * whole(vector)  # of the first of its results
        at = place + o * (n - whole(1)) * inner
        for v in range(vector):
            totals[v] = accumulator(identity)
        row, first = whole(0), at
        while row < n:
            for k in range(loads):
                read(x, at if row < n else first, tile, k * vector)
                for v in range(vector):
                    tile[k * vector + v] = tile[k * vector + v] if row < n else inside(identity)
                row += whole(1)
                at += inner
            fold(tile)
            for v in range(vector):
                totals[v] = accumulator(combine(totals[v], accumulator(tile[v])))
        for v in range(vector):
            out[place + whole(v)] = finish(totals[v], count)

    return cells


@functools.cache
def columns(operation, vector, width, height, loads):
    """Kernel of D1: blocks of ``width`` x ``height`` threads tile the columns along x and share the n rows along y; the
    outer axis is along z.

    A thread takes ``vector`` neighbouring columns. A strand, that is one warp or several that read the same rows, takes
    some of the tiles of rows: see `sharer`.
    """
    accumulator, finish, commutative = operation.accumulator, operation.finish, operation.commutative
    per_block, strands = width * vector, height // rows_of_warp(width, height)
    add_tiles = tile_adder(operation, vector, width, height, loads)
    add_partials = partial_adder(operation, vector, height)
    across_lanes = column_combiner(operation, vector, width, height)
    across_strands = strand_combiner(operation, vector, width, height)

    @cuda.jit
    def columns(x, out, partials, counters, outer, n, inner, run, count):
        shared = cuda.shared.array((strands, per_block), accumulator)
        flag = cuda.shared.array(1, int32)
        totals = cuda.local.array(vector, accumulator)
        outer, n, inner = whole(outer), whole(n), whole(inner)
        column = (whole(cuda.blockIdx.x) * whole(width) + whole(cuda.threadIdx.x)) * whole(vector)
        writes = cuda.threadIdx.y == 0 and column < inner
        o = whole(cuda.blockIdx.z)
        add_tiles(x, o * n, n, inner, column, whole(run), totals)
        if commutative:
            across_lanes(totals)
        across_strands(totals, shared)
        last = cuda.gridDim.y == 1
        if not last:
            if writes:
                for v in range(vector):
                    place = whole(cuda.blockIdx.y) * outer + o
                    partials[place * inner + column + whole(v)] = totals[v]
            counter = o * whole(cuda.gridDim.x) + whole(cuda.blockIdx.x)
            last = is_last(counters, counter, cuda.gridDim.y, flag)
            if last:
                add_partials(partials, o, outer, inner, column, totals)
                across_lanes(totals)
                across_strands(totals, shared)
        if last and writes:
            for v in range(vector):
                out[o * inner + column + whole(v)] = finish(totals[v], count)

    return columns


@functools.cache
def skewed(operation, vector, width, height, loads):
    """Kernel: `columns` for rows that begin at any address, as those of an odd number of elements do, if the order of
    elements does not matter.

    A thread takes every ``vector``-th row: all of these begin equally many elements after an aligned address, so it
    reads aligned accesses. Other threads hold the same columns at other places; they meet in shared memory. A block
    reads ``width * vector`` columns, and owns the first ``(width - 1) * vector``.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    finish, per_block, owned, threads = operation.finish, width * vector, (width - 1) * vector, width * height
    add_rows = row_adder(operation, vector, height, loads)

    @cuda.jit
    def skewed(x, out, partials, counters, outer, n, inner, offset, count):
        shared = cuda.shared.array((height, per_block), accumulator)
        flag = cuda.shared.array(1, int32)
        totals = cuda.local.array(vector, accumulator)
        outer, n, inner = whole(outer), whole(n), whole(inner)
        tx, ty, o = whole(cuda.threadIdx.x), whole(cuda.threadIdx.y), whole(cuda.blockIdx.z)
        left = whole(cuda.blockIdx.x) * whole(owned)
        before = whole(offset) + o * n * inner
        add_rows(x, o * n, outer * n, n, inner, left + tx * whole(vector), before, totals)
        for v in range(vector):
            shared[ty, tx * whole(vector) + whole(v)] = totals[v]
        cuda.syncthreads()
        column = ty * whole(width) + tx
        while column < whole(owned) and left + column < inner:
            total = accumulator(identity)
            for r in range(height):
                total = accumulator(combine(total, shared[r, column + (before + whole(r) * inner) % whole(vector)]))
            if cuda.gridDim.y == 1:
                out[o * inner + left + column] = finish(total, count)
            else:
                partials[(whole(cuda.blockIdx.y) * outer + o) * inner + left + column] = total
            column += whole(threads)
        if cuda.gridDim.y > 1 and is_last(
            counters, o * whole(cuda.gridDim.x) + whole(cuda.blockIdx.x), cuda.gridDim.y, flag
        ):
            column = ty * whole(width) + tx
            while column < whole(owned) and left + column < inner:
                total, part = accumulator(identity), whole(0)
                while part < whole(cuda.gridDim.y):
                    total = accumulator(combine(total, partials[(part * outer + o) * inner + left + column]))
                    part += whole(1)
                out[o * inner + left + column] = finish(total, count)
                column += whole(threads)

    return skewed


@functools.cache
def row_adder(operation, vector, height, loads):
    """Device function ``add_rows(x, first, rows, n, inner, column, before, totals)``: combine what a thread finds.

    The n rows begin at row ``first`` of ``rows``, ``before`` elements after an aligned address. The thread's columns
    begin at ``column`` in rows that are aligned, and as far before it as others are not. What it finds outside of a row
    nobody asks for; outside of the array it must not look.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    transform, inside, held, apart = operation.transform, operation.inside, vector * loads, height // vector
    rows_of_tile = vector * loads
    read, fold = reader(operation, vector), folder(operation, held, vector)

    @cuda.jit(device=True)
    def add_rows(x, first, rows, n, inner, column, before, totals):
        tile = cuda.local.array(held, inside)
        sums = cuda.local.array(vector, inside)
        for v in range(vector):
            sums[v] = inside(identity)
        kind, size = whole(cuda.threadIdx.y) % whole(vector), rows * inner
        group, step, stop = whole(cuda.threadIdx.y) // whole(vector), whole(cuda.gridDim.y) * whole(apart), n
        t = whole(cuda.blockIdx.y) * whole(apart) + group
        if cuda.gridDim.y == 1:  # no other block reads near by: long runs are faster here
            run = (n + whole(apart * rows_of_tile - 1)) // whole(apart * rows_of_tile)
            t, step, stop = group * run, whole(1), min(n, (group + whole(1)) * run * whole(rows_of_tile))
        row = t * whole(rows_of_tile) + kind
        skew = (before + kind * inner) % whole(vector)
        at, down = (first + row) * inner + column - skew, whole(vector) * inner
        leap = (step - whole(1)) * whole(loads) * down
        while row < stop and column < inner + skew:
            last = at + whole(loads - 1) * down
            if row + whole(rows_of_tile - vector) < n and at < size and last + whole(vector) <= size:
                for k in range(loads):
                    read(x, at, tile, k * vector)
                    at += down
                fold(tile)
                for v in range(vector):
                    sums[v] = inside(combine(sums[v], tile[v]))
            else:
                for k in range(loads):
                    for v in range(vector):
                        if row + whole(k * vector) < n and at + whole(v) < size:
                            sums[v] = inside(combine(sums[v], inside(transform(x[at + whole(v)]))))
                    at += down
            at += leap
            row += step * whole(rows_of_tile)
        for v in range(vector):
            totals[v] = accumulator(sums[v])

    return add_rows


def rows_of_warp(width, height):
    """Rows that a warp reads at a time: more than one if a row takes less than a warp."""
    return min(max(1, WARP // width), height)


@functools.cache
def tile_adder(operation, vector, width, height, loads):
    """Device function ``add_tiles(x, first, n, inner, column, run, totals)``: combine what a thread finds in its
    columns.

    The n rows begin at row ``first``. Whole tiles of them are read without a check, the last one with it (D3).
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    inside, held, deep = operation.inside, vector * loads, rows_of_warp(width, height)
    rows_of_tile, strands = deep * loads, height // deep
    read, gather = reader(operation, vector), gatherer(operation, loads, vector, deep, width)
    share = sharer(operation)

    @cuda.jit(device=True)
    def add_tiles(x, first, n, inner, column, run, totals):
        tile = cuda.local.array(held, inside)
        sums = cuda.local.array(vector, inside)
        for v in range(vector):
            sums[v] = inside(identity)
        tiles, down = (n + whole(rows_of_tile - 1)) // whole(rows_of_tile), whole(deep) * inner
        strand = whole(cuda.blockIdx.y) * whole(strands) + whole(cuda.threadIdx.y) // whole(deep)
        t, step, stop = share(strand, whole(cuda.gridDim.y) * whole(strands), run, tiles)
        row = t * whole(rows_of_tile) + whole(cuda.threadIdx.y) % whole(deep)
        # Who has no column reads the first, and finds what nobody asks for.
        at = (first + row) * inner + (column if column < inner else whole(0))
        leap = (step - whole(1)) * whole(loads) * down
        while t < min(stop, n // whole(rows_of_tile)):
            for k in range(loads):
                read(x, at, tile, k * vector)
                at += down
            gather(tile)
            for v in range(vector):
                sums[v] = inside(combine(sums[v], tile[v]))
            t += step
            at += leap
        if t < stop:
            row = t * whole(rows_of_tile) + whole(cuda.threadIdx.y) % whole(deep)
            for i in range(held):
                tile[i] = inside(identity)
            for k in range(loads):
                if row < n:
                    read(x, at, tile, k * vector)
                row += whole(deep)
                at += down
            gather(tile)
            for v in range(vector):
                sums[v] = inside(combine(sums[v], tile[v]))
        for v in range(vector):
            totals[v] = accumulator(sums[v])

    return add_tiles


@functools.cache
def partial_adder(operation, vector, height):
    """Device function ``add_partials(partials, o, outer, inner, column, totals)``: combine what blocks have left; each
    thread takes a run of neighbouring ones.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    width = min(vector, 16 // operation.partial.itemsize)
    load = loader(width)

    @cuda.jit(device=True)
    def add_partials(partials, o, outer, inner, column, totals):
        for v in range(vector):
            totals[v] = accumulator(identity)
        splits = whole(cuda.gridDim.y)
        share = (splits + whole(height - 1)) // whole(height)
        t = whole(cuda.threadIdx.y) * share
        stop = min(t + share, splits)
        while column < inner and t < stop:
            place = (t * outer + o) * inner + column
            for v in range(0, vector, width):
                values = load(partials, place + whole(v))
                for w in range(width):
                    totals[v + w] = accumulator(combine(totals[v + w], values[w]))
            t += whole(1)

    return add_partials


@functools.cache
def column_combiner(operation, vector, width, height):
    """Device function ``across_lanes(totals)``: combine what the lanes of a warp have found in the same columns."""
    combine_lanes = lane_combiner(operation, rows_of_warp(width, height), width)

    @cuda.jit(device=True)
    def across_lanes(totals):
        for v in range(vector):
            totals[v] = combine_lanes(totals[v])

    return across_lanes


@functools.cache
def strand_combiner(operation, vector, width, height):
    """Device function ``across_strands(totals, shared)``: combine what a block has found in the same columns.

    Every thread must call it; those with threadIdx.y of 0 get the result.
    """
    combine, accumulator, deep = operation.combine, operation.accumulator, rows_of_warp(width, height)
    strands = height // deep

    @cuda.jit(device=True)
    def across_strands(totals, shared):
        tx, strand = cuda.threadIdx.x, cuda.threadIdx.y // deep
        first = cuda.threadIdx.y % deep == 0
        step = 1
        while step < strands:
            if first and strand % (2 * step) == step:
                for v in range(vector):
                    shared[strand, v * width + tx] = totals[v]
            cuda.syncthreads()
            if first and strand % (2 * step) == 0:
                for v in range(vector):
                    totals[v] = accumulator(combine(totals[v], shared[strand + step, v * width + tx]))
            step *= 2
        cuda.syncthreads()  # shared may be used again

    return across_strands
