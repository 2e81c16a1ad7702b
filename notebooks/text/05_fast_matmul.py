# %% [markdown]
# # 05 Matmul all the way
#
# Your tiled kernel is several times slower than cuBLAS, NVIDIA's library. Where is the rest? This chapter finds most of it in seven steps, each with one idea and one count that shows what it changed. The optional [part b](05b_fast_matmul_deep_dive.ipynb) goes the rest of the way.
#
# **After this chapter you will be able to**
#
# - say what limits a matrix product, from counts of its loads and its arithmetic;
# - write a kernel that keeps a tile of the result in the registers of each thread;
# - load 16 bytes per instruction, and lay out shared memory so that this is possible without bank conflicts;
# - overlap loads with arithmetic by double buffering, with one barrier per step;
# - read a kernel's instruction mix and occupancy, and say whether they matter.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb) and [04 Bank conflicts](04_bank_conflicts.ipynb). No GPU.
#
# **Time:** 90 minutes.

# %%
import warnings
from functools import partial

import numpy as np

from gpukit import cuda, device, exercises, matmul, on_gpu, plot, results, show, timing, trace
from gpukit.intrinsics import load4, store4
from gpukit.matmul.ladder import DEPTH, load_or_zero, place

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here

# %% [markdown]
# Here is the whole way, for a product of two 4096 x 4096 matrices of float32. On a GPU the next cell measures the kernels, with cold caches and in turns; without one it reads a record. The time of cuBLAS is always recorded.

# %% jupyter={"source_hidden": true}
recorded = results.load("fast-matmul-h200")
mark = results.taken_on(recorded)
NAMES = ("naive", "tiled", *matmul.LADDER)


def measured(size):
    """Seconds of a square product: of each kernel, and of the fastest cuBLAS."""
    seconds = results.by_variant(recorded, case="ladder", shape=(size, size, size))
    cublas = min(seconds[name] for name in seconds if name.startswith("cublas"))
    if on_gpu():
        a, b = (cuda.to_device(np.random.default_rng(i).random((size, size), np.float32)) for i in range(2))
        out = cuda.device_array_like(a)
        runs = {name: partial(matmul.matmul, a, b, name, out=out) for name in NAMES}
        seconds = {name: timed.median for name, timed in timing.bench_many(runs, min_time=0.1).items()}
    return {name: seconds[name] for name in NAMES}, cublas


def tflops(seconds, size):
    """TFLOP/s of a square product; a multiply-add is two operations."""
    return 2e-12 * size**3 / seconds


at_4096, cublas = measured(4096)
if on_gpu():
    mark = f"{device.info().name}; cuBLAS: {mark}"
limit = ("cuBLAS", tflops(cublas, 4096))
speeds = {name: tflops(seconds, 4096) for name, seconds in at_4096.items()}
plot.dots(speeds, "TFLOP/s", title="4096 x 4096 x 4096, float32", limit=limit, mark=mark)
print(f"tiled {at_4096['tiled'] * 1e3:.1f} ms, cuBLAS {cublas * 1e3:.2f} ms: {at_4096['tiled'] / cublas:.1f} times")

# %% [markdown]
# ## What is the limit?
#
# A product of two n x n matrices takes n³ **FMAs** (fused multiply-adds) on 3 n² numbers. Each FMA is two floating-point operations, so the arithmetic intensity, operations per byte that must move at least, is 2 n³ / (12 n²) = n / 6. It grows with n. A large product should therefore be compute-bound, not memory-bound.
#
# How much arithmetic can a GPU do? This kernel does nothing else. Its eight chains are independent, so no FMA has to wait for the one before it:


# %%
@cuda.jit
def multiply_adds(scale, turns, out):
    x = cuda.local.array(8, np.float32)  # in registers
    for i in range(8):
        x[i] = np.float32(i)
    for _ in range(turns):
        for _ in range(16):
            for i in range(8):
                x[i] = x[i] * scale + scale
    total = np.float32(0)
    for i in range(8):
        total += x[i]
    out[cuda.grid(1)] = total


peak = results.first(recorded, case="limit")["value"] * 1e-12
if on_gpu():
    blocks, turns = 8 * device.info().sm_count, 2000
    sums = cuda.device_array(blocks * 256, np.float32)
    multiply = partial(multiply_adds[blocks, 256], np.float32(0.5), turns, sums)
    peak = timing.bench(multiply, l2_flush=False).tflops(2 * turns * 16 * 8 * sums.size)
print(f"FMAs in registers {peak:5.1f} TFLOP/s ({mark})")
print(f"cuBLAS            {limit[1]:5.1f} TFLOP/s, {limit[1] / peak:.0%} of that")
print(f"tiled             {speeds['tiled']:5.1f} TFLOP/s, {speeds['tiled'] / peak:.0%}")

# %% [markdown]
# cuBLAS reaches most of the limit, and `tiled` very little of it. Something else holds `tiled` back. Count what its threads do:


# %%
def traced(variant, size=128, terms=16):
    """Trace one product, and check it against float64."""
    random = np.random.default_rng(5)
    a, b = random.standard_normal((size, terms), np.float32), random.standard_normal((terms, size), np.float32)
    out = np.full((size, size), np.nan, np.float32)
    ((launch, arguments),) = matmul.steps(variant, a, b, out)
    traced = trace(launch, *arguments)
    assert np.allclose(out, a.astype(np.float64) @ b, atol=1e-4) and not traced.findings
    return traced


rungs = {name: traced(name) for name in NAMES[1:9]}
fmas = 128 * 128 * 16 // 32  # an instruction serves the 32 lanes of a warp
loads = rungs["tiled"].total("shared", "load").requests
print(f"tiled: {fmas:,} FMAs, {loads:,} loads from shared memory: {loads / fmas:.1f} per FMA")

# %% [markdown]
# An SM can start 128 FMAs per cycle, but its shared memory delivers only 32 words per cycle. At two loads per FMA the loads take eight times as long as the arithmetic. The tiles have moved the bottleneck from global memory to shared memory.
#
# The remedy is the one that made tiles worth it: use every loaded value more than once. This time the *thread* reuses it, from registers. If a thread computes r x r elements of the result, then for each k it loads r values of a and r values of b, and does r x r FMAs. This is **register tiling**, a case of **thread coarsening**: fewer threads, more work in each.
#
# **Predict.** What is the smallest r at which the loads of a warp no longer take longer than its FMAs? Assume that no load is a broadcast.

# %%
my_answer = None
exercises.check("05-enough", my_answer)

# %% [markdown]
# <details><summary>Answer</summary>For one k, the 32 lanes of a warp load 2 r words each: 64 r words, at 32 per cycle 2 r cycles. They do 32 r² FMAs, at 128 per cycle r² / 4 cycles. The two are equal at r = 8. (Broadcasts make the loads cheaper than that, but the two also compete for issue slots, as you will see.)</details>
#
# Here is the plan. A block computes a tile of the result, a warp computes a part of it, and a thread a part of that, which stays in its registers from the first k to the last. (Why a thread's part is four squares, and not one, is the subject of step 7.)

# %%
plot.nested_tiles();

# %% [markdown]
# ## 1. A column per thread
#
# Begin with a column: each thread computes eight elements, one below the other. For each k, they all need the same value of b. `sums` looks like an array in memory, but its indices are constants once the compiler has unrolled the loops, so it becomes eight registers. `load_or_zero` returns 0 outside the matrix.


# %%
@cuda.jit
def my_column(a, b, out):
    tile_a = cuda.shared.array((64, 8), np.float32)
    tile_b = cuda.shared.array((8, 64), np.float32)
    sums = cuda.local.array(8, np.float32)  # eight elements of one column of out
    tid = cuda.threadIdx.x  # 512 threads
    my_row, my_col = tid // 64 * 8, tid % 64
    row, col = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(8):
        sums[i] = 0
    for first in range(0, a.shape[1], 8):
        tile_a[tid // 8, tid % 8] = load_or_zero(a, row + tid // 8, first + tid % 8)
        tile_b[tid // 64, tid % 64] = load_or_zero(b, first + tid // 64, col + tid % 64)
        cuda.syncthreads()
        for k in range(8):
            # About 3 lines: add the products of this k to sums[0] to sums[7]; load 9 values,
            # not 16
            ...
        cuda.syncthreads()
    for i in range(8):
        if row + my_row + i < out.shape[0] and col + my_col < out.shape[1]:
            out[row + my_row + i, col + my_col] = sums[i]


exercises.check("05-column", my_column)

# %% [markdown]
# The library calls this kernel `registers_1d`. To compare it with yours, run `show.source(matmul.registers_1d)`.
#
# ## 2. A square per thread
#
# In a column, each value of a is still used only once. With eight rows *and* eight columns, 16 loads serve 64 FMAs. (In the library: `registers_2d`.)


# %%
@cuda.jit
def my_square(a, b, out):
    tile_a = cuda.shared.array((128, 8), np.float32)
    tile_b = cuda.shared.array((8, 128), np.float32)
    sums = cuda.local.array((8, 8), np.float32)
    left, right = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
    tid = cuda.threadIdx.x  # 256 threads
    my_row, my_col = tid // 16 * 8, tid % 16 * 8
    row, col = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    for i in range(64):
        sums[i // 8, i % 8] = 0
    for first in range(0, a.shape[1], 8):
        for at in range(tid, 1024, 256):
            tile_a[at // 8, at % 8] = load_or_zero(a, row + at // 8, first + at % 8)
            tile_b[at // 128, at % 128] = load_or_zero(b, first + at // 128, col + at % 128)
        cuda.syncthreads()
        for k in range(8):
            # About 6 lines: load 8 values into left and 8 into right, then add all 64 products
            # to sums
            ...
        cuda.syncthreads()
    for i in range(8):
        for j in range(8):
            if row + my_row + i < out.shape[0] and col + my_col + j < out.shape[1]:
                out[row + my_row + i, col + my_col + j] = sums[i, j]


exercises.check("05-square", my_square)

# %% [markdown]
# Launch it for a whole product, one block per tile. The next cell prints False until the hole is filled. On a GPU it then times your kernel, too.

# %%
n = 4096 if on_gpu() else 256
a, b = np.random.default_rng(0).random((2, n, n), np.float32)
arrays = cuda.to_device(a), cuda.to_device(b), cuda.to_device(np.zeros_like(a))
launch = partial(my_square[(n // 128, n // 128), 256], *arrays)
launch()
right = np.allclose(arrays[2].copy_to_host(), a @ b, rtol=1e-4)
print("right:", right)
if on_gpu() and right:
    print(timing.bench(launch))

# %% [markdown]
# What the two steps have gained:

# %%
rows = []
for name in ("tiled", "registers_1d", "registers_2d"):
    total = rungs[name].total("shared", "load")
    rows.append({"kernel": name, "loads per FMA": f"{total.requests / fmas:.3f}", "ms": f"{at_4096[name] * 1e3:.1f}"})
print(f"ms: {mark}")
results.table(rows)

# %% [markdown]
# The loads fall to an eighth. The time falls, too, but not to an eighth: other things limit the kernel now. (A trace counts the loads that are written. The compiler may merge some, as you will see below.)
#
# ## 3 to 5. Wide loads
#
# Loads, stores and address arithmetic all take **issue slots**: an SM starts at most four instructions per cycle, whatever they do. So the next step is to move the same bytes with fewer instructions. `load4` and `store4` of `gpukit.intrinsics` move 16 bytes at once. Their addresses must be multiples of 16 bytes.
#
# - **`wide`** uses them for global memory, and for the tile of `b`, in which a thread's eight values are neighbours.
# - **`transposed`** stores the tile of `a` transposed. A thread's eight values of `a` come from eight rows, so they were far apart in the tile. Transposed, they are neighbours, too.
# - **`transposed_padded`** repairs what the transposition broke. Look at the banks of the stores in `transposed`:


# %%
def plot_access(name, array, op):
    access = next(access for access in rungs[name].accesses if (access.array, access.op) == (array, op))
    rungs[name].plot_banks(access.line, array)


plot_access("transposed", "tile_a", "store")

# %% [markdown]
# Lanes 0 and 1 load columns 0 to 3 and 4 to 7 of the same row of a. Their first elements go to rows 0 and 4 of the tile. A row has 128 words, a multiple of the 32 banks, so both go to the same bank.
#
# Write this store, with a pitch (the length of a row) that avoids the conflict. A pad of one word will not do. (Why? Try it, and read the verdict.)


# %%
@cuda.jit
def my_columns(a, out):
    # 1 number: a pitch without bank conflicts, whose rows still begin at multiples of 16 bytes
    tile = cuda.shared.array((8, 128), np.float32, alignment=16)
    tid = cuda.threadIdx.x  # 256 threads for 128 rows of 8
    row = cuda.blockIdx.x * 128
    # About 4 lines: with one load4, load four neighbours of a row of a; store them below each
    # other in the tile
    ...
    cuda.syncthreads()
    k, c = tid // 32, tid % 32 * 4  # a warp for each row of the tile
    w, x, y, z = load4(tile, (k, c))
    store4(out, (k, row + c), w, x, y, z)


exercises.check("05-wide", my_columns)

# %% [markdown]
# When you have solved it, unfold the output below.

# %% jupyter={"outputs_hidden": true}
plot_access("transposed_padded", "tile_a", "store")

# %% [markdown]
# This is the inner loop of `transposed_padded` (`DEPTH` is 8). Four loads do the work of 16:
#
# ```python
# for k in range(DEPTH):
#     read(tile_a, k, my_row, 4, left)   # two load4
#     read(tile_b, k, my_col, 4, right)  # two load4
#     multiply(sums, left, right)        # 64 FMAs
# ```
#
# ## 6. Double buffering
#
# So far a block loads a tile, waits, multiplies, waits. While it waits for memory it does no arithmetic. The latency of a load from global memory is several hundred cycles. But while the load is in flight a thread may go on: it has to wait only when it uses the value.
#
# **Double buffering** uses this. With a second pair of tiles, the loads of the next step are in flight while this step is computed:

# %%
plot.double_buffering();

# %% [markdown]
# In the last exercise of chapter 03, two pairs of tiles saved a barrier. But there the store to shared memory followed each load at once, so every step waited for the whole latency. Now pull the two apart. In a step, a thread stores the values that are in its registers to one pair of tiles, and passes the barrier. Then it starts the loads of the *next* step, into registers, and multiplies. It does not wait for them until the next step stores them, to the other pair.
#
# Write the loop, for the simple kernel with one element per thread:


# %%
@cuda.jit
def my_double_buffered(a, b, out):
    tile_a = cuda.shared.array((2, 16, 16), np.float32)
    tile_b = cuda.shared.array((2, 16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = np.float32(0)
    from_a, from_b = load_or_zero(a, row, tx), load_or_zero(b, ty, col)  # in flight: the values of step 0
    # About 9 lines: in each step store these to a pair of tiles, pass one barrier, start the
    # next loads, multiply
    ...
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


exercises.check("05-double", my_double_buffered)

# %% [markdown]
# The same step in the library:

# %%
for name in ("transposed_padded", "double_buffered"):
    passed = sum(barrier.passed for barrier in rungs[name].barriers)
    print(f"{name:18}{passed:3} barriers for {16 // DEPTH} steps, {at_4096[name] * 1e3:.2f} ms")

# %% [markdown]
# ## 7. Warp tiles
#
# Back to the loads from shared memory. In `double_buffered` the 8 x 8 elements of a thread lie together, so neighbouring lanes read words that are 8 apart. A `load4` is served eight lanes at a time, a quarter of a warp. Eight lanes want 32 words, and there are 32 banks.
#
# **Predict** before you unfold the next output: in how many banks do lanes 0 to 7 find their 32 words?

# %% jupyter={"outputs_hidden": true}
plot_access("double_buffered", "tile_b", "load")

# %% [markdown]
# <details><summary>Answer</summary>In 16, half of them: words 0 to 3, 8 to 11, 16 to 19 and so on. So each quarter takes two wavefronts instead of one.</details>
#
# The remedy is to split a thread's 8 x 8 elements into *four squares of 4 x 4*. Then neighbouring lanes read neighbouring words. This is the arrangement in the picture at the start of the chapter, and this function computes where a thread's first square begins:

# %%
show.source(place)

# %%
plot_access("warp_tiles", "tile_b", "load")

# %% [markdown]
# Here are the accesses to shared memory, from `registers_2d` on. `warp_tiles` is the first whose loads take no more wavefronts than they must:

# %%
rows = []
for name in NAMES[3:9]:
    loads, stores = rungs[name].total("shared", "load"), rungs[name].total("shared", "store")
    counts = {"loads": loads.requests, "their wavefronts": loads.wavefronts, "at least": loads.ideal_wavefronts}
    counts |= {"stores": stores.requests, "wavefronts of stores": stores.wavefronts}
    rows.append({"kernel": name} | {what: f"{count:,}" for what, count in counts.items()})
results.table(rows)

# %% [markdown]
# ## The instructions
#
# A trace counts what is written. What does the compiler make of it? `gpukit bench code` compiles the kernels, which takes no GPU, and counts the instructions of the loop with the most FMAs:

# %%
compiled = {record["variant"]: record for record in results.load("fast-matmul-code") if record["variant"] in rungs}
rows = []
for name, record in compiled.items():
    loop, issued = record["loop"], sum(record["loop"].values())
    counts = {"FMAs": "multiply-add", "shared, 16 bytes": "shared, 16 bytes", "shared, less": "shared, less"}
    counts = {heading: loop[kind] for heading, kind in counts.items()}
    row = {"kernel": name} | counts | {"others": issued - sum(counts.values())}
    row |= {"FMA share": f"{loop['multiply-add'] / issued:.0%}", "registers": record["registers"]}
    rows.append(row | {"local memory": record["local"], "occupancy": f"{record['occupancy']:.0%}"})
print(f"compiled for {record['target']}")
results.table(rows)

# %% [markdown]
# - Nothing is in local memory: `sums` is in registers everywhere.
# - The square changes the FMA share most. There the compiler has already merged the eight loads of a row of `tile_b` into two wide ones. From then on the share hardly moves, and the later kernels win elsewhere: `wide` in accesses to global memory, `transposed` in loads from shared memory, the pad and `warp_tiles` in wavefronts, double buffering in latency.
# - The occupancy, the share of an SM's warp slots that are in use, *falls*. A square of 64 sums takes many registers, so fewer threads fit. They are enough, because each thread has 64 independent FMAs to offer. Occupancy is a means to hide latency, and independent work in a thread is another.
#
# ## What did each step gain?

# %%
rows, before = [], None
for name, seconds in at_4096.items():
    gain = f"{at_4096[before] / seconds:.2f}" if before else ""
    row = {"kernel": name, "ms": f"{seconds * 1e3:.2f}", "TFLOP/s": f"{tflops(seconds, 4096):.1f}"}
    rows.append(row | {"over the one before": gain, "of cuBLAS": f"{cublas / seconds:.2f}"})
    before = name
print(mark)
results.table(rows)

# %% [markdown]
# Of the first factor, most is cheaper index arithmetic, as [chapter 03](03_shared_memory.ipynb) shows. The last three kernels are the subject of [part b](05b_fast_matmul_deep_dive.ipynb). Now the same at 1024.
#
# **Predict.** The tiles of `registers_2d` are 128 x 128, those of `registers_1d` are 64 x 64. Which of the two is faster for a result of 1024 x 1024?

# %% jupyter={"outputs_hidden": true}
at_1024, best = measured(1024)
print(mark)
for name, seconds in at_1024.items():
    print(f"{name:18}{timing.format_seconds(seconds):>10}{best / seconds:6.2f} of cuBLAS")
plot.waves((1024 // 128) ** 2, 132);
# %% [markdown]
# <details><summary>Answer</summary><code>registers_1d</code>. A result of 1024 x 1024 has only 64 tiles of 128 x 128, and an H200 has 132 SMs, so half of it is idle. No tile is best for all shapes. Part b chooses.</details>
#
# ## From the source
#
# The documents end with the tiled kernel. By the data sheet, this is how much of the arithmetic of their GPU it uses:

# %%
notes, gpu = results.documents("A10"), device.RTX_3090
their_peak = 2e-12 * gpu.sm_count * 128 * gpu.core_clock  # two operations per FMA, 128 FMAs per SM and cycle
for row in notes["tables"][0]["rows"]:
    speed = tflops(row["milliseconds"] * 1e-3, 4096)
    print(f"{row['variant']:6} {row['milliseconds']:6.1f} ms {speed:5.2f} TFLOP/s: {speed / their_peak:.0%}")
print("of the", notes["gpu"])

# %% [markdown]
# ## Exercise: a swizzle instead of the pad
#
# `transposed_padded` spends 4 words per row to avoid bank conflicts. A swizzle spends none: it stores element (k, r) in another column of row k. Which column keeps four neighbours (a quad) together, so that `load4` still works, and puts the two lanes that collide into different banks? The check counts the banks of a store, looks at the quads, and makes sure that no element overwrites another.


# %%
def swizzle(k, r):
    # 1 line: the column of element (k, r) in row k of the tile
    return r


exercises.check("05-swizzle", swizzle)

# %% [markdown]
# ## Key points
#
# - A large matrix product is compute-bound if the kernel loads little enough. Count loads per FMA.
# - Reuse at every level: a block in shared memory, a thread in registers. The sums stay in registers from the first k to the last.
# - Move 16 bytes per instruction. A layout that allows it is worth a transposition and a pad.
# - Keep loads in flight while you compute. Double buffering does it with one barrier per step.
# - Neighbouring lanes should read neighbouring words. Split a thread's tile into squares if necessary.
# - A few warps are enough if each thread has enough independent work.
#
# **Back:** [04 Bank conflicts](04_bank_conflicts.ipynb). **Next:** [05b Matmul, a deep dive](05b_fast_matmul_deep_dive.ipynb), optional, or [06 Streams](06_streams.ipynb).
