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
    group_of : function
        The group of threads, by number: of the readers of a cell, one of another group is kept too. Warps for shared
        memory, blocks for global memory.
    known : bool ndarray or None
        The bytes that hold something before the launch; None for all.
    races : bool
        False if the kernel writes nothing here: then nobody can race.
    """

    def __init__(self, nbytes, size, order, group_of, known=None, races=True):
        #: Where the memory begins, for memory that has an address.
        self.address = 0
        self.size = size
        self.order = order
        self.group_of = group_of
        self.races = races
        count = -(-nbytes // size)
        self.known = None if known is None else _by_cell(known, count, size)
        self.read = np.zeros(count, bool)
        self.written = np.zeros(count, bool)
        self.last_write = np.zeros(count, np.int64)
        #: The last read, the last by another thread of its group, and the last by another group: keys.
        self.last_reads = None
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
        if self.last_reads is not None:
            self.last_reads = [np.repeat(r, times) for r in self.last_reads]
        self.size = size

    def repeat(self, shifts):
        """The same shadow side by side for several blocks; ``shifts``: what to add to the numbers of the threads."""
        self.flush()
        for name in ("known", "read", "written"):
            setattr(self, name, np.tile(getattr(self, name), shifts.size))
        self.last_write = _shifted(self.last_write, shifts)
        if self.last_reads is not None:
            self.last_reads = [_shifted(keys, shifts) for keys in self.last_reads]

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
        """A plain read; returns the `Conflict` with earlier writes or None."""
        self.read[cell] = True
        if not self.races:
            return None
        conflict = self._conflict(self.last_write, cell, who, "store")
        self._remember(cell, who, time)
        return conflict

    def atomic(self, cell, who, time):
        """An atomic operation: it races with plain writes only, so to later accesses it is a read."""
        self.written[cell] = True
        if self.known is not None:
            self.known[cell] = True
        return self.load(cell, who, time)

    def store_conflicts(self, cell, who):
        """Before a plain write: (conflict with earlier writes, conflicts with earlier reads); None where there is
        none."""
        if not self.races:
            return None, ()
        self.flush()
        reads = [self._conflict(keys, cell, who, "load") for keys in self.last_reads or ()]
        return self._conflict(self.last_write, cell, who, "store"), [c for c in reads if c is not None]

    def store(self, cell, who, time):
        """A plain write; returns the lanes whose cell another lane of the same access wrote too, after them."""
        self.written[cell] = True
        if self.known is not None:
            self.known[cell] = True
        if not self.races:
            return None
        key = (time << THREAD_BITS) | who
        self.last_write[cell] = key
        lost = np.flatnonzero(self.last_write[cell] != key)
        return Conflict(lost, self.last_write[cell[lost]], "store") if lost.size else None

    def _conflict(self, keys, cell, who, earlier):
        found = keys[cell]
        hot = np.flatnonzero((found != 0) & ((found & THREAD) != who))
        if not hot.size:
            return None
        found = found[hot]
        loose = self.order.unordered(found >> THREAD_BITS, found & THREAD, who[hot])
        return Conflict(hot[loose], found[loose], earlier) if loose.any() else None

    # -- reads ---------------------------------------------------------------------------------------------------------

    def _remember(self, cell, who, time):
        """Most reads are never asked for: a barrier makes them harmless before anyone writes."""
        self._log.append((cell, who, time))
        self._logged += cell.size
        if self._logged > LOG_LANES:
            self.flush()

    def forget_reads(self):
        """All threads have passed a barrier: what was read before it cannot race any more."""
        self._log.clear()
        self._logged = 0

    def flush(self):
        """Take the logged reads into account."""
        log, self._log, self._logged = self._log, [], 0
        for cell, who, time in log:
            self._read(cell, who, (time << THREAD_BITS) | who)

    def _read(self, cell, who, key):
        if self.last_reads is None:
            self.last_reads = [np.zeros(self.last_write.size, np.int64) for _ in range(3)]
        last, beside, far = self.last_reads
        old = last[cell]
        at = np.flatnonzero((old != 0) & ((old & THREAD) != who))
        if at.size:
            where, mine, before, other = cell[at], who[at], old[at], far[cell[at]]
            near = self._together(before & THREAD, mine)
            fits = (other != 0) & self._together(other & THREAD, mine) & ((other & THREAD) != mine)
            beside[where] = np.where(near, before, np.where(fits, other, 0))
            far[where] = np.where(near, other, before)
        last[cell] = key
        winner = last[cell]
        at = np.flatnonzero(winner != key)
        if at.size:
            near = self._together(winner[at] & THREAD, who[at])
            beside[cell[at[near]]] = key[at[near]]
            far[cell[at[~near]]] = key[at[~near]]

    def _together(self, first, second):
        return self.group_of(first) == self.group_of(second)


def _shifted(keys, shifts):
    return np.where(keys != 0, keys + shifts[:, None], 0).ravel()


def _by_cell(known, count, size):
    """Truth by byte to truth by cell: a cell counts as written if any byte of it is."""
    padded = np.zeros(count * size, bool)
    padded[: known.size] = known
    return padded.reshape(count, size).any(axis=1)
