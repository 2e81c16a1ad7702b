"""Direct convolution at cuDNN's speed: a kernel specialised for the kernel's size, stride, dilation and tile (E7, E8).

A thread computes ``run`` neighbouring values of up to eight out channels. A row of pixels goes from shared memory to
registers in 128-bit loads, and serves for all values of the kernel's row and all out channels; the next row is loaded
meanwhile, into a second set of registers. In channels pass through a ring of stages in shared memory, filled by
asynchronous copies. Where a result is small and has many in channels, sets of warps share the channels of a stage, and
add up their sums at the end, in a fixed order. Results go through shared memory, so that a warp writes whole lines.

Two choices follow from the register file. It has two banks, even and odd registers, and an instruction that reads two
operands from one bank takes a cycle more. A 128-bit load puts neighbouring pixels into alternate banks. Sum i adds up
pixels i + kw, so it would meet both banks; therefore sums of even and of odd kw are kept apart, and added at the end.
And the loops go through all values of one weight before the next, up and down in turns, so that an instruction reuses
an operand of the one before.

Then nearly all instructions are multiply-adds, and what is left is to need fewer. Values in pairs share products, three
instead of four (``paired``, see `make_multiply_pairs`). So do two rows of values: for three rows of the kernel, four
products instead of six (``winograd``, see `make_load_row`).
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float32, int64, uint32, uint64
from gpukit.conv.ladder import place
from gpukit.conv.windows import covered
from gpukit.intrinsics import commit_copies, copy_async, copy_async4, load2, load4, store4, wait_copies
from gpukit.intrinsics.bfloat16 import element_of, value_of
from warpstep.integers import ceil_div

__all__ = ["Layout", "specialised"]

#: The position of a value that lies outside of the result.
OUTSIDE = 2**32 - 1
#: Multiply-adds and copies of weights in loops that the compiler still unrolls completely; it gives up on longer ones.
MAX_UNROLLED = 200


class Layout(NamedTuple):
    """The constants of a specialised kernel."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    channels_per_thread: int  # out channels of a thread, 1 to 8
    channel_groups: int  # sets of warps with out channels of their own
    run: int  # neighbouring values of a thread, a multiple of 4
    across: int  # threads along a row of the tile
    down: int  # rows of the tile
    depth: int  # in channels of a stage
    stages: int
    quads: bool = False  # rows of x begin at multiples of four elements, so that four are copied at a time
    half: bool = False  # float16, or bfloat16, in global memory
    split: int = 1  # sets of warps with in channels of their own; depth is a multiple of it
    paired: bool = False  # neighbouring values share products: for 2 columns or more, stride and dilation 1 along rows
    winograd: bool = False  # so do two rows: for a multiple of 3 rows, stride and dilation 1 along columns, split 1

    @property
    def text(self) -> str:
        """A short name that tells it from other layouts for the same kernel."""
        outs = f"{self.channel_groups} x {self.channels_per_thread} out channels"
        shared, pairs = f" by {self.split}" if self.split > 1 else "", ", in pairs" if self.paired else ""
        pairs += ", in two rows" if self.winograd else ""
        values = f"{self.across} x {self.down} threads of {self.run}{pairs}"
        return f"{outs}, {values}, {self.depth} channels a stage{shared}"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.across * self.down * self.channel_groups * self.sets

    @property
    def sets(self) -> int:
        """Sets of warps for the same values: each has in channels of its own, or one of Winograd's four sums."""
        return 4 if self.winograd else self.split

    @property
    def values_down(self) -> int:
        """Rows of values to which a thread's sums belong."""
        return 2 if self.winograd else 1

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the result that a block computes."""
        return self.down * self.values_down, self.across * self.run

    @property
    def channels_per_block(self) -> int:
        """Out channels of a block."""
        return self.channel_groups * self.channels_per_thread

    @property
    def sum_sets(self) -> int:
        """Sets of sums: one for even and one for odd columns of the kernel; in pairs, one for the first value of each
        pair, one for the second, and one for both.
        """
        return 3 if self.paired else min(self.kernel[1], 2)

    @property
    def sums(self) -> int:
        """Sums of a set, for each out channel."""
        return self.run // 2 if self.paired else self.run

    @property
    def lines(self) -> int:
        """Weights for a row of the kernel: its own, and in pairs the sum of each pair."""
        return self.kernel[1] + (self.kernel[1] // 2 if self.paired else 0)

    @property
    def pixel_pairs(self) -> int:
        """Pairs of pixels of a row that a thread needs, if its values are in pairs."""
        return self.run // 2 + (self.kernel[1] - 1) // 2

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of a thread for a row of the kernel."""
        return self.channels_per_thread * self.sums * (self.lines + self.kernel[1] % 2 if self.paired else self.lines)

    @property
    def columns_copied(self) -> int:
        """Columns of the kernel that a thread copies: all, or with ``winograd`` those that share products."""
        least = 2 if self.paired else 1
        has_threads = ceil_div(self.kernel[1], least) * self.weight_pitch <= self.threads
        return least if self.winograd and has_threads else self.kernel[1]

    @property
    def share(self) -> float:
        """Multiply-adds for a term of a sum: 1, or fewer if terms share products."""
        sums = self.channels_per_thread * self.run * self.values_down * self.kernel[0] * self.kernel[1]
        return self.multiply_adds * self.taps * self.sets / self.split / sums

    @property
    def span(self) -> int:
        """Pixels of a row that a thread needs, in whole loads of four."""
        return _round_up(covered(self.run, self.stride[1], self.kernel[1], self.dilation[1]), 4)

    @property
    def rows(self) -> int:
        """Rows of pixels that a tile needs."""
        return covered(self.tile[0], self.stride[0], self.kernel[0], self.dilation[0])

    @property
    def taps(self) -> int:
        """Rows of weights that a thread multiplies by, for each in channel."""
        return self.kernel[0] // 3 if self.winograd else self.kernel[0]

    @property
    def weight_rows(self) -> int:
        """Rows of weights in shared memory for each in channel."""
        return 4 * self.taps if self.winograd else self.taps

    @property
    def width(self) -> int:
        """Pixels of a row that a tile needs."""
        return (self.across - 1) * self.run * self.stride[1] + self.span

    @property
    def pitch(self) -> int:
        """Words from row to row: such that eight lanes, which load 16 bytes each, use all 32 banks, if they can."""
        return _pitch(self.width, self.across, self.stride[0] * self.values_down, self.run * self.stride[1])[0]

    @property
    def has_conflicts(self) -> bool:
        """Whether there are bank conflicts whatever the pitch."""
        return _pitch(self.width, self.across, self.stride[0] * self.values_down, self.run * self.stride[1])[1]

    @property
    def padded_channels(self) -> int:
        """Words for the weights of a thread's out channels: 1, 2, 4 or 8."""
        return 1 << (self.channels_per_thread - 1).bit_length()

    @property
    def weight_pitch(self) -> int:
        """Words from one value of the kernel to the next."""
        return self.channel_groups * self.padded_channels

    @property
    def image_words(self) -> int:
        """Words of a stage's pixels."""
        return self.depth * self.rows * self.pitch

    @property
    def copies(self) -> int:
        """Copies that a thread makes of each channel's pixels."""
        return ceil_div(self.rows * self.pitch, self.threads * (4 if self.quads else 1))

    @property
    def stage_words(self) -> int:
        """Words of a stage: pixels, then weights."""
        return self.image_words + _round_up(self.depth * self.weight_rows * self.lines * self.weight_pitch, 4)

    @property
    def sums_words(self) -> int:
        """Words for the sums that sets of warps pass to each other."""
        return (self.split - 1) * self.threads // self.split * self.channels_per_thread * self.run

    @property
    def nbytes(self) -> int:
        """Shared memory of a block: the ring of stages, and afterwards, in its place, sums and then results."""
        results = self.threads * self.channels_per_thread * self.run
        return 4 * max(self.stages * self.stage_words, self.sums_words + results)

    # Former names of three of these.
    outs = property(lambda self: self.channels_per_thread)
    parts = property(lambda self: self.channel_groups)
    made = property(lambda self: self.channels_per_block)


@functools.lru_cache(4096)
def _pitch(width, across, row_step, step):
    """(Words from row to row, whether there are bank conflicts whatever the pitch), for `Layout`.

    The next lane reads ``step`` words further on, in rows that are ``row_step`` apart.
    """
    lines = 8 // min(across, 8)  # rows in which eight lanes begin
    for pitch in range(width, width + 32, 4):
        banks = {(line * pitch * row_step + lane * step) % 32 for line in range(lines) for lane in range(8 // lines)}
        if len(banks) == 8:
            return pitch, False
    return width, True


def _round_up(n, multiple):
    return ceil_div(n, multiple) * multiple


# -- from shared memory to registers, and the sums -------------------------------------------------


@functools.cache
def make_load_row(layout):
    """Make a device function that loads the pixels of a row that a thread needs to registers.

    With ``winograd`` these are sums of two rows: the second, ``other`` words further on, is multiplied by ``sign``. Two
    rows of values, y = a u + b v + c w and z = b u + c v + d w, meet four rows of pixels and three of the kernel. They
    need four products, of which each is the work of a set of warps:

    p = (a - c) u, q = (b + c) (u + v + w) / 2, r = (c - b) (u - v + w) / 2 and s = (d - b) w

    Then y = p + q + r, and z = s + q - r. The in channels and the kernel's next three rows add to the same sums.
    """
    span, winograd = layout.span, layout.winograd

    @cuda.jit(device=True, forceinline=True)
    def load_row(buffer, offset, other, sign, x):
        for i in range(0, span, 4):
            x[i], x[i + 1], x[i + 2], x[i + 3] = load4(buffer, uint64(offset + uint32(i)))
            if winograd:
                a, b, c, d = load4(buffer, uint64(uint32(offset + other) + uint32(i)))
                x[i] += sign * a
                x[i + 1] += sign * b
                x[i + 2] += sign * c
                x[i + 3] += sign * d

    return load_row


@functools.cache
def make_load_weights(layout):
    """Make a device function that loads one value of the kernel for each of a thread's out channels.

    All lanes of a warp read the same words.
    """
    channels = layout.channels_per_thread

    @cuda.jit(device=True, forceinline=True)
    def load_weights(buffer, offset, w):
        if channels == 1:
            w[0] = buffer[offset]
        elif channels == 2:
            w[0], w[1] = load2(buffer, offset)
        else:
            w[0], w[1], w[2], w[3] = load4(buffer, offset)
        if channels > 6:
            w[4], w[5], w[6], w[7] = load4(buffer, uint64(offset + uint64(4)))
        elif channels > 4:
            w[4], w[5] = load2(buffer, uint64(offset + uint64(4)))

    return load_weights


@functools.cache
def make_multiply(layout):
    """Make a device function that multiplies a row of the kernel and a row of pixels, and adds to the sums.

    ``after`` is where the weights of the next row begin. In pairs, ``x`` is what `make_multiply_pairs` makes of the
    pixels. It is composed of pieces that the compiler unrolls, so that all indices of registers are constants.
    """
    channels, padded_channels, pitch = layout.channels_per_thread, layout.padded_channels, layout.weight_pitch
    sums, sum_sets = layout.sums, layout.sum_sets
    dilation, lines, paired, pairs = layout.dilation[1], layout.lines, layout.paired, max(1, layout.kernel[1] // 2)
    step, count = 1 if paired else layout.stride[1], layout.pixel_pairs
    load_weights = make_load_weights(layout)

    def piece(first, last):
        @cuda.jit(device=True, forceinline=True)
        def multiply(buffer, offset, after, x, w, total):
            now = cuda.local.array(padded_channels, float32)
            for n in range(first, last):
                for o in range(channels):
                    now[o] = w[o]
                load_weights(buffer, after if n == lines - 1 else uint64(offset + uint64((n + 1) * pitch)), w)
                which = n // pairs if paired else n % sum_sets
                begin = which * count + n % pairs if paired else n * dilation
                for o in range(channels):
                    for k in range(sums):
                        i = k if o % 2 == 0 else sums - 1 - k
                        total[which, o, i] += x[begin + i * step] * now[o]

        return multiply

    def pieces(last):
        first = max(0, last - max(1, MAX_UNROLLED // ((sums + 1) * channels)))
        own = piece(first, last)
        if first == 0:
            return own
        others = pieces(first)

        @cuda.jit(device=True, forceinline=True)
        def multiply(buffer, offset, after, x, w, total):
            others(buffer, offset, after, x, w, total)
            own(buffer, offset, after, x, w, total)

        return multiply

    return pieces(3 * pairs if paired else lines)


@functools.cache
def make_multiply_pairs(layout):
    """Make the device function of `make_multiply` for values in pairs: three products instead of four for two values.

    Two neighbours x0 w0 + x1 w1 and x1 w0 + x2 w1 are (x0 - x1) w0 + b and (x2 - x1) w1 + b with b = x1 (w0 + w1). A
    pair has a sum for each of the three products, and that of b is added to the others at the end. The last of an odd
    number of weights is multiplied as it is.
    """
    channels, padded_channels = layout.channels_per_thread, layout.padded_channels
    sums, count = layout.sums, layout.pixel_pairs
    pairs, is_odd = layout.kernel[1] // 2, layout.kernel[1] % 2
    known, differences = 4 * count, count - is_odd
    load_weights, multiply_pairs = make_load_weights(layout), make_multiply(layout)

    @cuda.jit(device=True, forceinline=True)
    def multiply(buffer, offset, after, row, w, total):
        x, last = cuda.local.array(known, float32), cuda.local.array(padded_channels, float32)
        for i in range(differences):
            x[i] = row[2 * i] - row[2 * i + 1]
            x[count + i] = row[2 * i + 2] - row[2 * i + 1]
        for i in range(count):
            x[2 * count + i], x[3 * count + i] = row[2 * i + 1], row[2 * i]
        multiply_pairs(buffer, offset, after, x, w, total)
        if is_odd:
            for o in range(channels):
                last[o] = w[o]
            load_weights(buffer, after, w)
            for o in range(channels):
                for i in range(sums):
                    total[0, o, i] += x[3 * count + pairs + i] * last[o]
                    total[1, o, i] += x[2 * count + pairs + i] * last[o]

    return multiply


@functools.cache
def make_accumulate(layout):
    """Make a device function that adds up all rows of the kernel, for ``count`` in channels of a stage."""
    load_row, load_weights = make_load_row(layout), make_load_weights(layout)
    multiply = make_multiply_pairs(layout) if layout.paired else make_multiply(layout)
    taps, span, padded_channels = layout.taps, layout.span, layout.padded_channels
    down = (3 if layout.winograd else layout.dilation[0]) * layout.pitch
    channel = layout.rows * layout.pitch
    over = channel - (taps - 1) * down  # from a channel's last row to the next one's first
    along = layout.weight_rows // taps * layout.lines * layout.weight_pitch

    @cuda.jit(device=True, forceinline=True)
    def step(buffer, offset, other, sign, wt, kh, last, last_wt, now, then, w, total):
        """Load the next row into ``then`` and compute with ``now``; the last step loads its own row again.

        The minimum hides that from the compiler, which would copy registers instead, at the cost of six loads.
        """
        ends = kh == uint32(taps)
        then_at = min(uint32(offset + (uint32(over) if ends else uint32(down))), last)
        after = min(uint32(wt + uint32(along)), last_wt)
        load_row(buffer, then_at, other, sign, then)
        multiply(buffer, uint64(wt), uint64(after), now, w, total)
        return then_at, after, uint32(1) if ends else uint32(kh + uint32(1))

    @cuda.jit(device=True, forceinline=True)
    def accumulate(buffer, offset, other, sign, wt, count, total):
        even, odd = cuda.local.array(span, float32), cuda.local.array(span, float32)
        w = cuda.local.array(padded_channels, float32)
        load_row(buffer, offset, other, sign, even)
        load_weights(buffer, uint64(wt), w)
        kh, left = uint32(1), uint32(count * uint32(taps))
        last = uint32(offset + (count - uint32(1)) * uint32(channel) + uint32((taps - 1) * down))
        last_wt = uint32(wt + (left - uint32(1)) * uint32(along))
        while True:
            offset, wt, kh = step(buffer, offset, other, sign, wt, kh, last, last_wt, even, odd, w, total)
            if left == uint32(1):
                break
            offset, wt, kh = step(buffer, offset, other, sign, wt, kh, last, last_wt, odd, even, w, total)
            left = uint32(left - uint32(2))
            if left == uint32(0):
                break

    return accumulate


# -- from global to shared memory ------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def copy_now(buffer, offset, source, place, there):
    """Copy a value of two bytes as `copy_async` does: it is converted on the way, so the thread waits for its load."""
    value = float32(0)
    if there:
        value = float32(value_of(source[place]))
    buffer[offset] = value


@functools.cache
def make_copy_image(layout):
    """Make a device function that begins to copy the pixels of a stage's in channels.

    All threads share the copy evenly (E5). From one copy of a thread to its next one is a constant number of rows and
    columns: no address is kept from stage to stage, and there is no division.
    """
    pitch, depth, copies, width = layout.pitch, layout.depth, layout.copies, 4 if layout.quads else 1
    each, together = layout.rows * pitch, layout.threads * width
    step_row, step_col = divmod(together, pitch)
    copy = copy_async4 if layout.quads else copy_async

    @cuda.jit(device=True, forceinline=True)
    def further(row, col):
        row, col = uint32(row + uint32(step_row)), uint32(col + uint32(step_col))
        if col >= uint32(pitch):
            row, col = uint32(row + uint32(1)), uint32(col - uint32(pitch))
        return row, col

    @cuda.jit(device=True, forceinline=True)
    def copy_image(buffer, start, x, base, first, top, left, sizes):
        plane = uint64(sizes.height * sizes.width)
        e = uint32(cuda.threadIdx.x * uint32(width))
        row = e // uint32(pitch)
        col = uint32(e - row * uint32(pitch))
        for j in range(copies):
            r, c = uint32(top + row), uint32(left + col)
            inside = r < sizes.height and c < sizes.width
            source = uint64(base + first * plane + uint32(r * sizes.width + c))
            if (j + 1) * together <= each or e < uint32(each - j * together):
                for d in range(depth):
                    there = inside and uint32(first + uint32(d)) < sizes.channels
                    offset = uint64(start + uint32(e + uint32(j * together + d * each)))
                    copy(buffer, offset, x, uint64(source + uint64(d) * plane), there)
            row, col = further(row, col)

    @cuda.jit(device=True, forceinline=True)
    def copy_half(buffer, start, x, base, first, top, left, sizes):
        """All loads of a channel come before the first of its stores, so that they overlap."""
        plane, value = uint64(sizes.height * sizes.width), cuda.local.array(copies, float32)
        e = uint32(cuda.threadIdx.x)
        for d in range(depth):
            row = e // uint32(pitch)
            col = uint32(e - row * uint32(pitch))
            for j in range(copies):
                r, c = uint32(top + row), uint32(left + col)
                value[j] = float32(0)
                if r < sizes.height and c < sizes.width and uint32(first + uint32(d)) < sizes.channels:
                    at = uint64(base + (first + uint64(d)) * plane + uint32(r * sizes.width + c))
                    value[j] = float32(value_of(x[at]))
                row, col = further(row, col)
            for j in range(copies):
                if (j + 1) * together <= each or e < uint32(each - j * together):
                    buffer[uint64(start + uint32(e + uint32(j * together + d * each)))] = value[j]

    return copy_half if layout.half else copy_image


@functools.cache
def make_copy_weights(layout):
    """Make two device functions: one begins to copy the weights of a stage's in channels, those of one value of the
    kernel side by side; the other, when they have arrived, adds up those that share products.

    A thread copies whole rows of the kernel, for one out channel, so only the first address of a row is computed. It
    adds up what it has copied itself. With ``winograd`` it copies three rows, and makes four of them: u, (u + v + w) /
    2, (u - v + w) / 2 and w.
    """
    (height, across), paired, winograd = layout.kernel, layout.paired, layout.winograd
    channels, padded_channels = layout.channels_per_thread, layout.padded_channels
    # Rows of the kernel that a thread copies at a time, what it makes of them, and how many columns of them.
    own, made, width = 3 if winograd else 1, 4 if winograd else 1, layout.columns_copied
    each, rows, parts = layout.weight_pitch, layout.depth * height // own, ceil_div(across, width)
    at_once, line_words = layout.threads // (each * parts), layout.lines * each
    words, pairs, is_whole = made * line_words, across // 2, parts == 1
    rounds, is_even = ceil_div(rows, at_once), rows % at_once == layout.threads % (each * parts) == 0
    copy = copy_now if layout.half else copy_async

    @cuda.jit(device=True, forceinline=True)
    def find_own():
        """Which row a thread copies in the first round, which part of it, and for which out channel of the block."""
        tid = uint32(cuda.threadIdx.x)
        row = tid // uint32(each * parts)
        rest = uint32(tid - row * uint32(each * parts))
        line = rest // uint32(parts)
        return row, uint32(rest - line * uint32(parts)), line

    @cuda.jit(device=True, forceinline=True)
    def find_first(start, row, part, line):
        first = uint32(3 * pairs) if paired and part == uint32(pairs) else part
        return uint64(start + row * uint32(words) + first * uint32(each) + line)

    @cuda.jit(device=True, forceinline=True)
    def find(n, i, j):
        """The words from a thread's first weight to the one of its column j, in row i of those of its round n."""
        column = j
        if paired:
            column = 3 * pairs if j == 2 * pairs else j // 2 + j % 2 * pairs
        return uint64(n * at_once * words + i * line_words + column * each)

    @cuda.jit(device=True, forceinline=True)
    def copy_weights(buffer, start, weight, group, first_channel, first, sizes):
        row, part, line = find_own()
        channel_group = line // uint32(padded_channels)
        k = uint32(line - channel_group * uint32(padded_channels))
        o = uint32(first_channel + channel_group * uint32(channels) + k)
        to, of_out = find_first(start, row, part, line), uint32(sizes.channels * uint32(height))
        above = uint32(uint32(first * uint32(height)) + row * uint32(own))  # rows of the in channels before this one
        source = uint64((uint64(group * sizes.out_channels + o) * of_out + above) * uint64(across))
        source = uint64(source + uint64(part * uint32(width)))
        for n in range(rounds):
            if is_even or row < uint32(min(at_once, rows - n * at_once)):
                there = (
                    k < uint32(channels)
                    and o < sizes.out_channels
                    and uint32(above + uint32(n * at_once * own)) < of_out
                )
                for i in range(own):
                    for j in range(width):
                        offset, beside = uint64(to + find(n, i + i // 2, j)), (n * at_once * own + i) * across + j
                        if is_whole or j == 0 or part < uint32(pairs):
                            copy(buffer, offset, weight, uint64(source + uint64(beside)), there)

    @cuda.jit(device=True, forceinline=True)
    def add_weights(buffer, start):
        row, part, line = find_own()
        to, w = find_first(start, row, part, line), cuda.local.array((made, width), float32)
        for n in range(rounds):
            if is_even or row < uint32(min(at_once, rows - n * at_once)):
                for i in range(own):  # all loads before the first store, so that they overlap
                    for j in range(width):
                        if is_whole or j == 0 or part < uint32(pairs):
                            w[i + i // 2, j] = buffer[uint64(to + find(n, i + i // 2, j))]
                if winograd:
                    for j in range(width):
                        if is_whole or j == 0 or part < uint32(pairs):
                            ends, middle = w[0, j] + w[3, j], w[1, j]
                            w[1, j], w[2, j] = float32(0.5) * (ends + middle), float32(0.5) * (ends - middle)
                            buffer[uint64(to + find(n, 1, j))] = w[1, j]
                            buffer[uint64(to + find(n, 2, j))] = w[2, j]
                if paired and (is_whole or part < uint32(pairs)):
                    for i in range(made):
                        for j in range(width // 2):
                            offset = uint64(to + find(n, i, 2 * j) + uint64(2 * pairs * each))
                            buffer[offset] = w[i, 2 * j] + w[i, 2 * j + 1]

    return copy_weights, add_weights


# -- sums -------------------------------------------------------------------------------------------


@functools.cache
def make_start(layout):
    """Make a device function that starts the sums of a thread, with the bias in one of the sets of warps."""
    channels, sums, sum_sets, paired = layout.channels_per_thread, layout.sums, layout.sum_sets, layout.paired
    period = 3 if layout.winograd else layout.split  # sets p and s, which belong to one row of values each

    @cuda.jit(device=True, forceinline=True)
    def start(total, bias, group, first_channel, own_set, sizes):
        for o in range(channels):
            initial = float32(0)
            if (
                sizes.biased
                and own_set % uint32(period) == uint32(0)
                and uint32(first_channel + uint32(o)) < sizes.out_channels
            ):
                own = group * sizes.out_channels + uint32(first_channel + uint32(o))
                initial = float32(value_of(bias[own]))
            for i in range(sums):
                total[0, o, i] = initial
                if sum_sets > 1:
                    total[1, o, i] = initial if paired else float32(0)
                if sum_sets > 2:
                    total[2, o, i] = float32(0)

    return start


@functools.cache
def make_settle(layout):
    """Make a device function that adds up a thread's sets of sums to its values."""
    channels, run, sum_sets, paired = layout.channels_per_thread, layout.run, layout.sum_sets, layout.paired

    @cuda.jit(device=True, forceinline=True)
    def settle(total, value):
        for o in range(channels):
            for i in range(run):
                if paired:
                    value[o, i] = total[i % 2, o, i // 2] + total[2, o, i // 2]
                elif sum_sets == 2:
                    value[o, i] = total[0, o, i] + total[1, o, i]
                else:
                    value[o, i] = total[0, o, i]

    return settle


@functools.cache
def make_combine(layout):
    """Make a device function that adds up the sums of the sets of warps that share in channels.

    Each set owns some of the out channels. It passes its sums of the others on, and adds what it receives to its own,
    in the order of the sets.
    """
    channels, run, sets = layout.channels_per_thread, layout.run, layout.split
    each = layout.threads // sets

    @cuda.jit(device=True, forceinline=True)
    def give(buffer, offset, o, value):
        for i in range(0, run, 4):
            to = uint64(offset + uint32(i * each))
            store4(buffer, to, value[o, i], value[o, i + 1], value[o, i + 2], value[o, i + 3])

    @cuda.jit(device=True, forceinline=True)
    def take(buffer, offset, o, value):
        for i in range(0, run, 4):
            a, b, c, d = load4(buffer, uint64(offset + uint32(i * each)))
            value[o, i] += a
            value[o, i + 1] += b
            value[o, i + 2] += c
            value[o, i + 3] += d

    @cuda.jit(device=True, forceinline=True)
    def combine(buffer, own_set, rank, value):
        cuda.syncthreads()  # no thread still reads a stage
        for o in range(channels):
            owner = o * sets // channels
            slot = uint32(own_set if own_set < uint32(owner) else own_set - uint32(1))
            if own_set != uint32(owner):
                offset = uint32((slot + uint32(o * (sets - 1))) * uint32(each * run) + rank * uint32(4))
                give(buffer, offset, o, value)
        cuda.syncthreads()
        for o in range(channels):
            if own_set == uint32(o * sets // channels):
                for slot in range(sets - 1):
                    offset = uint32(uint32((slot + o * (sets - 1)) * each * run) + rank * uint32(4))
                    take(buffer, offset, o, value)

    return combine


# -- from registers to global memory ---------------------------------------------------------------


@functools.cache
def make_write(layout):
    """Make a device function that writes the values of all threads, each warp through its piece of shared memory.

    Of an out channel, 32 lanes write 32 neighbours at a time.
    """
    run, line, channels, winograd = layout.run, layout.across * layout.run, layout.channels_per_thread, layout.winograd
    rows, sums_words, lines, down = layout.down, layout.sums_words, 32 // layout.across, layout.values_down
    warp_words = 32 * run * channels
    set_words = layout.threads // layout.sets // 32 * warp_words
    shares = 2 if winograd else layout.split  # sets of warps that write the same rows

    @cuda.jit(device=True, forceinline=True)
    def find_spots(spots, top, left, sizes):
        """Find the positions of a lane's values in every plane of out."""
        lane = uint32(cuda.threadIdx.x) % uint32(32)
        for k in range(run):
            if line % 32 == 0:  # a constant: a warp's 32 values are neighbours in a row
                row = uint32(top + uint32(32 * k // line * down))
                col = uint32(left + uint32(lane + uint32(32 * k % line)))
            else:
                r = uint32(lane + uint32(32 * k)) // uint32(line)
                row = uint32(top + r * uint32(down))
                col = uint32(left + uint32(lane + uint32(32 * k) - r * uint32(line)))
            spots[k] = uint32(OUTSIDE)
            if row < sizes.out_h and col < sizes.out_w:
                spots[k] = uint32(row * sizes.out_w + col)

    @cuda.jit(device=True, forceinline=True)
    def store(buffer, piece, value):
        offset = uint64(piece + uint64(uint32(cuda.threadIdx.x) % uint32(32) * uint32(run)))
        for o in range(channels):
            for i in range(0, run, 4):
                to = uint64(offset + uint64(o * 32 * run + i))
                store4(buffer, to, value[o, i], value[o, i + 1], value[o, i + 2], value[o, i + 3])

    @cuda.jit(device=True, forceinline=True)
    def take(buffer, offset, which):
        """Load a value; with ``winograd``, the three sums that it is made of, p + q + r or s + q - r."""
        if winograd:
            first = buffer[uint64(offset + which * uint32(3 * set_words))]
            sign = float32(-1) if which else float32(1)
            second, third = buffer[uint64(offset + uint32(set_words))], buffer[uint64(offset + uint32(2 * set_words))]
            return first + second + sign * third
        return buffer[uint64(offset)]

    @cuda.jit(device=True, forceinline=True)
    def write_plane(buffer, piece, which, plane, spots):
        value = cuda.local.array(run, float32)
        lane = uint32(cuda.threadIdx.x) % uint32(32)
        for k in range(run):  # all loads before the first store, so that they overlap
            value[k] = take(buffer, uint32(piece + lane + uint32(32 * k)), which)
        for k in range(run):
            if spots[k] != uint32(OUTSIDE):
                plane[spots[k]] = element_of(value[k], plane)

    @cuda.jit(device=True, forceinline=True)
    def write(buffer, value, out, sample_group, first_channel, own_set, top, left, sizes):
        warp = uint32(cuda.threadIdx.x) // uint32(32)
        piece = uint32(uint32(sums_words) + warp * uint32(warp_words))
        spots = cuda.local.array(run, uint32)
        which, own_share = own_set // uint32(shares), own_set % uint32(shares)
        find_spots(spots, uint32(top + uint32(warp * uint32(lines)) % uint32(rows) * uint32(down) + which), left, sizes)
        store(buffer, uint64(piece), value)
        if winograd:
            cuda.syncthreads()
            piece = uint32(piece - own_set * uint32(set_words))
        else:
            cuda.syncwarp()
        positions, o = int64(sizes.out_h * sizes.out_w), uint32(0)
        while o < uint32(channels):  # not unrolled: code that runs once costs more to fetch than to run
            is_needed = uint32(first_channel + o) < sizes.out_channels
            if is_needed and own_share == uint32(o * uint32(shares)) // uint32(channels):
                corner = int64(sample_group * sizes.out_channels + uint64(first_channel + o)) * positions
                plane = out[corner : corner + positions]
                write_plane(buffer, uint32(piece + o * uint32(32 * run)), which, plane, spots)
            o = uint32(o + uint32(1))

    return write


# -- the kernel ------------------------------------------------------------------------------------


@functools.cache
def make_find_part(layout):
    """Make a device function that finds a thread's part of the work.

    It returns the thread's set of warps, its rank in the set, its first out channel in the block, where its first row
    of pixels and its first weights lie in a stage, and for `make_load_row` where the second row lies and its sign.
    """
    channels, run, across, pitch = layout.channels_per_thread, layout.run, layout.across, layout.pitch
    threads_per_group, threads_per_set = across * layout.down, layout.threads // layout.sets
    row_words, down = layout.lines * layout.weight_pitch, layout.values_down * layout.stride[0] * pitch
    step, share, padded_channels = run * layout.stride[1], layout.depth // layout.split, layout.padded_channels
    channel_words, weight_words = layout.rows * pitch, layout.weight_rows * row_words
    image_words, winograd = layout.image_words, layout.winograd

    @cuda.jit(device=True, forceinline=True)
    def find_part():
        tid = uint32(cuda.threadIdx.x)
        own_set = tid // uint32(threads_per_set)
        rank = uint32(tid - own_set * uint32(threads_per_set))
        channel_group = rank // uint32(threads_per_group)
        row = uint32(rank - channel_group * uint32(threads_per_group)) // uint32(across)
        col = uint32(rank - channel_group * uint32(threads_per_group) - row * uint32(across))
        offset = uint32(row * uint32(down) + col * uint32(step))
        wt = uint32(image_words) + channel_group * uint32(padded_channels)
        other, sign = uint32(0), float32(1)
        if winograd:  # the sets begin with rows 0 - 2, 1 + 2, 2 - 1 and 3 - 1 of the pixels
            offset, wt = uint32(offset + own_set * uint32(pitch)), uint32(wt + own_set * uint32(row_words))
            other = uint32(uint32(2 * pitch) - own_set * uint32(pitch))
            if own_set > uint32(1):
                other = uint32(uint32(pitch) - own_set * uint32(pitch))
            if own_set != uint32(1):
                sign = float32(-1)
        else:
            offset = uint32(offset + own_set * uint32(share * channel_words))
            wt = uint32(wt + own_set * uint32(share * weight_words))
        return own_set, rank, uint32(channel_group * uint32(channels)), offset, wt, other, sign

    return find_part


@functools.cache
def specialised(layout):
    """Make the kernel for a layout (E7, E8): ``specialised(layout)[blocks, layout.threads, stream, layout.nbytes]``.

    Its arguments: x (N, C, H, W), weight (M, C / groups, KH, KW), bias (M), read only if ``sizes.biased``, and out (N,
    M, OH, OW), all flat, C-contiguous and float32, or float16 or bfloat16 where the layout has ``half``; and
    `ladder.Sizes`. ``across`` divides 32, and 32 divides ``across * down``, so that warps do not straddle sets.
    ``depth`` is a multiple of ``split``, and there are two stages or more.
    """
    depth, channels, run, sum_sets = layout.depth, layout.channels_per_thread, layout.run, layout.sum_sets
    sums, split, has_sums = layout.sums, layout.split, layout.paired or layout.winograd
    (tile_h, tile_w), (stride_h, stride_w), channels_per_block = layout.tile, layout.stride, layout.channels_per_block
    stage_words, image_words, share = layout.stage_words, layout.image_words, depth // split
    end, ahead, pending = layout.stages * stage_words, layout.stages - 1, layout.stages - 2
    copy_image, (copy_weights, add_weights) = make_copy_image(layout), make_copy_weights(layout)
    start, accumulate, settle = make_start(layout), make_accumulate(layout), make_settle(layout)
    find_part, combine, write = make_find_part(layout), make_combine(layout), make_write(layout)

    @cuda.jit
    def specialised(x, weight, bias, out, sizes):
        buffer = cuda.shared.array(0, float32)
        total, value = cuda.local.array((sum_sets, channels, sums), float32), cuda.local.array((channels, run), float32)
        tile = uint32(tile_h), uint32(tile_w), uint32(channels_per_block)
        sample, group, block_channel, top, left = place(sizes, *tile)
        sample_group = uint64(sample * sizes.groups.value + group)
        base = uint64(sample_group * sizes.channels * uint64(sizes.height * sizes.width))
        from_row = uint32(top * uint32(stride_h) - sizes.padding_h)
        from_col = uint32(left * uint32(stride_w) - sizes.padding_w)
        for s in range(ahead):  # a group of copies for each stage but one
            begin, channel = uint32(s * stage_words), uint32(s * depth)
            copy_image(buffer, begin, x, base, channel, from_row, from_col, sizes)
            copy_weights(buffer, uint32(begin + uint32(image_words)), weight, group, block_channel, channel, sizes)
            commit_copies()

        own_set, rank, own_channel, offset, wt, other, sign = find_part()
        first_channel = uint32(block_channel + own_channel)
        start(total, bias, group, first_channel, own_set, sizes)
        now, then, first = uint32(0), uint32(ahead * stage_words), uint32(0)
        while first < sizes.channels:
            wait_copies(pending)
            if has_sums:
                add_weights(buffer, uint32(now + uint32(image_words)))
            cuda.syncthreads()  # this stage is complete, and the one before, which is filled next, no longer in use
            further = uint32(first + uint32(ahead * depth))
            if further < sizes.channels:
                copy_image(buffer, then, x, base, further, from_row, from_col, sizes)
                copy_weights(buffer, uint32(then + uint32(image_words)), weight, group, block_channel, further, sizes)
            commit_copies()
            own = uint32(first + own_set * uint32(share)) if split > 1 else first
            if own < sizes.channels:
                count = min(uint32(share), uint32(sizes.channels - own))
                accumulate(buffer, uint32(offset + now), other, sign, uint32(wt + now), count, total)
            first = uint32(first + uint32(depth))
            now = uint32(now + uint32(stage_words)) if now < uint32(end - stage_words) else uint32(0)
            then = uint32(then + uint32(stage_words)) if then < uint32(end - stage_words) else uint32(0)

        if pending:
            wait_copies(0)  # of zeros, for stages that no channel fills
        settle(total, value)
        if split > 1:
            combine(buffer, own_set, rank, value)
        else:
            cuda.syncthreads()  # no thread still reads a stage
        write(buffer, value, out, sample_group, first_channel, own_set, top, left, sizes)

    return specialised
