"""What a trace remembers of every cell of memory: whether it was written, who wrote it last, and who read it since.

A cell is the largest piece of memory that no access has cut so far: 4 bytes for an array of float32, one byte for an
image. Accesses come as flat arrays of the lanes that take part: ``cell`` (position in the memory) and ``who`` (number
of the thread in the grid).
"""

import math
from typing import NamedTuple

import numpy as np

#: The thread in a key; the time of the access is above it.
THREAD_BITS = 32
THREAD = (1 << THREAD_BITS) - 1
#: In the time of a write: an asynchronous copy that has not landed. It comes after every barrier.
UNDER_WAY = 1 << 30
#: Keys from here on are of such copies.
UNDER_WAY_KEYS = UNDER_WAY << THREAD_BITS
#: Lanes of reads that may wait for a write to ask for them.
LOG_LANES = 1 << 18


class Conflict(NamedTuple):
    """Two accesses that nothing orders: the lanes of the present access, and the keys of the earlier ones."""

    lanes: np.ndarray
    keys: np.ndarray
    earlier: str  # "load" or "store"


class Cells:
    """The shadow of one piece of memory.

    Parameters
    ----------
    nbytes : int
    size : int
        Bytes of a cell to begin with.
    order : ordering.Order
    groups : tuple of function
        The groups that a thread (by number) belongs to, from small to large: its warp and, in global memory, its block.
    known : bool ndarray or None
        The bytes that hold something before the launch; None for all.
    races : bool
        False if the kernel writes nothing here: then nobody can race.
    """

    def __init__(self, nbytes, size, order, groups, known=None, races=True):
        #: Where the memory begins, for memory that has an address.
        self.address = 0
        while known is not None and not _alike(known, size):
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
        self.last_reads = None
        #: Whether there were asynchronous copies.
        self.copies = False
        #: Writes before the last one that nothing orders before it: they wrote the same value.
        self.equal_writes = None
        self._log = []
        self._logged = 0

    # -- cells ---------------------------------------------------------------------------------------------------------

    def cut(self, size):
        """Make cells of ``size`` bytes, a divisor of what they are."""
        times = self.size // size
        self.flush()
        for name in ("known", "read", "written", "last_write"):
            values = getattr(self, name)
            if values is not None:
                setattr(self, name, np.repeat(values, times))
        for latest in (self.last_reads, self.equal_writes):
            if latest is not None:
                latest.keys = [np.repeat(keys, times) for keys in latest.keys]
        self.size = size

    def repeat(self, shifts):
        """The same shadow side by side for several blocks; ``shifts``: what to add to the numbers of the threads."""
        self.flush()
        for name in ("known", "read", "written"):
            setattr(self, name, np.tile(getattr(self, name), shifts.size))
        self.last_write = shifted(self.last_write, shifts)
        for latest in (self.last_reads, self.equal_writes):
            if latest is not None:
                latest.keys = [shifted(keys, shifts) for keys in latest.keys]

    def fits(self, *offsets):
        """Make sure that cells start at multiples of all these numbers of bytes."""
        size = math.gcd(self.size, *offsets)
        if size != self.size:
            self.cut(size)

    def spread(self, cell, who, nbytes):
        """Cells and threads of accesses that are wider than a cell, which ``cell`` is the first of."""
        times = nbytes // self.size
        if times == 1:
            return cell, who
        return (cell[:, None] + np.arange(times)).ravel(), np.repeat(who, times)

    # -- loads, stores, atomics ----------------------------------------------------------------------------------------

    def unknown(self, cell):
        """Lanes that read what nobody has written; None if all is well."""
        if self.known is None:
            return None
        there = self.known[cell]
        return None if there.all() else np.flatnonzero(~there)

    def load(self, cell, who, time):
        """A plain read; returns the `Conflict`s with earlier writes."""
        self.read[cell] = True
        if not self.races:
            return ()
        writes = self._write_conflicts(cell, who)
        self._remember(cell, who, time)
        return writes

    def atomic(self, cell, who, time):
        """An atomic operation: it races with plain writes only, so to later accesses it is a read."""
        self.written[cell] = True
        if self.known is not None:
            self.known[cell] = True
        return self.load(cell, who, time)

    def store_conflicts(self, cell, who):
        """Before a plain write: (`Conflict`s with earlier writes, those with earlier reads)."""
        if not self.races:
            return (), ()
        self.flush()
        reads = () if self.last_reads is None else self.last_reads.keys
        reads = [self._conflict(keys, cell, who, "load") for keys in reads]
        return self._write_conflicts(cell, who), [c for c in reads if c is not None]

    def store(self, cell, who, time, conflicts):
        """A plain write; returns the `Conflict` with other lanes of the same access, to be judged after them, or None.

        ``conflicts``: those with earlier writes.
        """
        self.written[cell] = True
        if self.known is not None:
            self.known[cell] = True
        if not self.races:
            return None
        key = (time << THREAD_BITS) | who
        for earlier in conflicts:
            self._equal(cell[earlier.lanes], earlier.keys)
        self.last_write[cell] = key
        lost = np.flatnonzero(self.last_write[cell] != key)
        if not lost.size:
            return None
        self._equal(cell[lost], key[lost])
        return Conflict(lost, self.last_write[cell[lost]], "store")

    # -- asynchronous copies -------------------------------------------------------------------------------------------

    def begin_copy(self, cell, who, time):
        """A copy begins; returns the `Conflict`s with earlier accesses, and with other lanes of the same one."""
        self.written[cell] = self.copies = True
        writes, reads = self.store_conflicts(cell, who)
        key = ((time | UNDER_WAY) << THREAD_BITS) | who
        self.last_write[cell] = key
        lost = np.flatnonzero(self.last_write[cell] != key)
        same = [Conflict(lost, self.last_write[cell[lost]], "store")] if lost.size else []
        return [*writes, *reads, *same]

    def land_copy(self, cell, who, time):
        """The thread that began a copy has waited for it: now it is a write as any other."""
        self.last_write[cell] = (time << THREAD_BITS) | who
        if self.known is not None:
            self.known[cell] = True

    # -- conflicts -----------------------------------------------------------------------------------------------------

    def _equal(self, cell, key):
        if self.equal_writes is None:
            self.equal_writes = Latest(self.last_write.size, self.groups)
        self.equal_writes.add(cell, key)

    def _write_conflicts(self, cell, who):
        conflicts = [self._conflict(self.last_write, cell, who, "store")]
        if self.equal_writes is not None:
            conflicts += [self._conflict(keys, cell, who, "store") for keys in self.equal_writes.keys]
        return [c for c in conflicts if c is not None]

    def _conflict(self, keys, cell, who, earlier):
        found = keys[cell]
        other = (found & THREAD) != who
        if self.copies:  # which their own threads have to wait for too
            other |= found >= UNDER_WAY_KEYS
        hot = np.flatnonzero((found != 0) & other)
        if not hot.size:
            return None
        found = found[hot]
        loose = self.order.unordered(found >> THREAD_BITS, found & THREAD, who[hot])
        if self.copies:
            loose |= found >= UNDER_WAY_KEYS
        return Conflict(hot[loose], found[loose], earlier) if loose.any() else None

    # -- reads ---------------------------------------------------------------------------------------------------------

    def _remember(self, cell, who, time):
        """Most reads are never asked for: a barrier makes them harmless before anyone writes."""
        self._log.append((cell, who, time))
        self._logged += cell.size
        if self._logged > LOG_LANES:
            self.flush()

    def forget(self):
        """All threads have passed a barrier: what they did before it cannot race any more."""
        self._log.clear()
        self._logged = 0
        self.equal_writes = None

    def flush(self):
        """Take the logged reads into account."""
        log, self._log, self._logged = self._log, [], 0
        if log and self.last_reads is None:
            self.last_reads = Latest(self.last_write.size, self.groups)
        for cell, who, time in log:
            self.last_reads.add(cell, (time << THREAD_BITS) | who)


class Latest:
    """Of the accesses to each cell the last one, and the last ones by other threads: of its smallest group, of each
    larger group but not the one before, and of none of its groups.

    No more are needed where only whole groups synchronise: if an access that is not kept could race with a later one,
    so could one that is.
    """

    def __init__(self, count, groups):
        self.groups = groups
        self.keys = [np.zeros(count, np.int64) for _ in range(len(groups) + 2)]

    def add(self, cell, key):
        """Accesses at once, none earlier than those before."""
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

    def _apart(self, first, second):
        """0 for the same thread, 1 for two of the smallest group ..."""
        first, second = first & THREAD, second & THREAD
        result = (first != second).astype(np.int64)
        for group_of in self.groups:
            result += group_of(first) != group_of(second)
        return result


def shifted(keys, shifts):
    """Keys for each of several blocks, one after another; ``shifts``: what to add to the numbers of the threads."""
    return np.where(keys != 0, keys + shifts[:, None], 0).ravel()


def _alike(known, size):
    """True if all bytes of each cell are known, or none of them."""
    cells = known.reshape(-1, size)
    return bool((cells == cells[:, :1]).all())
