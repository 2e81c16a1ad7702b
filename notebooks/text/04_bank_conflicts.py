# %% [markdown]
# # 04 Bank conflicts
#
# Shared memory is fast as long as the lanes of a warp do not stand in each other's way. This chapter shows exactly when they do, repeats the documents' experiment with it, and finds three things in it that the documents did not see.
#
# **After this chapter you will be able to**
#
# - compute, for any access of a warp to shared memory, how many wavefronts it takes: for elements of 4, 8 and 16 bytes;
# - see conflicts in a picture of lanes and banks, and in the counts of a trace;
# - choose a pad for a tile of any width, and say why the pad of one that everybody knows is wrong for tiles of 16;
# - do without a pad, by an exclusive or;
# - tell apart what two changes made at once have done to a time.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb). No GPU.
#
# **Time:** 60 minutes.

# %%
import warnings

import numpy as np

import gpukit
from gpukit import cuda, device, matmul, on_gpu, plot, results, show, timing, transpose
from gpukit.intrinsics import load4

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)


def matrices(rows, columns, terms, dtype=np.float32):
    """Two random matrices, and an output full of something that cannot be right."""
    random = np.random.default_rng(4)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((rows, terms), (terms, columns)))
    return a, b, np.full((rows, columns), np.nan, dtype)


# %% [markdown]
# ## 32 banks
#
# Shared memory is built as 32 **banks** that work side by side. Each is 4 bytes wide, and words that follow one another are in banks that follow one another: the word at byte address `x` is in bank `x / 4` modulo 32. In one pass, a **wavefront**, each bank can serve one word.
#
# A warp has 32 lanes. If their words are in 32 different banks, one wavefront serves them all. If two lanes want *different* words of the *same* bank, there is a **bank conflict**, and it takes another wavefront. If they want the same word, there is none: the word is sent to both.
#
# To try it, a kernel in which lane i reads element `i * stride`:


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
# A row is a lane, a column a bank. With a stride of 2 only the even banks are used, each by two lanes with different words: two wavefronts.
#
# **Check yourself.** How many wavefronts does it take with a stride of 3, 8, 32 and 33? And with 0? Write your five numbers down, then compare:

# %%
for stride in (1, 2, 3, 4, 5, 8, 16, 24, 31, 32, 33, 0):
    loads = gpukit.trace(read_strided[1, 32], stride, out).total("shared", "load")
    print(f"stride {stride:2}: {loads.wavefronts:2} wavefronts, of which {loads.bank_conflicts:2} are conflicts")

# %% [markdown]
# The rule behind it: a stride and 32 have a greatest common divisor, and that is the number of wavefronts. Odd strides are free, powers of two are the worst. A stride of 0 is a **broadcast**: all lanes want one word, and get it at once.

# %%
gpukit.trace(read_strided[1, 32], 32, out).plot_banks(array="words");

# %% [markdown]
# A column of a matrix with 32 columns, in other words. All lanes wait for one bank.

# %% [markdown]
# ## 8 and 16 bytes
#
# A lane may also read a float64, or with `load4` of `gpukit.intrinsics` four float32 at once. That is two or four words per lane, more than 32 banks can serve in one pass. So the hardware takes the warp in parts: with 8 bytes one half of it after the other, with 16 bytes one quarter after the other. A conflict is one *within* a part; two and four wavefronts are the fewest there can be.


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


for stride in (1, 2, 4, 16, 17):
    loads = gpukit.trace(read_doubles[1, 32], stride, np.zeros(32)).total("shared", "load")
    print(f"float64, stride {stride:2}: {loads.wavefronts:2} wavefronts, {loads.ideal_wavefronts} at best")
for stride in (4, 8, 16, 32, 36):
    loads = gpukit.trace(read_quads[1, 32], stride, out).total("shared", "load")
    print(f"four float32, stride {stride:2}: {loads.wavefronts:2} wavefronts, {loads.ideal_wavefronts} at best")

# %% [markdown]
# Read the last line again. A row of 32 float32 is the worst case for four at a time, and a pad cures it, but it must be a pad of 4: with a pad of 1, `load4` would begin at an address that is no multiple of 16 bytes. The trace calls that by its name:

# %%
for finding in gpukit.trace(read_quads[1, 32], 33, out).findings:
    print(finding.kind, "at:", finding.code)
    print("   ", finding.message)

# %% [markdown]
# ## The documents' experiment
#
# To show bank conflicts, the documents take the tiled matrix product and exchange the roles of `threadIdx.x` and `threadIdx.y`, so that a warp walks down the columns of the tiles. Then they add one element of pad to each row to cure it. Here is our form of both, with the pad as an argument:

# %%
show.source(matmul.tiled_conflict)


# %%
def traced(variant, size=64, **options):
    """The trace of one product of square matrices."""
    a, b, out = matrices(size, size, size)
    launch, further = matmul.configure(variant, (size, size), **options)
    trace = gpukit.trace(launch, a, b, out, *further)
    assert np.allclose(out, a.astype(np.float64) @ b, atol=1e-3)
    return trace


def plot_stores(trace):
    """The banks of a store to tile_a."""
    store = next(access for access in trace.accesses if (access.array, access.op) == ("tile_a", "store"))
    trace.plot_banks(store.line, "tile_a")


conflict = traced("tiled_conflict", tile=16)
conflict

# %% [markdown]
# Look at the conflicts: the stores to both tiles, and the loads of `tile_a`. Lanes 0 to 15 have `tx` from 0 to 15, so they walk down 16 rows of a column; a row has 16 words, so every second row begins in the same bank. Here is a store:

# %%
plot_stores(conflict)
# %% [markdown]
# ## The pad of one
#
# Everybody knows the cure: rows of 17 in place of 16.

# %%
padded_by_1 = traced("tiled_padded", tile=16, pad=1)
store = padded_by_1.total("shared", "store")
print(f"{store.requests:,} stores, {store.wavefronts:,} wavefronts")
plot_stores(padded_by_1)
# %% [markdown]
# It helps, but it is not a cure: still two wavefronts for each store. The reason was to be seen in chapter 01: a block that is 16 wide has **two rows in a warp**. Lanes 0 to 15 walk down one column of the tile, lanes 16 to 31 down the next one. With rows of 17 words each column is free of conflicts; but the second one is the first one moved on by one bank, and there the two meet.
#
# **Which pad would be right?** Find it before you read on. The next cell shows one choice; the one after it tries them all.

# %%
pad = 1  # your choice
banks = [(tx * (16 + pad) + ty) % 32 for ty in (0, 1) for tx in range(16)]
print(f"pad {pad}: the lanes of a warp use {len(set(banks))} different banks")

# %%
print("wavefronts per store, 4-byte elements")
print("pad      " + "".join(f"{p:7}" for p in range(6)))
for tile in matmul.TILES:
    stores = [traced("tiled_padded", size=tile, tile=tile, pad=p).total("shared", "store") for p in range(6)]
    print(f"tile {tile:2}: " + "".join(f"{s.wavefronts / s.requests:7.0f}" for s in stores))

# %% [markdown]
# One is the right pad for a tile of 32, where a warp is one row of the block. For a tile of 16 it is 2, for 8 it is 4: as many as the columns that a warp covers at a time. In the picture the two columns now lie between each other like the fingers of two hands:

# %%
plot_stores(traced("tiled_padded", tile=16, pad=2))
# %% [markdown]
# ## No pad at all
#
# A pad costs memory, and it gets in the way of wide accesses. There is another way to spread a column over the banks: leave the rows as they are, and change the order of the elements *within* each row, in another way for each. An exclusive or does this at the price of one instruction. Element (r, c) goes to column `c ^ r` of row r. Since `x ^ r` takes every value once as x goes through a row, no two elements meet; since it takes every value once as r goes down a column, a column uses every bank. Here it is for 8 by 8 elements and, to keep the picture small, 8 banks:

# %%
tile = 8
place = np.arange(tile)[None, :] ^ np.arange(tile)[:, None]
with plot.figure(columns=2, size=(6, 2.9), mark="a drawing") as axes:
    columns = np.tile(np.arange(tile), (tile, 1))
    for ax, shown, title in zip(axes, (columns, place), ("as it is", "c ^ r"), strict=True):
        ax.imshow(shown, cmap="tab10", vmax=9)
        for row, col in np.ndindex(tile, tile):
            ax.text(col, row, shown[row, col], ha="center", va="center", color="white")
        ax.set(title=f"the column of each element: {title}", xlabel="bank", ylabel="row", xticks=[], yticks=[])

# %% [markdown]
# The colours are the columns of the matrix. At the left a column lies in one bank, at the right in all of them. For tiles of 16 and 8 the same thought as with the pad applies: rows that together fill the 32 banks once are moved alike. The lower bits of r are masked out for that.

# %%
show.source(matmul.tiled_swizzled)

# %%
for tile in matmul.TILES:
    total = traced("tiled_swizzled", tile=tile).total("shared")
    print(f"tile {tile:2}: {total.wavefronts:,} wavefronts, {total.ideal_wavefronts:,} at best")

# %% [markdown]
# ## Two changes at once
#
# The conflicts are gone, by two different ways. Is the kernel now as fast as the tiled one of the last chapter? In the documents it was not:

# %%
documents = results.documents("A12")
published = {row["variant"]: row["milliseconds"] for row in documents["tables"][0]["rows"][1:]}
for variant in ("tiled", "tiled_conflict", "tiled_padded"):
    print(f"{variant:16}{published[variant]:7.1f} ms on an {documents['gpu']}")

# %% [markdown]
# The pad takes back only half of what the conflicts had cost. The documents leave it at that. The trace knows more:

# %%
variants = {"tiled": {}, "tiled_conflict": {}, "tiled_padded": {"pad": 2}, "tiled_swizzled": {}}
print(f"{'tile 16':16}{'shared wavefronts':>19}{'global sectors':>16}")
for variant, options in variants.items():
    trace = traced(variant, tile=16, **options)
    print(f"{variant:16}{trace.total('shared').wavefronts:19,}{trace.total('global').sectors:16,}")

# %% [markdown]
# Exchanging `threadIdx.x` and `.y` did not only change how a warp walks through the tiles. It also changed how it walks through the matrices: a warp now reads 16 rows of a, two elements of each. Four times as many sectors. The pad mends the first and can do nothing about the second. What the documents measured as "bank conflicts" is the sum of both.

# %%
conflict.plot_sectors(array="a");

# %% [markdown]
# ## The table
#
# All of them at 4096 by 4096, as in the documents. Wavefronts and sectors are counted here, by the trace, for the kernels as written. One block is enough, for all blocks of this size are alike, and so is a short K: its steps are alike too.


# %%
def counted(variant, n=4096, part=64, **options):
    """(shared wavefronts, global sectors) of an n x n x n product, in millions: from one block and the first columns."""
    a, b, out = (cuda.device_array(shape, np.float32) for shape in ((n, part), (part, n), (n, n)))
    launch, further = matmul.configure(variant, (n, n), **options)
    trace = gpukit.trace(launch, a, b, out, *further, blocks=1)
    loads, stores = trace.total("global", "load").sectors, trace.total("global", "store").sectors
    return trace.total("shared").wavefronts * (n // part) / 1e6, (loads * (n // part) + stores) / 1e6


recorded = results.load("matmul-h200", case="time", shape=(4096, 4096, 4096), tile=(16, 32), dtype="float32")
chosen = [
    *({"variant": v, "tile": 16} for v in ("naive", "tiled", "tiled_conflict")),
    *({"variant": "tiled_padded", "tile": 16, "pad": p} for p in (1, 2)),
    *({"variant": v, "tile": 16} for v in ("tiled_swizzled", "dynamic", "dynamic_conflict")),
    *({"variant": "dynamic_padded", "tile": 16, "pad": p} for p in (1, 2)),
    *({"variant": v, "tile": 32} for v in ("tiled", "tiled_conflict", "tiled_swizzled")),
    *({"variant": v, "tile": 32} for v in ("dynamic", "dynamic_conflict")),
    *({"variant": v, "tile": 32, "pad": 1} for v in ("tiled_padded", "dynamic_padded")),
]
rows = []
for choice in chosen:
    wavefronts, sectors = counted(**choice)
    rows.append(results.first(recorded, **choice) | {"wavefronts": wavefronts, "sectors": sectors})


def of_the_documents(row):
    """Their time in ms; they had tiles of 16, and a pad of 1."""
    theirs = row["tile"] == 16 and row.get("pad", 1) == 1
    return f"{published[row['variant']]:.1f}" if theirs and row["variant"] in published else None


results.table(
    rows,
    {
        "kernel": "variant",
        "tile": "tile",
        "pad": "pad",
        "wavefronts, millions": lambda r: f"{r['wavefronts']:,.0f}",
        "sectors, millions": lambda r: f"{r['sectors']:,.0f}",
        f"{documents['gpu'].removeprefix('NVIDIA GeForce ')}, ms (documents)": of_the_documents,
        f"{rows[0]['gpu'].removeprefix('NVIDIA ')}, ms ({rows[0]['date']})": lambda r: f"{r['value'] * 1e3:.1f}",
    },
)

# %%
def label(ax, group):
    """Write the names of points beside them, once for those that lie together."""
    names = {}
    for row in sorted(group, key=lambda row: row["value"]):
        name = f"pad {row['pad']}" if "pad" in row else row["variant"].partition("_")[2] or "as it is"
        place = row["wavefronts"], row["value"] * 1e3
        near = (p for p in names if max(abs(p[0] / place[0] - 1), abs(p[1] / place[1] - 1)) < 0.14)
        names.setdefault(next(near, place), {})[name] = True
    for place, together in names.items():
        ax.annotate(", ".join(together), place, (7, -3), textcoords="offset points", fontsize=8)


mark = f"counted by the trace; times recorded on {rows[0]['gpu']}, {rows[0]['date']}"
with plot.figure(columns=2, size=(8, 3.6), mark=mark, sharey=True) as axes:
    for ax, family in zip(axes, ("tiled", "dynamic"), strict=True):
        group = [row for row in rows if row["variant"].startswith(family)]
        for tile, marker in ((16, "o"), (32, "s")):
            points = [(row["wavefronts"], row["value"] * 1e3) for row in group if row["tile"] == tile]
            if points:
                ax.scatter(*zip(*points, strict=True), marker=marker, label=f"tile {tile}")
        label(ax, group)
        ax.set(xscale="log", xlim=(3e3, 3e5), xlabel="wavefronts as written, millions", title=family)
        ax.legend(loc="lower right")
    axes[0].set(yscale="log", ylabel="ms", ylim=(10, 500), yticks=(10, 20, 50, 100, 200, 500))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].minorticks_off()

# %% [markdown]
# More wavefronts cost more time, and conflicts are expensive. But the points at the left have next to the same number of wavefronts, and still the slowest takes several times as long as the fastest. Wavefronts are not all there is. The kernels with exchanged roles move four times the sectors with tiles of 16, and eight times with tiles of 32; and there is a third cost, which comes next.
#
# The pad of 2 gains little over the pad of 1. It could not gain much here: the conflicts that the pad of 1 leaves are in the stores to the tiles, and for each store there are 16 loads. Where a tile is stored and read once, as in the transpose below, a conflict in the stores counts as much as one in the loads.

# %% [markdown]
# ## What the compiler makes of it
#
# The trace counts the kernel as it is written. The compiler may do better: where four neighbours of a row are read one after the other, at addresses it knows to be multiples of 16 bytes, it reads them in one 128-bit access. And it may do worse, where it has to compute an address for every access. Nsight Compute counted what was executed, for matrices of 1024 by 1024; all figures are millions:


# %%
def settings(row):
    return {key: row[key] for key in ("variant", "tile", "pad") if key in row}


def executed(case):
    """What makes the text of a cell: a count of Nsight Compute."""
    counts = results.load("matmul-h200", case=case, shape=(1024, 1024, 1024))
    return lambda row: f"{results.first(counts, **settings(row))['value'] / 1e6:.1f}"


static = [row for row in rows if row["variant"].startswith("tiled")]
results.table(
    sorted(static, key=lambda row: row["tile"]),
    {
        "kernel": "variant",
        "tile": "tile",
        "pad": "pad",
        "wavefronts as written": lambda row: f"{counted(n=1024, **settings(row))[0]:.1f}",
        "wavefronts executed": executed("shared wavefronts"),
        "loads as written": lambda row: f"{2 * 1024**3 / 32 / 1e6:.1f}",
        "loads executed": executed("shared load requests"),
        "instructions executed": executed("instructions"),
    },
)

# %% [markdown]
# Where loads could not be merged, the trace and the GPU agree on the wavefronts. In the plain kernel, and in the one with conflicts, four loads of `tile_a` became one. A pad of 1 makes that impossible, since the rows no longer begin at multiples of 16 bytes; a pad of 2 leaves pairs; a swizzle hides the neighbours from the compiler.
#
# The last column is the third cost. With tiles of 32, the pad and the swizzle bring several times the instructions of the plain kernel: the compiler no longer unrolls the inner loop as a whole, and computes addresses in it that were constants before. So a cure for conflicts can cost part of what it saves, and nothing in the source tells of it. One has to measure.

# %% [markdown]
# ## One effect at a time: the transpose
#
# A matrix product does too much to isolate one effect. A transpose does nothing but move: read a matrix, write it turned. Copies with the same tiles are the **controls**: no transpose can be faster than the copy that is made like it, and two neighbours of the ladder differ in one thing only.

# %%
show.source(transpose.copy, transpose.naive)

# %%
show.source(transpose.tiled)

# %% [markdown]
# The naive form reads along rows and writes down columns. The tiled form turns the tile in shared memory, so that both sides walk along rows; then a column has to be walked there, and with 32 words per row all of it is in one bank. The other forms do away with that: a pad, a swizzle, more rows for each thread, and at last 128 bits at a time.

# %%
a = np.random.default_rng(5).random((128, 128), np.float32)
ladder = ("copy", "copy_shared", "naive", "tiled", "tiled_padded", "tiled_swizzled", "tall", "wide")
print(f"{'128 x 128':16}{'global sectors':>16}{'shared requests':>17}{'wavefronts':>12}")
for variant in ladder:
    out = np.full_like(a, np.nan)
    trace = gpukit.trace(transpose.configure(variant, a.shape, a.dtype), a, out)
    assert np.array_equal(out, a if variant.startswith("copy") else a.T)
    shared = trace.total("shared")
    print(f"{variant:16}{trace.total('global').sectors:16,}{shared.requests:17,}{shared.wavefronts:12,}")

# %% [markdown]
# Nothing can be merged in these kernels, so what Nsight Compute counts on a GPU must be what the trace counts. For 2048 by 2048 elements:

# %%
counts = results.load("transpose-h200", shape=(2048, 2048))
blocks = (2048 // 128) ** 2
print(f"{'':16}{'wavefronts, trace':>18}{'GPU':>12}{'sectors, trace':>17}{'GPU':>12}")
for variant in ladder:
    trace = gpukit.trace(transpose.configure(variant, a.shape, a.dtype), a, np.empty_like(a))
    cases = ("shared wavefronts", "global load sectors", "global store sectors")
    wavefronts, *sectors = (results.first(counts, variant=variant, case=case)["value"] for case in cases)
    traced_counts = trace.total("shared").wavefronts * blocks, trace.total("global").sectors * blocks
    print(f"{variant:16}{traced_counts[0]:18,}{wavefronts:12,}{traced_counts[1]:17,}{sum(sectors):12,}")

# %% [markdown]
# And the times. A transpose of n bytes moves 2 n bytes, so the bars can be compared with what the memory can do at most:

# %%
shape = (8192, 8192)
moved = 2 * 4 * shape[0] * shape[1]
rates = {
    record["variant"]: record["value"]
    for record in results.load("transpose-h200", case="time", shape=shape, dtype="float32")
}
source = results.load("transpose-h200")[0]
where = f"recorded on {source['gpu']}, {source['date']}"
if on_gpu():
    a, out = cuda.to_device(np.random.default_rng(5).random(shape, np.float32)), cuda.device_array(shape, np.float32)

    def launched(variant):
        launch = transpose.configure(variant, shape, np.float32)
        return lambda: launch(a, out)

    measured = timing.bench_many({variant: launched(variant) for variant in (*ladder, "wide_copy")})
    rates |= {variant: result.median for variant, result in measured.items()}
    where = f"{device.info().name}; libraries: {where}"

print(f"wide has {rates['wide_copy'] / rates['wide']:.2f} of the speed of the copy that it is made like")

names = [v for v in ("copy", "wide_copy", *ladder[1:], "cupy", "torch") if v in rates]
with plot.figure(size=(8, 3.4), mark=where) as ax:
    speeds = [1e-9 * moved / rates[v] for v in names]
    colors = [plot.PALETTE[7 if "copy" in v else 1 if v in ("cupy", "torch") else 5] for v in names]
    bars = ax.barh(names, speeds, color=colors)
    ax.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=3)
    ax.invert_yaxis()
    ax.set(
        xlabel="GB/s", title=f"{shape[0]} x {shape[1]} float32: copies (gray), transposes (blue), libraries (orange)"
    )

# %% [markdown]
# Read it from the top. Shared memory by itself costs little: `copy_shared` is close to `copy`. Writing down columns is the worst one can do. Turning the tile in shared memory mends that, and pays with conflicts in every load; the pad, or the swizzle, mends those. What is still missing comes from more values per thread, and from fewer and wider accesses.

# %% [markdown]
# ## What goes wrong
#
# **A mistake that nobody saw.** In the documents' kernels with conflicts there is a line that loads the second tile from the first matrix. The times in their table were measured with these kernels. Here is the same mistake, in the order of threads of the kernels above:


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
# Why did nobody see it? The program had filled both matrices alike. If b equals a, the product of a with itself is right to the last digit. And the check that should have found it was no check: another kernel had overwritten the reference before it was compared. The trace sees it at once, whatever the values are: there is an input that nobody has read.

# %%
for coverage in trace.coverage:
    print(f"{coverage.array}: {coverage.read:,} of {coverage.elements:,} elements read, {coverage.written:,} written")

# %%
a, b, out = matrices(64, 64, 64)
first_matrix_twice[(4, 4), (16, 16)](a, b, out)
print("different matrices, right:", np.allclose(out, a @ b, rtol=1e-5))

# %% [markdown]
# So fill inputs differently, with random numbers from different seeds; fill the output with something wrong; keep the reference out of reach; and take sizes that differ, so that rows and columns cannot be confused.
#
# **A pad in one place only.** With dynamic shared memory the pad must be in the row length of both tiles *and* in the size that the launch asks for. A launch that forgets the second is stopped by the emulator; a GPU may read what belongs to nobody:

# %%
from gpukit.emulator import KernelError
from gpukit.emulator import cuda as emulated

kernel = emulated.jit(matmul.dynamic_conflict(np.float32).py_func)
try:
    kernel[(4, 4), (16, 16), 0, 2 * 16 * 16 * 4](a, b, out, 16, 2)
except KernelError as error:
    print(error)

# %% [markdown]
# ## Exercises
#
# **1. A pad for float64.** Which pads are right for tiles of 8, 16 and 32 float64? Work it out with halves of a warp, then compare with the trace.

# %%
answers = {8: 0, 16: 0, 32: 0}  # your pads
for tile, pad in answers.items():
    a, b, out = matrices(tile, tile, tile, np.float64)
    launch, _ = matmul.configure("tiled_padded", out.shape, np.float64, tile=tile, pad=pad)
    total = gpukit.trace(launch, a, b, out).total("shared", "store")
    verdict = "right" if total.bank_conflicts == 0 else f"{total.bank_conflicts} wavefronts too many"
    print(f"tile {tile:2}, pad {pad}: {verdict}")

# %% [markdown]
# **2. One change taken back.** The kernel below is `matmul.tiled_conflict` for sizes that are multiples of 16. Change its two loads so that a warp reads both matrices along their rows again, and leave the loop over k and the result as they are. The sectors should be back at those of `tiled`. Which accesses to shared memory still conflict then, and what would a pad do for them?


# %%
@cuda.jit
def along_rows(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[tx, ty] = a[row, first + ty]  # your loads; these read down columns
        tile_b[tx, ty] = b[first + tx, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[tx, k] * tile_b[k, ty]
        cuda.syncthreads()
    out[row, col] = total


a, b, out = matrices(64, 64, 64)
trace = gpukit.trace(along_rows[(4, 4), (16, 16)], a, b, out)
sectors, plain = (t.total("global", "load").sectors for t in (trace, traced("tiled", tile=16)))
for access in trace.accesses:
    if access.space == "shared":
        print(f"{access.op:6}{access.array}, wavefronts for each request: {access.wavefronts / access.requests:.0f}")
right = np.allclose(out, a @ b, atol=1e-3) and not trace.findings
print(f"right: {right}, sectors of loads: {sectors:,}, those of tiled: {plain:,}")
print("done" if right and sectors == plain else "not yet")

# %% [markdown]
# **3. A tile of 24.** Blocks of 24 by 24 threads are 18 warps, each of them one row of the block and a third of the next. Is there a pad without conflicts? Write a function that computes the banks of every warp, as in the cell above, and adds up the wavefronts. Without conflicts it gives 18.


# %%
def wavefronts_of_a_tile(pad):
    """Wavefronts in which the 18 warps of a block store one tile: thread (tx, ty) goes to row tx, column ty."""
    return 18  # your count


for pad in range(9):
    a, b, out = matrices(24, 24, 24)
    trace = gpukit.trace(matmul.tiled_conflict(np.float32, 24, pad)[1, (24, 24)], a, b, out)
    counted_by_trace = trace.total("shared", "store").wavefronts // 2  # two tiles are stored
    print(f"pad {pad}:", "right" if wavefronts_of_a_tile(pad) == counted_by_trace else "not yet")

# %% [markdown]
# ## Key points
#
# - 32 banks of 4 bytes. Different words in one bank cost a wavefront each; the same word is sent to all who want it, at once.
# - 8-byte accesses are served by half-warps, 16-byte ones by quarters.
# - A stride of an odd number of words is free of conflicts; a power of two is the worst.
# - The right pad is the number of columns that a warp covers at a time: 1 for tiles of 32, 2 for 16, 4 for 8.
# - An exclusive or needs no pad. A pad that is no multiple of 4 words rules out 128-bit accesses, also those that the compiler would have made by itself.
# - Change one thing at a time, count, and have a control. The documents changed two.
# - Inputs that are filled alike hide mistakes.
#
# **Back:** [03 Shared memory](03_shared_memory.ipynb). **Next:** [05 Matmul all the way](05_fast_matmul.ipynb).
