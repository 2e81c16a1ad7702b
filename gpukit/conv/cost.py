"""Which way to convolve, and for the direct one which kernel, which tiles, and how many blocks."""

import functools
import itertools
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpukit import intrinsics, matmul
from gpukit._host.arrays import address_of, configure_quietly, dtype_of, window
from gpukit.backend import cuda, float32, float64
from gpukit.conv import ladder
from gpukit.conv.apart import (
    APART_THREADS,
    FEW_WINDOWS,
    MAX_APART_OUTS,
    apart,
    apart_us,
    share,
    takes_apart,
)
from gpukit.conv.depthwise import (
    LAST_THREADS,
    MAX_DILATION,
    MAX_RUN,
    MAX_TAPS,
    THREADS,
    depthwise,
    depthwise_last,
    depthwise_pairs,
    is_along,
    make_tiling,
    unit_of,
)
from gpukit.conv.fast import Layout, specialised
from gpukit.conv.fourier import fourier_us, takes_fourier
from gpukit.conv.gemm import choose_tile, last_us, lies_last, takes_implicit
from gpukit.conv.ladder import LADDER, Sizes
from gpukit.conv.short import MAX_TERMS, SHORT_THREADS, divide, short, short_bytes, short_us, takes_short, vector_of
from gpukit.conv.warpgroups import FORMS
from gpukit.conv.windows import Geometry, covered, make_divisor
from gpukit.matmul.cost import half_kind, tensor_time
from warpstep.integers import ceil_div
from warpstep.values import describe

__all__ = [
    "DIRECT",
    "WORKSPACE",
    "Convolution",
    "choose_algorithm",
    "depthwise_reads_last",
    "direct_launch",
    "direct_reads_last",
    "expected",
    "is_wide",
    "launch_blocked",
    "launch_specialised",
    "layout_of",
    "layouts_of",
    "predict",
]

#: The direct kernels, from the naive one to those made for one layout.
DIRECT = {**LADDER, "specialised": specialised, "paired": specialised, "winograd": specialised}
#: Algorithms that have layouts: those that share no products, those with pairs, those with Winograd's fours of rows and
#: pairs if these are possible, and whichever is the fastest.
LAID_OUT = "specialised", "paired", "winograd", "direct"
#: Bytes of a workspace up to which the columns of several samples are written at a time.
WORKSPACE = 32 << 20
#: Bytes of columns that im2col writes in a microsecond.
IM2COL_SPEED = 2.7e6
#: Fitted corrections. The products of im2col, small and with unaligned rows, take 1.08 times what `matmul` predicts and
#: 1.5 us. Direct kernels take 0.88 of what `predict` predicts, as they copy weights faster than those it was fitted to.
MATMUL_TIME_FACTOR, MATMUL_EXTRA_US, DIRECT_TIME_FACTOR = 1.08, 1.5, 0.88
#: Windows of a result of two bytes with a bias from which the bias is stored first, to add the product to.
MANY = 1 << 14
#: Block of "naive", and out channels of a thread of "blocked", at most.
NAIVE_BLOCK, MAX_BLOCKED_CHANNELS = (32, 8), 8
#: Values of a depthwise result from which a thread has several, and of a kernel up to which it has neighbours too.
DEPTHWISE_MANY, MAX_PAIRED_TAPS = 1 << 17, 25
#: Bytes of a tile of an image with its channels last, at most.
MAX_TILE = 96 << 10
#: Columns of a depthwise kernel from which on windows without a pixel in common are for `apart`.
MIN_APART_COLUMNS = 4


class Convolution(NamedTuple):
    """The operands of one convolution: contiguous arrays, none of them empty."""

    x: Any
    weight: Any
    bias: Any  # or None
    out: Any
    geometry: Geometry
    groups: int


# -- direct or by columns --------------------------------------------------------------------------


def choose_algorithm(
    algorithm: str,
    x_shape: tuple,
    weight_shape: tuple,
    geometry: Geometry,
    groups: int,
    dtype: np.dtype,
    last: bool = False,
    biased: bool = False,
) -> str:
    """Choose an algorithm for "auto": the one that is expected to be fastest, of those that take the dtype. ``last``
    tells whether the channels of the images are last, ``biased`` whether there is a bias.
    """
    if algorithm != "auto":
        return algorithm
    half = dtype.itemsize == 2
    if 0 in (*x_shape, weight_shape[0]):
        return "direct" if half else "im2col"
    if dtype == np.float64:
        if _is_depthwise(x_shape, weight_shape, geometry):
            return "depthwise"
        if not takes_fourier(x_shape, weight_shape, geometry, groups):
            return "im2col"
        whole = groups == 1 and geometry.is_whole and not biased
        product = _predict_im2col(x_shape, weight_shape, geometry, groups, whole, dtype)
        return "fourier" if fourier_us(x_shape, weight_shape, geometry, dtype) < product else "im2col"
    times = expected(x_shape, weight_shape, geometry, groups, half, last, biased)
    return min(times, key=times.__getitem__)


def expected(
    x_shape: tuple,
    weight_shape: tuple,
    geometry: Geometry,
    groups: int,
    half: bool = False,
    last: bool = False,
    biased: bool = False,
) -> dict[str, float]:
    """Predict the microseconds of each algorithm for a convolution of float32, or of two bytes, that is not empty."""
    if last and geometry.is_sampled:
        return _expected_of_sampled(x_shape, weight_shape, geometry, groups, half, biased)
    if groups > 1 and _is_depthwise(x_shape, weight_shape, geometry):
        return {"direct": LAUNCH_US}
    is_taken = takes_implicit(x_shape, weight_shape, geometry, groups)
    if half and tuple(cuda.get_current_device().compute_capability) < (8, 0):
        return {"direct": LAUNCH_US}
    before = _first_us(x_shape, geometry, half, last)
    times = {
        "direct": direct_us(x_shape, weight_shape, geometry, groups, half, last)[0],
        "implicit": choose_tile(x_shape, weight_shape, geometry, groups, half, last).us if is_taken else np.inf,
    }
    whole, windows = groups == 1 and geometry.is_whole and not biased, x_shape[0] * geometry.counts[1]
    out = weight_shape[0] * windows
    if half and not (whole or geometry.is_image and (not biased or MANY <= windows and out < 2**31)):
        return times
    predict_product = _predict_half_product if half else _predict_im2col
    if not half and takes_fourier(x_shape, weight_shape, geometry, groups):
        times["fourier"] = before + fourier_us(x_shape, weight_shape, geometry)
    # Elements of two bytes are added to the bias in another launch, from sums in float32.
    before += last_us(biased * out, 8) + (last_us(biased * out, 6) if half else 0)
    return times | {"im2col": before + predict_product(x_shape, weight_shape, geometry, groups, whole)}


def _expected_of_sampled(x_shape, weight_shape, geometry, groups, half, biased):
    """What `expected` predicts where the channels are last, and windows are single pixels, some apart: these are copied
    with their channels first, unless implicit GEMM reads them in place.
    """
    shape, before = (*x_shape[:2], *geometry.out_size), _first_us(x_shape, geometry, half, True)
    times = expected(shape, weight_shape, geometry.sampled(), groups, half, False, biased)
    times = {name: before + us for name, us in times.items()}
    if takes_implicit(x_shape, weight_shape, geometry, groups):
        in_place = choose_tile(x_shape, weight_shape, geometry, groups, half, True).us
        times["implicit"] = min(times["implicit"], in_place)
    if takes_short(x_shape, weight_shape, geometry, groups):
        times["direct"] = min(times["direct"], short_us(x_shape, weight_shape, geometry, groups, 2 if half else 4))
    return times


def direct_us(
    x_shape: tuple, weight_shape: tuple, geometry: Geometry, groups: int, half: bool, last: bool = False
) -> tuple[float, str]:
    """Predict the microseconds of the fastest direct kernel, and its name: that of one for some convolutions only, or
    "specialised". "short" reads images with their channels ``last`` in place.
    """
    dtype, itemsize = (np.float16, 2) if half else (np.float32, 4)
    fastest = _fastest(x_shape, weight_shape, geometry, groups, False, dtype, "direct")
    before, times = _first_us(x_shape, geometry, half, last), {}
    if takes_short(x_shape, weight_shape, geometry, groups):
        times["short"] = short_us(x_shape, weight_shape, geometry, groups, itemsize)
    if takes_apart(x_shape, weight_shape, geometry, groups):
        times["apart"] = before + apart_us(x_shape, weight_shape, geometry, groups, itemsize)
    times["specialised"] = before + (DIRECT_TIME_FACTOR * fastest[0][0] if fastest else np.inf)
    name = min(times, key=times.__getitem__)
    return times[name], name


def _first_us(x_shape, geometry, half, last):
    """Microseconds in which images whose channels are last are copied with their channels first, the pixels of windows
    only where these are sampled.
    """
    count = prod(x_shape[:2]) * geometry.counts[1] if geometry.is_sampled else prod(x_shape)
    return last_us(count if last and 1 not in (x_shape[1], geometry.pixels.value) else 0, 4 if half else 8)


def direct_reads_last(x: Any, weight_shape: tuple, geometry: Geometry, groups: int) -> bool:
    """Whether the fastest direct kernel reads images in place, with their channels last."""
    name = _name_fastest(x, weight_shape, geometry, groups)
    if name == "depthwise":
        return depthwise_reads_last(x, weight_shape, geometry, groups)
    return name == "short" and lies_last(x)


def _name_fastest(x, weight_shape, geometry, groups):
    """Name the fastest direct kernel for images as they lie: one for some convolutions only, or "specialised"."""
    if groups == 1 or not _is_depthwise(x.shape, weight_shape, geometry):
        half = dtype_of(x).itemsize == 2
        return direct_us(tuple(x.shape), tuple(weight_shape), geometry, groups, half, lies_last(x))[1]
    if depthwise_reads_last(x, weight_shape, geometry, groups):
        return "depthwise"
    return "apart" if _are_apart(x.shape, weight_shape, geometry, groups) else "depthwise"


def _predict_im2col(x_shape, weight_shape, geometry, groups, whole, dtype: Any = np.float32):
    """Microseconds of im2col and the matrix products."""
    (taps, positions), samples = geometry.counts, x_shape[0]
    m, k = weight_shape[0] // groups, weight_shape[1] * taps
    if whole:
        return MATMUL_EXTRA_US + MATMUL_TIME_FACTOR * matmul.predicted_time(samples, m, k, 1, dtype)
    product = matmul.predicted_time(m, positions, k, samples * groups, dtype)
    nbytes = 0 if geometry.is_image else np.dtype(dtype).itemsize * samples * groups * k * positions
    launches = min(samples, ceil_div(nbytes, WORKSPACE))
    return MATMUL_EXTRA_US + MATMUL_TIME_FACTOR * (product + launches * LAUNCH_US + nbytes / IM2COL_SPEED)


def _predict_half_product(x_shape, weight_shape, geometry, groups, whole):
    """Microseconds of the product on tensor cores, with copies of operands whose rows are not aligned to 16 bytes, or
    without.
    """
    (taps, positions), m, batch = geometry.counts, weight_shape[0] // groups, x_shape[0] * groups
    k = weight_shape[1] * taps
    sizes = (x_shape[0], m, 2 * k, 1) if whole else (m, positions, 2 * k, batch)
    shape = *sizes, cuda.get_current_device().MULTIPROCESSOR_COUNT
    unaligned = (2 * groups * m * k, k), (2 * batch * k * positions, k if whole else positions)
    copies = tuple(nbytes for nbytes, row in unaligned if row % 8)
    return min(tensor_time(*shape, half_kind(), copies, True), tensor_time(*shape, "small"))


# -- launches --------------------------------------------------------------------------------------


def direct_launch(name: str, convolution: Convolution, stream: Any) -> tuple:
    """Make (launch, arguments) of a direct kernel; "direct" is the fastest that fits."""
    x, weight, bias, out, geometry, groups = convolution
    limit = cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    if name == "direct":
        made = {"depthwise": _launch_depthwise, "short": _launch_short, "apart": _launch_apart}
        fastest = _name_fastest(x, weight.shape, geometry, groups)
        if fastest in made:
            return made[fastest](convolution, stream)
    if name == "depthwise":
        if not _is_depthwise(x.shape, weight.shape, geometry):
            shape = f"weight has shape {tuple(weight.shape)}"
            raise ValueError(f"algorithm is 'depthwise'; {shape}: it needs one in channel to a group, and few values")
        return _launch_depthwise(convolution, stream)
    if name == "short":
        if not takes_short(x.shape, weight.shape, geometry, groups):
            given = f"weight has shape {tuple(weight.shape)}"
            raise ValueError(f"algorithm is 'short'; {given}: a value must have at most {MAX_TERMS} terms")
        return _launch_short(convolution, stream)
    if name == "apart":
        if not takes_apart(x.shape, weight.shape, geometry, groups):
            given = f"weight has shape {tuple(weight.shape)}, groups is {groups}, stride {_steps(geometry)[0]}"
            raise ValueError(
                f"algorithm is 'apart'; {given}: a group must have at most {MAX_APART_OUTS} out channels, "
                f"and a pixel lie in at most {FEW_WINDOWS} windows on average"
            )
        return _launch_apart(convolution, stream)
    if name in LAID_OUT:
        wide = is_wide(x, geometry)
        layout = layout_of(x.shape, weight.shape, geometry, groups, wide, dtype_of(x), name)
        if layout is not None:
            return launch_specialised(layout, convolution, stream, wide)
        if name != "direct":
            raise ValueError(f"algorithm is {describe(name)}; {_why_none_fits(name, weight.shape[2:], geometry)}")
    rungs = (_make_rung(rung, convolution) for rung in (("blocked", "naive") if name == "direct" else (name,)))
    rung = next((rung for rung in rungs if rung.nbytes <= limit), None)
    if rung is None:
        raise ValueError(
            f"algorithm is {describe(name)}; its tile, with kernel and dilation, is more than {limit:,} bytes"
        )
    return _launch_rung(rung, convolution, stream)


def _is_depthwise(x_shape, weight_shape, geometry):
    """Whether each group has one in channel, and a thread can hold the values of the kernel."""
    (kernel_h, kernel_w), (_, (dilation_h, _)) = map(int, weight_shape[2:]), _steps(geometry)
    small = kernel_h * kernel_w <= MAX_TAPS and dilation_h <= MAX_DILATION and prod(x_shape) < 2**32
    return weight_shape[1] == 1 and small


def _are_apart(x_shape, weight_shape, geometry, groups):
    """Whether windows of a depthwise convolution have no pixel in common, and `apart` reads them faster."""
    (stride_h, stride_w), kernel = _steps(geometry)[0], weight_shape[2:]
    no_overlap = stride_h >= kernel[0] and stride_w >= kernel[1] >= MIN_APART_COLUMNS
    return no_overlap and takes_apart(x_shape, weight_shape, geometry, groups)


def _launch_depthwise(convolution, stream):
    """Make (launch, arguments), with several values to a thread where there are enough of them."""
    x, weight, bias, out, geometry, groups = convolution
    if depthwise_reads_last(x, weight.shape, geometry, groups):
        return _launch_depthwise_last(convolution, stream)
    size, (steps, gaps) = tuple(map(int, weight.shape[2:])), _steps(geometry)
    total, run = float64 if dtype_of(x) == np.float64 else float32, MAX_RUN if out.size >= DEPTHWISE_MANY else 1
    if run > 1 and _goes_in_pairs(x, out, size, geometry):
        kernel, tile = depthwise_pairs(size, steps, gaps[0], int(geometry.padding_w) % 2, total), (run, 2)
    else:
        kernel, tile = depthwise(size, steps, gaps, run, total), (1, run) if is_along(size, gaps) else (run, 1)
    sizes, threads = _sizes(convolution, tile, 1, False)
    launch = configure_quietly(kernel, ceil_div(threads, THREADS), THREADS, stream)
    arrays = (array.reshape(array.size) for array in (x, weight, weight if bias is None else bias, out))
    return launch, (*arrays, sizes)


def _launch_short(convolution, stream):
    """Make (launch, arguments) of the kernel for sums of few terms."""
    x, weight, bias, out, geometry, groups = convolution
    (samples, _, height, width), dtype, terms = x.shape, dtype_of(x), prod(weight.shape[1:])
    windows, outs, channels = samples * geometry.counts[1], weight.shape[0] // groups, weight.shape[1]
    work = divide(terms, windows, outs, groups, cuda.get_current_device().MULTIPROCESSOR_COUNT)
    even = geometry.counts[1] % 2 == 0 and address_of(out) % (2 * dtype.itemsize) == 0
    pixels, last = height * width, lies_last(x) and not x.is_c_contiguous()
    vector = vector_of(channels, address_of(x), dtype.itemsize) if last else 1
    kernel = short(
        channels, tuple(map(int, weight.shape[2:])), work.run, work.run > 1 and even, vector, dtype.itemsize == 2
    )
    near = (channels, 1, width * x.shape[1], x.shape[1]) if last else (channels * pixels, pixels, width, 1)
    images = window(x, dtype, x.size) if last else x.reshape(x.size)
    grid = ceil_div(windows, work.run * SHORT_THREADS), ceil_div(outs, work.outs), groups
    launch = configure_quietly(kernel, grid, SHORT_THREADS, stream, short_bytes(terms, work.outs))
    sizes = tuple(map(np.uint32, (windows, outs, work.outs, bias is not None)))
    arrays = (array.reshape(array.size) for array in (weight, weight if bias is None else bias, out))
    return launch, (images, *arrays, geometry, sizes, tuple(map(np.uint32, (x.size // samples, *near))))


def _launch_apart(convolution, stream):
    """Make (launch, arguments) of the kernel for few out channels, and windows that have few pixels in common."""
    x, weight, bias, out, geometry, groups = convolution
    kernel, images, channels = tuple(map(int, weight.shape[2:])), x.shape[0] * groups, weight.shape[1]
    (out_h, out_w), outs = geometry.out_size, weight.shape[0] // groups
    shares = share(images, channels, outs, geometry, cuda.get_current_device().MULTIPROCESSOR_COUNT)
    below = ceil_div(out_h, shares.run)
    grid = ceil_div(images * below * out_w, APART_THREADS // (kernel[1] * shares.parts))
    launch = configure_quietly(apart(kernel, outs, shares), grid, APART_THREADS, stream)
    arrays = (array.reshape(array.size) for array in (x, weight, weight if bias is None else bias, out))
    sizes = np.uint32(images * below * out_w), np.uint32(channels), np.bool_(bias is not None)
    return launch, (*arrays, geometry, sizes, make_divisor(below), make_divisor(groups))


def _goes_in_pairs(x, out, kernel, geometry):
    """Whether a depthwise kernel can load and store two elements of a row at a time."""
    even = int(geometry.width.value) % 2 == int(geometry.out_w.value) % 2 == 0
    aligned = all(address_of(array) % (2 * dtype_of(array).itemsize) == 0 for array in (x, out))
    return even and aligned and geometry.dilation_w == 1 and kernel[0] > 1 and prod(kernel) <= MAX_PAIRED_TAPS


def depthwise_reads_last(x: Any, weight_shape: tuple, geometry: Geometry, groups: int) -> bool:
    """Whether a depthwise kernel reads images in place, with their channels last."""
    if not _is_depthwise(x.shape, weight_shape, geometry) or not lies_last(x) or x.is_c_contiguous():
        return False
    unit = _unit_of(x)
    if weight_shape[0] != groups or not unit or dtype_of(x).itemsize > 4:
        return False
    return _tiling(x, unit, weight_shape, geometry, False)[2] <= MAX_TILE


def _unit_of(x):
    return unit_of(x.shape[1], address_of(x), dtype_of(x).itemsize)


def _tiling(x, unit, weight_shape, geometry, biased):
    kernel, itemsize = tuple(map(int, weight_shape[2:])), dtype_of(x).itemsize
    return make_tiling(x.shape[1], unit, geometry.out_size, kernel, _steps(geometry), itemsize, biased)


def _launch_depthwise_last(convolution, stream):
    """Make (launch, arguments) for images with their channels last."""
    x, weight, bias, out, geometry, _ = convolution
    dtype, unit = dtype_of(x), _unit_of(x)
    tiling, blocks, nbytes = _tiling(x, unit, weight.shape, geometry, bias is not None)
    kernel = depthwise_last(tuple(map(int, weight.shape[2:])), *_steps(geometry), FORMS[dtype.name].element, unit)
    intrinsics.allow_dynamic_shared(kernel, nbytes)
    launch = configure_quietly(kernel, x.shape[0] * blocks, LAST_THREADS, stream, nbytes)
    arrays = (array.reshape(array.size) for array in (weight, weight if bias is None else bias, out))
    return launch, (window(x, dtype, x.size), *arrays, geometry, tiling)


def launch_blocked(convolution: Convolution, pixels: int, stream: Any = 0) -> tuple:
    """Make (launch, arguments) of "blocked" with sums of so many rows in a thread, to see what spills."""
    return _launch_rung(_blocked_rung(convolution, pixels), convolution, stream)


def _launch_rung(rung, convolution, stream):
    x, weight, bias, out, geometry, _ = convolution
    sizes, blocks = _sizes(convolution, rung.tile, rung.channels, is_wide(x, geometry))
    launch = _configure(rung.kernel, blocks, rung.block, stream, rung.nbytes)
    return launch, (x, weight, weight.reshape(weight.size) if bias is None else bias, out, sizes)


def _why_none_fits(name, kernel, geometry):
    """What an algorithm without a layout was given, and what it needs."""
    stride, dilation = _steps(geometry)
    given = f"the kernel is {tuple(kernel)}, stride {stride} and dilation {dilation}"
    if name == "paired" and not _can_be_paired(kernel, stride, dilation):
        return f"{given}; it needs a kernel of 2 columns or more, and a stride and dilation of 1 along a row"
    if name == "winograd" and not _can_be_winograd(kernel, stride, dilation):
        return f"{given}; it needs a multiple of 3 rows, and a stride and dilation of 1 along a column"
    return f"{given}; 4 neighbours may need {MAX_SPAN} pixels of a row at most, and a tile must fit into shared memory"


def launch_specialised(layout: Layout, convolution: Convolution, stream: Any, wide: bool) -> tuple:
    """Make (launch, arguments) of the kernel for a layout; ``wide`` as `is_wide` says."""
    x, weight, bias, out, *_ = convolution
    sizes, blocks = _sizes(convolution, layout.tile, layout.channels_per_block, wide)
    launch = _configure(specialised(layout), blocks, layout.threads, stream, layout.nbytes)
    arrays = (array.reshape(array.size) for array in (x, weight, weight if bias is None else bias, out))
    return launch, (*arrays, sizes)


def _configure(kernel, blocks, block, stream, nbytes):
    if nbytes > cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK:
        intrinsics.allow_dynamic_shared(kernel, nbytes)
    return configure_quietly(kernel, blocks, block, stream, nbytes)


def is_wide(x: Any, geometry: Geometry) -> bool:
    """Whether four neighbours of a row can be read at a time."""
    return int(geometry.width.value) % 4 == 0 and address_of(x) % 16 == 0


def _sizes(convolution, tile, channels, wide):
    """The Sizes of a launch whose blocks compute a tile of so many out channels, and its number of blocks."""
    x, weight, bias, _, geometry, groups = convolution
    samples, outs = x.shape[0], weight.shape[0] // groups
    tiles = [ceil_div(n, of) for n, of in zip(geometry.out_size, tile, strict=True)]
    channel_blocks = ceil_div(outs, channels)
    blocks = samples * groups * tiles[0] * tiles[1] * channel_blocks
    if blocks >= 2**31:
        raise ValueError(f"x is too large: the direct kernel has {blocks} blocks; it must be fewer than 2**31")
    g = geometry
    kernel = g.kernel_h, g.kernel_w.value, g.stride_h.value, g.stride_w.value
    edges = g.padding_h, g.padding_w, g.dilation_h, g.dilation_w
    numbers = map(np.uint32, (*g.out_size, *kernel, *edges, weight.shape[1], outs))
    divisors = map(make_divisor, (groups, *tiles, channel_blocks))
    flags = np.bool_(bias is not None), np.bool_(wide)
    sizes = Sizes._make((g.height, g.width.value, *numbers, *divisors, *flags))
    return sizes, blocks


class Rung(NamedTuple):
    """A kernel of the ladder with what its launch needs."""

    kernel: Any
    block: tuple[int, ...]  # threads along x and y
    tile: tuple[int, ...]  # rows and columns of the result
    channels: int  # out channels of a block
    nbytes: int  # of shared memory


def _make_rung(name, convolution):
    x, geometry = convolution.x, convolution.geometry
    kernel = LADDER[name]
    if name == "naive":
        return Rung(kernel, NAIVE_BLOCK, NAIVE_BLOCK[::-1], 1, 0)
    if name == "blocked":
        return _blocked_rung(convolution, ladder.PIXELS)
    rows, cols = _spans(ladder.TILE, geometry)
    words = {"wide": rows * ((cols + 6) // 4 * 4), "prefetch": 2 * rows * cols}.get(name, rows * cols)
    if name == "prefetch" and dtype_of(x).itemsize == 2:
        kernel = ladder.prefetch_half
    return Rung(kernel, ladder.TILE[::-1], ladder.TILE, 1, 4 * words)


def _blocked_rung(convolution, pixels):
    _, weight, _, _, geometry, groups = convolution
    channels = min(weight.shape[0] // groups, MAX_BLOCKED_CHANNELS)
    tile = ladder.BLOCKED[1] * pixels, ladder.BLOCKED[0]
    rows, cols = _spans(tile, geometry)
    words = rows * cols + geometry.counts[0] * channels
    return Rung(ladder.blocked(channels, pixels), ladder.BLOCKED, tile, channels, 4 * words)


def _spans(tile, geometry):
    """Rows and columns of pixels that a tile of the result needs."""
    (stride_h, stride_w), (dilation_h, dilation_w) = _steps(geometry)
    rows = covered(tile[0], stride_h, int(geometry.kernel_h), dilation_h)
    return rows, covered(tile[1], stride_w, int(geometry.kernel_w.value), dilation_w)


# -- layouts of the specialised kernel -------------------------------------------------------------

#: Shared memory of a multiprocessor, and what each block takes of it for itself.
SHARED_PER_SM, SHARED_RESERVED = 227 * 1024, 1024
#: Registers of a multiprocessor, and the most that a thread may need so that nothing is spilled.
REGISTERS_PER_SM, MAX_REGISTERS = 65536, 250
#: How many of the fastest layouts are kept, and what counts as about as fast as the fastest.
MAX_LISTED, ABOUT_AS_FAST = 8, 1.02
#: Added to the time of a layout for each further set of warps that shares its in channels.
SPLIT_PENALTY = 0.02
#: Microseconds from which multiply-adds alone count, and how many more of them the first of each weight is worth then;
#: in pairs, where a weight has half as many, always.
COMPUTE_BOUND_US, BANK_COST, BANK_COST_IN_PAIRS = 100, 0.6, 0.9
#: Threads that make a block small, blocks per multiprocessor that are many, and how much longer such blocks take.
SMALL_BLOCK, MANY_BLOCKS, SMALL_BLOCK_FACTOR = 64, 4, 1.1
#: Rows of the kernel, of all in channels of a stage together, for which a stage is worth its barrier; most channels.
STAGE_ROWS, MAX_DEPTH = 12, 8
#: From how many in channels on there are stages enough for longer ones, and how long they are then.
MANY_CHANNELS, LONG_STAGE_ROWS, MAX_LONG_DEPTH = 16, 36, 4
#: Values are in pairs from so many columns on, as for fewer the differences cost what they save, and from so many terms
#: of a sum on, as rows in fours: the rounding of differences is small beside that of a long sum.
MIN_PAIRED_COLUMNS, MIN_SHARED_TERMS = 5, 100
#: Neighbouring values of a thread.
RUNS = 4, 8, 12, 16, 28
#: Threads along a row of the tile, at most; with Winograd's fours, neighbouring values of a thread, at most.
MAX_ACROSS, MAX_WINOGRAD_RUN = 8, 12
#: Times with Winograd's fours, fitted to 29 measurements on an H200: the share of the predicted time, that for three
#: rows of the kernel and for fewer values of a thread, the penalty of tiles with half as many threads, microseconds.
WINOGRAD_TIME_FACTOR, ONE_TAP_FACTOR, SHORT_RUN_FACTOR, NARROW_PENALTY, WINOGRAD_US = 0.96, 0.93, 1.14, 0.01, 0.5
#: Sets of warps that share the in channels of a stage.
SPLITS = 1, 2, 4
#: Most pixels of a row that a thread keeps, and copies that it makes of a channel, in registers; most out channels (the
#: copies of more weights get into each other's way) and threads of a block.
MAX_SPAN, MAX_COPIES, MAX_CHANNELS, MAX_THREADS = 44, 16, 16, 256
#: Cycles of a warp that `predict` counts with, fitted to 472 measurements on an H200: for the weights of one value of
#: the kernel, for four pixels of a row, for a copy of pixels and one of weights, for a value stored, and for a sum that
#: sets of warps exchange.
WEIGHTS_CYCLES, PIXELS_CYCLES, COPY_CYCLES = 3.5, 12.6, 19.3
WEIGHT_COPY_CYCLES, STORE_CYCLES, COMBINE_CYCLES = 13.5, 36, 19
#: Where a multiprocessor has one block only, cycles for a multiply-add, for a row of the kernel, and for a stage.
ALONE_CYCLES, ALONE_ROW_CYCLES, ALONE_STAGE_CYCLES = 0.73, 76, 1330
#: Elements of two bytes are converted on their way to shared memory: cycles for a copy of pixels, and for the loads of
#: an in channel, for which a block waits.
HALF_COPY_CYCLES, ALONE_LOAD_CYCLES = 40, 800
#: Microseconds of a launch, cycles of a microsecond, and bytes that memory moves in one.
LAUNCH_US, CYCLES_PER_US, BYTES_PER_US = 5.2, 1980, 1.7e6


def layout_of(
    x_shape: tuple,
    weight_shape: tuple,
    geometry: Geometry,
    groups: int,
    wide: bool,
    dtype: Any,
    name: str = "direct",
) -> Layout | None:
    """Choose the Layout for a convolution; None if the kernel is too wide, or the stride or dilation too large.

    ``name`` is one of ``LAID_OUT``. Values and rows share products under "direct" only where a sum has many terms.
    """
    return next(iter(layouts_of(x_shape, weight_shape, geometry, groups, wide, dtype, 1, name)), None)


def layouts_of(
    x_shape: tuple,
    weight_shape: tuple,
    geometry: Geometry,
    groups: int,
    wide: bool,
    dtype: Any,
    count: int,
    name: str = "direct",
) -> list[Layout]:
    """List the ``count`` Layouts that are expected to be fastest, best first; fewer if there are fewer."""
    return [layout for _, layout in _fastest(x_shape, weight_shape, geometry, groups, wide, dtype, name)[:count]]


def _fastest(x_shape, weight_shape, geometry, groups, wide, dtype, name):
    """[(microseconds, layout), ...] of the specialised kernels that are expected to be fastest."""
    half, (out_channels, channels, *kernel) = np.dtype(dtype).itemsize == 2, weight_shape
    stride, dilation = _steps(geometry)
    quads = bool(wide and not half and int(geometry.padding_w) % 4 == 0)
    rows, limit = (STAGE_ROWS, MAX_DEPTH) if channels < MANY_CHANNELS else (LONG_STAGE_ROWS, MAX_LONG_DEPTH)
    depth = max(1, min(rows // kernel[0], limit, channels))
    can_pair, can_winograd = _can_be_paired(kernel, stride, dilation), _can_be_winograd(kernel, stride, dilation)
    many = channels * geometry.counts[0] >= MIN_SHARED_TERMS
    allowed = {
        (False, False): name in ("specialised", "direct"),
        (True, False): can_pair and (name == "paired" or name == "direct" and many and kernel[1] >= MIN_PAIRED_COLUMNS),
        (can_pair, True): can_winograd and (name == "winograd" or name == "direct" and many and not half),
    }
    ways = tuple(way for way, is_allowed in allowed.items() if is_allowed)
    how = tuple(kernel), stride, dilation, depth, min(channels, max(SPLITS)), quads, half, ways
    images, out_size = x_shape[0] * groups, geometry.out_size
    multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
    return _rank(how, images, channels, out_channels // groups, out_size, multiprocessors)


def _steps(geometry):
    """Strides and dilations along columns and rows."""
    stride = int(geometry.stride_h.value), int(geometry.stride_w.value)
    return stride, (int(geometry.dilation_h), int(geometry.dilation_w))


def _can_be_paired(kernel, stride, dilation):
    """Whether neighbouring values have neighbouring pixels, and two weights of a row to share them."""
    return kernel[1] > 1 and stride[1] == dilation[1] == 1


def _can_be_winograd(kernel, stride, dilation):
    """Whether neighbouring rows of values have neighbouring rows of pixels, and the kernel threes of rows."""
    return kernel[0] % 3 == 0 and stride[0] == dilation[0] == 1


@functools.lru_cache(4096)
def _rank(how, images, channels, out_channels, out_size, multiprocessors):
    """[(microseconds, layout), ...] of the fastest few, as `predict` expects it; empty if none fits."""
    layouts, table = _layouts(*how)
    if not layouts:
        return []
    times = predict(table, images, channels, out_channels, out_size, multiprocessors)
    # A weight's first multiply-add finds its operands in one bank of registers; it shows where these alone count.
    times = np.where((times > COMPUTE_BOUND_US) & ~table.paired, times * (1 + BANK_COST / table.run), times)
    # The model leaves out that sets of warps wait for each other.
    times *= 1 + SPLIT_PENALTY * (table.split - 1)
    narrow = 1 + NARROW_PENALTY * np.log2(MAX_ACROSS / table.across)
    factor = WINOGRAD_TIME_FACTOR * narrow * np.where(table.taps == 1, ONE_TAP_FACTOR, 1)
    factor *= np.where(table.run < MAX_WINOGRAD_RUN, SHORT_RUN_FACTOR, 1)
    times = np.where(table.winograd, WINOGRAD_US + factor * times, times)
    # Many blocks of a warp or two copy more pixels than they compute on; nor need four sets of warps share channels.
    blocks = _blocks(table, images, out_channels, out_size)
    many = blocks > MANY_BLOCKS * multiprocessors
    times[many & ((table.threads <= SMALL_BLOCK) | (table.split == max(SPLITS)))] *= SMALL_BLOCK_FACTOR
    # Of those that are about as fast: many out channels to a block and many threads, which share what they copy, but
    # not at the price of multiprocessors that have no block.
    blocks = np.minimum(blocks, multiprocessors)
    # Nothing is gained by threads that lie outside of the image, or by out channels that do not exist.
    ranked = times * np.where((table.cols - table.run >= out_size[1]) | (table.spare(out_channels) > 0), 2, 1)
    near, shared = ranked <= ABOUT_AS_FAST * ranked.min(), np.minimum(table.channels_per_block, out_channels)
    ties = (table.threads / table.split, blocks, shared)
    order = np.lexsort((ranked, *(np.where(near, -best, 0) for best in ties)))
    return [(float(times[i]), layouts[i]) for i in order[:MAX_LISTED]]


class LayoutTable(NamedTuple):
    """What `predict` needs to know of layouts, as arrays with one value for each."""

    threads: np.ndarray  # these are properties of a Layout
    channels_per_thread: np.ndarray
    channels_per_block: np.ndarray
    run: np.ndarray
    lines: np.ndarray
    paired: np.ndarray
    winograd: np.ndarray
    across: np.ndarray
    taps: np.ndarray
    split: np.ndarray
    depth: np.ndarray
    copies: np.ndarray
    half: np.ndarray
    rows: np.ndarray  # of the tile
    cols: np.ndarray
    resident: np.ndarray  # blocks that a multiprocessor holds at a time
    loads: np.ndarray  # of four pixels by a thread, for a row of the kernel
    adds: np.ndarray  # of a thread for a row of the kernel, in multiply-adds
    weights: np.ndarray  # copies of weights by a thread, for each in channel
    kernel: tuple[int, int]
    stride: tuple[int, int]

    def spare(self, out_channels: int) -> np.ndarray:
        """Count the surplus out channels of the last block, beyond what any choice has."""
        allowed = np.maximum(self.channels_per_thread - 1, self.channels_per_block // 4)
        padded = -(-out_channels // self.channels_per_block) * self.channels_per_block
        return np.maximum(padded - out_channels - allowed, 0)


@functools.lru_cache(64)
def _layouts(kernel, stride, dilation, depth, channels, quads, half, ways) -> tuple[list[Layout], Any]:
    """Every layout for a kernel that fits into a multiprocessor, and their LayoutTable, None if there are none."""
    layouts = []
    splits = [split for split in SPLITS if split <= channels]
    for per_thread, channel_groups, run, split in itertools.product((1, 2, 3, 4, 6, 8), (1, 2, 4), RUNS, splits):
        for across, threads in itertools.product((1, 2, 4, MAX_ACROSS), (32, 64, 128, 256)):
            if per_thread * channel_groups <= MAX_CHANNELS and threads * channel_groups * split <= MAX_THREADS:
                tile = run, across, threads // across, ceil_div(depth, split) * split, 2
                layout = Layout(kernel, stride, dilation, per_thread, channel_groups, *tile, quads, half, split)
                layouts += filter(_fits, (layout._replace(paired=pairs, winograd=fours) for pairs, fours in ways))
    rows = [_table_row(layout) for layout in layouts]
    return layouts, LayoutTable._make((*map(np.array, zip(*rows, strict=True)), kernel, stride)) if rows else None


def _fits(layout):
    if layout.span > MAX_SPAN or layout.copies > MAX_COPIES or layout.threads > MAX_THREADS:
        return False
    if layout.winograd and (layout.split > 1 or layout.run > MAX_WINOGRAD_RUN or layout.across * layout.down > 32):
        return False
    if layout.has_conflicts and layout.stride == (1, 1):  # with other strides all have them
        return False
    registers = _registers(layout)
    few = registers <= MAX_REGISTERS and registers * layout.threads <= REGISTERS_PER_SM
    return few and layout.nbytes + SHARED_RESERVED <= SHARED_PER_SM


def _registers(layout):
    """Estimate the registers that a thread needs."""
    row = (3 + layout.kernel[1] % 2) * layout.pixel_pairs if layout.paired else layout.span
    sums = layout.sum_sets * layout.channels_per_thread * layout.sums
    return sums + (2 if layout.winograd else 1) * layout.span + row + 2 * layout.padded_channels + 36


def _table_row(layout):
    threads, registers = layout.threads, min(ceil_div(_registers(layout), 8) * 8, 255)
    by_shared = SHARED_PER_SM // (layout.nbytes + SHARED_RESERVED)
    resident = min(REGISTERS_PER_SM // (registers * threads), by_shared, 2048 // threads, 32)
    adds = layout.multiply_adds
    if layout.paired:
        adds = (1 + BANK_COST_IN_PAIRS / layout.sums) * adds + 2 * layout.pixel_pairs
    adds += layout.winograd * layout.span
    weights = layout.kernel[0] * layout.kernel[1] * layout.channel_groups * layout.padded_channels / threads
    own = (getattr(layout, name) for name in LayoutTable._fields[:13])
    loads = layout.span // 4 * layout.values_down  # a row of its own for each
    return *own, *layout.tile, max(1, resident), loads, adds, weights


def _blocks(table, images, out_channels, out_size):
    tiles = np.ceil(out_size[0] / table.rows) * np.ceil(out_size[1] / table.cols)
    return images * tiles * np.ceil(out_channels / table.channels_per_block)


def predict(
    table: LayoutTable, images: int, channels: int, out_channels: int, out_size: tuple[int, int], multiprocessors: int
) -> np.ndarray:
    """Predict the microseconds of a launch by each layout, for so many images (samples times groups).

    The warps of a multiprocessor share its four schedulers, so what they issue adds up; but no block is done before its
    own instructions have followed one another. The multiprocessor with the most blocks counts, and memory.
    """
    stages = np.ceil(channels / table.depth) * table.depth
    blocks = _blocks(table, images, out_channels, out_size)
    weights = WEIGHTS_CYCLES * table.lines * np.ceil(table.channels_per_thread / 4)
    values, rows = table.channels_per_thread * table.run, channels * table.taps / table.split
    store = values * (STORE_CYCLES / table.split + np.where(table.split > 1, COMBINE_CYCLES, 0))
    copy = np.where(table.half, HALF_COPY_CYCLES, COPY_CYCLES) * table.copies + WEIGHT_COPY_CYCLES * table.weights
    issued = rows * (table.adds + weights + PIXELS_CYCLES * table.loads) + stages * copy + store
    waiting = ALONE_STAGE_CYCLES * stages / table.depth + table.half * ALONE_LOAD_CYCLES * stages
    alone = rows * (ALONE_CYCLES * table.adds + weights + ALONE_ROW_CYCLES) + waiting + store

    def together(count):
        return np.where(count > 0, np.hypot(count * issued * table.threads / 128, alone), 0)

    rounds, last = np.divmod(np.ceil(blocks / multiprocessors), table.resident)
    cycles = rounds * together(table.resident) + together(last)
    pixels = out_size[0] * out_size[1]
    moved = 4 * images * pixels * (out_channels + channels * table.stride[0] * table.stride[1])
    return LAUNCH_US + np.hypot(cycles / CYCLES_PER_US, moved / BYTES_PER_US)
