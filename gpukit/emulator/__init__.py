"""gpukit's emulator: runs ``@cuda.jit`` kernels on the CPU, every thread of many blocks in lockstep.

``from gpukit.emulator import cuda`` stands in for ``numba.cuda``. The package imports nothing else of gpukit.
"""

from .device import device as use_device
from .device import set_device
from .errors import KernelError, LaunchError, UnsupportedError
from .launch import set_loop_limit

__all__ = ["KernelError", "LaunchError", "UnsupportedError", "set_device", "set_loop_limit", "use_device"]
