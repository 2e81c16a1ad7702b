"""Asynchronous copies from global to shared memory.

A copy lands when the thread that began it waits for it, and no sooner: a kernel that forgets to wait reads the old
elements.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Copy:
    """One copy of each of some threads of a batch.

    Attributes
    ----------
    view : memory.View
        The shared array.
    position : value
        Of the first element, checked.
    values : list
        One for each element.
    lanes : (B, T) bool ndarray
        Threads whose copy has not landed.
    groups : (B, T) int64 ndarray
        `Copies.groups` when the copy began.
    """

    view: Any
    position: Any
    values: list
    lanes: np.ndarray
    groups: np.ndarray
    site: int


class Copies:
    """The copies in flight of a batch of blocks.

    Attributes
    ----------
    groups : (B, T) int64 ndarray
        Groups that each thread has committed.
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

    def landing(self, pending, mask):
        """Yield the copies that the threads of a mask wait for, each with its lanes, and drop them.

        Copies of a thread's last ``pending`` groups stay.
        """
        done = self.groups - np.int64(pending)
        for copy in self.pending:
            lanes = copy.lanes & (copy.groups < done)
            if mask is not None:
                lanes &= mask
            if lanes.any():
                copy.lanes &= ~lanes
                yield copy, lanes
        self.pending = [copy for copy in self.pending if copy.lanes.any()]
