# %% [markdown]
# # 05b Matmul, a deep dive
#
# How do you get from a good kernel to one that keeps up with cuBLAS? [Chapter 05](05_fast_matmul.ipynb) ended well short of it, with `warp_tiles`. Here are the last three steps, and then what a library needs besides a fast kernel: a choice for every shape. This part is optional. No later chapter needs it.
#
# **After this part you will be able to**
#
# - hide the latency of shared memory by software pipelining, and weigh it against occupancy;
# - copy to shared memory asynchronously, with the wait and the barrier that it needs;
# - read a production kernel in Python, and know what its name would say in a profiler;
# - split K when a result has too few tiles, and predict which tile is best for a shape;
# - multiply float64 matrices on tensor cores.
#
# **You need** [05 Matmul all the way](05_fast_matmul.ipynb). No GPU.
#
# **Time:** 75 minutes.

# %%
import warnings
from functools import partial

import numpy as np

from gpukit import cuda, device, exercises, matmul, on_gpu, plot, results, show, timing
from gpukit.intrinsics import commit_copies, copy_async, mma, wait_copies
from gpukit.matmul import cost, double, ladder
from gpukit.matmul.fast import make_multiply, make_read

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here
recorded = results.load("fast-matmul-h200")
mark = results.taken_on(recorded)

# %% [markdown]
# This is the rest of the ladder, from the kernel before the last of chapter 05 to cuBLAS:

# %%
at_4096 = results.by_variant(recorded, case="ladder", shape=(4096, 4096, 4096))
steps = ("double_buffered", "warp_tiles", "read_ahead", "asynchronous", "fast", "cublas (torch)")
rows = [{"kernel": name, "TFLOP/s": f"{2e-12 * 4096**3 / at_4096[name]:.1f}"} for name in steps]
print(f"4096 x 4096 x 4096, float32, {mark}")
results.table(rows)

# %% [markdown]
# ## 8. Read ahead
#
# Shared memory has a latency too, of some tens of cycles. In `warp_tiles` a thread loads the values for one k and needs them at once. `read_ahead` has a **second set of registers**: it loads the values for the next k while it multiplies those of this one. To overlap the work of several iterations is called **software pipelining**. Double buffering does it with tiles, this kernel also with registers.
#
# Two details come with it:
#
# - Registers have no addresses, so the compiler has to know which set each instruction uses. The loop over k is therefore written out, as a chain of device functions.
# - The products are computed in a **serpentine**, down one column and up the next. Neighbouring FMAs then share an operand, which the hardware can keep instead of reading it from the register file again.

# %%
show.source(ladder.make_steps)

# %% [markdown]
# A second set of registers is not free:

# %%
compiled = results.load("fast-matmul-code")
for name in ("warp_tiles", "read_ahead"):
    print(f"{name:12}{results.first(compiled, variant=name)['registers']:4} registers per thread")

# %% [markdown]
# **Predict.** A block has 256 threads. An SM has 65,536 registers, and hands them out in multiples of 8 per thread. It holds two blocks of `warp_tiles`. How many of `read_ahead`?

# %%
my_answer = None
exercises.check("05b-blocks", my_answer)

# %% jupyter={"outputs_hidden": true}
rows = []
for record in compiled:
    if record["variant"] in steps and record["tile"] in (None, "128 x 256"):
        loop = record["loop"]
        row = {"kernel": record["variant"], "registers": record["registers"], "blocks per SM": record["blocks"]}
        row |= {"FMAs": loop["multiply-add"], "all instructions": sum(loop.values())}
        rows.append(row | {"FMA share": f"{loop['multiply-add'] / sum(loop.values()):.0%}"})
results.table(rows)

# %% [markdown]
# <details><summary>What it means</summary>One block instead of two. While its warps meet at the barrier, the SM has no other block to run, so the barrier is exposed. That is why <code>read_ahead</code> gains so little in the first table, although its FMA share is much higher. The next step shortens what happens around the barrier, and then both pay off.</details>
#
# ## 9. Asynchronous copies
#
# In `read_ahead` the next tiles are in flight to *registers*, which the accumulators need as well. Since 2020 (compute capability 8.0), a GPU can copy from global to shared memory directly. The thread starts the copy and goes on:
#
# | call | what it does |
# |---|---|
# | `copy_async(target, index, source, source_index, guard)` | starts a copy of 4 bytes; where `guard` is false, it stores zero |
# | `copy_async4(...)` | the same for 16 bytes |
# | `commit_copies()` | closes a **group**: all copies that this thread has started since the last group |
# | `wait_copies(n)` | waits until at most the n latest groups of this thread are in flight |
#
# A copy in flight is a promise. Before *another* thread may read the element, two things must happen: the thread that started the copy waits for it, and then both meet at a barrier.
#
# Here is a small kernel that needs the copy, the commit, the wait and the barrier. It adds up the rows of a matrix, and each thread reads elements that another thread has copied. Three rows of shared memory form a ring: one is read while two are in flight.


# %%
@cuda.jit
def my_ring(a, out):
    ring = cuda.shared.array((3, 128), np.float32)  # three rows: one in use, two in flight
    t, col = cuda.threadIdx.x, cuda.grid(1)
    total = np.float32(0)
    for row in range(2):
        copy_async(ring, (row, t), a, (row, col), row < a.shape[0])
        commit_copies()
    for row in range(a.shape[0]):
        # About 4 lines: wait until all threads' copies of this row have arrived; start copying
        # row + 2
        ...
        total += ring[row % 3, 127 - t]
    out[col] = total


exercises.check("05b-ring", my_ring)

# %% [markdown]
# Leave the barrier out, and see what happens. On a GPU the result would be right most of the time. The trace reports the race in every run.
#
# `asynchronous` does the same with a ring of three pairs of tiles. The elements of `a` are copied one by one, 4 bytes each, so that they arrive transposed.

# %%
show.source(matmul.asynchronous)

# %% [markdown]
# ## 10. Fast
#
# The last rung combines all of this, and adds four ideas.
#
# - **Larger tiles.** 128 x 256 per block, 8 x 16 per thread: 24 loaded values serve 128 FMAs.
# - **Software pipelining across steps.** The last FMAs of a step run after the next barrier, and hide the latency of the first loads there.
# - **Cheap addresses.** Every other instruction takes an issue slot from an FMA. So addresses are incremented, not computed anew, and they are unsigned: Numba tests a signed index for being negative.
# - **Loads that stay where they are.** The compiler likes to move loads down to their first use. `syncwarp` is used for a side effect: no load is moved across it.
#
# The core is two short device functions. A thread reads its values for one k, four at a time, and multiplies them, in the serpentine order:

# %%
print(cost.SPEEDS[0].tile)
show.source(make_read, make_multiply)

# %% [markdown]
# Around them the kernel does bookkeeping. Unfold the source below, and find these parts, in this order:
#
# 1. **The block**: which tile of the result, which slice of K, which matrix of a batch.
# 2. **The thread**: its place in the warp's tile, and where its copies begin.
# 3. **The prologue**: copies for the first `stages - 1` steps are started.
# 4. **The loop**: wait, barrier; read for k = 0; multiply the rest of the step before; start the copies of a later step; read and multiply for the other k; move all addresses on.
# 5. **The epilogue**: the last products, then the stores.

# %% jupyter={"outputs_hidden": true}
show.source(matmul.fast)

# %% [markdown]
# Is that the end? Not quite. The copies of `a` are the weak spot. They bring 4 bytes each, so that the elements arrive transposed, and a thread starts four of them where one of 16 bytes would do. If the elements of a column followed one another in memory, as in the transpose of a C-contiguous array, the copies of `a` would be as wide as those of `b`. The same kernel is then faster:

# %%
trials = results.load("fast-matmul-trials-h200")
for n in (2048, 4096, 8192):
    times = results.by_variant(trials, shape=(n, n, n))
    ratios = {name: times["cublas (cupy)"] / times[name] for name in ("a by rows", "a by columns")}
    print(f"{n:5}" + "".join(f"   {name} {ratio:.3f} of cuBLAS" for name, ratio in ratios.items()))

# %% [markdown]
# So for a large product `matmul.matmul` transposes `a` first, in tiles as in [chapter 04](04_bank_conflicts.ipynb). That takes time in proportion to M x K, and what it saves is in proportion to M x N x K. The same holds for a `b` that is the transpose of a C-contiguous array: its copies have 4 bytes each as well, and there are twice as many of them.
#
# With both operands that way a device of compute capability 9.0 can do without most of the other instructions. In `gpukit.matmul.streamed` one thread copies all of it, by the tensor maps of [chapter 12](12_tensor_cores.ipynb), and the other warps have neither addresses nor bounds to compute: nearly all instructions in their loop are FMAs. Where it is faster, `fast` transposes what it must and runs that kernel, as it does for 4096 x 4096 in the tables of this chapter and of 05.

# %% [markdown]
# ## What cuBLAS does
#
# The same, with many more tiles to choose from. In a profiler a float32 product by cuBLAS shows up under a name like `cutlass_80_simt_sgemm_128x256_8x4_nn_align1`. You can read it now: tiles of 128 x 256, steps of 8 along K, 4 stages of shared memory filled by asynchronous copies (which came with architecture 80), both matrices as they are (`n`, not transposed), ordinary cores (`simt`), and loads of one element at a time (`align1`).
#
# Frameworks may use tensor cores for float32 instead. These round the inputs to **TF32**, a format with the exponent of float32 and only 10 bits of mantissa. That is several times faster and less accurate, so it is off in all comparisons here.
#
# ## Few tiles: split-K
#
# Tiles of 128 x 256 are no good for a result of 64 x 128. It does not fill a single one, and more than a hundred SMs are idle. Smaller tiles make more blocks, but load more per FMA. If even small tiles are too few and K is long, **split-K** helps: each block takes a slice of K and writes a partial product. A second kernel adds these up.

# %%
plot.split_k(64, 128, 4096, tile=64, parts=4);

# %% [markdown]
# Write the first of the two kernels, for one thread per element. `blockIdx.z` is the slice.


# %%
@cuda.jit
def my_slices(a, b, parts, partial):
    col, row = cuda.grid(2)
    part = cuda.blockIdx.z
    if row < partial.shape[1] and col < partial.shape[2]:
        total = np.float32(0)
        # About 4 lines: add the products of this block's slice of K; ceil(K / parts) is the
        # length of a slice
        ...
        partial[part, row, col] = total


exercises.check("05b-split", my_slices)

# %% [markdown]
# The partial products could be added to the result with atomics, without a second kernel. But then the order of the additions, and with it the last bits, would change from run to run. gpukit's `sum_parts` always adds them in the same order.
#
# ## Which tile, how many slices?
#
# There are hundreds of choices for a shape: too many to try, few enough to *predict*. A small model does it. Each tile has four measured figures: how many of its blocks an SM holds, what a step costs on a busy SM, what it costs when the block is alone, and what the first copies and the last stores cost. The SM with the most blocks determines the time, unless moving the bytes takes longer. At first, skip the lines with `slices`, `zeros`, `loads` and `is_stream`: they are for tiles of tensor cores ([chapter 12](12_tensor_cores.ipynb)).

# %%
show.source(cost.predict)

# %%
rows = []
square, deep, thin, uneven = (4096, 4096, 4096), (64, 64, 32768), (16, 4096, 4096), (2560, 2560, 2560)
for m, n, k in (square, (512, 512, 512), deep, thin, uneven, (4096, 4097, 4096)):
    choice = matmul.choose(m, n, k, 1, n % 4 == 0, 132)
    for piece in choice.pieces:
        blocks = -(-piece.rows // piece.tile.rows) * -(-piece.columns // piece.tile.columns)
        row = {"M x N x K": f"{m} x {n} x {k}", "piece": f"{piece.rows} x {piece.columns}"}
        row |= {"tile": f"{piece.tile.rows} x {piece.tile.columns}", "tiles": blocks, "slices of K": piece.parts}
        rows.append(row | {"b copied to aligned rows": "yes" if choice.widens else ""})
results.table(rows)

# %% [markdown]
# 2560 x 2560 has 200 tiles of 128 x 256. In a second round, about half of the 132 SMs would be idle. So the first piece has no more tiles than there are SMs. The rest is a piece of its own, of smaller tiles and with slices of K.
#
# The last shape, with its two rows in the table, is the nastiest. Rows of 4097 floats do not begin at multiples of 16 bytes, so b is copied to aligned rows first, which costs little compared with the product. And the one surplus column would need a whole column of tiles, so it is a piece of its own.
#
# **Check yourself.** For 1536 x 1536 with K = 4096, how many rounds do 132 SMs need with tiles of 128 x 256, one block per SM, and 1, 3 or 9 slices of K?
#
# <details><summary>Answer</summary>There are 12 x 6 = 72 tiles. One slice: 72 blocks, one round over the whole K, and nearly half of the SMs idle. Three slices: 216 blocks, two rounds of a third each, 2/3 of the time. Nine slices: 648 blocks, five rounds of a ninth, 5/9 of the time, but nine partial products to add. <code>choose</code> weighs all that. It cuts 66 of the tiles into two slices each, which makes 132 blocks, one for each SM, and the last 128 rows are a piece of their own.</details>

# %%
matmul.choose(1536, 1536, 4096, 1, True, 132).pieces

# %% [markdown]
# This is what the choices achieve. Each cell is the time of cuBLAS over ours. Above 1 ours is faster:

# %%
ratios = {}
for record in recorded:
    if record["case"] == "map":
        ratios.setdefault(record["shape"], {})[record["variant"]] = record["value"]
sizes, depths = sorted({m for m, _, _ in ratios}), sorted({k for _, _, k in ratios})
grid = np.full((len(depths), len(sizes)), np.nan)
for (m, _, k), times in ratios.items():
    grid[depths.index(k), sizes.index(m)] = times["cublas (torch)"] / times["fast"]
names = [f"K = {k:,}" for k in depths], [f"{m:,}" for m in sizes]
plot.shaded(grid, *names, "M = N across, K down", title="Time of cuBLAS over ours, float32", mark=mark)
print(f"{np.count_nonzero(grid >= 1)} of {grid.size} shapes at or above 1, {np.nanmin(grid):.2f} at least")

# %% [markdown]
# And for shapes that are not so regular:

# %%
rows = []
for shape in dict.fromkeys(record["shape"] for record in recorded if record["case"] == "shape"):
    times = results.by_variant(recorded, case="shape", shape=shape)
    best = min(value for name, value in times.items() if name.startswith("cublas"))
    row = {"M x N x K": " x ".join(map(str, shape)), "ours, us": f"{times['fast'] * 1e6:,.1f}"}
    rows.append(row | {"cuBLAS, us": f"{best * 1e6:,.1f}", "cuBLAS / ours": f"{best / times['fast']:.2f}"})
print(mark)
results.table(rows)

# %% [markdown]
# ## float64 on tensor cores
#
# A **tensor core** multiplies small matrices, with one instruction for a whole warp. For float64 it loses nothing: the numbers are float64 throughout. (This needs a data-centre GPU: of compute capability 8.0, or 9.0 for the instruction used here. Other GPUs have hardly any float64 hardware.)
#
# `mma` multiplies 16 x 4 by 4 x 8 and adds 16 x 8 sums. Each lane holds its share of all three matrices. With g = lane // 4 and t = lane % 4:
#
# | matrix | this lane's elements |
# |---|---|
# | a, 16 x 4 | (g, t) and (g + 8, t) |
# | b, 4 x 8 | (t, g) |
# | sums, 16 x 8 | (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1) |
#
# Multiply a strip of 16 rows by a strip of 8 columns, for any K that is a multiple of 4:


# %%
@cuda.jit
def my_warp_product(a, b, out):
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4  # one warp
    c = (0.0, 0.0, 0.0, 0.0)
    for k in range(0, a.shape[1], 4):
        # 1 or 2 lines: this lane has two elements of a, in rows g and g + 8, and one of b;
        # multiply, and add to c
        ...
    out[g, 2 * t], out[g, 2 * t + 1], out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c


exercises.check("05b-mma", my_warp_product)

# %% [markdown]
# `gpukit.matmul.double` is `fast` with the instruction for K = 8. The stages are the same, but a warp computes its tile in pieces of 16 x 8. Its operands lie in shared memory as they do in global memory, so every copy has 16 bytes. Loads of 8 bytes are served half a warp at a time: four elements along K, for each of four rows. If K lies across the rows of shared memory, a pad of 4 puts these into different banks. If it lies along them, element k of row x is stored at place k ^ x % 4 * 4. Tensor cores are much faster with fewer bits: that is [chapter 12](12_tensor_cores.ipynb).

# %%
show.source(double.make_read_b, double.make_multiply)

# %% [markdown]
# On a GPU the next cell measures it. Without one, it only shows what is recorded: kernels without tensor cores, and cuBLAS, which uses them:

# %%
n = 1024
seconds = results.by_variant(recorded, case="float64", shape=(n, n, n))
if on_gpu():
    a, b = (cuda.to_device(np.random.default_rng(i).random((n, n))) for i in range(2))
    runs = {f"{name}, here": partial(matmul.matmul, a, b, name) for name in ("tiled", "registers_1d", "auto")}
    seconds |= {name: timed.median for name, timed in timing.bench_many(runs, min_time=0.1).items()}
    mark += f"; here: {device.info().name}"
print(f"{n} x {n} x {n}, float64, {mark}")
for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
    print(f"{name:20}{value * 1e6:9.1f} us {2e-12 * n**3 / value:6.1f} TFLOP/s")

# %% [markdown]
# ## Batches, alpha and beta
#
# `matmul.matmul` takes batches, as NumPy does: the axes before the last two count matrices, and are broadcast. `alpha` and `beta` are those of BLAS: the result is `alpha * (a @ b) + beta * out`.

# %%
random = np.random.default_rng(6)
weights, images = random.random((2, 1, 8, 27), np.float32), random.random((3, 27, 50), np.float32)
sums = np.ones((2, 3, 8, 50), np.float32)
matmul.matmul(weights, images, alpha=0.5, beta=2, out=sums)
print(sums.shape, np.allclose(sums, 0.5 * (weights @ images) + 2, atol=1e-4))

# %% [markdown]
# ## Key points
#
# - Software pipelining hides latency inside a thread. It costs registers, and registers cost occupancy. Look at both.
# - An asynchronous copy needs a wait by the thread that started it, and a barrier after that, before anyone else reads.
# - A fast kernel is mostly FMAs. Everything else competes with them for issue slots.
# - No tile fits all shapes. Too few tiles call for smaller tiles or split-K, with partial products added in a fixed order.
# - For float64 use the tensor cores: one instruction does 512 or 1024 FMAs for a warp, at full precision.
#
# **Back:** [05 Matmul all the way](05_fast_matmul.ipynb). **Next:** [06 Streams](06_streams.ipynb).
