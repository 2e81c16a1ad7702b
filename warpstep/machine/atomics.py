"""Atomic operations of all lanes of a batch at once; the old values are those of one possible order, that of the lanes.

Only lanes that hit the same address depend on each other: round r does the r-th lane of every address.
"""

from functools import partial

import numpy as np

from warpstep.machine.memory import UNWATCHED, Either, merge

_IN_PLACE = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
#: max and min keep a NaN in memory and ignore a NaN operand; nanmax and nanmin replace a NaN in memory.
_EXTREMES = {"max": np.maximum, "min": np.minimum, "nanmax": np.fmax, "nanmin": np.fmin}


def _inc(old, limit):
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def _dec(old, limit):
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


_STEPS = {"inc": _inc, "dec": _dec}


def atomic(memory, op, view, index, value, other, mask, site, wants_old):
    """Do ``op`` at ``view[index]`` for every active lane.

    Parameters
    ----------
    op : str
        add sub and or xor max min nanmax nanmin inc dec exch cas
    value, other : value
        The operand; for cas the expected value and the new one.
    wants_old : bool
        False if the kernel drops the result; returns None then.

    Returns
    -------
    (B, T) array of old values, or None
    """
    if view.__class__ is Either:
        result = None
        for part, lanes in view.parts(mask):
            result = merge(lanes, atomic(memory, op, part, index, value, other, lanes, site, wants_old), result)
        return result
    if view.space == "const":
        memory.batch.read_only(site, view, mask)
        return np.zeros((memory.blocks, memory.threads), view.dtype)
    if view.space == "local":
        memory.batch.unsupported(
            site, f"an atomic operation on local array {view.name!r}: atomics need memory that threads share"
        )
    shape = (memory.blocks, memory.threads)
    memory.operands(view, (value, other), mask, site)
    kind = "cas" if op == "cas" else "atomic" if wants_old else "reduction"
    position, mask = memory.reach(view, index, mask, site, kind)
    if view.row:
        position = position + memory.block_row * np.int64(view.row)
    active = slice(None) if mask is None else np.broadcast_to(mask, shape).reshape(-1)
    at = np.broadcast_to(position, shape).reshape(-1)[active]
    operand = np.broadcast_to(value, shape).reshape(-1)[active]
    second = None if other is None else np.broadcast_to(other, shape).reshape(-1)[active]
    if view.known is not None:
        view.known[at] = True
    items, at = _whole_items(memory, view, at, site)
    if not wants_old and (op in _IN_PLACE or op in _EXTREMES):
        if memory.watching == UNWATCHED:
            memory.batch.epoch += 1
            _without_result(items, op, at, operand)
        else:
            memory.watch(items, partial(items.take, at), partial(_without_result, items, op, at, operand))
        return None
    old = _with_result(memory, items, op, at, operand, second)
    result = np.zeros(shape, view.dtype)
    result.reshape(-1)[active] = old
    return result


def _whole_items(memory, view, at, site):
    """View the buffer as elements of the array's type, with positions in it, which are bytes for a field of records."""
    items = view.items
    if view.dtype == items.dtype:
        return items, at
    size = view.dtype.itemsize
    if (at % size).any():
        memory.batch.unsupported(site, f"an atomic operation on {view.name!r}, whose elements are not aligned")
    return items[: items.size // size * size].view(view.dtype), at // size


def _without_result(items, op, at, operand):
    if op in _IN_PLACE:
        _IN_PLACE[op].at(items, at, operand)
        return
    if operand.dtype.kind == "f":
        # Neither a NaN nor a value equal to the one in memory changes it (0.0 equals -0.0).
        matters = ~np.isnan(operand) & (operand != items[at])
        at, operand = at[matters], operand[matters]
    _EXTREMES[op].at(items, at, operand)


def _with_result(memory, items, op, at, operand, second):
    order = np.argsort(at, kind="stable")
    sorted_at = at[order]
    starts = np.flatnonzero(np.r_[True, sorted_at[1:] != sorted_at[:-1]]) if at.size else np.zeros(0, np.int64)
    counts = np.diff(np.r_[starts, at.size])
    memory.keep(items)
    before = items[sorted_at[starts]]
    old = np.empty(at.size, items.dtype)
    if op in _IN_PLACE and counts.size and counts.max() > 4 * counts.size:
        _few_addresses(items, op, sorted_at, starts, counts, operand[order], old)
        old[order] = old.copy()
    elif op == "exch":
        _exchange(items, order, sorted_at, starts, operand, old)
    elif op == "cas":
        _compare_and_swap(items, order, sorted_at, starts, operand, second, old)
    else:
        rank = np.arange(at.size) - np.repeat(starts, counts)
        _by_rounds(items, op, order, rank, at, operand, old)
    if not np.array_equal(before, items[sorted_at[starts]]):
        memory.note_change(items)
    return old


def _few_addresses(items, op, at, starts, counts, operand, old):
    """Do many lanes on few addresses: one running total for each address."""
    ufunc = np.add if op == "sub" else _IN_PLACE[op]
    if op == "sub":
        operand = -operand
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        running = ufunc.accumulate(np.r_[items[at[start]], operand[start : start + count]], dtype=items.dtype)
        old[start : start + count] = running[:-1]
        items[at[start]] = running[-1]


def _exchange(items, order, at, starts, operand, old):
    """Give each lane the operand of the lane before it at its address, the first one what is in memory."""
    new = operand[order]
    found = np.roll(new, 1)
    found[starts] = items[at[starts]]
    old[order] = found
    items[at] = new


def _compare_and_swap(items, order, at, starts, expected, new, old):
    """Round by round: at each address, the lanes up to the first one that finds what it expects."""
    expected, new = expected[order], new[order].astype(items.dtype)
    first, found = np.zeros(at.size, np.int64), items[at]
    first[starts] = starts
    first = np.maximum.accumulate(first)
    lanes = np.arange(at.size)
    while True:  # lanes that swap anew, each the first one at its address
        swaps = lanes[(found == expected)[lanes]]
        if not swaps.size:
            break
        swaps = swaps[np.r_[True, first[swaps[1:]] != first[swaps[:-1]]]]
        items[at[swaps]] = new[swaps]
        # All lanes after those find the new value, until the next one swaps.
        swapper = np.full(at.size, -1)
        swapper[swaps] = swaps
        swapper = np.maximum.accumulate(swapper)
        lanes = np.flatnonzero((swapper >= first) & (swapper < np.arange(at.size)))
        found[lanes] = new[swapper[lanes]]
    old[order] = found


def _by_rounds(items, op, order, rank, at, operand, old):
    by_rank = order[np.argsort(rank, kind="stable")]
    edges = np.cumsum(np.bincount(rank)) if rank.size else ()
    first = 0
    for last in edges:
        lanes = by_rank[first:last]
        first = last
        where = at[lanes]
        current = items[where]
        old[lanes] = current
        items[where] = _step(op, current, operand[lanes])


def _step(op, old, operand):
    if op in _IN_PLACE:
        return _IN_PLACE[op](old, operand)
    if op in _EXTREMES:
        if old.dtype.kind == "f":
            return np.where(np.isnan(operand) | (operand == old), old, _EXTREMES[op](old, operand))
        return _EXTREMES[op](old, operand)
    return _STEPS[op](old, operand)
