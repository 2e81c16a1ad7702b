"""Compaction: the elements that a mask selects, moved together. Where each goes is an exclusive scan of the mask."""

import functools
from typing import Any

import numpy as np

from gpukit._host.arrays import check_alike, check_array, configure_quietly, dtype_of, stream_of
from gpukit._host.call import Problem, call
from gpukit._host.work_memory import WorkMemory, state_of
from gpukit.backend import cuda, int64, uint32, uint64
from gpukit.operators import make_operations
from gpukit.scan.fast import FLAGS, count_published, make_begin, make_look_back, make_scan_rounds
from gpukit.scan.primitives import make_scan_warps
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["compress", "make_select", "nonzero"]

#: Threads of a block, and elements of a thread.
THREADS, EACH = 256, 16
TILE = THREADS * EACH


@functools.cache
def make_select(index: bool):
    """Make the kernel ``select``: write the elements whose mask is not zero, in order, and how many there are.

    With ``index`` their positions are written instead.
    """
    operation, _ = make_operations("sum", np.dtype(np.int64))
    scan_rounds, scan_warps = make_scan_rounds(operation, 1, EACH), make_scan_warps(operation, THREADS)
    begin, look_back = make_begin(), make_look_back(operation)

    @cuda.jit
    def select(mask, x, out, count, published, counters, tiles):
        tile = cuda.local.array(EACH, int64)
        prefixes = cuda.local.array(EACH, int64)
        shared = cuda.shared.array(1, int64)
        start = cuda.shared.array(2, uint32)
        tid, n = uint64(cuda.threadIdx.x), uint64(mask.size)
        begin(counters, start)
        part = uint64(start[0])
        place = part * uint64(TILE) + tid // uint64(WARP) * uint64(WARP * EACH) + tid % uint64(WARP)
        for r in range(EACH):
            at = place + uint64(r * WARP)
            tile[r] = int64(1) if at < n and mask[at] != 0 else int64(0)
        own = scan_rounds(tile, prefixes)
        last = tid % uint64(WARP) == uint64(WARP - 1)
        before, _, total = scan_warps(own if last else int64(0))
        if tid < uint64(WARP):
            prefix = look_back(published, counters, uint64(0), part, uint64(tiles), start[1], total)
            if tid == uint64(0):
                shared[0] = prefix
                if part == uint64(tiles) - uint64(1):
                    count[0] = prefix + total
        cuda.syncthreads()
        for r in range(EACH):
            if tile[r] == int64(1):
                at = place + uint64(r * WARP)
                target = uint64(shared[0] + before + prefixes[r])
                if index:
                    out[target] = at
                else:
                    out[target] = x[at]

    return select


def compress(mask: Any, x: Any, *, stream: Any = None) -> Any:
    """Return the elements of an array that a mask selects, in their order, as ``x[mask]`` and ``np.compress`` do.

    Parameters
    ----------
    mask : ndarray or device array of one dimension
        Bools or numbers: an element that is not zero selects.
    x : array of the same kind and length
        Numbers.
    stream : CUDA stream, optional
        The default stream unless given. The call waits for the number of elements.

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
        The default stream unless given. The call waits for the number of elements.

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
    return _selected((x, None), stream)


def _selected(inputs, stream):
    target = stream_of(stream)
    state = state_of(target)
    with state.lock:  # the count is in the stream's work memory until it has been read
        made = call(_select, inputs, None, stream, ())
        if made.shape[0] == 0:
            return made
        count = WorkMemory(target, state.buffers).take("count", 1, np.int64).copy_to_host(stream=target)
        if target:
            target.synchronize()
    return made[: int(count[0])]


def _select(problem: Problem):
    """The launches of ``compress`` and ``nonzero``."""
    mask, x = problem.inputs
    names = ("mask", "x") if x is not None else ("x", "")
    check_array(names[0], mask, 1)
    _check_dtype(names[0], dtype_of(mask))
    n, result = mask.shape[0], np.dtype(np.int64)
    if x is not None:
        check_array("x", x, 1)
        result = dtype_of(x)
        _check_dtype("x", result)
        check_alike("x", x, "mask", mask, (n,), result)
    out = problem.output((n,), result)
    if n == 0:
        return []
    mask = problem.on_device(mask)
    x = mask if x is None else problem.on_device(x)
    tiles = ceil_div(n, TILE)
    published = count_published(tiles)
    work = (
        problem.work.take("count", 1, np.int64),
        problem.work.take("published", published, np.int64),
        problem.work.flags(FLAGS + published),
    )
    kernel = make_select(problem.inputs[1] is None)
    launch = configure_quietly(kernel, tiles, THREADS, problem.stream)
    return [(launch, (mask, x, out, *work, tiles))]


def _check_dtype(name, dtype):
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
        raise TypeError(f"{name} has dtype {dtype}; it must be bool, an integer or a float of at most 8 bytes")
