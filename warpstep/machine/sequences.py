"""Functions that generated programs call: iteration, ufuncs of arrays, and other views of an array."""

import functools
import math
import operator

import numpy as np

from warpstep.errors import UnsupportedError
from warpstep.machine import arithmetic
from warpstep.machine.memory import Either, View, contiguous, elements, merge


def iterate(memory, state, mask, site):
    """Step over an array, a tuple, ``enumerate`` or ``zip``; return (value, whether there is one, state after it)."""
    return _STEPS[state[0]](memory, state, mask, site)


def _step_array(memory, state, mask, site):
    kind, view, i = state
    extent = view.shape[0]
    valid = i < np.int64(extent) if isinstance(extent, int) else i < extent
    after = (kind, view, i + np.int64(1))
    there = np.logical_and(valid, True if mask is None else mask)
    if not np.any(there):
        return None, valid, after
    index = (np.minimum(i, np.maximum(extent - np.int64(1), np.int64(0))),)
    there = None if np.all(there) else there
    if len(view.shape) > 1:
        return memory.window(view, index, there, site), valid, after
    if view.dtype.names is not None:
        return memory.record(view, index, there, site), valid, after
    return memory.load(view, index, there, site), valid, after


def _step_tuple(memory, state, mask, site):
    kind, items, i = state
    last = np.int64(len(items) - 1)
    return arithmetic.choose(items, np.minimum(i, last)), i <= last, (kind, items, i + np.int64(1))


def _step_enumerate(memory, state, mask, site):
    kind, count, inner = state
    value, valid, inner = _step(memory, inner, mask, site)
    return (count, value), valid, (kind, count + np.int64(1), inner)


def _step_zip(memory, state, mask, site):
    steps = [_step(memory, inner, mask, site) for inner in state[1:]]
    valid = functools.reduce(operator.and_, (s[1] for s in steps))
    return tuple(s[0] for s in steps), valid, (state[0], *(s[2] for s in steps))


def _step(memory, state, mask, site):
    return iterate(memory, state, mask, site) if isinstance(state[0], str) else arithmetic.range_next(state)


def place(i, shape, layout="C"):
    """Return the index of element ``i`` of an array, in the order of C or Fortran."""
    index = []
    for extent in shape if layout == "F" else reversed(shape):
        extent = np.maximum(np.int64(extent), np.int64(1))
        index.append(i % extent)
        i = i // extent
    return tuple(index if layout == "F" else reversed(index))


def _next_place(i, shape, mask, layout="C"):
    """Return (index of element i, whether there is one, the lanes that have one; False if there is none)."""
    size = elements(shape)
    valid = i < size
    there = np.logical_and(valid, True if mask is None else mask)
    last = np.maximum(size - np.int64(1), np.int64(0))
    lanes = None if np.all(there) else there
    return place(np.minimum(i, last), shape, layout), valid, lanes if np.any(there) else False


def _step_flat(memory, state, mask, site):
    kind, view, i = state
    index, valid, there = _next_place(i, view.shape, mask)
    value = None if there is False else memory.load(view, index, there, site)
    return value, valid, (kind, view, i + np.int64(1))


def _step_ndenumerate(memory, state, mask, site):
    kind, view, i = state
    index, valid, there = _next_place(i, view.shape, mask)
    value = None if there is False else memory.load(view, index, there, site)
    return (index, value), valid, (kind, view, i + np.int64(1))


def _step_ndindex(memory, state, mask, site):
    kind, shape, i = state
    index, valid, _ = _next_place(i, shape, mask)
    return index, valid, (kind, shape, i + np.int64(1))


def _step_nditer(memory, state, mask, site):
    """Yield an array of no dimensions for each operand; operands broadcast."""
    kind, views, i, layout = state
    shape = max((view.shape for view in views), key=len)
    for view in views:
        extents = zip(view.shape[::-1], shape[::-1], strict=False)
        shape = (*shape[: len(shape) - len(view.shape)], *[np.maximum(a, b) for a, b in extents][::-1])
    index, valid, there = _next_place(i, shape, mask, layout)
    windows = None
    if there is not False:
        windows = []
        for view in views:
            own = zip(index[len(index) - len(view.shape) :], view.shape, strict=True)
            own = tuple(np.where(extent == 1, np.int64(0), at)[()] for at, extent in own)
            windows.append(memory.window(view, own, there, site))
        windows = windows[0] if len(windows) == 1 else tuple(windows)
    return windows, valid, (kind, views, i + np.int64(1), layout)


_STEPS = {
    "array": _step_array,
    "tuple": _step_tuple,
    "enumerate": _step_enumerate,
    "zip": _step_zip,
    "flat": _step_flat,
    "ndenumerate": _step_ndenumerate,
    "ndindex": _step_ndindex,
    "nditer": _step_nditer,
}


def typed_item(items, places, index):
    """Return ``items[index]`` of a tuple of several types, where those at ``places`` have the type that is wanted."""
    if not isinstance(index, np.ndarray):
        return items[int(index) if int(index) in places else places[0]]
    return functools.reduce(lambda result, at: merge(index == at, items[at], result), places, None)


def elementwise(memory, function, operands, dtypes, out, mask, site):
    """Apply a ufunc to arrays (and numbers), which broadcast, and store every element of ``out``."""
    if not all(isinstance(extent, int) for extent in out.shape):
        memory.batch.unsupported(site, "a ufunc of an array whose shape differs by thread")
    for place in np.ndindex(*out.shape):
        values = []
        for operand, dtype in zip(operands, dtypes, strict=True):
            value = operand
            if isinstance(operand, View | Either):
                index = place[len(place) - len(operand.shape) :]
                fits = [np.int64(0 if extent == 1 else i) for i, extent in zip(index, operand.shape, strict=True)]
                value = memory.load(operand, tuple(fits), mask, site)
            values.append(value.astype(dtype))
        result = function(*values)
        to_integer = result.dtype.kind == "f" and out.dtype.kind in "iu"
        result = arithmetic.float_to_int(result, out.dtype) if to_integer else result.astype(out.dtype)
        memory.store(out, tuple(np.int64(i) for i in place), result, mask, site)
    return out


def complex_part(view, which):
    """Return ``z.real`` (0) or ``z.imag`` (1) of an array: every other float."""
    if view.space == "local":
        raise UnsupportedError(f"the real or imaginary part of local array {view.name!r} as an array")
    view.all_known()
    items = view.items.view(f"f{view.dtype.itemsize // 2}")
    strides = tuple(2 * s for s in view.strides)
    return View(view.space, items, 2 * view.base + which, view.shape, strides, view.name, view.address, 2 * view.row)


def field_view(view, name):
    """Return the array of one field of an array of records."""
    dtype, offset = view.dtype.fields[name][:2]
    if view.space == "local":
        raise UnsupportedError(f"field {name!r} of all records of local array {view.name!r} as one array")
    view.all_known()
    size = view.dtype.itemsize
    dtype, inner = dtype.subdtype or (dtype, ())
    result = View(
        view.space,
        view.items.view(np.uint8),
        view.base * size + offset,
        (*view.shape, *inner),
        (*(s * size for s in view.strides), *(s * dtype.itemsize for s in contiguous(inner))),
        f"{view.name}.{name}",
    )
    result.dtype, result.row, result.whole, result.address = dtype, view.row * size, False, view.address
    return result


def reshaped(batch, view, shape, site):
    """Return ``array.reshape(shape)`` of a contiguous array; one extent may be -1."""
    if view.strides != contiguous(view.shape) or any(isinstance(n, np.ndarray) for n in shape):
        batch.unsupported(site, "a reshape of an array that is not contiguous, or to a shape that differs by thread")
    size = math.prod(view.shape)
    shape = [int(n) for n in shape]
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = size // known if known else 0
    if math.prod(shape) != size:
        batch.unsupported(site, f"a reshape of {size} elements to {tuple(shape)}")
    return view.with_window(view.base, tuple(shape), contiguous(shape))
