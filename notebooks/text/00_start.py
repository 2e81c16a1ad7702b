# %% [markdown]
# # 00 Start here
#
# How much faster is a GPU, and what does it take to get there? gpukit is a course in GPU programming that runs: you write kernels in Python and launch them on an NVIDIA GPU, or, without one, on an emulator that executes the same kernels and watches every thread.
#
# **After this page you will be able to**
#
# - say how much a GPU gains over a CPU, and why the answer depends on what you compare;
# - write a kernel, launch it over every pixel of a photograph, and check its result against NumPy;
# - have an exercise checked, and get a hint or the solution;
# - read the emulator's report of a thread that reaches outside an array;
# - find the chapter for a topic.
#
# **You need** Python and a little NumPy: arrays, shapes, indexing. No C++, and no GPU.
#
# **Time:** 15 minutes. The page runs in a few seconds.

# %%
from functools import partial
from math import ceil

import numpy as np

from gpukit import backend, cuda, device, exercises, matmul, on_gpu, plot, results, timing

# %% [markdown]
# ## How much faster is a GPU?
#
# The product of two matrices of 1024 by 1024 takes 2<sup>30</sup> multiplications. The next cell compares three nested loops on a CPU core with the simplest kernel on a GPU, copies to the GPU and back included: first as a published set of course notes measured them, then as measured for this course. With a GPU in this machine the cell measures; without one it reads a record.

# %% jupyter={"source_hidden": true}
shape = (1024,) * 3
if on_gpu():
    a, b = np.random.default_rng(0).random((2, 1024, 1024), np.float32)
    matmul.on_cpu(a[:1], b)  # compiles
    loops = timing.bench(partial(matmul.on_cpu, a, b), device="cpu", warmup=0, repeat=1).median
    product = partial(matmul.matmul, a, b, variant="naive")
    both = timing.bench_many({"NumPy": partial(np.matmul, a, b), "GPU": product}, device="cpu", repeat=10)
    numpy, gpu = both["NumPy"].median, both["GPU"].median
    where, cores, name = device.info().name, results.cores(), device.info().name
else:
    recorded = results.load("naive-h200", shape=shape, case="cpu")
    numpy, loops = (results.first(recorded, variant=name)["value"] for name in ("NumPy", "three loops, one core"))
    gpu = results.by_variant(results.load("naive-h200", shape=shape, case="end to end"))["everything, 16 x 16"]
    where, cores, name = results.taken_on(recorded), recorded[0]["cores"], recorded[0]["gpu"]

notes = results.documents("A6")
their_loops, _, their_gpu, _ = (1e-3 * row["milliseconds"] for row in notes["tables"][0]["rows"])
times = {
    "course notes: CPU, three loops": (their_loops, their_loops),
    f"course notes: {notes['gpu'].removeprefix('NVIDIA GeForce ')}": (their_gpu, their_loops),
    "ours: CPU, three loops": (loops, loops),
    f"ours: CPU, NumPy on {cores} cores": (numpy, loops),
    f"ours: {name.removeprefix('NVIDIA ')}": (gpu, loops),
}
plot.dots(
    {case: 1e3 * time for case, (time, _) in times.items()}, "ms, less is better", log=True,
    title="1024 x 1024 matrix product, with copies", mark=f"ours: {where}",
    notes={case: f"{slow / time:,.0f} x" for case, (time, slow) in times.items()}, heading="times as fast",
)

large = results.load("naive-h200", shape=(4096,) * 3)
library = results.first(large, case="cpu", variant="NumPy")["value"] / results.first(large, case="library")["value"]
print(f"course notes: {their_loops / their_gpu:.0f} x by their times, {notes['stated_speedup']} x as they state it,")
print(f"              and {notes['teachers_speedup']:,} x for the author's teacher")
print(f"ours:         {loops / gpu:,.0f} x against three loops, {numpy / gpu:.2g} x against NumPy on {cores} cores")
print(f"              {library:.0f} x for 4096 x 4096, NVIDIA's library against NumPy ({results.taken_on(large)})")

# %% [markdown]
# Each of these factors is true. Three loops on one core are the slowest reasonable program for a CPU, so the first factor flatters the GPU. NumPy uses all cores and their vector instructions, so the simplest GPU program can even lose to it once the copies count. The last factor compares good code with good code.
#
# The course takes you from the simplest kernel to the speed of NVIDIA's libraries, step by step, with every step measured.

# %% [markdown]
# ## Where does this notebook run?
#
# Every notebook takes `cuda` from gpukit. With a GPU, that name is `numba.cuda` itself. Without one it is the emulator, which has the same functions. The rest of the code stays the same.

# %%
print("kernels run on:", device.info().name)
print("the reason:    ", backend.REASON)

# %% [markdown]
# ## A photograph
#
# This one comes with matplotlib. It shows Grace Hopper, who wrote one of the first compilers.

# %%
photo = plot.photograph()
height, width, channels = photo.shape
print(f"{height} rows, {width} columns, {channels} channels of {photo.dtype}")
plot.image(photo, f"{height * width:,} pixels");

# %% [markdown]
# To turn it grey, we replace each pixel with a weighted mean of red, green and blue. Green weighs most, because our eyes are most sensitive to it. The weights are integers that add up to 256, so a shift by 8 bits divides by their sum.
#
# First in NumPy. This function is the **specification**: it says what the kernel must compute, and we check the kernel against it.


# %%
def grey_numpy(image):
    red, green, blue = (image[:, :, channel].astype(np.int64) for channel in range(3))
    return ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)


# %% [markdown]
# ## One thread per pixel
#
# NumPy works on whole arrays. On a GPU you write a function for *one* pixel, the **kernel**, and say how many **threads** should run it. Each thread works out its own index, and from that its pixel.
#
# Threads come in **blocks** of equal size, and the blocks form a **grid**. `cuda.grid(2)` returns a thread's position in the whole grid: its column, then its row.


# %%
@cuda.jit
def to_grey(image, out):
    col, row = cuda.grid(2)  # which pixel is mine?
    if row < out.shape[0] and col < out.shape[1]:  # the guard: is there such a pixel?
        red, green, blue = image[row, col, 0], image[row, col, 1], image[row, col, 2]
        out[row, col] = (77 * red + 150 * green + 29 * blue) >> 8


# %% [markdown]
# A **launch** gives the number of blocks and their size in square brackets, each as (x, y): columns first, then rows. You choose the block size; 16 by 16 is common. The number of blocks follows: the division rounds up, so that the grid covers the whole picture.
#
# The image must be in the device's memory before the launch, and the result is copied back after it. (On the emulator these are copies too.)

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

with plot.figure(columns=2, size=(6.2, 3.9), mark=f"kernel run on: {device.info().name}") as (left, right):
    plot.image(photo, "before", ax=left)
    plot.image(grey, "after: one thread per pixel", ax=right)

# %% [markdown]
# ## Your turn
#
# Replace the `...` with one line that makes a negative of a grey image, and run the cell. The check reviews your kernel: does it run, is it right, does any thread reach outside an array? It uses images of its own, smaller and larger than a block. Try a wrong line first, `256 - ...` for example, and read what it says.


# %%
@cuda.jit
def negative(image, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        # About 1 line: store 255 minus the pixel of `image` in the same place of `out`
        ...


exercises.check("00-negative", negative)

# %% [markdown]
# Stuck? Type `exercises.hint("00-negative")` into a new cell, again for the next hint, and `exercises.solution("00-negative")` for the solution and the reason for it. An open exercise stops nothing: the rest of the page runs without it.
#
# A kernel that passes also gets a score, as in golf: how much memory it touches, counted in sectors of 32 bytes, next to par, the count of the course's own solution. Races and barriers, which the verdict mentions too, come in chapter 03.
#
# Here is what your kernel makes of the photograph. It stays blank until your kernel writes something. `run` wraps the launch of the section before, and we will use it again.


# %%
def run(kernel, image, block=(16, 16)):
    """Launch a kernel over an image, one thread per pixel, and return what it wrote."""
    grid = (ceil(image.shape[1] / block[0]), ceil(image.shape[0] / block[1]))
    result = cuda.to_device(np.full_like(image, 230))
    kernel[grid, block](cuda.to_device(image), result)
    return result.copy_to_host()


plot.image(run(negative, grey), "your negative");

# %% [markdown]
# ## See the blocks
#
# A thread can also ask which block it is in. This kernel darkens every other block, which makes the blocks visible. They are 32 by 32 here, the largest square block allowed.


# %%
@cuda.jit
def chequer(image, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        dark = (cuda.blockIdx.x + cuda.blockIdx.y) % 2
        for channel in range(3):
            out[row, col, channel] = image[row, col, channel] >> dark  # shifted by 1: half as bright


plot.image(run(chequer, photo, block=(32, 32)), "blocks of 32 by 32");

# %% [markdown]
# Look at the bottom edge: the last row of blocks is cut off. These blocks are full size too, but some of their threads fall outside the image. The guard, the `if` in the kernel, makes those threads do nothing.
#
# Now write a whole kernel. A mirror image keeps every pixel's row and reverses the columns.


# %%
@cuda.jit
def mirror(image, out):
    # About 3 lines: find the pixel of this thread; if there is one, fetch its mirror image from
    # the same row
    ...


exercises.check("00-mirror", mirror)

# %%
plot.image(run(mirror, grey), "your mirror image");
# %% [markdown]
# ## When the guard is missing
#
# The same grey kernel without its guard, in blocks of 32 by 32. The threads below the last row read and write outside the picture.
#
# A GPU does not stop them. Numba's kernels do not check indices, so they overwrite whatever lies past the end of the array, and the result may still look right. The next cell therefore runs in the emulator on any machine: `gpukit.emulator` can be imported directly.


# %%
from gpukit.emulator import KernelError
from gpukit.emulator import cuda as emulated


@emulated.jit
def to_grey_unguarded(image, out):
    col, row = cuda.grid(2)
    red, green, blue = image[row, col, 0], image[row, col, 1], image[row, col, 2]
    out[row, col] = (77 * red + 150 * green + 29 * blue) >> 8


block = (32, 32)
grid = (ceil(width / block[0]), ceil(height / block[1]))
try:
    to_grey_unguarded[grid, block](photo, np.empty_like(grey))
except KernelError as error:
    report = error
    print(error)

# %% [markdown]
# The report names the line, the array with its shape, the index, and the block and thread of the first offender. They give the row, which is the first one below the picture:

# %%
row = report.block[1] * block[1] + report.thread[1]
print(f"blockIdx.y * blockDim.y + threadIdx.y = {report.block[1]} * {block[1]} + {report.thread[1]} = {row}")
print(f"the picture has the rows 0 to {height - 1}")

# %% [markdown]
# ## GPU or emulator
#
# | | on a GPU | on the emulator |
# |---|---|---|
# | results | the GPU's | the same: integers to the last bit, floating-point values to within their last places |
# | times | measured | none: the emulator's own speed says nothing about a GPU, so gpukit refuses to time kernels there |
# | an index outside an array | reads or overwrites whatever lies there, silently | stops, and names line, array, index, block and thread |
#
# On a GPU machine the environment variable `GPUKIT_BACKEND=emulator` selects the emulator. If something seems to be missing, `gpukit doctor` in a terminal says what, and how to fix it.

# %% [markdown]
# ## The documents
#
# The course covers what five published texts teach, and calls them **the documents**. They are in Chinese, and their programs are in CUDA C++. Their titles and addresses are not recorded here; what they teach is, [topic by topic](../docs/sources.md).
#
# | | document |
# |---|---|
# | A | course notes, from thread indices to resizing an image, measured on an RTX 3090 |
# | B | reading notes on the GPU kernels of MXNet: loops over any size, im2col, col2im |
# | C | reading notes on the forward pass of MXNet's convolution |
# | D | a note on how Paddle reduces an array along an axis |
# | E | an article on a direct convolution, compared with cuDNN |
#
# Each chapter has a box "From the source" with the documents' figures next to ours, and with the mistakes in their code, which make good lessons. You do not need the documents themselves. The docstrings in gpukit cite them by letter and number, as that list does.

# %% [markdown]
# ## The map
#
# | chapter | what it is about | in gpukit |
# |---|---|---|
# | 00 Start here | first kernel, GPU or emulator, this map | `gpukit.cuda`, `gpukit.on_gpu`, `gpukit doctor` |
# | [01 Threads and blocks](01_threads_and_blocks.ipynb) | thread and block indices in one, two and three dimensions, coordinates, warps, launch sizes, the grid-stride loop, what a device allows | `gpukit.indexing`, `gpukit.device` |
# | [02 A matrix product](02_matmul.ipynb) | one thread per element, blocks, axes and types, where the time goes | `gpukit.matmul`, `gpukit.timing` |
# | [02b When a launch fails](02b_errors.ipynb) | errors at once, later and for good, and mistakes that nothing reports | `gpukit.errors` |
# | [03 Shared memory](03_shared_memory.ipynb) | tiles, barriers, static and dynamic shared memory | `gpukit.matmul`, `gpukit.trace` |
# | [04 Bank conflicts](04_bank_conflicts.ipynb) | what they are, how to count them, which pad or swizzle cures them; transposes | `gpukit.matmul`, `gpukit.transpose`, `gpukit.trace` |
# | [05 Matmul all the way](05_fast_matmul.ipynb) | register tiling, wide loads, double buffering, warp tiles | `gpukit.matmul`, `gpukit.intrinsics` |
# | [05b Matmul, a deep dive](05b_fast_matmul_deep_dive.ipynb) | optional: software pipelining, asynchronous copies, split-K, tensor cores | `gpukit.matmul` |
# | [06 Streams and events](06_streams.ipynb) | copies and kernels at the same time, pipelines and their limit, events, launch overhead | `gpukit.streams`, `gpukit.launching` |
# | [07 Reduce](07_reduce.ipynb) | from a tree of sums to warp shuffles, any axis | `gpukit.reduce` |
# | [08 Resize](08_resize.ipynb) | nearest, bilinear, letterbox, several steps in one kernel, frames for a network | `gpukit.resize` |
# | [09 Convolution](09_convolution.ipynb) | im2col and col2im, as matrix products and directly: halos, prefetching, registers | `gpukit.conv` |
# | [09b Fast convolution](09b_fast_convolution.ipynb) | optional: prefetching, register tiling, spilling, the choice of a kernel for a shape | `gpukit.conv` |
# | [10 Profiling](10_profiling.ipynb) | a profiler's report next to a trace, rooflines, predicted times, five slow kernels and their cures | `gpukit.predict`, `gpukit.pitfalls` |
# | [11 Scan, histogram, sort](11_scan.ipynb) | running sums in a block and in one pass, compaction, histograms, radix sort, sparse rows | `gpukit.scan` |
# | [12 Tensor cores](12_tensor_cores.ipynb) | one instruction by hand, ldmatrix, swizzled tiles, TMA and wgmma, what 16 bits cost | `gpukit.tensor`, `gpukit.intrinsics` |
# | [13 Several GPUs](13_several_gpus.ipynb) | two memories, halos, peer copies and peer loads, overlap, scaling, ring all-reduce, signals, a cluster | `gpukit.multi`, `gpukit.streams` |
# | [99 Projects](99_projects.ipynb) | a histogram, a separable blur, a stencil over time, from a blank page | `gpukit.exercises` |
#
# All chapters have exercises like the two above. `exercises.progress()` shows which you have passed. It is kept in your user directory, so it survives a restart.

# %%
exercises.progress()

# %% [markdown]
# ## Key points
#
# - A kernel is written for one thread. A launch says how many blocks of how many threads run it.
# - A thread finds its work from its index; the guard makes surplus threads do nothing.
# - A plain NumPy function next to the kernel says what it must compute, and checks it.
# - A speedup says as much about the slow program as about the fast one.
# - Times come from GPUs only. The emulator is for results, and for finding what a GPU does not report.
#
# **Next:** [01 Threads and blocks](01_threads_and_blocks.ipynb). Change things and run the cells again. If a kernel crashes the GPU, `Kernel > Restart Kernel and Run All Cells` brings the page back to its start.
