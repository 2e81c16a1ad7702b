"""The emulator's host side: warpstep.cuda, warpstep.device and warpstep.api.

Where numba-cuda can be asked without a GPU it is the reference: the layout of its DeviceNDArray, its type inference,
its signatures. NumPy is the reference for contents.
"""

import asyncio
import gc
import inspect
import os
import pickle
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import hypothesis.extra.numpy as hnp
import numba.cuda
import numpy as np
import pytest
from cuda.bindings.driver import CUdevice_attribute, CUresult
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.cuda.core.errors import NumbaPerformanceWarning, TypingError
from numba.cuda.cudadrv import devicearray as numba_arrays
from numba.cuda.cudadrv.driver import CudaAPIError
from numba.cuda.cudadrv.error import CudaSupportError

import gpukit
import warpstep.cuda as module_alias
from warpstep import UnsupportedError, cuda, set_device, use_device
from warpstep.api import allocations, arrays, host, streams
from warpstep.compiler.frontend import infer
from warpstep.cuda import grid as grid_alias
from warpstep.device import DEVICES, current

RECORD = np.dtype([("id", np.int32), ("xy", np.float64, (2,)), ("inner", [("flag", np.bool_)])])
DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[s]", RECORD]


@st.composite
def host_arrays(draw, min_side=0, min_dims=0, dtypes=DTYPES, broadcast=True):
    """Contiguous arrays of either order, with distinct bytes, some of them broadcast along an axis."""
    shape = draw(hnp.array_shapes(min_dims=min_dims, max_dims=3, min_side=min_side, max_side=5) | st.just((2,)))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    size = int(np.prod(shape))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, size * dtype.itemsize).astype(np.uint8)
    array = raw.view(dtype).reshape(shape, order=draw(st.sampled_from("CF")))
    if broadcast and shape and draw(st.integers(0, 4)) == 0:
        array = np.broadcast_to(array, (3, *shape))
    return array


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# -- round trips and slices --


@given(host_arrays())
def test_to_device_and_back(array):
    before = array.copy()
    d = cuda.to_device(array)
    assert (d.shape, d.dtype, d.size, d.nbytes, d.ndim) == (
        array.shape,
        array.dtype,
        array.size,
        array.nbytes,
        array.ndim,
    )
    if array.flags.writeable:
        array[...] = np.zeros((), array.dtype)
    back = d.copy_to_host()
    assert same_bytes(back, before)
    assert d.strides == array.strides
    if array.size:
        assert back.strides == array.strides
    d.copy_to_host(back)

    other = cuda.device_array_like(before)
    other.copy_to_device(before)
    assert same_bytes(np.asarray(other), before)
    third = cuda.to_device(other.copy_to_host(), to=cuda.device_array(before.shape, before.dtype, order="F"))
    if before.size:
        out = np.zeros(before.shape, before.dtype, order="F")
        assert third.copy_to_host(out) is out
        assert same_bytes(out, before)


def index_of(draw, length, negative_steps):
    bound = st.none() | st.integers(-length - 1, length + 1)
    steps = [1, 2, 3, -1, -2] if negative_steps else [1, 2, 3]
    slices = st.builds(slice, bound, bound, st.sampled_from([None, *steps]))
    return draw(slices | st.integers(-length, length - 1) if length else slices)


@given(st.data(), host_arrays(min_side=1, min_dims=1, dtypes=["i4", "f8", "?", "c8"]))
def test_indexing_is_that_of_numpy(data, array):
    array = np.array(array, copy=True, order="K")
    d = cuda.to_device(array)
    count = data.draw(st.integers(1, array.ndim))
    index = tuple(index_of(data.draw, n, negative_steps=True) for n in array.shape[:count])
    expected = array[index]
    found = d[index]
    if np.ndim(expected) == 0:
        assert type(found) is type(expected)
        assert found == expected
    else:
        assert same_bytes(found.host, np.ascontiguousarray(expected))
        assert found.strides == expected.strides
        assert found.allocation is d.allocation
    value = np.ones(np.shape(expected)[-1:], array.dtype)
    if data.draw(st.booleans()):
        value = cuda.to_device(value)
    d[index] = value
    array[index] = 1
    assert same_bytes(d.copy_to_host(), array)


# -- numba-cuda's own DeviceNDArray as the reference --


class Pointer:
    """Stands for device memory, so that numba-cuda's arrays can be laid out without a driver."""

    def __init__(self, start=0):
        self.start = start

    def view(self, start, stop=None):
        return Pointer(self.start + start)


def numba_step(array, step):
    name, args = step
    return array._do_getitem(args) if name == "getitem" else getattr(array, name)(*args)


def our_step(array, step):
    name, args = step
    return array.getitem(args) if name == "getitem" else getattr(array, name)(*args)


def layout(array, start):
    strides = [stride for stride, extent in zip(array.strides, array.shape, strict=True) if extent > 1]
    return array.shape, strides, array.dtype, array.size, array.nbytes, array.flags, array._numba_type_, start


@st.composite
def steps(draw, array):
    kind = draw(st.sampled_from(["getitem", "getitem", "reshape", "ravel", "squeeze", "view", "split"]))
    if kind == "getitem":
        count = draw(st.integers(0, array.ndim + 1))
        extents = (*array.shape, 1)[:count]
        return kind, tuple(index_of(draw, n, negative_steps=False) for n in extents)
    if kind == "reshape":
        divisors = [n for n in range(1, array.size + 1) if array.size % n == 0]
        first = draw(st.sampled_from(divisors))
        shapes = [(array.size,), (first, array.size // first), (-1, first), (array.size + 1,), (1, *array.shape)]
        return kind, draw(st.sampled_from(shapes))
    if kind == "squeeze":
        return kind, draw(st.sampled_from([(), (0,)]))
    if kind == "view":
        return kind, (draw(st.sampled_from(["u1", "i4", "f8"])),)
    return kind, draw(st.sampled_from([(), ("F",)])) if kind == "ravel" else (draw(st.integers(1, 4)),)


# Without broadcast arrays: numba-cuda takes a slice along a broadcast axis for one element.
@settings(max_examples=300)
@given(st.data(), host_arrays(min_side=1, min_dims=1, dtypes=["i4", "f8", "u1"], broadcast=False))
def test_views_are_laid_out_as_numba_lays_them_out(data, array):
    theirs = numba_arrays.DeviceNDArray(array.shape, array.strides, array.dtype, gpu_data=Pointer())
    ours = cuda.to_device(array)
    first = ours.gpu_data.offset
    for _ in range(data.draw(st.integers(1, 3))):
        step = data.draw(steps(ours))
        try:
            expected = numba_step(theirs, step)
            expected = list(expected)[-1] if step[0] == "split" else expected
        except CudaSupportError:  # it reads an element, or makes an empty array, which takes the driver
            found = our_step(ours, step)
            assert isinstance(found, np.generic) or found.size == 0
            return
        except Exception as error:
            with pytest.raises(type(error)):
                list(our_step(ours, step))
            return
        found = our_step(ours, step)
        found = list(found)[-1] if step[0] == "split" else found
        if expected.size == 0:  # on a GPU machine, numba allocates an empty array anew
            assert found.shape == expected.shape
            return
        assert layout(found, found.gpu_data.offset - first) == layout(expected, expected.gpu_data.start)
        theirs, ours = expected, found


@pytest.mark.parametrize("name", sorted(host.__all__))
def test_host_functions_have_numbas_parameters(name):
    if not hasattr(numba.cuda, name):
        pytest.skip(f"this numba-cuda has no {name}")
    ours, theirs = getattr(cuda, name), getattr(numba.cuda, name)
    if not callable(theirs):
        return

    def parameters(function):
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.default) for p in found if p.kind is not p.VAR_KEYWORD]

    expected = parameters(theirs)
    if name == "mapped":
        expected.append(("stream", 0))  # numba.cuda takes it from **kws
    assert parameters(ours) == expected


def test_every_public_name_of_numba_cuda_is_there_or_says_why_not():
    for name in (n for n in dir(numba.cuda) if not n.startswith("_")):
        value = getattr(numba.cuda, name)
        if hasattr(cuda, name):
            same = name in host.__all__ or name in ("jit", "reduce", "Reduce", "vectorize", "guvectorize")
            same = same or name in ("cudadrv", "devicearray", "devices", "random", "IpcHandle")
            assert same or getattr(cuda, name) is value, name
        else:
            with pytest.raises(AttributeError, match=f"emulator has no cuda.{name}: ."):
                getattr(cuda, name)
            assert isinstance(value, ModuleType) or name in cuda._MISSING, name
    with pytest.raises(AttributeError, match="module 'warpstep.cuda' has no attribute 'no_such_thing'"):
        cuda.no_such_thing  # noqa: B018
    with pytest.raises(AttributeError, match="no cuda.cudadrv.driver"):
        cuda.cudadrv.driver  # noqa: B018


# -- kernels see the module as they see numba.cuda --


def through_module(a):
    i = cuda.grid(1)
    tile = cuda.shared.array(32, cuda.float32)
    tile[cuda.threadIdx.x] = cuda.blockIdx.y + cuda.blockDim.z * cuda.gridDim.x + cuda.laneid + cuda.warpsize
    cuda.syncthreads()
    v = cuda.float32x2(cuda.fma(a[i], a[i], a[i]), cuda.libdevice.sqrtf(a[i]))
    group = cuda.cg.this_grid()
    group.sync()
    cuda.atomic.add(a, i, v.x + tile[0] + cuda.popc(cuda.activemask()))


def through_aliases(a):
    i = module_alias.grid(1) + grid_alias(1) + gpukit.emulator.cuda.gridsize(1)
    module_alias.atomic.max(a, i, gpukit.emulator.cuda.shfl_sync(0xFFFFFFFF, a[i], 0))


def as_numba(function):
    """The same function with numba.cuda in place of our module."""
    names = {"cuda": numba.cuda, "module_alias": numba.cuda, "grid_alias": numba.cuda.grid, "gpukit": NumbaInGpukit}
    return type(function)(function.__code__, {**function.__globals__, **names}, function.__name__)


NumbaInGpukit = ModuleType("gpukit")
NumbaInGpukit.emulator = ModuleType("emulator")
NumbaInGpukit.emulator.cuda = numba.cuda


@pytest.mark.parametrize("kernel", [through_module, through_aliases])
def test_types_in_a_kernel_are_those_of_numba_cuda(kernel):
    argument = (numba.cuda.types.float32[::1],)
    ours = infer(kernel, argument, numba.cuda.types.void)
    theirs = infer(as_numba(kernel), argument, numba.cuda.types.void)

    def without_modules(typemap):
        return {name: t for name, t in typemap.items() if not isinstance(t, numba.cuda.types.Module)}

    assert without_modules(ours.typemap) == without_modules(theirs.typemap)


def test_a_host_function_in_a_kernel_is_a_typing_error():
    def kernel(a):
        cuda.to_device(a)

    with pytest.raises(TypingError, match="to_device"):
        infer(kernel, (numba.cuda.types.float32[::1],), numba.cuda.types.void)


# -- refusals --

A = np.arange(12, dtype=np.float32).reshape(3, 4)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("error", "says", "call"),
    [
        (ValueError, "non-contiguous", lambda d: cuda.to_device(A[:, ::2])),
        (ValueError, "non-contiguous", lambda d: d[:, ::2].copy_to_device(A[:, ::2])),
        (ValueError, "non-contiguous", lambda d: d.__setitem__(slice(3), A[::2, ::2])),
        (TypeError, "dtype is object", lambda d: cuda.to_device(np.array([None, 1]))),
        (TypeError, "dtype is object", lambda d: d.view(object)),
        (TypeError, "incompatible dtype: float32 vs. float64", lambda d: d.copy_to_host(np.zeros((3, 4)))),
        (TypeError, "incompatible dtype", lambda d: d.copy_to_device(A.astype("f8"))),
        (ValueError, r"incompatible shape: \(3, 4\) vs. \(4, 3\)", lambda d: d.copy_to_device(A.T)),
        (ValueError, "incompatible strides", lambda d: d.copy_to_host(np.asfortranarray(A))),
        (ValueError, "incompatible strides", lambda d: d.copy_to_device(cuda.to_device(np.asfortranarray(A)))),
        (ValueError, "ary is read-only", lambda d: d.copy_to_host(read_only(A))),
        (TypeError, "ary is a list", lambda d: d.copy_to_host([1])),
        (TypeError, "ary is a list", lambda d: d.copy_to_device([1])),
        (NotImplementedError, "negative strides", lambda d: d[::-1].copy_to_host()),
        (NotImplementedError, "non-2D", lambda d: d[0].T),
        (IndexError, "2 extra indices", lambda d: d[0, 0, 0, 0]),
        (IndexError, "out of bounds", lambda d: d[3]),
        (RuntimeError, "non-empty slice into empty", lambda d: cuda.to_device(np.empty((3, 0)))[:2]),
        (TypeError, "not list", lambda d: d[[0, 1]]),
        (TypeError, "not ellipsis", lambda d: d[...]),
        (TypeError, "not ndarray", lambda d: d[A > 1]),
        (ValueError, "Can't assign 3-D array to 2-D self", lambda d: d.__setitem__(slice(None), A[None])),
        (ValueError, "size 4 to array axis 0 with dimension 3", lambda d: d.__setitem__((slice(None), 0), A[0])),
        (TypingError, "complex128", lambda d: d.__setitem__(0, 1j)),
        (TypeError, "Expected a Stream object or 0, got int", lambda d: d.copy_to_host(stream=3)),
        (
            TypeError,
            r"shape is \(2, 3.0\); it must be an int or a tuple of ints",
            lambda d: cuda.device_array((2, 3.0)),
        ),
        (TypeError, "shape is 2.5; it must be an int", lambda d: cuda.device_array(2.5)),
        (ValueError, "negative dimensions", lambda d: cuda.device_array((2, -1))),
        (ValueError, "order is 'X'; it must be 'C' or 'F'", lambda d: cuda.device_array((2, 2), order="X")),
        (ValueError, "strides", lambda d: cuda.device_array((2, 2), strides=(8,))),
        (ValueError, "does not fit", lambda d: arrays.DeviceArray((4, 4), (16, 4), "f4", gpu_data=d.gpu_data)),
        (ValueError, "`copy=False` is not supported", lambda d: d.__array__(copy=False)),
        (TypeError, "int is not a device array", lambda d: cuda.as_cuda_array(1)),
        (TypeError, "cannot be pickled", lambda d: pickle.dumps(d)),
        (ValueError, "read-only", lambda d: cuda.mapped(read_only(A)).__enter__()),
        (TypeError, "list", lambda d: cuda.pinned([1]).__enter__()),
        (IndexError, "no device 1", lambda d: cuda.select_device(1)),
        (IndexError, "no device 1", lambda d: type(cuda.get_current_device())(1)),
        (UnsupportedError, "manages the memory of a GPU", lambda d: cuda.set_memory_manager(dict)),
        (UnsupportedError, "the host uses too", lambda d: cuda.managed_array(3).device.get_ipc_handle()),
        (ValueError, "original process", lambda d: d.get_ipc_handle().open()),
        (ValueError, "cannot be opened", lambda d: cuda.open_ipc_array(b"/none", 3, "f4").__enter__()),
        (TypeError, "must be an int", lambda d: cuda.external_stream("x")),
        (ValueError, "compute_capability is '6.1'; the emulator knows 7.0, 7.5", lambda d: set_device("6.1")),
    ],
)
def test_refusals(error, says, call):
    d = cuda.to_device(A)
    with pytest.raises(error, match=says):
        call(d)
    assert same_bytes(d.copy_to_host(), A)


# -- kinds of arrays --


def test_transpose_is_a_copy_as_on_a_gpu():
    d = cuda.to_device(A)
    turned = d.T
    d[0, 0] = -1
    assert same_bytes(turned.copy_to_host(), np.ascontiguousarray(A.T))
    assert turned.is_c_contiguous()
    assert d.transpose((0, 1)) is d


def test_records():
    host_records = np.zeros(3, RECORD)
    host_records["id"] = [1, 2, 3]
    d = cuda.to_device(host_records)
    record = d[1]
    assert record["id"] == 2
    record["id"] = 7
    record["xy"][1] = 2.5
    record["inner"]["flag"] = True
    host_records[1] = (7, [0.0, 2.5], (True,))
    assert same_bytes(d.copy_to_host(), host_records)
    single = cuda.to_device(host_records[2])
    assert same_bytes(single.copy_to_host(), host_records[2])
    out = np.zeros(1, RECORD)[0]
    assert d[1].copy_to_host(out) is out
    assert same_bytes(out, host_records[1])
    assert single._numba_type_ == d._numba_type_.dtype
    with pytest.raises(KeyError):
        record["no such field"] = 1


def test_strided_copy_moves_the_gaps_too_as_cuda_does():
    d = cuda.to_device(np.arange(6))
    out = np.full(6, -1)
    d[::2].copy_to_host(out[::2])
    assert out.tolist() == [0, 1, 2, 3, 4, -1]


def test_a_gpu_array_interface_is_neither_given_nor_followed():
    d = cuda.to_device(A)
    assert not hasattr(d, "__cuda_array_interface__")
    assert cuda.is_cuda_array(d)
    assert not cuda.is_cuda_array(A)
    assert cuda.as_cuda_array(d) is d

    class OnGpu:
        def __init__(self, address):
            interface = {"shape": (4,), "typestr": "<f4", "data": (address, False), "version": 3}
            self.__cuda_array_interface__ = interface

    inside = cuda.as_cuda_array(OnGpu(d[1].device_ctypes_pointer.value))
    assert same_bytes(inside.copy_to_host(), A[1])
    for follow in (cuda.as_cuda_array, cuda.to_device):
        with pytest.raises(TypeError, match="real GPU"):
            follow(OnGpu(12345))


def test_implicit_copies_warn_as_numba_does():
    with pytest.warns(NumbaPerformanceWarning, match="Host array used in CUDA kernel"):
        arrays.auto_device(A)
    array, new = arrays.auto_device(cuda.to_device(A))
    assert not new
    assert isinstance(array, cuda.devicearray.DeviceNDArray)
    assert cuda.cudadrv.devicearray.is_cuda_ndarray(array)


@pytest.mark.parametrize("make", [cuda.mapped_array, cuda.managed_array])
def test_host_and_device_share_mapped_and_managed_memory(make):
    array = make((2, 3), np.int32, order="F")
    array[...] = np.arange(6).reshape(2, 3)
    assert array.flags.f_contiguous
    part = array[:, 1:]
    part.device[0, 0] = 50
    assert array[0, 1] == 50
    assert part.gpu_data.device_pointer_value == array.gpu_data.device_pointer_value + 8
    result = array + 1
    assert type(result) is np.ndarray
    assert arrays.as_device_array(array.copy()) is None
    assert same_bytes(array.copy_to_host(), np.asarray(array))


def test_mapping_ends_with_its_block():
    a, b = np.zeros(4), np.ones((2, 2))
    with cuda.mapped(a[::-1], b) as (d_a, d_b):
        d_a[0] = 5
        d_b[1] = cuda.to_device(np.array([7.0, 8.0]))
    assert a.tolist() == [0, 0, 0, 5]
    assert b.tolist() == [[1, 1], [7, 8]]
    with pytest.raises(CudaAPIError, match="was freed"):
        d_a.copy_to_device(a)


# -- memory --


def test_fresh_memory_is_poisoned_and_aligned():
    made = [cuda.device_array(n, dtype) for n, dtype in ((1, "u1"), (300, "f4"), (7, "c16"), (5, "i8"), (3, "f2"))]
    assert np.isnan(made[1].copy_to_host()).all()
    assert np.isnan(cuda.pinned_array(3)).all()
    assert (made[3].copy_to_host() == -1).all()
    spans = sorted((m.allocation.address, m.allocation.address + m.alloc_size) for m in made)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    for m in made:
        assert m.allocation.address % 256 == 0
        assert m.host.__array_interface__["data"][0] % 64 == 0
        assert m[:0].size == 0
    assert made[1][2:].device_ctypes_pointer.value == made[1].allocation.address + 8


def test_memory_is_counted_and_limited(monkeypatch):
    gc.collect()
    context = cuda.current_context()
    before = context.get_memory_info()
    kept = cuda.device_array(1000, np.uint8)
    part = kept[10:20]
    del kept
    cuda.mapped_array(500)
    assert before.free - context.get_memory_info().free == 1000
    del part
    assert context.get_memory_info() == before
    with use_device("7.5"):
        total = cuda.current_context().get_memory_info().total
        with pytest.raises(CudaAPIError, match=f"{total + 8:,} bytes asked for") as caught:
            cuda.device_array(total // 8 + 1)
        assert caught.value.code == CUresult.CUDA_ERROR_OUT_OF_MEMORY
    monkeypatch.setattr(allocations, "_host_memory_available", lambda: 10**9)
    with pytest.raises(CudaAPIError, match="2,000,000,000 bytes asked for; this machine, .* 1,000,000,000 bytes"):
        cuda.device_array(2 * 10**9, np.uint8)


def test_close_frees_everything():
    d = cuda.to_device(A)
    view = d[1]
    cuda.close()
    assert allocations.memory_in_use() == 0
    for use in (d.copy_to_host, lambda: view[0], lambda: d.__setitem__(0, 1), lambda: d.copy_to_device(A), lambda: d.T):
        with pytest.raises(CudaAPIError, match="was freed"):
            use()
    assert same_bytes(cuda.to_device(A).copy_to_host(), A)


def test_memory_pointers():
    memory = cuda.current_context().memalloc(32)
    d = arrays.DeviceArray(8, 4, "i4", gpu_data=memory)
    d[2:6].gpu_data.memset(0)
    assert d.copy_to_host().tolist() == [-1, -1, 0, 0, 0, 0, -1, -1]
    with pytest.raises(ValueError, match="count is 33; this memory has 32 bytes"):
        memory.memset(0, 33)
    memory.free()
    with pytest.raises(RuntimeError, match="dead memory"):
        memory.free()


# -- the device --

#: CUDA C++ Programming Guide, technical specifications: threads and blocks per SM, KB of shared memory per SM and per
#: block (opt-in).
GUIDE = {
    (7, 0): (2048, 32, 96, 96),
    (7, 5): (1024, 16, 64, 64),
    (8, 0): (2048, 32, 164, 163),
    (8, 6): (1536, 16, 100, 99),
    (8, 9): (1536, 24, 100, 99),
    (9, 0): (2048, 32, 228, 227),
    (10, 0): (2048, 32, 228, 227),
    (12, 0): (1536, 24, 100, 99),
}


@pytest.mark.parametrize("capability", sorted(DEVICES))
def test_devices(capability):
    outer = current()
    with use_device(f"{capability[0]}.{capability[1]}") as limits:
        device = cuda.get_current_device()
        threads, blocks, shared, optin = GUIDE[capability]
        assert device.compute_capability == limits.compute_capability == capability
        assert device.MAX_THREADS_PER_MULTIPROCESSOR == threads
        assert device.MAX_BLOCKS_PER_MULTIPROCESSOR == blocks
        assert device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR == shared * 1024
        assert device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN == optin * 1024
        assert device.MAX_SHARED_MEMORY_PER_BLOCK == 49152
        assert (device.MAX_BLOCK_DIM_Z, device.MAX_GRID_DIM_X, device.WARP_SIZE) == (64, 2147483647, 32)
        assert device.supports_bfloat16 == (capability >= (8, 0)) == cuda.is_bfloat16_supported()
        assert device is cuda.select_device(0)
        assert device == type(device)(0) == type(device).from_identity(device.get_device_identity())
        assert str(capability[0]) in repr(device)
        known = {name.removeprefix("CU_DEVICE_ATTRIBUTE_") for name in CUdevice_attribute.__members__} - {"MAX"}
        assert {name for name in dir(device) if name.isupper()} == known
        assert all(isinstance(getattr(device, name), int) for name in known)
        with pytest.raises(AttributeError, match="no NUMBER_OF_FANS"):
            device.NUMBER_OF_FANS  # noqa: B018
    assert current() is outer


def test_devices_differ_and_lists_behave(capsys):
    default = cuda.get_current_device()
    assert default.compute_capability == (9, 0)
    with use_device((8, 6)):
        other = cuda.get_current_device()
        assert other != default
        assert len({other.uuid, default.uuid}) == len({other, default}) == 2
    assert len(cuda.gpus) == len(list(cuda.list_devices())) == 1
    with cuda.gpus[0]:
        assert cuda.gpus.current.id == 0
        assert cuda.current_context().device == default
    assert cuda.is_available()
    assert cuda.detect()
    printed = capsys.readouterr().out
    assert f"id 0    {default.name}" in printed
    assert "1/1 devices are supported" in printed


# -- streams and events --


def test_streams():
    s = cuda.stream()
    with s.auto_synchronize():
        d = cuda.to_device(A, stream=s)
        assert d.stream is s
        assert d[0].stream is s
        assert d.bind(0).stream == 0
    calls = []
    s.add_callback(lambda *args: calls.append(args), "data")
    assert calls == [(s, 0, "data")]
    with pytest.warns(UserWarning, match="Exception in stream callback: 1"):
        s.add_callback(lambda *args: {}[1])
    numbers = [int(x) for x in (cuda.default_stream(), cuda.legacy_default_stream(), cuda.per_thread_default_stream())]
    assert numbers == [0, 1, 2]
    assert repr(cuda.external_stream(99)) == "<External CUDA stream 99 (emulated)>"
    assert int(s) != int(cuda.stream())

    async def wait():
        return await s.async_done()

    assert asyncio.run(wait()) is s


@cuda.jit
def add_one(a):
    if cuda.grid(1) == 0:
        a[0] += 1


def test_a_launch_takes_the_handle_of_a_stream_that_exists():
    d, stream = cuda.to_device(np.zeros(1)), cuda.stream()
    handles = int(stream), stream.__cuda_stream__()[1], int(cuda.per_thread_default_stream())
    for handle in handles:
        add_one[1, 1, handle](d)
    assert d[0] == len(handles)
    with pytest.raises(TypeError, match="handle of no stream"):
        add_one[1, 1, 4096 << 20]


def test_events_have_no_time():
    start, end, untimed = cuda.event(), cuda.event(), cuda.event(timing=False)
    assert start.query()
    start.record()
    for mark, fault in ((end, "end event has not been recorded"), (untimed, "timing=False")):
        with pytest.raises(CudaAPIError, match=fault) as caught:
            start.elapsed_time(mark)
        assert caught.value.code == CUresult.CUDA_ERROR_INVALID_HANDLE
    end.record(cuda.stream())
    end.wait(cuda.stream())
    end.synchronize()
    with pytest.raises(UnsupportedError, match="no time"):
        cuda.event_elapsed_time(start, end)
    with pytest.raises(TypeError, match="Stream"):
        end.record("stream")


def test_elapsed_times_of_a_guest_are_nan(monkeypatch):
    monkeypatch.setattr(streams, "_warned", False)
    start, end = streams.guest_event(), streams.guest_event()
    start.record()
    with pytest.raises(CudaAPIError, match="end event has not been recorded"):
        start.elapsed_time(end)
    end.record()
    with pytest.warns(UserWarning, match="no time") as caught:
        assert np.isnan([start.elapsed_time(end), streams.guest_elapsed_time(start, end)]).all()
    assert [warning.filename for warning in caught] == [__file__]


# -- memory of other processes --


@pytest.mark.parametrize("shape", [(12,), (3, 4), (1,)])
def test_an_ipc_handle_opens_the_same_memory(shape):
    d = cuda.to_device(np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape))
    view = d.reshape(-1)[-1:]
    before = d.copy_to_host()
    with pickle.loads(pickle.dumps(d.get_ipc_handle())) as shared:
        assert same_bytes(shared.copy_to_host(), before)
        add_one[1, 1](shared.reshape(-1))
        assert d.copy_to_host().flat[0] == before.flat[0] + 1
        d.reshape(-1)[-1:].copy_to_device(np.array([9], np.int32))
        assert shared.copy_to_host().flat[-1] == view.copy_to_host().flat[0] == 9
    with pytest.raises(CudaAPIError, match="freed"):
        shared.copy_to_host()
    handle = cuda.current_context().get_ipc_handle(view.gpu_data)
    with cuda.open_ipc_array(handle.handle.reserved, 1, np.int32, offset=handle.offset) as shared:
        assert shared[0] == 9
    path = handle.handle.path
    assert os.path.exists(path)
    del d, view, handle
    gc.collect()
    assert not os.path.exists(path)


# -- what a kernel is compiled to --

TABLE = np.arange(6, dtype=np.float32)


@cuda.jit(device=True)
def twice(x):
    return x + x


@cuda.jit
def inspected(a):
    tile, mine = cuda.shared.array(32, cuda.float32), cuda.local.array(8, cuda.float64)
    mine[a.size % 8] = TABLE[a.size % 6]
    tile[cuda.threadIdx.x] = twice(mine[cuda.threadIdx.x % 8])
    a[cuda.grid(1)] = tile[cuda.threadIdx.x]


def has_compiler():
    from cuda import pathfinder  # the emulator's stand-in where cuda.pathfinder is missing

    if not hasattr(pathfinder, "load_nvidia_dynamic_lib"):
        return False
    try:
        return all(pathfinder.load_nvidia_dynamic_lib(name) for name in ("nvrtc", "nvvm", "nvJitLink"))
    except pathfinder.DynamicLibNotFoundError:
        return False


def test_a_kernel_shows_what_it_was_compiled_to(capsys):
    inspected[1, 32](cuda.to_device(np.zeros(32, np.float32)))
    ((argument_types, overload),) = inspected.overloads.items()
    alone = inspected.specialize(np.zeros(32, np.float32))
    assert alone is inspected.specialize(np.ones(32, np.float32))
    with pytest.raises(RuntimeError, match="already specialized"):
        alone.specialize(np.zeros(32, np.float32))
    assert inspected.get_shared_mem_per_block() == {argument_types: 128}
    assert alone.get_shared_mem_per_block() == inspected.get_shared_mem_per_block(overload.signature) == 128
    assert (alone.get_local_mem_per_thread(), alone.get_const_mem_size()) == (64, 24)
    assert alone.get_max_threads_per_block() == 1024
    bounded = cuda.jit("void(float32[:])", launch_bounds=(64, 2))(add_one.py_func)
    assert bounded.get_max_threads_per_block() == 64
    bounded.forall(100)(np.zeros(100, np.float32))
    context = cuda.current_context()
    assert context.get_max_potential_block_size(overload, 0, 0, 512)[1] == 512
    assert context.get_active_blocks_per_multiprocessor(overload, 1024, 0) == 2
    inspected.inspect_types()
    shown = capsys.readouterr().out
    assert "tile[cuda.threadIdx.x] = twice(" in shown
    assert ":: float32" in shown
    if not has_compiler():
        with pytest.raises(UnsupportedError, match="pip install numba-cuda"):
            inspected.inspect_asm()
        with pytest.raises(UnsupportedError, match="pip install numba-cuda"):
            cuda.compile_ptx(inspected, argument_types)
        return
    assert "st.shared" in inspected.inspect_asm(overload.signature)
    assert set(inspected.inspect_llvm()) == set(inspected.inspect_lto_ptx()) == {argument_types}
    assert 8 <= alone.get_regs_per_thread() <= 255
    (text,) = cuda.jit("float32(float32)", device=True)(twice.py_func).inspect_asm().values()
    assert "add.f32" in text or "add.rn.f32" in text
    assert cuda.compile_ptx(twice, (cuda.types.float32,), device=True)[1] == cuda.types.float32


def test_the_best_of_the_declared_signatures_is_taken():
    def add(r, x, y):
        r[0] = x + y

    either = cuda.jit(["(float64[::1], float32, float64)", "(float64[::1], float64, float32)"])(add)
    r = np.zeros(1)
    either[1, 1](r, np.float32(1), 2.5)
    assert r[0] == 3.5
    with pytest.raises(TypeError, match=r"Ambiguous overloading for <function .*add at .*float64, float64\):"):
        either[1, 1](r, 1.5, 2.5)

    @cuda.jit(["int64(int64)", "float64(float64)"], device=True)
    def own(x):
        return x

    @cuda.jit
    def call(r, x):
        r[0] = own(x)

    call[1, 1](r, np.float32(1.5))
    assert r[0] == 1.5
    with pytest.raises(TypingError, match="Invalid use of type"):
        call[1, 1](r.astype(complex), 1j)
    with pytest.raises(ValueError, match="Got 4 launch bounds"):
        cuda.jit(launch_bounds=(1, 2, 3, 4))


# -- what numba-cuda writes in terms of itself --


@given(st.sampled_from([1, 31, 128, 200, 1000]), st.integers(0, 9))
@settings(max_examples=12)
def test_reduce(size, seed):
    values = np.random.default_rng(seed).integers(0, 1 << 30, size)
    assert reduce_max(values, init=0) == values.max()
    result = cuda.device_array(1, values.dtype)
    assert reduce_max(cuda.to_device(values), res=result) is None
    assert result[0] == values.max()


@cuda.reduce
def reduce_max(a, b):
    return max(a, b)


def test_vectorize_and_random():
    @cuda.vectorize(["float32(float32, float32)", "int64(int64, int64)"])
    def multiply(a, b):
        return a * b

    assert multiply(A, A).tolist() == (A * A).tolist()
    assert multiply(np.arange(3), 4).tolist() == [0, 4, 8]
    on_device = multiply(cuda.to_device(A[0]), cuda.to_device(A[1]))
    assert on_device.copy_to_host().tolist() == (A[0] * A[1]).tolist()

    @cuda.guvectorize(["(float32[:], float32[:])"], "(n)->()")
    def total(row, out):
        out[0] = 0
        for value in row:
            out[0] += value

    assert total(A).tolist() == A.sum(1).tolist()
    assert total(cuda.to_device(A)).copy_to_host().tolist() == A.sum(1).tolist()
    states = cuda.random.create_xoroshiro128p_states(3, seed=1)
    assert states[0]["s0"] == 0x910A2DEC89025CC1  # the first number of splitmix64 for this seed
    assert len(set(states.copy_to_host().tolist())) == 3


def test_threads_may_allocate_at_the_same_time():
    def allocate(_):
        return [(cuda.device_array(1), cuda.current_context().get_memory_info()) for _ in range(200)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            arrays_ = [array for made in pool.map(allocate, range(4)) for array, _ in made]
    finally:
        sys.setswitchinterval(interval)
    assert len({array.gpu_data.device_pointer_value for array in arrays_}) == 800


def test_a_large_host_array_is_read_where_it_is():
    """But one that is passed twice is copied, as on a GPU: each argument has memory of its own."""

    @cuda.jit
    def shift(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[(i + 1) % x.size] + 1

    x, out = np.arange(1 << 16), np.zeros(1 << 16, np.int64)
    expected = np.roll(x, -1) + 1
    for source in (x, np.frombuffer(x.tobytes(), np.int64), np.frombuffer(b" " + x.tobytes(), np.int64, offset=1)):
        shift[256, 256](source, out)
        assert np.array_equal(out, expected) and np.array_equal(source, np.arange(1 << 16))
    shift[256, 256](x, x)
    assert np.array_equal(x, expected)
    x[:] = np.arange(1 << 16)
    shift[256, 256](x, x[: 1 << 15])
    assert np.array_equal(x, np.r_[expected[: 1 << 15], np.arange(1 << 15, 1 << 16)])
    transposed = np.asfortranarray(np.arange(1 << 16).reshape(256, 256))

    @cuda.jit
    def flip(x, out):
        i, j = cuda.grid(2)
        out[j, i] = x[i, j]

    result = np.zeros((256, 256), np.int64)
    flip[(16, 16), (16, 16)](transposed, result)
    assert np.array_equal(result, transposed.T)


def test_a_launch_keeps_no_memory():
    """Without the garbage collector: programs that allocate arrays in every step would fill the memory before it."""

    def buffer_of_a_launch():
        a = cuda.to_device(np.zeros(1000, np.int32))
        add_one[4, 256](a)
        memory = a.allocation.bytes
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        return weakref.ref(memory)

    buffer_of_a_launch()  # it compiles
    gc.collect()
    gc.disable()
    try:
        assert buffer_of_a_launch()() is None
    finally:
        gc.enable()
