"""The kernels that ``resize``, ``letterbox`` and ``blob`` launch, for batches of frames of one size or of many.

A warp makes 32 neighbours of one row of the target, three channels each. What depends on a row alone is computed once
for a block and kept in shared memory, what depends on a column alone once for a thread, which goes through ``rows``
rows. A row of the source whose share is 0 is not read: a reduction by 3 reads a third of the rows.

Images are flat arrays, and all places in them unsigned, so that no index is checked for its sign.
"""

import functools

from numba.cuda import float32, int64, uint32, uint64

from gpukit.backend import cuda
from gpukit.intrinsics import load4, store4

__all__ = ["BLOCK", "FIELDS", "WARPS", "of_all", "of_each", "pixels", "planes"]

LANES, WARPS = 32, 8
BLOCK = (LANES, WARPS)
SPAN = 3 * LANES  # values that a warp writes to whole pixels
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
def planes(sampler, number, fields_of, rows):
    """Kernel for the input of a network: (value - mean) * factor in planes, out is (N, 3, H, W) in C order and flat.

    A warp's store to a plane is of 32 neighbours, where those to whole pixels are three apart.
    """
    band_rows = WARPS * rows
    row_of, column_of, pixel, share = sampler

    @cuda.jit
    def planes(image, geometry, out, first_frame, size, fill, mean, factor, swap):
        places = cuda.shared.array(band_rows, int64)
        lows = cuda.shared.array(band_rows, int64)
        shares = cuda.shared.array(band_rows, share)
        frame = uint32(first_frame + cuda.blockIdx.z)
        start, pitch, n, m, height, width, top, left = fields_of(geometry, frame)
        band = uint32(cuda.blockIdx.y * band_rows)
        tid = uint32(cuda.threadIdx.y * LANES + cuda.threadIdx.x)
        if tid < uint32(band_rows):
            # A row above the picture wraps round to a large number: one comparison finds both sides.
            row = uint32(uint32(band + tid) - top)
            first, second, shares[tid] = row_of(row, n, height)
            places[tid] = int64(start + uint64(first) * pitch) if row < height else int64(OUTSIDE)
            lows[tid] = int64(start + uint64(second) * pitch)
        cuda.syncthreads()
        x = uint32(cuda.blockIdx.x * LANES + cuda.threadIdx.x)
        high, wide = uint32(size[0]), uint32(size[1])
        column, second, right = column_of(uint32(x - left), m, width)
        inside = uint32(x - left) < width
        beside = uint64(uint32(uint32(3) * uint32(second - column)))
        column = uint64(uint32(uint32(3) * column))
        plane = uint64(high) * uint64(wide)
        corner = uint64(frame) * uint64(uint64(3) * plane) + uint64(x)
        # By the channels of the source: where in the result they go, and what becomes of them.
        fill, mean, factor = ordered(fill, swap), ordered(mean, swap), ordered(factor, swap)
        red, blue = (plane + plane, uint64(0)) if swap else (uint64(0), plane + plane)
        for step in range(rows):
            line = uint32(cuda.threadIdx.y + step * WARPS)
            y = uint32(band + line)
            if x < wide and y < high:
                a, b, c = float32(fill[0]), float32(fill[1]), float32(fill[2])
                if inside and places[line] >= int64(0):
                    place, low = uint64(places[line]) + column, uint64(lows[line]) + column
                    p, q, r = pixel(image, place, low, beside, right, shares[line])
                    a, b, c = float32(p), float32(q), float32(r)
                at = corner + uint64(y) * uint64(wide)
                out[at + red] = number((a - mean[0]) * factor[0])
                out[at + plane] = number((b - mean[1]) * factor[1])
                out[at + blue] = number((c - mean[2]) * factor[2])

    return planes


@functools.cache
def pixels(sampler, number, fields_of, rows, words):
    """Kernel for images: out is (N, H, W, 3) in C order and flat.

    The lanes of a warp give each other their values through shared memory, so that a store is of 32 neighbours and not
    of every third one; with ``words``, for uint8 and rows that are a multiple of 4 bytes, of 24 times 4.
    """
    band_rows = WARPS * rows
    row_of, column_of, pixel, share = sampler

    @cuda.jit
    def pixels(image, geometry, out, first_frame, size, fill, swap):
        places = cuda.shared.array(band_rows, int64)
        lows = cuda.shared.array(band_rows, int64)
        shares = cuda.shared.array(band_rows, share)
        stage = cuda.shared.array((WARPS, SPAN), number, alignment=16)
        frame = uint32(first_frame + cuda.blockIdx.z)
        start, pitch, n, m, height, width, top, left = fields_of(geometry, frame)
        band = uint32(cuda.blockIdx.y * band_rows)
        lane, warp = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        tid = uint32(warp * uint32(LANES) + lane)
        if tid < uint32(band_rows):
            row = uint32(uint32(band + tid) - top)
            first, second, shares[tid] = row_of(row, n, height)
            places[tid] = int64(start + uint64(first) * pitch) if row < height else int64(OUTSIDE)
            lows[tid] = int64(start + uint64(second) * pitch)
        cuda.syncthreads()
        x0 = uint32(cuda.blockIdx.x * LANES)
        high, wide = uint32(size[0]), uint32(size[1])
        across = uint32(uint32(x0 + lane) - left)
        column, second, right = column_of(across, m, width)
        inside = across < width
        beside = uint64(uint32(uint32(3) * uint32(second - column)))
        column = uint64(uint32(uint32(3) * column))
        fill = ordered(fill, swap)
        red = uint32(uint32(3) * lane + uint32(2 if swap else 0))
        blue = uint32(uint32(3) * lane + uint32(0 if swap else 2))
        valid = min(uint32(SPAN), uint32(uint32(3) * uint32(wide - x0)))
        for step in range(rows):
            line = uint32(warp + uint32(step * WARPS))
            y = uint32(band + line)
            if y < high:  # the same for a whole warp
                a, b, c = fill
                if inside and places[line] >= int64(0):
                    place, low = uint64(places[line]) + column, uint64(lows[line]) + column
                    p, q, r = pixel(image, place, low, beside, right, shares[line])
                    a, b, c = number(p), number(q), number(r)
                stage[warp, red] = a
                stage[warp, uint32(uint32(3) * lane + uint32(1))] = b
                stage[warp, blue] = c
                cuda.syncwarp()
                at = uint64(uint64(frame) * uint64(high) + uint64(y)) * uint64(uint32(uint32(3) * wide))
                at += uint64(uint32(uint32(3) * x0))
                if words:
                    i = uint32(uint32(4) * lane)
                    if i < valid:
                        v = load4(stage, (warp, i))
                        store4(out, at + uint64(i), v[0], v[1], v[2], v[3])
                else:
                    for k in range(3):
                        i = uint32(lane + uint32(k * LANES))
                        if i < valid:
                            out[at + uint64(i)] = stage[warp, i]
                cuda.syncwarp()

    return pixels
