"""Which lanes run next: divergence, reconvergence and barriers of one batch of blocks.

A lowered kernel is a set of basic blocks. All lanes start together. When they part, the scheduler keeps one group
waiting at each block and always runs the group that is furthest behind, in an order where the body of a loop comes
before its header and its header before its exit: groups that can meet again do. A barrier holds lanes back until all
those it needs have come.
"""

import numpy as np

#: Pc of a finished kernel.
DONE = -1
#: Back edges between two looks at whether a loop still gets anywhere; fewer where other lanes wait, which may be what
#: it waits for.
TICK = 4096
SOON = 64


class Held:
    """Lanes that wait at one barrier; ``named``: for a warp's, the lanes that each lane's mask names, as bits."""

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
    batch : runtime.Batch
    order : list of int
        Rank of each basic block; the waiting group with the lowest rank runs.
    live : list of int
        For each basic block, the bit set of variables that lanes waiting there still need.
    alive : mask or None
        The lanes that run this function; None means all.

    Attributes
    ----------
    waiting : bool
        True if any living lane is somewhere else than the running group.
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
        self._snapshot = None
        self._yield_to = None
        self._stuck = False
        self._stuck_at = None
        self._served = False
        self._patience = TICK

    # -- control flow --------------------------------------------------------------------------------------------------

    def branch(self, condition, if_true, if_false, mask, site):
        """Part the running lanes on a condition that differs by thread."""
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
        """The running lanes jump to ``pc``; returns the group to run: (pc, mask, live variables of those who wait)."""
        if not self.waiting:
            return pc, mask, 0
        self._add(pc, mask)
        return self._pick()

    def leave(self, mask):
        """The running lanes return from the function."""
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
                for at, held in self.held.items():  # a trace goes on as if all had come
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
        """The running lanes reach a barrier and go on at ``pc`` when all lanes that it needs are there.

        kind is "block", "warp" (``members``: the lanes that each lane's mask names, as bits) or "grid". Lanes that have
        returned are needed by none.
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
        """Called when lanes get past the barrier that held them, for those who trace."""

    def _complete(self, held):
        """The held lanes whose whole block or grid has come, or all that their warp mask names."""
        alive = np.broadcast_to(True if self.alive is None else self.alive, self.batch.shape)
        if held.kind == "warp":
            missing = held.named & self.batch.warp_bits(alive) & ~self.batch.warp_bits(held.lanes)
            return held.lanes & (missing == 0)
        missing = alive & ~held.lanes
        if held.kind == "grid":
            return held.lanes & (not missing.any())
        return held.lanes & ~missing.any(axis=1, keepdims=True)

    def _release(self):
        """No group can run: let go the lanes whose barrier is complete. False if there are none."""
        released = False
        for pc, held in list(self.held.items()):
            complete = self._complete(held)
            if not complete.any():
                continue
            released = True
            self.passed(held, complete)
            self._add(pc, complete)
            rest = held.lanes & ~complete
            if rest.any():
                self.held[pc] = Held(held.kind, rest, held.named, held.site)
            else:
                del self.held[pc]
        return released

    # -- loops that get nowhere ----------------------------------------------------------------------------------------

    def tick(self, pc, mask, state, site):
        """Called now and then on the way back to the header ``pc``, with the loop's variables; returns the count of
        back edges to go on from.

        A loop whose variables and memory did not change over one turn will never change by itself: the lanes of other
        warps get a turn, and if there are none the launch is stopped. So is a loop that exceeds the limit of turns.
        """
        if self._turns > self.batch.loop_limit:
            self.batch.no_progress(site, mask, f"went round more than {self.batch.loop_limit:,} times")
        snapshot = (pc, self.batch.epoch, mask, state)
        before, self._snapshot = self._snapshot, snapshot
        if before is None or before[0] != pc:
            self._turns += 1
            return TICK - 1  # look again after the next turn
        self._snapshot = None
        turns = SOON if self.waiting else TICK
        self._turns += turns
        self._patience -= turns
        if _same(before, snapshot):
            self._yield_to = self._runnable_elsewhere(mask, stuck=True)
            if self._yield_to is None:
                self.batch.no_progress(site, mask, "went round without any change to its variables or to memory")
        elif self._patience < 0:
            # It may count while it waits for another warp: now and then the others get a turn all the same.
            self._patience = TICK
            self._yield_to = self._runnable_elsewhere(mask, stuck=False)
        return TICK - turns

    def _runnable_elsewhere(self, mask, stuck):
        """The lanes of the warps to run next instead of the running ones, if any other can go on; else None.

        ``stuck``: the running lanes cannot go on before memory changes. Warps that got stuck since it last did are no
        way out, and every other one gets its turn before one gets a second.
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
        """Hold back all warps that have a spinning lane until the others, those parked before too, have got as far as
        they can."""
        others, self._yield_to = self._yield_to, None
        waiting = [*self.pending.items(), *self.parked.items()]
        self.pending, self.parked = {}, {}
        for at, lanes in waiting:
            for group, part in ((self.pending, lanes & others), (self.parked, lanes & ~others)):
                if part.any():
                    group[at] = part if at not in group else group[at] | part

    def _warps_of(self, mask):
        return self.batch.warp_bits(mask) != 0


def _same(before, after):
    if before[1] != after[1] or not _equal(before[2], after[2]):
        return False
    return all(_equal(a, b) for a, b in zip(before[3], after[3], strict=True))


def _equal(a, b):
    if a is b:
        return True
    if isinstance(a, tuple):
        return all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.generic | np.ndarray) and isinstance(b, np.generic | np.ndarray):
        return np.array_equal(a, b)
    return False
