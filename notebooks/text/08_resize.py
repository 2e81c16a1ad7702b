# %% [markdown]
# # 08 Resize
#
# Cameras deliver images of one size, networks want another. The small program in between is one that everybody writes once and nearly everybody gets slightly wrong: an image that has moved by half a pixel, a dark line along its edge, boxes that miss their objects. How do you get it right, to the byte that OpenCV computes, and how fast can it be?
#
# **After this chapter you will be able to**
#
# - compute where in the source a pixel of the target lies, and say what goes wrong without the half in the formula;
# - write kernels that resize bilinearly and letterbox an image, with its channels exchanged on the way;
# - find what is wrong with a resized image that looks right, by a trace and by an error map;
# - map boxes from an image to its letterbox and back;
# - move pixels of three bytes in whole sectors;
# - count the bytes that a resize must move at least, and judge a kernel's time by them.
#
# **You need** [01 Threads and blocks](01_threads_and_blocks.ipynb) and, for the second half, sectors from [02](02_matmul.ipynb) and [03 Shared memory](03_shared_memory.ipynb). No GPU.
#
# **Time:** 90 minutes.

# %%
import itertools
import math
import warnings
from functools import partial

import cv2
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

import gpukit
from gpukit import cuda, device, exercises, on_gpu, plot, resize, results, show, timing
from gpukit.intrinsics import load4, store4
from gpukit.resize import fast, ladder, sampling

warnings.filterwarnings("ignore", ".*(Grid size|Host array used)")  # small grids and NumPy arrays, on purpose

# %% [markdown]
# Here 32 camera frames of 1080 x 1920 become input for a network: each is resized to fit into a square, with a border around it, its values are normalised, and its channels are separated. The last line is a mere copy of as many bytes as the work has to move, so hardly any kernel can be faster:

# %%
recorded = results.load("resize-h200")
where = f"{results.taken_on(recorded)} ({recorded[0]['cores']} CPU cores)"
seconds = results.by_variant(recorded, case="blob", dtype="float32", shape=(32, 1080, 1920, 3))
for name in ("opencv, 16 cores", "torch interpolate", "torch compiled", "letterbox_planes", "blob", "copy"):
    print(f"{name:18} {seconds[name] * 1e6:10,.0f} us")
print(where)

# %% [markdown]
# `letterbox_planes` is a plain kernel with one pixel per thread. You will write its steps, and then see what makes `blob` so much faster.
#
# The examples use the photograph of [00](00_start.ipynb). OpenCV keeps the channels of a pixel in the order blue, green, red (BGR), and so will we; a network, and matplotlib, want red first (RGB).

# %%
photo = np.ascontiguousarray(plot.photograph()[..., ::-1])  # blue, green, red
print(f"{photo.shape[0]} rows, {photo.shape[1]} columns, {photo.shape[2]} channels of {photo.dtype}")


def rgb(image):
    """For matplotlib."""
    return np.ascontiguousarray(image[..., ::-1])


# %% [markdown]
# ## Where does a pixel lie?
#
# A pixel is not a point but a little square. Pixel 0 reaches from 0 to 1, so its **centre is at one half**, and the centre of pixel x is at x + 0.5. If n pixels become `size` pixels, both rows of squares cover the same length. Here 8 pixels become 5, and 3 become 7. An arrow points from each target pixel to its place in the source, counted in source pixels, so that the centre of pixel 0 is at place 0:

# %% jupyter={"source_hidden": true}
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
# **Your turn**: the formula behind these numbers.


# %%
def place(x, n, size):
    # About 1 line: where the centre of target pixel x lies, counted in source pixels
    ...


exercises.check("08-place", place)

# %% [markdown]
# When an image grows, the outermost places lie *outside* the first and last centre: the first of the lower row is negative. There is no pixel on their other side, so the nearest one counts alone.
#
# **What if you leave out the halves?** `x * n / size` looks simpler, and many programs use it. Each row and column of the target is a mixture of two of the source, so a resize is a product with a matrix from either side. That makes a short specification, with either formula:


# %%
def shares(n, size, half=0.5):
    """(size, n): the weight of each of n pixels in each of ``size``."""
    place = np.clip((np.arange(size) + half) * n / size - half, 0, n - 1)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(n)))


def specification(image, size, half=0.5):
    """Bilinear, in float64."""
    down, across = shares(image.shape[0], size[0], half), shares(image.shape[1], size[1], half)
    return np.einsum("yh,xw,hwc->yxc", down, across, image, optimize=True)


# %%
dots = np.zeros((9, 9, 3))
dots[::4, ::4] = 1
large = (144, 144)
versions = {"9 x 9 pixels": dots, "16 times as large": specification(dots, large)}
versions["without the halves"] = specification(dots, large, half=0)
with plot.figure(columns=3, size=(8, 3.1), mark="NumPy") as axes:
    for ax, (title, image) in zip(axes, versions.items(), strict=True):
        plot.image(image, title, ax=ax)
        ax.axvline(image.shape[0] / 2 - 0.5, color="red", linewidth=0.7)
        ax.axhline(image.shape[0] / 2 - 0.5, color="red", linewidth=0.7)

# %% [markdown]
# On the right, the whole image has moved up and to the left, by half a source pixel less half a target pixel: the red lines no longer cross at the centre of the middle dot, and the last row and column are smeared along the edge. A detector trained with one formula and used with the other puts its boxes beside the objects.
#
# ## The nearest pixel
#
# gpukit has a **ladder** of resize kernels, each a rung above the one before. The first takes one source pixel for each target pixel and mixes nothing. A thread handles the three channels of one target pixel. It exchanges the channels on the way, which is free: every value is moved anyway.

# %%
show.source(ladder.nearest)

# %% [markdown]
# The kernel takes the pixel under the *corner* of the target pixel, not under its centre, and computes the scale in float64. OpenCV's `INTER_NEAREST` does both, so every pixel is equal. (OpenCV also has `INTER_NEAREST_EXACT`, which takes the centre.) The `while` loop is for batches: each z of the grid takes one frame, and then further ones.


# %%
def by_rung(name, image, size, **options):
    """What a kernel of the ladder makes of one image."""
    out = np.full((1, *size, 3), 77, image.dtype)
    launch, arguments = ladder.rung(name, np.ascontiguousarray(image)[None], out, **options)
    launch(*arguments)
    return out[0]


size = (240, 300)
got = by_rung("nearest", photo, size, swap_rb=True)
expected = cv2.cvtColor(cv2.resize(photo, size[::-1], interpolation=cv2.INTER_NEAREST), cv2.COLOR_BGR2RGB)
print("equal to OpenCV in every pixel:", np.array_equal(got, expected))

# %% [markdown]
# ## Bilinear
#
# A place between pixels is between *four* of them: two rows, two columns. Lay a square the size of a pixel around the place. It covers a part of each of the four, and the areas of these parts are the weights. They add up to 1, and the closer a pixel is, the more of it is covered.

# %% jupyter={"source_hidden": true}
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
# A weight is the product of two shares, one for each direction: the upper right pixel here has 0.7 across and 0.6 down. Now read an attempt.
#
# ## A first attempt, and what is wrong with it
#
# This kernel makes the mistakes of the course notes. Read it, and find what is wrong before you run the trace. There are at least three mistakes.


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
size, block = (100, 150), (16, 16)
out = np.zeros((*size, 3), np.uint8)
grid = (math.ceil(size[1] / block[0]), math.ceil(size[0] / block[1]))
trace = gpukit.trace(first_attempt[grid, block], small, out, small.shape[0] / size[0], small.shape[1] / size[1])
plot.image(out, f"{small.shape[1]} x {small.shape[0]} pixels become {size[1]} x {size[0]}: nearly right");

# %% [markdown]
# The trace has more to say about it than the image:

# %% jupyter={"outputs_hidden": true}
for finding in trace.findings:
    print(f"{finding.kind}: {finding.code}")
    print(f"    {finding.message}")
written = next(c for c in trace.coverage if c.array == "out")
print(f"\n{written.written:,} of {written.elements:,} elements of out were written")
wide = sum(o.fp64 + o.fp64_conversions for o in trace.operations)
print(f"{wide:,} operations on float64, or conversions from and to it")

# %% [markdown]
# <details><summary>The mistakes</summary>
#
# - **It reads past the end.** A place beyond the last centre has a `row + 1` that does not exist. In the last column the next element is the first of the next row: a wrong but harmless value. In the last row the kernel reads past the image.
# - **It writes past the end.** The target is not a multiple of the block, and there is no guard. Surplus threads at the right write into the next row, where another thread has its pixel; those at the bottom write past the array.
# - **It leaves the first row and column as they were.** Where an image grows, their places are below 0, and the `if` skips them. If the target was allocated with zeros, that is a black line, one pixel wide, which nobody sees.
# - **Every product is in float64**, because the literals are: 0.5 is a float64, and so is all that it touches. On most GPUs that is 32 or 64 times slower.
# - **It truncates** where it should round.
#
# </details>
#
# An **error map** against a reference shows where it hurts. Draw one for any program that makes images. Here is its lower left corner, beside that of gpukit's kernel:

# %%
expected = cv2.resize(small, size[::-1])[..., ::-1]
attempts = {"first attempt": out, "ladder.bilinear": by_rung("bilinear", small, size, swap_rb=True)}
with plot.figure(columns=2, size=(8, 3.2)) as axes:
    for ax, (title, got) in zip(axes, attempts.items(), strict=True):
        error = np.abs(got.astype(int) - expected).max(axis=2)
        shown = ax.imshow(error[-40:, :60], vmin=0, vmax=8, cmap="magma")
        ax.set(title=f"{title}: at most {error.max()} levels off", xticks=[], yticks=[])
    plt.gcf().colorbar(shown, ax=axes, label="levels, 8 and more", shrink=0.8)

# %% [markdown]
# The bright lines are the first column, never written, and the last row, mixed with what lies past the image. (The trace skips reads out of bounds, so 0 is mixed in here; a GPU would read whatever is there.) The speckles are one level, from truncation.
#
# **Your turn.** Mend it, for a grey image of float32: guard, clamps at all four edges, and no float64. Beware of `x + half`: an int and a float32 make a float64 in Numba, so convert with `np.float32(x)`.


# %%
@cuda.jit
def bilinear(image, out, down, across, height, width):
    x, y = cuda.grid(2)
    half, one, zero = np.float32(0.5), np.float32(1), np.float32(0)
    # About 12 lines: guard; place, clamped to 0; its row and column, and the next ones, clamped
    # to the last
    ...


exercises.check("08-bilinear", bilinear)

# %% [markdown]
# ## The same bytes as OpenCV
#
# gpukit's kernel has the same parts. It computes places as fractions of integers, which is exact: in float32 a place would be off by a ten-thousandth of a pixel at the far end of a wide frame, enough to change a byte here and there.

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
# **Bytes are another matter.** OpenCV computes them not in floats but in integers: shares in 2048ths, with some bits shifted out after each step. Computing in float32 and rounding once is more accurate, but differs from OpenCV in about one byte in eight. A network does not care; a test that compares two programs does. So `mix_bytes` takes OpenCV's steps one by one. `mix` picks it for integers and `mix_floats` for floats, by the types for which a kernel is compiled.

# %% jupyter={"outputs_hidden": true}
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
# Why not all of them? OpenCV computes its places in float32, and a few of its shares come out as the 2048th next to ours.
#
# Now look closely. An eye, eight times as large:

# %%
eye = photo[178:210, 212:252]
large = (8 * eye.shape[0], 8 * eye.shape[1])
with plot.figure(columns=2, size=(8, 3.4)) as axes:
    for ax, name in zip(axes, ("nearest", "bilinear"), strict=True):
        plot.image(by_rung(name, eye, large, swap_rb=True), name, ax=ax)

# %% [markdown]
# ## Letterbox
#
# A network wants a square, and images are not square. Stretched to a square, a round face becomes an egg. So both directions get *one* scale, the largest with which the image fits, and a border fills the rest: a **letterbox**. Usually the image is centred.
#
# **Your turn**, with the nearest pixel and whole numbers: row r of a picture of `height` rows shows row `r * image.shape[0] // height` of the source. The picture begins at row `top` and column `left` of the target. Exchange the channels on the way.


# %%
@cuda.jit
def letterbox(image, out, height, width, top, left, fill, rows, cols):
    x, y = cuda.grid(2)
    if x < cols and y < rows:
        # About 9 lines: inside the picture store the nearest pixel, channels exchanged; outside
        # store fill
        ...


exercises.check("08-letterbox", letterbox)

# %% [markdown]
# gpukit's `letterbox_centred` does the same bilinearly, with a trick in its test. Rows above the picture would be negative; as unsigned integers they wrap round to huge numbers, so one comparison finds both ends.

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

place_of = resize.placement(photo.shape[:2], target)
inner = cv2.resize(photo, (place_of.width, place_of.height))
right, below = target[1] - place_of.left - place_of.width, target[0] - place_of.top - place_of.height
edges = place_of.top, below, place_of.left, right
expected = cv2.copyMakeBorder(inner, *edges, cv2.BORDER_CONSTANT, value=(114,) * 3)
counts = levels(centred, expected[..., ::-1])
print(f"{counts[0] / counts.sum():.3%} equal to cv2.resize and cv2.copyMakeBorder, at most {len(counts) - 1} apart")

# %% [markdown]
# **There and back.** A detector answers in coordinates of the letterbox; its user wants those of the image. `placement` says where the image went, and maps points and boxes both ways. Coordinates are measured from the edges of pixels, as in a detector's boxes: the image reaches from 0 to its width.

# %%
box = np.array([175, 55, 375, 315])  # left, top, right, bottom
there = place_of.to_target(box)
print(f"scale {place_of.scale:.4f}, size {place_of.height} x {place_of.width}, offset {place_of.top}, {place_of.left}")
print("in the image", box, "-> in the letterbox", there.round(1), "-> and back", place_of.to_source(there).round(9))

with plot.figure(columns=2, size=(7, 3.4)) as axes:
    for ax, image, (left, top, right, bottom) in zip(axes, (rgb(photo), centred), (box, there), strict=True):
        plot.image(image, f"{image.shape[1]} x {image.shape[0]}", ax=ax)
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, edgecolor="yellow"))

# %% [markdown]
# ## What bilinear cannot do
#
# A pattern whose rings grow finer towards the edge is called a **zone plate**, and no resize hides from it. Here is one, and what becomes of it at a quarter of the size:

# %%
n = 336
y, x = np.mgrid[:n, :n] - (n - 1) / 2
grey = 127.5 + 127.5 * np.cos(np.pi * (x**2 + y**2) / (2 * n))
zone = np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
size = (n // 4, n // 4)
quarters = {
    "the source": zone,
    "nearest": by_rung("nearest", zone, size),
    "bilinear": by_rung("bilinear", zone, size),
    "mean of 4 x 4 (OpenCV, INTER_AREA)": cv2.resize(zone, size, interpolation=cv2.INTER_AREA),
}
with plot.figure(rows=2, columns=2, size=(5.6, 5.9)) as axes:
    for ax, (title, image) in zip(axes.flat, quarters.items(), strict=True):
        plot.image(image, title, ax=ax)

# %% [markdown]
# The rings around the other centres are not in the source. Rings finer than two target pixels cannot be shown in the target; instead of vanishing they come back as coarse ones. That is **aliasing**. Bilinear weakens it, but not by much: it mixes *four* pixels at most, whatever the scale, and at a quarter of the size there are sixteen for each target pixel. It was made for enlarging. To shrink by a lot, take the mean of all the pixels under a target pixel, or shrink by half several times.
#
# OpenCV, PyTorch and nearly every detector shrink bilinearly all the same, because it is fast.
#
# ## Pixels of three bytes
#
# Now for speed. A warp reads memory in sectors of 32 bytes ([02](02_matmul.ipynb)), and a pixel has three bytes. Take a kernel that only exchanges the channels, so that nothing else gets in the way, with a thread for each pixel, or for each channel:


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


flat = np.ascontiguousarray(photo[:96]).reshape(-1)
for kernel, threads in ((thread_per_pixel, flat.size // 3), (thread_per_channel, flat.size)):
    out = np.zeros_like(flat)
    trace = gpukit.trace(kernel[math.ceil(threads / 256), 256], flat, out)
    assert np.array_equal(out.reshape(-1, 3), flat.reshape(-1, 3)[:, ::-1])
    total = trace.total("global")
    print(f"{kernel.py_func.__name__:20}{total.requests:7,} requests, {total.sectors:6,} sectors, ", end="")
    print(f"at best {2 * flat.size // 32:,}: {2 * flat.size / total.sectors:.1f} of 32 bytes used")

# %% [markdown]
# With a thread per pixel, each request of a warp takes every third byte of 96: three sectors for 32 bytes. The next two requests come back for the rest. By then the sectors are in the cache, so memory itself is not read three times, but the cache has to deliver three times as much as is used. With a thread per channel the 32 bytes of a store are one sector. Those of a load reach into the next sectors, because a pixel can lie across the end of one.

# %%
gpukit.trace(thread_per_pixel[1, 64], flat[:192], np.zeros(192, np.uint8)).plot_sectors(array="image");

# %% [markdown]
# **Your turn**: a thread per *four bytes*. A block of 96 threads loads 384 bytes, 128 pixels, with `load4` and keeps them in shared memory. From there each thread collects its four bytes of the result. `load4` and `store4` move four neighbouring elements in one request.


# %%
@cuda.jit
def exchange(image, out):
    stage = cuda.shared.array(384, np.uint8, alignment=8)
    b = 4 * cuda.threadIdx.x  # of the block's 384 bytes, 128 pixels, this thread has b to b + 3
    first = 384 * cuda.blockIdx.x + b
    if first < image.size:
        v = load4(image, first)
        store4(stage, b, v[0], v[1], v[2], v[3])
    # About 7 lines: byte i of the result is byte i + 2 - 2 * (i % 3) of stage; store4(out,
    # first, p, q, r, s)
    ...


exercises.check("08-words", exchange)

# %% [markdown]
# Every sector is moved once, with a quarter of the requests. In a resize, the bytes that a thread *reads* depend on the scale, but what it writes does not. Two ways are open. If the result has whole pixels, the threads of a block trade their values through shared memory, as here. If it has **planes**, one for each channel, neighbours in a plane are neighbours in memory anyway.
#
# ## The bytes that must move
#
# A network wants the letterbox with `(value - mean) * factor` for each value, in float32, in planes. The top rung of the ladder, `letterbox_planes`, does all of it in one kernel. How fast can that be? These bytes must move in any case: every sector of the source that holds a byte with a weight other than 0, and every byte of the result.
#
# **Predict.** A frame of 1080 x 1920 in a target of 640 x 640 shrinks by exactly 3. What part of its *rows* has to be read?

# %%
my_share = None
exercises.check("08-bytes", my_share)

# %% jupyter={"outputs_hidden": true}
source, target = (1080, 1920), (640, 640)
for size in (source, (720, 1280), (1000, 1777)):
    place_of = resize.placement(size, target)
    moved, whole = resize.least_bytes(1, size, target, place_of), 3 * math.prod(size) + 12 * math.prod(target)
    print(f"{size} to {place_of.height} x {place_of.width}: {moved / 1e6:5.2f} MB of {whole / 1e6:5.2f} MB must move")

# %% [markdown]
# <details><summary>Why</summary>
#
# `(x + 0.5) * 3 - 0.5` is `3 * x + 1`, exactly on a pixel, and the other three of the four have a weight of 0. So most rows need not be read at all. (Most columns need not either, but their bytes are in the same sectors.) At other scales nearly every row has a weight.
#
# </details>
#
# ## A kernel at the speed of memory
#
# `resize.blob` launches a kernel, `planes`, that computes the same as the top rung, with five changes:
#
# 1. **Rows without a weight are not read.** A row's weight is the same for a whole warp, so the `if` costs next to nothing.
# 2. **Places are computed once**: those of a row by one thread for the whole block, in shared memory; those of a column by a thread for all rows that it goes through.
# 3. **Four neighbours per thread**, so that a store has 128 bits, and the work per row is shared by four pixels. This is thread coarsening.
# 4. **Words instead of bytes.** A pixel and its right neighbour are 6 bytes, in 2 or 3 words. Two shifts bring them to the front, `byte_perm` pairs the two values of each channel, and `dp2a` mixes such a pair in one instruction: two products and their sum.
# 5. **Unsigned indices**: Numba tests every signed index for being negative, and counts from the end if it is.
#
# The heart of it is number 4. Follow the six bytes through these lines:

# %%
show.source(sampling.words_across)

# %% jupyter={"outputs_hidden": true}
show.source(fast.make_planes)

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
# A third of the load requests, and a quarter of the store requests. Only the sectors read look worse: with four neighbours per thread, the lanes of a warp are four times as far apart, so each load touches more sectors. But the cache delivers them; memory delivers each sector once. For frames of float32, whose pixels are four times as large, the balance is different: there the four pixels of a thread are 32 apart.
#
# ## How fast
#
# Now the batch from the beginning, with a cold cache. gpukit and the copy are measured here if there is a GPU. The hollow points are from the record, which was made in one run: "torch interpolate" is PyTorch with as few operations as we could manage, and "torch compiled" is what `torch.compile` makes of them. "torchvision" and "cupyx zoom" use these libraries' own functions for the resize. OpenCV works on the host, one frame per core.

# %%
shape, target = (32, 1080, 1920, 3), (640, 640)
moved = resize.least_bytes(shape[0], shape[1:3], target, resize.placement(shape[1:3], target))
mark = where
if on_gpu():
    frames = cuda.to_device(np.random.default_rng(8).integers(0, 256, shape, np.uint8))
    planes = cuda.device_array((shape[0], 3, *target), np.float32)
    options = {"mean": 120, "factor": 1 / 60, "fill": 114, "swap_rb": True}
    launch, arguments = ladder.rung("letterbox_planes", frames, planes, **options)
    halves = [cuda.device_array(moved // 2, np.uint8) for _ in range(2)]
    runs = {"copy": partial(halves[0].copy_to_device, halves[1]), "letterbox_planes": partial(launch, *arguments)}
    runs["blob"] = partial(resize.blob, frames, target, out=planes, **options)
    seconds |= {name: timed.median for name, timed in timing.bench_many(runs, min_time=0.05).items()}
    mark = f"{device.info().name}; hollow: {where}"

# %%
microseconds = {name: 1e6 * seconds[name] for name in sorted(seconds, key=seconds.get)}
libraries = [name for name in seconds if name not in ("copy", "blob", "letterbox_planes")]
limit, notes = ("copy", microseconds.pop("copy")), {n: f"{1e-9 * moved / seconds[n]:,.0f}" for n in microseconds}
plot.dots(
    microseconds, "us", log=True, hollow=libraries, limit=limit, notes=notes, heading="GB/s of the bytes\nthat must move",
    title="32 frames of 1080 x 1920 to normalised planes of 640 x 640", mark=mark,
)
print(f"blob has {seconds['copy'] / seconds['blob']:.0%} of the speed of the copy")

# %% [markdown]
# The table has other batches and other results. Each line is compared with a copy of its own, since other bytes must move.

# %% jupyter={"source_hidden": true}
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
    """A line of a table: gpukit's record, the copy's, and that of the fastest library, if there are any."""
    found = [r for r in recorded if (r["case"], r["dtype"], r["shape"][0]) == (case, dtype, frames)]
    own = min((r for r in found if r["variant"] in OURS), key=lambda r: r["value"], default=None)
    others = (r for r in found if r["variant"].startswith(("torch", "cupyx", "opencv")))
    theirs = min(others, key=lambda r: r["value"], default={})
    copy = next((r["value"] for r in found if r["variant"] == "copy"), None)
    return {"case": case, "dtype": dtype, "frames": frames, "own": own, "copy": copy, "theirs": theirs}


def in_us(seconds):
    return None if seconds is None else f"{1e6 * seconds:,.1f}"


LIBRARY = {
    "fastest library measured, us": lambda r: in_us(r["theirs"].get("value")),
    "which": lambda r: r["theirs"].get("variant"),
    "ratio": lambda r: f"{r['theirs']['value'] / r['own']['value']:.2f}" if r["theirs"] else None,
}
print(where)
results.table(
    [row for kind in KINDS for frames in (1, 32, 256) if (row := line(*kind, frames))["own"]],
    {
        "result": lambda r: KINDS[r["case"], r["dtype"]],
        "frames": "frames",
        "gpukit, us": lambda r: in_us(r["own"]["value"]),
        "of a copy's speed": lambda r: r["copy"] and f"{r['copy'] / r['own']['value']:.0%}",
        **LIBRARY,
    },
)

# %% [markdown]
# A single frame takes a few microseconds, most of it latency, which the copy has as well: so `blob` can be the faster of the two there. For 256 frames and for float16 `torch.compile` was not measured, so these ratios compare with a slower competitor. For bytes in, bytes out no library was measured.
#
# Pixels of float32 have a kernel of their own: values of four bytes fill whole sectors if a thread has one of them, so there is no need for words, nor for shared memory.
#
# For a single frame the *launches* decide. These times are by the host's clock: from a call until its result is there, and the part of that time that keeps the host busy. `blob` makes one launch, which it has prepared in an earlier call for arrays like these; PyTorch makes one for each step.

# %%
CALLS = {
    ("blob, call and wait", 1): "1 frame, call and wait",
    ("blob, host", 1): "1 frame, the host's part",
    ("many sizes", 64): "64 crops of many sizes, on the device",
    ("many sizes, call and wait", 64): "64 crops of many sizes, call and wait",
}
print(where)
results.table(
    [row for case, frames in CALLS if (row := line(case, "float32", frames))["own"]],
    {
        "what": lambda r: CALLS[r["case"], r["frames"]],
        "gpukit, us": lambda r: in_us(r["own"]["value"]),
        **LIBRARY,
    },
)

# %% [markdown]
# ## Frames of many sizes, and videos
#
# `resize`, `letterbox` and `blob` also take a list of images of different sizes: the faces that a detector found, for example, which the next network wants at one size. All go in one launch. Crops of a frame on the device are read in place; rows need not be contiguous.

# %%
crops = [photo[40:296, 140:396], photo[160:230, 205:345], photo[0:300, 0:180], photo[455:505, 310:445]]
found = resize.letterbox(crops, (160, 160), fill=114)
with plot.figure(columns=4, size=(8, 2.4)) as axes:
    for ax, image, crop, scale in zip(axes, found.image, crops, found.scale, strict=True):
        plot.image(image, f"{crop.shape[1]} x {crop.shape[0]}, scale {scale:.2f}", ax=ax)

# %% [markdown]
# In a **video**, each frame passes three stages: the copy to the device, the kernel, and the consumer of the result. `resize.video` keeps several frames in flight, each in its own stream, so that all three work at the same time ([06](06_streams.ipynb)). Frames must lie in pinned memory for their copies to overlap with anything; a decoder can write them there, otherwise threads copy them.

# %%
pan = (photo[y : y + 270, 16 : 16 + 480] for y in range(0, 330, 30))
for number, result in enumerate(resize.video(pan, (128, 128), mean=127.5, factor=1 / 127.5, fill=114)):
    if number % 5 == 0:
        planes = result.image.copy_to_host()
        print(f"frame {number:2}: {planes.dtype} {planes.shape}, from {planes.min():+.2f} to {planes.max():+.2f}")

# %% [markdown]
# The next figure shows frames per second, beside OpenCV on the host. The dashed line is the rate of the copies alone. A video of pinned frames reaches it: the bus between host and device is the limit, and the kernels run in its shadow. A frame that is not pinned has to be copied into pinned memory on the way.

# %% jupyter={"source_hidden": true}
rates = {}
for record in recorded:
    if record["case"] == "video":
        name = record["variant"].removeprefix("video, ").replace(", 1 cores", ", 1 core")
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
    stream, count = cuda.stream(), 300
    with timing.Timer(unit="s", show=False) as timer:
        for frame in itertools.islice(itertools.cycle(pinned), count):
            on_device.copy_to_device(frame, stream=stream)
        stream.synchronize()
    rates["copy to the device"] = count / timer.elapsed

limit = rates.pop("copy to the device", None)
plot.dots(
    rates, "frames per second", hollow=[name for name in rates if name.startswith("opencv")],
    limit=limit and ("copies alone", limit), title="1080 x 1920 to planes of 640 x 640", mark=mark,
);

# %% [markdown]
# ## What goes wrong
#
# **The half is missing** in one of two programs: boxes lie beside their objects. **The sizes were rounded**, and a box is mapped back with the scale: it is off by up to half a pixel of the letterbox. `placement` uses the sizes.
#
# **The wrong order of channels**: a network that was trained on red first sees a blue face, and is a little worse, nothing more. Nothing fails. The same goes for a mean that is meant for values from 0 to 1.
#
# **A border that is not normalised.** The border, too, must go through `(value - mean) * factor`, or the network sees edges.
#
# **A view taken for an image.** Half of an array is not contiguous; a kernel that assumes rows follow one another shears the image:

# %%
half = photo[:, :300]  # rows of 300 pixels, 512 apart
sheared = photo.reshape(-1)[: half.size].reshape(half.shape)  # what a kernel sees that only knows the size
with plot.figure(columns=2, size=(6, 3.4)) as axes:
    plot.image(rgb(sheared), "taken to be contiguous", ax=axes[0])
    plot.image(resize.letterbox(half, (300, 150)).image, "resize.letterbox", ax=axes[1])

# %% [markdown]
# > **From the source.** This chapter follows the last part of the course notes. On the CPU, they convert BGR to RGB and resize bilinearly with OpenCV. On the GPU, one kernel does both, with a letterbox: half-pixel centres, one scale for both axes, four weights by area, the result shifted to the centre, and the rest left as padding. They build it in four steps, as our ladder does: nearest, bilinear, letterbox, letterbox centred. They give no times.
# >
# > Their kernel has no guard on the target, reads one past the last row and column, and leaves the first row and column black when it enlarges. `first_attempt` above does all three.
#
# ## Key points
#
# - The centre of pixel x is at x + 0.5. Without the halves the image moves.
# - Bilinear mixes four pixels at most, whatever the scale. It enlarges well; it shrinks with aliasing.
# - An error map against a reference, and a trace, find what the eye misses: an unwritten line, a read past the end.
# - A letterbox has one scale and two offsets. Map boxes with the sizes, not with the scale alone.
# - For pixels of three bytes, let a warp move whole sectors, through shared memory or in planes.
# - Count the bytes that must move before you call a kernel fast or slow. What has no weight need not be read.
# - For a single frame, what counts is the number of launches.
#
# **Back:** [07 Reduce](07_reduce.ipynb). **Next:** [09 Convolution](09_convolution.ipynb).
