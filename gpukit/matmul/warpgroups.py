"""The product on the tensor cores of compute capability 9.0: warps that copy, and groups of four warps that multiply.

A block stays on its multiprocessor and computes one tile of the result after the other. One thread of its last warp
group keeps a ring of stages filled: it copies boxes of ``a`` and ``b`` by tensor maps, which swizzle them and fill up
with zeros what lies outside. The other groups multiply what has arrived. Two barriers for each stage pass it to and
fro: a stage is full when its bytes have come, and free when all groups have multiplied it.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, uint8, uint32, uint64
from gpukit.intrinsics import (
    copy_tensor,
    decrease_registers,
    fence_barrier_init,
    fence_tensor_map,
    increase_registers,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    store_fragment,
    view_at,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)
from gpukit.matmul.formats import FORMATS, ROW
from gpukit.matmul.rows import WARP_ROWS, make_rows, make_store_rows, rows_bytes, rows_columns
from warpstep.limits import GROUP

__all__ = ["GroupTile", "boxes", "warpgroups"]

#: Rows of the result that a warp group computes.
GROUP_ROWS = 64
#: Rows of tiles that consecutive blocks share: they read the same parts of ``b`` while these are in the L2 cache.
RASTER = 8


class GroupTile(NamedTuple):
    """The shape of a block's work.

    Attributes
    ----------
    groups : int
        Warp groups that multiply, 64 rows of the result each.
    columns : int
        Of the result: a multiple of 64 up to 256.
    stages : int
        Steps for which there is shared memory.
    resident : int
        Blocks that a multiprocessor runs at a time.
    """

    groups: int
    columns: int
    stages: int
    resident: int = 1

    @property
    def rows(self) -> int:
        """Rows of the result that a block computes."""
        return GROUP_ROWS * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * (self.groups + 1)

    @property
    def depth(self) -> int:
        """Bytes of K of a step."""
        return ROW

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return (self.rows + self.columns) * ROW

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return self.stages * (self.stage_bytes + 16) + rows_bytes(4 * self.groups)


def boxes(tile: GroupTile, name: str, layout: str) -> tuple[tuple, tuple]:
    """The boxes of the tensor maps of ``a`` and ``b``: (matrices, rows, columns) in the order of memory."""
    depth = FORMATS[name].depth
    rows, columns = (tile.rows if layout[0] == "N" else depth), (tile.columns if layout[1] == "T" else depth)
    return (1, rows, depth), (1, columns, depth)


@functools.cache
def warpgroups(tile, name, layout, parts, wide):
    """Make the kernel of out = a b, for matrices in a batch.

    Parameters
    ----------
    tile : GroupTile
    name : str
        One of ``FORMATS``.
    layout : str
        As of `gpukit.matmul.fast.fast`. Formats of other than 2 bytes have "NT" only.
    parts : bool
        Whether the sums are stored as they are, for `sum_parts` to add up.
    wide : bool
        Whether ``out`` is an array of uint32, whose rows are stored by 16 bytes; otherwise it has the elements' type.

    Returns
    -------
    kernel
        ``kernel[blocks, tile.threads, stream, tile.shared_bytes](map_a, map_b, out, sizes, which)``. ``sizes`` is (m,
        n, k, parts of K, matrices); ``which`` is (div_a, mod_a, div_b, mod_b) as of `gpukit.matmul.fast.fast`. The
        tensor maps have the boxes of `boxes`, on arrays of three axes. All blocks together compute (matrices, parts,
        m, n).
    """
    groups, columns, stages, _ = tile
    element, total, result, itemsize, _ = form = FORMATS[name]
    rows, depth, small = tile.rows, form.depth, form.small
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    across_a, across_b = not along_a, not along_b
    # Where a tile lies across K, its rows are those of K, in parts of 128 bytes.
    shape_a = (stages, rows, depth) if along_a else (stages * (rows // depth), depth, depth)
    shape_b = (stages, columns, depth) if along_b else (stages * (columns // depth), depth, depth)
    parts_a, parts_b = (1 if along_a else rows // depth), (1 if along_b else columns // depth)
    stage_bytes, count = tile.stage_bytes, columns // 2
    b_at = stages * rows * ROW
    full_at = stages * stage_bytes
    free_at = full_at + 8 * stages
    place, count_tiles, following = make_place(tile, depth), make_count(tile), make_following(stages)
    store = make_store(tile, total if parts else result, wide)
    # Three groups have 168 registers a thread, the most there are. Those that multiply 256 columns can use more.
    gives = tile.threads == 3 * GROUP and columns == 256

    @cuda.jit(device=True, forceinline=True)
    def copy_step(tiles_a, tiles_b, full, stage, map_a, map_b, row, col, k, z_a, z_b):
        mbarrier_expect(full, stage, stage_bytes)
        for part in range(parts_a):
            corner = (z_a, row, k) if along_a else (z_a, k, row + uint32(part * depth))
            copy_tensor(tiles_a, (stage * uint32(parts_a) + uint32(part), 0, 0), map_a, corner, full, stage)
        for part in range(parts_b):
            corner = (z_b, col, k) if along_b else (z_b, k, col + uint32(part * depth))
            copy_tensor(tiles_b, (stage * uint32(parts_b) + uint32(part), 0, 0), map_b, corner, full, stage)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(sums, tiles_a, tiles_b, stage, group, add):
        """Begin to multiply a stage, as one group of products."""
        wgmma_fence()
        for i in range(depth // small):
            k, more = uint32(i * small), add or i > 0
            at_a = (
                (stage, group * uint32(GROUP_ROWS), k) if along_a else (stage * uint32(parts_a) + group, k, uint32(0))
            )
            at_b = (stage, uint32(0), k) if along_b else (stage * uint32(parts_b), k, uint32(0))
            sums = wgmma(sums, tiles_a, at_a, tiles_b, at_b, across_a, across_b, more)
        wgmma_commit()
        return sums

    @cuda.jit(launch_bounds=(tile.threads, tile.resident))
    def warpgroups(map_a, map_b, out, sizes, which):
        memory = cuda.shared.array(0, uint8, alignment=1024)
        tiles_a, tiles_b = view_at(memory, 0, shape_a, element), view_at(memory, b_at, shape_b, element)
        full, free = view_at(memory, full_at, stages, uint64), view_at(memory, free_at, stages, uint64)
        tid = uint32(cuda.threadIdx.x)
        group, leads = tid // uint32(GROUP), tid % uint32(GROUP) == 0
        if tid == 0:
            for stage in range(stages):
                mbarrier_init(full, stage, 1)
                mbarrier_init(free, stage, groups)
            fence_barrier_init()
        cuda.syncthreads()
        tiles = count_tiles(sizes)
        stage = uint32(0)
        number = uint32(cuda.blockIdx.x)
        if group == groups:
            if gives:
                decrease_registers(40)
            if leads:
                fence_tensor_map(map_a)
                fence_tensor_map(map_b)
                parity = uint32(1)
                while number < tiles:
                    z, _, row, col, first, last = place(number, sizes)
                    z_a, z_b = uint32(z // which[0] % which[1]), uint32(z // which[2] % which[3])
                    step = first
                    while step < last:
                        mbarrier_wait(free, stage, parity)
                        k = uint32(step * uint32(depth))
                        copy_step(tiles_a, tiles_b, full, stage, map_a, map_b, row, col, k, z_a, z_b)
                        stage, parity = following(stage, parity)
                        step = uint32(step + uint32(1))
                    number = uint32(number + uint32(cuda.gridDim.x))
        else:
            if gives:
                increase_registers(232)
            parity, before = uint32(0), uint32(0)
            while number < tiles:
                z, part, row, col, first, last = place(number, sizes)
                sums = zeros(count, total)
                step = first
                while step < last:
                    mbarrier_wait(full, stage, parity)
                    sums = multiply_step(sums, tiles_a, tiles_b, stage, group, step > first)
                    # One group of products stays pending, so that the tensor cores never wait for this thread.
                    sums = wgmma_wait(1, sums)
                    if leads and step > first:
                        mbarrier_arrive(free, before)
                    before = stage
                    stage, parity = following(stage, parity)
                    step = uint32(step + uint32(1))
                sums = wgmma_wait(0, sums)
                if leads:
                    mbarrier_arrive(free, before)
                my_row = uint32(row + tid // uint32(32) * uint32(WARP_ROWS))
                store(
                    out, memory, sums, uint64(z * sizes[3] + part) * uint64(sizes[0]), my_row, col, sizes[0], sizes[1]
                )
                number = uint32(number + uint32(cuda.gridDim.x))

    return warpgroups


@functools.cache
def make_following(stages):
    """Make the device function that goes on in the ring: the barriers' parity changes with every round."""

    @cuda.jit(device=True, forceinline=True)
    def following(stage, parity):
        if stage == uint32(stages - 1):
            return uint32(0), parity ^ uint32(1)
        return uint32(stage + uint32(1)), parity

    return following


@functools.cache
def make_count(tile):
    """Make the device function that counts the tiles of all parts of K and all matrices."""
    rows, columns = tile.rows, tile.columns

    @cuda.jit(device=True, forceinline=True)
    def count_tiles(sizes):
        m, n, _, parts, matrices = sizes
        down, across = (m + uint32(rows - 1)) // uint32(rows), (n + uint32(columns - 1)) // uint32(columns)
        return uint32(down * across * parts * matrices)

    return count_tiles


@functools.cache
def make_place(tile, depth):
    """Make the device function that finds the matrix, the part of K, the row, the column, and the first and last step
    of a tile.

    Tiles follow one another down 8 rows of them, then in the next column.
    """
    rows, columns = tile.rows, tile.columns

    @cuda.jit(device=True, forceinline=True)
    def place(number, sizes):
        m, n, k, parts, _ = sizes
        down, across = (m + uint32(rows - 1)) // uint32(rows), (n + uint32(columns - 1)) // uint32(columns)
        piece, number = uint32(number // (down * across)), uint32(number % (down * across))
        steps = (k + uint32(depth - 1)) // uint32(depth)
        share = (steps + parts - uint32(1)) // parts
        z, part = piece // parts, piece % parts
        above = number // (across * uint32(RASTER)) * uint32(RASTER)
        inside, high = number % (across * uint32(RASTER)), min(uint32(RASTER), uint32(down - above))
        row, col = (above + inside % high) * uint32(rows), inside // high * uint32(columns)
        first = uint32(part * share)
        return z, part, uint32(row), uint32(col), first, uint32(min(steps, first + share))

    return place


@functools.cache
def make_store(tile, element, wide):
    """Make the device function by which a warp stores its 16 rows of a tile."""
    least = rows_columns(element, tile.columns)
    view_rows, store_rows = make_rows(element, least, 4 * tile.groups), make_store_rows(element, least, wide)
    rows_at = tile.stages * (tile.stage_bytes + 16)

    @cuda.jit(device=True, forceinline=True)
    def store_least(out, memory, sums, start, row, col, m, n):
        rows, words = view_rows(memory, rows_at)
        cuda.syncwarp()
        store_fragment(rows, (uint32(cuda.threadIdx.x) // uint32(32) * uint32(WARP_ROWS), uint32(0)), sums)
        cuda.syncwarp()
        store_rows(out, rows, words, start, row, col, m, n)

    return make_parts(store_least, tile.columns, least)


@functools.cache
def make_parts(store_least, columns, least):
    """Make the device function that stores the first ``least`` columns, then the others."""
    if columns == least:
        return store_least
    count, store_rest = least // 2, make_parts(store_least, columns - least, least)

    @cuda.jit(device=True, forceinline=True)
    def store(out, memory, sums, start, row, col, m, n):
        store_least(out, memory, sums[:count], start, row, col, m, n)
        store_rest(out, memory, sums[count:], start, row, col + uint32(least), m, n)

    return store
