"""Implicit GEMM of float16 on tensor cores, with sums in float32: `gpukit.conv.implicit` with other tiles.

Asynchronous copies have four bytes or more, so a thread loads the pixels of its windows to registers, each on its own,
while the warps multiply the step before, and stores eight neighbours along K in shared memory, where rows of both
operands are along K, as tensor cores take them.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float32, types, uint32, uint64
from gpukit.conv.implicit import find_pixels, make_list_pixels
from gpukit.conv.windows import divided
from gpukit.intrinsics import commit_copies, copy_async4, load2, load4, mma, store2, store4, wait_copies

__all__ = ["HalfTile", "halves"]

float16 = types.float16

#: Elements of a row of shared memory, for a depth of 32: words of eight rows at four neighbours are in different banks.
DEPTH, PITCH = 32, 40
#: Neighbours along K that a thread loads for one window.
RUN = 8


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
        return 2 * 2 * PITCH * (self.rows + self.columns)


@functools.cache
def halves(tile, wide_a, wide_out):
    """Make the kernel of a convolution of float16, with the arguments of `gpukit.conv.implicit.implicit`.

    ``out`` is float16, or float32 for parts of K. ``wide_a`` tells whether the weights are copied by four: K is a
    multiple of four, and they begin at one of 8 bytes; ``wide_out`` whether ``out`` is stored by two: OH OW is even.
    Launch it with ``tile.shared_bytes`` of dynamic shared memory.
    """
    rows, columns, warp_rows, warp_columns = tile
    down, across, warps_across = warp_rows // 16, warp_columns // 8, columns // warp_columns
    stage_a, stage_size, threads = rows * PITCH, (rows + columns) * PITCH, tile.threads
    runs, table_size = columns * DEPTH // RUN // threads, 2 * 2 * DEPTH
    singles = 1 if wide_a else rows * DEPTH // threads
    find_window, list_pixels = find_pixels(tile), make_list_pixels(tile)
    load_windows, store_windows = make_load_windows(tile), make_store_windows(tile)
    copy_a, load_a, store_a = make_copy_weights(tile, wide_a)
    multiply, store = make_multiply(tile), make_store(tile, wide_out)

    @cuda.jit
    def halves(x, weight, bias, out, geometry, sizes):
        tiles = cuda.shared.array(0, float16)
        table = cuda.shared.array(table_size, uint32, alignment=16)
        sums = cuda.local.array((down, across, 4), float32)
        pixels, weights = cuda.local.array((runs, RUN), float16), cuda.local.array(singles, float16)
        zero = float16(0)
        samples, channels, m, biased = sizes
        n, k = uint32(samples * geometry.positions.value), uint32(channels * geometry.taps.value)
        # The block: a tile of the product, a part of K, a group.
        block, parts, group = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.y), uint32(cuda.blockIdx.z)
        blocks_across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        row, col = uint32(block // blocks_across * rows), uint32(block % blocks_across * columns)
        steps_in_all = uint32(uint32(k + uint32(DEPTH - 1)) // uint32(DEPTH))
        part = uint32(uint32(steps_in_all + parts - uint32(1)) // parts * DEPTH)
        first = uint32(uint32(cuda.blockIdx.y) * part)
        limit, rows_left = uint32(min(k, uint32(first + part))), uint32(m - row)
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid // uint32(32), tid % uint32(32)
        warp_row, warp_col = warp // warps_across * warp_rows, warp % warps_across * warp_columns
        from_a = (uint64(group) * m + row) * k
        window, outside = find_window(geometry, col, n, group, channels)
        for i in range(down):
            for j in range(across):
                for e in range(4):
                    sums[i, j, e] = float32(0)
        list_pixels(table, uint32(0), first, limit, geometry)
        list_pixels(table, uint32(1), uint32(first + DEPTH), limit, geometry)
        cuda.syncthreads()
        load_windows(pixels, x, window, outside, table, uint32(0), zero)
        load_a(weights, weight, from_a, first, limit, rows_left, k, zero)
        copy_a(tiles, uint64(0), weight, from_a, first, limit, rows_left, k)
        store_windows(tiles, uint64(stage_a), pixels)
        store_a(tiles, uint64(0), weights)
        stage = uint32(0)
        # Where the lane's operands lie in a stage.
        my_a = uint64(uint32(warp_row + lane // uint32(4)) * uint32(PITCH) + lane % uint32(4) * uint32(2))
        my_b = uint64(uint32(stage_a + (warp_col + lane // uint32(4)) * PITCH) + lane % uint32(4) * uint32(2))
        while first < limit:
            wait_copies(0)
            cuda.syncthreads()
            first, other = uint32(first + DEPTH), uint32(1 - stage)
            at, to = uint64(stage * uint32(stage_size)), uint64(other * uint32(stage_size))
            load_windows(pixels, x, window, outside, table, other, zero)
            load_a(weights, weight, from_a, first, limit, rows_left, k, zero)
            copy_a(tiles, to, weight, from_a, first, limit, rows_left, k)
            multiply(tiles, at + my_a, at + my_b, sums)
            multiply(tiles, at + my_a + uint64(DEPTH // 2), at + my_b + uint64(DEPTH // 2), sums)
            store_windows(tiles, to + uint64(stage_a), pixels)
            store_a(tiles, to, weights)
            list_pixels(table, stage, uint32(first + DEPTH), limit, geometry)
            stage = other
        of_part = uint64(cuda.blockIdx.y) * uint64(cuda.gridDim.z) * m * n
        my_row, my_col = uint32(row + warp_row + lane // 4), uint32(col + warp_col + lane % 4 * 2)
        place = group, my_row, my_col
        store(out, of_part, sums, place, n, m, geometry.positions, bias, biased != 0 and cuda.blockIdx.y == 0)

    return halves


# -- from global to shared memory ------------------------------------------------------------------


@functools.cache
def make_load_windows(tile):
    """Make the device function that loads a thread's pixels of one step; zeros for what lies outside."""
    columns, at_once, runs = tile.columns, tile.threads // tile.columns, tile.columns * DEPTH // RUN // tile.threads

    @cuda.jit(device=True, forceinline=True)
    def load_windows(pixels, x, window, outside, table, stage, zero):
        entry = uint32(stage * uint32(2 * DEPTH) + uint32(cuda.threadIdx.x) // uint32(columns) * uint32(2 * RUN))
        for r in range(runs):
            for i in range(0, RUN, 2):
                at = uint64(entry) + uint64(2 * (r * at_once * RUN + i))
                distance, bits, next_distance, next_bits = load4(table, at)
                pixels[r, i] = pixels[r, i + 1] = zero
                if uint32(outside & bits) == uint32(0):
                    pixels[r, i] = x[uint32(window + distance)]
                if uint32(outside & next_bits) == uint32(0):
                    pixels[r, i + 1] = x[uint32(window + next_distance)]

    return load_windows


@functools.cache
def make_store_windows(tile):
    """Make the device function that stores these pixels in shared memory, a window in a row."""
    columns, at_once, runs = tile.columns, tile.threads // tile.columns, tile.columns * DEPTH // RUN // tile.threads

    @cuda.jit(device=True, forceinline=True)
    def store_windows(tiles, to, pixels):
        tid = uint32(cuda.threadIdx.x)
        at = to + uint64(tid % uint32(columns) * uint32(PITCH) + tid // uint32(columns) * uint32(RUN))
        for r in range(runs):
            for i in range(0, RUN, 4):
                place = at + uint64(r * at_once * RUN + i)
                store4(tiles, place, pixels[r, i], pixels[r, i + 1], pixels[r, i + 2], pixels[r, i + 3])

    return store_windows


@functools.cache
def make_copy_weights(tile, wide):
    """Make the device functions that bring one step's weights to shared memory: by asynchronous copies of four, or
    else by loads to registers, and stores.
    """
    rows, threads = tile.rows, tile.threads
    lanes, singles = DEPTH // 4, rows * DEPTH // threads

    @cuda.jit(device=True, forceinline=True)
    def copy(tiles, to, weight, start, first, limit, rows_left, k):
        tid = uint32(cuda.threadIdx.x)
        r, c = tid // uint32(lanes), tid % uint32(lanes) * uint32(4)
        source, at = start + uint64(r) * k + uint64(first + c), to + uint64(r * uint32(PITCH) + c)
        for i in range(0, rows, threads // lanes):
            inside = (uint32(first + c) < limit) & (uint32(r + uint32(i)) < rows_left)
            copy_async4(tiles, at + uint64(i * PITCH), weight, source + uint64(i) * k, inside)
        commit_copies()

    @cuda.jit(device=True, forceinline=True)
    def load(weights, weight, start, first, limit, rows_left, k, zero):
        tid = uint32(cuda.threadIdx.x)
        r, c = tid // uint32(DEPTH), tid % uint32(DEPTH)
        source = start + uint64(r) * k + uint64(first + c)
        for i in range(singles):
            down = i * (threads // DEPTH)
            inside = uint32(first + c) < limit and uint32(r + uint32(down)) < rows_left
            weights[i] = weight[source + uint64(down) * k] if inside else zero

    @cuda.jit(device=True, forceinline=True)
    def store(tiles, to, weights):
        tid = uint32(cuda.threadIdx.x)
        at = to + uint64(tid // uint32(DEPTH) * uint32(PITCH) + tid % uint32(DEPTH))
        for i in range(singles):
            tiles[at + uint64(i * (threads // DEPTH) * PITCH)] = weights[i]

    return (copy, nothing, nothing) if wide else (nothing, load, store)


@cuda.jit(device=True, forceinline=True)
def nothing(*arguments):
    pass


# -- products, and the result ----------------------------------------------------------------------


@functools.cache
def make_multiply(tile):
    """Make the device function by which a warp multiplies half a stage."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def multiply(tiles, at_a, at_b, sums):
        right = cuda.local.array((across, 4), float16)
        for j in range(across):
            at = at_b + uint64(8 * j * PITCH)
            right[j, 0], right[j, 1] = load2(tiles, at)
            right[j, 2], right[j, 3] = load2(tiles, at + uint64(8))
        for i in range(down):
            at = at_a + uint64(16 * i * PITCH)
            a, b = load2(tiles, at)
            c, d = load2(tiles, at + uint64(8 * PITCH))
            e, f = load2(tiles, at + uint64(8))
            g, h = load2(tiles, at + uint64(8 * PITCH + 8))
            for j in range(across):
                old = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
                columns = right[j, 0], right[j, 1], right[j, 2], right[j, 3]
                new = mma((a, b, c, d, e, f, g, h), columns, old)
                sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = new

    return multiply


@functools.cache
def make_store(tile, wide):
    """Make the device function that stores a lane's sums, two windows of one out channel after the other."""
    down, across = tile.warp_rows // 16, tile.warp_columns // 8

    @cuda.jit(device=True, forceinline=True)
    def store_one(out, of_part, sums, j, e, place, own, n, m, positions, bias, biased):
        group, row, _ = place
        if own < n:
            sample, position = divided(own, positions)
            plane = uint64(sample * cuda.gridDim.z + group) * m + row
            start = of_part + plane * positions.value + position
            for i in range(2 * down):
                if uint32(row + uint32(8 * i)) < m:
                    at, of_row = start + uint64(8 * i) * positions.value, 2 * (i % 2)
                    extra = float32(bias[group * m + uint32(row + uint32(8 * i))]) if biased else float32(0)
                    value = sums[i // 2, j, of_row + e] + extra
                    if wide:
                        store2(out, at, value, sums[i // 2, j, of_row + 1] + extra)
                    else:
                        out[at] = value

    def store_from(j):
        """Store from the j-th pair of windows on. The compiler would not unroll a loop of this size."""
        rest = store_from(j + 1) if j + 1 < across else nothing

        @cuda.jit(device=True, forceinline=True)
        def store(out, of_part, sums, place, n, m, positions, bias, biased):
            own = uint32(place[2] + uint32(8 * j))
            store_one(out, of_part, sums, j, 0, place, own, n, m, positions, bias, biased)
            if not wide:
                store_one(out, of_part, sums, j, 1, place, uint32(own + uint32(1)), n, m, positions, bias, biased)
            rest(out, of_part, sums, place, n, m, positions, bias, biased)

        return store

    return store_from(0)
