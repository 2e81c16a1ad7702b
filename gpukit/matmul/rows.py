"""How the warps of tensor-core products store their sums: by way of shared memory, so that each row is stored whole."""

import functools

from gpukit.backend import cuda, types, uint32, uint64
from gpukit.intrinsics import load4, store2, store4, view_at
from gpukit.intrinsics.bfloat16 import bfloat16_of, float_of

__all__ = [
    "DENSE",
    "WARP_ROWS",
    "make_combine",
    "make_rows",
    "make_store_dense",
    "make_store_rows",
    "make_store_scaled",
    "rows_bytes",
    "rows_columns",
]

#: A warp stores 16 rows at a time, up to 128 bytes of each.
WARP_ROWS, ROW = 16, 128
#: Bytes more in each of these rows, by the size of an element, so that the lanes' pairs lie in different banks.
PADS = {2: 16, 4: 32}
#: Bytes of a store; elements that a lane loads before it stores them one by one.
WIDEST, LOADS = 16, 8
#: Elements that a lane stores at a time where rows follow one another.
DENSE = 4


def rows_columns(element, columns: int) -> int:
    """Columns that a warp stores at a time, of so many: a power of two."""
    return min(1 << columns.bit_length() - 1, ROW * 8 // element.bitwidth)


def rows_bytes(warps: int) -> int:
    """Bytes of shared memory that so many warps need at most."""
    return warps * WARP_ROWS * (ROW + max(PADS.values()))


@functools.cache
def make_rows(element, columns, warps):
    """Make the device function that views shared memory as the rows of all warps: as elements, and as words."""
    size = element.bitwidth // 8
    pitch = rows_columns(element, columns) + PADS[size] // size
    shape, words_shape = (warps * WARP_ROWS, pitch), (warps * WARP_ROWS, pitch * size // 4)

    @cuda.jit(device=True, forceinline=True)
    def rows(memory, at):
        return view_at(memory, at, shape, element), view_at(memory, at, words_shape, uint32)

    return rows


@functools.cache
def make_place(moves):
    """Make the device function that finds a row in shared memory: if it ``moves`` rows, 2 r and 2 r + 1 are 8 apart."""

    @cuda.jit(device=True, forceinline=True)
    def place_of(row):
        return uint32(row // uint32(2) + row % uint32(2) * uint32(8)) if moves else row

    return place_of


@functools.cache
def make_store_rows(element, columns, wide, pairs=False, moves=False):
    """Make the device function by which a warp stores its rows in shared memory from a row and a column of ``out`` on.

    ``out`` is flat, of uint32 if it is ``wide``: its rows begin at multiples of 16 bytes. With ``pairs`` it begins at a
    multiple of 4 bytes, and elements of 2 bytes are stored by two, wherever the rows begin. Factors are not applied.
    If it ``moves`` rows, those in shared memory are as of `make_place`.
    """
    size = element.bitwidth // 8
    across, per_word = rows_columns(element, columns), 4 // size
    lanes = across * size // WIDEST
    at_once, count = 32 // lanes, WARP_ROWS * across // 32
    loads, place_of = min(count, LOADS), make_place(moves)

    @cuda.jit(device=True, forceinline=True)
    def store_wide(out, factors, rows, words, start, row, col, m, n):
        tid = uint32(cuda.threadIdx.x)
        first, lane = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(32)
        r, c = lane // uint32(lanes), lane % uint32(lanes) * uint32(4)
        at = ((start + row + r) * n + col) // uint64(per_word) + c
        for i in range(0, WARP_ROWS, at_once):
            if row + r + uint32(i) < m and col + c * uint32(per_word) < n:
                w, x, y, z = load4(words, (first + place_of(uint32(r + uint32(i))), c))
                store4(out, at + uint64(i) * n // uint64(per_word), w, x, y, z)

    @cuda.jit(device=True, forceinline=True)
    def store_narrow(out, factors, rows, words, start, row, col, m, n):
        tid = uint32(cuda.threadIdx.x)
        first, lane = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(32)
        held = cuda.local.array(loads, element)
        for i in range(0, count, loads):
            # The loads overlap. In turns with the stores, each would be waited for.
            for j in range(loads):
                place = uint32(32 * (i + j)) + lane
                held[j] = rows[first + place_of(place // uint32(across)), place % uint32(across)]
            for j in range(loads):
                place = uint32(32 * (i + j)) + lane
                r, c = place // uint32(across), place % uint32(across)
                if row + r < m and col + c < n:
                    out[(start + row + r) * n + col + c] = held[j]

    half = across // 2
    rows_at_once = 32 // half
    pairs_once = min(WARP_ROWS // rows_at_once, LOADS)

    @cuda.jit(device=True, forceinline=True)
    def store_pairs(out, factors, rows, words, start, row, col, m, n):
        if uint32(col + uint32(across)) > n:
            store_narrow(out, factors, rows, words, start, row, col, m, n)
            return
        tid = uint32(cuda.threadIdx.x)
        first, lane = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(32)
        held = cuda.local.array((pairs_once, 2), element)
        r, c = lane // uint32(half), uint32(uint32(2) * (lane % uint32(half)))
        top, below, at = r, uint32(row + r), (start + row + r) * n + col
        step = uint64(n) * uint64(rows_at_once)
        for i in range(0, WARP_ROWS, rows_at_once * pairs_once):
            for j in range(pairs_once):  # the loads overlap, as above
                r = uint32(first + place_of(uint32(top + uint32(i + rows_at_once * j))))
                odd = uint32(at + uint64(j) * step) & uint32(1)
                # If that is below 0, this lane stores the first element of the row and the last one.
                near = uint32(c - odd)
                held[j, 0] = rows[r, near if near <= c else uint32(0)]
                held[j, 1] = rows[r, near + uint32(1) if near <= c else uint32(across - 1)]
            for j in range(pairs_once):
                near = uint32(c - (uint32(at) & uint32(1)))
                if uint32(below + uint32(i + rows_at_once * j)) < m:
                    if near > c:
                        out[at] = held[j, 0]
                        out[at + uint64(across - 1)] = held[j, 1]
                    else:
                        store2(out, at + near, held[j, 0], held[j, 1])
                at += step

    if wide:
        return store_wide
    return store_pairs if pairs and size == 2 else store_narrow


@functools.cache
def make_store_dense(element, columns, warps, moves):
    """Make the device function by which a warp stores 16 rows that have up to so many columns, and no others: they
    follow one another in memory, wherever they begin. ``out`` begins at a multiple of four elements. ``moves`` are as
    of `gpukit.matmul.warps.make_store`.
    """
    rounds, blocks = element == types.uint16, columns // 8
    beside = 2 if moves[1] else 1
    room = WARP_ROWS * columns + DENSE

    @cuda.jit(device=True, forceinline=True)
    def store_dense(out, memory, sums, start, row, m, n):
        warp, lane = uint32(cuda.threadIdx.x) // uint32(32), uint32(cuda.threadIdx.x) % uint32(32)
        held, base = view_at(memory, 0, warps * room, element), uint32(warp * uint32(room))
        begin, down = (start + row) * n, uint32(min(uint32(WARP_ROWS), uint32(m - row)))
        lead = uint32(begin) % uint32(DENSE)
        g, t = lane // uint32(4), lane % uint32(4)
        cuda.syncwarp()
        for half in range(2):
            r = uint32(uint32(2) * g + uint32(half)) if moves[0] else uint32(g + uint32(8 * half))
            at = uint32(base + lead + r * n)
            if r < down:
                for j in range(blocks):
                    for e in range(2):
                        col = uint32(8 * beside * (j // beside) + j % beside + beside * e) + t * uint32(2 * beside)
                        value = sums[0, j, 2 * half + e]
                        rounded = bfloat16_of(value) if rounds else element(value)
                        if col < n:
                            held[at + col] = rounded
        cuda.syncwarp()
        end, i = uint32(lead + down * n), uint32(lane * uint32(DENSE))
        begin -= uint64(lead)
        while i < end:
            if i >= lead and i + uint32(DENSE) <= end:
                w, x, y, z = load4(held, uint32(base + i))
                store4(out, begin + uint64(i), w, x, y, z)
            else:
                for e in range(DENSE):
                    if i + uint32(e) >= lead and i + uint32(e) < end:
                        out[begin + uint64(i + uint32(e))] = held[base + i + uint32(e)]
            i = uint32(i + uint32(32 * DENSE))

    return store_dense


@functools.cache
def make_store_scaled(total, element, columns, wide, moves=False):
    """Make the device function that does as `make_store_rows`'s for alpha times the rows, sums, plus beta times what is
    in ``out``, of elements; it is not read if beta is 0. ``wide``: rows begin at multiples of four elements.
    """
    across, width = rows_columns(total, columns), 4 if wide else 1
    lanes, count = across // width, WARP_ROWS * across // 32 // width
    loads, combine, place_of = min(count, LOADS), make_combine(total, element), make_place(moves)

    @cuda.jit(device=True, forceinline=True)
    def store_scaled(out, factors, rows, words, start, row, col, m, n):
        first, lane = uint32(cuda.threadIdx.x) // uint32(32) * uint32(WARP_ROWS), uint32(cuda.threadIdx.x) % uint32(32)
        held = cuda.local.array((loads, width), element)
        for i in range(0, count, loads):
            if factors[1] != total(0):
                for j in range(loads):  # what lies outside is read inside, so that the loads have no branch and overlap
                    place = uint32(32 * (i + j)) + lane
                    r, c = uint32(row + place // uint32(lanes)), uint32(col + place % uint32(lanes) * uint32(width))
                    at = (start + min(r, uint32(m - uint32(1)))) * n + (c if c < n else uint32(0))
                    if width == 4:
                        held[j, 0], held[j, 1], held[j, 2], held[j, 3] = load4(out, at)
                    else:
                        held[j, 0] = out[at]
            for j in range(loads):
                place = uint32(32 * (i + j)) + lane
                down, right = place // uint32(lanes), place % uint32(lanes) * uint32(width)
                r, c = uint32(row + down), uint32(col + right)
                if r < m and c < n:
                    at, down = (start + r) * n + c, uint32(first + place_of(down))
                    if width == 4:
                        w, x, y, z = load4(rows, (down, right))
                        w, x = combine(w, held[j, 0], factors), combine(x, held[j, 1], factors)
                        y, z = combine(y, held[j, 2], factors), combine(z, held[j, 3], factors)
                        store4(out, at, w, x, y, z)
                    else:
                        out[at] = combine(rows[down, right], held[j, 0], factors)

    return store_scaled


@functools.cache
def make_combine(total, element):
    """Make the device function that adds alpha times a sum to beta times an element, as an element."""
    is_bfloat16 = element == types.uint16

    @cuda.jit(device=True, forceinline=True)
    def combine(x, old, factors):
        alpha, beta = factors
        value = total(alpha * x)
        if beta != total(0):
            value = total(value + beta * (float_of(old) if is_bfloat16 else total(old)))
        return bfloat16_of(value) if is_bfloat16 else element(value)

    return combine
