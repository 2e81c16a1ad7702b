"""Processing elements: copies of one program, each with a device, a number and its part of a symmetric heap.

Each has a Python thread; one runs at a time, and the next one has its turn where it must wait for others. So a program
does the same in every run.
"""

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from warpstep import device
from warpstep.api.allocations import Allocation

#: What a barrier on the device counts in, of each element: its arrivals and its rounds.
SYNC_WORDS = 2
#: What a wait for a signal compares, by the number of its kind.
COMPARISONS = (operator.eq, operator.ne, operator.gt, operator.le, operator.lt, operator.ge)


class Ended(BaseException):
    """Raised in an element when the program has ended in another one with an error."""


class Stuck(RuntimeError):
    """The elements wait for each other, and none can go on."""


class _Here(threading.local):
    element: "Element | None" = None


_here = _Here()


def current() -> "Element | None":
    """The element whose thread this is."""
    return _here.element


def begin_alone() -> "Element":
    """Make this thread the one element of a program."""
    _here.element = World(1).elements[0]
    return _here.element


class Part(NamedTuple):
    """Where an address lies in the symmetric heap: the array, whose part of it, and the bytes after its start."""

    array: int
    element: int
    offset: int


class Element:
    """One processing element.

    Attributes
    ----------
    world : World
    number : int
    arrays : list of Allocation, or None
        Its parts of the symmetric arrays, in the order of their allocation; None before ``init``.
    """

    def __init__(self, world: "World", number: int):
        self.world = world
        self.number = number
        self.arrays: Any = None
        #: "ready", "done", or what it waits for.
        self.state = "ready"
        #: Where it waits for all others.
        self.meeting: str | None = None
        #: The world's count of changes when it began to wait; True if nothing will ever change for it.
        self.seen = 0
        self.hopeless = False
        self._baton = threading.Lock()
        self._baton.acquire()

    def __repr__(self):
        return f"<PE {self.number} of {len(self.world.elements)}: {self.state}>"

    def stop(self):
        """Wait for the next turn."""
        self._baton.acquire()
        if self.world.error is not None and self.world.error[0] is not self:
            raise Ended

    def go_on(self):
        self._baton.release()

    def wait(self, what: str, changed: bool) -> bool:
        """Let others run until memory may have changed. False if none of them can, or ever will.

        ``what`` it waits for; ``changed``: it has changed memory itself since it last waited.
        """
        world = self.world
        world.changes += changed
        self.state, self.seen = what, world.changes
        following = world.choose(self)
        if following is None:
            return False
        following.go_on()
        self.stop()
        self.state = "ready"
        return not self.hopeless

    def meet(self, what: str) -> None:
        """Wait until all elements have come to this place. Stuck if one never does, or comes to another."""
        world = self.world
        world.changes += 1
        self.state, self.meeting = f"waits for the others in {what}", what
        if all(other.meeting == what for other in world.elements):
            for other in world.elements:
                other.state, other.meeting = "ready", None
            if world.tracker is not None:
                world.tracker.join_all(completes=what != "sync")
            return
        following = world.choose(self)
        if following is not None:
            following.go_on()
            self.stop()
        if following is None or self.hopeless:
            raise Stuck(f"PE {self.number} waits in {what} for the others, which never come:\n{world.describe(self)}")


class World:
    """The elements of one program and their symmetric heap.

    Attributes
    ----------
    elements : list of Element
    arrays : list of lists
        Of each symmetric array its allocation for each element.
    granules : list of int
        Of each symmetric array the bytes of the smallest part that a trace tells apart.
    changes : int
        Counts what may let a waiting element go on.
    error : (Element, exception) or None
        What has ended the program, and in which element; None for an interrupt.
    tracker : what orders accesses of different elements in traces, or None
    """

    def __init__(self, count: int):
        self.elements = [Element(self, number) for number in range(count)]
        self.arrays: list[list[Allocation | None]] = []
        self.granules: list[int] = []
        self.changes = 0
        self.error: tuple[Element | None, BaseException] | None = None
        self.tracker: Any = None

    # -- the symmetric heap --------------------------------------------------------------------------------------------

    def add(self, array: int, element: Element, allocation: Allocation, itemsize: int) -> None:
        """Make an allocation the part of an element in a symmetric array of items of a size."""
        while len(self.arrays) <= array:
            self.arrays.append([None] * len(self.elements))
            self.granules.append(min(itemsize, 4))
        self.arrays[array][element.number] = allocation

    def find(self, address: int) -> Part | None:
        """Where an address lies in the symmetric heap; None if it does not."""
        for array, parts in enumerate(self.arrays):
            for number, each in enumerate(parts):
                if each is not None and not each.freed and each.address <= address < each.address + each.bytes.size:
                    return Part(array, number, address - each.address)
        return None

    def open(self, array: Any) -> Any:
        """A launch's array of another device, with access to it if it is in the symmetric heap."""
        return array._replace(allowed=True) if self.find(array.first) is not None else array

    # -- turns ---------------------------------------------------------------------------------------------------------

    def choose(self, after: Element) -> Element | None:
        """Choose the next one that can run."""
        count = len(self.elements)
        others = (self.elements[(after.number + step) % count] for step in range(1, count))
        return next((o for o in others if o.state == "ready" or self._may_go_on(o)), None)

    def _may_go_on(self, element):
        waits = element.state not in ("ready", "done") and element.meeting is None
        return waits and element.seen < self.changes

    def describe(self, but: Element | None = None) -> str:
        """A line for each element that has not ended."""
        return "\n".join(
            f"  PE {e.number} {'has ended' if e.state == 'done' else e.state}" for e in self.elements if e is not but
        )

    def run(self, program: Callable, arguments: Sequence) -> list:
        """Call ``program(number, *arguments)`` in each element; returns what the calls return."""
        results: list[Any] = [None] * len(self.elements)

        def begin(element):
            try:
                element.stop()
                _here.element = element
                device.push(element.number)
                results[element.number] = program(element.number, *arguments)
            except Ended:
                pass
            except BaseException as error:
                if self.error is None:
                    self.error = element, error
            self._end(element)

        threads = [threading.Thread(target=begin, args=(element,), daemon=True) for element in self.elements]
        for thread in threads:
            thread.start()
        self.elements[0].go_on()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt: each ends where it would wait
            self.error = None, error
        if self.error is not None:
            element, error = self.error
            if element is None:
                raise error
            if f"PE {element.number}" not in str(error):
                error.add_note(f"in PE {element.number} of {len(self.elements)}")
            raise error
        return results

    def _end(self, element):
        element.state = "done"
        self.changes += 1
        following = self.choose(element)
        if self.error is not None or following is None:
            following = next((other for other in self.elements if other.state != "done"), None)
            if following is None:
                return
            following.hopeless = True
        following.go_on()
