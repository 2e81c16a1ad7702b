"""``python -m warpstep.check``: the command without gpukit."""

import sys

from warpstep.check.command import main

sys.exit(main())
