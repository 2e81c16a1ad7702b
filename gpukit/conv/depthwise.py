"""Depthwise convolution, at the speed of memory: each out channel sees one in channel."""

import functools
from typing import NamedTuple

import numpy as np

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.conv.windows import Divisor, covered, divided, make_divisor
from gpukit.intrinsics import (
    commit_copies,
    copy_async,
    copy_async2,
    copy_async4,
    copy_async8,
    load2,
    load4,
    store2,
    wait_copies,
)
from gpukit.intrinsics.bfloat16 import element_of, value_of
from warpstep.integers import ceil_div

__all__ = [
    "MAX_DILATION",
    "MAX_RUN",
    "MAX_TAPS",
    "THREADS",
    "Tiling",
    "depthwise",
    "depthwise_last",
    "depthwise_pairs",
    "is_along",
    "make_tiling",
    "unit_of",
]

#: Values of the kernel, all of which a thread holds in registers, neighbouring values of a thread, and pixels from one
#: value of the kernel to the next, at most.
MAX_TAPS, MAX_RUN, MAX_DILATION = 49, 4, 4
THREADS = 256


@functools.cache
def depthwise(kernel, stride, dilation, run, total):
    """Make the kernel ``depthwise[blocks, THREADS](x, weight, bias, out, sizes)`` for C-contiguous flat arrays.

    Neighbouring threads compute neighbouring values of a row, and each thread those of ``run`` rows, or ``run``
    neighbours if the kernel has one row: a pixel that it loads serves for all of them. ``sizes`` are a
    `gpukit.conv.ladder.Sizes` for tiles of these values and one out channel: a thread for each. Sums are of the type
    ``total``.
    """
    (kernel_h, kernel_w), (stride_h, stride_w), (dilation_h, dilation_w) = kernel, stride, dilation
    along, taps = is_along(kernel, dilation), kernel_h * kernel_w
    step, near, further = (stride_w, kernel_w, dilation_w) if along else (stride_h, kernel_h, dilation_h)
    others, count, begin = taps // near, covered(run, step, near, further), make_begin(taps, total)

    @cuda.jit
    def depthwise(x, weight, bias, out, sizes):
        weights, pixels = cuda.local.array(taps, total), cuda.local.array(count, total)
        sums = cuda.local.array(run, total)
        plane, right = divided(uint32(cuda.grid(1)), sizes.tiles_w)
        plane, down = divided(plane, sizes.tiles_h)
        right, down = (uint32(right * uint32(run)), down) if along else (right, uint32(down * uint32(run)))
        to = (uint64(plane) * sizes.out_h + down) * sizes.out_w + right
        if to >= uint64(out.size):
            return
        base, initial = begin(plane, weight, bias, weights, sizes)
        for i in range(run):
            sums[i] = initial
        top = uint32(down * uint32(stride_h) - sizes.padding_h)
        left = uint32(right * uint32(stride_w) - sizes.padding_w)
        for other in range(others):
            for i in range(count):
                row = top if along else uint32(top + uint32(i))
                col = uint32(left + (uint32(i) if along else uint32(other * dilation_w)))
                inside = row < sizes.height and col < sizes.width
                value = total(value_of(x[uint32(base + row * sizes.width + col if inside else 0)]))
                pixels[i] = value if inside else total(0)
            for k in range(near):
                for i in range(run):
                    sums[i] += pixels[i * step + k * further] * weights[k * others + other]
        for i in range(run):
            if along:
                if uint32(right + uint32(i)) < sizes.out_w:
                    out[to + uint64(i)] = element_of(sums[i], out)
            elif uint32(down + uint32(i)) < sizes.out_h:
                out[to + uint64(i) * sizes.out_w] = element_of(sums[i], out)

    return depthwise


@functools.cache
def depthwise_pairs(kernel, stride, dilation_h, odd, total):
    """Make a kernel like `depthwise` whose threads compute two neighbours in each of ``MAX_RUN`` rows, and load and
    store two elements at a time.

    For kernels without gaps along rows; rows of images and of results have an even number of elements. ``odd`` is 1 if
    the padding along rows is odd: the pixels of a thread then begin one before its first window.
    """
    (kernel_h, kernel_w), (stride_h, stride_w), run = kernel, stride, MAX_RUN
    taps, rows = kernel_h * kernel_w, covered(run, stride_h, kernel_h, dilation_h)
    pairs, begin = ceil_div(odd + covered(2, stride_w, kernel_w, 1), 2), make_begin(taps, total)

    @cuda.jit
    def depthwise_pairs(x, weight, bias, out, sizes):
        weights, pixels = cuda.local.array(taps, total), cuda.local.array((rows, 2), total)
        sums = cuda.local.array((run, 2), total)
        plane, right = divided(uint32(cuda.grid(1)), sizes.tiles_w)
        plane, down = divided(plane, sizes.tiles_h)
        right, down = uint32(right * uint32(2)), uint32(down * uint32(run))
        to = (uint64(plane) * sizes.out_h + down) * sizes.out_w + right
        if to >= uint64(out.size):
            return
        base, initial = begin(plane, weight, bias, weights, sizes)
        for i in range(run):
            sums[i, 0] = sums[i, 1] = initial
        top = uint32(down * uint32(stride_h) - sizes.padding_h)
        left = uint32(right * uint32(stride_w) - sizes.padding_w - uint32(odd))
        for pair in range(pairs):
            col = uint32(left + uint32(2 * pair))
            for i in range(rows):
                row = uint32(top + uint32(i))
                inside = row < sizes.height and col < sizes.width
                a, b = load2(x, uint64(uint32(base + row * sizes.width + col) if inside else uint32(0)))
                pixels[i, 0] = total(value_of(a)) if inside else total(0)
                pixels[i, 1] = total(value_of(b)) if inside else total(0)
            for beside in range(2):
                for e in range(2):
                    kw = 2 * pair + e - odd - beside * stride_w
                    if 0 <= kw < kernel_w:
                        for kh in range(kernel_h):
                            for i in range(run):
                                near = pixels[i * stride_h + kh * dilation_h, e]
                                sums[i, beside] += near * weights[kh * kernel_w + kw]
        for i in range(run):
            if uint32(down + uint32(i)) < sizes.out_h:
                at = to + uint64(i) * sizes.out_w
                store2(out, at, element_of(sums[i, 0], out), element_of(sums[i, 1], out))

    return depthwise_pairs


@functools.cache
def make_begin(taps, total):
    """Make the device function that loads the weights of a plane of the result. It returns where the plane of x begins,
    and the first term of all sums.
    """

    @cuda.jit(device=True, forceinline=True)
    def begin(plane, weight, bias, weights, sizes):
        from_plane, o = divided(plane, sizes.channel_blocks)
        _, group = divided(from_plane, sizes.groups)
        channel = uint32(group * sizes.out_channels + o)
        for i in range(taps):
            weights[i] = total(value_of(weight[channel * uint32(taps) + uint32(i)]))
        initial = total(value_of(bias[channel])) if sizes.biased else total(0)
        return uint32(from_plane * sizes.height * sizes.width), initial

    return begin


def is_along(kernel: tuple[int, ...], dilation: tuple[int, int]) -> bool:
    """Whether the values of a thread of `depthwise` are neighbours in a row, and not in a column."""
    return kernel[0] == 1 < kernel[1] and dilation[1] <= MAX_DILATION


# -- images whose channels are last ----------------------------------------------------------------

#: Threads of a block of `depthwise_last`; columns and values of its tile, at most; channels that it may have, or fewer
#: if an image does; channels of a thread.
LAST_THREADS, MAX_COLUMNS, MAX_VALUES, CHANNELS, QUAD = 128, 32, 2048, (16, 32, 64), 4
COPIES = {1: copy_async, 2: copy_async2, 4: copy_async4, 8: copy_async8}


class Tiling(NamedTuple):
    """The tiles of `depthwise_last`, as the kernel needs them."""

    rows: np.uint32  # of the result that a block computes
    columns: Divisor
    strips: Divisor  # of a channel: values of ``MAX_RUN`` rows
    channels: np.uint32
    pitch: np.uint32  # elements from one pixel in shared memory to the next
    units: Divisor  # of a pixel, which are copied at a time
    pixels: np.uint32  # of the tile of the image
    across: Divisor  # of them in a row
    tiles_w: Divisor
    tiles_h: Divisor
    chunks: Divisor  # tiles along the channels
    all_channels: np.uint32
    biased: np.bool_


def unit_of(channels: int, address: int, itemsize: int) -> int:
    """Return how many channels of a pixel can be copied at a time: as many as 16 bytes have, or fewer; 0 if none, as a
    copy has 4 bytes or more.
    """
    fits = (n for n in COPIES if 4 <= n * itemsize <= 16 and channels % n == 0 and address % (n * itemsize) == 0)
    return max(fits, default=0)


def make_tiling(channels: int, unit: int, out_size: tuple, kernel: tuple, steps: tuple, itemsize: int, biased: bool):
    """Make the Tiling for images of so many channels, ``unit`` of which are copied at a time; return it, the blocks of
    an image, and bytes of shared memory.
    """
    (out_h, out_w), ((stride_h, stride_w), (dilation_h, dilation_w)) = out_size, steps
    tiles_w = ceil_div(out_w, MAX_COLUMNS)
    columns = ceil_div(out_w, tiles_w) if tiles_w == 1 else MAX_COLUMNS
    held = next((n for n in CHANNELS if 4 * MAX_RUN * columns * n >= MAX_VALUES // 2 or n >= channels), CHANNELS[-1])
    wide = max(unit, QUAD)
    held = min(held, wide * ceil_div(channels, wide))
    most = max(1, MAX_VALUES // (columns * held * MAX_RUN))
    rows = MAX_RUN * min(most, ceil_div(out_h, MAX_RUN))
    tiles = ceil_div(out_h, rows), ceil_div(out_w, columns), ceil_div(channels, held)
    down, across = covered(rows, stride_h, kernel[0], dilation_h), covered(columns, stride_w, kernel[1], dilation_w)
    pitch = held if held // wide % 2 else held + wide  # neighbouring pixels begin in other banks
    tiling = Tiling(
        rows=np.uint32(rows),
        columns=make_divisor(columns),
        strips=make_divisor(rows // MAX_RUN * columns),
        channels=np.uint32(held),
        pitch=np.uint32(pitch),
        units=make_divisor(held // unit),
        pixels=np.uint32(down * across),
        across=make_divisor(across),
        tiles_w=make_divisor(tiles[1]),
        tiles_h=make_divisor(tiles[0]),
        chunks=make_divisor(tiles[2]),
        all_channels=np.uint32(channels),
        biased=np.bool_(biased),
    )
    return tiling, tiles[0] * tiles[1] * tiles[2], down * across * pitch * itemsize


@functools.cache
def depthwise_last(kernel, stride, dilation, element, unit):
    """Make the kernel ``depthwise_last[blocks, LAST_THREADS, stream, nbytes](x, weight, bias, out, geometry, tiling)``
    for flat arrays: images with their channels last, of which there is a multiple of ``unit``, and a result with its
    channels first.

    A block copies a tile of an image to shared memory, some channels of it, ``unit`` at a time. A thread then computes
    four channels of ``MAX_RUN`` values below one another.
    """
    (kernel_h, kernel_w), (stride_h, stride_w), (dilation_h, dilation_w), run = kernel, stride, dilation, MAX_RUN
    rows, taps = covered(run, stride_h, kernel_h, dilation_h), kernel_h * kernel_w
    copy, whole = COPIES[unit], unit % QUAD == 0
    most, size = CHANNELS[-1], taps * CHANNELS[-1]

    @cuda.jit
    def depthwise_last(x, weight, bias, out, geometry, tiling):
        tile, weights = cuda.shared.array(0, element, alignment=16), cuda.shared.array(size, float32, alignment=16)
        pixels, sums = cuda.local.array((rows, 4), float32), cuda.local.array((run, 4), float32)
        tid = uint32(cuda.threadIdx.x)
        block, chunk = divided(uint32(cuda.blockIdx.x), tiling.chunks)
        block, tile_w = divided(block, tiling.tiles_w)
        sample, tile_h = divided(block, tiling.tiles_h)
        first = uint32(chunk * tiling.channels)
        from_row, from_col = uint32(tile_h * tiling.rows), uint32(tile_w * tiling.columns.value)
        top = uint32(from_row * uint32(stride_h) - geometry.padding_h)
        left = uint32(from_col * uint32(stride_w) - geometry.padding_w)
        image = uint64(sample) * uint64(geometry.pixels.value)
        i = tid
        while i < tiling.pixels * tiling.units.value:
            pixel, own = divided(i, tiling.units)
            r, c = divided(pixel, tiling.across)
            row, col, channel = uint32(top + r), uint32(left + c), uint32(first + own * uint32(unit))
            inside = (row < geometry.height) & (col < geometry.width.value) & (channel < tiling.all_channels)
            at = (image + uint32(row * geometry.width.value + col)) * uint64(tiling.all_channels) + channel
            copy(tile, uint64(uint32(pixel * tiling.pitch + own * uint32(unit))), x, at, inside)
            i = uint32(i + uint32(LAST_THREADS))
        commit_copies()
        i = tid
        while i < uint32(taps) * tiling.channels:
            c, tap = i // uint32(taps), i % uint32(taps)
            has = first + c < tiling.all_channels
            own = float32(value_of(weight[uint32(first * uint32(taps) + i)])) if has else float32(0)
            weights[tap * uint32(most) + c] = own
            i = uint32(i + uint32(LAST_THREADS))
        wait_copies(0)
        cuda.syncthreads()
        i = tid
        while i < tiling.channels // uint32(4) * tiling.strips.value:
            quad, strip = divided(i, tiling.strips)
            r, c = divided(strip, tiling.columns)
            quad, down = uint32(uint32(4) * quad), uint32(r * uint32(run))
            channel, right = uint32(first + quad), uint32(from_col + c)
            base = uint32(down * uint32(stride_h) * tiling.across.value + c * uint32(stride_w))
            for j in range(run):
                for e in range(4):
                    sums[j, e] = float32(0)
            for kw in range(kernel_w):
                for j in range(rows):
                    pixel = uint32(base + uint32(j) * tiling.across.value + uint32(kw * dilation_w))
                    near = load4(tile, uint64(uint32(pixel * tiling.pitch + quad)))
                    for e in range(4):
                        pixels[j, e] = float32(value_of(near[e]))
                for kh in range(kernel_h):
                    near = load4(weights, uint64(uint32((kh * kernel_w + kw) * most) + quad))
                    for j in range(run):
                        for e in range(4):
                            sums[j, e] += pixels[j * stride_h + kh * dilation_h, e] * near[e]
            down = uint32(from_row + down)
            if right < geometry.out_w.value and channel < tiling.all_channels:
                plane = uint64(sample * tiling.all_channels + channel) * uint64(geometry.positions.value)
                for e in range(4):
                    is_channel = whole or channel + uint32(e) < tiling.all_channels
                    is_biased = tiling.biased and is_channel
                    extra = float32(value_of(bias[channel + uint32(e)])) if is_biased else float32(0)
                    for j in range(run):
                        if is_channel and uint32(down + uint32(j)) < geometry.out_h:
                            at = plane + uint32(uint32(down + uint32(j)) * geometry.out_w.value + right)
                            out[at] = element_of(sums[j, e] + extra, out)
                    plane += uint64(geometry.positions.value)
            i = uint32(i + uint32(LAST_THREADS))

    return depthwise_last
