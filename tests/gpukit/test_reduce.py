"""`gpukit.reduce` against NumPy, and the counts of the ladder's kernels."""

import itertools
import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from layouts import view_on_device

import gpukit
from gpukit import operators, reduce
from gpukit._host.call import CACHE
from gpukit.backend import cuda
from gpukit.reduce import api, cost, ladder

DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")


def filled(shape, dtype, seed=0):
    dtype, random = np.dtype(dtype), np.random.default_rng([seed, *shape])
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0 if dtype.kind == "u" else -100, 100, shape, dtype)


def expected(x, axis, op, keepdims=False):
    """NumPy's result, computed in float64 where that is better, and what a result may differ from it by."""
    exact = getattr(np, op)(x, axis, keepdims=keepdims)
    if x.dtype.kind != "f" or op in ("max", "min"):
        return exact, 1e-15 * abs(exact.astype(np.float64)) if op == "mean" else 0.0
    wide = x.astype(np.float64)
    eps, result_eps = np.finfo(np.float32 if x.itemsize <= 4 else np.float64).eps, np.finfo(x.dtype).eps
    exact_wide = getattr(np, op)(wide, axis, keepdims=keepdims)
    if op == "prod":
        return exact_wide, (x.size * eps + result_eps) * abs(exact_wide) + np.finfo(x.dtype).tiny
    magnitude = getattr(np, op)(abs(wide), axis, keepdims=keepdims)
    return exact_wide, 24 * eps * magnitude + result_eps * abs(exact_wide)


def check(x, axis, op, keepdims=False):
    like = getattr(np, op)(x, axis, keepdims=keepdims)
    exact, bound = expected(x, axis, op, keepdims)
    got = reduce.reduce(x, axis, op, keepdims)
    assert type(got) is type(like) and got.dtype == like.dtype and got.shape == like.shape
    if x.dtype.kind == "f" or op == "mean":
        with np.errstate(invalid="ignore", over="ignore"):
            near = abs(got.astype(np.float64) - exact) <= bound
        assert np.all(near | (got == like) | (np.isnan(got) & np.isnan(like)))
    else:
        assert np.array_equal(got, like)


@pytest.fixture
def flatten():
    """How ``reduce`` brings an array into the form that its kernels take."""
    return api._flatten


@st.composite
def problems(draw):
    """An array in one of several layouts, and axes to reduce it over."""
    dimensions = draw(st.integers(0, 4))
    most = (1, 20000, 200, 40, 14)[dimensions]
    shape = draw(st.tuples(*[st.integers(1, most)] * dimensions))
    x = filled(shape, draw(st.sampled_from(DTYPES)))
    x = np.asarray(x)
    layout = draw(st.sampled_from(["C", "F", "reversed", "steps"]))
    if dimensions:
        x = {"C": x, "F": x.T, "reversed": x[::-1], "steps": x[..., ::2]}[layout]
    axes = draw(st.lists(st.integers(0, dimensions - 1), unique=True)) if dimensions else []
    axis = draw(st.sampled_from([None, tuple(axes), tuple(a - dimensions for a in axes), axes[0] if axes else None]))
    return x, axis


@settings(max_examples=8)
@given(problem=problems(), op=st.sampled_from(operators.OPERATORS), keepdims=st.booleans())
@example(problem=(filled((5, 3, 7), "f4"), (0, 2)), op="sum", keepdims=False)
@example(problem=(filled((3, 2, 5, 4), "i2"), (0, 2)), op="mean", keepdims=True)
def test_as_numpy(problem, op, keepdims):
    with np.errstate(all="ignore"):
        check(*problem, op, keepdims)


SHAPES = [
    ((300_001,), None),
    ((4099, 33), 0),
    ((4096, 4), 0),
    ((1, 70_000), 0),
    ((3, 1025, 65), 1),
    ((70_000, 2, 2), 1),
    ((2, 3, 280_000), 1),
    ((5, 4100), 1),
    ((11, 100_000), -1),
    ((1000, 257), -1),
    ((37, 1000), -1),
    ((70_000, 5), -1),
    ((20_000, 1), -1),
    ((4, 300, 3, 50), (0, 2)),
]


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_shapes_that_take_each_kernel(shape, axis):
    check(filled(shape, "f4"), axis, "sum")


@pytest.mark.parametrize(("dtype", "op"), [("f8", "mean"), ("i1", "sum"), ("f2", "max")])
def test_other_types_with_splits(dtype, op):
    check(filled((100_001,), dtype), None, op)
    check(filled((4099, 33), dtype), 0, op)


@pytest.mark.parametrize(("dtype", "lengths"), [("i1", (144, 40, 133)), ("f2", (40,))])
def test_accesses_of_every_width(dtype, lengths):
    """Rows and columns of lengths that 16 bytes divide, and fewer; from addresses that they divide, and not."""
    for n in lengths:
        x = filled((33, n), dtype)
        for start in (0, 4) if n == lengths[0] else (0,):
            flat = cuda.to_device(np.concatenate([x[0, :start], x.reshape(-1)]))
            on_device = flat[start:].reshape(33, n)
            for axis in (0, 1):
                assert np.array_equal(reduce.reduce(on_device, axis, "max").copy_to_host(), x.max(axis))


@pytest.mark.parametrize(("start", "n"), [(0, 4099), (1, 4099), (3, 4099), (0, 8191)])
def test_long_rows_from_any_address(start, n):
    """Of the last ones, others than the first have a tile more than it."""
    x = np.random.default_rng(start).integers(0, 2**32, (3, n), np.uint32)
    flat = cuda.to_device(np.concatenate([x[0, :start], x.reshape(-1)]))
    on_device = flat[start:].reshape(3, n)
    assert np.array_equal(reduce.reduce(on_device, 1).copy_to_host(), x.sum(1))
    assert np.array_equal(reduce.reduce(on_device).copy_to_host(), x.sum())
    assert np.array_equal(reduce.reduce(on_device, 1, (after, 1)).copy_to_host(), all_after(x.T))


def test_more_columns_or_rows_than_one_launch_may_have(monkeypatch):
    monkeypatch.setattr(cost, "MAX_GRID_YZ", 3)
    monkeypatch.setattr(cost, "MAX_TILES", 2)
    monkeypatch.setattr(cost, "MAX_DIVIDED", 200)
    check(filled((11, 200, 70), "f4"), 1, "sum")
    check(filled((11, 3, 70), "f4"), 1, "sum")
    check(filled((5, 70_000), "f4"), 1, "sum")


def test_what_a_thread_adds_of_short_numbers_fits_32_bits():
    for limit, vector in ((2**8 - 1, 16), (2**16 - 1, 8)):
        assert (cost.MAX_TILES + 1) * cost.ROW_LOADS * vector * limit < 2**31
        assert (cost.MAX_TILES + 1) * cost.COLUMN_LOADS * limit < 2**31
        assert cost.WARP * max(cost.SHORT_LOADS.values()) * vector * limit < 2**31


def test_integers_wrap_as_in_numpy():
    for dtype in ("i8", "u8"):
        x = np.full(1000, np.iinfo(dtype).max, dtype)
        assert reduce.reduce(x) == x.sum() and reduce.reduce(x[::3], op="prod") == x[::3].prod()
    assert reduce.reduce(x, op="mean") == x.mean()


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_nan_and_infinity(dtype):
    x = filled((40, 50), dtype)
    x[3, 4], x[5, 6], x[7, 8], x[7, 9] = np.nan, np.inf, -np.inf, np.inf
    for op in ("sum", "max", "min") if dtype == "f4" else ("mean", "max"):
        for axis in (1,) if dtype == "f4" else (None,):
            with np.errstate(invalid="ignore"):
                like = getattr(np, op)(x, axis)
            got = reduce.reduce(x, axis, op)
            assert np.array_equal(np.isnan(got), np.isnan(like)) and np.array_equal(np.isinf(got), np.isinf(like))
    assert reduce.reduce(np.full(9, -np.inf, dtype), op="max") == -np.inf


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_empty():
    for shape, axis in (((0,), None), ((3, 0), 0), ((0, 5), 0), ((33, 0), 1), ((0, 8, 3, 8), (0, 3)), ((2, 0, 5), 2)):
        for dtype in ("f4",) if len(shape) > 1 else ("i2",):
            x = np.zeros(shape, dtype)
            for op in ("prod", "mean", "max"):
                try:
                    like = getattr(np, op)(x, axis)
                except ValueError:
                    with pytest.raises(ValueError, match=f"no elements to reduce; op '{op}' has no identity"):
                        reduce.reduce(x, axis, op)
                else:
                    device = [reduce.reduce(cuda.to_device(x), axis, op).copy_to_host() for _ in range(2)]
                    for got in (reduce.reduce(x, axis, op), *device):
                        assert got.dtype == like.dtype and np.array_equal(got, like, equal_nan=True)


def test_float32_is_as_good_as_a_tree():
    """All terms alike in sign and size: one long float32 sum would be wrong in the fourth digit."""
    x = np.random.default_rng(1).random(2**20, np.float32)
    exact = x.sum(dtype=np.float64)
    naive = np.cumsum(x, dtype=np.float32)[-1]
    error = abs(float(reduce.reduce(x)) - exact) / exact
    assert error <= 2 * np.finfo(np.float32).eps < abs(naive - exact) / exact
    half = x.astype(np.float16)
    assert reduce.reduce(half, op="mean") == np.float16(half.mean(dtype=np.float64))
    by_columns = reduce.reduce(x.reshape(-1, 16), 0)
    assert np.allclose(by_columns, x.reshape(-1, 16).sum(0, dtype=np.float64), rtol=3e-7, atol=0)


def test_the_same_bits_every_time():
    x = filled((300_001,), "f4")
    for y, axis in ((x, None), (x[:300_000].reshape(3000, 100), 0), (x[:300_000].reshape(3, 100_000), 1)):
        first = np.asarray(reduce.reduce(y, axis)).tobytes()
        assert all(np.asarray(reduce.reduce(y, axis)).tobytes() == first for _ in range(3))


def norm(a, b):
    return math.sqrt(a * a + b * b)


def both_bits(a, b):
    return a & b


def test_functions_of_the_user():
    x = filled((700, 41), "f4")
    for axis in (None, 0):
        like = np.sqrt((x.astype(np.float64) ** 2).sum(axis))
        assert np.allclose(reduce.reduce(x, axis, (norm, 0.0)), like, rtol=1e-6)
    bits = filled((50_000,), "u4") | np.uint32(6)
    got = reduce.reduce(bits, op=(cuda.jit(device=True)(both_bits), 0xFFFFFFFF))
    assert got.dtype == np.uint32 and got == np.bitwise_and.reduce(bits)


def after(f, g):
    """x -> a x + b, with a and b of 16 bits in one number: first f, then g. Not commutative."""
    return (f & 65535) * (g & 65535) & 65535 | ((f >> 16) * (g & 65535) + (g >> 16) & 65535) << 16


def all_after(x):
    """The maps along axis 0, one after the other."""
    result = np.ones(x.shape[1:], np.int64)
    for g in x.astype(np.int64):
        result = after(result, g)
    return result


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((70_001,), None),
        ((3, 9001), 1),
        ((20, 64), 1),
        ((3000, 4), 0),
        ((777, 3), 0),
        ((2, 500, 40), 1),
        ((2100, 132), 0),
        ((6, 7, 50), (0, 2)),
        ((140_001, 6, 2), 1),
    ],
    ids=str,
)
def test_functions_need_not_be_commutative(shape, axis):
    x = np.random.default_rng(shape[0]).integers(0, 2**31, shape, np.int64) | 1
    axes = tuple(range(len(shape))) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    kept = tuple(n for i, n in enumerate(shape) if i not in axes)
    like = all_after(np.moveaxis(x, axes, range(len(axes))).reshape(-1, *kept))
    assert np.array_equal(reduce.reduce(x, axis, (after, 1)), like)
    turned = x.T if len(shape) == 1 else np.ascontiguousarray(x.T).T
    assert np.array_equal(reduce.reduce(turned, axis, (after, 1)), like)


def test_device_in_device_out():
    x = filled((30, 40, 50), "f4")
    stream, on_device = cuda.stream(), cuda.to_device(x)
    result = reduce.reduce(on_device, 1, stream=stream)
    stream.synchronize()
    assert cuda.is_cuda_array(result) and result.shape == (30, 50)
    assert np.allclose(result.copy_to_host(), x.sum(1, dtype=np.float64), atol=1e-4)
    out = cuda.to_device(np.full((30, 50), np.nan, np.float32))
    assert reduce.reduce(on_device, 1, "max", out=out) is out and np.array_equal(out.copy_to_host(), x.max(1))
    total = reduce.reduce(on_device)
    assert total.shape == () and abs(float(total.copy_to_host()) - x.sum(dtype=np.float64)) < 0.01
    # parts that are not contiguous, and one that begins 4 bytes after an aligned address
    for part in (
        (slice(None), slice(1, 9)),
        (slice(None, None, 2), slice(None), 3),
        (slice(None), slice(None), slice(1, None, 7)),
    ):
        got = reduce.reduce(on_device[part], 0, "max").copy_to_host()
        assert np.array_equal(got, x[part].max(0))
    flat = cuda.to_device(x.reshape(-1))
    assert np.array_equal(reduce.reduce(flat[1:], op="max").copy_to_host(), x.reshape(-1)[1:].max())


def test_calls_alike_give_the_results_of_their_own_arrays():
    """What a call has launched is used again, with the addresses of other arrays, and by several threads at a time."""
    arrays = [np.rint(8 * filled((30, 41, 52), "f4", seed)) for seed in range(4)]
    on_device = [cuda.to_device(x) for x in arrays]
    for axis, op in ((1, "max"), ((0, 2), "sum")):
        results = [None] * len(arrays)

        def work(i, axis=axis, op=op, results=results):
            for _ in range(2):
                results[i] = reduce.reduce(on_device[i], axis, op).copy_to_host()

        work(0)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(len(arrays))))
        for x, result in zip(arrays, results, strict=True):
            assert np.array_equal(result, getattr(np, op)(x, axis))
    out = cuda.to_device(np.zeros((30, 52), np.float32))
    for x, there in zip(arrays, on_device, strict=True):
        assert reduce.reduce(there, 1, "max", out=out) is out and np.array_equal(out.copy_to_host(), x.max(1))
    with pytest.raises(ValueError, match="out shares memory with x"):
        reduce.reduce(on_device[0], 1, "max", out=on_device[0].reshape(-1)[: 30 * 52].reshape(30, 52))
    assert reduce.reduce(on_device[0], True - 1, "max").shape == (41, 52)
    with pytest.raises(TypeError, match="axis is False"):
        reduce.reduce(on_device[0], False, "max")


def test_memory_in_another_order_is_read_where_it_is(flatten):
    x = np.rint(8 * filled((6, 40, 50), "f4"))
    for axes in ((2, 0, 1), (2, 1, 0)):
        turned = x.transpose(axes)
        base = cuda.to_device(x)
        interface = {"shape": turned.shape, "strides": turned.strides, "typestr": "<f4", "version": 3}
        interface["data"] = (base.device_ctypes_pointer.value, False)
        on_device = cuda.from_cuda_array_interface(interface, owner=base)
        for axis in (None, 1, (0, 2)):
            assert np.array_equal(reduce.reduce(on_device, axis).copy_to_host(), turned.sum(axis))
        flat, _ = flatten(on_device, frozenset((0, 1, 2)), lambda x: x)
        assert flat.device_ctypes_pointer.value == on_device.device_ctypes_pointer.value


def test_rows_with_gaps_between_them(flatten):
    # What launches read: many columns, some and few; rows long and short; bytes by fours; a copy.
    cases = [("f4", (70, 800), 797, (0,)), ("f4", (700, 41), 40, (0,)), ("f4", (9, 300, 6), 5, (1,))]
    cases += [("f4", (9, 4000), 3001, (1,)), ("u1", (30, 48), 44, (1,)), ("f4", (9, 30, 12), 8, (0, 2))]
    cases += [("f4", (9, 30, 12), 8, (0,))]
    for dtype, shape, length, axes in cases:
        base = np.rint(filled(shape, dtype)).astype(dtype)
        memory = cuda.to_device(base)
        for view in (base[..., :length], base[..., 1 : 1 + length]):
            on_device = view_on_device(view, base, memory)
            got = reduce.reduce(on_device, axes).copy_to_host()
            assert np.allclose(got, view.sum(axes), rtol=1e-4, atol=1e-3), (view.shape, axes)
            if axes != (0,) or view.ndim == 2:
                flat, form = flatten(on_device, frozenset(axes), None)
                assert flat.device_ctypes_pointer.value == on_device.device_ctypes_pointer.value
                assert flat.shape[1] == form[-1][0] == length


def test_any_strides_are_read_where_they_are(monkeypatch):
    """Axes backwards, in steps and in part, up to three reduced ones; shared by blocks, and the same element again."""
    monkeypatch.setattr("gpukit._host.call.copy_launches", None)  # no copy is made
    cases = [((40, 60), np.s_[::-1, ::-2], (0,)), ((40, 60), np.s_[::2, ::-1], (1,)), ((2, 9000), np.s_[:, ::2], (1,))]
    cases += [((6, 50, 40), np.s_[:, 3:40, 5:33], axes) for axes in ((1, 2), (0, 1, 2))]
    # One thread takes each result, with one reduced axis and with two.
    cases += [((2, 80000), np.s_[:, ::2], (0,)), ((2, 2, 80000), np.s_[:, ::-1, ::2], (0, 1))]
    cases += [((5, 6, 7, 8, 9), np.s_[::2, ::-1, :, 1:5], (1, 3)), ((30, 2, 3, 2, 20), np.s_[..., :7], (0, 1, 3))]
    views = [(base, base[index], axes) for shape, index, axes in cases for base in (np.rint(4 * filled(shape, "f4")),)]
    views += [(base, np.broadcast_to(base[0], (70, 60)), (axis,)) for base in (views[0][0],) for axis in (0, 1)]
    for base, view, axes in views:
        on_device = view_on_device(view, base, cuda.to_device(base))
        got = reduce.reduce(on_device, axes).copy_to_host()
        assert np.array_equal(got, view.sum(axes)), (view.shape, view.strides, axes)


def test_elements_that_repeat_are_read_once(monkeypatch):
    """Along axes of stride 0: reduced ones multiply a sum, results are copied along kept ones."""
    monkeypatch.setattr(api, "MIN_COPIED", 0)
    base = np.rint(4 * filled((6, 1, 5, 1), "f4"))
    view = np.broadcast_to(base, (6, 3, 5, 4))
    on_device = view_on_device(view, base, cuda.to_device(base))
    for axes, op in itertools.product(((1,), (2,), (0, 3), (1, 2, 3)), ("sum", "mean", "max")):
        for x in (view, on_device):
            got = np.asarray(reduce.reduce(x, axes, op, keepdims=True))
            assert np.allclose(got, getattr(view, op)(axes, keepdims=True), rtol=1e-6), (axes, op)


def test_few_columns_are_read_as_one_run(monkeypatch):
    monkeypatch.setattr(cost, "NARROW_MIN_BYTES", (0, 0))
    check(filled((9001, 3), "u1"), 0, "mean")
    check_trace((2, 4001, 7), [(2, False), (4001, True), (7, False)], 1)


@pytest.mark.parametrize("dtype", ["f2", "i1", "f4", "f8"])
def test_few_long_rows_from_any_address(dtype, monkeypatch):
    """Fewer rows than a thread has accesses under way, a few more, and so many that blocks share them."""
    monkeypatch.setattr(cost, "MAX_ALONE", 0)
    first, again = operators.make_operations("sum", np.dtype(dtype))
    for rows, columns, start in ((33, 401, 1), (52, 1010, 0), (67, 401, 0)):
        x = np.rint(4 * filled((rows, columns), dtype)) if dtype[0] == "f" else filled((rows, columns), dtype)
        flat, out = cuda.to_device(np.append(x[0, :start], x)), cuda.to_device(np.full(columns, 77, first.result))
        ((launch, arguments),) = api.launches(flat[start:], [(rows, True), (columns, False)], first, again, out)
        trace = gpukit.trace(launch, *arguments)
        assert trace.findings == [] and np.array_equal(out.copy_to_host(), x.sum(0))
        requests = sum(access.requests for access in trace.accesses if access.array == "x" and access.op == "load")
        assert requests * 32 <= 4 * x.nbytes / min(16, 8 * x.itemsize)  # not one for each element


@pytest.mark.parametrize(("dtype", "shape", "kernel", "blocks"), [
    ("f4", (1, 100, 301), "cells", 2), ("f2", (1, 39, 302), "cells", 1), ("i1", (1, 60, 1204), "cells", 2),
    ("f4", (4001, 10, 3), "cells", 47), ("f2", (300, 11, 9), "columns", 300), ("f2", (1, 41, 301), "columns", 5),
    ("f4", (1, 631, 5), "columns", 1), ("f8", (1, 70, 260), "columns", 5), ("f2", (1, 300, 500), "columns", 4),
    ("f4", (1, 5000, 7), "columns", 19), ("f4", (1, 520, 501), "skewed", 80), ("f4", (1, 70, 4001), "skewed", 33),
    ("f4", (70, 300, 2), "groups", 9),
    ("f2", (70, 40, 4), "groups", 9), ("f2", (33, 100, 8), "groups", 5), ("i1", (9, 35, 8), "groups", 2),
])  # fmt: skip
def test_who_takes_the_rows(dtype, shape, kernel, blocks, monkeypatch):
    """A thread alone, if there are many; lanes, of few columns; a block, if its rows are few; or several blocks."""
    if shape[0] == 1 and kernel == "cells":
        monkeypatch.setattr(cost, "CELL_THREADS", 0)
        monkeypatch.setattr(cost, "CELL_BYTES", 0)
    first, again = operators.make_operations("sum", np.dtype(dtype))
    x = np.rint(4 * filled(shape, dtype)) if dtype[0] == "f" else filled(shape, dtype)
    out = cuda.to_device(np.full(shape[0] * shape[2], 77, first.result))
    form = [(size, axis == 1) for axis, size in enumerate(shape)]
    ((launch, arguments),) = api.launches(cuda.to_device(x.reshape(-1)), form, first, again, out)
    assert (launch.dispatcher.py_func.__name__, math.prod(launch.griddim)) == (kernel, blocks)
    trace, exact = gpukit.trace(launch, *arguments), x.sum(1, dtype=first.partial).astype(first.result)
    assert trace.findings == [] and np.array_equal(out.copy_to_host(), exact.reshape(-1))


@pytest.mark.parametrize(("dtype", "n", "threads"), [("i1", 1001, 64), ("i1", 1041, 256), ("f4", 4099, 1024)])
def test_threads_of_a_row_alone(dtype, n, threads):
    first, _ = operators.make_operations("max", np.dtype(dtype))
    (launch,) = cost.choose(first, first.result.itemsize, 0, 150, n, 1, n, True)
    assert (launch.kernel.py_func.__name__, launch.grid, launch.block) == ("rows", (150, 1, 1), threads)
    check(filled((150, n), dtype), 1, "max")


@pytest.mark.parametrize(("n", "threads"), [(331, 512), (1041, 1024), (4095, 1024)])
def test_few_short_rows_element_by_element(n, threads):
    first, _ = operators.make_operations("sum", np.dtype("f4"))
    (launch,) = cost.choose(first, 4, 1, 3, n, 1, n, True)
    assert (launch.kernel.py_func.__name__, launch.grid, launch.block) == ("short", 3, threads)
    check_trace((3, n), [(3, False), (n, True)], 1)
    x = np.random.default_rng(n).integers(0, 2**32, (3, n), np.uint32)
    assert np.array_equal(reduce.reduce(x, 1, (after, 1)), all_after(x.T))


def test_few_strided_results_have_a_block_each():
    first, _ = operators.make_operations("min", np.dtype("f8"))
    for kept, reduced in ([(9, 4, 1)], [(1013, 36)]), ([(9, 2, 1)], [(413, 18)]), ([(30, 1, 1)], [(40, 900), (9, 50)]):
        assert cost.choose_strided(first, kept, reduced).grid == (kept[0][0], 1, 1)


def test_threads_of_few_strided_elements_have_several():
    first, _ = operators.make_operations("sum", np.dtype("f4"))
    launch = cost.choose_strided(first, [(1000, 243, 1), (9, 27, 1000)], [(27, 1)])
    assert launch.grid[0] * launch.block == 72_192  # 8 for each of 9000 results, in whole blocks


def test_a_warp_takes_a_row_alone(monkeypatch):
    monkeypatch.setattr(cost, "BLOCKS", 0)  # a device that few rows fill
    check_trace((5, 4607), [(5, False), (4607, True)], 1)
    x = np.random.default_rng(3).integers(0, 2**32, (3, 4607), np.uint32)
    assert np.array_equal(reduce.reduce(x, 1, (after, 1)), all_after(x.T))


def test_bfloat16():
    bits = (filled((40, 301), "f4").view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    for axis, op, exact in ((None, "mean", wide.mean(dtype=np.float64)), (0, "max", wide.max(0))):
        got = np.asarray(reduce.reduce(bits.view("V2"), axis, op))
        error = abs((got.view(np.uint16).astype(np.uint32) << 16).view(np.float32) - exact)
        assert got.dtype == "V2" and np.all(error <= 2.0**-8 * abs(exact) * (op == "mean"))


def test_bools():
    x = filled((40, 13), "i2") % 3 == 0
    for op, axis in (("sum", 0), ("mean", 1), ("max", 0)):
        got, exact = reduce.reduce(x, axis, op), getattr(np, op)(x, axis)
        assert got.dtype == exact.dtype and np.array_equal(got, exact)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_numbers(dtype):
    x = filled((2, 5, 40, 7), "f8")
    x = (x[0] + 1j * x[1]).astype(dtype)
    memory = cuda.to_device(x)
    for view in (x, x[:, ::-2], x.transpose(2, 0, 1), x[:1].repeat(3, 0), x[:0]):
        for axis, op in ((None, "sum"), (1, "mean"), ((0, 2), "sum")):
            with np.errstate(invalid="ignore"), warnings.catch_warnings(action="ignore"):
                exact = getattr(np, op)(view, axis, np.complex128, keepdims=True)
            got = [reduce.reduce(view, axis, op, keepdims=True)]
            if np.shares_memory(view, x):
                got.append(reduce.reduce(view_on_device(view, x, memory), axis, op, keepdims=True).copy_to_host())
            for result in got:
                assert result.dtype == dtype and result.shape == exact.shape
                assert np.allclose(result, exact, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_out():
    x = filled((30, 40), "i2")
    out = np.full((40, 30), -1, np.int64).T
    assert reduce.reduce(x[:, None, :] + np.zeros((1, 40, 1), np.int16), 2, out=out) is out
    assert np.array_equal(out, np.broadcast_to(x.sum(1)[:, None], (30, 40)))
    scalar = np.full((), -1, np.int64)
    assert reduce.reduce(x, out=scalar) is scalar and scalar == x.sum()


@pytest.mark.parametrize("rows", [1, 7, 64, 1001])
def test_higher_dim_for_any_number_of_rows(rows):
    x = filled((rows, 3, 5, 4), "f4")
    for op in ("sum",) if rows % 2 else ("max",):
        got = reduce.reduce_higher_dim(x, op)
        assert got.shape == (1, 3, 5, 4)
        assert np.allclose(got, getattr(np, op)(x.astype(np.float64), 0, keepdims=True), atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_arrays_of_other_libraries(name):
    library = pytest.importorskip(name)
    x = filled((63, 132), "i4")
    there = library.asarray(x, device="cuda") if name == "torch" else library.asarray(x)
    result = reduce.reduce(there, 0)
    assert type(result) is type(there) and np.array_equal(cuda.as_cuda_array(result).copy_to_host(), x.sum(0))
    assert int(reduce.reduce(there)) == x.sum()
    out = library.zeros_like(result)
    assert reduce.reduce(there, 0, out=out) is out and bool((out == result).all())


# -- traces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), SHAPES[:-1], ids=str)
def test_kernels_read_each_element_once_without_error(shape, axis, flatten, monkeypatch):
    if shape[-1] == 280_000:  # a device that this fills
        shape, _ = (2, 7, 60), monkeypatch.setattr(cost, "BLOCKS", 0)
    shape = tuple(min(n, 9000) for n in shape)
    axes = frozenset(range(len(shape)) if axis is None else (axis % len(shape),))
    _, form = flatten(cuda.to_device(filled(shape, "f4")), axes, lambda x: x)
    check_trace(shape, form, axis)


def check_trace(shape, form, axis):
    """Trace the one launch of a sum: it reads each element once, without findings."""
    x, (first, again) = filled(shape, "f4"), operators.make_operations("sum", np.dtype("f4"))
    like = x.sum(axis, dtype=np.float64).reshape(-1)
    out = cuda.to_device(np.full(like.size, np.nan, np.float32))
    ((launch, arguments),) = api.launches(cuda.to_device(x.reshape(-1)), form, first, again, out)
    trace = gpukit.trace(launch, *arguments)
    assert trace.findings == [] and np.allclose(out.copy_to_host(), like, atol=1e-3)
    coverage = {c.array: c for c in trace.coverage}
    assert coverage["x"].read == x.size and coverage["out"].written == like.size
    assert not any(operations.fp64 or operations.fp64_conversions for operations in trace.operations)


def traced_rung(variant, size=2**16):
    """The trace of the first launch of a rung, and the sum that all of its launches give."""
    x, out = cuda.to_device(filled((size,), "f4")), cuda.to_device(np.full(1, np.nan, np.float32))
    steps = ladder.steps(variant, x, out)
    traces = [gpukit.trace(launch, *arguments) for launch, arguments in steps]
    assert all(trace.findings == [] for trace in traces), variant
    assert abs(out.copy_to_host()[0] - filled((size,), "f4").sum(dtype=np.float64)) < 1e-2
    return traces[0]


def test_counts_of_the_ladder():
    """Shared requests, conflicts in them, and global load requests, for 65536 elements in blocks of 256 threads."""
    counts = {}
    for variant in ladder.VARIANTS:
        trace = traced_rung(variant)
        shared, loads = trace.total("shared"), trace.total("global", "load")
        counts[variant] = (shared.requests, shared.bank_conflicts, loads.requests)
        if variant != "one_launch":
            assert loads.sectors == loads.ideal_sectors == 8192
    assert counts == {
        "interleaved_divergent": (38400, 0, 2048),  # few lanes at a time
        "interleaved_conflict": (11520, 26880, 2048),  # many lanes at a time, but as many wavefronts
        "sequential": (11520, 0, 2048),
        "first_add": (5760, 0, 2048),  # half of the blocks
        "shuffle": (1152, 0, 2048),  # one value of a warp
        "grid_stride": (144, 0, 2048),  # few blocks
        "wide": (144, 0, 512),
        "one_launch": (297, 0, 513),
    }


@settings(max_examples=25)
@given(size=st.integers(0, 40_000), variant=st.sampled_from(list(ladder.VARIANTS)))
def test_ladder_for_any_size(size, variant):
    x = filled((size,), "f4")
    got = reduce.sum_by(x, variant)
    assert got.shape == (1,) and abs(got[0] - x.sum(dtype=np.float64)) <= 2e-6 * abs(x).sum()


def test_ladder_takes_strided_and_misaligned_arrays():
    x = filled((5000,), "f4")
    on_device = cuda.to_device(x)
    for part in (slice(1, None), slice(None, None, 3)):
        for variant in ("sequential", "one_launch"):
            got = reduce.sum_by(on_device[part], variant).copy_to_host()
            assert abs(got[0] - x[part].sum(dtype=np.float64)) < 1e-3


def test_no_elements_are_summed_by_launches_that_are_repeated():
    """A CUDA graph can record them, too: nothing is copied from the host."""
    nothing, out = cuda.device_array(0, np.float32), cuda.to_device(np.ones(1, np.float32))
    before = len(CACHE.calls)
    for _ in range(2):
        out.copy_to_device(np.ones(1, np.float32))
        assert reduce.sum_by(nothing, out=out).copy_to_host() == reduce.sum_by(nothing).copy_to_host() == 0
    assert len(CACHE.calls) == before + 2


def test_atomic_sum():
    x, out = filled((5000,), "f4"), np.zeros(1, np.float32)
    trace = gpukit.trace(ladder.atomic[4, ladder.THREADS], x, out)
    assert trace.findings == [] and abs(out[0] - x.sum(dtype=np.float64)) < 1e-3


A = np.ones((4, 3), np.float32)
WRONG = [
    (lambda: reduce.reduce([1.0]), TypeError, "x is a list"),
    (lambda: reduce.reduce(A.astype(complex), op="max"), ValueError, "op is 'max'; it must be 'sum' or 'mean' for"),
    (lambda: reduce.reduce(A.astype(">c8")), TypeError, "x has dtype >c8"),
    (lambda: reduce.reduce(A > 0, op=(after, 0)), TypeError, "x has dtype bool"),
    (lambda: reduce.reduce(A, 2), ValueError, "axis is 2; x has 2 dimensions"),
    (lambda: reduce.reduce(A, (0, -2)), ValueError, "must not name an axis twice"),
    (lambda: reduce.reduce(A, 1.0), TypeError, "axis is 1.0; it must be an int"),
    (lambda: reduce.reduce(A, op="median"), ValueError, "op is 'median'; it must be one of 'sum'"),
    (lambda: reduce.reduce(A, op=(abs, 0)), TypeError, r"op\[0\] is .*; it must take two numbers"),
    (lambda: reduce.reduce(A, op=norm), TypeError, "it must be a name, or a tuple of a function and its identity"),
    (lambda: reduce.reduce(A, 0, out=np.ones(4, np.float32)), ValueError, r"out has shape \(4,\); it must be \(3,\)"),
    (lambda: reduce.reduce(A, 0, out=np.ones(3)), TypeError, "out has dtype float64; it must be float32"),
    (
        lambda: reduce.reduce(A, 0, out=cuda.to_device(A[0])),
        TypeError,
        "out is a device array and x is a NumPy array; they must be",
    ),
    (lambda: reduce.reduce(A, 0, out=[1]), TypeError, "out is a list"),
    (lambda: reduce.reduce_higher_dim(np.array(1.0)), ValueError, "axis is 0; x has 0 dimensions"),
    (lambda: reduce.sum_by(A), ValueError, r"x has shape \(4, 3\); it must have one dimension"),
    (lambda: reduce.sum_by(A[0], "fast"), ValueError, "variant is 'fast'; it must be one of interleaved"),
    (lambda: reduce.steps("fast", A[0], A[0]), ValueError, "variant is 'fast'"),
    (lambda: reduce.steps("wide", A[0, :0], A[0]), ValueError, "x has no elements"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
