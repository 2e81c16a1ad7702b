"""`gpukit.matmul`: every variant against float64, and the counts that the lessons on bank conflicts rest on."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from products import check, operands, poisoned

import gpukit
from gpukit import matmul
from gpukit.backend import cuda

ALL = [(v, tile, dtype) for v in matmul.SIMPLE for tile in matmul.TILES for dtype in matmul.DTYPES]

sizes = st.one_of(st.integers(0, 70), st.sampled_from([0, 1, 31, 32, 33, 64, 97, 127, 128, 257, 293, 300]))


@settings(max_examples=40)
@given(m=sizes, n=sizes, k=sizes, which=st.sampled_from(ALL), pad=st.integers(0, 3), times=st.integers(1, 3))
@example(m=300, n=1, k=293, which=("dynamic_padded", 16, np.float32), pad=1, times=5)
@example(m=0, n=5, k=3, which=("tiled", 16, np.float32), pad=0, times=1)
@example(m=5, n=0, k=3, which=("dynamic", 16, np.float64), pad=0, times=1)
@example(m=5, n=7, k=0, which=("tiled_swizzled", 32, np.float64), pad=0, times=1)
def test_any_shape(m, n, k, which, pad, times):
    variant, tile, dtype = which
    options = {"pad": pad} if variant.endswith("padded") else {}
    if variant.startswith("dynamic"):
        options["depth"] = tile * times
    a, b = operands((m, k), (k, n), dtype=dtype)
    out = poisoned(m, n, dtype=dtype)
    assert matmul.matmul(a, b, variant, out=out, tile=tile, **options) is out
    check(out, a, b)


@pytest.mark.parametrize(("variant", "tile", "dtype"), ALL)
def test_every_kernel_with_ragged_edges_and_no_error(variant, tile, dtype):
    a, b = operands((45, 53), (53, 37), dtype=dtype)
    out = poisoned(45, 37, dtype=dtype)
    launch, further = matmul.configure(variant, (45, 37), dtype, tile=tile)
    trace = gpukit.trace(launch, a, b, out, *further)
    check(out, a, b)
    assert trace.findings == []
    in_float64 = sum(operations.fp64 + operations.fp64_conversions for operations in trace.operations)
    assert (in_float64 > 0) == (dtype == np.float64 or variant == "naive_float64")
    check(matmul.matmul(a, b, variant, tile=tile), a, b)


def test_more_than_48_kb_of_shared_memory():
    a, b = operands((40, 700), (700, 33), dtype=np.float64)
    for variant in ("dynamic", "dynamic_conflict", "dynamic_padded"):
        check(matmul.matmul(a, b, variant, tile=32, depth=256), a, b)
    launch, further = matmul.configure("dynamic", (40, 33), np.float64, tile=32, depth=256)
    assert gpukit.trace(launch, a, b, poisoned(40, 33, dtype=np.float64), *further).shared_bytes == 2**17


def test_inputs_of_any_layout():
    a, b = operands((41, 50), (50, 38))
    wide = np.repeat(a, 2, axis=1)
    for x in (np.asfortranarray(a), a.T.copy().T, wide[:, ::2], np.ascontiguousarray(a[::-1])[::-1]):
        assert not x.flags.c_contiguous
        check(matmul.matmul(x, b), a, b)
        on_device = cuda.to_device(wide)[:, ::2] if x.base is wide else cuda.to_device(np.asfortranarray(a))
        check(matmul.matmul(on_device, cuda.to_device(b)).copy_to_host(), a, b)
    check(matmul.matmul(b.T, a.T), np.ascontiguousarray(b.T), np.ascontiguousarray(a.T))
    a.flags.writeable = False
    check(matmul.matmul(a, b), a, b)


def test_device_in_device_out():
    a, b = operands((70, 20), (20, 33))
    stream = cuda.stream()
    a_device, b_device = cuda.to_device(a), cuda.to_device(b)
    result = matmul.matmul(a_device, b_device, stream=stream)
    stream.synchronize()
    assert cuda.is_cuda_array(result)
    check(result.copy_to_host(), a, b)
    out = cuda.to_device(poisoned(70, 33))
    assert matmul.matmul(a_device, b_device, "dynamic", out=out) is out
    check(out.copy_to_host(), a, b)
    scattered = cuda.to_device(poisoned(70, 66))
    assert matmul.matmul(a_device, b_device, out=scattered[:, ::2]).shape == (70, 33)
    check(np.ascontiguousarray(scattered.copy_to_host()[:, ::2]), a, b)
    assert np.isnan(scattered.copy_to_host()[:, 1::2]).all()
    assert matmul.matmul(a, b, stream=stream).flags.c_contiguous
    host = poisoned(33, 70).T
    check(matmul.matmul(a, b, out=host), a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_arrays_of_other_libraries(name):
    library = pytest.importorskip(name)
    a, b = operands((65, 45), (45, 30))
    x, y = (library.asarray(v, device="cuda") if name == "torch" else library.asarray(v) for v in (a, b))
    result = matmul.matmul(x, y)
    assert type(result) is type(x)
    check(cuda.as_cuda_array(result).copy_to_host(), a, b)
    result = matmul.matmul(y.T, x.T)
    check(np.ascontiguousarray(cuda.as_cuda_array(result).copy_to_host().T), a, b)
    out = library.zeros_like(result)
    assert matmul.matmul(y.T, x.T, out=out) is out
    assert bool((out == result).all())


@pytest.mark.parametrize("variant", ["naive", "tiled", "tiled_padded", "dynamic_conflict"])
def test_more_blocks_than_one_launch_may_have(monkeypatch, variant):
    monkeypatch.setattr(matmul.api, "MAX_BLOCKS", 2)
    a, b = operands((37, 11), (11, 45))
    check(matmul.matmul(a, b, variant, tile=8, out=poisoned(37, 45)), a, b)


@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 4)), ((2, 3, 5), (5,)), ((5,), (2, 5, 4)), ((3, 0), (0,)), ((0,), (0,))],
    ids=str,
)
def test_one_axis_is_a_row_or_a_column(left, right):
    a, b = operands(left, right)
    exact = a.astype(np.float64) @ b
    result = matmul.matmul(a, b)
    assert type(result) is type(a @ b)
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)
    if a.size:
        spread = cuda.to_device(np.repeat(b, 2, axis=0))[::2]
        for _ in range(2):  # planned, replayed
            np.testing.assert_allclose(matmul.matmul(cuda.to_device(a), spread).copy_to_host(), exact, 1e-5, 1e-5)
        out = np.ones_like(exact, np.float32)
        assert matmul.matmul(a, b, alpha=2, beta=3, out=out) is out
        np.testing.assert_allclose(out, 2 * exact + 3, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", matmul.DTYPES)
def test_on_cpu(dtype):
    for m, n, k in ((0, 3, 2), (3, 2, 0), (1, 1, 1), (31, 17, 53)):
        a, b = operands((m, k), (k, n), dtype=dtype)
        check(matmul.on_cpu(a, b), a, b)


# -- counts: those that the chapter on bank conflicts tells ----------------------------------------


def wavefronts(variant, tile, dtype=np.float32, **options):
    """(store, load) wavefronts over the fewest possible, for one block of full tiles."""
    a, b = operands((tile, tile), (tile, tile), dtype=dtype)
    launch, further = matmul.configure(variant, (tile, tile), dtype, tile=tile, **options)
    trace = gpukit.trace(launch, a, b, poisoned(tile, tile, dtype=dtype), *further)
    totals = trace.total("shared", "store"), trace.total("shared", "load")
    return tuple(total.wavefronts / total.ideal_wavefronts for total in totals)


def test_what_a_pad_does_depends_on_the_width_of_the_tile():
    assert wavefronts("tiled_conflict", 16) == (8, 4.5)
    assert wavefronts("tiled_padded", 16, pad=1) == (2, 1), "the documents' pad"
    assert wavefronts("tiled_padded", 16, pad=2) == (1, 1)
    assert wavefronts("tiled_conflict", 32) == (32, 16.5)
    assert wavefronts("tiled_padded", 32, pad=1) == (1, 1)
    assert wavefronts("tiled_padded", 32, pad=2)[0] == 2
    assert wavefronts("tiled_padded", 8, pad=4) == (1, 1)
    assert wavefronts("tiled_padded", 8, pad=1)[0] == 2


@pytest.mark.parametrize("tile", matmul.TILES)
@pytest.mark.parametrize("dtype", matmul.DTYPES)
def test_right_pad_and_swizzle_have_no_conflict(tile, dtype):
    clean = {"tiled_padded": {}, "tiled_swizzled": {}, "dynamic_padded": {}}
    for variant, options in clean.items():
        assert wavefronts(variant, tile, dtype, **options) == (1, 1), variant
    assert wavefronts("dynamic_padded", tile, dtype, depth=2 * tile) == (1, 1)
    pads = [p for p in range(4) if wavefronts("tiled_padded", tile, dtype, pad=p) == (1, 1)]
    assert min(pads, default=4) == matmul.right_pad(dtype, tile)
    for static in ("tiled", "tiled_conflict"):
        assert wavefronts(static, tile, dtype) == wavefronts(static.replace("tiled", "dynamic"), tile, dtype)
    assert wavefronts("tiled", tile, dtype)[0] == 1


def test_the_axis_that_threadidx_x_walks_decides_the_sectors():
    a, b = operands((64, 64), (64, 64))
    loads = {}
    for variant in ("naive", "naive_uncoalesced", "tiled", "tiled_conflict"):
        launch, further = matmul.configure(variant, (64, 64))
        total = gpukit.trace(launch, a, b, poisoned(64, 64), *further).total("global", "load")
        loads[variant] = total.sectors / total.requests
    assert loads == {"naive": 2, "naive_uncoalesced": 8.5, "tiled": 4, "tiled_conflict": 16}


# -- bad input -------------------------------------------------------------------------------------

A, B = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)


def on_device(array):
    return cuda.to_device(np.ascontiguousarray(array))


def overlapping():
    memory = cuda.to_device(np.ones((8, 3), np.float32))
    return matmul.matmul(memory[:3, :3], memory[3:6], out=memory[1:4])


WRONG = [
    (lambda: matmul.matmul([[1.0]], B), TypeError, "a is a list"),
    (lambda: matmul.matmul(A, B.astype(int)), TypeError, "b has dtype int64; it must be float32 or float64"),
    (lambda: matmul.matmul(A, B.astype(np.float64)), TypeError, "b has dtype float64; it must be float32, as a is"),
    (lambda: matmul.matmul(A[0, 0], B), TypeError, "a is a float"),
    (lambda: matmul.matmul(A, A[0, 1:]), ValueError, r"a has shape \(4, 3\) and b \(2,\); b must have as many rows"),
    (lambda: matmul.steps("fast", A[0], B, B), ValueError, r"a has shape \(3,\); it must have 2 dimensions or more"),
    (lambda: matmul.matmul(A, A), ValueError, r"a has shape \(4, 3\) and b \(4, 3\); b must have as many rows"),
    (lambda: matmul.matmul(A, on_device(B)), TypeError, "b is a device array and a is a NumPy array"),
    (lambda: matmul.matmul(A, B, out=on_device(A)), TypeError, "out is a device array and a is a NumPy array"),
    (lambda: matmul.matmul(A, B, out=np.ones((5, 4), np.float32)), ValueError, r"out has shape \(5, 4\); it must be"),
    (lambda: matmul.matmul(A, B, out=np.ones((4, 5))), TypeError, "out has dtype float64; it must be float32"),
    (overlapping, ValueError, "out shares memory with a"),
    (lambda: matmul.matmul(A, B, "fastest"), ValueError, "variant is 'fastest'; it must be 'auto' or one of naive"),
    (lambda: matmul.matmul(A, B, "tiled", tile=12), ValueError, "tile is 12; it must be 8, 16 or 32"),
    (lambda: matmul.matmul(A, B, "tiled", tile="16"), TypeError, "tile is '16'"),
    (lambda: matmul.matmul(A, B, "tiled", pad=1), ValueError, "pad is 1; variant 'tiled' has none"),
    (lambda: matmul.matmul(A, B, "tiled_padded", pad=9), ValueError, "pad is 9; it must be from 0 to 8"),
    (lambda: matmul.matmul(A, B, "tiled", depth=32), ValueError, "depth is 32; it is for the dynamic variants"),
    (lambda: matmul.matmul(A, B, "dynamic", depth=24), ValueError, "depth is 24; it must be a multiple of tile, 16"),
    (lambda: matmul.matmul(A, B, "dynamic", depth=16000), ValueError, "2,048,000 bytes of shared memory per block"),
    (lambda: matmul.configure("tiled", (4, 5), int), TypeError, "dtype is int64"),
    (lambda: matmul.configure("tiled", (4, 0)), ValueError, r"shape\[1\] is 0"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# -- names -----------------------------------------------------------------------------------------


def test_a_variant_is_the_name_of_a_function():
    for name, make in matmul.VARIANTS.items():
        assert getattr(make, "py_func", make).__name__ == name and getattr(matmul, name) is make
    assert tuple(matmul.VARIANTS) == matmul.SIMPLE + matmul.LADDER


def test_former_names_of_kernels_and_variants():
    assert matmul.swapped is matmul.tiled_conflict and matmul.swizzled is matmul.tiled_swizzled
    assert matmul.dynamic_swapped is matmul.dynamic_conflict and matmul.padded is matmul.transposed_padded
    a, b = operands((128, 8), (8, 128))
    check(matmul.matmul(a, b, "padded"), a, b)
