"""Kernels of im2col and col2im, and their launches (B3, B4).

1. ``im2col_naive``: a thread per window.
2. ``element``: a thread per value of the columns, so that warps write whole sectors.
3. ``aligned``: a thread per window again, shifted so that warps write whole sectors.
4. ``quads``: a thread per four windows, which stores 16 bytes at a time.
5. ``rows``: a block per rows of windows, for wide images and kernels.
6. ``gather``: col2im without atomics, a thread per pixel.
7. ``strided``: the same with a thread per ``stride`` pixels.

The channels of all samples are one sequence of N C planes of H x W pixels, each with KH KW rows of the columns. The
divisions that turn a thread's number into coordinates serve for all planes that it handles.

Coordinates are unsigned. One left of or above the image wraps to 2^31 or more, so one comparison with the image's size
finds both ends. The sum of two uint32 has 64 bits in Numba, so every step is cast back.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import address_of, configure_quietly, dtype_of
from gpukit.backend import cuda, types, uint32, uint64
from gpukit.conv.windows import MAX_THREADS, Geometry, check_size, covered, divided, make_divisor
from gpukit.intrinsics import store2, store4
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ, WARP
from warpstep.values import check_choice, describe

__all__ = [
    "FORMER_NAMES",
    "VARIANTS",
    "add_bias",
    "aligned",
    "choose",
    "configure_col2im",
    "configure_im2col",
    "element",
    "first_tap",
    "gather",
    "im2col_naive",
    "is_wide",
    "launch_bias",
    "launch_im2col",
    "launch_spread",
    "launches_of_col2im",
    "quads",
    "rows",
    "spread_bias",
    "strided",
]

#: Threads of a block.
BLOCK = 256
#: A thread that handles several planes takes every 8th. 8 values are one or two whole sectors of 32 bytes, so all its
#: planes begin at the same place in a sector, whatever KH KW OH OW is.
GROUP = 8
#: Planes that a thread handles at a time: the first number that leaves it at most ENOUGH_LOADS concurrent loads.
PLANES_AT_ONCE, ENOUGH_LOADS = (4, 2, 1), 4
#: Concurrent loads of a thread of col2im along a row of the kernel, and over all rows; neighbouring pixels of a thread.
MAX_LOADS, MAX_LOADS_IN_ALL, MAX_STRIDE = 16, 32, 4
#: The widest kernel of "aligned" and "rows", which keep a value per column in registers.
MAX_KERNEL_W = 16
#: Rows of windows of a block of "rows", and its widest block; OW and KW from which on "rows" is the fastest.
ROWS_PER_BLOCK, MAX_ROWS_BLOCK, MIN_ROWS_OUT_W, MIN_ROWS_KERNEL_W = 4, 256, 96, 5


# -- im2col (B3) -----------------------------------------------------------------------------------


@cuda.jit
def im2col_naive(x, columns, geometry, planes, group, rows):
    """One thread per (channel, out row, out column) writes the KH KW values of its window (B3).

    Neighbouring threads write neighbouring columns of a row. Unless OH OW is a multiple of 8, rows begin in the middle
    of a sector of 32 bytes, so a warp touches one sector more.
    """
    height, width, one = geometry.height, geometry.width.value, uint32(1)
    first, position = divided(uint32(cuda.grid(1)), geometry.positions)
    oh, ow = divided(position, geometry.out_w)
    top = uint32(oh * geometry.stride_h.value - geometry.padding_h)
    left = uint32(ow * geometry.stride_w.value - geometry.padding_w)
    y = uint32(cuda.blockIdx.y)
    while first < group and y < rows:
        plane = uint64(first + group * y)
        if plane < planes:
            source = plane * geometry.pixels.value
            target = plane * geometry.taps.value * geometry.positions.value + position
            kh = uint32(0)
            while kh < geometry.kernel_h:
                row, kw = uint32(top + kh * geometry.dilation_h), uint32(0)
                while kw < geometry.kernel_w.value:
                    col = uint32(left + kw * geometry.dilation_w)
                    inside = row < height and col < width
                    columns[target] = x[source + row * width + col] if inside else x.dtype.type(0)
                    target, kw = target + geometry.positions.value, uint32(kw + one)
                kh = uint32(kh + one)
        y = uint32(y + cuda.gridDim.y)


@functools.cache
def aligned(count, across, even, index):
    """Make a kernel like im2col_naive in which warps write whole sectors, for kernels of ``across`` columns.

    For each value of the window, thread i writes position i minus the offset at which that row begins in its sector.
    With ``even``, OH OW is a multiple of 8 and all offsets are 0. The loads of a row of the window, from ``count``
    planes, overlap. ``index`` is the type of addresses: 32 bits, where they are enough, take half the instructions.
    """

    @cuda.jit
    def aligned(x, columns, geometry, planes, group, rows):
        value = cuda.local.array((across, count), x.dtype)
        away_x, away_columns = cuda.local.array(count, index), cuda.local.array(count, index)
        i, one = uint32(cuda.grid(1)), uint32(1)
        last_oh, last_ow = divided(i, geometry.out_w)
        each = index(uint64(geometry.taps.value) * uint64(geometry.positions.value))
        y = uint32(cuda.blockIdx.y)
        while y < rows:
            first = uint32(cuda.blockIdx.z + group * uint32(y * uint32(count)))
            for j in range(count):
                there = first + uint32(j) * group < planes
                away_x[j] = index(index(uint32(j) * group) * geometry.pixels.value) if there else index(0)
                away_columns[j] = index(index(uint32(j) * group) * each) if there else index(0)
            source, target, kh = index(index(first) * geometry.pixels.value), index(index(first) * each), uint32(0)
            while kh < geometry.kernel_h and first < planes:
                for c in range(across):
                    shift = uint32(0)
                    if not even:
                        shift = uint32(uint32(target + index(c) * geometry.positions.value) % uint32(GROUP))
                    oh, ow, position = last_oh, uint32(last_ow - shift), uint32(i - shift)
                    if not even and last_ow < shift:
                        oh, ow = uint32(oh - one), uint32(ow + geometry.out_w.value)
                    row = uint32(oh * geometry.stride_h.value + kh * geometry.dilation_h - geometry.padding_h)
                    col = uint32(ow * geometry.stride_w.value + uint32(c) * geometry.dilation_w - geometry.padding_w)
                    inside = (
                        row < geometry.height and col < geometry.width.value and position < geometry.positions.value
                    )
                    pixel = index(source + uint32(row * geometry.width.value + col))
                    for j in range(count):
                        value[c, j] = x[index(pixel + away_x[j])] if inside else x.dtype.type(0)
                for c in range(across):
                    position = i if even else uint32(i - uint32(target) % uint32(GROUP))
                    if position < geometry.positions.value:
                        for j in range(count):
                            if j == 0 or away_columns[j] > index(0):
                                columns[index(target + position + away_columns[j])] = value[c, j]
                    target = index(target + geometry.positions.value)
                kh = uint32(kh + one)
            y = uint32(y + cuda.gridDim.y)

    return aligned


@functools.cache
def quads(across, stride, dilation):
    """Make a kernel with one thread per four neighbouring windows of a row, which stores 16 bytes at a time.

    The pixels of a row that the four cover are loaded to registers once. Stride, dilation and columns of the kernel are
    constants, so all indices of registers are constants.
    """
    span = covered(4, stride, across, dilation)

    @cuda.jit
    def quads(x, columns, geometry, per_row, per_plane, planes):
        value = cuda.local.array(span, x.dtype)
        plane, place = divided(uint32(cuda.grid(1)), per_plane)
        oh, fourth = divided(place, per_row)
        if plane < planes:
            ow = uint32(fourth * uint32(4))
            row = uint32(oh * geometry.stride_h.value - geometry.padding_h)
            left = uint32(ow * uint32(stride) - geometry.padding_w)
            source = uint64(plane) * geometry.pixels.value
            target = uint64(plane) * geometry.taps.value * geometry.positions.value + uint32(
                oh * geometry.out_w.value + ow
            )
            kh = uint32(0)
            while kh < geometry.kernel_h:
                for c in range(span):
                    col = uint32(left + uint32(c))
                    inside = row < geometry.height and col < geometry.width.value
                    value[c] = x[source + uint32(row * geometry.width.value + col)] if inside else x.dtype.type(0)
                for c in range(0, across * dilation, dilation):
                    a, b = value[c], value[c + stride]
                    store4(columns, uint64(target), a, b, value[c + 2 * stride], value[c + 3 * stride])
                    target += geometry.positions.value
                row, kh = uint32(row + geometry.dilation_h), uint32(kh + uint32(1))

    return quads


@functools.cache
def rows(across, lines, index):
    """Make a kernel like aligned for wide images: a block writes ``lines`` rows of windows, for one row of the kernel.

    It writes long runs in few places, all of its loads overlap, and its divisions are the same for the whole block.
    """

    @cuda.jit
    def rows(x, columns, geometry, chunks, per_plane, kernel_h):
        value = cuda.local.array((lines, across), x.dtype)
        number, chunk = divided(uint32(cuda.blockIdx.x), chunks)
        number, oh = divided(number, per_plane)
        plane, kh = divided(number, kernel_h)
        oh = uint32(oh * uint32(lines))
        i = uint32(chunk * cuda.blockDim.x + cuda.threadIdx.x)
        top = uint32(oh * geometry.stride_h.value + kh * geometry.dilation_h - geometry.padding_h)
        source = index(plane) * geometry.pixels.value
        first = uint32(uint32(plane * kernel_h.value + kh) * uint32(across))
        target = index(first) * geometry.positions.value + oh * geometry.out_w.value
        for line in range(lines):
            row = uint32(top + uint32(line) * geometry.stride_h.value)
            for c in range(across):
                start = index(target + index(c) * geometry.positions.value + uint32(line) * geometry.out_w.value)
                ow = uint32(i - uint32(start) % uint32(GROUP))
                col = uint32(ow * geometry.stride_w.value + uint32(c) * geometry.dilation_w - geometry.padding_w)
                inside = ow < geometry.out_w.value and row < geometry.height and col < geometry.width.value
                pixel = index(source + uint32(row * geometry.width.value + col))
                value[line, c] = x[pixel] if inside else x.dtype.type(0)
        for line in range(lines):
            for c in range(across):
                start = index(target + index(c) * geometry.positions.value + uint32(line) * geometry.out_w.value)
                ow = uint32(i - uint32(start) % uint32(GROUP))
                if ow < geometry.out_w.value and uint32(oh + uint32(line)) < geometry.out_h:
                    columns[index(start + ow)] = value[line, c]

    return rows


@functools.cache
def element(count):
    """Make a kernel with one thread per value of the columns of ``group`` planes: KH KW times as many as windows.

    Threads follow the columns from one row to the next without a gap, so a warp writes whole sectors whatever OH OW is.
    But the other threads that read the same pixel, for other places of the kernel, are in other blocks.
    """

    @cuda.jit
    def element(x, columns, geometry, planes, group, rows):
        value, away = cuda.local.array(count, x.dtype), cuda.local.array(count, types.uint64)
        number, position = divided(uint32(cuda.grid(1)), geometry.positions)
        lane, tap = divided(number, geometry.taps)
        kh, kw = divided(tap, geometry.kernel_w)
        oh, ow = divided(position, geometry.out_w)
        row = uint32(oh * geometry.stride_h.value + kh * geometry.dilation_h - geometry.padding_h)
        col = uint32(ow * geometry.stride_w.value + kw * geometry.dilation_w - geometry.padding_w)
        inside = row < geometry.height and col < geometry.width.value
        each = uint64(geometry.taps.value * uint64(geometry.positions.value))
        y = uint32(cuda.blockIdx.y)
        while lane < group and y < rows:
            first = uint32(lane + group * uint32(y * uint32(count)))
            if first < planes:
                pixel = uint64(first) * geometry.pixels.value + uint32(row * geometry.width.value + col)
                target = first * each + uint64(tap) * geometry.positions.value + position
                for j in range(count):
                    away[j] = uint64(j) * group if first + uint32(j) * group < planes else uint64(0)
                    value[j] = x[pixel + away[j] * geometry.pixels.value] if inside else x.dtype.type(0)
                for j in range(count):
                    if j == 0 or away[j] > uint64(0):
                        columns[target + away[j] * each] = value[j]
            y = uint32(y + cuda.gridDim.y)

    return element


# -- col2im (B4) -----------------------------------------------------------------------------------


@cuda.jit(device=True)
def first_tap(place, stride, dilation, size):
    """Find the first value of the kernel that covers a padded row, and the number of its window.

    Between the window's corner and the row lies a whole number of strides. If there is no such value, returns ``size``.
    """
    tap, way = uint32(0), uint32(0)
    window, beside = divided(place, stride)
    while beside != uint32(0) and tap < size:
        tap, way = uint32(tap + uint32(1)), uint32(way + dilation)
        if way > place:
            tap = size
        else:
            window, beside = divided(uint32(place - way), stride)
    return tap, window


@functools.cache
def gather(count, down, across, pieces, index):
    """Make a kernel with one thread per pixel, of ``count`` planes, which sums the pixel's values in all windows that
    cover it, without atomics (B4).

    From the first value it steps: the next value of the kernel that covers the pixel is ``next`` further, in the window
    ``back`` before. There are ``down`` steps along the rows of the kernel, and along a row ``pieces`` times ``across``,
    whose loads overlap.
    """

    @cuda.jit
    def gather(columns, image, geometry, planes, add):
        total, away = cuda.local.array(count, columns.dtype), cuda.local.array(count, index)
        value = cuda.local.array((across, count), columns.dtype)
        place, first = uint32(cuda.grid(1)), uint32(cuda.blockIdx.y * uint32(count))
        row, col = divided(place, geometry.width)
        kh, oh = first_tap(uint32(row + geometry.padding_h), geometry.stride_h, geometry.dilation_h, geometry.kernel_h)
        first_kw, first_ow = first_tap(
            uint32(col + geometry.padding_w), geometry.stride_w, geometry.dilation_w, geometry.kernel_w.value
        )
        each = index(uint64(geometry.taps.value) * uint64(geometry.positions.value))
        along = index(uint64(geometry.next_w) * geometry.positions.value - geometry.back_w)
        below = index(
            uint64(geometry.next_h) * geometry.kernel_w.value * geometry.positions.value
            - uint64(geometry.back_h) * geometry.out_w.value
        )
        if place < geometry.pixels.value:
            pixel = index(index(first) * geometry.pixels.value + place)
            for j in range(count):
                there = first + uint32(j) < planes
                away[j] = index(each * index(j)) if there else index(0)
                total[j] = (
                    image[index(pixel + index(j) * geometry.pixels.value)] if add and there else image.dtype.type(0)
                )
            source = index(first * each + (index(kh) * geometry.kernel_w.value + first_kw) * geometry.positions.value)
            source = index(source + index(oh) * geometry.out_w.value + first_ow)
            for _ in range(down):
                kw, ow, here = first_kw, first_ow, source
                in_rows = kh < geometry.kernel_h and oh < geometry.out_h
                for _ in range(pieces):
                    for c in range(across):
                        inside = in_rows and kw < geometry.kernel_w.value and ow < geometry.out_w.value
                        for j in range(count):
                            value[c, j] = columns[index(here + away[j])] if inside else columns.dtype.type(0)
                        kw, ow, here = uint32(kw + geometry.next_w), uint32(ow - geometry.back_w), index(here + along)
                    for c in range(across):
                        for j in range(count):
                            total[j] += value[c, j]
                kh, oh, source = uint32(kh + geometry.next_h), uint32(oh - geometry.back_h), index(source + below)
            for j in range(count):
                if first + uint32(j) < planes:
                    image[index(pixel + index(j) * geometry.pixels.value)] = total[j]

    return gather


@functools.cache
def strided(count, down, lines, across, stride, dilation, padding, in_twos, index):
    """Make a kernel like gather with one thread per ``stride`` neighbouring pixels, where stride or dilation is 1.

    The compiler knows which value of the kernel covers which pixel, and in which window. Neighbouring threads read
    neighbouring values; those of gather, with a stride of 2, read from two rows in turns.
    """
    beside = padding % stride

    @cuda.jit
    def strided(columns, image, geometry, planes, add, per_row):
        total = cuda.local.array((count, stride), columns.dtype)
        value = cuda.local.array((lines, across, count), columns.dtype)
        row, place = divided(uint32(cuda.grid(1)), per_row)
        first = uint32(cuda.blockIdx.y * uint32(count))
        kh, oh = first_tap(uint32(row + geometry.padding_h), geometry.stride_h, geometry.dilation_h, geometry.kernel_h)
        each = index(uint64(geometry.taps.value) * uint64(geometry.positions.value))
        if row < geometry.height:
            window, left = uint32(place + uint32(padding // stride)), uint32(place * uint32(stride))
            pixel = index(index(first) * geometry.pixels.value + row * geometry.width.value + left)
            for j in range(count):
                for p in range(stride):
                    there = add and first + uint32(j) < planes and left + uint32(p) < geometry.width.value
                    at_pixel = index(pixel + index(j) * geometry.pixels.value + index(p))
                    total[j, p] = image[at_pixel] if there else image.dtype.type(0)
            for _ in range(down // lines):
                for line in range(lines):
                    in_rows = kh < geometry.kernel_h and oh < geometry.out_h
                    start = index(index(first) * each + index(kh * uint32(across)) * geometry.positions.value)
                    start = index(start + index(oh) * geometry.out_w.value)
                    for kw in range(across):
                        p = (kw - beside) % stride  # the pixel that this value covers
                        ow = uint32(window - uint32(kw * dilation if stride == 1 else (kw - p - beside) // stride))
                        here = index(start + index(kw) * geometry.positions.value + ow)
                        for j in range(count):
                            there = in_rows and ow < geometry.out_w.value and first + uint32(j) < planes
                            value[line, kw, j] = (
                                columns[index(here + index(j) * each)] if there else columns.dtype.type(0)
                            )
                    kh, oh = uint32(kh + geometry.next_h), uint32(oh - geometry.back_h)
                for line in range(lines):
                    for kw in range(across):
                        for j in range(count):
                            total[j, (kw - beside) % stride] += value[line, kw, j]
            for j in range(count):
                target = index(pixel + index(j) * geometry.pixels.value)
                if in_twos and first + uint32(j) < planes:
                    store2(image, uint64(target), total[j, 0], total[j, 1])
                for p in range(0 if in_twos else stride):
                    if first + uint32(j) < planes and left + uint32(p) < geometry.width.value:
                        image[index(target + index(p))] = total[j, p]

    return strided


@cuda.jit
def add_bias(out, bias):
    """out[p, i] += bias[p % O] for the planes p of all samples; each row of blocks takes a plane, then further ones."""
    i, plane = uint32(cuda.grid(1)), uint32(cuda.blockIdx.y)
    while i < out.shape[1] and plane < out.shape[0]:
        out[plane, i] += bias[plane % uint32(bias.shape[0])]
        plane = uint32(plane + cuda.gridDim.y)


@cuda.jit
def spread_bias(out, bias, positions, channels):
    """out[i] = bias[i // OH OW % O] for a flat array, with the Divisors of OH OW and O."""
    i = uint32(cuda.grid(1))
    if i < out.size:
        out[i] = bias[divided(divided(i, positions)[0], channels)[1]]


# -- which kernel for im2col -----------------------------------------------------------------------

#: The kernels of im2col: what ``im2col`` takes as ``variant``, besides "auto".
VARIANTS = {"im2col_naive": im2col_naive, "element": element, "aligned": aligned, "quads": quads, "rows": rows}
FORMER_NAMES = {"window": "im2col_naive"}


class Fit(NamedTuple):
    """Whether a kernel of im2col fits some windows, and what its launch takes."""

    fits: bool
    needs: str  # why it does not fit
    threads: dict[str, int]  # threads of the launch, under the formula that counts them
    preferred: bool = True  # taken by "auto" where it fits


def _fits(planes: int, geometry: Geometry, wide: bool) -> dict[str, Fit]:
    """The decision table of `choose`: each kernel of im2col, in the order in which "auto" takes them."""
    (taps, positions), width, across = geometry.counts, int(geometry.out_w.value), int(geometry.kernel_w.value)
    group = min(GROUP, planes)
    narrow, found = across <= MAX_KERNEL_W, f"at most {MAX_KERNEL_W} columns of the kernel, and there are"
    # Where more pixels lie between the windows than in them, each thread loads its own.
    span = covered(4, int(geometry.stride_w.value), across, int(geometry.dilation_w))
    neighbours = width % 4 == 0 and span <= min(4 * across, 4 * MAX_KERNEL_W)
    return {
        "rows": Fit(
            narrow,
            f"{found} {across}",
            {"N C KH OH, in blocks": _blocks_of_rows(planes, geometry)},
            width >= MIN_ROWS_OUT_W and across >= MIN_ROWS_KERNEL_W,
        ),
        "quads": Fit(
            wide and neighbours,
            f"a multiple of 4 windows in a row, {width}, whose pixels are neighbours, and float32 at 16 bytes",
            {"N C OH OW / 4": planes * positions // 4},
        ),
        "aligned": Fit(
            narrow and width >= GROUP, f"at least {GROUP} windows in a row and {found} {width} and {across}", {}
        ),
        "element": Fit(True, "", {"8 KH KW OH OW": group * taps * positions}),
        "im2col_naive": Fit(True, "", {"8 OH OW": group * positions}),
    }


def choose(variant: str, samples: int, channels: int, geometry: Geometry, wide: bool) -> str:
    """Choose the kernel of im2col to launch: ``variant``, or for "auto" the first that fits.

    ``wide`` tells whether the columns can be stored four values at a time, see `is_wide`. Raises ValueError if there is
    no such variant, if it does not fit, or if there are too many threads for it.
    """
    if not isinstance(variant, str) or variant not in FORMER_NAMES:
        check_choice("variant", variant, VARIANTS, also="auto")
    variant, table = FORMER_NAMES.get(variant, variant), _fits(samples * channels, geometry, wide)
    if variant == "auto":
        usable = (name for name, fit in table.items() if fit.fits and fit.preferred)
        few = (name for name in usable if all(count <= MAX_THREADS for count in table[name].threads.values()))
        variant = next(few, "im2col_naive")
    if not table[variant].fits:
        raise ValueError(f"variant is {describe(variant)}; it needs {table[variant].needs}")
    check_size("x", samples * channels, **table[variant].threads)
    return variant


def is_wide(columns: Any) -> bool:
    """Whether four values can be stored at a time, by dtype and address."""
    return dtype_of(columns) == np.float32 and address_of(columns) % 16 == 0


# -- launches of im2col ----------------------------------------------------------------------------


def launch_im2col(variant: str, x: Any, columns: Any, geometry: Geometry, stream: Any) -> tuple:
    """Make (launch, arguments) of im2col from images to columns, both contiguous device arrays."""
    launch, further = configure_im2col(variant, x.shape[0] * x.shape[1], geometry, stream)
    return launch, (_flat(x), _flat(columns), *further)


def configure_im2col(variant: str, planes: int, geometry: Geometry, stream: Any) -> tuple:
    """Make (launch, further arguments) of im2col, as `choose` has chosen it."""
    if variant in ("quads", "rows"):
        return (_configure_quads if variant == "quads" else _configure_rows)(planes, geometry, stream)
    (taps, positions), group, across = geometry.counts, min(GROUP, planes), int(geometry.kernel_w.value)
    kernel, count, threads, deep = im2col_naive, 1, group * positions, 1
    if variant == "element":
        count = min(2, ceil_div(planes, group))
        kernel, threads = element(count), group * taps * positions
    elif variant == "aligned":
        count, even = _planes_at_once(ceil_div(planes, group), across), positions % GROUP == 0
        kernel = aligned(count, across, even, _index_type(planes, geometry))
        threads, deep = positions if even else positions + GROUP - 1, group
    (block, blocks), rows = _threads(threads), ceil_div(planes, group * count)
    launch = configure_quietly(kernel, (blocks, min(rows, MAX_GRID_YZ), deep), block, stream)
    return launch, (geometry, np.uint32(planes), np.uint32(group), np.uint32(rows))


def _configure_quads(planes, geometry, stream):
    per_row = int(geometry.out_w.value) // 4
    per_plane = per_row * int(geometry.out_h)
    block, blocks = _threads(planes * per_plane)
    kernel = quads(int(geometry.kernel_w.value), int(geometry.stride_w.value), int(geometry.dilation_w))
    further = geometry, make_divisor(per_row), make_divisor(per_plane), np.uint32(planes)
    return configure_quietly(kernel, blocks, block, stream), further


def _configure_rows(planes, geometry, stream):
    (block, chunks), groups = _block_of_rows(geometry), ceil_div(int(geometry.out_h), ROWS_PER_BLOCK)
    kernel = rows(int(geometry.kernel_w.value), ROWS_PER_BLOCK, _index_type(planes, geometry))
    further = geometry, make_divisor(chunks), make_divisor(groups), make_divisor(int(geometry.kernel_h))
    return configure_quietly(kernel, _blocks_of_rows(planes, geometry), block, stream), further


def _block_of_rows(geometry):
    """Threads of a block of "rows", and blocks along a row: such that few threads are idle."""
    needed = int(geometry.out_w.value) + GROUP - 1
    blocks = range(min(MAX_ROWS_BLOCK, ceil_div(needed, WARP) * WARP), 64, -WARP)
    block = min(blocks, key=lambda threads: ceil_div(needed, threads) * threads, default=64)
    return block, ceil_div(needed, block)


def _blocks_of_rows(planes, geometry):
    groups = ceil_div(int(geometry.out_h), ROWS_PER_BLOCK)
    return planes * int(geometry.kernel_h) * groups * _block_of_rows(geometry)[1]


# -- launches of col2im ----------------------------------------------------------------------------


def launches_of_col2im(columns: Any, images: Any, geometry: Geometry, add: bool, stream: Any) -> list:
    """Make [(launch, arguments), ...] of col2im for contiguous device arrays with a row for each plane."""
    launches, planes = [], images.shape[0]
    for first in range(0, planes, MAX_GRID_YZ):
        parts = [array[first : first + MAX_GRID_YZ] for array in (columns, images)]
        in_twos = address_of(parts[1]) % (2 * parts[1].dtype.itemsize) == 0
        launch, further = configure_col2im(parts[0].shape[0], geometry, add, stream, in_twos)
        launches.append((launch, (*map(_flat, parts), *further)))
    return launches


def configure_col2im(planes: int, geometry: Geometry, add: bool, stream: Any, in_twos: bool) -> tuple:
    """Make (launch, further arguments) of col2im, for at most MAX_GRID_YZ rows of blocks.

    ``in_twos`` tells whether the images begin where two values can be stored at a time.
    """
    stride, dilation, across = int(geometry.stride_w.value), int(geometry.dilation_w), int(geometry.kernel_w.value)
    down = ceil_div(int(geometry.kernel_h), int(geometry.next_h))  # values in a column that may cover one pixel
    index, divisors = _index_type(planes, geometry), ()
    if 1 in (stride, dilation) and stride <= MAX_STRIDE and across <= MAX_LOADS:
        width, count = int(geometry.width.value), _planes_at_once(planes, ceil_div(across, stride))
        lines = down if down * across * count <= MAX_LOADS_IN_ALL else 1
        in_twos, per_row = in_twos and stride == 2 and width % 2 == 0, ceil_div(width, stride)
        kernel = strided(count, down, lines, across, stride, dilation, int(geometry.padding_w), in_twos, index)
        threads, divisors = int(geometry.height) * per_row, (make_divisor(per_row),)
    else:
        steps = ceil_div(across, int(geometry.next_w))
        at_once = min(steps, MAX_LOADS)
        count, threads = _planes_at_once(planes, at_once), int(geometry.pixels.value)
        kernel = gather(count, down, at_once, ceil_div(steps, at_once), index)
    block, blocks = _threads(threads)
    launch = configure_quietly(kernel, (blocks, ceil_div(planes, count)), block, stream)
    return launch, (geometry, np.uint32(planes), add, *divisors)


# -- launches in general ---------------------------------------------------------------------------


def launch_bias(out: Any, bias: Any, stream: Any) -> tuple:
    """Make (launch, arguments) of adding a bias to out, (N, groups, O / groups, OH OW)."""
    positions = out.shape[-1]
    out = out.reshape(out.size // positions, positions)
    block, blocks = _threads(positions)
    return configure_quietly(add_bias, (blocks, min(out.shape[0], MAX_GRID_YZ)), block, stream), (out, bias)


def launch_spread(out: Any, bias: Any, positions: int, stream: Any) -> tuple:
    """Make (launch, arguments) of setting the values of out, fewer than 2**31, to the bias of their out channel."""
    launch = configure_quietly(spread_bias, ceil_div(out.size, BLOCK), BLOCK, stream)
    return launch, (_flat(out), bias, make_divisor(positions), make_divisor(bias.size))


def _flat(array):
    return array.reshape(array.size)


def _index_type(planes, geometry):
    """The type of offsets in the images and the columns."""
    taps, positions = geometry.counts
    return uint32 if planes * max(int(geometry.pixels.value), taps * positions) < 2**32 else uint64


def _planes_at_once(planes, across):
    """Planes that a thread handles at a time, with ``across`` concurrent loads of each."""
    return next(n for n in PLANES_AT_ONCE if n <= planes and (n * across <= ENOUGH_LOADS or n == 1))


def _threads(count):
    """Block and number of blocks for so many threads; few threads make a small block."""
    block = min(BLOCK, ceil_div(count, WARP) * WARP)
    return block, ceil_div(count, block)
