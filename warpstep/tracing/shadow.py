"""The shadow of memory: for every cell, whether it was written, its last write, and the reads since.

A cell is the largest piece of memory that no access has split so far: 4 bytes for an array of float32, one byte for an
image. Accesses come as flat arrays of the active lanes: ``cell`` (position in the memory) and ``tids`` (number of the
thread in the trace).
"""

import math
from typing import NamedTuple

import numpy as np

#: The thread in a key; the time of the access is above it.
THREAD_BITS = 32
THREAD = (1 << THREAD_BITS) - 1
#: A bit in the time of a write: an asynchronous copy in flight. No barrier orders anything after it.
IN_FLIGHT = 1 << 30
#: The keys of such copies start here.
IN_FLIGHT_KEYS = IN_FLIGHT << THREAD_BITS
#: Lanes of accesses that are logged before they are merged.
MAX_LOGGED_LANES = 1 << 18
#: Accesses from which on only the last one of each thread is kept.
MIN_MERGED = 1 << 12


class Conflict(NamedTuple):
    """Unordered pairs of accesses: the lanes of the present access, and the keys of the earlier ones."""

    lanes: np.ndarray
    keys: np.ndarray
    earlier: str  # "load", "store" or "atomic"


class Cells:
    """The shadow of one piece of memory.

    Parameters
    ----------
    nbytes : int
    size : int
        Bytes of a cell to begin with.
    order : happens_before.Order
    groups : tuple of function
        Map the number of a thread to its groups, from small to large: its warp and, in global memory, its block.
    known : bool ndarray or None
        The bytes that are initialised before the launch; None for all.
    races : bool
        False if the kernel never writes here, so that no race is possible.
    """

    def __init__(self, nbytes, size, order, groups, known=None, races=True):
        #: Where the memory begins, for memory that has an address.
        self.address = 0
        while known is not None and not _uniform(known, size):
            size //= 2
        self.size = size
        self.order = order
        self.groups = groups
        self.races = races
        count = -(-nbytes // size)
        self.known = None if known is None else known[::size].copy()
        self.read = np.zeros(count, bool)
        self.written = np.zeros(count, bool)
        self.last_write = np.zeros(count, np.int64)
        #: The keys of reads that go on after their instruction, of tensor cores and copies; 0 elsewhere.
        self.pending = np.zeros(count, np.int64)
        self.reads = Log(self._past)
        self.atomics = Log(self._past)
        #: The atomics whose result the kernel uses: it has seen what was done at the cell before.
        self.looks = Log(lambda: Every(self.last_write.size, order))
        #: Whether there were asynchronous copies.
        self.copies = False
        #: Earlier writes that are not ordered before the last one, and wrote the same value.
        self.equal_writes = Log(self._past)

    # -- cells ---------------------------------------------------------------------------------------------------------

    def split(self, size):
        """Split the cells into cells of ``size`` bytes."""
        times = self.size // size
        for log in self._logs:
            log.split(times)
        for name in ("known", "read", "written", "last_write", "pending"):
            values = getattr(self, name)
            if values is not None:
                setattr(self, name, np.repeat(values, times))
        self.size = size

    def repeat(self, shifts):
        """Repeat the shadow for several blocks; ``shifts`` are added to the numbers of the threads."""
        for log in self._logs:
            log.repeat(shifts)
        for name in ("known", "read", "written"):
            setattr(self, name, np.tile(getattr(self, name), shifts.size))
        self.last_write, self.pending = shifted(self.last_write, shifts), shifted(self.pending, shifts)

    @property
    def _logs(self):
        return self.reads, self.atomics, self.looks, self.equal_writes

    def fits(self, *offsets):
        """Split the cells, if need be, so that one starts at each multiple of all these numbers of bytes."""
        size = math.gcd(self.size, *offsets)
        if size != self.size:
            self.split(size)

    def spread(self, cell, tids, nbytes):
        """Repeat cells and threads for accesses that cover several cells from ``cell`` on."""
        times = nbytes // self.size
        if times == 1:
            return cell, tids
        return (cell[:, None] + np.arange(times)).ravel(), np.repeat(tids, times)

    # -- loads, stores, atomics ----------------------------------------------------------------------------------------

    def unknown(self, cell):
        """Find the lanes that read uninitialised memory; None if there are none."""
        if self.known is None:
            return None
        there = self.known[cell]
        return None if there.all() else np.flatnonzero(~there)

    def load(self, cell, tids, time):
        """Read; returns the `Conflict`s with earlier plain writes, and those with earlier atomics."""
        self.read[cell] = True
        if not self.races:
            return (), ()
        conflicts = self._write_conflicts(cell, tids), self._atomic_conflicts(cell, tids)
        self.reads.add(cell, tids, time)
        return conflicts

    def atomic(self, cell, tids, time, looks):
        """Do an atomic operation; returns the `Conflict`s with earlier plain writes, and those with earlier reads.

        ``looks``: the kernel uses the old value.
        """
        self.read[cell] = self.written[cell] = True
        if self.known is not None:
            self.known[cell] = True
        if not self.races:
            return (), ()
        conflicts = self._write_conflicts(cell, tids), self._conflicts(self.reads, cell, tids, "load")
        self.atomics.add(cell, tids, time)
        if looks:
            self.looks.add(cell, tids, time)
        return conflicts

    def store_conflicts(self, cell, tids):
        """Check a plain write before it: (`Conflict`s with earlier writes, those with earlier reads and atomics)."""
        if not self.races:
            return (), ()
        at = np.flatnonzero(self.pending[cell])
        others = [Conflict(at, self.pending[cell[at]] | IN_FLIGHT_KEYS, "load")] if at.size else []
        others += self._conflicts(self.reads, cell, tids, "load") + self._atomic_conflicts(cell, tids)
        return self._write_conflicts(cell, tids), others

    def store(self, cell, tids, time, conflicts):
        """Write; returns the `Conflict` with other lanes of the same access, or None.

        ``conflicts``: those with earlier writes.
        """
        self.written[cell] = True
        if self.known is not None:
            self.known[cell] = True
        if not self.races:
            return None
        key = (time << THREAD_BITS) | tids
        for earlier in conflicts:
            self.equal_writes.merge(cell[earlier.lanes], earlier.keys)
        self.last_write[cell] = key
        lost = np.flatnonzero(self.last_write[cell] != key)
        if not lost.size:
            return None
        self.equal_writes.merge(cell[lost], key[lost])
        return Conflict(lost, self.last_write[cell[lost]], "store")

    # -- asynchronous copies -------------------------------------------------------------------------------------------

    def begin_copy(self, cell, tids, time):
        """Begin a copy; returns the `Conflict`s with earlier accesses, and with other lanes of the same one."""
        self.written[cell] = self.copies = True
        writes, reads = self.store_conflicts(cell, tids)
        key = ((time | IN_FLIGHT) << THREAD_BITS) | tids
        self.last_write[cell] = key
        lost = np.flatnonzero(self.last_write[cell] != key)
        same = [Conflict(lost, self.last_write[cell[lost]], "store")] if lost.size else []
        return [*writes, *reads, *same]

    def begin_read(self, cell, tids, time):
        """Begin a read that goes on after its instruction; returns the `Conflict`s with earlier writes and atomics."""
        writes, others = self.load(cell, tids, time)
        self.pending[cell] = (time << THREAD_BITS) | tids
        return [*writes, *others]

    def end_reads(self, times):
        """End the reads that have begun at these times."""
        at = np.flatnonzero(self.pending)
        self.pending[at[np.isin(self.pending[at] >> THREAD_BITS, times)]] = 0

    def land_copy(self, cell, tids, time):
        """Land a copy that its thread has waited for: it is a plain write from now on."""
        self.last_write[cell] = (time << THREAD_BITS) | tids
        if self.known is not None:
            self.known[cell] = True

    # -- conflicts -----------------------------------------------------------------------------------------------------

    def _past(self):
        """Make a store of the accesses that a later one may race with."""
        count = self.last_write.size
        return Every(count, self.order) if self.order.by_thread else Latest(count, self.groups)

    def _write_conflicts(self, cell, tids):
        last = self._conflict(self.last_write[cell], tids, "store")
        return [c for c in (last, *self._conflicts(self.equal_writes, cell, tids, "store")) if c is not None]

    def _atomic_conflicts(self, cell, tids):
        """Find conflicts with atomics, but for those whose effect the thread has seen in the result of its own.

        The accesses to one cell have one order, without a fence too: who has seen a change of a cell sees that cell no
        more as it was before.
        """
        conflicts = self._conflicts(self.atomics, cell, tids, "atomic")
        return [c for c in (self._unseen(c, cell, tids) for c in conflicts) if c.lanes.size]

    def _unseen(self, conflict, cell, tids):
        lanes, keys, _ = conflict
        those, which = np.unique(lanes, return_inverse=True)
        newest = np.zeros(those.size, np.int64)
        for looks, at in self.looks.at(cell[those]):
            met = ~self.order.not_met(looks >> THREAD_BITS, looks & THREAD, tids[those[at]])
            np.maximum.at(newest, at[met], looks[met])
        unseen = newest[which] <= keys
        return conflict._replace(lanes=lanes[unseen], keys=keys[unseen])

    def _conflicts(self, log, cell, tids, earlier):
        conflicts = [self._conflict(found, tids, earlier, lanes) for found, lanes in log.at(cell)]
        return [c for c in conflicts if c is not None]

    def _conflict(self, found, tids, earlier, lanes=None):
        """``found``: keys of earlier accesses, one for each of the present lanes, or of ``lanes`` among them."""
        tids = tids if lanes is None else tids[lanes]
        other = (found & THREAD) != tids
        if self.copies:  # the thread that began a copy must wait for it too
            other |= found >= IN_FLIGHT_KEYS
        hot = np.flatnonzero((found != 0) & other)
        if not hot.size:
            return None
        found = found[hot]
        loose = self.order.unordered(found >> THREAD_BITS, found & THREAD, tids[hot])
        if self.copies:
            loose |= found >= IN_FLIGHT_KEYS
        if not loose.any():
            return None
        hot = hot[loose]
        return Conflict(hot if lanes is None else lanes[hot], found[loose], earlier)

    def forget(self):
        """Drop what cannot race any more: all threads have passed a barrier."""
        for log in self._logs:
            log.forget(self.order.by_thread or log in (self.looks, self.equal_writes))


class Log:
    """Accesses of one kind, most of which nobody asks for: as a rule a barrier follows before the next write."""

    def __init__(self, make):
        self.make = make
        #: A `Latest` or an `Every`.
        self.past = None
        self._log = []
        self._logged = 0

    def add(self, cell, tids, time):
        self._log.append((cell, tids, time))
        self._logged += cell.size
        if self._logged > MAX_LOGGED_LANES:
            self.flush()

    def merge(self, cell, key):
        if self.past is None:
            self.past = self.make()
        self.past.add(cell, key)

    def flush(self):
        """Merge what was logged."""
        log, self._log, self._logged = self._log, [], 0
        for cell, tids, time in log:
            self.merge(cell, (time << THREAD_BITS) | tids)

    def at(self, cell):
        """Yield keys of earlier accesses to these cells, and the lanes in ``cell`` that they belong to."""
        self.flush()
        return () if self.past is None else self.past.at(cell)

    def forget(self, everything):
        self._log.clear()
        self._logged = 0
        if everything:
            self.past = None

    def split(self, times):
        self.flush()
        if self.past is not None:
            self.past.split(times)

    def repeat(self, shifts):
        self.flush()
        if self.past is not None:
            self.past.repeat(shifts)


class Latest:
    """For each cell the last access, and the last ones by other threads: one of its smallest group, one of each larger
    group outside of the smaller, one of no common group.

    That is enough if only whole groups synchronise: if a dropped access could race with a later one, a kept one could.
    Otherwise take `Every`.
    """

    def __init__(self, count, groups):
        self.groups = groups
        self.keys = [np.zeros(count, np.int64) for _ in range(len(groups) + 2)]

    def add(self, cell, key):
        """Add simultaneous accesses, none earlier than those before."""
        last, *others = self.keys
        before = last[cell]
        last[cell] = key
        kept = last[cell]
        at = np.flatnonzero((before != 0) & (kept == key) & ((before ^ key) & THREAD != 0))
        if at.size:
            where, candidates = cell[at], [before[at], *(keys[cell[at]] for keys in others)]
            apart = [self._apart(candidate, key[at]) for candidate in candidates]
            for level, keys in enumerate(others):
                fits = [np.where(a == level + 1, c, 0) for a, c in zip(apart, candidates, strict=True)]
                keys[where] = np.maximum.reduce(fits)
        at = np.flatnonzero(kept != key)
        if at.size:
            apart = self._apart(kept[at], key[at])
            for level, keys in enumerate(others):
                there = at[apart == level + 1]
                keys[cell[there]] = key[there]

    def at(self, cell):
        """Yield the keys of earlier accesses to these cells, and None: one for each of them."""
        for keys in self.keys:
            yield keys[cell], None

    def split(self, times):
        self.keys = [np.repeat(keys, times) for keys in self.keys]

    def repeat(self, shifts):
        self.keys = [shifted(keys, shifts) for keys in self.keys]

    def _apart(self, first, second):
        """The smallest common group of pairs of threads: 0 for the same thread, 1 for the smallest group, ..."""
        first, second = first & THREAD, second & THREAD
        result = (first != second).astype(np.int64)
        for group_of in self.groups:
            result += group_of(first) != group_of(second)
        return result


class Every:
    """For each cell the last access of every thread, as two flat arrays; for threads that synchronise one by one."""

    def __init__(self, count, order):
        self.count = count
        self.order = order
        self.cell = self.key = np.zeros(0, np.int64)
        self._added = []
        self._limit = MIN_MERGED

    def add(self, cell, key):
        self._added.append((cell, key))

    def at(self, cell):
        """Yield keys of earlier accesses to these cells, and the lanes in ``cell`` that they belong to."""
        self._merge()
        there = np.flatnonzero(np.isin(self.cell, cell))
        there = there[np.argsort(self.cell[there], kind="stable")]
        cells, keys = self.cell[there], self.key[there]
        first = np.searchsorted(cells, cell)
        number = np.searchsorted(cells, cell, side="right") - first
        ends = np.cumsum(number)
        start = 0
        while start < cell.size:  # not too many pairs at once
            before = ends[start] - number[start]
            stop = max(start + 1, int(np.searchsorted(ends, before + MAX_LOGGED_LANES, side="right")))
            lanes = np.repeat(np.arange(start, stop), number[start:stop])
            if lanes.size:
                yield keys[np.arange(lanes.size) + before - (ends - number - first)[lanes]], lanes
            start = stop

    def split(self, times):
        self._merge()
        self.count *= times
        self.cell = (self.cell[:, None] * times + np.arange(times)).ravel()
        self.key = np.repeat(self.key, times)

    def repeat(self, shifts):
        self._merge()
        self.cell = (self.cell + np.arange(shifts.size)[:, None] * self.count).ravel()
        self.key = shifted(self.key, shifts)
        self.count *= shifts.size

    def _merge(self):
        if not self._added:
            return
        cells, keys = zip(*self._added, strict=True)
        self.cell, self.key = np.concatenate([self.cell, *cells]), np.concatenate([self.key, *keys])
        self._added.clear()
        if self.key.size <= self._limit:
            return
        recent = np.flatnonzero(self.key >> THREAD_BITS >= self.order.grid_time)
        cell, key = self.cell[recent], self.key[recent]
        order = np.lexsort((key, key & THREAD, cell))
        cell, key = cell[order], key[order]
        last = np.append((cell[1:] != cell[:-1]) | ((key[1:] ^ key[:-1]) & THREAD != 0), True)
        self.cell, self.key = cell[last], key[last]
        self._limit = max(MIN_MERGED, 2 * self.key.size)


def shifted(keys, shifts):
    """Repeat keys for each of several blocks; ``shifts`` are added to the numbers of the threads."""
    return np.where(keys != 0, keys + shifts[:, None], 0).ravel()


def _uniform(known, size):
    """True if all bytes of each cell are known, or none."""
    cells = known.reshape(-1, size)
    return bool((cells == cells[:, :1]).all())
