"""Images as columns of windows and columns back as images (B3, B4).

The channels of all samples are one sequence of N C planes of H x W pixels, each with KH KW rows of the columns. What a
thread works out of its number, with divisions, serves for all planes that it goes on to.

A coordinate left of or above the image is a negative number, and as an unsigned one it is beyond 2^31: the comparison
with the image's size finds both. The sum of two uint32 has 64 bits in Numba, so every step is cast back.
"""

import functools

import numpy as np

from gpukit._host.arrays import (
    Output,
    address_of,
    check_array,
    configured,
    dtype_of,
    share_memory,
    stream_of,
    to_device,
)
from gpukit.backend import cuda, types, uint32, uint64
from gpukit.conv.windows import (
    DTYPES,
    MOST_THREADS,
    check_out,
    check_shape,
    check_size,
    divided,
    divisor,
    pair,
    windows,
)
from gpukit.intrinsics import store2, store4
from gpukit.launching import Plans

__all__ = [
    "REQUESTS",
    "VARIANTS",
    "add_bias",
    "aligned",
    "col2im",
    "configure_col2im",
    "configure_im2col",
    "element",
    "first_tap",
    "gather",
    "im2col",
    "quads",
    "rows",
    "strided",
    "window",
]

BLOCK = 256
#: A thread that handles several planes takes every 8th: as 8 values are one or two whole sectors of 32 bytes, all of
#: them begin at the same place in a sector, whatever KH KW OH OW is.
GROUP = 8
#: Planes that a thread handles at a time, if there are so many: as many as give it few loads under way, but several.
#: A row of a kernel of 3 or more columns is enough by itself.
COUNTS, FEW_LOADS = (4, 2, 1), 4
#: Most steps along a row of the kernel that a thread of col2im has under way; most loads of all rows, if of all; most
#: neighbouring pixels of a thread.
MOST_LOADS, MOST_TOGETHER, MOST_STRIDE = 16, 32, 4
#: The widest kernel that "aligned" and "rows" are made for: they have a value of each column in a register.
MOST_ACROSS = 16
#: Rows of windows to a block of "rows"; the widest block; windows in a row and columns of the kernel from which "rows"
#: is the fastest.
LINES, WIDEST, WIDE_ROWS, WIDE_KERNEL = 4, 256, 96, 5
#: Rows of blocks in a launch: the limit of ``gridDim.y``. A thread goes on to further planes.
MOST_ROWS = 65535


# -- im2col (B3) -----------------------------------------------------------------------------------


@cuda.jit
def window(x, columns, at, planes, group, rows):
    """One thread per (channel, out row, out column): it writes the KH KW values of its window (B3).

    Neighbouring threads write neighbouring columns of a row. Unless OH OW is a multiple of 8, rows begin in the middle
    of a sector of 32 bytes, so a warp writes parts of one sector more.
    """
    height, width, one = at.height, at.width.value, uint32(1)
    first, position = divided(uint32(cuda.grid(1)), at.positions)
    oh, ow = divided(position, at.out_w)
    top, left = uint32(oh * at.stride_h.value - at.padding_h), uint32(ow * at.stride_w.value - at.padding_w)
    y = uint32(cuda.blockIdx.y)
    while first < group and y < rows:
        plane = uint64(first + group * y)
        if plane < planes:
            source, target = plane * at.pixels.value, plane * at.taps.value * at.positions.value + position
            kh = uint32(0)
            while kh < at.kernel_h:
                row, kw = uint32(top + kh * at.dilation_h), uint32(0)
                while kw < at.kernel_w.value:
                    col = uint32(left + kw * at.dilation_w)
                    inside = row < height and col < width
                    columns[target] = x[source + row * width + col] if inside else x.dtype.type(0)
                    target, kw = target + at.positions.value, uint32(kw + one)
                kh = uint32(kh + one)
        y = uint32(y + cuda.gridDim.y)


@functools.cache
def aligned(count, across, even, index):
    """Kernel like window in which warps write whole sectors, for kernels of ``across`` columns.

    Thread i writes position i less the place of the row's beginning in its sector, another one for each value of the
    window; it is 0 for all where OH OW is a multiple of 8, which ``even`` says. The loads of a row of the window, from
    ``count`` planes, are under way together. Offsets are of the type ``index``: 32 bits, where they are enough, take
    half of the instructions.
    """

    @cuda.jit
    def aligned(x, columns, at, planes, group, rows):
        value = cuda.local.array((across, count), x.dtype)
        away_x, away_columns = cuda.local.array(count, index), cuda.local.array(count, index)
        i, one = uint32(cuda.grid(1)), uint32(1)
        last_oh, last_ow = divided(i, at.out_w)
        each = index(uint64(at.taps.value) * uint64(at.positions.value))
        y = uint32(cuda.blockIdx.y)
        while y < rows:
            first = uint32(cuda.blockIdx.z + group * uint32(y * uint32(count)))
            for j in range(count):
                there = first + uint32(j) * group < planes
                away_x[j] = index(index(uint32(j) * group) * at.pixels.value) if there else index(0)
                away_columns[j] = index(index(uint32(j) * group) * each) if there else index(0)
            source, target, kh = index(index(first) * at.pixels.value), index(index(first) * each), uint32(0)
            while kh < at.kernel_h and first < planes:
                for c in range(across):
                    shift = uint32(0)
                    if not even:
                        shift = uint32(uint32(target + index(c) * at.positions.value) % uint32(GROUP))
                    oh, ow, position = last_oh, uint32(last_ow - shift), uint32(i - shift)
                    if not even and last_ow < shift:
                        oh, ow = uint32(oh - one), uint32(ow + at.out_w.value)
                    row = uint32(oh * at.stride_h.value + kh * at.dilation_h - at.padding_h)
                    col = uint32(ow * at.stride_w.value + uint32(c) * at.dilation_w - at.padding_w)
                    inside = row < at.height and col < at.width.value and position < at.positions.value
                    pixel = index(source + uint32(row * at.width.value + col))
                    for j in range(count):
                        value[c, j] = x[index(pixel + away_x[j])] if inside else x.dtype.type(0)
                for c in range(across):
                    position = i if even else uint32(i - uint32(target) % uint32(GROUP))
                    if position < at.positions.value:
                        for j in range(count):
                            if j == 0 or away_columns[j] > index(0):
                                columns[index(target + position + away_columns[j])] = value[c, j]
                    target = index(target + at.positions.value)
                kh = uint32(kh + one)
            y = uint32(y + cuda.gridDim.y)

    return aligned


@functools.cache
def quads(across, stride, dilation):
    """Kernel: one thread for four neighbouring windows of a row, whose values it stores together, 16 bytes.

    The pixels of a row that the four cover are loaded once, to registers. Stride, dilation and columns of the kernel
    are known when it is compiled, so it is known as well which pixel is whose.
    """
    span = 3 * stride + (across - 1) * dilation + 1

    @cuda.jit
    def quads(x, columns, at, per_row, per_plane, planes):
        value = cuda.local.array(span, x.dtype)
        plane, place = divided(uint32(cuda.grid(1)), per_plane)
        oh, fourth = divided(place, per_row)
        if plane < planes:
            ow = uint32(fourth * uint32(4))
            row = uint32(oh * at.stride_h.value - at.padding_h)
            left = uint32(ow * uint32(stride) - at.padding_w)
            source = uint64(plane) * at.pixels.value
            target = uint64(plane) * at.taps.value * at.positions.value + uint32(oh * at.out_w.value + ow)
            kh = uint32(0)
            while kh < at.kernel_h:
                for c in range(span):
                    col = uint32(left + uint32(c))
                    inside = row < at.height and col < at.width.value
                    value[c] = x[source + uint32(row * at.width.value + col)] if inside else x.dtype.type(0)
                for c in range(0, across * dilation, dilation):
                    a, b = value[c], value[c + stride]
                    store4(columns, uint64(target), a, b, value[c + 2 * stride], value[c + 3 * stride])
                    target += at.positions.value
                row, kh = uint32(row + at.dilation_h), uint32(kh + uint32(1))

    return quads


@functools.cache
def rows(across, lines, index):
    """Kernel like aligned for wide images: a block writes ``lines`` rows of windows, for one row of the kernel.

    So it writes to few places, much at each, and all of its loads are under way together. What it divides is the same
    for the whole block.
    """

    @cuda.jit
    def rows(x, columns, at, chunks, per_plane, kernel_h):
        value = cuda.local.array((lines, across), x.dtype)
        number, chunk = divided(uint32(cuda.blockIdx.x), chunks)
        number, oh = divided(number, per_plane)
        plane, kh = divided(number, kernel_h)
        oh = uint32(oh * uint32(lines))
        i = uint32(chunk * cuda.blockDim.x + cuda.threadIdx.x)
        top = uint32(oh * at.stride_h.value + kh * at.dilation_h - at.padding_h)
        source, first = index(plane) * at.pixels.value, uint32(uint32(plane * kernel_h.value + kh) * uint32(across))
        target = index(first) * at.positions.value + oh * at.out_w.value
        for line in range(lines):
            row = uint32(top + uint32(line) * at.stride_h.value)
            for c in range(across):
                start = index(target + index(c) * at.positions.value + uint32(line) * at.out_w.value)
                ow = uint32(i - uint32(start) % uint32(GROUP))
                col = uint32(ow * at.stride_w.value + uint32(c) * at.dilation_w - at.padding_w)
                inside = ow < at.out_w.value and row < at.height and col < at.width.value
                pixel = index(source + uint32(row * at.width.value + col))
                value[line, c] = x[pixel] if inside else x.dtype.type(0)
        for line in range(lines):
            for c in range(across):
                start = index(target + index(c) * at.positions.value + uint32(line) * at.out_w.value)
                ow = uint32(i - uint32(start) % uint32(GROUP))
                if ow < at.out_w.value and uint32(oh + uint32(line)) < at.out_h:
                    columns[index(start + ow)] = value[line, c]

    return rows


@functools.cache
def element(count):
    """Kernel: one thread per value of the columns of ``group`` planes, KH KW times as many threads as windows.

    Threads count through the columns from one row to the next without a gap, so a warp writes whole sectors whatever
    OH OW is. But the threads that read a pixel again, for another place of the kernel, are in other blocks.
    """

    @cuda.jit
    def element(x, columns, at, planes, group, rows):
        value, away = cuda.local.array(count, x.dtype), cuda.local.array(count, types.uint64)
        number, position = divided(uint32(cuda.grid(1)), at.positions)
        lane, tap = divided(number, at.taps)
        kh, kw = divided(tap, at.kernel_w)
        oh, ow = divided(position, at.out_w)
        row = uint32(oh * at.stride_h.value + kh * at.dilation_h - at.padding_h)
        col = uint32(ow * at.stride_w.value + kw * at.dilation_w - at.padding_w)
        inside = row < at.height and col < at.width.value
        each = uint64(at.taps.value * uint64(at.positions.value))
        y = uint32(cuda.blockIdx.y)
        while lane < group and y < rows:
            first = uint32(lane + group * uint32(y * uint32(count)))
            if first < planes:
                pixel = uint64(first) * at.pixels.value + uint32(row * at.width.value + col)
                target = first * each + uint64(tap) * at.positions.value + position
                for j in range(count):
                    away[j] = uint64(j) * group if first + uint32(j) * group < planes else uint64(0)
                    value[j] = x[pixel + away[j] * at.pixels.value] if inside else x.dtype.type(0)
                for j in range(count):
                    if j == 0 or away[j] > uint64(0):
                        columns[target + away[j] * each] = value[j]
            y = uint32(y + cuda.gridDim.y)

    return element


# -- col2im (B4) -----------------------------------------------------------------------------------


@cuda.jit(device=True)
def first_tap(place, stride, dilation, size):
    """The first value of the kernel that falls on a padded row, and in which window: a whole number of strides lies
    between the window's corner and the row. Beyond ``size`` if there is none.
    """
    tap, way = uint32(0), uint32(0)
    window, beside = divided(place, stride)
    while beside != uint32(0) and tap < size:
        tap, way = uint32(tap + uint32(1)), uint32(way + dilation)
        if way > place:
            tap = size
        else:
            window, beside = divided(uint32(place - way), stride)
    return tap, window


@functools.cache
def gather(count, down, across, pieces, index):
    """Kernel: one thread per pixel, of ``count`` planes: it sums that pixel's values in all the windows that cover it,
    without atomics (B4).

    Once it knows the first, it steps: the next value of the kernel that can fall on the pixel is ``next`` further, and
    does so ``back`` windows before. There are ``down`` steps from row to row of the kernel, and along a row ``pieces``
    times ``across``, whose loads are under way together.
    """

    @cuda.jit
    def gather(columns, image, at, planes, add):
        total, away = cuda.local.array(count, columns.dtype), cuda.local.array(count, index)
        value = cuda.local.array((across, count), columns.dtype)
        place, first = uint32(cuda.grid(1)), uint32(cuda.blockIdx.y * uint32(count))
        row, col = divided(place, at.width)
        kh, oh = first_tap(uint32(row + at.padding_h), at.stride_h, at.dilation_h, at.kernel_h)
        first_kw, first_ow = first_tap(uint32(col + at.padding_w), at.stride_w, at.dilation_w, at.kernel_w.value)
        each = index(uint64(at.taps.value) * uint64(at.positions.value))
        along = index(uint64(at.next_w) * at.positions.value - at.back_w)
        below = index(uint64(at.next_h) * at.kernel_w.value * at.positions.value - uint64(at.back_h) * at.out_w.value)
        if place < at.pixels.value:
            pixel = index(index(first) * at.pixels.value + place)
            for j in range(count):
                there = first + uint32(j) < planes
                away[j] = index(each * index(j)) if there else index(0)
                total[j] = image[index(pixel + index(j) * at.pixels.value)] if add and there else image.dtype.type(0)
            source = index(first * each + (index(kh) * at.kernel_w.value + first_kw) * at.positions.value)
            source = index(source + index(oh) * at.out_w.value + first_ow)
            for _ in range(down):
                kw, ow, here = first_kw, first_ow, source
                in_rows = kh < at.kernel_h and oh < at.out_h
                for _ in range(pieces):
                    for c in range(across):
                        inside = in_rows and kw < at.kernel_w.value and ow < at.out_w.value
                        for j in range(count):
                            value[c, j] = columns[index(here + away[j])] if inside else columns.dtype.type(0)
                        kw, ow, here = uint32(kw + at.next_w), uint32(ow - at.back_w), index(here + along)
                    for c in range(across):
                        for j in range(count):
                            total[j] += value[c, j]
                kh, oh, source = uint32(kh + at.next_h), uint32(oh - at.back_h), index(source + below)
            for j in range(count):
                if first + uint32(j) < planes:
                    image[index(pixel + index(j) * at.pixels.value)] = total[j]

    return gather


@functools.cache
def strided(count, down, lines, across, stride, dilation, padding, in_twos, index):
    """Kernel like gather where stride or dilation along a row is 1: one thread for ``stride`` neighbouring pixels.

    Which value of the kernel falls on which of them, and in which window, is known when it is compiled; and threads
    that are neighbours read neighbours, where those of gather, with a stride of 2, would read from two rows in turns.
    """
    beside = padding % stride

    @cuda.jit
    def strided(columns, image, at, planes, add, per_row):
        total = cuda.local.array((count, stride), columns.dtype)
        value = cuda.local.array((lines, across, count), columns.dtype)
        row, place = divided(uint32(cuda.grid(1)), per_row)
        first = uint32(cuda.blockIdx.y * uint32(count))
        kh, oh = first_tap(uint32(row + at.padding_h), at.stride_h, at.dilation_h, at.kernel_h)
        each = index(uint64(at.taps.value) * uint64(at.positions.value))
        if row < at.height:
            window, left = uint32(place + uint32(padding // stride)), uint32(place * uint32(stride))
            pixel = index(index(first) * at.pixels.value + row * at.width.value + left)
            for j in range(count):
                for p in range(stride):
                    there = add and first + uint32(j) < planes and left + uint32(p) < at.width.value
                    at_pixel = index(pixel + index(j) * at.pixels.value + index(p))
                    total[j, p] = image[at_pixel] if there else image.dtype.type(0)
            for _ in range(down // lines):
                for line in range(lines):
                    in_rows = kh < at.kernel_h and oh < at.out_h
                    start = index(index(first) * each + index(kh * uint32(across)) * at.positions.value)
                    start = index(start + index(oh) * at.out_w.value)
                    for kw in range(across):
                        p = (kw - beside) % stride  # the pixel, and how many windows before its own
                        ow = uint32(window - uint32(kw * dilation if stride == 1 else (kw - p - beside) // stride))
                        here = index(start + index(kw) * at.positions.value + ow)
                        for j in range(count):
                            there = in_rows and ow < at.out_w.value and first + uint32(j) < planes
                            value[line, kw, j] = (
                                columns[index(here + index(j) * each)] if there else columns.dtype.type(0)
                            )
                    kh, oh = uint32(kh + at.next_h), uint32(oh - at.back_h)
                for line in range(lines):
                    for kw in range(across):
                        for j in range(count):
                            total[j, (kw - beside) % stride] += value[line, kw, j]
            for j in range(count):
                target = index(pixel + index(j) * at.pixels.value)
                if in_twos and first + uint32(j) < planes:
                    store2(image, uint64(target), total[j, 0], total[j, 1])
                for p in range(0 if in_twos else stride):
                    if first + uint32(j) < planes and left + uint32(p) < at.width.value:
                        image[index(target + index(p))] = total[j, p]

    return strided


@cuda.jit
def add_bias(out, bias):
    """out[p, i] += bias[p % O] for the planes p of all samples: a row of blocks for each, as far as there are rows."""
    i, plane = uint32(cuda.grid(1)), uint32(cuda.blockIdx.y)
    while i < out.shape[1] and plane < out.shape[0]:
        out[plane, i] += bias[plane % uint32(bias.shape[0])]
        plane = uint32(plane + cuda.gridDim.y)


# -- host functions --------------------------------------------------------------------------------

_plans = Plans()
#: What ``im2col`` takes as ``variant``, besides "auto".
VARIANTS = ("window", "element", "aligned", "quads", "rows")
#: What ``col2im`` does with its result.
REQUESTS = ("write", "inplace", "add", "null")


def im2col(x, kernel_size, stride=1, padding=0, dilation=1, variant="auto", *, out=None, stream=None):
    """The windows of images as columns of a matrix: (N, C, H, W) becomes (N, C KH KW, OH OW) (B3).

    Row ``(c KH + kh) KW + kw`` and column ``oh OW + ow`` hold the pixel of channel c in row ``oh stride_h + kh
    dilation_h - padding_h`` and column ``ow stride_w + kw dilation_w - padding_w``, or zero outside of the image. It
    reads N C H W values and writes N C KH KW OH OW, with ``OH = (H + 2 padding_h - dilation_h (KH - 1) - 1) // stride_h
    + 1`` and OW alike. PyTorch's name for it is unfold.

    Parameters
    ----------
    x : ndarray or device array, shape (N, C, H, W), float32 or float64
        Any sizes, also 0. One that is not C-contiguous is copied first.
    kernel_size, stride, dilation : int or 2 int, 1 or more
        The same for rows and columns, or (for rows, for columns).
    padding : int or 2 int, 0 or more
        Rows and columns of zeros on each side. The padded image must hold a window.
    variant : str
        "window", the documents' kernel; "element", a thread for each value of eight channels; "aligned", a window's
        thread that keeps to sectors, for images with OW of 8 or more; "quads", a thread for four windows, for float32
        and an OW that is a multiple of 4; "rows", a block for rows of windows; or "auto", which is "rows" for wide
        images and kernels, else "quads" or "aligned" where they can be, then "element" unless eight channels have 2**31
        or more values.
    out : array of shape (N, C KH KW, OH OW), optional
        Of the same kind and dtype. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, C KH KW, OH OW)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    call = _plans.call((x,), out, stream, "im2col", kernel_size, stride, padding, dilation, variant)
    if call.plan is not None:
        return call.again()
    check_array("x", x, 4, DTYPES)
    samples, channels, height, width = x.shape
    at = windows((height, width), kernel_size, stride, padding, dilation)
    taps, positions = at.counts
    shape = samples, channels * taps, positions
    check_out(out, shape, "x", x)
    wide = is_wide(out) if out is not None else dtype_of(x) == np.float32  # a new array is aligned
    variant = choose(variant, samples, channels, at, wide)
    stream = stream_of(stream)
    result = Output(x, shape, out, stream)
    if samples == 0 or channels == 0:
        return result.finish()
    return call.first([launch_im2col(variant, to_device(x, stream), result.device, at, stream)], result)


def configure_im2col(variant, shape, kernel_size, stride=1, padding=0, dilation=1, *, stream=None):
    """The launch that ``im2col`` makes, to be traced or timed: call it with x, columns and what else it returns.

    Parameters
    ----------
    variant : str
        One of ``VARIANTS``. The columns for "quads" must begin at a multiple of 16 bytes.
    shape : tuple of 4 int
        Of x: N, C, H and W; N and C are 1 or more.
    kernel_size, stride, padding, dilation, stream
        As for ``im2col``.

    Returns
    -------
    launch : ``kernel[grid, block, stream]``
    further : tuple
        The kernel's arguments after x and the columns, both flat: ``launch(x, columns, *further)``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    samples, channels, height, width = check_shape(shape)
    at = windows((height, width), kernel_size, stride, padding, dilation)
    if variant == "auto":
        raise ValueError(f"variant is 'auto'; it must be one of {', '.join(VARIANTS)}")
    variant = choose(variant, samples, channels, at, True)
    return _configure(variant, samples * channels, at, stream_of(stream))


def col2im(
    columns,
    output_size,
    kernel_size,
    stride=1,
    padding=0,
    dilation=1,
    out=None,
    request="write",
    *,
    stream=None,
):
    """Images in which every pixel is the sum of its values in all windows: (N, C KH KW, OH OW) to (N, C, H, W) (B4).

    The adjoint of ``im2col``: the sum of ``im2col(x) * y`` is that of ``x * col2im(y)``. One thread gathers all the
    values of a pixel, in the order of the kernel, so the result is the same in every run. PyTorch calls it fold.

    Parameters
    ----------
    columns : ndarray or device array, shape (N, C KH KW, OH OW), float32 or float64
        Any N and C, also 0.
    output_size : int or 2 int, 0 or more
        H and W.
    kernel_size, stride, padding, dilation
        As for ``im2col``; OH and OW follow from them.
    out : array of shape (N, C, H, W), optional
        Of the same kind and dtype.
    request : str
        "write" overwrites ``out``, or makes a new array. The others need an ``out``. "inplace" overwrites it too, and
        then it may share memory with ``columns``, which are copied first if it does. "add" adds to what is in it.
        "null" leaves it as it is and launches nothing.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, C, H, W)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    call = None
    if request in ("write", "add"):
        how = kernel_size, stride, padding, dilation
        call = _plans.call((columns,), out, stream, "col2im", output_size, *how, request)
        if call.plan is not None:
            return call.again()
    check_array("columns", columns, 3, DTYPES)
    size = pair("output_size", output_size, 0)
    at = windows(size, kernel_size, stride, padding, dilation)
    samples, channels = _check_columns(columns, size, at)
    shape = samples, channels, *size
    if request not in REQUESTS:
        raise ValueError(f"request is {request!r}; it must be one of {', '.join(REQUESTS)}")
    if out is None and request != "write":
        raise ValueError(f"out is None; it must be an array of shape {shape} for the request {request!r}")
    check_out(out, shape, "columns", columns, apart=request in ("write", "add"))
    if request == "null":
        return out
    stream = stream_of(stream)
    result = Output(columns, shape, out, stream, keep=request == "add")
    if result.device.size == 0:
        return result.finish()
    source = to_device(columns, stream)
    if share_memory(source, result.device):
        shared, source = source, cuda.device_array(source.shape, source.dtype, stream=stream)
        source.copy_to_device(shared, stream=stream)
    planes = samples * channels
    source, target = source.reshape(planes, source.size // planes), result.device.reshape(planes, -1)
    launches = _gathers(source, target, at, request, stream)
    if call is not None:
        return call.first(launches, result)
    for launch, arguments in launches:
        launch(*arguments)
    return result.finish()


def configure_col2im(shape, kernel_size, stride=1, padding=0, dilation=1, *, request="write", stream=None):
    """The launch that ``col2im`` makes, to be traced or timed: call it with columns, out and what else it returns.

    Parameters
    ----------
    shape : tuple of 4 int
        Of out, which must begin at a multiple of 16 bytes: N, C, H and W; all are 1 or more.
    kernel_size, stride, padding, dilation, stream
        As for ``im2col``.
    request : str
        "write" or "add".

    Returns
    -------
    launch : ``kernel[grid, block, stream]``
    further : tuple
        The kernel's arguments after the columns and out, both flat: ``launch(columns, out, *further)``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    samples, channels, height, width = check_shape(shape, (1, 1, 1, 1))
    at = windows((height, width), kernel_size, stride, padding, dilation)
    if request not in ("write", "add"):
        raise ValueError(f"request is {request!r}; it must be write or add")
    check_size("shape", samples * channels, {"C H W": channels * height * width})
    if samples * channels > MOST_ROWS:
        raise ValueError(f"shape is {tuple(shape)}; one launch is for at most {MOST_ROWS} channels in all samples")
    return _configure_gather(samples * channels, at, request, stream_of(stream), True)


# -- launches --------------------------------------------------------------------------------------


def _flat(array):
    return array.reshape(array.size)


def is_wide(columns):
    """Whether four values can be stored at a time, as far as dtype and address go."""
    return dtype_of(columns) == np.float32 and address_of(columns) % 16 == 0


def choose(variant, samples, channels, at, wide):
    """The variant of im2col to launch, if there are not too many threads for it; ``wide`` as `is_wide` says."""
    if variant != "auto" and variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be 'auto' or one of {', '.join(VARIANTS)}")
    (taps, positions), width, across = at.counts, int(at.out_w.value), int(at.kernel_w.value)
    group, fourths = min(GROUP, samples * channels), samples * channels * positions // 4
    fits = width >= GROUP and across <= MOST_ACROSS
    # Where more pixels lie between the windows than in them, each thread loads its own.
    in_fours = wide and width % 4 == 0 and _span(at) <= min(4 * across, 4 * MOST_ACROSS)
    if variant == "auto":
        variant = "aligned" if fits else "element" if group * taps * positions <= MOST_THREADS else "window"
        if in_fours and fourths <= MOST_THREADS:
            variant = "quads"
        if (
            width >= WIDE_ROWS
            and WIDE_KERNEL <= across <= MOST_ACROSS
            and _blocks_of_rows(samples * channels, at) < 2**31
        ):
            variant = "rows"
    if (variant == "aligned" and not fits) or (variant == "rows" and across > MOST_ACROSS):
        needs = f"at least {GROUP} windows in a row and " if variant == "aligned" else ""
        found = f"there are {width} and {across}" if variant == "aligned" else f"there are {across}"
        raise ValueError(
            f"variant is {variant!r}; it needs {needs}at most {MOST_ACROSS} columns of the kernel, and {found}"
        )
    if variant == "quads" and not in_fours:
        needs = f"a multiple of 4 windows in a row, {width}, whose pixels are neighbours, and float32 at 16 bytes"
        raise ValueError(f"variant is 'quads'; it needs {needs}")
    counts = {
        "element": {"8 KH KW OH OW": group * taps * positions},
        "window": {"8 OH OW": group * positions},
        "quads": {"N C OH OW / 4": fourths},
        "rows": {"N C KH OH, in blocks": _blocks_of_rows(samples * channels, at)},
    }
    check_size("x", samples * channels, counts.get(variant, {}))
    return variant


def _span(at):
    """Pixels of a row that four neighbouring windows cover."""
    return 3 * int(at.stride_w.value) + (int(at.kernel_w.value) - 1) * int(at.dilation_w) + 1


def _block_of_rows(at):
    """Threads of a block of "rows", and blocks along a row: such that few threads have nothing to do."""
    needed = int(at.out_w.value) + GROUP - 1
    blocks = range(min(WIDEST, -(-needed // 32) * 32), 64, -32)
    block = min(blocks, key=lambda threads: -(-needed // threads) * threads, default=64)
    return block, -(-needed // block)


def _blocks_of_rows(planes, at):
    return planes * int(at.kernel_h) * -(-int(at.out_h) // LINES) * _block_of_rows(at)[1]


def _index(planes, at):
    """The type for offsets in the images and the columns."""
    return uint32 if planes * max(int(at.pixels.value), at.counts[0] * at.counts[1]) < 2**32 else uint64


def _count(planes, across):
    """Planes that a thread handles at a time, with ``across`` loads of each under way."""
    return next(n for n in COUNTS if n <= planes and (n * across <= FEW_LOADS or n == 1))


def _configure(variant, planes, at, stream):
    """Launch of im2col and its further arguments."""
    if variant == "quads":
        return _configure_quads(planes, at, stream)
    if variant == "rows":
        return _configure_rows(planes, at, stream)
    (taps, positions), group = at.counts, min(GROUP, planes)
    most = -(-planes // group)
    counts = {"window": 1, "element": min(2, most), "aligned": _count(most, int(at.kernel_w.value))}
    count = counts[variant]
    rows = -(-planes // (group * count))
    further = at, np.uint32(planes), np.uint32(group), np.uint32(rows)
    down = min(rows, MOST_ROWS)
    if variant == "aligned":
        even = positions % GROUP == 0
        kernel = aligned(count, int(at.kernel_w.value), even, _index(planes, at))
        block, blocks = _threads(positions if even else positions + GROUP - 1)
        return configured(kernel, (blocks, down, group), block, stream), further
    block, blocks = _threads(group * positions * (1 if variant == "window" else taps))
    return configured(window if variant == "window" else element(count), (blocks, down), block, stream), further


def _configure_quads(planes, at, stream):
    per_row = int(at.out_w.value) // 4
    per_plane = per_row * int(at.out_h)
    block, blocks = _threads(planes * per_plane)
    kernel = quads(int(at.kernel_w.value), int(at.stride_w.value), int(at.dilation_w))
    return configured(kernel, blocks, block, stream), (at, divisor(per_row), divisor(per_plane), np.uint32(planes))


def _configure_rows(planes, at, stream):
    (block, chunks), groups = _block_of_rows(at), -(-int(at.out_h) // LINES)
    kernel = rows(int(at.kernel_w.value), LINES, _index(planes, at))
    further = at, divisor(chunks), divisor(groups), divisor(int(at.kernel_h))
    return configured(kernel, _blocks_of_rows(planes, at), block, stream), further


def _configure_gather(planes, at, request, stream, aligned):
    """Launch of col2im and its further arguments, for at most MOST_ROWS rows of blocks; ``aligned`` says whether two
    neighbouring pixels can be stored together.
    """
    if 1 in (at.stride_w.value, at.dilation_w) and at.stride_w.value <= MOST_STRIDE and at.kernel_w.value <= MOST_LOADS:
        return _configure_strided(planes, at, request, stream, aligned)
    down, steps = -(-int(at.kernel_h) // int(at.next_h)), -(-int(at.kernel_w.value) // int(at.next_w))
    across = min(steps, MOST_LOADS)
    count = _count(planes, across)
    block, blocks = _threads(int(at.pixels.value))
    kernel = gather(count, down, across, -(-steps // across), _index(planes, at))
    return configured(kernel, (blocks, -(-planes // count)), block, stream), (at, np.uint32(planes), request == "add")


def _configure_strided(planes, at, request, stream, aligned):
    down, across = -(-int(at.kernel_h) // int(at.next_h)), int(at.kernel_w.value)
    stride, width = int(at.stride_w.value), int(at.width.value)
    count = _count(planes, -(-across // stride))
    lines = down if down * across * count <= MOST_TOGETHER else 1
    in_twos, per_row = aligned and stride == 2 and width % 2 == 0, -(-width // stride)
    how = stride, int(at.dilation_w), int(at.padding_w), in_twos, _index(planes, at)
    kernel = strided(count, down, lines, across, *how)
    block, blocks = _threads(int(at.height) * per_row)
    further = at, np.uint32(planes), request == "add", divisor(per_row)
    return configured(kernel, (blocks, -(-planes // count)), block, stream), further


def _gathers(source, target, at, request, stream):
    """[(launch, arguments), ...] of col2im for contiguous device arrays of planes: columns and images."""
    launches, planes = [], target.shape[0]
    for first in range(0, planes, MOST_ROWS):
        parts = [array[first : first + MOST_ROWS] for array in (source, target)]
        aligned = address_of(parts[1]) % (2 * parts[1].dtype.itemsize) == 0
        launch, further = _configure_gather(parts[0].shape[0], at, request, stream, aligned)
        launches.append((launch, (*map(_flat, parts), *further)))
    return launches


def _threads(count):
    """Block and number of blocks for so many threads: few threads make a small block."""
    block = min(BLOCK, -(-count // 32) * 32)
    return block, -(-count // block)


def launch_im2col(variant, x, columns, at, stream):
    """(launch, arguments) of im2col from images to columns, both contiguous device arrays."""
    launch, further = _configure(variant, x.shape[0] * x.shape[1], at, stream)
    return launch, (_flat(x), _flat(columns), *further)


def launch_bias(out, bias, stream):
    """(launch, arguments) of adding a bias to out, (N, groups, O / groups, OH OW)."""
    positions = out.shape[-1]
    out = out.reshape(out.size // positions, positions)
    block, blocks = _threads(positions)
    return configured(add_bias, (blocks, min(out.shape[0], MOST_ROWS)), block, stream), (out, bias)


def _check_columns(columns, size, at):
    """N and C of the images of a size (H, W) that columns belong to."""
    (samples, rows, found), (taps, positions) = columns.shape, at.counts
    if rows % taps:
        raise ValueError(f"columns has {rows} rows; it must have a multiple of {taps}, the values of kernel_size")
    if found != positions:
        expected = f"{positions}, which is {at.out_size[0]} * {at.out_size[1]} windows"
        raise ValueError(f"columns has {found} columns; it must have {expected}")
    channels = rows // taps
    check_size("columns", samples * channels, {})
    return samples, channels
