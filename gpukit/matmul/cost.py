"""Choose the tiles, and the parts of K, for a product of a given shape.

A small model predicts the time of each choice. A multiprocessor runs as many blocks of a tile at a time as its
registers and shared memory hold; the others wait. The multiprocessor with the most blocks determines the time.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from gpukit._host.checks import check_dtype
from gpukit.backend import cuda
from gpukit.matmul.double import DoubleTile
from gpukit.matmul.fast import TURN_TILE, Tile
from gpukit.matmul.loaded import LoadedTile
from gpukit.matmul.packed import packed_time
from gpukit.matmul.shallow import ShallowTile
from gpukit.matmul.sliced import SlicedTile
from gpukit.matmul.small import SmallTile
from gpukit.matmul.warpgroups import GroupTile
from gpukit.matmul.warps import WarpTile
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ
from warpstep.values import check_int

__all__ = [
    "SPEEDS",
    "Access",
    "Choice",
    "Piece",
    "Speed",
    "choices",
    "choose",
    "choose_tensor",
    "half_kind",
    "high_pays",
    "predict",
    "predicted_time",
    "prefers_packed",
    "tensor_time",
    "time_to_stream",
]


class Access(NamedTuple):
    """How ``a`` and ``b`` are read.

    Attributes
    ----------
    lines : (float, float)
        Cache lines that a row of a tile lies in, on average, for groups of warps.
    widths : (int, int)
        Elements that a lane loads at a time, for warps that load what they multiply to their registers.
    loads : (int, int)
        Elements that a thread copies at a time, for groups of warps without tensor maps.
    """

    lines: tuple[float, float] = (1.0, 1.0)
    widths: tuple[int, int] = (8, 8)
    loads: tuple[int, int] = (8, 8)


class Speed(NamedTuple):
    """The cost of a tile, measured on an H200 in microseconds; on another GPU only the ratios matter.

    Attributes
    ----------
    tile : Tile, DoubleTile, or a like one of another chapter
    resident : int
        Blocks that a multiprocessor runs at a time.
    work : float
        A step of one block, on a busy multiprocessor.
    latency : float
        A step of one block alone, or of several that together have no more work than that.
    rest : float
        The first copies and the last stores.
    itemsize : int
        Of an element; 1 where K is counted in bytes.
    """

    tile: Any
    resident: int
    work: float
    latency: float
    rest: float
    itemsize: int = 4


#: The tiles to choose from. Large tiles need fewer loads: with 128 x 128 and 8 x 8 per thread, which load a third more
#: for each multiply-add, 4096 x 4096 x 4096 takes 6 % longer than with the first. Small tiles give enough blocks for a
#: small result, and compute little outside of it; a step of them has little work, so their steps are deeper.
SPEEDS = (
    Speed(Tile(128, 256, 8, 8, 16, 4, 3), 1, 1.280, 1.280, 8.0),
    Speed(Tile(64, 128, 8, 8, 8, 4, 4), 4, 0.340, 0.409, 1.1),
    Speed(Tile(64, 64, 16, 8, 8, 4, 4, 2), 4, 0.370, 0.436, 1.2),
    Speed(Tile(32, 64, 16, 4, 8, 4, 4, 2), 6, 0.219, 0.289, 1.2),
    Speed(Tile(64, 32, 16, 8, 4, 4, 4, 2), 5, 0.262, 0.319, 1.2),
    Speed(Tile(32, 32, 32, 4, 4, 4, 3, 4), 4, 0.336, 0.292, 1.2),
    Speed(Tile(16, 64, 32, 4, 8, 4, 4, 4), 5, 0.278, 0.225, 1.4),
    Speed(Tile(64, 16, 32, 8, 4, 8, 3, 4), 5, 0.385, 0.292, 1.3),
    Speed(Tile(128, 96, 8, 8, 12, 4, 4), 3, 0.530, 0.600, 1.3),
)
#: By this over its rows a tile takes longer with a ``b`` along K, whose elements are copied one by one; so many
#: microseconds more does the square one for its first copies.
SINGLES, SINGLES_REST, SQUARE = 7.0, 2.4, SPEEDS[2].tile
#: The same for float64, fitted to 730 measurements. Slices of the depth keep a multiprocessor busy where there are few
#: blocks. The last two tiles take more shared memory than a block of compute capability 12.0 has.
DOUBLE_SPEEDS = (
    Speed(DoubleTile(128, 64, 64, 32, 3), 2, 0.588, 0.724, 1.8, 8),
    Speed(DoubleTile(64, 64, 32, 32, 5), 2, 0.297, 0.321, 1.7, 8),
    Speed(DoubleTile(32, 64, 16, 32, 5), 3, 0.212, 0.295, 1.7, 8),
    Speed(DoubleTile(64, 32, 32, 16, 6), 2, 0.174, 0.214, 1.4, 8),
    Speed(DoubleTile(32, 32, 16, 32, 6), 4, 0.124, 0.172, 1.3, 8),
    Speed(DoubleTile(64, 16, 16, 16, 6), 3, 0.142, 0.163, 0.9, 8),
    Speed(DoubleTile(32, 32, 16, 16, 4, 32), 3, 0.244, 0.281, 1.7, 8),
    Speed(DoubleTile(16, 64, 16, 16, 4, 32), 2, 0.267, 0.340, 1.4, 8),
    Speed(DoubleTile(64, 16, 16, 16, 4, 32), 2, 0.265, 0.298, 1.2, 8),
    Speed(DoubleTile(32, 16, 16, 16, 4, 64), 2, 0.306, 0.250, 1.6, 8),
    Speed(DoubleTile(16, 32, 16, 16, 4, 64), 2, 0.346, 0.276, 1.6, 8),
)
#: By this over its columns a tile takes longer with an ``a`` whose rows do not begin at multiples of 16 bytes, and by
#: this over its rows with such a ``b``.
DOUBLE_SINGLES = 6.4
#: The smaller tiles of single warps.
SMALL_WARP_SPEEDS = (
    Speed(WarpTile(128, 128, 64, 32, 4), 1, 0.33, 0.33, 2.0, 1),
    Speed(WarpTile(64, 64, 32, 32, 4), 4, 0.11, 0.17, 1.5, 1),
)
#: The same for tensor cores and shorter elements, by what multiplies: groups of warps; groups whose one operand lies
#: across K; groups for which threads copy operands that lie anywhere; single warps; such with short steps, which fit
#: into the 99 KB of compute capability 8.6; single warps that load operands which lie anywhere, so that none is copied,
#: some of them for a small K. A step is one of as many bytes of K as the tile is deep.
TENSOR_SPEEDS = {
    "groups": (
        Speed(GroupTile(128, 256, 2, 4), 1, 0.65, 0.65, 3.3, 1),
        Speed(GroupTile(128, 192, 2, 5), 1, 0.50, 0.50, 2.8, 1),
        Speed(GroupTile(128, 128, 2, 6), 1, 0.36, 0.325, 2.0, 1),
        Speed(GroupTile(128, 96, 2, 6), 1, 0.28, 0.36, 1.5, 1),
        Speed(GroupTile(64, 256, 1, 5), 1, 0.36, 0.36, 2.4, 1),
        Speed(GroupTile(64, 128, 1, 8), 1, 0.205, 0.18, 1.5, 1),
        Speed(GroupTile(128, 64, 2, 8), 1, 0.19, 0.22, 1.5, 1),
        Speed(GroupTile(64, 96, 1, 8), 1, 0.19, 0.14, 1.5, 1),
        Speed(GroupTile(64, 64, 1, 12), 1, 0.167, 0.16, 1.1, 1),
        Speed(GroupTile(64, 128, 1, 4, 2), 2, 0.205, 0.25, 2.0, 1),
        Speed(GroupTile(64, 64, 1, 4, 3), 3, 0.15, 0.2, 1.5, 1),
        Speed(GroupTile(192, 192, 3, 4, 1, 2), 1, 0.73, 0.73, 2.2, 1),
        Speed(GroupTile(192, 160, 3, 4, 1, 2), 1, 0.62, 0.62, 2.2, 1),
        Speed(GroupTile(128, 256, 2, 4, 1, 2), 1, 0.66, 0.66, 2.2, 1),
        Speed(GroupTile(128, 224, 2, 4, 1, 2), 1, 0.585, 0.585, 1.9, 1),
        Speed(GroupTile(128, 192, 2, 5, 1, 2), 1, 0.50, 0.50, 1.5, 1),
        Speed(GroupTile(128, 160, 2, 5, 1, 2), 1, 0.424, 0.40, 1.5, 1),
        Speed(GroupTile(128, 128, 2, 6, 1, 2), 1, 0.348, 0.325, 1.1, 1),
        Speed(GroupTile(64, 128, 1, 8, 1, 2), 1, 0.202, 0.19, 0.9, 1),
    ),
    "few": (
        Speed(GroupTile(64, 16, 1, 20, swapped=True), 1, 0.03, 0.03, 2.7, 1),
        Speed(GroupTile(128, 16, 2, 11, swapped=True), 1, 0.05, 0.05, 2.0, 1),
        Speed(GroupTile(64, 32, 1, 17, swapped=True), 1, 0.05, 0.07, 3.3, 1),
        Speed(GroupTile(128, 32, 2, 10, swapped=True), 1, 0.08, 0.08, 3.2, 1),
        Speed(GroupTile(128, 64, 2, 8, swapped=True), 1, 0.13, 0.13, 3.4, 1),
    ),
    "across a": (
        Speed(GroupTile(128, 256, 2, 4), 1, 0.66, 0.66, 3.1, 1),
        Speed(GroupTile(128, 192, 2, 5), 1, 0.495, 0.495, 4.0, 1),
        Speed(GroupTile(128, 128, 2, 6), 1, 0.38, 0.38, 4.0, 1),
        Speed(GroupTile(64, 128, 1, 8), 1, 0.26, 0.26, 3.0, 1),
        Speed(GroupTile(64, 64, 1, 6, 2), 2, 0.17, 0.22, 2.6, 1),
    ),
    "across b": (
        Speed(GroupTile(256, 128, 2, 4), 1, 0.66, 0.66, 3.1, 1),
        Speed(GroupTile(192, 128, 2, 5), 1, 0.495, 0.495, 4.0, 1),
        Speed(GroupTile(128, 128, 2, 6), 1, 0.38, 0.38, 4.0, 1),
        Speed(GroupTile(128, 64, 1, 8), 1, 0.26, 0.26, 3.0, 1),
        Speed(GroupTile(64, 64, 1, 6, 2), 2, 0.17, 0.22, 2.6, 1),
    ),
    "loaded": (
        Speed(LoadedTile(64, 64, 1, 4, 3), 3, 0.30, 1.4, 1.7, 1),
        Speed(LoadedTile(64, 128, 1, 4, 2), 2, 0.80, 1.2, 1.3, 1),
    ),
    "warps": (Speed(WarpTile(128, 256, 64, 64, 3, 128), 1, 1.03, 1.03, 3.0, 1), *SMALL_WARP_SPEEDS),
    "short warps": (Speed(WarpTile(128, 256, 64, 64, 4), 1, 0.55, 0.55, 3.0, 1), *SMALL_WARP_SPEEDS),
    "small": (
        Speed(SmallTile(32, 32, 16, 16, 2, 64), 7, 0.16, 0.68, 1.1, 1),
        Speed(SmallTile(64, 64, 32, 16, 2, 64), 2, 0.259, 0.89, 1.8, 1),
        Speed(SmallTile(64, 64, 32, 16, 2, 128), 2, 0.795, 1.0, 1.6, 1),
        Speed(SmallTile(128, 16, 16, 16, 2, 128), 2, 0.74, 1.26, 1.6, 1),
        Speed(SmallTile(16, 128, 16, 16, 2, 128), 2, 0.78, 1.25, 1.6, 1),
        Speed(SmallTile(32, 32, 16, 16, 2, 256), 3, 0.344, 2.8, 0.2, 1),
        Speed(ShallowTile(64, 16, 32), 11, 0.17, 0.5, 0.8, 1),
        Speed(ShallowTile(64, 32, 32), 8, 0.23, 0.7, 0.8, 1),
        Speed(ShallowTile(16, 256, 16), 6, 0.26, 1.2, 0.5, 1),
        Speed(ShallowTile(32, 128, 16), 6, 0.27, 1.2, 0.5, 1),
        Speed(ShallowTile(64, 64, 16), 6, 0.27, 1.2, 0.5, 1),
        Speed(ShallowTile(32, 128, 32), 6, 0.32, 1.4, 0.5, 1),
        Speed(ShallowTile(64, 64, 32), 6, 0.32, 1.4, 0.5, 1),
        Speed(ShallowTile(16, 256, 32), 6, 0.32, 1.4, 0.5, 1),
        Speed(ShallowTile(64, 256, 32, False, 4), 6, 0.75, 2.6, 0.8, 1),
        Speed(ShallowTile(48, 256, 32, False, 3), 6, 0.60, 2.2, 0.8, 1),
        Speed(ShallowTile(256, 32, 32, False, 4), 8, 0.55, 1.7, 0.8, 1),
        Speed(ShallowTile(256, 64, 32, False, 4), 6, 0.75, 2.6, 0.8, 1),
        Speed(ShallowTile(32, 128, 64), 4, 0.45, 1.6, 0.8, 1),
        Speed(ShallowTile(64, 64, 64), 4, 0.45, 1.6, 0.8, 1),
        Speed(ShallowTile(64, 256, 64, False, 4), 5, 0.95, 2.9, 0.8, 1),
        Speed(ShallowTile(256, 64, 64, False, 4), 5, 0.95, 2.9, 0.8, 1),
        Speed(ShallowTile(16, 16, 32, True), 40, 0.044, 0.62, 1.2, 1),
        Speed(ShallowTile(16, 16, 64, True), 32, 0.06, 0.95, 0.6, 1),
        Speed(ShallowTile(16, 32, 64, True), 24, 0.11, 0.84, 0.6, 1),
        Speed(SlicedTile(16, 16, 8, 1), 4, 0.7, 0.65, 0.45, 1),
        Speed(SlicedTile(16, 16, 4, 2), 5, 0.75, 1.2, 0.5, 1),
        Speed(SlicedTile(16, 16, 8, 2), 4, 1.1, 0.93, 0.4, 1),
    ),
}
#: The most rows of ``a`` that "few" tiles have.
MAX_FEW = max(speed.tile.columns for speed in TENSOR_SPEEDS["few"])
#: Slices of K that groups of warps may cut, and the share of multiprocessors that clusters of so many blocks find room
#: on.
SLICES = {1: 1.0, 2: 1.0, 3: 0.84, 4: 0.91, 8: 0.85}
#: Microseconds of a launch, more with clusters, of the second launch that adds up parts, and of each part in it up to a
#: number of them; more threads divide more parts.
LAUNCH, CLUSTER, SUM, SUM_PART, MAX_SUM_PARTS = 4.0, 1.3, 3.0, 0.02, 128
#: Where the last block of a tile adds up parts: microseconds, bytes per microsecond, microseconds a part (small tiles),
#: and the most of them there.
JOIN, JOIN_BYTES, JOIN_PART, MAX_JOINED = 2.0, 7e4, 0.1, 32
SLICED_JOIN, SLICED_JOIN_PART = 1.5, 0.03
#: Where the blocks of a cluster add up slices: microseconds, and bytes per microsecond.
SLICE, SLICE_BYTES = 1.0, 8e4
#: L2 bandwidth of a multiprocessor, in bytes per microsecond of whole lines, if all are busy; if only a few are, each
#: has up to so many times as much.
LINES, MAX_SHARE = 1.1e5, 2.0
#: Microseconds of a row of a tile that threads copy, by the elements that one copies at a time.
LOAD = {8: 0.001, 4: 0.005, 2: 0.005, 1: 0.0085}
#: A step of a block whose threads copy takes at least so many times its work if the block is alone.
LOAD_ALONE = 1.3
#: Microseconds of a row of a tile that lies outside of its matrix, and is filled with zeros.
ZERO = 0.003
#: Bytes per microsecond of matrices in memory, and of parts of one, which stay in the L2 cache if they are small.
MEMORY, PARTS = 2.6e6, 6e6
#: Bytes of matrices that the L2 cache keeps; bytes per microsecond of larger ones of float32, and of any of float64.
CACHED, LARGE, DOUBLE_MEMORY = 64 << 20, 3.4e6, 3.8e6
#: What groups of warps reach, together and on each multiprocessor.
STREAM, STREAM_ALONE = 3.3e6, 5.2e4
#: That of operands whose rows begin at multiples of a line, and lie along K.
ALIGNED = Access()
#: Rows of a multiple of so many elements are stored by 16 bytes. If others are stored: elements per microsecond, and,
#: by groups of warps, microseconds of a launch. Elements per microsecond of tiles for a small K; and of those whose
#: warps have more than 16 rows, or all lie below one another while other tiles have the rest of their rows.
WIDE_STORE, NARROW_STORES, NARROW_GROUPS = 8, 1.2e4, 1.3
SHALLOW_STORES, BELOW_STORES = 1.4e4, 7e3
#: What of the time is added if the rows of b are not aligned, so that they are copied element by element; less for a
#: tile with fewer columns than rows.
NARROW = 0.12
#: The cost of copying b to aligned rows first: microseconds, and bytes per microsecond; the microseconds of copying an
#: operand for tensor cores; both for all operands of 2 bytes an element.
WIDEN, WIDEN_BYTES, COPY = 3.5, 2.5e6, 4.5
COPY_ROWS, COPY_ROWS_BYTES = 3.0, 3.9e6
#: Shares of a product's time saved by transposing an operand whose elements follow one another along K, as copies have
#: four elements then: ``a`` beside a ``b`` that has such copies, and any other operand. The cost of transposing one:
#: microseconds, and bytes per microsecond; max elements of the copy.
TURN_LAST_GAIN, TURN_GAIN, TURN, TURN_BYTES, MAX_TURNED = 0.027, 0.066, 3.0, 3.5e6, 1 << 27
#: What transposing ``b`` must save for other tiles than the largest, as a multiple of its cost.
SURE = 2.0
#: The largest tile where both operands lie across K, by `gpukit.matmul.streamed.streamed`: 6 % less than it takes, as
#: what is predicted for the smaller tiles is that much too low.
STREAMED = SPEEDS[0]._replace(work=1.115, latency=1.115, rest=5.0)
#: Limits on cutting K: parts, elements of all parts, steps of a part, matrices; steps of a part where there are more
#: parts.
MAX_PARTS, MAX_ELEMENTS, MIN_STEPS, MAX_MATRICES, MIN_LONG_STEPS = 96, 16 << 20, 2, MAX_GRID_YZ, 16
#: Share of a step that does not shorten if lanes load several elements at a time; by how many latencies each further
#: step of a `ShallowTile` takes longer than the first.
ALWAYS, LATER = 0.2, 0.8
#: Of an axis.
MAX_SIZE = 2**31 - 1
#: Tiles of `SPEEDS` for which a result is cut in two pieces, and the factor by which these must be faster. On an H200
#: 2560 x 2560 x 2560 takes 8 % less time in two pieces, 3072 x 3072 x 3072 7 % less.
LARGE_TILES, WAVE_MARGIN = 2, 1.02
#: Factors on the time of the best tile, by the bytes of an element, where it is compared with `packed_time`: that of
#: small products of float32 is longer than predicted. So many microseconds take tiles that all run at once.
PACKED_MARGIN, ONE_ROUND = {2: 0.9, 4: 1.17, 8: 0.95}, 6.0
#: The factor on `packed_time`, by the bytes of an element, where single elements are copied, of rows that are apart.
APART = {2: 1.0, 4: 2.3, 8: 1.25}
#: A last tile with at most so many rows or columns may be computed on its own, by another tile.
MAX_EDGE = 64


class Choice(NamedTuple):
    """How a product is computed.

    Attributes
    ----------
    pieces : list of Piece
        One for most shapes. A narrow edge beside whole tiles is a piece of its own, and so is what is left where the
        others give each multiprocessor the same number of tiles.
    widens : bool
        Whether to copy ``b`` to rows that begin at multiples of 16 bytes.
    streams : bool
        Whether to copy both operands so that they lie across K, in rows that begin so, as far as they do not.
    """

    pieces: list["Piece"]
    widens: bool
    streams: bool


class Piece(NamedTuple):
    """The part of the result that one launch computes: ``rows`` from ``row`` on, ``columns`` from ``col`` on."""

    row: int
    col: int
    rows: int
    columns: int
    tile: Tile | DoubleTile
    parts: int


def predict(
    speed: Speed,
    m: int,
    n: int,
    k: int,
    batch: int,
    parts: int,
    multiprocessors: int,
    nbytes: int | None = None,
    access: Access = ALIGNED,
) -> float:
    """Predict the microseconds of a product by one tile, with K in so many parts, and with so many bytes in memory,
    those of all matrices unless given.
    """
    tile, itemsize, speed = speed.tile, speed.itemsize, _loading(speed, access.widths)
    tiles, slices, zeros, (lines, loads) = _tiles(tile, m, n, (access.lines, access.loads))
    multiprocessors = int(multiprocessors * SLICES[slices])
    blocks = tiles * batch * parts * slices
    work, rest, launch = _costs(speed, n, blocks, multiprocessors, lines, loads)
    is_stream = nbytes is None and isinstance(tile, GroupTile) and not isinstance(tile, LoadedTile)
    if is_stream and blocks <= multiprocessors:
        work = max(work, ZERO * zeros)
    steps = ceil_div(ceil_div(k, tile.depth), parts * slices)
    waits = _waits(speed, work, steps)
    rounds, last = divmod(ceil_div(blocks, multiprocessors), speed.resident)
    time = rounds * (max(speed.resident * work * steps, waits) + rest)
    if last:
        time += max(last * work * steps, waits) + rest
    moved = itemsize * batch * (m * k + k * n + m * n) if nbytes is None else nbytes
    memory = _memory_time(tile, moved, min(blocks, multiprocessors), nbytes is None)
    time = launch + (time**4 + memory**4) ** 0.25  # the longer of the two; more if they are close
    return time + (_time_to_add(tile, itemsize, m * n, batch, parts, nbytes is None) if parts * slices > 1 else 0)


def _waits(speed, work, steps):
    """Microseconds that the steps of a block take if it is alone."""
    further = LATER * (steps - 1) if isinstance(speed.tile, ShallowTile) else 0
    latency = max(speed.latency, LOAD_ALONE * work) if isinstance(speed.tile, LoadedTile) else speed.latency
    return latency * (steps + further)


def _memory_time(tile, nbytes, busy, is_product):
    """Microseconds of moving so many bytes of matrices, by so many busy multiprocessors."""
    if is_product and isinstance(tile, GroupTile):
        return nbytes / min(STREAM, STREAM_ALONE * busy)
    if isinstance(tile, DoubleTile):
        return nbytes / DOUBLE_MEMORY
    if not is_product or nbytes <= CACHED:
        return nbytes / MEMORY
    return nbytes / (LARGE if isinstance(tile, Tile) else MEMORY)


def _loading(speed, widths):
    """The speed of a tile if lanes load so many elements of ``a`` and ``b`` at a time to their registers."""
    tile = speed.tile
    if not isinstance(tile, ShallowTile | SlicedTile):
        return speed
    rows, columns = (tile.rows, tile.columns) if isinstance(tile, SlicedTile) else (tile.warp_rows, tile.warp_columns)
    loads = (rows / widths[0] + columns / widths[1]) / (rows + columns)
    factor = ALWAYS + (1 - ALWAYS) * loads
    return speed._replace(work=factor * speed.work, latency=factor * speed.latency)


def _tiles(tile, m, n, pairs):
    """(tiles of a matrix, slices of K, rows of zeros that a tile copies at most of an operand, pairs) of a tile, which
    may be given the operands in turn; ``pairs`` are numbers of ``a`` and ``b``.
    """
    if not isinstance(tile, GroupTile):
        return ceil_div(m, tile.rows) * ceil_div(n, tile.columns), 1, 0, pairs
    m, n, pairs = (n, m, tuple(pair[::-1] for pair in pairs)) if tile.swapped else (m, n, pairs)
    down, across = tile.down(m), ceil_div(n, tile.columns)
    zeros = max(min(down * tile.rows - m, tile.rows), across * tile.columns - n)
    return down * across, tile.slices, zeros, pairs


def _costs(speed, n, blocks, multiprocessors, lines, loads):
    """(work, rest, microseconds of a launch) of a tile, with what unaligned rows of operands and results add."""
    tile, work = speed.tile, speed.work
    unaligned = n % WIDE_STORE > 0
    stores = tile.rows * tile.columns / NARROW_STORES if unaligned else 0
    if isinstance(tile, ShallowTile):
        if not tile.apart:
            beside = tile.down == 1 and (n <= tile.columns or tile.columns > tile.warp_columns)
            stores *= NARROW_STORES / (SHALLOW_STORES if beside else BELOW_STORES)
        return work + stores, speed.rest, LAUNCH
    if not isinstance(tile, GroupTile):
        return work, speed.rest, LAUNCH
    if isinstance(tile, LoadedTile):
        work = max(work, tile.rows * LOAD[loads[0]] + tile.columns * LOAD[loads[1]])
        return work, speed.rest + stores * (not tile.swapped), LAUNCH + CLUSTER * (tile.slices > 1)
    share = min(multiprocessors / min(blocks, multiprocessors), MAX_SHARE)
    copied = tile.rows * lines[0] + tile.columns / tile.cluster * lines[1]
    work = max(work, copied * tile.depth / (LINES * share))
    launch = LAUNCH + CLUSTER * (tile.cluster * tile.slices > 1)
    if tile.swapped:
        return work, speed.rest, launch
    return work, speed.rest + stores, launch + NARROW_GROUPS * unaligned


def _time_to_add(tile, itemsize, size, batch, parts, is_product):
    """Predict the microseconds of adding up the parts of K, or its slices; convolutions by groups of warps do that
    themselves.
    """
    if isinstance(tile, SmallTile) and parts <= MAX_JOINED:
        return JOIN + JOIN_PART * parts
    if isinstance(tile, SlicedTile):
        return SLICED_JOIN + SLICED_JOIN_PART * parts
    if isinstance(tile, GroupTile):
        nbytes = 4 * tile.rows * tile.columns
        if tile.slices > 1:
            return SLICE + nbytes * (tile.slices - 1) / tile.slices / SLICE_BYTES
        if not is_product:
            return JOIN + nbytes * parts / JOIN_BYTES
    moved = max(itemsize, 4) * size * batch * (2 * parts + 1)
    return SUM + SUM_PART * min(parts, MAX_SUM_PARTS) + moved / (PARTS if batch == 1 and itemsize < 8 else MEMORY)


def predicted_time(m: int, n: int, k: int, batch: int = 1, dtype: DTypeLike = np.float32) -> float:
    """Predict the microseconds of a product by the best tile: of float32 or float64 with K in one part, or of float16.

    TypeError or ValueError unless all sizes are ints, ``k`` from 0 on, the others from 1 on, to 2**31 - 1, and
    ``dtype`` is one of the three.

    Examples
    --------
    >>> predicted_time(4096, 4096, 4096) > predicted_time(1024, 1024, 1024)
    True
    """
    (m, n, batch), k = (
        [check_int(name, size, 1, MAX_SIZE) for name, size in {"m": m, "n": n, "batch": batch}.items()],
        check_int("k", k, 0, MAX_SIZE),
    )
    device = cuda.get_current_device()
    dtype = check_dtype("dtype", dtype, (np.float32, np.float16, np.float64))
    if dtype == np.float16:
        return tensor_time(m, n, 2 * max(k, 1), batch, device.MULTIPROCESSOR_COUNT, half_kind())
    limit = device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    speeds = _double_speeds_for(True, True, limit) if dtype == np.float64 else SPEEDS
    return min(predict(speed, m, n, k, batch, 1, device.MULTIPROCESSOR_COUNT) for speed in speeds)


def half_kind() -> str:
    """The key of `TENSOR_SPEEDS` for products of float16 on this device, small ones apart."""
    return "groups" if cuda.get_current_device().compute_capability[0] == 9 else "warps"


@functools.lru_cache(4096)
def _best(m, n, k, batch, multiprocessors, speeds, access=ALIGNED):
    """(microseconds, Tile, parts) of the fastest choice for one launch."""
    found = choices(m, n, k, batch, multiprocessors, speeds=speeds, access=access, in_slices=True)
    return min(found, key=lambda choice: choice[0])


def choices(
    m: int,
    n: int,
    k: int,
    batch: int,
    multiprocessors: int,
    nbytes: int | None = None,
    speeds: tuple = SPEEDS,
    access: Access = ALIGNED,
    in_slices: bool = False,
) -> Iterator[tuple[float, Any, int]]:
    """Yield (microseconds, tile, parts of K) of all choices for one launch, as `predict` expects them.

    With ``in_slices`` groups of warps cut K in slices, not in parts.
    """
    for speed in speeds:
        if isinstance(speed.tile, ShallowTile):  # all of K in one part
            if speed.tile.apart or k <= speed.tile.depth:
                yield predict(speed, m, n, k, batch, 1, multiprocessors, nbytes, access), speed.tile, 1
            continue
        if in_slices and isinstance(speed.tile, GroupTile):
            for tile in _slices_of(speed.tile, m, n, k, batch):
                yield predict(speed._replace(tile=tile), m, n, k, batch, 1, multiprocessors, nbytes, access), tile, 1
            for parts in _many_parts(speed, m, n, k, batch, multiprocessors, max(SLICES)):
                yield predict(speed, m, n, k, batch, parts, multiprocessors, nbytes, access), speed.tile, parts
            continue
        steps = ceil_div(k, speed.tile.depth) // (1 if isinstance(speed.tile, SlicedTile) else MIN_STEPS)
        most = min(MAX_PARTS, MAX_ELEMENTS // (batch * m * n), steps)
        counts = [*range(1, max(1, most if batch <= MAX_MATRICES else 1) + 1)]
        if nbytes is None:
            counts += _many_parts(speed, m, n, k, batch, multiprocessors, MAX_PARTS)
        for parts in counts:
            yield predict(speed, m, n, k, batch, parts, multiprocessors, nbytes, access), speed.tile, parts


def _many_parts(speed, m, n, k, batch, multiprocessors, more_than):
    """Yield numbers of parts of a long K with which all multiprocessors have equally many blocks of a few tiles."""
    tile = speed.tile
    tiles = batch * _tiles(tile, m, n, ())[0]
    if getattr(tile, "cluster", 1) > 1 or getattr(tile, "swapped", False) and m > tile.columns:
        return
    most = min(MAX_ELEMENTS // (batch * m * n), ceil_div(k, tile.depth) // MIN_LONG_STEPS)
    for blocks in range(1, speed.resident + 1):
        if more_than < multiprocessors * blocks // tiles <= most:
            yield multiprocessors * blocks // tiles


def _slices_of(tile, m, n, k, batch):
    """Yield a tile with the numbers of slices that K can be cut in, none of them short; none if it has too few
    columns.
    """
    if tile.swapped and m > tile.columns:
        return
    steps = ceil_div(k, tile.depth)
    for slices in SLICES if tile.cluster == 1 and batch * m * n <= MAX_ELEMENTS else (1,):
        share = ceil_div(steps, slices)
        if slices == 1 or share >= MIN_STEPS and ceil_div(steps, share) == slices:
            yield tile._replace(slices=slices)


@functools.lru_cache(4096)
def choose(
    m: int,
    n: int,
    k: int,
    batch: int,
    wide_b: bool,
    multiprocessors: int,
    double: tuple[bool, bool, int] | None = None,
    layout: str = "NN",
    streaming: float = float("inf"),
) -> Choice:
    """Choose how to compute a product.

    Parameters
    ----------
    m, n, k : int
    batch : int
        Matrices of the result.
    wide_b : bool
        Whether the rows of ``b`` begin at multiples of 16 bytes.
    multiprocessors : int
    double : (bool, bool, int), optional
        For float64: whether the rows of ``a``, and of ``b``, begin at multiples of 16 bytes, and the most bytes of
        shared memory that a block may have; nothing is copied then.
    layout : str
        How the operands of float32 lie.
    streaming : float
        Microseconds of the copies after which `gpukit.matmul.streamed.streamed` can read the operands, as of
        `time_to_stream`; infinite where it cannot compute the product.
    """
    speeds = _double_speeds_for(*double) if double else _speeds_for(layout)
    time, pieces = _cut_best(m, n, k, batch, multiprocessors, speeds, bool(double))
    widens, tile = False, pieces[0].tile
    if not (wide_b or double):
        widened = time + WIDEN + 8 * batch * k * n / WIDEN_BYTES
        time *= 1 + NARROW * min(1.0, 2 * tile.columns / (tile.rows + tile.columns))
        widens, time = widened < time, min(widened, time)
    if streaming < time:
        took, streamed = _cut_best(m, n, k, batch, multiprocessors, (STREAMED, *_speeds_for("TN")[1:]))
        if took + streaming < time and any(piece.tile == STREAMED.tile for piece in streamed):
            return Choice(streamed, False, True)
    return Choice(pieces, widens, False)


def _cut_best(m, n, k, batch, multiprocessors, speeds, double=False):
    """(microseconds, pieces) of the fastest way to cut a result."""
    time, pieces = float("inf"), []
    ways = [(rows, columns, 1.0) for rows in _cuts(m, 128, batch) for columns in _cuts(n, 256, batch)]
    if batch == 1 and not double:
        ways += [(*way, WAVE_MARGIN) for way in _waves(m, n, multiprocessors)]
    for rows, columns, margin in ways:
        cut, took = [], 0.0
        for row, more_rows in rows:
            for col, more_columns in columns:
                took_more, tile, parts = _best(more_rows, more_columns, k, batch, multiprocessors, speeds)
                took += took_more
                cut.append(Piece(row, col, more_rows, more_columns, tile, parts))
        if margin * took < time:
            time, pieces = took, cut
    return time, pieces


@functools.cache
def _speeds_for(layout):
    """`SPEEDS`, with the steps that take longer in a layout."""
    found = []
    for speed in SPEEDS:
        along = layout[1] == "T"
        factor, rest = 1 + SINGLES * along / speed.tile.rows, SINGLES_REST * (along and speed.tile == SQUARE)
        found.append(speed._replace(work=factor * speed.work, latency=factor * speed.latency, rest=speed.rest + rest))
    return tuple(found)


@functools.cache
def _double_speeds_for(wide_a, wide_b, shared_bytes):
    """`DOUBLE_SPEEDS` of tiles that fit into shared memory, with the steps that take longer where rows of ``a``, or of
    ``b``, are copied by elements.
    """
    found = []
    for speed in DOUBLE_SPEEDS:
        factor = 1 + DOUBLE_SINGLES * ((not wide_a) / speed.tile.columns + (not wide_b) / speed.tile.rows)
        if speed.tile.shared_bytes <= shared_bytes:
            found.append(speed._replace(work=factor * speed.work, latency=factor * speed.latency))
    return tuple(found)


def time_to_stream(layout: str, wide: tuple[bool, bool], m: int, n: int, k: int, counts: tuple[int, int]) -> float:
    """Predict the microseconds of the copies after which ``a`` and ``b``, of ``counts`` matrices each, lie across K in
    rows that begin at multiples of 16 bytes: those along K are transposed, those that are not ``wide`` are widened.
    """
    time = 0.0
    for letter, along, is_wide, extent, count in zip(layout, "NT", wide, (m, n), counts, strict=True):
        if letter == along:
            time += _time_to_turn(extent, k, count)
        elif not is_wide:
            time += WIDEN + 8 * count * extent * k / WIDEN_BYTES
    return time


def _time_to_turn(extent, k, count):
    """The microseconds of transposing an operand of ``count`` matrices, infinite for one that is too large."""
    size = count * extent * k
    fits = size <= MAX_TURNED and max(count, ceil_div(extent, TURN_TILE)) <= MAX_MATRICES
    return TURN + 8 * size / TURN_BYTES if fits else float("inf")


@functools.lru_cache(4096)
def choose_turns(
    tile: Tile, layout: str, m: int, n: int, k: int, batch: int, counts: tuple[int, int], multiprocessors: int
) -> tuple[bool, bool]:
    """Tell whether it pays to transpose ``a``, and ``b``, of ``counts`` matrices each, where they lie along K and the
    product does not stream. With other tiles than the largest ``a`` stays as it is.
    """
    if tile != SPEEDS[0].tile:
        if layout[1] == "N":
            return False, False
        speeds = _speeds_for(layout), _speeds_for(layout[0] + "N")
        along, across = (_best(m, n, k, batch, multiprocessors, which)[0] for which in speeds)
        return False, along - across > SURE * _time_to_turn(n, k, counts[1])
    time = _best(m, n, k, batch, multiprocessors, SPEEDS)[0]
    turns_b = layout[1] == "T" and TURN_GAIN * time > _time_to_turn(n, k, counts[1])
    gain = TURN_LAST_GAIN if turns_b or layout[1] == "N" else TURN_GAIN
    return layout[0] == "N" and gain * time > _time_to_turn(m, k, counts[0]), turns_b


def prefers_packed(m: int, n: int, k: int, batch: int, itemsize: int, multiprocessors: int, apart: bool) -> bool:
    """Whether many small products are faster by `gpukit.matmul.packed.packed` than by the best tile; ``apart``: each
    element is copied on its own, of rows that are not in one piece.
    """
    time = packed_time(m, n, k, batch, itemsize) * (APART[itemsize] if apart else 1)
    if time == float("inf") or k == 0:
        return False
    if itemsize == 2:
        best = min(tensor_time(m, n, 2 * k, batch, multiprocessors, kind) for kind in ("small", half_kind()))
    else:
        best = _best(m, n, k, batch, multiprocessors, DOUBLE_SPEEDS if itemsize == 8 else SPEEDS)[0]
    return best > ONE_ROUND and time < PACKED_MARGIN[itemsize] * best


def choose_tensor(
    m: int, n: int, nbytes: int, batch: int, multiprocessors: int, kind: str, access: Access = ALIGNED
) -> tuple[Any, int]:
    """Choose the tile for tensor cores, and the parts of K, none of them empty; a row of K has ``nbytes``.

    ``kind`` is a key of ``TENSOR_SPEEDS``, ``access`` as of `predict`.
    """
    _, tile, parts = _best(m, n, nbytes, batch, multiprocessors, TENSOR_SPEEDS[kind], access)
    steps = ceil_div(nbytes, tile.depth)
    return tile, ceil_div(steps, ceil_div(steps, parts))


@functools.lru_cache(4096)
def tensor_time(
    m: int,
    n: int,
    nbytes: int,
    batch: int,
    multiprocessors: int,
    kind: str,
    copies: tuple[int, ...] = (),
    by_rows: bool = False,
    access: Access = ALIGNED,
) -> float:
    """Predict the microseconds of `choose_tensor`'s choice, after copies of operands of so many bytes.

    ``by_rows``: the copies are those of `gpukit.matmul.align.align_rows`.
    """
    time = _best(m, n, nbytes, batch, multiprocessors, TENSOR_SPEEDS[kind], access)[0]
    if by_rows and copies:
        return time + COPY_ROWS + 2 * sum(copies) / COPY_ROWS_BYTES
    return time + sum(COPY + 2 * copied / WIDEN_BYTES for copied in copies)


@functools.lru_cache(4096)
def high_pays(m: int, n: int, k: int, batch: int, counts: tuple[int, int], multiprocessors: int, kind: str) -> bool:
    """Tell whether three products of TF32 are faster than one of float32. They need copies of ``counts`` matrices ``a``
    and ``b``, three times as large as these.
    """
    copied = 16 * (counts[0] * m + counts[1] * n) * k
    time = _best(m, n, 12 * k, batch, multiprocessors, TENSOR_SPEEDS[kind])[0] + 2 * COPY + copied / TURN_BYTES
    return time < _best(m, n, k, batch, multiprocessors, SPEEDS)[0]


def _cuts(size, tile, batch):
    """Yield the ways to cut rows or columns: [(first, count), ...] each."""
    yield [(0, size)]
    edge = size % tile
    if batch == 1 and size > tile and 0 < edge <= MAX_EDGE:
        yield [(0, size - edge), (size - edge, edge)]


def _waves(m, n, multiprocessors):
    """Yield the ways to cut a result in two so that all multiprocessors have equally many tiles of the first piece."""
    for tile in (speed.tile for speed in SPEEDS[:LARGE_TILES]):
        down, across = ceil_div(m, tile.rows), ceil_div(n, tile.columns)
        tiles = down * across // multiprocessors * multiprocessors
        rows, columns = tiles // across * tile.rows, tiles // down * tile.columns
        if 0 < rows < m:
            yield [(0, rows), (rows, m - rows)], [(0, n)]
        if 0 < columns < n:
            yield [(0, m)], [(0, columns), (columns, n - columns)]
