"""Tensor cores: which lane of a warp holds which element of a small matrix, and the products."""

from typing import NamedTuple

import numpy as np

from warpstep.limits import WARP

__all__ = ["Fragment", "fragments", "multiply"]


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


def fragments(counts: tuple[int, ...]) -> tuple[Fragment, Fragment, Fragment]:
    """The maps of a, b and c in float64, for so many elements of each of the three in a lane."""
    group, place = np.divmod(np.arange(WARP)[:, None], 4)
    a, b, c = (np.arange(count) for count in counts)
    rows, depth = 8 if counts[2] == 2 else 16, 4 * counts[1]
    if rows == 8:
        left = Fragment((8, depth), group + 0 * a, place + 0 * a)
    else:
        left = Fragment((16, depth), group + 8 * (a % 2), place + 4 * (a // 2))
    right = Fragment((depth, 8), place + 4 * b, group + 0 * b)
    return left, right, Fragment((rows, 8), group + 8 * (c // 2), 2 * place + c % 2)


def multiply(a: list, b: list, c: list) -> list[np.ndarray]:
    """a b + c of the elements that the lanes hold, (blocks, warps, 32) each; products are added in the order of K."""
    operands = a, b, c
    left, right, total = (
        fragment.gather(elements)
        for fragment, elements in zip(fragments(tuple(map(len, operands))), operands, strict=True)
    )
    for k in range(left.shape[-1]):
        total = total + left[..., k, None] * right[..., None, k, :]
    return fragments(tuple(map(len, operands)))[2].scatter(total)
