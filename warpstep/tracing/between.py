"""The order between processing elements: what signals, fences and barriers order, and accesses that nothing orders.

An event is one access of an element, numbered from 1. What an element has seen of another is a number, up to which it
knows all events, without some: puts that were not complete when the signal was set that told of them.
"""

from typing import Any, NamedTuple

import numpy as np

from warpstep.machine import pes
from warpstep.machine.memory import Either

NOBODY = -1
SIGNAL_CURE = (
    "Send the data with put_signal and call signal_wait before they are used, or let all PEs meet in barrier_all. "
    "Before memory is overwritten, its reader must say in the same way that it is done."
)
FENCE_CURE = (
    "A signal may overtake a put before it: send both with put_signal, or call fence between the put and the signal."
)


class _Seen:
    """The events of all elements that one of them knows of."""

    def __init__(self, count):
        self.upto = np.zeros(count, np.int64)
        self.without: frozenset = frozenset()

    def copy(self):
        made = _Seen(0)
        made.upto, made.without = self.upto.copy(), self.without
        return made

    def knows(self, element, event):
        return event <= self.upto[element] and (element, event) not in self.without

    def join(self, other):
        gone = {e for e in self.without if not other.knows(*e)} | {e for e in other.without if not self.knows(*e)}
        self.upto = np.maximum(self.upto, other.upto)
        self.without = frozenset(gone)

    def ordered(self, element, events):
        """Which of some events of one element come before the present."""
        known = events <= self.upto[element]
        missing = [event for other, event in self.without if other == element]
        return known & ~np.isin(events, missing) if missing else known


class _Shadow:
    """Who wrote and read the cells of one element's part of an array last, in which event, and where in the source."""

    def __init__(self, cells, count):
        self.writer = np.full(cells, NOBODY, np.int8)
        self.written, self.write_place = np.zeros((2, cells), np.int64)
        self.atomic = np.zeros(cells, bool)
        self.read, self.read_place = np.zeros((2, count, cells), np.int64)


class _Place(NamedTuple):
    """One side of a conflict."""

    element: int
    did: str
    filename: str
    line: int


class Between:
    """The accesses of a program's elements to their symmetric heap.

    Parameters
    ----------
    world : pes.World
    """

    def __init__(self, world):
        self.world = world
        count = len(world.elements)
        self.events = [0] * count
        self.seen = [_Seen(count) for _ in range(count)]
        #: Puts of each element that need not have arrived, and the event after which data go before the next signal.
        self.pending: list[set] = [set() for _ in range(count)]
        self.data_from: list[int | None] = [None] * count
        #: {word of a signal: [(its value, what its setter knew)]}, since its owner wrote it last.
        self.released = {}
        self.shadows = {}
        self.places: list[Any] = [None]
        self._place_numbers = {}

    # -- order ---------------------------------------------------------------------------------------------------------

    def note(self, element, what, mask, word, comparison, wanted):
        """Note a fence, the beginning of a put with a signal, a signal that is set or increased, or one waited for.

        All but ``word`` are of the batch's shape.
        """
        me = element.number
        if what == "fence":
            self.pending[me].clear()
        elif what == "begin":
            self.data_from[me] = self.events[me]
        else:
            for key, value, lane in self._words(word, mask):
                self.signal(me, what, key, value, int(comparison.flat[lane]), int(wanted.flat[lane]))

    def complete(self, element):
        """Note that all puts of an element have arrived."""
        self.pending[element.number].clear()

    def join_all(self, completes=True):
        """Note that all elements have met."""
        for me, seen in enumerate(self.seen):
            if completes:
                self.pending[me].clear()
            seen.join(self._known(me))
        together = self.seen[0].copy()
        for seen in self.seen[1:]:
            together.join(seen)
        self.seen = [together.copy() for _ in self.seen]

    def _known(self, me):
        """What an element can tell another now: all that it knows and has done, without its pending puts."""
        found = self.seen[me].copy()
        found.upto[me] = self.events[me]
        found.without |= {(me, event) for event in self.pending[me]}
        return found

    def signal(self, me, what, key, value, comparison=0, wanted=0):
        """Note that an element has set or increased a signal, which is ``value`` now, or ends to wait for it.

        A wait knows what the first signal told that could have ended it, for no more is certain.
        """
        told_so_far = self.released.setdefault(key, [])
        if what == "acquire":
            enough = (told for number, told in told_so_far if pes.COMPARISONS[comparison](number, wanted))
            if (told := next(enough, None)) is not None:
                self.seen[me].join(told)
            return
        told, first = self._known(me), self.data_from[me]
        if first is not None:
            told.without = frozenset(e for e in told.without if not (e[0] == me and e[1] > first))
            self.data_from[me] = None
        if what == "add" and told_so_far:
            told.join(told_so_far[-1][1])
        told_so_far.append((value, told))

    def _words(self, word, mask):
        """Yield where in the symmetric heap the words are that lanes use, their values, and one lane each."""
        if word.__class__ is Either:
            for part, lanes in word.parts(mask):
                yield from self._words(part, lanes)
            return
        lanes = np.flatnonzero(mask)
        base = np.broadcast_to(word.base, mask.shape).reshape(-1)[lanes]
        for position, first in zip(*np.unique(base, return_index=True), strict=True):
            part = self.world.find(word.address + int(position) * word.items.dtype.itemsize)
            if part is not None:
                yield part, int(word.items[position]), int(lanes[first])

    # -- accesses ------------------------------------------------------------------------------------------------------

    def access(self, batch, view, address, position, mask, site, op, nbytes, unit):
        """Check one access of lanes of a batch to the symmetric heap, and record it."""
        part = self.world.find(view.address)
        here = batch.recorder.sites[site]
        if part is None or here.op == "poll":
            return
        world, me = self.world, batch.launch.element.number
        allocation = world.arrays[part.array][part.element]
        granule = world.granules[part.array]
        offset = np.broadcast_to(address - np.int64(allocation.address), batch.shape)
        active = np.broadcast_to(True if mask is None else mask, batch.shape)
        first = offset // granule
        spread = max(1, nbytes // granule)
        cells = np.unique(first[active][:, None] + np.arange(spread))
        shadow = self._shadow(part, allocation, granule)
        self.events[me] += 1
        kind = "load" if op == "load" else "store" if op == "store" else "atomic"
        for bad, place, lost in self._conflicts(me, shadow, cells, kind):
            lanes = active & np.isin(first[..., None] + np.arange(spread), bad).any(axis=-1)
            self._report(batch, view, position, unit, lanes, site, me, kind, place, lost)
        self._record(me, shadow, cells, kind, self._number(me, kind, here))
        if kind == "store" and part.element != me:
            self.pending[me].add(self.events[me])
        elif kind == "store":
            self._begin_anew(part, offset[active])

    def _begin_anew(self, part, offsets):
        """Forget the signals that an element has overwritten in its own memory."""
        for word in [key for key in self.released if key[:2] == part[:2]]:
            if word.offset in offsets:
                self.released[word] = self.released[word][-1:]

    def _shadow(self, part, allocation, granule):
        key = part.array, part.element
        if key not in self.shadows:
            self.shadows[key] = _Shadow(allocation.bytes.size // granule, len(self.world.elements))
        return self.shadows[key]

    def _conflicts(self, me, shadow, cells, kind):
        """Yield (cells, place of the other side, whether a signal overtook it) of accesses that nothing orders."""
        seen = self.seen[me]
        for other in range(len(self.world.elements)):
            if other == me:
                continue
            theirs = shadow.writer[cells] == other
            if kind == "atomic":
                theirs &= ~shadow.atomic[cells]
            found = [(theirs, shadow.written[cells], shadow.write_place[cells])]
            if kind != "load":
                read = shadow.read[other][cells]
                found.append((read > 0, read, shadow.read_place[other][cells]))
            for there, events, places in found:
                bad = there & ~seen.ordered(other, events)
                if bad.any():
                    at = int(np.argmax(bad))
                    lost = (other, int(events[at])) in seen.without
                    yield cells[bad], self.places[int(places[at])], lost

    def _record(self, me, shadow, cells, kind, place):
        if kind == "load":
            shadow.read[me][cells], shadow.read_place[me][cells] = self.events[me], place
            return
        shadow.writer[cells], shadow.written[cells], shadow.write_place[cells] = me, self.events[me], place
        shadow.atomic[cells] = kind == "atomic"
        shadow.read[:, cells] = 0

    def _number(self, me, kind, site):
        did = {"load": "reads", "store": "writes", "atomic": "changes"}[kind]
        place = _Place(me, did, site.filename, site.line)
        if place not in self._place_numbers:
            self._place_numbers[place] = len(self.places)
            self.places.append(place)
        return self._place_numbers[place]

    def _name(self, batch, view, position, lanes, unit):
        """Name the element that the first lane of a mask accesses: ``halo[3]``, ``halo[3] of PE 1``."""
        array, _, pe = view.name.partition(" of PE ")
        name = batch.element_at(view, position, lanes, unit).replace(view.name, array)
        return f"{name} of PE {pe}" if pe else name

    def _report(self, batch, view, position, unit, lanes, site, me, kind, other, lost):
        here = batch.recorder.sites[site]
        did = {"load": "reads", "store": "writes", "atomic": "changes"}[kind]
        where = "" if other.filename == here.filename else f" of {other.filename}"
        message = (
            f"PE {me} {did} {self._name(batch, view, position, lanes, unit)} at line {here.line}, PE {other.element} "
            f"{other.did} it at line {other.line}{where}, and no signal orders the two"
        )
        pair = other.filename, other.line
        found = batch.recorder.problem(
            batch, "race", site, message, lanes, FENCE_CURE if lost else SIGNAL_CURE, view.name, pair
        )
        found.certain = True
