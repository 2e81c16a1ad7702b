"""Arrays on the emulated device.

`DeviceArray` does what numba.cuda's DeviceNDArray does, and raises where it raises. Shapes and strides after
``reshape``, ``ravel`` and ``squeeze``, and the contiguity flags, come from numba-cuda's own `dummyarray`, so that they
are those of a real device array.
"""

import ctypes
import math
import operator
import warnings
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from warpstep import device
from warpstep._numba import (
    ConfigStack,
    NumbaPerformanceWarning,
    TypingError,
    check_array_compatibility,
    config,
    dummyarray,
    numpy_support,
    prepare_shape_strides_dtype,
    sentry_contiguous,
    types,
)
from warpstep.api import order, sharing
from warpstep.api.allocations import Allocation, DevicePointer, address_of, check_alive, host_memory
from warpstep.api.streams import check_stream, key_of
from warpstep.errors import KernelError
from warpstep.values import check_items, describe, type_name

#: Axes of an array, as in NumPy.
MAX_DIMENSIONS = 64


def _normal_shape(shape):
    if isinstance(shape, int):
        return (shape,)
    for extent in shape:
        if not isinstance(extent, int | np.integer):
            raise TypeError(f"shape elements must be integers, got {type(extent).__name__}")
    return tuple(int(extent) for extent in shape)


def _normal_dtype(dtype):
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(
            f"dtype is {dtype}: Python objects cannot be in device memory; use a numeric or structured dtype"
        )
    return dtype


def as_layout(shape, strides, dtype, order) -> tuple[tuple, tuple, np.dtype]:
    """Shape, strides in bytes and dtype of a new array, of what numba.cuda's functions take for these arguments.

    Raises
    ------
    TypeError, ValueError
        For anything else, and for a dtype of Python objects, which no device can hold.
    """
    try:
        dtype = _normal_dtype(dtype)
    except Exception as error:
        raise TypeError(f"dtype is {describe(dtype)}; it must be a NumPy dtype without Python objects") from error
    found = []
    for name, sizes, what in (("shape", shape, "an int or a tuple of ints"), ("strides", strides, "None, or as shape")):
        if sizes is None and name == "strides" or isinstance(sizes, int) and not isinstance(sizes, bool):
            found.append(sizes)
            continue
        found.append(tuple(check_items(name, sizes, what, MAX_DIMENSIONS)))
        if not all(isinstance(n, int | np.integer) for n in found[-1]):
            raise TypeError(f"{name} is {describe(sizes)}; it must be {what}")
    if not isinstance(order, str) or order not in ("C", "F"):
        raise ValueError(f"order is {describe(order)}; it must be 'C' or 'F'")
    shape, strides, dtype = prepare_shape_strides_dtype(*found, dtype, order)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape is {describe(shape)}: negative dimensions are not allowed")
    if max(map(abs, (*shape, *strides)), default=0) >= 1 << 63:
        raise ValueError(f"shape is {describe(shape)} and strides are {describe(strides)}; they must fit into 64 bits")
    return shape, strides, dtype


def byte_span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Bounds (low, high) of the bytes that an array covers, relative to its first element."""
    if 0 in shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


class _OnDevice:
    """What device arrays and device records have in common."""

    __cuda_memory__ = True
    __cuda_ndarray__ = True

    def __init__(self, shape, strides, dtype, stream=0, gpu_data=None, name=None, poison=True):
        shape = _normal_shape(shape)
        if any(extent < 0 for extent in shape):
            raise ValueError(f"shape is {shape}: negative dimensions are not allowed")
        strides = (strides,) if isinstance(strides, int) else tuple(strides)
        if len(strides) != len(shape):
            raise ValueError("strides not match ndim")
        check_stream(stream)
        self.dtype = _normal_dtype(dtype)
        self._dummy = dummyarray.Array.from_desc(0, shape, strides, self.dtype.itemsize)
        self.shape = self._dummy.shape
        self.strides = self._dummy.strides
        self.ndim = self._dummy.ndim
        self.size = self._dummy.size
        self.stream = stream
        low, high = byte_span(self.shape, self.strides, self.dtype.itemsize)
        self.alloc_size = high - low
        if gpu_data is None:
            if low:
                raise ValueError(f"strides are {strides}: a new array cannot have negative strides")
            gpu_data = DevicePointer(Allocation(high, name, poison=poison))
        self.gpu_data = gpu_data
        self._host = self._view(gpu_data.allocation, gpu_data.offset)
        #: {name of a parameter: (``host``, its view in a kernel)}
        self.views = {}

    def _view(self, allocation, offset):
        self._bytes = allocation.bytes
        try:
            return np.ndarray(self.shape, self.dtype, allocation.bytes, offset if self.size else 0, self.strides)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"an array of shape {self.shape}, strides {self.strides} and dtype {self.dtype} "
                f"does not fit into {allocation} at offset {offset}"
            ) from error

    @property
    def allocation(self) -> Allocation:
        """The memory that the array is in."""
        return self.gpu_data.allocation

    @property
    def __cuda_array_interface__(self):
        # An address on the emulated device is of no use to another library. But Numba tells by this attribute that a
        # global array is memory to write to and no constant.
        if ConfigStack.top_or_none() is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute '__cuda_array_interface__'")
        return {}

    @property
    def host(self) -> np.ndarray:
        """The array's elements in place, for the emulator itself. CudaAPIError if its memory was freed."""
        allocation = self.allocation
        check_alive(allocation)
        if self._bytes is not allocation.bytes:  # the memory has moved: it is shared with other processes now
            self._host = self._view(allocation, self.gpu_data.offset)
        return self._host

    @property
    def device_ctypes_pointer(self) -> ctypes.c_size_t:
        """Address of the first element on the emulated device."""
        return self.gpu_data.device_ctypes_pointer

    def as_cuda_arg(self) -> DevicePointer:
        """Return the memory, from the first element on."""
        return self.gpu_data

    def get_ipc_handle(self) -> "IpcArrayHandle":
        """Return a handle with which other processes of this machine open the array.

        UnsupportedError for memory that the host uses too.
        """
        described = {"shape": self.shape, "strides": self.strides, "dtype": self.dtype}
        return IpcArrayHandle(sharing.export(self.gpu_data), described)

    @property
    def flags(self) -> dict[str, bool]:
        return dict(self._dummy.flags)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the elements; `alloc_size` is what they span in memory."""
        return self.dtype.itemsize * self.size

    def bind(self, stream=0):
        """The same array with another default stream."""
        return self._window(self.shape, self.strides, self.dtype, stream)

    def _default_stream(self, stream):
        check_stream(stream)
        return stream or self.stream

    def _window(self, shape, strides, dtype, stream, start=0):
        """An array on the same memory whose first element is ``start`` bytes behind this one's."""
        _, size = byte_span(shape, strides, dtype.itemsize)
        memory = self.gpu_data
        if start or size != memory.size:
            memory = DevicePointer(self.allocation, memory.offset + start, size)
        return DeviceArray(shape, strides, dtype, stream=stream, gpu_data=memory)

    def _window_of(self, host, stream):
        """The array whose elements are those of a NumPy view on this array's."""
        start = address_of(host) - address_of(self._host) if host.size else 0
        return self._window(host.shape, host.strides, host.dtype, stream, start)

    # -- copies --

    def copy_to_host(self, ary=None, stream: Any = 0) -> Any:
        """Copy to the host.

        Parameters
        ----------
        ary : ndarray, optional
            Where to. Same shape, dtype and strides; a new array if None.
        stream : Stream or 0

        Returns
        -------
        ndarray

        Raises
        ------
        TypeError, ValueError
            If ``ary`` has another dtype, shape or strides, or is read-only.
        NotImplementedError
            For negative strides.
        """
        if any(stride < 0 for stride in self.strides):
            raise NotImplementedError(f"D->H copy not implemented for negative strides: {self.strides}")
        stream = self._default_stream(stream)
        source = self.gpu_data.bytes[: self.alloc_size]
        if order.watched():
            order.copied(key_of(stream), None, self.gpu_data, not stream)
        if ary is None:
            return np.ndarray(self.shape, self.dtype, source.copy(), strides=self.strides if self.size else None)
        if not isinstance(ary, np.ndarray):
            raise TypeError(f"ary is {type_name(ary)}; it must be a NumPy array")
        check_array_compatibility(self.host, ary)
        if not ary.flags.writeable:
            raise ValueError("ary is read-only")
        # As cudaMemcpy does: all bytes from the first element to the last, those between strided elements included.
        host_bytes(ary)[:] = source
        return ary

    def copy_to_device(self, ary, stream: Any = 0) -> None:
        """Copy from the host, or from another device array, to this one.

        Parameters
        ----------
        ary : ndarray or DeviceArray
            Same shape and dtype. A device array must have the same strides too. Nothing is copied if it is empty.
        stream : Stream or 0

        Raises
        ------
        TypeError, ValueError
            If dtype or shape differ, or this array is not contiguous.
        """
        source = as_device_array(ary)
        if source is None and not isinstance(ary, np.ndarray | np.generic):
            raise TypeError(f"ary is {type_name(ary)}; it must be a NumPy array or a device array")
        if ary.size == 0:
            return
        sentry_contiguous(self.host)
        stream = self._default_stream(stream)
        if order.watched():
            order.copied(key_of(stream), self.gpu_data, source and source.gpu_data, source is None and not stream)
        target = array_core(self.host)
        if source is None:
            source = np.asanyarray(array_core(ary), order="C" if target.flags["C_CONTIGUOUS"] else "F")
        else:
            sentry_contiguous(source.host)
            source = array_core(source.host)
        check_array_compatibility(target, source)
        target.squeeze()[...] = source.squeeze()
        self.allocation.mark(target)

    # -- other forms of the same memory --

    @property
    def T(self):
        return self.transpose()

    def transpose(self, axes=None):
        """Return the transpose of a 2-D array, in new memory, as numba.cuda makes it.

        Raises
        ------
        NotImplementedError
            If it is not 2-D.
        """
        if axes and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError("transposing a non-2D DeviceNDArray isn't supported")
        if axes is not None and set(axes) != set(range(self.ndim)):
            raise ValueError(f"invalid axes list {describe(axes)}")
        _check_access("transposing an array", self)
        return from_host(np.ascontiguousarray(self.host.T), stream=self.stream)

    def split(self, section: int, stream=0) -> "Iterator[DeviceArray]":
        """Yield the parts of a 1-D array, ``section`` elements each, the last one perhaps shorter.

        Raises
        ------
        ValueError
            If the array is not 1-D with unit stride.
        """
        stream = self._default_stream(stream)
        if self.ndim != 1:
            raise ValueError("only support 1d array")
        if self.strides[0] != self.dtype.itemsize:
            raise ValueError("only support unit stride")
        for part in range(math.ceil(self.size / section)):
            yield self._window_of(self.host[part * section : (part + 1) * section], stream)

    def squeeze(self, axis=None, stream=0) -> "DeviceArray":
        """Return a view without axes of length one. ValueError for an ``axis`` that is longer."""
        layout, _ = self._dummy.squeeze(axis=axis)
        return self._window(layout.shape, layout.strides, self.dtype, self._default_stream(stream))

    def view(self, dtype) -> "DeviceArray":
        """Return the same bytes as elements of another dtype.

        Raises
        ------
        ValueError
            If the size of an element changes and the array is not C-contiguous, or its last axis is not a whole number
            of new elements.
        """
        dtype = _normal_dtype(dtype)
        shape, strides = list(self.shape), list(self.strides)
        if self.dtype.itemsize != dtype.itemsize:
            if not self.flags["C_CONTIGUOUS"]:
                raise ValueError("To change to a dtype of a different size, the array must be C-contiguous")
            shape[-1], rest = divmod(shape[-1] * self.dtype.itemsize, dtype.itemsize)
            if rest:
                raise ValueError(
                    "When changing to a larger dtype, its size must be a divisor of the total size in bytes of the "
                    "last axis of the array."
                )
            strides[-1] = dtype.itemsize
        return self._window(shape, strides, dtype, self.stream)


class DeviceRecord(_OnDevice):
    """A structured scalar on the emulated device: ``array[i]`` of a structured array, or ``to_device`` of a record."""

    def __init__(self, dtype, stream=0, gpu_data=None, name=None):
        super().__init__((), (), dtype, stream, gpu_data, name)

    @property
    def _numba_type_(self):
        return numpy_support.from_dtype(self.dtype)

    def copy_to_host(self, ary=None, stream: Any = 0) -> Any:
        """Copy to the host: to a record or an array of no dimensions; to a new array if ``ary`` is None."""
        if not isinstance(ary, np.void):
            return super().copy_to_host(ary, stream)
        found = super().copy_to_host(None, stream)
        check_array_compatibility(found, ary)
        for field in self.dtype.names or ():
            ary[field] = found[field]
        return ary

    def bind(self, stream=0):
        """The same record with another default stream."""
        return DeviceRecord(self.dtype, stream=stream, gpu_data=self.gpu_data)

    def __getitem__(self, field):
        return self.getitem(field)

    def getitem(self, field, stream=0):
        """A field: a NumPy scalar, a DeviceRecord for a nested record, a DeviceArray for a nested array.

        KeyError if there is none of that name.
        """
        stream = self._default_stream(stream)
        dtype, offset = (self.dtype.fields or {})[field][:2]
        if dtype.names is not None:
            return DeviceRecord(dtype, stream=stream, gpu_data=self.gpu_data.view(offset))
        if dtype.shape:
            shape, strides, item = prepare_shape_strides_dtype(dtype.shape, None, dtype.base, "C")
            return self._window(shape, strides, item, stream, offset)
        return self.host[field][()]

    def __setitem__(self, field, value):
        self.setitem(field, value)

    def setitem(self, field, value, stream=0):
        """Write one field. KeyError if there is none."""
        self._default_stream(stream)
        if field not in (self.dtype.names or ()):
            raise KeyError(field)
        self.host[field] = value
        self.allocation.mark(np.asarray(self.host[field]))


@cache
def _array_type(dtype, ndim, layout):
    return types.Array(numpy_support.from_dtype(dtype), ndim, layout)


class DeviceArray(_OnDevice):
    """An array on the emulated device: numba.cuda's ``DeviceNDArray``.

    Parameters
    ----------
    shape : int or tuple of int
    strides : int or tuple of int
        In bytes.
    dtype : dtype
    stream : Stream or 0
        Default stream of its operations.
    gpu_data : DevicePointer, optional
        Existing memory; new, uninitialised memory if None.
    name : str, optional
        For messages.
    """

    def is_c_contiguous(self) -> bool:
        return self._dummy.is_c_contig

    def is_f_contiguous(self) -> bool:
        return self._dummy.is_f_contig

    @cached_property
    def _numba_type_(self):
        # A broadcast array has layout "A": its zero strides are not those that "C" or "F" stand for.
        broadcast = 0 in self.strides and self.size != 0
        layout = next((order for order in "CF" if self.flags[f"{order}_CONTIGUOUS"] and not broadcast), "A")
        make = _array_type if self.dtype.kind in "biufc" else _array_type.__wrapped__
        return make(self.dtype, self.ndim, layout)

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("`copy=False` is not supported. A copy is always created.")
        host = self.copy_to_host()
        return host if dtype is None else host.astype(dtype, copy=False)

    def __len__(self):
        return self.shape[0]

    def __repr__(self):
        name = f" {self.allocation.name!r}" if self.allocation.name else ""
        return f"<DeviceArray{name} of shape {self.shape} and dtype {self.dtype} on the emulated device>"

    def reshape(self, *newshape, **kws) -> "DeviceArray":
        """Return a view of another shape; ``order`` is "C", "F" or "A".

        Raises
        ------
        NotImplementedError
            If that is not possible without a copy.
        ValueError
            If the number of elements differs.
        """
        if len(newshape) == 1 and isinstance(newshape[0], tuple | list):
            newshape = tuple(newshape[0])
        if newshape == self.shape:
            return self._window(self.shape, self.strides, self.dtype, 0)
        layout, _ = self._dummy.reshape(*newshape, **kws)
        if not (self.is_c_contiguous() or self.is_f_contiguous()):
            raise NotImplementedError("operation requires copying")
        return self._window(layout.shape, layout.strides, self.dtype, 0)

    def ravel(self, order="C", stream=0) -> "DeviceArray":
        """Return a 1-D view. NotImplementedError if that is not possible without a copy."""
        layout, _ = self._dummy.ravel(order=order)
        return self._window(layout.shape, layout.strides, self.dtype, self._default_stream(stream))

    def __getitem__(self, item):
        return self.getitem(item)

    def getitem(self, item, stream=0):
        """``array[item]``: a scalar read from the device, a DeviceRecord, or a view.

        Parameters
        ----------
        item : int, slice or tuple of those

        Raises
        ------
        IndexError
            Out of range, or more indices than dimensions.
        TypeError
            For what device arrays do not take: lists, masks, ``...``, ``None``.
        RuntimeError
            For a view of an empty array where numba.cuda cannot make one.
        """
        stream = self._default_stream(stream)
        found = self.host[_basic_index(item, self.ndim) + (...,)]
        if self.size == 0 and self._dummy[item].extent.end > self._dummy[item].extent.begin:
            # The strides of an empty array from NumPy are 0, which numba.cuda takes for one element of no memory.
            raise RuntimeError("non-empty slice into empty slice")
        if found.ndim:
            return self._window_of(found, stream)
        if self.dtype.names is not None:
            memory = self.gpu_data.view(address_of(found) - address_of(self._host))
            return DeviceRecord(self.dtype, stream=stream, gpu_data=memory)
        return found[()]

    def __setitem__(self, key, value):
        self.setitem(key, value)

    def setitem(self, key, value, stream=0):
        """``array[key] = value`` for a scalar, an array or a device array that fits by broadcasting.

        Values are cast as a kernel casts them.

        Raises
        ------
        IndexError, TypeError
            As for `getitem`.
        ValueError
            If the value has more dimensions, or a length that does not fit.
        """
        stream = self._default_stream(stream)
        target = self.host[_basic_index(key, self.ndim) + (...,)]
        source, _ = auto_device(value, stream=stream, user_explicit=True)
        _check_access("setting elements", self, source)
        source = source.host
        if source.ndim > target.ndim:
            raise ValueError(f"Can't assign {source.ndim}-D array to {target.ndim}-D self")
        source = source.reshape((1,) * (target.ndim - source.ndim) + source.shape)
        for axis, (there, here) in enumerate(zip(target.shape, source.shape, strict=True)):
            if here not in (1, there):
                raise ValueError(f"Can't copy sequence with size {here} to array axis {axis} with dimension {there}")
        if source.dtype.kind == "c" and target.dtype.kind != "c":
            raise TypingError(f"cannot store {source.dtype} in an array of {target.dtype}")
        np.copyto(target, source, casting="unsafe")
        self.allocation.mark(target)


def _check_access(what, *arrays):
    """Raise KernelError where numba.cuda runs a kernel on the current device that may not access an array."""
    here = device.number()
    for array in arrays:
        memory = array.gpu_data.allocation
        if memory.device != here and memory.is_private and not device.has_access(here, memory.device):
            raise KernelError(
                f"{what} runs a kernel on the current device, {here}, which has no access to the memory of device "
                f"{memory.device}: do it inside `with cuda.gpus[{memory.device}]:`",
                kind="peer-access",
                line=None,
                filename=None,
            )


def _basic_index(item, ndim):
    """An index of a device array as a tuple of ints and slices."""
    items = item if isinstance(item, tuple) else (item,)
    if len(items) > ndim:
        raise IndexError(f"{len(items) - ndim} extra indices given")
    normal = []
    for part in items:
        try:
            normal.append(part if isinstance(part, slice) else operator.index(part))
        except TypeError:
            raise TypeError(f"a device array takes integers and slices as index, not {type(part).__name__}") from None
    return tuple(normal)


class IpcArrayHandle:
    """An array that other processes can open: what ``array.get_ipc_handle`` gives. It can be pickled.

    ``with handle as array: ...`` in the other process.
    """

    def __init__(self, ipc_handle: sharing.IpcHandle, array_desc: dict):
        self._ipc_handle = ipc_handle
        self._array_desc = array_desc

    def open(self) -> DeviceArray:
        """Return an array on the same memory. ValueError in the process that exported it."""
        return DeviceArray(gpu_data=self._ipc_handle.open(None), **self._array_desc)

    def close(self) -> None:
        """End the use of the memory here."""
        self._ipc_handle.close()

    def __enter__(self):
        return self.open()

    def __exit__(self, *exception):
        self.close()


# -- host memory that the device sees --


class MappedArray(np.ndarray):
    """A NumPy array whose memory the device sees too (``mapped_array``): what a kernel writes is on the host at once.

    Slices and views of it are mapped as well; results of NumPy operations are ordinary arrays.

    Attributes
    ----------
    allocation : Allocation or None
        None for an array that has left the mapped memory.
    stream : Stream or 0
    """

    __cuda_memory__ = True
    __cuda_ndarray__ = True
    _on_device = False  # whether new memory counts as device memory

    @classmethod
    def allocate(cls, shape, dtype: Any = np.uint8, strides=None, order="C", stream=0) -> "MappedArray":
        """Make an array in new memory, uninitialised."""
        shape, strides, dtype = as_layout(shape, strides, dtype, order)
        check_stream(stream)
        _, nbytes = byte_span(shape, strides, dtype.itemsize)
        allocation = Allocation(nbytes, memory=None if cls._on_device else host_memory(nbytes))
        allocation.movable = False
        array = np.ndarray(shape, dtype, allocation.bytes, strides=strides if nbytes else None).view(cls)
        array.allocation = allocation
        array.stream = stream
        return array

    def is_c_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        return self.flags.f_contiguous

    def __array_finalize__(self, parent):
        self.stream = getattr(parent, "stream", 0)
        allocation = getattr(parent, "allocation", None)
        inside = allocation is not None and 0 <= address_of(self) - address_of(allocation.bytes) < allocation.bytes.size
        self.allocation = allocation if inside else None

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return array[()] if return_scalar else np.asarray(array)

    @property
    def device(self) -> DeviceArray:
        """The same memory as the device sees it."""
        if self.allocation is None:
            raise TypeError("this array is not in mapped memory: it is a copy or a result, and lies on the host alone")
        memory = DevicePointer(self.allocation, address_of(self) - address_of(self.allocation.bytes))
        return DeviceArray(self.shape, self.strides, self.dtype, stream=self.stream, gpu_data=memory)

    @property
    def gpu_data(self) -> DevicePointer:
        return self.device.gpu_data

    @property
    def device_ctypes_pointer(self) -> ctypes.c_size_t:
        """Address of the first element on the emulated device."""
        return self.device.device_ctypes_pointer

    def copy_to_host(self, ary=None, stream: Any = 0):
        """As `DeviceArray.copy_to_host`."""
        return self.device.copy_to_host(ary, stream)

    def copy_to_device(self, ary, stream: Any = 0) -> None:
        """As `DeviceArray.copy_to_device`."""
        self.device.copy_to_device(ary, stream)

    def bind(self, stream=0):
        """The same array with another default stream."""
        check_stream(stream)
        clone = self.view()
        clone.stream = stream
        return clone


class ManagedArray(MappedArray):
    """A NumPy array in memory that host and device share (``managed_array``)."""

    _on_device = True


def map_host(ary: np.ndarray, stream=0) -> DeviceArray:
    """Make a device array on the memory of a NumPy array, in place.

    The allocation keeps the array's memory alive; free it when the mapping ends.
    """
    _normal_dtype(ary.dtype)
    memory = host_bytes(ary)
    allocation = Allocation(memory.size, memory=memory)
    allocation._owner = ary
    first = address_of(ary) - address_of(memory) if ary.size else 0
    return DeviceArray(ary.shape, ary.strides, ary.dtype, stream=stream, gpu_data=DevicePointer(allocation, first))


# -- from the host to the device --


def from_host(ndarray, name: str | None = None, stream=0, copy: bool = True) -> "DeviceArray | DeviceRecord":
    """Copy a NumPy array to the device.

    Parameters
    ----------
    ndarray : ndarray
        C- or F-contiguous (broadcast dimensions aside).
    name : str, optional
        For messages.
    stream : Stream or 0
    copy : bool
        False allocates only.

    Returns
    -------
    DeviceArray
        Of the same shape, strides and dtype; a DeviceRecord for one record.

    Raises
    ------
    ValueError
        If it is not contiguous.
    TypeError
        If it holds Python objects.
    """
    if isinstance(ndarray, np.void):
        array = DeviceRecord(ndarray.dtype, stream=stream, name=name)
    else:
        sentry_contiguous(ndarray)
        array = DeviceArray(ndarray.shape, ndarray.strides, ndarray.dtype, stream=stream, name=name, poison=not copy)
    if copy:
        array.copy_to_device(ndarray, stream=stream)
    return array


def borrow_host(ndarray, name: str) -> "DeviceArray":
    """View a contiguous NumPy array as a device array that a kernel only reads."""
    sentry_contiguous(ndarray)
    memory = np.ndarray(ndarray.nbytes, np.uint8, ndarray if ndarray.flags.c_contiguous else ndarray.T)
    memory.flags.writeable = False
    pointer = DevicePointer(Allocation(ndarray.nbytes, name, memory=memory))
    return DeviceArray(ndarray.shape, ndarray.strides, ndarray.dtype, gpu_data=pointer)


def as_device_array(obj) -> "DeviceArray | DeviceRecord | None":
    """View a DeviceArray, DeviceRecord, mapped or managed array as the device does; None for what lives on the host."""
    if isinstance(obj, DeviceArray | DeviceRecord):
        return obj
    if isinstance(obj, MappedArray) and obj.allocation is not None:
        return obj.device
    return None


def auto_device(obj, stream=0, copy=True, user_explicit=False, name=None):
    """An object on the device.

    Parameters
    ----------
    obj : array, scalar or device array
    stream : Stream or 0
    copy : bool
        Copy the contents of a host object; False allocates only.
    user_explicit : bool
        False gives numba.cuda's NumbaPerformanceWarning when a host array is copied.
    name : str, optional
        For messages.

    Returns
    -------
    DeviceArray, bool
        True if it is new memory, False if the object is on the device already.

    Raises
    ------
    TypeError
        For an array on a real GPU, which the emulator cannot reach, or one of Python objects.
    ValueError
        For an array that is not contiguous.
    """
    array = as_device_array(obj)
    if array is not None:
        return array, False
    if hasattr(obj, "__cuda_array_interface__"):
        raise TypeError(
            f"{type_name(obj)} is in the memory of a real GPU, which the emulator cannot reach: "
            "copy it to the host first"
        )
    if not isinstance(obj, np.void):
        warn = isinstance(obj, np.ndarray) and copy and not user_explicit
        if warn and config.CUDA_WARN_ON_IMPLICIT_COPY and not config.DISABLE_PERFORMANCE_WARNINGS:
            text = "Host array used in CUDA kernel will incur copy overhead to/from device."
            warnings.warn(NumbaPerformanceWarning(text), stacklevel=2)
        obj = np.asanyarray(obj)
    return from_host(obj, name, stream, copy), True


def from_array_like(ary, stream=0, gpu_data: DevicePointer | None = None) -> DeviceArray:
    """Make an array of the shape, strides and dtype of another, in new memory if ``gpu_data`` is None."""
    return DeviceArray(ary.shape, ary.strides, ary.dtype, stream=stream, gpu_data=gpu_data)


def from_record_like(rec, stream=0, gpu_data: DevicePointer | None = None) -> DeviceRecord:
    """Make a record of the dtype of another, in new memory if ``gpu_data`` is None."""
    return DeviceRecord(rec.dtype, stream=stream, gpu_data=gpu_data)


def array_core(ary) -> np.ndarray:
    """View a NumPy array without its broadcast dimensions (those of stride 0)."""
    if 0 not in ary.strides or not ary.size:
        return ary
    return ary[(*(0 if stride == 0 else slice(None) for stride in ary.strides), ...)]


def host_bytes(ary: np.ndarray) -> np.ndarray:
    """View the bytes that a NumPy array spans as a 1-D uint8 array. The caller keeps the memory alive."""
    low, high = byte_span(ary.shape, ary.strides, ary.dtype.itemsize)
    if low == high:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_ubyte * (high - low)).from_address(address_of(ary) + low))
