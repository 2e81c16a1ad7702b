"""Exercises of chapter 13, several GPUs."""

import numpy as np

from gpukit.backend import cuda
from gpukit.exercises.exercise import (
    AnswerExercise,
    Case,
    Fault,
    FunctionExercise,
    KernelExercise,
    Out,
    Reviewed,
    Wrong,
)
from gpukit.streams import Model, Schedule, modelled

#: A device on which queuing is free, with a fast link to another.
IDEAL = Model(name="an ideal device", kernel_start=0.0, issue=0.0)
MICROSECOND = 1e-6


def always(*arguments):
    """Specify the value of a plan: there is none but its faults."""
    return True


# -- 13-halo --------------------------------------------------------------------------------------------------------


def filled(parts):
    """The parts of a plate after the exchange, one below the other."""
    whole = [part.copy() for part in parts]
    for upper, lower in zip(whole, whole[1:], strict=False):
        lower[0], upper[-1] = upper[-2].copy(), lower[1].copy()
    return np.concatenate(whole)


def exchanged(exchange, parts):
    """Call an answer on copies of the parts."""
    whole = [part.copy() for part in parts]
    exchange(whole)
    return np.concatenate(whole)


def plates(rng):
    for heights in ((4, 4), (3, 1, 2), (1, 1), (5,)):
        parts = [rng.integers(1, 100, (height + 2, 3)).astype(np.float32) for height in heights]
        yield Case((parts,), label=f"GPUs with {', '.join(map(str, heights))} rows of their own")


def exchange(parts):
    for upper, lower in zip(parts, parts[1:], strict=False):  # two GPUs that are neighbours
        # HOLE 2 lines: fill the two halo rows at the seam between them
        lower[0] = upper[-2]
        upper[-1] = lower[1]
        # END


def exchange_by_index(parts):
    for gpu in range(len(parts)):
        if gpu > 0:
            parts[gpu][0] = parts[gpu - 1][len(parts[gpu - 1]) - 2]
        if gpu < len(parts) - 1:
            parts[gpu][-1] = parts[gpu + 1][1]


HALO = FunctionExercise(
    "13-halo",
    task="Fill the halo rows of all parts of a plate from their neighbours' own rows.",
    spec=filled,
    cases=plates,
    call=exchanged,
    solutions=[exchange, exchange_by_index],
    wrong=[
        Wrong(
            "upper[-1] is the halo of the upper part, an old copy. Its last own row is upper[-2].",
            {"lower[0] = upper[-2]": "lower[0] = upper[-1]"},
        ),
        Wrong(
            "lower[0] is the halo of the lower part. Its first own row is lower[1].",
            {"upper[-1] = lower[1]": "upper[-1] = lower[0]"},
        ),
        Wrong(
            "Rows 0 and -1 are both halos, with old values. Read the rows next to them: upper[-2] and lower[1].",
            {"lower[0] = upper[-2]": "lower[0] = upper[-1]", "upper[-1] = lower[1]": "upper[-1] = lower[0]"},
        ),
        Wrong(
            "Nothing was written into an array: `lower = ...` only gives the name to another one. Assign to lower[0].",
            {"lower[0] = upper[-2]": "lower = upper[-2]", "upper[-1] = lower[1]": "upper = lower"},
        ),
        Wrong(
            "The lower part needs a row too: its stencil reads the last own row of the upper part.",
            {"        lower[0] = upper[-2]\n": ""},
        ),
        Wrong(
            "The upper part needs a row too: its stencil reads the first own row of the lower part.",
            {"        upper[-1] = lower[1]\n": ""},
        ),
        Wrong(
            "That overwrites rows that the parts own. Write to the halo, rows 0 and -1, and read rows 1 and -2.",
            {"lower[0] = upper[-2]": "lower[1] = upper[-1]", "upper[-1] = lower[1]": "upper[-2] = lower[0]"},
        ),
        Wrong(
            "These rows are at the far ends. The seam is at the bottom of the upper part and the top of the lower one.",
            {"lower[0] = upper[-2]": "lower[-1] = upper[1]", "upper[-1] = lower[1]": "upper[0] = lower[-2]"},
        ),
    ],
    hints=[
        "Draw two parts of four own rows, each between two halo rows. Which rows hold the same row of the plate?",
        "Row 0 of the lower part is the last own row of the upper one, and row -1 of the upper part is lower[1].",
        "lower[0] = upper[-2] and upper[-1] = lower[1]",
    ],
    why="Each part reads own rows of its neighbour, 1 and -2, and writes only its halo, 0 and -1.",
)


# -- 13-scaling -----------------------------------------------------------------------------------------------------

SCALING = AnswerExercise(
    "13-scaling",
    task="Predict the speedup on four GPUs, when a step of 800 us is divided but an exchange of 50 us is not hidden.",
    spec=lambda: 800 / (800 / 4 + 50),
    wrong=[
        Wrong("That is without the exchange. A step takes 200 us and then 50 us more.", 4),
        Wrong("That is the step's time on four GPUs, in microseconds. The speedup is 800 over it.", 250),
        Wrong("The exchange is not divided: all GPUs exchange at the same time, for 50 us.", 800 / 212.5),
        Wrong("One GPU needs no exchange, so its step takes 800 us.", 850 / 250),
        Wrong("Exchanges of different pairs of neighbours do not wait for each other: 50 us in all.", 800 / 350),
        Wrong("A GPU in the middle has two neighbours, but both exchanges together take the 50 us.", 800 / 300),
        Wrong("Upside down: the speedup is the old time over the new one.", 250 / 800),
    ],
    hints=["How long does a step take on four GPUs?", "200 us to compute, and 50 us to exchange. 800 over that."],
    why="What is not divided stays. With 8 GPUs it would be 800 / 150: a third of the time goes into the exchange.",
)


# -- 13-peer --------------------------------------------------------------------------------------------------------

RATE = np.float32(0.25)


def stepped(u, above, below):
    """One time step of a part that has no halo: its neighbours' rows are arrays of their own."""
    whole = np.vstack((above, u, below))
    new = u.copy()
    middle = whole[1:-1, 1:-1]
    around = whole[:-2, 1:-1] + whole[2:, 1:-1] + whole[1:-1, :-2] + whole[1:-1, 2:]
    new[:, 1:-1] = middle + RATE * (around - 4 * middle)
    return new


def parts_of(rng):
    for rows, columns, grid in ((8, 64, (2, 2)), (5, 37, (2, 2)), (1, 33, (2, 1)), (2, 3, (1, 1))):
        u = rng.integers(0, 100, (rows, columns)).astype(np.float32)
        above, below = (rng.integers(0, 100, columns).astype(np.float32) for _ in range(2))
        yield Case((u, above, below, Out(u.shape)), grid, (32, 4), label=f"{rows} x {columns}")


@cuda.jit
def step_reaching(u, above, below, new):
    col, row = cuda.grid(2)
    if row < u.shape[0] and col < u.shape[1]:
        mid = u[row, col]
        if col == 0 or col == u.shape[1] - 1:
            new[row, col] = mid  # the rim
        else:
            # HOLE about 2 lines: the temperatures above and below, from the array that has them
            #| up, down = mid, mid
            up = u[row - 1, col] if row > 0 else above[col]
            down = u[row + 1, col] if row < u.shape[0] - 1 else below[col]
            # END
            new[row, col] = mid + RATE * (up + down + u[row, col - 1] + u[row, col + 1] - 4 * mid)


@cuda.jit
def step_with_branches(u, above, below, new):
    col, row = cuda.grid(2)
    if row >= u.shape[0] or col >= u.shape[1]:
        return
    mid = u[row, col]
    if 0 < col < u.shape[1] - 1:
        if row == 0:
            up = above[col]
        else:
            up = u[row - 1, col]
        if row + 1 == u.shape[0]:
            down = below[col]
        else:
            down = u[row + 1, col]
        mid += RATE * (up + down + u[row, col - 1] + u[row, col + 1] - 4 * mid)
    new[row, col] = mid


UP, DOWN = "u[row - 1, col] if row > 0 else above[col]", "u[row + 1, col] if row < u.shape[0] - 1 else below[col]"

PEER = KernelExercise(
    "13-peer",
    task="Compute a step of a part that has no halo, reading the neighbours' rows in their memory.",
    spec=stepped,
    cases=parts_of,
    solutions=[step_reaching, step_with_branches],
    limits={"global load sectors": 1.1},
    wrong=[
        Wrong(
            "There is no row -1: in row 0 the point above is in the neighbour's memory, above[col].",
            {UP: "u[row - 1, col]"},
            "negative-index",
        ),
        Wrong(
            "In the last row, u.shape[0] - 1, the point below is in the neighbour's memory, below[col].",
            {DOWN: "u[row + 1, col]"},
            "out-of-bounds",
        ),
        Wrong(
            "The condition is one row early: row 1 still has a row of its own above it.",
            {"if row > 0 else above": "if row > 1 else above"},
        ),
        Wrong(
            "Above and below are swapped: row 0 needs the neighbour above, the last row the one below.",
            {UP: UP.replace("above", "below"), DOWN: DOWN.replace("below", "above")},
        ),
        Wrong(
            "The rows of the neighbours are one row each: the column is the index, not the row.",
            {"else above[col]": "else above[row]"},
        ),
        Wrong(
            "above and below are one row each, with an element for each column: above[col], below[col].",
            {UP: UP.replace("above[col]", "above[-1]"), DOWN: DOWN.replace("below[col]", "below[0]")},
        ),
        Wrong(
            "Right, but every row loads from above, over the link. Only row 0 needs to: test the row first.",
            {UP: "above[col]\n            if row > 0:\n                up = u[row - 1, col]"},
            "cost: global load sectors",
        ),
        Wrong(
            "Only the edge rows need a neighbour. Here every point reads over the link.",
            {UP: "above[col]"},
        ),
    ],
    hints=[
        "For which rows is the point above in u, and for which one is it not?",
        "Row 0 reads above[col]; the last row, u.shape[0] - 1, reads below[col].",
        "up = u[row - 1, col] if row > 0 else above[col], and the same for down.",
    ],
    why="Two rows of many cross the link, without a halo and without a copy. The GPUs still have to agree on when.",
)


# -- 13-events ------------------------------------------------------------------------------------------------------

EVENTS = AnswerExercise(
    "13-events",
    task="Predict how many events a step of peer loads needs on four GPUs, each with a stream.",
    spec=lambda: 2 * (4 - 1),
    wrong=[
        Wrong("GPUs that are not neighbours share no row, so nothing has to be ordered between them.", 12),
        Wrong("The first and the last GPU have one neighbour only.", 8),
        Wrong(
            "Each pair needs two: either GPU may be the faster one, and must not be a step ahead of the other.",
            3,
        ),
        Wrong("A GPU in the middle waits for two others, one at an end for one.", 4),
        Wrong("Four GPUs have three seams, and at each seam either side waits for the other.", 5),
        Wrong("That is one seam: each of its two sides waits for the other. Four bands have three seams.", 2),
        Wrong("The streams of different GPUs know nothing of each other without events.", 0),
    ],
    hints=["Who reads whose rows? Draw an arrow for each.", "Each of the three seams has two arrows."],
    why="Each kernel waits for its neighbours' last step: three seams, two directions.",
)


# -- 13-overlap -----------------------------------------------------------------------------------------------------


def make_steps(count, edge=20, inside=400, send=60):
    """Make steps of two GPUs: for each GPU an edge, an inside and a send, as arguments of `Schedule.add`."""
    steps = []
    for step in range(count):
        old, new = step % 2, (step + 1) % 2
        steps.append([])
        for gpu in range(2):
            common = {"action": print, "task": step}
            mine = {name: f"{name} of GPU {gpu}, {{}}" for name in ("edge", "inside", "halo")}
            every = [name.format(old) for name in mine.values()]
            what = f"of GPU {gpu}, step {step}"
            steps[-1].append(
                (
                    common
                    | {"engine": "kernel", "name": f"edge {what}", "seconds": edge * MICROSECOND, "share": 0.05}
                    | {"reads": every, "writes": [mine["edge"].format(new)]},
                    common
                    | {"engine": "kernel", "name": f"inside {what}", "seconds": inside * MICROSECOND, "share": 0.45}
                    | {"reads": every[:2], "writes": [mine["inside"].format(new)]},
                    common
                    | {"engine": "copy out", "name": f"send {what}", "nbytes": int(send * MICROSECOND * IDEAL.copy_out)}
                    | {"reads": [mine["edge"].format(new)], "writes": [f"halo of GPU {1 - gpu}, {new}"]},
                )
            )
    return steps


def planned(fill, steps):
    """Have a schedule filled, and review it beside that of the solution."""
    schedule, best = Schedule(), Schedule()
    fill(schedule, steps)
    fill_steps(best, steps)
    names = [operation.name for operation in schedule.operations]
    wanted = [operation["name"] for step in steps for gpu in step for operation in gpu]
    faults = [
        Fault("wrong", f"{name} is queued {names.count(name)} times") for name in wanted if names.count(name) != 1
    ]
    faults += [Fault("race", f"race: {race}") for race in schedule.races()]
    time, least = (1e6 * modelled(one, PAIR).duration for one in (schedule, best))
    if not faults and time > 1.02 * least:
        faults.append(Fault("cost: time", f"{time:.0f} us on a model of the two GPUs; {least:.0f} us will do"))
    return Reviewed(True, faults)


#: Two GPUs as one: kernels of both run side by side, each inside takes 0.45 of it.
PAIR = IDEAL.replace(name="two GPUs", copy_start=0.0)


def fill_steps(schedule, steps):
    edges, insides, sends = {}, {}, {}  # the numbers of these operations, by GPU and step
    for step, gpus in enumerate(steps):
        for gpu, (edge, inside, send) in enumerate(gpus):
            # HOLE about 6 lines: streams 2 * gpu for the inside, 2 * gpu + 1 for edge and send, and the events
            halo, old = sends.get((1 - gpu, step - 1)), insides.get((gpu, step - 1))
            last = edges.get((gpu, step - 1))
            after = [number for number in (halo, old) if number is not None]
            edges[gpu, step] = schedule.add(**edge, stream=2 * gpu + 1, after=after)
            sends[gpu, step] = schedule.add(**send, stream=2 * gpu + 1)
            insides[gpu, step] = schedule.add(**inside, stream=2 * gpu, after=[] if last is None else [last])
            # END


def fill_steps_first_apart(schedule, steps):
    edges, insides, sends = {}, {}, {}
    for step, gpus in enumerate(steps):
        for gpu, (edge, inside, send) in enumerate(gpus):
            first = step == 0
            before = [] if first else [sends[1 - gpu, step - 1], insides[gpu, step - 1]]
            edges[gpu, step] = schedule.add(**edge, stream=10 + gpu, after=before)
            insides[gpu, step] = schedule.add(**inside, stream=gpu, after=[] if first else [edges[gpu, step - 1]])
            sends[gpu, step] = schedule.add(**send, stream=20 + gpu, after=[edges[gpu, step]])


OVERLAP = FunctionExercise(
    "13-overlap",
    task="Queue the steps of two GPUs so that edges are sent while the insides are computed, and nothing races.",
    spec=always,
    cases=lambda rng: (Case((make_steps(count),), label=f"{count} step{'s' * (count > 1)}") for count in (1, 2, 5)),
    call=planned,
    solutions=[fill_steps, fill_steps_first_apart],
    wrong=[
        Wrong(
            "The edge reads the halo. The last send of the *other* GPU fills it, and nothing here waits for that one.",
            {"for number in (halo, old)": "for number in (old,)"},
            "race",
        ),
        Wrong(
            "The edge reads the first rows of the inside, which the last step's inside computes in another stream.",
            {"for number in (halo, old)": "for number in (halo,)"},
            "race",
        ),
        Wrong(
            "The inside reads the last step's edge, from another stream.",
            {"after=[] if last is None else [last]": "after=[]"},
            "race",
        ),
        Wrong(
            "Right, but the inside waits for this step's edge, which it does not read. Both can run at the same time.",
            {"after=[] if last is None else [last]": "after=[edges[gpu, step]]"},
            "cost: time",
        ),
        Wrong(
            "Right, but in one stream the inside waits for the send. Give edge and send a stream of their own.",
            {"(**inside, stream=2 * gpu,": "(**inside, stream=2 * gpu + 1,"},
            "cost: time",
        ),
        Wrong(
            "Send and edge are in different streams here, and nothing orders them: an old edge may be sent.",
            {"(**send, stream=2 * gpu + 1)": "(**send, stream=4 + gpu)"},
            "race",
        ),
        Wrong(
            "Right, but one stream for everything leaves nothing to overlap. Each GPU needs two streams of its own.",
            {
                "(**edge, stream=2 * gpu + 1,": "(**edge, stream=0,",
                "(**send, stream=2 * gpu + 1)": "(**send, stream=0)",
                "(**inside, stream=2 * gpu,": "(**inside, stream=0,",
            },
            "cost: time",
        ),
        Wrong(
            "Without events nothing orders the streams. List for each operation what it reads, and who wrote that.",
            {"after=after": "after=[]", "after=[] if last is None else [last]": "after=[]"},
            "race",
        ),
        Wrong(
            "Both GPUs share the streams, so each waits for the other.",
            {"(**inside, stream=2 * gpu,": "(**inside, stream=0,"},
            "cost: time",
        ),
    ],
    hints=[
        "What does each operation read that another stream has written? The edge: halo and inside of the last step.",
        "The inside reads the edge of the last step, not the halo. The send follows its edge in the stream.",
        "edge: after the other GPU's last send and this GPU's last inside. inside: after this GPU's last edge.",
    ],
    why="The inside never waits for the other GPU, so as long as it takes longer than edge and send, both are free.",
)


# -- 13-sent --------------------------------------------------------------------------------------------------------

SENT = AnswerExercise(
    "13-sent",
    task="Predict how many GB each of four GPUs sends in a ring all-reduce of 1 GB.",
    spec=lambda: 2 * (4 - 1) / 4,
    wrong=[
        Wrong("That sends the whole array to each of the others. A ring sends chunks of a quarter.", 3),
        Wrong("That is the reduce-scatter. Afterwards the sums have to go round as well.", 0.75),
        Wrong("Each phase has 3 steps, not 4: the chunk of the last step is already there.", 2),
        Wrong("Each step sends a quarter of the array, and there are two phases of 3 steps.", 6),
        Wrong("There are two phases of 3 steps, a quarter of a GB each.", 1),
        Wrong("That is one step of six: two phases of 3 steps, and a quarter of a GB in each step.", 0.25),
    ],
    hints=[
        "How large is a chunk, and how many steps are there?",
        "A quarter of a GB; 3 steps to sum, 3 for the rest.",
    ],
    why="2 (n - 1) / n of the array: nearly twice, for any number of GPUs. This is why rings scale.",
)


# -- 13-ring --------------------------------------------------------------------------------------------------------


def sums_where_they_end(parts):
    """The chunk that each GPU has the sum of in the end: the one after its own number."""
    total, count = np.sum(parts, axis=0), len(parts)
    return np.stack([total[(gpu + 1) % count] for gpu in range(count)])


def summed(reduce_scatter, parts):
    """Call an answer on copies; the chunks that hold sums in the end."""
    copies = [part.copy() for part in parts]
    reduce_scatter(copies)
    return np.stack([copies[gpu][(gpu + 1) % len(copies)] for gpu in range(len(copies))])


def rings(rng):
    for count, size in ((2, 4), (4, 3), (3, 1), (5, 2)):
        parts = [rng.integers(0, 100, (count, size)).astype(np.float32) for _ in range(count)]
        yield Case((parts,), label=f"{count} GPUs")


def reduce_scatter(parts):
    count = len(parts)  # GPUs; parts[gpu] has as many chunks
    for step in range(count - 1):
        for gpu in range(count):  # on GPUs, all of them at the same time
            # HOLE about 3 lines: add one chunk of the GPU before to the same chunk of this one
            before = (gpu - 1) % count
            chunk = (before - step) % count
            parts[gpu][chunk] += parts[before][chunk]
            # END


def reduce_scatter_sending(parts):
    count = len(parts)
    for step in range(count - 1):
        sent = [parts[gpu][(gpu - step) % count].copy() for gpu in range(count)]
        for gpu in range(count):
            parts[(gpu + 1) % count][(gpu - step) % count] += sent[gpu]


RING = FunctionExercise(
    "13-ring",
    task="Sum chunks round a ring: in the end each GPU has the sum of one chunk, the one after its own number.",
    spec=sums_where_they_end,
    cases=rings,
    call=summed,
    solutions=[reduce_scatter, reduce_scatter_sending],
    wrong=[
        Wrong(
            "In every step the same chunk moves, so each neighbour's value is added again and again. "
            "The chunk of a step is the one that the GPU before has just added to.",
            {"(before - step) % count": "before"},
        ),
        Wrong(
            "The chunks go round backwards: what the GPU before has just added to is chunk before - step.",
            {"(before - step) % count": "(before + step) % count"},
        ),
        Wrong(
            "The chunk that a GPU must have the sum of, gpu + 1, gets nothing here. Values move from gpu - 1 to gpu, "
            "and in step 0 the GPU before passes on the chunk of *its* number.",
            {"(before - step) % count": "(gpu - step) % count"},
        ),
        Wrong(
            "That replaces this GPU's own values. They belong in the sum: add.",
            {"parts[gpu][chunk] += parts[before][chunk]": "parts[gpu][chunk] = parts[before][chunk]"},
        ),
        Wrong(
            "Here all GPUs pass on the same chunk in a step. In step 0 each passes on the chunk of its own number.",
            {"(before - step) % count": "step"},
        ),
        Wrong(
            "That is one chunk too far back. In step 0 the GPU before passes on chunk `before`, which is gpu - 1.",
            {"(before - step) % count": "(gpu - step - 2) % count"},
        ),
        Wrong(
            "GPU 0 has a GPU before it too, the last one: take the number modulo count.",
            {"(gpu - 1) % count": "max(gpu - 1, 0)"},
        ),
        Wrong(
            "The whole array moves in each step. Add one chunk.",
            {"parts[gpu][chunk] += parts[before][chunk]": "parts[gpu] += parts[before]"},
        ),
        Wrong(
            "That is the GPU after this one. The chunk comes from the one before.",
            {"(gpu - 1) % count": "(gpu + 1) % count"},
        ),
    ],
    hints=[
        "In step 0, GPU g passes on chunk g. Which chunk has it just received then, to be passed on in step 1?",
        "In step s the GPU before passes on chunk (before - s) % count.",
        "before = (gpu - 1) % count; chunk = (before - step) % count; parts[gpu][chunk] += parts[before][chunk]",
    ],
    why="In each step every link carries one chunk, in one direction, so all links are busy all the time.",
)

EXERCISES = [HALO, SCALING, PEER, EVENTS, OVERLAP, SENT, RING]
