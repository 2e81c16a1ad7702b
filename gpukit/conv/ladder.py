"""The ladder of direct convolution, one idea per kernel (E3 to E7).

Every kernel takes x (N, C, H, W), weight (O, C / groups, KH, KW), bias (O,), out (N, O, OH, OW) and their `Sizes`, in
float32 or float16; sums are float32. A block computes a tile of one sample and of some out channels; it finds out which
from its number alone, so a grid has one dimension and no limit that matters.

The numbers in `Sizes` are uint32, and what Numba computes of two of these is uint64: an index without a sign, where a
coordinate left of or above the image is a huge number, which the comparison with the image's size finds.
"""

import functools
from typing import NamedTuple

import numba
import numpy as np

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.conv.windows import Divisor, divided
from gpukit.intrinsics import commit_copies, copy_async, load4, store4, wait_copies

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
    """A convolution as its kernels know it; the tiles and sets are those of one launch."""

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
    wide: np.bool_  # rows of x begin at multiples of four elements, so that four can be read at a time


# -- on the host (E3) ------------------------------------------------------------------------------


@numba.njit
def serial(x, weight, bias, stride, padding, dilation, groups):
    """The specification: seven loops, the out channel first, the kernel last, so that one sum is open at a time (E3).

    The other order, in channels first, adds to O OH OW open sums again and again. The article forgets the in channel in
    the weight's index; padding, stride, dilation, groups and samples are ours. ``bias`` may be None.
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


# -- what the kernels share ------------------------------------------------------------------------


@cuda.jit(device=True)
def place(sizes, tile_h, tile_w, outs):
    """(sample, group, first out channel in the group, first row, first column) of this block's tile."""
    rest, made = divided(uint32(cuda.blockIdx.x), sizes.channel_blocks)
    rest, across = divided(rest, sizes.tiles_w)
    rest, down = divided(rest, sizes.tiles_h)
    sample, group = divided(rest, sizes.groups)
    return sample, group, uint32(made * outs), uint32(down * tile_h), uint32(across * tile_w)


@cuda.jit(device=True)
def pixel(x, sample, channel, row, col, sizes):
    """A value of x, or zero outside of the image."""
    if row < sizes.height and col < sizes.width:
        return float32(x[sample, channel, row, col])
    return float32(0)


@cuda.jit(device=True)
def window_sum(tile, at, pitch, weight, o, c, sizes):
    """Sum of a window in shared memory, which begins at ``at``, times the weights of one in and one out channel."""
    total = float32(0)
    for kh in range(sizes.kernel_h):
        for kw in range(sizes.kernel_w):
            value = tile[at + kh * sizes.dilation_h * pitch + kw * sizes.dilation_w]
            total += value * float32(weight[o, c, kh, kw])
    return total


@cuda.jit(device=True)
def start(bias, o, sizes):
    """What the sum of an out channel starts with."""
    return float32(bias[o]) if sizes.biased else float32(0)


@cuda.jit(device=True)
def span(count, stride, kernel, dilation):
    """Pixels along an axis that ``count`` neighbouring windows cover."""
    one = uint32(1)
    return uint32((count - one) * stride + (kernel - one) * dilation + one)


# -- naive -----------------------------------------------------------------------------------------


@cuda.jit
def naive(x, weight, bias, out, sizes):
    """One thread per value of the result, all from global memory: a pixel is read KH KW times for each out channel."""
    tile_h, tile_w = uint32(cuda.blockDim.y), uint32(cuda.blockDim.x)
    sample, group, o, top, left = place(sizes, tile_h, tile_w, uint32(1))
    oh, ow = uint32(top + uint32(cuda.threadIdx.y)), uint32(left + uint32(cuda.threadIdx.x))
    if oh < sizes.out_h and ow < sizes.out_w:
        o = group * sizes.out_channels + o
        total = start(bias, o, sizes)
        for c in range(sizes.channels):
            channel = group * sizes.channels + c
            for kh in range(sizes.kernel_h):
                row = oh * sizes.stride_h + kh * sizes.dilation_h - sizes.padding_h
                for kw in range(sizes.kernel_w):
                    col = ow * sizes.stride_w + kw * sizes.dilation_w - sizes.padding_w
                    total += pixel(x, sample, channel, row, col, sizes) * float32(weight[o, c, kh, kw])
        out[sample, o, oh, ow] = total


# -- a tile in shared memory (E4, E5) --------------------------------------------------------------


@cuda.jit(device=True)
def copy_by_edges(tile, x, sample, channel, top, left, rows, cols, sizes):
    """A thread copies its own pixels; those at the right and lower edge copy the halo beside them too (plan 1).

    Of a halo of two on each side the thread in the corner copies 9 pixels, and the warp waits for it.
    """
    tx, ty, one = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint32(1)
    own_row, own_col = uint32(ty * sizes.stride_h), uint32(tx * sizes.stride_w)
    end_row = rows if ty == cuda.blockDim.y - one else uint32(own_row + sizes.stride_h)
    end_col = cols if tx == cuda.blockDim.x - one else uint32(own_col + sizes.stride_w)
    for r in range(own_row, end_row):
        for q in range(own_col, end_col):
            tile[r * cols + q] = pixel(x, sample, channel, top + r, left + q, sizes)


@cuda.jit(device=True)
def copy_evenly(tile, x, sample, channel, top, left, rows, cols, sizes):
    """All threads share the copy: no two differ by more than one pixel, and neighbours copy neighbours (plan 2)."""
    threads = uint32(cuda.blockDim.x * cuda.blockDim.y)
    e = uint32(cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
    while e < rows * cols:
        r = e // cols
        tile[e] = pixel(x, sample, channel, top + r, left + (e - r * cols), sizes)
        e = uint32(e + threads)


def make_tiled(copy):
    """Make a kernel in which a warp computes 8 x 4 values. For each in channel, ``copy`` first brings the tile and its
    halo to shared memory.
    """

    @cuda.jit
    def tiled(x, weight, bias, out, sizes):
        tile = cuda.shared.array(0, float32)
        tile_h, tile_w = uint32(cuda.blockDim.y), uint32(cuda.blockDim.x)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        sample, group, first, top, left = place(sizes, tile_h, tile_w, uint32(1))
        rows = span(tile_h, sizes.stride_h, sizes.kernel_h, sizes.dilation_h)
        cols = span(tile_w, sizes.stride_w, sizes.kernel_w, sizes.dilation_w)
        from_row, from_col = top * sizes.stride_h - sizes.padding_h, left * sizes.stride_w - sizes.padding_w
        o, at = group * sizes.out_channels + first, ty * sizes.stride_h * cols + tx * sizes.stride_w
        total = start(bias, o, sizes)
        for c in range(sizes.channels):
            copy(tile, x, sample, group * sizes.channels + c, from_row, from_col, rows, cols, sizes)
            cuda.syncthreads()  # the tile is complete
            total += window_sum(tile, at, cols, weight, o, c, sizes)
            cuda.syncthreads()  # nobody needs it any more
        if top + ty < sizes.out_h and left + tx < sizes.out_w:
            out[sample, o, top + ty, left + tx] = total

    return tiled


tiled, even = make_tiled(copy_by_edges), make_tiled(copy_evenly)


# -- four floats per instruction (E5) --------------------------------------------------------------


@cuda.jit(device=True)
def copy_quads(tile, at, x, sample, channel, top, left, rows, pitch, sizes):
    """Copy rows of ``pitch`` pixels, four at a time; ``left`` and ``pitch`` are multiples of 4.

    If the image's rows do not begin at such multiples, only single pixels can be read.
    """
    four, three = uint32(4), uint32(3)
    threads, quads = uint32(cuda.blockDim.x * cuda.blockDim.y), pitch // four
    e = uint32(cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
    while e < rows * quads:
        r = e // quads
        row, col = top + r, left + four * (e - r * quads)
        p, q, s, t = float32(0), float32(0), float32(0), float32(0)
        if sizes.wide:
            if row < sizes.height and col < sizes.width:
                a, b, c, d = load4(x, (sample, channel, row, col))
                p, q, s, t = float32(a), float32(b), float32(c), float32(d)
        else:
            p = pixel(x, sample, channel, row, col, sizes)
            q = pixel(x, sample, channel, row, col + uint32(1), sizes)
            s = pixel(x, sample, channel, row, col + uint32(2), sizes)
            t = pixel(x, sample, channel, row, col + three, sizes)
        store4(tile, at + four * e, p, q, s, t)
        e = uint32(e + threads)


@cuda.jit
def wide(x, weight, bias, out, sizes):
    """Like tiled, with a tile that begins at a multiple of four columns, so that four floats are copied at a time."""
    tile = cuda.shared.array(0, float32)
    tile_h, tile_w, four, three = uint32(cuda.blockDim.y), uint32(cuda.blockDim.x), uint32(4), uint32(3)
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    sample, group, first, top, left = place(sizes, tile_h, tile_w, uint32(1))
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
        out[sample, o, top + ty, left + tx] = total


# -- the next channel while this one is computed (E6) ----------------------------------------------


@cuda.jit(device=True)
def begin_copy(tile, at, x, sample, channel, top, left, rows, cols, sizes):
    """Begin an even copy that goes past the registers, and do not wait for it. float32 only."""
    threads = uint32(cuda.blockDim.x * cuda.blockDim.y)
    e = uint32(cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
    while e < rows * cols:
        r = e // cols
        row, col = top + r, left + (e - r * cols)
        inside = row < sizes.height and col < sizes.width
        copy_async(tile, at + e, x, (sample, channel, row, col), inside)
        e = uint32(e + threads)


@cuda.jit(device=True)
def copy_at_once(tile, at, x, sample, channel, top, left, rows, cols, sizes):
    """The same for float16, which has to be converted on its way: the thread waits for its loads."""
    threads = uint32(cuda.blockDim.x * cuda.blockDim.y)
    e = uint32(cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
    while e < rows * cols:
        r = e // cols
        tile[at + e] = pixel(x, sample, channel, top + r, left + (e - r * cols), sizes)
        e = uint32(e + threads)


def make_prefetch(copy):
    """Make a kernel like tiled with two tiles: ``copy`` fills one with channel c + 1 while the block computes on c.

    One barrier per channel is enough: after it no thread still reads the other tile, so it may be overwritten.
    """

    @cuda.jit
    def prefetch(x, weight, bias, out, sizes):
        tile = cuda.shared.array(0, float32)
        tile_h, tile_w, one = uint32(cuda.blockDim.y), uint32(cuda.blockDim.x), uint32(1)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        sample, group, first, top, left = place(sizes, tile_h, tile_w, one)
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
                target = other if c % uint32(2) == uint32(0) else uint64(0)
                copy(tile, target, x, sample, channel + c + one, from_row, from_col, rows, cols, sizes)
                commit_copies()
            total += window_sum(tile, at + other * (c % uint32(2)), cols, weight, o, c, sizes)
        if top + ty < sizes.out_h and left + tx < sizes.out_w:
            out[sample, o, top + ty, left + tx] = total

    return prefetch


prefetch, prefetch_half = make_prefetch(begin_copy), make_prefetch(copy_at_once)


# -- many sums in registers (E7) -------------------------------------------------------------------


@cuda.jit(device=True)
def copy_weights(tile, at, weight, first, c, outs, end):
    """Weights of one in channel and of the out channels from ``first``, those of a place in the kernel side by side."""
    taps = uint32(weight.shape[2] * weight.shape[3])
    threads = uint32(cuda.blockDim.x * cuda.blockDim.y)
    e = uint32(cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
    while e < taps * outs:
        tap, o = e // outs, first + e % outs
        kh = tap // uint32(weight.shape[3])
        value = float32(0)
        if o < end:
            value = float32(weight[o, c, kh, tap - kh * uint32(weight.shape[3])])
        tile[at + e] = value
        e = uint32(e + threads)


@functools.cache
def blocked(outs, pixels):
    """Kernel: a thread sums ``outs`` out channels of ``pixels`` rows in registers (E7).

    A value from shared memory serves for all of a thread's out channels, a weight for all of its rows. What does not
    fit into 255 registers the compiler puts into local memory.
    """

    @cuda.jit
    def blocked(x, weight, bias, out, sizes):
        tile = cuda.shared.array(0, float32)
        total = cuda.local.array((outs, pixels), float32)
        value = cuda.local.array(pixels, float32)
        tile_h, tile_w = uint32(cuda.blockDim.y * pixels), uint32(cuda.blockDim.x)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        sample, group, first, top, left = place(sizes, tile_h, tile_w, uint32(outs))
        rows = span(tile_h, sizes.stride_h, sizes.kernel_h, sizes.dilation_h)
        cols = span(tile_w, sizes.stride_w, sizes.kernel_w, sizes.dilation_w)
        from_row, from_col = top * sizes.stride_h - sizes.padding_h, left * sizes.stride_w - sizes.padding_w
        first, end = group * sizes.out_channels + first, (group + uint32(1)) * sizes.out_channels
        for o in range(outs):
            for p in range(pixels):
                total[o, p] = start(bias, first + uint32(o), sizes) if first + uint32(o) < end else float32(0)
        at = ty * uint32(pixels) * sizes.stride_h * cols + tx * sizes.stride_w
        for c in range(sizes.channels):
            copy_evenly(tile, x, sample, group * sizes.channels + c, from_row, from_col, rows, cols, sizes)
            copy_weights(tile, rows * cols, weight, first, c, uint32(outs), end)
            cuda.syncthreads()
            wt = rows * cols
            for kh in range(sizes.kernel_h):
                for kw in range(sizes.kernel_w):
                    here = at + kh * sizes.dilation_h * cols + kw * sizes.dilation_w
                    for p in range(pixels):
                        value[p] = tile[here + uint32(p) * sizes.stride_h * cols]
                    for o in range(outs):
                        w = tile[wt + uint32(o)]
                        for p in range(pixels):
                            total[o, p] += value[p] * w
                    wt += uint32(outs)
            cuda.syncthreads()
        for o in range(outs):
            for p in range(pixels):
                oh = top + ty * uint32(pixels) + uint32(p)
                if first + uint32(o) < end and oh < sizes.out_h and left + tx < sizes.out_w:
                    out[sample, first + uint32(o), oh, left + tx] = total[o, p]

    return blocked


#: The rungs, each with one idea more.
LADDER = {"naive": naive, "tiled": tiled, "even": even, "wide": wide, "prefetch": prefetch, "blocked": blocked}
