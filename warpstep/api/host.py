"""The host functions of ``numba.cuda``, for the emulated device; `cuda` joins them with Numba's own device side."""

import functools
import operator
import os
from contextlib import contextmanager
from typing import Any

import numpy as np

from warpstep import native
from warpstep._numba import compiler, contiguous_strides_like, order_like
from warpstep.api import allocations, arrays, context, sharing
from warpstep.api.arrays import DeviceArray, ManagedArray, MappedArray
from warpstep.api.context import get_context as current_context
from warpstep.api.context import get_current_device, gpus, require_context
from warpstep.api.context import reset as close
from warpstep.api.streams import Event, Stream, event_elapsed_time
from warpstep.errors import UnsupportedError
from warpstep.values import check_type, describe, has_attributes, type_name

__all__ = [
    "as_cuda_array",
    "close",
    "compile",
    "compile_all",
    "compile_for_current_device",
    "compile_ptx",
    "compile_ptx_for_current_device",
    "cuda_error",
    "current_context",
    "default_stream",
    "defer_cleanup",
    "detect",
    "device_array",
    "device_array_like",
    "event",
    "event_elapsed_time",
    "external_stream",
    "from_cuda_array_interface",
    "get_current_device",
    "gpus",
    "is_available",
    "is_bfloat16_supported",
    "is_cuda_array",
    "is_float16_supported",
    "is_fp8_supported",
    "is_supported_version",
    "legacy_default_stream",
    "list_devices",
    "managed_array",
    "mapped",
    "mapped_array",
    "mapped_array_like",
    "open_ipc_array",
    "per_thread_default_stream",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "profile_start",
    "profile_stop",
    "profiling",
    "require_context",
    "select_device",
    "set_memory_manager",
    "stream",
    "synchronize",
    "to_device",
]

# -- arrays --


def to_device(obj, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None) -> Any:
    """Copy an array or a structured scalar to the device.

    Parameters
    ----------
    obj : array_like
        Contiguous. What is on the device already is given back as it is.
    stream : Stream or 0
    copy : bool
        False allocates without copying.
    to : DeviceArray, optional
        Copy into this array instead of a new one.

    Returns
    -------
    DeviceArray
        A DeviceRecord for a structured scalar.

    Raises
    ------
    ValueError
        If ``obj`` is not contiguous, or differs from ``to`` in shape.
    TypeError
        If it holds Python objects or lies in the memory of a real GPU, or differs from ``to`` in dtype.
    """
    if to is None:
        return arrays.auto_device(obj, stream=stream, copy=copy, user_explicit=True)[0]
    if arrays.as_device_array(to) is None:
        raise TypeError(f"to is {describe(to)}; it must be a device array or None")
    if copy:
        to.copy_to_device(obj, stream=stream)
    return to


def device_array(shape, dtype: Any = np.float64, strides=None, order="C", stream: Any = 0) -> DeviceArray:
    """Allocate device memory, uninitialised (NaN in float dtypes)."""
    shape, strides, dtype = arrays.as_layout(shape, strides, dtype, order)
    return DeviceArray(shape, strides, dtype, stream=stream)


def managed_array(
    shape, dtype: Any = np.float64, strides=None, order="C", stream: Any = 0, attach_global=True
) -> MappedArray:
    """Allocate a NumPy array in memory that host and device share, uninitialised."""
    return ManagedArray.allocate(shape, dtype, strides, order, stream)


def pinned_array(shape, dtype: Any = np.float64, strides=None, order="C") -> np.ndarray:
    """Allocate host memory, uninitialised. It is ordinary memory: only a real GPU copies faster from pinned memory."""
    shape, strides, dtype = arrays.as_layout(shape, strides, dtype, order)
    _, nbytes = arrays.byte_span(shape, strides, dtype.itemsize)
    return np.ndarray(shape, dtype, allocations.host_memory(nbytes), strides=strides if nbytes else None)


def mapped_array(
    shape, dtype: Any = np.float64, strides=None, order="C", stream: Any = 0, portable=False, wc=False
) -> MappedArray:
    """Allocate a NumPy array in host memory that the device sees too, uninitialised."""
    return MappedArray.allocate(shape, dtype, strides, order, stream)


def device_array_like(ary, stream: Any = 0) -> DeviceArray:
    """Allocate as `device_array` does, with the shape, dtype and memory order of another array."""
    return device_array(**_like(ary), stream=stream)


def mapped_array_like(ary, stream: Any = 0, portable=False, wc=False) -> MappedArray:
    """Allocate as `mapped_array` does, with the shape, dtype and memory order of another array."""
    return mapped_array(**_like(ary), stream=stream, portable=portable, wc=wc)


def pinned_array_like(ary) -> np.ndarray:
    """Allocate as `pinned_array` does, with the shape, dtype and memory order of another array."""
    return pinned_array(**_like(ary))


def _like(ary) -> dict[str, Any]:
    check_type("ary", ary, (np.ndarray, DeviceArray), "a NumPy array or a device array")
    return {
        "shape": ary.shape,
        "dtype": ary.dtype,
        "strides": contiguous_strides_like(ary),
        "order": order_like(ary),
    }


@contextmanager
def pinned(*arylist):
    """``with cuda.pinned(a, b): ...``: on a GPU, copies from these arrays are faster and asynchronous inside the block.

    Raises
    ------
    TypeError, ValueError
        For what is not a writable NumPy array.
    """
    _check_lockable(arylist)
    yield


@contextmanager
def mapped(*arylist, stream: Any = 0):
    """``with cuda.mapped(a) as d_a: ...``: a device array on the memory of a host array, in place; a list for several.

    It cannot be used after the block.

    Raises
    ------
    TypeError, ValueError
        For what is not a writable NumPy array.
    """
    _check_lockable(arylist)
    found = [arrays.map_host(ary, stream) for ary in arylist]
    try:
        yield found[0] if len(found) == 1 else found
    finally:
        for array in found:
            if not array.allocation.freed:
                array.allocation.free()


def _check_lockable(arylist):
    for ary in arylist:
        if not isinstance(ary, np.ndarray):
            raise TypeError(f"only NumPy arrays can be pinned or mapped, not {type(ary).__name__}")
        if not ary.flags.writeable:
            raise ValueError("only writable arrays can be pinned or mapped; this one is read-only")


def is_cuda_array(obj) -> bool:
    """True for an emulated device array, and for anything that has ``__cuda_array_interface__``."""
    return arrays.as_device_array(obj) is not None or hasattr(obj, "__cuda_array_interface__")


def as_cuda_array(obj, sync: bool = True) -> Any:
    """Return an emulated device array as it is.

    Raises
    ------
    TypeError
        For anything else; for an array on a real GPU the message says how to get it here.
    """
    array = arrays.as_device_array(obj)
    if array is not None:
        return array
    if has_attributes(obj, "__cuda_array_interface__"):
        return from_cuda_array_interface(obj.__cuda_array_interface__, owner=obj, sync=sync)
    raise TypeError(f"{type_name(obj)} is not a device array and doesn't implement the cuda array interface")


def from_cuda_array_interface(desc: dict, owner=None, sync: bool = True) -> DeviceArray:
    """Make an array for a description whose address lies in emulated device memory.

    Raises
    ------
    TypeError
        If the address lies elsewhere: the emulator cannot reach the memory of a real GPU.
    NotImplementedError
        For a masked array.
    """
    try:
        masked = check_type("desc", desc, dict, "a dict").get("mask") is not None
        shape, strides, dtype = desc["shape"], desc.get("strides"), desc["typestr"]
        address = operator.index(desc["data"][0])
    except Exception as error:
        what = "the dict of a __cuda_array_interface__, with shape, typestr and data"
        raise TypeError(f"desc is {describe(desc)}; it must be {what}") from error
    if masked:
        raise NotImplementedError("Masked arrays are not supported")
    shape, strides, dtype = arrays.as_layout(shape, strides, dtype, "C")
    allocation = allocations.find_allocation(address) if address else None
    if allocation is not None:
        memory = allocations.DevicePointer(allocation, address - allocation.address)
        return DeviceArray(shape, strides, dtype, gpu_data=memory)
    if 0 in shape:
        return DeviceArray(shape, strides, dtype)
    what = "this memory" if owner is None else f"{type_name(owner)}"
    raise TypeError(f"{what} lies in a real GPU, which the emulator cannot reach: copy it to the host first")


@contextmanager
def open_ipc_array(handle, shape, dtype, strides=None, offset=0):
    """``with cuda.open_ipc_array(handle, shape, dtype) as array: ...``: the memory of another process as an array.

    Parameters
    ----------
    handle : bytes
        The ``handle.reserved`` of an IpcHandle.

    Raises
    ------
    ValueError
        If there is no such memory, or not so much.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    shared = sharing.IpcHandle(None, sharing.MemHandle(bytes(handle)), size, offset=offset)
    yield shared.open_array(current_context(), shape, dtype, strides)
    shared.close()


def set_memory_manager(mm_plugin):
    """Raise UnsupportedError: a plugin manages the memory of a GPU, and the emulator has none."""
    raise UnsupportedError(
        f"{getattr(mm_plugin, '__name__', mm_plugin)} manages the memory of a GPU, and the emulator has none: skip "
        "set_memory_manager() here, arrays need no other change"
    )


# -- streams and events --


def stream() -> Stream:
    """Make a new stream."""
    return current_context().create_stream()


def default_stream() -> Stream:
    """Return the default stream."""
    return current_context().get_default_stream()


def legacy_default_stream() -> Stream:
    """Return the legacy default stream."""
    return current_context().get_legacy_default_stream()


def per_thread_default_stream() -> Stream:
    """Return the default stream of this thread."""
    return current_context().get_per_thread_default_stream()


def external_stream(ptr: int) -> Stream:
    """Make a stand-in for a stream made elsewhere. TypeError if ``ptr`` is not an int."""
    return current_context().create_external_stream(ptr)


def event(timing: bool = True) -> Event:
    """Make an event. Its elapsed time is an error here: the emulator has no time."""
    return current_context().create_event(timing=timing)


def synchronize() -> None:
    """Wait for everything that was launched: it is done already."""
    current_context().synchronize()


# -- the device --


def select_device(device_id: int) -> context.Device:
    """Make a device the current one of this thread, and return it. IndexError if there is no such device."""
    return current_context(device_id).device


def list_devices() -> context.DeviceList:
    """List the emulated devices."""
    return gpus


def is_available() -> bool:
    """True: the emulator can always run."""
    return True


def is_supported_version() -> bool:
    """True: there is no CUDA runtime to disagree with."""
    return True


def cuda_error() -> None:
    """None: there is no driver that could fail to start."""


def is_float16_supported() -> bool:
    """True on every device."""
    return True


def is_bfloat16_supported() -> bool:
    """True from compute capability 8.0 on."""
    return get_current_device().supports_bfloat16


def is_fp8_supported() -> bool:
    """True from compute capability 8.9 on."""
    return get_current_device().supports_fp8


def detect() -> bool:
    """Print what ``numba.cuda.detect`` prints, for the emulated devices; returns True, for they are supported."""
    print(f"Found {len(gpus)} CUDA devices")
    for device in gpus:
        rows = [
            ("Compute Capability", "{}.{}".format(*device.compute_capability)),
            ("PCI Device ID", "none (emulated)"),
            ("PCI Bus ID", "none (emulated)"),
            ("UUID", device.uuid),
            ("Watchdog", "Enabled" if device.KERNEL_EXEC_TIMEOUT else "Disabled"),
            ("FP32/FP64 Performance Ratio", device.SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO),
            ("FP16 Support", "Yes" if device.supports_float16 else "No"),
            ("BF16 Support", "Yes" if device.supports_bfloat16 else "No"),
            ("FP8 Support", "Yes" if device.supports_fp8 else "No"),
        ]
        if os.name == "nt":
            rows.insert(5, ("Compute Mode", "TCC" if device.TCC_DRIVER else "WDDM"))
        print(f"id {device.id}    {device.name:>20} {'[SUPPORTED]':>40}")
        for label, value in rows:
            print(f"{label:>40}: {value}")
    print("Summary:")
    print(f"\t{len(gpus)}/{len(gpus)} devices are supported")
    return True


@contextmanager
def defer_cleanup():
    """``with cuda.defer_cleanup(): ...``: on a GPU, memory that is given back inside is freed at the end."""
    yield


def profile_start() -> None:
    """Do nothing: no profiler can watch the emulator. ``trace`` shows what a kernel does."""


def profile_stop() -> None:
    """Do nothing; see `profile_start`."""


@contextmanager
def profiling():
    """``with cuda.profiling(): ...``: runs the block; see `profile_start`."""
    yield


# -- compiling for the GPU --


def _for_emulated_device(function):
    """A function of numba-cuda that compiles, for the emulated device where it would ask for the current one.

    It needs numba-cuda's compiler and no GPU: UnsupportedError where it is not installed.
    """

    @functools.wraps(function)
    def compile_(pyfunc, *args, **options):
        with native.compiling_for(get_current_device()):
            return function(native.of_numba(getattr(pyfunc, "py_func", pyfunc)), *args, **options)

    return compile_


compile = _for_emulated_device(compiler.compile)
compile_all = _for_emulated_device(compiler.compile_all)
compile_for_current_device = _for_emulated_device(compiler.compile_for_current_device)
compile_ptx = _for_emulated_device(compiler.compile_ptx)
compile_ptx_for_current_device = _for_emulated_device(compiler.compile_ptx_for_current_device)
