"""Implicit GEMM of float16 and bfloat16 on tensor cores, with sums in float32.

Asynchronous copies have four bytes or more, and tensor cores take their operands along K. So a first kernel writes the
images and the weights with the channels last, in multiples of four: K is then KH KW C / groups, and four neighbours
along it are four channels of one pixel. They are copied together, to rows of shared memory that are along K.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float32, types, uint8, uint32, uint64
from gpukit.conv.implicit import COLUMN_BITS, OUTSIDE, find_window
from gpukit.conv.windows import divided
from gpukit.intrinsics import commit_copies, copy_async4, ldmatrix4, load2, mma, store2, view_at, wait_copies
from gpukit.intrinsics.bfloat16 import element_of, value_of

__all__ = ["CHUNK", "HalfTile", "halves"]

float16, uint16 = types.float16, types.uint16
#: K of a step; elements of a row of shared memory: 16 bytes of eight rows, as `ldmatrix4` reads them, are in different
#: banks.
DEPTH, PITCH = 32, 40
#: Channels of a copy, and copies along K of a step.
CHUNK, CHUNKS = 4, DEPTH // 4
#: Steps for which there is shared memory.
STAGES = 3
#: Rows of a warp's sums that are stored together.
SLAB = 8


class HalfTile(NamedTuple):
    """The shape of a block's work, in elements of the product M x (N OH OW).

    Attributes
    ----------
    rows, columns : int
        Of a block.
    warp_rows, warp_columns : int
        Of a warp, in multiples of 16 and 8.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int

    @property
    def depth(self) -> int:
        """K of a step."""
        return DEPTH

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return 2 * STAGES * PITCH * (self.rows + self.columns)


# -- the product -----------------------------------------------------------------------------------


@functools.cache
def halves(tile, wide_out, bfloat16):
    """Make the kernel of a convolution of float16, or ``bfloat16``, with the channels last.

    Its grid and arguments are those of `gpukit.conv.implicit.implicit`, the Divisor of C / groups in chunks of four,
    and the elements of x from one pixel to the next, and from one group to the next. ``weight`` is as `channels_last`
    has it. ``x`` and ``weight`` are arrays of uint16. ``out`` has the channels first; it is of float32 for parts of K.
    ``wide_out`` tells whether it is stored by two: OH OW is even, and ``out`` aligned to two values. Launch it with
    ``tile.shared_bytes`` of dynamic shared memory.
    """
    rows, columns, warp_rows, warp_columns = tile
    down, across, warps_across = warp_rows // 16, warp_columns // 8, columns // warp_columns
    stage_a, stage_size, threads = rows * PITCH, (rows + columns) * PITCH, tile.threads
    at_once, pending, ahead = threads // CHUNKS, STAGES - 2, (STAGES - 1) * DEPTH
    count, stages_size = columns // at_once, STAGES * stage_size
    copy, multiply, store = make_copy(tile), make_multiply(tile, bfloat16), make_store(tile, wide_out)

    @cuda.jit
    def halves(x, weight, bias, out, geometry, sizes, chunks, steps):
        memory = cuda.shared.array(0, uint8, alignment=16)
        tiles = view_at(memory, 0, stages_size, uint16)
        sums = cuda.local.array((down, across, 4), float32)
        windows = cuda.local.array((count, 2), uint32)
        samples, _, m, biased = sizes
        channels = uint32(chunks.value * uint32(CHUNK))
        n, k = uint32(samples * geometry.positions.value), uint32(channels * geometry.taps.value)
        # The block: a tile of the product, a part of K, a group.
        block, parts, group = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.y), uint32(cuda.blockIdx.z)
        blocks_across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        row, col = uint32(block // blocks_across * rows), uint32(block % blocks_across * columns)
        steps_in_all = uint32(uint32(k + uint32(DEPTH - 1)) // uint32(DEPTH))
        part = uint32(uint32(steps_in_all + parts - uint32(1)) // parts * DEPTH)
        first = uint32(uint32(cuda.blockIdx.y) * part)
        limit = uint32(min(k, uint32(first + part)))
        limits = limit, uint32(m - row), k
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid // uint32(32), tid % uint32(32)
        warp_row, warp_col = warp // warps_across * warp_rows, warp % warps_across * warp_columns
        from_a = (uint64(group) * m + row + tid // uint32(CHUNKS)) * k + tid % uint32(CHUNKS) * uint32(CHUNK)
        for i in range(count):
            own = uint32(col + tid // uint32(CHUNKS) + uint32(i * at_once))
            sample, pixel, outside = find_window(geometry, own, n)
            pixel = uint32(sample * geometry.pixels.value + pixel)
            windows[i, 0], windows[i, 1] = uint32(group * steps[1] + pixel * steps[0]), outside
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] = float32(0)
        for stage in range(STAGES - 1):
            copy(tiles, uint64(stage * stage_size), x, weight, windows, from_a, first, limits, geometry, chunks, steps)
            first = uint32(first + DEPTH)
        stage, free, end = uint32(0), uint32((STAGES - 1) * stage_size), uint32(limit + ahead)
        # Where the lane's operands lie in a stage.
        row_a, row_b = warp_row + lane % uint32(16), warp_col + lane % uint32(8) + lane // uint32(16) * uint32(8)
        my_a = uint64(row_a * uint32(PITCH) + lane // uint32(16) * uint32(8))
        my_b = uint64(uint32(stage_a) + row_b * uint32(PITCH) + lane // uint32(8) % uint32(2) * uint32(8))
        while first < end:
            wait_copies(pending)
            cuda.syncthreads()
            copy(tiles, uint64(free), x, weight, windows, from_a, first, limits, geometry, chunks, steps)
            at_a, at_b = uint64(stage) + my_a, uint64(stage) + my_b
            multiply(tiles, at_a, at_b, sums)
            multiply(tiles, at_a + uint64(DEPTH // 2), at_b + uint64(DEPTH // 2), sums)
            first, free = uint32(first + DEPTH), stage
            stage = uint32(stage + stage_size if stage < uint32((STAGES - 1) * stage_size) else 0)
        of_part = uint64(cuda.blockIdx.y) * uint64(cuda.gridDim.z) * m * n
        place, is_biased = (group, uint32(row + warp_row), uint32(col + warp_col)), biased != 0 and cuda.blockIdx.y == 0
        store(out, of_part, sums, place, n, m, geometry.positions, memory, bias, is_biased)

    return halves


@functools.cache
def make_copy(tile):
    """Make the device function that begins the copies of one step from ``first`` on; zeros for what lies outside."""
    rows, columns, at_once = tile.rows, tile.columns, tile.threads // CHUNKS
    stage_a = rows * PITCH

    @cuda.jit(device=True, forceinline=True)
    def copy(tiles, to, x, weight, windows, from_a, first, limits, geometry, chunks, steps):
        limit, rows_left, k = limits
        tid = uint32(cuda.threadIdx.x)
        r, chunk = tid // uint32(CHUNKS), tid % uint32(CHUNKS)
        at, has = to + uint64(r * uint32(PITCH) + chunk * uint32(CHUNK)), uint32(first + chunk * CHUNK) < limit
        for i in range(0, rows, at_once):
            inside = has & (uint32(r + uint32(i)) < rows_left)
            copy_async4(tiles, at + uint64(i * PITCH), weight, from_a + first + uint64(i) * k, inside)
        # All copies of the thread are of the same channels of pixels at the same place in their windows.
        tap, c = divided(uint32(first // uint32(CHUNK) + chunk), chunks)
        down, right = divided(tap, geometry.kernel_w)
        place = uint32(down * geometry.dilation_h * geometry.width.value + right * geometry.dilation_w)
        distance = uint32(place * steps[0] + c * uint32(CHUNK))
        bits = uint32(uint32(1) << down | uint32(1) << uint32(COLUMN_BITS + right) if has else OUTSIDE)
        for i in range(columns // at_once):
            inside = uint32(windows[i, 1] & bits) == uint32(0)
            place = at + uint64(stage_a + i * at_once * PITCH)
            copy_async4(tiles, place, x, uint32(windows[i, 0] + distance), inside)
        commit_copies()

    return copy


@functools.cache
def make_multiply(tile, bfloat16):
    """Make the device function by which a warp multiplies half a stage."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def multiply(tiles, at_a, at_b, sums):
        right = cuda.local.array((across, 2), uint32)
        for j in range(0, across, 2):
            a, b, c, d = ldmatrix4(tiles, at_b + uint64(8 * j * PITCH))
            right[j, 0], right[j, 1], right[j + 1, 0], right[j + 1, 1] = a, b, c, d
        for i in range(down):
            left = ldmatrix4(tiles, at_a + uint64(16 * i * PITCH))
            for j in range(across):
                old = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
                words = right[j, 0], right[j, 1]
                new = mma(left, words, old) if bfloat16 else mma(left, words, old, float16)
                sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = new

    return multiply


@cuda.jit(device=True, forceinline=True)
def nothing(*arguments):
    pass


@functools.cache
def make_store(tile, wide):
    """Make the device function by which a warp stores its sums, with ``wide`` two windows at a time. It gathers eight
    rows in shared memory, so that neighbouring lanes store neighbours.
    """
    columns, width, slabs = tile.warp_columns, 2 if wide else 1, tile.warp_rows // SLAB
    lanes = min(columns // width, 32)
    pieces, at_once = columns // width // lanes, 32 // lanes
    shape = tile.threads // 32 * SLAB, columns + SLAB  # rows of half a warp begin in different banks

    def store_from(i):
        """Store from the i-th eight rows on. The compiler would not unroll a loop of this size."""
        rest = store_from(i + 1) if i + 1 < slabs else nothing

        @cuda.jit(device=True, forceinline=True)
        def store(out, sums, rows, starts, ends, place, m, positions, bias, biased):
            group, row, _ = place
            warp, lane = uint32(cuda.threadIdx.x) // uint32(32), uint32(cuda.threadIdx.x) % uint32(32)
            first, own = warp * uint32(SLAB), uint32(row + lane // uint32(4) + uint32(SLAB * i))
            extra = float32(value_of(bias[group * m + own])) if biased and own < m else float32(0)
            cuda.syncwarp()
            for j in range(columns // 8):
                to = first + lane // uint32(4), uint32(8 * j) + lane % uint32(4) * uint32(2)
                store2(rows, to, sums[i // 2, j, i % 2 * 2] + extra, sums[i // 2, j, i % 2 * 2 + 1] + extra)
            cuda.syncwarp()
            for q in range(0, SLAB, at_once):
                r = lane // uint32(lanes) + uint32(q)
                down = uint32(row + r + uint32(SLAB * i))
                for p in range(pieces):
                    if down < ends[p]:
                        at = starts[p] + uint64(down) * positions.value
                        c = (lane % uint32(lanes) + uint32(32 * p)) * uint32(width)
                        if wide:
                            a, b = load2(rows, (first + r, c))
                            store2(out, at, element_of(a, out), element_of(b, out))
                        else:
                            out[at] = element_of(rows[first + r, c], out)
            rest(out, sums, rows, starts, ends, place, m, positions, bias, biased)

        return store

    store_all = store_from(0)

    @cuda.jit(device=True, forceinline=True)
    def store(out, of_part, sums, place, n, m, positions, memory, bias, biased):
        starts, ends = cuda.local.array(pieces, uint64), cuda.local.array(pieces, uint32)
        group, _, col = place
        lane = uint32(cuda.threadIdx.x) % uint32(32)
        for p in range(pieces):
            own = uint32(col + (lane % uint32(lanes) + uint32(32 * p)) * uint32(width))
            sample, position = divided(own if own < n else uint32(0), positions)
            starts[p] = of_part + uint64(sample * cuda.gridDim.z + group) * m * positions.value + position
            ends[p] = m if own < n else uint32(0)
        wait_copies(0)
        cuda.syncthreads()  # no thread still reads a stage
        rows = view_at(memory, 0, shape, float32)
        store_all(out, sums, rows, starts, ends, place, m, positions, bias, biased)

    return store
