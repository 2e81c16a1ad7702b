"""What the parts below call of a part above them. The package sets it, so that no import goes up."""

from collections.abc import Callable
from typing import Any

__all__ = ["attach"]

#: Takes a prepared launch of a kernel with breakpoints, and returns the one that stops at them.
attach: Callable[[Any], Any]
