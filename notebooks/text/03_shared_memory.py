# %% [markdown]
# # 03 Shared memory
#
# Why is the naive matrix product so much slower than the vendor's library, and how much of the gap do tiles in shared memory close?
#
# **After this chapter you will be able to**
#
# - say how often a kernel reads each element of its inputs, and how much of that tiles of a given size save;
# - write a kernel with tiles in static shared memory, for matrices of any size;
# - say why it needs two barriers, and show what happens without either;
# - use dynamic shared memory: one buffer for several arrays, whose size comes with the launch, and more than 48 KB of it;
# - read the cost of shared memory in a trace, and tell what tiles win from what cheaper indices win.
#
# **You need** [02 A matrix product](02_matmul.ipynb). No GPU.
#
# **Time:** 60 minutes, most of them for the six exercises.

# %%
import warnings

import numpy as np

import gpukit
from gpukit import cuda, device, emulator, exercises, intrinsics, matmul, on_gpu, plot, results, show, timing

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # both are on purpose here
rng = np.random.default_rng(3)
print("kernels run on:", device.info().name)

# %% [markdown]
# Here is one product of 4096 x 4096 matrices, computed in four ways. You know the first two. The third is the one that you are going to write.

# %% jupyter={"source_hidden": true}
shape = (4096, 4096, 4096)
records = results.load("matmul-h200", case="time", shape=shape, tile=16)
records += results.load("naive-h200", case=("types", "library"), shape=shape, dtype="float32")
recorded = {name: 1e3 * seconds for name, seconds in results.by_variant(records).items()}

shown = {name: recorded[name] for name in ("naive", "naive_uint32", "tiled", "cuBLAS")}
notes = {name: f"{recorded['naive'] / ms:.1f} x" for name, ms in shown.items()}
title, mark = "A product of 4096 x 4096 matrices, float32", results.taken_on(records)
plot.dots(shown, "ms", title=title, mark=mark, notes=notes, heading="times as fast as naive");

# %% [markdown]
# `naive_uint32` loads the same values as `naive`; only its index arithmetic is cheaper. `tiled` loads fewer. [Chapter 05](05_fast_matmul.ipynb) closes the gap to the library.
#
# ## The same values, again and again
#
# In the naive kernel, the thread of element (row, col) reads row `row` of `a` and column `col` of `b`. The thread to its right reads the same row of `a` again; the thread below reads the same column of `b` again. How often is each element read?

# %%
a, b = rng.standard_normal((2, 64, 64), np.float32)
out = np.full((64, 64), np.nan, np.float32)
naive = gpukit.trace(matmul.naive[(4, 4), (16, 16)], a, b, out)

reads = sum(access.requests * access.active_lanes for access in naive.accesses if access.op == "load")
print(f"{reads:,.0f} reads of {a.size + b.size:,} elements: {reads / (a.size + b.size):.0f} each")

# %% [markdown]
# Each element is read once by each of the 64 threads that need it. For 4096 x 4096 matrices it would be 4096 times. Coalescing and broadcasts cut the traffic, but it is still many times the size of the matrices:

# %%
traffic = naive.traffic
print(f"{traffic.moved_bytes:,} bytes moved for {traffic.needed_bytes:,} bytes of matrices")
print(f"that is {traffic.moved_bytes / traffic.needed_bytes:.0f} times as many")

# %% [markdown]
# ## Memory that a block shares
#
# Where could the threads of a block keep what they have loaded, so that all of them can use it? Here are the memories of a GPU, from the fastest to the largest. **Latency** is the time from a request to its answer.

# %%
plot.memory_hierarchy();

# %% [markdown]
# **Shared memory** is on the chip, in each SM. A block gets a part of it for as long as it runs, and the threads of other blocks cannot see it. It uses the same hardware as the L1 cache, with one difference: the program decides what is in it.
#
# `cuda.shared.array(64, np.float32)` allocates 64 elements for the *block*: all of its threads get the same array. What one thread stores there, the others can load, once it is certain that the store has happened. `cuda.syncthreads()` makes it certain. It is a **barrier**: no thread of the block continues before all of them have arrived.

# %%
plot.barrier_in_time();

# %% [markdown]
# Load together, wait, use: try it in one dimension first. Each thread finds the rank of its value in its block: how many of the 64 values are smaller. Without shared memory every thread would read all 64 of them from global memory.


# %%
@cuda.jit
def rank(x, out):
    values = cuda.shared.array(64, np.float32)  # the block has 64 threads
    i, tid = cuda.grid(1), cuda.threadIdx.x
    smaller = 0
    # About 5 lines: put x[i] into shared memory; wait for the block; count the smaller values
    ...
    out[i] = smaller


exercises.check("03-rank", rank)

# %% [markdown]
# ## Tiles
#
# For the matrix product the idea is the same in two dimensions. The threads of a block compute a **tile** of the result. They need a band of rows of `a` and a band of columns of `b`, and both are too large for shared memory. So the block proceeds in steps: it loads one tile of `a` and one tile of `b`, one value of each per thread, multiplies them, and goes on to the next pair. The picture shows the second step:

# %%
plot.product_tiles(64, 64, 64, tile=16, block=(2, 1), step=1);

# %% [markdown]
# Each value of a tile is loaded by one thread and used by 16.
#
# **Predict.** `a` has 45 rows and 53 columns, and `b` has 53 rows and 37 columns. How often is the single element `a[0, 0]` read from global memory by the naive kernel, and how often with tiles of 16 x 16? Write a pair of numbers.

# %%
my_reads = None
exercises.check("03-reads", my_reads)

# %% [markdown]
# ## The kernel
#
# Now write it. What is there already: two tiles, the thread's place in them, and the loop over the steps. Three things to get right:
#
# - `tx` should run along the rows of both matrices, so that the loads are coalesced.
# - The last tiles extend beyond the matrices if the sizes are not multiples of 16. Load 0 there: it adds nothing to a sum. An early `return` is not possible, because threads outside of the result also have to load and to arrive at the barriers.
# - There are two barriers in each step. The first one completes the tiles. The second one keeps fast threads from loading the next tiles over values that slow threads still need.


# %%
@cuda.jit
def tiled(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):  # the column of a, and row of b, where this step's tiles begin
        # About 6 lines: load one value of each tile, np.float32(0) outside; wait; add 16
        # products to total; wait
        ...
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


exercises.check("03-tiled", tiled)

# %% [markdown]
# ## Look at what it did
#
# Here is the trace of gpukit's kernel, for 64 x 64 matrices, so that all tiles are full. It shows a solution, so its output is folded: open it when you have yours, or trace yours.
#
# A **request** is one access by one warp. In global memory it costs **sectors** of 32 bytes. In shared memory it costs **wavefronts**: passes through the memory's 32 banks. One wavefront per request is the optimum for values of 4 bytes; chapter 04 is about getting there.

# %% jupyter={"outputs_hidden": true}
out[:] = np.nan
tiled_trace = gpukit.trace(matmul.tiled(np.float32, 16)[(4, 4), (16, 16)], a, b, out)
tiled_trace

# %% [markdown]
# Every load of a tile costs as few sectors as possible, and every access to shared memory one wavefront. What have the tiles won? The ratio of a kernel's arithmetic to the bytes that it moves is its **arithmetic intensity**. If it is low, the kernel is **memory-bound**: it waits for data, and faster arithmetic would not help. If it is high, the kernel is **compute-bound**, and faster memory would not help.

# %%
rows = []
for name, trace in {"naive": naive, "tiled": tiled_trace}.items():
    loads, moved = trace.total("global", "load"), trace.traffic.moved_bytes
    rows.append([name, loads.requests, loads.sectors, moved, f"{2 * 64**3 / moved:.2f}"])
show.Table(["64 x 64", "load requests", "load sectors", "bytes moved", "FLOP per byte moved"], rows)

# %% [markdown]
# (The trace's own "Intensity" divides by the bytes *needed*. That is what the problem allows, not what the kernel does, so it is the same for both.)
#
# ### How large should a tile be?
#
# A value of a larger tile is used more often before it is replaced. It also takes more shared memory and a larger block, and 32 x 32 is the largest block there is.

# %%
rows = []
for tile in matmul.TILES:
    blocks = 64 // tile, 64 // tile
    trace = gpukit.trace(matmul.tiled(np.float32, tile)[blocks, (tile, tile)], a, b, out)
    sectors, wavefronts = trace.total("global").sectors, trace.total("shared").wavefronts
    intensity = 2 * 64**3 / trace.traffic.moved_bytes
    rows.append([tile, tile**2, 2 * tile**2 * 4, sectors, wavefronts, f"{intensity:.2f}"])
columns = ["tile", "threads", "shared bytes", "global sectors", "shared wavefronts", "FLOP per byte moved"]
show.Table(columns, rows)

# %% [markdown]
# Twice the width halves the sectors of the loads and nearly doubles the intensity. The wavefronts hardly change: each thread still reads two values from shared memory for every multiply-add. The work has moved from global memory to shared memory; it has not gone away. That is what limits this kernel, and [chapter 05](05_fast_matmul.ipynb) begins there.
#
# ## Dynamic shared memory
#
# The size of a static array is part of the kernel. The size of **dynamic** shared memory comes with the launch, as the fourth number in the brackets: `kernel[grid, block, stream, shared_bytes]`. The kernel declares it as an array of length 0. A block has only one such buffer, and it has one dimension, so the tiles have to be cut out of it, and indexed by hand.


# %%
@cuda.jit
def dynamic(a, b, out):
    buffer = cuda.shared.array(0, np.float32)  # as many bytes as the launch gives
    tile = cuda.blockDim.x
    # About 2 lines: slice the buffer: tile_a is its first tile * tile elements, tile_b the rest
    tile_a = tile_b = buffer
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], tile):
        ka, kb, at = first + tx, first + ty, ty * tile + tx
        tile_a[at] = a[row, ka] if row < a.shape[0] and ka < a.shape[1] else np.float32(0)
        tile_b[at] = b[kb, col] if kb < b.shape[0] and col < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        # About 2 lines: add the products of row ty of tile_a and column tx of tile_b
        ...
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


exercises.check("03-cut", dynamic)

# %% [markdown]
# One kernel now serves all tile sizes. gpukit's `dynamic` goes one step further: the launch says how many columns of `a` it loads at a time, `depth`. A greater depth needs fewer barriers and more shared memory:

# %%
kernel = matmul.dynamic(np.float32)
rows = []
for tile, depth in ((8, 8), (16, 16), (32, 32), (32, 64)):
    blocks, nbytes = (64 // tile, 64 // tile), 2 * tile * depth * 4
    trace = gpukit.trace(kernel[blocks, (tile, tile), 0, nbytes], a, b, out, depth)
    barriers = sum(barrier.passed for barrier in trace.barriers) // (blocks[0] * blocks[1])
    rows.append([tile, depth, nbytes, barriers, str(np.allclose(out, a @ b, atol=1e-4))])
show.Table(["tile", "depth", "shared bytes", "barriers per block", "right"], rows)

# %% [markdown]
# ### More than 48 KB
#
# Any kernel may have 48 KB per block. To get more, a kernel has to **opt in**. This one reverses an array of any size in shared memory:


# %%
@cuda.jit
def reverse(a, out):
    buffer = cuda.shared.array(0, np.float32)
    for i in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        buffer[i] = a[i]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        out[i] = buffer[a.size - 1 - i]


numbers = np.arange(15_000, dtype=np.float32)
reversed_numbers = np.zeros_like(numbers)
try:  # in the emulator on every machine; a GPU refuses it too, without naming the limit
    emulator.cuda.jit(reverse.py_func)[1, 256, 0, numbers.nbytes](numbers, reversed_numbers)
except emulator.LaunchError as error:
    print(error)

# %%
intrinsics.allow_dynamic_shared(reverse, numbers.nbytes)
reverse[1, 256, 0, numbers.nbytes](numbers, reversed_numbers)
print(reversed_numbers[:4], "...", reversed_numbers[-1])
print(f"this device allows up to {device.info().shared_memory_per_block_optin:,} bytes per block")

# %% [markdown]
# Large buffers have a price. All blocks on an SM share one shared memory, so the more each block takes, the fewer of them run there at the same time. The occupancy falls, and with few warps on an SM it is more often the case that all of them are waiting. The trace says what limits it:

# %%
rows = []
for depth in (16, 256, 1024):
    nbytes = 2 * 16 * depth * 4
    if nbytes > 48 * 1024:
        intrinsics.allow_dynamic_shared(kernel, nbytes)
    occupancy = gpukit.trace(kernel[(4, 4), (16, 16), 0, nbytes], a, b, out, depth, blocks=1).occupancy
    rows.append([depth, nbytes, f"{occupancy.warps} of {occupancy.max_warps}", occupancy.limited_by])
show.Table(["depth", "shared bytes", "warps per SM", "limited by"], rows)

# %% [markdown]
# ## How long does it take?
#
# On a GPU the next cell measures. Without one it shows what was recorded.

# %%
ms, where = dict(recorded), results.taken_on(records)
if on_gpu():
    n, grid, block = 4096, (256, 256), (16, 16)
    a_device, b_device = (cuda.to_device(rng.random((n, n), np.float32)) for _ in range(2))
    arrays = a_device, b_device, cuda.device_array_like(a_device)
    tiled_16 = matmul.tiled(np.float32, 16)
    functions = {
        "naive": lambda: matmul.naive[grid, block](*arrays),
        "naive_uint32": lambda: matmul.naive_uint32[grid, block](*arrays),
        "tiled": lambda: tiled_16[grid, block](*arrays),
        "dynamic": lambda: kernel[grid, block, 0, 2 * 16 * 16 * 4](*arrays, 16),
    }
    ms |= {name: 1e3 * timed.median for name, timed in timing.bench_many(functions, repeat=7).items()}
    where = device.info().name

# %%
names = ("naive", "naive_uint32", "tiled", "dynamic")
rows = [[name, f"{ms[name]:.1f}", f"{ms['naive'] / ms[name]:.1f}"] for name in names]
print(f"4096 x 4096, tiles of 16 x 16, {where}")
show.Table(["kernel", "ms", "times as fast as naive"], rows)

# %% [markdown]
# From `naive` to `tiled` two things change, and the control between them tells them apart:

# %%
print(f"cheaper indices, naive to naive_uint32: {ms['naive'] / ms['naive_uint32']:.1f} times as fast")
print(f"tiles, naive_uint32 to tiled: {ms['naive_uint32'] / ms['tiled']:.1f} times as fast")

# %% [markdown]
# Most of the gain does not come from the tiles. `tiled` has cheap indices too, although there is no `uint32` in it: its inner loop has a constant length, so the compiler unrolls it and knows every address beforehand.
#
# And why do tiles of 16, which load an eighth of the sectors, win so much less than a factor of 8? A GPU has caches. How many bytes per second would `naive_uint32` need if all of its sectors came from beyond the SM?

# %%
sectors_per_step = naive.total("global", "load").sectors / 64**3  # naive_uint32 loads the same
print(f"{32 * sectors_per_step * 4096**3 / (1e-3 * ms['naive_uint32']) / 1e12:.1f} TB/s")

# %% [markdown]
# Compare that with the bandwidths in the picture of the memories: not even the L2 cache delivers so much. The L1 cache in the SM answers many of these loads, and it is the same hardware as shared memory. So tiles save less than their sector counts suggest. What they cost is new: two barriers per step, and a trip through shared memory for every operand.
#
# The dynamic kernel does the same work as the static one, on the same tiles, and takes longer. The compiler does not know the size of the tile. So it cannot compute the addresses beforehand, and it cannot merge the loads of four neighbours into one. Here is what a warp executes for each multiply-add, at 1024 x 1024. Nsight Compute counted it; for `naive_uint32` it was read from the machine code, as in chapter 02:

# %% jupyter={"source_hidden": true}
cases = ("instructions", "shared load requests")
counts = results.load("matmul-h200", case=cases, shape=(1024,) * 3, dtype="float32", tile=16)
found = {(r["variant"], r["case"]): f"{32 * r['value'] / 1024**3:.2f}" for r in counts}
code = results.load("naive-h200", case=cases[0], shape=(1024,) * 3, dtype="float32")
per_step = results.by_variant(code)["naive_uint32"]
found |= {("naive_uint32", cases[0]): f"{per_step:.2f}", ("naive_uint32", cases[1]): "0.00"}
rows = [[name, *(found[name, case] for case in cases)] for name in names]
show.Table(["per multiply-add", *cases], rows)

# %% [markdown]
# `tiled` executes only slightly fewer instructions than `naive_uint32`. That cannot explain all of the difference in time; the rest is memory.
#
# > **From the source.** The documents measured the same three kernels on an RTX 3090, in three runs. All sizes are multiples of the tile, and the static kernel needs that: only the dynamic one has a guard at the edges. The next cell shows their times.

# %% jupyter={"source_hidden": true}
runs = [results.documents("A10")["tables"][0], *results.documents("A12")["tables"]]
theirs = [{row["variant"]: row["milliseconds"] for row in run["rows"]} for run in runs]
names = ("naive", "tiled", "dynamic")
rows = [[name, *(f"{run[name]:.1f}" if name in run else "" for run in theirs)] for name in names]
print("naive to tiled:", *(f"{run['naive'] / run['tiled']:.2f}" for run in theirs), "times as fast")
show.Table(["RTX 3090, 4096 x 4096, ms", "first run", "second run", "third run"], rows)

# %% [markdown]
# Kernels in C++ usually index with 32-bit integers, so their naive kernel corresponds to `naive_uint32`. Measured from there, our tiles win about as much as theirs. On both GPUs the dynamic kernel is slower than the static one.
#
# ## What goes wrong
#
# **No barrier.** In this kernel the first of the two barriers is missing. Is its result right? And what does the trace say? Decide before you open the output.


# %% jupyter={"outputs_hidden": true}
@cuda.jit
def tiled_without_barrier(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row, first + tx]
        tile_b[ty, tx] = b[first + ty, col]
        # planted: cuda.syncthreads() is missing here
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    out[row, col] = total


trace = gpukit.trace(tiled_without_barrier[(4, 4), (16, 16)], a, b, out)
print("the result is right:", np.allclose(out, a @ b, atol=1e-4))
for finding in trace.findings:
    print(f"{finding.kind} at: {finding.code}\n    {finding.message}")

# %% [markdown]
# The emulator takes all threads through a line together, so the result happens to be right. On a GPU it depends on the order in which the warps run. The trace does not judge by the result: it looks for accesses to the same element that no barrier separates.
#
# **A thread that leaves early.** Here the guard of the naive kernel stands before the barriers:


# %%
@emulator.cuda.jit
def tiled_with_early_return(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    if row >= out.shape[0] or col >= out.shape[1]:
        return  # planted: these threads do not load their part of the tiles
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row, first + tx] if first + tx < a.shape[1] else np.float32(0)
        tile_b[ty, tx] = b[first + ty, col] if first + ty < b.shape[0] else np.float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    out[row, col] = total


a, b = rng.standard_normal((2, 20, 20), np.float32)
out = np.full((20, 20), np.nan, np.float32)
trace = gpukit.trace(tiled_with_early_return[(2, 2), (16, 16)], a, b, out)
for finding in trace.findings:
    print(f"{finding.kind} at: {finding.code}\n    {finding.message}")
print("wrong elements:", np.count_nonzero(~(abs(out - a @ b) < 1e-3)), "of", out.size)

# %% [markdown]
# The threads that returned leave gaps in the tiles, and the others read whatever was there before. With sizes that are multiples of the tile, as in the documents, there is nothing to see.
#
# **Half the buffer.** The launch gives the dynamic kernel room for one tile, and the kernel has two:

# %%
try:
    emulator.cuda.jit(kernel.py_func)[(2, 2), (16, 16), 0, 16 * 16 * 4](a, b, out, 16)
except emulator.KernelError as error:
    print(error)

# %% [markdown]
# ## Exercises
#
# **1. One matrix.** Many products are `a @ a.T`, and then there is no `b` to load. Write a tiled kernel that takes `a` alone, for any size. Both loads have to run along rows of `a`: the check counts sectors.


# %%
@cuda.jit
def gram(a, out):
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    # About 15 lines: two tiles, both loaded along rows of a: those of `row`, and those of the
    # block's columns
    if row < out.shape[0] and col < out.shape[1]:  # this one is naive
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * a[col, k]
        out[row, col] = total


exercises.check("03-gram", gram)

# %% [markdown]
# **2. One barrier.** With two pairs of tiles in shared memory, a block can load the next pair while slow threads still multiply the previous one. This is **double buffering**. How many barriers per step are left? Change the kernel below, which is for sizes that are multiples of 16.


# %%
@cuda.jit
def one_barrier(a, b, out):
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    # About 9 lines: the same with one barrier per step, and two pairs of tiles
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row, first + tx]
        tile_b[ty, tx] = b[first + ty, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    out[row, col] = total


exercises.check("03-buffers", one_barrier)

# %% [markdown]
# ## Key points
#
# - Shared memory belongs to a block. Load together, wait, use, wait: two barriers per step.
# - With tiles of width t, a value is loaded once for t uses. The arithmetic intensity grows with t.
# - All threads of a block load and arrive at the barriers, including those with no element of the result.
# - A static array has a constant shape, and the compiler makes good use of the constants. Dynamic shared memory is one buffer, whose size the launch gives.
# - Any kernel may have 48 KB per block; more takes an opt-in, and leaves room for fewer blocks.
# - When two things change at once, measure a control between them. Here the indices won more than the tiles.
# - A right result does not prove that there is no race. The trace finds races that did no harm this time.
#
# **Back:** [02 A matrix product](02_matmul.ipynb). **Next:** [04 Bank conflicts](04_bank_conflicts.ipynb).
