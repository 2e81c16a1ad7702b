"""Keys by which a call like an earlier one is found: of its arrays, and of its settings.

Every call of a host function makes them, so they go without the array interface, which costs more than a launch.
"""

import math
from types import FunctionType
from typing import Any

import numpy as np

__all__ = ["READERS", "array_key", "layout_of", "settings_key"]


def array_key(array, handle: int = 0) -> Any:
    """Read dtype, layout and address of a device array.

    Parameters
    ----------
    array : a device array of Numba or the emulator, a CuPy array, or a PyTorch tensor
    handle : int
        Of the stream on which the array is used. If CuPy works on another stream, that one is waited for, as the array
        interface demands.

    Returns
    -------
    (key, pointer) or None
        Arrays with the same key agree in library, dtype, shape, strides and device. None for anything else, and for a
        tensor that cannot be passed to a kernel as it is.

    Examples
    --------
    >>> key, pointer = array_key(cuda.to_device(np.zeros((3, 4), np.float32)))
    >>> layout_of(key)
    (dtype('float32'), (3, 4), (16, 4))
    """
    key = []
    pointer = READERS[type(array)](array, handle, key)
    return None if pointer is None else (tuple(key), pointer)


class _Readers(dict):
    """Functions ``(array, handle, key) -> pointer or None`` by the class of the array, made when first asked for.

    They append to the key, a list.
    """

    def __missing__(self, kind):
        return self.setdefault(kind, _make_reader(kind))


READERS = _Readers()


def _make_reader(kind):
    name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
    if name == "torch.Tensor":
        return _make_torch_reader(kind)
    if name == "cupy.ndarray":
        return _make_cupy_reader()
    if getattr(kind, "__cuda_ndarray__", False):
        return _read_numba
    return lambda array, handle, key: None


def _make_cupy_reader():
    import cupy  # pyright: ignore[reportMissingImports]

    current_stream = cupy.cuda.get_current_stream

    def read_cupy(array, handle, key):
        stream = current_stream()
        if stream.ptr != handle:
            stream.synchronize()
        memory = array.data
        key += "cupy", array.dtype, array.shape, array.strides, memory.device_id
        return memory.ptr

    return read_cupy


def _make_torch_reader(tensor):
    # Called as functions, they take less time than as methods.
    get_device, is_conj, is_neg = tensor.get_device, tensor.is_conj, tensor.is_neg
    shape, strides, address = tensor.size, tensor.stride, tensor.data_ptr

    def read_torch(array, _, key):
        device, dtype = get_device(array), array.dtype
        if device < 0 or array.requires_grad or is_neg(array) or (dtype.is_complex and is_conj(array)):
            return None
        key += "torch", dtype, shape(array), strides(array), device
        return address(array)

    return read_torch


def _read_numba(array, _, key):
    try:
        memory = array.gpu_data
    except (AttributeError, TypeError):  # an array that says it is Numba's, or one that has left mapped memory
        return None
    context = getattr(memory, "context", None)
    device = None if context is None else context.device.id
    key += "numba", array.dtype, array.shape, array.strides, device
    return memory.device_ctypes_pointer.value or 0


def layout_of(key):
    """(NumPy dtype, shape, strides in bytes) of arrays with a key of `array_key`; None if NumPy has no such dtype.

    Examples
    --------
    >>> key, pointer = array_key(cuda.to_device(np.zeros((3, 4), np.float32)))
    >>> layout_of(key)
    (dtype('float32'), (3, 4), (16, 4))
    """
    library, dtype, shape, strides, _ = key
    if library != "torch":
        return dtype, shape, strides
    try:
        dtype = np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        return None
    return dtype, tuple(shape), tuple(n * dtype.itemsize for n in strides)


#: Types whose values are told apart by value and type. A bare object is a token: it stands for other settings.
_EXACT = frozenset({int, bool, str, type(None), type, FunctionType, object})
_EXACT_OR_FLOAT = _EXACT | {float}


def settings_key(settings: tuple) -> tuple[Any, bool]:
    """Make a key that tells settings apart that are equal but not the same: 1, 1.0 and True; 0.0 and -0.0.

    Returns
    -------
    key : tuple
    constant : bool
        Whether no part of the settings can change.
    """
    flat, kinds = settings, tuple(map(type, settings))
    if tuple in kinds:
        flat = [part for value in settings for part in (value if type(value) is tuple else (value,))]
        kinds = tuple(map(type, flat))
    if _EXACT.issuperset(kinds):
        return (settings, kinds), True
    if _EXACT_OR_FLOAT.issuperset(kinds):
        signs = tuple([math.copysign(1, value) for value in flat if type(value) is float])
        return (settings, kinds, signs), True
    return tuple(map(_exactly, settings)), all(map(_is_constant, settings))


def _exactly(value):
    if isinstance(value, tuple):
        return tuple(map(_exactly, value))
    if isinstance(value, float | np.floating):
        return type(value), value, math.copysign(1, value)
    return type(value), value


def _is_constant(value):
    return all(map(_is_constant, value)) if type(value) is tuple else type(value) in _EXACT_OR_FLOAT
