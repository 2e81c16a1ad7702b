"""The product on the tensor cores of compute capability 9.0: warps that copy, and groups of four warps that multiply.

A block stays on its multiprocessor and computes one tile of the result after the other. One thread of its last warp
group keeps a ring of stages filled: it copies boxes of ``a`` and ``b`` by tensor maps, which swizzle them and fill up
with zeros what lies outside. The other groups multiply what has arrived. Two barriers for each stage pass it to and
fro: a stage is full when its bytes have come, and free when all groups have multiplied it.

The blocks of a cluster compute tiles below one another. Each copies its part of ``b`` to all of them, so a stage is
free when the groups of all have multiplied it. A row of a box that does not begin at a cache line lies in two: without
clusters, such copies take longer than the products. Or the blocks of a cluster compute one tile, each with a slice of
K, and add up their sums.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, uint8, uint32, uint64
from gpukit.divisors import divided
from gpukit.intrinsics import (
    cluster_sync,
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
from gpukit.matmul.joined import make_exchange, make_owns, make_slice
from gpukit.matmul.raster import matrices_of, place
from gpukit.matmul.rows import (
    WARP_ROWS,
    make_combine,
    make_rows,
    make_store_rows,
    make_store_scaled,
    rows_bytes,
    rows_columns,
)
from gpukit.matmul.turned import make_following, make_turned_multiply, make_turned_store
from warpstep.integers import ceil_div
from warpstep.limits import GROUP

__all__ = ["GroupTile", "boxes", "is_turned", "warpgroups"]

#: Rows of the result that a warp group computes.
GROUP_ROWS = 64


class GroupTile(NamedTuple):
    """The shape of a block's work.

    Attributes
    ----------
    rows, columns : int
        Of the result that a block computes: multiples of 64 and of 16. A group has 64 rows and all columns, which are
        256 at most; 64 columns and all rows if ``b`` is `is_turned`.
    groups : int
        Warp groups that multiply.
    stages : int
        Steps for which there is shared memory.
    resident : int
        Blocks that a multiprocessor runs at a time.
    cluster : int
        Blocks of a cluster that share ``b``.
    slices : int
        Blocks of a cluster that share K.
    swapped : bool
        Whether the kernel is given b^T and a^T, and stores the transpose of what it computes: for a few rows of ``a``,
        which are columns then. They lie along K.
    """

    rows: int
    columns: int
    groups: int
    stages: int
    resident: int = 1
    cluster: int = 1
    slices: int = 1
    swapped: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * (self.groups + 1)

    @property
    def depth(self) -> int:
        """Bytes of K of a step."""
        return ROW

    @property
    def held_columns(self) -> int:
        """Columns that there is shared memory for: those across K are copied by 64."""
        return self.columns if self.swapped else ceil_div(self.columns, 64) * 64

    def down(self, rows: int) -> int:
        """Tiles below one another in a result of so many rows: whole clusters, some tiles of which may be empty."""
        return ceil_div(rows, self.rows * self.cluster) * self.cluster

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return (self.rows + self.held_columns) * ROW

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return self.stages * (self.stage_bytes + 16) + rows_bytes(4 * self.groups)


def boxes(tile: GroupTile, name: str, layout: str) -> tuple[tuple, tuple]:
    """The boxes of the tensor maps of ``a`` and ``b``: (matrices, rows, columns) in the order of memory."""
    depth = FORMATS[name].depth
    rows, columns = (tile.rows if layout[0] == "N" else depth), (tile.columns if layout[1] == "T" else depth)
    return (1, rows, depth), (1, columns // tile.cluster, depth)


def is_turned(name: str, layout: str) -> bool:
    """Whether an operand lies across K in a format that tensor cores read along K only."""
    return not FORMATS[name].turns and layout != "NT"


@functools.cache
def warpgroups(tile, name, layout, is_total, wide, scales=False):
    """Make the kernel of out = a b, for matrices in a batch.

    Parameters
    ----------
    tile : GroupTile
    name : str
        One of ``FORMATS``.
    layout : str
        As of `gpukit.matmul.fast.fast`. int8 has "NT" only; "tf32" also "NN" and "TT", with one operand across K.
    is_total : bool
        Whether the sums are stored as they are, in their own type, those of each part of K.
    wide : bool
        Whether the rows of ``out`` are stored by 16 bytes: it is an array of uint32 then, but of float32 if the
        operands are `is_turned`. Otherwise, and if the kernel ``scales``, it has the elements' type.
    scales : bool
        Whether the factors, (alpha, beta), are applied.

    Returns
    -------
    kernel
        ``kernel[blocks, tile.threads, stream, tile.shared_bytes](map_a, map_b, out, (m, n), order, asides, factors,
        partials)``, with the `Order` of its tiles. The tensor maps have the boxes of `boxes`, on arrays of three axes.
        ``asides`` are the rows in memory from group to group of an operand along K, and the columns from matrix to
        matrix of a group of one across K. ``partials`` are as of `make_exchange`. The kernel needs clusters of
        ``tile.cluster * tile.slices`` blocks; with slices it needs a cluster for each tile.
    """
    rows, columns, groups, stages, _, cluster, slices, _ = tile
    element, total, result, _, _ = form = FORMATS[name]
    depth, (shape_a, shape_b) = form.depth, shapes(tile, form, layout)
    copy_step, following = make_copy(tile, form, layout), make_following(stages)
    if is_turned(name, layout):
        multiply, store = make_turned_multiply(tile, layout), make_turned_store(tile, layout, wide)
    else:
        multiply, store = make_multiply(tile, form, layout), make_store(tile, form, is_total, wide, scales, columns)
    b_at, full_at = stages * rows * ROW, stages * tile.stage_bytes
    free_at = full_at + 8 * stages
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    slice_of, compute = make_slice(slices), make_compute(tile, total, is_total, multiply, store)
    # Three groups have 168 registers a thread, the most there are. Those with 128 sums a thread can use more.
    gives = tile.threads == 3 * GROUP and rows * columns == 2 * GROUP * 128

    @cuda.jit(launch_bounds=(tile.threads, tile.resident))
    def warpgroups(map_a, map_b, out, sizes, order, asides, factors, partials):
        memory = cuda.shared.array(0, uint8, alignment=1024)
        tiles_a, tiles_b = view_at(memory, 0, shape_a, element), view_at(memory, b_at, shape_b, element)
        full, free = view_at(memory, full_at, stages, uint64), view_at(memory, free_at, stages, uint64)
        tid = uint32(cuda.threadIdx.x)
        if tid == groups * GROUP:  # the thread that copies
            fence_tensor_map(map_a)
            fence_tensor_map(map_b)
            for stage in range(stages):
                mbarrier_init(full, stage, 1)
                mbarrier_init(free, stage, 4 * groups * cluster)
            fence_barrier_init()
        (m, n), number, stage = sizes, uint32(cuda.blockIdx.x) // uint32(slices), uint32(0)
        slice_ = uint32(cuda.blockIdx.x) % uint32(slices)
        # With one row of tiles each element of b is read once, with one column of them each of a.
        once_a, once_b = n <= uint32(columns), m <= uint32(rows * cluster)
        if cluster > 1:
            cluster_sync(True)
        else:
            cuda.syncthreads()
        if tid >= groups * GROUP:
            if gives:
                decrease_registers(40)
            if tid == groups * GROUP:
                parity = uint32(1)
                while number < order.tiles:
                    z, _, row, col, step, last = place(number, order)
                    step, last = slice_of(step, last, slice_)
                    z_a, z_b = matrices_of(z, order)
                    (group_a, z_a), (group_b, z_b) = divided(z_a, order.inner_a), divided(z_b, order.inner_b)
                    # Of an operand along K the groups lie below one another, of one across K their matrices beside.
                    if along_a:
                        aside_a = uint32(group_a * asides[0])
                    else:
                        aside_a, z_a = uint32(z_a * asides[0]), group_a
                    if along_b:
                        aside_b = uint32(group_b * asides[1])
                    else:
                        aside_b, z_b = uint32(z_b * asides[1]), group_b
                    at_a, at_b = uint32(row * uint32(rows) + aside_a), uint32(col * uint32(columns) + aside_b)
                    while step < last:
                        mbarrier_wait(free, stage, parity)
                        k = uint32(step * uint32(depth))
                        copy_step(tiles_a, tiles_b, full, stage, map_a, map_b, at_a, at_b, k, z_a, z_b, once_a, once_b)
                        stage, parity = following(stage, parity)
                        step = uint32(step + uint32(1))
                    number = uint32(number + uint32(cuda.gridDim.x))
            if slices > 1:
                cluster_sync()
        else:
            if gives:
                increase_registers(232)
            compute(tiles_a, tiles_b, full, free, memory, out, (m, n), number, slice_, order, factors, partials)
        if cluster > 1:  # no block copies to another one, or arrives there, that has returned
            cluster_sync(True)

    return warpgroups


def make_compute(tile, total, is_total, multiply, store):
    """Make the device function by which groups compute the tiles of a block, one after the other, from stages that
    other warps fill: they ``multiply`` all steps of a tile, and ``store`` its sums, of type ``total``.
    """
    rows, columns, groups, _, _, _, slices, _ = tile
    slice_of, owns = make_slice(slices), make_owns(tile)
    leave, add_up = make_exchange(tile, total, rows * columns // (GROUP * groups))

    @cuda.jit(device=True, forceinline=True)
    def compute(tiles_a, tiles_b, full, free, memory, out, sizes, number, slice_, order, factors, partials):
        (m, n), stage, parity = sizes, uint32(0), uint32(0)
        while number < order.tiles:
            z, part, row, col, step, last = place(number, order)
            step, last = slice_of(step, last, slice_)
            sums, stage, parity = multiply(tiles_a, tiles_b, full, free, stage, parity, uint32(last - step))
            if slices > 1:
                leave(sums, partials, slice_)
                cluster_sync()
            if owns(slice_):
                sums = add_up(sums, partials, slice_)
                row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
                start = uint64(z) * uint64(m)
                if is_total:
                    start = (uint64(z) * uint64(order.parts.value) + uint64(part)) * uint64(m)
                store(out, factors, memory, sums, start, row, col, m, n)
            number = uint32(number + uint32(cuda.gridDim.x))

    return compute


def shapes(tile, form, layout):
    """The shapes of the tiles of ``a`` and ``b`` in shared memory: (tiles, rows, elements of a row). The rows of a tile
    that lies across K are those of K, in parts of 128 bytes.
    """
    return tuple(
        (tile.stages, extent, form.depth) if along else (tile.stages * (extent // form.depth), form.depth, form.depth)
        for extent, along in ((tile.rows, layout[0] == "N"), (tile.held_columns, layout[1] == "T"))
    )


def make_copy(tile, form, layout):
    """Make the device function that begins to copy a stage."""
    depth, along_a, along_b = form.depth, layout[0] == "N", layout[1] == "T"
    copied = (tile.rows + (tile.columns if along_b else tile.held_columns)) * ROW
    parts_a, parts_b = (shape[0] // tile.stages for shape in shapes(tile, form, layout))
    cluster, shared = tile.cluster, tile.cluster > 1
    share = (tile.columns if along_b else depth) // tile.cluster

    @cuda.jit(device=True, forceinline=True)
    def copy_step(tiles_a, tiles_b, full, stage, map_a, map_b, row, col, k, z_a, z_b, once_a, once_b):
        mbarrier_expect(full, stage, copied)
        for part in range(parts_a):
            corner = (z_a, row, k) if along_a else (z_a, k, row + uint32(part * depth))
            copy_tensor(tiles_a, (stage * uint32(parts_a) + uint32(part), 0, 0), map_a, corner, full, stage, once_a)
        first = uint32(cuda.blockIdx.x) % uint32(cluster) * uint32(share)
        for part in range(parts_b):
            corner = (z_b, col + first, k) if along_b else (z_b, k + first, col + uint32(part * depth))
            to = stage * uint32(parts_b) + uint32(part), first, 0
            copy_tensor(tiles_b, to, map_b, corner, full, stage, once_b, shared)

    return copy_step


def make_multiply(tile, form, layout):
    """Make the device function by which a group multiplies all steps of a tile: it returns the sums, and the stage and
    the parity that follow.
    """
    depth, small, total, count = form.depth, form.small, form.total, tile.columns // 2
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    across_a, across_b = not along_a, not along_b
    parts_a, parts_b = (shape[0] // tile.stages for shape in shapes(tile, form, layout))
    following, cluster = make_following(tile.stages), tile.cluster

    @cuda.jit(device=True, forceinline=True)
    def release(free, stage):
        """Arrive at the barrier of a stage that this warp has multiplied, in all blocks of the cluster."""
        lane = uint32(cuda.threadIdx.x) % uint32(32)
        if cluster > 1:
            if lane < uint32(cluster):
                mbarrier_arrive(free, stage, lane)
        elif lane == 0:
            mbarrier_arrive(free, stage)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(sums, tiles_a, tiles_b, stage, add):
        """Begin to multiply a stage, as one group of products."""
        group = uint32(cuda.threadIdx.x) // uint32(GROUP)
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

    @cuda.jit(device=True, forceinline=True)
    def multiply(tiles_a, tiles_b, full, free, stage, parity, steps):
        sums, before, step = zeros(count, total), stage, uint32(0)
        while step < steps:
            mbarrier_wait(full, stage, parity)
            sums = multiply_step(sums, tiles_a, tiles_b, stage, step > 0)
            # One group of products stays pending, so that the tensor cores never wait for this thread.
            sums = wgmma_wait(1, sums)
            if step > 0:
                release(free, before)
            before = stage
            stage, parity = following(stage, parity)
            step = uint32(step + uint32(1))
        sums = wgmma_wait(0, sums)
        release(free, before)
        return sums, stage, parity

    return multiply


@functools.cache
def make_store_columns(form, element, width, scales):
    """Make the device function by which a warp stores its rows in shared memory as columns of the result."""
    combine, at_once = make_combine(form.total, form.result), 32 // WARP_ROWS
    count = width // at_once

    @cuda.jit(device=True, forceinline=True)
    def store_columns(out, factors, rows, words, start, row, col, m, n):
        tid = uint32(cuda.threadIdx.x)
        first, lane = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(32)
        r, c = lane % uint32(WARP_ROWS), lane // uint32(WARP_ROWS)
        below = uint32(row + r)
        at = start * n + uint64(col + c) * uint64(m) + below
        old = cuda.local.array(count, form.result)
        if scales and factors[1] != form.total(0):
            for i in range(count):  # before the stores, so that the loads overlap
                old[i] = form.result(0)
                if below < m and col + c + uint32(at_once * i) < n:
                    old[i] = out[at + uint64(at_once * i) * uint64(m)]
        for i in range(count):
            if below < m and col + c + uint32(at_once * i) < n:
                value = rows[first + r, c + uint32(at_once * i)]
                out[at + uint64(at_once * i) * uint64(m)] = combine(value, old[i], factors) if scales else value

    return store_columns


@functools.cache
def make_store(tile, form, is_total, wide, scales, columns):
    """Make the device function by which a warp stores the first columns of its 16 rows of a tile, then the others."""
    element = form.total if is_total or scales else form.result
    width = rows_columns(element, columns)
    # All parts lie in the same rows of shared memory, so that a warp never stores to another one's.
    view_rows = make_rows(element, tile.columns, 4 * tile.groups)
    if tile.swapped:
        store_rows = make_store_columns(form, element, width, scales)
    elif scales:
        store_rows = make_store_scaled(form.total, form.result, width, wide)
    else:
        store_rows = make_store_rows(element, width, wide, fours=True)
    rows_at = tile.stages * (tile.stage_bytes + 16)

    @cuda.jit(device=True, forceinline=True)
    def store_first(out, factors, memory, sums, start, row, col, m, n):
        rows, words = view_rows(memory, rows_at)
        first = uint32(cuda.threadIdx.x) // uint32(32) * uint32(WARP_ROWS)
        cuda.syncwarp()
        store_fragment(rows, (first, uint32(0)), sums)
        cuda.syncwarp()
        store_rows(out, factors, rows, words, start, row + first, col, m, n)

    if columns == width:
        return store_first
    count, store_rest = width // 2, make_store(tile, form, is_total, wide, scales, columns - width)

    @cuda.jit(device=True, forceinline=True)
    def store(out, factors, memory, sums, start, row, col, m, n):
        store_first(out, factors, memory, sums[:count], start, row, col, m, n)
        store_rest(out, factors, memory, sums[count:], start, row, col + uint32(width), m, n)

    return store
