"""The ladder of direct convolution, one idea per kernel (E3 to E7).

0. ``serial``: the specification, on the host.
1. ``naive``: one thread per value, everything from global memory.
2. ``tiled``: pixels through a tile in shared memory.
3. ``even``: all threads share the copy of the tile evenly.
4. ``wide``: four floats per copy instruction.
5. ``prefetch``: the next channel's tile is copied while this one is computed.
6. ``blocked``: many sums per thread, in registers.

`gpukit.conv.fast` goes on from there.

Every kernel takes x (N, C, H, W), weight (O, C / groups, KH, KW), bias (O,), out (N, O, OH, OW) and their `Sizes`, in
float32, float16 or bfloat16, whose bits are held as uint16; sums are float32. A block computes a tile of one sample and
of some out channels. Its number alone tells which, so a grid has one dimension and no limit that matters.

The numbers in `Sizes` are uint32, and Numba's sum or product of two is uint64. Coordinates are therefore unsigned: one
left of or above the image wraps to a huge number, so one comparison with the image's size finds both ends.
"""

import functools
from typing import NamedTuple

import numba
import numpy as np

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.conv.windows import Divisor, divided
from gpukit.intrinsics import commit_copies, copy_async, load4, store4, wait_copies
from gpukit.intrinsics.bfloat16 import element_of, value_of

__all__ = [
    "BLOCKED",
    "PIXELS",
    "TILE",
    "Sizes",
    "blocked",
    "copy_by_edges",
    "copy_evenly",
    "copy_quads",
    "naive",
    "prefetch",
    "serial",
    "tiled",
    "wide",
]

#: Rows and columns of the article's tile, one warp.
TILE = 4, 8
#: Block of "blocked" (x, y), and rows of the result that a thread computes.
BLOCKED, PIXELS = (32, 8), 4


class Sizes(NamedTuple):
    """The sizes of a convolution, and the blocks of one launch, as kernels need them."""

    height: np.uint32
    width: np.uint32
    out_h: np.uint32
    out_w: np.uint32
    kernel_h: np.uint32
    kernel_w: np.uint32
    stride_h: np.uint32
    stride_w: np.uint32
    padding_h: np.uint32
    padding_w: np.uint32
    dilation_h: np.uint32
    dilation_w: np.uint32
    channels: np.uint32  # of x in a group
    out_channels: np.uint32  # of a group
    groups: Divisor
    tiles_h: Divisor
    tiles_w: Divisor
    channel_blocks: Divisor  # blocks along the out channels of a group
    biased: np.bool_
    wide: np.bool_  # rows of x begin at multiples of four elements: four can be read at a time


# -- on the host (E3) ------------------------------------------------------------------------------


@numba.njit
def serial(x, weight, bias, stride, padding, dilation, groups):
    """The specification: seven loops, out channels first and the kernel last, so that one sum is open at a time.

    The other order (E3), in channels first, adds to O OH OW open sums again and again. The article omits the in channel
    from the weight's index; padding, stride, dilation, groups and samples are ours. ``bias`` may be None.
    """
    samples, height, width = x.shape[0], x.shape[2], x.shape[3]
    made, channels, kernel_h, kernel_w = weight.shape
    out_h = (height + 2 * padding[0] - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (width + 2 * padding[1] - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    out = np.empty((samples, made, out_h, out_w), x.dtype)
    for n in range(samples):
        for o in range(made):
            first = o // (made // groups) * channels
            for oh in range(out_h):
                for ow in range(out_w):
                    total = 0.0 if bias is None else bias[o]
                    for c in range(channels):
                        for kh in range(kernel_h):
                            for kw in range(kernel_w):
                                row = oh * stride[0] + kh * dilation[0] - padding[0]
                                col = ow * stride[1] + kw * dilation[1] - padding[1]
                                if 0 <= row < height and 0 <= col < width:
                                    total += x[n, first + c, row, col] * weight[o, c, kh, kw]
                    out[n, o, oh, ow] = total
    return out


# -- device functions that the kernels share -------------------------------------------------------


@cuda.jit(device=True)
def find_thread():
    """Column and row of this thread in its block, and columns and rows of the block."""
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    return tx, ty, uint32(cuda.blockDim.x), uint32(cuda.blockDim.y)


@cuda.jit(device=True)
def find_rank():
    """Number of this thread in its block, and threads of the block."""
    return uint32(cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x), uint32(cuda.blockDim.x * cuda.blockDim.y)


@cuda.jit(device=True)
def place(sizes, tile_h, tile_w, channels):
    """Sample, group, first out channel in the group, first row and first column of this block's tile."""
    rest, channel_block = divided(uint32(cuda.blockIdx.x), sizes.channel_blocks)
    rest, across = divided(rest, sizes.tiles_w)
    rest, down = divided(rest, sizes.tiles_h)
    sample, group = divided(rest, sizes.groups)
    return sample, group, uint32(channel_block * channels), uint32(down * tile_h), uint32(across * tile_w)


@cuda.jit(device=True)
def pixel(x, sample, channel, row, col, sizes):
    """A value of x, or zero outside of the image."""
    if row < sizes.height and col < sizes.width:
        return float32(value_of(x[sample, channel, row, col]))
    return float32(0)


@cuda.jit(device=True)
def window_sum(tile, at, pitch, weight, o, c, sizes):
    """Sum up the products of the window in shared memory at ``at`` and the weights of an in and an out channel."""
    total = float32(0)
    for kh in range(sizes.kernel_h):
        for kw in range(sizes.kernel_w):
            value = tile[at + kh * sizes.dilation_h * pitch + kw * sizes.dilation_w]
            total += value * float32(value_of(weight[o, c, kh, kw]))
    return total


@cuda.jit(device=True)
def start(bias, o, sizes):
    """The first term of an out channel's sums: its bias, or 0."""
    return float32(value_of(bias[o])) if sizes.biased else float32(0)


@cuda.jit(device=True)
def span(count, stride, kernel, dilation):
    """Pixels along an axis that ``count`` neighbouring windows cover."""
    one = uint32(1)
    return uint32((count - one) * stride + (kernel - one) * dilation + one)


# -- naive -----------------------------------------------------------------------------------------


@cuda.jit
def naive(x, weight, bias, out, sizes):
    """One thread per value of the result, all from global memory: a pixel is read KH KW times for each out channel."""
    tx, ty, tile_w, tile_h = find_thread()
    sample, group, o, top, left = place(sizes, tile_h, tile_w, 1)
    oh, ow = uint32(top + ty), uint32(left + tx)
    if oh < sizes.out_h and ow < sizes.out_w:
        o = group * sizes.out_channels + o
        total = start(bias, o, sizes)
        for c in range(sizes.channels):
            channel = group * sizes.channels + c
            for kh in range(sizes.kernel_h):
                row = oh * sizes.stride_h + kh * sizes.dilation_h - sizes.padding_h
                for kw in range(sizes.kernel_w):
                    col = ow * sizes.stride_w + kw * sizes.dilation_w - sizes.padding_w
                    total += pixel(x, sample, channel, row, col, sizes) * float32(value_of(weight[o, c, kh, kw]))
        out[sample, o, oh, ow] = element_of(total, out)


# -- a tile in shared memory (E4, E5) --------------------------------------------------------------


@cuda.jit(device=True)
def copy_by_edges(tile, at, x, sample, channel, top, left, rows, cols, sizes):
    """A thread copies its own pixels; threads at the right and lower edge also copy the halo beside them (plan 1).

    With a halo of two on each side the thread in the corner copies 9 pixels, and its warp waits for it.
    """
    tx, ty, _, _ = find_thread()
    own_row, own_col, one = uint32(ty * sizes.stride_h), uint32(tx * sizes.stride_w), uint32(1)
    end_row = rows if ty == cuda.blockDim.y - one else uint32(own_row + sizes.stride_h)
    end_col = cols if tx == cuda.blockDim.x - one else uint32(own_col + sizes.stride_w)
    for r in range(own_row, end_row):
        for q in range(own_col, end_col):
            tile[at + r * cols + q] = pixel(x, sample, channel, top + r, left + q, sizes)


@cuda.jit(device=True)
def copy_evenly(tile, at, x, sample, channel, top, left, rows, cols, sizes):
    """All threads share the copy: no two differ by more than one pixel, and neighbours copy neighbours (plan 2)."""
    e, threads = find_rank()
    while e < rows * cols:
        r = e // cols
        tile[at + e] = pixel(x, sample, channel, top + r, left + (e - r * cols), sizes)
        e = uint32(e + threads)


def make_tiled(copy):
    """Make a kernel in which a warp computes 8 x 4 values. For each in channel, ``copy`` first brings the tile and its
    halo to shared memory.
    """

    @cuda.jit
    def tiled(x, weight, bias, out, sizes):
        tile = cuda.shared.array(0, float32)
        tx, ty, tile_w, tile_h = find_thread()
        sample, group, first, top, left = place(sizes, tile_h, tile_w, 1)
        rows = span(tile_h, sizes.stride_h, sizes.kernel_h, sizes.dilation_h)
        cols = span(tile_w, sizes.stride_w, sizes.kernel_w, sizes.dilation_w)
        from_row, from_col = top * sizes.stride_h - sizes.padding_h, left * sizes.stride_w - sizes.padding_w
        o, at = group * sizes.out_channels + first, ty * sizes.stride_h * cols + tx * sizes.stride_w
        total = start(bias, o, sizes)
        for c in range(sizes.channels):
            copy(tile, uint32(0), x, sample, group * sizes.channels + c, from_row, from_col, rows, cols, sizes)
            cuda.syncthreads()  # the tile is complete
            total += window_sum(tile, at, cols, weight, o, c, sizes)
            cuda.syncthreads()  # no thread still reads the tile
        if top + ty < sizes.out_h and left + tx < sizes.out_w:
            out[sample, o, top + ty, left + tx] = element_of(total, out)

    return tiled


tiled, even = make_tiled(copy_by_edges), make_tiled(copy_evenly)


# -- four floats per instruction (E5) --------------------------------------------------------------


@cuda.jit(device=True)
def copy_quads(tile, at, x, sample, channel, top, left, rows, pitch, sizes):
    """Copy rows of ``pitch`` pixels, four at a time; ``left`` and ``pitch`` are multiples of 4.

    Where the image's rows do not begin at such multiples, only single pixels can be read.
    """
    e, threads = find_rank()
    four, three, zero = uint32(4), uint32(3), float32(0)
    quads = pitch // four
    while e < rows * quads:
        r = e // quads
        row, col = top + r, left + four * (e - r * quads)
        p, q, s, t = zero, zero, zero, zero
        if sizes.wide:
            if row < sizes.height and col < sizes.width:
                a, b, c, d = load4(x, (sample, channel, row, col))
                p, q, s, t = float32(value_of(a)), float32(value_of(b)), float32(value_of(c)), float32(value_of(d))
        else:
            p = pixel(x, sample, channel, row, col, sizes)
            q = pixel(x, sample, channel, row, col + uint32(1), sizes)
            s = pixel(x, sample, channel, row, col + uint32(2), sizes)
            t = pixel(x, sample, channel, row, col + three, sizes)
        store4(tile, at + four * e, p, q, s, t)
        e = uint32(e + threads)


@cuda.jit
def wide(x, weight, bias, out, sizes):
    """Like even, with a tile that begins at a multiple of four columns, so that four floats are copied at a time."""
    tile = cuda.shared.array(0, float32)
    four, three = uint32(4), uint32(3)
    tx, ty, tile_w, tile_h = find_thread()
    sample, group, first, top, left = place(sizes, tile_h, tile_w, 1)
    rows = span(tile_h, sizes.stride_h, sizes.kernel_h, sizes.dilation_h)
    cols = span(tile_w, sizes.stride_w, sizes.kernel_w, sizes.dilation_w)
    pitch = uint32((cols + three + three) // four * four)
    from_row, from_col = top * sizes.stride_h - sizes.padding_h, left * sizes.stride_w - sizes.padding_w
    shift = from_col & three
    o, at = group * sizes.out_channels + first, ty * sizes.stride_h * pitch + tx * sizes.stride_w + shift
    total = start(bias, o, sizes)
    for c in range(sizes.channels):
        copy_quads(
            tile, uint32(0), x, sample, group * sizes.channels + c, from_row, from_col - shift, rows, pitch, sizes
        )
        cuda.syncthreads()
        total += window_sum(tile, at, pitch, weight, o, c, sizes)
        cuda.syncthreads()
    if top + ty < sizes.out_h and left + tx < sizes.out_w:
        out[sample, o, top + ty, left + tx] = element_of(total, out)


# -- the next channel while this one is computed (E6) ----------------------------------------------


@cuda.jit(device=True)
def begin_copy(tile, at, x, sample, channel, top, left, rows, cols, sizes):
    """Begin an even copy that bypasses the registers, and do not wait for it. float32 only."""
    e, threads = find_rank()
    while e < rows * cols:
        r = e // cols
        row, col = top + r, left + (e - r * cols)
        inside = row < sizes.height and col < sizes.width
        copy_async(tile, at + e, x, (sample, channel, row, col), inside)
        e = uint32(e + threads)


def make_prefetch(copy):
    """Make a kernel like tiled with two tiles: ``copy`` fills one with channel c + 1 while the block computes on c.

    Elements of two bytes are converted on the way, so a thread waits for its loads: there ``copy`` is `copy_evenly`.
    One barrier per channel is enough: after it no thread still reads the other tile, so it may be overwritten.
    """

    @cuda.jit
    def prefetch(x, weight, bias, out, sizes):
        tile = cuda.shared.array(0, float32)
        one, two = uint32(1), uint32(2)
        tx, ty, tile_w, tile_h = find_thread()
        sample, group, first, top, left = place(sizes, tile_h, tile_w, 1)
        rows = span(tile_h, sizes.stride_h, sizes.kernel_h, sizes.dilation_h)
        cols = span(tile_w, sizes.stride_w, sizes.kernel_w, sizes.dilation_w)
        from_row, from_col = top * sizes.stride_h - sizes.padding_h, left * sizes.stride_w - sizes.padding_w
        o, at = group * sizes.out_channels + first, ty * sizes.stride_h * cols + tx * sizes.stride_w
        channel, other = group * sizes.channels, rows * cols
        total = start(bias, o, sizes)
        copy(tile, uint32(0), x, sample, channel, from_row, from_col, rows, cols, sizes)
        commit_copies()
        for c in range(sizes.channels):
            wait_copies(0)
            cuda.syncthreads()
            if c + one < sizes.channels:
                target = other if c % two == uint32(0) else uint64(0)
                copy(tile, target, x, sample, channel + c + one, from_row, from_col, rows, cols, sizes)
                commit_copies()
            total += window_sum(tile, at + other * (c % two), cols, weight, o, c, sizes)
        if top + ty < sizes.out_h and left + tx < sizes.out_w:
            out[sample, o, top + ty, left + tx] = element_of(total, out)

    return prefetch


prefetch, prefetch_half = make_prefetch(begin_copy), make_prefetch(copy_evenly)


# -- many sums in registers (E7) -------------------------------------------------------------------


@cuda.jit(device=True)
def copy_weights(tile, at, weight, first, c, outs, end):
    """Copy the weights of an in channel and the out channels from ``first``, those of one kernel position together."""
    taps = uint32(weight.shape[2] * weight.shape[3])
    e, threads = find_rank()
    while e < taps * outs:
        tap, o = e // outs, first + e % outs
        kh = tap // uint32(weight.shape[3])
        value = float32(0)
        if o < end:
            value = float32(value_of(weight[o, c, kh, tap - kh * uint32(weight.shape[3])]))
        tile[at + e] = value
        e = uint32(e + threads)


@functools.cache
def blocked(channels, pixels):
    """Make a kernel in which a thread sums up ``channels`` out channels of ``pixels`` rows in registers.

    A pixel from shared memory serves for all out channels of a thread, a weight for all of its rows. The compiler
    spills to local memory what does not fit into 255 registers.
    """

    @cuda.jit
    def blocked(x, weight, bias, out, sizes):
        tile = cuda.shared.array(0, float32)
        total = cuda.local.array((channels, pixels), float32)
        value = cuda.local.array(pixels, float32)
        tx, ty, tile_w, _ = find_thread()
        tile_h = uint32(cuda.blockDim.y * pixels)
        sample, group, first, top, left = place(sizes, tile_h, tile_w, uint32(channels))
        rows = span(tile_h, sizes.stride_h, sizes.kernel_h, sizes.dilation_h)
        cols = span(tile_w, sizes.stride_w, sizes.kernel_w, sizes.dilation_w)
        from_row, from_col = top * sizes.stride_h - sizes.padding_h, left * sizes.stride_w - sizes.padding_w
        first, end = group * sizes.out_channels + first, (group + uint32(1)) * sizes.out_channels
        for o in range(channels):
            own = first + uint32(o)
            for p in range(pixels):
                total[o, p] = start(bias, own, sizes) if own < end else float32(0)
        at = ty * uint32(pixels) * sizes.stride_h * cols + tx * sizes.stride_w
        for c in range(sizes.channels):
            copy_evenly(tile, uint32(0), x, sample, group * sizes.channels + c, from_row, from_col, rows, cols, sizes)
            copy_weights(tile, rows * cols, weight, first, c, uint32(channels), end)
            cuda.syncthreads()
            wt = rows * cols
            for kh in range(sizes.kernel_h):
                for kw in range(sizes.kernel_w):
                    here = at + kh * sizes.dilation_h * cols + kw * sizes.dilation_w
                    for p in range(pixels):
                        value[p] = tile[here + uint32(p) * sizes.stride_h * cols]
                    for o in range(channels):
                        w = tile[wt + uint32(o)]
                        for p in range(pixels):
                            total[o, p] += value[p] * w
                    wt += uint32(channels)
            cuda.syncthreads()
        for o in range(channels):
            own = first + uint32(o)
            for p in range(pixels):
                oh = top + ty * uint32(pixels) + uint32(p)
                if own < end and oh < sizes.out_h and left + tx < sizes.out_w:
                    out[sample, own, oh, left + tx] = element_of(total[o, p], out)

    return blocked


#: The rungs, each with one idea more.
LADDER = {"naive": naive, "tiled": tiled, "even": even, "wide": wide, "prefetch": prefetch, "blocked": blocked}
