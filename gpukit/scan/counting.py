"""Histograms: kernels that count values into bins, from one counter in global memory to one for every lane.

1. ``global_atomics``: every value adds to its bin in global memory. Equal values wait for one another.
2. ``shared_atomics``: a block counts in shared memory, and adds its counts to the result once.
3. ``private``: each lane of a warp has a copy of the bins in a bank of its own, as far as shared memory goes.

`histogram` uses the third, and the first for more bins than shared memory holds. Counts are integers: the order of the
additions does not matter, and the result is the same in every run.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import (
    address_of,
    as_device_array,
    check_alike,
    check_apart,
    check_array,
    check_not_captured,
    check_numbers,
    configure_quietly,
    device_made_current,
    stream_for,
)
from gpukit._host.call import Problem, call
from gpukit.backend import cuda, float32, float64, int32, int64, types, uint32, uint64
from gpukit.intrinsics.vectors import make_load
from gpukit.operators import make_operations
from gpukit.reduce.api import launches
from warpstep.integers import ceil_div, next_power_of_two
from warpstep.limits import WARP
from warpstep.values import describe, is_int

__all__ = ["global_atomics", "histogram", "make_find_bin", "make_private", "shared_atomics"]

#: Bins, at most.
MAX_BINS = 1 << 24
#: Threads of a block, blocks per multiprocessor, and bytes of shared memory that its counters take at most: what a
#: kernel may have without opting in, less the word that tells which block is last, with padding.
THREADS = 512
BLOCKS = 4
SHARED_BYTES = 48 * 1024 - 16
#: Elements of a block at least, where there are several.
MIN_ELEMENTS = 4096
#: Registers of a thread at most, for four blocks on a multiprocessor.
REGISTERS = 32
#: Bins are found in float32 if that leaves less of a bin in doubt.
MAX_DOUBT = 1 / 32
#: Adding 1.5 * 2**23 rounds a float32 to a whole number, which the sum's bits then exceed by those of this constant.
ROUNDER, ROUNDER_BITS = np.float32(1.5 * 2**23), np.uint32(0x4B400000)
HALF = np.float32(0.5)
#: Values of a thread whose bins are found at once, and sums of blocks that it reads at once: for more there are too few
#: registers.
TOGETHER, SUMS = 4, 4


# -- for reading ----------------------------------------------------------------------------------------------------


@cuda.jit
def global_atomics(x, counts):
    """Count bytes: one atomic addition in global memory for each."""
    i = cuda.grid(1)
    while i < x.size:
        cuda.atomic.add(counts, x[i], 1)
        i += cuda.gridsize(1)


@cuda.jit
def shared_atomics(x, counts):
    """Count bytes: a block's counts are in shared memory, and go to global memory at the end."""
    own = cuda.shared.array(256, np.int32)
    tid = cuda.threadIdx.x
    for b in range(tid, 256, cuda.blockDim.x):
        own[b] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < x.size:
        cuda.atomic.add(own, x[i], 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    for b in range(tid, 256, cuda.blockDim.x):
        cuda.atomic.add(counts, b, own[b])


# -- for speed ------------------------------------------------------------------------------------------------------


@cuda.jit
def clear(counts):
    """Set all counts to 0."""
    i = cuda.grid(1)
    if i < counts.size:
        counts[i] = 0


class Bins(NamedTuple):
    """How a bin is found; numbers are of one type, "float32" or "float64".

    Attributes
    ----------
    low, high : number
        The smallest and the largest number that is in a bin.
    first, scale : number
        The bin of a value is (value - first) * scale, but for rounding.
    doubt : number
        How far from an edge, in bins, that may be wrong.
    """

    low: Any
    high: Any
    first: Any
    scale: Any
    doubt: Any


@functools.cache
def make_find_bin(even: bool, name: str = "float64"):
    """Make ``find_bin(value, edges, bins, low, high, first, scale, doubt)``: the bin of a value; ``bins`` for none.

    Bin b holds edges[b] <= value < edges[b + 1], the last one its right edge too. If the bins are ``even``, the bin is
    computed, in numbers of the type ``name``, and the edges are consulted where rounding leaves a doubt about it;
    otherwise it is searched for.
    """
    number = getattr(types, name)
    if even:

        @cuda.jit(device=True)
        def find_bin(value, edges, bins, low, high, first, scale, doubt):
            held, last = number(value), uint32(bins - uint32(1))
            fits = held >= number(low) and held <= number(high)  # not NaN
            place = (held - number(first)) * number(scale) if fits else number(0.5)
            b = uint32(min(uint32(place), last))
            inside = place - number(b)
            if inside < number(doubt) or inside > number(1) - number(doubt):
                if float64(value) < edges[b]:
                    b = uint32(b - uint32(1))
                elif b < last and float64(value) >= edges[b + uint32(1)]:
                    b = uint32(b + uint32(1))
            return b if fits else bins

        return find_bin

    @cuda.jit(device=True)
    def find_bin(value, edges, bins, low, high, first, scale, doubt):
        value = float64(value)
        if not (value >= low and value <= high):
            return bins
        lowest, highest = uint32(0), bins - uint32(1)
        while lowest < highest:
            middle = (lowest + highest + uint32(1)) // uint32(2)
            if value >= edges[middle]:
                lowest = middle
            else:
                highest = middle - uint32(1)
        return lowest

    return find_bin


@functools.cache
def make_round_bins(vector):
    """Make ``round_bins(held, begin, found, first, scale)``: the bins of ``vector`` values, and how close an edge is.

    In float32, without a branch: places are rounded by an addition, as conversions to integers and back are slower. A
    value outside of all bins, or NaN, gets a number that no bin has. Returned is the largest distance from the middle
    of a bin, in bins; near 0.5 the other bin at the edge may be the right one.
    """
    as_bits = cuda.libdevice.float_as_int

    @cuda.jit(device=True)
    def round_bins(held, begin, found, first, scale):
        furthest = float32(0)
        for v in range(vector):
            place = (float32(held[begin + v]) - first) * scale - HALF
            rounded = place + ROUNDER
            found[v] = uint32(uint32(as_bits(rounded)) - ROUNDER_BITS)
            furthest = max(furthest, abs(place - (rounded - ROUNDER)))
        return furthest

    return round_bins


@functools.cache
def make_private(even, name, vector, where, offset=0):
    """Make the kernel ``private``: counters [slot, copy] in dynamic shared memory; lanes with one copy share it.

    If ``where`` is "shared", a slot is a bin, with 2**shift copies. If it is "bytes", a slot is a byte plus the
    ``offset``, with 32 copies: a bin is found for 256 values only, and with ``staged`` bins have counters too, after
    the others. With "global" the counters are the result itself.

    A block that is alone writes the result. Several blocks add to ``partial``, and the last one to finish writes the
    result: ``partial`` and ``finished`` are 0 before and after. With "global", or bytes that are not ``staged``, the
    result must be 0 before.
    """
    find_bin, load, together = make_find_bin(even, name), make_load(vector), min(vector, TOGETHER)
    round_bins, rounds = make_round_bins(together), even and name == "float32" and where != "bytes"
    bytes_only, private_copies = where == "bytes", where != "global"

    @cuda.jit(device=True)
    def take(x, at, size, held):
        """Read a thread's elements, or the last one again in place of those past the end."""
        if at + uint64(vector) <= size:
            values = load(x, at)
            for v in range(vector):
                held[v] = values[v]
        elif at < size:
            for v in range(vector):
                held[v] = x[min(at + uint64(v), size - uint64(1))]

    @cuda.jit(device=True)
    def add_byte(value, own, copy):
        cuda.atomic.add(own, uint32(int32(value) * int32(WARP) + int32(offset * WARP) + int32(copy)), uint32(1))

    @cuda.jit(device=True)
    def add_one(b, own, copy, shift, counts, bins):
        if b < bins:
            if private_copies:
                cuda.atomic.add(own, uint32(uint32(b << shift) + copy), uint32(1))
            else:
                cuda.atomic.add(counts, b, int64(1))

    @cuda.jit(device=True)
    def count(held, left, own, copy, shift, counts, edges, bins, low, high, first, scale, doubt):
        """Count the first ``left`` of a thread's elements."""
        found = cuda.local.array(together, uint32)
        if rounds and left == int32(vector):
            for begin in range(0, vector, together):
                if round_bins(held, begin, found, first, scale) > HALF - doubt:
                    for v in range(together):
                        found[v] = find_bin(held[begin + v], edges, bins, low, high, first, scale, doubt)
                for v in range(together):
                    add_one(found[v], own, copy, shift, counts, bins)
        elif bytes_only and left == int32(vector):
            for v in range(vector):
                add_byte(held[v], own, copy)
        else:
            for v in range(vector):
                if int32(v) < left:
                    if bytes_only:
                        add_byte(held[v], own, copy)
                    else:
                        b = find_bin(held[v], edges, bins, low, high, first, scale, doubt)
                        add_one(b, own, copy, shift, counts, bins)

    @cuda.jit(device=True)
    def add_copies(own, slot, shift):
        """Add up a slot's copies. Neighbouring threads begin with different copies, to read different banks."""
        first, mask, total = uint32(slot << shift), uint32(uint32(uint32(1) << shift) - uint32(1)), uint32(0)
        turn, c = uint32(first // uint32(WARP)), uint32(0)
        while c <= mask:
            total = uint32(total + own[uint32(first + uint32(uint32(c + turn) & mask))])
            c = uint32(c + uint32(1))
        return total

    @cuda.jit(max_registers=REGISTERS)
    def private(x, counts, partial, finished, edges, bins, shift, staged, low, high, first, scale, doubt):
        own, last = cuda.shared.array(0, uint32), cuda.shared.array(1, uint32)
        held, after = cuda.local.array(vector, x.dtype), cuda.local.array(vector, x.dtype)
        sums = cuda.local.array(SUMS, uint64)
        tid, threads, bins, shift = uint32(cuda.threadIdx.x), uint32(cuda.blockDim.x), uint32(bins), uint32(shift)
        size, step = uint64(x.size), uint64(cuda.gridDim.x) * uint64(threads) * uint64(vector)
        at = (uint64(cuda.blockIdx.x) * uint64(threads) + uint64(tid)) * uint64(vector)
        take(x, at, size, held)  # on the way while the counters are set to 0
        copy, slots = uint32(tid & uint32(uint32(uint32(1) << shift) - uint32(1))), uint32(256) if bytes_only else bins
        further = uint32(slots << shift)  # where the counters of bins are, if others came before them
        if private_copies:
            words, place = uint32(further + (bins if bytes_only and staged else uint32(0))), tid
            while place < words:
                own[place] = uint32(0)
                place = uint32(place + threads)
            cuda.syncthreads()
        while at < size:
            if not bytes_only:  # the next elements are on the way while these are counted
                take(x, at + step, size, after)
            left = int32(min(size - at, uint64(vector)))
            count(held, left, own, copy, shift, counts, edges, bins, low, high, first, scale, doubt)
            at += step
            if bytes_only:
                take(x, at, size, held)
            else:
                for v in range(vector):
                    held[v] = after[v]
        if not private_copies:
            return
        cuda.syncthreads()
        if bytes_only:
            slot = tid
            while slot < slots:
                total = add_copies(own, slot, shift)
                b = find_bin(int32(slot) - int32(offset), edges, bins, low, high, first, scale, doubt)
                if total > uint32(0) and b < bins:
                    if staged:
                        cuda.atomic.add(own, uint32(further + b), total)
                    else:
                        cuda.atomic.add(counts, b, int64(total))
                slot = uint32(slot + threads)
            if not staged:
                return
            cuda.syncthreads()
        alone = cuda.gridDim.x == 1
        b = tid
        while b < bins:
            total = own[uint32(further + b)] if bytes_only else add_copies(own, b, shift)
            if alone:
                counts[b] = int64(total)
            elif total > uint32(0):
                cuda.atomic.add(partial, b, uint64(total))
            b = uint32(b + threads)
        if alone:
            return
        cuda.syncthreads()
        if tid == uint32(0):
            cuda.threadfence()  # the block's counts come before its arrival, and after it those of all blocks
            last[0] = cuda.atomic.inc(finished, 0, uint32(cuda.gridDim.x - 1))
            cuda.threadfence()
        cuda.syncthreads()
        if last[0] == uint32(cuda.gridDim.x - 1):
            b = tid
            while b < bins:
                for k in range(SUMS):  # all loads come before the first store, which each would wait for
                    more = uint32(b + uint32(uint32(k) * threads))
                    sums[k] = partial[more if more < bins else b]
                for k in range(SUMS):
                    more = uint32(b + uint32(uint32(k) * threads))
                    if more < bins:
                        counts[more] = int64(sums[k])
                        partial[more] = uint64(0)
                b = uint32(b + uint32(uint32(SUMS) * threads))

    return private


# -- the host function ----------------------------------------------------------------------------------------------


def histogram(
    x: Any, bins: Any = 10, range: tuple | None = None, *, out: Any = None, stream: Any = None
) -> tuple[Any, np.ndarray]:
    """Count values into bins, as ``np.histogram`` does.

    Parameters
    ----------
    x : ndarray or device array
        Integers or floats, any shape. One that is not C-contiguous is copied first. 64-bit integers are compared as
        float64.
    bins : int or sequence of numbers
        How many bins of one width, or their edges in increasing order. A bin holds its left edge; the last one holds
        both. Values outside all bins, and NaN, are not counted.
    range : (number, number), optional
        The first and the last edge, for a number of bins. Those of the smallest and the largest element unless given;
        the call then waits for both.
    out : array of shape (bins,), int64, optional
        For the counts; of the same kind as ``x``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the counts are there.

    Returns
    -------
    counts : ndarray or device array, int64
        ``out`` if that was given, otherwise new, of the library of ``x``.
    edges : ndarray
        One more than the bins.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind. Nothing was launched.

    Examples
    --------
    >>> counts, edges = histogram(np.array([1, 2, 1]), bins=[0, 1, 2, 3])
    >>> counts
    array([0, 2, 1])
    """
    known = _KNOWN.get((id(bins), id(range), getattr(x, "dtype", None)))
    settings, edges, *_ = _settings_of(x, bins, range, stream) if known is None else known
    return call(_histogram, (x,), out, stream, settings), edges


#: What `_settings_of` found, by the ids of bins and range and the dtype of x, and both, so that these ids stay theirs.
_KNOWN: dict = {}
MAX_KNOWN = 256


def _settings_of(x, bins, span, stream):
    """(Settings of a call, edges, bins, span)."""
    if not is_int(bins):
        edges = _given_edges(bins)
        return (edges.tobytes(), edges.dtype.str, None), edges, bins, span
    settings = (int(bins), *_span(x, bins, span, stream))
    found = settings, _even_edges(*settings, _dtype_of(x)), bins, span
    if type(span) is tuple and {int, float}.issuperset(map(type, (bins, *span))):  # which cannot change
        if len(_KNOWN) >= MAX_KNOWN:
            _KNOWN.clear()
        _KNOWN[id(bins), id(span), x.dtype] = found
    return found


#: NumPy's dtypes by those of arrays that were checked: the array interface of another library costs more than a launch.
_DTYPES: dict = {}


def _dtype_of(x):
    """The NumPy dtype of an array, which is checked unless one of its dtype was: the planner checks each layout."""
    try:
        return _DTYPES[x.dtype]
    except Exception:
        dtype = check_numbers("x", x, 0, more=True)
    return _DTYPES.setdefault(x.dtype, dtype)


def _given_edges(bins):
    """The edges that the caller gave."""
    try:
        edges = np.asarray(bins)
    except Exception:
        edges = np.array(None)
    if edges.ndim != 1 or edges.dtype.kind not in "iuf" or edges.size < 2:
        raise TypeError(f"bins is {describe(bins)}; it must be an int, or a sequence of at least two edges")
    if edges.size > MAX_BINS + 1:
        raise ValueError(f"bins has {edges.size:,} edges; it must have {MAX_BINS + 1:,} at most")
    if not (edges[:-1] <= edges[1:]).all():
        raise ValueError(f"bins is {describe(bins)}; edges must increase")
    edges = edges.copy()
    edges.flags.writeable = False
    return edges


def _span(x, bins, span, stream):
    """The first and the last edge of bins of one width."""
    if not 1 <= bins <= MAX_BINS:
        raise ValueError(f"bins is {describe(bins)}; it must be from 1 to {MAX_BINS:,}")
    if span is None:
        low, high = _extent(x, stream)
    else:
        try:
            low, high = (float(value) if isinstance(value, float) else value for value in span)
            finite = math.isfinite(low) and math.isfinite(high)
        except Exception:
            raise TypeError(f"range is {describe(span)}; it must be a pair of numbers") from None
        if not finite or low > high:
            raise ValueError(f"range is {describe(span)}; it must be two finite numbers, the smaller one first")
    return (low - 0.5, high + 0.5) if low == high else (low, high)


@functools.lru_cache(maxsize=64, typed=True)
def _even_edges(bins, low, high, dtype):
    """The edges of bins of one width, for elements of a dtype."""
    kind = np.result_type(low, high, dtype)
    kind = kind if kind.kind == "f" else np.dtype(float)
    edges = np.linspace(low, high, bins + 1, dtype=kind)
    if not (edges[:-1] < edges[1:]).all():
        raise ValueError(f"bins is {bins}, too many for {kind} numbers from {low} to {high}; some would be empty")
    edges.flags.writeable = False
    return edges


def _extent(x, stream):
    """The smallest and the largest element: both are waited for once."""
    _dtype_of(x)
    if math.prod(x.shape) == 0:
        return 0.0, 1.0
    if device := device_made_current((x,)):
        with device:
            return _extent(x, stream)
    target = stream_for(stream, x)
    check_not_captured(target, "without a range, it waits for the smallest and the largest element")
    found = call(_extremes, (x,), None, target)
    if not isinstance(found, np.ndarray):
        found = as_device_array(found).copy_to_host(stream=target)
        if target:
            target.synchronize()
    if not np.isfinite(found).all():
        raise ValueError(f"x has elements from {found[0]} to {found[1]}; give a range, which must be finite")
    return found[0], found[1]


def _extremes(problem: Problem):
    """The launches that find the smallest and the largest element."""
    (x,) = problem.inputs
    check_numbers("x", x, 0, more=True)
    size, out = math.prod(x.shape), problem.output((2,))
    flat, made = problem.on_device(x).reshape(size), []
    for at, op in enumerate(("min", "max")):
        operations = make_operations(op, flat.dtype)
        made += launches(flat, [(size, True)], *operations, out[at : at + 1], problem.work, problem.stream)
    return made


def _histogram(problem: Problem):
    """The launches of ``histogram``."""
    (x,), (bins, low, high) = problem.inputs, problem.settings
    dtype = check_numbers("x", x, 0, more=True)
    edges = np.frombuffer(bins, low) if high is None else _even_edges(bins, low, high, dtype)
    bins, edge_dtype, edges = edges.size - 1, edges.dtype, edges.astype(np.float64)
    if problem.out is not None:
        check_array("out", problem.out, 1)
        check_alike("out", problem.out, "x", x, (bins,), np.dtype(np.int64))
        check_apart("out", problem.out, x=x)
    out = problem.output((bins,), np.int64)
    clearing = configure_quietly(clear, ceil_div(bins, 256), 256, problem.stream), (out,)
    size = math.prod(x.shape)
    if size == 0:
        return [clearing]
    x = problem.on_device(x).reshape(size)
    vector, of_bytes = _vector(x), dtype.itemsize == 1
    few = bins * 4 <= SHARED_BYTES - (256 * WARP * 4 if of_bytes else 0)
    where = "bytes" if of_bytes else "shared" if few else "global"
    slots, further = (256, bins if few else 0) if of_bytes else (bins, 0)
    blocks, threads = _grid(size, vector, slots, few)
    copies = 0 if where == "global" else WARP
    while where == "shared" and copies > 1 and (slots * copies * 4 > SHARED_BYTES or slots * copies * blocks > size):
        copies //= 2
    name, numbers = _numbers(edges, edge_dtype, dtype)
    even = high is not None and 0 < numbers.scale < math.inf  # bins too wide or too narrow to compute are searched for
    offset = 128 if of_bytes and dtype.kind == "i" else 0
    kernel = make_private(even, name if even else "float64", vector, where, offset)
    launch = configure_quietly(kernel, blocks, threads, problem.stream, (slots * copies + further) * 4)
    zeros = problem.work.zeros(2 + 2 * (bins if few else 0))
    work = zeros[2:].view(np.uint64), zeros[:1]
    on_device, shift = problem.table(edges), max(0, copies.bit_length() - 1)
    counting = launch, (x, out, *work, on_device, bins, shift, few, *numbers)
    return [counting] if few else [clearing, counting]


def _grid(size, vector, slots, few):
    """(Blocks, threads of a block): one block for few elements, which then need not wait for others.

    More elements are few where there are many counters, which blocks would have to add up.
    """
    if size <= 2 * (MIN_ELEMENTS + slots) and few:
        return 1, min(2 * THREADS, max(4 * WARP, next_power_of_two(max(ceil_div(size, vector), slots))))
    most = BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT
    return min(ceil_div(size, max(MIN_ELEMENTS, THREADS * vector)), most), THREADS


def _numbers(edges, edge_dtype, dtype):
    """The type in which bins of one width are found, and its `Bins`."""
    bins, width = edges.size - 1, float(edges[-1] - edges[0])
    if width == 0:
        return "float64", Bins(edges[0], edges[-1], edges[0], 0.0, 0.5)
    # A place is off by a few roundings of the largest place there is. Near 0, edges are rounded as the least normal is.
    limits, most = np.finfo(edge_dtype if edge_dtype.kind == "f" else float), float(np.finfo(np.float32).max)
    eps, scale = float(limits.eps), bins / width
    largest = max(bins, max(float(np.abs(edges).max()), float(limits.tiny)) / width * bins)
    doubt = 4 * max(eps, float(np.finfo(np.float32).eps)) * largest
    if dtype.kind == "f" and dtype.itemsize <= 4 and doubt < MAX_DOUBT and max(width, scale) <= most:
        low, high = (np.float32(edge) for edge in (edges[0], edges[-1]))
        low = low if low >= edges[0] else np.nextafter(low, np.float32(np.inf))
        high = high if high <= edges[-1] else np.nextafter(high, np.float32(-np.inf))
        return "float32", Bins(*(np.float32(value) for value in (low, high, edges[0], scale, doubt)))
    doubt = 0.0 if _are_exact(edges, scale, dtype) else min(0.5, 8 * eps * largest)
    return "float64", Bins(edges[0], edges[-1], edges[0], scale, doubt)


def _are_exact(edges, scale, dtype):
    """Tell whether (value - edges[0]) * scale is exact for the integers of a dtype, and all edges are at whole bins."""
    if dtype.kind == "f" or dtype.itemsize > 4 or math.frexp(scale)[0] != 0.5 or np.abs(edges).max() >= 2.0**32:
        return False
    units = edges * 2.0**20
    return bool((units == np.floor(units)).all() and ((edges - edges[0]) * scale == np.arange(edges.size)).all())


def _vector(x):
    """Elements of one access, as the address allows."""
    address, vector = address_of(x), 16 // x.dtype.itemsize
    while address % (vector * x.dtype.itemsize):
        vector //= 2
    return vector
