# %% [markdown]
# # 07 Reduce
#
# Adding up an array is the smallest problem in which threads must work *together*: many numbers go in, one comes out. It is also one of the most common: every mean, every norm, every loss of a neural network is a reduction. This chapter climbs a ladder of eight kernels, each with one idea more than the one before, until memory can deliver no faster. Then it builds a `reduce` for any axes of any array, from the same parts.
#
# **After this chapter you will be able to**
#
# - say how fast a reduction can be at best, and measure how near a kernel comes;
# - write a reduction by a tree in shared memory, by warp shuffles and by a grid-stride loop, and count what each costs;
# - tell idle lanes and bank conflicts apart in a trace, where both take the same number of wavefronts;
# - combine blocks in one launch, with a fence, a counter and no race;
# - say how large the rounding error of a sum is, why a tree's is small, when the same program gives other bits, and what it costs to prevent that;
# - choose a kernel for the first, the last or a middle axis;
# - reduce by a function of your own, and say when its order matters.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb) and [04 Bank conflicts](04_bank_conflicts.ipynb). No GPU.
#
# **Time:** 90 minutes.

# %%
import inspect
import math
import warnings
from functools import partial

import numpy as np

import gpukit
from gpukit import cuda, device, on_gpu, operators, plot, reduce, results, show, timing
from gpukit.reduce import fast, ladder, primitives

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
VARIANTS = list(reduce.VARIANTS)
print("kernels run on:", device.info().name)

# %% [markdown]
# ## What is the best that can be?
#
# A sum of n float32 reads 4 n bytes and makes n - 1 additions: a quarter of an addition for each byte. A large GPU can do several additions in the time that it takes to read one byte, so the additions hardly count. What counts is how many bytes per second come from memory, and the specification is one line:


# %%
def specification(x):
    """The sum of all elements, as exact as float32 can show it."""
    return np.float32(x.sum(dtype=np.float64))


# %% [markdown]
# One thread could do it in a loop; it would have one load under way at a time, and all of the others would be idle. Many threads can add pairs at the same time, then pairs of the results, and so on: a **tree**. With n numbers it has log2(n) levels, and which thread adds which pair is up to us.

# %%
ORDERS = {
    "interleaved, divergent: thread t adds if t is a multiple of 2 step": lambda step: [
        (t, t, t + step) for t in range(0, 16, 2 * step)
    ],
    "interleaved, conflicts: thread t adds at 2 step t": lambda step: [
        (t, 2 * step * t, 2 * step * t + step) for t in range(8 // step)
    ],
    "sequential: thread t adds element t + step to element t": lambda step: [(t, t, t + step) for t in range(step)],
}

with plot.figure(size=(8, 5.6), rows=3, sharex=True, mark="16 elements") as axes:
    for ax, (title, pairs) in zip(axes, ORDERS.items(), strict=True):
        steps = (8, 4, 2, 1) if title.startswith("sequential") else (1, 2, 4, 8)
        ax.plot(range(16), [0] * 16, "o", color=plot.PALETTE[7])
        for level, step in enumerate(steps):
            for thread, left, right in pairs(step):
                ax.plot([right, left], [level, level + 1], color=plot.PALETTE[7], linewidth=1)
                ax.plot([left, left], [level, level + 1], color=plot.PALETTE[7], linewidth=1)
                ax.plot(left, level + 1, "o", color=plot.PALETTE[0], markersize=13)
                ax.text(left, level + 1, thread, ha="center", va="center", fontsize=8)
        ax.set(title=title, yticks=range(5), ylabel="level", ylim=(4.6, -0.5))
    axes[-1].set(xlabel="place in shared memory; a number is the thread that adds there", xticks=range(16))

# %% [markdown]
# ## The first three: the same additions, by other threads
#
# Here is the first of the trees as a kernel. A block of 256 threads loads 256 numbers into shared memory and adds them there; its sum goes to `out`, and a second launch adds up the sums of the blocks.

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
# In the first step 16 lanes of every warp add, in the next 8, and so on, but all of the warps come along every time: a warp with one active lane takes as many cycles as one with 32. And `%` is a remainder, in 64 bits. The next two kernels make the same additions, but let *neighbouring* threads make them, so that whole warps have nothing to do and leave:


# %%
def tree(kernel):
    """The loop of a kernel, without what is the same in all of them."""
    text = inspect.getsource(kernel.py_func)
    return text[text.index("    step =") : text.index("    if tid == 0")]


for variant in VARIANTS[:3]:
    print(f"{variant}:\n{tree(ladder.VARIANTS[variant])}")


# %%
def counts(variants):
    """A table of what the traces of some rungs have counted."""
    rows = []
    for variant in variants:
        trace = traces[variant]
        shared, loads = trace.total("shared"), trace.total("global", "load")
        divisions = sum(operations.int64_divisions for operations in trace.operations)
        barriers = sum(barrier.passed for barrier in trace.barriers if barrier.kind == "block")
        rows.append(
            {
                "65,536 elements": variant,
                "blocks": f"{trace.blocks:,}",
                "shared requests": f"{shared.requests:,}",
                "lanes in each": f"{shared.active_lanes:.1f}",
                "wavefronts": f"{shared.wavefronts:,}",
                "of them conflicts": f"{shared.bank_conflicts:,}",
                "barriers": f"{barriers:,}",
                "divisions": f"{divisions:,}",
                "load requests": f"{loads.requests:,}",
                "sectors": f"{loads.sectors:,}",
            }
        )
    return results.table(rows, {name: name for name in rows[0]})


counts(VARIANTS[:3])

# %% [markdown]
# Read it slowly, it is a small lesson in measuring. The first kernel has no bank conflict, but many requests with few lanes. The second has less than a third of the requests, with three times the lanes in each; but those are `2 * step` words apart, and so the **wavefronts are the same**: one warp that reaches for eight words in each bank takes as many as eight warps that reach for one. Only the third is rid of both: neighbours reach for neighbours.

# %%
conflicting = next(a for a in traces["interleaved_conflict"].accesses if a.space == "shared" and a.bank_conflicts)
traces["interleaved_conflict"].plot_banks(line=conflicting.line, array="values");
# %% [markdown]
# **Check yourself.** That is the worst of its requests. In which step was it made: how far apart are the lanes, and how many are there? Why are the later steps not worse still?
#
# <details><summary>Answer</summary>The lanes are 8 words apart, and 8 is <code>2 * step</code>: the step is 4. All 32 lanes take part, in 4 banks. In the next step they are 16 words apart, in 2 banks; but then the block adds only 16 pairs, so 16 lanes take part: again 8 in each bank. In the one after that, 8 lanes meet in a single bank. From there on the bank stays and the lanes become fewer.</details>

# %% [markdown]
# ## Fewer threads, fewer barriers
#
# In `sequential` half of the threads load a number and never add anything. `first_add` gives each thread two numbers, and the first addition happens in registers. And the last six steps of the tree belong to a single warp, which needs neither shared memory nor barriers to pass numbers around: `shfl_xor_sync` hands a lane the register of another one.

# %%
show.source(ladder.warp_sum, ladder.block_sum, ladder.shuffle)

# %%
counts(VARIANTS[2:5])

# %% [markdown]
# Half of the blocks, then a fifth of the requests, and one barrier in place of nine.
#
# ## Many elements per thread
#
# So far a block was launched, loaded 512 numbers, built a tree and left. The next kernel launches only as many blocks as the device can hold, and each thread adds many elements in a loop before there is any tree. Two more things matter in that loop:
#
# - **Loads under way.** A load takes hundreds of cycles. A thread that waits for each before it asks for the next has one under way; this one asks for eight, then adds them. To keep a memory of 4.8 TB/s busy that answers after about 600 ns, about 3 MB must be under way at any time: 22 KB for each of 132 multiprocessors.
# - **Wide loads.** `load4` takes 16 bytes in one instruction: a quarter of the requests for the same sectors.

# %%
show.source(ladder.stride_sum, ladder.grid_stride)

# %%
show.source(ladder.wide_sum, ladder.wide)

# %%
counts(VARIANTS[4:])

# %% [markdown]
# Since the tree is paid once per block, and there are few blocks, shared memory is out of the picture. The sectors have been the same all the time: every kernel reads each number once. What was climbed was the way to *ask* for them fast enough.
#
# ## One launch
#
# All kernels so far leave one sum per block, and another launch adds those up. For large arrays that is nothing, for small ones it shows. The last rung lets the block that finishes **last** do it. Every block writes its sum, then counts itself in with an atomic; the one that finds that all others have been there adds up.

# %%
show.source(ladder.one_launch)

# %%
show.source(primitives.is_last)

# %% [markdown]
# The two fences are what makes it right. Without the first, the count could be seen before the sum that it stands for. Without the second, the last block could read a sum that it had from before. On a GPU such a mistake shows rarely, or not at all while you look. The trace does not wait for it:


# %%
@cuda.jit(device=True)
def counts_without_fence(counters, blocks, flag):
    if cuda.threadIdx.x == 0:
        before = cuda.atomic.add(counters, 0, 1)  # planted: nothing orders this after the sum
        flag[0] = 1 if before == blocks - 1 else 0
    cuda.syncthreads()
    return flag[0] == 1


@cuda.jit
def without_fence(x, out, partials, counters):
    values = cuda.shared.array(8, np.float32)
    flag = cuda.shared.array(1, np.int32)
    i = cuda.grid(1)
    total = ladder.block_sum(x[i], values)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total
    if counts_without_fence(counters, cuda.gridDim.x, flag):
        total = ladder.block_sum(partials[cuda.threadIdx.x], values)
        if cuda.threadIdx.x == 0:
            out[0] = total


out, partials = np.zeros(1, np.float32), np.zeros(256, np.float32)
broken = gpukit.trace(without_fence[256, 256], x, out, partials, np.zeros(1, np.int32))
print("the sum is right this time:", abs(out[0] - specification(x)) < 1e-2)
for finding in broken.findings:
    print(f"{finding.kind} in `{finding.code}`: {finding.message}")

# %% [markdown]
# ## How fast is each rung?
#
# GB/s over the size of the array, from 16 KB to 1 GB: the kernels alone, in turns, with a cold L2 cache. Dashed are the libraries, which stand in the record, and a copy: it reads and writes every byte, so it says what the memory can do. On the right are the times for small arrays, where speed in GB/s says little.

# %%
recorded = results.load("reduce-h200", case="ladder")
times = {(record["variant"], record["shape"][0]): record["value"] for record in recorded}
SIZES = sorted({size for _, size in times})
where = results.taken_on(recorded)


def launch_all(steps):
    for launch, arguments in steps:
        launch(*arguments)


def functions_to_time(array):
    """Every rung, an atomic sum and a copy, as functions without arguments."""
    out, zero = cuda.device_array(1, np.float32), cuda.to_device(np.zeros(1, np.float32))
    copied = cuda.device_array(array.shape, array.dtype)
    rungs = {variant: reduce.steps(variant, array, out) for variant in reduce.VARIANTS}
    _, (_, sums) = rungs["wide"][0]  # as many blocks as that one
    rungs["atomic"] = [(out.copy_to_device, (zero,)), (ladder.atomic[sums.size, 256], (array, out))]
    return {name: partial(launch_all, steps) for name, steps in rungs.items()} | {
        "copy": partial(copied.copy_to_device, array)
    }


if on_gpu():
    for size in SIZES:
        functions = functions_to_time(cuda.to_device(np.ones(size, np.float32)))
        for name, timed in timing.bench_many(functions, min_time=0.04, warmup=0.01).items():
            times[name, size] = timed.median
    where = f"{device.info().name}; libraries: {where}"


def speed(variant, size):
    """GB/s; a copy moves everything twice."""
    return (8 if variant == "copy" else 4) * size / times[variant, size] * 1e-9


labels = {"cupy": "CuPy (CUB)", "torch": "PyTorch", "copy": "copy, read and write"}
present = [v for v in (*reduce.VARIANTS, "cupy", "torch", "copy") if (v, SIZES[-1]) in times]
small = [size for size in SIZES if size <= 2**20]
with plot.figure(size=(8, 4.6), columns=2, mark=where) as (left, right):
    for i, variant in enumerate(present):
        ours = variant in reduce.VARIANTS
        style = {"linewidth": 1.8} if ours else {"linewidth": 1.4, "linestyle": "--"}
        style["color"] = plot.SCALE(i / 8) if ours else plot.PALETTE[{"cupy": 6, "torch": 1}.get(variant, 7)]
        left.plot(SIZES, [speed(variant, n) for n in SIZES], label=labels.get(variant, variant), **style)
        right.plot(small, [times[variant, n] * 1e6 for n in small], **style)
    left.set(xscale="log", xlabel="float32 elements", ylabel="GB/s", title="Sum of float32: speed over size")
    left.legend(fontsize=8)
    right.set(xscale="log", xlabel="float32 elements", ylabel="us", ylim=(0, None), title="Time of small sums")

# %%
largest = SIZES[-1]
rows = [
    {
        f"{largest:,} elements": labels.get(variant, variant),
        "time, us": f"{times[variant, largest] * 1e6:,.0f}",
        "GB/s": f"{speed(variant, largest):,.0f}",
        "over the one before": ""
        if i == 0 or variant not in reduce.VARIANTS
        else f"{times[present[i - 1], largest] / times[variant, largest]:.2f}",
    }
    for i, variant in enumerate(present)
]
print(where)
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# Read the last column beside the counts of the traces; it has surprises.
#
# - **From divergent to conflicts** the wavefronts are the same, and yet it is much faster: there are a third of the requests, and no more divisions. What the first kernel waits for is instructions.
# - **From conflicts to sequential** the wavefronts fall to less than a third, and the time hardly moves. Shared memory was not what the kernel waited for; nine barriers per 256 numbers were, and the launch of a block for each. Count first, but then time: a count says what is wasted, not what is waited for.
# - **The first add** halves the blocks, with all that a block costs, and nearly halves the time.
# - **Shuffles** take away requests and barriers, from what is left of the tree.
# - **The grid-stride loop** is the largest step: a block's tree is paid once for all of its elements, eight loads are under way per thread, and the kernel meets the limit of memory.
# - **Wide loads** can only save instructions there, and **one launch** only the second launch. With small arrays that is what matters: look at the right half of the figure. At its far left all of the array is one block's work, so a rung with many elements per thread has one launch anyway, and the counter is in vain.

# %% [markdown]
# ## Which sum is the right one?
#
# Additions of floats round, so their order matters. Add a million numbers of about the same size one after the other, and in the end the running sum is a million times larger than what is added: most digits of each number are lost. In a tree, numbers of about the same size are added, and none goes through more than 20 additions.

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
# Order also decides whether the same program gives the same bits twice. With one atomic addition per block the order is that in which blocks happen to finish:

# %%
show.source(ladder.atomic)

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
# So nothing in `gpukit.reduce` is added atomically: the last block adds the sums of the others in the order of their numbers, whoever came first. That is what makes a test, or a training run, repeatable. What does it cost? The two kernels differ in nothing else; before the atomic one `out` must be set to 0, which is a launch of its own and in its time:

# %%
rows = [
    {
        "float32 elements": f"{size:,}",
        "one_launch, us": f"{times['one_launch', size] * 1e6:,.1f}",
        "atomic, us": f"{times['atomic', size] * 1e6:,.1f}",
        "the fixed order takes": f"{times['one_launch', size] / times['atomic', size] - 1:+.1%}",
    }
    for size in SIZES
]
print(where)
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# Determinism is often said to be slow. For a sum it is not: the partial sums are a few kilobytes beside an array of megabytes, and to set `out` to 0 costs about as much as the last block's work.
#
# ## From a sum to any reduction
#
# Maximum, product and mean differ from a sum in a few words: how two are combined, what it starts from, and what is done at the end. The documents build their reduction from four **primitives**: read a small tile into registers, transform each element, combine the tile inside the thread, write. Ours are device functions that are made for their constants. This one combines neighbours in a tile; it *calls the one for half of the size*, until one value is left:

# %%
show.source(primitives.make_fold)

# %% [markdown]
# What an operation knows about itself, for float32, float16 and int8. The **accumulator** is wider than the element where it must be: two numbers of int8 are enough to overflow int8, and a sum in float16 would have three digits.

# %%
rows = []
for op in reduce.OPERATORS:
    for dtype in ("float32", "float16", "int8"):
        operation, _ = operators.make_operations(op, dtype)
        rows.append(
            {
                "op": op,
                "elements": dtype,
                "identity": str(operation.identity),
                "inside a thread": str(operation.thread_type),
                "accumulator": str(operation.accumulator),
                "result": str(operation.result),
            }
        )
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# ## Axes
#
# A reduction of a contiguous array over one axis, or over neighbouring ones, has the form **(outer, n, inner)**: the middle one goes away. How the elements that belong together lie in memory decides who should add them.
#
# - **inner = 1: rows.** Elements of a row are neighbours. If rows are long, many warps share one, exactly as above. If they are short, a few lanes take a row and hold all of it in registers: for rows of 32 float32 eight lanes with one `load4` each, so a warp takes four rows at a time.
# - **inner > 1: columns.** Neighbours in memory belong to *different* results. So neighbouring threads take neighbouring columns and walk down; nothing has to be shuffled, and all reads are coalesced. If there are few columns, blocks share the rows; if there are very few rows, a thread takes all of its columns' rows alone. And if rows have an odd number of elements, wide loads cannot begin where each row begins: `fast.make_skewed` gives a thread the rows that begin equally far from an aligned address.
#
# The second one is the reduction over the highest dimension that the documents take apart: (N, H, W, C) becomes (1, H, W, C). The other axes are one, blocks tile them along x, the reduced axis is split along y, outer axes are along z.

# %%
show.source(fast.make_columns, fast.make_add_tiles)

# %% [markdown]
# Look at the order in which tiles are taken: warps that work at the same time take tiles that lie side by side, and then all of them `leap` ahead together. Each could as well take a long run of neighbouring tiles, and read just as many sectors. On an H200 that was slower: a device would then read at thousands of places at a time that are far apart. Memory is divided into pages, and a GPU remembers only for so many of them where they are; probably that is why.
#
# Two loops read the tiles: whole ones without a check of the rows, the last one with it. The documents do the same to save the checks, but their version has two mistakes: a size that is not defined, and with two rows per step and an odd number of rows it reads one row too many. The second one, planted:


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
    image = np.ones((rows, 40), np.float32)
    trace = gpukit.trace(two_rows_per_step[1, 64], image, np.zeros((1, 40), np.float32))
    print(f"{rows} rows:", [f"{finding.kind}: {finding.message}" for finding in trace.findings] or "no finding")

# %%
for rows in (1, 7, 8, 1001):
    image = np.random.default_rng(rows).standard_normal((rows, 4, 5, 3)).astype(np.float32)
    got = reduce.reduce_higher_dim(image)
    assert got.shape == (1, 4, 5, 3) and np.allclose(got, image.sum(0, keepdims=True, dtype=np.float64), atol=1e-3)
    print(f"{image.shape} becomes {got.shape}")

# %% [markdown]
# `reduce.reduce` brings any array into this form. Axes that lie in another order in memory are taken in that order; two groups of axes are reduced one after the other; what is not contiguous is copied.
#
# ## A function of your own
#
# `reduce` takes an operation of your own: a function of two numbers, and its identity. It must be **associative**, (a b) c = a (b c), or there could be no tree. Here is the length of vectors, without the overflow that squares would bring:


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
# It need not be **commutative**: a b may differ from b a. "The later one, unless it is missing" gives the last reading of every sensor:


# %%
def later(a, b):
    return a if b != b else b  # only NaN differs from itself


readings = np.random.default_rng(4).random((10_000, 4), np.float32)
readings[[9_998, 9_999, 9_999, 9_999], [1, 0, 1, 3]] = np.nan
latest = reduce.reduce(readings, 0, (later, np.nan))
print(readings[-3:], "\nlatest:", latest)
assert np.array_equal(latest, [readings[-2, 0], readings[-3, 1], readings[-1, 2], readings[-2, 3]])

# %% [markdown]
# For a sum the lanes of a warp add up what they find all over the array, and meet once, at the end: the first lane adds elements 128 to 131 to its elements 0 to 3 long before it hears of 4. A function whose order matters must not be used like that. For it, lanes meet after every access, in the order of lanes, and every warp takes a run of neighbouring tiles. These are the two places where the order is decided:

# %%
show.source(primitives.make_share, primitives.make_gather)

# %% [markdown]
# What the order costs, with an addition as the function: five shuffles for every access in place of five at the end, and reads in long runs.


# %%
def in_words(shape):
    return " x ".join(f"{n:,}" for n in shape)


records = results.load("reduce-h200")
source = results.taken_on(records)
rows = []
for record in results.load("reduce-h200", op="function"):
    if record["case"].endswith(", host"):
        continue
    known = {"case": record["case"].replace("function", "sum"), "shape": record["shape"], "dtype": record["dtype"]}
    added = results.first(records, variant="reduce", **known)["value"]
    rows.append(
        {
            "float32": f"{in_words(record['shape'])} {record['case'].removeprefix('function ')}",
            "sum, us": f"{added * 1e6:,.1f}",
            "function, us": f"{record['value'] * 1e6:,.1f}",
            "the order takes": f"{record['value'] / added - 1:+.1%}",
        }
    )
print(source)
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# Short rows pay next to nothing, and nor do columns: their threads keep to themselves, or meet once anyway. A long row pays for both. And columns of an array whose rows have an odd number of elements pay for another reason: `skewed` takes rows out of turn, so a function that wants its order has to do without wide loads there.
#
# ## Beside the libraries
#
# The same shapes with CuPy and PyTorch, in the same run, kernels alone with a cold L2 cache. A bar is the share of the better library's speed: at 1 and above `reduce` is as fast or faster. Bars are cut at 3; the number beside tells.

# %%
groups = {}
for record in records:
    if record["case"].startswith(("sum over", "mean over", "max over")) and "," not in record["case"]:
        groups.setdefault((record["case"], record["shape"], record["dtype"]), {})[record["variant"]] = record["value"]
rows = []
for (case, shape, dtype), found in groups.items():
    nbytes = np.prod(shape, dtype=np.float64) * np.dtype(dtype).itemsize
    speeds = {name: nbytes / seconds * 1e-9 for name, seconds in found.items()}
    best = max(value for name, value in speeds.items() if name != "reduce")
    rows.append({"case": f"{case} of {in_words(shape)} {dtype}", "share": speeds["reduce"] / best} | speeds)

with plot.figure(size=(8, 0.24 * len(rows) + 0.9), mark=source) as ax:
    bars = ax.barh([row["case"] for row in rows], [min(row["share"], 3) for row in rows], color=plot.PALETTE[5])
    ax.bar_label(bars, [f"{row['share']:.2f}   {row['reduce']:,.0f} GB/s" for row in rows], padding=3, fontsize=8)
    ax.axvline(1, color=plot.PALETTE[6], linewidth=1)
    ax.invert_yaxis()
    ax.tick_params(axis="y", labelsize=8)
    ax.margins(y=0.01)
    ax.set(xlabel="speed of reduce over the better of CuPy and PyTorch", xlim=(0, 4))

# %% [markdown]
# The bars near 1 are those where everybody is near the limit of memory. Where rows are short or elements are small, the libraries leave a gap: their kernels are made for any shape, these for the constants of one. Small elements are where instructions count again: a byte is a quarter of a word, and taking four bytes out of a word and adding them is up to eight instructions. `dp4a`, made for neural networks, multiplies four bytes with four others and adds all up; with ones as the others it is the sum of four bytes, in one. So an array of int8 is read as one of words, and this is its transform (D2):

# %%
show.source(operators.pack_bytes)

# %% [markdown]
# A kernel is not all that a caller waits for. Here calls are waited for, one at a time, on the host's clock: Python, the checks of the arguments, the launch and the kernel. `reduce (torch)` is `reduce` of a PyTorch tensor.

# %%
counted = [record for record in records if record["case"].endswith(", launch counted")]
table = {}
for record in counted:
    row = table.setdefault((record["op"], record["shape"]), {"float32": f"{record['op']} of {record['shape'][0]:,}"})
    row[f"{record['variant']}, us"] = f"{record['value'] * 1e6:,.1f}"
names = dict.fromkeys(f"{record['variant']}, us" for record in counted if record["variant"] != "reduce")
print(source)
results.table(list(table.values()), {"float32": "float32", **{name: name for name in names}})

# %% [markdown]
# Up to some million elements, the kernel is the smaller part. Of a PyTorch tensor Python has to ask dtype, shape, strides and memory, one after the other; PyTorch's own functions read them in C++, and where the kernel is short they are mostly ahead. What the checks and the choice of a kernel find out depends only on shapes, dtypes and strides, so `reduce` keeps it, together with launches whose arguments are packed: the next call with arrays like these exchanges the addresses and launches (`gpukit.launching`).

# %% [markdown]
# ## Exercises
#
# **1. Predict, then count.** Blocks of 512 threads instead of 256: how many shared requests and barriers would `sequential` have for 65,536 elements? Put your two numbers into the cell: it counts, and tells.


# %%
@cuda.jit
def sequential_512(x, out):
    values = cuda.shared.array(512, np.float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    step = 256
    while step > 0:
        if tid < step:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


my_requests, my_barriers = 0, 0  # your numbers
trace = gpukit.trace(sequential_512[128, 512], x, np.zeros(128, np.float32))
print("requests:", "right" if my_requests == trace.total("shared").requests else "not yet")
print("barriers:", "right" if my_barriers == sum(b.passed for b in trace.barriers) else "not yet")

# %% [markdown]
# **2. Where is the largest?** Write a kernel of one block that finds the *place* of the largest of 256 numbers, the first of them if there are several. Which two values must a shuffle hand on, and when do you keep yours?


# %%
@cuda.jit
def place_of_largest(x, out):
    tid = cuda.threadIdx.x
    if tid == 0:
        out[0] = 0  # your kernel


numbers = np.random.default_rng(5).integers(0, 50, 256).astype(np.float32)
alike = np.zeros(256, np.float32)
alike[[72, 80, 144]] = 1  # the first two are in one warp, the third in another
place = np.full(1, -1, np.int64)
for values in (numbers, numbers[::-1].copy(), -numbers, 0 * numbers, np.arange(256, dtype=np.float32), alike):
    trace = gpukit.trace(place_of_largest[1, 256], values, place)
    right = place[0] == values.argmax() and not trace.findings
    print("right" if right else f"not yet: {place[0]}, it is {values.argmax()}")

# %% [markdown]
# **3. A barrier too few.** Take one `syncthreads` out of `sequential_512` above and trace it. What does the trace call it, and which two threads meet? Then put the barrier of the loop *inside* of the `if`. Why has the trace only advice for you, and no finding? Would there be one if another barrier stood behind the loop?
#
# <details><summary>Answer</summary>Without a barrier it is a race: one thread reads what another one writes, and nothing orders the two. Inside of the <code>if</code>, the threads that do not add run past the barrier and return, and since compute capability 7.0 a barrier does not wait for threads that have returned. With another barrier behind the loop they would wait there, while the others wait inside of the <code>if</code>: threads of a block at different barriers, which the trace calls barrier divergence.</details>

# %% [markdown]
# ## Key points
#
# - A reduction does next to no arithmetic: its measure is GB/s, its limit the memory.
# - Idle lanes and bank conflicts are two ways to lose the same wavefronts. Let neighbours work, on neighbours.
# - Inside of a warp, shuffles replace shared memory and barriers.
# - Many elements per thread, several loads under way, 16 bytes each: that is what fills the memory's pipeline.
# - The last block can finish the work of all, if fences stand on both sides of the count.
# - A tree is faster than a loop and more exact as well. A fixed order gives the same bits, at next to no cost; atomics do not.
# - A tree needs an associative operation. Whether it must be commutative too is the kernel's choice: it is what allows lanes to meet only once.
# - Rows and columns want different kernels: threads that are neighbours should read what is neighbours.
#
# **Back:** [06 Streams](06_streams.ipynb). **Next:** [08 Resize](08_resize.ipynb).
