"""The kernels that ``resize``, ``letterbox`` and ``blob`` launch, for batches of frames of one size or of many.

In ``planes`` and ``pixels`` a thread makes four pixels of a row of the target, three channels each, and a warp 128; in
``values`` it makes one value. What depends on a row alone is computed once for a block and kept in shared memory, what
depends on a column alone once for a thread, which goes through several rows, and through frames that are alike. A row
of the source whose share is 0 is not read: a reduction by 3 reads a third of the rows.

Images are flat arrays, and all places in them unsigned, so that no index is checked for its sign.
"""

import functools

from gpukit.backend import cuda, float32, int64, uint32, uint64
from gpukit.intrinsics import load4, store4

__all__ = ["BLOCK", "FIELDS", "LANES", "SPAN", "WARPS", "of_all", "of_each", "pixels", "planes", "values"]

LANES, WARPS = 32, 4
BLOCK = (LANES, WARPS)
MOST_ROWS = 8  # that a thread goes through
BAND = WARPS * MOST_ROWS
SPAN = 4 * LANES  # pixels of a row that a warp makes
VALUES = 3 * SPAN
#: Of a thread of ``pixels``, at most: a multiprocessor then has room for ten blocks, and not for seven.
REGISTERS = 48
OUTSIDE = -1  # the place of a row of the target that is not in the picture

#: What a kernel must know of a frame. ``start`` is where in the array it begins, ``pitch`` the way from row to row,
#: both in elements; ``rows`` and ``columns`` its size; the others where in the target its picture is.
FIELDS = ("start", "pitch", "rows", "columns", "height", "width", "top", "left")


@cuda.jit(device=True)
def of_all(geometry, frame):
    """The fields of a frame where all are alike: ``geometry`` is a tuple with the way from frame to frame as start."""
    return (
        uint64(frame) * uint64(geometry[0]),
        uint64(geometry[1]),
        uint32(geometry[2]),
        uint32(geometry[3]),
        uint32(geometry[4]),
        uint32(geometry[5]),
        uint32(geometry[6]),
        uint32(geometry[7]),
    )


@cuda.jit(device=True)
def of_each(geometry, frame):
    """The fields of a frame where each has its own: ``geometry`` is an int64 array of shape (frames, fields)."""
    return (
        uint64(geometry[frame, 0]),
        uint64(geometry[frame, 1]),
        uint32(geometry[frame, 2]),
        uint32(geometry[frame, 3]),
        uint32(geometry[frame, 4]),
        uint32(geometry[frame, 5]),
        uint32(geometry[frame, 6]),
        uint32(geometry[frame, 7]),
    )


@cuda.jit(device=True)
def ordered(three, swap):
    """Three values by the channels of the result, by those of the source."""
    return (three[2], three[1], three[0]) if swap else three


@functools.cache
def rows_of_band(row_of):
    """Device function: the first threads fill the tables of the block's rows, from row ``band`` of the target on."""

    @cuda.jit(device=True)
    def rows_of_band(places, lows, shares, band, fields):
        _, pitch, n, _, height, _, top, _ = fields
        tid = uint32(uint32(cuda.threadIdx.y * uint32(LANES)) + uint32(cuda.threadIdx.x))
        if tid < uint32(BAND):
            # A row above the picture wraps round to a large number: one comparison finds both sides.
            row = uint32(uint32(band + tid) - top)
            first, second, shares[tid] = row_of(uint32(min(row, uint32(height - uint32(1)))), n, height)
            places[tid] = int64(uint64(first) * pitch) if row < height else int64(OUTSIDE)
            lows[tid] = int64(uint64(second) * pitch)

    return rows_of_band


@functools.cache
def column_at(column_of):
    """Device function: (whether x is in the picture, what the sampler needs of its columns). Outside of the picture it
    is the nearest column of the picture, so that what is loaded is always there.
    """

    @cuda.jit(device=True)
    def column_at(x, fields):
        _, _, _, m, _, width, _, left = fields
        across = uint32(x - left)
        nearest = uint32(min(uint32(max(x, left) - left), uint32(width - uint32(1))))
        return across < width, column_of(nearest, m, width)

    return column_at


@functools.cache
def four_columns(column_of, apart=1):
    """Device function: ``column_at`` of x and of the three that follow it, so far apart."""
    column = column_at(column_of)

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
def four_pixels(one, both, share):
    """Device function: the pixels of a row in four columns. A second row without a share is not read."""

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
def normalised(values, mean, factor):
    return (
        (float32(values[0]) - mean[0]) * factor[0],
        (float32(values[1]) - mean[1]) * factor[1],
        (float32(values[2]) - mean[2]) * factor[2],
    )


@functools.cache
def store_four(number, apart):
    """Device function: four values of a row, ``together`` if they are neighbours and may be, or one by one as far as
    the row goes.
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
def planes(sampler, number, fields_of):
    """Kernel for the input of a network: (value - mean) * factor in planes, out is (N, 3, H, W) in C order and flat.

    ``work`` is (first frame, frame after the last, H, W, rows that a thread goes through, whether four neighbours can
    be stored together: in rows of a multiple of 4 values, in memory that is aligned to four).
    """
    fill_rows, columns_at = rows_of_band(sampler.row), four_columns(sampler.column, sampler.apart)
    store, between = store_four(number, sampler.apart), 4 if sampler.apart == 1 else 1
    share, pixels_at = sampler.share, four_pixels(sampler.one, sampler.both, sampler.share)

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
        # By the channels of the source: where in the result they go, and what becomes of them.
        mean, factor = ordered(mean, swap), ordered(factor, swap)
        border = normalised(ordered(fill, swap), mean, factor)
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
                        a = normalised(p, mean, factor)
                    if columns[1][0]:
                        b = normalised(q, mean, factor)
                    if columns[2][0]:
                        c = normalised(r, mean, factor)
                    if columns[3][0]:
                        d = normalised(s, mean, factor)
                at = corner + uint64(uint32(band + line)) * uint64(wide)
                store(out, at + red, a[0], b[0], c[0], d[0], left, work[5])
                store(out, at + plane, a[1], b[1], c[1], d[1], left, work[5])
                store(out, at + blue, a[2], b[2], c[2], d[2], left, work[5])
                line = uint32(line + uint32(WARPS))
            frame = uint32(frame + uint32(cuda.gridDim.z))

    return planes


@functools.cache
def as_numbers(number):
    """Device function: the three values of a pixel in the type of the result, in its order."""

    @cuda.jit(device=True)
    def as_numbers(values, swap):
        a, b, c = ordered(values, swap)
        return number(a), number(b), number(c)

    return as_numbers


@functools.cache
def pixels(sampler, number, fields_of):
    """Kernel for images: out is (N, H, W, 3) in C order and flat; ``work`` as for ``planes``.

    The lanes of a warp give each other their values through shared memory, so that what they store at a time is of 32
    neighbours: values, or four values each.
    """
    fill_rows, columns_at, converted = rows_of_band(sampler.row), four_columns(sampler.column), as_numbers(number)
    share, pixels_at = sampler.share, four_pixels(sampler.one, sampler.both, sampler.share)

    @cuda.jit(max_registers=REGISTERS)
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
        columns = columns_at(uint32(x + uint32(uint32(4) * lane)), fields)
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
                        a = converted(p, swap)
                    if columns[1][0]:
                        b = converted(q, swap)
                    if columns[2][0]:
                        c = converted(r, swap)
                    if columns[3][0]:
                        d = converted(s, swap)
                i = uint32(uint32(12) * lane)
                store4(stage, (warp, i), a[0], a[1], a[2], b[0])
                store4(stage, (warp, uint32(i + uint32(4))), b[1], b[2], c[0], c[1])
                store4(stage, (warp, uint32(i + uint32(8))), c[2], d[0], d[1], d[2])
                cuda.syncwarp()
                at = (uint64(frame) * uint64(high) + uint64(uint32(band + line))) * pitch
                give(out, at + uint64(uint32(uint32(3) * x)), stage, warp, lane, valid, work[5])
                cuda.syncwarp()
                line = uint32(line + uint32(WARPS))
            frame = uint32(frame + uint32(cuda.gridDim.z))

    return pixels


@cuda.jit(device=True)
def give(out, at, stage, warp, lane, valid, together):
    """Store the values that a warp has staged, ``valid`` of them, from element ``at`` on."""
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
def of_channel(three, channel):
    """One of three, without an index that only memory can take."""
    return three[0] if channel == uint32(0) else three[1] if channel == uint32(1) else three[2]


@functools.cache
def value_at(mix, share):
    """Device function: a value of a row of the block, of columns ``left`` and ``right``; or ``border``.

    What has no share is not read. There is no branch, so that the loads of two rows are under way at a time; a row or
    column of the border costs the loads of one of the picture.
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
def values(sampler, fields_of):
    """Kernel for images of float32: the same as ``pixels`` with a thread for each value of a row, two rows at a time.

    What a warp loads and stores at a time is of 32 neighbours then; values of four bytes need no more for whole
    sectors.
    """
    fill_rows, column = rows_of_band(sampler.row), column_at(sampler.column)
    share, value = sampler.share, value_at(sampler.mix, sampler.share)

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
        border = of_channel(fill, channel)
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
