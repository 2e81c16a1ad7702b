"""Collects what a traced launch does: counts by site, problems, and the shadow of global memory."""

import linecache
import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from warpstep.api.allocations import find_allocation
from warpstep.integers import ceil_div
from warpstep.limits import LINE, SECTOR, WARP
from warpstep.machine.batch import split_warps, unravel
from warpstep.tracing import counting
from warpstep.tracing.happens_before import Order
from warpstep.tracing.heat import HeatMap
from warpstep.tracing.shadow import Cells
from warpstep.tracing.steps import StepLog

#: What to do where several threads update one element.
UPDATE_CURE = (
    "Several threads read one element, change it, and write it back: use an atomic operation such as cuda.atomic.add, "
    "or let each thread have its own element."
)
#: Threads that a finding names.
MAX_NAMED_THREADS = 4
#: Counts of access patterns are cached up to so many warps, for short patterns repeat; and so many patterns.
MAX_CACHED_WARPS, MAX_PATTERNS = 64, 4096
#: Accesses of single threads that are mapped by element unless more is asked for.
MAX_MAPPED = 1 << 18


@dataclass(slots=True)
class AccessCount:
    """Counts of one array at one site; ``counts`` are the sums of `counting.Counts`."""

    requests: int = 0
    lanes: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(counting.Counts._fields), np.int64))
    excess: int = -1
    worst: dict | None = None


@dataclass(slots=True)
class BranchCount:
    """Counts of one branch: warps that reached it, those that split, and lanes of these that wait for the body."""

    warps: int = 0
    split: int = 0
    waiting: int = 0


@dataclass(slots=True)
class BlockCount:
    """Counts of one basic block: threads that ran it, and their warps."""

    threads: int = 0
    warps: int = 0


@dataclass(slots=True)
class Problem:
    """An error at one place, with its first case."""

    kind: str
    site: int
    message: str
    cure: str
    array: str | None
    block: tuple
    threads: tuple
    weight: int = 0
    count: int = 0
    #: Of a race: both accesses are at one line; it is no matter of an atomic operation and a read; the sites of such
    #: reads.
    one_line: bool = False
    certain: bool = False
    reads: set = field(default_factory=set)


class Recorder:
    """Collects what one traced launch does.

    Parameters
    ----------
    launch : launch.Launch
    heat : bool, optional
        Whether to map reads and writes by element; as long as there are few unless given.

    Attributes
    ----------
    blocks_begun : int
        Blocks of the grid that have started to run.
    accesses : dict
        {(site, space, op, bytes per lane, array): AccessCount}
    branches, barriers, blocks : dict
        {site: BranchCount}, {(site, kind): times passed}, {label of a basic block: BlockCount}
    problems : dict
        {what is the same in all its cases: Problem}
    returned : dict
        {site of a barrier: (block, thread)} if the thread had returned before others reached the barrier.
    """

    def __init__(self, launch, heat: bool | None = None):
        self.launch = launch
        #: Accesses of threads that may still be mapped; the maps are dropped when there are more.
        self._heat_left = {None: MAX_MAPPED, True: math.inf, False: 0}[heat]
        if launch.blocks * launch.threads > self._heat_left:
            heat = False
        self.sites = launch.program.sites
        self.order = Order(launch.threads, launch.program.fences, launch.program.partial_warps, launch.cluster)
        self.blocks_begun = 0
        #: Called after each batch.
        self.progress: Callable[[], None] = lambda: None
        self.chosen: np.ndarray | None = None
        self.time = 0
        #: The site of the access at each tick.
        self.site_at = [None]
        self.accesses = defaultdict(AccessCount)
        self.branches = defaultdict(BranchCount)
        self.barriers = defaultdict(int)
        self.blocks = defaultdict(BlockCount)
        self.problems = {}
        self.returned = {}
        #: Where marked values come from: (site, why they are undefined).
        self.origins = []
        #: The names of the arrays that atomics change.
        self.changed = {site.array for site in self.sites if site.op == "atomic"}
        #: Sites that read such arrays: whose values are stored, those on which a branch depends, and those whose
        #: threads then change the array by an atomic operation, or that poll.
        self.uses, self.decisions = set(), set()
        self.guesses = {number for number, site in enumerate(self.sites) if site.op == "poll"}
        #: Sites where several threads have written one element at once.
        self.contended = set()
        self.patterns = {}
        self.log = StepLog(launch)
        #: {address of an allocation, or name and address of a shared array: HeatMap}; None if there are too many
        #: accesses.
        self.heat: dict | None = None if heat is False else {}
        self.memories = {}
        self.arguments = set()
        self._owners = []

    def declare(self, allocation, written):
        """Register the allocation of an argument; ``written``: the kernel may write to it."""
        cells = self._cells_of(allocation, races=False)
        cells.races |= written
        self.arguments.add(allocation.address)

    def is_argument(self, view):
        """Tell a read-only argument, which is in global memory, from constant memory."""
        return self.memory_at(view.address).address in self.arguments

    def memory_at(self, address):
        """The shadow of the allocation that an address lies in."""
        if address not in self.memories:
            self.memories[address] = self._cells_of(find_allocation(address), races=True)
        return self.memories[address]

    def _cells_of(self, allocation, races):
        if allocation.address not in self.memories:
            groups = (self._warp_of, self._block_of)
            cells = Cells(allocation.bytes.size, 16, self.order, groups, allocation.known, races)
            cells.address = allocation.address
            self.memories[allocation.address] = cells
            self._owners.append((allocation, cells))
        return self.memories[allocation.address]

    def position(self, block):
        """The position in the grid of a block that is numbered in the order of the trace."""
        return block if self.chosen is None else int(self.chosen[block])

    def _warp_of(self, tids):
        block, thread = np.divmod(tids, self.launch.threads)
        return block * WARP + thread // WARP

    def _block_of(self, tids):
        return tids // self.launch.threads

    def finish(self):
        """Note in each allocation what the launch has written."""
        for allocation, cells in self._owners:
            if cells.known is not None:
                known = np.repeat(cells.known, cells.size)
                allocation.known = None if known[: allocation.nbytes].all() else known

    def tick(self, site):
        self.time += 1
        self.site_at.append(site)
        return self.time

    # -- accesses ------------------------------------------------------------------------------------------------------

    def count(self, batch, view, address, mask, site, op, nbytes):
        """Add one access to the counts; ``address`` is that of each thread's element, in bytes."""
        space = "global" if view.space == "const" else view.space
        if self.log.open:
            self.log.access(view, address, mask, site, op, nbytes, is_contiguous(view), is_aligned(view, nbytes))
        if space != "local" and self.heat is not None:
            self._warm(self.heat, batch, view, address, mask, op, nbytes)
        rows, active, times, numbers = _by_warp(batch, address, mask)
        if not rows.size:
            return
        found = key = None
        if rows.shape[0] <= MAX_CACHED_WARPS:
            key = (space, op, nbytes, *_pattern(rows, active))
            found = self.patterns.get(key)
        if found is None:
            found = _count_rows(view, space, rows, active, op, nbytes)
            if key is not None:
                if len(self.patterns) == MAX_PATTERNS:
                    self.patterns.clear()
                self.patterns[key] = found
        requests, lanes, sums, excess, worst = found
        count = self.accesses[site, space, "atomic" if op == "cas" else op, nbytes, view.name]
        count.requests += requests * times
        count.lanes += lanes * times
        count.counts += sums * times
        if excess > count.excess:
            count.excess = excess
            lanes = None if active is None else active[worst : worst + 1]
            counts = _count_rows(view, space, rows[worst : worst + 1], lanes, op, nbytes)
            number = worst if numbers is None else int(numbers[worst])
            lanes = np.ones(WARP, bool) if active is None else active[worst].copy()
            count.worst = self._request(batch, view, number, np.array(rows[worst]), lanes, nbytes, counts[2])

    def count_boxes(self, batch, base, offsets, valid, site, op):
        """Add copies of boxes of a tensor to the counts: (threads, elements) byte offsets from ``base``."""
        count = self.accesses[site, "global", f"tensor {op}", 0, self.sites[site].array]
        for each, there in zip(offsets, valid, strict=True):
            sectors = np.unique((each[there] + base) // SECTOR).size
            count.requests += 1
            count.lanes += 1
            count.counts += np.array([0, 0, 0, sectors, sectors, np.unique((each[there] + base) // LINE).size, 0])

    def count_wavefronts(self, site, array, requests, wavefronts):
        """Add what tensor cores read of a tile in shared memory: as a tile is laid out, without bank conflicts."""
        count = self.accesses[site, "shared", "tensor load", 0, array]
        count.requests += requests
        count.lanes += WARP * requests
        count.counts += np.array([wavefronts, wavefronts, 0, 0, 0, 0, 0])

    def _warm(self, heat, batch, view, address, mask, op, nbytes):
        """Add an access to the map of its array."""
        self._heat_left -= batch.lanes
        if self._heat_left < 0:
            self.heat = None
            return
        size = view.items.dtype.itemsize
        if view.row:
            start, length = view.address, view.row * size
            key = view.name, start  # device functions may have arrays of the same name
        else:
            cells = self.memory_at(view.address)
            key, start, length = cells.address, cells.address, cells.read.size * cells.size
        found = heat.get(key)
        if found is None:
            found = heat[key] = HeatMap(length, view.dtype, view.shape if view.row else ())
        for at in range(0, nbytes, max(size, found.unit)):
            found.add(address - np.int64(start - at), mask, op, batch.shape, batch.ids)

    def _request(self, batch, view, number, addresses, active, nbytes, counts):
        """The worst request of a site, by the warp of this number, as the fields of a `records.Request`."""
        row, warp = divmod(number, ceil_div(batch.threads, WARP))
        base = view.base if isinstance(view.base, int) else None
        size = view.items.dtype.itemsize
        plain = base is not None and all(isinstance(n, int) for n in view.shape) and is_contiguous(view)
        return {
            "block": unravel(int(batch.ids[row]), self.launch.grid),
            "warp": warp,
            "active": active,
            "addresses": addresses,
            "itemsize": nbytes,
            "array": view.name,
            "origin": view.address + (base or 0) * size,
            "shape": view.shape if plain else (),
            "dtype": view.dtype,
            "wavefronts": int(counts[0]),
            "ideal_wavefronts": int(counts[1]),
            "sectors": int(counts[3]),
            "ideal_sectors": int(counts[4]),
        }

    # -- problems ------------------------------------------------------------------------------------------------------

    def origin(self, site, why=None):
        """The number of an origin of marked values, from 1."""
        if (site, why) not in self.origins:
            self.origins.append((site, why))
        return self.origins.index((site, why)) + 1

    def matters(self, problem):
        """Tell a race from a read that does no harm: of what atomics change, only to choose the next atomic."""
        reads = problem.reads
        return problem.certain or not reads or reads & self.uses or reads & (self.decisions - self.guesses)

    def cure(self, problem):
        """What to do about a problem: where threads meet at a line like ``s[i] += 1``, an atomic operation."""
        place = self.sites[problem.site]
        sites = (self.sites[number] for number in self.contended)
        if problem.one_line and any(s[:3] == place[:3] for s in sites):
            code = linecache.getline(place.filename, place.line)
            if re.search(rf"\b{re.escape(str(place.array))}\b[^=]*\][^=]*[-+*/|&^]=", code):
                return UPDATE_CURE
        return problem.cure

    def problem(self, batch, kind, site, message, lanes, cure, array=None, key=(), threads=None, weight=0):
        """Record an error in the lanes of a (B, T) mask; one entry for each place, with its heaviest cure."""
        place = self.sites[site]
        key = (kind, place.filename, place.line, array, *key)
        found = self.problems.get(key)
        if found is None:
            row = int(np.argmax(lanes.any(axis=1)))
            block, _, _ = batch.place(lanes)
            named = np.flatnonzero(lanes[row])[:MAX_NAMED_THREADS] if threads is None else threads
            named = tuple(unravel(int(t), self.launch.block) for t in named)
            found = self.problems[key] = Problem(kind, site, message, cure, array, block, named)
        if weight > found.weight:
            found.cure, found.weight = cure, weight
        found.count += int(np.count_nonzero(lanes))
        return found


def is_contiguous(view):
    """True if a view's elements, of the buffer's own type, are in C order without gaps."""
    if not all(isinstance(n, int) for n in (*view.shape, *view.strides)):
        return False
    step = 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if stride != step and extent != 1:
            return False
        step *= extent
    return view.dtype == view.items.dtype


def _by_warp(batch, address, mask):
    """Split an access by warp, leaving out idle ones.

    Returns
    -------
    rows of 32 addresses, their active lanes (None: all), times that each row happens, numbers of their warps (None:
    those of the rows)
    """
    blocks, threads = batch.shape
    address = np.asarray(address)
    same_rows = (address.ndim == 0 or address.shape[0] == 1) and (mask is None or mask.shape[0] == 1)
    height = 1 if same_rows else blocks
    rows = split_warps(_spread(address, (height, threads)), 0).reshape(-1, WARP)
    active = numbers = None
    if mask is not None or threads % WARP:
        active = np.ones((height, threads), bool) if mask is None else _spread(mask, (height, threads))
        active = split_warps(active, False).reshape(-1, WARP)
        (numbers,) = np.logical_or.reduce(active, axis=1).nonzero()
        if numbers.size < rows.shape[0]:
            rows, active = rows[numbers], active[numbers]
    return rows, active, blocks // height, numbers


def _spread(values, shape):
    """Broadcast an array; a copy of few values takes less time than ``np.broadcast_to``."""
    if values.shape == shape:
        return values
    spread = np.empty(shape, values.dtype)
    spread[...] = values
    return spread


def _pattern(rows, active):
    """What the counts of some warps depend on: where the first address lies in a line, the others, active lanes."""
    if active is None:
        return int(rows[0, 0]) % LINE, (rows - rows[0, 0]).tobytes(), b""
    base = rows[0, active[0].argmax()]
    return int(base) % LINE, np.where(active, rows - base, 0).tobytes(), active.tobytes()


def _count_rows(view, space, rows, active, op, nbytes):
    """Count some warps: (requests, lanes, sums of the counts, largest excess, its row)."""
    counts = counting.count_warps(space, rows, active, op, nbytes, is_aligned(view, nbytes))
    excess = counts.excess()
    worst = int(excess.argmax())
    if active is None:
        requests, lanes = rows.shape[0], rows.size
    else:
        requests, lanes = rows.shape[0], int(np.count_nonzero(active))
    return requests, lanes, np.array([c.sum() for c in counts]), int(excess[worst]), worst


def is_aligned(view, nbytes):
    """True if every access of so many bytes at an element of the view's items is aligned."""
    return view.items.dtype.itemsize % nbytes == 0 and view.address % nbytes == 0
