"""Tensor cores: which lane of a warp holds which element of a small matrix, and the products."""

from typing import NamedTuple

import numpy as np

from warpstep.limits import WARP

__all__ = ["Fragment", "fragments", "multiply", "unpack"]


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


def unpack(elements: list) -> tuple[list, int]:
    """The elements of a or b as numbers that multiply exactly, and how many of them a register has."""
    kind = elements[0].dtype
    if kind == np.float16:
        return [values.astype(np.float64) for values in elements], 2
    if kind == np.uint32:  # pairs of bfloat16, the upper halves of float32
        halves = [half for values in elements for half in (values << np.uint32(16), values & np.uint32(0xFFFF0000))]
        return [half.view(np.float32).astype(np.float64) for half in halves], 2
    if kind == np.int32:
        return [(values << (24 - 8 * i)) >> 24 for values in elements for i in range(4)], 4
    if kind == np.float32:  # TF32: the last 13 bits are ignored
        words = [np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000) for values in elements]
        return [values.view(np.float32).astype(np.float64) for values in words], 1
    return elements, 1


def multiply(a: list, b: list, c: list) -> list[np.ndarray]:
    """a b + c of the elements that the lanes hold, (blocks, warps, 32) each; products are added in the order of K."""
    (a, packed), (b, _), kind = unpack(a), unpack(b), c[0].dtype
    maps = fragments((len(a), len(b), len(c)), packed)
    left, right, total = (fragment.gather(held) for fragment, held in zip(maps, (a, b, c), strict=True))
    if kind == np.float32:  # exact products; their sum is rounded once
        total = total.astype(np.float64)
    for k in range(left.shape[-1]):
        total = total + left[..., k, None] * right[..., None, k, :]
    with np.errstate(over="ignore", invalid="ignore"):
        return maps[2].scatter(total.astype(kind))
