"""Implicit GEMM on the tensor cores of compute capability 9.0.

It is `gpukit.matmul.warpgroups` with another second operand: for each tap of the kernel, the pixels that it meets in
the windows, with 128 bytes of channels each. The images and the weights are first written with their channels last.
One thread then copies the pixels of up to 256 windows at a time: TMA finds the windows, and pads the image with zeros.
Where few windows overlap, these are written as rows first: the kernel takes each as a pixel with K channels.

A float32 is split into two numbers of TF32, of 11 bits each, whose sum is within 2**-22 of it. Three products of TF32
replace one of float32: the upper parts by each other, and each by the other's remainder. Tensor cores truncate sums,
and over a long K these errors would build up: they accumulate one step only, and the sums of the steps are added in
float32, which rounds.
"""

import functools
from typing import Any, NamedTuple

from gpukit.backend import cuda, float32, int32, types, uint8, uint32, uint64
from gpukit.conv.halves import nothing
from gpukit.conv.windows import divided
from gpukit.intrinsics import (
    copy_tensor,
    copy_windows,
    decrease_registers,
    fence_barrier_init,
    fence_tensor_map,
    increase_registers,
    load2,
    load4,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    store2,
    store4,
    store_fragment,
    view_at,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)
from gpukit.intrinsics.bfloat16 import element_of, value_of
from gpukit.matmul.raster import place
from gpukit.matmul.rows import WARP_ROWS, make_rows, rows_bytes, rows_columns
from gpukit.matmul.turned import make_following
from gpukit.matmul.warpgroups import GROUP_ROWS
from warpstep.limits import GROUP

__all__ = ["FORMS", "Form", "boxes", "shared_bytes", "warpgroups"]


class Form(NamedTuple):
    """How an operand's elements are held.

    Attributes
    ----------
    element : Numba type
    depth, small : int
        Channels of a step, and of an instruction.
    pieces : int
        1, or 2 if an element is split into two of TF32: a row has all upper parts first, then all remainders.
    unit : int
        Rows are padded to a multiple of so many channels: whole sectors, and whole steps if elements are split.
    """

    element: Any
    depth: int
    small: int
    pieces: int
    unit: int

    @property
    def row(self) -> int:
        """Bytes of a step's channels: a row of a tile in shared memory."""
        return self.depth * self.element.bitwidth // 8

    def halved(self) -> "Form":
        """The form whose steps have half as many channels."""
        return self._replace(depth=self.depth // 2, unit=self.unit // 2)


#: By the name of a dtype; uint16 holds bfloat16. Rows that are not whole sectors are slower: 64 x 200 x 14 x 14 takes
#: 42 us as it is, and 33 padded to 224 channels.
FORMS = {
    "float16": Form(types.float16, 64, 16, 1, 32),
    "uint16": Form(types.uint16, 64, 16, 1, 32),
    "float32": Form(float32, 32, 8, 2, 32),
}


def boxes(tile, form: Form, swapped: bool) -> tuple[tuple, tuple]:
    """The boxes of the maps of the weights (out channels, taps, channels) and of the images (windows, channels)."""
    outs, windows = (tile.columns, tile.rows) if swapped else (tile.rows, tile.columns)
    return (outs, 1, form.depth), (windows, form.depth)


def _pipeline_bytes(tile, form):
    """Bytes of all stages and their barriers."""
    return tile.stages * (form.pieces * (tile.rows + tile.columns) * form.row + 16)


def shared_bytes(tile, form: Form) -> int:
    """Bytes of dynamic shared memory of a block."""
    return _pipeline_bytes(tile, form) + rows_bytes(4 * tile.groups)


@functools.cache
def warpgroups(tile, form, parts, width, swapped=False):
    """Make the kernel of a convolution whose operands have their channels last.

    Parameters
    ----------
    tile : gpukit.matmul.warpgroups.GroupTile
    form : Form
    parts : bool
        Whether the sums are stored in float32, for `sum_parts` to add up.
    width : int
        Elements of ``out`` stored at a time, up to 16 bytes: 8, 4, 2 or 1, a divisor of OH OW. If it is more than 1,
        ``out`` is an array of uint32. 0 if OH OW is 1: neighbours in ``out`` are then out channels, not windows.
    swapped : bool
        Whether the rows of tiles are windows, and their columns out channels: there may be any multiple of 8 of these.
        OH OW is more than 1.

    Returns
    -------
    kernel
        ``kernel[blocks, tile.threads, stream, shared_bytes(...)](weights, images, bias, out, geometry, sizes, order,
        chunks)``. ``weights`` and ``images`` are maps with the boxes of `boxes`. ``sizes`` is (M, N OH OW, groups, N,
        channels of a piece of a row, whether there is a bias to add), ``order`` the `gpukit.matmul.raster.Order` of the
        tiles, and ``chunks`` the Divisor of C / groups in steps: there are as many for each tap.
    """
    rows, columns, groups, stages, *_ = tile
    element, depth, _, pieces, _ = form
    shape_a, shape_b = (stages * pieces, rows, depth), (stages * pieces, columns, depth)
    stage_bytes = pieces * (rows + columns) * form.row
    b_at, full_at = stages * pieces * rows * form.row, stages * stage_bytes
    free_at, rows_at = full_at + 8 * stages, _pipeline_bytes(tile, form)
    following, multiply = make_following(stages), make_multiply(columns, form)
    first_sums = make_swapped_sums(columns) if swapped else make_first_sums(columns)
    store = (make_swapped_store if swapped else make_store)(tile, float32 if parts else element, width, rows_at, 0)
    # Three groups have 168 registers a thread, the most there are. Those with 128 sums a thread can use more.
    gives, pending = tile.threads == 3 * GROUP and pieces * columns >= 256, pieces == 1

    @cuda.jit(launch_bounds=(tile.threads, tile.resident))
    def warpgroups(weights, images, bias, out, geometry, sizes, order, chunks):
        memory = cuda.shared.array(0, uint8, alignment=1024)
        tiles_a, tiles_b = view_at(memory, 0, shape_a, element), view_at(memory, b_at, shape_b, element)
        full, free = view_at(memory, full_at, stages, uint64), view_at(memory, free_at, stages, uint64)
        tid = uint32(cuda.threadIdx.x)
        m, n, matrices, samples, padded, biased = sizes
        if tid == groups * GROUP:  # the thread that copies
            fence_tensor_map(weights)
            fence_tensor_map(images)
            for stage in range(stages):
                mbarrier_init(full, stage, 1)
                mbarrier_init(free, stage, 4 * groups)
            fence_barrier_init()
        number, stage = uint32(cuda.blockIdx.x), uint32(0)
        cuda.syncthreads()
        if tid >= groups * GROUP:
            if gives:
                decrease_registers(40)
            if tid == groups * GROUP:
                parity = uint32(1)
                while number < order.tiles:
                    z, part, row, col, step, last = place(number, order)
                    row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
                    own_out, window = (col, row) if swapped else (row, col)
                    image, top, left = find_corner(geometry, window)
                    while step < last:
                        mbarrier_wait(free, stage, parity)
                        mbarrier_expect(full, stage, stage_bytes)
                        tap, chunk = divided(step, chunks)
                        down, right = divided(tap, geometry.kernel_w)
                        pixel = down * geometry.dilation_h, right * geometry.dilation_w
                        for piece in range(pieces):
                            to = stage * uint32(pieces) + uint32(piece), 0, 0
                            channel = uint32(chunk * depth + uint32(piece) * padded)
                            outs, first = (z * m + own_out, tap, channel), (z * samples + image, top, left, channel)
                            if swapped:
                                copy_windows(tiles_a, to, images, first, pixel, full, stage)
                                copy_tensor(tiles_b, to, weights, outs, full, stage)
                            else:
                                copy_tensor(tiles_a, to, weights, outs, full, stage)
                                copy_windows(tiles_b, to, images, first, pixel, full, stage)
                        stage, parity = following(stage, parity)
                        step = uint32(step + uint32(1))
                    number = uint32(number + uint32(cuda.gridDim.x))
        else:
            if gives:
                increase_registers(232)
            parity, before, group, leads = uint32(0), uint32(0), tid // uint32(GROUP), tid % uint32(32) == 0
            while number < order.tiles:
                z, part, row, col, step, last = place(number, order)
                row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
                my_row, first = uint32(row + tid // uint32(32) * uint32(WARP_ROWS)), step
                sums = first_sums(bias, z * m, col if swapped else my_row, m, biased != 0 and part == 0)
                while step < last:
                    mbarrier_wait(full, stage, parity)
                    sums = multiply(sums, tiles_a, tiles_b, stage, group)
                    if leads and (step > first or not pending):
                        mbarrier_arrive(free, before if pending else stage)
                    before = stage
                    stage, parity = following(stage, parity)
                    step = uint32(step + uint32(1))
                if pending:
                    sums = wgmma_wait(0, sums)
                    if leads:
                        mbarrier_arrive(free, before)
                of_part = uint64(part) * uint64(matrices) * m * n
                store(out, memory, sums, of_part, (z, matrices, my_row, col, m, n), geometry.positions)
                number = uint32(number + uint32(cuda.gridDim.x))

    return warpgroups


@cuda.jit(device=True, forceinline=True)
def find_corner(geometry, own):
    """The image of window ``own``, and the row and column there at which it begins."""
    sample, position = divided(own, geometry.positions)
    down, right = divided(position, geometry.out_w)
    top = int32(down * geometry.stride_h.value - geometry.padding_h)
    return sample, top, int32(right * geometry.stride_w.value - geometry.padding_w)


@functools.cache
def make_multiply(columns, form):
    """Make the device function by which a warp group multiplies a stage."""
    _, depth, small, pieces, _ = form
    count, instructions = columns // 2, depth // small
    add = make_add(count)

    @cuda.jit(device=True, forceinline=True)
    def multiply_pieces(sums, tiles_a, tiles_b, stage_a, stage_b, group, add):
        for i in range(instructions):
            k, more = uint32(i * small), add or i > 0
            at_a, at_b = (stage_a, group * uint32(GROUP_ROWS), k), (stage_b, uint32(0), k)
            sums = wgmma(sums, tiles_a, at_a, tiles_b, at_b, False, False, more)
        return sums

    @cuda.jit(device=True, forceinline=True)
    def multiply_whole(sums, tiles_a, tiles_b, stage, group):
        wgmma_fence()
        sums = multiply_pieces(sums, tiles_a, tiles_b, stage, stage, group, True)
        wgmma_commit()
        # One group of products stays pending, so that the tensor cores never wait for this thread.
        return wgmma_wait(1, sums)

    @cuda.jit(device=True, forceinline=True)
    def multiply_split(sums, tiles_a, tiles_b, stage, group):
        upper = stage * uint32(2)
        rest, step = upper + uint32(1), zeros(count, float32)
        wgmma_fence()
        # The small products first: while the sum is small, so is what is truncated.
        step = multiply_pieces(step, tiles_a, tiles_b, rest, upper, group, False)
        step = multiply_pieces(step, tiles_a, tiles_b, upper, rest, group, True)
        step = multiply_pieces(step, tiles_a, tiles_b, upper, upper, group, True)
        wgmma_commit()
        return add(sums, wgmma_wait(0, step))

    return multiply_whole if pieces == 1 else multiply_split


@functools.cache
def make_add(count):
    """Make the device function that adds the numbers of two tuples."""
    if count == 1:
        return cuda.jit(device=True, forceinline=True)(lambda a, b: (a[0] + b[0],))
    half = count // 2
    first, rest = make_add(half), make_add(count - half)
    return cuda.jit(device=True, forceinline=True)(lambda a, b: first(a[:half], b[:half]) + rest(a[half:], b[half:]))


@functools.cache
def make_first_sums(columns):
    """Make the device function that gives what a lane's sums begin with: the bias of its rows, or zero."""
    repeat = make_repeat(columns // 8)

    @cuda.jit(device=True, forceinline=True)
    def first_sums(bias, first, row, m, biased):
        own = uint32(row + uint32(cuda.threadIdx.x) % uint32(32) // uint32(4))
        below = uint32(own + uint32(8))
        a = float32(value_of(bias[first + own])) if biased and own < m else float32(0)
        b = float32(value_of(bias[first + below])) if biased and below < m else float32(0)
        return repeat((a, a, b, b))

    return first_sums


@functools.cache
def make_swapped_sums(columns):
    """Make the device function that gives what a lane's sums begin with if out channels are columns."""
    if columns > 8:  # by halves: the compiler could hardly follow as many functions that each call the next one
        half = columns // 16 * 8
        first_half, second_half = make_swapped_sums(half), make_swapped_sums(columns - half)

        @cuda.jit(device=True, forceinline=True)
        def both_sums(bias, first, col, m, biased):
            beside = uint32(col + uint32(half))
            return first_half(bias, first, col, m, biased) + second_half(bias, first, beside, m, biased)

        return both_sums

    @cuda.jit(device=True, forceinline=True)
    def swapped_sums(bias, first, col, m, biased):
        own = uint32(col + uint32(cuda.threadIdx.x) % uint32(4) * uint32(2))
        beside = uint32(own + uint32(1))
        a = float32(value_of(bias[first + own])) if biased and own < m else float32(0)
        b = float32(value_of(bias[first + beside])) if biased and beside < m else float32(0)
        return a, b, a, b

    return swapped_sums


@functools.cache
def make_repeat(count):
    """Make the device function that repeats a tuple so many times."""
    if count == 1:
        return cuda.jit(device=True, forceinline=True)(lambda values: values)
    half, rest = make_repeat(count // 2), make_repeat(count - count // 2)
    return cuda.jit(device=True, forceinline=True)(lambda values: half(values) + rest(values))


# -- from registers to the result ------------------------------------------------------------------


@functools.cache
def make_store(tile, element, width, rows_at, col):
    """Make the device function by which a warp stores its 16 rows of a tile, from column ``col`` on."""
    least = rows_columns(element, tile.columns)
    count, ends = least // 2, col + least == tile.columns
    view_rows, store_rows = make_rows(element, least, 4 * tile.groups), make_store_rows(element, least, width)
    rest = nothing if ends else make_store(tile, element, width, rows_at, col + least)

    @cuda.jit(device=True, forceinline=True)
    def store(out, memory, sums, of_part, place, positions):
        rows, words = view_rows(memory, rows_at)
        cuda.syncwarp()
        store_fragment(rows, (uint32(cuda.threadIdx.x) // uint32(32) * uint32(WARP_ROWS), uint32(0)), sums[:count])
        cuda.syncwarp()
        store_rows(out, rows, words, of_part, place, uint32(col), positions)
        rest(out, memory, sums[count:], of_part, place, positions)

    return store


@functools.cache
def make_store_one(element, width):
    """Make the device function that stores ``width`` elements of a row in shared memory."""
    size = element.bitwidth // 8
    per_word, nbytes = max(1, 4 // size), width * size

    @cuda.jit(device=True, forceinline=True)
    def store_one(out, rows, words, at, r, c):
        if nbytes == 16:
            w, x, y, z = load4(words, (r, c // uint32(per_word)))
            store4(out, at // uint64(per_word), w, x, y, z)
        elif nbytes == 8:
            w, x = load2(words, (r, c // uint32(per_word)))
            store2(out, at // uint64(per_word), w, x)
        elif width == 2:
            out[at // uint64(per_word)] = words[r, c // uint32(per_word)]
        else:
            out[at] = rows[r, c]

    return store_one


@functools.cache
def make_store_rows(element, columns, width):
    """Make the device function by which a warp stores its rows in shared memory, ``width`` windows at a time."""
    if width == 0:
        return make_store_columns(columns)
    lanes = columns // width
    at_once, lanes_at_once, store_one = max(1, 32 // lanes), min(lanes, 32), make_store_one(element, width)

    @cuda.jit(device=True, forceinline=True)
    def store_rows(out, rows, words, of_part, place, further, positions):
        group, groups, row, col, m, n = place
        tid = uint32(cuda.threadIdx.x)
        first, lane = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(32)
        r = lane // uint32(lanes_at_once)
        for j in range(lanes // lanes_at_once):
            c = (lane % uint32(lanes_at_once) + uint32(j * 32)) * uint32(width)
            own = uint32(col + further + c)
            if own < n:
                sample, position = divided(own, positions)
                plane = uint64(uint32(sample * groups) + group) * m + row
                at = of_part + (plane + r) * positions.value + position
                for i in range(0, WARP_ROWS, at_once):
                    if row + r + uint32(i) < m:
                        store_one(out, rows, words, at + uint64(i) * positions.value, first + r + uint32(i), c)

    return store_rows


@functools.cache
def make_store_columns(columns):
    """Make the device function by which a warp stores its rows, two windows at a time, if a sample has only one."""

    @cuda.jit(device=True, forceinline=True)
    def store_columns(out, rows, words, of_part, place, further, positions):
        group, groups, row, col, m, n = place
        tid = uint32(cuda.threadIdx.x)
        first, r = tid // uint32(32) * uint32(WARP_ROWS), tid % uint32(WARP_ROWS)
        for i in range(0, columns, 2):
            c = tid % uint32(32) // uint32(WARP_ROWS) + uint32(i)
            sample = uint32(col + further + c)
            if sample < n and row + r < m:
                out[of_part + uint64(uint32(sample * groups) + group) * m + row + r] = rows[first + r, c]

    return store_columns


#: Out channels that a warp stores at a time if they are columns, and bytes more in each of their rows of 16 windows.
OUTS, OUT_PADS = 32, {2: 16, 4: 16}


@functools.cache
def make_swapped_store(tile, element, width, rows_at, col):
    """Make the device function by which a warp stores its 16 windows, from out channel ``col`` of the tile on."""
    least, size = min(OUTS, tile.columns - col), element.bitwidth // 8
    pitch, count, per_word = WARP_ROWS + OUT_PADS[size] // size, least // 2, max(1, 4 // size)
    shape, words_shape = (4 * tile.groups * OUTS, pitch), (4 * tile.groups * OUTS, pitch // per_word)
    lanes = WARP_ROWS // width
    at_once, put, store_one = 32 // lanes, make_put(least), make_store_one(element, width)
    ends = col + least == tile.columns
    rest = nothing if ends else make_swapped_store(tile, element, width, rows_at, col + least)

    @cuda.jit(device=True, forceinline=True)
    def store(out, memory, sums, of_part, place, positions):
        rows, words = view_at(memory, rows_at, shape, element), view_at(memory, rows_at, words_shape, uint32)
        group, groups, row, first_out, m, n = place
        tid = uint32(cuda.threadIdx.x)
        first, lane = tid // uint32(32) * uint32(OUTS), tid % uint32(32)
        cuda.syncwarp()
        put(rows, uint32(first + lane % uint32(4) * uint32(2)), lane // uint32(4), sums[:count])
        cuda.syncwarp()
        window = lane % uint32(lanes) * uint32(width)
        own = uint32(row + window)
        if own < n:
            sample, position = divided(own, positions)
            plane = of_part + uint64(uint32(sample * groups) + group) * m * positions.value + position
            for i in range(0, least, at_once):
                further = lane // uint32(lanes) + uint32(i)
                channel = uint32(first_out + uint32(col) + further)
                if further < uint32(least) and channel < m:
                    at = plane + uint64(channel) * positions.value
                    store_one(out, rows, words, at, first + further, window)
        rest(out, memory, sums[count:], of_part, place, positions)

    return store


@functools.cache
def make_put(columns):
    """Make the device function by which a lane writes its sums to shared memory, the windows of an out channel in a
    row.
    """
    rest = make_put(columns - 8) if columns > 8 else nothing

    @cuda.jit(device=True, forceinline=True)
    def put(rows, first, r, sums):
        below, beside = uint32(r + uint32(8)), uint32(first + uint32(1))
        rows[first, r], rows[beside, r] = element_of(sums[0], rows), element_of(sums[1], rows)
        rows[first, below], rows[beside, below] = element_of(sums[2], rows), element_of(sums[3], rows)
        rest(rows, uint32(first + uint32(8)), r, sums[4:])

    return put
