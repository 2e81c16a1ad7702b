# %% [markdown]
# # 02 A matrix product
#
# The first kernel that is worth a GPU: every element of a matrix product is a sum of its own, and no two depend on each other. It is also the first one whose speed hangs on things that its results do not show.
#
# **After this chapter you will be able to**
#
# - write a kernel that computes one element of a matrix product per thread, and launch it over matrices of any shape;
# - split the time that a caller waits into compiling, copying and computing, and measure each alone;
# - predict how many memory sectors one instruction of a warp touches, for any block and either assignment of the axes, and check the prediction with a trace;
# - find arithmetic in float64 and indices of 64 bits that you did not ask for, and get rid of them;
# - make a failing launch say which limit it broke, and tell an error at the launch from one that comes up later and from one that ends the process;
# - recognise a launch that raises nothing, is fast, and is wrong.
#
# **You need** [01 Threads and blocks](01_threads_and_blocks.ipynb). No GPU: timings are then those that were recorded on one, and say so.
#
# **Time:** 60 minutes.

# %%
import re
import warnings
from functools import partial
from math import ceil

import numpy as np
from matplotlib.patches import Rectangle

import gpukit
from gpukit import cuda, device, errors, matmul, on_gpu, plot, results, show, timing
from gpukit.emulator import KernelError
from gpukit.emulator import cuda as emulated
from gpukit.results import by_variant, taken_on

# Numba warns of grids that are too small for a GPU: here they are small on purpose.
warnings.filterwarnings("ignore", ".*Grid size")
print("kernels run on:", device.info().name)

# %% [markdown]
# ## What is to be computed
#
# The product of a matrix `a` with M rows and K columns and a matrix `b` with K rows and N columns has M rows and N columns. Each of its elements is the sum of K products: along a row of `a` and down a column of `b`.

# %%
M, K, N = 5, 8, 7
row, col = 3, 4

with plot.figure(size=(7.0, 2.6), columns=3, width_ratios=(K, N, N), mark="a drawing") as axes:
    for ax, name, (height, width) in zip(axes, ("a", "b", "out"), ((M, K), (K, N), (M, N)), strict=True):
        for r in range(height):
            for c in range(width):
                used = {"a": r == row, "b": c == col, "out": (r, c) == (row, col)}[name]
                face = plot.PALETTE[{"a": 0, "b": 1, "out": 2}[name]] if used else "#EFEFEF"
                ax.add_patch(Rectangle((c, r), 1, 1, facecolor=face, edgecolor="white"))
        ax.set(xlim=(0, K), ylim=(K, 0), aspect="equal", title=f"{name}, {height} rows, {width} columns")
        ax.axis("off")

# %% [markdown]
# NumPy writes it as `a @ b`, and that is the specification by which everything below is checked. On the host the documents write it as three loops. So does this function; it is compiled for one core of the CPU, or it would take minutes.

# %%
show.source(matmul.on_cpu)

# %%
random = np.random.default_rng(2)
a, b = (random.uniform(-1, 1, (512, 512)).astype(np.float32) for _ in range(2))
matmul.on_cpu(a, b)  # compiles

for name, product in (("three loops", lambda: matmul.on_cpu(a, b)), ("NumPy", lambda: a @ b)):
    print(timing.bench(product, name=f"{name}, 512 x 512, on this machine's CPU", device="cpu", repeat=5))

# %% [markdown]
# ## One thread per element
#
# On the GPU the two outer loops disappear: there is one thread for each element of the result, and it runs the inner loop. As in chapter 01, `cuda.grid(2)` gives a thread's column and row, and a guard sends the threads home that lie outside of the matrix.

# %%
show.source(matmul.naive)

# %% [markdown]
# The sum starts as `out.dtype.type(0)`, a zero of the type of the result, and not as `0.0`. Why that matters is a section of its own below.
#
# ## The launch, with its copies
#
# The matrices are in the memory of the host, and the kernel needs them in that of the device. Everything that a caller pays for is one line here:


# %%
def grid_for(shape, block):
    return ceil(shape[1] / block[0]), ceil(shape[0] / block[1])  # as many columns, as many rows, rounded up


def multiply(a, b, block=(16, 16)):
    a_device = cuda.to_device(a)  # allocate, and copy in
    b_device = cuda.to_device(b)
    out_device = cuda.device_array((a.shape[0], b.shape[1]), a.dtype)  # allocate only: nothing has to be copied
    matmul.naive[grid_for(out_device.shape, block), block](a_device, b_device, out_device)
    return out_device.copy_to_host()  # waits for the kernel, then copies out


# %% [markdown]
# To free device memory there is no line: it goes when the last name for it goes. Now a test, with a shape that is no multiple of the block in any direction. How near must a float32 result be to the exact one? Each of the K additions rounds once; a sum of K terms is off by less than K roundings of what the terms are worth without their signs.


# %%
def check(product, a, b):
    exact = a.astype(np.float64) @ b.astype(np.float64)
    worth = abs(a).astype(np.float64) @ abs(b).astype(np.float64)
    wrong = ~(abs(product - exact) <= a.shape[1] * np.finfo(a.dtype).eps * worth)  # ~(<=) is true for NaN, > is not
    if not wrong.any():
        return "right in every element"
    first = np.flatnonzero(wrong)[0]
    return f"{np.count_nonzero(wrong):,} of {wrong.size:,} elements wrong, the first is number {first:,}"


a = random.uniform(-1, 1, (53, 29)).astype(np.float32)
b = random.uniform(-1, 1, (29, 37)).astype(np.float32)
print(check(multiply(a, b), a, b))

# %% [markdown]
# `matmul.matmul(a, b)` in gpukit does the same for arrays on either side, with all the kernels of this chapter and the next three, and refuses what cannot be right:

# %%
try:
    matmul.matmul(a, a, "naive")
except ValueError as error:
    print(error)

# %% [markdown]
# ## What takes how long
#
# The documents time 1024 x 1024 matrices from outside: around a function like `multiply`. That number contains allocation, two copies in, the launch, the kernel and a copy out. The next cell takes them apart: each part is a function of its own, and waits until the device is done.

# %%
n, block = 1024, (16, 16)
a, b = (random.uniform(-1, 1, (n, n)).astype(np.float32) for _ in range(2))
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
# Timings in this chapter are measured here if there is a GPU, and otherwise read from a record; each table and figure says which. `timing.bench_many` calls each function until its distribution is known, the functions in turns. On a GPU it takes the device's clock and empties the L2 cache before each repetition; with `device="cpu"` it takes the host's.


# %%
def measured(case, functions, dtype="float32", **options):
    if on_gpu():
        return results.of_timings("matmul", case, (n, n, n), dtype, timing.bench_many(functions, **options))
    return results.load("naive-h200", case=case, shape=(n, n, n), dtype=dtype)


parts = {"allocate": allocate, "copy in": copy_in, "launch and kernel": launch_and_wait}
parts["copy out"] = matrices[2].copy_to_host
whole = {f"everything, {k} x {k}": partial(multiply, a, b, (k, k)) for k in (1, 16, 32)}
by_parts = measured("end to end", parts | whole, device="cpu", repeat=10)

blocks = [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32)]  # square ones
blocks += [(32, 1), (1, 32), (256, 1), (64, 4), (32, 8), (8, 32), (4, 64), (1, 256)]
blocks = {f"{x} x {y}": (x, y) for x, y in blocks}
launches = {name: partial(matmul.naive[grid_for((n, n), block), block], *matrices) for name, block in blocks.items()}
by_block = measured("block", launches)

seconds, alone = by_variant(by_parts), by_variant(by_block)
everything = seconds["everything, 16 x 16"]
rows = [[part, seconds[part]] for part in parts]
rows += [["everything", everything], ["the kernel alone, on the device's clock", alone["16 x 16"]]]
print(f"1024 x 1024, float32, block 16 x 16: {taken_on(by_parts)}")
show.Table(["part", "time", "share"], [[part, timing.format_seconds(t), f"{t / everything:.0%}"] for part, t in rows])

# %% [markdown]
# The last row is what this chapter is about; everything else is paid around it. Whoever times from outside and then changes the block measures allocation and copies again and again, and sees the kernel through them as through a fog. Data that stays on the device from one kernel to the next pays for its copy once.
#
# One more cost comes once. Numba compiles a kernel when it is first launched with arguments of these types, and the driver loads it. The documents call it warm-up.

# %%
fresh, first = cuda.jit(matmul.naive.py_func), {}  # a kernel that has never run
if on_gpu():
    for number in range(1, 6):
        with timing.Timer(unit="s", show=False) as timer:
            fresh[grid_for((n, n), (16, 16)), (16, 16)](*matrices)
            cuda.synchronize()
        first[f"launch {number}"] = timer.elapsed
else:
    first = by_variant(results.load("naive-h200", case="first launches", shape=(n, n, n)))

with plot.figure("Launch and wait, 1024 x 1024 float32", size=(6.0, 2.4), mark=taken_on(by_parts)) as ax:
    bars = ax.barh(list(first), [1e3 * t for t in first.values()])
    ax.bar_label(bars, [timing.format_seconds(t) for t in first.values()], padding=3)
    ax.set(xscale="log", xlabel="ms, logarithmic", xlim=(None, 8e3 * max(first.values())))
    ax.invert_yaxis()

# %% [markdown]
# A benchmark that includes the first launch measures the compiler. `timing.bench` and `timing.bench_many` leave it out.
#
# Here are the documents' two tables beside ours. Theirs are end to end; ours are given both ways. Mind that CPU and GPU are different ones.

# %%
documents = results.documents("A6")
first_run, second_run = (
    {tuple(row["block"]) if row["case"] == "GPU" else (row["case"],): row["milliseconds"] * 1e-3 for row in table["rows"]}
    for table in documents["tables"]
)
loops = {"three loops, one core": partial(matmul.on_cpu, a, b)}
on_cpu = measured("cpu", loops, device="cpu", warmup=0, repeat=2)
cpu = on_cpu[0].get("cpu", results.cpu_name())
ours = {("CPU, three loops",): (by_variant(on_cpu)["three loops, one core"], None)}
ours |= {("GPU, warm-up",): (first["launch 1"], None)}
ours |= {(k, k): (seconds[f"everything, {k} x {k}"], alone[f"{k} x {k}"]) for k in (1, 16, 32)}

rows = []
for key, both in ours.items():
    name = key[0] if len(key) == 1 else f"GPU, block {key[0]} x {key[1]}"
    times = first_run.get(key), second_run.get(key), *both
    rows.append([name, *("" if time is None else timing.format_seconds(time) for time in times)])
print(f"the documents: {documents['gpu']}; ours: {taken_on(by_parts)}, {cpu}")
show.Table(["1024 x 1024, float32", "documents", "second run", "ours, end to end", "ours, kernel alone"], rows)

# %% [markdown]
# In the documents' second run the block makes no difference at all, not even a block of a single thread. In ours it makes a great one, even end to end. Whatever that program timed, it was not the kernel with this block. What it was, the figures cannot tell, for they have no parts.
#
# ## Which block?
#
# The next figure times the kernel alone, for square blocks from 1 x 1 to 32 x 32, in blue, and for some that are not square. A block is written as in a launch, x first: 32 x 8 is 32 threads along a row of the result, 8 down.

# %%
large = results.load("naive-h200", case="block", shape=(4096,) * 3)
both = f"1024: {taken_on(by_block)}; 4096: {taken_on(large)}"
with plot.figure(size=(8, 4.4), columns=2, sharey=True, mark=both) as axes:
    for ax, records in zip(axes, (by_block, large), strict=True):
        size, times = records[0]["shape"][0], by_variant(records)
        rates = [2e-12 * size**3 / times[name] for name in blocks]
        square = [plot.PALETTE[0 if x == y else 1] for x, y in blocks.values()]
        ax.bar_label(ax.barh(list(blocks), rates, color=square), fmt="%.2g", padding=3)
        ax.set(xlabel="TFLOP/s, more is better", title=f"{size} x {size}, float32", xlim=(0, 1.15 * max(rates)))
    axes[0].invert_yaxis()

library = results.load("naive-h200", case="library", shape=(4096,) * 3)[0]
rate = 2e-12 * 4096**3 / library["value"]
print(f"for scale: {library['variant']} at 4096 reaches {rate:.1f} TFLOP/s on the {library['gpu']}, recorded")

# %% [markdown]
# Three groups: the smallest blocks are slow, two tall and narrow ones are slow too, and all others are the same. The arithmetic does not explain it, since it is the same for all. **Warps** do: 32 threads with consecutive indices in a block run one instruction together, and an instruction that reads memory does so for all 32 in one **request**.
#
# - A block of 1 x 1 is a warp of one thread and 31 empty places. The instruction costs the same.
# - Memory is read in **sectors** of 32 bytes, eight float32. If the 32 threads of a request want neighbouring elements, four sectors serve them all; if each wants an element from another row, it takes 32 sectors, of which four bytes each are used.
#
# Both can be counted, without a GPU. The trace runs some blocks of the launch and counts what every instruction of every warp touches.

# %%
a, b = (random.uniform(-1, 1, (128, 128)).astype(np.float32) for _ in range(2))
out = np.empty_like(a)
rows = []
for name, block in blocks.items():
    grid = grid_for(out.shape, block)
    trace = gpukit.trace(matmul.naive[grid, block], a, b, out, blocks=min(16, grid[0] * grid[1]))
    loads = {access.array: access for access in trace.accesses if access.op == "load"}
    per_product = sum(load.requests for load in loads.values()) / 2 / out.size / a.shape[1]
    sectors = [f"{loads[array].sectors / loads[array].requests:.0f}" for array in ("a", "b")]
    warps = f"{trace.occupancy.warps} of {trace.occupancy.max_warps}"
    rows.append([name, f"{1 / per_product:.0f}", *sectors, warps])
show.Table(["block", "lanes per request", "sectors per request, a", "of b", "warps that fit on an SM"], rows)

# %% [markdown]
# Read the table beside the figure.
#
# - Below 32 threads in a block, warps have empty places. From 1 x 1 to 2 x 2 each request does four times as much, and the time falls to a quarter; the same again to 4 x 4.
# - In 1 x 32 and 1 x 256, warps are full, but each load of `a` takes 32 sectors: all threads of a warp are in one column of the result, so each of them reads another row of `a`.
# - 32 x 1 is full and frugal, but an SM takes only so many blocks at a time, and with one warp in each that leaves half of its places empty. While one warp waits for memory, others compute, so this could cost time. Here it does not: half of the warps are enough.
# - All others take between 4 and 9 sectors for their two loads, and about the same time. When the count doubles and the time stays, the kernel is waiting for something else. For what, the section on types will show.
#
# The documents conclude that a larger block is not always better. So far it is at least no help: from one full warp on, the size of a block decides little, and its shape may decide much.
#
# **Check yourself.** In a block of 64 x 4, which elements of `a` does one warp read at a step of the loop, and which of `b`? How many sectors is that? And in a block of 4 x 64? The table has the answers.

# %% [markdown]
# ## Which axis does threadIdx.x walk?
#
# The kernel begins with `col, row = cuda.grid(2)`. Exchange the two names, exchange the grid, and the result is the same, element for element:

# %%
show.source(matmul.naive_uncoalesced)

# %% [markdown]
# Predict, for a block of 32 x 32: which thread of a warp now reads which element of `a`? Then look. Each figure shows the footprint of one request on the sectors of memory.

# %%
block = (32, 32)
columns = gpukit.trace(matmul.naive[grid_for(out.shape, block), block], a, b, out)
print(check(out, a, b))
rows_first = gpukit.trace(matmul.naive_uncoalesced[grid_for(out.T.shape, block), block], a, b, out)
print(check(out, a, b))

line = next(access.line for access in columns.accesses if access.array == "b")
columns.plot_sectors(line=line, array="b")
line = next(access.line for access in rows_first.accesses if access.array == "a")
rows_first.plot_sectors(line=line, array="a");
# %% [markdown]
# The whole of both, side by side:

# %%
columns.compare(rows_first)

# %% [markdown]
# The same loads, the same arithmetic, the same results; but the sectors differ by far, and the stores are as bad. The trace says so itself:

# %%
for advice in rows_first.advice:
    print(f"line {advice.line}: {advice.message}\n  {advice.cure}")

# %% [markdown]
# And what does it cost? In the table "x along columns" is `naive`, whose neighbours in x take neighbouring columns of the result, and "x along rows" is `naive_uncoalesced`.

# %%
launches = {}
for block in ((16, 16), (32, 32)):  # the matrices are square, and so both launches have the same grid
    launch = grid_for((n, n), block), block
    launches["columns, {} x {}".format(*block)] = partial(matmul.naive[launch], *matrices)
    launches["rows, {} x {}".format(*block)] = partial(matmul.naive_uncoalesced[launch], *matrices)
axis = measured("axis", launches)
large = results.load("naive-h200", case="axis", shape=(4096,) * 3)
rows = []
for shape in ("16 x 16", "32 x 32"):
    for records in (axis, large):
        times = by_variant(records)
        good, bad = times[f"columns, {shape}"], times[f"rows, {shape}"]
        texts = timing.format_seconds(good), timing.format_seconds(bad), f"{bad / good:.1f} x"
        rows.append([shape, str(records[0]["shape"][0]), *texts])
print(f"1024: {taken_on(axis)}; 4096: {taken_on(large)}")
show.Table(["block", "n", "x along columns", "x along rows", "slower"], rows)

# %% [markdown]
# The time grows by less than the number of sectors: a kernel waits for more than one thing, as the section on types will show.
#
# Keep this rule: **neighbours in x should want neighbours in memory.** A NumPy array stores rows one after the other, so the last index should walk with `threadIdx.x`. Access like this is called coalesced. The documents' kernel has it right, and the documents do not say that it could be wrong.

# %% [markdown]
# ## What Numba's types do
#
# Python has one kind of float and one kind of int. On the device there are several, and Numba chooses. Two of its choices slow this kernel, and neither shows in the results.
#
# **A literal is float64.** This kernel differs from `naive` in one place:

# %%
show.source(matmul.naive_float64)

# %%
block = (16, 16)
single = gpukit.trace(matmul.naive[grid_for(out.shape, block), block], a, b, out)
double = gpukit.trace(matmul.naive_float64[grid_for(out.shape, block), block], a, b, out)
print(double.advice[0].message)
print(double.advice[0].cure)
single.compare(double)

# %% [markdown]
# `total = 0.0` makes the sum a float64. Each product is then converted and added in float64, although everything that is read and written is float32. What that costs depends on the GPU: one made for data centres has half as many units for float64 as for float32; one made for games, like the documents' RTX 3090, has one for every 64.
#
# **An index is a signed 64-bit integer.** The matrix has at most a few thousand rows, but Numba computes with 64 bits, and because Python lets `a[-1]` mean the last element, it also makes the machine ask at each access whether the index is negative. Neither is in the source, so the trace does not count it; the compiler's output shows it. Unsigned indices of 32 bits need none of this:

# %%
show.source(matmul.naive_uint32)

# %% [markdown]
# The next table has the machine instructions for one turn of the loop, which are two loads, one multiply-add and everything around them, and the time. An SM can begin four instructions per clock, each for a whole warp; the last column says how many of these places the loop has used.

# %%
block = (16, 16)
types, instructions = {}, {}
for dtype, names in (("float32", ("naive", "naive_float64", "naive_uint32")), ("float64", ("naive", "naive_uint32"))):
    arrays = [cuda.to_device(np.ones((n, n), dtype)) for _ in range(3)]
    launches = {name: partial(getattr(matmul, name)[grid_for((n, n), block), block], *arrays) for name in names}
    types[dtype] = measured("types", launches, dtype)
    # Read in the machine code that was compiled for an H200, with nvdisasm.
    instructions[dtype] = by_variant(results.load("naive-h200", case="instructions", shape=(n, n, n), dtype=dtype))

gpu = device.info()  # without a GPU that of the emulator, which stands in for an H200
places = 4 * gpu.sm_count * gpu.core_clock  # instructions of warps per second
rows = []
for dtype, records in types.items():
    for name, time in by_variant(records).items():
        count = instructions[dtype][name]
        used = count * n**3 / 32 / places / time
        rows.append([name, dtype, f"{count:.2f}", timing.format_seconds(time), f"{used:.0%}"])
print(f"1024 x 1024, block 16 x 16: {taken_on(types['float32'])}")
show.Table(["kernel", "matrices", "instructions per step", "time", "of the places"], rows)

# %% [markdown]
# Here is what the kernel was waiting for when the number of sectors did not matter: for its own index arithmetic. Of all the instructions of a step only three are those that we wrote down, and without most of the others the same loop takes a fraction of the time. The float64 sum adds about two instructions to many, and costs little on this GPU.
#
# With the burden gone, what do the blocks say now? The next table counts in clocks of an SM, for one step of one warp. A step has two queues to pass. Instructions begin at four per clock. And memory is looked up by **lines** of 128 bytes, one per clock: a load whose threads want elements from four rows of `a` takes four clocks, however little it fetches from each.

# %%
launches = {name: partial(matmul.naive_uint32[grid_for((n, n), xy), xy], *matrices) for name, xy in blocks.items()}
lean = measured("block, uint32", launches)
large = results.load("naive-h200", case="block, uint32", shape=(4096,) * 3)
per_clock = gpu.core_clock * gpu.sm_count * 32


def clocks(records, name):
    return f"{by_variant(records)[name] * per_clock / records[0]['shape'][0] ** 3:.1f}"


rows = []
for name, (x, y) in blocks.items():
    if x * y >= 32:
        lines = len({thread // x for thread in range(32)}) + 1  # rows of a, and a piece of one row of b
        rows.append([name, str(lines), *(clocks(records, name) for records in (by_block, lean, large))])
print(f"clocks per step; n = 1024: {taken_on(lean)}; n = 4096: {taken_on(large)}")
for name, count in instructions["float32"].items():
    print(f"{name}: {count:.2f} instructions begin in {count / 4:.1f} clocks")
show.Table(["block", "lines", "naive, n = 1024", "naive_uint32, n = 1024", "naive_uint32, n = 4096"], rows)

# %% [markdown]
# A step takes at least as long as the longer queue, and not very much longer. For `naive` that is the instructions, until a block wants more lines than they take clocks. For `naive_uint32` it is the lines: read down the second and the fourth column. On the H200 two more things come out now that nothing hides them. 32 x 1, with half of the warps, falls behind 32 x 8, most of all for the large matrices, where more loads miss the cache and take longer. And 32 x 32, the largest block there can be, is behind 32 x 8 as well.
#
# So that is the documents' result: a larger block is not always better. A kernel in C++ computes its indices in 32 bits as a matter of course; with Numba's defaults the same measurement shows three groups and hides the rest.
#
# So write `np.float32(0)` or a zero of the array's type, `np.float32(0.5)` for a half, and read a trace's arithmetic table once for every kernel: a column for FP64 in a float32 kernel is a finding. Where the innermost loop does little beside finding its operands, as here, count in unsigned 32-bit integers. The kernels of the next chapters read most of their operands from shared memory, in loops whose length the compiler knows; it then finds the addresses itself.

# %% [markdown]
# ## When a launch fails
#
# The documents' first case: someone wants larger blocks and asks for 64 x 64 threads. A block may have 1024. In CUDA C++ the launch does nothing and says nothing unless it is asked; the documents' program went on, took its time and printed:

# %%
case_1, case_2 = results.documents("A7")["tables"][0]["rows"]
print(f"{case_1['milliseconds']} ms; an element that should be {case_1['expected']} is {case_1['found']}")

# %% [markdown]
# Python raises an exception. But which? On a GPU it is one of the driver's, and it names no limit. This is what an H200 said to the same launch:


# %%
WHEN = {"launch": "at the launch", "synchronize": "at the next synchronisation", "checked": "in errors.checked()"}


def said(mistake, checked=False):
    [told] = results.load("errors-h200", backend="gpu", mistake=mistake, checked=checked)
    message = told["message"].replace("\n", "\n  ")
    return f"{mistake}, {WHEN[told['stage']]}:\n  {told['error']}: {message}\n  afterwards: {told['afterwards']}"


print(said("block_too_large"))

# %% [markdown]
# `errors.checked()` translates. It watches the launches inside of its block, waits for them at the end, and raises `LaunchError` or `KernelError`, on a GPU and on the emulator alike, with the limit, the value, and the line of the launch:

# %%
a, b = (cuda.to_device(random.uniform(-1, 1, (1024, 1024)).astype(np.float32)) for _ in range(2))
out = cuda.to_device(np.full((1024, 1024), np.nan, np.float32))

try:
    with errors.checked():
        matmul.naive[(16, 16), (64, 64)](a, b, out)
except errors.LaunchError as error:
    print(error)
print("elements of the result that were written:", np.count_nonzero(~np.isnan(out.copy_to_host())))

# %% [markdown]
# `errors.check_launch` asks beforehand, without launching. It knows the limits of the device, and of the kernel what is known: dynamic shared memory, launch bounds, and for a kernel that is compiled already its static shared memory and, on a GPU, its registers.

# %%
for grid, block, shared_bytes in (((16, 16), (64, 64), 0), ((1, 70_000), 32, 0), (0, 256, 0), (1, 256, 10**6)):
    try:
        errors.check_launch(matmul.naive, grid, block, shared_bytes)
    except errors.LaunchError as error:
        print(error, end="\n\n")

# %% [markdown]
# ### At once, later, for good
#
# A launch only puts a kernel into a queue; the host goes on. So there are three kinds of errors on a GPU:
#
# 1. **At the launch.** The driver refuses: a limit is broken. Nothing ran, everything else still works.
# 2. **Later.** The kernel runs and goes wrong. The host learns of it in the next call that waits: a synchronisation, a copy, perhaps a call that has nothing to do with it.
# 3. **For good.** What goes wrong inside of a kernel, an access to memory that is not there for example, costs the process its context. The error is **sticky**: every call from then on fails, also those that are right, and only a new process helps. In a notebook, restart the kernel.
#
# In C++ a program is told nothing unless it asks: `cudaPeekAtLastError` gives the last error and leaves it, `cudaGetLastError` clears it as well, but not a sticky one. The documents wrap both in macros that print file and line. Numba has neither; each call raises what the driver answers to it.
#
# Here are two mistakes, made on purpose, as an H200 reported them: when, in which words, and what came of an innocent launch in the same process afterwards. The first is refused at once, the second comes up later and is for good.

# %%
for name in ("too_much_shared_memory", "far_out_of_bounds"):
    print(said(name), end="\n\n")

# %% [markdown]
# Inside of `errors.checked()` the GPU's second answer becomes this:

# %%
print(said("far_out_of_bounds", checked=True))

# %% [markdown]
# And here is the kernel, in the emulator. (On a GPU it would cost this notebook its context.)


# %%
@emulated.jit
def add_one_far_away(array):
    array[cuda.grid(1) + (1 << 40)] += 1


try:
    add_one_far_away[1, 32](np.zeros(32, np.float32))
except KernelError as error:
    print(error)

# %% [markdown]
# A GPU can name the launch, at best. The emulator stops at the statement, and the process goes on. That is why `KernelError` says to run the launch again as `gpukit.trace(kernel[grid, block], ...)`: the trace runs in the emulator on any machine and finds line, block and thread.
#
# All of them in one table. "Raw" is what the GPU says without help, less the words CUDA_ERROR, and "afterwards" is the innocent launch.


# %%
def in_short(told):
    if told["stage"] == "no end":
        return "never returns"
    code = re.search(r"CUDA_ERROR_(\w+)", told["message"])
    return code[1] if code and not told["checked"] else told["error"] or "nothing"


told = {(r["mistake"], r["backend"], r["checked"]): r for r in results.load("errors-h200")}
rows = []
for name in dict.fromkeys(mistake for mistake, _, _ in told):
    raw, checked, emulator = told[name, "gpu", False], told[name, "gpu", True], told[name, "emulator", True]
    when = {"launch": "at once", "synchronize": "later"}.get(raw["stage"], "")
    after = {"works": "works", "": ""}.get(raw["afterwards"], "fails")
    rows.append([name, in_short(raw), when, after, in_short(checked), in_short(emulator)])
show.Table(["mistake", "H200, raw", "when", "afterwards", "H200, checked", "emulator"], rows)

# %% [markdown]
# Three rows deserve a second look. An access a little past the end of an array is no error for a GPU: the memory belongs to somebody, and it is overwritten. `compute-sanitizer`, NVIDIA's tool, finds some of these on a GPU, a trace all of them anywhere. Nothing stops an endless loop on a GPU; the emulator notices that nothing changes any more. And the emulator has no compiler, so it does not know how many registers a kernel needs: only a GPU can refuse that launch.

# %% [markdown]
# ## Fast, and wrong
#
# The documents' second case is worse. The grid should have two dimensions, and someone writes one:

# %%
block = (32, 32)
grid = 1024 // 32  # planted: should be (1024 // 32, 1024 // 32)
out = cuda.to_device(np.full((1024, 1024), np.nan, np.float32))

with errors.checked():
    matmul.naive[grid, block](a, b, out)
print(check(out.copy_to_host(), a.copy_to_host(), b.copy_to_host()))

# %% [markdown]
# No error: a grid of 32 x 1 blocks is a legal grid. All limits hold, no access is out of bounds, and the host program goes on with a result of which one row of blocks is right. The documents found their first wrong element at the same place:

# %%
print("first wrong element:", f"{case_2['first_wrong']:,}")

# %% [markdown]
# Two things could have warned us. One is the time:

# %%
short = measured("incomplete", {"1-D grid, 32 x 32": partial(matmul.naive[grid, block], *matrices)})
fast, full = by_variant(short)["1-D grid, 32 x 32"], alone["32 x 32"]
flops = 2 * 1024**3 / fast
print(f"the wrong launch {timing.format_seconds(fast)}, the right one {timing.format_seconds(full)}: {taken_on(short)}")
print(f"counted for the whole product the wrong one would make {flops / 1e12:.1f} TFLOP/s")

# %% [markdown]
# Suspiciously fast means incomplete, until the opposite is shown. The other is the trace: it knows which elements of each array a launch has read and written.

# %%
trace = gpukit.trace(matmul.naive[grid, block], a, b, out)
rows = [[c.array, f"{c.elements:,}", f"{c.read:,}", f"{c.written:,}"] for c in trace.coverage]
print(*(advice.message for advice in trace.advice), sep="\n")
show.Table(["array", "elements", "read", "written"], rows)

# %% [markdown]
# What made the mistake visible at once was the NaN in `out` before the launch. An array of zeros would have passed for a result in many programs, and memory that still holds the right result of the launch before passes every check. So:
#
# - fill the result with something that cannot be right before the launch that you test;
# - compare with a reference that was computed otherwise, in every element;
# - take shapes that are not square and no multiple of the block;
# - never believe a speed before the result.

# %% [markdown]
# ## Exercises
#
# **1. Predict the sectors.** `naive_uncoalesced` with a block of 16 x 16: how many sectors does one request of a warp take for `a`, and how many for `b`? Put your numbers into the cell, and let the trace count.

# %%
my_sectors = {"a": 0, "b": 0}  # your numbers
block = (16, 16)
a, b = (random.uniform(-1, 1, (128, 128)).astype(np.float32) for _ in range(2))
out = np.full((128, 128), np.nan, np.float32)
trace = gpukit.trace(matmul.naive_uncoalesced[grid_for(out.T.shape, block), block], a, b, out)
for load in trace.accesses:
    if load.op == "load":
        print(f"{load.array}:", "right" if load.sectors == my_sectors[load.array] * load.requests else "not yet")

# %% [markdown]
# **2. Find the float64.** This kernel fades from one picture to another, from left to right. Its arrays are float32, and yet it computes in float64, in more than one place. Get rid of all of it; the result must stay the same, but for the last digits.


# %%
@cuda.jit
def fade(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        weight = col / out.shape[1]  # your turn, here and below
        out[row, col] = (1.0 - weight) * a[row, col] + weight * b[row, col]


a, b = (random.uniform(0, 1, (45, 70)).astype(np.float32) for _ in range(2))
out = np.full((45, 70), np.nan, np.float32)
trace = gpukit.trace(fade[grid_for(out.shape, block), block], a, b, out)
share = np.arange(70) / 70
right = np.allclose(out, (1 - share) * a + share * b, atol=1e-6) and not trace.findings
wide = sum(line.fp64 + line.fp64_conversions for line in trace.operations)
print(f"right: {right}, operations on float64 or between it and other types: {wide:,}")
print("done" if right and not wide else "not yet")

# %% [markdown]
# ## Key points
#
# - One thread per element of the result; a ceil-divided grid; a guard. Each thread reads a row and a column: 2 K values for one that it writes. The next chapter is about reading less.
# - End to end is not the kernel. Allocation, copies and the first launch's compilation are costs of their own; time them apart, and keep data on the device.
# - Fill the warps: blocks of whole multiples of 32 threads. Beyond that the shape of a block decides more than its size, and 16 x 16 or 32 x 8 is a good start for two dimensions.
# - Neighbours in x should want neighbours in memory: `col, row = cuda.grid(2)` for arrays of rows.
# - A literal such as `0.0` is float64, an index is a signed int64. The first shows in a trace, both show in the machine code. A kernel may spend most of its time on indices.
# - When a cost changes and the time does not, look for the real one.
# - Errors come at the launch, later, or for good. `errors.check_launch` asks before, `errors.checked()` waits and translates, `gpukit.trace` names line, block and thread.
# - No error is not a result. Poison the output, compare all of it, and mistrust what is fast.
#
# **Back:** [01 Threads and blocks](01_threads_and_blocks.ipynb). **Next:** [03 Shared memory](03_shared_memory.ipynb).
