"""A small product on tensor cores, of operands of 2 bytes that lie anywhere, in one launch.

The rows of such operands may begin at any element, so no wide copy can read them. Threads load element by element,
and store to shared memory with K along the rows. The elements of the next step are loaded to registers while the warps
multiply the present ones.
"""

import functools

from gpukit.backend import cuda, types, uint8, uint32, uint64
from gpukit.intrinsics import load4, store4, view_at
from gpukit.matmul.formats import FORMATS
from gpukit.matmul.warps import (
    CHUNK,
    HELD,
    WarpTile,
    make_at_a,
    make_at_b,
    make_multiply,
    make_read,
    make_store,
    make_swizzle,
)

__all__ = ["SmallTile", "small"]


#: Parts of K of which the last block reads the sums at a time.
AT_ONCE = 4


class SmallTile(WarpTile):
    """The shape of a block's work, in 2 stages, as of `WarpTile`."""

    __slots__ = ()


@functools.cache
def small(tile, name, layout, parts, wide):
    """Make the kernel of out = a b for matrices in a batch, with the arguments of `gpukit.matmul.warps.warps`.

    ``tile`` is a `SmallTile`; ``name`` is "float16" or "bfloat16". Rows, or columns, of ``a`` and ``b`` begin anywhere.
    Further arguments are ``partials`` of tile.rows * tile.columns sums for each block, and a counter for each tile:
    blocks with a part of K leave their sums there, and the last one of a tile adds them in the order of the parts.
    """
    rows, columns, warp_rows, warp_columns, _, nbytes = tile
    form = FORMATS[name]
    held, count_a, count_b = HELD[name]
    element, total = types.uint16, form.total
    depth = nbytes // form.itemsize
    down, across, warps_across = warp_rows // 16, warp_columns // 8, columns // warp_columns
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    stage_a, stage_size = rows * depth, (rows + columns) * depth
    loads_a, loads_b = rows * depth // tile.threads, columns * depth // tile.threads
    load_a, put_a = make_load(tile, name, rows, along_a), make_put(tile, name, rows, along_a)
    load_b, put_b = make_load(tile, name, columns, along_b), make_put(tile, name, columns, along_b)
    at_a, at_b = make_at_a(tile, name, True), make_at_b(tile, name, True)
    read, multiply = make_read(tile, name, "NT"), make_multiply(tile, name)
    store = make_store(tile, total if parts else form.result, wide)
    parts_of_step, area, step = depth // form.small, rows * columns, 4 * tile.threads

    @cuda.jit(launch_bounds=(tile.threads, 1))
    def small(a, b, out, sizes, which, matrix_steps, partials, counters):
        memory = cuda.shared.array(0, uint8, alignment=128)
        tiles = view_at(memory, 0, 2 * stage_size, element)
        sums = cuda.local.array((down, across, 4), total)
        left = cuda.local.array((1, down, count_a), held)
        right = cuda.local.array((1, across, count_b), held)
        next_a, next_b = cuda.local.array(loads_a, element), cuda.local.array(loads_b, element)
        m, n, k, pitch_a, pitch_b = sizes
        # The block: a tile of out, a part of K, a matrix.
        block, tiles_across = uint32(cuda.blockIdx.x), uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        row, col = uint32(block // tiles_across * uint32(rows)), uint32(block % tiles_across * uint32(columns))
        steps_in_all = uint32(uint32(k + uint32(depth - 1)) // uint32(depth))
        share = uint32(uint32(steps_in_all + uint32(cuda.gridDim.y - 1)) // uint32(cuda.gridDim.y) * uint32(depth))
        first = uint32(uint32(cuda.blockIdx.y) * share)
        limit = uint32(min(k, uint32(first + share)))
        z = uint32(which[0] + uint32(cuda.blockIdx.z))
        start_a = uint64(uint32(z // which[1]) % which[2]) * matrix_steps[0]
        start_b = uint64(uint32(z // which[3]) % which[4]) * matrix_steps[1]
        # The thread: a lane of a warp, which has a place in the tile.
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid // uint32(32), tid % uint32(32)
        warp_row, warp_col = (
            warp // uint32(warps_across) * uint32(warp_rows),
            warp % uint32(warps_across) * uint32(warp_columns),
        )
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] = total(0)
        load_a(next_a, a, start_a, row, first, limit, m, pitch_a)
        load_b(next_b, b, start_b, col, first, limit, n, pitch_b)
        stage = uint32(0)
        while first < limit:
            put_a(tiles, stage, next_a)
            put_b(tiles, uint32(stage + uint32(stage_a)), next_b)
            cuda.syncthreads()
            first = uint32(first + uint32(depth))
            if first < limit:
                load_a(next_a, a, start_a, row, first, limit, m, pitch_a)
                load_b(next_b, b, start_b, col, first, limit, n, pitch_b)
            for part in range(parts_of_step):
                from_a = stage + at_a(warp_row, lane, part)
                from_b = stage + uint32(stage_a) + at_b(warp_col, lane, part)
                read(tiles, from_a, from_b, left, right, 0)
                multiply(sums, left, right, 0)
            # A thread comes back to this stage after the next barrier, when no warp reads it any more.
            stage = uint32(uint32(stage_size) - stage)
        cuda.syncthreads()
        if cuda.gridDim.y == 1 or join(sums, partials, counters):
            store(out, memory, sums, uint64(z) * m, row + warp_row, col + warp_col, m, n)

    @cuda.jit(device=True, forceinline=True)
    def join(sums, partials, counters):
        """Leave the sums of a part; return whether this block is the last of the tile, which has all sums then."""
        last = cuda.shared.array(1, uint32)
        tid, parts = uint32(cuda.threadIdx.x), uint32(cuda.gridDim.y)
        number = uint64(cuda.blockIdx.z) * uint64(cuda.gridDim.x) + uint64(cuda.blockIdx.x)
        first = number * parts * uint64(area) + uint64(4) * tid
        mine = first + uint64(cuda.blockIdx.y) * uint64(area)
        for i in range(down):
            for j in range(across):
                at = mine + uint64((i * across + j) * step)
                store4(partials, at, sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3])
        cuda.syncthreads()
        if tid == 0:
            cuda.threadfence()
            last[0] = cuda.atomic.inc(counters, number, uint32(parts - uint32(1)))
            cuda.threadfence()
        cuda.syncthreads()
        if last[0] != parts - uint32(1):
            return False
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] = total(0)
        for part in range(0, parts, AT_ONCE):
            for i in range(down):
                for j in range(across):
                    for u in range(AT_ONCE):
                        # Parts past the last read the first one, so that no load is behind a branch.
                        inside = uint32(part + u) < parts
                        at = first + uint64((i * across + j) * step)
                        w, x, y, z = load4(partials, at + uint64(part + u) * uint64(area) if inside else at)
                        sums[i, j, 0] += w if inside else total(0)
                        sums[i, j, 1] += x if inside else total(0)
                        sums[i, j, 2] += y if inside else total(0)
                        sums[i, j, 3] += z if inside else total(0)
        return True

    return small


def make_place(tile, name, extent, along):
    """Make the device function that finds a thread's first element of a part of a matrix, as (row, k), and the rows or
    the elements of K from one to the next. Neighbouring threads have neighbours in memory.
    """
    depth = tile.depth // FORMATS[name].itemsize
    size, step = (depth, tile.threads // depth) if along else (extent, tile.threads // extent)

    @cuda.jit(device=True, forceinline=True)
    def place():
        tid = uint32(cuda.threadIdx.x)
        inner, outer = tid % uint32(size), tid // uint32(size)
        return (outer, inner) if along else (inner, outer)

    return place, (step, 0) if along else (0, step)


@functools.cache
def make_load(tile, name, extent, along):
    """Make the device function by which a thread loads its elements of a part of a matrix; zeros for those outside."""
    element, count = types.uint16, extent * (tile.depth // FORMATS[name].itemsize) // tile.threads
    place, (down, deep) = make_place(tile, name, extent, along)

    @cuda.jit(device=True, forceinline=True)
    def load(held, matrix, start, corner, first, limit, size, pitch):
        r, k = place()
        row, at = uint32(corner + r), uint32(first + k)
        source = start + (uint64(row) * pitch + at if along else uint64(at) * pitch + row)
        step = uint64(pitch) * uint64(down + deep)
        for i in range(count):
            inside = (uint32(row + uint32(i * down)) < size) & (uint32(at + uint32(i * deep)) < limit)
            held[i] = element(0)
            if inside:
                held[i] = matrix[source + step * uint64(i)]

    return load


@functools.cache
def make_put(tile, name, extent, along):
    """Make the device function by which a thread stores what `make_load` has loaded to shared memory."""
    depth, width = tile.depth // FORMATS[name].itemsize, CHUNK // FORMATS[name].itemsize
    count = extent * depth // tile.threads
    place, (down, deep) = make_place(tile, name, extent, along)
    swizzle = make_swizzle(depth // width)

    @cuda.jit(device=True, forceinline=True)
    def put(tiles, to, held):
        r, k = place()
        for i in range(count):
            row, at = uint32(r + uint32(i * down)), uint32(k + uint32(i * deep))
            chunk, rest = at // uint32(width), at % uint32(width)
            tiles[to + row * uint32(depth) + swizzle(row, chunk) * uint32(width) + rest] = held[i]

    return put
