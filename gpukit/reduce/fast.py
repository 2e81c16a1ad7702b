"""Kernels that reduce an array seen as (outer, n, inner) over its middle axis, at the speed of memory.

1. ``rows``: inner is 1 and n is large. Warps share a row; in ``warp_rows`` each takes one alone. ``short``: n is not so
   large, and there are few rows.
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
    "make_short",
    "make_skewed",
    "make_strided",
    "make_warp_rows",
    "rows_of_warp",
]

#: Strands of ``columns`` for which the loop that combines their totals is unrolled, at most: for more, it is code that
#: takes longer to fetch than to loop.
UNROLLED_STRANDS = 4
#: Partial results that a thread of the last block of ``strided`` has under way.
PARTIAL_LOADS = 4


# -- rows ------------------------------------------------------------------------------------------


@functools.cache
def make_rows(operation, vector, threads, loads, alone):
    """Make the kernel ``rows``: ``splits`` blocks share a row, or a block takes it ``alone``, and warps share its tiles
    (see `make_share`).

    Row 0 begins ``offset`` elements after an aligned address, and ``pitch`` elements before the next one.
    """
    accumulator, finish, commutative = operation.accumulator, operation.finish, operation.commutative
    add_row, add_partials = make_add_row(operation, vector, loads), make_add_row_partials(operation, threads)
    warps = threads // WARP
    combine_lanes, combine_warps = make_combine_lanes(operation), make_combine_warps(operation, threads)

    @cuda.jit
    def rows(x, out, partials, counters, n, pitch, run, offset, count):
        shared = cuda.shared.array(WARP, accumulator)
        flag = cuda.shared.array(1, int32)
        tid, n, row = uint64(cuda.threadIdx.x), uint64(n), uint64(cuda.blockIdx.x)
        part, splits = (uint64(0), uint64(1)) if alone else (uint64(cuda.blockIdx.y), uint64(cuda.gridDim.y))
        sharer, sharers = part * uint64(warps) + tid // uint64(WARP), splits * uint64(warps)
        total = add_row(x, row * uint64(pitch), n, sharer, sharers, uint64(run), uint64(offset))
        again = alone
        while True:  # partial results go through the same instructions: others would have to be fetched first
            if commutative or again and not alone:
                total = combine_lanes(total)
            total = combine_warps(total, shared)
            if again:
                break
            if tid == uint64(0):
                partials[row * splits + part] = total
            if not is_last(counters, row, splits, flag):
                return
            total, again = add_partials(partials, row * splits, splits), True
        if tid == uint64(0):
            out[row] = finish(total, count)

    return rows


@functools.cache
def make_short(operation, threads, loads):
    """Make the kernel ``short``: a block takes a row of at most threads * loads elements, one after the other.

    It has little code, which is fetched soon. Each thread takes neighbours, so the elements stay in order.
    """
    thread_type, accumulator, finish = operation.thread_type, operation.accumulator, operation.finish
    take_if, fold = make_take_if(operation, 1), make_fold(operation, loads)
    combine_lanes, combine_warps = make_combine_lanes(operation), make_combine_warps(operation, threads)

    @cuda.jit(max_registers=64)
    def short(x, out, n, pitch, count):
        shared, tile = cuda.shared.array(WARP, accumulator), cuda.local.array(loads, thread_type)
        i, n = uint32(uint32(cuda.threadIdx.x) * uint32(loads)), uint32(n)
        at = uint64(cuda.blockIdx.x) * uint64(pitch) + uint64(i)
        for k in range(loads):
            tile[k] = take_if(x, at + uint64(k), uint32(i + uint32(k)) < n)
        fold(tile)
        total = combine_warps(combine_lanes(accumulator(tile[0])), shared)
        if i == uint32(0):
            out[cuda.blockIdx.x] = finish(total, count)

    return short


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
def make_columns(operation, vector, width, height, loads, long):
    """Make the kernel ``columns`` (D1): blocks tile the columns along x and the rows along y; z is the outer axis.

    A block has ``width`` x ``height`` threads, a thread ``vector`` neighbouring columns. A strand is one warp or
    several that read the same rows; it takes some of the tiles of rows (see `make_share`).
    """
    accumulator, finish, commutative = operation.accumulator, operation.finish, operation.commutative
    per_block, strands = width * vector, height // rows_of_warp(width, height)
    add_tiles = make_add_tiles(operation, vector, width, height, loads, long)
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
        again = False
        while True:  # partial results go through the same instructions: others would have to be fetched first
            if commutative or again:
                combine_columns(totals)
            combine_strands(totals, shared)
            if again or cuda.gridDim.y == 1:
                break
            if writes:
                for v in range(vector):
                    place = uint64(cuda.blockIdx.y) * outer + o
                    partials[place * inner + column + uint64(v)] = totals[v]
            counter = o * uint64(cuda.gridDim.x) + uint64(cuda.blockIdx.x)
            if not is_last(counters, counter, cuda.gridDim.y, flag):
                return
            add_partials(partials, o, outer, inner, column, totals)
            again = True
        if writes:
            for v in range(vector):
                out[o * inner + column + uint64(v)] = finish(totals[v], count)

    return columns


@functools.cache
def make_skewed(operation, vector, width, height, loads, long):
    """Make the kernel ``skewed``: ``columns`` for rows that begin at any address, as rows of odd length do.

    The order of elements must not matter. A thread takes every ``vector``-th row: all of these begin equally far from
    an aligned address, so its accesses are aligned. Other threads hold the same columns at other offsets; they meet in
    shared memory, where the first columns of all threads come first, then the second: threads write without conflicts,
    and thanks to a pad they read without. A block reads ``width * vector`` columns, and owns the first
    ``(width - 1) * vector``.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    transform, thread_type, finish = operation.transform, operation.thread_type, operation.finish
    owned, threads = (width - 1) * vector, width * height
    add_rows = make_add_rows(operation, vector, height, loads, long)
    padded = width + 128 // operation.partial.itemsize // vector
    per_row = vector * padded

    @cuda.jit(max_registers=64 if threads > 512 else None)
    def skewed(x, out, partials, counters, outer, n, inner, pitch, offset, count):
        shared = cuda.shared.array((height, per_row), accumulator)
        flag = cuda.shared.array(1, int32)
        totals = cuda.local.array(vector, accumulator)
        outer, n, inner, pitch = uint64(outer), uint64(n), uint64(inner), uint64(pitch)
        tx, ty, o = uint64(cuda.threadIdx.x), uint64(cuda.threadIdx.y), uint64(cuda.blockIdx.z)
        left = uint64(cuda.blockIdx.x) * uint64(owned)
        before = uint64(offset) + o * n * pitch
        size, head = (outer * n - uint64(1)) * pitch + inner, uint64(-int64(offset)) % uint64(vector)
        tail = (uint64(offset) + size) % uint64(vector)
        add_rows(x, o * n, size, n, inner, pitch, left + tx * uint64(vector), before, head, totals)
        # 32 bits are enough in a block. Partial results go through the same instructions, which are there already.
        mine = uint32(min(inner - left, uint64(owned))) if left < inner else uint32(0)
        skew, step, again = uint32(before), uint32(pitch), False
        while True:
            for v in range(vector):
                shared[ty, uint64(v * padded) + tx] = totals[v]
            cuda.syncthreads()
            column = uint32(cuda.threadIdx.y * width + cuda.threadIdx.x)
            while column < mine:
                total = accumulator(identity)
                for r in range(cuda.blockDim.y):
                    at = uint32(column + uint32(skew + uint32(r) * step) % uint32(vector))
                    place = uint32(uint32(at % uint32(vector)) * uint32(padded)) + at // uint32(vector)
                    total = accumulator(combine(total, shared[r, place]))
                c = left + uint64(column)
                # What no whole access has of the array's first row and of its last one.
                if not again and cuda.blockIdx.y == 0 and o == uint64(0) and c < head:
                    total = accumulator(combine(total, accumulator(thread_type(transform(x[c])))))
                if not again and cuda.blockIdx.y == 0 and o + uint64(1) == outer and c + tail >= inner:
                    value = accumulator(thread_type(transform(x[size - inner + c])))
                    total = accumulator(combine(total, value))
                if again or cuda.gridDim.y == 1:
                    out[o * inner + c] = finish(total, count)
                else:
                    partials[(uint64(cuda.blockIdx.y) * outer + o) * inner + c] = total
                column += uint32(threads)
            counter = o * uint64(cuda.gridDim.x) + uint64(cuda.blockIdx.x)
            if again or cuda.gridDim.y == 1 or not is_last(counters, counter, cuda.gridDim.y, flag):
                return
            for v in range(vector):
                totals[v] = accumulator(identity)
            part = ty
            while part < uint64(cuda.gridDim.y):
                for v in range(vector):
                    c = tx * uint64(vector) + uint64(v)
                    at = (part * outer + o) * inner + left + (c if c < uint64(mine) else uint64(0))
                    totals[v] = accumulator(combine(totals[v], partials[at]))
                part += uint64(height)
            skew, step, again = uint32(0), uint32(0), True

    return skewed


@functools.cache
def make_add_rows(operation, vector, height, loads, long):
    """Make ``add_rows(x, first, size, n, inner, pitch, column, before, head, totals)``: combine a thread's share of its
    rows.

    The n rows begin at row ``first``, ``before`` elements after an aligned address. In aligned rows the thread's
    columns begin at ``column``, in others before it by as much as these are off. Totals outside of a row are discarded.
    Of the array, which has ``size`` elements, only whole accesses are made; the first begins at ``head``. ``long``: see
    `make_add_tiles`.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    thread_type, held, apart = operation.thread_type, vector * loads, height // vector
    rows_of_tile = vector * loads
    read, fold = make_read(operation, vector), make_fold(operation, held, vector)

    @cuda.jit(device=True)
    def add_rows(x, first, size, n, inner, pitch, column, before, head, totals):
        tile = cuda.local.array(held, thread_type)
        sums = cuda.local.array(vector, thread_type)
        for v in range(vector):
            sums[v] = thread_type(identity)
        kind, group = uint64(cuda.threadIdx.y) % uint64(vector), uint64(cuda.threadIdx.y) // uint64(vector)
        t, step, stop = uint64(cuda.blockIdx.y) * uint64(apart) + group, uint64(cuda.gridDim.y) * uint64(apart), n
        if cuda.gridDim.y == 1:  # no other block reads near by, and long runs are faster
            run = (n + uint64(apart * rows_of_tile - 1)) // uint64(apart * rows_of_tile)
            t, step, stop = group * run, uint64(1), min(n, (group + uint64(1)) * run * uint64(rows_of_tile))
        row = t * uint64(rows_of_tile) + kind
        skew = (before + kind * pitch) % uint64(vector)
        at, down = (first + row) * pitch + column - skew, uint64(vector) * pitch
        while row < stop and column < inner + skew:
            last = at + uint64(loads - 1) * down
            if long and row + uint64(rows_of_tile - vector) < n and at < size and last + uint64(vector) <= size:
                for k in range(loads):
                    read(x, at + uint64(k) * down, tile, k * vector)
            else:
                for k in range(loads):
                    place = at + uint64(k) * down
                    has = row + uint64(k * vector) < n and place < size and place + uint64(vector) <= size
                    read(x, place if has else head, tile, k * vector)
                    for v in range(vector):
                        value = tile[k * vector + v]
                        tile[k * vector + v] = value if has else thread_type(identity)
            fold(tile)
            for v in range(vector):
                sums[v] = thread_type(combine(sums[v], tile[v]))
            at += step * uint64(loads) * down
            row += step * uint64(rows_of_tile)
        for v in range(vector):
            totals[v] = accumulator(sums[v])

    return add_rows


@functools.cache
def make_narrow(operation, vector, loads, threads, long):
    """Make the kernel ``narrow``: a block reads its rows as one run of memory, in aligned accesses.

    The order of elements must not matter, and there are no gaps between rows. A block reads a multiple of ``inner``
    elements at a time, so each thread stays in the same columns. ``splits`` blocks share the rows.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    transform, finish, held, places, parts = operation.transform, operation.finish, vector * loads, vector * threads, 8
    width = min(vector, 4, 16 // operation.partial.itemsize)
    store = make_store(width, operation.partial.itemsize)
    add_run, thread_type = make_add_run(operation, vector, loads, long), operation.thread_type

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
    def narrow(x, out, partials, counters, n, inner, offset, count):
        shared = cuda.shared.array(places, accumulator, alignment=16)
        flag = cuda.shared.array(1, int32)
        tile = cuda.local.array(held, thread_type)
        totals, few = cuda.local.array(vector, accumulator), cuda.local.array(parts, accumulator)
        tid, size, inner = uint32(cuda.threadIdx.x), uint32(cuda.blockDim.x), uint32(inner)
        o, part, splits = uint64(cuda.blockIdx.x), uint32(cuda.blockIdx.y), uint32(cuda.gridDim.y)
        first = o * uint64(n) * uint64(inner)
        # Places count from the aligned address before the first element. Ends that are no whole accesses come later.
        before = (uint64(offset) + first) % uint64(vector)
        low, end = uint64(vector) if before else uint64(0), before + uint64(n) * uint64(inner)
        add_run(x, first - before, low, end, uint64(part), uint64(splits), tile)
        for v in range(vector):
            totals[v] = accumulator(tile[v])
        for v in range(0, vector, width):
            store(shared, uint32(tid * uint32(vector) + uint32(v)), totals, v)
        if part == uint32(0):
            head, tail = uint32(low - before), uint32(end % uint64(vector))
            at, place = uint64(tid), uint32(tid + uint32(before))
            if tid >= head:
                at = end - before - uint64(tail) + uint64(tid - head)
                place = uint32(place + uint32(vector) * inner - tail - head)
            has, place = tid < head + tail, uint32(place % uint32(size * uint32(vector)))
            value = accumulator(thread_type(transform(x[first + (at if has else uint64(0))])))
            for side in range(2):  # both may have an element for the same place
                cuda.syncthreads()
                if has and (tid < head) == (side == 0):
                    shared[place] = accumulator(combine(shared[place], value))
        combine_rows(shared, size * uint32(vector) // inner, inner)
        column = tid
        while column < inner:
            total = shared[(column + uint32(before)) % inner]
            if splits == uint32(1):
                out[o * uint64(inner) + uint64(column)] = finish(total, count)
            else:
                partials[(o * uint64(splits) + uint64(part)) * uint64(inner) + uint64(column)] = total
            column += size
        if splits == uint32(1) or not is_last(counters, o, splits, flag):
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
def make_add_run(operation, vector, loads, long):
    """Make ``add_run(x, first, low, end, part, splits, tile)``: combine a thread's share of a run of memory.

    Places count from the aligned address that x[first] is place 0 of, from ``low`` to ``end``; whole accesses between
    these are taken. The thread's totals for ``vector`` neighbouring places are left in ``tile``. ``long``: see
    `make_add_tiles`.
    """
    combine, identity, thread_type = operation.combine, operation.identity, operation.thread_type
    read, fold = make_read(operation, vector), make_fold(operation, vector * loads, vector)

    @cuda.jit(device=True)
    def add_run(x, first, low, end, part, splits, tile):
        sums = cuda.local.array(vector, thread_type)
        for v in range(vector):
            sums[v] = thread_type(identity)
        down = uint64(cuda.blockDim.x) * uint64(vector)
        at = part * uint64(loads) * down + uint64(cuda.threadIdx.x) * uint64(vector)
        while at + uint64(vector) <= end:
            if long and at >= low and at + uint64(loads - 1) * down + uint64(vector) <= end:
                for k in range(loads):
                    read(x, first + at + uint64(k) * down, tile, k * vector)
            else:
                for k in range(loads):
                    place = at + uint64(k) * down
                    has = place >= low and place + uint64(vector) <= end
                    read(x, first + (place if has else low), tile, k * vector)
                    for v in range(vector):
                        value = tile[k * vector + v]
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
def make_add_tiles(operation, vector, width, height, loads, long):
    """Make ``add_tiles(x, first, n, inner, pitch, column, run, totals)``: combine a thread's share of its columns.

    The n rows begin at row ``first``. Every tile is checked as only the last one needs to be, unless the share is
    ``long``: less code is fetched sooner.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    thread_type, held, deep = operation.thread_type, vector * loads, rows_of_warp(width, height)
    rows_of_tile, strands, read = deep * loads, height // deep, make_read(operation, vector)
    gather, share = make_gather(operation, loads, vector, deep, width), make_share(operation)

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
        top = first * pitch + (column if column < inner else uint64(0))
        at = top + row * pitch
        while t < stop:
            if long and (t + uint64(1)) * uint64(rows_of_tile) <= n:
                for k in range(loads):
                    read(x, at + uint64(k) * down, tile, k * vector)
            else:
                left = uint32(min(n - row, uint64(rows_of_tile))) if row < n else uint32(0)
                for k in range(loads):
                    has = uint32(k * deep) < left
                    read(x, at + uint64(k) * down if has else top, tile, k * vector)
                    for v in range(vector):
                        value = tile[k * vector + v]
                        tile[k * vector + v] = value if has else thread_type(identity)
            gather(tile)
            for v in range(vector):
                sums[v] = thread_type(combine(sums[v], tile[v]))
            t += step
            row += step * uint64(rows_of_tile)
            at += step * uint64(loads) * down
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
    most = height // deep
    unrolled = most <= UNROLLED_STRANDS

    @cuda.jit(device=True)
    def combine_strands(totals, shared):
        tx, strand = cuda.threadIdx.x, cuda.threadIdx.y // deep
        strands = most if unrolled else cuda.blockDim.y // deep
        first = cuda.threadIdx.y % deep == 0
        step = 1
        while step < strands:
            if first and strand & (2 * step - 1) == step:
                for v in range(vector):
                    shared[strand, v * width + tx] = totals[v]
            cuda.syncthreads()
            if first and strand & (2 * step - 1) == 0:
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
def make_strided(operation, threads, loads, alone, line, once):
    """Make the kernel ``strided``, for arrays of any strides: see `Walk`. The order of elements must not matter.

    Each thread takes results ``alone``, or a team takes them; blocks along y share the elements of a result. With
    ``line`` there is one reduced axis, with ``once`` a thread has at most ``loads`` elements of a result.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    thread_type, finish, parts = operation.thread_type, operation.finish, PARTIAL_LOADS
    take, fold = make_take(operation, 1), make_fold(operation, loads)

    @cuda.jit(device=True)
    def combine_team(total, shared, wide, high):
        """Combine what the threads of a team hold for the same result; its first row of threads gets it."""
        tid = uint32(cuda.threadIdx.x)
        shared[tid] = total
        me, step = uint32(tid >> wide) & uint32(high - uint32(1)), uint32(high >> uint32(1))
        while step > uint32(0):
            cuda.syncthreads()
            if me < step:
                shared[tid] = accumulator(combine(shared[tid], shared[uint32(tid + uint32(step << wide))]))
            step = uint32(step >> uint32(1))
        cuda.syncthreads()
        return shared[tid]

    @cuda.jit(device=True)
    def carry(row, place, at, walk):
        """Go on from the end of a row, and of a slab."""
        if place >= walk.n.value:
            row, place, at = uint32(row + uint32(1)), uint32(place - walk.n.value), at + walk.ends[1]
        if row >= walk.rows.value:
            row, at = uint32(row - walk.rows.value), at + walk.ends[0]
        return row, place, at

    @cuda.jit
    def strided(x, out, partials, counters, walk, count):
        shared = cuda.shared.array(threads, accumulator)
        flag = cuda.shared.array(1, int32)
        tile, few = cuda.local.array(loads, thread_type), cuda.local.array(parts, accumulator)
        tid, splits, split = uint32(cuda.threadIdx.x), uint32(cuda.gridDim.y), uint32(cuda.blockIdx.y)
        # Each sum is made a number of 32 bits again.
        both, step = uint32(walk.wide + walk.high), uint32(1) if alone else uint32(uint32(1) << walk.high)
        team = uint32(uint32(cuda.blockIdx.x) * uint32(uint32(threads) >> both) + uint32(tid >> both))
        pair, block = divided(team, walk.across)
        o, b = divided(pair, walk.between)
        i = uint32(uint32(block << walk.wide) + uint32(tid & uint32(uint32(uint32(1) << walk.wide) - uint32(1))))
        me = uint32(0) if alone else uint32(uint32(tid >> walk.wide) & uint32(step - uint32(1)))
        has_result = pair < walk.pairs and i < walk.inner
        base = int64(o) * walk.x_steps[0] + int64(b) * walk.x_steps[1] + int64(i) * walk.x_steps[2]
        element, stop = uint32(0), walk.elements
        if not alone:
            element = uint32(uint32(split * walk.share) + me)
            stop = min(uint32(uint32(split + uint32(1)) * walk.share), walk.elements)
        row, place, at = uint32(0), uint32(0), base + int64(element) * walk.steps[2]
        if not line:
            row, place = divided(element, walk.n)
            slab, row = divided(row, walk.rows)
            at = base + int64(slab) * walk.steps[0] + int64(row) * walk.steps[1] + int64(place) * walk.steps[2]
        total, stop = thread_type(identity), stop if has_result else uint32(0)
        while element < stop:
            if line:
                for k in range(loads):
                    has = uint32(element + uint32(uint32(k) * step)) < stop
                    value = take(x, uint64(at + int64(k) * walk.advance if has else base))
                    tile[k] = value if has else thread_type(identity)
                at += int64(loads) * walk.advance
            elif (
                uint32(element + uint32(uint32(loads - 1) * step)) < stop
                and walk.on[1] == step
                and uint32(place + uint32(uint32(loads) * step)) <= walk.n.value
            ):
                for k in range(loads):  # all in this row
                    tile[k] = thread_type(take(x, uint64(at + int64(k) * walk.advance)))
                place = uint32(place + uint32(uint32(loads) * step))
                at += int64(loads) * walk.advance
                row, place, at = carry(row, place, at, walk)
            else:
                for k in range(loads):
                    has = uint32(element + uint32(uint32(k) * step)) < stop
                    value = take(x, uint64(at if has else base))
                    tile[k] = value if has else thread_type(identity)
                    row, place = uint32(row + walk.on[0]), uint32(place + walk.on[1])
                    row, place, at = carry(row, place, at + walk.advance, walk)
            element = uint32(element + uint32(uint32(loads) * step))
            fold(tile)
            total = thread_type(combine(total, tile[0]))
            if once:
                break
        result, writes, again = accumulator(total), has_result and me == uint32(0), alone or splits == 1
        to = uint64(
            walk.out_first + int64(o) * walk.out_steps[0] + int64(b) * walk.out_steps[1] + int64(i) * walk.out_steps[2]
        )
        first = (uint64(pair) * uint64(walk.inner) + uint64(i)) * uint64(splits)
        while True:  # partial results go through the same instructions: others would have to be fetched first
            if not alone:
                result = combine_team(result, shared, walk.wide, step)
            if again:
                break
            if writes:
                partials[first + uint64(split)] = result
            if not is_last(counters, uint64(cuda.blockIdx.x), splits, flag):
                return
            result, part, again = accumulator(identity), me, True
            while has_result and part < splits:
                for k in range(parts):
                    has = part < splits
                    few[k] = partials[first + uint64(part if has else me)]
                    few[k] = few[k] if has else accumulator(identity)
                    part = uint32(part + step)
                for k in range(parts):
                    result = accumulator(combine(result, few[k]))
        if writes:
            out[to] = finish(result, count)

    return strided
