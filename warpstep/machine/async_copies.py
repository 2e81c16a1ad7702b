"""Asynchronous copies from global to shared memory. They land when the thread that began them waits for them, and no
sooner: a kernel that forgets to wait reads what was there before.
"""

from dataclasses import dataclass

import numpy as np


@dataclass
class Copy:
    """One copy of each of some threads of a batch."""

    view: object
    #: Of the first element, checked.
    position: object
    #: One for each element.
    values: tuple
    #: Threads whose copy has not landed, (B, T).
    lanes: np.ndarray
    #: What `Copies.groups` was.
    groups: np.ndarray
    site: int


class Copies:
    """The copies of a batch of blocks that are under way.

    Attributes
    ----------
    groups : (B, T) int64 ndarray
        How many groups each thread has made.
    pending : list of Copy
        In the order in which they began.
    """

    def __init__(self, shape):
        self.shape = shape
        self.groups = np.zeros(shape, np.int64)
        self.pending = []

    def begin(self, view, position, values, mask, site):
        lanes = np.broadcast_to(True if mask is None else mask, self.shape).copy()
        self.pending.append(Copy(view, position, values, lanes, self.groups, site))

    def commit(self, mask):
        self.groups = self.groups + (1 if mask is None else mask)

    def landing(self, most, mask):
        """The copies that the threads of a mask wait for, each with its lanes; they are no longer pending after it."""
        done = self.groups - np.int64(most)
        for copy in self.pending:
            lanes = copy.lanes & (copy.groups < done)
            if mask is not None:
                lanes &= mask
            if lanes.any():
                copy.lanes &= ~lanes
                yield copy, lanes
        self.pending = [copy for copy in self.pending if copy.lanes.any()]
