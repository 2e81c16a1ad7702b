"""All that warpstep takes from Numba, of the compiler that this process uses: no other file of it imports Numba.

`_numba_cuda` and `_numba_cuda_mlir` define the same names, each for its compiler.
"""

from warpstep import _compilers

with _compilers.paused_collector():
    if _compilers.choose() == _compilers.NUMBA_CUDA:
        try:
            from warpstep._numba_cuda import *  # noqa: F403
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("numba.cuda"):
                raise
            # The copy that is built into Numba, found in the place of numba-cuda's.
            raise ImportError(_compilers.MISSING.format(_compilers.NUMBA_CUDA)) from error
    else:
        from warpstep._numba_cuda_mlir import *  # noqa: F403
