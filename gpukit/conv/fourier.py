"""Convolution with large kernels by way of their spectra: what costs KH KW products for a value there costs one here.

Images are cut into tiles of 32 x 32 pixels that overlap, and each tile, and the kernel of each pair of channels, is
transformed by a two-dimensional fast Fourier transform. The spectrum of a result is the sum, over the in channels, of
products of two spectra: for each frequency a matrix product, tiles x in channels by in channels x out channels. A
complex number is a 2 x 2 matrix in the operand with fewer numbers, and two neighbours in the other one: in a row of
images, in a column of weights.

A warp transforms two channels at a time, as real and imaginary parts of the same numbers. Each lane holds a column of
32 pixels in registers. The spectra of real columns are symmetric, so 17 rows of them determine the other ones; the
first and the last are real and take one place. Then each lane transforms a row.
"""

import functools
from math import cos, pi, prod, sin
from typing import Any, NamedTuple

import numpy as np

from gpukit import matmul
from gpukit._host.arrays import configure_quietly, dtype_of
from gpukit.backend import cuda, float32, float64, uint32, uint64
from gpukit.conv.windows import Divisor, Geometry, covered, divided, make_divisor
from gpukit.intrinsics import load2, store2
from warpstep.integers import ceil_div

__all__ = [
    "FREQUENCIES",
    "SIDE",
    "Tiles",
    "backward",
    "forward",
    "fourier_launches",
    "fourier_us",
    "lanes_of",
    "takes_fourier",
    "tile_grid",
]

#: Pixels of a tile along each axis; rows of its spectrum, two of which are in one place; frequencies.
SIDE, ROWS = 32, 16
#: Channels are padded to a multiple of so many, so that rows of spectra are whole sectors.
UNIT = 4
FREQUENCIES = (ROWS - 1) * SIDE + 2 * (ROWS + 1)
#: Elements of a row of shared memory.
PITCH = SIDE + 1


class Tiles(NamedTuple):
    """The tiles of images or weights, as kernels need them."""

    count: np.uint32  # of all samples; for weights, in channels with their padding
    across: Divisor
    down: Divisor
    step_h: np.uint32  # rows and columns from one tile to the next
    step_w: np.uint32
    gap_h: Divisor  # the dilation
    gap_w: Divisor
    sources: np.uint32  # of weights: in channels
    channels: np.uint32  # for weights, out channels
    padded: np.uint32
    chunks: Divisor  # blocks along the channels


def lanes_of(dtype: Any) -> int:
    """Channels of a block."""
    return 8 if np.dtype(dtype).itemsize == 4 else 4


@cuda.jit(device=True, forceinline=True)
def nothing(real, imag):
    pass


@cuda.jit(device=True, forceinline=True)
def turned_over(k):
    """The number with the five bits of k in reverse order: where `make_transform` leaves frequency k."""
    return (k & 1) << 4 | (k & 2) << 2 | (k & 4) | (k & 8) >> 2 | (k & 16) >> 4


@functools.cache
def make_transform(number, sign, half=SIDE // 2):
    """Make the device function that transforms 32 complex numbers in registers; the results are in bit-reversed order.

    It combines the numbers that are ``half`` apart, and goes on with half the distance.
    """
    if half == 0:
        return nothing
    rest, distance = make_transform(number, sign, half // 2), half
    cosines = tuple(number(cos(pi * j / half)) for j in range(half))
    sines = tuple(number(sign * sin(pi * j / half)) for j in range(half))

    @cuda.jit(device=True, forceinline=True)
    def transform(real, imag):
        for first in range(0, SIDE, 2 * distance):
            for j in range(distance):
                a, b = first + j, first + j + distance
                x, y = real[a] - real[b], imag[a] - imag[b]
                real[a], imag[a] = real[a] + real[b], imag[a] + imag[b]
                if j == 0:
                    real[b], imag[b] = x, y
                elif 2 * j == distance:
                    real[b], imag[b] = -sines[j] * y, sines[j] * x
                else:
                    real[b], imag[b] = x * cosines[j] - y * sines[j], x * sines[j] + y * cosines[j]
        rest(real, imag)

    return transform


@functools.cache
def forward(number, of_weights, twice):
    """Make the kernel that writes the spectra of tiles, or of weights, ``twice`` if its numbers are matrices.

    ``forward[tiles.count * chunks, threads](source, out, geometry, tiles)``, with a thread for each row of the spectra
    of `lanes_of` channels. ``out`` has for each frequency a matrix: of images, tiles x channels, and of weights, in
    channels x out channels, scaled.
    """
    lanes = lanes_of(np.float32 if number is float32 else np.float64)
    transform, size = make_transform(number, -1), ROWS * lanes * PITCH
    scale = number(1 / (4 * SIDE * SIDE)) if of_weights else number(1)
    half, two, zero = number(0.5), number(2), number(0)

    @cuda.jit(device=True, forceinline=True)
    def load(source, geometry, tiles, tile, inner, y, x):
        """A pixel of a tile, or a weight where a kernel with gaps has one."""
        if of_weights:
            (down, more), (right, further) = divided(y, tiles.gap_h), divided(x, tiles.gap_w)
            inside = (more == 0) & (further == 0) & (down < geometry.kernel_h) & (right < geometry.kernel_w.value)
            inside = inside & (inner < tiles.channels) & (tile < tiles.sources)
            at = uint64(uint32(inner * tiles.sources + tile)) * geometry.taps.value
            at += uint64(uint32(down * geometry.kernel_w.value + right))
        else:
            rest, right = divided(tile, tiles.across)
            sample, down = divided(rest, tiles.down)
            row = uint32(down * tiles.step_h - geometry.padding_h + y)
            col = uint32(right * tiles.step_w - geometry.padding_w + x)
            inside = (row < geometry.height) & (col < geometry.width.value) & (inner < tiles.channels)
            at = uint64(uint32(sample * tiles.channels + inner)) * geometry.pixels.value
            at += uint64(uint32(row * geometry.width.value + col))
        return source[at] if inside else zero

    @cuda.jit(device=True, forceinline=True)
    def store(out, tiles, f, tile, inner, real, imag):
        if inner < tiles.padded:
            real, imag, at = real * scale, imag * scale, (uint64(f) * tiles.count + tile) * tiles.padded
            if twice:
                at, below = uint64(4) * at + uint64(uint32(2) * inner), uint64(uint32(2) * tiles.padded)
                store2(out, at, real, -imag if of_weights else imag)
                store2(out, at + below, imag, real if of_weights else -real)
            elif of_weights:
                out[uint64(2) * at + inner], out[uint64(2) * at + tiles.padded + inner] = real, imag
            else:
                store2(out, uint64(2) * (at + inner), real, imag)

    @cuda.jit
    def forward(source, out, geometry, tiles):
        reals, imags = cuda.shared.array(size, number), cuda.shared.array(size, number)
        real, imag = cuda.local.array(SIDE, number), cuda.local.array(SIDE, number)
        tile, chunk = divided(uint32(cuda.blockIdx.x), tiles.chunks)
        tid = uint32(cuda.threadIdx.x)
        warp, lane, first = tid // uint32(32), tid % uint32(32), uint32(chunk * uint32(lanes))
        a = uint32(2) * warp
        b = a + uint32(1)
        for y in range(SIDE):
            real[y] = load(source, geometry, tiles, tile, uint32(first + a), uint32(y), lane)
            imag[y] = load(source, geometry, tiles, tile, uint32(first + b), uint32(y), lane)
        transform(real, imag)
        # Twice the spectra of both channels, and of each row 0 as real part and row 16 as imaginary part of a row.
        at_a, at_b = a * uint32(PITCH) + lane, b * uint32(PITCH) + lane
        middle = turned_over(16)
        reals[at_a], imags[at_a] = two * real[0], two * real[middle]
        reals[at_b], imags[at_b] = two * imag[0], two * imag[middle]
        for k in range(1, ROWS):
            i, j = turned_over(k), turned_over(SIDE - k)
            below = uint32(k * lanes * PITCH)
            reals[at_a + below], imags[at_a + below] = real[i] + real[j], imag[i] - imag[j]
            reals[at_b + below], imags[at_b + below] = imag[i] + imag[j], real[j] - real[i]
        cuda.syncthreads()
        row, inner = tid // uint32(lanes), uint32(first + tid % uint32(lanes))
        for x in range(SIDE):
            real[x], imag[x] = reals[tid * uint32(PITCH) + uint32(x)], imags[tid * uint32(PITCH) + uint32(x)]
        transform(real, imag)
        if row > 0:
            for k in range(SIDE):
                i = turned_over(k)
                store(out, tiles, uint32(row * uint32(SIDE) + uint32(k)), tile, inner, real[i], imag[i])
        else:
            for k in range(ROWS + 1):
                i, j = turned_over(k), turned_over((SIDE - k) % SIDE)
                store(out, tiles, uint32(k), tile, inner, half * (real[i] + real[j]), half * (imag[i] - imag[j]))
                f = uint32(ROWS + 1 + k if k < ROWS - 1 else ROWS * SIDE + k - ROWS + 1)
                store(out, tiles, f, tile, inner, half * (imag[i] + imag[j]), half * (real[j] - real[i]))

    return forward


@functools.cache
def backward(number, images_twice):
    """Make the kernel that transforms the spectra of results back: ``backward[tiles.count * chunks, threads](spectra,
    bias, out, geometry, tiles, biased)``. ``tiles`` has the out channels.

    With ``images_twice`` real and imaginary parts are rows, and otherwise neighbours in a row.
    """
    lanes = lanes_of(np.float32 if number is float32 else np.float64)
    transform, size = make_transform(number, 1), ROWS * lanes * PITCH
    zero = number(0)

    @cuda.jit(device=True, forceinline=True)
    def load(spectra, tiles, f, tile, inner):
        at = (uint64(f) * tiles.count + tile) * tiles.padded
        if images_twice:
            return spectra[uint64(2) * at + inner], spectra[uint64(2) * at + tiles.padded + inner]
        return load2(spectra, uint64(2) * (at + inner))

    @cuda.jit
    def backward(spectra, bias, out, geometry, tiles, biased):
        reals, imags = cuda.shared.array(size, number), cuda.shared.array(size, number)
        real, imag = cuda.local.array(SIDE, number), cuda.local.array(SIDE, number)
        tile, chunk = divided(uint32(cuda.blockIdx.x), tiles.chunks)
        tid, first = uint32(cuda.threadIdx.x), uint32(chunk * uint32(lanes))
        row, inner = tid // uint32(lanes), uint32(first + tid % uint32(lanes))
        inner = min(inner, uint32(tiles.padded - uint32(1)))
        if row > 0:
            for k in range(SIDE):
                real[k], imag[k] = load(spectra, tiles, uint32(row * uint32(SIDE) + uint32(k)), tile, inner)
        else:
            for k in range(ROWS + 1):
                p, q = load(spectra, tiles, uint32(k), tile, inner)
                f = uint32(ROWS + 1 + k if k < ROWS - 1 else ROWS * SIDE + k - ROWS + 1)
                r, s = load(spectra, tiles, f, tile, inner)
                j = (SIDE - k) % SIDE
                real[j], imag[j] = p + s, r - q
                real[k], imag[k] = p - s, q + r
        transform(real, imag)
        for x in range(SIDE):
            i, at = turned_over(x), tid * uint32(PITCH) + uint32(x)
            reals[at], imags[at] = real[i], imag[i]
        cuda.syncthreads()
        warp, lane = tid // uint32(32), tid % uint32(32)
        a = uint32(2) * warp
        b = a + uint32(1)
        at_a, at_b = a * uint32(PITCH) + lane, b * uint32(PITCH) + lane
        real[0], imag[0], real[ROWS], imag[ROWS] = reals[at_a], reals[at_b], imags[at_a], imags[at_b]
        for k in range(1, ROWS):
            below = uint32(k * lanes * PITCH)
            p, q, r, s = reals[at_a + below], imags[at_a + below], reals[at_b + below], imags[at_b + below]
            real[k], imag[k] = p - s, q + r
            real[SIDE - k], imag[SIDE - k] = p + s, r - q
        transform(real, imag)
        rest, right = divided(tile, tiles.across)
        sample, down = divided(rest, tiles.down)
        ow, beside = divided(uint32(right * tiles.step_w + lane), geometry.stride_w)
        inside = (beside == 0) & (lane < tiles.step_w) & (ow < geometry.out_w.value)
        a, b = uint32(first + a), uint32(first + b)
        extra_a = bias[a] if biased and a < tiles.channels else zero
        extra_b = bias[b] if biased and b < tiles.channels else zero
        to_a = uint64(uint32(sample * tiles.channels + a)) * geometry.positions.value + ow
        to_b = to_a + uint64(geometry.positions.value)
        for y in range(SIDE):
            i = turned_over(y)
            oh, below = divided(uint32(down * tiles.step_h + uint32(y)), geometry.stride_h)
            if inside and below == 0 and uint32(y) < tiles.step_h and oh < geometry.out_h:
                of_row = uint64(uint32(oh * geometry.out_w.value))
                if a < tiles.channels:
                    out[to_a + of_row] = real[i] + extra_a
                if b < tiles.channels:
                    out[to_b + of_row] = imag[i] + extra_b

    return backward


# -- launches --------------------------------------------------------------------------------------

#: Numbers of the spectra of images, of results and of weights, at most: larger batches are convolved in parts. Columns
#: and rows of a result that a tile must have at least.
MAX_NUMBERS, MIN_STEP = 1 << 27, 4
#: Microseconds of the launches of `forward` and `backward` together, and bytes that they move in one.
LAUNCHES_US, SPECTRA_BYTES = 10.0, 2.5e6


def tile_grid(geometry: Geometry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many tiles an image has, and how many rows and columns lie between them: (down, across) each."""
    g = geometry
    extents = covered(1, 1, int(g.kernel_h), int(g.dilation_h)), covered(1, 1, int(g.kernel_w.value), int(g.dilation_w))
    steps = tuple(SIDE + 1 - extent for extent in extents)
    strides = int(g.stride_h.value), int(g.stride_w.value)
    sizes = tuple((n - 1) * stride + 1 for n, stride in zip(g.out_size, strides, strict=True))
    return tuple(ceil_div(size, max(step, 1)) for size, step in zip(sizes, steps, strict=True)), steps


def takes_fourier(x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int) -> bool:
    """Whether a convolution can be made by way of spectra."""
    (outs, channels, *_), (grid, steps) = weight_shape, tile_grid(geometry)
    numbers = 4 * FREQUENCIES * max(outs * channels, prod(grid) * max(outs, channels))
    return groups == 1 and min(steps) >= MIN_STEP and numbers <= 2 * MAX_NUMBERS and prod(x_shape) < 2**32


def fourier_us(x_shape: tuple, weight_shape: tuple, geometry: Geometry, dtype: Any = np.float32) -> float:
    """Predict the microseconds of a convolution by way of spectra."""
    return min(_ways(x_shape, weight_shape, geometry, np.dtype(dtype)))


@functools.lru_cache(4096)
def _ways(x_shape, weight_shape, geometry, dtype):
    """Microseconds with the weights as matrices, and with the images."""
    outs, channels = (ceil_div(n, UNIT) * UNIT for n in weight_shape[:2])
    count = x_shape[0] * prod(tile_grid(geometry)[0])
    images = x_shape[0] * (x_shape[1] * int(geometry.pixels.value) + weight_shape[0] * geometry.counts[1])
    numbers, times = images + 2 * FREQUENCIES * (count * (channels + outs) + channels * outs), []
    for more, m, n in ((outs, count, 2 * outs), (count, 2 * count, outs)):
        moved = numbers + 2 * FREQUENCIES * channels * more
        product = matmul.predicted_time(m, n, 2 * channels, FREQUENCIES, dtype)
        times.append(LAUNCHES_US + product + moved * dtype.itemsize / SPECTRA_BYTES)
    return times


def fourier_launches(convolution: Any, work: Any) -> list:
    """Make [(launch, arguments), ...] of a convolution by way of spectra."""
    x, weight, bias, out, geometry, groups = convolution
    if not takes_fourier(x.shape, weight.shape, geometry, groups):
        extent = SIDE + 1 - MIN_STEP
        raise ValueError(f"algorithm is 'fourier'; it is for one group, and kernels of up to {extent} pixels a side")
    (samples, channels), outs, dtype = x.shape[:2], weight.shape[0], dtype_of(x)
    number, lanes = (float64 if dtype == np.float64 else float32), lanes_of(dtype)
    (down, across), steps = tile_grid(geometry)
    padded, padded_outs = (ceil_div(n, UNIT) * UNIT for n in (channels, outs))
    times = _ways(x.shape, weight.shape, geometry, dtype)
    images_twice = times[1] < times[0]
    per_image, per_weight = (4, 2) if images_twice else (2, 4)
    gaps = make_divisor(int(geometry.dilation_h)), make_divisor(int(geometry.dilation_w))

    def tiles_of(count, channels, padded):
        grid = np.uint32(count), make_divisor(across), make_divisor(down), *map(np.uint32, steps), *gaps
        numbers = map(np.uint32, (x.shape[1], channels, padded))
        return Tiles._make((*grid, *numbers, make_divisor(ceil_div(padded, lanes))))

    def launch(kernel, tiles):
        blocks = int(tiles.count) * int(tiles.chunks.value)
        return configure_quietly(kernel, blocks, ROWS * lanes, work.stream)

    at_once = MAX_NUMBERS // (FREQUENCIES * down * across * max(per_image * padded, 2 * padded_outs))
    at_once = max(1, min(samples, at_once))
    tiles = tiles_of(padded, outs, padded_outs)
    spectra = work.take("weights", FREQUENCIES * per_weight * padded * padded_outs, dtype)
    flat, launches = weight.reshape(weight.size), []
    launches.append((launch(forward(number, True, not images_twice), tiles), (flat, spectra, geometry, tiles)))
    spectra = spectra.reshape(FREQUENCIES, 2 * padded, spectra.size // (FREQUENCIES * 2 * padded))
    for first in range(0, samples, at_once):
        whole = at_once >= samples  # an empty x cannot be sliced
        part, result = (a if whole else a[first : first + at_once] for a in (x, out))
        count = part.shape[0] * down * across
        tiles, out_tiles = tiles_of(count, channels, padded), tiles_of(count, outs, padded_outs)
        images = work.take("images", FREQUENCIES * count * per_image * padded, dtype)
        results = work.take("results", FREQUENCIES * count * 2 * padded_outs, dtype)
        arguments = part.reshape(part.size), images, geometry, tiles
        launches.append((launch(forward(number, False, images_twice), tiles), arguments))
        images, products = (
            images.reshape(FREQUENCIES, images.size // (FREQUENCIES * 2 * padded), 2 * padded),
            results.reshape(FREQUENCIES, count * 2 * padded_outs // spectra.shape[2], spectra.shape[2]),
        )
        launches += matmul.steps("auto", images, spectra, products, stream=work.stream, work=work)
        further = flat if bias is None else bias, result.reshape(result.size), geometry, out_tiles
        arguments = results, *further, np.bool_(bias is not None)
        launches.append((launch(backward(number, images_twice), out_tiles), arguments))
    return launches
