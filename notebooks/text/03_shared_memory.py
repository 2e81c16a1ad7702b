# %% [markdown]
# # 03 Shared memory
#
# The naive matrix product of the last chapter reads every element of its inputs from memory thousands of times. In this chapter the threads of a block read it once, put it where all of them can reach it, and use it from there.
#
# **After this chapter you will be able to**
#
# - say how often a kernel reads each element of its inputs, and how much of that tiles of a given size save;
# - write a kernel with tiles in static shared memory, for matrices of any size;
# - say why it needs two barriers, and show what happens without either of them;
# - use dynamic shared memory: one buffer that is cut into parts, of a size that comes with the launch, and more than 48 KB of it where a kernel needs that;
# - read the cost of shared memory in a trace: requests, wavefronts, sectors.
#
# **You need** [02 A matrix product](02_matmul.ipynb). No GPU.
#
# **Time:** 50 minutes.

# %%
import warnings

import numpy as np

import gpukit
from gpukit import cuda, device, intrinsics, matmul, on_gpu, plot, results, show, timing
from gpukit.emulator import KernelError, LaunchError
from gpukit.emulator import cuda as emulated

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)


def matrices(rows, columns, terms, dtype=np.float32):
    """Two random matrices, and an output full of something that cannot be right."""
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((rows, terms), (terms, columns)))
    return a, b, np.full((rows, columns), np.nan, dtype)


# %% [markdown]
# ## The same values, again and again
#
# In the naive kernel the thread of element (row, col) reads row `row` of a, and column `col` of b. Its neighbour to the right reads the same row of a once more; the one below it reads the same column of b. How often is each element read?

# %%
a, b, out = matrices(64, 64, 64)
naive, _ = matmul.configure("naive", out.shape)
naive_trace = gpukit.trace(naive, a, b, out)

elements = a.size + b.size
reads = sum(access.requests * access.active_lanes for access in naive_trace.accesses if access.op == "load")
print(f"{elements:,} elements, {reads:,.0f} reads: each element is read {reads / elements:.0f} times")

# %% [markdown]
# Once by each of the 64 threads that need it. For matrices of 4096 by 4096 it would be 4096 times. A warp's reads are put together, so what comes from memory is less than that; but it is still many times what there is:

# %%
print(f"moved: {naive_trace.traffic.moved_bytes:,} bytes; there are {naive_trace.traffic.needed_bytes:,}")

# %% [markdown]
# ## The idea: tiles
#
# The threads of one block compute a tile of the result. For that they need a band of rows of a and a band of columns of b, and they all need the same. So let them fetch the bands together, piece by piece. At each step the block loads one tile of a and one tile of b, a value per thread; multiplies them; and goes on to the next pair. In the picture the pair of the second step is drawn strong:

# %%
plot.product_tiles(64, 64, 64, tile=16, block=(2, 1), step=1);
# %% [markdown]
# Each value of a tile is read from memory by one thread and used by 16. With tiles of 16 by 16, 2 M N K / 16 values come from memory in place of 2 M N K.
#
# The tiles have to be where all threads of the block can reach them, and fast. Every SM has memory for this: **shared memory**. It is on the chip, next to the arithmetic units; a block gets a part of it for as long as it runs; the threads of other blocks do not see it. How much is there?

# %%
info = device.info()
print(f"per SM: {info.shared_memory_per_sm:,} bytes")
print(f"for any kernel, per block: {info.shared_memory_per_block:,} bytes")
print(f"two tiles of 16 x 16 float32: {2 * 16 * 16 * 4:,} bytes")

# %% [markdown]
# ## The kernel
#
# `tiled(dtype, tile)` makes the kernel for one type and one size of tile: both become constants, because `cuda.shared.array` wants a shape that is known when the kernel is compiled. (`pad` is for the next chapter; here it is 0.)

# %%
show.source(matmul.tiled)

# %% [markdown]
# Line by line:
#
# - `cuda.shared.array` is the block's, not the thread's: all of its threads get the same array.
# - Each thread loads one value of each tile. `tx` runs along the rows of both matrices, so a warp reads neighbours.
# - `cuda.syncthreads()` is a **barrier**: no thread of the block goes on before all have arrived. After the first one the tiles are complete. The second one keeps fast threads from loading the next tiles over values that slow threads still need.
# - Tiles at the edges stick out of the matrices. What is outside counts as zero, which adds nothing to a sum. The guard cannot be an early `return`: a thread outside of the result still has to load its share of the tiles and to arrive at every barrier.
#
# **Check yourself.** a has 45 rows and 53 columns, b 37 columns, tiles are 16 wide. How many blocks does the launch have, and how many steps does each of them take? Decide before you run the next cell.

# %%
a, b, out = matrices(45, 37, 53)
tiled, _ = matmul.configure("tiled", out.shape, tile=16)
tiled(a, b, out)
print("blocks:", tiled.griddim[:2], " steps:", -(-53 // 16))
print("largest error:", abs(out - a.astype(np.float64) @ b).max())

# %% [markdown]
# ## Look at what it did
#
# Back to 64 by 64 with full tiles, so that the counts are round. In the table, a **request** is one access of one warp. For global memory it costs **sectors**, pieces of 32 bytes that have to be moved. For shared memory it costs **wavefronts**: passes through the memory's 32 banks. One wavefront per request is the best there is for values of 4 bytes; the next chapter is about getting there.

# %%
a, b, out = matrices(64, 64, 64)
tiled, _ = matmul.configure("tiled", out.shape, tile=16)
tiled_trace = gpukit.trace(tiled, a, b, out)
tiled_trace

# %% [markdown]
# Every load of a tile costs as few sectors as there can be, and every access to shared memory one wavefront. Side by side with the naive kernel:

# %%
gpukit.compare(naive_trace, tiled_trace)

# %% [markdown]
# ### How large should a tile be?
#
# Each value of a larger tile is used more often before it is replaced. A larger tile also takes more shared memory, and a block of more threads. Here are the sizes for which a block has between 64 and 1024 threads:

# %%
print(f"{'tile':>6}{'threads':>9}{'shared bytes':>14}{'global sectors':>16}{'shared wavefronts':>19}")
for tile in matmul.TILES:
    launch, _ = matmul.configure("tiled", out.shape, tile=tile)
    trace = gpukit.trace(launch, a, b, out)
    sectors, wavefronts = trace.total("global").sectors, trace.total("shared").wavefronts
    print(f"{tile:>6}{tile * tile:>9}{2 * tile * tile * 4:>14,}{sectors:>16,}{wavefronts:>19,}")

# %% [markdown]
# Twice the width, half the sectors. The wavefronts hardly change: each thread still reads two values from shared memory for every multiplication. So the work has moved from memory to shared memory; it has not gone away. That is what limits this kernel, and [chapter 05](05_fast_matmul.ipynb) begins there.

# %% [markdown]
# ## Dynamic shared memory
#
# The size of a static array is part of the kernel. With **dynamic** shared memory it comes with the launch, as the fourth number in the brackets: `kernel[grid, block, stream, shared_bytes]`. In the kernel it is an array of length 0. There is only one such buffer for a block, so two tiles have to share it: the second begins where the first ends.

# %%
show.source(matmul.dynamic)

# %% [markdown]
# One kernel serves all tiles now; the size is `blockDim.x`. There is a second freedom: the launch may load more columns of a than a tile is wide, `depth` of them, and then needs fewer barriers.

# %%
for tile, depth in ((8, 8), (16, 16), (32, 32), (32, 64)):
    launch, further = matmul.configure("dynamic", out.shape, tile=tile, depth=depth)
    out[:] = np.nan
    trace = gpukit.trace(launch, a, b, out, *further)
    right = np.allclose(out, a.astype(np.float64) @ b, atol=1e-4)
    barriers = sum(barrier.passed for barrier in trace.barriers)
    size = f"{trace.shared_bytes:6,} bytes per block"
    print(f"tile {tile:2}, depth {depth:2}: {size}, {barriers:4} barriers, right: {right}")

# %% [markdown]
# ### More than 48 KB
#
# Two tiles of 32 by 256 need 64 KB. Any kernel may have 48 KB; more has to be asked for, kernel by kernel. This kernel turns an array round in shared memory, whatever its size:


# %%
@cuda.jit
def turn(a, out):
    buffer = cuda.shared.array(0, np.float32)
    for i in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        buffer[i] = a[i]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        out[i] = buffer[a.size - 1 - i]


numbers = np.arange(15_000, dtype=np.float32)
turned = np.zeros_like(numbers)
try:
    emulated.jit(turn.py_func)[1, 256, 0, numbers.nbytes](numbers, turned)
except LaunchError as error:
    print(error)

# %% [markdown]
# (The emulator runs that launch on every machine; a GPU refuses it too, with an error that does not name the limit.) `intrinsics.allow_dynamic_shared` asks. `matmul` does the same when it needs to.

# %%
intrinsics.allow_dynamic_shared(turn, numbers.nbytes)
turn[1, 256, 0, numbers.nbytes](numbers, turned)
print(turned[:4], "...", turned[-1])
print(f"this device allows up to {info.shared_memory_per_block_optin:,} bytes")

# %% [markdown]
# It is not free: an SM has one shared memory for all of its blocks. A block that takes more than half of it runs alone there, and while its threads wait at a barrier nobody else has work to do. The trace says how many warps an SM can hold:

# %%
for depth in (16, 256, 1024):
    launch, further = matmul.configure("dynamic", out.shape, tile=16, depth=depth)
    occupancy = gpukit.trace(launch, a, b, out, *further, blocks=1).occupancy
    warps = f"{occupancy.warps:2} of {occupancy.max_warps} warps, limited by {occupancy.limited_by}"
    print(f"depth {depth:4}: {occupancy.shared_bytes:7,} bytes per block, {warps}")

# %% [markdown]
# ## How long does it take?
#
# On a GPU the next cell measures. Everywhere it shows what the documents measured on an RTX 3090, and what was recorded on an H200.

# %%
documents = results.documents("A12")
rtx_3090 = documents["gpu"].removeprefix("NVIDIA GeForce ")
published = {row["variant"]: row["milliseconds"] for row in documents["tables"][0]["rows"][1:]}
first_run = {row["variant"]: row["milliseconds"] for row in results.documents("A10")["tables"][0]["rows"]}
recorded = results.load("matmul-h200", case="time", shape=(4096, 4096, 4096), tile=16)
here = {}
if on_gpu():
    a, b = (cuda.to_device(np.random.default_rng(i).random((4096, 4096), np.float32)) for i in range(2))
    out = cuda.device_array_like(a)

    def product(variant):
        launch, further = matmul.configure(variant, out.shape)
        return lambda: launch(a, b, out, *further)

    measured = timing.bench_many({variant: product(variant) for variant in ("naive", "tiled", "dynamic")}, repeat=7)
    here = {variant: f"{result.median * 1e3:.1f}" for variant, result in measured.items()}

rows = [results.first(recorded, variant=variant) for variant in ("naive", "tiled", "dynamic")]
columns = {
    "4096 x 4096, tile 16": "variant",
    f"{rtx_3090}, documents' first run, ms": lambda r: first_run.get(r["variant"]),
    f"{rtx_3090}, documents' table, ms": lambda r: f"{published[r['variant']]:.1f}",
    f"{rows[0]['gpu']}, recorded {rows[0]['date']}, ms": lambda r: f"{r['value'] * 1e3:.1f}",
}
if here:
    columns["here, ms"] = lambda r: here[r["variant"]]
results.table(rows, columns)

# %% [markdown]
# The tiles move 8 times fewer sectors, and the kernel is faster, but not 8 times. A GPU has caches: many of the naive kernel's reads never go to memory, they are served by the L1 or L2 cache. So what tiles save is less than the traffic that one can count in the source; and what they cost, two barriers per step and a pass through shared memory for every operand, is new. How much is left of the factor differs from GPU to GPU.
#
# The dynamic kernel does the same as the static one, on the same tiles, and is slower. The difference is what the compiler knows. With a constant tile it unrolls the inner loop, knows every address in it beforehand, and finds that four neighbours of a row can be loaded at once; with a size that comes at launch it can do none of that. Nsight Compute counted the instructions that were executed, for matrices of 1024 by 1024:

# %%
cases = ("instructions", "shared load requests")
counted = results.load("matmul-h200", case=cases, tile=16, variant=("naive", "tiled", "dynamic"))
columns = {"kernel": "variant", "counted by Nsight Compute": "case", "by all warps": lambda r: f"{r['value']:,}"}
results.table(counted, columns)

# %% [markdown]
# The naive kernel executes the most: for each multiplication it computes two addresses and asks whether the indices are negative, as the last chapter showed. Part of what the tiled kernel wins, it wins there and not in memory.

# %% [markdown]
# ## What goes wrong
#
# **No barrier.** It is forgotten easily, and the result is often right all the same. In this kernel the first of the two is missing:


# %%
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


a, b, out = matrices(32, 32, 32)
trace = gpukit.trace(tiled_without_barrier[(2, 2), (16, 16)], a, b, out)
for finding in trace.findings:
    print(finding.kind, "at:", finding.code)
    print("   ", finding.message)
print("the result is right:", np.allclose(out, a @ b, atol=1e-4))

# %% [markdown]
# The emulator takes all threads through each line together, and so the result happens to be right; on a GPU it is right or wrong as the warps happen to run. The trace does not go by the result: it looks for accesses to the same place that no barrier separates.
#
# Now put the first barrier back, take out the second one, and run the cell again. Which two lines meet then? The trace names the stores of one step and the multiplications of the step before.
#
# **A thread that leaves early.** Here the guard of the naive kernel stands in front of the barriers:


# %%
@emulated.jit
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


a, b, out = matrices(20, 20, 20)
trace = gpukit.trace(tiled_with_early_return[(2, 2), (16, 16)], a, b, out)
for finding in trace.findings:
    print(finding.kind, "at:", finding.code)
    print("   ", finding.message)
print("elements that are wrong:", np.count_nonzero(~(abs(out - a @ b) < 1e-3)), "of", out.size)

# %% [markdown]
# The missing threads leave holes in the tiles, and those who stayed read what was there before. On matrices whose sizes are multiples of the tile, as in the documents, there is nothing to see.
#
# **Half of the buffer.** The launch gives a dynamic kernel room for one tile, and the kernel has two:

# %%
kernel = emulated.jit(matmul.dynamic(np.float32).py_func)
try:
    kernel[(2, 2), (16, 16), 0, 16 * 16 * 4](a, b, out, 16)
except KernelError as error:
    print(error)

# %% [markdown]
# ## Exercises
#
# Each has a check that you can run: the trace counts what you have built. As they stand, the cells say "not yet".
#
# **1. One matrix.** Many products are `a @ a.T`, and b need not exist at all. Write a tiled kernel that takes `a` and `out` alone, loads both tiles from rows of a, and is right for any size. Take care that both loads still read along rows: the trace should show no more sectors than are needed for them.


# %%
@cuda.jit
def times_own_transpose(a, out):
    col, row = cuda.grid(2)  # your kernel; this one is naive
    if row < out.shape[0] and col < out.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * a[col, k]
        out[row, col] = total


a, _, _ = matrices(50, 1, 37)
out = np.full((50, 50), np.nan, np.float32)
trace = gpukit.trace(times_own_transpose[(4, 4), (16, 16)], a, out)
sectors = trace.total("global", "load").sectors
most = 2 * 16 * 3 * 16 * 3  # 2 tiles, 16 blocks, 3 steps, 16 rows, 3 sectors: a row of 64 bytes may begin inside of one
right = np.allclose(out, a @ a.T, atol=1e-4)
print(f"right: {right}, findings: {len(trace.findings)}, sectors of loads: {sectors:,}, with tiles at most {most:,}")
print("done" if right and not trace.findings and sectors <= most else "not yet")

# %% [markdown]
# **2. One barrier.** With two pairs of tiles in shared memory, a block can load the next pair into the one while slow threads still multiply the other. How many barriers per step are left? The kernel below is the tiled one for sizes that are multiples of 16. Change it, and let the trace say whether there is a race.


# %%
@cuda.jit
def with_two_pairs(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)  # your kernel; this one has one pair, and two barriers per step
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row, first + tx]
        tile_b[ty, tx] = b[first + ty, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    out[row, col] = total


a, b, out = matrices(64, 64, 64)
trace = gpukit.trace(with_two_pairs[(4, 4), (16, 16)], a, b, out)
barriers = sum(barrier.passed for barrier in trace.barriers) / 16  # of each block, for its 4 steps
right = np.allclose(out, a @ b, atol=1e-4)
print(f"right: {right}, findings: {len(trace.findings)}, barriers of a block: {barriers:.0f}")
print("done" if right and not trace.findings and barriers <= 4 + 1 else "not yet")

# %% [markdown]
# **3. The deepest tile.** Which depth is the largest that a tile of 32 can have on this device, in float32 and in float64? It must be a multiple of 32. Compute it from `device.info()`; the cell tries it, and one step more.

# %%
my_depths = {"float32": 32, "float64": 32}  # your numbers
for dtype, depth in my_depths.items():
    verdict = "not yet: there is room for more"
    try:
        matmul.configure("dynamic", out.shape, dtype, tile=32, depth=depth)
        matmul.configure("dynamic", out.shape, dtype, tile=32, depth=depth + 32)
    except ValueError as error:
        verdict = f"right. {error}" if f"depth is {depth + 32};" in str(error) else f"not yet: {error}"
    print(f"{dtype}, depth {depth}: {verdict}")

# %% [markdown]
# ## Key points
#
# - Shared memory belongs to a block. Load together, wait, use, wait: two barriers per step.
# - Tiles of width t let each value be read from memory once for t uses.
# - All threads of a block load and arrive at the barriers, also those at the edges that have nothing to compute.
# - Static arrays need constant shapes, and the compiler makes good use of the constants. Dynamic shared memory is one buffer of the size that the launch gives.
# - Any kernel may have 48 KB per block; more has to be asked for, and leaves room for fewer blocks.
# - A right result does not prove that there is no race. The trace finds those that did no harm this time.
#
# **Back:** [02 A matrix product](02_matmul.ipynb). **Next:** [04 Bank conflicts](04_bank_conflicts.ipynb).
