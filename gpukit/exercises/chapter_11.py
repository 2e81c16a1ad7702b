"""Exercises of chapter 11, scan, histogram, sort."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, InOut, KernelExercise, Out, Wrong

# -- 11-additions ---------------------------------------------------------------------------------------------------

ADDITIONS = AnswerExercise(
    "11-additions",
    task="Predict how many additions Hillis and Steele's scan makes for 256 numbers.",
    spec=lambda: sum(256 - distance for distance in (1, 2, 4, 8, 16, 32, 64, 128)),
    wrong=[
        Wrong("That is what a loop needs. Here every element adds in every step, as long as it has a partner.", 255),
        Wrong(
            "In a step with distance d the first d elements have no partner, so 256 - d add. Sum that over the steps.",
            2048,
        ),
        Wrong("Nearly: 1 + 2 + 4 + ... + 128 elements have no partner, which is 255, not 256.", 1792),
        Wrong("That is the number of steps. In each of them nearly all elements add.", 8),
        Wrong(
            "Each element would have to add all those before it. It adds the sums that the step before has left.",
            256 * 255 // 2,
        ),
        Wrong("The distances are 1, 2, 4 ... 128: eight steps, not seven.", 1792 - 127),
    ],
    hints=[
        "There are eight steps, with distances of 1, 2, 4 ... 128.",
        "In a step with distance d, elements d to 255 add once each.",
    ],
    why="Eight steps of 256 elements, without the 1 + 2 + ... + 128 = 255 that have no partner.",
)


# -- 11-steps -------------------------------------------------------------------------------------------------------


def scans_of(size):
    """The specification of a scan of each `size` elements."""

    def scans(x):
        pieces = [np.cumsum(x[first : first + size]) for first in range(0, x.size, size)]
        return np.concatenate(pieces).astype(np.float32)

    return scans


def numbers(rng, *sizes, each, block):
    for n in sizes:
        x = rng.integers(-9, 10, n).astype(np.float32)
        yield Case((x, Out(n)), -(-n // each), block, label=f"n = {n:,}", counted=n % each == 0)


@cuda.jit
def running_sums(x, out):
    held = cuda.shared.array((2, 256), np.float32)  # two rows; the block has 256 threads
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    held[0, tid] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    now = 0  # the row that holds the sums
    # HOLE about 8 lines: for distances of 1, 2, 4 ... 128, read row `now`, write the sums to the other row
    distance = 1
    while distance < 256:
        value = held[now, tid]
        if tid >= distance:
            value += held[now, tid - distance]
        now = 1 - now
        held[now, tid] = value
        cuda.syncthreads()
        distance *= 2
    # END
    if i < x.size:
        out[i] = held[now, tid]


@cuda.jit
def running_sums_in_one_row(x, out):
    held = cuda.shared.array(256, np.float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    value, distance = x[i] if i < x.size else np.float32(0), 1
    held[tid] = value
    while distance < 256:
        cuda.syncthreads()
        if tid >= distance:
            value += held[tid - distance]
        cuda.syncthreads()
        held[tid] = value
        distance *= 2
    if i < x.size:
        out[i] = value


@cuda.jit
def running_sums_in_branches(x, out):
    held = cuda.shared.array((2, 256), np.float32)
    tid, i, now = cuda.threadIdx.x, cuda.grid(1), 0
    held[0, tid] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    for distance in (1, 2, 4, 8, 16, 32, 64, 128):
        if tid >= distance:
            held[1 - now, tid] = held[now, tid] + held[now, tid - distance]
        else:
            held[1 - now, tid] = held[now, tid]
        now = 1 - now
        cuda.syncthreads()
    if i < x.size:
        out[i] = held[now, tid]


STEPS = KernelExercise(
    "11-steps",
    task="Scan the 256 elements of each block by Hillis and Steele's steps.",
    spec=scans_of(256),
    cases=lambda rng: numbers(rng, 256, 1024, 700, 1, each=256, block=256),
    solutions=[running_sums, running_sums_in_one_row, running_sums_in_branches],
    limits={"shared wavefronts": 1.5},
    wrong=[
        Wrong(
            "Right, but one thread adds and 255 watch. Every element can add the one `distance` before it at once.",
            {
                "    distance = 1\n    while distance < 256:\n        value = held[now, tid]\n"
                "        if tid >= distance:\n            value += held[now, tid - distance]\n"
                "        now = 1 - now\n        held[now, tid] = value\n        cuda.syncthreads()\n"
                "        distance *= 2\n": (
                    "    if tid == 0:\n        for k in range(1, 256):\n            held[0, k] += held[0, k - 1]\n"
                    "    cuda.syncthreads()\n"
                )
            },
            "cost: shared wavefronts",
        ),
        Wrong(
            "Some threads write their new sum before others have read the old one. Write to the other row.",
            {"        now = 1 - now\n": ""},
            "race",
        ),
        Wrong(
            "The next step reads what other threads have just written: a barrier belongs at the end of each step.",
            {"value\n        cuda.syncthreads()\n": "value\n"},
            "race",
        ),
        Wrong(
            "The first `distance` elements have no partner, but their sums must move to the other row as well.",
            {
                "            value += held[now, tid - distance]\n": (
                    "            held[1 - now, tid] = value + held[now, tid - distance]\n"
                ),
                "        held[now, tid] = value\n": "",
            },
            "uninitialised-read",
        ),
        Wrong(
            "Thread `distance` has a partner, element 0: tid >= distance.",
            {"tid >= distance": "tid > distance"},
        ),
        Wrong(
            "The first `distance` threads have no partner: their index is negative.",
            {"tid >= distance": "tid >= 0"},
            "negative-index",
        ),
        Wrong(
            "The last step is missing: without a distance of 128, sums reach back over 128 elements only.",
            {"distance < 256": "distance < 128"},
        ),
        Wrong(
            "After a step every sum covers twice as many elements, so the distance must double.",
            {"distance *= 2": "distance += 1"},
        ),
        Wrong(
            "These sums run from the end of the block: the partner is the element `distance` before.",
            {"tid >= distance": "tid + distance < 256", "tid - distance": "tid + distance"},
        ),
    ],
    hints=[
        "A while loop over distance, which begins at 1 and doubles. What does a thread with tid < distance write?",
        "value = held[now, tid]; if tid >= distance, add held[now, tid - distance]. Then write value to the other row.",
        "now = 1 - now switches rows. Store held[now, tid] = value, and let all threads meet at a barrier.",
    ],
    why="With two rows a step reads what the step before has written, and nobody overwrites what others still need: "
    "one barrier per step instead of two.",
)


# -- 11-down --------------------------------------------------------------------------------------------------------


def exclusive_scans(x):
    return np.concatenate([np.cumsum(part) - part for part in x.reshape(-1, 512)]).astype(np.float32)


@cuda.jit
def exclusive_sums(x, out):
    held = cuda.shared.array(512, np.float32)  # 256 threads, two elements each
    tid, first = cuda.threadIdx.x, cuda.blockIdx.x * 512
    held[tid], held[tid + 256] = x[first + tid], x[first + tid + 256]
    step = 1
    while step < 512:  # up: the end of every pair gets the sum of the pair
        cuda.syncthreads()
        right = 2 * step * (tid + 1) - 1
        if right < 512:
            held[right] += held[right - step]
        step *= 2
    cuda.syncthreads()
    if tid == 0:
        held[511] = 0
    # HOLE about 9 lines: steps of 256 to 1: in each pair the left gets the right value, the right adds the old left one
    step = 256
    while step > 0:
        cuda.syncthreads()
        right = 2 * step * (tid + 1) - 1
        if right < 512:
            left = held[right - step]
            held[right - step] = held[right]
            held[right] += left
        step //= 2
    cuda.syncthreads()
    # END
    out[first + tid], out[first + tid + 256] = held[tid], held[tid + 256]


@cuda.jit
def exclusive_sums_by_nodes(x, out):
    held = cuda.shared.array(512, np.float32)
    tid, first = cuda.threadIdx.x, cuda.blockIdx.x * 512
    held[tid], held[tid + 256] = x[first + tid], x[first + tid + 256]
    cuda.syncthreads()
    for level in range(9):
        if tid < 256 >> level:
            right = (tid + 1) * (2 << level) - 1
            held[right] += held[right - (1 << level)]
        cuda.syncthreads()
    for level in range(8, -1, -1):
        if tid < 256 >> level:
            right = (tid + 1) * (2 << level) - 1
            value = held[right] if level < 8 else np.float32(0)
            old = held[right - (1 << level)]
            held[right - (1 << level)] = value
            held[right] = value + old
        cuda.syncthreads()
    out[first + tid], out[first + tid + 256] = held[tid], held[tid + 256]


DOWN = KernelExercise(
    "11-down",
    task="Write the way down of Blelloch's scan of 512 elements.",
    spec=exclusive_scans,
    cases=lambda rng: numbers(rng, 512, 2048, each=512, block=256),
    solutions=[exclusive_sums, exclusive_sums_by_nodes],
    limits={"float32 operations": 1.0, "shared wavefronts": 1.0},
    wrong=[
        Wrong(
            "The left value is overwritten before it is added. Keep it in a variable first.",
            {"            left = held[right - step]\n": "", "held[right] += left": "held[right] += held[right - step]"},
        ),
        Wrong(
            "A level reads what other threads have written on the level above: each level begins with a barrier.",
            {"step > 0:\n        cuda.syncthreads()\n": "step > 0:\n"},
            "race",
        ),
        Wrong(
            "The results are read right after the last level, by other threads than those that wrote them: "
            "a barrier has to stand between.",
            {"        step //= 2\n    cuda.syncthreads()\n": "        step //= 2\n"},
            "race",
        ),
        Wrong(
            "The way down begins at the root, with the largest step.",
            {
                "step = 256": "step = 1",
                "step > 0": "step < 512",
                "step //= 2": "step *= 2",
            },
        ),
        Wrong("The level with a step of 1 is missing: neighbours have not been told apart.", {"step > 0": "step > 1"}),
        Wrong(
            "The right one gets its parent's value *plus* the old left one; here the parent's value is lost.",
            {"held[right] += left": "held[right] = left"},
        ),
        Wrong(
            "A left child gets what comes before its parent, which is the parent's value alone.",
            {"held[right - step] = held[right]\n": "held[right - step] += held[right]\n"},
        ),
        Wrong(
            "On the way down there are few pairs first, 256 // step of them; the others lie outside the array.",
            {
                "        if right < 512:\n            left": "        if tid < step:\n            left",
            },
            "out-of-bounds",
        ),
    ],
    hints=[
        "The same loop as on the way up, with steps from 256 down to 1, a barrier at the start of each level, and the "
        "same `right`.",
        "left = held[right - step] keeps the old value; then held[right - step] = held[right].",
        "held[right] += left. After the loop, one more barrier.",
    ],
    why="What a node holds on the way down is the sum of all that comes before its leaves. The left child begins where "
    "its parent does; the right one begins after the left one.",
)


# -- 11-pad ---------------------------------------------------------------------------------------------------------


def kernel_of_place(place):
    """Blelloch's scan of 512 elements whose element p is in word place(p)."""

    @cuda.jit
    def padded_scan(x, out):
        held = cuda.shared.array(1024, np.float32)
        tid, first = cuda.threadIdx.x, cuda.blockIdx.x * 512
        held[place(tid)], held[place(tid + 256)] = x[first + tid], x[first + tid + 256]
        step = 1
        while step < 512:
            cuda.syncthreads()
            right = 2 * step * (tid + 1) - 1
            if right < 512:
                held[place(right)] += held[place(right - step)]
            step *= 2
        cuda.syncthreads()
        if tid == 0:
            held[place(511)] = 0
        step = 256
        while step > 0:
            cuda.syncthreads()
            right = 2 * step * (tid + 1) - 1
            if right < 512:
                left = held[place(right - step)]
                held[place(right - step)] = held[place(right)]
                held[place(right)] += left
            step //= 2
        cuda.syncthreads()
        out[first + tid], out[first + tid + 256] = held[place(tid)], held[place(tid + 256)]

    return padded_scan


@cuda.jit(device=True)
def place(p):
    # HOLE about 1 line: the word of element p in shared memory, so that no two lanes meet in a bank
    #| return p
    return p + p // 32
    # END


@cuda.jit(device=True)
def place_by_swizzle(p):
    return p ^ p // 32


PAD = KernelExercise(
    "11-pad",
    task="Place the elements of Blelloch's scan in shared memory without a bank conflict.",
    spec=exclusive_scans,
    cases=lambda rng: numbers(rng, 512, 1024, each=512, block=256),
    make=kernel_of_place,
    solutions=[place, place_by_swizzle],
    limits={"bank conflicts": 1.0},
    wrong=[
        Wrong(
            "Elements that met in a bank still do: a shift of all of them changes no distance, nor does a pad of 32 "
            "words. The pad has to grow by one with every row.",
            {"p + p // 32": "p + 1"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Rows of 64 words stay: p and p + 32 are in the same bank still. One word for every 32.",
            {"p + p // 32": "p + p // 64"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Every element is twice as far away, so strides double, and so do the conflicts.",
            {"p + p // 32": "p * 2"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Elements 1 and 33 now share a word with others: different elements need different words.",
            {"p + p // 32": "p + p % 32"},
            "race",
        ),
        Wrong(
            "33 words for every element is too much: the pad is one word for every 32 elements.",
            {"p + p // 32": "p * 33"},
            "out-of-bounds",
        ),
        Wrong(
            "That keeps the number of the row and forgets the element: 32 of them share a word.",
            {"p + p // 32": "p // 32"},
            "race",
        ),
        Wrong(
            "A pad of 2 moves the lanes to every other bank: half of them still meet.",
            {"p + p // 32": "p + p // 32 * 2"},
            "cost: bank conflicts",
        ),
    ],
    hints=[
        "Elements 32 apart are in the same bank. After how many elements should a word be left free?",
        "Element p lies in row p // 32. Each row before it has left one word free.",
        "p + p // 32",
    ],
    why="Lanes that are 2, 4 ... 32 elements apart come back to the same bank after 32 words, and there the pad moves "
    "them on by one.",
)


# -- 11-warp --------------------------------------------------------------------------------------------------------


def warps_to_scan(rng):
    yield Case((np.ones(32, np.float32), Out(32)), 1, 32, label="ones")
    yield Case((2.0 ** np.arange(-12, 12)[np.arange(32) % 24].astype(np.float32), Out(32)), 1, 32, label="powers of 2")
    yield Case((rng.integers(-9, 10, 384).astype(np.float32), Out(384)), 3, 128, label="12 warps")


def kernel_of_scan_warp(scan_warp):
    """The kernel in which every lane stores what the answer gives it."""

    @cuda.jit
    def scans_of_warps(x, out):
        i = cuda.grid(1)
        out[i] = scan_warp(x[i])

    return scans_of_warps


@cuda.jit(device=True)
def scan_warp(value):
    lane = cuda.laneid
    # HOLE about 4 lines: for five distances, add the value of lane - distance, if there is such a lane
    for distance in (1, 2, 4, 8, 16):
        before = cuda.shfl_up_sync(0xFFFFFFFF, value, distance)
        if lane >= distance:
            value += before
    # END
    return value


@cuda.jit(device=True)
def scan_warp_by_index(value):
    lane, distance = cuda.laneid, 1
    while distance < 32:
        before = cuda.shfl_sync(0xFFFFFFFF, value, (lane - distance) % 32)
        value += before if lane >= distance else np.float32(0)
        distance *= 2
    return value


@cuda.jit(device=True)
def scan_warp_in_shared_memory(value):
    held = cuda.shared.array(1024, np.float32)
    tid = cuda.threadIdx.x
    held[tid] = value
    for distance in (1, 2, 4, 8, 16):
        cuda.syncwarp()
        if tid % 32 >= distance:
            value += held[tid - distance]
        cuda.syncwarp()
        held[tid] = value
    return value


@cuda.jit(device=True)
def scan_warp_one_by_one(value):
    lane, total = cuda.laneid, np.float32(0)
    for other in range(32):
        seen = cuda.shfl_sync(0xFFFFFFFF, value, other)
        if other <= lane:
            total += seen
    return total


WARP = KernelExercise(
    "11-warp",
    task="Scan the values of a warp: by shuffles, without shared memory.",
    spec=scans_of(32),
    cases=warps_to_scan,
    make=kernel_of_scan_warp,
    solutions=[scan_warp, scan_warp_by_index],
    limits={"shared wavefronts": 1.0, "float32 operations": 1.25},
    wrong=[
        Wrong(
            "Right, by shared memory. A shuffle reads the register of another lane directly.",
            scan_warp_in_shared_memory,
            "cost: shared wavefronts",
        ),
        Wrong(
            "Right, but lane 31 makes 32 additions, one after the other. With sums that double in length, five do.",
            scan_warp_one_by_one,
            "cost: float32 operations",
        ),
        Wrong(
            "Lanes that skip the shuffle give nothing to the others: what comes from them is undefined. "
            "All lanes shuffle, and then those with a partner add.",
            {
                "        before = cuda.shfl_up_sync(0xFFFFFFFF, value, distance)\n": "",
                "value += before": "value += cuda.shfl_up_sync(0xFFFFFFFF, value, distance)",
            },
            "barrier-divergence",
        ),
        Wrong(
            "A lane without a partner gets its own value from shfl_up_sync, and adds that. It must add nothing.",
            {"        if lane >= distance:\n            value += before": "        value += before"},
        ),
        Wrong(
            "The value of the other lane replaces your own: add it.",
            {"value += before": "value = before"},
        ),
        Wrong("Lane `distance` has a partner, lane 0: lane >= distance.", {"lane >= distance": "lane > distance"}),
        Wrong(
            "The step of 16 is missing: lanes 16 to 31 know only the 16 values up to theirs.",
            {"(1, 2, 4, 8, 16)": "(1, 2, 4, 8)"},
        ),
        Wrong(
            "shfl_down_sync gives the values of higher lanes. A running sum needs those before: shfl_up_sync.",
            {"shfl_up_sync": "shfl_down_sync"},
        ),
        Wrong(
            "With xor, both lanes of a pair exchange, so values from higher lanes come in as well.",
            {"shfl_up_sync": "shfl_xor_sync"},
        ),
        Wrong(
            "Distances of 1, 2, 3, 4, 5 add some lanes twice and others never: they must double.",
            {"(1, 2, 4, 8, 16)": "(1, 2, 3, 4, 5)"},
        ),
    ],
    hints=[
        "cuda.shfl_up_sync(0xFFFFFFFF, value, distance) is the value of lane - distance. All lanes must call it.",
        "After the step with distance 1, each lane has the sum of two. Which distance comes next?",
        "for distance in (1, 2, 4, 8, 16): before = ...; if lane >= distance: value += before",
    ],
    why="These are Hillis and Steele's steps. They make more additions than a loop, but a warp takes as long for one "
    "active lane as for 32, so five steps are five instructions.",
)


# -- 11-scatter -----------------------------------------------------------------------------------------------------


def selections(rng):
    for n, share in ((1000, 0.3), (256, 1.0), (33, 0.1), (1, 1.0)):
        mask = np.where(rng.random(n) < share, rng.integers(1, 256, n), 0).astype(np.uint8)
        mask[n // 2] = 1
        upto, x = np.cumsum(mask != 0), rng.standard_normal(n).astype(np.float32)
        yield Case((mask, upto, x, Out(int(upto[-1]))), -(-n // 128), 128, label=f"{upto[-1]} of {n:,} selected")


@cuda.jit
def scatter(mask, upto, x, out):
    i = cuda.grid(1)
    # HOLE about 2 lines: a selected element goes where upto, the inclusive scan of `mask != 0`, says
    if i < x.size and mask[i]:
        out[upto[i] - 1] = x[i]
    # END


@cuda.jit
def scatter_where_the_scan_rises(mask, upto, x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        before = upto[i - 1] if i > 0 else 0
        if upto[i] > before:
            out[before] = x[i]


SCATTER = KernelExercise(
    "11-scatter",
    task="Move the selected elements to the front of `out`, in their order.",
    spec=lambda mask, upto, x: x[mask != 0],
    cases=selections,
    solutions=[scatter, scatter_where_the_scan_rises],
    wrong=[
        Wrong(
            "upto counts the element itself, so the first selected one has 1 and belongs in place 0.",
            {"upto[i] - 1": "upto[i]"},
            "out-of-bounds",
        ),
        Wrong(
            "The elements stay where they are; out is as long as what is selected. upto says where each one goes.",
            {"upto[i] - 1": "i"},
            "out-of-bounds",
        ),
        Wrong(
            "The last block has more threads than there are elements: check i < x.size first.",
            {"i < x.size and mask[i]": "mask[i]"},
            "out-of-bounds",
        ),
        Wrong(
            "Elements that are not selected are written too, over the last selected one before them.",
            {"i < x.size and mask[i]": "i < x.size and upto[i] > 0"},
            "race",
        ),
        Wrong(
            "Anything but 0 selects an element; this mask has other numbers than 1.",
            {"and mask[i]": "and mask[i] == 1"},
            "unwritten",
        ),
        Wrong(
            "That is the place of the element, not the element.",
            {"= x[i]": "= i"},
        ),
        Wrong(
            "They are all there, in reverse order: the first one has upto 1, and goes to place 0.",
            {"upto[i] - 1": "out.size - upto[i]"},
        ),
        Wrong(
            "Threads of all blocks have the same threadIdx.x: each needs its number in the grid.",
            {"i = cuda.grid(1)": "i = cuda.threadIdx.x"},
            "unwritten",
        ),
    ],
    hints=[
        "A thread whose element is selected writes it once; the others write nothing.",
        "upto[i] elements are selected up to and including element i. So how many come before it in out?",
        "if i < x.size and mask[i]: out[upto[i] - 1] = x[i]",
    ],
    why="The scan has told every element how many selected ones come before it, so all can move at once, without an "
    "atomic and in their order.",
)


# -- 11-private -----------------------------------------------------------------------------------------------------


def values_to_count(rng):
    for n, label in ((5000, "uniform"), (5000, "all equal"), (1, "one value"), (300, "ragged")):
        x = rng.integers(0, 64, n).astype(np.uint8)
        if label == "all equal":
            x[:] = 37
        counts = InOut(rng.integers(0, 9, 64).astype(np.int32))
        yield Case((x, counts), 3, 128, label=f"{n:,}, {label}", counted=n == 5000)


@cuda.jit
def count_privately(x, counts):
    own = cuda.shared.array((64, 32), np.int32)  # own[bin, copy]: a copy of the 64 bins for each lane
    tid, lane = cuda.threadIdx.x, cuda.threadIdx.x % 32
    for b in range(tid // 32, 64, cuda.blockDim.x // 32):
        own[b, lane] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < x.size:
        # HOLE about 1 line: count x[i] in the copy of this lane
        #| cuda.atomic.add(own, (x[i], 0), 1)
        cuda.atomic.add(own, (x[i], lane), 1)
        # END
        i += cuda.gridsize(1)
    cuda.syncthreads()
    # HOLE about 5 lines: thread b adds up the copies of bin b, without a conflict, and adds the sum to counts[b]
    if tid < 64:
        total = 0
        for c in range(32):
            total += own[tid, (c + tid) % 32]
        cuda.atomic.add(counts, tid, total)
    # END


@cuda.jit
def count_privately_by_warps(x, counts):
    own = cuda.shared.array((64, 32), np.int32)
    tid, lane = cuda.threadIdx.x, cuda.threadIdx.x % 32
    warp, warps = tid // 32, cuda.blockDim.x // 32
    for b in range(warp, 64, warps):
        own[b, lane] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(own, (x[i], lane), 1)
    cuda.syncthreads()
    for b in range(warp, 64, warps):
        total = own[b, lane]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if lane == 0:
            cuda.atomic.add(counts, b, total)


PRIVATE = KernelExercise(
    "11-private",
    task="Count into 64 bins, with a copy of the bins for each lane of a warp, and without any collision.",
    spec=lambda x, counts: counts + np.bincount(x, minlength=64).astype(np.int32),
    cases=values_to_count,
    solutions=[count_privately, count_privately_by_warps],
    limits={"bank conflicts": 1.0, "global sectors": 4.0},
    wrong=[
        Wrong(
            "Right, but all lanes count in copy 0: lanes with equal values still wait for one another.",
            {"own, (x[i], lane), 1": "own, (x[i], 0), 1"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Right, but the threads that add up begin in the same bank: copy c of every bin is in bank c. "
            "Let each thread begin with another copy.",
            {"(c + tid) % 32": "c"},
            "cost: bank conflicts",
        ),
        Wrong(
            "Right, but every value goes to global memory, to be counted there.",
            {"cuda.atomic.add(own, (x[i], lane), 1)": "cuda.atomic.add(counts, x[i], 1)"},
            "cost: global sectors",
        ),
        Wrong(
            "Right, but every copy goes to global memory by itself: 32 atomic additions for a bin. "
            "Add up the copies first.",
            {
                "        total = 0\n": "",
                "total += own[tid, (c + tid) % 32]\n        cuda.atomic.add(counts, tid, total)": (
                    "cuda.atomic.add(counts, tid, own[tid, (c + tid) % 32])"
                ),
            },
            "cost: global sectors",
        ),
        Wrong(
            "A lane has a copy of its own, but a block has several warps, and lane 5 of each uses copy 5. "
            "It takes an atomic.",
            {"cuda.atomic.add(own, (x[i], lane), 1)": "own[x[i], lane] += 1"},
            "race",
        ),
        Wrong(
            "Some threads add up while others still count: a barrier has to stand between.",
            {"gridsize(1)\n    cuda.syncthreads()\n": "gridsize(1)\n"},
            "race",
        ),
        Wrong(
            "All blocks add to counts, so this addition has to be atomic too.",
            {"cuda.atomic.add(counts, tid, total)": "counts[tid] += total"},
            "race",
        ),
        Wrong(
            "There are 64 bins, and more threads than that: the others have nothing to add up.",
            {"if tid < 64": "if tid >= 0"},
            "out-of-bounds",
        ),
        Wrong(
            "A copy belongs to a lane, not to a thread: there are 32 of them.",
            {"(x[i], lane), 1": "(x[i], tid), 1"},
            "out-of-bounds",
        ),
        Wrong("There are 32 copies; the last one is left out.", {"range(32)": "range(31)"}),
        Wrong(
            "Each of the 64 threads adds up a row of its own: own[tid, ...].",
            {"own[tid, (c + tid) % 32]": "own[c, tid % 32]"},
        ),
    ],
    hints=[
        "own[x[i], lane] is the counter of this lane for this value. Other warps use it too: add atomically.",
        "Element own[b, c] is in bank c. If thread b begins with copy b % 32, lanes read from 32 different banks.",
        "for c in range(32): total += own[tid, (c + tid) % 32]; then one atomic addition to counts[tid].",
    ],
    why="Copy c lies in bank c, so the lanes of a warp never meet, whatever the values are. Warps may meet, which the "
    "atomic settles. The rotation keeps the lanes apart when the copies are added up.",
)


# -- 11-digit -------------------------------------------------------------------------------------------------------

#: Digits of eight keys, in their order.
DIGITS = (2, 0, 3, 2, 0, 1, 2, 0)

DIGIT = AnswerExercise(
    "11-digit",
    task="Predict to which place each of the eight keys goes, as a list of eight numbers.",
    spec=lambda: np.argsort(np.argsort(DIGITS, kind="stable")).tolist(),
    wrong=[
        Wrong(
            "That lists which key comes to each place. Asked for is the place to which each key goes.",
            [
                1,
                4,
                7,
                5,
                0,
                3,
                6,
                2,
            ],
        ),
        Wrong(
            "Those are the places where the digits begin. Keys of one digit follow one another from there.",
            [4, 0, 7, 4, 0, 3, 4, 0],
        ),
        Wrong(
            "Sorted, but equal digits have changed their order, which the next pass relies on.",
            [
                6,
                2,
                7,
                5,
                1,
                3,
                4,
                0,
            ],
        ),
        Wrong("The places are counted from 0.", [5, 1, 8, 6, 2, 4, 7, 3]),
        Wrong(
            "That is the rank of a key among those of its digit. Add the place where its digit begins.",
            [
                0,
                0,
                0,
                1,
                1,
                0,
                2,
                2,
            ],
        ),
    ],
    hints=[
        "Count the digits: three times 0, once 1, three times 2, once 3.",
        "The exclusive scan of these counts is 0, 3, 4, 7: where each digit begins.",
        "The first 2 goes to place 4, the next one to 5, and so on.",
    ],
    why="A key goes to the place where its digit begins, plus the number of keys of that digit before it. Both are "
    "exclusive scans.",
)


# -- 11-row ---------------------------------------------------------------------------------------------------------


def products_of_rows(starts, columns, values, x):
    products = values.astype(np.float64) * x[columns]
    rows = [products[first:last].sum() for first, last in zip(starts, starts[1:], strict=False)]
    return np.array(rows, np.float32)


def sparse_matrix(rng, rows, width, most):
    """The arrays of a random CSR matrix, and a vector for it. Its first row is empty, if there are more."""
    lengths = rng.integers(0, most + 1, rows)
    lengths[rows // 2] = most
    lengths[0] = 0 if rows > 1 else 1
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = np.concatenate([np.sort(rng.choice(width, n, False)) for n in lengths]).astype(np.int32)
    values, x = (rng.standard_normal(n).astype(np.float32) for n in (columns.size, width))
    return starts, columns, values, x


def matrices_by_threads(rng):
    for rows, width, most in ((200, 90, 30), (128, 40, 9), (33, 7, 3), (1, 1, 1)):
        arrays, label = (*sparse_matrix(rng, rows, width, most), Out(rows)), f"{rows} rows of up to {most} elements"
        yield Case(arrays, -(-rows // 64), 64, label=label, counted=rows == 200)


@cuda.jit
def multiply_row(starts, columns, values, x, y):
    row = cuda.grid(1)  # a thread for each row
    # HOLE about 5 lines: add up the products of the row, and store the sum
    if row < y.size:
        total = np.float32(0)
        for k in range(starts[row], starts[row + 1]):
            total += values[k] * x[columns[k]]
        y[row] = total
    # END


@cuda.jit
def multiply_row_in_its_place(starts, columns, values, x, y):
    row = cuda.grid(1)
    if row >= y.size:
        return
    y[row], k = 0, starts[row]
    while k < starts[row + 1]:
        y[row] += values[k] * x[columns[k]]
        k += 1


ROW = KernelExercise(
    "11-row",
    task="Multiply a sparse matrix in CSR format by a vector, with a thread for each row.",
    spec=products_of_rows,
    cases=matrices_by_threads,
    solutions=[multiply_row, multiply_row_in_its_place],
    wrong=[
        Wrong(
            "That is the last product of each row. Add them up.",
            {"total += values[k]": "total = values[k]"},
        ),
        Wrong(
            "k counts all elements of the matrix; x has one for each column, columns[k].",
            {"x[columns[k]]": "x[k]"},
            "out-of-bounds",
        ),
        Wrong(
            "The elements of the row are values[starts[row]] and those after it, not values[row].",
            {"values[k] * x[columns[k]]": "values[row] * x[columns[k]]"},
        ),
        Wrong(
            "The last block has threads without a row: check row < y.size.",
            {"if row < y.size": "if row >= 0"},
            "out-of-bounds",
        ),
        Wrong(
            "starts has one element more than there are rows: check row < y.size.",
            {"if row < y.size": "if row < starts.size"},
            "out-of-bounds",
        ),
        Wrong(
            "That takes the first elements of the matrix for every row. The row's own begin at starts[row].",
            {"range(starts[row], starts[row + 1])": "range(starts[row + 1] - starts[row])"},
        ),
        Wrong(
            "x has an element for each column, not for each row: columns[k] says which.",
            {"x[columns[k]]": "x[row]"},
            "out-of-bounds",
        ),
        Wrong(
            "That adds up the row's values. Each has to be multiplied by x[columns[k]] first.",
            {"values[k] * x[columns[k]]": "values[k]"},
        ),
        Wrong(
            "columns[k] is the index for x. The value itself is values[k].",
            {"values[k] *": "values[columns[k]] *"},
        ),
        Wrong(
            "The row begins with element starts[row] itself.",
            {"range(starts[row], ": "range(starts[row] + 1, "},
        ),
        Wrong(
            "The row ends before starts[row + 1], where the next one begins.",
            {"starts[row + 1])": "starts[row + 1] + 1)"},
            "out-of-bounds",
        ),
        Wrong(
            "y comes with anything in it: store the sum, do not add to y.",
            {"y[row] = total": "y[row] += total"},
        ),
        Wrong(
            "y comes with anything in it: set y[row] to 0 before the loop adds to it, or add up in a variable.",
            {"total += values[k]": "y[row] += values[k]", "        y[row] = total\n": ""},
        ),
        Wrong(
            "An empty row has the sum 0, which has to be stored as well.",
            {"        y[row] = total\n": "        if total != 0:\n            y[row] = total\n"},
            "unwritten",
        ),
    ],
    hints=[
        "The elements of the row are numbers starts[row] to starts[row + 1] - 1 of values and columns.",
        "Each product is values[k] * x[columns[k]], added to a total that begins with 0.",
        "for k in range(starts[row], starts[row + 1]): then store the total in y[row], if there is such a row.",
    ],
    why="One thread does what a loop over the row would do. It is right for any lengths. The next exercises "
    "change what it costs.",
)


# -- 11-spmv --------------------------------------------------------------------------------------------------------


def sparse_matrices(rng):
    for rows, width, most in ((40, 300, 200), (9, 1000, 700), (33, 7, 3), (1, 1, 1)):
        arrays = (*sparse_matrix(rng, rows, width, most), Out(rows))
        yield Case(arrays, -(-rows // 4), 128, label=f"{rows} rows of up to {most} elements", counted=most > 3)


@cuda.jit
def multiply(starts, columns, values, x, y):
    lane, row = cuda.threadIdx.x % 32, cuda.grid(1) // 32  # a warp for each row
    # HOLE about 9 lines: the lanes share the elements of the row, add up their products, and lane 0 stores the sum
    if row < y.size:
        total = np.float32(0)
        for k in range(starts[row] + lane, starts[row + 1], 32):
            total += values[k] * x[columns[k]]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if lane == 0:
            y[row] = total
    # END


@cuda.jit
def multiply_in_shared_memory(starts, columns, values, x, y):
    held = cuda.shared.array(128, np.float32)
    tid, lane, row = cuda.threadIdx.x, cuda.threadIdx.x % 32, cuda.grid(1) // 32
    if row >= y.size:
        return
    held[tid] = 0
    k, last = starts[row] + lane, starts[row + 1]
    while k < last:
        held[tid] += values[k] * x[columns[k]]
        k += 32
    distance = 16
    while distance > 0:
        cuda.syncwarp()
        if lane < distance:
            held[tid] += held[tid + distance]
        distance //= 2
    if lane == 0:
        y[row] = held[tid]


SPMV = KernelExercise(
    "11-spmv",
    task="Multiply a sparse matrix in CSR format by a vector, with a warp for each row.",
    spec=products_of_rows,
    cases=sparse_matrices,
    solutions=[multiply, multiply_in_shared_memory],
    limits={"global load sectors": 1.1},
    wrong=[
        Wrong(
            "Right, with one thread for each row. Neighbouring lanes then read elements of different rows, which lie "
            "far apart, and every warp waits for its longest row.",
            multiply_row,
            "cost: global load sectors",
        ),
        Wrong(
            "That is the total of lane 0 alone: the lanes have to add up their totals before it stores.",
            {
                "        for distance in (16, 8, 4, 2, 1):\n"
                "            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)\n": ""
            },
        ),
        Wrong(
            "Right, but each lane has a run of neighbouring elements, so at each step the lanes read far apart. Let "
            "lane l take every 32nd element, beginning with l.",
            {
                "        for k in range(starts[row] + lane, starts[row + 1], 32):\n": (
                    "        each = (starts[row + 1] - starts[row] + 31) // 32\n"
                    "        first = starts[row] + lane * each\n"
                    "        for k in range(first, min(first + each, starts[row + 1])):\n"
                )
            },
            "cost: global load sectors",
        ),
        Wrong(
            "Each lane takes one element at most, but a row may have more than 32: it takes a loop.",
            {"starts[row + 1], 32": "min(starts[row + 1], starts[row] + 32), 32"},
        ),
        Wrong(
            "That takes the first elements of the matrix for every row. The row's own begin at starts[row].",
            {"range(starts[row] + lane, starts[row + 1], 32)": "range(lane, starts[row + 1] - starts[row], 32)"},
        ),
        Wrong(
            "Lanes with fewer elements leave the loop earlier, and then miss its shuffles. Shuffle once, after "
            "the loop.",
            {
                "            total += values[k] * x[columns[k]]\n"
                "        for distance in (16, 8, 4, 2, 1):\n"
                "            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)\n": (
                    "            product = values[k] * x[columns[k]]\n"
                    "            for distance in (16, 8, 4, 2, 1):\n"
                    "                product += cuda.shfl_down_sync(0xFFFFFFFF, product, distance)\n"
                    "            total += product\n"
                )
            },
            "barrier-divergence",
        ),
        Wrong(
            "After shfl_down_sync only lane 0 has the sum of all lanes, so only lane 0 may store.",
            {"shfl_xor_sync": "shfl_down_sync", "        if lane == 0:\n            y[row]": "        y[row]"},
            "race",
        ),
        Wrong(
            "Without a distance of 16, lane 0 gets the totals of lanes 0 to 15 only.",
            {"(16, 8, 4, 2, 1)": "(8, 4, 2, 1)"},
        ),
        Wrong(
            "y comes with anything in it, so atomic additions to it need a 0 first. Cheaper: the lanes add up their "
            "totals by shuffles, and lane 0 stores.",
            {
                "        for distance in (16, 8, 4, 2, 1):\n"
                "            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)\n"
                "        if lane == 0:\n            y[row] = total\n": "        cuda.atomic.add(y, row, total)\n"
            },
        ),
        Wrong(
            "Every lane goes through all elements, so the sum is 32 times too large. Lane l begins with element l.",
            {"starts[row] + lane": "starts[row]", "starts[row + 1], 32": "starts[row + 1]"},
        ),
        Wrong(
            "The lanes overlap: a lane takes every 32nd element, so the step is 32.",
            {"starts[row + 1], 32": "starts[row + 1]"},
        ),
        Wrong(
            "Element k of the row stands in column columns[k]; x is indexed with that.",
            {"x[columns[k]]": "x[columns[k] - columns[starts[row]]]"},
        ),
        Wrong(
            "k counts all elements of the matrix; x has one for each column, columns[k].",
            {"x[columns[k]]": "x[k]"},
            "out-of-bounds",
        ),
        Wrong(
            "The last block has warps without a row: check row < y.size.",
            {"if row < y.size": "if row >= 0"},
            "out-of-bounds",
        ),
        Wrong(
            "The row ends before starts[row + 1], where the next one begins.",
            {"starts[row + 1], 32": "starts[row + 1] + 1, 32"},
            "out-of-bounds",
        ),
        Wrong(
            "y comes with anything in it: store the sum, do not add to y.",
            {"y[row] = total": "y[row] += total"},
        ),
        Wrong(
            "The 32 lanes of one warp share the row, so the step is 32; blockDim.x counts the other warps too.",
            {"starts[row + 1], 32": "starts[row + 1], cuda.blockDim.x"},
        ),
        Wrong(
            "shfl_up_sync brings values from lower lanes, so none come to lane 0. Use shfl_down_sync or shfl_xor_sync.",
            {"shfl_xor_sync": "shfl_up_sync"},
        ),
    ],
    hints=[
        "The elements of the row are starts[row] to starts[row + 1]. Lane l takes every 32nd, beginning with l.",
        "Each product is values[k] * x[columns[k]], added to a total of the lane's own.",
        "Five shuffles add up the totals, as in chapter 07: total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance). "
        "Then lane 0 stores.",
    ],
    why="Lanes read neighbouring elements, so values and columns are read in whole sectors. Only the reads of x are "
    "scattered. The `if` is the same for all lanes of a warp, so all of them take part in the shuffles.",
)


# -- 11-ell ---------------------------------------------------------------------------------------------------------


def as_ell(starts, columns, values):
    """The columns and values of a CSR matrix, in ELL format: padded to the longest row, element k of all rows
    together. Padding has column -1.
    """
    lengths = np.diff(starts)
    filled = np.arange(lengths.max(initial=0))[:, None] < lengths
    ell_columns, ell_values = np.full(filled.shape, -1, np.int32), np.zeros(filled.shape, np.float32)
    ell_columns.T[filled.T], ell_values.T[filled.T] = columns, values
    return ell_columns.reshape(-1), ell_values.reshape(-1)


def products_of_ell(columns, values, x, width):
    products = np.where(columns >= 0, values * x[columns].astype(np.float64), 0)
    return products.reshape(width, -1).sum(0).astype(np.float32)


def ell_matrices(rng):
    for rows, width, most in ((256, 90, 30), (200, 40, 9), (33, 7, 3), (1, 1, 1)):
        starts, columns, values, x = sparse_matrix(rng, rows, width, most)
        arrays = (*as_ell(starts, columns, values), x, most, Out(rows))
        label = f"{rows} rows of up to {most} elements"
        yield Case(arrays, -(-rows // 64), 64, label=label, counted=rows == 256)


@cuda.jit
def multiply_ell(columns, values, x, width, y):
    row = cuda.grid(1)  # a thread for each row
    # HOLE about 7 lines: add up the products of the row's `width` elements, and store the sum; padding has column -1
    if row < y.size:
        total = np.float32(0)
        for k in range(width):
            at = k * y.size + row
            if columns[at] >= 0:
                total += values[at] * x[columns[at]]
        y[row] = total
    # END


@cuda.jit
def multiply_ell_and_stop(columns, values, x, width, y):
    row = cuda.grid(1)
    if row >= y.size:
        return
    total, at = np.float32(0), row
    while at < width * y.size and columns[at] >= 0:  # padding comes last
        total += values[at] * x[columns[at]]
        at += y.size
    y[row] = total


ELL = KernelExercise(
    "11-ell",
    task="Multiply a sparse matrix in ELL format by a vector, with a thread for each row.",
    spec=products_of_ell,
    cases=ell_matrices,
    solutions=[multiply_ell, multiply_ell_and_stop],
    limits={"global load sectors": 1.5},
    wrong=[
        Wrong(
            "That is where element k would be if a row's elements were neighbours. Here element k of all rows comes "
            "together: number k * y.size + row.",
            {"k * y.size + row": "row * width + k"},
        ),
        Wrong(
            "The k-th elements of all rows are y.size of them, one for each row, not width.",
            {"k * y.size + row": "k * width + row"},
        ),
        Wrong(
            "The grid may have more threads than there are rows. Element k is y.size elements after element k - 1.",
            {"k * y.size + row": "k * cuda.gridsize(1) + row"},
            "out-of-bounds",
        ),
        Wrong(
            "k is a place in the row. The column of the element there is columns[at].",
            {"x[columns[at]]": "x[k]"},
        ),
        Wrong(
            "columns[k] belongs to another row: the column of this element is columns[at].",
            {"x[columns[at]]": "x[columns[k]]"},
        ),
        Wrong(
            "The first padding ends the row, but the thread still has to store its sum: leave the loop with break.",
            {
                "            if columns[at] >= 0:\n": "            if columns[at] < 0:\n                return\n",
                "                total += values[at]": "            total += values[at]",
            },
            "unwritten",
        ),
        Wrong(
            "-1 counts as true, so padding is multiplied, and column 0 counts as false. Compare: columns[at] >= 0.",
            {"if columns[at] >= 0": "if columns[at]"},
            "negative-index",
        ),
        Wrong(
            "Padding has column -1, and x has no such element. Add only where the column is 0 or more.",
            {"if columns[at] >= 0": "if at >= 0"},
            "negative-index",
        ),
        Wrong(
            "Column 0 is a column like any other: only -1 is padding.",
            {"if columns[at] >= 0": "if columns[at] > 0"},
        ),
        Wrong(
            "The product is dropped, but x has been read at column -1 by then: look at the column first.",
            {
                "            if columns[at] >= 0:\n                total += values[at] * x[columns[at]]\n": (
                    "            product = values[at] * x[columns[at]]\n"
                    "            total += product if columns[at] >= 0 else np.float32(0)\n"
                )
            },
            "negative-index",
        ),
        Wrong(
            "Each row has width places, numbers 0 to width - 1.",
            {"range(width)": "range(width - 1)"},
        ),
        Wrong(
            "The last block has threads without a row: check row < y.size.",
            {"if row < y.size": "if row >= 0"},
            "out-of-bounds",
        ),
        Wrong(
            "That is the last product of each row. Add them up.",
            {"total += values[at]": "total = values[at]"},
        ),
        Wrong(
            "y comes with anything in it: store the sum, do not add to y.",
            {"y[row] = total": "y[row] += total"},
        ),
    ],
    hints=[
        "Element k of the row is number k * y.size + row: first come the first elements of all rows, then the second.",
        "There are `width` places in each row. Where the column is -1 there is nothing to add.",
        "if columns[at] >= 0: total += values[at] * x[columns[at]], with at = k * y.size + row.",
    ],
    why="At each step the lanes of a warp read neighbouring elements, so a thread per row loads whole sectors. The "
    "price is the padding: one long row makes all others as long.",
)


EXERCISES = [ADDITIONS, STEPS, DOWN, PAD, WARP, SCATTER, PRIVATE, DIGIT, ROW, SPMV, ELL]
