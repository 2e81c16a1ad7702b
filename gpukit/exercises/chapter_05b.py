"""Exercises of chapter 05b, asynchronous copies and split-K."""

import numpy as np

from gpukit import results
from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, KernelExercise, Out, Wrong
from gpukit.intrinsics import commit_copies, copy_async, mma, wait_copies

# -- 05b-blocks -----------------------------------------------------------------------------------------------------

#: Registers of an SM of compute capability 9.0, and how many more a thread gets at a time.
REGISTERS, UNIT = 65_536, 8


def resident_blocks():
    """Count the blocks of read_ahead that an SM has registers for."""
    compiled = results.first(results.load("fast-matmul-code"), variant="read_ahead")
    return REGISTERS // (-(-compiled["registers"] // UNIT) * UNIT * compiled["threads"])


BLOCKS = AnswerExercise(
    "05b-blocks",
    task="Say how many blocks of `read_ahead` an SM has registers for.",
    spec=resident_blocks,
    wrong=[
        Wrong(
            "Two blocks need 2 x 256 x 160 = 81,920 registers. Two fit up to 128 registers per thread.",
            2,
        ),
        Wrong("That is 65,536 / 155, the threads that fit. Blocks come whole, with 256 threads each.", 422),
        Wrong("8 blocks of 256 threads are what the warp slots allow. The registers run out before.", 8),
    ],
    hints=[
        "How many registers does one block need?",
        "155 is rounded up to 160; times 256 threads; how often does that fit?",
    ],
    why="A block takes 160 x 256 = 40,960 registers. While its warps wait at a barrier, the SM has nobody else to run.",
)


# -- 05b-ring -------------------------------------------------------------------------------------------------------


def mirrored_sums(a):
    """Add up the rows of each slab of 128 columns, mirrored."""
    sums = a.astype(np.float64).sum(0)
    return sums.reshape(-1, 128)[:, ::-1].reshape(-1).astype(np.float32)


def slabs(rng):
    for rows, blocks in ((1, 1), (7, 2), (2, 1)):
        a = rng.standard_normal((rows, 128 * blocks)).astype(np.float32)
        yield Case((a, Out(128 * blocks)), blocks, 128, label=f"{rows} rows, {blocks} blocks")


@cuda.jit
def my_ring(a, out):
    ring = cuda.shared.array((3, 128), np.float32)  # three rows: one in use, two in flight
    t, col = cuda.threadIdx.x, cuda.grid(1)
    total = np.float32(0)
    for row in range(2):
        copy_async(ring, (row, t), a, (row, col), row < a.shape[0])
        commit_copies()
    for row in range(a.shape[0]):
        # HOLE about 4 lines: wait until all threads' copies of this row have arrived; start copying row + 2
        wait_copies(1)  # all groups of this thread but the latest
        cuda.syncthreads()
        copy_async(ring, ((row + 2) % 3, t), a, (row + 2, col), row + 2 < a.shape[0])
        commit_copies()
        # END
        total += ring[row % 3, 127 - t]
    out[col] = total


RING = KernelExercise(
    "05b-ring",
    task="Keep two rows in flight in a ring of three, with one barrier per row.",
    spec=mirrored_sums,
    cases=slabs,
    solutions=[
        my_ring,
        {
            "        copy_async(ring, ((row + 2) % 3, t), a, (row + 2, col), row + 2 < a.shape[0])\n": (
                "        if row + 2 < a.shape[0]:\n"
                "            copy_async(ring, ((row + 2) % 3, t), a, (row + 2, col))\n"
            )
        },
    ],
    limits={"barriers": 1.0, "global sectors": 1.0},
    wrong=[
        Wrong(
            "A thread waits for its own copies only. Without a barrier after the wait it may read a neighbour's "
            "element that is still in flight.",
            {"        cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "Nothing waits for the copies, so the row may still be in flight when it is read.",
            {"        wait_copies(1)  # all groups of this thread but the latest\n": ""},
            "uninitialised-read",
        ),
        Wrong(
            "wait_copies(2) leaves two groups in flight, and this row is one of them. Leave one.",
            {"wait_copies(1)": "wait_copies(2)"},
            "uninitialised-read",
        ),
        Wrong(
            "The barrier comes before the wait, so it says nothing about what the others have received. Wait first.",
            {
                "        wait_copies(1)  # all groups of this thread but the latest\n        cuda.syncthreads()\n": (
                    "        cuda.syncthreads()\n        wait_copies(1)\n"
                )
            },
            "race",
        ),
        Wrong(
            "The copy starts before the barrier, into the row of the step before, which slow threads still read.",
            {
                "        wait_copies(1)  # all groups of this thread but the latest\n        cuda.syncthreads()\n": "",
                "        commit_copies()\n        total": (
                    "        commit_copies()\n        wait_copies(2)\n        cuda.syncthreads()\n        total"
                ),
            },
            "race",
        ),
        Wrong(
            "Without commit_copies the copy joins a later group, and wait_copies(1) no longer covers this row.",
            {"        commit_copies()\n        total": "        total"},
            "uninitialised-read",
        ),
        Wrong(
            "In the last two steps nothing is committed, so wait_copies(1) leaves this row itself in flight. "
            "Commit in every step: an empty group counts, too.",
            {
                "        copy_async(ring, ((row + 2) % 3, t), a, (row + 2, col), row + 2 < a.shape[0])\n"
                "        commit_copies()\n        total": (
                    "        if row + 2 < a.shape[0]:\n"
                    "            copy_async(ring, ((row + 2) % 3, t), a, (row + 2, col))\n"
                    "            commit_copies()\n        total"
                )
            },
            "race",
        ),
        Wrong(
            "That is an ordinary load and store, with nothing in flight. Start a copy with copy_async, and commit it.",
            {
                "        copy_async(ring, ((row + 2) % 3, t), a, (row + 2, col), row + 2 < a.shape[0])\n"
                "        commit_copies()\n        total": (
                    "        if row + 2 < a.shape[0]:\n"
                    "            ring[(row + 2) % 3, t] = a[row + 2, col]\n        total"
                )
            },
            "race",
        ),
        Wrong(
            "The copy loads the row after this one, which is in flight already. It is row + 2 on both sides.",
            {"(row + 2, col), row + 2 <": "(row + 1, col), row + 1 <"},
        ),
        Wrong(
            "The copy goes to a row of the ring that is still read, or in flight itself. Row + 2 belongs to "
            "(row + 2) % 3.",
            {"(row + 2) % 3": "row % 3"},
            "race",
        ),
        Wrong(
            "The last two steps copy rows that a does not have. Pass row + 2 < a.shape[0] as the last argument.",
            {", row + 2 < a.shape[0])": ")"},
            "out-of-bounds",
        ),
        Wrong(
            "One barrier per row is enough: the next step's barrier also protects the reads of this one.",
            {"        total += ": "        cuda.syncthreads()\n        total += "},
            "cost: barriers",
        ),
    ],
    hints=[
        "Four calls: a wait, a barrier, a copy, a commit. Which order makes both the read and the copy safe?",
        "Two groups are in flight at the top of a step, this row's and the next one's. How many may wait_copies leave?",
        "wait_copies(1), cuda.syncthreads(), copy_async for row + 2, commit_copies().",
    ],
    why=(
        "The barrier orders two pairs: the arrival of everyone's elements and the reads of this step, and the reads "
        "of the step before and the copies into the same row. "
        "wait_copies(0) is right as well, but leaves nothing in flight; a clock sees that, a trace does not."
    ),
)


# -- 05b-split ------------------------------------------------------------------------------------------------------


def partial_products(a, b, parts):
    """The product of each slice of K: all slices are as long, but for the last ones, which may be shorter or empty."""
    size = -(-a.shape[1] // parts)
    cuts = [slice(p * size, (p + 1) * size) for p in range(parts)]
    return np.stack([a[:, cut].astype(np.float64) @ b[cut] for cut in cuts]).astype(np.float32)


def splits(rng):
    for m, n, k, parts in ((4, 8, 32, 4), (5, 3, 10, 4), (2, 3, 5, 4), (1, 1, 1, 1), (3, 2, 2, 5)):
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        label = f"{m} x {n} x {k}, {parts} slices"
        yield Case((a, b, parts, Out((parts, m, n))), (1, 1, parts), (8, 8), label=label)


@cuda.jit
def my_slices(a, b, parts, partial):
    col, row = cuda.grid(2)
    part = cuda.blockIdx.z
    if row < partial.shape[1] and col < partial.shape[2]:
        total = np.float32(0)
        # HOLE about 4 lines: add the products of this block's slice of K; ceil(K / parts) is the length of a slice
        size = (a.shape[1] + parts - 1) // parts
        for k in range(part * size, min((part + 1) * size, a.shape[1])):
            total += a[row, k] * b[k, col]
        # END
        partial[part, row, col] = total


SPLIT = KernelExercise(
    "05b-split",
    task="Split K among blocks: each slice writes a partial product of its own.",
    spec=partial_products,
    cases=splits,
    solutions=[
        my_slices,
        {
            "        for k in range(part * size, min((part + 1) * size, a.shape[1])):\n": (
                "        for k in range(part * size, (part + 1) * size):\n            if k >= a.shape[1]:\n"
                "                break\n"
            )
        },
    ],
    wrong=[
        Wrong(
            "Every slice adds up the whole of K, so the sum of the slices is too large by their number.",
            {"range(part * size, min((part + 1) * size, a.shape[1]))": "range(a.shape[1])"},
        ),
        Wrong(
            "The division rounds down, so the last k of an uneven K belong to no slice. Round up.",
            {"(a.shape[1] + parts - 1) // parts": "a.shape[1] // parts"},
        ),
        Wrong(
            "The last slice runs past the end of K where K is no multiple of the slices. Stop at a.shape[1].",
            {"min((part + 1) * size, a.shape[1])": "(part + 1) * size"},
            "out-of-bounds",
        ),
        Wrong(
            "The rest goes to the last slice here. The check expects slices of ceil(K / parts), the last ones shorter.",
            {
                "size = (a.shape[1] + parts - 1) // parts": "size = a.shape[1] // parts",
                "min((part + 1) * size, a.shape[1])": "a.shape[1] if part == parts - 1 else (part + 1) * size",
            },
        ),
        Wrong(
            "These slices are balanced. The check expects slices of ceil(K / parts), the last ones shorter.",
            {
                "range(part * size, min((part + 1) * size, a.shape[1]))": (
                    "range(part * a.shape[1] // parts, (part + 1) * a.shape[1] // parts)"
                )
            },
        ),
        Wrong(
            "k begins at part * size for a, too: both factors have the same k.",
            {
                "range(part * size, min((part + 1) * size, a.shape[1]))": "range(size)",
                "b[k, col]": "b[part * size + k, col]",
            },
            "out-of-bounds",
        ),
        Wrong(
            "All slices are the first one. Slice `part` begins at part * size.",
            {"range(part * size, min((part + 1) * size, a.shape[1]))": "range(min(size, a.shape[1]))"},
        ),
        Wrong(
            "The length of a slice depends on how many there are, parts, and not on which one this is, part.",
            {"(a.shape[1] + parts - 1) // parts": "(a.shape[1] + part) // (part + 1)"},
        ),
        Wrong(
            "Slices begin at `part`, one after the other, and overlap. They begin at part * size.",
            {"range(part * size, min((part + 1) * size,": "range(part, min(part + size,"},
        ),
        Wrong(
            "That takes every parts-th k. Their sum is right, but a block's loads of a are no longer neighbours. "
            "A slice is a range.",
            {"range(part * size, min((part + 1) * size, a.shape[1]))": "range(part, a.shape[1], parts)"},
        ),
    ],
    hints=[
        "Slice 0 has k = 0 to size - 1. Where does slice `part` begin, and where does it end?",
        "size = (a.shape[1] + parts - 1) // parts",
        "for k in range(part * size, min((part + 1) * size, a.shape[1]))",
    ],
    why="Slices that are ranges of K keep the loads of a contiguous. A slice past the end is empty and writes zeros.",
)


# -- 05b-mma --------------------------------------------------------------------------------------------------------


def strips(rng):
    for k in (4, 12, 40):
        yield Case(
            (rng.standard_normal((16, k)), rng.standard_normal((k, 8)), Out((16, 8), np.float64)),
            1,
            32,
            label=f"K = {k}",
        )


@cuda.jit
def my_warp_product(a, b, out):
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4  # one warp
    c = (0.0, 0.0, 0.0, 0.0)
    for k in range(0, a.shape[1], 4):
        # HOLE 1 or 2 lines: this lane has two elements of a, in rows g and g + 8, and one of b; multiply, and add to c
        c = mma((a[g, k + t], a[g + 8, k + t]), (b[k + t, g],), c)
        # END
    out[g, 2 * t], out[g, 2 * t + 1], out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c


MMA = KernelExercise(
    "05b-mma",
    task="Multiply 16 x K by K x 8 in float64, on a tensor core, by one warp.",
    spec=lambda a, b: a @ b,
    cases=strips,
    solutions=[
        my_warp_product,
        {
            "        c = mma((a[g, k + t], a[g + 8, k + t]), (b[k + t, g],), c)\n": (
                "        d = mma((a[g, k + t], a[g + 8, k + t]), (b[k + t, g],), (0.0, 0.0, 0.0, 0.0))\n"
                "        c = (c[0] + d[0], c[1] + d[1], c[2] + d[2], c[3] + d[3])\n"
            )
        },
    ],
    limits={"global requests": 1.0},
    rtol=1e-12,
    wrong=[
        Wrong(
            "The result of the last step replaces the others. mma adds to its third argument, so pass c.",
            {"(b[k + t, g],), c)": "(b[k + t, g],), (0.0, 0.0, 0.0, 0.0))"},
        ),
        Wrong(
            "mma returns the new sums, and they are dropped here: c = mma(...).",
            {"c = mma(": "mma("},
        ),
        Wrong(
            "The elements of b are a tuple, too, if only of one: (b[k + t, g],) with a comma.",
            {"(b[k + t, g],)": "b[k + t, g]"},
            "does not compile",
        ),
        Wrong(
            "Right, but without the tensor core: every lane loads many more elements than the three that mma needs.",
            {
                "        c = mma((a[g, k + t], a[g + 8, k + t]), (b[k + t, g],), c)\n": (
                    "        for i in range(k, k + 4):\n"
                    "            c = (c[0] + a[g, i] * b[i, 2 * t], c[1] + a[g, i] * b[i, 2 * t + 1],\n"
                    "                 c[2] + a[g + 8, i] * b[i, 2 * t], c[3] + a[g + 8, i] * b[i, 2 * t + 1])\n"
                )
            },
            "cost: global requests",
        ),
        Wrong(
            "Every step multiplies the first four columns of a. This step's begin at k.",
            {"(a[g, k + t], a[g + 8, k + t])": "(a[g, t], a[g + 8, t])"},
        ),
        Wrong(
            "Every step multiplies the first four rows of b. This step's begin at k.",
            {"b[k + t, g]": "b[t, g]"},
        ),
        Wrong(
            "The two elements of a are in rows g and g + 8, not in neighbouring rows.",
            {"a[g + 8, k + t]": "a[g + 1, k + t]"},
        ),
        Wrong(
            "The two elements of a have changed places: the one of row g comes first.",
            {"(a[g, k + t], a[g + 8, k + t])": "(a[g + 8, k + t], a[g, k + t])"},
        ),
        Wrong(
            "b is K x 8: the row is k + t, the column g.",
            {"b[k + t, g]": "b[k + g, t]"},
            "out-of-bounds",
        ),
        Wrong(
            "a is 16 x K: the row comes from g, the column from t.",
            {"(a[g, k + t], a[g + 8, k + t])": "(a[t, k + g], a[t + 8, k + g])"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "mma takes three tuples: two elements of a, one of b, and the four sums so far.",
        "The elements of a are in column k + t, the one of b is in row k + t and column g.",
        "c = mma((a[g, k + t], a[g + 8, k + t]), (b[k + t, g],), c)",
    ],
    why="One instruction does 16 x 8 x 4 = 512 FMAs for the warp, where an ordinary one does 32.",
)

EXERCISES = [BLOCKS, RING, SPLIT, MMA]
