"""Functions for kernels that ``nvshmem.core.device.numba`` lacks."""

from warpstep.compiler.blocks import LIBRARIES
from warpstep.launch import jit
from warpstep.nvshmem.core.device._primitives import complete_puts

LIBRARIES.add(__file__)


@jit(device=True)
def fence():
    """Let puts to an element arrive before later ones, and before later signals."""
    complete_puts()


@jit(device=True)
def quiet():
    """Wait until all puts have arrived."""
    complete_puts()
