# %% [markdown]
# # 05 Matmul all the way
#
# The tiled product of chapter 03 leaves most of a GPU idle, and cuBLAS, NVIDIA's library, is several times faster. This chapter closes the gap in ten steps. Each adds one idea to the kernel before it, and after each you will see in a trace what the idea has changed. The last kernel keeps up with cuBLAS, and it is Python that you can read.
#
# **After this chapter you will be able to**
#
# - say what a kernel that multiplies matrices is limited by, from counts of its loads and products;
# - keep a tile of the result in the registers of a thread, and see in the compiled code whether it is there;
# - load four elements at a time, and store a matrix so that this is possible;
# - share a tile out among the lanes of a warp without a bank conflict;
# - copy to shared memory asynchronously, and let a trace find the wait or the barrier that you forgot;
# - read the instructions of a loop, and say which share of them does the work;
# - choose tiles and parts of K for a shape, and predict which choice is the fastest.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb) and [04 Bank conflicts](04_bank_conflicts.ipynb). No GPU.
#
# **Time:** 120 minutes.

# %%
import warnings
from functools import partial

import numpy as np

import gpukit
from gpukit import cuda, device, matmul, on_gpu, plot, results, show, timing
from gpukit.intrinsics import commit_copies, copy_async, wait_copies
from gpukit.matmul import cost, ladder
from gpukit.matmul.fast import (
    make_copy_across,
    make_copy_along,
    make_copy_tiles,
    make_multiply,
    make_read,
    make_steps,
    sum_parts,
)
from gpukit.results import by_variant

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)


def matrices(rows, columns, terms, seed=5):
    """Two random matrices, and an output full of something that cannot be right."""
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, terms), (terms, columns)))
    return a, b, np.full((rows, columns), np.nan, np.float32)


def traced(variant, size=128, terms=16):
    """The trace of one product, by one launch, checked against float64."""
    a, b, out = matrices(size, size, terms)
    ((launch, arguments),) = matmul.steps(variant, a, b, out)
    trace = gpukit.trace(launch, *arguments)
    assert np.allclose(out, a.astype(np.float64) @ b, atol=1e-4) and not trace.findings
    return trace


def as_table(rows):
    return results.table(rows, {name: name for name in rows[0]})


# %% [markdown]
# ## What is the limit?
#
# A product of two n x n matrices takes n³ multiply-adds, on 3 n² numbers. The arithmetic grows faster than the data, so for large matrices it is the arithmetic that should be the limit, and not memory. How much of it can a GPU do? The specification of the product is still one line of NumPy, `a @ b`; the specification of its *speed* is a kernel that does nothing but multiply and add, in registers. With `scale` = 0.5 every x tends to 1:


# %%
@cuda.jit
def multiply_adds(scale, turns, out):
    x = cuda.local.array(8, np.float32)  # eight chains, none of which has to wait for another
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


# %% [markdown]
# And these are the two kernels that you know from chapter 03, beside cuBLAS. On a GPU the cell measures ours, with cold caches and in turns; without one it shows what was recorded. cuBLAS stands in the record.

# %%
recorded = results.load("fast-matmul-h200")
mark = results.taken_on(recorded)


def measured(size, variants):
    """Seconds of square products by kernel, and of cuBLAS."""
    seconds = by_variant(recorded, case="ladder", shape=(size, size, size))
    if on_gpu():
        a, b = (cuda.to_device(np.random.default_rng(i).random((size, size), np.float32)) for i in range(2))
        out = cuda.device_array_like(a)
        products = {name: partial(matmul.matmul, a, b, name, out=out) for name in variants}
        seconds |= {name: timed.median for name, timed in timing.bench_many(products, min_time=0.1).items()}
    return seconds


def tflops(seconds, shape):
    """TFLOP/s of a product; a multiply-add is two operations."""
    m, n, k = shape
    return 2e-12 * m * n * k / seconds


limit = results.first(recorded, case="limit")["value"] * 1e-12
if on_gpu():
    mark = f"{device.info().name}; cuBLAS: {mark}"
    blocks, turns = 8 * device.info().sm_count, 2000
    sums = cuda.device_array(blocks * 256, np.float32)
    multiply = partial(multiply_adds[blocks, 256], np.float32(0.5), turns, sums)
    limit = timing.bench(multiply, l2_flush=False).tflops(2 * turns * 16 * 8 * sums.size)

at_4096 = measured(4096, ("naive", "tiled", *matmul.LADDER))
cublas = min(value for name, value in at_4096.items() if name.startswith("cublas"))
print(mark)
print(f"{'multiply-adds in registers':30}{limit:6.1f} TFLOP/s")
print(f"{'cuBLAS, 4096 x 4096 x 4096':30}{tflops(cublas, (4096,) * 3):6.1f} TFLOP/s")
for variant in ("tiled", "naive"):
    print(f"{variant:30}{tflops(at_4096[variant], (4096,) * 3):6.1f} TFLOP/s")

# %% [markdown]
# Why is the tiled kernel so slow? Count what one of its threads does in the inner loop: for each multiply-add it loads a value of either tile. A multiprocessor can begin 128 multiply-adds in a cycle, but its shared memory delivers only 32 words. Two loads for one multiply-add: the loads win, by far.

# %%
a, b, out = matrices(64, 64, 64)
launch, _ = matmul.configure("tiled", out.shape)
tiled = gpukit.trace(launch, a, b, out)
loads = tiled.total("shared", "load").requests
count = 64**3 // 32  # an instruction is for the 32 lanes of a warp
print(f"{count:,} multiply-adds, {loads:,} loads from shared memory: {loads / count:.1f} for each")

# %% [markdown]
# So the first idea must be to load less. What has been loaded should be used more than once, *by the thread that has it*: registers are the only memory that is fast enough. Here are the three levels of the plan. A block computes a tile of the result, a warp a part of it, a thread a part of that, which it keeps in registers from beginning to end.

# %%
with plot.figure(size=(8, 3.1), columns=3, mark="tiles of ladder.warp_tiles: 128 x 128, 32 x 64, 8 x 8") as axes:
    for ax, title in zip(axes, ("block: 8 warps", "warp: 32 lanes", "thread: four squares of 4 x 4"), strict=True):
        ax.set(title=title, aspect="equal", xticks=[], yticks=[])
    rows, columns = np.indices((128, 128))
    axes[0].imshow(rows // ladder.WARP_ROWS * 2 + columns // ladder.WARP_COLUMNS, cmap="tab10", vmax=9)
    rows, columns = np.indices((ladder.WARP_ROWS, ladder.WARP_COLUMNS))
    lane = rows // 4 % 4 * 8 + columns // 4 % 8
    axes[1].imshow(lane, cmap="cividis")
    axes[2].imshow(lane == 10, cmap="Greys", vmax=2)
    for ax, rows, columns in ((axes[0], 128, 128), (axes[1], 32, 64), (axes[2], 32, 64)):
        ax.set(xlabel=f"{columns} columns", ylabel=f"{rows} rows")

# %% [markdown]
# ## 1. One column per thread
#
# A thread computes eight elements of a column. For each k it loads one value of b and eight of a: nine loads for eight multiply-adds.

# %%
show.source(matmul.registers_1d)

# %% [markdown]
# `sums` is an array, but not in memory: `cuda.local.array` with indices that are constants, once the loops are unrolled, becomes registers. The table further down shows that the compiler has done so.

# %% [markdown]
# ## 2. A square per thread
#
# With a column there is not much more to gain: each value of a is still used only once. With eight rows *and* eight columns, 16 loads are enough for 64 multiply-adds. It is the same thought that led to tiles in chapter 03, one level further in.

# %%
show.source(matmul.registers_2d)

# %%
def per_product(trace, products):
    """Requests to load from shared memory, and wavefronts, for each multiply-add of a warp."""
    total = trace.total("shared", "load")
    return total.requests / products, total.wavefronts / products


products = 128 * 128 * 16 // 32
print(f"{'loads and wavefronts per multiply-add of a warp':50}")
rungs = {variant: traced(variant) for variant in matmul.LADDER[:-1]}
counted = {"tiled": (tiled, 64**3 // 32)} | {v: (rungs[v], products) for v in ("registers_1d", "registers_2d")}
for variant, (trace, count) in counted.items():
    requests, wavefronts = per_product(trace, count)
    print(f"{variant:16}{requests:6.3f}{wavefronts:8.3f}")

# %% [markdown]
# An eighth of the loads. (The compiler is free to do better: it joins loads of neighbours, as you will see it do in the table of instructions. A trace counts what is written.)

# %% [markdown]
# ## 3. Four elements at a time
#
# Every instruction takes its place in the queue, and the queue is now what is short: besides the multiply-adds, nothing else should be in it. `load4` and `store4` of `gpukit.intrinsics` move 16 bytes with one instruction. They want addresses that are multiples of 16 bytes, so a matrix whose rows do not begin at such addresses needs the other form of the kernel: `aligned` is a constant when it is made, and the compiler leaves out what is not needed.

# %%
show.source(matmul.wide)

# %% [markdown]
# ## 4. The other matrix the other way round
#
# The eight values of b that a thread needs are neighbours in a row of the tile. Its eight values of a are below each other, in eight rows, so they are still loaded one by one. Store the tile of a **transposed**, and they are neighbours too:

# %%
show.source(matmul.transposed)

# %% [markdown]
# ## 5. A pad
#
# The price is in the stores. Look at the banks of the first one: lanes 0 and 1 have the same row of a, and columns 0 to 3 and 4 to 7 of it. Their elements go to rows 0 and 4 of the tile, and a row has 128 words, so both go to the same bank.

# %%
def plot_access(trace, array, op):
    access = next(access for access in trace.accesses if (access.array, access.op) == (array, op))
    trace.plot_banks(access.line, array)


plot_access(rungs["transposed"], "tile_a", "store")

# %% [markdown]
# A pad of one would cure it, and break something else: the rows would no longer begin at multiples of 16 bytes, which `load4` needs. A pad of **four** does both. `transposed_padded` is `transposed` with it:

# %%
plot_access(rungs["transposed_padded"], "tile_a", "store")

# %% [markdown]
# ## 6. Two pairs of tiles
#
# Until now a block loads, waits, multiplies, waits. While it waits for memory it does not multiply. With a second pair of tiles, the next ones can be on their way while these are multiplied: they are loaded to registers first, which the thread does not wait for until it uses them, and stored when the multiplication is done. That also saves a barrier, for nobody writes to the tiles that are read.

# %%
show.source(matmul.double_buffered)

# %%
for variant in ("transposed_padded", "double_buffered"):
    passed = sum(barrier.passed for barrier in rungs[variant].barriers)
    print(f"{variant:18}{passed:3} barriers for {16 // ladder.DEPTH} steps")

# %% [markdown]
# ## 7. Warp tiles
#
# And the loads? A thread has 8 x 8 elements that lie together, so the lanes of a warp read at a distance of 8 words from each other. Here are the first four words of each lane:

# %%
plot_access(rungs["double_buffered"], "tile_b", "load")

# %% [markdown]
# Sixteen bytes per lane are served a quarter of the warp at a time. The eight lanes of a quarter want 32 words, one for each bank, but with this distance they find them in half of the banks. So let a thread have *four squares of 4 x 4* in place of one of 8 x 8: then neighbouring lanes read neighbouring words, and the second half of each row comes from further right. It is the picture from the beginning.

# %%
show.source(ladder.place)

# %% [markdown]
# `warp_tiles` is `double_buffered` with this place for each lane.

# %%
plot_access(rungs["warp_tiles"], "tile_b", "load")

# %%
table = []
for variant in ("registers_2d", "wide", "transposed", "transposed_padded", "double_buffered", "warp_tiles"):
    loads, stores = rungs[variant].total("shared", "load"), rungs[variant].total("shared", "store")
    table.append(
        {
            "kernel": variant,
            "loads": f"{loads.requests:,}",
            "wavefronts of loads": f"{loads.wavefronts:,}",
            "fewest possible": f"{loads.ideal_wavefronts:,}",
            "stores": f"{stores.requests:,}",
            "wavefronts of stores": f"{stores.wavefronts:,}",
        }
    )
as_table(table)

# %% [markdown]
# ## 8. Read ahead
#
# Shared memory takes its time too: a value is there many cycles after its load began. In every kernel so far a thread loads the values for one k and then needs them at once. With a **second set of registers** it loads what it needs for the next k while it multiplies what it has. Two things come with it. Which set is which must be known when the kernel is compiled, so the loop over k is written out, as a chain of device functions. And the products of a step are gone through in a **serpentine**, down one column and up the next: a multiply-add reads three registers, more than the register file delivers at once, but what the instruction before has read it may use again for free.

# %%
show.source(ladder.multiply_in_turns)

# %%
show.source(ladder.make_steps)

# %%
show.source(matmul.read_ahead)

# %% [markdown]
# ## 9. Asynchronous copies
#
# What is on its way to registers occupies them, and registers are what the sums live in. Since 2020 GPUs can copy from global to shared memory without registers, and without the thread's help: it begins the copy and goes on. `gpukit.intrinsics` has this as a small set of functions:

# %%
help(copy_async)

# %%
help(commit_copies)
help(wait_copies)

# %% [markdown]
# With it, a ring of three pairs of tiles has two steps under way at any time. The elements of a are copied one by one, 4 bytes each: that is how they arrive transposed, where a copy of 16 bytes would keep them in a row.

# %%
show.source(matmul.asynchronous)

# %% [markdown]
# ### What goes wrong
#
# An asynchronous copy is a promise, and a kernel must not read what is only promised. Two things are needed before another thread may read: the thread that began the copy has to **wait** for it, and all have to meet at a **barrier** after that. Here are both mistakes. On a GPU, such a kernel gives the right result most of the time.


# %%
@cuda.jit
def without_the_wait(a, out):
    row = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    copy_async(row, t, a, t)
    commit_copies()
    cuda.syncthreads()
    out[t] = row[127 - t]


@cuda.jit
def without_the_barrier(a, out):
    row = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    copy_async(row, t, a, t)
    commit_copies()
    wait_copies(0)
    out[t] = row[127 - t]


a, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
for kernel in (without_the_wait, without_the_barrier):
    print(kernel.py_func.__name__)
    for finding in gpukit.trace(kernel[1, 128], a, out).findings:
        print(f"  {finding.kind}: {finding.message}")

# %% [markdown]
# Without the wait even the values are wrong here, on any run: the emulator lets a copy arrive when its thread waits for it, and no sooner.

# %% [markdown]
# ## 10. Fast
#
# The last rung puts all of this together and adds four things that cost no line of mathematics.
#
# - **Larger tiles, more per thread.** 128 x 256 per block, 8 x 16 per thread: 24 loads, six of them with `load4`, for 128 multiply-adds.
# - **The turn of the loop.** The last products of a step stand after the barrier of the next one, to have something to do while the first loads are under way.
# - **Few instructions beside the products.** Every one of them takes the place of a multiply-add; the table of instructions below counts both. So addresses are added to, not computed anew, and in integers without a sign, which are the cheapest.
# - **Loads that stay where they are.** A compiler orders instructions as it likes. `syncwarp` is here for what it does on the side: no load is moved across it, so all values for k + 1 are asked for before the products of k begin.
#
# Read it from the outside in: the block's tile and its part of K, the warp's and the thread's place in it, the loop over the steps.

# %%
show.source(matmul.fast)

# %% [markdown]
# Its parts, in the order in which data goes through them: the copies to shared memory, then what a thread does with it.

# %%
show.source(make_copy_tiles, make_copy_along, make_copy_across)

# %%
show.source(make_read, make_multiply, make_steps)

# %% [markdown]
# Is that the end? Not quite. The same kernel with its addresses as plain integers, computed by hand, needs fewer instructions in a step and is a little faster. But it has no arrays left, none that you could read or that a trace could watch, so it is not in gpukit. Its speed beside that of `fast`:

# %%
trials = results.load("fast-matmul-trials-h200")
for n in (2048, 4096, 8192):
    times = {record["variant"]: record["value"] for record in trials if record["shape"] == (n,) * 3}
    ratios = {name: times["cublas (torch)"] / times[name] for name in ("fast", "integer addresses")}
    print(f"{n:5}" + "".join(f"   {name} {ratio:.3f} of cuBLAS" for name, ratio in ratios.items()))

# %% [markdown]
# ## The instructions
#
# A multiprocessor begins four instructions per cycle, no matter which. The share of multiply-adds among all instructions of the loop is therefore the first number to look at when the arithmetic shall be the limit. `gpukit bench code` compiles the kernels, which takes no GPU, and counts:

# %%
compiled = results.load("fast-matmul-code")
rows = []
for record in compiled:
    loop, name = record["loop"], " ".join(filter(None, (record["variant"], record["tile"])))
    rows.append(
        {
            "kernel": name,
            "registers": record["registers"],
            "local memory": record["local"],
            "blocks": record["blocks"],
            "occupancy": f"{record['occupancy']:.0%}",
            "multiply-adds": loop["multiply-add"],
            "shared, 16 bytes": loop["shared, 16 bytes"],
            "shared, less": loop["shared, less"],
            "others": sum(loop.values()) - loop["multiply-add"] - loop["shared, 16 bytes"] - loop["shared, less"],
            "share": f"{loop['multiply-add'] / sum(loop.values()):.0%}",
        }
    )
print(f"compiled for {compiled[0]['target']}, {compiled[0]['date']}; the loop with the most multiply-adds")
as_table(rows)

# %% [markdown]
# Nothing is in local memory, so all sums are in registers. Up the ladder the share goes up, and the occupancy goes *down*: the fastest kernels have eight warps on a multiprocessor that could hold 64. It does not need more, for a thread always has 128 independent multiply-adds to offer.

# %% [markdown]
# ## How fast is it?

# %%
names = [name for name in ("naive", "tiled", *matmul.LADDER) if name in at_4096]
speeds = [tflops(at_4096[name], (4096,) * 3) for name in names]
with plot.figure(size=(8, 3.9), mark=f"4096 x 4096 x 4096, float32; {mark}") as ax:
    colors = [plot.PALETTE[7]] * 2 + [plot.PALETTE[0]] * (len(names) - 3) + [plot.PALETTE[2]]
    bars = ax.barh(names, speeds, color=colors)
    ax.bar_label(bars, [f"{speed:.1f}" for speed in speeds], padding=3, fontsize=8)
    ax.axvline(tflops(cublas, (4096,) * 3), color=plot.PALETTE[6], linestyle="--", label="cuBLAS, without TF32")
    ax.axvline(limit, color=plot.PALETTE[1], label="multiply-adds in registers")
    ax.invert_yaxis()
    ax.set(xlabel="TFLOP/s", title="The ladder", xlim=(0, limit * 1.12))
    ax.legend(loc="upper center")

# %%
rows = []
for before, name in zip([None, *names], names, strict=False):
    rows.append(
        {
            "kernel": name,
            "time, ms": f"{at_4096[name] * 1e3:.2f}",
            "TFLOP/s": f"{tflops(at_4096[name], (4096,) * 3):.1f}",
            "over the one before": f"{at_4096[before] / at_4096[name]:.2f}" if before else "",
            "of cuBLAS": f"{cublas / at_4096[name]:.2f}",
        }
    )
print(mark)
as_table(rows)

# %% [markdown]
# Not every idea pays at once. `read_ahead` gains next to nothing in this record: each step still ends with stores to shared memory and a barrier, and what is read ahead within a step does not help with that. The asynchronous copies that come next do away with these stores, and then the two together make the largest step since `wide`. That is why each step was measured, and why you should not take a list of ideas from a book, this one included, without a clock.
#
# Now at a smaller size, beside cuBLAS again. A result of 1024 x 1024 in tiles of 128 x 128 has 64 blocks, fewer than an H200 has multiprocessors. There `registers_2d`, with its large tiles, falls behind `registers_1d`.

# %%
at_1024 = measured(1024, names)
best = min(value for name, value in at_1024.items() if name.startswith("cublas"))
print(mark)
for name in names:
    seconds = at_1024[name]
    speed = tflops(seconds, (1024,) * 3)
    print(f"{name:18}{timing.format_seconds(seconds):>10}{speed:7.1f} TFLOP/s{best / seconds:6.2f} of cuBLAS")

# %% [markdown]
# ## Small, thin and ragged shapes
#
# A tile of 128 x 256 is no good for a result of 64 x 64: it is one block, on one of more than a hundred multiprocessors. Smaller tiles make more blocks, but load more for each product. And where there are too few blocks of any tile, K can be cut: every **part of K** gives a result of its own, and another kernel adds them up, always in the same order, so that the bits are the same every time.

# %%
show.source(sum_parts)

# %% [markdown]
# Which tile, and how many parts? There are hundreds of choices for each shape, too many to try, and few enough to *predict*. A small model does it: a multiprocessor works on so many blocks of a tile at a time, a step of one takes so long, and what counts is the multiprocessor with the most blocks.

# %%
show.source(cost.predict)

# %%
shapes = ((4096, 4096, 4096), (512, 512, 512), (64, 64, 32768), (16, 4096, 4096), (4096, 4097, 4096))
rows = []
for m, n, k in shapes:
    pieces, widen = matmul.choose(m, n, k, 1, n % 4 == 0, 132)
    for piece in pieces:
        rows.append(
            {
                "M x N x K": f"{m} x {n} x {k}",
                "piece": f"{piece.rows} x {piece.columns}",
                "tile": f"{piece.tile.rows} x {piece.tile.columns}",
                "blocks": -(-piece.rows // piece.tile.rows) * -(-piece.columns // piece.tile.columns),
                "parts of K": piece.parts,
                "b copied to longer rows": "yes" if widen else "",
            }
        )
as_table(rows)

# %% [markdown]
# The last shape is the nastiest: 4097 columns. Rows of that length do not begin at multiples of 16 bytes, so b is copied first, which costs little beside the product; and the one column too many would need a whole column of tiles, so it is computed on its own.
#
# Here is the whole map, as the time of cuBLAS over ours: above 1 we are faster.

# %%
ratios = {}
for record in recorded:
    if record["case"] == "map":
        ratios.setdefault(record["shape"], {})[record["variant"]] = record["value"]
sizes, depths = sorted({m for m, _, _ in ratios}), sorted({k for _, _, k in ratios})
grid = np.full((len(depths), len(sizes)), np.nan)
for (m, _, k), times in ratios.items():
    grid[depths.index(k), sizes.index(m)] = times["cublas (torch)"] / times["fast"]
with plot.figure(size=(8, 4.2), mark=results.taken_on(recorded)) as ax:
    ax.imshow(np.log2(grid), cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    for (row, col), ratio in np.ndenumerate(grid):
        ink = "white" if abs(np.log2(ratio)) > 0.7 else "black"
        ax.text(col, row, f"{ratio:.2f}", ha="center", va="center", fontsize=8, color=ink)
    ax.set(
        title="Time of cuBLAS over ours",
        xlabel="M = N",
        ylabel="K",
        xticks=range(grid.shape[1]),
        xticklabels=sizes,
        yticks=range(grid.shape[0]),
        yticklabels=depths,
    )
print(f"{np.count_nonzero(grid >= 1)} of {grid.size} shapes at or above 1, {np.nanmin(grid):.2f} at least")

# %%
shapes = {}
for record in recorded:
    if record["case"] == "shape":
        shapes.setdefault(record["shape"], {})[record["variant"]] = record["value"]
rows = []
for shape, times in shapes.items():
    best = min(value for name, value in times.items() if name.startswith("cublas"))
    rows.append(
        {
            "M x N x K": " x ".join(map(str, shape)),
            "ours, us": f"{times['fast'] * 1e6:,.1f}",
            "cuBLAS, us": f"{best * 1e6:,.1f}",
            "ours, TFLOP/s": f"{tflops(times['fast'], shape):.1f}",
            "of cuBLAS": f"{best / times['fast']:.2f}",
        }
    )
print(results.taken_on(recorded))
as_table(rows)

# %% [markdown]
# ## Batches, alpha and beta
#
# `matmul.matmul` takes more than two matrices, as NumPy does: axes before the last two count them, and are broadcast. `alpha` and `beta` are those of BLAS.

# %%
random = np.random.default_rng(6)
weights, images = random.random((2, 1, 8, 27), np.float32), random.random((3, 27, 50), np.float32)
batch = matmul.matmul(weights, images)
print(batch.shape, np.allclose(batch, weights @ images, atol=1e-4))
sums = np.ones((2, 3, 8, 50), np.float32)
matmul.matmul(weights, images, alpha=0.5, beta=2, out=sums)
print(np.allclose(sums, 0.5 * (weights @ images) + 2, atol=1e-4))

# %% [markdown]
# ## Exercises
#
# **1. How much must a thread have?** A thread with r x c sums loads r + c values for r c multiply-adds. A multiprocessor begins 128 multiply-adds in a cycle, and its shared memory delivers 32 words, of which a broadcast counts once. How many cycles do the loads of a warp take, how many its multiply-adds, and from which square on is the arithmetic the limit, if no load is a broadcast? Put your number into the cell.

# %%
my_square = 0  # the smallest r = c


def cycles(r):
    """(cycles of the loads, cycles of the multiply-adds) of a warp with r x r sums per lane, for one k."""
    return 32 * 2 * r / 32, 32 * r * r / 128


def is_enough(r):
    return cycles(r)[1] >= cycles(r)[0]


print("right" if my_square > 0 and is_enough(my_square) and not is_enough(my_square - 1) else "not yet")

# %% [markdown]
# **2. A swizzle in place of the pad.** In `transposed`, element (k, r) of the tile could go to column `r ^ s` of row k, with an s that depends on k. Which s leaves four neighbours together, so that `load4` still works, and takes the two lanes of a store apart? Write it as a function and let the cell count the banks.

# %%
def swizzle(k, r):
    """The column of element (k, r) in a row of 128 words."""
    return r  # your turn


def banks_of_a_store():
    """Different banks that the 32 lanes of the first store of `transposed` use: lane t has row t // 2, k = t % 2 * 4."""
    return len({swizzle(t % 2 * 4, t // 2) % 32 for t in range(32)})


def keeps_quads():
    places = [[swizzle(k, 4 * q + i) for i in range(4)] for k in range(8) for q in range(32)]
    return all(p[0] % 4 == 0 and p == list(range(p[0], p[0] + 4)) for p in places)


print(f"{banks_of_a_store()} banks, quads {'stay together' if keeps_quads() else 'are torn apart'}")
print("right" if banks_of_a_store() == 32 and keeps_quads() else "not yet")

# %% [markdown]
# **3. A barrier that looks superfluous.** `asynchronous` has one barrier per step. Which two things does it keep apart? Copy `ladder.asynchronous` into a cell, take the barrier out, and let the trace name two pairs of lines.
#
# <details><summary>Answer</summary>In one direction: a thread waits for its own copies only, so without the barrier it may read what another thread has begun to copy and nobody has waited for. In the other: the copies that begin behind the barrier go to the tiles of the step before, which slow threads would still be reading. The trace finds races between the copies and the loads of either kind.</details>
#
# **4. Predict a choice.** For a result of 1536 x 1536 and K = 4096, compute by hand how many rounds the multiprocessors need with tiles of 128 x 256 and 1, 3 and 9 parts of K. Compare with `matmul.choose(1536, 1536, 4096, 1, True, 132)`.
#
# <details><summary>Answer</summary>There are 12 x 6 = 72 tiles, and a multiprocessor holds one block of this size. One part: 72 blocks for 132 multiprocessors, one round of the whole K, and nearly half of the device idle. Three parts: 216 blocks, two rounds of a third each, so 2 / 3 of the time. Nine parts: 648 blocks, five rounds of a ninth, 5 / 9 of it; but then nine results have to be added up. <code>choose</code> weighs all that, and takes a smaller tile in fewer parts, which shares the work out more evenly still.</details>

# %% [markdown]
# ## Key points
#
# - A product of large matrices is limited by arithmetic, if the loads are few enough. Count both.
# - Reuse at every level: the block in shared memory, the thread in registers. Sums stay in registers from beginning to end.
# - 16 bytes per instruction, in both directions. A layout that allows it is worth a transposition and a pad.
# - Neighbouring lanes should read neighbouring words: split a thread's share into squares.
# - What comes next has to be under way while this is computed: from memory to shared memory, and from there to registers.
# - An asynchronous copy needs a wait and a barrier before anyone reads it. A trace checks both.
# - Few warps are enough if each has enough independent work. Occupancy is a means.
# - No tile fits all shapes: few blocks call for small tiles and parts of K, added up in a fixed order.
#
# **Back:** [04 Bank conflicts](04_bank_conflicts.ipynb). **Next:** [06 Streams](06_streams.ipynb).
