"""Depthwise convolution, at the speed of memory: each out channel sees one in channel."""

import functools

from gpukit.backend import cuda, uint32, uint64
from gpukit.conv.windows import covered, divided

__all__ = ["MAX_TAPS", "MAX_RUN", "THREADS", "depthwise"]

#: Values of the kernel, all of which a thread holds in registers, and neighbouring values of a thread, at most.
MAX_TAPS, MAX_RUN = 49, 4
THREADS = 256


@functools.cache
def depthwise(kernel, stride, dilation, run, total):
    """Make the kernel ``depthwise[blocks, THREADS](x, weight, bias, out, sizes)`` for C-contiguous flat arrays.

    Neighbouring threads compute neighbouring values of a row, and each thread those of ``run`` rows: a pixel that it
    loads serves for all of them. ``sizes`` are a `gpukit.conv.ladder.Sizes` for tiles of ``run`` rows, one column and
    one out channel: a thread for each. Sums are of the type ``total``.
    """
    (kernel_h, kernel_w), (stride_h, stride_w), (dilation_h, dilation_w) = kernel, stride, dilation
    rows, taps = covered(run, stride_h, kernel_h, dilation_h), kernel_h * kernel_w

    @cuda.jit
    def depthwise(x, weight, bias, out, sizes):
        weights, pixels = cuda.local.array(taps, total), cuda.local.array(rows, total)
        sums = cuda.local.array(run, total)
        plane, right = divided(uint32(cuda.grid(1)), sizes.tiles_w)
        plane, tile = divided(plane, sizes.tiles_h)
        down = uint32(tile * uint32(run))
        to = (uint64(plane) * sizes.out_h + down) * sizes.out_w + right
        if to >= uint64(out.size):
            return
        from_plane, o = divided(plane, sizes.channel_blocks)
        _, group = divided(from_plane, sizes.groups)
        channel = uint32(group * sizes.out_channels + o)
        initial = total(bias[channel]) if sizes.biased else total(0)
        for i in range(run):
            sums[i] = initial
        for i in range(taps):
            weights[i] = total(weight[channel * uint32(taps) + uint32(i)])
        base = uint32(from_plane * sizes.height * sizes.width)
        top = uint32(down * uint32(stride_h) - sizes.padding_h)
        for kw in range(kernel_w):
            col = uint32(right * uint32(stride_w) - sizes.padding_w + uint32(kw * dilation_w))
            for i in range(rows):
                row = uint32(top + uint32(i))
                inside = row < sizes.height and col < sizes.width
                value = total(x[uint32(base + row * sizes.width + col if inside else 0)])
                pixels[i] = value if inside else total(0)
            for kh in range(kernel_h):
                for i in range(run):
                    sums[i] += pixels[i * stride_h + kh * dilation_h] * weights[kh * kernel_w + kw]
        for i in range(run):
            if uint32(down + uint32(i)) < sizes.out_h:
                out[to + uint64(i) * sizes.out_w] = sums[i]

    return depthwise
