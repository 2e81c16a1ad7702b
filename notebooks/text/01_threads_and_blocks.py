# %% [markdown]
# # 01 Threads and blocks
#
# How many threads a launch has, how each of them knows who it is, and how it finds its part of the work. Every GPU program begins with these.
#
# **After this chapter you will be able to**
#
# - compute, by hand, the index in the block, the index in the grid and the coordinates of any thread of a launch in one, two or three dimensions, and check the answer against what the thread itself says;
# - choose a grid for any number of elements, write the guard, and say which threads have nothing to do;
# - write a grid-stride loop, which serves any number of elements with any grid, and say which thread handles which element in which step;
# - point out the 32 threads of a warp inside of a two-dimensional block;
# - say why a kernel must not rely on the order of its blocks;
# - look up what a device allows, and tell from that whether a launch can run.
#
# **You need** [00 Start here](00_start.ipynb). No GPU.
#
# **Time:** 40 minutes.

# %%
import warnings
from functools import partial
from math import ceil

import numpy as np

import gpukit
from gpukit import cuda, device, indexing, on_gpu, plot, results, show, timing
from gpukit.emulator import KernelError
from gpukit.emulator import cuda as emulated

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)

# %% [markdown]
# ## One function, many threads
#
# A **kernel** is a function for one thread. A **launch** runs it in many threads at once, and says how many in two steps: a **grid** of so many **blocks**, and each block of so many **threads**. All blocks of a launch have the same size.
#
# Here is the smallest launch worth a picture: eight elements to work on, blocks of four threads, hence two blocks. Each cell is one thread.

# %%
plot.launch(grid=2, block=4);

# %% [markdown]
# Grid, block and thread are a way to *number* the work; nothing in a GPU is built as two blocks of four. What is built is a number of **streaming multiprocessors** (SMs). The hardware gives each block to one SM, where it stays until all its threads are done. There its threads are executed in groups of 32, called **warps**. How many blocks run at the same time, and on which SM, is for the hardware to decide, and the program does not see it.

# %% [markdown]
# ## What a thread can ask
#
# All threads run the same function with the same arguments. They do different things only because each can ask who it is. There are four things to ask for, and each has three components, `x`, `y` and `z`:
#
# | name | what it is | the same for |
# |---|---|---|
# | `cuda.threadIdx` | where the thread is in its block | threads in the same place of all blocks |
# | `cuda.blockIdx` | where the block is in the grid | all threads of a block |
# | `cuda.blockDim` | how many threads a block has | the whole launch |
# | `cuda.gridDim` | how many blocks the grid has | the whole launch |
#
# Two kernels that print them, `z` first and `x` last, as the documents do:

# %%
show.source(indexing.print_indices, indexing.print_dimensions)

# %%
print(indexing.listing(indexing.print_indices, 2, 4))

# %%
print(indexing.listing(indexing.print_dimensions, 2, 4))

# %% [markdown]
# Each of the eight threads printed one line. The indices differ from thread to thread, the dimensions do not.
#
# `listing` is a small helper that collects what the threads print. It always runs the kernel in the emulator, on any machine: on a GPU the printed text does not pass through Python, it goes straight to the standard output of the process, and a notebook never sees it. For anything but a quick look, printing is the wrong tool anyway: a GPU runs millions of threads, and they share one small buffer for their text. From here on the threads of this chapter will **record** instead.

# %% [markdown]
# ## One number per thread
#
# Two indices are more than most programs want. Two sums make one number of them: the index in the block, and the index in the grid. Written for three dimensions they serve one and two as well, since a missing dimension has size 1 and index 0.

# %%
show.source(indexing.index_in_block, indexing.block_index, indexing.index_in_grid)

# %% [markdown]
# These are **device functions**: other GPU code calls them, the host does not. In both formulas `x` runs fastest: threads that are neighbours along `x` have numbers that follow one another, and the next `y` begins where a row along `x` ends. In one dimension they shrink to what is found in almost every kernel:
#
# ```python
# index_in_grid = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
# ```
#
# `cuda.grid(1)` is short for that. The next two listings show the difference: the index in the block comes again in every block, the index in the grid does not.

# %%
print(indexing.listing(indexing.print_index_in_block, 2, 4))

# %%
print(indexing.listing(indexing.print_index_in_grid, 2, 4))

# %% [markdown]
# ## Record, not print
#
# The index in the grid is what makes recording possible: no two threads share it, so each thread can have a row of a table to itself, and no two write to the same place. This kernel writes down everything that a thread knows:

# %%
show.source(indexing.record_threads)

# %%
table = indexing.thread_table(grid=2, block=4)
show.table(table, ["block_index", "blockIdx", "threadIdx", "index_in_block", "index", "x", "warp", "lane"])

# %% [markdown]
# The result is a NumPy array with named fields, so it can be asked anything. Here: is there exactly one thread for each number from 0 to 7?

# %%
print(np.array_equal(np.sort(table["index"]), np.arange(8)))

# %% [markdown]
# **Check yourself.** A launch has 10 blocks of 96 threads. What is the index in the grid of thread 5 of block 3? How many threads come before it? Decide before you run the next cell.

# %%
table = indexing.thread_table(grid=10, block=96)
asked = table[(table["blockIdx"][:, 0] == 3) & (table["threadIdx"][:, 0] == 5)]
show.table(asked, ["blockIdx", "threadIdx", "index"])

# %% [markdown]
# ## In which order do the blocks run?
#
# In none that a program may rely on. The documents saw it in their first listing: block 1 had printed before block 0.
#
# This kernel lets us look. The first thread of every block draws a ticket from a counter. `cuda.atomic.add` reads the counter, adds one and writes it back in one step that cannot be interrupted, and gives the value from before, so no ticket is drawn twice.

# %%
show.source(indexing.record_block_order)

# %%
order = indexing.block_order(blocks=1000)
again = indexing.block_order(blocks=1000)
print("the first 20 blocks:", *order[:20])
print("in a second launch: ", *again[:20])
print("the same 1000 both times:", np.array_equal(order, again))
print("all in ascending order:  ", np.array_equal(order, np.arange(1000)))

# %% [markdown]
# On a GPU the blocks are spread over the SMs, and who comes first depends on who happens to be faster. The emulator takes its blocks in ascending order, always. That is one of the orders that are allowed, and no more than that: a program that works only in this order is wrong, even if the emulator runs it to your satisfaction.
#
# The freedom has a purpose. Because blocks do not depend on each other, the same launch runs on a small GPU, a few blocks at a time, and on a large one, all of them at once, and nobody has to change the program.

# %% [markdown]
# ## Two dimensions
#
# For a matrix of 4 by 4 it is natural to give each block a square: a grid of 2 by 2 blocks, each with 2 by 2 threads. Sizes are written (x, y), where x runs to the right and y runs down. Above each block in the picture is its `blockIdx`.

# %%
plot.launch(grid=(2, 2), block=(2, 2), color_by="index", label="index");

# %%
print(indexing.listing(indexing.print_index_in_grid, (2, 2), (2, 2)))

# %% [markdown]
# The 16 threads are numbered from 0 to 15, but not row by row through the matrix. First come all threads of block 0, then all of block 1, and so on, as the pages of a book go through the first chapter before the second begins. Keep the picture in mind: the index in the grid is *not* the place in the matrix.

# %% [markdown]
# ## Three dimensions
#
# The third dimension adds nothing new. The documents launch 2 by 2 by 2 blocks of 3 by 4 by 2 threads. In the picture each z has a slice of its own, and in the cells are the numbers inside of the block: from 0 to 11 in the first layer of a block, and 12 to 23 in its second.

# %%
plot.launch(grid=(2, 2, 2), block=(3, 4, 2), color_by="block_index", label="index_in_block");

# %%
table = indexing.thread_table(grid=(2, 2, 2), block=(3, 4, 2))
print(len(np.unique(table["block_index"])), "blocks,", np.bincount(table["block_index"]), "threads in each")
print("indices in the grid:", table["index"].min(), "to", table["index"].max())
show.table(table, ["blockIdx", "threadIdx", "block_index", "index_in_block", "index", "x", "y", "z"], rows=8)

# %% [markdown]
# **Check yourself.** In this launch, what is the index in the block of the thread whose `threadIdx` is `(2, 1, 1)`? And what is its index in the grid, if its `blockIdx` is `(0, 1, 0)`?

# %%
index_in_block = 1 * (3 * 4) + 1 * 3 + 2
print("by the formulas:", index_in_block, "and", 2 * 24 + index_in_block)

is_asked = (table["threadIdx"] == (2, 1, 1)).all(axis=1) & (table["blockIdx"] == (0, 1, 0)).all(axis=1)
show.table(table[is_asked], ["blockIdx", "threadIdx", "block_index", "index_in_block", "index"])

# %% [markdown]
# ## Coordinates: the form that most kernels need
#
# To find its element in a matrix or its pixel in an image, a thread does not need one number, it needs two: how far to the right it is in the whole grid, and how far down.
#
# ```python
# x = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
# y = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
# ```
#
# The documents recommend to think in these, and print them beside the index in the block:

# %%
show.source(indexing.print_coordinates)

# %%
print(indexing.listing(indexing.print_coordinates, (2, 2), (2, 2)))

# %% [markdown]
# `cuda.grid(2)` gives the pair (x, y), and `cuda.grid(3)` gives (x, y, z). From the coordinates follows the place in a matrix that is stored row by row: y times the width, plus x. Beside it once more the index in the grid, of the very same threads:

# %%
table = indexing.thread_table((2, 2), (2, 2))
width = 4
with plot.figure(columns=2, size=(6, 2.6)) as (left, right):
    place = table["y"] * width + table["x"]
    plot.launch((2, 2), (2, 2), label=place, title="place in the matrix: y * width + x", ax=left)
    plot.launch((2, 2), (2, 2), label="index", title="index in the grid", ax=right)

# %% [markdown]
# One trap is so common that it deserves a name before we meet it. A launch says (x, y): to the right, then down. An array says `[row, column]`: down, then to the right. So the kernel has to turn the pair round: `col, row = cuda.grid(2)`, and then `array[row, col]`.

# %% [markdown]
# ## Warps: what the hardware makes of a block
#
# The hardware cuts every block into warps of 32 threads, in the order of the index in the block. A warp executes one instruction at a time, for all of its threads at once. A thread's place in its warp is called its **lane**. The column `lane` in the table above was not computed: each thread asked for `cuda.laneid`, which on a GPU is a register of the hardware.
#
# In a block that is 16 wide, a warp takes two rows:

# %%
plot.warps(block=(16, 8));

# %% [markdown]
# In a block that is 32 wide it takes exactly one. This will matter a great deal once memory comes into play, because memory serves a whole warp at a time.
#
# **Check yourself.** A block of 10 by 5 threads: how many warps are that, and how many lanes have no thread? What is the lane of the thread with x = 3, y = 3?

# %%
plot.warps(block=(10, 5));

# %%
table = indexing.thread_table(1, (10, 5))
asked = table[(table["x"] == 3) & (table["y"] == 3)]
show.table(asked, ["x", "y", "index_in_block", "warp", "lane"])

# %% [markdown]
# Lanes without a thread are not free: the warp takes a place on the SM and time to execute as if it were full. Therefore the number of threads in a block should be a multiple of 32.

# %% [markdown]
# ## From threads to the elements of an array
#
# Now to work: ten elements, blocks of four threads. Two blocks are too few. Three blocks are twelve threads, two more than there are elements.

# %%
n, threads = 10, 4
blocks = indexing.num_blocks(n, threads)
table = indexing.thread_table(blocks, threads)
plot.mapping(table["x"], n, threads);

# %% [markdown]
# `num_blocks` rounds up. The threads that are left over must do nothing, and it is for the kernel to see to it: this is the guard. Type the kernel below yourself, once; you will write its first two lines a hundred times.


# %%
@cuda.jit
def scale(a, x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i]


x = np.arange(n, dtype=np.float32)
out = np.full(n, -1, np.float32)
scale[blocks, threads](np.float32(2), x, out)
print(out)

# %% [markdown]
# Here the launch was given NumPy arrays. They are copied to the device before it and back after it, which is convenient, and costs time that a real program would rather save.
#
# The result was filled with -1 before the launch. That is a good habit: an element that no thread has written to then shows, and does not pass for a result.

# %% [markdown]
# ## The grid-stride loop
#
# One thread per element ties the launch to the data: twice as many elements, twice as many blocks. A small change of the kernel unties them. Each thread begins with its own element, as before; then it goes on by as many elements as there are threads in the whole grid, until the array ends.

# %%
show.source(indexing.axpy_grid_stride)

# %% [markdown]
# `cuda.gridsize(1)` is the number of threads in the grid, `gridDim.x * blockDim.x`. The condition of the loop is the guard at the same time.
#
# With 29 elements and two blocks of four threads, the walk looks like this. Each column is a thread; the numbers are the elements that it handles, one step below the other:

# %%
plot.grid_stride(n=29, threads=4, blocks=2);

# %% [markdown]
# In each step the threads of a warp handle elements that lie side by side. That is the point of the stride: memory serves neighbours together.
#
# Again, let the threads say it themselves. Each writes into the row of an element its own number and the step it was in:

# %%
walk = indexing.grid_stride_table(n=29, threads=4, blocks=2)
stride = 2 * 4
element = np.arange(29)
print("thread is element modulo stride:", np.array_equal(walk["thread"], element % stride))
print("step is element divided by stride:", np.array_equal(walk["step"], element // stride))

# %% [markdown]
# **Check yourself.** 1000 elements, 3 blocks of 64 threads. Which thread handles element 500 (its index in the grid), of which block, and in which step? How many steps does thread 0 take?

# %%
walk = indexing.grid_stride_table(n=1000, threads=64, blocks=3)
print("element 500:", *(f"{name} {walk[name][500]}" for name in ("block", "thread", "step")))
print("steps of thread 0:", np.count_nonzero(walk["thread"] == 0))

# %% [markdown]
# The loop makes the kernel right for every number of elements and every grid, none and one included. `indexing.axpy` is the function around this kernel, computing `a * x + y`; here it is against NumPy, for sizes that fit and sizes that do not:

# %%
random = np.random.default_rng(1)
for n in (0, 1, 31, 256, 1000):
    x, y = random.random((2, n), np.float32)
    expected = np.float32(2.5) * x + y
    for blocks, threads in ((1, 32), (3, 64), (40, 256)):
        result = indexing.axpy(2.5, x, y, threads=threads, blocks=blocks)
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    print(f"{n:5} elements: right with 1, 3 and 40 blocks")

# %% [markdown]
# (The comparison leaves room for the last digit: a GPU multiplies and adds in one instruction that rounds once, NumPy rounds twice.)

# %% [markdown]
# ## How many blocks?
#
# `num_blocks` follows the rule in the notes on MXNet: as many blocks as there are elements for, but never more than 65535; a grid-stride loop does the rest. For no elements at all it gives one block, since a launch of no blocks is an error; the loop of that block ends before it begins.

# %%
sizing = np.dtype([("elements", np.int64), ("blocks of 256", np.int64), ("steps", np.int64)])
launches = []
for n in (0, 1, 256, 257, 10**6, 10**8):
    blocks = indexing.num_blocks(n)
    launches.append((n, blocks, ceil(n / (blocks * 256))))
show.table(np.array(launches, sizing))

# %% [markdown]
# A million elements still have a thread each. This is what such a launch looks like, with the middle left out:

# %%
plot.launch(grid=indexing.num_blocks(10**6), block=256, label="index");

# %% [markdown]
# The limit comes from early GPUs. Since then a grid may have 2147483647 blocks along x, but 65535 is still the limit along y and z, and 65535 blocks are still more than any GPU runs at a time.

# %% [markdown]
# ## What a device allows
#
# Everything above was about numbering. What is really there can be asked of the device, and the emulator answers for the device that it stands for. Beside it, as far as they state it, the device that the documents were measured on:

# %%
device.compare(device.info(), device.RTX_3090)

# %% [markdown]
# Read it with this chapter in mind:
#
# - **SMs** run blocks. A grid with fewer blocks than there are SMs leaves some of them without work.
# - **Max threads per block** limits the *product* of the three block dimensions; **max block dimensions** limits each of them alone. Both have to hold.
# - **Max threads per SM**, where it is stated, says how many threads an SM holds at a time, ready to run. While one warp waits for memory another one executes. So a GPU wants far more threads than it has arithmetic units.
#
# **Check yourself.** Which of these blocks can be launched: 1024 by 1, 32 by 32, 64 by 64, 1 by 1 by 128?

# %%
for block in ((1024, 1), (32, 32), (64, 64), (1, 1, 128)):
    try:
        indexing.thread_table(1, block)
        print(block, "runs")
    except ValueError as error:
        print(block, "does not:", error)

# %% [markdown]
# ## How many blocks does a device want?
#
# A block runs on one SM, so one block keeps one SM busy and leaves all others idle. The grid-stride loop lets us see what that costs: the same kernel does the same work with any number of blocks, so the number of blocks is all that changes. The next cell shows how many bytes per second it moves; `axpy` reads two values and writes one for each element. A time comes from a GPU or not at all: if there is one here, the cell measures, and otherwise it reads what was recorded on another one, and says on which (`gpukit bench axpy` makes such a record).

# %%
n, threads = 2**25, 256
if on_gpu():
    x, y, out = (cuda.to_device(np.ones(n, np.float32)) for _ in range(3))
    kernel = indexing.axpy_grid_stride
    launches = {2**k: partial(kernel[2**k, threads], np.float32(2.5), x, y, out) for k in range(13)}
    seconds = {blocks: timed.median for blocks, timed in timing.bench_many(launches, min_time=0.1).items()}
    mark = device.info().name
else:
    records = results.load("axpy-h200", shape=(n,))
    seconds = {record["blocks"]: record["value"] for record in records}
    mark = results.taken_on(records)

rates = {blocks: 1e-9 * 3 * 4 * n / time for blocks, time in seconds.items()}
print(mark)
for blocks, rate in rates.items():
    print(f"{blocks:5} blocks: {rate:7.1f} GB/s")

sm_count = device.info().sm_count  # the emulator stands for an H200
with plot.figure(f"axpy, {n:,} float32 elements", size=(8, 3.4), mark=mark) as ax:
    ax.plot(list(rates), list(rates.values()), marker="o")
    ax.axvline(sm_count, color="gray", linestyle=":", label=f"{sm_count} SMs")
    ax.set(xlabel="blocks of 256 threads", ylabel="GB/s")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.grid(axis="y")
    ax.legend()

# %% [markdown]
# Both axes are logarithmic. Up to the number of SMs, twice as many blocks move twice as many bytes: each new block has an SM to itself. Beyond, the line goes on climbing, since one block of 256 threads does not fill an SM: it holds 2048 threads, which is eight of these blocks, and while the warps of one wait for memory those of another go on. Where every SM has its eight, memory delivers no faster, and more blocks do neither good nor harm.
#
# ## What goes wrong
#
# Three mistakes, planted on purpose, in the order of how hard they are to notice.
#
# **Rows and columns exchanged.** The matrix has 4 rows and 6 columns; blocks of 2 by 2 cover it exactly, so no guard seems to be needed. But `cuda.grid(2)` gives x first, and x belongs to the columns.


# %%
@emulated.jit
def number_elements(matrix):
    row, col = cuda.grid(2)  # planted: this should be col, row
    matrix[row, col] = row * matrix.shape[1] + col


matrix = np.full((4, 6), -1)
try:
    number_elements[(3, 2), (2, 2)](matrix)
except KernelError as error:
    print(error)

# %% [markdown]
# The emulator stops at the first thread that leaves the matrix and names it. (It runs this cell on every machine; a GPU would write to memory that is not ours.) Now see what a guard does to the same mistake:


# %%
@cuda.jit
def number_elements_guarded(matrix):
    row, col = cuda.grid(2)  # planted, still
    if row < matrix.shape[0] and col < matrix.shape[1]:
        matrix[row, col] = row * matrix.shape[1] + col


number_elements_guarded[(3, 2), (2, 2)](matrix)
print(matrix)

# %% [markdown]
# No error any more, on any device. The guard keeps threads out of places where they must not be, but it does not send them where they are needed: two columns still hold the -1 from before. On a square matrix the result would have been right, and in an array of zeros two columns of zeros may look right. So test with a shape that is not square, and fill the result with something that cannot be right.
#
# **Half of the address.** Here the kernel uses the index in the block as if it were the index in the grid.


# %%
@cuda.jit
def scale_block(a, x, out):
    i = cuda.threadIdx.x  # planted: this should be cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i]


x = np.arange(10, dtype=np.float32)
out = np.full(10, -1, np.float32)
scale_block[3, 4](np.float32(2), x, out)
print(out)

table = indexing.thread_table(3, 4)
plot.mapping(table["threadIdx"][:, 0], 10, 4);

# %% [markdown]
# All blocks do the same four elements, nobody does the others. With a single block the kernel is right, so a small test passes.
#
# **The wrong stride.** In this grid-stride loop, each thread goes on by the threads of its block, not of the grid. If the loop only wrote `out[i] = ...`, the result would be right, and merely slow, because elements are done again and again. It becomes wrong as soon as the loop adds to what is there. Counting the visits shows it in either case:


# %%
@cuda.jit
def count_visits(visits):
    i = cuda.grid(1)
    while i < visits.size:
        cuda.atomic.add(visits, i, 1)
        i += cuda.blockDim.x  # planted: this should be cuda.gridsize(1)


visits = np.zeros(24, np.int64)
count_visits[3, 4](visits)
print(visits)

# %% [markdown]
# Every element should have been visited once. Here the last ones were visited by every block. With a thousand blocks instead of three, most of the work would be done a thousand times: a kernel that is suspiciously slow is worth a look.

# %% [markdown]
# ## Exercises
#
# `gpukit.trace`, which the next chapter introduces, runs a launch in the emulator on any machine, counts what it does, and goes on where a plain launch would stop. It checks your kernels here.
#
# **1. Every third element.** Write a kernel with a grid-stride loop that copies every third element of `x`: `out[i]` becomes `x[3 * i]`. It must be right for any number of elements with any grid, and write each element once.


# %%
@cuda.jit
def every_third(x, out):
    i = cuda.grid(1)  # your kernel; this one has no loop, and no guard
    out[i] = x[3 * i]


for n in (1, 29, 1000):
    for blocks, threads in ((1, 32), (3, 64), (40, 256)):
        x, out = np.arange(3 * n, dtype=np.float32), np.full(n, -1, np.float32)
        trace = gpukit.trace(every_third[blocks, threads], x, out)
        stores = sum(access.requests * access.active_lanes for access in trace.accesses if access.op == "store")
        right = np.array_equal(out, x[::3]) and not trace.findings
        verdict = "not yet" if not right else "right" if stores == n else "right, but elements are written again"
        print(f"{n:4} elements, {blocks:2} blocks of {threads:3}: {verdict}")

# %% [markdown]
# **2. Down the columns.** Number the elements of a matrix down its columns: 0, 1, 2 ... in the first one, and on from there in the next. One thread for each element, in blocks of 16 by 16; the matrix may have any shape.


# %%
@cuda.jit
def number_down(matrix):
    col, row = cuda.grid(2)
    if row < matrix.shape[0] and col < matrix.shape[1]:
        matrix[row, col] = row * matrix.shape[1] + col  # your formula; this one goes along the rows


for rows, columns in ((4, 6), (17, 40), (33, 5)):
    matrix = np.full((rows, columns), -1)
    trace = gpukit.trace(number_down[(ceil(columns / 16), ceil(rows / 16)), (16, 16)], matrix)
    expected = np.arange(rows * columns).reshape(columns, rows).T
    print(f"{rows} x {columns}:", "right" if np.array_equal(matrix, expected) and not trace.findings else "not yet")

# %% [markdown]
# ## Key points
#
# - A launch is a grid of blocks of threads. They number the work; the hardware has SMs, which run blocks, and warps of 32 threads, which execute together.
# - Index in the block: `threadIdx.z * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x`. Index in the grid: the block's index times the threads per block, plus that.
# - For data, use coordinates: `col, row = cuda.grid(2)`, then `array[row, col]`. The index in the grid is not the place in a matrix.
# - Round the number of blocks up, and guard every access. A guard does not make wrong indices right.
# - A grid-stride loop makes a kernel right for any number of elements and any grid.
# - Blocks run in any order. The order in which you saw them is not the one you will get.
# - A block's product of dimensions is limited to 1024 threads, and should be a multiple of 32.
#
# **Back:** [00 Start here](00_start.ipynb). **Next:** [02 A matrix product](02_matmul.ipynb).
