"""Several devices: the same results on any number of them, no races, and batches on a cluster."""

import importlib.util
import os
import signal
import sys

import numpy as np
import pytest

from gpukit import cuda, emulator, multi, on_gpu, resize, streams
from gpukit.multi import cluster


@pytest.fixture(autouse=True)
def four_devices():
    with emulator.use_device(count=4):
        yield


def counts():
    """How many devices to try: up to four on the emulator, what there is on a GPU."""
    return sorted({1, min(2, len(cuda.gpus)), min(3, len(cuda.gpus)), min(4, len(cuda.gpus))})


def spread(u, steps):
    rate = np.float32(0.2)
    for _ in range(steps):
        new = u.copy()
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        new[1:-1, 1:-1] = u[1:-1, 1:-1] + rate * (around - 4 * u[1:-1, 1:-1])
        u = new
    return u


def waits(schedule):
    """The numbers of the operations that wait for another stream or device."""
    queues = [(operation.device, operation.stream) for operation in schedule.operations]
    for number, operation in enumerate(schedule.operations):
        if operation.writes and any(queues[other] != queues[number] for other in operation.after):
            yield number


def without(schedule, number):
    """The races of a schedule in which one operation waits for nothing."""
    operations = schedule.operations
    kept, operations[number] = operations[number], operations[number]._replace(after=())
    races = schedule.races()
    operations[number] = kept
    return races


@pytest.mark.parametrize("variant", multi.VARIANTS)
def test_heat_is_the_same_on_any_number_of_devices(variant):
    rng = np.random.default_rng(0)
    for shape in ((3, 3), (4, 5), (6, 70), (41, 34)):
        u = rng.random(shape, np.float32)
        alone = multi.heat(u, 5, 1, variant)
        np.testing.assert_allclose(alone, spread(u, 5), rtol=1e-5, atol=1e-6)
        for count in counts():
            assert np.array_equal(multi.heat(u, 5, count, variant), alone), (shape, count)


@pytest.mark.skipif(on_gpu(), reason="processing elements on GPUs need nvshmem4py")
def test_heat_by_signals_is_the_same_on_any_number_of_elements():
    u = np.random.default_rng(6).random((9, 300), np.float32)
    for pes in (1, 3, 7):
        assert np.array_equal(multi.heat_by_signals(u, 5, pes), multi.heat(u, 5, 1)), pes


def test_heat_goes_on_from_any_step():
    u = np.random.default_rng(1).random((9, 8), np.float32)
    plate = multi.Heat(u, counts()[-1])
    plate.schedule(3).run()
    plate.schedule(4, first=3).run()
    assert np.array_equal(plate.result(7), multi.heat(u, 7, 1))


@pytest.mark.skipif(on_gpu(), reason="needs several devices")
def test_schedules_have_no_race_and_no_event_to_spare():
    """Every wait is needed: without it something races."""
    u = np.zeros((12, 6), np.float32)
    for variant in multi.VARIANTS:
        for count in (2, 3):
            schedule = multi.Heat(u, count, variant).schedule(4)
            assert schedule.races() == []
            assert all(without(schedule, number) for number in waits(schedule)), variant
    for variant in multi.RINGS:
        arrays = multi.copy_to_devices([np.ones(500, np.float32)] * 3, (0, 1, 2))
        schedule = multi.AllReduce(arrays, variant=variant, pieces=2).schedule
        assert schedule.races() == []
        assert all(without(schedule, number) for number in waits(schedule)), variant


@pytest.mark.parametrize("variant", multi.RINGS)
def test_all_reduce(variant):
    rng = np.random.default_rng(2)
    for count in counts():
        for size, dtype in ((1, np.float64), (31, np.int64), (1000, np.float32), (5003, np.float32)):
            values = [rng.integers(-99, 100, size).astype(dtype) for _ in range(count)]
            arrays = multi.copy_to_devices(values, range(count))
            ring = multi.AllReduce(arrays, variant=variant, pieces=3)
            ring.run()
            assert all(np.array_equal(array.copy_to_host(), sum(values)) for array in arrays), (count, size)
            ring.queue()  # a second and a third one follow without waiting
            ring.queue()
            multi.synchronize(range(count))
            assert all(np.array_equal(array.copy_to_host(), count**2 * sum(values)) for array in arrays)
    assert multi.bus_bandwidth(8, 2.0, 2) == 4.0


@pytest.mark.parametrize("variant", multi.WAYS)
def test_product(variant):
    rng = np.random.default_rng(3)
    for m, k, n in ((1, 1, 1), (5, 4, 3), (67, 33, 50)):
        a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
        for count in counts():
            np.testing.assert_allclose(multi.product(a, b, count, variant), a @ b, rtol=1e-5)


@pytest.mark.skipif(on_gpu(), reason="needs several devices")
def test_a_late_device_gets_fewer_rows():
    for count in (2, 4):
        a, b, out = (cuda.device_array((size, 8), np.float32) for size in (16384, 8, 16384))
        made = multi.Product(a, b, out, count)
        rows = [part.stop - part.start for part in made.parts]
        assert sum(rows) == 16384 and made.parts[-1].stop == 16384 and rows[0] >= max(rows[1:])
        assert max(rows[1:]) - min(rows[1:]) <= 1


def test_frames_are_dealt_out():
    rng = np.random.default_rng(4)
    frames = rng.integers(0, 256, (7, 12, 10, 3), np.uint8)
    out = np.zeros((7, 6, 5, 3), np.uint8)
    devices = range(counts()[-1])
    pipeline = streams.Pipeline(
        lambda x, y, q: resize.resize(x, (6, 5), out=y, stream=q), frames, chunks=7, streams=1, out=out, devices=devices
    )
    pipeline.run()
    assert np.array_equal(out, resize.resize(frames, (6, 5)))
    assert {operation.device for operation in pipeline.schedule.operations} == set(devices)
    assert pipeline.schedule.races() == []


@pytest.mark.skipif(on_gpu(), reason="an emulated link")
def test_modelled_timelines_know_links():
    """A link takes its start and its bytes, one copy at a time in each direction; devices work side by side."""
    model = streams.Model(link=1e9, link_start=1e-3, issue=0.0, kernel_start=0.0)
    schedule = streams.Schedule()
    for device, peer in ((0, 1), (1, 0), (0, 1), (2, 1)):
        schedule.add("peer copy", print, stream=len(schedule.operations), nbytes=10**6, device=device, peer=peer)
    schedule.add("kernel", print, 9, seconds=5e-3, device=3, peer=0, peer_bytes=10**7)
    timeline = streams.modelled(schedule, model)
    ends = [round(bar.end * 1e3, 6) for bar in sorted(timeline.bars, key=lambda bar: (bar.device, bar.start))]
    assert ends == [2, 4, 2, 2, 11]
    assert streams.Timeline.of(timeline.record()) == timeline
    assert "modelled" in str(timeline) and "peer copy" in str(timeline)


def test_what_is_refused():
    u, x = np.zeros((5, 5), np.float32), cuda.to_device(np.zeros(4, np.float32))
    for error, message, call in (
        (ValueError, "devices", lambda: multi.choose_devices([0, 0])),
        (ValueError, "devices", lambda: multi.choose_devices(99)),
        (TypeError, "float32", lambda: multi.heat(u.astype(np.float64), 1)),
        (ValueError, "3 rows", lambda: multi.heat(u[:2], 1)),
        (ValueError, "0.25", lambda: multi.heat(u, 1, rate=0.3)),
        (ValueError, "variant", lambda: multi.heat(u, 1, variant="fast")),
        (TypeError, "u is", lambda: multi.heat_by_signals([[0.0]], 1)),
        (ValueError, "pes is 4", lambda: multi.heat_by_signals(u, 1, pes=4)),
        (ValueError, "devices names", lambda: multi.all_reduce([x, x], 1)),
        (TypeError, "device array", lambda: multi.all_reduce([u[0]], 1)),
        (ValueError, "shapes", lambda: multi.product(u, u[:3])),
        (TypeError, "NumPy", lambda: multi.product(x, u)),
        (ValueError, "peer copy", lambda: streams.Schedule().add("copy", print)),
        (ValueError, "device", lambda: streams.Schedule().add("kernel", print, device=99)),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.gpu
def test_two_gpus():
    if len(cuda.gpus) < 2:
        pytest.skip("needs two GPUs")
    u = np.random.default_rng(5).random((1031, 517), np.float32)
    for variant in multi.VARIANTS:
        plate = multi.Heat(u, 2, variant)
        timeline = plate.schedule(20).run(record=True)
        assert np.array_equal(plate.result(20), multi.heat(u, 20, 1))
        assert {bar.device for bar in timeline.bars} == {0, 1} and not timeline.modelled


# -- a cluster ---------------------------------------------------------------------------------------------------------


@cuda.jit
def twice(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"pip install 'gpukit\[multi\]'"):
        multi.map_frames(abs, [1], None)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")
def test_batches_survive_a_worker():
    """Results are right, in order and bounded in number, although one of two workers is killed half-way."""
    drawn = []

    def batches():
        for number in range(12):
            drawn.append(number)
            yield number

    def work(number):
        x = np.full(100, number, np.float32)
        twice[1, 128](x)
        return number, float(x.sum()), os.getpid()

    def fails(number):
        raise ValueError(f"batch {number} is spoilt")

    reports, found = [], []
    with multi.local_cluster(workers=2) as client:
        for result in multi.map_frames(work, batches(), client, ahead=2, progress=reports.append):
            found.append(result)
            assert len(drawn) - len(found) <= 2 * 2
            if len(found) == 5:
                os.kill(result[2], signal.SIGKILL)
        assert multi.reduce(abs, np.subtract, [1, 2, 3], client) == -4  # from the first to the last
        with pytest.raises(ValueError, match="batch 7 is spoilt"):
            list(multi.map_frames(fails, [7], client, retries=1))
        with pytest.raises(ValueError, match="empty"):
            multi.reduce(abs, np.add, [], client)
        with pytest.raises(TypeError, match="batches"):
            multi.map_frames(abs, 7, client)
    with pytest.raises(TypeError, match=r"distributed\.Client"):
        cluster.map_frames(abs, [1], "tcp://somewhere")
    assert [number for number, _, _ in found] == list(range(12)) == [number - 1 for number in reports]
    assert [total for _, total, _ in found] == [200.0 * number for number in range(12)]
    assert len({pid for _, _, pid in found}) >= 2
