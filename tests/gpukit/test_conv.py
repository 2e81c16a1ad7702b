"""`gpukit.conv`: windows as columns and back, convolution through them, against float64 loops; the kernels' counts."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpukit
from gpukit import conv
from gpukit._host.arrays import address_of, as_words, device_array_of
from gpukit._host.call import without_launches
from gpukit._host.work_memory import WorkMemory
from gpukit.backend import cuda, uint32
from gpukit.conv import apart, api, columns, cost, depthwise, gemm, short, windows
from gpukit.conv.warpgroups import FORMS, make_swapped_sums

#: Examples of tests that compile a kernel for each: on a GPU that takes seconds.
FEW = (lambda count: count // 12) if gpukit.on_gpu() else (lambda count: count)
EPS = {np.dtype(d): np.finfo(d).eps for d in conv.DTYPES}
#: As which dtype arrays of bfloat16 come; NumPy has none.
BFLOAT16 = np.dtype("V2")


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


def edges(kernel_size, padding, dilation):
    """Zeros before and behind the pixels, for rows and for columns."""
    if isinstance(padding, str):
        gaps = [
            (n - 1) * gap if padding == "same" else 0 for n, gap in zip(pair(kernel_size), pair(dilation), strict=True)
        ]
        return [(gap // 2, gap - gap // 2) for gap in gaps]
    return [(n, n) for n in pair(padding)]


def reference_columns(x, kernel_size, stride=1, padding=0, dilation=1):
    """The windows of images as columns, one value at a time along the kernel: what the kernels compute."""
    (kh, kw), (sh, sw), (dh, dw) = map(pair, (kernel_size, stride, dilation))
    samples, channels = x.shape[:2]
    padded = np.pad(x, ((0, 0), (0, 0), *edges(kernel_size, padding, dilation)))
    oh, ow = (padded.shape[2] - dh * (kh - 1) - 1) // sh + 1, (padded.shape[3] - dw * (kw - 1) - 1) // sw + 1
    columns = np.empty((samples, channels, kh, kw, oh, ow), x.dtype)
    for row in range(oh):
        for col in range(ow):
            top, left = row * sh, col * sw
            seen = padded[:, :, top : top + dh * (kh - 1) + 1 : dh, left : left + dw * (kw - 1) + 1 : dw]
            columns[..., row, col] = seen
    return columns.reshape(samples, channels * kh * kw, oh * ow)


def reference_image(columns, shape, kernel_size, stride=1, padding=0, dilation=1):
    """The sums of all windows in float64, by adding each window to the image where it was taken from."""
    (kh, kw), (sh, sw), (dh, dw) = map(pair, (kernel_size, stride, dilation))
    samples, channels, height, width = shape
    (ph, below), (pw, beside) = edges(kernel_size, padding, dilation)
    padded = np.zeros((samples, channels, height + ph + below, width + pw + beside))
    oh, ow = (padded.shape[2] - dh * (kh - 1) - 1) // sh + 1, (padded.shape[3] - dw * (kw - 1) - 1) // sw + 1
    windows = columns.reshape(samples, channels, kh, kw, oh, ow)
    for row in range(oh):
        for col in range(ow):
            top, left = row * sh, col * sw
            padded[:, :, top : top + dh * (kh - 1) + 1 : dh, left : left + dw * (kw - 1) + 1 : dw] += windows[
                ..., row, col
            ]
    return padded[:, :, ph : ph + height, pw : pw + width]


def reference_conv(x, weight, bias, groups, **how):
    """(the convolution in float64, the sum of the magnitudes of its terms)."""
    x, weight = (values(array).astype(np.float64) for array in (x, weight))
    channels, made = weight.shape[1], weight.shape[0] // groups
    parts = []
    for sign in (lambda v: v, abs):
        per_group = []
        for g in range(groups):
            columns = reference_columns(sign(x[:, g * channels : (g + 1) * channels]), weight.shape[2:], **how)
            per_group.append(sign(weight[g * made : (g + 1) * made]).reshape(made, columns.shape[1]) @ columns)
        total = np.concatenate(per_group, axis=1)
        parts.append(total if bias is None else total + sign(values(bias).astype(np.float64))[:, None])
    return parts


def together(weight, paired=True, winograd=False):
    """Weights whose products with pixels bound those of a pair, which multiplies both pixels by the sum of weights, and
    those of Winograd's fours, where a pixel meets all three weights of a column, or half of them, four times.
    """
    size = abs(values(weight).astype(np.float64))
    if paired:
        pairs = size.shape[3] // 2 * 2
        size[..., :pairs] = (size[..., 0:pairs:2] + size[..., 1:pairs:2]).repeat(2, axis=3)
    if winograd:
        size = 2 * (size[:, :, 0::3] + size[:, :, 1::3] + size[:, :, 2::3]).repeat(3, axis=2)
    return size


def random(*shape, dtype=np.float32, seed=0):
    return of_dtype(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def poisoned(*shape, dtype=np.float32):
    return of_dtype(np.full(shape, np.nan), dtype)


def of_dtype(array, dtype):
    """Convert floats; to bfloat16 by leaving out the lower bits."""
    if dtype != BFLOAT16:
        return array.astype(dtype)
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)


def values(array):
    """The numbers of an array that may be of bfloat16."""
    if array.dtype != BFLOAT16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


@st.composite
def cases(draw, least=0):
    """A shape (N, C, H, W) that may be 0 along some axes, and how windows are laid on it: at least one fits."""
    kernel, dilation, padding, stride = (
        draw(st.tuples(st.integers(low, high), st.integers(low, high)))
        for low, high in ((1, 5), (1, 3), (0, 4), (1, 4))
    )
    if draw(st.integers(0, 3)) == 0:
        padding, stride = draw(st.sampled_from(("same", "valid"))), (1, 1)
    size = []
    for axis, sides in enumerate(edges(kernel, padding, dilation)):
        fewest = dilation[axis] * (kernel[axis] - 1) + 1 - sum(sides)
        size.append(max(fewest, 0, least) + draw(st.one_of(st.integers(0, 9), st.sampled_from([0, 31, 32, 40]))))
    if draw(st.booleans()):  # an int stands for both
        kernel, dilation, stride = kernel[0], dilation[0], stride[0]
        padding = padding if isinstance(padding, str) else padding[0]
        size = [max(n, dilation * (kernel - 1) + 1) for n in size]
    shape = draw(st.integers(least, 3)), draw(st.integers(least, 4)), *size
    return shape, {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}


def usable(variant, shape, how, dtype=np.float32):
    """The variant, or another one for images that it is not for."""
    geometry = windows.make_geometry(shape[2:], **{"stride": 1, "padding": 0, "dilation": 1, **how})
    width, across = geometry.out_size[1], int(geometry.kernel_w.value)
    span = windows.covered(4, int(geometry.stride_w.value), across, int(geometry.dilation_w))
    possible = {
        "aligned": width >= 8 and across <= 16,
        "quads": dtype == np.float32 and width % 4 == 0 and span <= 4 * across,
        "rows": across <= 16,
    }
    return variant if possible.get(variant, True) else "element"


dtypes = st.sampled_from(conv.DTYPES)
out_and_in = st.tuples(st.integers(0, 3), st.integers(1, 3))  # channels of a group
PLAIN = {"stride": 1, "padding": 0, "dilation": 1}


@settings(max_examples=FEW(55))
@given(case=cases(), dtype=dtypes, variant=st.sampled_from(("auto", *conv.VARIANTS)))
@example(case=((0, 3, 5, 6), {"kernel_size": 3}), dtype=np.float32, variant="auto")
@example(case=((2, 0, 5, 6), {"kernel_size": (2, 3)}), dtype=np.float64, variant="im2col_naive")
@example(case=((1, 1, 0, 3), {"kernel_size": (4, 1), "padding": (2, 0)}), dtype=np.float32, variant="element")
@example(case=((3, 1, 1, 1), {"kernel_size": 1, "stride": 2**40}), dtype=np.float32, variant="element")
def test_im2col(case, dtype, variant):
    shape, how = case
    x = random(*shape, dtype=dtype)
    expected = reference_columns(x, **how)
    variant = usable(variant, shape, how, dtype)
    out = poisoned(*expected.shape, dtype=dtype)
    assert conv.im2col(x, **how, variant=variant, out=out) is out
    assert np.array_equal(out, expected)
    result = conv.im2col(x, **how, variant=variant)
    assert result.dtype == dtype and result.shape == expected.shape and np.array_equal(result, expected)


@settings(max_examples=FEW(55))
@given(case=cases(), dtype=dtypes, request=st.sampled_from(conv.REQUESTS))
@example(case=((0, 3, 5, 6), {"kernel_size": 3}), dtype=np.float32, request="write")
@example(case=((2, 1, 0, 3), {"kernel_size": 1, "padding": 1}), dtype=np.float32, request="add")
@example(case=((2, 2, 5, 9), {"kernel_size": 2, "stride": (2**40, 3)}), dtype=np.float64, request="add")
def test_col2im(case, dtype, request):
    shape, how = case
    columns = random(*reference_columns(np.zeros(shape), **how).shape, dtype=dtype)
    exact, size = reference_image(columns, shape, **how), reference_image(abs(columns), shape, **how)
    before = random(*shape, dtype=dtype, seed=1) if request in ("add", "null") else poisoned(*shape, dtype=dtype)
    out = before.copy()
    assert conv.col2im(columns, shape[2:], **how, out=out, request=request) is out
    if request == "null":
        assert np.array_equal(out, before)
        return
    if request == "add":
        exact, size = exact + before, size + abs(before)
    assert (abs(out - exact) <= 30 * EPS[out.dtype] * size).all()
    if request == "write":
        result = conv.col2im(columns, shape[2:], **how)
        assert result.dtype == dtype and result.shape == shape and np.array_equal(result, out)


@settings(max_examples=FEW(12))
@given(case=cases(least=1), variant=st.sampled_from(tuple(conv.VARIANTS)))
def test_adjoint(case, variant):
    """<im2col(x), y> = <x, col2im(y)>: exact, for small whole numbers."""
    shape, how = case
    variant = usable(variant, shape, how, np.float64)
    rng = np.random.default_rng(shape)
    x = rng.integers(-9, 10, shape).astype(np.float64)
    columns = conv.im2col(x, **how, variant=variant)
    y = rng.integers(-9, 10, columns.shape).astype(np.float64)
    assert (columns * y).sum() == (x * conv.col2im(y, shape[2:], **how)).sum()


def tolerance(exact, size, terms, dtype):
    """What the rounding of sums of ``terms`` products, in float32 or better, and of the result may amount to."""
    sums = np.finfo(np.float64 if dtype == np.float64 else np.float32).eps
    return terms * sums * size + (2.0**-7 if dtype == BFLOAT16 else np.finfo(dtype).eps) * abs(exact)


@settings(max_examples=FEW(26))
@given(
    case=cases(),
    dtype=st.sampled_from((*api.CONV_DTYPES, BFLOAT16)),
    algorithm=st.sampled_from(("auto", *conv.ALGORITHMS)),
    groups=st.integers(1, 3),
    sizes=out_and_in,
    with_bias=st.booleans(),
)
@example(((0, 0, 5, 6), {"kernel_size": 3, **PLAIN}), np.float32, "auto", 2, (2, 1), True)
@example(((2, 0, 19, 23), {"kernel_size": 3, **PLAIN}), np.float32, "im2col", 1, (20, 9), True)
@example(((1, 0, 9, 40), {"kernel_size": (3, 1), **PLAIN}), np.float16, "direct", 1, (5, 2), True)
@example(((3, 0, 6, 7), {"kernel_size": 1, **PLAIN}), np.float32, "im2col", 2, (5, 3), True)
@example(((3, 0, 6, 7), {"kernel_size": 1, **PLAIN}), BFLOAT16, "auto", 2, (5, 3), False)
@example(((1, 0, 9, 40), {"kernel_size": (3, 4), **PLAIN}), BFLOAT16, "direct", 1, (5, 2), True)
@example(((1, 0, 9, 11), {"kernel_size": (3, 2), **PLAIN}), BFLOAT16, "prefetch", 2, (3, 2), True)
@example(((1, 0, 9, 43), {"kernel_size": (4, 5), **PLAIN}), np.float32, "direct", 1, (3, 6), True)
@example(((2, 0, 8, 19), {"kernel_size": (2, 4), **PLAIN}), np.float16, "paired", 2, (3, 2), True)
@example(((1, 0, 17, 33), {"kernel_size": (3, 4), **PLAIN, "padding": 1}), np.float32, "winograd", 2, (3, 2), True)
@example(((2, 0, 13, 9), {"kernel_size": (3, 2), **PLAIN, "padding": 1}), np.float16, "auto", 3, (2, 1), True)
@example(((1, 0, 11, 0), {"kernel_size": (5, 1), **PLAIN, "padding": (1, 2)}), np.float32, "im2col", 3, (2, 3), True)
@example(((1, 0, 40, 37), {"kernel_size": (5, 4), **PLAIN, "padding": 2}), np.float32, "fourier", 1, (2, 3), True)
@example(((2, 0, 1, 2), {"kernel_size": (1, 2), **PLAIN, "padding": "same"}), np.float32, "im2col", 1, (2, 3), False)
@example(((1, 0, 9, 9), {"kernel_size": 2, **PLAIN, "padding": "same"}), np.float16, "implicit", 1, (64, 64), False)
@example(
    ((2, 0, 9, 33), {"kernel_size": 3, "stride": (1, 2), "padding": 1, "dilation": (2, 3)}),
    np.float64,
    "fourier",
    1,
    (13, 2),
    False,
)
def test_conv2d(case, dtype, algorithm, groups, sizes, with_bias):
    (samples, _, height, width), how = case
    if (np.float16 if dtype == BFLOAT16 else dtype) not in api.ALLOWED.get(algorithm, api.DIRECT_DTYPES):
        dtype = np.float32
    kernel = pair(how.pop("kernel_size"))
    neighbours = [(pair(how["stride"])[axis], pair(how["dilation"])[axis]) == (1, 1) for axis in range(2)]
    can_share = {"paired": kernel[1] > 1 and neighbours[1], "winograd": kernel[0] % 3 == 0 and neighbours[0]}
    if not can_share.get(algorithm, True):
        algorithm = "specialised"
    if algorithm == "depthwise" and (sizes[1] > 1 or pair(how["dilation"])[0] > 4):
        dtype, algorithm = np.float32 if dtype == np.float64 else dtype, "direct"
    if algorithm == "short" and sizes[1] * math.prod(kernel) > short.MAX_TERMS:
        algorithm = "direct"
    if algorithm == "fourier":
        groups = 1
    made, channels = sizes[0] * groups, sizes[1] * groups
    x = random(samples, channels, height, width, dtype=dtype)
    weight = random(made, sizes[1], *kernel, dtype=dtype)
    bias = random(made, dtype=dtype) if with_bias else None
    exact, size = reference_conv(x, weight, bias, groups, **how)
    if algorithm in ("auto", "direct", *can_share):
        bounds = together(weight, winograd=algorithm != "paired" and can_share["winograd"])
        size = reference_conv(x, bounds, bias, groups, **how)[1]
    if algorithm == "fourier":  # all pixels of a tile count
        size = size.max(initial=0)
    result = conv.conv2d(x, weight, bias, groups=groups, algorithm=algorithm, **how)
    assert result.dtype == dtype and result.shape[:2] == (samples, made)
    terms = sizes[1] * kernel[0] * kernel[1] + 2
    found = values(result)
    assert (abs(found.reshape(exact.shape) - exact) <= tolerance(exact, size, terms, result.dtype)).all()
    out = poisoned(*result.shape, dtype=dtype)
    assert conv.conv2d(x, weight, bias, groups=groups, algorithm=algorithm, **how, out=out) is out
    assert np.array_equal(values(out), found)


@st.composite
def layouts(draw):
    """A Layout, and a convolution that it can be for: (layout, shape of x, of weight, padding, groups)."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 7)))
    stride, dilation = (draw(st.tuples(st.integers(1, 2), st.integers(1, 2))) for _ in range(2))
    outs, run = draw(st.integers(1, 8)), draw(st.sampled_from((4, 8, 12, 16)))
    across, parts = draw(st.sampled_from((1, 2, 4, 8, 16))), draw(st.integers(1, 3))
    down = 32 // across * draw(st.integers(1, 2))
    half, split, stages = draw(st.booleans()), draw(st.sampled_from((1, 2, 4))), draw(st.integers(2, 3))
    winograd = split == 1 and kernel[0] == 3 and (stride[0], dilation[0]) == (1, 1)
    depth = split * draw(st.integers(1, 3 // split + 1))
    quads = not half and draw(st.booleans())
    paired = draw(st.booleans()) and kernel[1] > 1 and (stride[1], dilation[1]) == (1, 1)
    tile = run, across, down, depth, stages
    layout = conv.Layout(kernel, stride, dilation, outs, parts, *tile, quads, half, split, paired, winograd)
    padding, size = draw(st.tuples(st.integers(0, 3), st.integers(0, 3))), []
    if quads:
        padding = padding[0], 4 * (padding[1] // 3)
    for axis in range(2):
        fewest = max(1, dilation[axis] * (kernel[axis] - 1) + 1 - 2 * padding[axis])
        size.append(fewest + draw(st.integers(0, 2 * layout.tile[axis] if axis or down < 9 else 20)))
    if quads:
        size[1] = -(-size[1] // 4) * 4
    groups, channels, made = (draw(st.integers(1, most)) for most in (2, 4, 9))
    samples = draw(st.integers(1, 2))
    return layout, (samples, groups * channels, *size), (groups * made, channels, *kernel), padding, groups


@settings(max_examples=FEW(7) + 1)
@given(case=layouts(), with_bias=st.booleans())
@example(
    (
        conv.Layout((2, 5), (1, 1), (1, 1), 3, 2, 8, 4, 8, 2, 2, split=2, paired=True),
        (1, 3, 9, 45),
        (7, 3, 2, 5),
        (1, 3),
        1,
    ),
    True,
)
@example(
    (
        conv.Layout((3, 7), (2, 1), (1, 1), 6, 1, 4, 8, 4, 2, 3, True, paired=True),  # 6 rows of weights, 4 at a time
        (1, 5, 11, 40),
        (7, 5, 3, 7),
        (0, 0),
        1,
    ),
    False,
)
@example(
    (
        conv.Layout((6, 3), (1, 2), (1, 1), 3, 2, 8, 4, 8, 3, 2, True, winograd=True),  # 6 threes of rows of weights
        (2, 4, 39, 72),
        (7, 4, 6, 3),
        (1, 0),
        1,
    ),
    True,
)
@example(
    (
        conv.Layout((9, 6), (1, 1), (1, 1), 2, 1, 4, 8, 4, 1, 3, half=True, paired=True, winograd=True),
        (1, 4, 25, 37),
        (6, 2, 9, 6),
        (4, 2),
        2,
    ),
    False,
)
def test_every_layout(case, with_bias):
    """The kernel made to measure is right for any layout, not only for those that are chosen."""
    layout, shape, weight_shape, padding, groups = case
    if layout.nbytes > 200_000:
        return
    dtype = np.float16 if layout.half else np.float32
    x, weight = random(*shape, dtype=dtype), random(*weight_shape, dtype=dtype)
    bias = random(weight_shape[0], dtype=dtype) if with_bias else None
    how = {"stride": layout.stride, "padding": padding, "dilation": layout.dilation}
    exact, size = reference_conv(x, weight, bias, groups, **how)
    size = reference_conv(x, together(weight, layout.paired, layout.winograd), bias, groups, **how)[1]
    geometry = windows.make_geometry(shape[2:], weight_shape[2:], **how)
    out = cuda.to_device(poisoned(shape[0], weight_shape[0], *geometry.out_size, dtype=dtype))
    operands = (None if array is None else cuda.to_device(array) for array in (x, weight, bias))
    convolution = cost.Convolution(*operands, out, geometry, groups)
    launch, arguments = cost.launch_specialised(layout, convolution, 0, layout.quads)
    launch(*arguments)
    difference = abs(out.copy_to_host().reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()


@settings(max_examples=FEW(2) + 1)
@given(
    case=cases(1),
    which=st.integers(0, 99),
    dtype=st.sampled_from((np.float16, np.float32, BFLOAT16)),
    groups=st.integers(1, 2),
    parts=st.integers(1, 3),
)
@example(
    ((2, 4, 7, 8), {"kernel_size": 3, **PLAIN, "padding": 1}), 2, np.float16, 1, 2
)  # weights by four, windows by two
@example(
    ((1, 4, 3, 8), {"kernel_size": 3, **PLAIN, "padding": 1}), 1, np.float16, 1, 1
)  # windows by two, but an odd address
@example(((1, 1, 9, 9), {"kernel_size": (16, 15), **PLAIN, "padding": 4}), 3, np.float32, 1, 1)  # 16 + 15 bits
@example(
    ((3, 70, 5, 7), {"kernel_size": 3, **PLAIN, "padding": 1}), -1, np.float16, 2, 1
)  # groups of warps, an odd image
@example(((2, 34, 9, 8), {"kernel_size": 2, **PLAIN, "stride": 2}), -1, np.float32, 1, 2)  # float32 as two numbers
@example(
    ((2, 3, 20, 18), {"kernel_size": (17, 16), **PLAIN, "stride": 9}), 99, np.float16, 1, 2
)  # one window, in memory
@example(((2, 34, 9, 8), {"kernel_size": 1, **PLAIN, "stride": 3}), 99, np.float32, 1, 1)  # one pixel of each window
@example(((2, 70, 9, 8), {"kernel_size": (3, 2), **PLAIN, "padding": 1}), 35, np.float16, 2, 2)  # windows as rows
@example(((2, 34, 9, 9), {"kernel_size": 3, **PLAIN, "padding": 1}), 14, np.float32, 1, 1)
@example(((2, 18, 9, 9), {"kernel_size": 3, **PLAIN, "padding": 1}), 21, np.float32, 1, 1)
@example(((3, 4, 7, 8), {"kernel_size": 3, **PLAIN, "padding": 1}), 2, BFLOAT16, 2, 2)
@example(((3, 34, 5, 8), {"kernel_size": 3, **PLAIN, "padding": 1}), 13, BFLOAT16, 1, 2)  # short steps
@example(((2, 34, 9, 8), {"kernel_size": (3, 2), **PLAIN, "padding": 1}), 98, BFLOAT16, 1, 1)  # swapped, of windows
def test_every_tile_of_implicit_gemm(case, which, dtype, groups, parts):
    """The kernels of implicit GEMM are right for any tile and any number of parts of K, for a result at any address."""
    (samples, channels, *size), how = case
    kernel, half = pair(how.pop("kernel_size")), dtype != np.float32
    x, weight = (
        random(samples, channels * groups, *size, dtype=dtype),
        random(groups * 5, channels, *kernel, dtype=dtype),
    )
    bias = random(groups * 5, dtype=dtype)
    exact, size = reference_conv(x, weight, bias, groups, **how)
    geometry = windows.make_geometry(x.shape[2:], kernel, **how)
    odd, shape = which % 2, (samples, groups * 5, *geometry.out_size)
    out = cuda.to_device(poisoned(math.prod(shape) + odd, dtype=dtype))[odd:].reshape(shape)
    written = groups == 1 and which >= 50
    single, grouped = (gemm.HALF_SPEEDS, gemm.GROUP_SPEEDS) if half else (gemm.IMPLICIT_SPEEDS, gemm.SPLIT_SPEEDS)
    can_group = written or geometry.is_symmetric  # tensor maps have as many zeros behind the pixels as before them
    speeds = grouped if written else single + grouped * can_group
    swapped = which % 7 == 0 and out[0, 0].size > 1 and can_group
    tile = speeds[which % len(speeds)].tile
    narrow = which % 4 == 1 and not written and isinstance(tile, gemm.GroupTile)
    chosen = gemm.Choice(0, tile, parts, written, narrow=narrow)
    if swapped:
        form = FORMS["float16" if half else "float32"]
        chosen = chosen._replace(tile=gemm.swapped_speed(2 * which + 1, form).tile, swapped=True)
        chosen = chosen._replace(narrow=which % 4 == 1 and not written)
    convolution = cost.Convolution(*map(as_words, (x, weight, bias, out)), geometry, groups)
    for launch, arguments in gemm.implicit_launches(convolution, WorkMemory(0), chosen):
        assert gpukit.trace(launch, *arguments).findings == []
    difference = abs(values(out.copy_to_host()).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()


@pytest.mark.parametrize(
    ("dtype", "channels"), [(np.float16, 24), (np.float16, 3), (BFLOAT16, 24), (BFLOAT16, 9), (np.float32, 34)]
)
def test_images_with_their_channels_last_are_read_as_they_lie(dtype, channels):
    x, weight = random(2, channels, 6, 7, dtype=dtype), random(5, channels, 3, 2, dtype=dtype)
    how = {"stride": (2, 1), "padding": 1, "dilation": 1}
    exact, size = reference_conv(x, weight, None, 1, **how)
    last = channels_last(x)
    assert gemm.reads_last(last, weight.shape, windows.make_geometry((6, 7), (3, 2), **how), 1)
    result = conv.conv2d(last, cuda.to_device(weight), **how, algorithm="implicit").copy_to_host()
    difference = abs(values(result).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()


@pytest.mark.parametrize(
    ("dtype", "size", "kernel", "with_bias"),
    [
        (np.float16, (5, 4), (1, 1), True),
        (BFLOAT16, (5, 4), (1, 1), True),
        (np.float16, (4, 3), (4, 3), False),
        (np.float32, (4, 3), (4, 3), False),
        (np.float32, (4, 3), (4, 3), True),
    ],
)
def test_products_of_pixels_and_of_whole_images(monkeypatch, dtype, size, kernel, with_bias):
    """Whole images are the rows of one product; a bias of two bytes is there first, and rounded with the sum."""
    monkeypatch.setattr(api, "choose_algorithm", lambda *_: "im2col")
    x, weight = random(3, 6, *size, dtype=dtype), random(7, 6, *kernel, dtype=dtype)
    bias = random(7, dtype=dtype) if with_bias else None
    exact, sums = reference_conv(x, weight, bias, 1, **PLAIN)
    result = conv.conv2d(x, weight, bias)
    difference = abs(values(result).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, sums, weight[0].size + 2, result.dtype)).all()


@pytest.mark.parametrize(
    ("dtype", "channels", "groups", "outs"),
    [
        (np.float16, 3, 1, 5),
        (np.float32, 20, 20, 40),
        (np.float32, 34, 34, 34),
        (np.float32, 36, 36, 36),
        (np.float16, 72, 72, 72),
        (BFLOAT16, 72, 72, 72),
    ],
)
def test_images_with_their_channels_last_in_other_kernels(dtype, channels, groups, outs):
    """They are copied, by positions or by tiles, or depthwise kernels read them in place."""
    x, weight = random(2, channels, 9, 11, dtype=dtype), random(outs, channels // groups, 3, 3, dtype=dtype)
    exact, size = reference_conv(x, weight, None, groups, stride=2, padding=1, dilation=1)
    result = conv.conv2d(channels_last(x), cuda.to_device(weight), stride=2, padding=1, groups=groups).copy_to_host()
    difference = abs(values(result).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()


@pytest.mark.parametrize(
    ("shape", "weight_shape", "stride", "groups", "name"),
    [
        ((1, 3, 16, 16), (3, 3, 3, 7), 2, 1, "short"),
        ((2, 8, 20, 20), (8, 1, 4, 4), 4, 8, "depthwise_last"),
        ((2, 8, 20, 20), (16, 1, 4, 5), 5, 8, "apart"),
    ],
)
def test_the_fastest_kernel_of_images_with_their_channels_last_takes_them(shape, weight_shape, stride, groups, name):
    """Where kernels that need a copy would be faster without it, or have windows without a pixel in common."""
    x, weight, bias = random(*shape), random(*weight_shape), random(weight_shape[0])
    how, launched = PLAIN | {"stride": stride}, []
    exact, size = reference_conv(x, weight, bias, groups, **how)
    arrays, how = (channels_last(x), cuda.to_device(weight), cuda.to_device(bias)), how | {"groups": groups}
    with without_launches(lambda launches: launched.extend(launch for launch, _ in launches)):
        conv.conv2d(*arrays, **how, algorithm="direct")
    assert launched[-1].dispatcher.py_func.__name__ == name
    result = conv.conv2d(*arrays, **how, algorithm="direct").copy_to_host().reshape(exact.shape)
    assert (abs(result - exact) <= tolerance(exact, size, weight[0].size + 2, x.dtype)).all()


@pytest.mark.parametrize(
    ("dtype", "weight_shape", "how", "groups", "run", "outs", "last"),
    [
        (np.float32, (7, 2, 2, 3), {"stride": (2, 1), "padding": 1}, 1, 4, 4, True),
        (np.float32, (6, 7, 3, 3), {"padding": 2, "dilation": 2}, 2, 1, 2, False),
        (np.float32, (10, 16, 1, 1), {"stride": 3}, 2, 2, 2, True),
        (np.float16, (9, 3, 2, 2), {"stride": (1, 2)}, 1, 4, 6, False),
        (np.float16, (5, 1, 3, 1), {"padding": 1}, 3, 2, 8, True),
        (BFLOAT16, (4, 4, 2, 2), {"stride": 2, "padding": 1}, 1, 2, 4, True),
        (np.float32, (3, 1, 8, 8), {"padding": (0, 3)}, 1, 1, 2, False),
    ],
)
@pytest.mark.parametrize("odd", [0, 1])
def test_sums_of_few_terms(monkeypatch, dtype, weight_shape, how, groups, run, outs, last, odd):
    """Any division of the work is right, for images in any layout and a result at any address."""
    made, channels, *kernel = weight_shape
    x, weight = random(3, channels * groups, 9, 10, dtype=dtype), random(made * groups, *weight_shape[1:], dtype=dtype)
    bias, how = random(made * groups, dtype=dtype), PLAIN | how
    exact, size = reference_conv(x, weight, bias, groups, **how)
    geometry = windows.make_geometry(x.shape[2:], kernel, **how)
    shape = 3, made * groups, *geometry.out_size
    out = cuda.to_device(poisoned(math.prod(shape) + odd, dtype=dtype))[odd:].reshape(shape)
    arrays = [channels_last(x) if last else cuda.to_device(x), *map(cuda.to_device, (weight, bias)), out]
    monkeypatch.setattr(cost, "divide", lambda *_: short.Work(run, outs))
    launch, arguments = cost.direct_launch("short", cost.Convolution(*map(as_words, arrays), geometry, groups), 0)
    assert gpukit.trace(launch, *arguments).findings == []
    difference = abs(values(out.copy_to_host()).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()


@pytest.mark.parametrize(
    ("dtype", "shape", "weight_shape", "how", "groups", "shares"),
    [
        (np.float32, (2, 5, 33, 40), (1, 1, 16, 5), {"stride": 16, "padding": 8}, 5, (1, 1, 1)),
        (np.float32, (3, 21, 13, 17), (2, 21, 1, 1), {"stride": 3}, 1, (8, 1, 2)),
        (np.float16, (1, 12, 39, 22), (4, 6, 3, 3), {"stride": (3, 4), "padding": 1, "dilation": (2, 1)}, 2, (2, 4, 1)),
        (BFLOAT16, (2, 3, 57, 25), (3, 1, 9, 9), {"stride": 9, "padding": (0, 4)}, 3, (1, 2, 1)),
        (np.float32, (70, 40, 1, 2), (1, 40, 1, 2), {}, 1, (4, 1, 8)),
    ],
)
def test_few_out_channels_of_windows_apart(monkeypatch, dtype, shape, weight_shape, how, groups, shares):
    """With one thread or several to a column of a window, some windows to a thread, and whole images for windows."""
    how, made = PLAIN | how, weight_shape[0] * groups
    x, weight, bias = (random(*sizes, dtype=dtype) for sizes in (shape, (made, *weight_shape[1:]), (made,)))
    exact, size = reference_conv(x, weight, bias, groups, **how)
    geometry, out = windows.make_geometry(shape[2:], weight_shape[2:], **how), poisoned(*exact.shape, dtype=dtype)
    arrays = list(map(cuda.to_device, (x, weight, bias, out)))
    monkeypatch.setattr(cost, "share", lambda *_: apart.Shares(*shares))
    launch, arguments = cost.direct_launch("apart", cost.Convolution(*map(as_words, arrays), geometry, groups), 0)
    assert gpukit.trace(launch, *arguments).findings == []
    difference = abs(values(arrays[3].copy_to_host()).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()


@pytest.mark.parametrize(
    ("dtype", "channels", "groups", "stride"),
    [(np.float32, 20, 1, 3), (np.float32, 6, 1, (1, 2)), (np.float16, 38, 2, (2, 1)), (np.float64, 34, 1, 2)],
)
def test_of_images_with_their_channels_last_the_pixels_of_windows_are_copied(
    monkeypatch, dtype, channels, groups, stride
):
    """Where windows are single pixels, the others are left out, whatever the algorithm."""
    x, weight = random(2, channels, 9, 11, dtype=dtype), random(6, channels // groups, 1, 1, dtype=dtype)
    exact, size = reference_conv(x, weight, None, groups, stride=stride, padding=0, dilation=1)
    copied, copy = [], api.first_launch
    monkeypatch.setattr(api, "first_launch", lambda *arguments: copied.append(copy(*arguments)) or copied[-1])
    for algorithm in ("auto", "naive", "im2col"):
        if api.ALLOWED.get(algorithm, api.DIRECT_DTYPES).count(dtype):
            how = {"stride": stride, "groups": groups, "algorithm": algorithm}
            result = conv.conv2d(channels_last(x), cuda.to_device(weight), **how).copy_to_host()
            difference = abs(values(result).reshape(exact.shape) - exact)
            assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()
    assert copied and all(first.shape[2:] == result.shape[2:] for first, _ in copied)


@pytest.mark.parametrize(
    ("dtype", "channels", "unit"),
    [
        (np.float32, 3, 1),
        (np.float32, 10, 2),
        (np.float32, 20, 4),
        (np.float32, 67, 1),
        (np.float16, 6, 2),
        (np.float16, 7, 0),
        (BFLOAT16, 8, 8),
        (np.float64, 8, 0),
    ],
)
def test_depthwise_kernels_read_any_number_of_channels_in_place(dtype, channels, unit):
    """As many at a time as their number allows, at 4 to 16 bytes; a thread may have fewer channels than four."""
    x, weight = random(2, channels, 9, 35, dtype=dtype), random(channels, 1, 3, 2, dtype=dtype)
    bias, how = random(channels, dtype=dtype), {"stride": (1, 2), "padding": 1, "dilation": (2, 1)}
    exact, size = reference_conv(x, weight, bias, channels, **how)
    geometry, out = windows.make_geometry((9, 35), (3, 2), **how), poisoned(*exact.shape[:2], 7, 18, dtype=dtype)
    arrays = [channels_last(x), *map(cuda.to_device, (weight, bias, out))]
    assert cost.depthwise_reads_last(arrays[0], weight.shape, geometry, channels) == (unit > 0)
    if unit:
        assert depthwise.unit_of(channels, address_of(arrays[0]), x.itemsize) == unit
        convolution = cost.Convolution(*map(as_words, arrays), geometry, channels)
        launch, arguments = cost.direct_launch("depthwise", convolution, 0)
        trace = gpukit.trace(launch, *arguments)
        assert trace.findings == [] and trace.kernel == "depthwise_last"
    else:
        conv.conv2d(*arrays[:3], **how, groups=channels, out=arrays[3])
    difference = abs(values(arrays[3].copy_to_host()).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(dtype))).all()


@pytest.mark.parametrize(
    ("size", "kernel", "how", "dtype", "name"),
    [
        ((9, 12), (5, 3), {"padding": (2, 1), "dilation": (2, 1)}, np.float32, "depthwise_pairs"),
        ((9, 14), (4, 4), {"padding": 2, "stride": (1, 2)}, np.float16, "depthwise_pairs"),
        ((9, 14), (4, 3), {"padding": 1}, BFLOAT16, "depthwise_pairs"),
        ((9, 11), (3, 3), {"padding": 1}, np.float64, "depthwise"),
        ((3, 41), (1, 7), {"padding": (0, 5), "stride": (1, 2), "dilation": (1, 3)}, np.float16, "depthwise"),
    ],
)
def test_several_values_to_a_thread(monkeypatch, size, kernel, how, dtype, name):
    """Threads of depthwise kernels have values in rows, in a row, or in both."""
    monkeypatch.setattr(cost, "DEPTHWISE_MANY", 1)
    how, groups = PLAIN | how, 3
    x, weight = random(9, groups, *size, dtype=dtype), random(2 * groups, 1, *kernel, dtype=dtype)
    bias, geometry = random(2 * groups, dtype=dtype), windows.make_geometry(size, kernel, **how)
    exact, sums = reference_conv(x, weight, bias, groups, **how)
    out = poisoned(9, 2 * groups, *geometry.out_size, dtype=dtype)
    convolution = cost.Convolution(*map(as_words, (x, weight, bias, out)), geometry, groups)
    launch, arguments = cost.direct_launch("direct", convolution, 0)
    trace = gpukit.trace(launch, *arguments)
    assert trace.findings == [] and trace.kernel == name
    difference = abs(values(out).reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, sums, weight[0].size + 2, np.dtype(dtype))).all()


@pytest.mark.parametrize(("channels", "groups", "outs"), [(24, 2, 6), (8, 2, 4), (28, 1, 5), (4, 1, 3)])
def test_single_warps_read_channels_that_are_last_in_place(monkeypatch, channels, groups, outs):
    """Chunks of four channels, of one group or of several."""
    monkeypatch.setattr(gemm, "_group_choices", lambda *_, **__: ())
    gemm._choose_tile.cache_clear()
    x, weight = random(2, channels, 9, 10, dtype=np.float16), random(outs, channels // groups, 3, 3, dtype=np.float16)
    last, how = channels_last(x), {"stride": 2, "padding": 1, "dilation": 1}
    exact, size = reference_conv(x, weight, None, groups, **how)
    assert gemm.reads_last(last, weight.shape, windows.make_geometry((9, 10), (3, 3), **how), groups)
    found = conv.conv2d(last, cuda.to_device(weight), **how, groups=groups, algorithm="implicit").copy_to_host()
    gemm._choose_tile.cache_clear()
    difference = abs(found.reshape(exact.shape) - exact)
    assert (difference <= tolerance(exact, size, weight[0].size + 2, np.dtype(np.float16))).all()


def test_a_caller_far_down_the_stack():
    """Python's limit on calls within calls holds for the compiler too."""
    first_sums = make_swapped_sums(256)

    @cuda.jit
    def first_ones(bias, out):
        sums = first_sums(bias, uint32(0), uint32(0), uint32(256), True)
        out[cuda.threadIdx.x] = sums[0] + sums[2]

    def call(depth):
        return call(depth - 1) if depth else first_ones[1, 32](bias, out)

    bias, out = np.arange(256, dtype=np.float32), poisoned(32)
    call(200)
    assert np.array_equal(out, np.arange(32) % 4 * 4)


def channels_last(x):
    """Copy images to the device with their channels last in memory."""
    (_, channels, height, width), item = x.shape, x.itemsize
    memory = cuda.to_device(np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
    strides = height * width * channels * item, item, width * channels * item, channels * item
    return device_array_of(x.shape, strides, x.dtype, memory)


@pytest.mark.parametrize("split", [1, 2])
def test_no_copy_is_under_way_when_sums_take_its_place(split):
    """One in channel for a ring of three stages: the copies for the others are of zeros, and arrive all the same."""
    layout = conv.Layout((3, 3), (1, 1), (1, 1), 2, 1, 4, 8, 4, 2, 3, split=split)
    x, weight = random(1, 1, 9, 20), random(2, 1, 3, 3)
    geometry = windows.make_geometry(x.shape[2:], (3, 3), 1, 1, 1)
    out = poisoned(1, 2, *geometry.out_size)
    launch, arguments = cost.launch_specialised(layout, cost.Convolution(x, weight, None, out, geometry, 1), 0, False)
    assert gpukit.trace(launch, *arguments).findings == []


def test_rows_are_loaded_without_conflicts():
    """A quarter of a warp, wherever its lanes are in the tile, finds 32 banks, and there are no findings."""
    layout = conv.Layout((3, 5), (1, 1), (1, 1), 3, 1, 12, 8, 4, 2, 2)
    ways = (8, 12, 1, False, False), (8, 12, 1, True, False), (4, 12, 1, True, True), (2, 16, 1, False, False)
    for across, run, stride, paired, winograd in (*ways, (1, 4, 2, False, False)):
        shared = {"paired": paired, "winograd": winograd}
        chosen = layout._replace(across=across, run=run, down=32 // across, stride=(1, stride), **shared)
        x, weight = random(1, 3, 9, 3 * across * run), random(3, 3, 3, 5)
        geometry = windows.make_geometry(x.shape[2:], (3, 5), chosen.stride, (1, 2), 1)
        out = poisoned(1, 3, *geometry.out_size)
        launch, arguments = cost.launch_specialised(
            chosen, cost.Convolution(x, weight, None, out, geometry, 1), 0, False
        )
        trace = gpukit.trace(launch, *arguments)
        assert trace.findings == []
        loads = [a for a in trace.accesses if (a.space, a.op) == ("shared", "load") and "load4" in a.code]
        assert loads and all(a.wavefronts <= a.ideal_wavefronts for a in loads), (across, run)


#: Shapes of x and weight of the tests of pairs, which take one kernel.
IN_PAIRS = (2, 6, 20, 37), (5, 6, 4, 7)


def test_blocked_takes_any_number_of_rows():
    x = np.random.default_rng(0).integers(-9, 10, (1, 2, 40, 9)).astype(np.float32)
    weight = np.random.default_rng(1).integers(-9, 10, (3, 2, 3, 2)).astype(np.float32)
    out = np.full((1, 3, 38, 8), np.nan, np.float32)
    geometry = windows.make_geometry((40, 9), (3, 2), 1, 0, 1)
    launch, arguments = cost.launch_blocked(cost.Convolution(x, weight, None, out, geometry, 1), 3)
    launch(*arguments)
    assert np.array_equal(out, conv.serial(x, weight, None, (1, 1), (0, 0), (1, 1), 1))


def test_pairs_of_whole_numbers_are_exact():
    """Differences and sums of small whole numbers are exact, and so is what a pair shares."""
    rng = np.random.default_rng(0)
    x, weight = (rng.integers(-9, 10, shape).astype(np.float32) for shape in IN_PAIRS)
    exact, _ = reference_conv(x, weight, None, 1, padding=3)
    assert np.array_equal(conv.conv2d(x, weight, padding=3, algorithm="paired").reshape(exact.shape), exact)
    weight = weight[:, :, :3]
    exact, _ = reference_conv(x, weight, None, 1, padding=3)
    assert np.array_equal(conv.conv2d(x, weight, padding=3, algorithm="winograd").reshape(exact.shape), exact)


def test_infinities_stay_in_their_windows():
    """A pair may make NaN of an infinity, which tells it from the kernel it is made of, but only where there is one."""
    x, weight = random(*IN_PAIRS[0]), abs(random(*IN_PAIRS[1]))
    x[0, 1, 4, 13] = x[1, 2, 16, 22] = np.inf
    for algorithm, rows, shares in (("specialised", 4, False), ("paired", 4, True), ("winograd", 3, True)):
        exact, _ = reference_conv(x, weight[:, :, :rows], None, 1, padding=3)
        result = conv.conv2d(x, weight[:, :, :rows], padding=3, algorithm=algorithm).reshape(exact.shape)
        assert np.array_equal(np.isfinite(result), np.isfinite(exact))
        assert np.isnan(result).any() == shares


def test_conv2d_in_a_workspace():
    x, weight = (cuda.to_device(random(*shape)) for shape in ((2, 4, 9, 11), (6, 2, 3, 3)))
    how = {"padding": (1, 2), "stride": 2}
    size = conv.workspace_size(x.shape, 3, **how)
    assert size == 4 * 9 * 5 * 7
    workspace = cuda.to_device(poisoned(size + 5))
    stream = cuda.stream()
    how["algorithm"] = "im2col"
    result = conv.conv2d(x, weight, groups=2, workspace=workspace, stream=stream, **how)
    stream.synchronize()
    assert cuda.is_cuda_array(result)
    del how["algorithm"]
    exact, _ = reference_conv(x.copy_to_host(), weight.copy_to_host(), None, 2, **how)
    assert np.allclose(result.copy_to_host().reshape(exact.shape), exact, atol=1e-4)
    used = workspace.copy_to_host()
    last = reference_columns(x.copy_to_host()[1:], 3, **how)
    assert np.array_equal(used[:size], last.reshape(-1)) and np.isnan(used[size:]).all()
    for wrong, error, message in (
        (cuda.to_device(poisoned(size - 1)), ValueError, rf"workspace has shape \({size - 1},\); .* {size} or more"),
        (
            cuda.to_device(poisoned(size, dtype=np.float64)),
            TypeError,
            "workspace has dtype float64; it must be float32",
        ),
        (poisoned(size), TypeError, "workspace is an ndarray; it must be a device array"),
    ):
        with pytest.raises(error, match=message):
            conv.conv2d(x, weight, groups=2, workspace=wrong, **how)
    with pytest.raises(ValueError, match="workspace shares memory with x"):
        conv.conv2d(x, weight, groups=2, workspace=x.reshape(x.size), stride=3)


@pytest.fixture
def workspaces():
    """A function: (address, bytes) of the workspace that a stream keeps, or None."""
    from gpukit._host.work_memory import state_of

    def find(stream):
        found = [memory for (_, purpose), memory in state_of(stream).buffers.items() if purpose == "columns"]
        return (found[0].device_ctypes_pointer.value, found[0].nbytes) if found else None

    return find


def test_a_workspace_for_each_stream(workspaces):
    conv.free_workspaces()
    streams = [cuda.stream(), cuda.stream()]
    x, weight = cuda.to_device(random(1, 3, 9, 9)), cuda.to_device(random(2, 3, 3, 3))
    for stream in (*streams, *streams):
        conv.conv2d(x, weight, algorithm="im2col", stream=stream)
    (one, one_size), (two, two_size) = map(workspaces, streams)
    assert one != two and 4 * 3 * 9 * 49 <= one_size == two_size < 4 * 3 * 9 * 81
    conv.conv2d(x, weight, padding=1, algorithm="im2col", stream=streams[0])
    assert workspaces(streams[0])[1] >= 4 * 3 * 9 * 81 and workspaces(streams[1]) == (two, two_size)
    conv.conv2d(x, cuda.to_device(random(2, 3, 1, 1)), algorithm="im2col")  # its columns are the image
    assert workspaces(0) is None
    conv.free_workspaces()
    assert not any(map(workspaces, streams))


def test_extra_memory():
    needs = conv.extra_memory((5, 6, 20, 30), (8, 3, 3, 5), padding=1, groups=2)
    assert needs == {"im2col": 6 * 15 * 20 * 28 * 4, "sparse": 8 * 3 * 15 * 20 * 28 * 8, "direct": 0}
    assert needs["im2col"] == 4 * conv.workspace_size((5, 6, 20, 30), (3, 5), padding=1)
    with pytest.raises(
        ValueError, match=r"weight_shape is \(8, 3, 3, 5\); x_shape is \(5, 6, 20, 30\), and groups is 1"
    ):
        conv.extra_memory((5, 6, 20, 30), (8, 3, 3, 5))


@pytest.mark.parametrize(
    ("x_shape", "weight_shape", "how", "dtype", "expected"),
    [
        ((1, 6, 512, 768), (6, 6, 6, 6), {}, np.float32, "direct"),
        ((64, 128, 7, 7), (128, 128, 3, 3), {"padding": 1}, np.float32, "implicit"),
        ((1, 128, 512, 512), (128, 128, 1, 1), {}, np.float32, "im2col"),
        ((64, 128, 7, 7), (128, 128, 3, 3), {"padding": 1}, np.float16, "implicit"),
        ((4, 64, 56, 56), (64, 1, 3, 3), {"groups": 64}, np.float32, "direct"),
        ((40, 56, 24, 24), (66, 56, 9, 9), {"padding": 4}, np.float32, "fourier"),
        ((1, 6, 512, 768), (6, 6, 6, 6), {}, np.float64, "fourier"),
        ((2, 3, 64, 64), (8, 3, 3, 3), {}, np.float64, "im2col"),
        ((4, 1, 319, 255), (1, 1, 3, 3), {"padding": 1}, np.float64, "depthwise"),
        ((1, 3, 300, 300), (3, 3, 3, 99), {}, np.float32, "im2col"),
    ],
)
def test_what_auto_stands_for(x_shape, weight_shape, how, dtype, expected):
    groups = how.pop("groups", 1)
    geometry = windows.make_geometry(x_shape[2:], weight_shape[2:], **{"stride": 1, "padding": 0, "dilation": 1, **how})
    assert cost.choose_algorithm("auto", x_shape, weight_shape, geometry, groups, np.dtype(dtype)) == expected


def test_layouts_that_are_chosen():
    geometry = windows.make_geometry((512, 768), 6, 1, 0, 1)
    layout = cost.layout_of((1, 6, 512, 768), (6, 6, 6, 6), geometry, 1, True, "float32")
    assert (
        layout.channels_per_thread == layout.outs == 6
        and layout.quads
        and layout.paired
        and layout.winograd
        and not layout.has_conflicts
    )
    assert layout.nbytes < 227 * 1024 and layout.threads <= 256
    for count in (1, 5):
        assert len(cost.layouts_of((1, 6, 512, 768), (6, 6, 6, 6), geometry, 1, True, "float32", count)) == count
    wide = windows.make_geometry((300, 300), (3, 99), 1, 0, 1)
    assert cost.layout_of((1, 3, 300, 300), (3, 3, 3, 99), wide, 1, False, "float32") is None


@pytest.mark.parametrize(
    ("algorithm", "channels", "kernel", "how", "shares"),
    [
        ("specialised", 6, 6, {}, (False, False)),
        ("paired", 2, 2, {"stride": (2, 1), "dilation": (2, 1)}, (True, False)),
        ("winograd", 2, 3, {"stride": (1, 2)}, (False, True)),
        ("direct", 6, 6, {}, (True, True)),
        ("direct", 2, 6, {}, (False, False)),  # 72 terms
        ("direct", 20, 4, {}, (False, False)),
        ("direct", 6, 6, {"stride": 2}, (False, False)),
        ("direct", 6, 6, {"dilation": 2}, (False, False)),
    ],
)
def test_who_shares_products(monkeypatch, algorithm, channels, kernel, how, shares):
    """By name, and "direct" where the kernel is wide, a sum has many terms, and neighbours have neighbouring pixels."""
    monkeypatch.setattr(cost, "launch_specialised", lambda layout, *rest: layout)
    x, weight = np.empty((1, channels, 512, 768), np.float32), np.empty((6, channels, kernel, kernel), np.float32)
    geometry = windows.make_geometry(x.shape[2:], kernel, **{**PLAIN, **how})
    convolution = cost.Convolution(x, weight, None, None, geometry, 1)
    layout = cost.direct_launch(algorithm, convolution, 0)
    assert (layout.paired, layout.winograd) == shares


def test_tiles_that_do_not_fit():
    """With much dilation the tile of "blocked" is more than shared memory holds: "direct" takes the naive kernel."""
    x, weight = random(1, 1, 250, 250), random(2, 1, 2, 2)
    exact, size = reference_conv(x, weight, None, 1, dilation=240)
    result = conv.conv2d(x, weight, dilation=240, algorithm="direct")
    assert (abs(result.reshape(exact.shape) - exact) <= tolerance(exact, size, 5, result.dtype)).all()
    for algorithm in ("blocked", "specialised", "paired"):
        with pytest.raises(ValueError, match=f"algorithm is '{algorithm}'; "):
            conv.conv2d(x, weight, dilation=240, algorithm=algorithm)


def test_arrays_of_any_layout():
    x = random(3, 4, 12, 10)
    columns = reference_columns(x, 3, padding=1)
    image = reference_image(columns, x.shape, 3, padding=1)
    flipped = np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    assert np.array_equal(conv.im2col(flipped, 3, padding=1), columns)
    wide = cuda.to_device(np.repeat(x, 2, axis=1))
    assert np.array_equal(conv.im2col(wide[:, ::2], 3, padding=1).copy_to_host(), columns)
    twice = cuda.to_device(poisoned(*columns.shape[:2], 2 * columns.shape[2]))
    conv.im2col(cuda.to_device(x), 3, padding=1, out=twice[:, :, ::2])
    assert np.array_equal(twice.copy_to_host()[:, :, ::2], columns)
    assert np.isnan(twice.copy_to_host()[:, :, 1::2]).all()
    ones = cuda.to_device(np.ones((3, 4, 24, 10), np.float32))
    conv.col2im(cuda.to_device(columns), (12, 10), 3, padding=1, out=ones[:, :, ::2], request="add")
    assert np.allclose(ones.copy_to_host()[:, :, ::2], image + 1, rtol=1e-5, atol=1e-5)
    assert (ones.copy_to_host()[:, :, 1::2] == 1).all()


def test_in_place_of_the_columns(monkeypatch):
    """The first image lies on the second one's columns, which the same threads read afterwards."""
    monkeypatch.setattr(columns, "MAX_GRID_YZ", 1)
    given = random(2, 3 * 9, 20 * 15)
    expected = conv.col2im(given, (20, 15), 3, padding=1)
    memory = cuda.to_device(given)
    out = memory.reshape(memory.size)[given[0].size :][: expected.size].reshape(expected.shape)
    for request in ("write", "add"):
        with pytest.raises(ValueError, match="out shares memory with columns; they must be apart"):
            conv.col2im(memory, (20, 15), 3, padding=1, out=out, request=request)
    assert np.array_equal(memory.copy_to_host(), given)
    assert conv.col2im(memory, (20, 15), 3, padding=1, out=out, request="inplace") is out
    assert np.array_equal(out.copy_to_host(), expected)


def test_more_planes_than_threads(monkeypatch):
    monkeypatch.setattr(columns, "MAX_GRID_YZ", 2)
    x = random(5, 17, 6, 9)
    expected = reference_columns(x, 2)
    for variant in conv.VARIANTS:
        assert np.array_equal(conv.im2col(x, 2, variant=variant), expected)
    assert np.allclose(conv.col2im(expected, (6, 9), 2), reference_image(expected, x.shape, 2), atol=1e-5)


def test_divisors_are_exact():
    rng = np.random.default_rng(0)
    values = [1, 2, 3, 5, 7, 9, 641, 65537, *(2**k + d for k in range(2, 31) for d in (-1, 0, 1)), 2**31 - 1]
    for value in values:
        by = windows.make_divisor(value)
        n = np.append(rng.integers(0, 2**31, 200), [0, value - 1, value, 2**31 - 2, 2**31 - 1]).astype(np.uint64)
        n = np.append(n, n // np.uint64(value) * np.uint64(value))
        assert np.array_equal(n * np.uint64(by.factor) >> np.uint64(by.shift), n // np.uint64(value)), value


@pytest.mark.parametrize("shape", [(3, 5, 15, 15), (1, 3, 15, 15), (2, 2, 18, 18)])
def test_why_a_thread_for_each_value(shape):
    """Rows of OH OW = 169 values begin anywhere in a sector, of 256 at its start; the launches have no findings."""
    x, traces = random(*shape), {}
    expected = reference_columns(x, 3)
    possible = {usable(variant, shape, {"kernel_size": 3}) for variant in conv.VARIANTS}
    for variant in possible:
        out = poisoned(expected.size)
        launch, further = conv.configure_im2col(variant, shape, 3)
        traces[variant] = trace = gpukit.trace(launch, x.reshape(-1), out, *further)
        assert np.array_equal(out.reshape(expected.shape), expected) and trace.findings == []
        assert not any(o.fp64 or o.fp64_conversions or o.int64_divisions for o in trace.operations)
    stores = {variant: trace.total("global", "store").sectors for variant, trace in traces.items()}
    at_least = -(-expected.nbytes // 32)
    assert stores["element"] == at_least <= stores["aligned"] < at_least + expected.shape[1] * expected.shape[0]
    assert stores["im2col_naive"] > 1.2 * at_least if expected.shape[2] % 8 else stores["im2col_naive"] == at_least
    loads = {variant: trace.total("global", "load").sectors for variant, trace in traces.items()}
    assert all(abs(loads[variant] / loads["im2col_naive"] - 1) < 0.06 for variant in possible - {"quads", "rows"})
    if "quads" in possible:  # a row of pixels is loaded once for all that lie in it
        assert stores["quads"] == at_least and traces["quads"].total("global", "store").requests < at_least / 14


def test_gathering_without_a_finding():
    given = random(6, 9, 13 * 13)
    for request in ("write", "add"):
        out = np.ones(6 * 15 * 15, np.float32)
        launch, further = conv.configure_col2im((2, 3, 15, 15), 3, request=request)
        trace = gpukit.trace(launch, given.reshape(-1), out, *further)
        assert trace.findings == [] and not trace.total("global", "atomic").requests
        assert not any(o.fp64 or o.fp64_conversions or o.int64_divisions for o in trace.operations)
        exact = reference_image(given.reshape(2, 27, 169), (2, 3, 15, 15), 3)
        assert np.allclose(out.reshape(exact.shape) - (request == "add"), exact, atol=1e-5)


@pytest.mark.parametrize("dtype", conv.DTYPES)
def test_beside_pytorch(dtype):
    """Tensors go in and come out where there is a GPU; elsewhere their values as NumPy arrays."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    device, given = ("cuda", lambda v: v) if gpukit.on_gpu() else ("cpu", lambda v: v.numpy())
    x, weight, bias = (
        torch.asarray(random(*shape, dtype=dtype), device=device) for shape in ((3, 6, 19, 23), (4, 3, 3, 4), (4,))
    )
    how = {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 3)}
    columns = functional.unfold(x, (3, 4), **how)
    for variant in ("im2col_naive", "element", "aligned", "rows"):
        result = conv.im2col(given(x), (3, 4), **how, variant=variant)
        assert type(result) is type(given(x)) and bool((torch.asarray(result) == columns).all())
    folded = torch.asarray(conv.col2im(given(columns), (19, 23), (3, 4), **how))
    assert torch.allclose(folded, functional.fold(columns, (19, 23), (3, 4), **how), rtol=1e-5, atol=1e-5)
    exact = functional.conv2d(x.double(), weight.double(), bias.double(), groups=2, **how)
    result = torch.asarray(conv.conv2d(given(x), given(weight), given(bias), groups=2, **how))
    assert torch.allclose(result.double(), exact, rtol=1e-5, atol=1e-5)


X, COLUMNS, WEIGHT = np.ones((2, 4, 5, 6), np.float32), np.ones((2, 36, 12), np.float32), np.ones((6, 4, 3, 3), "f4")
OUT, IMAGE, MADE = (poisoned(*shape) for shape in ((2, 36, 12), (2, 4, 5, 6), (2, 6, 3, 4)))
WRONG = [
    (lambda: conv.im2col([1.0], 3, out=OUT), TypeError, "x is a list"),
    (lambda: conv.im2col(X[0], 3, out=OUT), ValueError, r"x has shape \(4, 5, 6\); it must have 4 dimensions"),
    (lambda: conv.im2col(X.astype("f2"), 3, out=OUT), TypeError, "x has dtype float16; it must be float32 or float64"),
    (lambda: conv.im2col(X, 0, out=OUT), ValueError, "kernel_size is 0; it must be 1 or more"),
    (lambda: conv.im2col(X, 3.0, out=OUT), TypeError, "kernel_size is 3.0; it must be an int"),
    (lambda: conv.im2col(X, (3, 3, 3), out=OUT), ValueError, r"kernel_size is \(3, 3, 3\); it must be an int or two"),
    (lambda: conv.im2col(X, 3, (1, 0), out=OUT), ValueError, r"stride\[1\] is 0; it must be 1 or more"),
    (lambda: conv.im2col(X, 3, padding=-1, out=OUT), ValueError, "padding is -1; it must be 0 or more"),
    (lambda: conv.im2col(X, 3, dilation=(True, 1), out=OUT), TypeError, r"dilation\[0\] is True"),
    (
        lambda: conv.im2col(X, 3, dilation=3, out=OUT),
        ValueError,
        r"kernel_size is \(3, 3\) with dilation \(3, 3\), 7 r",
    ),
    (lambda: conv.im2col(X, 3, padding=2**30), ValueError, "the images of x have 2147483653 rows with their padding"),
    (lambda: conv.im2col(X, 1, padding=2**20), ValueError, r"OH OW is 2097157 \* 2097158; it must be at most"),
    (lambda: conv.im2col(X, 1, padding=2**14, variant="element"), ValueError, "x is too large: 8 KH KW OH OW is 859"),
    (
        lambda: conv.im2col(X, 3, variant="fast", out=OUT),
        ValueError,
        "variant is 'fast'; it must be 'auto' or one of im2col_n",
    ),
    (lambda: conv.im2col(X, 2, out=OUT), ValueError, r"out has shape \(2, 36, 12\); it must be \(2, 16, 20\)"),
    (lambda: conv.im2col(X.astype("f8"), 3, out=OUT), TypeError, "out has dtype float32; it must be float64"),
    (lambda: conv.im2col(X, 3, out=cuda.to_device(OUT)), TypeError, "out is a device array and x is a NumPy array"),
    (
        lambda: conv.configure_im2col("auto", X.shape, 3),
        ValueError,
        "variant is 'auto'; it must be one of im2col_naive",
    ),
    (
        lambda: conv.configure_im2col("im2col_naive", (0, 4, 5, 6), 3),
        ValueError,
        r"shape\[0\] is 0; it must be 1 or more",
    ),
    (
        lambda: conv.configure_im2col("im2col_naive", (4, 5, 6), 3),
        ValueError,
        r"shape is \(4, 5, 6\); it must be N, C, H, W",
    ),
    (lambda: conv.col2im(COLUMNS[0], (5, 6), 3, out=IMAGE), ValueError, r"columns has shape \(36, 12\)"),
    (lambda: conv.col2im(COLUMNS, (5, -6), 3, out=IMAGE), ValueError, r"output_size\[1\] is -6; it must be 0 or more"),
    (lambda: conv.col2im(COLUMNS, (7, 6), (5, 3), out=IMAGE), ValueError, "columns has 36 rows; .* multiple of 15"),
    (lambda: conv.col2im(COLUMNS, 6, 3, out=IMAGE), ValueError, r"columns has 12 columns; it must have 16, .* 4 \* 4"),
    (lambda: conv.col2im(COLUMNS, (5, 6), 3, request="sum"), ValueError, "request is 'sum'; it must be one of write"),
    (lambda: conv.col2im(COLUMNS, (5, 6), 3, request="add"), ValueError, r"out is None; .* of shape \(2, 4, 5, 6\)"),
    (lambda: conv.col2im(COLUMNS, (5, 6), 3, out=IMAGE[:1], request="null"), ValueError, r"out has shape \(1, 4, 5, 6"),
    (lambda: conv.configure_col2im(X.shape, 3, request="null"), ValueError, "request is 'null'; .* one of write, add"),
    (
        lambda: conv.conv2d(X, WEIGHT[0], out=MADE),
        ValueError,
        r"weight has shape \(4, 3, 3\); it must have 4 dimensions",
    ),
    (lambda: conv.conv2d(X, WEIGHT.astype("f8"), out=MADE), TypeError, "weight has dtype float64; it must be float32"),
    (lambda: conv.conv2d(X, WEIGHT, groups=2, out=MADE), ValueError, r"weight has shape \(6, 4, 3, 3\); .* \(O, 2, KH"),
    (lambda: conv.conv2d(X, WEIGHT[..., :0], out=MADE), ValueError, r"weight has shape \(6, 4, 3, 0\); it must be \(O"),
    (lambda: conv.conv2d(X, WEIGHT[:, :1], groups=4, out=MADE), ValueError, "weight has 6 out channels; .* groups, 4"),
    (
        lambda: conv.conv2d(X, WEIGHT, groups=3, out=MADE),
        ValueError,
        "x has 4 channels; it must have 1 or more, and a multiple of g",
    ),
    (lambda: conv.conv2d(X, WEIGHT, groups=0, out=MADE), ValueError, "groups is 0; it must be 1 or more"),
    (lambda: conv.conv2d(X, WEIGHT, X[0, 0, 0, :5], out=MADE), ValueError, r"bias has shape \(5,\); it must be \(6,\)"),
    (
        lambda: conv.conv2d(X, WEIGHT, algorithm="fft", out=MADE),
        ValueError,
        "algorithm is 'fft'; it must be 'auto' or one of im",
    ),
    (
        lambda: conv.conv2d(X.astype("f2"), WEIGHT.astype("f2"), algorithm="im2col"),
        TypeError,
        "x has dtype float16; it must be float32 or float64 for the algorithm 'im2col'",
    ),
    (
        lambda: conv.conv2d(X.astype("f8"), WEIGHT.astype("f8"), algorithm="direct"),
        TypeError,
        "x has dtype float64; it must be float16 or float32 or bfloat16 for the algorithm 'direct'",
    ),
    (
        lambda: conv.conv2d(X, WEIGHT[..., :1], algorithm="paired"),
        ValueError,
        r"algorithm is 'paired'; the kernel is \(3, 1\), .*; it needs a kernel of 2 columns or more",
    ),
    (
        lambda: conv.conv2d(X, np.ones((2, 4, 4, 5), np.float32), algorithm="short"),
        ValueError,
        r"algorithm is 'short'; weight has shape \(2, 4, 4, 5\): a value must have at most 64 terms",
    ),
    (
        lambda: conv.conv2d(X, WEIGHT, algorithm="apart"),
        ValueError,
        r"algorithm is 'apart'; weight has shape .*: a group must have at most 4 out channels, and a pixel",
    ),
    (
        lambda: conv.conv2d(X, WEIGHT, stride=(1, 2), algorithm="paired"),
        ValueError,
        r"stride \(1, 2\) and dilation \(1, 1\); it needs .* a stride and dilation of 1 along a row",
    ),
    (lambda: conv.im2col(X, 3, variant="aligned", out=OUT), ValueError, "variant is 'aligned'; it needs at least 8 w"),
    (
        lambda: conv.im2col(X, (3, 4), variant="quads"),
        ValueError,
        "variant is 'quads'; it needs a multiple of 4 windows",
    ),
    (lambda: conv.im2col(X.astype("f8"), 3, variant="quads"), ValueError, "variant is 'quads'; .* and float32 at 16 b"),
    (
        lambda: conv.conv2d(X, WEIGHT, stride=2, out=MADE),
        ValueError,
        r"out has shape \(2, 6, 3, 4\); it must be \(2, 6, 2",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert all(np.isnan(out).all() for out in (OUT, IMAGE, MADE))


def test_a_former_variant_name_works():
    x = random(1, 2, 5, 6)
    assert np.array_equal(conv.im2col(x, 3, variant="window"), conv.im2col(x, 3, variant="im2col_naive"))


def test_shared_memory_is_refused():
    x = cuda.to_device(np.ones((1, 1, 4, 4), np.float32))
    with pytest.raises(ValueError, match="out shares memory with x"):
        conv.im2col(x, 1, out=x.reshape(1, 1, 16))
    weight = cuda.to_device(np.ones((1, 1, 1, 1), np.float32))
    with pytest.raises(ValueError, match="out shares memory with x"):
        conv.conv2d(x, weight, out=x)
