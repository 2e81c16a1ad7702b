"""Cheap repeated launches (C3): `prepare` makes a kernel ready once, with its types found out and its arguments packed.

``kernel[grid, block](*args)`` works out at every call what types the arguments have, which compiled kernel that means,
and how each argument is passed. A program that launches the same kernel thousands of times can do this once. gpukit's
own functions do so: `gpukit._host.call` repeats the launches of a call with other arrays.
"""

from gpukit._host.arrays import handle_of
from gpukit._host.call import launch
from gpukit._host.keys import array_key, layout_of
from gpukit._host.keys import array_key as look
from gpukit._host.prepared import Prepared, prepare
from gpukit._host.replay import LaunchCache
from gpukit._host.transfers import upload

__all__ = ["Plans", "Prepared", "array_key", "handle_of", "layout_of", "look", "prepare", "upload"]


class Plans:
    """Launches of a host function of one's own, kept to be repeated for calls with arrays of the same kind.

    gpukit's own functions go through `gpukit._host.call`, which takes fewer lines.

    Parameters
    ----------
    most : int
        Calls kept; the least recently used go first.

    Examples
    --------
    >>> import numpy as np
    >>> from gpukit import cuda, launching
    >>> from gpukit._host.transfers import Output
    >>> @cuda.jit
    ... def add_one(x, out):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         out[i] = x[i] + 1
    >>> plans = launching.Plans()
    >>> def increased(x, out=None, stream=None):
    ...     call = plans.call((x,), out, stream)
    ...     if call.plan is not None:
    ...         return call.again()
    ...     result = Output(x, x.shape, out, stream or 0)     # after the checks of the arguments
    ...     return call.first([(add_one[1, 32, stream or 0], (x, result.device))], result)
    >>> increased(cuda.to_device(np.arange(3))).copy_to_host()
    array([1, 2, 3])
    """

    def __init__(self, most: int = 256):
        self.cache = LaunchCache(most)

    @property
    def kept(self) -> dict:
        """The recorded calls, by key."""
        return self.cache.calls

    def call(self, inputs: tuple, out, stream, *parameters) -> "Call":
        """Look for a call like this one; ``parameters`` are all else that decides the launches."""
        return Call(self.cache, inputs, out, stream, parameters)


class Call:
    """One call of a host function; made by `Plans.call`.

    Attributes
    ----------
    plan : RecordedCall or None
        Of an earlier call like this one.
    """

    def __init__(self, cache, inputs, out, stream, parameters):
        self.cache, self.inputs, self._out = cache, inputs, out
        self.plan, self.key, self._pointers = cache.find(None, inputs, out, stream, parameters)

    def first(self, launches: list, result):
        """Make the launches, record them if they can be repeated, and give ``result``, an Output, to the caller."""
        return launch(launches, self.inputs, [result], self.key, self.cache)

    def again(self):
        """Repeat the launches of ``plan`` with the arrays of this call; returns its result."""
        assert self.plan is not None
        return self.plan.again([*self._pointers], self._out)
