"""Runs a launch with every access, branch and barrier looked at: what hardware counters would show, and what is wrong.

`TracedBatch` replaces `runtime.Batch`, with its own memory and scheduler; a `recorder.Recorder` keeps what they tell.
"""

import inspect
from copy import copy

import numpy as np

from warpstep.machine.batch import WARP, Batch, unravel
from warpstep.machine.memory import Either, Memory
from warpstep.machine.scheduler import Scheduler
from warpstep.tracing.recorder import Recorder, is_contiguous
from warpstep.tracing.shadow import THREAD, THREAD_BITS, UNDER_WAY, UNDER_WAY_KEYS, Cells, Conflict, shifted

#: What to do about a race, by how far apart the threads are: in one warp, in one block, in two blocks.
RACE_CURES = (
    "Threads of one warp are not in step either: put a cuda.syncwarp() (or a cuda.syncthreads()) between the two, or "
    "let each thread have its own element.",
    "Put a cuda.syncthreads() between the two, or let each thread have its own element.",
    "Blocks run in any order: let each write its own elements, use an atomic operation, or do the second part in "
    "another launch.",
)
COPY_CURE = (
    "The thread that began the copy has to wait for it, with wait_copies; after that a cuda.syncthreads() lets the "
    "others know."
)


class TracedMemory(Memory):
    """Memory that tells a `Recorder` of every access, and leaves out the lanes of one that is out of bounds."""

    def __init__(self, batch):
        super().__init__(batch)
        self.recorder = batch.recorder
        #: Lanes of the access on its way that are out of bounds, and those whose index was negative.
        self._bad = self._negative = None
        first = int(batch.ids[0]) * batch.threads
        #: Number in the grid of each thread: (B, T), and of the first block's.
        self.who = batch.ids[:, None] * batch.threads + np.arange(batch.threads)
        self.first_who = self.who[:1]
        self._shared = None
        #: Blocks do the same in shared memory until one does not: (1 or B).
        self.shared_rows = 1
        self._local = {}
        self.shifts = self.who[:, 0] - first

    # -- which lanes, and where ----------------------------------------------------------------------------------------

    def reach(self, view, index, mask, site, op):
        position, mask = self._checked(self.position, view, index, mask, site)
        if mask is None or mask.any():
            self.access(view, position, mask, site, op, view.dtype.itemsize)
        return position, mask

    def reach_wide(self, view, index, count, mask, site, op):
        position, mask = self._checked_wide(view, index, count, mask, site)
        if mask is None or mask.any():
            self.access(view, position, mask, site, op, count * view.dtype.itemsize)
        return position, mask

    def _checked_wide(self, view, index, count, mask, site):
        """As `_checked`, for ``count`` consecutive elements."""

        def position_of(view, index, mask, site):
            return self.wide_position(view, index, count, mask, site)

        return self._checked(position_of, view, index, mask, site)

    def _checked(self, position_of, view, index, mask, site):
        """(position, lanes whose access is good)."""
        self._bad = self._negative = None
        position = position_of(view, index, mask, site)
        if not view.aligned:
            self.batch.misaligned(site, view, 1, mask)
        if view.lost is not None:
            self.leave_out(view.lost)
        if self._bad is not None:
            good = ~np.broadcast_to(self._bad, self.batch.shape)
            position = np.where(good, position, np.int64(0))
            mask, self._bad = good if mask is None else good & mask, None
        return position, mask

    def leave_out(self, lanes):
        """These lanes' access must not happen."""
        self._bad = _with(self._bad, lanes)

    def _wrap(self, view, index, dimension, mask, site):
        i, extent = index[dimension], view.shape[dimension]
        below = i < 0
        wrapped = np.where(below, i + extent, i)
        bad = (wrapped < 0) | (wrapped >= extent)
        active = _besides(self._bad, bad if mask is None else bad & mask)
        if np.any(active):
            self.batch.out_of_bounds(site, view, index, active)
            self.leave_out(active)
        if np.ndim(i) and i.min() != i.max():
            wraps = _besides(self._negative, below & ~bad if mask is None else below & ~bad & mask)
            if np.any(wraps):
                self.batch.negative_index(site, view, index, dimension, wraps)
                self._negative = _with(self._negative, wraps)
        return np.where(bad, 0, wrapped)[()]

    def window(self, view, index, mask, site):
        self._bad = self._negative = None
        found = super().window(view, index, mask, site)
        if self._bad is not None and view.__class__ is not Either:
            found.lost = _with(view.lost, self._bad)
        return found

    # -- loads and stores ----------------------------------------------------------------------------------------------

    def fetch(self, view, position):
        if not view.items.size:  # every access is out of bounds, and left out
            return np.zeros((), view.dtype)[()]
        return super().fetch(view, position)

    def load(self, view, index, mask, site):
        if view.__class__ is Either:
            return self._choose(self.load, view, index, mask, site)
        position, _ = self.reach(view, index, mask, site, "load")
        return self.fetch(view, position)

    def store(self, view, index, value, mask, site):
        if view.__class__ is Either:
            for part, lanes in view.parts(mask):
                self.store(part, index, value, lanes, site)
            return
        if view.space == "const":
            self.batch.read_only(site, view, mask)
            return
        position, mask = self._checked(self.position, view, index, mask, site)
        if mask is None or mask.any():
            self._write(view, position, (value,), mask, site)

    def store_wide(self, view, index, values, mask, site):
        if view.__class__ is Either:
            super().store_wide(view, index, values, mask, site)
            return

        position, mask = self._checked_wide(view, index, len(values), mask, site)
        if mask is None or mask.any():
            self._write(view, position, values, mask, site)

    def reach_copy(self, view, index, count, mask, site):
        position, mask = self._checked_wide(view, index, count, mask, site)
        if mask is None or mask.any():
            self.access(view, position, mask, site, "begin copy", count * view.dtype.itemsize)
        return position, mask

    def land(self, copy, lanes):
        super().land(copy, lanes)
        nbytes = len(copy.values) * copy.view.dtype.itemsize
        self.access(copy.view, copy.position, lanes, copy.site, "land copy", nbytes)

    def _load_bytes(self, view, at, dtype, mask, site):
        if mask is None or mask.any():
            self.access(view, at, mask, site, "load", dtype.itemsize, unit=1)
        return super()._load_bytes(view, at, dtype, mask, site)

    def _store_bytes(self, view, at, value, dtype, mask, site):
        if mask is None or mask.any():
            self.access(view, at, mask, site, "store", dtype.itemsize, unit=1)
        super()._store_bytes(view, at, value, dtype, mask, site)

    def _write(self, view, position, values, mask, site):
        """Store to checked positions, and see whether others write or read there."""
        nbytes = len(values) * view.dtype.itemsize

        def differs(lanes, part):
            """Of flat lanes: those whose value is not what the memory holds."""
            there = self.fetch(view, position + np.int64(part))
            new = np.broadcast_to(values[part], self.batch.shape).reshape(-1)[lanes]
            old = np.broadcast_to(there, self.batch.shape).reshape(-1)[lanes]
            return (new != old) & ~((new != new) & (old != old))

        finish = self.access(view, position, mask, site, "store", nbytes, differs=differs)
        for part, value in enumerate(values):
            self.put(view, position + np.int64(part) if part else position, value, mask)
        if finish is not None:
            finish()

    # -- one access ----------------------------------------------------------------------------------------------------

    def access(self, view, position, mask, site, op, nbytes, unit=None, differs=None):
        """Count an access and check it.

        Parameters
        ----------
        position : value
            In units of ``unit`` bytes, the size of the view's items unless given.
        differs : function, optional
            For a store: which lanes' values (flat lanes, part of the value) are not in memory already.

        Returns
        -------
        function or None
            For a store: to be called when the values are in memory.
        """
        if view.space == "const" and not self.recorder.is_argument(view):
            return None
        unit = unit or view.items.dtype.itemsize
        address = position * np.int64(unit)
        if view.space != "local":
            address = address + np.int64(view.address)
        if op != "land copy":
            self.recorder.count(self.batch, view, address, mask, site, "store" if op == "begin copy" else op, nbytes)
        if view.space == "local":
            self._access_local(view, position, mask, site, op, nbytes, unit)
            return None
        if view.row:
            cells, offset, rows = self._shared_cells(address, mask), address, self.shared_rows
        else:
            cells = self.recorder.memory_at(view.address)
            offset, rows = address - np.int64(cells.address), self.blocks
        cells.fits(nbytes, unit, view.address)
        return self._access_cells(cells, offset, rows, view, position, mask, site, op, nbytes, differs)

    def _access_cells(self, cells, offset, rows, view, position, mask, site, op, nbytes, differs):
        shape = (rows, self.threads)
        cell = np.broadcast_to(offset // np.int64(cells.size), shape)
        if view.row and rows > 1:
            cell = cell + np.arange(rows)[:, None] * self._cells_per_block
        who = self.first_who if rows == 1 else self.who
        lanes = None
        if mask is None:
            cell, who = cell.reshape(-1), who.reshape(-1)
        else:
            lanes = np.flatnonzero(np.broadcast_to(mask[:1] if rows == 1 else mask, shape))
            cell, who = cell.reshape(-1)[lanes], who.reshape(-1)[lanes]
        times = max(1, nbytes // cells.size)
        cell, who = cells.spread(cell, who, nbytes)
        access = _Access(self, cells, view, position, lanes, times, site, op, rows)
        time = self.recorder.tick(site)
        if op == "land copy":
            cells.land_copy(cell, who, time)
            return None
        if op == "begin copy":
            access.report_races(cells.begin_copy(cell, who, time))
            return None
        if op != "store":
            unknown = cells.unknown(cell)
            if unknown is not None:
                access.report_unknown(unknown)
            if op in ("atomic", "cas"):
                conflicts = cells.atomic(cell, who, time)
                self._note_atomic(view, cells, cell, who, time)
            else:
                conflicts = cells.load(cell, who, time)
            access.report_races(conflicts)
            return None
        return access.store(cell, who, time, differs)

    def _note_atomic(self, view, cells, cell, who, time):
        order = self.recorder.order
        if not order.fences:
            return
        place = cell * cells.size  # one number for each cell of all memories
        if not view.row:
            order.atomic(cells.address + place, who, time)
            return
        nbytes = self._cells_per_block * cells.size
        place = place % nbytes
        if self.shared_rows < self.blocks:
            place, who = np.tile(place, self.blocks), (who + self.shifts[:, None]).ravel()
        order.atomic(-1 - place - who // self.threads * nbytes, who, time)

    # -- shared and local memory ---------------------------------------------------------------------------------------

    def _shared_cells(self, address, mask):
        """The shadow of shared memory: of one block for all, as long as all blocks do the same."""
        if self._shared is None:
            launch = self.batch.launch
            nbytes = launch.dynamic_address + launch.dynamic_shared
            threads = launch.threads
            self._shared = Cells(
                -(-nbytes // 16) * 16,
                16,
                self.recorder.order,
                (lambda who: who % threads // WARP,),
                np.zeros(-(-nbytes // 16) * 16, bool),
            )
        differ = any(isinstance(v, np.ndarray) and v.ndim and v.shape[0] > 1 for v in (address, mask))
        if differ:
            self.tell_blocks_apart()
        return self._shared

    def tell_blocks_apart(self):
        """Blocks no longer do the same: each gets its own shadow of shared memory."""
        if self.shared_rows == 1 and self.blocks > 1:
            self.shared_rows = self.blocks
            if self._shared is not None:
                self._shared.repeat(self.shifts)

    @property
    def _cells_per_block(self):
        return self._shared.last_write.size // self.shared_rows

    def all_blocks_passed(self):
        """Every thread has passed a barrier of its block."""
        if self._shared is not None:
            self._shared.forget()

    def _access_local(self, view, position, mask, site, op, nbytes, unit):
        items = view.items
        key = items.__array_interface__["data"][0]
        if key not in self._local:
            self._local[key] = np.zeros(items.shape, bool)
        known = self._local[key]
        element = position if unit == items.dtype.itemsize else position // items.dtype.itemsize
        if op == "store":
            if np.ndim(element) == 0 and mask is None:
                known[element] = True
            elif np.ndim(element) == 0:
                known[element] |= mask
            else:
                flat = np.broadcast_to(element * self.lane.size + self.lane, self.lane.shape)
                known.reshape(-1)[flat if mask is None else flat[np.broadcast_to(mask, flat.shape)]] = True
            return
        if np.ndim(element) == 0:
            missing = ~known[element]
        else:
            missing = ~known.reshape(-1).take(np.broadcast_to(element * self.lane.size + self.lane, self.lane.shape))
        missing = missing if mask is None else missing & mask
        if missing.any():
            self.batch.uninitialised(site, view, position, missing, unit)


def _with(lanes, others):
    return others if lanes is None else lanes | others


def _besides(lanes, others):
    return others if lanes is None else others & ~lanes


class _Access:
    """One access on its way: turns flat lanes back into threads for a report."""

    def __init__(self, memory, cells, view, position, lanes, times, site, op, rows):
        self.memory = memory
        self.batch = memory.batch
        self.cells = cells
        self.view = view
        self.position = position
        self.lanes = lanes
        self.times = times
        self.site = site
        self.op = op
        self.rows = rows

    def store(self, cell, who, time, differs):
        """The checks of a plain write; returns what to do when the values are in memory."""
        writes, reads = self.cells.store_conflicts(cell, who)
        self.report_races(reads)
        self._report_different(writes, differs)
        lost = self.cells.store(cell, who, time, writes)
        return None if lost is None else lambda: self._report_different([lost], differs)

    def _report_different(self, conflicts, differs):
        """Writes of the same value do no harm."""
        if differs is None:  # a field of a record
            self.report_races(conflicts)
        elif conflicts and self.rows < self.batch.blocks:
            self._report_different_blocks(conflicts, differs)
        else:
            self.report_races([self._different(conflict, differs) for conflict in conflicts])

    def _different(self, conflict, differs):
        """The part of a conflict whose values differ."""
        lanes = self._threads(conflict.lanes)
        parts = conflict.lanes % self.times * self.cells.size // self.view.dtype.itemsize
        different = np.zeros(lanes.size, bool)
        for part in np.unique(parts).tolist():
            at = np.flatnonzero(parts == part)
            different[at] = differs(lanes[at], part)
        return conflict._replace(lanes=conflict.lanes[different], keys=conflict.keys[different])

    def _report_different_blocks(self, conflicts, differs):
        """Blocks that do the same may still write different values."""
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
        """Lanes of the access, as the shadow saw them, to positions in (B, T)."""
        lanes = lanes // self.times
        return lanes if self.lanes is None else self.lanes[lanes]

    def _mask(self, threads):
        mask = np.zeros(self.batch.shape, bool)
        mask.reshape(-1)[threads] = True
        if self.rows == 1:
            mask[1:] = mask[0]
        return mask

    def report_unknown(self, lanes):
        self.batch.uninitialised(self.site, self.view, self.position, self._mask(self._threads(lanes)))

    def report_races(self, conflicts):
        """One report for each place of earlier accesses, with each thread once."""
        conflicts = [c for c in conflicts if c.lanes.size]
        if not conflicts:
            return
        threads = np.concatenate([self._threads(c.lanes) for c in conflicts])
        keys = np.concatenate([c.keys for c in conflicts])
        earlier = np.repeat([c.earlier for c in conflicts], [c.lanes.size for c in conflicts])
        times, tick = np.unique(keys >> THREAD_BITS, return_inverse=True)
        site_at = self.batch.recorder.site_at
        sites = np.array([site_at[time & ~UNDER_WAY] for time in times.tolist()])[tick]
        for site in np.unique(sites).tolist():
            at = np.flatnonzero(sites == site)
            farthest = np.argsort(-self.batch.distances(threads[at], keys[at]), kind="stable")
            once, first = np.unique(threads[at][farthest], return_index=True)
            at = at[farthest[first]]
            conflict = Conflict(at, keys[at], str(earlier[at[0]]))
            self.batch.race(self.site, self.view, self.position, self.op, conflict, once, self._mask(once))


class TracedScheduler(Scheduler):
    """A scheduler that counts branches and barriers, and tells what they order."""

    def branch(self, condition, if_true, if_false, mask, site):
        batch = self.batch
        same = condition.shape[0] == 1 and (mask is None or mask.shape[0] == 1)
        height = 1 if same else batch.blocks
        there = np.broadcast_to(True if mask is None else mask, (height, batch.threads))
        taken = condition & there
        yes, no = _warp_counts(taken), _warp_counts(there) - _warp_counts(taken)
        split = (yes > 0) & (no > 0)
        count = batch.recorder.branches[site]
        times = batch.blocks // height
        count.warps += int(np.count_nonzero(yes + no)) * times
        count.split += int(np.count_nonzero(split)) * times
        count.waiting += int(no[split].sum()) * times
        return super().branch(condition, if_true, if_false, mask, site)

    def barrier(self, pc, mask, kind, site, members=None):
        batch = self.batch
        lanes = np.broadcast_to(True if mask is None else mask, batch.shape)
        if kind == "warp":
            unnamed = lanes & (members >> (np.arange(batch.threads) % WARP) & 1 == 0)
            if unnamed.any():
                batch.not_in_mask(site, unnamed)
        elif self.alive is not None:
            gone = ~np.broadcast_to(self.alive, batch.shape) & lanes.any(axis=1, keepdims=True)
            if gone.any() and site not in batch.recorder.returned:
                batch.recorder.returned[site] = batch.place(gone)[:2]
        return super().barrier(pc, mask, kind, site, members)

    def passed(self, held, lanes):
        batch, recorder = self.batch, self.batch.recorder
        order, now = recorder.order, recorder.time + 1
        if batch.blocks > 1 and not (lanes == lanes[:1]).all():
            batch.memory.tell_blocks_apart()
        if held.kind == "warp":
            by_warp = batch.by_warp(lanes, False)
            recorder.barriers[held.site, "warp"] += int(np.count_nonzero(by_warp.any(axis=2)))
            if recorder.sites[held.site].op == "syncwarp":
                alive = batch.by_warp(True if self.alive is None else self.alive, False)
                for mask in np.unique(held.named[lanes]).tolist():  # lanes with another mask meet elsewhere
                    order.warp_barrier(batch.by_warp(lanes & (held.named == mask), False), alive, now)
            return
        rows = lanes.any(axis=1)
        recorder.barriers[held.site, held.kind] += int(np.count_nonzero(rows))
        if held.kind == "grid":
            order.grid_barrier(now)
        else:
            order.block_barrier(rows, now)
        if rows.all():
            batch.memory.all_blocks_passed()


def _warp_counts(lanes):
    """Active lanes of each warp: (B, T) truth to (B, W)."""
    missing = -lanes.shape[1] % WARP
    if missing:
        lanes = np.concatenate([lanes, np.zeros((lanes.shape[0], missing), bool)], axis=1)
    return np.count_nonzero(lanes.reshape(lanes.shape[0], -1, WARP), axis=2)


class TracedBatch(Batch):
    """A batch that records instead of stopping, as far as it can go on."""

    traced = True

    def __init__(self, launch, ids, recorder):
        self.recorder = recorder
        self.ids = ids
        recorder.order.start_batch(ids)
        super().__init__(launch, ids)

    def make_memory(self):
        return TracedMemory(self)

    def scheduler(self, order, live, alive):
        return TracedScheduler(self, order, live, alive)

    def enter(self, label, mask):
        """A basic block runs."""
        count = self.recorder.blocks[label]
        if mask is None:
            count.threads += self.blocks * self.threads
            count.warps += self.blocks * -(-self.threads // WARP)
            return
        times = self.blocks // mask.shape[0]
        count.threads += int(np.count_nonzero(mask)) * times
        count.warps += int(np.count_nonzero(_warp_counts(mask))) * times

    def fence(self, mask, whole_device):
        lanes = np.broadcast_to(True if mask is None else mask, self.shape)
        self.recorder.order.fence(lanes, self.recorder.time + 1, whole_device)

    # -- problems ------------------------------------------------------------------------------------------------------

    def wrong(self, kind, message, site, lanes, cure="", array=None):
        if kind == "no-progress":
            super().wrong(kind, message, site, lanes, cure, array)
        lanes = np.broadcast_to(True if lanes is None else lanes, self.shape)
        if kind == "misaligned":
            self.memory.leave_out(lanes)
        self.recorder.problem(self, kind, site, message, lanes, cure, array)

    def negative_index(self, site, view, index, dimension, lanes):
        _, _, lane = self.place(lanes)
        shown = [int(np.broadcast_to(i, self.shape)[lane]) for i in index]
        extent = int(np.broadcast_to(view.shape[dimension], self.shape)[lane])
        message = (
            f"index {_shown_index(shown)} of {view.space} array {view.name!r} is negative: it wraps to "
            f"{shown[dimension] + extent}, counted from the end"
        )
        cure = "Guard the access, or clamp the index. Nothing warns of this on a GPU: the wrong element is used."
        self.recorder.problem(self, "negative-index", site, message, lanes, cure, view.name)

    def uninitialised(self, site, view, position, lanes, unit=None):
        what = self._element(view, position, lanes, unit)
        message = f"{what} ({view.space}) is read, but nobody has written it"
        cure = {
            "shared": "Write every element that is read, at the ragged edges too, and before the barrier. Shared "
            "memory does not start with zeros.",
            "local": "Give every element a value first: local memory does not start with zeros.",
        }.get(view.space, "Fill the array before the launch: new device memory does not start with zeros.")
        self.recorder.problem(self, "uninitialised-read", site, message, lanes, cure, view.name)

    def race(self, site, view, position, op, conflict, threads, lanes):
        """Accesses of ``threads`` (positions in (B, T)) that nothing orders after those of the conflict's keys."""
        recorder = self.recorder
        row, mine = divmod(int(threads[0]), self.threads)
        block, other = divmod(int(conflict.keys[0]) & THREAD, self.threads)
        same_block = block == int(self.ids[row])
        here = recorder.sites[site]
        there = recorder.sites[recorder.site_at[int(conflict.keys[0]) >> THREAD_BITS & ~UNDER_WAY]]
        under_way = conflict.earlier == "store" and conflict.keys[0] >= UNDER_WAY_KEYS
        first = np.zeros(self.shape, bool)
        first[row, mine] = True
        did = {"load": "reads", "store": "writes", "begin copy": "copies to", "atomic": "changes", "cas": "changes"}
        where = "" if same_block else f" of block {unravel(block, self.launch.grid)}"
        earlier, rest = did[conflict.earlier], "and nothing orders the two"
        if under_way:
            earlier, rest = "copies to", "and has not waited for its copy"
        message = (
            f"thread {unravel(mine, self.launch.block)} {did[op]} {self._element(view, position, first)} "
            f"({view.space}) at line {here.line}, thread {unravel(other, self.launch.block)}{where} "
            f"{earlier} it at line {there.line}, {rest}"
        )
        pair = min((here.filename, here.line), (there.filename, there.line))
        weight = int(self.distances(threads, conflict.keys).max())
        cure = COPY_CURE if under_way else RACE_CURES[weight]
        recorder.problem(self, "race", site, message, lanes, cure, view.name, pair, (mine, other), weight)

    def distances(self, threads, keys):
        """How far apart the threads of races are: 0 in one warp, 1 in one block, 2 in two blocks."""
        rows, mine = np.divmod(threads, self.threads)
        blocks, others = np.divmod(keys & THREAD, self.threads)
        return np.where(blocks != self.ids[rows], 2, (mine // WARP != others // WARP).astype(np.int64))

    def _element(self, view, position, lanes, unit=None):
        """How the source would name the element that the first lane of a mask accesses."""
        _, _, lane = self.place(lanes)
        if unit is not None or view.dtype != view.items.dtype or not is_contiguous(view):
            return f"an element of {view.name}"
        at = int(np.broadcast_to(position, self.shape)[lane])
        base = int(np.broadcast_to(view.base, self.shape)[lane])
        shape = view.shape
        index = np.unravel_index(at - base, shape) if shape and 0 <= at - base < np.prod(shape) else (at - base,)
        return f"{view.name}[{', '.join(str(int(i)) for i in index)}]"

    def not_in_mask(self, site, lanes):
        message = "a thread calls a warp operation whose mask does not name its own lane"
        cure = (
            "Each lane that gets here must be in the mask: compute it with ballot_sync before the branch, or move the "
            "call out of the branch."
        )
        self.recorder.problem(self, "barrier-divergence", site, message, lanes, cure)

    def shuffled(self, source, warp_mask, mask, site):
        running = self.by_warp(True if mask is None else mask, False)
        source = np.broadcast_to(source, running.shape)
        named = self.by_warp(self.named(warp_mask), 0) >> source & 1 == 1
        from_nobody = running & named & ~np.take_along_axis(running, source, axis=2)
        if from_nobody.any():
            lanes = self.from_warps(from_nobody)
            _, thread, lane = self.place(lanes)
            taken = int(self.from_warps(source)[lane])
            message = (
                f"a thread takes a value from lane {taken} of its warp, which the mask names but which is not there: "
                "it has returned, or the block has no such thread"
            )
            cure = (
                "Keep all lanes of the warp running up to the shuffle, those without work with a neutral value, or "
                "name only those that run in the mask."
            )
            self.recorder.problem(self, "barrier-divergence", site, message, lanes, cure)


def _shown_index(values):
    return str(values[0]) if len(values) == 1 else f"({', '.join(map(str, values))})"


def run(prepared, wanted=None, progress=None):
    """Run a prepared launch and record what it does.

    Parameters
    ----------
    prepared : launch.Prepared
    wanted : (n,) int64 ndarray, optional
        Positions of the blocks to run, ascending; all unless given.
    progress : function, optional
        Called with the share of the blocks that have run.

    Returns
    -------
    Recorder
    """
    launch = prepared.run
    recorder = Recorder(launch)
    parameters = list(inspect.signature(prepared.overload.kernel.py_func).parameters)
    written = {parameters[i] for i in launch.program.written}
    for name, array in prepared.transfers.arrays:
        recorder.declare(array.allocation, name.split("[")[0] in written)
    done = 0
    total = launch.blocks if wanted is None else wanted.size
    with np.errstate(all="ignore"):
        for ids in launch.batches(wanted):
            launch.run_batch(TracedBatch(launch, ids, recorder), prepared.arguments)
            done += ids.size
            if progress is not None:
                progress(done / total)
    recorder.finish()
    launch.finish()
    return recorder
