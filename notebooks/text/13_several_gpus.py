# %% [markdown]
# # 13 Several GPUs
#
# Two GPUs have twice the SMs and twice the memory bandwidth. They also have two memories, and neither GPU sees the other's unless you arrange for it. In this chapter you divide work among GPUs, and find out where the second half of the speed gets lost.
#
# **After this chapter you will be able to**
#
# - put arrays, kernels and streams on a GPU of your choice, and say which GPU can access which memory;
# - divide a stencil and a matrix product among GPUs in four ways, and read their timelines;
# - overlap the exchange of edges with computation, and find the events that this needs;
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
# A metal plate is hot at its upper rim. How does the heat spread? Cut time into steps. In each step, the temperature of every point moves a little towards the mean of its four neighbours. For a plate of 16,384 x 16,384 points a step takes:

# %% jupyter={"source_hidden": true}
steps = {(r["variant"], r["devices"]): r["value"] for r in recorded(case="heat, strong", shape=(16384, 16384))}
alone = steps["overlap", 1]
print(f"one GPU:  {alone * 1e6:6.0f} us ({WHERE})")
for variant in multi.VARIANTS:
    print(f"two GPUs: {steps[variant, 2] * 1e6:6.0f} us, {alone / steps[variant, 2]:.2f} times as fast, {variant}")

# %% [markdown]
# The last four lines are four ways for the GPUs to tell each other about their edges. This page takes them one by one, and you write their central lines. On a plate of 2,048 x 2,048 points the result is quite another:

# %% jupyter={"source_hidden": true}
small = {(r["variant"], r["devices"]): r["value"] for r in recorded(case="heat, strong", shape=(2048, 2048))}
alone = small["overlap", 1]
print(f"one GPU:  {alone * 1e6:6.0f} us ({WHERE})")
for variant in multi.VARIANTS:
    print(f"two GPUs: {small[variant, 2] * 1e6:6.0f} us, {alone / small[variant, 2]:.2f} times as fast, {variant}")

# %% [markdown]
# So a second GPU can also make a program slower. This page shows when, and why.
#
# ## Two memories
#
# `cuda.gpus` lists the GPUs. `with cuda.gpus[1]:` makes GPU 1 the **current device**: inside the block, arrays are allocated there, streams and events belong to it, and kernels run on it. A host thread has one current device at a time. Launches do not wait, so one thread can keep both GPUs busy.


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
# Now GPU 0 adds one to the array of the *last* GPU. Nothing in Python objects: the kernel just gets an address.

# %%
if on_gpu() and len(devices) > 1:
    print("not launched here: after an illegal address this notebook could not use its GPUs any more")
else:
    try:
        add_one[4, 256](parts[-1])
    except KernelError as error:
        print(error)

# %% [markdown]
# On two GPUs this launch ends in an illegal memory access, after which every CUDA call of the process fails. The emulator names the line. A kernel can access the memory of another GPU, its **peer**, only if
#
# 1. the hardware allows it: `context.can_access_peer(number)` says so;
# 2. access has been enabled: `context.enable_peer_access(handle)`, for the current device, and in that direction only.
#
# A copy between devices needs neither: without peer access it goes through the host. `multi.connect` enables access for all pairs, both ways:

# %%
show.source(multi.connect)

# %%
print("connected:", multi.connect(devices))
before = parts[-1].copy_to_host()
add_one[4, 256](parts[-1])
print("right:", np.array_equal(parts[-1].copy_to_host(), before + 1))

# %% [markdown]
# The connection between two GPUs is called the **link** here: NVLink, or PCIe. A trace counts what goes over it, line by line:

# %%
with emulator.use_device(count=2):  # a trace runs on emulated devices, also where there are GPUs
    multi.connect((0, 1), emulator.cuda)
    with emulator.cuda.gpus[1]:
        far = emulator.cuda.to_device(np.zeros(1000, np.float32))
    trace = gpukit.trace(add_one[4, 256], far)
for access in trace.accesses:
    print(f"{access.op:5} {access.sectors:4} sectors, {access.link_bytes:6,} bytes over the link")

# %% [markdown]
# How fast is the link? Everything that follows depends on it:

# %% jupyter={"source_hidden": true}
links = {r["variant"]: r for r in recorded(case="link")}
own = gpukit.prediction.recorded().dram_read  # bytes per second, of an H200 too
rows = [{"": "own memory, read", "each GPU": f"{own / 1e9:,.0f} GB/s"}]
for name, record in links.items():
    text = f"{record['value'] * 1e6:.1f} us" if record["unit"] == "s" else f"{record['value'] / 1e9:,.0f} GB/s"
    rows.append({"": "peer copy of 4 bytes, with an event" if name == "start" else name, "each GPU": text})
print(f"{WHERE}: own memory is {own / links['peer copy']['value']:.0f} times as fast as a peer copy")
results.table(rows)

# %% [markdown]
# The first line is the GPU's own memory, and nothing that comes over a link is nearly as fast. So send only what the other GPU cannot do without.
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
print("rows of each GPU, without the rim:", multi.rows_of(len(plate) - 2, 2))

# %% [markdown]
# Each GPU gets a band of rows. To compute its first row it needs the row above, which belongs to its neighbour. So each GPU keeps a copy of the neighbour's edge row, called a **halo**. The halos must be refreshed after every step:

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
# Write the exchange. `parts` holds one array per GPU, from top to bottom. The first and the last row of each array are halos (or the rim). NumPy arrays stand in for device arrays here.


# %%
def exchange(parts):
    for upper, lower in zip(parts, parts[1:], strict=False):  # two GPUs that are neighbours
        # 2 lines: fill the two halo rows at the seam between them
        ...


exercises.check("13-halo", exchange)

# %% [markdown]
# The kernel does not know that there are several GPUs. It computes rows `first` to `last` - 1 of its band, `TALL` rows of a column in each thread. `warmed` is the formula of the specification:

# %%
show.source(multi.stencil.heat_rows)

# %% [markdown]
# ## First way: through the host
#
# After each step, every GPU copies its edges to the host, and its neighbours copy them in from there. A `streams.Schedule` holds the operations, as in chapter 06. Now each operation also has a device:

# %%
host = multi.Heat(plate, len(devices), variant="host")
for operation in host.schedule(steps=1).operations:
    print(f"GPU {operation.device}  {operation.name:34} {operation.nbytes:7,} bytes, after {list(operation.after)}")

# %%
result = multi.heat(plate, 50, len(devices), variant="host")
print("right:", np.allclose(result, specification(plate, 50), atol=1e-3))

# %% [markdown]
# And what runs when? Here is the timeline for a larger plate. (On the emulator it is **modelled**: the operations are played through on two devices with the figures of an H200.)


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
# The kernels wait while a single row goes out and comes in. Bandwidth is not the problem, since a row is small. But every copy takes time to start, and here one has to follow the other. (The GPUs do not begin at quite the same time, because one host thread queues everything.)
#
# ## Second way: peer copies
#
# `target.copy_to_device(source)` with arrays of two devices is a **peer copy**: one copy instead of two, straight from GPU to GPU.

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
# If kernels can access a peer's memory, there is no need for a halo. The threads of the first row read the row above it from the peer's memory, a **peer load**. Here `above` and `below` are rows of the neighbours' arrays.

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
            # About 2 lines: the temperatures above and below, from the array that has them
            up, down = mid, mid
            new[row, col] = mid + RATE * (up + down + u[row, col - 1] + u[row, col + 1] - 4 * mid)


exercises.check("13-peer", step_reaching)

# %% [markdown]
# gpukit's kernel of this kind is `heat_reaching`. A trace of the upper GPU's part shows how little goes over the link:

# %%
with emulator.use_device(count=2):
    multi.connect((0, 1), emulator.cuda)
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
# There is nothing left to copy, but the kernels still have to agree on *when*. A GPU must not read its neighbour's row before it has been computed. Nor may it overwrite a row that its neighbour is still reading. One wait settles both: each kernel waits until its neighbours' kernels of the step before are done.
#
# **Predict.** Four GPUs hold the plate in four bands, and each has one stream. How many events does a step need?

# %%
my_answer = None
exercises.check("13-events", my_answer)

# %% [markdown]
# <details><summary>Answer</summary>Six. There are three seams, and at each of them both sides wait for each other.</details>
#
# An event recorded in a stream of one GPU can be waited for in a stream of another, with the same two calls as in chapter 06. What if one is missing? Drop any of them, and the schedule has a race:

# %%
reaching = multi.Heat(plate, devices, variant="peer_load")
schedule = reaching.schedule(steps=4)
print("races with all events:", len(schedule.races()))
waiting = [number for number, operation in enumerate(schedule.operations) if operation.after]
for number in waiting:
    schedule = reaching.schedule(steps=4)
    schedule.operations[number] = schedule.operations[number]._replace(after=())
    print(f"without the wait of {schedule.operations[number].name}: {len(schedule.races())}")
if len(devices) > 1:
    print("one of the last two:", schedule.races()[0], sep="\n    ")

# %% [markdown]
# ## Fourth way: edges first
#
# Only two rows of a band concern anyone else. Compute those first, in a stream of their own. While they travel, compute the inside. As long as that takes longer than the exchange, the exchange costs no time.

# %%
result = multi.heat(plate, 50, len(devices), variant="overlap")
print("right:", np.allclose(result, specification(plate, 50), atol=1e-3))
timeline("overlap").plot("device");
# %% [markdown]
# Which of the four is best? Look again at the two lists at the top of the page. On the large plate the exchange is a small part of a step, and `overlap` hides it. A step of the small plate is over before one host thread has queued the operations of two GPUs. There the fewest operations win, those of peer loads, and one GPU alone is faster still. You will write the schedule of `overlap` yourself at the end of this page.
#
# ## What more GPUs can gain
#
# A step of a plate with R rows and C columns reads and writes 8 R C bytes. n GPUs, each with a memory bandwidth of B, share that. Each also sends its edges, 4 C bytes to a neighbour, which takes t = start + 4 C / link:
#
# ```
# T(n) = 8 R C / (n B) + t          the exchange after the kernel
# T(n) = max(8 R C / (n B), t)      the exchange at the same time
# ```


# %%
MODEL = streams.Model()


def step_seconds(rows, columns, count, overlap, model=MODEL):
    """The formula, plus the time that a kernel takes to start."""
    compute = model.kernel_start + 8 * rows * columns / count / model.memory
    exchange = 0 if count == 1 else model.link_start + 4 * columns / model.link
    return max(compute, exchange) if overlap else compute + exchange


# %% jupyter={"source_hidden": true}
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
# Solid lines overlap, dashed ones do not. **Strong scaling** adds GPUs to a fixed problem: each has less to compute and as much to exchange, so the curves bend. **Weak scaling** lets the problem grow with the number of GPUs, so the exchange stays the same share. The losses are:
#
# - the exchange, where it is not hidden;
# - what every kernel costs whatever its size: its launch, and its first and last wave of blocks;
# - the host. One Python thread queues the operations of all GPUs. If a step takes less time than queuing it, more GPUs make it slower. The formula does not know this: see the dot of the smallest plate.
#
# ## A product on two GPUs
#
# C = A B. Divide the rows of A and of C; every GPU needs all of B. The matrices are on GPU 0, and the result is wanted there too. The same four ways:

# %%
random = np.random.default_rng(13)
a, b = random.random((130, 64), np.float32), random.random((64, 90), np.float32)
for variant in multi.WAYS:
    print(f"{variant:10} right: {np.allclose(multi.product(a, b, len(devices), variant), a @ b, rtol=1e-4)}")

# %% jupyter={"source_hidden": true}
rows = []
for record in recorded(case="product", shape=(16384,) * 3):
    one = results.first(recorded(case="product", shape=(16384,) * 3), devices=1)["value"]
    row = {"way": record["variant"] if record["devices"] > 1 else "alone", "GPUs": record["devices"]}
    rows.append(row | {"ms": f"{record['value'] * 1e3:.1f}", "speedup": f"{one / record['value']:.2f}"})
print(f"16,384 x 16,384 times the same, float32, {WHERE}")
results.table(rows)

# %% [markdown]
# In the stencil, peer loads came close to the best way: each row crosses the link once. Here a kernel that reads B in the other GPU's memory reads it once *for every row of tiles*. Copy once what is read over and over. `overlap` copies B in panels of columns: while one panel is multiplied, the next ones arrive.
#
# **Check yourself.** A product of two N x N matrices takes 2 N<sup>3</sup> operations, and B has 4 N<sup>2</sup> bytes. For which N does sending B take as long as computing half of C, at, say, 50 TFLOP/s and 350 GB/s?
#
# <details><summary>Answer</summary>4 N<sup>2</sup> / 350e9 = N<sup>3</sup> / 50e12, so N is about 570. With N ten times as large, sending B takes a tenth of the computing time. Products scale well because the work grows as N<sup>3</sup>, and what is sent as N<sup>2</sup>.</details>
#
# ## All-reduce
#
# Train a network on several GPUs, and after each step every GPU has its own gradient: an array of the same size. All of them need the sum. This operation is an **all-reduce**, and the arrays can be gigabytes.
#
# The simple way sends all arrays to GPU 0 and the sum back. GPU 0's link carries everything, while the other links are mostly idle. In a **ring**, each GPU sends only to the next one, and the last to the first. Cut the array into as many chunks as there are GPUs. In the first phase, **reduce-scatter**, each chunk goes round once, and each GPU adds its own values to it. At the end, every GPU has the complete sum of one chunk. In the second phase, **all-gather**, the sums go round:

# %% jupyter={"source_hidden": true}
count, holds = 4, [[{g} for _ in range(4)] for g in range(4)]
with plot.figure("Reduce-scatter: whose values each chunk holds", size=(8, 2.6), columns=4, mark=" ") as axes:
    for step, ax in enumerate(axes):
        ax.imshow([[len(chunk) for chunk in gpu] for gpu in holds], cmap="Blues", vmin=0, vmax=5)
        for gpu, chunks in enumerate(holds):
            for number, chunk in enumerate(chunks):
                ink = "white" if len(chunk) > 2 else "black"
                ax.text(number, gpu, "".join(map(str, sorted(chunk))), ha="center", va="center", fontsize=8, color=ink)
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
# Now write the first phase. In step 0, GPU g passes on chunk g; in every later step, the chunk that it has just added to.


# %%
def reduce_scatter(parts):
    count = len(parts)  # GPUs; parts[gpu] has as many chunks
    for step in range(count - 1):
        for gpu in range(count):  # on GPUs, all of them at the same time
            # About 3 lines: add one chunk of the GPU before to the same chunk of this one
            ...


exercises.check("13-ring", reduce_scatter)

# %% [markdown]
# `multi.all_reduce` does both phases, with a kernel that reads the chunk in the neighbour's memory. On the emulator, four devices make a better ring than two:

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
# How good is it? Divide what each GPU has to send, 2 (n - 1) / n of the array, by the time: that is the **bus bandwidth**. It can be compared with the link's, and across different numbers of GPUs. **NCCL** is NVIDIA's library for this:

# %% jupyter={"source_hidden": true}
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
# - **copies** brings each chunk by a peer copy into a buffer, and a kernel adds it: more trips to memory, and the copy and the kernel take turns.
# - **loads** adds straight from the neighbour's memory.
# - **pipelined** cuts the array into pieces, each in a stream of its own. While one piece waits for an event, another is on the link.
#
# On two H200, **loads** and **pipelined** are faster than NCCL from 16 MB on. Up to 1 MB, NCCL takes little more than half their time. For such small arrays, events and launches cost more than the bytes, whichever form you choose. NCCL's kernels wait for flags in memory instead of events. You will see how below, in "From inside the kernel".
#
# ## Frames on all GPUs
#
# Most work needs no exchange at all. Frames of a video, images of a batch: give each GPU its own. `streams.Pipeline` takes `devices`, and deals its chunks out to them. As in chapter 06, any function of (source, target, stream) will do:

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
# `conv2d` reads its weights from GPU 0: a peer load, small enough to be harmless. How much faster are two GPUs when the frames come from the host? That depends on the links to the host, and on the host's memory:

# %% jupyter={"source_hidden": true}
found = {r["devices"]: r for r in recorded(case="frames")}
print(f"measured on {WHERE}")
for count, record in found.items():
    rate = record["shape"][0] / record["value"]
    into = np.prod(record["shape"]) / record["value"] / 1e9
    print(f"{count} GPU{'s' * (count > 1)}: {rate:8,.0f} frames/s, {into:5.1f} GB/s from the host")
both = links["copy in, all devices"]["value"] * links["copy in, all devices"]["devices"]
print(f"copies alone: {links['copy in, one device']['value'] / 1e9:.1f} GB/s to one GPU, {both / 1e9:.1f} GB/s to two")

# %% [markdown]
# ## From inside the kernel
#
# So far the host decided when data moves. A kernel can do that itself: it writes into the other GPU's memory, and then sets a **signal** there. The other kernel waits for that signal. **NVSHMEM** is NVIDIA's library for this. A program runs as several **processing elements** (PEs), each a process with its GPU. All of them allocate the same arrays, on the **symmetric heap**, so a kernel names an array of another PE by its own array and the number of that PE.
#
# Here is a step of the plate in this form. Numba gets NVSHMEM from the package nvshmem4py. A signal is an array of type `uint64`, and the bindings refuse any other. One block computes a row; only the blocks of the two edge rows wait and send:

# %%
show.source(multi.shmem.make_step)

# %% [markdown]
# Without GPUs the same source runs on emulated PEs. So far that is the only place where this program has run. On two H200 it did not get past compilation: the bindings compile NVSHMEM's own headers, one of those includes `infiniband/mlx5dv.h`, and that header was not installed there.

# %%
if on_gpu():
    print("start it in a script: each PE is a process of its own")
else:
    result = multi.heat_by_signals(plate, 20, pes=3)
    print("right:", np.allclose(result, specification(plate, 20), atol=1e-3))

# %% [markdown]
# What if a signal goes to the wrong PE? On GPUs, a kernel waits forever. In this program, both PEs signal PE 0:


# %%
def one_way(rank, nranks, uid):
    """Run one PE. Its kernel sends x to another PE and waits for what comes in."""
    core.init(uid=uid, rank=rank, nranks=nranks, initializer_method="uid")
    x, inbox, signal = core.array(64), core.array(64), core.array(1, "uint64")
    signal.copy_to_device(np.zeros(1, np.uint64))
    core.barrier_all(emulator.cuda.default_stream())  # no signal before all of them are 0
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
# A process can use the GPUs of one machine. For more machines, use a cluster library. `multi.map_frames` sends batches to the workers of a **Dask** cluster and adds three things: results come back in order, only a limited number of batches is in flight, and each worker has a GPU of its own. If a worker dies, Dask gives its batches to others. To reach a cluster, connect with `distributed.Client("tcp://scheduler:8786")`; here, two workers on this machine stand in for one.


# %%
def shrink(number):
    """Load a batch and resize it, on a worker."""
    batch = np.random.default_rng(number).integers(0, 256, (4, 54, 96, 3), np.uint8)
    return resize.resize(batch, (18, 32))


# %%
def shrink_all(batches, kill_after):
    """Resize batches on two workers, kill one of them on the way, and return the results."""
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
# Send paths or numbers, as here, not arrays, because everything you send goes over the network. `multi.reduce` combines the results in the order of the batches, so a sum is the same to the last bit for any number of workers.
#
# ## Exercise: the edges first
#
# Queue the steps of two GPUs so that the exchange is hidden. In each step, each GPU has three operations: `edge`, the kernel that computes its edge row; `inside`, the kernel for all other rows; `send`, the copy of the new edge into the other GPU's halo. Each is a dict with the arguments of `schedule.add` except `stream` and `after`.
#
# So `number = schedule.add(**edge, stream=..., after=[...])` queues one and returns its number. `edge` reads the halo, and the edge and the inside of the step before. `inside` reads the edge and the inside of the step before. In the first step there is nothing to wait for. The check looks for races, and for lost time.


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
# - Each GPU has its own memory. A kernel can access a peer's memory only where that is enabled; copies always work.
# - Compare what crosses the link with what is done on each side: the smaller that share, the better it scales.
# - Peer loads suit what is read once. Copy what is read again and again.
# - Compute first what others wait for, and send it while you compute the rest.
# - Events order streams of different GPUs. `Schedule.races` finds the one that is missing; a right result proves nothing.
# - With strong scaling, the exchange, the launches or the host take over in the end. With weak scaling, efficiency stays.
# - In a ring all-reduce, each GPU sends less than twice the array, however many GPUs there are.
#
# **Back:** [12 Tensor cores](12_tensor_cores.ipynb). **Next:** [99 Projects](99_projects.ipynb).
