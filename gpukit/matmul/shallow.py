"""A product with a small K, or many small ones, on tensor cores, of operands of 2 bytes that lie anywhere.

Each warp loads what it multiplies straight to its registers, and waits for no other warp. K is covered by an
instruction or two, or the warps of a block have matrices of their own: so hardly anything is read twice.

A sum has any order, and so have the rows and columns of a tile. So a lane may hold neighbours in memory where the
instruction has elements that lie apart, as long as both operands agree on K: one access loads several of them then.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, types, uint8, uint32, uint64
from gpukit.intrinsics import byte_perm, load4, mma
from gpukit.matmul.formats import FORMATS, INSTRUCTION
from gpukit.matmul.raster import place, starts_of
from gpukit.matmul.rows import WARP_ROWS, rows_bytes
from gpukit.matmul.warps import make_store
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["ACROSS", "WIDTHS", "ShallowTile", "make_fetches", "shallow"]

#: Warps of a block; bytes of K of which a lane has a word.
WARPS, WORD = 4, 16
#: Elements that an access loads: 16 bytes, 4 bytes or one element; the most of them across K.
WIDTHS, ACROSS = (8, 2, 1), 2
#: Blocks that a multiprocessor has registers for, with up to so many words of ``b`` in a lane, and with more. Without
#: this bound the compiler holds the addresses of all loads in registers, and half as many run.
RESIDENT, FEW_WORDS, RESIDENT_MANY = 6, 16, 4
#: How `byte_perm` makes a word of two elements below two bytes of zeros each: of both, the first or neither.
BOTH, FIRST, NEITHER = 0x5410, 0x3210, 0x3232


class ShallowTile(NamedTuple):
    """The shape of a block's work; a warp has 16 rows of it at a time.

    Attributes
    ----------
    rows, columns : int
        Of the result that a block computes: 16, 32 or 64 rows, times ``down``, and a multiple of 16 columns for each
        warp.
    depth : int
        Bytes of K of a step, 16 or a multiple of 32. Only tiles that are ``apart`` have more than one.
    apart : bool
        Whether each warp has such a tile, of any matrix; 16 rows then.
    down : int
        How many times 16 rows a warp has, one after the other, by what it has loaded of ``b`` once.
    """

    rows: int
    columns: int
    depth: int
    apart: bool = False
    down: int = 1

    @property
    def warp_rows(self) -> int:
        """Rows of a warp at a time."""
        return WARP_ROWS

    @property
    def warp_columns(self) -> int:
        """Columns of a warp."""
        return self.columns if self.apart else self.rows * self.columns // (WARPS * WARP_ROWS * self.down)

    def width(self, along: bool, extent: int) -> int:
        """The most elements of an operand that a lane loads at a time."""
        return 4 * self.depth // INSTRUCTION if along else ACROSS

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
def shallow(tile, name, layout, parts, wide, scales=False, widths=(1, 1)):
    """Make the kernel of out = a b for matrices in a batch, with the arguments of `gpukit.matmul.sliced.sliced` up to
    ``factors``. K has ``tile.depth`` bytes at most unless the tiles are apart. ``name`` is "float16" or "bfloat16";
    ``widths`` are as there.
    """
    form, (rows, columns, depth, apart, times) = FORMATS[name], tile
    total, words, across = form.total, depth // WORD, tile.warp_columns // 8
    warps_down = rows // (WARP_ROWS * times)
    multiply, warp_columns = make_multiply(name, across, words), tile.warp_columns
    (fetch_a, _), (fetch_b, _) = make_fetches(layout, widths, 2, across, words)
    moves = layout[0] == "T" and widths[0] > 1, layout[1] == "N" and widths[1] > 1
    store = make_store(tile, form, parts, wide, scales, moves)

    @cuda.jit(launch_bounds=(tile.threads, RESIDENT if across * words <= FEW_WORDS else RESIDENT_MANY))
    def shallow(a, b, out, sizes, order, matrix_steps, factors):
        memory = cuda.shared.array(0, uint8, alignment=128)
        sums = cuda.local.array((1, across, 4), total)
        left, right = cuda.local.array((2, words), uint32), cuda.local.array((across, words), uint32)
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
            row = uint32(row + warp % uint32(warps_down) * uint32(WARP_ROWS * times))
            col = uint32(col + warp // uint32(warps_down) * uint32(warp_columns))
        g, t = lane // uint32(4), lane % uint32(4)
        if times > 1:
            fetch_b(right, b, start_b, col, g, t, uint32(0), n, k, pitch_b)
        i = uint32(0)
        while i < uint32(times) and (times == 1 or row < m):
            for j in range(across):
                for e in range(4):
                    sums[0, j, e] = total(0)
            first = uint32(0)
            while first < k:
                fetch_a(left, a, start_a, row, g, t, first, m, k, pitch_a)
                if times == 1:
                    fetch_b(right, b, start_b, col, g, t, first, n, k, pitch_b)
                multiply(sums, left, right)
                first = uint32(first + uint32(depth // 2)) if apart else k
            if (row < m) & (col < n):
                store(out, factors, memory, sums, uint64(z) * m, row, col, m, n)
            row, i = uint32(row + uint32(WARP_ROWS)), uint32(i + uint32(1))

    return shallow


@functools.cache
def make_multiply(name, across, words):
    """Make the device function by which a warp multiplies the first 16 rows that it has loaded, of so many words."""
    halves, float16 = name == "float16", types.float16

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, left, right):
        for j in range(across):
            four = sums[0, j, 0], sums[0, j, 1], sums[0, j, 2], sums[0, j, 3]
            for w in range(0, words, 2):
                if words == 1:
                    from_a, from_b = (left[0, 0], left[1, 0]), (right[j, 0],)
                else:
                    from_a = left[0, w], left[1, w], left[0, w + 1], left[1, w + 1]
                    from_b = right[j, w], right[j, w + 1]
                four = mma(from_a, from_b, four, float16) if halves else mma(from_a, from_b, four)
            sums[0, j, 0], sums[0, j, 1], sums[0, j, 2], sums[0, j, 3] = four

    return multiply


def make_fetches(layout, widths, lines, across, words):
    """Make what `make_fetch` does for ``a``, of which a lane has so many rows, and for ``b``, of which it has so many
    columns: all ``words`` of a row along K, one or two for an instruction, are loaded at a time.
    """
    alongs = layout[0] == "N", layout[1] == "T"
    run = max(2, *(width * along for width, along in zip(widths, alongs, strict=True)))
    counts = lines, across
    return [make_fetch(*of_one, words, run) for of_one in zip(counts, alongs, widths, strict=True)]


@functools.cache
def make_fetch(lines, along, width, words, run):
    """Make two device functions: by the first a lane loads its words of so many rows of a tile, or columns, each with
    two neighbours along K; the second finds the place in the tile of one of these rows.

    A lane with t = lane % 4 holds ``run`` neighbours along K from t run on, then those 4 run further on. With
    g = lane // 4 it holds row g of each eight, or as many neighbours as an access loads across K.
    """
    beside = 1 if along else width

    @cuda.jit(device=True, forceinline=True)
    def place_of(line, g):
        return uint32(line // beside * 8 * beside + line % beside) + g * uint32(beside)

    @cuda.jit(device=True, forceinline=True)
    def k_of(i, t):
        """Where word i of a lane lies along K."""
        return uint32(2 * i // run * 4 * run + 2 * i % run) + t * uint32(run)

    if width == 1:
        return make_fetch_pairs(lines, along, words, place_of, k_of), place_of
    make = make_fetch_along if along else make_fetch_across
    return make(lines, width, words, place_of, k_of), place_of


@functools.cache
def make_fetch_pairs(lines, along, words, place_of, k_of):
    """Make the device function by which a lane loads single elements, two for each word."""

    @cuda.jit(device=True, forceinline=True)
    def fetch_pairs(held, matrix, start, corner, g, t, first, size, k, pitch):
        found = cuda.local.array((lines, words, 2), types.uint16)
        # Loads outside of the matrix read inside, so that they have no branch and all are under way at once.
        end_k, end = uint32(k - uint32(1)), uint32(size - uint32(1))
        for i in range(words):
            at = uint32(first + k_of(i, t))
            low, high = min(at, end_k), min(uint32(at + uint32(1)), end_k)
            for line in range(lines):
                place = min(uint32(corner + place_of(line, g)), end)
                if along:
                    row = start + uint64(place) * pitch
                    found[line, i, 0], found[line, i, 1] = matrix[row + low], matrix[row + high]
                else:
                    near = start + place
                    found[line, i, 0] = matrix[near + uint64(low) * pitch]
                    found[line, i, 1] = matrix[near + uint64(high) * pitch]
        for i in range(words):
            at = uint32(first + k_of(i, t))
            pick = uint32(BOTH if uint32(at + uint32(1)) < k else FIRST if at < k else NEITHER)
            for line in range(lines):
                held[line, i] = byte_perm(uint32(found[line, i, 0]), uint32(found[line, i, 1]), pick)

    return fetch_pairs


@functools.cache
def make_fetch_along(lines, width, words, place_of, k_of):
    """Make the device function by which a lane loads ``width`` neighbours along K at a time."""
    load_words = make_load_words(width)

    @cuda.jit(device=True, forceinline=True)
    def fetch_along(held, matrix, start, corner, g, t, first, size, k, pitch):
        end, half = uint32(size - uint32(1)), uint32(pitch >> uint32(1))
        for i in range(0, words, width // 2):
            at = uint32(first + k_of(i, t))
            near = (at if at < k else uint32(0)) >> uint32(1)
            for line in range(lines):
                place = min(uint32(corner + place_of(line, g)), end)
                words_of = load_words(matrix, (start >> uint64(1)) + uint64(place) * uint64(half) + uint64(near))
                for j in range(width // 2):
                    held[line, i + j] = words_of[j]
        for i in range(0, words, width // 2):
            inside = uint32(first + k_of(i, t)) < k
            for line in range(lines):
                for j in range(width // 2):
                    held[line, i + j] = held[line, i + j] if inside else uint32(0)

    return fetch_along


@functools.cache
def make_fetch_across(lines, width, words, place_of, k_of):
    """Make the device function by which a lane loads ``width`` neighbours across K at a time, and pairs those of two
    places along K.
    """
    load_words, groups = make_load_words(width), lines // width

    @cuda.jit(device=True, forceinline=True)
    def fetch_across(held, matrix, start, corner, g, t, first, size, k, pitch):
        found = cuda.local.array((groups, words, 2), uint32)
        end_k, end, half = uint32(k - uint32(1)), uint32(size - uint32(width)), uint32(pitch >> uint32(1))
        for i in range(words):
            at = uint32(first + k_of(i, t))
            low, high = min(at, end_k), min(uint32(at + uint32(1)), end_k)
            for line in range(0, lines, width):
                place = min(uint32(corner + place_of(line, g)), end)
                source = (start >> uint64(1)) + uint64(place >> uint32(1))
                (found[line // width, i, 0],) = load_words(matrix, source + uint64(low) * uint64(half))
                (found[line // width, i, 1],) = load_words(matrix, source + uint64(high) * uint64(half))
        for i in range(words):
            at = uint32(first + k_of(i, t))
            mask = uint32(0xFFFFFFFF) if uint32(at + uint32(1)) < k else uint32(0xFFFF) if at < k else uint32(0)
            for line in range(0, lines, width):
                low, high = found[line // width, i, 0], found[line // width, i, 1]
                held[line, i] = byte_perm(low, high, 0x5410) & mask
                held[line + 1, i] = byte_perm(low, high, 0x7632) & mask

    return fetch_across


@functools.cache
def make_load_words(width):
    """Make the device function that loads the words of so many elements."""

    @cuda.jit(device=True, forceinline=True)
    def load_word(matrix, at):
        return (matrix[at],)

    @cuda.jit(device=True, forceinline=True)
    def load_words(matrix, at):
        return load4(matrix, at)

    return load_words if width > 2 else load_word
