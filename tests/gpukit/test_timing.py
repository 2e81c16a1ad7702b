"""gpukit.timing: statistics and order of events on a simulated GPU with known clocks; marker ``gpu``: real kernels."""

import itertools

import numpy as np
import pytest

from gpukit import timing
from gpukit.backend import cuda, on_gpu
from gpukit.timing import EmulatedTimeError, Timer, Timing, bench, bench_many, format_seconds

US = 1000  # the simulated clocks count nanoseconds


class SimulatedGpu:
    """A host and a device clock: work is queued when the host says so and runs in order when the device is free."""

    L2_CACHE_SIZE = 1 << 20

    def __init__(self, launch_cost=15 * US, flush_time=40 * US):
        self.host = self.device = 0
        self.launch_cost, self.flush_time = launch_cost, flush_time
        self.log = []

    def queue(self, what, duration, cost=1 * US):
        self.host += cost
        self.device = max(self.device, self.host) + duration
        self.log.append(what)

    def kernel(self, what, duration):
        """A function that launches a kernel of this duration; an iterator gives one for each launch."""
        durations = iter(duration) if hasattr(duration, "__next__") else itertools.repeat(duration)
        return lambda: self.queue(what, next(durations), self.launch_cost)

    # What timing uses of numba.cuda and of the time module.

    def event(self):
        return SimulatedEvent(self)

    def synchronize(self):
        self.host = max(self.host, self.device)

    def get_current_device(self):
        return self

    def device_array(self, shape, dtype):
        self.flushed_bytes = np.empty(shape, dtype).nbytes
        return "buffer"

    def perf_counter_ns(self):
        return self.host


class SimulatedEvent:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self, stream):
        self.gpu.queue("record", 0)
        self.time = self.gpu.device

    def query(self):
        return self.time <= self.gpu.host

    def synchronize(self):
        self.gpu.host = max(self.gpu.host, self.time)

    def elapsed_time(self, end):
        return (end.time - self.time) / 1e6


@pytest.fixture
def gpu(monkeypatch):
    gpu = SimulatedGpu()
    monkeypatch.setattr(timing, "cuda", gpu)
    monkeypatch.setattr(timing, "time", gpu)
    monkeypatch.setattr(timing, "on_gpu", lambda: True)
    monkeypatch.setattr(timing, "device_memset", lambda *_: gpu.queue("flush", gpu.flush_time))
    monkeypatch.setattr(timing, "_make_hold", lambda _: lambda duration: gpu.queue("hold", duration, gpu.launch_cost))
    return gpu


def test_statistics_of_known_samples():
    result = Timing(tuple(value * 1e-6 for value in (14, 10, 12, 18, 11, 13, 17, 15, 16)), "copy", queued_ahead=9)
    assert (result.n, result.minimum, result.median) == (9, pytest.approx(10e-6), pytest.approx(14e-6))
    assert result.quartiles == (pytest.approx(12e-6), pytest.approx(16e-6))
    assert result.spread == pytest.approx(4 / 14)
    assert result.noisy and "NOISY: interquartile range 28.6% of the median, more than 5%" in str(result)
    assert str(result).startswith("copy: 14.00 us (quartiles 12.00 us to 16.00 us, minimum 10.00 us, n = 9; one call, ")
    assert result.gbps(28e6) == pytest.approx(2000) and result.tflops(7e9) == pytest.approx(500)


@pytest.mark.parametrize(
    ("samples", "noisy"),
    [
        ((100, 101, 102, 103, 104), False),
        ((100, 100, 100, 100, 900), False),  # one outlier is not a wide middle half
        ((97, 97, 100, 102.1, 103), True),
        ((100, 100, 100, 100), True),  # too few to know
    ],
)
def test_noisy_follows_its_rule(samples, noisy):
    assert Timing(samples, device="cpu").noisy is noisy
    assert ("NOISY" in str(Timing(samples, device="cpu"))) is noisy


@pytest.mark.parametrize(
    ("quartiles", "valid"),
    [((95e-3, 104e-3), True), ((90e-3, 101e-3), False), ((4.4e-6, 5.6e-6), True), ((4.2e-6, 6e-6), False)],
)
def test_valid_leaves_an_event_its_resolution(quartiles, valid):
    first, third = quartiles
    samples = (first, first, (first + third) / 2, third, third)
    assert Timing(samples).valid is valid
    if first < 1e-3:
        assert not Timing(samples, device="cpu").valid, "the clock of the host has steps of nanoseconds"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.23456e-5, "12.35 us"),
        (0.99999e-3, "1.000 ms"),
        (0.0123, "12.30 ms"),
        (123.456, "123.5 s"),
        (4567.8, "4568 s"),
        (3.2e-10, "0.3200 ns"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_each_repetition_is_setup_flush_and_then_the_timed_call(gpu):
    result = bench(gpu.kernel("kernel", 200 * US), setup=lambda: gpu.log.append("setup"), repeat=6)
    assert gpu.log[-30:] == ["setup", "flush", "record", "kernel", "record"] * 6
    assert gpu.flushed_bytes == 2 * gpu.L2_CACHE_SIZE
    assert result.samples == pytest.approx([200e-6] * 6) and result.queued_ahead == 6
    assert result.timed == "one call, device time, L2 flushed, launch cost not included"


def test_samples_are_those_of_the_timed_repetitions_in_order(gpu):
    durations = iter([5000 * US] * 3 + [70 * US, 20 * US, 40 * US, 30 * US, 60 * US])
    result = bench(gpu.kernel("kernel", durations), warmup=10e-3, repeat=5)
    assert result.samples == pytest.approx([70e-6, 20e-6, 40e-6, 30e-6, 60e-6])
    assert result.minimum == pytest.approx(20e-6) and result.median == pytest.approx(40e-6)


@pytest.mark.parametrize("calls", [1, 8])
def test_launch_cost_is_kept_out_of_short_kernels(gpu, calls):
    """A kernel of 3 us that costs 15 us to launch, with nothing before it to hide behind: the hold must appear."""
    result = bench(gpu.kernel("kernel", 3 * US), l2_flush=False, calls=calls, repeat=20)
    assert "flush" not in gpu.log and "hold" in gpu.log
    assert result.samples == pytest.approx([3e-6] * 20)
    assert result.queued_ahead == 20 and not result.launch_bound
    assert result.host_seconds == pytest.approx(15e-6)


def test_a_function_that_waits_for_the_device_is_said_to_include_the_launch(gpu):
    launch = gpu.kernel("kernel", 3 * US)

    def fn():
        launch()
        gpu.synchronize()

    result = bench(fn, l2_flush=False, repeat=20, warmup=0.002)
    assert result.queued_ahead == 0 and result.launch_bound
    assert "in 20 of 20 repetitions the device may have waited for the host (18.00 us per call there)" in str(result)
    assert gpu.log.count("hold") == timing.MAX_OUTLASTED and "hold" not in gpu.log[-20 * 3 :], (
        "holding the device back is of no use here and must have been given up"
    )


def test_auto_calls_fill_a_region_and_the_result_says_so(gpu):
    result = bench(gpu.kernel("kernel", 6 * US), calls="auto", repeat=10)
    assert result.calls == 34  # the fewest that last 200 us
    assert gpu.log[-36:] == ["record"] + ["kernel"] * 34 + ["record"]
    assert result.samples == pytest.approx([6e-6] * 10)
    assert result.timed.startswith("mean of 34 calls back to back, device time, L2 flushed before the first")


def test_rounds_interleave_and_turn_round(gpu):
    functions = {name: gpu.kernel(name, (50 + 10 * i) * US) for i, name in enumerate("abc")}
    setups = {"b": lambda: gpu.log.append("setup b")}
    results = bench_many(functions, repeat=3, setup=setups)
    assert [what for what in gpu.log if what in functions][-9:] == list("abccbaabc")
    assert gpu.log.count("setup b") == gpu.log.count("b")
    assert list(results) == ["a", "b", "c"] and results["c"].name == "c"
    assert [results[name].median for name in "abc"] == pytest.approx([50e-6, 60e-6, 70e-6])


def test_min_time_chooses_the_repetitions(gpu):
    def repetitions(milliseconds, **options):
        return bench(gpu.kernel("kernel", milliseconds * 1000 * US), **options).n

    assert repetitions(4, min_time=0.4) == pytest.approx(100, abs=3)
    assert repetitions(500) == timing.MIN_REPETITIONS
    assert repetitions(0.01) == timing.MAX_REPETITIONS


def test_gpu_timer_waits_for_its_second_event(gpu, capsys):
    with Timer("four kernels", "us", device="gpu") as timer:
        for _ in range(4):
            gpu.kernel("kernel", 100 * US)()
    assert gpu.log == ["record"] + ["kernel"] * 4 + ["record"]
    assert timer.elapsed == pytest.approx(415)  # the first of the launches is not hidden
    assert gpu.host >= gpu.device
    assert capsys.readouterr().out == "four kernels: 415.000 us\n"


@pytest.mark.parametrize(("unit", "elapsed"), [("s", 0.0025), ("ms", 2.5), ("us", 2500), ("ns", 2.5e6)])
def test_cpu_timer_units_and_reuse(monkeypatch, capsys, unit, elapsed):
    clock = SimulatedGpu()
    monkeypatch.setattr(timing, "time", clock)
    timer = Timer(unit=unit, show=False)
    for _ in range(2):
        timer.start()
        clock.host += 2500 * US
        assert timer.stop() == timer.elapsed == pytest.approx(elapsed)
    assert capsys.readouterr().out == ""
    assert str(timer) == f"{elapsed:.3f} {unit}"


def test_timer_states(capsys):
    timer = Timer("x")
    with pytest.raises(RuntimeError, match="start"):
        timer.stop()
    with pytest.raises(RuntimeError, match="has not stopped"):
        _ = timer.elapsed
    with pytest.raises(KeyError), timer:
        raise KeyError
    assert capsys.readouterr().out == ""
    with pytest.raises(RuntimeError, match="runs already"):
        timer.start().start()


def test_cpu_bench_times_the_host_and_nothing_else(monkeypatch):
    clock = SimulatedGpu()
    monkeypatch.setattr(timing, "time", clock)

    def spend(nanoseconds):
        clock.host += nanoseconds

    result = bench(lambda: spend(5 * US), setup=lambda: spend(900 * US), device="cpu", calls=4, repeat=7, warmup=0)
    assert result.samples == pytest.approx([5e-6] * 7)
    assert result.timed == "mean of 4 calls back to back, host clock"
    assert not result.launch_bound and not result.noisy


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"device": "tpu"}, ValueError, "device is 'tpu'.*cpu, gpu"),
        ({"repeat": 0}, ValueError, "repeat is 0"),
        ({"calls": 1.5}, ValueError, "calls is 1.5.*'auto'"),
        ({"warmup": -1}, ValueError, "warmup is -1"),
        ({"warmup": 0}, ValueError, "repeat must be given"),
        ({"min_time": 0}, ValueError, "min_time is 0"),
        ({"setup": 3}, TypeError, "setup is 3"),
        ({"setup": {"other": print}}, ValueError, "'other'"),
    ],
)
def test_wrong_arguments_are_named(options, error, words):
    def never():
        pytest.fail("called before the arguments were checked")

    with pytest.raises(error, match=words):
        bench_many({"f": never}, **{"device": "cpu"} | options)


def test_what_is_benched_must_be_callable():
    with pytest.raises(TypeError, match="fn is 3"):
        bench(3, device="cpu")
    with pytest.raises(TypeError, match="must be a dict"):
        bench_many([print], device="cpu")
    with pytest.raises(ValueError, match="empty"):
        bench_many({}, device="cpu")
    with pytest.raises(ValueError, match="unit is 'min'.*ns"):
        Timer(unit="min")


@pytest.mark.skipif(on_gpu(), reason="there is a GPU")
def test_the_emulator_gives_no_times():
    for call in (lambda: bench(print), lambda: bench_many({"a": print}), lambda: Timer(device="gpu")):
        with pytest.raises(EmulatedTimeError, match="gpukit.trace.*recorded"):
            call()


@pytest.mark.gpu
def test_copies_on_the_gpu():
    """Device time against the bandwidth that is possible: a copy this large cannot beat it, and comes near it.

    The fastest of the copies: while other processes use the GPU, most are slower.
    """
    from gpukit import device

    source = cuda.to_device(np.random.default_rng(0).random(1 << 26, np.float32))
    target = cuda.device_array_like(source)
    result = bench(lambda: target.copy_to_device(source), min_time=0.1)
    fraction = 2 * source.nbytes / result.minimum / device.info().memory_bandwidth
    assert 0.5 < fraction < 1, result


@pytest.mark.gpu
def test_launch_cost_is_not_in_a_short_kernel():
    @cuda.jit
    def touch(x):
        x[cuda.grid(1)] += np.float32(1)

    x = cuda.to_device(np.zeros(1024, np.float32))
    for flush in (True, False):
        result = bench(lambda: touch[8, 128](x), l2_flush=flush)
        assert result.queued_ahead > 0.9 * result.n, result
        assert result.median < result.host_seconds, result


@pytest.mark.gpu
def test_gpu_timer_agrees_with_the_host_on_a_long_kernel():
    @cuda.jit
    def sleep(times):
        for _ in range(times):
            cuda.nanosleep(100_000)

    sleep[1, 1](1)
    cuda.synchronize()
    excess = []
    for _ in range(5):  # another process may have its turn on the GPU before the first event
        with Timer(show=False) as host, Timer(device="gpu", show=False) as event:
            sleep[1, 1](500)
        assert 50 * 0.5 < event.elapsed <= host.elapsed
        excess.append(host.elapsed - 1.2 * event.elapsed)
    assert min(excess) < 1
