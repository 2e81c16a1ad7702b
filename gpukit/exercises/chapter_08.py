"""Exercises of chapter 08, resize."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, FunctionExercise, KernelExercise, Out, Wrong
from gpukit.intrinsics import load4, store4
from warpstep.integers import ceil_div


def blocks_for(height, width, block=(16, 8)):
    return (ceil_div(width, block[0]), ceil_div(height, block[1])), block


# -- 08-place -------------------------------------------------------------------------------------------------------


def one_by_one(function, pixels, n, size):
    """Call the function for each pixel, so that it may use `math` and conditions."""
    return [function(int(x), n, size) for x in pixels]


def centre_in_source(x, n, size):
    return (x + 0.5) * n / size - 0.5


def sizes(rng):
    for n, size in ((8, 5), (3, 7), (6, 4), (10, 10), (1, 3), (1920, 640)):
        yield Case((np.arange(size), n, size), label=f"{n} pixels become {size}")


def place(x, n, size):
    # HOLE about 1 line: where the centre of target pixel x lies, counted in source pixels
    return (x + 0.5) * n / size - 0.5
    # END


def place_by_edges(x, n, size):
    left, right = x * n / size, (x + 1) * n / size
    return (left + right - 1) / 2


PLACE = FunctionExercise(
    "08-place",
    task="Compute where in the source a pixel of the target lies.",
    spec=centre_in_source,
    cases=sizes,
    call=one_by_one,
    solutions=[place, place_by_edges],
    wrong=[
        Wrong(
            "Where an image grows, the first place is negative, and that is right: it lies outside the first centre. "
            "The kernel clamps later, when it picks the pixels.",
            {"(x + 0.5) * n / size - 0.5": "min(max((x + 0.5) * n / size - 0.5, 0), n - 1)"},
        ),
        Wrong(
            "The scale is a fraction: n / size, not n // size.",
            {"* n / size": "* (n // size)"},
        ),
        Wrong(
            "The signs are exchanged: the centre is at x + 0.5, and 0.5 comes off the result.",
            {"(x + 0.5) * n / size - 0.5": "(x - 0.5) * n / size + 0.5"},
        ),
        Wrong(
            "Without the halves, the upper left corners of the pixels are compared and not the centres: "
            "the picture moves by half a source pixel less half a target pixel.",
            {"(x + 0.5) * n / size - 0.5": "x * n / size"},
        ),
        Wrong(
            "x + 0.5 is the centre, and so is the result; take 0.5 off again to count in source pixels.",
            {" - 0.5\n": "\n"},
        ),
        Wrong(
            "The half is taken off, but was never added: the centre of target pixel x is at x + 0.5.",
            {"(x + 0.5) * n": "x * n"},
        ),
        Wrong(
            "The scale is the wrong way round: n source pixels are as long as `size` target pixels, "
            "so one target pixel is n / size source pixels long.",
            {"* n / size": "* size / n"},
        ),
        Wrong(
            "This lets the first and last centres coincide (PyTorch calls it align_corners). OpenCV and detectors let "
            "the edges coincide.",
            {"(x + 0.5) * n / size - 0.5": "x * (n - 1) / max(size - 1, 1)"},
        ),
        Wrong(
            "The result is a place between pixels: do not round it, the fraction becomes the weight.",
            {"(x + 0.5) * n / size - 0.5": "np.floor((x + 0.5) * n / size)"},
        ),
    ],
    hints=[
        "Pixel 0 reaches from 0 to 1. Where is its centre?",
        "The centre of target pixel x is x + 0.5. Scale it to the length of the source.",
        "In source pixels, pixel 0's centre is at 0.5, and has number 0: subtract 0.5.",
    ],
    why="Both rows of pixels cover the same length, from edge to edge. Centres are half a pixel from the edges.",
)


# -- 08-bilinear ----------------------------------------------------------------------------------------------------


def bilinear_resize(image, down, across, height, width):
    place_y = np.clip((np.arange(height) + 0.5) * float(down) - 0.5, 0, image.shape[0] - 1)
    place_x = np.clip((np.arange(width) + 0.5) * float(across) - 0.5, 0, image.shape[1] - 1)
    shares_y = np.maximum(0, 1 - np.abs(place_y[:, None] - np.arange(image.shape[0])))
    shares_x = np.maximum(0, 1 - np.abs(place_x[:, None] - np.arange(image.shape[1])))
    return (shares_y @ image @ shares_x.T).astype(np.float32)


def gray_images(rng):
    for (h, w), (height, width) in (((5, 6), (11, 17)), ((20, 30), (8, 16)), ((4, 4), (4, 4)), ((1, 1), (3, 2))):
        image = rng.random((h, w)).astype(np.float32)
        down, across = np.float32(h / height), np.float32(w / width)
        args = image, Out((height, width)), down, across, height, width
        yield Case(args, *blocks_for(height, width), label=f"{h} x {w} become {height} x {width}")


@cuda.jit
def bilinear(image, out, down, across, height, width):
    x, y = cuda.grid(2)
    half, one, zero = np.float32(0.5), np.float32(1), np.float32(0)
    # HOLE about 12 lines: guard; place, clamped to 0; its row and column, and the next ones, clamped to the last
    if x < width and y < height:
        place_y = max((np.float32(y) + half) * down - half, zero)
        place_x = max((np.float32(x) + half) * across - half, zero)
        row, col = min(int(place_y), image.shape[0] - 1), min(int(place_x), image.shape[1] - 1)
        below, right = min(row + 1, image.shape[0] - 1), min(col + 1, image.shape[1] - 1)
        low, far = place_y - np.float32(row), place_x - np.float32(col)
        value = (one - low) * (one - far) * image[row, col]
        value += (one - low) * far * image[row, right]
        value += low * (one - far) * image[below, col]
        value += low * far * image[below, right]
        out[y, x] = value
    # END


@cuda.jit
def bilinear_by_rows(image, out, down, across, height, width):
    x, y = cuda.grid(2)
    half, zero = np.float32(0.5), np.float32(0)
    if x >= width or y >= height:
        return
    last_y, last_x = np.float32(image.shape[0] - 1), np.float32(image.shape[1] - 1)
    place_y = min(max((np.float32(y) + half) * down - half, zero), last_y)
    place_x = min(max((np.float32(x) + half) * across - half, zero), last_x)
    row, col = int(place_y), int(place_x)
    below = row + 1 if row + 1 < image.shape[0] else row
    right = col + 1 if col + 1 < image.shape[1] else col
    low, far = place_y - np.float32(row), place_x - np.float32(col)
    upper = image[row, col] + far * (image[row, right] - image[row, col])
    lower = image[below, col] + far * (image[below, right] - image[below, col])
    out[y, x] = upper + low * (lower - upper)


NEAREST = "row, col = min(int(place_y), image.shape[0] - 1), min(int(place_x), image.shape[1] - 1)"
CLAMPED = "below, right = min(row + 1, image.shape[0] - 1), min(col + 1, image.shape[1] - 1)"
BILINEAR = KernelExercise(
    "08-bilinear",
    task="Resize bilinearly: guarded, clamped at all four edges, and in float32.",
    spec=bilinear_resize,
    cases=gray_images,
    solutions=[bilinear, bilinear_by_rows],
    wrong=[
        Wrong(
            "The target is no multiple of the block, and nothing stops the surplus threads: "
            "they write into the next row, or past the end.",
            {"    if x < width and y < height:\n": "    if True:\n"},
            "out-of-bounds",
        ),
        Wrong(
            "The last row and column have no next one. Clamp row + 1 and col + 1 to the last.",
            {CLAMPED: "below, right = row + 1, col + 1"},
            "out-of-bounds",
        ),
        Wrong(
            "Where a picture grows, the first places are negative. int() rounds them towards 0, but the fraction is "
            "negative, so the first row and column are extrapolated. Clamp the place to 0.",
            {
                "max((np.float32(y) + half) * down - half, zero)": "(np.float32(y) + half) * down - half",
                "max((np.float32(x) + half) * across - half, zero)": "(np.float32(x) + half) * across - half",
            },
        ),
        Wrong(
            "Pixels whose place is negative are skipped, so the first row and column of the target are never written.",
            {
                "max((np.float32(y) + half) * down - half, zero)": "(np.float32(y) + half) * down - half",
                "max((np.float32(x) + half) * across - half, zero)": "(np.float32(x) + half) * across - half",
                "        out[y, x] = value": "        if place_y >= zero and place_x >= zero:\n"
                "            out[y, x] = value",
            },
            "unwritten",
        ),
        Wrong(
            "The weights are exchanged. A place close to row has a small `low`, and row must count most: "
            "its weight is 1 - low.",
            {
                "(one - low) * (one - far) * image[row, col]": "low * far * image[row, col]",
                "value += low * far * image[below, right]": "value += (one - low) * (one - far) * image[below, right]",
                "(one - low) * far * image[row, right]": "low * (one - far) * image[row, right]",
                "value += low * (one - far) * image[below, col]": "value += (one - low) * far * image[below, col]",
            },
        ),
        Wrong(
            "Right, but part of it runs in float64, which most GPUs do 32 or 64 times slower. A literal 0.5 is a "
            "float64, and an int times a float32 is one, too: write np.float32(x), and use half, one, zero.",
            {"(np.float32(y) + half) * down": "(y + 0.5) * down"},
            "cost: float64 operations",
        ),
        Wrong(
            "row and col are the pixel before the place: round down with int(). After rounding to the nearest, the "
            "shares can be negative.",
            {
                NEAREST: NEAREST.replace("int(place_y)", "int(round(place_y))").replace(
                    "int(place_x)", "int(round(place_x))"
                )
            },
        ),
        Wrong(
            "This is the upper left pixel alone. Mix all four, each with its weight.",
            {
                "value = (one - low) * (one - far) * image[row, col]": "value = image[row, col]",
                "        value += (one - low) * far * image[row, right]\n": "",
                "        value += low * (one - far) * image[below, col]\n": "",
                "        value += low * far * image[below, right]\n": "",
            },
        ),
        Wrong(
            "down scales rows and across scales columns; here they are exchanged.",
            {"+ half) * down": "+ half) * across ", "+ half) * across -": "+ half) * down -"},
        ),
        Wrong(
            "The halves are missing: this compares the corners of the pixels, and the picture moves.",
            {
                "(np.float32(y) + half) * down - half": "np.float32(y) * down",
                "(np.float32(x) + half) * across - half": "np.float32(x) * across",
            },
        ),
    ],
    hints=[
        "Mend one mistake of the first attempt after the other: guard, lower edge of the place, next row and column.",
        "place_y = max((np.float32(y) + half) * down - half, zero), and row = int(place_y).",
        "below = min(row + 1, image.shape[0] - 1). Then low is 0 or it does not matter, as both rows are the same.",
    ],
    why="A place beyond the last centre mixes the last row with itself, so the share does not matter there.\n"
    "The guard comes first, the clamps next, and every constant is a float32.",
    rtol=1e-4,
    limits={"float64 operations": 1.0},
)


# -- 08-letterbox ---------------------------------------------------------------------------------------------------


def nearest_letterbox(image, height, width, top, left, fill, rows, cols):
    out = np.full((rows, cols, 3), fill, np.uint8)
    row, col = np.arange(height) * image.shape[0] // height, np.arange(width) * image.shape[1] // width
    out[top : top + height, left : left + width] = image[row][:, col][..., ::-1]
    return out


def frames(rng):
    for (h, w), (height, width), (rows, cols) in (
        ((6, 9), (12, 18), (18, 18)),
        ((9, 4), (9, 4), (9, 15)),
        ((10, 20), (5, 10), (10, 10)),
        ((1, 1), (3, 3), (3, 5)),
    ):
        image = rng.integers(0, 256, (h, w, 3), np.uint8)
        top, left = (rows - height) // 2, (cols - width) // 2
        args = image, Out((rows, cols, 3), np.uint8), height, width, top, left, 114, rows, cols
        yield Case(args, *blocks_for(rows, cols), label=f"{h} x {w} in {rows} x {cols}, from row {top}, column {left}")


@cuda.jit
def letterbox(image, out, height, width, top, left, fill, rows, cols):
    x, y = cuda.grid(2)
    if x < cols and y < rows:
        # HOLE about 9 lines: inside the picture store the nearest pixel, channels exchanged; outside store fill
        inside = top <= y < top + height and left <= x < left + width
        for channel in range(3):
            value = fill
            if inside:
                row = (y - top) * image.shape[0] // height
                col = (x - left) * image.shape[1] // width
                value = image[row, col, 2 - channel]
            out[y, x, channel] = value
        # END


@cuda.jit
def letterbox_two_ways(image, out, height, width, top, left, fill, rows, cols):
    x, y = cuda.grid(2)
    if x >= cols or y >= rows:
        return
    down, right = y - top, x - left
    if down < 0 or right < 0 or down >= height or right >= width:
        out[y, x, 0] = fill
        out[y, x, 1] = fill
        out[y, x, 2] = fill
    else:
        row, col = down * image.shape[0] // height, right * image.shape[1] // width
        out[y, x, 2] = image[row, col, 0]
        out[y, x, 1] = image[row, col, 1]
        out[y, x, 0] = image[row, col, 2]


INSIDE = "top <= y < top + height and left <= x < left + width"
LETTERBOX = KernelExercise(
    "08-letterbox",
    task="Put a resized picture into the middle of the target, exchange its channels, and fill the rest.",
    spec=nearest_letterbox,
    cases=frames,
    solutions=[letterbox, letterbox_two_ways],
    wrong=[
        Wrong(
            "Above the picture, and left of it, y - top and x - left are negative, and a negative index counts from "
            "the end. Test both ends.",
            {INSIDE: "y < top + height and x < left + width"},
            "negative-index",
        ),
        Wrong(
            "Below the picture, and right of it, the row and column are past the end of the source: test both ends.",
            {INSIDE: "top <= y and left <= x"},
            "out-of-bounds",
        ),
        Wrong(
            "The picture has rows top to top + height - 1: compare with <, not with <=.",
            {"y < top + height": "y <= top + height", "x < left + width": "x <= left + width"},
            "out-of-bounds",
        ),
        Wrong(
            "The border is never written, so it keeps what was in memory before. Store fill there.",
            {
                "            out[y, x, channel] = value": "            if inside:\n"
                "                out[y, x, channel] = value"
            },
            "unwritten",
        ),
        Wrong(
            "The channels keep their order: out channel 0 is the source's channel 2.",
            {"image[row, col, 2 - channel]": "image[row, col, channel]"},
        ),
        Wrong(
            "The picture's own row is y - top: subtract the offset before you scale.",
            {"(y - top) * image": "y * image", "(x - left) * image": "x * image"},
            "out-of-bounds",
        ),
        Wrong(
            "Multiply first, and divide last: image.shape[0] // height throws the fraction of the scale away.",
            {
                "(y - top) * image.shape[0] // height": "(y - top) * (image.shape[0] // height)",
                "(x - left) * image.shape[1] // width": "(x - left) * (image.shape[1] // width)",
            },
        ),
        Wrong(
            "The picture has `height` rows and `width` columns; rows and cols are the sizes of the whole target.",
            {"image.shape[0] // height": "image.shape[0] // rows", "image.shape[1] // width": "image.shape[1] // cols"},
        ),
        Wrong(
            "The border gets the value `fill`, whatever that is.",
            {"value = fill": "value = 0"},
        ),
        Wrong(
            "The scale is the wrong way round: source row = picture row * source height / picture height.",
            {
                "image.shape[0] // height": "height // image.shape[0]",
                "image.shape[1] // width": "width // image.shape[1]",
            },
            "wrong",
        ),
        Wrong(
            "The offset is added where it must be subtracted: the picture's row 0 is row `top` of the target.",
            {"(y - top)": "(y + top)", "(x - left)": "(x + left)"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "Is the thread's pixel inside the picture? Its rows are top to top + height - 1.",
        "Inside, the picture's row is y - top; of the source it is (y - top) * image.shape[0] // height.",
        "value = fill; if inside: value = image[row, col, 2 - channel]; then store value in any case.",
    ],
    why="Every element of the target is written once, by one thread. Exchanging the channels costs nothing,\n"
    "as every value is moved anyway.",
)


# -- 08-bytes -------------------------------------------------------------------------------------------------------


def share_of_rows(n=1080, size=360):
    """The part of the source rows that have a weight, if n rows become ``size``."""
    places = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
    first = np.floor(places).astype(int)
    rows = set(first) | set(np.minimum(first + 1, n - 1)[places > first])
    return len(rows) / n


BYTES = AnswerExercise(
    "08-bytes",
    task="Predict which part of the source rows a bilinear resize to a third must read.",
    spec=share_of_rows,
    wrong=[
        Wrong(
            "Bilinear mixes two rows for each row of the target. But what are their weights at a factor of 3?", 2 / 3
        ),
        Wrong("That is the part of the *pixels* with a weight. How many of the rows are these in?", 1 / 9),
        Wrong("Rows whose weight is 0 in every target row need not be read. Compute a few places.", 1),
    ],
    hints=[
        "Compute the places of the first three rows: (x + 0.5) * 3 - 0.5.",
        "The places are 1, 4, 7, ...: exactly on a row.",
    ],
    why="At a factor of exactly 3, place = 3 x + 1 is on a row, so the other row has the weight 0.",
    variable="my_share",
    rtol=0.02,
)


# -- 08-words -------------------------------------------------------------------------------------------------------


def exchanged(image):
    return image.reshape(-1, 3)[:, ::-1].reshape(-1)


def pixels_of_three_bytes(rng):
    for pixels, blocks, counted in ((256, 2, True), (132, 2, False), (4, 1, False), (128, 3, False)):
        image = rng.integers(0, 256, 3 * pixels, np.uint8)
        label = f"{pixels} pixels in blocks of 128"
        yield Case((image, Out(3 * pixels, np.uint8)), blocks, 96, label=label, counted=counted)


@cuda.jit
def exchange(image, out):
    stage = cuda.shared.array(384, np.uint8, alignment=8)
    b = 4 * cuda.threadIdx.x  # of the block's 384 bytes, 128 pixels, this thread has b to b + 3
    first = 384 * cuda.blockIdx.x + b
    if first < image.size:
        v = load4(image, first)
        store4(stage, b, v[0], v[1], v[2], v[3])
    # HOLE about 7 lines: byte i of the result is byte i + 2 - 2 * (i % 3) of stage; store4(out, first, p, q, r, s)
    cuda.syncthreads()
    if first < image.size:
        p = stage[b + 2 - 2 * (b % 3)]
        q = stage[b + 3 - 2 * ((b + 1) % 3)]
        r = stage[b + 4 - 2 * ((b + 2) % 3)]
        s = stage[b + 5 - 2 * ((b + 3) % 3)]
        store4(out, first, p, q, r, s)
    # END


@cuda.jit
def exchange_in_array(image, out):
    stage = cuda.shared.array(384, np.uint8, alignment=8)
    b = 4 * cuda.threadIdx.x
    first = 384 * cuda.blockIdx.x + b
    mine = cuda.local.array(4, np.uint8)
    if first < image.size:
        v = load4(image, first)
        store4(stage, b, v[0], v[1], v[2], v[3])
    cuda.syncthreads()
    if first >= image.size:
        return
    for j in range(4):
        pixel, channel = (b + j) // 3, (b + j) % 3
        mine[j] = stage[3 * pixel + 2 - channel]
    store4(out, first, mine[0], mine[1], mine[2], mine[3])


STORE = "        store4(out, first, p, q, r, s)"
WORDS = KernelExercise(
    "08-words",
    task="Exchange the channels of pixels of three bytes, with loads and stores of four bytes.",
    spec=exchanged,
    cases=pixels_of_three_bytes,
    solutions=[exchange, exchange_in_array],
    wrong=[
        Wrong(
            "A pixel's bytes may have been loaded by the thread before or after: "
            "wait with cuda.syncthreads() before you read them.",
            {"    cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "Right, but the four bytes are stored one by one, in four requests. store4 needs one.",
            {STORE: "        out[first], out[first + 1], out[first + 2], out[first + 3] = p, q, r, s"},
            "cost: global requests",
        ),
        Wrong(
            "The four bytes go on unchanged: byte i must come from the other end of its pixel.",
            {"p = stage[b + 2 - 2 * (b % 3)]": "p = stage[b]"}
            | {"q = stage[b + 3 - 2 * ((b + 1) % 3)]": "q = stage[b + 1]"}
            | {"r = stage[b + 4 - 2 * ((b + 2) % 3)]": "r = stage[b + 2]"}
            | {"s = stage[b + 5 - 2 * ((b + 3) % 3)]": "s = stage[b + 3]"},
        ),
        Wrong(
            "A thread's first byte is not always channel 0: four is no multiple of three. "
            "The channel of byte b + j is (b + j) % 3.",
            {"2 * (b % 3)": "2 * 0", "2 * ((b + 1) % 3)": "2 * 1", "2 * ((b + 2) % 3)": "2 * 2"}
            | {"2 * ((b + 3) % 3)": "2 * 0"},
        ),
        Wrong(
            "The bytes come from global memory again, one by one, and shared memory was filled in vain.",
            {"p = stage[b + 2": "p = image[first + 2", "q = stage[b + 3": "q = image[first + 3"}
            | {"r = stage[b + 4": "r = image[first + 4", "s = stage[b + 5": "s = image[first + 5"},
            "cost: global requests",
        ),
        Wrong(
            "The last block has threads without bytes. They must reach the barrier, but not store.",
            {"    if first < image.size:\n        p =": "    if True:\n        p ="},
            "out-of-bounds",
        ),
        Wrong(
            "`stage` has the 384 bytes of this block only: count in it from b, not from the image's first byte.",
            {"p = stage[b + 2": "p = stage[first + 2", "q = stage[b + 3": "q = stage[first + 3"}
            | {"r = stage[b + 4": "r = stage[first + 4", "s = stage[b + 5": "s = stage[first + 5"},
            "out-of-bounds",
        ),
        Wrong(
            "Byte i + 1 comes from i + 1 + 2 - 2 * ((i + 1) % 3): the number counts twice, outside the modulo, too.",
            {"b + 3 - 2": "b + 2 - 2", "b + 4 - 2": "b + 2 - 2 ", "b + 5 - 2": "b + 2 - 2  "},
        ),
    ],
    hints=[
        "Another thread may have loaded the byte you need: what must come before you read it?",
        "The thread stores bytes b, b + 1, b + 2, b + 3 of the block. Put each of them in for i.",
        "p = stage[b + 2 - 2 * (b % 3)], q = stage[b + 3 - 2 * ((b + 1) % 3)], and so on.",
    ],
    why="A warp loads and stores 128 bytes at a time, whole sectors; shared memory is where the bytes change places.\n"
    "384 is a multiple of 3 and of 4, so a block has whole pixels and whole words.",
    limits={"global requests": 1.0, "global sectors": 1.0},
)

EXERCISES = [PLACE, BILINEAR, LETTERBOX, BYTES, WORDS]
