"""Reductions: from Paddle's primitives (D1 to D3) to the bandwidth of memory.

``reduce`` takes any axes of any array. ``ladder`` has the steps that lead there, for a sum of float32, one idea per
kernel. The kernels of ``reduce`` are in ``kernels``, put together from the device functions in ``primitives``.
"""

from gpukit.reduce.api import reduce, reduce_higher_dim
from gpukit.reduce.ladder import VARIANTS, steps, sum_by
from gpukit.reduce.operators import OPERATORS

__all__ = ["OPERATORS", "VARIANTS", "reduce", "reduce_higher_dim", "steps", "sum_by"]
