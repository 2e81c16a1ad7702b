"""The device that the emulator stands in for: its limits, and the figures of a typical card (source row A8).

What follows from the compute capability is taken from the table of technical specifications in the CUDA C++ Programming
Guide; what differs from card to card (multiprocessors, clocks, memory) is that of the card named in ``card``, as its
driver reports it.
"""

from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

KB = 2**10
MB = 2**20

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
    max_shared_memory_per_block_optin : int
        Bytes of dynamic shared memory that a kernel may use if it asks for more than the above.
    max_shared_memory_per_multiprocessor, reserved_shared_memory_per_block : int
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
    max_shared_memory_per_block_optin: int
    reserved_shared_memory_per_block: int
    total_memory: int
    l2_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    single_to_double_ratio: int
    copy_engines: int | None
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_block_dim: tuple = (1024, 1024, 64)
    max_grid_dim: tuple = (2**31 - 1, 65535, 65535)
    max_shared_memory_per_block: int = 48 * KB
    max_registers_per_block: int = 64 * KB
    max_registers_per_multiprocessor: int = 64 * KB
    max_registers_per_thread: int = 255
    total_constant_memory: int = 64 * KB

    @property
    def name(self) -> str:
        """What the emulated device calls itself."""
        return "gpukit emulator (compute capability {}.{})".format(*self.compute_capability)


def _volta_and_turing(capability, card, threads, blocks, shared, **card_figures):
    return Limits(
        compute_capability=ComputeCapability(*capability),
        card=card,
        max_threads_per_multiprocessor=threads,
        max_blocks_per_multiprocessor=blocks,
        max_shared_memory_per_multiprocessor=shared * KB,
        max_shared_memory_per_block_optin=shared * KB,
        reserved_shared_memory_per_block=0,
        **card_figures,
    )


def _ampere_and_later(capability, card, threads, blocks, shared, **card_figures):
    """From compute capability 8.0 on, 1 KB of shared memory of each block belongs to the system."""
    return Limits(
        compute_capability=ComputeCapability(*capability),
        card=card,
        max_threads_per_multiprocessor=threads,
        max_blocks_per_multiprocessor=blocks,
        max_shared_memory_per_multiprocessor=shared * KB,
        max_shared_memory_per_block_optin=(shared - 1) * KB,
        reserved_shared_memory_per_block=1 * KB,
        **card_figures,
    )


_DEVICES = (
    _volta_and_turing(
        (7, 0),
        "Tesla V100-SXM2-16GB",
        threads=2048,
        blocks=32,
        shared=96,
        multiprocessor_count=80,
        total_memory=16160 * MB,
        l2_size=6 * MB,
        clock_rate=1_530_000,
        memory_clock_rate=877_000,
        memory_bus_width=4096,
        single_to_double_ratio=2,
        copy_engines=None,
    ),
    _volta_and_turing(
        (7, 5),
        "Tesla T4",
        threads=1024,
        blocks=16,
        shared=64,
        multiprocessor_count=40,
        total_memory=15_843_721_216,
        l2_size=4 * MB,
        clock_rate=1_590_000,
        memory_clock_rate=5_001_000,
        memory_bus_width=256,
        single_to_double_ratio=32,
        copy_engines=3,
    ),
    _ampere_and_later(
        (8, 0),
        "NVIDIA A100-SXM4-40GB",
        threads=2048,
        blocks=32,
        shared=164,
        multiprocessor_count=108,
        total_memory=42_298_834_944,
        l2_size=40 * MB,
        clock_rate=1_410_000,
        memory_clock_rate=1_215_000,
        memory_bus_width=5120,
        single_to_double_ratio=2,
        copy_engines=3,
    ),
    _ampere_and_later(
        (8, 6),
        "NVIDIA GeForce RTX 3090",
        threads=1536,
        blocks=16,
        shared=100,
        multiprocessor_count=82,
        total_memory=25_447_170_048,
        l2_size=6 * MB,
        clock_rate=1_695_000,
        memory_clock_rate=9_751_000,
        memory_bus_width=384,
        single_to_double_ratio=64,
        copy_engines=2,
    ),
    _ampere_and_later(
        (8, 9),
        "NVIDIA GeForce RTX 4090",
        threads=1536,
        blocks=24,
        shared=100,
        multiprocessor_count=128,
        total_memory=24563 * MB,
        l2_size=72 * MB,
        clock_rate=2_520_000,
        memory_clock_rate=10_501_000,
        memory_bus_width=384,
        single_to_double_ratio=64,
        copy_engines=2,
    ),
    _ampere_and_later(
        (9, 0),
        "NVIDIA H200",
        threads=2048,
        blocks=32,
        shared=228,
        multiprocessor_count=132,
        total_memory=150_109_880_320,
        l2_size=60 * MB,
        clock_rate=1_980_000,
        memory_clock_rate=3_201_000,
        memory_bus_width=6016,
        single_to_double_ratio=2,
        copy_engines=3,
    ),
    _ampere_and_later(
        (10, 0),
        "NVIDIA B200",
        threads=2048,
        blocks=32,
        shared=228,
        multiprocessor_count=148,
        total_memory=182_630 * MB,
        l2_size=126 * MB + 512 * KB,
        clock_rate=1_965_000,
        memory_clock_rate=3_996_000,
        memory_bus_width=7680,
        single_to_double_ratio=2,
        copy_engines=None,
    ),
    _ampere_and_later(
        (12, 0),
        "NVIDIA GeForce RTX 5090",
        threads=1536,
        blocks=24,
        shared=100,
        multiprocessor_count=170,
        total_memory=33_680_457_728,
        l2_size=96 * MB,
        clock_rate=2_407_000,
        memory_clock_rate=14_001_000,
        memory_bus_width=512,
        single_to_double_ratio=64,
        copy_engines=None,
    ),
)

#: Every device that can be emulated, by compute capability.
DEVICES: dict[tuple, Limits] = {limits.compute_capability: limits for limits in _DEVICES}
DEFAULT = (9, 0)

_current = DEVICES[DEFAULT]


def current() -> Limits:
    """The device that launches, allocations and queries use now."""
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
    if isinstance(compute_capability, tuple | list):
        asked = tuple(compute_capability)
    else:
        asked = tuple(int(part) if part.isdigit() else part for part in str(compute_capability).split("."))
    if asked not in DEVICES:
        known = ", ".join("{}.{}".format(*capability) for capability in DEVICES)
        raise ValueError(f"compute_capability is {compute_capability!r}; the emulator knows {known}")
    return DEVICES[asked]


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
    """
    global _current
    _current = lookup(compute_capability)
    return _current


@contextmanager
def device(compute_capability: tuple | str | float) -> Iterator[Limits]:
    """``with emulator.device("8.6") as limits: ...``: emulate another device inside the block. See `set_device`."""
    before = _current
    limits = set_device(compute_capability)
    try:
        yield limits
    finally:
        set_device(before.compute_capability)
