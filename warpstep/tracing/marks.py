"""Values that remember where they came from, so that a trace can tell what becomes of them.

A value that a GPU leaves undefined does harm only where it is used. A mark goes with a value through arithmetic,
selections and shuffles, lane by lane, until a store, a branch or an address uses it.
"""

from typing import Any

import numpy as np

#: Bits of a mark below the number of its origin: a lane of the warp.
LANE_BITS = 5


class Marked(np.ndarray):
    """An array whose ``marks`` (broadcast to its shape) are 0 where a value may be used freely."""

    marks: np.ndarray | None = None

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if out is not None:
            options["out"] = tuple(plain(o) for o in out)
        result = getattr(ufunc, method)(*(plain(i) for i in inputs), **options)
        if method != "__call__":
            return result
        marks = _joined(inputs)
        if isinstance(result, tuple):
            return tuple(mark(part, marks) for part in result)
        return mark(result, marks)

    def __array_function__(self, func, types, args, kwargs):
        result = func(*_plain_all(args), **{name: plain(value) for name, value in kwargs.items()})
        if func is np.where:
            condition, *values = args
            chosen = np.where(plain(condition), *map(_or_zero, values))
            return mark(result, np.maximum(chosen, _or_zero(condition)))
        if func is np.broadcast_to:
            return mark(result, self.marks)
        if func is np.broadcast_arrays:
            return tuple(mark(part, marks_of(a)) for part, a in zip(result, args, strict=True))
        return result

    def astype(self, *args, **options):
        return mark(plain(self).astype(*args, **options), self.marks)

    def view(self, *args, **options):
        seen = plain(self).view(*args, **options)
        return mark(seen, self.marks) if seen.shape == self.shape else seen


def mark(value, marks) -> Any:
    """Mark a value: ``marks`` is an int64 array that broadcasts to (B, T), or None."""
    if marks is None or not marks.any():
        return value
    value = np.asarray(value)
    if not value.ndim:  # a lane array has two dimensions
        value = value.reshape(1, 1)
    marked = value.view(Marked)
    marked.marks = marks
    return marked


def plain(value) -> Any:
    """The value without its marks."""
    return np.ndarray.view(value, np.ndarray) if value.__class__ is Marked else value


def marks_of(value):
    """The marks of a value; None if it has none."""
    return value.marks if value.__class__ is Marked else None


def _or_zero(value):
    marks = marks_of(value)
    return np.int64(0) if marks is None else marks


def _joined(values):
    """The marks of a result: where several operands have one, that of the latest origin."""
    found = [m for m in map(marks_of, values) if m is not None]
    if not found:
        return None
    joined = found[0]
    for marks in found[1:]:
        joined = np.maximum(joined, marks)
    return joined


def _plain_all(args):
    return [_plain_all(a) if isinstance(a, list | tuple) else plain(a) for a in args]
