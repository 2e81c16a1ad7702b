"""A small product on tensor cores, of operands of 2 bytes that lie anywhere, in one launch.

Rows of such operands begin at any element, so that no copy of 16 bytes can read them. Threads load the aligned 16 bytes
that hold the first and the last of eight elements, shift these to where they belong, and store them to shared memory.
The next step is loaded to registers while the warps multiply the present one.
"""

import functools

from gpukit.backend import cuda, int32, types, uint8, uint32, uint64
from gpukit.intrinsics import byte_perm, load4, store4, view_at
from gpukit.matmul.formats import FORMATS
from gpukit.matmul.raster import place, starts_of
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
from warpstep.integers import ceil_div

__all__ = ["SmallTile", "small"]


#: Parts of K of which the last block reads the sums at a time.
AT_ONCE = 4
#: Bytes of an element; elements of a chunk, and words of two neighbouring ones.
ITEM = 2
WIDTH, PAIR = CHUNK // ITEM, 2 * CHUNK // 4


class SmallTile(WarpTile):
    """The shape of a block's work, in 2 stages, as of `WarpTile`."""

    __slots__ = ()


@functools.cache
def small(tile, name, layout, is_total, wide, scales=False):
    """Make the kernel of out = a b for matrices in a batch, launched like that of `gpukit.matmul.warps.warps`.

    ``tile`` is a `SmallTile`; ``name`` is "float16" or "bfloat16". Rows, or columns, of ``a`` and ``b`` begin anywhere.
    The arguments are ``(a, b, words_a, words_b, out, sizes, order, steps, factors, partials, counters)``. ``words_a``
    has the whole chunks of 16 bytes of ``a``, as uint32; ``sizes`` ends with the elements of ``a``, and of ``b``,
    before these.
    ``partials`` has tile.rows * tile.columns sums for each block, ``counters`` one number for each tile: blocks with a
    part of K leave their sums there, and the last one of a tile adds them in the order of the parts. If ``is_total``,
    ``out`` has the sums of each part of K instead.
    """
    rows, columns, warp_rows, warp_columns, _, nbytes = tile
    form = FORMATS[name]
    held, count_a, count_b = HELD[name]
    element, total = types.uint16, form.total
    depth = nbytes // form.itemsize
    down, across, warps_across = warp_rows // 16, warp_columns // 8, columns // warp_columns
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    stage_a, stage_size = rows * depth, (rows + columns) * depth
    loads_a, loads_b = loads_of(tile, rows, along_a), loads_of(tile, columns, along_b)
    shift_of_a, shift_of_b = make_shift(tile, rows, along_a), make_shift(tile, columns, along_b)
    load_a, load_b = make_load(tile, rows, along_a), make_load(tile, columns, along_b)
    put_a, put_b = make_put(tile, rows, along_a), make_put(tile, columns, along_b)
    at_a, at_b = make_at_a(tile, name, along_a), make_at_b(tile, name, along_b)
    read, multiply = make_read(tile, name, layout), make_multiply(tile, name)
    store = make_store(tile, form, is_total, wide, scales)
    pieces, area, step = depth // form.small, rows * columns, 4 * tile.threads

    @cuda.jit(launch_bounds=(tile.threads, 1))
    def small(a, b, words_a, words_b, out, sizes, order, matrix_steps, factors, partials, counters):
        memory = cuda.shared.array(0, uint8, alignment=128)
        tiles, words = view_at(memory, 0, 2 * stage_size, element), view_at(memory, 0, stage_size, uint32)
        sums = cuda.local.array((down, across, 4), total)
        left = cuda.local.array((1, down, count_a), held)
        right = cuda.local.array((1, across, count_b), held)
        next_a, next_b = cuda.local.array(loads_a, uint32), cuda.local.array(loads_b, uint32)
        m, n, k, pitch_a, pitch_b, head_a, head_b = sizes
        number = uint32(cuda.blockIdx.x)
        z, part, row, col, first, last = place(number, order)
        row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
        start_a, start_b = starts_of(z, order, matrix_steps)
        first, limit = uint32(first * uint32(depth)), uint32(min(k, uint32(last * uint32(depth))))
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
        shift_a = shift_of_a(start_a, row, first, pitch_a, head_a)
        shift_b = shift_of_b(start_b, col, first, pitch_b, head_b)
        load_a(next_a, a, words_a, start_a, row, first, limit, m, pitch_a, head_a, shift_a)
        load_b(next_b, b, words_b, start_b, col, first, limit, n, pitch_b, head_b, shift_b)
        stage = uint32(0)
        while first < limit:
            put_a(words, stage, next_a, shift_a, first, limit)
            put_b(words, uint32(stage + uint32(stage_a)), next_b, shift_b, first, limit)
            cuda.syncthreads()
            first = uint32(first + uint32(depth))
            if first < limit:
                load_a(next_a, a, words_a, start_a, row, first, limit, m, pitch_a, head_a, shift_a)
                load_b(next_b, b, words_b, start_b, col, first, limit, n, pitch_b, head_b, shift_b)
            for piece in range(pieces):
                from_a = stage + at_a(warp_row, lane, piece)
                from_b = stage + uint32(stage_a) + at_b(warp_col, lane, piece)
                read(tiles, from_a, from_b, left, right, 0)
                multiply(sums, left, right, 0)
            # A thread comes back to this stage after the next barrier, when no warp reads it any more.
            stage = uint32(uint32(stage_size) - stage)
        cuda.syncthreads()
        if is_total:
            start = (uint64(z) * uint64(order.parts.value) + uint64(part)) * uint64(m)
            store(out, factors, memory, sums, start, row + warp_row, col + warp_col, m, n)
        elif order.parts.value == 1 or join(sums, partials, counters, number, z, part, order):
            store(out, factors, memory, sums, uint64(z) * m, row + warp_row, col + warp_col, m, n)

    @cuda.jit(device=True, forceinline=True)
    def join(sums, partials, counters, number, z, part, order):
        """Leave the sums of a part; return whether this block is the last of the tile, which has all sums then."""
        last = cuda.shared.array(1, uint32)
        tid, parts, tiles = uint32(cuda.threadIdx.x), order.parts.value, order.area.value
        mine = uint64(number) * uint64(area) + uint64(4) * tid
        for i in range(down):
            for j in range(across):
                at = mine + uint64((i * across + j) * step)
                store4(partials, at, sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3])
        cuda.syncthreads()
        number = uint32(number - part * tiles)
        if tid == 0:
            cuda.threadfence()
            tile_number = uint32(number - z * (parts - uint32(1)) * tiles)
            last[0] = cuda.atomic.inc(counters, tile_number, uint32(parts - uint32(1)))
            cuda.threadfence()
        cuda.syncthreads()
        if last[0] != parts - uint32(1):
            return False
        first = uint64(number) * uint64(area) + uint64(4) * tid
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] = total(0)
        for base in range(0, parts, AT_ONCE):
            for i in range(down):
                for j in range(across):
                    for u in range(AT_ONCE):
                        # Parts past the last read the first one, so that no load is behind a branch.
                        inside = uint32(base + u) < parts
                        at = first + uint64((i * across + j) * step)
                        more = uint64(base + u) * uint64(tiles) * uint64(area)
                        w, x, y, z = load4(partials, at + more if inside else at)
                        sums[i, j, 0] += w if inside else total(0)
                        sums[i, j, 1] += x if inside else total(0)
                        sums[i, j, 2] += y if inside else total(0)
                        sums[i, j, 3] += z if inside else total(0)
        return True

    return small


def loads_of(tile, extent, along):
    """Words that a thread loads of a part of a matrix."""
    _, height, at_once = chunks_of(tile, extent, along)
    return PAIR * ceil_div(height, at_once)


def chunks_of(tile, extent, along):
    """Chunks of a row of a part of a matrix in memory, its rows, and how many rows the threads load at a time."""
    depth = tile.depth // ITEM
    height, length = (extent, depth) if along else (depth, extent)
    chunks = length // WIDTH
    return chunks, height, max(1, tile.threads // chunks)


@functools.cache
def make_shift(tile, extent, along):
    """Make the device function that finds how many elements after a multiple of 16 bytes a thread's rows begin. Its
    rows are a multiple of eight apart, so all of them begin alike.
    """
    chunks, _, _ = chunks_of(tile, extent, along)

    @cuda.jit(device=True, forceinline=True)
    def shift(start, corner, first, pitch, head):
        r = uint32(cuda.threadIdx.x) // uint32(chunks)
        row, col = (corner + r, first) if along else (first + r, corner)
        return uint32(uint32(start) + uint32(row * uint32(pitch)) + col - head) % uint32(WIDTH)

    return shift


@cuda.jit(device=True, forceinline=True)
def load_chunk(elements, words, at, head):
    """Load eight elements from one on that lies at a multiple of 16 bytes; zeros for those outside of the array."""
    place = uint64(at - uint64(head))
    if place >> uint64(1) < uint64(words.size):
        return load4(words, place >> uint64(1))
    return (
        load_pair(elements, at),
        load_pair(elements, at + uint64(2)),
        load_pair(elements, at + uint64(4)),
        load_pair(elements, at + uint64(6)),
    )


@cuda.jit(device=True, forceinline=True)
def load_pair(elements, at):
    """Load two neighbours as a word; zeros for those outside of the array."""
    low = uint32(elements[at]) if at < uint64(elements.size) else uint32(0)
    high = uint32(elements[at + uint64(1)]) if at + uint64(1) < uint64(elements.size) else uint32(0)
    return uint32(low | high << uint32(16))


@functools.cache
def make_load(tile, extent, along):
    """Make the device function by which a thread loads its elements of a part of a matrix: for each eight of a row the
    16 bytes in which they begin, and those in which they end.
    """
    chunks, height, at_once = chunks_of(tile, extent, along)
    count, whole = ceil_div(height, at_once), height % at_once == 0

    @cuda.jit(device=True, forceinline=True)
    def load(held, elements, words, start, corner, first, limit, size, pitch, head, shift):
        tid = uint32(cuda.threadIdx.x)
        r, c = tid // uint32(chunks), tid % uint32(chunks)
        row, col = (corner + r, first + c * uint32(WIDTH)) if along else (first + r, corner + c * uint32(WIDTH))
        most_row, most_col = (size, limit) if along else (limit, size)
        source, step = start + uint64(row) * pitch + col - shift, uint64(pitch) * uint64(at_once)
        for i in range(count):
            inside = (uint32(row + uint32(i * at_once)) < most_row) & (col < most_col)
            if not whole:
                inside &= uint32(r + uint32(i * at_once)) < uint32(height)
            for e in range(PAIR):
                held[PAIR * i + e] = uint32(0)
            at = source + step * uint64(i)
            if inside:
                held[PAIR * i], held[PAIR * i + 1], held[PAIR * i + 2], held[PAIR * i + 3] = load_chunk(
                    elements, words, at, head
                )
            if inside & (shift > 0) & (uint32(col + uint32(WIDTH) - shift) < most_col):
                u, v, w, x = load_chunk(elements, words, at + uint64(WIDTH), head)
                held[PAIR * i + 4], held[PAIR * i + 5], held[PAIR * i + 6], held[PAIR * i + 7] = u, v, w, x

    return load


@functools.cache
def make_put(tile, extent, along):
    """Make the device function by which a thread stores what `make_load` has loaded to shared memory."""
    chunks, height, at_once = chunks_of(tile, extent, along)
    count, whole, swizzle = ceil_div(height, at_once), height % at_once == 0, make_swizzle(chunks)

    @cuda.jit(device=True, forceinline=True)
    def put(words, to, held, shift, first, limit):
        tid = uint32(cuda.threadIdx.x)
        r, c = tid // uint32(chunks), tid % uint32(chunks)
        at = uint32(to + r * uint32(chunks * WIDTH) + swizzle(r, c) * uint32(WIDTH)) // uint32(2)
        step = at_once * chunks * WIDTH // 2
        # Eight elements of sixteen, by shifts of four, of two and of one.
        far, near, pick = shift & uint32(4) != 0, shift & uint32(2) != 0, uint32(0x3210)
        if shift & uint32(1):
            pick = uint32(0x5432)
        moved, kept = cuda.local.array(6, uint32), cuda.local.array(5, uint32)
        for i in range(count):
            for e in range(6):
                moved[e] = held[PAIR * i + e + 2] if far else held[PAIR * i + e]
            for e in range(5):
                kept[e] = moved[e + 1] if near else moved[e]
            u, v = byte_perm(kept[0], kept[1], pick), byte_perm(kept[1], kept[2], pick)
            w, x = byte_perm(kept[2], kept[3], pick), byte_perm(kept[3], kept[4], pick)
            if along:
                left = int32(limit) - int32(first) - int32(c * uint32(WIDTH))
                if left < WIDTH:
                    u, v, w, x = keep(u, left), keep(v, left - 2), keep(w, left - 4), keep(x, left - 6)
            if whole or r + uint32(i * at_once) < uint32(height):
                store4(words, at + uint32(i * step), u, v, w, x)

    return put


@cuda.jit(device=True, forceinline=True)
def keep(pair, left):
    """Keep the first ``left`` elements of a pair; zeros replace the others."""
    if left >= 2:
        return pair
    return uint32(pair & uint32(0xFFFF)) if left == 1 else uint32(0)
