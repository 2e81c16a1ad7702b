# %% [markdown]
# # 11 Scan, histogram, sort
#
# A running sum looks like the one loop that cannot be parallel: every result needs the one before it. This chapter makes it parallel, in one pass over the array, and then uses it to select, to count and to sort.
#
# **After this chapter you will be able to**
#
# - write a scan of a warp and of a block, and count its additions against those of a loop;
# - remove the bank conflicts of a tree with a padded index;
# - combine blocks in one pass, say what must be published before what, and find a missing fence;
# - say why blocks that wait for one another have to number themselves;
# - move selected elements together, count into bins without collisions, and sort by digits;
# - multiply a sparse matrix whose rows differ in length.
#
# **You need** [04 Bank conflicts](04_bank_conflicts.ipynb) and [07 Reduce](07_reduce.ipynb). No GPU.
#
# **Time:** 110 minutes, most of them for the eleven exercises.

# %%
import warnings
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np

import gpukit
from gpukit import cuda, device, exercises, on_gpu, operators, plot, results, scan, show, timing
from gpukit.emulator import KernelError
from gpukit.exercises import chapter_11
from gpukit.scan import cost, counting, ladder

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here
print("kernels run on:", device.info().name)

# %% [markdown]
# A sensor has sent ten readings, some of them broken. Keep the good ones, in their order. In NumPy that is `readings[good]`:

# %%
readings = np.array([21, 22, -99, 24, -99, -99, 23, 22, -99, 25], np.float32)
good = readings > -99
print(readings[good])

# %% [markdown]
# Now give each element to a thread. Thread 3 sees that its reading, 24, is good. **Where does it write it?** That depends on how many good readings come before it, which thread 3 has not seen. A loop knows, because it counts as it goes. Here is that count:

# %%
counts = np.cumsum(good)
show.Table(["", *map(str, range(10))], [["good", *good.astype(int)], ["good up to here", *counts]])

# %% [markdown]
# Thread 3 reads 3: its element is the third one, and goes to place 2. With such a running sum every thread knows its place, and all can write at once. Running sums are called **prefix sums** or a **scan**: an *inclusive* scan counts the element itself, an *exclusive* one only those before it. The specification is one line:


# %%
def specification(x):
    """The inclusive scan: element i is x[0] + ... + x[i]."""
    return np.cumsum(x, dtype=np.float64).astype(np.float32)


# %% [markdown]
# ## Why a running sum can be parallel
#
# A loop adds from left to right. But addition is associative: the sum of elements 0 to 7 is that of 0 to 3 plus that of 4 to 7, and the two halves can be computed at the same time. Hillis and Steele's scan uses this for all elements at once. In each step every element adds the one that is `distance` before it, and the distance doubles:

# %%
plot.scan_steps();
# %% [markdown]
# After the first step each element holds the sum of up to 2 elements, then of 4, then of 8. Three steps for eight elements, eight for 256. That is the good news.
#
# **Predict** the bad news. A loop makes 255 additions for 256 numbers. How many does this scan make in its eight steps?

# %%
my_answer = None
exercises.check("11-additions", my_answer)

# %% [markdown]
# Write it for a block of 256 threads. All threads of a step must read before any of them writes, so use two rows of shared memory: read from one, write to the other.


# %%
@cuda.jit
def running_sums(x, out):
    held = cuda.shared.array((2, 256), np.float32)  # two rows; the block has 256 threads
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    held[0, tid] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    now = 0  # the row that holds the sums
    # About 8 lines: for distances of 1, 2, 4 ... 128, read row `now`, write the sums to the
    # other row
    ...
    if i < x.size:
        out[i] = held[now, tid]


exercises.check("11-steps", running_sums)

# %% [markdown]
# **Check yourself.** With a single row the kernel needs two barriers per step. Where do they go?
#
# <details><summary>Answer</summary>
#
# One between reading and writing, so that nobody overwrites what others still read; one after writing, as here. With two rows, nobody writes where others read.
#
# </details>
#
# ## Fewer additions: a tree up, a tree down
#
# Nearly 1,800 additions where 255 would do: that costs energy, and time where arithmetic is the bottleneck. Blelloch's scan makes about two per element. On the way *up* it adds pairs, then pairs of pairs, like the trees of chapter 07, but keeps all partial sums. At the root it puts 0. On the way *down*, what a node holds is the sum of everything *before* its part of the array. Its left child begins at the same element, and gets the same value. Its right child begins after the left one, and gets that value plus the left child's sum:

# %% jupyter={"source_hidden": true}
held, levels = np.array([3, 1, 4, 1, 5, 9, 2, 6]), [("x", (), np.array([3, 1, 4, 1, 5, 9, 2, 6]))]
for step in (1, 2, 4):
    held[2 * step - 1 :: 2 * step] += held[step - 1 :: 2 * step]
    levels.append((f"up, step {step}", [(r - step, r) for r in range(2 * step - 1, 8, 2 * step)], held.copy()))
held[-1] = 0
levels.append(("0 at the root", (), held.copy()))
for step in (4, 2, 1):
    left, right = held[step - 1 :: 2 * step].copy(), held[2 * step - 1 :: 2 * step].copy()
    held[step - 1 :: 2 * step], held[2 * step - 1 :: 2 * step] = right, right + left
    pairs = [(r, r - step) for r in range(2 * step - 1, 8, 2 * step)]
    levels.append((f"down, step {step}", [*pairs, *(pair[::-1] for pair in pairs)], held.copy()))
title = "Blelloch's scan of 8 values: each blue line brings a value to another element"
with plot.figure(title, size=(8, 4.6), mark=" ") as ax:
    for level, (name, lines, values) in enumerate(levels):
        changed = {target for _, target in lines} | ({7} if name.startswith("0") else set())
        ax.text(-0.7, level, name, ha="right", va="center", fontsize=9)
        for element, value in enumerate(values):
            if level:
                ax.plot([element] * 2, [level - 1, level], color="#CCCCCC", linewidth=1, zorder=0)
            face = plot.PALETTE[1] if element in changed else "#E4E4E4"
            box = {"boxstyle": "square,pad=0.35", "facecolor": face, "edgecolor": "white", "alpha": 1}
            ax.text(element, level, f"{value:2}", ha="center", va="center", fontsize=9, bbox=box)
        for source, target in lines:
            ax.plot([source, target], [level - 1, level], color=plot.PALETTE[5], linewidth=1.2, zorder=0)
    ax.set(xlim=(-2.4, 7.6), ylim=(7.5, -0.6))
    ax.axis("off")

# %% [markdown]
# The last row is the exclusive scan of the first. The way up is given below; write the way down.


# %%
@cuda.jit
def exclusive_sums(x, out):
    held = cuda.shared.array(512, np.float32)  # 256 threads, two elements each
    tid, first = cuda.threadIdx.x, cuda.blockIdx.x * 512
    held[tid], held[tid + 256] = x[first + tid], x[first + tid + 256]
    step = 1
    while step < 512:  # up: the end of every pair gets the sum of the pair
        cuda.syncthreads()
        right = 2 * step * (tid + 1) - 1
        if right < 512:
            held[right] += held[right - step]
        step *= 2
    cuda.syncthreads()
    if tid == 0:
        held[511] = 0
    # About 9 lines: steps of 256 to 1: in each pair the left gets the right value, the right
    # adds the old left one
    ...
    out[first + tid], out[first + tid + 256] = held[tid], held[tid + 256]


exercises.check("11-down", exclusive_sums)

# %% [markdown]
# Here is what 8,192 elements cost. Wavefronts and conflicts are those of all blocks; the trace counts the additions, too:


# %%
def cost_of(variant):
    """A row of a table: what the first launch of a rung costs for 8,192 elements."""
    x, out = cuda.to_device(np.ones(8192, np.float32)), cuda.device_array(8192, np.float32)
    launch, arguments = scan.steps(variant, x, out)[0]
    trace = gpukit.trace(launch, *arguments)
    assert trace.findings == []
    shared, each = trace.total("shared"), 8192 // trace.blocks
    additions = sum(line.fp32 for line in trace.operations) / 8192
    waits = sum(barrier.passed for barrier in trace.barriers if barrier.kind == "block") // trace.blocks
    return [variant, each, f"{additions:.2f}", shared.wavefronts, shared.bank_conflicts, waits]


COLUMNS = ["", "elements of a block", "additions per element", "wavefronts", "conflicts", "barriers of a block"]
show.Table(COLUMNS, [cost_of(variant) for variant in ("hillis_steele", "blelloch")])

# %% [markdown]
# Fewer additions (the third per element turns the exclusive scan into an inclusive one), and about twice the wavefronts. The reason is in the next column. On a level with a given step, neighbouring threads touch elements `2 * step` apart:

# %% jupyter={"source_hidden": true}
x, out = cuda.to_device(np.ones(512, np.float32)), cuda.device_array(512, np.float32)
launch, arguments = scan.steps("blelloch", x, out)[0]
conflicting = gpukit.trace(launch, *arguments)
worst = max((a for a in conflicting.accesses if a.space == "shared"), key=lambda access: access.bank_conflicts)
conflicting.plot_banks(line=worst.line, array="held");

# %% [markdown]
# Chapter 04 has the cure: a pad. But this array has no rows. Which word of shared memory should element p be in, so that elements 2, 4, 8 ... apart are in different banks? The check puts your function into a Blelloch scan of 512 elements:


# %%
@cuda.jit(device=True)
def place(p):
    # About 1 line: the word of element p in shared memory, so that no two lanes meet in a bank
    return p


exercises.check("11-pad", place)

# %% jupyter={"outputs_hidden": true}
show.Table(COLUMNS, [cost_of(variant) for variant in ("blelloch", "blelloch_padded")])

# %% [markdown]
# ## A warp needs no shared memory
#
# The fewest additions are not the fastest scan. A warp takes as long for one active lane as for 32, so a tree whose upper levels have few active lanes wastes what it saves. Within a warp Hillis and Steele's five steps are five shuffles, with no barrier and no shared memory. `cuda.shfl_up_sync(0xFFFFFFFF, value, distance)` is the `value` of lane - distance:


# %%
@cuda.jit(device=True)
def scan_warp(value):
    lane = cuda.laneid
    # About 4 lines: for five distances, add the value of lane - distance, if there is such a
    # lane
    ...
    return value


exercises.check("11-warp", scan_warp)

# %% [markdown]
# A block scans its eight warps that way. Then one warp scans their eight totals, and each warp adds the total of those before it. That is `shuffles`, the fourth rung:

# %%
show.Table(COLUMNS, [cost_of(variant) for variant in ("hillis_steele", "blelloch_padded", "shuffles")])

# %% [markdown]
# gpukit has both scans for kernels of your own, for any associative operator and numbers of 4 or 8 bytes: `scan.warp_scan()` and `scan.block_scan(threads)`. This kernel computes for each point of a path how far along the path it lies:

# %%
scan_block = scan.block_scan(256)


@cuda.jit
def travelled(x, y, out):
    i = cuda.threadIdx.x
    step = ((x[i] - x[i - 1]) ** 2 + (y[i] - y[i - 1]) ** 2) ** 0.5 if i > 0 else 0.0
    upto, total = scan_block(np.float32(step))  # all threads of the block must call it
    out[i] = upto


angle = np.linspace(0, np.pi, 256, dtype=np.float32)
out = np.zeros(256, np.float32)
travelled[1, 256](np.cos(angle), np.sin(angle), out)
print(f"half way round a circle: {out[-1]:.4f}")

# %% [markdown]
# ## From blocks to arrays: three launches
#
# A block can scan only its own elements. The rest is the same idea once more: scan the totals of the blocks, and add to each block the total of all before it.
#
# 1. Each block scans its elements, and stores its total.
# 2. The totals are scanned, by the same kernel.
# 3. Each block adds the total of those before it to its elements.
#
# The trace of 65,536 elements says what that costs:


# %%
def traces_of(variant, size=2**16):
    """The traces of all launches of a rung, after a check of the result."""
    values = np.random.default_rng(11).integers(-9, 10, size).astype(np.float32)
    x, out = cuda.to_device(values), cuda.device_array(size, np.float32)
    traces = [gpukit.trace(launch, *arguments) for launch, arguments in scan.steps(variant, x, out)]
    assert np.array_equal(out.copy_to_host(), specification(values))
    return traces


rows = []
for trace in traces_of("shuffles"):
    moved = [32 * trace.total("global", op).sectors / (4 * 2**16) for op in ("load", "store")]
    rows.append([trace.kernel, trace.blocks, *(f"{times:.2f}" for times in moved)])
show.Table(["launch", "blocks", "reads, times the array", "writes, times the array"], rows)

# %% [markdown]
# The array is read, written, read again and written again. A loop reads it once and writes it once, and a scan makes so few additions per byte that only this traffic counts. For a large array, three launches take at least twice as long as a copy, however good their first kernel is.
#
# ## One pass
#
# To write its result the first time, a block must know the sum of all blocks before it. So why not wait for it? Every block gets a sum from the block before it, adds its own total, and passes the result on. Here is this chain, with one thread and one element per block. `flags[block + 1]` says that a block has published its sum. The result is right. Is the kernel?


# %%
@cuda.jit
def chain(x, out, flags):
    block = cuda.atomic.add(flags, 0, 1)  # a number of its own
    before = np.float32(0)
    if block > 0:
        while cuda.atomic.add(flags, block, 0) == 0:  # the block before has not finished
            cuda.nanosleep(20)
        before = out[block - 1]
    out[block] = before + x[block]  # planted: two fences are missing
    cuda.atomic.exch(flags, block + 1, 1)


x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
trace = gpukit.trace(chain[64, 1], x, out, np.zeros(65, np.int32))
print("right this time:", np.array_equal(out, specification(x)))
for finding in trace.findings:
    print(f"{finding.kind} at: {finding.code}\n    {finding.message}")

# %% [markdown]
# The sum and the flag are two stores, and other blocks may see them in either order: the flag first, and then they read an old sum. Two fences mend it. The block that publishes puts one **between the sum and its flag**. The block that reads puts one **between the flag and the sum**, so that the sum is not read early. With both, the trace finds nothing.
#
# **Why do the blocks number themselves?** `blockIdx.x` is a number, too. But nothing says in which order a GPU starts its blocks. If more blocks are launched than fit on the device, and those that have started all wait for some that have not, none ever ends. Suppose that a device starts the last blocks first:


# %%
@cuda.jit
def chain_by_index(x, out, flags):
    block = cuda.gridDim.x - 1 - cuda.blockIdx.x  # planted: a number that the start order does not follow
    before = np.float32(0)
    if block > 0:
        while cuda.atomic.add(flags, block, 0) == 0:
            cuda.nanosleep(20)
        cuda.threadfence()
        before = out[block - 1]
    out[block] = before + x[block]
    cuda.threadfence()
    cuda.atomic.exch(flags, block + 1, 1)


many = np.ones(20_000, np.float32)
try:
    gpukit.trace(chain_by_index[20_000, 1], many, np.zeros_like(many), np.zeros(20_001, np.int32))
except KernelError as error:
    print(error)

# %% [markdown]
# The emulator holds as many blocks at a time as an H200 would. All of them wait for blocks that cannot start before one of them ends. On a GPU the program hangs.
#
# A number drawn from a counter follows the order of starting, whatever it is. The blocks before mine have drawn theirs, so they are running, and blocks that run are not taken off the device. Some block can therefore always go on: that is called a **forward progress** guarantee. (Where all blocks fit on the device at once, all of them run, whatever the order: `scan.scan` takes `blockIdx.x` there, and saves the trip to the counter.)
#
# The chain is correct now, and slow: every block waits for the one before it, a trip through memory for each. **Decoupled look-back** breaks the chain. A block publishes *its own* total as soon as it has it, before it knows anything of the others. A block that needs the sum of all blocks before it walks back over their totals and adds them up, until it meets one that has published the sum *up to* it. Here is block 6, which has to add up four numbers:

# %% jupyter={"source_hidden": true}
own, ready = [5, 2, 7, 4, 3, 6, 1], 3  # blocks 0 to 2 have published their sum up to them
with plot.figure("Decoupled look-back", size=(8, 2.5), mark=" ") as ax:
    for block, total in enumerate(own):
        texts = [f"own: {total}", f"up to: {sum(own[: block + 1])}" if block < ready else "up to: ?"]
        for line, text in enumerate(texts):
            used = (block == ready - 1 and line == 1) or (ready <= block < 6 and line == 0)
            face = "white" if text.endswith("?") else plot.PALETTE[1] if used else "#E4E4E4"
            box = {"boxstyle": "square,pad=0.4", "facecolor": face, "edgecolor": "#AAAAAA"}
            ax.text(block, line, text, ha="center", va="center", fontsize=9, bbox=box)
        ax.text(block, -0.75, f"block {block}", ha="center", va="center", fontsize=9)
        if ready - 1 <= block < 6:
            ax.annotate("", (block, 1.5), (6, 1.5), arrowprops={"arrowstyle": "->", "color": plot.PALETTE[5]})
    numbers = [*own[5 : ready - 1 : -1], sum(own[:ready])]
    ax.text(6, 2.1, f"{' + '.join(map(str, numbers))} = {sum(numbers)}", ha="right", va="center", fontsize=10)
    ax.set(xlim=(-0.6, 6.6), ylim=(2.5, -1.1))
    ax.axis("off")

# %% [markdown]
# In the kernel, thread 0 of each block does this. `OWN` and `ALL` are the two values of a flag:

# %%
show.source(ladder.look_back)

# %% [markdown]
# **Check yourself.** The kernel has three fences. Which two stores does each of the first and the last keep in order, and what does the one in the middle do?
#
# <details><summary>Answer</summary>
#
# The first: `own[block]` before the flag `OWN`. The last: `upto[block]` before the flag `ALL`. The one in the middle orders two reads, of the flag and of the sum that it announces.
#
# </details>

# %%
cleared, trace = traces_of("look_back")
print("findings:", trace.findings)
rows = []
for name in ("x", "out", "own", "upto"):
    sectors = [sum(a.sectors for a in trace.accesses if (a.array, a.op) == (name, op)) for op in ("load", "store")]
    rows.append([name, 2**16 if name in ("x", "out") else trace.blocks, *sectors])
show.Table(["", "elements", "sectors read", "sectors written"], rows)

# %% [markdown]
# No finding: the trace has followed every value from the store to the read, through a fence, a flag and a fence. And it is one pass. `x` is read once, `out` written once. What blocks publish for one another is read many times, but it is small and stays in the L2 cache. How often depends on timing: the emulator runs all these blocks at the same time, so each walks back far. On a GPU, blocks start one after the other, and most find a block that has finished a few steps back.
#
# `scan.scan` is built like this, with four differences. A thread has 32 elements, in copies of 16 bytes. They are kept in shared memory, as registers would hold fewer: while blocks wait for others, only loads in flight keep the memory busy. A whole warp looks back, at 32 totals at a time. And a total needs no flag of its own: value and flag are the two halves of one 64-bit word, which is written and read as a whole, so there is nothing that a fence would have to keep in order. It takes any axis. The order in which it adds does not depend on timing, so it gives the same bits in every run; the last bits of `look_back` may differ.
#
# ## How fast is each rung?
#
# On a GPU the next cell times all rungs, next to a plain copy, and to CuPy and PyTorch if they are installed.

# %%
SIZE, times, where = 2**26, {}, ""
if on_gpu():
    x, out = cuda.to_device(np.ones(SIZE, np.float32)), cuda.device_array(SIZE, np.float32)
    runs = {"scan": lambda: scan.scan(x, out=out), "copy": lambda: out.copy_to_device(x)}
    for variant in scan.VARIANTS:
        steps = scan.steps(variant, x, out)
        runs[variant] = lambda steps=steps: [launch(*arguments) for launch, arguments in steps]
    for name in filter(find_spec, ("cupy", "torch")):
        library = import_module(name)
        values = library.as_tensor(x, device="cuda") if name == "torch" else library.asarray(x)
        runs[name] = lambda library=library, values=values: library.cumsum(values, 0)
    times = {name: timed.median for name, timed in timing.bench_many(runs, min_time=0.1).items()}
    where = device.info().name

# %% [markdown]
# The counts give predictions on any machine. `trace.predict()` computes for each resource of an H200 how long a launch occupies it **at least**. These are not times. Instructions ("issue") are estimated from the source, and the time that blocks wait for one another is not in them.


# %% jupyter={"source_hidden": true}
def recorded(**wanted):
    """Records of this chapter; none where there are none yet."""
    try:
        return results.load("scan-h200", **wanted)
    except FileNotFoundError:
        return []


def traces_of_fast(size=2**16):
    """The trace of the launch behind scan.scan for SIZE elements, with fewer blocks."""
    operation, _ = operators.make_operations("sum", "float32")
    [choice] = cost.choose(operation, 4, 4, 1, SIZE, 1, False)
    x, out, words = np.ones(size, np.float32), np.empty(size, np.float32), np.zeros(choice.words, np.uint64)
    tiles = size * choice.grid // SIZE
    return [gpukit.trace(choice.kernel[tiles, choice.block], x, out, words, size, tiles, False)]


def bounds_of(traces, size):
    """Microseconds that DRAM, instructions and shared memory take at least for SIZE elements."""
    whole = [trace.predict(grid=trace.blocks * (SIZE // size)) for trace in traces if trace.blocks > 2]
    return [sum(bound.uses[name].seconds for bound in whole) * 1e6 for name in ("DRAM", "issue", "shared memory, L1")]


ladder_records = recorded(case="ladder")
if ladder_records and not times:
    times = results.by_variant(ladder_records, shape=(SIZE,))
    where = results.taken_on(ladder_records)
bounds = {variant: bounds_of(traces_of(variant, 2**12), 2**12) for variant in scan.VARIANTS}
bounds["scan"] = bounds_of(traces_of_fast(), 2**16)
rows = []
for name in [*bounds, *(name for name in times if name not in bounds)]:
    row = [name, *(f"{bound:,.0f}" for bound in bounds.get(name, ()))]
    row += [""] * (4 - len(row))
    rows.append(row + ([f"{times[name] * 1e6:,.0f}", f"{8e-9 * SIZE / times[name]:,.0f}"] if times else []))
heads = ["2^26 float32", "DRAM at least, us", "issue, us (estimate)", "shared memory at least, us"]
print(f"predicted for an H200; measured on {where}" if times else "predicted for an H200; nothing was measured here")
show.Table(heads + (["measured, us", "GB/s of one read and write"] if times else []), rows)

# %% jupyter={"source_hidden": true}
if ladder_records:
    sizes = sorted({record["shape"][0] for record in ladder_records})
    at = {(record["variant"], record["shape"][0]): record["value"] for record in ladder_records}
    rates = {name: [8e-9 * n / at[name, n] for n in sizes] for name in dict.fromkeys(variant for variant, _ in at)}
    against = [name for name in ("cupy", "torch") if name in rates]
    named = [name for name in ("hillis_steele", "shuffles", "look_back", "scan", *against) if name in rates]
    options = {"against": against, "xlabel": "float32 elements", "mark": results.taken_on(ladder_records)}
    plot.rungs(sizes, rates, "GB/s", named, title="Scan of float32: speed by size", **options)

# %% [markdown]
# The first four rungs move the array twice, `look_back` and `scan` once: compare the column of DRAM. But the ladder has another bottleneck. Each of its threads has one or two elements, and all barriers, indices and shuffles are spent on those, so the instructions outweigh the memory. Curing a conflict may even cost more instructions than it is worth.
#
# `look_back` moves the least and is the slowest by far on an H200. The bounds do not show why, because it is waiting: a block has only 256 elements, and in each of the 262,144 blocks one thread walks back total by total, a trip to the L2 cache for each, while 255 others wait. `scan` has the same idea and 8,192 elements per block. So there is one walk where `look_back` has 32, each takes a few steps, and other blocks have loads in flight meanwhile. Only then does memory set the bound, and one pass instead of two is worth having.
#
# ## What a scan is for: compaction
#
# Back to the question at the top. Collecting the selected elements is called **compaction**. `upto` is the inclusive scan of the mask. Write the kernel that moves the elements:


# %%
@cuda.jit
def scatter(mask, upto, x, out):
    i = cuda.grid(1)
    # About 2 lines: a selected element goes where upto, the inclusive scan of `mask != 0`, says
    ...


exercises.check("11-scatter", scatter)

# %% [markdown]
# `scan.compress(mask, x)` does both in one pass: a block scans its part of the mask, looks back, and writes. `scan.nonzero` writes the indices instead.

# %%
print(scan.compress(good, readings), scan.nonzero(good))

# %% [markdown]
# **Check yourself.** An atomic counter, `at = cuda.atomic.add(counter, 0, 1)`, also gives each selected element a place of its own. What is different?
#
# <details><summary>Answer</summary>
#
# The order: elements come in the order in which threads happen to reach the counter, and it may change from run to run. And all selected elements of the array meet at one address.
#
# </details>
#
# ## Counting: histograms
#
# A histogram counts how often each value occurs. Different threads add to the same counter, so the addition is atomic. The simplest kernel counts in global memory; the next one in shared memory, with a histogram for each block that is added to the result at the end:

# %%
show.source(counting.global_atomics, counting.shared_atomics)

# %% [markdown]
# Atomics on one address are executed one after the other. How often that happens depends on the data, so there are two cases to test: values that are spread evenly, and values that are all equal. `private` is gpukit's own kernel: it has a copy of the 256 counters for each lane, and copy c lies in bank c.

# %% jupyter={"source_hidden": true}
DATA = {"uniform": np.random.default_rng(5).integers(0, 256, 2**14).astype(np.uint8)}
DATA["all equal"] = np.full(2**14, 7, np.uint8)
private = counting.make_private(True, "float64", 1, "bytes")[8, 512, 0, 256 * (32 + 1) * 4]
work = np.zeros(256, np.uint64), np.zeros(1, np.uint32)  # the sums of the blocks, and how many have finished
options = *work, np.arange(257.0), 256, 5, True, 0.0, 256.0, 0.0, 1.0, 0.0  # the edges, and how to find a bin
KERNELS = {
    "global_atomics": (counting.global_atomics[8, 512], ()),
    "shared_atomics": (counting.shared_atomics[8, 512], ()),
    "private": (private, options),
}
rows = []
for name, (launch, further) in KERNELS.items():
    row = [name]
    for values in DATA.values():
        counts = np.zeros(256, np.int64)
        trace = gpukit.trace(launch, values, counts, *further)
        assert np.array_equal(counts, np.bincount(values, minlength=256))
        shared, beyond = trace.total("shared", "atomic"), trace.total("global", "atomic")
        passes = f"{shared.wavefronts / shared.requests:.1f}" if shared.requests else ""
        row += [f"{beyond.requests * beyond.active_lanes:,.0f}", passes]
    rows.append(row)
heads = [f"{name}: {what}" for name in DATA for what in ("to global", "wavefronts")]
show.Table(["16,384 bytes", *heads], rows)

# %% [markdown]
# "To global" are atomic additions in global memory (in `private`, each block also counts itself as finished, and the last one writes the result); "wavefronts" are those of one atomic request in shared memory, for 32 lanes. With equal values, all 32 lanes of a warp want one counter: 32 wavefronts for each request. With private copies it is one, for any data. Global memory has the same problem, farther away: all 16,384 additions of equal values meet at one address.
#
# Write the kernel with private copies for 64 bins. The trap is in the second part: in which banks are the copies that the threads add up?


# %%
@cuda.jit
def count_privately(x, counts):
    own = cuda.shared.array((64, 32), np.int32)  # own[bin, copy]: a copy of the 64 bins for each lane
    tid, lane = cuda.threadIdx.x, cuda.threadIdx.x % 32
    for b in range(tid // 32, 64, cuda.blockDim.x // 32):
        own[b, lane] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < x.size:
        # About 1 line: count x[i] in the copy of this lane
        cuda.atomic.add(own, (x[i], 0), 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    # About 5 lines: thread b adds up the copies of bin b, without a conflict, and adds the sum
    # to counts[b]
    ...


exercises.check("11-private", count_privately)

# %% [markdown]
# Copies cost shared memory: 32 copies of 256 counters take 32 KB. For more bins `scan.histogram` makes fewer copies, and for very many it counts in global memory, where additions to so many counters seldom collide. It takes values, bins and range as `np.histogram` does:

# %%
values = np.random.default_rng(6).standard_normal(10_000).astype(np.float32)
counts, edges = scan.histogram(values, bins=8, range=(-4, 4))
assert np.array_equal(counts, np.histogram(values, 8, (-4, 4))[0])
print(counts)

# %% [markdown]
# ## Sorting: a histogram and a scan
#
# A **radix sort** looks at one digit of the keys at a time, the least significant one first. Sorting by one digit is a compaction for each of its values: first all keys with a 0, then those with a 1, and so on, each group in its order. Here are eight keys and their last digit in base 4:

# %%
keys = np.array([14, 8, 3, 6, 12, 5, 2, 0])
assert tuple(keys % 4) == chapter_11.DIGITS
show.Table(["", *map(str, range(8))], [["key", *keys], ["digit", *(keys % 4)]])

# %% [markdown]
# **Predict:** to which place does each key go? Replace `None` with a list of eight numbers, the place of 14 first.

# %%
my_answer = None
exercises.check("11-digit", my_answer)


# %% jupyter={"outputs_hidden": true}
def places_by(digits, base=4):
    """Where each key goes: where its digit begins, plus the keys of that digit before it. Both are exclusive scans."""
    begins = scan.scan(np.bincount(digits, minlength=base), exclusive=True)
    has_digit = (digits == np.arange(base)[:, None]).astype(np.int32)  # a row for each digit
    before = scan.scan(has_digit, axis=1, exclusive=True)
    return begins[digits] + before[digits, np.arange(digits.size)]


for digit in (0, 1):
    moved = np.empty_like(keys)
    moved[places_by(keys >> 2 * digit & 3)] = keys
    keys = moved
    print(f"sorted by digit {digit}:", keys)

# %% [markdown]
# Two passes sort numbers of two digits. The second pass must not disturb what the first has done, so keys with equal digits have to keep their order: each pass must be **stable**.
#
# `scan.sort` takes digits of 8 bits, so 32-bit keys need four passes. A first kernel counts the digits of all passes at once, a scan says where each begins, and each pass is one sweep over the keys. A block ranks its own keys by their digit, and finds by look-back how many keys of each digit the blocks before it have: 256 look-backs side by side. A key is thus read five times and written four times. A pass in which all keys have the same digit is left out: numbers below 256 are read twice and written once. Floats are sorted by their bits, after a small change that puts negative numbers and NaN in their places. For `argsort` and for pairs, an index or a value moves along with each key. Along an axis, rows that fit in shared memory need one launch: a warp or a block sorts a row there.
#
# Often only the k largest elements are wanted: **top-k**. `scan.topk` finds the k-th key digit by digit, the most significant one first. That takes a histogram per digit, and writes no keys. Then it collects the k keys, and sorts only those:

# %%
x = np.array([2.5, -1.0, np.nan, -np.inf, 0.0, -7.25], np.float32)
print(scan.sort(x), scan.argsort(x), scan.sort(x, np.arange(6)))
print(scan.topk(x, 2))
large = np.random.default_rng(7).integers(-(2**31), 2**31, 20_000).astype(np.int32)
assert np.array_equal(scan.sort(large), np.sort(large))

# %% [markdown]
# ## Rows of different lengths
#
# Most elements of a **sparse** matrix are 0 and are not stored. In the **CSR** format (compressed sparse rows), `values` and `columns` hold the others, row after row, and row r is elements `starts[r]` to `starts[r + 1]`. (`starts` is an exclusive scan of the lengths.) The product with a vector needs the sum of each row. It is tempting to scan all products, and to take the difference of the sums at both ends of a row:

# %%
random = np.random.default_rng(8)
lengths = random.integers(0, 40, 20_000)
starts = scan.scan(np.append(lengths, 0), exclusive=True)
products = random.random(int(starts[-1]), np.float32)
upto = scan.scan(np.append(np.float32(0), products))
exact = np.diff(np.append(0, np.cumsum(products, dtype=np.float64))[starts])
print(f"largest error of a row's sum: {np.abs(np.diff(upto[starts]) - exact).max():.4f}, sums up to {exact.max():.1f}")

# %% [markdown]
# The running sum has grown large, and the difference of two large numbers that are nearly equal has few correct digits left: **cancellation**. For integers this is fine. Floats need a sum that starts again at every row, a **segmented** scan or reduction. `scan.segmented_reduce(x, offsets)` and `scan.segmented_scan` take the offsets of CSR. Each block gets as many elements as any other, however long the rows are:

# %%
sums = scan.segmented_reduce(products, starts)
print(f"largest error of a row's sum: {np.abs(sums - exact).max():.7f}")
print(scan.segmented_scan(np.array([1, 2, 3, 4, 5]), np.array([0, 2, 2, 5])))

# %% [markdown]
# A kernel of your own can multiply and add in one go. Begin with **a thread per row**:


# %%
@cuda.jit
def multiply_row(starts, columns, values, x, y):
    row = cuda.grid(1)  # a thread for each row
    # About 5 lines: add up the products of the row, and store the sum
    ...


exercises.check("11-row", multiply_row)

# %% [markdown]
# At each step the lanes of a warp now read elements of 32 different rows, which lie far apart, and the warp takes as long as its longest row. There are two ways out. **A warp per row** reads neighbouring elements; rows shorter than 32 leave lanes idle. Or the elements are rearranged: the **ELL** format pads all rows to the length of the longest, and stores the first elements of all rows, then the second ones, and so on. Then a thread per row is enough: neighbouring threads read neighbouring elements, at the price of the padding. Here is what the three load for rows of random lengths, of one length, and for short rows with a long one among them:


# %% jupyter={"source_hidden": true}
def read_by(form, lengths, width=512):
    """Sectors that a product loads for each element of the matrix."""
    begins = scan.scan(np.append(lengths, 0).astype(np.int32), exclusive=True).astype(np.int32)
    columns = random.integers(0, width, begins[-1]).astype(np.int32)
    arrays, rows = (begins, columns, np.ones(columns.size, np.float32)), lengths.size
    x, y = np.ones(width, np.float32), np.zeros(rows, np.float32)
    if form == "ELL":
        launch = chapter_11.multiply_ell[rows // 64, 64]
        trace = gpukit.trace(launch, *chapter_11.as_ell(*arrays), x, int(lengths.max()), y)
    elif form == "a thread per row":
        trace = gpukit.trace(chapter_11.multiply_row[rows // 64, 64], *arrays, x, y)
    else:
        trace = gpukit.trace(chapter_11.multiply[rows // 4, 128], *arrays, x, y)
    assert np.array_equal(y, lengths)
    return f"{trace.total('global', 'load').sectors / columns.size:.2f}"


MATRICES = {"0 to 63 elements": random.integers(0, 64, 512), "32 elements": np.full(512, 32)}
MATRICES["3 elements, one row of 500"] = np.where(np.arange(512) == 100, 500, 3)
FORMS = ("a thread per row", "a warp per row", "ELL")
rows = [[name, *(read_by(form, lengths) for form in FORMS)] for name, lengths in MATRICES.items()]
show.Table(["sectors per element; rows of", *FORMS], rows)

# %% [markdown]
# The lengths decide. With long rows a warp per row loads the least; rows of three elements leave most of its lanes idle. With rows of one length ELL comes close, without a shuffle, but a single long row is enough to spoil it.
#
# ## Exercises
#
# **A warp for each row.** Multiply a CSR matrix by a vector. The lanes share the elements of the row. You have met all the parts: here they come together.


# %%
@cuda.jit
def multiply(starts, columns, values, x, y):
    lane, row = cuda.threadIdx.x % 32, cuda.grid(1) // 32  # a warp for each row
    # About 9 lines: the lanes share the elements of the row, add up their products, and lane 0
    # stores the sum
    ...


exercises.check("11-spmv", multiply)

# %% [markdown]
# **ELL.** The k-th elements of all rows are stored together, so `columns` and `values` have `width` times `y.size` elements. Padding has column -1.


# %%
@cuda.jit
def multiply_ell(columns, values, x, width, y):
    row = cuda.grid(1)  # a thread for each row
    # About 7 lines: add up the products of the row's `width` elements, and store the sum;
    # padding has column -1
    ...


exercises.check("11-ell", multiply_ell)

# %% [markdown]
# ## Beside the libraries
#
# `gpukit bench scan --save` measures all of this on a GPU: the ladder, scans along rows and columns, histograms of uniform and of constant data, sorts of keys, of pairs and of rows, top-k, and compaction, beside CuPy and PyTorch, and beside CUB itself if `cuda-cccl` is installed. Here are some of them, if there is a GPU. "Device and host" marks times that may include waiting for the host, because a launch was not queued before the device was free:

# %%
rows = []
if on_gpu():
    random, counts = np.random.default_rng(9), cuda.device_array(256, np.int64)
    keys = cuda.to_device(random.integers(-(2**31), 2**31, 2**24).astype(np.int32))
    mask, values = cuda.to_device(random.random(2**24) < 0.5), cuda.to_device(random.random(2**24, np.float32))
    runs = {
        "histogram": lambda: scan.histogram(values, 256, (0, 1), out=counts),
        "compress": lambda: scan.compress(mask, values),
        "sort": lambda: scan.sort(keys),
    }
    for name in filter(find_spec, ("cupy", "torch")):
        library = import_module(name)
        view = partial(library.as_tensor, device="cuda") if name == "torch" else library.asarray
        k, m, v = view(keys), view(mask), view(values)
        runs[f"compress, {name}"] = lambda m=m, v=v: v[m]
        runs[f"sort, {name}"] = lambda library=library, k=k: library.sort(k)
    for name, timed in timing.bench_many(runs, min_time=0.1).items():
        rows.append([name, timing.format_seconds(timed.median), "device and host" if timed.launch_bound else "device"])
show.Table(["2^24 elements", "median", "time of"], rows) if rows else print("Nothing is timed here.")

# %% [markdown]
# The next cell shows the record, for 2<sup>24</sup> elements and for rows and columns: how many times as fast as the faster of CuPy and PyTorch each function was. "Sum" is the running sum. A sort of pairs stands beside an argsort and a gather; neither of the two sorts pairs. CUB itself, called directly, is not in the figure. It is in the record, and ahead in most sorts of keys, in some of the histograms and in large scans of float64.

# %% jupyter={"source_hidden": true}
compared = [r for r in recorded() if r["spread"] is not None and r["case"] != "ladder"]
compared = [r for r in compared if len(r["shape"]) > 1 or r["shape"] == (2**24,)]
groups, OWN = {}, ("scan", "histogram", "sort", "compress", "topk")
for record in compared:
    shape = " x ".join(f"{n:,}" for n in record["shape"])
    share = f" of {record['share']:.0%}" if "share" in record else f" of {record['k']:,}" if "k" in record else ""
    groups.setdefault(f"{record['case']}{share}, {shape} {record['dtype']}", {})[record["variant"]] = record["value"]
shares = {}
for name, found in groups.items():
    theirs = [found[library] for library in ("cupy", "torch") if library in found]
    ours = [found[variant] for variant in OWN if variant in found]
    if theirs and ours:
        shares[name] = min(theirs) / ours[0]
if shares:
    mark = results.taken_on(compared)
    title, limit = "Speed over that of the faster library", ("faster library", 1)
    plot.dots(shares, "times", title=title, mark=mark, limit=limit, log=True)
else:
    print("There is no record yet.")

# %% [markdown]
# ## Key points
#
# - A scan is parallel because addition is associative. It gives every element its place, so that all can move at once.
# - Hillis and Steele's scan takes the fewest steps, Blelloch's the fewest additions. Within a warp, steps are what counts.
# - One word of pad for every 32 removes the conflicts of a tree.
# - A scan is memory-bound: count how often the array is read and written. One pass halves it.
# - Publish the value, then a fence, then the flag. Read the flag, then a fence, then the value.
# - Blocks that wait for others must be numbered in the order in which they start.
# - Test a histogram on equal values. With private copies, its wavefronts do not depend on the data.
# - A radix sort is a histogram, a scan and a stable scatter for each digit.
# - Rows of different lengths need a scan that starts again at each row, and a format that suits their lengths.
#
# **Back:** [10 Profiling](10_profiling.ipynb). **Next:** [12 Tensor cores](12_tensor_cores.ipynb).
