"""Exercises of the last page: three projects, written from a blank page."""

import numpy as np

from gpukit.backend import cuda, float32, int32
from gpukit.exercises.exercise import Case, InOut, KernelExercise, Out, Wrong
from warpstep.integers import ceil_div

# -- project 1: histogram -------------------------------------------------------------------------------------------

BINS = 256


def histogram(image, counts):
    return counts + np.bincount(image, minlength=BINS).astype(counts.dtype)


def count_cases(rng):
    dark = np.minimum(rng.exponential(20, 700), 255).astype(np.uint8)
    for values, blocks, threads, label in (
        (rng.integers(0, 256, 900, np.uint8), 3, 64, "random"),
        (np.array([255], np.uint8), 2, 32, "one pixel"),
        (np.full(100, 7, np.uint8), 1, 96, "all alike"),
        (dark, 2, 128, "a dark image"),
    ):
        yield Case((values, InOut(np.zeros(BINS, np.int32))), blocks, threads, label=f"{values.size} pixels, {label}")


@cuda.jit
def count_values(image, counts):
    # HOLE about 4 lines: go through the pixels with a grid-stride loop, and count each in the bin of its value
    i = cuda.grid(1)
    while i < image.size:
        cuda.atomic.add(counts, image[i], 1)
        i += cuda.gridsize(1)
    # END


@cuda.jit
def count_values_by_range(image, counts):
    for i in range(cuda.grid(1), image.shape[0], cuda.gridsize(1)):
        value = image[i]
        cuda.atomic.add(counts, value, int32(1))


COUNT = KernelExercise(
    "99-count",
    task="Count how often each of the values 0 to 255 occurs in an image, with any grid. `counts` starts as zeros.",
    spec=histogram,
    cases=count_cases,
    solutions=[count_values, count_values_by_range],
    wrong=[
        Wrong(
            "Two threads that meet in one bin both read the old count, and one of the two is lost. "
            "cuda.atomic.add reads, adds and writes in one step.",
            {"cuda.atomic.add(counts, image[i], 1)": "counts[image[i]] += 1"},
            "race",
        ),
        Wrong(
            "The arguments of atomic.add are array, index, amount. The value of the pixel is the index.",
            {"cuda.atomic.add(counts, image[i], 1)": "cuda.atomic.add(counts, i, image[i])"},
            "out-of-bounds",
        ),
        Wrong(
            "atomic.add needs the array and the index apart, because it has to write there: array, index, amount.",
            {"cuda.atomic.add(counts, image[i], 1)": "cuda.atomic.add(counts[image[i]], 1)"},
            "does not compile",
        ),
        Wrong(
            "The bin gets the value of the pixel added, not 1.",
            {"image[i], 1)": "image[i], image[i])"},
        ),
        Wrong(
            "Blocks count the same pixels again: the step must be the threads of the grid.",
            {"cuda.gridsize(1)": "cuda.blockDim.x"},
        ),
        Wrong(
            "Each thread counts one pixel and stops. A small grid leaves the rest uncounted.",
            {"while i": "if i", "        i += cuda.gridsize(1)\n": ""},
        ),
        Wrong(
            "This stores 1 in each bin that occurs, however often it does.",
            {"cuda.atomic.add(counts, image[i], 1)": "counts[image[i]] = 1"},
        ),
        Wrong(
            "All blocks start with the same pixels: threadIdx counts within a block.",
            {"cuda.grid(1)": "cuda.threadIdx.x"},
        ),
        Wrong(
            "The guard lets index image.size through: compare with <.",
            {"i < image.size": "i <= image.size"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "The value of a pixel is the index of its bin. Many threads can want the same bin at the same time.",
        "cuda.atomic.add(array, index, amount) adds without losing an update.",
        "In a grid-stride loop: cuda.atomic.add(counts, image[i], 1).",
    ],
    why="Atomics make the counts right in any order. Threads that want one bin wait for each other, though.",
)


@cuda.jit
def count_in_blocks(image, counts):
    # HOLE about 11 lines: count in a shared array of BINS int32 first; at the end add it to `counts`
    bins = cuda.shared.array(BINS, int32)
    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):
        bins[b] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < image.size:
        cuda.atomic.add(bins, image[i], 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):
        cuda.atomic.add(counts, b, bins[b])
    # END


PRIVATE = KernelExercise(
    "99-private",
    task="Count in shared memory, one histogram per block, and add each to `counts` once.",
    spec=histogram,
    cases=count_cases,
    solutions=[
        count_in_blocks,
        {
            "        cuda.atomic.add(counts, b, bins[b])": "        if bins[b] > 0:\n"
            "            cuda.atomic.add(counts, b, bins[b])"
        },
    ],
    limits={"global atomics": 1.0},
    wrong=[
        Wrong(
            "Shared memory does not start as zeros: it holds what the block before left there.",
            {"        bins[b] = 0\n": "        pass\n"},
            "uninitialised-read",
        ),
        Wrong(
            "Without a barrier after the zeroing, a thread counts in a bin that another one then sets to zero.",
            {"        bins[b] = 0\n    cuda.syncthreads()\n": "        bins[b] = 0\n"},
            "race",
        ),
        Wrong(
            "Without a barrier before the end, a thread adds up a bin in which others still count.",
            {
                "        i += cuda.gridsize(1)\n    cuda.syncthreads()\n": "        i += cuda.gridsize(1)\n",
            },
            "race",
        ),
        Wrong(
            "Several blocks add to the same element of `counts` at the same time, so this addition must be atomic too.",
            {"cuda.atomic.add(counts, b, bins[b])": "counts[b] += bins[b]"},
            "race",
        ),
        Wrong(
            "A block of fewer than 256 threads zeroes and adds up only its first bins. Loop over the bins with a step "
            "of blockDim.",
            {
                "    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):\n        bins[b] = 0\n": "    b = "
                "cuda.threadIdx.x\n    bins[b] = 0\n",
                "    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):\n        cuda.atomic.add(counts": (
                    "    if b < BINS:\n        cuda.atomic.add(counts"
                ),
            },
            "uninitialised-read",
        ),
        Wrong(
            "Every pixel is an atomic in global memory, as before. Count in shared memory, and go to global memory "
            "once per bin and block.",
            {"cuda.atomic.add(bins, image[i], 1)": "cuda.atomic.add(counts, image[i], 1)"},
            "cost: global atomics",
        ),
        Wrong(
            "The threads of a block meet in the bins of shared memory just as they would in global memory: "
            "cuda.atomic.add(bins, ...).",
            {"cuda.atomic.add(bins, image[i], 1)": "bins[image[i]] += 1"},
            "race",
        ),
        Wrong(
            "One thread adds all bins, one after the other, while the others wait. Share the loop: "
            "each thread starts at threadIdx.x and takes steps of blockDim.x.",
            {
                "    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):\n        cuda.atomic.add(counts": (
                    "    for b in range(0 if cuda.threadIdx.x == 0 else BINS, BINS):\n        cuda.atomic.add(counts"
                )
            },
            "cost: global atomics",
        ),
        Wrong(
            "Each thread counts one pixel and stops. A small grid leaves the rest uncounted.",
            {"    while i <": "    if i <", "        i += cuda.gridsize(1)\n": ""},
        ),
        Wrong(
            "Every thread adds all bins, so each block is counted once per thread.",
            {
                "    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):\n        cuda.atomic.add(counts": (
                    "    for b in range(BINS):\n        cuda.atomic.add(counts"
                )
            },
        ),
    ],
    hints=[
        "Three phases, with a barrier between them: zero the bins, count, add them up.",
        "A loop over the bins with a step of blockDim.x works for any block.",
        "for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x): cuda.atomic.add(counts, b, bins[b])",
    ],
    why="Atomics in shared memory are faster, and only threads of one block compete. Global memory sees 256 per block.",
)

# -- project 2: a separable blur ------------------------------------------------------------------------------------

RADIUS, WINDOW = 4, 9
WIDE, HIGH, LONG = 64, 4, 72  # pixels of a block in the pass along the rows; with the halo
ACROSS, DOWN, TALL = 32, 16, 24  # in the pass down the columns


def along_rows(image, weights):
    """out[row, col] = sum over k of weights[k] * image[row, col + k - RADIUS], the border repeated."""
    padded = np.pad(image, ((0, 0), (RADIUS, RADIUS)), mode="edge")
    return np.sum([weights[k] * padded[:, k : k + image.shape[1]] for k in range(WINDOW)], axis=0)


def down_columns(image, weights):
    return along_rows(image.T, weights).T


def images(rng, shapes, block):
    for shape in shapes:
        image, weights = rng.random(shape, np.float32), rng.random(WINDOW, np.float32)
        grid = ceil_div(shape[1], block[0]), ceil_div(shape[0], block[1])
        full = shape[0] % block[1] == shape[1] % block[0] == 0
        label = f"{shape[0]} rows, {shape[1]} columns"
        yield Case((image, weights, Out(shape)), grid, block, label=label, counted=full)


@cuda.jit
def blur_rows(image, weights, out):
    # HOLE about 14 lines: load LONG pixels of each row into a tile in shared memory, then add up from there
    tile = cuda.shared.array((HIGH, LONG), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    height, width = image.shape
    left = cuda.blockIdx.x * WIDE - RADIUS
    if row < height:
        for i in range(tx, LONG, WIDE):
            tile[ty, i] = image[row, min(max(left + i, 0), width - 1)]
    cuda.syncthreads()
    if row < height and col < width:
        total = float32(0)
        for k in range(WINDOW):
            total += weights[k] * tile[ty, tx + k]
        out[row, col] = total
    # END


@cuda.jit
def blur_rows_by_parts(image, weights, out):
    """The halo apart from the rest: the first threads load both ends."""
    tile = cuda.shared.array((HIGH, LONG), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    last_row, last_col = image.shape[0] - 1, image.shape[1] - 1
    mine = min(row, last_row)
    tile[ty, tx + RADIUS] = image[mine, min(col, last_col)]
    if tx < RADIUS:
        tile[ty, tx] = image[mine, max(col - RADIUS, 0)]
        tile[ty, tx + RADIUS + WIDE] = image[mine, min(col + WIDE, last_col)]
    cuda.syncthreads()
    if row > last_row or col > last_col:
        return
    total = float32(0)
    for k in range(WINDOW):
        total += weights[k] * tile[ty, tx + k]
    out[row, col] = total


@cuda.jit
def blur_rows_without_tile(image, weights, out):
    col, row = cuda.grid(2)
    height, width = image.shape
    if row < height and col < width:
        total = float32(0)
        for k in range(WINDOW):
            total += weights[k] * image[row, min(max(col + k - RADIUS, 0), width - 1)]
        out[row, col] = total


@cuda.jit
def blur_rows_with_halo_from_global(image, weights, out):
    tile = cuda.shared.array((HIGH, WIDE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    height, width = image.shape
    if row < height and col < width:
        tile[ty, tx] = image[row, col]
    cuda.syncthreads()
    if row < height and col < width:
        total = float32(0)
        for k in range(WINDOW):
            i, near = tx + k - RADIUS, min(max(col + k - RADIUS, 0), width - 1)
            total += weights[k] * (tile[ty, i] if i == near - col + tx and 0 <= i < WIDE else image[row, near])
        out[row, col] = total


ROWS = KernelExercise(
    "99-rows",
    task="Blur along the rows. Each pixel is read from global memory once per block, and the border is repeated.",
    spec=along_rows,
    cases=lambda rng: images(rng, ((3, 70), (1, 1), (5, 130), (8, 128)), (WIDE, HIGH)),
    solutions=[blur_rows, blur_rows_by_parts],
    limits={"global load sectors": 1.1},
    wrong=[
        Wrong(
            "Right, but every pixel is read from global memory nine times. Load a tile into shared memory first.",
            blur_rows_without_tile,
            "cost: global load sectors",
        ),
        Wrong(
            "The threads near both ends read the halo from global memory, several times. Load it into the tile too.",
            blur_rows_with_halo_from_global,
            "cost: global load sectors",
        ),
        Wrong(
            "threadIdx.x counts along the row, up to WIDE, and threadIdx.y counts the rows. Here they are exchanged.",
            {"tx, ty = cuda.threadIdx.x, cuda.threadIdx.y": "ty, tx = cuda.threadIdx.x, cuda.threadIdx.y"},
            "out-of-bounds",
        ),
        Wrong(
            "Without a barrier, a thread adds up pixels that its neighbours have not loaded yet.",
            {"    cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "A tile needs RADIUS pixels more at both ends, its halo. Here the halo is never loaded.",
            {"range(tx, LONG, WIDE)": "range(tx, WIDE, WIDE)"},
            "uninitialised-read",
        ),
        Wrong(
            "To the left of the image the index is negative, and wraps round to the end of the row. Clamp it to 0.",
            {"min(max(left + i, 0), width - 1)": "min(left + i, width - 1)"},
            "negative-index",
        ),
        Wrong(
            "To the right of the image the index leaves the row. Clamp it to width - 1, the last column.",
            {"min(max(left + i, 0), width - 1)": "max(left + i, 0)"},
            "out-of-bounds",
        ),
        Wrong(
            "The tile begins RADIUS pixels to the left of the block, or the window is not centred.",
            {"cuda.blockIdx.x * WIDE - RADIUS": "cuda.blockIdx.x * WIDE"},
        ),
        Wrong(
            "Threads outside the image return before they have loaded their part of the halo, which others need.",
            {"    if row < height:\n": "    if row >= height or col >= width:\n        return\n    if row < height:\n"},
            "uninitialised-read",
        ),
        Wrong(
            "The shape of a shared array must be constant: numbers or global names such as LONG, not a computation.",
            {"(HIGH, LONG)": "(HIGH, WIDE + 2 * RADIUS)"},
            "does not compile",
        ),
        Wrong(
            "Outside the image you use 0. The specification repeats the pixel at the border.",
            {"min(max(left + i, 0), width - 1)]": "left + i] if 0 <= left + i < width else float32(0)"},
        ),
        Wrong(
            "The window is applied backwards: weights[0] belongs to the leftmost pixel.",
            {"weights[k]": "weights[2 * RADIUS - k]"},
        ),
        Wrong(
            "The window has WINDOW pixels: the last one is missing.",
            {"range(WINDOW)": "range(WINDOW - 1)"},
        ),
    ],
    hints=[
        "A block of 64 pixels of a row needs 72 of the image. How do 64 threads load 72 pixels?",
        "Loop: i = tx, tx + WIDE, ... below LONG. Element i of the tile is column "
        "blockIdx.x * WIDE - RADIUS + i of the image, clamped.",
        "After the barrier, pixel tx of the block has its window at tile[ty, tx] to tile[ty, tx + 2 * RADIUS].",
    ],
    why="All threads of the block share the copy, the halo included, before any of them may return.",
)


@cuda.jit
def blur_columns(image, weights, out):
    # HOLE about 14 lines: the same down the columns; keep the threads of a warp in one row of the image
    tile = cuda.shared.array((TALL, ACROSS), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    height, width = image.shape
    top = cuda.blockIdx.y * DOWN - RADIUS
    if col < width:
        for i in range(ty, TALL, DOWN):
            tile[i, tx] = image[min(max(top + i, 0), height - 1), col]
    cuda.syncthreads()
    if row < height and col < width:
        total = float32(0)
        for k in range(WINDOW):
            total += weights[k] * tile[ty + k, tx]
        out[row, col] = total
    # END


@cuda.jit
def blur_columns_by_hand(image, weights, out):
    """One loop over all pixels of the tile, in the order of the threads of the block."""
    tile = cuda.shared.array((TALL, ACROSS), float32)
    tid = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    col, row = cuda.grid(2)
    last_row, last_col = image.shape[0] - 1, image.shape[1] - 1
    for i in range(tid, TALL * ACROSS, ACROSS * DOWN):
        y = cuda.blockIdx.y * DOWN + i // ACROSS - RADIUS
        tile[i // ACROSS, i % ACROSS] = image[
            min(max(y, 0), last_row), min(cuda.blockIdx.x * ACROSS + i % ACROSS, last_col)
        ]
    cuda.syncthreads()
    if row <= last_row and col <= last_col:
        total = float32(0)
        for k in range(WINDOW):
            total += weights[k] * tile[cuda.threadIdx.y + k, cuda.threadIdx.x]
        out[row, col] = total


@cuda.jit
def blur_columns_without_tile(image, weights, out):
    col, row = cuda.grid(2)
    height, width = image.shape
    if row < height and col < width:
        total = float32(0)
        for k in range(WINDOW):
            total += weights[k] * image[min(max(row + k - RADIUS, 0), height - 1), col]
        out[row, col] = total


COLUMNS = KernelExercise(
    "99-columns",
    task="Blur down the columns. Each pixel is read once per block, without bank conflicts.",
    spec=down_columns,
    cases=lambda rng: images(rng, ((20, 33), (1, 1), (7, 40), (32, 64)), (ACROSS, DOWN)),
    solutions=[blur_columns, blur_columns_by_hand],
    limits={"global load sectors": 1.1, "bank conflicts": 1.0},
    wrong=[
        Wrong(
            "Right, but every pixel is read from global memory nine times. Load a tile into shared memory first.",
            blur_columns_without_tile,
            "cost: global load sectors",
        ),
        Wrong(
            "The tile is stored by columns, so the threads of a warp are a column of 24 floats apart and meet in few "
            "banks. Keep rows of the image as rows of the tile.",
            {
                "(TALL, ACROSS)": "(ACROSS, TALL)",
                "tile[i, tx]": "tile[tx, i]",
                "tile[ty + k, tx]": "tile[tx, ty + k]",
            },
            "cost: bank conflicts",
        ),
        Wrong(
            "Without a barrier, a thread adds up pixels that its neighbours have not loaded yet.",
            {"    cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "A tile needs RADIUS rows more at both ends, its halo. Here the halo is never loaded.",
            {"range(ty, TALL, DOWN)": "range(ty, DOWN, DOWN)"},
            "uninitialised-read",
        ),
        Wrong(
            "Above the image the index is negative, and wraps round to the last rows. Clamp it to 0.",
            {"min(max(top + i, 0), height - 1)": "min(top + i, height - 1)"},
            "negative-index",
        ),
        Wrong(
            "Below the image the index leaves the array. Clamp it to height - 1.",
            {"min(max(top + i, 0), height - 1)": "max(top + i, 0)"},
            "out-of-bounds",
        ),
        Wrong(
            "The rows are clamped to the width of the image; shape is (height, width).",
            {"height, width = image.shape": "width, height = image.shape"},
            "unwritten",
        ),
        Wrong(
            "Threads below the image return before they have loaded their part of the halo, which others need.",
            {"    if col < width:\n": "    if row >= height or col >= width:\n        return\n    if col < width:\n"},
            "uninitialised-read",
        ),
        Wrong(
            "The shape of a shared array must be constant: numbers or global names such as TALL, not a computation.",
            {"(TALL, ACROSS)": "(DOWN + 2 * RADIUS, ACROSS)"},
            "does not compile",
        ),
        Wrong(
            "Outside the image you use 0. The specification repeats the pixel at the border.",
            {"min(max(top + i, 0), height - 1), col]": "top + i, col] if 0 <= top + i < height else float32(0)"},
        ),
        Wrong(
            "The tile begins RADIUS rows above the block, or the window is not centred.",
            {"cuda.blockIdx.y * DOWN - RADIUS": "cuda.blockIdx.y * DOWN"},
        ),
    ],
    hints=[
        "It is `blur_rows` with the roles of the directions exchanged, but not those of tx and ty: "
        "neighbouring threads still have neighbouring columns.",
        "The tile has TALL rows of ACROSS pixels. Loop over its rows with a step of DOWN.",
        "After the barrier, the window of thread (tx, ty) is tile[ty, tx] to tile[ty + 2 * RADIUS, tx].",
    ],
    why="A warp loads a row of 32 pixels in four sectors, and reads a row of the tile: 32 different banks.",
)

# -- project 3: a stencil over time ---------------------------------------------------------------------------------

STEPS, THREADS = 4, 64  # steps of a launch, and threads of its blocks
KEPT = THREADS - 2 * STEPS  # results of a block


def heat(u, r, steps):
    """Each step adds r * (left - 2 * middle + right); both ends stay as they are."""
    u = u.astype(np.float32)
    for _ in range(steps):
        new = u.copy()
        new[1:-1] += r * (u[:-2] - 2 * u[1:-1] + u[2:])
        u = new
    return u


def rods(rng, sizes, kept, threads):
    for n in sizes:
        case = rng.random(n, np.float32), np.float32(rng.uniform(0.1, 0.4)), Out(n)
        yield Case(case, ceil_div(n, kept), threads, label=f"n = {n}", counted=n % kept == 0)


@cuda.jit
def heat_step(u, r, out):
    # HOLE about 5 lines: one step for each element; the first and the last stay as they are
    i = cuda.grid(1)
    if 0 < i < u.size - 1:
        out[i] = u[i] + r * (u[i - 1] - 2 * u[i] + u[i + 1])
    elif i < u.size:
        out[i] = u[i]
    # END


@cuda.jit
def heat_step_clamped(u, r, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= u.size:
        return
    middle = u[i]
    change = u[max(i - 1, 0)] - 2 * middle + u[min(i + 1, u.size - 1)]
    is_end = i == 0 or i == u.size - 1
    out[i] = middle if is_end else middle + r * change


STEP = KernelExercise(
    "99-step",
    task="Compute one step of heat flowing along a rod whose ends keep their temperature.",
    spec=lambda u, r: heat(u, r, 1),
    cases=lambda rng: rods(rng, (200, 64, 1, 2, 65), 64, 64),
    solutions=[heat_step, heat_step_clamped],
    wrong=[
        Wrong(
            "The ends are never stored. They keep their temperature, but `out` has to have it.",
            {"    elif i < u.size:\n        out[i] = u[i]\n": ""},
            "unwritten",
        ),
        Wrong(
            "Thread 0 has no left neighbour: index -1 is the other end of the rod.",
            {"0 < i < u.size - 1": "i < u.size - 1"},
            "negative-index",
        ),
        Wrong(
            "The last element has no right neighbour.",
            {"0 < i < u.size - 1": "0 < i < u.size"},
            "out-of-bounds",
        ),
        Wrong(
            "Threads past the end store too: the second branch needs a guard.",
            {"elif i < u.size": "else"},
            "out-of-bounds",
        ),
        Wrong(
            "The change must be added to u[i].",
            {"u[i] + r * (u[i - 1]": "r * (u[i - 1]"},
        ),
        Wrong(
            "The middle counts twice: left - 2 * middle + right.",
            {"2 * u[i]": "u[i]"},
        ),
        Wrong(
            "A step in place: a neighbour may have been replaced before it is read. Read `u`, write `out`.",
            {"out[i] = u[i] + r": "u[i] = u[i] + r"},
            "race",
        ),
        Wrong(
            "The right neighbour has the wrong sign: left - 2 * middle + right.",
            {"u[i - 1] - 2 * u[i] + u[i + 1]": "u[i - 1] - 2 * u[i] - u[i + 1]"},
        ),
    ],
    hints=[
        "Three kinds of threads: inside the rod, at an end, past the end.",
        "Inside: 0 < i < u.size - 1. An end copies its temperature.",
        "out[i] = u[i] + r * (u[i - 1] - 2 * u[i] + u[i + 1])",
    ],
    why="Reading one array and writing another makes the order of the threads irrelevant.",
)


@cuda.jit
def heat_steps(u, r, out):
    # HOLE about 16 lines: STEPS steps in shared memory; a block keeps the KEPT elements that its edges do not spoil
    tiles = cuda.shared.array((2, THREADS), float32)
    tid = cuda.threadIdx.x
    i = cuda.blockIdx.x * KEPT + tid - STEPS
    tiles[0, tid] = u[i] if 0 <= i < u.size else float32(0)
    cuda.syncthreads()
    for step in range(STEPS):
        old, new = step % 2, (step + 1) % 2
        value = tiles[old, tid]
        if 0 < tid < THREADS - 1 and 0 < i < u.size - 1:
            value += r * (tiles[old, tid - 1] - 2 * value + tiles[old, tid + 1])
        tiles[new, tid] = value
        cuda.syncthreads()
    if STEPS <= tid < THREADS - STEPS and i < u.size:
        out[i] = tiles[STEPS % 2, tid]
    # END


@cuda.jit
def heat_steps_in_one_tile(u, r, out):
    """One tile and two barriers per step; the own value stays in a register."""
    tile = cuda.shared.array(THREADS, float32)
    tid = cuda.threadIdx.x
    i = cuda.blockIdx.x * KEPT + tid - STEPS
    moves = 0 < tid < THREADS - 1 and 0 < i < u.size - 1
    value = float32(0)
    if 0 <= i < u.size:
        value = u[i]
    for _ in range(STEPS):
        tile[tid] = value
        cuda.syncthreads()
        if moves:
            value += r * (tile[tid - 1] - 2 * value + tile[tid + 1])
        cuda.syncthreads()
    if STEPS <= tid < THREADS - STEPS and i < u.size:
        out[i] = value


TIME = KernelExercise(
    "99-time",
    task="Compute STEPS steps in one launch: read each element once per block, and keep the steps in shared memory.",
    spec=lambda u, r: heat(u, r, STEPS),
    cases=lambda rng: rods(rng, (150, 1, 3, 57, 3 * KEPT), KEPT, THREADS),
    solutions=[heat_steps, heat_steps_in_one_tile],
    limits={"global sectors": 1.1},
    wrong=[
        Wrong(
            "Without a barrier after a step, a thread reads neighbours that are still one step behind, or ahead.",
            {"        tiles[new, tid] = value\n        cuda.syncthreads()\n": "        tiles[new, tid] = value\n"},
            "race",
        ),
        Wrong(
            "Without a barrier after the load, the first step reads neighbours that are not there yet.",
            {"float32(0)\n    cuda.syncthreads()\n": "float32(0)\n"},
            "race",
        ),
        Wrong(
            "One buffer for both steps: a thread overwrites a value that its neighbour still has to read. "
            "Use two in turns, or a second barrier.",
            {"old, new = step % 2, (step + 1) % 2": "old, new = 0, 0", "tiles[STEPS % 2, tid]": "tiles[0, tid]"},
            "race",
        ),
        Wrong(
            "The edges of a block lack a neighbour, and each step spoils one more element. After STEPS steps only "
            "those at least STEPS from both edges are right.",
            {"if STEPS <= tid < THREADS - STEPS and i < u.size:": "if 1 <= tid < THREADS - 1 and 0 <= i < u.size:"},
        ),
        Wrong(
            "Blocks lie side by side without overlap here. Each one keeps KEPT elements, so it begins KEPT after the "
            "last, and STEPS earlier.",
            {"cuda.blockIdx.x * KEPT + tid - STEPS": "cuda.blockIdx.x * THREADS + tid - STEPS"},
            "unwritten",
        ),
        Wrong(
            "The ends of the rod change. Their temperature is fixed: elements 0 and u.size - 1 keep their value.",
            {" and 0 < i < u.size - 1": ""},
        ),
        Wrong(
            "The result is one step short: a launch makes STEPS steps, and the last one writes to tiles[STEPS % 2].",
            {"tiles[STEPS % 2, tid]": "tiles[(STEPS + 1) % 2, tid]"},
        ),
        Wrong(
            "A load outside the rod needs a guard on both sides: i can be negative in the first block.",
            {"0 <= i < u.size else": "i < u.size else"},
            "negative-index",
        ),
        Wrong(
            "Store and barrier are in the branch. A thread that computes nothing has to copy its value as well, and "
            "to reach the barrier.",
            {
                "        tiles[new, tid] = value\n        cuda.syncthreads()\n": "            tiles[new, tid] = value\n"
                "            cuda.syncthreads()\n"
            },
            "uninitialised-read",
        ),
    ],
    hints=[
        "A block of 64 threads loads 64 elements. After one step the outermost two are wrong, since a neighbour is "
        "missing. And after four?",
        "A block keeps KEPT = 64 - 2 * 4 elements, so block b starts at element b * KEPT - STEPS.",
        "Two tiles in shared memory in turns: read tiles[step % 2], write tiles[(step + 1) % 2], then a barrier.",
    ],
    why="Global memory is read and written once for four steps. The price is the overlap: 64 elements for 56 results.",
)

EXERCISES = [COUNT, PRIVATE, ROWS, COLUMNS, STEP, TIME]
