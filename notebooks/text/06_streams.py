# %% [markdown]
# # 06 Streams and events
#
# Copying an array to the GPU and back often takes longer than the kernel. Can the copies be free? Nearly: a GPU can copy in both directions and compute, all at the same time. In this chapter you make it do so, see what ran when, and work out how much there is to gain.
#
# **After this chapter you will be able to**
#
# - say what a launch waits for, and ask whether a stream is done without waiting;
# - build a pipeline of copies and kernels over several streams, and read its timeline;
# - compute the best number of chunks, and the most that overlap can gain, from four measured times;
# - order streams by events, and find two operations that nothing orders;
# - compare the launch overhead of a dozen launch methods, and pick one.
#
# **You need** [02 A matrix product](02_matmul.ipynb). No GPU: without one you see what was recorded on an H200, and a modelled device that you can change.
#
# **Time:** 75 minutes.

# %%
import time
import warnings
from functools import partial

import numpy as np

from gpukit import cuda, device, exercises, launching, on_gpu, plot, resize, results, show, streams, timing
from gpukit.intrinsics import clock64, globaltimer, smid

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here
recorded = partial(results.load, "streams-h200")  # what was measured on an H200, by case
WHERE = results.taken_on(recorded())

# %% [markdown]
# Here is the same work twice, as it ran on an H200: 128 MB copied in, a kernel over them, and 128 MB copied out. First one after the other, then in eight chunks; the numbers are those of the chunks:

# %%
whole, cut = (results.first(recorded(case="timeline"), chunks=n, order="depth") for n in (1, 8))
for record in (whole, cut):
    streams.Timeline.of(record).plot("engine")
print(f"{whole['value'] / cut['value']:.2f} times as fast")

# %% [markdown]
# ## A launch does not wait
#
# A **stream** is a queue of operations. The host puts operations in at one end. The device takes them out at the other, one after the other. **Enqueuing** takes microseconds, and the host does not wait for the operation to run: a launch is **asynchronous**. Frameworks rely on it. While the device computes the first layer of a network, Python is already three layers ahead.
#
# To see that, we need a slow kernel. This one watches a clock until enough cycles have passed. `clock64` counts the cycles of one SM, `globaltimer` is a clock for the whole device in nanoseconds, and `smid` says on which SM a block runs. All three come from `gpukit.intrinsics`; plain `numba.cuda` has none of them.


# %%
@cuda.jit
def nap(cycles, seen):
    began, first = clock64(), globaltimer()
    while clock64() - began < cycles:
        pass
    if cuda.threadIdx.x == 0:
        b = cuda.blockIdx.x
        seen[b, 0], seen[b, 1], seen[b, 2] = smid(), clock64() - began, globaltimer() - first


seen = cuda.device_array((3, 3), np.int64)
stream = cuda.stream()
nap[3, 32, stream](1000, seen)  # the first launch compiles
stream.synchronize()

begin = time.perf_counter()
nap[3, 32, stream](50_000_000, seen)
queued = time.perf_counter()
print("done after the launch:", streams.is_done(stream))
stream.synchronize()
finished = time.perf_counter()
if on_gpu():
    print(f"the launch took {(queued - begin) * 1e6:.0f} us, the kernel {(finished - begin) * 1e3:.1f} ms")
    print("SM, cycles, nanoseconds of each block:", seen.copy_to_host().tolist())
else:
    print("The emulator finishes each operation before the call returns. On a GPU the first line says False.")

# %% [markdown]
# `streams.is_done` asks without waiting. It records an **event**, a mark after everything that is in the stream so far, and asks whether the device has reached it:

# %%
show.source(streams.is_done)

# %% [markdown]
# ## What can overlap
#
# SMs do not copy. **Copy engines** do, one operation at a time each. A device with two or more can copy in both directions while kernels run. With one engine the directions take turns. So ask the device, and do not assume:

# %%
info = device.info()
print(f"{info.name}: {info.async_engine_count} copy engines, concurrent kernels: {info.concurrent_kernels}")
print("copies can overlap with kernels:", bool(cuda.get_current_device().GPU_OVERLAP))

# %% [markdown]
# The host has to cooperate too. A copy engine reads memory by its physical address, so the pages must not move: they must be **pinned**. `cuda.pinned_array` allocates such memory. All other arrays are **pageable**. The driver first copies those, part by part, into pinned memory of its own, and the host has to help.
#
# ## A pipeline
#
# Now our work: copy an array in, run a kernel over it, copy the result out. The kernel scrambles every word for as many rounds as we like, so its time can match that of a copy.

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
print(one)

# %% [markdown]
# One stage is busy at a time, and the other two are idle. (Without a GPU these figures are **modelled**: gpukit plays the operations through on a device with given speeds, and writes "modelled" on everything that comes out of it.)
#
# **Predict.** A copy in, a kernel and a copy out take 1 ms each. Now cut the work into four chunks. The device copies both ways and computes at the same time. What is the least total time, in milliseconds?

# %%
my_answer = None
exercises.check("06-fill", my_answer)

# %% [markdown]
# <details><summary>Answer</summary>The first chunk goes through all three stages, 3 x 0.25 ms. The other three follow at intervals of 0.25 ms. That is 1.5 ms. With more chunks the time approaches 1 ms.</details>
#
# Now write the pipeline. `cuda.to_device(array, stream)`, `kernel[grid, block, stream](source, target)` and `target.copy_to_host(array, stream)` only enqueue; `cuda.device_array(shape, dtype)` allocates. The kernel wants a thread for each element, in blocks of 256. Operations of one stream run in order, and those of different streams may overlap. The host waits once, at the end. An operation without a stream goes to the **default stream**, which waits for all others, and all others wait for it.
#
# The check calls your function with a stand-in for `cuda` that writes down what you enqueue. It plays that through on a model of a device, and looks for **races**: two operations that use the same memory, with nothing to say which comes first.


# %%
def my_pipeline(cuda, kernel, x, out, chunk, queues):
    for number, first in enumerate(range(0, len(x), chunk)):
        stream, part = queues[number % len(queues)], slice(first, first + chunk)
        # About 4 lines: copy x[part] in, make an array for the result, launch the kernel, copy
        # to out[part]
        ...
    # 1 line: wait for all of it
    ...


exercises.check("06-pipeline", my_pipeline)

# %% [markdown]
# gpukit has this function as `streams.pipelined`. Unfold its source when you have yours:

# %% jupyter={"outputs_hidden": true}
show.source(streams.pipelined)

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

inverted[...] = 0
my_pipeline(cuda, invert, small, inverted, 126, [cuda.stream() for _ in range(4)])
print("yours:", np.array_equal(inverted, 1 - small))

# %% [markdown]
# `streams.run_pipeline` does the same for any kernel, and keeps a **schedule** of what it enqueued. `streams.Pipeline` keeps the memory too, so that it can run again. Both call the three operations of a chunk a **task**.

# %%
run = streams.run_pipeline(invert, small, chunks=8, streams=4)
print("right:", np.array_equal(run.result, 1 - small))
for operation in run.schedule.operations[:4]:
    print(f"stream {operation.stream}: {operation.name:11} {operation.nbytes:6,} bytes")

# %%
eight = timeline(streams.Pipeline(work, x, chunks=8, streams=4, out=out))
eight.plot("stream")
print(f"{one.duration / eight.duration:.2f} times as fast as one after the other")

# %% [markdown]
# Within a stream, one operation runs after the other. Across streams, two copies and a kernel run at the same time. Look again at the numbers in the figure at the top of the page. The tasks were enqueued as 0, 1, 2, 3, but nothing orders tasks of different streams, and the device may begin with any of them.
#
# ## Where it goes wrong: memory that is not pinned
#
# The same work in four tasks, from ordinary NumPy arrays. Nothing else in the program is different.

# %%
if on_gpu():
    plain, plain_out = np.array(x), np.empty_like(x)
    pageable = timeline(streams.Pipeline(work, plain, chunks=4, streams=4, pinned=False, out=plain_out))
else:
    pageable = streams.Timeline.of(recorded(case="timeline", memory="pageable")[0])
pageable.plot("stream");

# %% [markdown]
# The copies are slower, and the host waits for each of them before it enqueues the next operation. So there is next to no overlap, in spite of four streams. If a timeline of yours looks like this, look for the array that is not pinned.
#
# ## Where it goes wrong: one buffer for all
#
# With `buffers="shared"`, all tasks use *one* buffer on the device. Enqueue them **breadth first**, all copies in, then all kernels, then all copies out, and the result cannot be right:

# %%
words = np.arange(1000, dtype=np.uint32)
expected = streams.scrambled(words, 3)
for order in ("breadth", "depth"):
    shared = streams.run_pipeline(streams.WorkKernel(3), words, buffers="shared", order=order)
    races, right = shared.schedule.races(), np.count_nonzero(shared.result == expected)
    print(f"{order:8} {right} of {words.size} right, {len(races)} races")
print("one of them:", races[0])

# %% [markdown]
# **Depth first**, task by task, the result may well be right, today, on this machine: one task is often done before the next one gets to the buffer. A test would pass. So `races` does not look at results. It looks for two operations that use the same memory, at least one of them to write to it, and that are ordered neither by a stream nor by an event.
#
# A buffer for each task cures it, and so does one for each stream, since the tasks of a stream run one after the other. The second needs less memory, so even data larger than the device's memory can go through it.

# %%
for buffers in ("stream", "task"):
    cured = streams.run_pipeline(streams.WorkKernel(3), words, buffers=buffers, order="breadth")
    print(f"buffers={buffers!r}: right: {np.array_equal(cured.result, expected)}, races: {len(cured.schedule.races())}")

# %% [markdown]
# ## Depth or breadth?
#
# Old advice says: breadth first. The first GPUs that could overlap had *one* queue for all copies. Depth first, the copy out of task 0, which waits for its kernel, blocked the copy in of task 1. Today streams have queues of their own. The model has a switch for that:

# %%
for name, old in {"one queue for all copies": True, "a queue for each stream": False}.items():
    variant = streams.Model().replace(in_order=old, copy_engines=1 if old else 3, name=name)
    for order in ("depth", "breadth"):
        pipeline = streams.Pipeline(work, x, chunks=8, streams=4, order=order, out=out)
        played = streams.modelled(pipeline.schedule, variant)
        print(f"{name:26}{order:8} {played.duration * 1e3:7.3f} ms, {played.overlap:.0%} overlapped (modelled)")

# %%
rows = {}
for record in recorded(case="pipeline", shape=(2**25,), memory="pinned"):
    row = rows.setdefault(record["chunks"], {"chunks": record["chunks"]})
    row[f"{record['order']} first, ms"] = f"{record['value'] * 1e3:.3f}"
print(f"128 MB each way, {WHERE}")
results.table(list(rows.values()))

# %% [markdown]
# On the H200 the order hardly matters. Write what is easier to read: task by task.
#
# ## One stream waits for another
#
# So far the tasks were independent. If an operation needs the result of one in another stream, an event orders them. Record the event in one stream, and let the other stream wait for it. The host does not wait:


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
event.record(first)  # reached when the kernel is done
event.wait(second)  # whatever is enqueued here from now on waits for it
differences[4, 256, second](a, b)
second.synchronize()
print("right:", np.array_equal(b.copy_to_host(), 2 * np.arange(999) + 1))

# %% [markdown]
# A `streams.Schedule` is a program for several streams, as a list: `schedule.add(engine, action, stream, reads=[...], writes=[...], after=[...])` adds an operation and returns its number, and `after` holds the numbers of operations that it waits for by an event. A schedule can be run, played through on a model, and searched for races.
#
# An event costs a microsecond, and a missing one costs a day. So which ones are needed? Here are six kernels in three streams. Each writes the buffer of its name, and three of them read others.


# %%
def my_plan(schedule):
    def kernel(name, stream, reads=(), after=()):
        return schedule.add("kernel", print, stream, name=f"kernel {name}", reads=reads, writes=[name], after=after)

    a, b, c = (kernel(name, stream) for stream, name in enumerate("abc"))  # the numbers of these operations
    # 3 lists: add after=[...] where a kernel has to wait for another stream, with four events
    # at most
    d = kernel("d", 0, reads=["a", "b"])
    e = kernel("e", 1, reads=["b", "c"])
    kernel("f", 2, reads=["d", "e"])


exercises.check("06-events", my_plan)

# %% [markdown]
# ## How many chunks?
#
# More chunks mean more overlap, but each costs the host time, and small copies are slow. Let the whole take h, k and d seconds for copy in, kernel and copy out, and let each chunk cost t seconds besides. Then
#
# ```
# T(N) = (h + k + d) / N  +  (N - 1) / N * max(h, k, d)  +  N * t
# ```
#
# One chunk goes through all three stages, the others follow at the pace of the slowest stage, and each has its cost. Which N is the best?


# %%
def my_chunks(h, k, d, t):
    # About 2 lines: the N for which T(N) is least, as an int from 1 on
    ...


exercises.check("06-chunks", my_chunks)

# %% [markdown]
# Here is the formula, `streams.predicted`, beside what was measured:

# %% jupyter={"source_hidden": true}
SIZES = sorted({record["shape"][0] for record in recorded(case="pipeline")})


def stages_of(elements):
    """h, k, d, and both copies at the same time, in seconds."""
    found = results.by_variant(recorded(case="stage", shape=(elements,)))
    return [found[name] for name in ("copy in", "kernel", "copy out", "both copies")]


def tasks(elements, chunks, kernel):
    """What a pipeline of equal chunks enqueues, with a kernel of so many seconds, without anything to run."""
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
            ax.plot(list(here), [seconds * 1e3 for seconds in here.values()], "x", label=f"this {info.name}")
        ax.axhline(max(*stages, both) * 1e3, color="grey", linewidth=1)
        ticks = [n for n in chunks if n & (n - 1) == 0]
        ax.set(xscale="log", xticks=ticks, xticklabels=ticks, xlabel="chunks", ylabel="ms", ylim=(0, None))
        ax.minorticks_off()
        ax.set_title(f"{4 * elements / 2**20:,.0f} MB each way")
    axes[0].legend()

# %% [markdown]
# The grey line is the least that any number of chunks could reach: the slowest stage, or both copies at the same time where these take longer. The formula predicts the best number of chunks well, and has two faults. It ignores that the two directions of the bus slow each other down. And it adds the host's time to the device's, although the host enqueues the next chunk while the device works on this one. The modelled device takes both into account.

# %%
rows = []
for elements in SIZES:
    *stages, both = stages_of(elements)
    best = min(recorded(case="pipeline", shape=(elements,), memory="pinned", order="depth"), key=lambda r: r["value"])
    limit, gain = streams.best_speedup(*stages, both), sum(stages) / best["value"]
    row = {"MB each way": f"{4 * elements / 2**20:,.0f}", "h, k, d in ms": ", ".join(f"{s * 1e3:.3f}" for s in stages)}
    row |= {"both copies, ms": f"{both * 1e3:.3f}", "best N": best["chunks"], "T, ms": f"{best['value'] * 1e3:.3f}"}
    rows.append(row | {"speedup": f"{gain:.2f}", "at most": f"{limit:.2f}", "share": f"{gain / limit:.0%}"})
print(WHERE)
results.table(rows)

# %% [markdown]
# With three stages of the same length the speedup would be at most 3, if doing everything at the same time slowed nothing down. It does, so "at most" is less: the sum of the stages over the slowest of h, k, d and *both copies at the same time*. Large arrays come close to it. A megabyte does not: copying it takes less time than enqueuing its chunks, and the pipeline is *slower* than one stage after the other.
#
# **Check yourself.** A kernel takes ten times as long as each copy. What is the most that overlap can gain? And if it takes a tenth?
#
# <details><summary>Answer</summary>12 / 10 = 1.2, and 2.1 / 1 = 2.1. Overlap gains most where the stages are equal.</details>
#
# ## Frames
#
# A camera or a video decoder delivers frames. Each must go to the device, be resized for a network, and perhaps come back. A pipeline also takes a function of (source, target, stream) in place of a kernel. Here each row of the array is a whole frame, and the result has another shape:

# %%
count, height, width = (64, 1080, 1920) if on_gpu() else (6, 54, 96)
frames = cuda.pinned_array((count, height, width, 3), np.uint8)
frames[...] = np.random.default_rng(3).integers(0, 256, frames.shape, np.uint8)
resized = cuda.pinned_array((count, width // 3, width // 3, 3), np.uint8)  # 640 x 640 on a GPU


def shrink(source, target, stream):
    resize.resize(source, target.shape[1:3], out=target, stream=stream)


result = streams.run_pipeline(shrink, frames, chunks=count // 2, streams=3, out=resized).result
print("right:", np.array_equal(result, resize.resize(frames, resized.shape[1:3])))
for record in recorded(case="frames"):
    print(f"{record['chunks']:4} chunks {record['value'] * 1e3:6.2f} ms, {64 / record['value']:,.0f} frames/s")
print(f"64 frames of 1920 x 1080 to 640 x 640, {WHERE}")
streams.Timeline.of(recorded(case="frames timeline")[0]).plot("engine");

# %% [markdown]
# The kernel hardly shows: copying a frame in takes far longer than resizing it. No faster kernel would help. Fewer bytes would: send the compressed frame and decode it on the device. The copy out, which a network on the same device would spare, is hidden already.
#
# ## What a launch costs
#
# Small chunks and small kernels make the *host* the bottleneck, because enqueuing takes time: the **launch overhead**. Launches and kernels overlap, as copies and kernels do. If the host needs `launch` microseconds for a launch, and the device `kernel` microseconds for a kernel, how long do n of them take?


# %%
def my_total(n, launch, kernel):
    # 1 or 2 lines: the time from the first launch to the end of the last kernel
    ...


exercises.check("06-launches", my_total)

# %% [markdown]
# Where does the host's time go? At every call, `kernel[grid, block](x, y, out, 3)` looks up the types of the arguments and the compiled kernel for these types, and packs the arguments. There are several ways to do less. On a GPU the cell below times 200 launches in a row of a small kernel with three arrays and a number; the libraries and the graphs are from the record.


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
prepared()  # the same arguments; prepared(*others) launches it with others
print("right:", (vectors[2].copy_to_host() == 7).all())

# %% jupyter={"source_hidden": true}
launches = {
    "kernel[grid, block](...)": lambda: plain[4, 256](*arguments),
    "explicit signature": lambda: typed[4, 256](*arguments),
    "configuration bound before": partial(plain[4, 256], *arguments),
    "explicit signature, bound before": partial(typed[4, 256], *arguments),
    "gpukit.launching, same arguments": prepared,
    "gpukit.launching, other arguments": partial(prepared, *arguments),
}
forms = results.by_variant(recorded(case=("launch", "graph replay")))
forms["explicit signature, bound before"] = forms.pop("both")
if on_gpu():
    timings = timing.bench_many(launches, device="cpu", setup=cuda.synchronize, calls=200, repeat=15)
    forms |= {name: timed.median for name, timed in timings.items()}
forms = {name: 1e6 * seconds for name, seconds in sorted(forms.items(), key=lambda form: -form[1])}
mark = f"{info.name}; libraries: {WHERE}" if on_gpu() else WHERE
plot.dots(forms, "us per launch", title="Launch overhead on the host", mark=mark);

# %% [markdown]
# - An **explicit signature** and a configuration **bound before** the launches (`step = kernel[grid, block]`) save next to nothing, alone or together. The time goes into the arguments.
# - **Arrays of another library** are wrapped at every launch, which costs more than all the rest. Call `cuda.as_cuda_array(x)` once, before the loop.
# - **`gpukit.launching.prepare`** packs the arguments once. A launch then costs about as much as a library's, and less if the arguments are the same as before. It is safe: arguments of other types are refused, and arrays are kept alive.
# - A **CUDA graph** holds many launches and enqueues them as one. It pays where the same sequence comes again and again.
#
# Copies have the same problem. `copy_to_device` inspects both arrays before it enqueues anything, and a pipeline does that once. The host's time for enqueuing a copy:

# %%
costs = results.by_variant(recorded(case="cost"))
for name in ("copy_to_device", "prepared copy"):
    print(f"{name:16}{costs[f'host, {name}'] * 1e6:6.1f} us ({WHERE})")

# %% [markdown]
# ## The same in Nsight Systems
#
# This chapter's timelines need no tool. For a whole application a profiler is the better view: `nsys profile --trace=cuda,nvtx -o pipeline python script.py`, then `nsys stats pipeline.nsys-rep` for tables, or the file in the desktop program for the picture. It has a row for each stream, and above them one for the calls of the host. Look for
#
# - **gaps in all rows at once**: the device waits for the host. Launches are too small or too slow, or something synchronises, often a copy without a stream;
# - **copies marked "pageable"**: pin the array;
# - **bars of different streams that never overlap**: something is in the default stream, which waits for all others, and for which all others wait.
#
# ## From the source
#
# The course notes time four tasks of 1,048,576 floats with a kernel that only sleeps, on a grid of (64, 64) blocks of (16, 16) threads, in one stream and in four. All tasks share one buffer. That is the race from above, and it went unseen, because nobody looks at the data of a kernel that sleeps. The notes do not say how long it slept, so several lengths were tried on the H200:

# %%
notes = results.documents("A13")
theirs = {row["streams"]: row["milliseconds"] for row in notes["tables"][0]["rows"]}
rows = [{"": f"{notes['gpu']}, course notes", "1 stream, ms": f"{theirs[1]:.3f}", "4 streams, ms": f"{theirs[4]:.3f}"}]
rows[0]["speedup"] = f"{theirs[1] / theirs[4]:.2f}"
for cycles in sorted({record["cycles"] for record in recorded(case="documents")}):
    ours = {r["streams"]: r["value"] * 1e3 for r in recorded(case="documents", cycles=cycles)}
    row = {"": f"{WHERE}, {cycles:,} cycles", "1 stream, ms": f"{ours[1]:.3f}", "4 streams, ms": f"{ours[4]:.3f}"}
    rows.append(row | {"speedup": f"{ours[1] / ours[4]:.2f}"})
results.table(rows)

# %%
streams.Timeline.of(results.first(recorded(case="documents"), cycles=250_000, streams=4)).plot("stream");

# %% [markdown]
# Copies hide behind kernels, but the kernels hardly overlap with each other. 4,096 blocks of 256 threads fill an H200 several times over, so the first blocks of a kernel find room only when the last ones of the previous kernel leave. Kernels that do *not* fill the device can run side by side. Four of one block each:

# %%
for record in recorded(case="small kernels"):
    print(f"{record['variant']:10} {record['value'] * 1e3:.3f} ms ({WHERE})")
for count in (1, 4) if on_gpu() else ():
    tiny = streams.Pipeline(streams.SleepKernel(500_000, 1, 32), np.zeros(4, np.float32), chunks=4, streams=count)
    print(f"{count} stream{'s' * (count > 1):1}  {timeline(tiny).busy('kernel') * 1e3:.3f} ms ({info.name})")

# %% [markdown]
# ## Exercise: few buffers, no waiting
#
# Video never ends, but device memory does. So tasks take turns with a fixed number of buffers: task i uses buffer pair i % buffers, one buffer for its data and one for its result. Each task comes as three dicts, with all arguments of `schedule.add` but two: write `schedule.add(**copy_in, stream=..., after=[...])`. Use one stream for each engine, and events between them. The two buffers of a pair become free at different moments. If you wait for the later one, you lose time; if you wait for none, you have a race. The check finds both.


# %%
def fill_ring(schedule, tasks, buffers):
    kernels, copies_out = [], []  # the numbers of these operations, by task
    for task, (copy_in, kernel, copy_out) in enumerate(tasks):
        # About 6 lines: stream 0 for copies in, 1 for kernels, 2 for copies out, and the events
        # that they need
        ...


exercises.check("06-ring", fill_ring)

# %% [markdown]
# ## Two questions
#
# **One copy engine.** Many graphics cards have one or two. Play the pipeline of 8 chunks through on `streams.Model().replace(copy_engines=1)`. How much of the gain is left, and why is it more than nothing? What would it be with `copy_engines=0`?
#
# <details><summary>Answer</summary>With one engine the copies in and out take turns, so they need h + d together. Three stages of the same length gain at most 3 / 2, where three engines allow 3. What is left comes from the kernels, which still hide behind copies. Without a copy engine nothing overlaps, and eight chunks take longer than one, since each has its cost.</details>
#
# **Two streams or four?** Make pipelines of 16 chunks with 1, 2, 3 and 4 streams. From which number on does nothing change, and why?
#
# <details><summary>Answer</summary>From three on. Three engines can be busy at a time: with copies in, with kernels, with copies out. With two streams at most two operations run at the same time, so one engine is always idle. A fourth stream has no fourth engine to keep busy. A real device may want a few more, which bridge the time in which the host enqueues.</details>
#
# ## Key points
#
# - A stream is a queue. The host enqueues and goes on; an event tells how far the device has come.
# - Copies in, copies out and kernels overlap, if the device has the engines and the host memory is pinned.
# - Give each task or each stream buffers of its own, or order their use by events. A right result does not prove that there is no race; look at what orders what.
# - Overlap gains at most (h + k + d) / max(h, k, d), and less where the two directions slow each other down.
# - A few dozen chunks are enough. The best number is a square root.
# - A launch costs the host microseconds. Prepare what you repeat.
#
# **Back:** [05 Matmul all the way](05_fast_matmul.ipynb). **Next:** [07 Reduce](07_reduce.ipynb).
