"""The happens-before order of a traced launch: barriers, warp barriers, and release and acquire by atomics.

Time counts accesses: every access of all running lanes is one tick. An access at time t is ordered before the present
one of another thread if a synchronisation of both threads came after t. A synchronisation is stored as the first tick
after it.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from warpstep.integers import ceil_div
from warpstep.limits import WARP

#: A time after every access.
NOW = np.iinfo(np.int64).max


class Order:
    """Synchronisations of one launch.

    Parameters
    ----------
    threads : int
        Threads in a block.
    fences : bool
        True if the kernel has memory fences: only then can an atomic release anything.
    partial_warps : bool
        True if parts of warps may synchronise.

    Blocks are numbered in the order of the trace, and a thread is ``block * threads + thread``.
    """

    def __init__(self, threads, fences, partial_warps):
        self.threads = threads
        #: False if only whole warps, blocks and grids synchronise.
        self.by_thread = fences or partial_warps
        self.block_time = np.ones(0, np.int64)
        self.grid_time = 1
        self.fences = fences
        self.fenced_yet = False
        #: For fences: the blocks of a batch, and its ``pair_time`` at the fence.
        self.pair_times = []
        self.ids = np.zeros(0, np.int64)
        #: The atomics so far: place, thread, time, and what the thread had seen at its last fences.
        self.atomics = []
        #: The last two kinds of atomics.
        self._recent: list[np.ndarray] = []
        self._releases = _Releases(threads, self.pair_times)
        self._indexed = 0
        self._seen = {}

    def start_batch(self, ids):
        """``ids``: the blocks of the batch, ascending."""
        self.ids = ids
        if ids[-1] >= self.block_time.size:
            more = max(ids.size, self.block_time.size)
            self.block_time = np.concatenate([self.block_time, np.ones(more, np.int64)])
        self.warp_time = np.ones((ids.size, ceil_div(self.threads, WARP)), np.int64)
        self.pair_time = None
        #: For each thread at its last fence, and at its last fence for the whole device: the time, the last barriers of
        #: its block and its warp, and the index in ``pair_times``.
        self.fenced = np.zeros((2, 4, ids.size, self.threads), np.int64)
        self.pair_times.append((ids, None))

    # -- synchronisation -----------------------------------------------------------------------------------------------

    def block_barrier(self, rows, now):
        """``rows``: the blocks of the batch that pass, as a mask."""
        self.block_time[self.ids[rows]] = now

    def grid_barrier(self, now):
        self.grid_time = now
        self.block_time[:] = now

    def warp_barrier(self, lanes, alive, now):
        """``lanes``, ``alive``: (B, W, 32)."""
        present = lanes.any(axis=2)
        whole = present & (lanes == alive).all(axis=2)
        self.warp_time[whole] = now
        partial = np.nonzero(present & ~whole)
        if not partial[0].size:
            return
        if self.pair_time is None:
            self.pair_time = np.zeros((*self.warp_time.shape, WARP, WARP), np.int64)
        if self.pair_time is self.pair_times[-1][1]:  # a fence keeps it
            self.pair_time = self.pair_time.copy()
        members = lanes[partial]
        known = self.pair_time[partial]
        # All of them now know what one of them knew of a lane.
        joined = np.where(members[:, None, :], known, 0).max(axis=2)
        joined = np.where(members, now, joined)
        self.pair_time[partial] = np.where(members[:, None, :], joined[:, :, None], known)

    def fence(self, lanes, now, whole_device=True):
        """Let the threads ``lanes`` (B, T) fence: later releases publish what they have done and seen so far.

        A fence that is not for the whole device is for the threads of the same block.
        """
        self.fenced_yet = True
        if self.pair_time is not self.pair_times[-1][1]:
            self.pair_times.append((self.ids, self.pair_time))
        block_time = self.block_time[self.ids][:, None]
        warp_time = np.repeat(self.warp_time, WARP, axis=1)[:, : self.threads]
        for scope in self.fenced[: 1 + whole_device]:
            for kept, value in zip(scope, (now, block_time, warp_time, len(self.pair_times) - 1), strict=True):
                kept[lanes] = np.broadcast_to(value, lanes.shape)[lanes]

    def atomic(self, place, tids, now, releases=True):
        """Do atomics of threads ``tids``, in this order: each acquires what earlier ones at its place released.

        ``releases``: False for loads that poll.
        """
        if not self.fenced_yet:
            return
        block, thread = tids // self.threads, tids % self.threads
        row = np.searchsorted(self.ids, block)
        fenced = self.fenced[:, :, row, thread].reshape(8, -1) * releases
        event = np.stack([place, tids, *fenced])
        # The threads of a turn acquire in their order, so that it takes a second turn until all know of all. In a loop
        # that waits nothing changes after that.
        if len(self._recent) == 2 and all(np.array_equal(event, earlier) for earlier in self._recent):
            return
        self._recent = [*self._recent[-1:], event]
        self.atomics.append(np.insert(event, 2, now, axis=0))
        self._seen = {}

    # -- order ---------------------------------------------------------------------------------------------------------

    def unordered(self, times, earlier, later):
        """Mask the unordered pairs of accesses: one by thread ``earlier`` at ``times``, one by thread ``later`` now."""
        loose = self.not_met(times, earlier, later)
        at = np.flatnonzero(loose)
        if at.size and self.fences and self.atomics:
            loose[at] = ~self._released(times[at], earlier[at], later[at])
        return loose

    def not_met(self, times, earlier, later):
        """Mask the pairs of accesses that no barrier orders."""
        blocks = earlier // self.threads, later // self.threads
        same = blocks[0] == blocks[1]
        loose = np.where(same, times >= self.block_time[blocks[1]], times >= self.grid_time)
        loose &= earlier != later
        at = np.flatnonzero(loose & same)
        if at.size:
            loose[at] = ~self._in_warp(times[at], earlier[at], later[at])
        return loose

    def _in_warp(self, times, earlier, later):
        """Mask the pairs of one block that a barrier of their warp orders."""
        first, second = earlier % self.threads, later % self.threads
        row, warp = np.searchsorted(self.ids, later // self.threads), second // WARP
        together = first // WARP == warp
        ordered = times < self.warp_time[row, warp]
        if self.pair_time is not None:
            ordered |= times < self.pair_time[row, warp, first % WARP, second % WARP]
        return together & ordered

    def _released(self, times, earlier, later):
        """Mask the pairs whose earlier thread released after its access, where the later thread acquired that."""
        if self._indexed < len(self.atomics):
            self._releases.add(np.concatenate(self.atomics[self._indexed :], axis=1))
            self._indexed = len(self.atomics)
        result = np.zeros(times.size, bool)
        for thread in np.unique(later).tolist():
            seen = self._seen_by(thread)
            for i in np.flatnonzero(later == thread).tolist():
                result[i] = int(times[i]) < seen.until(int(earlier[i]), self.threads)
        return result

    def missing_fence(self, key, later):
        """Say where a fence is missing before an atomic operation that announces a write, by the looks of it.

        ``key``: of the earlier access. After it, its thread or one that it has met at a barrier of their block has done
        an atomic operation; at that place the thread ``later`` has looked, or one that it has met.

        Returns
        -------
        str
            "behind the write", "behind the barrier", or "" if no fence would help.
        """
        time, writer = key >> 32, key & 0xFFFFFFFF
        block, other = writer // self.threads, later // self.threads
        if not self.atomics or block == other:
            return ""
        place, tids, when = np.concatenate([event[:3] for event in self.atomics], axis=1)
        looked = (tids == later) | ((tids // self.threads == other) & (when < self.block_time[other]))
        last = dict(zip(place[looked].tolist(), np.flatnonzero(looked).tolist(), strict=True))
        before_look = np.arange(place.size) < [last.get(p, -1) for p in place.tolist()]
        raised = before_look & (when > time) & (tids // self.threads == block)
        if (raised & (tids == writer)).any():
            return "behind the write"
        return "behind the barrier" if raised.any() and time < self.block_time[block] else ""

    def _seen_by(self, thread):
        """The knowledge that a thread has acquired until now."""
        block, lane = divmod(thread, self.threads)
        row = int(np.searchsorted(self.ids, block))
        pairs = None if self.pair_time is None else self.pair_time[row, lane // WARP, :, lane % WARP]
        warp_time = int(self.warp_time[row, lane // WARP])
        acquired = self._releases.acquired(thread, NOW, int(self.block_time[block]), warp_time, pairs)
        key = block, *sorted(acquired.items())  # as a rule, threads of a block have acquired the same
        if key not in self._seen:
            self._seen[key] = self._releases.seen(acquired, block)
        return self._seen[key]


class _Seen(NamedTuple):
    """The times before which the accesses of threads, of whole blocks and of whole warps have been seen."""

    by_thread: dict
    by_block: dict
    by_warp: dict

    def until(self, thread, threads):
        block, lane = divmod(thread, threads)
        warp = (block, lane // WARP)
        return max(self.by_thread.get(thread, 0), self.by_block.get(block, 0), self.by_warp.get(warp, 0))

    def add(self, thread, threads, own, block_time, warp_time, pairs):
        block, lane = divmod(thread, threads)
        _raise(self.by_thread, thread, own)
        _raise(self.by_block, block, block_time)
        _raise(self.by_warp, (block, lane // WARP), warp_time)
        if pairs is not None:
            first = thread - lane % WARP
            for other in np.flatnonzero(pairs).tolist():
                _raise(self.by_thread, first + other, int(pairs[other]))


def _raise(times, key, time):
    times[key] = max(times.get(key, 0), time)


class _Releases:
    """The atomics at places with a release, in their order.

    Attributes
    ----------
    atomics : (11, n) int64 ndarray
        Place, thread, time, and what the thread had seen at its last fences, as in `Order.fenced`. Room for more than
        ``count``.
    at_place : dict
        {place: positions of the releases there}.
    by_block, by_warp, by_thread : dict
        {(place): positions of the atomics there} of each block, warp and thread.
    """

    def __init__(self, threads, pair_times):
        self.atomics = np.zeros((11, 64), np.int64)
        self.count = 0
        self.threads = threads
        self.pair_times = pair_times
        self.at_place = {}
        self.by_block, self.by_warp, self.by_thread = {}, {}, {}

    def add(self, atomics):
        """Add atomics; those at places without a release so far acquire nothing."""
        place, tids = atomics[:2]
        fenced = atomics[3] > 0
        atomics = atomics[:, np.isin(place, [*self.at_place, *np.unique(place[fenced]).tolist()])]
        first, self.count = self.count, self.count + atomics.shape[1]
        if self.count > self.atomics.shape[1]:
            more = np.zeros((11, self.count), np.int64)
            self.atomics = np.concatenate([self.atomics, more], axis=1)
        self.atomics[:, first : self.count] = atomics
        place, tids = atomics[:2]
        threads = tids.tolist()
        blocks, warps = (tids // self.threads).tolist(), (tids % self.threads // WARP).tolist()
        fenced = (atomics[3] > 0).tolist()
        for i, (p, thread, block, warp, release) in enumerate(
            zip(place.tolist(), threads, blocks, warps, fenced, strict=True), first
        ):
            if release:
                self.at_place.setdefault(p, []).append(i)
            for index, key in ((self.by_thread, thread), (self.by_warp, (block, warp)), (self.by_block, block)):
                index.setdefault(key, {}).setdefault(p, []).append(i)

    def acquired(self, thread, own, block_time, warp_time, pairs):
        """Map each place to the position of the last atomic there that a thread knows of.

        The thread knows of its own before ``own``, and of those that barriers of its block or its warp have ordered.
        """
        block, lane = divmod(thread, self.threads)
        found = {}
        known = [
            (self.by_thread.get(thread), own),
            (self.by_warp.get((block, lane // WARP)), warp_time),
            (self.by_block.get(block), block_time),
        ]
        if pairs is not None:
            first = thread - lane % WARP
            known += [(self.by_thread.get(first + i), pairs[i]) for i in np.flatnonzero(pairs).tolist()]
        for index, until in known:
            if index is None or until <= 1:  # there is nothing before the first tick
                continue
            end = int(np.searchsorted(self.atomics[2, : self.count], until))
            for place, positions in index.items():
                before = bisect_left(positions, end)
                if before:
                    found[place] = max(found.get(place, -1), positions[before - 1])
        return found

    def seen(self, acquired, block):
        """Collect what was released before these atomics, and what the releasing threads had acquired before.

        ``block``: of the thread that acquires. Threads of other blocks see fences for the whole device only.
        """
        seen, done, todo = _Seen({}, {}, {}), {}, dict(acquired)
        blocks = {block}  # of the threads that have passed the knowledge on
        while todo:
            place, end = todo.popitem()
            releases = self.at_place[place]
            first, last = bisect_left(releases, done.get(place, 0)), bisect_left(releases, end)
            done[place] = max(end, done.get(place, 0))
            for release in releases[first:last]:
                knowledge = self._at_fence(release, blocks)
                if not knowledge[1]:
                    continue
                seen.add(knowledge[0], self.threads, *knowledge[1:])
                if len(self.at_place) > 1:
                    blocks.add(knowledge[0] // self.threads)
                    for other, until in self.acquired(*knowledge).items():
                        if until > max(done.get(other, 0), todo.get(other, 0)):
                            todo[other] = until
        return seen

    def _at_fence(self, atomic, blocks):
        """The knowledge of an atomic's thread at its last fence that is visible to threads of these blocks."""
        _, thread, _, *fences = self.atomics[:, atomic].tolist()
        time, block_time, warp_time, number = fences[:4] if thread // self.threads in blocks else fences[4:]
        ids, pair_time = self.pair_times[number]
        pairs = None
        if pair_time is not None:
            block, lane = divmod(thread, self.threads)
            pairs = pair_time[np.searchsorted(ids, block), lane // WARP, :, lane % WARP]
        return thread, time, block_time, warp_time, pairs
