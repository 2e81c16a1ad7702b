"""Exercises of chapter 07, reductions."""

import math

import numpy as np

from gpukit import results
from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, KernelExercise, Out, Wrong
from gpukit.reduce import ladder, primitives
from warpstep.integers import ceil_div


def sums_of_blocks(x):
    """The sum of every 256 elements."""
    padded = np.zeros(ceil_div(x.size, 256) * 256)
    padded[: x.size] = x
    return padded.reshape(-1, 256).sum(1).astype(np.float32)


# -- 07-tree --------------------------------------------------------------------------------------------------------


def blocks_to_add(rng):
    for n in (256, 1, 1000, 2048):
        x = rng.standard_normal(n).astype(np.float32)
        blocks = ceil_div(n, 256)
        yield Case((x, Out(blocks)), blocks, 256, label=f"n = {n}")


@cuda.jit
def tree(x, out):
    values = cuda.shared.array(256, np.float32)  # the block has 256 threads
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    # HOLE about 6 lines: for steps of 128, 64 ... 1, add element tid + step to element tid
    step = 128
    while step > 0:
        if tid < step:
            values[tid] += values[tid + step]
        cuda.syncthreads()
        step //= 2
    # END
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


@cuda.jit
def tree_of_mirrored_pairs(x, out):
    values = cuda.shared.array(256, np.float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else np.float32(0)
    for left in (256, 128, 64, 32, 16, 8, 4, 2):
        cuda.syncthreads()
        if tid < left // 2:
            values[tid] += values[left - 1 - tid]
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


TREE = KernelExercise(
    "07-tree",
    task="Add up the values of a block by a tree, with neighbouring threads on neighbouring elements.",
    spec=sums_of_blocks,
    cases=blocks_to_add,
    solutions=[tree, tree_of_mirrored_pairs],
    limits={"shared wavefronts": 1.0, "bank conflicts": 1.0, "barriers": 1.0},
    wrong=[
        Wrong(
            "Right, but every second lane of a warp is idle, then three of four: this is the first tree. "
            "The threads that add must be the first `step` of the block.",
            {
                "step = 128": "step = 1",
                "step > 0": "step < 256",
                "tid < step": "tid % (2 * step) == 0",
                "step //= 2": "step *= 2",
            },
            "cost: shared wavefronts",
        ),
        Wrong(
            "Right, but neighbouring lanes are 2 * step words apart, so they meet in the same banks: this is the "
            "second tree. Begin with the largest step.",
            {
                "step = 128": "step = 1",
                "step > 0": "step < 256",
                "tid < step": "2 * step * tid < 256",
                "values[tid] += values[tid + step]": "values[2 * step * tid] += values[2 * step * tid + step]",
                "step //= 2": "step *= 2",
            },
            "cost: shared wavefronts",
        ),
        Wrong(
            "Right, but one thread adds, 255 times, and 255 threads watch. Let thread t add the element t + step.",
            {
                "while step > 0:\n        if tid < step:\n            values[tid] += values[tid + step]\n"
                "        cuda.syncthreads()\n        step //= 2": (
                    "if tid == 0:\n        for k in range(1, 256):\n            values[0] += values[k]"
                )
            },
            "cost: shared wavefronts",
        ),
        Wrong(
            "In the next step a thread reads what another one has just written. "
            "A barrier belongs at the end of each step.",
            {"        cuda.syncthreads()\n        step": "        step"},
            "race",
        ),
        Wrong(
            "Threads add that no longer need to: in the step of 64, thread 64 changes its element while thread 0 reads "
            "it. Only the first `step` threads add.",
            {"tid < step": "tid + step < 256"},
            "race",
        ),
        Wrong(
            "The lanes of a warp do not run in lockstep: in the last steps lane 16 may change its element before "
            "lane 0 has read it. A shuffle is safe there, a read of shared memory is not.",
            {
                "step > 0": "step > 32",
                "        step //= 2\n": "        step //= 2\n    if tid < 32:\n        while step > 0:\n"
                "            values[tid] += values[tid + step]\n            cuda.syncwarp()\n"
                "            step //= 2\n",
            },
            "race",
        ),
        Wrong(
            "The threads of the other half add as well, beyond the end of the array. "
            "Only threads with tid < step have a partner.",
            {"if tid < step:": "if tid < 256:"},
            "out-of-bounds",
        ),
        Wrong(
            "Thread `step` has no partner: tid < step, not tid <= step.",
            {"tid < step": "tid <= step"},
            "out-of-bounds",
        ),
        Wrong(
            "256 values are added by 128 threads: the first step is 128.",
            {"step = 128": "step = 256"},
            "out-of-bounds",
        ),
        Wrong(
            "The loop ends before the step of 1, so element 1 is missing from the sum.",
            {"step > 0": "step > 1"},
        ),
        Wrong(
            "step never changes, so the loop never ends: halve it after the barrier.",
            {"        step //= 2\n": ""},
            "no-progress",
        ),
        Wrong(
            "`/` makes a float, and a float is no index. Halve with step //= 2, or step >>= 1.",
            {"step //= 2": "step /= 2"},
            "does not compile",
        ),
    ],
    hints=[
        "A while loop over step, which begins at 128 and is halved; what may the threads with tid >= step do?",
        "In each step: if tid < step, add values[tid + step] to values[tid]. Then all threads meet at a barrier.",
        "step = 128; while step > 0: ...; cuda.syncthreads(); step //= 2. The barrier is not inside the if.",
    ],
    why="Whole warps add or rest, and the lanes of a warp read 32 neighbouring words. "
    "The barrier is for all threads, so it is outside the if.",
)


# -- 07-waits -------------------------------------------------------------------------------------------------------


def gain_of_sequential():
    """The interval of the speed-up from interleaved_conflict to sequential, 2**28 elements on an H200."""
    times = results.by_variant(results.load("reduce-h200", case="ladder"), shape=(2**28,))
    gain = times["interleaved_conflict"] / times["sequential"]
    return "a" if gain > 3 else "b" if gain > 2 else "c" if gain > 1.2 else "d"


WAITS = AnswerExercise(
    "07-waits",
    task='Predict how much faster `sequential` is than `interleaved_conflict`: "a", "b", "c" or "d".',
    spec=gain_of_sequential,
    wrong=[
        Wrong(
            "That would be so if the kernel waited for shared memory. It waits for something else.",
            "a",
        ),
        Wrong("Still too much: a count says what is wasted, not what the kernel waits for.", "b"),
        Wrong("It is even less.", "c"),
    ],
    hints=["What else does a block of 256 threads do for its 256 numbers? Count its barriers."],
    why="The wavefronts were not what the kernel waited for, so it hardly helps to need fewer of them.",
)


# -- 07-warp --------------------------------------------------------------------------------------------------------


def warps_to_add(rng):
    yield Case((np.ones(32, np.float32), Out(32)), 1, 32, label="ones")
    yield Case((2.0 ** np.arange(-16, 16).astype(np.float32), Out(32)), 1, 32, label="powers of two")
    yield Case((rng.standard_normal(384).astype(np.float32), Out(384)), 3, 128, label="12 warps")


def kernel_of_warp_sum(warp_sum):
    """The kernel in which every lane stores what the answer gives it."""

    @cuda.jit
    def sums_of_warps(x, out):
        i = cuda.grid(1)
        out[i] = warp_sum(x[i])

    return sums_of_warps


@cuda.jit(device=True)
def warp_sum(value):
    # HOLE about 2 lines: for five distances, add the value of lane ^ distance
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)
    # END
    return value


@cuda.jit(device=True)
def warp_sum_handed_back(value):
    for distance in (1, 2, 4, 8, 16):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
    return cuda.shfl_sync(0xFFFFFFFF, value, 0)


@cuda.jit(device=True)
def warp_sum_in_shared_memory(value):
    values = cuda.shared.array(1024, np.float32)
    tid = cuda.threadIdx.x
    values[tid] = value
    cuda.syncwarp()
    value = np.float32(0)
    for lane in range(32):
        value += values[tid // 32 * 32 + lane]
    return value


@cuda.jit(device=True)
def warp_sum_by_lane_0(value):
    total = np.float32(0)
    for lane in range(32):
        total += cuda.shfl_sync(0xFFFFFFFF, value, lane)
    return total


WARP = KernelExercise(
    "07-warp",
    task="Give every lane the sum of its warp: by shuffles, without shared memory.",
    spec=lambda x: np.repeat(x.reshape(-1, 32).sum(1, dtype=np.float64), 32).astype(np.float32),
    cases=warps_to_add,
    make=kernel_of_warp_sum,
    solutions=[warp_sum, warp_sum_handed_back],
    limits={"shared wavefronts": 1.0, "float32 operations": 1.0},
    wrong=[
        Wrong(
            "Right, by shared memory. A shuffle reads the register of another lane directly.",
            warp_sum_in_shared_memory,
            "cost: shared wavefronts",
        ),
        Wrong(
            "Right, but each lane makes 32 additions, one after the other. A tree needs five steps: "
            "every one doubles the number of values in the sum.",
            warp_sum_by_lane_0,
            "cost: float32 operations",
        ),
        Wrong(
            "With shfl_down_sync only lane 0 has the whole sum; the lanes at the end have no lane below them. "
            "shfl_xor_sync pairs the lanes, and both of a pair add.",
            {"shfl_xor_sync": "shfl_down_sync"},
        ),
        Wrong(
            "shfl_up_sync hands values to higher lanes, so only lane 31 has all of them.",
            {"shfl_xor_sync": "shfl_up_sync"},
        ),
        Wrong(
            "The last step is missing: even and odd lanes have different sums. The distances are 16, 8, 4, 2 and 1.",
            {"(16, 8, 4, 2, 1)": "(16, 8, 4, 2)"},
        ),
        Wrong(
            "The step of 16 is missing: each half of the warp has a sum of its own.",
            {"(16, 8, 4, 2, 1)": "(8, 4, 2, 1)"},
        ),
        Wrong(
            "The value of the other lane replaces your own: add it.",
            {"value += cuda": "value = cuda"},
        ),
        Wrong(
            "Distances of 1, 2, 3, 4, 5 add some lanes twice and others never. They must be powers of two.",
            {"(16, 8, 4, 2, 1)": "(1, 2, 3, 4, 5)"},
        ),
    ],
    hints=[
        "cuda.shfl_xor_sync(0xFFFFFFFF, value, distance) gives you the value of lane ^ distance.",
        "After the step with distance 16, lanes 0 and 16 have the same sum of two. Which distance comes next?",
        "for distance in (16, 8, 4, 2, 1): value += ...",
    ],
    why="Both lanes of a pair add, so after five steps all 32 have the sum. "
    "The mask 0xFFFFFFFF says that all 32 lanes take part.",
)


# -- 07-last --------------------------------------------------------------------------------------------------------


def arrays_to_add(rng):
    for n in (3000, 1, 256 * 256):
        x, blocks = rng.standard_normal(n).astype(np.float32), ceil_div(n, 256)
        arrays = x, np.full(blocks, np.nan, np.float32), np.zeros(1, np.uint32), Out(1)
        yield Case(arrays, blocks, 256, label=f"n = {n:,}")


def sum_of_all(x, partials, counter):
    return np.array([x.sum(dtype=np.float64)], np.float32)


@cuda.jit
def last_block(x, partials, counter, out):
    values = cuda.shared.array(8, np.float32)
    is_last = cuda.shared.array(1, np.int32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    total = ladder.block_sum(x[i] if i < x.size else np.float32(0), values)  # thread 0 has it
    # HOLE about 10 lines: store the block's sum, count the block; the last one adds up all sums
    if tid == 0:
        partials[cuda.blockIdx.x] = total
        cuda.threadfence()
        is_last[0] = cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1
        cuda.threadfence()
    cuda.syncthreads()
    if is_last[0]:
        total = ladder.block_sum(partials[tid] if tid < cuda.gridDim.x else np.float32(0), values)
        if tid == 0:
            out[0] = total
    # END


@cuda.jit
def last_block_by_primitive(x, partials, counter, out):
    values = cuda.shared.array(8, np.float32)
    flag = cuda.shared.array(1, np.int32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    total = ladder.block_sum(x[i] if i < x.size else np.float32(0), values)
    if tid == 0:
        partials[cuda.blockIdx.x] = total
    if primitives.is_last(counter, 0, cuda.gridDim.x, flag):
        mine, k = np.float32(0), tid
        while k < cuda.gridDim.x:
            mine += partials[k]
            k += cuda.blockDim.x
        total = ladder.block_sum(mine, values)
        if tid == 0:
            out[0] = total


LAST = KernelExercise(
    "07-last",
    task="Add up an array of up to 65,536 elements in one launch: the block that finishes last adds the blocks' sums.",
    spec=sum_of_all,
    cases=arrays_to_add,
    solutions=[last_block, last_block_by_primitive],
    limits={"global load sectors": 1.0},
    wrong=[
        Wrong(
            "Other blocks may see the count, and not yet the sum that it stands for: nothing orders the two stores. "
            "A cuda.threadfence() before the count does.",
            {"        cuda.threadfence()\n        is_last": "        is_last", "1\n        cuda.threadfence()": "1"},
            "race",
        ),
        Wrong(
            "A barrier holds for one block, and the sums cross from block to block. "
            "That takes a cuda.threadfence() between the sum and the count.",
            {"cuda.threadfence()\n        is_last": "cuda.syncwarp()\n        is_last"},
            "race",
        ),
        Wrong(
            "Nobody is the last: atomic.add returns the count *before* the addition, at most gridDim.x - 1.",
            {"cuda.gridDim.x - 1": "cuda.gridDim.x"},
            "unwritten",
        ),
        Wrong(
            "All threads read is_last, and thread 0 may not have stored it yet: a barrier has to stand between.",
            {"    cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            'All threads count, 256 times for each block, so "last" comes true too early. Thread 0 counts alone.',
            {
                "        is_last[0] = cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1\n"
                "        cuda.threadfence()\n    cuda.syncthreads()": (
                    "    is_last[0] = cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1\n"
                    "    cuda.threadfence()\n    cuda.syncthreads()"
                )
            },
            "race",
        ),
        Wrong(
            "The block with the largest number is not the one that finishes last: blocks run in any order. Count them.",
            {
                "cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1": "cuda.blockIdx.x == cuda.gridDim.x - 1",
            },
            "race",
        ),
        Wrong(
            "One thread reads the sums one after the other, and each read has to wait for its answer. "
            "Let thread t take sum t, and use block_sum again.",
            {
                "total = ladder.block_sum(partials[tid] if tid < cuda.gridDim.x else np.float32(0), values)\n"
                "        if tid == 0:\n            out[0] = total": (
                    "if tid == 0:\n            total = np.float32(0)\n"
                    "            for k in range(cuda.gridDim.x):\n                total += partials[k]\n"
                    "            out[0] = total"
                )
            },
            "cost: global load sectors",
        ),
        Wrong(
            "There are gridDim.x sums; with fewer than 256 blocks some threads have none. They take 0.",
            {"partials[tid] if tid < cuda.gridDim.x else np.float32(0)": "partials[tid]"},
            "out-of-bounds",
        ),
        Wrong(
            "Only block_sum's thread 0 has the sum, and all threads store theirs in the same element.",
            {"        if tid == 0:\n            out[0]": "        if True:\n            out[0]"},
            "race",
        ),
    ],
    hints=[
        "Thread 0: store the sum in partials[blockIdx.x]; count with cuda.atomic.add(counter, 0, 1), which returns the "
        "count before; compare it with gridDim.x - 1, and put the answer into is_last[0].",
        "A cuda.threadfence() before the count makes the sum visible first. One after it keeps later reads later.",
        "Then cuda.syncthreads(), so that all threads know is_last[0]. In the last block thread t takes partials[t], "
        "0 if there is none, and block_sum adds them up for thread 0, which stores out[0].",
    ],
    why="The counter tells the last block that all sums are there; the two fences make that true of the memory, too. "
    "The sums are added in the order of the blocks, whichever finished last, so the bits are always the same.",
)


# -- 07-half --------------------------------------------------------------------------------------------------------


def ones_in_float16():
    total = np.float16(0)
    for _ in range(10_000):
        total += np.float16(1)
    return float(total)


HALF = AnswerExercise(
    "07-half",
    task="Predict the sum of 10,000 ones that are added one after the other, all in float16.",
    spec=ones_in_float16,
    wrong=[
        Wrong(
            "float16 can hold 10,000, but the sum does not get that far: a float16 has 11 significant bits.",
            10000.0,
        ),
        Wrong("The largest float16 is 65,504, so nothing overflows here. The steps become too small.", float("inf")),
        Wrong("That is the largest float16. The sum stops long before it.", 65504.0),
        Wrong("Close: 1,024 + 1 is still a float16. From where on are two neighbouring float16 2 apart?", 1024.0),
    ],
    hints=["From which number on are two neighbouring float16 2 apart? A float16 has 11 significant bits."],
    why="2,048 needs 12 bits, so its neighbour is 2,050. 2,048 + 1 lies in the middle and is rounded to even: 2,048.",
)


# -- 07-columns -----------------------------------------------------------------------------------------------------


def sums_of_parts(x, each):
    """The sum of every ``each`` rows."""
    return np.add.reduceat(x.astype(np.float64), np.arange(0, x.shape[1], each), axis=1).astype(np.float32)


def arrays_of_rows(rng):
    for (outer, n, inner), each in (((1, 8, 64), 8), ((1, 7, 60), 4), ((3, 13, 100), 5), ((2, 1, 1), 4)):
        x, parts = rng.standard_normal((outer, n, inner)).astype(np.float32), ceil_div(n, each)
        label = f"{outer} x {n} x {inner}, {each} rows for a block"
        yield Case((x, each, Out((outer, parts, inner))), (ceil_div(inner, 64), parts, outer), 64, label=label)


@cuda.jit
def columns(x, each, out):
    column, part, o = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z
    if column < x.shape[2]:
        total = np.float32(0)
        # HOLE about 7 lines: two rows of the part per step, and then an odd one
        #| for row in range(0, x.shape[1], 2):
        #|     total += x[0, row, column] + x[0, row + 1, column]
        row = part * each
        stop = min(row + each, x.shape[1])
        while row + 1 < stop:
            total += x[o, row, column] + x[o, row + 1, column]
            row += 2
        if row < stop:
            total += x[o, row, column]
        # END
        out[o, part, column] = total


@cuda.jit
def columns_by_pairs(x, each, out):
    column, part, o = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z
    if column < x.shape[2]:
        rows = min(each, x.shape[1] - part * each)
        total = x[o, part * each + rows - 1, column] if rows % 2 else np.float32(0)
        for pair in range(rows // 2):
            at = part * each + 2 * pair
            total += x[o, at, column] + x[o, at + 1, column]
        out[o, part, column] = total


COLUMNS = KernelExercise(
    "07-columns",
    task="Reduce the middle axis: columns along x, parts of the rows along y, the outer axis along z.",
    spec=sums_of_parts,
    cases=arrays_of_rows,
    solutions=[columns, columns_by_pairs],
    limits={"global load sectors": 1.0},
    wrong=[
        Wrong(
            "Where the number of rows is odd, the last step reads a row of the next part, or beyond the array. "
            "Take two rows only while both exist, and one at the end.",
            {
                "row + 1 < stop": "row < stop",
                "        if row < stop:\n            total += x[o, row, column]\n": "",
            },
            "out-of-bounds",
        ),
        Wrong(
            "The last row of an odd number is left out: after the loop there may be one more.",
            {"        if row < stop:\n            total += x[o, row, column]\n": ""},
        ),
        Wrong(
            "The last part may have fewer rows: it ends where the array ends.",
            {"min(row + each, x.shape[1])": "row + each"},
            "out-of-bounds",
        ),
        Wrong(
            "Every part goes on to the last row, so rows are added several times. A part has at most `each` rows.",
            {"min(row + each, x.shape[1])": "x.shape[1]"},
        ),
        Wrong(
            "The second row of a step must belong to the part, too: compare row + 1 with the end of the part, "
            "not with the end of the array.",
            {"row + 1 < stop": "row < stop and row + 1 < x.shape[1]"},
        ),
        Wrong(
            "The odd row is dealt with. But every block still adds all rows of slice 0: "
            "a block has the rows from part * each on, of slice o.",
            {
                "row = part * each": "row = 0",
                "min(row + each, x.shape[1])": "x.shape[1]",
                "x[o, row, column] + x[o, row + 1, column]": "x[0, row, column] + x[0, row + 1, column]",
                "            total += x[o, row, column]\n": "            total += x[0, row, column]\n",
            },
        ),
        Wrong(
            "Every part begins at row 0: part 1 begins at row `each`.",
            {"row = part * each": "row = 0"},
        ),
        Wrong(
            "All of z add the first slice: x[o, ...], not x[0, ...].",
            {
                "x[o, row, column] + x[o, row + 1, column]": "x[0, row, column] + x[0, row + 1, column]",
                "            total += x[o, row, column]\n": "            total += x[0, row, column]\n",
            },
        ),
        Wrong(
            "Right, but each row is read twice: a step takes rows `row` and `row + 1`, so the next begins at row + 2.",
            {"row += 2": "row += 1"},
        ),
        Wrong(
            "The row after the pairs is added although it does not exist where their number is even.",
            {"        if row < stop:\n            total": "        if True:\n            total"},
            "out-of-bounds",
        ),
    ],
    hints=[
        "A block is responsible for rows part * each to part * each + each - 1 of slice o, as far as they exist.",
        "stop = min(part * each + each, x.shape[1]). Step through the rows by two while row + 1 < stop.",
        "After the loop, one row may be left: if row < stop, add it.",
    ],
    why="The loop needs no check of the second row, because its condition implies it; the odd row is dealt with once, "
    "after the loop. All threads of a block take the same path, so the branch does not diverge.",
)


# -- 07-log ---------------------------------------------------------------------------------------------------------


def logarithms(rng):
    for label, x in {
        "small numbers": rng.standard_normal(64),
        "exp overflows": 1000 + rng.standard_normal(64),
        "exp underflows": rng.standard_normal(64) - 1000,
        "far apart": np.linspace(-2000, 2000, 64),
        "five numbers, the rest -inf": rng.standard_normal(5),
    }.items():
        yield Case((x.astype(np.float32), Out(1)), 1, 64, label=label)


def kernel_of_function(function):
    """A tree of one block, as `reduce` would make it: threads without an element start from the identity."""

    @cuda.jit
    def reduced(x, out):
        values = cuda.shared.array(64, np.float32)
        tid = cuda.threadIdx.x
        values[tid] = x[tid] if tid < x.size else np.float32(-math.inf)
        step = 32
        while step > 0:
            cuda.syncthreads()
            if tid < step:
                values[tid] = function(values[tid], values[tid + step])
            step //= 2
        if tid == 0:
            out[0] = values[0]

    return reduced


@cuda.jit(device=True)
def log_add(a, b):
    # HOLE about 4 lines: the same, for any a and b, -inf included
    #| return math.log(math.exp(a) + math.exp(b))
    larger, smaller = max(a, b), min(a, b)
    if smaller == -math.inf:
        return larger
    return larger + math.log1p(math.exp(smaller - larger))
    # END


@cuda.jit(device=True)
def log_add_by_shift(a, b):
    if a == b:
        return a + math.log(2.0)
    shift = a if a > b else b
    return shift + math.log(math.exp(a - shift) + math.exp(b - shift))


LOG = KernelExercise(
    "07-log",
    task="Compute log(exp(a) + exp(b)) for any a and b, also where exp overflows or underflows.",
    spec=lambda x: np.array([np.logaddexp.reduce(x.astype(np.float64))], np.float32),
    cases=logarithms,
    make=kernel_of_function,
    solutions=[log_add, log_add_by_shift],
    rtol=1e-4,
    wrong=[
        Wrong(
            "exp(1000) is inf in float32, and exp(-1000) is 0. Take the larger number out: "
            "log(exp(a) + exp(b)) = a + log(1 + exp(b - a)), with a the larger.",
            {
                "    larger, smaller = max(a, b), min(a, b)\n    if smaller == -math.inf:\n        return larger\n": "",
                "larger + math.log1p(math.exp(smaller - larger))": "math.log(math.exp(a) + math.exp(b))",
            },
        ),
        Wrong(
            "The identity combined with itself must give the identity. Here -inf less -inf is NaN, "
            "and a tree meets that wherever elements are missing.",
            {"    if smaller == -math.inf:\n        return larger\n": ""},
        ),
        Wrong(
            "Right, until both numbers are -inf: a - b is NaN then. A tree combines the identity with itself wherever "
            "elements are missing, so deal with -inf first.",
            {
                "    larger, smaller = max(a, b), min(a, b)\n    if smaller == -math.inf:\n        return larger\n": "",
                "larger + math.log1p(math.exp(smaller - larger))": "max(a, b) + math.log1p(math.exp(-abs(a - b)))",
            },
        ),
        Wrong(
            "The exponent has the wrong sign: exp(larger - smaller) overflows where the two are far apart.",
            {"math.exp(smaller - larger)": "math.exp(larger - smaller)"},
        ),
        Wrong(
            "This takes the smaller number out, so exp(larger - smaller) still overflows. Take out the larger.",
            {"larger + math.log1p(math.exp(smaller - larger))": "smaller + math.log1p(math.exp(larger - smaller))"},
        ),
        Wrong(
            "The number that was taken out has to be added again, after the logarithm.",
            {"larger + math.log1p": "math.log1p"},
        ),
        Wrong(
            "The maximum is a good estimate, but it leaves the other number out.",
            {"larger + math.log1p(math.exp(smaller - larger))": "larger"},
        ),
        Wrong(
            "The 1 is missing: of the two terms, the larger one has become exp(0).",
            {"math.log1p(": "math.log("},
        ),
    ],
    hints=[
        "Take exp(larger) out of the sum: what is left inside the logarithm is at most 2.",
        "log(exp(a) + exp(b)) = larger + log(1 + exp(smaller - larger)). math.log1p(y) is log(1 + y).",
        "If both are -inf, smaller - larger is NaN. Return larger if smaller is -inf.",
    ],
    why="exp(smaller - larger) lies between 0 and 1, whatever the numbers are. "
    "The identity needs a line of its own, because -inf - -inf is NaN.",
)


# -- 07-index -------------------------------------------------------------------------------------------------------


def indices(x):
    return x.reshape(-1, 256).argmax(1).astype(np.int64)


def blocks_to_search(rng):
    alike = np.zeros(256, np.float32)
    alike[[72, 80, 144]] = 1  # the first two are in one warp, the third in another
    some = rng.integers(0, 50, 5 * 256).astype(np.float32)
    negative = -1 - rng.random(256, np.float32)
    for label, x in {
        "random": rng.standard_normal(256).astype(np.float32),
        "negative values": negative,
        "several largest": alike,
        "all alike": np.full(256, 3, np.float32),
        "increasing": np.arange(256, dtype=np.float32),
        "five blocks": some,
    }.items():
        yield Case((x, Out(x.size // 256, np.int64)), x.size // 256, 256, label=label)


@cuda.jit
def index_of_largest(x, out):
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    # HOLE about 15 lines: by shuffles within each warp, then across the eight warps
    #| if tid == 0:
    #|     out[cuda.blockIdx.x] = 0
    values = cuda.shared.array(8, np.float32)
    found = cuda.shared.array(8, np.int32)
    value, index = x[i], np.int32(tid)
    for distance in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)
        its = cuda.shfl_xor_sync(0xFFFFFFFF, index, distance)
        if other > value or (other == value and its < index):
            value, index = other, its
    if tid % 32 == 0:
        values[tid // 32], found[tid // 32] = value, index
    cuda.syncthreads()
    if tid == 0:
        for warp in range(1, 8):
            if values[warp] > value:
                value, index = values[warp], found[warp]
        out[cuda.blockIdx.x] = index
    # END


@cuda.jit
def index_of_largest_by_ballot(x, out):
    values = cuda.shared.array(8, np.float32)
    found = cuda.shared.array(8, np.int32)
    tid = cuda.threadIdx.x
    mine = x[cuda.grid(1)]
    largest = mine
    for distance in (1, 2, 4, 8, 16):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
    have_it = cuda.ballot_sync(0xFFFFFFFF, mine == largest)  # a bit for each lane
    if tid % 32 == 0:
        values[tid // 32], found[tid // 32] = largest, tid + cuda.ffs(have_it) - 1
    cuda.syncthreads()
    if tid == 0:
        for warp in range(7, -1, -1):
            if values[warp] >= largest:
                largest, index = values[warp], found[warp]
        out[cuda.blockIdx.x] = index


@cuda.jit
def index_by_thread_0(x, out):
    if cuda.threadIdx.x == 0:
        first = cuda.blockIdx.x * 256
        index = first
        for i in range(first + 1, first + 256):
            if x[i] > x[index]:
                index = i
        out[cuda.blockIdx.x] = index - first


@cuda.jit
def index_in_shared_memory(x, out):
    values = cuda.shared.array(256, np.float32)
    found = cuda.shared.array(256, np.int32)
    tid = cuda.threadIdx.x
    values[tid], found[tid] = x[cuda.grid(1)], tid
    cuda.syncthreads()
    step = 128
    while step > 0:
        if tid < step:
            other, its = values[tid + step], found[tid + step]
            if other > values[tid] or (other == values[tid] and its < found[tid]):
                values[tid], found[tid] = other, its
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = found[0]


TIES = "if other > value or (other == value and its < index):"
INDEX = KernelExercise(
    "07-index",
    task="Find the index of the largest of a block's 256 numbers by shuffles, the first if there are several.",
    spec=indices,
    cases=blocks_to_search,
    solutions=[index_of_largest, index_of_largest_by_ballot],
    limits={"shared wavefronts": 2.0, "global load sectors": 1.0, "barriers": 2.0},
    wrong=[
        Wrong(
            "Right, but one thread reads 256 numbers, one after the other. Every thread should load one, "
            "and the lanes compare them by shuffles.",
            index_by_thread_0,
            "cost: global load sectors",
        ),
        Wrong(
            "Right, by a tree in shared memory with eight barriers. Inside a warp, shuffles need neither.",
            index_in_shared_memory,
            "cost: shared wavefronts",
        ),
        Wrong(
            "Which of two equal values wins depends on the lane, so a later index may come out. "
            "Where the values are equal, the smaller index must win.",
            {TIES: "if other > value:"},
        ),
        Wrong(
            "Where several are the largest, this gives the last of them. Equal values: the smaller index.",
            {TIES: "if other > value or (other == value and its > index):"},
        ),
        Wrong(
            "With >= the two lanes of a pair swap equal values, and each keeps the other's index. "
            "Compare with >, and decide equal values by the index.",
            {TIES: "if other >= value:"},
        ),
        Wrong(
            "The indices are those of the first warp: its lanes have seen 32 of the 256 numbers.",
            {"range(1, 8)": "range(0)"},
        ),
        Wrong(
            "The index counts within the warp. Within the block it is threadIdx.x.",
            {"np.int32(tid)": "np.int32(tid % 32)"},
        ),
        Wrong(
            "The index counts over all blocks. Within the block it is threadIdx.x.",
            {"np.int32(tid)": "np.int32(i)"},
        ),
        Wrong(
            "The value travels and the index stays: shuffle both, and take both together.",
            {"value, index = other, its": "value = other"},
        ),
        Wrong(
            "Thread 0 reads what the first lanes of other warps have stored: they need a barrier between.",
            {"    cuda.syncthreads()\n": ""},
            "race",
        ),
        Wrong(
            "Eight threads look through the eight warps and store in the same element; each began with its own warp. "
            "One thread is enough.",
            {"if tid == 0:\n        for": "if tid % 32 == 0:\n        for"},
            "race",
        ),
        Wrong(
            "Across the warps the later one wins where values are equal. Compare with >, as the first warp is first.",
            {"values[warp] > value": "values[warp] >= value"},
        ),
        Wrong(
            "A maximum that begins at 0 is wrong for negative numbers. Begin with a value of the array.",
            {"for warp in range(1, 8)": "value = max(value, np.float32(0))\n        for warp in range(1, 8)"},
        ),
    ],
    hints=[
        "Each lane holds a value and an index. Shuffle both; when do you take the other lane's pair?",
        "Take it if its value is larger, or if the values are equal and its index is smaller.",
        "Then the first lane of each warp stores both in shared memory, at tid // 32; after a barrier one thread, "
        "or the first warp, looks through the eight.",
    ],
    why="The pair (value, index) has an order of its own: larger value first, then smaller index. "
    "A tree may combine pairs in any order, because the larger of two pairs is associative and commutative.",
)

EXERCISES = [TREE, WARP, LAST, WAITS, HALF, COLUMNS, LOG, INDEX]
