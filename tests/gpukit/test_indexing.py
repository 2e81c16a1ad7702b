"""Thread indexing: what kernels record and print, against plain loops over blocks and threads."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukit import cuda, indexing

sizes = st.integers(1, 5)
shapes = st.one_of(sizes, st.tuples(sizes), st.tuples(sizes, sizes), st.tuples(sizes, sizes, sizes))


def places(shape):
    """All (x, y, z) of a shape in CUDA's order: x fastest, then y, then z."""
    x, y, z = (*shape, 1, 1)[:3] if isinstance(shape, tuple) else (shape, 1, 1)
    return [(i, j, k) for k, j, i in product(range(z), range(y), range(x))]


@settings(max_examples=40, deadline=None)
@given(grid=shapes, block=shapes)
def test_thread_table_is_what_plain_loops_count(grid, block):
    table = indexing.thread_table(grid, block)
    blocks, threads = places(grid), places(block)
    expected = list(product(blocks, threads))
    assert table.shape == (len(expected),)
    assert [(tuple(row["blockIdx"]), tuple(row["threadIdx"])) for row in table] == expected
    np.testing.assert_array_equal(table["index"], np.arange(len(expected)))
    np.testing.assert_array_equal(table["block_index"], np.repeat(np.arange(len(blocks)), len(threads)))
    np.testing.assert_array_equal(table["index_in_block"], np.tile(np.arange(len(threads)), len(blocks)))
    np.testing.assert_array_equal(table["warp"], np.tile(np.arange(len(threads)) // 32, len(blocks)))
    np.testing.assert_array_equal(table["lane"], np.tile(np.arange(len(threads)) % 32, len(blocks)))
    last_block, last_thread = expected[-1]
    assert (table["gridDim"] == np.add(last_block, 1)).all()
    assert (table["blockDim"] == np.add(last_thread, 1)).all()
    coordinates = [[b * (n + 1) + t for b, t, n in zip(*pair, last_thread, strict=True)] for pair in expected]
    assert np.stack([table["x"], table["y"], table["z"]], axis=1).tolist() == coordinates


def reverse(place):
    return " ".join(map(str, reversed(place)))


LISTED = {"A2": ((2,), (4,)), "A3": ((2, 2), (2, 2)), "A4": ((2, 2, 2), (3, 4, 2))}


@pytest.mark.parametrize(("grid", "block"), LISTED.values(), ids=LISTED)
def test_listings_are_the_documents_rows(grid, block):
    pairs = list(product(enumerate(places(grid)), enumerate(places(block))))
    count = prod(block)
    rows = {
        indexing.print_indices: [f"block: {reverse(b)}  thread: {reverse(t)}" for (_, b), (_, t) in pairs],
        indexing.print_dimensions: [f"grid: {dims(grid)}  block: {dims(block)}"] * len(pairs),
        indexing.print_index_in_block: [f"block: {reverse(b)}  index in block: {i}" for (_, b), (i, _) in pairs],
        indexing.print_index_in_grid: [
            f"block index: {n}  index in block: {i}  index in grid: {n * count + i}" for (n, _), (i, _) in pairs
        ],
    }
    for kernel, expected in rows.items():
        # The order of the lines is the order of blocks and threads, which no device promises.
        assert sorted(indexing.listing(kernel, grid, block).splitlines()) == sorted(expected)


def dims(shape):
    return " ".join(map(str, reversed((*shape, 1, 1)[:3])))


def test_listing_of_coordinates_is_the_recommended_form():
    lines = indexing.listing(indexing.print_coordinates, (2, 2), (2, 2)).splitlines()
    assert len(lines) == 16
    assert "block: 0 0 1  index in block: 2  x: 2  y: 1" in lines
    assert "block: 0 1 0  index in block: 3  x: 1  y: 3" in lines


@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (7, 1), (1000, 32), (70_000, 33)])
def test_every_block_draws_one_ticket(blocks, threads):
    order = indexing.block_order(blocks, threads)
    np.testing.assert_array_equal(np.sort(order), np.arange(blocks))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 400), threads=st.integers(1, 70), blocks=st.one_of(st.none(), st.integers(1, 12)))
def test_grid_stride_loop_visits_every_element_once(n, threads, blocks):
    launched = blocks or max(1, -(-n // threads))
    expected = {}
    for thread in range(launched * threads):
        for step, element in enumerate(range(thread, n, launched * threads)):
            assert element not in expected
            expected[element] = (thread // threads, thread, step)
    table = indexing.grid_stride_table(n, threads, blocks)
    assert [tuple(row) for row in table.tolist()] == [expected[i] for i in range(n)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("n", "threads", "blocks"), [(0, 256, None), (1, 256, None), (33, 32, 1), (1000, 96, 40), (1000, 7, 3)]
)
def test_axpy_for_any_number_of_elements_and_any_grid(n, threads, blocks, dtype):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n)).astype(dtype)
    expected = dtype(2.7) * x + y
    bound = np.finfo(dtype).eps * (abs(2.7 * x) + abs(y))
    result = indexing.axpy(2.7, x, y, threads=threads, blocks=blocks)
    assert result.dtype == dtype and result.shape == (n,)
    assert (abs(result - expected) <= bound).all()

    stream = cuda.stream()
    on_device = indexing.axpy(2.7, cuda.to_device(x), cuda.to_device(y), threads=threads, blocks=blocks, stream=stream)
    assert cuda.is_cuda_array(on_device)
    stream.synchronize()
    np.testing.assert_array_equal(on_device.copy_to_host(), result)


def test_axpy_writes_where_it_is_told():
    x = np.arange(20, dtype=np.float32)[::2]  # not contiguous
    y = np.full(10, 0.5, np.float32)
    y.flags.writeable = False
    out = np.full(20, -1, np.float32)[::2]
    assert indexing.axpy(3, x, y, out=out) is out
    np.testing.assert_array_equal(out, 3 * x + y)
    inplace = x.copy()
    indexing.axpy(3, inplace, y, out=inplace)
    np.testing.assert_array_equal(inplace, out)
    x_device, y_device = cuda.to_device(x.copy()), cuda.to_device(y)
    assert indexing.axpy(3, x_device, y_device, out=y_device) is y_device
    np.testing.assert_array_equal(y_device.copy_to_host(), out)


def test_num_blocks():
    assert [indexing.num_blocks(n) for n in (0, 1, 256, 257)] == [1, 1, 1, 2]
    assert [indexing.num_blocks(65535 * 256 + more) for more in (-256, 0, 1)] == [65534, 65535, 65535]
    assert indexing.num_blocks(10**9, 100, limit=10**7) == 10**7
    assert indexing.num_blocks(np.int64(1000), np.int32(10)) == 100


ONE = np.ones(4, np.float32)
WRONG = [
    (lambda: indexing.num_blocks(-1), ValueError, "n is -1; it must be 0 or more"),
    (lambda: indexing.num_blocks(1.0), TypeError, "n is 1.0; it must be an int"),
    (lambda: indexing.num_blocks(True), TypeError, "n is True"),
    (lambda: indexing.num_blocks(1, 0), ValueError, "threads is 0; it must be from 1 to 1024"),
    (lambda: indexing.num_blocks(1, 1025), ValueError, "threads is 1025"),
    (lambda: indexing.num_blocks(1, limit=0), ValueError, "limit is 0"),
    (lambda: indexing.thread_table(0, 4), ValueError, "grid is 0; it must be 1 or more"),
    (lambda: indexing.thread_table((2, 0), 4), ValueError, r"grid\[1\] is 0"),
    (lambda: indexing.thread_table(1, ()), ValueError, r"block is \(\); it must have 1 to 3"),
    (lambda: indexing.thread_table(1, (1, 1, 1, 1)), ValueError, "1 to 3 dimensions"),
    (lambda: indexing.thread_table("2", 4), TypeError, "grid is '2'"),
    (lambda: indexing.thread_table(1, (64, 64)), ValueError, "4096 threads; this device allows 1024"),
    (lambda: indexing.thread_table(1, (1, 1, 128)), ValueError, "at most 64 along z"),
    (lambda: indexing.thread_table((1, 65536), 1), ValueError, "at most 65535 along y"),
    (lambda: indexing.block_order(0), ValueError, "blocks is 0"),
    (lambda: indexing.grid_stride_table(-1), ValueError, "n is -1"),
    (lambda: indexing.grid_stride_table(4, 4, 0), ValueError, "blocks is 0"),
    (lambda: indexing.axpy("2", ONE, ONE), TypeError, "a is '2'"),
    (lambda: indexing.axpy(2, [1.0], ONE), TypeError, "x is a list"),
    (lambda: indexing.axpy(2, ONE.astype(int), ONE), TypeError, "x has dtype int64"),
    (lambda: indexing.axpy(2, ONE, ONE.astype(np.float64)), TypeError, "y has dtype float64; it must be float32"),
    (lambda: indexing.axpy(2, ONE.reshape(2, 2), ONE), ValueError, r"x has shape \(2, 2\)"),
    (lambda: indexing.axpy(2, ONE, ONE[:3]), ValueError, "y has 3 elements; it must have 4"),
    (lambda: indexing.axpy(2, ONE, cuda.to_device(ONE)), TypeError, "y is a device array and x is a NumPy array"),
    (lambda: indexing.axpy(2, ONE, ONE, out=ONE[:2]), ValueError, "out has 2 elements"),
    (lambda: indexing.listing(print, 1, 1), TypeError, "kernel is <built-in function print>"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
