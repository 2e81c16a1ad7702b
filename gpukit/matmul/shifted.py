"""A matrix of many rows by a vector, both along K, on tensor cores: elements of 2 bytes, in rows that begin anywhere.

Lanes load the 16 bytes that begin at multiples of 16, whatever elements of a row these are: the first and the last of
them may belong to other rows. An instruction multiplies 16 rows by eight columns, and one vector is just one of these.
The eight have the same vector, each one element further on. One of them fits each row.
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, int32, int64, types, uint32, uint64
from gpukit.intrinsics import load4, mma, store4
from gpukit.intrinsics.bfloat16 import bfloat16_of
from gpukit.matmul.operands import starts_of
from gpukit.matmul.vector import make_number
from warpstep.integers import ceil_div
from warpstep.limits import WARP

__all__ = ["Shifts", "choose_shifts", "shifted", "takes_shifted"]

#: Elements of 16 bytes; rows of an instruction; K of a step, in which four lanes load 16 bytes of a row.
CHUNK, ROWS, DEPTH = 8, 16, 32
#: Steps that are loaded together if there are more than a few; warps of a block, and blocks that a multiprocessor has
#: registers for.
TOGETHER, FEW, WARPS, RESIDENT = 2, 3, 8, 5
#: The K that it is for, and the fewest rows of all matrices: 8192 rows of 205 elements take 0.8 us longer on an H200.
#: K is at most so many times the rows of a matrix.
MIN_K, MAX_K, MIN_ROWS, MAX_SHARE = 16, 640, 10 << 10, 4
#: The most groups of rows of a warp, and the blocks of a multiprocessor with which a warp has more than one.
MAX_GROUPS, MANY_BLOCKS = 8, 12


class Shifts(NamedTuple):
    """How a product by a vector is divided.

    Attributes
    ----------
    warps, blocks : int
        Of a block, and for each matrix.
    turns, together : int
        Steps of K, and how many of them are loaded together.
    shared_bytes : int
        Of a block.
    """

    warps: int
    blocks: int
    turns: int
    together: int
    shared_bytes: int


def takes_shifted(count: int, k: int, batch: int) -> bool:
    """Whether matrices of ``count`` rows along K are multiplied faster here than by lanes that share a row: each block
    first stores the vector eight times.
    """
    return MIN_K <= k <= min(MAX_K, MAX_SHARE * count) and count >= ROWS and count * batch >= MIN_ROWS


def choose_shifts(count: int, k: int, batch: int, wide: bool, multiprocessors: int) -> Shifts:
    """Divide a product of ``count`` rows; ``wide``: they begin and end at multiples of 16 bytes."""
    groups = ceil_div(count, ROWS)
    warps = min(WARPS, groups)
    most = max(1, groups * batch // (warps * multiprocessors * MANY_BLOCKS))
    blocks = ceil_div(groups, warps * min(most, MAX_GROUPS))
    turns = ceil_div(k + (0 if wide else CHUNK - 1), DEPTH)
    together = turns if turns <= FEW else TOGETHER
    turns = ceil_div(turns, together) * together
    return Shifts(warps, blocks, turns, together, turns * (4 if wide else WARP) * 16)


@functools.cache
def shifted(name, wide, adds, together):
    """Make the kernel of out[r] = alpha sum of matrix[r, k] vector[k] + beta out[r], for rows that follow K in memory.

    Call ``kernel[(blocks, 1, matrices), 32 * warps, stream, shared_bytes](matrix, words, bits, vector, out, sizes,
    which, steps, alpha, beta)`` for `Shifts`. ``words`` has the chunks of the matrix that begin at multiples of 16
    bytes, as uint32, and ``bits`` the vector, as uint16. ``sizes`` is (count, k, elements from row to row, from element
    to element of the vector, elements of the matrix before ``words``, turns); the rest is as of
    `gpukit.matmul.vector.along`, and arrays of bfloat16 are of uint16.
    ``name`` is "float16" or "bfloat16"; ``wide``: all rows begin and end at multiples of 16 bytes; ``together``: steps
    that are loaded at a time.
    """
    halves, float16, rounds = name == "float16", types.float16, name == "bfloat16"
    element = types.uint16 if rounds else float16
    number, columns = make_number(element), 4 if wide else WARP

    @cuda.jit(launch_bounds=(WARPS * WARP, RESIDENT - (together == FEW)))
    def shifted(matrix, words, bits, vector, out, sizes, which, steps, alpha, beta):
        factors = cuda.shared.array(0, uint32, alignment=16)
        sums, left = cuda.local.array(4, types.float32), cuda.local.array((together, 2, 4), uint32)
        count, k, pitch, inc, head, turns = sizes
        tid, z = uint32(cuda.threadIdx.x), uint32(which[0] + uint32(cuda.blockIdx.z))
        start, of = starts_of(z, which, steps)
        stage(factors, bits, of, inc, k, turns)
        cuda.syncthreads()
        lane, warps = tid % uint32(WARP), uint32(cuda.blockDim.x) // uint32(WARP)
        g, t = lane // uint32(4), lane % uint32(4)
        row = uint32(uint32(cuda.blockIdx.x) * warps + tid // uint32(WARP)) * uint32(ROWS) + g
        while row - g < count:
            first, second = start + uint64(row) * pitch, start + uint64(row + uint32(8)) * pitch
            shift, low, high, half = place(words, first, head, k, row < count)
            shift2, low2, high2, half2 = place(words, second, head, k, uint32(row + uint32(8)) < count)
            for e in range(4):
                sums[e] = types.float32(0)
            turn = uint32(0)
            while turn < turns:
                for i in range(together):
                    c = uint32(uint32(4) * (turn + uint32(i)) + t)
                    load(left, i, 0, words, half, c, low, high)
                    load(left, i, 1, words, half2, c, low2, high2)
                for i in range(together):
                    if not wide:
                        c = int32(uint32(8) * (uint32(4) * (turn + uint32(i)) + t))
                        trim(left, i, 0, c - int32(shift), int32(k))
                        trim(left, i, 1, c - int32(shift2), int32(k))
                    at = uint32(turn + uint32(i)) * uint32(columns) + (t if wide else lane)
                    u, v, w, x = load4(factors, uint32(4) * at)
                    four = sums[0], sums[1], sums[2], sums[3]
                    from_a = left[i, 0, 0], left[i, 1, 0], left[i, 0, 1], left[i, 1, 1]
                    four = mma(from_a, (u, v), four, float16) if halves else mma(from_a, (u, v), four)
                    from_a = left[i, 0, 2], left[i, 1, 2], left[i, 0, 3], left[i, 1, 3]
                    four = mma(from_a, (w, x), four, float16) if halves else mma(from_a, (w, x), four)
                    sums[0], sums[1], sums[2], sums[3] = four
                turn = uint32(turn + uint32(together))
            to = uint64(cuda.blockIdx.z) * count + row
            if row < count and t == shift // uint32(2):
                total = sums[1] if shift % uint32(2) else sums[0]
                finish(matrix, words, vector, out, first, of, inc, head, k, to, total, alpha, beta)
            if uint32(row + uint32(8)) < count and t == shift2 // uint32(2):
                total = sums[3] if shift2 % uint32(2) else sums[2]
                finish(matrix, words, vector, out, second, of, inc, head, k, to + uint64(8), total, alpha, beta)
            row = uint32(row + uint32(cuda.gridDim.x) * warps * uint32(ROWS))

    @cuda.jit(device=True, forceinline=True)
    def stage(factors, bits, of, inc, k, turns):
        """Store the vector as the lanes of a warp need it, for each step of K."""
        entry = uint32(cuda.threadIdx.x)
        found = cuda.local.array(8, uint32)
        while entry < turns * uint32(columns):
            lane = entry % uint32(columns)
            t, ahead = lane % uint32(4), lane // uint32(4)
            i = uint32(entry // uint32(columns) * uint32(DEPTH) + t * uint32(CHUNK) - ahead)
            for e in range(CHUNK):
                place = uint32(i + uint32(e))
                found[e] = uint32(0)
                if place < k:
                    found[e] = uint32(bits[of + uint64(place) * inc])
            u, v = found[0] | found[1] << uint32(16), found[2] | found[3] << uint32(16)
            w, x = found[4] | found[5] << uint32(16), found[6] | found[7] << uint32(16)
            store4(factors, uint32(4) * entry, u, v, w, x)
            entry = uint32(entry + uint32(cuda.blockDim.x))

    @cuda.jit(device=True, forceinline=True)
    def place(words, first, head, k, inside):
        """For a row: elements of its first chunk before it, its first and last chunks that can be loaded whole, and the
        word in which its first chunk begins.
        """
        at = uint64(first - uint64(head))
        shift = uint32(0) if wide else uint32(at) & uint32(CHUNK - 1)
        at -= uint64(shift)
        high = uint32((k + shift + uint32(CHUNK - 1)) // uint32(CHUNK)) if inside else uint32(0)
        low = uint32(0)
        if not wide:
            low = uint32(1) if int64(at) < int64(0) else uint32(0)
            left = (int64(words.size) - (int64(at) >> int64(1))) >> int64(2)
            high = uint32(max(int64(0), min(int64(high), left)))
        return shift, low, high, uint64(int64(at) >> int64(1))

    @cuda.jit(device=True, forceinline=True)
    def load(left, i, j, words, half, c, low, high):
        for e in range(4):
            left[i, j, e] = uint32(0)
        if (c >= low) & (c < high):
            left[i, j, 0], left[i, j, 1], left[i, j, 2], left[i, j, 3] = load4(
                words, half + uint64(uint32(4) * c), True
            )

    @cuda.jit(device=True, forceinline=True)
    def trim(left, i, j, at, k):
        """Replace elements of other rows, before 0 or from ``k`` on, by zeros."""
        if (at < 0) | (at + CHUNK > k):
            for e in range(4):
                mask = uint32(0xFFFF) if uint32(at + 2 * e) < uint32(k) else uint32(0)
                mask |= uint32(0xFFFF0000) if uint32(at + 2 * e + 1) < uint32(k) else uint32(0)
                left[i, j, e] &= mask

    @cuda.jit(device=True, forceinline=True)
    def finish(matrix, words, vector, out, first, of, inc, head, k, to, total, alpha, beta):
        """Add what lies in no whole chunk of the array, and store a result."""
        if not wide:
            end = uint64(head) + uint64(2) * uint64(words.size)
            if (first < uint64(head)) | (first + uint64(k) > end):
                # Zeros were in place of these: times an infinity of the vector they are NaN.
                lost = total != total
                total = types.float32(0) if lost else total
                for i in range(k):
                    at = first + uint64(i)
                    if lost | (at < uint64(head)) | (at >= end):
                        total += number(matrix[at]) * number(vector[of + uint64(i) * inc])
        total = alpha * total + beta * number(out[to]) if adds else alpha * total
        out[to] = bfloat16_of(total) if rounds else element(total)

    return shifted
