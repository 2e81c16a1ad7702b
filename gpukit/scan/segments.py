"""Scans and reductions of segments: rows of different lengths, one after the other (CSR).

1. ``tiles``: a block scans a tile of elements, and begins again at each segment. All blocks have the same number of
   elements, however long the segments are. It runs twice: first for what each tile leaves to those after it.
2. ``carry``: one block finds what the tiles before each tile leave to it.
3. ``whole``: reduces segments in one launch. A few lanes, a warp or a block take a segment; blocks share a long one.
"""

import functools
from typing import Any

import numpy as np

from gpukit import operators
from gpukit._host.arrays import (
    address_of,
    check_alike,
    check_apart,
    check_array,
    check_numbers,
    configure_quietly,
    dtype_of,
)
from gpukit._host.call import Problem, call
from gpukit.backend import cuda, int32, int64, types, uint32, uint64
from gpukit.reduce.fast import make_add_row
from gpukit.reduce.primitives import is_last, make_combine_lanes, make_combine_warps
from gpukit.scan.api import OPERATORS
from gpukit.scan.primitives import FULL
from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.values import check_flag

__all__ = ["make_carry", "make_tiles", "make_whole", "segmented_reduce", "segmented_scan"]

#: Threads of a block, and elements of a thread.
THREADS, EACH = 256, 8
TILE = THREADS * EACH
#: With a word more for each thread's elements, the threads of a warp use different banks.
PITCH = EACH + 1
PADDED = THREADS * PITCH
#: Threads of the block that finds the carries.
CARRIERS = 512
#: Elements of a segment that a block of ``whole`` reduces, at most, and elements of a block that shares a longer one.
#: Accesses that a lane has under way.
MAX_WHOLE, CHUNK, LOADS = 1 << 15, 1 << 14, 2
#: Lanes that reduce a segment, by its mean elements at most. Up to ``MAX_ALONE``, or twice as many if there are
#: ``MANY`` segments, a warp does.
FEW_LANES, MAX_ALONE, MANY = {16: 4, 64: 8}, 512, 4096


@functools.cache
def make_scan_pairs(operation, threads):
    """Make ``scan_pairs(value, head)``: what the threads before this one leave to it, and what the block leaves.

    A thread's value counts from its last segment that begins, if one does (``head`` is 1). Returns (value, head) before
    the thread, and (value, head) of all threads.
    """
    combine, accumulator, shuffle_type = operation.combine, operation.accumulator, operation.shuffle_type
    identity, warps = operation.identity, threads // WARP

    @cuda.jit(device=True)
    def scan_pairs(value, head):
        values, heads = cuda.shared.array(warps, accumulator), cuda.shared.array(warps, int32)
        warp, lane, distance = cuda.threadIdx.x // WARP, cuda.laneid, 1
        while distance < WARP:
            before = accumulator(cuda.shfl_up_sync(FULL, shuffle_type(value), distance))
            before_head = cuda.shfl_up_sync(FULL, head, distance)
            if lane >= distance:
                value = value if head else accumulator(combine(before, value))
                head |= before_head
            distance *= 2
        if lane == WARP - 1:
            values[warp], heads[warp] = value, head
        before, before_head = (
            accumulator(cuda.shfl_up_sync(FULL, shuffle_type(value), 1)),
            cuda.shfl_up_sync(FULL, head, 1),
        )
        if lane == 0:
            before, before_head = accumulator(identity), int32(0)
        cuda.syncthreads()
        prefix, prefix_head = accumulator(identity), int32(0)
        total, total_head = accumulator(identity), int32(0)
        for w in range(warps):
            if w == warp:
                prefix, prefix_head = total, total_head
            total = values[w] if heads[w] else accumulator(combine(total, values[w]))
            total_head |= heads[w]
        before = before if before_head else accumulator(combine(prefix, before))
        cuda.syncthreads()  # the shared arrays may be written again
        return before, before_head | prefix_head, total, total_head

    return scan_pairs


@cuda.jit(device=True)
def find_segment(offsets, segments, element):
    """The last segment that begins at or before an element. A warp divides what is left by 32 each time."""
    low, count = int64(0), int64(segments)
    while count > int64(1):
        step = (count + int64(WARP - 1)) // int64(WARP)
        at = low + step * int64(cuda.laneid)
        inside = at < low + count and int64(offsets[at if at < low + count else low]) <= element
        steps = cuda.popc(uint32(cuda.ballot_sync(FULL, inside)))
        last = low + count
        low += step * int64(steps - 1)
        count = min(step, last - low)
    return low


@functools.cache
def make_tiles(operation, part, exclusive=False):
    """Make the kernel ``tiles``: a block scans ``TILE`` elements, and begins again with each segment.

    ``part`` is "amounts" for what a tile leaves to those after it, "scan" to write the scan, with what others have
    left, and "alone" to write the scan of the only tile.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    finish, scan_pairs = operation.finish, make_scan_pairs(operation, THREADS)

    @cuda.jit
    def tiles(x, offsets, out, totals, heads, carries, n, segments):
        held, begins = cuda.shared.array(PADDED, accumulator), cuda.shared.array(TILE, types.uint8)
        found, own = cuda.shared.array(1, int64), cuda.local.array(EACH, accumulator)
        tid, base, n = cuda.threadIdx.x, int64(cuda.blockIdx.x) * int64(TILE), int64(n)
        size = int32(min(int64(TILE), n - base))
        for i in range(tid, TILE, THREADS):
            begins[i] = types.uint8(0)
            held[i + i // EACH] = accumulator(x[base + int64(i)]) if i < size else accumulator(identity)
        if tid < WARP:
            first = find_segment(offsets, segments, base)
            if tid == 0:
                found[0] = first
        cuda.syncthreads()
        segment = found[0] + int64(tid)
        while segment < int64(segments) and int64(offsets[segment]) < base + int64(size):
            if int64(offsets[segment]) >= base:
                begins[int64(offsets[segment]) - base] = types.uint8(1)
            segment += int64(THREADS)
        cuda.syncthreads()

        value, head = accumulator(identity), int32(0)
        for e in range(EACH):
            own[e] = held[tid * PITCH + e]
            if begins[tid * EACH + e]:
                value, head = own[e], int32(1)
            else:
                value = accumulator(combine(value, own[e]))
        value, head, total, total_head = scan_pairs(value, head)
        if part == "amounts":
            if tid == 0:
                totals[cuda.blockIdx.x], heads[cuda.blockIdx.x] = total, total_head
            return
        if part == "scan" and not head:
            value = accumulator(combine(carries[cuda.blockIdx.x], value))
        for e in range(EACH):
            if begins[tid * EACH + e]:
                before, value = accumulator(identity), own[e]
            else:
                before, value = value, accumulator(combine(value, own[e]))
            held[tid * PITCH + e] = before if exclusive else value
        cuda.syncthreads()
        for i in range(tid, size, THREADS):
            out[base + int64(i)] = finish(held[i + i // EACH], 1)

    return tiles


@functools.cache
def make_carry(operation):
    """Make the kernel ``carry``, of one block: what all tiles before each tile leave to it."""
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    scan_pairs = make_scan_pairs(operation, CARRIERS)

    @cuda.jit
    def carry(totals, heads, carries, tiles):
        own, flags = cuda.local.array(EACH, accumulator), cuda.local.array(EACH, int32)
        running, base = accumulator(identity), int32(0)
        while base < tiles:
            value, head = accumulator(identity), int32(0)
            for e in range(EACH):
                at = base + cuda.threadIdx.x * EACH + e
                inside = at < tiles
                own[e] = totals[at if inside else 0] if inside else accumulator(identity)
                flags[e] = heads[at if inside else 0] if inside else int32(0)
            for e in range(EACH):
                value = own[e] if flags[e] else accumulator(combine(value, own[e]))
                head |= flags[e]
            value, head, total, total_head = scan_pairs(value, head)
            value = value if head else accumulator(combine(running, value))
            running = total if total_head else accumulator(combine(running, total))
            for e in range(EACH):
                at = base + cuda.threadIdx.x * EACH + e
                if at < tiles:
                    carries[at] = value
                value = own[e] if flags[e] else accumulator(combine(value, own[e]))
            base += int32(CARRIERS * EACH)

    return carry


@functools.cache
def make_whole(operation, vector, lanes):
    """Make the kernel ``whole``: ``lanes`` lanes reduce a segment: a block, a warp, or a part of one.

    Segments of more than ``limit`` elements are left to the block. The first ``chunks`` blocks share those of more than
    ``MAX_WHOLE`` elements, see `make_add_chunk`. The first element is ``offset`` elements after an aligned address.
    """
    accumulator, finish, warps = operation.accumulator, operation.finish, THREADS // WARP
    add_share, combine_warps = make_add_share(operation, vector), make_combine_warps(operation, THREADS)
    add_chunk, add_few = make_add_chunk(operation, vector), make_add_few(operation, lanes)
    each, alone = THREADS // lanes, lanes < THREADS

    @cuda.jit(device=True)
    def segment_at(offsets, segment, segments):
        """(Where a segment begins, its elements); none past the last one."""
        if segment >= segments:
            return uint64(0), uint64(0)
        start = uint64(offsets[segment])
        return start, uint64(offsets[segment + uint64(1)]) - start

    @cuda.jit
    def whole(x, offsets, out, parts, counters, segments, limit, chunks, offset):
        shared = cuda.shared.array(WARP, accumulator)
        tid, segments, offset, limit = uint64(cuda.threadIdx.x), uint64(segments), uint64(offset), uint64(limit)
        if cuda.blockIdx.x < chunks:
            add_chunk(x, offsets, out, parts, counters, segments, offset, shared)
            return
        first, warp = uint64(cuda.blockIdx.x - chunks) * uint64(each), tid // uint64(WARP)
        if alone:
            own = first + tid // uint64(lanes)
            start, n = segment_at(offsets, own, segments)
            few = n if n <= limit else uint64(0)
            if lanes == WARP:
                total = add_share(x, start, few, uint64(0), uint64(1), offset)
            else:
                total = add_few(x, start, few)
            if own < segments and n <= limit and tid % uint64(lanes) == uint64(0):
                out[own] = finish(total, 1)
            if not cuda.syncthreads_or(int32(n > limit)):
                return
        for w in range(each):
            start, n = segment_at(offsets, first + uint64(w), segments)
            if n <= uint64(MAX_WHOLE) and (not alone or n > limit):
                total = combine_warps(add_share(x, start, n, warp, uint64(warps), offset), shared)
                if tid == uint64(0):
                    out[first + uint64(w)] = finish(total, 1)

    return whole


@functools.cache
def make_add_few(operation, lanes):
    """Make ``add_few(x, start, n)``: what ``lanes`` lanes add up of n elements; the first gets it.

    The order of elements must not matter.
    """
    combine, transform, identity = operation.combine, operation.transform, operation.identity
    accumulator, combine_lanes = operation.accumulator, make_combine_lanes(operation, lanes)

    @cuda.jit(device=True)
    def add_few(x, start, n):
        total, i = accumulator(identity), uint64(cuda.threadIdx.x) % uint64(lanes)
        held = cuda.local.array(LOADS, accumulator)
        while i < n:
            for k in range(LOADS):  # out-of-range lanes read the first element: no branch, so all loads overlap
                inside = i + uint64(k * lanes) < n
                value = accumulator(transform(x[start + (i + uint64(k * lanes) if inside else uint64(0))]))
                held[k] = value if inside else accumulator(identity)
            for k in range(LOADS):
                total = accumulator(combine(total, held[k]))
            i += uint64(LOADS * lanes)
        return combine_lanes(total)

    return add_few


@functools.cache
def make_add_share(operation, vector):
    """Make ``add_share(x, start, n, sharer, sharers, offset)``: what a warp adds up of n elements that warps share.

    Its first lane gets the result.
    """
    add_row, tile, commutative = make_add_row(operation, vector, LOADS), WARP * vector * LOADS, operation.commutative
    combine_lanes = make_combine_lanes(operation)

    @cuda.jit(device=True)
    def add_share(x, start, n, sharer, sharers, offset):
        tiles = (n + (offset + start) % uint64(vector) + uint64(tile - 1)) // uint64(tile)
        total = add_row(x, start, n, sharer, sharers, (tiles + sharers - uint64(1)) // sharers, offset)
        return combine_lanes(total) if commutative else total

    return add_share


@functools.cache
def make_add_chunk(operation, vector):
    """Make ``add_chunk(x, offsets, out, parts, counters, segments, offset, shared)``: a block's share of long segments.

    A block has ``CHUNK`` elements. A segment of more than ``MAX_WHOLE`` elements goes on beyond a chunk in which it
    begins, so a chunk has parts of two at most: of the one that its first element is in, and of the one that its last
    element is in. The last block of a segment to finish combines the parts.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    finish, warps = operation.finish, THREADS // WARP
    add_share, combine_warps = make_add_share(operation, vector), make_combine_warps(operation, THREADS)
    combine_lanes = make_combine_lanes(operation)

    @cuda.jit(device=True)
    def add_parts(parts, start, first, count):
        """Combine a thread's run of the parts of a segment that begins in chunk ``first``."""
        each = (count + uint64(THREADS - 1)) // uint64(THREADS)
        part, total = uint64(cuda.threadIdx.x) * each, accumulator(identity)
        stop = min(part + each, count)
        while part < stop:
            inside = part == uint64(0) and start > first * uint64(CHUNK)
            total = accumulator(combine(total, parts[(first + part) * uint64(2) + uint64(1 if inside else 0)]))
            part += uint64(1)
        return total

    @cuda.jit(device=True)
    def add_chunk(x, offsets, out, parts, counters, segments, offset, shared):
        found, flag = cuda.shared.array(2, int64), cuda.shared.array(1, int32)
        tid, chunk, warp = uint64(cuda.threadIdx.x), uint64(cuda.blockIdx.x), uint64(cuda.threadIdx.x) // uint64(WARP)
        low, n = chunk * uint64(CHUNK), uint64(offsets[segments])
        high = min(low + uint64(CHUNK), n)
        if warp < uint64(2) and low < n:
            found[warp] = find_segment(offsets, segments, int64(low if warp == uint64(0) else high - uint64(1)))
        cuda.syncthreads()
        for end in range(2 if low < n else 0):
            segment = found[end]
            start, stop = uint64(offsets[segment]), uint64(offsets[segment + int64(1)])
            if stop - start > uint64(MAX_WHOLE) and (end == 0 or segment != found[0]):
                begin = max(start, low)
                total = combine_warps(add_share(x, begin, min(stop, high) - begin, warp, uint64(warps), offset), shared)
                if tid == uint64(0):
                    parts[chunk * uint64(2) + uint64(end)] = total
                first = start // uint64(CHUNK)
                count = (stop - uint64(1)) // uint64(CHUNK) - first + uint64(1)
                if is_last(counters, first, count, flag):
                    total = combine_warps(combine_lanes(add_parts(parts, start, first, count)), shared)
                    if tid == uint64(0):
                        out[segment] = finish(total, 1)

    return add_chunk


# -- host functions -------------------------------------------------------------------------------------------------


def segmented_reduce(x: Any, offsets: Any, op: Any = "sum", *, out: Any = None, stream: Any = None) -> Any:
    """Reduce each segment of an array: result i is that of ``x[offsets[i]:offsets[i + 1]]``.

    The offsets are those of a CSR matrix, and of CUB's ``DeviceSegmentedReduce``. An empty segment gives the identity,
    unlike with ``np.add.reduceat``. The same bits come out in every run on the same device.

    Parameters
    ----------
    x : ndarray or device array of one dimension
        Integers or floats.
    offsets : array of integers, of the same kind, shape (segments + 1,)
        From 0 to the length of ``x``, never decreasing. On the device this is not checked.
    op : str or tuple of (function, number)
        As for `scan`.
    out : array of shape (segments,), optional
        Of the result's dtype, of the same kind as ``x``. On the device it must share memory with neither.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (segments,)
        ``out`` if that was given, otherwise new, of the library of ``x``. The dtype is that of `scan`.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind. Nothing was launched.

    Examples
    --------
    >>> segmented_reduce(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 4]))
    array([3, 0, 7])
    """
    return call(_segmented, (x, offsets), out, stream, (op, "reduce", False))


def segmented_scan(
    x: Any, offsets: Any, op: Any = "sum", exclusive: bool = False, *, out: Any = None, stream: Any = None
) -> Any:
    """Scan each segment of an array: the scan begins again at each offset.

    Parameters
    ----------
    x, offsets, op, stream
        As for `segmented_reduce`.
    exclusive : bool
        Leave out the element itself: the first result of a segment is the identity.
    out : array of the length of ``x``, optional
        Of the result's dtype, of the same kind as ``x``. On the device it must share memory with neither.

    Returns
    -------
    ndarray or device array
        ``out`` if that was given, otherwise new, of the length and the library of ``x``.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> segmented_scan(np.array([1, 2, 3, 4]), np.array([0, 2, 4]))
    array([1, 3, 3, 7])
    """
    return call(_segmented, (x, offsets), out, stream, (op, "scan", exclusive))


def _check_offsets(x, offsets):
    check_numbers("x", x, 1)
    check_array("offsets", offsets, 1)
    dtype = dtype_of(offsets)
    if dtype.kind not in "iu" or not dtype.isnative:
        raise TypeError(f"offsets has dtype {dtype}; it must be an integer, in native order")
    check_alike("offsets", offsets, "x", x, dtype=dtype)
    if offsets.shape[0] == 0:
        raise ValueError("offsets has no elements; it must have one more than there are segments")
    if isinstance(offsets, np.ndarray) and not cuda.is_cuda_array(offsets):
        rising = bool((offsets[1:] >= offsets[:-1]).all())
        if not rising or offsets[0] != 0 or offsets[-1] != x.shape[0]:
            course = f"goes from {offsets[0]} to {offsets[-1]}" if rising else "falls somewhere"
            raise ValueError(f"offsets {course}; it must rise from 0 to {x.shape[0]}, the length of x")


def _segmented(problem: Problem):
    """The launches of ``segmented_reduce`` and ``segmented_scan``."""
    (x, offsets), (op, part, exclusive) = problem.inputs, problem.settings
    _check_offsets(x, offsets)
    operation, _ = operators.checked_operations(op, dtype_of(x), OPERATORS)
    n, segments, exclusive = x.shape[0], offsets.shape[0] - 1, check_flag("exclusive", exclusive)
    shape = (segments if part == "reduce" else n,)
    if problem.out is not None:
        check_array("out", problem.out, 1)
        check_alike("out", problem.out, "x", x, shape, operation.result)
        check_apart("out", problem.out, x=x, offsets=offsets)
    out = problem.output(shape, operation.result)
    if out.size == 0:
        return []
    make = _reduction if part == "reduce" else functools.partial(_scan, exclusive=exclusive)
    return make(problem, operation, problem.on_device(x), problem.on_device(offsets), out)


def _scan(problem, operation, x, offsets, out, exclusive):
    """The launches of ``segmented_scan``."""
    n, segments, tiles = x.size, offsets.size - 1, ceil_div(x.size, TILE)
    totals, carries = (problem.work.take(name, tiles, operation.partial) for name in ("totals", "carries"))
    heads = problem.work.take("heads", tiles, np.int32)
    arguments = x, offsets, out, totals, heads, carries, n, segments

    def launch(part, *how):
        return configure_quietly(make_tiles(operation, part, *how), tiles, THREADS, problem.stream), arguments

    if tiles == 1:
        return [launch("alone", exclusive)]
    carry = configure_quietly(make_carry(operation), 1, CARRIERS, problem.stream), (totals, heads, carries, tiles)
    return [launch("amounts"), carry, launch("scan", exclusive)]


def _reduction(problem, operation, x, offsets, out):
    """The launch of ``segmented_reduce``."""
    n, segments, itemsize = x.size, out.size, x.dtype.itemsize
    vector, offset, lanes, limit = 16 // itemsize, address_of(x) % 16 // itemsize, THREADS, MAX_WHOLE
    if n <= MAX_ALONE * segments:
        few = [lanes for most, lanes in FEW_LANES.items() if n <= most * segments and operation.commutative]
        lanes, limit = min(few, default=WARP), MAX_ALONE
    elif n <= 2 * MAX_ALONE * segments and segments >= MANY:
        lanes, limit = WARP, 8 * MAX_ALONE
    chunks = ceil_div(n, CHUNK) if n > MAX_WHOLE else 0
    blocks = chunks + ceil_div(segments, THREADS // lanes)
    launch = configure_quietly(make_whole(operation, vector, lanes), blocks, THREADS, problem.stream)
    work = problem.work.take("parts", 2 * chunks, operation.partial), problem.work.zeros(max(chunks, 1))
    return [(launch, (x, offsets, out, *work, segments, limit, chunks, offset))]
