"""The arguments of a launch: their Numba types, and what the lowered program takes for each."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from warpstep import device
from warpstep._numba import ArgHint, In, Out, Purpose, typeof, types
from warpstep.api.arrays import DeviceArray, as_device_array, borrow_host, from_host
from warpstep.compiler.values import dtype_of
from warpstep.limits import POISON
from warpstep.machine.memory import RecordRef, View, global_view
from warpstep.values import describe, type_name

__all__ = ["Remote", "Transfers", "follow_writes", "type_of"]

#: Bytes of a host array that are worth reading in place.
MIN_BORROWED = 1 << 16


def type_of(value, name: str):
    """The Numba type of a kernel argument; TypeError for what a kernel cannot take."""
    if value.__class__ is DeviceArray:
        return value._numba_type_
    if isinstance(value, ArgHint):
        value = value.value
    try:
        type_ = typeof(value, Purpose.argument)
    except Exception:  # Numba's, and those of the value's own class
        type_ = None
    if type_ is None or not _is_taken(type_):
        if isinstance(value, int):
            raise ValueError(f"argument {name} is {describe(value)}; an integer of a kernel has 64 bits at most")
        if type(value) is np.ndarray:
            raise TypeError(
                f"argument {name} has dtype {value.dtype}, which Numba does not support; a kernel takes arrays of "
                "numbers in native order, of dates and of records"
            )
        raise TypeError(
            f"argument {name} is {type_name(value)}; a kernel takes numbers, NumPy or device arrays, records "
            "and tuples of these"
        )
    return type_


@functools.cache
def _is_taken(type_):
    """False for types of the host alone."""
    no_array = isinstance(type_, types.Buffer) and not isinstance(type_, types.Array)  # bytes, memoryview ...
    return not no_array and not isinstance(type_, types.List | types.Set | types.UnicodeType)


@functools.cache
def _kind(type_):
    """Return what decides how an argument of a type is lowered; None if it cannot be."""
    kinds = {
        "tuple": types.BaseTuple,
        "array": types.Array,
        "record": types.Record,
        "none": types.NoneType,
        "time": types.NPDatetime | types.NPTimedelta,
        "enum": types.EnumMember,
        "number": types.Number | types.Boolean,
    }
    return next((kind for kind, class_ in kinds.items() if isinstance(type_, class_)), None)


class Remote(NamedTuple):
    """An array of a launch that is on another device.

    Attributes
    ----------
    name : str
        Of the parameter.
    here, there : int
        Numbers of the device that the kernel runs on, and of the array's.
    allowed : bool
        Whether the kernel may access it.
    first, end : int
        Device addresses that bound its allocation.
    """

    name: str
    here: int
    there: int
    allowed: bool
    first: int
    end: int


class Transfers:
    """The arrays of one launch. Those from the host are copied to the device.

    Attributes
    ----------
    arrays : list of (str, DeviceArray or DeviceRecord)
        Every array argument by its parameter's name; those from the host are copies, but for borrowed ones.
    copy_back : list of function
        What copies results to the host.
    borrowed : set of str
        Parameters whose host arrays are read in place.
    """

    def __init__(self) -> None:
        self.arrays = []
        self.copy_back = []
        self.borrowed = set()

    def borrow(self, values, parameters, written) -> None:
        """Read large host arrays in place if the kernel writes to none of their memory."""
        arrays = [(i, value) for i, value in enumerate(values) if type(value) is np.ndarray]
        for i, value in arrays:
            if i in written or value.nbytes < MIN_BORROWED or not (value.flags.forc and value.flags.aligned):
                continue
            if not any(j != i and np.may_share_memory(value, other) for j, other in arrays):
                self.borrowed.add(parameters[i])

    def remote(self, here: int) -> list[Remote]:
        """The arrays that are on another device than the one of this number."""
        found = []
        for name, array in self.arrays:
            memory = array.gpu_data.allocation
            if memory.device != here and memory.is_private:
                allowed = device.has_access(here, memory.device)
                end = memory.address + memory.nbytes
                found.append(Remote(name, here, memory.device, allowed, memory.address, end))
        return found

    def lower(self, value, type_, name: str):
        """An argument as the lowered program takes it."""
        if value.__class__ is DeviceArray and type_ is value._numba_type_:
            self.arrays.append((name, value))
            return _view(value, name)
        hint = None
        if isinstance(value, ArgHint):
            hint, value = value, value.value
        kind = _kind(type_)
        if kind == "tuple":
            if not isinstance(value, tuple) or len(value) != len(type_):
                raise TypeError(f"argument {name} is {describe(value)}; the kernel's signature declares {type_}")
            return tuple(
                self.lower(v, t, f"{name}[{i}]") for i, (v, t) in enumerate(zip(value, type_.types, strict=True))
            )
        if kind == "array":
            return _as_declared(self._array(value, name, hint), type_, name)
        if kind == "record":
            return self._record(value, type_, name)
        if kind == "none":
            return None
        if kind == "time":
            return np.asarray(value).astype(dtype_of(type_))[()]
        if kind == "enum":
            return self.lower(getattr(value, "value", value), type_.dtype, name)
        if kind == "number":
            with np.errstate(all="ignore"):
                return _scalar(value, dtype_of(type_), name)
        raise TypeError(f"argument {name} of type {type_} cannot be passed to a kernel")

    def _array(self, value, name, hint):
        on_device = as_device_array(value)
        if on_device is not None:
            self.arrays.append((name, on_device))
            return _view(on_device, name)
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"argument {name} is {type_name(value)}: the emulator takes NumPy arrays and its own device arrays"
            )
        if name in self.borrowed:
            array = borrow_host(value, name)
            self.arrays.append((name, array))
            return global_view(array.allocation, array.host, name, "global" if value.flags.writeable else "const")
        array = self._copy_in(value, name)
        if isinstance(hint, Out):
            array.allocation.bytes[:] = POISON
            array.allocation.known = np.zeros(array.allocation.bytes.size, bool)
        if value.flags.writeable and not isinstance(hint, In):

            def write_back():
                value[...] = array.host

            self.copy_back.append(write_back)
        return global_view(array.allocation, array.host, name, "global" if value.flags.writeable else "const")

    def _record(self, value, type_, name):
        """A record passed by reference: an array of one."""
        on_device = as_device_array(value)
        if on_device is not None:
            self.arrays.append((name, on_device))
            view = global_view(on_device.allocation, on_device.host.reshape(1), name)
            return RecordRef(view, on_device.dtype, np.int64(0))
        dtype = dtype_of(type_)
        held = np.zeros(1, dtype)
        held[0] = value[()] if isinstance(value, np.ndarray) else value
        array = self._copy_in(held, name)
        if isinstance(value, np.void):

            def write_back():
                for field in dtype.names or ():
                    value[field] = array.host[0][field]

            self.copy_back.append(write_back)
        return RecordRef(global_view(array.allocation, array.host, name), dtype, np.int64(0))

    def _copy_in(self, host, name):
        array = from_host(host, name)
        self.arrays.append((name, array))
        return array


def _view(array, name):
    """The view of a device array, kept for the next launch unless its writes are noted."""
    host = array.host
    if array.allocation.known is not None:
        return global_view(array.allocation, host, name)
    made_for, view = array.views.get(name, (None, None))
    if made_for is not host:
        view = global_view(array.allocation, host, name)
        array.views[name] = host, view
    return view


def _scalar(value, dtype, name):
    integers = (int, np.integer, np.bool_)
    allowed = integers if dtype.kind in "iu" else (*integers, float, complex, np.number)
    if not isinstance(value, allowed) or (dtype.kind == "f" and isinstance(value, complex | np.complexfloating)):
        raise TypeError(f"argument {name} is {describe(value)}; the kernel's signature declares {dtype}")
    if isinstance(value, int) and not isinstance(value, bool) and dtype.kind in "iu":
        bits = int(value) & ((1 << dtype.itemsize * 8) - 1)
        return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
    return np.asarray(value).astype(dtype)[()]


def _as_declared(view, type_, name):
    """The view with the declared type: a kernel with one signature does not look at the types it is given."""
    declared = dtype_of(type_.dtype)
    if len(view.shape) != type_.ndim:
        raise TypeError(
            f"argument {name} has {len(view.shape)} dimensions; the kernel's signature declares {type_.ndim}"
        )
    if view.dtype == declared:
        return view
    if view.dtype.itemsize == declared.itemsize and view.dtype.kind in "iu" and declared.kind in "iu":
        return View(view.space, view.items.view(declared), view.base, view.shape, view.strides, view.name, view.address)
    raise TypeError(
        f"argument {name} is an array of {view.dtype}; the kernel's signature declares {declared}: on a GPU its "
        "bytes would be misread"
    )


def follow_writes(argument, lowered) -> Callable[[], None] | None:
    """Have a plain launch note which elements of an argument it writes, if some have never been written.

    Returns what to call after the launch, or None. A trace asks which elements were written; once all are, nothing is
    noted any more.
    """
    on_device = as_device_array(argument)
    known = None if on_device is None else on_device.allocation.known
    if on_device is None or known is None:
        return None
    allocation = on_device.allocation
    if not isinstance(lowered, View) or lowered.dtype != lowered.items.dtype:
        allocation.known = None
        return None
    lowered.known = written = np.zeros(lowered.items.size, bool)

    def note():
        size = lowered.items.dtype.itemsize
        start = lowered.address - allocation.address
        known[start : start + written.size * size].reshape(-1, size)[written] = True
        if known[: allocation.nbytes].all():
            allocation.known = None

    return note
