"""The properties and limits of a GPU (source row A8).

``info`` queries a device, real or emulated; ``compare`` puts several side by side; ``RTX_3090`` is the documents' own.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from gpukit._numba import cuda_api_error
from gpukit.backend import cuda, on_gpu
from warpstep.checks import format_dim3
from warpstep.limits import MAX_GRID_YZ, WARP
from warpstep.report.table import Table
from warpstep.values import describe, type_name

__all__ = ["RTX_3090", "Comparison", "DeviceInfo", "compare", "info"]

NOT_STATED = "not stated"


@dataclass(frozen=True)
class DeviceInfo:
    """The properties and limits of a device (source row A8). None stands for a value that is not known.

    ``print`` shows a table. Its KB, MB and GB are powers of 1024, as in the documents; its GB/s and GHz are powers of
    1000.

    Attributes
    ----------
    id : int
    name : str
    emulated : bool
        True for the emulator's device.
    compute_capability : tuple of 2 int
        Major and minor.
    global_memory, l2_size, shared_memory_per_block, shared_memory_per_block_optin, shared_memory_per_sm : int
        Bytes. To get more than ``shared_memory_per_block``, a kernel must opt in, and gets it as dynamic shared memory.
    registers_per_block, registers_per_sm : int
        32-bit registers.
    core_clock, memory_clock : float
        Max frequency in Hz.
    memory_bus_width : int
        Bits.
    sm_count, warp_size, max_blocks_per_sm, max_threads_per_sm, max_threads_per_block, async_engine_count : int
    max_block_dim, max_grid_dim : tuple of 3 int
        x, y, z.
    concurrent_kernels, unified_addressing : bool
    """

    id: int | None
    name: str
    emulated: bool = False
    compute_capability: tuple[int, int] | None = None
    global_memory: int | None = None
    l2_size: int | None = None
    shared_memory_per_block: int | None = None
    shared_memory_per_block_optin: int | None = None
    shared_memory_per_sm: int | None = None
    registers_per_block: int | None = None
    registers_per_sm: int | None = None
    core_clock: float | None = None
    memory_clock: float | None = None
    memory_bus_width: int | None = None
    sm_count: int | None = None
    warp_size: int | None = None
    max_blocks_per_sm: int | None = None
    max_threads_per_sm: int | None = None
    max_threads_per_block: int | None = None
    max_block_dim: tuple[int, int, int] | None = None
    max_grid_dim: tuple[int, int, int] | None = None
    async_engine_count: int | None = None
    concurrent_kernels: bool | None = None
    unified_addressing: bool | None = None

    @property
    def memory_bandwidth(self) -> float | None:
        """float or None: theoretical bytes per second: two transfers per memory clock over the whole bus."""
        if self.memory_clock is None or self.memory_bus_width is None:
            return None
        return 2 * self.memory_clock * self.memory_bus_width / 8

    @property
    def max_warps_per_sm(self) -> int | None:
        """int or None: resident warps of an SM."""
        if self.max_threads_per_sm is None or self.warp_size is None:
            return None
        return self.max_threads_per_sm // self.warp_size

    def __str__(self):
        return str(compare(self))

    def _repr_html_(self):
        return compare(self)._repr_html_()


def _memory(nbytes):
    """48 KB, 6 MB, 23.70 GB: powers of 1024, with decimals only for values between."""
    unit, size = next(((u, s) for u, s in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)) if nbytes >= s), ("B", 1))
    return f"{nbytes / size:.2f} {unit}" if nbytes % size else f"{nbytes // size} {unit}"


def _clock(hertz):
    return f"{hertz / 1e9:.2f} GHz"


def _yes_or_no(value):
    return "yes" if value else "no"


#: (label, attribute, format) in the order of the documents' table, then the attributes that it lacks.
ROWS = (
    ("device id", "id", str),
    ("name", "name", str),
    ("compute capability", "compute_capability", lambda version: "{}.{}".format(*version)),
    ("global memory", "global_memory", _memory),
    ("L2 cache", "l2_size", _memory),
    ("shared memory per block", "shared_memory_per_block", _memory),
    ("shared memory per SM", "shared_memory_per_sm", _memory),
    ("core clock", "core_clock", _clock),
    ("memory clock", "memory_clock", _clock),
    ("SMs", "sm_count", str),
    ("warp size", "warp_size", str),
    ("max blocks per SM", "max_blocks_per_sm", str),
    ("max threads per block", "max_threads_per_block", str),
    ("max block dimensions", "max_block_dim", format_dim3),
    ("max grid dimensions", "max_grid_dim", format_dim3),
    ("shared memory per block, opt-in", "shared_memory_per_block_optin", _memory),
    ("registers per block", "registers_per_block", str),
    ("registers per SM", "registers_per_sm", str),
    ("max threads per SM", "max_threads_per_sm", str),
    ("max warps per SM", "max_warps_per_sm", str),
    ("memory bus width", "memory_bus_width", "{} bits".format),
    ("theoretical bandwidth", "memory_bandwidth", lambda rate: f"{rate / 1e9:.0f} GB/s"),
    ("copy engines", "async_engine_count", str),
    ("concurrent kernels", "concurrent_kernels", _yes_or_no),
    ("unified addressing", "unified_addressing", _yes_or_no),
)

#: The device that the documents were measured on, with the figures that they state.
RTX_3090 = DeviceInfo(
    id=None,
    name="NVIDIA GeForce RTX 3090",
    compute_capability=(8, 6),
    global_memory=round(23.70 * 2**30),
    l2_size=6 * 2**20,
    shared_memory_per_block=48 * 2**10,
    shared_memory_per_sm=100 * 2**10,
    core_clock=1.69e9,
    memory_clock=9.75e9,
    sm_count=82,
    warp_size=WARP,
    max_blocks_per_sm=16,
    max_threads_per_block=1024,
    max_block_dim=(1024, 1024, 64),
    max_grid_dim=(2**31 - 1, MAX_GRID_YZ, MAX_GRID_YZ),
)


class Comparison:
    """A table of devices side by side: text when printed, HTML in a notebook."""

    def __init__(self, infos: tuple[DeviceInfo, ...]):
        self.infos = infos

    def rows(self) -> list[tuple[str, ...]]:
        """The label and one cell for each device; rows that no device states are left out."""
        table = []
        for label, attribute, write in ROWS:
            values = [getattr(info, attribute) for info in self.infos]
            if any(value is not None for value in values):
                table.append((label, *(NOT_STATED if value is None else write(value) for value in values)))
        return table

    def _table(self):
        rows = self.rows()
        if len(self.infos) > 1:  # the names head the columns
            rows.sort(key=lambda row: row[0] != "name")
        return Table(rows[0], rows[1:], words=rows[0])

    def __str__(self):
        return self._table().text()

    def _repr_html_(self):
        return self._table().html()


def compare(*infos: DeviceInfo) -> Comparison:
    """Put devices side by side.

    Parameters
    ----------
    *infos : DeviceInfo
        One or more, for example ``compare(info(), RTX_3090)``.

    Returns
    -------
    Comparison
        Prints as a text table and shows as an HTML table. A value that only some devices state is "not stated" for the
        others.

    Raises
    ------
    TypeError
        For no argument, or for one that is not a ``DeviceInfo``.

    Examples
    --------
    >>> table = compare(info(), RTX_3090)
    """
    if not infos:
        raise TypeError("compare needs at least one DeviceInfo, for example compare(info(), RTX_3090)")
    for position, item in enumerate(infos):
        if not isinstance(item, DeviceInfo):
            raise TypeError(f"argument {position} of compare is {type_name(item)}; it must be a DeviceInfo")
    return Comparison(infos)


#: The driver's name of each attribute whose value is used unchanged.
ATTRIBUTES = {
    "l2_size": "L2_CACHE_SIZE",
    "shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK",
    "shared_memory_per_block_optin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_memory_per_sm": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "registers_per_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "sm_count": "MULTIPROCESSOR_COUNT",
    "warp_size": "WARP_SIZE",
    "max_blocks_per_sm": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "max_threads_per_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "async_engine_count": "ASYNC_ENGINE_COUNT",
}


def info(id: int = 0) -> DeviceInfo:
    """Query the properties and limits of a device (source row A8).

    Parameters
    ----------
    id : int
        The device's number, from 0.

    Returns
    -------
    DeviceInfo
        Of the GPU, or of the emulated device where kernels run on the emulator.

    Raises
    ------
    TypeError
        If ``id`` is no int.
    ValueError
        If there is no such device; the message lists the devices.

    Examples
    --------
    >>> info().warp_size
    32
    """
    if not isinstance(id, Integral) or isinstance(id, bool):
        raise TypeError(f"id is {describe(id)}; it must be an int")
    if not 0 <= id < len(cuda.gpus):
        there = ", ".join(f"{device.id} ({device.name})" for device in cuda.gpus)
        raise ValueError(f"id is {id}; the devices here are {there}")
    device = cuda.gpus[int(id)]
    return DeviceInfo(
        id=device.id,
        name=device.name,
        emulated=not on_gpu(),
        compute_capability=tuple(device.compute_capability),
        global_memory=_total_memory(device),
        core_clock=_hertz(device, "CLOCK_RATE"),
        memory_clock=_hertz(device, "MEMORY_CLOCK_RATE"),
        memory_bus_width=_attribute(device, "GLOBAL_MEMORY_BUS_WIDTH") or None,
        max_block_dim=_dimensions_of(device, "MAX_BLOCK_DIM"),
        max_grid_dim=_dimensions_of(device, "MAX_GRID_DIM"),
        concurrent_kernels=_flag(device, "CONCURRENT_KERNELS"),
        unified_addressing=_flag(device, "UNIFIED_ADDRESSING"),
        **{field: _attribute(device, attribute) for field, attribute in ATTRIBUTES.items()},
    )


def _attribute(device, name):
    """The value of a driver attribute; None where the binding or the driver does not know it."""
    try:
        return getattr(device, name)
    except (AttributeError, cuda_api_error()):
        return None


def _dimensions_of(device, name) -> Any:
    x, y, z = (_attribute(device, f"{name}_{axis}") for axis in "XYZ")
    return x, y, z


def _flag(device, name):
    value = _attribute(device, name)
    return None if value is None else bool(value)


def _hertz(device, name):
    """A clock, which the driver gives in kHz; some drivers give 0 for an unknown one."""
    kilohertz = _attribute(device, name)
    return kilohertz * 1e3 if kilohertz else None


def _total_memory(device):
    with cuda.gpus[device.id]:
        return cuda.current_context().get_memory_info().total
