"""Which kernel of `gpukit.reduce.fast` for a shape, on which grid, and with how much work memory.

The numbers are the fastest found on an H200.
"""

from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from gpukit.backend import cuda
from gpukit.divisors import MAX_DIVIDED, Divisor, make_divisor
from gpukit.operators import Operation
from gpukit.reduce import fast
from warpstep.integers import ceil_div, next_power_of_two
from warpstep.limits import MAX_GRID_YZ, WARP

__all__ = ["Launch", "choose", "choose_strided", "is_few", "max_vector"]

#: Threads of a block, and blocks per multiprocessor that a launch is spread over.
THREADS = 256
BLOCKS = 8
#: Max blocks of a multiprocessor.
MAX_RESIDENT = 32
#: Accesses that a lane has under way at a time in ``rows``.
ROW_LOADS = 4
#: It is one for arrays of at most one access for each thread of the device: less code is fetched sooner.
#: Max threads of a block then, and max accesses of each if a block takes a row alone; accesses of a row for which a
#: block has as many threads.
FEW_THREADS, FEW_ACCESSES, SHORT_ROW = 1024, 4, 64
#: It is two in an array of at most so many bytes, if rows have so many accesses, and there are rows for a quarter of
#: the blocks wanted up to ``WARP_ROWS`` times as many: a block takes a row alone. Its threads if rows are more than
#: blocks wanted.
ALONE_ROW_LOADS, ALONE_BYTES, ALONE_ROW, ALONE_THREADS = 2, 64 << 20, (1 << 9, 1 << 12), 128
#: The longest row that a block of ``short`` takes, if there are few rows.
SHORT_ELEMENTS = 4096
#: A warp takes a row alone if the warps of a block would have shares of different sizes, the row has at most so many
#: tiles, and there are so many rows for each block wanted.
WARP_ROWS, WARP_TILES = 2, 64
#: Max accesses of a lane in ``groups``, by bytes of an access.
SHORT_LOADS = {1: 16, 2: 16, 4: 16, 8: 8, 16: 8}
#: The same where there are few rows: otherwise a block takes each of them.
ALONE_LOADS = 4
#: Accesses that a lane should have under way there, for one row or for several at once; and for one if there are many
#: rows, by bytes of an access. Up to so many threads take one row at a time: less code is fetched sooner.
SHORT_ACCESSES = 4
MANY_ACCESSES = {1: 8, 2: 8, 4: 8, 8: 4, 16: 1}
SEVERAL_THREADS = 1 << 16
#: Columns of which ``groups`` takes all rows, if these are so many at least, and totals that a lane holds at most.
GROUP_COLUMNS, GROUP_ROWS, GROUP_HELD = (2, 4, 8), 32, 32
#: Accesses that a thread has under way in ``columns``; (threads along x, threads) of its blocks, by bytes of an access.
COLUMN_LOADS = 8
COLUMN_THREADS = {1: (64, 256), 2: (64, 256), 4: (64, 256), 8: (32, 128), 16: (32, 128)}
#: Threads of blocks that share the rows of their columns, so that the last one has few partial results to read; and
#: accesses that each has under way at least, where more would leave multiprocessors without a block.
SHARED_THREADS, SHARED_LOADS = 512, 4
#: Up to so many blocks take their columns alone, if these are at most so many bytes: with this number of threads, if
#: each reads at most so many times.
MAX_ALONE, ALONE_COLUMN_BYTES, ALONE_ROUNDS = 32, 80 << 10, {256: 2, 512: 4}
#: Accesses that a thread has under way in ``skewed``, by elements of an access; its block. With up to four times as
#: many threads, and so many accesses at most, blocks take their columns alone, if there are so many blocks at least and
#: one for each multiprocessor at most, and a thread reads at most so many times.
SKEWED_LOADS = {2: 4, 4: 4, 8: 8}
SKEWED_THREADS = (32, 8)
SKEWED_ACCESSES, SKEWED_BLOCKS, SKEWED_ROUNDS = 4096, 32, 4
#: Max columns of ``narrow`` for each element of an access; bytes of an array at least, for few columns and for more.
#: Bytes that a thread has under way; max threads of its block, and bytes of their totals.
NARROW_COLUMNS, NARROW_FEW, NARROW_MIN_BYTES = 64, 16, (8 << 20, 2 << 20)
NARROW_BYTES, NARROW_THREADS, NARROW_SHARED = 64, 1024, 1 << 15
#: Rows that a thread of ``cells`` has under way; and where it takes one column, or rows have up to ``CELL_SHORT``. The
#: threads of a warp do not read these as neighbours; each takes 4 bytes of them at a time, or one column. If there are
#: more rows, it takes up to ``CELL_ROWS`` where there are so many threads for each block wanted; and where their
#: accesses to a row are so many bytes, up to so many, by bytes of an element, or ``SHORT_CELL_ROWS`` if an access is
#: less than 4 bytes.
CELL_LOADS, CELL_COLUMN_LOADS, CELL_SHORT = 4, 8, 64
CELL_ROWS, CELL_THREADS, CELL_BYTES = 32, 96, 1 << 20
MAX_CELL_ROWS, SHORT_CELL_ROWS = {1: 64, 2: 128, 4: 128, 8: 40}, 40
#: Elsewhere it is faster than ``columns`` if each thread reads at most so many times for each time that the device is
#: full of blocks of ``columns``; for elements of less than 4 bytes and for others.
CELL_ROUNDS = 4.25, 3.5
#: Elements that a thread has under way in ``strided``; bytes of an array up to which it is faster than two launches, if
#: up to ``STRIDED_ROW`` elements are neighbours in memory, and if more are; half as many for three reduced axes.
STRIDED_LOADS, STRIDED_ROW, STRIDED_MAX_BYTES = 8, 64, (8 << 20, 2 << 20)
#: How many of few elements a thread has, if there would be more than so many blocks for each multiprocessor.
STRIDED_FEW, STRIDED_BLOCKS = 4, 2
#: Tiles of a thread from which on whole ones have instructions of their own, for elements of less than 4 bytes.
LONG_TILES = 4
#: Max tiles, or one fewer, that a warp adds one after the other. It bounds the rounding error of long rows and columns,
#: and what a lane reads of them: 64 KB, so that sums of 8 and 16-bit integers fit in 32 bits.
MAX_TILES = 1000


class Launch(NamedTuple):
    """A launch. Its kernel takes input, output, partials and counters if there is ``work``, ``numbers``, and the count.

    Attributes
    ----------
    kernel, grid, block
    numbers : tuple of int or Walk
    work : (int, int), optional
        How many accumulators and counters its blocks leave to each other.
    part, part_out : slice, optional
        Of the input and the output, for a launch over a part of the outer axis.
    """

    kernel: Any
    grid: int | tuple[int, int, int]
    block: int | tuple[int, int]
    numbers: tuple
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
    operation: Operation, itemsize: int, offset: int, outer: int, n: int, inner: int, pitch: int, aligned: bool
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
    aligned : bool
        Whether the output begins at a multiple of 16 bytes.
    """
    if inner == 1 and n > 1:
        vector = max_vector(itemsize, offset, gcd(n, pitch))
        few = outer <= _multiprocessors()
        loads = ALONE_LOADS if few else SHORT_LOADS[vector * itemsize]
        if n <= WARP * vector * loads:
            return [_groups(operation, itemsize, vector, outer, n, pitch)]
        if n <= SHORT_ELEMENTS and few:
            loads = next_power_of_two(ceil_div(n, FEW_THREADS))
            threads = max(2 * WARP, next_power_of_two(ceil_div(n, loads)))
            return [Launch(fast.make_short(operation, threads, loads), outer, threads, (n, pitch))]
        return [_rows(operation, 16 // itemsize, offset, outer, n, pitch)]
    if inner == 1:
        outer, inner, pitch = 1, outer, outer
    whole_rows = max_vector(itemsize, offset, n * inner)
    if n >= GROUP_ROWS and pitch == inner and inner in GROUP_COLUMNS and whole_rows % inner == 0:
        if n * inner <= WARP * whole_rows * min(SHORT_LOADS[whole_rows * itemsize], GROUP_HELD // inner):
            return [_groups(operation, itemsize, whole_rows, outer, n * inner, n * inner, inner)]
    widest = min(16 // itemsize, 8)
    vector = min(max_vector(itemsize, offset, gcd(inner, pitch)), widest)
    cells = _is_for_cells(itemsize, vector, outer, n, inner)
    many = n * inner * itemsize >= NARROW_MIN_BYTES[inner > NARROW_FEW] and (inner > 4 or itemsize == 1)
    whole = many and pitch == inner and operation.commutative
    if not cells and whole and vector < widest and inner <= NARROW_COLUMNS * widest:
        return [_narrow(operation, itemsize, widest, offset, outer, n, inner)]
    skewed = vector < widest and operation.commutative and n >= CELL_ROWS and inner >= 16 * widest
    skewed = skewed and not _threads_alone(itemsize, vector, outer, n, inner)
    cells = cells or not skewed and _are_short(itemsize, vector, outer, n, inner)

    def launch(first, size):
        if cells:
            return _cells(operation, itemsize, vector, size, n, inner, pitch, aligned)
        if skewed:
            return _skewed(operation, itemsize, widest, offset + first * n * pitch, size, n, inner, pitch)
        return _columns(operation, itemsize, vector, size, n, inner, pitch)

    most = max(1, MAX_DIVIDED // max(1, inner)) if cells else MAX_GRID_YZ
    if outer <= most:
        return [launch(0, outer)]
    parts = [(first, min(outer - first, most)) for first in range(0, outer, most)]
    return [
        launch(first, size)._replace(
            part=slice(first * n * pitch, (first + size) * n * pitch) if n else None,
            part_out=slice(first * inner, (first + size) * inner),
        )
        for first, size in parts
    ]


def choose_strided(
    operation: Operation, kept: list[tuple[int, int, int]], reduced: list[tuple[int, int]], first: int = 0
) -> Launch | None:
    """The launch that reduces an array of any strides; None if there are too many axes or elements for its kernel.

    Parameters
    ----------
    operation : Operation
    kept : list of (size, step of the input, step of the output)
        In elements, neighbours in the input's memory last. Steps of the input are not negative.
    reduced : list of (size, step)
        Likewise.
    first : int
        The place of the first result.
    """
    results, elements = prod(size for size, *_ in kept), prod(size for size, _ in reduced)
    if not operation.commutative or len(kept) > 3 or len(reduced) > 3 or max(results, elements) >= 1 << 30:
        return None
    kept, reduced = [(1, 0, 0)] * (3 - len(kept)) + kept, [(1, 0)] * (3 - len(reduced)) + reduced
    (outer, *_), (between, *_), (inner, along, _) = kept
    (slabs, slab_step), (rows, row_step), (n, n_step) = reduced
    # Neighbouring threads take neighbours in memory: results, or elements of one.
    width = min(WARP, next_power_of_two(inner)) if n == 1 or 0 < along < n_step or n_step == 0 else 1
    if results <= 2 * _multiprocessors() and elements < 2 * THREADS * STRIDED_LOADS:
        width = 1  # a block for each result
    width, height, loads = _team(results, elements, outer * between, inner, width)
    across = ceil_div(inner, width)
    blocks = ceil_div(outer * between * across, THREADS // (width * height))
    splits = min(_splits(blocks, max(1, elements // (height * STRIDED_LOADS))), MAX_GRID_YZ)
    share = ceil_div(elements, splits * height) * height
    line = slabs == rows == 1
    rest, places_on = (0, height) if line else divmod(height, n)
    slabs_on, rows_on = divmod(rest, rows)
    walk = fast.Walk(
        np.uint32(outer * between),
        make_divisor(between),
        np.uint32(inner),
        make_divisor(across),
        make_divisor(rows),
        make_divisor(n),
        np.uint32(elements),
        np.uint32(share),
        np.uint32(width.bit_length() - 1),
        np.uint32(height.bit_length() - 1),
        tuple(np.int64(step) for _, step, _ in kept),
        tuple(np.int64(step) for *_, step in kept),
        np.int64(first),
        (np.int64(slab_step), np.int64(row_step), np.int64(n_step)),
        (np.uint32(rows_on), np.uint32(places_on)),
        np.int64(slabs_on * slab_step + rows_on * row_step + places_on * n_step),
        (np.int64(slab_step - rows * row_step), np.int64(row_step - n * n_step)),
    )
    once = elements <= loads * height * splits
    kernel = fast.make_strided(operation, THREADS, loads, height * splits == 1, line, once)
    return Launch(kernel, (blocks, splits, 1), THREADS, (walk,), _work(splits, results, blocks))


def _team(results, elements, rows, inner, width):
    """(threads along the results, along the elements of each, loads of one) of a team of ``strided``, which takes up to
    ``width`` results of a row.
    """
    height, loads, wanted = (
        min(THREADS // width, next_power_of_two(elements)),
        STRIDED_LOADS,
        THREADS * _blocks_wanted(),
    )
    threads = rows * ceil_div(inner, width) * width  # for each one along the elements
    if results * elements > wanted:  # threads have several elements
        height = min(height, next_power_of_two(ceil_div(elements, loads)))
        while height * width > WARP and threads * height > wanted:
            height //= 2
    elif threads * height > STRIDED_BLOCKS * wanted // BLOCKS:
        height = min(height, next_power_of_two(ceil_div(elements, STRIDED_FEW)))
    loads = min(loads, next_power_of_two(ceil_div(elements, height)))
    # With one thread for each result, no team has a part of a row.
    return (width if height > 1 else 1), height, loads


def is_few(itemsize: int, kept: list, reduced: list) -> bool:
    """Tell whether an array is so small that ``strided`` is faster than two launches."""
    near = prod(size for size, step, *_ in kept[-1:] + reduced[-1:] if step <= (reduced[-1][1] if reduced else 1))
    most = STRIDED_MAX_BYTES[near > STRIDED_ROW] // (2 if len(reduced) > 2 else 1)
    return prod(size for size, *_ in kept + reduced) * itemsize <= most


def _groups(operation, itemsize, vector, outer, n, pitch, each=1):
    lanes = min(WARP, next_power_of_two(ceil_div(n, vector)))
    few = min(WARP, next_power_of_two(ceil_div(n, vector * MANY_ACCESSES[vector * itemsize])))
    if outer * few >= THREADS * _blocks_wanted() // 4:  # enough threads: let each have more, with fewer shuffles
        lanes = few
    loads = next_power_of_two(ceil_div(n, vector * lanes))
    several = max(1, SHORT_ACCESSES // (loads * each)) if outer * lanes > SEVERAL_THREADS else 1
    kernel = fast.make_groups(operation, vector, lanes, loads, several, THREADS, each)
    return Launch(kernel, ceil_div(outer, THREADS // lanes * several), THREADS, (outer, n, pitch))


def _rows(operation, vector, offset, outer, n, pitch):
    accesses = ceil_div(n + offset, vector)
    if outer * accesses <= THREADS * _blocks_wanted():
        loads, alone = 1, accesses <= FEW_THREADS * FEW_ACCESSES
        least = SHORT_ROW if accesses <= SHORT_ROW else THREADS
        threads = min(FEW_THREADS, max(least, next_power_of_two(accesses))) if alone else THREADS
    else:
        rows_fit = _blocks_wanted() <= 4 * outer <= 4 * WARP_ROWS * _blocks_wanted()
        fits = ALONE_ROW[0] <= accesses <= ALONE_ROW[1] and outer * accesses * 16 <= ALONE_BYTES
        alone = rows_fit and fits
        loads = ALONE_ROW_LOADS if alone else ROW_LOADS
        most = ALONE_THREADS if alone and outer > _blocks_wanted() else THREADS
        threads = min(most, max(64, next_power_of_two(n // (vector * loads))))
    tiles, warps = ceil_div(accesses, WARP * loads), threads // WARP
    if tiles % warps and loads > 1 and not alone and outer >= WARP_ROWS * _blocks_wanted() and tiles <= WARP_TILES:
        loads = min(loads, next_power_of_two(ceil_div(accesses, WARP)))
        kernel = fast.make_warp_rows(operation, vector, THREADS, loads)
        run = _most_tiles(n, vector, loads)
        return Launch(kernel, ceil_div(outer, THREADS // WARP), THREADS, (outer, n, pitch, run, offset))
    splits = 1 if alone else min(_splits(outer, max(1, tiles // warps)), MAX_GRID_YZ)
    run = ceil_div(_most_tiles(n, vector, loads), splits * warps)
    kernel = fast.make_rows(operation, vector, threads, loads, splits == 1)
    work = _work(splits, outer, outer)
    return Launch(kernel, (outer, splits, 1), threads, (n, pitch, run, offset), work)


def _most_tiles(n, vector, loads):
    """How many tiles a row of ``rows`` may have, whose tiles begin at aligned addresses: one more where it does not."""
    return ceil_div(n + vector - 1, WARP * vector * loads)


def _is_for_cells(itemsize, vector, outer, n, inner):
    if n <= CELL_LOADS:
        return True
    threads, access = outer * inner // vector, vector * itemsize
    most = SHORT_CELL_ROWS if access < 4 else MAX_CELL_ROWS[itemsize]
    return threads >= CELL_THREADS * _blocks_wanted() and (
        n <= CELL_ROWS or n <= most and threads * access >= CELL_BYTES
    )


def _are_short(itemsize, vector, outer, n, inner):
    """Whether blocks of ``columns`` would be so many, with so few rows, that threads should take all rows of theirs."""
    at_once, width, height, _ = _block_of_columns(itemsize, vector, n, inner)
    device, blocks = cuda.get_current_device(), outer * ceil_div(inner, width * at_once)
    resident = min(MAX_RESIDENT, device.MAX_THREADS_PER_MULTIPROCESSOR // (width * height))
    rounds = ceil_div(n, _accesses_of_cells(itemsize, vector, outer, n, inner)[1])
    return rounds <= min(MAX_TILES, CELL_ROUNDS[itemsize >= 4] * blocks / (resident * device.MULTIPROCESSOR_COUNT))


def _accesses_of_cells(itemsize, vector, outer, n, inner):
    """(Elements of an access, accesses under way) of ``cells``."""
    if n > CELL_LOADS and inner <= CELL_SHORT:
        vector = max(1, min(vector, 4 // itemsize))
        if outer * inner // vector < CELL_THREADS * _blocks_wanted():
            vector = 1
        return vector, min(CELL_COLUMN_LOADS, next_power_of_two(n))
    return vector, min(CELL_COLUMN_LOADS if vector == 1 else CELL_LOADS, next_power_of_two(n))


def _cells(operation, itemsize, vector, outer, n, inner, pitch, aligned):
    vector, loads = _accesses_of_cells(itemsize, vector, outer, n, inner)
    width = 16 // operation.result.itemsize if aligned else 1
    # Each result is written once, so the threads of a warp must write neighbours as they read them.
    vector = min(vector, max(width, 4)) if n <= CELL_LOADS else vector
    kernel = fast.make_cells(operation, vector, loads, min(width, vector, 4), THREADS)
    across = inner // vector
    divisor = make_divisor(across) if outer > 1 else Divisor(np.uint32(1), np.uint32(0), np.uint32(0))
    return Launch(kernel, ceil_div(outer * across, THREADS), THREADS, (outer, n, inner, pitch, divisor))


def _block_of_columns(itemsize, vector, n, inner):
    """(Elements of an access, threads along x, threads along y, accesses under way) of ``columns``."""
    vector = min(vector, 8 // itemsize) if itemsize < 4 else vector
    width, threads = COLUMN_THREADS[vector * itemsize]
    width = min(width, next_power_of_two(ceil_div(inner, vector)))
    height, loads = threads // width, COLUMN_LOADS
    while height * width > WARP and height * loads >= 2 * max(n, 1):
        loads, height = (loads // 2, height) if loads > 1 else (loads, height // 2)
    return vector, width, height, loads


def _threads_alone(itemsize, vector, outer, n, inner):
    """Threads of blocks of ``columns`` that take their columns alone; 0 if several blocks should share the rows."""
    vector, width, *_ = _block_of_columns(itemsize, vector, n, inner)
    if outer * ceil_div(inner, width * vector) > MAX_ALONE or n * width * vector * itemsize > ALONE_COLUMN_BYTES:
        return 0
    return next((t for t, rounds in ALONE_ROUNDS.items() if n <= rounds * (t // width) * COLUMN_LOADS), 0)


def _columns(operation, itemsize, vector, outer, n, inner, pitch):
    alone = _threads_alone(itemsize, vector, outer, n, inner)
    vector, width, height, loads = _block_of_columns(itemsize, vector, n, inner)
    _, threads = COLUMN_THREADS[vector * itemsize]
    across = ceil_div(inner, width * vector)
    splits = min(_splits(across * outer, max(1, n // (height * loads))), MAX_GRID_YZ)
    if splits > 1 and alone:
        height, splits = alone // width, 1
        while loads > 1 and height * loads >= 2 * n:
            loads //= 2
    elif splits > 1:
        height = SHARED_THREADS // width
        while loads > SHARED_LOADS and across * outer * ceil_div(n, height * loads) < _multiprocessors():
            loads //= 2
        blocks = across * outer * SHARED_THREADS // threads
        splits = min(_splits(blocks, max(1, n // (height * loads))), MAX_GRID_YZ)
    deep = fast.rows_of_warp(width, height)
    run = ceil_div(n, deep * loads * splits * (height // deep))
    kernel = fast.make_columns(operation, vector, width, height, loads, _is_long(itemsize, run))
    work = _work(splits, outer * inner, outer * across)
    return Launch(kernel, (across, splits, outer), (width, height), (outer, n, inner, pitch, run), work)


def _narrow(operation, itemsize, vector, offset, outer, n, inner):
    together = inner // gcd(inner, vector)  # threads that read whole rows
    largest = min(NARROW_THREADS, NARROW_SHARED // (vector * operation.partial.itemsize))
    # Whole rows; whole warps too if there are threads for that, or else whole lines of memory.
    units = [together * step // gcd(together, step) for step in (WARP, WARP // 4, 1)]
    unit = next(unit for unit in units if unit <= largest)
    threads, loads = largest // unit * unit, NARROW_BYTES // (vector * max(itemsize, 2))
    tiles = ceil_div(n * inner, threads * vector * loads)
    splits = min(tiles, max(_multiprocessors() // outer, ceil_div(tiles, MAX_TILES), 1))
    kernel = fast.make_narrow(operation, vector, loads, largest, _is_long(itemsize, ceil_div(tiles, splits)))
    work = _work(splits, outer * inner, outer)
    return Launch(kernel, (outer, splits, 1), threads, (n, inner, offset % vector), work)


def _skewed(operation, itemsize, vector, offset, outer, n, inner, pitch):
    (width, height), loads = SKEWED_THREADS, SKEWED_LOADS[vector]
    across = ceil_div(inner, (width - 1) * vector)
    splits = min(_splits(across * outer, max(1, n // (height * loads))), MAX_GRID_YZ)
    if splits > 1:
        tall = min(4 * height, SKEWED_ACCESSES // (width * loads))
        if n <= SKEWED_ROUNDS * tall * loads and SKEWED_BLOCKS <= across * outer <= _multiprocessors():
            height, splits = tall, 1
    long = _is_long(itemsize, ceil_div(n, height * loads * splits))
    kernel = fast.make_skewed(operation, vector, width, height, loads, long)
    work = _work(splits, outer * inner, outer * across)
    return Launch(kernel, (across, splits, outer), (width, height), (outer, n, inner, pitch, offset % vector), work)


def _is_long(itemsize, tiles):
    return itemsize < 4 and tiles >= LONG_TILES


def _splits(blocks, tiles):
    """How many blocks share the tiles of a result: enough to fill the device, and to bound the tiles of each."""
    return min(tiles, max(_blocks_wanted() // blocks, ceil_div(tiles, MAX_TILES), 1))


def _blocks_wanted():
    return BLOCKS * _multiprocessors()


def _multiprocessors():
    return cuda.get_current_device().MULTIPROCESSOR_COUNT


def _work(splits, results, counters):
    """(accumulators, counters) of blocks that share results; one of each if they do not, for the kernel's signature."""
    return (splits * results, counters) if splits > 1 else (1, 1)
