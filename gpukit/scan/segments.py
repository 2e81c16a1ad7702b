"""Scans and reductions of segments: rows of different lengths, one after the other (CSR).

1. ``tiles``: a block scans a tile of elements, and begins again at each segment. All blocks have the same number of
   elements, however long the segments are. Each publishes what its last segment amounts to, and looks back at the tiles
   from the one on in which its first segment begins.
2. ``whole``: reduces segments in one launch. A few lanes, a warp or a block take a segment; blocks share a long one.
"""

import functools
from typing import Any

import numpy as np

from gpukit._host.arrays import (
    address_of,
    check_alike,
    check_apart,
    check_array,
    configure_quietly,
    dtype_of,
)
from gpukit._host.call import Problem, call
from gpukit.backend import cuda, float32, int32, int64, types, uint32, uint64
from gpukit.intrinsics import load_acquire
from gpukit.intrinsics.vectors import make_load, make_store
from gpukit.reduce.fast import make_add_row
from gpukit.reduce.primitives import is_last, make_combine_lanes, make_combine_warps, make_take_if
from gpukit.scan.api import checked_operand
from gpukit.scan.fast import FIRST, GROUP, count_words, draw, make_publish, make_receive, words_of
from gpukit.scan.primitives import FULL, make_fold_lanes
from warpstep.integers import ceil_div
from warpstep.limits import BANKS, WARP
from warpstep.values import check_flag

__all__ = ["make_look_back", "make_tiles", "make_whole", "segmented_reduce", "segmented_scan"]

#: Threads of a block, and elements of a thread.
THREADS, EACH = 256, 16
TILE = THREADS * EACH
#: With a word more for each thread's elements, the threads of a warp use different banks.
PITCH = EACH + 1
PADDED = THREADS * PITCH
#: Offsets that a thread has under way; and segments between those at which a search begins.
MARKS, PROBE = 8, 1024
#: Registers of a thread of ``tiles`` at most, blocks that a multiprocessor then has room for, and bytes of shared
#: memory of a block apart from the elements of its tile.
REGISTERS, RESIDENT, OTHER_SHARED = 64, 4, TILE + 2048
#: Elements of a segment that a block of ``whole`` reduces, at most, and elements of a block that shares a longer one.
#: Accesses that a lane has under way.
MAX_WHOLE, CHUNK, LOADS = 1 << 15, 1 << 14, 2
#: Lanes that reduce a segment, by its mean elements at most, and elements of each lane at most. Up to ``MAX_ALONE``, or
#: twice as many if there are ``MANY`` segments, a warp does.
FEW_LANES, LANE_ELEMENTS, MAX_ALONE, MANY = {12: 1, 24: 2, 48: 4, 96: 8}, 128, 512, 4096
#: Elements that a block of few lanes for each segment keeps in shared memory, and those that a thread has under way;
#: segments that such lanes take one after the other, if there are so many blocks for each multiprocessor all the same.
STAGED, STAGE_LOADS, SEVERAL, SEVERAL_BLOCKS = 4096, 16, 4, 4
#: Registers of its threads at most: with more, fewer blocks would be under way.
STAGING_REGISTERS = 32
#: Chunks in which a block looks for long segments, if the mean is short.
FEW_CHUNKS = 4


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
def find_segment(offsets, segments, n, element):
    """The last segment that begins at or before one of n elements. A warp divides what is left by 32 each time.

    Of many segments it first looks at some around the place where the segment is if all have one length.
    """
    low, count = int64(0), int64(segments)
    if count > int64(WARP * PROBE):
        first = int64(float32(element) / float32(n) * float32(segments)) - int64(WARP // 2 * PROBE)
        at = first + int64(PROBE) * int64(cuda.laneid)
        inside = at < int64(0) or at < count and int64(offsets[at if at < count else low]) <= element
        found = int64(cuda.popc(uint32(cuda.ballot_sync(FULL, inside))))
        begin = max(first + int64(PROBE) * (found - int64(1)), int64(0)) if found > int64(0) else int64(0)
        end = first + int64(PROBE) * found if found < int64(WARP) else count
        low, count = begin, max(min(end, count), begin + int64(1)) - begin
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
def make_look_back(operation):
    """Make ``look_back(words, tile, begin, tiles, launch, total)``: what tiles from ``begin`` up to ``tile`` amount to.

    The first warp of a block calls it. A tile amounts to its elements from the last segment on that begins in it. None
    begins between tile ``begin``, in which the segment at the end of these tiles does, and ``tile``. So the words for
    32 tiles, or 32 times as many, that lie between are what all their elements amount to.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    fold_lanes, publish, receive = make_fold_lanes(operation), make_publish(operation), make_receive(operation)
    each = words_of(operation)

    @cuda.jit(device=True)
    def fold(words, first, low, high, launch):
        """Combine the values with numbers from ``low`` to ``high``, the first of which is at ``first``."""
        prefix = accumulator(identity)
        while low < high:
            held, number = accumulator(identity), uint32(low + uint32(cuda.laneid))
            if number < high:
                at = first + uint64(number) * uint64(each)
                held = receive(words, at, launch, load_acquire(words, at), load_acquire(words, at + uint64(each - 1)))
            cuda.syncwarp()
            prefix = accumulator(combine(prefix, fold_lanes(held)))
            low = uint32(low + uint32(WARP))
        return prefix

    @cuda.jit(device=True)
    def look_back(words, tile, begin, tiles, launch, total):
        first, groups = uint64(FIRST), uint32(uint32(tiles + uint32(GROUP - 1)) // uint32(GROUP))
        first_group = first + uint64(tiles) * uint64(each)
        first_section = first_group + uint64(groups) * uint64(each)
        group, is_first_lane = uint32(tile // uint32(GROUP)), cuda.laneid == 0
        section = uint32(group // uint32(GROUP))
        if is_first_lane:
            publish(words, first + uint64(tile) * uint64(each), launch, total)
        if tile % uint32(GROUP) == uint32(GROUP - 1):
            of_group = accumulator(combine(fold(words, first, uint32(group * uint32(GROUP)), tile, launch), total))
            if is_first_lane:
                publish(words, first_group + uint64(group) * uint64(each), launch, of_group)
            if group % uint32(GROUP) == uint32(GROUP - 1):
                before = fold(words, first_group, uint32(section * uint32(GROUP)), group, launch)
                if is_first_lane:
                    at = first_section + uint64(section) * uint64(each)
                    publish(words, at, launch, accumulator(combine(before, of_group)))
        # Tiles up to a whole group, groups up to a whole section, sections, groups and tiles.
        whole_group = uint32(min(uint32(uint32(begin + uint32(GROUP - 1)) // uint32(GROUP)), group))
        whole_section = uint32(min(uint32(uint32(whole_group + uint32(GROUP - 1)) // uint32(GROUP)), section))
        prefix = accumulator(identity)
        for step in range(5):
            level, low, high = first, begin, tile
            if step == 0 and whole_group < group:
                high = uint32(whole_group * uint32(GROUP))
            elif step == 1:
                level, low, high = first_group, whole_group, group
                if whole_section < section:
                    high = uint32(whole_section * uint32(GROUP))
            elif step == 2:
                level, low, high = first_section, whole_section, section
            elif step == 3:
                level, low, high = first_group, uint32(section * uint32(GROUP)), group
                if whole_section >= section:
                    low = group
            elif step == 4:
                low = uint32(group * uint32(GROUP)) if whole_group < group else tile
            prefix = accumulator(combine(prefix, fold(words, level, low, high, launch)))
        return prefix

    return look_back


@functools.cache
def make_tiles(operation, exclusive):
    """Make the kernel ``tiles``: a block scans ``TILE`` elements, and begins again with each segment.

    If the blocks are ``resident``, all of them can run at once, and a block's index is its tile's.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    finish, scan_pairs, look_back = operation.finish, make_scan_pairs(operation, THREADS), make_look_back(operation)
    load, store = make_load(EACH), make_store(EACH, 1)

    @cuda.jit(device=True)
    def mark(offsets, begins, segment, segments, base, end):
        """Mark where segments begin among the elements from ``base`` to ``end``."""
        begin, places = base, cuda.local.array(MARKS, uint64)
        while begin < end and segment <= segments:
            for k in range(MARKS):
                begin = uint64(offsets[min(segment + uint64(k * THREADS), segments)])
                places[k] = begin
            for k in range(MARKS):
                if places[k] >= base and places[k] < end:
                    begins[places[k] - base] = types.uint8(1)
            segment += uint64(MARKS * THREADS)

    @cuda.jit(max_registers=REGISTERS)
    def tiles(x, offsets, out, words, n, segments, resident):
        held, begins = cuda.shared.array(PADDED, accumulator), cuda.shared.array(TILE, types.uint8, alignment=16)
        found, drawn = cuda.shared.array(2, uint64), cuda.shared.array(2, uint32)
        carried, own = cuda.shared.array(1, accumulator), cuda.local.array(EACH, accumulator)
        marks = cuda.local.array(EACH, types.uint8)
        tid, tile, alone = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x), cuda.gridDim.x == 1
        if not resident:
            draw(words, drawn)
            cuda.syncthreads()
            tile = drawn[0]
        base = uint64(tile) * uint64(TILE)
        size = uint32(min(uint64(TILE), uint64(n) - base))
        for k in range(EACH):  # past the end the last element again: nothing comes after it
            i = uint32(min(uint32(tid + uint32(k * THREADS)), uint32(size - uint32(1))))
            own[k] = accumulator(x[base + uint64(i)])
            marks[k] = types.uint8(0)
        store(begins, uint32(tid * uint32(EACH)), marks, 0)
        if tid < uint32(WARP):
            segment = find_segment(offsets, segments, n, int64(base))
            if tid == uint32(0):
                found[0], found[1] = uint64(segment), uint64(offsets[segment])
        for k in range(EACH):
            i = uint32(tid + uint32(k * THREADS))
            held[uint32(i + i // uint32(EACH))] = own[k]
        if resident and not alone:  # for the launch's number
            draw(words, drawn)
        cuda.syncthreads()
        mark(offsets, begins, found[0] + uint64(tid), uint64(segments), base, base + uint64(size))
        cuda.syncthreads()

        flags = load(begins, uint32(tid * uint32(EACH)))
        value, head = accumulator(identity), int32(0)
        for e in range(EACH):
            own[e], marks[e] = held[uint32(tid * uint32(PITCH) + uint32(e))], flags[e]
            value = own[e] if marks[e] else accumulator(combine(value, own[e]))
            head |= int32(marks[e])
        value, head, total, _ = scan_pairs(value, head)
        if not alone:
            if tid < uint32(WARP):
                begin = uint32(found[1] // uint64(TILE))
                prefix = look_back(words, tile, begin, uint32(cuda.gridDim.x), drawn[1], total)
                if tid == uint32(0):
                    carried[0] = prefix
            cuda.syncthreads()
            value = value if head else accumulator(combine(carried[0], value))
        for e in range(EACH):
            before = accumulator(identity) if marks[e] else value
            value = accumulator(combine(before, own[e]))
            held[uint32(tid * uint32(PITCH) + uint32(e))] = before if exclusive else value
        cuda.syncthreads()
        for k in range(EACH):
            i = uint32(tid + uint32(k * THREADS))
            if i < size:
                out[base + uint64(i)] = finish(held[uint32(i + i // uint32(EACH))], 1)

    return tiles


@functools.cache
def make_whole(operation, vector, lanes, several=1):
    """Make the kernel ``whole``: ``lanes`` lanes reduce a segment: a block, a warp, or a part of one.

    Segments of more than ``limit`` elements are left to the block, which takes them in any order. The first
    ``searches`` blocks share those of more than ``MAX_WHOLE`` elements, see `make_add_chunks`. The first element is
    ``offset`` elements after an aligned address.

    Fewer lanes than a warp take ``several`` segments one after the other. All elements of the block's segments are
    brought to shared memory first, if there are few enough: loads of neighbours are faster than those of lanes that
    each go along a segment of their own.
    """
    accumulator, finish, warps = operation.accumulator, operation.finish, THREADS // WARP
    add_share, combine_warps = make_add_share(operation, vector), make_combine_warps(operation, THREADS)
    add_chunks = make_add_chunks(operation, vector, FEW_CHUNKS if lanes < WARP else 1)
    stage, add_staged, add_few = make_stage(), make_add_staged(operation, lanes), make_add_few(operation, lanes)
    at_once, alone, staging = THREADS // lanes, lanes < THREADS, lanes < WARP
    each, places = at_once * several, STAGED + STAGED // BANKS if staging else 1

    @cuda.jit(device=True)
    def segment_at(offsets, segment, segments):
        """(Where a segment begins, its elements); none past the last one."""
        if segment >= segments:
            return uint64(0), uint64(0)
        start = uint64(offsets[segment])
        return start, uint64(offsets[segment + uint64(1)]) - start

    @cuda.jit(max_registers=STAGING_REGISTERS if staging else None)
    def whole(x, offsets, out, parts, counters, segments, limit, searches, offset):
        shared, staged = cuda.shared.array(WARP, accumulator), cuda.shared.array(places, x.dtype)
        long, count = cuda.shared.array(each, uint32), cuda.shared.array(1, uint32)
        starts, sizes = cuda.local.array(several, uint64), cuda.local.array(several, uint64)
        tid, segments, offset, limit = uint64(cuda.threadIdx.x), uint64(segments), uint64(offset), uint64(limit)
        if cuda.blockIdx.x < searches:
            add_chunks(x, offsets, out, parts, counters, segments, offset, shared)
            return
        first, warp, left = uint64(cuda.blockIdx.x - searches) * uint64(each), tid // uint64(WARP), uint32(1)
        if alone:
            count[0] = uint32(0)
            own, too_long = first + tid // uint64(lanes), int32(0)
            for r in range(several):
                starts[r], sizes[r] = segment_at(offsets, own + uint64(r * at_once), segments)
                too_long |= int32(sizes[r] > limit)
            if staging:
                low, high = uint64(offsets[first]), uint64(offsets[min(first + uint64(each), segments)])
                fits = high - low <= uint64(STAGED)
                if fits:
                    stage(x, low, uint32(high - low), staged)
            for r in range(several):
                few = sizes[r] if sizes[r] <= limit else uint64(0)
                if not staging:
                    total = add_share(x, starts[r], few, uint64(0), uint64(1), offset)
                elif fits:
                    total = add_staged(staged, uint32(starts[r] - low), uint32(few))
                else:
                    total = add_few(x, starts[r], few)
                if own + uint64(r * at_once) < segments and sizes[r] <= limit and tid % uint64(lanes) == uint64(0):
                    out[own + uint64(r * at_once)] = finish(total, 1)
            if not cuda.syncthreads_or(too_long):
                return
            for r in range(several):
                if sizes[r] > limit and tid % uint64(lanes) == uint64(0):
                    long[cuda.atomic.add(count, 0, uint32(1))] = uint32(own - first) + uint32(r * at_once)
            cuda.syncthreads()
            left = count[0]
        while left > uint32(0):
            left = uint32(left - uint32(1))
            own = first + (uint64(long[left]) if alone else uint64(0))
            start, n = segment_at(offsets, own, segments)
            if n <= uint64(MAX_WHOLE):
                total = combine_warps(add_share(x, start, n, warp, uint64(warps), offset), shared)
                if tid == uint64(0):
                    out[own] = finish(total, 1)

    return whole


@functools.cache
def make_stage():
    """Make ``stage(x, low, n, staged)``: copy n elements to shared memory; all threads of a block must call it.

    A pad follows every 32 elements, so that segments of 8, 16 or 32 begin in different banks.
    """

    @cuda.jit(device=True)
    def stage(x, low, n, staged):
        i, held = uint32(cuda.threadIdx.x), cuda.local.array(STAGE_LOADS, x.dtype)
        while i < n:
            for k in range(STAGE_LOADS):  # with predicates, so that all overlap
                at = uint32(i + uint32(k * THREADS))
                held[k] = x.dtype.type(0)
                if at < n:
                    held[k] = x[low + uint64(at)]
            for k in range(STAGE_LOADS):
                at = uint32(i + uint32(k * THREADS))
                if at < n:
                    staged[uint32(at + at // uint32(BANKS))] = held[k]
            i = uint32(i + uint32(STAGE_LOADS * THREADS))
        cuda.syncthreads()

    return stage


@functools.cache
def make_add_staged(operation, lanes):
    """Make ``add_staged(staged, start, n)``: what ``lanes`` lanes add up of n staged elements; the first gets it.

    The order of elements must not matter unless there is one lane.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    combine_lanes, loads = make_combine_lanes(operation, lanes), 2 * LOADS

    @cuda.jit(device=True)
    def add_staged(staged, start, n):
        total, i = accumulator(identity), uint32(cuda.threadIdx.x) % uint32(lanes)
        held = cuda.local.array(loads, accumulator)
        while i < n:
            for k in range(loads):
                at = uint32(start + (uint32(i + uint32(k * lanes)) if uint32(i + uint32(k * lanes)) < n else i))
                value = accumulator(staged[uint32(at + at // uint32(BANKS))])
                held[k] = value if uint32(i + uint32(k * lanes)) < n else accumulator(identity)
            for k in range(loads):
                total = accumulator(combine(total, held[k]))
            i = uint32(i + uint32(loads * lanes))
        return combine_lanes(total)

    return add_staged


@functools.cache
def make_add_few(operation, lanes):
    """Make ``add_few(x, start, n)``: what ``lanes`` lanes add up of n elements; the first gets it.

    The order of elements must not matter unless there is one lane.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    take_if, combine_lanes = make_take_if(operation, 1), make_combine_lanes(operation, lanes)

    @cuda.jit(device=True)
    def add_few(x, start, n):
        total, i = accumulator(identity), uint32(cuda.threadIdx.x) % uint32(lanes)
        held = cuda.local.array(LOADS, accumulator)
        while i < uint32(n):
            for k in range(LOADS):
                at = uint32(i + uint32(k * lanes))
                held[k] = take_if(x, start + uint64(at), at < uint32(n))
            for k in range(LOADS):
                total = accumulator(combine(total, held[k]))
            i = uint32(i + uint32(LOADS * lanes))
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
def make_add_chunks(operation, vector, chunks):
    """Make ``add_chunks(x, offsets, out, parts, counters, segments, offset, shared)``: a block's share of the segments
    of more than ``MAX_WHOLE`` elements.

    A block has ``chunks`` chunks of ``CHUNK`` elements, at most four: two warps look for the segments of each. A long
    segment goes on beyond a chunk in which it begins, so a chunk has parts of two at most: of the one that its first
    element is in, and of the one that its last element is in. The last block of a segment to finish combines the parts.
    """
    combine, accumulator, identity = operation.combine, operation.accumulator, operation.identity
    finish, warps, ends = operation.finish, THREADS // WARP, 2 * chunks
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
    def add_chunks(x, offsets, out, parts, counters, segments, offset, shared):
        found, flag = cuda.shared.array(ends, int64), cuda.shared.array(1, int32)
        tid, warp, n = uint64(cuda.threadIdx.x), uint64(cuda.threadIdx.x) // uint64(WARP), uint64(offsets[segments])
        before = uint64(cuda.blockIdx.x) * uint64(chunks)
        low = (before + warp // uint64(2)) * uint64(CHUNK)
        if warp < uint64(ends) and low < n:
            last = min(low + uint64(CHUNK), n) - uint64(1)
            found[warp] = find_segment(offsets, segments, n, int64(last if warp % uint64(2) else low))
        cuda.syncthreads()
        for part in range(ends):
            chunk, end = before + uint64(part // 2), part % 2
            low = chunk * uint64(CHUNK)
            if low < n:
                segment, high = found[part], min(low + uint64(CHUNK), n)
                start, stop = uint64(offsets[segment]), uint64(offsets[segment + int64(1)])
                if stop - start > uint64(MAX_WHOLE) and (end == 0 or segment != found[part - end]):
                    begin = max(start, low)
                    size = min(stop, high) - begin
                    total = combine_warps(add_share(x, begin, size, warp, uint64(warps), offset), shared)
                    if tid == uint64(0):
                        parts[chunk * uint64(2) + uint64(end)] = total
                    first = start // uint64(CHUNK)
                    count = (stop - uint64(1)) // uint64(CHUNK) - first + uint64(1)
                    if is_last(counters, first, count, flag):
                        total = combine_warps(combine_lanes(add_parts(parts, start, first, count)), shared)
                        if tid == uint64(0):
                            out[segment] = finish(total, 1)

    return add_chunks


# -- host functions -------------------------------------------------------------------------------------------------


def segmented_reduce(x: Any, offsets: Any, op: Any = "sum", *, out: Any = None, stream: Any = None) -> Any:
    """Reduce each segment of an array: result i is that of ``x[offsets[i]:offsets[i + 1]]``.

    The offsets are those of a CSR matrix, and of CUB's ``DeviceSegmentedReduce``. An empty segment gives the identity,
    unlike with ``np.add.reduceat``. The same bits come out in every run on the same device.

    Parameters
    ----------
    x : ndarray or device array of one dimension
        Integers or floats, also bools for sums and products.
    offsets : array of integers, of the same kind, shape (segments + 1,)
        From 0 to the length of ``x``, never decreasing. On the device this is not checked.
    op : str or tuple of (function, number)
        As for `scan`.
    out : array of shape (segments,), optional
        Of the result's dtype, of the same kind as ``x``. On the device it must share memory with neither.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

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
    check_array("offsets", offsets, 1)
    dtype = dtype_of(offsets)
    if dtype.kind not in "iu" or not dtype.isnative:
        raise TypeError(f"offsets has dtype {dtype}; it must be an integer, in native order")
    check_alike("offsets", offsets, "x", x, dtype=dtype)
    if offsets.shape[0] == 0:
        raise ValueError("offsets has no elements; it must have one more than there are segments")
    if isinstance(offsets, np.ndarray) and not cuda.is_cuda_array(offsets):
        falls = np.flatnonzero(offsets[1:] < offsets[:-1])
        if falls.size or offsets[0] != 0 or offsets[-1] != x.shape[0]:
            first, last = (falls[0], falls[0] + 1) if falls.size else (0, len(offsets) - 1)
            course = f"offsets[{first}] is {offsets[first]} and offsets[{last}] is {offsets[last]}"
            raise ValueError(f"{course}; offsets must rise from 0 to {x.shape[0]}, the length of x")


def _segmented(problem: Problem):
    """The launches of ``segmented_reduce`` and ``segmented_scan``."""
    (x, offsets), (op, part, exclusive) = problem.inputs, problem.settings
    x, operation = checked_operand(x, op, 1)
    _check_offsets(x, offsets)
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
    """The launch of ``segmented_scan``."""
    n, tiles, device = x.size, ceil_div(x.size, TILE), cuda.get_current_device()
    shared = PADDED * operation.partial.itemsize + OTHER_SHARED
    resident = min(RESIDENT, device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR // shared) * device.MULTIPROCESSOR_COUNT
    words = problem.work.flags(2 * count_words(operation, 1, tiles)).view(np.uint64)
    launch = configure_quietly(make_tiles(operation, exclusive), tiles, THREADS, problem.stream)
    return [(launch, (x, offsets, out, words, n, offsets.size - 1, tiles <= resident))]


def _reduction(problem, operation, x, offsets, out):
    """The launch of ``segmented_reduce``."""
    n, segments, itemsize = x.size, out.size, x.dtype.itemsize
    vector, offset, lanes, limit, several = 16 // itemsize, address_of(x) % 16 // itemsize, THREADS, MAX_WHOLE, 1
    if n <= MAX_ALONE * segments:
        few = [k for most, k in FEW_LANES.items() if n <= most * segments and (k == 1 or operation.commutative)]
        lanes = min(few, default=WARP)
        limit = min(LANE_ELEMENTS * lanes, MAX_ALONE)
    elif n <= 2 * MAX_ALONE * segments and segments >= MANY:
        lanes, limit = WARP, 8 * MAX_ALONE
    if lanes < WARP:
        fit, wanted = STAGED * segments * lanes, SEVERAL_BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT
        while (
            several < SEVERAL
            and 3 * several * n * THREADS <= fit
            and segments * lanes >= 2 * several * THREADS * wanted
        ):
            several *= 2
    chunks = ceil_div(n, CHUNK) if n > MAX_WHOLE else 0
    searches = ceil_div(chunks, FEW_CHUNKS if lanes < WARP else 1)
    blocks = searches + ceil_div(segments, THREADS // lanes * several)
    launch = configure_quietly(make_whole(operation, vector, lanes, several), blocks, THREADS, problem.stream)
    work = problem.work.take("parts", 2 * chunks, operation.partial), problem.work.zeros(max(chunks, 1))
    return [(launch, (x, offsets, out, *work, segments, limit, searches, offset))]
