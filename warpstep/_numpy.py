"""What Numba expects of NumPy and newer releases of NumPy lack: import this before ``numba.cuda``."""

import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # gone since NumPy 2.5, and numba-cuda up to 0.30 looks it up at import
