# %% [markdown]
# # 02 A matrix product
#
# Five kernels compute the same product and give the same result. Why does one of them take hundreds of times as long as another?
#
# **After this chapter you will be able to**
#
# - write a kernel that computes one element of a matrix product per thread, and launch it for matrices of any shape;
# - split the time that a caller waits into compiling, copying and computing, and measure each alone;
# - predict how many memory sectors one instruction of a warp touches, for any block and either assignment of the axes, and check the prediction with a trace;
# - find arithmetic in float64 and indices of 64 bits that you did not ask for, and get rid of them;
# - recognise a launch that raises nothing, is fast, and is wrong.
#
# **You need** [01 Threads and blocks](01_threads_and_blocks.ipynb). No GPU: without one, the times are those recorded on an H200, and say so.
#
# **Time:** 70 minutes.

# %%
import warnings
from functools import partial
from math import ceil

import numpy as np

import gpukit
from gpukit import cuda, device, errors, exercises, matmul, on_gpu, plot, results, show, timing

warnings.filterwarnings("ignore", ".*Grid size")  # grids are small on purpose here
rng = np.random.default_rng(2)
print("kernels run on:", device.info().name)

# %% [markdown]
# Here are the five, for two matrices of 1024 x 1024. The first four are a dozen lines of Python each; they differ in the size of the block, in the order of two names, and in the type of the indices. The last is cuBLAS, NVIDIA's library.

# %% jupyter={"source_hidden": true}
recorded = results.load("naive-h200", shape=(1024, 1024, 1024), dtype="float32")
ways = {
    "naive, blocks of 1 x 1": ("block", "1 x 1"),
    "naive_uncoalesced, 32 x 32": ("axis", "rows, 32 x 32"),
    "naive, 32 x 32": ("axis", "columns, 32 x 32"),
    "naive_uint32, 32 x 32": ("block, uint32", "32 x 32"),
    "cuBLAS": ("library", "cuBLAS"),
}
ms = {}
for way, (case, name) in ways.items():
    ms[way] = 1e3 * results.first(recorded, case=case, variant=name)["value"]
notes = {way: f"{ms['naive, blocks of 1 x 1'] / value:.0f} x" for way, value in ms.items()}
title, mark = "1024 x 1024, float32: the same result, five times", results.taken_on(recorded)
plot.dots(ms, "ms", title=title, mark=mark, notes=notes, heading="times as fast", log=True);

# %% [markdown]
# ## What is to be computed
#
# The product of a matrix `a` with M rows and K columns and a matrix `b` with K rows and N columns has M rows and N columns. Each of its elements is the sum of K products, along a row of `a` and down a column of `b`:

# %%
ax = plot.product_tiles(5, 7, 8, tile=1, block=(4, 3), step=2)
ax.set_title("out[3, 4] += a[3, k] * b[k, 4], at k = 2", loc="left");

# %% [markdown]
# In NumPy it is `a @ b`, and that is the specification: everything below is checked against it. On a CPU it is three loops. Here they are, compiled for one core, because Python itself would take minutes:

# %%
show.source(matmul.on_cpu)

# %% [markdown]
# A `Timer` says how long a stretch of code takes. It gets a message and a unit, and reads the host's clock unless told otherwise:

# %%
a, b = rng.uniform(-1, 1, (2, 512, 512)).astype(np.float32)
matmul.on_cpu(a, b), a @ b  # the first call compiles; NumPy's starts its threads
with timing.Timer("three loops on one core, 512 x 512", unit="ms"):
    matmul.on_cpu(a, b)
with timing.Timer("NumPy, 512 x 512", unit="us"):
    a @ b

# %% [markdown]
# ## One thread per element
#
# On a GPU the two outer loops disappear. There is one thread for each element of the result, and it runs the inner loop. The sum starts as `np.float32(0)` rather than `0.0`; the section on types says why.


# %%
@cuda.jit
def naive(a, b, out):
    col, row = cuda.grid(2)
    # About 5 lines: if there is such an element, sum up the products in total = np.float32(0),
    # then store it once
    ...


exercises.check("02-naive", naive)

# %% [markdown]
# The launch has to provide a thread for each element: the grid that you computed in chapter 01, from the number of columns for x and of rows for y. It is in the folded cell. The rest of the page uses gpukit's `matmul.naive`. In `multiply`, everything that a caller pays for has a line of its own:

# %% jupyter={"source_hidden": true}
def grid_for(shape, block):
    return ceil(shape[1] / block[0]), ceil(shape[0] / block[1])


# %%
def multiply(a, b, block=(16, 16)):
    a_device = cuda.to_device(a)  # allocate, and copy in
    b_device = cuda.to_device(b)
    out_device = cuda.device_array((a.shape[0], b.shape[1]), a.dtype)  # allocate: nothing to copy
    matmul.naive[grid_for(out_device.shape, block), block](a_device, b_device, out_device)
    return out_device.copy_to_host()  # waits for the kernel, then copies out


# %% [markdown]
# Nothing here frees the device memory. That happens when the last reference to an array is gone.
#
# Now a test, with sizes that are not multiples of the block. How close must a float32 result be to the exact one? Each of the K additions rounds once, so the error is at most about K eps times the sum of the absolute products, where eps is the spacing of float32 numbers near 1.


# %%
def check(product, a, b):
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = abs(a).astype(np.float64) @ abs(b).astype(np.float64)
    bound = a.shape[1] * np.finfo(a.dtype).eps * scale
    wrong = ~(abs(product - exact) <= bound)  # ~(<=) is true for NaN, > is not
    if not wrong.any():
        return "right in every element"
    first = np.flatnonzero(wrong)[0]
    return f"{wrong.sum():,} of {wrong.size:,} elements wrong, the first is number {first:,}"


a = rng.uniform(-1, 1, (53, 29)).astype(np.float32)
b = rng.uniform(-1, 1, (29, 37)).astype(np.float32)
print(check(multiply(a, b), a, b))

# %% [markdown]
# `matmul.matmul(a, b, "naive")` does the same for arrays on the host or on the device, and raises a clear error for bad input. It offers all the kernels of this chapter and the next three.
#
# ## Where the time goes
#
# `multiply` contains allocations, two copies in, the launch, the kernel and a copy out. The next cell turns each part into a function that waits until the device is done.

# %%
n, block = 1024, (16, 16)
a, b = rng.uniform(-1, 1, (2, n, n)).astype(np.float32)
matrices = cuda.to_device(a), cuda.to_device(b), cuda.device_array((n, n), np.float32)


def allocate():
    arrays = [cuda.device_array((n, n), np.float32) for _ in range(3)]
    cuda.synchronize()
    return arrays


def copy_in():
    matrices[0].copy_to_device(a)
    matrices[1].copy_to_device(b)
    cuda.synchronize()


def launch_and_wait():
    matmul.naive[grid_for((n, n), block), block](*matrices)
    cuda.synchronize()


# %% [markdown]
# A single measurement says little. `timing.bench_many` calls the functions in turn, round after round, until it knows how the times of each are distributed. On a GPU it reads the device's clock, and empties the L2 cache, the last one before memory, ahead of each call; with `device="cpu"` it reads the host's. Without a GPU, `measured` reads the record instead.


# %%
def measured(case, functions, dtype="float32", **options):
    if on_gpu():
        timings = timing.bench_many(functions, **options)
        return results.of_timings("matmul", case, (n, n, n), dtype, timings)
    return results.load("naive-h200", case=case, shape=(n, n, n), dtype=dtype)


parts = {"allocate": allocate, "copy in": copy_in, "launch and kernel": launch_and_wait}
parts["copy out"] = matrices[2].copy_to_host
whole = {f"everything, {k} x {k}": partial(multiply, a, b, (k, k)) for k in (1, 16, 32)}
by_parts = measured("end to end", parts | whole, device="cpu", repeat=10)

kernels = {}
for k in (1, 16, 32):
    kernels[f"{k} x {k}"] = partial(matmul.naive[grid_for((n, n), (k, k)), (k, k)], *matrices)
alone = results.by_variant(measured("block", kernels))

# %% jupyter={"source_hidden": true}
seconds = results.by_variant(by_parts)
kernel, everything = alone["16 x 16"], seconds["everything, 16 x 16"]
rows = [[part, seconds[part]] for part in parts]
rows += [["everything", everything], ["the kernel alone, by the device's clock", kernel]]
print(f"1024 x 1024, float32, block 16 x 16: {results.taken_on(by_parts)}")
cells = [[part, timing.format_seconds(t), f"{t / everything:.0%}"] for part, t in rows]
show.Table(["part", "time", "share"], cells)

# %% [markdown]
# The parts need not add up to everything: each is timed alone, and `multiply` also frees its arrays.
#
# The last row is what this chapter is about. If you time `multiply` and then change the block, much of what you measure does not change: allocating, copying and freeing. In a program, data stays on the device from one kernel to the next, and is copied once.
#
# A launch only *queues* the kernel, so a timer on the host's clock stops too early unless the code waits. `Timer(device="gpu")` has the device record the times. Without a GPU it refuses, because the emulator's speed says nothing about one:

# %%
launch = matmul.naive[grid_for((n, n), block), block]
if on_gpu():
    launch(*matrices)
    with timing.Timer("host's clock, launch only", unit="us"):
        launch(*matrices)
    cuda.synchronize()
    with timing.Timer("device's clock", unit="us", device="gpu"):
        launch(*matrices)
else:
    try:
        timing.Timer("device's clock", unit="us", device="gpu")
    except timing.EmulatedTimeError as error:
        print(error)

# %% [markdown]
# ### The first launch
#
# Numba compiles a kernel when it is first launched with arguments of these types, and the driver loads it. Benchmarks call this **warm-up**. `timing.bench` and `timing.bench_many` leave it out; here it is. The recorded time is that of the first kernel of a process, which also loads the compiler. A later kernel compiles in a fraction of that time.

# %% jupyter={"source_hidden": true}
first = {}
if on_gpu():
    fresh = cuda.jit(matmul.naive.py_func)  # a kernel that has never run
    for number in range(1, 6):
        with timing.Timer(unit="s", show=False) as timer:
            fresh[grid_for((n, n), block), block](*matrices)
            cuda.synchronize()
        first[f"launch {number}"] = timer.elapsed
else:
    first = results.by_variant(results.load("naive-h200", case="first launches", shape=(n, n, n)))

title, mark = "Launch and wait, 1024 x 1024 float32", results.taken_on(by_parts)
plot.dots({name: 1e3 * t for name, t in first.items()}, "ms", title=title, mark=mark, log=True);

# %% [markdown]
# > **From the source.** The documents time the same product on an RTX 3090, from outside: allocations and copies are included. Their timers have a unit and a message, one for the CPU and one for the GPU, as `timing.Timer` has. The next cell has their two tables beside our times, and the speedups that they report: their author's, and his teacher's.

# %% jupyter={"source_hidden": true}
documents = results.documents("A6")
runs = [{}, {}]
for run, table in zip(runs, documents["tables"], strict=True):
    for row in table["rows"]:
        run[tuple(row["block"]) if row["case"] == "GPU" else row["case"]] = 1e-3 * row["milliseconds"]
on_cpu = measured("cpu", {"three loops, one core": partial(matmul.on_cpu, a, b)}, device="cpu", warmup=0, repeat=2)
ours = {"CPU, three loops": (results.by_variant(on_cpu)["three loops, one core"], None)}
ours |= {"GPU, warm-up": (first["launch 1"], None)}
ours |= {(k, k): (seconds[f"everything, {k} x {k}"], alone[f"{k} x {k}"]) for k in (1, 16, 32)}

rows = []
for key, both in ours.items():
    times = (runs[0].get(key), runs[1].get(key), *both)
    name = key if isinstance(key, str) else "GPU, block {} x {}".format(*key)
    rows.append([name, *("" if time is None else timing.format_seconds(time) for time in times)])
with_copies = {key: both[0] for key, both in ours.items()}
theirs, end_to_end = (run["CPU, three loops"] / run[16, 16] for run in (runs[0], with_copies))
print(f"the documents: {documents['stated_speedup']} x as stated, {theirs:.0f} x by their table, ", end="")
print(f"{documents['teachers_speedup']:,} x for the teacher; {documents['gpu']}")
without = ours["CPU, three loops"][0] / kernel
print(f"ours: {end_to_end:,.0f} x with copies, {without:,.0f} x for the kernel alone; ", end="")
print(f"{results.taken_on(by_parts)}, {on_cpu[0].get('cpu', results.cpu_name())}")
heads = ["documents, first run", "second run", "ours, with copies", "ours, kernel alone"]
show.Table(["1024 x 1024, float32", *heads], rows)

# %% [markdown]
# In their second run the block makes no difference at all, not even a block of a single thread. In ours it makes a big one, even with the copies. So something other than the kernel dominated their times, and without a breakdown nobody can tell what.
#
# ## Which block?
#
# From here on, the kernel alone. A block is written as in a launch, x first: 32 x 8 is 32 threads along a row of the result and 8 down. The work that a kernel does per second is its **throughput**. This work is 2 n³ floating-point operations, n³ multiplications and as many additions; 10¹² of them per second are one TFLOP/s.

# %%
blocks = [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32)]  # square ones
blocks += [(32, 1), (1, 32), (256, 1), (64, 4), (32, 8), (8, 32), (4, 64), (1, 256)]
blocks = {f"{x} x {y}": (x, y) for x, y in blocks}
launches = {}
for name, xy in blocks.items():
    launches[name] = partial(matmul.naive[grid_for((n, n), xy), xy], *matrices)
by_block = measured("block", launches)

rates = {name: 2e-12 * n**3 / seconds for name, seconds in results.by_variant(by_block).items()}
mark = results.taken_on(by_block)
plot.dots(rates, "TFLOP/s, more is better", title="naive, 1024 x 1024", mark=mark);

# %% [markdown]
# There are three groups: the smallest blocks are slow, two tall and narrow ones are slow too, and all others are equally fast. The arithmetic cannot explain it, for it is the same everywhere. Warps can. A warp's 32 threads execute one instruction together, and an instruction that accesses memory does so for all of them in one **request**.
#
# - A block of 1 x 1 is a warp with one active thread and 31 idle lanes. An instruction costs as much as for a full warp.
# - Memory is accessed in **sectors** of 32 bytes, eight float32. If the 32 threads of a request want neighbouring elements, four sectors serve them all: the access is **coalesced**. If each wants an element of another row, it takes 32 sectors, and only four bytes of each are used.
#
# A **trace** counts both, with or without a GPU. It runs the launch in the emulator and reports every access, by line of source:

# %%
a, b = rng.uniform(-1, 1, (2, 128, 128)).astype(np.float32)
out = np.empty_like(a)
gpukit.trace(matmul.naive[(8, 8), (16, 16)], a, b, out)

# %% [markdown]
# `ideal` is the number of sectors that would do if the elements of a request lay side by side: at most four for 32 threads, and fewer where threads share elements, as they do in `a`. The next cell traces each of the blocks. Its last column is the occupancy: how many warps of this launch an SM can hold at a time, out of those it has room for.

# %%
rows = []
for name, block in blocks.items():
    grid = grid_for(out.shape, block)
    trace = gpukit.trace(matmul.naive[grid, block], a, b, out, blocks=min(16, grid[0] * grid[1]))
    load_a, load_b = (access for access in trace.accesses if access.op == "load")
    sectors = [f"{load.sectors / load.requests:.0f}" for load in (load_a, load_b)]
    warps = f"{trace.occupancy.warps} of {trace.occupancy.max_warps}"
    rows.append([name, f"{load_a.active_lanes:.0f}", *sectors, warps])
show.Table(["block", "active lanes", "sectors per request, a", "of b", "warps per SM"], rows)

# %% [markdown]
# Read the table next to the figure.
#
# - In blocks of fewer than 32 threads, lanes are idle. From 1 x 1 to 2 x 2 each request does four times as much, and the throughput is four times as high; the same again to 4 x 4.
# - In 1 x 32 and 1 x 256 all lanes are active, but each load of `a` takes 32 sectors: the threads of a warp are in one column of the result, so each reads another row of `a`.
# - With 32 x 1 only half of the warp slots are filled, because an SM takes a limited number of blocks. While one warp waits for memory, others compute, so this could cost time. Here it does not: half of the warps are enough.
# - All others take between 4 and 9 sectors for their two loads, in about the same time. If the count doubles and the time stays the same, the kernel is waiting for something else. The section on types shows what it is.
#
# ## Which axis does threadIdx.x follow?
#
# The kernel begins with `col, row = cuda.grid(2)`. Swap the two names and the two sizes of the grid, and the result is the same, element for element:

# %%
show.source(matmul.naive_uncoalesced)

# %% [markdown]
# **Predict.** With blocks of 16 x 16, how many sectors does one request take in `naive`, for `a` and for `b`, and how many in `naive_uncoalesced`? Write four numbers: `(2, 8, ...)`.

# %%
my_sectors = None
exercises.check("02-sectors", my_sectors)

# %% [markdown]
# With blocks of 32 x 32 the difference is largest. The figure shows what one request for `a` moves in `naive_uncoalesced`: 32 sectors, for one element in each.

# %%
block = (32, 32)
columns = gpukit.trace(matmul.naive[grid_for(out.shape, block), block], a, b, out)
print(check(out, a, b))
rows_first = gpukit.trace(matmul.naive_uncoalesced[grid_for(out.T.shape, block), block], a, b, out)
print(check(out, a, b))
line = next(access.line for access in rows_first.accesses if access.array == "a")
rows_first.plot_sectors(line=line, array="a");

# %%
columns.compare(rows_first)

# %% [markdown]
# The requests, the arithmetic and the results are the same. The sectors are not: many more for `a` and for the stores, and fewer for `b`, whose elements are now shared. The trace says so itself:

# %%
for advice in rows_first.advice:
    print(f"line {advice.line}: {advice.message}\n  {advice.cure}")

# %% [markdown]
# And what does it cost?

# %%
launches = {}
for k in (16, 32):  # the matrices are square, so both launches have the same grid
    grid = grid_for((n, n), (k, k))
    launches[f"columns, {k} x {k}"] = partial(matmul.naive[grid, (k, k)], *matrices)
    launches[f"rows, {k} x {k}"] = partial(matmul.naive_uncoalesced[grid, (k, k)], *matrices)
axis = measured("axis", launches)

times, rows = results.by_variant(axis), []
for k in (16, 32):
    good, bad = times[f"columns, {k} x {k}"], times[f"rows, {k} x {k}"]
    rows.append([f"{k} x {k}", *map(timing.format_seconds, (good, bad)), f"{bad / good:.1f} x"])
print(f"1024 x 1024: {results.taken_on(axis)}")
show.Table(["block", "naive", "naive_uncoalesced", "slower"], rows)

# %% [markdown]
# The time grows by less than the number of sectors, because the kernel waits for other things as well.
#
# Remember the rule: **neighbours in x should access neighbours in memory.** A NumPy array stores its rows one after the other, so `threadIdx.x` belongs to the last index. The documents' kernel gets it right, without saying that one could get it wrong.
#
# ## What Numba's types do
#
# Python has one kind of float and one kind of int. A device has several, and Numba chooses. Two of its choices slow this kernel down, and neither shows in the results.
#
# **A literal is float64.** `naive_float64` differs from `naive` in one place:

# %%
show.source(matmul.naive_float64)

# %%
block = (16, 16)
double = gpukit.trace(matmul.naive_float64[grid_for(out.shape, block), block], a, b, out)
print(double.advice[0].message)
print(double.advice[0].cure)

# %% [markdown]
# `total = 0.0` makes the sum a float64. Each product is then converted and added in float64, although all arrays are float32. The cost depends on the GPU. One made for data centres has half as many units for float64 as for float32; one made for games, like the documents' RTX 3090, has one for every 64.
#
# Now you. This kernel fades from one picture to another, from left to right. Its arrays are float32, and it computes in float64 in more than one place.


# %%
@cuda.jit
def fade(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        # About 2 lines: the same without float64; np.float32(...) converts
        weight = col / out.shape[1]
        out[row, col] = (1.0 - weight) * a[row, col] + weight * b[row, col]


exercises.check("02-fade", fade)

# %% [markdown]
# **An index is a signed 64-bit integer.** No matrix here has more than a few thousand rows, but Numba computes indices with 64 bits. And because `a[-1]` means the last element in Python, each access also tests whether its index is negative. Neither is visible in the source, so the trace does not count it; the machine code shows it. Unsigned 32-bit indices need none of this:

# %%
show.source(matmul.naive_uint32)

# %% [markdown]
# The next table counts machine instructions (**SASS**) per iteration of the loop, read in the code that was compiled for an H200: two loads, one multiply-add, and everything around them. An SM can issue four instructions per clock, each for a whole warp. The last column is the fraction of these issue slots that the loop uses.

# %%
names = {"float32": ("naive", "naive_float64", "naive_uint32"), "float64": ("naive", "naive_uint32")}
types = {}
for dtype, variants in names.items():
    arrays = [cuda.to_device(np.ones((n, n), dtype)) for _ in range(3)]
    grid = grid_for((n, n), block)
    launches = {name: partial(matmul.VARIANTS[name][grid, block], *arrays) for name in variants}
    types[dtype] = measured("types", launches, dtype)

# %% jupyter={"source_hidden": true}
gpu = device.info()  # without a GPU that of the emulator, which stands in for an H200
slots = 4 * gpu.sm_count * gpu.core_clock  # instructions of warps per second
rows = []
for dtype, timed in types.items():
    code = results.load("naive-h200", case="instructions", shape=(n, n, n), dtype=dtype)
    counts = results.by_variant(code)
    for name, time in results.by_variant(timed).items():
        used = counts[name] * n**3 / 32 / slots / time
        rows.append([name, dtype, f"{counts[name]:.2f}", timing.format_seconds(time), f"{used:.0%}"])
print(f"1024 x 1024, block 16 x 16: {results.taken_on(types['float32'])}")
show.Table(["kernel", "matrices", "instructions per step", "time", "issue slots used"], rows)

# %% [markdown]
# So this is what the kernel was waiting for when the number of sectors did not matter: its own index arithmetic. Only three of the instructions of a step are the ones that we wrote. Without most of the others, the same loop takes a fraction of the time. The float64 sum adds about two instructions to the many, which costs little on this GPU.
#
# Without that burden, does the block matter?

# %%
launches = {}
for name, xy in blocks.items():
    launches[name] = partial(matmul.naive_uint32[grid_for((n, n), xy), xy], *matrices)
lean = measured("block, uint32", launches)
large = results.load("naive-h200", case="block, uint32", shape=(4096,) * 3)

rates = {name: {"n = 1024": 2e-12 * n**3 / time} for name, time in results.by_variant(lean).items()}
for name, time in results.by_variant(large).items():
    rates[name][f"n = 4096, {large[0]['gpu']}"] = 2e-12 * 4096**3 / time
plot.dots(rates, "TFLOP/s, more is better", title="naive_uint32", mark=results.taken_on(lean));

# %% [markdown]
# Now it does. The index arithmetic had hidden three effects:
#
# - A warp that covers four or eight rows of `a` falls behind: 8 x 8, 8 x 32, 4 x 64. Besides sectors, a request costs **cache lines** of 128 bytes, which the L1 cache looks up one after the other, and each row of `a` is in another line.
# - 32 x 1, with half of the occupancy, falls behind 32 x 8, most of all for the large matrices, where more loads miss the cache and take longer.
# - 32 x 32 has the most threads that a block may have, and is not the best either.
#
# A larger block is not always better: that is what the documents found, with a kernel in C++, which computes its indices in 32 bits as a matter of course. With Numba's defaults the same measurement shows three groups and hides the rest.
#
# So write `np.float32(0)` or a zero of the array's type, and `np.float32(0.5)` for a half. Look at the arithmetic table of a trace for every kernel you write: float64 in a float32 kernel is a warning sign. Where the innermost loop does little besides finding its operands, index with unsigned 32-bit integers. The kernels of the next chapters read most operands from shared memory, in loops whose length the compiler knows; it then finds the addresses itself.
#
# ## Fast, and wrong
#
# This grid should have two dimensions, and has one:

# %%
a, b = (cuda.to_device(rng.uniform(-1, 1, (n, n)).astype(np.float32)) for _ in range(2))
out = cuda.to_device(np.full((n, n), np.nan, np.float32))
block = (32, 32)
grid = n // 32  # planted: should be (n // 32, n // 32)

with errors.checked():  # raises whatever the launch reports
    matmul.naive[grid, block](a, b, out)
print(check(out.copy_to_host(), a.copy_to_host(), b.copy_to_host()))

# %% [markdown]
# No error: 32 x 1 blocks are a legal grid. No limit is broken, no access is out of bounds, and the program goes on with a result in which only the first row of blocks is right.
#
# Two things could have warned us. One is the time:

# %%
short = measured("incomplete", {"1-D grid, 32 x 32": partial(matmul.naive[grid, block], *matrices)})
fast, full = results.by_variant(short)["1-D grid, 32 x 32"], results.by_variant(by_block)["32 x 32"]
times = " and ".join(map(timing.format_seconds, (fast, full)))
print(f"the wrong and the right launch take {times}: {results.taken_on(short)}")
print(f"if the wrong one had done all the work: {2e-12 * n**3 / fast:.1f} TFLOP/s")

case = results.documents("A7")["tables"][0]["rows"][1]
print(f"the documents' took {case['milliseconds']} ms, its first wrong element is {case['first_wrong']:,}")

# %% [markdown]
# Suspiciously fast means incomplete, until proven otherwise. The other warning comes from the trace, which knows which elements of each array a launch has read and written:

# %%
trace = gpukit.trace(matmul.naive[grid, block], a, b, out)
print(*(advice.message for advice in trace.advice), sep="\n")
rows = [[c.array, c.elements, c.read, c.written] for c in trace.coverage]
show.Table(["array", "elements", "read", "written"], rows)

# %% [markdown]
# The mistake showed at once because `out` was full of NaN before the launch. Zeros would have passed for a result in many programs, and memory that still holds the right result of the last launch passes every check. So:
#
# - before the launch that you test, fill the result with something that cannot be right;
# - compare every element with a reference that was computed in another way;
# - take shapes that are not square, and not multiples of the block;
# - never believe a speed before the result.
#
# Launches that do raise something are the subject of [02b](02b_errors.ipynb).
#
# ## Exercise: the product as BLAS defines it
#
# BLAS is the interface that linear algebra libraries share. Its product is `out = alpha * (a @ b) + beta * out` with two numbers, `alpha` and `beta`. Two rules: nothing in the loop is float64, although Python's numbers are; and if `beta` is exactly 0, `out` is not read, because it may hold anything.


# %%
@cuda.jit
def gemm(alpha, a, b, beta, out):
    # About 9 lines: out = alpha * (a @ b) + beta * out, in float32; if beta is 0, out is not
    # read
    ...


exercises.check("02-gemm", gemm)

# %% [markdown]
# ## Key points
#
# - One thread per element of the result, a grid rounded up, a guard. Each thread reads a row and a column, 2 K values for the one that it writes. The next chapter is about reading less.
# - The time that a caller waits is not the kernel's. Allocation, copies and the warm-up are costs of their own; measure them apart, and keep data on the device.
# - Fill the warps: blocks of whole multiples of 32 threads. Beyond that the shape of a block decides more than its size; 16 x 16 or 32 x 8 is a good start in two dimensions.
# - Neighbours in x should access neighbours in memory: `col, row = cuda.grid(2)` for arrays stored by rows.
# - A literal such as `0.0` is float64, an index is a signed int64. The first shows in a trace, both show in the machine code. A kernel may spend most of its time on indices.
# - If a cost changes and the time does not, the kernel is waiting for something else: find it.
# - No error is not a result. Poison the output, compare all of it, and mistrust what is fast.
#
# **Back:** [01 Threads and blocks](01_threads_and_blocks.ipynb). **Next:** [02b When a launch fails](02b_errors.ipynb), or straight to [03 Shared memory](03_shared_memory.ipynb).
