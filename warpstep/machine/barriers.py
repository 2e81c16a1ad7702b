"""Barriers in shared memory, and the copies of tensors that arrive at them.

A barrier is a word of 64 bits, as on the device. A copy lands when threads wait for the barrier at which it arrives,
and no sooner: a kernel that does not wait reads what was there before.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpstep.api.allocations import find_allocation
from warpstep.machine.tensor_maps import NBYTES, SWIZZLES, TensorMap

#: The fields of a barrier's word: where each begins. The bytes to come may be negative for a while.
PENDING_AT, BYTES_AT, PHASE_AT, MADE_AT = 20, 40, 61, 62
COUNT_MASK, BYTES_MASK, BYTES_ZERO = (1 << 20) - 1, (1 << 21) - 1, 1 << 20
#: Arrivals that a phase may need at most.
MAX_COUNT = COUNT_MASK
#: Bits of a key of a waiting thread: its parity, below the position of the word, below the number of the buffer.
POSITION_AT, BUFFER_AT = 1, 41
#: A copy of tensors starts at a multiple of so many bytes of shared memory.
COPY_ALIGNMENT = 128
#: A box of a tensor begins at a multiple of so many bytes along the last axis.
COLUMN_ALIGNMENT = 16


def swizzle(address, row):
    """Where the bytes at an address lie in tiles whose rows of 32, 64 or 128 bytes are swizzled."""
    return address ^ ((address >> 7 & (row // 16 - 1)) << 4) if row in SWIZZLES else address


class Words:
    """The fields of some barriers, as int64 arrays."""

    def __init__(self, words):
        words = words.astype(np.int64)
        self.made = (words >> MADE_AT) == 1
        self.count = words & COUNT_MASK
        self.pending = words >> PENDING_AT & COUNT_MASK
        self.nbytes = (words >> BYTES_AT & BYTES_MASK) - BYTES_ZERO
        self.phase = words >> PHASE_AT & 1

    def pack(self):
        word = self.count | self.pending << PENDING_AT | (self.nbytes + BYTES_ZERO) << BYTES_AT
        return (word | self.phase << PHASE_AT | 1 << MADE_AT).astype(np.uint64)

    def end_phases(self):
        """Begin the next phase where the arrivals and the bytes are complete; return where."""
        done = (self.pending == 0) & (self.nbytes == 0)
        self.phase = self.phase ^ done
        self.pending = np.where(done, self.count, self.pending)
        return done


@dataclass
class Flight:
    """A copy to shared memory of some threads that has not landed in all of them.

    ``keys``: where each arrives; ``places``, ``values``: (threads, elements), in the items of the view; ``rows``: the
    block in whose shared memory.
    """

    view: Any
    keys: np.ndarray
    places: np.ndarray
    values: np.ndarray
    nbytes: int
    threads: np.ndarray
    rows: np.ndarray
    site: int


class Barriers:
    """The barriers in shared memory of a batch of blocks, and the copies in flight."""

    def __init__(self, memory):
        self.memory = memory
        self.batch = memory.batch
        #: The buffers with barriers, by the number that keys have.
        self.buffers = []
        self.flights = []

    # -- which words ---------------------------------------------------------------------------------------------------

    def lanes(self, mask):
        return np.broadcast_to(True if mask is None else mask, self.batch.shape)

    def find(self, view, index, mask, site, op):
        """Check an access to barriers; return the keys of the words, and the lanes that have one."""
        position, mask = self.memory.reach(view, index, mask, site, op)
        lanes = self.lanes(mask)
        places = np.broadcast_to(position + self.memory.block_row * np.int64(view.row), lanes.shape)
        for number, known in enumerate(self.buffers):
            if known is view.items or np.shares_memory(known, view.items):
                places = places + (self._offset(view.items) - self._offset(known)) // 8
                return (np.int64(number) << BUFFER_AT) | places << POSITION_AT, lanes
        self.buffers.append(view.items)
        return (np.int64(len(self.buffers) - 1) << BUFFER_AT) | places << POSITION_AT, lanes

    def _offset(self, items):
        return items.__array_interface__["data"][0]

    def words(self, keys):
        """Split keys into (buffer, positions in it); all are of one buffer."""
        return self.buffers[int(keys[0]) >> BUFFER_AT], keys >> POSITION_AT & (1 << BUFFER_AT - POSITION_AT) - 1

    def write(self, items, places, words):
        def change():
            items[places] = words

        if self.memory.watching:
            self.memory.watch(items, lambda: items[places], change)
        else:
            self.batch.epoch += 1
            change()

    # -- barriers ------------------------------------------------------------------------------------------------------

    def init(self, view, index, count, mask, site):
        keys, lanes = self.find(view, index, mask, site, "make barrier")
        count = np.broadcast_to(count, lanes.shape).astype(np.int64)
        wrong = lanes & ((count < 1) | (count > MAX_COUNT))
        if wrong.any():
            self.batch.fail("barrier", f"a barrier for {int(count[wrong][0])} arrivals", site, wrong)
        if not lanes.any():
            return
        items, places = self.words(keys[lanes])
        made = Words(np.zeros(places.size, np.uint64))
        made.count = made.pending = count[lanes]
        made.nbytes = made.nbytes * 0
        self.write(items, places, made.pack())

    def arrive(self, view, index, nbytes, rank, mask, site):
        """Arrive; with ``nbytes``, so many bytes are to come first; with ``rank``, at a barrier of that block of the
        cluster.
        """
        keys, lanes = self.find(view, index, mask, site, "barrier")
        if not lanes.any():
            return
        if rank is not None:
            keys = self._elsewhere(keys, view, self._ahead(rank, lanes, site))
        self.arriving(keys, lanes, site)
        unique, which, arrivals = np.unique(keys[lanes], return_inverse=True, return_counts=True)
        items, places = self.words(unique)
        state = self._made(items, places, keys, lanes, site)
        early = (state.pending == 0) & (state.nbytes > 0)
        if early.any():  # a copy that the program does not wait for has come by now
            self.land(unique[early])
            state = Words(items[places])
        if nbytes is not None:
            coming = np.zeros(unique.size, np.int64)
            np.add.at(coming, which, np.broadcast_to(nbytes, lanes.shape)[lanes].astype(np.int64))
            state.nbytes = state.nbytes + coming
        while True:
            taken = np.minimum(arrivals, state.pending)
            state.pending, arrivals = state.pending - taken, arrivals - taken
            done = state.end_phases()
            self.ended(unique[done])
            if not arrivals.any() or not (done & (arrivals > 0)).any():
                break
        self.write(items, places, state.pack())
        if arrivals.any():
            late = lanes & np.isin(keys, unique[arrivals > 0])
            message = "a thread arrives at a barrier whose phase has had all its arrivals, and waits for bytes only"
            self.batch.fail("barrier", message, site, late, "Wait for the phase before the next arrival.")

    def _ahead(self, rank, lanes, site):
        """Count the blocks from each lane's own to that of a rank in its cluster: (B, T)."""
        size, rank = self.batch.launch.cluster, np.broadcast_to(rank, lanes.shape).astype(np.int64)
        wrong = lanes & ((rank < 0) | (rank >= size))
        if wrong.any():
            message = f"block {int(rank[wrong][0])} of a cluster of {size}"
            self.batch.fail("out-of-bounds", message, site, wrong, "Call set_cluster_size before the launch.")
            rank = np.where(wrong, 0, rank)
        return rank - np.arange(lanes.shape[0])[:, None] % size

    def _elsewhere(self, keys, view, ahead):
        """Find the keys of the same barriers, ``ahead`` blocks further on."""
        return keys + (ahead * np.int64(view.row) << POSITION_AT)

    def _made(self, items, places, keys, lanes, site):
        state = Words(items[places])
        if not state.made.all():
            wrong = lanes & np.isin(keys, keys[lanes][~Words(items[self.words(keys[lanes])[1]]).made])
            message = "a barrier is used that mbarrier_init has not made"
            self.batch.fail("barrier", message, site, wrong, "One thread makes it, before a cuda.syncthreads().")
            state.made[:] = True
            state.count, state.pending, state.nbytes = state.made * 1, state.made * 1, state.made * 0
        return state

    def key(self, view, index, parity, mask, site):
        """The keys of what threads wait for: (B, T)."""
        keys, lanes = self.find(view, index, mask, site, "barrier")
        if lanes.any():
            items, places = self.words(keys[lanes])
            self._made(items, places, keys, lanes, site)
        return keys | np.broadcast_to(parity, lanes.shape).astype(np.int64) & 1

    def passed(self, keys, lanes):
        """The lanes whose phase has ended, once all copies that they wait for have landed."""
        result = np.zeros(lanes.shape, bool)
        if not lanes.any():
            return result
        waiting = keys[lanes]
        unique, which = np.unique(waiting, return_inverse=True)
        done = self._over(unique)
        if not done.all() and self.flights:
            self.land(np.unique(unique[~done] & ~np.int64(1)))
            done = self._over(unique)
        result[lanes] = done[which]
        return result

    def _over(self, keys):
        """Mask the keys whose phase has ended."""
        done = np.empty(keys.size, bool)
        for buffer in np.unique(keys >> BUFFER_AT):
            at = keys >> BUFFER_AT == buffer
            items, places = self.words(keys[at])
            done[at] = Words(items[places]).phase != keys[at] & 1
        return done

    def missing(self, key):
        """Say what a barrier waits for."""
        items, places = self.words(np.array([key]))
        state = Words(items[places])
        parts = []
        if state.pending[0]:
            parts.append(f"{state.pending[0]:,} of {state.count[0]:,} arrivals are missing")
        if state.nbytes[0] > 0:
            parts.append(f"{state.nbytes[0]:,} bytes are missing")
        if state.nbytes[0] < 0:
            parts.append(f"{-state.nbytes[0]:,} bytes more have come than it expects")
        return " and ".join(parts)

    # -- hooks for traces ----------------------------------------------------------------------------------------------

    def arriving(self, keys, lanes, site):
        """Note that threads arrive."""

    def ended(self, keys):
        """Note that the phases of these barriers have ended."""

    def began(self, flight):
        """Note that a copy to shared memory has begun."""

    def fence(self, mask, site):
        """Note a fence of what was written for copies of tensors and products."""

    def commit(self, mask, site):
        """Note that copies from shared memory are committed."""

    def wait_stores(self, most, mask, site):
        """Note that threads wait for their copies from shared memory."""

    def landed(self, flight, which):
        """Note that a copy to shared memory has landed in some of its threads."""

    def reading(self, view, places, mask, site):
        """Note that a copy from shared memory has begun, to be read until its thread waits."""

    def moved(self, allocation, places, valid, itemsize, lanes, site, op):
        """Note that a copy reads or writes global memory."""

    # -- copies of tensors ---------------------------------------------------------------------------------------------

    def land(self, keys):
        """Land the copies that arrive at these barriers."""
        for flight in self.flights:
            which = np.isin(flight.keys, keys)
            if not which.any():
                continue
            self.write(flight.view.items, flight.places[which], flight.values[which])
            self.landed(flight, which)
            unique, counts = np.unique(flight.keys[which], return_counts=True)
            items, places = self.words(unique)
            state = Words(items[places])
            state.nbytes = state.nbytes - counts * flight.nbytes
            self.ended(unique[state.end_phases()])
            self.write(items, places, state.pack())
            rest = ~which
            for name in ("keys", "places", "values", "threads", "rows"):
                setattr(flight, name, getattr(flight, name)[rest])
        self.flights = [flight for flight in self.flights if flight.keys.size]

    def copy_in(self, target, index, map, corner, barriers, i, everywhere, mask, site):
        """Begin to copy a box to shared memory; ``everywhere``, to that of all blocks of the cluster."""
        keys, lanes = self.find(barriers, i, mask, site, "barrier")
        box = self._box(target, index, map, corner, lanes, site)
        if box is None:
            return
        described, items, offsets, valid, places, lanes, position = box
        size = np.dtype(described.dtype).itemsize
        self.moved(items, offsets, valid, size, lanes, site, "load")
        values = _gather(items.bytes, offsets, valid, target.dtype)
        threads, nbytes = np.flatnonzero(lanes), values.shape[1] * size
        for rank in range(self.batch.launch.cluster if everywhere else 1):
            ahead = self._ahead(rank, lanes, site)[lanes] if everywhere else np.int64(0)
            there = places + np.reshape(ahead * target.row, (-1, 1))
            arrives, rows = self._elsewhere(keys[lanes], barriers, ahead), threads // self.batch.threads + ahead
            flight = Flight(target, arrives, there, values, nbytes, threads, rows, site)
            self.began(flight)
            self.flights.append(flight)

    def copy_out(self, map, corner, source, index, mask, site):
        """Copy a box to global memory."""
        lanes = self.lanes(mask)
        before = lanes & np.logical_or.reduce([np.broadcast_to(part < 0, lanes.shape) for part in corner])
        if before.any():
            place = tuple(int(np.broadcast_to(part, lanes.shape)[before][0]) for part in corner)
            cure = "A copy to global memory may reach beyond the tensor, but its corner has no negative numbers."
            self.batch.fail("out-of-bounds", f"store_tensor copies a box to corner {place}", site, before, cure)
            lanes = lanes & ~before
        box = self._box(source, index, map, corner, lanes, site)
        if box is None:
            return
        described, items, offsets, valid, places, lanes, _ = box
        values = source.items[places]
        self.reading(source, places, lanes, site)
        self.moved(items, offsets, valid, np.dtype(described.dtype).itemsize, lanes, site, "store")
        _scatter(items.bytes, offsets, valid, values)
        if items.known is not None:
            items.known[offsets[valid][:, None] + np.arange(values.itemsize)] = True
        self.memory.note_change(items.bytes)

    def described(self, map, lanes, site) -> Any:
        """What the kernel's argument describes."""
        data = None
        if map.space != "shared" and isinstance(map.base, int):
            start = map.base
            data = TensorMap.from_bytes(map.items.view(np.uint8)[start : start + NBYTES].tobytes())
        if data is None:
            self.batch.unsupported(site, f"a copy of a tensor by {map.name!r}, which tensor_map has not made,")
        return data

    def _box(self, view, index, map, corner, lanes, site):
        """(description, allocation, bytes of the elements in it, which exist, places in ``view.items``, lanes)."""
        if not lanes.any():
            return None
        described = self.described(map, lanes, site)
        dtype, box = np.dtype(described.dtype), described.box
        if view.space != "shared" or dtype.itemsize != view.dtype.itemsize or view.dtype != view.items.dtype:
            self.batch.unsupported(site, f"a copy of {dtype} between a tensor and {view.space} array {view.name!r}")
        if len(corner) != len(box) + (2 if described.windows else 0):
            self.batch.unsupported(site, f"a corner of {len(corner)} numbers for a tensor of {len(box)} axes")
        allocation = find_allocation(described.address)
        if allocation is None:
            self.batch.fail("out-of-bounds", f"the tensor that {map.name!r} describes was freed", site, lanes)
            return None
        column = np.broadcast_to(corner[len(box) - 1], lanes.shape)
        odd = lanes & (column * dtype.itemsize % COLUMN_ALIGNMENT != 0)
        if odd.any():
            message = f"a box of a tensor of {dtype} begins at column {int(column[odd][0])}"
            cure = f"Begin at a multiple of {COLUMN_ALIGNMENT} bytes along the last axis: a GPU stops otherwise."
            self.batch.fail("misaligned", message, site, odd, cure)
            lanes = lanes & ~odd
            if not lanes.any():
                return None
        position, mask = self.memory.locate(view, index, lanes, site)
        lanes = self.lanes(mask)
        position = np.broadcast_to(position, lanes.shape)
        lanes = self._fitting(view, position, lanes, int(np.prod(box)), described.swizzle, site)
        if not lanes.any():
            return None
        size = dtype.itemsize
        corner = [np.broadcast_to(part, lanes.shape)[lanes].astype(np.int64) for part in corner]
        offsets, valid = (_in_windows if described.windows else _in_box)(described, corner)
        offsets = offsets + (described.address - allocation.address)
        start = position[lanes][:, None] * size + view.address
        places = swizzle(start + np.arange(offsets.shape[1]) * size, described.swizzle) - view.address
        rows = np.broadcast_to(self.memory.block_row, lanes.shape)[lanes][:, None]
        return described, allocation, offsets, valid, places // size + rows * view.row, lanes, position

    def _fitting(self, view, position, lanes, count, row, site):
        """The lanes whose box fits into the shared array and starts where a box may start."""
        unit = max(COPY_ALIGNMENT, 8 * row)
        size = view.dtype.itemsize
        odd = lanes & ((position * size + view.address) % unit != 0)
        if odd.any():
            message = f"a box of a tensor starts in {view.name!r} at an address that is no multiple of {unit} bytes"
            cure = "Give the array alignment=1024, and each box a place at a multiple of 8 rows."
            self.batch.fail("misaligned", message, site, odd, cure, view.name)
            lanes = lanes & ~odd
        end = view.base + int(np.prod(view.shape))
        out = lanes & (position + count > end)
        if out.any():
            message = f"a box of {count:,} elements ends outside of shared array {view.name!r} of shape {view.shape}"
            self.batch.fail("out-of-bounds", message, site, out, "Make the shared array larger.", view.name)
            lanes = lanes & ~out
        return lanes


def _in_box(described, corner):
    """Where the elements of boxes lie, in bytes from the tensor's first one on, and which exist: (boxes, elements)."""
    box, count = described.box, corner[0].size
    offsets, valid = np.zeros((count, *[1] * len(box)), np.int64), np.ones((count, *[1] * len(box)), bool)
    for axis, (extent, stride, length) in enumerate(zip(described.shape, described.strides, box, strict=True)):
        at = corner[axis][:, None] + np.arange(length)
        at = at.reshape(count, *[1] * axis, length, *[1] * (len(box) - 1 - axis))
        offsets = offsets + at * stride
        valid = valid & (at >= 0) & (at < extent)
    return offsets.reshape(count, -1), valid.reshape(count, -1)


def _in_windows(described, corner):
    """The same for a pixel of windows: the corner is that of the first window, and where in it the pixel lies."""
    windows, (_, _, pixels, channels) = described.windows, described.box
    sample, row, col, channel, down, right = (part[:, None] for part in corner)
    high, wide = windows.counts(described.shape)
    number = (sample * high + (row - windows.top) // windows.down) * wide + (col - windows.left) // windows.across
    number = number + np.arange(pixels)
    sample, number = number // (high * wide), number % (high * wide)
    row = number // wide * windows.down + windows.top + down
    col = number % wide * windows.across + windows.left + right
    places = *(part[:, :, None] for part in (sample, row, col)), (channel + np.arange(channels))[:, None, :]
    offsets, valid = np.int64(0), np.bool_(True)
    for at, extent, stride in zip(places, described.shape, described.strides, strict=True):
        offsets, valid = offsets + at * stride, valid & (at >= 0) & (at < extent)
    return offsets.reshape(sample.shape[0], -1), valid.reshape(sample.shape[0], -1)


def _gather(raw, offsets, valid, dtype):
    """The elements at byte offsets, zeros where there is none."""
    at = np.where(valid, offsets, 0)
    size = dtype.itemsize
    if (offsets[valid] % size == 0).all():
        found = raw[: raw.size // size * size].view(dtype)[at // size]
    else:
        found = np.ascontiguousarray(raw[at[..., None] + np.arange(size)]).view(dtype)[..., 0]
    return np.where(valid, found, dtype.type(0))


def _scatter(raw, offsets, valid, values):
    size = values.dtype.itemsize
    parts = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, size)[valid]
    raw[offsets[valid][:, None] + np.arange(size)] = parts
