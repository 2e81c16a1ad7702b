"""Top-k by radix selection: find the digits of the k-th key, the most significant first, and collect what is before it.

1. ``narrow``: count the next digit of the keys that begin with the digits found so far. A row's last block to finish
   finds the digit of the k-th key.
2. ``collect``: write the positions of the keys before the k-th, and of as many equal ones as are wanted, in order.

Every step reads the array once and writes next to nothing. The k keys are sorted at the end. ``top_row`` does all that
in one launch, with a block for each row, where a row and k are not too long for a block.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import (
    address_of,
    as_words,
    check_axis,
    check_numbers,
    configure_quietly,
)
from gpukit._host.call import Problem, call
from gpukit.backend import cuda, int32, int64, types, uint32, uint64
from gpukit.intrinsics.vectors import make_load
from gpukit.operators import make_operations
from gpukit.scan.fast import count_words, draw, make_look_back
from gpukit.scan.primitives import FULL, block_scan, make_scan_lanes
from gpukit.scan.selecting import add
from gpukit.scan.sorting import (
    BITS,
    DIGITS,
    as_rows,
    check_length,
    flat,
    make_ordered,
    max_block_row,
    max_warp_row,
    put_rows,
    sort_rows,
    take_rows,
)
from warpstep.integers import ceil_div, next_power_of_two
from warpstep.limits import WARP
from warpstep.values import check_flag, check_int

__all__ = ["TopK", "make_collect", "make_narrow", "make_top_row", "topk"]

#: Threads of a block; how often a lane of ``collect`` reads, and elements that it reads at a time at most.
THREADS, ROUNDS, VECTOR = 256, 4, 4
WARPS = THREADS // WARP
#: Blocks per multiprocessor that count digits.
BLOCKS = 4
#: Where a block searches a row: bits of a position, keys to find and threads at most, and keys of a thread in flight.
POSITION_BITS, MAX_CHOSEN, MAX_ROW_THREADS, LOADS = 16, 1024, 1024, 4
#: Elements of an array, at most, in which it searches rows whose elements are apart; and for many keys of each row.
MAX_APART, MAX_APART_MANY = 1 << 20, 1 << 18
#: Elements and bytes of a row that is sorted as a whole by a block, at most; and bytes if there are few such rows.
MAX_SORTED, MAX_SORTED_BYTES, MAX_SORTED_ALONE = 4096, 1 << 14, 1 << 16

_scan_digits = block_scan(DIGITS, np.uint32)


class TopK(NamedTuple):
    """What `topk` returns.

    Attributes
    ----------
    values : ndarray or device array
        The elements.
    indices : ndarray or device array of int64
        Where they are along the axis.
    """

    values: Any
    indices: Any


@functools.cache
def make_top_row(kind, itemsize, falling):
    """Make the kernel ``top_row``: a block finds the k first keys of a row in the order of ``make_ordered``.

    Neighbours in a row are ``inner`` elements apart, in the input and in the results. Keys are compared with their
    positions, 16 bits, after them in one number: no two are equal. The block reads the row once for each digit of the
    k-th number, until as many keys begin with its digits as are wanted, and once to collect them. A number's place is
    the count of those before it.
    """
    ordered, width = make_ordered(kind, itemsize, falling), 8 * itemsize + POSITION_BITS
    scan_lanes, each = make_scan_lanes(make_operations((add, 0), np.dtype(np.int32))[0]), DIGITS // WARP
    key_type = getattr(types, f"uint{8 * itemsize}")

    @cuda.jit(device=True)
    def read(keys, first, inner, at, n, held):
        """Read some keys of a thread; those past the end are the last one again."""
        for j in range(LOADS):
            place = min(uint32(at + uint32(uint32(j) * uint32(cuda.blockDim.x))), uint32(n - uint32(1)))
            held[j] = keys[first + uint64(place) * inner]

    @cuda.jit(device=True)
    def number_of(key, at):
        return uint64(uint64(ordered(key)) << uint64(POSITION_BITS)) | uint64(at)

    @cuda.jit(device=True)
    def find_digit(counts, found, wanted):
        """The first warp finds the digit in which the wanted number is: that digit, its rank there, how many are."""
        if cuda.threadIdx.x < WARP:
            begin, total = uint32(cuda.laneid) * uint32(each), int32(0)
            for d in range(each):
                total += int32(counts[begin + uint32(d)])
            upto = scan_lanes(int32(total), WARP, 1)
            left = int32(wanted) - (upto - total)
            if left > 0 and int32(wanted) <= upto:
                for d in range(each):
                    count = int32(counts[begin + uint32(d)])
                    if left > 0 and left <= count:
                        found[0], found[1], found[2] = begin + uint32(d), uint32(left), uint32(count)
                    left -= count
        cuda.syncthreads()

    @cuda.jit
    def top_row(keys, new_keys, positions, n, k, inner):
        counts, found = cuda.shared.array(DIGITS, uint32), cuda.shared.array(4, uint32)
        chosen, held = cuda.shared.array(MAX_CHOSEN, uint64), cuda.local.array(LOADS, key_type)
        tid, threads, n, k = uint32(cuda.threadIdx.x), uint32(cuda.blockDim.x), uint32(n), uint32(k)
        outer, step, inner = uint32(cuda.blockIdx.x) // uint32(inner), uint32(uint32(LOADS) * threads), uint64(inner)
        column = uint64(cuda.blockIdx.x) - outer * inner
        first = outer * uint64(n) * inner + column
        prefix, shift, wanted = uint64(0), uint64(width), k
        bucket = uint32(k + uint32(1))
        if tid == uint32(0):
            found[3] = uint32(0)
        while bucket != wanted:
            shift -= uint64(BITS)
            digit = tid
            while digit < uint32(DIGITS):
                counts[digit] = uint32(0)
                digit = uint32(digit + threads)
            cuda.syncthreads()
            begin = tid
            while begin < n:
                read(keys, first, inner, begin, n, held)
                for j in range(LOADS):
                    at = uint32(begin + uint32(uint32(j) * threads))
                    number = number_of(held[j], at) >> shift
                    if at < n and number >> uint64(BITS) == prefix:
                        cuda.atomic.add(counts, uint32(number) & uint32(DIGITS - 1), uint32(1))
                begin = uint32(begin + step)
            cuda.syncthreads()
            find_digit(counts, found, wanted)
            prefix, wanted, bucket = prefix << uint64(BITS) | uint64(found[0]), found[1], found[2]
        begin = tid
        while begin < n:
            read(keys, first, inner, begin, n, held)
            for j in range(LOADS):
                at = uint32(begin + uint32(uint32(j) * threads))
                number = number_of(held[j], at)
                if at < n and number >> shift <= prefix:
                    chosen[cuda.atomic.add(found, 3, uint32(1))] = number
            begin = uint32(begin + step)
        cuda.syncthreads()
        i = tid
        while i < k:
            mine, place, other = chosen[i], uint32(0), uint32(0)
            while other < k:
                place = uint32(place + (uint32(1) if chosen[other] < mine else uint32(0)))
                other = uint32(other + uint32(1))
            at, target = mine & uint64((1 << POSITION_BITS) - 1), (outer * uint64(k) + uint64(place)) * inner + column
            new_keys[target], positions[target] = keys[first + at * inner], at
            i = uint32(i + threads)

    return top_row


@functools.cache
def make_narrow(kind, itemsize, falling, vector):
    """Make the kernel ``narrow``: find one more digit of each row's k-th key in the order of ``make_ordered``.

    ``found[row]`` are the digits found before, ``wanted[row]`` is how many of the keys that begin with them come up to
    the k-th. ``counts`` are 0 before and after the launch, as is ``finished``.
    """
    ordered, load, width = make_ordered(kind, itemsize, falling), make_load(vector), 8 * itemsize
    key_type, at_once = getattr(types, f"uint{width}"), LOADS * vector

    @cuda.jit(device=True)
    def count(own, key, shift, digits):
        value = uint64(ordered(key))
        rest = value >> uint64(shift)
        if shift + BITS == width or rest >> uint64(BITS) == digits:
            cuda.atomic.add(own, int32(rest & uint64(DIGITS - 1)), uint32(1))

    @cuda.jit
    def narrow(keys, counts, finished, found, wanted, shift, n, blocks, k):
        own, last = cuda.shared.array(DIGITS, uint32), cuda.shared.array(1, uint32)
        held = cuda.local.array(at_once, key_type)
        tid, n, blocks = cuda.threadIdx.x, uint64(n), uint32(blocks)
        row = uint32(cuda.blockIdx.x) // blocks
        first, step = uint64(row) * n, uint64(blocks) * uint64(THREADS * vector)
        begins = shift + BITS == width
        digits = uint64(0) if begins else found[row]
        own[tid] = uint32(0)
        cuda.syncthreads()
        # Places count from an aligned address, at which or after which the row begins.
        before = first % uint64(vector)
        at = (uint64(uint32(cuda.blockIdx.x) - row * blocks) * uint64(THREADS) + uint64(tid)) * uint64(vector)
        while at < before + n:
            if at >= before and at + uint64(LOADS - 1) * step + uint64(vector) <= before + n:
                for j in range(LOADS):
                    values = load(keys, first + at - before + uint64(j) * step)
                    for v in range(vector):
                        held[j * vector + v] = values[v]
                for j in range(at_once):
                    count(own, held[j], shift, digits)
            else:
                for j in range(LOADS):
                    for v in range(vector):
                        place = at + uint64(j) * step + uint64(v)
                        if place >= before and place < before + n:
                            count(own, keys[first + place - before], shift, digits)
            at += uint64(LOADS) * step
        cuda.syncthreads()
        place = uint64(row) * uint64(DIGITS) + uint64(tid)
        if own[tid] > uint32(0):
            cuda.atomic.add(counts, place, own[tid])
        cuda.threadfence()  # the counts come before the block's arrival
        cuda.syncthreads()
        if tid == 0:
            last[0] = cuda.atomic.inc(finished, row, blocks - uint32(1))
        cuda.syncthreads()
        if last[0] == blocks - uint32(1):
            cuda.threadfence()
            mine = cuda.atomic.exch(counts, place, uint32(0))
            upto, _ = _scan_digits(mine)
            left = uint32(k) if begins else wanted[row]
            cuda.syncthreads()
            if upto - mine < left and left <= upto:
                found[row] = digits << uint64(BITS) | uint64(tid)
                wanted[row] = left - (upto - mine)

    return narrow


@functools.cache
def make_collect(kind, itemsize, falling, vector):
    """Make the kernel ``collect``: write the k first keys of each row, and their positions, in the row's order.

    A tile looks back at those before it for two counts at once: of keys before the k-th in the upper half of a number,
    of equal ones in the lower half.
    """
    ordered, load = make_ordered(kind, itemsize, falling), make_load(vector)
    scan_lanes = make_scan_lanes(make_operations((add, 0), np.dtype(np.int64))[0])
    look_back = make_look_back(make_operations((add, 0), np.dtype(np.int64))[0])
    held, step = ROUNDS * vector, WARP * vector
    tile_size, of_warp, key_type = THREADS * held, WARP * held, getattr(types, f"uint{8 * itemsize}")

    @cuda.jit(device=True)
    def compare(key, kth):
        """1 in the upper half for a key before the k-th, in the lower half for an equal one."""
        value = uint64(ordered(key))
        return int64(1 << 32) if value < kth else int64(1) if value == kth else int64(0)

    @cuda.jit
    def collect(keys, new_keys, positions, found, wanted, words, n, tiles, k):
        tile = cuda.local.array(held, key_type)
        of_warps, shared = cuda.shared.array(WARPS, int64), cuda.shared.array(1, int64)
        start = cuda.shared.array(2, uint32)
        tid, n = cuda.threadIdx.x, uint64(n)
        draw(words, start)
        cuda.syncthreads()
        row = start[0] // uint32(tiles)
        part = start[0] - row * uint32(tiles)
        first, kth = uint64(row) * n, found[row]
        # Places count from an aligned address, at which or after which the row begins.
        before = first % uint64(vector)
        place = uint64(part) * uint64(tile_size) + uint64(tid // WARP * of_warp + tid % WARP * vector) - before
        counts = cuda.local.array(ROUNDS, int64)
        for r in range(ROUNDS):
            at = place + uint64(r * step)
            counts[r] = int64(0)
            if at < n and at + uint64(vector) <= n:
                values = load(keys, first + at)
                for v in range(vector):
                    tile[r * vector + v] = values[v]
                    counts[r] += compare(values[v], kth)
            else:
                for v in range(vector):
                    if at + uint64(v) < n:
                        tile[r * vector + v] = keys[first + at + uint64(v)]
                        counts[r] += compare(tile[r * vector + v], kth)
        total = int64(0)
        for r in range(ROUNDS):
            upto = scan_lanes(counts[r], WARP, 1)
            counts[r] = total + upto - counts[r]
            total += cuda.shfl_sync(FULL, upto, WARP - 1)
        if tid % WARP == 0:
            of_warps[tid // WARP] = total
        cuda.syncthreads()
        rank_before, total = int64(0), int64(0)
        for w in range(WARPS):
            rank_before += of_warps[w] if w < tid // WARP else int64(0)
            total += of_warps[w]
        if tid < WARP:
            prefix = look_back(words, uint64(row), uint64(part), uint64(tiles), start[1], total)
            if tid == 0:
                shared[0] = prefix
        cuda.syncthreads()
        rank_before += shared[0]
        of_equal = int64(wanted[row])
        for r in range(ROUNDS):
            rank = rank_before + counts[r]
            for v in range(vector):
                at = place + uint64(r * step + v)
                if at < n:
                    one = compare(tile[r * vector + v], kth)
                    equal = rank & int64(0xFFFFFFFF)
                    target = rank >> int64(32) if one > int64(1) else int64(k) - of_equal + equal
                    if one > int64(1) or (one == int64(1) and equal < of_equal):
                        new_keys[uint64(row) * uint64(k) + uint64(target)] = tile[r * vector + v]
                        positions[uint64(row) * uint64(k) + uint64(target)] = at
                    rank += one

    return collect


# -- host functions -------------------------------------------------------------------------------------------------


def topk(x: Any, k: int, axis: int = -1, largest: bool = True, sorted: bool = True, *, stream: Any = None) -> TopK:
    """Find the k largest or smallest elements, and where they are, as ``torch.topk`` does.

    NaN counts as larger than all numbers. Of equal elements those with the lowest indices are taken.

    Parameters
    ----------
    x : ndarray or device array of one dimension or more
        Integers or floats, also bfloat16 and bools, fewer than 2**30 along the axis.
    k : int
        From 0 to the length of the axis.
    axis : int
        The axis to search along, the last one unless given.
    largest : bool
        Whether to find the largest elements; otherwise the smallest.
    sorted : bool
        Whether they are sorted: the largest (or smallest) first, equal elements by index. Otherwise in any order.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    values, indices : ndarray or device array
        Of the library of ``x``: the shape of ``x`` with k along the axis. Indices are int64.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind. Nothing was launched.

    Examples
    --------
    >>> topk(np.array([3.0, 1.0, 4.0, 1.0, 5.0]), 2)
    TopK(values=array([5., 4.]), indices=array([4, 2]))
    """
    return TopK(*call(_top, (x,), None, stream, (k, axis, largest, sorted)))


def _check(x, k, axis):
    """Check these arguments; return shape and dtype of the values."""
    dtype, axis = check_numbers("x", x, 1, more=True, words=True), check_axis(axis, len(x.shape))
    if axis is None:
        raise TypeError("axis is None; it must be an int")
    check_length("x", x.shape[axis])
    return (*x.shape[:axis], check_int("k", k, 0, x.shape[axis]), *x.shape[axis + 1 :]), dtype


def _top(problem: Problem):
    """The launches of ``topk``."""
    (x,), (k, axis, largest, in_order) = problem.inputs, problem.settings
    (shape, dtype), axis = _check(x, k, axis), axis % len(x.shape)
    outer, n, inner = as_rows(x.shape, axis)
    rows, k, bits = outer * inner, shape[axis], np.dtype(f"u{dtype.itemsize}")
    largest, in_order = check_flag("largest", largest), check_flag("sorted", in_order)
    values, out = as_words(problem.output(shape, dtype)).view(bits), problem.output(shape, np.int64)
    if out.size == 0:
        return []
    x = as_words(x)
    if _fits_block(dtype, outer, n, inner, k):
        most = MAX_ROW_THREADS if rows <= _processors() else THREADS
        kernel, threads = make_top_row(dtype.kind, dtype.itemsize, largest), next_power_of_two(ceil_div(n, LOADS))
        launch = configure_quietly(kernel, rows, max(WARP, min(most, threads)), problem.stream)
        keys = flat(problem.on_device(x).view(bits))
        return [(launch, (keys, flat(values), flat(out.view(np.uint64)), n, k, inner))]
    keys = take_rows(problem, x, outer, n, inner).view(bits)
    top, after = put_rows(problem, values, outer, k, inner, "values")
    target, after_indices = put_rows(problem, out, outer, k, inner)
    indices, after = target.view(np.uint64), after + after_indices
    if n <= _max_sorted(dtype.itemsize, rows):
        return sort_rows(problem, dtype, keys, None, top, indices, largest) + after
    if k == 1 or not in_order:
        return _select(problem, dtype, keys, top, indices, largest) + after
    chosen = problem.work.take("chosen", rows * k, bits).reshape(rows, k)
    positions = problem.work.take("positions", rows * k, np.uint32).reshape(rows, k)
    made = _select(problem, dtype, keys, chosen, positions, largest)
    return made + sort_rows(problem, dtype, chosen, positions, top, indices, largest) + after


def _processors():
    return cuda.get_current_device().MULTIPROCESSOR_COUNT


def _max_sorted(size, rows):
    """The longest of so many rows whose first keys come from a sort of the whole row."""
    if rows > _processors():
        return min(MAX_SORTED, MAX_SORTED_BYTES // size)
    return min(max_block_row(size, rows), MAX_SORTED_ALONE // size)


def _fits_block(dtype, outer, n, inner, k):
    """Whether a block finds the first keys of each row: longer rows, and many keys of a row, take several launches.

    Of many elements those that are apart are first brought together, which takes few elements longer than the search.
    """
    rows, size = outer * inner, dtype.itemsize
    few = MAX_CHOSEN
    if rows > _processors() or n <= _max_sorted(size, rows):
        few //= 2 if rows <= _processors() and n > MAX_SORTED else 4
        if inner == 1 or rows * n > MAX_APART_MANY:
            few = min(few, max(WARP, n // 4))
    fits = size <= 4 and 1 < n <= 1 << POSITION_BITS and k <= few
    return fits and (n > max_warp_row(size) if inner == 1 else rows * n <= MAX_APART)


def _select(problem, dtype, keys, chosen, positions, largest):
    """The launches that write the first keys of each row, and their positions."""
    work, (rows, n), k, itemsize = problem.work, keys.shape, positions.shape[1], dtype.itemsize
    keys = flat(keys)
    zeros = work.zeros(rows * (DIGITS + 1))
    counts, finished = zeros[: rows * DIGITS], zeros[rows * DIGITS : rows * (DIGITS + 1)]
    found, wanted = work.take("found", rows, np.uint64), work.take("wanted", rows, np.uint32)
    vector = min(VECTOR, 16 // itemsize)
    while address_of(keys) % (vector * itemsize):
        vector //= 2
    blocks = max(1, min(ceil_div(n, THREADS * vector * 4), BLOCKS * _processors() // rows))
    kernel = make_narrow(dtype.kind, itemsize, largest, vector)
    narrow = configure_quietly(kernel, blocks * rows, THREADS, problem.stream)
    made: list[tuple] = []
    for shift in range(8 * itemsize - BITS, -1, -BITS):
        made.append((narrow, (keys, counts, finished, found, wanted, shift, n, blocks, k)))
    tiles = ceil_div(n + (vector - 1 if rows > 1 else 0), THREADS * vector * ROUNDS)
    words = count_words(make_operations("max", np.dtype(np.int64))[0], rows, tiles)
    kernel = make_collect(dtype.kind, itemsize, largest, vector)
    collect = configure_quietly(kernel, tiles * rows, THREADS, problem.stream)
    words = work.flags(2 * words).view(np.uint64)
    made.append((collect, (keys, flat(chosen), flat(positions), found, wanted, words, n, tiles, k)))
    return made
