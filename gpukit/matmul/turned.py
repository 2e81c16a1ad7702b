"""The product of float32 on the tensor cores of compute capability 9.0, for an operand that lies across K.

Tensor cores read tiles of 4 bytes that lie along K only. The left factor of an instruction may come from registers
instead, and a thread can read these in any way. So the operand that lies across K is the left factor, and if that is
``b``, the kernel computes the transpose: b^T a^T. Apart from that it works as `gpukit.matmul.warpgroups.warpgroups`.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float32, uint8, uint32, uint64
from gpukit.intrinsics import (
    copy_tensor,
    decrease_registers,
    fence_barrier_init,
    fence_tensor_map,
    increase_registers,
    load4,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    store2,
    store4,
    view_at,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)
from gpukit.matmul.formats import ROW
from gpukit.matmul.warpgroups import make_count, make_following, make_place
from warpstep.limits import GROUP

__all__ = ["TurnedTile", "turned", "turned_boxes"]

#: K of a step, and of an instruction; elements of a row of 128 bytes.
DEPTH, SMALL = 32, 8
PIECES = DEPTH // SMALL
#: Of the left factor, what a group of warps multiplies, in two instructions: each warp a row of 128 bytes.
LEFT = 128


class TurnedTile(NamedTuple):
    """The shape of a block's work.

    Attributes
    ----------
    groups : int
        Warp groups that multiply, 128 rows of the left factor each.
    right : int
        Columns of the right factor: 64 or 128.
    stages : int
        Steps for which there is shared memory.
    swapped : bool
        Whether the left factor is ``b``: then its rows are columns of the result.
    resident : int
        Blocks that a multiprocessor runs at a time.
    """

    groups: int
    right: int
    stages: int
    swapped: bool
    resident: int = 1

    @property
    def rows(self) -> int:
        """Rows of the result that a block computes."""
        return self.right if self.swapped else LEFT * self.groups

    @property
    def columns(self) -> int:
        """Columns of the result that a block computes."""
        return LEFT * self.groups if self.swapped else self.right

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * (self.groups + 1)

    @property
    def depth(self) -> int:
        """Bytes of K of a step."""
        return ROW

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return (LEFT * self.groups + self.right) * ROW

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return self.stages * (self.stage_bytes + 16)


def turned_boxes(tile: TurnedTile) -> tuple[tuple, tuple]:
    """The boxes of the tensor maps of the left and the right factor: (matrices, rows, columns) in memory."""
    return (1, DEPTH, DEPTH), (1, tile.right, DEPTH)


@functools.cache
def turned(tile, wide):
    """Make the kernel of out = a b, with the arguments of `gpukit.matmul.warpgroups.warpgroups` but for the factors.

    ``kernel[blocks, tile.threads, stream, tile.shared_bytes](map_left, map_right, out, sizes, which)``: ``which`` has
    the left factor's div and mod first. ``out`` is flat, of float32; ``wide`` says whether its rows begin at multiples
    of 16 bytes.
    """
    groups, right, stages, swapped, _ = tile
    parts = LEFT * groups // DEPTH
    left_shape, right_shape = (stages * parts * DEPTH, DEPTH), (stages, right, DEPTH)
    right_at = stages * parts * DEPTH * ROW
    stage_bytes, count = tile.stage_bytes, right // 2
    full_at = stages * stage_bytes
    free_at = full_at + 8 * stages
    place, count_tiles, following = make_place(tile, DEPTH), make_count(tile), make_following(stages)
    read, store = make_read(parts), make_store(right, swapped, wide)
    gives = tile.threads == 3 * GROUP and right == 128

    @cuda.jit(device=True, forceinline=True)
    def copy_step(left, right_tiles, full, stage, map_left, map_right, left_row, right_row, k, z_left, z_right):
        mbarrier_expect(full, stage, stage_bytes)
        for part in range(parts):
            corner = (z_left, k, left_row + uint32(part * DEPTH))
            copy_tensor(
                left, ((stage * uint32(parts) + uint32(part)) * uint32(DEPTH), 0), map_left, corner, full, stage
            )
        copy_tensor(right_tiles, (stage, 0, 0), map_right, (z_right, right_row, k), full, stage)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(first, second, held, right_tiles, stage, add):
        """Begin to multiply a stage, as one group of products."""
        wgmma_fence()
        for i in range(PIECES):
            at, more = (stage, uint32(0), uint32(i * SMALL)), add or i > 0
            upper = held[i, 0], held[i, 1], held[i, 4], held[i, 5]
            first = wgmma(first, upper, None, right_tiles, at, False, False, more)
            lower = held[i, 2], held[i, 3], held[i, 6], held[i, 7]
            second = wgmma(second, lower, None, right_tiles, at, False, False, more)
        wgmma_commit()
        return first, second

    @cuda.jit(launch_bounds=(tile.threads, tile.resident))
    def turned(map_left, map_right, out, sizes, which):
        memory = cuda.shared.array(0, uint8, alignment=1024)
        left, right_tiles = view_at(memory, 0, left_shape, float32), view_at(memory, right_at, right_shape, float32)
        full, free = view_at(memory, full_at, stages, uint64), view_at(memory, free_at, stages, uint64)
        tid = uint32(cuda.threadIdx.x)
        group = tid // uint32(GROUP)
        if tid == 0:
            for stage in range(stages):
                mbarrier_init(full, stage, 1)
                mbarrier_init(free, stage, 4 * groups)  # by each warp
            fence_barrier_init()
        cuda.syncthreads()
        tiles = count_tiles(sizes)
        stage = uint32(0)
        number = uint32(cuda.blockIdx.x)
        if group == groups:
            if gives:
                decrease_registers(40)
            if tid % uint32(GROUP) == 0:
                fence_tensor_map(map_left)
                fence_tensor_map(map_right)
                parity = uint32(1)
                while number < tiles:
                    z, _, row, col, step, last = place(number, sizes)
                    at_left, at_right = (col, row) if swapped else (row, col)
                    z_left, z_right = uint32(z // which[0] % which[1]), uint32(z // which[2] % which[3])
                    while step < last:
                        mbarrier_wait(free, stage, parity)
                        k = uint32(step * uint32(DEPTH))
                        copy_step(
                            left, right_tiles, full, stage, map_left, map_right, at_left, at_right, k, z_left, z_right
                        )
                        stage, parity = following(stage, parity)
                        step = uint32(step + uint32(1))
                    number = uint32(number + uint32(cuda.gridDim.x))
        else:
            if gives:
                increase_registers(232)
            held = cuda.local.array((PIECES, 8), float32)
            parity = uint32(0)
            while number < tiles:
                z, part, row, col, start, last = place(number, sizes)
                first, second = zeros(count, float32), zeros(count, float32)
                step = start
                while step < last:
                    mbarrier_wait(full, stage, parity)
                    read(left, held, stage)
                    first, second = multiply_step(first, second, held, right_tiles, stage, step > start)
                    # The registers that the products read are needed for the next step. Meanwhile the other group's
                    # products keep the tensor cores busy.
                    first, second = wgmma_wait(0, first), wgmma_wait(0, second)
                    cuda.syncwarp()  # all lanes have read
                    if tid % uint32(32) == 0:
                        mbarrier_arrive(free, stage)
                    stage, parity = following(stage, parity)
                    step = uint32(step + uint32(1))
                matrix = uint64(z * sizes[3] + part) * uint64(sizes[0])
                store(out, first, second, matrix, row, col, sizes[0], sizes[1])
                number = uint32(number + uint32(cuda.gridDim.x))

    return turned


@cuda.jit(device=True, forceinline=True)
def chunk_of(lane):
    """The four neighbours of its warp's row of 32 that a lane multiplies, so that eight lanes read different banks."""
    g = lane // uint32(4)
    return g // uint32(2) + g % uint32(2) * uint32(4)


@functools.cache
def make_read(parts):
    """Make the device function by which a lane reads what it holds of the left factor for a step: for each instruction,
    four neighbours for one K, then for another.
    """

    @cuda.jit(device=True, forceinline=True)
    def read(left, held, stage):
        tid = uint32(cuda.threadIdx.x)
        lane, t = tid % uint32(32), tid % uint32(4)
        # Warps of all groups in turn: a part of 32 elements each.
        base = (stage * uint32(parts) + tid // uint32(32)) * uint32(DEPTH)
        near, far = (chunk_of(lane) ^ t) * uint32(4), (chunk_of(lane) ^ (t + uint32(4))) * uint32(4)
        for i in range(PIECES):
            row = base + uint32(i * SMALL) + t
            held[i, 0], held[i, 1], held[i, 2], held[i, 3] = load4(left, (row, near))
            held[i, 4], held[i, 5], held[i, 6], held[i, 7] = load4(left, (row + uint32(4), far))

    return read


@functools.cache
def make_store(right, swapped, wide):
    """Make the device function that stores the sums of a lane: four neighbouring rows of the left factor, which are
    columns of the result if that is ``swapped``, by two columns of every eight of the right one.
    """

    @cuda.jit(device=True, forceinline=True)
    def store_across(out, first, second, matrix, row, col, m, n):
        tid = uint32(cuda.threadIdx.x)
        r = row + tid % uint32(4) * uint32(2)
        c = col + tid // uint32(32) * uint32(DEPTH) + chunk_of(tid % uint32(32)) * uint32(4)
        for e in range(2):
            at = (matrix + r + uint32(e)) * n + c
            four = (first[0], first[2], second[0], second[2]) if e == 0 else (first[1], first[3], second[1], second[3])
            if wide:
                if r + uint32(e) < m and c < n:
                    store4(out, at, four[0], four[1], four[2], four[3])
            elif r + uint32(e) < m:
                for i in range(4):
                    if c + uint32(i) < n:
                        out[at + uint64(i)] = four[i]

    @cuda.jit(device=True, forceinline=True)
    def store_down(out, first, second, matrix, row, col, m, n):
        tid = uint32(cuda.threadIdx.x)
        r = row + tid // uint32(32) * uint32(DEPTH) + chunk_of(tid % uint32(32)) * uint32(4)
        c = col + tid % uint32(4) * uint32(2)
        both = first + second
        for i in range(4):
            if r + uint32(i) < m and c < n:
                at = (matrix + r + uint32(i)) * n + c
                if wide:
                    store2(out, at, both[2 * i], both[2 * i + 1])
                else:
                    out[at] = both[2 * i]
                    if c + uint32(1) < n:
                        out[at + uint64(1)] = both[2 * i + 1]

    return make_each(store_across if swapped else store_down, right, swapped)


@functools.cache
def make_each(store_eight, right, swapped):
    """Make the device function that stores eight columns of the right factor after the other."""
    if right == 8:
        return store_eight
    half, count = right // 2, right // 4
    store_half, down, across = make_each(store_eight, half, swapped), half * swapped, half * (not swapped)

    @cuda.jit(device=True, forceinline=True)
    def store(out, first, second, matrix, row, col, m, n):
        store_half(out, first[:count], second[:count], matrix, row, col, m, n)
        row, col = row + uint32(down), col + uint32(across)
        store_half(out, first[count:], second[count:], matrix, row, col, m, n)

    return store
