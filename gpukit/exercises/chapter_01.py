"""Exercises of chapter 01, threads and blocks."""

from math import ceil
from operator import index

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, FunctionExercise, KernelExercise, Out, Wrong
from warpstep.integers import ceil_div

# -- 01-thread ------------------------------------------------------------------------------------------------------


def thread_index():
    block, threads, thread = 3, 96, 5
    return block * threads + thread


THREAD = AnswerExercise(
    "01-thread",
    task="A launch has 10 blocks of 96 threads. Which index in the grid does thread 5 of block 3 have?",
    spec=thread_index,
    wrong=[
        Wrong("Multiply by the threads of a block, 96, not by the blocks of the grid.", 35),
        Wrong("Block and thread are exchanged: 3 whole blocks come first, then 5 threads.", 483),
        Wrong("Blocks are counted from 0, so three blocks come before block 3: 0, 1 and 2.", 197),
        Wrong("Threads are counted from 0 too: thread 5 has five threads of its block before it.", 294),
        Wrong("That is the index in the block. In the grid, the threads of blocks 0, 1 and 2 come first.", 5),
    ],
    hints=["How many threads are in the blocks before block 3?", "Three blocks of 96 threads, and then 5 more."],
    why="blockIdx.x * blockDim.x + threadIdx.x = 3 * 96 + 5.",
)

# -- 01-index -------------------------------------------------------------------------------------------------------


def numbers(blocks, nx, ny, nz):
    return np.broadcast_to(np.arange(nx * ny * nz, dtype=np.int32).reshape(nz, ny, nx), (blocks, nz, ny, nx))


def shapes_of_blocks(rng):
    for blocks, (nx, ny, nz) in ((2, (3, 4, 2)), (1, (1, 1, 1)), (3, (8, 1, 1)), (1, (5, 3, 4)), (2, (1, 6, 1))):
        case = (blocks, nx, ny, nz, Out((blocks, nz, ny, nx), np.int32))
        yield Case(case, blocks, (nx, ny, nz), label=f"{nx} x {ny} x {nz} threads")


def numbering(function):
    """A kernel that stores what the function returns, at the place of each thread."""

    @cuda.jit
    def number(blocks, nx, ny, nz, out):
        out[cuda.blockIdx.x, cuda.threadIdx.z, cuda.threadIdx.y, cuda.threadIdx.x] = function()

    return number


@cuda.jit(device=True)
def my_index():
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    # HOLE about 2 lines: return the index in the block; the sizes of the block are in `cuda.blockDim`
    nx, ny = cuda.blockDim.x, cuda.blockDim.y
    return tz * nx * ny + ty * nx + tx
    # END


INDEX = KernelExercise(
    "01-index",
    task="Number the threads of a block: x runs fastest, then y, then z.",
    spec=numbers,
    cases=shapes_of_blocks,
    make=numbering,
    solutions=[my_index, {"tz * nx * ny + ty * nx + tx": "(tz * ny + ty) * nx + tx"}],
    wrong=[
        Wrong(
            "Here z runs fastest. Neighbours along x must have consecutive numbers, so tx is added without a factor.",
            {"tz * nx * ny + ty * nx + tx": "(tx * ny + ty) * cuda.blockDim.z + tz"},
        ),
        Wrong(
            "A row along x has blockDim.x threads, so ty counts rows of that length: multiply it by blockDim.x.",
            {"ty * nx": "ty * ny"},
        ),
        Wrong(
            "A layer has blockDim.x * blockDim.y threads; tz is multiplied by one of them only.", {"nx * ny +": "nx +"}
        ),
        Wrong(
            "The layers along z are missing: the threads of every layer get the same numbers.", {"tz * nx * ny + ": ""}
        ),
        Wrong(
            "gridDim counts blocks. The lengths of rows and layers of threads are in blockDim.",
            {"cuda.blockDim.x, cuda.blockDim.y": "cuda.gridDim.x, cuda.gridDim.y"},
        ),
        Wrong(
            "This counts on from block to block, as the index in the grid does. In its block each thread starts anew.",
            {"return tz": "return cuda.blockIdx.x * nx * ny * cuda.blockDim.z + tz"},
        ),
        Wrong("The first thread has number 0, not 1.", {"nx + tx": "nx + tx + 1"}),
        Wrong(
            "The function returns nothing. A device function needs a `return`, as any function does.",
            {"return tz": "number = tz"},
            "does not compile",
        ),
        Wrong(
            "Within a layer y runs fastest here; it must be x.",
            {"ty * nx + tx": "tx * ny + ty"},
        ),
        Wrong(
            "The product of all three sizes is the number of threads in the block. A step along z passes one layer.",
            {"tz * nx * ny": "tz * nx * ny * cuda.blockDim.z"},
        ),
    ],
    hints=[
        "How many threads are there between a thread and its neighbour along y? And along z?",
        "A step along x adds 1, a step along y a row of blockDim.x threads.",
        "A step along z adds a layer, blockDim.x * blockDim.y.",
    ],
    why="It is the offset of element [tz, ty, tx] in a C-ordered array of the block's shape.",
)

# -- 01-columns -----------------------------------------------------------------------------------------------------


def by_columns(matrix):
    return matrix.reshape(-1, order="F")


def matrices(rng):
    for shape, grid, block in (
        ((4, 6), (3, 2), (2, 2)),
        ((17, 40), (3, 2), (16, 16)),
        ((1, 1), (1, 1), (16, 16)),
        ((33, 5), (1, 9), (8, 4)),
    ):
        matrix = rng.standard_normal(shape).astype(np.float32)
        yield Case((matrix, Out(matrix.size)), grid, block, label=f"{shape[0]} rows, {shape[1]} columns")


@cuda.jit
def columns_first(matrix, out):
    # HOLE about 3 lines: find the element of this thread; if there is one, store it in its place of `out`
    col, row = cuda.grid(2)
    if row < matrix.shape[0] and col < matrix.shape[1]:
        out[col * matrix.shape[0] + row] = matrix[row, col]
    # END


@cuda.jit
def columns_first_by_hand(matrix, out):
    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    rows, cols = matrix.shape
    if row >= rows or col >= cols:
        return
    place = rows * col + row
    out[place] = matrix[place % rows, place // rows]


COLUMNS = KernelExercise(
    "01-columns",
    task="Copy a matrix into a one-dimensional array column by column: first all of column 0, then column 1.",
    spec=by_columns,
    cases=matrices,
    solutions=[columns_first, columns_first_by_hand],
    limits={"global requests": 2.0},
    wrong=[
        Wrong(
            "`out` has one dimension, so it takes one index. Compute it from col and row.",
            {"out[col * matrix.shape[0] + row]": "out[col, row]"},
            "does not compile",
        ),
        Wrong(
            "Column `col` begins after col whole columns, and each has matrix.shape[0] elements; row is added to that.",
            {"col * matrix.shape[0] + row": "row * matrix.shape[0] + col"},
        ),
        Wrong(
            "This goes along the rows. Down the columns, a step to the next row adds 1.",
            {"col * matrix.shape[0] + row": "row * matrix.shape[1] + col"},
        ),
        Wrong(
            "A column has as many elements as there are rows, shape[0]: that is what lies between two columns.",
            {"col * matrix.shape[0]": "col * matrix.shape[1]"},
            "out-of-bounds",
        ),
        Wrong(
            "cuda.grid(2) gives x first, which is the column: col, row = cuda.grid(2).",
            {"col, row = cuda.grid(2)": "row, col = cuda.grid(2)"},
            "unwritten",
        ),
        Wrong(
            "Without a guard, surplus threads read outside the matrix, and write into the next column or past the end.",
            {"    if row < matrix.shape[0] and col < matrix.shape[1]:\n    ": ""},
            "out-of-bounds",
        ),
        Wrong(
            "The place in `out` is inside for some threads whose row is outside the matrix. Check row and column.",
            {"row < matrix.shape[0] and col < matrix.shape[1]": "col * matrix.shape[0] + row < out.size"},
            "out-of-bounds",
        ),
        Wrong(
            "The place is right, the element is not: an array takes the row first, matrix[row, col].",
            {"matrix[row, col]": "matrix[col, row]"},
            "out-of-bounds",
        ),
        Wrong(
            "threadIdx starts again in every block, so all blocks copy the same corner; cuda.grid(2) does not.",
            {"cuda.grid(2)": "cuda.threadIdx.x, cuda.threadIdx.y"},
            "unwritten",
        ),
        Wrong(
            "The bounds are exchanged: the row must be below shape[0], the column below shape[1].",
            {"row < matrix.shape[0] and col < matrix.shape[1]": "row < matrix.shape[1] and col < matrix.shape[0]"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "In which place of `out` does column 1 begin, if the matrix has 4 rows?",
        "Column `col` begins at col * matrix.shape[0]; within it, row `row` comes `row` places later.",
        "out[col * matrix.shape[0] + row] = matrix[row, col], below the guard of chapter 00.",
    ],
    why="Coordinates give the place for any layout. The index in the grid would not: it runs block by block.",
)

# -- 01-lanes -------------------------------------------------------------------------------------------------------


def warps_and_idle_lanes():
    threads = 10 * 5
    warps = ceil_div(threads, 32)
    return warps, 32 * warps - threads


LANES = AnswerExercise(
    "01-lanes",
    task="A block has 10 x 5 threads. How many warps is that, and how many of their lanes have no thread?",
    spec=warps_and_idle_lanes,
    wrong=[
        Wrong(
            "A warp does not end with a row of the block: it takes 32 threads in the order of their index.", (5, 110)
        ),
        Wrong("The 18 threads left after the first warp need a warp as well.", (1, 18)),
        Wrong("18 lanes of the second warp have a thread. The question is how many have none.", (2, 18)),
        Wrong("The second warp has 32 lanes, 14 of them without a thread; the first warp is full.", (2, 28)),
    ],
    hints=["The block has 50 threads, and warps are filled one after the other.", "The first warp takes 32 threads."],
    why="50 threads fill one warp and 18 lanes of a second one.",
)

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


@cuda.jit
def add_in_each_thread(x, y, out):
    for i in range(out.size):
        out[i] = x[i] + y[i]


GUARD = KernelExercise(
    "01-guard",
    task="Add two arrays, one element per thread, for any length.",
    spec=sums,
    cases=pairs,
    solutions=[add, add_by_hand],
    limits={"global requests": 2.0},
    wrong=[
        Wrong(
            "Right, but every thread adds all the elements. The launch is the loop: each thread adds one element.",
            add_in_each_thread,
            "cost: global requests",
        ),
        Wrong(
            "In NumPy this line adds whole arrays. A kernel is the work of one thread: one element, out[i].",
            {"out[i] = x[i] + y[i]": "out[:] = x + y"},
            "does not compile",
        ),
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
        Wrong(
            "Nothing is stored: `out = ...` gives the name a new value. `out[i] = ...` stores an element.",
            {"out[i] =": "out ="},
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

# -- 01-grid --------------------------------------------------------------------------------------------------------


def whole(function, rows, cols, block):
    """Return the grid, of whole numbers as a launch needs them."""
    grid = function(rows, cols, block)
    return tuple(map(index, grid)) if isinstance(grid, (tuple, list)) else grid


def covering_grid(rows, cols, block):
    return ceil(cols / block[0]), ceil(rows / block[1])


def sizes(rng):
    for rows, cols, block in (
        (600, 512, (16, 16)),
        (17, 40, (16, 8)),
        (1, 1, (32, 32)),
        (64, 96, (32, 8)),
        (9, 65, (64, 1)),
    ):
        yield Case((rows, cols, block), label=f"{rows} rows, {cols} columns, block {block}")


def grid_for(rows, cols, block):
    # HOLE about 1 line: return the grid as (x, y): enough blocks of `block` = (x, y) threads for rows x cols elements
    return ceil(cols / block[0]), ceil(rows / block[1])
    # END


def grid_for_in_integers(rows, cols, block):
    threads_x, threads_y = block
    return (cols + threads_x - 1) // threads_x, (rows + threads_y - 1) // threads_y


GRID = FunctionExercise(
    "01-grid",
    task="Choose the smallest grid whose blocks cover a matrix, one thread per element.",
    spec=covering_grid,
    cases=sizes,
    call=whole,
    solutions=[grid_for, grid_for_in_integers],
    wrong=[
        Wrong(
            "A grid has whole blocks, given as integers: round up with math.ceil, or use //. np.ceil gives floats.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "cols / block[0], rows / block[1]"},
            "raises",
        ),
        Wrong(
            "Rounding down leaves the last rows and columns without threads, and a small matrix without a block.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "cols // block[0], rows // block[1]"},
        ),
        Wrong(
            "x runs along a row, so the first number covers the columns: (x, y) means columns first.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "ceil(rows / block[0]), ceil(cols / block[1])"},
        ),
        Wrong(
            "Adding 1 to the rounded-down quotient gives a block too many where the size is a multiple of the block.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "cols // block[0] + 1, rows // block[1] + 1"},
        ),
        Wrong(
            "round() rounds to the nearest integer, which is too few blocks whenever less than half a block is left.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "round(cols / block[0]), round(rows / block[1])"},
        ),
        Wrong(
            "This is (y, x). A launch takes x first.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "ceil(rows / block[1]), ceil(cols / block[0])"},
        ),
        Wrong(
            "The block is (x, y) as well: its first number belongs to the columns.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "ceil(cols / block[1]), ceil(rows / block[0])"},
        ),
        Wrong(
            "A launch counts blocks, not threads: divide by the size of the block.",
            {"ceil(cols / block[0]), ceil(rows / block[1])": "cols, rows"},
        ),
    ],
    hints=[
        "40 columns in blocks of 16: two blocks cover 32 columns, so it takes a third.",
        "Divide and round up, once for x and once for y. Which of the two are the columns?",
    ],
    why="Rounding up covers the remainder; the guard in the kernel stops the surplus threads.",
)

# -- 01-stride ------------------------------------------------------------------------------------------------------


def axpy_numpy(a, x, y):
    return a * x + y


def walks(rng):
    for n, blocks, threads in ((200, 3, 32), (1, 1, 32), (5, 4, 32), (29, 2, 4), (100, 1, 32)):
        x, y = rng.standard_normal((2, n)).astype(np.float32)
        yield Case((np.float32(2.5), x, y, Out(n)), blocks, threads, label=f"n = {n}")


@cuda.jit
def axpy(a, x, y, out):
    # HOLE about 4 lines: start at this thread's index in the grid, and jump ahead by the number of threads in the grid
    i = cuda.grid(1)
    while i < out.size:
        out[i] = a * x[i] + y[i]
        i += cuda.gridsize(1)
    # END


@cuda.jit
def axpy_by_range(a, x, y, out):
    stride = cuda.gridDim.x * cuda.blockDim.x
    for i in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, out.size, stride):
        out[i] = a * x[i] + y[i]


@cuda.jit
def axpy_in_runs(a, x, y, out):
    run = (out.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    first = cuda.grid(1) * run
    for i in range(first, min(first + run, out.size)):
        out[i] = a * x[i] + y[i]


STRIDE = KernelExercise(
    "01-stride",
    task="Compute a * x + y with any grid, each element once.",
    spec=axpy_numpy,
    cases=walks,
    solutions=[axpy, axpy_by_range],
    limits={"global requests": 1.0, "global sectors": 1.0},
    wrong=[
        Wrong(
            "`out` does not start at zero, so `+=` adds to whatever it holds. Store with `=`.",
            {"out[i] =": "out[i] +="},
        ),
        Wrong(
            "The step comes before the work: the first element is skipped, and the last step leaves the array.",
            {
                "        out[i] = a * x[i] + y[i]\n        i += cuda.gridsize(1)\n": "        i += cuda.gridsize(1)\n"
                "        out[i] = a * x[i] + y[i]\n"
            },
            "out-of-bounds",
        ),
        Wrong(
            "Each thread does one element and stops. With `while` in place of `if` it goes on until the array ends.",
            {"while i": "if i", "        i += cuda.gridsize(1)\n": ""},
            "unwritten",
        ),
        Wrong(
            "The loop never ends, because i never changes.",
            {"        i += cuda.gridsize(1)\n": ""},
            "no-progress",
        ),
        Wrong(
            "The result is right, but elements are computed again by every block: the step must be the threads of the "
            "grid, not those of a block.",
            {"cuda.gridsize(1)": "cuda.blockDim.x"},
            "cost: global requests",
        ),
        Wrong(
            "gridDim counts the blocks of the grid. The step must be its threads, or elements are computed many times.",
            {"cuda.gridsize(1)": "cuda.gridDim.x"},
            "cost: global requests",
        ),
        Wrong(
            "Every thread goes through all elements that follow its own. With a step of the whole grid each element is "
            "computed once.",
            {"cuda.gridsize(1)": "1"},
            "cost: global requests",
        ),
        Wrong(
            "threadIdx is the same in all blocks, so they compute the same elements. Start at cuda.grid(1).",
            {"cuda.grid(1)": "cuda.threadIdx.x"},
            "unwritten",
        ),
        Wrong(
            "The last index is out.size - 1: compare with <.",
            {"i < out.size": "i <= out.size"},
            "out-of-bounds",
        ),
        Wrong(
            "`out = ...` gives the name a new value, a number. `out[i] = ...` stores an element.",
            {"out[i] =": "out ="},
            "does not compile",
        ),
        Wrong(
            "Right, but each thread has a run of consecutive elements. The threads of a warp are then far apart in "
            "memory and touch more sectors than neighbours would.",
            axpy_in_runs,
            "cost: global sectors",
        ),
    ],
    hints=[
        "The first index is that of a kernel without a loop. What must be true for a thread to do another element?",
        "while i < out.size: is loop and guard in one.",
        "At the end of the loop, i += cuda.gridsize(1), the number of threads in the grid.",
    ],
    why="In each step the grid handles as many neighbouring elements as it has threads, and the next step follows on.",
)

# -- 01-planes ------------------------------------------------------------------------------------------------------


def scaled_planes(volume, gain):
    return volume * gain[:, None, None]


def volumes(rng):
    for shape, grid, block in (
        ((4, 8, 6), (2, 2, 2), (3, 4, 2)),
        ((3, 5, 33), (5, 2, 2), (8, 4, 2)),
        ((1, 1, 1), (1, 1, 1), (4, 4, 4)),
        ((9, 2, 3), (1, 1, 3), (4, 4, 4)),
    ):
        volume, gain = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape[0]).astype(np.float32)
        yield Case((volume, gain, Out(shape)), grid, block, label=f"shape {shape}")


@cuda.jit
def scale_planes(volume, gain, out):
    # HOLE about 4 lines: one thread per element; its factor is that of its plane, the first index
    x, y, z = cuda.grid(3)
    planes, rows, cols = volume.shape
    if z < planes and y < rows and x < cols:
        out[z, y, x] = volume[z, y, x] * gain[z]
    # END


@cuda.jit
def scale_planes_by_hand(volume, gain, out):
    x = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    y = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    z = cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z
    if z >= out.shape[0] or y >= out.shape[1] or x >= out.shape[2]:
        return
    out[z, y, x] = gain[z] * volume[z, y, x]


@cuda.jit
def scale_planes_in_a_loop(volume, gain, out):
    x, y = cuda.grid(2)
    if y < out.shape[1] and x < out.shape[2]:
        for z in range(out.shape[0]):
            out[z, y, x] = volume[z, y, x] * gain[z]


PLANES = KernelExercise(
    "01-planes",
    task="Multiply each plane of a stack by its own factor: out[z, y, x] = volume[z, y, x] * gain[z].",
    spec=scaled_planes,
    cases=volumes,
    solutions=[scale_planes, scale_planes_by_hand],
    limits={"global requests": 2.0},
    wrong=[
        Wrong(
            "Right, but the threads along z all do the same planes again. The launch has three dimensions: "
            "x, y, z = cuda.grid(3).",
            scale_planes_in_a_loop,
            "cost: global requests",
        ),
        Wrong(
            "cuda.grid(3) gives x first: x, y, z = cuda.grid(3). The array takes them in the opposite order.",
            {"x, y, z = cuda.grid(3)": "z, y, x = cuda.grid(3)"},
            "unwritten",
        ),
        Wrong(
            "The guard does not check the plane: the last blocks along z reach past the stack.",
            {"z < planes and ": ""},
            "out-of-bounds",
        ),
        Wrong(
            "The guard does not check the row. Every dimension can have surplus threads.",
            {" and y < rows": ""},
            "out-of-bounds",
        ),
        Wrong(
            "The guard does not check the column. Every dimension can have surplus threads.",
            {" and x < cols": ""},
            "out-of-bounds",
        ),
        Wrong("There is no guard.", {"    if z < planes and y < rows and x < cols:\n    ": ""}, "out-of-bounds"),
        Wrong("The factor belongs to the plane: gain[z].", {"gain[z]": "gain[x]"}, "out-of-bounds"),
        Wrong("The factor belongs to the plane, not to the row: gain[z].", {"gain[z]": "gain[y]"}, "out-of-bounds"),
        Wrong(
            "The shape is (planes, rows, columns): x goes with the last size, z with the first.",
            {"planes, rows, cols = volume.shape": "cols, rows, planes = volume.shape"},
            "out-of-bounds",
        ),
        Wrong(
            "The planes are copied as they are. Multiply by gain[z].",
            {" * gain[z]": ""},
        ),
    ],
    hints=[
        "cuda.grid(3) gives three coordinates, x first.",
        "The guard has three conditions, one for each size of volume.shape.",
        "x belongs to volume.shape[2], y to shape[1], z to shape[0].",
    ],
    why="x goes with the last index, so that neighbouring threads have neighbouring elements in memory.",
)

# -- 01-sweep -------------------------------------------------------------------------------------------------------


def negative_numpy(image):
    return 255 - image


def sweeps(rng):
    for shape, grid, block in (
        ((14, 70), (2, 2), (16, 2)),
        ((1, 1), (1, 1), (16, 16)),
        ((17, 37), (1, 3), (32, 2)),
        ((9, 50), (2, 1), (8, 4)),
        ((5, 7), (3, 4), (16, 4)),
    ):
        image = rng.integers(0, 256, shape, np.uint8)
        yield Case((image, Out(shape, np.uint8)), grid, block, label=f"{shape[0]} rows, {shape[1]} columns")


@cuda.jit
def sweep(image, out):
    # HOLE about 8 lines: the negative of an image with a grid-stride loop in each direction
    first_col, row = cuda.grid(2)
    step_x, step_y = cuda.gridsize(2)
    while row < out.shape[0]:
        col = first_col
        while col < out.shape[1]:
            out[row, col] = 255 - image[row, col]
            col += step_x
        row += step_y
    # END


@cuda.jit
def sweep_by_range(image, out):
    col_0, row_0 = cuda.grid(2)
    step_x, step_y = cuda.gridsize(2)
    for row in range(row_0, out.shape[0], step_y):
        for col in range(col_0, out.shape[1], step_x):
            out[row, col] = 255 - image[row, col]


SWEEP = KernelExercise(
    "01-sweep",
    task="Turn an image into its negative with any two-dimensional grid, each pixel once.",
    spec=negative_numpy,
    cases=sweeps,
    solutions=[sweep, sweep_by_range],
    limits={"global requests": 1.0, "global sectors": 1.0},
    wrong=[
        Wrong(
            "Each thread does its first row only. It needs a loop over the rows, and its own column again in each row.",
            {"        col = first_col\n": "", "    while row": "    col = first_col\n    while row"},
            "unwritten",
        ),
        Wrong(
            "Each thread does one pixel; with a small grid the rest of the image stays as it is.",
            {
                "while row": "if row",
                "while col": "if col",
                "            col += step_x\n": "",
                "        row += step_y\n": "",
            },
            "unwritten",
        ),
        Wrong(
            "The steps are exchanged: the column goes on by the width of the grid, the row by its height.",
            {"step_x, step_y =": "step_y, step_x ="},
            "unwritten",
        ),
        Wrong(
            "Right, but pixels are done again: the steps must be the threads of the grid, gridDim * blockDim.",
            {"cuda.gridsize(2)": "cuda.blockDim.x, cuda.blockDim.y"},
            "cost: global requests",
        ),
        Wrong(
            "gridDim counts blocks. The steps must be the threads of the grid along x and y.",
            {"cuda.gridsize(2)": "cuda.gridDim.x, cuda.gridDim.y"},
            "cost: global requests",
        ),
        Wrong(
            "The loop over the columns is missing: columns to the right of the grid stay as they are.",
            {"while col": "if col", "            col += step_x\n": ""},
            "unwritten",
        ),
        Wrong(
            "cuda.grid(2) gives x first: the column, then the row.",
            {"first_col, row = cuda.grid(2)": "row, first_col = cuda.grid(2)"},
            "unwritten",
        ),
    ],
    hints=[
        "Write one loop over the rows as in `axpy`, and in it one over the columns.",
        "cuda.gridsize(2) gives both steps: the threads of the grid along x and along y.",
        "The inner loop must start again at the thread's own column in every row: keep that in a variable.",
    ],
    why="Both loops are guard and step in one. The columns are in the inner loop: neighbouring threads stay in a row.",
)

EXERCISES = [THREAD, INDEX, COLUMNS, LANES, GUARD, GRID, STRIDE, PLANES, SWEEP]
