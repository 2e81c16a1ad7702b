"""The loop that this chapter is about: chunks take turns on several streams, so that copies and kernels overlap (A13).

`gpukit.streams.pipeline` does the same for any kernel, and also records what overlapped, reuses its memory, and finds
races. Read this first.
"""

from typing import Any

import numpy as np

from gpukit._host.arrays import check_kind
from gpukit.backend import cuda
from warpstep.integers import ceil_div
from warpstep.values import check_int, check_type, describe, has_attributes

__all__ = ["pipelined"]

#: Streams that are made at once.
MAX_STREAMS = 4096


def pipelined(kernel: Any, x: np.ndarray, out: np.ndarray, chunk: int, streams: int = 4) -> None:
    """Copy in, compute and copy out, chunk by chunk, each chunk on the next stream (A13).

    Operations of one stream run in order, so a chunk's kernel waits for its copy in, and its copy out for the kernel.
    Streams do not wait for each other: while one computes, another one copies. Copies overlap only with pinned memory
    (``cuda.pinned_array``); from ordinary memory the result is the same, and the copies take turns with everything.

    Parameters
    ----------
    kernel : kernel of ``cuda.jit``
        Takes a chunk of ``x`` and the same rows of ``out``; launched with a thread for each element of the latter, in
        blocks of 256.
    x, out : ndarray, C-contiguous, with the same number of rows
        The input, and where the result goes. Row shapes and dtypes may differ.
    chunk : int
        Rows of a chunk; the last chunk is shorter where ``x`` is not a multiple of it.
    streams : int
        Streams to use.

    Raises
    ------
    TypeError, ValueError
        If ``chunk`` or ``streams`` is not a positive int, or ``x`` and ``out`` differ in their number of rows.

    Examples
    --------
    >>> @cuda.jit
    ... def double(x, out):
    ...     i = cuda.grid(1)
    ...     if i < out.size:
    ...         out[i] = 2 * x[i]
    >>> x, out = cuda.pinned_array(10, np.float32), cuda.pinned_array(10, np.float32)
    >>> x[:] = np.arange(10)
    >>> pipelined(double, x, out, chunk=4, streams=2)
    >>> out
    array([ 0.,  2.,  4.,  6.,  8., 10., 12., 14., 16., 18.], dtype=float32)
    """
    _check(kernel, x, out)
    chunk, streams = check_int("chunk", chunk, 1), check_int("streams", streams, 1, MAX_STREAMS)
    queues = [cuda.stream() for _ in range(streams)]
    kept = []  # to free device memory is to wait for the whole device
    for number, first in enumerate(range(0, len(x), chunk)):
        stream, part = queues[number % streams], slice(first, first + chunk)
        chunk_x = cuda.to_device(x[part], stream)
        chunk_out = cuda.device_array(out[part].shape, out.dtype, stream=stream)
        kernel[ceil_div(chunk_out.size, 256), 256, stream](chunk_x, chunk_out)
        chunk_out.copy_to_host(out[part], stream)
        kept += [chunk_x, chunk_out]
    cuda.synchronize()


def _check(kernel, x, out):
    if not has_attributes(kernel, "py_func"):
        raise TypeError(f"kernel is {describe(kernel)}; it must be a kernel made by cuda.jit")
    for name, array in {"x": x, "out": out}.items():
        check_kind(name, check_type(name, array, np.ndarray, "a NumPy array"))
        if array.ndim == 0 or not array.flags.c_contiguous:
            raise ValueError(f"{name} is {describe(array)}; it must have rows that follow one another")
    if len(x) != len(out):
        raise ValueError(f"out has {len(out)} rows; it must have {len(x)}, as x has")
    if not out.flags.writeable:
        raise ValueError("out is read-only; it must be writable")
