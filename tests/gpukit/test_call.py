"""`gpukit._host`: a call like an earlier one repeats its launches, and does what the earlier one did."""

import contextlib
import functools
import gc
import threading
import weakref

import numpy as np
import pytest
from layouts import laid_out

from gpukit import conv, emulator, indexing, launching, matmul, reduce, resize, scan, transpose
from gpukit._host import call as calls
from gpukit._host import keys, prepared
from gpukit._host.arrays import check_apart, check_array
from gpukit._host.call import CACHE, call, forget
from gpukit._host.keys import array_key, layout_of, make_locate, settings_key
from gpukit._host.replay import LaunchCache
from gpukit._host.transfers import copy_to
from gpukit._host.work_memory import MAX_ROUNDED, Buffers, WorkMemory, free_work_memory, state_of
from gpukit.backend import cuda, on_gpu

RANDOM = np.random.default_rng(6)


@cuda.jit
def add_into(a, b, out, n, weight):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        out[i] = a[i] + weight * b[i]


def make_add():
    """A host function like those of the chapters, and the weights of the calls that were planned."""
    planned = []

    def add(a, b, weight=1.0, *, out=None, stream=None):
        return call(plan, (a, b), out, stream, (weight,))

    def plan(problem):
        (a, b), (weight,) = problem.inputs, problem.settings
        planned.append(weight)
        check_array("a", a, 1)
        if problem.out is not None:
            check_apart("out", problem.out, a=a, b=b)
        target, n = problem.output(a.shape), a.shape[0]
        a, b = problem.on_device(a), problem.on_device(b)
        # In two halves, so that addresses inside of the arrays are exchanged too.
        return [
            (add_into[1, 32, problem.stream], (a[part], b[part], target[part], size, weight))
            for part, size in ((slice(0, n // 2), n // 2), (slice(n // 2, n), n - n // 2))
        ]

    return add, planned


@pytest.fixture
def cache(monkeypatch):
    """An empty cache of its own for the test."""
    made = LaunchCache()
    monkeypatch.setattr(calls, "CACHE", made)
    return made


def device(n=101):
    return cuda.to_device(RANDOM.random(n))


def check(add, a, b, weight=1.0, **options):
    got = add(a, b, weight, **options)
    cuda.synchronize()
    host = [x if isinstance(x, np.ndarray) else x.copy_to_host() for x in (a, b, got)]
    np.testing.assert_allclose(host[2], host[0] + weight * host[1])
    return got


def test_a_call_like_an_earlier_one_repeats_its_launches(cache):
    add, planned = make_add()
    first = check(add, device(), device())
    kept = first.copy_to_host()
    for _ in range(3):
        check(add, device(), device())
    assert len(planned) == 1
    np.testing.assert_array_equal(first.copy_to_host(), kept)
    # What decides the launches is planned anew.
    stream = cuda.stream()
    check(add, device(), device(), 2.0)
    check(add, device(100), device(100))
    check(add, device(), device(), stream=stream)
    check(add, device(), device(), out=device())
    assert len(planned) == len(cache.calls) == 5
    for options in ({}, {"stream": stream}, {"out": device()}):
        check(add, device(), device(), **options)
    assert len(planned) == 5
    # Another host function has calls of its own.
    other, of_other = make_add()
    check(other, device(), device())
    assert len(of_other) == 1


@cuda.jit
def negate(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = -x[i]


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize(
    ("shape", "order", "step"),
    [
        ((7,), (0,), 3),
        ((37, 70), (1, 0), 1),
        ((3, 5, 40, 33), (0, 2, 3, 1), 1),
        ((2, 40, 3, 35), (3, 0, 2, 1), 1),
        ((2, 3, 2, 4, 5, 3), (5, 0, 3, 1, 4, 2), 2),
        ((1, 6, 1, 5), (2, 3, 0, 1), 1),
    ],
)
def test_arrays_of_any_layout_are_read_and_written_and_their_calls_repeated(cache, shape, order, step, dtype):
    planned = []

    def plan(problem):
        (x,) = problem.inputs
        planned.append(x)
        target = problem.output(x.shape)
        x = problem.on_device(x)
        return [(negate[2, 32, problem.stream], (x.reshape(x.size), target.reshape(x.size)))]

    for turn in range(3):
        x = RANDOM.integers(1, 100, shape).astype(dtype)
        source, out = laid_out(x, order, step), laid_out(np.zeros(shape, dtype), order, step)
        np.testing.assert_array_equal(call(plan, (source,), None, None).copy_to_host(), (-x).astype(dtype))
        call(plan, (source,), out, None)
        copy = cuda.device_array(shape, dtype)
        copy_to(out, copy, 0)
        np.testing.assert_array_equal(copy.copy_to_host(), (-x).astype(dtype))
        if turn == 1:
            free_work_memory()  # it is made again
    assert len(planned) == 2


def test_a_call_may_have_several_results(cache):
    planned = []

    def plan(problem):
        (x,) = problem.inputs
        planned.append(x)
        negated, halves = problem.output(x.shape), problem.output((x.shape[0] // 2,), np.float32)
        x = problem.on_device(x)
        return [(negate[2, 32], (x, negated)), (negate[1, 32], (x[: halves.size], halves))]

    kept = []
    for _ in range(3):
        x = RANDOM.random(20)
        for given in (x, cuda.to_device(x)):
            kept += [(x, result) for result in zip(call(plan, (given,)), (20, 10), strict=True)]
    for x, (result, size) in kept:
        found = result if isinstance(result, np.ndarray) else result.copy_to_host()
        np.testing.assert_array_equal(found, -x if size == 20 else -x[:10].astype(np.float32))
    assert len(planned) == 4 and len(cache.calls) == 1


def test_calls_with_other_numbers_of_arrays_are_told_apart(cache):
    planned = []

    def plan(problem):
        first, *others = map(problem.on_device, problem.inputs)
        planned.append(len(others))
        target, n = problem.output((101,)), 101
        steps = [(add_into[1, 32], (first, first, target, n, 0.0))]
        return steps + [(add_into[1, 32], (other, target, target, n, 1.0)) for other in others]

    out = device()
    for number in (2, 1, 3, 1, 2, 3, 2, 1):
        arrays = [RANDOM.random(101) for _ in range(number)]
        for given in (None, out):
            found = call(plan, tuple(map(cuda.to_device, arrays)), given)
            np.testing.assert_allclose(found.copy_to_host(), sum(arrays))
    assert len(planned) == len(cache.calls) == 6


def test_calls_with_empty_arrays_are_repeated(cache):
    planned = []

    def plan(problem):
        (x,) = problem.inputs
        planned.append(tuple(x.shape))
        target = problem.output((x.shape[0],))
        ones = cuda.to_device(np.ones(x.shape[0]))
        return [(negate[1, 32], (ones, target))] if target.size else []

    for shape in ((0, 3), (4, 0)):
        made = [call(plan, (cuda.device_array(shape),)) for _ in range(3)]
        assert len({id(array) for array in made}) == 3
        assert [array.copy_to_host().tolist() for array in made] == [[-1.0] * shape[0]] * 3
    # An output that no launch writes is the planner's own work.
    for _ in range(2):
        call(lambda problem: planned.append(problem.output((2,)).shape) or [], (device(),))
    assert planned == [(0, 3), (4, 0), (2,), (2,)]


def test_work_memory_that_has_moved_is_found_again(cache):
    small, large = (RANDOM.random((n, 7)) for n in (9, 500))
    negated = {}

    def plan(problem):
        (x,) = problem.inputs
        target, x = problem.output(x.shape), problem.on_device(x)
        return [(negate[2, 32], (x.reshape(x.size), target.reshape(x.size)))]

    for x in (small, large, small):
        negated[x.size] = call(plan, (laid_out(x, (1, 0)),), None, None)
    np.testing.assert_array_equal(negated[small.size].copy_to_host(), -small)
    np.testing.assert_array_equal(negated[large.size].copy_to_host(), -large)
    assert len(cache.calls) == 2


def test_settings_that_are_equal_but_not_the_same_are_told_apart():
    add, planned = make_add()
    a, b = device(), device()
    for weight in (1, True, 1.0, 0.0, -0.0, np.float32(0), np.float32(-0.0)):
        add(a, b, weight)
        add(a, b, weight)
    texts = [repr(weight) for weight in planned]
    assert texts == ["1", "True", "1.0", "0.0", "-0.0", "np.float32(0.0)", "np.float32(-0.0)"]


def test_equal_settings_of_other_objects_find_the_same_call(monkeypatch):
    cache = LaunchCache(max_calls=2)
    monkeypatch.setattr(calls, "CACHE", cache)
    add, planned = make_add()
    a, b = device(), device()
    for _ in range(5):
        add(a, b, float("2.5"))
    assert len(planned) == 1
    # A call that has been dropped is not found by the ids of its settings either.
    for weight in (3.5, 4.5, 2.5):
        add(a, b, weight)
    assert planned == [2.5, 3.5, 4.5, 2.5] and len(cache.calls) == 2
    for _ in range(5):
        add(a, b, float("2.5"))
    assert len(planned) == 4 and len(cache.latest) <= 2


def test_keys_of_settings_tell_apart_what_a_call_may_depend_on():
    def settings():
        for one in (1, True, 1.0, np.float32(1), np.int64(1), "1", None, float, sum, (1,), (1, 1), 2, 0.0, -0.0):
            yield from ((one,), (one, 0), ((one,), 0), ((one, 0.0), 0), ((one, -0.0), 0), (((one,), 0.0), 0))

    found, again = ([(repr(one), settings_key(one)[0]) for one in settings()] for _ in range(2))
    assert all((key == other) == (text == other_text) for text, key in found for other_text, other in again)
    with pytest.raises(TypeError):
        hash(settings_key(([1], 2))[0])


def test_what_a_repeated_call_must_not_do(cache):
    add, planned = make_add()
    a, b, out = device(), device(), device()
    check(add, a, b, out=out)
    # The same shapes, but the output is an input: checked anew, and refused.
    with pytest.raises(ValueError, match="out shares memory with a"):
        add(a, b, out=a)
    # An input twice; then two inputs of that kind; then one that begins inside of the other.
    fresh, planned = make_add()
    check(fresh, a, a)
    check(fresh, b, b)
    assert len(planned) == 1
    check(fresh, a, b)
    check(fresh, b, a)
    check(fresh, b, b)
    assert len(planned) == 2
    whole = device(202)
    for _ in range(2):
        check(fresh, whole[4:105], whole[:101])
    assert len(planned) == 2
    # NumPy arrays are planned anew each time.
    cache.clear()
    fresh, planned = make_add()
    for _ in range(2):
        check(fresh, RANDOM.random(101), RANDOM.random(101))
    assert len(planned) == 2
    assert not cache.calls


def test_calls_that_cannot_be_repeated(cache):
    """A setting without a hash, and a planner that says so."""
    planned = []

    def plan(problem):
        (x,), (settings,) = problem.inputs, problem.settings
        planned.append(settings)
        problem.repeatable = isinstance(settings, list)
        return [(add_into[1, 32, problem.stream], (x, x, problem.output(x.shape), 101, 1.0))]

    for settings in ([3], 4):
        x = device()
        for _ in range(2):
            got = call(plan, (x,), settings=(settings,))
            np.testing.assert_array_equal(got.copy_to_host(), 2 * x.copy_to_host())
    assert planned == [[3], [3], 4, 4] and not cache.calls


def test_alignment_is_part_of_the_key():
    add, planned = make_add()
    long = device(110)
    check(add, long[:101], device())
    check(add, long[1:102], device())
    check(add, long[2:103], device())
    assert len(planned) == 2


def test_recorded_calls_hold_no_inputs_and_are_few(monkeypatch):
    cache = LaunchCache(max_calls=3)
    monkeypatch.setattr(calls, "CACHE", cache)
    add, planned = make_add()
    arrays = [device(), device(), device()]
    gone = [weakref.ref(x.gpu_data) for x in arrays]
    check(add, *arrays[:2], out=arrays[2])
    del arrays
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]
    for weight in range(5):
        add(device(), device(), float(weight))
    assert len(cache.calls) == 3
    before = len(planned)
    add(device(), device(), 4.0)
    assert len(planned) == before
    # The least recently used is dropped first: 2.0 is used, so that 3.0 goes.
    for weight in (2.0, 5.0, 2.0):
        add(device(), device(), weight)
    assert len(planned) == before + 1
    add(device(), device(), 3.0)
    assert len(planned) == before + 2


def sum_through_work_memory(problem):
    """Two launches; the first leaves its result to the second in work memory."""
    a, b = problem.inputs
    work, target = problem.work.take("copy", a.shape[0], a.dtype), problem.output(a.shape)
    return [
        (add_into[1, 32, problem.stream], (a, a, work, a.shape[0], 0.0)),
        (add_into[1, 32, problem.stream], (work, b, target, a.shape[0], 1.0)),
    ]


def test_calls_of_many_threads_do_not_mix():
    """On one stream they share work memory, on several each has its own."""
    right, streams = [], [None, cuda.stream(), cuda.stream()]

    def run(seed):
        random = np.random.default_rng(seed)
        for _ in range(15):
            a, b = random.random(101), random.random(101)
            stream = streams[seed % 3 if seed > 3 else 0]
            got = call(sum_through_work_memory, (cuda.to_device(a), cuda.to_device(b)), None, stream)
            cuda.synchronize()
            right.append(np.allclose(got.copy_to_host(), a + b))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 105 and all(right)


def add_from_a_table(problem, copy=cuda.to_device):
    """A launch that reads an array of the planner's own."""
    (a,) = problem.inputs
    table, target = copy(np.ones(a.shape[0])), problem.output(a.shape)
    return [(add_into[1, 32, problem.stream], (a, table, target, a.shape[0], 1.0))]


def test_a_graph_gets_launches_that_last(cache, monkeypatch):
    """What a CUDA graph records while it captures the stream must not read memory that is gone when the graph runs."""
    stream, captured, launched = cuda.stream(), set(), []
    monkeypatch.setattr(calls, "is_captured", captured.__contains__)
    monkeypatch.setattr(calls, "beside_a_capture", contextlib.nullcontext)
    monkeypatch.setattr(keys, "make_is_captured", lambda handle: lambda: bool(captured))
    monkeypatch.setattr(keys, "on_gpu", lambda: True)
    start = prepared.Prepared.__call__
    monkeypatch.setattr(prepared.Prepared, "__call__", lambda self: launched.append(self.name) or start(self))
    add, planned = make_add()
    for _ in range(3):
        check(add, device(), device(), stream=stream)
    assert len(planned) == len(cache.calls) == 1
    captured.add(stream)
    launched.clear()
    for _ in range(2):
        check(add, device(), device(), stream=stream)
        check(add, device(), device(), stream=stream, out=device())
    assert len(planned) == 5 and len(cache.calls) == 1 and launched == ["add_into"] * 8
    with pytest.raises(RuntimeError, match="the call needs memory that stays the graph's: pass PyTorch tensors"):
        call(sum_through_work_memory, (device(), device()), None, stream)
    with pytest.raises(RuntimeError, match="its kernel add_into reads a table"):
        call(add_from_a_table, (device(),), None, stream)
    call(lambda problem: add_from_a_table(problem, problem.table), (device(),), None, stream)
    launched.pop()
    with pytest.raises(RuntimeError, match="arrays must be PyTorch tensors, not an ndarray"):
        call(add_from_a_table, (np.ones(3),), None, stream)
    assert len(launched) == 8
    captured.clear()
    check(add, device(), device(), stream=stream)
    assert len(planned) == 5


@contextlib.contextmanager
def two_devices():
    """Two devices, of the emulator or of the machine, without access to each other's memory."""
    with contextlib.nullcontext() if on_gpu() else emulator.use_device(count=2):
        if len(cuda.gpus) < 2:
            pytest.skip("needs two GPUs")
        yield
        forget()


ON_ONE_DEVICE = {
    "planned, then repeated": lambda x, **k: reduce.reduce(x, **k),
    "several results": lambda x, **k: scan.topk(x, 3, **k)[1],
    "work memory": lambda x, **k: scan.sort(x.reshape(20, 15)[::2], axis=0, **k),
    "a result that is waited for": lambda x, **k: scan.compress(x, x, **k),
    "extremes that are waited for": lambda x, **k: scan.histogram(x, 5, **k)[0],
    "many images": lambda x, **k: resize.resize([x[:75].reshape(5, 5, 3), x[:147].reshape(7, 7, 3)], (9, 4), **k),
}


@pytest.mark.parametrize("case", ON_ONE_DEVICE)
def test_calls_are_made_on_the_device_of_their_arrays(case):
    """Whichever is the current one, by a plan or by an earlier call."""
    with two_devices():
        function, found = ON_ONE_DEVICE[case], {0: [], 1: []}
        for current, number in [(0, 1), (1, 1), (0, 1), (1, 0), (0, 0), (1, 0)] * 2:
            with cuda.gpus[number]:
                x, stream = cuda.to_device(np.arange(300.0, dtype=np.float32) % 7), cuda.stream()
                if case == "many images":  # they are copied to the current device
                    current = number
            with cuda.gpus[current]:
                results = [function(x), function(x, stream=stream)]
                assert cuda.get_current_device().id == current
            stream.synchronize()
            with cuda.gpus[number]:
                assert [result.gpu_data.context.device.id for result in results] == [number, number]
                found[number] += [result.copy_to_host() for result in results]
        for result in found[0] + found[1]:
            np.testing.assert_array_equal(result, found[0][0])
        assert len(found[0]) == len(found[1]) == 12


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_calls_are_made_on_the_device_of_arrays_of_other_libraries(library):
    module = pytest.importorskip(library)
    with two_devices():
        for current, number in [(0, 1), (1, 1), (0, 1), (1, 0), (0, 0), (1, 0)] * 2:
            with module.cuda.device(number) if library == "torch" else module.cuda.Device(number):
                x = module.arange(300, device="cuda") if library == "torch" else module.arange(300)
            with module.cuda.device(current) if library == "torch" else module.cuda.Device(current):
                results = [reduce.reduce(x), scan.topk(x, 1).indices, scan.nonzero(x)[-1:]]
            assert [result.device for result in results] == [x.device] * 3
            assert [int(result.reshape(1)[0]) for result in results] == [44850, 299, 299]


def test_arrays_on_two_devices(monkeypatch):
    """The current one works on them, if it can access the memory of the other."""
    with two_devices():
        x = device()
        with cuda.gpus[1]:
            y = device()
        context = type(cuda.current_context())
        for reaches in (False, True, True):
            monkeypatch.setattr(context, "can_access_peer", lambda *_, reaches=reaches: reaches)
            for current in (0, 1):
                with cuda.gpus[current]:
                    if reaches:
                        result = indexing.axpy(1, x, y)
                        assert result.gpu_data.context.device.id == current
                        np.testing.assert_array_equal(result.copy_to_host(), x.copy_to_host() + y.copy_to_host())
                    else:
                        for make in (lambda: indexing.axpy(1, x, y), lambda: scan.compress(y, x)):
                            with pytest.raises(ValueError, match="the arrays are on devices 0 and 1, and . cannot"):
                                make()
        assert indexing.axpy(1, x, x).shape == indexing.axpy(1, y, y).shape


@pytest.mark.gpu
def test_calls_are_made_on_pytorchs_current_stream():
    torch = pytest.importorskip("torch")
    x, s = torch.zeros(1 << 26, device="cuda"), torch.cuda.Stream()
    for _ in range(3):  # planned, found by its key, found among the latest
        torch.cuda.synchronize()
        x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(s):
            for _ in range(20):
                x += 1
            got = reduce.reduce(x)
            assert float(got) == 20 * x.numel()
            assert float(reduce.reduce(x, stream=s)) == 20 * x.numel()
        assert float(reduce.reduce(x)) == 20 * x.numel()


def pytorchs_streams(torch):
    """(A stream, the default one, what makes one current, the handle of the stream in whose memory a new array is)."""

    def stream_of(make):
        array = make()
        segments = [(segment["address"], segment) for segment in torch.cuda.memory_snapshot()]
        return max(found for found in segments if found[0] <= array.data_ptr())[1]["stream"]

    return torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.stream, stream_of


def cupys_streams(cupy):
    """As `pytorchs_streams`."""
    streams, pool = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null], cupy.get_default_memory_pool()

    def bytes_without(stream):
        pool.free_all_blocks(stream=stream)
        return pool.total_bytes()

    def stream_of(make):
        array = make()
        pool.free_all_blocks()
        before = pool.total_bytes()
        del array
        return next(stream.ptr for stream in streams if bytes_without(stream) < before)

    return *streams, lambda stream: stream, stream_of


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_results_are_in_the_memory_of_the_stream_of_the_call(library):
    """Once a result is gone, what is queued in another stream must not get its memory while the call writes it."""
    module = pytest.importorskip(library)
    x, image = RANDOM.random(3 << 20, np.float32), np.zeros((40, 50, 3), np.uint8)
    x, image = (module.asarray(array) if library == "cupy" else module.tensor(array).cuda() for array in (x, image))
    functions = {
        "reduce": lambda **k: reduce.reduce(x.reshape(3, -1), 0, **k),
        "sort": lambda **k: scan.sort(x, **k),
        "topk": lambda **k: scan.topk(x, 1 << 20, **k).values,
        "compress": lambda **k: scan.compress(x > 0.5, x, **k),
        "resize": lambda **k: resize.resize([image, image], (500, 900), **k),
    }
    stream, default, current, stream_of = (pytorchs_streams if library == "torch" else cupys_streams)(module)
    handles = {own: getattr(own, "cuda_stream" if library == "torch" else "ptr") for own in (stream, default)}
    for name, function in functions.items():
        for own, other in ((stream, default), (default, stream)):
            for turn in range(3):  # planned, found by its key, found among the latest
                cuda.synchronize()
                with current(other):
                    assert stream_of(functools.partial(function, stream=own)) == handles[own], (name, turn)
                with current(own):
                    assert stream_of(functools.partial(function, stream=own)) == handles[own], (name, turn)
                    assert stream_of(function) == handles[own], (name, turn)


def convolution(x, weight):
    import torch

    return torch.nn.functional.conv2d(x.double(), weight.double(), padding=1).float()


def first_positions(x, k):
    return x.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def fifth_powers(x):
    """Where segments of x begin: a short one, and longer and longer ones."""
    import torch

    return torch.arange(17, device=x.device) ** 5 * x.numel() // 2**20


def in_segments(x, function):
    import torch

    return torch.cat([function(part) for part in x.flatten().split(fifth_powers(x).diff().tolist())])


GRAPHS = {
    "reduce": (lambda x, **k: reduce.reduce(x, **k), lambda x: x.sum()),
    "mean": (lambda x, **k: reduce.reduce(x.T, 0, "mean", **k), lambda x: x.mean(1)),
    "scan": (lambda x, **k: scan.scan(x, op="max", **k), lambda x: x.flatten().cummax(0).values),
    "sort": (lambda x, **k: scan.sort(x.flatten(), **k), lambda x: x.flatten().sort().values),
    "matmul": (lambda x, **k: matmul.matmul(x, x.T, **k), lambda x: x @ x.T),
    "matmul float16": (lambda x, **k: matmul.matmul(x.half(), x.half(), **k), lambda x: x.half() @ x.half()),
    "conv2d": (
        lambda x, **k: conv.conv2d(x.view(4, 64, 64, 64), x[:64, :576].reshape(64, 64, 3, 3), padding=1, **k),
        lambda x: convolution(x.view(4, 64, 64, 64), x[:64, :576].reshape(64, 64, 3, 3)),
    ),
    "histogram": (
        lambda x, **k: scan.histogram(x, [0.0, 0.1, 0.5, 1.0], **k)[0],
        lambda x: ((x < 0.1).sum(), ((x >= 0.1) & (x < 0.5)).sum(), (x >= 0.5).sum()),
    ),
    "transpose": (lambda x, **k: transpose.transpose(x, **k), lambda x: x.T),
    "topk": (lambda x, **k: scan.topk(x.flatten(), 1000, **k).values, lambda x: x.flatten().topk(1000).values),
    "topk of rows": (lambda x, **k: scan.topk(x, 5, **k).indices, lambda x: first_positions(x, 5)),
    "topk of a few rows": (lambda x, **k: scan.topk(x[:3], 300, **k).indices, lambda x: first_positions(x[:3], 300)),
    "segmented reduce": (
        lambda x, **k: scan.segmented_reduce(x.flatten(), fifth_powers(x), "max", **k),
        lambda x: in_segments(x, lambda part: part.max()[None]),
    ),
    "segmented scan": (
        lambda x, **k: scan.segmented_scan(x.flatten(), fifth_powers(x), "max", **k),
        lambda x: in_segments(x, lambda part: part.cummax(0).values),
    ),
    "nothing": (lambda x, **k: reduce.sum_by(x.flatten()[:0], **k), lambda x: x[0, :1] * 0),
    "nothing in columns": (lambda x, **k: reduce.reduce(x[:0], 0, "prod", **k), lambda x: x[0] * 0 + 1),
}


@pytest.mark.gpu
@pytest.mark.parametrize("warm", ["not", "default", "captured"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_pytorch_record_calls(name, warm):
    """Each replay is right, with other contents, and after calls that made the stream's work memory larger."""
    torch = pytest.importorskip("torch")
    ours, theirs = GRAPHS[name]
    rounding = 1e-2 if name in ("reduce", "mean", "matmul", "matmul float16", "conv2d") else 0
    x, s, graph = torch.rand(1024, 1024, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    if warm == "default":
        ours(x)
    elif warm == "captured":
        with torch.cuda.stream(s):
            ours(x)
    torch.cuda.synchronize()
    with cuda.defer_cleanup(), torch.cuda.graph(graph, stream=s):  # to free memory would end the capture
        y = x * 1
        found = ours(y), ours(y, stream=torch.cuda.current_stream())
    for turn in range(3):
        x.copy_(torch.rand_like(x))
        for result in found:
            result.fill_(-1)
        graph.replay()
        for result in found:
            expected = torch.as_tensor(theirs(x), device="cuda")
            torch.testing.assert_close(result, expected.to(result.dtype), rtol=rounding, atol=rounding)
        if turn == 0:
            large = torch.rand(3000, 3000, device="cuda")
            with torch.cuda.stream(s):
                for array in (x, large) if name != "conv2d" else (x,):
                    ours(array), ours(array, stream=s)
            torch.cuda.synchronize()
            forget()


@pytest.mark.gpu
def test_calls_that_no_graph_can_record_say_so():
    torch = pytest.importorskip("torch")
    x, s, graph = torch.rand(1000, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    own = cuda.device_array(1 << 20, np.float32)  # it takes several blocks
    refused = {
        "the number of elements": lambda: scan.nonzero(x),
        "the smallest and the largest": lambda: scan.histogram(x, 10),
        "pass PyTorch tensors": lambda: scan.scan(own, stream=s),
        "not an ndarray": lambda: scan.scan(np.ones(3), stream=s),
    }
    for message, make in refused.items():
        y = torch.zeros(10, device="cuda")
        with cuda.defer_cleanup(), torch.cuda.graph(graph, stream=s):
            y += 1
            with pytest.raises(RuntimeError, match=message):
                make()
        graph.replay()  # the capture has gone on
        assert float(y.sum()) == 10
        graph = torch.cuda.CUDAGraph()


def test_work_memory_stays_while_launches_that_use_it_are_queued():
    forget()
    state, changes = state_of(0), []
    before = WorkMemory(0, state.buffers).take("sums", 10, np.float32)
    for change in (lambda: WorkMemory(0, state.buffers).take("sums", 5000, np.float32), free_work_memory):
        thread = threading.Thread(target=lambda change=change: changes.append(change()))
        version = state.buffers.version
        with state.lock:
            thread.start()
            thread.join(0.2)
            assert state.buffers.version == version
        thread.join()
        assert state.buffers.version > version
    assert len(changes) == 2 and before.size == 10


def test_work_memory_belongs_to_a_stream_and_grows():
    forget()
    streams = [cuda.stream(), cuda.stream()]
    for stream in (*streams, *streams):
        call(sum_through_work_memory, (device(), device()), None, stream)
    kept = [state_of(stream).buffers for stream in streams]
    assert all(len(buffers) == 1 for buffers in kept) and not state_of(0).buffers
    before, other = (next(iter(buffers.values())) for buffers in kept)
    assert before is not other and before.size == 1024  # the power of two that holds 101 values
    call(sum_through_work_memory, (device(128), device(128)), None, streams[0])
    assert next(iter(kept[0].values())) is before
    check_sum = call(sum_through_work_memory, (device(129), device(129)), None, streams[0])
    assert check_sum.shape == (129,) and next(iter(kept[0].values())).size == 2048
    forget()
    assert not CACHE.calls and not any(kept)
    # A stream that nobody uses any more takes its memory with it.
    call(sum_through_work_memory, (device(), device()), None, streams[1])
    gone = weakref.ref(state_of(streams[1]))
    forget()
    # numba-cuda keeps the latest launch configurations, and their streams with them.
    getattr(type(add_into).configure, "cache_clear", lambda: None)()
    del streams, stream, kept
    gc.collect()
    assert gone() is None


def test_work_memory_of_every_kind():
    buffers = Buffers()
    work = WorkMemory(0, buffers)
    part, whole = work.take("parts", 10, np.float64), work.take("parts", 10, np.float32)
    assert (part.size, part.dtype, whole.size, whole.dtype) == (10, np.float64, 10, np.float32)
    assert part.device_ctypes_pointer.value == whole.device_ctypes_pointer.value
    assert work.take("other", 3, np.uint8).device_ctypes_pointer.value != whole.device_ctypes_pointer.value
    assert work.take("parts", MAX_ROUNDED + 1, np.uint8).size == MAX_ROUNDED + 1
    assert work.take("none", 0, np.float32).size == 0
    counters = work.zeros(5)
    assert counters.dtype == np.uint32 and counters.size >= 5 and not counters.copy_to_host().any()
    assert work.zeros(3) is counters and work.zeros(counters.size + 1) is not counters
    # Memory of its own, and memory of the stream.
    assert WorkMemory(0).zeros(1) is not WorkMemory(0).zeros(1)
    assert WorkMemory(0, buffers).zeros(1) is WorkMemory(0, buffers).zeros(1)


def test_host_functions_replay():
    for shape in ((40, 64), (37, 91)):
        for _ in range(3):
            a = RANDOM.integers(0, 1000, shape)
            out = cuda.to_device(np.zeros(shape[::-1], a.dtype))
            transpose.transpose(cuda.to_device(a), out=out)
            np.testing.assert_array_equal(out.copy_to_host(), a.T)
            np.testing.assert_array_equal(transpose.transpose(cuda.to_device(a)).copy_to_host(), a.T)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_other_libraries(library):
    module = pytest.importorskip(library)

    def make(n=101):
        a = RANDOM.random(n)
        return module.from_numpy(a).cuda() if library == "torch" else module.asarray(a)

    def host(a):
        return a.cpu().numpy() if library == "torch" else a.get()

    add, planned = make_add()
    for _ in range(3):
        a, b = make(), make()
        got = add(a, b, 3.0)
        assert type(got) is type(a)
        np.testing.assert_allclose(host(got), host(a) + 3 * host(b))
    assert len(planned) == 1
    x = cuda.to_device(np.zeros(101))
    launch = launching.prepare(add_into[1, 32], a, b, x, 101, 2.0)
    launch(b, a, x, 101, 1.0)
    np.testing.assert_allclose(x.copy_to_host(), host(a) + host(b))
    if library == "cupy":
        # Work of CuPy on another stream is waited for.
        big = module.zeros(1 << 26)
        with module.cuda.Stream(non_blocking=True):
            for _ in range(20):
                big += 1
            slow = big[:101] + 1
            got = add(slow, slow * 0, 3.0)
        np.testing.assert_allclose(host(got), 21)  # read on the stream that the launch was made on


@pytest.mark.gpu
def test_parameters_are_tensors_where_no_gradient_is_asked_for(cache):
    torch = pytest.importorskip("torch")
    x, weight = (torch.nn.Parameter(torch.rand(4, 4, device="cuda")) for _ in range(2))
    for frozen in (False, True):
        x.requires_grad_(not frozen)
        expected, out = (x @ weight).detach(), torch.nn.Parameter(torch.zeros_like(x))
        with pytest.raises(TypeError, match=r"^(a|b) requires grad, .*: \1.detach\(\)$"):
            matmul.matmul(x, weight)
        with pytest.raises(TypeError, match=r"^out requires grad, .*: out.detach\(\)$"):
            matmul.matmul(x.detach(), weight.detach(), out=out)
        with torch.no_grad():
            for _ in range(3):
                got = matmul.matmul(x, weight)
                assert type(got) is torch.Tensor and not got.requires_grad
                torch.testing.assert_close(got, expected)
                assert matmul.matmul(x, weight, out=out) is out
                torch.testing.assert_close(out.detach(), expected)
    assert len(cache.calls) == 2
    graph = torch.cuda.CUDAGraph()
    with cuda.defer_cleanup(), torch.no_grad(), torch.cuda.graph(graph):
        got = matmul.matmul(x, weight)
    with torch.no_grad():
        x.fill_(1)
    graph.replay()
    torch.testing.assert_close(got, (x @ weight).detach())
    for _ in range(2):  # planned, and repeated
        torch.testing.assert_close(reduce.reduce(x.detach(), 0), x.detach().sum(0))


@pytest.mark.gpu
def test_tensors_that_are_seen_otherwise(cache):
    """As conjugate or negative, which no kernel sees, and as instances of another class."""
    torch = pytest.importorskip("torch")
    parts = torch.rand(64, 64, device="cuda")
    whole, stream, kind = torch.complex(parts, parts + 1), torch.cuda.Stream(), type("Kind", (torch.Tensor,), {})
    torch.cuda.synchronize()
    for _ in range(3):
        for options in ({}, {"stream": stream}):
            for x in (whole.conj(), whole.conj().imag, whole.real, parts.as_subclass(kind)):
                got = reduce.reduce(x, 0, **options)
                torch.cuda.synchronize()
                torch.testing.assert_close(got, x.as_subclass(torch.Tensor).sum(0))
    with pytest.raises(TypeError, match="out is a view that conjugates or negates; it must be a tensor of its own"):
        transpose.transpose(parts, out=torch.empty_like(whole).conj().imag)


@pytest.mark.gpu
def test_tensors_that_are_not_there():
    torch = pytest.importorskip("torch")
    for x in (torch.rand(10), torch.rand(10).pin_memory()):
        with pytest.raises(TypeError, match=r"x is on cpu; it must be on a GPU or a NumPy array: x.cuda\(\)"):
            reduce.reduce(x)
    x, y = torch.rand(1000, device="cuda"), torch.zeros(1000, device="cuda", dtype=torch.float64)
    launch = launching.prepare(negate[1, 32], x.double(), y)
    for turn in range(2):  # planned, and repeated
        x.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="x has no memory: .* resized; it must hold 1000 elements"):
            reduce.reduce(x)
        x.untyped_storage().resize_(4000)
        x.fill_(turn)
        assert float(reduce.reduce(x)) == 1000 * turn
        x = x.double()
        launch(x, y)
        assert float(y.sum()) == -1000 * turn
        x = torch.rand(1000, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_small_empty_and_backward_arrays_of_other_libraries(library):
    module = pytest.importorskip(library)
    options = {"device": "cuda"} if library == "torch" else {"dtype": "float32"}
    for _ in range(3):
        one, none = module.ones((), **options), module.ones((0, 3), **options)
        assert float(reduce.reduce(one)) == 1 and reduce.reduce(one).shape == ()
        assert [float(x) for x in reduce.reduce(none, 0)] == [0, 0, 0]
        assert reduce.reduce(none, 1).shape == (0,) and scan.sort(none).shape == transpose.transpose(none.T).shape
        assert matmul.matmul(none.T, none).shape == (3, 3) and float(matmul.matmul(none.T, none).sum()) == 0
        assert scan.nonzero(none[:, 0]).shape == scan.compress(none[:, 0], none[:, 1]).shape == (0,)
        assert reduce.sum_by(none[:, 0]).shape == (1,)
    if library == "torch":
        return
    with module.cuda.using_allocator(module.cuda.MemoryPool(module.cuda.malloc_managed).malloc):
        for _ in range(3):
            x = module.random.random((40, 50), module.float32)
            for part in (x, x[::-1], x[:, ::-1], x[5::-2, ::-3].T):
                module.testing.assert_allclose(reduce.reduce(part, 1), part.sum(1), rtol=1e-5)
                module.testing.assert_array_equal(scan.sort(part), module.sort(part))
                module.testing.assert_array_equal(transpose.transpose(part), part.T)
                module.testing.assert_allclose(matmul.matmul(part, part.T), part @ part.T, rtol=1e-4)
                module.testing.assert_array_equal(scan.nonzero(part[0] > 0.5), module.nonzero(part[0] > 0.5)[0])
                out = module.empty_like(x)[::-1]
                assert scan.sort(x, out=out) is out
                module.testing.assert_array_equal(out, module.sort(x))


@pytest.mark.parametrize(
    "library", ["numba", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("torch", "cupy"))]
)
def test_what_a_key_says_of_an_array(library):
    module = None if library == "numba" else pytest.importorskip(library)
    for dtype in (np.uint8, np.float32):
        a = np.zeros((6, 7, 5), dtype)
        there = {
            "numba": lambda a=a: cuda.to_device(a),
            "torch": lambda a=a: module.from_numpy(a).cuda(),
            "cupy": lambda a=a: module.asarray(a),
        }[library]()
        key, start = array_key(there[1:4, 2:, 1:4])
        assert layout_of(key) == (dtype, (3, 5, 3), a.strides)
        assert start - array_key(there)[1] == sum(i * n for i, n in zip((1, 2, 1), a.strides, strict=True))
    assert layout_of(("torch", "torch.unheard_of", (3,), (1,), 0)) is None


@pytest.mark.parametrize(
    "library", ["numba", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("torch", "cupy"))]
)
def test_only_arrays_of_the_same_key_are_located(library):
    module = None if library == "numba" else pytest.importorskip(library)
    arrays = [np.zeros((6, 4), dtype) for dtype in (np.float32, np.int32, np.float64, np.complex64)]
    arrays += [np.zeros((4, 6), np.float32), np.zeros(24, np.float32), np.zeros((6, 4), np.float32)]
    if library == "torch":
        arrays = [module.from_numpy(array).cuda() for array in arrays]
        arrays += [arrays[0].cpu(), arrays[3].conj(), arrays[3].conj().imag, arrays[3].imag, arrays[4].T]
        arrays += [arrays[0].clone().requires_grad_(), module.nn.Parameter(arrays[0], requires_grad=False)]
    else:
        arrays = [cuda.to_device(array) if library == "numba" else module.asarray(array) for array in arrays]
        arrays += [arrays[0].reshape(4, 6), arrays[4].T, cuda.mapped_array((6, 4), np.float32)]
    arrays += [arrays[5][i : 20 + i] for i in range(5)]
    found = [array_key(array) for array in arrays]
    for one, key in zip(arrays, found, strict=True):
        if key is None:
            continue
        locate, of_two = make_locate((one,), repeats=True), make_locate((one, arrays[0]))
        pointers = [0, 0]
        for other, other_key in zip(arrays, found, strict=True):
            like = other_key is not None and key[0] == other_key[0] and (key[1] - other_key[1]) % 16 == 0
            if like and not isinstance(other, np.ndarray):
                assert locate((other,), pointers) and pointers[0] == other_key[1]
            else:
                assert not locate((other,), pointers)
            assert not of_two((other, arrays[-1]), pointers)
    one, two, _ = arrays[0], arrays[6], [array_key(array) for array in arrays]
    assert make_locate((one, two))((two, one), pointers)
    assert pointers == [array_key(two)[1], array_key(one)[1]]
    assert not make_locate((one, None))((one, None), pointers)
