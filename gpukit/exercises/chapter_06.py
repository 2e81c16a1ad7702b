"""Exercises of chapter 06, streams and events."""

from gpukit.exercises.exercise import AnswerExercise, Case, Fault, FunctionExercise, Reviewed, Wrong
from gpukit.streams import Model, Schedule, best_chunks, modelled, predicted

#: A device whose copies in both directions do not slow each other down, and on which queuing is free.
IDEAL = Model(name="an ideal device", both_in=1.0, both_out=1.0, copy_start=0.0, kernel_start=0.0, issue=0.0)
MILLISECOND = int(IDEAL.copy_in * 1e-3)


def nothing(stream):
    """Stand for an operation that is only planned."""


# -- 06-fill --------------------------------------------------------------------------------------------------------

FILL = AnswerExercise(
    "06-fill",
    task="Predict the milliseconds of four chunks, when each stage of the whole takes 1 ms.",
    spec=lambda: predicted(1, 1, 1, chunks=4),
    wrong=[
        Wrong("That is the time without any overlap.", 3),
        Wrong(
            "1 ms is what the slowest stage needs. Before the first kernel and after the last one, "
            "something still has to be copied.",
            1,
        ),
        Wrong("The stages overlap, but the chunks of one stage take turns: four of them still take 1 ms.", 0.75),
        Wrong("Filling and draining the pipeline take a chunk's copy each, 0.25 ms, not a whole copy.", 2),
        Wrong(
            "The first kernel waits for one copy in, and after the last kernel one copy out is left: twice 0.25 ms.",
            1.25,
        ),
    ],
    hints=[
        "Draw three rows, and four bars of 0.25 ms in each. When can the first bar of each row start?",
        "The kernels run from 0.25 ms to 1.25 ms. What comes after?",
    ],
    why="One chunk goes through all three stages, 0.75 ms; the other three follow at intervals of 0.25 ms.",
)


# -- 06-pipeline ----------------------------------------------------------------------------------------------------


def make_tasks(count, buffers=None):
    """Tasks of three operations, each a dict for `Schedule.add`; they share so many buffers, or have one each."""
    tasks = []
    for task in range(count):
        number = task % (buffers or count)
        data, result = f"data {number}", f"result {number}"
        copy = {"action": nothing, "task": task, "nbytes": MILLISECOND}
        copy_in = copy | {"engine": "copy in", "writes": [data]}
        kernel = {
            "engine": "kernel",
            "action": nothing,
            "task": task,
            "seconds": 1e-3,
            "reads": [data],
            "writes": [result],
        }
        tasks.append((copy_in, kernel, copy | {"engine": "copy out", "reads": [result]}))
    return tasks


def planned(fill, tasks, number, fill_best):
    """Have a schedule filled, with a number of streams or buffers, and review it beside the best."""
    schedule, best = Schedule(), Schedule()
    fill(schedule, tasks, number)
    fill_best(best, tasks, number)
    faults = list(faults_of(schedule, {f"{o['engine']} {o['task']}" for task in tasks for o in task}))
    time, least = (1e3 * modelled(one, IDEAL).duration for one in (schedule, best))
    if time > 1.01 * least:
        used = len({operation.stream for operation in schedule.operations})
        text = f"{time:.3g} ms by {used} stream{'s' * (used != 1)}, on a model of a device; {least:.3g} ms will do"
        faults.append(Fault("cost: time", text))
    return Reviewed(True, faults)


def faults_of(schedule, wanted):
    """Yield what is missing from a schedule, its races, and who reads what another task has written, or nobody."""
    names = [operation.name for operation in schedule.operations]
    for name in sorted(wanted):
        if names.count(name) != 1:
            yield Fault("wrong", f"{name} is queued {names.count(name)} times")
    races = [Fault("race", f"race: {race}") for race in schedule.races()]
    yield from races
    if races:
        return
    before = schedule.waits()
    for number, reader in enumerate(schedule.operations):
        for buffer in reader.reads:
            writers = [
                (before[i].bit_count(), writer.task)
                for i, writer in enumerate(schedule.operations)
                if before[number] >> i & 1 and buffer in writer.writes
            ]
            if not writers:
                yield Fault(
                    "uninitialised-read", f"{reader.name} reads {buffer}, and nothing is sure to write it before"
                )
            elif max(writers)[1] != reader.task:
                yield Fault("wrong", f"{reader.name} reads {buffer} as task {max(writers)[1]} left it")


def always(*arguments):
    """Specify the value of a plan: there is none but its faults."""
    return True


def fill_pipeline(schedule, tasks, streams):
    for task, (copy_in, kernel, copy_out) in enumerate(tasks):
        # HOLE about 4 lines: choose a stream for the task, and add its three operations with schedule.add
        stream = task % streams
        schedule.add(**copy_in, stream=stream)
        schedule.add(**kernel, stream=stream)
        schedule.add(**copy_out, stream=stream)
        # END


def fill_by_events(schedule, tasks, streams):
    for task, operations in enumerate(tasks):
        after = []
        for operation in operations:
            after = [schedule.add(**operation, stream=task % streams, after=after)]


PIPELINE = FunctionExercise(
    "06-pipeline",
    task="Queue the tasks so that copies and kernels overlap and nothing races.",
    spec=always,
    cases=lambda rng: (
        Case((make_tasks(count), streams, fill_pipeline), label=f"{count} tasks, {streams} streams")
        for count, streams in ((8, 4), (5, 3), (1, 2), (6, 2))
    ),
    call=planned,
    solutions=[fill_pipeline, fill_by_events],
    wrong=[
        Wrong(
            "Everything is in one stream, where operations run one after the other, so nothing overlaps. "
            "Let the tasks take turns on the streams.",
            {"stream = task % streams": "stream = 0"},
            "cost: time",
        ),
        Wrong(
            "The copy out is in a stream of its own, and nothing says that the kernel is done by then. "
            "Keep a task in one stream.",
            {"copy_out, stream=stream": "copy_out, stream=streams"},
            "race",
        ),
        Wrong(
            "A stream for each engine orders the copies among themselves, but not a kernel after its copy. "
            "That needs events, or one stream for the whole task.",
            {
                "copy_in, stream=stream": "copy_in, stream=0",
                "kernel, stream=stream": "kernel, stream=1",
                "copy_out, stream=stream": "copy_out, stream=2",
            },
            "race",
        ),
        Wrong(
            "The results are never copied back.",
            {"        schedule.add(**copy_out, stream=stream)\n": ""},
            "wrong",
        ),
        Wrong(
            "Operations of a stream run in the order they were added. Here the kernel comes before its copy in.",
            {
                "        schedule.add(**copy_in, stream=stream)\n": "",
                "        schedule.add(**kernel, stream=stream)\n": (
                    "        schedule.add(**kernel, stream=stream)\n        schedule.add(**copy_in, stream=stream)\n"
                ),
            },
            "uninitialised-read",
        ),
        Wrong(
            "Each task waits for the one before by an event, so only one is in flight. The tasks are independent.",
            {
                "copy_in, stream=stream)": (
                    "copy_in, stream=stream, after=[len(schedule.operations) - 1] if task else [])"
                )
            },
            "cost: time",
        ),
        Wrong(
            "Neighbouring tasks share a stream, so they do not overlap with each other. Use task % streams.",
            {"stream = task % streams": "stream = task // 2"},
            "cost: time",
        ),
    ],
    hints=[
        "What orders the three operations of a task? What lets those of different tasks overlap?",
        "All three go to one stream, the next task to the next stream. Use % to begin again with stream 0.",
        "schedule.add(**copy_in, stream=task % streams), and the same for kernel and copy_out.",
    ],
    why="A stream orders a task; different streams leave the tasks free to overlap. No event is needed.",
)


# -- 06-events ------------------------------------------------------------------------------------------------------


#: What the six kernels read.
READS = {"a": (), "b": (), "c": (), "d": ("a", "b"), "e": ("b", "c"), "f": ("d", "e")}


def needed_events(fill):
    """Have the events of a plan filled in, and review it: what races, and are there more than needed?"""
    schedule = Schedule()
    fill(schedule)
    queued = [(operation.name, operation.stream, operation.reads) for operation in schedule.operations]
    for number, (name, reads) in enumerate(READS.items()):
        if queued.count((f"kernel {name}", number % 3, reads)) != 1:
            return Reviewed(True, [Fault("wrong", f"kernel {name} is not queued as it was, once and in its stream")])
    faults = [Fault("race", f"race: {race}") for race in schedule.races()]
    streams = [operation.stream for operation in schedule.operations]
    events = sum(
        streams[other] != operation.stream for operation in schedule.operations for other in set(operation.after)
    )
    if events > 4:
        faults.append(Fault("cost: events", f"{events} events; 4 will do", events))
    return Reviewed(True, faults)


def my_plan(schedule):
    def kernel(name, stream, reads=(), after=()):
        return schedule.add("kernel", print, stream, name=f"kernel {name}", reads=reads, writes=[name], after=after)

    a, b, c = (kernel(name, stream) for stream, name in enumerate("abc"))  # the numbers of these operations
    # HOLE 3 lists: add after=[...] where a kernel has to wait for another stream, with as few entries as possible
    #| d = kernel("d", 0, reads=["a", "b"])
    #| e = kernel("e", 1, reads=["b", "c"])
    #| kernel("f", 2, reads=["d", "e"])
    d = kernel("d", 0, reads=["a", "b"], after=[b])
    e = kernel("e", 1, reads=["b", "c"], after=[c])
    kernel("f", 2, reads=["d", "e"], after=[d, e])
    # END


EVENTS = FunctionExercise(
    "06-events",
    task="Order six kernels in three streams, with as few events as possible.",
    spec=always,
    cases=lambda rng: iter((Case(()),)),
    call=needed_events,
    solutions=[my_plan, {"after=[c]": "after=[c, d]", "after=[d, e]": "after=[e]"}],
    wrong=[
        Wrong(
            "f reads d as well, and only its order after e is sure. d is in another stream than both.",
            {"after=[d, e]": "after=[e]"},
            "race",
        ),
        Wrong(
            "f reads e as well, and only its order after d is sure.",
            {"after=[d, e]": "after=[d]"},
            "race",
        ),
        Wrong(
            "d is in the stream of a, so it comes after a anyway. It is b that is in another stream.",
            {"after=[b]": "after=[a]"},
            "race",
        ),
        Wrong(
            "e is in the stream of b, so it comes after b anyway. It is c that is in another stream.",
            {"after=[c]": "after=[b]"},
            "race",
        ),
        Wrong(
            "f needs no events for a and b: what d and e come after comes before f too.",
            {"after=[d, e]": "after=[a, b, d, e]"},
            "cost: events",
        ),
        Wrong(
            "d does not read c. A kernel has to wait for what it reads.",
            {"after=[b]": "after=[b, c]"},
            "cost: events",
        ),
        Wrong(
            "Not only f has to wait. d and e read what other streams write, too.",
            {", after=[b]": "", ", after=[c]": ""},
            "race",
        ),
    ],
    hints=[
        "For each kernel: which of the operations whose results it reads are in other streams?",
        "d is in the stream of a, so only b needs an event. The same for e and c.",
        "after=[b] for d, after=[c] for e, after=[d, e] for f.",
    ],
    why="Order within a stream is free, and order is transitive, so f comes after a, b and c without further events.",
)


# -- 06-chunks ------------------------------------------------------------------------------------------------------


def stages(rng):
    """Yield h, k, d and t: long and short work, and a chunk that costs more than it hides."""
    times = (2.4e-3, 2.4e-3, 2.4e-3, 4e-6), (0.04, 0.06, 0.01, 3e-5), (1e-3, 1e-4, 1e-3, 5e-6), (2e-6, 2e-6, 2e-6, 2e-5)
    for h, k, d, t in times:
        yield Case((h, k, d, t), label=f"h = {h:g}, k = {k:g}, d = {d:g}, t = {t:g}")


def my_chunks(h, k, d, t):
    # HOLE about 2 lines: the N for which T(N) is least, as an int from 1 on
    hidden = h + k + d - max(h, k, d)
    return max(1, round((hidden / t) ** 0.5))
    # END


def chunks_by_search(h, k, d, t):
    return min(range(1, 2000), key=lambda n: (h + k + d) / n + (n - 1) / n * max(h, k, d) + n * t)


CHUNKS = FunctionExercise(
    "06-chunks",
    task="Compute the best number of chunks from h, k, d and t.",
    spec=lambda h, k, d, t: predicted(h, k, d, best_chunks(h, k, d, t), t),
    cases=stages,
    call=lambda answer, h, k, d, t: predicted(h, k, d, answer(h, k, d, t), t),
    rtol=1e-4,
    solutions=[my_chunks, chunks_by_search],
    wrong=[
        Wrong(
            "Only what hides behind the slowest stage gets shorter by more chunks. Leave max(h, k, d) out of the root.",
            {"h + k + d - max(h, k, d)": "h + k + d"},
        ),
        Wrong(
            "That is the slowest stage. More chunks shorten the rest, h + k + d less the slowest stage.",
            {"h + k + d - max(h, k, d)": "max(h, k, d)"},
        ),
        Wrong(
            "T(N) has a part hidden / N and a part N * t. Their sum is least where both are equal: N is a square root.",
            {"(hidden / t) ** 0.5": "hidden / t"},
        ),
        Wrong(
            "Where a chunk costs more than it hides, the root is below 1/2 and rounds to 0. One chunk is the least.",
            {"max(1, round((hidden / t) ** 0.5))": "round((hidden / t) ** 0.5)"},
            "raises",
        ),
        Wrong(
            "A number of chunks is an int: round the root.",
            {"max(1, round((hidden / t) ** 0.5))": "max(1, (hidden / t) ** 0.5)"},
            "raises",
        ),
        Wrong(
            "The fraction is upside down: the more a chunk costs, the fewer there should be.",
            {"hidden / t": "t / hidden"},
        ),
        Wrong(
            "A fixed number cannot be best for a millisecond and for a microsecond of work.",
            {"max(1, round((hidden / t) ** 0.5))": "16"},
        ),
    ],
    hints=[
        "Write T(N) as a constant, plus something / N, plus N * t.",
        "Something is h + k + d - max(h, k, d). Where is the sum of something / N and N * t least?",
        "At N = sqrt(something / t), rounded, and at least 1.",
    ],
    why="The derivative of hidden / N + N * t is zero at N = sqrt(hidden / t). Near it the curve is flat.",
)


# -- 06-launches ----------------------------------------------------------------------------------------------------


def queue_and_run(n, launch, kernel):
    """Play n launches through: the host queues one after the other, the device runs them in order."""
    host = device = 0.0
    for _ in range(n):
        host += launch
        device = max(device, host) + kernel
    return device


def launches(rng):
    for n, launch, kernel in ((1000, 30.0, 5.0), (100, 5.0, 200.0), (1, 30.0, 7.0), (7, 4.0, 4.0)):
        yield Case((n, launch, kernel), label=f"{n} launches of {launch:g} us, kernels of {kernel:g} us")


def my_total(n, launch, kernel):
    # HOLE 1 or 2 lines: the time from the first launch to the end of the last kernel
    return max(n * launch + kernel, launch + n * kernel)
    # END


LAUNCHES = FunctionExercise(
    "06-launches",
    task="Compute the time of n asynchronous launches, from the host's time per launch and the kernel's time.",
    spec=queue_and_run,
    cases=launches,
    solutions=[
        my_total,
        {"max(n * launch + kernel, launch + n * kernel)": "launch + kernel + (n - 1) * max(launch, kernel)"},
    ],
    wrong=[
        Wrong(
            "A launch does not wait: the host queues the next kernel while this one runs, so the two do not add up.",
            {"max(n * launch + kernel, launch + n * kernel)": "n * (launch + kernel)"},
        ),
        Wrong(
            "The slower of the two sets the pace. But the first kernel has to be queued before it runs, "
            "and after the last launch a kernel is left to run.",
            {"max(n * launch + kernel, launch + n * kernel)": "n * max(launch, kernel)"},
        ),
        Wrong(
            "That is right while kernels are longer than launches. Short kernels wait for the host.",
            {"max(n * launch + kernel, launch + n * kernel)": "launch + n * kernel"},
        ),
        Wrong(
            "That is right while launches are longer than kernels. With long kernels the device is the bottleneck.",
            {"max(n * launch + kernel, launch + n * kernel)": "n * launch + kernel"},
        ),
        Wrong(
            "That is when the host is done. The device may still have kernels to run.",
            {"max(n * launch + kernel, launch + n * kernel)": "n * launch"},
        ),
        Wrong(
            "That is the device's work. It begins after the first launch, and may have to wait for the others.",
            {"max(n * launch + kernel, launch + n * kernel)": "n * kernel"},
        ),
        Wrong("The slower of the two sets the pace: max, not min.", {"max(": "min("}),
    ],
    hints=[
        "Two workers at a belt: the host takes `launch` for each, the device `kernel` for each. Who is the bottleneck?",
        "If the host is: n launches, and then one kernel. If the device is: one launch, and then n kernels.",
        "The larger of n * launch + kernel and launch + n * kernel.",
    ],
    why="Only the slower of the two counts n times. For small kernels that is the host, so make launches cheaper.",
)


# -- 06-ring --------------------------------------------------------------------------------------------------------


def fill_ring(schedule, tasks, buffers):
    kernels, copies_out = [], []  # the numbers of these operations, by task
    for task, (copy_in, kernel, copy_out) in enumerate(tasks):
        # HOLE about 6 lines: stream 0 for copies in, 1 for kernels, 2 for copies out, and the events that they need
        before = task - buffers
        data_free = [kernels[before]] if before >= 0 else []
        result_free = [copies_out[before]] if before >= 0 else []
        copied = schedule.add(**copy_in, stream=0, after=data_free)
        kernels.append(schedule.add(**kernel, stream=1, after=[copied, *result_free]))
        copies_out.append(schedule.add(**copy_out, stream=2, after=[kernels[task]]))
        # END


def fill_ring_by_task(schedule, tasks, buffers):
    kernels, copies_out = {}, {}
    for task, (copy_in, kernel, copy_out) in enumerate(tasks):
        old = task - buffers
        schedule.add(**copy_in, stream=task, after=[kernels[old]] if old in kernels else [])
        kernels[task] = schedule.add(**kernel, stream=task, after=[copies_out[old]] if old in kernels else [])
        copies_out[task] = schedule.add(**copy_out, stream=task)


RING = FunctionExercise(
    "06-ring",
    task="Send any number of tasks through a few buffers, with all engines busy and no race.",
    spec=always,
    cases=lambda rng: (
        Case((make_tasks(count, buffers), buffers, fill_ring), label=f"{count} tasks, {buffers} pairs of buffers")
        for count, buffers in ((8, 2), (7, 3), (1, 2), (5, 1))
    ),
    call=planned,
    solutions=[fill_ring, fill_ring_by_task],
    wrong=[
        Wrong(
            "Nothing says when a buffer is free again, so a copy in overwrites data that a kernel still reads.",
            {"[kernels[before]] if before >= 0 else []": "[]", "[copies_out[before]] if before >= 0 else []": "[]"},
            "race",
        ),
        Wrong(
            "The result is overwritten while it is copied out: the kernel has to wait for copy out task - buffers.",
            {"[copies_out[before]] if before >= 0 else []": "[]"},
            "race",
        ),
        Wrong(
            "The data are overwritten while a kernel reads them: the copy in has to wait for kernel task - buffers.",
            {"[kernels[before]] if before >= 0 else []": "[]"},
            "race",
        ),
        Wrong(
            "The kernel does not wait for its copy in: they are in different streams.",
            {"[copied, *result_free]": "result_free"},
            "race",
        ),
        Wrong(
            "The copy out does not wait for its kernel: they are in different streams.",
            {"after=[kernels[task]]": "after=[]"},
            "race",
        ),
        Wrong(
            "That is right, but slow: the data buffer is free as soon as the kernel has run. "
            "The copy in need not wait for the copy out.",
            {"[kernels[before]] if": "[copies_out[before]] if"},
            "cost: time",
        ),
        Wrong(
            "That waits for the task just before, although the one that had these buffers is `buffers` tasks back.",
            {"task - buffers": "task - 1"},
            "cost: time",
        ),
        Wrong(
            "A stream for each pair of buffers needs no events. But nothing is copied in while a result is copied out.",
            {
                "stream=0, after=data_free": "stream=task % buffers",
                "stream=1, after=[copied, *result_free]": "stream=task % buffers",
                "stream=2, after=[kernels[task]]": "stream=task % buffers",
            },
            "cost: time",
        ),
    ],
    hints=[
        "Four edges for a task: copy in before kernel, kernel before copy out, and one for each buffer to be free.",
        "The copy in overwrites what kernel task - buffers reads, the kernel what copy out task - buffers reads.",
        "after=[kernels[task - buffers]] for the copy in, after=[copied, copies_out[task - buffers]] for the kernel, "
        "both only where there is such a task; after=[kernels[task]] for the copy out.",
    ],
    why="Each buffer is waited for by itself: the data are free after the kernel, the result after the copy out.",
)

EXERCISES = [FILL, PIPELINE, EVENTS, CHUNKS, LAUNCHES, RING]
