"""The kernels that ``resize``, ``letterbox`` and ``blob`` launch, for batches of frames of one size or of many.

1. ``planes``: normalised planes of a network's input. A thread makes four pixels of a row, a warp 128.
2. ``pixels``: whole pixels. As ``planes``; values are exchanged in shared memory, so that a warp stores neighbours.
3. ``values``: float32 pixels. A thread makes one value.

What depends on a row alone is computed once for a block and kept in shared memory. What depends on a column alone is
computed once for a thread, which goes through several rows, and through frames that are alike. A row of the source
whose share is 0 is not read: a reduction by 3 reads a third of the rows.

Images are flat arrays, and indices unsigned: Numba checks a signed index for being negative. It also widens integers to
64 bits; the casts take each result back to 32.
"""

import functools

from gpukit.backend import cuda, float32, int64, uint32, uint64
from gpukit.intrinsics import load4, store4
from warpstep.limits import WARP

__all__ = [
    "BLOCK",
    "FIELDS",
    "LANES",
    "SPAN",
    "WARPS",
    "fields_of_all",
    "fields_of_each",
    "make_pixels",
    "make_planes",
    "make_values",
]

LANES, WARPS = WARP, 4
BLOCK = (LANES, WARPS)
#: Rows that a thread goes through, at most, and rows that a block does.
MAX_ROWS = 8
BAND = WARPS * MAX_ROWS
#: Pixels and values of a row that a warp makes.
SPAN = 4 * LANES
VALUES = 3 * SPAN
#: Max registers of a thread of ``pixels``, by the bytes of a value: more blocks on a multiprocessor are worth them.
REGISTERS = {1: 48, 4: 64}
#: The place of a row of the target outside of the picture.
OUTSIDE = -1

#: The geometry of a frame: its first element and the distance between its rows, in elements; its size; and the size and
#: place of its picture in the target; and how many rows, and columns, there are for one of the picture.
FIELDS = ("start", "pitch", "rows", "columns", "height", "width", "top", "left", "down", "across")


@cuda.jit(device=True)
def fields_of_all(geometry, frame):
    """The fields of a frame where all are alike. ``geometry`` is a tuple; ``start`` is the distance between frames."""
    return (
        uint64(frame) * uint64(geometry[0]),
        uint64(geometry[1]),
        uint32(geometry[2]),
        uint32(geometry[3]),
        uint32(geometry[4]),
        uint32(geometry[5]),
        uint32(geometry[6]),
        uint32(geometry[7]),
        geometry[8],
        geometry[9],
    )


@cuda.jit(device=True)
def fields_of_each(geometry, frame):
    """The fields of a frame where each has its own.

    ``geometry`` is an int64 array of shape (frames, fields), with the bits of the last two, which are float64.
    """
    return (
        uint64(geometry[frame, 0]),
        uint64(geometry[frame, 1]),
        uint32(geometry[frame, 2]),
        uint32(geometry[frame, 3]),
        uint32(geometry[frame, 4]),
        uint32(geometry[frame, 5]),
        uint32(geometry[frame, 6]),
        uint32(geometry[frame, 7]),
        cuda.libdevice.longlong_as_double(geometry[frame, 8]),
        cuda.libdevice.longlong_as_double(geometry[frame, 9]),
    )


@cuda.jit(device=True)
def reorder(three, swap):
    """Three values in the channel order of the result, from those in the order of the source, or back."""
    return (three[2], three[1], three[0]) if swap else three


@functools.cache
def make_fill_rows(row_of):
    """Make ``fill_rows(places, lows, shares, band, fields)``: fill the tables of the block's rows.

    The first threads do it, for the target's rows from ``band`` on: the indices of a row's two source rows, and the
    share of the second.
    """

    @cuda.jit(device=True)
    def fill_rows(places, lows, shares, band, fields):
        _, pitch, n, _, height, _, top, _, scale, _ = fields
        tid = uint32(uint32(cuda.threadIdx.y * uint32(LANES)) + uint32(cuda.threadIdx.x))
        if tid < uint32(BAND):
            # A row above the picture wraps round to a large number: one comparison finds both sides.
            row = uint32(uint32(band + tid) - top)
            first, second, shares[tid] = row_of(uint32(min(row, uint32(height - uint32(1)))), n, height, scale)
            places[tid] = int64(uint64(first) * pitch) if row < height else int64(OUTSIDE)
            lows[tid] = int64(uint64(second) * pitch)

    return fill_rows


@functools.cache
def make_column_at(column_of):
    """Make ``column_at(x, fields)``: (whether x is in the picture, what the sampler needs of its columns).

    Outside of the picture it is the picture's nearest column, so that every load is in the image.
    """

    @cuda.jit(device=True)
    def column_at(x, fields):
        _, _, _, m, _, width, _, left, _, scale = fields
        across = uint32(x - left)
        nearest = uint32(min(uint32(max(x, left) - left), uint32(width - uint32(1))))
        return across < width, column_of(nearest, m, width, scale)

    return column_at


@functools.cache
def make_four_columns(column_of, apart=1):
    """Make ``four_columns(x, fields)``: ``column_at`` of x and of the three after it, each ``apart`` from the next."""
    column = make_column_at(column_of)

    @cuda.jit(device=True)
    def four_columns(x, fields):
        return (
            column(x, fields),
            column(uint32(x + uint32(apart)), fields),
            column(uint32(x + uint32(2 * apart)), fields),
            column(uint32(x + uint32(3 * apart)), fields),
        )

    return four_columns


@functools.cache
def make_four_pixels(one, both, share):
    """Make ``four_pixels(image, line, low, y, columns)``: one row's pixels in four columns.

    A second row without a share is not read.
    """

    @cuda.jit(device=True)
    def four_pixels(image, line, low, y, columns):
        (_, p), (_, q), (_, r), (_, s) = columns
        if y == share(0):  # the same for a whole warp
            return one(image, line, p), one(image, line, q), one(image, line, r), one(image, line, s)
        return (
            both(image, line, low, p, y),
            both(image, line, low, q, y),
            both(image, line, low, r, y),
            both(image, line, low, s, y),
        )

    return four_pixels


@cuda.jit(device=True)
def normalise(values, mean, factor):
    return (
        (float32(values[0]) - mean[0]) * factor[0],
        (float32(values[1]) - mean[1]) * factor[1],
        (float32(values[2]) - mean[2]) * factor[2],
    )


@functools.cache
def make_store_four(number, apart):
    """Make ``store_four(out, at, p, q, r, s, left, together)``: four values of a row that has ``left`` more.

    One access if they are neighbours and ``together``, otherwise one by one.
    """

    @cuda.jit(device=True)
    def store_four(out, at, p, q, r, s, left, together):
        if apart == 1 and together:
            store4(out, at, number(p), number(q), number(r), number(s))
        else:
            out[at] = number(p)
            if left > uint32(apart):
                out[at + uint64(apart)] = number(q)
            if left > uint32(2 * apart):
                out[at + uint64(2 * apart)] = number(r)
            if left > uint32(3 * apart):
                out[at + uint64(3 * apart)] = number(s)

    return store_four


@functools.cache
def make_planes(sampler, number, fields_of):
    """Make the kernel ``planes``: (value - mean) * factor in planes. ``out`` is (N, 3, H, W) in C order and flat.

    ``work`` is (first frame, frame after the last, H, W, rows of a thread, together). ``together`` says that four
    neighbours can be stored in one access: rows have a multiple of 4 values, and memory is aligned to four.
    """
    fill_rows, columns_at = make_fill_rows(sampler.row), make_four_columns(sampler.column, sampler.apart)
    store, between = make_store_four(number, sampler.apart), 4 if sampler.apart == 1 else 1
    share, pixels_at = sampler.share, make_four_pixels(sampler.one, sampler.both, sampler.share)

    @cuda.jit
    def planes(image, geometry, out, work, fill, mean, factor, swap):
        places = cuda.shared.array(BAND, int64)
        lows = cuda.shared.array(BAND, int64)
        shares = cuda.shared.array(BAND, share)
        frame, frames = uint32(work[0] + cuda.blockIdx.z), uint32(work[1])
        high, wide, rows = uint32(work[2]), uint32(work[3]), uint32(work[4])
        fields = fields_of(geometry, frame)
        band = uint32(cuda.blockIdx.y * uint32(WARPS * rows))
        fill_rows(places, lows, shares, band, fields)
        x = uint32(uint32(cuda.blockIdx.x * SPAN) + uint32(between * cuda.threadIdx.x))
        columns = columns_at(x, fields)
        cuda.syncthreads()
        plane, left = uint64(high) * uint64(wide), uint32(wide - x)
        # In the channel order of the source.
        mean, factor = reorder(mean, swap), reorder(factor, swap)
        border = normalise(reorder(fill, swap), mean, factor)
        red, blue = (plane + plane, uint64(0)) if swap else (uint64(0), plane + plane)
        while frame < frames and x < wide:
            start = fields_of(geometry, frame)[0]
            corner = uint64(frame) * uint64(uint64(3) * plane) + uint64(x)
            line = uint32(cuda.threadIdx.y)
            while line < uint32(WARPS * rows) and uint32(band + line) < high:
                a, b, c, d = border, border, border, border
                if places[line] >= int64(0):  # the same for a whole warp
                    top, low = start + uint64(places[line]), start + uint64(lows[line])
                    p, q, r, s = pixels_at(image, top, low, shares[line], columns)
                    if columns[0][0]:
                        a = normalise(p, mean, factor)
                    if columns[1][0]:
                        b = normalise(q, mean, factor)
                    if columns[2][0]:
                        c = normalise(r, mean, factor)
                    if columns[3][0]:
                        d = normalise(s, mean, factor)
                at = corner + uint64(uint32(band + line)) * uint64(wide)
                store(out, at + red, a[0], b[0], c[0], d[0], left, work[5])
                store(out, at + plane, a[1], b[1], c[1], d[1], left, work[5])
                store(out, at + blue, a[2], b[2], c[2], d[2], left, work[5])
                line = uint32(line + uint32(WARPS))
            frame = uint32(frame + uint32(cuda.gridDim.z))

    return planes


@functools.cache
def make_pixels(sampler, number, fields_of):
    """Make the kernel ``pixels``: ``out`` is (N, H, W, 3) in C order and flat; ``work`` as for ``planes``.

    The lanes of a warp exchange their values through shared memory, so that they store 32 neighbours at a time: values,
    or four values each.
    """
    fill_rows, columns_at = make_fill_rows(sampler.row), make_four_columns(sampler.column, sampler.apart)
    share, pixels_at = sampler.share, make_four_pixels(sampler.one, sampler.both, sampler.share)
    stage_four, between = make_stage_four(sampler.apart), 4 if sampler.apart == 1 else 1

    @cuda.jit(device=True)
    def convert(values, swap):
        a, b, c = reorder(values, swap)
        return number(a), number(b), number(c)

    @cuda.jit(max_registers=REGISTERS[number.bitwidth // 8])
    def pixels(image, geometry, out, work, fill, swap):
        places = cuda.shared.array(BAND, int64)
        lows = cuda.shared.array(BAND, int64)
        shares = cuda.shared.array(BAND, share)
        stage = cuda.shared.array((WARPS, VALUES), number, alignment=16)
        frame, frames = uint32(work[0] + cuda.blockIdx.z), uint32(work[1])
        high, wide, rows = uint32(work[2]), uint32(work[3]), uint32(work[4])
        fields = fields_of(geometry, frame)
        band = uint32(cuda.blockIdx.y * uint32(WARPS * rows))
        fill_rows(places, lows, shares, band, fields)
        lane, warp = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        x = uint32(cuda.blockIdx.x * SPAN)
        columns = columns_at(uint32(x + uint32(uint32(between) * lane)), fields)
        cuda.syncthreads()
        pitch = uint64(uint32(uint32(3) * wide))
        valid = uint32(min(uint32(VALUES), uint32(uint32(3) * uint32(wide - x))))
        while frame < frames:
            start = fields_of(geometry, frame)[0]
            line = warp
            while line < uint32(WARPS * rows) and uint32(band + line) < high:  # the same for a whole warp
                a, b, c, d = fill, fill, fill, fill
                if places[line] >= int64(0):
                    top, low = start + uint64(places[line]), start + uint64(lows[line])
                    p, q, r, s = pixels_at(image, top, low, shares[line], columns)
                    if columns[0][0]:
                        a = convert(p, swap)
                    if columns[1][0]:
                        b = convert(q, swap)
                    if columns[2][0]:
                        c = convert(r, swap)
                    if columns[3][0]:
                        d = convert(s, swap)
                stage_four(stage, warp, lane, a, b, c, d)
                cuda.syncwarp()
                at = (uint64(frame) * uint64(high) + uint64(uint32(band + line))) * pitch
                store_staged(out, at + uint64(uint32(uint32(3) * x)), stage, warp, lane, valid, work[5])
                cuda.syncwarp()
                line = uint32(line + uint32(WARPS))
            frame = uint32(frame + uint32(cuda.gridDim.z))

    return pixels


@functools.cache
def make_stage_four(apart):
    """Make ``stage_four(stage, warp, lane, a, b, c, d)``: stage a lane's pixels, each ``apart`` from the next."""

    @cuda.jit(device=True)
    def stage_one(stage, warp, i, three):
        for k in range(3):
            stage[warp, uint32(i + uint32(k))] = three[k]

    @cuda.jit(device=True)
    def stage_four(stage, warp, lane, a, b, c, d):
        if apart == 1:
            i = uint32(uint32(12) * lane)
            store4(stage, (warp, i), a[0], a[1], a[2], b[0])
            store4(stage, (warp, uint32(i + uint32(4))), b[1], b[2], c[0], c[1])
            store4(stage, (warp, uint32(i + uint32(8))), c[2], d[0], d[1], d[2])
        else:
            i = uint32(uint32(3) * lane)
            stage_one(stage, warp, i, a)
            stage_one(stage, warp, uint32(i + uint32(3 * apart)), b)
            stage_one(stage, warp, uint32(i + uint32(6 * apart)), c)
            stage_one(stage, warp, uint32(i + uint32(9 * apart)), d)

    return stage_four


@cuda.jit(device=True)
def store_staged(out, at, stage, warp, lane, valid, together):
    """Store the ``valid`` values that a warp has staged, from element ``at`` on."""
    if together:
        for k in range(3):
            i = uint32(uint32(4) * uint32(lane + uint32(k * LANES)))
            if i < valid:
                v = load4(stage, (warp, i))
                store4(out, at + uint64(i), v[0], v[1], v[2], v[3])
    else:
        for k in range(12):
            i = uint32(lane + uint32(k * LANES))
            if i < valid:
                out[at + uint64(i)] = stage[warp, i]


@cuda.jit(device=True)
def pick(three, channel):
    """One of three, without an index: indexed values would have to lie in memory, not in registers."""
    return three[0] if channel == uint32(0) else three[1] if channel == uint32(1) else three[2]


@functools.cache
def make_value_at(mix, share):
    """Make ``value_at``: a value of one row of the block, mixed from columns ``left`` and ``right``, or ``border``.

    Elements without a share are not read. There is no branch, so the loads of two rows overlap; rows and columns of the
    border load what their nearest neighbour in the picture does.
    """

    @cuda.jit(device=True)
    def value_at(image, start, places, lows, shares, line, left, right, x, inside, border):
        place, y, nothing = places[line], shares[line], float32(0)
        across, down = x != share(0), y != share(0)
        top, low = start + uint64(max(place, int64(0))), start + uint64(lows[line])
        a = image[top + left]
        b = image[top + right] if across else nothing
        c = image[low + left] if down else nothing
        d = image[low + right] if across & down else nothing
        mixed = mix(a, b, c, d, x, y)
        return mixed if inside & (place >= int64(0)) else border

    return value_at


@functools.cache
def make_values(sampler, fields_of):
    """Make the kernel ``values``: float32 pixels, with a thread for each value of a row, two rows at a time.

    A warp loads and stores 32 neighbours at a time. Values of four bytes fill whole sectors that way.
    """
    fill_rows, column = make_fill_rows(sampler.row), make_column_at(sampler.column)
    share, value = sampler.share, make_value_at(sampler.mix, sampler.share)

    @cuda.jit
    def values(image, geometry, out, work, fill, swap):
        places = cuda.shared.array(BAND, int64)
        lows = cuda.shared.array(BAND, int64)
        shares = cuda.shared.array(BAND, share)
        frame, frames = uint32(work[0] + cuda.blockIdx.z), uint32(work[1])
        high, pitch, rows = uint32(work[2]), uint32(uint32(3) * uint32(work[3])), uint32(work[4])
        fields = fields_of(geometry, frame)
        band = uint32(cuda.blockIdx.y * uint32(WARPS * rows))
        fill_rows(places, lows, shares, band, fields)
        at = uint32(uint32(cuda.blockIdx.x * uint32(LANES)) + uint32(cuda.threadIdx.x))
        pixel = uint32(at // uint32(3))
        channel = uint32(at - uint32(uint32(3) * pixel))
        border = pick(fill, channel)
        inside, (left, right, x) = column(pixel, fields)
        channel = uint32(uint32(2) - channel) if swap else channel
        left, right = uint64(uint32(left + channel)), uint64(uint32(right + channel))
        cuda.syncthreads()
        limit = uint32(min(uint32(WARPS * rows), uint32(high - band)))
        while frame < frames and at < pitch:
            start = fields_of(geometry, frame)[0]
            corner = (uint64(frame) * uint64(high) + uint64(band)) * uint64(pitch) + uint64(at)
            line = uint32(cuda.threadIdx.y)
            while line < limit:
                after = uint32(min(uint32(line + uint32(WARPS)), uint32(limit - uint32(1))))
                first = value(image, start, places, lows, shares, line, left, right, x, inside, border)
                second = value(image, start, places, lows, shares, after, left, right, x, inside, border)
                out[corner + uint64(line) * uint64(pitch)] = first
                if uint32(line + uint32(WARPS)) < limit:
                    out[corner + uint64(after) * uint64(pitch)] = second
                line = uint32(line + uint32(2 * WARPS))
            frame = uint32(frame + uint32(cuda.gridDim.z))

    return values
