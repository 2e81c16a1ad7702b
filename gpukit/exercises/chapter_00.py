"""Exercises of chapter 00, start here."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import Case, KernelExercise, Out, Wrong

# Each image with a grid that covers it, and mostly more.
LAUNCHES = (
    ((20, 37), (3, 2), (16, 16)),
    ((1, 1), (1, 1), (16, 16)),
    ((33, 16), (1, 5), (32, 8)),
    ((6, 70), (3, 2), (32, 4)),
)


def images(rng):
    for shape, grid, block in LAUNCHES:
        image = rng.integers(0, 256, shape, np.uint8)
        yield Case((image, Out(shape, np.uint8)), grid, block, label=f"{shape[0]} rows, {shape[1]} columns")


# -- 00-negative ----------------------------------------------------------------------------------------------------


def negative_numpy(image):
    return 255 - image


@cuda.jit
def negative(image, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        # HOLE about 1 line: store 255 minus the pixel of `image` in the same place of `out`
        out[row, col] = 255 - image[row, col]
        # END


@cuda.jit
def negative_by_bits(image, out):
    col, row = cuda.grid(2)
    if row >= out.shape[0] or col >= out.shape[1]:
        return
    out[row, col] = image[row, col] ^ 255


NEGATIVE = KernelExercise(
    "00-negative",
    task="Turn a grey image into its negative: each pixel becomes 255 minus itself.",
    spec=negative_numpy,
    cases=images,
    solutions=[negative, negative_by_bits],
    limits={"global requests": 2.0},
    wrong=[
        Wrong(
            "In NumPy this line does the whole array. A kernel is the work of one thread: one pixel, image[row, col].",
            {"out[row, col] = 255 - image[row, col]": "out[:] = 255 - image"},
            "does not compile",
        ),
        Wrong(
            "A kernel returns nothing. Store the pixel: out[row, col] = ...",
            {"out[row, col] = 255": "return 255"},
            "does not compile",
        ),
        Wrong(
            "The result is the image itself: the pixel was copied, not subtracted from 255.",
            {"255 - image[row, col]": "image[row, col]"},
        ),
        Wrong(
            "A byte has 256 values, 0 to 255, so the negative of 0 is 255. Subtract from 255, not from 256.",
            {"255 - image": "256 - image"},
        ),
        Wrong(
            "The subtraction is the wrong way round: 255 minus the pixel.",
            {"255 - image[row, col]": "image[row, col] - 255"},
        ),
        Wrong(
            "The pixels are bytes from 0 to 255, not fractions of 1: subtract from 255.",
            {"255 - image": "1 - image"},
        ),
        Wrong(
            "The negative went back into `image`. `out` is the array to fill.",
            {"out[row, col] = 255": "image[row, col] = 255"},
            "unwritten",
        ),
        Wrong(
            "Nothing is stored. `out = ...` gives a name a new value, and `==` compares; `out[row, col] = ...` stores.",
            {"out[row, col] =": "out ="},
            "unwritten",
        ),
        Wrong(
            "An array takes the row first: image[row, col].",
            {"image[row, col]": "image[col, row]"},
            "out-of-bounds",
        ),
        Wrong(
            "An array takes the row first: out[row, col].",
            {"out[row, col] =": "out[col, row] ="},
            "out-of-bounds",
        ),
        Wrong(
            "image[row] is a whole row of pixels. One thread handles one pixel: image[row, col].",
            {"image[row, col]": "image[row]"},
            "does not compile",
        ),
    ],
    hints=[
        "NumPy does it with 255 - image, for all pixels at once. Your line does it for the pixel of one thread.",
        "The thread's pixel is image[row, col]; its result belongs into out[row, col].",
    ],
    why="A thread handles one pixel. There is no loop over the image: the launch runs this line once per pixel.",
)

# -- 00-mirror ------------------------------------------------------------------------------------------------------


def mirror_numpy(image):
    return image[:, ::-1]


@cuda.jit
def mirror(image, out):
    # HOLE about 3 lines: find the pixel of this thread; if there is one, fetch its mirror image from the same row
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = image[row, out.shape[1] - 1 - col]
    # END


@cuda.jit
def mirror_by_storing(image, out):
    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    height, width = image.shape
    if row >= height or col >= width:
        return
    out[row, width - 1 - col] = image[row, col]


@cuda.jit
def mirror_by_loops(image, out):
    for row in range(out.shape[0]):
        for col in range(out.shape[1]):
            out[row, col] = image[row, out.shape[1] - 1 - col]


MIRROR = KernelExercise(
    "00-mirror",
    task="Mirror a grey image: left becomes right.",
    spec=mirror_numpy,
    cases=images,
    solutions=[mirror, mirror_by_storing],
    limits={"global requests": 2.0},
    wrong=[
        Wrong(
            "Right, but every thread does the whole image again. The launch is the loop: each thread does one pixel.",
            mirror_by_loops,
            "cost: global requests",
        ),
        Wrong(
            "Numba counts a negative index from the end, as Python does. CUDA itself has no such rule, and the check "
            "takes it for a mistake. Count from the left: out.shape[1] - 1 - col.",
            {"out.shape[1] - 1 - col": "-col - 1"},
            "negative-index",
        ),
        Wrong(
            "The columns are numbered from 0, so the last one is shape[1] - 1. Without the - 1, column 0 fetches from "
            "past the end of its row.",
            {"out.shape[1] - 1 - col": "out.shape[1] - col"},
            "out-of-bounds",
        ),
        Wrong(
            "The grid is larger than the image, and the surplus threads read and write outside it: the guard is "
            "missing.",
            {"    if row < out.shape[0] and col < out.shape[1]:\n    ": ""},
            "out-of-bounds",
        ),
        Wrong(
            "This turns the image upside down. A mirror keeps the row and changes the column.",
            {"image[row, out.shape[1] - 1 - col]": "image[out.shape[0] - 1 - row, col]"},
        ),
        Wrong(
            "This is half a turn: both row and column are mirrored. A mirror keeps the row.",
            {"image[row, out": "image[out.shape[0] - 1 - row, out"},
        ),
        Wrong(
            "shape[0] is the number of rows. The columns are counted by shape[1].",
            {"out.shape[1] - 1 - col": "out.shape[0] - 1 - col"},
            "negative-index",
        ),
        Wrong(
            "cuda.grid(2) gives x first, which is the column: col, row = cuda.grid(2).",
            {"col, row = cuda.grid(2)": "row, col = cuda.grid(2)"},
            "unwritten",
        ),
        Wrong(
            "Each block mirrors its own columns only, because blockDim and threadIdx know one block. "
            "Mirror the column in the whole image.",
            {
                "image[row, out.shape[1] - 1 - col]": "image[row, min(out.shape[1] - 1, (cuda.blockIdx.x + 1) * "
                "cuda.blockDim.x - 1 - cuda.threadIdx.x)]"
            },
        ),
        Wrong(
            "The guard needs `and`: a thread has a pixel if its row and its column are both inside.",
            {"shape[0] and col": "shape[0] or col"},
            "out-of-bounds",
        ),
        Wrong(
            "The image is copied as it is: column col must fetch from its mirror image.", {"out.shape[1] - 1 - ": ""}
        ),
    ],
    hints=[
        "The first two lines are those of `negative`.",
        "In a row of 10 pixels, column 0 fetches from column 9, and column 1 from column 8. And column `col`?",
        "out[row, col] = image[row, out.shape[1] - 1 - col], below the guard.",
    ],
    why="Each thread writes its own pixel and chooses where to read. Reading its own pixel and choosing where to write "
    "is just as right here.",
)

EXERCISES = [NEGATIVE, MIRROR]
