"""Device memory that processes of one machine share: the IPC handles of ``numba.cuda``.

Exporting moves an allocation to a file of the machine's shared memory, which other processes map.
"""

import contextlib
import mmap
import os
import tempfile
import weakref

import numpy as np

from warpstep.api.allocations import Allocation, DevicePointer, check_alive
from warpstep.errors import UnsupportedError

#: Bytes of a handle, as in CUDA. It holds the name of the file.
HANDLE_BYTES = 64
_MEMORY = "/dev/shm"


class MemHandle:
    """What ``IpcHandle.handle`` is; ``reserved`` are its 64 bytes."""

    def __init__(self, reserved: bytes):
        self.reserved = bytes(reserved).ljust(HANDLE_BYTES, b"\0")

    @property
    def path(self) -> str:
        return os.fsdecode(self.reserved.rstrip(b"\0"))


class IpcHandle:
    """A part of an allocation that other processes can open: what ``context.get_ipc_handle`` gives. It can be pickled.

    Attributes
    ----------
    handle : MemHandle
    size, offset : int
        Bytes of the part, and where it begins in the allocation.
    source_info : dict
        The identity of the device.
    """

    def __init__(self, base, handle: MemHandle, size: int, source_info: dict | None = None, offset: int = 0):
        self.base = base
        self.handle = handle
        self.size = size
        self.source_info = source_info
        self.offset = offset
        self._opened = None

    def __reduce__(self):
        return _rebuild, (self.handle.reserved, self.size, self.source_info, self.offset)

    def can_access_peer(self, context) -> bool:
        """True: every device can access memory that processes share."""
        return True

    def open(self, context) -> DevicePointer:
        """Map the memory. ValueError in the process that exported it, and if it is open already."""
        if self.base is not None:
            raise ValueError("opening IpcHandle from original process")
        if self._opened is not None:
            raise ValueError("IpcHandle is already opened")
        self._opened = _open(self.handle, self.offset + self.size)
        return DevicePointer(self._opened, self.offset, self.size)

    open_direct = open_staged = open

    def open_array(self, context, shape, dtype, strides=None):
        """The same as an array of the context; 1-D and contiguous unless ``strides`` are given."""
        dtype = np.dtype(dtype)
        return context.array_on(self.open(context), shape, dtype.itemsize if strides is None else strides, dtype)

    def close(self) -> None:
        """End the use of the memory here. ValueError if it is not open."""
        if self._opened is None:
            raise ValueError("IpcHandle not opened")
        self._opened.free()
        self._opened = None


def _rebuild(reserved, size, source_info, offset):
    return IpcHandle(None, MemHandle(reserved), size, source_info, offset)


def export(memory: DevicePointer, source_info: dict | None = None) -> IpcHandle:
    """Return the handle of some memory.

    Raises
    ------
    UnsupportedError
        For memory that the host uses too: mapped or managed.
    """
    allocation = memory.allocation
    check_alive(allocation)
    if not allocation.movable:
        raise UnsupportedError("memory that the host uses too (mapped, managed) cannot be shared with other processes")
    path = allocation.path or _move(allocation)
    return IpcHandle(memory, MemHandle(os.fsencode(path)), memory.size, source_info, memory.offset)


def _move(allocation):
    folder = _MEMORY if os.path.isdir(_MEMORY) else None
    descriptor, path = tempfile.mkstemp(prefix="gpukit-", dir=folder)
    weakref.finalize(allocation, _remove, path)
    if len(os.fsencode(path)) > HANDLE_BYTES:
        raise UnsupportedError(f"{path} is too long a name for a handle of {HANDLE_BYTES} bytes: set TMPDIR")
    with open(descriptor, "r+b") as file:
        file.write(allocation.bytes)
        file.flush()
        allocation.bytes = _map(file, allocation.bytes.size)
    allocation.path = path
    return path


def _remove(path):
    with contextlib.suppress(OSError):
        os.remove(path)


def _map(file, size):
    return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)


def _open(handle, nbytes):
    try:
        with open(handle.path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size < nbytes:
                raise ValueError(f"the memory of this handle has {size} bytes, not {nbytes}")
            return Allocation(nbytes, memory=_map(file, size))
    except (OSError, ValueError) as error:
        raise ValueError(f"the memory of this IPC handle cannot be opened: {error}") from None
