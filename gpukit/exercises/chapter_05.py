"""Exercises of chapter 05, tiles in registers."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, FunctionExercise, KernelExercise, Out, Wrong
from gpukit.intrinsics import load4, store4
from gpukit.matmul.ladder import load_or_zero


def product(a, b):
    return (a.astype(np.float64) @ b).astype(np.float32)


def products(*sizes):
    """Cases of products by blocks that compute a tile of out: (m, n, k, tile, block) each."""

    def cases(rng):
        for m, n, k, tile, block in sizes:
            a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
            grid = (-(-n // tile), -(-m // tile))
            whole = m % tile == n % tile == k % 8 == 0
            yield Case((a, b, Out((m, n))), grid, block, label=f"{m} x {n} x {k}", counted=whole)

    return cases


# -- 05-enough ------------------------------------------------------------------------------------------------------


def smallest_square():
    """For one k a warp loads 2 r values per lane, 32 words a cycle; its r * r FMAs take 32 of 128 lanes."""
    return next(r for r in range(1, 33) if 32 * r * r / 128 >= 32 * 2 * r / 32)


ENOUGH = AnswerExercise(
    "05-enough",
    task="Find the smallest r for which r x r sums per thread make the FMAs, not the loads, the limit.",
    spec=smallest_square,
    wrong=[
        Wrong("That counts the loads of one operand. A thread loads r values of a and r values of b.", 4, "wrong"),
        Wrong("That compares instructions, one load with one FMA. The SM starts 128 FMAs a cycle, but 32 loads.", 2),
        Wrong("At 1 a thread loads two values for one FMA: that is `tiled`, whose loads take eight times as long.", 1),
        Wrong("16 is enough, but not the smallest: a warp's r * r FMAs take r * r / 4 cycles, its loads 2 * r.", 16),
    ],
    hints=[
        "For one k, how many words does a warp load, and how many FMAs does it do?",
        "32 lanes load 2 r words each, at 32 words a cycle: 2 r cycles. 32 lanes do r * r FMAs each, at 128 a cycle.",
        "2 r <= r * r / 4.",
    ],
    why="r * r / 4 cycles of FMAs cover 2 r cycles of loads from r = 8 on. That is why the kernels below use 8 x 8.",
)


# -- 05-column ------------------------------------------------------------------------------------------------------


@cuda.jit
def my_column(a, b, out):
    tile_a = cuda.shared.array((64, 8), np.float32)
    tile_b = cuda.shared.array((8, 64), np.float32)
    sums = cuda.local.array(8, np.float32)  # eight elements of one column of out
    tid = cuda.threadIdx.x  # 512 threads
    my_row, my_col = tid // 64 * 8, tid % 64
    row, col = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(8):
        sums[i] = 0
    for first in range(0, a.shape[1], 8):
        tile_a[tid // 8, tid % 8] = load_or_zero(a, row + tid // 8, first + tid % 8)
        tile_b[tid // 64, tid % 64] = load_or_zero(b, first + tid // 64, col + tid % 64)
        cuda.syncthreads()
        for k in range(8):
            # HOLE about 3 lines: add the products of this k to sums[0] to sums[7]; load 9 values, not 16
            right = tile_b[k, my_col]
            for i in range(8):
                sums[i] += tile_a[my_row + i, k] * right
            # END
        cuda.syncthreads()
    for i in range(8):
        if row + my_row + i < out.shape[0] and col + my_col < out.shape[1]:
            out[row + my_row + i, col + my_col] = sums[i]


COLUMN = KernelExercise(
    "05-column",
    task="Give each thread eight elements of a column, with 9 loads from shared memory for 8 multiply-adds.",
    spec=product,
    cases=products((70, 67, 5, 64, 512), (64, 64, 16, 64, 512), (1, 1, 1, 64, 512)),
    solutions=[
        my_column,
        {
            "    tid = cuda.threadIdx.x": "    right = cuda.local.array(8, np.float32)\n    tid = cuda.threadIdx.x",
            "            right = tile_b[k, my_col]\n            for i in range(8):\n": (
                "            right[k] = tile_b[k, my_col]\n        for i in range(8):\n            for k in range(8):\n"
            ),
            "* right": "* right[k]",
        },
    ],
    limits={"shared wavefronts": 1.0, "global sectors": 1.0},
    wrong=[
        Wrong(
            "The value of b is loaded again for every row: 16 loads for 8 products. It is the same for all i, "
            "so load it once, before the loop over i.",
            {"            right = tile_b[k, my_col]\n": "", "* right": "* tile_b[k, my_col]"},
            "cost: shared wavefronts",
        ),
        Wrong(
            "The assignment replaces what the earlier k have added. Accumulate with +=.",
            {"sums[i] += ": "sums[i] = "},
        ),
        Wrong(
            "All threads use rows 0 to 7 of the tile. This thread's rows begin at my_row.",
            {"tile_a[my_row + i, k]": "tile_a[i, k]"},
        ),
        Wrong(
            "All eight sums use row my_row. Sum i belongs to row my_row + i.",
            {"tile_a[my_row + i, k]": "tile_a[my_row, k]"},
        ),
        Wrong(
            "tile_a has 64 rows of 8: the row comes first, then k.",
            {"tile_a[my_row + i, k]": "tile_a[k, my_row + i]"},
            "out-of-bounds",
        ),
        Wrong(
            "tile_b has 8 rows of 64: k comes first, then the column.",
            {"tile_b[k, my_col]": "tile_b[my_col, k]"},
            "out-of-bounds",
        ),
        Wrong(
            "This reads a from global memory for each product. The tile holds the same values, loaded once per block.",
            {"tile_a[my_row + i, k]": "load_or_zero(a, row + my_row + i, first + k)"},
            "cost: global sectors",
        ),
        Wrong(
            "This reads b from global memory for each k. The tile holds the same values, loaded once per block.",
            {"tile_b[k, my_col]": "load_or_zero(b, first + k, col + my_col)"},
            "cost: global sectors",
        ),
        Wrong(
            "row and col are places in the matrix. In the tiles this thread's begin at my_row and my_col.",
            {"tile_a[my_row + i, k]": "tile_a[row + i, k]"},
            "out-of-bounds",
        ),
        Wrong(
            "Neighbouring groups of threads get neighbouring rows, and overlap. Each has eight rows: begin at my_row.",
            {"tile_a[my_row + i, k]": "tile_a[tid // 64 + i, k]"},
        ),
        Wrong(
            "The sums belong to the rows: the index is i. k runs over the terms of each sum.",
            {"sums[i] += ": "sums[k] += "},
        ),
        Wrong(
            "k and i have changed places: row i of the tile is not a row of this thread.",
            {"tile_a[my_row + i, k]": "tile_a[my_row + k, i]"},
        ),
    ],
    hints=[
        "Which of the two values is the same for all eight elements of a column?",
        "Load tile_b[k, my_col] into a variable before a loop over i.",
        "for i in range(8): sums[i] += tile_a[my_row + i, k] * right",
    ],
    why="The value of b is used eight times by the thread that loaded it: 9 loads for 8 multiply-adds instead of 16.",
)


# -- 05-square ------------------------------------------------------------------------------------------------------


@cuda.jit
def my_square(a, b, out):
    tile_a = cuda.shared.array((128, 8), np.float32)
    tile_b = cuda.shared.array((8, 128), np.float32)
    sums = cuda.local.array((8, 8), np.float32)
    left, right = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
    tid = cuda.threadIdx.x  # 256 threads
    my_row, my_col = tid // 16 * 8, tid % 16 * 8
    row, col = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    for i in range(64):
        sums[i // 8, i % 8] = 0
    for first in range(0, a.shape[1], 8):
        for at in range(tid, 1024, 256):
            tile_a[at // 8, at % 8] = load_or_zero(a, row + at // 8, first + at % 8)
            tile_b[at // 128, at % 128] = load_or_zero(b, first + at // 128, col + at % 128)
        cuda.syncthreads()
        for k in range(8):
            # HOLE about 6 lines: load 8 values into left and 8 into right, then add all 64 products to sums
            for i in range(8):
                left[i] = tile_a[my_row + i, k]
                right[i] = tile_b[k, my_col + i]
            for i in range(8):
                for j in range(8):
                    sums[i, j] += left[i] * right[j]
            # END
        cuda.syncthreads()
    for i in range(8):
        for j in range(8):
            if row + my_row + i < out.shape[0] and col + my_col + j < out.shape[1]:
                out[row + my_row + i, col + my_col + j] = sums[i, j]


SQUARE = KernelExercise(
    "05-square",
    task="Give each thread 8 x 8 elements, with 16 loads from shared memory for 64 multiply-adds.",
    spec=product,
    cases=products((130, 131, 3, 128, 256), (128, 128, 8, 128, 256)),
    solutions=[
        my_square,
        {
            "                right[i] = tile_b[k, my_col + i]\n            for i in range(8):\n": "",
            "                for j in range(8):\n                    sums": (
                "            for j in range(8):\n                value = tile_b[k, my_col + j]\n"
                "                for i in range(8):\n                    sums"
            ),
            "* right[j]": "* value",
        },
    ],
    limits={"shared wavefronts": 1.0, "global sectors": 1.0, "barriers": 1.0},
    wrong=[
        Wrong(
            "Every product loads its two values from shared memory again, 128 loads for 64 products. "
            "Load the 16 values once, into left and right.",
            {
                "            for i in range(8):\n                left[i] = tile_a[my_row + i, k]\n"
                "                right[i] = tile_b[k, my_col + i]\n": "",
                "left[i] * right[j]": "tile_a[my_row + i, k] * tile_b[k, my_col + j]",
            },
            "cost: shared wavefronts",
        ),
        Wrong(
            "That multiplies left and right element by element, 8 products. "
            "The square needs every value of left with every value of right.",
            {
                "                for j in range(8):\n                    sums[i, j] += left[i] * right[j]\n": (
                    "                sums[i, i] += left[i] * right[i]\n"
                )
            },
        ),
        Wrong(
            "A value of a is loaded once, but those of b eight times, once for each row. Load all 16 values first.",
            {
                "                right[i] = tile_b[k, my_col + i]\n": "",
                "left[i] * right[j]": "left[i] * tile_b[k, my_col + j]",
            },
            "cost: shared wavefronts",
        ),
        Wrong(
            "These rows and columns are 16 apart, but the stores below expect neighbours: my_row + i and my_col + i.",
            {
                "tile_a[my_row + i, k]": "tile_a[tid // 16 + 16 * i, k]",
                "tile_b[k, my_col + i]": "tile_b[k, tid % 16 + 16 * i]",
            },
        ),
        Wrong(
            "tile_a has 128 rows of 8: the row comes first, then k.",
            {"tile_a[my_row + i, k]": "tile_a[k, my_row + i]"},
            "out-of-bounds",
        ),
        Wrong(
            "All eight values of right are the same column. Value i comes from column my_col + i.",
            {"tile_b[k, my_col + i]": "tile_b[k, my_col]"},
        ),
        Wrong(
            "The square is transposed: rows of sums belong to left, columns to right.",
            {"sums[i, j] += ": "sums[j, i] += "},
        ),
        Wrong(
            "All eight values of left are the same row. Value i comes from row my_row + i.",
            {"tile_a[my_row + i, k]": "tile_a[my_row, k]"},
        ),
        Wrong(
            "The columns of b begin at my_col, not at my_row.",
            {"tile_b[k, my_col + i]": "tile_b[k, my_row + i]"},
        ),
        Wrong(
            "tile_b has 8 rows of 128: k comes first, then the column.",
            {"tile_b[k, my_col + i]": "tile_b[my_col + i, k]"},
            "out-of-bounds",
        ),
        Wrong(
            "The assignment replaces what the earlier k have added. Accumulate with +=.",
            {"sums[i, j] += ": "sums[i, j] = "},
        ),
        Wrong(
            "A barrier between these loads makes all threads wait 64 times per tile. "
            "left and right are private to a thread, so nothing has to be synchronised here.",
            {"                right[i] =": "                cuda.syncthreads()\n                right[i] ="},
            "cost: barriers",
        ),
    ],
    hints=[
        "Which 16 values does a thread need for one k? Load them before you multiply.",
        "left[i] is row my_row + i of tile_a, right[j] is column my_col + j of tile_b.",
        "Two nested loops over i and j: sums[i, j] += left[i] * right[j].",
    ],
    why="Each of the 16 values is used eight times. It is the idea of the shared tile, one level further in.",
)


# -- 05-wide --------------------------------------------------------------------------------------------------------


def transpose(a):
    return np.ascontiguousarray(a.T)


def stacks(rng):
    for blocks in (1, 3):
        a = rng.standard_normal((128 * blocks, 8)).astype(np.float32)
        yield Case((a, Out((8, 128 * blocks))), blocks, 256, label=f"{128 * blocks} rows")


@cuda.jit
def my_columns(a, out):
    # HOLE 1 number: a pitch without bank conflicts, whose rows still begin at multiples of 16 bytes
    #| tile = cuda.shared.array((8, 128), np.float32, alignment=16)
    tile = cuda.shared.array((8, 132), np.float32, alignment=16)
    # END
    tid = cuda.threadIdx.x  # 256 threads for 128 rows of 8
    row = cuda.blockIdx.x * 128
    # HOLE about 4 lines: with one load4, load four neighbours of a row of a; store them below each other in the tile
    r, k = tid // 2, tid % 2 * 4  # two threads for each row
    w, x, y, z = load4(a, (row + r, k))
    tile[k, r], tile[k + 1, r] = w, x
    tile[k + 2, r], tile[k + 3, r] = y, z
    # END
    cuda.syncthreads()
    k, c = tid // 32, tid % 32 * 4  # a warp for each row of the tile
    w, x, y, z = load4(tile, (k, c))
    store4(out, (k, row + c), w, x, y, z)


WIDE = KernelExercise(
    "05-wide",
    task="Load rows by 16 bytes and store them as columns of a tile, without bank conflicts.",
    spec=transpose,
    cases=stacks,
    solutions=[
        my_columns,
        {
            "(8, 132)": "(8, 140)",
            "    tile[k, r], tile[k + 1, r] = w, x\n    tile[k + 2, r], tile[k + 3, r] = y, z\n": (
                "    values = w, x, y, z\n    for i in range(4):\n        tile[k + i, r] = values[i]\n"
            ),
        },
    ],
    limits={"global requests": 1.0, "global sectors": 1.0, "shared wavefronts": 1.0},
    wrong=[
        Wrong(
            "Lanes 0 and 1 store to rows 0 and 4. While four rows are a multiple of 32 words, both hit the same bank.",
            {"(8, 132)": "(8, 128)"},
            "cost: shared wavefronts",
        ),
        Wrong(
            "An odd pitch cures the conflict, but then row 1 does not begin at a multiple of 16 bytes, "
            "and load4 needs that.",
            {"(8, 132)": "(8, 129)"},
            "misaligned",
        ),
        Wrong(
            "Four loads of 4 bytes take four instructions. load4(a, (row + r, k)) loads the same with one.",
            {"load4(a, (row + r, k))": "a[row + r, k], a[row + r, k + 1], a[row + r, k + 2], a[row + r, k + 3]"},
            "cost: global requests",
        ),
        Wrong(
            "Neighbouring lanes load from different rows, so each touches half of a sector. "
            "Let lanes 0 and 1 share a row: r = tid // 2.",
            {"tid // 2, tid % 2 * 4": "tid % 128, tid // 128 * 4"},
            "cost: global sectors",
        ),
        Wrong(
            "The second thread of a row begins at column 4, not 1: each takes four neighbours.",
            {"tid % 2 * 4": "tid % 2"},
            "misaligned",
        ),
        Wrong(
            "The four values go next to each other, as they were. To transpose, put them into rows k to k + 3.",
            {
                "tile[k, r], tile[k + 1, r] = w, x": "tile[k, r], tile[k, r + 1] = w, x",
                "tile[k + 2, r], tile[k + 3, r] = y, z": "tile[k, r + 2], tile[k, r + 3] = y, z",
            },
            "race",
        ),
        Wrong("tile has 8 rows: k comes first, then r.", {"tile[k, r],": "tile[r, k],"}, "out-of-bounds"),
        Wrong(
            "The index is one argument, a tuple: load4(a, (row + r, k)).",
            {"load4(a, (row + r, k))": "load4(a, row + r, k)"},
            "does not compile",
        ),
        Wrong(
            "store4 puts the four values next to each other in one row. They belong below each other, so store them "
            "one by one.",
            {
                "    tile[k, r], tile[k + 1, r] = w, x\n    tile[k + 2, r], tile[k + 3, r] = y, z\n": (
                    "    store4(tile, (k, r), w, x, y, z)\n"
                )
            },
            "misaligned",
        ),
        Wrong("Every block loads the first 128 rows of a. Its own rows begin at row.", {"(row + r, k)": "(r, k)"}),
    ],
    hints=[
        "A row of a has 8 elements, so two threads can load it. Which row and which column does thread tid begin at?",
        "r, k = tid // 2, tid % 2 * 4, then w, x, y, z = load4(a, (row + r, k)).",
        "Rows k and k + 4 must begin in different banks, and the pitch must be a multiple of 4 words.",
    ],
    why="A pad of 4 words moves row k + 4 by 16 banks, so the 16 rows r of a request fill the other half of the banks.",
)


# -- 05-swizzle -----------------------------------------------------------------------------------------------------


def described(swizzle):
    """What becomes of the tile of `transposed` when element (k, r) goes to column swizzle(k, r) of row k."""
    places = [[int(swizzle(k, r)) for r in range(128)] for k in range(8)]
    banks = {places[t % 2 * 4][t // 2] % 32 for t in range(32)}  # lane t of the first store: k = 0 or 4, row t // 2
    quads = [row[first : first + 4] for row in places for first in range(0, 128, 4)]
    together = all(quad[0] % 4 == 0 and quad == list(range(quad[0], quad[0] + 4)) for quad in quads)
    own = sum(len({place for place in row if 0 <= place < 128}) for row in places)
    return (
        f"{len(banks)} banks, quads {'together' if together else 'torn'}, {own} of 1024 elements in places of their own"
    )


def swizzle(k, r):
    # HOLE 1 line: the column of element (k, r) in row k of the tile
    #| return r
    return r ^ 4 * k
    # END


SWIZZLE = FunctionExercise(
    "05-swizzle",
    task="Find a swizzle that spreads the stores of `transposed` over all banks and keeps quads together.",
    spec=lambda: "32 banks, quads together, 1024 of 1024 elements in places of their own",
    cases=lambda rng: iter((Case(()),)),
    call=described,
    solutions=[swizzle, {"r ^ 4 * k": "(r + k // 4 * 16) % 128"}],
    wrong=[
        Wrong(
            "A mask of 1, 2 or 3 tears neighbours apart, which load4 needs together. Only bits from 4 on may change.",
            {"4 * k": "k"},
        ),
        Wrong(
            "The columns of k = 0 and k = 4 are the same 16 banks again. One of the two must move to the other 16.",
            {"4 * k": "(k & 4)"},
        ),
        Wrong(
            "The last columns leave the row and overwrite the next one. Use an XOR, or wrap around at 128.",
            {"r ^ 4 * k": "r + 4 * k"},
        ),
        Wrong(
            "Columns wrap around at 128, the length of a row, not at 32, the number of banks.",
            {"r ^ 4 * k": "(r + 4 * k) % 32"},
        ),
        Wrong("All elements of a row go to one column. The column must depend on r as well.", {"r ^ 4 * k": "4 * k"}),
        Wrong(
            "Times 4 and wrapped around, four elements share a place. The columns of a row must be a permutation.",
            {"r ^ 4 * k": "(4 * r + k) % 128"},
        ),
        Wrong("A mask of 128 or more leaves the row.", {"4 * k": "32 * k"}),
        Wrong(
            "The last columns of rows 4 to 7 leave the row. Use an XOR, or wrap around at 128.",
            {"r ^ 4 * k": "r + k // 4 * 16"},
        ),
        Wrong(
            "Moved by k, a quad no longer begins at a multiple of 4. Move by a multiple of 4.",
            {"r ^ 4 * k": "(r + k) % 128"},
        ),
        Wrong(
            "A mirrored row reverses its quads, and load4 returns them in the wrong order.",
            {"r ^ 4 * k": "127 - r if k > 3 else r"},
        ),
    ],
    hints=[
        "The 32 lanes have r = 0 to 15, and k = 0 or 4. Where are the 16 banks that nobody uses?",
        "Row 4 has to move by 16 columns. The lowest two bits of r must stay, so that quads stay together.",
        "r ^ s with s = 0 for k = 0 and s = 16 for k = 4.",
    ],
    why="4 * k is a multiple of 4, so quads move as a whole; for k = 4 it is 16, so rows 0 and 4 use different halves.",
)


# -- 05-double ------------------------------------------------------------------------------------------------------


@cuda.jit
def my_double_buffered(a, b, out):
    tile_a = cuda.shared.array((2, 16, 16), np.float32)
    tile_b = cuda.shared.array((2, 16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    from_a, from_b = load_or_zero(a, row, tx), load_or_zero(b, ty, col)  # in flight: the values of step 0
    # HOLE about 9 lines: in each step store these to a pair of tiles, pass one barrier, start the next loads, multiply
    stage = 0
    for first in range(16, a.shape[1] + 16, 16):
        tile_a[stage, ty, tx] = from_a
        tile_b[stage, ty, tx] = from_b
        cuda.syncthreads()
        from_a, from_b = load_or_zero(a, row, first + tx), load_or_zero(b, first + ty, col)
        for k in range(16):
            total += tile_a[stage, ty, k] * tile_b[stage, k, tx]
        stage = 1 - stage
    # END
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


@cuda.jit
def double_buffered_in_place(a, b, out):
    tile_a = cuda.shared.array((2, 16, 16), np.float32)
    tile_b = cuda.shared.array((2, 16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    tile_a[0, ty, tx], tile_b[0, ty, tx] = load_or_zero(a, row, tx), load_or_zero(b, ty, col)
    cuda.syncthreads()
    for step in range(-(-a.shape[1] // 16)):
        this, other, first = step % 2, (step + 1) % 2, (step + 1) * 16
        next_a, next_b = load_or_zero(a, row, first + tx), load_or_zero(b, first + ty, col)
        for k in range(16):
            total += tile_a[this, ty, k] * tile_b[this, k, tx]
        tile_a[other, ty, tx], tile_b[other, ty, tx] = next_a, next_b
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


DOUBLE = KernelExercise(
    "05-double",
    task="Double-buffer the tiled product: next loads in flight during the products, and one barrier per step.",
    spec=product,
    cases=products((32, 16, 48, 16, (16, 16)), (20, 17, 40, 16, (16, 16)), (3, 2, 5, 16, (16, 16))),
    solutions=[my_double_buffered, double_buffered_in_place],
    limits={"barriers": 1.4, "global sectors": 1.0, "shared wavefronts": 1.2},
    wrong=[
        Wrong(
            "Without a barrier a thread multiplies values that its neighbours have not stored yet.",
            {"        cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "The stage never changes, so a fast thread overwrites the tile that a slow one still reads. "
            "The other pair has to take the next step's values.",
            {"        stage = 1 - stage\n": ""},
            "race",
        ),
        Wrong(
            "The first tiles are multiplied twice and the last ones never: "
            "during step 0 the loads must fetch the tiles of step 1.",
            {"range(16, a.shape[1] + 16, 16)": "range(0, a.shape[1], 16)"},
        ),
        Wrong(
            "The last tiles are loaded and never multiplied. There are as many steps as tiles.",
            {"a.shape[1] + 16": "a.shape[1]"},
        ),
        Wrong(
            "The stage changes before the multiplication, which then reads the pair that nobody has filled.",
            {
                "        stage = 1 - stage\n": "",
                "        cuda.syncthreads()\n": "        cuda.syncthreads()\n        stage = 1 - stage\n",
            },
            "uninitialised-read",
        ),
        Wrong(
            "Two barriers per step are what a single pair of tiles needs. If the next step stores to the other pair, "
            "which no thread reads any more, one is enough.",
            {"        stage = 1 - stage\n": "        stage = 1 - stage\n        cuda.syncthreads()\n"},
            "cost: barriers",
        ),
        Wrong(
            "The stage counts on, but there are only two pairs: 1 - stage, or stage % 2.",
            {"stage = 1 - stage": "stage += 1"},
            "out-of-bounds",
        ),
        Wrong(
            "All threads load the same element of the next tiles. Add tx to the column of a, ty to the row of b.",
            {"first + tx)": "first)", "first + ty, col)": "first, col)"},
        ),
        Wrong(
            "In the last step there are no next tiles: the loads run past the end of K. Use load_or_zero.",
            {"load_or_zero(a, row, first + tx)": "a[row, first + tx]"},
            "out-of-bounds",
        ),
        Wrong(
            "The barrier comes before the stores, so nothing separates them from the reads after them.",
            {
                "        cuda.syncthreads()\n": "",
                "        tile_a[stage, ty, tx] = from_a\n": (
                    "        cuda.syncthreads()\n        tile_a[stage, ty, tx] = from_a\n"
                ),
            },
            "race",
        ),
    ],
    hints=[
        "The two values wait in registers. The loop stores them to tiles, and loads the next ones into them.",
        "In a step: store to pair `stage`, barrier, load the next values, multiply pair `stage`, switch the stage.",
        "for first in range(16, a.shape[1] + 16, 16): the values loaded in a step begin at column first.",
    ],
    why=(
        "Between the stores of two steps to the same pair lies the barrier of the step in between, so one is enough. "
        "A trace cannot see whether the loads come before the products; a clock can."
    ),
)

EXERCISES = [ENOUGH, COLUMN, SQUARE, WIDE, SWIZZLE, DOUBLE]
