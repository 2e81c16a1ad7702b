"""What reductions and scans do to elements: how two are combined, from what, and in which type."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukit.backend import cuda, types
from gpukit.intrinsics import dp4a
from gpukit.intrinsics.bfloat16 import bfloat16_of, float_of
from warpstep.values import check_number, describe

__all__ = [
    "OPERATORS",
    "Operation",
    "checked_for_parts",
    "checked_operations",
    "for_bfloat16",
    "keep_accumulators",
    "make_operations",
    "multiply_sums",
    "pack_bytes",
    "result_dtype",
]

#: The names that ``reduce`` knows.
OPERATORS = ("sum", "prod", "max", "min", "mean")


@dataclass(frozen=True)
class Operation:
    """A reduction of elements of one dtype, as kernels need it. Types are Numba's.

    Attributes
    ----------
    combine : device function of two accumulators
    transform : device function of an element
        Applied before the element is combined.
    finish : device function of (accumulator, count)
        The value to write; ``count`` is the number of elements that went into the accumulator.
    identity : NumPy scalar
        Of the accumulator's type. Combining with it changes nothing.
    thread_type : type
        What one thread combines its share in. Cheaper than the accumulator where that cannot overflow.
    accumulator : type
        What the values of threads are combined in.
    shuffle_type : type
        What a warp shuffle can carry, at least as large as the accumulator.
    result : NumPy dtype
    commutative : bool
        combine(a, b) equals combine(b, a), up to rounding: the order of the elements does not matter.
    packed_dtype : NumPy dtype or None
        A dtype that holds four elements: see `pack_bytes`.
    """

    combine: Any
    transform: Any
    finish: Any
    identity: np.number
    thread_type: Any
    accumulator: Any
    shuffle_type: Any
    result: np.dtype
    commutative: bool
    packed_dtype: np.dtype | None = None

    @property
    def partial(self) -> np.dtype:
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


def result_dtype(op: str | None, dtype: np.dtype) -> np.dtype:
    """NumPy's dtype for the result: integers are summed in 64 bits and have a float64 mean."""
    if op == "mean":
        return np.dtype(np.float64) if dtype.kind in "iu" else dtype
    if op in ("sum", "prod") and dtype.kind in "iu":
        return np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    return dtype


def _accumulator_dtype(op, dtype):
    """At least the result's precision: float32 for float16, 64 bits for integers that are added or multiplied."""
    if dtype == np.float16:
        return np.dtype(np.float32)
    if op == "mean":
        # 64-bit integers could overflow where their mean does not; a sum of shorter ones is exact in 64 bits.
        return np.dtype(np.float64) if dtype.itemsize == 8 else result_dtype("sum", dtype)
    return result_dtype(op, dtype)


def checked_operations(op: Any, dtype: np.dtype, known: tuple[str, ...]) -> tuple[Operation, Operation]:
    """Make the operations for an argument ``op``; TypeError or ValueError, naming it, unless it can be one.

    ``known`` are the names that it may have; anything else must be a function and its identity.
    """
    if isinstance(op, str):
        if op not in known:
            names = ", ".join(map(repr, known))
            raise ValueError(f"op is {describe(op)}; it must be one of {names}, or a function and its identity")
    elif not (isinstance(op, tuple) and len(op) == 2 and callable(op[0])):
        raise TypeError(f"op is {describe(op)}; it must be a name, or a tuple of a function and its identity")
    elif not _takes_two(op[0]):
        raise TypeError(f"op[0] is {describe(op[0])}; it must take two numbers")
    elif not isinstance(op[1], bool | np.bool_):
        check_number("op[1]", op[1])
        if dtype.kind in "iu" and not float(op[1]).is_integer():
            raise ValueError(f"op[1] is {describe(op[1])}; it must be a whole number, as the elements are")
    try:
        return make_operations(op, dtype)
    except (OverflowError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"op is {describe(op)}; it must be a name, or a device function and its identity: {error}"
        ) from error


def checked_for_parts(op: Any, dtype: np.dtype, known: tuple[str, ...]) -> tuple[Operation, Operation]:
    """Make the operations for the parts of complex numbers, as `checked_operations` does for numbers of other dtypes.

    ValueError for an ``op`` that does not do the same to real and to imaginary parts.
    """
    made, allowed = checked_operations(op, np.dtype(f"f{dtype.itemsize // 2}"), known), ("sum", "mean")
    if op not in allowed:
        names = " or ".join(repr(name) for name in allowed if name in known)
        raise ValueError(f"op is {describe(op)}; it must be {names} for complex numbers")
    return made


def _takes_two(function):
    """Whether a function takes two positional arguments, as far as Python knows: not for all built-in functions."""
    try:
        inspect.signature(getattr(function, "py_func", function)).bind(0, 0)
    except TypeError:
        return False
    except ValueError:  # no signature
        pass
    return True


@functools.cache
def make_operations(op: str | tuple[Callable, Any], dtype: np.dtype) -> tuple[Operation, Operation]:
    """Make the operation for elements, and the one for the accumulators that a first pass leaves to a second.

    Parameters
    ----------
    op : str or tuple of (function, number)
        One of ``OPERATORS``; or an associative function of two accumulators, with its identity. The function is a
        device function or can be compiled to one.
    dtype : NumPy dtype
        Of the elements: an integer or a float.

    Returns
    -------
    first, again : Operation
        ``again`` takes elements of ``first.partial``.
    """
    name, dtype = op if isinstance(op, str) else None, np.dtype(dtype)
    held = _accumulator_dtype(name, dtype)
    accumulator, result = getattr(types, held.name), result_dtype(name, dtype)
    function, identity = _named(op, held) if name else op
    combine = function if hasattr(function, "py_func") else cuda.jit(device=True)(function)
    # A thread's share is so small (`gpukit.reduce.cost.MAX_TILES`) that no sum of short integers overflows 32 bits.
    short = name in ("sum", "mean", "max", "min") and dtype.kind in "iu" and dtype.itemsize <= 2
    adds_bytes = name in ("sum", "mean") and dtype.kind in "iu" and dtype.itemsize == 1
    first = Operation(
        combine,
        unchanged,
        _make_finish(name == "mean", held, result),
        held.type(identity),
        types.int32 if short else accumulator,
        accumulator,
        _shuffle_type(held),
        result,
        name is not None,
        np.dtype(f"{dtype.kind}4") if adds_bytes else None,
    )
    return first, replace(first, thread_type=accumulator, packed_dtype=None)


@functools.cache
def for_bfloat16(first: Operation, again: Operation) -> tuple[Operation, Operation]:
    """Operations of float32 for elements and results of bfloat16, which kernels take as uint16."""
    finish_in_float = first.finish

    @cuda.jit(device=True)
    def finish(total, count):
        return bfloat16_of(finish_in_float(total, count))

    changed = {"finish": finish, "result": np.dtype(np.uint16)}
    return replace(first, transform=float_of, **changed), replace(again, **changed)


def _named(op, accumulator):
    """(device function, identity) of an operator."""
    if op in ("sum", "mean"):
        return add, 0
    if op == "prod":
        return multiply, 1
    limits = np.iinfo(accumulator) if accumulator.kind in "iu" else None
    if op == "max":
        return larger, limits.min if limits else -np.inf
    return smaller, limits.max if limits else np.inf


def _shuffle_type(accumulator):
    """Shuffles know signed integers and floats of 4 and 8 bytes."""
    if accumulator.kind == "f":
        return getattr(types, accumulator.name)
    return types.int64 if accumulator.itemsize == 8 else types.int32


@functools.cache
def _make_finish(is_mean, accumulator, result):
    number = getattr(types, result.name)
    # A float16 mean is divided in float32, that of integers in float64.
    divided = getattr(types, (accumulator if accumulator.kind == "f" else result).name)

    @cuda.jit(device=True)
    def finish(total, count):
        return number(divided(total) / divided(count)) if is_mean else number(total)

    return finish


@functools.cache
def multiply_sums(operation: Operation) -> Operation:
    """The same sum, multiplied by ``count`` at the end: each element counts as so many."""
    accumulator, finish_one = operation.accumulator, operation.finish

    @cuda.jit(device=True)
    def finish(total, count):
        return finish_one(accumulator(total * accumulator(count)), 1)

    return replace(operation, finish=finish)


@functools.cache
def pack_bytes(operation: Operation) -> Operation:
    """The same operation for elements of ``packed_dtype``, each of which holds four elements of one byte."""
    word = getattr(types, str(operation.packed_dtype))

    @cuda.jit(device=True)
    def sum_of_bytes(value):
        return dp4a(value, word(0x01010101), word(0))

    return replace(operation, transform=sum_of_bytes, packed_dtype=None)


@functools.cache
def keep_accumulators(operation: Operation) -> Operation:
    """The same operation with its accumulators as the result, for a pass that another follows."""
    finish = _make_finish(False, operation.partial, operation.partial)
    return replace(operation, finish=finish, result=operation.partial)
