"""Direct convolution, made to measure: a kernel for each size of kernel, stride, dilation and number of out channels.

The last steps of the ladder (E7), as far as they go. A thread computes ``run`` neighbouring values of up to eight out
channels. A row of pixels that they need goes from shared memory to registers in 128-bit loads, and then serves for all
values of the kernel's row and all out channels; the next row is loaded meanwhile, into a second set of registers. Input
channels pass through a ring of stages in shared memory, filled by asynchronous copies. Where a result is small and has
many in channels, sets of warps share the channels of a stage, and add their sums up in the end, in a fixed order.
Results go through shared memory once more, so that a warp writes whole lines.

Two things are there because of the register file. It has two banks, even and odd registers, and an instruction that
reads two operands from one bank takes a cycle more. A 128-bit load binds neighbouring pixels to registers of alternate
banks; the sum that pixel i + kw is added to is sum i, so a sum meets both banks, unless the sums of even and of odd kw
are kept apart and added at the end. And the order of the loops, all values of one weight after another, up and down in
turns, lets one operand be reused from the instruction before.

Then nearly all instructions are multiply-adds, and what is left is to need fewer: values in pairs share products, three
where they took four (``paired``, see `pair_multiplier`).
"""

import functools
from typing import NamedTuple

from gpukit.backend import cuda, float32, int64, uint32, uint64
from gpukit.conv.ladder import place
from gpukit.intrinsics import commit_copies, copy_async, copy_async4, load2, load4, store4, wait_copies

__all__ = ["Layout", "specialised"]

#: In place of a pixel's place: it is outside of the image, and zero.
OUTSIDE = 2**32 - 1
#: Multiply-adds in loops that the compiler unrolls as a whole; it gives up where there are many more.
MOST_UNROLLED = 200


class Layout(NamedTuple):
    """What a kernel is made for; the compiler knows all of it."""

    kernel: tuple
    stride: tuple
    dilation: tuple
    outs: int  # out channels of a thread, 1 to 8
    parts: int  # sets of warps, each for out channels of its own
    run: int  # neighbouring values of a thread, a multiple of 4
    across: int  # threads along a row of the tile
    down: int  # rows of the tile
    depth: int  # in channels of a stage
    stages: int
    quads: bool = False  # rows of x begin at multiples of four elements, so that four are copied at a time
    half: bool = False  # float16 in global memory
    split: int = 1  # sets of warps, each for in channels of its own: depth is a multiple of it
    paired: bool = False  # neighbouring values share products: for 2 columns or more, stride and dilation 1 along rows

    @property
    def text(self):
        """What tells it from others for the same kernel, in short."""
        outs = f"{self.parts} x {self.outs} out channels"
        shared, pairs = f" by {self.split}" if self.split > 1 else "", ", in pairs" if self.paired else ""
        values = f"{self.across} x {self.down} threads of {self.run}{pairs}"
        return f"{outs}, {values}, {self.depth} channels a stage{shared}"

    @property
    def threads(self):
        """Of a block."""
        return self.across * self.down * self.parts * self.split

    @property
    def tile(self):
        """Rows and columns of the result that a block computes."""
        return self.down, self.across * self.run

    @property
    def made(self):
        """Out channels that a block computes."""
        return self.parts * self.outs

    @property
    def sets(self):
        """Sets of sums: one for even columns of the kernel and one for odd ones, if it has more than one; in pairs, one
        for the first value of each pair, one for the second, and one for both.
        """
        return 3 if self.paired else min(self.kernel[1], 2)

    @property
    def sums(self):
        """Sums of a set, for each out channel."""
        return self.run // 2 if self.paired else self.run

    @property
    def lines(self):
        """Weights for a row of the kernel: its own, and the sum of each pair of them."""
        return self.kernel[1] + (self.kernel[1] // 2 if self.paired else 0)

    @property
    def pixel_pairs(self):
        """Pairs of pixels of a row that a thread needs, if its values are in pairs."""
        return self.run // 2 + (self.kernel[1] - 1) // 2

    @property
    def multiply_adds(self):
        """Multiply-adds of a thread for a row of the kernel."""
        return self.outs * self.sums * (self.lines + self.kernel[1] % 2 if self.paired else self.lines)

    @property
    def span(self):
        """Pixels of a row that a thread needs, in whole loads of four."""
        return _up((self.run - 1) * self.stride[1] + (self.kernel[1] - 1) * self.dilation[1] + 1, 4)

    @property
    def rows(self):
        """Rows of pixels that a tile needs."""
        return (self.down - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1

    @property
    def width(self):
        """Pixels of a row that a tile needs."""
        return (self.across - 1) * self.run * self.stride[1] + self.span

    def _starts(self, pitch):
        """Banks that eight lanes, some of them in other rows, begin to load at."""
        lines = 8 // min(self.across, 8)
        places = ((line, lane) for line in range(lines) for lane in range(8 // lines))
        return {(line * pitch * self.stride[0] + lane * self.run * self.stride[1]) % 32 for line, lane in places}

    @property
    def pitch(self):
        """Words from row to row: so many that eight lanes, which load 16 bytes each at a time, find 32 different banks,
        if there is such a number.
        """
        pitches = range(self.width, self.width + 32, 4)
        return next((pitch for pitch in pitches if len(self._starts(pitch)) == 8), self.width)

    @property
    def has_conflicts(self):
        """Whether lanes that load together meet in a bank, whatever the pitch."""
        return len(self._starts(self.pitch)) < 8

    @property
    def slot(self):
        """Words for the weights of a thread's out channels: 1, 2, 4 or 8."""
        return 1 << (self.outs - 1).bit_length()

    @property
    def weight_pitch(self):
        """Words from one value of the kernel to the next."""
        return self.parts * self.slot

    @property
    def image_words(self):
        """Words of a stage's pixels."""
        return self.depth * self.rows * self.pitch

    @property
    def copies(self):
        """Copies that a thread makes of each channel's pixels."""
        return -(-self.rows * self.pitch // (self.threads * (4 if self.quads else 1)))

    @property
    def stage_words(self):
        """Words of a stage: pixels, then weights."""
        return self.image_words + _up(self.depth * self.kernel[0] * self.lines * self.weight_pitch, 4)

    @property
    def sums_words(self):
        """Words for the sums that sets of warps give to others."""
        return (self.split - 1) * self.threads // self.split * self.outs * self.run

    @property
    def nbytes(self):
        """Shared memory of a block: the ring of stages; when all are done, sums for others, then results, lie there."""
        return 4 * max(self.stages * self.stage_words, self.sums_words + self.threads * self.outs * self.run)


def _up(n, multiple):
    return -(-n // multiple) * multiple


# -- from shared memory to registers, and the sums -------------------------------------------------


@functools.cache
def row_loader(layout):
    """Device function: the pixels of a row that a thread needs, into registers."""
    span = layout.span

    @cuda.jit(device=True, forceinline=True)
    def load_row(buffer, at, x):
        for i in range(0, span, 4):
            x[i], x[i + 1], x[i + 2], x[i + 3] = load4(buffer, uint64(at + uint64(i)))

    return load_row


@functools.cache
def weight_loader(layout):
    """Device function: one value of the kernel for each of a thread's out channels. All lanes read the same words."""
    outs = layout.outs

    @cuda.jit(device=True, forceinline=True)
    def load_weights(buffer, at, w):
        if outs == 1:
            w[0] = buffer[at]
        elif outs == 2:
            w[0], w[1] = load2(buffer, at)
        else:
            w[0], w[1], w[2], w[3] = load4(buffer, at)
        if outs > 6:
            w[4], w[5], w[6], w[7] = load4(buffer, uint64(at + uint64(4)))
        elif outs > 4:
            w[4], w[5] = load2(buffer, uint64(at + uint64(4)))

    return load_weights


@functools.cache
def multiplier(layout):
    """Device function: a row of the kernel times a row of pixels, added to the sums; ``after`` is where the weights
    of the next row begin. In pairs, ``x`` is what `pair_multiplier` makes of the pixels.

    It is put together from pieces that the compiler unrolls, so that all indices of registers are constants.
    """
    outs, slot, sums, sets, pitch = layout.outs, layout.slot, layout.sums, layout.sets, layout.weight_pitch
    dilation, lines, paired, pairs = layout.dilation[1], layout.lines, layout.paired, max(1, layout.kernel[1] // 2)
    step, count = 1 if paired else layout.stride[1], layout.pixel_pairs
    load_weights = weight_loader(layout)

    def piece(first, last):
        @cuda.jit(device=True, forceinline=True)
        def multiply(buffer, at, after, x, w, total):
            now = cuda.local.array(slot, float32)
            for n in range(first, last):
                for o in range(outs):
                    now[o] = w[o]
                load_weights(buffer, after if n == lines - 1 else uint64(at + uint64((n + 1) * pitch)), w)
                which = n // pairs if paired else n % sets
                begin = which * count + n % pairs if paired else n * dilation
                for o in range(outs):
                    for k in range(sums):
                        i = k if o % 2 == 0 else sums - 1 - k
                        total[which, o, i] += x[begin + i * step] * now[o]

        return multiply

    def pieces(last):
        first = max(0, last - max(1, MOST_UNROLLED // (sums * outs)))
        own = piece(first, last)
        if first == 0:
            return own
        others = pieces(first)

        @cuda.jit(device=True, forceinline=True)
        def multiply(buffer, at, after, x, w, total):
            others(buffer, at, after, x, w, total)
            own(buffer, at, after, x, w, total)

        return multiply

    return pieces(3 * pairs if paired else lines)


@functools.cache
def pair_multiplier(layout):
    """What `multiplier` is, for values in pairs: three products where two values take four.

    Two neighbours x0 w0 + x1 w1 and x1 w0 + x2 w1 are (x0 - x1) w0 + b and (x2 - x1) w1 + b with b = x1 (w0 + w1). A
    pair has a sum for each of the three products, and that of b is added to the others in the end. The last of an odd
    number of weights is multiplied as it is.
    """
    outs, slot, sums, count = layout.outs, layout.slot, layout.sums, layout.pixel_pairs
    pairs, is_odd = layout.kernel[1] // 2, layout.kernel[1] % 2
    known, differences = 4 * count, count - is_odd
    load_weights, multiply_pairs = weight_loader(layout), multiplier(layout)

    @cuda.jit(device=True, forceinline=True)
    def multiply(buffer, at, after, row, w, total):
        x, last = cuda.local.array(known, float32), cuda.local.array(slot, float32)
        for i in range(differences):
            x[i] = row[2 * i] - row[2 * i + 1]
            x[count + i] = row[2 * i + 2] - row[2 * i + 1]
        for i in range(count):
            x[2 * count + i], x[3 * count + i] = row[2 * i + 1], row[2 * i]
        multiply_pairs(buffer, at, after, x, w, total)
        if is_odd:
            for o in range(outs):
                last[o] = w[o]
            load_weights(buffer, after, w)
            for o in range(outs):
                for i in range(sums):
                    total[0, o, i] += x[3 * count + pairs + i] * last[o]
                    total[1, o, i] += x[2 * count + pairs + i] * last[o]

    return multiply


@functools.cache
def accumulator(layout):
    """Device function: all rows of the kernel for ``count`` in channels of a stage."""
    load_row, load_weights = row_loader(layout), weight_loader(layout)
    multiply = pair_multiplier(layout) if layout.paired else multiplier(layout)
    taps, span, slot = layout.kernel[0], layout.span, layout.slot
    down = layout.dilation[0] * layout.pitch
    channel = layout.rows * layout.pitch
    over = channel - (taps - 1) * down  # from a channel's last row to the next one's first
    along = layout.lines * layout.weight_pitch

    @cuda.jit(device=True, forceinline=True)
    def step(buffer, at, wt, kh, last, last_wt, now, then, w, total):
        """Load the next row into ``then`` and compute with ``now``; the last step loads its own row again.

        By a minimum: a compiler that understood it would copy registers instead, which costs as much as six loads.
        """
        ends = kh == uint32(taps)
        then_at = min(uint32(at + (uint32(over) if ends else uint32(down))), last)
        after = min(uint32(wt + uint32(along)), last_wt)
        load_row(buffer, uint64(then_at), then)
        multiply(buffer, uint64(wt), uint64(after), now, w, total)
        return then_at, after, uint32(1) if ends else uint32(kh + uint32(1))

    @cuda.jit(device=True, forceinline=True)
    def accumulate(buffer, at, wt, count, total):
        even, odd = cuda.local.array(span, float32), cuda.local.array(span, float32)
        w = cuda.local.array(slot, float32)
        load_row(buffer, uint64(at), even)
        load_weights(buffer, uint64(wt), w)
        kh, left = uint32(1), uint32(count * uint32(taps))
        last = uint32(at + (count - uint32(1)) * uint32(channel) + uint32((taps - 1) * down))
        last_wt = uint32(wt + (left - uint32(1)) * uint32(along))
        while True:
            at, wt, kh = step(buffer, at, wt, kh, last, last_wt, even, odd, w, total)
            if left == uint32(1):
                break
            at, wt, kh = step(buffer, at, wt, kh, last, last_wt, odd, even, w, total)
            left = uint32(left - uint32(2))
            if left == uint32(0):
                break

    return accumulate


# -- from global to shared memory ------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def copy_now(buffer, at, source, place, there):
    """What `copy_async` does for float32, for float16, which is converted on its way: the thread waits for the load."""
    value = float32(0)
    if there:
        value = float32(source[place])
    buffer[at] = value


@functools.cache
def image_copier(layout):
    """Device function: begin to copy the pixels of a stage's in channels.

    All threads share the copy evenly (E5). From one piece of a thread to its next one it is a whole number of threads,
    so many rows and columns, which the compiler knows: nothing is kept from stage to stage, and nothing divided.
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
                    at = uint64(start + uint32(e + uint32(j * together + d * each)))
                    copy(buffer, at, x, uint64(source + uint64(d) * plane), there)
            row, col = further(row, col)

    @cuda.jit(device=True, forceinline=True)
    def copy_half(buffer, start, x, base, first, top, left, sizes):
        """All loads of a channel before the first of its stores, so that they are under way together."""
        plane, value = uint64(sizes.height * sizes.width), cuda.local.array(copies, float32)
        e = uint32(cuda.threadIdx.x)
        for d in range(depth):
            row = e // uint32(pitch)
            col = uint32(e - row * uint32(pitch))
            for j in range(copies):
                r, c = uint32(top + row), uint32(left + col)
                value[j] = float32(0)
                if r < sizes.height and c < sizes.width and uint32(first + uint32(d)) < sizes.channels:
                    value[j] = float32(x[uint64(base + (first + uint64(d)) * plane + uint32(r * sizes.width + c))])
                row, col = further(row, col)
            for j in range(copies):
                if (j + 1) * together <= each or e < uint32(each - j * together):
                    buffer[uint64(start + uint32(e + uint32(j * together + d * each)))] = value[j]

    return copy_half if layout.half else copy_image


@functools.cache
def weight_copier(layout):
    """Two device functions: one begins to copy the weights of a stage's in channels, those of a value of the kernel
    together; the other, when they have arrived, adds those of each pair.

    A thread has whole rows of the kernel, for one out channel, and adds what it has copied itself: of all places only
    the first of a row has to be worked out.
    """
    (height, across), outs, slot, paired = layout.kernel, layout.outs, layout.slot, layout.paired
    each, lines, rows = layout.weight_pitch, layout.lines * layout.weight_pitch, layout.depth * layout.kernel[0]
    at_once = layout.threads // each
    rounds, is_even, pairs = -(-rows // at_once), rows % at_once == 0, across // 2
    copy = copy_now if layout.half else copy_async

    @cuda.jit(device=True, forceinline=True)
    def copy_weights(buffer, start, weight, group, made, first, sizes):
        tid = uint32(cuda.threadIdx.x)
        row = tid // uint32(each)
        line = uint32(tid - row * uint32(each))
        part = line // uint32(slot)
        k = uint32(line - part * uint32(slot))
        o = uint32(made + part * uint32(outs) + k)
        to, of_out = uint64(start + row * uint32(lines) + line), uint32(sizes.channels * uint32(height))
        above = uint32(first * uint32(height))  # rows of the in channels before this stage
        source = uint64((uint64(group * sizes.outs + o) * of_out + above + row) * uint64(across))
        for n in range(rounds):
            if is_even or n + 1 < rounds or row < uint32(rows - n * at_once):
                there = k < uint32(outs) and o < sizes.outs and uint32(above + row + uint32(n * at_once)) < of_out
                for j in range(across):
                    place = n * at_once * lines + (j // 2 + j % 2 * pairs if paired else j) * each
                    if paired and j == 2 * pairs:  # the last one, of an odd number
                        place = n * at_once * lines + 3 * pairs * each
                    beside = n * at_once * across + j
                    copy(buffer, uint64(to + uint64(place)), weight, uint64(source + uint64(beside)), there)

    @cuda.jit(device=True, forceinline=True)
    def add_weights(buffer, start):
        tid = uint32(cuda.threadIdx.x)
        row = tid // uint32(each)
        to = uint64(start + row * uint32(lines) + tid - row * uint32(each))
        for n in range(rounds):
            if is_even or n + 1 < rounds or row < uint32(rows - n * at_once):
                for j in range(pairs):
                    at = uint64(to + uint64(n * at_once * lines + j * each))
                    both = buffer[at] + buffer[uint64(at + uint64(pairs * each))]
                    buffer[uint64(at + uint64(2 * pairs * each))] = both

    return copy_weights, add_weights


# -- the sums of all sets of warps -----------------------------------------------------------------


@functools.cache
def settler(layout):
    """Device function: the values of a thread, from its sets of sums."""
    outs, run, sets, paired = layout.outs, layout.run, layout.sets, layout.paired

    @cuda.jit(device=True, forceinline=True)
    def settle(total, value):
        for o in range(outs):
            for i in range(run):
                if paired:
                    value[o, i] = total[i % 2, o, i // 2] + total[2, o, i // 2]
                elif sets == 2:
                    value[o, i] = total[0, o, i] + total[1, o, i]
                else:
                    value[o, i] = total[0, o, i]

    return settle


@functools.cache
def combiner(layout):
    """Device function: every set of warps has some of the out channels for its own. It gives its sums of the others
    away, and adds what it is given to its own, in the order of the sets.
    """
    outs, run, split = layout.outs, layout.run, layout.split
    each = layout.threads // split

    @cuda.jit(device=True, forceinline=True)
    def give(buffer, at, o, value):
        for i in range(0, run, 4):
            store4(
                buffer, uint64(at + uint32(i * each)), value[o, i], value[o, i + 1], value[o, i + 2], value[o, i + 3]
            )

    @cuda.jit(device=True, forceinline=True)
    def take(buffer, at, o, value):
        for i in range(0, run, 4):
            a, b, c, d = load4(buffer, uint64(at + uint32(i * each)))
            value[o, i] += a
            value[o, i + 1] += b
            value[o, i + 2] += c
            value[o, i + 3] += d

    @cuda.jit(device=True, forceinline=True)
    def combine(buffer, mine, inside, value):
        cuda.syncthreads()  # nobody reads a stage any more
        for o in range(outs):
            owner = o * split // outs
            slot = uint32(mine if mine < uint32(owner) else mine - uint32(1))
            if mine != uint32(owner):
                at = uint32((slot + uint32(o * (split - 1))) * uint32(each * run) + inside * uint32(4))
                give(buffer, at, o, value)
        cuda.syncthreads()
        for o in range(outs):
            if mine == uint32(o * split // outs):
                for slot in range(split - 1):
                    at = uint32(uint32((slot + o * (split - 1)) * each * run) + inside * uint32(4))
                    take(buffer, at, o, value)

    return combine


# -- from registers to global memory ---------------------------------------------------------------


@functools.cache
def writer(layout):
    """Three device functions: one works out where a lane's values go in every plane of out, one brings the values of
    each thread to its warp's piece of shared memory, and one writes those of an out channel, 32 neighbours at a time.
    """
    run, line, outs = layout.run, layout.across * layout.run, layout.outs

    @cuda.jit(device=True, forceinline=True)
    def find_spots(spots, top, left, sizes):
        lane = uint32(cuda.threadIdx.x) % uint32(32)
        for k in range(run):
            if line % 32 == 0:  # a warp's 32 values are neighbours in a row, which the compiler knows
                row, col = uint32(top + uint32(32 * k // line)), uint32(left + uint32(lane + uint32(32 * k % line)))
            else:
                r = uint32(lane + uint32(32 * k)) // uint32(line)
                row, col = uint32(top + r), uint32(left + uint32(lane + uint32(32 * k) - r * uint32(line)))
            spots[k] = uint32(OUTSIDE)
            if row < sizes.out_h and col < sizes.out_w:
                spots[k] = uint32(row * sizes.out_w + col)

    @cuda.jit(device=True, forceinline=True)
    def hand_over(buffer, piece, value):
        at = uint64(piece + uint64(uint32(cuda.threadIdx.x) % uint32(32) * uint32(run)))
        for o in range(outs):
            for i in range(0, run, 4):
                to = uint64(at + uint64(o * 32 * run + i))
                store4(buffer, to, value[o, i], value[o, i + 1], value[o, i + 2], value[o, i + 3])

    @cuda.jit(device=True, forceinline=True)
    def write(buffer, piece, plane, spots):
        value = cuda.local.array(run, float32)
        lane = uint32(cuda.threadIdx.x) % uint32(32)
        for k in range(run):  # all loads before the first store, so that they are under way together
            value[k] = buffer[uint64(piece + uint64(lane + uint32(32 * k)))]
        for k in range(run):
            if spots[k] != uint32(OUTSIDE):
                plane[spots[k]] = value[k]

    return find_spots, hand_over, write


# -- the kernel ------------------------------------------------------------------------------------


@functools.cache
def specialised(layout):
    """Kernel for one layout (E7, E8): ``specialised(layout)[blocks, layout.threads, stream, layout.nbytes]``.

    Its arguments: x (N, C, H, W), weight (M, C / groups, KH, KW), bias (M), read if ``sizes.biased`` only, and out
    (N, M, OH, OW), all of them flat, C-contiguous and float32, or float16 where the layout has ``half``; and
    `ladder.Sizes`. Warps must be whole in each set of a layout: ``across`` divides 32, and 32 divides
    ``across * down``. ``depth`` is a multiple of ``split``, and there are two stages or more.
    """
    outs, run, across, depth, stages = layout.outs, layout.run, layout.across, layout.depth, layout.stages
    (tile_h, tile_w), (stride_h, stride_w), made_by_all = layout.tile, layout.stride, layout.made
    split, sets, sums, slot, pitch = layout.split, layout.sets, layout.sums, layout.slot, layout.pitch
    each_part, each_set, share = across * tile_h, layout.threads // split, depth // split
    stage_words, image_words, sums_words = layout.stage_words, layout.image_words, layout.sums_words
    weight_words, channel_words = layout.kernel[0] * layout.lines * layout.weight_pitch, layout.rows * pitch
    end, ahead, pending, lines = stages * stage_words, stages - 1, stages - 2, 32 // across
    copy_image, (copy_weights, add_weights), paired = image_copier(layout), weight_copier(layout), layout.paired
    accumulate, settle, combine = accumulator(layout), settler(layout), combiner(layout)
    find_spots, hand_over, write = writer(layout)

    @cuda.jit
    def specialised(x, weight, bias, out, sizes):
        buffer = cuda.shared.array(0, float32)
        total, value = cuda.local.array((sets, outs, sums), float32), cuda.local.array((outs, run), float32)
        sample, group, first_made, top, left = place(sizes, uint32(tile_h), uint32(tile_w), uint32(made_by_all))
        sample_group = uint64(sample * sizes.groups.value + group)
        base = uint64(sample_group * sizes.channels * uint64(sizes.height * sizes.width))
        from_row = uint32(top * uint32(stride_h) - sizes.padding_h)
        from_col = uint32(left * uint32(stride_w) - sizes.padding_w)
        for s in range(ahead):  # a group of copies for each stage but one
            start = uint32(s * stage_words)
            channel = uint32(s * depth)
            copy_image(buffer, start, x, base, channel, from_row, from_col, sizes)
            copy_weights(buffer, uint32(start + uint32(image_words)), weight, group, first_made, channel, sizes)
            commit_copies()

        tid = uint32(cuda.threadIdx.x)
        mine = tid // uint32(each_set)  # of the sets of warps that share the in channels
        inside = uint32(tid - mine * uint32(each_set))
        part = inside // uint32(each_part)
        line = uint32(inside - part * uint32(each_part)) // uint32(across)
        col = uint32(inside - part * uint32(each_part) - line * uint32(across))
        made = uint32(first_made + part * uint32(outs))
        for o in range(outs):
            initial = float32(0)
            if sizes.biased and mine == uint32(0) and uint32(made + uint32(o)) < sizes.outs:
                initial = float32(bias[group * sizes.outs + uint32(made + uint32(o))])
            for i in range(sums):
                total[0, o, i] = initial
                if sets > 1:
                    total[1, o, i] = initial if paired else float32(0)
                if sets > 2:
                    total[2, o, i] = float32(0)

        first_pixel = mine * uint32(share * channel_words) + line * uint32(stride_h * pitch)
        at = uint32(first_pixel + col * uint32(run * stride_w))
        wt = uint32(uint32(image_words) + part * uint32(slot) + mine * uint32(share * weight_words))
        now, then, first = uint32(0), uint32(ahead * stage_words), uint32(0)
        while first < sizes.channels:
            wait_copies(pending)
            if paired:
                add_weights(buffer, uint32(now + uint32(image_words)))
            cuda.syncthreads()  # this stage is complete, and nobody computes on the one before, which is filled next
            further = uint32(first + uint32(ahead * depth))
            if further < sizes.channels:
                copy_image(buffer, then, x, base, further, from_row, from_col, sizes)
                copy_weights(buffer, uint32(then + uint32(image_words)), weight, group, first_made, further, sizes)
            commit_copies()
            own = uint32(first + mine * uint32(share))
            if own < sizes.channels:
                count = min(uint32(share), uint32(sizes.channels - own))
                accumulate(buffer, uint32(at + now), uint32(wt + now), count, total)
            first = uint32(first + uint32(depth))
            now = uint32(now + uint32(stage_words)) if now < uint32(end - stage_words) else uint32(0)
            then = uint32(then + uint32(stage_words)) if then < uint32(end - stage_words) else uint32(0)

        if pending:
            wait_copies(0)  # of zeros, for stages that no channel fills
        settle(total, value)
        if split > 1:
            combine(buffer, mine, inside, value)
        else:
            cuda.syncthreads()  # nobody reads a stage any more
        warp = tid // uint32(32)
        piece = uint32(uint32(sums_words) + warp * uint32(32 * run * outs))
        spots = cuda.local.array(run, uint32)
        find_spots(spots, uint32(top + uint32(warp * uint32(lines)) % uint32(tile_h)), left, sizes)
        hand_over(buffer, uint64(piece), value)
        cuda.syncwarp()
        positions, o = int64(sizes.out_h * sizes.out_w), uint32(0)
        while o < uint32(outs):  # one piece of code for all: code that runs once costs more to fetch than to run
            if uint32(made + o) < sizes.outs and mine == uint32(o * uint32(split)) // uint32(outs):
                corner = int64(sample_group * sizes.outs + uint64(made + o)) * positions
                write(buffer, uint64(piece + o * uint32(32 * run)), out[corner : corner + positions], spots)
            o = uint32(o + uint32(1))

    return specialised
