# %% [markdown]
# # 09 Convolution
#
# A convolution slides a small filter over an image: every value of the result is a sum of products, of the filter's weights and the pixels under them. Effects on photographs are convolutions, and so is most of the work of many neural networks. This chapter computes it in two ways, directly and as a matrix product.
#
# **After this chapter you will be able to**
#
# - write a convolution as a kernel, and say why its loops have the order they have;
# - write windows as columns of a matrix, and sum columns back to an image without atomics;
# - compute a convolution as a matrix product, and say what memory that costs;
# - share pixels through a tile with its halo, copied evenly, and explain why that alone gains so little;
# - find the bugs that live at an image's edge.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb). No GPU.
#
# **Time:** 90 minutes.

# %%
import warnings

import numpy as np

import gpukit
from gpukit import conv, cuda, exercises, on_gpu, plot, results, show, timing

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays, on purpose


def random(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


# %% [markdown]
# In chapter 03 a tile in shared memory made the matrix product faster: values that many threads need are loaded once. In a convolution, too, neighbouring threads need the same pixels. So how much faster does a tile make it? Here are recorded times for 6 channels of 768 x 512 pixels and 6 filters of 6 x 6, beside NVIDIA's library, cuDNN:

# %%
recorded = results.load("conv-h200", case="ladder", dtype="float32")
times = results.by_variant(recorded)
times["winograd"] = times.pop("direct")
for name in ("naive", "tiled", "even", "cudnn (torch)", "winograd"):
    print(f"{name:14} {times[name] * 1e6:8.1f} us")
print(results.taken_on(recorded))

# %% [markdown]
# `naive` has no tile. The first kernel with one, `tiled`, is *slower*. The second, `even`, gains a little. By the end of this page you will have written `naive` and `even`, and know why. The optional chapter [09b](09b_fast_convolution.ipynb) shows how to get from there to `winograd`.
#
# ## What a filter does
#
# Here are four **filters** of 15 x 15 weights (grey is zero) and what they make of a photograph of Grace Hopper. At each pixel, the filter is laid over the image, centred; where it hangs over the edge, pixels count as zero. That border of zeros is called **padding**. (Papers call a filter a *kernel*, and so do the arguments of functions here. In the text, a kernel is what runs on the GPU.)

# %% jupyter={"source_hidden": true}
photo = plot.photograph()[:384:2, 64:448:2].astype(np.float32) / 255
gray = photo @ np.float32([0.299, 0.587, 0.114])

across = np.arange(-7, 8, dtype=np.float32)
x, y = np.meshgrid(across, across)
bell = np.exp(-(x**2 + y**2) / 18)
gabor = bell * np.cos(2 * np.pi * (x + y) / 6)
identity, edge = np.zeros((2, 15, 15), np.float32)
identity[7, 7] = 1
edge[6:9, 6:9] = [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]
blur = bell / bell.sum()
filters = {"edge (Sobel)": edge, "blur": blur, "sharpen": 2.5 * identity - 1.5 * blur, "Gabor": gabor - gabor.mean()}
kernels = np.stack(list(filters.values())).astype(np.float32)[:, None]
filtered = conv.conv2d(gray[None, None], kernels, padding=7)[0]

with plot.figure(columns=4, rows=2, size=(9, 4.8)) as axes:
    for i, (name, kernel) in enumerate(filters.items()):
        signed = np.sign(kernel) * np.sqrt(abs(kernel) / abs(kernel).max())  # so that small values can be seen
        plot.image(0.5 + 0.5 * signed, name, ax=axes[0, i])
        shown = filtered[i] if name in ("blur", "sharpen") else np.abs(filtered[i])
        most = np.percentile(shown, 99.5) if name in ("edge (Sobel)", "Gabor") else 1
        plot.image(np.clip(shown / most, 0, 1), ax=axes[1, i])

# %% [markdown]
# One call made all four: an image with one **in channel**, and four **out channels**. In general images have the shape (N, C, H, W): samples, channels, height, width. Weights are (O, C, KH, KW), the result is (N, O, OH, OW), and each out channel sums over all in channels. A **stride** moves the window by more than one pixel, a **dilation** spreads the weights apart, and **groups** split the channels into independent sets.
#
# Strictly speaking this is a cross-correlation: neural networks do not flip the filter, as mathematics does.
#
# ## Four ways to compute it
#
# | | idea | for it | against it |
# |---|---|---|---|
# | direct | sum up every window | no extra memory | all multiplications |
# | im2col + GEMM | write windows as columns of a matrix, multiply | uses the fastest kernel there is | KH x KW times the memory for the image |
# | FFT | transform, multiply, transform back | fewer multiplications, for large filters | transforms, complex numbers in memory |
# | Winograd | compute small tiles by a trick | fewer multiplications, for 3 x 3 | more additions, less precision |
#
# This page writes the first two; [09b](09b_fast_convolution.ipynb) counts the operations of the others. **GEMM** is the BLAS name of the matrix product.
#
# ## The order of the axes
#
# Memory is one-dimensional, so a batch of images needs an order of its axes, a **layout**. Three are in use; the fastest axis comes last:

# %%
plot.layouts();

# %% [markdown]
# NCHW keeps the pixels of a channel together, NHWC the channels of a pixel, CHWN the samples of a batch. Which one is best depends on which values the threads of a warp read at the same time. Let one warp read 32 neighbouring pixels of a row, of 4 samples with 64 channels:


# %%
@cuda.jit
def read_row(x, step, out):
    i = cuda.threadIdx.x
    out[i] = x[step * i]


samples, channels = 4, 64
x = random(samples * channels * 64)
for layout, step in {"NCHW": 1, "NHWC": channels, "CHWN": samples}.items():
    loads = gpukit.trace(read_row[1, 32], x, step, np.empty(32, np.float32)).total("global", "load")
    print(f"{layout}: neighbours are {step:2} values apart, 32 of them lie in {loads.sectors:2} sectors")

# %% [markdown]
# A thread per pixel wants NCHW, which is PyTorch's default and what we use from here on. Tensor cores, which take many channels of a pixel at once, want NHWC.
#
# ## The direct way
#
# The specification is seven loops: over samples, out channels, rows and columns, and for each value over in channels, filter rows and filter columns.

# %%
show.source(conv.serial)

# %% [markdown]
# Why this order? With the filter's loops innermost, *one* sum is open at a time. It stays in a register and is stored once. With the in channels outermost, all O x OH x OW sums would be open at once, and each would be loaded and stored again for every in channel.
#
# On a GPU the outer loops become threads. **Your turn**: one image, no padding, no stride. `cuda.grid(3)` gives each thread its column, row and out channel.


# %%
@cuda.jit
def direct(x, weight, out):
    ow, oh, o = cuda.grid(3)
    if o < out.shape[0] and oh < out.shape[1] and ow < out.shape[2]:
        # About 6 lines: sum the products of pixels and weights over all in channels; store the
        # sum
        ...


exercises.check("09-direct", direct)

# %% [markdown]
# ## A forgotten index
#
# The direct way follows an article. Its serial code indexes the weights by out channel, row and column, and forgets the *in channel*. Here is that mistake as a kernel. Which test would find it?


# %%
@cuda.jit
def forgets_the_channel(x, weight, out):
    ow, oh, o = cuda.grid(3)
    if o < out.shape[0] and oh < out.shape[1] and ow < out.shape[2]:
        total = np.float32(0)
        for c in range(x.shape[0]):
            for kh in range(weight.shape[2]):
                for kw in range(weight.shape[3]):
                    total += x[c, oh + kh, ow + kw] * weight[o, 0, kh, kw]  # planted: 0 should be c
        out[o, oh, ow] = total


x = random(3, 12, 20)
for name, weight in (("weights all alike", np.ones((2, 3, 3, 3), np.float32)), ("random weights", random(2, 3, 3, 3))):
    out = np.full((2, 10, 18), np.nan, np.float32)
    trace = gpukit.trace(forgets_the_channel[(3, 3, 2), (8, 4)], x, weight, out)
    right = np.allclose(out, conv.conv2d(x[None], weight)[0], atol=1e-4)
    seen = next(c for c in trace.coverage if c.array == "weight")
    print(f"{name}: right {right}; {seen.read} of {seen.elements} weights read")

# %% [markdown]
# With weights that are all alike, or with one in channel, the result is right. **Coverage** finds the mistake without a reference: two thirds of the weights are never read. And a test needs random values in every operand.
#
# ## Windows as columns
#
# The other way begins by writing every window as a column of a matrix: **im2col**. Here is a window that hangs over the edge of the image, and its column:

# %%
plot.padded_window((4, 5), (3, 3), stride=2, padding=1);

# %% [markdown]
# Neighbouring windows overlap, so the matrix repeats pixels: about KH x KW times each. In return, one row of weights times this matrix gives all values of an out channel.
#
# **Your turn.** One thread has one window of one channel, and writes its KH x KW values. To keep indices readable, `columns` has five axes here: (C, KH, KW, OH, OW). In memory that is the same as a matrix of C KH KW rows and OH OW columns.


# %%
@cuda.jit
def im2col(x, columns, size, stride, padding, dilation):
    ow, oh, c = cuda.grid(3)
    if c < columns.shape[0] and oh < columns.shape[3] and ow < columns.shape[4]:
        # About 8 lines: for every (kh, kw) store its pixel, or 0, in columns[c, kh, kw, oh, ow]
        ...


exercises.check("09-im2col", im2col)

# %% [markdown]
# Neighbouring threads write neighbouring columns, so the stores are coalesced. Almost: a warp writes 128 bytes, which are four sectors of 32 bytes *if the first byte begins a sector*. Each row of the matrix begins where the last one ended. Compare the sectors written for two image sizes:

# %%
for size in (18, 15):
    x, windows = random(1, 16, size, size), (size - 2) ** 2
    for variant in ("im2col_naive", "aligned"):
        launch, further = conv.configure_im2col(variant, x.shape, 3)
        out = np.full(16 * 9 * windows, np.nan, np.float32)
        trace = gpukit.trace(launch, x.reshape(-1), out, *further)
        assert np.array_equal(out.reshape(1, 144, -1), conv.im2col(x, 3))
        stores = trace.total("global", "store")
        print(f"rows of {windows} windows, {variant:12} {stores.sectors:6,} sectors, at least {out.nbytes // 32:,}")

# %% [markdown]
# A sector has 8 values. 256 is a multiple of 8, so all rows begin with a new sector. 169 is not, so most warps touch five sectors instead of four. `aligned` shifts the threads of each row so that a warp begins with a new sector. `conv.im2col` picks one of five kernels by shape; [09b](09b_fast_convolution.ipynb) shows what they reach.
#
# ## Back from columns
#
# Training needs the way back, too: **col2im** adds every value of the columns to the pixel it came from. The obvious kernel has a thread per value of the columns, and then many threads add to one pixel. That takes atomics, and since floating-point addition is not associative, the last bits would depend on the order in which they arrive. MXNet **gathers** instead: a thread per *pixel* looks for the windows that cover it.
#
# Which are they? Value kh of a window lies kh * dilation below its corner. So the corner would be in row `row + padding - kh * dilation` of the padded image, and there is a window with that corner only if the row is a multiple of the stride. The same holds for columns.
#
# **Your turn.** `add` says whether to start from what the image holds.


# %%
@cuda.jit
def col2im(columns, image, stride, padding, dilation, add):
    col, row, c = cuda.grid(3)
    if c < image.shape[0] and row < image.shape[1] and col < image.shape[2]:
        total = image[c, row, col] if add else np.float32(0)
        # About 8 lines: for every (kh, kw) add columns[c, kh, kw, oh, ow], if there is such a
        # window (oh, ow)
        ...
        image[c, row, col] = total


exercises.check("09-col2im", col2im)

# %% [markdown]
# col2im is the **adjoint** of im2col: the sum of `im2col(x) * y` equals that of `x * col2im(y)`, for all x and y. That makes a strong test, since it needs no reference.
#
# MXNet's kernel also takes a **request**: whether to overwrite the result, to accumulate into it, to work in place, or to do nothing because the gradient is not needed. `conv.col2im` has all four:

# %%
x, how = random(1, 2, 6, 6), {"kernel_size": 3, "stride": 1, "padding": 1}
y = random(1, 18, 36)
print("adjoint:", np.isclose((conv.im2col(x, **how) * y).sum(), (x * conv.col2im(y, (6, 6), **how)).sum()))

summed = conv.col2im(y, (6, 6), **how)
requests = {"write": summed, "add": 1 + summed, "inplace": summed, "null": np.ones_like(summed)}
for request, expected in requests.items():
    columns = y.copy()
    out = columns.reshape(-1)[:72].reshape(1, 2, 6, 6) if request == "inplace" else np.ones((1, 2, 6, 6), np.float32)
    conv.col2im(columns, (6, 6), **how, out=out, request=request)
    print(f"{request:8} onto {'its own columns' if request == 'inplace' else 'ones':16}", np.allclose(out, expected))

# %% [markdown]
# `"inplace"` lets the result share memory with the columns. A gather reads columns after other threads have written pixels, so `col2im` copies the columns first if they overlap. `"null"` launches nothing.
#
# ## A convolution as a matrix product
#
# Now the convolution is one product: weights M x K times columns K x N. M is the number of out channels of a group, K is (C / groups) x KH x KW, and N is OH x OW.

# %%
plot.im2col_product(groups=2, m=3, k=36, n=324);

# %% [markdown]
# The next cell has these shapes, and lists the launches of one call:

# %%
x, weight, bias = random(2, 8, 20, 20), random(6, 4, 3, 3), random(6)
out = np.full((2, 6, 18, 18), np.nan, np.float32)
for launch, _ in conv.steps("im2col", x, weight, out, bias, groups=2):
    print(f"{launch.dispatcher.py_func.__name__:12} grid {launch.griddim}, block {launch.blockdim}")

# %% [markdown]
# Three steps: windows to columns, the product, and the bias of each out channel, if there is one. The columns go to a **workspace**, which is reused for the next samples, and by later calls on the same stream. That is safe because kernels in a stream run one after the other, so the host need not wait: a call returns as soon as its launches are queued.
#
# For the convolution of this page's first table:

# %%
article = results.by_variant(results.load("conv-h200", case="article"))
print(f"im2col and product {article['im2col'] * 1e6:.0f} us, cuDNN {article['cudnn (torch)'] * 1e6:.0f} us, ", end="")
print(f"naive {times['naive'] / article['im2col']:.1f} times as long")
columns = 4 * conv.workspace_size((1, 6, 512, 768), 6)
print(f"columns: {columns / 1e6:.0f} MB, the image: {4 * 6 * 512 * 768 / 1e6:.0f} MB")

# %% [markdown]
# That is about as fast as cuDNN, with a product that knows nothing of windows. The price is memory.
#
# ## What it costs in memory
#
# Every pixel is stored KH x KW times. Is there a better matrix? The notes on MXNet look at the alternative: leave the image as a vector, and write the *weights* as a sparse matrix with a row for every value of the result. Then each weight is repeated for every window. They conclude that it makes no difference: one repeats pixels KH x KW times, the other weights OH x OW times, by the same factor.
#
# **Predict first.** One sample, 64 in and 64 out channels, float32, and a 4-byte index beside each weight of the sparse matrix. How many times as much memory does the sparse matrix take as the columns?

# %%
my_ratio = None
exercises.check("09-memory", my_ratio)

# %% jupyter={"outputs_hidden": true}
GiB = 2**30
sizes = range(1, 24, 2)
needs = [conv.extra_memory((1, 64, 256, 256), (64, 64, k, k), padding=k // 2) for k in sizes]
with plot.figure("64 to 64 channels of 256 x 256, one sample", size=(7, 3.4), mark="by formula") as ax:
    for name in ("sparse", "im2col"):
        ax.plot(sizes, [need[name] / GiB for need in needs], marker="o", label=name)
    ax.axhline(16, color="0.4", linewidth=1)
    ax.text(sizes[-1], 17, "16 GiB", ha="right", va="bottom", color="0.3")
    ax.set(yscale="log", xlabel="rows and columns of the filter", ylabel="GiB beside image, weights and result")
    ax.legend()
at_15 = needs[7]
print(f"15 x 15: im2col {at_15['im2col'] / GiB:.1f} GiB, sparse {at_15['sparse'] / GiB:,.0f} GiB: ", end="")
print(f"{at_15['sparse'] // at_15['im2col']} times as much")

# %% [markdown]
# The claim holds for *one* out channel and without indices: then both hold C KH KW OH OW values. But all out channels share the same columns, while each has weights of its own. In favour of the sparse matrix: one serves for all samples, while every sample has columns of its own.
#
# Both grow with the area of the filter. The notes report that a 15 x 15 filter ran out of 16 GB. The direct way needs no extra memory, so it is worth making fast.
#
# ## A tile and its halo
#
# In the direct kernel a warp loads each pixel many times, once for every window that covers it. As with the matrix product, a block can load its pixels once and share them. A block of 4 x 8 threads, one warp, computes 4 x 8 values. For a 3 x 3 filter it needs 6 x 10 pixels: the tile and a **halo** around it.
#
# Who copies the halo? **Plan 1** (on the left): each thread copies its own pixel, and the threads at the edge also copy the halo beside them. **Plan 2** (on the right): number the pixels of the tile, and deal them out evenly to all threads.

# %%
plot.halo_tile(tile=(4, 8), kernel=(3, 3));

# %% [markdown]
# A warp takes as long as its busiest lane: 9 rounds by plan 1, 2 by plan 2. **Predict**: for a filter of 6 x 6, how many pixels does the busiest thread copy by plan 1?

# %%
my_pixels = None
exercises.check("09-rounds", my_pixels)

# %% jupyter={"outputs_hidden": true}
plot.halo_tile(tile=(4, 8), kernel=(6, 6));

# %% [markdown]
# **Your turn.** Write the copy by plan 2, the sums, and the two barriers. Tiles at the image's edge reach past it: store 0 there.


# %%
@cuda.jit
def tiled(x, weight, out):
    tile = cuda.shared.array((6, 10), np.float32)  # 4 x 8 pixels, and two more rows and columns
    tx, ty, o = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    top, left = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    total = np.float32(0)
    for c in range(x.shape[0]):
        # About 12 lines: copy the tile evenly, 0 outside the image; add nine products. Mind the
        # two barriers
        ...
    if top + ty < out.shape[1] and left + tx < out.shape[2]:
        out[o, top + ty, left + tx] = total


exercises.check("09-tile", tiled)

# %% [markdown]
# ## Why so little?
#
# The library has the same kernels with padding, stride and dilation: `naive`, `tiled` (plan 1) and `even` (plan 2). Time them for the convolution of the first table:

# %%
names, where = ("naive", "tiled", "even"), results.taken_on(recorded)
if on_gpu():
    x, weight = cuda.to_device(random(1, 6, 512, 768)), cuda.to_device(random(6, 6, 6, 6))
    out = cuda.device_array((1, 6, 507, 763), np.float32)
    runs = {name: lambda name=name: conv.conv2d(x, weight, algorithm=name, out=out) for name in names}
    times |= {name: timed.median for name, timed in timing.bench_many(runs, min_time=0.1).items()}
    where = f"{gpukit.device.info().name}; cuDNN: {where}"
with plot.figure("6 channels of 768 x 512, 6 x 6, 6 out channels", size=(7, 2.2), mark=where) as ax:
    shown = (*names, "cudnn (torch)")
    bars = ax.barh(shown, [times[name] * 1e6 for name in shown], color=[plot.PALETTE[i == 3] for i in range(4)])
    ax.bar_label(bars, fmt="%.0f us", padding=3)
    ax.invert_yaxis()
    ax.set(xlabel="microseconds, cold L2 cache", xlim=(0, 1600))

# %% [markdown]
# And count, for a small part of the image. A **term** is one pixel times one weight.

# %%
x, weight = random(1, 6, 21, 37), random(6, 6, 6, 6)
out = np.empty((1, 6, 16, 32), np.float32)
terms = out.size * 6 * 6 * 6 // 32  # of a warp
print(f"{'':8}{'global loads':>14}{'sectors':>10}{'shared loads':>14}{'terms per load':>16}")
for name in names:
    ((launch, arguments),) = conv.steps(name, x, weight, out)
    trace = gpukit.trace(launch, *arguments)
    loads, shared = trace.total("global", "load"), trace.total("shared", "load").requests
    print(f"{name:8}{loads.requests:14,}{loads.sectors:10,}{shared:14,}{terms / (loads.requests + shared):16.2f}")

# %% [markdown]
# The tile does what it promised: `even` loads far fewer sectors. But look at the last column. Each multiply-add still needs two loads, a pixel and a weight. The pixel merely comes from shared memory now instead of the L1 cache, and in an SM these are the same hardware. The kernel is limited by its instructions, which are loads and the arithmetic of their addresses, and a tile saves none of them. Plan 1 adds 36 rounds of copying for every in channel, and loses.
#
# In chapter 03 the threads of a block shared whole rows and columns of the matrices, too much for L1. Here they share a few pixels, which L1 keeps without help. What saves load *instructions* is to keep more than one sum per thread, in registers. [05](05_fast_matmul.ipynb) did it for matrices, [09b](09b_fast_convolution.ipynb) does it here.
#
# ## Blocks that grow
#
# What if the tiles do not divide the result, as for 27 columns and tiles of 8? We launch one more block, and let surplus threads do nothing. The article launches one block *fewer* instead, and lets the last ones grow to cover the remainder:

# %%
plot.edge_blocks(size=(14, 27), tile=(4, 8));

# %% [markdown]
# Two things can go wrong. The largest block may have to compute 7 x 15 values with the same 32 threads, in four rounds instead of one, and the launch waits for it. And now the tile's size differs from block to block, so every number derived from it must differ, too. The article mentions that its edge blocks have bugs. Here is one that such a kernel invites. Find it before you unfold the output.


# %% jupyter={"outputs_hidden": true}
@cuda.jit
def growing(x, weight, out):
    tile = cuda.shared.array(9 * 17, np.float32)  # enough for 7 x 15 values and a halo of two
    t = 8 * cuda.threadIdx.y + cuda.threadIdx.x
    top, left = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    height, width, pitch = 4, 8, 10
    if cuda.blockIdx.y == cuda.gridDim.y - 1:
        height = out.shape[0] - top
    if cuda.blockIdx.x == cuda.gridDim.x - 1:
        width = out.shape[1] - left
    for e in range(t, (height + 2) * (width + 2), 32):
        row, col = e // (width + 2), e % (width + 2)
        tile[row * pitch + col] = x[top + row, left + col]
    cuda.syncthreads()
    for e in range(t, height * width, 32):
        row, col = e // width, e % width
        total = np.float32(0)
        for kh in range(3):
            for kw in range(3):
                total += tile[(row + kh) * pitch + col + kw] * weight[kh, kw]
        out[top + row, left + col] = total


def run_growing(height, width):
    """The trace of a launch, and the errors of its result."""
    x, weight, out = random(height + 2, width + 2), random(3, 3), np.full((height, width), np.nan, np.float32)
    trace = gpukit.trace(growing[(width // 8, height // 4), (8, 4)], x, weight, out)
    return trace, np.abs(out - conv.conv2d(x[None, None], weight[None, None])[0, 0])


trace, error = run_growing(12, 24)
print(f"12 x 24: largest error {error.max():.1e}, findings: {len(trace.findings)}")
trace, error = run_growing(14, 27)
print(f"14 x 27: largest error {error.max():.1e}, findings: {len(trace.findings)}, {trace.findings[0].kind}")
print(trace.findings[0].code)
with plot.figure("14 x 27: where the result is wrong", size=(6, 2.8)) as ax:
    ax.imshow(error > 1e-4, cmap="magma")
    ax.set(xlabel="column", ylabel="row", yticks=range(0, 14, 4))
    ax.grid(False)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# `pitch` stays 10, the row of an inner tile, while a grown tile has rows of `width + 2`. Its rows overlap in shared memory: two threads write the same element, which the trace reports as a race. Blocks that grow downwards only are right, since their rows keep their length. All sizes that are multiples of the tile pass every test.
#
# </details>
#
# One more block and a guard take less code, and there is one tile size and no slow block. Test every kernel with sizes that are not multiples of its tile.
#
# ## From the source
#
# This chapter follows three of the documents: the two notes on MXNet (its im2col and col2im kernels, and its convolution layer), and the article on a direct convolution. What they contain, and what we changed:
#
# - MXNet's im2col is `im2col_naive`, its col2im a gather with the four requests above; its convolution is the three steps per sample, with one workspace.
# - "The same factor", for the sparse matrix, is right for one out channel only.
# - The article's serial code forgets the in channel. It takes one sample, without padding or stride; ours takes batches, padding and strides.
# - Its block is one warp of 4 x 8 threads, with plan 1 at first: 1, 3 or 9 pixels per thread for 3 x 3. Plan 2 has 1 or 2 pixels per thread, 60 / 32 = 1.875 on average.
# - Its edge blocks grow, with bugs that it leaves open.
#
# ## Key points
#
# - With the filter's loops innermost, one sum is open at a time, and stays in a register.
# - A convolution is a matrix product once its windows are columns: simple, general, and KH x KW times the memory.
# - Gather instead of scatter: no atomics, and the same bits in every run.
# - Deal copies out evenly: a warp waits for its busiest lane.
# - A tile saves global traffic, not load instructions. Count both before you expect a speed-up.
# - Test with random values, several channels, and sizes that are not multiples of the tile.
#
# **Back:** [08 Resize](08_resize.ipynb). **Next:** [09b Fast convolution](09b_fast_convolution.ipynb), optional, or [10 Profiling](10_profiling.ipynb).
