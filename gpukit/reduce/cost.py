"""Which kernel of `gpukit.reduce.fast` for a shape, on which grid, and with how much work memory.

The numbers are the fastest found on an H200.
"""

from math import gcd
from typing import Any, NamedTuple

from gpukit.backend import cuda
from gpukit.operators import Operation
from gpukit.reduce import fast
from warpstep.integers import ceil_div, next_power_of_two
from warpstep.limits import MAX_GRID_YZ, WARP

__all__ = ["Launch", "choose", "choose_nested", "max_vector"]

#: Threads of a block, and blocks per multiprocessor that a launch is spread over.
THREADS = 256
BLOCKS = 8
#: Accesses that a lane has under way at a time in ``rows``.
ROW_LOADS = 4
#: It is one for arrays of at most one access for each thread of the device: with less code, instructions arrive sooner.
#: Max threads of a block then, and max accesses of each if a block takes a row alone.
FEW_THREADS, FEW_ACCESSES = 1024, 4
#: Max accesses of a lane in ``groups``, by bytes of an access.
SHORT_LOADS = {1: 16, 2: 16, 4: 16, 8: 8, 16: 8}
#: The same where there is one row, which a block would share otherwise.
ALONE_LOADS = 4
#: Accesses that a lane should have under way there, for one row or for several at once; and for one if there are many
#: rows, by bytes of an access.
SHORT_ACCESSES = 4
MANY_ACCESSES = {1: 8, 2: 8, 4: 8, 8: 4, 16: 1}
#: Accesses that a thread has under way in ``columns``; (threads along x, threads) of its blocks, by bytes of an access.
COLUMN_LOADS = 8
COLUMN_THREADS = {1: (64, 256), 2: (64, 256), 4: (64, 256), 8: (32, 128), 16: (32, 128)}
#: Where so few blocks take all columns, and each has so many bytes under way, the rows are shared by half the number of
#: blocks: the last one has fewer partial results to read.
NARROW, NARROW_BYTES, NARROW_SHARE = 4, 1 << 14, 2
#: Accesses that a thread has under way in ``skewed``, by elements of an access; its block.
SKEWED_LOADS = {2: 4, 4: 4, 8: 8}
SKEWED_THREADS = (32, 8)
#: Max rows of ``cells``, whose threads must fill the device, and how many of them are under way.
CELL_ROWS = 32
CELL_LOADS = 4
#: Elements that a thread has under way in ``nested``; bytes of an array up to which it is faster than two launches, if
#: up to ``NESTED_ROW`` elements are neighbours in memory, and if more are.
NESTED_LOADS, NESTED_ROW, NESTED_MAX_BYTES = 8, 64, (8 << 20, 2 << 20)
#: Max tiles, or one fewer, that a warp adds one after the other. It bounds the rounding error of long rows and columns,
#: and what a lane reads of them: 64 KB, so that sums of 8 and 16-bit integers fit in 32 bits.
MAX_TILES = 1000


class Launch(NamedTuple):
    """A launch. Its kernel takes input, output, partials and counters if there is ``work``, ``numbers``, and the count.

    Attributes
    ----------
    kernel, grid, block
    numbers : tuple of int
    work : (int, int), optional
        How many accumulators and counters its blocks leave to each other.
    part, part_out : slice, optional
        Of the input and the output, for a launch over a part of the outer axis.
    """

    kernel: Any
    grid: int | tuple[int, int, int]
    block: int | tuple[int, int]
    numbers: tuple[int, ...]
    work: tuple[int, int] | None = None
    part: slice | None = None
    part_out: slice | None = None


def max_vector(itemsize: int, offset: int, length: int) -> int:
    """Max elements of one aligned access to rows of this length, the first of them ``offset`` elements off 16 bytes."""
    vector = 16 // itemsize
    while length % vector or offset % vector:
        vector //= 2
    return vector


def choose(
    operation: Operation, itemsize: int, offset: int, outer: int, n: int, inner: int, pitch: int
) -> list[Launch]:
    """The launches that reduce an array seen as (outer, n, inner) over its middle axis.

    Parameters
    ----------
    operation : Operation
    itemsize : int
        Bytes of an element.
    offset : int
        Elements from the last 16-byte boundary to the first element.
    outer, n, inner : int
    pitch : int
        Elements from one row to the next: of n elements if ``inner`` is 1, otherwise of inner.
    """
    if inner == 1 and n > 1:
        vector = max_vector(itemsize, offset, gcd(n, pitch))
        loads = SHORT_LOADS[vector * itemsize] if outer > 1 else ALONE_LOADS
        if n <= WARP * vector * loads:
            return [_groups(operation, itemsize, vector, outer, n, pitch)]
        return [_rows(operation, 16 // itemsize, offset, outer, n, pitch)]
    if inner == 1:
        outer, inner, pitch = 1, outer, outer
    widest = min(16 // itemsize, 8)
    vector = min(max_vector(itemsize, offset, gcd(inner, pitch)), widest)
    if n <= CELL_ROWS and outer * inner // vector >= THREADS * _blocks_wanted() // 2:
        return [_cells(operation, vector, outer, n, inner, pitch)]
    skewed = vector < widest and operation.commutative and n >= CELL_ROWS and inner >= 16 * widest

    def launch(first, size):
        if skewed:
            return _skewed(operation, widest, offset + first * n * pitch, size, n, inner, pitch)
        return _columns(operation, itemsize, vector, size, n, inner, pitch)

    if outer <= MAX_GRID_YZ:
        return [launch(0, outer)]
    parts = [(first, min(outer - first, MAX_GRID_YZ)) for first in range(0, outer, MAX_GRID_YZ)]
    return [
        launch(first, size)._replace(
            part=slice(first * n * pitch, (first + size) * n * pitch) if n else None,
            part_out=slice(first * inner, (first + size) * inner),
        )
        for first, size in parts
    ]


def choose_nested(operation: Operation, itemsize: int, sizes: tuple[int, ...]) -> Launch | None:
    """The one launch that reduces an array of (outer, rows, between, n, inner) over rows and n; None if two are faster.

    Neighbours in memory must be read together, those of n and inner, so these must not be few.
    """
    outer, rows, between, n, inner = sizes
    width = min(WARP, next_power_of_two(inner))
    across, elements = ceil_div(inner, width), rows * n
    small = outer * elements * between * inner * itemsize <= NESTED_MAX_BYTES[n * inner > NESTED_ROW]
    if not operation.commutative or not small or across > MAX_GRID_YZ:
        return None
    height = min(THREADS // width, next_power_of_two(ceil_div(elements, NESTED_LOADS)))
    teams = THREADS // (width * height)
    blocks = ceil_div(outer * between, teams)
    splits = min(_splits(blocks * across, max(1, elements // (height * NESTED_LOADS))), MAX_GRID_YZ)
    kernel = fast.make_nested(operation, width, height, teams, NESTED_LOADS)
    work = _work(splits, outer * between * inner, blocks * across)
    return Launch(kernel, (blocks, splits, across), THREADS, sizes, work)


def _groups(operation, itemsize, vector, outer, n, pitch):
    lanes = min(WARP, next_power_of_two(ceil_div(n, vector)))
    few = min(WARP, next_power_of_two(ceil_div(n, vector * MANY_ACCESSES[vector * itemsize])))
    if outer * few >= THREADS * _blocks_wanted() // 4:  # enough threads: let each have more, with fewer shuffles
        lanes = few
    loads = next_power_of_two(ceil_div(n, vector * lanes))
    several = max(1, SHORT_ACCESSES // loads)
    kernel = fast.make_groups(operation, vector, lanes, loads, several, THREADS)
    return Launch(kernel, ceil_div(outer, THREADS // lanes * several), THREADS, (outer, n, pitch))


def _rows(operation, vector, offset, outer, n, pitch):
    accesses = ceil_div(n + offset, vector)
    if outer * accesses <= THREADS * _blocks_wanted():
        loads, alone = 1, accesses <= FEW_THREADS * FEW_ACCESSES
        threads = min(FEW_THREADS, max(THREADS, next_power_of_two(accesses))) if alone else THREADS
    else:
        loads, alone = ROW_LOADS, False
        threads = min(THREADS, max(64, next_power_of_two(n // (vector * ROW_LOADS))))
    tiles, warps = ceil_div(accesses, WARP * loads), threads // WARP
    splits = 1 if alone else _splits(outer, max(1, tiles // warps))
    run = ceil_div(tiles, splits * warps)
    kernel = fast.make_rows(operation, vector, threads, loads)
    work = _work(splits, outer, outer)
    return Launch(kernel, outer * splits, threads, (n, pitch, splits, run, offset), work)


def _cells(operation, vector, outer, n, inner, pitch):
    kernel = fast.make_cells(operation, vector, min(CELL_LOADS, next_power_of_two(n)), THREADS)
    return Launch(kernel, ceil_div(outer * (inner // vector), THREADS), THREADS, (outer, n, inner, pitch))


def _columns(operation, itemsize, vector, outer, n, inner, pitch):
    if itemsize < 4:
        vector = min(vector, 8 // itemsize)
    width, threads = COLUMN_THREADS[vector * itemsize]
    width = min(width, next_power_of_two(ceil_div(inner, vector)))
    height, loads = threads // width, COLUMN_LOADS
    while height * width > WARP and height * loads >= 2 * n:
        loads, height = (loads // 2, height) if loads > 1 else (loads, height // 2)
    across = ceil_div(inner, width * vector)
    narrow = across <= NARROW and threads * loads * vector * itemsize >= NARROW_BYTES
    share = NARROW_SHARE if narrow else 1
    splits = min(_splits(across * outer * share, max(1, n // (height * loads))), MAX_GRID_YZ)
    deep = fast.rows_of_warp(width, height)
    run = ceil_div(n, deep * loads * splits * (height // deep))
    kernel = fast.make_columns(operation, vector, width, height, loads)
    work = _work(splits, outer * inner, outer * across)
    return Launch(kernel, (across, splits, outer), (width, height), (outer, n, inner, pitch, run), work)


def _skewed(operation, vector, offset, outer, n, inner, pitch):
    (width, height), loads = SKEWED_THREADS, SKEWED_LOADS[vector]
    across = ceil_div(inner, (width - 1) * vector)
    splits = min(_splits(across * outer, max(1, n // (height * loads))), MAX_GRID_YZ)
    kernel = fast.make_skewed(operation, vector, width, height, loads)
    work = _work(splits, outer * inner, outer * across)
    return Launch(kernel, (across, splits, outer), (width, height), (outer, n, inner, pitch, offset % vector), work)


def _splits(blocks, tiles):
    """How many blocks share the tiles of a result: enough to fill the device, and to bound the tiles of each."""
    return min(tiles, max(_blocks_wanted() // blocks, ceil_div(tiles, MAX_TILES), 1))


def _blocks_wanted():
    return BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT


def _work(splits, results, counters):
    """(accumulators, counters) of blocks that share results; one of each if they do not, for the kernel's signature."""
    return (splits * results, counters) if splits > 1 else (1, 1)
