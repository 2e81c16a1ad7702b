"""The happens-before order of a traced launch: barriers, warp barriers, and release and acquire by atomics.

Time counts accesses: every access of all running lanes is one tick. An access at time t is ordered before the present
one of another thread if a synchronisation of both threads came after t. A synchronisation is stored as the first tick
after it.
"""

from bisect import bisect_left
from typing import Any, NamedTuple

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
    cluster : int
        Blocks of a cluster.

    Blocks are numbered in the order of the trace, and a thread is ``block * threads + thread``.
    """

    def __init__(self, threads, fences, partial_warps, cluster=1):
        self.threads = threads
        self.cluster = cluster
        #: False if only whole warps, blocks and grids synchronise.
        self.by_thread = fences or partial_warps
        self.block_time = np.ones(0, np.int64)
        self.grid_time = 1
        self.fences = fences
        self.fenced_yet = False
        #: For fences: the blocks of a batch, and its ``pair_time`` at the fence.
        self.pair_times = []
        #: The batch that runs: a suspended one takes its own along.
        self.present = _Present(np.zeros(0, np.int64), threads, None)
        #: The atomics so far: place, thread, time, and what the thread had seen at its last fences.
        self.atomics = []
        #: The last two kinds of atomics.
        self._recent: list[np.ndarray] = []
        self._releases = _Releases(threads, self.pair_times)
        self._indexed = 0
        self._seen = {}

    def start_batch(self, ids):
        """``ids``: the blocks of the batch, ascending."""
        if ids[-1] >= self.block_time.size:
            more = max(ids.size, self.block_time.size)
            self.block_time = np.concatenate([self.block_time, np.ones(more, np.int64)])
        self.pair_times.append((ids, None))
        self.present = _Present(ids, self.threads, len(self.pair_times) - 1)

    # -- synchronisation -----------------------------------------------------------------------------------------------

    def block_barrier(self, rows, now):
        """``rows``: the blocks of the batch that pass, as a mask."""
        self.block_time[self.present.ids[rows]] = now

    def cluster_barrier(self, rows, now):
        """``rows``: the blocks of the batch that pass, whole clusters, as a mask."""
        self.block_barrier(rows, now)
        self.seen_by()[rows] = now

    def grid_barrier(self, now):
        self.grid_time = now
        self.block_time[:] = now

    def warp_barrier(self, lanes, alive, now):
        """``lanes``, ``alive``: (B, W, 32)."""
        if self.present.seen is not None:  # the lanes pass on what they know of other warps
            for row, warp in zip(*np.nonzero(lanes.any(axis=2)), strict=True):
                self.meet(row, warp * WARP + np.flatnonzero(lanes[row, warp]), now)
        present = lanes.any(axis=2)
        whole = present & (lanes == alive).all(axis=2)
        batch = self.present
        batch.warp_time[whole] = now
        partial = np.nonzero(present & ~whole)
        if not partial[0].size:
            return
        if batch.pair_time is None:
            batch.pair_time = np.zeros((*batch.warp_time.shape, WARP, WARP), np.int64)
        elif batch.number is not None:  # a fence keeps it
            batch.pair_time = batch.pair_time.copy()
        batch.number = None
        members = lanes[partial]
        known = batch.pair_time[partial]
        # All of them now know what one of them knew of a lane.
        joined = np.where(members[:, None, :], known, 0).max(axis=2)
        joined = np.where(members, now, joined)
        batch.pair_time[partial] = np.where(members[:, None, :], joined[:, :, None], known)

    # -- barriers of some threads of a block ---------------------------------------------------------------------------

    def seen_by(self):
        """``seen[row, later, earlier]``: before when the later thread knows what the earlier one did; the threads of a
        cluster's blocks follow one another along the last axis.
        """
        batch = self.present
        if batch.seen is None:
            batch.seen = np.zeros((batch.ids.size, self.threads, self.cluster * self.threads), np.int32)
        return batch.seen

    def column(self, row):
        """Find where the threads of a block begin along the last axis of `seen_by`."""
        return row % self.cluster * self.threads

    def _knowledge(self, row, lanes, now):
        """What any of some threads of a block knows: times, as along the last axis of `seen_by`."""
        batch, seen = self.present, self.seen_by()
        known = seen[row, lanes].max(axis=0)
        own = known[self.column(row) : self.column(row) + self.threads]
        own[lanes] = now
        for warp in np.unique(lanes // WARP).tolist():
            first = warp * WARP
            part = own[first : first + WARP]
            np.maximum(part, batch.warp_time[row, warp], out=part)
            if batch.pair_time is not None:
                inside = lanes[lanes // WARP == warp] - first
                times = batch.pair_time[row, warp][:, inside].max(axis=1)
                np.maximum(part, times[: part.size], out=part)
        return known

    def arrive(self, keys, lanes, now):
        """Let threads arrive at barriers, by their keys (B, T)."""
        for row in np.flatnonzero(lanes.any(axis=1)).tolist():
            threads = np.flatnonzero(lanes[row])
            for key in np.unique(keys[row, threads]).tolist():
                known = self._knowledge(row, threads[keys[row, threads] == key], now)
                self._add(self.present.coming, key, known)

    def bring(self, key, row, lane, now):
        """Let a copy that a thread has begun arrive at a barrier."""
        known = np.zeros(self.cluster * self.threads, np.int32)
        known[self.column(row) + lane] = now
        self._add(self.present.coming, key, known)

    def _add(self, phases, key, known):
        phases[key] = np.maximum(phases[key], known) if key in phases else known

    def end_phases(self, keys):
        """End the phases of barriers: what their arrivals knew is known to all that wait for them."""
        for key in keys:
            known = self.present.coming.pop(key, None)
            if known is not None:
                self._add(self.present.ended, key, known)

    def acquire(self, keys, lanes):
        """Let threads pass barriers, by their keys (B, T)."""
        seen = self.seen_by()
        for row in np.flatnonzero(lanes.any(axis=1)).tolist():
            threads = np.flatnonzero(lanes[row])
            for key in np.unique(keys[row, threads]).tolist():
                known = self.present.ended.get(key)
                if known is not None:
                    at = threads[keys[row, threads] == key]
                    seen[row, at] = np.maximum(seen[row, at], known)

    def meet(self, row, lanes, now):
        """Let some threads of a block meet: each knows what all of them knew."""
        seen = self.seen_by()
        seen[row, lanes] = np.maximum(seen[row, lanes], self._knowledge(row, lanes, now))

    def fence(self, lanes, now, whole_device=True):
        """Let the threads ``lanes`` (B, T) fence: later releases publish what they have done and seen so far.

        A fence that is not for the whole device is for the threads of the same block.
        """
        self.fenced_yet = True
        batch = self.present
        if batch.number is None:
            batch.number = len(self.pair_times)
            self.pair_times.append((batch.ids, batch.pair_time))
        row, thread = np.nonzero(lanes)
        values = now, self.block_time[batch.ids[row]], batch.warp_time[row, thread // WARP], batch.number
        for scope in batch.fenced[: 1 + whole_device]:
            for kept, value in zip(scope, values, strict=True):
                kept[row, thread] = value

    def atomic(self, place, tids, now, releases=True):
        """Do atomics of threads ``tids``, in this order: each acquires what earlier ones at its place released.

        ``releases``: False for loads that poll.
        """
        if not self.fenced_yet:
            return
        block, thread = tids // self.threads, tids % self.threads
        row = np.searchsorted(self.present.ids, block)
        fenced = self.present.fenced[:, :, row, thread].reshape(8, -1) * releases
        event = np.stack([place, tids, *fenced])
        if releases and self.present.seen is not None:
            event = np.concatenate([event, *self._passed_by_barriers(event, row, thread)], axis=1)
            tids = event[1]
        # The threads of a turn acquire in their order, so that it takes a second turn until all know of all. In a loop
        # that waits nothing changes after that.
        if len(self._recent) == 2 and all(np.array_equal(event, earlier) for earlier in self._recent):
            return
        self._recent = [*self._recent[-1:], event]
        self.atomics.append(np.concatenate([event[:2], np.full((1, tids.size), now), event[2:]]))
        self._seen = {}

    def _passed_by_barriers(self, event, row, thread):
        """What releasing threads know of others by barriers of some threads: as if these released that themselves."""
        for i in np.flatnonzero(event[2]).tolist():
            first = self.column(row[i])
            known = self.present.seen[row[i], thread[i], first : first + self.threads]
            others = np.flatnonzero(known > self.block_time[event[1, i] // self.threads])
            told = np.repeat(event[:, i : i + 1], others.size, axis=1)
            told[1] += others - thread[i]
            told[2], told[6] = known[others], known[others]
            told[4] = told[8] = 1  # of the other's warp nothing is known
            yield told

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
        if self.present.seen is not None:
            at = np.flatnonzero(loose & (blocks[0] // self.cluster == blocks[1] // self.cluster))
            row = np.searchsorted(self.present.ids, later[at] // self.threads)
            known = self.present.seen[row, later[at] % self.threads, earlier[at] % (self.cluster * self.threads)]
            loose[at] &= times[at] >= known
        return loose

    def _in_warp(self, times, earlier, later):
        """Mask the pairs of one block that a barrier of their warp orders."""
        first, second = earlier % self.threads, later % self.threads
        batch = self.present
        row, warp = np.searchsorted(batch.ids, later // self.threads), second // WARP
        together = first // WARP == warp
        ordered = times < batch.warp_time[row, warp]
        if batch.pair_time is not None:
            ordered |= times < batch.pair_time[row, warp, first % WARP, second % WARP]
        return together & ordered

    def _released(self, times, earlier, later):
        """Mask the pairs whose earlier thread released after its access, where the later thread acquired that."""
        if self._indexed < len(self.atomics):
            self._releases.add(np.concatenate(self.atomics[self._indexed :], axis=1))
            self._indexed = len(self.atomics)
        told = self._releases.told
        pairs = zip(times.tolist(), earlier.tolist(), later.tolist(), strict=True)
        result = np.array([told(*pair) for pair in pairs], bool)
        for until in (self._known_to_block, self._known_to_thread, self._passed_on):
            at = np.flatnonzero(~result)
            if at.size:
                size = self.threads if until == self._known_to_block else 1
                result[at] = _earlier(until, times[at], earlier[at] // size, later[at] // size)
        return result

    def _known_to_block(self, earlier, later, time):
        """The time before which a whole block knows what an earlier one did; the first found that is after ``time``.

        Of what other threads have passed on nothing counts.
        """
        releases = self._releases
        known = releases.known(later * self.threads, 0, int(self.block_time[later]), 0, None)
        return releases.until(releases.by_block.get(earlier, {}), "block", known, earlier == later, time)

    def _known_to_thread(self, earlier, later, time):
        """As `_known_to_block`, of what one thread did and another one knows."""
        block, lane = divmod(earlier, self.threads)
        releases, known = self._releases, self._releases.known(later, NOW, *self._barriers(later))
        inside = block == later // self.threads
        found = releases.until(releases.by_thread.get(earlier, {}), "thread", known, inside, time)
        if found <= time:
            found = releases.until(releases.by_warp.get((block, lane // WARP), {}), "warp", known, inside, time)
        if found <= time:
            found = releases.until(releases.by_block.get(block, {}), "block", known, inside, time)
        return found

    def _passed_on(self, earlier, later, _):
        """The time before which a thread knows what an earlier one did, by way of any others."""
        acquired = self._releases.acquired(later, NOW, *self._barriers(later))
        block = later // self.threads
        key = block, *sorted(acquired.items())  # as a rule, threads of a block have acquired the same
        if key not in self._seen:
            self._seen[key] = self._releases.seen(acquired, block)
        return self._seen[key].until(earlier, self.threads)

    def _barriers(self, thread):
        """The last barriers of a thread's block and of its warp, and those of it and each lane of its warp."""
        block, lane = divmod(thread, self.threads)
        batch = self.present
        row = int(np.searchsorted(batch.ids, block))
        pairs = None if batch.pair_time is None else batch.pair_time[row, lane // WARP, :, lane % WARP]
        return int(self.block_time[block]), int(batch.warp_time[row, lane // WARP]), pairs

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


def _earlier(until, times, earlier, later):
    """Mask the pairs whose time is before ``until(earlier, later, latest time)``, called once for each pair."""
    pairs, which = np.unique(earlier << 32 | later, return_inverse=True)
    latest = np.zeros(pairs.size, np.int64)
    np.maximum.at(latest, which, times)
    pairs = zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), latest.tolist(), strict=True)
    return times < np.array([until(*pair) for pair in pairs], np.int64)[which]


class _Present:
    """What is kept of a batch only while it runs.

    Attributes
    ----------
    ids : (B,) int64 ndarray
        Its blocks, ascending.
    warp_time : (B, W) int64 ndarray
    pair_time : (B, W, 32, 32) int64 ndarray, or None
    number : int or None
        The place of ``pair_time`` in `Order.pair_times`; None if no fence has kept it as it is now.
    fenced : (2, 4, B, T) int64 ndarray
        For each thread at its last fence, and at its last fence for the whole device: the time, the last barriers of
        its block and its warp, and the place in `Order.pair_times`.
    """

    def __init__(self, ids, threads, number):
        self.ids = ids
        self.warp_time = np.ones((ids.size, ceil_div(threads, WARP)), np.int64)
        self.pair_time: Any = None
        self.number = number
        #: (B, T, cluster T) int32 ndarray of `Order.seen_by`, or None without barriers of some threads; what has come
        #: to the phases of barriers, and what those knew that have ended, by key.
        self.seen: Any = None
        self.coming, self.ended = {}, {}
        self.fenced = np.zeros((2, 4, ids.size, threads), np.int64)


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


class _Entry(dict):
    """{place: positions of atomics there}, of one thread; ``merged``: of several."""

    merged = False


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
        The `_Entry` of each block, warp and thread.
    """

    def __init__(self, threads, pair_times):
        self.atomics = np.zeros((11, 64), np.int64)
        self.times = []
        self.count = 0
        self.threads = threads
        self.pair_times = pair_times
        self.at_place = {}
        self.by_block, self.by_warp, self.by_thread = {}, {}, {}
        #: {thread: the entries to which its atomics belong}
        self._entries = {}
        #: The last fence for the whole device before each atomic.
        self._fences = []

    def add(self, atomics):
        """Add atomics; those at places without a release so far acquire nothing."""
        for place in np.unique(atomics[0, atomics[3] > 0]).tolist():
            self.at_place.setdefault(place, [])
        atomics = atomics[:, [place in self.at_place for place in atomics[0].tolist()]]
        first, self.count = self.count, self.count + atomics.shape[1]
        if self.count > self.atomics.shape[1]:
            more = np.zeros((11, self.count), np.int64)
            self.atomics = np.concatenate([self.atomics, more], axis=1)
        self.atomics[:, first : self.count] = atomics
        place, thread, time, fenced = atomics[:4].tolist()
        self.times += time
        self._fences += atomics[7].tolist()
        for i, (p, t, release) in enumerate(zip(place, thread, fenced, strict=True), first):
            if release:
                self.at_place[p].append(i)
            for index in self._entries.get(t) or self._find_entries(t):
                if p in index:
                    index[p].append(i)
                else:
                    index[p] = [i]

    def _find_entries(self, thread):
        """The entries of a thread, its warp and its block: one for all of them as long as no other thread has one."""
        block, lane = divmod(thread, self.threads)
        groups = ((self.by_warp, (block, lane // WARP)), (self.by_block, block))
        own = self.by_thread.get(thread)
        if own is None:
            own = self.by_thread[thread] = _Entry()
            self._entries.clear()
            for index, key in groups:
                shared = index.setdefault(key, own)
                if shared is not own and not shared.merged:
                    index[key] = _Entry((place, positions.copy()) for place, positions in shared.items())
                    index[key].merged = True
        found = self._entries[thread] = [own, *(index[key] for index, key in groups if index[key] is not own)]
        return found

    def told(self, time, earlier, later):
        """True if the last atomic of a thread was where an earlier thread had released after ``time``."""
        looks, releases = self.by_thread.get(later), self.by_thread.get(earlier)
        if not looks or not releases:
            return False
        place = next(reversed(looks))
        before = bisect_left(releases.get(place, ()), looks[place][-1])
        return before > 0 and self._fences[releases[place][before - 1]] > time

    def acquired(self, thread, own, block_time, warp_time, pairs):
        """Map each place to the position of the last atomic there that a thread knows of.

        The thread knows of its own before ``own``, and of those that barriers of its block or its warp have ordered.
        """
        found = {}
        for index, end in self.known(thread, own, block_time, warp_time, pairs):
            for place, positions in index.items():
                before = bisect_left(positions, end)
                if before:
                    found[place] = max(found.get(place, -1), positions[before - 1])
        return found

    def known(self, thread, own, block_time, warp_time, pairs):
        """List (entry of an index, end): a thread knows of the atomics there at positions before the end."""
        block, lane = divmod(thread, self.threads)
        known = [
            (self.by_thread.get(thread), own),
            (self.by_warp.get((block, lane // WARP)), warp_time),
            (self.by_block.get(block), block_time),
        ]
        if pairs is not None:
            first = thread - lane % WARP
            known += [(self.by_thread.get(first + i), int(pairs[i])) for i in np.flatnonzero(pairs).tolist()]
        # There is nothing before the first tick.
        return [(index, bisect_left(self.times, until)) for index, until in known if index is not None and until > 1]

    def until(self, releases, group, known, inside, time):
        """The time before which a group of threads told all that it did by the last releases of which others know.

        Parameters
        ----------
        releases : _Entry
            Of the group.
        group : "thread" | "block" | "warp"
        known : list
            What `known` returns for the others.
        inside : bool
            True if they are of the same block.
        time : int
            The first that is found after it will do.
        """
        found = 0
        column = self.atomics[3 + ("thread", "block", "warp").index(group) + 4 * (not inside)]
        for index, end in known if releases else ():
            for place in reversed(index):  # as a rule, what has been seen last tells of the access
                if place not in releases:
                    continue
                looks = bisect_left(index[place], end)
                before = bisect_left(releases[place], index[place][looks - 1]) if looks else 0
                if before:
                    found = max(found, int(column[releases[place][before - 1]]))
                if found > time:
                    return found
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
