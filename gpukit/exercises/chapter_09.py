"""Exercises of chapter 09, convolution."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, InOut, KernelExercise, Out, Wrong
from warpstep.integers import ceil_div


def blocks_for(out_shape, block=(8, 4, 1)):
    """A grid with a thread per value of an array (.., height, width)."""
    return tuple(ceil_div(n, of) for n, of in zip(reversed(out_shape[-3:]), block, strict=True)), block


# -- 09-direct ------------------------------------------------------------------------------------------------------


def convolution(x, weight):
    """(C, H, W) and (O, C, KH, KW) to (O, OH, OW)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(1, 2))
    return np.einsum("chwij,ocij->ohw", windows.astype(float), weight.astype(float)).astype(np.float32)


def images_and_weights(rng):
    for (c, h, w), (o, kh, kw) in (((3, 9, 14), (2, 3, 2)), ((1, 5, 5), (1, 1, 1)), ((4, 12, 12), (3, 2, 5))):
        x = rng.standard_normal((c, h, w)).astype(np.float32)
        weight = rng.standard_normal((o, c, kh, kw)).astype(np.float32)
        shape = o, h - kh + 1, w - kw + 1
        label = f"{c} channels of {h} x {w}, {o} filters of {kh} x {kw}"
        yield Case((x, weight, Out(shape)), *blocks_for(shape), label=label)


@cuda.jit
def direct(x, weight, out):
    ow, oh, o = cuda.grid(3)
    if o < out.shape[0] and oh < out.shape[1] and ow < out.shape[2]:
        # HOLE about 6 lines: sum the products of pixels and weights over all in channels; store the sum
        total = np.float32(0)
        for c in range(weight.shape[1]):
            for kh in range(weight.shape[2]):
                for kw in range(weight.shape[3]):
                    total += x[c, oh + kh, ow + kw] * weight[o, c, kh, kw]
        out[o, oh, ow] = total
        # END


@cuda.jit
def direct_in_one_loop(x, weight, out):
    ow, oh, o = cuda.grid(3)
    if o >= out.shape[0] or oh >= out.shape[1] or ow >= out.shape[2]:
        return
    total = np.float32(0)
    for tap in range(weight.shape[1] * weight.shape[2] * weight.shape[3]):
        kw = tap % weight.shape[3]
        kh = tap // weight.shape[3] % weight.shape[2]
        c = tap // (weight.shape[3] * weight.shape[2])
        total += weight[o, c, kh, kw] * x[c, oh + kh, ow + kw]
    out[o, oh, ow] = total


@cuda.jit
def direct_last_channel(x, weight, out):
    ow, oh, o = cuda.grid(3)
    if o < out.shape[0] and oh < out.shape[1] and ow < out.shape[2]:
        for c in range(weight.shape[1]):
            total = np.float32(0)
            for kh in range(weight.shape[2]):
                for kw in range(weight.shape[3]):
                    total += x[c, oh + kh, ow + kw] * weight[o, c, kh, kw]
            out[o, oh, ow] = total


@cuda.jit
def direct_in_memory(x, weight, out):
    ow, oh, o = cuda.grid(3)
    if o < out.shape[0] and oh < out.shape[1] and ow < out.shape[2]:
        out[o, oh, ow] = 0
        for c in range(weight.shape[1]):
            for kh in range(weight.shape[2]):
                for kw in range(weight.shape[3]):
                    out[o, oh, ow] += x[c, oh + kh, ow + kw] * weight[o, c, kh, kw]


@cuda.jit
def direct_onto_out(x, weight, out):
    ow, oh, o = cuda.grid(3)
    if o < out.shape[0] and oh < out.shape[1] and ow < out.shape[2]:
        for c in range(weight.shape[1]):
            for kh in range(weight.shape[2]):
                for kw in range(weight.shape[3]):
                    out[o, oh, ow] += x[c, oh + kh, ow + kw] * weight[o, c, kh, kw]


DIRECT = KernelExercise(
    "09-direct",
    task="Convolve an image: each thread sums up one window.",
    spec=convolution,
    cases=images_and_weights,
    solutions=[direct, direct_in_one_loop],
    wrong=[
        Wrong(
            "A sum that begins as 0 or 0.0 is a float64, and so is every addition. Begin with np.float32(0).",
            {"total = np.float32(0)": "total = 0.0"},
            "cost: float64 operations",
        ),
        Wrong(
            "The sum is stored after every product. Store it once, below all three loops.",
            {"        out[o, oh, ow] = total\n": "                    out[o, oh, ow] = total\n"},
            "cost: global store sectors",
        ),
        Wrong(
            "x has in channels: its first index is c. The out channel o only selects the weights.",
            {"x[c, oh + kh, ow + kw]": "x[o, oh + kh, ow + kw]"},
        ),
        Wrong(
            "Filters need not be square: rows run to weight.shape[2], columns to weight.shape[3].",
            {"for kw in range(weight.shape[3])": "for kw in range(weight.shape[2])"},
            "out-of-bounds",
        ),
        Wrong(
            "The weight's index lacks the in channel, so every channel is multiplied by the weights of channel 0. "
            "With one channel, or with weights that are all alike, nobody would notice.",
            {"weight[o, c, kh, kw]": "weight[o, 0, kh, kw]"},
        ),
        Wrong(
            "The sum starts again at 0 for every in channel, and only the last channel survives. "
            "Set it to 0 once, above all three loops.",
            direct_last_channel,
        ),
        Wrong(
            "This flips the filter, as a convolution in mathematics does. Neural networks do not: "
            "pixel (oh + kh, ow + kw) meets weight (kh, kw).",
            {"weight[o, c, kh, kw]": "weight[o, c, weight.shape[2] - 1 - kh, weight.shape[3] - 1 - kw]"},
        ),
        Wrong(
            "Every weight is multiplied by the pixel at the window's corner; add kh and kw to its row and column.",
            {"x[c, oh + kh, ow + kw]": "x[c, oh, ow]"},
        ),
        Wrong(
            "Rows and columns of the filter are exchanged: kh moves down the image, kw along a row.",
            {"x[c, oh + kh, ow + kw]": "x[c, oh + kw, ow + kh]"},
        ),
        Wrong(
            "The sum lives in `out`, so every product costs a load and a store of global memory. "
            "Keep it in a local variable, which is a register, and store it once.",
            direct_in_memory,
            "cost: global store sectors",
        ),
        Wrong(
            "The window is centred on the pixel and hangs over the image's edge. Without padding it begins at the "
            "pixel: rows oh to oh + KH - 1.",
            {"x[c, oh + kh, ow + kw]": "x[c, oh + kh - weight.shape[2] // 2, ow + kw - weight.shape[3] // 2]"},
            "negative-index",
        ),
        Wrong(
            "`out` is not zeroed before the launch, so += adds to whatever was in memory. "
            "Sum up in a local variable that begins at 0, and store it once.",
            direct_onto_out,
        ),
    ],
    hints=[
        "NumPy would say (x[:, oh:oh + KH, ow:ow + KW] * weight[o]).sum(). Write that sum as loops.",
        "Three loops: c over in channels, kh over rows of the filter, kw over columns; one variable holds the sum.",
        "total += x[c, oh + kh, ow + kw] * weight[o, c, kh, kw]",
    ],
    why="One sum is open at a time, so it stays in a register, and `out` is written once. That is the reason for the\n"
    "order of the loops: out channel, row and column are outside (here they are the thread), the filter is inside.",
    limits={"global store sectors": 1.0, "float64 operations": 1.0},
)


# -- 09-im2col ------------------------------------------------------------------------------------------------------


def windows_as_columns(x, size, stride, padding, dilation):
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    span = (size - 1) * dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (span, span), axis=(1, 2))
    return windows[:, ::stride, ::stride, ::dilation, ::dilation].transpose(0, 3, 4, 1, 2)


WINDOWS = ((3, 1, 0, 1), (3, 2, 1, 1), (2, 1, 2, 3), (1, 1, 0, 1), (3, 1, 1, 2))  # size, stride, padding, dilation


def out_size(n, size, stride, padding, dilation):
    return (n + 2 * padding - dilation * (size - 1) - 1) // stride + 1


def images(rng):
    for how in WINDOWS:
        x = rng.standard_normal((2, 7, 10)).astype(np.float32)
        shape = 2, how[0], how[0], out_size(7, *how), out_size(10, *how)
        grid, block = blocks_for((2, *shape[3:]))
        label = f"{how[0]} x {how[0]}, stride {how[1]}, padding {how[2]}, dilation {how[3]}"
        yield Case((x, Out(shape), *how), grid, block, label=label)


@cuda.jit
def im2col(x, columns, size, stride, padding, dilation):
    ow, oh, c = cuda.grid(3)
    if c < columns.shape[0] and oh < columns.shape[3] and ow < columns.shape[4]:
        # HOLE about 8 lines: for every (kh, kw) store its pixel, or 0, in columns[c, kh, kw, oh, ow]
        for kh in range(size):
            for kw in range(size):
                row = oh * stride - padding + kh * dilation
                col = ow * stride - padding + kw * dilation
                value = np.float32(0)
                if 0 <= row < x.shape[1] and 0 <= col < x.shape[2]:
                    value = x[c, row, col]
                columns[c, kh, kw, oh, ow] = value
        # END


@cuda.jit
def im2col_zeros_first(x, columns, size, stride, padding, dilation):
    ow, oh, c = cuda.grid(3)
    if c >= columns.shape[0] or oh >= columns.shape[3] or ow >= columns.shape[4]:
        return
    for tap in range(size * size):
        kh, kw = tap // size, tap % size
        columns[c, kh, kw, oh, ow] = 0
        row, col = oh * stride + kh * dilation, ow * stride + kw * dilation
        if padding <= row < x.shape[1] + padding and padding <= col < x.shape[2] + padding:
            columns[c, kh, kw, oh, ow] = x[c, row - padding, col - padding]


CLAMPED = "min(max(row, 0), x.shape[1] - 1), min(max(col, 0), x.shape[2] - 1)"
INSIDE = "if 0 <= row < x.shape[1] and 0 <= col < x.shape[2]:"
IM2COL = KernelExercise(
    "09-im2col",
    task="Write every window of an image as a column, with stride, padding and dilation.",
    spec=windows_as_columns,
    cases=images,
    solutions=[im2col, im2col_zeros_first],
    wrong=[
        Wrong(
            "Without a test, a window that hangs over the edge reads outside the image: rows and columns may be "
            "negative, or past the end. Padding means 0 there.",
            {INSIDE: "if True:"},
            "negative-index",
        ),
        Wrong(
            "A window can also hang over the lower and the right edge: compare with the size of the image, too.",
            {INSIDE: "if row >= 0 and col >= 0:"},
            "out-of-bounds",
        ),
        Wrong(
            "Nothing is stored for pixels outside the image, so the columns keep what was in memory before. "
            "Padding means zeros, and somebody has to write them.",
            {"                    value = x[c, row, col]\n                columns[": "                    columns["}
            | {"] = value\n": "] = x[c, row, col]\n"},
            "unwritten",
        ),
        Wrong(
            "Stride and dilation are exchanged. The stride moves the window, so it belongs to oh and ow; "
            "the dilation spreads the weights, so it belongs to kh and kw.",
            {"oh * stride - padding + kh * dilation": "oh * dilation - padding + kh * stride"}
            | {"ow * stride - padding + kw * dilation": "ow * dilation - padding + kw * stride"},
        ),
        Wrong(
            "Padding moves the first window up and to the left, out of the image: subtract it.",
            {"oh * stride - padding": "oh * stride + padding", "ow * stride - padding": "ow * stride + padding"},
        ),
        Wrong(
            "The dilation is missing: neighbouring weights lie `dilation` pixels apart.",
            {"kh * dilation": "kh", "kw * dilation": "kw"},
        ),
        Wrong(
            "The stride is missing: neighbouring windows lie `stride` pixels apart.",
            {"oh * stride": "oh", "ow * stride": "ow"},
        ),
        Wrong(
            "x.shape[1] and x.shape[2] are one past the last row and column: compare with <, not with <=.",
            {INSIDE: "if 0 <= row <= x.shape[1] and 0 <= col <= x.shape[2]:"},
            "out-of-bounds",
        ),
        Wrong(
            "The padding is counted in pixels, not in windows: multiply oh and ow by the stride, then subtract it.",
            {"oh * stride - padding": "(oh - padding) * stride", "ow * stride - padding": "(ow - padding) * stride"},
        ),
        Wrong(
            "That repeats the pixels at the image's edge. Padding here means zeros.",
            {INSIDE: f"row, col = {CLAMPED}\n                if True:"},
        ),
        Wrong(
            "kh and kw are exchanged in the columns: the order is columns[c, kh, kw, oh, ow].",
            {"columns[c, kh, kw, oh, ow] = value": "columns[c, kw, kh, oh, ow] = value"},
        ),
        Wrong(
            "Row 0 and column 0 belong to the image: compare with 0 <=, not with 0 <.",
            {INSIDE: "if 0 < row < x.shape[1] and 0 < col < x.shape[2]:"},
        ),
        Wrong(
            "x is (C, H, W): rows end at x.shape[1], columns at x.shape[2]. These are exchanged.",
            {INSIDE: "if 0 <= row < x.shape[2] and 0 <= col < x.shape[1]:"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "The thread has one window. Two loops go over the weights of the filter.",
        "The corner of the window is in row oh * stride - padding, which may be negative; kh lies kh * dilation lower.",
        "Test 0 <= row < x.shape[1] and 0 <= col < x.shape[2] before you read, and store 0 otherwise.",
    ],
    why="Neighbouring threads have neighbouring windows, so for each (kh, kw) a warp writes neighbours: coalesced.\n"
    "Zeros are written too: the matrix product that comes next reads every element.",
    limits={"global store sectors": 2.0},
)


# -- 09-col2im ------------------------------------------------------------------------------------------------------


def sum_of_windows(columns, image, stride, padding, dilation, add):
    channels, size, _, out_h, out_w = columns.shape
    _, height, width = image.shape
    total = np.zeros((channels, height + 2 * padding, width + 2 * padding))
    for kh in range(size):
        for kw in range(size):
            rows = slice(kh * dilation, kh * dilation + (out_h - 1) * stride + 1, stride)
            cols = slice(kw * dilation, kw * dilation + (out_w - 1) * stride + 1, stride)
            total[:, rows, cols] += columns[:, kh, kw]
    inner = total[:, padding : padding + height, padding : padding + width]
    return (inner + (image if add else 0)).astype(np.float32)


def columns_and_images(rng):
    for i, how in enumerate((*WINDOWS, (3, 2, 0, 2))):
        image = rng.standard_normal((2, 7, 10)).astype(np.float32)
        shape = 2, how[0], how[0], out_size(7, *how), out_size(10, *how)
        columns, add = rng.standard_normal(shape).astype(np.float32), i % 2 == 1
        label = f"{how[0]} x {how[0]}, stride {how[1]}, padding {how[2]}, dilation {how[3]}, add = {add}"
        yield Case((columns, InOut(image), *how[1:], add), *blocks_for(image.shape), label=label)


@cuda.jit
def col2im(columns, image, stride, padding, dilation, add):
    col, row, c = cuda.grid(3)
    if c < image.shape[0] and row < image.shape[1] and col < image.shape[2]:
        total = image[c, row, col] if add else np.float32(0)
        # HOLE about 8 lines: for every (kh, kw) add columns[c, kh, kw, oh, ow], if there is such a window (oh, ow)
        for kh in range(columns.shape[1]):
            for kw in range(columns.shape[2]):
                down = row + padding - kh * dilation
                across = col + padding - kw * dilation
                if down >= 0 and across >= 0 and down % stride == 0 and across % stride == 0:
                    oh, ow = down // stride, across // stride
                    if oh < columns.shape[3] and ow < columns.shape[4]:
                        total += columns[c, kh, kw, oh, ow]
        # END
        image[c, row, col] = total


@cuda.jit
def col2im_by_windows(columns, image, stride, padding, dilation, add):
    col, row, c = cuda.grid(3)
    if c >= image.shape[0] or row >= image.shape[1] or col >= image.shape[2]:
        return
    total = np.float32(0)
    for oh in range(columns.shape[3]):
        for ow in range(columns.shape[4]):
            down, across = row + padding - oh * stride, col + padding - ow * stride
            kh, kw = down // dilation, across // dilation
            if down >= 0 and across >= 0 and kh * dilation == down and kw * dilation == across:
                if kh < columns.shape[1] and kw < columns.shape[2]:
                    total += columns[c, kh, kw, oh, ow]
    if add:
        image[c, row, col] += total
    else:
        image[c, row, col] = total


COL2IM = KernelExercise(
    "09-col2im",
    task="Sum up columns to an image without atomics: each thread gathers the values of its own pixel.",
    spec=sum_of_windows,
    cases=columns_and_images,
    solutions=[col2im, col2im_by_windows],
    wrong=[
        Wrong(
            "With a stride of 2, only every other pixel is the corner of a window. Without the test % stride == 0 a "
            "pixel also collects the values of its neighbours.",
            {" and down % stride == 0 and across % stride == 0": ""},
        ),
        Wrong(
            "The corner may lie above the image or left of it even with its padding. There is no such window, "
            "and its index would be negative.",
            {"if down >= 0 and across >= 0 and down": "if down"},
            "negative-index",
        ),
        Wrong(
            "The last windows end at the edge, so a pixel near it has corners that are no window's: "
            "test oh and ow against the number of windows.",
            {"if oh < columns.shape[3] and ow < columns.shape[4]:": "if True:"},
            "out-of-bounds",
        ),
        Wrong(
            "Columns need the same test as rows: across must be a multiple of the stride, too.",
            {" and across % stride == 0": ""},
        ),
        Wrong(
            "The corner of the window is above the pixel and left of it: subtract kh * dilation and kw * dilation.",
            {"row + padding - kh": "row + padding + kh", "col + padding - kw": "col + padding + kw"},
        ),
        Wrong(
            "A value replaces the sum of those before it: add it with +=.",
            {"total += columns": "total = columns"},
        ),
        Wrong(
            "The dilation is missing: value kh lies kh * dilation pixels below the window's corner.",
            {"kh * dilation": "kh", "kw * dilation": "kw"},
        ),
        Wrong(
            "im2col subtracts the padding to come from a window to a pixel. On the way back it is added.",
            {"row + padding": "row - padding", "col + padding": "col - padding"},
        ),
        Wrong(
            "down and across are pixels of the padded image; the number of the window is that divided by the stride.",
            {"down // stride, across // stride": "down, across"},
        ),
        Wrong(
            "In Python, / makes a float, and an index must be an integer. First test that the stride divides the way, "
            "with %, then divide with //.",
            {"down // stride, across // stride": "down / stride, across / stride"},
            "does not compile",
        ),
    ],
    hints=[
        "Solve row = oh * stride - padding + kh * dilation for oh.",
        "oh = (row + padding - kh * dilation) / stride: only if that is a whole number, and there is such a window.",
        "Test four things: not negative, divisible by the stride (rows and columns), and oh, ow within columns.",
    ],
    why="Each pixel belongs to one thread, so no two threads add to the same element, and no atomic is needed. The\n"
    "order of the additions is fixed, so every run gives the same bits.",
)


# -- 09-memory ------------------------------------------------------------------------------------------------------


def ratio_of_matrices(channels=64, out_channels=64, taps=9, positions=56 * 56):
    """Bytes of the sparse matrix of weights over those of the columns, for one sample."""
    columns = 4 * channels * taps * positions
    sparse = (4 + 4) * out_channels * channels * taps * positions
    return sparse // columns


MEMORY = AnswerExercise(
    "09-memory",
    task="Predict how many times as much memory the sparse matrix takes as the columns.",
    spec=ratio_of_matrices,
    wrong=[
        Wrong(
            "Both repeat each of their values, but they repeat different ones: the columns have C KH KW rows for all "
            "out channels together, the sparse matrix has C KH KW weights for each of 64.",
            1,
        ),
        Wrong("A sparse matrix stores where each weight belongs, too: 4 bytes of index beside 4 bytes of value.", 64),
        Wrong("That is the index beside each value. How many out channels are there?", 2),
        Wrong("That is the number of weights in a window; it is the same for both.", 9),
    ],
    hints=[
        "Columns: C KH KW x OH OW values. The sparse matrix: how many rows, and how many nonzeros in a row?",
        "Its rows are the O OH OW values of the result; each has C KH KW weights, with an index each.",
    ],
    why="O / 1 times as many values, and 8 bytes for each instead of 4.",
    variable="my_ratio",
)


# -- 09-rounds ------------------------------------------------------------------------------------------------------


def pixels_of_the_corner(rows=4, cols=8, size=6):
    """Pixels that the busiest thread copies, if each takes its own and those at the edge take the halo."""
    own_rows = [1] * (rows - 1) + [size]
    own_cols = [1] * (cols - 1) + [size]
    return max(r * c for r in own_rows for c in own_cols)


ROUNDS = AnswerExercise(
    "09-rounds",
    task="Predict how many pixels the busiest thread copies by plan 1, for a filter of 6 x 6.",
    spec=pixels_of_the_corner,
    wrong=[
        Wrong("That is for a filter of 3 x 3. The halo of 6 x 6 is five wide.", 9),
        Wrong("That is the corner of the halo alone. The thread also copies its own pixel, and those beside it.", 25),
        Wrong("That is a thread at one edge. The thread in the corner has the halo of both.", 6),
        Wrong(
            "A row and a column of the halo and its own pixel: the square between them is missing.",
            11,
        ),
        Wrong("That is the average over the warp. The warp waits for its busiest thread.", 117 / 32),
        Wrong("That is plan 2. By plan 1 the thread in the corner copies far more.", 4),
    ],
    hints=[
        "For 3 x 3 the thread in the corner copies 3 x 3.",
        "Its own pixel, and five more to the right, in its own row and in five more below.",
    ],
    why="The halo is KH - 1 rows and KW - 1 columns wide; the thread in the corner copies KH x KW pixels.",
    variable="my_pixels",
)


# -- 09-tile --------------------------------------------------------------------------------------------------------


def tiles(rng):
    for (c, h, w), o, counted in (
        ((2, 10, 18), 2, True),
        ((3, 9, 21), 1, False),
        ((1, 3, 3), 1, False),
        ((2, 4, 30), 3, False),
    ):
        x = rng.standard_normal((c, h, w)).astype(np.float32)
        weight = rng.standard_normal((o, c, 3, 3)).astype(np.float32)
        shape = o, h - 2, w - 2
        label = f"{c} channels of {h} x {w}, {o} filters of 3 x 3"
        yield Case((x, weight, Out(shape)), *blocks_for(shape), label=label, counted=counted)


@cuda.jit
def tiled(x, weight, out):
    tile = cuda.shared.array((6, 10), np.float32)  # 4 x 8 pixels, and two more rows and columns
    tx, ty, o = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    top, left = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    total = np.float32(0)
    for c in range(x.shape[0]):
        # HOLE about 12 lines: copy the tile evenly, 0 outside the image; add nine products. Mind the two barriers
        for e in range(8 * ty + tx, 60, 32):
            row, col = top + e // 10, left + e % 10
            if row < x.shape[1] and col < x.shape[2]:
                tile[e // 10, e % 10] = x[c, row, col]
            else:
                tile[e // 10, e % 10] = 0
        cuda.syncthreads()  # the tile is complete
        for kh in range(3):
            for kw in range(3):
                total += tile[ty + kh, tx + kw] * weight[o, c, kh, kw]
        cuda.syncthreads()  # no thread still reads it
        # END
    if top + ty < out.shape[1] and left + tx < out.shape[2]:
        out[o, top + ty, left + tx] = total


@cuda.jit
def tiled_by_rows(x, weight, out):
    tile = cuda.shared.array((6, 10), np.float32)
    tx, ty, o = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    top, left = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    total = np.float32(0)
    for c in range(x.shape[0]):
        for r in range(ty, 6, 4):
            for q in range(tx, 10, 8):
                inside = top + r < x.shape[1] and left + q < x.shape[2]
                tile[r, q] = x[c, top + r, left + q] if inside else np.float32(0)
        cuda.syncthreads()
        for tap in range(9):
            total += tile[ty + tap // 3, tx + tap % 3] * weight[o, c, tap // 3, tap % 3]
        cuda.syncthreads()
    if top + ty < out.shape[1] and left + tx < out.shape[2]:
        out[o, top + ty, left + tx] = total


@cuda.jit
def tiled_by_edges(x, weight, out):
    tile = cuda.shared.array((6, 10), np.float32)
    tx, ty, o = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    top, left = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    total = np.float32(0)
    for c in range(x.shape[0]):
        for r in range(ty, 6 if ty == 3 else ty + 1):
            for q in range(tx, 10 if tx == 7 else tx + 1):
                inside = top + r < x.shape[1] and left + q < x.shape[2]
                tile[r, q] = x[c, top + r, left + q] if inside else np.float32(0)
        cuda.syncthreads()
        for kh in range(3):
            for kw in range(3):
                total += tile[ty + kh, tx + kw] * weight[o, c, kh, kw]
        cuda.syncthreads()
    if top + ty < out.shape[1] and left + tx < out.shape[2]:
        out[o, top + ty, left + tx] = total


@cuda.jit
def tiled_own_pixel(x, weight, out):
    tile = cuda.shared.array((6, 10), np.float32)
    tx, ty, o = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    top, left = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    total = np.float32(0)
    for c in range(x.shape[0]):
        inside = top + ty < x.shape[1] and left + tx < x.shape[2]
        tile[ty, tx] = x[c, top + ty, left + tx] if inside else np.float32(0)
        cuda.syncthreads()
        for kh in range(3):
            for kw in range(3):
                total += tile[ty + kh, tx + kw] * weight[o, c, kh, kw]
        cuda.syncthreads()
    if top + ty < out.shape[1] and left + tx < out.shape[2]:
        out[o, top + ty, left + tx] = total


@cuda.jit
def tiled_within_guard(x, weight, out):
    tile = cuda.shared.array((6, 10), np.float32)
    tx, ty, o = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    top, left = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    if top + ty >= out.shape[1] or left + tx >= out.shape[2]:
        return
    total = np.float32(0)
    for c in range(x.shape[0]):
        for e in range(8 * ty + tx, 60, 32):
            row, col = top + e // 10, left + e % 10
            if row < x.shape[1] and col < x.shape[2]:
                tile[e // 10, e % 10] = x[c, row, col]
            else:
                tile[e // 10, e % 10] = 0
        cuda.syncthreads()
        for kh in range(3):
            for kw in range(3):
                total += tile[ty + kh, tx + kw] * weight[o, c, kh, kw]
        cuda.syncthreads()
    out[o, top + ty, left + tx] = total


NO_ZERO = "            else:\n                tile[e // 10, e % 10] = 0\n"
TILE = KernelExercise(
    "09-tile",
    task="Convolve through a tile with its halo in shared memory, copied evenly by a warp.",
    spec=convolution,
    cases=tiles,
    solutions=[tiled, tiled_by_rows],
    wrong=[
        Wrong(
            "A thread reads pixels that others copy, so all must have finished: a barrier belongs after the copy. "
            "A block of one warp is no excuse, its lanes need not run in step.",
            {"        cuda.syncthreads()  # the tile is complete\n": ""},
            "race",
        ),
        Wrong(
            "The next channel goes into the same tile. Without a barrier after the sums, a fast thread overwrites what "
            "a slow one still reads.",
            {"        cuda.syncthreads()  # no thread still reads it\n": ""},
            "race",
        ),
        Wrong(
            "Each thread copies its own pixel, and nobody copies the halo: 60 pixels, 32 threads, so some must copy "
            "two.",
            tiled_own_pixel,
            "uninitialised-read",
        ),
        Wrong(
            "The threads at the edge copy the halo: the one in the corner copies nine pixels while the others wait. "
            "Let thread t copy elements t, t + 32, ... of the 60.",
            tiled_by_edges,
            "cost: shared wavefronts",
        ),
        Wrong(
            "The copy takes 60 rounds. Deal the tile out: thread t takes elements t, t + 32, ... of the 60.",
            {"range(8 * ty + tx, 60, 32)": "range(60)"},
            "cost: shared wavefronts",
        ),
        Wrong(
            "The weight's index lacks the in channel: it is weight[o, c, kh, kw].",
            {"weight[o, c, kh, kw]": "weight[o, 0, kh, kw]"},
        ),
        Wrong(
            "All threads sum up the same nine pixels. This thread's window begins at tile[ty, tx].",
            {"tile[ty + kh, tx + kw]": "tile[kh, kw]"},
        ),
        Wrong(
            "A row of the tile has ten pixels, not eight: divide by 10.",
            {"top + e // 10, left + e % 10": "top + e // 8, left + e % 8"},
        ),
        Wrong(
            "Threads without a value of their own return early, but their share of the copy is missing then. "
            "Let all threads copy, and guard the store only.",
            tiled_within_guard,
            "uninitialised-read",
        ),
        Wrong(
            "Where the tile hangs over the image, nothing is stored, and surplus threads read what was in shared "
            "memory before. Store 0 there.",
            {NO_ZERO: ""},
            "uninitialised-read",
        ),
        Wrong(
            "The tile is copied, but the sums still read global memory: take the pixel from tile[ty + kh, tx + kw].",
            {"tile[ty + kh, tx + kw] * weight": "x[c, top + ty + kh, left + tx + kw] * weight"},
            "cost: global requests",
        ),
        Wrong(
            "Without a guard, pixels past the right edge come from the next row, and those below the image from "
            "nobody's memory.",
            {"            if row < x.shape[1] and col < x.shape[2]:\n    ": "", NO_ZERO: ""},
            "out-of-bounds",
        ),
    ],
    hints=[
        "Number the threads: t = 8 * ty + tx. Thread t copies elements t and t + 32 of the tile, if there are such.",
        "Element e of the tile is in row e // 10 and column e % 10; its pixel is in row top + e // 10.",
        "Barriers: after the copy, before anyone reads; and after the sums, before anyone copies the next channel.",
    ],
    why="60 pixels for 32 threads are two rounds, and no thread waits for more. The copy is done by all threads, also\n"
    "by those without a value of their own: they must reach the barriers anyway.",
    limits={"shared wavefronts": 1.25, "global requests": 1.25},
)

EXERCISES = [DIRECT, IM2COL, COL2IM, MEMORY, ROUNDS, TILE]
