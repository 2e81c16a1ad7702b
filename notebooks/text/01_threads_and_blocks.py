# %% [markdown]
# # 01 Threads and blocks
#
# A launch starts millions of threads that all run the same function: how does each of them find its own element, and how many should you start?
#
# **After this chapter you will be able to**
#
# - compute the index in the block, the index in the grid and the coordinates of any thread, in one, two or three dimensions;
# - choose a grid for any array, write the guard, and say which threads have nothing to do;
# - write a grid-stride loop, and say which thread handles which element in which step;
# - mark the 32 threads of a warp in a two-dimensional block;
# - say why a kernel must not rely on the order of its blocks;
# - look up what a device allows, and tell whether a launch can run and whether it fills the device.
#
# **You need** [00 Start here](00_start.ipynb). No GPU.
#
# **Time:** 60 minutes, with nine exercises.

# %%
import warnings
from functools import partial
from math import ceil

import numpy as np

from gpukit import cuda, device, exercises, indexing, on_gpu, plot, results, show, timing
from gpukit.emulator import KernelError
from gpukit.emulator import cuda as emulated

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")

# %% [markdown]
# ## How many threads?
#
# The next cell times one kernel, `out = a * x + y` on 33 million elements, as a launch of 1 block, of 2, of 4 and so on up to 4096. Kernel, data and GPU stay the same. Times always come from a GPU: the cell measures if there is one here, and otherwise reads a record.

# %% jupyter={"source_hidden": true}
n, threads = 2**25, 256
if on_gpu():
    x, y, out = (cuda.to_device(np.ones(n, np.float32)) for _ in range(3))
    kernel = indexing.axpy_grid_stride
    launches = {2**k: partial(kernel[2**k, threads], np.float32(2.5), x, y, out) for k in range(13)}
    seconds = {blocks: timed.median for blocks, timed in timing.bench_many(launches, min_time=0.1).items()}
    copying = timing.bench(partial(out.copy_to_device, x), min_time=0.1).median / (8 * n)
    mark = device.info().name
else:
    records = results.load("axpy-h200", shape=(n,))
    seconds = {record["blocks"]: record["value"] for record in records}
    copy = results.load("reduce-h200", case="ladder", variant="copy", shape=(2**28,))[0]
    copying = copy["value"] / (8 * 2**28)  # seconds per byte read or written
    mark = results.taken_on(records)

slowest, fastest = max(seconds, key=seconds.get), min(seconds, key=seconds.get)
print(mark)
for blocks in (slowest, fastest):
    print(f"{blocks:4} x {threads} threads: {1e3 * seconds[blocks]:7.3f} ms")
print(f"the same kernel, {seconds[slowest] / seconds[fastest]:.0f} times faster")

# %% [markdown]
# Where does this factor come from, and how many blocks are enough? We will come back to these figures once we know what threads, blocks and devices are.

# %% [markdown]
# ## One function, many threads
#
# A **kernel** is a function for one thread. A **launch** runs it in many threads at once and gives their number in two steps: a **grid** of so many **blocks**, each of so many **threads**. All blocks of a launch have the same size.
#
# Here is the smallest launch worth a picture: eight elements, blocks of four threads, hence two blocks. Each cell is one thread.

# %%
plot.launch(grid=2, block=4);

# %% [markdown]
# Grid and block only *number* the work. The hardware consists of **streaming multiprocessors**, or **SMs**. It assigns each block to one SM, where the block stays until all its threads are done. When a block finishes, the SM takes the next one. Inside an SM, threads run in groups of 32, called **warps**.
#
# This is how a grid of 40 blocks lands on a small GPU of 6 SMs with room for two blocks each, if all blocks take equally long. Which block goes to which SM is up to the hardware, and a kernel cannot choose.

# %%
plot.waves(blocks=40, multiprocessors=6, resident=2);

# %% [markdown]
# ## What a thread can ask
#
# All threads run the same function with the same arguments. A thread learns who it is from four variables, each with the components `x`, `y` and `z`:
#
# | name | what it is | the same for |
# |---|---|---|
# | `cuda.threadIdx` | position of the thread in its block | threads in the same position of all blocks |
# | `cuda.blockIdx` | position of the block in the grid | all threads of a block |
# | `cuda.blockDim` | size of a block, in threads | the whole launch |
# | `cuda.gridDim` | size of the grid, in blocks | the whole launch |
#
# Two kernels that print them, `z` first and `x` last:

# %%
show.source(indexing.print_indices, indexing.print_dimensions)

# %%
print(indexing.listing(indexing.print_indices, 2, 4))
print("...")
print("\n".join(set(indexing.listing(indexing.print_dimensions, 2, 4).splitlines())), " (eight times)")

# %% [markdown]
# The indices differ from thread to thread, the dimensions do not.
#
# `listing` collects what the threads print, and always runs the kernel in the emulator. On a GPU, printed text bypasses Python, and a notebook never sees it. Printing is only for a quick look anyway: a GPU runs millions of threads, which share one small buffer for their text.

# %% [markdown]
# ## One number per thread
#
# Most programs want one number per thread. In one dimension the formula for the **index in the grid** is
#
# ```python
# index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
# ```
#
# and `cuda.grid(1)` is short for it. The index in the *block*, here simply `threadIdx.x`, repeats in every block. Two more kernels print these two indices; here are the first two lines of each block:

# %%
for kernel in (indexing.print_index_in_block, indexing.print_index_in_grid):
    lines = indexing.listing(kernel, 2, 4).splitlines()
    print(*lines[:2], *lines[4:6], "", sep="\n")

# %% [markdown]
# **Predict.** A launch has 10 blocks of 96 threads. Which index in the grid does thread 5 of block 3 have?

# %%
my_answer = None
exercises.check("01-thread", my_answer)

# %% [markdown]
# ## Record, do not print
#
# No two threads share an index in the grid, so each thread can have a row of a table to itself. `indexing.thread_table` launches a kernel in which every thread stores what it knows in its own row. It works on a GPU as well:

# %%
table = indexing.thread_table(grid=2, block=4)
show.table(table, ["block_index", "blockIdx", "threadIdx", "index_in_block", "index"])

# %% [markdown]
# The result is a NumPy array with named fields. Here it answers your prediction; the output is folded.

# %% jupyter={"outputs_hidden": true}
table = indexing.thread_table(grid=10, block=96)
asked = table[(table["blockIdx"][:, 0] == 3) & (table["threadIdx"][:, 0] == 5)]
show.table(asked, ["blockIdx", "threadIdx", "index"])

# %% [markdown]
# ## In which order do the blocks run?
#
# In no order that a program may rely on. This kernel lets us look: the first thread of every block draws a ticket from a counter. `cuda.atomic.add` reads the counter, adds one and writes it back in one uninterruptible step, and returns the old value. So no ticket is drawn twice.

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
# On a GPU the order depends on which SM happens to be faster. The emulator always runs its blocks in ascending order. That is one of the permitted orders, and a program that needs it is wrong, even if the emulator gives the right result.
#
# This freedom has a purpose. Because blocks do not depend on each other, the same launch runs on a small GPU, a few blocks at a time, and on a large one, all at once, without a change to the program.

# %% [markdown]
# ## Two dimensions
#
# For a 4 by 4 matrix it is natural to give each block a square: a grid of 2 by 2 blocks, each of 2 by 2 threads. Sizes are (x, y): x runs to the right, y runs down. The picture shows this launch three times, with three numbers that the threads recorded:

# %%
table = indexing.thread_table(grid=(2, 2), block=(2, 2))
with plot.figure(columns=3, size=(8, 2.7), mark="recorded by the threads") as axes:
    for ax, field in zip(axes, ("block_index", "index_in_block", "index"), strict=True):
        plot.launch((2, 2), (2, 2), label=table[field], title=plot.FIELDS[field], ax=ax)

# %% [markdown]
# The index in the grid counts all threads of block 0, then all of block 1, and so on, as page numbers run through one chapter of a book before the next begins. So the index in the grid is *not* the position in the matrix.

# %% [markdown]
# ## Three dimensions
#
# Here are 2 by 2 by 2 blocks of 3 by 4 by 2 threads, with one slice per z. The numbers are the index in the block: 0 to 11 in the first layer of a block, 12 to 23 in the second.

# %%
plot.launch(grid=(2, 2, 2), block=(3, 4, 2), color_by="block_index", label="index_in_block");

# %% [markdown]
# Look along x, then along y, then from one layer to the next: by how much does the number grow? Write the formula. The function is a **device function**: kernels call it, the host does not. The check calls it in a kernel, with blocks of several shapes.


# %%
@cuda.jit(device=True)
def my_index():
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    # About 2 lines: return the index in the block; the sizes of the block are in
    # `cuda.blockDim`
    ...


exercises.check("01-index", my_index)

# %% [markdown]
# The course's own device functions for this are folded below. The index of a *block* in the grid follows the same rule, with `blockIdx` and `gridDim`.

# %% jupyter={"outputs_hidden": true}
show.source(indexing.index_in_block, indexing.block_index, indexing.index_in_grid)

# %%
table = indexing.thread_table(grid=(2, 2, 2), block=(3, 4, 2))
print(len(np.unique(table["block_index"])), "blocks,", np.bincount(table["block_index"]), "threads in each")
print("indices in the grid:", table["index"].min(), "to", table["index"].max())
show.table(table, ["blockIdx", "threadIdx", "block_index", "index_in_block", "index", "x", "y", "z"], rows=5)

# %% [markdown]
# ## Coordinates: the form that most kernels need
#
# To find its element in a matrix or its pixel in an image, a thread needs two numbers: its column and its row in the whole grid.
#
# ```python
# x = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
# y = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
# ```
#
# `cuda.grid(2)` returns the pair (x, y), and `cuda.grid(3)` returns (x, y, z). A last kernel that prints, and four of its sixteen lines:

# %%
show.source(indexing.print_coordinates)

# %%
print(*indexing.listing(indexing.print_coordinates, (2, 2), (2, 2)).splitlines()[2:6], sep="\n")

# %% [markdown]
# The position in a matrix that is stored row by row follows from the coordinates: y times the width, plus x.

# %%
width = 4
table = indexing.thread_table((2, 2), (2, 2))
with plot.figure(columns=2, size=(6, 2.6), mark="recorded by the threads") as (left, right):
    position = table["y"] * width + table["x"]
    plot.launch((2, 2), (2, 2), label=position, title="position in the matrix: y * width + x", ax=left)
    plot.launch((2, 2), (2, 2), label="index", title="index in the grid", ax=right)

# %% [markdown]
# One trap is so common that it deserves a warning. A launch says (x, y): to the right, then down. An array says `[row, column]`: down, then to the right. So a kernel exchanges the two: `col, row = cuda.grid(2)`, then `matrix[row, col]`.
#
# **Your turn.** Some libraries store matrices column by column. Write the kernel that copies `matrix` into the one-dimensional array `out` in that order.


# %%
@cuda.jit
def columns_first(matrix, out):
    # About 3 lines: find the element of this thread; if there is one, store it in its place of
    # `out`
    ...


exercises.check("01-columns", columns_first)

# %% [markdown]
# ## Warps: what the hardware makes of a block
#
# The hardware cuts every block into warps of 32 threads, in the order of the index in the block. A warp executes one instruction at a time, for all of its threads at once. A thread's position in its warp is its **lane**.
#
# In a block that is 16 wide, a warp covers two rows:

# %%
plot.warps(block=(16, 8));

# %% [markdown]
# In a block that is 32 wide it covers exactly one. This will matter a great deal for memory, which serves a whole warp at a time.
#
# **Predict.** How many warps does a block of 10 by 5 threads have, and how many of their lanes have no thread? Answer with a pair, `my_answer = (warps, lanes)`.

# %%
my_answer = None
exercises.check("01-lanes", my_answer)

# %% jupyter={"outputs_hidden": true}
plot.warps(block=(10, 5));

# %% [markdown]
# Lanes without a thread are not free: the warp occupies as much of the SM, and as many clock cycles, as a full one. So the number of threads in a block should be a multiple of 32.

# %% [markdown]
# ## From threads to the elements of an array
#
# Ten elements, blocks of four threads. Two blocks are too few. Three blocks are twelve threads, two more than there are elements.

# %%
n, threads = 10, 4
blocks = indexing.num_blocks(n, threads)
table = indexing.thread_table(blocks, threads)
plot.mapping(table["x"], n, threads);

# %% [markdown]
# `num_blocks` rounds up. The surplus threads must do nothing, and the kernel has to see to it: this is the **guard**. You will write these lines a hundred times.


# %%
@cuda.jit
def add(x, y, out):
    # About 3 lines: find the index of this thread in the grid; if there is such an element, add
    ...


exercises.check("01-guard", add)

# %%
x, y = np.arange(n, dtype=np.float32), np.full(n, 100, np.float32)
out = np.full(n, -1, np.float32)
add[blocks, threads](x, y, out)
print(out)

# %% [markdown]
# `out` was filled with -1 before the launch. That is a good habit: an element that no thread wrote shows, and does not pass for a result. Until your kernel does something, all ten stay -1.
#
# This launch was given NumPy arrays. Numba copies them to the device before it and back after it. That is convenient, and costs time that a real program saves with `cuda.to_device`.
#
# Now the launch. `grid_for` is a host function, not a kernel: it returns the smallest grid that covers a matrix.


# %%
def grid_for(rows, cols, block):
    # About 1 line: return the grid as (x, y): enough blocks of `block` = (x, y) threads for
    # rows x cols elements
    ...


exercises.check("01-grid", grid_for)

# %% [markdown]
# ## The grid-stride loop
#
# One thread per element ties the launch to the data: twice as many elements, twice as many blocks. A loop unties them. Each thread starts with its own element, as before. Then it jumps ahead by the number of threads in the whole grid, again and again, until the array ends. This is a **grid-stride loop**.
#
# With 29 elements and two blocks of four threads it looks like this. Each column is a thread; the numbers are its elements, one step below the other:

# %%
plot.grid_stride(n=29, threads=4, blocks=2);

# %% [markdown]
# In each step the threads of a warp handle neighbouring elements. That is the point of this stride: memory serves neighbours together.
#
# `cuda.gridsize(1)` is the number of threads in the grid, `gridDim.x * blockDim.x`. Write the loop. A `while` serves as loop and guard. The check also counts memory requests: each element must be computed once.


# %%
@cuda.jit
def axpy(a, x, y, out):
    # About 4 lines: start at this thread's index in the grid, and jump ahead by the number of
    # threads in the grid
    ...


exercises.check("01-stride", axpy)

# %% [markdown]
# **Predict.** 1000 elements, 3 blocks of 64 threads. Which thread handles element 500, of which block, and in which step? How many steps does thread 0 take? The threads' own answer is folded; `thread` is the index in the grid.

# %% jupyter={"outputs_hidden": true}
walk = indexing.grid_stride_table(n=1000, threads=64, blocks=3)
print("element 500:", *(f"{name} {walk[name][500]}" for name in ("block", "thread", "step")))
print("steps of thread 0:", np.count_nonzero(walk["thread"] == 0))

# %% [markdown]
# With this loop the kernel is right for every number of elements, none included, and for every grid. `indexing.axpy` is the course's function around such a kernel.

# %% [markdown]
# ## How many blocks?
#
# `num_blocks` returns enough blocks for one thread per element, but never more than 65535; a grid-stride loop does the rest. For no elements it returns one block, because a launch of no blocks is an error.

# %%
sizing = np.dtype([("elements", np.int64), ("blocks of 256", np.int64), ("steps", np.int64)])
launches = []
for n in (0, 1, 256, 257, 10**6, 10**8):
    blocks = indexing.num_blocks(n)
    launches.append((n, blocks, ceil(n / (blocks * 256))))
show.table(np.array(launches, sizing))

# %% [markdown]
# The cap comes from early GPUs. Today a grid may have 2147483647 blocks along x, but 65535 is still the limit along y and z, and 65535 blocks are more than any GPU runs at a time.

# %% [markdown]
# ## What a device allows
#
# The limits can be read from the device, and the emulator answers for the device that it stands for. The second column is the GPU on which the course notes were measured, as far as they state it:

# %%
device.compare(device.info(), device.RTX_3090)

# %% [markdown]
# - **SMs** run blocks. A grid with fewer blocks than SMs leaves some SMs idle.
# - **Max threads per block** limits the *product* of the three block dimensions; **max block dimensions** limits each of them alone. Both must hold.
# - **Max threads per SM** is how many threads an SM holds at a time, ready to run.
#
# **Predict.** Which of these blocks can be launched: 1024 by 1, 32 by 32, 64 by 64, 1 by 1 by 128? The answers are folded.

# %% jupyter={"outputs_hidden": true}
for block in ((1024, 1), (32, 32), (64, 64), (1, 1, 128)):
    try:
        indexing.thread_table(1, block)
        print(block, "runs")
    except ValueError as error:
        print(block, "does not:", error)

# %% [markdown]
# ## How many blocks does a device want?
#
# An SM holds several blocks at a time, as many as its limits on threads, blocks, registers and shared memory allow. Later chapters explain the last two. An SM has room for a fixed number of warps, and the fraction of that room in use is its **occupancy**. Blocks of 256 threads fill one of these SMs like this:

# %%
plot.multiprocessor(threads=256);

# %% [markdown]
# In every clock cycle each **warp scheduler** picks one of its warps that is ready and issues an instruction for it. A load from memory takes hundreds of cycles: this time is its **latency**. While one warp waits for its loads, the scheduler issues from others. So a GPU wants far more threads than it has arithmetic units.
#
# Now the figures from the beginning. `axpy` reads two values and writes one per element, so its speed is best stated in bytes per second:

# %%
n, threads = 2**25, 256
rates = {blocks: 1e-9 * 3 * 4 * n / time for blocks, time in seconds.items()}
sm_count = device.info().sm_count  # the emulator stands for an H200
with plot.figure(f"axpy, {n:,} float32 elements", size=(8, 3.4), mark=mark) as ax:
    ax.plot(list(rates), list(rates.values()), marker="o", label="axpy")
    ax.axhline(1e-9 / copying, color=plot.PALETTE[1], linestyle="--", label="a copy of an array")
    ax.axvline(sm_count, color="gray", linestyle=":", label=f"{sm_count} SMs")
    ax.set(xlabel="blocks of 256 threads", ylabel="GB/s")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.grid(axis="y")
    ax.legend()
print(f"{max(rates.values()):,.0f} GB/s at most; a copy reaches {1e-9 / copying:,.0f} GB/s")

# %% [markdown]
# Both axes are logarithmic. Up to the number of SMs, twice as many blocks move twice as many bytes: each new block gets an SM to itself. The line keeps climbing after that, because one block does not fill an SM. Once every SM holds as many blocks as it can, more blocks neither help nor hurt.
#
# The kernel levels off below the speed of a copy. The SMs are full, but each thread has only two loads **in flight**, that is, requested and not yet arrived. [Chapter 07](07_reduce.ipynb) gets more out of the same memory with more loads in flight per thread.

# %% [markdown]
# > **From the source.** The course notes launch what this page shows: eight elements in two blocks of four, a 4 by 4 matrix in blocks of 2 by 2, and the three-dimensional launch above. Four kernels print the indices, the dimensions, the index in the block and the index in the grid, and the notes then recommend coordinates for data. In their first listing block 1 printed before block 0. Their device table, of an RTX 3090, is the second column above.
# >
# > The reading notes on MXNet's kernels contribute the grid-stride loop and the launch size, at most 1024 threads per block and min(ceil(n / threads), 65535) blocks.

# %% [markdown]
# ## What goes wrong
#
# Three planted mistakes, the easiest to notice first.
#
# **Rows and columns exchanged.** The matrix has 4 rows and 6 columns. Blocks of 2 by 2 cover it exactly, so no guard seems to be needed. But `cuda.grid(2)` returns x first, and x belongs to the columns.


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
# The emulator stops at the first thread that reaches outside the matrix, and names it. (This cell runs in the emulator on every machine; a GPU would write to memory that is not ours.) Now a guard, with the same mistake:


# %%
@cuda.jit
def number_elements_guarded(matrix):
    row, col = cuda.grid(2)  # planted, still
    if row < matrix.shape[0] and col < matrix.shape[1]:
        matrix[row, col] = row * matrix.shape[1] + col


matrix = np.full((4, 6), -1)
number_elements_guarded[(3, 2), (2, 2)](matrix)
print(matrix)

# %% [markdown]
# No error any more, on any device. The guard keeps threads out of places where they must not be, but it does not send them where they are needed: two columns still hold the -1. On a square matrix the result would be right. So test with a shape that is not square, and fill the result with something that cannot be right.
#
# **Half of the index.** This kernel uses the index in the block as if it were the index in the grid.


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
# Every block processes the same four elements; the rest are never touched. With a single block the kernel is right, so a small test passes.
#
# **The wrong stride.** In this grid-stride loop each thread jumps ahead by the size of its block, not of the grid. If the loop only stored `out[i] = ...`, the result would be right, and merely slow, because elements are computed again and again. It becomes wrong as soon as the loop adds to what is there. Counting the visits shows it in either case:


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
# Every element should have been visited once; the last ones were visited by every block. With a thousand blocks most of the work would be done a thousand times. A kernel that is suspiciously slow is worth a look.

# %% [markdown]
# ## Exercises
#
# **1. A stack of planes.** In three dimensions: every plane of `volume` has its own factor, `out[z, y, x] = volume[z, y, x] * gain[z]`. The stack may have any shape.


# %%
@cuda.jit
def scale_planes(volume, gain, out):
    # About 4 lines: one thread per element; its factor is that of its plane, the first index
    ...


exercises.check("01-planes", scale_planes)

# %% [markdown]
# **2. Any image, any grid.** The negative of chapter 00 again, this time with a grid-stride loop in each direction. Each pixel must be computed once, whatever the grid. `cuda.gridsize(2)` returns the number of threads in the grid along x and along y.


# %%
@cuda.jit
def sweep(image, out):
    # About 8 lines: the negative of an image with a grid-stride loop in each direction
    ...


exercises.check("01-sweep", sweep)

# %%
exercises.progress()

# %% [markdown]
# ## Key points
#
# - A launch is a grid of blocks of threads. They number the work; the hardware has SMs, which run blocks, and warps of 32 threads, which execute together.
# - Index in the block: `threadIdx.z * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x`. Index in the grid: the index of the block times the threads per block, plus the index in the block.
# - For data, use coordinates: `col, row = cuda.grid(2)`, then `array[row, col]`. The index in the grid is not the position in a matrix.
# - Round the number of blocks up, and guard every access. A guard does not make wrong indices right.
# - A grid-stride loop makes a kernel right for any number of elements and any grid.
# - Blocks run in any order. The order that you saw is not the one you will get.
# - A block has at most 1024 threads, and should have a multiple of 32.
# - A GPU hides latency with other warps: launch enough blocks to fill every SM.
#
# **Back:** [00 Start here](00_start.ipynb). **Next:** [02 A matrix product](02_matmul.ipynb).
