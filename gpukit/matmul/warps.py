"""The product on tensor cores by single warps, for compute capability 8.0 and above.

A block goes through K in steps. Asynchronous copies bring the next parts of ``a`` and ``b`` to shared memory while its
warps multiply the present ones. A warp reads the operands of the next instructions to one set of registers while the
tensor cores work on those in another. The 16 bytes that `ldmatrix4` reads of a row are swizzled, so that eight rows of
them lie in different banks.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, types, uint8, uint32, uint64
from gpukit.intrinsics import (
    commit_copies,
    copy_async4,
    copy_async8,
    copy_async16,
    ldmatrix4,
    mma,
    store_fragment,
    view_at,
    wait_copies,
)
from gpukit.matmul.formats import FORMATS
from gpukit.matmul.raster import spread
from gpukit.matmul.rows import WARP_ROWS, make_rows, make_store_rows, make_store_scaled, rows_bytes, rows_columns
from warpstep.integers import ceil_div

__all__ = ["WarpTile", "warps"]

#: Bytes of one copy, and of a row that `ldmatrix4` reads.
CHUNK = 16
#: Rows of tiles that consecutive blocks share: with 16, a product of 8192 takes 5 % longer.
RASTER = 8
#: What a lane holds of the operands for 16 rows, and for 8 columns, by format: the type, and how many of each. float16
#: are held as words of two: the loop carries them, and single ones would take a register each.
HELD = {
    "float16": (types.uint32, 4, 2),
    "bfloat16": (types.uint32, 4, 2),
    "tf32": (types.float32, 4, 2),
    "int8": (types.int32, 4, 2),
}


class WarpTile(NamedTuple):
    """The shape of a block's work; sizes are powers of two.

    Attributes
    ----------
    rows, columns : int
        Of the result that a block computes.
    warp_rows, warp_columns : int
        Of a warp, multiples of 16.
    stages : int
        Steps for which there is shared memory: one is multiplied while the others are copied. 2 or more.
    depth : int
        Bytes of K of a step: 64 or 128.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    depth: int = 64

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return max(self.stages * (self.rows + self.columns) * self.depth, rows_bytes(self.threads // 32))


@functools.cache
def warps(tile, name, layout, parts, wide, scales=False):
    """Make the kernel of out = a b, for matrices in a batch whose rows, or columns, begin at multiples of 16 bytes.

    Parameters
    ----------
    tile : WarpTile
    name : str
        One of ``FORMATS``.
    layout : str
        As of `gpukit.matmul.fast.fast`. Formats of other than 2 bytes have "NT" only.
    parts : bool
        Whether the sums are stored as they are, for `sum_parts` to add up.
    wide : bool
        Whether the rows of ``out`` are stored by 16 bytes: it is an array of uint32 then, unless the kernel ``scales``.
        Otherwise it has the elements' type.
    scales : bool
        Whether the factors, (alpha, beta), are applied.

    Returns
    -------
    kernel
        ``kernel[(tiles, parts, matrices), tile.threads, stream, tile.shared_bytes](a, b, out, sizes, which, steps,
        factors)``. Arrays are flat, ``a`` and ``b`` of uint16 for both formats of 2 bytes; ``out`` is (matrices, parts,
        m, n). ``sizes`` is (m, n, k, elements from row to row, or from column to column, of ``a`` and ``b``); ``which``
        is (first matrix, div and mod of ``a``, of ``b``), ``steps`` the elements from matrix to matrix of each. An
        operand that lies along K has a multiple of 16 bytes there.
    """
    rows, columns, warp_rows, warp_columns, stages, nbytes = tile
    form = FORMATS[name]
    held, count_a, count_b = HELD[name]
    element, total, small = types.uint16 if form.itemsize == 2 else form.element, form.total, form.small
    depth = nbytes // form.itemsize
    down, across, warps_across = warp_rows // 16, warp_columns // 8, columns // warp_columns
    stage_size = (rows + columns) * depth
    all_stages = stages * stage_size
    last_stage, pending, ahead = (stages - 1) * stage_size, stages - 2, (stages - 1) * depth
    shares = depth // small - 1
    copy_share, read = make_copy_share(tile, name, layout), make_read_part(tile, name, layout)
    multiply, multiply_parts = make_multiply(tile, name), make_multiply_parts(tile, name, layout)
    store = make_store(tile, form, parts, wide, scales)

    @cuda.jit(launch_bounds=(tile.threads, 1))
    def warps(a, b, out, sizes, which, matrix_steps, factors):
        memory = cuda.shared.array(0, uint8, alignment=128)
        tiles = view_at(memory, 0, all_stages, element)
        sums = cuda.local.array((down, across, 4), total)
        left = cuda.local.array((2, down, count_a), held)
        right = cuda.local.array((2, across, count_b), held)
        m, n, k, pitch_a, pitch_b = sizes
        # The block: a tile of out, a part of K, a matrix.
        tiles_down, tiles_across = (m + uint32(rows - 1)) // uint32(rows), (n + uint32(columns - 1)) // uint32(columns)
        row, col = spread(uint32(cuda.blockIdx.x), uint32(tiles_down), uint32(tiles_across), uint32(RASTER))
        row, col = row * uint32(rows), col * uint32(columns)
        steps_in_all = uint32(uint32(k + uint32(depth - 1)) // uint32(depth))
        part = uint32(uint32(steps_in_all + uint32(cuda.gridDim.y - 1)) // uint32(cuda.gridDim.y) * uint32(depth))
        first = uint32(uint32(cuda.blockIdx.y) * part)
        limit = uint32(min(k, uint32(first + part)))
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
        starts, corner, pitches = (start_a, start_b), (row, col), (pitch_a, pitch_b)
        place_of_lane = warp_row, warp_col, lane
        for stage in range(stages - 1):
            for share in range(shares):
                to = uint32(stage * stage_size)
                copy_share(tiles, to, a, b, starts, corner, first, limit, (m, n), pitches, share)
            commit_copies()
            first = uint32(first + depth)
        wait_copies(pending)
        cuda.syncthreads()
        stage, free, end = uint32(0), uint32(last_stage), uint32(limit + ahead)
        read(tiles, stage, place_of_lane, 0, left, right)
        while first < end:
            copies = free, a, b, starts, corner, first, limit, (m, n), pitches
            multiply_parts(tiles, stage, place_of_lane, sums, left, right, copies)
            commit_copies()
            first, free = uint32(first + depth), stage
            wait_copies(pending)
            cuda.syncthreads()
            stage = uint32(stage + stage_size if stage < last_stage else 0)
            # The last products of the step overlap with the first loads of the next one.
            read(tiles, stage, place_of_lane, 0, left, right)
            multiply(sums, left, right, 1)
        # The tiles' memory is free: no copy is pending, and no warp reads.
        wait_copies(0)
        cuda.syncthreads()
        start = (uint64(z) * uint64(cuda.gridDim.y) + uint64(cuda.blockIdx.y)) * m
        store(out, factors, memory, sums, start, row + warp_row, col + warp_col, m, n)

    return warps


# -- from global to shared memory ------------------------------------------------------------------


@functools.cache
def make_copy_share(tile, name, layout):
    """Make the device function by which a thread begins a share of its copies to a stage, one for each part but one."""
    form = FORMATS[name]
    depth = tile.depth // form.itemsize
    stage_a, shares = tile.rows * depth, depth // form.small - 1
    copy_a = make_copy(tile, name, tile.rows, layout[0] == "N", shares)
    copy_b = make_copy(tile, name, tile.columns, layout[1] == "T", shares)

    @cuda.jit(device=True, forceinline=True)
    def copy_share(tiles, to, a, b, starts, corner, first, limit, extents, pitches, share):
        copy_a(tiles, to, a, starts[0], corner[0], first, limit, extents[0], pitches[0], share)
        copy_b(
            tiles, uint32(to + uint32(stage_a)), b, starts[1], corner[1], first, limit, extents[1], pitches[1], share
        )

    return copy_share


@functools.cache
def make_copy(tile, name, extent, along, shares):
    """Make the device function by which a thread copies a share of its chunks of a part of a matrix; zeros for those
    outside.

    In shared memory chunk c of row r is at place c ^ r % 8; in rows of 64 bytes at c ^ r // 2 % 4, in those of 32 at
    c ^ r // 4 % 2.
    """
    itemsize = FORMATS[name].itemsize
    depth, width = tile.depth // itemsize, CHUNK // itemsize
    copy = {4: copy_async4, 8: copy_async8, 16: copy_async16}[width]
    height, length = (extent, depth) if along else (depth, extent)
    chunks = length // width
    at_once = max(1, tile.threads // chunks)
    count = ceil_div(ceil_div(height, at_once), shares)
    whole, swizzle = height % at_once == 0, make_swizzle(chunks)

    @cuda.jit(device=True, forceinline=True)
    def copy_part(tiles, to, matrix, start, corner, first, limit, size, pitch, share):
        tid = uint32(cuda.threadIdx.x)
        r, c = tid // uint32(chunks), tid % uint32(chunks)
        at = to + r * uint32(length) + swizzle(r, c) * uint32(width)
        row, col = (corner + r, first + c * uint32(width)) if along else (first + r, corner + c * uint32(width))
        most_row, most_col = (size, limit) if along else (limit, size)
        source = start + uint64(row) * pitch + col
        for turn in range(count):
            i = (share * count + turn) * at_once
            if i < height and (whole or r + uint32(i) < height):
                inside = (uint32(row + i) < most_row) & (col < most_col)
                copy(tiles, at + uint32(i * length), matrix, source + uint64(pitch) * uint64(i), inside)

    return copy_part


@functools.cache
def make_swizzle(chunks):
    """Make the device function that finds the place of a chunk in a row of so many."""
    rows_of_line = max(1, 8 // chunks)

    @cuda.jit(device=True, forceinline=True)
    def swizzle(row, chunk):
        if chunks < 8:
            return chunk ^ (row // uint32(rows_of_line) % uint32(chunks))
        return chunk ^ (row % uint32(8))

    return swizzle


# -- from shared memory to registers, and to the tensor cores --------------------------------------


@functools.cache
def make_at_a(tile, name, along):
    """Make the device function that finds where a lane reads the first 16 rows of ``a``, for one part of a step."""
    form = FORMATS[name]
    depth, width = tile.depth // form.itemsize, CHUNK // form.itemsize
    swizzle = make_swizzle(depth // width if along else tile.rows // width)

    @cuda.jit(device=True, forceinline=True)
    def at_a(row, lane, part):
        if along:
            r, c = row + lane % uint32(16), uint32(2 * part) + lane // uint32(16)
            return r * uint32(depth) + swizzle(r, c) * uint32(width)
        r = uint32(16 * part) + lane % uint32(8) + lane // uint32(16) * uint32(8)
        c = row // uint32(8) + lane // uint32(8) % uint32(2)
        return r * uint32(tile_rows) + swizzle(r, c) * uint32(width)

    tile_rows = tile.rows
    return at_a


@functools.cache
def make_at_b(tile, name, along):
    """Make the device function that finds where a lane reads the first 16 columns of ``b``, for one part of a step."""
    form = FORMATS[name]
    depth, width, tile_columns = tile.depth // form.itemsize, CHUNK // form.itemsize, tile.columns
    swizzle = make_swizzle(depth // width if along else tile.columns // width)

    @cuda.jit(device=True, forceinline=True)
    def at_b(col, lane, part):
        if along:
            r = col + lane % uint32(8) + lane // uint32(16) * uint32(8)
            c = uint32(2 * part) + lane // uint32(8) % uint32(2)
            return r * uint32(depth) + swizzle(r, c) * uint32(width)
        r, c = uint32(16 * part) + lane % uint32(16), col // uint32(8) + lane // uint32(16)
        return r * uint32(tile_columns) + swizzle(r, c) * uint32(width)

    return at_b


@functools.cache
def make_read(tile, name, layout):
    """Make the device function by which a lane reads its operands for one part of a step."""
    _, count_a, count_b = HELD[name]
    down, across = tile.warp_rows // 16, tile.warp_columns // 8
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    across_a, across_b = not along_a, not along_b
    depth, width = tile.depth // FORMATS[name].itemsize, CHUNK // FORMATS[name].itemsize
    # Chunks further on in a row: their number has no bit in common with that of the first one.
    step = 2 * width

    @cuda.jit(device=True, forceinline=True)
    def read(tiles, at_a, at_b, left, right, which):
        for i in range(down):
            at = at_a + uint32(16 * i * depth) if along_a else at_a ^ uint32(i * step)
            held = ldmatrix4(tiles, at, across_a)
            for e in range(count_a):
                left[which, i, e] = held[e]
        for j in range(0, across, 2):
            at = at_b + uint32(8 * j * depth) if along_b else at_b ^ uint32(j // 2 * step)
            held = ldmatrix4(tiles, at, across_b)
            for e in range(count_b):
                right[which, j, e], right[which, j + 1, e] = held[e], held[count_b + e]

    return read


@functools.cache
def make_read_part(tile, name, layout):
    """Make the device function by which a lane reads its operands for one part of the step in a stage."""
    stage_a, read = tile.rows * (tile.depth // FORMATS[name].itemsize), make_read(tile, name, layout)
    at_a, at_b = make_at_a(tile, name, layout[0] == "N"), make_at_b(tile, name, layout[1] == "T")

    @cuda.jit(device=True, forceinline=True)
    def read_part(tiles, stage, place_of_lane, part, left, right):
        warp_row, warp_col, lane = place_of_lane
        from_b = stage + uint32(stage_a) + at_b(warp_col, lane, part)
        read(tiles, stage + at_a(warp_row, lane, part), from_b, left, right, part % 2)

    return read_part


@functools.cache
def make_multiply_parts(tile, name, layout, part=0):
    """Make the device function that multiplies all parts of a step but the last, each while it reads the next one and
    begins a share of the copies.

    Copies that a warp begins one after the other hold up its products: 3 % for a product of 4096 x 4096 x 4096 on an
    H200. The compiler does not unroll a loop of this size, so each part has a function, and calls that of the next.
    """
    form = FORMATS[name]
    if part == tile.depth // form.itemsize // form.small - 1:
        return nothing
    copy_share, read = make_copy_share(tile, name, layout), make_read_part(tile, name, layout)
    multiply, rest = make_multiply(tile, name), make_multiply_parts(tile, name, layout, part + 1)

    @cuda.jit(device=True, forceinline=True)
    def multiply_parts(tiles, stage, place_of_lane, sums, left, right, copies):
        copy_share(tiles, *copies, part)
        read(tiles, stage, place_of_lane, part + 1, left, right)
        multiply(sums, left, right, part % 2)
        rest(tiles, stage, place_of_lane, sums, left, right, copies)

    return multiply_parts


@cuda.jit(device=True, forceinline=True)
def nothing(tiles, stage, place_of_lane, sums, left, right, copies):
    pass


@functools.cache
def make_multiply(tile, name):
    """Make the device function by which a warp multiplies one set of operands, along one row of 16 and back along the
    next, so that neighbouring instructions share an operand.
    """
    down, across, halves, float16 = tile.warp_rows // 16, tile.warp_columns // 8, name == "float16", types.float16

    @cuda.jit(device=True, forceinline=True)
    def product(left, right, sums, which, i, j):
        old = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
        rows = left[which, i, 0], left[which, i, 1], left[which, i, 2], left[which, i, 3]
        columns = right[which, j, 0], right[which, j, 1]
        return mma(rows, columns, old, float16) if halves else mma(rows, columns, old)

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, left, right, which):
        for i in range(down):
            for along in range(across):
                j = across - 1 - along if i % 2 else along
                w, x, y, z = product(left, right, sums, which, i, j)
                sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = w, x, y, z

    return multiply


@functools.cache
def make_store(tile, form, is_total, wide, scales, moves=(False, False)):
    """Make the device function by which a warp stores its sums, with the factors if it ``scales``. ``moves``: whether a
    lane has neighbouring rows, and columns, where the instruction has them 8 apart.
    """
    element = form.total if is_total or scales else form.result
    down, columns = tile.warp_rows // 16, rows_columns(element, tile.warp_columns)
    parts, blocks = tile.warp_columns // columns, columns // 8
    view_rows = make_rows(element, columns, tile.threads // 32)
    store_rows = make_store_rows(element, columns, wide, fours=True, moves=moves[0])
    if scales:
        store_rows = make_store_scaled(form.total, form.result, columns, wide, moves[0])
    beside = 2 if moves[1] else 1

    @cuda.jit(device=True, forceinline=True)
    def store(out, factors, memory, sums, start, row, col, m, n):
        rows, words = view_rows(memory, 0)
        first = uint32(cuda.threadIdx.x) // uint32(32) * uint32(WARP_ROWS)
        # Two blocks of columns are between each other where they moved: a lane has four columns of them.
        right = uint32(2) * (uint32(cuda.threadIdx.x) % uint32(4)) if moves[1] else uint32(0)
        for i in range(down):
            for part in range(parts):
                cuda.syncwarp()
                for block in range(0, blocks, beside):
                    j = part * blocks + block
                    near = uint32(uint32(8 * block) + right)
                    if moves[1]:
                        values = sums[i, j, 0], sums[i, j + 1, 0], sums[i, j, 2], sums[i, j + 1, 2]
                        more = sums[i, j, 1], sums[i, j + 1, 1], sums[i, j, 3], sums[i, j + 1, 3]
                        store_fragment(rows, (first, near), values)
                        store_fragment(rows, (first, uint32(near + uint32(2))), more)
                    else:
                        values = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
                        store_fragment(rows, (first, near), values)
                cuda.syncwarp()
                store_rows(out, factors, rows, words, start, row + uint32(16 * i), col + uint32(part * columns), m, n)

    return store
