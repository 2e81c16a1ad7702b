"""Bring arrays to the device, copy them there between any layouts, and give results back."""

import functools
import math
from typing import Any

import numpy as np

from gpukit._host.arrays import (
    address_of,
    allocate,
    as_device_array,
    check_kind,
    check_writable,
    configure_quietly,
    device_array_of,
    dtype_of,
    handle_of,
)
from gpukit._host.new_arrays import new_like
from gpukit._host.work_memory import WorkMemory
from gpukit._numba import numba_driver
from gpukit.backend import cuda, on_gpu, types, uint32, uint64
from warpstep.integers import ceil_div
from warpstep.values import describe

__all__ = ["Output", "copy_launches", "copy_to", "to_device", "upload"]

#: Dimensions that the copying kernels take.
DIMENSIONS = 4
#: Rows and columns of a tile, and rows that a block copies at a time.
TILE, ROWS = 32, 8
#: A shorter axis than this would leave most of a tile empty.
MIN_AXIS = 13
#: With an element more in each row of a tile, a column lies in 32 different banks.
PITCH = TILE + 1
#: Threads of a block that copies element by element, and elements that each has under way.
THREADS, LOADS = 256, 4
#: Blocks of a launch at most; they loop.
MAX_BLOCKS = 1 << 16
#: Elements of two dimensions up to which each has a thread alone; and where tiles, all of them full, could turn them.
FEW, FEW_TILED = 1 << 20, 1 << 16


@cuda.jit
def copy_few(source, target):
    """target[...] = source[...] for two dimensions with any strides, an element for each thread.

    The grid has the axes of the arrays, so there is no division: few instructions.
    """
    row = uint32(cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y)
    col = uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    if row < uint32(target.shape[0]) and col < uint32(target.shape[1]):
        target[row, col] = source[row, col]


@functools.cache
def copy_strided(index, dimensions):
    """Make the kernel of target[...] = source[...] for arrays of four dimensions with any strides.

    A grid-stride loop over the elements of the target, in the order of their indices, which are of type ``index``. Each
    thread has several loads under way. With 2 ``dimensions`` the first two have length 1, which saves divisions: they
    would take longer than the copy.
    """

    @cuda.jit(device=True)
    def place(i, shape):
        rest, last = index(i // index(shape[3])), i % index(shape[3])
        if dimensions == 2:
            return index(0), index(0), rest, last
        rest, k = index(rest // index(shape[2])), rest % index(shape[2])
        return rest // index(shape[1]), rest % index(shape[1]), k, last

    @cuda.jit
    def copy_strided(source, target):
        held = cuda.local.array(LOADS, target.dtype)
        size, step = index(target.size), cuda.gridsize(1) * LOADS
        i = index(cuda.blockIdx.x * (THREADS * LOADS) + cuda.threadIdx.x)
        while i < size:
            for k in range(LOADS):
                has = index(k * THREADS) < size - i
                held[k] = source[place(index(i + index(k * THREADS)) if has else i, target.shape)]
            for k in range(LOADS):
                if index(k * THREADS) < size - i:
                    target[place(index(i + index(k * THREADS)), target.shape)] = held[k]
            if size - i <= index(step):  # the sum may be too large for the type
                break
            i = index(i + index(step))

    return copy_strided


@functools.cache
def copy_tiles(dtype):
    """Make the kernel of target[...] = source[...] for arrays of four dimensions, the last two of which are transposed:
    neighbours in memory are along the third axis of the target, and along the fourth of the source.

    A tile in shared memory turns them round, so that reads and writes are both of whole sectors.
    """

    @cuda.jit
    def copy_tiles(source, target):
        tile = cuda.shared.array((TILE, PITCH), dtype)
        d0, d1, rows, columns = target.shape
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        down, across = uint32((rows + TILE - 1) // TILE), uint32((columns + TILE - 1) // TILE)
        block, blocks = uint64(cuda.blockIdx.x), uint64(d0) * uint64(d1) * uint64(down) * uint64(across)
        while block < blocks:
            matrix, place = block // (uint64(down) * uint64(across)), block % (uint64(down) * uint64(across))
            i, j = matrix // uint64(d1), matrix % uint64(d1)
            row, col = uint32(place // uint64(across)) * uint32(TILE), uint32(place % uint64(across)) * uint32(TILE)
            for step in range(0, TILE, ROWS):
                r, c = row + ty + uint32(step), col + tx
                if r < rows and c < columns:
                    tile[ty + uint32(step), tx] = source[i, j, r, c]
            cuda.syncthreads()
            for step in range(0, TILE, ROWS):
                r, c = row + tx, col + ty + uint32(step)
                if r < rows and c < columns:
                    target[i, j, r, c] = tile[tx, ty + uint32(step)]
            cuda.syncthreads()
            block += uint64(cuda.gridDim.x)

    return copy_tiles


def copy_launches(source: Any, target: Any, stream: Any) -> list[tuple]:
    """List the launches that copy a device array to another of the same shape and dtype; each may have any strides."""
    if target.size == 0:
        return []
    axes = _merged(source, target)
    while len(axes) > DIMENSIONS:  # one index of the first axis after the other
        n = axes[0][0]
        if n > 1:
            parts = (_at(source, target, axes, i) for i in range(n))
            return [launch for part, part_target in parts for launch in copy_launches(part, part_target, stream)]
        axes = axes[1:]
    is_plane = len(axes) <= 2
    axes = [(1, 0, 0)] * (DIMENSIONS - len(axes)) + axes
    itemsize, last = source.dtype.itemsize, axes[-1]
    turned = next((axis for axis in axes if axis[0] > 1 and axis[1] == itemsize), None)
    number = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}.get(itemsize)
    pair = (last, turned) if number and turned is not None and turned != last and last[2] == itemsize else ()
    shorter = min((n for n, _, _ in pair), default=0)
    is_turned = shorter >= MIN_AXIS
    if is_plane and target.size <= (FEW_TILED if shorter >= TILE else FEW):
        source, target = _views(source, target, axes[-2:])
        return [(configure_quietly(copy_few, *_few_blocks(*target.shape), stream), (source, target))]
    if pair:
        # Along the last axis the source is read; the target's neighbours lie along the third. Pixels from planes, or
        # planes from pixels, are copied in the order of the pixels.
        pair = pair if is_turned else sorted(pair, reverse=True)
        axes = [*(axis for axis in axes if axis is not turned and axis is not last), *pair]
    source, target = _views(source, target, axes)
    if is_turned:
        tiles = math.prod(ceil_div(n, TILE) for n in target.shape[2:]) * math.prod(target.shape[:2])
        kernel, grid, block = copy_tiles(number), tiles, (TILE, ROWS)
    else:
        kernel = copy_strided(uint32 if target.size < 1 << 32 else uint64, 2 if target.shape[:2] == (1, 1) else 4)
        grid, block = ceil_div(target.size, THREADS * LOADS), THREADS
    return [(configure_quietly(kernel, min(grid, MAX_BLOCKS), block, stream), (source, target))]


def _few_blocks(rows, columns):
    """(Grid, block) of `copy_few`: blocks of whole rows, or of equal parts of a row."""
    width = ceil_div(columns, ceil_div(columns, THREADS))
    height = min(rows, THREADS // width)
    return (ceil_div(columns, width), ceil_div(rows, height)), (width, height)


def _merged(source, target):
    """[(size, stride of the source, of the target), ...]: axes that follow one another in both arrays are one."""
    axes = []
    for n, *strides in zip(target.shape, source.strides, target.strides, strict=True):
        if n == 1:
            continue
        if axes and all(outer == n * inner for outer, inner in zip(axes[-1][1:], strides, strict=True)):
            axes[-1] = (axes[-1][0] * n, *strides)
        else:
            axes.append((n, *strides))
    return axes


def _views(source, target, axes):
    """Both arrays with these axes; elements of up to 8 bytes as unsigned integers, so that few kernels are compiled."""
    shape, itemsize = tuple(n for n, _, _ in axes), source.dtype.itemsize
    dtype = np.dtype(f"u{itemsize}") if itemsize in (1, 2, 4, 8) else source.dtype
    return [
        device_array_of(shape, tuple(axis[which] for axis in axes), dtype, array)
        for which, array in ((1, source), (2, target))
    ]


def _at(source, target, axes, i):
    """Both arrays at index ``i`` of the first axis."""
    shape = tuple(n for n, _, _ in axes[1:])
    return [
        device_array_of(shape, tuple(axis[which] for axis in axes[1:]), array.dtype, array, i * axes[0][which])
        for which, array in ((1, source), (2, target))
    ]


def copy_to(source, target, stream):
    """Copy a device array to another of the same shape and dtype; each may have any strides."""
    for launch, arguments in copy_launches(source, target, stream):
        launch(*arguments)


def to_device(array, stream) -> Any:
    """Bring an array to the device, C-contiguous: itself if it is there already, otherwise a copy."""
    if not cuda.is_cuda_array(array):
        array = np.asarray(array)  # a copy of a mapped array keeps its class, which Numba takes for the device's
        # An axis of length 1 may have any stride; reshaped by way of one dimension it gets the usual one.
        if array.flags.c_contiguous:
            return cuda.to_device(array.reshape(-1).reshape(array.shape), stream=stream)
        # The device refuses what is too large before the host copies it.
        target = allocate("an argument", array.shape, array.dtype, stream)
        target.copy_to_device(np.ascontiguousarray(array).reshape(-1).reshape(array.shape), stream=stream)
        return target
    array = as_device_array(array)
    if array.is_c_contiguous():
        return array
    contiguous = allocate("an argument", array.shape, array.dtype, stream)
    copy_to(array, contiguous, stream)
    return contiguous


def upload(array, values: np.ndarray, stream):
    """Queue a copy of a NumPy array to a C-contiguous device array of as many bytes.

    It takes the host a fraction of the time of ``copy_to_device``.

    Pageable memory has been read when this returns; pinned memory must stay as it is until the copy is done.

    Examples
    --------
    >>> array = cuda.device_array(3, np.int32)
    >>> upload(array, np.arange(3, dtype=np.int32), 0)
    >>> array.copy_to_host()
    array([0, 1, 2], dtype=int32)
    """
    check_kind("array", array)
    if not cuda.is_cuda_array(array):
        raise TypeError(f"array is {describe(array)}; it must be a device array")
    array = as_device_array(array)
    if not isinstance(values, np.ndarray) or values.nbytes != array.nbytes:
        raise ValueError(
            f"values is {describe(values)}; it must be a NumPy array of {array.nbytes} bytes, as array has"
        )
    if not on_gpu():
        array.copy_to_device(values, stream=stream)
        return
    numba_driver().cuMemcpyHtoDAsync(address_of(array), values.ctypes.data, values.nbytes, handle_of(stream))


class Output:
    """Where the array that a host function computes goes.

    Parameters
    ----------
    like : array
        An input: the result is of its library.
    shape : tuple of int
    out : array or None
        Where the caller wants the result; checked before, but for being writable.
    stream : 0 or a CUDA stream
    dtype : NumPy dtype, optional
        That of ``like`` unless given.
    keep : bool
        The kernels need the contents of ``out``, which must have been given.
    work : WorkMemory, optional
        Of the call; new memory unless given.

    Attributes
    ----------
    device : C-contiguous device array
        For the kernels to write.
    on_host : bool
        Whether the caller gets a NumPy array.
    is_new : bool
        Whether the caller gets a new array.
    before, after : list of (launch, arguments)
        Copies between ``device`` and an ``out`` on the device that is not C-contiguous.

    Raises
    ------
    ValueError
        If ``out`` is read-only.
    """

    def __init__(self, like, shape: tuple, out, stream, dtype=None, keep: bool = False, work: WorkMemory | None = None):
        if out is not None:
            check_writable("out", out)
        self.out, self.stream, self.is_new, self.on_host = out, stream, out is None, not cuda.is_cuda_array(like)
        self.before, self.after = [], []
        dtype = dtype_of(like) if dtype is None else np.dtype(dtype)
        if self.on_host:
            self.device = to_device(out, stream) if keep else allocate("the result", shape, dtype, stream)
            return
        if out is None:
            self.out = new_like(like, shape, dtype, stream)
        target = self.target = self.device = as_device_array(self.out)
        if not target.is_c_contiguous():
            work = WorkMemory(stream) if work is None else work
            self.device = work.take("out", target.size, target.dtype).reshape(shape)
            self.before = copy_launches(target, self.device, stream) if keep else []
            self.after = copy_launches(self.device, target, stream)

    def finish(self):
        """Give the caller's result: ``out``, a new array, or NumPy's scalar. The launches have been made."""
        if not self.on_host:
            return self.out
        host = self.device.copy_to_host(stream=self.stream)
        if self.stream:
            self.stream.synchronize()
        if self.out is None:
            return host if host.ndim else host[()]
        self.out[...] = host
        return self.out
