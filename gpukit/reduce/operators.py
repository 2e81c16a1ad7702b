"""What a reduction does to its elements: how two are combined, what it starts from, what it accumulates in."""

import functools
from dataclasses import dataclass, replace

import numpy as np

from gpukit.backend import cuda, types
from gpukit.intrinsics import dp4a

__all__ = ["OPERATORS", "Operation", "make", "result_dtype"]

#: The names that ``reduce`` knows.
OPERATORS = ("sum", "prod", "max", "min", "mean")


@dataclass(frozen=True, eq=False)
class Operation:
    """A reduction of elements of one dtype, as kernels need it. Types are numba's.

    Attributes
    ----------
    combine, transform, finish : device functions
        combine(a, b) of two accumulators; transform(element), before it is combined; finish(accumulator, count), where
        ``count`` is the number of elements that went into it: what is written.
    identity : NumPy scalar
        Of the accumulator's type: combining with it changes nothing.
    inside : type
        What one thread combines its share in. Cheaper than the accumulator where that cannot overflow.
    accumulator, carrier : type
        ``carrier`` is what a warp shuffle can carry: of the same size or larger.
    result : NumPy dtype
    commutative : bool
        combine(a, b) is combine(b, a), up to rounding: the order of the elements does not matter.
    words : NumPy dtype or None
        What four elements together can be taken as: see `packed`.
    """

    combine: object
    transform: object
    finish: object
    identity: object
    inside: object
    accumulator: object
    carrier: object
    result: object
    commutative: bool
    words: object = None

    @property
    def partial(self):
        """NumPy dtype of an accumulator in memory."""
        return self.identity.dtype


@cuda.jit(device=True)
def add(a, b):
    return a + b


@cuda.jit(device=True)
def multiply(a, b):
    return a * b


@cuda.jit(device=True)
def larger(a, b):
    """The larger of the two, NaN if one of them is: NaN alone differs from itself."""
    return a if a > b or a != a else b


@cuda.jit(device=True)
def smaller(a, b):
    return a if a < b or a != a else b


@cuda.jit(device=True)
def unchanged(value):
    return value


def result_dtype(op, dtype):
    """NumPy's dtype for the result: integers are summed in 64 bits and have a float64 mean."""
    if op == "mean":
        return np.dtype(np.float64) if dtype.kind in "iu" else dtype
    if op in ("sum", "prod") and dtype.kind in "iu":
        return np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    return dtype


def accumulator_dtype(op, dtype):
    """At least the result's precision: float32 for float16, 64 bits for integers that are added or multiplied."""
    if dtype == np.float16:
        return np.dtype(np.float32)
    if op == "mean":
        # 64-bit integers could overflow where their mean does not; a sum of shorter ones is exact in 64 bits.
        return np.dtype(np.float64) if dtype.itemsize == 8 else result_dtype("sum", dtype)
    return result_dtype(op, dtype)


def make(op, dtype):
    """(operation that takes elements, operation that takes their accumulators, for a second pass).

    Parameters
    ----------
    op : str or tuple of (function, number)
        One of ``OPERATORS``, or an associative function of two accumulators, a device function or
        one that can be compiled to one, with its identity.
    dtype : NumPy dtype
        Of the elements: an integer or a float.

    Returns
    -------
    first, again : Operation
        ``first.partial`` is what ``again`` takes.
    """
    return _make(op, np.dtype(dtype))


@functools.cache
def _make(op, dtype):
    name = op if isinstance(op, str) else None
    accumulator = accumulator_dtype(name, dtype)
    combine, identity = _named(op, accumulator) if name else (_device_function(op[0]), op[1])
    # A thread's share is so small (`gpukit.reduce.api.MOST_TILES`) that no sum of short ones overflows 32 bits.
    short = name in ("sum", "mean", "max", "min") and dtype.kind in "iu" and dtype.itemsize <= 2
    inside = types.int32 if short else getattr(types, accumulator.name)
    result = result_dtype(name, dtype)
    number, carrier = getattr(types, accumulator.name), _carrier(accumulator)
    finish = _finish(name, accumulator, result)
    identity = accumulator.type(identity)
    words = (
        np.dtype(f"{dtype.kind}4") if name in ("sum", "mean") and dtype.kind in "iu" and dtype.itemsize == 1 else None
    )
    first = Operation(combine, unchanged, finish, identity, inside, number, carrier, result, name is not None, words)
    return first, replace(first, inside=number, words=None)


def _named(op, accumulator):
    if op in ("sum", "mean"):
        return add, 0
    if op == "prod":
        return multiply, 1
    limits = np.iinfo(accumulator) if accumulator.kind in "iu" else None
    if op == "max":
        return larger, limits.min if limits else -np.inf
    return smaller, limits.max if limits else np.inf


def _device_function(function):
    return function if hasattr(function, "py_func") else cuda.jit(device=True)(function)


def _carrier(accumulator):
    """Shuffles know signed integers and floats of 4 and 8 bytes."""
    if accumulator.kind == "f":
        return getattr(types, accumulator.name)
    return types.int64 if accumulator.itemsize == 8 else types.int32


@functools.cache
def _finish(op, accumulator, result):
    number = getattr(types, result.name)
    # A float16 mean is divided in float32, that of integers in float64.
    divided = getattr(types, (accumulator if accumulator.kind == "f" else result).name)
    if op == "mean":

        @cuda.jit(device=True)
        def finish(total, count):
            return number(divided(total) / divided(count))

    else:

        @cuda.jit(device=True)
        def finish(total, count):
            return number(total)

    return finish


@functools.cache
def packed(operation):
    """The same operation for elements of ``operation.words``, each of which stands for four elements of one byte."""
    word = getattr(types, operation.words.name)

    @cuda.jit(device=True)
    def sum_of_bytes(value):
        return dp4a(value, word(0x01010101), word(0))

    return replace(operation, transform=sum_of_bytes, words=None)


@functools.cache
def keep(operation):
    """The same operation with its accumulators as the result: for passes that others follow."""

    @cuda.jit(device=True)
    def finish(total, count):
        return total

    return replace(operation, finish=finish, result=operation.identity.dtype)
