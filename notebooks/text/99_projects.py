# %% [markdown]
# # 99 Projects
#
# Can you take a problem from a question to a kernel that is right, sound and lean? Three projects, each of which starts from one NumPy function and a blank page: a histogram, a blur, and heat that flows along a rod.
#
# **After this page you will be able to**
#
# - build a kernel in steps from a plain specification, and have each step checked;
# - use atomics where threads meet, and keep them off global memory;
# - load a tile with its halo, coalesced and without bank conflicts;
# - compute several time steps in one launch, and say what the overlap costs;
# - lower a kernel's counts below par.
#
# **You need** chapters [01](01_threads_and_blocks.ipynb), [03](03_shared_memory.ipynb) and [04](04_bank_conflicts.ipynb); for the histogram also the first half of [07](07_reduce.ipynb). No GPU.
#
# **Time:** 90 minutes for each project.

# %%
import warnings
from math import ceil

import numpy as np

from gpukit import cuda, exercises, on_gpu, plot, show, timing, trace
from gpukit.backend import float32, int32
from gpukit.exercises.chapter_99 import BINS, histogram

warnings.filterwarnings("ignore", ".*Grid size")  # grids that are small for a GPU, on purpose
grey = plot.photograph().mean(axis=2).astype(np.uint8)


def report(name, launch, nbytes):
    """On a GPU, time a kernel that has passed its check."""
    if on_gpu() and exercises.progress().state(name) == "passed":
        timed = timing.bench(launch, name=name)
        print(f"{timed}\n{timed.gbps(nbytes):,.0f} GB/s")


# %% [markdown]
# The rules are the same for all three. The starter gives the signature and an estimate of the length. The check tells you what is wrong, and `exercises.hint` helps. A kernel that passes gets a score: sectors of global memory, wavefronts of shared memory and barriers, added up for one launch. Par is the course's solution, which leaves room below it: that is what the stretch goals are for. Where a goal needs another launch than the check's, count with `trace(kernel[grid, block], ...)`.

# %% [markdown]
# ## Project 1: a histogram
#
# **How bright is a photograph?** A histogram counts how often each value occurs. The specification adds to an array of counts, which starts as zeros:

# %%
show.source(histogram)

# %% [markdown]
# The difficulty is that the *data* decides where a thread writes, so two threads can want the same element of `counts` at the same time.
#
# **Milestone 1: right.** Any number of pixels, any grid.


# %%
@cuda.jit
def count_values(image, counts):
    # About 4 lines: go through the pixels with a grid-stride loop, and count each in the bin of
    # its value
    ...


exercises.check("99-count", count_values)

# %% [markdown]
# A photograph has large areas of one value. There the threads of a warp all want the same bin, and their atomics are carried out one after the other. Atomics in shared memory are faster, and only the threads of one block compete for them.
#
# **Milestone 2: a private histogram for each block.** Count in shared memory, then add the result to `counts`. A block may have fewer threads than the 256 `BINS`.


# %%
@cuda.jit
def count_in_blocks(image, counts):
    # About 11 lines: count in a shared array of BINS int32 first; at the end add it to `counts`
    ...


exercises.check("99-private", count_in_blocks)

# %%
pixels = cuda.to_device(grey.reshape(-1))
counts, scratch = (cuda.to_device(np.zeros(BINS, np.int32)) for _ in range(2))
count_in_blocks[64, 256](pixels, counts)
report("99-private", lambda: count_in_blocks[64, 256](pixels, scratch), pixels.size)

expected = np.bincount(grey.reshape(-1), minlength=BINS)
with plot.figure(f"Brightness of {grey.size:,} pixels", size=(8, 2.8), mark="counted by your kernel") as ax:
    ax.bar(range(BINS), counts.copy_to_host(), width=1, label="your kernel")
    ax.step(range(BINS), expected, color=plot.PALETTE[1], where="mid", linewidth=0.8, label="NumPy")
    ax.set(xlabel="value", ylabel="pixels", xlim=(0, BINS - 1))
    ax.legend()

# %% [markdown]
# **Stretch goals.**
#
# - Most bins of a small block stay empty. Get below par in global sectors by adding only those that do not.
# - Give every warp of a block a histogram of its own, and add them up at the end. For which image does the trace show fewer wavefronts, for a random one or for one of a single value?
# - Neighbouring pixels are often equal. Let each thread take eight in a row and add runs of equal ones in one go. What does that do to the sectors?

# %% [markdown]
# ## Project 2: a separable blur
#
# **What does a blur cost?** Each pixel becomes a weighted mean of its neighbourhood, here 9 by 9 pixels: 81 multiplications per pixel. If the weights are a product of a row and a column, as a Gaussian's are, two passes of 9 give the same result: one along the rows and one down the columns. The specifications repeat the border pixels outside the image:

# %%
show.source(exercises.get("99-rows").spec, exercises.get("99-columns").spec)

# %% [markdown]
# Both passes load a **tile** of the image with its **halo**, `RADIUS` pixels more at either end, into shared memory.

# %%
from gpukit.exercises.chapter_99 import ACROSS, DOWN, HIGH, LONG, RADIUS, TALL, WIDE, WINDOW

print(f"window: {WINDOW} = 2 * {RADIUS} + 1 pixels")
print(f"rows:    block (WIDE, HIGH) = ({WIDE}, {HIGH}), tile HIGH x LONG = {HIGH} x {LONG}")
print(f"columns: block (ACROSS, DOWN) = ({ACROSS}, {DOWN}), tile TALL x ACROSS = {TALL} x {ACROSS}")

# %% [markdown]
# **Milestone 1: along the rows.** Each pixel is read from global memory once per block.


# %%
@cuda.jit
def blur_rows(image, weights, out):
    # About 14 lines: load LONG pixels of each row into a tile in shared memory, then add up
    # from there
    ...


exercises.check("99-rows", blur_rows)

# %% [markdown]
# **Milestone 2: down the columns.** The same again, but a warp that walked down a column would touch 32 rows of the image. Keep it in a row, in global memory and in the tile.


# %%
@cuda.jit
def blur_columns(image, weights, out):
    # About 14 lines: the same down the columns; keep the threads of a warp in one row of the
    # image
    ...


exercises.check("99-columns", blur_columns)

# %%
weights = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / 2) ** 2).astype(np.float32)
weights /= weights.sum()
height, width = grey.shape
image, factors = cuda.to_device(grey.astype(np.float32)), cuda.to_device(weights)
across, both = (cuda.to_device(np.full(grey.shape, 230, np.float32)) for _ in range(2))
grids = (ceil(width / WIDE), ceil(height / HIGH)), (ceil(width / ACROSS), ceil(height / DOWN))
blur_rows[grids[0], (WIDE, HIGH)](image, factors, across)
blur_columns[grids[1], (ACROSS, DOWN)](across, factors, both)
report("99-rows", lambda: blur_rows[grids[0], (WIDE, HIGH)](image, factors, across), 8 * grey.size)
report("99-columns", lambda: blur_columns[grids[1], (ACROSS, DOWN)](across, factors, both), 8 * grey.size)

with plot.figure(columns=3, size=(8, 3.4), mark="blurred by your kernels") as axes:
    pictures = {"before": grey, "after the rows": across.copy_to_host(), "after the columns": both.copy_to_host()}
    for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
        plot.image(picture.astype(np.uint8), title, ax=ax)

# %% [markdown]
# **Stretch goals.**
#
# - Every warp reads the nine weights from global memory, one after the other. Read them once, one per lane, pass them on with `cuda.shfl_sync`, and get well below par.
# - Let each thread of the second pass compute four rows. What happens to the halo's share of the tile?
# - Do both passes in one kernel, with a halo in both directions. How many sectors does that save, and how many multiplications does it add?

# %% [markdown]
# ## Project 3: a stencil over time
#
# **How does heat spread along a rod?** In each step every element moves towards the mean of its neighbours, and both ends keep their temperature:

# %%
from gpukit.exercises.chapter_99 import KEPT, STEPS, THREADS, heat

show.source(heat)

# %% [markdown]
# **Milestone 1: one step per launch.** A step must have ended everywhere before the next begins. A launch gives that for free.


# %%
@cuda.jit
def heat_step(u, r, out):
    # About 5 lines: one step for each element; the first and the last stay as they are
    ...


exercises.check("99-step", heat_step)

# %% [markdown]
# Each step reads and writes the whole rod in global memory, for five operations per element: the kernel is **memory-bound**. To do better, a block loads a piece of the rod once and computes several steps in shared memory. The price: at the edges of the piece a neighbour is missing, and with every step one more element at either end is wrong. So the pieces overlap, and a block keeps only the `KEPT` elements that are right to the end:

# %% jupyter={"source_hidden": true}
step, thread = np.indices((STEPS + 1, THREADS))
right = np.minimum(thread, THREADS - 1 - thread) >= step
with plot.figure(f"{THREADS} elements loaded, {KEPT} right after {STEPS} steps", size=(8, 1.9), mark="a drawing") as ax:
    ax.pcolormesh(right, cmap="Blues", vmin=-0.2, vmax=1.6, edgecolor="white", linewidth=0.5)
    ax.set(xlabel="thread of the block (dark: its element is right)", ylabel="steps done")
    ax.set_yticks(np.arange(STEPS + 1) + 0.5, range(STEPS + 1))
    ax.invert_yaxis()

# %% [markdown]
# **Milestone 2: `STEPS` steps per launch.** Block b keeps elements b * `KEPT` to (b + 1) * `KEPT` - 1, and loads `STEPS` more on either side.


# %%
@cuda.jit
def heat_steps(u, r, out):
    # About 16 lines: STEPS steps in shared memory; a block keeps the KEPT elements that its
    # edges do not spoil
    ...


exercises.check("99-time", heat_steps)

# %%
start = np.zeros(300, np.float32)
start[100:160] = 1
now, after = cuda.to_device(start), cuda.to_device(np.zeros_like(start))
for _ in range(50):
    heat_steps[ceil(start.size / KEPT), THREADS](now, np.float32(0.4), after)
    now, after = after, now

with plot.figure(f"Heat after {50 * STEPS} steps", size=(8, 2.8), mark="computed by your kernel") as ax:
    ax.plot(start, color="gray", linestyle=":", label="at the start")
    ax.plot(heat(start, 0.4, 50 * STEPS), color=plot.PALETTE[1], linewidth=4, alpha=0.5, label="NumPy")
    ax.plot(now.copy_to_host(), color=plot.PALETTE[0], label="your kernel")
    ax.set(xlabel="element", ylabel="temperature")
    ax.legend()

# %% [markdown]
# **Stretch goals.**
#
# - A thread knows its own value. Keep it in a register, load it straight from global memory, and get below par in wavefronts and barriers.
# - Let each warp work on its own piece and fetch neighbours with `cuda.shfl_up_sync` and `cuda.shfl_down_sync`: no shared memory and no barrier. What is the overlap now?
# - Which number of steps per launch touches the fewest sectors per step, for blocks of 64 threads? Count with `trace`, then say why more is not always better.

# %%
exercises.progress()

# %% [markdown]
# ## Key points
#
# - Begin with a specification that anyone can read, make the kernel right, then sound, then lean.
# - Where data decides who writes, use atomics, and bring their results together in shared memory first.
# - A tile needs a halo. All threads load, and none may return before the barrier.
# - Work that is repeated in shared memory can be cheaper than traffic to global memory.
#
# **Back:** [13 Several GPUs](13_several_gpus.ipynb), and the [map](00_start.ipynb) of the course.
