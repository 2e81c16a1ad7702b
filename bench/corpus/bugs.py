"""Small kernels with one bug each, and correct ones that look suspicious, for `gpukit.trace` to tell apart.

`PLANTED` and `CORRECT` hold them by name. The kernels are plain functions that use Numba's own ``cuda``, so that the
emulator, a GPU and Numba's simulator can each compile them. In a wrong kernel the comment ``# bug`` marks the lines
where a finding belongs, ``# other`` the other side of a race or the other barrier, and ``# then`` a race that follows
from a divergent barrier. Most bugs have a corrected twin among the correct kernels, which takes the same arguments.
"""

import inspect
from dataclasses import dataclass

import numpy as np
from numba import config, cuda, float32, int32, uint8

if not config.ENABLE_CUDASIM:  # the simulator knows none but Numba's own functions
    from gpukit.intrinsics import load4, store2

FULL = 0xFFFFFFFF
TILE = 16
PAIR = np.dtype([("key", np.int32), ("value", np.float32)], align=True)

PLANTED = {}
CORRECT = {}


@dataclass(frozen=True)
class Case:
    """One kernel and how to launch it.

    Attributes
    ----------
    name : str
    function : function
        The kernel, not compiled.
    text : str
        What is wrong with it; for a correct kernel, why it is not wrong although it looks so.
    kind : str or None
        The kind of finding that it must give; None: no finding at all.
    grid, block : int or tuple of int
    make : function of a ``cuda`` module
        Returns the tuple of arguments: NumPy arrays, device arrays of that module, numbers.
    shared_bytes : int
        Dynamic shared memory.
    mends : tuple of str
        Of a correct kernel: the wrong ones that it corrects.
    exempt : str or None
        Of a wrong kernel: why a trace may keep silent about it.
    helpers : tuple of functions
        Device functions that it calls, in whose source a mark may stand.
    """

    name: str
    function: object
    text: str
    kind: str | None
    grid: object
    block: object
    make: object
    shared_bytes: int = 0
    mends: tuple = ()
    exempt: str | None = None
    helpers: tuple = ()

    def lines(self, mark):
        """Return the set of lines of this file whose comment is ``mark`` ("bug", "other" or "then")."""
        found = set()
        for function in (self.function, *self.helpers):
            text, first = inspect.getsourcelines(function)
            found |= {first + i for i, line in enumerate(text) if line.rstrip().endswith(f"# {mark}")}
        return found

    def arguments(self, module):
        """Return the arguments, with every array on the device of ``module``."""
        return [module.to_device(a) if isinstance(a, np.ndarray) else a for a in self.make(module)]

    def configured(self, module, **options):
        """Compile the kernel by ``module.jit`` with these options; return it with its launch configuration."""
        return module.jit(**options)(self.function)[self.grid, self.block, 0, self.shared_bytes]


def wrong(kind, grid, block, make, **more):
    """Register the function below as a kernel with a bug of this kind; its docstring describes the bug."""

    def enter(function):
        name = function.__name__
        PLANTED[name] = Case(name, function, function.__doc__, kind, grid, block, make, **more)
        return function

    return enter


def correct(grid=None, block=None, make=None, mends=(), **more):
    """Register the function below as a correct kernel, by default with the launch of the first one that it mends."""

    def enter(function):
        name = function.__name__
        launch = {"grid": grid, "block": block, "make": make}
        if mends:
            bug = PLANTED[mends[0]]
            launch = {key: given or getattr(bug, key) for key, given in launch.items()}
            more.setdefault("shared_bytes", bug.shared_bytes)
        CORRECT[name] = Case(name, function, function.__doc__, None, **launch, mends=mends, **more)
        return function

    return enter


# Arguments of the kernels


def floats(*shape):
    """Return 1, 2, 3 ... as float32."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def values(n, below, dtype=np.int32):
    """Return n numbers from 0 to below - 1, unsorted."""
    return (np.arange(n) * 7 % below).astype(dtype)


# -- races in shared memory ------------------------------------------------------------------------


def _matrices(module):
    return floats(32, 32), floats(32, 32), zeros(32, 32)


@wrong("race", (2, 2), (TILE, TILE), _matrices)
def matmul_first_barrier(a, b, out):
    """Products are formed from the tile before the other threads have loaded their part of it."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = a[row, k + tx]  # other
        tile_b[ty, tx] = b[k + ty, col]  # other
        for i in range(TILE):
            total += tile_a[ty, i] * tile_b[i, tx]  # bug
        cuda.syncthreads()
    out[row, col] = total


@wrong("race", (2, 2), (TILE, TILE), _matrices)
def matmul_second_barrier(a, b, out):
    """A fast thread loads the next tile while slow ones still read this one."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = a[row, k + tx]  # bug
        tile_b[ty, tx] = b[k + ty, col]  # bug
        cuda.syncthreads()
        for i in range(TILE):
            total += tile_a[ty, i] * tile_b[i, tx]  # other
    out[row, col] = total


@correct(mends=("matmul_first_barrier", "matmul_second_barrier"))
def matmul_barriers(a, b, out):
    """The tiled product with both barriers."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = a[row, k + tx]
        tile_b[ty, tx] = b[k + ty, col]
        cuda.syncthreads()
        for i in range(TILE):
            total += tile_a[ty, i] * tile_b[i, tx]
        cuda.syncthreads()
    out[row, col] = total


def _row(module):
    return floats(64), zeros(64)


@wrong("race", 1, 64, _row)
def shift_in_place(a, out):
    """A thread reads its right neighbour's element, which the neighbour overwrites."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    if t + 1 < 64:
        s[t] += s[t + 1]  # bug
    cuda.syncthreads()
    out[t] = s[t]


@correct(mends=("shift_in_place",))
def shift_in_two_steps(a, out):
    """Every thread keeps the neighbour's element until all have read."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    right = s[t + 1] if t + 1 < 64 else float32(0)
    cuda.syncthreads()
    s[t] += right
    cuda.syncthreads()
    out[t] = s[t]


def _sum(module):
    return floats(128), zeros(1)


@wrong("race", 1, 128, _sum)
def tree_without_barrier(a, out):
    """The steps of the tree reduction are not separated by barriers."""
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            s[t] += s[t + step]  # bug
        step //= 2
    if t == 0:
        out[0] = s[0]


@correct(mends=("tree_without_barrier",))
def tree_with_barriers(a, out):
    """A barrier after each step of the tree."""
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            s[t] += s[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[0] = s[0]


def _warp_sum(module):
    return floats(64), zeros(1)


@wrong("race", 1, 64, _warp_sum)
def warp_tail(a, out):
    """The last warp goes on without syncwarp, as if its lanes ran in lockstep."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    if t < 32:
        s[t] += s[t + 32]  # other
        s[t] += s[t + 16]  # bug
        s[t] += s[t + 8]  # bug
        s[t] += s[t + 4]  # bug
        s[t] += s[t + 2]  # bug
        s[t] += s[t + 1]  # bug
    if t == 0:
        out[0] = s[0]


@wrong("race", 1, 32, _warp_sum)
def warp_tail_narrowing(a, out):
    """Fewer lanes at each step do not help: lanes 8 to 15 may still be writing."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t] + a[t + 32]  # other
    if t < 16:
        s[t] += s[t + 16]  # bug
    if t < 8:
        s[t] += s[t + 8]  # bug
    if t < 4:
        s[t] += s[t + 4]  # bug
    if t < 2:
        s[t] += s[t + 2]  # bug
    if t < 1:
        s[t] += s[t + 1]  # bug
        out[0] = s[0]


@wrong("race", 1, 32, _warp_sum)
def warp_tail_half_synchronised(a, out):
    """syncwarp comes after the sum is stored, but none stands between the loads and the store."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    s[t + 32] = a[t + 32]
    cuda.syncwarp()
    step = 32
    while step > 0:
        s[t] += s[t + step]  # bug
        cuda.syncwarp()
        step //= 2
    if t == 0:
        out[0] = s[0]


@correct(mends=("warp_tail_half_synchronised",))
def warp_tail_synchronised(a, out):
    """The lanes read, synchronise, write, and synchronise again."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    s[t + 32] = a[t + 32]
    cuda.syncwarp()
    step = 32
    while step > 0:
        other = s[t + step]
        cuda.syncwarp()
        s[t] += other
        cuda.syncwarp()
        step //= 2
    if t == 0:
        out[0] = s[0]


@correct(mends=("warp_tail_narrowing", "warp_tail"))
def warp_tail_narrowing_synchronised(a, out):
    """Fewer lanes at each step, with syncwarp between the steps."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t] + a[t + 32]
    step = 16
    while step > 0:
        cuda.syncwarp()
        if t < step:
            s[t] += s[t + step]
        step //= 2
    if t == 0:
        out[0] = s[0]


def _counts(module):
    return values(128, 16), zeros(16, dtype=np.int32)


@wrong("race", 1, 128, _counts)
def shared_histogram_plain(data, out):
    """Two threads with the same value both add 1 to the same old count, in shared memory."""
    counts = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        counts[t] = 0
    cuda.syncthreads()
    counts[data[t]] += 1  # bug
    cuda.syncthreads()
    if t < 16:
        out[t] = counts[t]


@wrong("race", 1, 128, _counts)
def shared_histogram_zeroing(data, out):
    """Counting begins before the counters are all zero."""
    counts = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        counts[t] = 0  # other
    cuda.atomic.add(counts, data[t], 1)  # bug
    cuda.syncthreads()
    if t < 16:
        out[t] = counts[t]


@wrong("race", 1, 128, _counts)
def shared_histogram_reading(data, out):
    """The counts are read while other threads still count: an atomic operation against a plain read."""
    counts = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        counts[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(counts, data[t], 1)  # other
    if t < 16:
        out[t] = counts[t]  # bug


@correct(mends=("shared_histogram_plain", "shared_histogram_zeroing", "shared_histogram_reading"))
def shared_histogram_atomic(data, out):
    """Zeroed, counted and read with barriers between."""
    counts = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        counts[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(counts, data[t], 1)
    cuda.syncthreads()
    if t < 16:
        out[t] = counts[t]


def _tiles(module):
    return floats(256), zeros(64)


@wrong("race", 1, 64, _tiles)
def double_buffer_one_barrier(a, out):
    """Two buffers need a barrier in each iteration; the only one stands before the loop."""
    s = cuda.shared.array((2, 64), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    s[0, t] = a[t]
    cuda.syncthreads()
    for k in range(4):
        if k < 3:
            s[(k + 1) % 2, t] = a[(k + 1) * 64 + t]  # bug
        total += s[k % 2, 63 - t]  # other
    out[t] = total


@correct(mends=("double_buffer_one_barrier", "ring_barrier_every_second_turn"))
def double_buffer(a, out):
    """One barrier per iteration is enough for two buffers."""
    s = cuda.shared.array((2, 64), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    s[0, t] = a[t]
    for k in range(4):
        cuda.syncthreads()
        if k < 3:
            s[(k + 1) % 2, t] = a[(k + 1) * 64 + t]
        total += s[k % 2, 63 - t]
    out[t] = total


@wrong("race", 1, 64, _row)
def shared_scalar_disagree(a, out):
    """All threads write one shared variable, each its own value."""
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    s[0] = a[t]  # bug
    cuda.syncthreads()
    out[t] = s[0]


@correct(1, 64, _row)
def shared_scalar_agree(a, out):
    """All threads write one shared variable, all the same value."""
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    s[0] = a[0]
    cuda.syncthreads()
    out[t] = s[0]


def _one_warp(module):
    return floats(32), zeros(32)


@wrong("race", 1, 32, _one_warp)
def half_masks(a, out):
    """The halves of the warp synchronise apart, but the data cross from one to the other."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]  # other
    if t < 16:
        cuda.syncwarp(0x0000FFFF)
    else:
        cuda.syncwarp(0xFFFF0000)
    out[t] = s[31 - t]  # bug


@correct(1, 32, _one_warp)
def half_masks_within(a, out):
    """The halves of the warp synchronise apart, and the data stay within each."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    if t < 16:
        cuda.syncwarp(0x0000FFFF)
    else:
        cuda.syncwarp(0xFFFF0000)
    out[t] = s[t ^ 15]


@wrong("race", 1, 64, _row)
def warps_with_syncwarp(a, out):
    """syncwarp orders the lanes of one warp; the data come from another warp."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]  # other
    cuda.syncwarp()
    out[t] = s[63 - t]  # bug


@correct(1, 64, _row)
def warps_apart(a, out):
    """syncwarp is enough where the data stay in the warp."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncwarp()
    out[t] = s[t ^ 31]


@wrong("race", 1, 64, _row)
def scan_one_barrier(a, out):
    """A thread may add to its element before its right neighbours have read it."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    distance = 1
    while distance < 64:
        left = float32(0)
        if t >= distance:
            left = s[t - distance]  # other
        s[t] += left  # bug
        cuda.syncthreads()
        distance *= 2
    out[t] = s[t]


@correct(mends=("scan_one_barrier",))
def scan(a, out):
    """The prefix sum with a barrier after the reads and one after the writes."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    distance = 1
    while distance < 64:
        left = float32(0)
        if t >= distance:
            left = s[t - distance]
        cuda.syncthreads()
        s[t] += left
        cuda.syncthreads()
        distance *= 2
    out[t] = s[t]


@wrong("race", 1, 64, _row)
def buffer_used_twice(a, out):
    """The buffer is filled again before all threads have read the first result from it."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    mirrored = s[63 - t]  # other
    s[t] = a[t] * mirrored  # bug
    cuda.syncthreads()
    out[t] = s[(t + 1) % 64]


@correct(mends=("buffer_used_twice",))
def buffer_used_twice_apart(a, out):
    """A barrier between the two uses of the buffer."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    mirrored = s[63 - t]
    cuda.syncthreads()
    s[t] = a[t] * mirrored
    cuda.syncthreads()
    out[t] = s[(t + 1) % 64]


@wrong("race", 1, 64, _row)
def broadcast_without_barrier(a, out):
    """Thread 0 publishes a value and no thread waits for it."""
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = a[0]  # other
    out[t] = s[0]  # bug


@correct(mends=("broadcast_without_barrier",))
def broadcast(a, out):
    """Thread 0 publishes a value, and all wait for it."""
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = a[0]
    cuda.syncthreads()
    out[t] = s[0]


def _wide_stencil(module):
    return floats(68), zeros(64)


@wrong("race", 1, 64, _wide_stencil)
def halo_after_barrier(a, out):
    """The halo is loaded after the barrier, and thread 0 reads what thread 1 loads."""
    s = cuda.shared.array(68, float32)
    t = cuda.threadIdx.x
    s[t + 2] = a[t + 2]
    cuda.syncthreads()
    if t < 2:
        s[t] = a[t]  # other
        s[t + 66] = a[t + 66]  # other
    out[t] = s[t] + s[t + 1] + s[t + 2] + s[t + 3] + s[t + 4]  # bug


@correct(mends=("halo_after_barrier",))
def halo_before_barrier(a, out):
    """Tile and halo are loaded before the barrier."""
    s = cuda.shared.array(68, float32)
    t = cuda.threadIdx.x
    s[t + 2] = a[t + 2]
    if t < 2:
        s[t] = a[t]
        s[t + 66] = a[t + 66]
    cuda.syncthreads()
    out[t] = s[t] + s[t + 1] + s[t + 2] + s[t + 3] + s[t + 4]


@wrong("race", 1, 64, _tiles)
def ring_barrier_every_second_turn(a, out):
    """A barrier in every second iteration only: the odd rows are read before they are complete."""
    s = cuda.shared.array((2, 64), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(4):
        s[k % 2, t] = a[k * 64 + t]  # other
        if k % 2 == 0:
            cuda.syncthreads()
        total += s[k % 2, 63 - t]  # bug
    out[t] = total


# -- races in global memory ------------------------------------------------------------------------


def _line(module):
    return (floats(256),)


@wrong("race", 4, 64, _line)
def stencil_in_place(a):
    """A stencil in place: the neighbours, in other blocks too, may be old or new."""
    i = cuda.grid(1)
    if 0 < i < a.size - 1:
        a[i] = (a[i - 1] + a[i] + a[i + 1]) / float32(3)  # bug


@correct(4, 64, lambda module: (floats(256), zeros(256)))
def stencil(a, out):
    """A stencil into a second array."""
    i = cuda.grid(1)
    if 0 < i < a.size - 1:
        out[i] = (a[i - 1] + a[i] + a[i + 1]) / float32(3)


@wrong("race", 4, 32, lambda module: (zeros(1, dtype=np.int32),))
def blocks_disagree(out):
    """Every block writes its own number to one element."""
    if cuda.threadIdx.x == 0:
        out[0] = cuda.blockIdx.x  # bug


@correct(4, 32, lambda module: (zeros(1, dtype=np.int32),))
def blocks_agree(out):
    """Every block writes the same number to one element."""
    if cuda.threadIdx.x == 0:
        out[0] = cuda.gridDim.x


def _global_counts(module):
    return values(256, 16), zeros(16, dtype=np.int32)


@wrong("race", 4, 64, _global_counts)
def histogram_plain(data, counts):
    """Two threads with the same value both add 1 to the same old count."""
    i = cuda.grid(1)
    if i < data.size:
        counts[data[i]] += 1  # bug


@correct(mends=("histogram_plain", "counter_reset_inside"))
def histogram_atomic(data, counts):
    """Atomic additions to the same elements."""
    i = cuda.grid(1)
    if i < data.size:
        cuda.atomic.add(counts, data[i], 1)


@wrong("race", 2, 64, lambda module: (zeros(1, dtype=np.int32),))
def counter_plain(counter):
    """All threads add to one counter, and most additions are lost."""
    counter[0] += 1  # bug


@correct(mends=("counter_plain",))
def counter_atomic(counter):
    """All threads add to one counter, atomically, and use its old value."""
    ticket = cuda.atomic.add(counter, 0, 1)
    if ticket < 0:
        counter[0] = 0


def _best(module):
    return values(256, 251, np.float32), zeros(1)


@wrong("race", 4, 64, _best)
def maximum_plain(a, best):
    """Another thread may store a larger value between this one's test and its store."""
    i = cuda.grid(1)
    if a[i] > best[0]:  # other
        best[0] = a[i]  # bug


@correct(mends=("maximum_plain",))
def maximum_atomic(a, best):
    """The maximum by an atomic operation."""
    i = cuda.grid(1)
    cuda.atomic.max(best, 0, a[i])


@wrong("race", 4, 64, _global_counts)
def counter_reset_inside(data, counts):
    """One thread sets the counter to zero while the other blocks already count."""
    i = cuda.grid(1)
    if i < counts.size:
        counts[i] = 0  # other
    cuda.syncthreads()
    cuda.atomic.add(counts, data[i], 1)  # bug


def _partial(module):
    return floats(256), zeros(4), zeros(1, dtype=np.int32), zeros(1)


@wrong("race", 4, 64, _partial)
def last_block_without_fence(a, partial, tickets, out):
    """Nothing makes a block's sum visible before its ticket: a threadfence is missing."""
    s = cuda.shared.array(1, float32)
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, 0, a[cuda.grid(1)])
    cuda.syncthreads()
    if t == 0:
        partial[cuda.blockIdx.x] = s[0]  # other
        last[0] = cuda.atomic.add(tickets, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and t == 0:
        total = float32(0)
        for k in range(cuda.gridDim.x):
            total += partial[k]  # bug
        out[0] = total


@correct(mends=("last_block_without_fence",))
def last_block(a, partial, tickets, out):
    """The last block adds the sums of all: threadfence, then the ticket."""
    s = cuda.shared.array(1, float32)
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, 0, a[cuda.grid(1)])
    cuda.syncthreads()
    if t == 0:
        partial[cuda.blockIdx.x] = s[0]
        cuda.threadfence()
        last[0] = cuda.atomic.add(tickets, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        cuda.threadfence()
        if t == 0:
            total = float32(0)
            for k in range(cuda.gridDim.x):
                total += partial[k]
            out[0] = total


def _message(module):
    return zeros(1), zeros(1, dtype=np.int32), zeros(1)


@wrong("race", 2, 1, _message)
def flag_plain(value, flag, out):
    """A flag in plain memory: the value may arrive after it, and the compiler may read it once."""
    if cuda.blockIdx.x == 0:
        value[0] = float32(42)  # other
        flag[0] = 1  # other
    else:
        for _ in range(100):
            if flag[0] == 1:  # bug
                out[0] = value[0]  # bug


@correct(mends=("flag_plain",))
def flag_atomic(value, flag, out):
    """A flag that is set and read by atomic operations, with fences; a reader that sees it reads."""
    if cuda.blockIdx.x == 0:
        value[0] = float32(42)
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    else:
        for _ in range(100):
            if cuda.atomic.add(flag, 0, 0) == 1:
                cuda.threadfence()
                out[0] = value[0]


@wrong("race", (2, 2), (16, 16), lambda module: (floats(32, 32),))
def transpose_in_place(a):
    """A thread overwrites the element that its mirror image reads."""
    col, row = cuda.grid(2)
    a[row, col] = a[col, row]  # bug


@correct(mends=("transpose_in_place",))
def transpose_by_pairs(a):
    """Each pair is swapped by one thread, in place."""
    col, row = cuda.grid(2)
    if col > row:
        upper = a[row, col]
        a[row, col] = a[col, row]
        a[col, row] = upper


def _ping_pong(module):
    return (np.stack([floats(128), zeros(128)]),)


@wrong("race", 4, 32, _ping_pong)
def ping_pong_block_barrier(x):
    """Steps of one launch are not separated: a barrier joins a block, not the grid."""
    i = cuda.grid(1)
    for k in range(3):
        if 0 < i < x.shape[1] - 1:
            x[(k + 1) % 2, i] = (x[k % 2, i - 1] + x[k % 2, i + 1]) * float32(0.5)  # bug
        cuda.syncthreads()


@correct(mends=("ping_pong_block_barrier",))
def ping_pong_grid_sync(x):
    """The steps are separated by the synchronisation of a cooperative grid."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for k in range(3):
        if 0 < i < x.shape[1] - 1:
            x[(k + 1) % 2, i] = (x[k % 2, i - 1] + x[k % 2, i + 1]) * float32(0.5)
        grid.sync()


def _overlapping(module):
    a = module.to_device(floats(129))
    return a[1:], a[:-1]


@wrong("race", 2, 64, _overlapping)
def overlapping_windows(source, target):
    """Two windows of one array: what one thread reads, its neighbour writes."""
    i = cuda.grid(1)
    target[i] = source[i]  # bug


@correct(2, 64, lambda module: (floats(129)[1:], zeros(129)[:-1]))
def separate_windows(source, target):
    """The same windows of two arrays."""
    i = cuda.grid(1)
    target[i] = source[i]


def _split(module):
    return floats(8, 64), floats(64, 8), zeros(8, 8)


@wrong("race", (1, 1, 2), (8, 8), _split)
def split_k_plain(a, b, out):
    """Two blocks each add half of the sum to one element, not atomically."""
    col, row = cuda.threadIdx.x, cuda.threadIdx.y
    half = a.shape[1] // 2
    total = float32(0)
    for k in range(cuda.blockIdx.z * half, (cuda.blockIdx.z + 1) * half):
        total += a[row, k] * b[k, col]
    out[row, col] += total  # bug


@correct(mends=("split_k_plain",))
def split_k_atomic(a, b, out):
    """Two blocks each add half of the sum, atomically."""
    col, row = cuda.threadIdx.x, cuda.threadIdx.y
    half = a.shape[1] // 2
    total = float32(0)
    for k in range(cuda.blockIdx.z * half, (cuda.blockIdx.z + 1) * half):
        total += a[row, k] * b[k, col]
    cuda.atomic.add(out, (row, col), total)


def _views(module):
    words = module.to_device(zeros(64, dtype=np.int32))
    return words, words.view(np.uint8), zeros(64, dtype=np.uint8)


@wrong("race", 1, 64, _views)
def words_and_bytes(words, octets, out):
    """The bytes that a thread reads belong to the word that its neighbour writes."""
    t = cuda.threadIdx.x
    words[t] = t * 0x01010101  # other
    out[t] = octets[4 * ((t + 1) % 64) + 3]  # bug


@correct(1, 64, _views)
def words_and_own_bytes(words, octets, out):
    """Each thread reads a byte of the word that it wrote."""
    t = cuda.threadIdx.x
    words[t] = t * 0x01010101
    out[t] = octets[4 * t + 3]


@correct(1, 64, lambda module: (zeros(64, dtype=np.uint8),))
def neighbouring_bytes(out):
    """Neighbours write the bytes of one 32-bit word: bytes are apart."""
    s = cuda.shared.array(64, uint8)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    out[t] = s[63 - t]


@correct(1, 64, lambda module: (np.zeros(32, PAIR),))
def fields_of_one_record(pairs):
    """Threads write different fields of one record."""
    t = cuda.threadIdx.x
    if t % 2 == 0:
        pairs[t // 2].key = t
    else:
        pairs[t // 2].value = float32(t)


@correct(4, 1, lambda module: (zeros(1, dtype=np.int32), zeros(1)))
def spin_lock(lock, total):
    """A lock: acquired with cas and a fence, released with a fence and exch."""
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    total[0] += float32(1)
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@correct(2, 64, lambda module: (floats(128), zeros(128)))
def own_elements(a, out):
    """Every thread reads only what it wrote itself, without a barrier."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    s[t] *= float32(2)
    out[i] = s[t]
    out[i] += s[t]


@correct((2, 2), (16, 16), lambda module: (floats(32, 32), zeros(32, 32)))
def transpose_by_tile(a, out):
    """A tile is transposed through shared memory, with a barrier between."""
    tile = cuda.shared.array((16, 17), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x0, y0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 16
    tile[ty, tx] = a[y0 + ty, x0 + tx]
    cuda.syncthreads()
    out[x0 + ty, y0 + tx] = tile[tx, ty]


# -- out of bounds ---------------------------------------------------------------------------------


def _ragged(module):
    return floats(70), floats(70), zeros(70)


@wrong("out-of-bounds", 3, 32, _ragged)
def no_guard(a, b, out):
    """The grid has more threads than the arrays have elements, and no guard stops them."""
    i = cuda.grid(1)
    out[i] = a[i] + b[i]  # bug


@wrong("out-of-bounds", 3, 32, _ragged)
def guard_one_too_many(a, b, out):
    """The guard lets one thread too many through: <= instead of <."""
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = a[i] + b[i]  # bug


@correct(mends=("no_guard", "guard_one_too_many"))
def guarded(a, b, out):
    """A guard for a ragged last block."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@wrong("out-of-bounds", 3, 32, _ragged)
def right_neighbour(a, b, out):
    """The last thread reads its right neighbour, and there is none."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i + 1] - b[i]  # bug


def _image(module):
    return floats(12, 20), zeros(12, 20)


@wrong("out-of-bounds", (2, 1), (16, 16), _image)
def past_row_end(image, out):
    """One column too far: past the row's end, but inside the array's memory."""
    x, y = cuda.grid(2)
    if x < image.shape[1] and y < image.shape[0] - 1:
        out[y, x] = image[y, x + 1] - image[y, x]  # bug


@wrong("out-of-bounds", (2, 2), (16, 16), _image)
def axes_swapped(image, out):
    """The index is (x, y) and must be (row, column)."""
    x, y = cuda.grid(2)
    if x < image.shape[1] and y < image.shape[0]:
        out[x, y] = 2 * image[x, y]  # bug


@correct(mends=("axes_swapped",))
def axes_in_order(image, out):
    """Rows first, columns second."""
    x, y = cuda.grid(2)
    if x < image.shape[1] and y < image.shape[0]:
        out[y, x] = 2 * image[y, x]


@wrong("out-of-bounds", 1, 64, _row)
def shared_too_small(a, out):
    """The shared array has 32 elements, the block 64 threads."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]  # bug
    cuda.syncthreads()
    out[t] = s[t % 32]


@wrong("out-of-bounds", 1, 64, _row, shared_bytes=128)
def dynamic_too_small(a, out):
    """The launch asks for 128 bytes of dynamic shared memory, the block uses 256."""
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]  # bug
    cuda.syncthreads()
    out[t] = s[31 - t % 32]


@correct(mends=("dynamic_too_small",), shared_bytes=256)
def dynamic_large_enough(a, out):
    """The launch asks for what the block uses."""
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[31 - t % 32]


def _table(module):
    codes = values(64, 200)
    codes[37] = 300
    return codes, floats(200), zeros(64)


@wrong("out-of-bounds", 1, 64, _table)
def index_from_data(codes, table, out):
    """A code in the data is larger than the table."""
    i = cuda.grid(1)
    out[i] = table[codes[i]]  # bug


@wrong("out-of-bounds", 1, 64, _row)
def int32_overflow(a, out):
    """The product of row and pitch wraps around in 32 bits."""
    t = cuda.threadIdx.x
    pitch = np.int32(100_000_000)
    flat = np.int32(np.int32(t) * pitch)
    if flat < a.size:
        out[t] = a[flat]  # bug


def _polynomial(module):
    return floats(64), zeros(64), 4


@wrong("out-of-bounds", 1, 64, _polynomial)
def local_one_too_many(x, out, degree):
    """The loop fills five elements of a local array of four."""
    powers = cuda.local.array(4, float32)
    i = cuda.grid(1)
    power = float32(1)
    for k in range(degree + 1):
        powers[k] = power  # bug
        power *= x[i]
    out[i] = powers[i % 4]


@correct(mends=("local_one_too_many",))
def local_enough(x, out, degree):
    """The local array has an element for each iteration."""
    powers = cuda.local.array(5, float32)
    i = cuda.grid(1)
    power = float32(1)
    for k in range(degree + 1):
        powers[k] = power
        power *= x[i]
    out[i] = powers[i % 4]


@wrong("out-of-bounds", 1, 64, _row)
def unsigned_underflow(a, out):
    """0 - 1 in unsigned arithmetic is 4294967295."""
    i = np.uint32(cuda.grid(1))
    out[i] = a[np.uint32(i - np.uint32(1))]  # bug


@wrong("out-of-bounds", 1, 32, lambda module: (floats(70), zeros(18)))
def four_at_a_time(a, out):
    """Each thread takes four elements, and the length is not a multiple of four."""
    i = cuda.grid(1)
    if 4 * i < a.size:
        out[i] = a[4 * i] + a[4 * i + 1] + a[4 * i + 2] + a[4 * i + 3]  # bug


@correct(mends=("four_at_a_time",))
def four_at_a_time_with_tail(a, out):
    """Four elements at a time, and the rest one by one."""
    i = cuda.grid(1)
    if i < out.size:
        total = float32(0)
        for k in range(4 * i, min(4 * i + 4, a.size)):
            total += a[k]
        out[i] = total


@wrong("out-of-bounds", 1, 32, lambda module: (floats(70), zeros(18)))
def wide_load_at_end(a, out):
    """The last load of four elements begins inside the array and ends outside."""
    i = cuda.grid(1)
    if 4 * i < a.size:
        w, x, y, z = load4(a, 4 * i)  # bug
        out[i] = w + x + y + z


@wrong("out-of-bounds", 1, 64, _row)
def past_slice(a, out):
    """Past the end of a slice, but inside the array it was cut from."""
    part = a[8:40]
    t = cuda.threadIdx.x
    if t < 40:
        out[t] = part[t]  # bug


@wrong("out-of-bounds", 1, 70, lambda module: (np.ones(70, PAIR), zeros(70)))
def past_records(pairs, out):
    """The last record has no successor."""
    i = cuda.grid(1)
    out[i] = pairs[i + 1].value - pairs[i].value  # bug


def _unit_interval(module):
    return np.linspace(0, 1, 64, dtype=np.float32), zeros(10, dtype=np.int32)


@wrong("out-of-bounds", 1, 64, _unit_interval)
def last_bin(a, counts):
    """The value 1.0 falls into bin 10 of bins 0 to 9."""
    i = cuda.grid(1)
    cuda.atomic.add(counts, int(a[i] * counts.size), 1)  # bug


@correct(mends=("last_bin",))
def last_bin_closed(a, counts):
    """The value 1.0 counts in the last bin."""
    i = cuda.grid(1)
    cuda.atomic.add(counts, min(int(a[i] * counts.size), counts.size - 1), 1)


@wrong("out-of-bounds", 2, 16, _ragged)
def stride_one_too_far(a, b, out):
    """A grid-stride loop whose end is one element too far."""
    for i in range(cuda.grid(1), out.size + 1, cuda.gridsize(1)):
        out[i] = a[i] * b[i]  # bug


@correct(mends=("stride_one_too_far",))
def grid_stride(a, b, out):
    """A grid-stride loop over more elements than threads."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] * b[i]


# -- misaligned accesses ---------------------------------------------------------------------------


@wrong("misaligned", 1, 15, lambda module: (floats(64), zeros(15)))
def wide_load_shifted(a, out):
    """Four elements at once, but the first one's address is no multiple of 16 bytes."""
    i = cuda.grid(1)
    w, x, y, z = load4(a, 4 * i + 1)  # bug
    out[i] = w + x + y + z


@correct(mends=("wide_load_shifted",))
def four_loads_shifted(a, out):
    """Four elements one by one may start anywhere."""
    i = cuda.grid(1)
    out[i] = a[4 * i + 1] + a[4 * i + 2] + a[4 * i + 3] + a[4 * i + 4]


@wrong("misaligned", 1, 16, lambda module: (floats(16, 16), zeros(16)))
def wide_load_of_padded_rows(a, out):
    """Rows of 17 floats have no bank conflicts, but do not begin at multiples of 16 bytes."""
    tile = cuda.shared.array((16, 17), float32)
    t = cuda.threadIdx.x
    for k in range(16):
        tile[k, t] = a[k, t]
    cuda.syncthreads()
    w, x, y, z = load4(tile, (t, 0))  # bug
    out[t] = w + x + y + z


@correct(mends=("wide_load_of_padded_rows",))
def wide_load_of_rows_of_twenty(a, out):
    """Rows of 20 floats begin at multiples of 16 bytes."""
    tile = cuda.shared.array((16, 20), float32)
    t = cuda.threadIdx.x
    for k in range(16):
        tile[k, t] = a[k, t]
    cuda.syncthreads()
    w, x, y, z = load4(tile, (t, 0))
    out[t] = w + x + y + z


@wrong("misaligned", 1, 31, lambda module: (floats(64), zeros(64)))
def wide_store_shifted(a, out):
    """Pairs are stored at odd positions."""
    i = cuda.grid(1)
    store2(out, 2 * i + 1, a[2 * i], a[2 * i + 1])  # bug


@correct(1, 32, lambda module: (floats(64), zeros(64)))
def wide_store_at_pairs(a, out):
    """Pairs are stored at even positions."""
    i = cuda.grid(1)
    store2(out, 2 * i, a[2 * i], a[2 * i + 1])


def _octets(module):
    octets = module.to_device(np.arange(257, dtype=np.uint8))
    return octets[1:].view(np.float32), zeros(64)


@wrong("misaligned", 1, 64, _octets)
def floats_at_odd_address(a, out):
    """Floats that begin at an odd byte of a buffer, after a header of one byte."""
    i = cuda.grid(1)
    out[i] = a[i]  # bug


# -- negative indices ------------------------------------------------------------------------------


@wrong("negative-index", 1, 64, _row)
def left_neighbour(a, out):
    """Thread 0 has no left neighbour: a[-1] is the last element."""
    i = cuda.grid(1)
    out[i] = a[i] - a[i - 1]  # bug


@correct(mends=("left_neighbour",))
def left_neighbour_guarded(a, out):
    """The first thread has no left neighbour and uses 0."""
    i = cuda.grid(1)
    out[i] = a[i] - a[i - 1] if i > 0 else a[i]


@wrong("negative-index", (2, 1), (16, 16), _image)
def left_column(image, out):
    """The halo column left of column 0 is the last column."""
    x, y = cuda.grid(2)
    if x < image.shape[1] and y < image.shape[0]:
        out[y, x] = image[y, x] - image[y, x - 1]  # bug


@wrong("negative-index", 1, 64, _row)
def reversed_one_off(a, out):
    """Reversing with one too much: the last thread gets index -1."""
    i = cuda.grid(1)
    out[i] = a[a.size - i - 2]  # bug


@correct(mends=("reversed_one_off",))
def reversed_array(a, out):
    """Reversed: from n - 1 down to 0."""
    i = cuda.grid(1)
    out[i] = a[a.size - i - 1]


@wrong("negative-index", (2, 1), (16, 16), _image)
def stencil_upper_edge(image, out):
    """The row above row 0 is the last row."""
    x, y = cuda.grid(2)
    if 0 < x < image.shape[1] - 1 and y < image.shape[0] - 1:
        around = image[y - 1, x] + image[y + 1, x] + image[y, x - 1] + image[y, x + 1]  # bug
        out[y, x] = around - 4 * image[y, x]


@correct(mends=("stencil_upper_edge",))
def stencil_inside(image, out):
    """A stencil of the inner pixels only."""
    x, y = cuda.grid(2)
    if 0 < x < image.shape[1] - 1 and 0 < y < image.shape[0] - 1:
        around = image[y - 1, x] + image[y + 1, x] + image[y, x - 1] + image[y, x + 1]
        out[y, x] = around - 4 * image[y, x]


def _columns(module):
    return floats(3, 62), zeros(64)


@wrong("negative-index", 1, 64, _columns)
def col2im_edge(columns, out):
    """Gathering back from columns: the first pixels have no windows to their left."""
    x = cuda.grid(1)
    total = float32(0)
    for k in range(columns.shape[0]):
        if x - k < columns.shape[1]:
            total += columns[k, x - k]  # bug
    out[x] = total


@correct(mends=("col2im_edge",))
def col2im_gather(columns, out):
    """Gathering back from columns, with both ends guarded."""
    x = cuda.grid(1)
    total = float32(0)
    for k in range(columns.shape[0]):
        if 0 <= x - k < columns.shape[1]:
            total += columns[k, x - k]
    out[x] = total


@wrong("negative-index", 1, 64, lambda module: (values(64, 11), floats(10), zeros(64)))
def label_none(labels, weights, out):
    """Labels count from 1 and 0 means none, which becomes index -1."""
    i = cuda.grid(1)
    out[i] = weights[labels[i] - 1]  # bug


@wrong("negative-index", 1, 64, _row)
def ring_without_remainder(a, out):
    """A ring buffer without the remainder."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[t - 3]  # bug


@correct(mends=("ring_without_remainder",))
def ring_with_remainder(a, out):
    """A ring buffer with the remainder."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[(t + 61) % 64]


@wrong("negative-index", 1, 64, _row)
def local_window(a, out):
    """A local window is shifted by one too much."""
    window = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(4):
        window[k] = a[(i + k) % 64]
    out[i] = window[i % 4 - 1]  # bug


@wrong("negative-index", 1, 64, _row)
def padded_store(a, out):
    """Padding is subtracted and never tested: a store goes to the array's end."""
    i = cuda.grid(1)
    out[i - 2] = a[i]  # bug


@correct(1, 64, _row)
def literal_last(a, out):
    """A literal -1 is meant: the last element."""
    i = cuda.grid(1)
    out[i] = a[i] + a[-1]


# -- reads of what was never written ---------------------------------------------------------------


def _ragged_row(module):
    return floats(40), zeros(64)


@wrong("uninitialised-read", 1, 64, _ragged_row)
def ragged_tile(a, out):
    """Threads beyond the end load nothing, and all elements are added."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < a.size:
        s[t] = a[t]
    cuda.syncthreads()
    total = float32(0)
    for k in range(64):
        total += s[k]  # bug
    out[t] = total


@correct(mends=("ragged_tile",))
def ragged_tile_filled(a, out):
    """Threads beyond the end load 0."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t] if t < a.size else float32(0)
    cuda.syncthreads()
    total = float32(0)
    for k in range(64):
        total += s[k]
    out[t] = total


@wrong("uninitialised-read", 1, 64, lambda module: (floats(50), zeros(1)))
def ragged_tree(a, out):
    """The tree adds elements that no thread of the ragged block has loaded."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < a.size:
        s[t] = a[t]
    cuda.syncthreads()
    step = 32
    while step > 0:
        if t < step:
            s[t] += s[t + step]  # bug
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[0] = s[0]


@correct(mends=("ragged_tree",))
def ragged_tree_guarded(a, out):
    """A ragged tree that adds only what was loaded."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < a.size:
        s[t] = a[t]
    cuda.syncthreads()
    step = 32
    while step > 0:
        if t < step and t + step < a.size:
            s[t] += s[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[0] = s[0]


@wrong("uninitialised-read", 1, 64, lambda module: (floats(64, 8), zeros(64)))
def local_accumulators(a, out):
    """The local accumulators are never set to zero."""
    sums = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(a.shape[1]):
        sums[k % 4] += a[i, k]  # bug
    out[i] = sums[0] + sums[1] + sums[2] + sums[3]


@correct(mends=("local_accumulators",))
def local_accumulators_zeroed(a, out):
    """Local accumulators that start at zero."""
    sums = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(4):
        sums[k] = float32(0)
    for k in range(a.shape[1]):
        sums[k % 4] += a[i, k]
    out[i] = sums[0] + sums[1] + sums[2] + sums[3]


@wrong("uninitialised-read", 1, 64, lambda module: (floats(64), zeros(1)))
def shared_sum_not_zeroed(a, out):
    """Atomic additions to a shared sum that was never set to zero."""
    total = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    cuda.atomic.add(total, 0, a[t])  # bug
    cuda.syncthreads()
    if t == 0:
        out[0] = total[0]


@wrong("uninitialised-read", 1, 64, lambda module: (floats(64), module.device_array(64, np.float32)))
def add_to_new_array(a, out):
    """+= on an output that cuda.device_array has left as it was."""
    i = cuda.grid(1)
    out[i] += a[i]  # bug


@correct(mends=("add_to_new_array",))
def assign_to_new_array(a, out):
    """An assignment to a new output."""
    i = cuda.grid(1)
    out[i] = a[i]


@wrong("uninitialised-read", 1, (16, 16), lambda module: (floats(16, 16), zeros(16)))
def pad_column(a, out):
    """The column that pads the tile is added too."""
    tile = cuda.shared.array((16, 17), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = a[ty, tx]
    cuda.syncthreads()
    if ty == 0:
        total = float32(0)
        for k in range(17):
            total += tile[tx, k]  # bug
        out[tx] = total


@correct(mends=("pad_column",))
def pad_column_unread(a, out):
    """The column that pads the tile is never read."""
    tile = cuda.shared.array((16, 17), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = a[ty, tx]
    cuda.syncthreads()
    if ty == 0:
        total = float32(0)
        for k in range(16):
            total += tile[tx, k]
        out[tx] = total


def _fill(out):
    out[cuda.grid(1)] = float32(1)


def _partly_filled(module):
    work = module.device_array(64, np.float32)
    module.jit(_fill)[1, 40](work)
    return work, zeros(64)


@wrong("uninitialised-read", 1, 64, _partly_filled)
def after_partial_launch(work, out):
    """An earlier launch wrote 40 of the 64 elements."""
    i = cuda.grid(1)
    out[i] = 2 * work[i]  # bug


@correct(mends=("after_partial_launch",))
def after_partial_launch_guarded(work, out):
    """An earlier launch wrote the elements that are read."""
    i = cuda.grid(1)
    if i < 40:
        out[i] = 2 * work[i]


@wrong("uninitialised-read", 1, 48, lambda module: (floats(48), zeros(48)), shared_bytes=256)
def dynamic_tail(a, out):
    """Only 48 of the 64 dynamic elements are set."""
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[t] + s[t + 16]  # bug


@wrong("uninitialised-read", 1, (16, 16), lambda module: (floats(18, 18), zeros(16, 16)))
def corners_of_halo(image, out):
    """The tile's edges are loaded, its corners are not, and a 3 x 3 window reads them."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty + 1, tx + 1] = image[ty + 1, tx + 1]
    if ty == 0:
        tile[0, tx + 1] = image[0, tx + 1]
        tile[17, tx + 1] = image[17, tx + 1]
    if tx == 0:
        tile[ty + 1, 0] = image[ty + 1, 0]
        tile[ty + 1, 17] = image[ty + 1, 17]
    cuda.syncthreads()
    total = float32(0)
    for dy in range(3):
        for dx in range(3):
            total += tile[ty + dy, tx + dx]  # bug
    out[ty, tx] = total


@correct(mends=("corners_of_halo",))
def whole_halo(image, out):
    """A tile of 18 x 18 loaded whole by 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(ty * 16 + tx, 18 * 18, 256):
        tile[k // 18, k % 18] = image[k // 18, k % 18]
    cuda.syncthreads()
    total = float32(0)
    for dy in range(3):
        for dx in range(3):
            total += tile[ty + dy, tx + dx]
    out[ty, tx] = total


@wrong("uninitialised-read", 1, 64, _row)
def written_by_half(a, out):
    """Only even threads write, all read their neighbour."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t % 2 == 0:
        s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[t ^ 1]  # bug


@wrong("uninitialised-read", 1, 64, lambda module: (floats(64), module.device_array(64, np.int32), zeros(64)))
def flags_never_set(a, done, out):
    """A flag in new global memory is tested before anyone has set it."""
    i = cuda.grid(1)
    if done[i] == 0:  # bug
        out[i] = a[i]
        done[i] = 1


# -- barriers and warp operations that not all threads reach ---------------------------------------


@wrong("barrier-divergence", 1, 64, _row)
def barrier_in_if(a, out):
    """16 threads wait at a barrier inside the branch, the others at the one after it."""
    s = cuda.shared.array(16, float32)
    t = cuda.threadIdx.x
    value = a[t]
    if t < 16:
        s[t] = value
        cuda.syncthreads()  # bug
        value = s[15 - t]
    cuda.syncthreads()  # other
    out[t] = value


@wrong("barrier-divergence", 1, 64, _row, exempt="threads that have ended no longer take part in barriers")
def barrier_in_guard(a, out):
    """Only 16 threads reach the barrier; the others skip it and come to the end of the kernel."""
    s = cuda.shared.array(16, float32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = a[t]
        cuda.syncthreads()  # bug
        out[t] = s[15 - t]
    else:
        out[t] = a[t]


@correct(mends=("barrier_in_if", "barrier_in_guard"))
def barrier_outside_if(a, out):
    """The barrier stands outside the branch."""
    s = cuda.shared.array(16, float32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[15 - t] if t < 16 else a[t]


@wrong("barrier-divergence", 1, 64, _row)
def barrier_in_both_arms(a, out):
    """Each arm of the branch has its own barrier; a thread can reach only one."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t % 2 == 0:
        s[t] = a[t]
        cuda.syncthreads()  # bug
    else:
        s[t] = -a[t]
        cuda.syncthreads()  # other
    out[t] = s[t]


@wrong("barrier-divergence", 1, 64, _row)
def barrier_in_uneven_loop(a, out):
    """The second warp makes one more iteration than the first, around a barrier."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    for _ in range(t // 32 + 1):
        cuda.syncthreads()  # bug
        s[t] += float32(1)
    cuda.syncthreads()  # other
    out[t] = s[63 - t]  # then


@correct(mends=("barrier_in_uneven_loop",))
def barrier_in_even_loop(a, out):
    """All threads make as many iterations as the slowest."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    for k in range(2):
        cuda.syncthreads()
        if k < t // 32 + 1:
            s[t] += float32(1)
    cuda.syncthreads()
    out[t] = s[63 - t]


@wrong("barrier-divergence", 1, 64, lambda module: (floats(100), zeros(64)))
def continue_around_barrier(a, out):
    """Threads beyond the end skip the barrier with continue, and wait at the next one."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(0, 128, 64):
        if k + t >= a.size:
            continue
        s[t] = a[k + t]
        cuda.syncthreads()  # bug
        total += s[t]
    cuda.syncthreads()  # other
    out[t] = total


@correct(mends=("continue_around_barrier",))
def guard_around_work(a, out):
    """Threads beyond the end skip the work, not the barriers."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(0, 128, 64):
        if k + t < a.size:
            s[t] = a[k + t]
        cuda.syncthreads()
        if k + t < a.size:
            total += s[t]
    out[t] = total


@wrong("barrier-divergence", 1, 64, _row)
def break_before_barrier(a, out):
    """Threads that have found their value leave the loop, and the barrier in it."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = float32(0)
    for k in range(4):
        if a[t] < float32(16 * (k + 1)):
            break
        s[t] += float32(1)
        cuda.syncthreads()  # bug
    cuda.syncthreads()  # other
    out[t] = s[63 - t]  # then


def _meet(s, t, value):
    s[t] = value
    cuda.syncthreads()  # bug
    return s[t ^ 1]


meet = cuda.jit(device=True)(_meet)


@wrong("barrier-divergence", 1, 64, _row, helpers=(_meet,))
def barrier_in_function(a, out):
    """The barrier hides in a device function that only half of the threads call."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    value = a[t]
    if t < 32:
        value = meet(s, t, value)  # other
    cuda.syncthreads()  # other
    out[t] = value


@correct(mends=("barrier_in_function",))
def barrier_in_function_for_all(a, out):
    """All threads call the device function with the barrier."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    partner = meet(s, t, a[t])
    out[t] = partner if t < 32 else a[t]


@wrong("barrier-divergence", 1, 64, _row)
def barrier_behind_and(a, out):
    """and stops early: the second warp never reaches syncthreads_or."""
    t = cuda.threadIdx.x
    if t < 32 and cuda.syncthreads_or(1 if a[t] > float32(5) else 0):  # bug
        out[t] = a[t]
    cuda.syncthreads()  # other
    out[t] += float32(1)


@wrong("barrier-divergence", 1, 32, _one_warp)
def syncwarp_not_named(a, out):
    """Lanes 16 to 31 call syncwarp with a mask that does not name them."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncwarp(0x0000FFFF)  # bug
    out[t] = s[t]


@wrong("barrier-divergence", 1, 32, _one_warp)
def syncwarp_lanes_missing(a, out):
    """The mask names all lanes, and only 16 of them come to syncwarp."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    value = a[t]
    if t < 16:
        cuda.syncwarp(FULL)  # bug
        value = s[15 - t]
    cuda.syncwarp(FULL)  # other
    out[t] = value


@correct(mends=("syncwarp_lanes_missing",))
def syncwarp_lanes_named(a, out):
    """The mask names the lanes that come."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    value = a[t]
    if t < 16:
        cuda.syncwarp(0x0000FFFF)
        value = s[15 - t]
    cuda.syncwarp(FULL)
    out[t] = value


def _ragged_warp(module):
    return floats(50), zeros(50)


@wrong("barrier-divergence", 1, 64, _ragged_warp)
def shuffle_from_returned_lane(a, out):
    """In the ragged last warp a lane asks for the value of one that has returned."""
    i = cuda.grid(1)
    if i >= a.size:
        return
    value = a[i]
    value += cuda.shfl_down_sync(FULL, value, 1)  # bug
    out[i] = value


@correct(mends=("shuffle_from_returned_lane",))
def shuffle_with_all_lanes(a, out):
    """All lanes shuffle; the ragged ones bring 0."""
    i = cuda.grid(1)
    value = a[i] if i < a.size else float32(0)
    value += cuda.shfl_down_sync(FULL, value, 1)
    if i < a.size:
        out[i] = value


@wrong("barrier-divergence", 1, 64, _row)
def shuffle_in_half_warp(a, out):
    """Half of each warp shuffles with the mask of all lanes; the rest waits at the barrier."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    value = a[t]
    if t % 32 < 16:
        value += cuda.shfl_down_sync(FULL, value, 8)  # bug
    s[t] = value
    cuda.syncthreads()  # other
    out[t] = s[63 - t]  # then


@correct(mends=("shuffle_in_half_warp",))
def shuffle_with_half_mask(a, out):
    """Half of a warp shuffles with a mask of its own lanes."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    value = a[t]
    if t % 32 < 16:
        value += cuda.shfl_xor_sync(0x0000FFFF, value, 8)
    s[t] = value
    cuda.syncthreads()
    out[t] = s[63 - t]


@wrong("barrier-divergence", 1, 32, _one_warp)
def vote_of_even_lanes(a, out):
    """Odd lanes do not vote, though the mask names them."""
    t = cuda.threadIdx.x
    value = -a[t]
    if t % 2 == 0 and cuda.any_sync(FULL, a[t] > float32(20)):  # bug
        value = a[t]
    cuda.syncwarp(FULL)  # other
    out[t] = value


@wrong("barrier-divergence", 1, 32, _one_warp, exempt="threads that have ended no longer take part in barriers")
def vote_of_even_lanes_at_end(a, out):
    """Odd lanes do not vote, though the mask names them, and come to the end of the kernel."""
    t = cuda.threadIdx.x
    if t % 2 == 0:
        if cuda.any_sync(FULL, a[t] > float32(20)):  # bug
            out[t] = a[t]
    else:
        out[t] = -a[t]


@correct(mends=("vote_of_even_lanes",))
def vote_with_even_mask(a, out):
    """Even lanes vote with a mask of even lanes."""
    t = cuda.threadIdx.x
    value = -a[t]
    if t % 2 == 0 and cuda.any_sync(0x55555555, a[t] > float32(20)):
        value = a[t]
    cuda.syncwarp(FULL)
    out[t] = value


@correct(2, 64, lambda module: (floats(128), zeros(4)))
def warp_sum(a, out):
    """A whole warp adds its values by shuffles."""
    i = cuda.grid(1)
    value = a[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(FULL, value, offset)
        offset //= 2
    if i % 32 == 0:
        out[i // 32] = value


@correct(1, 64, _ragged_row)
def return_before_barrier(a, out):
    """Threads return before a barrier that the others reach: they no longer take part."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t >= a.size:
        return
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[a.size - 1 - t]


@correct(2, 64, lambda module: (floats(256), zeros(128)))
def uniform_branches(a, out):
    """A barrier in a loop and a branch that are the same for all threads."""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(cuda.blockIdx.x + 1):
        s[t] = a[k * 64 + t]
        if k % 2 == 0:
            cuda.syncthreads()
            total += s[63 - t]
            cuda.syncthreads()
    out[cuda.grid(1)] = total
