"""Tensor cores: which lane of a warp holds which element of a small matrix, and the products."""

from typing import NamedTuple

import numpy as np

from warpstep.limits import WARP
from warpstep.machine.arithmetic import fma

#: Bits below the largest exponent with which a tensor core adds; no exponent counts as less; that of the smallest
#: normal float32, which the total's is at least unless it is zero.
FRACTION, MIN_EXPONENT, FLOAT32_EXPONENT = 25, -900, -126
#: The NaN of tensor cores.
NAN = np.uint32(0x7FFFFFFF).view(np.float32)

__all__ = ["Fragment", "add_products", "exact", "fragments", "multiply", "unpack"]


class Fragment(NamedTuple):
    """Where the elements of a matrix lie: element i of lane n is in row ``rows[n, i]`` and column ``columns[n, i]``."""

    shape: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray

    def gather(self, elements: list) -> np.ndarray:
        """The matrices (blocks, warps, rows, columns) of elements (blocks, warps, 32)."""
        matrices = np.empty((*elements[0].shape[:2], *self.shape), elements[0].dtype)
        for i, values in enumerate(elements):
            matrices[:, :, self.rows[:, i], self.columns[:, i]] = values
        return matrices

    def scatter(self, matrices: np.ndarray) -> list[np.ndarray]:
        """The elements of matrices, the inverse of `gather`."""
        return [matrices[:, :, rows, columns] for rows, columns in zip(self.rows.T, self.columns.T, strict=True)]


def fragments(counts: tuple[int, ...], packed: int = 1) -> tuple[Fragment, Fragment, Fragment]:
    """The maps of a, b and c, for so many elements of each of the three in a lane.

    ``packed`` elements of a and b lie in one register: 1 of float64 and TF32, 2 of 16 bits, 4 bytes. They are
    neighbours along K.
    """
    group, place = np.divmod(np.arange(WARP)[:, None], 4)
    a, b, c = (np.arange(count) for count in counts)
    rows, depth = 8 if counts[2] == 2 else 16, 4 * counts[1]
    register, inside = np.divmod(a, packed)
    if rows == 8:
        left = Fragment((8, depth), group + 0 * a, place + 0 * a)
    else:
        column = packed * place + inside + 4 * packed * (register // 2)
        left = Fragment((16, depth), group + 8 * (register % 2) + 0 * column, column)
    register, inside = np.divmod(b, packed)
    right = Fragment((depth, 8), packed * place + inside + 4 * packed * register, group + 0 * b)
    return left, right, Fragment((rows, 8), group + 8 * (c // 2), 2 * place + c % 2)


def exact(values: np.ndarray) -> np.ndarray:
    """Numbers of a tile as those that tensor cores multiply, in float64. uint16 holds bfloat16."""
    kind = values.dtype
    if kind == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if kind == np.float32:  # TF32: the last 13 bits are ignored
        return (
            (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        )
    return values.astype(np.float64)


def unpack(elements: list) -> tuple[list, int]:
    """The elements of a or b as numbers that multiply exactly, and how many of them a register has."""
    kind = elements[0].dtype
    if kind == np.uint32:  # pairs of bfloat16, the first in the low half
        halves = [half.astype(np.uint16) for values in elements for half in (values, values >> np.uint32(16))]
        return [exact(half) for half in halves], 2
    if kind == np.int32:
        return [((values << (24 - 8 * i)) >> 24).astype(np.float64) for values in elements for i in range(4)], 4
    return [exact(values) for values in elements], 2 if kind == np.float16 else 1


def add_products(left: np.ndarray, right: np.ndarray, total: np.ndarray) -> np.ndarray:
    """``left @ right + total``, stacks of matrices, with the rounding of a tensor core, in the type of ``total``.

    float64 is a chain of fused multiply-adds in the order of K. Sums in float32 are those of `_add_aligned`. Both are
    what an H200 computes, to the last bit, in all of some ten thousand random products of each kind.
    """
    if total.dtype == np.int32:
        return (total + (left @ right).astype(np.int64)).astype(np.int32)
    if total.dtype == np.float64:
        for k in range(left.shape[-1]):
            total = fma(left[..., k, None], right[..., None, k, :], total)
        return total
    with np.errstate(all="ignore"):
        if all(np.isfinite(part).all() for part in (left, right, total)):
            return _add_aligned(left, right, total)
        plain = total.astype(np.float64)
        for k in range(left.shape[-1]):
            plain = plain + left[..., k, None] * right[..., None, k, :]
        finite = (np.where(np.isfinite(part), part, part.dtype.type(0)) for part in (left, right, total))
        plain = np.where(np.isfinite(plain), _add_aligned(*finite), plain.astype(np.float32))
        return np.where(np.isnan(plain), NAN, plain)


def _add_aligned(left, right, total):
    """Add products and totals as fixed-point numbers: with `FRACTION` bits below the largest exponent.

    The exponent of a product is the sum of its factors' exponents. What is below the last bit is cut off, and so is
    what the sum has beyond float32's precision.
    """
    factors = _exponents(left)[..., None], _exponents(right)[..., None, :, :]
    totals = total.astype(np.float64)
    depth = left.shape[-1]
    top = np.where(total == 0, MIN_EXPONENT, np.maximum(_exponents(totals), FLOAT32_EXPONENT))
    for k in range(depth):
        top = np.maximum(top, factors[0][..., k, :] + factors[1][..., 0, k, None, :])
    top = np.maximum(top, MIN_EXPONENT)
    scale = np.ldexp(1.0, FRACTION - top)
    sums = np.trunc(totals * scale)
    for k in range(depth):
        sums += np.trunc(left[..., k, None] * right[..., k, None, :] * scale)
    exact_sums = (sums + 0.0) * np.ldexp(1.0, top - FRACTION)
    rounded = exact_sums.astype(np.float32)
    larger = np.abs(rounded) > np.abs(exact_sums)
    return np.where(larger & np.isfinite(rounded), np.nextafter(rounded, np.float32(0)), rounded)


def _exponents(values):
    """Exponents as of 1.5 * 2**e; far below all others for zeros."""
    return np.where(values == 0, 4 * MIN_EXPONENT, np.frexp(values)[1] - 1)


def halves_of(words: tuple) -> tuple:
    """The float16 in words, the low half of each first."""
    halves = (half.astype(np.uint16).view(np.float16) for word in words for half in (word, word >> np.uint32(16)))
    return tuple(halves)


def words_as(words: tuple, dtype) -> tuple:
    """Words as numbers of 4 bytes."""
    return tuple(word.view(dtype) for word in words)


def multiply(a: list, b: list, c: list) -> list[np.ndarray]:
    """a b + c of the elements that the lanes hold, (blocks, warps, 32) each."""
    (a, packed), (b, _) = unpack(a), unpack(b)
    maps = fragments((len(a), len(b), len(c)), packed)
    return maps[2].scatter(add_products(*(part.gather(held) for part, held in zip(maps, (a, b, c), strict=True))))
