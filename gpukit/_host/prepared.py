"""Prepared launches: a kernel with its configuration and its packed arguments, to be launched again and again."""

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukit._host.arrays import address_of, as_device_array, check_kind, handle_of
from gpukit._host.keys import READERS, locate_none, make_locate
from gpukit._numba import argument_type, compiled_kernel, cuda_api_error, driver_call, dtype_of_type, function_of
from gpukit.backend import cuda, on_gpu, types
from warpstep.values import describe, has_attributes, type_name

__all__ = ["Prepared", "prepare"]


def prepare(launch, *args) -> "Prepared":
    """Prepare a launch to be repeated: compile the kernel for the arguments' types, and pack the arguments.

    Parameters
    ----------
    launch : a configured kernel
        ``kernel[grid, block]``, ``kernel[grid, block, stream, shared_bytes]``; of `gpukit.cuda`.
    *args : device arrays, ints, floats, complex numbers, bools, and tuples of these
        As for a plain launch, except for NumPy arrays, which a plain launch copies to the device and back.

    Returns
    -------
    Prepared
        Nothing is launched yet: call it.

    Raises
    ------
    TypeError
        If ``launch`` has no grid, or an argument is none of the above.

    Examples
    --------
    >>> import numpy as np
    >>> from gpukit import cuda, launching
    >>> @cuda.jit
    ... def double(x, out):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         out[i] = 2 * x[i]
    >>> x, y, out = cuda.to_device(np.arange(3.0)), cuda.to_device(np.ones(3)), cuda.device_array(3)
    >>> step = launching.prepare(double[1, 32], x, out)
    >>> step()            # double[1, 32](x, out)
    >>> out.copy_to_host()
    array([0., 2., 4.])
    >>> step(y, out)      # the same with other arrays of the same types
    >>> out.copy_to_host()
    array([2., 2., 2.])
    """
    if not has_attributes(launch, "dispatcher", "griddim", "blockdim"):
        raise TypeError(
            f"launch is {describe(launch)}; it must be a kernel with its grid and block: kernel[grid, block]"
        )
    for position, value in enumerate(args):
        _check_argument(f"argument {position}", value)
    return (_PreparedOnGpu if on_gpu() else _PreparedOnEmulator)(launch, args)


def _check_argument(name, value):
    if isinstance(value, tuple):
        for part in value:
            _check_argument(name, part)
        return
    if not isinstance(value, int | float | complex | np.number | np.bool_):
        if isinstance(value, np.ndarray) and not cuda.is_cuda_array(value):
            raise TypeError(f"{name} is a NumPy array; it must be a device array: copy it with cuda.to_device")
        check_kind(name, value)
    try:
        argument_type(value)
    except Exception as error:
        what = "a device array, a number, or a tuple of these"
        raise TypeError(f"{name} is {describe(value)}; it must be {what}: {error}") from error


class Prepared:
    """A kernel with its configuration and arguments, ready to be launched; made by `prepare`.

    Call it without arguments to launch with the present ones, or with new ones of the same types: the same dtype,
    number of dimensions and contiguity of each array. To find arrays elsewhere in memory costs a fraction of a launch,
    other shapes cost more. Several threads may share one: each launch has the arguments of its own call.

    It keeps the arrays of the last call alive; one that has moved since, such as a tensor whose storage PyTorch has
    resized, must be passed again. As after any launch, the work may still be under way when the call returns, and an
    error in the kernel shows at the next synchronisation.

    Raises
    ------
    TypeError
        If the number of arguments or the type of one differs.
    CudaAPIError
        If the driver refuses the launch: `gpukit.errors.check_launch` names the limit.
    """

    #: Launch with the packed arguments; returns an error code, to be passed to `failed`, or nothing.
    start: Callable[[], int | None]

    def __init__(self, launch, args):
        self.launch = launch
        self.args = args
        self.name = launch.dispatcher.py_func.__name__
        #: Empty while a thread writes arguments or launches. A lock costs the host three times as much.
        self._turn = [True]

    def __repr__(self):
        return f"<launch of {self.name}, grid {self.launch.griddim}, block {self.launch.blockdim}>"

    def __call__(self, *args):
        turn = self._turn
        try:
            turn.pop()
        except IndexError:
            _wait_for(turn)
        try:
            if args:
                self._take(args)
                self.args = args
            if code := self.start():
                self.failed(code)
        finally:
            turn.append(True)

    def arrays(self) -> list:
        """List (position, array) of the arguments, and parts of tuples, that are arrays."""
        return [(position, value) for position, value in enumerate(_flat(self.args)) if _is_array(value)]

    def bind(self, cells: dict, block) -> None:
        """Release the arrays at some positions; from now on `start` reads their addresses from a block of memory.

        Parameters
        ----------
        cells : dict
            {position: index in the block}.
        block : ctypes array of uint64
            Only one thread at a time may write it, and `start`.
        """
        raise NotImplementedError

    def failed(self, code: int):
        """Launch once more if that can help, or raise the error."""
        raise NotImplementedError

    def _take(self, args):
        """Check the types of new arguments, and pack them."""
        raise NotImplementedError

    def _check_count(self, args):
        if len(args) != len(self.args):
            raise TypeError(f"{self.name} takes {len(self.args)} arguments, not {len(args)}")


def _wait_for(turn):
    """Take the turn once the thread that has it gives it back."""
    while True:
        time.sleep(1e-5)
        with contextlib.suppress(IndexError):
            return turn.pop()


def _is_array(value):
    return not isinstance(value, int | float | complex | np.generic)


def _flat(args):
    """Arguments with tuples flattened, as the kernel gets them."""
    for value in args:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


class _PreparedOnEmulator(Prepared):
    """Plain launches, with the same checks of types as on a GPU."""

    def __init__(self, launch, args):
        super().__init__(launch, args)
        self._types = [argument_type(value) for value in args]
        #: Of bound arrays, by position: layout and index in the block.
        self._bound: dict[int, tuple[dict, int]] = {}
        self._block: Any = None
        self.start = self._start

    def _take(self, args):
        self._check_count(args)
        for position, (value, type_) in enumerate(zip(args, self._types, strict=True)):
            _check_argument(f"argument {position}", value)
            if argument_type(value) != type_:
                raise TypeError(
                    f"argument {position} of {self.name} is {argument_type(value)}; it was prepared for {type_}"
                )

    def bind(self, cells, block):
        values, self._block = list(_flat(self.args)), block
        for position, cell in cells.items():
            array, values[position] = as_device_array(values[position]), None
            layout = {"shape": array.shape, "strides": array.strides, "typestr": array.dtype.str, "version": 3}
            self._bound[position] = layout, cell
        self.args = _like(self.args, iter(values))

    def _start(self):
        if not self._bound:
            self.launch(*self.args)
            return
        values = list(_flat(self.args))
        for position, (layout, cell) in self._bound.items():
            array = layout | {"data": (self._block[cell], False)}
            values[position] = cuda.from_cuda_array_interface(array, sync=False)
        self.launch(*_like(self.args, iter(values)))


def _like(value, rest):
    """Nest the next of ``rest`` as ``value`` is nested, in tuples, with the same names."""
    if not isinstance(value, tuple):
        return next(rest)
    parts = [_like(part, rest) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


# -- on a GPU: parameters packed as the compiled kernel takes them ---------------------------------


class _PreparedOnGpu(Prepared):
    """A call of the driver, with packed parameters.

    Numba passes an array as 5 + 2 * ndim parameters (two of Numba's own that are null here, number of elements, bytes
    of one, address, shape, strides), everything else as one or two. Each has a slot of 8 bytes here, and the driver
    gets the addresses of the slots. All else that the driver takes is fixed, so `start` is one C call without a
    conversion. A launch by ``cuda.core`` takes longer: ``gpukit bench streams`` times both.
    """

    def __init__(self, launch, args):
        super().__init__(launch, args)
        self._compiled = compiled = compiled_kernel(launch, args)
        if compiled.debug or compiled.extensions:
            raise TypeError(f"{self.name} has debug=True or extensions, which need a plain launch")
        self._nested = any(isinstance(value, tuple) for value in args)
        taken = _flat_types(compiled.argument_types)
        self._slots = [_slot(type_, f"argument {i} of {self.name}") for i, type_ in enumerate(taken)]
        self._count, count = len(self._slots), sum(slot.count for slot in self._slots)
        self._memory = memory = (ctypes.c_uint64 * count)()
        first = 0
        for slot in self._slots:
            slot.place(memory, first)
            first += slot.count
        start = ctypes.addressof(memory)
        self._addresses = (ctypes.c_void_p * count)(*range(start, start + 8 * count, 8))
        self._handle = handle_of(launch.stream)
        self._arrays = [slot for slot in self._slots if isinstance(slot, _ArraySlot)]
        self._places = tuple(i for i, slot in enumerate(self._slots) if isinstance(slot, _ArraySlot))
        self._numbers = [(i, slot) for i, slot in enumerate(self._slots) if isinstance(slot, _NumberSlot)]
        # Addresses of arrays have a block of their own, in which they are exchanged at once.
        self._pointers = (ctypes.c_uint64 * len(self._arrays))()
        for cell, slot in enumerate(self._arrays):
            self._addresses[slot.address] = ctypes.addressof(self._pointers) + 8 * cell
        self._locate = locate_none
        self._take(args)
        attribute = _Attribute(_COOPERATIVE, b"", 1)
        self._kept = (
            attribute,
            _Configuration(
                tuple(map(int, (*launch.griddim, *launch.blockdim, launch.sharedmem))),
                self._handle,
                ctypes.addressof(attribute),
                1 if compiled.cooperative else 0,
            ),
        )
        pointers = ctypes.addressof(self._kept[1]), _launchable(compiled, self.name), ctypes.addressof(self._addresses)
        self.start = driver_call("cuLaunchKernelEx", *pointers, 0)

    def _take(self, args):
        flat = tuple(_flat(args)) if self._nested else args
        if len(flat) != self._count:
            self._check_count(args)
            raise TypeError(f"{self.name} takes tuples of the lengths it was prepared for")
        try:
            if not self._locate(flat, self._pointers):
                self._pointers[:] = self._read(tuple(flat[place] for place in self._places))
            for position, slot in self._numbers:
                if flat[position] is not slot.value:
                    slot.write(flat[position])
        except Exception:  # some slots hold new arguments already
            if args is not self.args:
                self._take(self.args)
            raise

    def _read(self, arrays):
        """Write shapes and strides that are not those of the call before; return the addresses."""
        locate, self._locate = self._locate, locate_none  # there may be an error half-way
        before = [slot.key for slot in self._arrays]
        pointers = [slot.read(array, self._handle) for slot, array in zip(self._arrays, arrays, strict=True)]
        if all(slot.key is key for slot, key in zip(self._arrays, before, strict=True)):
            # These arrays are like those of the call before, so the next may be too.
            places = self._places if len(arrays) < self._count else None
            self._locate = make_locate(arrays, self._handle, places=places) if locate is locate_none else locate
        return pointers

    def bind(self, cells, block):
        self.args = [value for position, value in enumerate(_flat(self.args)) if position not in cells]
        slots: Any = self._slots
        for position, cell in cells.items():
            self._addresses[slots[position].address] = ctypes.addressof(block) + 8 * cell
        self._kept += (block,)

    def failed(self, code):
        if code == _INVALID_CONTEXT:  # this thread has not used the device before; now it gets a context
            cuda.current_context()
            code = self.start()
        if code:
            _raise(code, self.name)


#: Of the driver: an error code, and the attribute of a cooperative launch.
_INVALID_CONTEXT, _COOPERATIVE = 201, 2


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, with the value of an int."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig: grid, block and bytes of shared memory; the stream; the attributes."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def _launchable(compiled, name) -> int:
    """The handle by which the driver launches a compiled kernel in the current context."""
    from cuda.bindings import driver  # pyright: ignore

    error, function = driver.cuKernelGetFunction(function_of(compiled).handle)
    if error:
        _raise(error, name)
    return int(function)


def _raise(code, name):
    from cuda.bindings import driver  # pyright: ignore

    error = driver.CUresult(code)
    raise cuda_api_error()(error, f"launch of {name} results in {error.name}")


def _flat_types(argument_types):
    for type_ in argument_types:
        if isinstance(type_, types.BaseTuple):
            yield from _flat_types(type_)
        else:
            yield type_


def _slot(type_, name):
    if isinstance(type_, types.Array):
        return _ArraySlot(type_, name)
    if isinstance(type_, types.Boolean | types.Integer | types.Float | types.Complex):
        return _NumberSlot(type_, name)
    raise TypeError(f"{name} has type {type_}; it must be an array, a number, or a tuple of these")


class _NumberSlot:
    """A number, in the first bytes of a slot; a complex number in two slots."""

    def __init__(self, type_, name):
        self.name, self.type, self.value = name, type_, None
        self.count = 2 if isinstance(type_, types.Complex) else 1
        self.kinds: Any = (int, float, complex, np.number, np.bool_)
        self.dtype = dtype_of_type(type_.underlying_float if self.count == 2 else type_)
        #: The smallest and the largest value, of an integer or a bool.
        self.limits: tuple[int, int] | None = None
        if isinstance(type_, types.Float):
            self.kinds = (float, np.floating, int, np.integer, np.bool_)
        elif isinstance(type_, types.Boolean | types.Integer):
            self.kinds, self.limits = (int, np.integer, np.bool_), (0, 1)
        if isinstance(type_, types.Integer):
            self.limits = int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)

    def place(self, memory, first):
        slots = np.frombuffer(memory, np.uint64)[first : first + self.count].view(self.dtype)
        self.values = slots[:: 8 // self.dtype.itemsize]

    def write(self, value: Any):
        if not isinstance(value, self.kinds):
            raise TypeError(f"{self.name} is {type_name(value)}; it was prepared for {self.type}")
        if self.count == 2:
            self.values[0], self.values[1] = value.real, value.imag
        elif self.limits is None or self.limits[0] <= value <= self.limits[1]:
            self.values[0] = value
        else:
            raise TypeError(f"{self.name} is {value}; it was prepared for {self.type}")
        self.value = value


#: Position of the address among the parameters of an array.
_POINTER = 4


class _ArraySlot:
    def __init__(self, type_, name):
        self.name, self.type = name, type_
        self.count = 5 + 2 * type_.ndim
        self.key = None

    def place(self, memory, first):
        self.memory, self.first, self.address = memory, first, first + _POINTER

    def read(self, value, handle):
        """Write shape and strides, if they are not those of the array before; returns the address."""
        key = []
        pointer = READERS[type(value)](value, handle, key)
        if pointer is not None and key == self.key:
            return pointer
        address = self._describe(value)
        self.key = None if pointer is None else key
        return address

    def _describe(self, value):
        if not cuda.is_cuda_array(value):
            raise TypeError(f"{self.name} is {type_name(value)}; it must be a device array")
        array = as_device_array(value)
        given = argument_type(array)
        fits = given.dtype == self.type.dtype and given.ndim == self.type.ndim
        if not fits or self.type.layout not in ("A", given.layout):
            raise TypeError(f"{self.name} is {given}; it was prepared for {self.type}")
        parameters = (0, 0, array.size, array.dtype.itemsize, 0, *array.shape, *(s % 2**64 for s in array.strides))
        self.memory[self.first : self.first + self.count] = parameters
        return address_of(array)
