# %% [markdown]
# # 13 Several GPUs
#
# Two GPUs have twice the multiprocessors and twice the memory bandwidth. They also have two memories, and what one of them computes, the other one cannot see. This chapter divides work among GPUs, and finds out what is lost on the way.
#
# **After this chapter you will be able to**
#
# - put arrays, kernels and streams on a GPU of your choice, and say who may reach whose memory;
# - divide a stencil and a matrix product among GPUs in four ways, and read their timelines;
# - hide an exchange of edges behind the computation, with the events that it needs and no others;
# - predict the speedup of more GPUs, for a fixed problem and for one that grows with them;
# - write a ring all-reduce, and judge it by its bus bandwidth;
# - run batches on a cluster, and have it survive the loss of a worker.
#
# **You need** [06 Streams and events](06_streams.ipynb). No GPU: without one the emulator has two devices, and timelines are modelled.
#
# **Time:** 90 minutes.

# %%
import os
import signal
import warnings
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np

import gpukit
from gpukit import conv, cuda, emulator, exercises, multi, on_gpu, plot, reduce, resize, results, show, streams
from gpukit.emulator import KernelError

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here
if not on_gpu():
    emulator.set_device(count=2)
devices = multi.choose_devices(min(2, len(cuda.gpus)))
recorded = partial(results.load, "multi-h200-x2")  # what was measured on two H200
WHERE = "two " + results.taken_on(recorded())
print(f"{len(devices)} of {len(cuda.gpus)} devices are used here")

# %% [markdown]
# A metal plate is hot at its upper rim. How does the heat spread? Cut time into steps. In each step, every point moves a little towards the mean of its four neighbours. The plate has 16,384 x 16,384 points, and a GPU takes this long for a step:

# %%
steps = {(r["variant"], r["devices"]): r["value"] for r in recorded(case="heat, strong", shape=(16384, 16384))}
alone = steps["overlap", 1]
print(f"one GPU:  {alone * 1e6:6.0f} us ({WHERE})")
for variant in multi.VARIANTS:
    print(f"two GPUs: {steps[variant, 2] * 1e6:6.0f} us, {alone / steps[variant, 2]:.2f} times as fast, {variant}")

# %% [markdown]
# The four lines are four ways in which the GPUs tell each other about their edges. You will build them all. On a plate of 2,048 x 2,048 points they differ much more:

# %%
small = {(r["variant"], r["devices"]): r["value"] for r in recorded(case="heat, strong", shape=(2048, 2048))}
alone = small["overlap", 1]
for variant in multi.VARIANTS:
    print(f"two GPUs: {small[variant, 2] * 1e6:6.0f} us, {alone / small[variant, 2]:.2f} times as fast, {variant}")

# %% [markdown]
# ## Two memories
#
# `cuda.gpus` lists the GPUs. `with cuda.gpus[1]:` makes GPU 1 the **current device**: inside the block, arrays are allocated there, streams and events belong to it, and kernels run on it. A thread of the host has one current device at a time. The other GPU goes on with its work meanwhile, since launches do not wait.


# %%
@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


parts = []
for device in devices:
    with cuda.gpus[device]:
        x = cuda.to_device(np.full(1000, 10 * device, np.float32))
        add_one[4, 256](x)
        parts.append(x)
multi.synchronize(devices)
print([float(x.copy_to_host()[0]) for x in parts])

# %% [markdown]
# Now GPU 0 adds one to the array of the *last* GPU. Nothing in Python says that this is another device's memory: the kernel gets an address.

# %%
if on_gpu() and len(devices) > 1:
    print("not launched here: an illegal address would end this notebook's use of its GPUs")
else:
    try:
        add_one[4, 256](parts[-1])
    except KernelError as error:
        print(error)

# %% [markdown]
# On two GPUs this launch ends in an illegal memory access, and the process loses its GPUs. The emulator names the line. A kernel may only reach another GPU's memory, as a **peer**, if
#
# 1. the two have a link that allows it: `context.can_access_peer(number)`;
# 2. the GPU that wants access has asked for it: `context.enable_peer_access(handle)`. The right holds for one direction.
#
# A copy between devices needs neither. Without a link it goes through the host. `multi.connect` asks for all pairs, both ways:

# %%
show.source(multi.connect)

# %%
print("connected:", multi.connect(devices))
before = parts[-1].copy_to_host()
add_one[4, 256](parts[-1])
print("right:", np.array_equal(parts[-1].copy_to_host(), before + 1))

# %% [markdown]
# A trace counts what goes over the link, line by line:

# %%
with emulator.use_device(count=2):  # a trace runs on emulated devices, also where there are GPUs
    multi.connect((0, 1), emulator.cuda)
    with emulator.cuda.gpus[1]:
        far = emulator.cuda.to_device(np.zeros(1000, np.float32))
    trace = gpukit.trace(add_one[4, 256], far)
for access in trace.accesses:
    print(f"{access.op:5} {access.sectors:4} sectors, {access.link_bytes:6,} bytes over the link")

# %% [markdown]
# How fast is this link? The figures decide everything that follows:

# %%
links = {r["variant"]: r for r in recorded(case="link")}
rows = []
for name, record in links.items():
    text = f"{record['value'] * 1e6:.1f} us" if record["unit"] == "s" else f"{record['value'] / 1e9:,.0f} GB/s"
    rows.append({"": name, "each": text})
print(WHERE)
results.table(rows)

# %% [markdown]
# A GPU's own memory delivers more than ten times what comes over the link. So a byte that crosses the link should be one that nobody can do without.
#
# ## The plate, divided
#
# The specification is a plain NumPy function. The rim of the plate keeps its temperature.


# %%
def specification(u, steps, rate=0.2):
    """The temperatures after a number of steps."""
    for _ in range(steps):
        new, rate = u.copy(), np.float32(rate)
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        new[1:-1, 1:-1] = u[1:-1, 1:-1] + rate * (around - 4 * u[1:-1, 1:-1])
        u = new
    return u


plate = np.zeros((203, 150), np.float32)
plate[0] = 100
print(multi.rows_of(len(plate) - 2, 2))

# %% [markdown]
# Each GPU gets a band of rows. Its first row needs the row above it, which belongs to the neighbour. So each GPU keeps a copy of the neighbour's row, the **halo**, and the copies must be renewed after every step:

# %% jupyter={"source_hidden": true}
with plot.figure("Two GPUs, four rows of their own each", size=(8, 3.4), mark=" ") as ax:
    for gpu, left in ((0, 0), (1, 7)):
        names = ["rim" if gpu == 0 else "halo", "0", "1", "2", "3", "halo" if gpu == 0 else "rim"]
        for row, name in enumerate(names):
            edge = {("halo"): 1, "rim": 7}.get(name, 2 if (gpu, name) in ((0, "3"), (1, "0")) else 5)
            color = {"halo": plot.PALETTE[1], "rim": "#BBBBBB"}.get(name, plot.PALETTE[2] if edge == 2 else "#E4E4E4")
            ax.barh(row, 4, left=left, height=0.9, color=color)
            ax.text(left + 2, row, name, ha="center", va="center", fontsize=9)
        ax.text(left + 2, -0.9, f"GPU {gpu}", ha="center", fontsize=10)
    look = {"arrowstyle": "-|>", "color": plot.PALETTE[5], "linewidth": 1.5}
    ax.annotate("", xy=(7, 0), xytext=(4, 4), arrowprops=look)
    ax.annotate("", xy=(4, 5), xytext=(7, 1), arrowprops=look)
    ax.set(xlim=(-0.5, 11.5), ylim=(5.7, -1.4))
    ax.axis("off")

# %% [markdown]
# Write the exchange. `parts` holds an array for each GPU, from top to bottom. The first and the last row of each are its halo (or the rim). NumPy arrays stand for device arrays here.


# %%
def exchange(parts):
    for upper, lower in zip(parts, parts[1:], strict=False):  # two GPUs that are neighbours
        # 2 lines: the first and the last row of each part are its halo: fill those between the
        # two
        ...


exercises.check("13-halo", exchange)

# %% [markdown]
# The kernel knows nothing of GPUs. It computes rows `first` to `last` - 1 of its band, four rows of a column in each thread:

# %%
show.source(multi.stencil.heat_rows)

# %% [markdown]
# ## First way: through the host
#
# After each step, every GPU copies its edges to the host, and its neighbours copy them in from there. A `streams.Schedule` holds the operations, as in chapter 06. Each one now also says on which device its stream is:

# %%
host = multi.Heat(plate, len(devices), variant="host")
for operation in host.schedule(steps=1).operations:
    print(f"GPU {operation.device}  {operation.name:34} {operation.nbytes:7,} bytes, after {list(operation.after)}")

# %%
result = multi.heat(plate, 50, len(devices), variant="host")
print("right:", np.allclose(result, specification(plate, 50), atol=1e-3))

# %% [markdown]
# And when does what run? This function shows it for a larger plate. (Without two GPUs, what you see is **modelled**: the operations are played through on a device with the figures of an H200.)


# %%
def timeline(variant, side=8192, steps=3):
    """What ran when: measured on two GPUs, modelled on the emulator, recorded elsewhere."""
    if on_gpu() and len(devices) == 1:
        record = results.first(recorded(case="heat timeline", shape=(16384, 16384)), variant=variant, devices=2)
        return streams.Timeline.of(record)
    schedule = multi.Heat(np.zeros((side, side), np.float32), devices, variant).schedule(steps)
    if not on_gpu():
        return streams.modelled(schedule)
    schedule.run()  # the first run is slower
    return schedule.run(record=True)


timeline("host").plot("device");

# %% [markdown]
# The kernels wait while 32 KB go out and come in. It is not the bandwidth: it is that each copy has to start, and that two of them follow one another. (GPU 1 begins a little later, because one thread of the host queues everything.)
#
# ## Second way: peer copies
#
# `target.copy_to_device(source)` with arrays of two devices is a **peer copy**: one copy in place of two, and the host's memory is not touched.

# %%
result = multi.heat(plate, 50, len(devices), variant="peer_copy")
print("right:", np.allclose(result, specification(plate, 50), atol=1e-3))
timeline("peer_copy").plot("device");

# %% [markdown]
# **Predict.** On one GPU a step takes 800 us. Four GPUs divide it, and then exchange their edges, which takes 50 us in all and overlaps with nothing. What is the speedup? (An expression will do, such as `3 / 2`.)

# %%
my_answer = None
exercises.check("13-scaling", my_answer)

# %% [markdown]
# <details><summary>Answer</summary>A step takes 200 us and 50 us more, and 800 / 250 is 3.2. With eight GPUs it is 800 / 150, little more than 5.</details>
#
# ## Third way: the kernel reads the neighbour's memory
#
# If kernels can reach a peer's memory, the halo need not exist. The threads of the first row read the row above where it is. Here `above` and `below` are rows of the neighbours' arrays.

# %%
RATE = np.float32(0.25)


@cuda.jit
def step_reaching(u, above, below, new):
    col, row = cuda.grid(2)
    if row < u.shape[0] and col < u.shape[1]:
        mid = u[row, col]
        if col == 0 or col == u.shape[1] - 1:
            new[row, col] = mid  # the rim
        else:
            # About 2 lines: the temperatures above and below the point, from whose memory they
            # are in
            up, down = mid, mid
            new[row, col] = mid + RATE * (up + down + u[row, col - 1] + u[row, col + 1] - 4 * mid)


exercises.check("13-peer", step_reaching)

# %% [markdown]
# gpukit's kernel of this kind is `heat_reaching`. A trace of the upper GPU's part shows how little goes over the link:

# %%
with emulator.use_device(count=2):
    with emulator.cuda.gpus[1]:
        below = emulator.cuda.to_device(plate[102])
    upper, new = (emulator.cuda.to_device(plate[:103]) for _ in range(2))
    launch = multi.stencil.heat_reaching[(2, 26), 128]
    trace = gpukit.trace(launch, upper, upper[0], below, new, 1, 102, np.float32(0.2))
moved, crossed = 32 * trace.total("global", "load").sectors, sum(a.link_bytes for a in trace.accesses)
print(f"{moved:,} bytes loaded, {crossed:,} of them over the link")

# %%
result = multi.heat(plate, 50, len(devices), variant="peer_load")
print("right:", np.allclose(result, specification(plate, 50), atol=1e-3))
timeline("peer_load").plot("device");

# %% [markdown]
# There is nothing left to copy, but the kernels still have to agree on *when*. A GPU must not read its neighbour's row before that row is computed. Nor may it overwrite a row that its neighbour still reads. One wait settles both: each kernel waits for its neighbours' kernels of the step before.
#
# **Predict.** Four GPUs hold the plate in four bands, and each has one stream. How many events does a step need?

# %%
my_answer = None
exercises.check("13-events", my_answer)

# %% [markdown]
# <details><summary>Answer</summary>Six. There are three seams, and at each of them either side waits for the other.</details>
#
# An event recorded in a stream of one GPU can be waited for in a stream of another, with the same two calls as in chapter 06. What if one is missing? Drop any of them, and the schedule has a race:

# %%
reaching = multi.Heat(plate, devices, variant="peer_load")
schedule = reaching.schedule(steps=4)
print("races with all events:", len(schedule.races()))
waiting = [number for number, operation in enumerate(schedule.operations) if operation.after]
for number in waiting[:2]:
    schedule = reaching.schedule(steps=4)
    schedule.operations[number] = schedule.operations[number]._replace(after=())
    print(f"without the wait of {schedule.operations[number].name}: {len(schedule.races())}, such as")
    print("   ", schedule.races()[0])

# %% [markdown]
# ## Fourth way: edges first
#
# Only two rows of a band concern anyone else. Compute those first, in a stream of their own. While they travel, compute the inside, which takes much longer. Then the exchange is hidden, however slow the link is, as long as it is faster than the inside.

# %%
result = multi.heat(plate, 50, len(devices), variant="overlap")
print("right:", np.allclose(result, specification(plate, 50), atol=1e-3))
timeline("overlap").plot("device");

# %% [markdown]
# Which of the four is best? Look again at the two lists at the top of the page. On the large plate the exchange is a small part, and overlap hides it. On the small one a step takes a few microseconds, less than one thread of the host needs to queue the operations of two GPUs. There the way with the fewest operations wins: peer loads. You will write the schedule of the overlap at the end of this page.
#
# ## What more GPUs can gain
#
# A step of a plate with R rows and C columns reads and writes 8 R C bytes. n GPUs with a memory bandwidth of B divide that. Besides, each sends its edges, 4 C bytes in a time of t = start + 4 C / link:
#
# ```
# T(n) = 8 R C / (n B) + t          the exchange after the kernel
# T(n) = max(8 R C / (n B), t)      the exchange behind the inside
# ```


# %%
MODEL = streams.Model()


def step_seconds(rows, columns, count, overlap, model=MODEL):
    """The formula, with the time in which a kernel starts."""
    compute = model.kernel_start + 8 * rows * columns / count / model.memory
    exchange = 0 if count == 1 else model.link_start + 4 * columns / model.link
    return max(compute, exchange) if overlap else compute + exchange


# %%
counts = np.arange(1, 9)
mark = f"lines: the formula, with an H200's figures; dots: {WHERE}"
with plot.figure(size=(8, 3.4), columns=2, mark=mark) as axes:
    for side, color in ((2048, 0), (8192, 1), (16384, 2)):
        for overlap, line in ((True, "-"), (False, "--")):
            one = step_seconds(side, side, 1, overlap)
            speedup = [one / step_seconds(side, side, n, overlap) for n in counts]
            axes[0].plot(counts, speedup, line, color=plot.PALETTE[color], label=f"{side}" if overlap else None)
            grown = [one / step_seconds(side * n, side, n, overlap) for n in counts]
            axes[1].plot(counts, grown, line, color=plot.PALETTE[color])
        for ax, case in zip(axes, ("heat, strong", "heat, weak"), strict=True):
            found = {r["devices"]: r["value"] for r in recorded(case=case, shape=(side, side), variant="overlap")}
            for count in set(found) - {1}:
                ax.plot([count], [found[1] / found[count]], "o", color=plot.PALETTE[color])
    axes[0].set(xlabel="GPUs", ylabel="times as fast", title="strong: one plate, divided")
    axes[1].set(xlabel="GPUs", ylabel="efficiency", ylim=(0, 1.05), title="weak: a plate for each GPU")
    axes[0].legend(title="side of the plate")

# %% [markdown]
# Solid lines overlap, dashed ones do not. **Strong scaling** keeps the problem and adds GPUs: each has less to compute and as much to exchange, so the curves bend. **Weak scaling** lets the problem grow with the GPUs: the share of the exchange stays. What is lost:
#
# - the exchange, where it is not hidden;
# - what every kernel costs whatever its size: its launch, its first and its last wave of blocks;
# - the host. One Python thread queues the operations of all GPUs. If a step takes less time than queuing it, more GPUs make it slower.
#
# ## A product on two GPUs
#
# C = A B. Divide the rows of A and of C; every GPU needs all of B. The matrices are on GPU 0, and so shall the result be. The same four ways:

# %%
random = np.random.default_rng(13)
a, b = random.random((130, 64), np.float32), random.random((64, 90), np.float32)
for variant in multi.WAYS:
    print(f"{variant:10} right: {np.allclose(multi.product(a, b, len(devices), variant), a @ b, rtol=1e-4)}")

# %%
rows = []
for record in recorded(case="product", shape=(16384,) * 3):
    one = results.first(recorded(case="product", shape=(16384,) * 3), devices=1)["value"]
    row = {"way": record["variant"], "GPUs": record["devices"], "ms": f"{record['value'] * 1e3:.1f}"}
    rows.append(row | {"speedup": f"{one / record['value']:.2f}"})
print(f"16,384 x 16,384 times the same, float32, {WHERE}")
results.table(rows)

# %% [markdown]
# In the stencil, peer loads were good: each row crosses the link once. Here a kernel that reads B in the other GPU's memory reads it once *for every row of tiles*. What is read over and over should be copied once. The best way, `overlap`, sends B in panels of columns: while a panel is multiplied, the next ones arrive.
#
# **Check yourself.** A product of two N x N matrices takes 2 N<sup>3</sup> operations, and B has 4 N<sup>2</sup> bytes. For which N does sending B take as long as computing half of C, at 50 TFLOP/s and 350 GB/s?
#
# <details><summary>Answer</summary>4 N<sup>2</sup> / 350e9 = N<sup>3</sup> / 50e12, so N is about 570. Ten times larger, and sending B is a tenth of the time. Products scale well because computing grows faster than what is sent.</details>
#
# ## All-reduce
#
# Train a network on several GPUs, and after each step every GPU has its own gradient: an array of the same size. All need the sum. This is an **all-reduce**, and its arrays have gigabytes.
#
# The simple way sends all arrays to GPU 0 and the sum back. GPU 0's link carries everything, and the others idle. In a **ring**, each GPU sends to the next one only. Cut the array into as many chunks as there are GPUs. In the first phase, **reduce-scatter**, each chunk goes round once and is added to at each stop. Then every GPU has the complete sum of one chunk. In the second phase, **all-gather**, the sums go round:

# %% jupyter={"source_hidden": true}
count, holds = 4, [[{g} for _ in range(4)] for g in range(4)]
with plot.figure("Reduce-scatter: whose values each chunk holds", size=(8, 2.6), columns=4, mark=" ") as axes:
    for step, ax in enumerate(axes):
        ax.imshow([[len(chunk) for chunk in gpu] for gpu in holds], cmap="Blues", vmin=0, vmax=5)
        for gpu, chunks in enumerate(holds):
            for number, chunk in enumerate(chunks):
                ax.text(number, gpu, "".join(map(str, sorted(chunk))), ha="center", va="center", fontsize=8)
        ax.set(xticks=range(4), yticks=range(4), xlabel="chunk", title="start" if step == 0 else f"step {step}")
        ax.set_ylabel("GPU" if step == 0 else "")
        ax.grid(False)
        for gpu in range(count) if step < 3 else ():
            chunk = (gpu - step - 1) % count
            holds[gpu][chunk] = holds[gpu][chunk] | holds[gpu - 1][chunk]

# %% [markdown]
# **Predict.** Four GPUs sum an array of 1 GB in this way, both phases. How many GB does each of them send?

# %%
my_answer = None
exercises.check("13-sent", my_answer)

# %% [markdown]
# <details><summary>Answer</summary>1.5 GB: twice three steps of a quarter each. In general 2 (n - 1) / n of the array, which is less than twice for any number of GPUs.</details>
#
# Now write the first phase. In step 0, GPU g passes on chunk g.


# %%
def reduce_scatter(parts):
    count = len(parts)  # GPUs; parts[gpu] has as many chunks
    for step in range(count - 1):
        for gpu in range(count):  # on GPUs, all of them at the same time
            # About 3 lines: add one chunk of the GPU before to the same chunk of this one
            ...


exercises.check("13-ring", reduce_scatter)

# %% [markdown]
# `multi.all_reduce` does both phases, with a kernel that reads the chunk in the neighbour's memory. Four emulated devices make a better ring than two:

# %%
with emulator.use_device(count=max(4, len(cuda.gpus))):
    everyone = multi.choose_devices(4 if not on_gpu() else None)
    values = [random.integers(0, 100, 10_000).astype(np.float32) for _ in everyone]
    arrays = multi.copy_to_devices(values, everyone)
    multi.all_reduce(arrays, everyone)
    print("right:", all(np.array_equal(array.copy_to_host(), sum(values)) for array in arrays))
    ring = multi.AllReduce(arrays, everyone, variant="loads")
    print(f"{len(ring.schedule.operations)} operations, {len(ring.schedule.races())} races")

# %% [markdown]
# How good is it? Divide what each GPU has to send, 2 (n - 1) / n of the array, by the time: that is the **bus bandwidth**. It can be compared with the link, and between different numbers of GPUs. The vendor's library is **NCCL**:

# %%
found = list(recorded(case="all-reduce"))
link = links["peer copies, both ways"]["value"] / 1e9
with plot.figure("All-reduce of float32", size=(8, 3.6), mark=WHERE) as ax:
    for variant in (*multi.RINGS, "nccl"):
        points = sorted((4 * r["shape"][0], r["bus"] / 1e9) for r in found if r["variant"] == variant)
        look = {"color": "black", "linestyle": "--"} if variant == "nccl" else {"marker": "o", "markersize": 4}
        if points:
            ax.plot(*zip(*points, strict=True), label=variant, **look)
    ax.axhline(link, color="grey", linewidth=1)
    side = {"transform": ax.get_yaxis_transform(), "va": "bottom", "fontsize": 8, "color": "grey"}
    ax.text(0.01, link, "peer copies both ways", **side)
    ax.set(xscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s", ylim=(0, None))
    ax.legend()

# %% [markdown]
# - **copies** brings each chunk by a peer copy into a buffer, and a kernel adds it: twice the trips to memory, and one stage waits for the other.
# - **loads** adds straight from the neighbour's memory.
# - **pipelined** cuts the array into pieces, each in a stream of its own. While one piece waits for an event, another one moves.
#
# Small arrays are slow in any form: two events and two launches cost more than the bytes. NCCL's kernels wait for flags in memory instead of events. So does the next section but one.
#
# ## Frames on all GPUs
#
# Most work needs no exchange at all. Frames of a video, images of a batch: give each GPU its own. `streams.Pipeline` takes `devices`, and deals its chunks out to them. Any function of (source, target, stream) will do:

# %%
frames = cuda.pinned_array((12, 54, 96, 3), np.uint8)
frames[...] = random.integers(0, 256, frames.shape, np.uint8)
images, kernel = random.random((6, 3, 20, 20), np.float32), cuda.to_device(random.random((4, 3, 3, 3), np.float32))
works = {
    "resize": (lambda x, y, q: resize.resize(x, y.shape[1:3], out=y, stream=q), frames, (12, 18, 32, 3)),
    "conv2d": (lambda x, y, q: conv.conv2d(x, kernel, out=y, stream=q), images, (6, 4, 18, 18)),
    "reduce": (lambda x, y, q: reduce.reduce(x, axis=(1, 2, 3), out=y, stream=q), images, (6,)),
}
for name, (function, x, shape) in works.items():
    out = np.zeros(shape, x.dtype)
    streams.Pipeline(function, x, chunks=6, streams=2, out=out, devices=devices).run()
    again = np.zeros(shape, x.dtype)
    streams.Pipeline(function, x, chunks=1, streams=1, out=again).run()
    print(f"{name}: the same as on one GPU: {np.allclose(out, again, rtol=1e-5)}")

# %% [markdown]
# `conv2d` reads its weights from GPU 0: a peer load, small enough to be harmless. How much faster are two GPUs when frames come from the host? Now the host's links decide, and its memory:

# %%
found = {r["devices"]: r for r in recorded(case="frames")}
for count, record in found.items():
    rate = record["shape"][0] / record["value"]
    into = np.prod(record["shape"]) / record["value"] / 1e9
    print(f"{count} GPU{'s' * (count > 1)}: {rate:8,.0f} frames/s, {into:5.1f} GB/s into the GPUs ({WHERE})")
both = links["copy in, all devices"]["value"] * links["copy in, all devices"]["devices"]
print(f"copies alone: {links['copy in, one device']['value'] / 1e9:.1f} GB/s to one, {both / 1e9:.1f} GB/s to two")

# %% [markdown]
# ## From inside the kernel
#
# So far the host decided when something moves. A kernel can do that itself: it writes into the other GPU's memory, and then sets a **signal** there, for which the other kernel waits. **NVSHMEM** is NVIDIA's library for this. A program runs as several **processing elements** (PEs), each a process with its GPU. All of them allocate the same arrays, on the **symmetric heap**, so a kernel can name an array of another PE by its own array and the PE's number.
#
# Here is the step of the plate in this form, for Numba through nvshmem4py. Waits, edges and inside are in one kernel, and blocks of the inside never wait:

# %%
show.source(multi.shmem.make_step)

# %% [markdown]
# Without GPUs the same text runs on emulated PEs:

# %%
if on_gpu():
    print("start it in a script: each PE is a process of its own")
else:
    result = multi.heat_by_signals(plate, 20, pes=3)
    print("right:", np.allclose(result, specification(plate, 20), atol=1e-3))

# %% [markdown]
# What if a signal is lost? On GPUs the kernels wait forever. In this program, both PEs signal PE 0:


# %%
def one_way(rank, nranks, uid):
    """Run one PE, whose kernel sends x on and waits for what comes in."""
    core.init(uid=uid, rank=rank, nranks=nranks, initializer_method="uid")
    x, inbox, signal = core.array(64), core.array(64), core.array(1, "int64")
    send[1, 64](x, inbox, signal)
    core.finalize()


core, shmem = emulator.nvshmem.core, import_module("warpstep.nvshmem.core.device.numba")
SET, GE = core.SignalOp.SIGNAL_SET, core.ComparisonType.CMP_GE


@emulator.cuda.jit
def send(x, inbox, signal):
    target = max(shmem.my_pe() - 1, 0)  # planted: PE 1 never hears of it
    shmem.put_signal_block(inbox, x, signal, 1, SET, target)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait(signal, GE, 1)


try:
    emulator.nvshmem.run(one_way, pes=2)
except KernelError as error:
    print(error)

# %% [markdown]
# ## Beyond one machine
#
# One process reaches the GPUs of one machine. For more, there are cluster libraries, and you should use one. `multi.map_frames` sends batches to the workers of a **Dask** cluster and adds three things: results come in order, a bounded number of batches is under way, and each worker has a GPU of its own. If a worker dies, Dask gives its batches to others. On a cluster you connect with `distributed.Client("tcp://scheduler:8786")`; here two workers on this machine do.


# %%
def shrink(number):
    """Load a batch and resize it: runs on a worker."""
    batch = np.random.default_rng(number).integers(0, 256, (4, 54, 96, 3), np.uint8)
    return resize.resize(batch, (18, 32))


# %%
def shrink_all(batches, kill_after):
    """Resize batches on two workers, and kill one of them on the way; returns the results."""
    small = []
    with multi.local_cluster(workers=2) as client:
        pids = list(client.run(os.getpid).values())
        for done, result in enumerate(multi.map_frames(shrink, range(batches), client), start=1):
            small.append(result)
            if done == kill_after:
                os.kill(pids[0], signal.SIGKILL)
                print(f"killed one of {len(pids)} workers after {done} batches")
    return small


if find_spec("distributed"):
    small = shrink_all(batches=16, kill_after=5)
    right = all(np.array_equal(found, shrink(number)) for number, found in enumerate(small))
    print(f"{len(small)} batches, right and in order: {right}")
else:
    print("pip install 'gpukit[multi]' brings Dask")

# %% [markdown]
# Send paths or numbers, as here, not arrays: what you send goes over the network. `multi.reduce` combines the results, from the first batch to the last, so the sum has the same bits on any number of workers.
#
# ## Exercise: the edges first
#
# Queue the steps of two GPUs so that the exchange is hidden. Each step has, for each GPU, three dicts with all arguments of `schedule.add` but two: `edge`, the kernel that computes the edge row; `inside`, the kernel for all other rows; `send`, the copy of the edge into the other GPU's halo. Write `schedule.add(**edge, stream=..., after=[...])`. The edge reads the halo, the old edge and the old inside; the inside reads the old edge. The check looks for races, and for time that is lost.


# %%
def fill_steps(schedule, steps):
    edges, insides, sends = {}, {}, {}  # the numbers of these operations, by GPU and step
    for step, gpus in enumerate(steps):
        for gpu, (edge, inside, send) in enumerate(gpus):
            # About 6 lines: streams 2 * gpu for the inside, 2 * gpu + 1 for edge and send, and
            # the events
            ...


exercises.check("13-overlap", fill_steps)

# %% [markdown]
# ## Key points
#
# - Each GPU has its own memory. Kernels reach a peer's memory only if they were given access; copies always work.
# - What decides is the ratio: bytes that cross the link to bytes, or operations, that do not.
# - Read over the link what is read once. Copy what is read again and again.
# - Compute first what others wait for, and send it while you compute the rest.
# - Events order streams of different GPUs. `Schedule.races` finds the one that is missing; a right result proves nothing.
# - Strong scaling bends where the exchange, the launches or the host take over. Weak scaling keeps its efficiency.
# - A ring all-reduce sends less than twice the array, whatever the number of GPUs.
#
# **Back:** [12 Tensor cores](12_tensor_cores.ipynb). **Next:** [99 Projects](99_projects.ipynb).
