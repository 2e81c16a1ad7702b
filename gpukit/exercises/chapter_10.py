"""Exercises of chapter 10, profiling."""

import numpy as np

from gpukit import pitfalls, prediction, results
from gpukit.backend import cuda
from gpukit.exercises.exercise import AnswerExercise, Case, FunctionExercise, InOut, KernelExercise, Out, Wrong
from warpstep import trace

# -- 10-amdahl ------------------------------------------------------------------------------------------------------


def speedup_without_kernels():
    """How many times faster the recorded program would be if its kernels took no time."""
    _, rows = results.profile("timeline-h200")
    begins, durations = ([float(row[name]) for row in rows] for name in ("begin", "duration"))
    span = max(b + d for b, d in zip(begins, durations, strict=True)) - min(begins)
    kernels = sum(d for row, d in zip(rows, durations, strict=True) if row["name"] == "tiled")
    return round(span / (span - kernels), 4)


AMDAHL = AnswerExercise(
    "10-amdahl",
    task="How many times faster would the program be if its kernels took no time? Give the factor to two decimals.",
    spec=speedup_without_kernels,
    rtol=0.004,
    wrong=[
        Wrong(
            "That is the whole over the kernels. They shrink to nothing, but all the rest of the time stays.",
            round(1 / (1 - 1 / speedup_without_kernels()), 1),
        ),
        Wrong(
            "Nearly, but not nothing: the time that is left is a little less than the whole. Divide the whole by it.",
            1.0,
        ),
        Wrong(
            "That is the share of the kernels. The factor is the whole time over the time that is left.",
            round(1 - 1 / speedup_without_kernels(), 3),
        ),
        Wrong(
            "That is the share of the kernels in percent. The factor is the whole time over the time that is left.",
            round(100 - 100 / speedup_without_kernels(), 1),
        ),
        Wrong(
            "That is the time that is left, as a share of the whole. The factor is its reciprocal.",
            round(1 / speedup_without_kernels(), 3),
        ),
    ],
    hints=[
        "The factor is the time before over the time after.",
        "After: the whole time less that of the kernels. Both are printed below the timeline.",
    ],
    why="Amdahl's law: the part that is not improved stays. With a share s made infinitely fast the factor is "
    "1 / (1 - s).",
)


# -- 10-balance -----------------------------------------------------------------------------------------------------


def balance(bandwidth="dram_read"):
    ceilings = prediction.recorded()
    return round(ceilings.fp32 / (getattr(ceilings, bandwidth) / 4), 1)


BALANCE = AnswerExercise(
    "10-balance",
    task="How many float32 operations can the H200 do in the time in which it reads one float32 from memory?",
    spec=balance,
    rtol=0.015,
    wrong=[
        Wrong("That is the number for one byte; a float32 has four.", balance() / 4),
        Wrong(
            "A multiply-add is two operations, and the ceiling counts them as two already: do not halve it.",
            balance() / 2,
        ),
        Wrong("A copy moves every byte twice. The question is about reading.", balance("dram_copy")),
        Wrong("The bandwidth is in bytes per second, not in bits: a float32 is 4 of them, not 32.", balance() / 8),
    ],
    hints=[
        "How many float32 does memory deliver in a second? How many operations can be done in that second?",
        "Operations per second over (bytes per second over 4).",
    ],
    why="A kernel that does fewer operations for each value it reads waits for memory, whatever its arithmetic.",
)


# -- 10-diagnosis ---------------------------------------------------------------------------------------------------

FLOAT64, LAUNCH, BANKS, DIVERGENCE, UNCOALESCED = pitfalls.PATIENTS

DIAGNOSIS = AnswerExercise(
    "10-diagnosis",
    task="Name what is wrong with each of the five patients, as a list of five of the names in the table.",
    spec=lambda: list(pitfalls.PATIENTS),
    wrong=[
        Wrong(
            "Patients 3 and 4 are exchanged. Lanes that wait show in the last column of the trace, "
            "conflicts in the column of that name.",
            [FLOAT64, LAUNCH, DIVERGENCE, BANKS, UNCOALESCED],
        ),
        Wrong(
            "Patients 2 and 5 are exchanged. Patient 2 has all its sectors at the ideal; how many launches are there?",
            [FLOAT64, UNCOALESCED, BANKS, DIVERGENCE, LAUNCH],
        ),
        Wrong(
            "Patients 3 and 5 are exchanged. Bank conflicts are in shared memory, which patient 5 does not use.",
            [FLOAT64, LAUNCH, UNCOALESCED, DIVERGENCE, BANKS],
        ),
        Wrong(
            "Patients 4 and 5 are exchanged. All lanes of patient 5 are active, and it needs an eighth of its sectors.",
            [FLOAT64, LAUNCH, BANKS, UNCOALESCED, DIVERGENCE],
        ),
        Wrong(
            "Patients 1 and 4 are exchanged. Read the arithmetic: which of them computes in float64, though no array "
            "holds one?",
            [DIVERGENCE, LAUNCH, BANKS, FLOAT64, UNCOALESCED],
        ),
    ],
    hints=[
        "Each illness has its own column: sectors and their ideal, conflicts, FP64, lanes. One of them has none: "
        "look at the line above the traces.",
        "Sectors: 5. Conflicts: 3. Lanes: 4. FP64: 1. Launches: 2.",
    ],
    why="A trace shows what a single launch asks for. What a program does too often, only a timeline or the list of "
    "launches shows.",
)


# -- 10-cure --------------------------------------------------------------------------------------------------------


def swung(x):
    position, velocity = x.astype(np.float64), 0.0
    for _ in range(64):
        velocity = velocity - 0.02 * position
        position = position + 0.02 * velocity
    return position


def masses(rng):
    for n, block in ((256, 64), (70, 32), (1, 32)):
        yield Case((rng.random(n, np.float32) + 1, Out(n)), -(-n // block), block, label=f"n = {n}")


@cuda.jit
def swing(x, out):
    i = cuda.grid(1)
    if i < x.size:
        state = cuda.local.array(2, np.float32)
        state[0], state[1] = x[i], 0
        for _ in range(64):
            # HOLE about 2 lines to change: the same steps, without what makes them slow
            #| state[1] -= 0.02 * state[0]
            #| state[0] += 0.02 * state[1]
            state[1] -= np.float32(0.02) * state[0]
            state[0] += np.float32(0.02) * state[1]
            # END
        out[i] = state[0]


@cuda.jit
def swing_in_registers(x, out):
    i = cuda.grid(1)
    if i < x.size:
        step = np.float32(0.02)
        position, velocity = x[i], np.float32(0)
        for _ in range(64):
            velocity -= step * position
            position += step * velocity
        out[i] = position


FIRST = "state[1] -= np.float32(0.02) * state[0]"
SECOND = "state[0] += np.float32(0.02) * state[1]"

CURE = KernelExercise(
    "10-cure",
    task="Cure patient 1: the same positions, without what makes the kernel slow.",
    spec=swung,
    cases=masses,
    solutions=[swing, swing_in_registers],
    limits={"float64 operations": 1.0},
    wrong=[
        Wrong(
            "One of the two lines still has a float64 literal.",
            {SECOND: "state[0] += 0.02 * state[1]"},
            "cost: float64 operations",
        ),
        Wrong(
            "The product is rounded to float32 after it was computed in float64. Convert the literal, not the result.",
            {FIRST: "state[1] -= np.float32(0.02 * state[0])", SECOND: "state[0] += np.float32(0.02 * state[1])"},
            "cost: float64 operations",
        ),
        Wrong(
            "A division by an integer makes a float64 in Numba: write np.float32(50).",
            {FIRST: "state[1] -= state[0] / 50", SECOND: "state[0] += state[1] / 50"},
            "cost: float64 operations",
        ),
        Wrong(
            "The state is float64 now, and so is all arithmetic. Keep it float32, and make the literal a float32.",
            {"cuda.local.array(2, np.float32)": "cuda.local.array(2, np.float64)"}
            | {FIRST: FIRST.replace("np.float32(0.02)", "0.02"), SECOND: SECOND.replace("np.float32(0.02)", "0.02")},
            "cost: float64 operations",
        ),
        Wrong(
            "The new position needs the new velocity: the velocity comes first.",
            {f"{FIRST}\n            {SECOND}": f"{SECOND}\n            {FIRST}"},
        ),
        Wrong(
            "The steps are 0.02 long.",
            {FIRST: FIRST.replace("0.02", "0.2"), SECOND: SECOND.replace("0.02", "0.2")},
        ),
        Wrong(
            "The velocity becomes smaller where the position is positive: the spring pulls back.",
            {FIRST: FIRST.replace("-=", "+=")},
        ),
        Wrong(
            "int32(0.02) is 0, so nothing moves.",
            {FIRST: FIRST.replace("float32", "int32"), SECOND: SECOND.replace("float32", "int32")},
        ),
    ],
    hints=[
        "Which number in these lines is no float32?",
        "A literal with a point is a float64. np.float32(0.02) is a float32, and costs nothing at run time.",
    ],
    why="float32 times float64 is float64, so each product is converted there and back. That the array holds float32 "
    "does not help: the product is rounded only when it is stored.",
)


# -- 10-columns -----------------------------------------------------------------------------------------------------


def sums_of_columns(x, out):
    return out + x.sum(axis=0, dtype=np.float64)


def tall_matrices(rng):
    for rows, columns in ((256, 64), (300, 40), (1, 1), (520, 96)):
        x = rng.random((rows, columns), np.float32)
        out = np.full(columns, 2 if rows == 300 else 0, np.float32)
        full = rows % 256 == columns % 32 == 0
        label = f"{rows} x {columns}" + (", out is 2 before" if rows == 300 else "")
        yield Case((x, InOut(out)), (-(-columns // 32), -(-rows // 256)), (32, 8), label=label, counted=full)


@cuda.jit
def column_sums(x, out):
    # HOLE about 7 lines: a block takes 256 rows of 32 columns; read along rows, and sum before you add to out
    #| row = cuda.blockIdx.y * 256 + cuda.threadIdx.y * 32 + cuda.threadIdx.x
    #| first = cuda.blockIdx.x * 32
    #| if row < x.shape[0]:
    #|     for col in range(first, min(first + 32, x.shape[1])):
    #|         cuda.atomic.add(out, col, x[row, col])
    col = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    first = cuda.blockIdx.y * 256 + cuda.threadIdx.y
    last = min(cuda.blockIdx.y * 256 + 256, x.shape[0])
    if col < x.shape[1]:
        total = np.float32(0)
        for row in range(first, last, 8):
            total += x[row, col]
        cuda.atomic.add(out, col, total)
    # END


@cuda.jit
def column_sums_shared(x, out):
    parts = cuda.shared.array((8, 32), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col = cuda.blockIdx.x * 32 + tx
    total = np.float32(0)
    if col < x.shape[1]:
        row = cuda.blockIdx.y * 256 + ty
        while row < x.shape[0] and row < cuda.blockIdx.y * 256 + 256:
            total += x[row, col]
            row += 8
    parts[ty, tx] = total
    cuda.syncthreads()
    if ty == 0 and col < x.shape[1]:
        for i in range(1, 8):
            total += parts[i, tx]
        cuda.atomic.add(out, col, total)


COLUMNS = KernelExercise(
    "10-columns",
    task="Cure the sixth patient: an eighth of the sectors, and one atomic operation for each thread at most.",
    spec=sums_of_columns,
    cases=tall_matrices,
    solutions=[column_sums, column_sums_shared],
    limits={"global load sectors": 1.0, "global atomics": 1.0, "float64 operations": 1.0},
    wrong=[
        Wrong(
            "A total that begins as 0.0 is a float64, and so is every sum. Begin with np.float32(0).",
            {"total = np.float32(0)": "total = 0.0"},
            "cost: float64 operations",
        ),
        Wrong(
            "The loads are coalesced now, but every element is still an atomic operation of its own. "
            "Sum in a register first.",
            {"total += x[row, col]": "cuda.atomic.add(out, col, x[row, col])"},
            "cost: global atomics",
        ),
        Wrong(
            "The last block of columns has threads without a column: guard them.",
            {"if col < x.shape[1]:": "if True:"},
            "out-of-bounds",
        ),
        Wrong(
            "The last block of rows is cut off by the end of x: take the smaller of the two ends.",
            {"min(cuda.blockIdx.y * 256 + 256, x.shape[0])": "cuda.blockIdx.y * 256 + 256"},
            "out-of-bounds",
        ),
        Wrong(
            "Each thread adds a single row. The block has 8 rows of threads for 256 rows of x, so a thread takes 32.",
            {"range(first, last, 8)": "range(cuda.grid(2)[1], min(cuda.grid(2)[1] + 1, x.shape[0]))"},
        ),
        Wrong(
            "The eight threads of a column overlap: each takes every eighth row, so the step is 8.",
            {"range(first, last, 8)": "range(first, last)"},
        ),
        Wrong(
            "Threads of several warps and blocks add to one element of out at the same time: without an atomic "
            "operation sums are lost.",
            {"cuda.atomic.add(out, col, total)": "out[col] += total"},
            "race",
        ),
        Wrong(
            "Every thread overwrites what the others stored. The parts have to be added.",
            {"cuda.atomic.add(out, col, total)": "out[col] = total"},
            "wrong",
        ),
        Wrong(
            "Every block of rows sums the first rows: the start of the block is missing.",
            {"first = cuda.blockIdx.y * 256 + cuda.threadIdx.y": "first = cuda.threadIdx.y"},
        ),
        Wrong(
            "blockIdx.y counts blocks of rows of any height here, so each block must stop after 256 rows.",
            {"min(cuda.blockIdx.y * 256 + 256, x.shape[0])": "x.shape[0]"},
        ),
        Wrong(
            "Neighbouring lanes still take neighbouring rows: let threadIdx.x choose the column.",
            {
                "cuda.blockIdx.x * 32 + cuda.threadIdx.x": "cuda.blockIdx.x * 32 + cuda.threadIdx.y",
                "first = cuda.blockIdx.y * 256 + cuda.threadIdx.y": "first = cuda.blockIdx.y * 256 + cuda.threadIdx.x",
                "range(first, last, 8)": "range(first, last, 32)",
            },
            "wrong",
        ),
    ],
    hints=[
        "Which index of x should follow threadIdx.x, so that a warp reads 32 neighbours?",
        "A block is 32 columns wide, one for each threadIdx.x; its 8 rows of threads share the 256 rows between them.",
        "A thread takes rows first, first + 8, first + 16, ... of its column, and does one atomic.add at the end.",
    ],
    why="A warp now reads 32 neighbouring floats, four sectors instead of 32, and atomics fall from one per element to "
    "one per thread.",
)


# -- 10-expose ------------------------------------------------------------------------------------------------------


RIGHT, ADDS, SQUARE, SKIPS, TAIL, MAGNITUDE, WHOLE, ALIKE = range(8)


@cuda.jit
def row_sums(x, out, wrong):
    """Sum rows with a warp for each: right, or wrong in one of seven ways."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    columns = x.shape[0] if wrong == SQUARE else x.shape[1]
    if wrong == TAIL:
        columns = columns // 32 * 32
    total = np.float32(0)
    for col in range(lane, columns, 32):
        value = x[0 if wrong == ALIKE else row, col]
        if wrong == MAGNITUDE:
            value = abs(value)
        if wrong == WHOLE:
            value = np.float32(np.int32(value))
        total += value
    offset = 16
    while offset > 0:
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, offset)
        offset //= 2
    if lane == 0 and not (wrong == SKIPS and row == x.shape[0] - 1):
        out[row] = out[row] + total if wrong == ADDS else total


def verdict_on(answer, number):
    """Run one of the kernels on somebody's inputs: does a comparison with NumPy catch it?"""
    x, out = answer()
    if not (isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype == np.float32 and 0 < x.size <= 2**14):
        raise ValueError("x must be a float32 matrix with 1 to 16,384 elements")
    if not (isinstance(out, np.ndarray) and out.shape == x.shape[:1] and out.dtype == np.float32):
        raise ValueError("out must be a float32 vector with one element for each row of x")
    expected = x.sum(axis=1, dtype=np.float64)
    tolerance = 1e-5 * np.abs(x).sum(axis=1).max()
    found = trace(row_sums[x.shape[0], 32], x, out, number)
    return "passes" if np.abs(out - expected).max() <= tolerance and not found.findings else "caught"


def inputs():
    """Return x, a float32 matrix, and out, a float32 vector with an element for each row of x."""
    # HOLE about 3 lines: choose the shape and the values; these catch none of the wrong kernels
    #| x = np.ones((64, 64), np.float32)
    #| out = np.zeros(64, np.float32)
    #| return x, out
    x = np.random.default_rng(1).standard_normal((5, 70)).astype(np.float32)
    out = np.full(5, np.nan, np.float32)
    return x, out
    # END


def inputs_by_hand():
    x = -0.3 * np.arange(3 * 33, dtype=np.float32).reshape(3, 33) + 1
    return x, np.full(3, 1e6, np.float32)


X = "np.random.default_rng(1).standard_normal((5, 70)).astype(np.float32)"
POISON = "np.full(5, np.nan, np.float32)"

EXPOSE = FunctionExercise(
    "10-expose",
    task="Choose inputs with which a comparison with NumPy catches all seven wrong kernels, and passes the right one.",
    spec=lambda number: "caught" if number else "passes",
    cases=lambda rng: (Case((n,), label=f"wrong kernel {n}" if n else "the right kernel") for n in range(8)),
    solutions=[inputs, inputs_by_hand],
    call=verdict_on,
    wrong=[
        Wrong(
            "Your matrix is square, so a kernel that confuses rows with columns goes unnoticed.",
            {X: X.replace("(5, 70)", "(70, 70)"), POISON: POISON.replace("5", "70")},
        ),
        Wrong(
            "Your rows are a multiple of 32 long, so a kernel that drops the tail goes unnoticed.",
            {"70": "64"},
        ),
        Wrong(
            "Your out starts with zeros, so a kernel that adds to it instead of storing goes unnoticed. "
            "Fill it with something that cannot be right.",
            {POISON: "np.zeros(5, np.float32)"},
        ),
        Wrong(
            "Your values are all positive, so a kernel that ignores signs goes unnoticed.",
            {".standard_normal((5, 70)).astype(np.float32)": ".random((5, 70), np.float32) + 1"},
        ),
        Wrong(
            "Your rows are all the same, or there is one: a kernel that reads the first row for all goes unnoticed.",
            {X: "np.tile(np.random.default_rng(1).standard_normal(70).astype(np.float32), (5, 1))"},
        ),
        Wrong(
            "Your out holds the result before the launch, so a kernel that never writes a row goes unnoticed.",
            {POISON: "x.sum(axis=1)"},
        ),
        Wrong(
            "Your values are whole numbers, so a kernel that rounds them goes unnoticed.",
            {X: "np.random.default_rng(1).integers(-9, 9, (5, 70)).astype(np.float32)"},
        ),
        Wrong(
            "NaN in x makes every sum NaN, and NaN equals nothing: the right kernel fails too.",
            {X: "np.full((5, 70), np.nan, np.float32)"},
        ),
    ],
    hints=[
        "What do 64 x 64 ones and an empty out have in common with the wrong results? Change one thing at a time, "
        "and see which kernels are still not caught.",
        "Shape: rows and columns that differ, and columns that are no multiple of 32. Values: different, fractional, "
        "of both signs.",
        "out: np.full(rows, np.nan, np.float32), so that nothing stays right by itself.",
    ],
    why="Each choice removes one coincidence: square, a multiple of the warp, zeros in the output, one sign, whole "
    "numbers, equal rows. NaN in the output shows what was never written.",
)

EXERCISES = [AMDAHL, BALANCE, DIAGNOSIS, CURE, COLUMNS, EXPOSE]
