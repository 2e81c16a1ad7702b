"""Checks of launch configurations. Each message names the argument, its value, and what is allowed."""

from math import prod

from gpukit.backend import cuda
from warpstep.checks import as_dim3

__all__ = ["launch_shape"]


def launch_shape(grid, block):
    """``grid`` and ``block`` as (x, y, z); TypeError or ValueError if the device does not allow them."""
    grid, block = as_dim3("grid", grid), as_dim3("block", block)
    device = cuda.get_current_device()
    for axis, name in enumerate("XYZ"):
        for argument, shape, most in (
            ("grid", grid, getattr(device, f"MAX_GRID_DIM_{name}")),
            ("block", block, getattr(device, f"MAX_BLOCK_DIM_{name}")),
        ):
            if shape[axis] > most:
                raise ValueError(f"{argument} is {shape}; this device allows at most {most} along {name.lower()}")
    if prod(block) > device.MAX_THREADS_PER_BLOCK:
        most = device.MAX_THREADS_PER_BLOCK
        raise ValueError(f"block is {block}, {prod(block)} threads; this device allows {most} threads per block")
    return grid, block
