"""The batches of one launch, and the turns that they take where blocks wait for blocks of another batch.

A batch runs to its end before the next one begins, unless its lanes only wait for memory that others write: then it is
suspended and the next one begins, as long as the device can hold all their blocks at once. Each such batch has a
Python thread, for its stack; one of them runs at a time.
"""

import contextvars
import functools
import math
import threading
from collections import deque
from typing import Any

import numpy as np

from warpstep.machine.memory import WATCHED, overlap
from warpstep.machine.progress import Switch, buffers_of

#: Blocks of a batch once lanes have waited for other lanes so many times: then few lanes run at a time.
WAITING_BLOCKS, MANY_WAITS = 64, 128


class _Turn:
    """A batch that may be suspended, with what wakes its thread.

    ``began`` is its epoch when it last went on, ``seen`` the count of changes when it was suspended.
    """

    def __init__(self):
        self.batch: Any = None
        self.thread: threading.Thread | None = None
        self.began = self.seen = 0
        self._baton = threading.Lock()
        self._baton.acquire()

    def stop(self):
        """Wait until another turn lets this one go on."""
        self._baton.acquire()

    def go_on(self):
        if self.thread is not None and self.thread.ident is None:
            self.thread.start()
        elif self._baton.locked():
            self._baton.release()


class Turns:
    """The batches of one launch; leaving it as a context manager ends those that are suspended.

    Parameters
    ----------
    launch : launch.Launch
    arguments : list
    wanted : (n,) int64 ndarray, optional
        Positions of the blocks to run, ascending; all unless given.

    Attributes
    ----------
    left : int
        Blocks that have not begun.
    """

    def __init__(self, launch, arguments, wanted=None):
        self.launch = launch
        self.arguments = arguments
        self._wanted = wanted
        self._total = self.left = launch.blocks if wanted is None else wanted.size
        self._step = self._total if launch.program.cooperative else launch.blocks_per_batch()
        #: The turn of the thread that makes the launch; between its batches it waits until no other is suspended.
        self._home = self._running = _Turn()
        self._waiting: deque[_Turn] = deque()
        self._threads = []
        #: Counts the turns that have changed memory which other batches see.
        self._changes = 0
        self._error: BaseException | None = None
        self._ended = False
        self._first_wait = True

    @functools.cached_property
    def _written(self):
        """The buffers that the kernel may write and all blocks see."""
        return [items for i in self.launch.program.written for items in buffers_of(self.arguments[i])]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._ended = True
        if self._running.batch is not None:
            self._running.batch.turns_to_switch = -math.inf
        for turn in self._waiting:
            turn.go_on()
        for thread in self._threads:
            thread.join()
        self.launch.turns = None  # no circle keeps the arguments' memory until the garbage collector comes by

    def next_ids(self, room=math.inf):
        """Return the positions of the blocks of the next batch, at most ``room``; None if there are none."""
        if self.launch.waits > MANY_WAITS:
            self._step = min(self._step, WAITING_BLOCKS)
        first = self._total - self.left
        last = int(min(first + self._step, first + room, self._total))
        last -= (last - first) % self.launch.cluster
        if first >= last:
            return None
        self.left = self._total - last
        return np.arange(first, last, dtype=np.int64) if self._wanted is None else self._wanted[first:last]

    def run(self, batch):
        """Run a batch, and go on with those that it has left suspended."""
        home = self._home
        home.batch, home.began = batch, batch.epoch
        self.launch.run_batch(batch, self.arguments)
        home.batch = None
        if self._waiting:
            self._changes += 1
            self._pass_to(self._waiting.popleft(), home)

    # -- taking turns --------------------------------------------------------------------------------------------------

    def wait(self, batch, read):
        """Suspend a batch until others have changed memory.

        Returns
        -------
        bool
            False if no other batch can run, or none can write to the buffers ``read``, all that it waits for (None: it
            may be any memory).
        """
        if self._ended:
            raise Switch
        if self.launch.element is None and not overlap(read, self._written):
            return False
        turn = self._running
        if overlap(batch.memory.changes(turn.began), self._written):
            self._changes += 1
        following = self._choose(batch)
        if following is None:
            return False
        turn.seen = self._changes
        self._waiting.append(turn)
        batch.suspend()
        self._pass_to(following, turn)
        batch.go_on()
        turn.began = batch.epoch
        return True

    def wait_for_others(self, batch, what):
        """Let other processing elements run until they may have changed memory; False if there are none that can."""
        element = self.launch.element
        if element is None or self._ended:
            return False
        changed = self._first_wait or bool(batch.memory.changes(self._running.began))
        self._first_wait = False
        if not element.wait(what, changed):
            return False
        self._changes += 1
        batch.memory.disturb()
        self._running.began = batch.epoch
        return True

    def _choose(self, batch):
        """Choose the turn after that of a batch: of new blocks if there is room; None if all wait."""
        held = sum(other.blocks_alive() for other in (batch, *(turn.batch for turn in self._waiting)))
        ids = self.next_ids(self.launch.resident_blocks - held)
        if ids is not None:
            turn = _Turn()
            turn.thread = threading.Thread(target=contextvars.copy_context().run, args=(self._begin, turn, ids))
            self._threads.append(turn.thread)
            return turn
        following = next((turn for turn in self._waiting if turn.seen < self._changes), None)
        if following is not None:
            self._waiting.remove(following)
        return following

    def _begin(self, turn, ids):
        """Run a batch in its own thread."""
        following = self._home
        try:
            batch = turn.batch = self.launch.make_batch(self.launch, ids)
            batch.memory.level = batch.memory.watching = WATCHED
            turn.began = batch.epoch
            self.launch.run_batch(batch, self.arguments)
            self._changes += 1
            if self._waiting:
                following = self._waiting.popleft()
        except BaseException as error:
            self._error = error
        turn.batch = None
        if not self._ended:
            self._running = following
            following.go_on()

    def _pass_to(self, following, turn):
        """Let another turn run; return when ``turn`` comes again."""
        self._running = following
        following.go_on()
        turn.stop()
        if self._ended:
            raise Switch
        if self._error is not None:
            raise self._error
