"""Split-K in one launch: the blocks of a cluster take slices of K, and add up their sums."""

import functools

from gpukit.backend import cuda, uint32, uint64
from gpukit.intrinsics import load4, store4
from warpstep.limits import GROUP, WARP

__all__ = ["make_exchange", "make_owns", "make_slice"]


def make_slice(slices):
    """Make the device function that finds the steps of a slice, of those from ``step`` to ``last``."""

    @cuda.jit(device=True, forceinline=True)
    def slice_of(step, last, slice_):
        if slices > 1:
            share = uint32(last - step + uint32(slices - 1)) // uint32(slices)
            step = uint32(step + slice_ * share)
            last = uint32(min(last, step + share))
        return step, last

    return slice_of


def make_owns(tile):
    """Make the device function that tells whether a warp adds up the sums of all slices, and stores them. The warps
    with the same number in the other blocks leave theirs to it.
    """
    slices, warps = tile.slices, GROUP // WARP * tile.groups

    @cuda.jit(device=True, forceinline=True)
    def owns(slice_):
        return slices == 1 or uint32(cuda.threadIdx.x) // uint32(WARP) * uint32(slices) // uint32(warps) == slice_

    return owns


def make_exchange(tile, total, count):
    """Make two device functions: by the first a warp leaves its sums unless it owns them, by the second the one that
    does adds those of the other slices, always in the same order.

    ``partials`` has ``tile.rows * tile.columns`` elements for each block.
    """
    threads, slices, owns = GROUP * tile.groups, tile.slices, make_owns(tile)
    put, add = make_put(count, 4 * threads), make_add(count, 4 * threads, total)

    @cuda.jit(device=True, forceinline=True)
    def leave(sums, partials, slice_):
        if not owns(slice_):
            at = uint64(cuda.blockIdx.x) * uint64(count * threads) + uint64(cuda.threadIdx.x) * uint64(4)
            put(partials, at, sums)

    @cuda.jit(device=True, forceinline=True)
    def add_up(sums, partials, slice_):
        first, other = uint32(uint32(cuda.blockIdx.x) - slice_), slice_
        for _ in range(slices - 1):
            other = uint32(other + uint32(1)) if other < uint32(slices - 1) else uint32(0)
            at = uint64(first + other) * uint64(count * threads) + uint64(cuda.threadIdx.x) * uint64(4)
            sums = add(partials, at, sums)
        return sums

    return leave, add_up


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
