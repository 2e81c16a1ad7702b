"""Split-K in one launch: of the blocks that share a tile, the last one to finish adds up the sums of all."""

import functools

from gpukit.backend import cuda, uint32, uint64
from gpukit.intrinsics import load4, named_barrier, store4, view_at, zeros
from warpstep.limits import GROUP

__all__ = ["WORD", "make_join"]

#: Bytes of shared memory that it needs.
WORD = 16


def make_join(tile, total, count, word_at):
    """Make the device function by which the groups of a block store the sums of a part of K. It returns whether the
    block is the last one of the tile, and the sums of all parts for that, added in the order of the parts.

    ``partials`` has ``tile.rows * tile.columns`` elements for each number of a tile, ``counters`` one for each tile.
    """
    threads = GROUP * tile.groups
    put, add = make_put(count, 4 * threads), make_add(count, 4 * threads, total)

    @cuda.jit(device=True, forceinline=True)
    def join(sums, partials, counters, memory, number, z, part, order):
        tid, area, parts = uint32(cuda.threadIdx.x), order.area.value, order.parts.value
        word, step = view_at(memory, word_at, 1, uint32), uint64(count * threads)
        put(partials, uint64(number) * step + uint64(tid) * uint64(4), sums)
        cuda.threadfence()
        named_barrier(uint32(1), uint32(threads))
        first = uint32(number - part * area)
        if tid == 0:
            tile_number = uint32(first - z * (parts - uint32(1)) * area)
            word[0] = cuda.atomic.inc(counters, tile_number, uint32(parts - uint32(1)))
        named_barrier(uint32(1), uint32(threads))
        is_last = word[0] == parts - uint32(1)
        if is_last:
            cuda.threadfence()
            sums, at = zeros(count, total), uint64(first) * step + uint64(tid) * uint64(4)
            for _ in range(parts):
                sums, at = add(partials, at, sums), at + uint64(area) * step
        return is_last, sums

    return join


@functools.cache
def make_put(count, step):
    """Make the device function that stores a lane's sums, four at a time, so many elements apart."""
    if count == 4:

        @cuda.jit(device=True, forceinline=True)
        def put_four(partials, at, sums):
            store4(partials, at, sums[0], sums[1], sums[2], sums[3])

        return put_four
    half = count // 8 * 4
    put_first, put_second = make_put(half, step), make_put(count - half, step)

    @cuda.jit(device=True, forceinline=True)
    def put(partials, at, sums):
        put_first(partials, at, sums[:half])
        put_second(partials, at + uint64(half // 4 * step), sums[half:])

    return put


@functools.cache
def make_add(count, step, total):
    """Make the device function that adds what `make_put` has stored."""
    if count == 4:

        @cuda.jit(device=True, forceinline=True)
        def add_four(partials, at, sums):
            a, b, c, d = load4(partials, at)
            return total(sums[0] + a), total(sums[1] + b), total(sums[2] + c), total(sums[3] + d)

        return add_four
    half = count // 8 * 4
    add_first, add_second = make_add(half, step, total), make_add(count - half, step, total)

    @cuda.jit(device=True, forceinline=True)
    def add(partials, at, sums):
        return add_first(partials, at, sums[:half]) + add_second(partials, at + uint64(half // 4 * step), sums[half:])

    return add
