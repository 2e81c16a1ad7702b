"""Direct convolution to few out channels, of windows that have few pixels in common: at the speed of memory.

Each pixel is read about once, so there is nothing to keep. Neighbouring threads read neighbouring pixels, and the
threads of a value meet in shared memory.
"""

import functools
from math import hypot, prod
from typing import Any, NamedTuple

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.conv.windows import Geometry, divided
from gpukit.intrinsics.bfloat16 import element_of, value_of
from warpstep.integers import ceil_div, next_power_of_two

__all__ = ["APART_THREADS", "FEW_WINDOWS", "MAX_APART_OUTS", "Shares", "apart", "apart_us", "share", "takes_apart"]

#: Threads of a block; out channels of a group, columns of a kernel, shares of the in channels, and windows that a pixel
#: lies in on average, at most.
APART_THREADS, MAX_APART_OUTS, MAX_APART_COLUMNS, MAX_PARTS, FEW_WINDOWS = 256, 4, 64, 8, 2
#: Pixels that a thread has under way, of several in channels; rows of kernels, and windows below one another, that it
#: takes at most; threads per multiprocessor that there should be.
APART_LOADS, APART_ROWS, MAX_APART_RUN, BUSY_THREADS = 16, 18, 4, 1024
#: Registers of a thread, at most, and threads that a multiprocessor then has at a time.
APART_REGISTERS, RESIDENT_THREADS = 80, 768
#: Microseconds of a launch, of a thread that waits for its pixels, and of each round in which the device is full of
#: threads; bytes that memory moves in one, and bytes of its smallest access; cycles of one, lanes for which a
#: multiprocessor issues an instruction in a cycle, and instructions for a term of a sum. These are fitted to 23
#: measurements on an H200.
APART_US, WAIT_US, ROUND_US, BYTES_PER_US, SECTOR, CYCLES_PER_US, LANES, TERM = 5, 0.6, 0.8, 3.6e6, 32, 1750, 128, 14


class Shares(NamedTuple):
    """How the work is divided.

    Attributes
    ----------
    parts : int
        Threads that share the in channels of a column of a window.
    run : int
        Windows below one another that a thread takes.
    loads : int
        In channels whose pixels it has under way.
    """

    parts: int
    run: int
    loads: int


def takes_apart(x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int) -> bool:
    """Whether there are few out channels, windows have few pixels in common and are not the image itself, and indices
    have 32 bits.
    """
    (taps, positions), outs = geometry.counts, weight_shape[0] // groups
    few = outs <= MAX_APART_OUTS and geometry.kernel_w.value <= MAX_APART_COLUMNS and not geometry.is_image
    fits = prod(x_shape) < 2**32 and x_shape[0] * weight_shape[0] * positions < 2**31
    return bool(few and fits and positions * taps <= FEW_WINDOWS * int(geometry.pixels.value))


def share(images: int, channels: int, outs: int, geometry: Geometry, multiprocessors: int) -> Shares:
    """Divide the work of so many images, samples times groups, with so many in and out channels each."""
    kernel_h, kernel_w = int(geometry.kernel_h), int(geometry.kernel_w.value)
    threads, wanted = images * geometry.counts[1] * kernel_w, BUSY_THREADS * multiprocessors
    run = parts = 1
    while run < MAX_APART_RUN and 2 * run * kernel_h <= APART_ROWS and threads >= 2 * run * wanted:
        run *= 2
    while 2 * parts <= min(MAX_PARTS, channels, APART_THREADS // kernel_w) and threads * parts < wanted:
        parts *= 2
    loads = max(1, APART_LOADS // (max(run, ceil_div(outs, 2)) * kernel_h))
    return Shares(parts, run, min(next_power_of_two(ceil_div(channels, parts)), loads))


def apart_us(x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int, itemsize: int) -> float:
    """Predict the microseconds of a launch."""
    multiprocessors, (out_h, out_w) = cuda.get_current_device().MULTIPROCESSOR_COUNT, geometry.out_size
    images, channels, kernel_w = x_shape[0] * groups, weight_shape[1], int(geometry.kernel_w.value)
    shares = share(images, channels, weight_shape[0] // groups, geometry, multiprocessors)
    columns = kernel_w * int(geometry.dilation_w) * itemsize + SECTOR - itemsize
    row = min(int(geometry.width.value) * itemsize, out_w * columns)
    moved = x_shape[0] * x_shape[1] * geometry.rows_read * row / BYTES_PER_US
    terms = x_shape[0] * weight_shape[0] * prod(geometry.counts) * channels
    issued = TERM * terms / (LANES * multiprocessors * CYCLES_PER_US)
    threads = images * ceil_div(out_h, shares.run) * out_w * kernel_w * shares.parts
    waits = WAIT_US * ceil_div(channels, shares.parts * shares.loads)
    return APART_US + hypot(moved, issued) + waits + ROUND_US * threads / (RESIDENT_THREADS * multiprocessors)


@functools.cache
def apart(kernel: tuple[int, int], outs: int, shares: Shares) -> Any:
    """Make the kernel ``apart[blocks, APART_THREADS](x, weight, bias, out, geometry, sizes, strips, groups)`` for
    C-contiguous flat arrays; sums are of float32.

    A strip of windows below one another has a thread for each of its columns, and each share of its in channels.
    ``sizes`` are strips of all samples and groups, in channels of a group, and whether there is a bias; ``strips``,
    below one another in an image, and ``groups`` are Divisors. A group has ``outs`` out channels.
    """
    (kernel_h, kernel_w), (parts, run, loads) = kernel, shares
    own_strips, found = APART_THREADS // (kernel_w * parts), outs * run
    together, places = kernel_w * own_strips, found * APART_THREADS
    add_whole, add_checked = (make_add_up(kernel, outs, shares, whole) for whole in (True, False))

    @cuda.jit(max_registers=APART_REGISTERS)
    def apart(x, weight, bias, out, geometry, sizes, strips, groups):
        shared, sums = cuda.shared.array(places, float32), cuda.local.array(found, float32)
        all_strips, channels, biased = sizes
        tid, first = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x) * uint32(own_strips)
        part, kw = tid // uint32(together), tid % uint32(kernel_w)
        place = uint32(first + tid % uint32(together) // uint32(kernel_w))
        has = place < all_strips and part < uint32(parts)
        strip, right = divided(place if has else uint32(0), geometry.out_w)
        image, strip = divided(strip, strips)
        top = uint32(strip * uint32(run) * geometry.stride_h.value - geometry.padding_h)
        col = uint32(right * geometry.stride_w.value + kw * geometry.dilation_w - geometry.padding_w)
        last = uint32(top + uint32(run - 1) * geometry.stride_h.value + uint32(kernel_h - 1) * geometry.dilation_h)
        whole = top < geometry.height and last < geometry.height and col < geometry.width.value
        group = divided(image, groups)[1]
        for v in range(found):
            sums[v] = float32(0)
        c, stop = part, channels if has else uint32(0)
        while c < stop:
            at = uint32(uint32(image * channels + c) * geometry.pixels.value + top * geometry.width.value + col)
            near = uint32(uint32(uint32(group * uint32(outs)) * channels + c) * geometry.taps.value + kw)
            if whole and c + uint32((loads - 1) * parts) < stop:
                add_whole(x, weight, sums, at, near, top, col, uint32(stop - c), channels, geometry)
            else:
                add_checked(x, weight, sums, at, near, top, col, uint32(stop - c), channels, geometry)
            c = uint32(c + uint32(loads * parts))
        for v in range(found):
            shared[uint32(v * APART_THREADS) + tid] = sums[v]
        cuda.syncthreads()
        i = tid
        while i < uint32(found * own_strips):
            v, own = i // uint32(own_strips), i % uint32(own_strips)
            strip, right = divided(uint32(first + own), geometry.out_w)
            image, strip = divided(strip, strips)
            o, down = v // uint32(run), uint32(strip * uint32(run) + v % uint32(run))
            if first + own < all_strips and down < geometry.out_h:
                channel = uint32(divided(image, groups)[1] * uint32(outs) + o)
                total = float32(value_of(bias[channel])) if biased else float32(0)
                at = uint32(v * uint32(APART_THREADS) + own * uint32(kernel_w))
                for p in range(parts):
                    for k in range(kernel_w):
                        total += shared[at + uint32(p * together + k)]
                plane = uint64(uint32(image * uint32(outs) + o)) * uint64(geometry.positions.value)
                out[plane + uint64(uint32(down * geometry.out_w.value + right))] = element_of(total, out)
            i = uint32(i + uint32(APART_THREADS))

    return apart


@functools.cache
def make_add_up(kernel, outs, shares, whole):
    """Make the device function that adds up a thread's pixels of some in channels. If these are ``whole``, all pixels
    lie in the image and in one of the ``left`` channels; otherwise those that do not count as zeros.
    """
    (kernel_h, kernel_w), (parts, run, loads), taps = kernel, shares, prod(kernel)
    rows, terms = run * kernel_h, outs * kernel_h

    @cuda.jit(device=True, forceinline=True)
    def add_up(x, weight, sums, at, near, top, col, left, channels, geometry):
        held, factors = cuda.local.array((loads, rows), float32), cuda.local.array((loads, terms), float32)
        for k in range(loads):
            for r in range(run):
                for kh in range(kernel_h):
                    down = uint32(uint32(r) * geometry.stride_h.value + uint32(kh) * geometry.dilation_h)
                    pixel = uint32(at + uint32(k * parts) * geometry.pixels.value + down * geometry.width.value)
                    if whole:
                        held[k, r * kernel_h + kh] = float32(value_of(x[pixel]))
                    else:
                        inside = uint32(k * parts) < left and col < geometry.width.value
                        inside = inside and uint32(top + down) < geometry.height
                        value = float32(value_of(x[pixel if inside else uint32(0)]))
                        held[k, r * kernel_h + kh] = value if inside else float32(0)
        for k in range(loads):
            has = whole or uint32(k * parts) < left
            for kh in range(kernel_h):
                for o in range(outs):
                    term = uint32(near + uint32(o * taps) * channels + uint32(k * parts * taps + kh * kernel_w))
                    factor = float32(value_of(weight[term if has else uint32(0)]))
                    factors[k, o * kernel_h + kh] = factor if has else float32(0)
        # The compiler would begin with sums as soon as some loads are under way; it moves none past this.
        cuda.syncwarp(cuda.activemask())
        for k in range(loads):
            for kh in range(kernel_h):
                for o in range(outs):
                    for r in range(run):
                        sums[o * run + r] += held[k, r * kernel_h + kh] * factors[k, o * kernel_h + kh]

    return add_up
