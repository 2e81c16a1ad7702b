"""Room for the frames of Python functions."""

import functools
from collections.abc import Callable

#: Slots of 8 bytes in the frame of a function with room: Python takes memory for the next power of two.
SLOTS = (1 << 15) + 1


def with_room(function: Callable) -> Callable:
    """Let a function and all that it calls have their frames in one piece of memory.

    Python (3.11 to 3.13 at least) takes memory for frames in pieces of 16 KB, and gives a piece back as soon as the
    first function in it returns. A loop that happens to call functions across the end of a piece makes the system map
    and clear pages at every turn. Below a frame larger than a piece there is such an end only far away.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=SLOTS)
    return call
