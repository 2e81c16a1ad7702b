"""Scans of a warp and of a block, as device functions: for the kernels of this chapter, and for anybody's.

1. ``make_scan_lanes``: the inclusive scan over the lanes of a warp.
2. ``make_shift_lanes``: the value of the lane before, the identity in the first.
3. ``make_fold_lanes``: all lanes combined, in order, for every lane.
4. ``warp_scan``, ``block_scan``: the same by name of operator and dtype.
"""

import functools
from typing import Any

import numpy as np

from gpukit.backend import cuda, types, uint32
from gpukit.operators import OPERATORS, make_operations
from warpstep.limits import WARP
from warpstep.values import check_int, describe

__all__ = [
    "block_scan",
    "make_fold_lanes",
    "make_scan_lanes",
    "make_scan_totals",
    "make_shift_lanes",
    "warp_scan",
]

#: The mask of a whole warp.
FULL = 0xFFFFFFFF


@functools.cache
def make_scan_lanes(operation):
    """Make ``scan_lanes(value, lanes, step)``: combine the values of every ``step``-th lane up to this one, in groups
    of ``lanes``; both are powers of two.

    After step k each lane holds its own value and those of the 2**k - 1 lanes before it (Hillis and Steele). Lanes
    select without a branch, which the compiler could move ahead of the shuffles: the warp would then run them twice.
    """
    combine, accumulator, shuffle_type = operation.combine, operation.accumulator, operation.shuffle_type

    @cuda.jit(device=True)
    def scan_lanes(value, lanes, step):
        lane, distance = uint32(cuda.laneid) & uint32(uint32(lanes) - uint32(1)), uint32(step)
        while distance < uint32(lanes):
            before = accumulator(cuda.shfl_up_sync(FULL, shuffle_type(value), distance))
            both = accumulator(combine(before, value))
            value = accumulator(cuda.selp(lane >= distance, shuffle_type(both), shuffle_type(value)))
            distance = uint32(distance << uint32(1))
        return value

    return scan_lanes


@functools.cache
def make_shift_lanes(operation):
    """Make ``shift_lanes(value, lanes, step)``: the value ``step`` lanes before; the identity in the first of each
    ``lanes``, a power of two.
    """
    accumulator, shuffle_type, identity = operation.accumulator, operation.shuffle_type, operation.identity

    @cuda.jit(device=True)
    def shift_lanes(value, lanes, step):
        before, first = cuda.shfl_up_sync(FULL, shuffle_type(value), step), shuffle_type(accumulator(identity))
        lane = uint32(cuda.laneid) & uint32(uint32(lanes) - uint32(1))
        return accumulator(cuda.selp(lane >= uint32(step), before, first))

    return shift_lanes


@functools.cache
def make_fold_lanes(operation):
    """Make ``fold_lanes(value)``: the values of all lanes of a warp combined, in order, for every lane."""
    combine, accumulator, shuffle_type = operation.combine, operation.accumulator, operation.shuffle_type

    @cuda.jit(device=True)
    def fold_lanes(value):
        distance = 1
        while distance < WARP:
            after = accumulator(cuda.shfl_down_sync(FULL, shuffle_type(value), distance))
            value = accumulator(combine(value, after))
            distance *= 2
        return accumulator(cuda.shfl_sync(FULL, shuffle_type(value), 0))

    return fold_lanes


def _operation(op, dtype):
    if isinstance(op, str) and (op not in OPERATORS or op == "mean"):
        raise ValueError(
            f"op is {describe(op)}; it must be 'sum', 'prod', 'max' or 'min', or a function and its identity"
        )
    dtype = np.dtype(dtype)
    if dtype.kind not in "iuf" or dtype.itemsize < 4:
        raise TypeError(f"dtype is {dtype}; it must be an integer or a float of 4 or 8 bytes")
    return make_operations(op, dtype)[0], getattr(types, dtype.name)


@functools.cache
def warp_scan(dtype: Any = np.float32, op: Any = "sum") -> Any:
    """Make a device function that scans a value over the lanes of a warp, for kernels of your own.

    Parameters
    ----------
    dtype : dtype
        Of the value: an integer or a float of 4 or 8 bytes.
    op : str or tuple of (function, number)
        "sum", "prod", "max" or "min", or an associative function of two values and its identity.

    Returns
    -------
    device function
        ``scan(value)`` gives the values of the lanes up to this one, combined. All 32 lanes must call it.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> scan_warp = warp_scan(np.int32)
    >>> @cuda.jit
    ... def kernel(x):
    ...     x[cuda.threadIdx.x] = scan_warp(x[cuda.threadIdx.x])
    >>> x = np.ones(32, np.int32)
    >>> kernel[1, 32](x)
    >>> int(x[31])
    32
    """
    operation, number = _operation(op, dtype)
    scan_lanes = make_scan_lanes(operation)
    held = operation.accumulator

    @cuda.jit(device=True)
    def scan(value):
        return number(scan_lanes(held(value), WARP, 1))

    return scan


def block_scan(threads: int, dtype: Any = np.float32, op: Any = "sum") -> Any:
    """Make a device function that scans a value over the threads of a block, for kernels of your own.

    Parameters
    ----------
    threads : int
        Threads of the block: a multiple of 32 up to 1024. The block has one dimension.
    dtype, op
        As for `warp_scan`.

    Returns
    -------
    device function
        ``scan(value)`` returns (the scan up to this thread, the total of the block). All threads of the block must
        call it. It takes static shared memory for 32 values.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> scan_block = block_scan(64, np.int32)
    >>> @cuda.jit
    ... def kernel(x):
    ...     i = cuda.threadIdx.x
    ...     x[i], total = scan_block(x[i])
    >>> x = np.ones(64, np.int32)
    >>> kernel[1, 64](x)
    >>> int(x[63])
    64
    """
    threads = check_int("threads", threads, minimum=WARP, maximum=WARP * WARP)
    if threads % WARP:
        raise ValueError(f"threads is {threads}; it must be a multiple of {WARP}")
    return _make_block_scan(*_operation(op, dtype))


@functools.cache
def _make_block_scan(operation, number):
    """Make a block's scan, for any number of threads and of one signature: numba-cuda cannot compile a kernel in which
    several functions, or forms of one, call what takes static shared memory.
    """
    combine, held = operation.combine, operation.accumulator
    scan_lanes, scan_totals = make_scan_lanes(operation), make_scan_totals(operation)

    @cuda.jit(types.UniTuple(number, 2)(number), device=True)
    def scan(value):
        inside = scan_lanes(held(value), WARP, 1)
        prefix, total = scan_totals(inside)
        return number(combine(prefix, inside)), number(total)

    return scan


@functools.cache
def make_scan_totals(operation):
    """Make ``scan_totals(value)``: (total of the warps before, total of the block), from the total of each warp, which
    its last lane has.

    All threads must call it.
    """
    places = WARP + 1
    accumulator, identity = operation.accumulator, operation.identity
    scan_lanes, shift_lanes = make_scan_lanes(operation), make_shift_lanes(operation)

    @cuda.jit(device=True)
    def scan_totals(value):
        before = cuda.shared.array(places, accumulator)
        warp, lane = uint32(cuda.threadIdx.x) // uint32(WARP), uint32(cuda.laneid)
        warps = uint32(cuda.blockDim.x) // uint32(WARP)
        if lane == uint32(WARP - 1):
            before[warp] = value
        cuda.syncthreads()
        if warp == uint32(0):
            held = scan_lanes(before[lane] if lane < warps else accumulator(identity), WARP, 1)
            prefix = shift_lanes(held, WARP, 1)
            cuda.syncwarp()
            before[lane] = prefix
            if lane == uint32(WARP - 1):
                before[WARP] = held
        cuda.syncthreads()
        prefix, total = before[warp], before[WARP]
        cuda.syncthreads()  # before may be written again
        return prefix, total

    return scan_totals
