"""Memory of the emulated device: allocations, and pointers into them."""

import ctypes
import gc
import threading
import weakref
from typing import Any

import numpy as np

from warpstep import device
from warpstep._numba import CudaAPIError, CUresult
from warpstep.api.streams import check_stream
from warpstep.device import MB
from warpstep.integers import ceil_div
from warpstep.limits import POISON

#: Device addresses start here and are multiples of ALIGNMENT, as those of a real allocation are.
FIRST_ADDRESS = 0x7F00_0000_0000
ALIGNMENT = 256
HOST_ALIGNMENT = 64
#: Buffers are whole multiples of this, so that a view as items of any simple type fits.
ITEM = 16

_live = weakref.WeakSet()
_lock = threading.RLock()  # reentrant, for a finalizer may allocate
_next_address = FIRST_ADDRESS


class Allocation:
    """One block of emulated device memory.

    Parameters
    ----------
    nbytes : int
    name : str, optional
        The array's name, for messages.
    poison : bool
        Fill it with 0xFF bytes; False where the caller writes all of it at once.
    memory : ndarray of uint8, optional
        Host memory that the device sees too (mapped memory). It is used as it is and does not count as device memory.

    Attributes
    ----------
    bytes : ndarray of uint8, 1-D
        Its contents, rounded up to a multiple of 16; aligned to 64 bytes unless it is mapped.
    address : int
        Address on the device, a multiple of 256 that no other allocation ever has; 0 if it is empty.
    nbytes : int
    name : str or None
    device : int
        The number of the device that it is on, the current one of the thread that made it.
    freed : bool
        True after `free`; every use through an array then raises.
    movable : bool
        True if nothing but device arrays uses ``bytes``, which may then be replaced.
    path : str or None
        The file of shared memory that ``bytes`` are in, if they are.
    known : ndarray of bool, or None
        The bytes that were written since the allocation, for a trace; None if all were, or may have been.

    Raises
    ------
    CudaAPIError
        ``CUDA_ERROR_OUT_OF_MEMORY`` if the emulated device, or the machine that emulates it, has not enough left.
    """

    __slots__ = (
        "__weakref__",
        "_owner",
        "address",
        "bytes",
        "device",
        "freed",
        "known",
        "movable",
        "name",
        "nbytes",
        "on_device",
        "path",
    )

    def __init__(self, nbytes: int, name: str | None = None, *, poison: bool = True, memory: np.ndarray | None = None):
        self.nbytes = nbytes
        self.name = name
        self.device = device.number()
        self.freed = False
        self.on_device = self.movable = memory is None
        self.path = None
        if self.on_device:
            _require(nbytes)
        self.bytes = host_memory(nbytes, poison) if memory is None else memory
        self.known = np.zeros(self.bytes.size, bool) if poison and memory is None else None
        self.address = _take_address(nbytes) if nbytes else 0
        with _lock:
            _live.add(self)

    @property
    def is_private(self) -> bool:
        """False for memory that the host uses too, or another process: every device can access it."""
        return self.on_device and self.movable

    def mark(self, host: np.ndarray) -> None:
        """Note that the elements of ``host``, a NumPy view on this memory, have been written."""
        if self.known is not None and host.size:
            start = address_of(host) - address_of(self.bytes)
            shape, strides = (*host.shape, host.dtype.itemsize), (*host.strides, 1)
            np.ndarray(shape, bool, self.known, start, strides)[...] = True

    def free(self) -> None:
        """Give the memory back. RuntimeError if that was done before."""
        if self.freed:
            raise RuntimeError("Freeing dead memory")
        self.freed = True

    def __reduce__(self):
        raise TypeError("emulated device memory cannot be pickled or copied as an object: use copy_to_host()")

    def __repr__(self):
        name = f" {self.name!r}" if self.name else ""
        return f"<Allocation{name} of {self.nbytes:,} bytes at {self.address:#x}{' (freed)' if self.freed else ''}>"


def _take_address(nbytes):
    global _next_address
    with _lock:
        address = _next_address
        _next_address += ceil_div(nbytes, ALIGNMENT) * ALIGNMENT
    return address


def address_of(array: np.ndarray) -> int:
    """The address of the first element in the memory of the host."""
    return array.__array_interface__["data"][0]


def host_memory(nbytes: int, poison: bool = True) -> np.ndarray:
    """Aligned host memory as a 1-D uint8 array of at least ``nbytes`` bytes; CudaAPIError if the machine has less."""
    size = ceil_div(nbytes, ITEM) * ITEM
    available = _host_memory_available() if nbytes > 64 * MB else None
    if available is not None and nbytes > available:
        _out_of_memory(
            f"{nbytes:,} bytes asked for; this machine, which holds the emulated memory, can give {available:,} bytes"
        )
    raw = np.empty(size + HOST_ALIGNMENT, np.uint8)
    start = -address_of(raw) % HOST_ALIGNMENT
    memory = raw[start : start + size]
    if poison:
        memory.fill(POISON)
    return memory


def live_allocations() -> list[Allocation]:
    """All allocations that exist and have not been freed."""
    with _lock:
        known = list(_live)
    return [allocation for allocation in known if not allocation.freed]


def memory_in_use() -> int:
    """Bytes of the current device's memory that are allocated now. Mapped host memory does not count."""
    here = device.number()
    return sum(each.nbytes for each in live_allocations() if each.on_device and each.device == here)


def free_memory() -> int:
    """Bytes that a new allocation may have: less than the emulated device has left where this machine has less."""
    free, available = device.current().total_memory - memory_in_use(), _host_memory_available()
    return max(0, free if available is None else min(free, available))


def find_allocation(address: int) -> Allocation | None:
    """The allocation that a device address lies in."""
    return next((a for a in live_allocations() if a.address <= address < a.address + a.nbytes), None)


def _require(nbytes):
    total = device.current().total_memory
    free = total - memory_in_use()
    if nbytes > free:
        # What only reference cycles keep alive is given back first, as numba.cuda flushes its pending deallocations.
        gc.collect()
        free = total - memory_in_use()
    if nbytes > free:
        _out_of_memory(f"{nbytes:,} bytes asked for, {free:,} of {total:,} bytes of the emulated device are free")


def _out_of_memory(reason):
    code = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    raise CudaAPIError(code, f"Call to cuMemAlloc results in {code.name}: {reason}")


def _host_memory_available():
    """Bytes that this machine can still give, a tenth left to spare, or None where it does not say.

    To fill more would not raise: it would end the process.
    """
    known = []
    try:
        with open("/proc/meminfo") as lines:
            known.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")))
        # A container may allow less than the machine has.
        with open("/sys/fs/cgroup/memory.max") as file, open("/sys/fs/cgroup/memory.stat") as lines:
            used = next(int(line.split()[1]) for line in lines if line.startswith("anon "))
            known.append(int(file.read()) - used)
    except (OSError, StopIteration, ValueError):
        pass
    return min(known) * 9 // 10 if known else None


#: Finds the context of a device by its number; set by `context`, which knows them.
find_context: Any = None


class DevicePointer:
    """Part of an allocation: what numba.cuda calls a memory pointer (``array.gpu_data``, ``context.memalloc``).

    Attributes
    ----------
    allocation : Allocation
    offset, size : int
        Bytes.
    """

    __cuda_memory__ = True

    def __init__(self, allocation: Allocation, offset: int = 0, size: int | None = None):
        self.allocation = allocation
        self.offset = offset
        self.size = allocation.nbytes - offset if size is None else size

    @property
    def device_pointer_value(self) -> int | None:
        """Address on the emulated device; None for empty memory."""
        return self.allocation.address + self.offset if self.allocation.address else None

    @property
    def device_ctypes_pointer(self) -> ctypes.c_size_t:
        """The same, 0 for empty memory. Nothing outside the emulator can follow it."""
        return ctypes.c_size_t(self.device_pointer_value or 0)

    @property
    def owner(self) -> "DevicePointer":
        """The whole allocation."""
        return DevicePointer(self.allocation)

    @property
    def context(self) -> Any:
        """The context of the device that the memory is on."""
        return find_context(self.allocation.device)

    def view(self, start: int, stop: int | None = None) -> "DevicePointer":
        """Bytes ``start`` to ``stop`` of this memory."""
        size = self.size - start if stop is None else stop - start
        if size < 0:
            raise RuntimeError("size cannot be negative")
        return DevicePointer(self.allocation, self.offset + start, size)

    def memset(self, byte: int, count: int | None = None, stream=0) -> None:
        """Set the first ``count`` bytes (all if None) to ``byte``."""
        check_stream(stream)
        count = self.size if count is None else count
        if not 0 <= count <= self.size:
            raise ValueError(f"count is {count}; this memory has {self.size} bytes")
        self.bytes[:count] = byte & 0xFF
        self.allocation.mark(self.bytes[:count])

    def free(self) -> None:
        """Free the whole allocation now. RuntimeError if that was done before."""
        self.allocation.free()

    @property
    def bytes(self) -> np.ndarray:
        """The contents as uint8. CudaAPIError if the memory was freed."""
        check_alive(self.allocation)
        return self.allocation.bytes[self.offset : self.offset + self.size]


def check_alive(allocation: Allocation) -> None:
    """Raise CudaAPIError if the memory was freed, by ``free``, by ``cuda.close`` or by a reset of the device."""
    if allocation.freed:
        code = CUresult.CUDA_ERROR_INVALID_VALUE
        raise CudaAPIError(code, f"{code.name}: the memory of this array was freed: {allocation}")
