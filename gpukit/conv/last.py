"""Copies of images and weights whose channels are last: those of one pixel, or of one tap, are a row.

Tensor cores take their operands along K, and K is channel after channel for each tap of the kernel. Where few windows
overlap, these are written as rows. The other kernels want the channels first.
"""

import functools

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.conv.windows import divided
from gpukit.intrinsics import byte_perm, store2, store4
from gpukit.matmul.align import part_of
from warpstep.integers import ceil_div

__all__ = [
    "FEW_CHANNELS",
    "FIRST_SIDE",
    "LAST_THREADS",
    "WINDOW_BYTES",
    "channels_first",
    "channels_last",
    "four_last",
    "split_last",
    "tiles_last",
    "windows_last",
]

#: Positions of a tile, which has 128 bytes of channels; words of its rows; threads of a block, and its warps.
SIDE, PITCH, LAST_THREADS, WARPS = 64, 33, 256, 8
WORDS = SIDE * PITCH
#: Taps whose weights a thread loads at a time.
TAPS = 8
#: Positions and channels of a tile of `channels_first`, and channels that are few.
FIRST_SIDE, FEW_CHANNELS = 32, 16
#: Positions of a block of `four_last`.
FOUR_POSITIONS = 2 * LAST_THREADS
#: Pairs of channels that a warp of `channels_last` loads, and channels that one of `split_last` does.
COUNT = SIDE // 2 // WARPS
#: Bytes of a row that a thread of `windows_last` writes: a sector.
WINDOW_BYTES = 32
#: Which bytes of two words make a word of their lower, and of their upper halves.
LOWER, UPPER = 0x5410, 0x7632
upper, remainder = part_of(1), part_of(2)


def tiles_last(channels: int, positions: int, itemsize: int) -> tuple[int, int]:
    """Count the tiles along the channels, numbers of so many bytes that are padded already, and along the positions."""
    if channels == 4:
        return 1, ceil_div(positions, FOUR_POSITIONS)
    return ceil_div(channels, 2 * SIDE // itemsize), ceil_div(positions, SIDE)


@functools.cache
def channels_last(wide):
    """Make the kernel that copies images (N, groups, C, H W) to (groups, N, H W, C), and weights (C, KH KW) to (KH KW,
    C), padded with zeros to ``padded`` channels. The first blocks take the weights, the others a tile of an image each.

    ``sizes`` are C, ``padded``, H W, tiles along them and along C, N, groups, blocks of weights, KH KW, and threads
    of these blocks that have weights. The copies are arrays of uint32, with two neighbours each, and so are the images
    with ``wide``; otherwise they, and the weights, are of uint16.
    """
    copy_weights = make_copy_weights(1)

    @cuda.jit
    def channels_last(x, weight, x_out, weight_out, sizes):
        tile = cuda.shared.array(WORDS, uint32)
        pairs = cuda.local.array((COUNT, 2), uint32)
        channels, padded, positions, across, down, samples, groups, blocks, taps, owners = sizes
        block, tid = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        if block < blocks:
            if block * uint32(LAST_THREADS) + tid < owners:
                copy_weights(weight, weight_out, block * uint32(LAST_THREADS) + tid, channels, padded, taps)
            return
        block = uint32(block - blocks)
        rest, position = block // across, uint32(block % across * uint32(SIDE))
        plane, channel = rest // down, uint32(rest % down * uint32(SIDE))
        left = uint32(positions - position)
        # A warp loads two channels of 64 positions at a time: all loads first, so that they overlap.
        warp, lane = tid // uint32(32), tid % uint32(32)
        below = uint32(channels - min(channels, uint32(channel + uint32(2) * warp)))
        start = uint64(uint32(plane * channels + channel + uint32(2) * warp)) * positions + position
        start = start // uint64(2) + lane if wide else start + lane
        pitch = uint32(positions // uint32(2)) if wide else positions
        first, second = uint32(2) * lane < left if wide else lane < left, lane + uint32(32) < left
        for i in range(COUNT):
            for j in range(2):
                own = 2 * WARPS * i + j
                at, inside = start + uint32(uint32(own) * pitch), uint32(own) < below
                word = uint32(x[at]) if inside and first else uint32(0)
                if not wide:
                    word = word | (uint32(x[at + uint64(32)]) if inside and second else uint32(0)) << uint32(16)
                pairs[i, j] = word
        to = lane * uint32(PITCH) + warp
        for i in range(COUNT):
            tile[to + uint32(i * WARPS)] = byte_perm(pairs[i, 0], pairs[i, 1], uint32(LOWER))
            tile[to + uint32(32 * PITCH + i * WARPS)] = byte_perm(pairs[i, 0], pairs[i, 1], uint32(UPPER))
        cuda.syncthreads()
        # 16 lanes store the channels of a position. Upper halves are of odd positions, or of those from 32 on.
        plane, c = uint32(plane % groups * samples + plane // groups), tid % uint32(16)
        row = tid // uint32(16)
        own = uint32(2) * row if wide else row
        at = ((uint64(plane) * positions + position + own) * padded + channel) // uint64(2) + uint32(2) * c
        left = uint32(left - min(left, own)) if channel + uint32(4) * c < padded else uint32(0)
        source, pitch = row * uint32(PITCH) + uint32(2) * c, padded // uint32(2)
        for i in range(4):
            further = i % 2 * 32 + i // 2 if wide else 16 * i
            if uint32(further) < left:
                a, b = tile[source + uint32(16 * i * PITCH)], tile[source + uint32(16 * i * PITCH + 1)]
                store2(x_out, at + uint32(uint32(further) * pitch), a, b)

    return channels_last


@functools.cache
def four_last(wide, last):
    """Make the kernel that does what `channels_last` does for up to four channels: a thread writes two positions. With
    ``last`` the channels of images, of one group, are last already. Its blocks along a plane are ``sizes.across``.
    """
    copy_weights = make_copy_weights(1)

    @cuda.jit
    def four_last(x, weight, x_out, weight_out, sizes):
        pairs = cuda.local.array(4, uint32)
        channels, padded, positions, across, _, samples, groups, blocks, taps, owners = sizes
        block, tid = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        if block < blocks:
            if block * uint32(LAST_THREADS) + tid < owners:
                copy_weights(weight, weight_out, block * uint32(LAST_THREADS) + tid, channels, padded, taps)
            return
        block = uint32(block - blocks)
        plane, position = block // across, uint32(block % across * uint32(FOUR_POSITIONS) + uint32(2) * tid)
        if position >= positions:
            return
        step, beside = (uint32(1), channels) if last else (positions, uint32(1))
        start = uint64(uint32(plane * channels)) * positions + uint32(position * beside)
        for c in range(4):
            at, inside = start + uint32(uint32(c) * step), uint32(c) < channels
            if wide:
                pairs[c] = x[at // uint64(2)] if inside else uint32(0)
            else:
                more = inside and position + uint32(1) < positions
                high = uint32(x[at + uint64(beside)]) if more else uint32(0)
                pairs[c] = (uint32(x[at]) if inside else uint32(0)) | high << uint32(16)
        plane = uint32(plane % groups * samples + plane // groups)
        to = (uint64(plane) * positions + position) * uint64(2)
        low, high = uint32(LOWER), uint32(UPPER)
        w, x_ = byte_perm(pairs[0], pairs[1], low), byte_perm(pairs[2], pairs[3], low)
        y, z = byte_perm(pairs[0], pairs[1], high), byte_perm(pairs[2], pairs[3], high)
        if wide:
            store4(x_out, to, w, x_, y, z)
        else:
            store2(x_out, to, w, x_)
            if position + uint32(1) < positions:
                store2(x_out, to + uint64(2), y, z)

    return four_last


@cuda.jit
def split_last(x, weight, x_out, weight_out, sizes):
    """Do what `channels_last` does for float32, each number split into two of TF32: first the upper parts of all
    channels, then the remainders. All arrays are of float32.
    """
    tile = cuda.shared.array(WORDS, float32)
    loaded = cuda.local.array((COUNT, 2), float32)
    channels, padded, positions, across, down, samples, groups, blocks, taps, owners = sizes
    block, tid = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
    if block < blocks:
        if block * uint32(LAST_THREADS) + tid < owners:
            copy_split_weights(weight, weight_out, block * uint32(LAST_THREADS) + tid, channels, padded, taps)
        return
    block = uint32(block - blocks)
    rest, position = block // across, uint32(block % across * uint32(SIDE))
    plane, channel = rest // down, uint32(rest % down * uint32(SIDE // 2))
    left = uint32(positions - position)
    warp, lane = tid // uint32(32), tid % uint32(32)
    below = uint32(channels - min(channels, uint32(channel + warp)))
    start = uint64(uint32(plane * channels + channel + warp)) * positions + position + lane
    for i in range(COUNT):
        for j in range(2):
            inside = uint32(WARPS * i) < below and lane + uint32(32 * j) < left
            at = start + uint32(uint32(WARPS * i) * positions + uint32(32 * j))
            loaded[i, j] = x[at] if inside else float32(0)
    for i in range(COUNT):
        for j in range(2):
            tile[lane * uint32(PITCH) + warp + uint32(32 * j * PITCH + WARPS * i)] = loaded[i, j]
    cuda.syncthreads()
    plane, c = uint32(plane % groups * samples + plane // groups), tid % uint32(8) * uint32(4)
    row, pitch = tid // uint32(8), uint32(2) * padded
    at = (uint64(plane) * positions + position + row) * pitch + channel + c
    for i in range(2):
        if row + uint32(32 * i) < left and channel + c < padded:
            own, to = row * uint32(PITCH) + c + uint32(32 * i * PITCH), at + uint32(uint32(32 * i) * pitch)
            a, b, d, e = tile[own], tile[own + uint32(1)], tile[own + uint32(2)], tile[own + uint32(3)]
            store4(x_out, to, upper(a), upper(b), upper(d), upper(e))
            store4(x_out, to + padded, remainder(a), remainder(b), remainder(d), remainder(e))


@functools.cache
def make_copy_weights(pieces):
    """Make the device function by which thread ``i`` copies all taps of two channels of an out channel; of one, in two
    pieces.
    """
    number, own = (uint32, 2) if pieces == 1 else (float32, 1)
    zero, size = number(0), TAPS * own

    @cuda.jit(device=True, forceinline=True)
    def copy_weights(weight, out, i, channels, padded, taps):
        values, lane = cuda.local.array(size, number), uint32(padded // uint32(own))
        o, c = i // lane, uint32(i % lane * uint32(own))
        start, to = uint64(uint32(o * channels + c)) * taps, uint64(uint32(o * taps)) * uint32(pieces) * padded + c
        for first in range(0, taps, TAPS):
            for j in range(TAPS):  # all loads first, so that they overlap
                tap = uint32(uint32(first) + uint32(j))
                for k in range(own):
                    inside = tap < taps and c + uint32(k) < channels
                    values[own * j + k] = weight[start + uint32(tap + uint32(k) * taps)] if inside else zero
            for j in range(TAPS):
                tap = uint32(uint32(first) + uint32(j))
                at = to + uint64(tap) * uint32(uint32(pieces) * padded)
                if tap < taps:
                    if pieces == 1:
                        out[at // uint64(2)] = values[2 * j] | values[2 * j + 1] << uint32(16)
                    else:
                        out[at], out[at + padded] = upper(values[j]), remainder(values[j])

    return copy_weights


copy_split_weights = make_copy_weights(2)


@functools.cache
def channels_first(number, few):
    """Make the kernel that copies images (N, H, W, C) to (N, C, OH, OW), for elements of a Numba type: pixels that are
    some rows and columns apart, or all of them.

    ``sizes`` are C, OH OW, and all positions of N images; ``pixels`` are those of an image, and of those from a row,
    and from a column, that is copied to the next; ``divisors`` are those of OW, and of OH OW, in tiles unless there are
    ``few`` channels. Then each thread has a position, and its loads find the neighbours' in the L1 cache; otherwise
    each block has a tile, of ``FIRST_SIDE`` positions along x, and channels along y.
    """
    pitch = FIRST_SIDE + 1

    @cuda.jit(device=True, forceinline=True)
    def find_pixel(sample, position, pixels, out_w):
        down, right = divided(position, out_w)
        return uint64(sample) * pixels[0] + uint32(down * pixels[1] + right * pixels[2])

    @cuda.jit
    def positions_first(x, out, sizes, pixels, divisors):
        channels, positions, count = sizes
        i = uint32(cuda.blockIdx.x) * uint32(LAST_THREADS) + uint32(cuda.threadIdx.x)
        if i < count:
            sample, position = divided(i, divisors[1])
            start = find_pixel(sample, position, pixels, divisors[0]) * channels
            to = uint64(sample) * channels * positions + position
            for c in range(channels):
                out[to + uint64(c) * positions] = x[start + uint64(c)]

    @cuda.jit
    def tiles_first(x, out, sizes, pixels, divisors):
        tile = cuda.shared.array((FIRST_SIDE, pitch), number)
        channels, positions, _ = sizes
        lane, warp = uint32(cuda.threadIdx.x) % uint32(32), uint32(cuda.threadIdx.x) // uint32(32)
        sample, across = divided(uint32(cuda.blockIdx.x), divisors[1])
        position, channel = uint32(across * uint32(FIRST_SIDE)), uint32(cuda.blockIdx.y) * uint32(FIRST_SIDE)
        for i in range(0, FIRST_SIDE, WARPS):
            own, c = uint32(position + warp + uint32(i)), uint32(channel + lane)
            if own < positions and c < channels:
                tile[warp + uint32(i), lane] = x[find_pixel(sample, own, pixels, divisors[0]) * channels + c]
        cuda.syncthreads()
        for i in range(0, FIRST_SIDE, WARPS):
            own, c = uint32(position + lane), uint32(channel + warp + uint32(i))
            if own < positions and c < channels:
                out[(uint64(sample) * channels + c) * positions + own] = tile[lane, warp + uint32(i)]

    return positions_first if few else tiles_first


@functools.cache
def windows_last(pieces):
    """Make the kernel that writes windows as rows of K = C KH KW, padded with zeros, and the weights in the same way.

    A thread writes 32 bytes of a row; float32, in two ``pieces``, is split as by `split_last`. Threads follow one
    another along a row. The first blocks take the weights. ``sizes`` are K, padded K, windows, blocks of weights, and
    threads of these blocks that have weights; ``extent`` is the Divisor of a row in threads. Arrays of float16 are
    viewed as uint16 where they are read, and as uint32 where they are written.
    """
    number, own = (uint32, WINDOW_BYTES // 2) if pieces == 1 else (float32, WINDOW_BYTES // 4)
    copy_weights, zero = make_copy_weights(pieces), number(0)

    @cuda.jit
    def windows_last(x, weight, x_out, weight_out, geometry, sizes, extent):
        values = cuda.local.array(own, number)
        terms, padded, rows, blocks, owners = sizes
        block, tid = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        if block < blocks:
            if block * uint32(LAST_THREADS) + tid < owners:
                copy_weights(weight, weight_out, block * uint32(LAST_THREADS) + tid, terms, padded, uint32(1))
            return
        row, chunk = divided(uint32((block - blocks) * uint32(LAST_THREADS) + tid), extent)
        if row >= rows or chunk * uint32(own) >= padded:
            return
        sample, position = divided(row, geometry.positions)
        above, right = divided(position, geometry.out_w)
        top = uint32(above * geometry.stride_h.value - geometry.padding_h)
        left = uint32(right * geometry.stride_w.value - geometry.padding_w)
        channels = uint32(terms // geometry.taps.value)
        start = uint64(uint32(sample * channels)) * geometry.pixels.value
        for i in range(own):
            k = uint32(chunk * uint32(own) + uint32(i))
            channel, tap = divided(k, geometry.taps)
            kh, kw = divided(tap, geometry.kernel_w)
            own_row, col = uint32(top + kh * geometry.dilation_h), uint32(left + kw * geometry.dilation_w)
            inside = k < terms and own_row < geometry.height and col < geometry.width.value
            at = uint32(channel * geometry.pixels.value + own_row * geometry.width.value + col)
            values[i] = x[start + at] if inside else zero
        to = uint64(row) * padded * uint32(pieces) + uint32(chunk * uint32(own))
        if pieces == 1:
            for i in range(0, own, 8):
                a, b = values[i] | values[i + 1] << uint32(16), values[i + 2] | values[i + 3] << uint32(16)
                c, d = values[i + 4] | values[i + 5] << uint32(16), values[i + 6] | values[i + 7] << uint32(16)
                store4(x_out, (to + uint64(i)) // uint64(2), a, b, c, d)
        else:
            for i in range(0, own, 4):
                a, b, c, d = values[i], values[i + 1], values[i + 2], values[i + 3]
                store4(x_out, to + uint64(i), upper(a), upper(b), upper(c), upper(d))
                store4(x_out, to + padded + uint64(i), remainder(a), remainder(b), remainder(c), remainder(d))

    return windows_last
