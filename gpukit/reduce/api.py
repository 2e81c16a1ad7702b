"""``reduce``: any axes of any array, brought into the form (outer, n, inner) that the kernels take."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukit import operators
from gpukit._host.arrays import (
    address_of,
    as_device_array,
    as_parts,
    as_words,
    check_alike,
    check_apart,
    check_array,
    check_numbers,
    configure_quietly,
    device_array_of,
    dtype_of,
    is_bfloat16,
    is_complex,
    span,
    window,
)
from gpukit._host.call import Problem, call
from gpukit._host.transfers import copy_launches
from gpukit._host.work_memory import WorkMemory
from gpukit.backend import cuda
from gpukit.operators import Operation
from gpukit.reduce import cost, ladder
from warpstep.values import check_flag, describe, is_int

__all__ = ["launches", "reduce", "reduce_higher_dim", "sum_by"]

#: Elements of an array, at least, whose results are copied along axes of stride 0: for fewer a launch takes longer.
MIN_COPIED = 1 << 19


def reduce(
    x: Any,
    axis: int | tuple[int, ...] | None = None,
    op: str | tuple[Callable, Any] = "sum",
    keepdims: bool = False,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Reduce an array over some of its axes, as ``np.sum``, ``prod``, ``max``, ``min`` and ``mean`` do (D1 to D3).

    The same bits come out in every run on the same device. Sums of bfloat16, float16 and float32 are made in float32,
    for the most part as trees: an element goes through about 20 additions in a sum of a million, 90 in one of 2**28,
    and never more than about 1,100 for each group of neighbouring axes. The error is at most as many eps of float32,
    times the sum of the magnitudes (and the rounding to the result's dtype); it is usually below one.

    Parameters
    ----------
    x : ndarray or device array
        Integers, floats (also bfloat16), bools unless ``op`` is a function, complex numbers for "sum" and "mean"; any
        shape and strides. On the device it is read where it is. It is copied first if more than three groups of axes
        (for complex numbers, two) are kept or reduced that do not follow one another in memory; for a function, if the
        reduced axes are not in order in memory, or there are gaps other than between rows.
    axis : int, tuple of int, or None
        The axes to reduce, all of them for None; negative ones count from the end.
    op : str or tuple of (function, number)
        "sum", "prod", "max", "min" or "mean"; or an associative function of two numbers, and its identity. The function
        is a device function or can be compiled to one. It gets the elements in the order of their indices.
    keepdims : bool
        Keep the reduced axes, with size 1.
    out : array, optional
        Of the result's shape and dtype, of the same kind as ``x``. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    NumPy scalar, ndarray or device array
        ``out`` if that was given, otherwise new, of the library of ``x``. The dtype is NumPy's: int64 or uint64 for
        sums and products of integers and bools, float64 for their mean, that of ``x`` for the rest and for a function.
        Empty sums are 0, products 1, means NaN. NaN among the elements makes the result NaN.

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind, and for the maximum or minimum of no elements. Nothing was launched.

    Examples
    --------
    >>> reduce(np.arange(6).reshape(2, 3), axis=0, op="max")
    array([3, 4, 5])
    """
    return call(_reduction, (x,), out, stream, (axis, op, keepdims))


def reduce_higher_dim(x: Any, op: str | tuple[Callable, Any] = "sum", *, out: Any = None, stream: Any = None) -> Any:
    """Reduce over the first axis: (N, H, W, C) becomes (1, H, W, C) (D1).

    The other axes become one, whose columns the blocks tile along x; blocks along y share the first axis. N may be
    odd or have any other remainder: the last tile of rows is checked (D3).

    Parameters
    ----------
    x : ndarray or device array
        One axis or more.
    op, out, stream
        As for ``reduce``.

    Returns
    -------
    ndarray or device array, shape (1, ...)

    Raises
    ------
    TypeError, ValueError
        As for ``reduce``, and for an ``x`` without axes.

    Examples
    --------
    >>> reduce_higher_dim(np.ones((5, 2, 3), np.float32))
    array([[[5., 5., 5.],
            [5., 5., 5.]]], dtype=float32)
    """
    return reduce(x, 0, op, keepdims=True, out=out, stream=stream)


def sum_by(x: Any, variant: str = "one_launch", *, out: Any = None, stream: Any = None) -> Any:
    """Add up all elements with one of the ladder's kernels.

    Parameters
    ----------
    x : ndarray or device array, shape (N,), float32
        Any N, also 0. One that is not C-contiguous, or whose memory is not aligned to 16 bytes, is copied first.
    variant : str
        One of ``VARIANTS``.
    out : array of shape (1,), optional
        Of the same kind and dtype. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        Unless given, PyTorch's current one for its tensors, otherwise the default one. With device arrays the call
        returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (1,)

    Raises
    ------
    TypeError, ValueError
        For an argument of another kind, shape or dtype. Nothing was launched.

    Examples
    --------
    >>> sum_by(np.ones(1000, np.float32), "shuffle")
    array([1000.], dtype=float32)
    """
    return call(_sum, (x,), out, stream, (variant,))


def _sum(problem: Problem):
    """The launches of ``sum_by``."""
    (x,), (variant,) = problem.inputs, problem.settings
    check_array("x", x, 1, (np.float32,))
    ladder.check_variant(variant)
    if problem.out is not None:
        check_array("out", problem.out, 1, (np.float32,))
        check_alike("out", problem.out, "x", x, (1,))
        check_apart("out", problem.out, x=x)
    out = problem.output((1,))
    if x.shape[0] == 0:
        first, again, _ = _operations("sum", x)
        x = as_device_array(x) if cuda.is_cuda_array(x) else x
        return _launches(problem, x, frozenset({0}), first, again, 0, out)
    x = problem.on_device(x)
    if address_of(x) % 16:
        x = problem.copy(x)
    return ladder.steps(variant, x, out, problem.stream)


def _reduction(problem: Problem):
    """The launches of ``reduce``."""
    (x,), (axis, op, keepdims) = problem.inputs, problem.settings
    first, again, dtype = _operations(op, x)
    axes, keepdims = _check_axes(axis, len(x.shape)), check_flag("keepdims", keepdims)
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    if problem.out is not None:
        check_array("out", problem.out, len(kept))
        check_alike("out", problem.out, "x", x, kept, dtype)
        check_apart("out", problem.out, x=x)
    if op in ("max", "min") and 0 not in kept and any(x.shape[i] == 0 for i in axes):
        raise ValueError(f"x has no elements to reduce; op {op!r} has no identity")
    view = as_parts if is_complex(dtype) else as_words
    out = view(problem.output(kept, dtype))
    if out.size == 0:
        return []
    x = view(as_device_array(x) if cuda.is_cuda_array(x) else x)
    # Along axes of stride 0 all elements are the same one.
    same = frozenset(i for i, n in enumerate(x.shape) if n > 1 and x.strides[i] == 0)
    repeated = same & axes if op in ("sum", "mean", "max", "min") else frozenset()
    repeats, x = math.prod(x.shape[i] for i in repeated), _once(x, repeated)
    count = math.prod(x.shape[i] for i in axes)
    if op == "sum" and repeats > 1:
        count, first, again = repeats, operators.multiply_sums(first), operators.multiply_sums(again)
    make = _launches_and_copy if same - axes and not isinstance(x, np.ndarray) and x.size >= MIN_COPIED else _launches
    return make(problem, x, axes, first, again, count, out)


def _launches_and_copy(problem, x, axes, first, again, count, out):
    """The launches that reduce the first element along kept axes of stride 0, and copy the result along them."""
    kept = [i for i in range(x.ndim) if i not in axes]
    same = frozenset(i for i in kept if x.strides[i] == 0)
    once = _once(x, same)
    sizes = [once.shape[i] for i in kept]
    found = problem.work.take("once", math.prod(sizes), out.dtype)
    steps = zip(kept, _contiguous(sizes, out.dtype.itemsize), strict=True)
    shape, steps = tuple(x.shape[i] for i in kept), tuple(0 if i in same else step for i, step in steps)
    made = _launches(problem, once, axes, first, again, count, found)
    return made + copy_launches(device_array_of(shape, steps, out.dtype, found), out.reshape(shape), problem.stream)


def _once(x, axes):
    """A view of the first element along these axes."""
    if not axes:
        return x
    if isinstance(x, np.ndarray):
        return x[tuple(slice(1) if i in axes else slice(None) for i in range(x.ndim))]
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return device_array_of(shape, x.strides, x.dtype, x)


def _contiguous(sizes, itemsize):
    """Strides of a contiguous array."""
    return tuple(math.prod(sizes[i + 1 :]) * itemsize for i in range(len(sizes)))


def _launches(problem, x, axes, first, again, count, out):
    """The launches that reduce an array of elements into contiguous memory."""
    order, gap = _memory_order(x, axes, first.commutative)
    order = [i for i in order if i not in axes and x.shape[i] > 1]
    straight = order == sorted(order)
    if x.size and not isinstance(x, np.ndarray) and not (straight and gap is not None):
        made = _where_it_is(x, axes, first, count, out, gap is None, problem)
        if made is not None:
            return made
    flat, form = _flatten(x, axes, problem, first.commutative)
    if straight:
        return launches(flat, form, first, again, out.reshape(out.size), problem.work, problem.stream, count)
    # The results come in the order in memory of the kept axes: it costs less to transpose these than the elements.
    found = problem.work.take("turned", out.size, out.dtype)
    made = launches(flat, form, first, again, found, problem.work, problem.stream, count)
    steps = dict(zip(order, _contiguous([x.shape[i] for i in order], out.dtype.itemsize), strict=True))
    shape = tuple(x.shape[i] for i in sorted(order))
    turned = device_array_of(shape, tuple(steps[i] for i in sorted(order)), out.dtype, found)
    return made + copy_launches(turned, out.reshape(shape), problem.stream)


def _where_it_is(x, axes, first, count, out, has_gaps, problem):
    """Make the launches that reduce a device array of any strides; None if other kernels are faster or can do more."""
    if count == 1 and first.result == x.dtype:
        return copy_launches(x, out.reshape(x.shape), problem.stream)
    if any(stride % x.dtype.itemsize for stride in x.strides):
        return None
    steps = [stride // x.dtype.itemsize for stride in x.strides]
    kept, reduced, before = _walk(x.shape, steps, axes)
    if not (has_gaps or cost.is_few(x.dtype.itemsize, kept, reduced)):
        return None
    strided = cost.choose_strided(first, kept, reduced, before)
    if strided is None:
        return None
    (low, high), itemsize = span(x), x.dtype.itemsize
    flat = device_array_of(((high - low) // itemsize,), (itemsize,), x.dtype, x, low - address_of(x))
    return [_launch_of(strided, flat, out.reshape(out.size), first, count, problem.work, problem.stream)]


def _operations(op, x):
    """(first, again, dtype of the result) for an array; TypeError or ValueError for one of other elements."""
    check_array("x", x, 0, more=True)
    known, dtype = operators.OPERATORS, dtype_of(x)
    if is_bfloat16(dtype):
        return *operators.for_bfloat16(*operators.checked_operations(op, np.dtype(np.float32), known)), dtype
    if is_complex(dtype):
        return *operators.checked_for_parts(op, dtype, known), dtype
    if dtype == np.bool_ and isinstance(op, str):
        first, again = operators.checked_operations(op, np.dtype(np.int8), known)
        return first, again, dtype if op in ("max", "min") else first.result
    first, again = operators.checked_operations(op, check_numbers("x", x, 0, more=True), known)
    return first, again, first.result


# -- arguments -------------------------------------------------------------------------------------


def _check_axes(axis, dimensions):
    """The axes as a set of ints from 0 on."""
    if axis is None:
        return frozenset(range(dimensions))
    found = []
    for one in axis if isinstance(axis, tuple) else (axis,):
        if not is_int(one):
            raise TypeError(f"axis is {describe(axis)}; it must be an int, a tuple of ints, or None")
        if not -dimensions <= one < dimensions:
            raise ValueError(f"axis is {describe(axis)}; x has {dimensions} dimension{'s' * (dimensions != 1)}")
        found.append(int(one) % dimensions)
    if len(set(found)) != len(found):
        raise ValueError(f"axis is {describe(axis)}; it must not name an axis twice")
    return frozenset(found)


# -- the form that the kernels take ----------------------------------------------------------------


def _flatten(x, axes, problem, commutative=True):
    """(flat, form): ``x`` and its axes as `launches` takes them."""
    if x.size == 0:
        # The kernels are passed an element that they do not read.
        kept = math.prod(n for i, n in enumerate(x.shape) if i not in axes)
        return problem.work.take("unread", 1, x.dtype), [(kept, False), (0, True)]
    order, gap = _memory_order(x, axes, commutative)
    sizes, itemsize = [(x.shape[i], i in axes) for i in order], x.dtype.itemsize
    if isinstance(x, np.ndarray) or gap is None:
        x = problem.on_device(x.transpose(order) if isinstance(x, np.ndarray) else x)
        return x.reshape(x.size), _groups(sizes)
    if gap == 0:
        return device_array_of((x.size,), (itemsize,), x.dtype, x), _groups(sizes)
    length = math.prod(n for n, _ in sizes[gap:])
    rows = device_array_of((x.size // length, length), (x.strides[order[gap - 1]], itemsize), x.dtype, x)
    return rows, _groups(sizes[:gap]) + _groups(sizes[gap:])


def _memory_order(x, axes, commutative):
    """The axes in their order in memory, and how many of them come before the only place with gaps, 0 without gaps.

    In their own order, with None, if the kernels cannot read x where it is. The reduced axes must stay in their own
    order unless the operation is commutative. There may be gaps between rows if all axes of a row are reduced, or if
    all are kept and the axis of the rows is reduced.
    """
    own = tuple(range(x.ndim))
    long = [i for i in own if x.shape[i] > 1]
    order = sorted(long, key=lambda i: -x.strides[i])
    reduced = [i for i in order if i in axes]
    if not commutative and reduced != sorted(reduced):
        return own, None
    gap, expected = 0, x.dtype.itemsize
    for at in reversed(range(len(order))):
        size, stride = x.shape[order[at]], x.strides[order[at]]
        if stride != expected:
            row = {i in axes for i in order[at + 1 :]}
            if gap or stride < expected or not (row == {True} or row == {False} and order[at] in axes):
                return own, None
            gap = at + 1
        expected = stride * size
    return tuple(order + [i for i in own if i not in long]), gap


def _groups(sizes):
    """Merge neighbouring axes of a kind: [(size, whether reduced), ...] alternating, without axes of size 1."""
    groups = []
    for size, reduced in sizes:
        if groups and groups[-1][1] == reduced:
            groups[-1] = (groups[-1][0] * size, reduced)
        elif size != 1:
            groups.append((size, reduced))
    return groups


# -- launches --------------------------------------------------------------------------------------


def launches(
    x: Any,
    form: list[tuple[int, bool]],
    first: Operation,
    again: Operation,
    out: Any,
    work: WorkMemory | None = None,
    stream: Any = 0,
    count: int | None = None,
) -> list[tuple]:
    """The launches that reduce a flat array, to be made, traced or timed in this order.

    Parameters
    ----------
    x, out : contiguous device arrays of one dimension
        x may also have two, with gaps between its rows, which are the innermost axis of ``form``.
    form : list of (size, whether reduced)
        The axes of x, from the outermost on; kinds alternate. Reduced ones go one after the other, the innermost first.
    first, again : Operation
        For the elements, and for the accumulators that a pass leaves to the next.
    work : WorkMemory, optional
        New memory unless given.
    stream : 0 or a CUDA stream
    count : int, optional
        What ``first.finish`` gets: the number of elements of a result unless given.

    Returns
    -------
    list of (launch, arguments)
    """
    work, form = WorkMemory(stream) if work is None else work, list(form)
    count = math.prod(size for size, reduced in form if reduced) if count is None else count
    if not any(reduced for _, reduced in form):
        form = [*form, (1, True)]
    if sum(reduced for _, reduced in form) > 1:
        steps = _steps(x, form)
        axes = {i for i, (_, reduced) in enumerate(form) if reduced}
        kept, reduced, _ = _walk([size for size, _ in form], steps, axes)
        strided = cost.choose_strided(first, kept, reduced)
        if strided is not None and cost.is_few(x.dtype.itemsize, kept, reduced):
            return [_launch_of(strided, _memory_of(x), out, first, count, work, stream)]
    found, operation = [], first
    while any(reduced for _, reduced in form):
        at = max(i for i, (_, reduced) in enumerate(form) if reduced)
        n, inner = form[at][0], math.prod(size for size, _ in form[at + 1 :])
        rest = form[:at] + form[at + 1 :]
        outer = math.prod(size for size, _ in form[:at])
        last = not any(reduced for _, reduced in rest)
        target = out if last else work.take(f"pass {len(rest)}", outer * inner, first.partial)
        chosen = operation if last else operators.keep_accumulators(operation)
        found += _pass(x, target, chosen, outer, n, inner, count, work, stream)
        x, form, operation = target, rest, again
    return found


def _walk(shape, steps, axes):
    """Describe the axes as ``cost.choose_strided`` takes them, from the lowest address on: (kept, reduced, first)."""
    kept, reduced, first, out_step = [], [], 0, 1
    for i in reversed(range(len(shape))):
        n, step = shape[i], steps[i]
        if i in axes:
            reduced.append((n, abs(step)))
            continue
        first += (n - 1) * out_step if step < 0 else 0
        kept.append((n, abs(step), out_step if step >= 0 else -out_step))
        out_step *= n
    return _merged(kept), _merged(reduced), first


def _merged(axes):
    """Sort axes (size, step, ...) by their first steps, and merge those that are one axis in all their steps."""
    found = []
    for n, *steps in sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: -axis[1]):
        if found and all(outer == n * inner for outer, inner in zip(found[-1][1:], steps, strict=True)):
            found[-1] = (found[-1][0] * n, *steps)
        else:
            found.append((n, *steps))
    return found


def _pass(x, out, operation, outer, n, inner, count, work, stream):
    """The launches that reduce (outer, n, inner) over its middle axis."""
    start, pitch = address_of(x) % 16, n if inner == 1 else inner
    if x.ndim == 2:
        pitch = x.strides[0] // x.dtype.itemsize
        x = _memory_of(x)
    packs = operation.packed_dtype is not None and inner == 1 and n > 1
    if packs and cost.max_vector(x.dtype.itemsize, start // x.dtype.itemsize, math.gcd(n, pitch)) >= 4:
        x, n, pitch, operation = x.view(operation.packed_dtype), n // 4, pitch // 4, operators.pack_bytes(operation)
    itemsize = x.dtype.itemsize
    made = []
    aligned = address_of(out) % 16 == 0
    for choice in cost.choose(operation, itemsize, start // itemsize, outer, n, inner, pitch, aligned):
        part, part_out = (
            array if at is None else array[at] for array, at in ((x, choice.part), (out, choice.part_out))
        )
        made.append(_launch_of(choice, part, part_out, operation, count, work, stream))
    return made


def _steps(x, form):
    """Count the elements from one index of each axis to the next."""
    steps, length = [], 1
    for size, _ in reversed(form):
        if x.ndim == 2 and length == x.shape[1]:
            length = x.strides[0] // x.dtype.itemsize
        steps.append(length)
        length *= size
    return steps[::-1]


def _memory_of(x):
    """View a flat array, or rows with gaps between them, as one dimension with the gaps."""
    return x if x.ndim == 1 else window(x, x.dtype, (x.shape[0] - 1) * (x.strides[0] // x.dtype.itemsize) + x.shape[1])


def _launch_of(choice, x, out, operation, count, work, stream):
    """(launch, arguments) of a choice."""
    shared = ()
    if choice.work is not None:
        partials, counters = choice.work
        shared = work.take("partials", partials, operation.partial), work.zeros(counters)
    launch = configure_quietly(choice.kernel, choice.grid, choice.block, stream)
    return launch, (x, out, *shared, *choice.numbers, count)
