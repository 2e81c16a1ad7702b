"""Copies of operands that tensor cores cannot read as they lie, or not exactly enough."""

import functools
from typing import NamedTuple

import numpy as np

from gpukit.backend import cuda, float32, int32, types, uint32, uint64
from gpukit.divisors import Divisor, divided, make_divisor
from gpukit.intrinsics import byte_perm, load2, store4
from warpstep.integers import ceil_div
from warpstep.limits import LINE

__all__ = [
    "BOTH",
    "CHUNK",
    "COPY_THREADS",
    "HIGH_A",
    "HIGH_B",
    "LANES",
    "MAX_CHUNKS",
    "PLAIN",
    "ROWS",
    "align",
    "align_grid",
    "align_rows",
    "chunks_across",
    "make_chunks",
    "part_of",
    "turn_bytes",
    "turn_grid",
]

#: Columns and rows that a block copies at a time: its threads.
LANES, ROWS = 32, 8
#: Blocks along y and z at most; they loop.
MAX_BLOCKS = 1 << 15
#: What follows what in a row of a copy: the element (0), its upper part (1), the rest of it (2). A product of operands
#: in the second and third way has, for each k, upper upper + upper rest + rest upper: what TF32 loses is in the rests.
PLAIN, HIGH_A, HIGH_B = (0,), (1, 1, 2), (1, 2, 1)
#: Both parts, once each.
BOTH = 1, 2
#: The bits of a float32 that TF32 does not have, and half the value of the lowest one that it has.
LOST, HALF = 0x1FFF, 0x1000


@cuda.jit(device=True, forceinline=True)
def upper(x):
    """Round a float32 to TF32; what is not finite, or would not be, is its own upper part."""
    bits = uint32(cuda.libdevice.float_as_int(x)) + uint32(HALF)
    rounded = cuda.libdevice.int_as_float(bits & ~uint32(LOST))
    return rounded if abs(rounded) <= float32(3.4e38) else x


@functools.cache
def part_of(which):
    """Make the device function that gives a part of an element."""

    @cuda.jit(device=True, forceinline=True)
    def whole(x):
        return x

    @cuda.jit(device=True, forceinline=True)
    def rest(x):
        high = upper(x)
        return upper(x - high) if high != x else float32(0)

    return (whole, upper, rest)[which]


def tile_of(itemsize: int) -> tuple[int, int]:
    """(rows and columns of a tile, elements of a row in shared memory): a word more, and a column lies in different
    banks. Short elements have larger tiles, so that as many bytes are on the way.
    """
    size = 32 if itemsize == 4 else 64
    return size, size + 4 // itemsize


@functools.cache
def align(element, turned, ways=PLAIN):
    """Make the kernel that copies matrices to rows that begin at multiples of 16 bytes, filled up with zeros.

    Launch it as ``kernel[align_grid(...), (32, 8)](source, target, sizes, pitch, step)``: ``source`` has ``pitch``
    elements from row to row and ``step`` from matrix to matrix. ``sizes`` is (matrices, rows and columns of a matrix of
    ``target``, columns of it that are no zeros), of uint32. With ``turned`` the rows of ``target`` are columns of
    ``source``. The columns come again for each of ``ways``, in its parts of the elements.
    """
    first, second, third = (part_of(ways[min(i, len(ways) - 1)]) for i in range(3))
    count, (size, pitch_of_tile) = len(ways), tile_of(element.bitwidth // 8)

    @cuda.jit(device=True, forceinline=True)
    def put(target, at, columns, x):
        target[at] = first(x)
        if count > 1:
            target[at + columns] = second(x)
        if count == 3:
            target[at + uint64(2) * columns] = third(x)

    @cuda.jit
    def align(source, target, sizes, pitch, step):
        tile = cuda.shared.array((size, pitch_of_tile), element)
        matrices, rows, columns, used = sizes
        tx, ty, col = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint32(cuda.blockIdx.x) * uint32(size)
        for z in range(cuda.blockIdx.z, matrices, cuda.gridDim.z):
            for row in range(cuda.blockIdx.y * size, rows, cuda.gridDim.y * size):
                for i in range(0, size, ROWS):
                    for j in range(0, size, LANES):
                        # Neighbouring threads read neighbours in memory.
                        r, c = ty + uint32(i), tx + uint32(j)
                        if turned:
                            r, c = c, r
                        inside = (row + r < rows) & (col + c < used)
                        down, across = (row + r, col + c) if not turned else (col + c, row + r)
                        at = uint64(z) * step + uint64(down) * pitch + uint64(across)
                        tile[r, c] = source[at] if inside else element(0)
                cuda.syncthreads()
                for i in range(0, size, ROWS):
                    for j in range(0, size, LANES):
                        r, c = ty + uint32(i), tx + uint32(j)
                        if row + r < rows and col + c < columns:
                            at = (uint64(z) * rows + uint64(row + r)) * columns * uint64(count) + uint64(col + c)
                            put(target, at, uint64(columns), tile[r, c])
                cuda.syncthreads()

    return align


#: Rows and columns of a tile of `turn_bytes`, and words of a row of it: one more than it has.
BYTES, WORDS = 128, 33


@cuda.jit
def turn_bytes(source, target, sizes, pitch, step):
    """Copy as `align` does with ``turned``, for elements of one byte, in words.

    Both arrays are of uint32. The rows of ``source`` begin and end at multiples of 4 bytes.
    """
    # Byte by byte, a product of int8 takes up to a fifth longer.
    tile, held = cuda.shared.array((BYTES, WORDS), uint32), cuda.local.array((4, 4), uint32)
    matrices, rows, columns, used = sizes
    tx, ty, first = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint32(cuda.blockIdx.x) * uint32(BYTES)
    for z in range(cuda.blockIdx.z, matrices, cuda.gridDim.z):
        for row in range(cuda.blockIdx.y * BYTES, rows, cuda.gridDim.y * BYTES):
            for i in range(4):
                for j in range(4):
                    k, col = first + uint32(4) * (ty + uint32(ROWS * i)) + uint32(j), row + uint32(4) * tx
                    at = (uint64(z) * step + uint64(k) * pitch + uint64(col)) // uint64(4)
                    held[i, j] = source[at] if (k < used) & (col < rows) else uint32(0)
            for i in range(4):
                # Bytes of two rows in turns, then pairs of them: four of a column.
                low, more_low = byte_perm(held[i, 0], held[i, 1], 0x5140), byte_perm(held[i, 2], held[i, 3], 0x5140)
                high, more_high = byte_perm(held[i, 0], held[i, 1], 0x7362), byte_perm(held[i, 2], held[i, 3], 0x7362)
                at = uint32(4) * tx, ty + uint32(ROWS * i)
                tile[at[0], at[1]] = byte_perm(low, more_low, 0x5410)
                tile[at[0] + uint32(1), at[1]] = byte_perm(low, more_low, 0x7632)
                tile[at[0] + uint32(2), at[1]] = byte_perm(high, more_high, 0x5410)
                tile[at[0] + uint32(3), at[1]] = byte_perm(high, more_high, 0x7632)
            cuda.syncthreads()
            for i in range(0, BYTES, ROWS):
                r, col = ty + uint32(i), first + uint32(4) * tx
                if row + r < rows and col < columns:
                    at = (uint64(z) * rows + uint64(row + r)) * columns + uint64(col)
                    target[at // uint64(4)] = tile[r, tx]
            cuda.syncthreads()


def align_grid(matrices: int, rows: int, columns: int, itemsize: int) -> tuple[int, int, int]:
    """The blocks of a launch of `align`."""
    return _grid(matrices, rows, columns, tile_of(itemsize)[0])


def turn_grid(matrices: int, rows: int, columns: int) -> tuple[int, int, int]:
    """The blocks of a launch of `turn_bytes`."""
    return _grid(matrices, rows, columns, BYTES)


def _grid(matrices, rows, columns, size):
    return ceil_div(columns, size), min(ceil_div(rows, size), MAX_BLOCKS), min(matrices, MAX_BLOCKS)


# -- rows of elements of 2 bytes -------------------------------------------------------------------

#: Threads of a block; elements that a thread stores, and of the aligned pairs that these lie in.
COPY_THREADS, CHUNK, HELD = 256, 8, 10
#: Chunks of an operand: their numbers are divided by a `Divisor`.
MAX_CHUNKS = 2**31


class Chunks(NamedTuple):
    """Rows of elements of 2 bytes, and their copies, which are whole cache lines, in chunks of 16 bytes."""

    count: np.uint32  # of all copies
    across: Divisor  # chunks of a row
    down: Divisor  # rows of a matrix
    used: np.uint32  # elements of a row that are no zeros
    odd: np.uint32  # whether the first element's address is no multiple of 4
    pitch: np.uint64  # elements from row to row
    step: np.uint64  # from matrix to matrix

    @property
    def blocks(self) -> int:
        """int: of `align_rows`."""
        return ceil_div(int(self.count), COPY_THREADS)


def chunks_across(used: int) -> int:
    """Chunks of a copy of a row of so many elements."""
    return ceil_div(2 * used, LINE) * (LINE // 2 // CHUNK)


def make_chunks(matrices: int, rows: int, used: int, odd: int, pitch: int, step: int) -> Chunks:
    """Describe an operand that `align_rows` copies, in at most ``MAX_CHUNKS`` chunks."""
    across = chunks_across(used)
    counts = np.uint32(matrices * rows * across), make_divisor(across), make_divisor(rows)
    return Chunks(*counts, np.uint32(used), np.uint32(odd), np.uint64(pitch), np.uint64(step))


@cuda.jit(device=True, forceinline=True)
def copy_chunk(source, target, block, layout):
    """Copy a chunk: its elements lie in aligned pairs of the source, the first of which may begin one before."""
    chunk = uint32(block * uint32(COPY_THREADS) + uint32(cuda.threadIdx.x))
    if chunk >= layout.count:
        return
    held, none = cuda.local.array(HELD, types.uint16), types.uint16(0)
    row, part = divided(chunk, layout.across)
    z, r = divided(row, layout.down)
    col = uint32(part * uint32(CHUNK))
    at, left = uint64(z) * layout.step + uint64(r) * layout.pitch + uint64(col), int32(layout.used) - int32(col)
    is_odd = (at + layout.odd) % uint64(2) == 1
    start = at - uint64(1) if is_odd else at
    if start < uint64(max(source.size - (HELD - 1), 0)):  # before the source it is huge
        for j in range(0, HELD, 2):
            held[j], held[j + 1] = load2(source, start + uint64(j))
    else:
        is_odd = False
        for j in range(CHUNK):
            held[j] = source[at + uint64(j)] if j < left else none
    for j in range(CHUNK):
        x = held[j + 1] if is_odd else held[j]
        held[j] = x if j < left else none
    w = uint32(held[0]) | uint32(held[1]) << uint32(16)
    x = uint32(held[2]) | uint32(held[3]) << uint32(16)
    y = uint32(held[4]) | uint32(held[5]) << uint32(16)
    z = uint32(held[6]) | uint32(held[7]) << uint32(16)
    store4(target, uint64(chunk) * uint64(CHUNK // 2), w, x, y, z)


@cuda.jit
def align_rows(source_a, target_a, chunks_a, source_b, target_b, chunks_b, blocks_a):
    """Copy the rows of one or two operands of 2-byte elements to rows of whole lines, filled up with zeros.

    Launch it with ``blocks_a`` blocks for the first operand and more for the second, of ``COPY_THREADS``. The sources
    are of uint16, the targets of uint32.
    """
    # Element by element, in a launch for each operand, a product of 1001 x 1001 x 1001 takes 5 us longer.
    block = uint32(cuda.blockIdx.x)
    if block < blocks_a:
        copy_chunk(source_a, target_a, block, chunks_a)
    else:
        copy_chunk(source_b, target_b, uint32(block - blocks_a), chunks_b)
