"""Loops that never end, and loops that wait for other lanes.

A loop is watched for some back edges at a time. It can never end by itself

- once all that the conditions of its exits depend on is as it was a turn or several before, or
- once its whole state is, and with it all memory that it has changed.

Nor does it end in time if it certainly goes round more often than the limit. Then its lanes wait until others change
memory, and if no other lanes can run, the launch fails.
"""

import time
from typing import Any, NamedTuple

import numpy as np

from warpstep.machine.memory import UNWATCHED, WATCHED, WATCHED_EXACTLY, Either, RecordRef, View, overlap

#: Back edges between two watches; fewer in a trace, and if other lanes wait: the loop may be waiting for them.
CHECK_INTERVAL = 4096
SHORT_INTERVAL = 64
#: Fewer still while lanes are parked that wait for others: they may be waiting for this one.
PARKED_INTERVAL = 16
#: Turns of the loops of a trace until a rehearsal of the launch, which finds sooner whether it ends.
REHEARSAL_TURNS = 1 << 17
#: Seconds until the first forecast; each takes about a millisecond, and the next one waits twice as long.
FORECAST_DELAY = 0.1
#: Back edges of the shortest watch: some lanes may leave the loop at the first.
MIN_WIDTH = 2


class Switch(Exception):
    """Raised when the loops of a batch have taken as many turns as its ``turns_to_switch``."""


class Progress:
    """The loops of one run of a lowered function.

    Parameters
    ----------
    scheduler : scheduler.Scheduler
    loops : compiler.loops.Loops
        Tells what the exits of a loop depend on.
    """

    def __init__(self, scheduler, loops):
        self.scheduler = scheduler
        self.batch = scheduler.batch
        self.memory = scheduler.batch.memory
        self.loops = loops
        self._level = self.memory.watching
        self._turns = 0
        self._patience = CHECK_INTERVAL
        #: The present watch: where it began, back edges left, the first visit of each header, what memory held before.
        self._start = None
        self._left = 0
        self._first = {}
        self._kept = {}
        #: How many back edges at a time, and the headers visited in this watch or the last one.
        self._width = MIN_WIDTH
        self._seen = set()
        #: Lanes that cannot go on before memory changes, and those that have run since all had their turn.
        self._blocked = []
        self._served: Any = False
        self._delay = FORECAST_DELAY
        self._forecast_at = time.perf_counter() + self._delay

    def tick(self, pc, mask, state, site):
        """Watch a back edge to header ``pc``; returns the number of back edges to go on from."""
        if self._turns >= self.batch.turns_to_switch:
            raise Switch
        waiting = self.scheduler.waiting
        releases = self.scheduler.releases if waiting else None
        now = _Visit(self.batch.epoch, self.batch.ticks, releases, mask, state)
        if self._start is None:
            if self._turns > self.batch.turns_allowed:
                self.batch.no_progress(site, mask, f"went round more than {self.batch.loop_limit:,} times")
            if self._turns > REHEARSAL_TURNS and self.batch.launch.rehearse is not None:
                rehearse, self.batch.launch.rehearse = self.batch.launch.rehearse, None
                rehearse()
            if time.perf_counter() > self._forecast_at and (blocked := self._forecast(pc, now)):
                return self._end(pc, now, site, blocked)
            if pc not in self._seen:  # another loop than the last time
                self._width = MIN_WIDTH
            self._seen = set()
            self._left = self._width
            self._begin(pc, now)
            return CHECK_INTERVAL - 1
        self._turns += 1
        self._patience -= 1
        self._left -= 1
        self._seen.add(pc)
        if self.loops.encloses(pc, self._start):
            self._left = self._width
            self._begin(pc, now)
            return CHECK_INTERVAL - 1
        if pc == self._start and not _equal(self._first[pc].mask, now.mask, None):  # some lanes have left
            self._begin(pc, now)
        for inner in [p for p in self._first if self.loops.encloses(pc, p)]:  # they end, and begin anew
            del self._first[inner]
        first = self._first.setdefault(pc, now)
        blocked = None if first is now else self._repeats(pc, first, now)
        if blocked is None and self._left and (self._patience >= 0 or not waiting):
            return CHECK_INTERVAL - 1
        return self._end(pc, now, site, blocked)

    def _begin(self, pc, now):
        self._start, self._first = pc, {pc: now}
        self._seen.add(pc)
        self._kept = self.memory.kept = {}
        self.memory.watching = WATCHED_EXACTLY

    def _end(self, pc, now, site, blocked):
        """End a watch; let other lanes run if the loop waits for them, or may do so while it counts."""
        self._start = None
        others = None
        if blocked is not None:
            self._width = MIN_WIDTH
            rest = [b._replace(lanes=b.lanes & ~blocked.lanes) for b in self._blocked]
            self._blocked = [*(b for b in rest if b.lanes.any()), blocked]
            others = self._elsewhere(now.mask)
            turns = self.batch.launch.turns
            if others is None and not turns.wait(self.batch, self._awaited()):
                if not turns.wait_for_others(self.batch, f"waits at {self.batch.place_of(site)}"):
                    self.batch.no_progress(site, now.mask, blocked.why, waits=True)
            self.batch.launch.waits += 1
        elif self._patience < 0:
            self._patience = CHECK_INTERVAL
            others = self._elsewhere(now.mask)
        self.scheduler.yield_to = others
        self.memory.watching = max(self._level, self.memory.level, WATCHED if self._blocked else UNWATCHED)
        if blocked is not None:
            return CHECK_INTERVAL - 1  # to find soon that they wait still
        turns = self._pause()
        self._turns += turns
        self._patience -= turns
        return CHECK_INTERVAL - turns

    def _pause(self):
        """Widen the watch for long periods; returns the back edges until it begins: it may take few of all."""
        traced = self.batch.traced
        least = SHORT_INTERVAL if self.scheduler.waiting or traced else CHECK_INTERVAL
        if self.scheduler.parked:
            least = PARKED_INTERVAL
        turns = max(least, (1 if traced else 128) * self._width)
        self._width *= 2
        turns = min(turns, CHECK_INTERVAL) if self.scheduler.parked else turns
        return int(min(turns, max(1, self.batch.turns_to_switch - self._turns)))

    # -- one loop ------------------------------------------------------------------------------------------------------

    def _repeats(self, pc, first, now):
        """Say what keeps a loop from ending, from two visits of it; None if it may still end by itself."""
        if first.releases != now.releases or not _equal(first.mask, now.mask, None):
            return None
        control = self.loops.control(pc)
        if not all(_equal(first.state[i], now.state[i], now.mask) for i in control.variables):
            return None
        lanes = np.broadcast_to(True if now.mask is None else now.mask, self.batch.shape)
        read, written = _arrays(control.arrays, now.state), _arrays(control.written, now.state)
        if all(_equal(a, b, now.mask) for a, b in zip(first.state, now.state, strict=True)):
            if first.epoch == now.epoch:
                return _Blocked(
                    lanes, now.epoch, read, [], "went round without any change to its variables or to memory"
                )
            began = first is self._first.get(self._start) and self._kept is self.memory.kept
            if began and first.ticks == now.ticks and self.memory.restored():
                return _Blocked(
                    lanes,
                    now.epoch,
                    None,
                    None,
                    "went round without any change to its variables or to memory, from some turns to the next",
                )
        if self.memory.changed(first.epoch, read) or overlap(read, written):
            return None
        if written is not None:
            written += self.memory.changes(first.epoch)
        return _Blocked(
            lanes, now.epoch, read, written, "went round without any change to what its condition depends on"
        )

    def _forecast(self, pc, now):
        """Tell if a loop certainly goes round more often than the limit."""
        began, limit = time.perf_counter(), self.batch.loop_limit
        outlasts = self.loops.outlasts(pc, limit, now.state, now.mask, self.memory)
        self._delay *= 2
        self._forecast_at = time.perf_counter() + max(self._delay, 100 * (time.perf_counter() - began))
        if not outlasts:
            return None
        lanes = np.broadcast_to(True if now.mask is None else now.mask, self.batch.shape)
        read = _arrays(self.loops.control(pc).arrays, now.state)
        return _Blocked(lanes, now.epoch, read, None, f"will go round more than {limit:,} times")

    # -- other lanes ---------------------------------------------------------------------------------------------------

    def _elsewhere(self, mask):
        """Choose the lanes to run next instead of the running ones; None if none can.

        Those that wait for a change of memory are not chosen before it, and every other one is chosen once before one
        is chosen again. Other warps go first, so that a warp stays together; then the other lanes of the same warps,
        for they may hold the lock that these spin on.
        """
        if not self.scheduler.waiting:
            return None
        self._blocked = [b for b in self._blocked if not self.memory.changed(b.epoch, b.read)]
        mine = np.broadcast_to(True if mask is None else mask, self.batch.shape)
        runnable = self.scheduler.runnable() & ~mine
        for blocked in self._blocked:
            if blocked.written == []:
                runnable &= ~blocked.lanes
        if not runnable.any() or self._deadlocked(runnable):
            return None
        self._served = self._served | mine
        far = self.batch.warp_bits(mine) == 0
        for choice in (runnable & far & ~self._served, runnable & ~self._served):
            if choice.any():
                return choice
        self._served = mine
        choice = runnable & far
        return choice if choice.any() else runnable

    def _awaited(self):
        """The buffers that lanes wait for; None if they may wait for any memory."""
        read = [b.read for b in self._blocked]
        return None if any(buffers is None for buffers in read) else [items for buffers in read for items in buffers]

    def _deadlocked(self, runnable):
        """True if all lanes that can run wait for memory that none of them writes while it waits."""
        for blocked in self._blocked:
            runnable = runnable & ~blocked.lanes
        return not runnable.any() and not any(overlap(a.read, b.written) for a in self._blocked for b in self._blocked)


class _Blocked(NamedTuple):
    """Lanes in a loop that does not end before one of the buffers that it has read changes.

    While they wait they may write to ``written``. Either is None if it may be any memory.
    """

    lanes: np.ndarray
    epoch: int
    read: list | None
    written: list | None
    why: str


class _Visit(NamedTuple):
    """The state of a loop at a back edge.

    ``releases`` are the barriers passed so far, if other lanes wait, ``ticks`` the reads of the clock.
    """

    epoch: int
    ticks: int
    releases: int | None
    mask: Any
    state: tuple


def _equal(a, b, mask):
    """True if two values are the same, bit by bit, in the lanes of a mask."""
    if a is b:
        return True
    if isinstance(a, np.generic | np.ndarray) and isinstance(b, np.generic | np.ndarray):
        if a.dtype != b.dtype or mask is None and a.shape != b.shape:
            return False
        if a.dtype.kind == "f":
            a, b = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
        differ = a != b
        return not np.any(differ if mask is None else differ & mask)
    if a.__class__ is not b.__class__:
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_equal(x, y, mask) for x, y in zip(a, b, strict=True))
    if isinstance(a, View):
        return a.items is b.items and a.dtype == b.dtype and _equal(_window(a), _window(b), mask)
    if isinstance(a, Either | RecordRef):
        return all(_equal(getattr(a, name), getattr(b, name), mask) for name in a.__slots__)
    return isinstance(a, int | str | np.dtype) and a == b


def _window(view):
    return view.base, view.shape, view.strides


def _arrays(positions, state):
    """The buffers of the arrays at these positions in a state; None if there are no positions."""
    return None if positions is None else [items for i in positions for items in buffers_of(state[i])]


def buffers_of(value):
    """The memory of an array, of all arrays of a tuple, or of the array of a record."""
    if isinstance(value, Either):
        return buffers_of(value.first) + buffers_of(value.second)
    if isinstance(value, tuple):
        return [items for part in value for items in buffers_of(part)]
    if isinstance(value, RecordRef):
        return buffers_of(value.view)
    return [value.items] if isinstance(value, View) else []
