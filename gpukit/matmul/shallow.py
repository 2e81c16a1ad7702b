"""A product with a small K, or many small ones, on tensor cores, of operands of 2 bytes that lie anywhere.

Each warp loads what it multiplies straight to its registers, element by element, and waits for no other warp. K is
covered by an instruction or two, or the warps of a block have matrices of their own: so hardly anything is read twice.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, types, uint8, uint32, uint64
from gpukit.intrinsics import load2, mma
from gpukit.matmul.formats import FORMATS, INSTRUCTION
from gpukit.matmul.raster import place, starts_of
from gpukit.matmul.rows import WARP_ROWS, rows_bytes
from gpukit.matmul.warps import make_store
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["ShallowTile", "shallow"]

#: Warps of a block.
WARPS = 4


class ShallowTile(NamedTuple):
    """The shape of a block's work; a warp has 16 rows of it.

    Attributes
    ----------
    rows, columns : int
        Of the result that a block computes: 16, 32 or 64 rows, and a multiple of 16 columns for each warp.
    depth : int
        Bytes of K of a step, a multiple of 32. Only tiles that are ``apart`` have more than one.
    apart : bool
        Whether each warp has such a tile, of any matrix; 16 rows then.
    """

    rows: int
    columns: int
    depth: int
    apart: bool = False

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return WARP_ROWS

    @property
    def warp_columns(self) -> int:
        """Columns of a warp."""
        return self.columns if self.apart else self.rows * self.columns // (WARPS * WARP_ROWS)

    def blocks(self, tiles: int) -> int:
        """Blocks for so many tiles."""
        return ceil_div(tiles, WARPS) if self.apart else tiles

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * WARPS

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return rows_bytes(WARPS)


@functools.cache
def shallow(tile, name, layout, parts, wide, scales=False, evens=(False, False)):
    """Make the kernel of out = a b for matrices in a batch, with the arguments of `gpukit.matmul.sliced.sliced` up to
    ``factors``. K has ``tile.depth`` bytes at most unless the tiles are apart. ``name`` is "float16" or "bfloat16".
    ``evens``: whether pairs along K of ``a`` and ``b`` lie at multiples of 4 bytes, and K is even.
    """
    form, (rows, columns, depth, apart) = FORMATS[name], tile
    total, pieces, across, warps_down = form.total, depth // INSTRUCTION, tile.warp_columns // 8, rows // WARP_ROWS
    halves, float16, warp_columns = name == "float16", types.float16, tile.warp_columns
    load_a, load_b = make_load_pair(layout[0] == "N", evens[0]), make_load_pair(layout[1] == "T", evens[1])
    store = make_store(tile, form, parts, wide, scales)

    @cuda.jit(launch_bounds=(tile.threads, 1))
    def shallow(a, b, out, sizes, order, matrix_steps, factors):
        memory = cuda.shared.array(0, uint8, alignment=128)
        sums = cuda.local.array((1, across, 4), total)
        left, right = cuda.local.array((pieces, 4), uint32), cuda.local.array((pieces, across, 2), uint32)
        m, n, k, pitch_a, pitch_b = sizes
        number, warp = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x) // uint32(WARP)
        if apart:
            number = uint32(number * uint32(WARPS) + warp)
            if number >= order.tiles:
                return
        z, _, row, col, _, _ = place(number, order)
        row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
        start_a, start_b = starts_of(z, order, matrix_steps)
        lane = uint32(cuda.threadIdx.x) % uint32(WARP)
        if not apart:
            row = uint32(row + warp % uint32(warps_down) * uint32(WARP_ROWS))
            col = uint32(col + warp // uint32(warps_down) * uint32(warp_columns))
        for j in range(across):
            for e in range(4):
                sums[0, j, e] = total(0)
        # A lane holds rows, or columns, g and g + 8, for K of 2 t and 2 t + 1, and of 8 more.
        g, t = lane // uint32(4), lane % uint32(4) * uint32(2)
        first = uint32(0)
        while first < k:
            for p in range(pieces):
                for e in range(4):
                    down, at = uint32(row + g + uint32(e % 2 * 8)), uint32(first + t + uint32(16 * p + e // 2 * 8))
                    left[p, e] = load_a(a, start_a, down, at, m, k, pitch_a)
            for p in range(pieces):
                for j in range(across):
                    for e in range(2):
                        on, at = uint32(col + g + uint32(8 * j)), uint32(first + t + uint32(16 * p + e * 8))
                        right[p, j, e] = load_b(b, start_b, on, at, n, k, pitch_b)
            for j in range(across):
                four = sums[0, j, 0], sums[0, j, 1], sums[0, j, 2], sums[0, j, 3]
                for p in range(pieces):
                    from_a, from_b = (left[p, 0], left[p, 1], left[p, 2], left[p, 3]), (right[p, j, 0], right[p, j, 1])
                    four = mma(from_a, from_b, four, float16) if halves else mma(from_a, from_b, four)
                sums[0, j, 0], sums[0, j, 1], sums[0, j, 2], sums[0, j, 3] = four
            first = uint32(first + uint32(depth // 2)) if apart else k
        if (row < m) & (col < n):
            store(out, factors, memory, sums, uint64(z) * m, row, col, m, n)

    return shallow


@functools.cache
def make_load_pair(along, even=False):
    """Make the device function that loads two neighbours along K as a word; zeros for what lies outside. If the pairs
    are ``even``, they lie at multiples of 4 bytes, and inside as a whole.
    """

    @cuda.jit(device=True, forceinline=True)
    def load_pair(matrix, start, place, at, size, k, pitch):
        low, high = types.uint16(0), types.uint16(0)
        source = start + (uint64(place) * pitch + at if along else uint64(at) * pitch + place)
        if (place < size) & (at < k):
            low = matrix[source]
        if (place < size) & (uint32(at + uint32(1)) < k):
            high = matrix[source + (uint64(1) if along else uint64(pitch))]
        return uint32(uint32(low) | uint32(high) << uint32(16))

    @cuda.jit(device=True, forceinline=True)
    def load_even(matrix, start, place, at, size, k, pitch):
        low, high = types.uint16(0), types.uint16(0)
        if (place < size) & (at < k):
            low, high = load2(matrix, start + uint64(place) * pitch + at)
        return uint32(uint32(low) | uint32(high) << uint32(16))

    return load_even if even else load_pair
