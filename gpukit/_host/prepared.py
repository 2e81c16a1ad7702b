"""Launching again at little cost: a kernel with its arguments made ready once, and what a host function launched kept
for its next call (C3).

``kernel[grid, block](*args)`` works out at every call what types the arguments have, which compiled kernel that means,
and how each argument is passed. A program that launches the same kernel thousands of times can do this once.
"""

import contextlib
import ctypes
import math
import threading
from collections import OrderedDict

import numpy as np

from gpukit import backend
from gpukit._host.arrays import address_of, as_device_array, handle_of, maker, span, stream_of, upload
from gpukit._host.keys import array_key, layout_of
from gpukit._numba import argument_type, compiled_kernel, cuda_api_error, dtype_of_type, function_of
from gpukit.backend import cuda, types

#: The name of `array_key` so far.
look = array_key

__all__ = ["Plans", "Prepared", "handle_of", "layout_of", "look", "prepare", "upload"]


def prepare(launch, *args):
    """Make a launch ready to be repeated: compile the kernel for the arguments' types and pack the arguments.

    Parameters
    ----------
    launch : a configured kernel
        ``kernel[grid, block]``, ``kernel[grid, block, stream, shared_bytes]``; of `gpukit.cuda`.
    *args : device arrays, ints, floats, complex numbers, bools, and tuples of these
        As for a plain launch, but no NumPy arrays: a plain launch copies them to the device and back.

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
    >>> step = gpukit.launching.prepare(add[blocks, 256, stream], x, y, out)
    >>> step()                      # add[blocks, 256, stream](x, y, out)
    >>> step(x2, y2, out2)          # the same with other arrays of the same types
    """
    if not all(hasattr(launch, name) for name in ("dispatcher", "griddim", "blockdim")):
        raise TypeError(f"launch is {launch!r}; it must be a kernel with its grid and block: kernel[grid, block]")
    for position, value in enumerate(args):
        _check_argument(f"argument {position}", value)
    return (_PreparedOnGpu if backend.on_gpu() else _PreparedOnEmulator)(launch, args)


def _check_argument(name, value):
    if isinstance(value, tuple):
        for part in value:
            _check_argument(name, part)
    elif isinstance(value, np.ndarray):
        raise TypeError(f"{name} is a NumPy array; it must be a device array: copy it with cuda.to_device")
    elif not cuda.is_cuda_array(value) and not isinstance(value, int | float | complex | np.number | np.bool_):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a device array, a number, or a tuple of these")


class Prepared:
    """A kernel with its configuration and arguments, ready to be launched; made by `prepare`.

    Call it without arguments to launch with those it has; with all of them to launch with others of the same types:
    same dtype, number of dimensions and contiguity of each array. It stays as cheap where only the memory of an array
    or a number differs; another shape costs a little more. Several threads may share one: each launch has the arguments
    of its own call.

    The arrays of the last call are kept alive by it. As after any launch, the work may still be under way when the call
    returns, and an error in the kernel shows at the next synchronisation.

    Raises
    ------
    TypeError
        If the number of arguments or the type of one differs.
    CudaAPIError
        If the driver refuses the launch: `gpukit.errors.check_launch` names the limit.
    """

    def __init__(self, launch, args):
        self.launch = launch
        self.args = args
        self.name = launch.dispatcher.py_func.__name__
        self._lock = threading.Lock()

    def __repr__(self):
        return f"<launch of {self.name}, grid {self.launch.griddim}, block {self.launch.blockdim}>"

    def __call__(self, *args):
        with self._lock:
            if args:
                if len(args) != len(self.args):
                    raise TypeError(f"{self.name} takes {len(self.args)} arguments; {len(args)} were given")
                self._take(args)
                self.args = args
            self._launch()

    def arrays(self):
        """[(position, array), ...] of the arguments, and parts of tuples, that are arrays."""
        return [(position, value) for position, value in enumerate(_flat(self.args)) if _is_array(value)]

    def release(self, positions):
        """Let go of the arrays at these positions: every launch from now on says where they are, by `again`."""
        with self._lock:
            self.args = self._without(positions)

    def again(self, where, pointers):
        """Launch with arrays elsewhere in memory: (place, which of the pointers, bytes to add to it) of each.

        ``place`` is that of `place_of`. For one thread at a time.
        """
        for place, source, offset in where:
            self._point(place, pointers[source] + offset)
        self._launch()

    def place_of(self, position):
        """What `again` calls the array at a position."""
        return position


def _is_array(value):
    return not isinstance(value, int | float | complex | np.generic)


def _flat(args):
    """Arguments with tuples taken apart, as the kernel gets them."""
    for value in args:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


class _PreparedOnEmulator(Prepared):
    """Launches as ever, with the same promises: what runs without a GPU runs with one."""

    def __init__(self, launch, args):
        super().__init__(launch, args)
        self._types = [argument_type(value) for value in args]
        self._shapes, self._elsewhere = {}, {}

    def _take(self, args):
        for position, (value, type_) in enumerate(zip(args, self._types, strict=True)):
            _check_argument(f"argument {position}", value)
            if argument_type(value) != type_:
                raise TypeError(
                    f"argument {position} of {self.name} is {argument_type(value)}; it was prepared for {type_}"
                )

    def _without(self, positions):
        values = list(_flat(self.args))
        for position in positions:
            array = as_device_array(values[position])
            self._shapes[position] = {"shape": array.shape, "strides": array.strides, "typestr": array.dtype.str}
            values[position] = None
        return _like(self.args, iter(values))

    def _point(self, position, pointer):
        description = {**self._shapes[position], "data": (pointer, False), "version": 3}
        self._elsewhere[position] = cuda.from_cuda_array_interface(description, sync=False)

    def _launch(self):
        values = [self._elsewhere.pop(position, value) for position, value in enumerate(_flat(self.args))]
        self.launch(*_like(self.args, iter(values)))


def _like(value, rest):
    """The next of ``rest``, or a tuple of them, named if ``value`` is, where ``value`` is one."""
    if not isinstance(value, tuple):
        return next(rest)
    parts = [_like(part, rest) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


# -- on a GPU: parameters packed as the compiled kernel takes them -----------------------------------------------------


class _PreparedOnGpu(Prepared):
    """A call of the driver, with parameters that were packed before.

    Numba passes an array as 5 + 2 * ndim parameters (two of Numba's own that are null here, number of elements, bytes
    of one, address, shape, strides), everything else as one or two. Each has a slot of 8 bytes here, and the driver
    gets the slots' addresses.
    """

    def __init__(self, launch, args):
        super().__init__(launch, args)
        from cuda.bindings import driver

        self._driver, self._success = driver, driver.CUresult.CUDA_SUCCESS
        self._compiled = compiled = compiled_kernel(launch, args)
        if compiled.debug or compiled.extensions:
            raise TypeError(f"{self.name} has debug=True or extensions, which need a plain launch")
        flat, flat_types = list(_flat(args)), list(_flat_types(compiled.argument_types))
        self._nested = any(isinstance(value, tuple) for value in args)
        self._slots = [_slot(type_, f"argument {i} of {self.name}") for i, type_ in enumerate(flat_types)]
        count = sum(slot.count for slot in self._slots)
        self._memory = memory = (ctypes.c_uint64 * count)()
        first = 0
        for slot in self._slots:
            slot.place(memory, first)
            first += slot.count
        start = ctypes.addressof(memory)
        self._addresses = (ctypes.c_void_p * count)(*range(start, start + 8 * count, 8))
        self._handle = handle_of(launch.stream)
        for slot, value in zip(self._slots, flat, strict=True):
            slot.write(value, self._handle)
        function = function_of(compiled)
        error, function = driver.cuKernelGetFunction(function.handle)
        self._check(error)
        self._parameters = (
            function,
            *launch.griddim,
            *launch.blockdim,
            launch.sharedmem,
            driver.CUstream(self._handle),
            ctypes.addressof(self._addresses),
        )
        if compiled.cooperative:
            self._call = driver.cuLaunchCooperativeKernel
        else:
            self._call = driver.cuLaunchKernel
            self._parameters += (0,)

    def _take(self, args):
        flat = list(_flat(args)) if self._nested else args
        if len(flat) != len(self._slots):
            raise TypeError(f"{self.name} takes tuples of the lengths it was prepared for")
        try:
            for slot, value in zip(self._slots, flat, strict=True):
                slot.write(value, self._handle)
        except Exception:
            # Some slots have the new arguments already.
            for slot, value in zip(self._slots, _flat(self.args), strict=True):
                slot.write(value, self._handle)
            raise

    def _without(self, positions):
        return [value for position, value in enumerate(_flat(self.args)) if position not in positions]

    def place_of(self, position):
        return self._slots[position].at

    def again(self, where, pointers):
        memory = self._memory
        for at, source, offset in where:
            memory[at] = pointers[source] + offset
        self._launch()

    def _launch(self):
        (error,) = self._call(*self._parameters)
        if error is not self._success:
            if error == self._driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
                # A thread that has not used the device before; this gives it a context.
                cuda.current_context()
                (error,) = self._call(*self._parameters)
            self._check(error)

    def _check(self, error):
        if error != self._success:
            raise cuda_api_error()(error, f"launch of {self.name} results in {error.name}")


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
    """A number, in the first bytes of a slot; a complex one in two slots."""

    def __init__(self, type_, name):
        self.name, self.type = name, type_
        self.count = 2 if isinstance(type_, types.Complex) else 1
        self.kinds = (int, float, complex, np.number, np.bool_)
        self.dtype = dtype_of_type(type_.underlying_float if self.count == 2 else type_)
        self.low, self.high = -math.inf, math.inf
        if isinstance(type_, types.Float):
            self.kinds = (int, float, np.integer, np.floating, np.bool_)
        elif isinstance(type_, types.Boolean | types.Integer):
            self.kinds = (int, np.integer, np.bool_)
            self.low, self.high = 0, 1
        if isinstance(type_, types.Integer):
            self.low, self.high = int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)

    def place(self, memory, first):
        slots = np.frombuffer(memory, np.uint64)[first : first + self.count].view(self.dtype)
        self.values = slots[:: 8 // self.dtype.itemsize]

    def write(self, value, _):
        if not isinstance(value, self.kinds):
            raise TypeError(f"{self.name} is a {type(value).__name__}; it was prepared for {self.type}")
        if self.count == 2:
            self.values[0], self.values[1] = value.real, value.imag
        elif self.low <= value <= self.high or value != value:
            self.values[0] = value
        else:
            raise TypeError(f"{self.name} is {value}; it was prepared for {self.type}")


#: Position of the address among the parameters of an array.
_POINTER = 4


class _ArraySlot:
    def __init__(self, type_, name):
        self.name, self.type = name, type_
        self.count = 5 + 2 * type_.ndim
        self.key = None

    def place(self, memory, first):
        self.memory, self.first, self.at = memory, first, first + _POINTER

    def write(self, value, handle):
        found = array_key(value, handle)
        if found is not None and found[0] == self.key:
            self.memory[self.at] = found[1]
            return
        pointer = self._describe(value)
        self.memory[self.at] = pointer
        self.key = None if found is None else found[0]

    def _describe(self, value):
        """Write shape and strides; gives back the address."""
        if not cuda.is_cuda_array(value):
            raise TypeError(f"{self.name} is a {type(value).__name__}; it must be a device array")
        array = as_device_array(value)
        given = argument_type(array)
        fits = given.dtype == self.type.dtype and given.ndim == self.type.ndim
        if not fits or self.type.layout not in ("A", given.layout):
            raise TypeError(f"{self.name} is {given}; it was prepared for {self.type}")
        parameters = (0, 0, array.size, array.dtype.itemsize, 0, *array.shape, *(s % 2**64 for s in array.strides))
        self.memory[self.first : self.first + self.count] = parameters
        return address_of(array)


# -- what a host function launched, kept -------------------------------------------------------------------------------


class Plans:
    """What a host function launched, kept for calls with arrays of the same kind.

    A host function checks its arguments, decides on kernels, grids and work memory, and launches. For a call like an
    earlier one, on arrays elsewhere in memory, only the addresses differ: the launches are repeated with them.

    Calls are alike if all inputs and ``out`` agree in library, dtype, shape, strides, device, and the address modulo
    16, and the stream and parameters are the same. Only arrays that the launches use in place can be exchanged: where a
    host function copies one first, no plan is kept.

    Parameters
    ----------
    most : int
        Plans kept; that used least recently goes first. While there are half as many, nobody looks who is used.

    Examples
    --------
    >>> plans = Plans()
    >>> def double(x, out=None, stream=None):
    ...     call = plans.call((x,), out, stream)
    ...     if call.plan is not None:
    ...         return call.again()
    ...     ...                                   # checks; result = Output(x, x.shape, out, stream)
    ...     return call.first([(kernel[grid, block, stream], (x, result.device))], result)
    """

    def __init__(self, most=256):
        self.most = most
        self.kept = OrderedDict()

    def call(self, inputs, out, stream, *parameters):
        """A `Call` of the host function; ``inputs`` are arrays or None, parameters anything that decides the launches.

        Call.plan is None unless a call like this was made before.
        """
        return Call(self, inputs, out, stream, parameters)

    def keep(self, key, plan):
        self.kept[key] = plan
        while len(self.kept) > self.most:
            self.kept.popitem(last=False)


class Call:
    """One call of a host function; made by `Plans.call`.

    Attributes
    ----------
    plan : Plan or None
        From an earlier call like this one.
    """

    __slots__ = ("inputs", "key", "out", "plan", "plans", "pointers")

    def __init__(self, plans, inputs, out, stream, parameters):
        self.plans, self.inputs, self.out = plans, inputs, out
        self.plan = self.key = None
        handle = handle_of(stream_of(stream)) if stream else 0
        keys, self.pointers = [], []
        for array in inputs if out is None else (*inputs, out):
            if array is None:
                keys.append(None)
                continue
            found = array_key(array, handle)
            if found is None:
                return
            keys.append(found[0])
            keys.append(found[1] % 16)
            self.pointers.append(found[1])
        kinds = tuple(map(type, parameters))
        exactly = (parameters, kinds) if _PLAIN.issuperset(kinds) else tuple(map(_exactly, parameters))
        self.key = (*keys, out is None, stream or None, exactly)
        try:
            self.plan = plans.kept.get(self.key)
        except TypeError:
            # A parameter cannot be hashed.
            self.key = None
            return
        if self.plan is not None:
            if out is not None and self.plan.overlaps(self.pointers):
                self.plan = None
            elif len(plans.kept) > plans.most // 2:
                with contextlib.suppress(KeyError):  # another thread's call has just pushed it out
                    plans.kept.move_to_end(self.key)

    def first(self, launches, result):
        """Launch, keep the launches as a plan if they can be repeated, and give back the result.

        Parameters
        ----------
        launches : list of (configured kernel, arguments)
            In order.
        result : Output
        """
        if self.key is None or result.on_host or result.device is not result.target:
            with _one_call:
                for launch, arguments in launches:
                    launch(*arguments)
            return result.finish()
        prepared = [prepare(launch, *arguments) for launch, arguments in launches]
        with _one_call:
            for launch in prepared:
                launch()
        plan = Plan(prepared, [array for array in self.inputs if array is not None], result)
        if plan.complete:
            self.plans.keep(self.key, plan)
        return result.finish()

    def again(self):
        """Launch what the plan has with the arrays of this call; gives back the result."""
        out = self.out
        if out is None:
            out, pointer = self.plan.make()
            self.pointers.append(pointer)
        self.plan.launch(self.pointers)
        return out


#: Types of parameters that tell them apart together with their values; a bare object stands for others.
_PLAIN = frozenset({int, bool, str, type(None), object})


def _exactly(parameter):
    """A key that tells 1 from 1.0 and True, which are equal, and 0.0 from -0.0."""
    if isinstance(parameter, tuple):
        return tuple(map(_exactly, parameter))
    if isinstance(parameter, float):
        return float, parameter, math.copysign(1, parameter)
    return type(parameter), parameter


#: Work memory belongs to a stream, not to a call: on the stream the launches of one call must follow one another,
#: without those of another thread's call between them.
_one_call = threading.Lock()
#: Bytes of work memory that one plan may keep to itself.
MOST_KEPT = 64 << 20


class Plan:
    """Prepared launches, and which of their arrays lie in the inputs or the output of a call.

    Attributes
    ----------
    make : function
        That gives a new output and its address.
    complete : bool
        Whether it can stand for other calls: the launches use every input and the output in place, which lie apart,
        and keep little memory.
    """

    def __init__(self, prepared, arrays, result):
        self.make = maker(arrays[0], tuple(result.device.shape), result.device.dtype)
        given = [as_device_array(array) for array in arrays]
        self.starts = [address_of(array) for array in (*given, result.device)]
        spans = [span(array) for array in (*given, result.device)]
        self.reach = [(low - start, high - start) for (low, high), start in zip(spans, self.starts, strict=True)]
        apart = all(a[1] <= b[0] or b[1] <= a[0] for i, a in enumerate(spans) for b in spans[:i])
        self.steps, used, kept = [], set(), 0
        for launch in prepared:
            where = []
            for position, array in launch.arrays():
                low, high = span(array)
                inside = [i for i, (start, stop) in enumerate(spans) if start <= low < high <= stop]
                if inside:
                    where.append((position, inside[0], address_of(array) - self.starts[inside[0]]))
                else:
                    kept += high - low
            used.update(source for _, source, _ in where)
            launch.release({position for position, _, _ in where})
            self.steps.append((launch, [(launch.place_of(position), *rest) for position, *rest in where]))
        self.complete = apart and used == set(range(len(spans))) and kept <= MOST_KEPT

    def overlaps(self, pointers):
        """Whether the output, which is the last pointer, shares memory with an input."""
        *others, out = pointers
        low, high = self.reach[-1]
        start, stop = out + low, out + high
        for pointer, (low, high) in zip(others, self.reach, strict=False):
            if pointer + low < stop and start < pointer + high:
                return True
        return False

    def launch(self, pointers):
        with _one_call:
            for launch, where in self.steps:
                launch.again(where, pointers)
