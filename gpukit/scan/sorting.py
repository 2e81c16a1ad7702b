"""Radix sort: least significant digit first, one pass over memory for each digit of 8 bits.

1. ``count_digits``: how often each digit occurs in the keys, for all passes at once.
2. ``place_digits``: where the keys of each digit begin: a scan of the counts.
3. ``sweep``: one pass. A block ranks the keys of a tile by their digit, looks back at the tiles before it for their
   counts of each digit, and moves its keys. Keys of one digit keep their order, so the sort is stable. A pass in which
   all keys of a row have the same digit is left out.

The bits of a key are moved as they are. What is sorted is an unsigned number made from them (``make_ordered``): the
sign bit of an integer is flipped, a negative float is complemented. -0.0 equals 0.0, and NaN comes last, as in NumPy.
"""

import functools
import math
from typing import Any

import numpy as np

from gpukit._host.arrays import (
    address_of,
    as_words,
    check_alike,
    check_apart,
    check_array,
    check_axis,
    check_numbers,
    configure_quietly,
    device_array_of,
)
from gpukit._host.call import Problem, call
from gpukit._host.transfers import copy_launches
from gpukit.backend import cuda, int32, int64, types, uint32, uint64
from gpukit.intrinsics import allow_dynamic_shared, load_acquire, match_byte
from gpukit.intrinsics.vectors import make_load
from gpukit.operators import make_operations
from gpukit.scan.fast import NAP
from gpukit.scan.primitives import block_scan, make_fold_lanes, make_scan_lanes
from warpstep.integers import ceil_div, next_power_of_two
from warpstep.limits import LINE, WARP
from warpstep.values import check_flag

__all__ = ["argsort", "make_count_digits", "make_ordered", "make_rank", "make_sweep", "place_digits", "sort"]

#: Digits have 8 bits.
BITS, DIGITS = 8, 256
#: Elements of a thread in a sweep, and its registers at most by the threads of a block: two or three blocks fit.
EACH, REGISTERS = 16, {512: 64, 256: 80}
#: Threads of a block that sorts several short rows, the lanes that may share a row, and keys of a lane at most.
ROW_THREADS, ROW_LANES, WARP_KEYS = 256, (4, 16, WARP), 4
#: Keys of a thread of a block that sorts a row: so many while there may be more threads, at most `BLOCK_THREADS`. Then
#: more, up to a number by the bytes of a key, if a multiprocessor has one row at most.
BLOCK_KEYS, MORE_KEYS, MAX_KEYS, BLOCK_THREADS = (2, 3, 4, 5, 6, 8), (12, 16), {1: 16, 2: 16, 4: 16, 8: 12}, 1024
#: Registers that such blocks share, and threads that share them at least, by the bytes of a key.
BLOCK_REGISTERS, SHARING = 65536, {1: 1024, 2: 1024, 4: 1024, 8: 512}
#: Bytes of shared memory of such a block beside keys, positions and counts, at most.
OTHER_SHARED = 2048
#: Threads of a block that only writes, and blocks per multiprocessor.
WRITERS, WRITING = 1024, 8
#: Blocks per multiprocessor that count digits, their threads, and keys that a thread has in flight.
BLOCKS, COUNTERS, LOADS = 4, 512, 4
#: What a tile has published for a digit: its own count, or that of all tiles up to it. 30 bits are left for the count.
OWN, ALL, COUNT = 1 << 30, 2 << 30, (1 << 30) - 1
uint16 = types.uint16


@functools.cache
def make_ordered(kind: str, itemsize: int, falling: bool = False):
    """Make ``ordered(bits)``: an unsigned number that is in the order of the keys with these bits, or in the opposite.

    NaN comes after all numbers, and the two zeros are equal. The kind is that of the keys' dtype: "V" is bfloat16.
    """
    number, signed = (getattr(types, f"{sign}int{8 * itemsize}") for sign in ("u", ""))
    sign, ones, places = 1 << 8 * itemsize - 1, (1 << 8 * itemsize) - 1, 8 * itemsize - 1
    infinity = {2: 0x7F80 if kind == "V" else 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}.get(itemsize, 0)
    turned, unsigned = ones if falling else 0, kind in "ub"  # a bool is a byte, 0 or 1

    @cuda.jit(device=True)
    def ordered(bits):
        if unsigned:
            return number(bits ^ number(turned))
        if kind == "i":
            return number(bits ^ number(sign ^ turned))
        filled = number(signed(bits) >> signed(places))  # all ones for a negative number
        found = number(bits ^ number(filled | number(sign)))
        found = number(sign) if bits == number(sign) else found  # -0.0
        found = number(ones) if number(bits & number(sign - 1)) > number(infinity) else found  # NaN
        return number(found ^ number(turned))

    return ordered


@functools.cache
def make_digit_of(kind, itemsize, falling):
    """Make ``digit_of(key, shift, inside)``: the digit of a key at a bit; the last one for what is not ``inside``."""
    ordered, number = make_ordered(kind, itemsize, falling), getattr(types, f"uint{8 * itemsize}")

    @cuda.jit(device=True)
    def digit_of(key, shift, inside):
        digit = uint32(ordered(key) >> number(shift)) & uint32(DIGITS - 1)
        return digit if inside else uint32(DIGITS - 1)

    return digit_of


@functools.cache
def make_count_digits(kind, itemsize, vector, falling=False):
    """Make the kernel ``count_digits``: add the keys of each row to counts[row, pass, digit]; clear ``published``."""
    digit_of, passes, load = make_digit_of(kind, itemsize, falling), itemsize, make_load(vector)
    all_digits, key_type = passes * DIGITS, getattr(types, f"uint{8 * itemsize}")

    @cuda.jit(device=True)
    def count(own, key):
        for p in range(passes):
            cuda.atomic.add(own, uint32(p * DIGITS) + digit_of(key, uint32(p * BITS), True), uint32(1))

    @cuda.jit
    def count_digits(keys, counts, published, n, blocks):
        own = cuda.shared.array(all_digits, uint32)
        held = cuda.local.array((LOADS, vector), key_type)
        tid, i = cuda.threadIdx.x, uint64(cuda.grid(1))
        while i < uint64(published.size):
            published[i] = uint32(0)
            i += uint64(cuda.gridsize(1))
        for i in range(tid, all_digits, COUNTERS):
            own[i] = uint32(0)
        cuda.syncthreads()
        row, part, n = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks, uint64(n)
        first, step = uint64(row) * n, uint64(blocks) * uint64(COUNTERS * vector)
        at = uint64(part) * uint64(COUNTERS * vector) + uint64(tid * vector)
        while at + uint64(LOADS - 1) * step + uint64(vector) <= n:
            for k in range(LOADS):
                values = load(keys, first + at + uint64(k) * step)
                for v in range(vector):
                    held[k, v] = values[v]
            for k in range(LOADS):
                for v in range(vector):
                    count(own, held[k, v])
            at += uint64(LOADS) * step
        while at < n:
            for v in range(vector):
                if at + uint64(v) < n:
                    count(own, keys[first + at + uint64(v)])
            at += step
        cuda.syncthreads()
        for i in range(tid, all_digits, COUNTERS):
            if own[i] > uint32(0):
                cuda.atomic.add(counts, uint64(row) * uint64(all_digits) + uint64(i), own[i])

    return count_digits


_scan_digits = block_scan(DIGITS, np.uint32)


@cuda.jit
def place_digits(counts, first, active, n, passes):
    """Set first[row, pass, digit] to the number of keys with smaller digits, and counts to 0 for the next call.

    A block does a pass of a row. Passes in which not all keys of the row have the same digit are ``active``: a bit is
    set for each.
    """
    at = uint64(cuda.blockIdx.x) * uint64(DIGITS) + uint64(cuda.threadIdx.x)
    count = counts[at]
    upto, _ = _scan_digits(count)
    first[at], counts[at] = upto - count, uint32(0)
    some = cuda.syncthreads_or(uint32(1) if uint32(0) < count and count < uint32(n) else uint32(0))
    if some != 0 and cuda.threadIdx.x == 0:
        cuda.atomic.or_(active, cuda.blockIdx.x // passes, uint32(1) << uint32(cuda.blockIdx.x % passes))


@functools.cache
def make_rank_alone(writes_keys: bool):
    """Make the kernel ``rank_alone`` for keys that are alone in their rows: each stays, and its position is 0."""

    @cuda.jit
    def rank_alone(keys, new_keys, positions):
        i, step = uint64(cuda.grid(1)), uint64(cuda.gridsize(1))
        while i < uint64(keys.size):
            if writes_keys:
                new_keys[i] = keys[i]
            positions[i] = 0
            i += step

    return rank_alone


@functools.cache
def make_rank(kind, itemsize, falling, each):
    """Make ``rank(keys, ranks, counts, left, shift)``: rank each of a warp's keys among those of its digit; count them.

    Lane l has keys l, l + 32, l + 64 ... of the warp's, of which ``left`` from its first on are in the row. The others
    take part with the last digit: they come after all others.
    """
    digit_of = make_digit_of(kind, itemsize, falling)

    @cuda.jit(device=True)
    def rank(keys, ranks, counts, left, shift):
        warp, lane = uint32(cuda.threadIdx.x) // uint32(WARP), uint32(cuda.laneid)
        for d in range(DIGITS // WARP):
            counts[warp, uint32(d * WARP) + lane] = uint16(0)
        cuda.syncwarp()
        before = (uint32(1) << lane) - uint32(1)
        for k in range(each):
            digit = digit_of(keys[k], shift, int32(k * WARP) < left)
            peers = match_byte(digit)
            place = uint32(cuda.popc(uint32(peers & before)))
            count = uint32(counts[warp, digit])
            cuda.syncwarp()
            if place == uint32(0):
                counts[warp, digit] = uint16(count + uint32(cuda.popc(peers)))
            cuda.syncwarp()
            ranks[k] = (digit << uint32(16)) + count + place  # both in one register

    return rank


def threads_of(size: int) -> int:
    """Threads of a block that moves elements of so many bytes: shared memory has room for 32 KB of them."""
    return 256 if size == 8 else 512


@cuda.jit(device=True)
def keys_before(published, tile, digit, own):
    """Publish the number of keys of a digit in this tile; return the number in all tiles before it."""
    left, total = tile, uint32(0)
    while left > uint64(0):
        left -= uint64(1)
        word = load_acquire(published, left * uint64(DIGITS) + uint64(digit))
        while word == uint32(0):
            cuda.nanosleep(NAP)
            word = load_acquire(published, left * uint64(DIGITS) + uint64(digit))
        total += uint32(word & uint32(COUNT))
        if word >= uint32(ALL):
            break
    cuda.atomic.exch(published, tile * uint64(DIGITS) + uint64(digit), uint32(ALL) | uint32(total + own))
    return total


@functools.cache
def make_sweep(kind, itemsize, old_size, new_size, writes_keys=True, falling=False):
    """Make the kernel ``sweep``: sort keys by one digit, stably, and values with them.

    Values have ``old_size`` bytes; with 0 they are the positions of the keys in their row. They are written with
    ``new_size`` bytes; with 0 there are none. Between the sweeps they have `moved_size` bytes.

    A row's first active sweep reads the input, the others what the one before has written to one half of ``spare``. All
    but the last write to the other half. The last need not write the keys (``writes_keys``).
    """
    between = moved_size(old_size, new_size)
    size = max(itemsize, between)
    threads, each, warps = threads_of(size), EACH, threads_of(size) // WARP
    rank, digit_of = make_rank(kind, itemsize, falling, each), make_digit_of(kind, itemsize, falling)
    scan_digits = block_scan(threads, np.uint32)
    tile_size, of_warp = threads * each, WARP * each
    key_type, held_type = getattr(types, f"uint{8 * itemsize}"), getattr(types, f"uint{8 * size}")

    @cuda.jit(device=True)
    def read(source, begin, place, n, base, held):
        if base + uint32(tile_size) <= n:
            for k in range(each):
                held[k] = source[begin + uint64(place) + uint64(k * WARP)]
        else:
            for k in range(each):
                at = uint32(place + uint32(k * WARP))
                held[k] = source[begin + uint64(at if at < n else uint32(0))]

    @cuda.jit(device=True)
    def write(target, held, places, tid, end):
        for k in range(each):
            if uint32(uint32(k * threads) + tid) < end:
                target[places[k]] = held[k]

    @cuda.jit(max_registers=REGISTERS[threads])
    def sweep(keys, values, new_keys, new_values, spare, spare_values, first, active, published, ticket, number, sizes):
        n, tiles, half = sizes
        counts = cuda.shared.array((warps, DIGITS), uint16)
        starts, targets = cuda.shared.array(DIGITS, uint32), cuda.shared.array(DIGITS, uint32)
        moved = cuda.shared.array(tile_size, held_type)
        mine = cuda.shared.array(3, uint32)
        held, along = cuda.local.array(each, key_type), cuda.local.array(each, held_type)
        ranks, places = cuda.local.array(each, uint32), cuda.local.array(each, uint32)
        tid = uint32(cuda.threadIdx.x)
        warp, lane, shift = uint32(tid // uint32(WARP)), uint32(tid % uint32(WARP)), uint32(number * BITS)
        if tid == uint32(0):  # one thread reads both at the same time; tickets are seldom for another row
            own_ticket = cuda.atomic.inc(ticket, 0, uint32(cuda.gridDim.x - 1))
            likely = uint32(uint32(cuda.blockIdx.x) // uint32(tiles))
            guess = active[likely]
            mine[0], mine[1], mine[2] = own_ticket, likely, guess
        cuda.syncthreads()
        row, mask = uint32(mine[0] // uint32(tiles)), mine[2]
        if row != mine[1]:
            mask = active[row]
        mask = max(uint32(1), mask)  # of equal keys, the first sweep is active
        if uint32(mask >> uint32(number)) & uint32(1) == uint32(0):
            return
        earlier = uint32(cuda.popc(uint32(mask & ((uint32(1) << uint32(number)) - uint32(1)))))
        is_first, is_last = earlier == uint32(0), uint32(mask >> uint32(number)) == uint32(1)
        here = uint64(half) if earlier & uint32(1) == uint32(0) else uint64(0)
        there = uint64(half) - here

        part, n = uint32(mine[0] - uint32(row * uint32(tiles))), uint32(n)
        base, begin = uint32(part * uint32(tile_size)), uint64(row) * uint64(n)
        place = uint32(base + uint32(warp * uint32(of_warp)) + lane)
        left = int32(min(int64(n) - int64(place), int64(of_warp)))
        if is_first:
            read(keys, begin, place, n, base, held)
        else:
            read(spare, here + begin, place, n, base, held)
        rank(held, ranks, counts, left, shift)
        cuda.syncthreads()

        own = uint32(0)  # from here on, a thread of the first ones stands for a digit
        if tid < uint32(DIGITS):
            for w in range(warps):
                count = uint32(counts[uint32(w), tid])
                counts[uint32(w), tid] = uint16(own)
                own += count
            if part > uint32(0):
                cuda.atomic.exch(published, uint64(mine[0]) * uint64(DIGITS) + uint64(tid), uint32(OWN) | own)
        upto, _ = scan_digits(own)
        if tid < uint32(DIGITS):
            starts[tid] = upto - own
        cuda.syncthreads()
        for k in range(each):
            digit = ranks[k] >> uint32(16)
            ranks[k] = (ranks[k] & uint32(0xFFFF)) + starts[digit] + uint32(counts[warp, digit])
            moved[ranks[k]] = held_type(held[k])
        if tid < uint32(DIGITS):
            at = (uint64(row) * uint64(itemsize) + uint64(number)) * uint64(DIGITS) + uint64(tid)
            begins = first[at]
            before = keys_before(published[uint64(row) * uint64(tiles * DIGITS) :], uint64(part), tid, own)
            targets[tid] = uint32(begins + before) - starts[tid]
        cuda.syncthreads()

        end = uint32(min(uint32(n - base), uint32(tile_size)))
        for k in range(each):
            at = uint32(uint32(k * threads) + tid)
            held[k] = key_type(moved[at])
            places[k] = uint32(targets[digit_of(held[k], shift, True)] + at)
        if not is_last:
            write(spare[there + begin :], held, places, tid, end)
        elif writes_keys:
            write(new_keys[begin:], held, places, tid, end)
        if new_size:
            cuda.syncthreads()
            if not is_first:
                for k in range(each):
                    at = uint32(place + uint32(k * WARP))
                    moved[ranks[k]] = held_type(spare_values[here + begin + uint64(at if at < n else uint32(0))])
            elif old_size:
                for k in range(each):
                    at = uint32(place + uint32(k * WARP))
                    moved[ranks[k]] = held_type(values[begin + uint64(at if at < n else uint32(0))])
            else:
                for k in range(each):
                    moved[ranks[k]] = held_type(place + uint32(k * WARP))
            cuda.syncthreads()
            for k in range(each):
                along[k] = moved[uint32(k * threads) + tid]
            if is_last:
                write(new_values[begin:], along, places, tid, end)
            else:
                write(spare_values[there + begin :], along, places, tid, end)

    return sweep


def moved_size(old_size: int, new_size: int) -> int:
    """Bytes of a value between the sweeps: positions are moved as 32 bits. Only the last sweep writes them in full."""
    return min(old_size or 4, new_size)


# -- short rows -----------------------------------------------------------------------------------------------------


@functools.cache
def make_sort_warp(kind, itemsize, old_size, new_size, writes_keys, falling, lanes, each):
    """Make the kernel ``sort_warp``: some lanes of a warp sort a row of at most lanes * each keys.

    A key's place is the number of keys before it. Keys of up to 4 bytes are compared with their positions in one
    number, so that no two are equal.
    """
    ordered, size, rows_of_block = make_ordered(kind, itemsize, falling), lanes * each, ROW_THREADS // lanes
    number = uint64 if itemsize > 2 else uint32
    key_type, value_type = (getattr(types, f"uint{8 * size}") for size in (itemsize, new_size or itemsize))

    @cuda.jit
    def sort_warp(keys, values, new_keys, new_values, rows, n, kept):
        every = cuda.shared.array((rows_of_block, size), number)
        held, mine = cuda.local.array(each, key_type), cuda.local.array(each, number)
        places = cuda.local.array(each, uint32)
        own, lane, n = uint32(cuda.threadIdx.x) // uint32(lanes), uint32(cuda.threadIdx.x) % uint32(lanes), uint32(n)
        row = uint64(cuda.blockIdx.x) * uint64(rows_of_block) + uint64(own)
        first = row * uint64(n) if row < uint64(rows) else uint64(0)
        for k in range(each):
            at = uint32(lane + uint32(k * lanes))
            held[k], places[k] = keys[first + uint64(at if at < n else uint32(0))], uint32(0)
            mine[k] = number(ordered(held[k]))
            if itemsize < 8:
                mine[k] = number(number(mine[k] << number(8)) | number(at))
            every[own, at] = mine[k]
        cuda.syncwarp()
        other = uint32(0)
        while other < n:
            theirs = every[own, other]
            for k in range(each):
                before = theirs < mine[k]
                if itemsize == 8:
                    before = before or (theirs == mine[k] and other < uint32(lane + uint32(k * lanes)))
                places[k] = uint32(places[k] + (uint32(1) if before else uint32(0)))
            other = uint32(other + uint32(1))
        for k in range(each):
            at = uint32(lane + uint32(k * lanes))
            if row < uint64(rows) and at < n and places[k] < uint32(kept):
                target = row * uint64(kept) + uint64(places[k])
                if writes_keys:
                    new_keys[target] = held[k]
                if new_size:
                    new_values[target] = value_type(values[first + uint64(at)]) if old_size else value_type(at)

    return sort_warp


@functools.cache
def make_sort_block(kind, itemsize, old_size, new_size, writes_keys, falling, threads, each):
    """Make the kernel ``sort_block``: a block sorts a row of at most ``threads * each`` keys in shared memory.

    It writes the first ``kept`` keys, the values that belong to them (see `make_sweep`), or both. Of integers it sorts
    how far they are above the least one, in as many passes as the greatest of these numbers has digits.
    """
    warps, tile_size, digits_each = threads // WARP, threads * each, max(1, DIGITS // threads)
    ordered, passes, position = make_ordered(kind, itemsize, falling), itemsize, tile_size * itemsize // 2
    key_type, value_type = (getattr(types, f"uint{8 * size}") for size in (itemsize, new_size or itemsize))
    number, is_float = uint64 if itemsize == 8 else uint32, kind in "fV"
    rank = make_rank(kind, itemsize, falling, each) if is_float else make_rank("u", itemsize, False, each)
    fold_max = make_fold_lanes(make_operations("max", np.dtype(f"u{max(4, itemsize)}"))[0])
    scan_lanes = make_scan_lanes(make_operations("sum", np.dtype(np.uint32))[0])

    @cuda.jit(max_registers=BLOCK_REGISTERS // max(threads, SHARING[itemsize]))
    def sort_block(keys, values, new_keys, new_values, n, kept):
        moved, positions = cuda.shared.array(0, key_type), cuda.shared.array(0, uint16)  # the same memory
        counts, starts = cuda.shared.array((warps, DIGITS), uint16), cuda.shared.array(DIGITS, uint32)
        totals, bounds = cuda.shared.array(warps, uint32), cuda.shared.array((2, WARP), number)
        held, own = cuda.local.array(each, key_type), cuda.local.array(each, uint16)
        ranks = cuda.local.array(each, uint32)
        tid, n, row = int32(cuda.threadIdx.x), int32(n), uint64(cuda.blockIdx.x)
        warp, lane = int32(tid // WARP), int32(tid % WARP)
        place = int32(warp * WARP * each + lane)
        left = int32(min(int32(n - place), int32(WARP * each)))
        for k in range(each):
            at = place + k * WARP
            held[k], own[k] = keys[row * uint64(n) + uint64(at if at < n else 0)], uint16(at)
        low, width, p = key_type(0), number((1 << 8 * itemsize) - 1), 0
        if not is_float and passes > 1:
            above, below = number(0), number(0)
            for k in range(each):
                held[k] = ordered(held[k])
                above, below = max(above, number(held[k])), max(below, number(key_type(~held[k])))
            above, below = fold_max(above), fold_max(below)
            if lane == 0:
                bounds[0, warp], bounds[1, warp] = above, below
            cuda.syncthreads()
            above = fold_max(bounds[0, lane] if lane < warps else number(0))
            below = fold_max(bounds[1, lane] if lane < warps else number(0))
            low = key_type(~key_type(below))
            width = number(above - number(low))
            for k in range(each):
                held[k] = key_type(held[k] - low)
        elif not is_float:
            for k in range(each):
                held[k] = ordered(held[k])
        while p < passes and (p == 0 or number(width >> number(p * BITS)) > number(0)):
            rank(held, ranks, counts, left, uint32(p * BITS))
            cuda.syncthreads()
            total = uint32(0)
            for i in range(digits_each):
                digit = tid * digits_each + i
                if digit < DIGITS:
                    of_digit = uint32(0)
                    for w in range(warps):
                        count = uint32(counts[w, digit])
                        counts[w, digit] = uint16(of_digit)
                        of_digit = uint32(of_digit + count)
                    starts[digit] = total
                    total = uint32(total + of_digit)
            before = uint32(0)
            if tid < DIGITS:
                upto = scan_lanes(total, WARP, 1)
                if lane == WARP - 1:
                    totals[warp] = upto
                before = uint32(upto - total)
            cuda.syncthreads()
            if tid < DIGITS:
                for w in range(min(warps, DIGITS // WARP)):
                    before = uint32(before + (totals[w] if w < warp else uint32(0)))
                for i in range(digits_each):
                    starts[tid * digits_each + i] += before
            cuda.syncthreads()
            for k in range(each):
                digit = ranks[k] >> uint32(16)
                at = (ranks[k] & uint32(0xFFFF)) + starts[digit] + uint32(counts[warp, digit])
                moved[at] = held[k]
                if new_size:
                    positions[uint32(position) + at] = own[k]
            cuda.syncthreads()
            for k in range(each):
                held[k] = moved[place + k * WARP]
                if new_size:
                    own[k] = positions[position + place + k * WARP]
            p += 1
        for at in range(tid, kept, threads):
            if writes_keys:
                key = moved[at] if is_float else ordered(key_type(moved[at] + low))
                new_keys[row * uint64(kept) + uint64(at)] = key
            if new_size:
                found = uint64(positions[position + at])
                value = value_type(values[row * uint64(n) + found]) if old_size else value_type(found)
                new_values[row * uint64(kept) + uint64(at)] = value

    return sort_block


# -- host functions -------------------------------------------------------------------------------------------------


def sort(
    x: Any, values: Any = None, axis: int | None = -1, *, descending: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Sort numbers in increasing order, as ``np.sort(x, axis, kind="stable")`` does; NaN comes last.

    Parameters
    ----------
    x : ndarray or device array of one dimension or more
        Integers or floats, also bfloat16 and bools, fewer than 2**30 along the axis.
    values : array of the same kind and shape, optional
        Numbers that belong to the elements. They are sorted instead, by the order of ``x``: those of equal elements
        keep their order.
    axis : int or None
        The axis to sort along, the last one unless given. None sorts all elements, and gives one dimension.
    descending : bool
        Sort in decreasing order, NaN first, as ``torch.sort(x, dim=axis, descending=True, stable=True)`` does.
    out : array, optional
        For the result: like ``values`` if they are given, else like ``x``. On the device it must not share memory with
        either.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array
        ``out`` if that was given, otherwise new, of the library of ``x``.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind. Nothing was launched.

    Examples
    --------
    >>> sort(np.array([3, -1, 2]))
    array([-1,  2,  3])
    >>> sort(np.array([3, -1, 2]), np.array([10, 20, 30]))
    array([20, 30, 10])
    """
    return call(_sort, (x,) if values is None else (x, values), out, stream, (axis, False, descending))


def argsort(x: Any, axis: int | None = -1, *, descending: bool = False, out: Any = None, stream: Any = None) -> Any:
    """Return the indices that would sort an array, as ``np.argsort(x, axis, kind="stable")`` does.

    Parameters
    ----------
    x, axis, descending, stream
        As for `sort`.
    out : array of int64, optional
        Of the result's shape.

    Returns
    -------
    ndarray or device array, int64

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> argsort(np.array([3, -1, 2]))
    array([1, 2, 0])
    """
    return call(_sort, (x,), out, stream, (axis, True, descending))


def _sort(problem: Problem):
    """The launches of ``sort`` and ``argsort``."""
    (x, *values), (axis, index, descending) = problem.inputs, problem.settings
    values, descending = values[0] if values else None, check_flag("descending", descending)
    dtype = check_numbers("x", x, 1, more=True, words=True)
    axis = check_axis(axis, len(x.shape))
    outer, n, inner = as_rows(x.shape, axis)
    shape, result = (n,) if axis is None else tuple(x.shape), np.dtype(np.int64) if index else dtype
    check_length("x", n)
    if values is not None:
        result = check_numbers("values", values, 1, more=True, words=True)
        check_alike("values", values, "x", x, tuple(x.shape), result)
    if problem.out is not None:
        check_array("out", problem.out, len(shape))
        check_alike("out", problem.out, "x", x, shape, result)
        check_apart("out", problem.out, x=x, **({} if values is None else {"values": values}))
    out = as_words(problem.output(shape, result))
    if out.size == 0:
        return []
    x, values = as_words(x), None if values is None else as_words(values)
    key_bits, bits, moves = np.dtype(f"u{dtype.itemsize}"), np.dtype(f"u{result.itemsize}"), index or values is not None
    keys = take_rows(problem, x, outer, n, inner).view(key_bits)
    old = None if values is None else take_rows(problem, values, outer, n, inner).view(bits)
    target, after = put_rows(problem, out, outer, n, inner)
    target = target.view(bits)
    new_keys, new_values = (None, target) if moves else (target, None)
    return sort_rows(problem, dtype, keys, old, new_keys, new_values, descending) + after


def sort_rows(problem, dtype, keys, old, new_keys, new_values, falling=False) -> list[tuple]:
    """List the launches that sort the rows of ``keys``, which are bits of ``dtype``.

    Parameters
    ----------
    problem : Problem
    dtype : NumPy dtype
    keys : device array of shape (rows, n), unsigned
    old : device array of shape (rows, n), unsigned, or None
        What is moved along; the positions in the row unless given.
    new_keys, new_values : device arrays of shape (rows, kept), unsigned, or None
        The first of the sorted keys, and of what was moved along. All are kept of rows longer than `max_block_row`.
    falling : bool
        Sort in the opposite order.
    """
    (rows, n), passes = keys.shape, dtype.itemsize
    old_size = 0 if old is None else old.dtype.itemsize
    new_size = 0 if new_values is None else new_values.dtype.itemsize
    if n == 1:
        return _copies(problem, keys, old, new_keys, new_values)
    keys, old = flat(keys), flat(keys if old is None else old)
    if n <= max_block_row(passes, rows):
        kept, writes_keys = (new_keys if new_values is None else new_values).shape[1], new_keys is not None
        new_keys = flat(new_keys if writes_keys else new_values)
        new_values = new_keys if new_values is None else flat(new_values)
        options = dtype.kind, passes, old_size, new_size, writes_keys, falling
        if n <= max_warp_row(passes):
            lanes = next(lanes for lanes in ROW_LANES if n <= lanes or lanes == WARP)
            kernel, blocks = make_sort_warp(*options, lanes, ceil_div(n, lanes)), ceil_div(rows * lanes, ROW_THREADS)
            launch = configure_quietly(kernel, blocks, ROW_THREADS, problem.stream)
            return [(launch, (keys, old, new_keys, new_values, rows, n, kept))]
        threads = min(BLOCK_THREADS, max(WARP, next_power_of_two(ceil_div(n, BLOCK_KEYS[-1]))))
        each = next(keys for keys in BLOCK_KEYS + MORE_KEYS if threads * keys >= n)
        kernel, nbytes = make_sort_block(*options, threads, each), threads * each * (passes + (2 if new_size else 0))
        allow_dynamic_shared(kernel, nbytes)
        launch = configure_quietly(kernel, rows, threads, problem.stream, nbytes)
        return [(launch, (keys, old, new_keys, new_values, n, kept))]
    return _sweeps(problem, dtype, keys, old, new_keys, new_values, falling, rows, n, old_size, new_size)


def _copies(problem, keys, old, new_keys, new_values):
    """The launches that sort rows of one key: keys and values stay where they are, and each position is 0."""
    if old is None and new_values is not None:
        launch = configure_quietly(make_rank_alone(new_keys is not None), *spread(keys.size), problem.stream)
        return [(launch, (flat(keys), flat(new_values if new_keys is None else new_keys), flat(new_values)))]
    made = [] if new_keys is None else copy_launches(keys, new_keys, problem.stream)
    return made if old is None else made + copy_launches(old, new_values, problem.stream)


def spread(size: int) -> tuple[int, int]:
    """Blocks, and threads of each, that write so many elements."""
    return min(ceil_div(size, WRITERS), WRITING * cuda.get_current_device().MULTIPROCESSOR_COUNT), WRITERS


def max_warp_row(itemsize: int) -> int:
    """The longest row that a warp sorts: a block makes a pass for each byte."""
    return WARP * min(itemsize + 1, WARP_KEYS)


def max_block_row(itemsize: int, rows: int) -> int:
    """The longest of so many rows that a block sorts in shared memory."""
    device = cuda.get_current_device()
    few, limit = rows <= device.MULTIPROCESSOR_COUNT, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    threads, each = BLOCK_THREADS, MAX_KEYS[itemsize] if few else BLOCK_KEYS[-1]
    while OTHER_SHARED + threads * (each * (itemsize + 2) + DIGITS * 2 // WARP) > limit:
        threads, each = (threads, BLOCK_KEYS[-1]) if each > BLOCK_KEYS[-1] else (threads // 2, each)
    return threads * each


def flat(array):
    """All elements of an array in one dimension."""
    return array.reshape(array.size)


def _sweeps(problem, dtype, keys, old, new_keys, new_values, falling, rows, n, old_size, new_size):
    """The launches that sort long rows: counts, places, and a sweep for each byte of the keys."""
    work, passes, kind, between = problem.work, dtype.itemsize, dtype.kind, moved_size(old_size, new_size)
    threads = threads_of(max(passes, between))
    tiles, all_counts = ceil_div(n, threads * EACH), rows * passes * DIGITS
    of_pass, processors = rows * tiles * DIGITS, cuda.get_current_device().MULTIPROCESSOR_COUNT
    zeros, first = work.zeros(1 + all_counts), work.take("digits", all_counts, np.uint32)
    published = work.take("tiles", passes * of_pass + rows, np.uint32)
    counts, active = zeros[1 : 1 + all_counts], published[passes * of_pass :]
    half = ceil_div(rows * n, LINE) * LINE  # whole cache lines of elements of any size
    room, sizes = max(1, min(2, passes - 1) * half), (n, tiles, half)
    spare = work.take("spare keys", room, keys.dtype)
    spare_values = work.take("spare values", room, np.dtype(f"u{between}")) if new_size else spare
    vector = min(4, 16 // passes)
    while address_of(keys) % (vector * passes) or rows > 1 and n % vector:
        vector //= 2
    blocks = max(1, min(ceil_div(n, COUNTERS * vector * LOADS), BLOCKS * processors // rows))

    def configure(kernel, grid, block):
        return configure_quietly(kernel, grid, block, problem.stream)

    count = make_count_digits(kind, passes, vector, falling)
    kernel = make_sweep(kind, passes, old_size, new_size, new_keys is not None, falling)
    sweep = configure(kernel, rows * tiles, threads)
    target = spare if new_keys is None else flat(new_keys)
    arrays = keys, old, target, flat(new_values) if new_size else target, spare, spare_values, first, active
    return [
        (configure(count, blocks * rows, COUNTERS), (keys, counts, published, n, blocks)),
        (configure(place_digits, rows * passes, DIGITS), (counts, first, active, n, passes)),
        *((sweep, (*arrays, published[p * of_pass : (p + 1) * of_pass], zeros[:1], p, sizes)) for p in range(passes)),
    ]


# -- rows along any axis --------------------------------------------------------------------------------------------


def as_rows(shape: tuple, axis: int | None) -> tuple[int, int, int]:
    """A shape as (outer, n, inner), with the axis in the middle."""
    if axis is None:
        return 1, math.prod(shape), 1
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    return (outer * inner, n, 1) if n == 1 else (outer, n, inner)


def take_rows(problem, array, outer: int, n: int, inner: int) -> Any:
    """An input with the axis last, of shape (outer * inner, n): a copy if it was not."""
    array = problem.on_device(array)
    if inner > 1:
        array = problem.copy(_with_axis_last(array, outer, n, inner))
    return array.reshape(outer * inner, n)


def put_rows(problem, out, outer: int, n: int, inner: int, purpose: str = "rows") -> tuple[Any, list]:
    """An array of shape (outer * inner, n) for a result, and the launches that bring it to ``out``."""
    if inner == 1:
        return out.reshape(outer, n), []
    rows = problem.work.take(purpose, outer * n * inner, out.dtype)
    launches = copy_launches(rows.reshape(outer, inner, n), _with_axis_last(out, outer, n, inner), problem.stream)
    return rows.reshape(outer * inner, n), launches


def _with_axis_last(array, outer, n, inner):
    size = array.dtype.itemsize
    return device_array_of((outer, inner, n), (n * inner * size, size, inner * size), array.dtype, array)


def check_length(name: str, n: int):
    """Raise ValueError for a row that is too long for the counts of tiles."""
    if n > COUNT:
        raise ValueError(f"{name} has {n:,} elements along the axis; it must have fewer than {COUNT + 1:,}")
