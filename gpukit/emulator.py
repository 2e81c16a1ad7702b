"""The name under which `warpstep` has been public: ``from gpukit.emulator import cuda, KernelError``."""

import sys

import warpstep
from warpstep import cuda, device, errors, launch

sys.modules[__name__] = warpstep
for module in (cuda, device, errors, launch):
    sys.modules[f"{__name__}.{module.__name__.rpartition('.')[2]}"] = module
