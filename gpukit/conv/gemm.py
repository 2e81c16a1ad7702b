"""Implicit GEMM: which kernel and which tile for a convolution, and its launches."""

import functools
from collections.abc import Iterator
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from gpukit import intrinsics
from gpukit._host.arrays import address_of, configure_quietly, dtype_of, window
from gpukit.backend import cuda, types
from gpukit.conv.halves import CHUNK, HalfTile, halves
from gpukit.conv.implicit import MAX_KERNEL, implicit
from gpukit.conv.last import (
    FEW_CHANNELS,
    FIRST_SIDE,
    LAST_THREADS,
    WINDOW_BYTES,
    channels_first,
    channels_last,
    four_last,
    split_last,
    tiles_last,
    windows_last,
)
from gpukit.conv.warpgroups import FORMS, Form, boxes, shared_bytes, warpgroups
from gpukit.conv.windows import Geometry, make_divisor, make_geometry
from gpukit.intrinsics.tiles.tensor_map import can_describe_windows
from gpukit.matmul.align import BOTH, LANES, PLAIN, ROWS, align, align_grid
from gpukit.matmul.cost import Speed, choices
from gpukit.matmul.fast import SUM_THREADS, Tile, choose_sum
from gpukit.matmul.formats import ROW
from gpukit.matmul.maps import movable_map
from gpukit.matmul.raster import make_order
from gpukit.matmul.rows import WARP_ROWS, rows_bytes
from gpukit.matmul.warpgroups import GROUP_ROWS, GroupTile
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ

__all__ = [
    "Choice",
    "GROUP_SPEEDS",
    "HALF_SPEEDS",
    "IMPLICIT_SPEEDS",
    "SPLIT_SPEEDS",
    "choose_tile",
    "first_launch",
    "implicit_launches",
    "last_us",
    "lies_last",
    "reads_last",
    "takes_first",
    "takes_implicit",
]

#: Windows, values of x, and terms of a sum: indices have 32 bits, and channels may be padded to four times as many.
MAX_IMPLICIT = 2**30


def takes_implicit(x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int) -> bool:
    """Whether the sizes of a convolution are small enough for implicit GEMM."""
    windows, size = x_shape[0] * geometry.counts[1], x_shape[0] * x_shape[1] * int(geometry.pixels.value)
    return max(windows, size, weight_shape[1] * geometry.counts[0]) < MAX_IMPLICIT and groups <= MAX_GRID_YZ


#: Microseconds that a launch takes longer than one of `matmul`; bytes that `matmul` moves in the time of one of images.
IMPLICIT_EXTRA_US, IMPLICIT_BYTES = 3.2, 1.5
#: What the tiles cost, as `gpukit.matmul.cost.SPEEDS`: fitted to 435 measurements on an H200.
IMPLICIT_SPEEDS = (
    Speed(Tile(128, 256, 8, 8, 16, 4, 3), 1, 1.355, 1.429, 2.4),
    Speed(Tile(64, 128, 8, 8, 8, 4, 4), 4, 0.407, 0.527, 1.3),
    Speed(Tile(64, 64, 16, 8, 8, 4, 4, 2), 4, 0.455, 0.579, 1.1),
    Speed(Tile(32, 64, 16, 4, 8, 4, 4, 2), 6, 0.291, 0.424, 1.1),
    Speed(Tile(64, 32, 16, 8, 4, 4, 4, 2), 5, 0.288, 0.420, 0.5),
    Speed(Tile(32, 32, 32, 4, 4, 4, 3, 4), 4, 0.369, 0.449, 1.6),
    Speed(Tile(16, 64, 32, 4, 8, 4, 4, 4), 5, 0.364, 0.225, 2.6),
    Speed(Tile(64, 16, 32, 8, 4, 8, 3, 4), 5, 0.379, 0.478, 1.0),
)
#: The same for float16, fitted to 125 measurements; the launch that writes the channels last is not included.
HALF_SPEEDS = (
    Speed(HalfTile(256, 128, 64, 64), 1, 0.75, 1.0, 4.8),
    Speed(HalfTile(128, 128, 64, 32), 2, 0.49, 0.64, 4.8),
    Speed(HalfTile(64, 128, 32, 32), 2, 0.33, 0.5, 3.4),
    Speed(HalfTile(128, 64, 32, 32), 2, 0.31, 0.48, 2.1),
    Speed(HalfTile(64, 64, 32, 32), 4, 0.21, 0.42, 2.7),
    Speed(HalfTile(32, 128, 32, 32), 4, 0.255, 0.38, 4.9),
    Speed(HalfTile(32, 64, 32, 16), 4, 0.15, 0.41, 2.4),
    Speed(HalfTile(64, 32, 32, 16), 4, 0.14, 0.5, 1.6),
    Speed(HalfTile(32, 32, 16, 16), 6, 0.08, 0.4, 1.9),
    Speed(HalfTile(16, 64, 16, 16), 6, 0.115, 0.25, 3.4),
)
#: The same for warp groups, fitted to 180 measurements on an H200; K is in bytes.
GROUP_SPEEDS = (
    Speed(GroupTile(128, 256, 2, 4), 1, 0.64, 0.64, 5.2, 1),
    Speed(GroupTile(128, 192, 2, 5), 1, 0.49, 0.49, 4.8, 1),
    Speed(GroupTile(128, 128, 2, 6), 1, 0.38, 0.38, 3.6, 1),
    Speed(GroupTile(64, 128, 1, 4, 2), 2, 0.24, 0.31, 3.2, 1),
    Speed(GroupTile(64, 64, 1, 6, 2), 2, 0.18, 0.27, 1.9, 1),
)
#: The same for float32, each number split into two of TF32, fitted to 140 measurements.
SPLIT_SPEEDS = (
    Speed(GroupTile(128, 192, 2, 2), 1, 1.43, 1.43, 6.2, 1),
    Speed(GroupTile(128, 128, 2, 3), 1, 0.88, 0.88, 5.8, 1),
    Speed(GroupTile(64, 128, 1, 4), 1, 0.605, 0.605, 3.4, 1),
    Speed(GroupTile(64, 64, 1, 3, 2), 2, 0.385, 0.43, 2.2, 1),
)
#: Windows of a swapped tile, and its out channels at most, by the pieces of an element.
SWAPPED_ROWS, SWAPPED_COLUMNS = 128, {1: 256, 2: 192}
#: Microseconds in which a multiprocessor moves 128 bytes to or from its shared memory, which is what limits a step; and
#: of its first copies, and of the last stores of a column.
LINE_US, FIRST_US, COLUMN_US = 5.3e-4, 1.5, 0.02
#: How much longer two steps of half as many channels take than one; microseconds of a step for each window, at least.
NARROW_FACTOR, WINDOW_US = 1.1, 1e-3
#: Shared memory of a block, stages of a swapped tile, and columns up to which there is a tile for each multiple of 8,
#: not only of 16.
SHARED, MAX_STAGES, FEW_COLUMNS = 226 << 10, 8, 80
#: Microseconds of the launch that first writes the channels last, and bytes that it moves in one.
LAST_US, LAST_BYTES = 3.0, 3.4e6
#: Bytes of such a copy, at most: larger batches are convolved in parts.
MAX_COPY = 256 << 20
#: Terms of windows that are written in a microsecond, by the pieces of an element.
WINDOW_TERMS = {1: 1.2e6, 2: 3.5e5}
#: Images that `first_launch` takes have fewer elements, and words for elements of so many bytes.
MAX_FIRST, NUMBERS = 2**31, {2: types.uint16, 4: types.uint32, 8: types.uint64}


class Choice(NamedTuple):
    """A way of implicit GEMM.

    Attributes
    ----------
    us : float
        Microseconds that are expected.
    tile : any tile, or None where no kernel takes the convolution
    parts : int
        Of K.
    written : bool
        Whether the windows are written to memory first, as rows of K: worthwhile where few of them overlap.
    swapped : bool
        Whether the rows of tiles are windows, and not out channels.
    narrow : bool
        Whether a step has half as many channels.
    """

    us: float
    tile: Any
    parts: int
    written: bool = False
    swapped: bool = False
    narrow: bool = False


def choose_tile(
    x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int, half: bool = False, last: bool = False
) -> Choice:
    """Choose for implicit GEMM of float32, or with ``half`` of two bytes. ``last`` tells whether the channels of the
    images are last.
    """
    sizes = weight_shape[0] // groups, x_shape[0] * geometry.counts[1], weight_shape[1], geometry.counts[0]
    device, pixels = cuda.get_current_device(), x_shape[0] * x_shape[1] * int(geometry.pixels.value)
    read = x_shape[0] * x_shape[1] * geometry.rows_read * int(geometry.width.value)
    kernel, *_ = windows = _windows_of(geometry)
    fits = all(n <= limit for n, limit in zip(kernel, MAX_KERNEL, strict=True))
    has_groups = device.compute_capability[0] == 9 and pixels > 0
    windows_bytes = prod(geometry.counts) * weight_shape[1] * (2 if half else 8)  # of one sample
    written = has_groups and groups == 1 and not geometry.is_image and windows_bytes <= MAX_COPY
    grouped = has_groups and geometry.is_symmetric and can_describe_windows(*windows)
    ways = fits, grouped, written, geometry.counts[1] > 1
    counts = pixels, read, pixels if last and 1 not in (x_shape[1], geometry.pixels.value) else 0
    return _choose_tile(*sizes, groups, counts, half, last, ways, device.MULTIPROCESSOR_COUNT)


@functools.lru_cache(4096)
def _choose_tile(m, n, channels, taps, groups, counts, half, last, ways, multiprocessors):
    """``counts`` are of all pixels, of those in rows that are read, and of those that are copied for other layouts."""
    (pixels, read, moved), k, itemsize = counts, channels * taps, 2 if half else 4
    weights, out, used = groups * m * k, groups * m * n, min(read, groups * n * k)
    fits, grouped, written, swaps = ways
    found = [Choice(np.inf, None, 1)]
    if half:
        speeds, nbytes = HALF_SPEEDS, itemsize * (used + weights + out)
        chunked = channels % CHUNK == 0
        copied = (0 if last and chunked else pixels) + (0 if taps == 1 and chunked else weights)
        before, depth = last_us(copied, 2 * itemsize), ceil_div(channels, CHUNK) * CHUNK * taps
    else:
        speeds, nbytes = IMPLICIT_SPEEDS, int(itemsize * (IMPLICIT_BYTES * read + weights + out))
        before, depth = IMPLICIT_EXTRA_US, k
    if not half or channels > CHUNK and channels % CHUNK:
        before += last_us(moved, 2 * itemsize)
    if fits:
        tiles = choices(m, n, depth, groups, multiprocessors, nbytes, speeds)
        found += (Choice(time + before, tile, parts) for time, tile, parts in tiles)
    form = FORMS["float16" if half else "float32"]
    choose = functools.partial(_group_choices, form, m, n, swaps, multiprocessors)
    if grouped:
        aligned, steps = half and channels * itemsize % 16 == 0, ceil_div(2 * channels, form.depth)
        copied = (0 if last and aligned else pixels) + (0 if taps == 1 and aligned else weights)
        for narrow, own in ((False, form), (True, form.halved())) if steps % 2 else ((False, form),):
            held = form.pieces * ceil_div(channels, own.unit) * own.unit / channels  # for each channel
            row = taps * (ROW // 2 * steps if narrow else ROW * ceil_div(steps, 2))
            nbytes, before = int(itemsize * (held * (used + weights) + out)), last_us(copied, itemsize * (1 + held))
            found += choose(row, groups, nbytes, before, narrow=narrow)
    if written:
        windows = n * ceil_div(k, form.unit) * form.unit
        before = windows / WINDOW_TERMS[form.pieces] + last_us(used + weights, itemsize) + last_us(moved, 2 * itemsize)
        nbytes = itemsize * (form.pieces * (windows + weights) + out)
        found += choose(ROW * ceil_div(k, form.depth), 1, nbytes, before, written=True)
    return min(found, key=lambda choice: choice.us)


def _group_choices(
    form, m, n, swaps, multiprocessors, row, matrices, nbytes, before, written=False, narrow=False
) -> Iterator[Choice]:
    """Yield the choices of products by warp groups, whose rows have so many bytes, with what comes ``before``."""
    ways: list[tuple] = [(False, GROUP_SPEEDS if form.pieces == 1 else SPLIT_SPEEDS, m, n)]
    if swaps and m % (2 * GROUP_ROWS):
        ways.append((True, (swapped_speed(m, form),), n, ceil_div(m, 8) * 8))
    for swapped, speeds, rows, columns in ways:
        speeds = tuple(_step_speed(speed, form, swapped, narrow) for speed in speeds)
        for time, tile, parts in choices(rows, columns, row, matrices, multiprocessors, nbytes, speeds):
            yield Choice(time + before, tile, parts, written, swapped, narrow)


def _step_speed(speed, form, swapped, narrow):
    """The cost of a tile, with the time that its windows take at least; with ``narrow`` a step is two shorter ones."""
    tile, count, factor = speed.tile, 2 if narrow else 1, NARROW_FACTOR if narrow else 1
    least = count * WINDOW_US * form.pieces * (tile.rows if swapped else tile.columns)
    work, latency = max(factor * speed.work, least), max(factor * speed.latency, least)
    return speed._replace(tile=tile._replace(stages=count * tile.stages), work=work, latency=latency)


@functools.cache
def swapped_speed(m: int, form: Form) -> Speed:
    """The cost of a tile whose columns are m out channels, or as few of them as several tiles need."""
    pieces, columns = form.pieces, ceil_div(m, ceil_div(m, SWAPPED_COLUMNS[form.pieces]))
    unit = 8 if columns <= FEW_COLUMNS else 16  # fewer kernels to compile
    columns = ceil_div(columns, unit) * unit
    stage = pieces * (SWAPPED_ROWS + columns) * ROW + 16
    stages = min((SHARED - rows_bytes(SWAPPED_ROWS // WARP_ROWS)) // stage, MAX_STAGES)
    tile = GroupTile(SWAPPED_ROWS, columns, SWAPPED_ROWS // GROUP_ROWS, stages)
    lines = (SWAPPED_ROWS + 2 * columns) * (3 if pieces == 2 else 1) + (SWAPPED_ROWS + columns) * pieces
    return Speed(tile, 1, LINE_US * lines, LINE_US * lines, FIRST_US + COLUMN_US * columns, 1)


def last_us(count: int, nbytes: int) -> float:
    """Predict the microseconds in which so many numbers are copied with the channels last, of so many bytes moved."""
    return LAST_US + nbytes * count / LAST_BYTES if count else 0.0


def _windows_of(geometry):
    """Kernel, stride, padding and dilation, as a `gpukit.intrinsics.window_map` wants them."""
    g = geometry
    pairs = (
        (g.kernel_h, g.kernel_w.value),
        (g.stride_h.value, g.stride_w.value),
        (g.padding_h, g.padding_w),
        (g.dilation_h, g.dilation_w),
    )
    return tuple((int(down), int(across)) for down, across in pairs)


def implicit_launches(convolution: Any, work: Any, chosen: Choice | None = None) -> list:
    """Make [(launch, arguments), ...] of implicit GEMM; ``chosen`` is to be taken instead of what is fastest."""
    x, weight, bias, out, geometry, groups = convolution
    half = dtype_of(x).itemsize == 2
    if chosen is None and takes_implicit(x.shape, weight.shape, geometry, groups):
        chosen = choose_tile(x.shape, weight.shape, geometry, groups, half, groups == 1 and lies_last(x))
    if chosen is None or chosen.tile is None:
        raise ValueError(f"algorithm is 'implicit'; it is for kernels of at most {MAX_KERNEL} and small images")
    _, tile, parts, written, swapped, narrow = chosen
    grouped = isinstance(tile, GroupTile)
    copied = prod(geometry.counts) * weight.shape[1] if written else x.size // x.shape[0]
    at_once = max(1, MAX_COPY // (copied * (2 if half else 8))) if half or grouped else x.shape[0]
    if at_once < x.shape[0]:
        pieces = (slice(first, first + at_once) for first in range(0, x.shape[0], at_once))
        cut = (convolution._replace(x=x[piece], out=out[piece]) for piece in pieces)
        return [launch for piece in cut for launch in implicit_launches(piece, work, chosen)]
    bias, result = (array.reshape(array.size) for array in (weight if bias is None else bias, out))
    target = result if parts == 1 else work.take("parts", parts * out.size, np.float32)
    make_grouped = functools.partial(_group_launches, written=written, swapped=swapped, narrow=narrow)
    make = make_grouped if grouped else _half_launches if half else _float_launches
    launches = make(convolution, tile, parts, bias, target, work)
    if parts > 1:
        launches.append(_launch_sum(target, result, parts, work.stream))
    return launches


def _grid(convolution, tile, parts):
    """The grid of `implicit` and `halves`, and their last arguments."""
    x, weight, bias, _, geometry, groups = convolution
    m, n = weight.shape[0] // groups, x.shape[0] * geometry.counts[1]
    sizes = tuple(np.uint32(size) for size in (x.shape[0], weight.shape[1], m, bias is not None))
    return (ceil_div(m, tile.rows) * ceil_div(n, tile.columns), parts, groups), (geometry, sizes)


def _float_launches(convolution, tile, parts, bias, target, work):
    """[(launch, arguments)] of implicit GEMM of float32."""
    wide = convolution.geometry.counts[1] % 4 == 0 and address_of(target) % 16 == 0
    grid, further = _grid(convolution, tile, parts)
    launch = configure_quietly(implicit(tile, wide), grid, tile.threads, work.stream)
    operands = (array.reshape(array.size) for array in convolution[:2])
    return [(launch, (*operands, bias, target, *further))]


def _half_launches(convolution, tile, parts, bias, target, work):
    """[(launch, arguments), ...] of implicit GEMM of float16 or bfloat16 by single warps."""
    x, groups, geometry = convolution.x, convolution.groups, convolution.geometry
    in_place, chunks = _has_chunks_last(x, groups), make_divisor(ceil_div(x.shape[1] // groups, CHUNK))
    weight = convolution.weight
    keeps_weights = geometry.counts[0] == 1 and weight.shape[1] % CHUNK == 0 and _is_aligned(weight, CHUNK)
    (images, weights), launches = _channels_last(convolution, CHUNK, work, not in_place, not keeps_weights)
    weights = weight.reshape(weight.size) if keeps_weights else weights
    padded = int(chunks.value) * CHUNK
    steps = (x.shape[1], padded) if in_place else (padded, x.shape[0] * int(geometry.pixels.value) * padded)
    images = window(x, np.uint16, x.size) if in_place else images.view(np.uint16)
    wide = geometry.counts[1] % 2 == 0 and address_of(target) % (2 * dtype_of(target).itemsize) == 0
    kernel, (grid, further) = halves(tile, wide, dtype_of(x) == np.uint16), _grid(convolution, tile, parts)
    intrinsics.allow_dynamic_shared(kernel, tile.shared_bytes)
    launch = configure_quietly(kernel, grid, tile.threads, work.stream, tile.shared_bytes)
    arguments = images, weights.view(np.uint16), bias, target, *further, chunks, tuple(map(np.uint32, steps))
    return [*launches, (launch, arguments)]


def _group_launches(convolution, tile, parts, bias, target, work, written, swapped, narrow):
    """[(launch, arguments), ...] of implicit GEMM by warp groups."""
    x, weight, _, _, geometry, groups = convolution
    form = FORMS[dtype_of(x).name]
    form = form.halved() if narrow else form
    if written:  # a window is a pixel, and its terms are its channels
        weight, geometry = weight.reshape(weight.shape[0], -1, 1, 1), make_geometry(geometry.out_size, 1, 1, 0, 1)
        operands, launches = _window_operands(convolution, form, work)
    else:
        operands, launches = _group_operands(convolution, form, work)
    taps, positions = geometry.counts
    m, n, chunks = weight.shape[0] // groups, x.shape[0] * positions, ceil_div(weight.shape[1], form.depth)
    width = gcd(positions, 16 // dtype_of(target).itemsize) if address_of(target) % 16 == 0 else 1
    width = 0 if positions == 1 else width
    kernel, nbytes = warpgroups(tile, form, parts > 1, width, swapped), shared_bytes(tile, form)
    intrinsics.allow_dynamic_shared(kernel, nbytes)
    (weights, images), (box_of_weights, box_of_images) = operands, boxes(tile, form, swapped)
    maps = (
        movable_map(weights, box_of_weights, work),
        movable_map(images, box_of_images, work, _windows_of(geometry)),
    )
    extents = (n, m) if swapped else (m, n)
    down, across = (ceil_div(extent, of) for extent, of in zip(extents, tile[:2], strict=True))
    order = make_order(down, across, taps * chunks, parts, groups)
    sizes = m, n, groups, x.shape[0], weights.shape[2] // form.pieces, convolution.bias is not None
    blocks = min(int(order.tiles), cuda.get_current_device().MULTIPROCESSOR_COUNT * tile.resident)
    launch = configure_quietly(kernel, blocks, tile.threads, work.stream, nbytes)
    words = target.view(np.uint32) if width > 1 else target
    arguments = *maps, bias, words, geometry, tuple(map(np.uint32, sizes)), order, make_divisor(chunks)
    return [*launches, (launch, arguments)]


def takes_first(x: Any) -> bool:
    """Whether `first_launch` copies images: their channels are last in memory, and its blocks can be numbered."""
    if not lies_last(x) or x.is_c_contiguous():
        return False
    return x.size < MAX_FIRST and x.shape[1] <= FIRST_SIDE * MAX_GRID_YZ


def first_launch(x: Any, geometry: Geometry, work: Any) -> tuple:
    """Copy images so that their channels are first, only the pixels of windows where ``geometry.is_sampled``; gives the
    copy, and the (launch, arguments) that writes it.
    """
    (samples, channels, height, width), dtype, (stride_h, stride_w) = x.shape, dtype_of(x), (1, 1)
    out_h, out_w = height, width
    if geometry.is_sampled:
        (out_h, out_w), stride_h, stride_w = (
            geometry.out_size,
            int(geometry.stride_h.value),
            int(geometry.stride_w.value),
        )
    positions, few = out_h * out_w, channels <= FEW_CHANNELS
    copy, number = work.take("first", samples * channels * positions, dtype), NUMBERS[dtype.itemsize]
    across = ceil_div(positions, FIRST_SIDE)
    grid = ceil_div(samples * positions, LAST_THREADS) if few else (samples * across, ceil_div(channels, FIRST_SIDE))
    launch = configure_quietly(channels_first(number, few), grid, LAST_THREADS, work.stream)
    words = window(x, np.dtype(f"u{dtype.itemsize}"), x.size), copy.view(f"u{dtype.itemsize}")
    sizes = tuple(map(np.uint32, (channels, positions, samples * positions)))
    pixels = tuple(map(np.uint32, (height * width, stride_h * width, stride_w)))
    divisors = make_divisor(out_w), make_divisor(positions if few else across)
    return copy.reshape(samples, channels, out_h, out_w), (launch, (*words, sizes, pixels, divisors))


def reads_last(x: Any, weight_shape: tuple, geometry: Geometry, groups: int) -> bool:
    """Whether implicit GEMM reads images in place, with their channels last."""
    if not lies_last(x):
        return False
    half, shapes = dtype_of(x).itemsize == 2, (tuple(x.shape), tuple(weight_shape))
    choice = choose_tile(*shapes, geometry, groups, half, groups == 1)
    if geometry.is_sampled and _sampled_us(*shapes, geometry, groups, half) < choice.us:
        return False
    if isinstance(choice.tile, HalfTile):
        return _has_chunks_last(x, groups) or groups == 1 and x.shape[1] <= CHUNK
    return groups == 1 and not choice.written and isinstance(choice.tile, GroupTile)


def _sampled_us(x_shape, weight_shape, geometry, groups, half):
    """Predict the microseconds of implicit GEMM after a copy of the pixels of windows, where ``geometry.is_sampled``,
    with their channels first.
    """
    shape = *x_shape[:2], *geometry.out_size
    copy = last_us(prod(shape), 4 if half else 8)
    return copy + choose_tile(shape, weight_shape, geometry.sampled(), groups, half).us


def lies_last(x: Any) -> bool:
    """Whether the channels of images on the device are last in memory."""
    if not cuda.is_cuda_array(x):
        return False
    (_, channels, height, width), item = x.shape, dtype_of(x).itemsize
    strides = height * width * channels * item, item, width * channels * item, channels * item
    return all(n == 1 or own == stride for n, own, stride in zip(x.shape, x.strides, strides, strict=True))


def _has_chunks_last(x, groups):
    """Whether single warps copy images from where they are: the channels of each group are last, in whole chunks."""
    return lies_last(x) and x.shape[1] // groups % CHUNK == 0 and _is_aligned(x, CHUNK)


def _is_aligned(array, count):
    """Whether an array on the device begins at a multiple of so many elements."""
    return cuda.is_cuda_array(array) and address_of(array) % (count * dtype_of(array).itemsize) == 0


def _group_operands(convolution, form, work):
    """Weights (O, taps, channels) and images (groups N, H, W, channels), and the launches that write those which are
    not in this layout yet.
    """
    x, weight, geometry, groups = convolution.x, convolution.weight, convolution.geometry, convolution.groups
    last, (taps, _), channels = groups == 1 and lies_last(x), geometry.counts, weight.shape[1]
    keeps_weights = taps == 1 and _can_map(weight, channels, form)
    (images, weights), launches = _channels_last(convolution, form.unit, work, not last, not keeps_weights)
    if keeps_weights:
        weights = weight.reshape(weight.size)
    if last:
        images = window(x, dtype_of(x), x.size)
        if not _can_map(x, channels, form):
            images, launch = _rows_last(images, channels, form, work)
            launches.append(launch)
    planes, rows = (groups * x.shape[0], *x.shape[2:]), (weight.shape[0], taps)
    shaped = (a.reshape(*lead, a.size // prod(lead)) for a, lead in ((weights, rows), (images, planes)))
    return tuple(shaped), launches


def _can_map(array, row, form):
    """Whether the rows of an array, of so many elements, begin at multiples of 16 bytes, as a tensor map needs them."""
    aligned = row * dtype_of(array).itemsize % 16 == 0 and address_of(array) % 16 == 0
    return form.pieces == 1 and aligned and cuda.is_cuda_array(array)


def _window_operands(convolution, form, work):
    """Make weights (O, 1, K) and windows (N, OH, OW, K), and the launch that writes them."""
    x, weight, geometry = convolution.x, convolution.weight, convolution.geometry
    (outs, k), (samples, dtype) = (weight.shape[0], weight.size // weight.shape[0]), (x.shape[0], dtype_of(x))
    padded, rows, own = ceil_div(k, form.unit) * form.unit, samples * geometry.counts[1], WINDOW_BYTES // dtype.itemsize
    keeps = _can_map(weight, k, form)
    owners, chunks = 0 if keeps else outs * padded * dtype.itemsize // 4, padded // own
    counts = rows * padded * form.pieces, owners * 4 // dtype.itemsize * form.pieces
    copies = [work.take(f"last {i}", count, dtype) for i, count in enumerate(counts)]
    blocks, flat = ceil_div(owners, LAST_THREADS), weight.reshape(weight.size)
    arrays = [x.reshape(x.size), flat, *copies]
    if form.pieces == 1:
        words = np.uint16, np.uint16, np.uint32, np.uint32
        arrays = [array.view(word) for array, word in zip(arrays, words, strict=True)]
    sizes = tuple(map(np.uint32, (k, padded, rows, blocks, owners)))
    grid = blocks + ceil_div(rows * chunks, LAST_THREADS)
    launch = configure_quietly(windows_last(form.pieces), grid, LAST_THREADS, work.stream)
    weights = flat.reshape(outs, 1, k) if keeps else copies[1].reshape(outs, 1, padded * form.pieces)
    images = copies[0].reshape(samples, *geometry.out_size, padded * form.pieces)
    return (weights, images), [(launch, (*arrays, geometry, sizes, make_divisor(chunks)))]


def _channels_last(convolution, multiple, work, with_images=True, with_weights=True) -> tuple[list, list]:
    """Images and weights with each group's channels last, padded to a multiple, and the launches that write them."""
    x, weight, geometry, groups = convolution.x, convolution.weight, convolution.geometry, convolution.groups
    channels, pixels, (taps, _) = weight.shape[1], int(geometry.pixels.value), geometry.counts
    padded, dtype = ceil_div(channels, multiple) * multiple, dtype_of(x)
    planes, outs = x.shape[0] * groups * with_images, weight.shape[0] * with_weights
    counts = (n * padded * FORMS[dtype.name].pieces for n in (planes * pixels, outs * taps))
    copies = [work.take(f"last {i}", count, dtype) for i, count in enumerate(counts)]
    down, across = tiles_last(padded, pixels, dtype.itemsize)
    owners = outs * padded * dtype.itemsize // 4  # threads that have four bytes of a tap each
    blocks = ceil_div(owners, LAST_THREADS)
    grid = blocks + planes * down * across
    if grid == 0:
        return copies, []
    sizes = tuple(map(np.uint32, (channels, padded, pixels, across, down, x.shape[0], groups, blocks, taps, owners)))
    flat, kernel, last = weight.reshape(weight.size), split_last, lies_last(x) and not x.is_c_contiguous()
    images = window(x, dtype, x.size) if last else x.reshape(x.size)
    arrays = [images if with_images else flat, flat, *copies]
    if dtype.itemsize == 2:
        wide = with_images and pixels % 2 == 0 and address_of(x) % 4 == 0 and not last
        kernel = four_last(wide, last) if padded == 4 else channels_last(wide)
        words = np.uint32 if wide else np.uint16, np.uint16, np.uint32, np.uint32
        arrays = [array.view(word) for array, word in zip(arrays, words, strict=True)]
    return copies, [(configure_quietly(kernel, grid, LAST_THREADS, work.stream), (*arrays, sizes))]


def _rows_last(images, channels, form, work):
    """Images whose channels are last already, with padded rows, and the launch that copies them."""
    rows, padded = images.size // channels, ceil_div(channels, form.unit) * form.unit
    copy = work.take("rows", rows * padded * form.pieces, images.dtype)
    kernel, grid = (
        align(form.element, False, (PLAIN, BOTH)[form.pieces - 1]),
        align_grid(1, rows, padded, images.dtype.itemsize),
    )
    launch = configure_quietly(kernel, grid, (LANES, ROWS), work.stream)
    sizes = tuple(map(np.uint32, (1, rows, padded, channels)))
    return copy, (launch, (images, copy, sizes, np.uint64(channels), np.uint64(images.size)))


def _launch_sum(results, out, parts, stream):
    """(launch, arguments) that adds up the results of the parts of K."""
    element = types.uint16 if dtype_of(out) == np.uint16 else None
    kernel, blocks = choose_sum(parts, (1, 1, out.size), results.dtype.itemsize, element=element)
    launch, size = configure_quietly(kernel, blocks, SUM_THREADS, stream), np.uint32(out.size)
    return launch, (results, out, np.uint32(parts), np.uint32(1), size, size, np.float32(1), np.float32(0))
