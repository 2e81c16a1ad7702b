"""Small kernels on which a GPU's counters and `gpukit.trace` can be compared for equality.

The compiler leaves their memory accesses as they are written. Most patterns come from one driver for each kind of
access: it reads an index for each thread from global memory and accesses shared memory with it once. Loops step by an
argument, because with a step known to be 1 the compiler would merge neighbouring accesses to 64 or 128 bits. Where that
is shown on purpose, the case says so in `Case.merges`.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import complex64, float32, float64, int16, int32, uint8

from bench.corpus import tiles
from gpukit.backend import cuda
from gpukit.intrinsics import allow_dynamic_shared, load2, load4, store2, store4

#: Groups of counters that a case compares; `counters.FIGURES` lists the counters of each.
GROUPS = ("shared", "shared lines", "global", "global lines", "local", "atomic", "atomic sectors", "arithmetic")
GROUPS += ("matrices", "tensor", "tensor requests")
SHARED, GLOBAL = GROUPS[:2], GROUPS[2:4]
#: Elements of a driver's shared array, in accesses: enough for 32 lanes 33 apart.
SLOTS = 1056
PAIRS = 2 * SLOTS
QUADS = 4 * SLOTS


@dataclass(frozen=True, eq=False)
class Case:
    """One launch.

    Attributes
    ----------
    name : str
    kernel : kernel
    grid, block : int or tuple
    inputs : tuple, or function
        NumPy arrays and numbers. A launch changes arrays: take `arguments`. A function makes arguments that need a
        device.
    what : tuple of str
        The `GROUPS` that are compared.
    merges : str
        Why the compiled kernel does not access memory as written; "" where it does.
    shared : int
        Bytes of dynamic shared memory.
    """

    name: str
    kernel: object
    grid: object
    block: object
    inputs: Any
    what: tuple
    merges: str = ""
    shared: int = 0

    @property
    def launch(self):
        """The kernel with its grid and block."""
        if self.shared:
            allow_dynamic_shared(self.kernel, self.shared)
        return self.kernel[self.grid, self.block, 0, self.shared]

    def arguments(self):
        """Return fresh copies of the inputs."""
        if callable(self.inputs):
            return self.inputs()
        return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in self.inputs)


# -- shared memory: one store and one load for each thread, at any index -----------------------------------------------


def exchange(dtype):
    """Make a driver for single elements of a type."""

    @cuda.jit
    def exchange(put, get, values, out):
        tile = cuda.shared.array(SLOTS, dtype)
        t = cuda.threadIdx.x
        i = put[t]
        j = get[t]
        tile[i] = values[t]
        cuda.syncthreads()
        out[t] = tile[j]

    return exchange


def exchange_masked(dtype):
    """Make a driver as `exchange` does, with a mask for the store and one for the load."""

    @cuda.jit
    def exchange_masked(put, get, puts, gets, values, out):
        tile = cuda.shared.array(SLOTS, dtype)
        t = cuda.threadIdx.x
        if puts[t]:
            tile[put[t]] = values[t]
        cuda.syncthreads()
        if gets[t]:
            out[t] = tile[get[t]]

    return exchange_masked


@cuda.jit
def exchange_pairs(put, get, values, out):
    tile = cuda.shared.array(PAIRS, float32, alignment=16)
    t = cuda.threadIdx.x
    i = put[t]
    j = get[t]
    a, b = load2(values, 2 * t)
    store2(tile, 2 * i, a, b)
    cuda.syncthreads()
    a, b = load2(tile, 2 * j)
    store2(out, 2 * t, a, b)


@cuda.jit
def exchange_pairs_masked(put, get, puts, gets, values, out):
    tile = cuda.shared.array(PAIRS, float32, alignment=16)
    t = cuda.threadIdx.x
    if puts[t]:
        a, b = load2(values, 2 * t)
        store2(tile, 2 * put[t], a, b)
    cuda.syncthreads()
    if gets[t]:
        a, b = load2(tile, 2 * get[t])
        store2(out, 2 * t, a, b)


@cuda.jit
def exchange_quads(put, get, values, out):
    tile = cuda.shared.array(QUADS, float32, alignment=16)
    t = cuda.threadIdx.x
    i = put[t]
    j = get[t]
    a, b, c, d = load4(values, 4 * t)
    store4(tile, 4 * i, a, b, c, d)
    cuda.syncthreads()
    a, b, c, d = load4(tile, 4 * j)
    store4(out, 4 * t, a, b, c, d)


@cuda.jit
def exchange_quads_masked(put, get, puts, gets, values, out):
    tile = cuda.shared.array(QUADS, float32, alignment=16)
    t = cuda.threadIdx.x
    if puts[t]:
        a, b, c, d = load4(values, 4 * t)
        store4(tile, 4 * put[t], a, b, c, d)
    cuda.syncthreads()
    if gets[t]:
        a, b, c, d = load4(tile, 4 * get[t])
        store4(out, 4 * t, a, b, c, d)


@dataclass(frozen=True)
class Driver:
    """The driver kernels of one kind of access."""

    name: str
    plain: object
    masked: object
    dtype: type
    width: int = 1


DRIVERS = {
    driver.name: driver
    for driver in (
        Driver("uint8", exchange(uint8), exchange_masked(uint8), np.uint8),
        Driver("int16", exchange(int16), exchange_masked(int16), np.int16),
        Driver("float32", exchange(float32), exchange_masked(float32), np.float32),
        Driver("float64", exchange(float64), exchange_masked(float64), np.float64),
        Driver("2 float32", exchange_pairs, exchange_pairs_masked, np.float32, 2),
        Driver("4 float32", exchange_quads, exchange_quads_masked, np.float32, 4),
    )
}


def _exchange(kind, name, put, get=None, puts=None, gets=None):
    """A driver's case; indices are in accesses, and threads that store to one slot store the same."""
    driver = DRIVERS[kind]
    # By line, ncu does not count the wavefronts that a wide load saves where lanes agree: it works them out itself.
    wide = driver.dtype().itemsize * driver.width > 4
    what = ("shared", *GLOBAL) if wide else SHARED + GLOBAL
    put = np.asarray(put, np.int32)
    get = put if get is None else np.asarray(get, np.int32)
    values = (put[:, None] * driver.width + np.arange(driver.width)).astype(driver.dtype).ravel()
    masks = ()
    if puts is not None or gets is not None:
        masks = [np.ones(put.size, np.int32) if mask is None else np.asarray(mask, np.int32) for mask in (puts, gets)]
    kernel = driver.masked if masks else driver.plain
    inputs = (put, get, *masks, values, np.zeros_like(values))
    return Case(f"{kind}, {name}", kernel, 1, put.size, inputs, what)


LANE = np.arange(32)
#: Lanes that agree on a word: what lane l accesses.
AGREEING = {
    "one word": LANE * 0,
    "two words, by halves": LANE // 16,
    "two words, alternating": LANE % 2,
    "lanes l^1 agree": LANE // 2,
    "lanes l^2 agree": LANE // 4 * 2 + LANE % 2,
    "lanes l^4 agree": LANE // 8 * 4 + LANE % 4,
    "lanes l^8 agree": LANE // 16 * 8 + LANE % 8,
    "halves agree": LANE % 16,
    "quarters agree": LANE % 8,
    "fours agree": LANE // 4,
    "eights agree": LANE // 8,
    "every fourth agrees": LANE % 4,
    "4 x 8 lanes, rows": 2 * (LANE // 8) + LANE % 2,
    "4 x 8 lanes, columns": LANE // 2 % 4,
    "reversed": 31 - LANE,
    "lanes swapped": LANE ^ 1,
    "halves swapped": LANE ^ 16,
}
#: Lanes of which some agree and some do not: what lane l accesses.
MIXED = {
    "lower half l^1": np.where(LANE < 16, LANE // 2, LANE),
    "upper half l^1": np.where(LANE >= 16, LANE // 2, LANE),
    "lower half l^2": np.where(LANE < 16, AGREEING["lanes l^2 agree"], LANE),
    "lower half l^1, upper half l^2": np.where(LANE < 16, LANE // 2, AGREEING["lanes l^2 agree"]),
    "first quarter l^1": np.where(LANE < 8, LANE // 2, LANE),
    "quarters l^1 and l^2 in turn": np.where(LANE // 8 % 2, AGREEING["lanes l^2 agree"], LANE // 2),
    "all but one pair l^1": np.where(LANE == 31, 31, LANE // 2),
    "all but one pair of the lower half l^2": np.where(LANE == 1, 31, AGREEING["lanes l^2 agree"]),
    "lower half one word": np.where(LANE < 16, 0, LANE),
}
MASKS = {
    "odd lanes": LANE % 2,
    "even lanes": 1 - LANE % 2,
    "lanes 0 to 4": LANE < 5,
    "lanes 0 to 15": LANE < 16,
    "lanes 8 to 23": (LANE >= 8) & (LANE < 24),
    "lanes l & 2": LANE & 2,
    "lanes l & 4": LANE & 4,
    "one of each quarter": LANE % 8 == 3,
    "random lanes": np.random.default_rng(1).random(32) < 0.5,
}


def _strides():
    every = (*range(1, 9), 9, 10, 12, 15, 16, 17, 24, 31, 32, 33)
    some = (1, 2, 3, 4, 5, 8, 16, 32, 33)
    for kind in DRIVERS:
        for stride in every if kind == "float32" else some:
            yield _exchange(kind, f"stride {stride}", stride * LANE)


def _agreements():
    for kind in ("float32", "float64", "2 float32", "4 float32"):
        for name, pattern in AGREEING.items():
            for spread in (1,) if kind == "float32" else (1, 4):
                every = np.unique(spread * pattern)
                put = every[np.arange(32) % every.size]
                yield _exchange(kind, f"load, {name}, {spread} apart", put, spread * pattern)
    for kind in ("float64", "2 float32", "4 float32"):
        for name, pattern in MIXED.items():
            for spread in (1, 4):
                yield _exchange(kind, f"load, {name}, {spread} apart", spread * LANE, spread * pattern)
    for kind in ("2 float32", "4 float32"):
        for name in ("lower half l^1", "all but one pair l^1"):
            mask = MASKS["lanes 0 to 15"] if "half" in name else LANE < 31
            yield _exchange(kind, f"load, {name}, the others off", 4 * LANE, 4 * MIXED[name], gets=mask)
    for kind in ("uint8", "int16"):
        for name in ("one word", "lanes l^1 agree", "halves agree"):
            yield _exchange(kind, f"store and load, {name}", AGREEING[name])
    for kind in ("float32", "2 float32", "4 float32"):
        for name in ("one word", "two words, alternating", "lanes l^1 agree", "lanes l^2 agree", "quarters agree"):
            yield _exchange(kind, f"store to the same word, {name}", AGREEING[name])
            yield _exchange(kind, f"store to the same word, {name}, 8 apart", 8 * AGREEING[name])


def _random():
    for kind in DRIVERS:
        for seed in range(4):
            random = np.random.default_rng(seed)
            yield _exchange(kind, f"permutation {seed}", random.permutation(32))
            put = random.permutation(SLOTS)[:32]
            yield _exchange(kind, f"random slots {seed}", put)
            yield _exchange(kind, f"random loads {seed}", put, random.choice(put, 32))
    for kind in ("2 float32", "4 float32"):
        for seed in range(3):
            random = np.random.default_rng(10 + seed)
            put = random.permutation(SLOTS)[:32]
            yield _exchange(kind, f"random loads {seed}, lanes l^1 agree", put, random.choice(put, 16)[LANE // 2])
            agree = LANE // 4 * 2 + LANE % 2
            yield _exchange(kind, f"random loads {seed}, lanes l^2 agree", put, random.choice(put, 16)[agree])
            few = random.choice(put, 6)
            yield _exchange(kind, f"random loads {seed} of six", put, random.choice(few, 32))


def _partial_warps():
    for kind in ("uint8", "float32", "float64", "4 float32"):
        for threads in (1, 5, 33, 40, 100):
            for stride in (1, 4):
                put = stride * np.arange(threads)
                yield _exchange(kind, f"{threads} threads, stride {stride}", put)


def _masked():
    for kind in ("uint8", "float32", "float64", "2 float32", "4 float32"):
        for name, mask in MASKS.items():
            for stride in (4,) if kind in ("uint8", "float32") else (1, 4):
                yield _exchange(kind, f"load by {name}, stride {stride}", stride * LANE, gets=mask)
        for name in ("odd lanes", "lanes 0 to 4", "random lanes"):
            # All that is stored is loaded: the lanes that do not store do not load.
            yield _exchange(kind, f"store and load by {name}, stride 2", 2 * LANE, puts=MASKS[name], gets=MASKS[name])
    for kind in ("2 float32", "4 float32"):
        for name in ("odd lanes", "lanes l & 2", "random lanes"):
            for pattern in ("lanes l^1 agree", "lanes l^2 agree", "quarters agree"):
                get = 4 * AGREEING[pattern]
                yield _exchange(kind, f"load by {name}, {pattern}, 4 apart", 4 * LANE, get, gets=MASKS[name])
    whole = np.arange(64) < 20  # the second warp takes no part
    yield _exchange("float32", "load by 20 of 64 threads", np.arange(64), gets=whole)
    yield _exchange("4 float32", "load by 20 of 64 threads", np.arange(64), gets=whole)


# -- shared memory: blocks in two dimensions ---------------------------------------------------------------------------


@cuda.jit
def tile_walk(values, out, row_step, column_step):
    """tile[ty][tx] and tile[tx][ty] of any pitch: the steps between rows and between columns are arguments."""
    tile = cuda.shared.array(QUADS, float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    t = ty * cuda.blockDim.x + tx
    at = ty * row_step + tx * column_step
    tile[at] = values[t]
    cuda.syncthreads()
    out[t] = tile[at]


def tile_rows(pad):
    """tile[ty, tx] of 16 rows."""

    @cuda.jit
    def tile_rows(values, out):
        tile = cuda.shared.array((16, pad), float32)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        tile[ty, tx] = values[ty, tx]
        cuda.syncthreads()
        out[ty, tx] = tile[ty, tx]

    return tile_rows


def tile_columns(pitch):
    """tile[tx, ty] of 16 rows."""

    @cuda.jit
    def tile_columns(values, out):
        tile = cuda.shared.array((16, pitch), float32)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        tile[tx, ty] = values[ty, tx]
        cuda.syncthreads()
        out[ty, tx] = tile[tx, ty]

    return tile_columns


def _tiles():
    for width, height in ((16, 16), (32, 8), (8, 32), (32, 32), (7, 9), (33, 3)):
        threads = width * height
        values = np.arange(threads, dtype=np.float32)
        for pad in range(4):
            for name, steps in (("[ty][tx]", (width + pad, 1)), ("[tx][ty]", (1, height + pad))):
                inputs = (values, np.zeros_like(values), *steps)
                title = f"block {width}x{height}, tile{name}, padding {pad}"
                yield Case(title, tile_walk, 1, (width, height), inputs, SHARED + GLOBAL)
    values = np.arange(256, dtype=np.float32).reshape(16, 16)
    for pad in range(4):
        for factory in (tile_rows, tile_columns):
            inputs = (values, np.zeros_like(values))
            kernel = factory(16 + pad)
            yield Case(f"{factory.__name__}, pitch {16 + pad}", kernel, 1, (16, 16), inputs, SHARED + GLOBAL)


# -- the course's kernels ----------------------------------------------------------------------------------------------


@cuda.jit
def transpose_naive(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[col, row] = a[row, col]


def transpose_tiled(size, pitch):
    @cuda.jit
    def transpose_tiled(a, out):
        tile = cuda.shared.array((size, pitch), float32)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        col, row = cuda.grid(2)
        tile[ty, tx] = a[row, col]
        cuda.syncthreads()
        out_col = cuda.blockIdx.y * size + tx
        out_row = cuda.blockIdx.x * size + ty
        out[out_row, out_col] = tile[tx, ty]

    return transpose_tiled


def _transposes():
    a = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    for size in (16, 32):
        grid = (64 // size, 64 // size)
        block = (size, size)
        inputs = (a, np.zeros_like(a))
        yield Case(f"transpose, naive, {size}x{size}", transpose_naive, grid, block, inputs, GLOBAL)
        for pad in (0, 1, 2):
            kernel = transpose_tiled(size, size + pad)
            name = f"transpose, tiled, {size}x{size}, padding {pad}"
            yield Case(name, kernel, grid, block, inputs, SHARED + GLOBAL)
    ragged = np.arange(50 * 70, dtype=np.float32).reshape(50, 70)
    inputs = (ragged, np.zeros((70, 50), np.float32))
    yield Case("transpose, naive, 50x70", transpose_naive, (5, 4), (16, 16), inputs, GLOBAL)


@cuda.jit
def matmul_naive(a, b, out, step):
    col, row = cuda.grid(2)
    total = float32(0)
    k = 0
    while k < a.shape[1]:
        total += a[row, k] * b[k, col]
        k += step
    out[row, col] = total


@cuda.jit
def matmul_tiled(a, b, out, step):
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row, k + tx]
        tile_b[ty, tx] = b[k + ty, col]
        cuda.syncthreads()
        i = 0
        while i < 16:
            total += tile_a[ty, i] * tile_b[i, tx]
            i += step
        cuda.syncthreads()
    out[row, col] = total


@cuda.jit
def matmul_textbook(a, b, out):
    """The same without the step: the compiler unrolls the inner loop and merges the loads of a row of tile_a."""
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row, k + tx]
        tile_b[ty, tx] = b[k + ty, col]
        cuda.syncthreads()
        for i in range(16):
            total += tile_a[ty, i] * tile_b[i, tx]
        cuda.syncthreads()
    out[row, col] = total


def matmul_swapped(pitch):
    """tx and ty have changed places: a warp walks down columns of both tiles."""

    @cuda.jit
    def matmul_swapped(a, b, out, step):
        tile_a = cuda.shared.array((16, pitch), float32)
        tile_b = cuda.shared.array((16, pitch), float32)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        col, row = cuda.grid(2)
        total = float32(0)
        for k in range(0, a.shape[1], 16):
            tile_a[tx, ty] = a[row, k + tx]
            tile_b[tx, ty] = b[k + ty, col]
            cuda.syncthreads()
            i = 0
            while i < 16:
                total += tile_a[i, ty] * tile_b[tx, i]
                i += step
            cuda.syncthreads()
        out[row, col] = total

    return matmul_swapped


def _matmuls():
    random = np.random.default_rng(3)
    a, b = random.random((2, 32, 32), np.float32)
    inputs = (a, b, np.zeros_like(a), 1)
    everything = SHARED + GLOBAL
    yield Case("matmul, naive", matmul_naive, (2, 2), (16, 16), inputs, GLOBAL)
    yield Case("matmul, tiled", matmul_tiled, (2, 2), (16, 16), inputs, everything)
    yield Case("matmul, tiled, conflicts", matmul_swapped(16), (2, 2), (16, 16), inputs, everything)
    for pad in (1, 2):
        name = f"matmul, tiled, conflicts, padding {pad}"
        yield Case(name, matmul_swapped(16 + pad), (2, 2), (16, 16), inputs, everything)
    merges = "loads of neighbours in a row of tile_a become one of 128 bits"
    yield Case("matmul, textbook", matmul_textbook, (2, 2), (16, 16), inputs[:3], everything, merges)


@cuda.jit
def reduce_interleaved(values, out):
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = values[cuda.grid(1)]
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        if t % (2 * step) == 0:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@cuda.jit
def reduce_interleaved_packed(values, out):
    """The working threads side by side, their elements apart: bank conflicts."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = values[cuda.grid(1)]
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        at = 2 * step * t
        if at < cuda.blockDim.x:
            tile[at] += tile[at + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@cuda.jit
def reduce_sequential(values, out):
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = values[cuda.grid(1)]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@cuda.jit
def reduce_shuffle(values, out):
    """Sum of a warp without shared memory."""
    value = values[cuda.grid(1)]
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        step //= 2
    if cuda.laneid == 0:
        out[cuda.grid(1) // 32] = value


def _reductions():
    values = np.random.default_rng(4).random(512, np.float32)
    for kernel in (reduce_interleaved, reduce_interleaved_packed, reduce_sequential):
        name = kernel.py_func.__name__.replace("_", ", ")
        yield Case(name, kernel, 2, 256, (values, np.zeros(2, np.float32)), SHARED + GLOBAL)
    yield Case("reduce, shuffle", reduce_shuffle, 2, 256, (values, np.zeros(16, np.float32)), SHARED + GLOBAL)


@cuda.jit
def swap_channels(image, out):
    """One thread for each pixel: its three bytes."""
    x, y = cuda.grid(2)
    if y < image.shape[0] and x < image.shape[1]:
        out[y, x, 0] = image[y, x, 2]
        out[y, x, 1] = image[y, x, 1]
        out[y, x, 2] = image[y, x, 0]


@cuda.jit
def invert_channels(image, out):
    """One thread for each byte."""
    i = cuda.grid(1)
    if i < image.size:
        out[i] = 255 - image[i]


@cuda.jit
def grey(image, out):
    x, y = cuda.grid(2)
    if y < image.shape[0] and x < image.shape[1]:
        total = image[y, x, 0] + image[y, x, 1] + image[y, x, 2]
        out[y, x] = total // 3


@cuda.jit
def im2col(image, out, kernel_height, kernel_width, pad, step):
    """One thread for each channel, output row and output column; (C, H, W) to (C * KH * KW, OH, OW)."""
    channels, height, width = image.shape
    i = cuda.grid(1)
    per_channel = out.shape[1] * out.shape[2]
    if i < channels * per_channel:
        channel = i // per_channel
        row = i % per_channel // out.shape[2]
        col = i % out.shape[2]
        u = 0
        while u < kernel_height:
            v = 0
            while v < kernel_width:
                y = row + u - pad
                x = col + v - pad
                value = float32(0)
                if y >= 0 and y < height and x >= 0 and x < width:
                    value = image[channel, y, x]
                out[(channel * kernel_height + u) * kernel_width + v, row, col] = value
                v += step
            u += step


def _images():
    random = np.random.default_rng(5)
    for height, width in ((16, 32), (10, 37)):
        image = random.integers(0, 256, (height, width, 3), np.uint8)
        grid = (math.ceil(width / 16), math.ceil(height / 8))
        size = f"{width}x{height}"
        out = np.zeros_like(image)
        yield Case(f"image, a thread per pixel, {size}", swap_channels, grid, (16, 8), (image, out), GLOBAL)
        out = np.zeros((height, width), np.uint8)
        yield Case(f"image, grey, {size}", grey, grid, (16, 8), (image, out), GLOBAL)
        flat = image.ravel()
        blocks = math.ceil(flat.size / 128)
        inputs = (flat, np.zeros_like(flat))
        yield Case(f"image, a thread per byte, {size}", invert_channels, blocks, 128, inputs, GLOBAL)
    planes = random.random((2, 9, 11), np.float32)
    for size, pad in ((3, 0), (3, 1), (5, 2)):
        rows, cols = (n + 2 * pad - size + 1 for n in planes.shape[1:])
        columns = np.zeros((2 * size * size, rows, cols), np.float32)
        blocks = math.ceil(2 * rows * cols / 64)
        inputs = (planes, columns, size, size, pad, 1)
        yield Case(f"im2col, {size}x{size}, padding {pad}", im2col, blocks, 64, inputs, GLOBAL)


# -- global memory -----------------------------------------------------------------------------------------------------


@cuda.jit
def strided_load(a, out, stride, offset):
    i = cuda.grid(1)
    out[i] = a[i * stride + offset]


@cuda.jit
def strided_store(a, out, stride, offset):
    i = cuda.grid(1)
    out[i * stride + offset] = a[i]


@cuda.jit
def strided_pairs(a, out, stride, offset):
    i = cuda.grid(1)
    x, y = load2(a, 2 * (i * stride + offset))
    store2(out, 2 * i, x, y)


@cuda.jit
def strided_quads(a, out, stride, offset):
    i = cuda.grid(1)
    x, y, z, w = load4(a, 4 * (i * stride + offset))
    store4(out, 4 * (i * stride + offset), x, y, z, w)


@cuda.jit
def load_past_l1(a, out, stride, offset):
    i = cuda.grid(1)
    out[i] = cuda.ldcg(a, i * stride + offset)


@cuda.jit
def gather(a, index, out):
    i = cuda.grid(1)
    out[i] = a[index[i]]


@cuda.jit
def scatter(a, index, out):
    i = cuda.grid(1)
    out[index[i]] = a[i]


@cuda.jit
def some_lanes(a, out):
    i = cuda.grid(1)
    if i % 2:
        out[i] = a[i]
    elif i % 32 < 5:
        out[i] = 2 * a[i + 1]


@cuda.jit
def columns_walk(a, out, step):
    """One thread for each row: neighbours read a row apart."""
    row = cuda.grid(1)
    total = float32(0)
    i = 0
    while i < a.shape[1]:
        total += a[row, i]
        i += step
    out[row] = total


def _global():
    threads = 256
    for dtype in (np.uint8, np.int16, np.float32, np.float64):
        name = np.dtype(dtype).name
        for stride in (1, 2, 3, 8, 32):
            a = np.arange(threads * stride).astype(dtype)
            small = np.zeros(threads, dtype)
            yield Case(f"global, {name}, load, stride {stride}", strided_load, 2, 128, (a, small, stride, 0), GLOBAL)
            inputs = (small, np.zeros_like(a), stride, 0)
            yield Case(f"global, {name}, store, stride {stride}", strided_store, 2, 128, inputs, GLOBAL)
        for offset in (1, 3, 8, 31):
            a = np.arange(threads + offset).astype(dtype)
            small = np.zeros(threads, dtype)
            yield Case(f"global, {name}, load, offset {offset}", strided_load, 2, 128, (a, small, 1, offset), GLOBAL)
            inputs = (small, np.zeros_like(a), 1, offset)
            yield Case(f"global, {name}, store, offset {offset}", strided_store, 2, 128, inputs, GLOBAL)
    for kernel, width, name in ((strided_pairs, 2, "2 float32"), (strided_quads, 4, "4 float32")):
        for stride, offset in ((1, 0), (2, 0), (3, 0), (8, 0), (1, 1), (1, 3)):
            size = width * (threads * stride + offset)
            a = np.arange(size, dtype=np.float32)
            inputs = (a, np.zeros_like(a), stride, offset)
            yield Case(f"global, {name}, stride {stride}, offset {offset}", kernel, 2, 128, inputs, GLOBAL)
    yield from _gathers(threads)


def _gathers(threads):
    random = np.random.default_rng(6)
    a = random.random(1024, np.float32)
    out = np.zeros(threads, np.float32)
    yield Case("global, ldcg, stride 2", load_past_l1, 2, 128, (a, out, 2, 0), GLOBAL)
    for name, index in (
        ("random", random.integers(0, 1024, threads)),
        ("permutation", random.permutation(threads)),
        ("one element", np.full(threads, 7)),
        ("two elements", np.arange(threads) % 2 * 100),
        ("reversed", np.arange(threads)[::-1]),
    ):
        index = np.ascontiguousarray(index, np.int32)
        yield Case(f"global, gather, {name}", gather, 2, 128, (a, index, out), GLOBAL)
        values = a[index]  # threads that store to one element store the same
        yield Case(f"global, scatter, {name}", scatter, 2, 128, (values, index, np.zeros_like(a)), GLOBAL)
    for threads in (1, 33, 40):
        inputs = (a, np.zeros(threads, np.float32), 1, 0)
        yield Case(f"global, {threads} threads", strided_load, 1, threads, inputs, GLOBAL)
    yield Case("global, some lanes", some_lanes, 2, 128, (a, np.zeros(256, np.float32)), GLOBAL)
    rows = random.random((64, 16), np.float32)
    yield Case("global, a thread per row", columns_walk, 2, 32, (rows, np.zeros(64, np.float32), 1), GLOBAL)


# -- local memory ------------------------------------------------------------------------------------------------------


def local_walk(dtype):
    """An array of each thread's own, every third element filled and one read at an index from memory."""

    @cuda.jit
    def local_walk(index, values, out, step):
        own = cuda.local.array(48, dtype)
        t = cuda.grid(1)
        i = 0
        while i < 48:
            own[i] = values[i]
            i += step
        out[t] = own[index[t]]

    return local_walk


def _local():
    random = np.random.default_rng(7)
    for dtype in (uint8, int16, float32, float64):
        kernel = local_walk(dtype)
        for name, index in (
            ("the same index", np.full(64, 5)),
            ("index by lane", np.arange(64) % 16),
            ("alternating index", np.arange(64) % 2 * 3),
            ("random index", random.integers(0, 16, 64)),
        ):
            values = np.arange(48).astype(dtype.name)
            inputs = (3 * index.astype(np.int32), values, np.zeros(64, dtype.name), 3)
            yield Case(f"local, {dtype.name}, {name}", kernel, 2, 32, inputs, ("local", *GLOBAL))


# -- atomics -----------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def add(array, index, value):
    return cuda.atomic.add(array, index, value)


@cuda.jit(device=True)
def largest(array, index, value):
    return cuda.atomic.max(array, index, value)


@cuda.jit(device=True)
def bits_of_both(array, index, value):
    return cuda.atomic.and_(array, index, value)


@cuda.jit(device=True)
def swap(array, index, value):
    return cuda.atomic.exch(array, index, value)


@cuda.jit(device=True)
def swap_zero(array, index, value):
    return cuda.atomic.cas(array, index, 0, value)


def shared_atomic(operation, dtype):
    """One atomic for each thread, the old value dropped."""

    @cuda.jit
    def shared_atomic(index, values, out):
        bins = cuda.shared.array(256, dtype)
        t = cuda.threadIdx.x
        i = index[t]
        value = values[t]
        bins[t] = 0
        cuda.syncthreads()
        operation(bins, i, value)
        cuda.syncthreads()
        out[t] = bins[t]

    return shared_atomic


def shared_atomic_old(operation, dtype):
    """One atomic for each thread, its old value kept."""

    @cuda.jit
    def shared_atomic_old(index, values, out):
        bins = cuda.shared.array(256, dtype)
        t = cuda.threadIdx.x
        i = index[t]
        value = values[t]
        bins[t] = 0
        cuda.syncthreads()
        out[t] = operation(bins, i, value)

    return shared_atomic_old


def global_atomic(operation):
    @cuda.jit
    def global_atomic(index, values, bins):
        t = cuda.grid(1)
        operation(bins, index[t], values[t])

    return global_atomic


def global_atomic_old(operation):
    @cuda.jit
    def global_atomic_old(index, values, bins, out):
        t = cuda.grid(1)
        out[t] = operation(bins, index[t], values[t])

    return global_atomic_old


def _atomic_indices(threads):
    random = np.random.default_rng(8)
    t = np.arange(threads)
    return {
        "one address": t * 0,
        "distinct": t,
        "pairs": t // 2,
        "halves": t % 16,
        "stride 2": 2 * t % threads + 2 * t // threads,
        "stride 32": 32 * t % threads + 32 * t // threads,
        "histogram of 8": random.integers(0, 8, threads),
        "histogram of 64": random.integers(0, 64, threads),
        "permutation": random.permutation(threads),
    }


def _of_global_atomic(index):
    """What is compared: sectors too, unless a warp's lanes are scattered over more than two lines of 128 bytes.

    A scattered warp's sectors are at times one or two more than the rule says.
    """
    lines = max(np.unique(warp // 32).size for warp in np.reshape(index, (-1, 32)))
    spread = lines > 2 and not np.array_equal(np.sort(index), index)
    return ("global", "atomic") if spread else ("global", "atomic", "atomic sectors")


def _atomics():
    threads = 256
    ones = np.arange(1, threads + 1, dtype=np.int32)
    kernels = {
        "int32 add": shared_atomic(add, int32),
        "int32 add, old value": shared_atomic_old(add, int32),
        "int32 max": shared_atomic(largest, int32),
        "int32 and": shared_atomic(bits_of_both, int32),
        "int32 exchange": shared_atomic_old(swap, int32),
        "int32 compare and swap": shared_atomic_old(swap_zero, int32),
        "float32 add": shared_atomic(add, float32),
        "float64 add": shared_atomic(add, float64),
    }
    for name, kernel in kernels.items():
        values = ones.astype(name.split()[0])
        patterns = _atomic_indices(threads)
        if name != "int32 add":
            patterns = {
                key: patterns[key] for key in ("one address", "distinct", "pairs", "stride 2", "histogram of 8")
            }
        merges = (
            "a loop of load and compare-and-swap, repeated while other threads interfere" if "float" in name else ""
        )
        for pattern, index in patterns.items():
            inputs = (index.astype(np.int32), values, np.zeros_like(values))
            title = f"shared atomic, {name}, {pattern}"
            yield Case(title, kernel, 1, threads, inputs, (*SHARED, "atomic", *GLOBAL), merges)
    kernels = {"int32 add": global_atomic(add), "float32 add": global_atomic(add), "int32 max": global_atomic(largest)}
    for name, kernel in kernels.items():
        values = ones.astype(name.split()[0])
        for pattern, index in _atomic_indices(threads).items():
            inputs = (index.astype(np.int32), values, np.zeros_like(values))
            yield Case(f"global atomic, {name}, {pattern}", kernel, 2, 128, inputs, _of_global_atomic(index))
    yield from _atomics_of_one_warp(kernels["int32 add"], "int32")
    kernel = global_atomic_old(add)
    for pattern, index in _atomic_indices(threads).items():
        inputs = (index.astype(np.int32), ones, np.zeros_like(ones), np.zeros_like(ones))
        yield Case(f"global atomic, int32 add, old value, {pattern}", kernel, 2, 128, inputs, _of_global_atomic(index))


def _atomics_of_one_warp(kernel, dtype):
    values = np.arange(1, 33).astype(dtype)
    for seed in range(4):
        random = np.random.default_rng(20 + seed)
        for name, index in (
            (f"permutation of 32, {seed}", random.permutation(32)),
            (f"permutation of 64, {seed}", random.permutation(64)[:32]),
            (f"permutation of 256, {seed}", random.permutation(256)[:32]),
            (f"random of 16, {seed}", random.integers(0, 16, 32)),
            (f"random of 256, {seed}", random.integers(0, 256, 32)),
        ):
            inputs = (index.astype(np.int32), values, np.zeros(256, dtype))
            yield Case(f"global atomic, one warp, {name}", kernel, 1, 32, inputs, _of_global_atomic(index))
    for name, index in (
        ("reversed", LANE[::-1]),
        ("lanes swapped", LANE ^ 1),
        ("halves swapped", LANE ^ 16),
        ("quarters swapped", LANE ^ 8),
        ("columns of 4 x 8", LANE % 4 * 8 + LANE // 4),
        ("columns of 8 x 4", LANE % 8 * 4 + LANE // 8),
        ("stride 2", 2 * LANE),
        ("stride 3", 3 * LANE),
        ("stride 5", 5 * LANE),
    ):
        inputs = (np.ascontiguousarray(index, np.int32), values, np.zeros(256, dtype))
        yield Case(f"global atomic, one warp, {name}", kernel, 1, 32, inputs, _of_global_atomic(index))


# -- elements of several parts -----------------------------------------------------------------------------------------

POINT = np.dtype([("x", np.float32), ("y", np.float32), ("z", np.float32)], align=True)


@cuda.jit
def copy(a, out):
    i = cuda.grid(1)
    out[i] = a[i]


@cuda.jit
def fields(points, out):
    i = cuda.grid(1)
    point = points[i]
    out[i] = point.x + point.y * point.z


@cuda.jit
def exchange_complex(put, values, out):
    tile = cuda.shared.array(SLOTS, complex64)
    t = cuda.threadIdx.x
    i = put[t]
    tile[i] = values[t]
    cuda.syncthreads()
    out[t] = tile[i]


def _parts():
    random = np.random.default_rng(9)
    z = (random.random(128) + 1j * random.random(128)).astype(np.complex64)
    merges = "a complex number in global memory is read and written as two floats"
    yield Case("complex64, copy", copy, 1, 128, (z, np.zeros_like(z)), GLOBAL, merges)
    put = np.arange(128, dtype=np.int32)
    yield Case("complex64, shared", exchange_complex, 1, 128, (put, z, np.zeros_like(z)), SHARED)
    points = random.random((128, 3), np.float32).view(POINT).ravel()
    yield Case("records, three fields", fields, 1, 128, (points, np.zeros(128, np.float32)), GLOBAL)


# -- arithmetic --------------------------------------------------------------------------------------------------------


@cuda.jit
def arithmetic(a, b, out, step):
    """Do 4 additions and 4 multiply-adds that fuse, in each of 10 iterations."""
    i = cuda.grid(1)
    x = a[i]
    y = b[i]
    k = 0
    while k < 10:
        x = x * y + y
        y = x + y
        x = x * x
        k += step
    out[i] = x + y


@cuda.jit
def float64_trap(a, out):
    i = cuda.grid(1)
    out[i] = a[i] * 0.1 + 1.0


@cuda.jit
def fused(a, b, c, out):
    i = cuda.grid(1)
    out[i] = cuda.fma(a[i], b[i], c[i])


def _arithmetic():
    random = np.random.default_rng(11)
    for dtype in (np.float32, np.float64):
        a, b, c = random.random((3, 128)).astype(dtype)
        name = np.dtype(dtype).name
        yield Case(f"arithmetic, {name}", arithmetic, 1, 128, (a, b, np.zeros_like(a), 1), ("arithmetic",))
    a = random.random(128, np.float32)
    yield Case("arithmetic, float64 literals", float64_trap, 1, 128, (a, np.zeros_like(a)), ("arithmetic",))
    a, b, c = random.random((3, 128))
    yield Case("arithmetic, fma", fused, 1, 128, (a, b, c, np.zeros_like(a)), ("arithmetic",))


# -- tensor cores ------------------------------------------------------------------------------------------------------


def _matrices():
    random, lane = np.random.default_rng(3), np.arange(32)
    for pitch in (64, 72, 80):
        for count in (1, 2, 4):
            kernel, source = tiles.matrix_loader(count, np.uint16, False, pitch), np.zeros((64, pitch), np.uint16)
            patterns = {"in order": (lane % 16, 8 * (lane // 16))}
            for i in range(2 if count == 4 else 0):
                patterns[f"random {i}"] = random.integers(0, 64, 32), 8 * random.integers(0, 8, 32)
            for name, (rows, columns) in patterns.items():
                inputs = source, rows, columns, np.zeros((32, count), np.uint32)
                yield Case(f"ldmatrix{count}, pitch {pitch}, {name}", kernel, 1, 32, inputs, ("matrices",))


def _swizzled():
    lane = np.arange(32)
    for count in (1, 2, 4):
        inputs = lane % 16, 8 * ((lane // 16) ^ lane % 8), np.zeros((32, count), np.uint32)
        kernel = tiles.row_matrix_loader(count, 64)
        yield Case(f"ldmatrix{count}, pitch 64, swizzled", kernel, 1, 32, inputs, ("matrices",))


def _warp_products():
    for name, held in (("tf32", np.float32), ("bf16", np.uint32), ("s8", np.int32)):
        total = np.int32 if name == "s8" else np.float32
        inputs = tuple(np.zeros((32, count), kind) for count, kind in ((4, held), (2, held), (4, total)))
        yield Case(f"mma, {name}", tiles.warp_product, 1, 32, inputs, ("tensor",))


def _products_of_copies():
    for name, columns in (("float16", 64), ("uint16", 32), ("float32", 8), ("int8", 96)):
        kernel, arguments = tiles.tile_product(name, columns), partial(tiles.tile_maps, np.dtype(name), columns)
        yield Case(f"wgmma, {name}, {columns} columns", kernel, 3, 128, arguments, ("tensor",))


def _products():
    kernel, shared = tiles.product_pipeline()

    def arguments():
        return tiles.launch_product((kernel, shared), 256, 128, 256)[1]

    what = "tensor", "tensor requests"
    yield Case("wgmma, tiles by tensor copies", kernel, (2, 2), 384, arguments, what, shared=shared)
    for dtype, columns, trans_a, trans_b, registers, nbytes in tiles.PRODUCTS:
        kernel, shared = tiles.tile_multiplier(dtype, columns, trans_a, trans_b, registers, nbytes)
        size, span = np.dtype(dtype).itemsize, nbytes // np.dtype(dtype).itemsize
        shapes = ((64, trans_a), (columns, trans_b))
        left, right = (np.zeros(np.prod(tiles.tile_shape(n, 64 // size, span, t)), dtype) for n, t in shapes)
        out = np.zeros((64, columns), np.int32 if size == 1 else np.float32)
        flags = "t" * trans_a + "n" * (not trans_a) + "t" * trans_b + "n" * (not trans_b) + " in registers" * registers
        name = f"wgmma, {np.dtype(dtype).name}, {columns} columns, rows of {nbytes} bytes, {flags}"
        yield Case(name, kernel, 1, 128, (left, right, out), ("tensor",), shared=shared)


def _all():
    for cases in (_strides, _agreements, _random, _partial_warps, _masked, _tiles):
        yield from cases()
    for cases in (_transposes, _matmuls, _reductions, _images, _global, _local, _atomics, _parts, _arithmetic):
        yield from cases()
    for cases in (_matrices, _swizzled, _warp_products, _products, _products_of_copies):
        yield from cases()


#: All cases, in the order in which they are launched.
CASES = tuple(_all())
