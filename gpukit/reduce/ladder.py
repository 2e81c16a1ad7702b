"""The ladder: a sum of float32, one idea per kernel.

Each kernel leaves one sum per block in ``out``; a further launch adds those up, until one is left. Each but the first
reads what it adds up once, so what counts is how near it comes to the bandwidth of memory.
"""

import numpy as np

from gpukit._host.arrays import Output, check_alike, check_apart, check_array, stream_of, to_device
from gpukit.backend import cuda, float32, int32
from gpukit.intrinsics import load4
from gpukit.reduce.primitives import is_last

__all__ = [
    "THREADS",
    "VARIANTS",
    "atomic",
    "first_add",
    "grid_stride",
    "interleaved_conflict",
    "interleaved_divergent",
    "one_launch",
    "sequential",
    "shuffle",
    "steps",
    "sum_by",
    "wide",
]

THREADS = 256
WARPS = THREADS // 32
FULL = 0xFFFFFFFF
#: Loads that a thread of the upper rungs has under way at a time.
LOADS = 8
WIDE_LOADS = 4
#: Blocks per multiprocessor of the upper rungs.
BLOCKS = 8


# -- one element per thread, a tree in shared memory -----------------------------------------------


@cuda.jit
def interleaved_divergent(x, out):
    """Neighbours first: threads 0, 2, 4 ... add, then 0, 4, 8 ... Some lanes of every warp work, the others wait."""
    values = cuda.shared.array(THREADS, float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        if tid % (2 * step) == 0:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step *= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


@cuda.jit
def interleaved_conflict(x, out):
    """The same additions by threads 0, 1, 2 ...: whole warps work or rest, but they reach for elements 2 step apart."""
    values = cuda.shared.array(THREADS, float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        at = 2 * step * tid
        if at < THREADS:
            values[at] += values[at + step]
        cuda.syncthreads()
        step *= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


@cuda.jit
def sequential(x, out):
    """Halves first: thread t adds element t + step to its own, so neighbours reach for neighbours."""
    values = cuda.shared.array(THREADS, float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if tid < step:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


@cuda.jit
def first_add(x, out):
    """Half of the threads of sequential never add: give each two elements, and the first addition is in registers."""
    values = cuda.shared.array(THREADS, float32)
    tid = cuda.threadIdx.x
    i = 2 * THREADS * cuda.blockIdx.x + tid
    total = x[i] if i < x.size else float32(0)
    if i + THREADS < x.size:
        total += x[i + THREADS]
    values[tid] = total
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if tid < step:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


# -- warp shuffles ---------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(total):
    """The sum over a warp, in all of its lanes: five shuffles, no shared memory and no barrier."""
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    return total


@cuda.jit(device=True)
def block_sum(total, values):
    """The sum over a block, in its first warp: one value of each warp goes through shared memory, with one barrier."""
    total = warp_sum(total)
    tid = cuda.threadIdx.x
    if tid % 32 == 0:
        values[tid // 32] = total
    cuda.syncthreads()
    if tid < 32:
        total = warp_sum(values[tid] if tid < WARPS else float32(0))
    return total


@cuda.jit
def shuffle(x, out):
    """first_add with registers in place of the tree in shared memory: one barrier in place of nine."""
    values = cuda.shared.array(WARPS, float32)
    tid = cuda.threadIdx.x
    i = 2 * THREADS * cuda.blockIdx.x + tid
    total = x[i] if i < x.size else float32(0)
    if i + THREADS < x.size:
        total += x[i + THREADS]
    total = block_sum(total, values)
    if tid == 0:
        out[cuda.blockIdx.x] = total


# -- as many blocks as the device holds, each thread with many elements ----------------------------


@cuda.jit(device=True)
def stride_sum(x):
    """A thread's share of a grid-stride loop; LOADS loads are under way before the first is added."""
    start, step = cuda.grid(1), cuda.gridsize(1)
    held = cuda.local.array(LOADS, float32)
    total, i = float32(0), start
    while i + (LOADS - 1) * step < x.size:
        for k in range(LOADS):
            held[k] = x[i + k * step]
        for k in range(LOADS):
            total += held[k]
        i += LOADS * step
    while i < x.size:
        total += x[i]
        i += step
    return total


@cuda.jit
def grid_stride(x, out):
    """The block's own work, tree and launch, is paid once for thousands of elements, not for 512."""
    values = cuda.shared.array(WARPS, float32)
    total = block_sum(stride_sum(x), values)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit(device=True)
def wide_sum(x):
    """The same with 128-bit loads: a quarter of the instructions. The last 0 to 3 elements go to the first threads."""
    start, step, chunks = cuda.grid(1), cuda.gridsize(1), x.size // 4
    held = cuda.local.array((WIDE_LOADS, 4), float32)
    total, i = float32(0), start
    while i + (WIDE_LOADS - 1) * step < chunks:
        for k in range(WIDE_LOADS):
            held[k, 0], held[k, 1], held[k, 2], held[k, 3] = load4(x, 4 * (i + k * step))
        for k in range(WIDE_LOADS):
            total += (held[k, 0] + held[k, 1]) + (held[k, 2] + held[k, 3])
        i += WIDE_LOADS * step
    while i < chunks:
        a, b, c, d = load4(x, 4 * i)
        total += (a + b) + (c + d)
        i += step
    if 4 * chunks + start < x.size:
        total += x[4 * chunks + start]
    return total


@cuda.jit
def wide(x, out):
    """128-bit loads: four times the bytes under way for each instruction."""
    values = cuda.shared.array(WARPS, float32)
    total = block_sum(wide_sum(x), values)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def one_launch(x, out, partials, counters):
    """wide, and the block that finishes last adds up what the others found: no second launch."""
    values = cuda.shared.array(WARPS, float32)
    flag = cuda.shared.array(1, int32)
    total = block_sum(wide_sum(x), values)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total
    if is_last(counters, 0, cuda.gridDim.x, flag):
        total, i = float32(0), cuda.threadIdx.x
        while i < cuda.gridDim.x:
            total += partials[i]
            i += THREADS
        total = block_sum(total, values)
        if cuda.threadIdx.x == 0:
            out[0] = total


@cuda.jit
def atomic(x, out):
    """wide with one atomic addition per block to out[0], which must be 0: no second launch, but no fixed order either,
    and so not the same bits in every run.
    """
    values = cuda.shared.array(WARPS, float32)
    total = block_sum(wide_sum(x), values)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total)


# -- host functions --------------------------------------------------------------------------------

#: The rungs, in order.
VARIANTS = (
    "interleaved_divergent",
    "interleaved_conflict",
    "sequential",
    "first_add",
    "shuffle",
    "grid_stride",
    "wide",
    "one_launch",
)
#: Elements of a block in the rungs that have as many blocks as it takes.
SHARES = {"interleaved_divergent": 1, "interleaved_conflict": 1, "sequential": 1, "first_add": 2, "shuffle": 2}
KERNELS = {
    "interleaved_divergent": interleaved_divergent,
    "interleaved_conflict": interleaved_conflict,
    "sequential": sequential,
    "first_add": first_add,
    "shuffle": shuffle,
    "grid_stride": grid_stride,
    "wide": wide,
    "one_launch": one_launch,
}


def steps(variant, x, out, stream=None):
    """The launches of one sum, to be made, traced or timed in this order: ``for launch, arguments in steps(...)``.

    Parameters
    ----------
    variant : str
        One of ``VARIANTS``.
    x : C-contiguous device array of one dimension, float32
        One element or more. Aligned to 16 bytes, as a new array is, from "wide" on.
    out : device array of one float32
        Where the sum goes.
    stream : CUDA stream, optional

    Returns
    -------
    list of (launch, arguments)
        Buffers for the sums of the blocks are among the arguments: they live as long as the list.

    Raises
    ------
    ValueError
        For another variant, or if there is nothing to add.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be one of {', '.join(VARIANTS)}")
    if x.size == 0:
        raise ValueError("x has no elements; it must have one or more")
    stream, kernel = stream_of(stream), KERNELS[variant]
    if variant == "one_launch":
        blocks = _blocks(variant, x.size)
        partials = cuda.device_array(blocks, np.float32, stream=stream)
        counters = cuda.to_device(np.zeros(1, np.uint32), stream=stream)
        return [(kernel[blocks, THREADS, stream], (x, out, partials, counters))]
    launches = []
    while True:
        blocks = _blocks(variant, x.size)
        if blocks == 1:
            return [*launches, (kernel[1, THREADS, stream], (x, out))]
        partials = cuda.device_array(blocks, np.float32, stream=stream)
        launches.append((kernel[blocks, THREADS, stream], (x, partials)))
        x = partials


def _blocks(variant, size):
    """Blocks of a launch over so many elements; one for what a block can do alone."""
    if variant in SHARES:
        return -(-size // (SHARES[variant] * THREADS))
    most = BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT
    return 1 if size <= most else min(most, -(-size // (16 * THREADS)))


def sum_by(x, variant="one_launch", *, out=None, stream=None):
    """The sum of all elements by one of the ladder's kernels.

    Parameters
    ----------
    x : ndarray or device array, shape (N,), float32
        Any N, also 0. One that is not C-contiguous, or whose memory is not aligned to 16 bytes, is copied first.
    variant : str
        One of ``VARIANTS``.
    out : array of shape (1,), optional
        Of the same kind and dtype. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (1,)

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    check_array("x", x, 1, (np.float32,))
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be one of {', '.join(VARIANTS)}")
    if out is not None:
        check_array("out", out, 1, (np.float32,))
        check_alike("out", out, "x", x, (1,))
        check_apart("out", out, x=x)
    stream = stream_of(stream)
    result = Output(x, (1,), out, stream)
    if x.shape[0] == 0:
        result.device.copy_to_device(np.zeros(1, np.float32), stream=stream)
        return result.finish()
    on_device = to_device(x, stream)
    if on_device.device_ctypes_pointer.value % 16:
        aligned = cuda.device_array(on_device.shape, np.float32, stream=stream)
        aligned.copy_to_device(on_device, stream=stream)
        on_device = aligned
    for launch, arguments in steps(variant, on_device, result.device, stream):
        launch(*arguments)
    return result.finish()
