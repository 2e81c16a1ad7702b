# %% [markdown]
# # Start here
#
# gpukit is a course in GPU programming that runs. You write kernels in Python; on a machine with an NVIDIA GPU they run on the GPU, and on any other machine they run on gpukit's emulator, which executes the very same kernels and watches every thread while it does so.
#
# **After this page you will be able to**
#
# - tell whether a notebook runs on a GPU or on the emulator, and say what each of the two can show you and what it cannot;
# - write a kernel, launch it over every pixel of a photograph, and check its result against NumPy;
# - read the emulator's report of a thread that leaves its array;
# - find the chapter and the functions for a topic.
#
# **You need** Python and a little NumPy: arrays, shapes, indexing. No C++, and no GPU.
#
# **Time:** 10 minutes. The whole page runs in a few seconds.

# %% [markdown]
# ## Where does this run?
#
# Every notebook, and every script that uses gpukit, takes `cuda` from one place. Where a GPU can be used that name is `numba.cuda` itself; elsewhere it is the emulator, with the same functions. Nothing else in the code changes.

# %%
from math import ceil

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data

from gpukit import backend, cuda, device, plot

print("kernels run on:", device.info().name)
print("the reason:    ", backend.REASON)

# %% [markdown]
# | | on a GPU | on the emulator |
# |---|---|---|
# | results | the GPU's | the same: integers to the last bit, floating-point values to within their last places |
# | times | measured | none: how long the emulator takes says nothing about a GPU, so gpukit refuses to time a kernel there |
# | an index outside of an array | reads or overwrites whatever lies there, and says nothing | stops, and names line, array, index, block and thread |
# | a launch that is too large | fails with a message that names no limit | fails with a message that names the limit and a way out |
#
# On a GPU machine the environment variable `GPUKIT_BACKEND=emulator` chooses the emulator. If something seems to be missing, `gpukit doctor` in a terminal says what, and how to mend it.

# %% [markdown]
# ## A photograph
#
# This one comes with matplotlib. It shows Grace Hopper, who wrote one of the first compilers.

# %%
with get_sample_data("grace_hopper.jpg") as file:
    photo = plt.imread(file).copy()

height, width, channels = photo.shape
print(f"{height} rows, {width} columns, {channels} channels of {photo.dtype}")
plot.image(photo, f"{height * width:,} pixels");

# %% [markdown]
# To make it grey, each pixel needs one sum: a weighted mean of red, green and blue, with a large weight for green, to which the eye is most sensitive. The weights here are whole numbers that add up to 256, so that a shift by 8 bits divides by their sum. Whole numbers also mean that two ways to compute the same thing must agree exactly.
#
# First in NumPy. This function is the specification: it says what the kernel has to compute, and it will check the kernel.


# %%
def grey_numpy(image):
    red, green, blue = (image[:, :, channel].astype(np.int64) for channel in range(3))
    return ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)


# %% [markdown]
# ## One thread per pixel
#
# NumPy is told what to do with whole arrays. A GPU is told what to do with *one* pixel: that function is the **kernel**. Then it is told how many **threads** shall run it, and each of them asks who it is, in order to find its own pixel.
#
# Threads come in **blocks** of equal size, and the blocks form a **grid**. `cuda.grid(2)` gives a thread's place in the whole grid: how far to the right, and how far down.


# %%
@cuda.jit
def to_grey(image, grey):
    col, row = cuda.grid(2)  # who am I?
    if row < grey.shape[0] and col < grey.shape[1]:  # the guard: is there a pixel for me?
        red, green, blue = image[row, col, 0], image[row, col, 1], image[row, col, 2]
        grey[row, col] = (77 * red + 150 * green + 29 * blue) >> 8


# %% [markdown]
# A **launch** says how many blocks and how large they are, in square brackets, as (x, y): first to the right, then down. The size of a block is ours to choose, and 16 by 16 is a common choice. The number of blocks follows: enough to cover the picture, so the division rounds up.
#
# The data has to be in the memory of the device before the launch and is copied back after it. (On the emulator these are copies too.)

# %%
block = (16, 16)
grid = (ceil(width / block[0]), ceil(height / block[1]))

photo_on_device = cuda.to_device(photo)
grey_on_device = cuda.device_array((height, width), np.uint8)
to_grey[grid, block](photo_on_device, grey_on_device)
grey = grey_on_device.copy_to_host()

threads = grid[0] * grid[1] * block[0] * block[1]
print(f"grid {grid} of blocks {block}: {threads:,} threads for {height * width:,} pixels")
print("equal to NumPy in every pixel:", np.array_equal(grey, grey_numpy(photo)))

with plot.figure(columns=2, size=(6.2, 3.9)) as (left, right):
    plot.image(photo, "before", ax=left)
    plot.image(grey, "after: one thread per pixel", ax=right)

# %% [markdown]
# ## See the blocks
#
# A thread can also ask which block it is in. This kernel leaves every other block dark, so that the blocks become visible. They are 32 by 32 here, the largest square block there can be.


# %%
@cuda.jit
def chequer(image, result):
    col, row = cuda.grid(2)
    if row < result.shape[0] and col < result.shape[1]:
        dark = (cuda.blockIdx.x + cuda.blockIdx.y) % 2
        for channel in range(3):
            result[row, col, channel] = image[row, col, channel] >> dark  # shifted by 1: half as bright


block = (32, 32)
grid = (ceil(width / block[0]), ceil(height / block[1]))

result = cuda.device_array_like(photo_on_device)
chequer[grid, block](photo_on_device, result)
plot.image(result.copy_to_host(), f"grid {grid} of blocks {block}");

# %% [markdown]
# Look at the bottom edge: the last row of blocks is cut off. Those blocks have their full number of threads like all others, but part of them has no pixel. The guard in the kernel, its `if`, sends these threads home.
#
# **Try it.** Change a kernel and run its cell again. For a negative, write `255 - image[row, col, channel]`; for a mirror image, read from column `result.shape[1] - 1 - col`; for blocks as brush strokes, read from row `cuda.blockIdx.y * cuda.blockDim.y` and column `cuda.blockIdx.x * cuda.blockDim.x`.

# %% [markdown]
# ## When the guard is missing
#
# The same grey kernel once more, without its guard, in the 32 by 32 blocks of the last launch. The threads below the last row now read and write where there is no picture.
#
# On a GPU nothing stops them: Numba's kernels do not check indices, so they overwrite what lies behind the array, perhaps the data of somebody else, and the result may still look right. That is why the next cell runs in the emulator on any machine: the emulator can be imported as itself.


# %%
from gpukit.emulator import KernelError
from gpukit.emulator import cuda as emulated


@emulated.jit
def to_grey_unguarded(image, grey):
    col, row = cuda.grid(2)
    red, green, blue = image[row, col, 0], image[row, col, 1], image[row, col, 2]
    grey[row, col] = (77 * red + 150 * green + 29 * blue) >> 8


before = grey.copy()
try:
    to_grey_unguarded[grid, block](photo, grey)
except KernelError as error:
    report = error
    print(error)

# %% [markdown]
# The report names the line, the array with its shape, the index, and who did it: the first offender's block and thread. From these the index follows, and we see that it is the first row below the picture:

# %%
row = report.block[1] * block[1] + report.thread[1]
print(f"blockIdx.y * blockDim.y + threadIdx.y = {report.block[1]} * {block[1]} + {report.thread[1]} = {row}")
print(f"the picture has the rows 0 to {height - 1}")
print("the result from before is untouched:", np.array_equal(grey, before))

# %% [markdown]
# ## The map
#
# The course follows five documents, and its functions say in their descriptions which part they belong to: A for a set of course notes that lead from thread indices to image resizing, B for notes on the GPU kernels of MXNet, C for notes on its convolution, D for a note on the reduction in Paddle, and E for an article on a direct convolution.
#
# | chapter | what it is about | in the documents | in gpukit |
# |---|---|---|---|
# | 00 Start here | first kernel, GPU or emulator, this map | | `gpukit.cuda`, `gpukit.on_gpu`, `gpukit doctor` |
# | [01 Threads and blocks](01_threads_and_blocks.ipynb) | thread and block indices in one, two and three dimensions, coordinates, warps, launch sizes, the grid-stride loop, what a device allows | A1 to A5, A8, B1, B2 | `gpukit.indexing`, `gpukit.device` |
# | [02 A matrix product](02_matmul.ipynb) | one thread per element, blocks, axes and types, what takes how long, launches that fail | A6, A7, A15 | `gpukit.matmul`, `gpukit.errors`, `gpukit.timing` |
# | [03 Shared memory](03_shared_memory.ipynb) | tiles, barriers, static and dynamic shared memory | A10, A11 | `gpukit.matmul`, `gpukit.trace` |
# | [04 Bank conflicts](04_bank_conflicts.ipynb) | what they are, how to count them, which pad or swizzle cures them; transposes | A12 | `gpukit.matmul`, `gpukit.transpose`, `gpukit.trace` |
# | [05 Matmul all the way](05_fast_matmul.ipynb) | tiles in registers, wide loads, lanes and warps, asynchronous copies, the choice of tiles for a shape | | `gpukit.matmul`, `gpukit.intrinsics` |
# | [06 Streams and events](06_streams.ipynb) | copies and kernels at the same time, pipelines and their limit, events, what a launch costs | A13, C3 | `gpukit.streams`, `gpukit.launching` |
# | [07 Reduce](07_reduce.ipynb) | from a tree of sums to warp shuffles, any axis | D1 to D3 | `gpukit.reduce` |
# | [08 Resize](08_resize.ipynb) | nearest, bilinear, letterbox, several steps in one kernel, frames for a network | A14 | `gpukit.resize` |
# | [09 Convolution](09_convolution.ipynb) | im2col and col2im, as matrix products and directly: halos, prefetching, registers | B3, B4, C1, C2, E1 to E8 | `gpukit.conv` |
# | [10 Profiling](10_profiling.ipynb) | a profiler's report beside a trace, rooflines, predicted times, five slow kernels and their cures | A9 | `gpukit.predict`, `gpukit.pitfalls` |

# %% [markdown]
# ## Key points
#
# - A kernel is written for one thread. A launch says how many blocks of how many threads run it.
# - A thread finds its work by asking who it is; the guard sends home those for whom there is none.
# - A plain NumPy function beside the kernel says what it must compute, and checks it.
# - Times come from GPUs only. The emulator is for results, and for finding what a GPU does not tell.
#
# **Next:** [01 Threads and blocks](01_threads_and_blocks.ipynb). Read with the notebook running, change things, and run the cells again: nothing can break. `Kernel > Restart Kernel and Run All Cells` brings a page back to its start.
