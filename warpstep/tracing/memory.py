"""Memory that tells a `Recorder` of every access, and checks it against the shadow of memory."""

import functools
import operator
from collections import defaultdict
from copy import copy
from typing import Any

import numpy as np

from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.machine.memory import Either, Memory
from warpstep.tracing.marks import LANE_BITS, Marked, mark, plain
from warpstep.tracing.shadow import IN_FLIGHT, THREAD_BITS, Cells, Conflict, shifted

#: What accesses count as.
COUNTED = {"begin copy": "store", "reduction": "atomic", "acquire": "load", "release": "store"}
#: Accesses that the hardware counts elsewhere.
UNCOUNTED = ("land copy", "barrier", "make barrier")


class TracedMemory(Memory):
    """Memory that records every access, and skips it in the lanes where it is out of bounds."""

    def __init__(self, batch):
        super().__init__(batch)
        self.recorder = batch.recorder
        #: Lanes of the present access that are out of bounds, and those whose index was negative.
        self._bad = self._negative = None
        #: Number in the trace of each thread: (B, T).
        self.tids = batch.ranks[:, None] * batch.threads + np.arange(batch.threads)
        #: Rows of the shadow of shared memory: one for all blocks as long as they do the same, else one for each.
        self.shared_rows = 1
        self._shared: Any = None
        self._local = {}
        #: {(space, name of an array): {site: lanes that read the array there}} of arrays that atomics change.
        self._reads = defaultdict(dict)
        #: What to add to the number of a thread of the first block for the same thread of each block.
        self.shifts = self.tids[:, 0] - self.tids[0, 0]

    @functools.cached_property
    def barriers(self):
        return self.batch.make_barriers(self)

    @functools.cached_property
    def tiles(self):
        return self.batch.make_tiles(self)

    def locate(self, view, index, mask, site):
        return self._check(view, index, mask, site, "load", None)

    def load_acquire(self, view, index, mask, site):
        position, _ = self.reach(view, index, mask, site, "acquire")
        return self._mark(self.fetch(view, position), view, index, mask, site)

    def store_release(self, view, index, value, mask, site):
        self.batch.fence(mask, True)
        self.batch.use("it is stored", (value,), mask, site)
        position, mask = self.reach(view, index, mask, site, "release")
        if mask is None or mask.any():
            self.put(view, position, plain(value), mask)

    # -- which lanes, and where ----------------------------------------------------------------------------------------

    def reach(self, view, index, mask, site, op, count=None):
        position, mask = self._check(view, index, mask, site, op, count)
        if mask is None or mask.any():
            self.access(view, position, mask, site, op, (count or 1) * view.dtype.itemsize)
        return position, mask

    def _check(self, view, index, mask, site, op, count):
        """As `Memory.reach`, but only for the lanes whose access is in bounds."""
        self._bad = self._negative = None
        if any(i.__class__ is Marked for i in index):
            if op != "load":
                array = None if op == "store" else view.name
                self.batch.use("it is the index of an element that changes", index, mask, site, array)
            index = tuple(plain(i) for i in index)
        position, mask = super().reach(view, index, mask, site, op, count)
        if not view.aligned:
            self.batch.misaligned(site, view, 1, mask)
        if self.batch.launch.remote:
            self.batch.check_access(site, view, mask)
        if view.lost is not None:
            self.skip(view.lost)
        if self._bad is not None:
            good = ~np.broadcast_to(self._bad, self.batch.shape)
            position = np.where(good, position, np.int64(0))
            mask, self._bad = good if mask is None else good & mask, None
        return position, mask

    def skip(self, lanes):
        """Skip the access of these lanes."""
        self._bad = _union(self._bad, lanes)

    def _wrap(self, view, index, dimension, mask, site):
        i, extent = index[dimension], view.shape[dimension]
        below = i < 0
        wrapped = np.where(below, i + extent, i)
        bad = (wrapped < 0) | (wrapped >= extent)
        active = _without(self._bad, bad if mask is None else bad & mask)
        if np.any(active):
            self.batch.out_of_bounds(site, view, index, active)
            self.skip(active)
        if np.ndim(i) and i.min() != i.max():
            wraps = _without(self._negative, below & ~bad if mask is None else below & ~bad & mask)
            if np.any(wraps):
                self.batch.negative_index(site, view, index, dimension, wraps)
                self._negative = _union(self._negative, wraps)
        return np.where(bad, 0, wrapped)[()]

    def window(self, view, index, mask, site):
        self._bad = self._negative = None
        found = super().window(view, index, mask, site)
        if self._bad is not None and view.__class__ is not Either:
            found.lost = _union(view.lost, self._bad)
        return found

    # -- loads and stores ----------------------------------------------------------------------------------------------

    def fetch(self, view, position):
        if not view.items.size:  # every access is out of bounds, and skipped
            return np.zeros((), view.dtype)[()]
        return super().fetch(view, position)

    def load(self, view, index, mask, site):
        if view.__class__ is Either:
            return super().load(view, index, mask, site)
        position, _ = self.reach(view, index, mask, site, "load")
        return self._mark(self.fetch(view, position), view, index, mask, site)

    def load_wide(self, view, index, count, mask, site):
        if view.__class__ is Either:
            return super().load_wide(view, index, count, mask, site)
        values = super().load_wide(view, index, count, mask, site)
        return tuple(self._mark(value, view, index, mask, site) for value in values)

    def store(self, view, index, value, mask, site):
        if view.__class__ is Either or view.space == "const":
            super().store(view, index, value, mask, site)
        else:
            self._store(view, index, (value,), None, mask, site)

    def store_wide(self, view, index, values, mask, site):
        if view.__class__ is Either:
            super().store_wide(view, index, values, mask, site)
        else:
            self._store(view, index, values, len(values), mask, site)

    def operands(self, view, values, mask, site):
        self.batch.use("an atomic operation takes it", values, mask, site, view.name)

    def land(self, copy, lanes):
        super().land(copy, lanes)
        nbytes = len(copy.values) * copy.view.dtype.itemsize
        self.access(copy.view, copy.position, lanes, copy.site, "land copy", nbytes)

    def _load_bytes(self, view, at, dtype, mask, site):
        self.batch.check_access(site, view, mask)
        if mask is None or mask.any():
            self.access(view, at, mask, site, "load", dtype.itemsize, unit=1)
        return self._mark(super()._load_bytes(view, at, dtype, mask, site), view, (), mask, site)

    def _store_bytes(self, view, at, value, dtype, mask, site):
        if mask is not None and not mask.any():
            return
        self.batch.check_access(site, view, mask)
        if view.space != "local":
            self.batch.use("it is stored", (value,), mask, site)
        value = plain(value)

        def differs(lanes, _):
            return self._differs(value, super(TracedMemory, self)._load_bytes(view, at, dtype, mask, site), lanes)

        finish = self.access(view, at, mask, site, "store", dtype.itemsize, unit=1, differs=differs)
        super()._store_bytes(view, at, value, dtype, mask, site)
        if finish is not None:
            finish()

    def _store(self, view, index, values, count, mask, site):
        """Store where the access is in bounds, and look for races."""
        if any(v.__class__ is Marked for v in values):
            if view.space != "local":
                self.batch.use("it is stored", values, mask, site)
            values = [plain(v) for v in values]
        position, mask = self._check(view, index, mask, site, "store", count)
        if mask is not None and not mask.any():
            return
        nbytes = len(values) * view.dtype.itemsize

        def differs(lanes, part):
            return self._differs(values[part], self.fetch(view, position + np.int64(part)), lanes)

        finish = self.access(view, position, mask, site, "store", nbytes, differs=differs)
        for part, value in enumerate(values):
            self.put(view, position + np.int64(part) if part else position, value, mask)
        if finish is not None:
            finish()

    def _differs(self, value, there, lanes):
        """Pick the flat lanes whose value differs from the memory's."""
        new = np.broadcast_to(value, self.batch.shape).reshape(-1)[lanes]
        old = np.broadcast_to(there, self.batch.shape).reshape(-1)[lanes]
        return (new != old) & ~((new != new) & (old != old))

    # -- one access ----------------------------------------------------------------------------------------------------

    def access(self, view, position, mask, site, op, nbytes, unit=None, differs=None):
        """Count an access and check it.

        Parameters
        ----------
        position : value
            In units of ``unit`` bytes, the size of the view's items unless given.
        differs : function, optional
            For a store: picks the flat lanes for whose value (one part of it) memory would change.

        Returns
        -------
        function or None
            For a store: call it when the values are in memory.
        """
        if view.space == "const" and not self.recorder.is_argument(view):
            return None
        unit = unit or view.items.dtype.itemsize
        address = position * np.int64(unit)
        if view.space != "local":
            address = address + np.int64(view.address)
        if self.batch.launch.element is not None and view.space == "global":
            self.batch.launch.element.world.tracker.access(
                self.batch, view, address, position, mask, site, op, nbytes, unit
            )
        if op not in UNCOUNTED:
            counted = COUNTED.get(op, op)
            self.recorder.count(self.batch, view, address, mask, site, counted, nbytes)
        if view.space == "local":
            self._access_local(view, position, mask, site, op, nbytes, unit)
            return None
        if view.row:
            cells, offset, rows = self._shared_cells(address, mask), address, self.shared_rows
        else:
            cells = self.recorder.memory_at(view.address)
            offset, rows = address - np.int64(cells.address), self.blocks
        cells.fits(nbytes, unit, view.address)
        return self._access_cells(cells, offset, rows, view, position, mask, site, op, nbytes, unit, differs)

    def _access_cells(self, cells, offset, rows, view, position, mask, site, op, nbytes, unit, differs):
        shape = (rows, self.threads)
        cell = np.broadcast_to(offset // np.int64(cells.size), shape)
        if view.row and rows > 1:
            cell = cell + np.arange(rows)[:, None] * self._cells_per_block
        tids = self.tids[:rows]
        lanes = None
        if mask is None:
            cell, tids = cell.reshape(-1), tids.reshape(-1)
        else:
            lanes = np.flatnonzero(np.broadcast_to(mask[:1] if rows == 1 else mask, shape))
            cell, tids = cell.reshape(-1)[lanes], tids.reshape(-1)[lanes]
        times = max(1, nbytes // cells.size)
        cell, tids = cells.spread(cell, tids, nbytes)
        access = Access(self, cells, view, position, unit, lanes, times, site, op, rows)
        time = self.recorder.tick(site)
        if op == "land copy":
            cells.land_copy(cell, tids, time)
            return None
        if op == "make barrier":
            access.report_races([c for found in cells.store_conflicts(cell, tids) for c in found])
            cells.store(cell, tids, time, ())
            return None
        if op == "barrier":
            access.report_races([c for found in cells.atomic(cell, tids, time, False) for c in found])
            return None
        if op == "begin copy":
            access.report_races(cells.begin_copy(cell, tids, time))
            return None
        if op != "store":
            unknown = None if op == "release" else cells.unknown(cell)
            if unknown is not None:
                access.report_unknown(unknown)
            if op in ("acquire", "release"):
                races, doubtful = cells.atomic(cell, tids, time, op == "acquire")
                self._note_atomic(view, cells, cell, tids, time, releases=op == "release")
            elif op == "load":
                races, doubtful = cells.load(cell, tids, time)
                if self.recorder.sites[site].op == "poll":
                    self._note_atomic(view, cells, cell, tids, time, releases=False)
            else:
                races, doubtful = cells.atomic(cell, tids, time, op != "reduction")
                self._note_atomic(view, cells, cell, tids, time)
                self._change(view, mask)
            access.report_races(races)
            access.report_races(doubtful)
            return None
        return access.store(cell, tids, time, differs)

    def _note_atomic(self, view, cells, cell, tids, time, releases=True):
        order = self.recorder.order
        if not order.fences:
            return
        place = cell * cells.size  # one number for each cell of all memories
        if not view.row:
            order.atomic(cells.address + place, tids, time, releases)
            return
        nbytes = self._cells_per_block * cells.size
        place = place % nbytes
        if self.shared_rows < self.blocks:
            place, tids = np.tile(place, self.blocks), (tids + self.shifts[:, None]).ravel()
        order.atomic(-1 - place - tids // self.threads * nbytes, tids, time, releases)

    # -- reads of what atomics change ----------------------------------------------------------------------------------

    def _mark(self, value, view, index, mask, site):
        """Mark a loaded value, if its index is marked or if the kernel changes the array by atomics."""
        marks = None
        for i in index:
            if i.__class__ is Marked and i.marks is not None:
                marks = i.marks if marks is None else np.maximum(marks, i.marks)
        names = {view.name, self.recorder.sites[site].array}
        if not names.isdisjoint(self.recorder.changed) and view.space != "local":
            lanes = np.broadcast_to(True if mask is None else mask, self.batch.shape)
            reads = self._reads[view.space, view.name]
            reads[site] = reads[site] | lanes if site in reads else lanes
            own = self.recorder.origin(site) << LANE_BITS
            marks = np.array(own) if marks is None else np.maximum(marks, own)
        return mark(value, marks)

    def _change(self, view, mask):
        """Note an atomic operation: reads of the same threads in its array, before it, were attempts to avoid it."""
        self.recorder.changed.add(view.name)
        for site, lanes in self._reads[view.space, view.name].items():
            if site not in self.recorder.guesses and (lanes if mask is None else lanes & mask).any():
                self.recorder.guesses.add(site)

    # -- shared and local memory ---------------------------------------------------------------------------------------

    def _shared_cells(self, address, mask):
        """The shadow of shared memory: one block's stands for all as long as all blocks do the same."""
        if self._shared is None:
            launch = self.batch.launch
            nbytes = ceil_div(launch.dynamic_address + launch.dynamic_shared, 16) * 16
            warp_of = (lambda tids: tids % launch.threads // WARP,)
            self._shared = Cells(nbytes, 16, self.recorder.order, warp_of, np.zeros(nbytes, bool))
            if self.shared_rows > 1:
                self._shared.repeat(self.shifts)
        differ = any(isinstance(v, np.ndarray) and v.ndim and v.shape[0] > 1 for v in (address, mask))
        if differ:
            self.tell_blocks_apart()
        return self._shared

    def tell_blocks_apart(self):
        """Give each block its own shadow of shared memory, because blocks no longer do the same."""
        if self.shared_rows == 1 and self.blocks > 1:
            self.shared_rows = self.blocks
            if self._shared is not None:
                self._shared.repeat(self.shifts)

    @property
    def _cells_per_block(self):
        return self._shared.last_write.size // self.shared_rows

    def all_blocks_passed(self):
        """Forget what no longer can race: every thread has passed a barrier of its block."""
        if self._shared is not None:
            self._shared.forget()
        for (space, _), reads in self._reads.items():
            if space == "shared":
                reads.clear()

    def _access_local(self, view, position, mask, site, op, nbytes, unit):
        key = view.items.__array_interface__["data"][0]
        if key not in self._local:
            # Of records each byte counts, of other elements the whole.
            count = view.items.shape[0] * (view.items.dtype.itemsize if view.items.dtype.names else 1)
            self._local[key] = np.zeros((count, *view.items.shape[1:]), bool)
        known = self._local[key]
        elements = [position]
        if unit == 1 and known.shape[0] != view.items.shape[0]:
            elements = [position + np.int64(byte) for byte in range(nbytes)]
        if op == "store":
            for element in elements:
                self._write_local(known, element, mask)
            return
        missing = functools.reduce(operator.or_, [self._missing(known, element) for element in elements])
        missing = missing if mask is None else missing & mask
        if missing.any():
            self.batch.uninitialised(site, view, position, missing, unit)

    def _write_local(self, known, element, mask):
        if np.ndim(element) == 0 and mask is None:
            known[element] = True
        elif np.ndim(element) == 0:
            known[element] |= mask
        else:
            flat = element * self.lane.size + self.lane
            if mask is not None:
                flat = flat[mask if mask.shape == flat.shape else np.broadcast_to(mask, flat.shape)]
            known.reshape(-1)[flat] = True

    def _missing(self, known, element):
        if np.ndim(element) == 0:
            return ~known[element]
        return ~known.reshape(-1).take(element * self.lane.size + self.lane)


def _union(lanes, others):
    return others if lanes is None else lanes | others


def _without(lanes, others):
    return others if lanes is None else others & ~lanes


class Access:
    """One access: turns the flat lanes of the shadow back into threads for a report."""

    def __init__(self, memory, cells, view, position, unit, lanes, times, site, op, rows):
        self.memory = memory
        self.batch = memory.batch
        self.cells = cells
        self.view = view
        self.position = position
        self.unit = unit
        self.lanes = lanes
        self.times = times
        self.site = site
        self.op = op
        self.rows = rows

    def store(self, cell, tids, time, differs):
        """Check a plain write; returns a check for when the values are in memory, or None."""
        writes, reads = self.cells.store_conflicts(cell, tids)
        self.report_races(reads)
        self._report_different(writes, differs)
        lost = self.cells.store(cell, tids, time, writes)
        if lost is None:
            return None
        self.batch.recorder.contended.add(self.site)
        return lambda: self._report_different([lost], differs)

    def _report_different(self, conflicts, differs):
        """Report races of writes, unless they write the same value."""
        if conflicts and self.rows < self.batch.blocks:
            self._report_different_blocks(conflicts, differs)
        else:
            self.report_races([self._different(conflict, differs) for conflict in conflicts])

    def _different(self, conflict, differs):
        """Pick the part of a conflict whose values differ."""
        lanes = self._threads(conflict.lanes)
        # A field is one part, and smaller than its record.
        parts = conflict.lanes % self.times * self.cells.size // self.view.dtype.itemsize
        different = np.zeros(lanes.size, bool)
        for part in np.unique(parts).tolist():
            at = np.flatnonzero(parts == part)
            different[at] = differs(lanes[at], part)
        return conflict._replace(lanes=conflict.lanes[different], keys=conflict.keys[different])

    def _report_different_blocks(self, conflicts, differs):
        """Report races of writes in all blocks: they do the same, but may write different values."""
        rows = np.arange(self.batch.blocks)[:, None]
        lanes = np.arange(self.batch.threads) if self.lanes is None else self.lanes
        everywhere = copy(self)
        everywhere.rows = self.batch.blocks
        everywhere.lanes = (lanes + rows * self.batch.threads).ravel()
        step = rows * lanes.size * self.times
        conflicts = [
            c._replace(lanes=(c.lanes + step).ravel(), keys=shifted(c.keys, self.memory.shifts)) for c in conflicts
        ]
        everywhere._report_different(conflicts, differs)

    def _threads(self, lanes):
        """Turn lanes of the shadow into flat positions in (B, T)."""
        lanes = lanes // self.times
        return lanes if self.lanes is None else self.lanes[lanes]

    def _mask(self, threads):
        mask = np.zeros(self.batch.shape, bool)
        mask.reshape(-1)[threads] = True
        if self.rows == 1:
            mask[1:] = mask[0]
        return mask

    def report_unknown(self, lanes):
        self.batch.uninitialised(self.site, self.view, self.position, self._mask(self._threads(lanes)), self.unit)

    def report_races(self, conflicts):
        """Report each place of earlier accesses once, with each thread once."""
        conflicts = [c for c in conflicts if c.lanes.size]
        if not conflicts:
            return
        threads = np.concatenate([self._threads(c.lanes) for c in conflicts])
        keys = np.concatenate([c.keys for c in conflicts])
        earlier = np.repeat([c.earlier for c in conflicts], [c.lanes.size for c in conflicts])
        times, tick = np.unique(keys >> THREAD_BITS, return_inverse=True)
        site_at = self.batch.recorder.site_at
        sites = np.array([site_at[time & ~IN_FLIGHT] for time in times.tolist()])[tick]
        for site in np.unique(sites).tolist():
            at = np.flatnonzero(sites == site)
            farthest = np.argsort(-self.batch.distances(threads[at], keys[at]), kind="stable")
            once, first = np.unique(threads[at][farthest], return_index=True)
            at = at[farthest[first]]
            conflict = Conflict(at, keys[at], str(earlier[at[0]]))
            self.batch.race(self.site, self.view, self.position, self.unit, self.op, conflict, once, self._mask(once))
