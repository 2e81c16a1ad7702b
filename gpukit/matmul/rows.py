"""How the warps of tensor-core products store their sums: by way of shared memory, so that each row is stored whole."""

import functools

from gpukit.backend import cuda, types, uint32, uint64
from gpukit.intrinsics import load4, store4, view_at
from gpukit.intrinsics.bfloat16 import bfloat16_of, float_of

__all__ = [
    "FOUR",
    "WARP_ROWS",
    "make_combine",
    "make_rows",
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
#: Elements of 2 bytes that a lane stores at a time in rows that begin anywhere.
FOUR = 4


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
def make_store_rows(element, columns, wide, fours=False, moves=False):
    """Make the device function by which a warp stores its rows in shared memory from a row and a column of ``out`` on.

    ``out`` is flat, of uint32 if it is ``wide``: its rows begin at multiples of 16 bytes. With ``fours`` it begins at a
    multiple of 8 bytes, and elements of 2 bytes are stored by four, wherever the rows begin. Factors are not applied.
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

    if wide:
        return store_wide
    return make_store_fours(element, columns, moves) if fours and size == 2 else store_narrow


@functools.cache
def make_store_fours(element, columns, moves):
    """Make `make_store_rows`'s device function for elements of 2 bytes, stored by four in rows that begin anywhere."""
    across, place_of = rows_columns(element, columns), make_place(moves)
    per_row, slots, ends = across // FOUR, 2 * FOUR, WARP_ROWS // FOUR
    four_rows = 32 // per_row
    turns, stride = max(1, FOUR // four_rows), max(FOUR, four_rows)
    rounds = WARP_ROWS // stride

    @cuda.jit(device=True, forceinline=True)
    def store_fours(out, factors, rows, words, start, row, col, m, n):
        fours, singles = cuda.local.array((rounds, FOUR), element), cuda.local.array(ends, element)
        tid = uint32(cuda.threadIdx.x)
        first, lane = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(32)
        begin, down = (start + row) * n + col, uint32(m - min(row, m))
        left = min(uint32(across), uint32(n - min(col, n)))
        place = uint32(lane % uint32(per_row) * uint32(FOUR))
        for turn in range(turns):  # every fourth row begins as far after a multiple of four elements
            r = uint32(lane // uint32(per_row) + uint32(four_rows * turn))
            at = begin + uint64(r) * n
            c = uint32(place + -uint32(at) % uint32(FOUR))
            is_whole = uint32(c + uint32(FOUR)) <= left
            source, at = c if is_whole else place, at + uint64(c)
            for i in range(rounds):  # the loads overlap, as those of single elements
                p = uint32(first + place_of(uint32(r + uint32(stride * i))))
                for e in range(FOUR):
                    fours[i, e] = rows[p, uint32(source + uint32(e))]
            for i in range(rounds):
                if is_whole and uint32(r + uint32(stride * i)) < down:
                    store4(out, at, fours[i, 0], fours[i, 1], fours[i, 2], fours[i, 3])
                at += uint64(stride) * n
        # What this leaves are up to three elements at each end of a row: a lane has one of the first or the last four.
        r, slot = lane // uint32(slots), lane % uint32(slots)
        at = begin + uint64(r) * n
        lead = uint32(uint32(at) % uint32(FOUR))
        end = uint32(lead + left)
        last = uint32(uint32(end - end % uint32(FOUR)) + uint32(slot - uint32(FOUR)))
        is_first = slot < uint32(FOUR)
        c = slot if is_first else last
        is_mine = c < end and (lead > uint32(0) and slot >= lead if is_first else lead == uint32(0) or end >= FOUR)
        c = uint32(c - lead) if is_mine else uint32(0)
        at += uint64(c)
        for i in range(ends):
            singles[i] = rows[uint32(first + place_of(uint32(r + uint32(FOUR * i)))), c]
        for i in range(ends):
            if is_mine and uint32(r + uint32(FOUR * i)) < down:
                out[at] = singles[i]
            at += uint64(FOUR) * n

    return store_fours


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
