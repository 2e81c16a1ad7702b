"""Argument checks that the chapters share. Each message names the argument, what it is, and what it must be."""

from math import prod
from numbers import Integral

from gpukit.backend import cuda

__all__ = ["launch_shape", "three", "whole"]


def whole(name, value, least, most=None):
    """``value`` as an int, if it is a whole number from ``least`` to ``most``; TypeError or ValueError if not."""
    allowed = f"{least} or more" if most is None else f"from {least} to {most}"
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an int, {allowed}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} is {value}; it must be {allowed}")
    return int(value)


def three(name, value):
    """The size of a grid or of a block, an int or 1 to 3 of them, as (x, y, z); TypeError or ValueError otherwise."""
    if not isinstance(value, tuple | list):
        return (whole(name, value, 1), 1, 1)
    if not 1 <= len(value) <= 3:
        raise ValueError(f"{name} is {value!r}; it must have 1 to 3 dimensions")
    sizes = tuple(whole(f"{name}[{axis}]", size, 1) for axis, size in enumerate(value))
    return sizes + (1,) * (3 - len(sizes))


def launch_shape(grid, block):
    """``grid`` and ``block`` as (x, y, z); TypeError or ValueError if the device does not allow them."""
    grid, block = three("grid", grid), three("block", block)
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
