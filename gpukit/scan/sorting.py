"""Radix sort: least significant digit first, one pass over memory for each digit of 8 bits.

1. ``count_digits``: how often each digit occurs in the keys, for all passes at once.
2. ``place_digits``: where the keys of each digit begin: a scan of the counts.
3. ``sweep``: one pass. A block ranks the keys of a tile by their digit, looks back at the tiles before it for their
   counts of each digit, and moves its keys. Keys of one digit keep their order, so the sort is stable.

The bits of a key are moved as they are. What is sorted is an unsigned number made from them (``make_ordered``): the
sign bit of an integer is flipped, a negative float is complemented. -0.0 equals 0.0, and NaN comes last, as in NumPy.
"""

import functools
from typing import Any

import numpy as np

from gpukit._host.arrays import check_alike, check_apart, check_array, check_numbers, configure_quietly
from gpukit._host.call import Problem, call
from gpukit.backend import cuda, int32, types, uint32, uint64
from gpukit.scan.primitives import FULL, block_scan
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["argsort", "make_count_digits", "make_ordered", "make_sweep", "place_digits", "sort"]

#: Digits have 8 bits: a block has a thread for each.
BITS, DIGITS = 8, 256
WARPS = DIGITS // WARP
#: Keys of a thread, by their bytes.
KEYS = {1: 16, 2: 16, 4: 16, 8: 8}
#: Blocks per multiprocessor that count digits.
BLOCKS = 4
#: What a tile has published for a digit: its own count, or that of all tiles up to it. 30 bits are left for the count.
OWN, ALL, COUNT = 1 << 30, 2 << 30, (1 << 30) - 1


@functools.cache
def make_ordered(kind: str, itemsize: int):
    """Make ``ordered(bits)``: an unsigned number that is in the order of the keys with these bits."""
    number, width = getattr(types, f"uint{8 * itemsize}"), 8 * itemsize
    sign, ones = 1 << width - 1, (1 << width) - 1
    infinity = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}.get(itemsize, 0)

    @cuda.jit(device=True)
    def ordered(bits):
        if kind == "u":
            return bits
        if kind == "i":
            return number(bits ^ number(sign))
        magnitude = number(bits & number(sign - 1))
        if magnitude > number(infinity):  # NaN
            return number(ones)
        if magnitude == number(0) or bits < number(sign):
            return number(magnitude | number(sign))
        return number(bits ^ number(ones))

    return ordered


@functools.cache
def make_count_digits(kind, itemsize):
    """Make the kernel ``count_digits``: counts[pass, digit] over all keys."""
    ordered, passes = make_ordered(kind, itemsize), itemsize

    @cuda.jit
    def count_digits(keys, counts):
        own = cuda.shared.array((passes, DIGITS), uint32)
        tid = cuda.threadIdx.x
        for p in range(passes):
            own[p, tid] = uint32(0)
        cuda.syncthreads()
        i = uint64(cuda.blockIdx.x) * uint64(DIGITS) + uint64(tid)
        while i < uint64(keys.size):
            key = uint64(ordered(keys[i]))
            for p in range(passes):
                cuda.atomic.add(own, (p, int32((key >> uint64(p * BITS)) & uint64(DIGITS - 1))), uint32(1))
            i += uint64(cuda.gridDim.x) * uint64(DIGITS)
        cuda.syncthreads()
        for p in range(passes):
            cuda.atomic.add(counts, (p, tid), own[p, tid])

    return count_digits


_scan_digits = block_scan(DIGITS, np.uint32)


@cuda.jit
def place_digits(counts):
    """Replace the counts of each pass by the number of keys with smaller digits. A block does a pass."""
    p, digit = cuda.blockIdx.x, cuda.threadIdx.x
    count = counts[p, digit]
    upto, _ = _scan_digits(count)
    counts[p, digit] = upto - count


@cuda.jit
def clear(counts, published):
    """Set the counts to 0, and what tiles have published to nothing."""
    i, step = uint64(cuda.grid(1)), uint64(cuda.gridsize(1))
    while i < uint64(published.size):
        if i < uint64(counts.size):
            counts[i // uint64(DIGITS), i % uint64(DIGITS)] = uint32(0)
        published[i] = uint32(0)
        i += step


@functools.cache
def make_sweep(kind, itemsize, value_size, index):
    """Make the kernel ``sweep``: sort keys, and values of ``value_size`` bytes (0: none), by one digit, stably.

    With ``index`` the values are not read: they are the positions of the keys.
    """
    ordered, each = make_ordered(kind, itemsize), KEYS[itemsize]
    key_type, tile_size, of_warp = getattr(types, f"uint{8 * itemsize}"), DIGITS * each, WARP * each
    value_type = getattr(types, f"uint{8 * value_size}") if value_size else key_type
    wide = types.uint64 if max(itemsize, value_size) == 8 else types.uint32

    @cuda.jit(device=True)
    def digit_of(key, shift):
        return int32((uint64(ordered(key)) >> shift) & uint64(DIGITS - 1))

    @cuda.jit(device=True)
    def rank(digits, ranks, counts, warp, lane):
        """Rank a warp's keys among those of their digit, and count them."""
        for d in range(lane, DIGITS, WARP):
            counts[warp, d] = uint32(0)
        cuda.syncwarp()
        before = uint32((1 << lane) - 1)
        for k in range(each):
            peers = uint32(cuda.match_any_sync(FULL, digits[k]))
            place = cuda.popc(peers & before)
            ranks[k] = counts[warp, digits[k]] + uint32(place)
            cuda.syncwarp()
            if place == 0:
                counts[warp, digits[k]] += uint32(cuda.popc(peers))
            cuda.syncwarp()

    @cuda.jit(device=True)
    def keys_before(published, offset, tile, digit, own):
        """Publish the number of keys of a digit in this tile; return the number in all tiles before it."""
        at, total = offset + tile * uint64(DIGITS) + uint64(digit), uint32(0)
        if tile > uint64(0):
            cuda.atomic.exch(published, at, uint32(OWN) | own)
            look, left = at, tile
            while left > uint64(0):
                look -= uint64(DIGITS)
                left -= uint64(1)
                word = cuda.atomic.add(published, look, uint32(0))
                while word == uint32(0):
                    cuda.nanosleep(20)
                    word = cuda.atomic.add(published, look, uint32(0))
                total += word & uint32(COUNT)
                if word >= uint32(ALL):
                    break
        cuda.atomic.exch(published, at, uint32(ALL) | (total + own))
        return total

    @cuda.jit
    def sweep(keys, values, new_keys, new_values, first, published, ticket, number, tiles):
        counts = cuda.shared.array((WARPS, DIGITS), uint32)
        starts = cuda.shared.array(DIGITS, uint32)
        targets = cuda.shared.array(DIGITS, uint32)
        moved = cuda.shared.array(tile_size, wide)
        mine = cuda.shared.array(1, uint32)
        held = cuda.local.array(each, key_type)
        digits = cuda.local.array(each, int32)
        ranks = cuda.local.array(each, uint32)
        tid = cuda.threadIdx.x
        warp, lane, shift = tid // WARP, tid % WARP, uint64(number) * uint64(BITS)
        if tid == 0:
            mine[0] = cuda.atomic.inc(ticket, 0, uint32(cuda.gridDim.x - 1))
        cuda.syncthreads()
        tile, n = uint64(mine[0]), uint64(keys.size)
        base = tile * uint64(tile_size)
        place = base + uint64(warp * of_warp + lane)
        for k in range(each):
            at = place + uint64(k * WARP)
            held[k] = keys[at if at < n else uint64(0)]
        for k in range(each):
            # Threads past the end take part with the last digit: their keys come after all others of the tile.
            digits[k] = digit_of(held[k], shift) if place + uint64(k * WARP) < n else int32(DIGITS - 1)
        rank(digits, ranks, counts, warp, lane)
        cuda.syncthreads()

        own = uint32(0)  # from here on, a thread stands for a digit
        for w in range(WARPS):
            count = counts[w, tid]
            counts[w, tid] = own
            own += count
        upto, _ = _scan_digits(own)
        starts[tid] = upto - own
        targets[tid] = first[number, tid] + keys_before(
            published, uint64(number) * uint64(tiles) * uint64(DIGITS), tile, tid, own
        )
        cuda.syncthreads()

        for k in range(each):
            ranks[k] += starts[digits[k]] + counts[warp, digits[k]]
            moved[ranks[k]] = wide(held[k])
        cuda.syncthreads()
        left = min(n - base, uint64(tile_size))
        for k in range(each):
            at = uint32(k * DIGITS + tid)
            if uint64(at) < left:
                key = key_type(moved[at])
                digit = digit_of(key, shift)
                digits[k] = int32(targets[digit] + at - starts[digit])
                new_keys[uint64(uint32(digits[k]))] = key
        if value_size:
            cuda.syncthreads()
            for k in range(each):
                at = place + uint64(k * WARP)
                moved[ranks[k]] = wide(at) if index else wide(values[at if at < n else uint64(0)])
            cuda.syncthreads()
            for k in range(each):
                at = uint32(k * DIGITS + tid)
                if uint64(at) < left:
                    new_values[uint64(uint32(digits[k]))] = value_type(moved[at])

    return sweep


# -- host functions -------------------------------------------------------------------------------------------------


def sort(x: Any, values: Any = None, *, out: Any = None, stream: Any = None) -> Any:
    """Sort numbers in increasing order, as ``np.sort(x, kind="stable")`` does; NaN comes last.

    Parameters
    ----------
    x : ndarray or device array of one dimension
        Integers or floats, fewer than 2**30.
    values : array of the same kind and length, optional
        Numbers that belong to the elements. They are sorted instead, by the order of ``x``: those of equal elements
        keep their order.
    out : array, optional
        For the result: like ``values`` if they are given, else like ``x``. On the device it must not share memory with
        either.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

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
    return call(_sort, (x, values), out, stream, (False,))


def argsort(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Return the indices that would sort an array, as ``np.argsort(x, kind="stable")`` does.

    Parameters
    ----------
    x, stream
        As for `sort`.
    out : array of the length of ``x``, int64, optional

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
    return call(_sort, (x, None), out, stream, (True,))


def _sort(problem: Problem):
    """The launches of ``sort`` and ``argsort``."""
    (x, values), (index,) = problem.inputs, problem.settings
    dtype = _check_keys("x", x)
    n = x.shape[0]
    result = np.dtype(np.int64) if index else dtype
    if values is not None:
        result = _check_keys("values", values)
        check_alike("values", values, "x", x, (n,), result)
    if problem.out is not None:
        check_array("out", problem.out, 1)
        check_alike("out", problem.out, "x", x, (n,), result)
        check_apart("out", problem.out, x=x, **({} if values is None else {"values": values}))
    out = problem.output((n,), result)
    if n == 0:
        return []
    key_bits, moves = np.dtype(f"u{dtype.itemsize}"), index or values is not None
    value_bits = np.dtype(f"u{result.itemsize}") if moves else key_bits
    keys = problem.on_device(x).view(key_bits)
    old = problem.on_device(values).view(value_bits) if values is not None else keys
    return _passes(problem, keys, old, out.view(value_bits), dtype, value_bits if moves else None, index)


def _passes(problem, keys, old, out, dtype, value_bits, index):
    """The launches that sort: counts, places, and a sweep for each byte of the keys."""
    work, n, passes = problem.work, keys.shape[0], dtype.itemsize
    tiles = ceil_div(n, DIGITS * KEYS[dtype.itemsize])
    counts = work.take("digits", passes * DIGITS, np.uint32).reshape(passes, DIGITS)
    published = work.take("published", passes * tiles * DIGITS, np.uint32)
    spare = [work.take(f"keys {i}", n, keys.dtype) for i in (0, 1)]
    spare_values = [work.take(f"values {i}", n, value_bits) for i in (0, 1)] if value_bits else spare
    blocks = min(ceil_div(n, DIGITS * 8), BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT)
    count = make_count_digits(dtype.kind, passes)

    def configure(kernel, grid):
        return configure_quietly(kernel, grid, DIGITS, problem.stream)

    made = [
        (configure(clear, ceil_div(min(published.size, 1 << 20), DIGITS)), (counts, published)),
        (configure(count, blocks), (keys, counts)),
        (configure(place_digits, passes), (counts,)),
    ]
    for number in range(passes):
        last = number == passes - 1
        new_keys = out if last and not value_bits else spare[number % 2]
        new_values = (out if last else spare_values[number % 2]) if value_bits else new_keys
        size = value_bits.itemsize if value_bits else 0
        kernel = make_sweep(dtype.kind, passes, size, index and number == 0)
        arguments = (keys, old, new_keys, new_values, counts, published, work.zeros(1), number, tiles)
        made.append((configure(kernel, tiles), arguments))
        keys, old = new_keys, new_values
    return made


def _check_keys(name, array):
    dtype = check_numbers(name, array, 1)
    if array.shape[0] > COUNT:
        raise ValueError(f"{name} has {array.shape[0]:,} elements; it must have fewer than {COUNT + 1:,}")
    return dtype
