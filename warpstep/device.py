"""The device that the emulator stands in for: its limits, and the figures of a typical card (source row A8).

What follows from the compute capability is taken from the table of technical specifications in the CUDA C++ Programming
Guide; what differs from card to card (multiprocessors, clocks, memory) is that of the card named in ``card``, as its
driver reports it.
"""

from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ, WARP
from warpstep.values import describe

KB = 2**10
MB = 2**20
#: Registers are allocated to a warp, and shared memory to a block, in units of so many.
REGISTER_UNIT = 256
SHARED_UNIT = 128

ComputeCapability = namedtuple("ComputeCapability", "major minor")


@dataclass(frozen=True)
class Limits:
    """Limits and figures of one emulated device.

    Attributes
    ----------
    compute_capability : (major, minor)
    card : str
        The card whose figures these are.
    multiprocessor_count, warp_size : int
    max_threads_per_block, max_threads_per_multiprocessor, max_blocks_per_multiprocessor : int
    max_block_dim, max_grid_dim : (x, y, z)
    max_shared_memory_per_block : int
        Bytes of shared memory that any kernel may use.
    max_shared_memory_per_multiprocessor : int
        Bytes.
    max_registers_per_block, max_registers_per_multiprocessor, max_registers_per_thread : int
        32-bit registers.
    total_memory, l2_size, total_constant_memory : int
        Bytes.
    clock_rate, memory_clock_rate : int
        kHz.
    memory_bus_width : int
        Bits.
    single_to_double_ratio : int
        FP32 operations per FP64 operation in the same time.
    copy_engines : int or None
        None where it is not known.
    """

    compute_capability: ComputeCapability
    card: str
    multiprocessor_count: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    max_shared_memory_per_multiprocessor: int
    total_memory: int
    l2_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    single_to_double_ratio: int
    copy_engines: int | None
    warp_size: int = WARP
    max_threads_per_block: int = 1024
    max_block_dim: tuple = (1024, 1024, 64)
    max_grid_dim: tuple = (2**31 - 1, MAX_GRID_YZ, MAX_GRID_YZ)
    max_shared_memory_per_block: int = 48 * KB
    max_registers_per_block: int = 64 * KB
    max_registers_per_multiprocessor: int = 64 * KB
    max_registers_per_thread: int = 255
    total_constant_memory: int = 64 * KB

    @property
    def reserved_shared_memory_per_block(self) -> int:
        """Bytes of each block's shared memory that belong to the system."""
        return KB if self.compute_capability >= (8, 0) else 0

    @property
    def max_shared_memory_per_block_optin(self) -> int:
        """Bytes of shared memory that a kernel may use if it asks for more than any kernel may."""
        return self.max_shared_memory_per_multiprocessor - self.reserved_shared_memory_per_block

    @property
    def name(self) -> str:
        """What the emulated device calls itself."""
        return "gpukit emulator (compute capability {}.{})".format(*self.compute_capability)


def resident_blocks(limits, warps: int, shared: int, registers: int | None = None) -> dict[str, int]:
    """How many blocks of so many warps, bytes and registers per thread fit on a multiprocessor, by resource."""
    max_warps = limits.max_threads_per_multiprocessor // limits.warp_size
    bounds = {"threads": max_warps // warps, "blocks": limits.max_blocks_per_multiprocessor}
    if shared:
        unit = ceil_div(shared + limits.reserved_shared_memory_per_block, SHARED_UNIT) * SHARED_UNIT
        bounds["shared memory"] = limits.max_shared_memory_per_multiprocessor // unit
    if registers is not None:
        per_warp = ceil_div(registers * limits.warp_size, REGISTER_UNIT) * REGISTER_UNIT
        bounds["registers"] = limits.max_registers_per_multiprocessor // per_warp // warps
    return bounds


#: Every device that can be emulated, by compute capability; the figures are the first fields of `Limits`.
_FIGURES = {
    (7, 0): ("Tesla V100-SXM2-16GB", 80, 2048, 32, 96 * KB, 16160 * MB, 6 * MB, 1530_000, 877_000, 4096, 2, None),
    (7, 5): ("Tesla T4", 40, 1024, 16, 64 * KB, 15_843_721_216, 4 * MB, 1590_000, 5001_000, 256, 32, 3),
    (8, 0): ("NVIDIA A100-SXM4-40GB", 108, 2048, 32, 164 * KB, 42_298_834_944, 40 * MB, 1410_000, 1215_000, 5120, 2, 3),
    (8, 6): ("NVIDIA GeForce RTX 3090", 82, 1536, 16, 100 * KB, 25_447_170_048, 6 * MB, 1695_000, 9751_000, 384, 64, 2),
    (8, 9): ("NVIDIA GeForce RTX 4090", 128, 1536, 24, 100 * KB, 24563 * MB, 72 * MB, 2520_000, 10501_000, 384, 64, 2),
    (9, 0): ("NVIDIA H200", 132, 2048, 32, 228 * KB, 150_109_880_320, 60 * MB, 1980_000, 3201_000, 6016, 2, 3),
    (10, 0): ("NVIDIA B200", 148, 2048, 32, 228 * KB, 182_630 * MB, 129_536 * KB, 1965_000, 3996_000, 7680, 2, None),
    (12, 0): (
        "NVIDIA GeForce RTX 5090",
        170,
        1536,
        24,
        100 * KB,
        33_680_457_728,
        96 * MB,
        2407_000,
        14001_000,
        512,
        64,
        None,
    ),
}
DEVICES: dict[tuple, Limits] = {c: Limits(ComputeCapability(*c), *figures) for c, figures in _FIGURES.items()}
DEFAULT = (9, 0)

_current = DEVICES[DEFAULT]


def current() -> Limits:
    """Return the device that launches, allocations and queries use now."""
    return _current


def lookup(compute_capability: tuple | str | float) -> Limits:
    """Find a device by its compute capability.

    Parameters
    ----------
    compute_capability : tuple of 2 int, str or float
        ``(8, 6)``, ``"8.6"`` or ``8.6``.

    Returns
    -------
    Limits

    Raises
    ------
    ValueError
        If there is none; the message lists those that there are.
    """
    try:
        if isinstance(compute_capability, tuple | list):
            asked = tuple(compute_capability)
        else:
            asked = tuple(int(part) if part.isdigit() else part for part in str(compute_capability).split("."))
        found = DEVICES.get(asked)
    except Exception:  # such as a value that has no text or no hash
        found = None
    if found is None:
        known = ", ".join("{}.{}".format(*capability) for capability in DEVICES)
        raise ValueError(f"compute_capability is {describe(compute_capability)}; the emulator knows {known}")
    return found


def set_device(compute_capability: tuple | str | float) -> Limits:
    """Emulate another device from now on. Arrays that exist stay valid.

    Parameters
    ----------
    compute_capability : tuple of 2 int, str or float
        7.0, 7.5, 8.0, 8.6, 8.9, 9.0 (the default), 10.0 or 12.0.

    Returns
    -------
    Limits

    Raises
    ------
    ValueError
        If the emulator does not know it.

    Examples
    --------
    >>> limits = set_device("8.6")
    >>> limits.compute_capability.major
    8
    >>> limits = set_device("9.0")  # the default
    """
    global _current
    _current = lookup(compute_capability)
    return _current


@contextmanager
def device(compute_capability: tuple | str | float) -> Iterator[Limits]:
    """``with warpstep.use_device("8.6") as limits: ...``: emulate another device inside the block. See `set_device`.

    Examples
    --------
    >>> with use_device("8.6") as limits:
    ...     print(limits.compute_capability.major)
    8
    """
    before = _current
    limits = set_device(compute_capability)
    try:
        yield limits
    finally:
        set_device(before.compute_capability)
