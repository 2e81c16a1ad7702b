"""What a trace needs of a real GPU: its arrays, brought to the emulator and back, and a kernel's registers."""

from contextlib import contextmanager

import numpy as np

from warpstep._numba import cuda
from warpstep.api.arrays import Allocation, DeviceArray, DevicePointer, as_device_array, byte_span

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
    """The arguments with every array of a GPU as an array of the emulator; copied back at the end.

    Arrays that overlap on the GPU overlap here too, and keep their places relative to 256 bytes.
    """
    real = [i for i, a in enumerate(args) if hasattr(a, "__cuda_array_interface__") and as_device_array(a) is None]
    if not real:
        yield args
        return
    arrays = {i: cuda.as_cuda_array(args[i]) for i in real}
    spans = {i: _span(array) for i, array in arrays.items()}
    pieces = [_bring(start, stop) for start, stop in _joined(spans.values())]
    here = list(args)
    for i, array in arrays.items():
        here[i] = _window(array, spans[i][0], pieces)
    yield tuple(here)
    for start, stop, allocation in pieces:
        offset = start % ALIGNMENT
        changed = allocation.bytes[offset : offset + stop - start]
        cuda.as_cuda_array(_Memory(start, stop)).copy_to_device(np.ascontiguousarray(changed))


def _span(array):
    """First byte and the byte after the last of an array on the GPU."""
    pointer = array.__cuda_array_interface__["data"][0]
    low, high = byte_span(array.shape, array.strides, array.dtype.itemsize)
    return pointer + low, pointer + high


def _joined(spans):
    """Spans with those that overlap put together; empty ones are left out."""
    result = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def _bring(start, stop):
    offset = start % ALIGNMENT
    allocation = Allocation(offset + stop - start, poison=False)
    allocation.bytes[offset : offset + stop - start] = cuda.as_cuda_array(_Memory(start, stop)).copy_to_host()
    return start, stop, allocation


def _window(array, low, pieces):
    """An array of the emulator in the piece of memory that holds it."""
    for start, stop, allocation in pieces:
        if start <= low < stop:
            pointer = array.__cuda_array_interface__["data"][0]
            memory = DevicePointer(allocation, start % ALIGNMENT + pointer - start)
            return DeviceArray(array.shape, array.strides, array.dtype, gpu_data=memory)
    return DeviceArray(array.shape, array.strides, array.dtype)


def registers(launch, args):
    """Registers per thread of the compiled kernel on a GPU; None without one."""
    dispatcher = launch.dispatcher
    if not hasattr(dispatcher, "typeof_pyval") or not cuda.is_available():
        return None
    compiled = dispatcher.compile(tuple(dispatcher.typeof_pyval(a) for a in args))
    return compiled.regs_per_thread
