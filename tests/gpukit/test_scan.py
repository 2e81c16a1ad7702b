"""`gpukit.scan` against NumPy, in every form that its kernels take."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpukit
from gpukit import cuda, operators, scan
from gpukit._host.call import forget
from gpukit.scan import fast

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


@settings(max_examples=12)
@given(problem=problems(), op=st.sampled_from(["sum", "max", "min"]), exclusive=st.booleans())
@example(problem=(filled((140_001,), "f4"), None), op="sum", exclusive=False)  # a group of tiles and more
@example(problem=(filled((3, 9001), "u2"), 1), op="sum", exclusive=True)  # rows that begin anywhere
@example(problem=(filled((2, 700, 5), "f8"), 1), op="sum", exclusive=False)  # shares of rows
@example(problem=(filled((500, 7), "i1"), 1), op="max", exclusive=True)  # several rows in a warp
def test_as_numpy(problem, op, exclusive):
    check(*problem, op, exclusive)


def test_products_and_special_values():
    check(np.random.default_rng(1).integers(-2, 3, 100), None, "prod", False)
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


def test_tiles_look_back_over_tiles_groups_and_sections():
    """Rows of more than 1024 tiles; twice, so that the flags of the first launch are there for the second."""
    operation, _ = operators.make_operations("sum", np.dtype(np.int32))
    x = filled((2, 1060 * 32 - 5), "i4")
    tiles = 1060
    published = tiles + 34 + 2
    kernel = fast.make_tiles(operation, 1, 1, 32, False, False)
    amounts = cuda.device_array(2 * published, np.int64)
    counters = cuda.to_device(np.zeros(fast.FLAGS + 2 * published, np.uint32))
    for _ in range(2):
        out = cuda.device_array(x.size, np.int64)
        kernel[2 * tiles, 32](x.reshape(-1), out, amounts, counters, x.shape[1], tiles)
        assert np.array_equal(out.copy_to_host().reshape(x.shape), np.cumsum(x, 1))
        assert list(counters.copy_to_host()[:1]) == [0]


def traced(kernel_of, tiles=40):
    operation, _ = operators.make_operations("sum", np.dtype(np.float32))
    x = np.random.default_rng(4).integers(0, 9, tiles * 32).astype(np.float32)
    published = tiles + 2 + 1
    counters, out = np.zeros(fast.FLAGS + published, np.uint32), np.zeros_like(x)
    amounts = cuda.device_array(published, np.float32)
    trace = gpukit.trace(kernel_of(operation)[tiles, 32], x, out, amounts, counters, x.size, tiles)
    return trace, np.array_equal(out, np.cumsum(x))


def test_publishing_is_ordered():
    """The trace proves that a value is there when its flag is seen."""
    trace, right = traced(lambda operation: fast.make_tiles(operation, 1, 1, 32, False, False))
    assert right and trace.findings == []
    assert trace.total("global", "load").sectors < 2 * 40 * 4 + 200


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


def test_device_arrays_outputs_and_repeated_calls():
    x = filled((3, 5000), "f4")
    device, out = cuda.to_device(x), cuda.device_array((3, 5000), np.float32)
    forget()
    for _ in range(3):
        assert scan.scan(device, 1, out=out) is out
        assert np.allclose(out.copy_to_host(), np.cumsum(x, 1), rtol=1e-4, atol=1e-3)
    view = cuda.to_device(np.ascontiguousarray(x.T)).T
    assert np.array_equal(scan.scan(view, 1).copy_to_host(), out.copy_to_host())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1, 2]}, "x is"),
        ({"x": np.zeros(3, complex)}, "x has dtype complex128"),
        ({"axis": 1}, "axis is 1; x has 1 dimensions"),
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
