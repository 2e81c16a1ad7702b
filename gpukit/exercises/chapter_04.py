"""Exercises of chapter 04, bank conflicts."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, FunctionExercise, KernelExercise, Out, Wrong

# -- 04-strides -----------------------------------------------------------------------------------------------------

PREDICTED = (3, 8, 24, 32, 33, 0)


def busiest_bank(words):
    """Count the different words that a request wants from its busiest bank."""
    return max(np.bincount(np.unique(words) % 32))


STRIDES = AnswerExercise(
    "04-strides",
    task="Predict the wavefronts for strides of 3, 8, 24, 32, 33 and 0 words, as a list of six numbers.",
    spec=lambda: [int(busiest_bank(np.arange(32) * stride)) for stride in PREDICTED],
    wrong=[
        Wrong(
            "With a stride of 0 all lanes want the same word, and one wavefront sends it to all of them.",
            [1, 8, 8, 32, 1, 32],
        ),
        Wrong(
            "Nothing is moved for lanes without a conflict, but the request still takes one wavefront; "
            "these are the conflicts.",
            [0, 7, 7, 31, 0, 0],
        ),
        Wrong(
            "With a stride of 0 the lanes stay where they are, but they get their word, and that takes a wavefront.",
            [1, 8, 8, 32, 1, 0],
        ),
        Wrong(
            "That is how many banks each request uses; count the words that the busiest of them has to serve.",
            [32, 4, 4, 1, 32, 1],
        ),
        Wrong(
            "The stride is not the count: with an odd one the lanes pass through all 32 banks before any bank "
            "comes a second time.",
            [3, 8, 24, 32, 33, 0],
        ),
        Wrong(
            "With a stride of 24 lanes 0, 4, 8, ... meet in bank 0, since 4 times 24 is a multiple of 32: eight words.",
            [1, 8, 24, 32, 1, 1],
        ),
        Wrong(
            "A stride of 32 brings every lane back to bank 0. One more word, 33, moves each lane on by a bank.",
            [1, 8, 8, 1, 32, 1],
        ),
    ],
    hints=[
        "Lane i wants word i * stride, which is in bank (i * stride) % 32. Write the banks of lanes 0, 1, 2, ... down.",
        "After how many lanes does a bank come again? 32 lanes divided by that is the number of wavefronts.",
        "The greatest common divisor of the stride and 32; but with a stride of 0 the words are all the same.",
    ],
    why="Lanes meet in a bank when stride * (i - j) is a multiple of 32: gcd(stride, 32) lanes in each. "
    "Stride 0 is a broadcast.",
)


# -- 04-wavefronts --------------------------------------------------------------------------------------------------


def requests(rng):
    lanes = np.arange(32)
    for stride in (1, 2, 6, 32, 33, 0):
        yield Case((lanes * stride,), label=f"words {stride} apart")
    yield Case((lanes // 2 * 2 + 64,), label="two lanes for each word")
    yield Case((lanes % 16 * 17 + lanes // 16,), label="two columns of a tile with rows of 17")
    yield Case((np.where(lanes < 24, lanes, 32 * lanes),), label="eight lanes in bank 0, the others in their own")
    yield Case((rng.permutation(64)[:32],), label="random words below 64")
    yield Case((rng.integers(0, 4096, 32),), label="random words below 4096")


def wavefronts(words):
    """Count the wavefronts of one request. ``words``: an array of 32 ints, the word that each lane wants."""
    # HOLE about 3 lines: each wavefront serves one word per bank, so count the different words of the busiest bank
    different = np.unique(words)
    words_of_bank = np.bincount(different % 32)
    return int(words_of_bank.max())
    # END


def wavefronts_by_sets(words):
    wanted = {bank: set() for bank in range(32)}
    for word in words:
        wanted[word % 32].add(int(word))
    return max(len(different) for different in wanted.values())


WAVEFRONTS = FunctionExercise(
    "04-wavefronts",
    task="Count the wavefronts of one request to shared memory.",
    spec=lambda words: int(busiest_bank(words)),
    cases=requests,
    solutions=[wavefronts, wavefronts_by_sets],
    wrong=[
        Wrong(
            "This counts lanes per bank. Lanes that want the same word share it: count different words.",
            {"np.unique(words)": "words"},
        ),
        Wrong(
            "These are the conflicts; the first word of the busiest bank takes a wavefront too.",
            {"int(words_of_bank.max())": "int(words_of_bank.max()) - 1"},
        ),
        Wrong(
            "Words that follow one another lie in different banks: the bank is the remainder by 32, not the quotient.",
            {"different % 32": "different // 32"},
        ),
        Wrong(
            "These are the banks in use. The time is set by the busiest of them.",
            {"words_of_bank.max()": "np.count_nonzero(words_of_bank)"},
        ),
        Wrong(
            "An average hides the busiest bank, for which all others have to wait.",
            {
                "int(words_of_bank.max())": "int(np.ceil(different.size / np.count_nonzero(words_of_bank)))",
            },
        ),
        Wrong(
            "The words are numbered, not their bytes: word x is in bank x % 32.",
            {"different % 32": "different * 4 % 32"},
        ),
        Wrong(
            "The divisor of the stride is right for lanes at even distances only; words can lie anywhere.",
            {"int(words_of_bank.max())": "max(1, int(np.gcd(words[1] - words[0], 32)) if different.size > 1 else 1)"},
        ),
        Wrong(
            "Banks work side by side, so their conflicts do not add up: take the maximum, not the sum.",
            {"words_of_bank.max()": "1 + np.maximum(words_of_bank - 1, 0).sum()"},
        ),
    ],
    hints=[
        "Word x is in bank x % 32.",
        "np.unique(words) leaves every word once: lanes that want the same word are served together.",
        "np.bincount(banks) counts how often each bank occurs; the largest of these counts is the answer.",
    ],
    why="All banks work at the same time, so the request takes as long as its busiest bank, "
    "which serves one word per wavefront.",
)


# -- 04-pad ---------------------------------------------------------------------------------------------------------


def products(a, b):
    return a @ b


def tiles_of_16(rng, *sizes):
    for m, n, k in sizes:
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        yield Case((a, b, Out((m, n))), (m // 16, n // 16), (16, 16), label=f"{m} x {k} times {k} x {n}")


@cuda.jit
def padded(a, b, out):
    # HOLE about 2 lines: declare tile_a and tile_b, 16 rows of 16 float32 each, with a pad
    #| tile_a = ...
    #| tile_b = ...
    tile_a = cuda.shared.array((16, 18), np.float32)
    tile_b = cuda.shared.array((16, 18), np.float32)
    # END
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[tx, ty] = a[row, first + ty]
        tile_b[tx, ty] = b[first + tx, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k] * tile_b[k, ty]
        cuda.syncthreads()
    out[row, col] = total


@cuda.jit
def swizzled(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[tx, ty ^ tx] = a[row, first + ty]
        tile_b[tx, ty ^ tx] = b[first + tx, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k ^ tx] * tile_b[k, ty ^ k]
        cuda.syncthreads()
    out[row, col] = total


def declared(a, b, dtype="float32"):
    """The edit that declares other tiles."""
    line = "tile_{} = cuda.shared.array({}, np.{})"
    return {
        line.format(name, (16, 18), "float32"): line.format(name, shape, dtype) for name, shape in (("a", a), ("b", b))
    }


PAD = KernelExercise(
    "04-pad",
    task="Pad the tiles of a product so that no access to shared memory has a bank conflict.",
    spec=products,
    cases=lambda rng: tiles_of_16(rng, (16, 16, 16), (32, 48, 16), (16, 32, 48)),
    solutions=[padded, swizzled],
    limits={"bank conflicts": 1.0},
    wrong=[
        Wrong(
            "An odd row length keeps one column free of conflicts. But a warp of this block covers two columns, "
            "and the second is the first shifted by one bank, so the two collide.",
            declared((16, 17), (16, 17)),
            "cost: bank conflicts",
        ),
        Wrong(
            "Every other row still begins in the same bank, so a column lies in two banks. "
            "A pad makes rows longer: it belongs in the second number.",
            declared((18, 16), (18, 16)),
            "cost: bank conflicts",
        ),
        Wrong(
            "tile_a is free of conflicts now; the stores to tile_b walk down a column as well.",
            declared((16, 18), (16, 16)),
            "cost: bank conflicts",
        ),
        Wrong(
            "tile_b is free of conflicts now; tile_a has most of them, in the loop over k.",
            declared((16, 16), (16, 18)),
            "cost: bank conflicts",
        ),
        Wrong(
            "Rows of 20 put a column into every fourth bank, so rows 0 and 8 meet. "
            "Which pad reaches 16 banks with 16 rows?",
            declared((16, 20), (16, 20)),
            "cost: bank conflicts",
        ),
        Wrong(
            "Rows of 32 words all begin in bank 0: the worst there is.",
            declared((16, 32), (16, 32)),
            "cost: bank conflicts",
        ),
        Wrong(
            "A pad makes rows longer, never shorter: a row has 16 elements.",
            declared((16, 15), (16, 15)),
            "out-of-bounds",
        ),
        Wrong(
            "float64 elements take two banks each, and half as many lanes are served at a time. The data is float32.",
            declared((16, 16), (16, 16), "float64"),
            "cost: bank conflicts",
        ),
    ],
    hints=[
        "Lane i has tx = i % 16 and ty = i // 16, so with rows of p words it stores to bank (tx * p + ty) % 32.",
        "Lanes 0 to 15 must reach 16 different banks, and lanes 16 to 31, one word further on, the 16 banks between.",
        "tx * p should be all the even banks: p = 16 + 2.",
    ],
    why="A warp covers two columns of the tile at a time, so its rows must be two banks apart: the first column takes "
    "the even banks, the second the odd ones.",
)


# -- 04-along-rows --------------------------------------------------------------------------------------------------


@cuda.jit
def along_rows(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        # HOLE about 2 lines: fill the same tiles, but let neighbouring lanes read neighbouring elements of a and b
        #| tile_a[tx, ty] = a[row, first + ty]
        #| tile_b[tx, ty] = b[first + tx, col]
        tile_a[ty, tx] = a[cuda.blockIdx.x * 16 + ty, first + tx]
        tile_b[ty, tx] = b[first + ty, cuda.blockIdx.y * 16 + tx]
        # END
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k] * tile_b[k, ty]
        cuda.syncthreads()
    out[row, col] = total


@cuda.jit
def along_rows_by_difference(a, b, out):
    tile_a = cuda.shared.array((16, 18), np.float32)
    tile_b = cuda.shared.array((16, 18), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row - tx + ty, first + tx]
        tile_b[ty, tx] = b[first + ty, col - ty + tx]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k] * tile_b[k, ty]
        cuda.syncthreads()
    out[row, col] = total


ALONG_ROWS = KernelExercise(
    "04-along-rows",
    task="Let warps read both matrices along their rows, and leave the rest of the kernel as it is.",
    spec=products,
    cases=lambda rng: tiles_of_16(rng, (16, 16, 16), (32, 48, 16), (16, 32, 48)),
    solutions=[along_rows, along_rows_by_difference],
    limits={"global load sectors": 1.0},
    wrong=[
        Wrong(
            "One of the two matrices is still read down its columns: lanes next to each other take rows next to "
            "each other.",
            {"tile_b[ty, tx] = b[first + ty, cuda.blockIdx.y * 16 + tx]": "tile_b[tx, ty] = b[first + tx, col]"},
            "cost: global load sectors",
        ),
        Wrong(
            "The tiles are transposed, because tx and ty were exchanged on one side of the assignment only. "
            "Element (r, c) of a tile comes from its row r and column c.",
            {"tile_a[ty, tx]": "tile_a[tx, ty]", "tile_b[ty, tx]": "tile_b[tx, ty]"},
        ),
        Wrong(
            "The loads follow the rows of a and b now, and the stores put the values elsewhere: "
            "what comes from row ty of the block's tile belongs in tile[ty, tx].",
            {
                "tile_a[ty, tx] = a[cuda.blockIdx.x * 16 + ty, first + tx]": "tile_a[tx, ty] = a[row, first + tx]",
                "tile_b[ty, tx] = b[first + ty, cuda.blockIdx.y * 16 + tx]": "tile_b[tx, ty] = b[first + ty, col]",
            },
        ),
        Wrong(
            "Exchanging row and col moves the result too. Leave them as they are, and build the indices of the loads "
            "from blockIdx.",
            {
                "row, col = cuda.grid(2)": "col, row = cuda.grid(2)",
                "a[cuda.blockIdx.x * 16 + ty, first + tx]": "a[row, first + tx]",
                "b[first + ty, cuda.blockIdx.y * 16 + tx]": "b[first + ty, col]",
            },
            "out-of-bounds",
        ),
        Wrong(
            "row and col contain tx and ty as they were: row is blockIdx.x * 16 + tx. Build the new row from ty, "
            "and the new column from tx.",
            {"cuda.blockIdx.x * 16 + ty": "row", "cuda.blockIdx.y * 16 + tx": "col"},
        ),
        Wrong(
            "The blocks have not changed places: rows of out still go along blockIdx.x, columns along blockIdx.y.",
            {"a[cuda.blockIdx.x": "a[cuda.blockIdx.y", "ty, cuda.blockIdx.y": "ty, cuda.blockIdx.x"},
        ),
        Wrong(
            "Every block loads the tiles of the first one: the start of the block is missing.",
            {"cuda.blockIdx.x * 16 + ty": "ty", "cuda.blockIdx.y * 16 + tx": "tx"},
        ),
        Wrong(
            "Every step loads the first tile again: first has to be added to the column of a and the row of b.",
            {"first + tx]": "tx]", "[first + ty": "[ty"},
        ),
        Wrong(
            "The indices of a and b are exchanged: a[row, k] and b[k, col], with k from first on.",
            {
                "a[cuda.blockIdx.x * 16 + ty, first + tx]": "a[first + tx, cuda.blockIdx.x * 16 + ty]",
                "b[first + ty, cuda.blockIdx.y * 16 + tx]": "b[cuda.blockIdx.y * 16 + tx, first + ty]",
            },
        ),
    ],
    hints=[
        "threadIdx.x runs fastest through a warp, so tx must be in the last index of a and of b.",
        "Thread (tx, ty) may load any element, as long as the block together loads the same 16 x 16.",
        "tile_a[ty, tx] = a[the block's first row + ty, first + tx], where that first row is cuda.blockIdx.x * 16.",
    ],
    why="Who loads an element and who uses it need not be the same thread: that is what the barrier is for. "
    "So loads can follow memory, whatever the sums do.",
)


# -- 04-swizzle -----------------------------------------------------------------------------------------------------


def matrices(rng):
    for m, n in ((16, 16), (48, 32), (16, 64)):
        a = rng.standard_normal((m, n)).astype(np.float32)
        yield Case((a, Out((n, m))), (n // 16, m // 16), (16, 16), label=f"{m} x {n}")


@cuda.jit
def turn(a, out):
    tile = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    # HOLE about 2 lines to change: swizzle the columns of the tile, in the store and in the load
    #| tile[ty, tx] = a[row, col]
    #| cuda.syncthreads()
    #| out[cuda.blockIdx.x * 16 + ty, cuda.blockIdx.y * 16 + tx] = tile[tx, ty]
    tile[ty, tx ^ ty] = a[row, col]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 16 + ty, cuda.blockIdx.y * 16 + tx] = tile[tx, ty ^ tx]
    # END


@cuda.jit
def turn_by_rotation(a, out):
    tile = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    tile[ty, (tx + ty) % 16] = a[row, col]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 16 + ty, cuda.blockIdx.y * 16 + tx] = tile[tx, (ty + tx) % 16]


SWIZZLE = KernelExercise(
    "04-swizzle",
    task="Transpose with tiles of 16 x 16 and without a bank conflict.",
    spec=lambda a: a.T,
    cases=matrices,
    solutions=[turn, turn_by_rotation],
    limits={"bank conflicts": 1.0, "global sectors": 1.0},
    wrong=[
        Wrong(
            "Only one of store and load is swizzled, so the load fetches other elements. "
            "Both must agree on where element (r, c) lies.",
            {"tile[tx, ty ^ tx]": "tile[tx, ty]"},
        ),
        Wrong(
            "This moves elements to other rows. The load still finds a column in two banks; "
            "leave the row, and change the column.",
            {"tile[ty, tx ^ ty]": "tile[ty ^ tx, tx]", "tile[tx, ty ^ tx]": "tile[tx ^ ty, ty]"},
            "cost: bank conflicts",
        ),
        Wrong(
            "With rows of 17 the store and the load still meet in one bank each: a warp takes two rows, or columns, "
            "at a time. No pad serves both; change the columns instead.",
            {"(16, 16)": "(16, 17)", "tx ^ ty": "tx", "ty ^ tx": "ty"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Either the store of two rows or the load of two columns still meets in some banks. "
            "No pad serves both: let the column of element (r, c) be c ^ r.",
            {"(16, 16)": "(16, 18)", "tx ^ ty": "tx", "ty ^ tx": "ty"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Without the barrier a thread may read an element that another one has not stored yet.",
            {"    cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "Here memory does the transposing: a warp writes down columns of out. Write along its rows, "
            "and turn the tile instead.",
            {
                "out[cuda.blockIdx.x * 16 + ty, cuda.blockIdx.y * 16 + tx] = tile[tx, ty ^ tx]": (
                    "out[col, row] = tile[ty, tx ^ ty]"
                )
            },
            "cost: global sectors",
        ),
        Wrong(
            "The tile is turned and the blocks are not: block (x, y) of a becomes block (y, x) of out.",
            {"cuda.blockIdx.x * 16 + ty, cuda.blockIdx.y * 16 + tx": "row, col"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "Element (r, c) goes to column c ^ r of row r. What are r and c in the store, and what in the load?",
        "In the store the row is ty and the column tx; in the load the row is tx and the column ty.",
        "tile[ty, tx ^ ty] = ... and ... = tile[tx, ty ^ tx]",
    ],
    why="A pad that frees the store must put two rows 16 banks apart, and then a column lies in two banks. "
    "A swizzle leaves the rows where they are and orders each of them differently.",
)


# -- 04-tile --------------------------------------------------------------------------------------------------------


def wavefronts_of_column_stores(tile, pad):
    tid = np.arange(tile * tile)
    words = tid % tile * (tile + pad) + tid // tile
    return sum(int(busiest_bank(words[first : first + 32])) for first in range(0, tile * tile, 32))


def tiles(rng):
    for tile, pad in ((16, 0), (16, 1), (16, 2), (32, 1), (8, 4), (24, 0), (24, 1), (20, 1), (12, 4), (5, 0)):
        yield Case((tile, pad), label=f"tile {tile}, pad {pad}")


def wavefronts_of_tile(tile, pad):
    """Count the wavefronts in which a block of tile x tile threads stores: thread (tx, ty) to row tx, column ty."""
    # HOLE about 6 lines: for each warp of the block, find the word of each of its threads, and add up its wavefronts
    total = 0
    for first in range(0, tile * tile, 32):
        threads = np.arange(first, min(first + 32, tile * tile))
        tx, ty = threads % tile, threads // tile
        words = np.unique(tx * (tile + pad) + ty)
        total += int(np.bincount(words % 32).max())
    return total
    # END


def wavefronts_of_tile_by_loops(tile, pad):
    wanted = {}
    for thread in range(tile * tile):
        word = thread % tile * (tile + pad) + thread // tile
        wanted.setdefault(thread // 32, []).append(word % 32)
    return sum(max(banks.count(bank) for bank in banks) for banks in wanted.values())


TILE = FunctionExercise(
    "04-tile",
    task="Count the wavefronts in which a block stores a tile column by column, for any tile and pad.",
    spec=wavefronts_of_column_stores,
    cases=tiles,
    solutions=[wavefronts_of_tile, wavefronts_of_tile_by_loops],
    wrong=[
        Wrong(
            "This is the first warp alone; add up all of them.",
            {"range(0, tile * tile, 32)": "range(0, 32, 32)"},
        ),
        Wrong(
            "This multiplies the first warp by the number of warps. In a tile whose width does not divide 32 "
            "warps begin in the middle of a row, and differ.",
            {"range(0, tile * tile, 32)": "[0] * -(-tile * tile // 32)"},
        ),
        Wrong(
            "The last warp of a block may be a part of one. Its missing threads store nothing.",
            {"min(first + 32, tile * tile)": "first + 32"},
        ),
        Wrong(
            "tx and ty are exchanged: thread (tx, ty) goes to row tx, so a row's length multiplies tx.",
            {"tx * (tile + pad) + ty": "ty * (tile + pad) + tx"},
        ),
        Wrong(
            "The pad is missing in the length of a row, which is tile + pad words.",
            {"tx * (tile + pad) + ty": "tx * tile + ty"},
        ),
        Wrong(
            "A warp is 32 threads in a row of numbers, x fastest, not a row of the block.",
            {
                "range(0, tile * tile, 32)": "range(0, tile * tile, tile)",
                "min(first + 32, tile * tile)": "first + tile",
            },
        ),
        Wrong(
            "Whole warps only: the threads that are left after the last multiple of 32 are a warp too.",
            {"range(0, tile * tile, 32)": "range(0, tile * tile - 31, 32)"},
        ),
    ],
    hints=[
        "Thread number t of the block has tx = t % tile and ty = t // tile; warp w has threads 32 w to 32 w + 31.",
        "Thread (tx, ty) stores to word tx * (tile + pad) + ty.",
        "For each warp: the count of 04-wavefronts. The last warp may have fewer than 32 threads.",
    ],
    why="Warps are alike only if they begin at the start of a row. With tiles of 24 they begin at column 0, 8 or 16, "
    "so three kinds of warps must be counted.",
)

EXERCISES = [STRIDES, WAVEFRONTS, PAD, ALONG_ROWS, SWIZZLE, TILE]
