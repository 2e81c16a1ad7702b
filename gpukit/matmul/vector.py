"""A matrix by a vector, at the speed of memory: every element of the matrix is read once.

`along` is for a matrix whose neighbours in memory are added up, `across` for one whose neighbours belong to different
results. Blocks along y take parts of K. The last block to finish adds their sums up, always in the same order.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, uint32, uint64
from gpukit.intrinsics import load2, load4
from warpstep.integers import ceil_div

__all__ = ["THREADS", "Shape", "across", "along", "choose_vector"]

#: Threads of a block, and of them those that stand side by side along the rows of a matrix in `across`.
THREADS, LANES = 256, 32
GROUPS = THREADS // LANES
#: Rows that a thread of `across`, and pieces that one of `along`, reads before it uses the first.
UNROLL = 4
ROUND = UNROLL * GROUPS
#: Blocks that a multiprocessor has registers for: with fewer registers the compiler puts loads after each other again.
RESIDENT = 4
#: Blocks that a multiprocessor should have, and the least elements of K in a part.
BLOCKS, MIN_ACROSS, MIN_ALONG = 3, 128, 2048
#: Up to this K a warp of `along` has a row of its own; up to the second one if there are rows enough. For longer ones a
#: block has it.
MAX_WARP_K, MAX_LONG_K = 2048, 8192


class Shape(NamedTuple):
    """How a product by a vector is divided.

    Attributes
    ----------
    kernel_is_along : bool
    lanes : int
        Threads for one row, of `along`.
    columns : int
        Results of a block.
    parts : int
        Of K.
    """

    kernel_is_along: bool
    lanes: int
    columns: int
    parts: int


def choose_vector(count: int, k: int, batch: int, is_along: bool, width: int, multiprocessors: int) -> Shape:
    """Divide a product of ``count`` results of ``k`` terms each; the matrix is read ``width`` elements at a time."""
    enough = count * batch >= multiprocessors * BLOCKS * GROUPS
    lanes = LANES if k <= (MAX_LONG_K if enough else MAX_WARP_K) else THREADS
    columns = THREADS // lanes if is_along else LANES * width
    blocks = ceil_div(count, columns) * batch
    most = max(1, k // (MIN_ALONG if is_along else MIN_ACROSS))
    return Shape(is_along, lanes, columns, min(most, max(1, multiprocessors * BLOCKS // blocks)))


@functools.cache
def make_load(width):
    """Make the device function that reads 1, 2 or 4 neighbours, as a tuple of that many."""
    if width == 4:
        return load4
    if width == 2:
        return load2

    @cuda.jit(device=True, forceinline=True)
    def load(array, at):
        return (array[at],)

    return load


@functools.cache
def make_finish(dtype, adds):
    """Make the device function that stores a block's result, or adds up all parts of it in the last block."""

    @cuda.jit(device=True, forceinline=True)
    def finish(mine, at, count, total, out, partials, counters, alpha, beta):
        """``mine``: whether this thread has a result, number ``at`` of ``count``; all threads of the block call it."""
        parts, part = uint32(cuda.gridDim.y), uint32(cuda.blockIdx.y)
        z = uint64(cuda.blockIdx.z)
        if parts > 1:
            last = cuda.shared.array(1, uint32)
            if mine:
                partials[(z * parts + part) * count + at] = total
            cuda.threadfence()
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                counter = uint64(z * uint64(cuda.gridDim.x) + uint64(cuda.blockIdx.x))
                last[0] = cuda.atomic.inc(counters, counter, uint32(parts - uint32(1)))
            cuda.syncthreads()
            if last[0] != parts - uint32(1):
                return
            cuda.threadfence()
            if mine:
                total = dtype(0)
                for other in range(parts):
                    total += partials[(z * parts + uint64(other)) * count + at]
        if mine:
            to = z * count + at
            out[to] = alpha * total + beta * out[to] if adds else alpha * total

    return finish


@functools.cache
def along(dtype, lanes, width, adds):
    """Make the kernel of out[r] = alpha sum of matrix[r, k] vector[k] + beta out[r], for rows that follow K in memory.

    ``lanes`` threads, 32 or 256, read a row, ``width`` elements at a time: 4, 2, or 1 where the rows do not begin at
    multiples of 16 bytes or the vector has gaps. Call ``kernel[(blocks, parts, matrices), 256](matrix, vector, out,
    partials, counters, sizes, which, steps, alpha, beta)`` with sizes (count, k, elements from row to row, from element
    to element of the vector), which (first matrix; div, mod of the matrix, of the vector) and steps from matrix to
    matrix, from vector to vector.
    """
    load, finish, rows = make_load(width), make_finish(dtype, adds), THREADS // lanes
    chunk, warps = lanes * width, lanes // 32
    halves = 16, 8, 4, 2, 1

    @cuda.jit(device=True, forceinline=True)
    def dot(values, factors):
        total = values[0] * factors[0]
        if width > 1:
            total += values[1] * factors[1]
        if width > 2:
            total += values[2] * factors[2] + values[3] * factors[3]
        return total

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def along(matrix, vector, out, partials, counters, sizes, which, steps, alpha, beta):
        count, k, pitch, inc = sizes
        tid, z = uint32(cuda.threadIdx.x), uint32(which[0] + uint32(cuda.blockIdx.z))
        lane, row = tid % uint32(lanes), uint32(cuda.blockIdx.x) * uint32(rows) + tid // uint32(lanes)
        parts = uint32(cuda.gridDim.y)
        share = uint32((k + parts * uint32(chunk) - uint32(1)) // (parts * uint32(chunk)) * uint32(chunk))
        first = uint32(cuda.blockIdx.y) * share
        limit = min(k, first + share)
        total = dtype(0)
        if row < count:
            at = uint64(z // which[1] % which[2]) * steps[0] + uint64(row) * pitch
            of = uint64(z // which[3] % which[4]) * steps[1]
            i = uint64(first + lane * uint32(width))
            # Four loads of the matrix are under way before the first value is used.
            while i + uint64((UNROLL - 1) * chunk) < limit:
                a = load(matrix, at + i)
                b = load(matrix, at + i + uint64(chunk))
                c = load(matrix, at + i + uint64(2 * chunk))
                d = load(matrix, at + i + uint64(3 * chunk))
                total += dot(a, load(vector, of + i * inc))
                total += dot(b, load(vector, of + (i + uint64(chunk)) * inc))
                total += dot(c, load(vector, of + (i + uint64(2 * chunk)) * inc))
                total += dot(d, load(vector, of + (i + uint64(3 * chunk)) * inc))
                i += uint64(UNROLL * chunk)
            while i < limit:
                total += dot(load(matrix, at + i), load(vector, of + i * inc))
                i += uint64(chunk)
        for half in halves:
            total += cuda.shfl_down_sync(0xFFFFFFFF, total, half)
        if warps > 1:
            sums = cuda.shared.array(warps, dtype)
            if tid % 32 == 0:
                sums[tid // 32] = total
            cuda.syncthreads()
            if tid == 0:
                for other in range(1, warps):
                    total += sums[other]
        finish(lane == 0 and row < count, uint64(row), uint64(count), total, out, partials, counters, alpha, beta)

    return along


@functools.cache
def across(dtype, width, adds):
    """Make the kernel of out[c] = alpha sum of matrix[k, c] vector[k] + beta out[c], for rows that follow c in memory.

    A warp reads a row, a thread ``width`` neighbours of it; the eight warps of a block take every eighth row. Launched
    as `along`; ``width`` is not 1 where the rows begin at multiples of 16 bytes.
    """
    load, finish, columns = make_load(width), make_finish(dtype, adds), LANES * width

    @cuda.jit(device=True, forceinline=True)
    def add(sums, values, factor):
        for j in range(width):
            sums[j] += values[j] * factor

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def across(matrix, vector, out, partials, counters, sizes, which, steps, alpha, beta):
        shared = cuda.shared.array((GROUPS, columns), dtype)
        sums = cuda.local.array(width, dtype)
        count, k, pitch, inc = sizes
        tid, z = uint32(cuda.threadIdx.x), uint32(which[0] + uint32(cuda.blockIdx.z))
        group, lane = tid // uint32(LANES), tid % uint32(LANES)
        col = uint32(cuda.blockIdx.x) * uint32(columns) + lane * uint32(width)
        parts = uint32(cuda.gridDim.y)
        # Whole rounds of the loop below, except for the last part.
        share = uint32((k + parts * uint32(ROUND) - uint32(1)) // (parts * uint32(ROUND)) * uint32(ROUND))
        first = uint32(cuda.blockIdx.y) * share
        limit = min(k, first + share)
        for j in range(width):
            sums[j] = dtype(0)
        if col < count:
            at = uint64(z // which[1] % which[2]) * steps[0] + uint64(col)
            of = uint64(z // which[3] % which[4]) * steps[1]
            i = uint64(first + group)
            while i + uint64((UNROLL - 1) * GROUPS) < limit:
                a = load(matrix, at + i * pitch)
                b = load(matrix, at + (i + uint64(GROUPS)) * pitch)
                c = load(matrix, at + (i + uint64(2 * GROUPS)) * pitch)
                d = load(matrix, at + (i + uint64(3 * GROUPS)) * pitch)
                add(sums, a, vector[of + i * inc])
                add(sums, b, vector[of + (i + uint64(GROUPS)) * inc])
                add(sums, c, vector[of + (i + uint64(2 * GROUPS)) * inc])
                add(sums, d, vector[of + (i + uint64(3 * GROUPS)) * inc])
                i += uint64(UNROLL * GROUPS)
            while i < limit:
                add(sums, load(matrix, at + i * pitch), vector[of + i * inc])
                i += uint64(GROUPS)
        for j in range(width):
            shared[group, lane * uint32(width) + uint32(j)] = sums[j]
        cuda.syncthreads()
        at, total = uint32(cuda.blockIdx.x) * uint32(columns) + tid, dtype(0)
        mine = tid < columns and at < count
        if mine:
            for other in range(GROUPS):
                total += shared[other, tid]
        finish(mine, uint64(at), uint64(count), total, out, partials, counters, alpha, beta)

    return across
