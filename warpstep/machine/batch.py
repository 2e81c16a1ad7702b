"""The machine that a lowered kernel runs on: thread indices, memory, warp operations, print, and errors.

A `Batch` runs some blocks of the grid in lockstep. B is the number of its blocks, T the number of threads of a block.
"""

import linecache
import math
import os
import sys

import numpy as np

from warpstep.device import current
from warpstep.errors import KernelError, UnsupportedError
from warpstep.limits import POISON, WARP
from warpstep.machine import tensor
from warpstep.machine.arithmetic import choose, range_length
from warpstep.machine.memory import GuardedMemory, Memory, View, contiguous
from warpstep.machine.scheduler import NAMED_AT, Scheduler

#: What to do about an access out of bounds, by the space of the array.
OUT_OF_BOUNDS_CURES = {
    "global": "Guard the access, or launch no more threads than there are elements.",
    "const": "Guard the access, or clamp the index.",
    "shared": "Guard the access, or make the shared array large enough for the block.",
    "local": "Guard the access, or make the local array longer.",
}
#: What to do about a barrier that some threads never reach.
BARRIER_CURES = {
    "group": "On a GPU this hangs or goes wrong. All four warps of a group must get here.",
    "named": "On a GPU this hangs. As many threads as the barrier names must get here.",
    "block": "On a GPU this hangs or goes wrong. Move the barrier to where all threads of the block pass.",
    "warp": "On a GPU this hangs or goes wrong. Let its mask name the lanes that get here, from a ballot_sync before "
    "the branch, or move the call to where all lanes of the mask pass.",
    "cluster": "On a GPU this hangs. Move the sync to where all threads of the cluster pass.",
    "grid": "On a GPU this hangs. Move the sync to where all threads of the grid pass.",
}
BARRIER_NAMES = {
    "block": "syncthreads",
    "warp": "a warp operation",
    "cluster": "cluster_sync",
    "grid": "the grid's sync",
    "group": "an operation of four warps",
    "named": "named_barrier",
}
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Batch:
    """Some blocks of a launch.

    Attributes
    ----------
    ids : (B,) int64 ndarray
        Their positions in the linear order of the grid (x fastest), ascending.
    memory : memory.Memory
    epoch : int
        Counts changes to memory, and reads of the clock.
    ticks : int
        Counts reads of the clock.
    shape : (B, T)
    thread, block : tuple of 3 values
        ``threadIdx`` and ``blockIdx``, int32; NumPy scalars where all lanes agree.
    thread_count, block_count : tuple of 3 int32
        ``blockDim`` and ``gridDim``.
    """

    traced = False
    scheduler_class = Scheduler
    #: The time of the clocks, one for all launches.
    clock = 0

    def __init__(self, launch, ids):
        self.launch = launch
        self.ids = ids
        self.blocks = ids.size
        self.threads = launch.threads
        self.shape = (self.blocks, self.threads)
        self.lanes = self.blocks * self.threads
        self.loop_limit, self.turns_allowed = launch.loop_limit, launch.turns_allowed
        #: Turns of a function's loops after which it raises `Switch`.
        self.turns_to_switch = math.inf
        self.epoch = self.ticks = 0
        self.began = Batch.clock
        #: Depth of recursive calls.
        self.depth = 0
        self.memory = self.make_memory()
        #: The scheduler of the kernel itself.
        self._outermost: Scheduler | None = None
        self.thread_count = tuple(np.int32(n) for n in launch.block)
        self.block_count = tuple(np.int32(n) for n in launch.grid)
        self.block = _coordinates(ids, launch.grid, (self.blocks, 1))
        self.thread = _coordinates(np.arange(self.threads, dtype=np.int64), launch.block, (1, self.threads))
        self._grid_position = {}
        self._shared = {}
        self._local = {}
        self._dynamic = None

    # -- thread indices ------------------------------------------------------------------------------------------------

    def grid(self, axis):
        """Absolute position of the thread along an axis, int64."""
        if axis not in self._grid_position:
            start = self.block[axis].astype(np.int64) * np.int64(self.thread_count[axis])
            self._grid_position[axis] = start + self.thread[axis].astype(np.int64)
        return self._grid_position[axis]

    def gridsize(self, axis):
        return np.int64(self.thread_count[axis]) * np.int64(self.block_count[axis])

    def laneid(self):
        return _scalar_if_one(np.arange(self.threads, dtype=np.int32)[None, :] % np.int32(WARP))

    def in_clusters(self, blocks):
        """Mask the blocks whose cluster has one of ``blocks``."""
        size = self.launch.cluster
        return np.repeat(blocks.reshape(-1, size).any(axis=1), size)

    def make_memory(self):
        return GuardedMemory(self) if self.launch.has_denied else Memory(self)

    def scheduler(self, order, live, loops, alive):
        """Make the scheduler of one lowered function."""
        made = self.scheduler_class(self, order, live, loops, alive)
        self._outermost = self._outermost or made
        return made

    # -- turns ---------------------------------------------------------------------------------------------------------

    def blocks_alive(self):
        """The number of blocks with threads that have not returned."""
        alive = None if self._outermost is None else self._outermost.alive
        return self.blocks if alive is None else int(np.broadcast_to(alive, self.shape).any(axis=1).sum())

    def suspend(self):
        """Let other batches run before this one goes on."""
        self.turns_to_switch = math.inf  # memory can no longer be put back as it was before

    def go_on(self):
        """Go on after other batches have run."""
        self.memory.disturb()

    def end(self):
        """Hook for traces: all blocks have ended."""

    def range(self, start, stop, step, mask, site):
        """Make the state of a ``range``: next value, iterations left, step. Fail for step 0, as Python does."""
        zero = step == 0
        if np.any(zero if mask is None else zero & mask):
            self.fail("no-progress", "range() with step 0", site, zero if mask is None else zero & mask)
        safe = np.where(zero, step.dtype.type(1), step)[()] if np.any(zero) else step
        return start, range_length(start, stop, safe), step

    def tuple_item(self, items, index, mask, site):
        """``items[index]`` of a homogeneous tuple, by lane; a negative index counts from the end."""
        count = len(items)
        index = np.where(index < 0, index + count, index)[()]
        bad = (index < 0) | (index >= count)
        active = bad if mask is None else bad & mask
        if np.any(active):
            _, _, lane = self.place(active)
            value = int(np.broadcast_to(index, self.shape)[lane])
            message = f"index {value} is out of range for a tuple of {count}"
            self.fail("out-of-bounds", message, site, active)
        return choose(items, np.where(bad, 0, index)[()])

    # -- memory --------------------------------------------------------------------------------------------------------

    def shared_array(self, key, shape, dtype, name):
        """The static shared array of one place in the source, poisoned at the start of each block."""
        if 0 in shape:
            return self._dynamic_shared(dtype, name)
        if key not in self._shared:
            size = int(np.prod(shape, dtype=np.int64))
            items = np.full(self.blocks * size * dtype.itemsize, POISON, np.uint8).view(dtype)
            self._shared[key] = View(
                "shared", items, 0, shape, contiguous(shape), name, self.launch.shared_address(key), row=size
            )
        return self._shared[key]

    def view_at(self, buffer, offset, shape, dtype, name, mask, site):
        """A part of an array of bytes in shared memory, from a byte on, as an array of its own."""
        if buffer.__class__ is not View or buffer.space != "shared" or isinstance(offset, np.ndarray):
            self.unsupported(site, "a part of an array that is not in shared memory, or that differs by thread")
        dtype = np.dtype(dtype)
        shape = tuple(int(n) for n in (shape if isinstance(shape, tuple) else (shape,)))
        start, size = int(buffer.base) + int(offset), int(np.prod(shape)) * dtype.itemsize
        if not int(buffer.base) <= start <= start + size <= int(buffer.base) + buffer.shape[0]:
            message = f"bytes {int(offset):,} to {int(offset) + size:,} are outside of {buffer.name!r}, which has "
            self.fail("out-of-bounds", f"{message}{buffer.shape[0]:,}", site, mask, OUT_OF_BOUNDS_CURES["shared"])
            raise UnsupportedError(f"an array outside of shared memory{self._where(site)}")
        if (start + buffer.address) % dtype.itemsize or buffer.row % dtype.itemsize:
            message = f"an array of {dtype} starts at byte {int(offset):,} of {buffer.name!r}, no multiple of "
            self.fail("misaligned", f"{message}{dtype.itemsize}", site, mask, array=buffer.name)
        items, place = buffer.items, start // dtype.itemsize
        if start % dtype.itemsize == 0 and items.size % dtype.itemsize == 0:
            items = items.view(dtype)
        view = View(
            "shared", items, place, shape, contiguous(shape), name, buffer.address, buffer.row // dtype.itemsize
        )
        view.whole = False
        return view

    def _dynamic_shared(self, dtype, name):
        """A dynamic shared array: all of a kernel start at the same address, whatever their type."""
        nbytes = self.launch.dynamic_shared
        if self._dynamic is None:
            pitch = -(-nbytes // 16) * 16
            self._dynamic = np.full((self.blocks, pitch), POISON, np.uint8)
        pitch = self._dynamic.shape[1]
        if pitch % dtype.itemsize:
            raise UnsupportedError(f"dynamic shared memory as elements of {dtype.itemsize} bytes ({dtype})")
        items = self._dynamic.reshape(-1).view(dtype)
        shape = (nbytes // dtype.itemsize,)
        view = View("shared", items, 0, shape, (1,), name, self.launch.dynamic_address, row=pitch // dtype.itemsize)
        view.whole = shape[0] == view.row
        return view

    def local_array(self, key, shape, dtype, name):
        """The local array of one place in the source; each level of a recursion has its own."""
        key = key, self.depth
        if key not in self._local:
            size = int(np.prod(shape, dtype=np.int64))
            items = np.full(size * self.blocks * self.threads * dtype.itemsize, POISON, np.uint8).view(dtype)
            items = items.reshape(size, self.blocks, self.threads)
            self._local[key] = View("local", items, 0, shape, contiguous(shape), name)
        return self._local[key]

    # -- warps ---------------------------------------------------------------------------------------------------------

    def by_warp(self, value, fill):
        """A value as (B, warps, 32); lanes beyond the block hold ``fill``."""
        return split_warps(np.broadcast_to(value, self.shape), fill)

    def from_warps(self, value):
        """Back from (B, warps, 32) to (B, T)."""
        return value.reshape(self.blocks, -1)[:, : self.threads]

    def named(self, warp_mask):
        """Each lane's warp mask as bits in int64 (B, T)."""
        return np.broadcast_to(np.asarray(warp_mask).astype(np.int64) & 0xFFFFFFFF, self.shape)

    def warp_bits(self, lanes):
        """For each lane (B, T), those of ``lanes`` in its warp as bits in int64."""
        return self._spread(_bits(self.by_warp(lanes, False)))

    def _voters(self, warp_mask, mask):
        """For each lane, the running lanes that its warp mask names, as bits."""
        return self.named(warp_mask) & self.warp_bits(True if mask is None else mask)

    def activemask(self, mask):
        return self.warp_bits(True if mask is None else mask).astype(np.uint32)

    def _spread(self, per_warp):
        """Repeat one value for each warp (B, warps) for its lanes."""
        return self.from_warps(np.repeat(per_warp[:, :, None], WARP, axis=2))

    def shuffle(self, mode, warp_mask, value, operand, mask, site):
        """``shfl_sync`` and its relatives: the value of another lane, or the own value if that is outside the warp."""
        lanes = np.arange(WARP)
        values = self.by_warp(value, 0)
        operand = self.by_warp(operand, 0).astype(np.int64) & (WARP - 1)
        if mode == "idx":
            source = operand
        elif mode == "up":
            source = lanes - operand
        elif mode == "down":
            source = lanes + operand
        else:
            source = lanes ^ operand
        source = np.where((source < 0) | (source >= WARP), lanes, source)
        source = np.broadcast_to(source, values.shape)
        taken = self.from_warps(np.take_along_axis(values, source, axis=2))
        return self.shuffled(taken, value, source, warp_mask, mask, site)

    def shuffled(self, taken, value, source, warp_mask, mask, site):
        """Hook for traces: ``taken`` of ``value``, from the lanes ``source`` (B, W, 32)."""
        return taken

    def check_warps(self, mask, what, site):
        """Fail where a part of the lanes of a warp runs what all run together."""
        running = np.broadcast_to(True if mask is None else mask, self.shape)
        partial = running & (self.warp_bits(running) != (1 << WARP) - 1)
        if partial.any():
            message = f"{what} is reached by a part of the lanes of a warp"
            self.fail("barrier-divergence", message, site, partial, "All 32 lanes must run it together.")

    def mma(self, a, b, c, mask, site):
        """The product of a tensor core, of tuples; all lanes of a warp take part."""
        self.check_warps(mask, "a product of a tensor core", site)
        found = tensor.multiply(*([self.by_warp(value, 0) for value in operand] for operand in (a, b, c)))
        return tuple(self.from_warps(values) for values in found)

    def named_key(self, number, count, mask, site):
        """What names a barrier of some threads of the block: (B, T)."""
        number, count = (np.broadcast_to(value, self.shape).astype(np.int64) for value in (number, count))
        lanes = np.broadcast_to(True if mask is None else mask, self.shape)
        wrong = lanes & ((number < 1) | (number > 15) | (count % WARP != 0) | (count < WARP))
        if wrong.any():
            message = f"barrier {int(number[wrong][0])} of {int(count[wrong][0]):,} threads"
            cure = "A named barrier has a number from 1 to 15, and counts a multiple of 32 threads."
            self.fail("barrier-divergence", message, site, wrong, cure)
        return number << NAMED_AT | count

    def fence(self, mask, whole_device):
        """Hook for traces: a memory fence. Emulated memory is sequentially consistent, so there is nothing to do."""

    def vote(self, mode, warp_mask, predicate, mask):
        """``all_sync``, ``any_sync``, ``eq_sync`` and ``ballot_sync`` over the active lanes that the mask names."""
        voters = self._voters(warp_mask, mask)
        yes = self.warp_bits(predicate) & voters
        if mode == "ballot":
            return yes.astype(np.uint32).view(np.int32)
        if mode == "any":
            return yes != 0
        return (yes == voters) | ((mode == "eq") & (yes == 0))

    def match(self, mode, warp_mask, value, mask):
        """``match_any_sync``, the mask of lanes with the same bits; ``match_all_sync``, that mask and if all agree."""
        voters = self._voters(warp_mask, mask)
        values = np.ascontiguousarray(self.by_warp(value, 0))
        values = values.view(f"u{values.dtype.itemsize}")
        same = self.from_warps(_bits(values[..., :, None] == values[..., None, :])) & voters
        if mode == "any":
            return same.astype(np.uint32).view(np.int32)
        agree = same == voters
        return np.where(agree, voters, 0).astype(np.uint32).view(np.int32), agree

    def count(self, mode, predicate, mask):
        """``syncthreads_count``, ``_and`` and ``_or`` over the threads of each block."""
        yes = np.broadcast_to(predicate != 0, self.shape)
        active = np.broadcast_to(True if mask is None else mask, self.shape)
        if mode == "count":
            result = (yes & active).sum(axis=1, keepdims=True)
        elif mode == "and":
            result = (yes | ~active).all(axis=1, keepdims=True)
        else:
            result = (yes & active).any(axis=1, keepdims=True)
        return _scalar_if_one(result.astype(np.int32))

    # -- time ----------------------------------------------------------------------------------------------------------

    def read_clock(self):
        """Read a counter that grows through all launches: it tells order, not time.

        The step grows with the ticks since the blocks began, so that a loop that waits for a time ends soon, and at
        most an eighth too late.
        """
        Batch.clock += max(64, (Batch.clock - self.began) // 8)
        self.epoch += 1  # a loop that reads it makes progress
        self.ticks += 1
        return np.int64(Batch.clock)

    def sleep(self, nanoseconds):
        Batch.clock += int(np.max(nanoseconds))

    def smid(self):
        """The multiprocessor of each block, round robin."""
        return _scalar_if_one((self.ids % current().multiprocessor_count).astype(np.int32).reshape(-1, 1))

    # -- print ---------------------------------------------------------------------------------------------------------

    def print(self, mask, parts):
        """``print`` of every active lane, formatted as the device's printf does (floats with six digits)."""
        active = np.flatnonzero(np.broadcast_to(True if mask is None else mask, self.shape))
        columns = [self._column(part, active) for part in parts]
        lines = [" ".join(words) for words in zip(*columns, strict=True)] if columns else [""] * active.size
        sys.stdout.write("".join(line + "\n" for line in lines))

    def _column(self, part, active):
        if isinstance(part, str):
            return [part] * active.size
        if isinstance(part, tuple):
            columns = [self._column(p, active) for p in part]
            template = "({},)" if len(part) == 1 else "(" + ", ".join(["{}"] * len(part)) + ")"
            return [template.format(*words) for words in zip(*columns, strict=True)]
        values = np.broadcast_to(part, self.shape).reshape(-1)[active]
        if values.dtype.kind == "f":
            return [_printf_float(v) for v in values.tolist()]
        return [str(v) for v in values.tolist()]

    # -- hooks for the debugger ----------------------------------------------------------------------------------------

    def stop(self, number, mask):
        """Note that the lanes of a mask begin a line of the source: ``Program.stops[number]``."""

    def note(self, variable, value, mask):
        """Note that the lanes of a mask give a variable of the source this value."""

    def breakpoint(self, site, mask):
        """Note that the lanes of a mask call ``breakpoint``."""

    # -- hooks for traces ----------------------------------------------------------------------------------------------

    def between_elements(self, what, mask, word=None, comparison=None, wanted=None):
        """Note that lanes of a mask order accesses of processing elements: a fence, a signal, or a wait for one."""
        element = self.launch.element
        if element is not None and element.world.tracker is not None:
            lanes = np.broadcast_to(True if mask is None else mask, self.shape)
            waits = [np.broadcast_to(0 if value is None else value, self.shape) for value in (comparison, wanted)]
            element.world.tracker.note(element, what, lanes, word, *waits)

    # -- errors --------------------------------------------------------------------------------------------------------

    def place(self, lanes):
        """``blockIdx`` and ``threadIdx`` (x, y, z) of the first lane of a mask."""
        row, thread = np.unravel_index(int(np.argmax(np.broadcast_to(lanes, self.shape))), self.shape)
        return (
            unravel(int(self.ids[row]), self.launch.grid),
            unravel(int(thread), self.launch.block),
            (row, thread),
        )

    def fail(self, kind, message, site, lanes, cure="", array=None):
        """End the launch: the lanes of a mask (None: all) do something that is wrong on every device."""
        lanes = np.broadcast_to(True if lanes is None else lanes, self.shape)
        block, thread, _ = self.place(lanes)
        count = int(np.count_nonzero(lanes))
        others = f", the first of {count:,} such threads" if count > 1 else ""
        if self.launch.element is not None:
            message = f"PE {self.launch.element.number}: {message}"
        text = f"{message}\n  block {block}, thread {thread}{others}{self._where(site)}" + (f"\n{cure}" if cure else "")
        place = self.launch.program.sites[site]
        raise KernelError(text, kind=kind, line=place.line, filename=place.filename, block=block, thread=thread)

    def out_of_bounds(self, site, view, index, bad):
        _, _, lane = self.place(bad)
        values = tuple("..." if isinstance(i, slice) else int(np.broadcast_to(i, self.shape)[lane]) for i in index)
        shape = tuple(int(np.broadcast_to(n, self.shape)[lane]) for n in view.shape)
        self.fail(
            "out-of-bounds",
            f"index {format_index(values)} is out of bounds for {view.space} array {view.name!r} of shape {shape}",
            site,
            bad,
            self._bounds_cure(view),
            view.name,
        )

    def _bounds_cure(self, view):
        """What to do about an access outside of an array."""
        if view.space == "shared" and view.address == self.launch.dynamic_address:
            return (
                f"This launch gives a block {self.launch.dynamic_shared:,} bytes of dynamic shared memory: give it "
                "more, kernel[grid, block, stream, bytes], or guard the access."
            )
        return OUT_OF_BOUNDS_CURES[view.space]

    def misaligned(self, site, view, count, lanes):
        """Fail for ``count`` elements at once at an address that is not a multiple of their size."""
        size = count * view.dtype.itemsize
        what = f"{count} elements of {view.name!r} are" if count > 1 else f"an element of {view.name!r} is"
        message = f"{what} accessed at an address that is no multiple of {size} bytes"
        cure = f"Start at an element whose index is a multiple of {count}, in rows that are multiples of {count} long."
        if count == 1:
            cure = f"Let the array start at a multiple of {size} bytes: a GPU stops with a misaligned address."
        self.fail("misaligned", message, site, lanes, cure, view.name)

    def check_access(self, site, view, mask):
        """Fail if lanes of a mask access an array of a device whose memory this one may not access."""
        if view.space in ("shared", "local") or mask is not None and not np.any(mask):
            return
        for array in self.launch.remote:
            if not array.allowed and array.first <= view.address < array.end:
                self._no_peer_access(site, view, mask, array)

    def _no_peer_access(self, site, view, mask, array):
        message = (
            f"{view.name!r} is on device {array.there}; this kernel runs on device {array.here}, which has no access "
            f"to the memory of device {array.there}"
        )
        cure = (
            f"Copy the array to device {array.here}, or give that device access before the launch: "
            f"cuda.current_context().enable_peer_access(cuda.gpus[{array.there}].get_primary_context().handle). On a "
            "GPU this is an illegal address."
        )
        self.fail("peer-access", message, site, mask, cure, view.name)

    def read_only(self, site, view, mask):
        message = f"{view.name!r} is constant or read-only: a kernel cannot write to it"
        self.fail("out-of-bounds", message, site, mask, array=view.name)

    def barrier_divergence(self, held):
        """Fail for a deadlock: every barrier in ``held`` waits for threads that wait at another, or never arrive."""
        sites = self.launch.program.sites
        for waiting in held:
            _, _, lane = self.place(waiting.lanes)
            if waiting.kind == "phase":
                self._phase_never_ends(waiting, lane)
                continue
            name = BARRIER_NAMES[waiting.kind]
            elsewhere = [sites[h.site].line for h in held if h is not waiting and h.lanes[lane[0]].any()]
            if elsewhere:
                detail = f"others of its block wait at line {elsewhere[0]}"
            else:
                detail = "other threads that it waits for never arrive"
            self.fail(
                "barrier-divergence",
                f"a thread waits in {name} at line {sites[waiting.site].line}, {detail}",
                waiting.site,
                waiting.lanes,
                BARRIER_CURES[waiting.kind],
            )

    def _phase_never_ends(self, waiting, lane):
        """Fail for threads that wait for a phase that does not end."""
        missing = self.memory.barriers.missing(int(waiting.named[lane]))
        self.fail(
            "no-progress",
            f"a thread waits in mbarrier_wait for a phase that does not end: {missing}",
            waiting.site,
            waiting.lanes,
            "On a GPU this hangs. Count the arrivals of mbarrier_init, the bytes of mbarrier_expect, and the parity.",
        )

    def returned_before_grid_sync(self, site, gone):
        """Fail for a deadlock of the grid: ``gone`` are the returned threads of blocks that never arrive."""
        rows = np.flatnonzero(gone.any(axis=1))
        named = ", ".join(str(unravel(int(i), self.launch.grid)) for i in self.ids[rows[:3]])
        more = f" and {rows.size - 3:,} more" if rows.size > 3 else ""
        self.fail(
            "barrier-divergence",
            f"block{'s' if rows.size > 1 else ''} {named}{more} returned before the grid's sync at line "
            f"{self.launch.program.sites[site].line}, where the others wait",
            site,
            gone,
            "On a GPU this hangs. Every block must reach the sync: guard the work, not the whole thread.",
        )

    def no_progress(self, site, mask, what, waits=False):
        """Fail for a loop that does not end; ``waits``: it would if memory changed."""
        cure = (
            "It is endless, or it waits for a thread that waits itself. GPUKIT_LOOP_LIMIT or "
            "warpstep.set_loop_limit()\nraises the limit of turns."
        )
        left = self.launch.turns.left if waits else 0
        if left:
            cure = (
                f"All blocks that have started wait, and the other {left:,} cannot start: the device holds at most "
                f"{self.launch.resident_blocks:,}\nblocks of this kind at once, less if they need many registers. On a "
                "GPU this hangs. Launch no more blocks than\nthat, with a grid-stride loop."
            )
        if waits and self.launch.element is not None:
            others = self.launch.element.world.describe(self.launch.element)
            cure = f"No PE can go on:\n{others}\nOn a GPU this hangs."
            self.fail("lost-signal", "a thread waits for a signal that never comes", site, mask, cure)
        self.fail("no-progress", f"a loop {what}", site, mask, cure)

    def raised(self, site, mask, exception):
        """Note a ``raise`` in a kernel compiled with ``debug=True``: it reaches the host after the launch."""
        if self.launch.user_error is not None:
            return
        block, thread, _ = self.place(True if mask is None else mask)
        place = self.launch.program.sites[site]
        where = f"In function {self.launch.program.name!r}, file {place.filename}, line {place.line}"
        message = f"{where}, tid={list(thread)} ctaid={list(block)}" + (f": {exception}" if exception.args else "")
        self.launch.user_error = type(exception)(message)

    def check_length(self, site, mask, view, count):
        """End the launch if an array that is unpacked has not ``count`` elements: on a GPU the thread just ends."""
        wrong = np.asarray(view.shape[0] != count)
        wrong = wrong if mask is None else wrong & mask
        if np.any(wrong):
            found = int(np.broadcast_to(view.shape[0], self.shape)[np.broadcast_to(wrong, self.shape)][0])
            self.fail("out-of-bounds", f"{found} elements of {view.name!r} unpacked to {count} variables", site, wrong)

    def check_divisor(self, site, mask, divisor):
        """Note a division by zero, which raises in a kernel compiled with ``debug=True``."""
        zero = divisor == 0
        zero = zero if mask is None else zero & mask
        if np.any(zero):
            self.raised(site, zero, ZeroDivisionError("division by zero"))

    def unsupported(self, site, what):
        raise UnsupportedError(f"{what}{self._where(site)}")

    def place_of(self, site):
        """Name the line of a site."""
        place = self.launch.program.sites[site]
        return f"{short_path(place.filename)}:{place.line}"

    def _where(self, site):
        if site is None:
            return ""
        place = self.launch.program.sites[site]
        code = linecache.getline(place.filename, place.line).strip()
        return f"\n  {short_path(place.filename)}:{place.line}" + (f"\n    {code}" if code else "")


def format_index(values):
    """Write an index as in the source: ``5``, ``(2, 5)``."""
    return str(values[0]) if len(values) == 1 else f"({', '.join(map(str, values))})"


def short_path(filename):
    """Name a source file in a message: ``<cell>`` for a notebook cell, ``warpstep/...``, or the shortest path."""
    if "ipykernel_" in filename:
        return "<cell>"
    if filename.startswith(PACKAGE):
        return os.path.join(os.path.basename(PACKAGE[:-1]), filename[len(PACKAGE) :])
    shorter = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return filename if shorter.startswith("..") else shorter


def _coordinates(linear, extents, shape):
    x, y, _ = extents
    parts = (linear % x, linear // x % y, linear // (x * y))
    return tuple(
        np.int32(0) if n == 1 else _scalar_if_one(p.astype(np.int32).reshape(shape))
        for p, n in zip(parts, extents, strict=True)
    )


def unravel(linear, extents):
    """(x, y, z) of a position in the linear order of a grid or a block, x fastest."""
    x, y, _ = extents
    return linear % x, linear // x % y, linear // (x * y)


def split_warps(values, fill):
    """Split (rows, threads) into (rows, warps, 32); lanes beyond the last thread hold ``fill``."""
    missing = -values.shape[1] % WARP
    if missing:
        values = np.concatenate([values, np.full((values.shape[0], missing), fill, values.dtype)], axis=1)
    return values.reshape(values.shape[0], -1, WARP)


def _scalar_if_one(value):
    return value.reshape(-1)[0] if value.size == 1 else value


def _bits(lanes):
    """Pack a (..., 32) bool array into 32-bit masks (in int64)."""
    return (lanes.astype(np.int64) << np.arange(WARP)).sum(axis=-1)


def _printf_float(value):
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return f"{value:f}"
