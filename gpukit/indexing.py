"""Thread indexing: indices, coordinates, launch sizes, and the grid-stride loop (source rows A1 to A5, B1, B2).

Three-component values follow CUDA's order, (x, y, z), in arguments and results. The printing kernels write (z, y, x),
slowest first, as the documents do.
"""

import contextlib
import io
from math import prod
from typing import Any

import numpy as np

from gpukit._host.arrays import check_alike, check_array, configure_quietly, dtype_of, stream_of
from gpukit._host.call import call
from gpukit._host.checks import launch_shape
from gpukit._numba import cuda_api_error
from gpukit.backend import cuda, on_gpu
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ
from warpstep.values import check_int, check_number, describe, has_attributes

__all__ = [
    "STEP",
    "THREAD",
    "axpy",
    "axpy_grid_stride",
    "block_index",
    "block_order",
    "grid_stride_table",
    "index_in_block",
    "index_in_grid",
    "listing",
    "num_blocks",
    "print_coordinates",
    "print_dimensions",
    "print_index_in_block",
    "print_index_in_grid",
    "print_indices",
    "record_block_order",
    "record_grid_stride",
    "record_threads",
    "thread_table",
]

#: One thread, as ``thread_table`` returns it.
THREAD = np.dtype(
    [
        ("gridDim", np.int32, 3),
        ("blockDim", np.int32, 3),
        ("blockIdx", np.int32, 3),
        ("threadIdx", np.int32, 3),
        ("block_index", np.int64),
        ("index_in_block", np.int32),
        ("index", np.int64),
        ("x", np.int64),
        ("y", np.int64),
        ("z", np.int64),
        ("warp", np.int32),
        ("lane", np.int32),
    ],
    align=True,
)

#: The thread that handled an element in a grid-stride loop, and in which step, as ``grid_stride_table`` returns it.
STEP = np.dtype([("block", np.int64), ("thread", np.int64), ("step", np.int64)], align=True)


# -- linear indices (A2 to A5) ---------------------------------------------------------------------


@cuda.jit(device=True)
def index_in_block():
    """Linear index of this thread in its block: x runs fastest, then y, then z."""
    size_x, size_y = cuda.blockDim.x, cuda.blockDim.y
    return cuda.threadIdx.z * size_x * size_y + cuda.threadIdx.y * size_x + cuda.threadIdx.x


@cuda.jit(device=True)
def block_index():
    """Linear index of this block in the grid, in the order of threads in a block."""
    size_x, size_y = cuda.gridDim.x, cuda.gridDim.y
    return cuda.blockIdx.z * size_x * size_y + cuda.blockIdx.y * size_x + cuda.blockIdx.x


@cuda.jit(device=True)
def index_in_grid():
    """Linear index of this thread in the grid: the threads of earlier blocks come first, then those of its own."""
    threads_per_block = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
    return block_index() * threads_per_block + index_in_block()


# -- kernels that print (A2 to A5) -----------------------------------------------------------------


@cuda.jit
def print_indices():
    """Print block and thread indices: what every thread knows about itself."""
    bx, by, bz = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    print("block:", bz, by, bx, " thread:", tz, ty, tx)


@cuda.jit
def print_dimensions():
    """Print the sizes of grid and block: what every thread knows about the launch."""
    grid_x, grid_y, grid_z = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
    block_x, block_y, block_z = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    print("grid:", grid_z, grid_y, grid_x, " block:", block_z, block_y, block_x)


@cuda.jit
def print_index_in_block():
    """Print one number per thread: unique within its block, repeated in the next."""
    bx, by, bz = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    print("block:", bz, by, bx, " index in block:", index_in_block())


@cuda.jit
def print_index_in_grid():
    """Print one number per thread: unique in the launch."""
    print("block index:", block_index(), " index in block:", index_in_block(), " index in grid:", index_in_grid())


@cuda.jit
def print_coordinates():
    """Print the form that most kernels need: the index in the block, and the coordinates (x, y) in the grid."""
    bx, by, bz = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    x = bx * cuda.blockDim.x + cuda.threadIdx.x
    y = by * cuda.blockDim.y + cuda.threadIdx.y
    print("block:", bz, by, bx, " index in block:", index_in_block(), " x:", x, " y:", y)


# -- kernels that record ---------------------------------------------------------------------------


@cuda.jit
def record_threads(table):
    """Each thread fills the row of its index in the grid."""
    bx, by, bz = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    row = table[index_in_grid()]
    row.gridDim[0], row.gridDim[1], row.gridDim[2] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
    row.blockDim[0], row.blockDim[1], row.blockDim[2] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    row.blockIdx[0], row.blockIdx[1], row.blockIdx[2] = bx, by, bz
    row.threadIdx[0], row.threadIdx[1], row.threadIdx[2] = tx, ty, tz
    row.block_index = block_index()
    row.index_in_block = index_in_block()
    row.index = index_in_grid()
    row.x = bx * cuda.blockDim.x + tx
    row.y = by * cuda.blockDim.y + ty
    row.z = bz * cuda.blockDim.z + tz
    row.warp = index_in_block() // cuda.warpsize
    row.lane = cuda.laneid  # read from the hardware, not computed


@cuda.jit
def record_block_order(tickets, order):
    """The first thread of each block draws a ticket; ``order[ticket]`` is the block that drew it."""
    if cuda.threadIdx.x == 0:
        ticket = cuda.atomic.add(tickets, 0, 1)
        order[ticket] = cuda.blockIdx.x


# -- the grid-stride loop (B1) ---------------------------------------------------------------------


@cuda.jit
def axpy_grid_stride(a, x, y, out):
    """out = a * x + y for any number of elements and any one-dimensional grid."""
    i = cuda.grid(1)
    # Not range(i, n, stride): a range whose step is a variable costs a 64-bit division before its first turn.
    while i < out.size:
        out[i] = a * x[i] + y[i]
        i += cuda.gridsize(1)


@cuda.jit
def record_grid_stride(table):
    """Walk like axpy_grid_stride, and record for each element which thread came by, and when."""
    thread = cuda.grid(1)
    i = thread
    step = 0
    while i < table.size:
        row = table[i]
        row.block = cuda.blockIdx.x
        row.thread = thread
        row.step = step
        i += cuda.gridsize(1)
        step += 1


# -- host functions --------------------------------------------------------------------------------


def num_blocks(n: int, threads: int = 256, limit: int = MAX_GRID_YZ) -> int:
    """Compute how many blocks to launch for ``n`` elements: one thread each, but at most ``limit`` blocks (B2).

    With more elements than ``limit * threads`` the kernel needs a grid-stride loop.

    Parameters
    ----------
    n : int
        Elements, 0 or more. For 0 the answer is 1, as a launch of 0 blocks is an error; the block finds nothing to do.
    threads : int
        Threads per block, 1 to 1024.
    limit : int
        Most blocks, 1 to 2147483647. The default is that of the documents: the limit of ``gridDim.x`` on early devices,
        and still that of ``gridDim.y`` and ``gridDim.z``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; the message names it.

    Examples
    --------
    >>> num_blocks(1000), num_blocks(10**9)
    (4, 65535)
    """
    n, threads = check_int("n", n, 0), check_int("threads", threads, 1, 1024)
    limit = check_int("limit", limit, 1, 2**31 - 1)
    return max(1, min(ceil_div(n, threads), limit))


def thread_table(grid: Any, block: Any, *, stream: Any = 0) -> np.ndarray:
    """Launch a kernel in which every thread records its own indices (A1 to A5).

    Parameters
    ----------
    grid, block : int or tuple of 1 to 3 int
        As in a launch: (x, y, z), missing ones are 1.
    stream : 0 or a CUDA stream

    Returns
    -------
    ndarray of ``THREAD``, shape (threads of the launch,)
        Row i is the thread with index i in the grid. Fields: ``gridDim``, ``blockDim``, ``blockIdx``, ``threadIdx``,
        each 3 int (x, y, z); ``block_index``, linear in the grid; ``index_in_block``; ``index``, linear in the grid;
        ``x``, ``y``, ``z``, the coordinates in the grid; ``warp`` in the block; ``lane`` in the warp.

    Raises
    ------
    TypeError, ValueError
        If ``grid`` or ``block`` is not as above, or more than the device allows.
    MemoryError
        If the device has no memory for so many rows.

    Examples
    --------
    >>> thread_table(grid=2, block=3)["index"]
    array([0, 1, 2, 3, 4, 5])
    """
    (grid, block), stream = launch_shape(grid, block), stream_of(stream)
    table = _device_table("grid", grid, prod(grid) * prod(block), THREAD, stream)
    table.copy_to_device(np.zeros(table.size, THREAD), stream=stream)
    configure_quietly(record_threads, grid, block, stream)(table)
    return _to_host(table, stream)


def block_order(blocks: int, threads: int = 32, *, stream: Any = 0) -> np.ndarray:
    """Record the order in which the blocks of a launch draw a ticket from an atomic counter (A2).

    No order is guaranteed: on a GPU it can differ from launch to launch. The emulator always runs blocks in the same
    order, which is one of those allowed.

    Parameters
    ----------
    blocks, threads : int
        A one-dimensional launch.
    stream : 0 or a CUDA stream

    Returns
    -------
    ndarray of int64, shape (blocks,)
        The block indices, in the order of their tickets.

    Raises
    ------
    TypeError, ValueError
        If ``blocks`` or ``threads`` is not an int, or more than the device allows.
    MemoryError
        If the device has no memory for so many rows.

    Examples
    --------
    >>> sorted(block_order(4).tolist())
    [0, 1, 2, 3]
    """
    blocks, threads, stream = check_int("blocks", blocks, 1), check_int("threads", threads, 1), stream_of(stream)
    launch_shape(blocks, threads, ("blocks", "threads"))
    order = _device_table("blocks", blocks, blocks, np.int64, stream)
    order.copy_to_device(np.full(blocks, -1, np.int64), stream=stream)
    tickets = cuda.to_device(np.zeros(1, np.int64), stream=stream)
    configure_quietly(record_block_order, blocks, threads, stream)(tickets, order)
    return _to_host(order, stream)


def grid_stride_table(n: int, threads: int = 256, blocks: int | None = None, *, stream: Any = 0) -> np.ndarray:
    """Walk ``n`` elements with a grid-stride loop, and record which thread handled each element, in which step (B1).

    Parameters
    ----------
    n : int
        Elements, 0 or more.
    threads : int
        Threads per block.
    blocks : int, optional
        ``num_blocks(n, threads)`` unless given.
    stream : 0 or a CUDA stream

    Returns
    -------
    ndarray of ``STEP``, shape (n,)
        For each element: ``block``, ``thread`` (its index in the grid) and ``step``, 0 for the first turn of the loop.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, or more than the device allows.
    MemoryError
        If the device has no memory for so many rows.

    Examples
    --------
    >>> grid_stride_table(5, threads=2, blocks=1)["step"]
    array([0, 0, 1, 1, 2])
    """
    n, stream = check_int("n", n, 0), stream_of(stream)
    blocks, threads = _one_dimensional(n, threads, blocks)
    if n == 0:
        return np.empty(0, STEP)
    table = _device_table("n", n, n, STEP, stream)
    table.copy_to_device(np.full(n, -1, STEP), stream=stream)
    configure_quietly(record_grid_stride, blocks, threads, stream)(table)
    return _to_host(table, stream)


def axpy(
    a: Any, x: Any, y: Any, *, out: Any = None, threads: int = 256, blocks: int | None = None, stream: Any = 0
) -> Any:
    """Compute ``a * x + y`` by a grid-stride loop (B1). Reads 2 n values, writes n.

    Parameters
    ----------
    a : float
        Converted to the dtype of ``x``.
    x, y : ndarray or device array, shape (n,), float32 or float64, alike
        Any n, also 0. All are NumPy arrays, or all device arrays (anything with ``__cuda_array_interface__``).
    out : array like ``x``, optional
        Where the result goes; may be ``x`` or ``y``.
    threads : int
        Threads per block.
    blocks : int, optional
        ``num_blocks(n, threads)`` unless given; any number gives the same result.
    stream : 0 or a CUDA stream
        With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, as ``x``
        ``out`` if that was given.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.

    Examples
    --------
    >>> axpy(2, np.ones(3, np.float32), np.arange(3, dtype=np.float32))
    array([2., 3., 4.], dtype=float32)
    """
    return call(_axpy, (x, y), out, stream, (a, threads, blocks))


def _axpy(problem):
    (x, y), (a, threads, blocks) = problem.inputs, problem.settings
    check_number("a", a)
    for name, array in {"x": x, "y": y, "out": x if problem.out is None else problem.out}.items():
        check_array(name, array, 1, (np.float32, np.float64))
        check_alike(name, array, "x", x)
        if array.shape != x.shape:
            raise ValueError(f"{name} has {array.shape[0]} elements; it must have {x.shape[0]}, as x has")
    n = x.shape[0]
    blocks, threads = _one_dimensional(n, threads, blocks)
    target = problem.output(x.shape)
    if n == 0:
        return []
    arguments = dtype_of(x).type(a), problem.on_device(x), problem.on_device(y), target
    return [(axpy_grid_stride[blocks, threads, problem.stream], arguments)]


def listing(kernel: Any, grid: Any, block: Any, *args: Any) -> str:
    """Return what the threads of a launch print.

    The launch runs in the emulator on any machine: what a GPU's threads print bypasses Python and goes to the standard
    output of the process, where a notebook does not see it.

    Parameters
    ----------
    kernel : a kernel made by ``gpukit.cuda.jit``
    grid, block : int or tuple of 1 to 3 int
    *args
        The kernel's arguments.

    Returns
    -------
    str
        One line per ``print`` of a thread, without a newline at the end.

    Raises
    ------
    TypeError, ValueError
        If ``kernel`` is not a kernel, or ``grid`` or ``block`` is not as above.

    Examples
    --------
    >>> print(listing(print_index_in_grid, 2, 2))
    block index: 0  index in block: 0  index in grid: 0
    block index: 0  index in block: 1  index in grid: 1
    block index: 1  index in block: 0  index in grid: 2
    block index: 1  index in block: 1  index in grid: 3
    """
    if not has_attributes(kernel, "py_func"):
        raise TypeError(f"kernel is {describe(kernel)}; it must be a kernel made by gpukit.cuda.jit")
    grid, block = launch_shape(grid, block)
    if on_gpu():
        from warpstep import cuda as emulated

        kernel = emulated.jit()(kernel.py_func)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        kernel[grid, block](*args)
    return text.getvalue().removesuffix("\n")


# -- launches and results --------------------------------------------------------------------------


def _one_dimensional(n, threads, blocks):
    """Blocks and threads of a one-dimensional launch for ``n`` elements."""
    threads = check_int("threads", threads, 1)
    blocks = num_blocks(n, threads) if blocks is None else check_int("blocks", blocks, 1)
    launch_shape(blocks, threads, ("blocks", "threads"))
    return blocks, threads


def _device_table(name, value, size, dtype, stream):
    """A device array of ``size`` elements; MemoryError, which names the argument, if they are too many."""
    try:
        return cuda.device_array(size, dtype, stream=stream)
    except (cuda_api_error(), MemoryError, ValueError, OverflowError) as error:
        raise MemoryError(f"{name} is {value}; the device has no memory for a table of {size} rows") from error


def _to_host(array, stream):
    host = array.copy_to_host(stream=stream)
    if stream:
        stream.synchronize()
    return host
