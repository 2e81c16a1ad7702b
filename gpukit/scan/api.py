"""``scan``: along any axis of any array, brought into the form (outer, n, inner) that the kernels take."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukit import operators
from gpukit._host.arrays import (
    address_of,
    as_parts,
    as_words,
    check_alike,
    check_apart,
    check_array,
    check_axis,
    check_numbers,
    configure_quietly,
    dtype_of,
    is_complex,
)
from gpukit._host.call import Problem, call
from gpukit.scan import cost, ladder
from warpstep.values import check_choice, check_flag

__all__ = ["scan", "scan_by"]

#: The operators that a scan knows.
OPERATORS = ("sum", "prod", "max", "min")


def scan(
    x: Any,
    axis: int | None = None,
    op: str | tuple[Callable, Any] = "sum",
    exclusive: bool = False,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Combine the elements up to each one, as ``np.cumsum``, ``np.cumprod`` and ``np.maximum.accumulate`` do.

    The same bits come out in every run on the same device. Sums of float16 and float32 are made in float32, in trees:
    each element passes through a few dozen additions, not one for each element before it.

    Parameters
    ----------
    x : ndarray or device array
        Integers or floats, also bools for sums and products, and complex numbers for sums; any shape. One that is not
        C-contiguous is copied first.
    axis : int or None
        The axis to scan along; a negative one counts from the end. None scans all elements in C order, and gives one
        dimension.
    op : str or tuple of (function, number)
        "sum", "prod", "max" or "min"; or an associative function of two numbers, and its identity. The function is a
        device function or can be compiled to one. It gets the elements in the order of their indices.
    exclusive : bool
        Leave out the element itself: the first result is the identity.
    out : array, optional
        Of the result's shape and dtype, of the same kind as ``x``. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array
        ``out`` if that was given, otherwise new, of the library of ``x``. The dtype is NumPy's: int64 or uint64 for
        sums and products of integers, that of ``x`` for the rest and for a function.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind. Nothing was launched.

    Examples
    --------
    >>> scan(np.array([3, 1, 4, 1, 5]))
    array([ 3,  4,  8,  9, 14])
    >>> scan(np.array([[3, 1], [4, 1]]), axis=0, op="max")
    array([[3, 1],
           [4, 1]])
    """
    return call(_scan, (x,), out, stream, (axis, op, exclusive))


def checked_operand(x, op, dimensions: int, more: bool = False) -> tuple:
    """Check array and operator, as `check_array` does; returns the array, with bytes for bools, and the operation."""
    check_array("x", x, dimensions, more=more)
    x = as_words(x) if dtype_of(x) == np.bool_ and op in ("sum", "prod") else x
    operation, _ = operators.checked_operations(op, check_numbers("x", x, dimensions, more=more), OPERATORS)
    return x, operation


def _scan(problem: Problem):
    """The launches of ``scan``."""
    (x,), (axis, op, exclusive) = problem.inputs, problem.settings
    check_array("x", x, 0, more=True)
    dtype, parts = dtype_of(x), 1
    if is_complex(dtype):
        parts, (operation, _) = 2, operators.checked_for_parts(op, dtype, OPERATORS)
    else:
        x, operation = checked_operand(x, op, 0, more=True)
        dtype = operation.result
    exclusive, axis = check_flag("exclusive", exclusive), check_axis(axis, len(x.shape))
    size = math.prod(x.shape)
    shape = (size,) if axis is None else tuple(x.shape)
    if problem.out is not None:
        check_array("out", problem.out, len(shape))
        check_alike("out", problem.out, "x", x, shape, dtype)
        check_apart("out", problem.out, x=x)
    out = problem.output(shape, dtype)
    if size == 0:
        return []
    x = problem.on_device(x)
    if parts == 2:  # two columns
        x, out = as_parts(x), as_parts(out)
    x, flat = x.reshape(size * parts), out.reshape(size * parts)
    n = size if axis is None else shape[axis]
    outer, inner = (1, 1) if axis is None else (math.prod(shape[:axis]), math.prod(shape[axis + 1 :]))
    inner *= parts
    itemsize, made = x.dtype.itemsize, []
    aligned = math.gcd(16, address_of(x) % 16 or 16) // itemsize, math.gcd(16, address_of(flat) % 16 or 16)
    aligned = max(1, min(aligned[0], aligned[1] // operation.result.itemsize))
    for choice in cost.choose(operation, itemsize, aligned, outer, n, inner, exclusive):
        work = () if choice.amounts is None else (problem.work.take("published", choice.amounts, operation.partial),)
        if choice.words is not None:
            work += (problem.work.flags(2 * choice.words).view(np.uint64),)
        launch = configure_quietly(choice.kernel, choice.grid, choice.block, problem.stream)
        arrays = () if choice.alone else (x, flat)
        made.append((launch, (*arrays, *work, *choice.numbers)))
    return made


def scan_by(x: Any, variant: str = "look_back", *, out: Any = None, stream: Any = None) -> Any:
    """Add up all elements to each one with one of the ladder's kernels.

    Parameters
    ----------
    x : ndarray or device array, shape (N,), float32
        Any N, also 0. One that is not C-contiguous is copied first.
    variant : str
        One of ``VARIANTS``. The sums of "look_back" differ in their last bits from run to run.
    out : array of the shape of ``x``, optional
        Of the same kind and dtype. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N,)

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind, shape or dtype. Nothing was launched.

    Examples
    --------
    >>> scan_by(np.ones(3, np.float32), "blelloch")
    array([1., 2., 3.], dtype=float32)
    """
    return call(_scan_by, (x,), out, stream, (variant,))


def _scan_by(problem: Problem):
    """The launches of ``scan_by``."""
    (x,), (variant,) = problem.inputs, problem.settings
    check_array("x", x, 1, (np.float32,))
    check_choice("variant", variant, ladder.VARIANTS)
    if problem.out is not None:
        check_array("out", problem.out, 1, (np.float32,))
        check_alike("out", problem.out, "x", x, tuple(x.shape))
        check_apart("out", problem.out, x=x)
    out = problem.output(tuple(x.shape))
    return ladder.steps(variant, problem.on_device(x), out, problem.stream) if x.shape[0] else []
