# %% [markdown]
# # 07 Reduce
#
# Adding up an array is the smallest problem in which threads must work *together*: many numbers go in, one comes out. Every mean, every norm and every loss of a neural network is such a **reduction**. How fast can it be?
#
# **After this chapter you will be able to**
#
# - say how fast a reduction can be at best, and measure how close a kernel comes;
# - write a reduction by a tree in shared memory and by warp shuffles, and count what each costs;
# - tell idle lanes from bank conflicts in a trace, where both take the same number of wavefronts;
# - combine blocks in one launch, with a fence, a counter and no race;
# - predict the rounding error of a sum, and make a sum that gives the same bits in every run;
# - reduce the first, the last or a middle axis, with any number of rows;
# - reduce by a function of your own, and say when its order matters.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb) and [04 Bank conflicts](04_bank_conflicts.ipynb). No GPU.
#
# **Time:** 100 minutes, most of them for the eight exercises.

# %%
import math
import warnings

import numpy as np

import gpukit
from gpukit import cuda, device, exercises, on_gpu, operators, plot, prediction, reduce, results, show, timing
from gpukit.reduce import api, ladder

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here
print("kernels run on:", device.info().name)

# %% [markdown]
# Here is the sum of 2<sup>28</sup> float32, 1 GB of them, by the first and the last kernel of this chapter, by a library, and a plain copy of the same array:

# %%
recorded = results.load("reduce-h200", case="ladder")
times = {(record["variant"], record["shape"][0]): record["value"] for record in recorded}
where, largest = results.taken_on(recorded), 2**28
rows = []
for name in ("interleaved_divergent", "one_launch", "cupy", "copy"):
    moved = (8 if name == "copy" else 4) * largest  # a copy reads and writes
    rows.append([name, f"{1e6 * times[name, largest]:,.0f}", f"{1e-9 * moved / times[name, largest]:,.0f}"])
print(where)
show.Table(["2^28 float32", "us", "GB/s"], rows)

# %% [markdown]
# Both kernels read every element once and add it once. **Where does the first one lose seven eighths of its time?**
#
# ## The limit
#
# A sum of n float32 reads 4 n bytes and makes n - 1 additions: a quarter of an addition per byte. A large GPU does several additions in the time that one byte takes to arrive. So a sum is as memory-bound as a problem can be, and its speed is best stated in GB/s. The copy above says what the memory can deliver. The specification is one line:


# %%
def specification(x):
    """The sum of all elements, as exact as float32 can show it."""
    return np.float32(x.sum(dtype=np.float64))


# %% [markdown]
# One thread could add all numbers in a loop, and every other thread would be idle. Instead, many threads can add pairs at the same time, then pairs of the results, and so on: a **tree**. With n numbers it has log2(n) levels. Which thread adds which pair is up to us. Here are three ways for 16 numbers; a number in a circle is the thread that adds there:

# %% jupyter={"source_hidden": true}
ORDERS = {
    "interleaved, divergent: thread t adds if t is a multiple of 2 step": lambda step: [
        (t, t, t + step) for t in range(0, 16, 2 * step)
    ],
    "interleaved, conflicts: thread t adds at 2 step t": lambda step: [
        (t, 2 * step * t, 2 * step * t + step) for t in range(8 // step)
    ],
    "sequential: thread t adds element t + step to element t": lambda step: [(t, t, t + step) for t in range(step)],
}

with plot.figure(size=(8, 5.6), rows=3, sharex=True, mark=" ") as axes:
    for ax, (title, pairs) in zip(axes, ORDERS.items(), strict=True):
        steps = (8, 4, 2, 1) if title.startswith("sequential") else (1, 2, 4, 8)
        ax.plot(range(16), [0] * 16, "o", color=plot.PALETTE[7])
        for level, step in enumerate(steps):
            for thread, left, right in pairs(step):
                ax.plot([right, left], [level, level + 1], color=plot.PALETTE[7], linewidth=1)
                ax.plot([left, left], [level, level + 1], color=plot.PALETTE[7], linewidth=1)
                ax.plot(left, level + 1, "o", color=plot.PALETTE[0], markersize=13, zorder=2.5)  # above the lines
                ax.text(left, level + 1, thread, ha="center", va="center", fontsize=8)
        ax.set(title=title, yticks=range(5), ylabel="level", ylim=(4.6, -0.5))
    axes[-1].set(xlabel="index in shared memory", xticks=range(16))

# %% [markdown]
# ## Three trees
#
# The first tree as a kernel: a block of 256 threads loads 256 numbers into shared memory and adds them there. Its sum goes to `out`, and a second launch adds up the sums of the blocks.

# %%
show.source(ladder.interleaved_divergent)

# %% [markdown]
# Its trace, for 65,536 random numbers. Look at the line with `+=`, and at the branch before it:

# %%
x = np.random.default_rng(7).standard_normal(2**16).astype(np.float32)
on_device = cuda.to_device(x)


def traced(variant):
    """The trace of the first launch of a rung, after a check of the sum that all of its launches give."""
    out = cuda.to_device(np.full(1, np.nan, np.float32))
    traces = [gpukit.trace(launch, *arguments) for launch, arguments in reduce.steps(variant, on_device, out)]
    assert abs(out.copy_to_host()[0] - specification(x)) < 1e-2
    assert all(trace.findings == [] for trace in traces)
    return traces[0]


traces = {variant: traced(variant) for variant in reduce.VARIANTS}
traces["interleaved_divergent"]

# %% [markdown]
# In the first step 16 lanes of each warp add, in the next 8, and so on. But a warp with one active lane takes as many cycles as one with 32. And `%` is a remainder in 64 bits: dozens of instructions.
#
# `interleaved_conflict`, the second tree, makes the same additions by *neighbouring* threads: thread t adds at `at = 2 * step * t`, as long as that is inside the array. Whole warps run out of work and skip the addition.
#
# The third tree is yours. Its first step adds the upper half of the array to the lower half:


# %%
@cuda.jit
def tree(x, out):
    values = cuda.shared.array(256, np.float32)  # the block has 256 threads
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    # About 6 lines: for steps of 128, 64 ... 1, add element tid + step to element tid
    ...
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


exercises.check("07-tree", tree)

# %% [markdown]
# **Check yourself.** Take the barrier out of the loop and check again: what does the review say, and which two threads meet? Then put it back, but *inside* the `if`. Why is that accepted? Would it still be if another barrier followed the loop?
#
# <details><summary>Answer</summary>
#
# Without the barrier it is a race: one thread reads what another one writes, and nothing orders the two. With the barrier inside the `if`, the threads that do not add run past it and return, and since compute capability 7.0 a barrier does not wait for threads that have returned. If another barrier followed the loop, they would wait there while the others wait inside the `if`. Threads of a block at different barriers are called barrier divergence, and its result is undefined.
#
# </details>
#
# gpukit's kernel with this tree is called `sequential`. The counts of all three:


# %%
def counts(variants):
    """A table of what the first launch of some rungs costs."""
    rows = []
    for variant in variants:
        trace = traces[variant]
        shared, loads = trace.total("shared"), trace.total("global", "load")
        lanes = f"{shared.active_lanes:.1f}"
        waits = sum(barrier.passed for barrier in trace.barriers if barrier.kind == "block")
        cost = shared.requests, lanes, shared.wavefronts, shared.bank_conflicts, waits
        rows.append([variant, trace.blocks, *cost, loads.requests, loads.sectors])
    shared = "shared requests", "lanes in each", "wavefronts", "conflicts"
    return show.Table(["", "blocks", *shared, "barriers", "load requests", "sectors"], rows)


VARIANTS = list(reduce.VARIANTS)
counts(VARIANTS[:3])

# %% [markdown]
# Read it slowly, it is a small lesson in measuring. The first kernel has no bank conflict, but many requests with few lanes each. The second has less than a third of the requests, with three times the lanes in each. But those lanes are `2 * step` words apart, and so the **wavefronts are the same**: one warp that needs eight words from each bank takes as many as eight warps that need one. Only the third avoids both.

# %%
conflicting = next(a for a in traces["interleaved_conflict"].accesses if a.space == "shared" and a.bank_conflicts)
traces["interleaved_conflict"].plot_banks(line=conflicting.line, array="values");
# %% [markdown]
# **Check yourself.** This is its worst request. In which step was it made: how far apart are the lanes, and how many are there? Why are the later steps not worse still?
#
# <details><summary>Answer</summary>
#
# The lanes are 8 words apart, and 8 is `2 * step`: the step is 4. All 32 lanes take part, in 4 banks. In the next step they are 16 words apart, in 2 banks; but the block adds only 16 pairs then, so 16 lanes take part: again 8 in each bank. In the step after that, 8 lanes meet in a single bank. From there on the bank stays and the lanes become fewer.
#
# </details>

# %% [markdown]
# ## Fewer threads, fewer barriers
#
# In `sequential`, half of the threads load a number and never add anything. `first_add` gives each thread two numbers and adds them in registers, so it needs half as many blocks. More work per thread is called **thread coarsening**.
#
# The last five steps of a tree involve a single warp, and a warp needs neither shared memory nor barriers to pass numbers around. In a **shuffle** each lane reads a register of another lane: `cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)` is the `value` of lane `lane ^ distance`. The mask says that all 32 lanes take part. Here are 8 lanes:

# %%
plot.butterfly();
# %% [markdown]
# Both lanes of a pair add, so at the end every lane has the sum. Write it for a warp:


# %%
@cuda.jit(device=True)
def warp_sum(value):
    # About 2 lines: for five distances, add the value of lane ^ distance
    ...
    return value


exercises.check("07-warp", warp_sum)

# %% [markdown]
# A block has eight warps. The first lane of each puts its warp's sum into shared memory, and after *one* barrier the first warp adds up these eight:

# %%
show.source(ladder.block_sum)

# %% [markdown]
# `shuffle` is `first_add` with this in place of the tree:

# %%
counts(VARIANTS[2:5])

# %% [markdown]
# Half of the blocks, then a fifth of the requests, and one barrier instead of nine.
#
# ## Many elements per thread
#
# So far a block loads 512 numbers, builds a tree and ends. `grid_stride` launches only as many blocks as the device can hold, and each thread adds many elements in a loop before there is any tree.
#
# How should the loop load? A thread that waits for every load has only one in flight. How many bytes must be in flight to keep the memory busy? As many as arrive during one latency: bandwidth times latency. This is **Little's law**, and it holds for any queue. Here it is with the values measured on an H200:

# %%
ceilings = prediction.recorded()
in_flight = ceilings.dram_read * ceilings.trip
print(f"{ceilings.dram_read * 1e-12:.2f} TB/s x {ceilings.trip * 1e9:.0f} ns = {in_flight * 1e-6:.1f} MB in flight,")
per_sm = in_flight / ceilings.multiprocessors
print(f"{per_sm:,.0f} bytes per SM, {per_sm / 2048:.1f} per thread")

# %% [markdown]
# With 2,048 threads on each SM, two float32 per thread would do in theory. In practice no SM is full at all times, and loads do not come evenly. This loop asks for eight elements before it adds the first:

# %%
show.source(ladder.stride_sum, ladder.grid_stride)

# %% [markdown]
# The next rung, `wide`, has the same loop with `load4`, which loads 16 bytes by one instruction: a quarter of the requests for the same sectors.

# %%
counts(VARIANTS[4:7])

# %% [markdown]
# There are few blocks, and each builds one tree, so shared memory no longer matters. The sectors have not changed since the first kernel: each reads every number once. What has changed is how fast they are requested.
#
# ## One launch
#
# All of these kernels leave one sum per block, and another launch adds those up. For a large array that costs next to nothing, for a small one it shows. On the last rung the block that finishes **last** does it: every block stores its sum, then increments a counter atomically. The block that gets the highest count knows that all others have stored theirs.
#
# Here is that idea with one thread per block. Its result is right. Is the kernel?


# %%
@cuda.jit
def without_fence(partials, counter, out):
    partials[cuda.blockIdx.x] = cuda.blockIdx.x
    if cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1:  # the count before the addition
        total = np.float32(0)
        for k in range(cuda.gridDim.x):
            total += partials[k]
        out[0] = total


out = np.zeros(1, np.float32)
trace = gpukit.trace(without_fence[64, 1], np.zeros(64, np.float32), np.zeros(1, np.int32), out)
print("the sum is right this time:", out[0] == sum(range(64)))
for finding in trace.findings:
    print(f"{finding.kind} at: {finding.code}\n    {finding.message}")

# %% [markdown]
# Two stores of a thread can become visible to other blocks in a different order: the count first, and then the sum that it stands for. On a GPU such a mistake shows rarely, or not at all while you look. `cuda.threadfence()` is a **fence**: what a thread writes before it is visible to all threads of the device before anything that it writes after it. One fence goes before the count. A second one after it makes sure that the last block does not read a stale sum.
#
# Now the whole kernel. Only thread 0 has the block's sum, and all threads of the last block should help to add:


# %%
@cuda.jit
def last_block(x, partials, counter, out):
    values = cuda.shared.array(8, np.float32)
    is_last = cuda.shared.array(1, np.int32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    total = ladder.block_sum(x[i] if i < x.size else np.float32(0), values)  # thread 0 has it
    # About 10 lines: store the block's sum, count the block; the last one adds up all sums
    ...


exercises.check("07-last", last_block)

# %% [markdown]
# gpukit's `one_launch` does the same with the loop of `wide`. Its counter wraps around to 0, so it is ready for the next launch. In place of the atomic and its two fences it has one instruction, `intrinsics.inc_acq_rel`: a count that comes after all earlier accesses of the thread and before all later ones.
#
# ## How fast is each rung?
#
# **Predict.** `sequential` needs less than a third of the wavefronts of `interleaved_conflict`, and the same sectors. How many times as fast is it, for 2<sup>28</sup> elements? `"a"`: more than 3 times; `"b"`: 2 to 3 times; `"c"`: 1.2 to 2 times; `"d"`: less than 1.2 times.

# %%
my_answer = None
exercises.check("07-waits", my_answer)

# %% [markdown]
# On a GPU the next cell times all rungs, the kernels alone, in turns, with a cold L2 cache. Without one it shows the record.

# %%
names = [*reduce.VARIANTS, "cupy", "torch"]
SIZES = sorted({size for _, size in times})
if on_gpu():
    for size in SIZES:
        array, out = cuda.to_device(np.ones(size, np.float32)), cuda.device_array(1, np.float32)
        zero, functions = cuda.to_device(np.zeros(1, np.float32)), {}
        rungs = {variant: reduce.steps(variant, array, out) for variant in reduce.VARIANTS}
        blocks = rungs["wide"][0][1][1].size
        rungs["atomic"] = [(out.copy_to_device, (zero,)), (ladder.atomic[blocks, 256], (array, out))]
        for name, steps in rungs.items():
            functions[name] = lambda steps=steps: [launch(*arguments) for launch, arguments in steps]
        for name, timed in timing.bench_many(functions, min_time=0.04, warmup=0.01).items():
            times[name, size] = timed.median
    where = f"{device.info().name}; libraries: {where}"
rates = {name: [4e-9 * size / times[name, size] for size in SIZES] for name in names}
highlight = ["interleaved_divergent", "first_add", "grid_stride", "one_launch", "cupy", "torch"]
options = {"against": ["cupy", "torch"], "xlabel": "float32 elements", "mark": where}
plot.rungs(SIZES, rates, "GB/s", highlight, title="Sum of float32: speed by size", **options);

# %% jupyter={"outputs_hidden": true}
rows, before = [], None
for name in names:
    seconds = times[name, largest]
    gain = "" if before is None or name in ("cupy", "torch") else f"{before / seconds:.2f}"
    rate, small = f"{4e-9 * largest / seconds:,.0f}", f"{1e6 * times[name, 4096]:.1f}"
    rows.append([name, f"{1e6 * seconds:,.0f}", rate, gain, small])
    before = seconds
print(where)
show.Table(["", "us, 2^28", "GB/s", "over the one before", "us, 4,096"], rows)

# %% [markdown]
# Compare the column of ratios with the counts; it has surprises.
#
# - **`interleaved_conflict`** has the wavefronts of the first kernel and is much faster all the same. It has a third of the requests and no remainders: what limits the first kernel is the number of its instructions.
# - **`sequential`** has less than a third of the wavefronts and hardly gains. So shared memory was not what the kernel waited for. Count first, but then time: a count says what is wasted, not what the kernel waits for.
# - **`first_add`** shows what it did wait for. Its blocks build the same tree, and there are half as many: nearly half of the time is gone. The cost is that of the block itself, its launch, its nine barriers and its tree, for just 256 numbers.
# - **`shuffle`** makes what is left of the tree cheaper.
# - **`grid_stride`** is the largest step. A block pays for its tree once for all of its elements, eight loads per thread are in flight, and the kernel reaches the limit of the memory.
# - **`wide`** can save only instructions there, and **`one_launch`** only the second launch. Small arrays are where that matters: look at the left end of the lower panel. (At 4,096 elements one block does everything from `grid_stride` on, so the counter of `one_launch` is wasted there. PyTorch takes longer for 65,536 elements than for four times as many.)
#
# That answers the question at the top: the first kernel loses its time to instructions, barriers and launches of blocks, for a problem that should only wait for memory.
#
# ## Which sum is the right one?
#
# Floating-point additions round, so their order matters. Add a million similar numbers one after the other, and in the end the running sum is a million times larger than the next term: most of the term's digits are lost. In a tree, terms of similar size are added, and none goes through more than 20 additions.

# %%
terms = np.random.default_rng(1).random(2**20, np.float32)
exact = terms.sum(dtype=np.float64)
eps = np.finfo(np.float32).eps
for name, total in {
    "one after the other": np.cumsum(terms, dtype=np.float32)[-1],
    "NumPy (pairwise)": terms.sum(),
    "gpukit.reduce": reduce.reduce(terms),
}.items():
    print(f"{name:20} {total:14.2f}   relative error {abs(total - exact) / exact / eps:8.2f} eps")

# %% [markdown]
# Order also decides whether the same program gives the same bits twice. `ladder.atomic` has no partial sums: every block adds its own to `out` by an atomic, and the order is that in which blocks happen to finish. The next cell imitates that by adding 512 partial sums in 200 random orders:

# %%
sums = [part.sum() for part in np.array_split(terms - np.float32(0.5), 512)]
random = np.random.default_rng(0)
totals = set()
for _ in range(200):
    random.shuffle(sums)
    totals.add(np.cumsum(sums, dtype=np.float32)[-1])
print(f"512 block sums, added in 200 orders: {len(totals)} different totals, from {min(totals)} to {max(totals)}")
same = {np.asarray(reduce.reduce(terms - np.float32(0.5))).tobytes() for _ in range(5)}
print(f"gpukit.reduce, 5 runs: {len(same)} total")

# %% [markdown]
# `gpukit.reduce` adds nothing atomically. The last block adds the partial sums in the order of their blocks, whichever finished last, so a test or a training run can be repeated bit by bit. What does that cost? `one_launch` and `atomic` differ in nothing else; `atomic` needs `out` to be 0, which takes a launch of its own:

# %%
rows = []
for size in SIZES:
    ordered, atomic = times["one_launch", size], times["atomic", size]
    rows.append([size, f"{1e6 * ordered:,.1f}", f"{1e6 * atomic:,.1f}", f"{ordered / atomic - 1:+.1%}"])
print(where)
show.Table(["float32 elements", "one_launch, us", "atomic, us", "cost of the fixed order"], rows)

# %% [markdown]
# Determinism is often said to be slow. For a sum it is not: the partial sums are a few kilobytes next to megabytes of data.
#
# ## From a sum to any reduction
#
# A maximum, a product and a mean differ from a sum in few ways: how two values are combined, what the result starts from, and what is done at the end. `gpukit.reduce` is built from four **primitives**: *read* a small tile into registers, *transform* each element (the identity, unless told otherwise), *combine* the tile inside the thread, *write*. The shuffles and the last block of the ladder do the rest.
#
# One more thing belongs to an operation: the type of its **accumulator**. Should it be that of the elements?
#
# **Predict.** Add 10,000 ones one after the other, all in float16. What is the sum?

# %%
my_answer = None
exercises.check("07-half", my_answer)

# %% [markdown]
# <details><summary>Why it is not 10,000</summary>
#
# A float16 has 11 significant bits. From 2,048 on, neighbouring float16 are 2 apart, so 2,048 + 1 lies between two of them and is rounded to the even one: 2,048. The sum stays there.
#
# </details>
#
# These are the types that gpukit chooses:

# %%
rows = []
for op in ("sum", "max", "mean"):
    for dtype in ("float16", "int8"):
        operation, _ = operators.make_operations(op, dtype)
        types = operation.thread_type, operation.accumulator, operation.result
        rows.append([op, dtype, f"{operation.identity}", *map(str, types)])
show.Table(["", "elements", "starts from", "inside a thread", "accumulator", "result"], rows)

# %% [markdown]
# So the accumulator is wider than the elements where it has to be. Two numbers of int8 are enough to overflow int8. A thread adds so few of them that 32 bits are enough for it; 64 bits are needed only where threads meet.
#
# ## Axes
#
# A reduction of a contiguous array over one axis, or over neighbouring ones, has the form **(outer, n, inner)**: the middle one goes away. How the elements of one result lie in memory decides who should add them.
#
# - **inner = 1: rows.** The elements of a row are neighbours. Long rows are shared by many warps, exactly as above. Short rows are shared by a few lanes each: for rows of 32 float32, eight lanes with one `load4` each, so a warp takes four rows at a time.
# - **inner > 1: columns.** Neighbours in memory belong to *different* results. Neighbouring threads take neighbouring columns and walk down, so all reads are coalesced and nothing has to be shuffled.
#
# Here are images of 4 x 5 pixels with 3 channels, seven of them, summed over the first axis: (N, H, W, C) becomes (1, H, W, C). The other axes merge into one of 60 columns. Blocks tile it along x, the rows are split along y, and outer axes would be along z:

# %%
plot.reduce_axes((7, 4, 5, 3), axis=0, columns=32, rows=2, parts=2);

# %% [markdown]
# A second pass, or the last block, combines the partial results. In this picture a block reads two rows per step. What happens to the last of seven?


# %%
@cuda.jit
def two_rows_per_step(x, out):
    column = cuda.grid(1)
    if column < x.shape[1]:
        total = np.float32(0)
        for row in range(0, x.shape[0], 2):
            total += x[row, column] + x[row + 1, column]  # planted: the last row may have no partner
        out[0, column] = total


for rows in (8, 7):
    images = np.ones((rows, 60), np.float32)
    trace = gpukit.trace(two_rows_per_step[1, 64], images, np.zeros((1, 60), np.float32))
    print(f"{rows} rows:", [f"{finding.kind}: {finding.message}" for finding in trace.findings] or "no finding")

# %% [markdown]
# A check in every step would fix it. But only the last row needs one.
#
# Write it for arrays of shape (outer, n, inner), mapped as in the picture. The block (x, y, z) adds up at most `each` rows of slice z, beginning with row `y * each`; `out` has the shape (outer, parts, inner). The loop should run without a check of its second row. An odd row is dealt with after it:


# %%
@cuda.jit
def columns(x, each, out):
    column, part, o = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z
    if column < x.shape[2]:
        total = np.float32(0)
        # About 7 lines: two rows of the part per step, and then an odd one
        for row in range(0, x.shape[1], 2):
            total += x[0, row, column] + x[0, row + 1, column]
        out[o, part, column] = total


exercises.check("07-columns", columns)

# %% [markdown]
# gpukit's kernel for columns has a tile of up to eight rows per thread. Does it have a loop without checks, too? Here is the trace of a sum over 1,001 rows of 512 columns:

# %%
first, again = operators.make_operations("sum", "float32")
flat, out = cuda.to_device(np.ones(1001 * 512, np.float32)), cuda.device_array(512, np.float32)
[(launch, arguments)] = api.launches(flat, [(1001, True), (512, False)], first, again, out)
trace = gpukit.trace(launch, *arguments)


def times_run(code):
    """How often threads ran the lines of this code."""
    return sum(line.threads for line in trace.operations if line.code.startswith(code))


print(f"grid {trace.grid}, block {trace.block}: {times_run('read(x'):,} loads by threads, 4 elements each")
print(f"checks: {times_run('has ='):,}")

# %% [markdown]
# It checks every load. But no check is a branch: for a row past the last one a thread loads a value of row 0, and puts the identity in its place, so the loads of a tile still overlap. The checks add a comparison and some selections to each load, but not a byte, so a sum of float32, which waits for memory, hardly notices. A second loop without checks would be more code, and that is not free either: the first time, instructions come from memory like data. In a kernel of a few microseconds, waiting for them takes longer than the checks. A sum of int8 has a quarter of the bytes for the same instructions, and there checks count. So for elements of less than 4 bytes, and at least four tiles per thread, gpukit's kernel has both: whole tiles without checks, and checked ones.
#
# > **From the source.** This section follows a note on the reductions of PaddlePaddle and its "kernel primitives": the mapping of the picture, two rows per step, an accumulator wider than the elements, and full blocks without checks. It decides once per block: in the picture, only the outlined blocks run the version with checks. It publishes no times. Its code has two mistakes: it compares with a `block_size` that is defined nowhere, and it reads one row too many if their number is odd, as you have just seen.
#
# `reduce.reduce` brings any array into the form (outer, n, inner):

# %%
for axis in (0, (1, 2), -1, (0, 3), None):
    images = np.random.default_rng(7).standard_normal((7, 4, 5, 3)).astype(np.float32)
    got = reduce.reduce(images, axis, keepdims=True)
    assert np.allclose(got, images.sum(axis, keepdims=True, dtype=np.float64), atol=1e-4)
    print(f"{images.shape} over {axis} becomes {got.shape}")

# %% [markdown]
# ## A function of your own
#
# `reduce` takes any function of two numbers, together with its identity. The function must be **associative**, (a b) c = a (b c), or there could be no tree. Here is the length of vectors, without the overflow that squares would bring:


# %%
def hypotenuse(a, b):
    return math.hypot(a, b)


vectors = np.random.default_rng(3).standard_normal((3, 1000)).astype(np.float32) * np.float32(1e25)
lengths = reduce.reduce(vectors, 1, (hypotenuse, 0.0))
with np.errstate(over="ignore"):
    print("by squares in float32:", np.sqrt((vectors**2).sum(1)))
print("by reduce:            ", lengths)
assert np.allclose(lengths, np.linalg.norm(vectors.astype(np.float64), axis=1), rtol=1e-5)

# %% [markdown]
# Your turn. Softmax and many losses need log(exp(a) + exp(b) + ...), a sum of numbers that are given by their logarithms. Its identity is -inf, the logarithm of 0. The line below does it, as long as no `exp` overflows and not all of them underflow. Write it for any two numbers:


# %%
@cuda.jit(device=True)
def log_add(a, b):
    # About 4 lines: the same, for any a and b, -inf included
    return math.log(math.exp(a) + math.exp(b))


exercises.check("07-log", log_add)

# %% [markdown]
# `reduce.reduce(x, 1, (log_add, -np.inf))` now adds up the rows of any array that way.
#
# A function need not be **commutative**: a b may differ from b a. "The later one, unless it is missing" gives the last reading of every sensor:


# %%
def later(a, b):
    return a if b != b else b  # only NaN differs from itself


readings = np.random.default_rng(4).random((10_000, 4), np.float32)
readings[[9_998, 9_999, 9_999, 9_999], [1, 0, 1, 3]] = np.nan
latest = reduce.reduce(readings, 0, (later, np.nan))
print(readings[-3:], "\nlatest:", latest)
assert np.array_equal(latest, [readings[-2, 0], readings[-3, 1], readings[-1, 2], readings[-2, 3]])

# %% [markdown]
# For a sum, the lanes of a warp add up what they find all over the array, and meet once, at the end: the first lane adds elements 128 to 131 to its elements 0 to 3 long before it hears of element 4. A function that is not commutative must not be used like that. For such a function the lanes meet after every access, in the order of the lanes, and every warp takes neighbouring tiles. The next cell shows what the order costs, with an addition as the function:

# %%
records = results.load("reduce-h200")
rows = []
for record in results.load("reduce-h200", op="function"):
    if not record["case"].endswith(", host"):
        known = {"case": record["case"].replace("function", "sum"), "shape": record["shape"], "dtype": record["dtype"]}
        added, case = results.first(records, variant="reduce", **known)["value"], known["case"].removeprefix("sum ")
        shape = " x ".join(f"{n:,}" for n in record["shape"])
        cost = f"{1e6 * added:,.1f}", f"{1e6 * record['value']:,.1f}", f"{record['value'] / added - 1:+.1%}"
        rows.append([f"{shape} {case}", *cost])
print(results.taken_on(records))
show.Table(["float32", "sum, us", "function, us", "cost of the order"], rows)

# %% [markdown]
# Short rows and most columns pay almost nothing: their threads keep to themselves, or meet only once anyway. A long row pays for five shuffles per access. The columns with 4,095 elements per row pay too: 4,095 is odd, so rows begin at addresses that are not aligned. For a sum, a thread takes every fourth row, all of which begin equally far from an aligned address, and keeps its wide loads. A function that wants its order has to do without.
#
# ## Against the libraries
#
# The same sums with CuPy and PyTorch, in the same run, kernels alone with a cold L2 cache. At 1 `reduce` is as fast as the faster of the two:

# %%
groups, CASES = {}, ("sum over all", "sum over axis 0", "sum over axis 1")
for record in sorted(results.load("reduce-h200", op="sum"), key=lambda record: (record["dtype"], record["case"])):
    case, shape, dtype = record["case"], record["shape"], record["dtype"]
    if case in CASES and (dtype == "float32" or case == "sum over all"):
        name = f"{' x '.join(f'{n:,}' for n in shape)} {dtype} {case.removeprefix('sum ')}"
        groups.setdefault(name, {})[record["variant"]] = record["value"]
shares = {name: min(found["cupy"], found["torch"]) / found["reduce"] for name, found in groups.items()}
title = "Speed of reduce over that of the better library"
plot.dots(shares, "times", title=title, mark=results.taken_on(records), limit=("better library", 1));

# %% [markdown]
# Near 1, all three are at the limit of the memory. Gaps open where rows are short, because the libraries' kernels serve every shape and these are compiled for one. They also open for integers, and most of all for int8, where instructions count again. Extracting four bytes from a word and adding them takes up to eight instructions. `dp4a`, made for neural networks, takes one: it multiplies four bytes by four others and adds up the products. If the others are ones, the result is the sum of four bytes, so gpukit reads an array of int8 as one of words.
#
# ## Exercise
#
# **Where is the largest?** Find the *index* of the largest of the 256 numbers of each block, the first one if there are several. Which two values must a shuffle pass on, and when do you keep yours? Each thread may load one number, and shared memory is for what warps tell each other.


# %%
@cuda.jit
def index_of_largest(x, out):
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    # About 15 lines: by shuffles within each warp, then across the eight warps
    if tid == 0:
        out[cuda.blockIdx.x] = 0


exercises.check("07-index", index_of_largest)

# %% [markdown]
# ## Key points
#
# - A reduction does next to no arithmetic: it is memory-bound, and its measure is GB/s.
# - Idle lanes and bank conflicts are two ways to lose the same wavefronts. Let neighbouring threads work on neighbouring elements.
# - Inside a warp, shuffles replace shared memory and barriers.
# - Bandwidth times latency must be in flight: many elements per thread, several loads at a time, 16 bytes each.
# - The last block can finish the work of all, if a fence orders each sum before its count.
# - A tree is faster than a loop, and more exact. A fixed order gives the same bits at next to no cost; atomics do not.
# - An accumulator is wider than the elements where the sum needs it.
# - A tree needs an associative operation. If it is commutative too, lanes need to meet only once.
# - Rows and columns want different kernels. Only the edge needs a check; in the loop it should at least not be a branch.
#
# **Back:** [06 Streams](06_streams.ipynb). **Next:** [08 Resize](08_resize.ipynb).
