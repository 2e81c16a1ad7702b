"""Compaction: the elements that a mask selects, moved together. Where each goes is an exclusive scan of the mask."""

import functools
import weakref
from typing import Any

import numpy as np

from gpukit._host.arrays import (
    address_of,
    as_device_array,
    check_alike,
    check_array,
    check_not_captured,
    configure_quietly,
    device_made_current,
    dtype_of,
    name_of,
    stream_for,
)
from gpukit._host.call import Problem, call
from gpukit._host.work_memory import state_of
from gpukit.backend import cuda, int32, int64, types, uint32, uint64
from gpukit.intrinsics.vectors import make_load
from gpukit.operators import make_operations
from gpukit.scan.fast import count_words, draw, make_look_back
from gpukit.scan.primitives import FULL, make_scan_lanes
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["compress", "make_select", "nonzero"]

#: Threads of a block; how often a lane reads, and elements that it reads at a time at most.
THREADS, ROUNDS, VECTOR = 256, 4, 4
WARPS = THREADS // WARP


@cuda.jit(device=True)
def add(a, b):
    return a + b


@functools.cache
def make_select(vector: int, item: int, wide: bool):
    """Make the kernel ``select``: write the elements whose mask is not zero, in order, and how many there are.

    A lane reads ``vector`` elements at a time, of ``item`` bytes; with ``item`` 0 the positions of the elements are
    written instead. ``wide`` counts are of 64 bits. The counts of a lane's rounds are the bytes of one word: a round of
    a warp has at most 128 elements, so one scan of the words is four scans of counts.
    """
    of_warp, tile_size = WARP * vector * ROUNDS, THREADS * vector * ROUNDS
    number = int64 if wide else int32
    operation, _ = make_operations((add, 0), np.dtype(np.int64 if wide else np.int32))
    word_operation, _ = make_operations((add, 0), np.dtype(np.int32))
    scan_lanes, look_back, load = make_scan_lanes(word_operation), make_look_back(operation), make_load(vector)
    piece = min(vector, 16 // max(item, 1))  # elements of one access
    load_piece = make_load(piece)
    held_type = getattr(types, f"uint{8 * item}") if item else types.uint16

    @cuda.jit(device=True)
    def flags_of(mask, place, n):
        """A lane's mask, one bit for each element."""
        flags = uint32(0)
        if place + uint64(of_warp - WARP * vector + vector) <= n:
            for r in range(ROUNDS):
                values = load(mask, place + uint64(r * WARP * vector))
                for v in range(vector):
                    flags |= uint32(1 << (r * vector + v)) if values[v] != 0 else uint32(0)
        else:
            for r in range(ROUNDS):
                for v in range(vector):
                    at = place + uint64(r * WARP * vector + v)
                    chosen = at < n and mask[at if at < n else uint64(0)] != 0
                    flags |= uint32(1 << (r * vector + v)) if chosen else uint32(0)
        return flags

    @cuda.jit
    def select(mask, x, out, count, words, tiles):
        moved = cuda.shared.array(tile_size, held_type)
        of_warps = cuda.shared.array(WARPS, int32)
        start, before = cuda.shared.array(2, uint32), cuda.shared.array(1, number)
        tid, n = uint64(cuda.threadIdx.x), uint64(mask.size)
        warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
        draw(words, start)
        cuda.syncthreads()
        base = uint64(start[0]) * uint64(tile_size)
        local = uint32(warp * of_warp + lane * vector)
        place = base + uint64(local)
        flags = flags_of(mask, place, n)
        counts, every = int32(0), uint32((1 << vector) - 1)
        for r in range(ROUNDS):
            counts |= int32(cuda.popc((flags >> uint32(r * vector)) & every)) << int32(8 * r)
        upto = scan_lanes(counts, WARP, 1)
        ends = uint32(cuda.shfl_sync(FULL, upto, WARP - 1))
        lanes_before = uint32(upto) - uint32(counts)
        if lane == 0:
            whole = int32(0)
            for r in range(ROUNDS):
                whole += int32((ends >> uint32(8 * r)) & uint32(255))
            of_warps[warp] = whole
        cuda.syncthreads()

        rank, total = int32(0), int32(0)
        for w in range(WARPS):
            rank += of_warps[w] if w < warp else int32(0)
            total += of_warps[w]
        for r in range(ROUNDS):
            inside = rank + int32((lanes_before >> uint32(8 * r)) & uint32(255))
            mine = (flags >> uint32(r * vector)) & every
            if mine != uint32(0):
                if item:
                    at = place + uint64(r * WARP * vector)
                    if at + uint64(vector) <= n:
                        for p in range(0, vector, piece):
                            values = load_piece(x, at + uint64(p))
                            for v in range(piece):
                                if mine & uint32(1 << (p + v)):
                                    moved[inside] = values[v]
                                    inside += 1
                    else:
                        for v in range(vector):
                            if mine & uint32(1 << v):
                                moved[inside] = x[at + uint64(v)]
                                inside += 1
                else:
                    for v in range(vector):
                        if mine & uint32(1 << v):
                            moved[inside] = held_type(local + uint32(r * WARP * vector + v))
                            inside += 1
            rank += int32((ends >> uint32(8 * r)) & uint32(255))
        if tid < uint64(WARP):
            prefix = look_back(words, uint64(0), uint64(start[0]), uint64(tiles), start[1], number(total))
            if tid == uint64(0):
                before[0] = prefix
                if start[0] == uint32(tiles - 1):
                    count[0] = prefix + number(total)
                    cuda.threadfence_system()  # the host is waiting for it
        cuda.syncthreads()
        i = cuda.threadIdx.x
        while i < total:
            out[uint64(before[0]) + uint64(i)] = moved[i] if item else int64(base + uint64(moved[i]))
            i += THREADS

    return select


def compress(mask: Any, x: Any, *, stream: Any = None) -> Any:
    """Return the elements of an array that a mask selects, in their order, as ``x[mask]`` and ``np.compress`` do.

    Parameters
    ----------
    mask : ndarray or device array of one dimension
        Bools or numbers: an element that is not zero selects.
    x : array of the same kind and length
        Elements of 1, 2, 4 or 8 bytes: numbers, also bfloat16 and complex64, dates.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. The call waits for the number
        of elements.

    Returns
    -------
    ndarray or device array
        Of the library of ``mask``. A device array is the beginning of one as long as ``x``.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind. Nothing was launched.

    Examples
    --------
    >>> compress(np.array([True, False, True]), np.array([5, 6, 7]))
    array([5, 7])
    """
    return _selected((mask, x), stream)


def nonzero(x: Any, *, stream: Any = None) -> Any:
    """Return the indices of the elements that are not zero, as ``np.flatnonzero`` does for one dimension.

    Parameters
    ----------
    x : ndarray or device array of one dimension
        Bools or numbers.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. The call waits for the number
        of elements.

    Returns
    -------
    ndarray or device array, int64

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> nonzero(np.array([0, 3, 0, 1]))
    array([1, 3])
    """
    return _selected((x,), stream)


#: Bytes of the elements that are moved.
ITEMSIZES = (1, 2, 4, 8)
#: Where the count of a stream's calls goes: memory of the host, which the device writes.
_COUNTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
#: How often the count is polled, in less than 0.1 us each, before a synchronisation, which takes longer to return.
LOOKS = 1000


def _count_of(state):
    """The array for the count of a stream's calls, as the device sees it, and as the host does."""
    if state not in _COUNTS:
        array: Any = cuda.mapped_array(1, np.int64, portable=True)
        _COUNTS[state] = as_device_array(array), memoryview(array)
    return _COUNTS[state]


def _selected(inputs, stream):
    if device := device_made_current(inputs):
        with device:
            return _selected(inputs, stream)
    target = stream_for(stream, inputs[0])
    check_not_captured(target, "it waits for the number of elements")
    state = state_of(target)
    with state.lock:  # the count is the stream's until it has been read
        _, count = _count_of(state)
        count[0] = -1
        made = call(_select, inputs, None, target or stream, ())
        if made.shape[0] == 0:
            return made
        for _ in range(LOOKS):
            if count[0] >= 0:
                break
        else:
            (target or cuda.default_stream()).synchronize()
        return made[: count[0]]


def _select(problem: Problem):
    """The launches of ``compress`` and ``nonzero``."""
    mask, *x = problem.inputs
    names, x = (("mask", "x"), x[0]) if x else (("x", ""), None)
    check_array(names[0], mask, 1)
    _check_dtype(names[0], dtype_of(mask))
    n, result = mask.shape[0], np.dtype(np.int64)
    if x is not None:
        check_array("x", x, 1)
        result = dtype_of(x)
        if result.hasobject or result.itemsize not in ITEMSIZES:
            raise TypeError(f"x has dtype {name_of(result)}; its elements must have 1, 2, 4 or 8 bytes")
        check_alike("x", x, "mask", mask, (n,), result)
    out = problem.output((n,), result)
    if n == 0:
        return []
    mask, index = problem.on_device(mask), x is None
    x = mask if index else problem.on_device(x)
    # Bits are moved, whatever they mean; and a bool is a byte.
    mask = mask.view(np.uint8) if mask.dtype.kind == "b" else mask
    bits, size = np.dtype(f"u{x.dtype.itemsize}"), 0 if index else x.dtype.itemsize
    x, flat = (x, out) if index else (x.view(bits), out.view(bits))
    vector = VECTOR
    while address_of(mask) % (vector * mask.dtype.itemsize) or vector * mask.dtype.itemsize > 16:
        vector //= 2
    while size and address_of(x) % min(vector * size, 16):
        vector //= 2
    wide, tiles = n >= 1 << 31, ceil_div(n, THREADS * vector * ROUNDS)
    words = count_words(make_operations("max", np.dtype(np.int64 if wide else np.int32))[0], 1, tiles)
    count, words = _count_of(state_of(problem.stream))[0], problem.work.flags(2 * words).view(np.uint64)
    launch = configure_quietly(make_select(vector, size, wide), tiles, THREADS, problem.stream)
    return [(launch, (mask, x, flat, count, words, tiles))]


def _check_dtype(name, dtype):
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
        raise TypeError(f"{name} has dtype {dtype}; it must be bool, an integer or a float of at most 8 bytes")
