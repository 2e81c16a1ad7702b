"""`gpukit.launching`: prepared launches do what plain launches do."""

import ctypes
import struct
import threading
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import gpukit
from gpukit import _native, launching
from gpukit._host import prepared
from gpukit._host.arrays import stream_of
from gpukit._host.transfers import Output, to_device
from gpukit.backend import cuda, float32, float64, int32, types

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
    with pytest.raises(TypeError, match="takes 8 arguments, not 2"):
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

    @cuda.jit
    def add_into(a, b, out, n, weight):
        for i in range(cuda.grid(1), n, cuda.gridsize(1)):
            out[i] = a[i] + weight * b[i]

    x, y, out = (cuda.to_device(RANDOM.random(101)) for _ in range(3))
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
    assert max(costs["same arguments"], costs["other arguments"]) < costs["plain"] / 2


def test_public_names():
    assert gpukit.launching is launching
    assert launching.look is launching.array_key


# -- plans: a cache of one's own ------------------------------------------------------------------


@cuda.jit
def add_weighted(a, b, weight, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] + weight * b[i]


def make_add(**options):
    """A host function with plans of its own, the plans, and the weights of the calls that were not repeated ones."""
    plans, planned = launching.Plans(**options), []

    def add(a, b, weight=1.0, *, out=None, stream=None):
        call = plans.call((a, b), out, stream, weight)
        if call.plan is not None:
            return call.again()
        planned.append(weight)
        result = Output(a, a.shape, out, stream_of(stream))
        a, b = (to_device(x, stream_of(stream)) for x in (a, b))
        return call.first([(add_weighted[1, 32, stream_of(stream)], (a, b, weight, result.device))], result)

    return add, plans, planned


def test_a_call_like_an_earlier_one_repeats_its_launches():
    add, plans, planned = make_add(most=3)
    stream = cuda.stream()
    for weight in (1, 1.0, True, 0.0):
        for options in ({}, {"stream": stream}):
            for _ in range(3):
                a, b = RANDOM.random(101), RANDOM.random(101)
                found = add(cuda.to_device(a), cuda.to_device(b), weight, **options)
                stream.synchronize()
                np.testing.assert_allclose(found.copy_to_host(), a + weight * b)
    assert len(planned) == 8 and len(plans.kept) == 3
    out = np.empty(101)
    assert add(a, b, out=out) is out and len(planned) == 9  # NumPy arrays are planned anew each time
    np.testing.assert_allclose(out, a + b)


def test_one_call_is_repeated_twice():
    plans, x = launching.Plans(), cuda.to_device(RANDOM.random(5))
    result = Output(x, x.shape, None, 0)
    plans.call((x,), None, None).first([(add_weighted[1, 32], (x, x, 1.0, result.device))], result)
    call = plans.call((x,), None, None)
    one, other = call.again(), call.again()
    assert one is not other
    for array in (one, other):
        np.testing.assert_array_equal(array.copy_to_host(), 2 * x.copy_to_host())


@pytest.mark.parametrize("compiles", [True, False])
def test_what_the_driver_is_passed(monkeypatch, compiles):
    """A driver that stands in for the GPU's decodes the configuration, and the parameters as a kernel reads them."""
    launches, codes = [], [0, 201, 0, 700]

    def launch_kernel(configuration, function, parameters, extra):
        sizes = tuple(ctypes.cast(configuration, ctypes.POINTER(ctypes.c_uint))[:7])
        stream, attributes = ctypes.cast(configuration + 32, ctypes.POINTER(ctypes.c_uint64))[:2]
        counted = ctypes.c_uint.from_address(configuration + 48).value
        attribute = (ctypes.c_int.from_address(attributes).value, ctypes.c_int.from_address(attributes + 8).value)
        slots = [
            ctypes.c_uint64.from_address(place).value
            for place in ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[:13]
        ]
        launches.append((sizes, stream, counted, attribute, function, extra, slots))
        return codes.pop(0)

    def refuse(code, name):
        raise RuntimeError(f"{name}: {code}")

    pointer = ctypes.c_void_p
    driver = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)(launch_kernel)
    compiled = SimpleNamespace(
        debug=False, extensions=[], cooperative=True, argument_types=(float64[:, ::1], int32, float64, types.complex128)
    )
    address = ctypes.cast(driver, pointer).value or 0
    if not compiles:
        monkeypatch.setattr(_native, "_make_maker", lambda count: None)
    for name, value in {
        "on_gpu": lambda: True,
        "compiled_kernel": lambda launch, args: compiled,
        "driver_call": lambda name, *arguments: _native.bind(address, *arguments),
        "_launchable": lambda compiled, name: 77,
        "_raise": refuse,
    }.items():
        monkeypatch.setattr(prepared, name, value)
    x, y = (cuda.to_device(RANDOM.random((3, n))) for n in (5, 7))
    step = launching.prepare(combine[(2, 3), (32, 4, 2), 0, 48], x, -2, 1.5, 3 - 1j)
    step()
    step(y, 3, 0.25, 2j)  # the driver wants a context first, and is asked again
    for array, numbers, got in ((x, (-2, 1.5, 3.0, -1.0), 0), (y, (3, 0.25, 0.0, 2.0), 1), (y, (3, 0.25, 0.0, 2.0), 2)):
        *head, slots = launches[got]
        assert head == [(2, 3, 1, 32, 4, 2, 48), 0, 1, (2, 1), 77, None]
        n = array.shape[1]
        assert slots[:9] == [0, 0, 3 * n, 8, array.device_ctypes_pointer.value, 3, n, 8 * n, 8]
        found = struct.unpack("<i4xddd", struct.pack("<4Q", *slots[9:13]))
        assert found == numbers
    with pytest.raises(RuntimeError, match="combine: 700"):
        step()
    # Arrays like those of the call before are found another way; one that is refused leaves the others as they were.
    codes += [0] * 4
    for array, number in ((y, 3), (y, 4), (cuda.to_device(y.copy_to_host()), 5)):
        step(array, number, 0.25, 2j)
        assert launches[-1][-1][4:10] == [array.device_ctypes_pointer.value, 3, 7, 56, 8, number]
    with pytest.raises(TypeError, match="argument 1"):
        step(x, 2.5, 0.25, 2j)
    step()
    assert launches[-1][-1][2:10] == [21, 8, array.device_ctypes_pointer.value, 3, 7, 56, 8, 5]
