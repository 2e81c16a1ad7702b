# %% [markdown]
# # 10 Profiling
#
# A kernel is slow, and the question is why. There are two ways to find out: let a profiler watch the GPU, or count what the kernel asks of it and compare that with what the GPU can do. This chapter goes both ways, lays their figures side by side, and then uses them on five slow kernels.
#
# **After this chapter you will be able to**
#
# - run Nsight Systems and Nsight Compute from a shell, in a container and from a notebook, and say which of them comes first;
# - read a report: which figure says what limits a kernel, and which figures a trace gives without a GPU;
# - tell a kernel as it is written from what the compiler makes of it;
# - place a kernel on a roofline;
# - predict the least time of a kernel from its trace, name the resource that limits it, and say how far such a prediction can be trusted;
# - diagnose an uncoalesced access, bank conflicts, a hidden float64, divergence and a program that does nothing but launch, and cure them.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb) and [04 Bank conflicts](04_bank_conflicts.ipynb). No GPU, and no profiler: reports of an H200 come with the course.
#
# **Time:** 75 minutes.

# %%
import re
import shutil
import warnings
from collections import Counter
from functools import partial

import numpy as np

import gpukit
from gpukit import cuda, device, launching, matmul, on_gpu, pitfalls, plot, prediction, results, show, timing, transpose

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)

# %% [markdown]
# ## First the whole, then one kernel
#
# Whoever begins with the kernel that is most interesting optimises what does not matter. There are two questions, and two tools for them:
#
# | question | tool | it shows |
# |---|---|---|
# | Where does the time of the program go? | **Nsight Systems**, `nsys` | a timeline: what the host calls, when copies and kernels run, when the GPU has nothing to do |
# | Why does this kernel take so long? | **Nsight Compute**, `ncu` | one kernel, run many times over: how busy each part of the GPU is, and hundreds of counters, down to the line |
#
# The first one disturbs the program little. The second one runs each kernel again and again, to read a few counters each time, so a program takes a hundred times as long under it: pick one kernel, and one launch of it.
#
# In a shell:
#
# ```sh
# nsys profile -o report --stats=true python program.py      # writes report.nsys-rep, and prints tables
# nsys stats --report cuda_gpu_kern_sum --format csv report.nsys-rep
#
# ncu --set full -o report --kernel-name regex:tiled --launch-skip 1 --launch-count 1 python program.py
# ncu --import report.ncu-rep --page details                 # the same as text; --csv for a table
# ```
#
# `--launch-skip 1` leaves out the first launch, which is not like the others: caches are empty and clocks are low. Both reports, `.nsys-rep` and `.ncu-rep`, are made to be opened in the desktop programs `nsys-ui` and `ncu-ui`, which can run on another machine, without a GPU.
#
# **In a container.** Nsight Compute reads counters that a process must not read without a right to do so. If it says `ERR_NVGPUCTRPERM`, give the container that right:
#
# ```sh
# docker run --gpus all --cap-add=SYS_ADMIN -v "$PWD":/src -w /src IMAGE ncu --set full -o report python program.py
# ```
#
# Outside of a container root has it, or everybody if the driver was loaded with `NVreg_RestrictProfilingToAdminUsers=0`. Nsight Systems does without for what is on its timeline.
#
# **From a notebook.** A profiler starts the process that it watches, and the kernel of a notebook runs already. So write what is to be profiled into a file, with one cell:
#
# ```
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
# and run it under the profiler with another; a line that begins with `!` is a command for the shell:
#
# ```
# !ncu --clock-control none --launch-skip 1 --launch-count 1 --section SpeedOfLight python program.py
# ```
#
# `--clock-control none` leaves the clock as it is. Without it Nsight Compute lowers the clock to the base, so that two runs can be compared with each other, and no longer with a time that was measured elsewhere. Which of the tools are there?

# %%
for tool in ("nsys", "ncu"):
    print(tool, "is installed" if shutil.which(tool) else "is not installed here")

# %% [markdown]
# ## A timeline
#
# Here is a small program as a timeline shows it, recorded on an H200 by `gpukit bench profile`. Three times it makes a matrix of random numbers, copies it to the GPU, multiplies it there with another one, and copies the product back:


# %%
def application(rows=512):
    b, out = (cuda.to_device(np.random.rand(rows, rows).astype(np.float32)) for _ in range(2))
    launch, further = matmul.configure("tiled", out.shape)
    for _ in range(3):
        a = cuda.to_device(np.random.rand(rows, rows).astype(np.float32))
        launch(a, b, out, *further)
        product = out.copy_to_host()
    return product


# %%
about, timeline = results.profile("timeline-h200")
for row in timeline:
    row["begin"], row["end"] = float(row["begin"]), float(row["begin"]) + float(row["duration"])
colors = {"launch": plot.PALETTE[7], "kernel": plot.PALETTE[5], "copy": plot.PALETTE[1]}


def kind(row):
    """What a bar of the timeline is."""
    return "launch" if row["lane"] == "host" else "copy" if "Mem" in row["name"] else "kernel"


def draw(ax, first, last):
    """The bars between two times in us."""
    for what, color in colors.items():
        chosen = [row for row in timeline if kind(row) == what and first <= row["begin"] <= last]
        at, left = [row["lane"] == "host" for row in chosen], [row["begin"] for row in chosen]
        widths = [row["end"] - row["begin"] for row in chosen]
        ax.barh(at, widths, left=left, color=color, label=what)
    ax.set(yticks=[0, 1], yticklabels=["device", "host"], xlabel="us", xlim=(first, last))


with plot.figure(size=(8, 3.4), rows=2, mark=about) as (whole, part):
    draw(whole, -50, timeline[-1]["end"] + 50)
    whole.set_title("all of it")
    whole.legend(loc="upper right", ncols=3, bbox_to_anchor=(1, 1.4))
    draw(part, timeline[0]["begin"] - 20, timeline[3]["end"] + 20)
    part.set_title("the first round")

span = timeline[-1]["end"] - timeline[0]["begin"]
for what in ("kernel", "copy"):
    busy = sum(row["end"] - row["begin"] for row in timeline if kind(row) == what)
    print(f"{what:8}{busy:6.0f} us of {span:,.0f}: {busy / span:.1%}")

# %% [markdown]
# Nothing has to be known about the kernel to see what is wrong: for most of the time the GPU does nothing. The largest gaps lie between the rounds, where the program makes its random numbers on the host. Within a round there are gaps too, in which the host gets the next call ready. A kernel that took no time at all would make this program faster by as much as the first line says, and by no more. What would help: numbers made on the GPU, or made for the next round while the GPU works on this one, as in chapter 06.
#
# (The timeline was read with PyTorch's profiler, which gets its records from the same place in the driver as Nsight Systems.)

# %% [markdown]
# ## One kernel
#
# Now a kernel that does work: the product of two matrices with tiles of 16 in shared memory, from chapter 03, for matrices of 1024 by 1024. The report below was written by `gpukit bench profile`, which runs
#
# ```sh
# ncu --set full --clock-control none --csv --page details ...
# ```
#
# and keeps its figures; further counters are from `gpukit bench matmul`, which asks ncu for some by their names (`--metrics`). First the counters, beside what `gpukit.trace` says of the same launch, from one of its blocks, here and now:

# %%
n, tile = 1024, 16
a, b = (np.random.default_rng(seed).standard_normal((n, n)).astype(np.float32) for seed in (1, 2))
out = np.zeros((n, n), np.float32)


def of_one_block(variant):
    """The trace of one block of the product, scaled to the grid."""
    ((launch, arguments),) = matmul.steps(variant, a, b, out, tile=tile)
    return gpukit.trace(launch, *arguments, blocks=1)


traces = {variant: of_one_block(variant) for variant in ("tiled", "tiled_conflict")}
about, rows = results.profile("matmul-h200")
counted = results.load("matmul-h200", shape=(n, n, n), tile=tile)
COMPARED = {
    "global load requests": ("global", "load", "requests"),
    "global load sectors": ("global", "load", "sectors"),
    "global store sectors": ("global", "store", "sectors"),
    "shared store requests": ("shared", "store", "requests"),
    "shared store wavefronts": ("shared", "store", "wavefronts"),
    "shared load requests": ("shared", "load", "requests"),
    "shared load wavefronts": ("shared", "load", "wavefronts"),
}
print(about)
print(f"{'':26}{'tiled':^28}{'tiled_conflict':^28}")
print(f"{'':26}" + f"{'as written':>14}{'as compiled':>14}" * 2)
for what, (space, op, field) in COMPARED.items():
    cells = []
    for variant, trace in traces.items():
        compiled = results.first(counted, case=what, variant=variant, dtype="float32")["value"]
        cells += [getattr(trace.total(space, op), field), compiled]
    print(f"{what:26}" + "".join(f"{cell:14,}" for cell in cells))

# %% [markdown]
# Above, what goes to global memory: the trace and the hardware agree to the last request. So do the requests to store in shared memory; of the wavefronts for them the hardware counts some percent more, when accesses get in each other's way.
#
# The shared *loads* do not agree, and they should not. A trace counts the kernel **as it is written**; the profiler sees it **as it was compiled**. In the inner loop a thread reads `tile_a[ty, k]` for k = 0, 1, 2, 3 ...: neighbours in a row, whose address is a multiple of 16 bytes. The compiler makes one load of 128 bits out of four of them. It can be seen in the machine code:

# %%
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
for opcode, count in opcodes.most_common(12):
    print(f"{count:5} {opcode}")

# %% [markdown]
# This is **SASS**, what the GPU really runs; `kernel.inspect_sass(signature)` gives it where the CUDA toolkit is installed, and `gpukit bench code` makes it without a GPU. One turn of the loop takes a tile: 16 multiply-adds (`FFMA`), and for these 16 scalar loads of `tile_b` (`LDS`), whose elements lie in a column, but only four loads of `tile_a` (`LDS.128`). The loop over k is gone, it was unrolled. The rest is what it takes to fill the tiles: addresses, guards at the edges, and barriers.
#
# Which of the two counts is right? Both. The one tells what you wrote and can change; the other one what you got. Where they differ, the compiler was at work, and a change that hinders it (a pad that makes rows end at odd places, an index it cannot see through) costs more than the trace alone would say.

# %% [markdown]
# ## How to read a report
#
# A full report has dozens of figures in ten sections. A few of them decide where to look:

# %%
READ_FIRST = (
    ("Duration", "ns", "how long it took, under the profiler: cold caches"),
    ("Memory Throughput", "%", "how busy is the busiest part of the memory system"),
    ("DRAM Throughput", "%", "... memory itself"),
    ("L2 Cache Throughput", "%", "... the L2 cache"),
    ("L1/TEX Cache Throughput", "%", "... L1 and shared memory, which are one"),
    ("Compute (SM) Throughput", "%", "how busy is the busiest part of the multiprocessors"),
    ("Achieved Occupancy", "%", "warps that were there, of those that could be"),
    ("Eligible Warps Per Scheduler", "warp", "of these, ready to go on at a time"),
    ("No Eligible", "%", "cycles in which none was ready"),
    ("Registers Per Thread", "register/thread", ""),
)
print(f"{'':32}{'tiled':>12}{'tiled_conflict':>16}")
for metric, unit, meaning in READ_FIRST:
    cells = []
    for variant in traces:
        row = next(r for r in rows if (r["kernel"], r["metric"], r["unit"]) == (variant, metric, unit))
        cells.append(float(row["value"]))
    print(f"{metric:32}{cells[0]:12,.1f}{cells[1]:16,.1f}  {meaning}")

# %% [markdown]
# Read it from the top. The first question is **which part is busy**. If one of the throughputs is above 80 %, that part is what limits, and the only way to be faster is to ask less of it. For both kernels it is L1 and shared memory, and memory itself does next to nothing. If none is above 60 %, the kernel waits: for memory, at barriers, or because there are too few warps to fill the gaps. Then look at the warps that were eligible: a scheduler needs one in every cycle.
#
# Occupancy is not a goal. It says how many warps there are to hide waiting behind; the fast kernel of chapter 05 runs with an eighth of them.

# %% [markdown]
# ## What a GPU can do at most
#
# The percentages above are of something: of a ceiling. A ceiling can be looked up, or better be measured, each by a kernel that needs nothing else. `gpukit bench ceilings` does that. The one for arithmetic is the first kernel of [chapter 05](05_fast_matmul.ipynb): it keeps chains of multiply-adds in registers and touches no memory.

# %%
ceilings = prediction.measured() if on_gpu() else prediction.recorded()
print(f"{ceilings.device}, {ceilings.date}")
for what, value, unit in (
    ("float32 multiply-adds", ceilings.fp32 * 1e-12, "TFLOP/s"),
    ("float64 multiply-adds", ceilings.fp64 * 1e-12, "TFLOP/s"),
    ("conversions from and to float64", ceilings.conversions * 1e-12, "10^12 per second"),
    ("instructions of warps", ceilings.instructions * 1e-12, "10^12 per second"),
    ("reading memory", ceilings.dram_read * 1e-12, "TB/s"),
    ("a copy, both ways together", ceilings.dram_copy * 1e-12, "TB/s"),
    ("L2 to the multiprocessors", ceilings.l2_loads * 32e-12, "TB/s"),
    ("stores to L2, whole lines", ceilings.l2_stores * 32e-12, "TB/s"),
    ("stores to L2, a sector of a line each", ceilings.l2_lines * 32e-12, "TB/s"),
    ("shared memory and L1", ceilings.wavefronts * 128e-12, "TB/s"),
    ("a trip to memory", ceilings.trip * 1e9, "ns"),
    ("a store, a barrier and a load in shared memory", 1e9 / ceilings.steps, "ns"),
    ("blocks that do nothing", ceilings.blocks * 1e-9, "10^9 per second"),
    ("the shortest kernel", ceilings.launch * 1e6, "us"),
):
    print(f"{what:48}{value:8.2f} {unit}")

# %% [markdown]
# **Check yourself.** How many float32 operations can the GPU do in the time in which it reads one float32 from memory? And how many float32 can it load from shared memory in that time? Write both down before you run the cell.

# %%
print(f"{ceilings.fp32 / ceilings.dram_read * 4:.0f} operations")
print(f"{ceilings.wavefronts * 32 / ceilings.dram_read * 4:.0f} loads from shared memory")

# %% [markdown]
# ## The least time
#
# Divide what a kernel asks for by what the GPU can do, for each resource: that is how long this resource is busy, if it never pauses. No kernel can be faster than the largest of these times. `gpukit.predict` (or `trace.predict()`) does this with the counts of a trace. **Issue** stands for the instructions: those that are written, and those that the compiler adds for addresses, for loops and for other whole numbers. How many these are the trace can only estimate, so this row is no strict bound as the others are.

# %%
gpukit.predict(traces["tiled"], ceilings=ceilings)

# %% [markdown]
# What limits is shared memory, as in the report. The measured time is near that of the prediction, and may even lie below: the prediction takes the loads as they are written, and the compiler merged some.

# %%
for variant, trace in traces.items():
    predicted = trace.predict(ceilings=prediction.recorded())
    duration = next(row for row in rows if (row["kernel"], row["metric"]) == (variant, "Duration"))
    measured = float(duration["value"]) / 1e3
    print(f"{variant:15} at least {predicted.seconds * 1e6:5.0f} us, {predicted.limit}; it took {measured:5.0f} us")

# %% [markdown]
# The kernel with conflicts shows where this ends: there the compiler merges loads whose conflicts were most of the cost. As written it would take longer than it does. A prediction that is too *long* always means: look at what the compiler did.
#
# A trace of a large launch takes its time. But the blocks of a large matrix do what those of a small one do, so trace a small one and say for which grid the prediction is to be:

# %%
small, large = (transpose.configure("naive", (size, size)) for size in (256, 8192))
matrix = np.random.default_rng(3).integers(0, 99, (256, 256), np.uint32)
trace = gpukit.trace(small, matrix, np.empty_like(matrix))
trace.predict(grid=large.griddim, ceilings=ceilings)

# %% [markdown]
# The naive transpose writes down columns. Neither memory nor shared memory limits it, but the L2 cache, which has to take every element as a piece of a line of its own. The table says so, and by how much: the next resource is busy for less than a third of that time.

# %% [markdown]
# ## The roofline
#
# A picture of the two resources that matter most: memory and arithmetic. To the right, how many operations a kernel makes for each byte that must cross from memory; upwards, how many it makes per second. The slope is memory, the flat part arithmetic; nothing can lie above. Here is every kernel of the course that has been measured, with the bytes and the operations from its trace:

# %%
recorded = results.load("predictions-h200")


def key_of(record):
    """What tells a kernel from all others."""
    return tuple(record.get(name) for name in ("chapter", "variant", "shape", "dtype", "tile", "pad", "depth"))


times = {key_of(record): record["value"] for record in recorded if record["case"] == "time"}
as_written = [(r, times[key_of(r)]) for r in recorded if r["case"] == "least time"]
as_executed = [(r, times[key_of(r)]) for r in recorded if r["case"] == "least time, instructions counted"]
NAMED = ("matmul naive 1024", "matmul fast 4096", "reduce one_launch 16777216")
NAMED += ("conv blocked 768", "transpose naive 8192")


def named(record):
    """Whether the name of a kernel is to be written beside its point."""
    name = f"{record['chapter']} {record['variant']} {record['shape'][-1]}"
    return name in NAMED and record["dtype"] != "float64"


points = [
    {
        "group": least["chapter"],
        "flops": least["flops"],
        "bytes": least["bytes"],
        "seconds": seconds,
        "predicted": least["value"],
        "measured": seconds,
        "label": least["variant"] if named(least) else None,
    }
    for least, seconds in as_written
]
mark = f"counted by the trace; times: {results.taken_on(recorded)}"
plot.roofline(points, prediction.recorded(), title="Kernels of the course under their roof", mark=mark);

# %% [markdown]
# The products of matrices stand far to the right: memory is no excuse for them. That the simple ones are so far below the roof has reasons that this picture does not know: shared memory, and instructions. That is the limit of a roofline. It has two resources, and most kernels are limited by a third.

# %% [markdown]
# ## How good is such a prediction?
#
# Now the honest part. For every one of these kernels the least time as its trace gives it, against the time that was measured. The band is a factor of 1.5 to both sides:

# %%
WITHIN = 1.5
executed = [
    {"group": least["chapter"], "predicted": least["value"], "measured": seconds} for least, seconds in as_executed
]
with plot.figure(size=(8, 4.2), columns=2, mark=mark, sharey=True) as axes:
    plot.compared([point | {"label": None} for point in points], within=WITHIN, ax=axes[0])
    axes[0].set_title("from the trace alone")
    plot.compared(executed, within=WITHIN, ax=axes[1])
    axes[1].set(title="with the instructions that were counted", ylabel="")


def near(pairs):
    """How many of some (prediction, seconds) are within the factor."""
    return sum(1 / WITHIN <= seconds / least["value"] <= WITHIN for least, seconds in pairs)


for what, pairs in (("from the trace alone", as_written), ("with the instructions that were counted", as_executed)):
    ratio = np.median([seconds / least["value"] for least, seconds in pairs])
    print(f"{what}: {near(pairs)} of {len(pairs)} within a factor of {WITHIN}; median of measured / predicted {ratio:.2f}")

# %% [markdown]
# At the left is what anybody can know without a GPU; the lines above say how many of the points lie in the band. Two thirds was the target. What the trace adds for addresses and loops rests on a few rules and a dozen small numbers, such as five instructions for the sign of an index, and a prediction that was fitted to what it predicts would prove nothing. No time went into them. The numbers were read off the machine code of two matrix products, the naive one and `dynamic`, and for quotients of a letterbox; the rules were held against the instructions that Nsight Compute counts in products, transposes and sums. Nothing was taken from the convolutions: they are the test:

# %%
for chapter in dict.fromkeys(least["chapter"] for least, _ in as_written):
    pairs = [(least, seconds) for least, seconds in as_written if least["chapter"] == chapter]
    print(f"{chapter:10}{near(pairs):3} of {len(pairs):2} within a factor of {WITHIN}")

# %% [markdown]
# Above the band lie the kernels that take longer than their scarcest resource needs, below it those that take less than what is written needs. Here are all that lie outside, with what limits them according to the trace, and how much longer they took:

# %%
rows = []
with_counted = {key_of(least): least for least, _ in as_executed}
for least, seconds in sorted(as_written, key=lambda pair: pair[1] / pair[0]["value"]):
    if not near([(least, seconds)]):
        counted = with_counted.get(key_of(least))
        then = counted and seconds / counted["value"]
        rows.append(least | {"ratio": seconds / least["value"], "counted": counted, "then": then})
results.table(
    rows,
    {
        "chapter": "chapter",
        "kernel": lambda r: " ".join([r["variant"], *(f"{k} {r[k]}" for k in ("tile", "pad", "depth") if k in r)]),
        "size": lambda r: f"{' x '.join(map(str, r['shape'][-2:]))} {r['dtype']}",
        "limit, as written": "limit",
        "measured / predicted": lambda r: f"{r['ratio']:.2f}",
        "limit, as executed": lambda r: r["counted"] and r["counted"]["limit"],
        "measured / that": lambda r: r["then"] and f"{r['then']:.2f}",
    },
)

# %% [markdown]
# Three reasons explain most of them:
#
# - **Instructions that nobody wrote, and nobody guessed.** An index with a sign is a 64-bit number in Numba, and asks at every access whether it is negative; so the naive product, whose loop has one multiply-add and two loads, executes many more than these three: the cell below counts them. Many compute what is the same for all lanes of a warp, in a unit that takes longer for each. The estimate knows that. It does not know that the compiler gives up unrolling the loop over a padded or swizzled tile of 32, as it does not give up for a tile of 16. Count the instructions (one metric of Nsight Compute, `smsp__inst_executed.sum`), give them to `predict(trace, instructions=...)`, and such kernels move towards the band.
# - **Loads that the compiler merged.** The kernels with conflicts and a ratio below one: as written they ask more of shared memory than they do as compiled.
# - **Waiting.** The prediction knows one trip to memory for each block and a step for each barrier, the least that there can be. A block that collects what the others found makes several trips, one after the other, and a kernel with few warps waits for its own results.

# %%
naive = {"chapter": "matmul", "variant": "naive", "dtype": "float32"}
run = results.first(recorded, case="instructions", **naive)
products = results.first(recorded, case="least time", **naive)["flops"] / 2 / 32  # by warps
print(f"naive: {run['value'] / products:.0f} instructions for each multiply-add")
print(f"one for all lanes of a warp takes {prediction.recorded().shared_cost:.2f} times as long as another")

# %% [markdown]
# So a least time is no time. It says what is not possible, and what would have to change before more would be.

# %% [markdown]
# ## The clinic
#
# Five patients. Each is slow for one reason. For each of them: read the kernel, look at the trace, **write down what is wrong and how many times faster it could be**, and only then go on to the cure. The gain was measured on an H200.


# %%
def examined(patient, which="slow"):
    """The trace of a patient, or of its cure, by its number."""
    launch, arguments = getattr(pitfalls.make_pitfall(pitfalls.CASES[patient - 1].name), which)[0]
    return gpukit.trace(launch, *arguments)


def launch_all(steps):
    for launch, arguments in steps:
        launch(*arguments)


def call(steps):
    launch_all(steps)
    cuda.synchronize()


def gain(patient, what="kernel"):
    """Print how long patient and cure take; what="call" is the time of a caller, launches on the host included."""
    case = pitfalls.CASES[patient - 1]
    records = results.load("pitfalls-h200", pitfall=case.name, case=what)
    seconds, where = results.by_variant(records), results.taken_on(records)
    if on_gpu():
        pitfall = pitfalls.make_pitfall(case.name, case.size)
        steps = {"slow": pitfall.slow, "fixed": pitfall.fixed}
        for name, launches in list(steps.items()):
            steps[f"{name}, prepared"] = [(launching.prepare(launch, *arguments), ()) for launch, arguments in launches]
        wait, clock = (call, "cpu") if what == "call" else (launch_all, "gpu")
        runs = {name: partial(wait, launches) for name, launches in steps.items()}
        timings = timing.bench_many(runs, device=clock, min_time=0.05)
        seconds, where = {name: timed.median for name, timed in timings.items()}, device.info().name
    print(where)
    for variant in seconds if what == "call" else ("slow", "fixed"):
        faster = "" if variant == "slow" else f"{seconds['slow'] / seconds[variant]:8.1f} times as fast"
        print(f"{variant:20}{timing.format_seconds(seconds[variant]):>12}{faster}")


# %% [markdown]
# ### Patient 1

# %%
show.source(pitfalls.scale)

# %%
examined(1)

# %%
examined(1).plot_sectors(array="x");

# %% [markdown]
# Neighbouring lanes take neighbouring rows, so each of them needs a sector of its own, of which it uses 4 bytes out of 32: the access is **uncoalesced**. The cure is to exchange two names:

# %%
show.source(pitfalls.scale_fixed)

# %%
gpukit.compare(examined(1), examined(1, "fixed"))

# %%
gain(1)

# %% [markdown]
# Eight times the sectors, and not eight times the time. Why? Let the predictions tell, for the grids that were timed:

# %%
rows, columns = pitfalls.CASES[0].size
for which, grid in (("slow", (rows // 32, columns // 8)), ("fixed", (columns // 32, rows // 8))):
    uses = examined(1, which).predict(grid=grid, ceilings=prediction.recorded()).uses
    most = sorted(uses, key=lambda name: uses[name].seconds, reverse=True)[:3]
    print(f"{which:8}", ", ".join(f"{name} {uses[name].seconds * 1e6:.0f} us" for name in most))

# %% [markdown]
# The loads are less of a problem than they seem: the sectors that one warp has touched are still in L1 when the neighbouring warps of the block want the rest of them. The stores are what costs. L1 passes each of them on to L2, as a piece of a line.
#
# And the cure is not the end. With one element for each thread there are many blocks, which take their time to be handed out, and each makes a trip to memory and ends. The copy of chapter 04, with four elements for each thread, comes much nearer to the speed of memory.

# %% [markdown]
# ### Patient 2

# %%
show.source(pitfalls.running_sums)

# %%
examined(2)

# %% [markdown]
# All accesses to global memory are as they should be. But each lane walks along a row of 32 words, and all lanes of a warp are in the same column: one bank, and **bank conflicts** in every step.

# %%
examined(2).plot_banks(array="tiles");

# %% [markdown]
# The cure is that of chapter 04: a pitch of 33. Nothing else changes.

# %%
for which in ("slow", "fixed"):
    print(f"{which:8}{examined(2, which).total('shared').wavefronts:8,} wavefronts")
gain(2)

# %% [markdown]
# ### Patient 3

# %%
show.source(pitfalls.swing)

# %%
examined(3)

# %% [markdown]
# Every array is float32, and so is the state, which a compiler keeps in registers. But `0.02` is a **float64**, and with it every product. So each step converts to float64, computes there, and converts back when the result is stored. The trace counts it, the advice names it, and the prediction says what it costs at least, for 2^24 elements:

# %%
grid = pitfalls.CASES[2].size[0] // 256
examined(3).predict(grid=grid, ceilings=ceilings)

# %% [markdown]
# It is not the arithmetic, it is the *conversions*. An H200 does float64 at half the speed of float32, but the ceiling for conversions above is an eighth of that. (On a card that is made for games float64 itself is a sixty-fourth of float32.) The cure is to write `float32(0.02)`:

# %%
show.source(pitfalls.swing_fixed)

# %%
for which in ("slow", "fixed"):
    least = examined(3, which).predict(grid=grid, ceilings=ceilings)
    print(f"{which:8} at least {least.seconds * 1e6:6.0f} us, {least.limit}")
gain(3)

# %% [markdown]
# The patient is somewhat faster than its prediction: as it is written, both lines convert both values, six conversions for each step; the compiler uses what it has converted already, and needs four.

# %% [markdown]
# ### Patient 4

# %%
show.source(pitfalls.iterate)

# %%
examined(4)

# %% [markdown]
# No shared memory, no float64, and few sectors more than needed. But look at the lanes at the line of the loop, in the column at the right and in the advice:

# %%
for which in ("slow", "fixed"):
    for line in examined(4, which).operations:
        if line.fp32:
            print(f"{which:8}{line.active_lanes:5.1f} of 32 lanes active: {line.code}")

# %% [markdown]
# One element in 32 needs many steps. As they lie at random, most warps have one of them, and the other 31 lanes wait for it: **divergence**. The cure takes the elements in the order of their steps, so that those with much work share warps:

# %%
show.source(pitfalls.iterate_fixed)

# %%
gain(4)

# %% [markdown]
# The sort was not timed; it pays if the same order serves for many launches. And it has a price in the kernel too, which its trace shows: the elements are now read in another order than that of memory.

# %% [markdown]
# ### Patient 5

# %%
show.source(pitfalls.add_to_row)

# %%
pitfall = pitfalls.make_pitfall(pitfalls.CASES[4].name, pitfalls.CASES[4].size)
print(f"{len(pitfall.slow)} launches; the cure has {len(pitfall.fixed)}")
launch, arguments = pitfall.slow[0]
gpukit.trace(launch, *arguments).predict(ceilings=ceilings)

# %% [markdown]
# There is nothing to see in the kernel: it takes next to no longer than one that does nothing. It is **launch-bound**: a timeline would show many short bars and wide gaps, and no report of a single kernel would. What costs is the launch, some microseconds on the device and more on the host, once for every row. So the time to look at is that of the whole call:

# %%
gain(5, "call")

# %% [markdown]
# "Prepared" is `gpukit.launching.prepare` of chapter 06, which does once what a plain launch of Numba does anew each time. That helps; one launch for all rows is the cure.

# %%
show.source(pitfalls.add_to_rows)

# %% [markdown]
# ## What goes wrong
#
# **Faster than possible.** The documents warn of a launch with a grid of one dimension for a problem of two: it is fast, it reports no error, and most of the result is missing. A least time finds it at once, without a look at the result:

# %%
blocks = 1024 // 32
naive = matmul.naive[(blocks, blocks), (32, 32)]
uses = gpukit.trace(naive, a, b, out, blocks=1).predict(ceilings=prediction.recorded()).uses
bounds = {name: use.seconds for name, use in uses.items() if name != "issue"}  # which is an estimate
limit = max(bounds, key=bounds.get)
wrong = results.first(results.load("naive-h200", case="incomplete"), shape=(1024, 1024, 1024))
print(f"complete, at least {bounds[limit] * 1e6:.0f} us ({limit})")
print(f"measured with a grid of {wrong['grid'][0]} blocks: {wrong['value'] * 1e6:.0f} us")

# %% [markdown]
# A measured time below the floor is no success. Either the work was not done, or what was timed was not the work: the launch alone, for example, because nobody waited for the kernel.
#
# **A benchmark in the cache.** Time a kernel in a loop, on data that fits into the L2 cache, and it reads its inputs from there. Compare the bandwidth with the ceiling of memory: more than that means cache. `gpukit.timing.bench` fills the cache with something else before each repetition.
#
# And a cold cache is not an empty one. What `bench` fills it with are stores, as most benchmarks do it, and as it is in a program in which another kernel ran before. They have to go to memory before anything can take their place. A kernel that reads pays for that:

# %%
replaced = results.load(prediction.RECORDED, case="replacing")
for nbytes in sorted({record["shape"] for record in replaced}):
    after = {r["variant"]: r["value"] * 1e6 for r in replaced if r["shape"] == nbytes}
    print(f"reading {nbytes[0] >> 20:4} MiB: " + ", ".join(f"{name} {us:5.1f} us" for name, us in after.items()))

# %% [markdown]
# **A profile of the first launch.** It contains the compilation on the host, and cold everything on the device. Skip it.
#
# **A profile at another clock.** Without `--clock-control none` Nsight Compute lowers the clock; its durations then differ from what you measure yourself, its counts do not.
#
# **The wrong half of the program.** A kernel that takes 3 % of the time cannot make the program faster by more than 3 %, whatever its report says.

# %% [markdown]
# ## Exercises
#
# **1. Before you run it.** How long does it take at least to read 2^26 float32 from memory? Work it out with the table of ceilings. Then let the cell predict `first_add` of chapter 07, which sums them with a block for every 512: which resource keeps it from reading at that speed?

# %%
from gpukit.reduce import ladder

answer = None  # your microseconds
x, total = cuda.device_array(2**18, np.float32), cuda.device_array(1, np.float32)
launch, arguments = ladder.steps("first_add", x, total)[0]
if answer is not None:
    exact = 4 * 2**26 / ceilings.dram_read * 1e6
    print("right" if abs(answer / exact - 1) < 0.1 else "not yet: bytes over bandwidth")
    print(gpukit.trace(launch, *arguments, blocks=8).predict(grid=2**26 // 512, ceilings=ceilings))

# %% [markdown]
# **2. A sixth patient.** The kernel below sums the columns of a matrix. Trace it, name what is wrong with it, and cure it, launch included: the number of sectors should fall to an eighth.


# %%
@cuda.jit
def column_sums(x, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        for col in range(x.shape[1]):
            cuda.atomic.add(out, col, x[row, col])


matrix = np.random.default_rng(6).random((128, 64), np.float32)
sums = np.zeros(64, np.float32)
trace = gpukit.trace(column_sums[1, 128], matrix, sums)
assert np.allclose(sums, matrix.sum(axis=0), rtol=1e-5)
loads, atomics = trace.total("global", "load"), trace.total("global", "atomic")
print(f"{loads.sectors:,} sectors loaded, {atomics.requests:,} requests of atomics")
print("done" if loads.sectors <= matrix.nbytes // 32 and not trace.findings else "not yet")

# %% [markdown]
# **3. Your own GPU.** On a machine with one, run `gpukit bench ceilings`, and predict the five patients with `prediction.measured()`. Which of them is limited by something else than on an H200?

# %% [markdown]
# ## Key points
#
# - First the timeline of the program, then the report of one kernel.
# - In a report: which part is busy? Above 80 % it limits; if none is, the kernel waits.
# - A trace counts what is written, a profiler what was compiled. Global accesses agree; merged loads do not, and index arithmetic can be estimated only.
# - The least time of a kernel is the largest of: its bytes over the bandwidth, its wavefronts, its operations, its instructions over their ceilings, and the launch.
# - L1 and shared memory are one: their wavefronts add up, and L1 has bank conflicts too.
# - A measured time far above the least time means waiting, or instructions that you did not write. One below it means that something is missing.
#
# **Back:** [09 Convolution](09_convolution.ipynb).
