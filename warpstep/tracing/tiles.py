"""What a trace notes of barriers, copies of tensors and products: what they order, and what is used too early."""

import math
from typing import Any

import numpy as np

from warpstep.limits import GROUP, LINE, WARP
from warpstep.machine.barriers import Barriers
from warpstep.machine.tiles import Tiles
from warpstep.tracing.marks import LANE_BITS, mark, plain
from warpstep.tracing.memory import Access
from warpstep.tracing.shadow import IN_FLIGHT, THREAD, THREAD_BITS

#: The operations of sites that write to shared memory by the asynchronous proxy.
BY_PROXY = ("copy tensor",)
PROXY_CURE = (
    "Put a fence_async() after the writes, in the threads that write, and a barrier after it: what other instructions "
    "have written, tensor cores and copies of tensors may not see without."
)
FENCE_CURE = (
    "Put a wgmma_fence() before the first product, and before the first after other instructions have changed its sums."
)
UNFINISHED = (
    "race",
    "uses a sum of a product of tensor cores before it has waited for it",
    "Wait for the product first, and use what wgmma_wait returns.",
)


class Several(Access):
    """Accesses of many elements by each of some threads; ``owners``: the thread, flat in (B, T), of each cell."""

    def __init__(self, memory, cells, view, site, op, owners):
        super().__init__(
            memory, cells, view, np.asarray(view.base), view.items.dtype.itemsize, None, 1, site, op, memory.blocks
        )
        self.owners = owners

    def _threads(self, lanes):
        return self.owners[lanes]


class _Shadowed:
    """Access to the shadow of shared memory, one for each block."""

    memory: Any
    batch: Any

    def prepare(self):
        """Give each block its own shadow: copies and products tell them apart."""
        self.memory._shared_cells(np.int64(0), None)
        self.memory.tell_blocks_apart()

    def cells_of(self, view, places, rows, threads, blocks=None):
        """(shadow, cells, owners, numbers of their threads) of elements: ``places`` (n, K) in the items of a view.

        ``rows`` are the blocks in whose shared memory the elements are. ``threads`` are of ``blocks``, the same unless
        given.
        """
        self.prepare()
        memory, size = self.memory, view.items.dtype.itemsize
        cells = memory._shared
        offsets = (places - rows[:, None] * view.row) * size + view.address
        cells.fits(math.gcd(16, int(np.gcd.reduce(offsets[:, 0])) if offsets.size else 16))
        found = [
            np.unique(each // cells.size) + row * memory._cells_per_block
            for each, row in zip(offsets, rows, strict=True)
        ]
        blocks = rows if blocks is None else blocks
        owners = np.repeat(blocks * memory.threads + threads, [each.size for each in found])
        return cells, np.concatenate(found), owners, memory.tids.reshape(-1)[owners]

    def check_proxy(self, view, cells, cell, owners, site, what):
        """Report what other instructions have written and no fence has made visible to the asynchronous proxy."""
        keys = cells.last_write[cell]
        times, writers = keys >> THREAD_BITS & ~np.int64(IN_FLIGHT), keys & THREAD
        recorder = self.batch.recorder
        sites, which = np.unique(times, return_inverse=True)
        other = np.array([time != 0 and recorder.sites[recorder.site_at[time]].op not in BY_PROXY for time in sites])
        lanes = writers - self.memory.tids[0, 0]
        inside = (lanes >= 0) & (lanes < self.batch.lanes)
        fenced = np.where(inside, self.memory.barriers.fences.reshape(-1)[np.where(inside, lanes, 0)], 0)
        bad = np.flatnonzero(other[which] & (times >= fenced))
        if not bad.size:
            return
        first = bad[0]
        mask = np.zeros(self.batch.shape, bool)
        mask.reshape(-1)[owners[bad]] = True
        there = recorder.sites[recorder.site_at[int(times[first])]]
        here = recorder.sites[site]
        message = (
            f"{what} reads {view.name!r} (shared) at line {here.line}, which a thread writes at line {there.line}, and "
            f"no fence_async makes that visible to it"
        )
        mine, writer = int(owners[first]) % self.batch.threads, int(writers[first]) % self.batch.threads
        pair = min((here.filename, here.line), (there.filename, there.line))
        found = recorder.problem(
            self.batch, "race", site, message, mask, PROXY_CURE, view.name, ("proxy", *pair), (mine, writer)
        )
        found.certain = True


class TracedBarriers(_Shadowed, Barriers):
    """Barriers whose arrivals order accesses, and copies that are in flight until a barrier's phase ends."""

    def __init__(self, memory):
        super().__init__(memory)
        self.order = self.batch.recorder.order
        #: The time of each thread's last fence for the asynchronous proxy.
        self.fences = np.zeros(self.batch.shape, np.int64)
        #: Groups of stores that each thread has committed; the times of stores that read shared memory, by thread.
        self.stored = np.zeros(self.batch.shape, np.int64)
        self.stores = []

    @property
    def now(self):
        return self.batch.recorder.time + 1

    def arriving(self, keys, lanes, site):
        self.prepare()
        self.order.arrive(keys, lanes, self.now)

    def ended(self, keys):
        self.order.end_phases(keys.tolist())

    def fence(self, mask, site):
        self.fences[self.lanes(mask)] = self.now

    def began(self, flight):
        view, (blocks, threads) = flight.view, np.divmod(flight.threads, self.batch.threads)
        cells, cell, owners, tids = self.cells_of(view, flight.places, flight.rows, threads, blocks)
        self.check_proxy(view, cells, cell, owners, flight.site, "a copy of a tensor over")
        time = self.batch.recorder.tick(flight.site)
        conflicts = cells.begin_copy(cell, tids, time)
        Several(self.memory, cells, view, flight.site, "begin copy", owners).report_races(conflicts)

    def landed(self, flight, which):
        blocks, threads = np.divmod(flight.threads[which], self.batch.threads)
        cells, cell, _, tids = self.cells_of(flight.view, flight.places[which], flight.rows[which], threads, blocks)
        cells.land_copy(cell, tids, self.batch.recorder.tick(flight.site))
        for key, row, lane in zip(flight.keys[which].tolist(), blocks.tolist(), threads.tolist(), strict=True):
            self.order.bring(key, row, lane, self.now)

    def reading(self, view, places, mask, site):
        rows, threads = np.nonzero(self.lanes(mask))
        cells, cell, owners, tids = self.cells_of(view, places, rows, threads)
        self.check_proxy(view, cells, cell, owners, site, "a copy of a tensor")
        time = self.batch.recorder.tick(site)
        access = Several(self.memory, cells, view, site, "load", owners)
        unknown = cells.unknown(cell)
        if unknown is not None:
            access.report_unknown(unknown)
        access.report_races(cells.begin_read(cell, tids, time))
        self.stores.append((time, rows, threads, self.stored[rows, threads].copy()))

    def commit(self, mask, site):
        self.stored = self.stored + self.lanes(mask)

    def wait_stores(self, most, mask, site):
        lanes, left = self.lanes(mask), []
        for time, rows, threads, number in self.stores:
            done = lanes[rows, threads] & (number < self.stored[rows, threads] - most)
            if done.all():
                self.memory._shared.end_reads([time])
            else:
                left.append((time, rows, threads, number))
        self.stores = left

    def moved(self, allocation, places, valid, itemsize, lanes, site, op):
        rows, threads = np.nonzero(lanes)
        recorder = self.batch.recorder
        cells = recorder.memory_at(allocation.address)
        recorder.arguments.add(cells.address)  # it has come with a map
        recorder.count_boxes(self.batch, cells.address, places, valid, site, op)
        found = []
        for each, there in zip(places, valid, strict=True):
            inside = each[there]
            if inside.size:
                edges = np.flatnonzero(np.diff(inside) != itemsize)
                bounds = [inside[0], *inside[edges + 1], *(inside[edges] + itemsize), inside[-1] + itemsize]
                cells.fits(math.gcd(16, int(np.gcd.reduce(bounds))))
            found.append(inside)
        cell = [np.unique(inside // cells.size) for inside in found]
        owners = np.repeat(rows * self.batch.threads + threads, [each.size for each in cell])
        cell, tids = np.concatenate(cell), self.memory.tids.reshape(-1)[owners]
        if not cell.size:
            return
        access = Several(self.memory, cells, _Named(recorder.sites[site].array, itemsize), site, op, owners)
        time = recorder.tick(site)
        if op == "load":
            unknown = cells.unknown(cell)
            if unknown is not None:
                access.report_unknown(unknown)
            for conflicts in cells.load(cell, tids, time):
                access.report_races(conflicts)
            return
        writes, others = cells.store_conflicts(cell, tids)
        access.report_races(others)
        access.report_races(writes)
        cells.store(cell, tids, time, writes)


class _Named:
    """The tensor of a map, as far as messages name it."""

    space = "global"
    base = 0

    def __init__(self, name, itemsize):
        self.name = name
        self.dtype = np.dtype(f"V{itemsize}")
        self.items = np.zeros(0, self.dtype)
        self.shape = self.strides = ()


class TracedTiles(_Shadowed, Tiles):
    """Tiles that products read until their warps wait, and sums that mean nothing until then."""

    def __init__(self, memory):
        super().__init__(memory)
        #: Of each group of four warps: whether it has fenced since its last wait; the times of reads, by product.
        self.fenced = np.zeros((self.batch.blocks, self.count), bool)
        self.reads = []
        #: The sums that groups have waited for last: they need no fence as long as nothing changes them.
        self.last = {}

    def plain(self, value):
        return plain(value)

    def reading(self, view, places, rows, groups, split, site):
        # The first lane of each warp stands for the warp.
        lanes = (GROUP * groups[:, None] + WARP * np.arange(4)).ravel()
        places = places.reshape(places.shape[0], -1)
        places = places.reshape(4 * rows.size, -1) if split else np.repeat(places, 4, axis=0)
        cells, cell, owners, tids = self.cells_of(view, places, np.repeat(rows, 4), lanes)
        self.check_proxy(view, cells, cell, owners, site, "wgmma")
        recorder, wavefronts = self.batch.recorder, places.size * view.dtype.itemsize // (4 if not split else 1) // LINE
        recorder.count_wavefronts(site, view.name, 4 * rows.size, wavefronts)
        time = recorder.tick(site)
        access = Several(self.memory, cells, view, site, "load", owners)
        unknown = cells.unknown(cell)
        if unknown is not None:
            access.report_unknown(unknown)
        access.report_races(cells.begin_read(cell, tids, time))
        self.reads.append((time, rows, groups, self.committed[rows, groups].copy()))

    def waited(self, rows, groups, done):
        order, now = self.batch.recorder.order, self.batch.recorder.time + 1
        limit = np.full(self.committed.shape, -1, np.int64)
        limit[rows, groups] = done
        left, ended = [], []
        for time, own_rows, own_groups, number in self.reads:
            if (number < limit[own_rows, own_groups]).all():
                ended.append(time)
            else:
                left.append((time, own_rows, own_groups, number))
        if ended and self.memory._shared is not None:
            self.memory._shared.end_reads(ended)
        self.reads = left
        self.fenced[rows, groups] = False
        # The four warps have read together: what one has read, all know to be over.
        seen = order.seen_by()
        for row, group in zip(rows.tolist(), groups.tolist(), strict=True):
            lanes = np.arange(GROUP * group, GROUP * (group + 1))
            part, warps = seen[row, lanes[0] : lanes[-1] + 1], order.column(row) + lanes[::WARP]
            part[:, warps] = np.maximum(part[:, warps], now)

    def fence(self, mask, site):
        rows, groups = self._groups(mask, "wgmma_fence", site)
        self.fenced[rows, groups] = True

    def before(self, sums, rows, groups, kind, site):
        words = self._words(sums, kind)
        number = self._number(words, rows, groups)
        missing = (number < 0) & ~self.fenced[rows, groups]
        for i in np.flatnonzero(missing):
            held = words[:, rows[i], GROUP * groups[i] : GROUP * (groups[i] + 1)]
            last = self.last.get((int(rows[i]), int(groups[i])))
            missing[i] = last is None or last.shape != held.shape or not np.array_equal(last, held)
        if missing.any():
            lanes = np.zeros(self.batch.shape, bool)
            for row, group in zip(rows[missing], groups[missing], strict=True):
                lanes[row, GROUP * group : GROUP * (group + 1)] = True
            message = (
                "a product of tensor cores changes sums that other instructions have written, without a wgmma_fence"
            )
            found = self.batch.recorder.problem(self.batch, "race", site, message, lanes, FENCE_CURE)
            found.certain = True
        return super().before(tuple(plain(value) for value in sums), rows, groups, kind, site)

    def multiply(self, sums, a, a_index, b, b_index, trans_a, trans_b, add, mask, site):
        if isinstance(a, tuple):
            self.batch.use("wgmma multiplies it", a, mask, site)
            a = tuple(plain(value) for value in a)
        index = [tuple(plain(i) for i in part) if part else part for part in (a_index, b_index)]
        found = super().multiply(sums, a, index[0], b, index[1], trans_a, trans_b, plain(add), mask, site)
        return self._mark(found, mask, site)

    def _mark(self, words, mask, site):
        lane = np.arange(self.batch.threads) % WARP
        marks = self.batch.recorder.origin(site, UNFINISHED) << LANE_BITS | lane
        marks = np.where(np.broadcast_to(True if mask is None else mask, self.batch.shape), marks, 0)
        return tuple(mark(np.broadcast_to(word, self.batch.shape), marks) for word in words)

    def finished(self, words, sums, rows, groups, most):
        pending = self._number(np.stack(words).view(np.uint32), rows, groups) >= 0
        for row, group, open_ in zip(rows.tolist(), groups.tolist(), pending.tolist(), strict=True):
            lanes = slice(GROUP * group, GROUP * (group + 1))
            if not open_:
                self.last[row, group] = np.stack([word[row, lanes] for word in words]).view(np.uint32)
        waits = np.zeros(self.batch.shape, bool)
        for row, group in zip(rows[~pending], groups[~pending], strict=True):
            waits[row, GROUP * group : GROUP * (group + 1)] = True
        result = []
        for word, value in zip(words, sums, strict=True):
            marks = getattr(value, "marks", None)
            result.append(word if marks is None else mark(word, np.where(waits, 0, marks)))
        return result
