"""`gpukit.launching`: prepared launches and kept plans do what plain launches and first calls do."""

import gc
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest
from numba.cuda import float32, float64, int32

import gpukit
from gpukit import launching, transpose
from gpukit._host.arrays import Output, check_apart, check_array, stream_of, to_device
from gpukit.backend import cuda

RANDOM = np.random.default_rng(6)


@cuda.jit
def combine(out, x, strided, scale, offset, flag, pair, z):
    i = cuda.grid(1)
    if i < out.size:
        value = scale * x[i] + strided[i, 1] + offset
        if flag:
            value += pair[0][i] * pair[1]
        out[i] = value + z.real - z.imag


def arguments(n, scale, offset, flag, factor, z):
    x, other = RANDOM.random(n), RANDOM.random(n)
    table = RANDOM.random((n, 3))
    expected = scale * x + table[:, 1] + offset + (other * factor if flag else 0) + z.real - z.imag
    device = [cuda.to_device(a) for a in (np.full(n, np.nan), x, table, other)]
    return (device[0], device[1], device[2], scale, offset, flag, (device[3], factor), z), expected


def test_a_prepared_launch_takes_what_a_plain_one_takes():
    args, expected = arguments(100, 1.5, 7, True, np.float32(0.5), 1 + 2j)
    launch = launching.prepare(combine[4, 32], *args)
    assert np.isnan(args[0].copy_to_host()).all()
    launch()
    np.testing.assert_allclose(args[0].copy_to_host(), expected)
    # Other memory, other numbers, other shapes.
    for n, scale, offset, flag in ((100, -2.0, -3, False), (128, 0.0, 2**40, True), (1, 3.0, -(2**63), False)):
        args, expected = arguments(n, scale, offset, flag, np.float32(3), 0.5 - 1j)
        launch(*args)
        np.testing.assert_allclose(args[0].copy_to_host(), expected)


class Line(NamedTuple):
    slope: np.float64
    of: tuple


@cuda.jit
def on_a_line(out, line):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = line.slope * line.of[0][i] + line.of[1]


def test_named_tuples_keep_their_names():
    x, out = cuda.to_device(np.arange(8.0)), cuda.to_device(np.full(8, np.nan))
    launch = launching.prepare(on_a_line[1, 32], out, Line(np.float64(2), (x, 3)))
    launch()
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(8) * 2 + 3)
    launch(out, Line(np.float64(-1), (x, 4)))
    np.testing.assert_array_equal(out.copy_to_host(), 4 - np.arange(8))


@cuda.jit
def store_numbers(out, a, b, c, d):
    out[0], out[1], out[2], out[3] = a, b, c, d


@pytest.mark.parametrize(
    ("numbers", "others"),
    [
        ((np.int8(-5), np.uint8(200), np.float32(0.1), True), (np.int8(127), np.uint8(0), np.float32(np.inf), False)),
        ((np.int16(-300), np.uint16(65535), 0.1, np.int64(-1)), (np.int16(1), np.uint16(2), -0.0, np.int64(2**62))),
        ((np.int32(-(2**31)), np.uint32(2**32 - 1), 3, np.bool_(True)), (np.int32(4), np.uint32(5), -6, np.bool_(0))),
    ],
)
def test_numbers_of_every_type(numbers, others):
    out, expected = cuda.to_device(np.zeros(4)), cuda.to_device(np.zeros(4))
    launch = launching.prepare(store_numbers[1, 1], out, *numbers)
    for values in (numbers, others):
        launch(out, *values)
        store_numbers[1, 1](expected, *values)
        np.testing.assert_array_equal(out.copy_to_host(), expected.copy_to_host())


def test_types_other_than_prepared_are_refused():
    args, _ = arguments(8, 1.0, 2, True, np.float32(1), 1j)
    launch = launching.prepare(combine[1, 8], *args)
    launch()
    before = args[0].copy_to_host()
    wrong = {
        0: cuda.to_device(np.zeros(8, np.float32)),
        1: cuda.to_device(np.zeros((8, 1))),
        2: cuda.to_device(np.zeros((8, 6)))[:, ::2],
        3: "1",
        4: 2.5,
        6: (args[6][0],),
    }
    others, _ = arguments(8, 3.0, 4, False, np.float32(5), 6j)
    for position, value in wrong.items():
        with pytest.raises(TypeError):
            launch(*others[:position], value, *others[position + 1 :])
    with pytest.raises(TypeError, match="takes 8 arguments; 2 were given"):
        launch(*args[:2])
    # It still has the arguments it had.
    args[0].copy_to_device(np.full(8, np.nan))
    launch()
    np.testing.assert_array_equal(args[0].copy_to_host(), before)


def test_what_cannot_be_prepared():
    x = cuda.to_device(np.zeros(4))
    with pytest.raises(TypeError, match="launch is .*; it must be a kernel with its grid"):
        launching.prepare(store_numbers, x, 1, 2, 3, 4)
    with pytest.raises(TypeError, match="argument 0 is a NumPy array; it must be a device array"):
        launching.prepare(store_numbers[1, 1], np.zeros(4), 1, 2, 3, 4)
    with pytest.raises(TypeError, match="argument 2 is a str"):
        launching.prepare(store_numbers[1, 1], x, 1, "2", 3, 4)


def test_declared_signatures_and_streams():
    @cuda.jit([(float32[::1], int32, float64)])
    def fill(out, n, value):
        i = cuda.grid(1)
        if i < n:
            out[i] = value

    stream = cuda.stream()
    out = cuda.to_device(np.zeros(70, np.float32))
    launch = launching.prepare(fill[3, 32, stream], out, 70, 2.5)
    launch()
    launch(out, 50, -1.0)
    stream.synchronize()
    np.testing.assert_array_equal(out.copy_to_host(), np.repeat(np.float32([-1, 2.5]), [50, 20]))


def test_threads_may_share_a_prepared_launch():
    @cuda.jit
    def scale(x, out, factor):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * factor

    x = cuda.to_device(RANDOM.random(64))
    outs = [[cuda.to_device(np.zeros(64)) for _ in range(20)] for _ in range(4)]
    launch = launching.prepare(scale[2, 32], x, outs[0][0], 1.0)

    def work(thread):
        for i, out in enumerate(outs[thread]):
            launch(x, out, float(100 * thread + i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cuda.synchronize()
    for thread, row in enumerate(outs):
        for i, out in enumerate(row):
            np.testing.assert_array_equal(out.copy_to_host(), x.copy_to_host() * (100 * thread + i))


# -- plans -------------------------------------------------------------------------------------------------------------


@cuda.jit
def add_into(a, b, out, n, weight):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        out[i] = a[i] + weight * b[i]


def make_add(**options):
    """A host function like those of the chapters, its plans, and the calls that were not repeated ones."""
    plans, checked = launching.Plans(**options), []

    def add(a, b, weight=1.0, *, out=None, stream=None):
        call = plans.call((a, b), out, stream, weight)
        if call.plan is not None:
            return call.again()
        checked.append(weight)
        check_array("a", a, 1)
        if out is not None:
            check_apart("out", out, a=a, b=b)
        result = Output(a, a.shape, out, stream_of(stream))
        n = a.shape[0]
        a, b = (to_device(x, stream_of(stream)) for x in (a, b))
        # In two halves, so that addresses inside of the arrays are exchanged too.
        launches = [
            (add_into[1, 32, stream_of(stream)], (a[part], b[part], result.device[part], m, weight))
            for part, m in ((slice(0, n // 2), n // 2), (slice(n // 2, n), n - n // 2))
        ]
        return call.first(launches, result)

    return add, plans, checked


def device(n=101):
    return cuda.to_device(RANDOM.random(n))


def check(add, a, b, weight=1.0, **options):
    got = add(a, b, weight, **options)
    cuda.synchronize()
    host = [x if isinstance(x, np.ndarray) else x.copy_to_host() for x in (a, b, got)]
    np.testing.assert_allclose(host[2], host[0] + weight * host[1])
    return got


def test_a_call_like_an_earlier_one_repeats_its_launches():
    add, plans, checked = make_add()
    first = check(add, device(), device())
    kept = first.copy_to_host()
    for _ in range(3):
        check(add, device(), device())
    assert len(checked) == 1
    np.testing.assert_array_equal(first.copy_to_host(), kept)
    # What decides the launches makes another plan.
    stream = cuda.stream()
    check(add, device(), device(), 2.0)
    check(add, device(100), device(100))
    check(add, device(), device(), stream=stream)
    check(add, device(), device(), out=device())
    assert len(checked) == len(plans.kept) == 5
    for options in ({}, {"stream": stream}, {"out": device()}):
        check(add, device(), device(), **options)
    assert len(checked) == 5


def test_what_is_equal_but_not_the_same_has_a_plan_of_its_own():
    add, plans, checked = make_add()
    a, b = device(), device()
    for weight in (1, True, 1.0, 0.0, -0.0):
        add(a, b, weight)
        add(a, b, weight)
    assert [repr(weight) for weight in checked] == ["1", "True", "1.0", "0.0", "-0.0"]


def test_what_a_repeated_call_must_not_do():
    add, plans, checked = make_add()
    a, b, out = device(), device(), device()
    check(add, a, b, out=out)
    # The same shapes, but the output is an input: checked anew, and refused.
    with pytest.raises(ValueError, match="out shares memory with a"):
        add(a, b, out=a)
    # An input twice; then two inputs of that kind.
    fresh, plans, checked = make_add()
    check(fresh, a, a)
    check(fresh, a, b)
    assert len(checked) == 2
    check(fresh, b, a)
    assert len(checked) == 2
    # Arrays that are copied first have no plan, nor have NumPy arrays.
    strided = cuda.to_device(RANDOM.random(202))[::2]
    for x, y in ((strided, b), (RANDOM.random(101), RANDOM.random(101))):
        fresh, plans, checked = make_add()
        check(fresh, x, y)
        check(fresh, x, y)
        assert len(checked) == 2
        assert not plans.kept


def test_alignment_is_part_of_the_key():
    add, plans, checked = make_add()
    long = device(110)
    check(add, long[:101], device())
    check(add, long[1:102], device())
    check(add, long[2:103], device())
    assert len(checked) == 2


def test_plans_hold_no_inputs_and_are_few():
    add, plans, checked = make_add(most=3)
    arrays = [device(), device(), device()]
    gone = [weakref.ref(x.gpu_data) for x in arrays]
    check(add, *arrays[:2], out=arrays[2])
    del arrays
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]
    for weight in range(5):
        add(device(), device(), float(weight))
    assert len(plans.kept) == 3
    before = len(checked)
    add(device(), device(), 4.0)
    assert len(checked) == before


def test_calls_of_many_threads_do_not_mix():
    """Two launches of a call leave something to each other in work memory that all calls on the stream share."""
    plans, work = launching.Plans(), cuda.device_array(101)

    def add(a, b, out=None):
        call = plans.call((a, b), out, None)
        if call.plan is not None:
            return call.again()
        result = Output(a, a.shape, out, 0)
        launches = [
            (add_into[1, 32], (a, a, work, 101, 0.0)),
            (add_into[1, 32], (work, b, result.device, 101, 1.0)),
        ]
        return call.first(launches, result)

    right = []

    def run(seed):
        random = np.random.default_rng(seed)
        for _ in range(15):
            a, b = random.random(101), random.random(101)
            got = add(cuda.to_device(a), cuda.to_device(b))
            right.append(np.allclose(got.copy_to_host(), a + b))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 60 and all(right)


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

    add, plans, checked = make_add()
    for _ in range(3):
        a, b = make(), make()
        got = add(a, b, 3.0)
        assert type(got) is type(a)
        np.testing.assert_allclose(host(got), host(a) + 3 * host(b))
    assert len(checked) == 1
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
            np.testing.assert_allclose(host(add(slow, slow * 0, 3.0)), 21)


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
        key, start = launching.look(there[1:4, 2:, 1:4])
        assert launching.layout_of(key) == (dtype, (3, 5, 3), a.strides)
        assert start - launching.look(there)[1] == sum(i * n for i, n in zip((1, 2, 1), a.strides, strict=True))
    assert launching.layout_of(("torch", "torch.unheard_of", (3,), (1,), 0)) is None


def test_a_copy_at_little_cost():
    """What is copied is what the host had when it was asked for, also where work is queued before and after."""
    stream, array = cuda.stream(), cuda.device_array((50, 8), np.int64)
    copies = []
    for _ in range(20):
        values = RANDOM.integers(0, 2**60, (50, 8))
        copies.append((values.copy(), cuda.device_array((50, 8), np.int64)))
        launching.upload(array, values, stream)
        copies[-1][1].copy_to_device(array, stream=stream)
        values[...] = -1
    stream.synchronize()
    for values, copy in copies:
        np.testing.assert_array_equal(copy.copy_to_host(), values)


@pytest.mark.gpu
def test_a_prepared_launch_is_cheap():
    import time

    x, y, out = device(), device(), device()
    launch = launching.prepare(add_into[1, 32], x, y, out, 101, 1.0)
    costs = {}
    for name, call in {
        "plain": lambda: add_into[1, 32](x, y, out, 101, 1.0),
        "other arguments": lambda: launch(y, x, out, 101, 2.0),
        "same arguments": launch,
    }.items():
        times = []
        for _ in range(300):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            cuda.synchronize()
        costs[name] = np.median(times)
    assert costs["same arguments"] < costs["other arguments"] < costs["plain"] / 2


def test_public_names():
    assert gpukit.launching is launching
