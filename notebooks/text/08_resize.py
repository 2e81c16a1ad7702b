# %% [markdown]
# # 08 Resize
#
# Cameras give pictures of one size, networks want another. Between them stands a small program that everybody writes once and nearly everybody gets a little wrong: a picture that has moved by half a pixel, a dark line along its edge, boxes that do not fit their objects. This chapter writes it so that its pixels are OpenCV's, finds the mistakes in a first attempt with a trace, and then makes it as fast as memory.
#
# **After this chapter you will be able to**
#
# - compute where in the source a pixel of the target lies, and say what goes wrong without the half in the formula;
# - write kernels that resize to the nearest pixel and bilinearly, and a letterbox with the channels exchanged on the way;
# - find what is wrong with a resized picture that looks right: by a trace, and by a map of errors;
# - map boxes from a picture to its letterbox and back;
# - move pixels of three bytes without wasting half of what memory gives;
# - count the bytes that a resize must move at least, and judge a kernel's time by them.
#
# **You need** [01 Threads and blocks](01_threads_and_blocks.ipynb) and, for the last third, [03 Shared memory](03_shared_memory.ipynb). No GPU.
#
# **Time:** 75 minutes.

# %%
import itertools
import math
import warnings
from functools import partial

import cv2
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data
from matplotlib.patches import Rectangle

import gpukit
from gpukit import cuda, device, on_gpu, plot, resize, results, show, timing
from gpukit.intrinsics import load4, store4
from gpukit.resize import fast, ladder, sampling
from gpukit.results import by_variant

# Numba warns of grids that are too small for a GPU, and of NumPy arrays in a launch: both are on purpose here.
warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")
print("kernels run on:", device.info().name)

# %% [markdown]
# The photograph is the one of the first page: Grace Hopper, who wrote one of the first compilers. It comes with matplotlib and is in the public domain. OpenCV keeps the channels of a pixel in the order blue, green, red, and so will we; a network, and matplotlib, want red first.

# %%
with get_sample_data("grace_hopper.jpg") as file:
    photo = np.ascontiguousarray(plt.imread(file)[..., ::-1])  # blue, green, red

rows, columns, channels = photo.shape
print(f"{rows} rows, {columns} columns, {channels} channels of {photo.dtype}: {photo.nbytes:,} bytes")


def rgb(image):
    """For matplotlib."""
    return np.ascontiguousarray(image[..., ::-1])


# %% [markdown]
# ## Where does a pixel lie?
#
# A pixel is not a point but a little square. Pixel 0 reaches from 0 to 1, so its **centre is at one half**, the centre of pixel x at x + 0.5. If n pixels become `size` pixels, both rows of squares cover the same length. Scale the centre of a target pixel to the length of the source, and take off the half again, to count in source pixels:
#
#     place = (x + 0.5) * n / size - 0.5
#
# Here 8 pixels become 5, and 3 become 7. An arrow goes from each target pixel to the place in the source that it asks for:

# %%
with plot.figure(size=(8, 4.2), rows=2, mark="places as computed") as axes:
    for ax, (n, size) in zip(axes, ((8, 5), (3, 7)), strict=True):
        for count, level, color in ((n, 0, plot.PALETTE[0]), (size, 1.6, plot.PALETTE[1])):
            step = n / count
            for i in range(count):
                ax.add_patch(Rectangle((i * step, level), step, 0.5, facecolor=color, edgecolor="white"))
                ax.text((i + 0.5) * step, level + 0.25, i, ha="center", va="center")
        for x in range(size):
            place = (x + 0.5) * n / size - 0.5
            ax.annotate("", (place + 0.5, 0.5), ((x + 0.5) * n / size, 1.6), arrowprops={"arrowstyle": "->"})
            ax.text(place + 0.5, -0.12, f"{place:.2f}", ha="center", va="top", fontsize=8)
        ax.set(xlim=(-0.05, n + 0.05), ylim=(-0.45, 2.15), title=f"{n} source pixels (below) become {size} (above)")
        ax.set_axis_off()

# %% [markdown]
# When a row grows, the outermost places lie *outside* of the first and last centre: the first of the lower picture is negative. There is no pixel on their other side, so the nearest one counts alone.
#
# **What if one leaves out the halves?** `place = x * n / size` looks simpler, and many programs have it. The specification of this chapter is a NumPy function with either formula. Each row and each column of the target is a mixture of two of the source, so that a resize is a product with a matrix from either side:


# %%
def shares(n, size, half=0.5):
    """(size, n): what share each of n pixels has in each of ``size``."""
    place = np.clip((np.arange(size) + half) * n / size - half, 0, n - 1)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(n)))


def specification(image, size, half=0.5):
    """Bilinear, in float64."""
    down, across = shares(image.shape[0], size[0], half), shares(image.shape[1], size[1], half)
    return np.einsum("yh,xw,hwc->yxc", down, across, image, optimize=True)


dots = np.zeros((9, 9, 3))
dots[::4, ::4] = 1
large = (144, 144)
versions = {"9 x 9 pixels": dots, "16 times as large": specification(dots, large)}
versions["without the halves"] = specification(dots, large, half=0)
with plot.figure(columns=3, size=(8, 3.1), mark="NumPy") as axes:
    for ax, (title, image) in zip(axes, versions.items(), strict=True):
        plot.image(image, title, ax=ax)
        middle = image.shape[0] / 2 - 0.5
        ax.axvline(middle, color="red", linewidth=0.7)
        ax.axhline(middle, color="red", linewidth=0.7)

# %% [markdown]
# At the right the whole picture has moved, up and to the left, by half a source pixel less half a target pixel: the cross no longer goes through the dot in the middle, and the last row and column are smeared along the edge. A detector that was trained with one formula and is used with the other finds its boxes next to the objects.

# %% [markdown]
# ## The nearest pixel
#
# The first rung of the ladder takes one source pixel for each target pixel and mixes nothing. Every thread has one pixel of the target, and handles its three channels. The channels are exchanged on the way: that costs nothing, since every value is moved anyway.

# %%
show.source(ladder.nearest)

# %% [markdown]
# The kernel takes the pixel under the *corner* of the target pixel, not under its centre, and it computes the scale in float64: both as OpenCV's `INTER_NEAREST` does, so that every pixel is equal. (OpenCV has a second mode, `INTER_NEAREST_EXACT`, which takes the centre.)
#
# The `while` loop is for batches: the kernel takes an array of frames, one layer of the grid for each.


# %%
def by_rung(name, image, size, **options):
    """What a kernel of the ladder makes of one image."""
    out = np.full((1, *size, 3), 77, image.dtype)
    launch, arguments = ladder.rung(name, np.ascontiguousarray(image)[None], out, **options)
    launch(*arguments)
    return out[0]


size = (240, 300)
got = by_rung("nearest", photo, size, swap_rb=True)
expected = cv2.resize(photo, size[::-1], interpolation=cv2.INTER_NEAREST)[..., ::-1]
print("equal to OpenCV in every pixel:", np.array_equal(got, expected))

# %% [markdown]
# ## Bilinear
#
# A place between pixels is between *four* of them: two rows, two columns. Lay a square the size of a pixel around the place. It covers a part of each of the four, and the areas of these parts are the weights: they add up to 1, and the closer a pixel is, the more of it is covered.

# %%
x, y = 0.7, 0.4  # the place, counted from the centre of the upper left pixel
upper = ((x, y), (1 - x, 1 - y)), ((1, y), (x, 1 - y))  # where the parts begin, how large they are
lower = ((x, 1), (1 - x, y)), ((1, 1), (x, y))
with plot.figure(size=(4.6, 4.0), mark="areas as computed") as ax:
    for (corner, extent), color in zip(upper + lower, plot.PALETTE, strict=False):
        cell = (corner[0] // 1, corner[1] // 1)
        ax.add_patch(Rectangle(cell, 1, 1, facecolor=color, alpha=0.25, edgecolor="gray"))
        ax.add_patch(Rectangle(corner, *extent, facecolor=color, edgecolor="white"))
        middle = corner[0] + extent[0] / 2, corner[1] + extent[1] / 2
        ax.text(*middle, f"{extent[0] * extent[1]:.2f}", ha="center", va="center")
        ax.plot(cell[0] + 0.5, cell[1] + 0.5, "o", color="gray", markersize=4)
    ax.plot(x + 0.5, y + 0.5, "k+", markersize=14)
    ax.set(xlim=(-0.05, 2.05), ylim=(2.05, -0.05), aspect="equal", title="four pixels, a place (+), and its weights")
    ax.set_axis_off()

# %% [markdown]
# Weights are products of two shares, one for each direction. The share comes from the place, and a place is a fraction with the denominator 2 size. The device function computes it with whole numbers. In float32 it would be off by a ten thousandth of a pixel at the far end of a wide frame, enough to give another byte here and there:

# %%
show.source(sampling.neighbours, sampling.mix_floats)

# %%
show.source(ladder.sample, ladder.bilinear)

# %% [markdown]
# For float32 that is all. Checked against the specification:

# %%
image = photo.astype(np.float32) / 255
for size in ((240, 300), (777, 1001), (1, 1), (600, 1)):
    error = np.abs(by_rung("bilinear", image, size) - specification(image, size)).max()
    print(f"to {size}: the largest error is {error:.1e}")

# %% [markdown]
# **Bytes are another matter.** OpenCV does not compute them in floats at all, but with whole numbers: shares in 2048ths, and after each step some bits are shifted out. Who computes in float32 and rounds at the end is closer to the truth, and has another byte than OpenCV in about one of eight places. A network does not care; a test that compares two programs does. So `mix_bytes` takes OpenCV's steps one by one, and `mix` calls it for integers and `mix_floats` for floats, by the types for which a kernel is compiled:

# %%
show.source(sampling.mix_bytes)


# %%
def levels(got, expected):
    """How many values differ by 0, 1, 2 ... levels of 255."""
    return np.bincount(np.abs(got.astype(int) - expected).reshape(-1))


for size in ((240, 300), (777, 1001)):
    expected = cv2.resize(photo, size[::-1])
    in_floats = np.round(by_rung("bilinear", photo.astype(np.float32), size)).astype(np.uint8)
    for name, got in (("mix_bytes", by_rung("bilinear", photo, size)), ("float32, rounded", in_floats)):
        counts = levels(got, expected)
        equal = counts[0] / counts.sum()
        print(f"to {size}, {name:16}: {equal:8.3%} equal to OpenCV's, at most {len(counts) - 1} apart")

# %% [markdown]
# Why not all? OpenCV computes its places in float32. At a few of them its share is rounded to the next 2048th.
#
# Now look closely. An eye, enlarged to eight times its size:

# %%
eye = photo[178:210, 212:252]
large = (8 * eye.shape[0], 8 * eye.shape[1])
with plot.figure(columns=2, size=(8, 3.4)) as axes:
    for ax, name in zip(axes, ("nearest", "bilinear"), strict=True):
        plot.image(by_rung(name, eye, large, swap_rb=True), name, ax=ax)

# %% [markdown]
# ## A first attempt, and what is wrong with it
#
# The kernel of the documents looks much simpler than all this. Here is one like it, with the same habits. Read it, and find what is wrong before you go on. There are at least three mistakes.


# %%
@cuda.jit
def first_attempt(image, out, down, across):
    x, y = cuda.grid(2)
    place_y, place_x = (y + 0.5) * down - 0.5, (x + 0.5) * across - 0.5
    row, col = int(math.floor(place_y)), int(math.floor(place_x))
    if row >= 0 and col >= 0 and row < image.shape[0] and col < image.shape[1]:
        low, right = place_y - row, place_x - col
        for channel in range(3):
            value = (1 - low) * (1 - right) * image[row, col, channel]
            value += (1 - low) * right * image[row, col + 1, channel]
            value += low * (1 - right) * image[row + 1, col, channel]
            value += low * right * image[row + 1, col + 1, channel]
            out[y, x, 2 - channel] = value


small = np.ascontiguousarray(photo[150:230:2, 205:325:2])
size = (100, 150)
out = np.zeros((*size, 3), np.uint8)
block = (16, 16)
grid = (math.ceil(size[1] / block[0]), math.ceil(size[0] / block[1]))
trace = gpukit.trace(first_attempt[grid, block], small, out, small.shape[0] / size[0], small.shape[1] / size[1])
plot.image(out, f"{small.shape[1]} x {small.shape[0]} pixels become {size[1]} x {size[0]}: nearly right");

# %% [markdown]
# The trace has more to say about it than the picture:

# %%
for finding in trace.findings:
    print(f"{finding.kind}: {finding.code}")
    print(f"    {finding.message}")
written = next(c for c in trace.coverage if c.array == "out")
print(f"\n{written.written:,} of {written.elements:,} elements of out were written")
wide = sum(o.fp64 + o.fp64_conversions for o in trace.operations)
print(f"{wide:,} operations on float64 or between it and other types")

# %% [markdown]
# - **It reads past the end.** A place beyond the last centre has a `row + 1` that does not exist. In the last column the next element is the first of the next row, so a GPU reads a wrong but harmless value there; in the last row it reads behind the image.
# - **It writes past the end.** The target is not a multiple of the block, and no guard sends the threads home that have no pixel. Those at the right edge write into the next row, where another thread has its pixel; those at the bottom write behind the array.
# - **It leaves the first row and column as they were.** Where a picture grows, their places are below 0, and the `if` skips them. Whoever allocates the target with zeros gets a black line, and nobody sees a line one pixel wide.
# - **Every product is in float64**, because the literals are: 0.5 is a float64, and so is all that it touches. On most GPUs that is 32 or 64 times slower.
#
# A map of errors against OpenCV shows where it hurts. It is the first picture to draw for any program that makes pictures. Here is the lower left corner of it:

# %%
expected = cv2.resize(small, size[::-1])[..., ::-1]
mended = by_rung("bilinear", small, size, swap_rb=True)
with plot.figure(columns=2, size=(8, 3.2)) as axes:
    for ax, (title, got) in zip(axes, {"first attempt": out, "ladder.bilinear": mended}.items(), strict=True):
        error = np.abs(got.astype(int) - expected).max(axis=2)
        shown = ax.imshow(error[-40:, :60], vmin=0, vmax=8, cmap="magma")
        ax.set(title=f"{title}: at most {error.max()} levels off", xticks=[], yticks=[])
    plt.gcf().colorbar(shown, ax=axes, label="levels, 8 and more", shrink=0.8)

# %% [markdown]
# The bright lines are what the mistakes do: the first column was never written, the last row was mixed with what lies behind the image. (The trace leaves out what it must not read, so there the value is 0; a GPU would read whatever is there.) The speckles inside are one level: the attempt cuts off the fraction where it should round. At the right is the kernel from above on the same scale. Its trace:

# %%
again = np.zeros((1, *size, 3), np.uint8)
launch, arguments = ladder.rung("bilinear", small[None], again, swap_rb=True)
trace = gpukit.trace(launch, *arguments)
written = next(c for c in trace.coverage if c.array == "out")
wide = sum(o.fp64 + o.fp64_conversions for o in trace.operations)
print(f"findings: {trace.findings}, {wide} operations in float64")
print(f"{written.written:,} of {written.elements:,} elements of out were written")

# %% [markdown]
# ## Letterbox
#
# A network wants a square, and a picture is none. Stretched to a square, a round face becomes an egg. So both directions get *one* scale, the largest with which the picture fits, and the rest is filled with a border: a **letterbox**.
#
# Two rungs of the ladder: with the picture in the corner, then in the middle. The second differs by a shift, and by a trick in its guard: what lies above or to the left of the picture would have a negative row or column; without a sign it wraps round to a huge number, and one comparison finds both sides.

# %%
show.source(ladder.letterbox_centred)

# %%
target = (320, 448)
stretched = by_rung("bilinear", photo, target, swap_rb=True)
corner = by_rung("letterbox_corner", photo, target, fill=114, swap_rb=True)
centred = by_rung("letterbox_centred", photo, target, fill=114, swap_rb=True)
with plot.figure(columns=3, size=(8, 2.4)) as axes:
    pictures = {"bilinear": stretched, "letterbox_corner": corner, "letterbox_centred": centred}
    for ax, (title, image) in zip(axes, pictures.items(), strict=True):
        plot.image(image, title, ax=ax)

place = resize.placement(photo.shape[:2], target)
inner = cv2.resize(photo, (place.width, place.height))
right, below = target[1] - place.left - place.width, target[0] - place.top - place.height
expected = cv2.copyMakeBorder(inner, place.top, below, place.left, right, cv2.BORDER_CONSTANT, value=(114,) * 3)
counts = levels(centred, expected[..., ::-1])
print(f"{counts[0] / counts.sum():.3%} equal to cv2.resize and cv2.copyMakeBorder, at most {len(counts) - 1} apart")

# %% [markdown]
# **There and back.** A detector answers in coordinates of the letterbox; its user wants those of the picture. `placement` says where the picture went, and maps points and boxes both ways. A coordinate is a place on the edges of the pixels, as in a detector's boxes: the picture reaches from 0 to its width.

# %%
box = np.array([175, 55, 375, 315])  # left, top, right, bottom
there = place.to_target(box)
print("scale", round(place.scale, 4), " size", (place.height, place.width), " offset", (place.top, place.left))
print("in the picture", box, "-> in the letterbox", there.round(1), "-> and back", place.to_source(there).round(9))

with plot.figure(columns=2, size=(7, 3.4)) as axes:
    for ax, image, (left, top, right, bottom) in zip(axes, (rgb(photo), centred), (box, there), strict=True):
        plot.image(image, f"{image.shape[1]} x {image.shape[0]}", ax=ax)
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, edgecolor="yellow"))

# %% [markdown]
# ## What bilinear cannot do
#
# A ring pattern whose rings grow finer towards the edge is called a **zone plate**, and it is merciless. Here is one, and what becomes of it at a third of the size:

# %%
n = 330
y, x = np.mgrid[:n, :n] - (n - 1) / 2
grey = 127.5 + 127.5 * np.cos(np.pi * (x**2 + y**2) / (1.5 * n))
zone = np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
size = (n // 3, n // 3)
thirds = {
    "the source": zone,
    "nearest": by_rung("nearest", zone, size),
    "bilinear": by_rung("bilinear", zone, size),
    "mean of 3 x 3 (OpenCV, INTER_AREA)": cv2.resize(zone, size, interpolation=cv2.INTER_AREA),
}
with plot.figure(rows=2, columns=2, size=(5.6, 5.9)) as axes:
    for ax, (title, image) in zip(axes.flat, thirds.items(), strict=True):
        plot.image(image, title, ax=ax)

# %% [markdown]
# The rings that stand around the centre like moons are not in the source. Rings finer than two pixels of the target cannot be shown there; instead of vanishing they come back as coarse ones. That is **aliasing**. Bilinear mixing does little against it: it mixes *four* pixels whatever the scale, and at a third of the size there are nine for each target pixel. It was made for enlarging. To shrink by much, take the mean of all that a target pixel covers, or shrink by half several times.
#
# OpenCV, PyTorch and nearly every detector shrink bilinearly all the same, because it is fast. Remember the four of nine: it will tell us how fast.

# %% [markdown]
# ## Pixels of three bytes
#
# Now to speed. A warp reads memory in sectors of 32 bytes ([02](02_matmul.ipynb)), and a pixel has three. Three ways to exchange the channels of an image, without any resize, so that nothing else is in the way: a thread for each pixel, for each channel, and for each four bytes.


# %%
@cuda.jit
def thread_per_pixel(image, out):
    i = cuda.grid(1)
    if i < out.size // 3:
        for channel in range(3):
            out[3 * i + channel] = image[3 * i + 2 - channel]


@cuda.jit
def thread_per_channel(image, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = image[i + 2 - 2 * (i % 3)]


@cuda.jit
def thread_per_four(image, out):
    """Blocks of 96 threads: 384 bytes, 128 pixels, pass through shared memory."""
    stage = cuda.shared.array(384, np.uint8, alignment=8)
    b = 4 * cuda.threadIdx.x
    first = 384 * cuda.blockIdx.x + b
    if first < image.size:
        v = load4(image, first)
        store4(stage, b, v[0], v[1], v[2], v[3])
    cuda.syncthreads()
    if first < image.size:
        p, q = stage[b + 2 - 2 * (b % 3)], stage[b + 3 - 2 * ((b + 1) % 3)]
        r, s = stage[b + 4 - 2 * ((b + 2) % 3)], stage[b + 5 - 2 * ((b + 3) % 3)]
        store4(out, first, p, q, r, s)


flat = np.ascontiguousarray(photo[:96]).reshape(-1)
print(f"{'':20}{'requests':>10}{'sectors':>9}{'at best':>9}{'bytes per sector used':>24}")
for kernel, threads, block in (
    (thread_per_pixel, flat.size // 3, 256),
    (thread_per_channel, flat.size, 256),
    (thread_per_four, flat.size // 4, 96),
):
    out = np.zeros_like(flat)
    trace = gpukit.trace(kernel[math.ceil(threads / block), block], flat, out)
    assert np.array_equal(out.reshape(-1, 3), flat.reshape(-1, 3)[:, ::-1])
    total = trace.total("global")
    used = 2 * flat.size / total.sectors
    print(f"{kernel.py_func.__name__:20}{total.requests:10,}{total.sectors:9,}{2 * flat.size // 32:9,}{used:24.1f}")

# %% [markdown]
# With a thread for each pixel, a request of a warp takes every third byte of 96: three sectors for 32 bytes. The next two requests come back for the rest. The sectors are in the cache by then, so memory itself is not read three times; but the cache has to give three times as much as is used. With a thread for each channel the 32 bytes of a store are one sector; those of a load reach across its ends, as pixels do. With four bytes at a time every sector is moved once, by a quarter of the requests.

# %%
gpukit.trace(thread_per_pixel[1, 64], flat[:192], np.zeros(192, np.uint8)).plot_sectors(array="image");

# %% [markdown]
# In a resize, the bytes that a thread reads depend on the scale; but what it writes does not. Two ways are open. If the result has whole pixels, the lanes of a warp give each other their values through shared memory, as above. If it has **planes**, one for each channel, neighbours of a plane are neighbours in memory anyway.

# %% [markdown]
# ## The bytes that must move
#
# What a network wants is the letterbox with `(value - mean) * factor` of each value, in float32, in planes. The top rung of the ladder, `letterbox_planes`, does all of it in one kernel. How fast can that be? At least these bytes must move: every sector of the source that holds a byte with a share in the result, and every byte of the result.
#
# A frame of 1080 by 1920 in a target of 640 by 640 is shrunk by exactly 3. The formula then says `place = 3 * x + 1`, exactly on a pixel, and the other three of the four have a weight of 0. So two thirds of the *rows* need not be read at all. (Two thirds of the columns need not either, but their bytes are in the same sectors.)

# %%
source, target = (1080, 1920), (640, 640)
for size in (source, (720, 1280), (1000, 1777)):
    place = resize.placement(size, target)
    moved, whole = resize.least_bytes(1, size, target, place), 3 * math.prod(size) + 12 * math.prod(target)
    print(f"{size} to {place.height} x {place.width}: {moved / 1e6:5.2f} MB of {whole / 1e6:5.2f} MB must move")

# %% [markdown]
# The kernel that `resize.blob` launches makes the same planes as the top rung, with five changes:
#
# 1. **Rows without a share are not read.** The share of a row is the same for a whole warp, so the `if` costs next to nothing.
# 2. **Places are computed once**: those of a row by one thread, for the whole block, in shared memory; those of a column by a thread for all the rows that it goes through.
# 3. **Four neighbours for each thread**, so that a store is of 128 bits, and what must be done once for a row is done by a quarter of the threads.
# 4. **Words in place of bytes.** A pixel and its right neighbour are 6 bytes, which lie in 2 or 3 words. Two shifts bring them to the front, `byte_perm` pairs the two values of each channel, and `dp2a` mixes such a pair in one instruction: two products and their sum. A word in which nothing has a share is not loaded.
# 5. **Indices without a sign**: `uint32` and `uint64`. Numba checks every signed index for being negative, and counts from the end if it is.
#
# Images are one flat array for it, and the place of a pixel is one number: so rows may be any way apart, and frames of any size can share a launch.

# %%
show.source(fast.make_planes)

# %%
show.source(fast.make_four_pixels, fast.make_fill_rows)

# %%
show.source(sampling.column_of_words, sampling.words_across, sampling.one_row_of_words)

# %% [markdown]
# The trace counts what this does to memory. Both kernels make the same planes of the same frame:

# %%
frame = cuda.to_device(np.random.default_rng(0).integers(0, 256, (1, 576, 1024, 3), np.uint8))
planes = cuda.device_array((1, 3, 384, 384), np.float32)
print(f"{'for 32 pixels':18}{'load requests':>14}{'sectors read':>14}{'store requests':>16}{'sectors written':>17}")
blobs = []
for name in ("letterbox_planes", "planes"):
    launch, arguments = ladder.rung(name, frame, planes, fill=114, mean=120, factor=1 / 60)
    trace = gpukit.trace(launch, *arguments)
    blobs.append(planes.copy_to_host())
    loads, stores, groups = trace.total("global", "load"), trace.total("global", "store"), planes.size / 96
    counts = (loads.requests, 14), (loads.sectors, 14), (stores.requests, 16), (stores.sectors, 17)
    print(f"{name:18}" + "".join(f"{count / groups:{width}.2f}" for count, width in counts))
print("equal in every bit:", np.array_equal(*blobs))

# %% [markdown]
# A third of the load requests, a quarter of the stores. Only the sectors that are read seem to speak against it: with four neighbours for a thread, the lanes of a warp are four times as far apart, and each of their loads reaches over more sectors. It is the cache that gives them, though; memory gives each sector once. For frames of float32, whose pixels are four times as large, the balance is another: there the four pixels of a thread are 32 apart.

# %% [markdown]
# ## How fast
#
# 32 frames of 1080 by 1920 become planes of 640 by 640, normalised, with a cold cache, in turns. gpukit and the copy are measured here if there is a GPU; the libraries stand in the record, which was made in one run. "torch interpolate" is PyTorch with functions as lean as they can be put together, and "torch compiled" what `torch.compile` makes of the same work; torchvision and CuPy have a function of their own for the resize. OpenCV works on the host, with a frame for each core. The copy reads and writes as many bytes as must move here: no kernel that does the work can be much faster.

# %%
shape, target = (32, 1080, 1920, 3), (640, 640)
moved = resize.least_bytes(shape[0], shape[1:3], target, resize.placement(shape[1:3], target))
recorded = results.load("resize-h200")
where = mark = f"{results.taken_on(recorded)} ({recorded[0]['cores']} cores)"
seconds = by_variant(recorded, case="blob", dtype="float32", shape=shape)
if on_gpu():
    frames = cuda.to_device(np.random.default_rng(8).integers(0, 256, shape, np.uint8))
    planes = cuda.device_array((shape[0], 3, *target), np.float32)
    options = {"mean": 120, "factor": 1 / 60, "fill": 114, "swap_rb": True}
    launch, arguments = ladder.rung("letterbox_planes", frames, planes, **options)
    halves = [cuda.device_array(moved // 2, np.uint8) for _ in range(2)]
    functions = {
        "copy": partial(halves[0].copy_to_device, halves[1]),
        "blob": partial(resize.blob, frames, target, out=planes, **options),
        "letterbox_planes": partial(launch, *arguments),
    }
    seconds |= {name: timed.median for name, timed in timing.bench_many(functions, min_time=0.05).items()}
    mark = f"{device.info().name}; libraries: {where}"

ours = [name for name in ("copy", "blob", "letterbox_planes") if name in seconds]
order = ours + sorted((name for name in seconds if name not in ours), key=seconds.get)
with plot.figure(size=(8, 3.4), mark=mark) as ax:
    colors = [plot.PALETTE[7 if name == "copy" else 5 if name in ours else 1] for name in order]
    bars = ax.barh(order, [1e6 * seconds[name] for name in order], color=colors)
    texts = [f"{1e6 * seconds[name]:,.0f} us, {1e-9 * moved / seconds[name]:,.0f} GB/s" for name in order]
    ax.bar_label(bars, texts, padding=3)
    ax.invert_yaxis()
    ax.set(xscale="log", xlim=(20, 20 * max(1e6 * s for s in seconds.values())), xlabel="us for 32 frames")
    ax.set(title="A copy (gray), gpukit (blue), libraries (orange); GB/s of the bytes that must move")
print(f"blob has {seconds['copy'] / seconds['blob']:.0%} of the speed of the copy")

# %% [markdown]
# Other batches, other results. Each line has its own copy to be compared with, since other bytes must move.

# %%
OURS = {"blob", "letterbox", "resize", "resize, bilinear", "resize, nearest"}
KINDS = {
    ("blob", "float32"): "letterbox, normalised, float32 planes",
    ("blob", "float16"): "letterbox, normalised, float16 planes",
    ("letterbox", "uint8"): "letterbox, bytes",
    ("bilinear", "uint8"): "bilinear, bytes",
    ("nearest", "uint8"): "nearest, bytes",
    ("resize floats", "float32"): "bilinear, float32 pixels",
}


def line(case, dtype, frames):
    """A line of a table: gpukit's record, the copy's, and that of the fastest library, of those that there are."""
    found = [r for r in recorded if (r["case"], r["dtype"], r["shape"][0]) == (case, dtype, frames)]
    own = min((r for r in found if r["variant"] in OURS), key=lambda r: r["value"], default=None)
    others = (r for r in found if r["variant"].startswith(("torch", "cupyx", "opencv")))
    theirs = min(others, key=lambda r: r["value"], default={})
    copy = next((r["value"] for r in found if r["variant"] == "copy"), None)
    return {"case": case, "dtype": dtype, "frames": frames, "own": own, "copy": copy, "theirs": theirs}


def microseconds(seconds):
    return None if seconds is None else f"{1e6 * seconds:,.1f}"


LIBRARY = {
    "fastest library, us": lambda r: microseconds(r["theirs"].get("value")),
    "which": lambda r: r["theirs"].get("variant"),
    "ratio": lambda r: f"{r['theirs']['value'] / r['own']['value']:.2f}" if r["theirs"] else None,
}
print(where)
results.table(
    [row for kind in KINDS for frames in (1, 32, 256) if (row := line(*kind, frames))["own"]],
    {
        "result": lambda r: KINDS[r["case"], r["dtype"]],
        "frames": "frames",
        "gpukit, us": lambda r: microseconds(r["own"]["value"]),
        "of a copy's speed": lambda r: r["copy"] and f"{r['copy'] / r['own']['value']:.0%}",
        **LIBRARY,
    },
)

# %% [markdown]
# Pixels of float32 have a kernel of their own. Values of four bytes fill whole sectors if a thread has one of them each; so there is no need for words, nor for shared memory:

# %%
show.source(fast.make_values)

# %% [markdown]
# A single frame is so little work that the *launch* decides. These are times by the host's clock, of calls in a row: from a call until its result is there, and the part of it for which the host is busy. `blob` looks up what it launched for arrays like these before, and makes one launch; PyTorch makes one for each step.

# %%
CALLS = {
    ("blob, call and wait", 1): "1 frame, call and wait",
    ("blob, host", 1): "1 frame, the host's part",
    ("many sizes", 64): "64 cuts of many sizes, on the device",
    ("many sizes, call and wait", 64): "64 cuts of many sizes, call and wait",
}
print(where)
results.table(
    [row for case, frames in CALLS if (row := line(case, "float32", frames))["own"]],
    {
        "what": lambda r: CALLS[r["case"], r["frames"]],
        "gpukit, us": lambda r: microseconds(r["own"]["value"]),
        **LIBRARY,
    },
)

# %% [markdown]
# ## Frames of many sizes, and videos
#
# `resize`, `letterbox` and `blob` also take a list of images that differ in size: the faces that a detector found in a frame for example, which the next network wants at one size. All go in one launch. On a GPU cuts of a frame that is there already are read where they lie; rows need not follow one another.

# %%
cuts = [photo[40:296, 140:396], photo[160:230, 205:345], photo[0:300, 0:180], photo[455:505, 310:445]]
found = resize.letterbox(cuts, (160, 160), fill=114)
with plot.figure(columns=4, size=(8, 2.4)) as axes:
    for ax, image, cut, scale in zip(axes, found.image, cuts, found.scale, strict=True):
        plot.image(image, f"{cut.shape[1]} x {cut.shape[0]}, scale {scale:.2f}", ax=ax)

# %% [markdown]
# A **video** has one frame after another. A frame passes three places: the way to the device, the kernel, and whoever uses the result. `resize.video` keeps several frames under way, each with a stream of its own, so that all three places work at a time ([06](06_streams.ipynb)). Frames must lie in pinned memory for their copies to overlap with anything; a decoder can write them there, otherwise threads copy them.

# %%
pan = (photo[y : y + 270, 16 : 16 + 480] for y in range(0, 330, 30))
for number, result in enumerate(resize.video(pan, (128, 128), mean=127.5, factor=1 / 127.5, fill=114)):
    if number % 5 == 0:
        planes = result.image.copy_to_host()
        print(f"frame {number:2}: {planes.dtype} {planes.shape}, from {planes.min():+.2f} to {planes.max():+.2f}")

# %% [markdown]
# How many frames that are per second, beside OpenCV on the host. The dashed line is the rate of the copies alone, one frame at a time: it is the bus that limits a video. With several frames under way there is less of a pause between two copies, so a video may come out a little above the line. A frame that is not pinned has to be read and written once more on the way.

# %%
rates = {}
for record in recorded:
    if record["case"] == "video":
        name = record["variant"].removeprefix("video, ")
        rates[f"{name}, depth {record['depth']}" if "depth" in record else name] = 1 / record["value"]


def frames_per_second(frames, depth, count=300):
    source = itertools.islice(itertools.cycle(frames), count + 2 * depth)
    video = resize.video(source, (640, 640), depth=depth)
    for _ in range(2 * depth):
        next(video)  # now its memory and its streams are there
    with timing.Timer(unit="s", show=False) as timer:
        for _ in video:
            pass
        cuda.synchronize()
    return count / timer.elapsed


if on_gpu():
    pinned = [cuda.pinned_array((1080, 1920, 3), np.uint8) for _ in range(16)]
    for frame in pinned:
        frame[...] = np.random.default_rng(8).integers(0, 256, frame.shape, np.uint8)
    for name, frames in (("pinned frames", pinned), ("plain frames", [frame.copy() for frame in pinned])):
        for depth in (1, 4, 8):
            rates[f"{name}, depth {depth}"] = np.median([frames_per_second(frames, depth) for _ in range(3)])
    on_device = cuda.to_device(pinned[0])
    rates["copy to the device"] = timing.bench(partial(on_device.copy_to_device, pinned[0])).rate(1)

limit = rates.pop("copy to the device", None)
with plot.figure(size=(8, 2.9), mark=mark) as ax:  # OpenCV stands in the record
    colors = [plot.PALETTE[1 if name.startswith("opencv") else 5] for name in rates]
    ax.bar_label(ax.barh(list(rates), list(rates.values()), color=colors), fmt="{:,.0f}", padding=3)
    if limit:
        ax.axvline(limit, color="gray", linestyle="--")
    ax.invert_yaxis()
    ax.set(xlabel="frames per second", title="1080 x 1920 to planes of 640 x 640: resize.video (blue), OpenCV (orange)")
    ax.margins(x=0.1)

# %% [markdown]
# ## What goes wrong
#
# **The half is missing**, in one of two programs: boxes beside their objects. **The scale is rounded twice**: a box is mapped back with the scale, but the picture was resized to whole pixels. `placement` uses the sizes.
#
# **The wrong order of channels**: a network that was trained with red first sees a blue face, and is a little worse, nothing more. Nothing fails. The same goes for a mean that is meant for values from 0 to 1.
#
# **A border that is not normalised.** The border, too, must pass through `(value - mean) * factor`, or the network sees edges.
#
# **A view taken for an image.** Half of an array is not contiguous; a kernel that takes its rows to follow one another shears the picture:

# %%
half = photo[:, :300]  # rows of 300 pixels, 512 apart
sheared = photo.reshape(-1)[: half.size].reshape(half.shape)  # what a kernel sees that knows the size alone
with plot.figure(columns=2, size=(6, 3.4)) as axes:
    plot.image(rgb(sheared), "taken to be contiguous", ax=axes[0])
    plot.image(resize.letterbox(half, (300, 150)).image, "resize.letterbox", ax=axes[1])

# %% [markdown]
# ## Exercises
#
# **1. By hand.** 6 pixels become 4. Compute the places of the four, and the two shares of pixel 1 of the target.

# %%
my_places, my_shares = [0, 0, 0, 0], [0, 0]  # your numbers
places = [(x + 0.5) * 6 / 4 - 0.5 for x in range(4)]
print("places:", "right" if np.allclose(my_places, places) else "not yet")
print("shares:", "right" if np.allclose(my_shares, shares(6, 4)[1][np.flatnonzero(shares(6, 4)[1])]) else "not yet")

# %% [markdown]
# **2. The mean of nine.** Write a kernel that reduces by 3 with the mean of all nine pixels, rounded to the nearest. One thread for each pixel, any channels, any size that is a multiple of 3. How many bytes must it move?


# %%
@cuda.jit
def mean_of_nine(image, out):
    x, y = cuda.grid(2)
    if x < out.shape[1] and y < out.shape[0]:
        for channel in range(out.shape[2]):
            out[y, x, channel] = image[3 * y + 1, 3 * x + 1, channel]  # your kernel


for rows, columns in ((3, 3), (99, 132), (330, 330)):
    image = np.random.default_rng(rows).integers(0, 256, (rows, columns, 3), np.uint8)
    out = np.full((rows // 3, columns // 3, 3), 77, np.uint8)
    grid = math.ceil(out.shape[1] / 16), math.ceil(out.shape[0] / 16)
    trace = gpukit.trace(mean_of_nine[grid, (16, 16)], image, out)
    nine = image.reshape(rows // 3, 3, columns // 3, 3, 3).mean(axis=(1, 3))
    right = np.abs(out - nine).max() <= 0.5 and not trace.findings
    print(f"{rows} x {columns}:", "right" if right else "not yet")

# %% [markdown]
# **3. Mend it yourself.** Give `first_attempt` a guard, clamp its rows and columns, and let it round, all in float32. Draw the error map again until it is dark.

# %% [markdown]
# ## Key points
#
# - The centre of pixel x is at x + 0.5. Whoever leaves out the halves moves the picture.
# - Bilinear mixes four pixels whatever the scale. It enlarges well; it reduces with aliasing.
# - An error map against a reference and a trace find what the eye passes over: a missing line, a read past the end.
# - A letterbox has one scale and two offsets. Map boxes with the sizes, not with the scale alone.
# - Values of three bytes: let a warp move whole sectors, through shared memory or in planes.
# - Count the bytes that must move before you call a kernel fast or slow. What has no share need not be read.
# - A single frame is as fast as its launches are few.
#
# **Back:** [07 Reduce](07_reduce.ipynb). **Next:** [09 Convolution](09_convolution.ipynb).
