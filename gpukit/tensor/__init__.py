"""Products on tensor cores, from one instruction to the speed of cuBLAS.

- ``lesson``: which lane holds which element (`fragment_map`). Begin here.
- ``ladder``: a product of float16 in seven kernels, one idea each.

``gpukit.matmul.matmul`` has kernels at a library's speed, for more formats than float16.
"""

from gpukit.tensor.ladder import VARIANTS, multiply_by, steps
from gpukit.tensor.lesson import fragment_map, rounded

__all__ = ["VARIANTS", "fragment_map", "multiply_by", "rounded", "steps"]
