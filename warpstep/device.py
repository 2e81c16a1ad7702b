"""The devices that the emulator stands in for: their limits, and the figures of a typical card (source row A8).

What follows from the compute capability is taken from the table of technical specifications in the CUDA C++ Programming
Guide; what differs from card to card (multiprocessors, clocks, memory) is that of the card named in ``card``, as its
driver reports it. All devices of a process are of one kind. Each thread has its own current one.
"""

import os
import threading
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ, WARP
from warpstep.values import check_int, describe

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

#: Devices that a process can have.
MAX_DEVICES = 8


def _count_from(setting):
    try:
        return check_int("GPUKIT_DEVICES", int(setting), 1, MAX_DEVICES)
    except ValueError:
        raise ImportError(
            f"GPUKIT_DEVICES is {describe(setting)}; it must be an int from 1 to {MAX_DEVICES}, or unset"
        ) from None


_current = DEVICES[DEFAULT]
_count = _count_from(os.environ.get("GPUKIT_DEVICES") or 1)


def current() -> Limits:
    """Return the limits that launches, allocations and queries use now."""
    return _current


def count() -> int:
    """Return how many devices there are."""
    return _count


class _Stack(threading.local):
    """The numbers of the devices whose contexts a thread has pushed; the last one is its current device."""

    def __init__(self):
        self.numbers: list[int] = []


_stack = _Stack()


def number() -> int:
    """Return the number of this thread's current device: 0 until it chooses another."""
    return _stack.numbers[-1] if _stack.numbers else 0


def push(device_number: int) -> None:
    """Make a device the current one of this thread, on top of the one before."""
    _stack.numbers.append(device_number)


def pop() -> int:
    """Return the number of the current device, and give the thread back the one before."""
    return _stack.numbers.pop() if _stack.numbers else 0


def pop_all() -> None:
    """Give the thread back device 0."""
    _stack.numbers.clear()


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


#: Pairs of the number of a device and that of another whose memory its kernels may access.
_peers: set[tuple[int, int]] = set()
_lock = threading.Lock()


def has_access(here: int, there: int) -> bool:
    """True if kernels on one device may access the memory of another; both are numbers."""
    return here == there or (here, there) in _peers


def begin_access(here: int, there: int) -> bool:
    """Let kernels on one device access the memory of another. False if they may already."""
    with _lock:
        before = len(_peers)
        _peers.add((here, there))
        return len(_peers) > before


def end_access(number: int) -> None:
    """Forget every right of a device, and every right to its memory."""
    with _lock:
        _peers.difference_update({pair for pair in _peers if number in pair})


def set_device(compute_capability: tuple | str | float | None = None, *, count: int | None = None) -> Limits:
    """Emulate other devices from now on. Arrays that exist stay valid; a device that goes loses its rights of access.

    Parameters
    ----------
    compute_capability : tuple of 2 int, str or float, optional
        7.0, 7.5, 8.0, 8.6, 8.9, 9.0 (the default), 10.0 or 12.0; unchanged unless given.
    count : int, optional
        How many devices there are, at most 8; unchanged unless given. The environment variable ``GPUKIT_DEVICES`` sets
        it too.

    Returns
    -------
    Limits

    Raises
    ------
    TypeError, ValueError
        If the emulator does not know the compute capability, or cannot have so many devices.

    Examples
    --------
    >>> limits = set_device("8.6", count=2)
    >>> limits.compute_capability.major, len(cuda.gpus)
    (8, 2)
    >>> limits = set_device("9.0", count=1)  # the default
    """
    global _current, _count
    limits = _current if compute_capability is None else lookup(compute_capability)
    _count = _count if count is None else check_int("count", count, 1, MAX_DEVICES)
    _stack.numbers[:] = [device_number for device_number in _stack.numbers if device_number < _count]
    for gone in range(_count, MAX_DEVICES):
        end_access(gone)
    _current = limits
    return limits


@contextmanager
def device(compute_capability: tuple | str | float | None = None, *, count: int | None = None) -> Iterator[Limits]:
    """``with warpstep.use_device("8.6", count=2) as limits: ...``: emulate other devices inside the block.

    See `set_device`.

    Examples
    --------
    >>> with use_device("8.6") as limits:
    ...     print(limits.compute_capability.major)
    8
    """
    before = _current.compute_capability, _count
    limits = set_device(compute_capability, count=count)
    try:
        yield limits
    finally:
        set_device(before[0], count=before[1])
