"""Use a real GPU in a trace: copy its arrays to the emulator and back, and read a kernel's registers."""

from contextlib import contextmanager

import numpy as np

from warpstep._numba import cuda
from warpstep.api.allocations import Allocation, DevicePointer
from warpstep.api.arrays import DeviceArray, as_device_array, byte_span, from_host
from warpstep.values import describe, has_attributes

ALIGNMENT = 256


class _Memory:
    """Bytes of a GPU's memory, for ``cuda.as_cuda_array``."""

    def __init__(self, start, stop):
        self.__cuda_array_interface__ = {
            "shape": (stop - start,),
            "typestr": "|u1",
            "data": (start, False),
            "strides": None,
            "version": 3,
        }


@contextmanager
def emulated_arguments(args):
    """Yield the arguments with each array of a GPU copied to the emulator; copy them back at the end.

    Arrays that overlap on the GPU overlap here too, and keep their alignment to 256 bytes. A description of a tensor,
    an array with the attributes ``tensor`` and ``described``, brings its tensor and describes the copy.
    """
    real = [
        i for i, a in enumerate(args) if has_attributes(a, "__cuda_array_interface__") and as_device_array(a) is None
    ]
    if not real:
        yield args
        return
    maps = [i for i in real if has_attributes(args[i], "described")]
    arrays = {i: _as_cuda_array(i, args[i].tensor if i in maps else args[i]) for i in real}
    spans = {i: _span(array) for i, array in arrays.items()}
    pieces = [_copy_in(start, stop) for start, stop in _join(spans.values())]
    here = list(args)
    for i, array in arrays.items():
        here[i] = _window(array, spans[i][0], pieces)
    held = list(here)  # tensors live as long as what describes them
    for i in maps:
        described = args[i].described._replace(address=held[i].device_ctypes_pointer.value)
        here[i] = from_host(np.frombuffer(described.to_bytes(), np.uint8))
    yield tuple(here)
    for start, stop, allocation in pieces:
        offset = start % ALIGNMENT
        changed = allocation.bytes[offset : offset + stop - start]
        cuda.as_cuda_array(_Memory(start, stop)).copy_to_device(np.ascontiguousarray(changed))


def _as_cuda_array(position, argument):
    try:
        return cuda.as_cuda_array(argument)
    except Exception as error:
        what = "an array that this machine's GPU has"
        raise TypeError(f"argument {position} is {describe(argument)}; it must be {what}: {error}") from error


def _span(array):
    """The address of an array's first byte on the GPU, and of the byte after its last."""
    pointer = array.__cuda_array_interface__["data"][0]
    low, high = byte_span(array.shape, array.strides, array.dtype.itemsize)
    return pointer + low, pointer + high


def _join(spans):
    """Join spans that overlap; empty ones are dropped."""
    result = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def _copy_in(start, stop):
    offset = start % ALIGNMENT
    allocation = Allocation(offset + stop - start, poison=False)
    allocation.bytes[offset : offset + stop - start] = cuda.as_cuda_array(_Memory(start, stop)).copy_to_host()
    return start, stop, allocation


def _window(array, low, pieces):
    """Make an array of the emulator in the piece of memory that holds it."""
    for start, stop, allocation in pieces:
        if start <= low < stop:
            pointer = array.__cuda_array_interface__["data"][0]
            memory = DevicePointer(allocation, start % ALIGNMENT + pointer - start)
            return DeviceArray(array.shape, array.strides, array.dtype, gpu_data=memory)
    return DeviceArray(array.shape, array.strides, array.dtype)


def registers(launch, args):
    """Read the registers per thread of the compiled kernel; None without a GPU."""
    dispatcher = launch.dispatcher
    if not hasattr(dispatcher, "typeof_pyval") or not cuda.is_available():
        return None
    compiled = dispatcher.compile(tuple(dispatcher.typeof_pyval(a) for a in args))
    return compiled.regs_per_thread
