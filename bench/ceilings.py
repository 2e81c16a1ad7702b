"""``gpukit bench ceilings``: what this GPU can do at most, each resource by a kernel that needs nothing else.

Every kernel is checked before it is timed. Kernels that stay inside the multiprocessors run for about a millisecond on
all of them; what goes to memory finds a cold L2 cache.
"""

import argparse
import functools
import warnings
from functools import partial

import numpy as np
from numba.cuda import float32, float64, uint32
from numba.cuda.core.errors import NumbaPerformanceWarning

from bench import common
from gpukit import launching, results, timing
from gpukit.backend import cuda
from gpukit.intrinsics import clock64, globaltimer, load4, store4

__all__ = ["main", "measure", "measure_clock", "measure_launches", "measured"]

THREADS = 256
#: Resident blocks of `THREADS` that fill a multiprocessor.
FULL = 8
CHAINS = 8
INTEGERS = 2
UNROLL = 16
#: With so many turns the kernels that stay inside of the device last about a millisecond.
TURNS = 1024
MIB = 2**20


# -- inside a multiprocessor -----------------------------------------------------------------------


@functools.cache
def multiply_adds(dtype):
    """Kernel: `CHAINS` independent chains of x = x * s + s in registers; with s = 0.5 every x tends to 1."""

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
    """`CHAINS` sums in float64 of values in float32: a conversion, which is the slow part, and an addition each."""
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
    """Instructions for different pipes, so that the scheduler is what limits: four multiply-adds of float32, then an
    addition and an exclusive or of integers.
    """
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


@cuda.jit
def turn(turns, scale, out):
    """A loop over a range: one multiply-add in each turn, and Numba's counting of 64-bit numbers."""
    total = float32(0)
    for _ in range(turns):
        total = total * scale + scale
    out[cuda.grid(1)] = total


@cuda.jit
def pass_on(turns, out):
    """Each thread gives its value to its neighbour on and on: a store to shared memory, a barrier, and a load."""
    words = cuda.shared.array((2, THREADS), float32)
    tid = uint32(cuda.threadIdx.x)
    value = float32(tid)
    for turn in range(turns):
        words[turn & 1, tid] = value
        cuda.syncthreads()
        value = words[turn & 1, uint32(tid + uint32(1)) & uint32(THREADS - 1)]
    out[cuda.grid(1)] = value


#: Words that the loads walk through, and what they need beyond, for one step of the loop.
WORDS, MASK = 4096, 4095
WITH_STEP, WITH_WIDE_STEP = WORDS + 1024, WORDS + 4096


@cuda.jit
def shared_loads(turns, out):
    """Loads of neighbouring words of shared memory by neighbouring lanes: one wavefront each."""
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
    """The same four words at a time: a quarter of the instructions, and as many wavefronts."""
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
    """Loads that the L1 cache answers; lanes are ``stride`` elements apart, each load begins at a line of 128 bytes."""
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
    """Loads past L1, again and again through an array that L2 holds; lanes are ``stride`` elements apart."""
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
    """Stores, again and again through an array that L2 holds; lanes are ``stride`` elements apart."""
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
    """out = x, 16 bytes at a time, four loads under way in each thread; the size is a multiple of a block's share."""
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
    """Ones everywhere, as copy writes."""
    first, one = uint32(4) * (uint32(cuda.blockIdx.x) * uint32(4 * THREADS) + uint32(cuda.threadIdx.x)), float32(1)
    for k in range(4):
        store4(out, first + uint32(4 * THREADS * k), one, one, one, one)


@cuda.jit
def read(x, out):
    """Sums of x, 16 bytes at a time, by threads that each step through it."""
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
    """A kernel that does nothing."""


@cuda.jit
def touch(x, out):
    """A kernel that reads one value for each thread of a block, and writes it."""
    out[cuda.threadIdx.x] = x[cuda.threadIdx.x]


@cuda.jit
def clocks(turns, out):
    """Cycles and nanoseconds that one block takes while all multiply and add."""
    begin, began = clock64(), globaltimer()
    x = float32(cuda.threadIdx.x)
    for _ in range(turns):
        for _ in range(UNROLL):
            x = x * float32(0.5) + float32(0.5)
    end, ended = clock64(), globaltimer()
    if cuda.grid(1) == 0:
        out[0], out[1], out[2] = end - begin, ended - began, x


# -- what is measured ------------------------------------------------------------------------------


class Case:
    """One way to reach a ceiling: a launch, how much it does, and what its output must be."""

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


def _everywhere():
    """Blocks that fill the device."""
    return FULL * cuda.get_current_device().MULTIPROCESSOR_COUNT


def _equal(value):
    """What tells whether an array has this value everywhere; or these values."""
    return lambda out: bool((out == value).all())


def _inside(turns):
    """Cases that stay in the multiprocessors."""
    blocks = _everywhere()
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


def _of_mixed(turns):
    """Whether every thread of `mixed` has what it must have."""
    n = [np.arange(THREADS, dtype=np.uint32) + np.uint32(i) for i in range(INTEGERS)]
    for _ in range(turns * UNROLL):
        n = [(part + np.uint32(3)) ^ np.uint32(5) for part in n]
    expected = CHAINS + ((n[0] ^ n[1]) & np.uint32(255)).astype(np.float32)
    return lambda out: bool((out.reshape(-1, THREADS) == expected).all())


#: Lanes of a load or store so many elements of 4 bytes apart.
CACHED_STRIDES = (1, 2, 4, 8, 16, 32, 33)
L2_STRIDES = (1, 8, 2048)
L2_BYTES = 16 * MIB


def _caches(turns):
    """Cases that the caches answer. For float32 a stride of 8 is one sector of 32 bytes for each lane."""
    blocks = _everywhere()
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


def _memory():
    """Cases that go to memory, and their bytes without the launch's share."""
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
        Records, "value" per second; none of a case whose result is wrong.
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


#: Threads of blocks that do nothing, and how many of these there are.
IDLE_THREADS, IDLE_BLOCKS = (32, 256, 1024), 2**16


def measure_blocks(report=print):
    """Time many blocks that do nothing; returns as ``measure`` does."""
    runs = {f"{threads} threads": nothing[IDLE_BLOCKS, threads] for threads in IDLE_THREADS}
    records = []
    for name, timed in timing.bench_many(runs, min_time=0.02, warmup=0.02).items():
        record = results.of_timing("ceilings", "blocks", name, (), "float32", timed)
        rate = IDLE_BLOCKS / timed.median
        records.append(record | {"value": rate, "unit": "1/s"})
        report(f"  {'blocks':12} {name:24} {rate:10.4g} 1/s        {timing.format_seconds(timed.median):>10}")
    return records, True


#: Bytes that are read out of memory into a cache that is full of another array.
REPLACING = (8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB)
#: Bytes that a block of `read` takes if it steps once, and that a block of `write` takes.
READ_AT_ONCE, WRITTEN_AT_ONCE = 4 * 32 * THREADS, 4 * 16 * THREADS


def measure_replacing(report=print):
    """Time reading into a cache full of what was only read, and into one full of what was stored and must go to memory
    first; returns as ``measure`` does.
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
    """Time the shortest kernels, and what a launch takes of the host; returns as ``measure`` does."""
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
    """The clock of the multiprocessors while all of them multiply and add; returns as ``measure`` does."""
    out = cuda.device_array(3, np.float64)
    for _ in range(3):
        clocks[_everywhere(), THREADS](32 * turns, out)
    cycles, nanoseconds, _ = out.copy_to_host()
    value = float(cycles / nanoseconds * 1e9)
    report(f"  {'clock':12} {'under load':24} {value:10.4g} Hz")
    record = {"chapter": "ceilings", "case": "clock", "variant": "under load", "shape": [], "dtype": "float32"}
    number = cuda.get_current_device().MULTIPROCESSOR_COUNT
    return [
        record | {"value": value, "unit": "Hz"},
        record | {"case": "multiprocessors", "variant": "all", "value": number, "unit": "1"},
    ], True


def measured():
    """The records of everything, with the machine they are of, as ``results.load`` gives them."""
    head, records = results.machine(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        for _, measurement in _runs(TURNS):
            records += measurement(report=lambda text: None)[0]
    return [head | record for record in records]


def main(argv=None):
    """Run ``gpukit bench ceilings``; give back the exit status."""
    parser = argparse.ArgumentParser(prog="gpukit bench ceilings", description=__doc__)
    parser.add_argument("--save", metavar="FILE", help="write the records to FILE")
    parser.add_argument("--quick", action="store_true", help="shorter kernels: rougher figures")
    options = parser.parse_args(argv)
    if not common.has_gpu():
        return 1
    warnings.simplefilter("ignore", NumbaPerformanceWarning)
    return 0 if common.run(_runs(TURNS // 4 if options.quick else TURNS), options.save) else 1


def _runs(turns):
    """(title, what measures it) of each measurement."""
    yield "arithmetic, issue, shared memory", partial(_measure, _inside, turns)
    yield "clock", partial(measure_clock, turns)
    yield "launches", measure_launches
    yield "blocks", measure_blocks
    yield "replacing what the cache holds", measure_replacing
    yield "memory", partial(_measure, _memory)
    yield "caches", partial(_measure, _caches, turns)


def _measure(make, *arguments, report=print):
    return measure(make(*arguments), report)
