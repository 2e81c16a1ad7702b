"""Checks of arguments that are no arrays. Each message names the argument, its value, and what is allowed."""

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from gpukit.backend import cuda
from warpstep.checks import as_dim3
from warpstep.values import check_int, check_type, describe

__all__ = ["as_numbers", "check_dtype", "check_sizes", "launch_shape"]


def check_dtype(name: str, value: Any, allowed: Iterable | None = None) -> np.dtype:
    """Return ``value`` as a NumPy dtype, one of those allowed; TypeError for anything else."""
    try:
        dtype = np.dtype(value)
    except Exception:
        raise TypeError(f"{name} is {describe(value)}; it must be a NumPy dtype") from None
    if value is None or allowed is not None and dtype not in allowed:
        what = "a NumPy dtype" if allowed is None else " or ".join(str(np.dtype(d)) for d in allowed)
        raise TypeError(f"{name} is {value if value is None else dtype}; it must be {what}")
    return dtype


def as_numbers(name: str, value: Any, kinds: str = "iuf") -> np.ndarray:
    """Return ``value``, an array or nested sequences, as an array of these kinds of dtypes; TypeError otherwise."""
    try:
        array = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    except Exception as error:
        raise TypeError(f"{name} is {describe(value)}; it must be an array of numbers: {error}") from error
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, and its mask would be lost; fill it first: {name}.filled(0)")
    if array.dtype.kind not in kinds:
        what = "hold integers" if kinds == "iu" else "be a type of real numbers"
        raise TypeError(f"{name} has dtype {array.dtype}; it must {what}")
    return array


def check_sizes(name: str, value: Any, minima: tuple, maxima: tuple, what: str) -> Any:
    """Return ``value``, a tuple or list of as many ints as there are minima and maxima (None for no maximum)."""
    check_type(name, value, (tuple, list), what)
    if len(value) != len(minima):
        raise ValueError(f"{name} is {describe(value)}; it must be {what}")
    limits = zip(value, minima, maxima, strict=True)
    return tuple(check_int(f"{name}[{i}]", n, low, high) for i, (n, low, high) in enumerate(limits))


def launch_shape(grid, block, names: tuple[str, str] = ("grid", "block")) -> tuple[tuple, tuple]:
    """Convert ``grid`` and ``block`` to (x, y, z); TypeError or ValueError if the device does not allow them."""
    grid, block = as_dim3(names[0], grid), as_dim3(names[1], block)
    device = cuda.get_current_device()
    for axis, name in enumerate("XYZ"):
        for argument, shape, limit in (
            (names[0], grid, getattr(device, f"MAX_GRID_DIM_{name}")),
            (names[1], block, getattr(device, f"MAX_BLOCK_DIM_{name}")),
        ):
            if shape[axis] > limit:
                raise ValueError(f"{argument} is {shape}; this device allows at most {limit} along {name.lower()}")
    limit = device.MAX_THREADS_PER_BLOCK
    if prod(block) > limit:
        raise ValueError(f"{names[1]} is {block}, {prod(block)} threads; this device allows {limit} threads per block")
    return grid, block
