"""Exercises of chapter 03, shared memory."""

from dataclasses import replace

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, KernelExercise, Out, Wrong
from warpstep.integers import ceil_div


def product(a, b):
    return (a.astype(np.float64) @ b).astype(np.float32)


def products(rng, shapes, tile=16, shared_bytes=0):
    """Cases of a @ b; the cost is counted where the tiles are full."""
    for m, k, n in shapes:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        grid = ceil_div(n, tile), ceil_div(m, tile)
        full = all(size % tile == 0 for size in (m, k, n))
        label = f"{m} x {k} by {k} x {n}"
        yield Case((a, b, Out((m, n))), grid, (tile, tile), shared_bytes, label, counted=full)


# -- 03-rank --------------------------------------------------------------------------------------------------------


def ranks(x):
    blocks = x.reshape(-1, 64)
    return (blocks[:, None, :] < blocks[:, :, None]).sum(2).astype(np.int32).reshape(-1)


def blocks_of_values(rng):
    yield Case((rng.standard_normal(64).astype(np.float32), Out(64, np.int32)), 1, 64, label="one block")
    yield Case((rng.standard_normal(320).astype(np.float32), Out(320, np.int32)), 5, 64, label="five blocks")
    x = rng.integers(0, 9, 128).astype(np.float32)
    yield Case((x, Out(128, np.int32)), 2, 64, label="values that occur several times")


@cuda.jit
def rank(x, out):
    values = cuda.shared.array(64, np.float32)  # the block has 64 threads
    i, tid = cuda.grid(1), cuda.threadIdx.x
    smaller = 0
    # HOLE about 5 lines: put x[i] into shared memory; wait for the block; count the smaller values
    values[tid] = x[i]
    cuda.syncthreads()
    for k in range(64):
        if values[k] < values[tid]:
            smaller += 1
    # END
    out[i] = smaller


@cuda.jit
def rank_without_branch(x, out):
    values = cuda.shared.array(64, np.float32)
    tid = cuda.threadIdx.x
    first = cuda.blockIdx.x * cuda.blockDim.x
    mine = x[first + tid]
    values[tid] = mine
    cuda.syncthreads()
    smaller = 0
    for other in values:
        smaller += other < mine
    out[first + tid] = smaller


RANK = KernelExercise(
    "03-rank",
    task="For each value, count the smaller values of its block; read each value from global memory only once.",
    spec=ranks,
    cases=blocks_of_values,
    solutions=[rank, rank_without_branch],
    limits={"global sectors": 1.0, "barriers": 4.0},
    wrong=[
        Wrong(
            "This is right, but each turn of the loop reads x[i] from global memory again. "
            "The same value is in values[tid]; or keep it in a variable.",
            {"values[k] < values[tid]": "values[k] < x[i]"},
            "cost: global sectors",
        ),
        Wrong(
            "This is right, but the threads wait 64 times. Nothing is stored any more after the first barrier.",
            {"    cuda.syncthreads()\n    for k in range(64):": "    for k in range(64):\n        cuda.syncthreads()"},
            "cost: barriers",
        ),
        Wrong(
            "This counts the values to the left of the thread's own. The rank depends on all 64.",
            {"range(64)": "range(tid)"},
        ),
        Wrong(
            "One warp may reach the loop before the other has stored its values. "
            "cuda.syncthreads() between the store and the loop makes both wait.",
            {"    cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "cuda.syncwarp() waits for the 32 threads of one warp; this block has two warps. Use cuda.syncthreads().",
            {"syncthreads": "syncwarp"},
            "race",
        ),
        Wrong(
            "This is right, but each thread reads 64 values from global memory; count in the array `values` instead.",
            {"values[k] < values[tid]": "x[i - tid + k] < x[i]"},
            "cost: global sectors",
        ),
        Wrong(
            "Shared memory belongs to the block, so `values` has one place for each of its threads: index it with tid.",
            {"values[tid] = x[i]": "values[i] = x[i]"},
            "out-of-bounds",
        ),
        Wrong(
            "threadIdx counts within the block, so every block ranks the first 64 values. Load x[i].",
            {"values[tid] = x[i]": "values[tid] = x[tid]"},
        ),
        Wrong("Equal values are not smaller: compare with <, not with <=.", {"[k] < values": "[k] <= values"}),
        Wrong("This counts the larger values.", {"values[k] < values[tid]": "values[k] > values[tid]"}),
        Wrong(
            "A block has 64 values; the loop looks at 32, those of one warp.",
            {"range(64)": "range(32)"},
        ),
        Wrong(
            "A local array is private: each thread has its own, and nobody else writes into it. "
            "The threads of a block meet in cuda.shared.array.",
            {"cuda.shared.array": "cuda.local.array"},
            "uninitialised-read",
        ),
    ],
    hints=[
        "Each thread loads one value, its own. After that the block has all 64 of them in `values`.",
        "Which index of `values` belongs to this thread: i counts in the grid, tid in the block.",
        "values[tid] = x[i], then cuda.syncthreads(), then a loop over range(64): is values[k] < values[tid]?",
    ],
    why="Every value is loaded once and used 64 times. The barrier makes all of them visible to the whole block.",
)


# -- 03-reads -------------------------------------------------------------------------------------------------------

READS = AnswerExercise(
    "03-reads",
    task="Predict how often a[0, 0] is read from global memory: by the naive kernel, and with tiles of 16 x 16.",
    spec=lambda: (37, ceil_div(37, 16)),
    variable="my_reads",
    wrong=[
        Wrong("a[0, 0] is needed for all elements of row 0 of the result, and that has as many columns as b.", (45, 3)),
        Wrong("That is right for full tiles; the last column of blocks is not full, and loads the value too.", (37, 2)),
        Wrong("A block reads the value once. Only the blocks of the first row of the grid need it.", (37, 9)),
        Wrong("Each block loads the value once for all of its threads: count blocks, not threads.", (37, 37)),
        Wrong("These are the right numbers in the other order: first the naive kernel, then the tiles.", (3, 37)),
        Wrong("K is how many values one thread reads of its row. How many threads read the same row?", (53, 4)),
    ],
    hints=[
        "Which elements of the result does a[0, 0] contribute to?",
        "All of row 0: as many as b has columns. With tiles, one load serves 16 of them.",
    ],
    why="a[0, 0] belongs to row 0 of the result. It has one thread per column of b, and one block per 16 columns.",
)


# -- 03-tiled -------------------------------------------------------------------------------------------------------


def shapes_for_tiles(rng):
    yield from products(rng, [(32, 64, 48), (45, 53, 37), (1, 1, 1), (5, 40, 7)])


@cuda.jit
def tiled(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):  # the column of a, and row of b, where this step's tiles begin
        # HOLE about 6 lines: load one value of each tile, np.float32(0) outside; wait; add 16 products to total; wait
        tile_a[ty, tx] = a[row, first + tx] if row < a.shape[0] and first + tx < a.shape[1] else np.float32(0)
        tile_b[ty, tx] = b[first + ty, col] if first + ty < b.shape[0] and col < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
        # END
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


@cuda.jit
def tiled_by_nearest(a, b, out):
    """Outside of the matrices, load the nearest element, and leave its products out."""
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    depth = a.shape[1]
    for first in range(0, depth, 16):
        tile_a[ty, tx] = a[min(row, a.shape[0] - 1), min(first + tx, depth - 1)]
        tile_b[ty, tx] = b[min(first + ty, depth - 1), min(col, b.shape[1] - 1)]
        cuda.syncthreads()
        for k in range(min(16, depth - first)):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


LOAD_A = "a[row, first + tx] if row < a.shape[0] and first + tx < a.shape[1] else np.float32(0)"
LOAD_B = "b[first + ty, col] if first + ty < b.shape[0] and col < b.shape[1] else np.float32(0)"

TILED = KernelExercise(
    "03-tiled",
    task="Multiply two matrices of any size by tiles of 16 x 16 in shared memory.",
    spec=product,
    cases=shapes_for_tiles,
    solutions=[tiled, tiled_by_nearest],
    limits={"global sectors": 1.0, "shared wavefronts": 1.0, "barriers": 1.0},
    wrong=[
        Wrong(
            "A thread may multiply before others have loaded their values: a barrier belongs after the loads.",
            {
                "np.float32(0)\n        cuda.syncthreads()\n        for": "np.float32(0)\n        for",
            },
            "race",
        ),
        Wrong(
            "A fast thread may load the next tiles while a slow one still multiplies this one: "
            "a second barrier belongs after the products.",
            {"tile_b[k, tx]\n        cuda.syncthreads()\n": "tile_b[k, tx]\n"},
            "race",
        ),
        Wrong(
            "The last tiles extend beyond the matrices. Load 0 there, which adds nothing to the sum.",
            {LOAD_A: "a[row, first + tx]", LOAD_B: "b[first + ty, col]"},
            "out-of-bounds",
        ),
        Wrong(
            "The rows and columns of the result are guarded, but K is not: the last tiles extend beyond it too.",
            {" and first + tx < a.shape[1]": "", "first + ty < b.shape[0] and ": ""},
            "out-of-bounds",
        ),
        Wrong(
            "Threads outside of the result have to load too: those that have left leave gaps in the tiles.",
            {
                "    total = np.float32(0)\n": "    if row >= out.shape[0] or col >= out.shape[1]:\n        return\n"
                "    total = np.float32(0)\n"
            },
            "uninitialised-read",
        ),
        Wrong(
            "Where the guard fails nothing is stored, and the tile keeps what it had before. Store 0 there.",
            {
                f"tile_a[ty, tx] = {LOAD_A}": "if row < a.shape[0] and first + tx < a.shape[1]:\n"
                "            tile_a[ty, tx] = a[row, first + tx]",
                f"tile_b[ty, tx] = {LOAD_B}": "if first + ty < b.shape[0] and col < b.shape[1]:\n"
                "            tile_b[ty, tx] = b[first + ty, col]",
            },
            "uninitialised-read",
        ),
        Wrong(
            "The tile of b is transposed, in the store or in the product: the store is tile_b[ty, tx], "
            "the product tile_a[ty, k] * tile_b[k, tx].",
            {"tile_b[k, tx]": "tile_b[tx, k]"},
        ),
        Wrong(
            "Both tiles are stored transposed: the store is tile_a[ty, tx] and tile_b[ty, tx].",
            {"tile_a[ty, tx] =": "tile_a[tx, ty] =", "tile_b[ty, tx] =": "tile_b[tx, ty] ="},
        ),
        Wrong(
            "This is right, but neighbouring lanes store 16 words apart and meet in two banks. "
            "Give the tiles the layout of the matrices: store to [ty, tx].",
            {
                "tile_a[ty, tx] =": "tile_a[tx, ty] =",
                "tile_b[ty, tx] =": "tile_b[tx, ty] =",
                "tile_a[ty, k] * tile_b[k, tx]": "tile_a[k, ty] * tile_b[tx, k]",
            },
            "cost: shared wavefronts",
        ),
        Wrong(
            "This is right, but it is the naive kernel: nothing goes through the tiles. "
            "Load one value of each, wait, and multiply what is in the tiles.",
            {
                f"tile_a[ty, tx] = {LOAD_A}\n        tile_b[ty, tx] = {LOAD_B}\n        cuda.syncthreads()\n"
                "        for k in range(16):\n            total += tile_a[ty, k] * tile_b[k, tx]\n"
                "        cuda.syncthreads()\n": (
                    "for k in range(first, min(first + 16, a.shape[1])):\n"
                    "            if row < a.shape[0] and col < b.shape[1]:\n"
                    "                total += a[row, k] * b[k, col]\n"
                )
            },
            "cost: global sectors",
        ),
        Wrong(
            "The tile of a is loaded from the same columns at every step: add `first`.",
            {LOAD_A: LOAD_A.replace("first + tx", "tx")},
        ),
        Wrong(
            "This is right, but loads again what is in the tiles already: multiply tile_a by tile_b.",
            {
                "for k in range(16):\n            total += tile_a[ty, k] * tile_b[k, tx]": "for k in range(first, "
                "min(first + 16, a.shape[1])):\n            if row < a.shape[0] and col < b.shape[1]:\n"
                "                total += a[row, k] * b[k, col]"
            },
            "cost: global sectors",
        ),
        Wrong(
            "This waits after every product. Two barriers per step are enough: after the loads, and after the loop.",
            {"tile_b[k, tx]\n        cuda": "tile_b[k, tx]\n            cuda"},
            "cost: barriers",
        ),
    ],
    hints=[
        "This thread's element of the tile of a is in row `row` and column first + tx; that of b in row first + ty and "
        "column `col`.",
        "tile_a[ty, tx] = a[row, first + tx] if (inside of a) else np.float32(0), and likewise for b. A barrier.",
        "for k in range(16): total += tile_a[ty, k] * tile_b[k, tx]. Then one more barrier, since the next "
        "step overwrites the tiles.",
    ],
    why="Each value is loaded by one thread and used by 16. The first barrier completes the tiles; the second\n"
    "protects them until all threads have used them. Zeros outside of the matrices leave the sums as they are.",
)


# -- 03-cut ---------------------------------------------------------------------------------------------------------


def launches_with_buffers(rng):
    yield from products(rng, [(32, 48, 64), (17, 33, 20)], 16, 2 * 16 * 16 * 4)
    yield from products(rng, [(9, 24, 11), (1, 3, 1)], 8, 2 * 8 * 8 * 4)
    yield from products(rng, [(32, 32, 32)], 32, 2 * 32 * 32 * 4)


@cuda.jit
def dynamic(a, b, out):
    buffer = cuda.shared.array(0, np.float32)  # as many bytes as the launch gives
    tile = cuda.blockDim.x
    # HOLE about 2 lines: slice the buffer: tile_a is its first tile * tile elements, tile_b the rest
    #| tile_a = tile_b = buffer
    tile_a = buffer[: tile * tile]
    tile_b = buffer[tile * tile :]
    # END
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], tile):
        ka, kb, at = first + tx, first + ty, ty * tile + tx
        tile_a[at] = a[row, ka] if row < a.shape[0] and ka < a.shape[1] else np.float32(0)
        tile_b[at] = b[kb, col] if kb < b.shape[0] and col < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        # HOLE about 2 lines: add the products of row ty of tile_a and column tx of tile_b
        for k in range(tile):
            total += tile_a[ty * tile + k] * tile_b[k * tile + tx]
        # END
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


@cuda.jit
def dynamic_by_offset(a, b, out):
    buffer = cuda.shared.array(0, np.float32)
    tile = cuda.blockDim.x
    second = tile * tile
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], tile):
        ka, kb, at = first + tx, first + ty, ty * tile + tx
        buffer[at] = a[row, ka] if row < a.shape[0] and ka < a.shape[1] else np.float32(0)
        buffer[second + at] = b[kb, col] if kb < b.shape[0] and col < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        at_a, at_b = ty * tile, second + tx
        for _ in range(tile):
            total += buffer[at_a] * buffer[at_b]
            at_a, at_b = at_a + 1, at_b + tile
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


CUT = KernelExercise(
    "03-cut",
    task="Multiply two matrices by tiles in dynamic shared memory: one buffer for both, of any tile size.",
    spec=product,
    cases=launches_with_buffers,
    solutions=[dynamic, dynamic_by_offset],
    limits={"global sectors": 1.0, "shared wavefronts": 1.0, "barriers": 1.0},
    wrong=[
        Wrong(
            "All arrays of length 0 begin at the same place, so tile_b lies on top of tile_a. "
            "There is one buffer, to be cut by hand.",
            {"buffer[tile * tile :]": "cuda.shared.array(0, np.float32)"},
        ),
        Wrong(
            "tile_b begins in the second row of tile_a; the first tile has tile * tile elements.",
            {"buffer[tile * tile :]": "buffer[tile:]"},
            "race",
        ),
        Wrong(
            "A slice counts elements, not bytes: tile_b begins at element tile * tile.",
            {"buffer[tile * tile :]": "buffer[4 * tile * tile :]"},
            "out-of-bounds",
        ),
        Wrong(
            "The size of the tile comes with the launch: cut at tile * tile, not at 256.",
            {"buffer[: tile * tile]": "buffer[:256]", "buffer[tile * tile :]": "buffer[256:]"},
            "out-of-bounds",
        ),
        Wrong(
            "The size of the tile comes with the launch: the loop has `tile` turns, not 16.",
            {"range(tile)": "range(16)"},
        ),
        Wrong(
            "Row k and column tx of tile_b is element k * tile + tx.",
            {"tile_b[k * tile + tx]": "tile_b[tx * tile + k]"},
        ),
        Wrong(
            "Row ty and column k of tile_a is element ty * tile + k.",
            {"tile_a[ty * tile + k]": "tile_a[k * tile + ty]"},
        ),
        Wrong(
            "Rows and columns are exchanged in both tiles: this multiplies column ty of a's tile by row tx of b's.",
            {"tile_a[ty * tile + k] * tile_b[k * tile + tx]": "tile_a[k * tile + ty] * tile_b[tx * tile + k]"},
        ),
        Wrong(
            "A row of a tile is `tile` elements long, so row r begins at element r * tile.",
            {"tile_a[ty * tile + k] * tile_b[k * tile + tx]": "tile_a[ty + k] * tile_b[k + tx]"},
        ),
        Wrong(
            "The shape of a static shared array must be a constant, and `tile` is known at the launch only. "
            "That is what the buffer is for: slice it.",
            {
                "buffer[: tile * tile]": "cuda.shared.array((tile, tile), np.float32)",
                "buffer[tile * tile :]": "cuda.shared.array((tile, tile), np.float32)",
            },
            "does not compile",
        ),
        Wrong(
            "A slice of the buffer has one dimension: row ty and column k is element ty * tile + k.",
            {"tile_a[ty * tile + k] * tile_b[k * tile + tx]": "tile_a[ty, k] * tile_b[k, tx]"},
            "does not compile",
        ),
    ],
    hints=[
        "buffer[:n] is the first n elements, buffer[n:] the others; neither copies anything.",
        "A tile of `tile` rows and `tile` columns is stored row by row: row r, column c is element r * tile + c.",
        "tile_a = buffer[: tile * tile] and tile_b = buffer[tile * tile :]; "
        "the product is tile_a[ty * tile + k] * tile_b[k * tile + tx].",
    ],
    why="A launch gives a block one piece of dynamic shared memory. Slices cut it, and cost nothing but an address.",
)


# -- 03-gram --------------------------------------------------------------------------------------------------------


def gram_matrix(a):
    return product(a, a.T)


def matrices_for_gram(rng):
    for m, k in ((48, 32), (37, 50), (1, 1), (20, 5)):
        a = rng.standard_normal((m, k)).astype(np.float32)
        blocks = ceil_div(m, 16)
        full = m % 16 == k % 16 == 0
        yield Case((a, Out((m, m))), (blocks, blocks), (16, 16), label=f"a of {m} x {k}", counted=full)


@cuda.jit
def gram(a, out):
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    # HOLE about 15 lines: two tiles, both loaded along rows of a: those of `row`, and those of the block's columns
    #| if row < out.shape[0] and col < out.shape[1]:  # this one is naive
    #|     total = np.float32(0)
    #|     for k in range(a.shape[1]):
    #|         total += a[row, k] * a[col, k]
    #|     out[row, col] = total
    tile = cuda.shared.array((16, 16), np.float32)
    other = cuda.shared.array((16, 16), np.float32)
    first_col = cuda.blockIdx.x * 16  # the first column of the block's tile of out: a row of a
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        k, down = first + tx, first_col + ty
        tile[ty, tx] = a[row, k] if row < a.shape[0] and k < a.shape[1] else np.float32(0)
        other[tx, ty] = a[down, k] if down < a.shape[0] and k < a.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile[ty, k] * other[k, tx]
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total
    # END


@cuda.jit
def gram_padded(a, out):
    """The second tile is stored as it is loaded, and read by columns; a pad keeps these in different banks."""
    tile = cuda.shared.array((16, 16), np.float32)
    other = cuda.shared.array((16, 17), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    down = col - tx + ty
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile[ty, tx] = a[row, first + tx] if row < a.shape[0] and first + tx < a.shape[1] else np.float32(0)
        other[ty, tx] = a[down, first + tx] if down < a.shape[0] and first + tx < a.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile[ty, k] * other[tx, k]
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


@cuda.jit
def gram_naive(a, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * a[col, k]
        out[row, col] = total


LOAD_OTHER = "other[tx, ty] = a[down, k] if down < a.shape[0] and k < a.shape[1] else np.float32(0)"

GRAM = KernelExercise(
    "03-gram",
    task="Compute a @ a.T by tiles, for any size of a; both tiles are loaded along the rows of a.",
    spec=gram_matrix,
    cases=matrices_for_gram,
    solutions=[gram, gram_padded],
    limits={"global sectors": 1.0},
    wrong=[
        Wrong(
            "a.T is read as the product reads b, so neighbouring threads read different rows of a: uncoalesced. "
            "Let ty choose the row and tx walk along it, and transpose in shared memory.",
            {LOAD_OTHER: "other[ty, tx] = a[col, first + ty] if col < a.shape[0] and first + ty < a.shape[1] else 0.0"},
            "cost: global sectors",
        ),
        Wrong(
            "Right, but not tiled: each thread reads two rows of a from global memory.",
            gram_naive,
            "cost: global sectors",
        ),
        Wrong(
            "The second tile has the rows of a that belong to the block's columns: row blockIdx.x * 16 + ty.",
            {"first_col + ty": "row"},
        ),
        Wrong(
            "blockIdx counts blocks: the first row of a that belongs to the block's columns is blockIdx.x * 16.",
            {"cuda.blockIdx.x * 16": "cuda.blockIdx.x"},
        ),
        Wrong(
            "The second tile is stored as it was loaded, so its rows are the columns of the result: "
            "multiply by other[tx, k].",
            {"other[tx, ty]": "other[ty, tx]"},
        ),
        Wrong(
            "A thread may multiply before others have loaded their values: a barrier belongs after the loads.",
            {"np.float32(0)\n        cuda.syncthreads()\n        for": "np.float32(0)\n        for"},
            "race",
        ),
        Wrong(
            "A fast thread may load the next tiles while a slow one still multiplies this one: "
            "a second barrier belongs after the products.",
            {"other[k, tx]\n        cuda.syncthreads()\n": "other[k, tx]\n"},
            "race",
        ),
        Wrong(
            "The last tiles extend beyond a, in both directions. Load 0 there.",
            {
                " if row < a.shape[0] and k < a.shape[1] else np.float32(0)": "",
                LOAD_OTHER: "other[tx, ty] = a[down, k]",
            },
            "out-of-bounds",
        ),
        Wrong(
            "Threads outside of the result have to load too: those that have left leave gaps in the tiles.",
            {
                "    total = np.float32(0)\n": "    if row >= out.shape[0] or col >= out.shape[1]:\n        return\n"
                "    total = np.float32(0)\n"
            },
            "uninitialised-read",
        ),
    ],
    hints=[
        "out[row, col] is row `row` of a times row `col` of a. A block needs 16 rows for its rows, 16 for its columns.",
        "The rows for its columns begin at blockIdx.x * 16. Thread (tx, ty) loads a[blockIdx.x * 16 + ty, first + tx], "
        "so that tx walks along a row.",
        "Store that value in other[tx, ty], transposed. Then the product is tile[ty, k] * other[k, tx], as always.",
    ],
    why="Both loads run along rows of a, so they are coalesced; the transposition happens in shared memory. It costs\n"
    "bank conflicts there, which chapter 04 removes with a pad.",
)


# -- 03-buffers -----------------------------------------------------------------------------------------------------


def full_tiles(rng):
    yield from products(rng, [(16, 32, 16), (16, 80, 32)])
    yield from (replace(case, counted=False) for case in products(rng, [(16, 16, 16)]))  # a single step


@cuda.jit
def one_barrier(a, b, out):
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    # HOLE about 9 lines: the same with one barrier per step, and two pairs of tiles
    #| tile_a = cuda.shared.array((16, 16), np.float32)
    #| tile_b = cuda.shared.array((16, 16), np.float32)
    #| for first in range(0, a.shape[1], 16):
    #|     tile_a[ty, tx] = a[row, first + tx]
    #|     tile_b[ty, tx] = b[first + ty, col]
    #|     cuda.syncthreads()
    #|     for k in range(16):
    #|         total += tile_a[ty, k] * tile_b[k, tx]
    #|     cuda.syncthreads()
    tile_a = cuda.shared.array((2, 16, 16), np.float32)
    tile_b = cuda.shared.array((2, 16, 16), np.float32)
    for step in range(a.shape[1] // 16):
        now = step % 2
        tile_a[now, ty, tx] = a[row, step * 16 + tx]
        tile_b[now, ty, tx] = b[step * 16 + ty, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[now, ty, k] * tile_b[now, k, tx]
    # END
    out[row, col] = total


@cuda.jit
def loaded_ahead(a, b, out):
    """The next pair is loaded before this one is multiplied, so that the loads overlap with the arithmetic."""
    tile_a = cuda.shared.array((2, 16, 16), np.float32)
    tile_b = cuda.shared.array((2, 16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    tile_a[0, ty, tx] = a[row, tx]
    tile_b[0, ty, tx] = b[ty, col]
    now = 0
    for following in range(16, a.shape[1] + 16, 16):
        cuda.syncthreads()
        if following < a.shape[1]:
            tile_a[1 - now, ty, tx] = a[row, following + tx]
            tile_b[1 - now, ty, tx] = b[following + ty, col]
        for k in range(16):
            total += tile_a[now, ty, k] * tile_b[now, k, tx]
        now = 1 - now
    out[row, col] = total


BUFFERS = KernelExercise(
    "03-buffers",
    task="Multiply with one barrier per step instead of two. Sizes are multiples of 16.",
    spec=product,
    cases=full_tiles,
    solutions=[one_barrier, loaded_ahead],
    limits={"barriers": 1.5, "global sectors": 1.0},  # one more than there are steps: the first pair is loaded ahead
    wrong=[
        Wrong(
            "With one pair of tiles, a fast thread loads the next values while slow ones still multiply. "
            "Let the steps take two pairs in turns.",
            {"step % 2": "0"},
            "race",
        ),
        Wrong(
            "A thread may multiply before others have loaded their values. The barrier that stays is the one between "
            "the loads and the products.",
            {
                "        cuda.syncthreads()\n        for": "        for",
                "[now, k, tx]\n": "[now, k, tx]\n        cuda.syncthreads()\n",
            },
            "race",
        ),
        Wrong(
            "Nothing orders loads and products any more. One barrier per step has to stay, between the two.",
            {"        cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "There are two tiles of a but only one of b, which fast threads overwrite.",
            {
                "tile_b[now, ty, tx]": "tile_b[0, ty, tx]",
                "tile_b[now, k, tx]": "tile_b[0, k, tx]",
            },
            "race",
        ),
        Wrong(
            "The loads go into one pair and the products read the other.",
            {"tile_a[now, ty, k] * tile_b[now, k, tx]": "tile_a[1 - now, ty, k] * tile_b[1 - now, k, tx]"},
            "uninitialised-read",
        ),
        Wrong(
            "A barrier in every second step leaves the products of the others without one.",
            {"        cuda.syncthreads()\n": "        if now == 0:\n            cuda.syncthreads()\n"},
            "race",
        ),
        Wrong(
            "The pairs are right, and the second barrier is still there. Which threads can it hold up now?",
            {"[now, k, tx]\n": "[now, k, tx]\n        cuda.syncthreads()\n"},
            "cost: barriers",
        ),
        Wrong(
            "The last step is missing: there are K / 16 of them.",
            {"a.shape[1] // 16": "a.shape[1] // 16 - 1"},
        ),
    ],
    hints=[
        "The second barrier protects tiles from being overwritten too early. What if the next step writes elsewhere?",
        "cuda.shared.array((2, 16, 16), np.float32) holds two tiles. Even steps use [0], odd steps [1].",
        "A thread that overwrites pair 0 in step 2 has passed the barrier of step 1. What have all others finished?",
    ],
    why="A thread comes back to a pair two steps later, after the barrier of the step between. Nobody arrives there\n"
    "before having finished with the pair. This is double buffering; chapter 05 also loads ahead.",
)

EXERCISES = [RANK, READS, TILED, CUT, GRAM, BUFFERS]
