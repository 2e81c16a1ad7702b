# %% [markdown]
# # 12 Tensor cores
#
# The data sheet of an H200 lists 67 TFLOP/s for float32. A few lines further down it lists 990 TFLOP/s, for "tensor cores" and numbers of 16 bits. This chapter begins with one instruction of such a core, placed by hand, and ends at the kernels that a library would use.
#
# **After this chapter you will be able to**
#
# - say which lane of a warp holds which element of a small matrix, and multiply with one instruction;
# - load its operands with `ldmatrix`, count the bank conflicts, and remove them with a pad or a swizzle;
# - build a block's product from tiles, and say which of its resources limits it;
# - read a kernel with TMA, barriers in shared memory and `wgmma`, and find a missing wait;
# - choose between bfloat16, float16, TF32 and float64, and get close to float32's accuracy with TF32.
#
# **You need** [04 Bank conflicts](04_bank_conflicts.ipynb) and [05 Matmul all the way](05_fast_matmul.ipynb). No GPU.
#
# **Time:** 100 minutes, most of them for the eight exercises.

# %%
import warnings
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np

import gpukit
from gpukit import cuda, device, exercises, matmul, on_gpu, plot, prediction, results, show, tensor, timing
from gpukit.exercises.chapter_12 import tf32, word
from gpukit.intrinsics import ldmatrix2, ldmatrix4, mma, store_fragment, tensor_map, zeros
from gpukit.tensor import ladder, lesson
from gpukit.tensor.ladder import at

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays are on purpose here
print("kernels run on:", device.info().name)

# %% [markdown]
# Chapter 05 ended with a float32 product that keeps up with cuBLAS:

# %%
seconds = results.by_variant(results.load("fast-matmul-h200"), case="ladder", shape=(4096, 4096, 4096))
print(f"{2e-12 * 4096**3 / seconds['fast']:.0f} TFLOP/s of 67, and of 990")

# %% [markdown]
# **Where does the rest come from?** Each SM has 128 lanes for float32, and each of them does one multiply-add per cycle. It also has four **tensor cores**. Together they do 2,048 multiply-adds of float16 per cycle: 16 times as many. They can because they multiply small matrices: a number that has been read once takes part in many products, and is not fetched from a register again.
#
# ## One instruction
#
# A tensor core multiplies for a whole warp. The specification of one instruction is one line:


# %%
def specification(a, b, c):
    """16 x 16 by 16 x 8, added to 16 x 8: float16 products, float32 sums."""
    return a.astype(np.float32) @ b.astype(np.float32) + c


# %% [markdown]
# In a kernel it is `c = mma(a, b, c)`, where each lane passes *its* elements of the three matrices as tuples: 8 of a, 4 of b, 4 of c. Which ones? The part of a matrix that a lane holds is called its **fragment**, and the hardware prescribes it. A register has 32 bits, so it holds two neighbouring float16. Here is a; the elements of lane 5 are framed:

# %%
plot.fragment(tensor.fragment_map((16, 8, 16), "float16", "a"), lane=5);

# %% [markdown]
# With `g = lane // 4` and `t = lane % 4`, register 0 has row g and columns 2t and 2t + 1. Register 1 is 8 rows further down. Registers 2 and 3 are in the same rows, 8 columns to the right. Pairs always run along K, so in b they run down a column:

# %%
plot.fragment(tensor.fragment_map((16, 8, 16), "float16", "b"), lane=5);

# %%
plot.fragment(tensor.fragment_map((16, 8, 16), "float16", "c"), lane=5);

# %% [markdown]
# The sums c are float32, one in each register. Now place the product by hand: one warp, one instruction.


# %%
@cuda.jit
def my_product(a, b, out):
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4  # one warp
    zero = np.float32(0)
    # About 6 lines: this lane's eight elements of a and four of b, the product, and its four
    # elements of out
    left = ...
    right = ...
    c = mma(left, right, (zero, zero, zero, zero))


exercises.check("12-place", my_product)


# %% [markdown]
# A wrong place raises no error. The elements are all there, but in another order, and the result is a product of other matrices. To see which, multiply by the identity: then the product *is* a, or its columns. Here registers 1 and 2 of a are swapped:


# %%
@cuda.jit
def misplaced(a, b, out):
    g, t = cuda.threadIdx.x // 4, 2 * (cuda.threadIdx.x % 4)
    top = a[g, t], a[g, t + 1], a[g, t + 8], a[g, t + 9]  # planted: this is row g, left and right
    bottom = a[g + 8, t], a[g + 8, t + 1], a[g + 8, t + 8], a[g + 8, t + 9]
    right = b[t, g], b[t + 1, g], b[t + 8, g], b[t + 9, g]
    store_fragment(out, (0, 0), mma(top + bottom, right, zeros(4)))


a = np.arange(256, dtype=np.float16).reshape(16, 16)
left, right = np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
misplaced[1, 32](a, np.eye(16, 8, dtype=np.float16), left)
misplaced[1, 32](a, np.eye(16, 8, k=-8, dtype=np.float16), right)
got = np.hstack([left, right]).astype(int)
rows = [[r, f"{a[r, 0]:.0f}, {a[r, 8]:.0f}", f"{got[r, 0]}, {got[r, 8]}"] for r in (0, 1, 8, 9)]
show.Table(["row", "columns 0 and 8 of a", "of the product"], rows)

# %% [markdown]
# The upper right quarter and the lower left one are swapped. (`store_fragment` is the last part of your kernel, and `zeros(4)` makes the tuple of zeros. You can use both from here on.)
#
# **Check yourself.** The instruction does 16 x 8 x 16 multiply-adds. How long would the float32 lanes of an SM take for them?
#
# <details><summary>Answer</summary>
#
# That is 2,048 multiply-adds. The 128 lanes take 16 cycles for them. The four tensor cores together take one.
#
# </details>
#
# ## What feeds it
#
# The first rung of this chapter's ladder computes 16 x 8 elements of any product with one warp. It loads the fragments from global memory, element by element:

# %%
show.source(ladder.one_warp)

# %% [markdown]
# The tensor core does its part in a few cycles, and then waits for memory: each step loads 768 bytes for 2,048 multiply-adds. As in chapter 05, the cure is a tile. A block computes 128 x 128 elements, and loads 128 x k of a and k x 128 of b in each step.
#
# **Predict.** How many operations does this block do for each byte that it loads? (A multiply-add is two operations, float16 has two bytes.)

# %%
my_answer = None
exercises.check("12-intensity", my_answer)

# %% jupyter={"source_hidden": true}
ceilings, TENSOR = prediction.recorded(), 990e12
x = np.geomspace(1, 2000, 100)
tiles = {"one_warp": 4096 / 768, "64 x 64": 32, "128 x 128": 64, "128 x 256": 2 * 128 * 256 / (2 * 384), "256 x 256": 128}
title, mark = "What an H200 can do at most, if every tile comes from DRAM", "data sheet and recorded ceilings of an H200"
with plot.figure(title, size=(8, 3.8), mark=mark) as ax:
    for name, peak, color in (("float32", ceilings.fp32, plot.PALETTE[0]), ("tensor cores", TENSOR, plot.PALETTE[1])):
        ax.plot(x, np.minimum(x * ceilings.dram_read, peak) / 1e12, color=color, label=name)
        print(f"{name}: compute-bound from {peak / ceilings.dram_read:.0f} operations per byte on")
    for name, intensity in tiles.items():
        ax.plot(intensity, min(intensity * ceilings.dram_read, TENSOR) / 1e12, "o", color=plot.PALETTE[1])
        at_most = intensity * ceilings.dram_read / 1e12
        beside = (-6, 4) if name == "128 x 256" else (6, -10)  # not on the name of its neighbour
        side = "right" if name == "128 x 256" else "left"
        ax.annotate(name, (intensity, at_most), beside, textcoords="offset points", ha=side, fontsize=8)
    ax.set(xscale="log", yscale="log", xlabel="operations per byte loaded", ylabel="TFLOP/s")
    ax.legend()

# %% [markdown]
# With 16 times the arithmetic the roofline bends further to the right. A tile that was large enough for float32 is memory-bound now. Blocks that run at the same time share rows and columns through the L2 cache, so it is not quite as bad as drawn. But tiles must be larger, and everything between memory and the tensor cores counts.
#
# ## From shared memory
#
# The second rung has its tiles in shared memory. `copy_tiles` brings them there without a detour through registers: `copy_async8` starts a copy of eight float16, 16 bytes, and fills in zeros beyond the edge; `commit_copies` closes a group of copies, and `wait_copies(0)` waits for all groups. Then eight warps compute 64 x 32 elements each. They load their fragments as before, but from shared memory:

# %%
show.source(ladder.copy_tiles, ladder.shared_tiles)


# %%
def cost_of(variant, n=128):
    """What a block's step costs: per instruction of the tensor cores, from the trace of a small product."""
    random = np.random.default_rng(3)
    a, b = (cuda.to_device(random.standard_normal((n, n)).astype(np.float16)) for _ in range(2))
    out = cuda.device_array((n, n), np.float32)
    launch, arguments = tensor.steps(variant, a, b, out)[-1]
    trace = gpukit.trace(launch, *arguments)
    assert trace.findings == []
    loads, products = trace.total("shared", "load"), n**3 / 2048
    return [variant, f"{loads.requests / products:.2f}", f"{loads.wavefronts / products:.2f}", loads.bank_conflicts]


COLUMNS = ["", "shared loads per product", "wavefronts per product", "conflicts"]
show.Table(COLUMNS, [cost_of("shared_tiles")])

# %% [markdown]
# An SM can start one product per cycle, and serve one wavefront per cycle. With this many wavefronts for each product, the tensor cores are idle most of the time. Two things are wrong: a load brings only 2 bytes to each lane, and many loads have conflicts.
#
# ## ldmatrix
#
# There is an instruction for this. **ldmatrix** loads matrices of 8 rows of 16 bytes, that is 8 x 8 float16. Eight lanes give the *address of a row* each. Then the row is dealt out: each lane gets the pair that `mma` wants it to have.
#
# | call | addresses | what each lane gets |
# |---|---|---|
# | `ldmatrix1(tile, index)` | lanes 0 to 7: the rows of the matrix | 2 elements |
# | `ldmatrix2(tile, index)` | lanes 8 to 15: those of a second matrix | 4 |
# | `ldmatrix4(tile, index)` | lanes 16 to 31: those of a third and fourth | 8 |
# | `ldmatrix4(tile, index, True)` | the same | 8, of matrices that are transposed on the way |
#
# The eight elements that a lane gets are its fragment of a, if the four matrices are the quarters of a in the order of the registers. b has to be transposed: in memory its neighbours lie along a row, but the fragment wants pairs along a column. Load both:


# %%
@cuda.jit
def my_operands(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float16, alignment=16)
    tile_b = cuda.shared.array((16, 8), np.float16, alignment=16)
    lane = cuda.threadIdx.x  # one warp
    for i in range(lane, 256, 32):
        tile_a[i // 16, i % 16] = a[i // 16, i % 16]
    for i in range(lane, 128, 32):
        tile_b[i // 8, i % 8] = b[i // 8, i % 8]
    cuda.syncwarp()
    # About 2 lines: the operands left by ldmatrix4, and right by ldmatrix2, transposed
    left = ...
    right = ...
    c = mma(left, right, zeros(4))
    store_fragment(out, (0, 0), c)


exercises.check("12-ldmatrix", my_operands)


# %% [markdown]
# An address must be a multiple of 16 bytes, hence `alignment=16`. The rows of a matrix may lie anywhere, and for bank conflicts only their addresses count. A matrix has 128 bytes, so it takes one wavefront if its rows lie in different banks.
#
# **Predict.** A tile has rows of 64 float16, and `ldmatrix4` loads four matrices from it, 16 rows by 16 columns. How many wavefronts does it take?

# %%
my_answer = None
exercises.check("12-wavefronts", my_answer)


# %% jupyter={"outputs_hidden": true}
def wavefronts(pitch):
    """Wavefronts of an ldmatrix4 from rows of so many float16."""

    @cuda.jit
    def load(out):
        tile = cuda.shared.array((16, pitch), np.float16, alignment=128)
        lane = cuda.threadIdx.x
        for i in range(lane, 16 * pitch, 32):
            tile[i // pitch, i % pitch] = i
        cuda.syncwarp()
        left = ldmatrix4(tile, (lane % 16, lane // 16 * 8))
        out[lane] = left[0]

    loads = gpukit.trace(load[1, 32], np.zeros(32, np.float32)).total("shared", "load")
    return loads.wavefronts


show.Table(["float16 of a row", "wavefronts"], [[pitch, wavefronts(pitch)] for pitch in (64, 72, 80, 96, 128)])

# %% [markdown]
# Chapter 04 has two cures. A **pad** of 8 elements, 16 bytes, makes each row begin four banks further on. (A pad of one element is not possible: rows have to begin at multiples of 16 bytes.) A **swizzle** needs no extra memory: a row of 128 bytes is eight groups of 16 bytes, and each row has its groups in a different order. Find such an order. The check copies a tile and loads it with your order:


# %%
@cuda.jit(device=True)
def group(row, p):
    # About 1 line: where group p of a row lies, so that 8 neighbouring rows have it in
    # different banks
    return p


exercises.check("12-swizzle", group)


# %% [markdown]
# Now put it together. A block of four warps computes 64 x 32 elements. The loads are there already; `at` gives zero beyond the edges, so any size works. Write the inner loop:


# %%
@cuda.jit
def my_tiles(a, b, out):
    tile_a = cuda.shared.array((64, 40), np.float16, alignment=16)  # rows of 32, padded
    tile_b = cuda.shared.array((32, 40), np.float16, alignment=16)
    row, col = 64 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    tid, warp, lane = cuda.threadIdx.x, cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    c0, c1, c2, c3 = zeros(4), zeros(4), zeros(4), zeros(4)  # columns 0, 8, 16 and 24
    for first in range(0, a.shape[1], 32):
        for i in range(tid, 2048, 128):
            tile_a[i // 32, i % 32] = at(a, row + i // 32, first + i % 32)
        for i in range(tid, 1024, 128):
            tile_b[i // 32, i % 32] = at(b, first + i // 32, col + i % 32)
        cuda.syncthreads()
        # About 8 lines: the warp has rows 16 * warp to 16 * warp + 15 of the tile, and all 32
        # columns
        ...
    store_fragment(out, (row + 16 * warp, col), c0 + c1 + c2 + c3, True)


exercises.check("12-tile", my_tiles)


# %% [markdown]
# That is the third rung. Compared with `shared_tiles`, only the pad and the lines that load fragments are new:

# %% jupyter={"outputs_hidden": true}
show.source(ladder.multiply_tiles, ladder.ldmatrix)

# %%
show.Table(COLUMNS, [cost_of(variant) for variant in ("shared_tiles", "ldmatrix")])

# %% [markdown]
# No conflict is left. But a product still needs more than one wavefront, and that is arithmetic, not a mistake. For each K of 16 a warp loads its rows of a and its columns of b:

# %%
rows = []
for name, m, n, warps in (("mma", 64, 32, 1), ("mma", 64, 64, 1), ("wgmma", 64, 128, 4), ("wgmma", 64, 256, 4)):
    loaded, products = 2 * 16 * (m + n), m * n * 16
    rows.append([name, f"{m} x {n}", warps, loaded // 128, products // 2048])
show.Table(["instruction", "tile", "warps", "wavefronts for K = 16", "cycles of the tensor cores"], rows)

# %% [markdown]
# A warp with 64 x 32 elements waits for shared memory, one with 64 x 64 just about keeps up, and its sums fill half of its registers. To share operands among more elements, more warps have to multiply together. That is what the last rungs do.
#
# ## Copies in the background
#
# So far a block starts its copies and waits for them. Rung 4 starts them two steps ahead. It has three pairs of tiles, which take turns: one is multiplied while the others are on their way. `wait_copies(1)` waits for all groups but the latest, so the copies of the next step stay in flight:

# %%
show.source(ladder.stages)

# %% [markdown]
# **Check yourself.** A step has one barrier. Why are the copies of a later step started *after* it?
#
# <details><summary>Answer</summary>
#
# They overwrite the tiles that were multiplied in the step before. Only after the barrier has every warp finished with these.
#
# </details>
#
# Rung 5 uses your swizzle instead of the pad. That saves a tenth of the shared memory, and it is how the hardware of the next rungs wants its tiles. All rows that a lane gives to `ldmatrix` differ by multiples of 16, so it needs one exclusive or for all of them:

# %%
show.source(ladder.multiply_swizzled)

# %%
show.Table(COLUMNS, [cost_of(variant) for variant in ("ldmatrix", "stages", "swizzled")])

# %% [markdown]
# ## Copies by one thread, products by four warps
#
# An H200 (compute capability 9.0) can hand over more of this work:
#
# - **TMA**, the tensor memory accelerator, copies a box of a matrix to shared memory. One thread starts it. The hardware takes care of addresses, edges and the swizzle, which a **tensor map** describes. The host makes that map.
# - An **mbarrier** is a barrier in shared memory that counts threads *and bytes*. The thread that starts a copy announces its bytes, and everybody else waits for the phase to end: then the bytes have arrived.
# - **wgmma** multiplies tiles that lie in shared memory, for four warps together: 64 rows and up to 256 columns. No fragments of a and b are loaded; the last argument says that b lies there row by row, as in memory. The sums lie in registers, as with `mma`. It is asynchronous too: the sums may be used only after `wgmma_wait`.
#
# This section is for reading. Follow one step through the loop: who waits for what?

# %%
show.source(ladder.tma_wgmma, ladder.copy_step)

# %% [markdown]
# This kernel can go wrong in three ways: the copies may not have arrived, the products may not be complete, or a stage may be overwritten while somebody still reads it. On a GPU the result would be right most of the time. Here is a small kernel that can be made without one of its waits:

# %%
show.source(lesson.make_product)

# %%
random = np.random.default_rng(6)
matrices = [random.integers(-9, 10, (64, 64)).astype(np.float16) for _ in range(2)]
maps = [tensor_map(cuda.to_device(matrix), (64, 64)) for matrix in matrices]
for options in ({}, {"wait_for_copy": False}, {"wait_for_product": False}):
    kernel, out = lesson.make_product(**options), np.zeros((64, 64), np.float32)
    trace = gpukit.trace(kernel[1, 128], *maps, out)
    right = np.array_equal(out, matrices[0].astype(np.float32) @ matrices[1])
    print(f"{options or 'both waits'}: {'right' if right else 'wrong'}; findings: {len(trace.findings)}")
    for finding in trace.findings[:1]:
        print(f"    {finding.kind} at: {finding.code}\n    {finding.message}")

# %% [markdown]
# The emulator delivers a copy at the last moment allowed, when somebody waits for it, and makes the sums of a product unusable until then. So the result is wrong in every run, and the finding says why.

# %% [markdown]
# The last rung of the ladder is **warp-specialised**. One warp does nothing but start copies. Two groups of four warps do nothing but multiply, 64 x 256 elements each. They tell each other through two barriers for each stage, `full` and `free`, and no barrier stops the whole block any more. The blocks are **persistent**: there are as many as SMs, and each computes tile after tile, so that the copies for the next tile begin before the last one is stored.

# %%
show.source(ladder.specialised)

# %% [markdown]
# **Check yourself.** When does the copying warp wait, and for whom?
#
# <details><summary>Answer</summary>
#
# For a `free` stage: until both groups have arrived, which they do after their products with it are complete. In the first round there is nothing to wait for, so it waits for the parity of the phase before the first one, which counts as complete.
#
# </details>
#
# All rungs multiply matrices of any size. Here is a ragged one, checked against float64:

# %%
random = np.random.default_rng(5)
a, b = random.standard_normal((100, 75)).astype(np.float16), random.standard_normal((75, 90)).astype(np.float16)
exact = a.astype(np.float64) @ b.astype(np.float64)
for variant in tensor.VARIANTS:
    print(f"{variant:14} largest error {abs(tensor.multiply_by(a, b, variant) - exact).max():.1e}")

# %% [markdown]
# ## How fast is each rung?
#
# On a GPU the next cell times all rungs and gpukit's own product, beside cuBLAS, as PyTorch or CuPy call it, if one of them is installed. Elsewhere it shows what was recorded:

# %%
SIZE, times, where = 4096, {}, ""
if on_gpu():
    random = np.random.default_rng(7)
    a, b = (cuda.to_device(random.standard_normal((SIZE, SIZE), np.float32).astype(np.float16)) for _ in range(2))
    out, halves = cuda.device_array((SIZE, SIZE), np.float32), cuda.device_array((SIZE, SIZE), np.float16)
    runs = {"fast": partial(matmul.matmul, a, b, out=halves)}
    for variant in tensor.VARIANTS:
        [(launch, arguments)] = tensor.steps(variant, a, b, out)
        runs[variant] = partial(launch, *arguments)
    for name in filter(find_spec, ("cupy", "torch")):
        library = import_module(name)
        view = partial(library.as_tensor, device="cuda") if name == "torch" else library.asarray
        runs[f"cublas ({name})"] = partial(library.matmul, view(a), view(b), out=view(halves))
    times = {name: timed.median for name, timed in timing.bench_many(runs, min_time=0.1, repeat=5).items()}
    where = device.info().name

# %% jupyter={"source_hidden": true}
def recorded(**wanted):
    """Records of this chapter; none where there are none yet."""
    try:
        return results.load("tensor-h200", **wanted)
    except FileNotFoundError:
        return []


ladder_records = recorded(case="ladder")
if ladder_records and not times:
    times, where = results.by_variant(ladder_records, shape=(SIZE, SIZE, SIZE)), results.taken_on(ladder_records)
    alone = results.by_variant(recorded(case="mma", shape=(SIZE, SIZE, SIZE)))
    times |= {"warps": alone["warps"]} if alone else {}
if times:
    best = min((value for name, value in times.items() if name.startswith("cublas")), default=np.nan)
    rows = []
    for name in sorted(times, key=times.get, reverse=True):
        rate = 2 * SIZE**3 / times[name]
        row = [name, f"{times[name] * 1e6:,.0f}", f"{rate * 1e-12:.1f}", f"{rate / 990e12:.0%}"]
        rows.append([*row, f"{best / times[name]:.0%}"])
    print(where)
    columns = [f"{SIZE} x {SIZE} x {SIZE}, float16", "us", "TFLOP/s", "of 990", "of cuBLAS"]
    table = show.Table(columns, rows)
else:
    table = "There is no record yet."
table

# %% jupyter={"source_hidden": true}
if ladder_records:
    sizes = sorted({record["shape"][0] for record in ladder_records})
    known = {(record["variant"], record["shape"][0]): record["value"] for record in ladder_records}
    names = [name for name in dict.fromkeys(variant for variant, _ in known) if all((name, n) in known for n in sizes)]
    rates = {name: [2e-12 * n**3 / known[name, n] for n in sizes] for name in names}
    against = [name for name in names if name.startswith("cublas")]
    named = [name for name in ("stages", "swizzled", "tma_wgmma", "specialised", "fast", *against) if name in names]
    options = {"against": against, "xlabel": "M = N = K", "mark": results.taken_on(ladder_records)}
    for ax in plot.rungs(sizes, rates, "TFLOP/s", named, title="float16 products: speed by size", **options):
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
        ax.minorticks_off()

# %% [markdown]
# Apart from the step to `wgmma`, all rungs multiply with the same instruction. They gain because the tensor cores wait less: fragments come whole instead of element by element, copies start earlier, and there are fewer barriers. `fast` is what `matmul.matmul` runs on this kind of GPU. It is built as `specialised` is. Its blocks take tiles in an order that suits the L2 cache, it keeps a product in flight while it waits for the next stage, and its results leave through shared memory, in whole rows. (The record also has `warps`, its kernel for older GPUs: `mma` alone, like `swizzled`, but with larger tiles, and fragments that are loaded one step ahead.)

# %% [markdown]
# ## What 16 bits cost
#
# The price of speed is precision. A float has a sign, some bits of exponent, which set its range, and some bits of mantissa, which set its precision:

# %%
formats = [["float16", 5, 10], ["bfloat16", 8, 7], ["TF32", 8, 10], ["float32", 8, 23], ["float64", 11, 52]]
largest = [(2 - 2.0**-m) * 2.0 ** (2 ** (e - 1) - 1) for _, e, m in formats]
rows = [[*row, f"{2.0 ** -row[2] / 2:.0e}", f"{most:.0e}"] for row, most in zip(formats, largest, strict=True)]
show.Table(["", "exponent", "mantissa", "rounding error", "largest"], rows)

# %% [markdown]
# Products of such numbers, if they have 16 bits or are TF32, are exact in float32, and that is what they are summed in. So the error comes from rounding the *inputs*. Here are products with K = 512 of inputs in each format, compared with float64:

# %% jupyter={"source_hidden": true}
random = np.random.default_rng(8)
a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((64, 512), (512, 64)))
exact = a.astype(np.float64) @ b.astype(np.float64)
scale = abs(a.astype(np.float64)) @ abs(b.astype(np.float64))


def product(*pairs):
    """The sum of some products, in float32."""
    return sum(left.astype(np.float32) @ right.astype(np.float32) for left, right in pairs)


errors = {"float32": abs(a @ b - exact) / scale}
for dtype in ("bfloat16", "float16", "tf32"):
    big = tensor.rounded(a, dtype), tensor.rounded(b, dtype)
    small = tensor.rounded(a - big[0], dtype), tensor.rounded(b - big[1], dtype)
    errors[dtype] = abs(product(big) - exact) / scale
    if dtype != "float16":
        errors[f"3 x {dtype}"] = abs(product((small[0], big[1]), (big[0], small[1]), big) - exact) / scale
limits = {name: error.max() for name, error in sorted(errors.items(), key=lambda item: -item[1].max())}
title = "Largest error of a product with K = 512"
plot.dots(limits, "of the sum of magnitudes", log=True, title=title, mark="computed with NumPy");

# %% [markdown]
# float16 is eight times as precise as bfloat16, but it overflows above 65,504. That is why neural networks are trained in bfloat16, or in float16 with scale factors. TF32 has the precision of the one and the range of the other, and takes twice the time.
#
# And if you need something like float32's accuracy? Split each number in two: what TF32 keeps of it, and what is lost. With a = big + small and the same for b, three of the four products matter. That is three instructions instead of one, on hardware that is several times as fast. The check multiplies strips of float32 with your function. `tf32(x)` is what a tensor core keeps of x.


# %%
@cuda.jit(device=True)
def multiply_exactly(a, b, c):
    big_a = tf32(a[0]), tf32(a[1]), tf32(a[2]), tf32(a[3])
    big_b = tf32(b[0]), tf32(b[1])
    # About 5 lines: what TF32 has lost of a and of b; three products, added to c
    return mma(big_a, big_b, c)


exercises.check("12-split", multiply_exactly)


# %% [markdown]
# The row "3 x tf32" in the figure above is this. gpukit's own product offers it by name, with PyTorch's word: `matmul.matmul(a, b, precision="high")`. Here is what each format gave where it was measured, with "high" beside cuBLAS in float32:

# %% jupyter={"source_hidden": true}
SHAPE, rows = (4096, 4096, 4096), []
for dtype in ("int8", "bfloat16", "float16", "tf32", "high", "float64"):
    times = results.by_variant(recorded(case="format", dtype=dtype, shape=SHAPE))
    errors = results.by_variant(recorded(case="error", dtype=dtype, shape=SHAPE))
    if times:
        rate, library = 2 * SIZE**3 / times["fast"], times.get("cublas (torch)", np.nan)
        row = [dtype, f"{rate * 1e-12:,.0f}", f"{library / times['fast']:.2f}", f"{errors['fast']:.0e}"]
        rows.append([*row, f"{errors.get('cublas (torch)', np.nan):.0e}"])
heads = ["4096 x 4096 x 4096", "10^12 operations per second", "of cuBLAS", "largest error", "cuBLAS's"]
show.Table(heads, rows) if rows else print("There is no record yet.")

# %% [markdown]
# The error is a share of the sum of magnitudes, |a| |b|. For the 16-bit formats it is that of rounding the *results*, since here the inputs have 16 bits to begin with. For TF32 ours hands the tensor core float32 as they are, and it cuts off the bits that it does not read; an error like cuBLAS's comes from rounding them first. "high" is more than ten times as accurate as TF32, and less than a tenth as accurate as float32. Its inputs have nearly all of their bits; what is lost is in the sums. A tensor core cuts off their last bits where ordinary arithmetic rounds, so the errors of 4096 terms do not cancel. (`conv2d` takes TF32 without being asked. There a tensor core sums up one step only, ordinary additions do the rest, and the errors stay those of float32.)
#
# ## Exercise
#
# **A layer of bytes.** Networks are often *quantised* once they are trained: weights and inputs are rounded to bytes, each row with a scale factor of its own. The instruction for bytes has K = 32, and its sums are int32, which are exact. Four bytes along K share a register, and the matrices come as such words, int32 with four bytes each. `word(array, row, k)` is one of them, or zero beyond the last row. Multiply two such matrices, and scale the result. Both have K along their rows, so a row of `b` is a *column* of the product.


# %%
@cuda.jit
def quantised_layer(a, b, scale_a, scale_b, out):
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4  # a warp computes 16 x 8 elements
    row, col = 16 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    zero = np.int32(0)
    c = zero, zero, zero, zero
    for k in range(t, a.shape[1], 8):  # 8 words of 4 bytes: K = 32
        # About 3 lines: four words of a, two of b, which has its columns as rows; multiply
        ...
    for i in range(4):
        # About 3 lines: store c[i], scaled, if it is inside of out
        ...


exercises.check("12-int8", quantised_layer)


# %% [markdown]
# ## Key points
#
# - A tensor core multiplies small matrices for a whole warp. Each lane holds a fragment; a wrong place permutes the result, and raises no error.
# - With 16 times the arithmetic, everything else has to be 16 times as good: larger tiles, wider loads, no conflicts.
# - `ldmatrix` deals out rows of 16 bytes as the instruction wants them. Eight rows in different banks take one wavefront: pad by 16 bytes, or swizzle.
# - With `mma` each warp loads its operands, and shared memory is the limit. `wgmma` reads tiles once for four warps.
# - TMA needs one thread, and an mbarrier that counts its bytes. Whatever is asynchronous needs a wait: before reading what it brings, and before overwriting what it reads.
# - Inputs are rounded, products are exact. Three products of split numbers come close to float32's accuracy.
#
# **Back:** [11 Scan, histogram, sort](11_scan.ipynb). **Next:** [13 Several GPUs](13_several_gpus.ipynb).
