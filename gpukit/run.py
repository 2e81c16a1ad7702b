"""The name under which `warpstep.run` has been public: `install` puts the emulator in place of numba.cuda."""

import sys

from warpstep import run

sys.modules[__name__] = run
