"""Kernels that reduce an array seen as (outer, n, inner) over its middle axis, at the speed of memory.

1. ``rows``: inner is 1 and n is large. Warps share a row; in ``warp_rows`` each takes one alone.
2. ``groups``: inner is 1 and n is small. A warp takes one row or several.
3. ``columns``: inner is more than 1. Neighbouring threads take neighbouring columns, and share the rows.
4. ``skewed``: ``columns`` for rows that begin at any address.
5. ``cells``: ``columns`` with n so small, and so many columns, that a thread takes all rows of its own.
6. ``narrow``: ``columns`` for so few columns that a block reads several rows as one run of memory.
7. ``strided``: arrays of any strides, and several reduced axes where a second launch would cost more.

All read the n * outer * inner elements once. Rows in memory, of inner elements, or of n if inner is 1, begin ``pitch``
elements apart, with or without gaps between them. Where several blocks share a result, the last one to finish
combines their partial results, always in the same order. Nothing is added atomically, so the bits are the same in every
run. `gpukit.reduce.cost` chooses among the kernels.
"""

import functools
from typing import NamedTuple

import numpy as np

from gpukit.backend import cuda, int32, int64, types, uint32, uint64
from gpukit.divisors import Divisor, divided
from gpukit.intrinsics.vectors import make_store
from gpukit.reduce.primitives import (
    is_last,
    make_combine_lanes,
    make_combine_warps,
    make_fold,
    make_gather,
    make_load,
    make_read,
    make_share,
    make_take,
    make_take_checked,
    make_take_columns,
    make_take_edge,
    make_take_if,
)
from warpstep.limits import WARP

__all__ = [
    "Walk",
    "make_cells",
    "make_columns",
    "make_groups",
    "make_narrow",
    "make_rows",
    "make_skewed",
    "make_strided",
    "make_warp_rows",
    "rows_of_warp",
]

#: Partial results that a thread of the last block of ``strided`` has under way.
PARTIAL_LOADS = 8


# -- rows ------------------------------------------------------------------------------------------


@functools.cache
def make_rows(operation, vector, threads, loads):
    """Make the kernel ``rows``: ``splits`` blocks share a row, and their warps its tiles (see `make_share`).

    Row 0 begins ``offset`` elements after an aligned address, and ``pitch`` elements before the next one.
    """
    accumulator, finish, commutative = operation.accumulator, operation.finish, operation.commutative
    add_row, add_partials = make_add_row(operation, vector, loads), make_add_row_partials(operation, threads)
    warps = threads // WARP
    combine_lanes, combine_warps = make_combine_lanes(operation), make_combine_warps(operation, threads)

    @cuda.jit
    def rows(x, out, partials, counters, n, pitch, splits, run, offset, count):
        shared = cuda.shared.array(WARP, accumulator)
        flag = cuda.shared.array(1, int32)
        tid, n, splits, block = uint64(cuda.threadIdx.x), uint64(n), uint64(splits), uint32(cuda.blockIdx.x)
        row = uint64(uint32(block // uint32(splits)))
        part = uint64(block) - row * splits
        sharer, sharers = part * uint64(warps) + tid // uint64(WARP), splits * uint64(warps)
        total = add_row(x, row * uint64(pitch), n, sharer, sharers, uint64(run), uint64(offset))
        total = combine_warps(combine_lanes(total) if commutative else total, shared)
        if splits == uint64(1):
            if tid == uint64(0):
                out[row] = finish(total, count)
            return
        if tid == uint64(0):
            partials[row * splits + part] = total
        if is_last(counters, row, splits, flag):
            total = combine_warps(combine_lanes(add_partials(partials, row * splits, splits)), shared)
            if tid == uint64(0):
                out[row] = finish(total, count)

    return rows


@functools.cache
def make_warp_rows(operation, vector, threads, loads):
    """Make the kernel ``warp_rows``: ``rows`` where each warp takes a row alone, without a barrier."""
    finish, commutative = operation.finish, operation.commutative
    add_row, combine_lanes = make_add_row(operation, vector, loads), make_combine_lanes(operation)

    @cuda.jit
    def warp_rows(x, out, outer, n, pitch, run, offset, count):
        tid = uint64(cuda.threadIdx.x)
        row = uint64(cuda.blockIdx.x) * uint64(threads // WARP) + tid // uint64(WARP)
        if row < uint64(outer):
            total = add_row(x, row * uint64(pitch), uint64(n), uint64(0), uint64(1), uint64(run), uint64(offset))
            total = combine_lanes(total) if commutative else total
            if tid % uint64(WARP) == uint64(0):
                out[row] = finish(total, count)

    return warp_rows


@functools.cache
def make_add_row(operation, vector, loads):
    """Make ``add_row(x, first, n, sharer, sharers, run, offset)``: combine a thread's share of the row at ``first``.

    Warps share the row, and this one is number ``sharer`` of them. A tile is ``32 * vector * loads`` elements: each
    lane has ``loads`` accesses of ``vector`` elements under way before it combines the first. Tiles begin at aligned
    addresses. Only those at the ends of a row are checked (D3).
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    thread_type, access, tile_size = operation.thread_type, WARP * vector, WARP * vector * loads
    take, take_checked = make_take(operation, vector), make_take_checked(operation, vector)
    share, gather = make_share(operation), make_gather(operation, loads)
    take_edge, several = make_take_edge(operation, vector, loads), loads > 1

    @cuda.jit(device=True)
    def add_row(x, first, n, sharer, sharers, run, offset):
        tile = cuda.local.array(loads, thread_type)
        tid, before = uint64(cuda.threadIdx.x), (offset + first) % uint64(vector)
        # Places count from the aligned address. This warp takes the tiles at u, u + step ... below stop.
        u, step, stop = share(sharer, sharers, run, (before + n + uint64(tile_size - 1)) // uint64(tile_size))
        u, step, stop = u * uint64(tile_size), step * uint64(tile_size), min(stop * uint64(tile_size), before + n)
        total, lane = thread_type(identity), tid % uint64(WARP) * uint64(vector) - before
        while u < stop:
            if u < before or u + uint64(tile_size) > stop:
                at = first + u + lane
                if several and at < uint64(x.size) and at + uint64(tile_size) <= uint64(x.size):
                    take_edge(x, first, u + lane, n, tile)
                else:
                    for k in range(loads):
                        tile[k] = take_checked(x, first, u + lane + uint64(k * access), n)
                gather(tile)
                total = thread_type(combine(total, tile[0]))
                u += step
            while u + uint64(tile_size) <= stop:
                at = first + lane + u
                for k in range(loads):
                    tile[k] = take(x, at + uint64(k * access))
                gather(tile)
                total = thread_type(combine(total, tile[0]))
                u += step
        return accumulator(total)

    return add_row


@functools.cache
def make_add_row_partials(operation, threads):
    """Make ``add_partials(partials, first, splits)``: combine a thread's run of the partial results of a row."""
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity

    @cuda.jit(device=True)
    def add_partials(partials, first, splits):
        total, each = accumulator(identity), (splits + uint64(threads - 1)) // uint64(threads)
        part = uint64(cuda.threadIdx.x) * each
        stop = min(part + each, splits)
        while part < stop:
            total = accumulator(combine(total, partials[first + part]))
            part += uint64(1)
        return total

    return add_partials


@functools.cache
def make_groups(operation, vector, lanes, loads, several, threads, each=1):
    """Make the kernel ``groups``: ``lanes`` neighbouring lanes take ``several`` rows.

    A row has at most lanes * vector * loads elements, all of them held in registers. Neighbouring groups of lanes take
    neighbouring rows, so a warp reads without gaps. With ``each``, a row is so many columns of elements, and has a
    result for each.
    """
    accumulator, thread_type = operation.accumulator, operation.thread_type
    finish, commutative = operation.finish, operation.commutative
    found, rows_of_block = several * each, threads // lanes * several
    held, take_columns = loads * found, make_take_columns(operation, vector, each)
    take_if, gather = make_take_if(operation, vector), make_gather(operation, loads, found, lanes)
    combine_lanes = make_combine_lanes(operation, lanes, few=True)

    @cuda.jit
    def groups(x, out, outer, n, pitch, count):
        tile = cuda.local.array(held, thread_type)
        tid, outer, n = uint32(cuda.threadIdx.x), uint64(outer), uint32(n)
        lane = uint32(tid % uint32(lanes))
        first = uint64(cuda.blockIdx.x) * uint64(rows_of_block) + uint64(tid // uint32(lanes))
        for r in range(several):
            row = first + uint64(r * (threads // lanes))
            at, left = row * uint64(pitch) + uint64(lane * uint32(vector)), n if row < outer else uint32(0)
            for k in range(loads):
                has = uint32(uint32(lane + uint32(k * lanes)) * uint32(vector)) < left
                if each > 1:
                    take_columns(x, at + uint64(k * lanes * vector), has, tile, k * found + r * each)
                else:
                    tile[k * found + r] = take_if(x, at + uint64(k * lanes * vector), has)
        gather(tile)
        for r in range(several):
            row = first + uint64(r * (threads // lanes))
            for e in range(each):
                value = tile[r * each + e]
                total = combine_lanes(value) if commutative else accumulator(value)
                if lane == uint32(0) and row < outer:
                    out[row * uint64(each) + uint64(e)] = finish(total, count)

    return groups


# -- columns ---------------------------------------------------------------------------------------


@functools.cache
def make_cells(operation, vector, loads, width, threads):
    """Make the kernel ``cells``: a thread takes ``vector`` neighbouring columns, ``loads`` of their rows at a time.

    It writes ``width`` results in one access. ``divisor`` finds out of which of the outer ones they are.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    thread_type, finish, held = operation.thread_type, operation.finish, vector * loads
    read, fold = make_read(operation, vector), make_fold(operation, held, vector)
    store, result = make_store(width, operation.result.itemsize), getattr(types, operation.result.name)

    @cuda.jit
    def cells(x, out, outer, n, inner, pitch, divisor, count):
        tile = cuda.local.array(held, thread_type)
        totals = cuda.local.array(vector, accumulator)
        results = cuda.local.array(vector, result)
        n, inner, pitch = uint32(n), uint64(inner), uint64(pitch)
        across = inner // uint64(vector)
        i = uint64(cuda.blockIdx.x) * uint64(threads) + uint64(cuda.threadIdx.x)
        if i >= uint64(outer) * across:
            return
        o = uint64(divided(uint32(i), divisor)[0])
        column = (i - o * across) * uint64(vector)
        at = o * uint64(n) * pitch + column
        for v in range(vector):
            totals[v] = accumulator(identity)
        row = uint32(0)
        while row < n:
            read(x, at, tile, 0)
            for k in range(1, loads):
                has = uint32(row + uint32(k)) < n
                read(x, at + uint64(k) * pitch if has else at, tile, k * vector)
                for v in range(vector):
                    tile[k * vector + v] = tile[k * vector + v] if has else thread_type(identity)
            fold(tile)
            row, at = uint32(row + uint32(loads)), at + uint64(loads) * pitch
            for v in range(vector):
                totals[v] = accumulator(combine(totals[v], accumulator(tile[v])))
        for v in range(vector):
            results[v] = finish(totals[v], count)
        for v in range(0, vector, width):
            store(out, o * inner + column + uint64(v), results, v)

    return cells


@functools.cache
def make_columns(operation, vector, width, height, loads):
    """Make the kernel ``columns`` (D1): blocks tile the columns along x and the rows along y; z is the outer axis.

    A block has ``width`` x ``height`` threads, a thread ``vector`` neighbouring columns. A strand is one warp or
    several that read the same rows; it takes some of the tiles of rows (see `make_share`).
    """
    accumulator, finish, commutative = operation.accumulator, operation.finish, operation.commutative
    per_block, strands = width * vector, height // rows_of_warp(width, height)
    add_tiles = make_add_tiles(operation, vector, width, height, loads)
    add_partials = make_add_column_partials(operation, vector, height)
    combine_columns = make_combine_columns(operation, vector, width, height)
    combine_strands = make_combine_strands(operation, vector, width, height)

    @cuda.jit
    def columns(x, out, partials, counters, outer, n, inner, pitch, run, count):
        shared = cuda.shared.array((strands, per_block), accumulator)
        flag = cuda.shared.array(1, int32)
        totals = cuda.local.array(vector, accumulator)
        outer, n, inner = uint64(outer), uint64(n), uint64(inner)
        column = (uint64(cuda.blockIdx.x) * uint64(width) + uint64(cuda.threadIdx.x)) * uint64(vector)
        writes = cuda.threadIdx.y == 0 and column < inner
        o = uint64(cuda.blockIdx.z)
        add_tiles(x, o * n, n, inner, uint64(pitch), column, uint64(run), totals)
        if commutative:
            combine_columns(totals)
        combine_strands(totals, shared)
        last = cuda.gridDim.y == 1
        if not last:
            if writes:
                for v in range(vector):
                    place = uint64(cuda.blockIdx.y) * outer + o
                    partials[place * inner + column + uint64(v)] = totals[v]
            counter = o * uint64(cuda.gridDim.x) + uint64(cuda.blockIdx.x)
            last = is_last(counters, counter, cuda.gridDim.y, flag)
            if last:
                add_partials(partials, o, outer, inner, column, totals)
                combine_columns(totals)
                combine_strands(totals, shared)
        if last and writes:
            for v in range(vector):
                out[o * inner + column + uint64(v)] = finish(totals[v], count)

    return columns


@functools.cache
def make_skewed(operation, vector, width, height, loads):
    """Make the kernel ``skewed``: ``columns`` for rows that begin at any address, as rows of odd length do.

    The order of elements must not matter. A thread takes every ``vector``-th row: all of these begin equally far from
    an aligned address, so its accesses are aligned. Other threads hold the same columns at other offsets; they meet in
    shared memory, where the first columns of all threads come first, then the second: threads write without conflicts,
    and thanks to a pad they read without. A block reads ``width * vector`` columns, and owns the first
    ``(width - 1) * vector``.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    finish, owned, threads = operation.finish, (width - 1) * vector, width * height
    add_rows = make_add_rows(operation, vector, height, loads)
    padded = width + 128 // operation.partial.itemsize // vector
    per_row = vector * padded

    @cuda.jit
    def skewed(x, out, partials, counters, outer, n, inner, pitch, offset, count):
        shared = cuda.shared.array((height, per_row), accumulator)
        flag = cuda.shared.array(1, int32)
        totals = cuda.local.array(vector, accumulator)
        outer, n, inner, pitch = uint64(outer), uint64(n), uint64(inner), uint64(pitch)
        tx, ty, o = uint64(cuda.threadIdx.x), uint64(cuda.threadIdx.y), uint64(cuda.blockIdx.z)
        left = uint64(cuda.blockIdx.x) * uint64(owned)
        before = uint64(offset) + o * n * pitch
        add_rows(x, o * n, outer * n, n, inner, pitch, left + tx * uint64(vector), before, totals)
        for v in range(vector):
            shared[ty, uint64(v * padded) + tx] = totals[v]
        cuda.syncthreads()
        column = ty * uint64(width) + tx
        while column < uint64(owned) and left + column < inner:
            total = accumulator(identity)
            for r in range(height):
                at = uint32(column + (before + uint64(r) * pitch) % uint64(vector))
                place = uint32(uint32(at % uint32(vector)) * uint32(padded)) + at // uint32(vector)
                total = accumulator(combine(total, shared[r, place]))
            if cuda.gridDim.y == 1:
                out[o * inner + left + column] = finish(total, count)
            else:
                partials[(uint64(cuda.blockIdx.y) * outer + o) * inner + left + column] = total
            column += uint64(threads)
        if cuda.gridDim.y > 1 and is_last(
            counters, o * uint64(cuda.gridDim.x) + uint64(cuda.blockIdx.x), cuda.gridDim.y, flag
        ):
            # Rows of threads share the partial results; a thread has those of several columns under way.
            for v in range(vector):
                totals[v] = accumulator(identity)
            part = ty
            while part < uint64(cuda.gridDim.y):
                row = (part * outer + o) * inner
                for v in range(vector):
                    column = tx + uint64(v * width)
                    has = column < uint64(owned) and left + column < inner
                    totals[v] = accumulator(combine(totals[v], partials[row + left + (column if has else uint64(0))]))
                part += uint64(height)
            for v in range(vector):
                shared[ty, tx + uint64(v * width)] = totals[v]
            cuda.syncthreads()
            column = ty * uint64(width) + tx
            while column < uint64(owned) and left + column < inner:
                total = shared[0, column]
                for r in range(1, height):
                    total = accumulator(combine(total, shared[r, column]))
                out[o * inner + left + column] = finish(total, count)
                column += uint64(threads)

    return skewed


@functools.cache
def make_add_rows(operation, vector, height, loads):
    """Make ``add_rows(x, first, rows, n, inner, pitch, column, before, totals)``: combine a thread's share of its rows.

    The n rows begin at row ``first`` of ``rows``, ``before`` elements after an aligned address. In aligned rows the
    thread's columns begin at ``column``, in others before it by as much as these are off. Totals outside of a row are
    discarded, but the thread must not read outside of the array.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    transform, thread_type, held, apart = operation.transform, operation.thread_type, vector * loads, height // vector
    rows_of_tile = vector * loads
    read, fold = make_read(operation, vector), make_fold(operation, held, vector)

    @cuda.jit(device=True)
    def add_rows(x, first, rows, n, inner, pitch, column, before, totals):
        tile = cuda.local.array(held, thread_type)
        sums = cuda.local.array(vector, thread_type)
        for v in range(vector):
            sums[v] = thread_type(identity)
        kind, size = uint64(cuda.threadIdx.y) % uint64(vector), (rows - uint64(1)) * pitch + inner
        group, step, stop = uint64(cuda.threadIdx.y) // uint64(vector), uint64(cuda.gridDim.y) * uint64(apart), n
        t = uint64(cuda.blockIdx.y) * uint64(apart) + group
        if cuda.gridDim.y == 1:  # no other block reads near by, and long runs are faster
            run = (n + uint64(apart * rows_of_tile - 1)) // uint64(apart * rows_of_tile)
            t, step, stop = group * run, uint64(1), min(n, (group + uint64(1)) * run * uint64(rows_of_tile))
        row = t * uint64(rows_of_tile) + kind
        skew = (before + kind * pitch) % uint64(vector)
        at, down = (first + row) * pitch + column - skew, uint64(vector) * pitch
        leap = (step - uint64(1)) * uint64(loads) * down
        while row < stop and column < inner + skew:
            last = at + uint64(loads - 1) * down
            if row + uint64(rows_of_tile - vector) < n and at < size and last + uint64(vector) <= size:
                for k in range(loads):
                    read(x, at, tile, k * vector)
                    at += down
                fold(tile)
                for v in range(vector):
                    sums[v] = thread_type(combine(sums[v], tile[v]))
            else:
                own = (n - row + uint64(vector - 1)) // uint64(vector)  # rows of its own, from this one on
                last = at + (min(own, uint64(loads)) - uint64(1)) * down
                if at < size and last + uint64(vector) <= size:
                    for k in range(loads):  # past the last one it reads this one: no branch, so all loads overlap
                        read(x, at + uint64(k) * down if uint64(k) < own else at, tile, k * vector)
                    for k in range(1, loads):
                        for v in range(vector):
                            value = tile[k * vector + v]
                            tile[k * vector + v] = value if uint64(k) < own else thread_type(identity)
                    fold(tile)
                    for v in range(vector):
                        sums[v] = thread_type(combine(sums[v], tile[v]))
                else:
                    for k in range(loads):
                        for v in range(vector):
                            place = at + uint64(k) * down + uint64(v)
                            if uint64(k) < own and place < size:
                                sums[v] = thread_type(combine(sums[v], thread_type(transform(x[place]))))
                at += uint64(loads) * down
            at += leap
            row += step * uint64(rows_of_tile)
        for v in range(vector):
            totals[v] = accumulator(sums[v])

    return add_rows


@functools.cache
def make_narrow(operation, vector, loads, threads):
    """Make the kernel ``narrow``: a block reads its rows as one run of memory, in aligned accesses.

    The order of elements must not matter, and there are no gaps between rows. A block reads a multiple of ``inner``
    elements at a time, so each thread stays in the same columns. ``splits`` blocks share the rows.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    finish, held, places, parts = operation.finish, vector * loads, vector * threads, 8
    add_run, thread_type = make_add_run(operation, vector, loads), operation.thread_type

    @cuda.jit(device=True)
    def combine_rows(shared, rows, inner):
        """Combine ``rows`` rows of ``inner`` totals into the first."""
        while rows > uint32(1):
            kept = (rows + uint32(1)) // uint32(2)
            cuda.syncthreads()
            at = uint32(cuda.threadIdx.x)
            while at < (rows - kept) * inner:
                shared[at] = accumulator(combine(shared[at], shared[at + kept * inner]))
                at += uint32(cuda.blockDim.x)
            rows = kept
        cuda.syncthreads()

    @cuda.jit(max_registers=65536 // threads)
    def narrow(x, out, partials, counters, n, inner, splits, offset, count):
        shared = cuda.shared.array(places, accumulator)
        flag = cuda.shared.array(1, int32)
        tile = cuda.local.array(held, thread_type)
        few = cuda.local.array(parts, accumulator)
        tid, size, inner = uint32(cuda.threadIdx.x), uint32(cuda.blockDim.x), uint32(inner)
        o = uint64(cuda.blockIdx.x) // uint64(splits)
        part = uint64(cuda.blockIdx.x) - o * uint64(splits)
        first = o * uint64(n) * uint64(inner)
        before = (uint64(offset) + first) % uint64(vector)
        add_run(x, first, before, before + uint64(n) * uint64(inner), part, uint64(splits), tile)
        for v in range(vector):
            shared[tid * uint32(vector) + uint32(v)] = accumulator(tile[v])
        combine_rows(shared, size * uint32(vector) // inner, inner)
        column = tid
        while column < inner:
            total = shared[(column + uint32(before)) % inner]
            if splits == 1:
                out[o * uint64(inner) + uint64(column)] = finish(total, count)
            else:
                partials[(o * uint64(splits) + part) * uint64(inner) + uint64(column)] = total
            column += size
        if splits == 1 or not is_last(counters, o, splits, flag):
            return
        # Whole rows of partial results, as many as there are threads for.
        rows = size // inner
        at, stop = uint64(tid), uint64(splits) * uint64(inner)
        total = accumulator(identity)
        while tid < rows * inner and at < stop:
            for k in range(parts):
                has = at < stop
                value = partials[o * stop + (at if has else uint64(0))]
                few[k] = value if has else accumulator(identity)
                at += uint64(rows * inner)
            for k in range(parts):
                total = accumulator(combine(total, few[k]))
        shared[tid] = total
        combine_rows(shared, rows, inner)
        if tid < inner:
            out[o * uint64(inner) + uint64(tid)] = finish(shared[tid], count)

    return narrow


@functools.cache
def make_add_run(operation, vector, loads):
    """Make ``add_run(x, first, before, end, part, splits, tile)``: combine a thread's share of a run of memory.

    Places count from the aligned address ``before`` elements ahead of x[first], up to ``end``. The thread's totals for
    ``vector`` neighbouring places are left in ``tile``.
    """
    combine, transform, identity = operation.combine, operation.transform, operation.identity
    thread_type, read = operation.thread_type, make_read(operation, vector)
    fold = make_fold(operation, vector * loads, vector)

    @cuda.jit(device=True)
    def add_run(x, first, before, end, part, splits, tile):
        sums = cuda.local.array(vector, thread_type)
        for v in range(vector):
            sums[v] = thread_type(identity)
        down = uint64(cuda.blockDim.x) * uint64(vector)
        at = part * uint64(loads) * down + uint64(cuda.threadIdx.x) * uint64(vector)
        while at < end:
            if at >= before and at + uint64(loads - 1) * down + uint64(vector) <= end:
                for k in range(loads):
                    read(x, first + at - before + uint64(k) * down, tile, k * vector)
            else:
                for k in range(loads):
                    for v in range(vector):
                        place = at + uint64(k) * down + uint64(v)
                        has = place >= before and place < end
                        value = thread_type(transform(x[first + place - before if has else first]))
                        tile[k * vector + v] = value if has else thread_type(identity)
            fold(tile)
            for v in range(vector):
                sums[v] = thread_type(combine(sums[v], tile[v]))
            at += splits * uint64(loads) * down
        for v in range(vector):
            tile[v] = sums[v]

    return add_run


def rows_of_warp(width, height):
    """Rows that a warp reads at a time in a block of ``width`` x ``height`` threads."""
    return min(max(1, WARP // width), height)


@functools.cache
def make_add_tiles(operation, vector, width, height, loads):
    """Make ``add_tiles(x, first, n, inner, pitch, column, run, totals)``: combine a thread's share of its columns.

    The n rows begin at row ``first``. Only the last tile of them is checked (D3).
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    thread_type, held, deep = operation.thread_type, vector * loads, rows_of_warp(width, height)
    rows_of_tile, strands = deep * loads, height // deep
    read, gather = make_read(operation, vector), make_gather(operation, loads, vector, deep, width)
    share = make_share(operation)

    @cuda.jit(device=True)
    def add_tiles(x, first, n, inner, pitch, column, run, totals):
        tile = cuda.local.array(held, thread_type)
        sums = cuda.local.array(vector, thread_type)
        for v in range(vector):
            sums[v] = thread_type(identity)
        tiles, down = (n + uint64(rows_of_tile - 1)) // uint64(rows_of_tile), uint64(deep) * pitch
        strand = uint64(cuda.blockIdx.y) * uint64(strands) + uint64(cuda.threadIdx.y) // uint64(deep)
        t, step, stop = share(strand, uint64(cuda.gridDim.y) * uint64(strands), run, tiles)
        row = t * uint64(rows_of_tile) + uint64(cuda.threadIdx.y) % uint64(deep)
        # Threads past the last column read column 0; their totals are discarded.
        at = (first + row) * pitch + (column if column < inner else uint64(0))
        leap = (step - uint64(1)) * uint64(loads) * down
        while t < min(stop, n // uint64(rows_of_tile)):
            for k in range(loads):
                read(x, at, tile, k * vector)
                at += down
            gather(tile)
            for v in range(vector):
                sums[v] = thread_type(combine(sums[v], tile[v]))
            t += step
            at += leap
        if t < stop:
            row = t * uint64(rows_of_tile) + uint64(cuda.threadIdx.y) % uint64(deep)
            for i in range(held):
                tile[i] = thread_type(identity)
            for k in range(loads):
                if row < n:
                    read(x, at, tile, k * vector)
                row += uint64(deep)
                at += down
            gather(tile)
            for v in range(vector):
                sums[v] = thread_type(combine(sums[v], tile[v]))
        for v in range(vector):
            totals[v] = accumulator(sums[v])

    return add_tiles


@functools.cache
def make_add_column_partials(operation, vector, height):
    """Make ``add_partials(partials, o, outer, inner, column, totals)``: combine a thread's run of partial results."""
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    width = min(vector, 16 // operation.partial.itemsize)
    load = make_load(width)

    @cuda.jit(device=True)
    def add_partials(partials, o, outer, inner, column, totals):
        for v in range(vector):
            totals[v] = accumulator(identity)
        splits = uint64(cuda.gridDim.y)
        share = (splits + uint64(height - 1)) // uint64(height)
        t = uint64(cuda.threadIdx.y) * share
        stop = min(t + share, splits)
        while column < inner and t < stop:
            place = (t * outer + o) * inner + column
            for v in range(0, vector, width):
                values = load(partials, place + uint64(v))
                for w in range(width):
                    totals[v + w] = accumulator(combine(totals[v + w], values[w]))
            t += uint64(1)

    return add_partials


@functools.cache
def make_combine_columns(operation, vector, width, height):
    """Make ``combine_columns(totals)``: combine the totals of the same columns across a warp."""
    combine_lanes = make_combine_lanes(operation, rows_of_warp(width, height), width)

    @cuda.jit(device=True)
    def combine_columns(totals):
        for v in range(vector):
            totals[v] = combine_lanes(totals[v])

    return combine_columns


@functools.cache
def make_combine_strands(operation, vector, width, height):
    """Make ``combine_strands(totals, shared)``: combine the totals of the same columns across a block.

    Every thread must call it; those with threadIdx.y of 0 get the result.
    """
    combine, accumulator, deep = operation.combine, operation.accumulator, rows_of_warp(width, height)
    strands = height // deep

    @cuda.jit(device=True)
    def combine_strands(totals, shared):
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

    return combine_strands


# -- any strides -----------------------------------------------------------------------------------


class Walk(NamedTuple):
    """Where the kernel ``strided`` finds the elements of an array, and who takes them.

    Results are numbered over three kept axes (outer, between, inner), elements of a result over three reduced ones
    (slabs, rows, n). A team of threads takes 2**wide neighbouring results of inner, with 2**high threads for each.
    """

    pairs: np.uint32  # outer * between
    between: Divisor
    inner: np.uint32
    across: Divisor  # teams along inner
    rows: Divisor
    n: Divisor
    elements: np.uint32  # of a result
    share: np.uint32  # of them that a block takes
    wide: np.uint32
    high: np.uint32
    # Elements from one index to the next, of the input and of the output; and to the first result.
    x_steps: tuple[np.int64, ...]
    out_steps: tuple[np.int64, ...]
    out_first: np.int64
    steps: tuple[np.int64, ...]
    # How far a thread advances along rows and n, and in memory; what the ends of a slab and of a row add to that.
    on: tuple[np.uint32, np.uint32]
    advance: np.int64
    ends: tuple[np.int64, np.int64]


@functools.cache
def make_strided(operation, threads, loads):
    """Make the kernel ``strided``, for arrays of any strides: see `Walk`. The order of elements must not matter.

    Blocks along y share the elements of a result.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    thread_type, finish, parts = operation.thread_type, operation.finish, PARTIAL_LOADS
    take, fold = make_take(operation, 1), make_fold(operation, loads)

    @cuda.jit(device=True)
    def combine_team(total, shared, wide, high):
        """Combine what the threads of a team hold for the same result; its first row of threads gets it."""
        tid = uint32(cuda.threadIdx.x)
        shared[tid] = total
        step = uint32(1) << high >> uint32(1)
        while step > uint32(0):
            cuda.syncthreads()
            if tid >> wide & ((uint32(1) << high) - uint32(1)) < step:
                shared[tid] = accumulator(combine(shared[tid], shared[tid + (step << wide)]))
            step >>= uint32(1)
        cuda.syncthreads()
        return shared[tid]

    @cuda.jit(device=True)
    def carry(row, place, at, walk):
        """Go on from the end of a row, and of a slab."""
        if place >= walk.n.value:
            row, place, at = row + uint32(1), place - walk.n.value, at + walk.ends[1]
        if row >= walk.rows.value:
            row, at = row - walk.rows.value, at + walk.ends[0]
        return uint32(row), uint32(place), at

    @cuda.jit
    def strided(x, out, partials, counters, walk, count):
        shared = cuda.shared.array(threads, accumulator)
        flag = cuda.shared.array(1, int32)
        tile, few = cuda.local.array(loads, thread_type), cuda.local.array(parts, accumulator)
        tid, splits, split = uint32(cuda.threadIdx.x), uint32(cuda.gridDim.y), uint32(cuda.blockIdx.y)
        team = uint32(cuda.blockIdx.x) * (uint32(threads) >> (walk.wide + walk.high)) + (tid >> (walk.wide + walk.high))
        pair, block = divided(team, walk.across)
        o, b = divided(pair, walk.between)
        i = (block << walk.wide) + (tid & ((uint32(1) << walk.wide) - uint32(1)))
        me = tid >> walk.wide & ((uint32(1) << walk.high) - uint32(1))
        has_result = pair < walk.pairs and i < walk.inner
        base = int64(o) * walk.x_steps[0] + int64(b) * walk.x_steps[1] + int64(i) * walk.x_steps[2]
        element, stop = split * walk.share + me, min(split * walk.share + walk.share, walk.elements)
        row, place = divided(element, walk.n)
        slab, row = divided(row, walk.rows)
        at = base + int64(slab) * walk.steps[0] + int64(row) * walk.steps[1] + int64(place) * walk.steps[2]
        total, step = thread_type(identity), uint32(1) << walk.high
        stop = stop if has_result else uint32(0)
        while element < stop:
            element += uint32(loads) * step
            if element - step < stop and walk.on[1] == step and place + uint32(loads) * walk.on[1] <= walk.n.value:
                for k in range(loads):  # all in this row
                    tile[k] = thread_type(take(x, uint64(at + int64(k) * walk.advance)))
                place += uint32(loads) * walk.on[1]
                at += int64(loads) * walk.advance
                row, place, at = carry(row, place, at, walk)
            else:
                for k in range(loads):
                    has = element - uint32(loads - k) * step < stop
                    value = take(x, uint64(at if has else base))
                    tile[k] = value if has else thread_type(identity)
                    row, place, at = carry(row + walk.on[0], place + walk.on[1], at + walk.advance, walk)
            fold(tile)
            total = thread_type(combine(total, tile[0]))
        result = combine_team(accumulator(total), shared, walk.wide, walk.high)
        writes = has_result and me == uint32(0)
        to = uint64(
            walk.out_first + int64(o) * walk.out_steps[0] + int64(b) * walk.out_steps[1] + int64(i) * walk.out_steps[2]
        )
        if splits == 1:
            if writes:
                out[to] = finish(result, count)
            return
        first = (uint64(pair) * uint64(walk.inner) + uint64(i)) * uint64(splits)
        if writes:
            partials[first + uint64(split)] = result
        if is_last(counters, uint64(cuda.blockIdx.x), splits, flag):
            result, part = accumulator(identity), me
            while has_result and part < splits:
                for k in range(parts):
                    has = part < splits
                    few[k] = partials[first + uint64(part if has else me)]
                    few[k] = few[k] if has else accumulator(identity)
                    part += step
                for k in range(parts):
                    result = accumulator(combine(result, few[k]))
            result = combine_team(result, shared, walk.wide, walk.high)
            if writes:
                out[to] = finish(result, count)

    return strided
