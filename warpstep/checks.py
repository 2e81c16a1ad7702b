"""Argument checks. Each message names the argument, its value, and what is allowed."""

from numbers import Integral

__all__ = ["as_dim3", "check_int"]


def check_int(name, value, least, most=None):
    """``value`` as an int, if it is a whole number from ``least`` to ``most``; TypeError or ValueError if not."""
    allowed = f"{least} or more" if most is None else f"from {least} to {most}"
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an int, {allowed}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} is {value}; it must be {allowed}")
    return int(value)


def as_dim3(name, value):
    """The size of a grid or of a block, an int or 1 to 3 of them, as (x, y, z); TypeError or ValueError otherwise."""
    if not isinstance(value, tuple | list):
        return (check_int(name, value, 1), 1, 1)
    if not 1 <= len(value) <= 3:
        raise ValueError(f"{name} is {value!r}; it must have 1 to 3 dimensions")
    sizes = tuple(check_int(f"{name}[{axis}]", size, 1) for axis, size in enumerate(value))
    return sizes + (1,) * (3 - len(sizes))
