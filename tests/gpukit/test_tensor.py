"""`gpukit.tensor` against NumPy: which lane holds what, and products of any size by every rung."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

import gpukit
from gpukit import cuda, on_gpu, plot, tensor
from gpukit.backend import types, uint8, uint64
from gpukit.intrinsics import (
    copy_tensor,
    fence_barrier_init,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    mma,
    tensor_map,
    view_at,
)
from gpukit.tensor import lesson
from warpstep.machine.tensor_maps import TensorMap
from warpstep.report.axes import FAINT


@pytest.mark.parametrize("dtype", lesson.SHAPES)
def test_every_element_has_its_lane(dtype):
    for shape in lesson.SHAPES[dtype]:
        for operand, size in zip("abc", ((shape[0], shape[2]), shape[2:0:-1], shape[:2]), strict=True):
            held = tensor.fragment_map(shape, dtype, operand)
            assert held.shape == size and len({*zip(held.rows.flat, held.columns.flat, strict=True)}) == held.rows.size
            assert np.array_equal(held.lanes[held.rows[7], held.columns[7]], np.full(held.rows.shape[1], 7))
            assert np.array_equal(held.elements[held.rows[7], held.columns[7]], range(held.rows.shape[1]))


def test_an_instruction_multiplies_by_the_map():
    """A kernel that loads by the tables, on the GPU or the emulator."""
    a_map, b_map, c_map = (tensor.fragment_map((16, 8, 8), "tf32", operand) for operand in "abc")

    @cuda.jit
    def multiply(a, b, ra, ca, rb, cb, rc, cc, out):
        n = cuda.threadIdx.x
        left = a[ra[n, 0], ca[n, 0]], a[ra[n, 1], ca[n, 1]], a[ra[n, 2], ca[n, 2]], a[ra[n, 3], ca[n, 3]]
        right = b[rb[n, 0], cb[n, 0]], b[rb[n, 1], cb[n, 1]]
        zero = np.float32(0)
        sums = mma(left, right, (zero, zero, zero, zero))
        for i in range(4):
            out[rc[n, i], cc[n, i]] = sums[i]

    random = np.random.default_rng(2)
    a, b = (random.integers(-9, 10, shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
    out, tables = np.full((16, 8), np.nan, np.float32), [t for m in (a_map, b_map, c_map) for t in (m.rows, m.columns)]
    multiply[1, 32](a, b, *tables, out)
    assert np.array_equal(out, a @ b)


def test_what_there_is_no_map_of():
    with pytest.raises(ValueError, match=r"shape is \(16, 8, 4\); for float16 it must be one of"):
        tensor.fragment_map((16, 8, 4), "float16", "a")
    with pytest.raises(ValueError, match="operand"):
        tensor.fragment_map((16, 8, 16), "float16", "d")
    with pytest.raises(ValueError, match="dtype"):
        tensor.fragment_map((16, 8, 16), np.float32, "a")


def test_the_drawing_has_a_number_for_each_register():
    axes = plot.fragment(tensor.fragment_map((16, 8, 16), "float16", "a"), lane=5)
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit() and text.get_color() != FAINT]
    assert sorted(map(int, numbers)) == sorted(4 * [*range(32)])


def test_rounding_is_that_of_the_formats():
    x = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    for dtype, bits in (("bfloat16", 8), ("tf32", 11), ("float16", 11)):
        fraction, exponent = np.frexp(x.astype(np.float64))
        expected = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
        normal = abs(x) > 1e-4  # float16 has fewer bits below
        assert np.array_equal(tensor.rounded(x, dtype)[normal], expected[normal])
    special = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)
    assert np.array_equal(tensor.rounded(special, "bfloat16"), special, equal_nan=True)
    assert np.isinf(tensor.rounded(7e4, "float16")) and np.isfinite(tensor.rounded(7e4, "bfloat16"))


def matrices(m, n, k, seed=4):
    random = np.random.default_rng([seed, m, n, k])
    return (random.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))


@pytest.mark.parametrize("variant", tensor.VARIANTS)
def test_every_rung_multiplies(variant):
    """Ragged sizes, one element, several tiles; traced without a finding."""
    random, limits = np.random.default_rng(list(variant.encode())), [150, *[1000] * 9] if on_gpu() else [150]
    for m, n, k in [(1, 1, 1), *(random.integers(1, limit, 3) for limit in limits)]:
        a, b = matrices(m, n, k)
        exact, magnitude = a.astype(np.float64) @ b, abs(a.astype(np.float64)) @ abs(b)
        got = tensor.multiply_by(a, b, variant)
        assert np.all(abs(got - exact) <= 1e-6 * k**0.5 * magnitude + 1e-7)
        if max(m, n, k) > 150:
            continue
        out = cuda.to_device(np.full((m, n), np.nan, np.float32))
        for launch, arguments in tensor.steps(variant, cuda.to_device(a), cuda.to_device(b), out):
            assert gpukit.trace(launch, *arguments).findings == []
        assert np.all(abs(out.copy_to_host() - exact) <= 1e-6 * k**0.5 * magnitude + 1e-7)


@pytest.mark.parametrize(("left_out", "kind"), [("wait_for_copy", "uninitialised-read"), ("wait_for_product", "race")])
def test_a_missing_wait_is_found(left_out, kind):
    a, b = matrices(64, 64, 64)
    maps, out = [tensor_map(cuda.to_device(matrix), (64, 64)) for matrix in (a, b)], np.zeros((64, 64), np.float32)
    assert gpukit.trace(lesson.make_product()[1, 128], *maps, out).findings == []
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=0, atol=1e-4)
    found = gpukit.trace(lesson.make_product(**{left_out: False})[1, 128], *maps, out).findings
    assert kind in {finding.kind for finding in found}


@cuda.jit
def copy_twice(a, out):
    full = cuda.shared.array(1, uint64)
    tile = cuda.shared.array((64, 64), np.float16, alignment=1024)
    rest = view_at(cuda.shared.array(0, uint8, alignment=1024), 0, (64, 64), types.float16)
    if cuda.threadIdx.x == 0:
        mbarrier_init(full, 0, 1)
        fence_barrier_init()
        mbarrier_expect(full, 0, 2 * 64 * 64 * 2)
        copy_tensor(tile, (0, 0), a, (0, 0), full, 0)
        copy_tensor(rest, (0, 0), a, (0, 0), full, 0)
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    for i in range(cuda.threadIdx.x, 4096, 32):
        out[0, i], out[1, i] = tile[i // 64, i % 64], rest[i // 64, i % 64]


class _OnGpu(np.ndarray):
    """Memory of the host in the place of a GPU's."""

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__

    def copy_to_host(self):
        return np.array(self)

    def copy_to_device(self, values):
        self[...] = values


@pytest.mark.skipif(on_gpu(), reason="a GPU has its own")
def test_a_trace_brings_the_tensors_of_a_gpu(monkeypatch):
    def as_cuda_array(x):
        found = x.__cuda_array_interface__
        count = int(np.prod(found["shape"])) * np.dtype(found["typestr"]).itemsize
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(found["data"][0]))
        return memory.view(found["typestr"]).reshape(found["shape"]).view(_OnGpu)

    there = SimpleNamespace(as_cuda_array=as_cuda_array, is_available=lambda: False)
    monkeypatch.setattr("warpstep.tracing.gpu.cuda", there)
    a = np.arange(4096, dtype=np.float32).astype(np.float16).reshape(64, 64).view(_OnGpu)
    out, map = np.zeros((2, 4096), np.float16), np.zeros(128, np.uint8).view(_OnGpu)
    map.tensor = a
    map.described = TensorMap(a.ctypes.data, "<f2", (64, 64), (128, 2), (64, 64), 128)
    assert gpukit.trace(copy_twice[1, 32, 0, 8192], map, out).findings == []
    assert np.array_equal(np.sort(out[0]), a.reshape(-1)) and not np.asarray(map).any()


def test_shared_arrays_start_where_their_alignment_says():
    """A swizzle is one of addresses: after a barrier of 8 bytes, both tiles still begin at a multiple of 1,024."""
    a = np.arange(4096, dtype=np.float32).astype(np.float16).reshape(64, 64)
    out = np.zeros((2, 4096), np.float16)
    copy_twice[1, 32, 0, 8192](tensor_map(cuda.to_device(a), (64, 64)), out)
    rows, places = np.divmod(np.arange(4096), 64)
    swizzled = a[rows, places ^ rows % 8 * 8]
    assert np.array_equal(out[0], swizzled) and np.array_equal(out[1], swizzled)


def test_what_cannot_be_multiplied():
    a, b, out = (cuda.device_array((4, 4), dtype) for dtype in (np.float16, np.float16, np.float32))
    with pytest.raises(ValueError, match="variant"):
        tensor.steps("fastest", a, b, out)
    with pytest.raises(TypeError, match="a has dtype float32; it must be float16"):
        tensor.steps("one_warp", out, b, out)
    with pytest.raises(ValueError, match="are no product"):
        tensor.steps("one_warp", a, cuda.device_array((3, 4), np.float16), out)
