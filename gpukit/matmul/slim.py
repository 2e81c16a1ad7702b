"""A product with a K of a few: the result is large beside what it takes to compute it, and is written row by row."""

import functools

from gpukit.backend import cuda, uint32, uint64

__all__ = ["COLUMNS", "MAX_K", "ROWS", "THREADS", "slim"]

#: The largest K; rows and columns of a block, and its threads: a warp for eight rows, a lane for every 32nd column.
MAX_K, ROWS, COLUMNS, THREADS = 16, 64, 128, 256
#: A warp stores whole rows, which begin anywhere; the tiles of the large products store four elements to a thread, one
#: by one where rows are not aligned.
WARP_ROWS, WARP_COLUMNS = 8, 4
#: Rows of shared memory are longer by one, so that a column of them lies in different banks.
PITCH_A, PITCH_B = ROWS + 1, COLUMNS + 1


@functools.cache
def slim(number, layout, adds):
    """Make the kernel of out = alpha a b + beta out for a K of at most ``MAX_K``, with the arguments of `fast`.

    Blocks along x compute the tiles of ``out``, row by row, those along z the matrices. Without ``adds`` beta is
    ignored, and ``out`` is not read.
    """
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    copy_a, copy_b = make_copy(along_a, ROWS), make_copy(along_b, COLUMNS)

    @cuda.jit
    def slim(a, b, out, sizes, which, matrix_steps, alpha, beta):
        left, right = cuda.shared.array((MAX_K, PITCH_A), number), cuda.shared.array((MAX_K, PITCH_B), number)
        sums = cuda.local.array((WARP_ROWS, WARP_COLUMNS), number)
        held = cuda.local.array(WARP_COLUMNS, number)
        m, n, k, pitch_a, pitch_b, pitch_out = sizes
        block, across = uint32(cuda.blockIdx.x), uint32(uint32(n + uint32(COLUMNS - 1)) // uint32(COLUMNS))
        row, col = uint32(block // across * ROWS), uint32(block % across * COLUMNS)
        z = uint32(which[0] + uint32(cuda.blockIdx.z))
        from_a = uint64(uint32(uint32(z // which[1]) % which[2])) * matrix_steps[0]
        from_b = uint64(uint32(uint32(z // which[3]) % which[4])) * matrix_steps[1]
        copy_a(left, a, from_a, row, uint32(m - row), k, pitch_a)
        copy_b(right, b, from_b, col, uint32(n - col), k, pitch_b)
        cuda.syncthreads()
        tid = uint32(cuda.threadIdx.x)
        my_row, my_col = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(32)
        for i in range(WARP_ROWS):
            for j in range(WARP_COLUMNS):
                sums[i, j] = number(0)
        at = uint32(0)
        while at < k:
            for j in range(WARP_COLUMNS):
                held[j] = right[at, my_col + uint32(32 * j)]
            for i in range(WARP_ROWS):
                value = left[at, my_row + uint32(i)]
                for j in range(WARP_COLUMNS):
                    sums[i, j] += value * held[j]
            at = uint32(at + uint32(1))
        for i in range(WARP_ROWS):
            down = uint32(row + my_row + uint32(i))
            start = (uint64(z) * m + down) * pitch_out
            for j in range(WARP_COLUMNS):
                place = uint32(col + my_col + uint32(32 * j))
                if down < m and place < n:
                    value = alpha * sums[i, j]
                    out[start + place] = value + beta * out[start + place] if adds else value

    return slim


@functools.cache
def make_copy(along, extent):
    """Make the device function that copies a part of a matrix, as it lies in memory, to rows of shared memory for each
    k; zeros for what lies outside.
    """

    @cuda.jit(device=True, forceinline=True)
    def copy(tile, matrix, start, first, left, k, pitch):
        i = uint32(cuda.threadIdx.x)
        while i < uint32(k * uint32(extent)):
            place, at = (i // k, i % k) if along else (i % uint32(extent), i // uint32(extent))
            if along:
                source = start + uint64(uint32(first + place)) * pitch + at
            else:
                source = start + uint64(at) * pitch + uint32(first + place)
            tile[at, place] = matrix[source] if place < left else tile.dtype.type(0)
            i = uint32(i + uint32(THREADS))

    return copy
