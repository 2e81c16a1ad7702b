"""Exercises of chapter 09b, fast convolution."""

import numpy as np

from gpukit import results
from gpukit.backend import cuda
from gpukit.exercises.chapter_09 import blocks_for, convolution
from gpukit.exercises.exercise import AnswerExercise, Case, KernelExercise, Out, Wrong

# -- 09b-sums -------------------------------------------------------------------------------------------------------


def six_channels(rng):
    for (c, h, w), k in (((3, 8, 18), 3), ((1, 5, 7), 2), ((2, 1, 1), 1)):
        x = rng.standard_normal((c, h, w)).astype(np.float32)
        weight = rng.standard_normal((6, c, k, k)).astype(np.float32)
        shape = 6, h - k + 1, w - k + 1
        grid, block = blocks_for(shape)
        yield Case(
            (x, weight, Out(shape)), grid[:2], block[:2], label=f"{c} channels of {h} x {w}, 6 filters of {k} x {k}"
        )


@cuda.jit
def six_sums(x, weight, out):
    ow, oh = cuda.grid(2)
    if oh < out.shape[1] and ow < out.shape[2]:
        total = cuda.local.array(6, np.float32)  # a sum for each of the six out channels
        # HOLE about 10 lines: load every pixel of the window once, and use it for all six sums; store them
        for o in range(6):
            total[o] = 0
        for c in range(weight.shape[1]):
            for kh in range(weight.shape[2]):
                for kw in range(weight.shape[3]):
                    value = x[c, oh + kh, ow + kw]
                    for o in range(6):
                        total[o] += value * weight[o, c, kh, kw]
        for o in range(6):
            out[o, oh, ow] = total[o]
        # END


@cuda.jit
def six_names(x, weight, out):
    ow, oh = cuda.grid(2)
    if oh >= out.shape[1] or ow >= out.shape[2]:
        return
    p = q = r = s = t = u = np.float32(0)
    for c in range(weight.shape[1]):
        for kh in range(weight.shape[2]):
            for kw in range(weight.shape[3]):
                value = x[c, oh + kh, ow + kw]
                p += value * weight[0, c, kh, kw]
                q += value * weight[1, c, kh, kw]
                r += value * weight[2, c, kh, kw]
                s += value * weight[3, c, kh, kw]
                t += value * weight[4, c, kh, kw]
                u += value * weight[5, c, kh, kw]
    out[0, oh, ow], out[1, oh, ow], out[2, oh, ow] = p, q, r
    out[3, oh, ow], out[4, oh, ow], out[5, oh, ow] = s, t, u


@cuda.jit
def one_after_the_other(x, weight, out):
    ow, oh = cuda.grid(2)
    if oh < out.shape[1] and ow < out.shape[2]:
        for o in range(6):
            total = np.float32(0)
            for c in range(weight.shape[1]):
                for kh in range(weight.shape[2]):
                    for kw in range(weight.shape[3]):
                        total += x[c, oh + kh, ow + kw] * weight[o, c, kh, kw]
            out[o, oh, ow] = total


SUMS = KernelExercise(
    "09b-sums",
    task="Keep six sums per thread in registers, so that a pixel is loaded once for all out channels.",
    spec=convolution,
    cases=six_channels,
    solutions=[six_sums, six_names],
    wrong=[
        Wrong(
            "Right, but the out channels are the outermost loop, so every pixel is loaded six times. "
            "Make them the innermost loop, below the load.",
            one_after_the_other,
            "cost: global requests",
        ),
        Wrong(
            "The pixel is loaded inside the loop over the out channels, six times. Load it into a variable above.",
            {"value * weight": "x[c, oh + kh, ow + kw] * weight"},
            "cost: global requests",
        ),
        Wrong(
            "cuda.local.array is not zeroed: the sums begin with whatever was there. Set all six to 0 first.",
            {"        for o in range(6):\n            total[o] = 0\n": ""},
            "uninitialised-read",
        ),
        Wrong(
            "The sums start again for every in channel, and only the last channel survives: zero them once.",
            {
                "        for o in range(6):\n            total[o] = 0\n        for c in range(weight.shape[1]):\n": (
                    "        for c in range(weight.shape[1]):\n"
                    "            for o in range(6):\n                total[o] = 0\n"
                )
            },
        ),
        Wrong(
            "All six sums use the weights of the same in channel: the index is weight[o, c, kh, kw].",
            {"weight[o, c, kh, kw]": "weight[o, 0, kh, kw]"},
        ),
        Wrong(
            "The sums live in `out`, so every product costs a load and a store of global memory. Use `total`.",
            {
                "            total[o] = 0\n": "            out[o, oh, ow] = 0\n",
                "total[o] += value": "out[o, oh, ow] += value",
                "        for o in range(6):\n            out[o, oh, ow] = total[o]\n": "",
            },
            "cost: global requests",
        ),
        Wrong(
            "The sums are stored after every product. Store them once, below the loops over c, kh and kw.",
            {
                "        for o in range(6):\n            out[o, oh, ow] = total[o]\n": "",
                "weight[o, c, kh, kw]\n": "weight[o, c, kh, kw]\n                        out[o, oh, ow] = total[o]\n",
            },
            "cost: global requests",
        ),
        Wrong(
            "The out channel is the first axis of the weights, the in channel the second: weight[o, c, kh, kw].",
            {"weight[o, c, kh, kw]": "weight[c, o, kh, kw]"},
            "out-of-bounds",
        ),
        Wrong(
            "A product replaces the sum so far: use +=.",
            {"total[o] += value": "total[o] = value"},
        ),
        Wrong(
            "All products go into the first sum. Each out channel has a sum of its own: total[o].",
            {"total[o] += value": "total[0] += value"},
        ),
        Wrong(
            "Only one of the six sums is stored.",
            {"            out[o, oh, ow] = total[o]\n": "            out[0, oh, ow] = total[0]\n"},
            "unwritten",
        ),
    ],
    hints=[
        "Which loop must be innermost, so that a pixel that has been loaded serves six times?",
        "value = x[c, oh + kh, ow + kw], and below it a loop over o in range(6).",
        "Three parts: zero the six sums; the loops over c, kh, kw with the load and the six products; six stores.",
    ],
    why="A pixel is loaded once and used six times: seven loads for six products instead of twelve. All indices of\n"
    "`total` are known once the compiler has unrolled the loops, so the six sums live in registers.",
    limits={"global requests": 1.0, "float64 operations": 1.0},
)


# -- 09b-spill ------------------------------------------------------------------------------------------------------


def first_rows_that_spill():
    """Rows of the first kernel of the table that needs local memory."""
    compiled = results.load("conv-code", variant="blocked")
    return min(int(record["tile"].split(" x ")[1]) for record in compiled if record["local"])


SPILL = AnswerExercise(
    "09b-spill",
    task="Predict from how many rows on the compiler spills: 4, 8, 16, 24, 32 or 40.",
    spec=first_rows_that_spill,
    wrong=[
        Wrong("6 x 40 sums and 40 pixels are 280: far too many. The step before does not fit, either.", 40),
        Wrong("6 x 24 sums and 24 pixels are 168, which leaves 87 registers for addresses and weights: enough.", 24),
        Wrong("6 x 16 sums and 16 pixels are 112 of 255 registers.", 16),
        Wrong("6 x 8 sums and 8 pixels are 56 of 255 registers.", 8),
        Wrong("6 x 4 sums and 4 pixels are 28 of 255 registers.", 4),
    ],
    hints=[
        "A thread keeps 6 sums for each of its rows, and a pixel for each row. What else does it need registers for?",
        "The kernel with one row has 7 such values and needs 32 registers: 25 more, for addresses and sizes.",
    ],
    why="32 rows have 192 sums and 32 pixels, 224 values. With the addresses and sizes, that is more than 255.",
    variable="my_rows",
)

EXERCISES = [SUMS, SPILL]
