"""A small product on tensor cores, of operands of 2 bytes that lie anywhere, whose K is sliced among the warps of a
block.

Each warp loads what it multiplies straight to its registers, and waits for the others once, when they add up their
sums. The code is short: where one tile is all the work, a longer one takes more time to be fetched than to be run.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, types, uint8, uint32, uint64
from gpukit.intrinsics import mma, view_at
from gpukit.intrinsics.bfloat16 import bfloat16_of
from gpukit.matmul.formats import FORMATS, INSTRUCTION
from gpukit.matmul.raster import place, starts_of
from gpukit.matmul.rows import make_combine
from gpukit.matmul.shallow import make_fetches
from warpstep.limits import WARP

__all__ = ["SlicedTile", "sliced"]

#: Elements between the rows of a warp's sums in shared memory, so that the lanes' pairs lie in different banks.
PAD = 8
#: Parts of K of which the last block reads the sums at a time. With 16 a thread has 95 registers, and half as many
#: blocks run at a time.
AT_ONCE = 8
#: Threads that a multiprocessor has at a time with 64 registers each.
THREADS = 1024


class SlicedTile(NamedTuple):
    """The shape of a block's work.

    Attributes
    ----------
    rows, columns : int
        Of the result that a block computes: multiples of 16 and of 8.
    warps : int
        Of a block, each with all of these.
    pieces : int
        Instructions along K for which a warp loads operands at a time.
    """

    rows: int
    columns: int
    warps: int
    pieces: int

    @property
    def depth(self) -> int:
        """Bytes of K of a step."""
        return self.warps * self.pieces * INSTRUCTION

    def width(self, along: bool, extent: int) -> int:
        """The most elements of an operand that a lane loads at a time: of its rows or columns, of which a block has so
        many, or along K.
        """
        return 4 * self.pieces if along else extent // 8

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has registers for."""
        return THREADS // self.threads

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return 4 * self.warps * self.rows * (self.columns + PAD)


@functools.cache
def sliced(tile, name, layout, scales=False, widths=(1, 1)):
    """Make the kernel of out = a b for matrices in a batch, whose rows, or columns, begin anywhere.

    Parameters
    ----------
    tile : SlicedTile
    name : "float16" or "bfloat16"
    layout : str
        As of `gpukit.matmul.fast.fast`.
    scales : bool
        Whether to apply the factors.
    widths : (int, int)
        Of ``WIDTHS``, for ``a`` and ``b``: rows in memory begin and end at multiples of so many elements.

    Returns
    -------
    kernel
        ``kernel[tiles, tile.threads, stream, tile.shared_bytes](a, b, out, sizes, order, steps, factors, partials,
        counters)``, with the `Order` of its tiles. Arrays are flat, ``a`` and ``b`` of uint16, or of uint32 where the
        width is not 1. ``sizes`` is (m, n, k, elements from row to row, or from column to column, of ``a`` and ``b``),
        ``steps`` as of `starts_of`.
        ``partials`` has tile.rows * tile.columns sums for each tile of a part of K, ``counters`` a number for each
        tile: the last block of a tile adds the parts up in their order.
    """
    form, (rows, columns, warps, pieces) = FORMATS[name], tile
    total, element, small = form.total, form.result, form.small
    down, across, count, area = rows // 16, columns // 8, rows * columns // tile.threads, rows * columns
    threads, lines = tile.threads, 2 * down
    halves, float16, rounds, share = name == "float16", types.float16, element == types.uint16, pieces * small
    depth, pitch, words = warps * share, columns + PAD, 2 * pieces
    (fetch_a, row_of), (fetch_b, column_of) = make_fetches(layout, widths, lines, across, words)
    combine = make_combine(total, element)

    @cuda.jit(launch_bounds=(tile.threads, tile.resident))
    def sliced(a, b, out, sizes, order, matrix_steps, factors, partials, counters):
        memory = cuda.shared.array(0, uint8, alignment=128)
        held = view_at(memory, 0, (warps, rows, pitch), total)
        sums = cuda.local.array((down, across, 4), total)
        left, right = cuda.local.array((lines, words), uint32), cuda.local.array((across, words), uint32)
        m, n, k, pitch_a, pitch_b = sizes
        number = uint32(cuda.blockIdx.x)
        z, part, row, col, first, last = place(number, order)
        row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
        start_a, start_b = starts_of(z, order, matrix_steps)
        first, limit = uint32(first * uint32(depth)), uint32(min(k, uint32(last * uint32(depth))))
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid // uint32(WARP), tid % uint32(WARP)
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] = total(0)
        g, t = lane // uint32(4), lane % uint32(4)
        first = uint32(first + warp * uint32(share))
        while first < limit:
            fetch_a(left, a, start_a, row, g, t, first, m, limit, pitch_a)
            fetch_b(right, b, start_b, col, g, t, first, n, limit, pitch_b)
            for p in range(pieces):
                for i in range(down):
                    for j in range(across):
                        four = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
                        from_a = (
                            left[2 * i, 2 * p],
                            left[2 * i + 1, 2 * p],
                            left[2 * i, 2 * p + 1],
                            left[2 * i + 1, 2 * p + 1],
                        )
                        from_b = right[j, 2 * p], right[j, 2 * p + 1]
                        four = mma(from_a, from_b, four, float16) if halves else mma(from_a, from_b, four)
                        sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = four
            first = uint32(first + uint32(depth))
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    held[warp, row_of(2 * i + e // 2, g), column_of(j, uint32(2) * t + uint32(e % 2))] = sums[i, j, e]
        cuda.syncthreads()
        own = cuda.local.array(count, total)
        for e in range(count):
            i, own[e] = uint32(e * threads) + tid, total(0)
            for w in range(warps):
                own[e] += held[w, i // uint32(columns), i % uint32(columns)]
        if order.parts.value == 1 or join(own, partials, counters, number, z, part, order):
            for e in range(count):
                i = uint32(e * threads) + tid
                r, c = uint32(row + i // uint32(columns)), uint32(col + i % uint32(columns))
                if (r < m) & (c < n):
                    at = (uint64(z) * m + r) * n + c
                    if scales:
                        out[at] = combine(own[e], out[at] if factors[1] != total(0) else element(0), factors)
                    else:
                        out[at] = bfloat16_of(own[e]) if rounds else element(own[e])

    @cuda.jit(device=True, forceinline=True)
    def join(own, partials, counters, number, z, part, order):
        """Leave the sums of a part; return whether this block is the last of the tile, which has all sums then."""
        last, held = cuda.shared.array(1, uint32), cuda.local.array(AT_ONCE, total)
        tid, parts = uint32(cuda.threadIdx.x), order.parts.value
        for e in range(count):
            partials[uint64(number) * uint64(area) + uint64(uint32(e * threads) + tid)] = own[e]
        first = uint32(number - part * order.area.value)
        cuda.syncthreads()
        if tid == 0:
            cuda.threadfence()
            tile_number = uint32(first - z * (parts - uint32(1)) * order.area.value)
            last[0] = cuda.atomic.inc(counters, tile_number, uint32(parts - uint32(1)))
            cuda.threadfence()
        cuda.syncthreads()
        if last[0] != parts - uint32(1):
            return False
        for e in range(count):
            own[e] = total(0)
            at, step = uint64(first) * uint64(area) + uint64(uint32(e * threads) + tid), order.area.value * uint32(area)
            for base in range(0, parts, AT_ONCE):
                for u in range(AT_ONCE):  # those past the last part read the first, so that no load is behind a branch
                    inside = uint32(base + u) < parts
                    held[u] = partials[at + uint64(base + u) * uint64(step) if inside else at]
                for u in range(AT_ONCE):
                    own[e] += held[u] if uint32(base + u) < parts else total(0)
        return True

    return sliced
