"""Operands of matrix products, and what their results must be."""

import itertools

import numpy as np


def operands(*shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng([seed, *itertools.chain(*shapes)])
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def check(result, a, b, alpha=1, beta=0, out=0.0):
    """Compare with float64, within the rounding of a sum of so many terms."""
    wide = [np.asarray(x, np.float64) for x in (a, b, out)]
    exact = alpha * np.matmul(*wide[:2]) + (beta * wide[2] if beta else 0)
    bound = abs(alpha) * np.matmul(abs(wide[0]), abs(wide[1])) + (abs(beta * wide[2]) if beta else 0)
    roundings = a.shape[-1] + (1 if (alpha, beta) == (1, 0) else 4)
    assert result.dtype == a.dtype and result.shape == exact.shape
    assert (abs(result - exact) <= np.finfo(a.dtype).eps * roundings * bound).all()


def poisoned(*shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)
