"""Divisions in kernels by what is known before the launch."""

from typing import NamedTuple

import numpy as np

from gpukit.backend import cuda, uint32, uint64
from warpstep.integers import ceil_div

__all__ = ["MAX_DIVIDED", "Divisor", "divided", "make_divisor"]

#: The largest number that `divided` takes.
MAX_DIVIDED = (1 << 31) - 1


class Divisor(NamedTuple):
    """A divisor, with the factor and shift that replace the division: a GPU has no instruction for it."""

    value: np.uint32
    factor: np.uint32
    shift: np.uint32


@cuda.jit(device=True)
def divided(n, by):
    """Quotient and remainder of n < 2^31 by a Divisor."""
    quotient = uint32(uint64(n) * uint64(by.factor) >> uint64(by.shift))
    return quotient, uint32(n - quotient * by.value)


def make_divisor(value: int) -> Divisor:
    """Make a Divisor that is exact for every number below 2^31.

    Let 2^s be the least power of two that is not less than value. The factor is 2^(31 + s) / value rounded up, so it is
    too large by less than 1, and its product with n < 2^31 by less than 2^31. That never reaches the next quotient, as
    quotients are 2^(31 + s) / value >= 2^31 apart.
    """
    shift = 31 + (value - 1).bit_length()
    return Divisor(np.uint32(value), np.uint32(ceil_div(1 << shift, value)), np.uint32(shift))
