# %% [markdown]
# # 09 Convolution
#
# A convolution slides a small kernel over an image: every value of the result is a sum of products of the kernel with the pixels below it. Filters of photographs are convolutions, and so is most of the work of many neural networks. This chapter computes it in two ways, as a matrix product and directly, and takes the direct one, step by step, to several times the speed of cuDNN where the documents said that this could be done. It also shows where it cannot.
#
# **After this chapter you will be able to**
#
# - write windows as columns of a matrix, and sum columns back to an image without atomics;
# - compute a convolution as a matrix product, and say what memory that costs, and what the alternatives cost;
# - write a direct convolution: a tile with its halo, an even split of the copy, the next channel ahead, sums in registers;
# - count what each step saves, in sectors and wavefronts, and find the step that does not help;
# - read a map of ratios to a library, and say for a given shape which way is the faster one.
#
# **You need** [03 Shared memory](03_shared_memory.ipynb), [04 Bank conflicts](04_bank_conflicts.ipynb); [05](05_fast_matmul.ipynb) for registers. No GPU.
#
# **Time:** 90 minutes.

# %%
import itertools
import warnings
from functools import partial

import matplotlib.cbook
import matplotlib.pyplot as plt
import numpy as np

import gpukit
from gpukit import conv, cuda, device, on_gpu, plot, prediction, results, show, timing
from gpukit.conv import columns, cost, fast, ladder
from gpukit.conv.windows import make_geometry
from gpukit.results import by_variant

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)


def random(*shape, dtype=np.float32):
    """Random numbers that depend on the shape alone."""
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


recorded = results.load("conv-h200")
where = results.taken_on(recorded)

# %% [markdown]
# ## What a filter does
#
# Here is a photograph (of Grace Hopper; the United States Navy, public domain), and four kernels. Each is laid on every pixel of the image; where it hangs over the edge, the pixels are taken as zero: a **padding**.

# %%
with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
    photo = plt.imread(file)[:384, 64:448].astype(np.float32) / 255
if not on_gpu():
    photo = photo[::2, ::2]
gray = photo @ np.float32([0.299, 0.587, 0.114])

across = np.arange(-7, 8, dtype=np.float32)
x, y = np.meshgrid(across, across)
bell = np.exp(-(x**2 + y**2) / 18)
gabor = bell * np.cos(2 * np.pi * (x + y) / 6)
identity = np.zeros((15, 15), np.float32)
identity[7, 7] = 1
edge = np.zeros((15, 15), np.float32)
edge[6:9, 6:9] = [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]
blur = bell / bell.sum()
filters = {"edge (Sobel)": edge, "blur": blur, "sharpen": 2.5 * identity - 1.5 * blur, "Gabor": gabor - gabor.mean()}
kernels = np.stack(list(filters.values())).astype(np.float32)[:, None]
filtered = conv.conv2d(gray[None, None], kernels, padding=7)[0]

with plot.figure(columns=4, rows=2, size=(9, 4.8)) as axes:
    for i, (name, kernel) in enumerate(filters.items()):
        plot.image(0.5 + 0.5 * kernel / abs(kernel).max(), name, ax=axes[0, i])
        shown = filtered[i] if name in ("blur", "sharpen") else np.abs(filtered[i])
        most = np.percentile(shown, 99.5) if name in ("edge (Sobel)", "Gabor") else 1
        plot.image(np.clip(shown / most, 0, 1), ax=axes[1, i])

# %% [markdown]
# All four results came from one call: an image with one channel, and four **out channels**. In general images have the shape (N, C, H, W), the weights (O, C, KH, KW), and the result (N, O, OH, OW); every out channel sums over all in channels. A **stride** moves the kernel by more than one pixel, a **dilation** spreads its values apart, **groups** keep some channels to themselves.
#
# What neural networks call a convolution does not turn the kernel round first, as mathematics does.
#
# The order of the axes is a choice (E1): (N, C, H, W) keeps the pixels of a channel together, so neighbouring threads read neighbouring pixels; (N, H, W, C) keeps the channels of a pixel together, which suits matrix units; (C, H, W, N) the samples of a batch. This chapter, like the article and like PyTorch, has the first. And there are four ways to compute it (E2): directly; as a product of matrices, which repeats the image in memory; by Fourier transforms, which cost the same for any kernel; and by Winograd's method, which has fewer multiplications and more additions. The first two are done here, the other two counted.
#
# ## The specification
#
# The article writes the direct way as loops on the CPU. Ours has what the article leaves out: samples, padding, stride, dilation, groups, and the in channel in the index of the weight, which it forgets:

# %%
show.source(conv.serial)

# %%
x, weight, bias = random(2, 4, 9, 11), random(6, 2, 3, 4), random(6)
how = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
expected = conv.serial(x.astype(float), weight.astype(float), bias, (2, 1), (1, 2), (1, 2), 2)
print("ways to compute it:", *conv.ALGORITHMS)
for algorithm in ("im2col", "naive", "direct"):
    result = conv.conv2d(x, weight, bias, **how, algorithm=algorithm)
    print(f"{algorithm:12} largest difference {abs(result - expected).max():.1e}")

# %% [markdown]
# Why this order of loops? With the kernel innermost, one sum is open at a time, and it lives in a register. With the in channels outermost, every one of the O x OH x OW sums would be read and written again for each in channel.
#
# ## Windows as columns
#
# The other way begins by writing every window as a column of a matrix: `im2col`. Look at a small one, an image of 4 x 4 pixels and a kernel of 3 x 3:

# %%
small = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
matrix = conv.im2col(small, 3)[0]
with plot.figure(columns=2, size=(6, 3.4), mark="a drawing") as axes:
    for ax, values, title in zip(axes, (small[0, 0], matrix), ("an image", "its four windows as columns"), strict=True):
        ax.imshow(values, cmap="viridis", vmin=0, vmax=20)
        for (row, col), value in np.ndenumerate(values):
            ax.text(col, row, f"{value:.0f}", ha="center", va="center", color="white")
        ax.set(title=title, xticks=[], yticks=[])

# %% [markdown]
# Neighbouring windows overlap, so the matrix has more values than the image: KH x KW times as many, but for the edges. Now one row of weights times this matrix gives all values of an out channel.
#
# MXNet's kernel has one thread for each window of each channel (row B3). Neighbouring threads write neighbouring columns, so all seems well:

# %%
show.source(columns.im2col_naive)

# %% [markdown]
# The trace counts sectors, pieces of 32 bytes. For images of 15 x 15 a row of the columns has 169 values:


# %%
def im2col_sectors(variant, size):
    """Sectors that im2col writes, and the fewest that hold its result."""
    x = random(1, 16, size, size)
    launch, further = conv.configure_im2col(variant, x.shape, 3)
    out = np.full(16 * 9 * (size - 2) ** 2, np.nan, np.float32)
    trace = gpukit.trace(launch, x.reshape(-1), out, *further)
    assert np.array_equal(out.reshape(1, 144, -1), conv.im2col(x, 3))
    return trace.total("global", "store").sectors, out.nbytes // 32


by_rows = "im2col_naive", "element", "aligned"
print("sectors written " + "".join(f"{name:>14}" for name in (*by_rows, "at least")))
for size in (15, 18):
    counts = [im2col_sectors(variant, size) for variant in by_rows]
    numbers = *(count for count, _ in counts), counts[0][1]
    print(f"rows of {(size - 2) ** 2:3}:    " + "".join(f"{number:14,}" for number in numbers))

# %% [markdown]
# 256 is a multiple of 8, and 169 is not: there every row begins in the middle of a sector, and a warp that writes 32 values touches five sectors in place of four. Two kernels mend that in two ways. `element` has a thread for every value, counted through without regard to rows; but then the threads that read a pixel again, for another place of the kernel, are in other blocks, and the pixel comes from far away each time. `aligned` stays with the window and moves each thread back by the row's place in its sector, so that both sides are as they should be:

# %%
show.source(columns.aligned)

# %% [markdown]
# Where a row of windows is a multiple of four, there is a better one. In `quads` a thread has four neighbouring windows, and stores four values at once; and since the windows overlap, it loads each pixel of a row once, not once for each window:

# %%
show.source(columns.quads)

# %%
print(f"{'instructions of warps':24}" + "".join(f"{name:>14}" for name in conv.VARIANTS))
counts = []
for variant in conv.VARIANTS:
    launch, further = conv.configure_im2col(variant, (1, 16, 18, 18), 3)
    trace = gpukit.trace(launch, random(16 * 18 * 18), np.empty(16 * 9 * 256, np.float32), *further)
    counts.append([trace.total("global", op).requests for op in ("store", "load")])
for i, op in enumerate(("store", "load")):
    print(f"{op:24}" + "".join(f"{count[i]:14,}" for count in counts))

# %% [markdown]
# The last one, `rows`, is for wide images: a block writes a few rows of windows for one row of the kernel, so it writes to few places, and all of its loads are under way together. `im2col` takes the one that is for the shape.
#
# And the times, as a part of the speed of a copy that moves as many bytes: the image once and the columns once.


# %%
settings = "kernel", "stride", "padding", "dilation"
timed = [record for record in recorded if "nbytes" in record]  # im2col, col2im, and copies
problems = list(dict.fromkeys((record["shape"], *(record[name] for name in settings)) for record in timed))


def shares(case, names):
    """{windows as text: {variant: share of the speed of a copy}}, and the shares of what is taken by itself."""
    found, taken = {}, []
    for shape, *how in problems:
        group = [r for r in timed if (r["shape"], *(r[name] for name in settings)) == (shape, *how)]
        speed = {(r["case"], r["variant"]): r["nbytes"] / r["value"] for r in group}
        if ("im2col", "copy") in speed:
            of_copy = {name: speed[case, name] / speed["im2col", "copy"] for name in names if (case, name) in speed}
            found[f"{shape}\n{how[0]} x {how[0]}, by {how[1]}{', dilation 2' if how[3] == 2 else ''}"] = of_copy
            auto = columns.choose("auto", *shape[:2], make_geometry(shape[2:], *how), True) if case == "im2col" else None
            taken += [share for name, share in of_copy.items() if name in (auto, "gather", "strided")]
    return found, taken


def plot_shares(case, names):
    """Bars; and in words what the kernels reach that are taken by themselves."""
    shown, taken = shares(case, names)
    spread = f"{min(taken):.0%} to {max(taken):.0%} of the speed of a copy of as many bytes" if taken else "not recorded"
    print(f"{case}, {len(taken)} of {len(problems)} problems: {spread}")
    with plot.figure(size=(9, 3.2), mark=where) as ax:
        for i, name in enumerate(names):
            places = np.arange(len(shown)) + (i - len(names) / 2 + 0.5) * 0.8 / len(names)
            ax.bar(places, [s.get(name, 0) for s in shown.values()], 0.8 / len(names), label=name)
        ax.axhline(1, color="0.4", linewidth=1)
        ax.set_xticks(range(len(shown)), shown, fontsize=7)
        ax.set(ylabel="of the speed of a copy", title=case, ylim=(0, 1.3))
        ax.legend(ncols=4, fontsize=8)


plot_shares("im2col", (*conv.VARIANTS, "torch (unfold)"))

# %% [markdown]
# ## Back from columns
#
# `col2im` is the way back: every pixel becomes the sum of its values in all the windows that cover it. The obvious kernel has a thread for each value of the columns and adds it to its pixel; many threads add to one pixel then, so it needs atomics, and the order of the additions, and with it the last bits, would differ from run to run. MXNet **gathers** instead (row B4): one thread for each pixel looks for the windows that cover it.
#
# Which are they? A window covers the pixel with its value kh if the way from the window's corner to the pixel is a whole number of strides. Once the first is known, the next ones follow at regular steps, without a further division. That is what `gather` does. Where stride or dilation along a row is 1, as nearly always, the compiler can know even more. With a stride of 2, say, even pixels meet even columns of the kernel, and odd ones odd columns: neighbouring threads of `gather` would read from two rows of the columns in turns. In `strided` a thread has both pixels, and neighbouring threads read neighbours:

# %%
show.source(columns.first_tap, columns.strided)

# %% [markdown]
# The two belong together: `col2im` is the **adjoint** of `im2col`, the sum of `im2col(x) * y` equals that of `x * col2im(y)` for all x and y. That is a strong test, for it needs no reference. And a caller says what is to become of the result: write it, add it to what is there, write it in place of its own columns, or nothing.

# %%
x = np.random.default_rng(0).integers(-9, 10, (2, 3, 12, 13)).astype(np.float32)
how = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2)}
cols = conv.im2col(x, 3, **how)
y = np.random.default_rng(1).integers(-9, 10, cols.shape).astype(np.float32)
print((cols * y).sum(), "=", (x * conv.col2im(y, (12, 13), 3, **how)).sum())
total = np.ones((2, 3, 12, 13), np.float32)
conv.col2im(y, (12, 13), 3, **how, out=total, request="add")
print("added to ones:", np.array_equal(total, 1 + conv.col2im(y, (12, 13), 3, **how)))

# %%
plot_shares("col2im", ("strided", "torch (fold)"))

# %% [markdown]
# ## A convolution as a matrix product
#
# With the columns, a convolution is a product (row C1): the weights as M x K, where M is O / groups and K is C / groups x KH x KW, times the columns, K x OH OW. Here are the launches of one call, for a batch of two:

# %%
x, weight, bias = random(2, 8, 20, 20), random(6, 4, 3, 3), random(6)
out = np.full((2, 6, 18, 18), np.nan, np.float32)
for launch, _ in conv.steps("im2col", x, weight, out, bias, groups=2):
    print(f"{launch.dispatcher.py_func.__name__:12} grid {launch.griddim}, block {launch.blockdim}")

# %% [markdown]
# The columns of one sample, or of several small ones, go to a **workspace** that the next samples use again, and so does the next call on the same stream. Kernels of one stream run one after the other, so nobody needs to wait on the host: a call returns as soon as its launches are queued (C3).
#
# ## What it costs in memory
#
# Every pixel is there KH KW times. The document asks whether there is a better matrix form, and looks at the other one: leave the image as a vector, and write the *kernel* as a sparse matrix with a row for every value of the result. Then every weight is repeated for every window (C2). Both, and the direct way, in bytes for one sample:

# %%
sizes = range(1, 24, 2)
x_shape, made = (1, 64, 256, 256), 64
needs = [conv.extra_memory(x_shape, (made, 64, k, k), padding=k // 2) for k in sizes]
with plot.figure(size=(7, 3.4), mark="by formula") as ax:
    for name in ("sparse", "im2col"):
        ax.plot(sizes, [need[name] / 2**30 for need in needs], marker="o", label=name)
    ax.axhline(16, color="0.4", linewidth=1)
    ax.text(sizes[-1], 17, "16 GiB", ha="right", va="bottom", color="0.3")
    ax.set(
        yscale="log", xlabel="kernel size", ylabel="GiB beside x, weights and result",
        title=f"{x_shape[1]} channels of {x_shape[2]} x {x_shape[3]}, {made} out channels; the direct way: 0",
    )
    ax.legend()
at_15 = needs[7]
print(f"15 x 15: im2col {at_15['im2col'] / 2**30:.1f} GiB, sparse {at_15['sparse'] / 2**30:.0f} GiB for one sample")

# %% [markdown]
# Both grow with the area of the kernel. The document's run with a kernel of 15 x 15 exhausted 16 GB; a batch makes it worse unless the samples share one workspace. The direct way needs nothing.
#
# ## Directly, from the beginning
#
# One thread per value of the result, everything from global memory, is the first rung:

# %%
show.source(ladder.naive)

# %% [markdown]
# Neighbouring windows overlap, so the block can fetch its pixels once and share them (E4): a block of one warp computes 8 x 4 values, and for each in channel first copies that tile, and a halo around it, to shared memory. Who copies the halo? The article's first plan: the threads at the edge of the block. Here is how many pixels each of the 32 threads copies for a kernel of 3 x 3, and by the second plan, in which all share evenly:

# %%
tile_h, tile_w = ladder.TILE
rows, cols = tile_h + 2, tile_w + 2
plan_1 = np.ones((tile_h, tile_w), int)
plan_1[-1] *= 3
plan_1[:, -1] *= 3
plan_2 = np.bincount(np.arange(rows * cols) % (tile_h * tile_w)).reshape(tile_h, tile_w)
with plot.figure(columns=2, size=(9.5, 2.6), mark="a drawing") as axes:
    titles = "plan 1: the edge copies the halo", "plan 2: all share"
    for ax, plan, title in zip(axes, (plan_1, plan_2), titles, strict=True):
        ax.imshow(plan, cmap="viridis", vmin=0, vmax=9)
        for (row, col), value in np.ndenumerate(plan):
            ax.text(col, row, value, ha="center", va="center", color="black" if value > 6 else "white")
        ax.set(title=f"{title}: {plan.mean():.3f} each, at most {plan.max()}", xticks=[], yticks=[])

# %% [markdown]
# A warp is as slow as its slowest lane: 9 rounds by the first plan, 2 by the second. The two kernels differ in nothing but that, and it is what makes the first, `tiled`, slower than no tile at all, as we shall see:

# %%
show.source(ladder.copy_by_edges, ladder.copy_evenly, ladder.tiled)

# %% [markdown]
# Three more ideas, one kernel each. `wide` copies four floats per instruction. Rows must begin at multiples of 16 bytes for that, so it copies up to three pixels more at both ends of a row, which for a tile as narrow as this one is a lot: the table below shows it. `prefetch` has two tiles, and copies the next channel into one, asynchronously, while it computes on the other (E6). `blocked` has each thread sum several out channels of several rows in registers (E7), so that a pixel from shared memory serves for all of its out channels, and a weight for all of its rows:

# %%
show.source(ladder.prefetch)

# %%
show.source(ladder.blocked)

# %% [markdown]
# What does each of them move? The article's own convolution has 6 channels of 768 x 512 pixels, a kernel of 6 x 6 and 6 out channels (E8). For a part of such an image:

# %%
x_shape, weight_shape, out_shape = (1, 6, 512, 768), (6, 6, 6, 6), (1, 6, 507, 763)
at = make_geometry(x_shape[2:], 6, 1, 0, 1)
layout = cost.layout_of(x_shape, weight_shape, at, 1, False, "float32", paired=False)
of_image = {
    "specialised": layout,
    "paired": cost.layout_of(x_shape, weight_shape, at, 1, False, "float32", paired=True),
}
rows, cols = layout.tile
x, weight = random(1, 6, rows + 5, cols + 5), random(6, 6, 6, 6)
right = conv.serial(x, weight, None, (1, 1), (0, 0), (1, 1), 1)
names, traces = cost.DIRECT, {}
for name in names:
    out = np.full(right.shape, np.nan, np.float32)
    if name in of_image:  # the layout for the whole image, not for this part
        at = make_geometry(x.shape[2:], 6, 1, 0, 1)
        convolution = cost.Convolution(x, weight, None, out, at, 1)
        steps = [cost.launch_specialised(of_image[name], convolution, 0, wide=False)]
    else:
        steps = conv.steps(name, x, weight, out)
    for launch, arguments in steps:
        traces[name] = gpukit.trace(launch, *arguments)
    assert np.allclose(out, right, atol=1e-3) and not traces[name].findings
terms = out.size * 6 * 36 / 32  # for a lane of a warp
heads = "global loads", "sectors", "shared loads", "wavefronts", "terms per load"
print(f"{'':12}" + "".join(f"{head:>{len(head) + 2}}" for head in heads))
for name, trace in traces.items():
    loads, shared = trace.total("global", "load"), trace.total("shared", "load")
    per_load = terms / (loads.requests + shared.requests)
    numbers = loads.requests, loads.sectors, shared.requests, shared.wavefronts, round(per_load, 1)
    print(f"{name:12}" + "".join(f"{n:{len(head) + 2},}" for n, head in zip(numbers, heads, strict=True)))

# %% [markdown]
# Read the last column. A term is a pixel times a weight. Up to `prefetch` every one of them needs two loads: the tile took the pixels out of global memory, but then nothing changed. Only sums in registers do: `blocked` needs less than one load for a term, and the last two kernels, to which we come now, add many terms for each.
#
# ## To the end
#
# What limits `blocked`? It does not know the size of the kernel, so it computes addresses for every step, and it takes pixels and weights one at a time. `specialised` is made to measure: a function writes a kernel for one size of kernel, stride, dilation and number of out channels, and the compiler knows all of it.

# %%
show.source(fast.make_multiply)

# %% [markdown]
# For the article's convolution a thread computes this:

# %%
print(layout.text)
print(f"sums of a thread: {layout.channels_per_thread * layout.run}; of a row it needs {layout.run + 5} pixels, and has")
print(f"{6 * layout.channels_per_thread * layout.run} multiply-adds for them, with the six weights of {layout.channels_per_thread} out channels")

# %% [markdown]
# The pixels of a row come in 128-bit loads. Meanwhile the next row is on its way into a second set of registers. In channels pass through a ring of stages in shared memory, filled by asynchronous copies that all threads share evenly. And where a result is small and has many in channels, so that it makes too few threads, sets of warps share the channels of a stage, and add their sums up at the end: always in the same order, so the bits are the same in every run.
#
# Three things in it nobody would guess from CUDA:
#
# - Registers have two **banks**, even and odd, and an instruction that reads two operands from the same bank takes a cycle longer. A 128-bit load binds neighbouring pixels to registers that alternate. Pixel i + kw is added to sum i; so for even and odd kw a sum meets pixels of different banks, and one of them is its own. The kernel keeps **two sums**, one for even kw and one for odd, and adds them at the end: then each meets one bank only.
# - A thread's values are neighbours, so if threads stored them directly, a warp would write every twelfth address. They go through shared memory once more, and a warp writes 32 neighbours.
# - What does a loop that loads the next row ahead load in its last step? Its own row again, that seemed the simplest. But then the compiler sees that the registers hold it already, and in every step copies them in place of that load, and waits for them. The address is now the minimum of the next one and the last one, which it does not see through. Read what the compiler makes of a kernel (`cuobjdump -sass`, [chapter 10](10_profiling.ipynb)).
#
# How far does a quarter of a warp, which loads 16 bytes per lane at a time, spread over the banks? The pitch of a row is chosen so that it meets no conflict, whatever the shape of the tile:

# %%
trace = traces["specialised"]
loads = [a for a in trace.accesses if (a.space, a.op) == ("shared", "load") and "load4" in a.code]
print(sum(a.wavefronts for a in loads), "wavefronts for", sum(a.requests for a in loads), "loads of 128 bits,")
print(sum(a.ideal_wavefronts for a in loads), "at the least: neighbouring lanes share pixels, and a word is read once for all")

# %% [markdown]
# ## Three products in place of four
#
# Now nearly every instruction of the loop is a multiply-add, one for each product. What is left is to need fewer products. Take two neighbours, and two weights of a row of the kernel:
#
# - the first is x0 w0 + x1 w1,
# - the second is x1 w0 + x2 w1.
#
# These are four products. But with b = x1 (w0 + w1) the first is (x0 - x1) w0 + b, and the second is (x2 - x1) w1 + b: three products. The differences of pixels serve for all out channels, the sums of weights for all pixels, and b is added to both values once, after all in channels. So a pair has three sums, one for each product (`specialised` keeps four, two for each value), and a row of an even number of weights takes three quarters of the multiply-adds. `paired` is the same kernel with that idea. Each thread makes the differences of the pixels that it has loaded, and the sum of the weights that it has copied:

# %%
show.source(fast.make_multiply_pairs)

# %%
by_way = {name: of_image[name].multiply_adds for name in of_image}
print(f"multiply-adds of a thread for a row of the kernel: {by_way['specialised']}, and {by_way['paired']} in pairs")
x, weight = random(1, 6, 30, 40), random(6, 6, 6, 6)
exact = conv.serial(x.astype(float), weight.astype(float), None, (1, 1), (0, 0), (1, 1), 1)
for name in of_image:
    error = abs(conv.conv2d(x, weight, algorithm=name) - exact)
    print(f"{name:12} differs from float64 by {np.sqrt((error**2).mean()):.1e} on average, {error.max():.1e} at most")

# %% [markdown]
# Differences round too, so the errors are somewhat larger; `conv2d` takes pairs by itself only where a value is a sum of many terms, which rounds in any case, and the kernel has five columns or more. And where a pixel is infinite, the products of a pair may be infinities of both signs, whose sum is NaN, where the plain sum would be infinite. Other windows are not touched.
#
# Here is the whole ladder, for the article's convolution:

# %%
ladder_times = by_variant(recorded, case="ladder", dtype="float32")
article = [r for r in recorded if r["case"] == "article"]
ladder_times["paired"] = min(r["value"] for r in article if r["variant"] == "direct")
shown = where
if on_gpu():
    x, weight = cuda.to_device(random(*x_shape)), cuda.to_device(random(*weight_shape))
    out = cuda.device_array(out_shape, np.float32)
    functions = {name: partial(conv.conv2d, x, weight, algorithm=name, out=out) for name in names}
    mine = timing.bench_many(functions, min_time=0.1)
    ladder_times |= {name: result.median for name, result in mine.items()}
    shown = f"{device.info().name}; cuDNN {where}"
bars = [name for name in ("cudnn (torch)", *names) if name in ladder_times]
colors = [plot.PALETTE[1 if "cudnn" in name else 5] for name in bars]
with plot.figure(size=(8, 3.2), mark=shown) as ax:
    drawn = ax.barh(bars, [ladder_times[name] * 1e6 for name in bars], color=colors)
    ax.bar_label(drawn, [f"{ladder_times[name] * 1e6:,.1f}" for name in bars], padding=3)
    ax.invert_yaxis()
    ax.set(xscale="log", xlim=(10, 3000), xlabel="microseconds, cold cache, launch not in the time")
    ax.set_title("6 channels of 768 x 512, 6 x 6, 6 out channels")
ratio = ladder_times["cudnn (torch)"] / ladder_times["paired"]
print(f"the last kernel takes {ladder_times['paired'] * 1e6:.1f} us, cuDNN {ratio:.1f} times as long")

# %% [markdown]
# The article reached 1.2 times the speed of cuDNN on its GPU. Look at the middle of the ladder, too. `tiled`, with its nine rounds of copying, is slower than `naive`, which has the L1 cache to share pixels. And the copy of four floats changes little, and the prefetch makes it slower: the loop over the kernel is bound by its loads from shared memory and its address arithmetic, so a faster copy has nothing to speed up, and a second tile only costs. An optimisation is worth what the bottleneck lets it be worth.
#
# A quarter of the multiply-adds less is not a quarter of the time less. The register banks again: the sums of a weight are half as many in pairs, and the first multiply-add of each weight, which shares no operand with the one before, reads three registers from two banks, so that two of them lie in one, and it takes a cycle more. What else keeps the last kernel from the peak? Here is what its multiply-adds alone take at the rate that was measured of registers only, and its bytes at that of a copy. The bytes come on top: every multiprocessor has to fill its shared memory before the first sum, and all of them store at once after the last:

# %%
limits = prediction.recorded()
moved = 4 * (np.prod(x_shape) + np.prod(out_shape))
flops = 2 * np.prod(out_shape) * 6 * 6 * 6
share = by_way["paired"] / (6 * of_image["paired"].outs * of_image["paired"].run)
least = share * flops / limits.fp32
print(f"{least * 1e6:.1f} us of multiply-adds, as fast as {limits.device} can ({limits.date})")
print(f"{moved / limits.dram_copy * 1e6:.1f} us to move {moved / 1e6:.0f} MB")
print(f"of {ladder_times['paired'] * 1e6:.1f} us")

# %% [markdown]
# Two ideas against that cost as much as they save on an H200. The out channels in several passes over a tile that stays in shared memory, so that one pass stores while the next computes: each pass reads all the pixels again. Some of the out channels completed and stored before the others: it needs the loop twice, for all out channels and for some, and a multiprocessor has to fetch twice the code before it can run it. Code that runs once is not free.

# %% [markdown]
# ## The map
#
# "Elsewhere between 1/10 and 10 times cuDNN", the article says of its kernel. So does ours win everywhere? Here is its time against cuDNN's for as many out channels as in channels, kernels from 1 to 11, and two kinds of images. cuDNN had tried all of its algorithms first and kept the fastest, without TF32. Gpukit's time is that of what `conv2d` takes by itself. Blue is where gpukit is ahead, red where cuDNN is; a star marks the cells where gpukit's way is the matrix product. Each ratio is of two times from one run:


# %%
def find(cell):
    """(cuDNN's seconds, gpukit's, whether by im2col) for a cell of the map."""
    size, channels, kernel = cell
    x, weight = (IMAGES[size], channels, size, size), (channels, channels, kernel, kernel)
    found = by_variant(recorded, case="map", shape=x, out_channels=channels, kernel=kernel, stride=1)
    at = make_geometry(x[2:], kernel, 1, kernel // 2, 1)
    way = cost.choose_algorithm("auto", x, weight, at, 1, np.dtype("float32"))
    return found["cudnn (torch)"], found.get(way, min(found.get("direct", np.inf), found.get("im2col", np.inf))), way


IMAGES = {512: 1, 56: 16}  # size: how many
CHANNELS, KERNELS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 3, 5, 7, 9, 11)
timed = {cell: find(cell) for cell in itertools.product(IMAGES, CHANNELS, KERNELS)}
ratios = {cell: theirs / ours for cell, (theirs, ours, _) in timed.items()}
with plot.figure(columns=len(IMAGES), size=(10, 3.6), mark=where) as axes:
    for ax, (size, samples) in zip(axes, IMAGES.items(), strict=True):
        shown = np.array([[ratios[size, channels, kernel] for channels in CHANNELS] for kernel in KERNELS])
        for (row, col), ratio in np.ndenumerate(shown):
            color = "white" if abs(np.log2(ratio)) > 1.8 else "black"
            star = "*" if timed[size, CHANNELS[col], KERNELS[row]][2] == "im2col" else ""
            ax.text(col, row, f"{ratio:.2f}{star}", ha="center", va="center", fontsize=7, color=color)
        ax.imshow(np.log2(shown), cmap="RdBu", vmin=-3, vmax=3, aspect="auto")
        ax.set_xticks(range(len(CHANNELS)), CHANNELS)
        ax.set_yticks(range(len(KERNELS)), KERNELS)
        ax.set(xlabel="channels in and out", ylabel="kernel")
        ax.set_title(f"{samples} of {size} x {size}: cuDNN's time / gpukit's")
        ax.grid(False)
small = [ratio for (_, channels, kernel), ratio in ratios.items() if channels <= 16 and kernel >= 3]
rest = [ratio for (_, channels, kernel), ratio in ratios.items() if channels > 16 or kernel < 3]
print(f"of {len(ratios)} cells gpukit is ahead in {sum(r > 1 for r in ratios.values())}")
print(f"at most 16 channels, kernels from 3: ahead in {sum(r > 1 for r in small)} of {len(small)}, least {min(small):.2f}")
print(f"elsewhere: at half of cuDNN's speed or more in {sum(r >= 0.5 for r in rest)} of {len(rest)}, least {min(rest):.2f}")

# %% [markdown]
# The map has a shape, and it can be explained. With few channels a matrix product is narrow, and cuDNN's kernels are made for wide ones: that is where a kernel made to measure wins most. Here are the cells where cuDNN is ahead by more than a tenth. How many operations of the direct way would it do per second, if it went that way? And how long would a direct kernel take that did nothing but the multiply-adds of pairs, as fast as registers alone allow?

# %%
print("                                  cuDNN's time   cuDNN, operations    cuDNN's time /")
print("images           channels  kernel   / gpukit's   of the direct way       of pairs alone")
for (size, channels, k), ratio in ratios.items():
    if ratio < 0.9 and k > 1:
        flops = 2 * IMAGES[size] * (channels * size * k) ** 2
        theirs, least = timed[size, channels, k][0], (k // 2 * 3 + k % 2 * 2) / (2 * k) * flops / limits.fp32
        image = f"{IMAGES[size]:2} of {size:3} x {size:3}"
        speed = f"{flops / theirs * 1e-12:7.0f} TFLOP/s"
        print(f"{image:16} {channels:8} {k:7} {ratio:12.2f} {speed:>19} {theirs / least:20.2f}")
print(f"multiply-adds from registers alone: {limits.fp32 * 1e-12:.0f} TFLOP/s")

# %% [markdown]
# All of them are of 56 x 56, and most have 64 channels: for these cuDNN has a way that it has neither for 128 channels nor for images of 512 x 512. Where cuDNN's figure is above the last one, it does not go the direct way: it needs fewer operations, and how comes next. Where the last column is below one, no direct kernel of pairs can be as fast as cuDNN, and where it is below a half, none can be half as fast.
#
# A kernel of 1 x 1, the first row of the map, is a matrix product and nothing else: windows of one pixel are the image itself.
#
# `conv2d` has no map built in. It has a small model, with a dozen constants fitted to measurements, of what a launch takes: the instructions of all warps of a multiprocessor add up, and no block is done before its own have followed one another. It tries all tiles in the model, and compares the best with what `im2col` and the product would take:

# %%
show.source(cost.predict)

# %% [markdown]
# ## Fewer multiplications
#
# Pairs save a quarter of the products. Two ways go much further in that direction. They are not implemented here; what they save can be counted.
#
# **FFT.** The Fourier transform of a convolution is the product of the transforms. Transform every in channel, the weights of every pair of channels, multiply, sum over the in channels, and transform every out channel back. The size of the kernel does not matter then: a transform of n values takes about 2.5 n log2 n operations, and with real numbers half of the frequencies are enough.
#
# **Winograd.** A pair with its three products is the smallest case. The results of a small tile, 2 x 2 or 4 x 4 values, for a kernel of 3 x 3 can be had with fewer multiplications, if pixels and weights are first added up in certain ways: 16 in place of 36 for a tile of 2 x 2, 36 in place of 144 for 4 x 4. The sums over in channels are left as matrix products. The price is additions, and precision: the larger the tile, the larger the numbers that cancel.

# %%
def operations(channels, made, size, kernel, samples=1):
    """Operations of three ways, for an image that keeps its size."""
    direct_way = 2 * samples * made * channels * size**2 * kernel**2
    n = (size + kernel - 1) ** 2
    one = 2.5 * n * np.log2(n)
    fourier = one * (samples * (channels + made) + channels * made) + 4 * n * samples * channels * made
    tiles = samples * (size / 4) ** 2
    # 4 x 4 values: transforms of 6 x 6 pixels and back, 36 multiply-adds per pair of channels; the weights once.
    winograd = 2 * 36 * tiles * channels * made + 180 * tiles * channels + 140 * tiles * made + 72 * channels * made
    return direct_way, fourier, winograd if kernel == 3 else np.nan


with plot.figure(columns=2, size=(9, 3.3), mark="operations, by formula") as axes:
    for ax, (channels, size, samples) in zip(axes, ((64, 56, 16), (4, 512, 1)), strict=True):
        sizes = np.arange(1, 32, 2)
        counts = np.array([operations(channels, channels, size, k, samples) for k in sizes])
        for column, (name, marker) in enumerate((("direct", "o"), ("FFT", "s"), ("Winograd, 4 x 4", "D"))):
            ax.plot(sizes, counts[:, column] / 1e9, marker=marker, label=name)
        crossing = sizes[np.argmax(counts[:, 1] < counts[:, 0])]
        ax.set(yscale="log", xlabel="kernel size", ylabel="10^9 operations")
        ax.set_title(f"{samples} x {channels} channels of {size} x {size}")
        ax.legend()
        print(f"{channels} channels of {size} x {size}: the FFT has fewer operations from {crossing} x {crossing} on")
saved = operations(64, 64, 56, 3, 16)
print(f"Winograd with 4 x 4 for 3 x 3, 64 channels: {saved[0] / saved[2]:.1f} times fewer operations")

# %% [markdown]
# So the direct way has its place where kernels are small and channels few, Winograd at 3 x 3 with many channels, and the FFT where kernels are large. But fewer operations are not less time: an FFT works on complex numbers in memory, and Winograd's transforms move the data once more.
#
# ## Half the bytes
#
# The kernels take float16 too, with sums in float32: half of the bytes for pixels, weights and results, and only the result is rounded.

# %%
x, weight = random(1, 6, 40, 60), random(6, 6, 6, 6)
exact = conv.serial(x.astype(float), weight.astype(float), None, (1, 1), (0, 0), (1, 1), 1)
half = conv.conv2d(x.astype(np.float16), weight.astype(np.float16))
print(f"float16 in, float32 sums, {half.dtype} out: largest difference {abs(half - exact).max():.3f} of {abs(exact).max():.0f}")
of_half = [r for r in recorded if (r["case"], r["dtype"]) == ("ladder", "float16")]
for record in sorted(of_half, key=lambda r: r["value"])[:4]:
    print(f"  {record['variant']:14} {record['value'] * 1e6:7.1f} us ({where})")
print(f"float32, direct: {ladder_times['paired'] * 1e6:.1f} us")

# %% [markdown]
# Half the bytes are not half the time: the multiply-adds are the same, in float32. And what is converted on its way to shared memory cannot be copied asynchronously, so every thread loads it, converts it and stores it. cuDNN can use tensor cores for float16. Here the gain is memory, not time.

# %% [markdown]
# ## The host's part
#
# A small convolution is over before the host has launched the next one: then what counts is how long a call takes the host. `conv2d` remembers what it launched for arrays of the same kind, and repeats it: one launch for the direct way, two for columns and product. Here it writes to `out`, or to a new array (`new result`), beside PyTorch's own, on PyTorch's tensors:

# %%
by_host = [r for r in recorded if r["case"] in ("host", "call and wait")]
print(where)
print(f"{'microseconds':52}{'host, a call':>14}{'call and wait':>16}")
for shape, made, variant in dict.fromkeys((r["shape"], r["out_channels"], r["variant"]) for r in by_host):
    of_case = {r["case"]: r["value"] for r in by_host if (r["shape"], r["variant"]) == (shape, variant)}
    name = f"{shape} to {made}: {variant}"
    print(f"{name:52}{of_case['host'] * 1e6:14.1f}{of_case['call and wait'] * 1e6:16.1f}")

# %% [markdown]
# ## What goes wrong
#
# **An index that was forgotten.** The article's serial code reads the weight of out channel, kernel row and kernel column, and leaves the in channel out. With one in channel, or with weights that are the same for all, nobody notices. Coverage does: a kernel with this mistake leaves most of the weights unread.


# %%
@cuda.jit
def forgets_the_channel(x, weight, out):
    ow, oh = cuda.grid(2)
    if oh < out.shape[1] and ow < out.shape[2]:
        for o in range(out.shape[0]):
            total = np.float32(0)
            for c in range(x.shape[0]):
                for kh in range(weight.shape[2]):
                    for kw in range(weight.shape[3]):
                        total += x[c, oh + kh, ow + kw] * weight[o, 0, kh, kw]  # planted: this should be c
            out[o, oh, ow] = total


x, alike, weight = random(3, 12, 20), np.ones((2, 3, 3, 3), np.float32), random(2, 3, 3, 3)
for name, used in (("weights all alike", alike), ("random weights", weight)):
    out = np.full((2, 10, 18), np.nan, np.float32)
    trace = gpukit.trace(forgets_the_channel[(1, 2), (32, 8)], x, used, out)
    right = np.allclose(out, conv.conv2d(x[None], used)[0], atol=1e-4)
    seen = next(c for c in trace.coverage if c.array in ("weight", "used"))
    print(f"{name}: right {right}; {seen.read} of {seen.elements} weights read")

# %% [markdown]
# **A barrier too few.** The tile is used again for the next channel. Without the second barrier a fast warp overwrites what a slow one still reads. A block of one warp, as in the article, hides it: its lanes are mostly in step. With eight warps the trace names the race:


# %%
@cuda.jit
def one_barrier(x, weight, out):
    tile = cuda.shared.array((10, 34), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = np.float32(0)
    for c in range(x.shape[0]):
        for e in range(ty * 32 + tx, 340, 256):
            tile[e // 34, e % 34] = x[c, e // 34, e % 34]
        cuda.syncthreads()
        for kh in range(3):
            for kw in range(3):
                total += tile[ty + kh, tx + kw] * weight[c, kh, kw]
        # planted: the second barrier is missing
    out[ty, tx] = total


out = np.full((8, 32), np.nan, np.float32)
trace = gpukit.trace(one_barrier[1, (32, 8)], random(3, 10, 34), random(3, 3, 3), out)
for finding in trace.findings[:2]:
    print(finding.kind, "at:", finding.code)
    print("   ", finding.message)

# %% [markdown]
# **A halo without its padding.** A row of the image that does not exist has no zeros in memory: before the first row lies another image, or nobody's memory. The kernels ask of every pixel whether it is inside; a coordinate left of the image is a huge number without a sign, so that one comparison finds both ends. See `ladder.pixel`.
#
# ## Exercises
#
# **1. Separable filters.** The blur above is a product of a column and a row. Compute it by two calls with kernels of 15 x 1 and 1 x 15, and compare the multiply-adds.

# %%
line = np.exp(-(across**2) / 18)
line = (line / line.sum()).astype(np.float32)
one_call = filtered[1:2][None]  # by one kernel of 15 x 15
two_calls = np.zeros_like(one_call)  # your two calls here
yours = []  # the two kernels that you called them with
adds = sum(kernel.size for kernel in yours)
if yours and np.allclose(one_call, two_calls, atol=1e-5):
    print(f"done: {adds} multiply-adds per pixel in place of {kernels[1].size}")
else:
    print("not yet")

# %% [markdown]
# **2. The halo's price.** For a tile of 8 x 4 and a kernel of k x k, how many pixels does a block copy for each value that it computes? Plot it for k from 1 to 11, and for a tile of 32 x 32. Why does `blocked` have the larger tile?
#
# <details><summary>Answer</summary>(8 + k - 1)(4 + k - 1) / 32 and (32 + k - 1)<sup>2</sup> / 1024: for k = 11 that is 7.9 and 1.7 pixels. The halo is as wide for every tile, so a larger tile has less of it for each value; and <code>blocked</code> can have one, because its threads compute several values each.</details>
#
# **3. A transposed convolution** is `col2im` of a matrix product: the gradient of `conv2d` with respect to x. Write it with `conv.col2im` and `gpukit.matmul.matmul`, and test it by the adjoint: the sum of `conv2d(x) * y` must be that of `x * transposed(y)`.


# %%
def transposed(y, weight, size):
    """What `conv2d` is the adjoint of, for images of ``size``."""
    return np.zeros((y.shape[0], weight.shape[1], *size), np.float32)  # your two calls here


x, weight, y = random(2, 3, 9, 10), random(5, 3, 4, 3), random(2, 5, 6, 8)
left, right = (conv.conv2d(x, weight) * y).sum(), (x * transposed(y, weight, (9, 10))).sum()
print("done" if np.isclose(left, right, rtol=1e-3) else f"not yet: {left:.3f} and {right:.3f}")

# %% [markdown]
# <details><summary>Answer</summary><code>columns = gpukit.matmul.matmul(np.ascontiguousarray(weight.reshape(len(weight), -1).T), y.reshape(len(y), len(weight), -1))</code>, and then <code>conv.col2im(columns, size, weight.shape[2:])</code>: the columns of every window are the weights of all out channels, times what came back for them.</details>
#
# **4. Which tile?** `conv.Layout` describes the last two kernels. Take `cost.layouts_of` for a convolution of your own, and have the trace count the wavefronts and the global sectors of the first three. Does the order agree?
#
# <details><summary>Answer</summary>Often not. Larger tiles need fewer sectors, and more values for a thread fewer wavefronts; but a tile that leaves multiprocessors without a block, or a thread with too few neighbours in its scheduler, costs more than that. <code>cost.predict</code> has both, and a trace of one launch knows nothing of the second.</details>
#
# ## Key points
#
# - A convolution is a matrix product once its windows are columns: simple, general, and KH x KW times the memory.
# - Gathering needs no atomics, and gives the same bits in every run.
# - A tile with a halo saves global loads. It does not save shared ones: only sums in registers do.
# - Share a copy evenly; a warp waits for its slowest lane.
# - A step that helped on one GPU may cost on another. Measure each one alone.
# - A kernel that knows its sizes needs no addresses, and its sums stay in registers; in the end register banks decide.
# - When all instructions are multiply-adds, fewer products are what is left: three for a pair in place of four.
# - No algorithm wins everywhere. Fewer operations are not less time, and a ratio is worth nothing without its shape.
#
# **Back:** [08 Resize](08_resize.ipynb). **Next:** [10 Profiling](10_profiling.ipynb).
