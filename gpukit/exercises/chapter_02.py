"""Exercises of chapter 02, a matrix product."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, InOut, KernelExercise, Out, Wrong
from warpstep.integers import ceil_div

# -- 02-naive -------------------------------------------------------------------------------------------------------


def product(a, b):
    return (a.astype(np.float64) @ b).astype(np.float32)


def products(rng):
    for (m, k, n), block in (
        ((32, 20, 48), (16, 16)),
        ((53, 29, 37), (16, 16)),
        ((1, 1, 1), (8, 8)),
        ((9, 4, 70), (32, 8)),
    ):
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        grid = ceil_div(n, block[0]), ceil_div(m, block[1])
        yield Case((a, b, Out((m, n))), grid, block, label=f"{m} x {k} by {k} x {n}")


@cuda.jit
def naive(a, b, out):
    col, row = cuda.grid(2)
    # HOLE about 5 lines: if there is such an element, sum up the products in total = np.float32(0), then store it once
    if row < out.shape[0] and col < out.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total
    # END


@cuda.jit
def naive_backwards(a, b, out):
    col, row = cuda.grid(2)
    height, width = out.shape
    if row >= height or col >= width:
        return
    total, k = np.float32(0), b.shape[0]
    while k > 0:
        k -= 1
        total += a[row, k] * b[k, col]
    out[row, col] = total


NAIVE = KernelExercise(
    "02-naive",
    task="Multiply two matrices of any size, one element of the result per thread.",
    spec=product,
    cases=products,
    solutions=[naive, naive_backwards],
    limits={"global sectors": 1.4},  # storing a zero first is clumsy, and right
    wrong=[
        Wrong(
            "The surplus threads at the right and at the bottom have no element; without a guard they write anyway.",
            {
                "    if row < out.shape[0] and col < out.shape[1]:\n        total = np.float32(0)\n"
                "        for k in range(a.shape[1]):\n            total += a[row, k] * b[k, col]\n"
                "        out[row, col] = total\n": "    total = np.float32(0)\n"
                "    for k in range(a.shape[1]):\n        total += a[row, k] * b[k, col]\n    out[row, col] = total\n"
            },
            "out-of-bounds",
        ),
        Wrong(
            "The guard lets one row and one column too many through: the last index is one less than the size.",
            {"row < out.shape[0] and col < out.shape[1]": "row <= out.shape[0] and col <= out.shape[1]"},
            "out-of-bounds",
        ),
        Wrong("A thread must be inside in both directions: `and`, not `or`.", {" and ": " or "}, "out-of-bounds"),
        Wrong(
            "The element belongs to out: compare row and col with the shape of out, not with that of a.",
            {"row < out.shape[0] and col < out.shape[1]": "row < a.shape[0] and col < a.shape[1]"},
            "unwritten",
        ),
        Wrong(
            "The sum has as many products as a has columns, a.shape[1].",
            {"range(a.shape[1])": "range(out.shape[1])"},
            "out-of-bounds",
        ),
        Wrong(
            "shape[0] is the number of rows. A row of a has a.shape[1] elements, and the sum as many products.",
            {"range(a.shape[1])": "range(a.shape[0])"},
            "out-of-bounds",
        ),
        Wrong(
            "A kernel returns nothing. Store the sum in the element of the thread: out[row, col] = total.",
            {"out[row, col] = total": "return total"},
            "does not compile",
        ),
        Wrong(
            "The product needs column `col` of b, and its rows come first: b[k, col].",
            {"b[k, col]": "b[col, k]"},
            "out-of-bounds",
        ),
        Wrong("Each turn of the loop overwrites the sum: total += ..., not total = ...", {"total +=": "total ="}),
        Wrong(
            "The launch has its columns along x, and cuda.grid(2) gives x first: col, row = cuda.grid(2).",
            {"col, row = cuda.grid(2)": "row, col = cuda.grid(2)"},
            "unwritten",
        ),
        Wrong(
            "out does not start at zero. And each += would read and write global memory: sum up in a local variable.",
            {
                "        total = np.float32(0)\n": "",
                "total +=": "out[row, col] +=",
                "        out[row, col] = total\n": "",
            },
        ),
        Wrong(
            "Right, but every turn of the loop writes to global memory. Store the sum once, after the loop.",
            {"        out[row, col] = total": "            out[row, col] = total"},
            "cost: global sectors",
        ),
    ],
    hints=[
        "Which threads have an element? Compare row and col with out.shape.",
        "The element is the sum over k of a[row, k] * b[k, col], for as many k as a has columns.",
        "if row < out.shape[0] and col < out.shape[1]: total = np.float32(0), the loop, out[row, col] = total.",
    ],
    why="The two outer loops of the CPU are the grid. The sum stays in a register, so out is written once.",
)


# -- 02-sectors -----------------------------------------------------------------------------------------------------


def sectors_per_request(block, x_is_col):
    """Sectors that the first warp of a block touches in a and in b, whose rows begin at multiples of 32 bytes."""
    threads = [(i % block[0], i // block[0]) for i in range(32)]
    elements = [(y, x) if x_is_col else (x, y) for x, y in threads]
    return len({row for row, _ in elements}), len({4 * col // 32 for _, col in elements})


SECTORS = AnswerExercise(
    "02-sectors",
    task="Predict the sectors per request with blocks of 16 x 16: naive for a and b, naive_uncoalesced for a and b.",
    spec=lambda: (*sectors_per_request((16, 16), True), *sectors_per_request((16, 16), False)),
    variable="my_sectors",
    wrong=[
        Wrong("A warp has 32 threads, and a row of this block only 16: each warp covers two rows.", (1, 4, 32, 1)),
        Wrong("naive_uncoalesced walks down the rows with x: 16 threads of a warp read 16 rows of a.", (2, 2, 2, 2)),
        Wrong("Threads that want the same element share its sector. Count sectors, not threads.", (32, 32, 32, 32)),
        Wrong("A warp covers 16 rows and two columns in naive_uncoalesced, not 32 rows.", (2, 2, 32, 1)),
        Wrong("16 neighbouring float32 are 64 bytes, and a sector has 32.", (2, 1, 16, 1)),
        Wrong("Two neighbouring columns of b are in the same sector.", (2, 2, 16, 2)),
        Wrong("All threads of a row want the same element of a: one sector for each of the two rows.", (16, 2, 16, 1)),
    ],
    hints=[
        "Write down the rows and columns of the 32 threads of the first warp, in both kernels.",
        "Of a they want one element per row. Of b they want one per column, and eight columns share a sector.",
    ],
    why="A warp of naive covers 2 rows and 16 columns: 2 sectors of a, and 64 bytes of b. A warp of naive_uncoalesced\n"
    "covers 16 rows and 2 columns: 16 sectors of a, each for a single element, and one of b.",
)


# -- 02-fade --------------------------------------------------------------------------------------------------------


def faded(a, b):
    weight = np.arange(a.shape[1]) / a.shape[1]
    return ((1 - weight) * a + weight * b).astype(np.float32)


def pictures(rng):
    for height, width in ((16, 32), (45, 70), (1, 1)):
        a, b = rng.random((2, height, width), np.float32)
        grid = ceil_div(width, 16), ceil_div(height, 16)
        yield Case((a, b, Out((height, width))), grid, (16, 16), label=f"{height} x {width}")


@cuda.jit
def fade(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        # HOLE about 2 lines: the same without float64; np.float32(...) converts
        #| weight = col / out.shape[1]
        #| out[row, col] = (1.0 - weight) * a[row, col] + weight * b[row, col]
        weight = np.float32(col) / np.float32(out.shape[1])
        out[row, col] = (np.float32(1) - weight) * a[row, col] + weight * b[row, col]
        # END


@cuda.jit
def fade_by_difference(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        per_column = np.float32(1) / np.float32(out.shape[1])
        out[row, col] = a[row, col] + (b[row, col] - a[row, col]) * (np.float32(col) * per_column)


FADE = KernelExercise(
    "02-fade",
    task="Fade from one picture to another without any arithmetic in float64.",
    spec=faded,
    cases=pictures,
    solutions=[fade, fade_by_difference],
    limits={"float64 operations": 1.0},
    rtol=1e-4,
    wrong=[
        Wrong(
            "1.0 is a float64 and 1 an int64, and float32 with either becomes float64: write np.float32(1).",
            {"np.float32(1) -": "1.0 -"},
            "cost: float64 operations",
        ),
        Wrong(
            "The weight is a float64, like the quotient of two integers, or of a float32 and an int64: convert both.",
            {"np.float32(col) / np.float32(out.shape[1])": "col / out.shape[1]"},
            "cost: float64 operations",
        ),
        Wrong(
            "This converts too late: the division is already done in float64.",
            {"np.float32(col) / np.float32(out.shape[1])": "np.float32(col / out.shape[1])"},
            "cost: float64 operations",
        ),
        Wrong(
            "1 / out.shape[1] is computed in float64, and converted afterwards. Divide np.float32(1).",
            {"np.float32(col) / np.float32(out.shape[1])": "np.float32(col) * np.float32(1 / out.shape[1])"},
            "cost: float64 operations",
        ),
        Wrong(
            "// divides without a fraction, so the weight is 0 everywhere. Divide two float32 by /.",
            {"np.float32(col) / np.float32(out.shape[1])": "np.float32(col // out.shape[1])"},
        ),
        Wrong(
            "At the left the result must be a, where the weight of b is 0.",
            {"a[row, col] + weight": "b[row, col] + weight", "* b[row, col]\n": "* a[row, col]\n"},
        ),
        Wrong(
            "The fade runs from left to right: the weight follows the column.",
            {"np.float32(col) / np.float32(out.shape[1])": "np.float32(row) / np.float32(out.shape[0])"},
        ),
    ],
    hints=[
        "These are float64: the quotient of two integers, the literal 1.0, and what is computed with them.",
        "np.float32(col) / np.float32(out.shape[1]), and np.float32(1) for 1.0.",
    ],
    why="Python's floats, and the quotient of two integers, are float64. Everything computed with one is float64 too.",
)


# -- 02-gemm --------------------------------------------------------------------------------------------------------


def scaled(alpha, a, b, beta, out):
    result = alpha * (a.astype(np.float64) @ b)
    return (result + beta * out if beta else result).astype(np.float32)


def scaled_products(rng):
    for (m, k, n), alpha, beta in (
        ((32, 40, 16), 0.75, 0.25),
        ((21, 33, 18), -2.0, 1.0),
        ((20, 17, 33), 1.5, 0.0),
        ((1, 1, 1), 0.1, -3.0),
    ):
        a, b, out = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
        if not beta:
            out[:] = np.nan
        label = f"{m} x {k} by {k} x {n}, alpha = {alpha}, beta = {beta}"
        yield Case((alpha, a, b, beta, InOut(out)), (ceil_div(n, 16), ceil_div(m, 8)), (16, 8), label=label)


@cuda.jit
def gemm(alpha, a, b, beta, out):
    # HOLE about 9 lines: out = alpha * (a @ b) + beta * out, in float32; if beta is 0, out is not read
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        total *= np.float32(alpha)
        if beta != 0:
            total += np.float32(beta) * out[row, col]
        out[row, col] = total
    # END


@cuda.jit
def gemm_by_start(alpha, a, b, beta, out):
    """The old value is the start of the sum."""
    col, row = cuda.grid(2)
    if row >= out.shape[0] or col >= out.shape[1]:
        return
    factor = np.float32(alpha)
    total = np.float32(beta) * out[row, col] if beta != 0 else np.float32(0)
    for k in range(a.shape[1]):
        total += factor * a[row, k] * b[k, col]
    out[row, col] = total


@cuda.jit
def gemm_in_memory(alpha, a, b, beta, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = np.float32(beta) * out[row, col] if beta != 0 else np.float32(0)
        for k in range(a.shape[1]):
            out[row, col] += np.float32(alpha) * a[row, k] * b[k, col]


GEMM = KernelExercise(
    "02-gemm",
    task="Compute out = alpha * (a @ b) + beta * out as BLAS does: out is not read if beta is 0.",
    spec=scaled,
    cases=scaled_products,
    solutions=[gemm, gemm_by_start],
    limits={"global sectors": 1.0, "float64 operations": 4.0},
    wrong=[
        Wrong(
            "If beta is 0, out may hold anything, NaN for example, and 0 * NaN is NaN. Do not read it then.",
            {"        if beta != 0:\n            total +=": "        total +="},
        ),
        Wrong(
            "The sum is a float64 because 0.0 is one: np.float32(0).",
            {"total = np.float32(0)": "total = 0.0"},
            "cost: float64 operations",
        ),
        Wrong(
            "alpha is a float64, and the loop multiplies by it. Convert it, and multiply once after the loop.",
            {"total += a[row": "total += alpha * a[row", "        total *= np.float32(alpha)\n": ""},
            "cost: float64 operations",
        ),
        Wrong(
            "A negative beta counts as well: only where beta is exactly 0 is out not read.", {"beta != 0": "beta > 0"}
        ),
        Wrong(
            "If beta is 0, out is not read, not even for a value that is then thrown away.",
            {
                "        total = np.float32(0)\n": "        total = np.float32(0)\n        old = out[row, col]\n",
                "np.float32(beta) * out[row, col]": "np.float32(beta) * old",
            },
            "cost: global sectors",
        ),
        Wrong("The factor alpha is missing.", {"        total *= np.float32(alpha)\n": ""}),
        Wrong(
            "alpha belongs to the product, beta to the old value.",
            {"np.float32(alpha)": "np.float32(beta)", "np.float32(beta) * out": "np.float32(alpha) * out"},
        ),
        Wrong(
            "alpha multiplies the product only; here it multiplies beta * out as well.",
            {
                "        total *= np.float32(alpha)\n": "",
                "        out[row, col] = total": "        out[row, col] = total * np.float32(alpha)",
            },
        ),
        Wrong(
            "This adds the product to out, whatever beta is.",
            {
                "        if beta != 0:\n            total += np.float32(beta) * out[row, col]\n": "",
                "        out[row, col] = total": "        out[row, col] += total",
            },
        ),
        Wrong(
            "Right, but out is read and written in every turn of the loop. Sum up in a local variable.",
            gemm_in_memory,
            "cost: global sectors",
        ),
        Wrong(
            "x runs along the columns in this launch: col, row = cuda.grid(2).",
            {"col, row = cuda.grid(2)": "row, col = cuda.grid(2)"},
        ),
        Wrong(
            "The guard is missing: the surplus threads read and write past the ends.",
            {"row < out.shape[0] and col < out.shape[1]": "True"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "Begin with the naive product; alpha, beta and the old value of out come in after the loop.",
        "alpha and beta are Python floats, float64 in the kernel: np.float32(alpha).",
        "total *= np.float32(alpha); if beta != 0: total += np.float32(beta) * out[row, col]; then store total.",
    ],
    why="BLAS defines beta = 0 as 'out is not read', so that out need not be initialised. The factors are converted\n"
    "once per thread; inside the loop nothing is float64.",
)

EXERCISES = [NAIVE, SECTORS, FADE, GEMM]
