"""Keys by which a call like an earlier one is found: of its arrays, and of its settings.

Every call of a host function reads its arrays. That goes without the array interface, which costs more than a launch.
"""

import functools
import math
from collections.abc import Callable
from operator import itemgetter
from types import FunctionType
from typing import Any

import numpy as np

from gpukit._host.arrays import has_several_devices, make_is_current
from gpukit._numba import make_is_captured
from gpukit.backend import on_gpu

__all__ = [
    "ALIGNMENT",
    "READERS",
    "array_key",
    "exact_settings",
    "layout_of",
    "locate_none",
    "make_locate",
    "settings_key",
]


#: Bytes to which the alignment of an array decides the launches of a call.
ALIGNMENT = 16


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
    makers = {"torch": _make_torch_reader, "cupy": _make_cupy_reader, "numba": lambda _: _read_numba}
    make = makers.get(_library_of(kind))
    return (lambda array, handle, key: None) if make is None else make(kind)


def make_locate(arrays: tuple, handle: int = 0, repeats: bool = False, places: tuple | None = None) -> Callable:
    """Make ``locate(arguments, pointers)``, which finds arrays like these in less time than it takes to make and
    compare keys.

    Parameters
    ----------
    arrays : tuple of arrays or None
        Each has a key.
    handle : int
        As for `array_key`.
    repeats : bool
        It is for repeating a call of a host function on a stream. Addresses, modulo `ALIGNMENT`, must be those of the
        arrays here. The stream must not be captured for a CUDA graph. If it is the default one, it must be the current
        one of the arrays' library too. The current device must be that of now.
    places : tuple of int, optional
        Of the arrays among the arguments; unless given, there is nothing else among them.

    Returns
    -------
    function of a tuple of arguments, and of a list or a ctypes array that is at least as long as ``arrays``
        It tells whether each array has the key of the one in its place here, and writes their addresses. It may return
        False for such arrays too, and always does if the arrays are not of one library. After False some addresses may
        have been written. It counts by itself: to make a ``zip`` takes longer than the loop.

    Examples
    --------
    >>> locate = make_locate((cuda.to_device(np.zeros(3)),))
    >>> other, pointers = cuda.to_device(np.ones(3)), [0]
    >>> key, pointer = array_key(other)
    >>> locate((other,), pointers) and pointers == [pointer], locate((cuda.to_device(np.ones(4)),), pointers)
    (True, False)
    """
    kinds, found = {*map(type, arrays)}, [array_key(array, handle) for array in arrays]
    library = _library_of(kinds.pop()) if len(kinds) == 1 else ""
    if not library or None in found:
        return locate_none
    makers = {"torch": _make_torch_locate, "cupy": _make_cupy_locate, "numba": _make_numba_locate}
    keys, pointers = zip(*found, strict=True)
    residues = [pointer % ALIGNMENT for pointer in pointers]
    locate = makers[library](arrays, keys, residues, handle, repeats, places)
    if not repeats:
        return locate
    here = _only_where(make_is_current(), locate) if has_several_devices() else locate
    if not (handle and on_gpu()):
        return here
    is_captured = make_is_captured(handle)
    return lambda others, pointers: not is_captured() and here(others, pointers)


def _only_where(holds, locate):
    return lambda others, pointers: holds() and locate(others, pointers)


def locate_none(arrays: tuple, pointers: Any) -> bool:
    """Find nothing: what `make_locate` makes where nothing is faster than keys."""
    return False


@functools.cache
def _library_of(kind):
    """The library of a class of arrays that are passed to kernels as they are, or ""."""
    name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
    if name in ("torch.Tensor", "cupy.ndarray"):
        return name.partition(".")[0]
    return "numba" if getattr(kind, "__cuda_ndarray__", False) else ""


def _make_pick(places):
    """Make a function that picks the arrays out of the arguments, as a tuple; None if there is nothing else."""
    if places is None:
        return None
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


# -- PyTorch ---------------------------------------------------------------------------------------


def _make_torch_reader(tensor):
    # Called as functions, they take less time than as methods.
    get_device, is_conj, is_neg = tensor.get_device, tensor.is_conj, tensor.is_neg
    shape, strides, address = tensor.size, tensor.stride, tensor.data_ptr

    def read_torch(array, _, key):
        device, dtype = get_device(array), array.dtype
        if device < 0 or array.requires_grad or is_neg(array) or (dtype.is_complex and is_conj(array)):
            return None
        size = shape(array)
        key += "torch", dtype, size, strides(array), device
        return address(array) or (0 if 0 in size else None)  # the memory of a tensor can be gone

    return read_torch


def _make_torch_locate(tensors, _, residues, handle, repeats, places):
    """The guard by which ``torch.compile`` knows tensors again compares all that a key has, and more, in one C call.

    It is private: a release may be without it.
    """
    import torch  # pyright: ignore[reportMissingImports]

    try:
        guards = torch._C._dynamo.guards
        check = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        current_stream, device = torch._C._cuda_getCurrentRawStream, tensors[0].get_device()
    except Exception:
        return locate_none
    follows, pick, address = repeats and not handle, _make_pick(places), type(tensors[0]).data_ptr

    def locate(others, pointers):
        if pick:
            others = pick(others)
        if not check(*others) or follows and current_stream(device):
            return False
        i = 0
        for other in others:
            pointer = address(other)
            if not pointer or repeats and pointer % ALIGNMENT != residues[i]:
                return False
            pointers[i] = pointer
            i += 1
        return True

    return locate


# -- CuPy ------------------------------------------------------------------------------------------


def _make_cupy_reader(_):
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


def _make_cupy_locate(arrays, keys, residues, handle, repeats, places):
    import cupy  # pyright: ignore[reportMissingImports]

    current_stream, kind, alone = cupy.cuda.get_current_stream, cupy.ndarray, cupy.cuda.runtime.getDeviceCount() == 1
    # Contiguous arrays of the same shape have the same strides, which take longer to read than this private attribute.
    dense = [getattr(array, "_c_contiguous", False) for array in arrays]
    expected, pick = [(dtype, shape, strides, device) for _, dtype, shape, strides, device in keys], _make_pick(places)

    def locate(others, pointers):
        if pick:
            others = pick(others)
        stream, i = current_stream(), 0
        if stream.ptr != handle:
            if repeats:
                return False
            stream.synchronize()
        for other in others:
            dtype, shape, strides, device = expected[i]
            if type(other) is not kind or other.dtype is not dtype or other.shape != shape:
                return False
            if not (dense[i] and other._c_contiguous) and other.strides != strides:
                return False
            memory = other.data
            pointer = memory.ptr
            if not alone and memory.device_id != device or repeats and pointer % ALIGNMENT != residues[i]:
                return False
            pointers[i] = pointer
            i += 1
        return True

    return locate


# -- Numba and the emulator ------------------------------------------------------------------------


def _read_numba(array, _, key):
    try:
        own, _, pointer = array._gpukit_place
    except AttributeError:
        try:
            own, _, pointer = _place_of_numba(array)
        except (AttributeError, TypeError):  # an array that says it is Numba's, or one that has left mapped memory
            return None
    key += own
    return pointer


def _place_of_numba(array):
    """Find the key of an array of Numba, the key with its alignment, and its address, and leave them with it.

    They hold as long as it lives. The shape of an array that is NumPy's too can be assigned, so that it gets none.
    """
    context = getattr(array.gpu_data, "context", None)
    pointer = array.gpu_data.device_ctypes_pointer.value or 0
    key = _same("numba", array.dtype, array.shape, array.strides, None if context is None else context.device.id)
    place = key, _same(key, pointer % ALIGNMENT), pointer
    if not isinstance(array, np.ndarray):
        array._gpukit_place = place
    return place


@functools.lru_cache(maxsize=2048)
def _same(*parts):
    """Return one tuple for equal parts: two keys are compared most quickly if they are the same object."""
    return parts


def _make_numba_locate(_, keys, residues, handle, repeats, places):
    keys = map(_same, keys, residues) if repeats else [_same(*key) for key in keys]
    places = range(len(residues)) if places is None else places
    expected = tuple(zip(range(len(residues)), places, keys, strict=True))

    def locate(others, pointers):
        try:
            for i, place, key in expected:
                own, own_aligned, pointer = others[place]._gpukit_place
                if repeats:
                    own = own_aligned
                if own is not key and own != key:
                    return False
                pointers[i] = pointer
        except AttributeError:  # an array of another library, or one that was never read
            return False
        return True

    return locate


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


def exact_settings(settings: tuple) -> tuple:
    """Return (position, value) of the settings that can equal others that are not the same, as in `settings_key`."""
    return tuple((i, value) for i, value in enumerate(settings) if isinstance(value, int | float | tuple))


def _exactly(value):
    if isinstance(value, tuple):
        return tuple(map(_exactly, value))
    if isinstance(value, float | np.floating):
        return type(value), value, math.copysign(1, value)
    return type(value), value


def _is_constant(value):
    return all(map(_is_constant, value)) if type(value) is tuple else type(value) in _EXACT_OR_FLOAT
