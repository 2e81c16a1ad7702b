"""What happens before what in a traced launch: barriers, warp barriers, and releases and acquisitions by atomics.

Time counts accesses: every access of all running lanes is one tick. An access at time t is ordered before what a thread
does now if a synchronisation that includes both threads came after t. A point of synchronisation is kept as the first
tick after it.
"""

import numpy as np

WARP = 32


class Order:
    """Synchronisations of one launch.

    Parameters
    ----------
    blocks, threads : int
        Of the launch: blocks in the grid, threads in a block.
    fences : bool
        True if the kernel has memory fences: only then can an atomic release anything.

    A thread is known by its number in the grid, ``block * threads + thread``.
    """

    def __init__(self, blocks, threads, fences):
        self.threads = threads
        self.block_time = np.ones(blocks, np.int64)
        self.grid_time = 1
        self.fences = fences
        self.ids = None
        self.atomics = []
        self._cover = {}

    def start_batch(self, ids):
        """``ids``: the blocks of the batch, ascending."""
        self.ids = ids
        warps = -(-self.threads // WARP)
        self.warp_time = np.ones((ids.size, warps), np.int64)
        self.pair_time = None
        self.fence_time = np.zeros((ids.size, self.threads), np.int64)
        self.fence_block_time = np.zeros((ids.size, self.threads), np.int64)

    # -- what synchronises ---------------------------------------------------------------------------------------------

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
        members = lanes[partial]
        known = self.pair_time[partial]
        # What one of them has seen of a lane's past all of them have seen now.
        joined = np.where(members[:, None, :], known, 0).max(axis=2)
        joined = np.where(members, now, joined)
        self.pair_time[partial] = np.where(members[:, None, :], joined[:, :, None], known)

    def fence(self, lanes, now):
        """``lanes``: (B, T) threads that fence: what they and, before the last barrier, their block did."""
        self.fence_time[lanes] = now
        times = np.broadcast_to(self.block_time[self.ids][:, None], lanes.shape)
        self.fence_block_time[lanes] = times[lanes]

    def atomic(self, cell, who, now):
        """Atomics of threads ``who`` on cells, in this order: each acquires what those before it released."""
        block, thread = who // self.threads, who % self.threads
        row = np.searchsorted(self.ids, block)
        fenced, fenced_block = self.fence_time[row, thread], self.fence_block_time[row, thread]
        self.atomics.append((cell, who, np.full(who.size, now), fenced, fenced_block))
        self._cover = {}

    # -- what is ordered -----------------------------------------------------------------------------------------------

    def unordered(self, times, earlier, later):
        """For pairs of accesses, by thread ``earlier`` at ``times`` and by thread ``later`` now: True where nothing
        orders them."""
        blocks = earlier // self.threads, later // self.threads
        same = blocks[0] == blocks[1]
        loose = np.where(same, times >= self.block_time[blocks[1]], times >= self.grid_time)
        loose &= earlier != later
        at = np.flatnonzero(loose & same)
        if at.size:
            loose[at] = ~self._in_warp(times[at], earlier[at], later[at])
        at = np.flatnonzero(loose)
        if at.size and self.fences and self.atomics:
            loose[at] = ~self._released(times[at], earlier[at], later[at])
        return loose

    def _in_warp(self, times, earlier, later):
        """Pairs of one block: True where a barrier of the warp orders them."""
        first, second = earlier % self.threads, later % self.threads
        row, warp = np.searchsorted(self.ids, later // self.threads), second // WARP
        together = first // WARP == warp
        ordered = times < self.warp_time[row, warp]
        if self.pair_time is not None:
            ordered |= times < self.pair_time[row, warp, first % WARP, second % WARP]
        return together & ordered

    def _released(self, times, earlier, later):
        """Pairs: True where the earlier thread released after its access, and the later one acquired that."""
        cell, who, when, fenced, fenced_block = (np.concatenate(c) for c in zip(*self.atomics, strict=True))
        result = np.zeros(times.size, bool)
        for thread in np.unique(later).tolist():
            pairs = np.flatnonzero(later == thread)
            block = thread // self.threads
            mine = (who == thread) | ((who // self.threads == block) & (when < self.block_time[block]))
            mine = np.flatnonzero(mine)
            key = mine.tobytes()  # most threads of a block have acquired the same
            if key not in self._cover:
                self._cover[key] = self._acquired(cell, who, fenced, fenced_block, mine)
            by_thread, by_block = self._cover[key]
            for i in pairs.tolist():
                t, other = int(times[i]), int(earlier[i])
                before = max(by_thread.get(other, 0), by_block.get(other // self.threads, 0))
                result[i] = t < before
        return result

    def _acquired(self, cell, who, fenced, fenced_block, mine):
        """What the atomics ``mine`` acquire: {thread: time before which its accesses are seen}, the same by block."""
        last = {}
        for i in mine.tolist():
            last[int(cell[i])] = i
        by_thread, by_block = {}, {}
        for place, end in last.items():
            for i in np.flatnonzero((cell[:end] == place) & (fenced[:end] > 0)).tolist():
                thread = int(who[i])
                by_thread[thread] = max(by_thread.get(thread, 0), int(fenced[i]))
                block = thread // self.threads
                by_block[block] = max(by_block.get(block, 0), int(fenced_block[i]))
        return by_thread, by_block
