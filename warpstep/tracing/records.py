"""What a trace is made of: one record for each place in the source, summed over the blocks that were traced.

Counts are those of the kernel as written, by the rules of the hardware: what a compiler merges, hoists or drops is
still counted here.
"""

from dataclasses import dataclass, field

import numpy as np

#: Kinds of `Finding`, in the order in which a report lists them.
FINDINGS = (
    "out-of-bounds",
    "misaligned",
    "negative-index",
    "uninitialised-read",
    "race",
    "barrier-divergence",
)


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


@dataclass(frozen=True)
class Request:
    """One access of one warp: the worst of its line.

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
        The array's shape, in elements of ``dtype``; () if the array is not C-contiguous and starts at ``origin``.
    dtype : numpy.dtype
    wavefronts, ideal_wavefronts, sectors, ideal_sectors : int
        Of this one request.
    """

    block: tuple
    warp: int
    active: np.ndarray
    addresses: np.ndarray
    itemsize: int
    array: str
    origin: int
    shape: tuple
    dtype: np.dtype
    wavefronts: int
    ideal_wavefronts: int
    sectors: int
    ideal_sectors: int

    def label(self, address):
        """How the source would name the element at a byte address: ``tile[2, 5]``."""
        position = (int(address) - self.origin) // self.dtype.itemsize
        if not self.shape:
            return f"{self.array} + {int(address) - self.origin} bytes"
        index = [int(i) for i in np.unravel_index(position, self.shape)] if 0 <= position < np.prod(self.shape) else []
        return f"{self.array}[{', '.join(map(str, index)) or position}]"


@dataclass(frozen=True)
class Access(Place):
    """All accesses to one array at one line by one operation.

    Attributes
    ----------
    array : str
    space : "global" | "shared" | "local"
        Constant memory is not counted.
    op : "load" | "store" | "atomic"
    itemsize : int
        Bytes per lane; 16 for the 128-bit accesses of `gpukit.intrinsics`.
    requests : int
        Warp instructions with at least one active lane.
    wavefronts, ideal_wavefronts, bank_conflicts : int
        Shared memory only, else 0: passes through the 32 banks, the fewest possible for the width, and the difference.
    sectors, ideal_sectors : int
        Global and local memory only, else 0: 32-byte segments touched, and the fewest that could hold the elements.
    active_lanes : float
        Mean over the requests, at most 32.
    lines : int
        Global and local memory only, else 0: lines of 128 bytes touched.
    l1_wavefronts : int
        Global and local memory only, else 0: passes through the L1 cache, if it holds all lines: they lie across the
        banks that shared memory has, and four are looked up at a time.
    worst : Request or None
        The request with the most wavefronts (shared) or sectors (global, local) over the ideal.
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


@dataclass(frozen=True)
class Branch(Place):
    """A condition that differs by thread.

    Attributes
    ----------
    warps : int
        Times that a warp came by with at least one active lane.
    split : int
        Of these, times that lanes of the warp went both ways.
    waiting_lanes : float
        Mean number of active lanes of a split warp that do not take the branch's body (or have left the loop) and wait
        while the others do.
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
        ``syncthreads`` and its like; ``syncwarp``, shuffles, votes and matches; a cooperative grid's ``sync``.
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
        The same on integers; up to 32 bits are int32. What computes the address of an element is not counted.
    int64_divisions : int
        Of int64, those that are divisions or remainders: dozens of instructions each.
    fp64_conversions : int
        Conversions from or to float64.
    threads : int
        Times that a thread ran the line.
    active_lanes : float
        Mean number of active lanes of the warps that ran it.
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


@dataclass(frozen=True)
class Finding(Place):
    """An error: on some device, or some day, the result is wrong.

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
        ``threadIdx`` of those involved in the first case: both threads of a race, the one that is out of bounds, those
        that wait at a barrier (the first few).
    count : int
        Cases at this place; every thread and turn of a loop is one.
    """

    kind: str
    message: str
    cure: str
    array: str | None
    block: tuple
    threads: tuple
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
        Index of the first element that was not written, if any other was.
    """

    array: str
    shape: tuple
    dtype: np.dtype
    elements: int
    read: int
    written: int
    first_unwritten: tuple | None


@dataclass(frozen=True)
class Occupancy:
    """How many warps of the kernel a multiprocessor can hold.

    Attributes
    ----------
    device : str
        The card whose limits were used.
    warps, max_warps : int
        Resident warps per multiprocessor, and the most that there can be.
    blocks : int
        Resident blocks per multiprocessor.
    registers : int or None
        Registers per thread that were reckoned with; None if they are not known, and then not reckoned with.
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
    def fraction(self):
        """float : warps over max_warps."""
        return self.warps / self.max_warps


@dataclass(frozen=True)
class Traffic:
    """Bytes and operations of a launch.

    Attributes
    ----------
    needed_bytes : int
        Every element of global memory that was read, once, and every one written, once.
    moved_bytes : int
        Sectors of all requests to global memory, times 32: what crosses to the L1 cache, and what leaves it if it holds
        nothing.
    flops : int
        Floating-point operations of all widths.
    cold_read, cold_written : int
        Sectors that were read, each once, and those that were written, each once, times 32: what crosses between memory
        and the L2 cache if that is empty before and large enough.
    """

    needed_bytes: int
    moved_bytes: int
    flops: int
    cold_read: int = 0
    cold_written: int = 0

    @property
    def intensity(self):
        """float : operations per byte that must move (FLOP/B); 0 if none must."""
        return self.flops / self.needed_bytes if self.needed_bytes else 0.0


@dataclass(frozen=True, eq=False)
class Recording:
    """All that one traced launch left behind; `Trace` adds the views.

    Attributes
    ----------
    kernel : str
    filename : str
    source : tuple of (first line, text)
        Of the kernel's function; (0, "") where there is none.
    grid, block : tuple of 3 int
    shared_bytes : int
        Dynamic shared memory that the launch asked for.
    blocks : int
        Blocks that were traced.
    accesses, branches, barriers, operations, findings, advice : list
        In the order of the source; findings in that of `FINDINGS`.
    overhead : int
        Instructions of warps besides those that are written, by estimate: for addresses, for the counting of loops,
        and for whole numbers.
    shared_overhead : int
        Of these, the instructions whose values all lanes of a warp share.
    coverage : list of Coverage
    occupancy : Occupancy
    traffic : Traffic
    """

    kernel: str
    filename: str
    source: tuple
    grid: tuple
    block: tuple
    shared_bytes: int
    blocks: int
    accesses: list
    branches: list
    barriers: list
    operations: list
    overhead: int
    shared_overhead: int
    findings: list
    advice: list
    coverage: list
    occupancy: Occupancy
    traffic: Traffic
