"""Exercises of chapter 12, tensor cores."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, KernelExercise, Out, Wrong
from gpukit.intrinsics import (
    commit_copies,
    copy_async8,
    ldmatrix2,
    ldmatrix4,
    mma,
    store_fragment,
    wait_copies,
    zeros,
)
from gpukit.tensor.ladder import at

# -- 12-place -------------------------------------------------------------------------------------------------------


def product(a, b):
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


def small_products(rng):
    a = rng.integers(-9, 10, (16, 16)).astype(np.float16)
    picks = np.eye(16, 8).astype(np.float16)
    yield Case((np.arange(256, dtype=np.float16).reshape(16, 16), picks, Out((16, 8))), 1, 32, label="b picks columns")
    yield Case((np.eye(16).astype(np.float16), a[:, :8].copy(), Out((16, 8))), 1, 32, label="a = identity")
    yield Case((a, rng.integers(-9, 10, (16, 8)).astype(np.float16), Out((16, 8))), 1, 32, label="random")


@cuda.jit
def my_product(a, b, out):
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4  # one warp
    zero = np.float32(0)
    # HOLE about 6 lines: this lane's eight elements of a and four of b, the product, and its four elements of out
    #| left = ...
    #| right = ...
    #| c = mma(left, right, (zero, zero, zero, zero))
    left = (
        a[g, 2 * t], a[g, 2 * t + 1], a[g + 8, 2 * t], a[g + 8, 2 * t + 1],
        a[g, 2 * t + 8], a[g, 2 * t + 9], a[g + 8, 2 * t + 8], a[g + 8, 2 * t + 9],
    )  # fmt: skip
    right = (b[2 * t, g], b[2 * t + 1, g], b[2 * t + 8, g], b[2 * t + 9, g])
    c = mma(left, right, (zero, zero, zero, zero))
    out[g, 2 * t], out[g, 2 * t + 1] = c[0], c[1]
    out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c[2], c[3]
    # END


@cuda.jit
def my_product_in_halves(a, b, out):
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4 * 2
    c = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for k in range(t, 16, 8):  # two instructions with K = 8
        left = a[g, k], a[g, k + 1], a[g + 8, k], a[g + 8, k + 1]
        c = mma(left, (b[k, g], b[k + 1, g]), c)
    for i in range(4):
        out[g + 8 * (i // 2), t + i % 2] = c[i]


PLACE = KernelExercise(
    "12-place",
    task="Multiply 16 x 16 by 16 x 8 in float16 with one instruction: give each lane its elements.",
    spec=product,
    cases=small_products,
    solutions=[my_product, my_product_in_halves],
    limits={"global requests": 1.0},
    wrong=[
        Wrong(
            "The second and the third register of a have changed places: first come both rows, g and g + 8, of the "
            "left half, then those of the right half.",
            {
                "a[g + 8, 2 * t], a[g + 8, 2 * t + 1],\n": "a[g, 2 * t + 8], a[g, 2 * t + 9],\n",
                "        a[g, 2 * t + 8], a[g, 2 * t + 9],": "        a[g + 8, 2 * t], a[g + 8, 2 * t + 1],",
            },
        ),
        Wrong(
            "The lower rows are g + 8, not the row after g: a lane has no neighbouring rows.",
            {
                "a[g + 8, 2 * t], a[g + 8, 2 * t + 1],\n": "a[g + 1, 2 * t], a[g + 1, 2 * t + 1],\n",
                "a[g + 8, 2 * t + 8], a[g + 8, 2 * t + 9],": "a[g + 1, 2 * t + 8], a[g + 1, 2 * t + 9],",
            },
        ),
        Wrong(
            "Lane t of a group has columns 2 t and 2 t + 1, which are neighbours. Here it has t and t + 4.",
            {
                "a[g, 2 * t], a[g, 2 * t + 1], a[g + 8, 2 * t], a[g + 8, 2 * t + 1],": (
                    "a[g, t], a[g, t + 4], a[g + 8, t], a[g + 8, t + 4],"
                ),
                "a[g, 2 * t + 8], a[g, 2 * t + 9], a[g + 8, 2 * t + 8], a[g + 8, 2 * t + 9],": (
                    "a[g, t + 8], a[g, t + 12], a[g + 8, t + 8], a[g + 8, t + 12],"
                ),
            },
        ),
        Wrong(
            "A lane's second pair of columns is 8 columns further right, in the other half of a: 2 t + 8 and 2 t + 9.",
            {
                "a[g, 2 * t + 8], a[g, 2 * t + 9], a[g + 8, 2 * t + 8], a[g + 8, 2 * t + 9],": (
                    "a[g, 2 * t + 2], a[g, 2 * t + 3], a[g + 8, 2 * t + 2], a[g + 8, 2 * t + 3],"
                )
            },
        ),
        Wrong(
            "b has 16 rows and 8 columns, and a lane's four elements are in *one column*: b[2 * t, g], and so on.",
            {
                "(b[2 * t, g], b[2 * t + 1, g], b[2 * t + 8, g], b[2 * t + 9, g])": (
                    "(b[g, 2 * t], b[g, 2 * t + 1], b[g + 8, 2 * t], b[g + 8, 2 * t + 1])"
                )
            },
        ),
        Wrong(
            "A lane's elements of b are in rows 2 t, 2 t + 1 and 8 rows further down, as its columns of a are.",
            {
                "(b[2 * t, g], b[2 * t + 1, g], b[2 * t + 8, g], b[2 * t + 9, g])": (
                    "(b[4 * t, g], b[4 * t + 1, g], b[4 * t + 2, g], b[4 * t + 3, g])"
                )
            },
        ),
        Wrong(
            "The sums have changed places: c[0] and c[1] are neighbours in row g, c[2] and c[3] in row g + 8.",
            {
                "out[g, 2 * t], out[g, 2 * t + 1] = c[0], c[1]": "out[g, 2 * t], out[g, 2 * t + 1] = c[0], c[2]",
                "out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c[2], c[3]": (
                    "out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c[1], c[3]"
                ),
            },
        ),
        Wrong(
            "The lower half of out is never written: c[2] and c[3] belong to row g + 8.",
            {"    out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c[2], c[3]\n": ""},
            "unwritten",
        ),
        Wrong(
            "Neighbouring lanes store to one element, since lane t's columns are 2 t and 2 t + 1, not t and t + 1.",
            {
                "out[g, 2 * t], out[g, 2 * t + 1] =": "out[g, t], out[g, t + 1] =",
                "out[g + 8, 2 * t], out[g + 8, 2 * t + 1] =": "out[g + 8, t], out[g + 8, t + 1] =",
            },
            "race",
        ),
        Wrong(
            "Rows go with lane // 4 and columns with lane % 4; here it is the other way round.",
            {
                "g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4": (
                    "t, g = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8"
                )
            },
        ),
        Wrong(
            "Right, but without a tensor core: a lane computes its sums alone, and loads far more elements.",
            {
                "    c = mma(left, right, (zero, zero, zero, zero))\n": (
                    "    c = zero, zero, zero, zero\n"
                    "    for k in range(16):\n"
                    "        c = (c[0] + a[g, k] * b[k, 2 * t], c[1] + a[g, k] * b[k, 2 * t + 1],\n"
                    "             c[2] + a[g + 8, k] * b[k, 2 * t], c[3] + a[g + 8, k] * b[k, 2 * t + 1])\n"
                )
            },
            "cost: global requests",
        ),
    ],
    hints=[
        "Look at lane 5 in the drawing: g = 1, t = 1. Elements 0 and 1 of a are in row 1, columns 2 and 3.",
        "Elements of a, in pairs: row g, then row g + 8, both at columns 2 t and 2 t + 1; then the same 8 columns "
        "further right.",
        "right = b[2 * t, g], b[2 * t + 1, g], b[2 * t + 8, g], b[2 * t + 9, g]",
        "c[0] and c[1] go to out[g, 2 * t] and out[g, 2 * t + 1], c[2] and c[3] to row g + 8.",
    ],
    why="A register holds two neighbouring float16, so columns come in pairs. Each 8 x 8 quarter of a is one register "
    "of each lane: upper left, lower left, upper right, lower right.",
)


# -- 12-intensity ---------------------------------------------------------------------------------------------------

INTENSITY = AnswerExercise(
    "12-intensity",
    task="Say how many operations a block does for each byte that it loads.",
    spec=lambda: 2 * 128 * 128 // (2 * (128 + 128)),
    wrong=[
        Wrong("An element of float16 has 2 bytes, not 4, and a multiply-add is two operations, as in FLOP/s.", 32),
        Wrong(
            "That is per element, or with one tile of the two. A step loads 128 x k of a *and* k x 128 of b, 2 bytes "
            "each.",
            128,
        ),
        Wrong("The k of the step cancels: each element that is loaded is used 128 times.", 16384),
    ],
    hints=[
        "For a K of k: 128 x 128 x k multiply-adds, two operations each. How many elements are loaded?",
        "2 x 128 x 128 x k operations; (128 + 128) x k elements of 2 bytes.",
    ],
    why="2 x 128 x 128 x k operations for (128 + 128) x k elements of 2 bytes: k cancels, 64 remain.",
)


# -- 12-wavefronts --------------------------------------------------------------------------------------------------


def wavefronts_of_rows():
    """Count wavefronts of four matrices of 8 rows of 16 bytes, whose rows begin 128 bytes apart."""
    banks = [[(row * 128 // 4 + word) % 32 for word in range(4)] for row in range(8)]
    return 4 * max(sum(bank in row for row in banks) for bank in range(32))


WAVEFRONTS = AnswerExercise(
    "12-wavefronts",
    task="Predict the wavefronts of one `ldmatrix4` from a tile with rows of 64 float16.",
    spec=wavefronts_of_rows,
    wrong=[
        Wrong("That is the least: one wavefront for each matrix. Here its 8 rows begin in the same bank.", 4),
        Wrong("That is one matrix of the four.", 8),
        Wrong("All 512 bytes would need one wavefront per 128 bytes, four, even without a conflict.", 1),
        Wrong("64 float16 are 128 bytes, all 32 banks: every row begins in bank 0, not every other row.", 16),
    ],
    hints=[
        "In which bank does row 0 of the tile begin? And row 1, 128 bytes further on?",
        "The 8 rows of a matrix take one wavefront each, and there are four matrices.",
    ],
    why="All 8 rows of a matrix lie in the same four banks, so they come one after the other: 4 x 8 wavefronts.",
)


# -- 12-ldmatrix ----------------------------------------------------------------------------------------------------


@cuda.jit
def my_operands(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float16, alignment=16)
    tile_b = cuda.shared.array((16, 8), np.float16, alignment=16)
    lane = cuda.threadIdx.x  # one warp
    for i in range(lane, 256, 32):
        tile_a[i // 16, i % 16] = a[i // 16, i % 16]
    for i in range(lane, 128, 32):
        tile_b[i // 8, i % 8] = b[i // 8, i % 8]
    cuda.syncwarp()
    # HOLE about 2 lines: the operands left by ldmatrix4, and right by ldmatrix2, transposed
    #| left = ...
    #| right = ...
    left = ldmatrix4(tile_a, (lane % 16, lane // 16 * 8))
    right = ldmatrix2(tile_b, (lane % 16, 0), True)
    # END
    c = mma(left, right, zeros(4))
    store_fragment(out, (0, 0), c)


LDMATRIX = KernelExercise(
    "12-ldmatrix",
    task="Load the operands of one instruction from shared memory, each in one instruction.",
    spec=product,
    cases=small_products,
    solutions=[
        my_operands,
        {
            "    left = ldmatrix4(tile_a, (lane % 16, lane // 16 * 8))\n": (
                "    half, other = ldmatrix2(tile_a, (lane % 16, 0)), ldmatrix2(tile_a, (lane % 16, 8))\n"
                "    left = half + other\n"
            )
        },
    ],
    limits={"shared wavefronts": 1.0},
    wrong=[
        Wrong(
            "The second and the third matrix have changed places: lanes 8 to 15 give the rows *below* the first 8, "
            "lanes 16 to 23 the 8 columns on the right.",
            {"(lane % 16, lane // 16 * 8)": "(lane % 8 + lane // 16 * 8, lane // 8 % 2 * 8)"},
        ),
        Wrong(
            "Four matrices in a row would be 32 columns wide; the tile has 16. After two of them go back to column 0.",
            {"(lane % 16, lane // 16 * 8)": "(lane % 8, lane // 8 * 8)"},
            "out-of-bounds",
        ),
        Wrong(
            "Both halves of a are the left one: lanes 16 to 31 give addresses 8 columns further right.",
            {"(lane % 16, lane // 16 * 8)": "(lane % 16, 0)"},
        ),
        Wrong(
            "A lane gives the address of a *row of 8*, not of the elements that it is going to hold.",
            {"(lane % 16, lane // 16 * 8)": "(lane // 4, lane % 4 * 2)"},
            "misaligned",
        ),
        Wrong(
            "Without trans a lane has neighbours along a row of b. The instruction wants neighbours along K, in a "
            "column.",
            {"(lane % 16, 0), True)": "(lane % 16, 0))"},
        ),
        Wrong(
            "b has 16 rows. Lanes 8 to 15 give those of the second matrix, rows 8 to 15.",
            {"ldmatrix2(tile_b, (lane % 16, 0), True)": "ldmatrix2(tile_b, (lane % 8, 0), True)"},
        ),
        Wrong(
            "Right, but element by element: a wavefront for each load. ldmatrix brings them together.",
            {
                "    right = ldmatrix2(tile_b, (lane % 16, 0), True)\n": (
                    "    g, t = lane // 4, lane % 4 * 2\n"
                    "    right = tile_b[t, g], tile_b[t + 1, g], tile_b[t + 8, g], tile_b[t + 9, g]\n"
                )
            },
            "cost: shared wavefronts",
        ),
    ],
    hints=[
        "Lane i gives the address of row i % 8 of matrix i // 8. Number the four quarters of a as the registers: upper "
        "left, lower left, upper right, lower right.",
        "For a: row lane % 16, column 0 for the first 16 lanes and 8 for the others.",
        "For b: row lane % 16, column 0, and True for trans. Lanes 16 to 31 are not used.",
    ],
    why="The 16 rows of the left half come first, then those of the right half. b lies row by row in memory, but its "
    "pairs run down the columns: that is what trans is for.",
)


# -- 12-swizzle -----------------------------------------------------------------------------------------------------


def kernel_of_group(group):
    """A product of 64 x 64 by 64 x 8 by four warps; group p of 8 elements of row r of a is at place group(r, p)."""

    @cuda.jit
    def swizzled_product(a, b, out):
        tile = cuda.shared.array((64, 64), np.float16, alignment=128)
        right = cuda.shared.array((64, 8), np.float16, alignment=128)
        tid, lane = cuda.threadIdx.x, cuda.threadIdx.x % 32
        for i in range(tid, 512, 128):
            copy_async8(tile, (i // 8, 8 * group(i // 8, i % 8)), a, (i // 8, i % 8 * 8))
        if tid < 64:
            copy_async8(right, (tid, 0), b, (tid, 0))
        commit_copies()
        wait_copies(0)
        cuda.syncthreads()
        c, row = zeros(4), tid // 32 * 16
        for k in range(0, 64, 16):
            r = row + lane % 16
            left = ldmatrix4(tile, (r, 8 * group(r, k // 8 + lane // 16)))
            c = mma(left, ldmatrix2(right, (k + lane % 16, 0), True), c)
        store_fragment(out, (row, 0), c)

    return swizzled_product


def tall_products(rng):
    a, b = rng.integers(-9, 10, (64, 64)).astype(np.float16), rng.integers(-9, 10, (64, 8)).astype(np.float16)
    yield Case((a, b, Out((64, 8))), 1, 128, label="64 x 64 by 64 x 8")


@cuda.jit(device=True)
def group(row, p):
    # HOLE about 1 line: where group p of a row lies, so that 8 neighbouring rows have it in different banks
    #| return p
    return p ^ row % 8
    # END


@cuda.jit(device=True)
def group_by_turns(row, p):
    return (p + row) % 8


SWIZZLE = KernelExercise(
    "12-swizzle",
    task="Place the eight groups of a row of 128 bytes so that ldmatrix has no bank conflict.",
    spec=product,
    cases=tall_products,
    make=kernel_of_group,
    solutions=[group, group_by_turns],
    limits={"bank conflicts": 1.0},
    wrong=[
        Wrong(
            "A group still has the same place in all of rows 0 to 7, so they share banks: row // 8 is 0 for all eight.",
            {"p ^ row % 8": "p ^ row // 8"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Four places for eight rows: two of them meet in each bank.",
            {"p ^ row % 8": "p ^ row % 4"},
            "cost: bank conflicts",
        ),
        Wrong(
            "row goes up to 63, so the place lies outside of the row of eight groups. Keep row % 8.",
            {"p ^ row % 8": "p ^ row"},
            "out-of-bounds",
        ),
        Wrong(
            "A pad would move each row on. Here there is none: the last groups lie outside of the row.",
            {"p ^ row % 8": "p + row % 8"},
            "out-of-bounds",
        ),
        Wrong(
            "All groups of a row are at one place. The place has to depend on p, and be another one for each p.",
            {"p ^ row % 8": "row % 8"},
            "race",
        ),
        Wrong(
            "Several groups of a row share a place: `&` and `|` lose bits, `^` does not.",
            {"p ^ row % 8": "p | row % 8"},
            "race",
        ),
    ],
    hints=[
        "A matrix is group p of 8 neighbouring rows. These must be at 8 different places.",
        "For a fixed row the place must be different for each p. Chapter 04 has an operation for both.",
        "p ^ row % 8",
    ],
    why="For a fixed p, row % 8 takes all eight values, and so does p ^ row % 8. For a fixed row it permutes the "
    "groups, so no two share a place.",
)


# -- 12-tile --------------------------------------------------------------------------------------------------------


def tiled_products(rng):
    for m, n, k in ((64, 32, 64), (66, 34, 50), (1, 1, 1)):
        a, b = rng.integers(-9, 10, (m, k)).astype(np.float16), rng.integers(-9, 10, (k, n)).astype(np.float16)
        yield Case(
            (a, b, Out((m, n))), (-(-n // 32), -(-m // 64)), 128, label=f"{m} x {n}, K = {k}", counted=k % 32 == 0
        )


@cuda.jit
def my_tiles(a, b, out):
    tile_a = cuda.shared.array((64, 40), np.float16, alignment=16)  # rows of 32, padded
    tile_b = cuda.shared.array((32, 40), np.float16, alignment=16)
    row, col = 64 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    tid, warp, lane = cuda.threadIdx.x, cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    c0, c1, c2, c3 = zeros(4), zeros(4), zeros(4), zeros(4)  # columns 0, 8, 16 and 24
    for first in range(0, a.shape[1], 32):
        for i in range(tid, 2048, 128):
            tile_a[i // 32, i % 32] = at(a, row + i // 32, first + i % 32)
        for i in range(tid, 1024, 128):
            tile_b[i // 32, i % 32] = at(b, first + i // 32, col + i % 32)
        cuda.syncthreads()
        # HOLE about 8 lines: the warp has rows 16 * warp to 16 * warp + 15 of the tile, and all 32 columns
        for k in range(0, 32, 16):
            left = ldmatrix4(tile_a, (16 * warp + lane % 16, k + lane // 16 * 8))
            right = ldmatrix4(tile_b, (k + lane % 16, lane // 16 * 8), True)
            further = ldmatrix4(tile_b, (k + lane % 16, 16 + lane // 16 * 8), True)
            c0, c1 = mma(left, right[:4], c0), mma(left, right[4:], c1)
            c2, c3 = mma(left, further[:4], c2), mma(left, further[4:], c3)
        cuda.syncthreads()
        # END
    store_fragment(out, (row + 16 * warp, col), c0 + c1 + c2 + c3, True)


TILE = KernelExercise(
    "12-tile",
    task="Multiply the tiles of a block of four warps.",
    spec=product,
    cases=tiled_products,
    solutions=[
        my_tiles,
        {
            "            left = ldmatrix4(tile_a, (16 * warp + lane % 16, k + lane // 16 * 8))\n": (
                "            quarter = lane // 8\n"
                "            r = 16 * warp + lane % 8 + quarter % 2 * 8\n"
                "            left = ldmatrix2(tile_a, (r, k)) + ldmatrix2(tile_a, (r, k + 8))\n"
            )
        },
    ],
    limits={"shared wavefronts": 1.0, "barriers": 1.0},
    wrong=[
        Wrong(
            "Some warps load the next tiles while others still multiply these: a barrier belongs at the end of a step.",
            {"c3)\n        cuda.syncthreads()\n": "c3)\n"},
            "race",
        ),
        Wrong(
            "All warps multiply the first 16 rows. Those of this warp begin at 16 * warp.",
            {"(16 * warp + lane % 16, k + lane // 16 * 8)": "(lane % 16, k + lane // 16 * 8)"},
        ),
        Wrong(
            "Only the first 16 of the tile's K of 32 are multiplied: one instruction has K = 16.",
            {"range(0, 32, 16)": "range(0, 16, 16)"},
        ),
        Wrong(
            "Both halves of K are taken from the left half of a: its columns begin at k.",
            {"k + lane // 16 * 8)": "lane // 16 * 8)"},
        ),
        Wrong(
            "b is loaded without trans, so a lane has neighbours along a row, where neighbours along K belong.",
            {"lane // 16 * 8), True)\n            further": "lane // 16 * 8))\n            further"},
        ),
        Wrong(
            "All four products have the same columns of b. ldmatrix4 brings two operands: right[:4] and right[4:].",
            {
                "mma(left, right[4:], c1)": "mma(left, right[:4], c1)",
                "mma(left, further[4:], c3)": ("mma(left, further[:4], c3)"),
            },
        ),
        Wrong(
            "The sums begin again in each step; each product adds to what the step before has left.",
            {
                "mma(left, right[:4], c0), mma(left, right[4:], c1)": (
                    "mma(left, right[:4], zeros(4)), mma(left, right[4:], zeros(4))"
                )
            },
        ),
        Wrong(
            "Right, but the tiles do not change within the loop over k: one barrier after the loop is enough.",
            {"c3)\n        cuda.syncthreads()\n": "c3)\n            cuda.syncthreads()\n"},
            "cost: barriers",
        ),
        Wrong(
            "Columns 16 to 31 are a copy of columns 0 to 15: the second ldmatrix4 of b begins 16 columns on.",
            {"16 + lane // 16 * 8), True)": "lane // 16 * 8), True)"},
        ),
    ],
    hints=[
        "Two steps, k = 0 and k = 16. Each loads one operand of a and four of b, which are two ldmatrix4 with trans.",
        "left = ldmatrix4(tile_a, (16 * warp + lane % 16, k + lane // 16 * 8)), as before.",
        "right = ldmatrix4(tile_b, (k + lane % 16, lane // 16 * 8), True) has columns 0 to 7 in right[:4], 8 to 15 in "
        "right[4:].",
        "Then c0 = mma(left, right[:4], c0), and so on; a barrier after the loop.",
    ],
    why="An operand of a serves four products, and a tile of b four warps. That is what makes a tile cheaper than its "
    "elements.",
)


# -- 12-split -------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def tf32(x):
    """What a tensor core keeps of a float32: its last 13 bits are cleared."""
    return cuda.libdevice.int_as_float(cuda.libdevice.float_as_int(x) & ~0x1FFF)


def kernel_of_split(multiply):
    """The product of 16 x K by K x 8 in float32, by one warp, with the answer in the loop."""

    @cuda.jit
    def split_product(a, b, out):
        g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
        c = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for k in range(t, a.shape[1], 8):
            left = a[g, k], a[g + 8, k], a[g, k + 4], a[g + 8, k + 4]
            c = multiply(left, (b[k, g], b[k + 4, g]), c)
        for i in range(4):
            out[g + 8 * (i // 2), 2 * t + i % 2] = c[i]

    return split_product


def strips(rng):
    for k in (8, 64):
        a, b = rng.standard_normal((16, k)).astype(np.float32), rng.standard_normal((k, 8)).astype(np.float32)
        yield Case((a, b, Out((16, 8))), 1, 32, label=f"K = {k}")
    a, b = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32)
    a[:, 0], b[0] = 1 + 2.0**-12, 1 + 2.0**-13 * np.arange(8)
    yield Case((a, b, Out((16, 8))), 1, 32, label="numbers a little over 1")


@cuda.jit(device=True)
def multiply_exactly(a, b, c):
    big_a = tf32(a[0]), tf32(a[1]), tf32(a[2]), tf32(a[3])
    big_b = tf32(b[0]), tf32(b[1])
    # HOLE about 5 lines: what TF32 has lost of a and of b; three products, added to c
    #| return mma(big_a, big_b, c)
    small_a = a[0] - big_a[0], a[1] - big_a[1], a[2] - big_a[2], a[3] - big_a[3]
    small_b = b[0] - big_b[0], b[1] - big_b[1]
    c = mma(small_a, big_b, c)
    c = mma(big_a, small_b, c)
    return mma(big_a, big_b, c)
    # END


SPLIT = KernelExercise(
    "12-split",
    task="Multiply float32 on TF32 tensor cores with nearly float32's accuracy.",
    spec=product,
    cases=strips,
    make=kernel_of_split,
    rtol=1e-6,
    solutions=[
        multiply_exactly,
        {
            "    c = mma(small_a, big_b, c)\n    c = mma(big_a, small_b, c)\n    return mma(big_a, big_b, c)\n": (
                "    c = mma(small_a, small_b, c)\n    c = mma(small_a, big_b, c)\n"
                "    return mma(big_a, b, mma(big_a, small_b, c))\n"
            )
        },
    ],
    wrong=[
        Wrong(
            "What b has lost is still missing: big_a times small_b is as large as small_a times big_b.",
            {"    c = mma(big_a, small_b, c)\n": ""},
        ),
        Wrong(
            "What a has lost is still missing: small_a times big_b is as large as big_a times small_b.",
            {"    c = mma(small_a, big_b, c)\n": ""},
        ),
        Wrong(
            "This is a plain product in TF32: about three digits. Multiply what it has lost, too.",
            {
                "    c = mma(small_a, big_b, c)\n    c = mma(big_a, small_b, c)\n": "",
            },
        ),
        Wrong(
            "This drops the sums so far: every mma adds to the c that the one before returned.",
            {"c = mma(big_a, small_b, c)": "c = mma(big_a, small_b, zeros(4))"},
        ),
        Wrong(
            "The product of the big parts is missing.",
            {"return mma(big_a, big_b, c)": "return c"},
        ),
        Wrong(
            "The small part is what is lost, a - big_a. Here it has the other sign.",
            {
                "a[0] - big_a[0], a[1] - big_a[1], a[2] - big_a[2], a[3] - big_a[3]": (
                    "big_a[0] - a[0], big_a[1] - a[1], big_a[2] - a[2], big_a[3] - a[3]"
                )
            },
        ),
        Wrong(
            "tf32 of a small part and tf32 of the whole are different things: the lost part is a - tf32(a).",
            {
                "a[0] - big_a[0], a[1] - big_a[1], a[2] - big_a[2], a[3] - big_a[3]": (
                    "tf32(big_a[0]), tf32(big_a[1]), tf32(big_a[2]), tf32(big_a[3])"
                )
            },
        ),
    ],
    hints=[
        "a = big + small, b = big + small: multiply out. Which of the four products is too small to matter?",
        "small_a is a tuple of four: a[0] - big_a[0], and so on; small_b one of two.",
        "c = mma(small_a, big_b, c), then big_a with small_b, then big_a with big_b.",
    ],
    why="A float32 has 24 significant bits. TF32 keeps 11 of them, and the small part has room for most of the others. "
    "The product of both small parts is below the last bit.",
)


# -- 12-int8 --------------------------------------------------------------------------------------------------------


def quantised_product(a, b, scale_a, scale_b):
    """Products of rows of a and rows of b, of bytes; each scaled by its row's scales."""
    a, b = (words.view(np.int8).reshape(len(words), -1).astype(np.int64) for words in (a, b))
    return ((a @ b.T) * (scale_a[:, None].astype(np.float64) * scale_b)).astype(np.float32)


def quantised(rng):
    for m, n, k in ((16, 8, 32), (16, 8, 96), (33, 20, 64), (1, 1, 32)):
        a, b = (rng.integers(-128, 128, (rows, k), np.int8).view(np.int32) for rows in (m, n))
        scales = [rng.random(rows, np.float32) + np.float32(0.5) for rows in (m, n)]
        grid = -(-n // 8), -(-m // 16)
        yield Case((a, b, *scales, Out((m, n))), grid, 32, label=f"{m} x {n}, K = {k}", counted=m % 16 == n % 8 == 0)


@cuda.jit(device=True)
def word(array, row, k):
    """Four bytes of a row; zero beyond the last row."""
    return array[row, k] if row < array.shape[0] else np.int32(0)


@cuda.jit
def quantised_layer(a, b, scale_a, scale_b, out):
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4  # a warp computes 16 x 8 elements
    row, col = 16 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    zero = np.int32(0)
    c = zero, zero, zero, zero
    for k in range(t, a.shape[1], 8):  # 8 words of 4 bytes: K = 32
        # HOLE about 3 lines: four words of a, two of b, which has its columns as rows; multiply
        left = word(a, row + g, k), word(a, row + g + 8, k), word(a, row + g, k + 4), word(a, row + g + 8, k + 4)
        right = word(b, col + g, k), word(b, col + g, k + 4)
        c = mma(left, right, c)
        # END
    for i in range(4):
        # HOLE about 3 lines: store c[i], scaled, if it is inside of out
        r, j = row + g + 8 * (i // 2), col + 2 * t + i % 2
        if r < out.shape[0] and j < out.shape[1]:
            out[r, j] = c[i] * (scale_a[r] * scale_b[j])
        # END


INT8 = KernelExercise(
    "12-int8",
    task="Multiply matrices of bytes with int32 sums, and scale rows and columns.",
    spec=quantised_product,
    cases=quantised,
    solutions=[
        quantised_layer,
        {
            "        c = mma(left, right, c)\n": (
                "        c = mma(left[:2], right[:1], c)\n        c = mma(left[2:], right[1:], c)\n"
            )
        },
    ],
    limits={"global requests": 1.0},
    wrong=[
        Wrong(
            "The second and the third word of a have changed places: rows g and g + 8 first, both at k; then at k + 4.",
            {
                "word(a, row + g + 8, k), word(a, row + g, k + 4), ": (
                    "word(a, row + g, k + 4), word(a, row + g + 8, k), "
                )
            },
        ),
        Wrong(
            "A lane's second word is 4 words further along K: 16 bytes, the other half of the instruction's 32.",
            {
                "word(a, row + g, k + 4), word(a, row + g + 8, k + 4)": (
                    "word(a, row + g, k + 1), word(a, row + g + 8, k + 1)"
                ),
                "word(b, col + g, k + 4)": "word(b, col + g, k + 1)",
            },
        ),
        Wrong(
            "Every block computes the first tile: add `row` and `col`, where the block's tile begins.",
            {
                "word(a, row + g, k), word(a, row + g + 8, k), word(a, row + g, k + 4), word(a, row + g + 8, k + 4)": (
                    "word(a, g, k), word(a, g + 8, k), word(a, g, k + 4), word(a, g + 8, k + 4)"
                ),
                "word(b, col + g, k), word(b, col + g, k + 4)": "word(b, g, k), word(b, g, k + 4)",
            },
        ),
        Wrong(
            "Every block reads the first 8 rows of b. Its columns of the product begin at `col`: rows col + g of b.",
            {"word(b, col + g, k), word(b, col + g, k + 4)": "word(b, g, k), word(b, g, k + 4)"},
        ),
        Wrong(
            "The scale of the column is missing: scale_b[j].",
            {"c[i] * (scale_a[r] * scale_b[j])": "c[i] * scale_a[r]"},
        ),
        Wrong(
            "mma returns the new sums; here they are dropped, or begin again in each step.",
            {"c = mma(left, right, c)": "c = mma(left, right, (zero, zero, zero, zero))"},
        ),
        Wrong(
            "The last tiles reach beyond the matrix: only elements inside of out may be stored.",
            {"        if r < out.shape[0] and j < out.shape[1]:\n            out": "        if True:\n            out"},
            "out-of-bounds",
        ),
        Wrong(
            "The scales are missing: an element of out is the sum times the scale of its row and that of its column.",
            {"c[i] * (scale_a[r] * scale_b[j])": "c[i]"},
        ),
        Wrong(
            "The scales are those of row g and column t of a tile; the element is in row r and column j of out.",
            {"c[i] * (scale_a[r] * scale_b[j])": "c[i] * (scale_a[g] * scale_b[2 * t])"},
        ),
        Wrong(
            "c[1] is right of c[0], and c[2] is 8 rows below: r has i // 2, j has i % 2.",
            {"8 * (i // 2), col + 2 * t + i % 2": "8 * (i % 2), col + 2 * t + i // 2"},
        ),
        Wrong(
            "The upper half of the rows only: c[2] and c[3] are in row g + 8.",
            {"range(4):\n": "range(2):\n"},
            "unwritten",
        ),
        Wrong(
            "Scales belong to the sums. An int8 that is scaled before the product is no int8 any more, and rounding it "
            "loses what the scales are for.",
            {"c[i] * (scale_a[r] * scale_b[j])": "c[i] * np.int32(scale_a[r] * scale_b[j])"},
        ),
    ],
    hints=[
        "The words of a are those of rows g and g + 8, at k and at k + 4: four words.",
        "Row n of b is column n of the product, so a lane reads its words of b along row col + g.",
        "c[i] belongs to row row + g + 8 * (i // 2), column col + 2 * t + i % 2.",
    ],
    why="Bytes along K are neighbours in memory for both matrices, so one word of 32 bits brings four of them, in the "
    "order in which the instruction wants them.",
)

EXERCISES = [PLACE, INTENSITY, LDMATRIX, WAVEFRONTS, SWIZZLE, TILE, SPLIT, INT8]
