# What editors and type checkers know of `cuda`: Numba has no types, so each function of a kernel is listed here, with
# its arguments. Names that are missing have any type.
from collections.abc import Callable
from typing import Any

from warpstep.api.host import *  # noqa: F403

class _Index:
    x: Any
    y: Any
    z: Any

class _SharedMemory:
    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """Make an array that all threads of a block share; with shape 0, of the launch's dynamic shared memory."""

class _LocalMemory:
    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """Make an array of this thread's own."""

class _ConstantMemory:
    def array_like(self, array: Any) -> Any:
        """Make a copy in constant memory of an array that is known when the kernel is compiled."""

class _Atomic:
    """Operations on an element that no other thread interrupts. Each returns the old value."""

    def add(self, array: Any, index: Any, value: Any) -> Any: ...
    def sub(self, array: Any, index: Any, value: Any) -> Any: ...
    def and_(self, array: Any, index: Any, value: Any) -> Any: ...
    def or_(self, array: Any, index: Any, value: Any) -> Any: ...
    def xor(self, array: Any, index: Any, value: Any) -> Any: ...
    def inc(self, array: Any, index: Any, value: Any) -> Any:
        """Add 1, or go back to 0 from ``value``."""
    def dec(self, array: Any, index: Any, value: Any) -> Any:
        """Subtract 1, or go back to ``value`` from 0 and from more than ``value``."""
    def exch(self, array: Any, index: Any, value: Any) -> Any:
        """Store a value."""
    def max(self, array: Any, index: Any, value: Any) -> Any: ...
    def min(self, array: Any, index: Any, value: Any) -> Any: ...
    def nanmax(self, array: Any, index: Any, value: Any) -> Any: ...
    def nanmin(self, array: Any, index: Any, value: Any) -> Any: ...
    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        """Store a value if the element is ``old``."""
    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        """Do as `cas`, with the first element."""

threadIdx: _Index
blockIdx: _Index
blockDim: _Index
gridDim: _Index
laneid: Any
warpsize: Any
shared: _SharedMemory
local: _LocalMemory
const: _ConstantMemory
atomic: _Atomic
cg: Any

def jit(func_or_sig: Any = None, device: bool = False, **options: Any) -> Any:
    """Compile a kernel, launched by ``kernel[grid, block](...)``; with ``device``, a function for kernels."""

def grid(ndim: int, /) -> Any:
    """Return the index of this thread in the grid: a number for 1 dimension, a tuple for 2 and 3."""

def gridsize(ndim: int, /) -> Any:
    """Return the number of threads of the grid: a number for 1 dimension, a tuple for 2 and 3."""

def syncthreads() -> None:
    """Wait until all threads of the block are here."""

def syncthreads_count(predicate: Any, /) -> Any:
    """Wait as `syncthreads`, and count the threads whose predicate holds."""

def syncthreads_and(predicate: Any, /) -> Any:
    """Wait as `syncthreads`, and tell whether the predicate holds for all threads."""

def syncthreads_or(predicate: Any, /) -> Any:
    """Wait as `syncthreads`, and tell whether the predicate holds for any thread."""

def syncwarp(mask: Any = 0xFFFFFFFF, /) -> None:
    """Wait for the lanes of the mask, all of which must come here."""

def shfl_sync(mask: Any, value: Any, lane: Any, /) -> Any:
    """Return the value of a lane of the warp."""

def shfl_up_sync(mask: Any, value: Any, delta: Any, /) -> Any:
    """Return the value of the lane ``delta`` below."""

def shfl_down_sync(mask: Any, value: Any, delta: Any, /) -> Any:
    """Return the value of the lane ``delta`` above."""

def shfl_xor_sync(mask: Any, value: Any, lane_mask: Any, /) -> Any:
    """Return the value of the lane whose number differs from this lane's in the bits of ``lane_mask``."""

def all_sync(mask: Any, predicate: Any, /) -> Any:
    """Tell whether the predicate holds for all lanes of the mask."""

def any_sync(mask: Any, predicate: Any, /) -> Any:
    """Tell whether the predicate holds for any lane of the mask."""

def eq_sync(mask: Any, predicate: Any, /) -> Any:
    """Tell whether the predicate is the same for all lanes of the mask."""

def ballot_sync(mask: Any, predicate: Any, /) -> Any:
    """Return the lanes whose predicate holds, as bits."""

def match_any_sync(mask: Any, value: Any, /) -> Any:
    """Return the lanes that have the same value, as bits."""

def match_all_sync(mask: Any, value: Any, /) -> Any:
    """Return the mask if all its lanes have the same value, else 0; and whether they have."""

def activemask() -> Any:
    """Return the lanes that run this now, as bits."""

def lanemask_lt() -> Any:
    """Return the lanes below this one, as bits."""

def threadfence() -> None:
    """Order this thread's accesses before and after it, for all threads of the device."""

def threadfence_block() -> None:
    """Order this thread's accesses before and after it, for the threads of its block."""

def threadfence_system() -> None:
    """Order this thread's accesses before and after it, for the host and other devices too."""

def nanosleep(nanoseconds: Any, /) -> None:
    """Let this thread sleep for about so long."""

def popc(x: Any, /) -> Any:
    """Count the bits that are set."""

def clz(x: Any, /) -> Any:
    """Count the zeros before the first bit that is set."""

def ffs(x: Any, /) -> Any:
    """Return the place of the lowest bit that is set, from 1; 0 if there is none."""

def brev(x: Any, /) -> Any:
    """Reverse the bits."""

def selp(condition: Any, a: Any, b: Any, /) -> Any:
    """Return ``a`` if the condition holds, else ``b``, without a branch."""

def fma(a: Any, b: Any, c: Any, /) -> Any:
    """Return a * b + c, rounded once."""

def cbrt(x: Any, /) -> Any:
    """Return the cube root."""

#: Loads, and stores of a value, with the hint of their names for the caches.
ldca: Callable[[Any, Any], Any]
ldcg: Callable[[Any, Any], Any]
ldcs: Callable[[Any, Any], Any]
ldcv: Callable[[Any, Any], Any]
ldlu: Callable[[Any, Any], Any]
stcg: Callable[[Any, Any, Any], None]
stcs: Callable[[Any, Any, Any], None]
stwb: Callable[[Any, Any, Any], None]
stwt: Callable[[Any, Any, Any], None]

def __getattr__(name: str) -> Any: ...
