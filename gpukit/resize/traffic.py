"""The memory traffic that a resize cannot do without: the bound that its speed is compared with."""

import math

import numpy as np

from gpukit._host.checks import check_sizes
from gpukit.resize.placing import CHANNELS, Placement, check_size
from warpstep.limits import SECTOR
from warpstep.values import check_flag, check_int, check_type

__all__ = ["least_bytes"]


def least_bytes(
    frames: int,
    source: tuple[int, int],
    target: tuple[int, int],
    place: Placement | None = None,
    items: tuple[int, int] = (1, 4),
    nearest: bool = False,
) -> int:
    """Count the bytes that must move at least: what a cold cache has to read, and all that is written.

    Every sector of 32 bytes that holds a value with a weight other than 0 is read once. Frames follow one another from
    an aligned address. A bilinear reduction by 3 has its places on the centres of every third row and column, so it
    needs a third of the rows and, of bytes, every sector in them.

    Parameters
    ----------
    frames : int
    source, target : tuple of 2 int
        Height and width.
    place : Placement, optional
        The picture's place in the target; the whole target unless given.
    items : tuple of 2 int
        Bytes of a value in the source and in the target.
    nearest : bool
        Nearest instead of bilinear.

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Examples
    --------
    >>> least_bytes(1, (480, 640), (240, 320))
    1843200
    """
    frames, source, target = check_int("frames", frames, 0), check_size("source", source), check_size("target", target)
    check_type("place", place, (Placement, type(None)), "a Placement or None")
    items = check_sizes("items", items, (1, 1), (8, 8), "a tuple of 2 ints, bytes")
    nearest = check_flag("nearest", nearest)
    size = target if place is None else (place.height, place.width)
    rows, columns = (_used(n, to, nearest) for n, to in zip(source, size, strict=True))
    needed = np.repeat(rows[:, None] & columns, CHANNELS * items[0]).reshape(-1)
    period = SECTOR // math.gcd(SECTOR, needed.size)  # after so many frames, sectors begin where frames begin
    sectors = frames // period * _sectors(needed, period) + _sectors(needed, frames % period)
    return sectors * SECTOR + frames * math.prod(target) * CHANNELS * items[1]


def _sectors(needed, frames):
    """Count the sectors of some frames that hold a byte that is needed."""
    every = np.tile(needed, frames)
    return int(np.pad(every, (0, -every.size % SECTOR)).reshape(-1, SECTOR).any(axis=1).sum())


def _used(n, size, nearest):
    """Mark which of n rows (or columns) have a weight in one of ``size``."""
    if nearest:
        first = second = np.arange(size) * n // size
    else:
        first, rest = np.divmod((2 * np.arange(size) + 1) * n - size, 2 * size)
        second = first + (rest > 0)
    used = np.zeros(n, bool)
    used[np.clip([first, second], 0, n - 1)] = True
    return used
