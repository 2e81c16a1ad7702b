"""`gpukit.streams`: pipelines give what a plain launch gives, operations wait for what they shall, models say that they
are models.
"""

import gc
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukit import on_gpu, resize, results, streams
from gpukit.backend import cuda
from gpukit.intrinsics import clock64
from gpukit.streams import Bar, Model, Pipeline, Schedule, SleepKernel, Timeline, WorkKernel, kernels, run_pipeline
from gpukit.streams.pipeline import split_rows
from gpukit.timing import EmulatedTimeError

ENGINES = streams.ENGINES


def words(shape, dtype=np.uint32, seed=1):
    shape = shape if isinstance(shape, tuple) else (shape,)
    return np.random.default_rng(seed).integers(0, 256, (*shape, 4), np.uint8).view(dtype)[..., 0]


@cuda.jit
def negate(source, target):
    i = cuda.grid(1)
    if i < target.size:
        target[i] = -source[i]


@cuda.jit
def add_rows(source, target):
    """A column of sums, by threads of a grid that is too small for most of the chunks."""
    row = cuda.grid(1)
    while row < source.shape[0]:
        total = 0.0
        for value in source[row]:
            total += value
        target[row] = total
        row += cuda.gridsize(1)


# -- the plain loop --------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "chunk", "count"), [(0, 3, 2), (1, 5, 3), (12, 4, 1), (13, 4, 2), (100, 7, 4)])
def test_the_plain_loop(rows, chunk, count):
    """The right result for chunks of any size, the last one shorter, and on fewer streams than chunks."""
    x, out = cuda.pinned_array((rows, 3) if rows else (1, 3), np.float64)[:rows], np.full(rows, np.nan)
    x[...] = np.arange(3 * rows).reshape(rows, 3)
    streams.pipelined(add_rows, x, out, chunk, count)
    np.testing.assert_array_equal(out, x.sum(axis=1))


def test_the_plain_loop_takes_streams_in_turns(monkeypatch):
    """Copy in, kernel and copy out of each chunk in one stream, the next chunk in the next one."""
    asked, to_device, (first, second) = [], cuda.to_device, (cuda.stream(), cuda.stream())

    def noted(array, stream):
        asked.append((len(array), stream))
        return to_device(array, stream)

    def launch(source, target):
        asked.append((len(source), len(target)))

    class Kernel:
        py_func = None

        def __getitem__(self, configuration):
            asked.append(configuration)
            return launch

    monkeypatch.setattr(cuda, "to_device", noted)
    monkeypatch.setattr(cuda, "stream", iter((first, second)).__next__)
    monkeypatch.setattr(type(to_device(np.zeros(1))), "copy_to_host", lambda self, ary, stream: asked.append(stream))
    streams.pipelined(Kernel(), np.zeros(700), np.zeros(700), 300, 2)
    expected = []
    for size, blocks, stream in ((300, 2, first), (300, 2, second), (100, 1, first)):
        expected += [(size, stream), (blocks, 256, stream), (size, size), stream]
    assert asked == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(4), np.zeros(4), 0), "chunk is 0; it must be 1 or more"),
        ((np.zeros(4), np.zeros(4), 2, 0), "streams is 0"),
        ((np.zeros(4), np.zeros(5), 2), "out has 5 rows; it must have 4, as x has"),
    ],
)
def test_the_plain_loop_names_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        streams.pipelined(negate, *arguments)


# -- pipelines -------------------------------------------------------------------------------------


@given(
    rows=st.integers(0, 40),
    columns=st.sampled_from([(), (3,), (2, 5)]),
    chunks=st.one_of(st.integers(1, 50), st.none()),
    count=st.integers(1, 6),
    order=st.sampled_from(["depth", "breadth"]),
    buffers=st.sampled_from(["task", "stream"]),
    pinned=st.booleans(),
    data=st.data(),
)
@settings(max_examples=120)
def test_every_pipeline_gives_the_serial_result(rows, columns, chunks, count, order, buffers, pinned, data):
    if chunks is None:
        cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=6)))
        chunks = np.diff([0, *cuts, rows]).tolist()
    x, out = words((rows, *columns)), np.full((rows, *columns), 0xDEAD, np.uint32)
    options = {"chunks": chunks, "streams": count, "order": order, "buffers": buffers, "pinned": pinned}
    run = run_pipeline(WorkKernel(3), x, out=out, **options)
    assert run.result is out
    np.testing.assert_array_equal(out, streams.scrambled(x, 3))
    assert not run.schedule.races()
    tasks = sum(size > 0 for size in split_rows(chunks, rows))
    assert len(run.schedule.operations) == 3 * tasks


@pytest.mark.parametrize(
    ("kernel", "x", "out", "expected"),
    [
        (negate, np.arange(1003.0), None, -np.arange(1003.0)),
        (negate[7, 96], np.arange(500.0, dtype=np.float32), None, -np.arange(500.0)),
        (
            add_rows[2, 32],
            np.arange(999.0).reshape(333, 3),
            np.full(333, np.nan),
            np.arange(999.0).reshape(333, 3).sum(1),
        ),
        (SleepKernel(50), np.arange(77, dtype=np.int16), None, np.arange(1, 78)),
        (SleepKernel(0, (3, 2), (8, 4)), words((50, 9), np.int32), None, words((50, 9), np.int32) + 1),
        (WorkKernel(7, 5, 64), words((5, 211), np.float32), None, streams.scrambled(words((5, 211), np.float32), 7)),
    ],
)
def test_kernels_of_all_kinds(kernel, x, out, expected):
    for chunks in (1, 3, 4):
        run = run_pipeline(kernel, x, chunks=chunks, streams=3, out=out)
        assert run.result.dtype == (x.dtype if out is None else out.dtype)
        np.testing.assert_array_equal(run.result.view(np.uint8), expected.astype(run.result.dtype).view(np.uint8))
        run.result[...] = 99


def test_frames_through_the_resize_kernel():
    frames = np.random.default_rng(2).integers(0, 256, (7, 20, 30, 3), np.uint8)
    out = np.zeros((7, 12, 9, 3), np.uint8)

    def kernel(source, target, stream):
        resize.resize(source, (12, 9), out=target, stream=stream)

    np.testing.assert_array_equal(
        run_pipeline(kernel, frames, chunks=3, streams=2, out=out).result, resize.resize(frames, (12, 9))
    )


def test_arrays_that_must_be_copied_first():
    wide = words((40, 6))
    for x in (wide[::2, ::3], wide.T, np.frombuffer(wide.tobytes(), np.uint32).reshape(40, 6)):
        for pinned in (True, False):
            held = np.full((x.shape[0], 2 * x.shape[1]), 5, np.uint32)
            run = run_pipeline(WorkKernel(2), x, chunks=4, pinned=pinned, out=held[:, ::2])
            np.testing.assert_array_equal(run.result, streams.scrambled(x, 2))
            assert (held[:, 1::2] == 5).all()


def test_a_pipeline_runs_again_with_what_is_in_its_array_then():
    for x in (words(100), words(200)[::2]):
        pipeline = Pipeline(WorkKernel(2), x, chunks=3, streams=2)
        for _ in range(3):
            np.testing.assert_array_equal(pipeline.run().result, streams.scrambled(x, 2))
            x += np.uint32(1)


def test_one_buffer_for_all_is_a_race_and_a_wrong_result():
    x = words(1000)
    right = streams.scrambled(x, 3)
    run = run_pipeline(WorkKernel(3), x, buffers="shared", order="breadth", chunks=4, streams=4)
    if not on_gpu():  # a GPU may have any of them overwrite any other
        np.testing.assert_array_equal(run.result.reshape(4, 250), np.tile(right[-250:], (4, 1)))
    races = run.schedule.races()
    assert {race.buffer for race in races} == {"source 0", "target 0"}
    assert "copy in 0 and copy in 1 both use source 0" in str(races[0])
    assert run_pipeline(WorkKernel(3), x, buffers="shared", streams=1, order="breadth").schedule.races() == []
    deep = run_pipeline(WorkKernel(3), x, buffers="shared")
    assert deep.schedule.races(), "also where the emulator's order hides it"
    if not on_gpu():
        np.testing.assert_array_equal(deep.result, right)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": [1, 2]}, TypeError, "x is a list"),
        ({"x": np.array(1.0)}, ValueError, r"x has shape \(\)"),
        ({"x": np.array([None, 1])}, TypeError, "x has dtype object"),
        ({"kernel": 7}, TypeError, "kernel is 7; it must be a kernel, or a function"),
        ({"kernel": kernels.linear}, TypeError, "kernel is the device function linear"),
        ({"chunks": 0}, ValueError, "chunks is 0; it must be from 1 to 4096"),
        ({"chunks": 2**31}, ValueError, "chunks is 2147483648; it must be from 1 to 4096"),
        ({"chunks": 1.5}, TypeError, "chunks is 1.5"),
        ({"chunks": [5, 6]}, ValueError, "chunks has 11 rows in all; x has 10"),
        ({"chunks": [11, -1]}, ValueError, r"chunks\[1\] is -1"),
        ({"chunks": [9, 1.0]}, TypeError, r"chunks\[1\] is 1.0"),
        ({"streams": 0}, ValueError, "streams is 0"),
        ({"order": "deep"}, ValueError, "order is 'deep'"),
        ({"buffers": "one"}, ValueError, "buffers is 'one'"),
        ({"pinned": "no"}, TypeError, "pinned is .no."),
        ({"out": [1]}, TypeError, "out is a list"),
        ({"out": np.zeros(9)}, ValueError, r"out has shape \(9,\); it must have 10 rows"),
        ({"out": np.broadcast_to(np.float32(0), 10)}, ValueError, "out is read-only"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_launched(change, error, message):
    def never(source, target, stream):
        raise AssertionError("launched")

    arguments = {"kernel": never, "x": np.arange(10.0)} | change
    with pytest.raises(error, match=message):
        run_pipeline(**arguments)


def test_out_must_be_apart():
    x = np.arange(10.0)
    with pytest.raises(ValueError, match="out shares memory with x"):
        run_pipeline(negate, x, out=x)


def test_a_work_kernel_wants_words():
    with pytest.raises(TypeError, match="WorkKernel was given float64 and float64; both must have 4 bytes"):
        run_pipeline(WorkKernel(1), np.arange(10.0))


@pytest.mark.skipif(on_gpu(), reason="a GPU has a timeline")
def test_the_emulator_has_no_timeline():
    run = run_pipeline(WorkKernel(1), words(8))
    for ask in (lambda: run.timeline, lambda: run.schedule.run(record=True), streams.measured_model):
        with pytest.raises(EmulatedTimeError, match="plays a schedule through on a model"):
            ask()
    assert run.modelled().modelled


# -- what comes before what ------------------------------------------------------------------------


def random_schedule(seed, action, most=30, count=4, events=True):
    """A schedule of random operations, streams, events and buffers; what was asked for, beside it."""
    choose, schedule, asked = random.Random(seed), Schedule(), []
    for number in range(choose.randint(1, most)):
        stream = choose.randrange(count)
        after = choose.sample(range(number), min(number, choose.choice((0, 0, 1, 2))))
        reads, writes = ([f"b{i}" for i in choose.sample(range(4), choose.choice((0, 1, 2)))] for _ in range(2))
        bits = 0
        for other in {*after, *[i for i, (s, _, _, _) in enumerate(asked) if s == stream]}:
            bits |= 1 << other
        asked.append((stream, bits, reads, writes))
        made = action(number, bits, choose)
        options = {
            "reads": reads,
            "writes": writes,
            "seconds": 1e-3 * choose.random(),
            "nbytes": choose.randrange(10**7),
        }
        schedule.add(choose.choice(ENGINES), made, stream, after=after if events else (), **options)
    return schedule, asked


def closed(asked):
    """For each operation all that come before it, by going along the edges."""
    before = []
    for _, bits, _, _ in asked:
        found = {i for i in range(len(asked)) if bits >> i & 1}
        before.append(found.union(*(before[i] for i in found)))
    return before


@pytest.mark.parametrize("seed", range(20))
def test_what_nothing_orders_is_found(seed):
    schedule, asked = random_schedule(seed, lambda *_: lambda stream: None)
    before = closed(asked)
    assert [{i for i in range(len(asked)) if bits >> i & 1} for bits in schedule.waits()] == before
    expected = set()
    for (i, (_, _, r, w)), (j, (_, _, r2, w2)) in itertools.combinations(enumerate(asked), 2):
        if i not in before[j]:
            expected |= {(i, j, b) for b in {*w} & {*r2, *w2} | {*r} & {*w2}}
    names = {operation.name: number for number, operation in enumerate(schedule.operations)}
    found = [(names[race.first], names[race.second], race.buffer) for race in schedule.races()]
    assert len(found) == len(set(found)) and set(found) == expected


@cuda.jit
def check_and_mark(flags, errors, number, before, cycles):
    """Counts the operations before this one that are not done; sleeps; is done."""
    for other in range(number):
        if before >> other & 1 and flags[other] == 0:
            cuda.atomic.add(errors, 0, 1)
    began = clock64()
    while clock64() - began < cycles:
        pass
    flags[number] = 1


def count_errors(seeds, events):
    flags, errors = cuda.device_array(64, np.int32), cuda.to_device(np.zeros(1, np.int32))

    def action(number, before, choose):
        cycles = choose.choice((0, 20_000, 200_000))  # of which the last outlasts several launches
        return lambda stream: check_and_mark[1, 1, stream](flags, errors, number, before, cycles)

    for seed in seeds:
        schedule, _ = random_schedule(seed, action, events=events)
        flags.copy_to_device(np.zeros(64, np.int32))
        schedule.run()
        assert (flags.copy_to_host()[: len(schedule.operations)] == 1).all()
    return errors.copy_to_host()[0]


def test_operations_wait_for_those_before_them():
    assert count_errors(range(20), events=True) == 0


@pytest.mark.gpu
def test_order_holds_in_a_thousand_random_graphs_and_would_not_without_events():
    assert count_errors(range(1000), events=True) == 0
    assert count_errors(range(100), events=False) > 0, "without events some operation overtakes another"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"engine": "copy"}, ValueError, "engine is 'copy'; it must be one of copy in, kernel, copy out"),
        ({"action": 3}, TypeError, "action is 3"),
        ({"stream": -1}, ValueError, "stream is -1"),
        ({"after": [1]}, ValueError, "after names operation 1; there are 1 before this one"),
        ({"after": ["a"]}, TypeError, "after is 'a'"),
    ],
)
def test_bad_operations(arguments, error, message):
    schedule = Schedule()
    schedule.add("kernel", print)
    with pytest.raises(error, match=message):
        schedule.add(**{"engine": "kernel", "action": print} | arguments)
    assert len(schedule.operations) == 1


def test_a_stream_with_nothing_to_do_is_done():
    assert streams.is_done(0) and streams.is_done(cuda.stream())


@pytest.mark.gpu
def test_a_stream_is_not_done_while_it_sleeps():
    schedule, x = Schedule(), cuda.to_device(np.zeros(32, np.float32))
    launch = SleepKernel(200_000_000, 1, 32).prepared(x, x, schedule.stream(0))
    launch(cuda.device_array(0, np.int64))
    asked = [streams.is_done(schedule.stream(0)) for _ in range(3)]
    schedule.stream(0).synchronize()
    assert asked == [False] * 3 and streams.is_done(schedule.stream(0))


# -- kernels ---------------------------------------------------------------------------------------


def test_a_launch_notes_its_beginning_and_its_end():
    x, out = cuda.to_device(words(100)), cuda.device_array(100, np.uint32)
    stamps = cuda.to_device(np.array([[kernels.NEVER, -1], [kernels.NEVER, -1]]))
    launch = SleepKernel(1000, 2, 32).prepared(x, out, 0)
    for row in (0, 1):
        launch(stamps[row])
    (start, end), (later, last) = stamps.copy_to_host()
    assert 0 < start < end < later < last


def test_occupancy_of_launches():
    if on_gpu():
        pytest.skip("reckoned for an H200 here")
    assert kernels.occupancy((64, 64, 1), (16, 16, 1)) == (1.0, 4)
    assert kernels.occupancy((66, 1, 1), (1024, 1, 1)) == (0.25, 1)
    assert kernels.occupancy((1, 1, 1), (1, 1, 1)) == (1 / (132 * 32), 1)
    assert SleepKernel(198_000, (64, 64), (16, 16)).seconds(1) == pytest.approx(4 * 1e-4)
    lasting = WorkKernel.lasting(2e-3, 10**7)
    assert lasting.seconds(10**7) == pytest.approx(2e-3, rel=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SleepKernel(-1), "cycles is -1"),
        (lambda: WorkKernel(1.5), "rounds is 1.5"),
        (lambda: SleepKernel(1, (2, 2, 2)), "one or two dimensions"),
        (lambda: WorkKernel(1, 4, 2048), "this device allows"),
        (lambda: WorkKernel(1, block=2048), "block is 2048; it must be from 1 to 1024"),
        (lambda: SleepKernel(1, block=(16, 16)), r"block is \(16, 16\); it must be an int"),
    ],
)
def test_bad_kernels(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


# -- models ----------------------------------------------------------------------------------------

IDEAL = Model(
    "ideal", copy_in=1e9, copy_out=1e9, both_in=1.0, both_out=1.0, copy_start=0.0, kernel_start=0.0, issue=0.0
)


def staged(tasks, count, copy_in, kernel, copy_out, **options):
    """A schedule of equal tasks, their stages in seconds of the ideal model."""
    schedule = Schedule()
    for task, (engine, seconds) in itertools.product(
        range(tasks), zip(ENGINES, (copy_in, kernel, copy_out), strict=True)
    ):
        cost = {"seconds": seconds} if engine == "kernel" else {"nbytes": round(seconds * 1e9)}
        schedule.add(engine, print, task % count, task=task, **cost, **options)
    return schedule


@pytest.mark.parametrize("stages", [(1, 1, 1), (1, 3, 2), (4, 1, 2), (0.5, 0.5, 2)])
@pytest.mark.parametrize("tasks", [1, 2, 3, 8, 20])
def test_the_model_is_the_formula_where_nothing_else_costs(stages, tasks):
    parts = [stage / tasks for stage in stages]
    timeline = streams.modelled(staged(tasks, min(tasks, 5), *parts), IDEAL)
    assert timeline.duration == pytest.approx(streams.predicted(*stages, tasks))
    assert timeline.modelled and "modelled" in str(timeline) and "modelled" in timeline.mark
    one = streams.modelled(staged(tasks, 1, *parts), IDEAL)
    assert one.duration == pytest.approx(sum(stages)) and one.overlap == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 6.0),
        ({"copy_engines": 1}, 8.0),
        ({"copy_engines": 0}, 12.0),
        ({"issue": 3.0}, 34.0),  # the last of twelve is asked for after 33
        ({"copy_start": 0.5, "kernel_start": 0.5}, 9.0),
        ({"in_order": True}, 6.0),  # depth-first is an order in which each engine can take them
    ],
)
def test_what_the_model_says_of_lesser_devices(change, expected):
    """Four tasks of three stages of a second, asked for depth-first in four streams."""
    timeline = streams.modelled(staged(4, 4, 1, 1, 1), IDEAL.replace(**change))
    assert timeline.duration == pytest.approx(expected)


def test_an_engine_that_keeps_the_order_waits_for_what_could_wait():
    schedule = Schedule()
    schedule.add("copy in", print, 0, nbytes=10**9)
    schedule.add("kernel", print, 0, seconds=1.0)
    schedule.add("kernel", print, 1, seconds=1.0)
    assert streams.modelled(schedule, IDEAL).duration == pytest.approx(2.0)
    assert streams.modelled(schedule, IDEAL.replace(in_order=True)).duration == pytest.approx(3.0)


def test_copies_in_both_directions_slow_each_other():
    schedule = Schedule()
    schedule.add("copy in", print, 0, nbytes=10**9)
    schedule.add("copy out", print, 1, nbytes=2 * 10**9)
    model = IDEAL.replace(both_in=0.5, both_out=0.5)
    assert streams.modelled(schedule, model).duration == pytest.approx(3.0)  # 2 s together, then the second half alone
    assert streams.modelled(schedule, model).overlap == pytest.approx(2 / 3)


def test_small_kernels_run_beside_each_other():
    for share, concurrent, expected in ((0.4, True, 2.0), (0.25, True, 1.0), (0.25, False, 4.0), (1.0, True, 4.0)):
        schedule = Schedule()
        for stream in range(4):
            schedule.add("kernel", print, stream, seconds=1.0, share=share)
        model = IDEAL.replace(concurrent_kernels=concurrent)
        assert streams.modelled(schedule, model).duration == pytest.approx(expected)


def test_the_host_waits_for_pageable_memory():
    schedule = staged(3, 3, 1, 1, 1, pageable=True)
    model = IDEAL.replace(pageable_in=1e9, pageable_out=1e9)
    assert streams.modelled(schedule, model).duration == pytest.approx(9.0)


def test_events_hold_in_the_model():
    schedule = Schedule()
    first = schedule.add("kernel", print, 0, seconds=1.0, share=0.1)
    schedule.add("kernel", print, 1, seconds=1.0, share=0.1, after=[first])
    assert streams.modelled(schedule, IDEAL).duration == pytest.approx(2.0)


def test_the_modelled_h200_is_like_the_recorded_one():
    """16 MB and more: with less, the call and the last synchronisation are most of the time."""
    kernels_of = {r["shape"]: r["value"] for r in results.load("streams-h200", case="stage", variant="kernel")}
    compared = 0
    for record in results.load("streams-h200", case="pipeline", memory="pinned"):
        (elements,), chunks = record["shape"], record["chunks"]
        if elements >= 2**22:
            schedule = Schedule()
            for task in range(chunks):
                for engine in ENGINES:
                    seconds = kernels_of[record["shape"]] / chunks
                    schedule.add(engine, print, task % 4, nbytes=4 * elements // chunks, seconds=seconds)
            assert streams.modelled(schedule).duration == pytest.approx(record["value"], rel=0.1), record
            compared += 1
    assert compared >= 50


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_played_through_keeps_its_order(seed):
    schedule, asked = random_schedule(seed, lambda *_: lambda stream: None)
    timeline = streams.modelled(schedule)
    numbers = {operation.name: i for i, operation in enumerate(schedule.operations)}
    bars = {numbers[bar.name]: bar for bar in timeline.bars}
    assert len(bars) == len(asked)
    for number, before in enumerate(closed(asked)):
        assert all(bars[other].end <= bars[number].start + 1e-12 for other in before)
    for engine in ("copy in", "copy out"):
        mine = [bar for bar in timeline.bars if bar.engine == engine]
        assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(mine))


def test_nothing_to_play():
    assert streams.modelled(Schedule()).duration == 0 == streams.modelled(Schedule()).overlap
    assert run_pipeline(WorkKernel(1), words(0)).result.shape == (0,)


@pytest.mark.parametrize("stages", [(5e-3, 5e-3, 5e-3), (1e-3, 9e-3, 2e-3), (1e-6, 1e-6, 1e-6)])
def test_the_best_number_of_chunks(stages):
    for launch in (0.0, 1e-6, 2e-5, 1e-2):
        best = streams.best_chunks(*stages, launch, most=200)
        times = [streams.predicted(*stages, n, launch) for n in range(1, 201)]
        assert times[best - 1] == pytest.approx(min(times))
    assert streams.best_speedup(1, 1, 1) == 3 and streams.best_speedup(1, 1, 1, both=1.5) == 2


# -- timelines -------------------------------------------------------------------------------------

BARS = (
    Bar("copy in 0", 0, 0, "copy in", 0.0, 2e-3),
    Bar("kernel 0", 0, 0, "kernel", 2e-3, 5e-3),
    Bar("copy in 1", 1, 1, "copy in", 2e-3, 4e-3),
    Bar("kernel 1", 1, 1, "kernel", 4e-3, 6e-3),
    Bar("copy out 0", 0, 0, "copy out", 7e-3, 8e-3),
)


def test_what_a_timeline_says():
    timeline = Timeline(BARS, "a device", False)
    assert timeline.duration == pytest.approx(8e-3)
    assert [timeline.busy(engine) for engine in ENGINES] == pytest.approx([4e-3, 4e-3, 1e-3])
    assert timeline.overlap == pytest.approx(2 / 7)  # two kernels at a time are one engine at work
    assert "8.000 ms, 29% of it overlapped (measured: a device)" in str(timeline)
    assert Timeline.of(timeline.record()) == timeline
    recorded = Timeline.of({"bars": timeline.record()["bars"], "gpu": "H", "date": "2026-11-21"})
    assert recorded.bars == BARS and recorded.source == "recorded on H, 2026-11-21"


@pytest.mark.parametrize("by", ["stream", "engine"])
@pytest.mark.parametrize("modelled", [True, False])
def test_the_picture_says_what_it_is(by, modelled):
    ax = Timeline(BARS, "a device", modelled).plot(by)
    texts = [ax.get_title(loc="left"), ax.get_xlabel(), ax.get_figure().get_supxlabel()]
    assert all(("modelled" in text) == modelled for text in texts)
    assert len(ax.patches) == len(BARS)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == (["stream 0", "stream 1"] if by == "stream" else list(ENGINES))
    drawn = sorted((round(p.get_y() + p.get_height() / 2), p.get_x(), p.get_width()) for p in ax.patches)
    row_of = (lambda bar: bar.stream) if by == "stream" else (lambda bar: ENGINES.index(bar.engine))
    expected = sorted((row_of(bar), bar.start * 1e3, (bar.end - bar.start) * 1e3) for bar in BARS)
    assert drawn == [pytest.approx(place) for place in expected]


def test_short_bars_are_drawn_over_long_ones():
    """Of two numbers at one place, there is that of the bar on top."""
    bars = (Bar("short", 1, 0, "kernel", 3e-3, 5e-3), Bar("long", 0, 0, "kernel", 0.0, 8e-3))
    ax = Timeline(bars, "a device", False).plot("stream")
    assert [patch.get_width() for patch in ax.patches] == pytest.approx([8, 2])
    assert [text.get_text() for text in ax.texts] == ["1"]


def test_there_is_a_picture_by_stream_and_by_engine_only():
    with pytest.raises(ValueError, match="by is 'task'; it must be one of stream, engine"):
        Timeline(BARS, "a device", True).plot("task")


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_measured_timeline_shows_the_order_and_the_overlap():
    """Other processes that use the GPU take turns with this one, so that one of a few timelines has to overlap."""
    x = cuda.pinned_array(2**24, np.uint32)
    x[...] = words(x.size)
    kernel = WorkKernel.lasting(1e-3, x.size)
    overlapping, serial = (Pipeline(kernel, x, chunks=8, streams=count) for count in (4, 1))
    overlapping.run()
    overlaps, gains = [], []
    for _ in range(20):
        timeline, one = (pipeline.run(record=True).timeline for pipeline in (overlapping, serial))
        assert not timeline.modelled and len(timeline.bars) == 24
        by_task = {(bar.task, bar.engine): bar for bar in timeline.bars}
        for task in range(8):
            stages = [by_task[task, engine] for engine in ENGINES]
            assert all(a.end <= b.start + 2e-5 for a, b in itertools.pairwise(stages)), "up to the clocks' offset"
            assert all(bar.end > bar.start for bar in stages)
        assert one.overlap < 0.1
        overlaps.append(timeline.overlap)
        gains.append(one.duration / timeline.duration)
        if overlaps[-1] > 0.4 and gains[-1] > 1.3:
            return
    pytest.fail(f"overlaps {overlaps}, gains {gains}")


@pytest.mark.gpu
@pytest.mark.usefixtures("undisturbed")
def test_a_measured_model_predicts_a_pipeline():
    model = streams.measured_model()
    x, out = (cuda.pinned_array(2**25, np.uint32) for _ in range(2))
    x[...] = words(x.size)
    pipeline = Pipeline(WorkKernel(1), x, chunks=16, out=out)
    pipeline.run()
    measured = np.median([pipeline.run(record=True).timeline.duration for _ in range(5)])
    assert streams.modelled(pipeline.schedule, model).duration == pytest.approx(measured, rel=0.2)


@pytest.mark.gpu
def test_pinned_memory_is_known():
    pinned = cuda.pinned_array(10_000, np.float32)
    assert streams.is_pinned(pinned) and streams.is_pinned(pinned[5:7]) and not streams.is_pinned(np.zeros(10_000))
    x = words(10_000)
    assert Pipeline(WorkKernel(1), x)._source is not x
    assert Pipeline(WorkKernel(1), pinned)._source is pinned


def resident():
    """MB of host memory that the process has."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@pytest.mark.gpu
@pytest.mark.usefixtures("undisturbed")
def test_ten_thousand_pipelines_leave_nothing_behind():
    x, kernel = words(16_384), WorkKernel(2)
    expected = streams.scrambled(x, 2)

    def some(count):
        for _ in range(count):
            result = run_pipeline(kernel, x, chunks=2, streams=2).result
        assert np.array_equal(result, expected)
        gc.collect()
        cuda.current_context().deallocations.clear()
        return cuda.current_context().get_memory_info().free, resident()

    free, host = some(200)
    free_after, host_after = some(10_000)
    assert free - free_after < 64 << 20, "a leak of one buffer each would be 650 MB"
    assert host_after - host < 100, "MB; a leak of one pinned buffer each would be 650"
