"""`gpukit.scan` against NumPy, in every form that its kernels take."""

import functools
import inspect
import itertools
import linecache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpukit
from gpukit import cuda, operators, scan
from gpukit._host.call import CACHE, Problem, forget
from gpukit.scan import api, cost, counting, fast, ladder, segments, sorting
from gpukit.scan import largest as picking
from gpukit.scan.segments import TILE

NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
DTYPES = ("i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8")


def filled(shape, dtype, seed=0):
    dtype, random = np.dtype(dtype), np.random.default_rng([seed, *shape])
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0 if dtype.kind == "u" else -100, 100, shape, dtype)


def expected(x, axis, op, exclusive, dtype):
    """NumPy's scan, floats in float64; the exclusive one begins with the identity."""
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    wide = x.astype(np.float64 if x.dtype.kind == "f" else dtype)
    made = NUMPY[op].accumulate(wide, axis)
    if exclusive and made.shape[axis]:
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        low, high = (limits.min, limits.max) if limits else (-np.inf, np.inf)
        first = np.full_like(np.take(made, [0], axis), {"sum": 0, "prod": 1, "max": low, "min": high}[op])
        made = np.concatenate([first, np.take(made, range(made.shape[axis] - 1), axis)], axis)
    return made


def check(x, axis, op, exclusive):
    got = scan.scan(x, axis, op, exclusive)
    like = np.cumsum(x[:1], None) if op in ("sum", "prod") and x.dtype.kind != "f" else x
    want = expected(x, axis, op, exclusive, like.dtype)
    assert type(got) is np.ndarray and got.dtype == like.dtype and got.shape == want.shape
    if x.dtype.kind != "f" or op in ("max", "min"):
        assert np.array_equal(got, want)
        return
    # A result is off by its own rounding, and by some tens of roundings of the magnitudes that were added before it.
    eps, own = np.finfo(np.float32 if x.itemsize <= 4 else np.float64).eps, np.finfo(x.dtype).eps
    magnitude = expected(abs(x), axis, "sum", exclusive, like.dtype)
    assert np.all(abs(got.astype(np.float64) - want) <= 60 * eps * magnitude + own * abs(want))


@st.composite
def problems(draw):
    """An array in one of several layouts, and an axis to scan along."""
    dimensions = draw(st.integers(1, 3))
    most = (20000, 260, 40)[dimensions - 1]
    x = filled(draw(st.tuples(*[st.integers(1, most)] * dimensions)), draw(st.sampled_from(DTYPES)))
    x = {"C": x, "F": x.T, "reversed": x[::-1], "steps": x[..., ::2]}[
        draw(st.sampled_from(["C", "F", "reversed", "steps"]))
    ]
    return x, draw(st.sampled_from([None, *range(-dimensions, dimensions)]))


@settings(max_examples=3)
@given(problem=problems(), op=st.sampled_from(["sum", "max", "min"]), exclusive=st.booleans())
@example(problem=(filled((140_001,), "f4"), None), op="sum", exclusive=False)  # a group of tiles and more
@example(problem=(filled((3, 9001), "u2"), 1), op="sum", exclusive=True)  # rows that begin anywhere
@example(problem=(filled((2, 700, 5), "f8"), 1), op="sum", exclusive=False)  # by blocks that take some columns each
@example(problem=(filled((500, 7), "i1"), 1), op="max", exclusive=True)  # several rows in a warp
def test_as_numpy(problem, op, exclusive):
    check(*problem, op, exclusive)


@pytest.mark.parametrize("rows", [150, 2060, 2200])
def test_columns_by_a_block_and_by_few_and_many_shares_of_rows(rows):
    x = filled((2, rows, 3), "u1")
    assert np.array_equal(launches_of(api._scan, cuda.to_device(x), settings=(1, "sum", False)), x.cumsum(1))


def test_products_and_special_values():
    check(np.random.default_rng(1).integers(-2, 3, 100), None, "prod", False)
    check(filled((3, 1, 5), "i2"), 1, "sum", True)
    mask = np.random.default_rng(2).random(100) < 0.3
    assert np.array_equal(scan.scan(mask), np.cumsum(mask)) and scan.scan(mask).dtype == np.int64
    x = np.array([1, np.inf, -np.inf, np.nan, 2], np.float32)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(scan.scan(x), np.cumsum(x), equal_nan=True)
    assert np.array_equal(scan.scan(x, op="max"), np.maximum.accumulate(x), equal_nan=True)
    for shape, axis in (((0,), None), ((3, 0), 1), ((0, 3), 1), ((2, 0, 3), 1)):
        assert scan.scan(np.zeros(shape, np.int32), axis).shape == np.cumsum(np.zeros(shape), axis).shape


def test_functions_need_not_be_commutative():
    """Elements are functions x -> a x + b, packed in one number; the scan composes them in order."""

    def compose(f, g):
        return (f // 1000 * (g // 1000)) % 997 * 1000 + (g // 1000 * (f % 1000) + g % 1000) % 997

    x = np.random.default_rng(2).integers(0, 997, 5000) * 1000 + np.random.default_rng(3).integers(0, 997, 5000)
    want = x.copy()
    for i in range(1, x.size):
        want[i] = compose(want[i - 1], x[i])
    assert np.array_equal(scan.scan(x, op=(compose, 1000)), want)
    columns = np.repeat(x[:, None], 2, 1)  # of many shares
    assert np.array_equal(scan.scan(columns, 0, (compose, 1000)), np.repeat(want[:, None], 2, 1))


def test_tiles_look_back_over_tiles_groups_and_sections():
    """Rows of more than 1024 tiles; twice, so that the words of the first launch are there for the second."""
    operation, _ = operators.make_operations("sum", np.dtype(np.int32))
    x, tiles = filled((2, 1060 * 32 - 5), "i4"), 1060
    kernel = fast.make_tiles(operation, 1, 1, 32, False, "many")
    words = cuda.to_device(np.zeros(fast.count_words(operation, 2, tiles), np.uint64))
    for launch, resident in ((1, False), (2, True)):
        out = cuda.device_array(x.size, np.int64)
        kernel[2 * tiles, 32](x.reshape(-1), out, words, x.shape[1], tiles, resident)
        assert np.array_equal(out.copy_to_host().reshape(x.shape), np.cumsum(x, 1))
        assert words.copy_to_host()[0] == launch << 32


@pytest.mark.parametrize(("dtype", "staged", "tiles"), [("f4", True, 40), ("f8", False, 40), ("f8", True, 30)])
def test_publishing_is_ordered(dtype, staged, tiles):
    """The trace proves that a value is there when it is read: words carry the launch's number, and need no fence."""
    operation = operators.make_operations("sum", np.dtype(dtype))[0]
    x = np.random.default_rng(4).integers(0, 9, tiles * 32).astype(dtype)
    words, out = np.zeros(fast.count_words(operation, 1, tiles), np.uint64), np.zeros_like(x)
    kernel = fast.make_tiles(operation, 1, 1, 32, False, "few" if tiles <= 32 else "many", staged)
    trace = gpukit.trace(kernel[tiles, 32], x, out, words, x.size, tiles, staged)
    assert np.array_equal(out, np.cumsum(x)) and trace.findings == []


@pytest.mark.parametrize("variant", scan.VARIANTS)
def test_every_rung_scans(variant):
    x = np.random.default_rng(6).integers(-9, 9, 3000).astype(np.float32)
    for size in (1, 256, 300, 3000):
        assert np.array_equal(scan.scan_by(x[:size], variant), np.cumsum(x[:size]))
    device, out = cuda.to_device(x), cuda.device_array(x.size, np.float32)
    for launch, arguments in scan.steps(variant, device, out):
        assert gpukit.trace(launch, *arguments).findings == []
    assert np.array_equal(out.copy_to_host(), np.cumsum(x))


def test_what_the_rungs_cost():
    """Additions of a block, by the shared memory that they load; conflicts of the trees; traffic of one pass."""
    x, shared = cuda.to_device(np.ones(8192, np.float32)), {}
    for variant in ("hillis_steele", "blelloch", "blelloch_padded", "shuffles"):
        launch, arguments = scan.steps(variant, x, cuda.device_array(8192, np.float32))[0]
        shared[variant] = gpukit.trace(launch, *arguments).total("shared")
    assert shared["blelloch"].bank_conflicts > 10 * shared["blelloch_padded"].bank_conflicts
    assert shared["blelloch_padded"].wavefronts < shared["blelloch"].wavefronts
    assert shared["shuffles"].wavefronts < shared["hillis_steele"].wavefronts / 8
    moved = {}
    for variant in ("shuffles", "look_back"):
        launches = scan.steps(variant, x, cuda.device_array(8192, np.float32))
        traces = [gpukit.trace(launch, *arguments) for launch, arguments in launches]
        moved[variant] = sum(trace.total("global", op).sectors for trace in traces for op in ("load", "store"))
    assert moved["shuffles"] > 1.9 * 2048 and moved["look_back"] < 1.3 * 2048


def test_looking_back_without_a_fence_is_a_race():
    """What the blocks publish must come before its flag."""
    source = inspect.getsource(ladder.look_back.py_func).replace("cuda.threadfence()", "pass")
    namespace = dict(vars(ladder))
    filename = "<look_back without fences>"
    linecache.cache[filename] = len(source), None, source.splitlines(True), filename
    exec(compile(source, filename, "exec"), namespace)
    x = cuda.to_device(np.ones(2000, np.float32))
    (clear, flags), (launch, arguments) = scan.steps("look_back", x, cuda.device_array(2000, np.float32))
    clear(*flags)
    trace = gpukit.trace(namespace["look_back"][launch.griddim, launch.blockdim], *arguments)
    assert {finding.kind for finding in trace.findings} == {"race"}
    assert {finding.array for finding in trace.findings} <= {"own", "upto"}


@pytest.mark.parametrize("op", ["sum", "min"])
def test_scans_for_kernels_of_others(op):
    scan_warp, scan_block = scan.warp_scan(np.float32, op), scan.block_scan(96, np.int32, op)

    @cuda.jit
    def scans(x, y, of_warp, of_block, totals):
        i = cuda.grid(1)
        of_warp[i] = scan_warp(x[i])
        of_block[i], totals[cuda.blockIdx.x] = scan_block(y[i])

    x, y = np.random.default_rng(5).integers(-9, 9, (2, 2, 96))
    of_warp, of_block = np.zeros(192, np.float32), np.zeros(192, np.int32)
    totals = np.zeros(2, np.int32)
    scans[2, 96](x.reshape(-1).astype(np.float32), y.reshape(-1).astype(np.int32), of_warp, of_block, totals)
    function = NUMPY[op]
    assert np.array_equal(of_warp.reshape(-1, 32), function.accumulate(x.reshape(-1, 32), 1))
    assert np.array_equal(of_block.reshape(2, 96), function.accumulate(y, 1))
    assert np.array_equal(totals, function.reduce(y, 1))


@pytest.mark.parametrize(("outer", "n", "inner", "kernel"), [
    (119_156, 33, 2, "stripes"), (3276, 400, 8, "stripes"), (327, 20_000, 2, "stripes"), (9000, 31, 2, "columns"),
    (11_915, 33, 20, "columns"), (20, 400_000, 2, "columns"),
])  # fmt: skip
def test_who_scans_columns(outer, n, inner, kernel):
    """The threads of a block, if rows are so short that those of a warp would not read neighbours; or one thread."""
    operation, _ = operators.make_operations("sum", np.dtype("f4"))
    first, *_ = cost.choose(operation, 4, 4, outer, n, inner, False)
    assert first.kernel.py_func.__name__ == kernel


def test_stripes_of_many_tiles(monkeypatch):
    monkeypatch.setattr(cost, "STRIPE_THREADS", 32)
    x = filled((140, 700, 2), "i4")
    assert np.array_equal(scan.scan(x, 1), np.cumsum(x, 1))


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_sums_of_complex_numbers(dtype):
    for shape in ((3, 40, 33), (5000,), (2, 1, 1)):
        x = filled((2, *shape), "f8")
        x = (x[0] + 1j * x[1]).astype(dtype)
        for axis, exclusive in [(axis, flag) for axis in (None, *range(len(shape))) for flag in (False, True)]:
            exact = np.cumsum(x, axis, np.complex128) - (x.reshape(-1) if axis is None else x) * exclusive
            for result in (scan.scan(x, axis, "sum", exclusive), scan.scan(cuda.to_device(x), axis, "sum", exclusive)):
                result = np.asarray(result.copy_to_host() if cuda.is_cuda_array(result) else result)
                assert result.dtype == dtype and np.allclose(result, exact, rtol=1e-4, atol=1e-4)


def test_device_arrays_outputs_and_repeated_calls():
    x = filled((3, 5000), "f4")
    device, out = cuda.to_device(x), cuda.device_array((3, 5000), np.float32)
    forget()
    for _ in range(3):
        assert scan.scan(device, 1, out=out) is out
        assert np.allclose(out.copy_to_host(), np.cumsum(x, 1), rtol=1e-4, atol=1e-3)
    view = cuda.to_device(np.ascontiguousarray(x.T)).T
    assert np.array_equal(scan.scan(view, 1).copy_to_host(), out.copy_to_host())
    for dtype, first, before, columns in itertools.product(("i1", "i4", "f8", "i8"), (0, 1, 2), (0, 1, 2), (1, 9)):
        rows = cuda.to_device(np.arange(1008).astype(dtype))[first : first + 999].reshape(999 // columns, columns)
        want = np.cumsum(rows.copy_to_host(), 0)
        out = cuda.device_array(1008, want.dtype)[before : before + 999].reshape(want.shape)  # aligned to elements only
        assert np.array_equal(scan.scan(rows, 0, out=out).copy_to_host(), want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1, 2]}, "x is"),
        ({"x": np.zeros(3, complex), "op": "prod"}, "op is 'prod'; it must be 'sum' for complex numbers"),
        ({"x": np.zeros(3, ">c8")}, "x has dtype >c8"),
        ({"axis": 1}, "axis is 1; x has 1 dimension$"),
        ({"axis": (0,)}, r"axis is \(0,\); it must be an int or None"),
        ({"op": "mean"}, "op is 'mean'; it must be one of 'sum', 'prod', 'max', 'min'"),
        ({"op": np.add}, "op is"),
        ({"exclusive": 2}, "exclusive is 2"),
        ({"out": np.zeros(4)}, "out"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        scan.scan(**{"x": np.zeros(3)} | arguments)


def test_a_bad_scan_of_a_block_is_named():
    with pytest.raises(ValueError, match="threads is 100; it must be a multiple of 32"):
        scan.block_scan(100)
    with pytest.raises(TypeError, match="dtype is int16"):
        scan.warp_scan(np.int16)
    with pytest.raises(ValueError, match="op is 'mean'"):
        scan.warp_scan(op="mean")


# -- what is built from scans ---------------------------------------------------------------------------------------


def special(size, dtype, seed=0):
    """Values with ties, and for floats with both zeros, infinities and NaN."""
    x = filled((size,), dtype, seed)
    if x.dtype.kind == "f":
        random = np.random.default_rng(seed)
        x = np.round(x * 4) / 4
        for value in (np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf):
            x[random.random(size) < 0.06] = value
    return x.astype(dtype)


@pytest.mark.parametrize(("dtype", "forms"), [("i1", "ap"), ("f2", "k"), ("u4", "kp"), ("f8", "ap")])
def test_sorts_are_stable_and_in_numpys_order(dtype, forms, monkeypatch):
    """Keys, argsort and pairs, of short rows, which a block sorts, and of long ones, along any axis."""
    monkeypatch.setattr(sorting, "BLOCK_THREADS", 128)
    forget()
    long = sorting.max_block_row(np.dtype(dtype).itemsize, 2) + 7
    for shape, axis in (((4, 70, 3), 1), ((long, 2), 0)):
        x = special(np.prod(shape), dtype, sum(shape)).reshape(shape)
        values = np.arange(x.size, dtype=np.uint8).reshape(shape)
        for descending in (False, True):
            order = best(x, shape[axis], axis, descending)
            in_order, how = np.take_along_axis(x, order, axis), {"axis": axis, "descending": descending}
            if "k" in forms:
                assert np.array_equal(scan.sort(x, **how), in_order, equal_nan=x.dtype.kind == "f")
            if "a" in forms:
                assert np.array_equal(scan.argsort(x, **how), order)
            if "p" in forms:
                assert np.array_equal(scan.sort(x, values, **how), np.take_along_axis(values, order, axis))
    if "a" in forms:
        assert np.array_equal(scan.argsort(x, None), np.argsort(x, None, kind="stable"))


def test_bfloat16_sorts_as_the_float32_with_its_bits():
    bits = (special(1200, "f4").view(np.uint32) >> 16).astype(np.uint16).reshape(4, 300)
    wide, device = (bits.astype(np.uint32) << 16).view(np.float32), cuda.to_device(bits.view("V2"))
    order = np.argsort(wide, kind="stable")
    assert np.array_equal(scan.argsort(device).copy_to_host(), order)
    assert np.array_equal(scan.sort(device).copy_to_host().view(np.uint16), np.take_along_axis(bits, order, 1))
    values, indices = scan.topk(device, 20)
    assert np.array_equal(indices.copy_to_host(), best(wide, 20, 1, True)) and values.dtype == "V2"
    assert np.array_equal(values.copy_to_host().view(np.uint16), np.take_along_axis(bits, indices.copy_to_host(), 1))


def launches_of(plan, *inputs, settings):
    """The launches of a host function, traced without a finding; returns its result, or several."""
    problem = Problem(inputs, None, 0, settings)
    launches = plan(problem)
    for launch, arguments in [*problem._copies, *launches]:
        assert gpukit.trace(launch, *arguments).findings == []
    results = [output.finish().copy_to_host() for output in problem._outputs]
    return results[0] if len(results) == 1 else results


def test_rows_of_one_key_are_planned_once(monkeypatch):
    planned, sort_rows = [], sorting.sort_rows
    monkeypatch.setattr(
        sorting, "sort_rows", lambda *arguments, **more: planned.append(1) or sort_rows(*arguments, **more)
    )
    forget()
    for seed in range(3):
        order = scan.argsort(cuda.to_device(np.random.default_rng(seed).random((7, 1))), 1)
        assert not order.copy_to_host().any() and order.shape == (7, 1)
    assert len(planned) == 1


def test_tiles_of_a_sort_look_back():
    """Without a finding, and with the same keys in every tile."""
    x = np.tile(np.arange(256, dtype=np.uint8), 80)
    device = cuda.to_device(x)
    for _ in range(2):
        assert np.array_equal(scan.sort(device).copy_to_host(), np.sort(x))
    assert np.array_equal(
        launches_of(sorting._sort, device, None, settings=(0, True, False)), np.argsort(x, kind="stable")
    )
    rows = cuda.to_device(x[:1000].reshape(10, 100))
    order = np.argsort(rows.copy_to_host(), 0, kind="stable")
    assert np.array_equal(launches_of(sorting._sort, rows, None, settings=(0, True, False)), order)


@pytest.mark.parametrize(("n", "dtype"), [(8, "i8"), (700, "u2"), (9000, "i8"), (16400, "i4")])
def test_sorts_pass_over_digits_in_which_a_rows_keys_are_alike(n, dtype):
    """Rows with no digit, one, some and all in which keys differ, also on both sides of zero: keys, indices, pairs."""
    random, info = np.random.default_rng(n), np.iinfo(dtype)
    x = np.zeros((6, n), dtype)
    x[1:5] = random.integers(0, 100, (4, n))
    x[2] = x[2] * 256 + 7
    x[3] -= np.array(50).astype(dtype)  # wraps
    x[4, 5] = info.max
    x[5] = random.integers(info.min, info.max, n, dtype)
    values, order = np.arange(x.size, dtype=np.int16).reshape(x.shape), np.argsort(x, 1, kind="stable")
    assert np.array_equal(scan.sort(x), np.sort(x))
    assert np.array_equal(scan.argsort(x), order)
    assert np.array_equal(scan.sort(x, values), np.take_along_axis(values, order, 1))


def stores(x, space):
    """How often warps store to a memory in each launch of a sort."""
    launches = sorting._sort(Problem((cuda.to_device(x),), None, 0, (0, False, False)))
    traces = [gpukit.trace(launch, *arguments) for launch, arguments in launches]
    assert not any(trace.findings for trace in traces)
    return [trace.total(space, "store").requests for trace in traces]


def test_passes_over_equal_digits_move_nothing():
    few, many = (np.random.default_rng(1).integers(0, high, 16400).astype(np.int32) for high in (100, 1 << 31))
    assert stores(few, "global")[-3:] == [0, 0, 0] and 0 not in stores(many, "global")[-4:]
    assert 3 * sum(stores(few[:900], "shared")) < sum(stores(many[:900], "shared"))


def best(x, k, axis, largest):
    """The indices of the k first in NumPy's order, or in the opposite one; equal elements by their indices."""
    if not largest:
        return np.argsort(x, axis, kind="stable").take(range(k), axis)
    order = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return (x.shape[axis] - 1 - order).take(range(k), axis)


@settings(max_examples=4)
@given(
    shape=st.tuples(st.sampled_from([1, 57, 300]), st.integers(1, 9)),
    axis=st.sampled_from([0, 1, -1]),
    dtype=st.sampled_from(["i2", "f4"]),
    share=st.floats(0, 1),
    largest=st.booleans(),
)
@example(shape=(66_001, 2), axis=0, dtype="f4", share=0.0003, largest=True)  # too long for a block, and not aligned
@example(shape=(2, 66_001), axis=1, dtype="f4", share=1 / 66_001, largest=True)
@example(shape=(16400, 2), axis=0, dtype="i2", share=1.0, largest=False)
def test_topk_is_the_beginning_of_a_sort(shape, axis, dtype, share, largest):
    x = special(shape[0] * shape[1], dtype, shape[0]).reshape(shape)
    k = round(share * shape[axis])
    want = best(x, k, axis, largest)
    values, indices = scan.topk(x, k, axis, largest)
    assert np.array_equal(indices, want)
    assert np.array_equal(values, np.take_along_axis(x, want, axis), equal_nan=dtype == "f4")
    indices = scan.topk(x, k, axis, largest, sorted=False).indices
    assert np.array_equal(np.sort(indices, axis), np.sort(want, axis))


@pytest.mark.parametrize("dtype", ["f2", "i4"])
@pytest.mark.parametrize(
    ("shape", "axis", "k"), [((1,), 0, 1), ((12, 1), 1, 1), ((56,), 0, 8), ((4, 1000), 1, 9), ((56, 5), 0, 45)]
)
def test_a_small_problem_is_one_launch(shape, axis, k, dtype):
    forget()
    x = filled(shape, dtype)
    device = cuda.to_device(x)
    for _ in range(2):
        values, indices = (array.copy_to_host() for array in scan.topk(device, k, axis))
        assert np.array_equal(values, -np.sort(-x, axis).take(range(k), axis))
        assert np.array_equal(np.take_along_axis(x, indices, axis), values)
        scan.scan(device, axis)
        if axis == x.ndim - 1:
            scan.sort(device)
            scan.argsort(device)
    assert CACHE.calls and all(len(recorded.launches) == 1 for recorded in CACHE.calls.values())


@pytest.mark.parametrize("dtype", [np.int16, np.int64])
def test_a_selection_is_traced_without_a_finding(dtype):
    """By one block for numbers of up to 4 bytes, by several for longer ones."""
    x = np.random.default_rng(7).integers(0, 50, 9000).astype(dtype)
    values, indices = launches_of(picking._top, cuda.to_device(x), settings=(40, 0, True, True))
    assert np.array_equal(indices, best(x, 40, 0, True)) and np.array_equal(values, x[indices])


@settings(max_examples=6)
@given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 2, 7, 31, 300, 2500]), min_size=1, max_size=40),
    how=st.sampled_from([("u1", "sum", "i4"), ("f4", "max", "i8")]),
)
@example(lengths=[0], how=("f4", "max", "i8"))
@example(lengths=[4500, 0, 3000], how=("u1", "sum", "i4"))
@example(lengths=[3, 40_000, 0, 50_000], how=("u1", "sum", "i4"))  # shared by blocks
@example(lengths=[1] * 250 + [200, 2, 300], how=("u1", "sum", "i4"))  # by a lane each, and two by the block
def test_segments_are_reduced_and_scanned(lengths, how):
    dtype, op, offset_dtype = how
    offsets = np.cumsum([0, *lengths]).astype(offset_dtype)
    x = np.random.default_rng(len(lengths)).integers(0, 20, offsets[-1]).astype(dtype)
    pieces = np.split(x, offsets[1:-1].astype(int))
    reduced, scanned = scan.segmented_reduce(x, offsets, op), scan.segmented_scan(x, offsets, op)
    exclusive = scan.segmented_scan(x, offsets, op, exclusive=True)
    empty = scan.scan(x[:1], op=op, exclusive=True)[0] if x.size else None
    for i, piece in enumerate(pieces):
        here = slice(int(offsets[i]), int(offsets[i + 1]))
        want = NUMPY[op].accumulate(piece, dtype=reduced.dtype)
        assert np.array_equal(scanned[here], want)
        if piece.size:
            assert reduced[i] == want[-1] and np.array_equal(exclusive[here], [empty, *want[:-1]])
        elif x.size:
            assert reduced[i] == empty


@pytest.mark.parametrize("low, high", [(0, 3000), (2500, 2600), (0, 40)])
def test_segments_are_found(monkeypatch, low, high):
    """A search among many segments begins near the place it looks for, and ends at the right one wherever that is."""
    monkeypatch.setattr(segments, "PROBE", 2)
    find_segment = cuda.jit(device=True)(segments.find_segment.py_func)

    @cuda.jit
    def find(offsets, n, found):
        found[cuda.blockIdx.x] = find_segment(offsets, offsets.size - 1, n, cuda.blockIdx.x)

    n, found = 3000, np.zeros(3000, np.int64)
    offsets = np.array([0, *np.sort(np.random.default_rng(low).integers(low, high, 400)), n])
    find[n, 32](offsets, n, found)
    assert np.array_equal(found, np.searchsorted(offsets, np.arange(n), "right") - 1)


@pytest.mark.parametrize("cuts", [[], [TILE - 1, 3 * TILE], [2 * TILE + 9, 2 * TILE + 9, 9 * TILE]])
def test_segments_of_many_tiles(monkeypatch, cuts):
    """Tiles look back over tiles, groups and sections of them; groups of two, so that there are some of each."""
    for module in (segments, fast):
        monkeypatch.setattr(module, "GROUP", 2)
    for name in ("make_look_back", "make_tiles"):
        monkeypatch.setattr(segments, name, getattr(segments, name).__wrapped__)
    n = 23 * TILE + 5
    x, offsets = np.random.default_rng(len(cuts)).integers(-50, 50, n), np.array([0, *cuts, n])
    want = np.concatenate([np.cumsum(piece) for piece in np.split(x, cuts)])
    assert np.array_equal(scan.segmented_scan(x, offsets), want)


@pytest.mark.parametrize(
    ("mean", "lanes", "several"), [(2, 1, 4), (5, 1, 2), (10, 1, 1), (20, 2, 1), (40, 4, 1), (80, 8, 1)]
)
def test_short_segments_are_read_as_neighbours(monkeypatch, mean, lanes, several):
    """Of a block, also where one of its segments is for all of its threads; not if they are too many elements."""
    monkeypatch.setattr(segments, "SEVERAL_BLOCKS", 0)
    made, make_whole = [], segments.make_whole
    monkeypatch.setattr(segments, "make_whole", lambda *how: made.append(how) or make_whole(*how))
    random = np.random.default_rng(mean)
    each = 256 // lanes * several
    lengths = random.geometric(1 / mean, 3 * each - 5) - (random.random(3 * each - 5) < 0.1)
    for long in (0, 1030, 4500):
        lengths[each // 2] = long or lengths[each // 2]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        x = random.integers(-50, 50, offsets[-1], np.int32)
        problem = Problem((cuda.to_device(x), cuda.to_device(offsets)), None, 0, ("sum", "reduce", False))
        ((launch, arguments),) = segments._segmented(problem)
        trace = gpukit.trace(launch, *arguments)
        running = np.concatenate([[0], np.cumsum(x, dtype=np.int64)])
        result = problem._outputs[0].finish().copy_to_host()
        assert trace.findings == [] and np.array_equal(result, running[offsets[1:]] - running[offsets[:-1]])
        if not long:
            loads = [access for access in trace.accesses if access.array == "x" and access.op == "load"]
            assert made[-1][2:] == (lanes, several) and sum(access.sectors for access in loads) <= 1.3 * x.nbytes / 32


def test_segments_of_a_function_that_does_not_commute_and_their_trace():
    def compose(f, g):
        return (f // 1000 * (g // 1000)) % 997 * 1000 + (g // 1000 * (f % 1000) + g % 1000) % 997

    numbers = np.random.default_rng(2).integers(0, 997000, 5001)
    offsets = cuda.to_device(np.array([0, 10, 4000, 4000, 5000]))
    op, x, device = (compose, 1000), numbers[1:], cuda.to_device(numbers)[1:]  # not at a multiple of 16 bytes
    want = [functools.reduce(compose, map(int, piece), 1000) for piece in np.split(x, [10, 4000, 4000])]
    for _ in range(2):
        assert list(scan.segmented_reduce(device, offsets, op).copy_to_host()) == want
    assert list(launches_of(segments._segmented, device, offsets, settings=(op, "reduce", False))) == want
    scanned = launches_of(segments._segmented, device, offsets, settings=(op, "scan", False))
    assert list(scanned[[9, 3999, 4999]]) == [want[0], want[1], want[3]]
    few = cuda.to_device(x[:10]), cuda.to_device(np.array([0, 0, 10, 10]))  # by one block, which needs no other launch
    assert list(launches_of(segments._segmented, *few, settings=(op, "reduce", False))) == [1000, want[0], 1000]


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4"])
def test_histograms_are_numpys(dtype):
    """Also for values on the edges of bins, which are where rounding decides."""
    spread = filled((9001,), dtype)  # of more than one block
    on_edges = (np.random.default_rng(1).integers(0, 11, 9001) / (10 if dtype[0] == "f" else 1)).astype(dtype)
    for x in (spread, on_edges, np.full(77, 3, dtype), spread[:0]):
        for bins, span in ((10, None), (7, (0, 1)), (3000, (-50, 50)), ([0, 1, 1, 5, 100], None)):
            try:
                want = np.histogram(x, bins, span)
            except ValueError:  # bins that this dtype cannot tell apart
                with pytest.raises(ValueError, match="bins is"):
                    scan.histogram(x, bins, span)
                continue
            counts, edges = scan.histogram(x, bins, span)
            assert np.array_equal(edges, want[1]) and edges.dtype == want[1].dtype
            assert np.array_equal(counts, want[0]) and counts.dtype == np.int64


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_histograms_of_the_largest_and_the_smallest_numbers(dtype):
    """Ranges whose width, or places in which, a number cannot hold; and edges that are rounded by almost half a bin."""
    limits = np.finfo(dtype)
    large, normal, least = (float(value) for value in (limits.max, limits.tiny, limits.smallest_subnormal))
    share = np.random.default_rng(3).uniform(-1, 1, 900)
    steps = np.arange(-10, 40).astype(dtype) * limits.smallest_subnormal
    wide, narrow = (0.9 * large, large / 3)[dtype == "f8"], 8 * normal / 3
    wides, narrows = (share * large).astype(dtype), (share * narrow).astype(dtype)
    for x, high in ((wides, wide), (narrows, narrow), (steps, 10 * least)):
        for bins, low in ((1, -high), (3, -high), (10, -high), (7, 0.0)):
            counts, edges = scan.histogram(x, bins, (low, high))
            assert np.array_equal(counts, np.histogram(x.astype(float), edges.astype(float))[0])
    if dtype != "f8":
        with np.errstate(over="ignore"):  # the last edge is infinite
            assert list(scan.histogram(np.array([1, 9, large], dtype), 3, (0, 1.01 * large))[0]) == [2, 0, 1]


@pytest.mark.parametrize("dtype, bins", [("u1", 4096), ("f4", 12_288)])
def test_counters_that_just_exceed_shared_memory(dtype, bins):
    """With the kernel's other word in shared memory; a bin less fits."""
    x = filled((9001,), dtype)
    for number in (bins - 1, bins):
        assert np.array_equal(scan.histogram(x, number, (0, 200))[0], np.histogram(x, number, (0, 200))[0])


def test_every_histogram_kernel_counts():
    x = np.random.default_rng(2).integers(0, 256, 5000).astype(np.uint8)
    want = np.bincount(x, minlength=256)
    for kernel in (counting.global_atomics, counting.shared_atomics):
        counts = np.zeros(256, np.int64)
        assert gpukit.trace(kernel[3, 128], x, counts).findings == [] and np.array_equal(counts, want)
    several = launches_of(counting._histogram, cuda.to_device(np.tile(x, 2)), settings=(256, 0, 256))
    assert np.array_equal(several, 2 * want)
    with np.errstate(invalid="ignore"):
        y = np.array([np.nan, 0, 1, 2, np.inf, -np.inf], np.float32)
    assert list(scan.histogram(y, 2, (0, 2))[0]) == [1, 2]
    device, out = cuda.to_device(y[1:4]), cuda.device_array(2, np.int64)
    assert scan.histogram(device, 2, out=out)[0] is out and list(out.copy_to_host()) == [1, 2]


def test_bools_are_sorted_and_counted():
    x = np.random.default_rng(5).random((3, 700)) < 0.4
    device = cuda.to_device(x)
    for array in (x, device):
        ordered, order, top = scan.sort(array), scan.argsort(array), scan.topk(array, 9, largest=False)
        assert ordered.dtype == top.values.dtype == bool
        assert np.array_equal(ordered, np.sort(x)) and np.array_equal(order, np.argsort(x, kind="stable"))
        assert np.array_equal(top.indices, np.argsort(x, kind="stable")[:, :9]) and not np.asarray(top.values).any()
    assert np.array_equal(scan.sort(-x[0].astype(np.int8), x[0]), np.sort(x[0])[::-1])
    counts = scan.segmented_reduce(x[0], np.array([0, 300, 300, 700]))
    assert list(counts) == [x[0, :300].sum(), 0, x[0, 300:].sum()]
    with pytest.raises(TypeError, match="x has dtype bool"):
        scan.segmented_reduce(x[0], np.array([0, 700]), "max")


def test_selected_elements_keep_their_order():
    random = np.random.default_rng(3)
    for size in (0, 31, 10_000):
        x, mask = random.standard_normal(size).astype(np.float32), random.random(size) < 0.3
        assert np.array_equal(scan.compress(mask, x), x[mask])
        assert np.array_equal(scan.nonzero(np.where(mask, x, 0)), np.flatnonzero(mask))
        assert np.array_equal(scan.compress(np.ones(size), x), x)
        assert scan.compress(np.zeros(size, bool), x).size == 0
    device = cuda.to_device(x)
    for _ in range(2):
        assert np.array_equal(scan.compress(cuda.to_device(mask), device).copy_to_host(), x[mask])
    for dtype in ("?", "V2", ">f8", "F", "M8[s]", [("key", "i4"), ("value", "f4")]):  # bits are moved
        bits = random.integers(0, 2, size * np.dtype(dtype).itemsize, np.uint8).view(dtype)
        found = scan.compress(mask, bits)
        assert found.dtype == bits.dtype and found.tobytes() == bits[mask].tobytes()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scan.histogram(np.zeros(3), 0), "bins is 0"),
        (lambda: scan.histogram(np.zeros(3), [2, 1]), "edges must increase"),
        (lambda: scan.histogram(np.zeros(3), "auto"), "bins is 'auto'"),
        (lambda: scan.histogram(np.zeros(3), 3, (1, 0)), r"range is \(1, 0\)"),
        (lambda: scan.histogram(np.full(77, np.nan, np.float32)), "give a range"),
        (lambda: scan.sort(np.zeros((2, 2)), axis=2), "axis is 2; x has 2 dimensions"),
        (lambda: scan.sort(np.float64(0)), "x is"),
        (lambda: scan.sort(np.zeros(2), descending="yes"), "descending is 'yes'; it must be True or False"),
        (lambda: scan.topk(np.zeros(2), 3), "k is 3"),
        (lambda: scan.topk(np.zeros(2), 1, largest=2), "largest is 2"),
        (
            lambda: scan.segmented_reduce(np.zeros(3), np.array([0, 2])),
            r"offsets\[0\] is 0 and offsets\[1\] is 2; offsets must rise",
        ),
        (
            lambda: scan.segmented_reduce(np.zeros(3), np.array([0, 2, 1, 3])),
            r"offsets\[1\] is 2 and offsets\[2\] is 1",
        ),
        (lambda: scan.segmented_scan(np.zeros(3), np.array([0.0, 3])), "offsets has dtype float64"),
        (lambda: scan.segmented_reduce(np.zeros(3), np.array([0, 3]), "mean"), "op is 'mean'"),
        (lambda: scan.sort(np.zeros(2), np.zeros(3)), "values has shape"),
        (lambda: scan.argsort(np.zeros(2, complex)), "x has dtype complex128"),
        (lambda: scan.compress(np.zeros(2), np.zeros(3)), "x has shape"),
        (lambda: scan.nonzero(np.zeros(2, complex)), "x has dtype complex128"),
        (lambda: scan.compress(np.zeros(2), np.zeros(2, complex)), "complex128; .* must have 1, 2, 4 or 8 bytes"),
        (lambda: scan.compress(np.zeros(2), np.zeros(2, object)), "x has dtype object"),
    ],
)
def test_what_cannot_be_done_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
