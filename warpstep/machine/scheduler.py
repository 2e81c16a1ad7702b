"""The scheduler: divergence, reconvergence and barriers of one batch of blocks.

A lowered kernel is a set of basic blocks. All lanes start together. When they diverge, one group waits at each block,
and the group that is furthest behind runs. In that order the body of a loop comes before its header, and the header
before the exit, so that groups reconverge wherever they can. A barrier holds lanes until all that it needs have
arrived.
"""

from typing import Any, NamedTuple

import numpy as np

from warpstep.machine.memory import Either, RecordRef, View

#: Pc of a finished kernel.
DONE = -1
#: Back edges between two checks that a loop makes progress; fewer if other lanes wait: it may be waiting for them.
CHECK_INTERVAL = 4096
SHORT_INTERVAL = 64


class Held:
    """Lanes that wait at one barrier; ``named``: at a warp's, each lane's mask as bits."""

    __slots__ = ("kind", "lanes", "named", "site")

    def __init__(self, kind, lanes, named, site):
        self.kind = kind
        self.lanes = lanes
        self.named = named
        self.site = site


class Scheduler:
    """One run of one lowered function.

    Parameters
    ----------
    batch : batch.Batch
    order : list of int
        Rank of each basic block; the waiting group with the lowest rank runs.
    live : list of int
        For each basic block, the bit set of variables that are live at its start.
    alive : mask or None
        The lanes that run this function; None means all.

    Attributes
    ----------
    waiting : bool
        True if a lane that has not returned is outside of the running group.
    """

    def __init__(self, batch, order, live, alive):
        self.batch = batch
        self.order = order
        self.live = live
        self.alive = alive
        self.pending = {}
        self.parked = {}
        self.held = {}
        self.waiting = False
        self._turns = 0
        #: Back edges still to be watched; how many at a time; at each header the first visit and the last one.
        self._watched = 0
        self._width = 1
        self._first = {}
        self._last = {}
        self._releases = 0
        self._yield_to: Any = None
        self._stuck: Any = False
        self._stuck_at = None
        self._served: Any = False
        self._patience = CHECK_INTERVAL

    # -- control flow --------------------------------------------------------------------------------------------------

    def branch(self, condition, if_true, if_false, mask, site):
        """Split the running lanes by a condition that differs by thread."""
        if mask is None:
            yes, no = condition, None
            if condition.all():
                return self.go(if_true, mask)
            if not condition.any():
                return self.go(if_false, mask)
            no = ~condition
        else:
            yes = mask & condition
            if not yes.any():
                return self.go(if_false, mask)
            no = mask & ~condition
            if not no.any():
                return self.go(if_true, mask)
        self._add(if_true, yes)
        self._add(if_false, no)
        return self._pick()

    def go(self, pc, mask):
        """Jump to ``pc``; returns the group to run: (pc, mask, live variables of the waiting lanes)."""
        if not self.waiting:
            return pc, mask, 0
        self._add(pc, mask)
        return self._pick()

    def leave(self, mask):
        """Return from the function."""
        if not self.waiting:
            return DONE, None, 0
        self.alive = ~mask if self.alive is None else self.alive & ~mask
        return self._pick()

    def _add(self, pc, mask):
        others = self.pending.get(pc)
        self.pending[pc] = mask if others is None else others | mask

    def _pick(self):
        if self._yield_to is not None:
            self._park()
        while not self.pending:
            if self.held and self._release():
                continue
            if self.parked:
                self.pending, self.parked = self.parked, {}
            elif self.held:
                self.batch.barrier_divergence(list(self.held.values()))
                for at, held in self.held.items():  # a trace goes on as if all had arrived
                    self.passed(held, held.lanes)
                    self._add(at, held.lanes)
                self.held = {}
            else:
                self.waiting = False
                return DONE, None, 0
        pc = min(self.pending, key=self.order.__getitem__)
        mask = self.pending.pop(pc)
        if not self.pending and not self.held and not self.parked:
            self.waiting = False
            return pc, self.alive, 0
        self.waiting = True
        live = 0
        for group in (self.pending, self.held, self.parked):
            for at in group:
                live |= self.live[at]
        return pc, mask, live

    # -- barriers ------------------------------------------------------------------------------------------------------

    def barrier(self, pc, mask, kind, site, members=None):
        """Wait at a barrier until all lanes that it needs have arrived, then go on at ``pc``.

        kind is "block", "warp" (``members``: each lane's mask as bits) or "grid". No barrier needs lanes that have
        returned.
        """
        shape = self.batch.shape
        lanes = np.broadcast_to(True if mask is None else mask, shape)
        held = Held(kind, lanes, members, site)
        if self._complete(held).sum() == lanes.sum():
            self.passed(held, lanes)
            return self.go(pc, mask)
        if pc in self.held:
            earlier = self.held[pc]
            named = None if members is None else np.where(lanes, members, earlier.named)
            held = Held(kind, earlier.lanes | lanes, named, site)
        self.held[pc] = held
        self.waiting = True
        return self._pick()

    def passed(self, held, lanes):
        """Let lanes pass the barrier that held them. Fail at a grid's where thread 0 of a block has returned.

        That thread tells the grid that its block has arrived.
        """
        if held.kind == "grid" and self.alive is not None:
            alive = np.broadcast_to(self.alive, self.batch.shape)
            if not alive[:, 0].all():
                self.batch.returned_before_grid_sync(held.site, ~alive & ~alive[:, :1])

    def _complete(self, held):
        """The held lanes whose whole block or grid has arrived, or all lanes of their warp mask."""
        alive = np.broadcast_to(True if self.alive is None else self.alive, self.batch.shape)
        if held.kind == "warp":
            missing = held.named & self.batch.warp_bits(alive) & ~self.batch.warp_bits(held.lanes)
            return held.lanes & (missing == 0)
        missing = alive & ~held.lanes
        if held.kind == "grid":
            return held.lanes & (not missing.any())
        return held.lanes & ~missing.any(axis=1, keepdims=True)

    def _release(self):
        """Release the lanes whose barrier is complete. False if there are none."""
        released = False
        for pc, held in list(self.held.items()):
            complete = self._complete(held)
            if not complete.any():
                continue
            released = True
            self._releases += 1
            self.passed(held, complete)
            self._add(pc, complete)
            rest = held.lanes & ~complete
            if rest.any():
                self.held[pc] = Held(held.kind, rest, held.named, held.site)
            else:
                del self.held[pc]
        return released

    # -- loops without progress ----------------------------------------------------------------------------------------

    def tick(self, pc, mask, state, site):
        """Watch a loop with header ``pc`` for progress, some back edges at a time; returns the count to go on from.

        A loop that comes back to the same values of its variables, while no store changed memory, will go on like that
        for ever: it yields to other warps, and if there are none the launch fails. It also fails beyond the limit of
        iterations.
        """
        now = _Visit(self._turns, (self.batch.epoch, self._releases), mask, state, site)
        if not self._watched:
            if self._turns > self.batch.loop_limit:
                self.batch.no_progress(site, mask, f"went round more than {self.batch.loop_limit:,} times")
            if pc not in self._first:  # another loop than the last time
                self._width = 1
            self._watched = self._width
            self._first, self._last = {pc: now}, {pc: now}
            self.batch.memory.watched = True
            return CHECK_INTERVAL - 1
        self._turns += 1
        self._patience -= 1
        self._watched -= 1
        first, self._last[pc] = self._first.setdefault(pc, now), now
        stuck = first is not now and first.same(now)
        if self._watched and not stuck and (self._patience >= 0 or not self.waiting):
            return CHECK_INTERVAL - 1
        self.batch.memory.watched = False
        self._watched = 0
        turns = self._pause()
        self._turns += turns
        self._patience -= turns
        if stuck:
            self._width = 1
            self._yield_to = self._runnable_elsewhere(mask, stuck=True)
            if self._yield_to is None:
                # The outermost loop goes round; those inside end and begin again.
                outer = max((p for p, v in self._last.items() if v.turn >= first.turn), key=self.order.__getitem__)
                site = self._last[outer].site
                self.batch.no_progress(site, mask, "went round without any change to its variables or to memory")
        elif self._patience < 0:
            # It may be spinning on another warp while it counts, so yield periodically.
            self._patience = CHECK_INTERVAL
            self._yield_to = self._runnable_elsewhere(mask, stuck=False)
        return CHECK_INTERVAL - turns

    def _pause(self):
        """Widen the watch for long periods; returns the back edges until it begins: it may take few of all."""
        traced = self.batch.traced
        turns = max(SHORT_INTERVAL if self.waiting or traced else CHECK_INTERVAL, (4 if traced else 128) * self._width)
        self._width *= 2
        return turns

    def _runnable_elsewhere(self, mask, stuck):
        """Choose the lanes of other warps to run next; None if none can.

        ``stuck``: the running lanes cannot go on before memory changes. Warps that got stuck since the last change are
        not chosen, and every other one is chosen once before one is chosen again.
        """
        if not self.waiting:
            return None
        mine = self._warps_of(mask)
        if self._stuck_at != self.batch.epoch:
            self._stuck, self._stuck_at = False, self.batch.epoch
        if stuck:
            self._stuck = self._stuck | mine
        closed = mine | self._stuck
        groups = (*self.pending.values(), *self.parked.values(), *map(self._complete, self.held.values()))
        if not any((lanes & ~closed).any() for lanes in groups):
            return None
        self._served = self._served | mine
        if not any((lanes & ~closed & ~self._served).any() for lanes in groups):
            self._served = mine
        return ~(closed | self._served)

    def _park(self):
        """Park all warps with a spinning lane until the others, also those parked before, cannot go on."""
        others, self._yield_to = self._yield_to, None
        waiting = [*self.pending.items(), *self.parked.items()]
        self.pending, self.parked = {}, {}
        for at, lanes in waiting:
            for group, part in ((self.pending, lanes & others), (self.parked, lanes & ~others)):
                if part.any():
                    group[at] = part if at not in group else group[at] | part

    def _warps_of(self, mask):
        return self.batch.warp_bits(mask) != 0


class _Visit(NamedTuple):
    """The state of a loop at a back edge."""

    turn: int
    epoch: tuple
    mask: Any
    state: tuple
    site: int

    def same(self, other):
        if self.epoch != other.epoch or not _equal(self.mask, other.mask, None):
            return False
        return all(_equal(a, b, self.mask) for a, b in zip(self.state, other.state, strict=True))


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
