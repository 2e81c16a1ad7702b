"""Count the accesses of whole warps as the hardware does: wavefronts in shared memory, sectors everywhere else.

All functions take ``addresses``, (n, 32) int64 byte addresses with one row for each warp, and ``active``, the (n, 32)
active lanes, or None for all.
"""

from typing import NamedTuple

import numpy as np

from warpstep.integers import ceil_div
from warpstep.limits import LINE, SECTOR, WARP, WORD

#: Lines that the L1 cache looks up at a time.
TAGS = 4
#: Bytes per lane that the banks serve.
BANKED = (1, 2, 4, 8, 16)


class Counts(NamedTuple):
    """For each warp the cost of its access, and the least possible cost."""

    wavefronts: np.ndarray
    ideal_wavefronts: np.ndarray
    bank_conflicts: np.ndarray
    sectors: np.ndarray
    ideal_sectors: np.ndarray
    lines: np.ndarray
    l1_wavefronts: np.ndarray

    def excess(self):
        return self.bank_conflicts + self.sectors - self.ideal_sectors


def _shared(wavefronts, ideal):
    zero = np.zeros_like(wavefronts)
    return Counts(wavefronts, ideal, wavefronts - ideal, zero, zero, zero, zero)


def _outside(sectors, ideal, lines, l1_wavefronts):
    """`Counts` of global or local memory."""
    zero = np.zeros_like(sectors)
    return Counts(zero, zero, zero, sectors, ideal, lines, l1_wavefronts)


def shared_access(addresses, active, itemsize, op):
    """Wavefronts of loads and stores in shared memory.

    In a wavefront each of the 32 banks serves one word of 4 bytes, to any number of lanes. Accesses of 8 or 16 bytes
    are served by half and quarter warps. Two halves (quarters) of a load are served together if every lane of the warp
    accesses the same unit as lane ``lane ^ 1``, or every lane the same as ``lane ^ 2``; idle lanes match any.
    """
    wide = max(itemsize, WORD)
    groups = wide // WORD
    if groups > WARP or WARP % groups:
        raise ValueError(f"{itemsize} bytes per lane")
    units = addresses // wide
    passes, used = _passes(units, active, WARP // groups, WARP // groups)
    if op == "load" and groups > 1:
        together = np.repeat(_neighbours_agree(units, active), groups // 2)
        if together.any():
            at = np.flatnonzero(together)
            rows = units.reshape(-1, 2 * WARP // groups)[at]
            lanes = None if active is None else active.reshape(-1, 2 * WARP // groups)[at]
            merged, used_too = _passes(rows, lanes, 2 * WARP // groups, WARP // groups)
            passes, used = (values.reshape(-1, 2) for values in (passes, used))
            passes[at], used[at] = 0, 0
            passes[at, 0], used[at, 0] = merged, used_too
    passes, used = (values.reshape(addresses.shape[0], -1).sum(axis=1) for values in (passes, used))
    return _shared(passes, used)


def _passes(units, active, lanes, banks):
    """Count (wavefronts, 1 if there are any) for each group of lanes; a lane accesses one unit of one bank."""
    rows = units.reshape(-1, lanes)
    mask = None if active is None else active.reshape(-1, lanes)
    rows = _fill_idle(rows, mask)
    passes = np.ones(rows.shape[0], np.int64)
    hard = np.flatnonzero(rows.max(axis=1) - rows.min(axis=1) >= banks)
    if hard.size:
        passes[hard] = _busiest_bank(rows[hard], banks)
    used = np.ones(rows.shape[0], np.int64) if mask is None else mask.any(axis=1).astype(np.int64)
    return passes * used, used


def _neighbours_agree(units, active):
    """Mask the warps in which all lanes agree with lane ^ 1, or all with lane ^ 2."""
    result = np.zeros(units.shape[0], bool)
    for distance in (1, 2):
        other = np.arange(WARP) ^ distance
        same = units == units[:, other]
        if active is not None:
            same |= ~(active & active[:, other])
        result |= same.all(axis=1)
    return result


def shared_atomic(addresses, active, compare_and_swap):
    """Wavefronts of atomic operations in shared memory: a bank serves its lanes one by one, the same word or not.

    A compare-and-swap takes two for each.
    """
    banks = addresses // WORD % WARP
    place = np.arange(banks.shape[0])[:, None] * WARP + banks
    hits = np.bincount(place.reshape(-1) if active is None else place[active], minlength=banks.shape[0] * WARP)
    passes = hits.reshape(-1, WARP).max(axis=1)
    used = np.minimum(passes, 1)
    times = 2 if compare_and_swap else 1
    return Counts(times * passes, times * used, passes - used, *[np.zeros_like(passes)] * 4)


def sectors(addresses, active, itemsize, aligned):
    """Sectors of loads and stores in global memory; ``aligned``: every address is a multiple of the item's size."""
    addresses = _fill_idle(addresses, active)
    first = addresses // SECTOR
    if not aligned:
        first = np.concatenate([first, (addresses + (itemsize - 1)) // SECTOR], axis=1)
    lines = distinct(first // (LINE // SECTOR))
    return _of_memory(distinct(first), itemsize, active, lines, _through_l1(addresses, active, itemsize, lines))


def _through_l1(addresses, active, itemsize, lines):
    """Wavefronts of loads and stores in L1: its lines lie across the same 32 banks, and it looks up four at a time."""
    passes = ceil_div(lines, TAGS)
    if itemsize in BANKED:
        passes = np.maximum(passes, shared_access(addresses, active, itemsize, "load").wavefronts)
    return passes


def atomic_sectors(addresses, active, itemsize):
    """Sectors of atomic operations in global memory: lanes that hit the same element go one after another."""
    order = np.sort(_fill_idle(addresses, active), axis=1) if active is None else _idle_last(addresses, active)
    new = np.ones(order.shape, bool)
    new[:, 1:] = order[:, 1:] != order[:, :-1]
    start = np.maximum.accumulate(np.where(new, np.arange(WARP), 0), axis=1)
    rank = np.arange(WARP) - start  # of a lane among those of its element
    counted = order >= 0
    # The lanes of one rank go together: count the sectors of each rank.
    key = np.where(counted, order // SECTOR * WARP + rank, -1)
    key = np.sort(key, axis=1)
    fresh = np.ones(key.shape, bool)
    fresh[:, 1:] = key[:, 1:] != key[:, :-1]
    touched = np.count_nonzero(fresh & (key >= 0), axis=1)
    lines = distinct(_fill_idle(addresses, active) // LINE)
    return _of_memory(touched, itemsize, active, lines, lines)


def _idle_last(addresses, active):
    return np.sort(np.where(active, addresses, -1), axis=1)


def local_sectors(addresses, active, itemsize):
    """Sectors of accesses to local memory; an address counts from the start of the thread's own memory.

    The words of 32 lanes are interleaved: word w of lane l is number 32 w + l.
    """
    lanes = np.arange(WARP)
    first = np.broadcast_to(addresses // WORD, (addresses.shape[0], WARP))
    words = max(1, itemsize // WORD)
    segments = [(first + w) * (WARP * WORD // SECTOR) + lanes * WORD // SECTOR for w in range(words)]
    segments = np.concatenate([_fill_idle(s, active) for s in segments], axis=1)
    touched, lines = distinct(segments), distinct(segments // (LINE // SECTOR))
    used = np.True_ if active is None else active.any(axis=1)
    lanes_active = WARP if active is None else active.sum(axis=1)
    ideal = np.full_like(touched, ceil_div(lanes_active * max(itemsize, WORD), SECTOR))
    return _outside(touched * used, ideal, lines * used, lines * used)


def _of_memory(touched, itemsize, active, lines, passes):
    """Make `Counts`: the ideal is the sectors of the elements side by side, or fewer if lanes share elements."""
    lanes_active = WARP if active is None else active.sum(axis=1)
    used = np.minimum(lanes_active, 1)
    touched = touched * used
    ideal = np.minimum(touched, ceil_div(lanes_active * itemsize, SECTOR))
    return _outside(touched, ideal, lines * used, passes * used)


def distinct(values):
    """Count the different values in each row."""
    steps = values[:, 1:] - values[:, :-1]
    if steps.size and steps.min() < 0:
        values = np.sort(values, axis=1)
        steps = values[:, 1:] - values[:, :-1]
    return 1 + np.count_nonzero(steps, axis=1)


def _fill_idle(values, active):
    """Replace the values of idle lanes by that of their warp's first active lane, so that they add nothing."""
    if active is None:
        return values
    first = active.argmax(axis=1)
    return np.where(active, values, values[np.arange(values.shape[0]), first][:, None])


def _busiest_bank(units, banks):
    """Count the different words of the busiest bank, for each row."""
    units = np.sort(units, axis=1)
    new = np.ones(units.shape, bool)
    new[:, 1:] = units[:, 1:] != units[:, :-1]
    place = np.arange(units.shape[0])[:, None] * banks + units % banks
    return np.bincount(place[new], minlength=units.shape[0] * banks).reshape(-1, banks).max(axis=1)


def count_warps(space, rows, active, op, nbytes, aligned):
    """Count the accesses of some warps; ``op`` is "load", "store", "atomic" or "cas"."""
    is_atomic = op in ("atomic", "cas")
    if space == "shared":
        return shared_atomic(rows, active, op == "cas") if is_atomic else shared_access(rows, active, nbytes, op)
    if space == "local":
        return local_sectors(rows, active, nbytes)
    if is_atomic:
        return atomic_sectors(rows, active, nbytes)
    return sectors(rows, active, nbytes, aligned)
