"""Exercises of chapter 01, threads and blocks."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import Case, KernelExercise, Out, Wrong


def ceil_div(n, d):
    return -(-n // d)


# -- 01-guard -------------------------------------------------------------------------------------------------------


def sums(x, y):
    return x + y


def pairs(rng):
    for n, block in ((256, 64), (1000, 128), (1, 32), (33, 32)):
        x, y = rng.standard_normal((2, n)).astype(np.float32)
        yield Case((x, y, Out(n)), ceil_div(n, block), block, label=f"n = {n}")
    x, y = rng.standard_normal((2, 40)).astype(np.float32)
    yield Case((x, y, Out(40)), 7, 32, label="n = 40, more blocks than needed")


@cuda.jit
def add(x, y, out):
    # HOLE about 3 lines: find the index of this thread in the grid; if there is such an element, add
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]
    # END


@cuda.jit
def add_by_hand(x, y, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= out.shape[0]:
        return
    out[i] = x[i] + y[i]


GUARD = KernelExercise(
    "01-guard",
    task="Add two arrays, one element per thread, for any length.",
    spec=sums,
    cases=pairs,
    solutions=[add, add_by_hand],
    wrong=[
        Wrong(
            "The surplus threads of the last block have no element; without a guard they write past the end.",
            {"    if i < out.size:\n    ": ""},
            "out-of-bounds",
        ),
        Wrong(
            "The guard lets thread `out.size` through: the last index is out.size - 1, so compare with <.",
            {"i < out.size": "i <= out.size"},
            "out-of-bounds",
        ),
        Wrong(
            "threadIdx counts within a block, so every block adds the same first elements. "
            "cuda.grid(1) counts in the grid.",
            {"cuda.grid(1)": "cuda.threadIdx.x"},
            "unwritten",
        ),
        Wrong(
            "blockIdx times blockDim is where the block begins; add threadIdx, or all its threads do one element.",
            {"cuda.grid(1)": "cuda.blockIdx.x * cuda.blockDim.x"},
            "unwritten",
        ),
        Wrong(
            "The last element is never added: the guard stops one thread too early.",
            {"i < out.size": "i < out.size - 1"},
            "unwritten",
        ),
        Wrong("x is added to itself, and y is never read.", {"x[i] + y[i]": "x[i] + x[i]"}),
        Wrong(
            "A block starts at blockIdx times blockDim, the threads of a block; gridDim counts the blocks.",
            {"cuda.grid(1)": "cuda.blockIdx.x * cuda.gridDim.x + cuda.threadIdx.x"},
            "unwritten",
        ),
    ],
    hints=[
        "cuda.grid(1) is the index of a thread in the whole grid.",
        "A launch has whole blocks: 1000 elements in blocks of 128 take 1024 threads. What may the last 24 do?",
        "if i < out.size: and then one assignment.",
    ],
    why="cuda.grid(1) is blockIdx.x * blockDim.x + threadIdx.x. The guard makes surplus threads do nothing.",
)

EXERCISES = [GUARD]
