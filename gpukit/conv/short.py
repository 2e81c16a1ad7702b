"""Direct convolution for sums of few terms: a thread keeps its windows in registers, and goes through the out channels.

With few in channels and a small kernel a window has few values, and the result is what takes the time: it is written
once, a line of a plane at a time. Images may have their channels first or last.
"""

import functools
from math import prod
from typing import Any, NamedTuple

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.conv.halves import nothing
from gpukit.conv.windows import Geometry, divided
from gpukit.intrinsics import commit_copies, copy_async, load2, load4, store2, wait_copies
from gpukit.intrinsics.bfloat16 import element_of, value_of
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ

__all__ = [
    "MAX_TERMS",
    "SHORT_THREADS",
    "Work",
    "divide",
    "short",
    "short_bytes",
    "short_us",
    "takes_short",
    "vector_of",
]

#: Terms of a sum, and values of all windows of a thread, at most; windows of a thread.
MAX_TERMS, MAX_HELD, RUNS = 64, 64, (4, 2, 1)
#: Threads of a block, and out channels that it may have: as many as threads at most, which copy one bias each; those
#: that are worth the loads of windows.
SHORT_THREADS, MAX_OUTS, MIN_OUTS, WORTH_OUTS = 128, 128, 4, 16
#: Blocks per multiprocessor that keep it busy.
BUSY = 8
#: Microseconds of a launch, cycles of one, and bytes that memory moves in one; the share of the instructions that a
#: multiprocessor could issue; cycles of one that waits for the one before, and to load a value of a window. These and
#: what follows are fitted to 36 measurements on an H200.
SHORT_US, CYCLES_PER_US, BYTES_PER_US, ISSUED, WAIT_CYCLES, LOAD_CYCLES = 4.2, 1750, 3.0e6, 0.8, 5, 40
#: Cycles of two out channels beside their terms; lanes for which a multiprocessor issues an instruction in a cycle.
PAIR_CYCLES, LANES = 40, 128
#: Instructions of a thread, or what takes as long: to load a value of a window, to load four weights, to store
#: a value, and to convert it to two bytes before.
LOAD, WEIGHTS, STORE, CONVERT = 14, 3.5, 10, 20
#: The exponent by which the times of memory and of the multiprocessors are joined, as they overlap in part: 1 adds
#: them, and infinity takes the longer one.
TOGETHER = 1.6


class Work(NamedTuple):
    """How the work is divided.

    Attributes
    ----------
    run : int
        Windows of a thread.
    outs : int
        Out channels of a block.
    """

    run: int
    outs: int


def takes_short(x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int) -> bool:
    """Whether sums have few terms, and indices have 32 bits."""
    terms, windows = prod(weight_shape[1:]), x_shape[0] * geometry.counts[1]
    chunks = ceil_div(weight_shape[0] // groups, MAX_OUTS)
    largest = max(prod(x_shape), windows * weight_shape[0])
    return terms <= MAX_TERMS and largest < 2**32 and windows < 2**31 and max(groups, chunks) <= MAX_GRID_YZ


def divide(terms: int, windows: int, outs: int, groups: int, multiprocessors: int) -> Work:
    """Divide the work of so many windows and out channels of a group: with few of them more threads share them."""
    enough = BUSY * multiprocessors

    def blocks(run):
        return ceil_div(windows, run * SHORT_THREADS) * groups

    def is_enough(run):
        return run * terms <= MAX_HELD and blocks(run) * ceil_div(outs, WORTH_OUTS) >= enough

    run = next(run for run in RUNS if run == 1 or is_enough(run))
    chunks = min(max(ceil_div(outs, MAX_OUTS), ceil_div(enough, blocks(run))), ceil_div(outs, MIN_OUTS))
    return Work(run, ceil_div(ceil_div(outs, chunks), 2) * 2)


def short_us(x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int, itemsize: int) -> float:
    """Predict the microseconds of a launch."""
    multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
    terms, windows, outs = prod(weight_shape[1:]), x_shape[0] * geometry.counts[1], weight_shape[0] // groups
    work = divide(terms, windows, outs, groups, multiprocessors)
    threads = ceil_div(windows, work.run) * groups * ceil_div(outs, work.outs)
    value = terms + STORE + CONVERT * (itemsize == 2)
    own = work.outs * (work.run * value + WEIGHTS * ceil_div(terms, 4)) + work.run * LOAD * terms
    issue = threads * own / (LANES * ISSUED * multiprocessors)
    alone = work.outs / 2 * (WAIT_CYCLES * terms + PAIR_CYCLES) + LOAD_CYCLES * work.run * terms
    read = min(prod(x_shape), groups * terms * windows)
    moved = itemsize * (read + groups * outs * windows)
    times = max(issue, alone) / CYCLES_PER_US, moved / BYTES_PER_US
    return SHORT_US + sum(time**TOGETHER for time in times) ** (1 / TOGETHER)


@functools.cache
def short(channels: int, kernel: tuple[int, int], run: int, wide: bool, vector: int, half: bool) -> Any:
    """Make the kernel ``short[(windows, out channels, groups), SHORT_THREADS, stream, nbytes](x, weight, bias, out,
    geometry, sizes, steps)`` for flat arrays; sums are of float32.

    ``sizes`` are windows in all, out channels of a group and of a block, an even number, and whether there is a bias.
    ``steps`` are elements of x from one sample to the next, and from one group, channel, row and pixel. ``nbytes`` has
    `short_bytes`. With ``wide`` a thread's windows are pairs of neighbours, and stored together: OH OW is even. So many
    channels as ``vector`` are loaded at a time; for 2 and 4 they are neighbours, and those of each pixel aligned.
    ``half`` tells whether elements have two bytes.
    """
    terms, width = channels * prod(kernel), 2 if wide else 1
    pitch = _pitch(terms)
    places, load_window, add_up = run // width, make_load_window(channels, kernel, vector), make_add_up(terms, run)
    copy = copy_converted if half else copy_async

    @cuda.jit
    def short(x, weight, bias, out, geometry, sizes, steps):
        weights = cuda.shared.array(0, float32, alignment=16)
        pixels, sums = cuda.local.array((run, terms), float32), cuda.local.array((2, run), float32)
        at, has = cuda.local.array(places, uint32), cuda.local.array(places, uint32)
        windows, outs, own_outs, biased = sizes
        group, first = uint32(cuda.blockIdx.z), uint32(cuda.blockIdx.y) * own_outs
        count, positions = min(own_outs, uint32(outs - first)), geometry.positions.value
        i, own = uint32(cuda.threadIdx.x), uint32(group * outs + first)
        while i < own_outs * uint32(pitch):
            o, k = i // uint32(pitch), i % uint32(pitch)
            inside = (o < count) & (k < uint32(terms))
            copy(weights, uint64(i), weight, uint64(own + o) * uint64(terms) + uint64(k), inside)
            i = uint32(i + uint32(SHORT_THREADS))
        if biased and cuda.threadIdx.x < own_outs:
            i = uint32(cuda.threadIdx.x)
            copy(weights, uint64(own_outs * uint32(pitch) + i), bias, uint64(own + i), i < count)
        commit_copies()
        begin = uint32(cuda.blockIdx.x) * uint32(run * SHORT_THREADS) + uint32(cuda.threadIdx.x) * uint32(width)
        for i in range(places):
            own = uint32(begin + uint32(i * width * SHORT_THREADS))
            has[i] = uint32(own < windows)
            sample, position = divided(own if own < windows else uint32(0), geometry.positions)
            at[i] = uint32(uint32(uint32(sample * cuda.gridDim.z + group) * outs + first) * positions + position)
            base = uint32(sample * steps[0] + group * steps[1])
            for j in range(width):
                load_window(x, pixels[i * width + j], base, uint32(position + uint32(j)), geometry, steps)
        wait_copies(0)
        cuda.syncthreads()
        o = uint32(0)
        while o < count:
            for j in range(2):
                initial = weights[own_outs * uint32(pitch) + o + uint32(j)] if biased else float32(0)
                for i in range(run):
                    sums[j, i] = initial
            add_up(weights, uint32(o * uint32(pitch)), pixels, sums)
            for j in range(2):
                if o + uint32(j) < count:
                    for i in range(places):
                        if has[i]:
                            if wide:
                                a, b = element_of(sums[j, 2 * i], out), element_of(sums[j, 2 * i + 1], out)
                                store2(out, at[i], a, b)
                            else:
                                out[at[i]] = element_of(sums[j, i], out)
                for i in range(places):
                    at[i] = uint32(at[i] + positions)
            o = uint32(o + uint32(2))

    return short


@cuda.jit(device=True, forceinline=True)
def copy_converted(buffer, to, source, at, inside):
    """Copy an element to shared memory as float32, or zero."""
    buffer[to] = float32(value_of(source[at])) if inside else float32(0)


@functools.cache
def make_load_window(channels, kernel, vector):
    """Make the device function that loads the values of a window, with zeros for what lies outside of the image."""
    taps, load_some = kernel[0] * kernel[1], load4 if vector == 4 else load2

    def load_from(tap, count):
        """Load for so many values of the kernel, one half after the other. The compiler would not unroll a loop of this
        size, and could not follow as many functions that each call the next one.
        """
        if count > 1:
            load_first, load_second = load_from(tap, count // 2), load_from(tap + count // 2, count - count // 2)

            @cuda.jit(device=True, forceinline=True)
            def load_both(x, pixels, base, top, left, geometry, steps):
                load_first(x, pixels, base, top, left, geometry, steps)
                load_second(x, pixels, base, top, left, geometry, steps)

            return load_both
        down, right = divmod(tap, kernel[1])

        @cuda.jit(device=True, forceinline=True)
        def load(x, pixels, base, top, left, geometry, steps):
            row = uint32(top + uint32(down) * geometry.dilation_h)
            col = uint32(left + uint32(right) * geometry.dilation_w)
            inside = (row < geometry.height) & (col < geometry.width.value)
            at = uint32(base + row * steps[3] + col * steps[4]) if inside else uint32(0)
            if vector > 1:
                for c in range(0, channels, vector):
                    values = load_some(x, uint64(uint32(at + uint32(c))))
                    for e in range(vector):
                        pixels[(c + e) * taps + tap] = float32(value_of(values[e])) if inside else float32(0)
            else:
                for c in range(channels):
                    value = float32(value_of(x[uint32(c) * steps[2] :][at]))  # a base for each channel, and one index
                    pixels[c * taps + tap] = value if inside else float32(0)

        return load

    load = load_from(0, taps)

    @cuda.jit(device=True, forceinline=True)
    def load_window(x, pixels, base, position, geometry, steps):
        down, right = divided(position, geometry.out_w)
        top = uint32(down * geometry.stride_h.value - geometry.padding_h)
        left = uint32(right * geometry.stride_w.value - geometry.padding_w)
        load(x, pixels, base, top, left, geometry, steps)

    return load_window


@functools.cache
def make_add_up(terms, run):
    """Make the device function that adds up a thread's values of two out channels."""
    pitch = _pitch(terms)

    def add_from(k):
        """Add four terms from the k-th on. The compiler would not unroll a loop of this size."""
        rest = add_from(k + 4) if k + 4 < terms else nothing

        @cuda.jit(device=True, forceinline=True)
        def add(weights, at, pixels, sums):
            for j in range(2):
                near = load4(weights, uint64(at + uint32(j * pitch + k)))
                for e in range(4):
                    if k + e < terms:
                        for i in range(run):
                            sums[j, i] += pixels[i, k + e] * near[e]
            rest(weights, at, pixels, sums)

        return add

    return add_from(0)


def _pitch(terms):
    """Words from the weights of one out channel to the next."""
    return ceil_div(terms, 4) * 4


def vector_of(channels: int, address: int, itemsize: int) -> int:
    """Return how many channels of a pixel, which are neighbours, can be loaded at a time."""
    return next(n for n in (4, 2, 1) if channels % n == 0 and address % (n * itemsize) == 0)


def short_bytes(terms: int, outs: int) -> int:
    """Count the bytes of shared memory of a block with so many out channels: their weights, then their biases."""
    return 4 * outs * (_pitch(terms) + 1)
