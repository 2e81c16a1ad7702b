"""A batch of blocks that records every access, branch and barrier: what hardware counters would show, and the errors.

`TracedBatch` replaces `machine.batch.Batch`, with a memory and a scheduler of its own. It tells a `Recorder`.
"""

import inspect

import numpy as np

from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.machine.batch import Batch, format_index, split_warps, unravel
from warpstep.machine.scheduler import Scheduler
from warpstep.tracing.between import Between
from warpstep.tracing.marks import LANE_BITS, Marked, mark, marks_of, plain
from warpstep.tracing.memory import TracedMemory
from warpstep.tracing.recorder import is_contiguous
from warpstep.tracing.records import element_name
from warpstep.tracing.shadow import IN_FLIGHT, IN_FLIGHT_KEYS, THREAD, THREAD_BITS
from warpstep.tracing.tiles import TracedBarriers, TracedTiles

#: What to do about a race, by the distance of the threads: in one warp, in one block, in two blocks.
RACE_CURES = (
    "Threads of one warp do not run in lockstep: put a cuda.syncwarp() (or a cuda.syncthreads()) between the two, or "
    "let each thread have its own element.",
    "Put a cuda.syncthreads() between the two, or let each thread have its own element.",
    "Blocks run in any order: let each write its own elements, use an atomic operation, or do the second part in "
    "another launch.",
)
COPY_CURE = (
    "The thread that began the copy must wait for it, with wait_copies; then a cuda.syncthreads() makes it visible to "
    "the others."
)
TENSOR_CURE = "Wait for that phase of the barrier, with mbarrier_wait, before anything else uses what the copy brings."
READ_CURE = (
    "Wait until it is over, with wgmma_wait for a product or wait_stores for a copy, before the memory that it reads "
    "changes."
)
FENCE_CURES = {
    "behind the write": "Put a cuda.threadfence() between the write and the atomic operation that announces it.",
    "behind the barrier": "The flag is raised by a thread whose fence came before the barrier, or that has none: put "
    "the cuda.threadfence() between the cuda.syncthreads() and the atomic operation, in the thread that raises it.",
    "anywhere": "Blocks run in any order: if an atomic operation announces the write, put a cuda.threadfence() between "
    "the two. Otherwise do the second part in another launch.",
}
#: Why the value of a shuffle is undefined: the kind of finding, what the thread does, and what to do.
ABSENT = (
    "barrier-divergence",
    "takes a value from lane {lane} of its warp, which the mask names but which is not there (it has left the loop or "
    "the branch, has returned, or the block has no such thread)",
    "Keep all lanes of the warp running up to the shuffle, those without work with a neutral value, or use the value "
    "only where its lane takes part.",
)
UNNAMED = (
    "barrier-divergence",
    "takes a value from lane {lane} of its warp, which the mask does not name",
    "Name the source lane in the mask too, and let it call the shuffle, or use the value only where it comes from a "
    "lane that the mask names.",
)
DECIDES = "a branch depends on it"


class TracedScheduler(Scheduler):
    """A scheduler that counts branches and barriers, and records what they order."""

    def branch(self, condition, if_true, if_false, mask, site):
        batch = self.batch
        if condition.__class__ is Marked:
            batch.use(DECIDES, (condition,), mask, site)
            condition = plain(condition)
        same = condition.shape[0] == 1 and (mask is None or mask.shape[0] == 1)
        height = 1 if same else batch.blocks
        there = np.broadcast_to(True if mask is None else mask, (height, batch.threads))
        taken = condition & there
        yes, no = _warp_counts(taken), _warp_counts(there) - _warp_counts(taken)
        split = (yes > 0) & (no > 0)
        count = batch.recorder.branches[site]
        times = batch.blocks // height
        count.warps += int(np.count_nonzero(yes + no)) * times
        count.split += int(np.count_nonzero(split)) * times
        count.waiting += int(no[split].sum()) * times
        return super().branch(condition, if_true, if_false, mask, site)

    def barrier(self, pc, mask, kind, site, members=None):
        batch = self.batch
        lanes = np.broadcast_to(True if mask is None else mask, batch.shape)
        if batch.recorder.log.open:
            batch.recorder.log.barrier(mask, site, kind)
        if kind == "warp":
            unnamed = lanes & (members >> (np.arange(batch.threads) % WARP) & 1 == 0)
            if unnamed.any():
                batch.not_in_mask(site, unnamed)
        elif kind in ("block", "cluster", "grid") and self.alive is not None:
            gone = ~np.broadcast_to(self.alive, batch.shape) & lanes.any(axis=1, keepdims=True)
            if gone.any() and site not in batch.recorder.returned:
                batch.recorder.returned[site] = batch.place(gone)[:2]
        return super().barrier(pc, mask, kind, site, members)

    def passed(self, held, lanes):
        super().passed(held, lanes)
        batch, recorder = self.batch, self.batch.recorder
        order, now = recorder.order, recorder.time + 1
        if batch.blocks > 1 and not (lanes == lanes[:1]).all():
            batch.memory.tell_blocks_apart()
        if held.kind == "warp":
            by_warp = batch.by_warp(lanes, False)
            recorder.barriers[held.site, "warp"] += int(np.count_nonzero(by_warp.any(axis=2)))
            if recorder.sites[held.site].op == "syncwarp":
                alive = batch.by_warp(True if self.alive is None else self.alive, False)
                for mask in np.unique(held.named[lanes]).tolist():  # lanes with another mask meet elsewhere
                    order.warp_barrier(batch.by_warp(lanes & (held.named == mask), False), alive, now)
            return
        if held.kind == "phase":
            order.acquire(held.named & ~np.int64(1), lanes)
        if held.kind == "named":
            for row in np.flatnonzero(lanes.any(axis=1)).tolist():
                for number in np.unique(held.named[row, lanes[row]]).tolist():
                    order.meet(row, np.flatnonzero(lanes[row] & (held.named[row] == number)), now)
        if held.kind in ("phase", "named", "group"):
            return
        rows = lanes.any(axis=1)
        recorder.barriers[held.site, held.kind] += int(np.count_nonzero(rows))
        if held.kind == "grid":
            order.grid_barrier(now)
        elif held.kind == "cluster":
            order.cluster_barrier(rows, now)
        else:
            order.block_barrier(rows, now)
        if rows.all():
            batch.memory.all_blocks_passed()


def _warp_counts(lanes):
    """Count the active lanes of each warp: (B, T) bools to (B, W)."""
    return np.add.reduce(split_warps(lanes, False), axis=2, dtype=np.int64)


class TracedBatch(Batch):
    """A batch that records errors instead of stopping at them, except where it cannot go on."""

    traced = True
    scheduler_class = TracedScheduler
    memory: TracedMemory

    def __init__(self, launch, ids, recorder):
        self.recorder = recorder
        self.ids = ids
        #: The blocks' numbers in the order of the trace, from which those of its threads come.
        self.ranks = np.arange(recorder.blocks_begun - ids.size, recorder.blocks_begun)
        recorder.order.start_batch(self.ranks)
        super().__init__(launch, ids)

    def make_memory(self):
        return TracedMemory(self)

    def make_barriers(self, memory):
        return TracedBarriers(memory)

    def make_tiles(self, memory):
        return TracedTiles(memory)

    def suspend(self):
        super().suspend()
        recorder = self.recorder
        self._left = recorder.order.present, recorder.log.open
        recorder.log.open = False

    def go_on(self):
        super().go_on()
        self.recorder.order.present, self.recorder.log.open = self._left

    def end(self):
        self.recorder.log.close(complete=True)
        self.recorder.progress()

    def enter(self, label, mask):
        """Count a basic block that runs."""
        count = self.recorder.blocks[label]
        if self.recorder.log.open:
            self.recorder.log.enter(label, mask)
        if mask is None:
            count.threads += self.blocks * self.threads
            count.warps += self.blocks * ceil_div(self.threads, WARP)
            return
        times = self.blocks // mask.shape[0]
        count.threads += int(np.count_nonzero(mask)) * times
        count.warps += int(np.count_nonzero(_warp_counts(mask))) * times

    def fence(self, mask, whole_device):
        if whole_device:
            self.between_elements("fence", mask)
        lanes = np.broadcast_to(True if mask is None else mask, self.shape)
        self.recorder.order.fence(lanes, self.recorder.time + 1, whole_device)

    # -- problems ------------------------------------------------------------------------------------------------------

    def fail(self, kind, message, site, lanes, cure="", array=None):
        if kind in ("no-progress", "lost-signal"):
            super().fail(kind, message, site, lanes, cure, array)
        lanes = np.broadcast_to(True if lanes is None else lanes, self.shape)
        if kind in ("misaligned", "peer-access"):
            self.memory.skip(lanes)
        self.recorder.problem(self, kind, site, message, lanes, cure, array)

    def negative_index(self, site, view, index, dimension, lanes):
        _, _, lane = self.place(lanes)
        values = [int(np.broadcast_to(i, self.shape)[lane]) for i in index]
        extent = int(np.broadcast_to(view.shape[dimension], self.shape)[lane])
        message = (
            f"index {format_index(values)} of {view.space} array {view.name!r} is negative: it wraps to "
            f"{values[dimension] + extent}, counted from the end"
        )
        cure = "Guard the access, or clamp the index. Nothing warns of this on a GPU: the wrong element is used."
        self.recorder.problem(self, "negative-index", site, message, lanes, cure, view.name)

    def uninitialised(self, site, view, position, lanes, unit):
        what = self.element_at(view, position, lanes, unit)
        message = f"{what} ({view.space}) is read, but was never written"
        cure = {
            "shared": "Write every element that is read, at the ragged edges too, and before the barrier. Shared "
            "memory does not start with zeros.",
            "local": "Give every element a value first: local memory does not start with zeros.",
        }.get(view.space, "Fill the array before the launch: new device memory does not start with zeros.")
        self.recorder.problem(self, "uninitialised-read", site, message, lanes, cure, view.name)

    def race(self, site, view, position, unit, op, conflict, threads, lanes):
        """Record accesses of ``threads`` (positions in (B, T)) that nothing orders after those of the conflict."""
        recorder = self.recorder
        row, mine = divmod(int(threads[0]), self.threads)
        block, other = divmod(int(conflict.keys[0]) & THREAD, self.threads)
        same_block = block == int(self.ranks[row])
        here = recorder.sites[site]
        there_site = recorder.site_at[int(conflict.keys[0]) >> THREAD_BITS & ~IN_FLIGHT]
        there = recorder.sites[there_site]
        in_flight = conflict.earlier == "store" and conflict.keys[0] >= IN_FLIGHT_KEYS
        first = np.zeros(self.shape, bool)
        first[row, mine] = True
        did = {"load": "reads", "store": "writes", "begin copy": "copies to", "acquire": "reads", "release": "writes"}
        blocks = ("", "")
        if not same_block:
            numbers = int(self.ids[row]), recorder.position(block)
            blocks = [f" of block {unravel(number, self.launch.grid)}" for number in numbers]
        now, earlier = (did.get(what, "changes") for what in (op, conflict.earlier))
        rest = "and nothing orders the two"
        still_reads = conflict.earlier == "load" and conflict.keys[0] >= IN_FLIGHT_KEYS
        if in_flight:
            earlier, rest = "copies to", "and has not waited for its copy"
            if there.op == "copy tensor":
                rest = "and the phase in which the copy arrives has not been waited for"
        if still_reads:
            rest = "and may not have finished"
        element = self.element_at(view, position, first, unit)
        message = (
            f"thread {unravel(mine, self.launch.block)}{blocks[0]} {now} {element} "
            f"({view.space}) at line {here.line}, thread {unravel(other, self.launch.block)}{blocks[1]} "
            f"{earlier} it at line {there.line}, {rest}"
        )
        pair = min((here.filename, here.line), (there.filename, there.line))
        weight = int(self.distances(threads, conflict.keys).max())
        cure = COPY_CURE if in_flight else READ_CURE if still_reads else RACE_CURES[weight]
        if in_flight and there.op == "copy tensor":
            cure = TENSOR_CURE
        where = recorder.order.missing_fence(int(conflict.keys[0]), int(self.ranks[row]) * self.threads + mine)
        if not same_block and not recorder.order.fenced_yet and recorder.changed:
            where = "anywhere" if (op, conflict.earlier) == ("load", "store") else ""
        if where:
            cure, weight = FENCE_CURES[where], weight + 1
        found = recorder.problem(self, "race", site, message, lanes, cure, view.name, pair, (mine, other), weight)
        found.one_line |= (here.filename, here.line) == (there.filename, there.line)
        if "atomic" in (here.op, there.op) and "store" not in (op, conflict.earlier):
            found.reads.add(site if op == "load" else there_site)
        else:
            found.certain = True

    def distances(self, threads, keys):
        """The distance of the threads of races: 0 in one warp, 1 in one block, 2 in two blocks."""
        rows, mine = np.divmod(threads, self.threads)
        blocks, others = np.divmod(keys & THREAD, self.threads)
        return np.where(blocks != self.ranks[rows], 2, (mine // WARP != others // WARP).astype(np.int64))

    def element_at(self, view, position, lanes, unit):
        """Name the element that the first lane of a mask accesses as the source would."""
        _, _, lane = self.place(lanes)
        is_field = view.dtype.names is not None
        if view.dtype != view.items.dtype or not is_contiguous(view):
            return f"a field of {view.name}" if is_field else f"an element of {view.name}"
        at = int(np.broadcast_to(position, self.shape)[lane]) * unit // view.dtype.itemsize
        base = int(np.broadcast_to(view.base, self.shape)[lane])
        return ("a field of " if is_field else "") + element_name(view.name, at - base, view.shape)

    def not_in_mask(self, site, lanes):
        message = "a thread calls a warp operation whose mask does not name its own lane"
        cure = (
            "Each lane that gets here must be in the mask: compute it with ballot_sync before the branch, or move the "
            "call out of the branch."
        )
        self.recorder.problem(self, "barrier-divergence", site, message, lanes, cure)

    # -- undefined values, and reads of what atomics change ------------------------------------------------------------

    def shuffled(self, taken, value, source, warp_mask, mask, site):
        """Mark the values that come from lanes which take no part, and pass on the marks of the others."""
        running = self.by_warp(True if mask is None else mask, False)
        named = self.by_warp(self.named(warp_mask), 0) >> source & 1 == 1
        foreign = running & (source != np.arange(WARP))
        absent = foreign & named & ~np.take_along_axis(running, source, axis=2)
        marks = marks_of(value)
        if marks is None and not absent.any() and not (foreign & ~named).any():
            return taken
        marks = self.by_warp(np.int64(0) if marks is None else marks, 0)
        marks = np.take_along_axis(marks, source, axis=2)
        for lanes, why in ((absent, ABSENT), (foreign & ~named, UNNAMED)):
            if lanes.any():
                origin = self.recorder.origin(site, why) << LANE_BITS
                marks = np.where(lanes, origin | source, marks)
        return mark(plain(taken), self.from_warps(marks))

    def use(self, how, values, mask, site=None, array=None):
        """Note that the lanes of a mask use values; ``array``: that an atomic operation gives them to."""
        found = [m for m in map(marks_of, values) if m is not None]
        if not found:
            return
        active = np.broadcast_to(True if mask is None else mask, self.shape)
        for marks in found:
            marks = np.where(active, marks, 0)
            for number in np.unique(marks >> LANE_BITS).tolist():
                if number:
                    self._used(self.recorder.origins[number - 1], marks, marks >> LANE_BITS == number, how, site, array)

    def _used(self, origin, marks, lanes, how, user, array):
        recorder = self.recorder
        site, why = origin
        if why is None:
            if how is DECIDES:
                recorder.decisions.add(site)
            elif array is None or array != recorder.sites[site].array:
                recorder.uses.add(site)
            return
        lane = int(marks[self.place(lanes)[2]]) & (1 << LANE_BITS) - 1
        where = "" if user is None else f" at line {recorder.sites[user].line}"
        kind, what, remedy = why
        message = f"a thread {what.format(lane=lane)}: the value is undefined, and {how}{where}"
        recorder.problem(self, kind, site, message, lanes, remedy)

    def vote(self, mode, warp_mask, predicate, mask):
        self.use(DECIDES, (predicate,), mask)
        return super().vote(mode, warp_mask, plain(predicate), mask)

    def match(self, mode, warp_mask, value, mask):
        self.use(DECIDES, (value,), mask)
        return super().match(mode, warp_mask, plain(value), mask)

    def count(self, mode, predicate, mask):
        self.use(DECIDES, (predicate,), mask)
        return super().count(mode, plain(predicate), mask)


def run(prepared, recorder, chosen=None, progress=None):
    """Run a prepared launch and record what it does.

    Parameters
    ----------
    prepared : launch.Prepared
    recorder : Recorder
    chosen : (n,) int64 ndarray, optional
        Positions of the blocks to run, ascending; all unless given.
    progress : function, optional
        Called with the share of the blocks that have run.
    """
    launch = prepared.run
    if chosen is not None:
        whole = np.unique(chosen // launch.cluster)[:, None] * launch.cluster + np.arange(launch.cluster)
        chosen = whole.ravel()
    parameters = list(inspect.signature(prepared.overload.kernel.py_func).parameters)
    written = {parameters[i] for i in launch.program.written}
    for name, array in prepared.transfers.arrays:
        recorder.declare(array.allocation, name.split("[")[0] in written)
    recorder.chosen = chosen
    total = launch.blocks if chosen is None else chosen.size

    def make(launch, ids):
        recorder.blocks_begun += ids.size
        recorder.log.begin(ids)
        return TracedBatch(launch, ids, recorder)

    def show():
        if progress is not None:
            progress(recorder.blocks_begun / total)

    launch.make_batch, recorder.progress = make, show
    element = launch.element
    if element is not None and element.world.tracker is None:
        element.world.tracker = Between(element.world)
    try:
        launch.run(prepared.arguments, wanted=chosen)
    finally:
        recorder.finish()
        if element is not None:
            element.world.tracker.complete(element)
