"""``gpukit bench ceilings``: measure what this GPU can do at most, each resource by a kernel that needs nothing else.

Every kernel is checked before it is timed. Kernels that stay inside the multiprocessors run for about a millisecond on
all of them; those that go to memory start with a cold L2 cache.
"""

import functools
import warnings
from functools import partial

import numpy as np
from numba.cuda import float32, float64, int8, int32, types, uint32
from numba.cuda.core.errors import NumbaPerformanceWarning

from gpukit import launching, results, timing
from gpukit.backend import cuda
from gpukit.intrinsics import (
    clock64,
    fence_async,
    globaltimer,
    load4,
    mma,
    store4,
    store_fragment,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)

__all__ = ["measure", "measure_clock", "measure_launches", "measured", "measurements"]

float16, uint16 = types.float16, types.uint16
THREADS = 256
#: Resident blocks of `THREADS` that fill a multiprocessor.
FULL = 8
CHAINS = 8
INTEGERS = 2
UNROLL = 16
#: Iterations with which the kernels that stay inside the multiprocessors last about a millisecond.
TURNS = 1024
MIB = 2**20


# -- inside a multiprocessor -----------------------------------------------------------------------


@functools.cache
def multiply_adds(dtype):
    """Make a kernel of `CHAINS` independent chains of x = x * s + s in registers; with s = 0.5 every x tends to 1."""

    @cuda.jit
    def multiply_adds(scale, turns, out):
        x = cuda.local.array(CHAINS, dtype)
        for i in range(CHAINS):
            x[i] = dtype(i)
        for _ in range(turns):
            for _ in range(UNROLL):
                for i in range(CHAINS):
                    x[i] = x[i] * scale + scale
        total = dtype(0)
        for i in range(CHAINS):
            total += x[i]
        out[cuda.grid(1)] = total

    return multiply_adds


@cuda.jit
def conversions(step, turns, out):
    """Sum float32 values in float64, in `CHAINS` chains: a conversion, which is the slow part, and an addition each."""
    x = cuda.local.array(CHAINS, float32)
    total = cuda.local.array(CHAINS, float64)
    for i in range(CHAINS):
        x[i] = float32(i)
        total[i] = float64(0)
    for _ in range(turns):
        for _ in range(UNROLL):
            for i in range(CHAINS):
                total[i] += float64(x[i])
                x[i] += step
    for i in range(1, CHAINS):
        total[0] += total[i]
    out[cuda.grid(1)] = total[0]


@cuda.jit
def mixed(scale, first, second, turns, out):
    """Issue to different pipes, so that the scheduler limits: four float32 multiply-adds, an integer add and a xor."""
    x = cuda.local.array(CHAINS, float32)
    n = cuda.local.array(INTEGERS, uint32)
    for i in range(CHAINS):
        x[i] = float32(i)
    for i in range(INTEGERS):
        n[i] = uint32(uint32(cuda.threadIdx.x) + uint32(i))
    for _ in range(turns):
        for _ in range(UNROLL):
            for i in range(INTEGERS):
                for j in range(4):
                    x[4 * i + j] = x[4 * i + j] * scale + scale
                n[i] = uint32(uint32(n[i] + first) ^ second)
    total = float32(0)
    for i in range(CHAINS):
        total += x[i]
    out[cuda.grid(1)] = total + float32(uint32(n[0] ^ n[1]) & uint32(255))


#: Threads of a block of `tile_products`, two groups of four warps, and the columns of a product.
PRODUCT_THREADS, COLUMNS, SUMS = 256, 256, 128
#: Products in a row before a wait.
PRODUCTS = 4


@functools.cache
def tile_products(dtype, total):
    """Make a kernel in which groups of four warps multiply the same tiles of ones again and again, by `wgmma`."""
    span = 128 * 8 // dtype.bitwidth
    step, one = span // PRODUCTS, {uint16: 0x3F80, int8: 1}.get(dtype, np.float32(1))  # the bits of a bfloat16

    @cuda.jit
    def tile_products(turns, out):
        left = cuda.shared.array((64, span), dtype, alignment=1024)
        right = cuda.shared.array((COLUMNS, span), dtype, alignment=1024)
        tid = cuda.threadIdx.x
        for row in range(tid // span, COLUMNS, PRODUCT_THREADS // span):
            right[row, tid % span] = one
            if row < 64:
                left[row, tid % span] = one
        fence_async()
        cuda.syncthreads()
        sums = zeros(SUMS, total)
        for _ in range(turns):
            wgmma_fence()
            for k in range(PRODUCTS):
                sums = wgmma(sums, left, (0, k * step), right, (0, k * step))
            wgmma_commit()
            sums = wgmma_wait(0, sums)
        store_fragment(out, (16 * (PRODUCT_THREADS // 32 * cuda.blockIdx.x + tid // 32), 0), sums)

    return tile_products


@cuda.jit
def warp_products(turns, out):
    """Multiply matrices of ones in float64 by `mma`, in four chains of each warp."""
    one, zero = 1.0, 0.0
    left = (one, one, one, one, one, one, one, one)
    a = b = c = d = (zero, zero, zero, zero)
    for _ in range(turns):
        for _ in range(UNROLL):
            a = mma(left, (one, one, one, one), a)
            b = mma(left, (one, one, one, one), b)
            c = mma(left, (one, one, one, one), c)
            d = mma(left, (one, one, one, one), d)
    out[cuda.grid(1)] = a[0] + b[1] + c[2] + d[3]


@cuda.jit
def turn(turns, scale, out):
    """Loop over a range: one multiply-add per iteration, and Numba's 64-bit loop counter."""
    total = float32(0)
    for _ in range(turns):
        total = total * scale + scale
    out[cuda.grid(1)] = total


@cuda.jit
def pass_on(turns, out):
    """Pass each thread's value to its neighbour, again and again: a store to shared memory, a barrier, and a load."""
    words = cuda.shared.array((2, THREADS), float32)
    tid = uint32(cuda.threadIdx.x)
    value = float32(tid)
    for turn in range(turns):
        words[turn & 1, tid] = value
        cuda.syncthreads()
        value = words[turn & 1, uint32(tid + uint32(1)) & uint32(THREADS - 1)]
    out[cuda.grid(1)] = value


#: Words that the loads walk through, and the size of the array with the words that one iteration reads beyond.
WORDS, MASK = 4096, 4095
WITH_STEP, WITH_WIDE_STEP = WORDS + 1024, WORDS + 4096


@cuda.jit
def shared_loads(turns, out):
    """Load neighbouring words of shared memory by neighbouring lanes: one wavefront each."""
    words = cuda.shared.array(WITH_STEP, float32)
    tid = uint32(cuda.threadIdx.x)
    at = tid
    while at < uint32(WITH_STEP):
        words[at] = float32(1)
        at = uint32(at + uint32(THREADS))
    cuda.syncthreads()
    total = cuda.local.array(4, float32)
    for i in range(4):
        total[i] = float32(0)
    at = tid
    for _ in range(turns):
        for k in range(32):
            total[k % 4] += words[at + uint32(32 * k)]
        at = uint32(uint32(at + uint32(THREADS)) & uint32(MASK))
    out[cuda.grid(1)] = (total[0] + total[1]) + (total[2] + total[3])


@cuda.jit
def shared_loads_wide(turns, out):
    """Load four words at a time: a quarter of the instructions, and as many wavefronts."""
    words = cuda.shared.array(WITH_WIDE_STEP, float32, alignment=16)
    tid = uint32(cuda.threadIdx.x)
    at = tid
    while at < uint32(WITH_WIDE_STEP):
        words[at] = float32(1)
        at = uint32(at + uint32(THREADS))
    cuda.syncthreads()
    total = cuda.local.array(4, float32)
    for i in range(4):
        total[i] = float32(0)
    at = uint32(4 * tid)
    for _ in range(turns):
        for k in range(32):
            a, b, c, d = load4(words, at + uint32(128 * k))
            total[0] += a
            total[1] += b
            total[2] += c
            total[3] += d
        at = uint32(uint32(at + uint32(4 * THREADS)) & uint32(MASK))
    out[cuda.grid(1)] = (total[0] + total[1]) + (total[2] + total[3])


@cuda.jit
def cached_loads(x, stride, turns, out):
    """Load from the L1 cache; lanes are ``stride`` elements apart, each load begins at a line of 128 bytes."""
    at = uint32(uint32(cuda.threadIdx.x % 32) * uint32(stride) + uint32(cuda.threadIdx.x // 32 * 32))
    total = cuda.local.array(4, float32)
    for i in range(4):
        total[i] = float32(0)
    start = uint32(0)
    for _ in range(turns):
        for k in range(32):
            total[k % 4] += x[at + start + uint32(32 * k)]
        start = uint32(uint32(start + uint32(32)) & uint32(MASK))
    out[cuda.grid(1)] = (total[0] + total[1]) + (total[2] + total[3])


# -- L2 --------------------------------------------------------------------------------------------


@cuda.jit
def l2_loads(x, stride, turns, out):
    """Load from the L2 cache past L1, repeatedly over an array that L2 holds; lanes are ``stride`` elements apart."""
    mask, step = uint32(x.size - 1), uint32(cuda.gridsize(1))
    lane, warp = uint32(cuda.threadIdx.x % 32), uint32(cuda.grid(1)) // uint32(32)
    stride = uint32(stride)
    total = cuda.local.array(4, float32)
    for i in range(4):
        total[i] = float32(0)
    # Warps of a stride s share 32 s elements, and begin one element after another in them.
    at = uint32(warp // stride * stride * uint32(32) + warp % stride + lane * stride)
    for _ in range(turns):
        for k in range(8):
            total[k % 4] += cuda.ldcg(x, uint32(uint32(at + uint32(k) * step) & mask))
        at = uint32(at + uint32(8) * step)
    out[cuda.grid(1)] = (total[0] + total[1]) + (total[2] + total[3])


@cuda.jit
def l2_stores(stride, turns, x):
    """Store repeatedly over an array that L2 holds; lanes are ``stride`` elements apart."""
    mask, step = uint32(x.size - 1), uint32(cuda.gridsize(1))
    lane, warp = uint32(cuda.threadIdx.x % 32), uint32(cuda.grid(1)) // uint32(32)
    stride = uint32(stride)
    at = uint32(warp // stride * stride * uint32(32) + warp % stride + lane * stride)
    for _ in range(turns):
        for k in range(8):
            x[uint32(uint32(at + uint32(k) * step) & mask)] = float32(1)
        at = uint32(at + uint32(8) * step)


# -- memory ----------------------------------------------------------------------------------------


@cuda.jit
def copy(x, out):
    """Copy 16 bytes at a time, with four loads in flight per thread; the size is a multiple of a block's share."""
    first = uint32(4) * (uint32(cuda.blockIdx.x) * uint32(4 * THREADS) + uint32(cuda.threadIdx.x))
    p = load4(x, first)
    q = load4(x, first + uint32(4 * THREADS))
    r = load4(x, first + uint32(8 * THREADS))
    s = load4(x, first + uint32(12 * THREADS))
    store4(out, first, *p)
    store4(out, first + uint32(4 * THREADS), *q)
    store4(out, first + uint32(8 * THREADS), *r)
    store4(out, first + uint32(12 * THREADS), *s)


@cuda.jit
def write(out):
    """Write ones everywhere, with the stores of ``copy``."""
    first, one = uint32(4) * (uint32(cuda.blockIdx.x) * uint32(4 * THREADS) + uint32(cuda.threadIdx.x)), float32(1)
    for k in range(4):
        store4(out, first + uint32(4 * THREADS * k), one, one, one, one)


@cuda.jit
def read(x, out):
    """Sum x, 16 bytes at a time, in a grid-stride loop."""
    at, step = uint32(4) * uint32(cuda.grid(1)), uint32(4) * uint32(cuda.gridsize(1))
    size = uint32(x.size)
    total = cuda.local.array(4, float32)
    for i in range(4):
        total[i] = float32(0)
    while at < size:
        for k in range(8):
            a, b, c, d = load4(x, at + uint32(k) * step)
            total[0] += a
            total[1] += b
            total[2] += c
            total[3] += d
        at = uint32(at + uint32(8) * step)
    out[cuda.grid(1)] = (total[0] + total[1]) + (total[2] + total[3])


# -- the shortest launches -------------------------------------------------------------------------


@cuda.jit
def nothing():
    """Do nothing."""


@cuda.jit
def touch(x, out):
    """Read one value per thread of a block, and write it."""
    out[cuda.threadIdx.x] = x[cuda.threadIdx.x]


@cuda.jit
def clocks(turns, out):
    """Count cycles and nanoseconds of one block while all of them multiply and add."""
    begin, began = clock64(), globaltimer()
    x = float32(cuda.threadIdx.x)
    for _ in range(turns):
        for _ in range(UNROLL):
            x = x * float32(0.5) + float32(0.5)
    end, ended = clock64(), globaltimer()
    if cuda.grid(1) == 0:
        out[0], out[1], out[2] = end - begin, ended - began, x


# -- measurements ---------------------------------------------------------------------------------


class Case:
    """One way to reach a ceiling: a launch, the amount of work in it, and a check of its output."""

    def __init__(self, case, variant, unit, amount, launch, arguments, right, dtype="float32"):
        self.case, self.variant, self.unit, self.amount, self.dtype = case, variant, unit, amount, dtype
        self.launch, self.arguments, self.right = launch, arguments, right

    def run(self):
        self.launch(*self.arguments)

    def is_right(self):
        """Launch once into poisoned memory, and compare."""
        out = self.arguments[-1]
        out.copy_to_device(np.full(out.shape, np.nan, out.dtype))
        self.run()
        return self.right(out.copy_to_host())


def count_full_blocks():
    """Count the blocks that fill the device."""
    return FULL * cuda.get_current_device().MULTIPROCESSOR_COUNT


def _equal(value):
    """Make a check that an array equals a value, or an array of values, everywhere."""
    return lambda out: bool((out == value).all())


def multiprocessor_cases(turns):
    """Yield the cases that stay in the multiprocessors."""
    blocks = count_full_blocks()
    threads = blocks * THREADS
    out = {dtype: cuda.device_array(threads, dtype) for dtype in (np.float32, np.float64)}
    steps = turns * UNROLL * CHAINS * threads
    launch = multiply_adds(float32)[blocks, THREADS]
    arguments = (np.float32(0.5), turns, out[np.float32])
    yield Case("fp32", "multiply-add", "FLOP/s", 2 * steps, launch, arguments, _equal(CHAINS))
    launch = multiply_adds(float64)[blocks, THREADS]
    arguments = (0.5, turns // 2, out[np.float64])
    yield Case("fp64", "multiply-add", "FLOP/s", steps // 2 * 2, launch, arguments, _equal(CHAINS), "float64")
    launch, arguments = conversions[blocks, THREADS], (np.float32(1), turns // 8, out[np.float64])
    number = turns // 8 * UNROLL
    exact = CHAINS * number * (number - 1) / 2 + number * sum(range(CHAINS))
    yield Case("conversions", "float32 to float64", "1/s", steps // 8, launch, arguments, _equal(exact), "float64")
    launch, arguments = mixed[blocks, THREADS], (np.float32(0.5), np.uint32(3), np.uint32(5), turns, out[np.float32])
    instructions = steps * 12 // 8 // 32
    yield Case("issue", "float32 and integers", "1/s", instructions, launch, arguments, _of_mixed(turns))
    launch, arguments = turn[blocks, THREADS], (8 * turns, np.float32(0.5), out[np.float32])
    yield Case("turns", "of a range", "1/s", 8 * turns * threads // 32, launch, arguments, _equal(1))
    for kernel, width in ((shared_loads, 1), (shared_loads_wide, 4)):
        wavefronts = turns * threads
        launch, arguments = kernel[blocks, THREADS], (turns // width, out[np.float32])
        right = _equal(32 * turns // width * width)
        yield Case("shared", f"{4 * width} bytes per lane", "1/s", wavefronts, launch, arguments, right)
    blocks, turns = max(1, blocks // FULL), 8 * turns
    out, launch = cuda.device_array(blocks * THREADS, np.float32), pass_on[blocks, THREADS]
    right = _equal(np.tile(np.roll(np.arange(THREADS, dtype=np.float32), -turns), blocks))
    yield Case("steps", "store, barrier, load", "1/s", turns, launch, (turns, out), right)


def tensor_cases(turns):
    """Yield the cases of tensor cores; none on a GPU without `wgmma`."""
    if cuda.get_current_device().compute_capability < (9, 0):
        return
    blocks = 2 * cuda.get_current_device().MULTIPROCESSOR_COUNT
    kinds = (
        ("tensor_fp16", float16, float32, np.float32),
        ("tensor_fp16", uint16, float32, np.float32),
        ("tensor_tf32", float32, float32, np.float32),
        ("tensor_int8", int8, int32, np.int32),
    )
    for variant, dtype, total, held in kinds:
        depth = PRODUCTS * 32 * 8 // dtype.bitwidth
        out = cuda.device_array((blocks * PRODUCT_THREADS // 2, COLUMNS), held)
        operations = 2 * out.size * depth * turns
        launch, right = tile_products(dtype, total)[blocks, PRODUCT_THREADS], _equal(depth * turns)
        yield Case("tensor", variant, "FLOP/s", operations, launch, (turns, out), right, dtype.name)
    out = cuda.device_array(blocks * PRODUCT_THREADS, np.float64)
    operations = 2 * 16 * 8 * 16 * 4 * UNROLL * (turns // 8) * (out.size // 32)
    launch, right = warp_products[blocks, PRODUCT_THREADS], _equal(4 * 16 * UNROLL * (turns // 8))
    yield Case("tensor", "tensor_fp64", "FLOP/s", operations, launch, (turns // 8, out), right, "float64")


def _of_mixed(turns):
    """Make a check of the output of `mixed`."""
    n = [np.arange(THREADS, dtype=np.uint32) + np.uint32(i) for i in range(INTEGERS)]
    for _ in range(turns * UNROLL):
        n = [(part + np.uint32(3)) ^ np.uint32(5) for part in n]
    expected = CHAINS + ((n[0] ^ n[1]) & np.uint32(255)).astype(np.float32)
    return lambda out: bool((out.reshape(-1, THREADS) == expected).all())


#: Lanes of a load or store so many elements of 4 bytes apart.
CACHED_STRIDES = (1, 2, 4, 8, 16, 32, 33)
L2_STRIDES = (1, 8, 2048)
L2_BYTES = 16 * MIB


def cache_cases(turns):
    """Yield the cases that the caches answer. For float32 a stride of 8 is one sector of 32 bytes per lane."""
    blocks = count_full_blocks()
    threads = blocks * THREADS
    out, x = cuda.device_array(threads, np.float32), cuda.to_device(np.ones(3 * WORDS, np.float32))
    for stride in CACHED_STRIDES:
        arguments = (x, stride, turns // 8, out)
        launch, right = cached_loads[blocks, THREADS], _equal(32 * (turns // 8))
        yield Case("l1", f"stride {stride}", "requests/s", threads * (turns // 8), launch, arguments, right)
    held = cuda.to_device(np.ones(L2_BYTES // 4, np.float32))
    blocks = 1 << (blocks.bit_length() - 1)  # a power of two, so that warps of every stride come out even
    out = cuda.device_array(blocks * THREADS, np.float32)
    passes = max(1, turns // 8)
    requests = blocks * THREADS // 32 * 8 * passes
    for stride in L2_STRIDES:
        sectors = requests * min(4 * stride, 32)
        arguments = (held, stride, passes, out)
        right = _equal(8 * passes)
        yield Case("l2 loads", f"stride {stride}", "sectors/s", sectors, l2_loads[blocks, THREADS], arguments, right)
    for stride in L2_STRIDES:
        sectors = requests * min(4 * stride, 32)
        arguments = (stride, passes, held)
        yield Case(
            "l2 stores", f"stride {stride}", "sectors/s", sectors, l2_stores[blocks, THREADS], arguments, _equal(1)
        )


#: Bytes of the arrays that are copied and read: far more than L2 holds.
COPIED = 1024 * MIB


def memory_cases():
    """Yield the cases that go to memory."""
    x, out = (cuda.device_array(COPIED // 4, np.float32) for _ in range(2))
    sums, blocks = cuda.device_array(1024 * THREADS, np.float32), COPIED // (64 * THREADS)
    write[blocks, THREADS](x)
    yield Case("dram", "read", "B/s", COPIED, read[1024, THREADS], (x, sums), _equal(COPIED // 4 // sums.size))
    yield Case("dram", "copy", "B/s", 2 * COPIED, copy[blocks, THREADS], (x, out), _equal(1))


def measure(cases, report=print):
    """Check and time some cases.

    Returns
    -------
    list of dict
        Records of the right results, "value" per second.
    bool
        Whether all results were right.
    """
    records, all_right = [], True
    for case in cases:
        if not case.is_right():
            report(f"  WRONG: {case.case}, {case.variant}")
            all_right = False
            continue
        timed = timing.bench(case.run, min_time=0.04, warmup=0.02, l2_flush=case.case == "dram")
        record = results.of_timing("ceilings", case.case, case.variant, (), case.dtype, timed)
        rate = case.amount / timed.median
        records.append(record | {"value": rate, "unit": case.unit})
        seconds = timing.format_seconds(timed.median)
        report(f"  {case.case:12} {case.variant:24} {rate:10.4g} {case.unit:10} {seconds:>10}")
    return records, all_right


#: Threads of blocks that do nothing, and the number of these blocks.
IDLE_THREADS, IDLE_BLOCKS = (32, 256, 1024), 2**16


def measure_blocks(report=print):
    """Time many blocks that do nothing; return as ``measure`` does."""
    runs = {f"{threads} threads": nothing[IDLE_BLOCKS, threads] for threads in IDLE_THREADS}
    records = []
    for name, timed in timing.bench_many(runs, min_time=0.02, warmup=0.02).items():
        record = results.of_timing("ceilings", "blocks", name, (), "float32", timed)
        rate = IDLE_BLOCKS / timed.median
        records.append(record | {"value": rate, "unit": "1/s"})
        report(f"  {'blocks':12} {name:24} {rate:10.4g} 1/s        {timing.format_seconds(timed.median):>10}")
    return records, True


#: Bytes that are read from memory into a cache that is full of another array.
REPLACING = (8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB)
#: Bytes that a block of `read` handles in one iteration, and a block of `write` altogether.
READ_AT_ONCE, WRITTEN_AT_ONCE = 4 * 32 * THREADS, 4 * 16 * THREADS


def measure_replacing(report=print):
    """Time reading into a cache full of clean data, and into one full of dirty data, which must be written back first;
    return as ``measure`` does.
    """
    other = cuda.device_array(2 * REPLACING[-1] // 4, np.float32)
    sums = cuda.device_array(other.nbytes // READ_AT_ONCE * THREADS, np.float32)
    store = partial(write[other.nbytes // WRITTEN_AT_ONCE, THREADS], other)
    load = partial(read[other.nbytes // READ_AT_ONCE, THREADS], other, sums)
    store()
    records, all_right = [], True
    for nbytes in REPLACING:
        x, blocks = cuda.to_device(np.ones(nbytes // 4, np.float32)), nbytes // READ_AT_ONCE
        run = partial(read[blocks, THREADS], x, sums)
        run()
        all_right &= bool((sums.copy_to_host()[: blocks * THREADS] == READ_AT_ONCE // 4 // THREADS).all())
        for name, before in (("after loads", load), ("after stores", store)):
            timed = timing.bench(run, setup=before, l2_flush=False, min_time=0.03, warmup=0.01)
            records.append(results.of_timing("ceilings", "replacing", name, (nbytes,), "float32", timed))
            report(f"  {'replacing':12} {f'{nbytes // MIB} MiB {name}':24} {timing.format_seconds(timed.median):>10}")
    return records, all_right


def measure_launches(report=print):
    """Time the shortest kernels, and the host's part of a launch; return as ``measure`` does."""
    x, out = (cuda.to_device(np.ones(THREADS, np.float32)) for _ in range(2))
    empty, touching = nothing[1, 32], touch[1, THREADS]
    runs = {
        "nothing": empty,
        "touch": partial(touching, x, out),
        "touch, prepared": launching.prepare(touching, x, out),
    }
    records = []
    for name, timed in timing.bench_many(runs, min_time=0.02, warmup=0.02).items():
        for case, seconds in (("launch", timed.median), ("host", timed.host_seconds)):
            record = results.of_timing("ceilings", case, name, (), "float32", timed)
            records.append(record | {"value": seconds} | ({"spread": None} if case == "host" else {}))
            report(f"  {case:12} {name:24} {timing.format_seconds(seconds):>10}")
    return records, True


def measure_clock(turns, report=print):
    """Measure the clock of the multiprocessors while all of them multiply and add; return as ``measure`` does."""
    out = cuda.device_array(3, np.float64)
    for _ in range(3):
        clocks[count_full_blocks(), THREADS](32 * turns, out)
    cycles, nanoseconds, _ = out.copy_to_host()
    value = float(cycles / nanoseconds * 1e9)
    report(f"  {'clock':12} {'under load':24} {value:10.4g} Hz")
    number = cuda.get_current_device().MULTIPROCESSOR_COUNT
    return [
        results.record("ceilings", "clock", "under load", (), "float32", value, "Hz"),
        results.record("ceilings", "multiprocessors", "all", (), "float32", number, "1"),
    ], True


def measured():
    """Measure everything; return the records as ``results.load`` does."""
    head, records = results.machine(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        for _, measurement in _measurements(TURNS):
            records += measurement(report=lambda text: None)[0]
    return [head | record for record in records]


def measurements(options):
    """Yield (title, function); with ``--quick`` kernels are shorter and figures rougher."""
    yield from _measurements(TURNS // 4 if options.quick else TURNS)


def _measurements(turns):
    yield "arithmetic, issue, shared memory", partial(_measure, multiprocessor_cases, turns)
    yield "tensor cores", partial(_measure, tensor_cases, turns)
    yield "clock", partial(measure_clock, turns)
    yield "launches", measure_launches
    yield "blocks", measure_blocks
    yield "replacing what the cache holds", measure_replacing
    yield "memory", partial(_measure, memory_cases)
    yield "caches", partial(_measure, cache_cases, turns)


def _measure(make, *arguments, report=print):
    return measure(make(*arguments), report)
