"""Which way to compute a convolution, and for the direct one which kernel, which tiles, and how many blocks."""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from gpukit import intrinsics, matmul
from gpukit._host.arrays import address_of, configured, dtype_of
from gpukit.backend import cuda
from gpukit.conv import ladder
from gpukit.conv.fast import Layout, specialised
from gpukit.conv.ladder import Sizes
from gpukit.conv.windows import divisor

__all__ = [
    "LADDER",
    "choose_algorithm",
    "direct_launch",
    "expected",
    "is_wide",
    "launch_specialised",
    "layout_of",
    "layouts_of",
    "predict",
]

#: The direct kernels, from the naive one to the one made to measure.
LADDER = ("naive", "tiled", "even", "wide", "prefetch", "blocked", "specialised", "paired")
#: Algorithms that have layouts, and whether values are in pairs there; for "direct" whichever is faster.
OF_LAYOUTS = {"direct": None, "specialised": False, "paired": True}
#: Shared memory of a multiprocessor, and what each block takes of it for itself.
SHARED, OF_A_BLOCK = 227 * 1024, 1024
#: Bytes of a workspace up to which the columns of several samples are written at a time, and that im2col writes in a
#: microsecond.
WORKSPACE, COLUMNS = 32 << 20, 2.7e6
#: How much longer the products of convolutions take than `matmul` expects, whose matrices are small and begin anywhere,
#: and microseconds beside; and how much of the time that `predict` expects the direct kernels take, which copy weights
#: faster than those that its constants were fitted to.
LONGER, FURTHER, SHORTER = 1.08, 1.5, 0.88
#: Block of "naive", and of "blocked" with the rows of the result that each of its threads computes.
NAIVE, BLOCKED, PIXELS = (32, 8), (32, 8), 4
#: Out channels of a thread of "blocked", at most.
MOST_OUTS = 8


# -- direct or by columns --------------------------------------------------------------------------


def choose_algorithm(algorithm, x_shape, weight_shape, at, groups, dtype):
    """ "im2col" or "direct" for "auto", whichever is expected to be the faster of those that are for the dtype."""
    if algorithm != "auto":
        return algorithm
    if dtype == np.float16:
        return "direct"
    if dtype == np.float64 or 0 in (*x_shape, weight_shape[0]):
        return "im2col"
    times = expected(x_shape, weight_shape, at, groups)
    return min(times, key=times.get)


def expected(x_shape, weight_shape, at, groups):
    """{"direct": microseconds, "im2col": microseconds} that a convolution of float32, not an empty one, may take."""
    direct = _fastest(x_shape, weight_shape, at, groups, False, np.float32, None)
    return {
        "direct": SHORTER * direct[0][0] if direct else np.inf,
        "im2col": _by_columns(x_shape, weight_shape, at, groups),
    }


def _by_columns(x_shape, weight_shape, at, groups):
    """Microseconds that im2col and the matrix products are expected to take."""
    (taps, positions), samples, multiprocessors = at.counts, x_shape[0], _multiprocessors()
    m, k = weight_shape[0] // groups, weight_shape[1] * taps
    product = min(
        matmul.cost.predict(speed, m, positions, k, samples * groups, 1, multiprocessors)
        for speed in matmul.cost.SPEEDS
    )
    columns = 0 if at.is_image else 4 * samples * groups * k * positions
    launches = min(samples, -(-columns // WORKSPACE))
    return FURTHER + LONGER * (product + launches * LAUNCH + columns / COLUMNS)


# -- launches --------------------------------------------------------------------------------------


def direct_launch(name, x, weight, bias, out, at, groups, stream):
    """(launch, arguments) of a direct kernel for contiguous arrays; "direct" is the fastest that can be."""
    wide, most = is_wide(x, at), cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    if name in OF_LAYOUTS:
        layout = layout_of(x.shape, weight.shape, at, groups, wide, dtype_of(x), OF_LAYOUTS[name])
        if layout is not None:
            return launch_specialised(layout, x, weight, bias, out, at, groups, wide, stream)
        if name != "direct":
            raise ValueError(f"algorithm is {name!r}; {_what_fits(name, weight.shape[2:], at)}")
    names = ("blocked", "naive") if name == "direct" else (name,)
    rungs = (_rung(name, weight, at, groups, dtype_of(x)) for name in names)
    rung = next((rung for rung in rungs if rung.nbytes <= most), None)
    if rung is None:
        raise ValueError(f"algorithm is {name!r}; its tile, with kernel and dilation, is more than {most:,} bytes")
    sizes, blocks = _sizes(x, weight, at, groups, rung.tile, rung.made, bias is not None, wide)
    launch = _configure(rung.kernel, blocks, rung.block, stream, rung.nbytes)
    return launch, (x, weight, weight.reshape(weight.size) if bias is None else bias, out, sizes)


def _what_fits(name, kernel, at):
    """Why an algorithm has no layout: what it was given, and what it needs."""
    stride, dilation = _steps(at)
    how = f"the kernel is {tuple(kernel)}, stride {stride} and dilation {dilation}"
    if OF_LAYOUTS[name] and not _can_be_paired(kernel, stride, dilation):
        return f"{how}; it needs a kernel of 2 columns or more, and a stride and dilation of 1 along a row"
    return f"{how}; 4 neighbours may need {MOST_SPAN} pixels of a row at most, and a tile must fit into shared memory"


def launch_specialised(layout, x, weight, bias, out, at, groups, wide, stream):
    sizes, blocks = _sizes(x, weight, at, groups, layout.tile, layout.made, bias is not None, wide)
    launch = _configure(specialised(layout), blocks, layout.threads, stream, layout.nbytes)
    arrays = (array.reshape(array.size) for array in (x, weight, weight if bias is None else bias, out))
    return launch, (*arrays, sizes)


def _configure(kernel, blocks, block, stream, nbytes):
    if nbytes > cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK:
        intrinsics.allow_dynamic_shared(kernel, nbytes)
    return configured(kernel, blocks, block, stream, nbytes)


def is_wide(x, at):
    """Whether four neighbours of a row can be read at a time."""
    return int(at.width.value) % 4 == 0 and address_of(x) % 16 == 0


def _sizes(x, weight, at, groups, tile, made, biased, wide):
    """The Sizes of a launch, and its number of blocks."""
    samples, outs = x.shape[0], weight.shape[0] // groups
    tiles = [-(-n // of) for n, of in zip(at.out_size, tile, strict=True)]
    sets = -(-outs // made)
    steps = at.stride_h.value, at.stride_w.value, at.padding_h, at.padding_w, at.dilation_h, at.dilation_w
    blocks = samples * groups * tiles[0] * tiles[1] * sets
    if blocks >= 2**31:
        raise ValueError(f"x is too large: the direct kernel has {blocks} blocks; it must be fewer than 2**31")
    numbers = *at.out_size, at.kernel_h, at.kernel_w.value, *steps, weight.shape[1], outs
    divisors = map(divisor, (groups, *tiles, sets))
    sizes = at.height, at.width.value, *map(np.uint32, numbers), *divisors, np.bool_(biased), np.bool_(wide)
    return Sizes(*sizes), blocks


class Rung(NamedTuple):
    """A kernel of the ladder with what its launch needs."""

    kernel: object
    block: tuple  # threads along x and y
    tile: tuple  # rows and columns of the result
    made: int  # out channels of a block
    nbytes: int  # of shared memory


def _rung(name, weight, at, groups, dtype):
    if name == "naive":
        return Rung(ladder.naive, NAIVE, NAIVE[::-1], 1, 0)
    if name == "blocked":
        made, tile = min(weight.shape[0] // groups, MOST_OUTS), (BLOCKED[1] * PIXELS, BLOCKED[0])
        rows, cols = _spans(tile, at)
        return Rung(ladder.blocked(made, PIXELS), BLOCKED, tile, made, 4 * (rows * cols + at.counts[0] * made))
    rows, cols = _spans(ladder.TILE, at)
    begin_copy = ladder.begin_copy if dtype == np.float32 else ladder.copy_at_once
    kernel, words = {
        "tiled": lambda: (ladder.tiled(ladder.copy_by_edges), rows * cols),
        "even": lambda: (ladder.tiled(ladder.copy_evenly), rows * cols),
        "wide": lambda: (ladder.wide, rows * ((cols + 6) // 4 * 4)),
        "prefetch": lambda: (ladder.prefetch(begin_copy), 2 * rows * cols),
    }[name]()
    return Rung(kernel, ladder.TILE[::-1], ladder.TILE, 1, 4 * words)


def _spans(tile, at):
    """Rows and columns of pixels that a tile of the result needs."""
    rows = (tile[0] - 1) * int(at.stride_h.value) + (int(at.kernel_h) - 1) * int(at.dilation_h) + 1
    cols = (tile[1] - 1) * int(at.stride_w.value) + (int(at.kernel_w.value) - 1) * int(at.dilation_w) + 1
    return rows, cols


# -- layouts of the kernel made to measure ---------------------------------------------------------

#: Registers of a multiprocessor, and the most that a thread may need so that nothing is spilled.
REGISTERS, MOST_REGISTERS = 65536, 250
#: How many of the fastest are remembered, and what counts as about as fast as the fastest.
MOST_LISTED, ABOUT = 8, 1.02
#: What is added to the time of a layout for each further set of warps that shares its in channels.
WAITING = 0.02
#: Microseconds from which multiply-adds alone count, and how many more of them the first of each weight is worth then;
#: in pairs, where a weight has half as many, always.
LONG, BANKS, BANKS_IN_PAIRS = 100, 0.6, 0.9
#: What makes blocks few threads, and many for a multiprocessor; and how much longer such blocks take than expected.
FEW_THREADS, MANY_BLOCKS, COPYING = 64, 4, 1.1
#: Rows of the kernel, of all in channels of a stage together, for which a stage is worth its barrier; most channels.
STAGE_LINES, MOST_DEPTH = 12, 8
#: From how many in channels on there are stages enough for longer ones, and how long they are then.
MANY_CHANNELS, LONG_STAGE_LINES, LONG_STAGE_DEPTH = 16, 36, 4
#: Values are in pairs where the kernel has so many columns, as for fewer the differences cost what they save, and a sum
#: has so many terms: the rounding of differences is small beside that of a long sum.
PAIRED_COLUMNS, PAIRED_TERMS = 5, 100
#: Neighbouring values of a thread.
RUNS = 4, 8, 12, 16, 28
#: Sets of warps that share the in channels of a stage.
SPLITS = 1, 2, 4
#: Most pixels of a row that a thread keeps, and copies that it makes of a channel, in registers; most out channels (the
#: copies of more weights get into each other's way) and threads of a block.
MOST_SPAN, MOST_COPIES, MOST_MADE, MOST_THREADS = 44, 16, 16, 256
#: Cycles of a warp that `predict` counts with, fitted to 472 measurements on an H200: for the weights of one value of
#: the kernel, for four pixels of a row, for a copy of pixels and one of weights, for a value stored, and for a sum that
#: sets of warps give each other.
WEIGHTS, PIXELS_OF_ROW, COPY, WEIGHT_COPY, STORE, COMBINE = 3.5, 12.6, 19.3, 13.5, 36, 19
#: Where a multiprocessor has one block only, cycles for a multiply-add, for a row of the kernel, and for a stage.
ALONE, ALONE_LINE, ALONE_STAGE = 0.73, 76, 1330
#: Microseconds of a launch, cycles of a microsecond, and bytes that memory moves in one.
LAUNCH, CYCLES, MEMORY = 5.2, 1980, 2.2e6


def layout_of(x_shape, weight_shape, at, groups, wide, dtype, paired=None):
    """The Layout for a convolution; None if the kernel is too wide, or the stride or dilation too large.

    ``paired`` tells whether its values are in pairs; None stands for whichever is expected to be faster, with pairs
    only where a sum has many terms.
    """
    return next(iter(layouts_of(x_shape, weight_shape, at, groups, wide, dtype, 1, paired)), None)


def layouts_of(x_shape, weight_shape, at, groups, wide, dtype, count, paired=None):
    """The ``count`` Layouts that are expected to be the fastest, that first; fewer if there are fewer."""
    return [layout for _, layout in _fastest(x_shape, weight_shape, at, groups, wide, dtype, paired)[:count]]


def _fastest(x_shape, weight_shape, at, groups, wide, dtype, paired):
    """[(microseconds, layout), ...] of the specialised kernels that are expected to be the fastest."""
    half, (made, channels, *kernel) = np.dtype(dtype) == np.float16, weight_shape
    stride, dilation = _steps(at)
    quads = bool(wide and not half and int(at.padding_w) % 4 == 0)
    lines, most = (STAGE_LINES, MOST_DEPTH) if channels < MANY_CHANNELS else (LONG_STAGE_LINES, LONG_STAGE_DEPTH)
    depth = max(1, min(lines // kernel[0], most, channels))
    ways = (paired,)
    if paired is None:
        ways = (False, True) if kernel[1] >= PAIRED_COLUMNS and channels * at.counts[0] >= PAIRED_TERMS else (False,)
    if not _can_be_paired(kernel, stride, dilation):
        ways = tuple(way for way in ways if not way)
    how = tuple(kernel), stride, dilation, depth, min(channels, max(SPLITS)), quads, half, ways
    return _best(how, x_shape[0] * groups, channels, made // groups, at.out_size, _multiprocessors())


def _steps(at):
    """Strides and dilations along columns and rows."""
    return (int(at.stride_h.value), int(at.stride_w.value)), (int(at.dilation_h), int(at.dilation_w))


def _can_be_paired(kernel, stride, dilation):
    """Whether neighbouring values have neighbouring pixels, and two weights of a row to share them."""
    return kernel[1] > 1 and stride[1] == dilation[1] == 1


def _multiprocessors():
    return cuda.get_current_device().MULTIPROCESSOR_COUNT


@functools.lru_cache(4096)
def _best(how, images, channels, made, out_size, multiprocessors):
    """[(microseconds, layout), ...] of the fastest few, as `predict` expects it; empty if none can be."""
    layouts, known = _layouts(*how)
    if not layouts:
        return []
    times = predict(known, images, channels, made, out_size, multiprocessors)
    # A weight's first multiply-add finds its operands in one bank of registers; it shows where these alone count.
    times = np.where((times > LONG) & ~known.paired, times * (1 + BANKS / known.run), times)
    # What sets of warps have to wait for each other is not in the model.
    times *= 1 + WAITING * (known.split - 1)
    # Nothing is gained by threads that lie outside of the image, or by out channels that nobody needs.
    times[(known.cols - known.run >= out_size[1]) | (known.spare(made) > 0)] *= 2
    # Many blocks of a warp or two copy more pixels than they compute on; nor need four sets of warps share channels.
    blocks = _blocks(known, images, made, out_size)
    many = blocks > MANY_BLOCKS * multiprocessors
    times[many & ((known.threads <= FEW_THREADS) | (known.split == max(SPLITS)))] *= COPYING
    # Of those that are about as fast: many out channels to a block and many threads, which share what they copy, but
    # not at the price of multiprocessors that have no block.
    blocks = np.minimum(blocks, multiprocessors)
    about, shared = times <= ABOUT * times.min(), np.minimum(known.made, made)
    order = np.lexsort((times, *(np.where(about, -best, 0) for best in (known.threads / known.split, blocks, shared))))
    return [(float(times[i]), layouts[i]) for i in order[:MOST_LISTED]]


class Known(NamedTuple):
    """What `predict` needs of layouts, as arrays with one value for each."""

    threads: np.ndarray
    resident: np.ndarray  # blocks that a multiprocessor holds at a time
    outs: np.ndarray
    made: np.ndarray
    run: np.ndarray
    adds: np.ndarray  # of a thread for a row of the kernel, in multiply-adds
    lines: np.ndarray  # of weights, for a row of the kernel
    paired: np.ndarray
    span: np.ndarray
    split: np.ndarray
    rows: np.ndarray  # of the tile
    cols: np.ndarray
    depth: np.ndarray
    copies: np.ndarray
    weights: np.ndarray  # copies of weights by a thread, for each in channel
    kernel: tuple
    stride: tuple

    def spare(self, made):
        """Out channels of the last block that nobody needs, if a smaller choice would do."""
        return np.maximum(-(-made // self.made) * self.made - made - np.maximum(self.outs - 1, self.made // 4), 0)


@functools.lru_cache(64)
def _layouts(kernel, stride, dilation, depth, channels, quads, half, ways):
    """Every layout for a kernel that fits into a multiprocessor, and what is known of them."""
    layouts = []
    splits = [split for split in SPLITS if split <= channels]
    for outs, parts, run, split in itertools.product((1, 2, 3, 4, 6, 8), (1, 2, 4), RUNS, splits):
        for across, threads in itertools.product((1, 2, 4, 8), (32, 64, 128, 256)):
            if outs * parts <= MOST_MADE and threads * parts * split <= MOST_THREADS:
                tile = run, across, threads // across, -(-depth // split) * split, 2
                of_all = Layout(kernel, stride, dilation, outs, parts, *tile, quads, half, split)
                layouts += [layout for paired in ways if _fits(layout := of_all._replace(paired=paired))]
    rows = [_known(layout) for layout in layouts]
    return layouts, Known(*map(np.array, zip(*rows, strict=True)), kernel, stride) if rows else None


def _fits(layout):
    if layout.span > MOST_SPAN or layout.copies > MOST_COPIES:
        return False
    if layout.has_conflicts and layout.stride == (1, 1):  # with other strides all have them
        return False
    registers = _registers(layout)
    few = registers <= MOST_REGISTERS and registers * layout.threads <= REGISTERS
    return few and layout.nbytes + OF_A_BLOCK <= SHARED


def _registers(layout):
    """About how many registers a thread needs."""
    row = (3 + layout.kernel[1] % 2) * layout.pixel_pairs if layout.paired else layout.span
    return layout.sets * layout.outs * layout.sums + layout.span + row + 2 * layout.slot + 36


def _known(layout):
    threads, registers = layout.threads, min(-(-_registers(layout) // 8) * 8, 255)
    limits = REGISTERS // (registers * threads), SHARED // (layout.nbytes + OF_A_BLOCK), 2048 // threads, 32
    weights = layout.kernel[0] * layout.kernel[1] * layout.parts * layout.slot / threads
    adds = layout.multiply_adds
    if layout.paired:
        adds = (1 + BANKS_IN_PAIRS / layout.sums) * adds + 2 * layout.pixel_pairs
    return (
        threads,
        max(1, min(limits)),
        layout.outs,
        layout.made,
        layout.run,
        adds,
        layout.lines,
        layout.paired,
        layout.span,
        layout.split,
        *layout.tile,
        layout.depth,
        layout.copies,
        weights,
    )


def _blocks(known, images, made, out_size):
    tiles = np.ceil(out_size[0] / known.rows) * np.ceil(out_size[1] / known.cols)
    return images * tiles * np.ceil(made / known.made)


def predict(known, images, channels, made, out_size, multiprocessors):
    """Microseconds that the launch of each layout takes for so many images (samples times groups).

    The warps of a multiprocessor share its four schedulers, so what they issue adds up; but no block is done before its
    own instructions have followed one another. The multiprocessor with the most blocks counts, and memory.
    """
    stages, blocks = np.ceil(channels / known.depth) * known.depth, _blocks(known, images, made, out_size)
    weights = WEIGHTS * known.lines * np.ceil(known.outs / 4)
    values, lines = known.outs * known.run, channels * known.kernel[0] / known.split
    store = values * (STORE / known.split + np.where(known.split > 1, COMBINE, 0))
    copy = COPY * known.copies + WEIGHT_COPY * known.weights
    issued = lines * (known.adds + weights + PIXELS_OF_ROW * known.span / 4) + stages * copy + store
    alone = lines * (ALONE * known.adds + weights + ALONE_LINE) + ALONE_STAGE * stages / known.depth + store

    def together(count):
        return np.where(count > 0, np.hypot(count * issued * known.threads / 128, alone), 0)

    rounds, last = np.divmod(np.ceil(blocks / multiprocessors), known.resident)
    cycles = rounds * together(known.resident) + together(last)
    pixels = out_size[0] * out_size[1]
    moved = 4 * images * pixels * (made + channels * known.stride[0] * known.stride[1])
    return LAUNCH + np.hypot(cycles / CYCLES, moved / MEMORY)
