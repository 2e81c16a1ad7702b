"""The scheduler: divergence, reconvergence and barriers of one batch of blocks.

A lowered kernel is a set of basic blocks. All lanes start together. When they diverge, one group waits at each block,
and the group that is furthest behind runs. In that order the body of a loop comes before its header, and the header
before the exit, so that groups reconverge wherever they can. A barrier holds lanes until all that it needs have
arrived.
"""

import functools
from typing import Any

import numpy as np

from warpstep.limits import GROUP
from warpstep.machine.progress import Progress

#: The number of a named barrier stands above its count of threads.
NAMED_AT, NAMED_COUNT = 16, (1 << 16) - 1
#: Pc of a finished kernel.
DONE = -1


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
    loops : compiler.loops.Loops
    live : list of int
        For each basic block, the bit set of variables that are live at its start.
    alive : mask or None
        The lanes that run this function; None means all.

    Attributes
    ----------
    waiting : bool
        True if a lane that has not returned is outside of the running group.
    parked : dict
        {label: lanes} that wait until the others cannot go on.
    releases : int
        Barriers passed so far.
    yield_to : mask or None
        The lanes to run next instead of the running ones.
    """

    def __init__(self, batch, order, live, loops, alive):
        self.batch = batch
        self.order = order
        self.live = live
        self.alive = alive
        self.pending = {}
        self.parked = {}
        self.held = {}
        self.waiting = False
        self.releases = 0
        self.yield_to: Any = None
        self.tick = Progress(self, loops).tick

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
        if self.yield_to is not None:
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

    def runnable(self):
        """The lanes that can run instead of the running ones."""
        groups = (*self.pending.values(), *self.parked.values(), *map(self._complete, self.held.values()))
        return functools.reduce(np.logical_or, groups, np.zeros(self.batch.shape, bool))

    def _park(self):
        """Park all lanes but those to run next, until these cannot go on."""
        others, self.yield_to = self.yield_to, None
        waiting = [*self.pending.items(), *self.parked.items()]
        self.pending, self.parked = {}, {}
        for at, lanes in waiting:
            for group, part in ((self.pending, lanes & others), (self.parked, lanes & ~others)):
                if part.any():
                    group[at] = part if at not in group else group[at] | part

    # -- barriers ------------------------------------------------------------------------------------------------------

    def barrier(self, pc, mask, kind, site, members=None):
        """Wait at a barrier until all lanes that it needs have arrived, then go on at ``pc``.

        kind is "block", "warp" (``members``: each lane's mask as bits), "cluster", "grid", "group" (of four warps),
        "named" (``members``: number and count of threads) or "phase" (``members``: keys of `Barriers`). No barrier
        needs lanes that have returned.
        """
        shape = self.batch.shape
        lanes = np.broadcast_to(True if mask is None else mask, shape)
        held = Held(kind, lanes, members, site)
        # Lanes of a named barrier, or of a cluster's, may wait for it at several places, and pass it together.
        alone = kind not in ("named", "cluster") or all(other.kind != kind for other in self.held.values())
        if alone and self._complete(held).sum() == lanes.sum():
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
        """The held lanes for which all have arrived that their barrier needs."""
        if held.kind == "phase":
            return self.batch.memory.barriers.passed(held.named, held.lanes)
        if held.kind == "named":
            return held.lanes & (self._arrived(held) >= held.named & NAMED_COUNT)
        alive = np.broadcast_to(True if self.alive is None else self.alive, self.batch.shape)
        if held.kind == "warp":
            missing = held.named & self.batch.warp_bits(alive) & ~self.batch.warp_bits(held.lanes)
            return held.lanes & (missing == 0)
        missing = alive & ~held.lanes
        if held.kind == "group":
            return held.lanes & ~self._in_groups(missing)
        if held.kind == "grid":
            return held.lanes & (not missing.any())
        if held.kind == "cluster":
            for other in self.held.values():
                missing &= ~other.lanes if other.kind == "cluster" else True
        missing = missing.any(axis=1)
        if held.kind == "cluster":
            missing = self.batch.in_clusters(missing)
        return held.lanes & ~missing[:, None]

    def _in_groups(self, lanes):
        """Mask the lanes in whose group of four warps is one of ``lanes``."""
        missing = -lanes.shape[1] % GROUP
        padded = np.pad(lanes, ((0, 0), (0, missing))).reshape(lanes.shape[0], -1, GROUP)
        return np.repeat(padded.any(axis=2), GROUP, axis=1)[:, : lanes.shape[1]]

    def _arrived(self, held):
        """The threads of a block that wait at the named barrier of each lane."""
        waiting = [other for at, other in self.held.items() if other.kind == "named" and other is not held]
        groups = [(held.lanes, held.named), *((other.lanes, other.named) for other in waiting)]
        count = np.zeros(self.batch.shape, np.int64)
        for number in np.unique(held.named[held.lanes] >> NAMED_AT):
            here: Any = sum((lanes & (named >> NAMED_AT == number)).sum(axis=1) for lanes, named in groups)
            count = np.where(held.named >> NAMED_AT == number, here[:, None], count)
        return count

    def _release(self):
        """Release the lanes whose barrier is complete. False if there are none."""
        released = False
        for pc, held, complete in [(pc, held, self._complete(held)) for pc, held in self.held.items()]:
            if not complete.any():
                continue
            released = True
            self.releases += 1
            self.passed(held, complete)
            self._add(pc, complete)
            rest = held.lanes & ~complete
            if rest.any():
                self.held[pc] = Held(held.kind, rest, held.named, held.site)
            else:
                del self.held[pc]
        return released
