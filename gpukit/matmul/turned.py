"""Products of float32 operands that lie across K, on the tensor cores of compute capability 9.0.

Tensor cores read tiles of 4 bytes that lie along K only. The left factor of an instruction may come from registers
instead, and a thread can read these in any way. So the operand that lies across K is the left factor, and if that is
``b``, the kernel of ``warpgroups`` computes the transpose: b^T a^T.

Shared memory bandwidth is the limit. A group multiplies 64 rows by up to 256: with 128 by 128, as many sums, it reads
twice as much of the left factor, and a product of 4096 takes 10 % longer.
"""

import functools

from gpukit.backend import cuda, float32, uint32, uint64
from gpukit.intrinsics import (
    load2,
    mbarrier_arrive,
    mbarrier_wait,
    store2,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)

__all__ = ["make_following", "make_turned_multiply", "make_turned_store"]

#: K of a step, and of an instruction; elements of a row of 128 bytes.
DEPTH, SMALL = 32, 8
PIECES = DEPTH // SMALL


@functools.cache
def make_following(stages):
    """Make the device function that goes on in the ring: the barriers' parity changes with every round."""

    @cuda.jit(device=True, forceinline=True)
    def following(stage, parity):
        if stage == uint32(stages - 1):
            return uint32(0), parity ^ uint32(1)
        return uint32(stage + uint32(1)), parity

    return following


@functools.cache
def make_turned_multiply(tile, layout):
    """Make the device function by which a group multiplies all steps of a tile, 64 rows of the left factor: it returns
    the sums, and the stage and the parity that follow.
    """
    swapped = layout == "NN"
    extent, right = (tile.columns, tile.rows) if swapped else (tile.rows, tile.columns)
    parts, count, following = extent // DEPTH, right // 2, make_following(tile.stages)
    read, even, odd = make_read(parts, 0), make_step(tile, parts, 0), make_step(tile, parts, 1)

    @cuda.jit(device=True, forceinline=True)
    def multiply(tiles_a, tiles_b, full, free, stage, parity, steps):
        left, right = (tiles_b, tiles_a) if swapped else (tiles_a, tiles_b)
        held = cuda.local.array((2, PIECES, 4), float32)
        sums, before, step = zeros(count, float32), stage, uint32(0)
        mbarrier_wait(full, stage, parity)
        read(left, held, stage)
        while step < steps:
            sums = even(sums, held, left, right, full, free, stage, parity, before, step, steps)
            before, (stage, parity) = stage, following(stage, parity)
            step = uint32(step + uint32(1))
            if step < steps:
                sums = odd(sums, held, left, right, full, free, stage, parity, before, step, steps)
                before, (stage, parity) = stage, following(stage, parity)
                step = uint32(step + uint32(1))
        sums = wgmma_wait(0, sums)
        release(free, before)
        return sums, stage, parity

    return multiply


@cuda.jit(device=True, forceinline=True)
def release(free, stage):
    """Arrive at the barrier of a stage that this warp has read."""
    cuda.syncwarp()
    if uint32(cuda.threadIdx.x) % uint32(32) == 0:
        mbarrier_arrive(free, stage)


@functools.cache
def make_step(tile, parts, which):
    """Make the device function that begins to multiply one of two sets of registers, and reads the next step to the
    other one while the tensor cores work; the step before, which reads that one, has to be done by then.
    """
    read_next, following = make_read(parts, 1 - which), make_following(tile.stages)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(sums, held, left, right, full, free, stage, parity, before, step, steps):
        wgmma_fence()
        for i in range(PIECES):
            at, more = (stage, uint32(0), uint32(i * SMALL)), step > 0 or i > 0
            four = held[which, i, 0], held[which, i, 1], held[which, i, 2], held[which, i, 3]
            sums = wgmma(sums, four, None, right, at, False, False, more)
        wgmma_commit()
        sums = wgmma_wait(1, sums)
        if step > 0:
            release(free, before)
        if step + uint32(1) < steps:
            stage, parity = following(stage, parity)
            mbarrier_wait(full, stage, parity)
            read_next(left, held, stage)
        return sums

    return multiply_step


@cuda.jit(device=True, forceinline=True)
def chunk_of(tid):
    """The 16 bytes of 128 that hold what a lane multiplies, chosen so that half a warp reads from different banks."""
    lane, odd = tid % uint32(32), tid // uint32(32) % uint32(2)
    return uint32(odd * uint32(2) + lane // uint32(16) + lane // uint32(8) % uint32(2) * uint32(4))


@cuda.jit(device=True, forceinline=True)
def half_of(tid):
    """The first of a lane's two elements in its 16 bytes."""
    return uint32(tid // uint32(4) % uint32(2) * uint32(2))


@functools.cache
def make_read(parts, which):
    """Make the device function by which a lane reads what it holds of the left factor for a step: for each instruction,
    two neighbours for one K, then for another.
    """

    @cuda.jit(device=True, forceinline=True)
    def read(left, held, stage):
        tid = uint32(cuda.threadIdx.x)
        # Two warps have a part of 32 elements.
        part, t, half = stage * uint32(parts) + tid // uint32(64), tid % uint32(4), half_of(tid)
        near, far = chunk_of(tid) ^ t, chunk_of(tid) ^ (t + uint32(4))
        for i in range(PIECES):
            k = uint32(i * SMALL) + t
            held[which, i, 0], held[which, i, 1] = load2(left, (part, k, near * uint32(4) + half))
            held[which, i, 2], held[which, i, 3] = load2(left, (part, k + uint32(4), far * uint32(4) + half))

    return read


@functools.cache
def make_turned_store(tile, layout, wide):
    """Make the device function that stores the sums of a lane: two neighbouring rows of the left factor, which are
    columns of the result if that is ``b``, by two columns of every eight of the right one.
    """
    swapped = layout == "NN"

    @cuda.jit(device=True, forceinline=True)
    def store_pair(out, matrix, row, col, m, n, x, y):
        if row < m and col < n:
            at = (matrix + row) * n + col
            if wide:
                store2(out, at, x, y)
            else:
                out[at] = x
                if col + uint32(1) < n:
                    out[at + uint64(1)] = y

    @cuda.jit(device=True, forceinline=True)
    def store_eight(out, sums, matrix, row, col, m, n):
        first, second = ((sums[0], sums[2]), (sums[1], sums[3])) if swapped else (sums[:2], sums[2:])
        store_pair(out, matrix, row, col, m, n, first[0], first[1])
        store_pair(out, matrix, uint32(row + uint32(1)), col, m, n, second[0], second[1])

    store_each = make_each(store_eight, tile.rows if swapped else tile.columns, swapped)

    @cuda.jit(device=True, forceinline=True)
    def store(out, factors, memory, sums, start, row, col, m, n):
        tid = uint32(cuda.threadIdx.x)
        left = tid // uint32(64) * uint32(DEPTH) + chunk_of(tid) * uint32(4) + half_of(tid)
        right = tid % uint32(4) * uint32(2)
        down, across = (right, left) if swapped else (left, right)
        store_each(out, sums, start, uint32(row + down), uint32(col + across), m, n)

    return store


@functools.cache
def make_each(store_eight, right, swapped):
    """Make the device function that stores eight columns of the right factor after the other."""
    if right == 8:
        return store_eight
    half = right // 16 * 8
    count, down, across = half // 2, half * swapped, half * (not swapped)
    store_first = make_each(store_eight, half, swapped)
    store_second = make_each(store_eight, right - half, swapped)

    @cuda.jit(device=True, forceinline=True)
    def store(out, sums, matrix, row, col, m, n):
        store_first(out, sums[:count], matrix, row, col, m, n)
        row, col = uint32(row + uint32(down)), uint32(col + uint32(across))
        store_second(out, sums[count:], matrix, row, col, m, n)

    return store
