"""All that warpstep takes from Numba, of the compiler that this process uses: no other file of it imports Numba.

`_numba_cuda` and `_numba_cuda_mlir` define the same names, each for its compiler.
"""

from warpstep import _compilers

with _compilers.paused_collector():
    if _compilers.choose() == _compilers.NUMBA_CUDA:
        from warpstep._numba_cuda import *  # noqa: F403
    else:
        from warpstep._numba_cuda_mlir import *  # noqa: F403
