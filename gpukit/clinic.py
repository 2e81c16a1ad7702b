"""The name under which `gpukit.pitfalls` has been public."""

import sys
import warnings

from gpukit import pitfalls

warnings.warn("gpukit.clinic is called gpukit.pitfalls now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = pitfalls
