"""`gpukit.transpose`: every variant moves every bit, and the counts of the ladder's kernels."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from layouts import view_on_device

import gpukit
from gpukit import transpose
from gpukit.backend import cuda, uint32

DTYPES = (np.int8, np.uint16, np.float16, np.float32, np.int32, np.float64, np.complex64, np.bool_, "M8[s]")


def matrix(rows, columns, dtype):
    """Random bits: NaN of every kind among them."""
    dtype = np.dtype(dtype)
    bits = np.random.default_rng([rows, columns]).integers(0, 256, (rows, columns * dtype.itemsize), np.uint8)
    return (bits % 2).view(dtype) if dtype.kind == "b" else bits.view(dtype)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def poisoned(shape, dtype):
    out = np.empty(shape, dtype)
    out.view(np.uint8)[...] = 0xAB
    return out


def fits_wide(shape, dtype):
    lanes = 2 if np.dtype(dtype).itemsize == 8 else 4
    return all(n % lanes == 0 for n in shape)


sizes = st.one_of(st.integers(0, 140), st.sampled_from([0, 1, 31, 32, 33, 64, 127, 128, 251, 293, 300]))


@settings(max_examples=80)
@given(rows=sizes, columns=sizes, variant=st.sampled_from(("auto", *transpose.VARIANTS)), dtype=st.sampled_from(DTYPES))
@example(rows=300, columns=1, variant="tall", dtype=np.float32)
@example(rows=0, columns=9, variant="auto", dtype=np.float64)
@example(rows=9, columns=0, variant="wide", dtype=np.float64)
def test_any_shape_and_type(rows, columns, variant, dtype):
    if variant == "wide" and not fits_wide((rows, columns), dtype):
        rows, columns = 4 * (rows // 4), 4 * (columns // 4)
    a = matrix(rows, columns, dtype)
    out = poisoned((columns, rows), dtype)
    assert transpose.transpose(a, variant, out=out) is out
    assert same_bits(out, a.T.copy())


@pytest.mark.parametrize("itemsize", transpose.ITEMSIZES)
@pytest.mark.parametrize("shape", [(100, 68), (64, 64), (4, 132)])
def test_kernels_of_one_shape_without_error(itemsize, shape):
    dtype = np.dtype(f"u{itemsize}")
    a = matrix(*shape, dtype)
    for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
        if variant == "wide_copy" and itemsize == 8:
            continue
        expected = a if variant in transpose.CONTROLS else a.T.copy()
        out = poisoned(expected.shape, dtype)
        trace = gpukit.trace(transpose.configure(variant, shape, dtype), a, out)
        assert same_bits(out, expected), variant
        assert trace.findings == [], variant
        assert not any(operations.fp64 or operations.fp64_conversions for operations in trace.operations), variant


def test_tiles_of_other_sizes():
    a = matrix(200, 332, np.uint32)
    kernels = [(transpose.wide(uint32, 32), 32, (8, 8))]
    kernels += [(transpose.tall(uint32, size, rows), size, (32, rows)) for size in (32, 64) for rows in (4, 16)]
    for kernel, size, block in kernels:
        out = poisoned((332, 200), np.uint32)
        kernel[(-(-332 // size), -(-200 // size)), block](a, out)
        assert same_bits(out, a.T.copy())


def test_inputs_of_any_layout(monkeypatch):
    monkeypatch.setattr(transpose, "FEW_THIN", 2000)
    a = matrix(36, 52, np.float32)
    for x in (np.asfortranarray(a), a[::2, ::-1], a.T[1:]):
        assert same_bits(transpose.transpose(x), x.T.copy())
    on_device = cuda.to_device(a)
    assert same_bits(transpose.transpose(on_device[:, 1:]).copy_to_host(), a[:, 1:].T.copy())
    shapes = [(36, 52, 0), (1, 70_001, 0), (300, 7, 3), (7, 300, 3), (300, 40, 1), (70_001, 1, 0), (70_001, 1, 2)]
    for rows, columns, gap in shapes:
        base = matrix(rows, columns + gap, np.float32)
        memory = cuda.to_device(base)
        whole = base[:, :columns]
        again = np.broadcast_to(whole[0], whole.shape)
        for x in (whole, whole.T, whole[::2], whole[:, ::2], whole[:, ::-1], again, again.T):
            view = view_on_device(x, base, memory)
            assert same_bits(transpose.transpose(view).copy_to_host(), x.T.copy())
    on_device = cuda.to_device(a.reshape(-1))[1:].reshape(1871, 1)
    assert same_bits(transpose.transpose(on_device).copy_to_host(), a.reshape(-1)[1:].reshape(1, 1871))


@pytest.mark.parametrize("dtype", [np.complex128, "V16"])
def test_elements_of_16_bytes(dtype, monkeypatch):
    monkeypatch.setattr(transpose, "MAX_BLOCKS", 2)
    monkeypatch.setattr(transpose, "FEW", 500)
    for rows, columns in ((1, 1), (1, 70), (70, 3), (300, 3), (25, 33), (100, 65)):
        base = matrix(rows + 1, columns + 3, np.complex128).view(dtype)
        memory = cuda.to_device(base)
        for x in (base[:rows, :columns], base[1:, 2:-1], base[:, ::-1], base[::-1], base.T, base[::2, ::3]):
            assert same_bits(transpose.transpose(x), x.T.copy())
            assert same_bits(transpose.transpose(view_on_device(x, base, memory)).copy_to_host(), x.T.copy())


def test_pairs_use_different_banks():
    x, out = matrix(40, 70, np.uint64), poisoned((35, 80), np.uint64)
    trace = gpukit.trace(transpose.tall_pairs[(2, 2), (32, 8)], x.reshape(-1), out.reshape(-1), 40, 35, 70, 2, 0)
    expected = x.view(np.complex128).T.copy().view(np.uint64)
    assert trace.findings == [] and same_bits(out, expected) and trace.total("shared").bank_conflicts == 0
    assert trace.total("global").sectors <= 1.1 * trace.total("global").ideal_sectors


def test_device_in_device_out():
    a = matrix(64, 132, np.float32)
    stream, on_device = cuda.stream(), cuda.to_device(a)
    result = transpose.transpose(on_device, stream=stream)
    stream.synchronize()
    assert cuda.is_cuda_array(result) and same_bits(result.copy_to_host(), a.T.copy())
    out = cuda.to_device(poisoned((132, 64), np.float32))
    assert transpose.transpose(on_device, "tiled", out=out) is out
    assert same_bits(out.copy_to_host(), a.T.copy())
    # 4 bytes after an aligned address: chunks of 16 bytes would stop a GPU
    shifted = cuda.to_device(np.append(np.float32(0), a.reshape(-1)))[1:].reshape(64, 132)
    assert same_bits(transpose.transpose(shifted).copy_to_host(), a.T.copy())
    with pytest.raises(ValueError, match="'wide' and the memory of a is not aligned to 16 bytes"):
        transpose.transpose(shifted, "wide")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_arrays_of_other_libraries(name):
    library = pytest.importorskip(name)
    a = matrix(63, 132, np.int32)
    x = library.asarray(a, device="cuda") if name == "torch" else library.asarray(a)
    result = transpose.transpose(x)
    assert type(result) is type(x) and same_bits(cuda.as_cuda_array(result).copy_to_host(), a.T.copy())
    out = library.zeros_like(result)
    assert transpose.transpose(x, out=out) is out and bool((out == result).all())


def test_more_blocks_than_one_launch_may_have(monkeypatch):
    monkeypatch.setattr(transpose, "MAX_BLOCKS", 2)
    a = matrix(200, 36, np.float32)
    for variant in ("auto", "naive", "tall", "wide"):
        assert same_bits(transpose.transpose(a, variant), a.T.copy())


def test_counts_of_the_ladder():
    """Sectors over the fewest possible, and shared wavefronts over the fewest: (global, store, load)."""
    a = matrix(128, 128, np.float32)
    counts = {}
    for variant in (*transpose.CONTROLS, *transpose.VARIANTS):
        trace = gpukit.trace(transpose.configure(variant, a.shape, np.float32), a, poisoned(a.shape, np.float32))
        store, load, memory = trace.total("shared", "store"), trace.total("shared", "load"), trace.total("global")
        shared = (t.wavefronts / t.ideal_wavefronts if t.requests else None for t in (store, load))
        counts[variant] = (memory.sectors / memory.ideal_sectors, *shared)
    clean = ("copy_shared", "tiled_padded", "tiled_swizzled", "tall", "wide", "thin")
    assert counts == {
        **dict.fromkeys(("copy", "wide_copy"), (1, None, None)),
        **dict.fromkeys(("naive", "naive_gather"), (4.5, None, None)),
        "tiled": (1, 1, 32),
        **dict.fromkeys(clean, (1, 1, 1)),
    }


A = np.ones((4, 3), np.float32)
WRONG = [
    (lambda: transpose.transpose([1.0]), TypeError, "a is a list"),
    (lambda: transpose.transpose(A[0]), ValueError, r"a has shape \(3,\); it must have 2 dimensions"),
    (
        lambda: transpose.transpose(A.astype(np.complex128), "tall"),
        ValueError,
        "variant is 'tall' and a has dtype complex",
    ),
    (lambda: transpose.transpose(A.astype("S3")), TypeError, r"a has dtype \|S3"),
    (lambda: transpose.transpose(A.astype(object)), TypeError, "a has dtype object"),
    (lambda: transpose.transpose(A, "copy"), ValueError, "variant is 'copy'; it must be 'auto' or one of naive"),
    (lambda: transpose.transpose(A, "wide"), ValueError, r"a has shape \(4, 3\); both must be multiples of 4"),
    (
        lambda: transpose.transpose(A, out=np.ones((4, 3), np.float32)),
        ValueError,
        r"out has shape \(4, 3\); it must be",
    ),
    (lambda: transpose.transpose(A, out=np.ones((3, 4))), TypeError, "out has dtype float64; it must be float32"),
    (lambda: transpose.transpose(A, out=cuda.to_device(A)), TypeError, "out is a device array and a is a NumPy array"),
    (lambda: transpose.configure("fast", (4, 4)), ValueError, "variant is 'fast'; it must be one of copy"),
    (lambda: transpose.configure("copy", (4, 0)), ValueError, r"shape\[1\] is 0"),
    (lambda: transpose.configure("wide", (4, 6)), ValueError, r"shape is \(4, 6\); both must be multiples of 4"),
    (lambda: transpose.configure("copy", (4, 4), np.complex64), TypeError, "dtype is complex64"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_in_place_is_refused():
    a = cuda.to_device(np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match="out shares memory with a"):
        transpose.transpose(a, out=a)


def test_a_variant_is_the_name_of_a_function():
    for name, make in (transpose.CONTROLS | transpose.VARIANTS).items():
        assert getattr(make, "py_func", make).__name__ == name and getattr(transpose, name) is make
