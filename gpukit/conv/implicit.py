"""Convolution as a matrix product whose second matrix is never written: implicit GEMM.

The product is that of `gpukit.matmul.fast`: weights, M x K for M = O / groups and K = C / groups KH KW, by the windows
of all samples, K x (N OH OW). Only the copies to shared memory differ. A thread copies pixels of one window, always the
same one: it knows where the window begins, and which rows and columns of the kernel lie outside of the image. For each
value of K, a table in shared memory has the distance of its pixel from the window's beginning, and its row and column
of the kernel, each as one bit. It is filled step by step, ahead of the copies.
"""

import functools

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.conv.windows import divided
from gpukit.intrinsics import commit_copies, copy_async, load2, store2, store4, wait_copies
from gpukit.matmul.fast import (
    make_clear,
    make_copy_along,
    make_join,
    make_multiply,
    make_read,
    make_start,
    make_steps,
    pitches,
)
from warpstep.integers import ceil_div

__all__ = ["COLUMN_BITS", "MAX_KERNEL", "OUTSIDE", "find_window", "implicit"]

#: Rows and columns of the largest kernel: each has a bit of a word, and one is left for what is outside of K.
MAX_KERNEL = 16, 15
COLUMN_BITS, OUTSIDE, NOWHERE = 16, 1 << 31, 2**32 - 1


@functools.cache
def implicit(tile, wide_out):
    """Make the kernel of a convolution in float32, for C-contiguous arrays that are flat.

    Blocks along x compute the tiles of M x (N OH OW), row by row; those along y take parts of K, each with a result of
    its own, which `gpukit.matmul.fast.sum_parts` adds up; those along z the groups.

    Parameters
    ----------
    tile : gpukit.matmul.fast.Tile
    wide_out : bool
        Whether ``out`` is stored by four elements: OH OW is a multiple of four, and ``out`` begins at one of 16 bytes.

    Returns
    -------
    kernel
        ``kernel[(tiles, parts, groups), tile.threads](x, weight, bias, out, geometry, sizes)``. ``sizes`` are N,
        C / groups, M, and whether there is a bias to add, of uint32. The convolution's kernel has at most
        ``MAX_KERNEL`` rows and columns.
    """
    rows, columns, depth, thread_rows, thread_columns, lane_rows, stages, slices = tile
    lane_columns, slice_threads, slice_depth = 32 // lane_rows, tile.threads // slices, depth // slices
    warp_rows, warp_columns = lane_rows * thread_rows, lane_columns * thread_columns
    warps_across = columns // warp_columns
    row_a, row_b = pitches(tile, "NN")
    stage_a, stage_size = depth * row_a, depth * (row_a + row_b)
    all_tiles, table_size, pending = stages * stage_size, 2 * stages * depth, stages - 2
    ahead, last = (stages - 1) * depth, (slice_depth - 1) % 2
    start_a, copy_a = make_start(rows, True, False), make_copy_along(rows, tile, row_a)
    list_pixels, copy_windows = make_list_pixels(tile), make_copy_windows(tile)
    clear, read, multiply, join = make_clear(tile), make_read(tile), make_multiply(tile), make_join(tile)
    steps = make_steps(tile, read, multiply, slice_depth - 1, holds_loads=thread_columns == 16)
    store = make_store(tile, wide_out)

    @cuda.jit
    def implicit(x, weight, bias, out, geometry, sizes):
        tiles = cuda.shared.array(all_tiles, float32, alignment=16)
        table = cuda.shared.array(table_size, uint32, alignment=16)
        sums = cuda.local.array((thread_rows, thread_columns), float32)
        left = cuda.local.array((2, thread_rows), float32)
        right = cuda.local.array((2, thread_columns), float32)
        samples, channels, m, biased = sizes
        n, k = uint32(samples * geometry.positions.value), uint32(channels * geometry.taps.value)
        # The block: a tile of the product, a part of K, a group.
        block, parts, group = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.y), uint32(cuda.blockIdx.z)
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        row, col = uint32(block // across * rows), uint32(block % across * columns)
        steps_in_all = uint32(uint32(k + uint32(depth - 1)) // uint32(depth))
        part = uint32(uint32(steps_in_all + parts - uint32(1)) // parts * depth)
        first = uint32(uint32(cuda.blockIdx.y) * part)
        limit, rows_left = uint32(min(k, uint32(first + part))), uint32(m - row)
        # The thread: a slice of the depth, a place in its warp, which has a place in the tile.
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid % slice_threads // 32, tid % 32
        my_row = uint32(warp // warps_across * warp_rows + lane // lane_columns * 4)
        my_col = uint32(warp % warps_across * warp_columns + lane % lane_columns * 4)
        my_slice = tid // slice_threads * slice_depth
        # Where its copies begin.
        from_a = uint64(group) * m * k + start_a(row, first, k)
        sample, pixel, outside = find_window(geometry, uint32(col + tid % uint32(columns)), n)
        window = uint32(uint32(sample * cuda.gridDim.z + group) * channels * geometry.pixels.value + pixel)
        for stage in range(stages):
            list_pixels(table, uint32(stage), uint32(first + stage * depth), limit, geometry)
        cuda.syncthreads()
        clear(sums, left, right, last)
        for stage in range(stages - 1):
            to = uint64(stage * stage_size)
            copy_a(tiles, to, weight, from_a, first, limit, rows_left, k)
            copy_windows(tiles, to + uint64(stage_a), x, window, outside, table, uint32(stage))
            commit_copies()
            first = uint32(first + depth)
        stage, free, end = uint32(0), uint32(stages - 1), uint32(limit + ahead)
        while first < end:
            wait_copies(pending)
            cuda.syncthreads()
            at_a = uint64(stage * uint32(stage_size)) + uint64(my_slice * row_a + my_row)
            at_b = uint64(stage * uint32(stage_size)) + uint64(stage_a + my_slice * row_b + my_col)
            read(tiles, at_a, at_b, left, right, uint32(0))
            multiply(sums, left, right, uint32(last))
            to = uint64(free * uint32(stage_size))
            copy_a(tiles, to, weight, from_a, first, limit, rows_left, k)
            copy_windows(tiles, to + uint64(stage_a), x, window, outside, table, free)
            commit_copies()
            steps(tiles, at_a, at_b, sums, left, right, uint32(1))
            first = uint32(first + depth)
            list_pixels(table, stage, first, limit, geometry)
            free = stage
            stage = uint32(stage + uint32(1) if stage < uint32(stages - 1) else 0)
        multiply(sums, left, right, uint32(last))
        if join(tiles, sums):
            of_part = uint64(cuda.blockIdx.y) * uint64(cuda.gridDim.z) * m * n
            place = group, uint32(row + my_row), uint32(col + my_col)
            is_biased = biased != 0 and cuda.blockIdx.y == 0
            store(out, of_part, sums, place, n, m, geometry.positions, tiles, bias, is_biased)

    return implicit


# -- from images to shared memory ------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def find_window(geometry, own, n):
    """Find window ``own`` of ``n``, and which of its pixels lie outside of the image.

    It returns the sample; the number of the first pixel in it, modulo 2**32 where that is outside, too; and a word with
    a bit for each row, and from bit 16 on for each column, of the kernel that lies outside, and the highest bit.
    """
    sample, position = divided(own if own < n else uint32(0), geometry.positions)
    down, right = divided(position, geometry.out_w)
    top = uint32(down * geometry.stride_h.value - geometry.padding_h)
    left = uint32(right * geometry.stride_w.value - geometry.padding_w)
    outside = uint32(OUTSIDE)
    for i in range(geometry.kernel_h):
        if uint32(top + uint32(i) * geometry.dilation_h) >= geometry.height:
            outside = uint32(outside | uint32(1) << uint32(i))
    for i in range(geometry.kernel_w.value):
        if uint32(left + uint32(i) * geometry.dilation_w) >= geometry.width.value:
            outside = uint32(outside | uint32(1) << uint32(COLUMN_BITS + i))
    if own >= n:
        outside = uint32(NOWHERE)
    return sample, uint32(top * geometry.width.value + left), outside


@functools.cache
def make_list_pixels(tile):
    """Make the device function that fills the table for one step, from ``first`` on: a thread for each value of K."""
    depth = tile.depth

    @cuda.jit(device=True, forceinline=True)
    def list_pixels(table, stage, first, limit, geometry):
        tid = uint32(cuda.threadIdx.x)
        if tid < uint32(depth):
            k = uint32(first + tid)
            channel, tap = divided(k, geometry.taps)
            down, right = divided(tap, geometry.kernel_w)
            distance = uint32(channel * geometry.pixels.value + down * geometry.dilation_h * geometry.width.value)
            bits = uint32(1) << down | uint32(1) << uint32(COLUMN_BITS + right)
            at = uint32(stage * uint32(2 * depth) + uint32(2) * tid)
            store2(table, at, uint32(distance + right * geometry.dilation_w), uint32(bits if k < limit else OUTSIDE))

    return list_pixels


@functools.cache
def make_copy_windows(tile):
    """Make the device function that begins the copies of one step's pixels; zeros for what lies outside."""
    columns, depth, threads = tile.columns, tile.depth, tile.threads
    at_once, count = threads // columns, depth * columns // threads

    @cuda.jit(device=True, forceinline=True)
    def copy_windows(tiles, to, x, window, outside, table, stage):
        tid, entries = uint32(cuda.threadIdx.x), cuda.local.array((count, 2), uint32)
        entry = uint32(stage * uint32(2 * depth) + uint32(2) * (tid // uint32(columns)))
        for i in range(count):  # all of them first, as no load may pass a copy
            entries[i, 0], entries[i, 1] = load2(table, uint64(entry) + uint64(2 * i * at_once))
        for i in range(count):
            inside = uint32(outside & entries[i, 1]) == uint32(0)
            copy_async(tiles, to + uint64(tid) + uint64(i * threads), x, uint32(window + entries[i, 0]), inside)

    return copy_windows


# -- from registers to the result ------------------------------------------------------------------


@functools.cache
def make_store(tile, wide):
    """Make the device function that stores a thread's sums: with ``wide`` four windows of one out channel after the
    other, otherwise rows that a warp gathers.
    """
    thread_rows, thread_columns, row_step = tile.thread_rows, tile.thread_columns, 4 * tile.lane_rows
    store_all = make_store_wide(tile) if wide else make_store_rows(tile)

    @cuda.jit(device=True, forceinline=True)
    def add_bias(sums, place, m, bias):
        group, row, _ = place
        for i in range(thread_rows):
            down = uint32(row + uint32(i // 4 * row_step + i % 4))
            value = bias[group * m + down] if down < m else float32(0)
            for j in range(thread_columns):
                sums[i, j] += value

    @cuda.jit(device=True, forceinline=True)
    def store(out, of_part, sums, place, n, m, positions, tiles, bias, biased):
        if biased:
            add_bias(sums, place, m, bias)
        store_all(out, of_part, sums, place, n, m, positions, tiles)

    return store


@cuda.jit(device=True, forceinline=True)
def find_start(of_part, group, own, n, m, positions):
    """Find where the first out channel of a window is stored."""
    sample, position = divided(own if own < n else uint32(0), positions)
    plane = uint64(sample * cuda.gridDim.z + group) * m
    return of_part + plane * positions.value + position


def make_store_wide(tile):
    """Make the device function that stores four windows at a time."""
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    row_step, column_step = 4 * tile.lane_rows, 128 // tile.lane_rows

    @cuda.jit(device=True, forceinline=True)
    def store_wide(out, of_part, sums, place, n, m, positions, tiles):
        group, row, col = place
        for j in range(0, thread_columns, 4):
            own = uint32(col + uint32(j // 4 * column_step))
            start = find_start(of_part, group, own, n, m, positions)
            for i in range(thread_rows):
                down = uint32(row + uint32(i // 4 * row_step + i % 4))
                if own < n and down < m:
                    at = start + uint64(down) * positions.value
                    store4(out, at, sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])

    return store_wide


def make_store_rows(tile):
    """Make the device function by which a warp gathers rows of its sums in shared memory, so that neighbouring lanes
    store neighbours, as `gpukit.matmul.fast.make_store_rows` does for the rows of a matrix.
    """
    thread_rows, thread_columns, lane_rows, slices = tile.thread_rows, tile.thread_columns, tile.lane_rows, tile.slices
    row_step, column_step, lane_columns = 4 * lane_rows, 128 // lane_rows, 32 // lane_rows
    across = lane_columns * thread_columns  # columns of a warp
    lanes, held, pieces = min(across, 32), lane_rows * across, ceil_div(across, 32)
    kept = (slices - 1) * tile.rows * tile.columns  # what `join` reads

    @cuda.jit(device=True, forceinline=True)
    def store_rows(out, of_part, sums, place, n, m, positions, tiles):
        if slices == 1:  # otherwise `join` has waited
            wait_copies(0)
            cuda.syncthreads()
        starts, ends = cuda.local.array(pieces, uint64), cuda.local.array(pieces, uint32)
        group, row, col = place
        warp, lane = uint32(cuda.threadIdx.x) // uint32(32), uint32(cuda.threadIdx.x) % uint32(32)
        down, right = lane // uint32(lane_columns), lane % uint32(lane_columns)
        first = uint32(kept) + warp * uint32(held)
        to = uint32(first + down * uint32(across) + right * uint32(4))
        r, c = lane // uint32(lanes), lane % uint32(lanes)
        row, col = uint32(row - down * uint32(4) + r * uint32(4)), uint32(col - right * uint32(4) + c)
        for p in range(pieces):
            own = uint32(col + uint32(32 * p))
            starts[p] = find_start(of_part, group, own, n, m, positions)
            ends[p] = m if own < n else uint32(0)
        source = uint32(first + r * uint32(across) + c)
        for i in range(thread_rows):
            cuda.syncwarp()
            for j in range(0, thread_columns, 4):
                at = uint64(to + uint32(j // 4 * column_step))
                store4(tiles, at, sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])
            cuda.syncwarp()
            for q in range(0, lane_rows, 32 // lanes):
                own_row = uint32(row + uint32(i // 4 * row_step + i % 4 + 4 * q))
                for p in range(pieces):
                    if own_row < ends[p]:
                        value = tiles[uint64(source + uint32(q * across + 32 * p))]
                        out[starts[p] + uint64(own_row) * positions.value] = value

    return store_rows
