"""Checks of launch configurations. Each message names the argument, its value, and what is allowed."""

from math import prod

from gpukit.backend import cuda
from warpstep.checks import as_dim3

__all__ = ["launch_shape"]


def launch_shape(grid, block) -> tuple[tuple, tuple]:
    """Convert ``grid`` and ``block`` to (x, y, z); TypeError or ValueError if the device does not allow them."""
    grid, block = as_dim3("grid", grid), as_dim3("block", block)
    device = cuda.get_current_device()
    for axis, name in enumerate("XYZ"):
        for argument, shape, limit in (
            ("grid", grid, getattr(device, f"MAX_GRID_DIM_{name}")),
            ("block", block, getattr(device, f"MAX_BLOCK_DIM_{name}")),
        ):
            if shape[axis] > limit:
                raise ValueError(f"{argument} is {shape}; this device allows at most {limit} along {name.lower()}")
    limit = device.MAX_THREADS_PER_BLOCK
    if prod(block) > limit:
        raise ValueError(f"block is {block}, {prod(block)} threads; this device allows {limit} threads per block")
    return grid, block
