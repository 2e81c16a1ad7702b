# %% [markdown]
# # 09b Fast convolution
#
# This optional chapter takes the direct convolution of [09](09_convolution.ipynb) to several times the speed of cuDNN where that is possible, and shows where it is not.
#
# **After this chapter you will be able to**
#
# - keep many sums in a thread's registers, and say how many fit before the compiler spills;
# - copy the next tile while you compute on the present one, and say when that gains nothing;
# - trade multiplications for additions;
# - say, for a given shape, which way to convolve is the fastest, and read a map of ratios to a library.
#
# **You need** [09 Convolution](09_convolution.ipynb), and [05](05_fast_matmul.ipynb) for tiles in registers. No GPU.
#
# **Time:** 60 minutes.

# %%
import itertools
import warnings
from functools import partial

import numpy as np

import gpukit
from gpukit import conv, cuda, device, exercises, on_gpu, plot, prediction, results, show, timing
from gpukit.conv import columns, cost, fast, implicit, ladder
from gpukit.conv.windows import make_geometry

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays, on purpose


def random(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


# %% [markdown]
# A tile that is copied evenly is hardly faster than no tile at all, and far slower than cuDNN. The last kernel below is many times as fast. What happens in between? On a GPU the cell times our kernels; the time of cuDNN is always recorded.

# %%
recorded = results.load("conv-h200")
where = results.taken_on(recorded)
times = results.by_variant(recorded, case="ladder", dtype="float32")
times["winograd"] = times.pop("direct")
names = tuple(cost.DIRECT)
title = "6 channels of 768 x 512, 6 x 6, 6 out channels"
mark, x_shape, weight_shape, out_shape = where, (1, 6, 512, 768), (6, 6, 6, 6), (1, 6, 507, 763)
if on_gpu():
    x, weight = cuda.to_device(random(*x_shape)), cuda.to_device(random(*weight_shape))
    out = cuda.device_array(out_shape, np.float32)
    runs = {name: partial(conv.conv2d, x, weight, algorithm=name, out=out) for name in names}
    times |= {name: timed.median for name, timed in timing.bench_many(runs, min_time=0.1).items()}
    mark = f"{device.info().name}; cuDNN: {where}"
shown = {name: times[name] * 1e6 for name in ("cudnn (torch)", *names)}
plot.dots(shown, "us, cold L2 cache", title=title, mark=mark, log=True, hollow=["cudnn (torch)"])
print(f"the last one is {times['cudnn (torch)'] / times['winograd']:.1f} times as fast as cuDNN")

# %% [markdown]
# ## Faster copies: no help
#
# `wide` copies four floats per instruction. Rows of the tile must begin at multiples of 16 bytes for that, so it copies up to three extra pixels at either end of a row, a lot for a tile that is 13 pixels wide. It gains next to nothing.
#
# `prefetch` has two tiles, and loads channel c + 1 into one of them while the block computes on channel c in the other: double buffering. Loads are in flight while the arithmetic goes on, which hides their latency. In the ideal case:

# %%
plot.double_buffering(load=3, compute=2, steps=5);

# %% [markdown]
# The copies are asynchronous: they go from global to shared memory without passing through registers, and a thread only waits when it needs the tile. (`find_thread` and `place` say where a thread and its tile are, `span` how many pixels the tile needs, `start` begins with the bias, and `window_sum` is the loop over the filter.)

# %%
show.source(ladder.prefetch)

# %% [markdown]
# One barrier per channel is enough: after it, no thread still reads the other tile. And yet `prefetch` is *slower* than `even`. There is little latency left to hide: each SM holds up to 32 of these small blocks, and while one waits for its copy the others compute. What limits the kernel is the loop over the window, with two loads for each multiply-add and the arithmetic of their addresses. To optimise what is not the bottleneck gains nothing, and a second tile is not free.
#
# ## Many sums in registers
#
# What makes loads rarer is reuse in registers, register tiling (also called register blocking). All out channels need the same pixels. So let a thread keep a sum for each out channel: a pixel is loaded once, and used six times.
#
# **Your turn**: one thread, six sums.


# %%
@cuda.jit
def six_sums(x, weight, out):
    ow, oh = cuda.grid(2)
    if oh < out.shape[1] and ow < out.shape[2]:
        total = cuda.local.array(6, np.float32)  # a sum for each of the six out channels
        # About 10 lines: load every pixel of the window once, and use it for all six sums;
        # store them
        ...


exercises.check("09b-sums", six_sums)

# %% [markdown]
# `blocked` does this with tiles in shared memory, and with four rows per thread, too: a pixel serves for all out channels, a weight for all rows.

# %%
show.source(ladder.blocked)

# %% [markdown]
# **How many sums?** The more rows a thread has, the more products there are for each load. But a thread can have 255 registers at most. The compiler **spills** what does not fit: it stores values to local memory, which is global memory behind the L1 cache, and loads them back when they are needed.
#
# **Predict**: with 6 out channels and 4, 8, 16, 24, 32 or 40 rows, a thread keeps 6 sums and one pixel for each row. From how many rows on does the compiler spill? (The kernel with a single row needs 32 registers.)

# %%
my_rows = None
exercises.check("09b-spill", my_rows)

# %% [markdown]
# Here is what the compiler made of these kernels, for compute capability 9.0. Blocks have 256 threads. On a GPU the cell also times them.

# %% jupyter={"outputs_hidden": true}
compiled = results.load("conv-code", variant="blocked")
seconds = {}
if on_gpu():
    convolution = cost.Convolution(x, weight, None, out, make_geometry((512, 768), 6, 1, 0, 1), 1)
    runs = {}
    for record in compiled:
        launch, arguments = cost.launch_blocked(convolution, int(record["tile"].split(" x ")[1]))
        runs[record["tile"]] = partial(launch, *arguments)
    seconds = {tile: timed.median for tile, timed in timing.bench_many(runs, min_time=0.1).items()}
columns_shown = {
    "sums": "tile",
    "registers": "registers",
    "bytes spilled": "local",
    "blocks per SM": "blocks",
    "FFMA in the loop": lambda r: f"{r['loop']['multiply-add'] / sum(r['loop'].values()):.0%}",
}
if on_gpu():
    columns_shown["us"] = lambda r: f"{1e6 * seconds[r['tile']]:.1f}"
results.table(compiled, columns_shown)

# %% [markdown]
# <details><summary>What the table says</summary>
#
# The sums and pixels of 32 rows would fit into 255 registers, but not together with the addresses. The share of multiply-adds (FFMA) among the instructions of the loop rises until values are spilled in earnest, then falls. But long before, another price is due: all threads of an SM share its registers, so the more each has, the fewer blocks fit. In the end an SM holds a single block, and nothing runs while that block waits at a barrier. `blocked` has four rows.
#
# </details>
#
# ## What each step saves
#
# The same count as in 09, for all kernels, on a part of the image:

# %%
at = make_geometry(x_shape[2:], 6, 1, 0, 1)
layouts = {
    name: cost.layout_of(x_shape, weight_shape, at, 1, False, "float32", name)
    for name in ("specialised", "paired", "winograd")
}
rows, cols = layouts["specialised"].tile
x, weight = random(1, 6, rows + 5, cols + 5), random(6, 6, 6, 6)
right = conv.serial(x, weight, None, (1, 1), (0, 0), (1, 1), 1)
traces = {}
for name in names:
    out = np.full(right.shape, np.nan, np.float32)
    if name in layouts:  # the layout for the whole image, not for this part
        convolution = cost.Convolution(x, weight, None, out, make_geometry(x.shape[2:], 6, 1, 0, 1), 1)
        launch, arguments = cost.launch_specialised(layouts[name], convolution, 0, wide=False)
    else:
        ((launch, arguments),) = conv.steps(name, x, weight, out)
    traces[name] = gpukit.trace(launch, *arguments)
    assert np.allclose(out, right, atol=1e-3) and not traces[name].findings

# %%
terms = right.size * 6 * 36 / 32  # of a warp
print(f"{'':12}{'global loads':>14}{'sectors':>10}{'shared loads':>14}{'wavefronts':>12}{'terms per load':>16}")
for name, trace in traces.items():
    loads, shared = trace.total("global", "load"), trace.total("shared", "load")
    print(f"{name:12}{loads.requests:14,}{loads.sectors:10,}{shared.requests:14,}{shared.wavefronts:12,}", end="")
    print(f"{terms / (loads.requests + shared.requests):16.1f}")

# %% [markdown]
# Up to `prefetch`, every term (a pixel times a weight) needs two loads or more. `blocked` needs less than one, and it is the step that counts. The last three kernels add many terms for each load.
#
# ## A kernel made to measure
#
# `blocked` does not know the size of the filter, so it computes addresses at every step and loads one value at a time. `specialised` is a function that *writes* a kernel for one size of filter, stride, dilation and number of out channels. The compiler then knows every index. Its innermost part, one row of the filter times one row of pixels:

# %% jupyter={"outputs_hidden": true}
show.source(fast.make_multiply)

# %%
layout = layouts["specialised"]
channels, run = layout.channels_per_thread, layout.run
print(f"a thread keeps {channels * run} sums: {channels} out channels of {run} neighbouring values")
print(f"a row of the filter: {run + 5} pixels and {6 * channels} weights for {6 * channels * run} multiply-adds")

# %% [markdown]
# Pixels come in 128-bit loads, and the next row is loaded into a second set of registers while the present one is multiplied: **software pipelining**. The in channels pass through a ring of stages in shared memory, filled by asynchronous copies that all threads share evenly. If a small result makes too few threads, several sets of warps share the in channels of a stage and add up their sums at the end, always in the same order, so every run gives the same bits.
#
# Three details:
#
# - **Register banks.** NVIDIA does not document them for this GPU. As far as we can tell, registers have two banks, even and odd, and an instruction that reads two operands from one bank takes a cycle longer. A 128-bit load puts neighbouring pixels into alternate banks. Since sum i adds up the pixels i + kw, it meets both. The kernel keeps two sums, one for even and one for odd kw, and adds them at the end.
# - **Stores.** A thread's values are neighbours. Stored directly, a warp would write every twelfth address. They go through shared memory once more, so that a warp writes 32 neighbours.
# - **The last row.** The loop loads the next row ahead; after the last row it loads the same one again. The compiler noticed that those registers held it already, and copied them instead, at every step. So the address is computed as a minimum, which the compiler does not see through. Read what it makes of your kernel (`cuobjdump -sass`, [10](10_profiling.ipynb)).
#
# ## Three products for four
#
# Now nearly every instruction of the loop is a multiply-add. The only way on is to need fewer of them. Take two neighbouring values and two weights:
#
# - the first is x0 w0 + x1 w1,
# - the second is x1 w0 + x2 w1.
#
# These are four products. With b = x1 (w0 + w1), the first is (x0 - x1) w0 + b, and the second is (x2 - x1) w1 + b: three products. The differences of pixels serve for all out channels, the sums of weights for all pixels, and b is added to both at the end. For an even number of weights in a row that saves a quarter of the multiply-adds. `paired` is the same kernel with this idea.

# %%
adds = {name: layouts[name].multiply_adds for name in ("specialised", "paired")}
print(f"multiply-adds of a thread for a row of the filter: {adds['specialised']}, in pairs {adds['paired']}")
print(f"time: {times['specialised'] * 1e6:.1f} us, in pairs {times['paired'] * 1e6:.1f} us ({mark})")
x, weight = random(1, 6, 30, 40), random(6, 6, 6, 6)
exact = conv.serial(x.astype(float), weight.astype(float), None, (1, 1), (0, 0), (1, 1), 1)
for name in layouts:
    error = abs(conv.conv2d(x, weight, algorithm=name) - exact)
    print(f"{name:12} differs from float64 by {np.sqrt((error**2).mean()):.1e} on average, {error.max():.1e} at most")

# %% [markdown]
# A quarter fewer multiply-adds, but not a quarter less time. And differences round too, so the errors are somewhat larger: `conv2d` uses pairs only for sums of many terms, and filters of five columns or more. If a pixel is infinite, a pair may give NaN where the plain sum is infinite.
#
# ## Four products for six
#
# The same can be done along columns, with more gain. **Winograd** found the fewest products for any number of values and weights. For two values, one below the other, and three weights u, v and w of a column, which meet the pixels a, b, c and d:
#
# - the values are a u + b v + c w and b u + c v + d w: six products;
# - with p = (a - c) u, q = (b + c)(u + v + w) / 2, r = (c - b)(u - v + w) / 2 and s = (d - b) w they are p + q + r and s + q - r: four products.
#
# What is true of four pixels is true of four rows of them. So p is the convolution of one row of sums of pixels with one row of weights, as before, pairs included. In `winograd`, four sets of warps compute p, q, r and s. A thread has no more sums than in `paired`. It loads two rows of pixels instead of one, and adds them. The sums of weights are computed once for a tile, when these have arrived in shared memory. In the end, p, q, r and s meet in shared memory, where the values pass anyway. For each in channel, a filter of six rows is two filters of three, which add to the same sums.

# %%
for name in layouts:
    print(f"{name:12} {layouts[name].share:6.1%} of the multiply-adds, {times[name] * 1e6:.1f} us ({mark})")

# %% [markdown]
# What else keeps the kernel from the peak? Compare its time with the time of its multiply-adds at the rate that registers alone allow, and of its bytes at the rate of a copy:

# %%
limits = prediction.recorded()
moved = 4 * (np.prod(x_shape) + np.prod(out_shape))
least = layouts["winograd"].share * 2 * np.prod(out_shape) * 6 * 6 * 6 / limits.fp32
print(f"{least * 1e6:.1f} us of multiply-adds, as fast as {limits.device} can ({limits.date})")
print(f"{moved / limits.dram_copy * 1e6:.1f} us to move {moved / 1e6:.0f} MB")
print(f"of {times['winograd'] * 1e6:.1f} us")

# %% [markdown]
# The bytes come on top of the arithmetic: every SM has to fill its shared memory before the first sum, and all of them store at once after the last one. Together they still do not explain the whole time: blocks start and end, and not every instruction is a multiply-add.
#
# ## Columns at full speed
#
# im2col and col2im do no arithmetic to speak of. They are memory-bound: the limit is a copy of as many bytes, the image once and the columns once. The five kernels of im2col differ in what a thread writes: `im2col_naive` a window, `element` one value, `aligned` a window shifted to the sector, `quads` four neighbouring windows with 128-bit stores, `rows` some rows of windows, for wide images. Each number is a share of the speed of such a copy. A dash means that the kernel does not fit the shape:

# %% jupyter={"source_hidden": true}
settings = "kernel", "stride", "padding", "dilation"
timed = [record for record in recorded if "nbytes" in record]  # im2col, col2im, and copies
problems = list(dict.fromkeys((record["shape"], *(record[name] for name in settings)) for record in timed))


def shares(case, kernels):
    """For each problem the speed of each kernel, as a share of a copy's; NaN where a kernel does not fit."""
    found = []
    for shape, *how in problems:
        group = [r for r in timed if (r["shape"], *(r[name] for name in settings)) == (shape, *how)]
        speed = {(r["case"], r["variant"]): r["nbytes"] / r["value"] for r in group}
        found.append([speed.get((case, name), np.nan) / speed["im2col", "copy"] for name in kernels])
    return found


texts = [f"{shape}, {k} x {k}, stride {s}, dilation {d}" for shape, k, s, _, d in problems]
kernels = (*conv.VARIANTS, "torch (unfold)")
names_above = [name.replace("_", "_\n").replace(" ", "\n") for name in kernels]
plot.shaded(shares("im2col", kernels), texts, names_above, title="im2col", mark=where)
kernels = ("strided", "torch (fold)")
plot.shaded(shares("col2im", kernels), texts, kernels, title="col2im", mark=where);

# %% [markdown]
# For col2im, the gather of 09 tests for every weight of the filter whether it covers the pixel. `gather` in the library finds the first one and then goes on in regular steps. With a stride of 2, though, even pixels meet even columns of the filter and odd ones odd columns, so neighbouring threads read from two rows of the columns in turn. In `strided` a thread has `stride` neighbouring pixels, and neighbouring threads read neighbours:

# %% jupyter={"outputs_hidden": true}
show.source(columns.first_tap, columns.strided)

# %% [markdown]
# ## Columns that are never written
#
# im2col writes every pixel once for each window that it is in, and the product reads all of that again. **Implicit GEMM** never writes the columns: the fast product of [05](05_fast_matmul.ipynb) fills its tiles straight from the image. Column j of the product is window j, and row k is a pixel of the window: an in channel, and a row and a column of the filter.
#
# - A thread copies pixels of a single window. It works out once where the window begins, and which rows and columns of the filter fall outside of the image there: a bit for each, in one word.
# - For each step along K, some threads write a table to shared memory. For each k it has the distance of the pixel from the beginning of the window, the same for all windows, and a word with two bits: the row and the column of the filter.
# - If the two words have a bit in common, the pixel is outside of the image, and a zero is copied instead.

# %% jupyter={"outputs_hidden": true}
show.source(implicit.find_window, implicit.make_list_pixels, implicit.make_copy_windows)

# %% [markdown]
# The rest is as in the product: asynchronous copies, register tiling, split-K where the result is small. The windows of all samples form one product, so many small images fill the tiles as well as a large one does. For float16 the same is done on tensor cores ([12](12_tensor_cores.ipynb)). On compute capability 9.0, where that is faster, so it is for float32: each number is split into two of TF32, and three products on tensor cores replace one. The errors stay as small as those of sums in float32. Where windows do not overlap, like the patches of a vision transformer, columns repeat no pixel: on compute capability 9.0 they are written to memory after all, as rows for the tensor cores.
#
# ## Fewer multiplications
#
# Two methods save more than the last kernel. What they save can be counted.
#
# **FFT.** The Fourier transform of a convolution is the product of the transforms. Transform every in channel and the filter of every pair of channels, multiply, sum over the in channels, and transform every out channel back. The size of the filter hardly matters any more. A transform of n real values takes about 2.5 n log2 n operations. (`conv2d(..., algorithm="fourier")` cuts the images into tiles of 32 x 32 pixels that overlap, so that a warp can transform one in its registers.)
#
# **Winograd in both directions.** `winograd` saves along columns only. For a 3 x 3 filter, a tile of 2 x 2 results takes 16 multiplications instead of 36, and one of 4 x 4 takes 36 instead of 144, if pixels and weights are first added up in certain ways. What is left are matrix products over the channels. The price is additions, and precision: the larger the tile, the larger the numbers that cancel. gpukit has no such kernel.

# %%
def operations(channels, size, kernel, samples):
    """Operations of three ways, for as many out channels, and images that keep their size."""
    products = samples * channels**2
    direct = 2 * products * size**2 * kernel**2
    n = (size + kernel - 1) ** 2
    fourier = 2.5 * n * np.log2(n) * (2 * samples * channels + channels**2) + 4 * n * products
    tiles = samples * (size / 4) ** 2  # transforms of 6 x 6 pixels and back, 36 multiply-adds per pair of channels
    winograd = tiles * (72 * channels**2 + 180 * channels + 140 * channels) + 72 * channels**2
    return direct, fourier, winograd if kernel == 3 else np.nan


# %%
sizes = np.arange(1, 32, 2)
with plot.figure(columns=2, size=(9, 3.3), mark="operations, by formula") as axes:
    for ax, (channels, size, samples) in zip(axes, ((64, 56, 16), (4, 512, 1)), strict=True):
        counts = np.array([operations(channels, size, k, samples) for k in sizes])
        for column, (name, marker) in enumerate((("direct", "o"), ("FFT", "s"), ("Winograd, 4 x 4", "D"))):
            ax.plot(sizes, counts[:, column] / 1e9, marker=marker, label=name)
        crossing = sizes[np.argmax(counts[:, 1] < counts[:, 0])]
        ax.set(yscale="log", xlabel="rows and columns of the filter", ylabel="10^9 operations")
        ax.set_title(f"{samples} x {channels} channels of {size} x {size}: FFT from {crossing} x {crossing}")
        ax.legend()

# %% [markdown]
# So the direct way is best where filters are small and channels few, Winograd at 3 x 3 with many channels, the FFT with large filters. Fewer operations are not less time, though: an FFT moves complex numbers through memory, and Winograd's transforms move all data once more.
#
# ## The map
#
# The article reports 1.2 times the speed of cuDNN for its convolution, and elsewhere between a tenth and ten times. Where does ours win? The map has as many out channels as in channels, filters from 1 x 1 to 11 x 11, and two kinds of images. cuDNN had tried all of its algorithms first and kept the fastest, without TF32 (a 19-bit format of tensor cores, less precise than float32). Our time is that of what `conv2d` picks by itself: a direct kernel, the FFT where there is an "f", and im2col or implicit GEMM where there is a star. Blue: gpukit is faster; red: cuDNN is.

# %% jupyter={"source_hidden": true}
IMAGES = {512: 1, 56: 16}  # size: how many
CHANNELS, KERNELS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 3, 5, 7, 9, 11)


def find(cell):
    """(cuDNN's seconds, gpukit's, the way that it picks) for a cell of the map."""
    size, channels, kernel = cell
    x, weight = (IMAGES[size], channels, size, size), (channels, channels, kernel, kernel)
    found = results.by_variant(recorded, case="map", shape=x, out_channels=channels, kernel=kernel, stride=1)
    at = make_geometry(x[2:], kernel, 1, kernel // 2, 1)
    way = cost.choose_algorithm("auto", x, weight, at, 1, np.dtype("float32"))
    return found["cudnn (torch)"], found[way], way


cells = {cell: find(cell) for cell in itertools.product(IMAGES, CHANNELS, KERNELS)}
ratios = {cell: theirs / ours for cell, (theirs, ours, _) in cells.items()}
dates = sorted({record["date"] for record in recorded if record["case"] == "map"})
taken = f"{recorded[0]['gpu']}, recorded {' and '.join(dates)}"
with plot.figure(columns=len(IMAGES), size=(10, 3.6), mark=taken) as axes:
    for ax, (size, samples) in zip(axes, IMAGES.items(), strict=True):
        shown = np.array([[ratios[size, channels, kernel] for channels in CHANNELS] for kernel in KERNELS])
        for (row, col), ratio in np.ndenumerate(shown):
            color = "white" if abs(np.log2(ratio)) > 1.8 else "black"
            letter = {"direct": "", "fourier": "f"}.get(cells[size, CHANNELS[col], KERNELS[row]][2], "*")
            ax.text(col, row, f"{ratio:.2f}{letter}", ha="center", va="center", fontsize=7, color=color)
        ax.imshow(np.log2(shown), cmap="RdBu", vmin=-3, vmax=3, aspect="auto")
        ax.set_xticks(range(len(CHANNELS)), CHANNELS)
        ax.set_yticks(range(len(KERNELS)), KERNELS)
        ax.set(xlabel="channels in and out", ylabel="filter")
        ax.set_title(f"{samples} of {size} x {size}: cuDNN's time / gpukit's")
        ax.grid(False)
faster = sum(ratio > 1 for ratio in ratios.values())
print(f"gpukit is faster in {faster} of {len(ratios)} cells, lowest ratio {min(ratios.values()):.2f}")
for name, ways in {"direct kernels": {"direct"}, "products": {"im2col", "implicit"}, "FFT": {"fourier"}}.items():
    found = [ratio for cell, ratio in ratios.items() if cells[cell][2] in ways]
    print(f"{name:14} {len(found):3} cells, ratios {min(found):.2f} to {max(found):.2f}, median {np.median(found):.2f}")

# %% [markdown]
# The map has a shape, and it can be explained. With few channels the matrix product is narrow, and cuDNN's kernels are made for wide ones, so a kernel made to measure wins. A filter of 1 x 1, the first row, *is* a matrix product. The FFT wins most, with many channels and large filters. How many operations per second would the direct way need to be as fast?

# %%
print(f"{'images':18}{'channels':>8}{'filter':>8}{'gpukit':>10}{'cuDNN':>8}")
for (size, channels, k), (theirs, ours, way) in cells.items():
    if way == "fourier" and k == max(KERNELS):
        flops = 2 * IMAGES[size] * (channels * size * k) ** 2
        speeds = f"{flops / ours * 1e-12:10.0f}{flops / theirs * 1e-12:8.0f}"
        print(f"{f'{IMAGES[size]} of {size} x {size}':18}{channels:8}{k:8}{speeds}")
print(f"TFLOP/s of the direct way; multiply-adds from registers alone: {limits.fp32 * 1e-12:.0f}")

# %% [markdown]
# What is above the last number cannot be a direct way: it saves operations. With the filter, the direct way's operations grow, and the time of an FFT hardly does.
#
# How does `conv2d` choose? It has no map built in, but a small model whose constants are fitted to measurements: the instructions of all warps of an SM add up, and no block takes less time than the chain of its own instructions. It tries all tiles in the model, and compares the best with the times it predicts for the products.

# %% jupyter={"outputs_hidden": true}
show.source(cost.predict)

# %% [markdown]
# ## Half the bytes, and the host
#
# The direct kernels take float16, too, with sums in float32. Half the bytes do not make them faster: the multiply-adds stay the same, and what is converted on its way to shared memory cannot be copied asynchronously. What they save is memory. (Implicit GEMM is another matter: its products of float16 are made by tensor cores.)
#
# A small convolution is over before the host has launched the next one. Then the host's part of a call counts. `conv2d` remembers what it launched for arrays of the same kind, and repeats it. Here it is beside PyTorch's own function, on PyTorch's tensors. With `out=` it stores into a tensor that exists already:

# %%
halves = results.by_variant(recorded, case="ladder", dtype="float16")
print(f"float16: {halves['direct'] * 1e6:.1f} us, float32: {times['winograd'] * 1e6:.1f} us ({mark})")
by_host = {(r["case"], r["shape"], r["variant"]): r["value"] for r in recorded if r["case"] in ("host", "call and wait")}
CALLS = {"conv2d (torch)": "gpukit, out=", "conv2d (torch), new result": "gpukit", "torch (conv2d)": "PyTorch"}
results.table(
    [{"shape": shape, "call": variant} for case, shape, variant in by_host if case == "host"],
    {
        "images": lambda r: " x ".join(map(str, r["shape"])),
        "call": lambda r: CALLS[r["call"]],
        "the host's part, us": lambda r: f"{1e6 * by_host['host', r['shape'], r['call']]:.1f}",
        "until the result is there, us": lambda r: f"{1e6 * by_host['call and wait', r['shape'], r['call']]:.1f}",
    },
)

# %% [markdown]
# ## From the source
#
# The article on a direct convolution has these steps: the tile and its even copy ([09](09_convolution.ipynb)), four floats per copy, the prefetch of the next channel, and all out channels in registers, with a warning that too many spill. With 6 channels of 768 x 512 and a filter of 6 x 6, it reports 1.2 times the speed of cuDNN (the mean of 99 runs, the first left out), and between 1/10 and 10 times elsewhere. Measured one by one, two of the steps gain nothing on an H200.
#
# ## Key points
#
# - Find the bottleneck first. A faster copy gains nothing where loads and addresses are the limit.
# - Only sums in registers make loads rarer. Registers cost occupancy long before they spill.
# - A kernel that knows its sizes needs no addresses at run time.
# - When all instructions are multiply-adds, only a method with fewer products helps.
# - No algorithm wins everywhere. A ratio is worth nothing without its shape.
#
# **Back:** [09 Convolution](09_convolution.ipynb). **Next:** [10 Profiling](10_profiling.ipynb).
