"""Check single values that a caller passed. Each message names the argument, its value and what is allowed."""

import math
import os
from collections.abc import Iterable
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

__all__ = [
    "check_callable",
    "check_choice",
    "check_flag",
    "check_int",
    "check_items",
    "check_number",
    "check_path",
    "check_text",
    "check_type",
    "describe",
    "has_attributes",
    "is_int",
    "type_name",
]

#: Characters of a value that a message shows.
MAX_SHOWN = 80
MAX_INT = 2**63 - 1


def type_name(value: Any) -> str:
    """Name the type of a value, with its article: ``a list``, ``an int``, ``an ndarray``."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' or name == 'ndarray' else 'a'} {name}"


def describe(value: Any) -> str:
    """Write any value for a message: in one line, cut after 80 characters, also where its own ``repr`` fails."""
    if isinstance(value, np.ndarray):
        return f"{type_name(value)} of {value.dtype} with shape {value.shape}"
    try:
        text = " ".join(repr(value).splitlines())
    except Exception:  # of a class with a defect, and of ints with more digits than Python writes
        if isinstance(value, int):
            return f"an int of {value.bit_length():,} bits"
        if type(value) is tuple and len(value) <= 4 and not any(isinstance(item, tuple | list) for item in value):
            return f"({', '.join(map(describe, value))})"
        return type_name(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def has_attributes(value: Any, *names: str) -> bool:
    """Whether a value has all of these attributes; False also where its class raises when it is asked."""
    try:
        return all(hasattr(value, name) for name in names)
    except Exception:
        return False


def check_type(name: str, value: Any, kinds: type | tuple[type, ...], what: str) -> Any:
    """Return ``value``, an instance of one of the classes; TypeError, which says ``what`` it must be, otherwise."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} is {describe(value)}; it must be {what}")
    return value


def check_callable(name: str, value: Any, what: str) -> Any:
    """Return ``value``, which can be called; TypeError, which says ``what`` it must be, otherwise."""
    if not callable(value):
        raise TypeError(f"{name} is {describe(value)}; it must be {what}")
    return value


def is_int(value: Any) -> TypeGuard[int]:
    """Whether a value is an int of Python or NumPy, and neither a bool nor a duration, which count as ints there."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.timedelta64)


def check_int(name: str, value, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` as an int from ``minimum`` to ``maximum``; TypeError or ValueError for anything else.

    Without a ``maximum`` it must fit into 64 bits, as all that a device counts.
    """
    allowed = f"{minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
    if not is_int(value):
        raise TypeError(f"{name} is {describe(value)}; it must be an int, {allowed}")
    number = int(value)
    if number < minimum or number > (MAX_INT if maximum is None else maximum):
        too_large = "" if number < minimum or maximum is not None else ", and fit into 64 bits"
        raise ValueError(f"{name} is {describe(value)}; it must be {allowed}{too_large}")
    return number


def check_number(name: str, value: Any, minimum: float | None = None) -> Any:
    """Return ``value``, a real number that float64 can hold; TypeError or ValueError for anything else.

    With a ``minimum`` it must also be finite, and no less.
    """
    if not isinstance(value, Real) or isinstance(value, bool | np.timedelta64):
        raise TypeError(f"{name} is {describe(value)}; it must be a number")
    try:
        lost = math.isinf(float(value)) and abs(value) != math.inf
    except OverflowError:
        lost = True
    if lost:
        raise ValueError(f"{name} is beyond the range of float64")
    if minimum is not None and not minimum <= float(value) < math.inf:
        raise ValueError(f"{name} is {describe(value)}; it must be a number of {minimum} or more")
    return value


def check_choice(name: str, value: Any, choices: Iterable[str], also: str = "") -> str:
    """Return ``value``, one of the choices or ``also``; ValueError for anything else."""
    if not isinstance(value, str) or (value not in choices and value != (also or None)):
        others = f"{also!r} or one of" if also else "one of"
        raise ValueError(f"{name} is {describe(value)}; it must be {others} {', '.join(choices)}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return ``value`` as a bool: True, False, 1 or 0; TypeError or ValueError for anything else."""
    if not isinstance(value, bool | np.bool_) and not is_int(value):
        raise TypeError(f"{name} is {describe(value)}; it must be True or False")
    if value not in (0, 1):
        raise ValueError(f"{name} is {describe(value)}; it must be True or False")
    return bool(value)


def check_text(name: str, value: Any) -> str:
    """Return ``value``, a str; TypeError for anything else."""
    return check_type(name, value, str, "a str")


def check_items(name: str, value: Any, what: str, maximum: int = 2**20) -> list:
    """Return the items of an iterable other than a str, ``maximum`` at most; TypeError or ValueError otherwise.

    ``what`` says what the argument must be.
    """
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError("it is one text")
        items = list(islice(value, maximum + 1))
    except Exception as error:
        raise TypeError(f"{name} is {describe(value)}; it must be {what}: {error}") from error
    if len(items) > maximum:
        raise ValueError(f"{name} has more than {maximum:,} items; it must be {what}")
    return items


def check_path(name: str, value: Any) -> Path:
    """Return ``value``, a str or path-like, as a Path; TypeError or ValueError for what no file can be called."""
    check_type(name, value, (str, os.PathLike), "a path")
    try:
        path = Path(value)
        if b"\0" in os.fsencode(path):
            raise ValueError("it has a null character")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {describe(value)}; it must be a path: {error}") from None
    return path
