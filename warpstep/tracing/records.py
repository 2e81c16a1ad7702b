"""The records of a trace: one for each place in the source, summed over the blocks that were traced.

Counts are those of the kernel as written, by the rules of the hardware. What a compiler merges, hoists or drops is
still counted.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from warpstep.tracing.steps import Steps
from warpstep.values import describe

SPACES = ("global", "shared", "local")
OPERATIONS = ("load", "store", "atomic", "tensor load", "tensor store")
#: Those of copies of tensors, in global memory, of which each is a request, and of `wgmma` in shared memory, with a
#: request for each warp and operand.
BOXES = ("tensor load", "tensor store")
#: The counts of `Operations` of tensor cores.
TENSOR = ("tensor_fp16", "tensor_tf32", "tensor_fp64", "tensor_int8")
#: Kinds of `Finding`, in the order in which a report lists them.
FINDINGS = (
    "out-of-bounds",
    "peer-access",
    "misaligned",
    "negative-index",
    "uninitialised-read",
    "race",
    "barrier-divergence",
)
#: ``blockIdx`` or ``threadIdx``: (x, y, z).
Index = tuple[int, int, int]


def element_name(array: str, position: int, shape: tuple[int, ...]) -> str:
    """Name an element by its position in C order as the source would: ``tile[2, 5]``."""
    inside = bool(shape) and 0 <= position < math.prod(shape)
    index = [int(i) for i in np.unravel_index(position, shape)] if inside else [position]
    return f"{array}[{', '.join(map(str, index))}]"


@dataclass(frozen=True)
class Place:
    """A line of the source.

    Attributes
    ----------
    line : int
        Line in ``filename``, counted from 1.
    filename : str
        A file, or the name that IPython gives to a notebook cell.
    code : str
        The text of the line, stripped.
    """

    line: int
    filename: str
    code: str

    @property
    def place(self) -> dict:
        """dict : these three by name, to make another record of the same line."""
        return {"line": self.line, "filename": self.filename, "code": self.code}


@dataclass(frozen=True)
class Request:
    """One access of one warp.

    Attributes
    ----------
    block : tuple of 3 int
        ``blockIdx``.
    warp : int
        Index of the warp in its block.
    active : (32,) bool ndarray
        Lanes that take part.
    addresses : (32,) int64 ndarray
        Byte address of each lane's element; in shared memory the offset in the block's shared memory. Meaningless in
        lanes that are not active.
    itemsize : int
        Bytes that each lane accesses.
    array : str
    origin : int
        Byte address of the array's first element.
    shape : tuple of int
        The array's shape, in elements of ``dtype``; () unless the array is C-contiguous and starts at ``origin``.
    dtype : numpy.dtype
    wavefronts, ideal_wavefronts, sectors, ideal_sectors : int
        Of this one request.
    """

    block: Index
    warp: int
    active: np.ndarray
    addresses: np.ndarray
    itemsize: int
    array: str
    origin: int
    shape: tuple[int, ...]
    dtype: np.dtype
    wavefronts: int
    ideal_wavefronts: int
    sectors: int
    ideal_sectors: int

    def label(self, address: int) -> str:
        """Name the element at a byte address as the source would: ``tile[2, 5]``."""
        offset = int(address) - self.origin
        if not self.shape:
            return f"{self.array} + {offset} bytes"
        return element_name(self.array, offset // self.dtype.itemsize, self.shape)


@dataclass(frozen=True)
class Access(Place):
    """All accesses to one array at one line by one operation.

    Attributes
    ----------
    array : str
    space : "global" | "shared" | "local"
        Constant memory is not counted.
    op : "load" | "store" | "atomic" | "tensor load" | "tensor store"
        The last two: copies of tensors in global memory, of which each is a request, and what `wgmma` reads in shared
        memory, a request for each warp and operand.
    itemsize : int
        Bytes per lane; 16 for the 128-bit accesses of `gpukit.intrinsics`, 0 of copies of tensors.
    requests : int
        Warp instructions with at least one active lane.
    wavefronts, ideal_wavefronts, bank_conflicts : int
        Shared memory only, else 0: passes through the 32 banks, the fewest possible for the width, and the difference.
    sectors, ideal_sectors : int
        Global and local memory only, else 0: 32-byte segments touched, and the fewest that could hold the elements.
    active_lanes : float
        Mean over the requests, at most 32.
    lines : int
        Global and local memory only, else 0: cache lines of 128 bytes touched.
    l1_wavefronts : int
        Global and local memory only, else 0: passes through the L1 cache if every line hits. Its lines lie across the
        banks of shared memory, and it looks up four at a time.
    link_bytes : int
        Of an array on another device, else 0: bytes that go over the link between the two, a sector at a time.
    worst : Request or None
        The request with the most wavefronts (shared) or sectors (global, local) over the ideal; None of copies of
        tensors.
    """

    array: str
    space: str
    op: str
    itemsize: int
    requests: int
    wavefronts: int
    ideal_wavefronts: int
    bank_conflicts: int
    sectors: int
    ideal_sectors: int
    active_lanes: float
    lines: int = 0
    l1_wavefronts: int = 0
    link_bytes: int = 0
    worst: Request | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Total:
    """The counts of several `Access` records, summed; ``active_lanes`` is the mean over all requests."""

    requests: int
    wavefronts: int
    ideal_wavefronts: int
    bank_conflicts: int
    sectors: int
    ideal_sectors: int
    active_lanes: float
    lines: int = 0
    l1_wavefronts: int = 0
    link_bytes: int = 0


@dataclass(frozen=True)
class Branch(Place):
    """A condition that differs by thread.

    Attributes
    ----------
    warps : int
        Times that a warp with an active lane reached the branch.
    split : int
        Of these, times that lanes of the warp went both ways.
    waiting_lanes : float
        Mean number of active lanes of a split warp that skip the branch's body (or have left the loop) and wait for
        the others.
    """

    warps: int
    split: int
    waiting_lanes: float


@dataclass(frozen=True)
class Barrier(Place):
    """A barrier.

    Attributes
    ----------
    kind : "block" | "warp" | "grid"
        "block" for ``syncthreads`` and its like, "warp" for ``syncwarp``, shuffles, votes and matches, "grid" for the
        sync of a cooperative grid.
    passed : int
        Times that a block ("block", "grid") or a warp ("warp") passed it.
    """

    kind: str
    passed: int


@dataclass(frozen=True)
class Operations(Place):
    """Arithmetic of one line as written, summed over all threads.

    Attributes
    ----------
    fp16, fp32, fp64 : int
        Additions, multiplications, divisions, comparisons and functions (``math.sqrt``) on floats of that width. A
        multiplication and an addition that the compiler fuses are two.
    int32, int64 : int
        The same on integers; up to 32 bits are int32. The arithmetic of array indexing is not counted.
    int64_divisions : int
        Divisions and remainders among ``int64``: dozens of instructions each.
    fp64_conversions : int
        Conversions from or to float64.
    threads : int
        Times that a thread ran the line.
    active_lanes : float
        Mean number of active lanes of the warps that ran it.
    tensor_fp16, tensor_tf32, tensor_fp64, tensor_int8 : int
        Multiplications and additions of tensor cores, by what they multiply; bfloat16 counts as fp16.
    """

    fp16: int
    fp32: int
    fp64: int
    int32: int
    int64: int
    int64_divisions: int
    fp64_conversions: int
    threads: int
    active_lanes: float
    tensor_fp16: int = 0
    tensor_tf32: int = 0
    tensor_fp64: int = 0
    tensor_int8: int = 0


@dataclass(frozen=True)
class Finding(Place):
    """An error: on some device, in some run, the result is wrong.

    Attributes
    ----------
    kind : str
        One of `FINDINGS`.
    message : str
        What happened, in one or two sentences.
    cure : str
        What to do about it.
    array : str or None
    block : tuple of 3 int
        ``blockIdx`` of the first case.
    threads : tuple of (x, y, z)
        ``threadIdx`` of the threads in the first case: both threads of a race, the one that is out of bounds, the
        first few that wait at a barrier.
    count : int
        Cases at this place, one for each thread and iteration.
    """

    kind: str
    message: str
    cure: str
    array: str | None
    block: Index
    threads: tuple[Index, ...]
    count: int


@dataclass(frozen=True)
class Advice(Place):
    """Something that is slow rather than wrong.

    Attributes
    ----------
    kind : "float64" | "int64-division" | "uncoalesced" | "bank-conflicts" | "idle-lanes" | "returned-before-barrier" |
            "unwritten"
    message : str
        What it is, with its figures.
    cure : str
        What to do about it.
    """

    kind: str
    message: str
    cure: str


@dataclass(frozen=True)
class Coverage:
    """How much of one array in global memory the launch touched.

    Attributes
    ----------
    array : str
        Name of the kernel's parameter.
    shape : tuple of int
    dtype : numpy.dtype
    elements : int
    read, written : int
        Distinct elements that the launch read, and that it wrote (atomics do both).
    first_unwritten : tuple of int or None
        Index of the first element that was not written; None if all or none were.
    """

    array: str
    shape: tuple[int, ...]
    dtype: np.dtype
    elements: int
    read: int
    written: int
    first_unwritten: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class Heat:
    """How often the elements of one array were read and written, in all blocks that were traced; not scaled.

    Attributes
    ----------
    array : str
    space : "global" | "shared"
    shape : tuple of int
    dtype : numpy.dtype
    width : int
        Elements of a cell, in C order: 1, or more for an array of many.
    reads, writes : (n,) int64 ndarray
        Accesses of each cell; atomics do both.
    writer : (n,) int64 ndarray
        Position in the grid of the block that wrote the cell last; -1 if none did.
    thread : (n,) int64 ndarray
        The thread of that block that did, x fastest; -1 if none did, and in a trace of an earlier version.
    """

    array: str
    space: str
    shape: tuple[int, ...]
    dtype: np.dtype
    width: int
    reads: np.ndarray
    writes: np.ndarray
    writer: np.ndarray
    thread: np.ndarray = field(default_factory=lambda: np.array(-1))

    def __eq__(self, other):
        if not isinstance(other, Heat):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Occupancy:
    """How many warps of the kernel fit on a multiprocessor.

    Attributes
    ----------
    device : str
        The card whose limits were used.
    warps, max_warps : int
        Resident warps per multiprocessor, and the limit of the device.
    blocks : int
        Resident blocks per multiprocessor.
    registers : int or None
        Registers per thread; None if unknown, and then ignored.
    shared_bytes : int
        Static and dynamic shared memory per block.
    limited_by : "threads" | "blocks" | "shared memory" | "registers"
    """

    device: str
    warps: int
    max_warps: int
    blocks: int
    registers: int | None
    shared_bytes: int
    limited_by: str

    @property
    def fraction(self) -> float:
        """float : warps over max_warps."""
        return self.warps / self.max_warps


@dataclass(frozen=True)
class Traffic:
    """Bytes and operations of a launch.

    Attributes
    ----------
    needed_bytes : int
        Bytes of the distinct elements of global memory that were read, and of those that were written.
    moved_bytes : int
        Sectors of all requests to global memory, times 32: what moves between the multiprocessors and the L1 cache,
        and between L1 and L2 if every request misses.
    flops : int
        Floating-point operations of all widths.
    cold_read, cold_written : int
        Distinct sectors that were read, and that were written, times 32: what moves between DRAM and an L2 cache that
        starts empty and is large enough.
    """

    needed_bytes: int
    moved_bytes: int
    flops: int
    cold_read: int = 0
    cold_written: int = 0

    @property
    def intensity(self) -> float:
        """float : operations per byte that must move (FLOP/B); 0 if none must."""
        return self.flops / self.needed_bytes if self.needed_bytes else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """What one launch did, by line of its source. `Trace` adds the views.

    Attributes
    ----------
    kernel : str
    filename : str
    source : tuple of (first line, text)
        Of the kernel's function; (0, "") if it has no source.
    grid, block : tuple of 3 int
    shared_bytes : int
        Dynamic shared memory of the launch.
    blocks : int
        Blocks that were traced. If these are not all of the grid, counts are scaled to it.
    accesses : list of Access
        By line, array, space and operation: requests, wavefronts, bank conflicts, sectors, active lanes.
    branches : list of Branch
    barriers : list of Barrier
    operations : list of Operations
        Arithmetic by line.
    overhead : int
        Estimate of the warp instructions that the source does not show: addresses, loop counters, integer arithmetic.
    shared_overhead : int
        The part of ``overhead`` whose values are the same for all lanes of a warp.
    findings : list of Finding
        Errors, in the order of `FINDINGS`: races, accesses out of bounds, uninitialised reads, divergent barriers.
    advice : list of Advice
        What is slow rather than wrong.
    coverage : list of Coverage
        Elements of each array that were read and written.
    occupancy : Occupancy
    traffic : Traffic
    stopped : str
        The error that ended the launch early; "" if none did. Counts are then those until the error, not scaled.
    heat : list of Heat or None
        Reads and writes by element of each array in global and shared memory; None if they were too many to map.
    steps : Steps or None
        What the first block did, in order; None in a trace of an earlier version.
    where : str
        The processing element or the device that ran it, where there are several; else "".
    """

    kernel: str
    filename: str
    source: tuple[int, str]
    grid: Index
    block: Index
    shared_bytes: int
    blocks: int
    accesses: list[Access]
    branches: list[Branch]
    barriers: list[Barrier]
    operations: list[Operations]
    overhead: int
    shared_overhead: int
    findings: list[Finding]
    advice: list[Advice]
    coverage: list[Coverage]
    occupancy: Occupancy
    traffic: Traffic
    stopped: str = ""
    heat: list[Heat] | None = None
    steps: Steps | None = None
    where: str = ""

    @property
    def status(self) -> str:
        """str : "complete"; "partial" if only some blocks were traced; "stopped" if an error ended the launch."""
        if self.stopped:
            return "stopped"
        return "complete" if self.blocks == math.prod(self.grid) else "partial"

    def total(self, space: str | None = None, op: str | None = None) -> Total:
        """Sum the counts of all accesses of one kind.

        Parameters
        ----------
        space : "global" | "shared" | "local", optional
        op : "load" | "store" | "atomic" | "tensor load" | "tensor store", optional
            All of them unless given.

        Raises
        ------
        ValueError
            For any other word.
        """
        for name, value, allowed in (("space", space, SPACES), ("op", op, OPERATIONS)):
            if value is not None and not (isinstance(value, str) and value in allowed):
                raise ValueError(
                    f"{name} is {describe(value)}; it must be one of {', '.join(allowed)}, or None for all"
                )
        chosen = [a for a in self.accesses if space in (None, a.space) and op in (None, a.op)]
        sums: dict[str, Any] = {item.name: sum(getattr(a, item.name) for a in chosen) for item in fields(Total)}
        lanes = sum(a.active_lanes * a.requests for a in chosen)
        sums["active_lanes"] = lanes / sums["requests"] if lanes else 0.0
        return Total(**sums)


def check_trace(name: str, value: object) -> None:
    """Raise TypeError if a value is not a trace."""
    if not isinstance(value, Recording):
        raise TypeError(f"{name} is {describe(value)}; it must be a trace, as gpukit.trace returns it")
