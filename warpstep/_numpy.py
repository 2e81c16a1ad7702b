"""What Numba needs and may lack, names of NumPy or numba-cuda itself: import this before ``numba.cuda``."""

import importlib.util

import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # gone since NumPy 2.5, and numba-cuda up to 0.30 looks it up at import

try:
    _numba_cuda = importlib.util.find_spec("numba.cuda.core")  # the copy built into Numba does not have it
except ModuleNotFoundError:
    _numba_cuda = None
if _numba_cuda is None:
    raise ImportError("numba-cuda is missing: `pip install numba-cuda`; `gpukit doctor` says more")
