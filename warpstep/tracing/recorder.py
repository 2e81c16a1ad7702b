"""What a traced launch leaves behind: counts by place in the source, what is wrong, and the shadow of global memory."""

from collections import defaultdict

import numpy as np

from warpstep.api.arrays import find_allocation
from warpstep.machine.batch import WARP, unravel
from warpstep.tracing import counting
from warpstep.tracing.happens_before import Order
from warpstep.tracing.shadow import Cells

#: Threads of a finding that are named.
NAMED = 4
#: Rows of addresses up to which the counts of a pattern are remembered: short ones come again and again.
REMEMBERED = 64


class AccessCount:
    """Counts of one array at one site."""

    __slots__ = ("counts", "excess", "lanes", "requests", "worst")

    def __init__(self):
        self.requests = 0
        self.lanes = 0
        #: Sums of `counting.Counts`.
        self.counts = np.zeros(len(counting.Counts._fields), np.int64)
        self.excess = -1
        self.worst = None


class BranchCount:
    """Counts of one branch: warps that came by, those that split, and lanes of these that wait for the body."""

    __slots__ = ("split", "waiting", "warps")

    def __init__(self):
        self.warps = self.split = self.waiting = 0


class BlockCount:
    """Counts of one basic block: threads that ran it, and their warps."""

    __slots__ = ("threads", "warps")

    def __init__(self):
        self.threads = self.warps = 0


class Problem:
    """Something wrong at one place, with its first case."""

    __slots__ = ("array", "block", "count", "cure", "kind", "message", "site", "threads", "weight")

    def __init__(self, kind, site, message, cure, array, block, threads):
        self.kind = kind
        self.site = site
        self.message = message
        self.cure = cure
        self.array = array
        self.block = block
        self.threads = threads
        self.weight = 0
        self.count = 0


class Recorder:
    """What one traced launch leaves behind.

    Parameters
    ----------
    launch : launch.Launch

    Attributes
    ----------
    accesses : dict
        {(site, space, op, bytes per lane, array): AccessCount}
    branches, barriers, blocks : dict
        {site: BranchCount}, {(site, kind): times passed}, {label of a basic block: BlockCount}
    problems : dict
        Problems by what makes them one.
    returned : dict
        {site of a barrier: (block, thread)} where threads had returned before others came to the barrier.
    """

    def __init__(self, launch):
        self.launch = launch
        self.sites = launch.program.sites
        self.order = Order(launch.blocks, launch.threads, launch.program.fences)
        self.time = 0
        #: The site of the access at each tick.
        self.site_at = [None]
        self.accesses = defaultdict(AccessCount)
        self.branches = defaultdict(BranchCount)
        self.barriers = defaultdict(int)
        self.blocks = defaultdict(BlockCount)
        self.problems = {}
        self.returned = {}
        self.patterns = {}
        self.memories = {}
        self.arguments = set()
        self._owners = []

    def declare(self, allocation, written):
        """An allocation that the kernel gets as an argument; ``written``: it may write to it."""
        cells = self._cells_of(allocation, races=False)
        cells.races |= written
        self.arguments.add(allocation.address)

    def is_argument(self, view):
        """True for a read-only argument, which is global memory; False for constant memory."""
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

    def _warp_of(self, who):
        block, thread = np.divmod(who, self.launch.threads)
        return block * WARP + thread // WARP

    def _block_of(self, who):
        return who // self.launch.threads

    def finish(self):
        """After the last batch: what was written is known from now on."""
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
        rows, active, times = _by_warp(batch, address, mask)
        if not rows.size:
            return
        key = None
        if rows.shape[0] <= REMEMBERED:
            base = rows[0, 0]
            lanes = b"" if active is None else active.tobytes()
            key = (space, op, nbytes, int(base) % 128, (rows - base).tobytes(), lanes)
        found = self.patterns.get(key) if key is not None else None
        if found is None:
            found = _count_rows(view, space, rows, active, op, nbytes)
            if key is not None:
                self.patterns[key] = found
        requests, lanes, sums, excess, worst = found
        if not requests:
            return
        count = self.accesses[site, space, "atomic" if op == "cas" else op, nbytes, view.name]
        count.requests += requests * times
        count.lanes += lanes * times
        count.counts += sums * times
        if excess > count.excess:
            count.excess = excess
            lanes = None if active is None else active[worst : worst + 1]
            counts = _count_rows(view, space, rows[worst : worst + 1], lanes, op, nbytes)
            count.worst = self._request(batch, view, rows, active, times, worst, nbytes, counts[2])

    def _request(self, batch, view, rows, active, times, worst, nbytes, counts):
        """The worst request of a site, as keyword arguments of the report's record."""
        warps = -(-batch.threads // WARP)
        block = int(batch.ids[worst // warps]) if rows.shape[0] > warps else int(batch.ids[0])
        base = view.base if isinstance(view.base, int) else None
        size = view.items.dtype.itemsize
        plain = base is not None and all(isinstance(n, int) for n in view.shape) and is_contiguous(view)
        return {
            "block": unravel(block, self.launch.grid),
            "warp": worst % warps,
            "active": np.ones(WARP, bool) if active is None else active[worst].copy(),
            "addresses": np.array(rows[worst]),
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

    def problem(self, batch, kind, site, message, lanes, cure, array=None, key=(), threads=None, weight=0):
        """Record something wrong in the lanes of a (B, T) mask; one entry for each place, with its heaviest cure."""
        place = self.sites[site]
        key = (kind, place.filename, place.line, array, *key)
        found = self.problems.get(key)
        if found is None:
            row = int(np.argmax(lanes.any(axis=1)))
            block, _, _ = batch.place(lanes)
            named = np.flatnonzero(lanes[row])[:NAMED] if threads is None else threads
            named = tuple(unravel(int(t), self.launch.block) for t in named)
            found = self.problems[key] = Problem(kind, site, message, cure, array, block, named)
        if weight > found.weight:
            found.cure, found.weight = cure, weight
        found.count += int(np.count_nonzero(lanes))


def is_contiguous(view):
    if not all(isinstance(n, int) for n in (*view.shape, *view.strides)):
        return False
    step = 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if stride != step and extent != 1:
            return False
        step *= extent
    return view.dtype == view.items.dtype


def _by_warp(batch, address, mask):
    """An access as (rows of 32 addresses, lanes that take part or None, times that each row happens)."""
    blocks, threads = batch.shape
    address = np.asarray(address)
    same_rows = (address.ndim == 0 or address.shape[0] == 1) and (mask is None or mask.shape[0] == 1)
    height = 1 if same_rows else blocks
    shape = (height, threads)
    address = np.broadcast_to(address, shape)
    missing = -threads % WARP
    active = None if mask is None else np.broadcast_to(mask, shape)
    if missing:
        address = np.concatenate([address, np.zeros((height, missing), np.int64)], axis=1)
        active = np.ones(shape, bool) if active is None else active
        active = np.concatenate([active, np.zeros((height, missing), bool)], axis=1)
        active = active.reshape(-1, WARP)
    elif active is not None:
        active = active.reshape(-1, WARP)
    return address.reshape(-1, WARP), active, blocks // height


def _count_rows(view, space, rows, active, op, nbytes):
    """(requests, lanes, sums of the counts, largest excess, its row) of some warps."""
    counts = _counts(view, space, rows, active, op, nbytes)
    excess = counts.excess()
    worst = int(excess.argmax())
    if active is None:
        requests, lanes = rows.shape[0], rows.size
    else:
        requests, lanes = int(np.count_nonzero(active.any(axis=1))), int(np.count_nonzero(active))
        if not active[worst].any():  # all are equally good: show one that happens
            worst = int(active.any(axis=1).argmax())
    return requests, lanes, np.array([c.sum() for c in counts]), int(excess[worst]), worst


def _counts(view, space, rows, active, op, nbytes):
    is_atomic = op in ("atomic", "cas")
    if space == "shared":
        if is_atomic:
            return counting.shared_atomic(rows, active, op == "cas")
        return counting.shared_access(rows, active, nbytes, op)
    if space == "local":
        return counting.local_sectors(rows, active, nbytes)
    if is_atomic:
        return counting.atomic_sectors(rows, active, nbytes)
    unit = view.items.dtype.itemsize
    aligned = unit % nbytes == 0 and view.address % nbytes == 0
    return counting.sectors(rows, active, nbytes, aligned)
