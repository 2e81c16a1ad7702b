"""The order in which blocks compute the tiles of a result: rasterisation."""

from typing import NamedTuple

import numpy as np

from gpukit.backend import cuda, uint32, uint64
from gpukit.divisors import Divisor, divided, make_divisor
from warpstep.integers import ceil_div

__all__ = ["ALL", "RASTER", "Order", "make_order", "matrices_of", "place", "spread", "starts_of"]

#: Rows of tiles that consecutive blocks share: they read the same parts of ``b`` while these are in the L2 cache. As
#: many blocks as an H200 runs at a time then make a square: with 4, a product of 8192 takes 2 % longer.
RASTER = 16


class Order(NamedTuple):
    """The tiles of all matrices and parts of K, as blocks find one of them by its number.

    A kernel that divides by plain numbers needs 0.8 us for that before its first copy.
    """

    tiles: np.uint32
    down: np.uint32  # of a matrix
    area: Divisor  # of a matrix
    band: Divisor  # of RASTER rows
    high: Divisor  # rows of the last band
    parts: Divisor
    steps: np.uint32  # of K
    share: np.uint32  # of a part
    # Matrix z of the result needs matrix z // div % mod of an operand.
    div_a: Divisor
    mod_a: Divisor
    div_b: Divisor
    mod_b: Divisor
    # Matrices of a group, of ``a`` and ``b``.
    inner_a: Divisor
    inner_b: Divisor


#: Matrices of a group where there is only one.
ALL = 2**31 - 1


def make_order(
    down: int,
    across: int,
    steps: int,
    parts: int,
    matrices: int,
    rules: tuple = ((1, 1), (1, 1)),
    inner: tuple = (ALL, ALL),
) -> Order:
    """Make the order of so many rows and columns of tiles, each with so many steps; ``rules`` are (div, mod) of ``a``
    and ``b``, ``inner`` the matrices of their groups.
    """
    tiles, share, high = down * across * parts * matrices, ceil_div(steps, parts), down % RASTER or RASTER
    area, band, last, pieces = map(make_divisor, (down * across, across * RASTER, high, parts))
    rest = [make_divisor(n) for rule in rules for n in rule]
    counts = np.uint32(tiles), np.uint32(down), np.uint32(steps), np.uint32(share)
    return Order(*counts[:2], area, band, last, pieces, *counts[2:], *rest, *map(make_divisor, inner))


@cuda.jit(device=True, forceinline=True)
def place(number, order):
    """The matrix, the part of K, the row and column of tiles, and the first and last step of a tile.

    Tiles follow one another down `RASTER` rows, then in the next column.
    """
    piece, inside = divided(number, order.area)
    z, part = divided(piece, order.parts)
    first = uint32(part * order.share)
    last = uint32(min(order.steps, first + order.share))
    band, inside = divided(inside, order.band)
    above = uint32(band * uint32(RASTER))
    col, row = uint32(inside // uint32(RASTER)), uint32(inside % uint32(RASTER))
    if above + uint32(RASTER) > order.down:
        col, row = divided(inside, order.high)
    return z, part, uint32(above + row), col, first, last


@cuda.jit(device=True, forceinline=True)
def matrices_of(z, order):
    """The matrices of ``a`` and ``b`` for one of the result."""
    z_a, _ = divided(z, order.div_a)
    z_b, _ = divided(z, order.div_b)
    _, z_a = divided(z_a, order.mod_a)
    _, z_b = divided(z_b, order.mod_b)
    return z_a, z_b


@cuda.jit(device=True, forceinline=True)
def starts_of(z, order, steps):
    """The first elements of these matrices; ``steps`` are those from matrix to matrix of a group of ``a`` and of ``b``,
    and from group to group.
    """
    start_a, start_b = uint64(0), uint64(0)
    if z > uint32(0):  # the first matrices begin at 0: a single one needs no divisions
        z_a, z_b = matrices_of(z, order)
        (group_a, z_a), (group_b, z_b) = divided(z_a, order.inner_a), divided(z_b, order.inner_b)
        start_a = uint64(z_a) * steps[0] + uint64(group_a) * steps[2]
        start_b = uint64(z_b) * steps[1] + uint64(group_b) * steps[3]
    return start_a, start_b


@cuda.jit(device=True, forceinline=True)
def spread(number, down, across, raster):
    """Row and column of tile ``number`` of so many rows and columns of them: down ``raster`` rows, a power of two, then
    in the next column.
    """
    band = uint32(across * raster)
    above = uint32(number // band * raster)
    inside, high = uint32(number % band), uint32(down - above)
    if high >= raster:  # no division
        return uint32(above + inside % raster), uint32(inside // raster)
    high = max(high, uint32(1))  # after the last tile
    return uint32(above + inside % high), uint32(inside // high)
