"""What host functions do with the arrays they are given: check them, bring them to the device, and give back the same
kind of array.
"""

import functools
import sys
import warnings

import numpy as np

from gpukit._numba import NumbaPerformanceWarning, cuda_api_error, device_array_class, numba_driver
from gpukit.backend import cuda, on_gpu

__all__ = [
    "address_of",
    "as_device_array",
    "check_alike",
    "check_apart",
    "check_array",
    "configure_quietly",
    "copy_to",
    "dtype_of",
    "handle_of",
    "is_pinned",
    "make_like",
    "new_like",
    "share_memory",
    "span",
    "stream_of",
    "to_device",
    "upload",
    "window",
]


def as_device_array(array):
    """A device array of whatever library as one of Numba, or of the emulator.

    The array interface of CuPy asks to wait for the stream that CuPy works on; this does. An array of Numba is taken as
    it is, as a launch takes it: a stream that it is bound to is not waited for.
    """
    return array if getattr(array, "__cuda_ndarray__", False) else cuda.as_cuda_array(array)


def address_of(array):
    """Address of the first element of a device array, 0 if it is empty; 0 for a NumPy array too, whose copy on the
    device begins where a new allocation does.
    """
    return 0 if isinstance(array, np.ndarray) else as_device_array(array).device_ctypes_pointer.value or 0


def dtype_of(array):
    """The NumPy dtype of a NumPy or device array (PyTorch has dtypes of its own)."""
    interface = getattr(array, "__cuda_array_interface__", None)
    return array.dtype if interface is None else np.dtype(interface["typestr"])


def stream_of(stream):
    """A ``stream=`` argument as ``kernel[grid, block, stream]`` takes it: 0, the default stream, for None; a stream of
    CuPy or PyTorch as one of Numba.
    """
    if not stream:
        return 0
    library = _library(stream)
    if library not in ("torch", "cupy"):
        return stream
    handle = stream.cuda_stream if library == "torch" else stream.ptr
    return _external_stream(handle) if handle else 0


@functools.lru_cache(maxsize=256)
def _external_stream(handle):
    """The same object every time: work memory belongs to a stream."""
    return cuda.external_stream(handle)


def handle_of(stream) -> int:
    """The driver's handle of a stream, 0 for the default stream."""
    return int(getattr(stream, "handle", stream))


def _library(thing):
    """The top package that the class of an object is from."""
    return type(thing).__module__.partition(".")[0]


def configure_quietly(kernel, grid, block, stream=0, shared_bytes=0):
    """``kernel[grid, block, stream, shared_bytes]`` without Numba's warning that a small grid leaves a GPU idle: who
    calls a host function does not choose the grid.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        return kernel[grid, block, stream, shared_bytes]


def _side(array):
    return "a device array" if cuda.is_cuda_array(array) else "a NumPy array"


def check_array(name, array, dimensions, dtypes=None, more=False):
    """TypeError or ValueError unless ``array`` is a NumPy or device array with as many dimensions, or one of several
    numbers of them, or ``more``, and one of the dtypes.
    """
    if not isinstance(array, np.ndarray) and not cuda.is_cuda_array(array):
        raise TypeError(f"{name} is a {type(array).__name__}; it must be a NumPy array or a device array")
    dtype = dtype_of(array)
    if dtypes is not None and dtype not in dtypes:
        raise TypeError(f"{name} has dtype {dtype}; it must be {' or '.join(str(np.dtype(d)) for d in dtypes)}")
    allowed = dimensions if isinstance(dimensions, tuple) else (dimensions,)
    if len(array.shape) not in allowed and not (more and len(array.shape) > max(allowed)):
        what = "one dimension" if allowed == (1,) else f"{' or '.join(map(str, allowed))} dimensions"
        what += " or more" if more else ""
        raise ValueError(f"{name} has shape {tuple(array.shape)}; it must have {what}")


def check_alike(name, array, other_name, other, shape=None, dtype=None):
    """TypeError or ValueError unless both are on the same side, and ``array`` has the shape, and the dtype if one is
    given, otherwise that of the other.
    """
    if cuda.is_cuda_array(array) != cuda.is_cuda_array(other):
        raise TypeError(f"{name} is {_side(array)} and {other_name} is {_side(other)}; they must be alike")
    if dtype is not None and dtype_of(array) != dtype:
        raise TypeError(f"{name} has dtype {dtype_of(array)}; it must be {np.dtype(dtype)}")
    if dtype is None and dtype_of(array) != dtype_of(other):
        raise TypeError(f"{name} has dtype {dtype_of(array)}; it must be {dtype_of(other)}, as {other_name} is")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}; it must be {tuple(shape)}")


def check_apart(name, array, **others):
    """ValueError if a device array shares memory with one of the others. NumPy arrays may: the kernel has copies."""
    if not cuda.is_cuda_array(array):
        return
    for other_name, other in others.items():
        if share_memory(array, other):
            raise ValueError(f"{name} shares memory with {other_name}; they must be apart")


def share_memory(array, other):
    """Whether the memory of two device arrays overlaps, from the first byte of each to its last."""
    (start, stop), (other_start, other_stop) = span(array), span(other)
    return start < other_stop and other_start < stop


def span(array):
    """Address of the first byte of a device array and of the byte after its last; (0, 0) if it is empty."""
    array = as_device_array(array)
    if array.size == 0:
        return 0, 0
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    start = address_of(array)
    return start + sum(min(r, 0) for r in reach), start + sum(max(r, 0) for r in reach) + array.dtype.itemsize


@functools.cache
def _array_class():
    if on_gpu():
        return device_array_class()
    from warpstep.api.arrays import DeviceArray

    return DeviceArray


def window(array, dtype, count):
    """The memory of a device array from its first element on, as ``count`` elements of a dtype in one dimension: what
    lies between its rows too. Nothing checks on a GPU that it ends where the memory does.
    """
    dtype, array = np.dtype(dtype), as_device_array(array)
    return _array_class()((count,), (dtype.itemsize,), dtype, gpu_data=array.gpu_data)


#: Most dimensions that one launch of ``copy_strided`` takes.
MOST_DIMENSIONS = 4


@cuda.jit
def copy_strided(source, target):
    """target[...] = source[...] for two arrays with any strides, of one to four dimensions.

    Threads count through the elements of the target in the order of its indices.
    """
    i = cuda.grid(1)
    while i < target.size:
        last = i % target.shape[target.ndim - 1]
        rest = i // target.shape[target.ndim - 1]
        if target.ndim == 1:
            target[last] = source[last]
        elif target.ndim == 2:
            target[rest, last] = source[rest, last]
        elif target.ndim == 3:
            index = rest // target.shape[1], rest % target.shape[1], last
            target[index] = source[index]
        else:
            head = rest // target.shape[2]
            index = head // target.shape[1], head % target.shape[1], rest % target.shape[2], last
            target[index] = source[index]
        i += cuda.gridsize(1)


def copy_to(source, target, stream):
    """Copy a device array to another of the same shape; each may have any strides."""
    if target.ndim == 0:
        source, target = source.reshape(1), target.reshape(1)
    if target.ndim > MOST_DIMENSIONS:
        for i in range(target.shape[0]):
            copy_to(source[i], target[i], stream)
    elif target.size:
        copy_strided[min(-(-target.size // 256), 65535), 256, stream](source, target)


def to_device(array, stream):
    """An array as a C-contiguous device array: itself if it is one already, otherwise a copy."""
    if not cuda.is_cuda_array(array):
        # An axis of length 1 may have any stride; through one dimension it gets the usual one.
        contiguous = np.ascontiguousarray(array).reshape(-1).reshape(array.shape)
        return cuda.to_device(contiguous, stream=stream)
    array = as_device_array(array)
    if array.is_c_contiguous():
        return array
    contiguous = cuda.device_array(array.shape, array.dtype, stream=stream)
    copy_to(array, contiguous, stream)
    return contiguous


def upload(array, values, stream):
    """Queue a copy of a NumPy array to a C-contiguous device array of as many bytes, in a fraction of the time that
    ``copy_to_device`` takes the host.

    Pageable memory has been read when this returns; pinned memory must stay as it is until the copy is done.
    """
    if not on_gpu():
        array.copy_to_device(values, stream=stream)
        return
    numba_driver().cuMemcpyHtoDAsync(address_of(array), values.ctypes.data, values.nbytes, handle_of(stream))


def is_pinned(array: np.ndarray) -> bool:
    """Whether a NumPy array lies in page-locked memory. Always True on the emulator."""
    if not on_gpu() or array.nbytes == 0:
        return True
    low, high = np.lib.array_utils.byte_bounds(array)
    return _page_locked(low) and _page_locked(high - 1)


def _page_locked(address):
    from cuda.bindings.driver import CUmemorytype, CUpointer_attribute

    try:
        kind = numba_driver().cuPointerGetAttribute(CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
    except cuda_api_error():
        return False  # memory that the driver does not know
    return int(kind) == int(CUmemorytype.CU_MEMORYTYPE_HOST)


def new_like(like, shape, dtype, stream):
    """A new device array of the library that ``like`` comes from, uninitialised."""
    library = _library(like)
    if library == "torch":
        return like.new_empty(shape, dtype=_torch_dtype(dtype))
    if library == "cupy":
        return type(like)(shape, dtype)
    return cuda.device_array(shape, dtype, stream=stream)


def make_like(like, shape, dtype):
    """Make a function that makes one array after another as `new_like` does; it returns (array, address)."""
    if _library(like) == "torch":
        # An empty tensor knows the dtype and the device; that is cheaper than to say them each time.
        empty = like.new_empty(0, dtype=_torch_dtype(dtype)).new_empty

        def make():
            array = empty(shape)
            return array, array.data_ptr()

    elif _library(like) == "cupy":
        kind = type(like)

        def make():
            array = kind(shape, dtype)
            return array, array.data.ptr

    else:

        def make():
            array = cuda.device_array(shape, dtype)
            return array, address_of(array)

    return make


@functools.cache
def _torch_dtype(dtype):
    return getattr(sys.modules["torch"], dtype.name)
