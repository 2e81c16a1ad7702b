"""Three kernels that reduce a contiguous array seen as (outer, n, inner) over its middle axis.

``rows``: inner is 1 and n is large; blocks share a row. ``groups``: inner is 1 and n is small; a warp takes one row or
several. ``columns``: inner is more than 1; neighbouring threads take neighbouring columns. All read n * outer * inner
elements once. Where several blocks share a result, the last one to finish combines what they found, always in the
same order: nothing is added atomically, so the bits are the same in every run.
"""

import functools

from numba.cuda import int32

from gpukit.backend import cuda
from gpukit.reduce.primitives import WARP, block_combiner, folder, is_last, lane_combiner, reader, whole

__all__ = ["columns", "groups", "rows"]


@functools.cache
def rows(operation, vector, threads, loads):
    """Kernel: block b takes every ``splits``-th tile of row b // splits, beginning with tile b % splits.

    A tile is ``threads * vector * loads`` elements: each thread has ``loads`` accesses of ``vector`` elements under way
    before it combines the first. Whole tiles are read without a check, the rest of a row with one (D3).
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    inside, finish = operation.inside, operation.finish
    held, step = vector * loads, threads * vector
    tile_size = threads * held
    read, read_one = reader(operation, vector), reader(operation, 1)
    fold, across_block = folder(operation, held), block_combiner(operation, threads)

    @cuda.jit
    def rows(x, out, partials, counters, n, splits, count):
        shared = cuda.shared.array(WARP, accumulator)
        flag = cuda.shared.array(1, int32)
        tile = cuda.local.array(held, inside)
        tid, n, splits = whole(cuda.threadIdx.x), whole(n), whole(splits)
        row = whole(cuda.blockIdx.x) // splits
        part = whole(cuda.blockIdx.x) - row * splits
        first, tiles = row * n, n // whole(tile_size)
        total, t = accumulator(identity), part
        while t < tiles:
            at = first + t * whole(tile_size) + tid * whole(vector)
            for k in range(loads):
                read(x, at + whole(k * step), tile, k * vector)
            fold(tile)
            total = accumulator(combine(total, accumulator(tile[0])))
            t += splits
        if t == tiles:  # the rest of the row is this block's
            at = tiles * whole(tile_size) + tid
            for k in range(held):
                tile[k] = inside(identity)
                if at + whole(k * threads) < n:
                    read_one(x, first + at + whole(k * threads), tile, k)
            fold(tile)
            total = accumulator(combine(total, accumulator(tile[0])))
        total = across_block(total, shared)
        if splits == whole(1):
            if tid == whole(0):
                out[row] = finish(total, count)
            return
        if tid == whole(0):
            partials[row * splits + part] = total
        if is_last(counters, row, splits, flag):
            total, t = accumulator(identity), tid
            while t < splits:
                total = accumulator(combine(total, partials[row * splits + t]))
                t += whole(threads)
            total = across_block(total, shared)
            if tid == whole(0):
                out[row] = finish(total, count)

    return rows


@functools.cache
def groups(operation, vector, lanes, loads, several, threads):
    """Kernel: each ``lanes`` neighbouring lanes take ``several`` rows of at most lanes * vector * loads elements.

    They hold all of a row in registers. Neighbouring groups take neighbouring rows, so a warp reads without gaps.
    """
    accumulator, identity = operation.accumulator, operation.identity
    inside, finish = operation.inside, operation.finish
    held, rows_of_block = vector * loads * several, threads // lanes * several
    read, fold = reader(operation, vector, several), folder(operation, held, several)
    across_lanes = lane_combiner(operation, lanes)

    @cuda.jit
    def groups(x, out, outer, n, count):
        tile = cuda.local.array(held, inside)
        tid, outer, n = whole(cuda.threadIdx.x), whole(outer), whole(n)
        lane = tid % whole(lanes)
        first = whole(cuda.blockIdx.x) * whole(rows_of_block) + tid // whole(lanes)
        for i in range(held):
            tile[i] = inside(identity)
        for r in range(several):
            row = first + whole(r * (threads // lanes))
            for k in range(loads):
                at = (lane + whole(k * lanes)) * whole(vector)
                if row < outer and at < n:
                    read(x, row * n + at, tile, k * vector * several + r)
        fold(tile)
        for r in range(several):
            row = first + whole(r * (threads // lanes))
            total = across_lanes(accumulator(tile[r]))
            if lane == whole(0) and row < outer:
                out[row] = finish(total, count)

    return groups


@functools.cache
def columns(operation, vector, width, height, loads):
    """Kernel of D1: blocks of ``width`` x ``height`` threads tile the columns along x, share the n rows along y, and
    step through the outer axis along z.

    A thread takes ``vector`` neighbouring columns, and a block every gridDim.y-th tile of rows.
    """
    accumulator, finish, per_block = operation.accumulator, operation.finish, width * vector
    add_tiles, add_partials = tile_adder(operation, vector, height, loads), partial_adder(operation, vector, height)
    across_rows = height_combiner(operation, vector, width, height)

    @cuda.jit
    def columns(x, out, partials, counters, outer, n, inner, count):
        shared = cuda.shared.array((height, per_block), accumulator)
        flag = cuda.shared.array(1, int32)
        totals = cuda.local.array(vector, accumulator)
        outer, n, inner = whole(outer), whole(n), whole(inner)
        column = (whole(cuda.blockIdx.x) * whole(width) + whole(cuda.threadIdx.x)) * whole(vector)
        writes = cuda.threadIdx.y == 0 and column < inner
        o = whole(cuda.blockIdx.z)
        while o < outer:
            add_tiles(x, o * n, n, inner, column, totals)
            across_rows(totals, shared)
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
                    across_rows(totals, shared)
            if last and writes:
                for v in range(vector):
                    out[o * inner + column + whole(v)] = finish(totals[v], count)
            o += whole(cuda.gridDim.z)

    return columns


@functools.cache
def tile_adder(operation, vector, height, loads):
    """Device function ``add_tiles(x, first, n, inner, column, totals)``: combine what a thread finds in its columns.

    A tile is ``height * loads`` of the n rows that begin at row ``first``. Whole tiles are read without a check of the
    rows, the rest with one (D3).
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    inside, held, rows_of_tile = operation.inside, vector * loads, height * loads
    read, fold = reader(operation, vector), folder(operation, held, vector)

    @cuda.jit(device=True)
    def add_tiles(x, first, n, inner, column, totals):
        tile = cuda.local.array(held, inside)
        for v in range(vector):
            totals[v] = accumulator(identity)
        t, tiles = whole(cuda.blockIdx.y), n // whole(rows_of_tile)
        while column < inner and t <= tiles:
            row = t * whole(rows_of_tile) + whole(cuda.threadIdx.y)
            at = (first + row) * inner + column
            if t < tiles:
                for k in range(loads):
                    read(x, at + whole(k * height) * inner, tile, k * vector)
            else:
                for i in range(held):
                    tile[i] = inside(identity)
                for k in range(loads):
                    if row + whole(k * height) < n:
                        read(x, at + whole(k * height) * inner, tile, k * vector)
            fold(tile)
            for v in range(vector):
                totals[v] = accumulator(combine(totals[v], accumulator(tile[v])))
            t += whole(cuda.gridDim.y)

    return add_tiles


@functools.cache
def partial_adder(operation, vector, height):
    """Device function ``add_partials(partials, o, outer, inner, column, totals)``: combine what blocks have left."""
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity

    @cuda.jit(device=True)
    def add_partials(partials, o, outer, inner, column, totals):
        for v in range(vector):
            totals[v] = accumulator(identity)
        t = whole(cuda.threadIdx.y)
        while column < inner and t < whole(cuda.gridDim.y):
            place = (t * outer + o) * inner + column
            for v in range(vector):
                totals[v] = accumulator(combine(totals[v], partials[place + whole(v)]))
            t += whole(height)

    return add_partials


@functools.cache
def height_combiner(operation, vector, width, height):
    """Device function ``across_rows(totals, shared)``: combine what the ``height`` threads of a column have found.

    Every thread must call it; those with threadIdx.y of 0 get the result.
    """
    combine, accumulator = operation.combine, operation.accumulator

    @cuda.jit(device=True)
    def across_rows(totals, shared):
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        half = height // 2
        while half > 0:
            if half <= ty < 2 * half:
                for v in range(vector):
                    shared[ty, v * width + tx] = totals[v]
            cuda.syncthreads()
            if ty < half:
                for v in range(vector):
                    totals[v] = accumulator(combine(totals[v], shared[ty + half, v * width + tx]))
            half //= 2
        cuda.syncthreads()  # shared may be used again

    return across_rows
