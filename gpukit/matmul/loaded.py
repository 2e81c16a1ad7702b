"""The product on the tensor cores of compute capability 9.0 of operands of 2 bytes whose rows begin anywhere.

Tensor maps need rows that begin at multiples of 16 bytes. Here a group of four warps copies in their place, to the same
ring of stages as in `gpukit.matmul.warpgroups`: by asynchronous copies of 4, 8 or 16 bytes where all rows allow that,
otherwise through registers, where neighbouring words are shifted into one another.
"""

import functools

from gpukit.backend import cuda, int32, uint8, uint32, uint64
from gpukit.intrinsics import (
    byte_perm,
    cluster_sync,
    commit_copies,
    copy_async,
    copy_async2,
    copy_async4,
    fence_async,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    store4,
    view_at,
    wait_copies,
)
from gpukit.matmul.formats import FORMATS, ROW
from gpukit.matmul.joined import make_slice
from gpukit.matmul.raster import place, starts_of
from gpukit.matmul.small import keep
from gpukit.matmul.turned import make_following
from gpukit.matmul.warpgroups import GroupTile, make_compute, make_multiply, make_store, shapes
from warpstep.limits import GROUP

__all__ = ["LOADS", "LoadedTile", "loaded"]

#: Elements that a thread copies at a time: 16, 8 or 4 bytes, or eight elements by way of registers.
LOADS = 8, 4, 2, 1
#: Elements, and words, of a row of 128 bytes; words of a chunk of 16 bytes, and those that its elements lie in.
DEPTH, WORDS, CHUNK, HELD = ROW // 2, ROW // 4, 4, 5
#: Rows that four warps copy at a time, by 16 bytes a thread.
AT_ONCE = 16


class LoadedTile(GroupTile):
    """A `GroupTile` whose stages are filled by threads, without clusters that share ``b``."""

    __slots__ = ()

    @property
    def lag(self) -> int:
        """Stages whose copies are under way while the thread begins those of the next."""
        return self.stages // 2


@functools.cache
def loaded(tile, name, layout, is_total, wide, scales=False, widths=(1, 1)):
    """Make the kernel of out = a b, for matrices in a batch, whose rows, or columns, begin anywhere.

    Parameters
    ----------
    tile : LoadedTile
    name : "float16" or "bfloat16"
    layout, is_total, wide, scales
        As of `gpukit.matmul.warpgroups.warpgroups`.
    widths : (int, int)
        Of ``LOADS``, for ``a`` and ``b``: rows in memory begin and end at multiples of so many elements.

    Returns
    -------
    kernel
        ``kernel[blocks, tile.threads, stream, tile.shared_bytes](a, b, words_a, words_b, out, sizes, order,
        matrix_steps, factors, partials)``. ``a`` and ``b`` are flat, of uint16, and ``words_a`` and ``words_b`` their
        aligned words. ``sizes`` is (m, n, k, elements from row to row of ``a`` and ``b``, elements before the first
        word of each); ``matrix_steps`` are as of `starts_of`, the others as for
        `gpukit.matmul.warpgroups.warpgroups`.
    """
    rows, columns, groups, stages, _, _, slices, _ = tile
    element, total, _, _, _ = form = FORMATS[name]
    shape_a, shape_b = shapes(tile, form, layout)
    multiply, store = make_multiply(tile, form, layout), make_store(tile, form, is_total, wide, scales, columns)
    b_at, full_at = stages * rows * ROW, stages * tile.stage_bytes
    free_at = full_at + 8 * stages
    along_a, along_b = layout[0] == "N", layout[1] == "T"
    fetch_a, put_a = make_load(rows, along_a, widths[0])
    extent_b = columns if along_b else tile.held_columns
    fetch_b, put_b = make_load(extent_b, along_b, widths[1])
    words_of_a, words_of_b = rows * WORDS, tile.held_columns * WORDS
    held_a, held_b = (
        extent // AT_ONCE * HELD if width == 1 else 1 for extent, width in ((rows, widths[0]), (extent_b, widths[1]))
    )
    slice_of, compute = make_slice(slices), make_compute(tile, total, is_total, multiply, store)
    following = make_following(stages)
    lag = tile.lag if max(widths) > 1 else 0
    drain = make_drain(lag - 1, following)

    @cuda.jit(launch_bounds=(tile.threads, tile.resident))
    def loaded(a, b, words_a, words_b, out, sizes, order, matrix_steps, factors, partials):
        memory = cuda.shared.array(0, uint8, alignment=1024)
        tiles_a, tiles_b = view_at(memory, 0, shape_a, element), view_at(memory, b_at, shape_b, element)
        full, free = view_at(memory, full_at, stages, uint64), view_at(memory, free_at, stages, uint64)
        tid = uint32(cuda.threadIdx.x)
        if tid == 0:
            for stage in range(stages):
                mbarrier_init(full, stage, 4)
                mbarrier_init(free, stage, 4 * groups)
        m, n, k, pitch_a, pitch_b, head_a, head_b = sizes
        number, stage = uint32(cuda.blockIdx.x) // uint32(slices), uint32(0)
        slice_ = uint32(cuda.blockIdx.x) % uint32(slices)
        cuda.syncthreads()
        if tid >= groups * GROUP:
            into_a = view_at(memory, 0, stages * words_of_a, uint32)
            into_b = view_at(memory, b_at, stages * words_of_b, uint32)
            left, right = cuda.local.array(held_a, uint32), cuda.local.array(held_b, uint32)
            parity, pending, late = uint32(1), uint32(0), uint32(0)
            while number < order.tiles:
                z, _, row, col, step, last = place(number, order)
                step, last = slice_of(step, last, slice_)
                row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
                start_a, start_b = starts_of(z, order, matrix_steps)
                while step < last:
                    first = uint32(step * uint32(DEPTH))
                    if lag > 0:
                        mbarrier_wait(free, stage, parity)
                    to_a, to_b = stage * uint32(words_of_a), stage * uint32(words_of_b)
                    whole_a = fetch_a(left, into_a, to_a, a, words_a, start_a, row, first, m, k, pitch_a, head_a)
                    whole_b = fetch_b(right, into_b, to_b, b, words_b, start_b, col, first, n, k, pitch_b, head_b)
                    if lag == 0:
                        mbarrier_wait(free, stage, parity)
                    put_a(whole_a, left, into_a, to_a, a, words_a, start_a, row, first, m, k, pitch_a, head_a)
                    put_b(whole_b, right, into_b, to_b, b, words_b, start_b, col, first, n, k, pitch_b, head_b)
                    pending = uint32(pending + uint32(1))
                    if lag > 0:
                        commit_copies()
                        wait_copies(lag)
                    if pending > uint32(lag):
                        hand_over(full, late)
                        late, _ = following(late, uint32(0))
                        pending = uint32(lag)
                    stage, parity = following(stage, parity)
                    step = uint32(step + uint32(1))
                number = uint32(number + uint32(cuda.gridDim.x))
            drain(full, late, pending)
            if slices > 1:
                cluster_sync()
        else:
            compute(tiles_a, tiles_b, full, free, memory, out, (m, n), number, slice_, order, factors, partials)

    return loaded


@cuda.jit(device=True, forceinline=True)
def hand_over(full, stage):
    """Arrive at the barrier of a stage in which this warp's copies have landed."""
    fence_async()
    cuda.syncwarp()
    if uint32(cuda.threadIdx.x) % uint32(32) == 0:
        mbarrier_arrive(full, stage)


@functools.cache
def make_drain(most, following):
    """Make the device function that hands over up to ``most`` + 1 pending stages, the oldest first, as they arrive."""
    if most < 0:

        @cuda.jit(device=True, forceinline=True)
        def nothing(full, late, pending):
            pass

        return nothing
    rest = make_drain(most - 1, following)

    @cuda.jit(device=True, forceinline=True)
    def drain(full, late, pending):
        wait_copies(most)
        if pending > uint32(most):
            hand_over(full, late)
            late, _ = following(late, uint32(0))
            pending = uint32(most)
        rest(full, late, pending)

    return drain


def make_load(extent, along, width):
    """Make two device functions: by the first a thread begins its copies of a part of a matrix, by the second it ends
    them. In shared memory chunk c of row r is at place c ^ r % 8; what lies across K is in parts of 64 columns.
    """
    return (make_begin(extent, along, width), end_copies) if width > 1 else make_shifted(extent, along)


@cuda.jit(device=True, forceinline=True)
def end_copies(whole, held, into, to, elements, words, start, corner, first, size, k, pitch, head):
    pass


@functools.cache
def make_begin(extent, along, width):
    """Make the device function that begins asynchronous copies, each of ``width`` elements."""
    copy = {2: copy_async, 4: copy_async2, 8: copy_async4}[width]
    lanes = DEPTH // width
    at_once = GROUP // lanes
    count, turns = extent // AT_ONCE, AT_ONCE // at_once
    across = not along

    @cuda.jit(device=True, forceinline=True)
    def begin(held, into, to, elements, words, start, corner, first, size, k, pitch, head):
        thread = uint32(cuda.threadIdx.x) % uint32(GROUP)
        r, c = thread // uint32(lanes), thread % uint32(lanes) * uint32(width)
        row, col = (corner + r, first + c) if along else (first + r, corner + c)
        most_row, most_col = (size, k) if along else (k, size)
        at = uint32(r * uint32(WORDS) + (c // uint32(8) ^ r % uint32(8)) * uint32(CHUNK) + c % uint32(8) // uint32(2))
        half = pitch >> uint32(1)
        source = (start >> uint64(1)) + uint64(row) * uint64(half) + uint64(col >> uint32(1))
        for i in range(count):
            down, right = (AT_ONCE * i % DEPTH, AT_ONCE * i // DEPTH * DEPTH) if across else (AT_ONCE * i, 0)
            for j in range(turns):
                inside = (uint32(row + uint32(down + at_once * j)) < most_row) & (
                    uint32(col + uint32(right)) < most_col
                )
                # Where the next rows are four further down, their chunks change places by four.
                place_ = at ^ uint32(4 * CHUNK) if at_once == 4 and j % 2 else at
                place_ = uint32(to + place_ + uint32((AT_ONCE * i + at_once * j) * WORDS))
                from_ = source + uint64(half) * uint64(down + at_once * j) + uint64(right // 2)
                copy(into, place_, words, from_, inside)
        return True

    return begin


@functools.cache
def make_shifted(extent, along):
    """Make the device functions by which a thread loads the words of its chunks, and stores them as they lie in shared
    memory.
    """
    count, across = extent // AT_ONCE, not along

    @cuda.jit(device=True, forceinline=True)
    def first_of(corner, first, size, k):
        """The row and the column of a thread's first chunk, and their limits."""
        thread = uint32(cuda.threadIdx.x) % uint32(GROUP)
        r, c = thread // uint32(8), thread % uint32(8) * uint32(8)
        if along:
            return corner + r, first + c, size, k
        return first + r, corner + c, k, size

    @cuda.jit(device=True, forceinline=True)
    def chunk_of(row, col, most_row, most_col, start, pitch, i):
        """Where a chunk begins, and how many of its elements are no zeros. One without any begins where others do."""
        down, right = (AT_ONCE * i % DEPTH, AT_ONCE * i // DEPTH * DEPTH) if across else (AT_ONCE * i, 0)
        row, col = uint32(row + uint32(down)), uint32(col + uint32(right))
        left = int32(most_col) - int32(col) if row < most_row else int32(0)
        row, col = min(row, uint32(most_row - uint32(1))), col if col < most_col else uint32(0)
        return start + uint64(row) * uint64(pitch) + uint64(col), left

    @cuda.jit(device=True, forceinline=True)
    def fetch(held, into, to, elements, words, start, corner, first, size, k, pitch, head):
        row, col, most_row, most_col = first_of(corner, first, size, k)
        whole = True
        for i in range(count):
            at, _ = chunk_of(row, col, most_row, most_col, start, pitch, i)
            whole &= ((at - uint64(head)) >> uint64(1)) + uint64(HELD) <= uint64(words.size)
        if whole:
            for i in range(count):
                at, _ = chunk_of(row, col, most_row, most_col, start, pitch, i)
                at = (at - uint64(head)) >> uint64(1)
                for j in range(HELD):
                    held[HELD * i + j] = words[at + uint64(j)]
        return whole

    @cuda.jit(device=True, forceinline=True)
    def place_of(to):
        thread = uint32(cuda.threadIdx.x) % uint32(GROUP)
        r, c = thread // uint32(8), thread % uint32(8)
        return uint32(to + r * uint32(WORDS) + (c ^ r % uint32(8)) * uint32(CHUNK))

    @cuda.jit(device=True, forceinline=True)
    def put(whole, held, into, to, elements, words, start, corner, first, size, k, pitch, head):
        row, col, most_row, most_col = first_of(corner, first, size, k)
        place_, five = place_of(to), cuda.local.array(HELD, uint32)
        if whole:
            for i in range(count):
                at, left = chunk_of(row, col, most_row, most_col, start, pitch, i)
                for j in range(HELD):
                    five[j] = held[HELD * i + j]
                shift_in(into, place_ + uint32(AT_ONCE * i * WORDS), five, at - uint64(head), left)
        else:
            i = uint32(0)
            while i < uint32(count):
                at, left = chunk_of(row, col, most_row, most_col, start, pitch, i)
                word = (at - uint64(head)) >> uint64(1)
                for j in range(HELD):
                    five[j] = word_at(elements, words, word + uint64(j), head)
                shift_in(into, place_ + i * uint32(AT_ONCE * WORDS), five, at - uint64(head), left)
                i = uint32(i + uint32(1))

    return fetch, put


@cuda.jit(device=True, forceinline=True)
def shift_in(into, at, five, first, left):
    """Store eight elements of five words, from the first or the second one on; zeros for those not ``left``."""
    pick = uint32(0x5432) if first & uint64(1) else uint32(0x3210)
    u, v = byte_perm(five[0], five[1], pick), byte_perm(five[1], five[2], pick)
    w, x = byte_perm(five[2], five[3], pick), byte_perm(five[3], five[4], pick)
    if left < 8:
        u, v, w, x = keep(u, left), keep(v, left - 2), keep(w, left - 4), keep(x, left - 6)
    store4(into, at, u, v, w, x)


@cuda.jit(device=True, forceinline=True)
def word_at(elements, words, at, head):
    """Load a word of two elements, of which some may lie outside of the array; zeros for those."""
    if at < uint64(words.size):
        return words[at]
    first = (at << uint64(1)) + uint64(head)  # one before the array wraps to a huge number, and the next to 0
    low = uint32(elements[first]) if first < uint64(elements.size) else uint32(0)
    high = uint32(elements[first + uint64(1)]) if first + uint64(1) < uint64(elements.size) else uint32(0)
    return uint32(low | high << uint32(16))
