# %% [markdown]
# # 04 Bank conflicts
#
# Shared memory is fast as long as the lanes of a warp use different banks. This chapter shows when they do not, what that costs, and how to avoid it.
#
# **After this chapter you will be able to**
#
# - compute how many wavefronts an access to shared memory takes, for elements of 4, 8 and 16 bytes;
# - see conflicts in a picture of lanes and banks, and in the counts of a trace;
# - choose the pad for a tile of any width, and say why the usual pad of one is wrong for tiles of 16;
# - avoid conflicts without a pad, by a swizzle;
# - separate the effects of two changes that were made at once.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb). No GPU.
#
# **Time:** 75 minutes, six exercises included.

# %%
import warnings

import numpy as np

import gpukit
from gpukit import cuda, device, exercises, matmul, on_gpu, plot, results, show, timing, transpose
from gpukit.intrinsics import load4

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here
print("kernels run on:", device.info().name)

# %% [markdown]
# Here is the question. The documents make the tiled matrix product of chapter 03 slower by giving it bank conflicts, and then remove them with a pad of one:

# %% jupyter={"source_hidden": true}
documents = results.documents("A12")
first_run, second_run = (
    {row["variant"]: row["milliseconds"] for row in table["rows"]} for table in documents["tables"]
)
times = results.load("matmul-h200", case="time", shape=(4096, 4096, 4096), dtype="float32")
rows = []
for name, options in (("tiled", {}), ("tiled_conflict", {}), ("tiled_padded", {"pad": 1})):
    ours = results.first(times, variant=name, tile=16, **options)
    on_rtx, on_h200 = f"{first_run[name]:.1f} ms", f"{ours['value'] * 1e3:.1f} ms"
    rows.append({"4096 x 4096, tile 16": name, "RTX 3090, documents": on_rtx, ours["gpu"]: on_h200})
results.table(rows)

# %% [markdown]
# The pad wins back about half on their GPU, and more on ours, but never all of it. If the conflicts are gone, **where is the rest of the time?**

# %% [markdown]
# ## 32 banks
#
# Shared memory consists of 32 **banks**, each 4 bytes wide. Consecutive words are in consecutive banks: the word at byte address `x` is in bank `x / 4` modulo 32. In one pass, a **wavefront**, each bank serves one word.
#
# A warp has 32 lanes. If their words are in 32 different banks, one wavefront serves them all. If two lanes want *different* words from the *same* bank, that is a **bank conflict**, and it costs another wavefront. If they want the same word, it is a **broadcast**: the word goes to both at once.
#
# In this kernel lane i reads element `i * stride`:


# %%
@cuda.jit
def read_strided(stride, out):
    words = cuda.shared.array(32 * 33, np.float32)
    lane = cuda.threadIdx.x
    for i in range(lane, words.size, 32):
        words[i] = i
    cuda.syncwarp()
    out[lane] = words[lane * stride]


out = np.zeros(32, np.float32)
gpukit.trace(read_strided[1, 32], 2, out).plot_banks(array="words");
# %% [markdown]
# A row is a lane, a column a bank. A stride of 2 uses only the even banks, each for two lanes with different words: two wavefronts.
#
# **Predict:** how many wavefronts do strides of 3, 8, 24, 32, 33 and 0 take? Replace `None` with a list of six numbers.

# %%
my_answer = None
exercises.check("04-strides", my_answer)

# %% [markdown]
# The trace counts them for any stride. Open the output once you have an answer of your own:

# %% jupyter={"outputs_hidden": true}
for stride in (1, 2, 3, 4, 5, 8, 16, 24, 31, 32, 33, 0):
    loads = gpukit.trace(read_strided[1, 32], stride, out).total("shared", "load")
    print(f"stride {stride:2}: {loads.wavefronts:2} wavefronts, of which {loads.bank_conflicts:2} are conflicts")

# %% [markdown]
# <details><summary>The rule</summary>
#
# The count is the greatest common divisor of the stride and 32. Odd strides are free of conflicts. The worst are multiples of 32: a column of a matrix with 32 columns puts all lanes into one bank. A stride of 0 is a broadcast.
#
# </details>
#
# Strides are a special case. Write the general rule as a function of the host: given the word that each lane wants, how many wavefronts does the request take?


# %%
def wavefronts(words):
    """Count the wavefronts of one request. ``words``: an array of 32 ints, the word that each lane wants."""
    # About 3 lines: each wavefront serves one word per bank, so count the different words of
    # the busiest bank
    ...


exercises.check("04-wavefronts", wavefronts)

# %% [markdown]
# ## 8 and 16 bytes
#
# A lane may also read a float64, or four float32 at once with `load4` of `gpukit.intrinsics`. A warp then wants more than 32 words, so the hardware serves it in parts: two halves for elements of 8 bytes, four quarters for 16 bytes. Only lanes of the *same* part can conflict. At best that takes two and four wavefronts.


# %%
@cuda.jit
def read_doubles(stride, out):
    values = cuda.shared.array(32 * 17, np.float64)
    lane = cuda.threadIdx.x
    for i in range(lane, values.size, 32):
        values[i] = i
    cuda.syncwarp()
    out[lane] = values[lane * stride]


@cuda.jit
def read_quads(stride, out):
    words = cuda.shared.array(32 * 36, np.float32, alignment=16)
    lane = cuda.threadIdx.x
    for i in range(lane, words.size, 32):
        words[i] = i
    cuda.syncwarp()
    quad = load4(words, lane * stride)
    out[lane] = quad[0] + quad[1] + quad[2] + quad[3]


for stride in (1, 2, 16, 17):
    loads = gpukit.trace(read_doubles[1, 32], stride, np.zeros(32)).total("shared", "load")
    print(f"float64, stride {stride:2}: {loads.wavefronts:2} wavefronts, {loads.ideal_wavefronts} at best")
for stride in (4, 8, 32, 36):
    loads = gpukit.trace(read_quads[1, 32], stride, out).total("shared", "load")
    print(f"four float32, stride {stride:2}: {loads.wavefronts:2} wavefronts, {loads.ideal_wavefronts} at best")

# %% [markdown]
# Look at the last two lines. Rows of 32 float32 are the worst case for four at a time, and a pad cures it, but it must be a pad of 4. After a pad of 1 a row no longer starts at a multiple of 16 bytes, and the trace reports it:

# %%
for finding in gpukit.trace(read_quads[1, 32], 33, out).findings:
    print(f"{finding.kind} at: {finding.code}\n    {finding.message}")

# %% [markdown]
# ## The experiment
#
# To produce conflicts, the documents exchange `threadIdx.x` and `threadIdx.y` in the tiled product. A warp then walks down the columns of the tiles. Here it is with tiles of 16, launched as in chapter 03:


# %%
def matrices(rows, columns, terms):
    """Two random matrices, and an output full of something that cannot be right."""
    random = np.random.default_rng(4)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, terms), (terms, columns)))
    return a, b, np.full((rows, columns), np.nan, np.float32)


a, b, out = matrices(64, 64, 64)
conflict = gpukit.trace(matmul.tiled_conflict(np.float32, 16)[(4, 4), (16, 16)], a, b, out)
conflict

# %% [markdown]
# Read the column of conflicts: the stores to both tiles have some, and the loads of `tile_a` in the loop have most. Here is a store. Lanes 0 to 15 have `tx` from 0 to 15 and walk down 16 rows of a column. A row has 16 words, so every other row starts in the same bank:


# %%
def plot_stores(trace):
    """Draw the banks of the store to tile_a."""
    store = next(access for access in trace.accesses if (access.array, access.op) == ("tile_a", "store"))
    trace.plot_banks(store.line, "tile_a")


plot_stores(conflict)
# %% [markdown]
# The cure is a **pad**: rows a little longer than they need be, so that each one starts in a different bank. Declare both tiles with the pad that leaves no conflict at all:


# %%
@cuda.jit
def padded(a, b, out):
    # About 2 lines: declare tile_a and tile_b, 16 rows of 16 float32 each, with a pad
    tile_a = ...
    tile_b = ...
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[tx, ty] = a[row, first + ty]
        tile_b[tx, ty] = b[first + tx, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k] * tile_b[k, ty]
        cuda.syncthreads()
    out[row, col] = total


exercises.check("04-pad", padded)

# %% [markdown]
# The textbook answer is a pad of one, rows of 17. It is also what the documents use. Here are its stores:

# %% jupyter={"outputs_hidden": true}
plot_stores(gpukit.trace(matmul.tiled_conflict(np.float32, 16, 1)[(4, 4), (16, 16)], a, b, out))
# %% [markdown]
# Still two wavefronts. Chapter 01 showed why: a block that is 16 wide has **two rows in a warp**. Lanes 0 to 15 walk down one column of the tile, lanes 16 to 31 down the next. With rows of 17 each column is free of conflicts, but the second is the first shifted by one bank, and the two collide.
#
# Which pad is right for which tile? The next cell tries them all:


# %% jupyter={"outputs_hidden": true}
def wavefronts_per_store(tile, pad):
    a, b, out = matrices(tile, tile, tile)
    stores = gpukit.trace(matmul.tiled_conflict(np.float32, tile, pad)[1, (tile, tile)], a, b, out)
    stores = stores.total("shared", "store")
    return stores.wavefronts / stores.requests


print("pad      " + "".join(f"{pad:7}" for pad in range(6)))
for tile in matmul.TILES:
    print(f"tile {tile:2}: " + "".join(f"{wavefronts_per_store(tile, pad):7.0f}" for pad in range(6)))

# %% [markdown]
# The right pad is the number of columns that a warp covers at a time: 1 for a tile of 32, 2 for 16, 4 for 8. With a pad of 2 the two columns interleave:

# %% jupyter={"outputs_hidden": true}
plot_stores(gpukit.trace(matmul.tiled_conflict(np.float32, 16, 2)[(4, 4), (16, 16)], a, b, out))
# %% [markdown]
# **Check yourself.** Which pads are right for tiles of 8, 16 and 32 float64?
#
# <details><summary>Answer</summary>
#
# Halves of a warp are served one after the other, so only 16 lanes can conflict. They cover 2, 1 and half a column: pads of 2, 1 and 1. `matmul.right_pad(np.float64, tile)` computes them.
#
# </details>

# %% [markdown]
# ## No pad at all
#
# A pad costs memory, and it gets in the way of wide accesses. A **swizzle** needs none: leave the rows where they are, and change the order of the elements *within* each row. Element (r, c) goes to column `c ^ r` of row r, at the price of one exclusive or. As c runs through a row, `c ^ r` takes every value once, so no two elements collide. As r runs down a column, it takes every value once too, so a column uses every bank. Here are 8 x 8 elements and, to keep the picture small, 8 banks:

# %%
plot.swizzle(8);
# %% [markdown]
# At the left a column lies in one bank, at the right in all of them. `matmul.tiled_swizzled` stores its tiles like that. For tiles of 16 and 8 it suffices that rows which start in the same bank get different masks, so it clears the low bits of r:

# %%
for tile in matmul.TILES:
    a, b, out = matrices(tile, tile, tile)
    total = gpukit.trace(matmul.tiled_swizzled(np.float32, tile)[1, (tile, tile)], a, b, out).total("shared")
    print(f"tile {tile:2}: {total.wavefronts:,} wavefronts, {total.ideal_wavefronts:,} at best")

# %% [markdown]
# ## Two changes at once
#
# Two cures, and no conflict is left. Yet neither kernel is as fast as `tiled`, the kernel that never had a conflict. The trace shows why:

# %%
KERNELS = {
    "tiled": matmul.tiled(np.float32, 16),
    "tiled_conflict": matmul.tiled_conflict(np.float32, 16),
    "tiled_padded, pad 2": matmul.tiled_conflict(np.float32, 16, 2),
    "tiled_swizzled": matmul.tiled_swizzled(np.float32, 16),
}
a, b, out = matrices(64, 64, 64)
print(f"{'tile 16':20}{'shared wavefronts':>19}{'global sectors':>16}")
for name, kernel in KERNELS.items():
    trace = gpukit.trace(kernel[(4, 4), (16, 16)], a, b, out)
    print(f"{name:20}{trace.total('shared').wavefronts:19,}{trace.total('global').sectors:16,}")

# %% [markdown]
# Exchanging `threadIdx.x` and `.y` changed how a warp walks through the tiles, *and* how it walks through the matrices: it now reads 16 rows of a, two elements from each. That is four times the sectors. A pad cures the first and cannot touch the second. What the documents measured as "bank conflicts" is the sum of both.

# %%
conflict.plot_sectors(array="a");
# %% [markdown]
# Take one of the two changes back. Load both tiles so that a warp reads rows of a and b again; leave the loop over k and the result as they are:


# %%
@cuda.jit
def along_rows(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        # About 2 lines: fill the same tiles, but let neighbouring lanes read neighbouring
        # elements of a and b
        tile_a[tx, ty] = a[row, first + ty]
        tile_b[tx, ty] = b[first + tx, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k] * tile_b[k, ty]
        cuda.syncthreads()
    out[row, col] = total


exercises.check("04-along-rows", along_rows)

# %% [markdown]
# Which accesses to shared memory conflict in your kernel now?
#
# <details><summary>Answer</summary>
#
# Only the loads of `tile_a` in the loop: `tx` is still its row. The stores have become conflict-free, because neighbouring lanes store neighbouring elements.
#
# </details>

# %% [markdown]
# ## The times
#
# Now all forms at 4096 by 4096, with static and with dynamic shared memory. On a GPU the cell times them; elsewhere it takes the times recorded on an H200.

# %%
VARIANTS = ["tiled", "tiled_conflict", "tiled_padded", "tiled_swizzled"]
VARIANTS += ["dynamic", "dynamic_conflict", "dynamic_padded"]
forms = [form for form in times if form["variant"] in VARIANTS and form["tile"] in (16, 32)]
forms = [form for form in forms if "depth" not in form]
where = results.taken_on(forms)


def launcher(form):
    launch, further = matmul.configure(form["variant"], out.shape, tile=form["tile"], pad=form.get("pad"))
    return lambda: launch(a, b, out, *further)


if on_gpu():
    a, b, out = map(cuda.to_device, matrices(4096, 4096, 4096))
    timings = timing.bench_many({str(i): launcher(form) for i, form in enumerate(forms)}, min_time=0.1)
    forms = [form | {"value": timed.median} for form, timed in zip(forms, timings.values(), strict=True)]
    where = device.info().name


# %% jupyter={"source_hidden": true}
def written(variant, tile, pad=None):
    """Shared wavefronts of a 1024 x 1024 product as written: one block is like all others."""
    a, b, out = matrices(tile, tile, 1024)
    launch, further = matmul.configure(variant, out.shape, tile=tile, pad=pad)
    return gpukit.trace(launch, a, b, out, *further).total("shared").wavefronts * (1024 // tile) ** 2


points, notes = {}, {}
for form in sorted(forms, key=lambda form: (VARIANTS.index(form["variant"]), form["tile"])):
    name = form["variant"] + (f", pad {form['pad']}" if "pad" in form else "")
    points.setdefault(name, {})[f"tile {form['tile']}"] = form["value"] * 1e3
    if form["tile"] == 16:
        notes[name] = f"{written(form['variant'], 16, form.get('pad')) / 1e6:,.0f}"
title, heading = "4096 x 4096 product", "wavefronts per 1024³, millions, tile 16"
plot.dots(points, "ms", title=title, mark=where, notes=notes, heading=heading);

# %% [markdown]
# Conflicts are expensive, most of all with tiles of 32. But the forms without any conflict differ by a factor of two and more. One reason is the sectors: the forms with exchanged indices move four times as many with tiles of 16, and eight times with tiles of 32. The next section has another.
#
# A pad of 2 gains little over a pad of 1. It could not gain much here: the conflicts that a pad of 1 leaves are in the stores to the tiles, and there are 16 loads for each of them. In the transpose below a tile is stored and read once, so a conflict in the store counts as much as one in the load.
#
# > **From the source.** The documents timed eight forms on their GPU, tiles of 16, and three of them a second time:

# %% jupyter={"source_hidden": true}
again = {row["case"]: row["milliseconds"] for row in documents["tables"][1]["rows"]}
rows = []
for row in documents["tables"][0]["rows"]:
    once, twice = row["milliseconds"], again.get(row["case"])
    change = "" if twice is None else f"{twice / once - 1:+.1%}"
    pad = {"pad": 1} if row["variant"].endswith("padded") else {}
    ours = results.first(times, variant=row["variant"], tile=16, **pad)
    found = {"case": row["case"], "first run, ms": f"{once:.2f}", "second run, ms": twice, "change": change}
    rows.append(found | {f"{ours['gpu']}, ms": f"{ours['value'] * 1e3:.2f}"})
results.table(rows)

# %% [markdown]
# > The second run tells how far to trust the first. The time of one kernel differs by several percent although nothing was changed, so the gap of about a percent between the two padded forms means nothing. A single time without its spread cannot carry a conclusion about a few percent.
# >
# > The experiment has four faults. It changed two things at once. Its pad of one does not fit a tile of 16. The kernels with conflicts multiply the wrong matrices, and the check did not notice; both are demonstrated at the end of this page.

# %% [markdown]
# ## What the compiler makes of it
#
# A trace counts a kernel as it is written. The compiler may do better: it merges four loads of neighbouring elements into one of 128 bits, if it knows that they start at a multiple of 16 bytes. It may also do worse, and compute an address for every access. Nsight Compute counts what was executed; here for matrices of 1024 by 1024, in millions:

# %% jupyter={"source_hidden": true}
executed = results.load("matmul-h200", shape=(1024, 1024, 1024), dtype="float32")

rows = []
for variant, tile, options in [
    *((variant, tile, {}) for tile in (16, 32) for variant in ("tiled", "tiled_conflict", "tiled_swizzled")),
    *(("tiled_padded", tile, {"pad": pad}) for tile, pad in ((16, 1), (16, 2), (32, 1))),
]:
    gpu = {
        case: f"{results.first(executed, case=case, variant=variant, tile=tile, **options)['value'] / 1e6:,.1f}"
        for case in ("shared wavefronts", "shared load requests", "instructions")
    }
    rows.append(
        {
            "kernel": variant,
            "tile": tile,
            "pad": options.get("pad", ""),
            "wavefronts as written": f"{written(variant, tile, **options) / 1e6:,.1f}",
            "executed": gpu["shared wavefronts"],
            "loads as written": f"{2 * 1024**3 / 32 / 1e6:.1f}",
            "loads executed": gpu["shared load requests"],
            "instructions executed": gpu["instructions"],
        }
    )
results.table(sorted(rows, key=lambda row: row["tile"]))

# %% [markdown]
# Where no loads were merged, the trace and the GPU agree on the wavefronts. In `tiled` and `tiled_conflict`, four loads of `tile_a` became one. A pad of 1 rules that out, because rows no longer start at multiples of 16 bytes; a pad of 2 leaves pairs; a swizzle hides the neighbours from the compiler.
#
# The last column is the third cost. With tiles of 32, the pad and the swizzle execute several times the instructions of the plain kernel: the compiler no longer unrolls the whole inner loop, and it computes addresses there that were constants before. So a cure for conflicts can cost part of what it saves, and the source does not show it. Measure.
#
# That answers the question at the top. A pad removes the conflicts, but not the other two differences from `tiled`: four times the sectors, and loads that the compiler can no longer merge.

# %% [markdown]
# ## One effect at a time: the transpose
#
# A matrix product does too much to isolate one effect. A transpose only moves data. Plain copies with the same tiles are its **controls**: no transpose can be faster than the copy built like it, and neighbours on this ladder differ in one thing only. The tiled form turns the tile in shared memory, so that both its reads and its writes run along rows:

# %%
show.source(transpose.tiled)

# %% [markdown]
# A column of its tile lies in one bank. The next rungs avoid that with a pad or a swizzle, then take more rows per thread, and finally move 128 bits at a time. Nothing can be merged in these kernels, so the trace and Nsight Compute must agree, here for 2048 by 2048 elements:

# %%
a = np.random.default_rng(5).random((128, 128), np.float32)
LADDER = ("copy", "copy_shared", "naive", "tiled", "tiled_padded", "tiled_swizzled", "tall", "wide")
counts = results.load("transpose-h200", shape=(2048, 2048))
parts, rows = (2048 // 128) ** 2, []
for variant in LADDER:
    out = np.full_like(a, np.nan)
    trace = gpukit.trace(transpose.configure(variant, a.shape, a.dtype), a, out)  # kernel[grid, block]
    assert np.array_equal(out, a if variant.startswith("copy") else a.T)
    cases = ("shared wavefronts", "global load sectors", "global store sectors")
    wavefronts, *sectors = (results.first(counts, variant=variant, case=case)["value"] for case in cases)
    row = {"kernel": variant, "wavefronts, trace": f"{trace.total('shared').wavefronts * parts:,}"}
    row |= {"GPU": f"{wavefronts:,}", "sectors, trace": f"{trace.total('global').sectors * parts:,}"}
    rows.append(row | {"sectors, GPU": f"{sum(sectors):,}"})
results.table(rows)

# %% [markdown]
# Now the times. A transpose of n bytes moves 2 n bytes, so its bandwidth can be compared with that of a copy:

# %%
shape = (8192, 8192)
recorded = results.load("transpose-h200", case="time", shape=shape, dtype="float32")
rates, where = results.by_variant(recorded), results.taken_on(recorded)
if on_gpu():
    a, out = cuda.to_device(np.random.default_rng(5).random(shape, np.float32)), cuda.device_array(shape, np.float32)
    launches = {variant: transpose.configure(variant, shape, np.float32) for variant in (*LADDER, "wide_copy")}
    measured = timing.bench_many({name: lambda launch=launch: launch(a, out) for name, launch in launches.items()})
    rates |= {variant: result.median for variant, result in measured.items()}
    where = f"{device.info().name}; libraries: {where}"
print(f"wide reaches {rates['wide_copy'] / rates['wide']:.0%} of the speed of the copy built like it")

# %% jupyter={"source_hidden": true}
names = [name for name in ("copy", "wide_copy", *LADDER[1:], "cupy", "torch") if name in rates]
title = f"{shape[0]} x {shape[1]} float32: copies (gray), transposes (blue), libraries (orange)"
with plot.figure(title, size=(8, 3.4), mark=where) as ax:
    speeds = [2e-9 * 4 * shape[0] * shape[1] / rates[name] for name in names]
    colors = [plot.PALETTE[7 if "copy" in name else 1 if name in ("cupy", "torch") else 5] for name in names]
    bars = ax.barh(names, speeds, color=colors)
    ax.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=3)
    ax.invert_yaxis()
    ax.set(xlabel="GB/s")

# %% [markdown]
# Read it from the top. Shared memory by itself costs little: `copy_shared` is close to `copy`. Writing down columns is the worst choice. The tile in shared memory fixes that and pays with conflicts in every load; the pad or the swizzle removes those. The rest comes from more values per thread, and from fewer and wider accesses. CuPy and PyTorch copy a transposed view here, with a kernel for arrays of any strides.

# %% [markdown]
# ## What goes wrong
#
# **Two inputs that are alike.** In the documents' kernels with conflicts, one line loads the second tile from the first matrix. The times in their table are times of these kernels. Here is the same mistake:


# %%
@cuda.jit
def first_matrix_twice(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[tx, ty] = a[row, first + ty]
        tile_b[tx, ty] = a[first + tx, col]  # planted: this should be b
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k] * tile_b[k, ty]
        cuda.syncthreads()
    out[row, col] = total


alike = np.random.default_rng(0).random((64, 64), np.float32)
out = np.full((64, 64), np.nan, np.float32)
trace = gpukit.trace(first_matrix_twice[(4, 4), (16, 16)], alike, alike.copy(), out)
print("both matrices filled alike, right:", np.allclose(out, alike @ alike, rtol=1e-5))

# %% [markdown]
# The documents' program fills both matrices alike, so a times a equals a times b to the last digit. The trace shows the mistake whatever the values are: nothing has read b.

# %%
for coverage in trace.coverage:
    print(f"{coverage.array}: {coverage.read:,} of {coverage.elements:,} elements read, {coverage.written:,} written")

# %% [markdown]
# **A reference that is overwritten.** With different matrices a check finds the mistake, if it is a check. In the documents the result of the next kernel went into the array that held the reference, and was then compared with itself:

# %%
a, b, result = matrices(64, 64, 64)
matmul.naive[(2, 2), (32, 32)](a, b, result)
reference = result  # no copy: a second name for the same memory
first_matrix_twice[(4, 4), (16, 16)](a, b, result)
print("equals its reference:", np.array_equal(result, reference), " one array:", np.shares_memory(result, reference))
print("equals a @ b:        ", np.allclose(result, a @ b, atol=1e-3))

# %% [markdown]
# So give every input its own random values, fill outputs with something wrong, keep the reference in memory that no kernel touches, and choose different sizes for M, N and K, so that rows and columns cannot be confused.
#
# **A pad in one place only.** With dynamic shared memory the pad belongs in the row length of both tiles *and* in the size that the launch asks for. If the launch forgets it, the last rows lie outside the block's memory:

# %%
unpadded = 2 * 16 * 16 * 4  # bytes
launch = matmul.dynamic_conflict(np.float32)[(4, 4), (16, 16), 0, unpadded]
finding = gpukit.trace(launch, a, b, result, 16, 2).findings[0]
print(f"{finding.kind} at: {finding.code}\n    {finding.message}")

# %% [markdown]
# ## Exercises
#
# **1. A tile that no pad can save.** This transpose uses tiles of 16 x 16. A store writes two rows of the tile at a time, a load reads two columns. The stores are free of conflicts only where these two rows start 16 banks apart, as they do without a pad. But then a column lies in just two banks, and the loads conflict. Transpose without a conflict all the same.


# %%
@cuda.jit
def turn(a, out):
    tile = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    # About 2 lines to change: swizzle the columns of the tile, in the store and in the load
    tile[ty, tx] = a[row, col]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 16 + ty, cuda.blockIdx.y * 16 + tx] = tile[tx, ty]


exercises.check("04-swizzle", turn)

# %% [markdown]
# **2. A tile of 24.** A block of 24 by 24 threads has 18 warps. Each covers a row and a third, so they start at column 0, 8 or 16 of the block, and differ. Count the wavefronts in which such a block stores a tile, for any tile and any pad.


# %%
def wavefronts_of_tile(tile, pad):
    """Count the wavefronts in which a block of tile x tile threads stores: thread (tx, ty) to row tx, column ty."""
    # About 6 lines: for each warp of the block, find the word of each of its threads, and add
    # up its wavefronts
    ...


exercises.check("04-tile", wavefronts_of_tile)

# %% [markdown]
# Is there a pad for tiles of 24 without any conflict? Try yours with your function.
#
# <details><summary>Answer</summary>
#
# No. Without conflicts it would be 18 wavefronts, and the best pad, 2, takes 30.
#
# </details>
#
# ## Key points
#
# - 32 banks of 4 bytes. Different words from one bank cost a wavefront each; the same word is broadcast.
# - 8-byte accesses are served by half-warps, 16-byte accesses by quarters.
# - An odd stride is free of conflicts; a multiple of 32 is the worst.
# - The right pad is the number of columns that a warp covers at a time: 1 for tiles of 32, 2 for 16, 4 for 8.
# - A swizzle needs no pad. A pad that is no multiple of 4 words rules out 128-bit accesses, also those that the compiler would have made by itself.
# - Change one thing at a time, count, and have a control.
# - Inputs that are filled alike, and references that share memory with results, hide mistakes.
#
# **Back:** [03 Shared memory](03_shared_memory.ipynb). **Next:** [05 Matmul all the way](05_fast_matmul.ipynb).
