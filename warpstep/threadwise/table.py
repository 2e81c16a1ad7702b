"""The table of operations that have a native form, and what their handlers share.

`HANDLERS` maps the template of an operation to the function that generates it. What has no entry is not native.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from warpstep.threadwise.engine import ir
from warpstep.threadwise.values import Complex, NotNative, Number

HANDLERS: dict[str, Callable[..., Any]] = {}


def handles(*templates):
    def register(handler):
        for template in templates:
            HANDLERS[getattr(template, "template", template)] = handler
        return handler

    return register


def promote(f, *numbers) -> Any:
    """Convert operands to their common type."""
    if not all(isinstance(n, Number | Complex) for n in numbers):
        raise NotNative("an operation on something else than numbers")
    first = numbers[0].dtype
    if all(n.dtype == first for n in numbers):
        return numbers
    common = np.result_type(*(n.dtype for n in numbers))
    return tuple(f.cast(n, common) for n in numbers)


def constant(number, value):
    return ir.Constant(number.value.type, value)


def is_float(number):
    return number.dtype.kind == "f"
