"""Reductions: from Paddle's primitives (D1 to D3) to the bandwidth of memory.

- ``ladder``: a sum of float32 in eight kernels, one idea each. Begin here.
- ``primitives``, `gpukit.operators`: the device functions that the fast kernels are put together from.
- ``fast``, ``cost``: the kernels of ``reduce``, and which of them for a shape.
- ``api``: ``reduce`` over any axes of any array, ``reduce_higher_dim``, and ``sum_by`` for the ladder.
"""

from gpukit.operators import OPERATORS
from gpukit.reduce.api import reduce, reduce_higher_dim, sum_by
from gpukit.reduce.ladder import VARIANTS, steps

__all__ = ["OPERATORS", "VARIANTS", "reduce", "reduce_higher_dim", "steps", "sum_by"]
