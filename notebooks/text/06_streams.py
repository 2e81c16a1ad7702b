# %% [markdown]
# # 06 Streams and events
#
# A GPU can do three things at the same time: copy to the device, run kernels, copy back. Programs that are written the simple way make it do one after the other. In this chapter you cut the work into pieces, put them into streams, see what really ran when, and find out how much can be gained, and what limits it.
#
# **After this chapter you will be able to**
#
# - say what a launch waits for and what it does not, and find out whether a stream is done without waiting;
# - ask a device what it can do at the same time, before you claim it;
# - build a pipeline of copies and kernels over several streams, with any number of chunks, and read its timeline;
# - compute the best number of chunks, and the most that overlap can gain, from five measured numbers;
# - let one stream wait for another by an event, and find two operations that nothing orders;
# - say what a launch costs, in a dozen forms, and take the one that fits.
#
# **You need** [02 A matrix product](02_matmul.ipynb). No GPU: without one you see what was recorded on an H200, and a modelled device that you can change.
#
# **Time:** 75 minutes.

# %%
import time
import warnings
from functools import partial

import numpy as np

from gpukit import cuda, device, launching, on_gpu, plot, resize, results, show, streams, timing
from gpukit.intrinsics import clock64, globaltimer, smid

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)

recorded = partial(results.load, "streams-h200")  # what was measured on an H200, by case
WHERE = results.taken_on(recorded())


# %% [markdown]
# ## A launch does not wait
#
# A **stream** is a queue of operations. The host puts operations in at one end, the device takes them out at the other and does one after the other. Putting one in takes microseconds, and the host goes on at once: it does not know when, or whether, the operation is done. Frameworks rely on it. While the device computes the first layer of a network, Python is already three layers ahead.
#
# To see it, a kernel is needed that takes long. This one looks at a clock until enough cycles have passed. `clock64` and the other two come from `gpukit.intrinsics`; plain `numba.cuda` has none of them.


# %%
@cuda.jit
def nap(cycles, seen):
    began, first = clock64(), globaltimer()
    while clock64() - began < cycles:
        pass
    if cuda.threadIdx.x == 0:
        seen[cuda.blockIdx.x, 0] = clock64() - began
        seen[cuda.blockIdx.x, 1] = globaltimer() - first
        seen[cuda.blockIdx.x, 2] = smid()


seen = cuda.device_array((3, 3), np.int64)
stream = cuda.stream()
nap[3, 32, stream](1000, seen)  # the first launch compiles
stream.synchronize()

begin = time.perf_counter()
nap[3, 32, stream](50_000_000, seen)
asked = time.perf_counter()
done = streams.is_done(stream)
stream.synchronize()
finished = time.perf_counter()

if on_gpu():
    print(f"asking took {(asked - begin) * 1e6:.0f} us, all of it {(finished - begin) * 1e3:.1f} ms")
    print("done when asked:", done)
else:
    print("done when asked:", done, "- the emulator does everything at once, and overlaps nothing")
print("cycles, nanoseconds, multiprocessor of each block:")
print(seen.copy_to_host())

# %% [markdown]
# `clock64` counts the cycles of one multiprocessor; `globaltimer` is a clock for the whole device, in nanoseconds; `smid` says which multiprocessor a block runs on. (On the emulator the clocks only say what came first. They are no times.)
#
# `streams.is_done` asks and comes back at once. It puts an event behind everything that the stream has been asked to do, and looks whether it has been reached. That is all it takes; callbacks, which Numba offers too, run in a thread of the driver, and those of numba-cuda 0.30 do not work:

# %%
show.source(streams.is_done)

# %% [markdown]
# ## What can happen at the same time
#
# Copies are not done by the multiprocessors but by **copy engines**, one operation at a time each. A device with two or more can copy in both directions while kernels run. One engine: in one direction at a time. That is a property of the device, so ask it. (The most common mistake of all tutorials is to assume the answer.)

# %%
info = device.info()
print(f"copy engines:       {info.async_engine_count}")
print(f"concurrent kernels: {'yes' if info.concurrent_kernels else 'no'}")
print(f"GPU overlap:        {'yes' if cuda.get_current_device().GPU_OVERLAP else 'no'}")

# %% [markdown]
# One more condition is the host's. An engine reads memory by its physical address, so the pages must not move: they must be **pinned**. `cuda.pinned_array` gives such memory. From any other NumPy array the driver first copies, piece by piece, into pinned memory of its own, and the host takes part in that.
#
# ## A pipeline
#
# Now for work that is worth it: copy an array in, run a kernel over it, copy the result back. The kernel sends every word through rounds of a scrambler; with the number of rounds its time can be set against that of the copies.

# %%
show.source(streams.kernels.work)

# %% [markdown]
# In one stream:

# %%
elements = 2**25 if on_gpu() else 2**22
x, out = cuda.pinned_array(elements, np.uint32), cuda.pinned_array(elements, np.uint32)
x[...] = np.random.default_rng(6).integers(0, 2**32, elements, np.uint32)
model = streams.measured_model() if on_gpu() else streams.Model()
work = streams.WorkKernel.lasting(x.nbytes / model.copy_in, elements)  # as long as a copy


def timeline(pipeline):
    """What ran when: measured on a GPU, modelled elsewhere."""
    if on_gpu():
        pipeline.run()  # the first run of a pipeline is slower
        return pipeline.run(record=True).timeline
    return streams.modelled(pipeline.schedule, model)


one = timeline(streams.Pipeline(work, x, chunks=1, streams=1, out=out))
one.plot("engine")
print(one)

# %% [markdown]
# A row for each engine, and the number of the task in each bar. Two of three engines are idle at any time. Without a GPU this figure is **modelled**: gpukit plays the operations through on a device with given speeds, and writes "modelled" on everything that comes out of it. Where it counts, the same run recorded on an H200 stands beside it.
#
# Now the array is cut into chunks. Each is a **task** of three operations in one stream: its part of the array in, the kernel, its part of the result out. The tasks go round a few streams, and the host waits once, at the end:

# %%
show.source(streams.pipelined)

# %% [markdown]
# That is the whole idiom: `cuda.to_device(..., stream)`, `kernel[grid, block, stream]` and `copy_to_host(..., stream)` only ask, and what is asked for in one stream is done in order. With a kernel of two arrays:


# %%
@cuda.jit
def invert(source, target):
    i = cuda.grid(1)
    if i < target.size:
        target[i] = np.float32(1) - source[i]


small, inverted = cuda.pinned_array(1003, np.float32), cuda.pinned_array(1003, np.float32)
small[...] = np.random.default_rng(1).random(1003)
streams.pipelined(invert, small, inverted, chunk=126, streams=4)
print("right:", np.array_equal(inverted, 1 - small))

# %% [markdown]
# `streams.run_pipeline` does the same, and remembers what it asked for:

# %%
run = streams.run_pipeline(invert, small, chunks=8, streams=4)
print("right:", np.array_equal(run.result, 1 - small))
for operation in run.schedule.operations[:7]:
    print(f"stream {operation.stream}: {operation.name:11} {operation.nbytes:6,} bytes")

# %% [markdown]
# 1003 elements in 8 chunks: the first ones are longer by one. Each task has its own memory on the device and its own part of the two host arrays.
#
# `Pipeline` is the same, made once to run many times. Here it is for the large array, by stream and by engine:

# %%
eight = timeline(streams.Pipeline(work, x, chunks=8, streams=4, out=out))
eight.plot("stream")
eight.plot("engine", "The same, by engine")
print(eight)

# %% [markdown]
# In a stream, one operation after the other; on an engine, one task after the other; and across, everything at the same time. Now what a real one did. The kernels' bars come from the kernels themselves: the first thread of every block notes `globaltimer` at its beginning and end, and the earliest and the latest stay. The copies' bars come from events before and behind each; since a copy may have to wait for its engine although its stream is ready, its bar begins where the one before it on that engine ends.

# %%
for record in recorded(case="timeline", shape=(2**25,), memory="pinned", order="depth"):
    streams.Timeline.of(record).plot("engine")

# %% [markdown]
# Look at the numbers in the bars. Asked for was 0, 1, 2, 3; what ran may be another order. Between streams nothing is promised, and a program must not count on it.

# %% [markdown]
# ## Where it goes wrong: memory that is not pinned
#
# The same work in four tasks, from ordinary NumPy arrays. Nothing else in the program says that anything is different.

# %%
plain, plain_out = np.array(x), np.empty_like(x)
pageable = streams.Pipeline(work, plain, chunks=4, streams=4, pinned=False, out=plain_out)
timeline(pageable).plot("stream")
for record in recorded(case="timeline", shape=(2**25,), memory="pageable"):
    streams.Timeline.of(record).plot("stream")

# %% [markdown]
# The copies are slower, and the host waits for each before it asks for the next operation. Four streams, and no overlap worth the name. If a timeline of yours looks like this one, look for the array that is not pinned.
#
# ## Where it goes wrong: one buffer for all
#
# The documents copy every task into *one* buffer on the device, and out of it. `buffers="shared"` repeats that. Asked for in breadth, first all copies in, then all kernels, then all copies out, it cannot be right:

# %%
words = np.arange(1000, dtype=np.uint32)
expected = streams.scrambled(words, 3)
shared = streams.run_pipeline(streams.WorkKernel(3), words, buffers="shared", order="breadth")
print(f"{np.count_nonzero(shared.result == expected)} of {words.size} elements are right")
for race in shared.schedule.races()[:3]:
    print("race:", race)
print(f"... {len(shared.schedule.races())} in all")

# %% [markdown]
# Asked for in depth, task by task, the result may well be right, today, on this machine: a task is often done before the next one comes to the buffer. A test would pass. That is what makes races nasty, and why `races` does not look at results. It looks for pairs of operations that use the same memory, one of them to write, with nothing that orders them: neither their stream nor an event.

# %%
deep = streams.run_pipeline(streams.WorkKernel(3), words, buffers="shared", order="depth")
print(f"{np.count_nonzero(deep.result == expected)} of {words.size} elements are right")
print(f"{len(deep.schedule.races())} races")
for buffers in ("stream", "task"):
    mended = streams.run_pipeline(streams.WorkKernel(3), words, buffers=buffers, order="breadth")
    right = np.array_equal(mended.result, expected)
    print(f"buffers={buffers!r}: right: {right}, races: {len(mended.schedule.races())}")

# %% [markdown]
# A buffer for each stream is enough, since the tasks of a stream come one after the other. It needs less memory, and it is how data that is larger than the device goes through it.
#
# The defect in the documents' program went unseen because its kernel only sleeps: nobody looked at the data.
#
# ## Depth or breadth?
#
# In which order should the host ask? Old advice says: breadth first. Devices before 2012 had *one* queue for each engine. Depth first, the kernel of task 0 stood in front of that of task 1, which was fine, but its copy out stood in front of the copy in of task 1, in the one queue for copies, and everything waited. Since then every stream has a queue of its own. The model has a switch for it:

# %%
pipelines = {}
for order in ("depth", "breadth"):
    pipelines[order] = streams.Pipeline(work, x, chunks=8, streams=4, order=order, out=out)
for name, old in {"one queue per engine, one copy engine": True, "a queue for each stream": False}.items():
    variant = streams.Model().but(in_order=old, copy_engines=1 if old else 3, name=name)
    for order, pipeline in pipelines.items():
        played = streams.modelled(pipeline.schedule, variant)
        shown = f"{played.duration * 1e3:7.3f} ms, {played.overlap:.0%} overlapped (modelled)"
        print(f"{name:36} {order:8} {shown}")

# %%
rows = {}
for record in recorded(case="pipeline", shape=(2**25,), memory="pinned"):
    row = rows.setdefault(record["chunks"], {"chunks": str(record["chunks"])})
    row[f"{record['order']} first, ms"] = f"{record['value'] * 1e3:.3f}"
rows = list(rows.values())
print(f"128 MB each way, {WHERE}")
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# On the H200 it makes next to no difference. So write what is easier to read: task by task.
#
# ## One stream waits for another
#
# So far the tasks had nothing to do with each other. If one needs what another one makes, and they are in different streams, an **event** orders them. Recorded in one stream, it stands behind everything in there so far; another stream can be told to wait for it. The host does not wait:


# %%
@cuda.jit
def squares(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = i * i


@cuda.jit
def differences(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i + 1] - x[i]


first, second = cuda.stream(), cuda.stream()
a, b = cuda.device_array(1000, np.int64), cuda.device_array(999, np.int64)
event = cuda.event(timing=False)

squares[4, 256, first](a)
event.record(first)  # behind the kernel
event.wait(second)  # what comes now in this stream waits for it
differences[4, 256, second](a, b)
second.synchronize()
print("right:", np.array_equal(b.copy_to_host(), 2 * np.arange(999) + 1))

# %% [markdown]
# `streams.Schedule` holds a program like that: operations, their streams, and what each comes `after`. It makes the events itself. And it can be asked whether any are missing. Two kernels that make something, in two streams, and one that needs both:

# %%
c = cuda.device_array(1000, np.int64)


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def build(events):
    schedule = streams.Schedule()
    one = schedule.add("kernel", lambda s: squares[4, 256, s](a), 0, name="squares of a", writes=["a"])
    two = schedule.add("kernel", lambda s: squares[4, 256, s](c), 1, name="squares of c", writes=["c"])
    after = [one, two] if events else []
    uses = {"reads": ["a", "c"], "writes": ["b"]}
    schedule.add("kernel", lambda s: add[4, 256, s](a, c, b), 0, name="sum", after=after, **uses)
    return schedule


for events in (False, True):
    schedule = build(events)
    schedule.run()
    print(f"events: {events}; races: {[str(race) for race in schedule.races()]}")

# %% [markdown]
# Only one of the two edges needs an event: the sum is in the stream of `squares of a`, behind it. An event too many costs a microsecond; one too few costs a day.
#
# ## How many chunks?
#
# More chunks, more overlap: with N of them, all but the first copy in and the last copy out have something to hide behind. But each costs something to ask for, and small copies are slow. If the whole takes h, k and d seconds for copy in, kernel and copy out, and a chunk costs t besides, then
#
# ```
# T(N) = (h + k + d) / N  +  (N - 1) / N * max(h, k, d)  +  N * t
# ```
#
# One chunk goes through all three stages, the others wait for the slowest stage, and each is asked for. The least is near the square root of (h + k + d - max(h, k, d)) / t. The formula is a function, `streams.predicted`. Beside it, what was measured:

# %%
SIZES = sorted({record["shape"][0] for record in recorded(case="pipeline")})


def stages_of(elements):
    """h, k, d, and both copies at the same time, in seconds."""
    found = {record["variant"]: record["value"] for record in recorded(case="stage", shape=(elements,))}
    return [found[name] for name in ("copy in", "kernel", "copy out", "both copies")]


def tasks(elements, chunks, kernel):
    """What a pipeline of equal chunks asks for, with a kernel of so many seconds, without anything to run."""
    schedule, nbytes = streams.Schedule(), 4 * elements // chunks
    for task in range(chunks):
        schedule.add("copy in", print, task % 4, nbytes=nbytes)
        schedule.add("kernel", print, task % 4, seconds=kernel / chunks)
        schedule.add("copy out", print, task % 4, nbytes=nbytes)
    return schedule


def measured_here(elements, most=64):
    """{chunks: seconds} of pipelines on this GPU; nothing without one."""
    if not on_gpu():
        return {}
    host, result = cuda.pinned_array(elements, np.uint32), cuda.pinned_array(elements, np.uint32)
    host[...] = np.arange(elements)
    kernel = streams.WorkKernel.lasting(host.nbytes / model.copy_in, elements)
    runs = {}
    for chunks in 2 ** np.arange(np.log2(most) + 1, dtype=int):
        runs[chunks] = streams.Pipeline(kernel, host, chunks=chunks, out=result).run
        runs[chunks]()
    timings = timing.bench_many(runs, device="cpu", warmup=0, repeat=7)
    return {chunks: result.median for chunks, result in timings.items()}


most = max(recorded(case="pipeline", shape=(SIZES[0],), order="depth"), key=lambda record: record["chunks"])
per_chunk = most["value"] / most["chunks"]  # the smallest array in the most chunks: there is nothing else to it
with plot.figure(size=(8, 3.6), columns=2, mark=f"measured: {WHERE}") as axes:
    for ax, elements in zip(axes, (SIZES[1], SIZES[-1]), strict=True):
        *stages, both = stages_of(elements)
        found = list(recorded(case="pipeline", shape=(elements,), order="depth", memory="pinned"))
        chunks = [r["chunks"] for r in found]
        formula = [streams.predicted(*stages, n, per_chunk) for n in chunks]
        played = [streams.modelled(tasks(elements, n, stages[1])).duration for n in chunks]
        ax.plot(chunks, [r["value"] * 1e3 for r in found], marker="o", label="measured")
        ax.plot(chunks, [seconds * 1e3 for seconds in formula], "--", label="formula")
        ax.plot(chunks, [seconds * 1e3 for seconds in played], ":", label="modelled device")
        here = measured_here(elements)
        if here:
            here_ms = [seconds * 1e3 for seconds in here.values()]
            ax.plot(list(here), here_ms, "x", label=f"this {info.name}")
        ax.axhline(max(*stages, both) * 1e3, color=plot.FAINT, linewidth=1)
        ticks = [n for n in chunks if n & (n - 1) == 0]
        ax.set(xscale="log", xticks=ticks, xticklabels=ticks, xlabel="chunks", ylabel="ms", ylim=(0, None))
        ax.minorticks_off()
        ax.set_title(f"{4 * elements / 2**20:,.0f} MB each way")
    axes[0].legend()

# %% [markdown]
# The grey line is the least that any number of chunks could reach: the slowest stage. The formula is a good guide to the number of chunks, with two faults. It does not know that the two directions of the bus are not independent, so that everything at once is slower than each alone; the next table has how much. And it adds the cost of asking to the time, although the host asks for the next chunk while the device works on this one; only where chunks are so small that the device waits for the host does it show. The modelled device knows both.

# %%
rows = [
    {"copy": record["variant"], "GB/s": f"{record['value'] * 1e-9:.1f}"}
    for record in recorded(case="copy", shape=(2**27,))
]
print(WHERE)
results.table(rows, {name: name for name in rows[0]})

# %%
rows = []
for elements in SIZES:
    *stages, both = stages_of(elements)
    candidates = recorded(case="pipeline", shape=(elements,), memory="pinned", order="depth")
    found = min(candidates, key=lambda record: record["value"])
    limit = streams.best_speedup(*stages, both)
    gain = sum(stages) / found["value"]
    rows.append(
        {
            "MB each way": f"{4 * elements / 2**20:,.0f}",
            "h, k, d in ms": ", ".join(f"{stage * 1e3:.3f}" for stage in stages),
            "both copies, ms": f"{both * 1e3:.3f}",
            "best N": str(found["chunks"]),
            "T, ms": f"{found['value'] * 1e3:.3f}",
            "speed-up": f"{gain:.2f}",
            "most possible": f"{limit:.2f}",
            "share": f"{gain / limit:.0%}",
        }
    )
print(WHERE)
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# With three stages of the same length the best possible speed-up would be 3, if nothing got slower by doing everything at once. It does: the "most possible" is what the measured speeds allow. Arrays of some hundred megabytes come within a tenth or so of that. Small ones do not: a megabyte is copied in less time than it takes to ask for its pieces, so a pipeline takes longer than the three stages one after the other, and the "speed-up" is below 1.
#
# **Check yourself.** A kernel takes ten times as long as each copy. What is the most that overlap can gain? And if it takes a tenth?

# %%
for k in (10, 1, 0.1):
    print(f"h = d = 1, k = {k:4}: at most {streams.best_speedup(1, k, 1):.2f} times faster")

# %% [markdown]
# ## The documents' experiment
#
# Four tasks of 1,048,576 floats, a kernel that sleeps on a grid of (64, 64) blocks of (16, 16) threads, one stream against four. How long their kernel slept they do not say; on the H200 several lengths were tried.

# %%
documents = results.documents("A13")
theirs = {row["streams"]: row["milliseconds"] for row in documents["tables"][0]["rows"]}
runs = recorded(case="documents")
rows = [{"": f"{documents['gpu'].removeprefix('NVIDIA ')} (documents)", "1 stream, ms": f"{theirs[1]:.3f}"}]
rows[0] |= {"4 streams, ms": f"{theirs[4]:.3f}", "gain": f"{theirs[1] / theirs[4]:.2f}"}
for cycles in sorted({record["cycles"] for record in runs}):
    ours = {r["streams"]: r["value"] * 1e3 for r in runs if r["cycles"] == cycles}
    head = {"": f"{runs[0]['gpu'].removeprefix('NVIDIA ')}, {cycles:,} cycles"}
    rows.append(head | {f"{n} stream{'s' * (n > 1)}, ms": f"{ours[n]:.3f}" for n in (1, 4)})
    rows[-1]["gain"] = f"{ours[1] / ours[4]:.2f}"
results.table(rows, {name: name for name in rows[0]})

# %%
for count in (1, 4):
    record = results.first(runs, cycles=250_000, streams=count)
    streams.Timeline.of(record).plot("stream")

# %% [markdown]
# Copies hide behind kernels; the kernels hardly overlap with each other. 4,096 blocks of 256 threads fill the device four times over, so the first blocks of a kernel find room only where the last ones of the kernel before leave it. Kernels that do *not* fill the device can run side by side. Four of one block each:

# %%
for record in recorded(case="small kernels"):
    print(f"{record['variant']:10} {record['value'] * 1e3:.3f} ms ({WHERE})")
for count in (1, 4):
    nap_of_one_block = streams.SleepKernel(500_000, 1, 32)
    tiny = streams.Pipeline(nap_of_one_block, np.zeros(4, np.float32), chunks=4, streams=count)
    word = "measured" if on_gpu() else "modelled"
    print(f"{count} stream{'s' * (count > 1):1}  {timeline(tiny).busy('kernel') * 1e3:.3f} ms ({word})")

# %% [markdown]
# ## Frames
#
# A camera or a video decoder gives frames; each must go to the device, be resized for a network, and come back (or stay). A function of (source, target, stream) does for a pipeline what a kernel does, here with `gpukit.resize`. Rows of the array are whole frames, and the result has another shape:

# %%
count, height, width = (64, 1080, 1920) if on_gpu() else (6, 54, 96)
frames = cuda.pinned_array((count, height, width, 3), np.uint8)
frames[...] = np.random.default_rng(3).integers(0, 256, frames.shape, np.uint8)
resized = cuda.pinned_array((count, height // 3, width // 3, 3), np.uint8)


def shrink(source, target, stream):
    resize.resize(source, target.shape[1:3], out=target, stream=stream)


result = streams.run_pipeline(shrink, frames, chunks=count // 2, streams=3, out=resized).result
print("right:", np.array_equal(result, resize.resize(frames, resized.shape[1:3])))

rows = [
    {"chunks": str(r["chunks"]), "ms": f"{r['value'] * 1e3:.2f}", "frames/s": f"{64 / r['value']:,.0f}"}
    for r in recorded(case="frames")
]
print(f"64 frames of 1920 x 1080 to 640 x 640, {WHERE}")
results.table(rows, {name: name for name in rows[0]})

# %%
streams.Timeline.of(recorded(case="frames timeline")[0]).plot("engine");

# %% [markdown]
# The kernel hardly shows: copying a frame in takes far longer than resizing it. No kernel could make this faster. What would: fewer bytes in (send the compressed frame and decode it on the device), or no copy out, if the network is on the same device.
#
# ## What a launch costs
#
# When pieces are small, what counts is how fast the host can ask. `kernel[grid, block](x, y, out, 3)` looks up the types of the arguments, the compiled kernel for these types, and packs the arguments, at every call. There are several ways to do less of that. A small kernel with three arrays and a number. On a GPU the cell below times 200 launches in a row, by the clock of the host, which has been told to wait for the device before each row; the libraries and the graphs stand in the record.


# %%
def add_scaled(x, y, out, factor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + factor * y[i]


vectors = [cuda.to_device(np.full(1024, value, np.float32)) for value in (1, 2, 0)]
arguments = (*vectors, np.float32(3))
plain = cuda.jit(add_scaled)
typed = cuda.jit("void(float32[::1], float32[::1], float32[::1], float32)")(add_scaled)
prepared = launching.prepare(plain[4, 256], *arguments)
launches = {
    "kernel[grid, block](...)": lambda: plain[4, 256](*arguments),
    "explicit signature": lambda: typed[4, 256](*arguments),
    "configuration bound before": partial(plain[4, 256], *arguments),
    "both": partial(typed[4, 256], *arguments),
    "gpukit.launching, same arguments": prepared,
    "gpukit.launching, other arguments": partial(prepared, *arguments),
}
prepared()
print("right:", (vectors[2].copy_to_host() == 7).all())

forms = results.by_variant(recorded(case=("launch", "graph replay")))
if on_gpu():
    timings = timing.bench_many(launches, device="cpu", setup=cuda.synchronize, calls=200, repeat=15)
    forms |= {name: timed.median for name, timed in timings.items()}
rows = [
    {"form": name, "us per launch": f"{seconds * 1e6:.1f}", "measured": "here" if on_gpu() and name in launches else WHERE}
    for name, seconds in sorted(forms.items(), key=lambda form: -form[1])
]
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# - An **explicit signature** and a configuration that is **bound before** (`step = kernel[grid, block]`) save next to nothing, each alone and "both" together: the time goes into the arguments.
# - **Arrays of another library** are wrapped at every launch, which costs more than all the rest. `cuda.as_cuda_array(x)` once, before the loop, avoids it.
# - A **CUDA graph** holds many launches and asks for them as one. It pays where the same sequence comes again and again.
# - **`gpukit.launching.prepare`** packs the arguments once, and calls the driver. It is as cheap as a library's own launch, safe (arguments of other types are refused, arrays are kept alive), and gpukit's own functions use it.
#
# Copies have the same trouble. `copy_to_device` looks at both arrays before it asks for anything; a pipeline has done that once, and calls the driver. What the host needs to ask for one copy, and what every operation costs besides its work:

# %%
rows = [{"": cost["variant"], "us": f"{cost['value'] * 1e6:.1f}"} for cost in recorded(case="cost")]
print(WHERE)
results.table(rows, {name: name for name in rows[0]})

# %% [markdown]
# Preparing a launch, with the kernel and the arrays from above:

# %%
step = launching.prepare(add[4, 256], a, c, b)
step()  # add[4, 256](a, c, b)
step(c, c, b)  # the same with other arrays
cuda.synchronize()
print("right:", np.array_equal(b.copy_to_host(), 2 * c.copy_to_host()[:999]))

# %% [markdown]
# ## The same in Nsight Systems
#
# All of this chapter's timelines can be had without any tool. For a whole application a profiler is the better view: `nsys profile --trace=cuda,nvtx -o pipeline python script.py`, then `nsys stats pipeline.nsys-rep` for tables, or the file in the desktop program for the picture. It has a row for each stream, with copies in and out in two colours and kernels in a third, and above them a row for the calls of the host. What to look for there:
#
# - **Gaps in all rows at once**: the device waits for the host. Launches are too small or too slow; or something synchronises, often a copy without a stream, or a `.copy_to_host()` in the middle.
# - **Copies marked "pageable"**: pin the array.
# - **Bars of different streams that never lie above each other**: something is in the default stream, which waits for all others, and for which all others wait.
#
# ## Exercises
#
# **1. Predict.** A device copies 25 GB/s in either direction, not slowed by the other one. 1 GB must be copied in, a kernel takes 60 ms for it, 0.25 GB come back. Each chunk costs 30 us. Work out the best number of chunks and the time on paper, then:

# %%
my_chunks, my_milliseconds = 1, 0.0  # your numbers
h, k, d = 1 / 25, 0.060, 0.25 / 25
best = streams.best_chunks(h, k, d, 30e-6)
least = streams.predicted(h, k, d, best, 30e-6) * 1e3
print("chunks:", "right" if abs(my_chunks - best) <= 1 else "not yet")
print("time:", "right" if abs(my_milliseconds - least) < 0.5 else "not yet")

# %% [markdown]
# **2. As few events as possible.** Three streams. Stream 0 makes `a`, stream 1 makes `b` and stream 2 makes `c`; then stream 0 needs `a` and `b` to make `d`, stream 1 needs `b` and `c` to make `e`, and stream 2 needs `d` and `e`. Fill in the lists `after` with numbers of operations (`make a` is 0), without races and with as few entries as you can. The cell counts; nothing is run.

# %%
schedule = streams.Schedule()
for stream, name in enumerate("abc"):
    schedule.add("kernel", print, stream, name=f"make {name}", writes=[name])
schedule.add("kernel", print, 0, name="make d", reads=["a", "b"], writes=["d"], after=[])
schedule.add("kernel", print, 1, name="make e", reads=["b", "c"], writes=["e"], after=[])
schedule.add("kernel", print, 2, name="use d and e", reads=["d", "e"], after=[])

events = sum(len(operation.after) for operation in schedule.operations)
for race in schedule.races():
    print("race:", race)
right = not schedule.races() and events == 4
print("right" if right else f"not yet: {events} events, {len(schedule.races())} races")

# %% [markdown]
# **3. One copy engine.** Most graphics cards for games have one or two copy engines. Play the pipeline of 8 chunks through on `streams.Model().but(copy_engines=1)`. How much of the gain is left, and why is it more than nothing? What would it be with `copy_engines=0`?
#
# <details><summary>Answer</summary>With one engine the copies in and out take turns, so they need h + d together: three stages of the same length can gain at most 3 / 2, where three engines allow 3. What is gained comes from the kernels, which still hide behind copies. Without an engine of its own, a copy keeps everything else waiting: nothing overlaps, and eight chunks take longer than one, since each has its cost.</details>
#
# **4. Two streams or four?** Make pipelines of 16 chunks with 1, 2, 3 and 4 streams. From which number on does nothing change, and why is it that number?
#
# <details><summary>Answer</summary>From three on. Three engines can be busy at a time: with copies in, with kernels, with copies out. Two streams have two operations under way at most, so one engine is always idle; a fourth stream has no fourth engine to keep busy. A real device may want a few more: they bridge the time in which the host asks.</details>

# %% [markdown]
# ## Key points
#
# - A stream is a queue. The host asks and goes on; an event, recorded and queried, tells how far the device has come.
# - Copies in, copies out and kernels can run at the same time, if the device has the engines and the host memory is pinned.
# - Each task needs memory of its own, or at least each stream. Results that are right today do not prove it; a look at what orders what does.
# - The most that overlap can gain is (h + k + d) / max(h, k, d), and less where the directions share the bus.
# - A few dozen chunks are enough. Too many small ones cost more than they hide: the least is near a square root.
# - Launches cost microseconds of the host. Prepare what you repeat.
#
# **Back:** [05 Matmul all the way](05_fast_matmul.ipynb). **Next:** [07 Reduce](07_reduce.ipynb).
