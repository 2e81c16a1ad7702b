"""Exercises of chapter 06, streams and events."""

import numpy as np

from gpukit.exercises.exercise import AnswerExercise, Case, Fault, FunctionExercise, Reviewed, Wrong
from gpukit.exercises.watching import Watched, WatchedKernel
from gpukit.streams import Model, Schedule, best_chunks, modelled, predicted

#: A device whose copies in both directions do not slow each other down, and on which queuing is free.
IDEAL = Model(name="an ideal device", both_in=1.0, both_out=1.0, copy_start=0.0, kernel_start=0.0, issue=0.0)
MILLISECOND = int(IDEAL.copy_in * 1e-3)


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


def inverted(x, chunk, streams):
    return 1 - x


def arrays(rng):
    for rows, chunk, streams in ((2048, 256, 4), (1000, 300, 3), (5, 2, 2), (700, 700, 1)):
        x = rng.standard_normal(rows).astype(np.float32)
        yield Case((x, chunk, streams), label=f"{rows} elements in chunks of {chunk}, {streams} streams")


def watched(pipeline, x, chunk, streams):
    """Call a pipeline with a stand-in for cuda, and review what it has enqueued."""
    cuda, out = Watched(4 * chunk, IDEAL.copy_in), np.full_like(x, np.nan)
    kernel, queues = WatchedKernel(cuda, lambda values: 1 - values), [cuda.stream() for _ in range(streams)]
    pipeline(cuda, kernel, x.copy(), out, chunk, queues)
    if not kernel.blocks:
        raise ValueError("the kernel is never launched")
    faults = [Fault("race", f"race: {race}") for race in cuda.schedule.races()]
    faults += [Fault("wrong", f"the function returns while {name} may still run") for name in cuda.unfinished()[:1]]
    faults += too_slow(cuda.schedule, best_schedule(x, chunk, streams))
    alone = [operation.name for operation in cuda.schedule.operations if operation.stream == 0]
    if alone:
        faults.append(Fault("cost: time", f"{alone[0]} is in the default stream, which overlaps with no other"))
    if cuda.pageable:
        faults.append(Fault("cost: time", f"the host waits for {cuda.pageable[0]}, to an array that is not pinned"))
    if min(kernel.blocks) < 32:
        faults.append(Fault("cost: threads", f"threads per block: {min(kernel.blocks)}; a warp has 32"))
    return Reviewed(out, faults)


def best_schedule(x, chunk, streams):
    """Make the schedule of the solution."""
    cuda = Watched(4 * chunk, IDEAL.copy_in)
    my_pipeline(cuda, WatchedKernel(cuda, np.copy), x, x.copy(), chunk, [cuda.stream() for _ in range(streams)])
    return cuda.schedule


def too_slow(schedule, best):
    """A fault if a schedule takes longer on a model of a device than the best one; none otherwise."""
    time, least = (1e3 * modelled(one, IDEAL).duration for one in (schedule, best))
    if time <= 1.01 * least:
        return []
    used = len({operation.stream for operation in schedule.operations})
    text = f"{time:.3g} ms by {used} stream{'s' * (used != 1)}, on a model of a device; {least:.3g} ms will do"
    return [Fault("cost: time", text)]


def my_pipeline(cuda, kernel, x, out, chunk, queues):
    for number, first in enumerate(range(0, len(x), chunk)):
        stream, part = queues[number % len(queues)], slice(first, first + chunk)
        # HOLE about 4 lines: copy x[part] in, make an array for the result, launch the kernel, copy to out[part]
        source = cuda.to_device(x[part], stream)
        target = cuda.device_array(source.shape, source.dtype, stream=stream)
        kernel[(source.size + 255) // 256, 256, stream](source, target)
        target.copy_to_host(out[part], stream)
        # END
    # HOLE 1 line: wait for all of it
    cuda.synchronize()
    # END


def breadth_first(cuda, kernel, x, out, chunk, queues):
    tasks = [(queues[i % len(queues)], slice(i * chunk, (i + 1) * chunk)) for i in range(-(-len(x) // chunk))]
    sources = [cuda.to_device(x[part], stream) for stream, part in tasks]
    targets = [cuda.device_array_like(source) for source in sources]
    for (stream, _), source, target in zip(tasks, sources, targets, strict=True):
        kernel[-(-source.size // 256), 256, stream](source, target)
    for (stream, part), target in zip(tasks, targets, strict=True):
        target.copy_to_host(out[part], stream)
    cuda.synchronize()


PIPELINE = FunctionExercise(
    "06-pipeline",
    task="Send an array through a kernel in chunks, so that copies and kernels overlap and nothing races.",
    spec=inverted,
    cases=arrays,
    call=watched,
    solutions=[
        my_pipeline,
        {
            "        source = cuda.to_device(x[part], stream)\n": (
                "        source = cuda.device_array(len(x[part]), np.float32)\n"
                "        source.copy_to_device(x[part], stream=stream)\n"
            ),
            "(source.size + 255) // 256": "-(-source.size // 256)",
            "    cuda.synchronize()\n": "    for queue in queues:\n        queue.synchronize()\n",
        },
    ],
    wrong=[
        Wrong(
            "Without a stream, to_device copies in the default stream, which waits for all others. Pass the stream.",
            {"to_device(x[part], stream)": "to_device(x[part])"},
            "cost: time",
        ),
        Wrong(
            "Without a stream, the kernel runs in the default stream, which waits for all others. "
            "It is the third number in the brackets.",
            {"256, stream]": "256]"},
            "cost: time",
        ),
        Wrong(
            "Without a stream, copy_to_host copies in the default stream, which waits for all others. Pass the stream.",
            {"copy_to_host(out[part], stream)": "copy_to_host(out[part])"},
            "cost: time",
        ),
        Wrong(
            "The host waits for each chunk before it enqueues the next, so nothing overlaps. Wait once, at the end.",
            {
                "        target.copy_to_host(out[part], stream)\n": (
                    "        target.copy_to_host(out[part], stream)\n        stream.synchronize()\n"
                )
            },
            "cost: time",
        ),
        Wrong(
            "The function returns while copies are still in flight, so the caller may read old values. Synchronize.",
            {"    cuda.synchronize()\n": ""},
        ),
        Wrong(
            "copy_to_host without an array makes a new one, and out stays as it was. Pass out[part].",
            {"copy_to_host(out[part], stream)": "copy_to_host(stream=stream)"},
        ),
        Wrong(
            "The kernel is in another stream than the copies of its chunk, and nothing orders them.",
            {"256, stream]": "256, queues[(number + 1) % len(queues)]]"},
            "race",
        ),
        Wrong(
            "All chunks share one pair of device arrays, so a copy in overwrites what another kernel still reads.",
            {
                "    for number, first": (
                    "    data, result = cuda.device_array(chunk, x.dtype), cuda.device_array(chunk, x.dtype)\n"
                    "    for number, first"
                ),
                "        source = cuda.to_device(x[part], stream)\n": (
                    "        source = data[: len(x[part])]\n        source.copy_to_device(x[part], stream)\n"
                ),
                "cuda.device_array(source.shape, source.dtype, stream=stream)": "result[: len(x[part])]",
            },
            "race",
        ),
        Wrong(
            "Here the grid is 256 blocks, and each has few threads. The number of blocks comes first.",
            {"[(source.size + 255) // 256, 256, stream]": "[256, (source.size + 255) // 256, stream]"},
            "cost: threads",
        ),
        Wrong(
            "copy_to_host without an array makes a pageable one, so the host waits for each copy. Pass out[part].",
            {"target.copy_to_host(out[part], stream)": "out[part] = target.copy_to_host(stream=stream)"},
            "cost: time",
        ),
        Wrong(
            "Within a stream, the kernel of a chunk waits for the copies in of all later chunks of that stream. "
            "Enqueue all of a chunk before the next one.",
            breadth_first,
            "cost: time",
        ),
        Wrong(
            "The number of blocks is rounded down, so the elements of the last, incomplete block are never computed.",
            {"(source.size + 255) // 256": "max(1, source.size // 256)"},
        ),
    ],
    hints=[
        "cuda.to_device(array, stream) returns a device array; cuda.device_array(shape, dtype, stream=...) is empty.",
        "kernel[blocks, 256, stream](source, target), with enough blocks for source.size elements.",
        "target.copy_to_host(out[part], stream); after the loop cuda.synchronize().",
    ],
    why="A stream orders the operations of a chunk; different streams leave the chunks free to overlap.",
)


# -- 06-events ------------------------------------------------------------------------------------------------------


def always(*arguments):
    """Specify the value of a plan: there is none but its faults."""
    return True


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
    # HOLE 3 lists: add after=[...] where a kernel has to wait for another stream, with four events at most
    #| d = kernel("d", 0, reads=["a", "b"])
    #| e = kernel("e", 1, reads=["b", "c"])
    #| kernel("f", 2, reads=["d", "e"])
    d = kernel("d", 0, reads=["a", "b"], after=[b])
    e = kernel("e", 1, reads=["b", "c"], after=[c])
    kernel("f", 2, reads=["d", "e"], after=[d, e])
    # END


EVENTS = FunctionExercise(
    "06-events",
    task="Order six kernels in three streams, with four events at most.",
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
    for h, k, d, t in (
        (2.4e-3, 2.4e-3, 2.4e-3, 4e-6),
        (0.04, 0.06, 0.01, 3e-5),
        (1e-3, 1e-4, 1e-3, 5e-6),
        (1.0, 1.0, 1.0, 1e-5),
        (2e-6, 2e-6, 2e-6, 2e-5),
    ):
        yield Case((h, k, d, t), label=f"h = {h:g}, k = {k:g}, d = {d:g}, t = {t:g}")


def my_chunks(h, k, d, t):
    # HOLE about 2 lines: the N for which T(N) is least, as an int from 1 on
    hidden = h + k + d - max(h, k, d)
    return max(1, round((hidden / t) ** 0.5))
    # END


def least_time(answer, h, k, d, t):
    """Review a number of chunks by its time: near the best number the curve is flat."""
    chunks = answer(h, k, d, t)
    if chunks is None:
        return None
    time, least = (predicted(h, k, d, number, t) for number in (chunks, best_chunks(h, k, d, t)))
    text = f"N = {chunks} takes {time:.6g} s; the best N takes {least:.6g} s"
    return Reviewed(True, [Fault("wrong", text)] if time > 1.0001 * least else [])


def chunks_by_search(h, k, d, t):
    return min(range(1, 2000), key=lambda n: (h + k + d) / n + (n - 1) / n * max(h, k, d) + n * t)


CHUNKS = FunctionExercise(
    "06-chunks",
    task="Compute the best number of chunks from h, k, d and t.",
    spec=always,
    cases=stages,
    call=least_time,
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
            "int() cuts off, so 14.8 becomes 14. round() gives the nearest number.",
            {"round((hidden / t) ** 0.5)": "int((hidden / t) ** 0.5)"},
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


def make_tasks(count, buffers):
    """Make tasks of three operations, each a dict for `Schedule.add`, that share a few pairs of buffers."""
    tasks = []
    for task in range(count):
        data, result = f"data {task % buffers}", f"result {task % buffers}"
        common = {"action": print, "task": task}
        copy_in = common | {"engine": "copy in", "nbytes": MILLISECOND, "writes": [data]}
        kernel = common | {"engine": "kernel", "seconds": 1e-3, "reads": [data], "writes": [result]}
        copy_out = common | {"engine": "copy out", "nbytes": MILLISECOND, "reads": [result]}
        tasks.append((copy_in, kernel, copy_out))
    return tasks


def planned(fill, tasks, buffers):
    """Have a schedule filled, and review it beside that of the solution."""
    schedule, best = Schedule(), Schedule()
    fill(schedule, tasks, buffers)
    fill_ring(best, tasks, buffers)
    wanted = {f"{operation['engine']} {operation['task']}" for task in tasks for operation in task}
    return Reviewed(True, [*faults_of(schedule, wanted), *too_slow(schedule, best)])


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
        Case((make_tasks(count, buffers), buffers), label=f"{count} tasks, {buffers} pairs of buffers")
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
