# %% [markdown]
# # 10 Profiling
#
# A kernel is slow. Which line do you change? There are two ways to find out: a profiler watches the GPU, and a trace counts what the kernel asks of it. This chapter uses both, compares their figures, and then treats five slow kernels with them.
#
# **After this chapter you will be able to**
#
# - run Nsight Systems and Nsight Compute from a shell, in a container and from a notebook, and say which of them comes first;
# - read a report: which figures say what limits a kernel, and which of them a trace gives without a GPU;
# - tell a kernel as it is written from what the compiler makes of it;
# - place a kernel on a roofline, and bound its time from below with its trace;
# - diagnose a slow kernel from its counts, and fix it;
# - choose inputs that expose a kernel which is fast because it is wrong.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb) and [04 Bank conflicts](04_bank_conflicts.ipynb). No GPU, and no profiler: figures from an H200 come with the course.
#
# **Time:** 100 minutes, six exercises included.

# %%
import shutil
import warnings

import numpy as np

import gpukit
from gpukit import cuda, exercises, matmul, on_gpu, pitfalls, plot, prediction, results, show, timing

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here

# %% [markdown]
# Five patients are waiting for you. Each is slow for one reason, and its fix changes a few lines at most:

# %% jupyter={"source_hidden": true}
rows = []
for number, name in enumerate(pitfalls.PATIENTS, 1):
    records = results.load("pitfalls-h200", pitfall=name, case="call" if name == "launch-bound" else "kernel")
    seconds = results.by_variant(records)
    row = {"patient": number, "slow": timing.format_seconds(seconds["slow"])}
    row |= {"fixed": timing.format_seconds(seconds["fixed"])}
    rows.append(row | {"times as fast": f"{seconds['slow'] / seconds['fixed']:.1f}", "on": results.taken_on(records)})
results.table(rows)

# %% [markdown]
# ## First the whole, then one kernel
#
# If you start with the most interesting kernel, you may optimise what does not matter. There are two questions, and a tool for each:
#
# | question | tool | it shows |
# |---|---|---|
# | Where does the time of the program go? | **Nsight Systems**, `nsys` | a timeline: the calls of the host, copies and kernels, and the gaps in which the GPU is idle |
# | Why does this kernel take so long? | **Nsight Compute**, `ncu` | one kernel: how busy each part of the GPU is, and hundreds of counters, down to the line |
#
# Nsight Systems hardly disturbs the program. Nsight Compute replays each kernel many times, because it can read only a few counters at a time, so a program may run a hundred times slower under it. Pick one kernel, and one launch of it:
#
# ```sh
# nsys profile -o report --stats=true python program.py      # writes report.nsys-rep, and prints tables
# nsys stats --report cuda_gpu_kern_sum --format csv report.nsys-rep
#
# ncu --set full -o report --kernel-name regex:tiled --launch-skip 1 --launch-count 1 python program.py
# ncu --import report.ncu-rep --page details                 # the same as text; --csv for a table
# ```
#
# `--launch-skip 1` leaves out the first launch, which is not like the others: the GPU has not reached its clock yet. The reports, `.nsys-rep` and `.ncu-rep`, open in the desktop programs `nsys-ui` and `ncu-ui`, on any machine, with or without a GPU.
#
# **In a container.** Nsight Compute needs permission to read hardware counters. If it says `ERR_NVGPUCTRPERM`, give the container the capability `SYS_ADMIN`:
#
# ```sh
# docker run --gpus all --cap-add=SYS_ADMIN -v "$PWD":/src -w /src IMAGE ncu --set full -o report python program.py
# ```
#
# Outside a container, root has the permission, and so does every user if the driver was loaded with `NVreg_RestrictProfilingToAdminUsers=0`. Nsight Systems does not need it for its timeline.
#
# **From a notebook.** `nsys` and `ncu` start the process they watch, but a notebook's process is already running. So write the program to a file in one cell, and profile it in another. A line that begins with `!` goes to the shell:
#
# ```python
# %%writefile program.py
# import numpy as np
# from gpukit import cuda, matmul
#
# a, b = (cuda.to_device(np.random.default_rng(seed).random((1024, 1024), np.float32)) for seed in (1, 2))
# for _ in range(2):
#     out = matmul.matmul(a, b, "tiled")
# cuda.synchronize()
# ```
#
# ```sh
# !ncu --clock-control none --launch-skip 1 --launch-count 1 --section SpeedOfLight python program.py
# ```
#
# By default Nsight Compute locks the clock to its base rate. Then two reports can be compared with each other, but not with times measured elsewhere. `--clock-control none` leaves the clock alone. NVIDIA's Python package `nsight-python` wraps all this in a decorator, which also works in a notebook.
#
# > **From the source.** The documents teach the same order, first the application in Nsight Systems, then one kernel in Nsight Compute, with the command lines, the `SYS_ADMIN` capability for a container, and the report copied to a desktop and opened there. They show no report and no figures. There is no `.ncu-rep` file to open here either: it is a binary file for NVIDIA's programs, and it describes the machine that it was made on. The course stores the figures as tables, which the next sections use. On a GPU machine the `ncu` line above writes a report of your own.

# %%
for tool in ("nsys", "ncu"):
    print(tool, "is installed" if shutil.which(tool) else "is not installed here")

# %% [markdown]
# ## A timeline
#
# Here is the timeline of a small program, recorded on an H200. Three times, it makes a matrix of random numbers, copies it to the GPU, multiplies it there by another one, and copies the product back:


# %%
def application(rows=512):
    b, out = (cuda.to_device(np.random.rand(rows, rows).astype(np.float32)) for _ in range(2))
    launch, further = matmul.configure("tiled", out.shape)
    for _ in range(3):
        a = cuda.to_device(np.random.rand(rows, rows).astype(np.float32))
        launch(a, b, out, *further)
        product = out.copy_to_host()
    return product


# %% jupyter={"source_hidden": true}
about, timeline = results.profile("timeline-h200")
for row in timeline:
    row["begin"], row["end"] = float(row["begin"]), float(row["begin"]) + float(row["duration"])
    row["kind"] = "launch" if row["lane"] == "host" else "copy" if "Mem" in row["name"] else "kernel"


def draw(ax, first, last):
    """The bars between two times in us."""
    for kind, color in (("launch", 7), ("kernel", 5), ("copy", 1)):
        chosen = [row for row in timeline if row["kind"] == kind and first <= row["begin"] <= last]
        at, left = [row["lane"] == "host" for row in chosen], [row["begin"] for row in chosen]
        widths = [row["end"] - row["begin"] for row in chosen]
        ax.barh(at, widths, left=left, color=plot.PALETTE[color], label=kind)
    ax.set(yticks=[0, 1], yticklabels=["device", "host"], xlabel="us", xlim=(first, last))


with plot.figure(size=(8, 3.4), rows=2, mark=about) as (whole, part):
    draw(whole, -50, timeline[-1]["end"] + 50)
    whole.set_title("the whole program")
    whole.legend(loc="upper right", ncols=3, bbox_to_anchor=(1, 1.4))
    draw(part, timeline[0]["begin"] - 20, timeline[3]["end"] + 20)
    part.set_title("its first round")

span = timeline[-1]["end"] - timeline[0]["begin"]
for kind in ("kernel", "copy"):
    busy = sum(row["end"] - row["begin"] for row in timeline if row["kind"] == kind)
    print(f"{kind:8}{busy:6.0f} us of {span:,.0f}: {busy / span:.1%}")

# %% [markdown]
# (PyTorch's profiler wrote this record. It uses the same driver interface, CUPTI, as Nsight Systems.)
#
# **Predict:** by what factor would this program be faster if its kernels took no time at all? Two decimals will do.

# %%
my_answer = None
exercises.check("10-amdahl", my_answer)

# %% [markdown]
# <details><summary>What the timeline says</summary>
#
# Hardly at all. Most of the time the GPU is idle. The largest gaps lie between the rounds, while the host makes random numbers; within a round there are gaps in which the host prepares the next call. This is **Amdahl's law**: what you do not improve stays. What would help: make the numbers on the GPU, or make those of the next round while the GPU works on this one, as in chapter 06.
#
# </details>

# %% [markdown]
# ## One kernel
#
# Now a kernel that does work: the product with tiles of 16 in shared memory from chapter 03, for matrices of 1024 by 1024. `gpukit bench profile` ran it and `tiled_conflict` of chapter 04 under `ncu --set full --clock-control none`, and kept the figures. Here are the counters, beside the counts of `gpukit.trace`, which traces one block here and scales its counts to the whole grid:

# %%
a, b = np.random.default_rng(1).standard_normal((2, 1024, 1024)).astype(np.float32)
out = np.zeros_like(a)
traces = {
    "tiled": gpukit.trace(matmul.tiled(np.float32, 16)[(64, 64), (16, 16)], a, b, out, blocks=1),
    "tiled_conflict": gpukit.trace(matmul.tiled_conflict(np.float32, 16)[(64, 64), (16, 16)], a, b, out, blocks=1),
}
about, report = results.profile("matmul-h200")
counters = results.load("matmul-h200", shape=(1024, 1024, 1024), tile=16, dtype="float32")
rows = []
for space, op, field in (
    *(("global", "load", "requests"), ("global", "load", "sectors"), ("global", "store", "sectors")),
    *(("shared", op, field) for op in ("store", "load") for field in ("requests", "wavefronts")),
):
    row = {about: f"{space} {op} {field}"}
    for kernel, trace in traces.items():
        compiled = results.first(counters, case=f"{space} {op} {field}", variant=kernel)["value"]
        row |= {f"{kernel}, trace": f"{getattr(trace.total(space, op), field):,}", f"{kernel}, ncu": f"{compiled:,}"}
    rows.append(row)
results.table(rows)

# %% [markdown]
# For global memory the trace and the hardware agree to the last request. They agree on the store requests in shared memory, too. The hardware counts slightly more wavefronts for them, because accesses get in each other's way.
#
# The shared *loads* differ, and they should. A trace counts the kernel **as it is written**; the profiler sees it **as it was compiled**. In the inner loop a thread reads `tile_a[ty, k]` for k = 0, 1, 2, 3 ...: neighbours in a row that begins at a multiple of 16 bytes. The compiler merges four of these loads into one of 128 bits. The machine code shows it:

# %% jupyter={"source_hidden": true}
import re
from collections import Counter

machine_code = (results.PROFILES / "tiled-sm90.sass").read_text().splitlines()
labels = {line[:-1]: number for number, line in enumerate(machine_code) if line.endswith(":")}
loops = []  # from a label to the branch back to it
for number, line in enumerate(machine_code):
    branch = re.search(r"BRA `\((.+)\)", line)
    if branch and labels[branch[1]] < number:
        loops.append([line for line in machine_code[labels[branch[1]] : number + 1] if not line.endswith(":")])
body = max(loops, key=lambda loop: sum("FFMA" in line for line in loop))

print(machine_code[0])
print(f"{len(body)} instructions in the loop over tiles:")
opcodes = Counter(re.search(r"\*/ +(?:@\S+ +)?(\S+)", line)[1] for line in body)
for opcode, count in opcodes.most_common(8):
    print(f"{count:5} {opcode}")

# %% [markdown]
# This is **SASS**, the GPU's machine code. `kernel.inspect_sass(signature)` returns it where the CUDA toolkit is installed. One iteration handles a tile: 16 multiply-adds (`FFMA`), 16 scalar loads of `tile_b` (`LDS`), whose elements lie in a column, but only four loads of `tile_a` (`LDS.128`). The loop over k is gone: it was unrolled. The rest fills the tiles: addresses, guards and barriers.
#
# Which count is right? Both. One describes what you wrote and can change, the other what you got. Where they differ, the compiler was at work, and a change that hinders it (a pad that moves rows off multiples of 16 bytes, an index it cannot see through) costs more than the trace alone would say.

# %% [markdown]
# ## How to read a report
#
# A full report has dozens of figures in ten sections. A few of them tell you where to look:

# %% jupyter={"source_hidden": true}
READ_FIRST = (
    ("Duration", "ns", "under the profiler, with cold caches"),
    ("Memory Throughput", "%", "the busiest part of the memory system"),
    ("DRAM Throughput", "%", "of it: memory itself"),
    ("L2 Cache Throughput", "%", "of it: the L2 cache"),
    ("L1/TEX Cache Throughput", "%", "of it: L1 and shared memory, while the SM is active"),
    ("Compute (SM) Throughput", "%", "the busiest part of the SMs' arithmetic"),
    ("Achieved Occupancy", "%", "resident warps, of those that would fit"),
    ("Eligible Warps Per Scheduler", "warp", "resident warps that are ready to issue"),
    ("No Eligible", "%", "cycles in which none was ready"),
    ("Registers Per Thread", "register/thread", ""),
)
rows = []
for metric, unit, meaning in READ_FIRST:
    row = {"metric": metric, "unit": unit}
    for kernel in traces:
        found = next(r for r in report if (r["kernel"], r["metric"], r["unit"]) == (kernel, metric, unit))
        row[kernel] = f"{float(found['value']):,.1f}"
    rows.append(row | {"meaning": meaning})
results.table(rows)

# %% [markdown]
# In `ncu-ui` they are on the page *Details*, in the sections *GPU Speed Of Light Throughput*, *Scheduler Statistics*, *Occupancy* and *Launch Statistics*; the page *Source* has the counters of each line.
#
# Read from the top. First: **which part is busy?** A part with a throughput above 80 % limits the kernel, and the only way to be faster is to ask less of that part. For both kernels it is L1 and shared memory, while DRAM has next to nothing to do. If no part is above 60 %, the kernel is **latency-bound**: it waits for memory or at barriers, and has too few warps to hide that. Little's law of chapter 07 says how much must be in flight. Then look at the eligible warps: a scheduler needs one in every cycle.
#
# **Occupancy** is not a goal. It says how many warps there are to hide latency with. A block of these kernels has 256 threads with 32 registers each:

# %%
plot.multiprocessor(threads=256, registers=32, shared_bytes=2 * 16 * 16 * 4);
# %% [markdown]
# The SM is full, and yet the kernel `fast` of chapter 05b, with an eighth of these warps, is several times as fast.

# %% [markdown]
# ## What a GPU can do at most
#
# The percentages above refer to ceilings. Each ceiling can be measured, by a kernel that needs nothing else; `gpukit bench ceilings` does that. The one for arithmetic is the first kernel of [chapter 05](05_fast_matmul.ipynb): it keeps chains of multiply-adds in registers and touches no memory.

# %% jupyter={"source_hidden": true}
CEILINGS = (
    ("float32 arithmetic, a multiply-add counts 2", "TFLOP/s", lambda c: c.fp32 * 1e-12),
    ("float64 arithmetic", "TFLOP/s", lambda c: c.fp64 * 1e-12),
    ("conversions from and to float64", "10¹² per second", lambda c: c.conversions * 1e-12),
    ("instructions of warps", "10¹² per second", lambda c: c.instructions * 1e-12),
    ("reading memory", "TB/s", lambda c: c.dram_read * 1e-12),
    ("a copy, both ways together", "TB/s", lambda c: c.dram_copy * 1e-12),
    ("L2 to the SMs", "TB/s", lambda c: c.l2_loads * 32e-12),
    ("stores to L2, whole lines", "TB/s", lambda c: c.l2_stores * 32e-12),
    ("stores to L2, one sector of each line", "TB/s", lambda c: c.l2_lines * 32e-12),
    ("shared memory and L1", "TB/s", lambda c: c.wavefronts * 128e-12),
    ("latency of memory", "ns", lambda c: c.trip * 1e9),
    ("a store, a barrier and a load in shared memory", "ns", lambda c: 1e9 / c.steps),
    ("empty blocks", "10⁹ per second", lambda c: c.blocks * 1e-9),
    ("the shortest kernel", "us", lambda c: c.launch * 1e6),
)
ceilings = prediction.recorded()
head = f"{ceilings.device}, {ceilings.date}"
results.table([{head: what, "value": f"{of(ceilings):.2f}", "unit": unit} for what, unit, of in CEILINGS])

# %% [markdown]
# **Predict:** how many float32 operations can this GPU do in the time in which it reads one float32 from memory?

# %%
my_answer = None
exercises.check("10-balance", my_answer)

# %% [markdown]
# The number you found is the GPU's balance of arithmetic and bandwidth, per float32; per byte it is a quarter of that. The **arithmetic intensity** of a kernel is its operations for each byte that it moves to or from memory. A kernel whose intensity is below the balance is **memory-bound**; one above it can be **compute-bound**. A sum does one operation per float, so it is memory-bound by far.

# %% [markdown]
# ## The least time
#
# Divide what a kernel asks for by what the GPU can do, resource by resource. Each quotient is how long that resource is busy if it never pauses. The largest of them, plus the time of the shortest kernel, is a lower bound for the time of the kernel *as written*: if the compiler merges nothing. `gpukit.predict` (or `trace.predict()`) does this with the counts of a trace. **Issue** stands for the instructions that the SMs have to start: those that are written, and those that the compiler adds for addresses and loops. The trace can only estimate the latter, so this row is not a strict bound.

# %%
gpukit.predict(traces["tiled"])

# %% [markdown]
# Shared memory is the limit, as in the report. Now the bounds of both kernels beside their durations:

# %%
for kernel, trace in traces.items():
    predicted = trace.predict()
    measured = next(float(row["value"]) for row in report if (row["kernel"], row["metric"]) == (kernel, "Duration"))
    print(f"{kernel:15} at least {predicted.seconds * 1e6:5.0f} us ({predicted.limit}); it took {measured / 1e3:5.0f} us")

# %% [markdown]
# Both took *less* than their bound, because the compiler merged loads, in `tiled_conflict` those with most of the conflicts. When a kernel beats its bound, look at what the compiler did.
#
# The blocks of a large matrix do the same as those of a small one. So trace a small matrix, and pass the grid of the large one:

# %%
small, large = (gpukit.transpose.configure("naive", (size, size)) for size in (256, 8192))
matrix = np.random.default_rng(3).integers(0, 99, (256, 256), np.uint32)
trace = gpukit.trace(small, matrix, np.empty_like(matrix))
trace.predict(grid=large.griddim)

# %% [markdown]
# The naive transpose writes down columns. What limits it is neither DRAM nor shared memory, but the L2 cache: each element that a warp stores goes to a different line. The next resource is busy for less than a third of that time.

# %% [markdown]
# ## The roofline
#
# The **roofline** is a picture of the two resources that matter most. The arithmetic intensity is on the horizontal axis, the operations per second on the vertical one. The slope is the memory bandwidth, the flat part the arithmetic, and no kernel that reads its data from memory can lie above them. Here is every kernel of the course that has been measured, with bytes and operations from its trace; the rungs of a ladder are joined, and its first and last have their names. Kernels without arithmetic, transposes and im2col, have a panel of their own:

# %% jupyter={"source_hidden": true}
recorded = results.load("predictions-h200")


def key_of(record):
    """What tells a kernel from all others."""
    return tuple(record.get(name) for name in ("chapter", "variant", "shape", "dtype", "tile", "pad", "depth"))


times = {key_of(record): record["value"] for record in recorded if record["case"] == "time"}
as_written = [(r, times[key_of(r)]) for r in recorded if r["case"] == "least time"]
as_executed = [(r, times[key_of(r)]) for r in recorded if r["case"] == "least time, instructions counted"]
points = []
for least, seconds in as_written:
    point = {"group": least["chapter"], "flops": least["flops"], "bytes": least["bytes"], "seconds": seconds}
    first_rungs = least["variant"] in ("naive", "tiled") and least.get("tile") == 16
    if least["dtype"] == "float32" and (first_rungs or least["shape"][-1] in (4096, 2**24, 768)):
        point |= {"ladder": least["chapter"], "label": least["variant"]}
    points.append(point | {"predicted": least["value"], "measured": seconds})
mark = f"counted by the trace; times: {results.taken_on(recorded)}"
plot.roofline(points, ceilings, title="Kernels of the course under their roof", mark=mark);

# %% [markdown]
# Matrix products are far to the right: memory is no excuse for them. The simple ones are far below the roof for reasons that this picture does not show: shared memory, and instructions. A roofline has two resources, and most kernels are limited by a third.

# %% [markdown]
# ## How good is such a bound?
#
# A lower bound is not a prediction, so how close does it come? The next figure has the measured time against the bound, for all these kernels. The band is a factor of 1.5 to either side. On the left is what a trace gives without a GPU; on the right the executed instructions were counted with Nsight Compute and given to `predict(trace, instructions=...)`:

# %% jupyter={"source_hidden": true}
WITHIN = 1.5
executed = [
    {"group": least["chapter"], "predicted": least["value"], "measured": seconds} for least, seconds in as_executed
]
with plot.figure(size=(8, 4.2), columns=2, mark=mark, sharey=True) as axes:
    plot.compared([{**point, "label": None} for point in points], within=WITHIN, ax=axes[0])
    axes[0].set(title="from the trace alone", xlabel="lower bound, us")
    plot.compared(executed, within=WITHIN, ax=axes[1])
    axes[1].set(title="with counted instructions", xlabel="lower bound, us", ylabel="")


def near(pairs):
    """How many of some (prediction, seconds) are within the factor."""
    return sum(1 / WITHIN <= seconds / least["value"] <= WITHIN for least, seconds in pairs)


shown = {"from the trace alone": as_written, "with counted instructions": as_executed}
for chapter in dict.fromkeys(least["chapter"] for least, _ in as_written):
    shown[chapter] = [pair for pair in as_written if pair[0]["chapter"] == chapter]
for what, pairs in shown.items():
    ratio = np.median([seconds / least["value"] for least, seconds in pairs])
    near_ones = f"{near(pairs):4} of {len(pairs):3} within a factor of {WITHIN}"
    print(f"{what:26}{near_ones}; median of measured / bound {ratio:.2f}")

# %% [markdown]
# The estimate for addresses and loops rests on a few rules and a dozen small numbers. They were read off the machine code of two matrix products and of a letterbox, and checked against the instructions that Nsight Compute counts in products, transposes and sums. No measured time went into them. Nothing at all was taken from the convolutions, which are the test.
#
# Three reasons explain most of the points outside the band:
#
# - **Instructions that nobody wrote.** A signed index is a 64-bit number in Numba and is tested for being negative at every access. So the naive product, with one multiply-add and two loads per iteration, executes many more instructions than three. The estimate accounts for that. It cannot know where the compiler stops unrolling, as it does for padded or swizzled tiles of 32.
# - **Merged loads.** Kernels with bank conflicts ask more of shared memory as written than as compiled.
# - **Latency.** The bound allows one trip to memory for each block and one step for each barrier, the least possible. A block that collects what others found makes several trips, one after the other.
#
# How many instructions does the naive product execute for each multiply-add? Guess, then unfold the output.

# %% jupyter={"outputs_hidden": true}
naive = {"chapter": "matmul", "variant": "naive", "dtype": "float32"}
run = results.first(recorded, case="instructions", **naive)
products = results.first(recorded, case="least time", **naive)["flops"] / 2 / 32  # by warps
print(f"naive: {run['value'] / products:.0f} instructions for each multiply-add")

# %% [markdown]
# ## The clinic
#
# Five patients, each slow for one reason. The traces come without advice (`advice=False`), so the diagnosis is yours. Open the folded parts of a trace, too. Each illness occurs once:
#
# | name | what it is |
# |---|---|
# | `bank conflicts` | lanes of a warp want different words from one bank |
# | `divergence` | lanes of a warp do different amounts of work, and wait for the longest |
# | `hidden float64` | float32 data, computed in float64 |
# | `launch-bound` | the launches take longer than the work in them |
# | `uncoalesced` | neighbouring lanes access addresses that are far apart |


# %%
SIZES = {case.name: case.size for case in pitfalls.CASES}


def launches(number, which="slow"):
    """List the (launch, arguments) of a patient, or of its fix."""
    return getattr(pitfalls.make_pitfall(pitfalls.PATIENTS[number - 1]), which)


def traced(number, which="slow"):
    """Trace a patient's first launch, or its fix's, on a small array."""
    launch, arguments = launches(number, which)[0]
    return gpukit.trace(launch, *arguments, advice=False)


def examine(number):
    """Trace a patient, and say how often it is launched."""
    count = len(launches(number))
    print(f"patient {number}: {count} launch{'es' if count > 1 else ''} like this one")
    return traced(number)


# %%
examine(1)

# %%
examine(2)

# %%
examine(3)

# %%
examine(4)

# %%
examine(5)

# %% [markdown]
# Name the illness of each patient, as a list of five names, spelled as in the table:

# %%
my_answer = None
exercises.check("10-diagnosis", my_answer)

# %% [markdown]
# The rest of this section treats the patients one by one, with answers folded. Finish your diagnosis first. The gains were recorded on an H200; on a machine with a GPU they are measured there.


# %% jupyter={"source_hidden": true}
def launch_all(steps, wait=False):
    for launch, arguments in steps:
        launch(*arguments)
    if wait:
        cuda.synchronize()


def gain(number, what="kernel"):
    """Print how long a patient and its fix take; what="call" is the time of a caller, launches on the host included."""
    name = pitfalls.PATIENTS[number - 1]
    records = results.load("pitfalls-h200", pitfall=name, case=what)
    seconds, where = results.by_variant(records), results.taken_on(records)
    if on_gpu():
        pitfall, steps = pitfalls.make_pitfall(name, SIZES[name]), {}
        for version in ("slow", "fixed"):
            steps[version] = getattr(pitfall, version)
            prepared = [gpukit.launching.prepare(launch, *args) for launch, args in steps[version]]
            steps[f"{version}, prepared"] = [(launch, ()) for launch in prepared]
        call = what == "call"
        runs = {version: lambda steps=steps[version]: launch_all(steps, wait=call) for version in steps}
        timings = timing.bench_many(runs, device="cpu" if call else "gpu", min_time=0.05)
        seconds, where = {version: timed.median for version, timed in timings.items()}, gpukit.device.info().name
    print(where)
    for version in seconds if what == "call" else ("slow", "fixed"):
        faster = "" if version == "slow" else f"{seconds['slow'] / seconds[version]:8.1f} times as fast"
        print(f"{version:20}{timing.format_seconds(seconds[version]):>12}{faster}")


# %% [markdown]
# ### Patient 1
#
# <details><summary>Diagnosis</summary>
#
# Every array is float32, and so is `state`. But `0.02` is a float64, and that makes every product one: a hidden float64. Each step converts to float64, computes there, and converts back when the result is stored. (The accesses to `state` do not matter. The compiler keeps so small an array in registers.)
#
# </details>
#
# Cure it:


# %%
@cuda.jit
def swing(x, out):
    i = cuda.grid(1)
    if i < x.size:
        state = cuda.local.array(2, np.float32)
        state[0], state[1] = x[i], 0
        for _ in range(64):
            # About 2 lines to change: the same steps, without what makes them slow
            state[1] -= 0.02 * state[0]
            state[0] += 0.02 * state[1]
        out[i] = state[0]


exercises.check("10-cure", swing)

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
grid = SIZES[pitfalls.PATIENTS[0]][0] // 256
for which in ("slow", "fixed"):
    least = traced(1, which).predict(grid=grid)
    print(f"{which:8}at least {least.seconds * 1e6:6.0f} us, {least.limit}")
gain(1)

# %% [markdown]
# <details><summary>What took the time</summary>
#
# Not the arithmetic but the conversions. An H200 computes float64 at half the rate of float32, but its ceiling for conversions is an eighth of its ceiling for float64. (On a gaming card float64 itself runs at a sixty-fourth of the float32 rate.) The patient is faster than its bound: as written, each step converts six values, but the compiler reuses two of them.
#
# </details>

# %% [markdown]
# ### Patient 2
#
# <details><summary>Diagnosis</summary>
#
# There is nothing wrong with the kernel: it takes no longer than one that does nothing. The program is launch-bound, with one launch for every row. A timeline would show many short bars and wide gaps; no report of a single kernel would. The fix is one launch whose grid has a second dimension.
#
# In the times below, "prepared" is `gpukit.launching.prepare` of chapter 06, which does once what Numba does at every launch. It helps; a single launch helps more.
#
# </details>

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
show.source(pitfalls.add_to_rows)

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
gain(2, "call")

# %% [markdown]
# ### Patient 3
#
# <details><summary>Diagnosis</summary>
#
# Global memory is as it should be. But each lane walks along a row of 32 words, so all lanes of a warp are in the same column and the same bank: bank conflicts in every step. The fix is a pitch of 33, as in chapter 04; nothing else changes.
#
# </details>

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
traced(3).plot_banks(array="tiles")
for which in ("slow", "fixed"):
    print(f"{which:8}{traced(3, which).total('shared').wavefronts:8,} wavefronts")
gain(3)

# %% [markdown]
# ### Patient 4
#
# <details><summary>Diagnosis</summary>
#
# No shared memory, no float64, few sectors more than needed. But at the line of the loop only a few lanes are active: divergence. One element in 32 needs many steps. They are in random places, so most warps have at least one of them, and the other lanes wait. The fix takes the elements in order of their steps, so that those with much work share warps.
#
# The sort was not timed; it pays if many launches use the same order. It also has a price in the kernel: elements are no longer read in the order in which they lie in memory.
#
# </details>

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
show.source(pitfalls.iterate_fixed)

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
for which in ("slow", "fixed"):
    for line in traced(4, which).operations:
        if line.fp32:
            print(f"{which:8}{line.active_lanes:5.1f} of 32 lanes active: {line.code}")
gain(4)

# %% [markdown]
# ### Patient 5
#
# <details><summary>Diagnosis</summary>
#
# Neighbouring lanes take neighbouring rows, so each needs a sector of its own and uses 4 of its 32 bytes: uncoalesced. The fix exchanges two names.
#
# </details>

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
traced(5).plot_sectors(array="x")
gpukit.compare(traced(5), traced(5, "fixed"))

# %% jupyter={"outputs_hidden": true, "source_hidden": true}
gain(5)
height, width = SIZES[pitfalls.PATIENTS[4]]
for which, grid in (("slow", (height // 32, width // 8)), ("fixed", (width // 32, height // 8))):
    uses = traced(5, which).predict(grid=grid).uses
    most = sorted(uses, key=lambda name: uses[name].seconds, reverse=True)[:3]
    print(f"{which:8}busy for at least", ", ".join(f"{name} {uses[name].seconds * 1e6:.0f} us" for name in most))

# %% [markdown]
# <details><summary>Why is the gain not larger?</summary>
#
# Eight times the sectors do not take eight times the time. The loads are less of a problem than they seem: the sectors that one warp has touched are still in L1 when the other warps of the block want the rest of them. The stores are the problem. L1 passes each of them on to L2, as a part of a line.
#
# The fix is not the end. With one element per thread there are many blocks to schedule, and each of them waits for memory once, then ends. The copy of chapter 04, with four elements per thread, comes much nearer to the speed of memory.
#
# </details>

# %% [markdown]
# ## What goes wrong
#
# **Faster than possible.** The documents warn of a launch with a one-dimensional grid for a two-dimensional problem: it is fast, it reports no error, and most of the result is missing. A lower bound reveals it at once, without a look at the result:

# %%
naive = matmul.naive[(32, 32), (32, 32)]
uses = gpukit.trace(naive, a, b, out, blocks=1).predict().uses
bounds = {name: use.seconds for name, use in uses.items() if name != "issue"}  # which is an estimate
limit = max(bounds, key=bounds.get)
wrong = results.first(results.load("naive-h200", case="incomplete"), shape=(1024, 1024, 1024))
print(f"complete, at least {bounds[limit] * 1e6:.0f} us ({limit})")
print(f"measured with a grid of {wrong['grid'][0]} blocks: {wrong['value'] * 1e6:.0f} us")

# %% [markdown]
# A time below the bound is not a success until you know why. Either the compiler merged something, or the work was not done, or you timed something else: only the launch, for example, because the program did not wait for the kernel.
#
# **A benchmark in the cache.** Time a kernel in a loop, on data that fits into the L2 cache, and it reads its inputs from there. Compare the bandwidth with the ceiling: if it is higher, the data came from the cache. `gpukit.timing.bench` fills the cache with something else before each repetition.
#
# And a cold cache is not an empty one. `bench` fills it by *storing*, as another kernel in a program would. These **dirty** lines have to be written to memory before anything can take their place, and a kernel that reads pays for that:

# %%
replaced = results.load(prediction.RECORDED, case="replacing")
for nbytes in sorted({record["shape"] for record in replaced}):
    after = {r["variant"]: r["value"] * 1e6 for r in replaced if r["shape"] == nbytes}
    print(f"reading {nbytes[0] >> 20:4} MiB: " + ", ".join(f"{name} {us:5.1f} us" for name, us in after.items()))

# %% [markdown]
# **A profile of the first launch.** It includes the compilation on the host, and everything on the device is cold. Skip it.
#
# **A profile at another clock.** Without `--clock-control none` Nsight Compute lowers the clock. Its durations then differ from your own; its counts do not.
#
# **The wrong part of the program.** A kernel that takes 3 % of the time can save 3 % at most, whatever its report says.

# %% [markdown]
# ## Exercises
#
# **1. A sixth patient.** This kernel adds the sums of columns to `out`. It is launched with blocks of 32 x 8 threads, and a block takes 256 rows of 32 columns. Trace it, say what is wrong, and cure it.


# %%
@cuda.jit
def column_sums(x, out):
    # About 7 lines: a block takes 256 rows of 32 columns; read along rows, and sum before you
    # add to out
    row = cuda.blockIdx.y * 256 + cuda.threadIdx.y * 32 + cuda.threadIdx.x
    first = cuda.blockIdx.x * 32
    if row < x.shape[0]:
        for col in range(first, min(first + 32, x.shape[1])):
            cuda.atomic.add(out, col, x[row, col])


exercises.check("10-columns", column_sums)

# %%
matrix, sums = np.random.default_rng(6).random((256, 64), np.float32), np.zeros(64, np.float32)
trace = gpukit.trace(column_sums[(2, 1), (32, 8)], matrix, sums, advice=False)
loads, atomics = trace.total("global", "load"), trace.total("global", "atomic")
print(f"{loads.sectors:,} sectors loaded, {loads.ideal_sectors:,} at best; {atomics.requests:,} atomic requests")

# %% [markdown]
# **2. Fast, and wrong.** Seven kernels claim to sum the rows of a matrix, `out[row] = x[row, :].sum()`, and each of them is wrong in its own way. Choose inputs for which a comparison with NumPy catches all seven, and passes the eighth, which is right. The starter is what many benchmarks use. It catches none of them.


# %%
def inputs():
    """Return x, a float32 matrix, and out, a float32 vector with an element for each row of x."""
    # About 3 lines: choose the shape and the values; these catch none of the wrong kernels
    x = np.ones((64, 64), np.float32)
    out = np.zeros(64, np.float32)
    return x, out


exercises.check("10-expose", inputs)

# %% [markdown]
# **3. Your own GPU.** On a machine with a GPU, this cell measures its ceilings, which takes a minute, and bounds the patients with them. Which of the patients is limited by something else than on an H200? (Without a GPU the cell prints nothing.)

# %%
if on_gpu():
    mine = prediction.measured()
    for number, name in enumerate(pitfalls.PATIENTS, 1):
        launch, _ = pitfalls.make_pitfall(name, SIZES[name]).slow[0]
        trace = traced(number)
        on_h200, here = (trace.predict(grid=launch.griddim, ceilings=c) for c in (ceilings, mine))
        print(f"patient {number}: {on_h200.limit} on {ceilings.device}, {here.limit} on {mine.device}")

# %% [markdown]
# ## Key points
#
# - First the timeline of the program, then the report of one kernel. What you do not improve stays.
# - In a report: which part is busy? Above 80 % it limits the kernel. If no part is above 60 %, the kernel is latency-bound.
# - A trace counts what is written, a profiler what was compiled. Global accesses agree; merged loads do not, and index arithmetic can only be estimated.
# - Divide a kernel's bytes, wavefronts, operations and instructions by their ceilings. The largest quotient, plus the shortest kernel, is its least time.
# - L1 and shared memory are one: their wavefronts add up, and L1 has bank conflicts too.
# - A measured time far above the bound means latency, or instructions that you did not write. A time below it means merged accesses, or missing work.
# - Inputs of ones, square shapes and zeroed outputs hide mistakes.
#
# **Back:** [09 Convolution](09_convolution.ipynb). **Next:** [11 Scan, histogram, sort](11_scan.ipynb).
