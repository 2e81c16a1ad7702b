"""The emulated devices and their contexts as ``numba.cuda`` shows them (source row A8).

These are what ``get_current_device``, ``gpus`` and ``current_context`` give. As with numba.cuda, most methods of a
context are about the current device of the thread, whichever context they are called on.
"""

import functools
import threading
import uuid
from contextlib import contextmanager
from typing import Any

import numpy as np

from warpstep import device as devices
from warpstep._numba import DEVICE_ATTRIBUTES, CudaAPIError, CUresult, MemoryInfo
from warpstep.api import allocations, arrays, order, sharing
from warpstep.api.streams import DEFAULT, LEGACY, PER_THREAD, Event, Stream
from warpstep.device import Limits, current
from warpstep.errors import UnsupportedError
from warpstep.values import check_int, describe

#: Attributes of the driver that a `Limits` knows, by the field that holds them.
_FIGURES = {
    "ASYNC_ENGINE_COUNT": "copy_engines",
    "CLOCK_RATE": "clock_rate",
    "GLOBAL_MEMORY_BUS_WIDTH": "memory_bus_width",
    "L2_CACHE_SIZE": "l2_size",
    "MAX_BLOCKS_PER_MULTIPROCESSOR": "max_blocks_per_multiprocessor",
    "MAX_REGISTERS_PER_BLOCK": "max_registers_per_block",
    "MAX_REGISTERS_PER_MULTIPROCESSOR": "max_registers_per_multiprocessor",
    "MAX_SHARED_MEMORY_PER_BLOCK": "max_shared_memory_per_block",
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": "max_shared_memory_per_block_optin",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": "max_shared_memory_per_multiprocessor",
    "MAX_THREADS_PER_BLOCK": "max_threads_per_block",
    "MAX_THREADS_PER_MULTIPROCESSOR": "max_threads_per_multiprocessor",
    "MEMORY_CLOCK_RATE": "memory_clock_rate",
    "MULTIPROCESSOR_COUNT": "multiprocessor_count",
    "REGISTERS_PER_BLOCK": "max_registers_per_block",
    "RESERVED_SHARED_MEMORY_PER_BLOCK": "reserved_shared_memory_per_block",
    "SHARED_MEMORY_PER_BLOCK": "max_shared_memory_per_block",
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": "single_to_double_ratio",
    "TOTAL_CONSTANT_MEMORY": "total_constant_memory",
    "WARP_SIZE": "warp_size",
}

#: Attributes that are the same for every device that can be emulated.
_COMMON = {
    "CAN_MAP_HOST_MEMORY": 1,
    "COMPUTE_MODE": 0,
    "COMPUTE_PREEMPTION_SUPPORTED": 1,
    "CONCURRENT_KERNELS": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "GLOBAL_L1_CACHE_SUPPORTED": 1,
    "GPU_OVERLAP": 1,
    "HOST_REGISTER_SUPPORTED": 1,
    "INTEGRATED": 0,
    "KERNEL_EXEC_TIMEOUT": 0,
    "LOCAL_L1_CACHE_SUPPORTED": 1,
    "MANAGED_MEMORY": 1,
    "MAX_PITCH": 2**31 - 1,
    "MULTI_GPU_BOARD": 0,
    "STREAM_PRIORITIES_SUPPORTED": 1,
    "TCC_DRIVER": 0,
    "UNIFIED_ADDRESSING": 1,
}

#: Limits of textures and surfaces, which kernels of Numba cannot use; the same for all devices that can be emulated.
_TEXTURES = {
    "CAN_TEX2D_GATHER": 1,
    "MAXIMUM_SURFACE1D_LAYERED_LAYERS": 2048,
    "MAXIMUM_SURFACE1D_LAYERED_WIDTH": 32768,
    "MAXIMUM_SURFACE1D_WIDTH": 32768,
    "MAXIMUM_SURFACE2D_HEIGHT": 65536,
    "MAXIMUM_SURFACE2D_LAYERED_HEIGHT": 32768,
    "MAXIMUM_SURFACE2D_LAYERED_LAYERS": 2048,
    "MAXIMUM_SURFACE2D_LAYERED_WIDTH": 32768,
    "MAXIMUM_SURFACE2D_WIDTH": 131072,
    "MAXIMUM_SURFACE3D_DEPTH": 16384,
    "MAXIMUM_SURFACE3D_HEIGHT": 16384,
    "MAXIMUM_SURFACE3D_WIDTH": 16384,
    "MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS": 2046,
    "MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH": 32768,
    "MAXIMUM_SURFACECUBEMAP_WIDTH": 32768,
    "MAXIMUM_TEXTURE1D_LAYERED_LAYERS": 2048,
    "MAXIMUM_TEXTURE1D_LAYERED_WIDTH": 32768,
    "MAXIMUM_TEXTURE1D_LINEAR_WIDTH": 2**28,
    "MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH": 32768,
    "MAXIMUM_TEXTURE1D_WIDTH": 131072,
    "MAXIMUM_TEXTURE2D_ARRAY_HEIGHT": 32768,
    "MAXIMUM_TEXTURE2D_ARRAY_NUMSLICES": 2048,
    "MAXIMUM_TEXTURE2D_ARRAY_WIDTH": 32768,
    "MAXIMUM_TEXTURE2D_GATHER_HEIGHT": 32768,
    "MAXIMUM_TEXTURE2D_GATHER_WIDTH": 32768,
    "MAXIMUM_TEXTURE2D_HEIGHT": 65536,
    "MAXIMUM_TEXTURE2D_LAYERED_HEIGHT": 32768,
    "MAXIMUM_TEXTURE2D_LAYERED_LAYERS": 2048,
    "MAXIMUM_TEXTURE2D_LAYERED_WIDTH": 32768,
    "MAXIMUM_TEXTURE2D_LINEAR_HEIGHT": 65000,
    "MAXIMUM_TEXTURE2D_LINEAR_PITCH": 2097120,
    "MAXIMUM_TEXTURE2D_LINEAR_WIDTH": 131072,
    "MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT": 32768,
    "MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH": 32768,
    "MAXIMUM_TEXTURE2D_WIDTH": 131072,
    "MAXIMUM_TEXTURE3D_DEPTH": 16384,
    "MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE": 32768,
    "MAXIMUM_TEXTURE3D_HEIGHT": 16384,
    "MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE": 8192,
    "MAXIMUM_TEXTURE3D_WIDTH": 16384,
    "MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE": 8192,
    "MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS": 2046,
    "MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH": 32768,
    "MAXIMUM_TEXTURECUBEMAP_WIDTH": 32768,
    "SURFACE_ALIGNMENT": 512,
    "TEXTURE_ALIGNMENT": 512,
    "TEXTURE_PITCH_ALIGNMENT": 32,
}


#: Read by `Device.get_device_identity`, also where no bindings of the driver name the attributes.
_BUS = ("PCI_BUS_ID", "PCI_DEVICE_ID", "PCI_DOMAIN_ID")


def _attributes(limits, number):
    """{name as the driver has it: value} of all attributes of a device.

    0 where the emulator has nothing to show, as a driver answers for what a device lacks: RDMA ...
    """
    major, minor = limits.compute_capability
    known = dict.fromkeys((*DEVICE_ATTRIBUTES, *_BUS), 0)
    known["PCI_BUS_ID"] = number
    figures = {name: getattr(limits, field) for name, field in _FIGURES.items()}
    known.update((name, value) for name, value in figures.items() if value is not None)
    known.update(_COMMON)
    known.update(_TEXTURES)
    known.update(
        ASYNC_ENGINE_COUNT=limits.copy_engines or 1,
        COMPUTE_CAPABILITY_MAJOR=major,
        COMPUTE_CAPABILITY_MINOR=minor,
        CLUSTER_LAUNCH=int(major >= 9),
        TENSOR_MAP_ACCESS_SUPPORTED=int(major >= 9),
    )
    for what, extents in (("BLOCK", limits.max_block_dim), ("GRID", limits.max_grid_dim)):
        known.update({f"MAX_{what}_DIM_{axis}": extent for axis, extent in zip("XYZ", extents, strict=True)})
    return known


def _check_number(devnum):
    """The number of a device, which may count from the end as an index does; IndexError for one that is not there."""
    try:
        number = int(devnum)
    except Exception as error:  # ValueError for a text that is no number, as from numba.cuda
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"the number of a device is {describe(devnum)}; it must be an int") from None
    count = devices.count()
    if not -count <= number < count:
        there = "one, number 0" if count == 1 else f"{count}, numbers 0 to {count - 1}"
        raise IndexError(
            f"there is no device {describe(devnum)}: the emulator has {there}; the environment variable "
            f"GPUKIT_DEVICES makes it up to {devices.MAX_DEVICES}"
        )
    return number % count


class Device:
    """An emulated device: numba.cuda's ``Device``.

    The driver's attributes are read by their names (``device.MAX_THREADS_PER_BLOCK``, ``device.MULTIPROCESSOR_COUNT``
    ...). One that an emulator has nothing to show for (RDMA ...) is 0. The number on the PCI bus is the device's.

    Parameters
    ----------
    devnum : int
        IndexError if there is no such device.

    Attributes
    ----------
    id : int
    name, uuid : str
    compute_capability : (major, minor)
    limits : device.Limits
    """

    def __init__(self, devnum: int = 0):
        self.id = _check_number(devnum)
        self.limits = limits = current()
        self.name = limits.name
        self.compute_capability = limits.compute_capability
        self.uuid = f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'{limits.name}{self.id or str()}')}"
        self.primary_context = None
        self._attributes = _attributes(limits, self.id)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._attributes[name]
        except KeyError:
            raise AttributeError(f"a device has no {name}: the driver knows no attribute of this name") from None

    def __dir__(self):
        return [*super().__dir__(), *self._attributes]

    def __repr__(self):
        return f"<CUDA device {self.id} '{self.name}'>"

    @classmethod
    def from_identity(cls, identity: dict) -> "Device":
        """Return the device that gave this `get_device_identity`. RuntimeError if there is none."""
        found = next((device for device in map(_device, _numbers()) if device.get_device_identity() == identity), None)
        if found is None:
            raise RuntimeError(f"No device of {identity} is found. Target device may not be visible in this process.")
        return found

    def get_device_identity(self) -> dict[str, int]:
        """Return where the device is on the PCI bus: at its number."""
        return {f"pci_{part}_id": self._attributes[f"PCI_{part.upper()}_ID"] for part in ("domain", "bus", "device")}

    def __eq__(self, other):
        return isinstance(other, Device) and (self.id, self.limits) == (other.id, other.limits)

    def __hash__(self):
        return hash((self.id, self.compute_capability))

    @property
    def supports_float16(self):
        return self.compute_capability >= (5, 3)

    @property
    def supports_bfloat16(self):
        return self.compute_capability >= (8, 0)

    @property
    def supports_fp8(self):
        return self.compute_capability >= (8, 9)

    def get_primary_context(self) -> "Context":
        """Return the context of the device."""
        if self.primary_context is None:
            self.primary_context = Context(self)
        return self.primary_context

    def release_primary_context(self):
        """Forget the context; its memory stays."""
        self.primary_context = None

    def reset(self):
        """Free all memory of the device: its arrays cannot be used any more. Its access to others ends, and theirs."""
        self.get_primary_context().reset()
        self.release_primary_context()
        devices.end_access(self.id)


class _NothingPending(list):
    """Memory is given back as soon as nothing refers to it, so there are never deallocations that wait."""

    is_disabled = False


class Context:
    """The context of an emulated device: numba.cuda's ``Context``, and its memory manager in one.

    Attributes
    ----------
    device : Device
    handle : int
    deallocations
        Empty; ``clear()`` has nothing to do.
    """

    def __init__(self, device):
        self.device = device
        self.handle = device.id + 1
        self.deallocations = _NothingPending()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"the emulator's context has no {name}: there is no driver behind it")

    def __repr__(self):
        return f"<CUDA context {self.handle} of device {self.device.id} (emulated)>"

    def __eq__(self, other):
        return self.device == other.device if isinstance(other, Context) else NotImplemented

    def __hash__(self):
        return hash((self.handle, self.device))

    @property
    def memory_manager(self):
        return self

    # -- memory --

    def get_memory_info(self) -> Any:
        """Return the (free, total) bytes of the current device."""
        total = self.device.limits.total_memory
        return MemoryInfo(free=max(0, total - allocations.memory_in_use()), total=total)

    def memalloc(self, bytesize: int) -> allocations.DevicePointer:
        """Allocate memory of the current device, uninitialised."""
        return allocations.DevicePointer(allocations.Allocation(_size(bytesize)))

    def memallocmanaged(self, bytesize: int, attach_global: bool = True) -> arrays.MappedArray:
        """Allocate memory that host and device share, as uint8."""
        return arrays.ManagedArray.allocate(_size(bytesize))

    def memhostalloc(self, bytesize: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> np.ndarray:
        """Allocate host memory as bytes: an ndarray, or a MappedArray that the device sees too if ``mapped``."""
        if mapped:
            return arrays.MappedArray.allocate(_size(bytesize))
        return allocations.host_memory(size := _size(bytesize))[:size]

    def reset(self):
        """Free all memory of the device. Arrays in it cannot be used any more."""
        for allocation in allocations.live_allocations():
            if allocation.device == self.device.id:
                allocation.free()

    @contextmanager
    def defer_cleanup(self):
        """``with context.defer_cleanup(): ...``: on a GPU, memory that is given back inside is freed at the end."""
        yield

    def mempin(self, owner, pointer, size, mapped: bool = False):
        """Raise: memory is pinned by its address, which means nothing here. ``cuda.pinned`` takes arrays."""
        raise UnsupportedError(
            "the emulator's context cannot pin memory by its address; cuda.pinned(array) takes an array"
        )

    def get_ipc_handle(self, memory: allocations.DevicePointer) -> sharing.IpcHandle:
        """Return a handle of some device memory that other processes of this machine can open."""
        return sharing.export(memory, self.device.get_device_identity())

    def array_on(self, memory: allocations.DevicePointer, shape, strides, dtype) -> arrays.DeviceArray:
        """Return an array on some device memory."""
        return arrays.DeviceArray(shape, strides, dtype, gpu_data=memory)

    # -- occupancy --

    def get_active_blocks_per_multiprocessor(self, func, blocksize: int, memsize: int, flags=None) -> int:
        """Blocks of an overload of a kernel that a multiprocessor can hold at once, registers aside."""
        return func.blocks_per_multiprocessor(blocksize, memsize)

    def get_max_potential_block_size(self, func, b2d_func, memsize: int, blocksizelimit: int, flags=None) -> tuple:
        """(0, threads per block that ``forall`` would take) of an overload of a kernel."""
        return 0, min(blocksizelimit, func.max_threads_per_block)

    # -- streams and events --

    def get_default_stream(self):
        return Stream(DEFAULT)

    def get_legacy_default_stream(self):
        return Stream(LEGACY)

    def get_per_thread_default_stream(self):
        return Stream(PER_THREAD)

    def create_stream(self):
        return Stream()

    def create_external_stream(self, ptr) -> Stream:
        """Make a stand-in for a stream made elsewhere. TypeError if ``ptr`` is not an int."""
        if not isinstance(ptr, int):
            raise TypeError("ptr for external stream must be an int")
        return Stream(ptr, external=True)

    def create_event(self, timing=True):
        return Event(timing)

    def synchronize(self):
        """Wait for everything that was launched on the current device: it is done already."""
        if order.watched():
            order.wait_for_device(devices.number())

    # -- the thread's stack of contexts --

    def prepare_for_use(self):
        """Nothing to do."""

    def push(self):
        """Make it the current context of this thread."""
        devices.push(self.device.id)

    def pop(self):
        """Make the one before the current context of this thread again. AssertionError if this is not the current."""
        assert devices.pop() == self.device.id  # as numba.cuda's

    # -- other devices --

    def can_access_peer(self, peer_device: int) -> bool:
        """True if kernels on this device can be given access to the memory of another, by its number.

        Every two devices of the emulator have a link. CudaAPIError if there is no such device.
        """
        peer = check_int("peer_device", peer_device, -(2**31))
        if not 0 <= peer < devices.count():
            raise _api_error("cuDeviceCanAccessPeer", CUresult.CUDA_ERROR_INVALID_DEVICE)
        return peer != self.device.id

    def enable_peer_access(self, peer_context: int, flags: int = 0) -> None:
        """Let kernels on the current device access the memory of another.

        Copies between devices need no such right, and it holds in one direction.

        Parameters
        ----------
        peer_context : int
            The ``handle`` of the other device's context.
        flags : int
            0.

        Raises
        ------
        TypeError
            For a context in place of its handle.
        CudaAPIError
            If the current device has the right already, or the other is no other device.
        """
        assert flags == 0, "*flags* is reserved and MUST be zero"
        if isinstance(peer_context, Context):
            raise TypeError("peer_context is a Context; numba.cuda hands it on to the driver: give its .handle")
        here, peer = devices.number(), check_int("peer_context", peer_context, 0) - 1
        if not 0 <= peer < devices.count():
            raise _api_error("cuCtxEnablePeerAccess", CUresult.CUDA_ERROR_INVALID_CONTEXT)
        if peer == here:
            raise _api_error("cuCtxEnablePeerAccess", CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
        if not devices.begin_access(here, peer):
            raise _api_error("cuCtxEnablePeerAccess", CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)


def _size(nbytes):
    return check_int("bytesize", nbytes, 0)


def _api_error(function, code):
    return CudaAPIError(code, f"Call to {function} results in {code.name}")


class ManagedDevice:
    """An entry of ``cuda.gpus``: the device, and ``with cuda.gpus[1]: ...`` to use it."""

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        return getattr(self._device, name)

    def __enter__(self):
        get_context(self._device.id)

    def __exit__(self, *exception):
        self._device.get_primary_context().pop()

    def __str__(self):
        return f"<Managed Device {self._device.id}>"


class DeviceList:
    """``cuda.gpus``: the emulated devices."""

    @property
    def lst(self):
        return [ManagedDevice(_device(number)) for number in _numbers()]

    @property
    def current(self):
        return self[devices.number()]

    def __getitem__(self, devnum) -> Any:
        if isinstance(devnum, slice):
            return self.lst[devnum]
        return ManagedDevice(_device(_check_number(devnum)))

    def __iter__(self):
        return iter(self.lst)

    def __len__(self):
        return devices.count()

    def __str__(self):
        return ", ".join(map(str, self.lst))


gpus = DeviceList()
_devices: dict[tuple[Limits, int], Device] = {}


def _numbers():
    return range(devices.count())


def _device(number):
    key = current(), number
    return _devices.get(key) or _devices.setdefault(key, Device(number))


def get_current_device() -> Device:
    """Return the current device of this thread, of the compute capability that is emulated now."""
    return _device(devices.number())


class _Attached(threading.local):
    """The context that a function of this thread was called with, if it must not switch to another."""

    context: Context | None = None


_attached = _Attached()


def get_context(devnum: int | None = None) -> Context:
    """Return the current context, or that of a device, which becomes the current one of this thread.

    Raises
    ------
    IndexError
        If there is no such device.
    RuntimeError
        To switch devices inside a function that `require_context` has decorated.
    """
    if devnum is None:
        return get_current_device().get_primary_context()
    context = _device(_check_number(devnum)).get_primary_context()
    if _attached.context is not None and _attached.context is not context:
        raise RuntimeError("Cannot switch CUDA-context.")
    context.push()
    return context


def require_context(fn):
    """Decorate a function that needs a context and does not switch to another device."""

    @functools.wraps(fn)
    def call(*args, **named):
        before, _attached.context = _attached.context, get_context()
        try:
            return fn(*args, **named)
        finally:
            _attached.context = before

    return call


def reset():
    """Give this thread back device 0. In the main thread, free the memory of all devices too."""
    devices.pop_all()
    if threading.current_thread() is threading.main_thread():
        for number in _numbers():
            _device(number).reset()


allocations.find_context = lambda number: _device(number).get_primary_context()
