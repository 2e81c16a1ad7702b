"""Device arrays whose memory is in any order."""

import numpy as np

from gpukit.backend import cuda


def laid_out(x, order, step=1):
    """A device array equal to ``x`` with its axes in another order in memory, every ``step``-th element of the last."""
    stored = np.repeat(x.transpose(order), step, -1)
    memory = cuda.to_device(np.ascontiguousarray(stored))
    strides = dict(zip(order, memory.strides, strict=True))
    strides[order[-1]] *= step
    description = {
        "shape": x.shape,
        "strides": tuple(strides[i] for i in range(x.ndim)),
        "typestr": x.dtype.str,
        "data": (memory.device_ctypes_pointer.value, False),
        "version": 3,
    }
    return cuda.from_cuda_array_interface(description, owner=memory, sync=False)


def view_on_device(view, base, memory):
    """A view of an array, as the same view of its copy on the device."""
    interface = {"shape": view.shape, "strides": view.strides, "typestr": view.dtype.str, "version": 3}
    interface["data"] = (memory.device_ctypes_pointer.value + view.ctypes.data - base.ctypes.data, False)
    return cuda.from_cuda_array_interface(interface, owner=memory)
