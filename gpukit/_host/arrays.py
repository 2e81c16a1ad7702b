"""Arrays of any library: check them, find out where they are, and make more of the same kind."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np

from gpukit._numba import (
    NumbaPerformanceWarning,
    cuda_api_error,
    device_array_base,
    device_array_class,
    enable_peer,
    make_is_captured,
    make_is_device,
    numba_driver,
)
from gpukit.backend import cuda, on_gpu
from warpstep.values import check_type, describe, has_attributes, is_int, type_name

#: NumPy arrays up to this size are not compared with the memory that the device has left.
UNCHECKED_BYTES = 2**28


def as_device_array(array) -> Any:
    """Wrap a device array of any library as one of Numba, or of the emulator.

    Waits for the stream that CuPy works on, as the array interface demands. An array of Numba is returned as it is,
    without a wait for the stream that it is bound to, as a launch takes it. One in mapped memory of the host, which is
    a NumPy array too, becomes a view of that memory on the device.
    """
    if not getattr(array, "__cuda_ndarray__", False):
        return cuda.as_cuda_array(array)
    if isinstance(array, np.ndarray):
        mapped: Any = array
        if not on_gpu():
            return mapped.device
        return cuda.from_cuda_array_interface(mapped.__cuda_array_interface__, owner=array, sync=False)
    return array


def address_of(array) -> int:
    """Address of the first element of a device array; 0 if it is empty.

    0 for a NumPy array too: its copy on the device is aligned as a new allocation is.
    """
    return 0 if isinstance(array, np.ndarray) else as_device_array(array).device_ctypes_pointer.value or 0


def dtype_of(array) -> np.dtype:
    """The NumPy dtype of an array of any library."""
    interface = getattr(array, "__cuda_array_interface__", None)
    return array.dtype if interface is None else np.dtype(interface["typestr"])


def is_bfloat16(dtype: np.dtype) -> bool:
    """Whether a dtype is bfloat16: that of ml_dtypes, or 2 bytes of no type, as PyTorch's array interface has it."""
    return dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None


def is_complex(dtype: np.dtype) -> bool:
    """Whether a dtype is complex64 or complex128."""
    return dtype.kind == "c" and dtype.itemsize <= 16 and dtype.isnative


def as_words(array) -> Any:
    """View an array of bfloat16 as one of uint16, of bools as one of int8; other arrays are returned as they are."""
    dtype = dtype_of(array)
    word = np.int8 if dtype == np.bool_ else np.uint16 if is_bfloat16(dtype) else None
    if word is None:
        return array
    if not cuda.is_cuda_array(array):
        return array.view(word)
    array = as_device_array(array)
    return device_array_of(array.shape, array.strides, word, array)


def as_parts(array) -> Any:
    """View an array of complex numbers as their real and imaginary parts, along one more axis at the end."""
    dtype, array = dtype_of(array), as_device_array(array) if cuda.is_cuda_array(array) else array
    part = np.dtype(f"f{dtype.itemsize // 2}")
    if isinstance(array, np.ndarray):
        return array[..., np.newaxis].view(part)
    return device_array_of((*array.shape, 2), (*array.strides, part.itemsize), part, array)


def name_of(dtype) -> str:
    """The name of a dtype, for messages."""
    dtype = np.dtype(dtype)
    return "bfloat16" if is_bfloat16(dtype) else str(dtype)


def stream_of(stream) -> Any:
    """Convert a ``stream=`` argument to what ``kernel[grid, block, stream]`` takes: 0 for None, the default stream, and
    a stream of CuPy or PyTorch as one of Numba. TypeError for what is no stream.
    """
    if stream is None or type(stream) is int and stream == 0:
        return 0
    try:
        handle_name = _handle_name(type(stream))
        handle = getattr(stream, handle_name) if handle_name else None
    except Exception:  # of a class of one's own
        handle = None
    if handle is None or handle_name != "handle" and not isinstance(handle, int):
        raise TypeError(f"stream is {describe(stream)}; it must be None or a CUDA stream")
    if handle_name == "handle":
        return stream
    return _external_stream(handle) if handle else 0


def stream_for(stream, array) -> Any:
    """Find the stream of a call with this array, as `stream_of` gives it: where none is given, PyTorch's current one
    for a tensor. CuPy's current one is waited for, and taken only while a CUDA graph records it, when nothing can wait.
    """
    if stream is not None:
        return stream_of(stream)
    handle, library = 0, library_of(array)
    if library == "torch" and getattr(array, "is_cuda", False):
        handle = make_current_of_torch()(array.get_device())
    elif library == "cupy":
        current = sys.modules["cupy"].cuda.get_current_stream()
        handle = current.ptr if is_captured(stream_of(current)) else 0
    return _external_stream(handle) if handle else 0


def device_made_current(arrays: tuple) -> Any:
    """Return a context in which the device that works on some arrays is the current one; None if it is.

    That is the device that they are on. If they are on several, it is the current one, or else that of the first array.
    Access to the memory of the others is enabled; ValueError if there can be none.
    """
    if not has_several_devices():
        return None
    numbers = list(dict.fromkeys(number for number in map(_device_of, arrays) if number is not None))
    current = cuda.get_current_device().id
    if numbers and current not in numbers:
        return cuda.gpus[numbers[0]]
    for number in numbers:
        if number != current:
            context = cuda.current_context()
            if not context.can_access_peer(number):
                names = " and ".join(map(str, sorted(numbers)))
                raise ValueError(
                    f"the arrays are on devices {names}, and {current} cannot access the memory of {number}; "
                    "they must be on the same one"
                )
            enable_peer(context, cuda.gpus[number].get_primary_context())
    return None


def has_several_devices() -> bool:
    """Whether there is more than one device; on the emulator, whether there may be."""
    return not on_gpu() or _count_devices() > 1


def make_is_current() -> Callable[[], bool]:
    """Make a function that tells whether the current device still is the same one."""
    number = cuda.get_current_device().id
    return make_is_device(number) if on_gpu() else lambda: cuda.get_current_device().id == number


@functools.cache
def _count_devices():
    return len(cuda.gpus)


def _device_of(array):
    """The number of the device that an array is on; None if all devices can use it, or for anything else."""
    if array is None or isinstance(array, np.ndarray):
        return None
    try:
        library = library_of(array)
        if library == "torch":
            return array.get_device() if array.is_cuda else None
        return array.device.id if library == "cupy" else array.gpu_data.context.device.id
    except AttributeError:
        return None


def plain_tensors(inputs: tuple, out, stream) -> tuple[tuple, Any] | None:
    """Return (inputs, out) with plain tensors of PyTorch in place of others; None if there are none.

    Others are parameters and further subclasses, what requires grad where gradients are off, and conjugate and negative
    views, which are copied, on the stream of the call. What PyTorch would compute a gradient of stays.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    made = *(_plain_tensor(array, torch, stream) for array in inputs), _plain_tensor(out, torch, stream, is_out=True)
    return (made[:-1], made[-1]) if any(new is not old for new, old in zip(made, (*inputs, out), strict=True)) else None


def _plain_tensor(tensor, torch, stream, is_out=False):
    if not isinstance(tensor, torch.Tensor) or tensor.requires_grad and torch.is_grad_enabled():
        return tensor
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.detach().as_subclass(torch.Tensor)
    if not is_out and (tensor.is_conj() or tensor.is_neg()):
        with made_current(stream_for(stream, tensor), tensor) or contextlib.nullcontext():
            tensor = tensor.resolve_conj().resolve_neg()
    return tensor


def made_current(stream, array) -> Any:
    """Return a context in which a ``stream=`` argument is the current stream of the array's library; None if it is.

    The memory of PyTorch's and CuPy's new arrays is that of the current stream: once they are gone, what is queued
    there next may use it, while work on another stream still does.
    """
    library = library_of(array)
    if library == "torch" and getattr(array, "is_cuda", False):
        handle, device = handle_of(stream_of(stream)), array.get_device()
        if make_current_of_torch()(device) != handle:
            return sys.modules["torch"].cuda.stream(stream_of_torch(handle, device))
    elif library == "cupy":
        handle = handle_of(stream_of(stream))
        if sys.modules["cupy"].cuda.get_current_stream().ptr != handle:
            return stream if library_of(stream) == "cupy" else _stream_of_cupy(handle)
    return None


@functools.lru_cache(maxsize=256)
def stream_of_torch(handle: int, device: int) -> Any:
    """Return PyTorch's object for a stream of a device."""
    streams = sys.modules["torch"].cuda
    return streams.ExternalStream(handle, device=device) if handle else streams.default_stream(device)


@functools.lru_cache(maxsize=256)
def _stream_of_cupy(handle):
    streams = sys.modules["cupy"].cuda
    with warnings.catch_warnings():
        # Its successor destroys the stream with the object that is made here, in some releases.
        warnings.simplefilter("ignore", DeprecationWarning)
        return streams.ExternalStream(handle) if handle else streams.Stream.null


@functools.cache
def make_current_of_torch():
    """Return what gives the handle of PyTorch's current stream by a device's number.

    The private function takes a tenth of the time of the public one. A release may be without it.
    """
    torch = sys.modules["torch"]
    return getattr(torch._C, "_cuda_getCurrentRawStream", lambda i: torch.cuda.current_stream(i).cuda_stream)


def is_captured(stream) -> bool:
    """Whether a CUDA graph records what is queued in a stream: 0, or one of Numba."""
    return bool(stream) and on_gpu() and make_is_captured(handle_of(stream))()


def check_not_captured(stream, why: str) -> None:
    """Raise RuntimeError if a CUDA graph records what is queued in a stream; ``why`` says what it cannot record."""
    if is_captured(stream):
        raise RuntimeError(f"a CUDA graph records the stream, which this call cannot be part of: {why}")


@functools.cache
def _handle_name(kind):
    """The attribute of a stream that has its handle, by the stream's class; "" for a class of another kind."""
    other = {"torch": "cuda_stream", "cupy": "ptr"}.get(kind.__module__.partition(".")[0])
    own = hasattr(kind, "__cuda_stream__") or kind.__name__ == "Stream" and hasattr(kind, "synchronize")
    return other or ("handle" if own else "")


@functools.lru_cache(maxsize=256)
def _external_stream(handle):
    """The same object for the same stream, since work memory belongs to a stream object."""
    return cuda.external_stream(handle)


def handle_of(stream) -> int:
    """The driver's handle of a stream, 0 for the default stream; TypeError for what is no stream.

    Examples
    --------
    >>> handle_of(0)
    0
    """
    try:
        return int(getattr(stream, "handle", stream))
    except Exception:
        raise TypeError(f"stream is {describe(stream)}; it must be 0 or a CUDA stream") from None


def library_of(thing) -> str:
    """The top-level package of an object's class; "torch" or "cupy" for a subclass of one that comes from there."""
    return _library_of_class(type(thing))


@functools.cache
def _library_of_class(kind):
    names = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((name for name in names if name in ("torch", "cupy")), names[0])


def configure_quietly(kernel, grid, block, stream=0, shared_bytes: int = 0) -> Any:
    """``kernel[grid, block, stream, shared_bytes]`` without Numba's warning about a small grid.

    The caller of a host function did not choose the grid.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        return kernel[grid, block, stream, shared_bytes]


def check_numbers(name: str, array, dimensions: int, more: bool = False, words: bool = False) -> np.dtype:
    """Raise TypeError or ValueError as `check_array`, and for elements that are no plain numbers; returns the dtype.

    ``words`` tells whether bfloat16 and bools, which `as_words` views as integers, are allowed, too.
    """
    check_array(name, array, dimensions, more=more)
    dtype = dtype_of(array)
    if words and (is_bfloat16(dtype) or dtype == np.bool_):
        return dtype
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or not dtype.isnative:
        raise TypeError(
            f"{name} has dtype {name_of(dtype)}; it must be an integer or a float of at most 8 bytes, in native order"
        )
    return dtype


def check_axis(axis: Any, dimensions: int) -> int | None:
    """Return an axis of x, counted from 0, or None; TypeError or ValueError for anything else."""
    if axis is None:
        return None
    if not is_int(axis):
        raise TypeError(f"axis is {describe(axis)}; it must be an int or None")
    if not -dimensions <= axis < dimensions:
        raise ValueError(f"axis is {describe(axis)}; x has {dimensions} dimension{'s' * (dimensions != 1)}")
    return int(axis) % dimensions


def _side(array):
    return "a device array" if cuda.is_cuda_array(array) else "a NumPy array"


def check_array(name: str, array, dimensions: int | tuple, dtypes: tuple | None = None, more: bool = False):
    """Raise TypeError or ValueError unless ``array`` is a NumPy or device array with these dimensions and dtypes.

    ``dimensions`` may be a tuple of allowed numbers; with ``more`` any larger number is allowed too.
    """
    check_kind(name, array)
    dtype = dtype_of(array)
    if dtypes is not None and dtype not in dtypes:
        raise TypeError(f"{name} has dtype {name_of(dtype)}; it must be {' or '.join(map(name_of, dtypes))}")
    allowed = dimensions if isinstance(dimensions, tuple) else (dimensions,)
    if len(array.shape) not in allowed and not (more and len(array.shape) > max(allowed)):
        what = "one dimension" if allowed == (1,) else f"{' or '.join(map(str, allowed))} dimensions"
        what += " or more" if more else ""
        raise ValueError(f"{name} has shape {tuple(array.shape)}; it must have {what}")
    if isinstance(array, np.ndarray) and array.nbytes > UNCHECKED_BYTES and array.nbytes > (free := _free_memory()):
        # A broadcast array can be larger than any memory: it must not be copied on the way to a device without room.
        raise MemoryError(f"{name} has shape {array.shape}, {array.nbytes:,} bytes; the device has {free:,} left")


def _free_memory():
    """Bytes that the device can still give."""
    if on_gpu():
        return cuda.current_context().get_memory_info().free
    from warpstep.api.allocations import free_memory

    return free_memory()


def allocate(what: str, shape: tuple, dtype, stream) -> Any:
    """Make a device array; MemoryError, which says ``what`` it is for, if the device has no room for it."""
    try:
        return cuda.device_array(shape, dtype, stream=stream)
    except cuda_api_error() as error:
        if "OUT_OF_MEMORY" not in str(error):
            raise
        raise MemoryError(
            f"{what} has shape {shape} and dtype {np.dtype(dtype)}, too much for the device: {error}"
        ) from error


def check_kind(name, array):
    """Raise TypeError or ValueError unless ``array`` is a plain NumPy array or a device array."""
    if type(array) is np.ndarray or isinstance(array, _own_classes()):
        return
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, and its mask would be lost; fill it first: {name}.filled(0)")
    if isinstance(array, np.matrix):
        raise TypeError(f"{name} is a np.matrix; it must be an array: np.asarray({name})")
    if library_of(array) == "torch" and has_attributes(array, "requires_grad"):
        _check_tensor(name, array)
    try:
        claims = getattr(array, "__cuda_ndarray__", False)
        interface = getattr(array, "__cuda_array_interface__", None)
    except Exception as error:
        raise TypeError(f"{name} cannot be used as a device array: {error}") from error
    if claims:
        raise TypeError(f"{name} is {type_name(array)}; it has __cuda_ndarray__, but is no array of numba.cuda")
    if isinstance(array, np.ndarray) and interface is None:
        return
    if interface is None:
        described = has_attributes(array, "__array__") or has_attributes(array, "__array_interface__")
        convertible = described or isinstance(array, list | tuple) and name != "out"
        hint = f": np.asarray({name})" if convertible else ""
        raise TypeError(f"{name} is {type_name(array)}; it must be a NumPy array or a device array{hint}")
    _check_interface(name, array, interface)


def _check_tensor(name, tensor):
    """Raise TypeError or ValueError if a tensor of PyTorch cannot be used, and its interface does not say so."""
    if tensor.requires_grad:
        raise TypeError(f"{name} requires grad, and no gradient would be computed; it must not: {name}.detach()")
    if not tensor.is_cuda:
        raise TypeError(f"{name} is on {tensor.device}; it must be on a GPU or a NumPy array: {name}.cuda()")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"{name} is a view that conjugates or negates; it must be a tensor of its own")
    if tensor.layout is sys.modules["torch"].strided and tensor.numel() and not tensor.data_ptr():
        raise ValueError(f"{name} has no memory: its storage has been resized; it must hold {tensor.numel()} elements")


@functools.cache
def _own_classes():
    """The classes of the device arrays that launches take as they are."""
    if on_gpu():
        return device_array_base()
    from warpstep.api.arrays import DeviceArray, DeviceRecord, MappedArray

    return DeviceArray, DeviceRecord, MappedArray


def _check_interface(name, array, interface):
    """Raise TypeError or ValueError unless an array of another library describes itself as the interface demands."""
    what = f"{name}.__cuda_array_interface__"
    if not isinstance(interface, dict):
        raise TypeError(f"{what} is {type_name(interface)}; it must be a dict")
    for key, kind in {"shape": tuple | list, "typestr": str, "data": tuple | list, "version": Integral}.items():
        if not isinstance(interface.get(key), kind):
            kinds = {"typestr": "a str", "version": "an int"}
            raise TypeError(
                f"{what}[{key!r}] is {describe(interface.get(key))}; it must be {kinds.get(key, 'a tuple')}"
            )
    shape, strides, data = interface["shape"], interface.get("strides"), interface["data"]
    for key, sizes in {"shape": shape, "strides": shape if strides is None else strides}.items():
        right = isinstance(sizes, tuple | list) and all(isinstance(n, Integral) for n in sizes)
        if not right or len(sizes) != len(shape):
            raise TypeError(f"{what}[{key!r}] is {describe(sizes)}; it must be a tuple of ints, one for each dimension")
    if min(shape, default=0) < 0:
        raise ValueError(f"{what}['shape'] is {describe(shape)}; no size may be negative")
    if len(data) != 2 or not isinstance(data[0], Integral):
        raise TypeError(
            f"{what}['data'] is {describe(data)}; it must be a tuple of an address and whether it is read-only"
        )
    if interface["version"] < 1 or interface.get("mask") is not None:
        raise ValueError(
            f"{what} has version {describe(interface['version'])}, or a mask; it must be 1 or more, without a mask"
        )
    try:
        own_shape = tuple(array.shape)
        as_device_array(array)
    except Exception as error:
        raise TypeError(f"{name} cannot be used as a device array: {error}") from error
    if own_shape != tuple(shape):
        raise ValueError(f"{name} has shape {describe(own_shape)}, but {what}['shape'] is {describe(shape)}")


def check_writable(name: str, array) -> None:
    """Raise ValueError if an array is read-only."""
    if isinstance(array, np.ndarray):
        writable = array.flags.writeable
    else:
        writable = getattr(array, "__cuda_ndarray__", False) or not array.__cuda_array_interface__["data"][1]
    if not writable:
        raise ValueError(f"{name} is read-only; it must be writable")


def check_alike(name: str, array, other_name: str, other, shape: tuple | None = None, dtype=None):
    """Raise TypeError or ValueError unless both are NumPy arrays or both device arrays, and ``array`` has the shape and
    the dtype, that of ``other`` unless given.
    """
    if cuda.is_cuda_array(array) != cuda.is_cuda_array(other):
        raise TypeError(f"{name} is {_side(array)} and {other_name} is {_side(other)}; they must be alike")
    if dtype is not None and dtype_of(array) != dtype:
        raise TypeError(f"{name} has dtype {name_of(dtype_of(array))}; it must be {name_of(dtype)}")
    if dtype is None and dtype_of(array) != dtype_of(other):
        own, others = name_of(dtype_of(array)), name_of(dtype_of(other))
        raise TypeError(f"{name} has dtype {own}; it must be {others}, as {other_name} is")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}; it must be {tuple(shape)}")


def check_apart(name: str, array, **others):
    """Raise ValueError if a device array shares memory with one of the others.

    NumPy arrays may: the kernel gets copies.
    """
    if not cuda.is_cuda_array(array):
        return
    for other_name, other in others.items():
        if share_memory(array, other):
            raise ValueError(f"{name} shares memory with {other_name}; they must be apart")


def share_memory(array, other) -> bool:
    """Whether two device arrays overlap, each taken from its first byte to its last."""
    (start, stop), (other_start, other_stop) = span(array), span(other)
    return start < other_stop and other_start < stop


def span(array) -> tuple[int, int]:
    """Addresses of a device array's first byte and of the byte after its last; (0, 0) if it is empty."""
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


def device_array_of(shape: tuple, strides: tuple, dtype, memory, offset: int = 0) -> Any:
    """A device array with these strides in the memory of another one, from ``offset`` bytes after its beginning on."""
    data = memory.gpu_data.view(offset) if offset else memory.gpu_data
    return _array_class()(shape, strides, np.dtype(dtype), gpu_data=data)


def window(array, dtype, count: int) -> Any:
    """View the memory of a device array from its first element on as ``count`` elements of a dtype in one dimension,
    gaps between rows included. On a GPU nothing checks that the memory is that long.
    """
    dtype, array = np.dtype(dtype), as_device_array(array)
    return device_array_of((count,), (dtype.itemsize,), dtype, array)


def is_pinned(array: np.ndarray) -> bool:
    """Whether a NumPy array lies in page-locked memory. Always True on the emulator.

    Examples
    --------
    >>> is_pinned(cuda.pinned_array(10))
    True
    """
    check_type("array", array, np.ndarray, "a NumPy array")
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
