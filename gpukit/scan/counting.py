"""Histograms: kernels that count values into bins, from one counter in global memory to one for every lane.

1. ``global_atomics``: every value adds to its bin in global memory. Equal values wait for one another.
2. ``shared_atomics``: a block counts in shared memory, and adds its counts to the result once.
3. ``private``: each lane of a warp has a copy of the bins in a bank of its own, as far as shared memory goes.

`histogram` uses the third, and the first for more bins than shared memory holds. Counts are integers: the order of the
additions does not matter, and the result is the same in every run.
"""

import functools
import math
from typing import Any

import numpy as np

from gpukit import reduce
from gpukit._host.arrays import (
    as_device_array,
    check_alike,
    check_apart,
    check_array,
    check_numbers,
    configure_quietly,
    dtype_of,
)
from gpukit._host.call import Problem, call
from gpukit.backend import cuda, float64, int64, uint32, uint64
from gpukit.intrinsics.vectors import make_load
from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.values import describe, is_int

__all__ = ["global_atomics", "histogram", "make_find_bin", "make_private", "shared_atomics"]

#: Threads of a block, blocks per multiprocessor, and bytes of shared memory that its counters take at most.
THREADS = 512
BLOCKS = 4
SHARED_BYTES = 48 * 1024
#: Accesses that a thread has in flight.
LOADS = 4


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


@functools.cache
def make_find_bin(even: bool):
    """Make ``find_bin(value, edges, bins, first, scale, doubt)``: the bin of a value; ``bins`` if it is in none.

    Bin b holds edges[b] <= value < edges[b + 1], the last one its right edge too. If the bins are ``even``, the bin is
    computed, and the edges are consulted where rounding leaves a doubt about it; otherwise it is searched for.
    """
    if even:

        @cuda.jit(device=True)
        def find_bin(value, edges, bins, first, scale, doubt):
            value = float64(value)
            if not (value >= edges[0] and value <= edges[bins]):  # NaN too
                return bins
            place = (value - first) * scale
            b = min(uint32(place), bins - uint32(1))
            inside = place - float64(b)
            if inside < doubt or inside > float64(1) - doubt:
                if value < edges[b]:
                    b -= uint32(1)
                elif b < bins - uint32(1) and value >= edges[b + uint32(1)]:
                    b += uint32(1)
            return b

        return find_bin

    @cuda.jit(device=True)
    def find_bin(value, edges, bins, first, scale, doubt):
        value = float64(value)
        if not (value >= edges[0] and value <= edges[bins]):
            return bins
        low, high = uint32(0), bins - uint32(1)
        while low < high:
            middle = (low + high + uint32(1)) // uint32(2)
            if value >= edges[middle]:
                low = middle
            else:
                high = middle - uint32(1)
        return low

    return find_bin


@functools.cache
def make_private(even, vector, copies):
    """Make the kernel ``private``: counters [bin, copy] in dynamic shared memory; lanes with one copy share it.

    With ``copies`` 0 the counters are the result itself, in global memory.
    """
    find_bin, load = make_find_bin(even), make_load(vector)

    @cuda.jit
    def private(x, counts, edges, bins, first, scale, doubt):
        own = cuda.shared.array(0, uint32)
        tid, step, bins = uint64(cuda.threadIdx.x), uint64(cuda.gridDim.x) * uint64(THREADS), uint32(bins)
        copy = uint32(tid) % uint32(max(copies, 1))
        if copies:
            place = tid
            while place < uint64(bins) * uint64(copies):
                own[place] = uint32(0)
                place += uint64(THREADS)
            cuda.syncthreads()
        accesses = uint64(x.size) // uint64(vector)
        i = uint64(cuda.blockIdx.x) * uint64(THREADS) + tid
        while i < accesses + uint64(x.size) % uint64(vector):
            if i < accesses:
                values = load(x, i * uint64(vector))
                for v in range(vector):
                    b = find_bin(values[v], edges, bins, first, scale, doubt)
                    if b < bins:
                        if copies:
                            cuda.atomic.add(own, b * uint32(copies) + copy, uint32(1))
                        else:
                            cuda.atomic.add(counts, b, int64(1))
            else:  # the elements past the last whole access
                b = find_bin(x[accesses * uint64(vector) + (i - accesses)], edges, bins, first, scale, doubt)
                if b < bins:
                    if copies:
                        cuda.atomic.add(own, b * uint32(copies) + copy, uint32(1))
                    else:
                        cuda.atomic.add(counts, b, int64(1))
            i += step
        if copies:
            cuda.syncthreads()
            b = uint32(tid)
            while b < bins:
                total = uint32(0)
                for c in range(copies):
                    # Neighbouring threads begin with different copies, so that they read different banks.
                    total += own[b * uint32(copies) + (uint32(c) + b) % uint32(copies)]
                if total > uint32(0):
                    cuda.atomic.add(counts, b, int64(total))
                b += uint32(THREADS)

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
        The default stream unless given. With device arrays the call returns before the counts are there.

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
    check_numbers("x", x, 0, more=True)
    edges, even = _edges(x, bins, range, stream)
    edges.flags.writeable = False
    return call(_histogram, (x,), out, stream, (edges.tobytes(), edges.dtype.str, even)), edges


def _edges(x, bins, span, stream):
    """The edges, and whether the bins are of one width."""
    if not is_int(bins):
        try:
            edges = np.array(bins)
        except ValueError:
            edges = np.array(None)
        if edges.ndim != 1 or edges.dtype.kind not in "iuf" or edges.size < 2:
            raise TypeError(f"bins is {describe(bins)}; it must be an int, or a sequence of at least two edges")
        if not (edges[:-1] <= edges[1:]).all():
            raise ValueError(f"bins is {describe(bins)}; edges must increase")
        return edges, False
    if not 1 <= bins <= 1 << 24:
        raise ValueError(f"bins is {bins}; it must be from 1 to {1 << 24:,}")
    if span is None:
        low, high = _extent(x, stream)
    else:
        try:
            low, high = (float(value) if isinstance(value, float) else value for value in span)
            finite = math.isfinite(low) and math.isfinite(high)
        except (TypeError, ValueError):
            raise TypeError(f"range is {describe(span)}; it must be a pair of numbers") from None
        if not finite or low > high:
            raise ValueError(f"range is {describe(span)}; it must be two finite numbers, the smaller one first")
    if low == high:
        low, high = low - 0.5, high + 0.5
    kind = np.result_type(low, high, dtype_of(x))
    kind = kind if kind.kind == "f" else np.dtype(float)
    edges = np.linspace(low, high, bins + 1, dtype=kind)
    if not (edges[:-1] < edges[1:]).all():
        raise ValueError(f"bins is {bins}, too many for {kind} numbers from {low} to {high}; some would be empty")
    return edges, True


def _extent(x, stream):
    """The smallest and the largest element."""
    if math.prod(x.shape) == 0:
        return 0.0, 1.0
    found = []
    for op in ("min", "max"):
        value = reduce.reduce(x, op=op, stream=stream)
        found.append(value if isinstance(value, np.generic) else as_device_array(value).copy_to_host()[()])
    if not all(map(math.isfinite, found)):
        raise ValueError(f"x has elements from {found[0]} to {found[1]}; give a range, which must be finite")
    return found


def _histogram(problem: Problem):
    """The launches of ``histogram``."""
    (x,), (edge_bytes, edge_dtype, even) = problem.inputs, problem.settings
    edges = np.frombuffer(edge_bytes, edge_dtype).astype(np.float64)
    bins = edges.size - 1
    if problem.out is not None:
        check_array("out", problem.out, 1)
        check_alike("out", problem.out, "x", x, (bins,), np.dtype(np.int64))
        check_apart("out", problem.out, x=x)
    out = problem.output((bins,), np.int64)
    made: list[tuple] = [(configure_quietly(clear, ceil_div(bins, 256), 256, problem.stream), (out,))]
    size = math.prod(x.shape)
    if size == 0:
        return made
    x = problem.on_device(x).reshape(size)
    copies = WARP
    while copies and bins * copies * 4 > SHARED_BYTES:
        copies //= 2
    vector = _vector(x)
    kernel = make_private(even, vector, copies)
    blocks = min(ceil_div(size, THREADS * vector), BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT)
    # A place is off by a few roundings of the largest place there is.
    width = float(edges[-1] - edges[0])
    eps = np.finfo(edge_dtype).eps if np.dtype(edge_dtype).kind == "f" else np.finfo(float).eps
    doubt = min(0.5, 8 * float(eps) * max(bins, float(np.abs(edges).max()) / width * bins))
    launch = configure_quietly(kernel, blocks, THREADS, problem.stream, bins * copies * 4)
    on_device = cuda.to_device(edges, stream=problem.stream)
    made.append((launch, (x, out, on_device, bins, float(edges[0]), bins / width, doubt)))
    return made


def _vector(x):
    """Elements of one access: up to 4, as the address allows."""
    address, vector = x.device_ctypes_pointer.value or 0, min(4, 16 // x.dtype.itemsize)
    while address % (vector * x.dtype.itemsize):
        vector //= 2
    return vector
