"""Room for the frames of Python functions."""

import functools
from collections.abc import Callable

#: Slots of 8 bytes that a function with room has in its frame.
SLOTS = 1 << 15


def with_room(function: Callable) -> Callable:
    """Let a function and all that it calls keep their frames in one piece of memory.

    Python takes memory for frames in pieces of 16 KB, and gives a piece back as soon as the first function in it
    returns. Where a loop calls functions across the end of a piece, the system maps and clears pages at each call; it
    depends on the depth at which the loop runs, and took a third of the time of compiling kernels. A frame larger than
    a piece gets one of its own, of the next power of two, and there is room in it for hundreds of frames.
    """

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=SLOTS)
    return functools.update_wrapper(call, function)
