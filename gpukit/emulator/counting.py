"""How the hardware counts the accesses of whole warps: wavefronts in shared memory, sectors everywhere else.

All functions take ``addresses``, (n, 32) int64 byte addresses with one row for each warp, and ``active``, the (n, 32)
lanes that take part, or None for all.
"""

from typing import NamedTuple

import numpy as np

WARP = 32
#: Bytes of a sector, the unit that global memory moves in, and of a bank's word in shared memory.
SECTOR = 32
WORD = 4


class Counts(NamedTuple):
    """For each warp: what its access took, and the least that it could have taken."""

    wavefronts: np.ndarray
    ideal_wavefronts: np.ndarray
    sectors: np.ndarray
    ideal_sectors: np.ndarray

    def excess(self):
        return self.wavefronts - self.ideal_wavefronts + self.sectors - self.ideal_sectors


def shared(addresses, active, itemsize):
    """Wavefronts of accesses to shared memory.

    The 32 banks serve one word of 4 bytes each in a wavefront, to any number of lanes. Lanes that access 8 or 16 bytes
    are served by half and quarter warps.
    """
    wide = max(itemsize, WORD)
    groups = min(wide // WORD, WARP)
    units = _same_where_idle(addresses, active) // wide
    rows = units.reshape(-1, WARP // groups)
    passes = np.ones(rows.shape[0], np.int64)
    hard = np.flatnonzero(rows.max(axis=1) - rows.min(axis=1) >= WARP // groups)
    if hard.size:
        passes[hard] = _most_in_a_bank(rows[hard], WARP // groups)
    ideal = np.ones(rows.shape[0], np.int64)
    if active is not None:
        used = active.reshape(rows.shape).any(axis=1)
        passes *= used
        ideal *= used
    nothing = np.zeros(addresses.shape[0], np.int64)
    return Counts(passes.reshape(-1, groups).sum(axis=1), ideal.reshape(-1, groups).sum(axis=1), nothing, nothing)


def sectors(addresses, active, itemsize, aligned):
    """Sectors of accesses to global memory; ``aligned``: every address is a multiple of the item's size."""
    addresses = _same_where_idle(addresses, active)
    first = addresses // SECTOR
    if not aligned:
        first = np.concatenate([first, (addresses + (itemsize - 1)) // SECTOR], axis=1)
    touched = distinct(first)
    least = -(-distinct(addresses) * itemsize // SECTOR)
    return _of_memory(touched, least, active)


def local_sectors(addresses, active, itemsize):
    """Sectors of accesses to local memory; the addresses are those in one thread's own memory.

    The words of 32 lanes lie side by side: word w of lane l is number 32 w + l.
    """
    lanes = np.arange(WARP)
    first = np.broadcast_to(addresses // WORD, (addresses.shape[0], WARP))
    words = max(1, itemsize // WORD)
    segments = [(first + w) * (WARP * WORD // SECTOR) + lanes * WORD // SECTOR for w in range(words)]
    touched = distinct(np.concatenate([_same_where_idle(s, active) for s in segments], axis=1))
    taking_part = np.full(addresses.shape[0], WARP) if active is None else active.sum(axis=1)
    return _of_memory(touched, -(-taking_part * max(itemsize, WORD) // SECTOR), active)


def _of_memory(touched, least, active):
    if active is not None:
        used = active.any(axis=1)
        touched, least = touched * used, least * used
    nothing = np.zeros(touched.size, np.int64)
    return Counts(nothing, nothing, touched, least)


def distinct(values):
    """Number of different values in each row."""
    steps = values[:, 1:] - values[:, :-1]
    if steps.size and steps.min() < 0:
        values = np.sort(values, axis=1)
        steps = values[:, 1:] - values[:, :-1]
    return 1 + np.count_nonzero(steps, axis=1)


def _same_where_idle(values, active):
    """Idle lanes do what the first active lane of their warp does, so that they add nothing."""
    if active is None:
        return values
    first = active.argmax(axis=1)
    return np.where(active, values, values[np.arange(values.shape[0]), first][:, None])


def _most_in_a_bank(units, banks):
    """The largest number of different words in one bank, for each row."""
    units = np.sort(units, axis=1)
    new = np.ones(units.shape, bool)
    new[:, 1:] = units[:, 1:] != units[:, :-1]
    place = np.arange(units.shape[0])[:, None] * banks + units % banks
    return np.bincount(place[new], minlength=units.shape[0] * banks).reshape(-1, banks).max(axis=1)
