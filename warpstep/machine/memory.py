"""Emulated memory: views on global, shared and local arrays, and the loads and stores of a whole batch of threads.

A value inside the emulator is either a NumPy scalar (the same for every thread) or an array that broadcasts to (B, T):
B blocks of the batch by T threads of a block. An index such as ``threadIdx.x`` has shape (1, T) and ``blockIdx.x`` has
shape (B, 1), so work that does not depend on both is done once.

The elements of an array are stored as

global, const   one flat buffer
shared          one row of a (B, n) buffer for each block of the batch
local           (n, B, T): the hardware interleaves the local memory of threads in the same way
"""

import functools
import operator
from itertools import product
from typing import Any

import numpy as np

from warpstep.errors import UnsupportedError
from warpstep.machine.async_copies import Copies
from warpstep.machine.barriers import Barriers
from warpstep.machine.tiles import Tiles

INT64 = np.dtype(np.int64)
#: How closely the stores to memory are watched: not at all, which buffers they may change, which they do change.
UNWATCHED, WATCHED, WATCHED_EXACTLY = range(3)
#: Bytes of the largest buffer of which a watch keeps a copy.
MAX_KEPT_BYTES = 1 << 20


class View:
    """A typed window on emulated memory: an array of a kernel.

    Attributes
    ----------
    space : "global" | "const" | "shared" | "local"
    items : ndarray
        1-D buffer of whole elements ((n, B, T) for local memory).
    base : int or value
        Element offset of the first element in ``items``; a lane-varying value for a slice whose start differs by
        thread.
    shape, strides : tuple
        In elements; an entry is an int, or a value where a slice's bounds differ by thread.
    name : str
        The array's name in the source.
    whole : bool
        True if it is C-contiguous and exactly as long as ``items``: NumPy then checks the bounds.
    row : int
        Elements in one block's row (shared memory), else 0.
    aligned : bool
        False for an array in global memory whose elements do not start at multiples of their size.
    known : ndarray of bool, or None
        The ``items`` that are initialised, if that is tracked.
    lost : mask or None
        In a trace, the lanes whose slice of an array was out of bounds: they have no such view.
    address : int
        Byte address of ``items[0]`` on the emulated device.
    """

    __slots__ = (
        "address",
        "aligned",
        "base",
        "dtype",
        "items",
        "known",
        "lost",
        "name",
        "row",
        "shape",
        "space",
        "strides",
        "whole",
    )

    def __init__(self, space, items, base, shape, strides, name, address=0, row=0):
        self.space = space
        self.items = items
        self.dtype = items.dtype
        self.base = base
        self.shape = shape
        self.strides = strides
        self.name = name
        self.address = address
        self.row = row
        self.aligned = True
        self.known: np.ndarray | None = None
        self.lost = None
        size = row if space == "shared" else items.shape[0]
        self.whole = isinstance(base, int) and base == 0 and strides == contiguous(shape) and _size(shape) == size

    @property
    def size(self):
        """Number of elements, int64; it may differ by thread."""
        return elements(self.shape)

    def all_known(self):
        """Treat all items as initialised: from now on, accesses may bypass the tracking."""
        if self.known is not None:
            self.known[:] = True

    def with_window(self, base, shape, strides):
        view = View(self.space, self.items, base, shape, strides, self.name, self.address, self.row)
        view.dtype, view.aligned, view.known = self.dtype, self.aligned, self.known
        view.whole = view.whole and self.dtype == self.items.dtype
        view.lost = self.lost
        return view


class Either:
    """An array that is ``first`` in the lanes of a mask and ``second`` in the others: ``c = a if t < 2 else b``."""

    __slots__ = ("first", "mask", "second")

    def __init__(self, mask, first, second):
        self.mask = mask
        self.first = first
        self.second = second

    @property
    def shape(self):
        return tuple(np.where(self.mask, a, b) for a, b in zip(self.first.shape, self.second.shape, strict=True))

    @property
    def strides(self):
        return tuple(np.where(self.mask, a, b) for a, b in zip(self.first.strides, self.second.strides, strict=True))

    @property
    def size(self):
        return elements(self.shape)

    @property
    def dtype(self):
        return self.first.dtype

    @property
    def name(self):
        return f"{self.first.name} or {self.second.name}"

    def parts(self, mask):
        """Yield each array that some lane of ``mask`` uses, with these lanes."""
        for view, lanes in ((self.first, self.mask), (self.second, ~self.mask)):
            lanes = lanes if mask is None else lanes & mask
            if lanes.any():
                yield view, lanes


class RecordRef:
    """One record of a structured array: a pointer, as in Numba. ``offset`` is in bytes from the start of the buffer."""

    __slots__ = ("dtype", "offset", "view")

    def __init__(self, view, dtype, offset):
        self.view = view
        self.dtype = dtype
        self.offset = offset


def contiguous(shape) -> Any:
    """C-order strides in elements, or None if an extent differs by thread."""
    strides = []
    step = 1
    for extent in reversed(shape):
        if not isinstance(extent, int):
            return None
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def elements(shape):
    """Product of the extents, int64."""
    return functools.reduce(operator.mul, shape, np.int64(1))


def _size(shape):
    size = 1
    for extent in shape:
        if not isinstance(extent, int):
            return -1
        size *= extent
    return size


def global_view(allocation, host, name, space="global"):
    """Make the view of a device array; ``host`` is the NumPy view on its elements in ``allocation.bytes``."""
    dtype = host.dtype
    size = dtype.itemsize
    start = host.__array_interface__["data"][0] - allocation.bytes.__array_interface__["data"][0] if host.size else 0
    if size == 0 or start % size or any(s % size for s in host.strides):
        return _unaligned_view(allocation, host, name, space, start)
    items = allocation.bytes[: allocation.bytes.size // size * size].view(dtype)
    base = start // size
    strides = tuple(s // size for s in host.strides)
    if host.flags.c_contiguous:
        # A buffer of exactly the array's elements lets NumPy check the bounds of a 1-D index.
        items, base, strides = items[base : base + host.size], 0, contiguous(host.shape)
    return View(space, items, base, host.shape, strides, name, allocation.address + (start if base == 0 else 0))


def _unaligned_view(allocation, host, name, space, start):
    """Make the view of an array whose elements may be unaligned, such as a packed field; its items are bytes."""
    view = View(space, allocation.bytes, start, host.shape, host.strides, name, allocation.address)
    view.dtype = host.dtype
    view.whole = False
    view.aligned = start % host.dtype.alignment == 0 and all(s % host.dtype.alignment == 0 for s in host.strides)
    return view


def overlap(some, others):
    """True if two lists of buffers may have memory in common; None stands for all memory."""
    if some is None or others is None:
        return some != [] and others != []
    return any(np.may_share_memory(a, b) for a in some for b in others)


def is_lane_array(value):
    """True if a value may differ by thread."""
    return isinstance(value, np.ndarray)


def merge(mask, new, old) -> Any:
    """``new`` in the lanes of the mask, ``old`` in the others."""
    if old is None or mask is None or new is old:
        return new
    if new is None:  # undefined in these lanes
        return old
    if isinstance(new, tuple):
        return tuple(merge(mask, n, o) for n, o in zip(new, old, strict=True))
    if isinstance(new, View | Either):
        return _merge_views(mask, new, old)
    if isinstance(new, RecordRef):
        return RecordRef(_merge_views(mask, new.view, old.view), new.dtype, merge(mask, new.offset, old.offset))
    if isinstance(new, slice):
        return _merge_slices(mask, new, old)
    if not isinstance(new, np.generic | np.ndarray):
        return new  # the kind of an iteration's state
    if not is_lane_array(new) and not is_lane_array(old) and new.tobytes() == old.tobytes():
        return new
    return np.where(mask, new, old)


def _merge_slices(mask, new, old):
    parts = [(getattr(new, p), getattr(old, p)) for p in ("start", "stop", "step")]
    if any((a is None) != (b is None) for a, b in parts):
        raise UnsupportedError("one variable for two slices, of which only one has a bound")
    return slice(*(merge(mask, a, b) for a, b in parts))


def _merge_views(mask, new, old):
    """Merge two windows on the same elements into one view; make an `Either` of others."""
    same = isinstance(new, View) and isinstance(old, View) and new.items is old.items and new.dtype == old.dtype
    if not same or len(new.shape) != len(old.shape):
        return Either(mask, new, old)

    def pick(a, b):
        return a if isinstance(a, int) and isinstance(b, int) and a == b else np.where(mask, a, b)

    shape = tuple(pick(a, b) for a, b in zip(new.shape, old.shape, strict=True))
    strides = tuple(pick(a, b) for a, b in zip(new.strides, old.strides, strict=True))
    return new.with_window(pick(new.base, old.base), shape, strides)


def in_range(index, extent):
    """True if every lane's index lies in [0, extent)."""
    if not isinstance(extent, int):
        return bool(np.all((index >= 0) & (index < extent)))
    if not isinstance(index, np.ndarray):
        return 0 <= index < extent
    if index.size == 0:
        return True
    return int(index.min()) >= 0 and int(index.max()) < extent


class Memory:
    """The memory of one batch of blocks: its loads, stores and views."""

    def __init__(self, batch):
        self.batch = batch
        self.blocks = batch.blocks
        self.threads = batch.threads
        #: The row of each block in shared memory, and the position of each thread in local memory.
        self.block_row = np.arange(self.blocks, dtype=INT64)[:, None] if self.blocks > 1 else np.int64(0)
        self.lane = np.arange(self.blocks * self.threads, dtype=INT64).reshape(self.blocks, self.threads)
        #: How closely stores are watched, and at least.
        self.watching = self.level = UNWATCHED
        #: The epochs in which other batches ran last and in which each buffer changed last, and what buffers held when
        #: the watch began.
        self._disturbed = 0
        self._changes = {}
        self.kept = {}

    @functools.cached_property
    def copies(self):
        return Copies((self.blocks, self.threads))

    @functools.cached_property
    def barriers(self):
        return Barriers(self)

    @functools.cached_property
    def tiles(self):
        return Tiles(self)

    def locate(self, view, index, mask, site):
        """Find an element without an access: (its position, the lanes where it is in bounds)."""
        return self.position(view, index, mask, site), mask

    def reach(self, view, index, mask, site, op, count=None):
        """Check an access, of ``count`` consecutive elements if given: (position of the first, lanes to do it)."""
        if count is None:
            return self.position(view, index, mask, site), mask
        return self.wide_position(view, index, count, mask, site), mask

    def operands(self, view, values, mask, site):
        """Hook for traces: the operands of an atomic operation."""

    # -- addresses -----------------------------------------------------------------------------------------------------

    def position(self, view, index, mask, site):
        """Compute the position in ``view.items`` and check the bounds in the active lanes.

        The block's row of shared memory and the thread's lane of local memory are not added yet.
        """
        shape = view.shape
        position = None
        for dimension, (i, extent, stride) in enumerate(zip(index, shape, view.strides, strict=True)):
            if not in_range(i, extent):
                i = self._wrap(view, index, dimension, mask, site)
            if not (isinstance(stride, int) and stride == 1):
                i = i * np.int64(stride) if isinstance(stride, int) else i * stride
            position = i if position is None else position + i
        if position is None:
            position = np.int64(0)
        if isinstance(view.base, int):
            return position + np.int64(view.base) if view.base else position
        position = position + view.base
        # The start of a slice is arbitrary in an idle lane.
        return position if mask is None else np.where(mask, position, np.int64(0))

    def _wrap(self, view, index, dimension, mask, site):
        """Count negative indices from the end, as the device does; fail for any other index out of range."""
        i, extent = index[dimension], view.shape[dimension]
        wrapped = np.where(i < 0, i + extent, i)
        bad = (wrapped < 0) | (wrapped >= extent)
        active = bad if mask is None else bad & mask
        if active.any():
            self.batch.out_of_bounds(site, view, index, active)
        return np.where(bad, 0, wrapped)[()]

    # -- loads ---------------------------------------------------------------------------------------------------------

    def load(self, view, index, mask, site):
        """``array[index]`` in every active lane; idle lanes get an arbitrary value, never an error."""
        if view.__class__ is Either:
            return self._choose(self.load, view, index, mask, site)
        if view.whole and len(index) == 1 and view.space != "local" and not view.row:
            i = index[0]
            try:
                return view.items.take(i) if isinstance(i, np.ndarray) else view.items[i]
            except IndexError:
                pass
        position = self.position(view, index, mask, site)
        return self.fetch(view, position)

    def _choose(self, read, view, index, mask, site):
        """Call ``read``, a method of this class, for each array of an `Either`, and merge the results by lane."""
        result = None
        for part, lanes in view.parts(mask):
            result = merge(lanes, read(part, index, lanes, site), result)
        return result

    def fetch(self, view, position):
        """Load the elements at checked positions."""
        items = view.items
        if view.space == "local":
            if isinstance(position, np.ndarray):
                return items.reshape(-1).take(position * np.int64(self.lane.size) + self.lane)
            return items[position].copy()
        if view.row:
            return self._fetch_shared(view, position)
        if view.dtype != items.dtype:
            return _gather_bytes(items, position, view.dtype)
        return items.take(position) if isinstance(position, np.ndarray) else items[position]

    def _fetch_shared(self, view, position):
        if view.dtype != view.items.dtype:
            return _gather_bytes(view.items, position + self.block_row * np.int64(view.row), view.dtype)
        if self.blocks == 1:
            return view.items.take(position) if isinstance(position, np.ndarray) else view.items[position]
        if isinstance(position, np.ndarray) and position.shape[0] == 1:
            return view.items.reshape(self.blocks, view.row).take(position[0], axis=1)
        return view.items.take(position + self.block_row * np.int64(view.row))

    # -- stores --------------------------------------------------------------------------------------------------------

    def load_wide(self, view, index, count, mask, site) -> Any:
        """Load a tuple of ``count`` consecutive elements in one access."""
        if view.__class__ is Either:
            return self._choose(lambda *a: self.load_wide(a[0], a[1], count, *a[2:]), view, index, mask, site)
        position, mask = self.reach(view, index, mask, site, "load", count)
        return tuple(self.fetch(view, position + np.int64(k)) for k in range(count))

    def store_wide(self, view, index, values, mask, site):
        """Store consecutive elements in one access."""
        if view.__class__ is Either:
            for part, lanes in view.parts(mask):
                self.store_wide(part, index, values, lanes, site)
            return
        position, mask = self.reach(view, index, mask, site, "store", len(values))
        for k, value in enumerate(values):
            self.put(view, position + np.int64(k), value, mask)

    def wide_position(self, view, index, count, mask, site):
        """Compute the position of the first of ``count`` consecutive elements; check their bounds and alignment."""
        position = self.position(view, index, mask, site)
        last = self.position(view, (*index[:-1], index[-1] + np.int64(count - 1)), mask, site)
        # Lanes that are idle, or out of bounds in a trace, get position 0.
        position = np.where(last - position == count - 1, position, np.int64(0))[()]
        size = view.dtype.itemsize
        if view.space == "local" or view.strides[-1] != 1 or view.dtype != view.items.dtype:
            self.batch.unsupported(site, f"an access to {count} elements at once of {view.space} array {view.name!r}")
        odd = (position * np.int64(size) + np.int64(view.address)) % np.int64(count * size) != 0
        odd = odd if mask is None else odd & mask
        if np.any(odd):
            self.batch.misaligned(site, view, count, odd)
        return position

    def store(self, view, index, value, mask, site):
        """``array[index] = value`` in the active lanes.

        If lanes collide the last one wins, which is one of the orders that a device may take.
        """
        if view.__class__ is Either:
            for part, lanes in view.parts(mask):
                self.store(part, index, value, lanes, site)
            return
        if view.space == "const":
            self.batch.read_only(site, view, mask)
            return
        position = self.position(view, index, mask, site)
        self.put(view, position, value, mask)

    def put(self, view, position, value, mask):
        """Store to checked positions."""
        if self.watching == UNWATCHED:
            self.batch.epoch += 1
            self._put(view, position, value, mask)
        else:
            there = functools.partial(self.fetch, view, position)
            self.watch(view.items, there, functools.partial(self._put, view, position, value, mask))

    def _put(self, view, position, value, mask):
        if view.space == "local":
            self._put_local(view, position, value, mask)
            return
        if view.row:
            position = position + self.block_row * np.int64(view.row)
        items = view.items
        if mask is not None:
            shape = (self.blocks, self.threads)
            mask = np.broadcast_to(mask, shape)
            position = np.broadcast_to(position, shape)[mask]
            if is_lane_array(value):
                value = np.broadcast_to(value, shape)[mask]
        elif is_lane_array(value) and np.shape(position) != value.shape:
            shape = np.broadcast_shapes(np.shape(position), value.shape)
            position = np.broadcast_to(position, shape)
            value = np.broadcast_to(value, shape)
        if view.dtype != items.dtype:
            _scatter_bytes(items, position, value, view.dtype)
            view.all_known()
            return
        items[position] = value
        if view.known is not None:
            view.known[position] = True

    def _put_local(self, view, position, value, mask):
        if not isinstance(position, np.ndarray):
            if mask is None:
                view.items[position] = value
            else:
                np.copyto(view.items[position], value, where=mask)
            return
        flat = np.broadcast_to(position * np.int64(self.lane.size) + self.lane, self.lane.shape)
        value = np.broadcast_to(value, flat.shape)
        if mask is not None:
            mask = np.broadcast_to(mask, flat.shape)
            flat, value = flat[mask], value[mask]
        view.items.reshape(-1)[flat] = value

    # -- changes -----------------------------------------------------------------------------------------------------

    def watch(self, items, there, change):
        """Call ``change``, which writes to ``items`` at what ``there`` reads, and note if it changes anything."""
        if self.watching == WATCHED:
            change()
            self.note_change(items)
            return
        self.keep(items)
        before = np.asarray(there()).tobytes()
        change()
        if before != np.asarray(there()).tobytes():
            self.note_change(items)

    def keep(self, items):
        """Keep what a buffer holds, to tell later whether it holds that again; None of a large one."""
        if self.watching == WATCHED_EXACTLY and id(items) not in self.kept:
            self.kept[id(items)] = items, items.copy() if items.nbytes <= MAX_KEPT_BYTES else None

    def note_change(self, items):
        self.batch.epoch += 1
        if self.watching != UNWATCHED:
            self._changes[id(items)] = items, self.batch.epoch

    def changed(self, epoch, buffers):
        """True if one of these buffers (None: any memory) has changed since, while it was watched."""
        if buffers is None:
            return self.batch.epoch != epoch
        return self._disturbed > epoch or overlap(self.changes(epoch), buffers)

    def disturb(self):
        """Note that other batches have run, which may have changed any memory."""
        self.batch.epoch += 1
        self._disturbed = self.batch.epoch
        self.level = WATCHED

    def changes(self, epoch):
        """The buffers that have changed since, while they were watched."""
        return [items for items, when in self._changes.values() if when > epoch]

    def restored(self):
        """True if memory holds what it held when the watch began."""
        kept = self.kept.values()
        return all(before is not None and items.tobytes() == before.tobytes() for items, before in kept)

    # -- asynchronous copies -------------------------------------------------------------------------------------------

    def begin_copy(self, target, index, source, source_index, count, guard, mask, site, source_site):
        """Begin to copy ``count`` consecutive elements to shared memory, zeros where the guard is false."""
        if target.__class__ is Either or target.space != "shared":
            self.batch.unsupported(site, "an asynchronous copy to an array that is not a shared one for all threads")
        # A guard that is the same for all threads is one value.
        reading = mask if guard is None else _both(mask, np.broadcast_to(guard, self.batch.shape))
        values = [target.dtype.type(0)] * count
        if reading is None or np.any(reading):
            values = self.load_wide(source, source_index, count, reading, source_site)
            if reading is not None:
                values = [np.where(reading, value, target.dtype.type(0)) for value in values]
        position, mask = self.reach(target, index, mask, site, "begin copy", count)
        self.copies.begin(target, position, values, mask, site)

    def load_acquire(self, view, index, mask, site):
        """Load a word that orders the accesses after it."""
        return self.load(view, index, mask, site)

    def store_release(self, view, index, value, mask, site):
        """Store a word that orders the accesses before it."""
        self.store(view, index, value, mask, site)

    def commit_copies(self, mask):
        self.copies.commit(mask)

    def wait_copies(self, pending, mask):
        """Wait until each thread has at most so many groups of copies pending."""
        for copy, lanes in self.copies.landing(pending, mask):
            self.land(copy, lanes)

    def land(self, copy, lanes):
        """Store the elements of a copy that has arrived."""
        for k, value in enumerate(copy.values):
            self.put(copy.view, copy.position + np.int64(k), value, lanes)

    # -- views ---------------------------------------------------------------------------------------------------------

    def window(self, view, index, mask, site) -> Any:
        """Slice: ``index`` holds integers (values), slices, and None for a new axis; the rest is taken whole."""
        if view.__class__ is Either:
            return self._choose(self.window, view, index, mask, site)
        base = view.base
        shape, strides = [], []
        dimension = 0
        rest = len(view.shape) - sum(i is not None for i in index)
        for i in (*index, *[slice(None)] * rest):
            if i is None:
                shape.append(1)
                strides.append(0)
                continue
            extent, stride = view.shape[dimension], view.strides[dimension]
            if isinstance(i, slice):
                if is_lane_array(i.step):
                    self.batch.unsupported(site, "a slice whose step differs by thread")
                start, length, step = _resolve_slice(i, extent)
                base = _add(base, _times(start, stride))
                shape.append(length)
                strides.append(_times(step, stride))
            else:
                if not in_range(i, extent):
                    i = self._wrap(view, [i for i in index if i is not None], dimension, mask, site)
                base = _add(base, _times(i, stride))
            dimension += 1
        return view.with_window(base, tuple(shape), tuple(strides))

    def assign_slice(self, view, index, value, mask, site):
        """``array[i, 2:5] = value``: one number for all elements, or a tuple with one for each."""
        window = self.window(view, index, mask, site)
        if not all(isinstance(extent, int) for extent in window.shape):
            self.batch.unsupported(site, "an assignment to a slice whose length differs by thread")
        places = [tuple(np.int64(e) for e in p) for p in product(*(range(extent) for extent in window.shape))]
        items = value if isinstance(value, tuple) else [value] * len(places)
        if len(items) != len(places):
            self.batch.unsupported(site, f"{len(items)} values assigned to a slice of {len(places)} elements")
        for place, item in zip(places, items, strict=True):
            self.store(window, place, item, mask, site)

    def retyped(self, view, dtype, site):
        """``array.view(dtype)``: the same bytes as elements of another type."""
        dtype = np.dtype(dtype)
        if view.__class__ is Either:
            return Either(view.mask, self.retyped(view.first, dtype, site), self.retyped(view.second, dtype, site))
        old, new = view.dtype.itemsize, dtype.itemsize
        if old == new:
            result = View(
                view.space,
                view.items.view(dtype),
                view.base,
                view.shape,
                view.strides,
                view.name,
                view.address,
                view.row,
            )
            result.known = view.known
            return result
        view.all_known()
        starts = np.asarray(view.base) * old
        rows = view.strides[:-1]
        if view.space == "local" or view.strides[-1] != 1 or (starts % new).any() or any(s * old % new for s in rows):
            self.batch.unsupported(
                site,
                f"a view of {view.space} array {view.name!r} as elements of {new} bytes: its elements of {old} bytes "
                "do not line up",
            )
        bytes_ = view.items.view(np.uint8)
        items = bytes_[: bytes_.size // new * new].view(dtype)
        base = int(starts) // new if starts.ndim == 0 else starts // new
        shape = (*view.shape[:-1], view.shape[-1] * old // new)
        return View(
            view.space,
            items,
            base,
            shape,
            (*(s * old // new for s in rows), 1),
            view.name,
            view.address,
            view.row * old // new,
        )

    # -- records -------------------------------------------------------------------------------------------------------

    def record(self, view, index, mask, site):
        """``array[index]`` of a structured array: a reference to the record."""
        if view.__class__ is Either:
            return self._choose(self.record, view, index, mask, site)
        return RecordRef(view, view.dtype, self.position(view, index, mask, site) * np.int64(view.dtype.itemsize))

    def load_field(self, record, name, mask, site) -> Any:
        dtype, offset = record.dtype.fields[name][:2]
        at = record.offset + np.int64(offset)
        if dtype.names is not None:
            return RecordRef(record.view, dtype, at)
        if dtype.subdtype is not None:
            item, shape = dtype.subdtype
            return self._field_array(record, name, item, shape, at)
        return self._load_bytes(record.view, at, dtype, mask, site)

    def store_field(self, record, name, value, mask, site):
        dtype, offset = record.dtype.fields[name][:2]
        at = record.offset + np.int64(offset)
        if dtype.subdtype is not None:
            self._store_field_array(record, name, value, mask, site)
        elif dtype.names is not None:
            self.copy_record(RecordRef(record.view, dtype, at), value, mask, site)
        else:
            self._store_bytes(record.view, at, value, dtype, mask, site)

    def copy_record(self, target, source, mask, site):
        """``a[i] = b[j]`` for records, field by field."""
        for name in target.dtype.names:
            self.store_field(target, name, self.load_field(source, name, mask, site), mask, site)

    # -- pointers ------------------------------------------------------------------------------------------------------

    def pointer(self, view):
        """Return the address of an array's first element, as a record without fields."""
        if view.__class__ is Either:
            first, second = self.pointer(view.first), self.pointer(view.second)
            return merge(view.mask, first, second)
        return RecordRef(view, view.dtype, np.int64(view.items.dtype.itemsize) * view.base)

    def moved(self, pointer, nbytes):
        return RecordRef(pointer.view, pointer.dtype, pointer.offset + nbytes)

    def record_at(self, pointer, dtype):
        return RecordRef(pointer.view, dtype, pointer.offset)

    def load_at(self, pointer, dtype, mask, site):
        view, index = self._element_at(pointer, dtype, mask, site)
        if index is not None:
            return self.load(view, (index,), mask, site)
        return self._load_bytes(view, pointer.offset, dtype, mask, site)

    def store_at(self, pointer, value, dtype, mask, site):
        view, index = self._element_at(pointer, dtype, mask, site)
        if index is not None:
            self.store(view, (index,), value, mask, site)
        else:
            self._store_bytes(view, pointer.offset, value, dtype, mask, site)

    def _element_at(self, pointer, dtype, mask, site):
        """Return the whole memory that an address lies in, as an array, and an index; None if it is no element."""
        view = pointer.view
        if view.__class__ is Either:
            self.batch.unsupported(site, "an access through a pointer into different arrays")
        size = view.items.dtype.itemsize
        count = view.row or view.items.shape[0]
        odd = pointer.offset % np.int64(size) != 0
        if size == dtype.itemsize and view.items.dtype.names is None and not np.any(_both(mask, odd)):
            whole = View(view.space, view.items.view(dtype), 0, (count,), (1,), view.name, view.address, view.row)
            whole.known = view.known
            return whole, pointer.offset // np.int64(size)
        bad = (pointer.offset < 0) | (pointer.offset > count * size - dtype.itemsize)
        if np.any(_both(mask, bad)) or (view.space == "local" and view.items.dtype.names is None):
            self.batch.unsupported(site, f"an access through a pointer across elements of array {view.name!r}")
        return view, None

    def array_at(self, pointer, dtype, shape, strides):
        """Return the array at an address; its strides are in bytes."""
        view = pointer.view
        size = view.items.dtype.itemsize
        bases = (pointer.offset, *strides)
        if view.items.dtype == dtype and not any(np.any(b % size) for b in bases):
            pointer, strides, items = pointer.offset // size, tuple(s // size for s in strides), view.items
        else:
            pointer, items = pointer.offset, self._bytes_of(view)
            view.all_known()
        row = view.row * size // items.dtype.itemsize
        base, *extents = (int(n) if not is_lane_array(n) else n for n in (pointer, *shape, *strides))
        shape, strides = tuple(extents[: len(shape)]), tuple(extents[len(shape) :])
        result = View(view.space, items, base, shape, strides, view.name, view.address, row)
        if items is view.items:
            result.known = view.known
        else:
            result.dtype, result.whole = np.dtype(dtype), False
        return result

    def _store_field_array(self, record, name, value, mask, site):
        field = self.load_field(record, name, mask, site)
        for element in product(*(range(extent) for extent in field.shape)):
            where = tuple(np.int64(e) for e in element)
            self.store(field, where, self.load(value, where, mask, site), mask, site)

    def _field_array(self, record, name, item, shape, at):
        if record.view.space == "local":
            raise UnsupportedError(f"field {name!r} of local array {record.view.name!r}, which is itself an array")
        bytes_ = self._bytes_of(record.view)
        strides = tuple(s * item.itemsize for s in contiguous(shape))
        record.view.all_known()
        view = View(record.view.space, bytes_, at, shape, strides, f"{record.view.name}.{name}", record.view.address)
        view.dtype = item
        view.row = record.view.row * record.view.dtype.itemsize
        view.whole = False
        return view

    def _bytes_of(self, view):
        if view.space == "local":
            return view.items.view(np.uint8)
        return view.items if view.items.dtype == np.uint8 else view.items.view(np.uint8)

    def _load_bytes(self, view, at, dtype, mask, site):
        if view.space == "local":
            return self._local_field(view, at, dtype)
        if view.row:
            at = at + self.block_row * np.int64(view.row * view.dtype.itemsize)
        return _gather_bytes(self._bytes_of(view), at, dtype)

    def _store_bytes(self, view, at, value, dtype, mask, site):
        if self.watching == UNWATCHED:
            self.batch.epoch += 1
            self._put_bytes(view, at, value, dtype, mask)
        else:
            there = functools.partial(Memory._load_bytes, self, view, at, dtype, mask, site)
            self.watch(view.items, there, functools.partial(self._put_bytes, view, at, value, dtype, mask))

    def _put_bytes(self, view, at, value, dtype, mask):
        view.all_known()
        shape = (self.blocks, self.threads)
        if view.space == "local":
            self._local_field(view, at, dtype, value, mask)
            return
        if view.row:
            at = at + self.block_row * np.int64(view.row * view.dtype.itemsize)
        if mask is not None:
            mask = np.broadcast_to(mask, shape)
            at = np.broadcast_to(at, shape)[mask]
            value = np.broadcast_to(value, shape)[mask]
        else:
            at, value = np.broadcast_arrays(at, value)
        _scatter_bytes(self._bytes_of(view), at, value, dtype)

    def _local_field(self, view, at, dtype, value=None, mask=None):
        """A field of a record in local memory: (n, B, T) records seen as bytes."""
        size = view.dtype.itemsize
        raw = view.items.view(np.uint8).reshape(-1)
        start = (at // size * self.lane.size + self.lane) * size + at % size
        if value is None:
            return _gather_bytes(raw, start, dtype)
        start, value = np.broadcast_arrays(start, value)
        if mask is not None:
            mask = np.broadcast_to(mask, start.shape)
            start, value = start[mask], value[mask]
        return _scatter_bytes(raw, start, value, dtype)


class GuardedMemory(Memory):
    """The memory of a batch whose launch has arrays that it may not access: an access to one ends the launch."""

    def position(self, view, index, mask, site):
        self.batch.check_access(site, view, mask)
        return super().position(view, index, mask, site)

    def load(self, view, index, mask, site):
        if view.__class__ is not Either:
            self.batch.check_access(site, view, mask)
        return super().load(view, index, mask, site)


def _gather_bytes(raw, at, dtype):
    """Elements of ``dtype`` at byte positions ``at``, aligned or not."""
    picked = raw[np.asarray(at)[..., None] + np.arange(dtype.itemsize)]
    values = np.ascontiguousarray(picked).view(dtype)[..., 0]
    return values[()] if np.ndim(at) == 0 else values


def _scatter_bytes(raw, at, value, dtype):
    at = np.asarray(at)
    value = np.ascontiguousarray(np.broadcast_to(value, at.shape), dtype=dtype)
    raw[at[..., None] + np.arange(dtype.itemsize)] = (
        value.reshape(*at.shape, 1).view(np.uint8).reshape(*at.shape, dtype.itemsize)
    )


def _resolve_slice(index, extent):
    """Start, length and step of a slice over ``extent`` elements, as Python clamps them.

    Any of them may differ by thread.
    """
    parts = (index.start, index.stop, index.step)
    if isinstance(extent, int) and not any(is_lane_array(p) for p in parts):
        start, stop, step = slice(*(None if p is None else int(p) for p in parts)).indices(extent)
        return start, len(range(start, stop, step)), step
    step = 1 if index.step is None else int(index.step)
    first, last = (0, extent) if step > 0 else (-1, extent - 1)

    def clamp(bound, default):
        if bound is None:
            return default
        return np.clip(np.where(bound < 0, bound + extent, bound), first, last)

    start, stop = clamp(index.start, 0 if step > 0 else last), clamp(index.stop, extent if step > 0 else -1)
    distance = stop - start if step > 0 else start - stop
    return start, np.maximum(0, -(-distance // abs(step))), step


def _both(mask, guard):
    return guard if mask is None else mask & guard


def _add(a, b):
    return int(a) + int(b) if not is_lane_array(a) and not is_lane_array(b) else a + b


def _times(a, b):
    return int(a) * int(b) if not is_lane_array(a) and not is_lane_array(b) else a * b
