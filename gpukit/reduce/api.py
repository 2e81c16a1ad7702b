"""``reduce``: any axes of any array, brought into the form (outer, n, inner) that the kernels take."""

import math
import threading
import weakref

import numpy as np

from gpukit._host.arrays import Output, as_device_array, check_apart, configured, dtype_of, stream_of, to_device
from gpukit.backend import cuda
from gpukit.launching import Plans
from gpukit.reduce import fast as kernels
from gpukit.reduce import operators
from gpukit.reduce.primitives import WARP

__all__ = ["launches", "reduce", "reduce_higher_dim"]

#: Threads of a block, and blocks per multiprocessor that a launch is spread over.
THREADS = 256
BLOCKS = 8
#: Accesses that a lane has under way at a time in the kernel for rows.
ROW_LOADS = 4
#: Most accesses of a lane that holds its share of a short row in registers, by bytes of an access.
SHORT_LOADS = {1: 16, 2: 16, 4: 16, 8: 8, 16: 8}
#: Accesses of a lane under way there, for one row or for several at once.
SHORT_ACCESSES = 4
#: Accesses of a thread under way in the kernel for columns; threads of a block along x, and all, by bytes of an access.
COLUMN_LOADS = 8
COLUMN_THREADS = {1: (64, 256), 2: (64, 256), 4: (64, 256), 8: (32, 128), 16: (32, 128)}
#: The same in the kernel for columns whose rows begin at any address; it knows one block.
SKEWED_LOADS = {2: 4, 4: 4, 8: 8}
SKEWED_THREADS = (32, 8)
#: Most rows that a thread takes alone, and how many it has under way, where threads that do so fill the device.
CELL_ROWS = 32
CELL_LOADS = 4
#: Most tiles that one warp adds one after the other, or one more: it bounds the rounding error of long columns and
#: rows, and what a lane reads of them, 64 KB: as numbers of 8 or 16 bits, their sum is within 32.
MOST_TILES = 1000
#: Limit of gridDim.y and .z.
MOST_BLOCKS = 65535

_plans = Plans()


def reduce(x, axis=None, op="sum", keepdims=False, *, out=None, stream=None):
    """Reduce an array over some of its axes, as ``np.sum``, ``prod``, ``max``, ``min`` and ``mean`` do (D1 to D3).

    The same bits come out in every run on the same device. Sums of float16 and float32 are made in float32, for the
    most part as trees: an element goes through about 20 additions in a sum of a million, 90 in one of 2**28, and never
    more than about 1,100 for each group of neighbouring axes. The error is at most as many eps of float32, times the
    sum of the magnitudes (and the rounding to the result's dtype); it is usually below one.

    Parameters
    ----------
    x : ndarray or device array
        Integers or floats, any shape. What is contiguous in memory, in any order of the axes that leaves the kept ones
        in theirs, is read where it is; anything else is copied first.
    axis : int, tuple of int, or None
        The axes to reduce, all of them for None; negative ones count from the end.
    op : str or tuple of (function, number)
        "sum", "prod", "max", "min" or "mean"; or an associative function of two numbers, a device function or one that
        ``cuda.jit`` can make one of, and its identity. Elements are combined in the order of their indices.
    keepdims : bool
        Keep the reduced axes, with size 1.
    out : array, optional
        Of the result's shape and dtype, of the same kind as ``x``. On the device it must not share memory with ``x``.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    What a call has found out and launched is kept for later ones with device arrays of the same dtype, shape, strides
    and alignment: they exchange the addresses and launch.

    Returns
    -------
    NumPy scalar, ndarray or device array
        ``out`` if that was given, otherwise new, of the library of ``x``. The dtype is NumPy's: int64 or uint64 for
        sums and products of integers, float64 for their mean, that of ``x`` for the rest and for a function.
        Empty sums are 0, products 1, means NaN. NaN among the elements makes the result NaN.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above, and for the maximum or minimum of no elements; nothing is launched then.
    """
    call = _plans.call((x,), out, stream, axis, op, keepdims)
    if call.plan is not None:
        return call.again()
    first, again = _operations(x, op)
    axes = _axes(axis, len(x.shape))
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    _check_out(x, out, kept, first.result)
    _check_not_empty(op, [x.shape[i] for i in axes], kept)
    stream = stream_of(stream)
    result = Output(x, kept, out, stream, dtype=first.result)
    steps = []
    if math.prod(kept):
        flat, form = _flatten(x, axes, stream, first.commutative)
        steps = launches(flat, form, first, again, result.device.reshape(math.prod(kept)), stream)
    finished = call.first(steps, result)
    return finished[()] if isinstance(finished, np.ndarray) and out is None and kept == () else finished


def reduce_higher_dim(x, op="sum", *, out=None, stream=None):
    """Reduce over the first axis: (N, H, W, C) becomes (1, H, W, C) (D1).

    The other axes are one, whose columns the blocks tile along x; the first axis is shared among blocks along y. N may
    be odd or have any other remainder: the last tile of rows is read with a check (D3).

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
    """
    _check_kind(x)
    if len(x.shape) == 0:
        raise ValueError("x has shape (); it must have one dimension or more")
    return reduce(x, 0, op, keepdims=True, out=out, stream=stream)


# -- arguments -------------------------------------------------------------------------------------


def _check_kind(x):
    if not isinstance(x, np.ndarray) and not cuda.is_cuda_array(x):
        raise TypeError(f"x is a {type(x).__name__}; it must be a NumPy array or a device array")


def _operations(x, op):
    _check_kind(x)
    dtype = dtype_of(x)
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise TypeError(f"x has dtype {dtype}; it must be an integer or a float of at most 8 bytes")
    if isinstance(op, str):
        if op not in operators.OPERATORS:
            known = ", ".join(map(repr, operators.OPERATORS))
            raise ValueError(f"op is {op!r}; it must be one of {known}, or a function and its identity")
    elif not (isinstance(op, tuple) and len(op) == 2 and callable(op[0]) and np.isscalar(op[1])):
        raise TypeError(f"op is {op!r}; it must be a name, or a tuple of a function and its identity")
    return operators.make(op, dtype)


def _axes(axis, dimensions):
    """The axes as a set of ints from 0 on."""
    if axis is None:
        return frozenset(range(dimensions))
    found = []
    for one in axis if isinstance(axis, tuple) else (axis,):
        if not isinstance(one, int | np.integer) or isinstance(one, bool):
            raise TypeError(f"axis is {axis!r}; it must be an int, a tuple of ints, or None")
        if not -dimensions <= one < dimensions:
            raise ValueError(f"axis is {axis!r}; x has {dimensions} dimensions")
        found.append(int(one) % dimensions)
    if len(set(found)) != len(found):
        raise ValueError(f"axis is {axis!r}; it must not name an axis twice")
    return frozenset(found)


def _check_out(x, out, shape, dtype):
    if out is None:
        return
    if not isinstance(out, np.ndarray) and not cuda.is_cuda_array(out):
        raise TypeError(f"out is a {type(out).__name__}; it must be a NumPy array or a device array")
    if cuda.is_cuda_array(out) != cuda.is_cuda_array(x):
        raise TypeError("out and x must both be NumPy arrays or both device arrays")
    if dtype_of(out) != dtype:
        raise TypeError(f"out has dtype {dtype_of(out)}; it must be {dtype}")
    if tuple(out.shape) != shape:
        raise ValueError(f"out has shape {tuple(out.shape)}; it must be {shape}")
    check_apart("out", out, x=x)


def _check_not_empty(op, reduced, kept):
    if op in ("max", "min") and 0 in reduced and 0 not in kept:
        raise ValueError(f"x has no elements to reduce; op {op!r} has no identity")


# -- the form that the kernels take ----------------------------------------------------------------


def _flatten(x, axes, stream, commutative=True):
    """``x`` as a contiguous device array of one dimension, and its form: (size, whether reduced) of groups of axes."""
    if cuda.is_cuda_array(x):
        x = as_device_array(x)
    if x.size == 0:
        # The kernels get an element that they do not read.
        kept = math.prod(n for i, n in enumerate(x.shape) if i not in axes)
        return cuda.device_array(1, x.dtype, stream=stream), [(kept, False), (0, True)]
    order = _memory_order(x, axes, commutative)
    form = _groups([(x.shape[i], i in axes) for i in order])
    if isinstance(x, np.ndarray):
        host = np.ascontiguousarray(x.transpose(order)).reshape(-1)
        return cuda.to_device(host, stream=stream), form
    if order == tuple(range(x.ndim)):
        x = to_device(x, stream)
        return x if x.ndim == 1 else x.reshape(x.size), form
    description = {
        "shape": (x.size,),
        "typestr": x.dtype.str,
        "data": (x.device_ctypes_pointer.value, False),
        "version": 3,
    }
    return cuda.from_cuda_array_interface(description, owner=x, sync=False), form


def _memory_order(x, axes, commutative):
    """The axes in the order in which they lie in memory if, so ordered, x is contiguous and the kept axes are in their
    own order, and the reduced ones where that matters; otherwise in their own order.
    """
    long = [i for i in range(x.ndim) if x.shape[i] > 1]
    order = sorted(long, key=lambda i: -x.strides[i])
    kept, reduced = ([i for i in order if (i in axes) is wanted] for wanted in (False, True))
    expected = x.dtype.itemsize
    for i in reversed(order):
        if x.strides[i] != expected:
            return tuple(range(x.ndim))
        expected *= x.shape[i]
    if kept != sorted(kept) or not commutative and reduced != sorted(reduced):
        return tuple(range(x.ndim))
    return tuple(order + [i for i in range(x.ndim) if i not in long])


def _groups(sizes):
    """Neighbouring axes of a kind as one: [(size, reduced), ...] alternating, without axes of size 1."""
    groups = []
    for size, reduced in sizes:
        if groups and groups[-1][1] == reduced:
            groups[-1] = (groups[-1][0] * size, reduced)
        elif size != 1:
            groups.append((size, reduced))
    return groups


# -- launches --------------------------------------------------------------------------------------


def launches(x, form, first, again, out, stream=0):
    """The launches that reduce a flat array, to be made, traced or timed in this order.

    Parameters
    ----------
    x, out : contiguous device arrays of one dimension
    form : list of (size, whether reduced)
        The axes of x, from the outermost on; kinds alternate. Reduced ones go one after the other, the innermost first.
    first, again : Operation
        For the elements, and for the accumulators that a launch leaves to the next.
    stream : 0 or a CUDA stream

    Returns
    -------
    list of (launch, arguments)
    """
    form, count = list(form), math.prod(size for size, reduced in form if reduced)
    if not any(reduced for _, reduced in form):
        form = [*form, (1, True)]
    found, operation = [], first
    while any(reduced for _, reduced in form):
        at = max(i for i, (_, reduced) in enumerate(form) if reduced)
        n, inner = form[at][0], math.prod(size for size, _ in form[at + 1 :])
        rest = form[:at] + form[at + 1 :]
        outer = math.prod(size for size, _ in form[:at])
        last = not any(reduced for _, reduced in rest)
        target = out if last else cuda.device_array(outer * inner, first.partial, stream=stream)
        chosen = operation if last else operators.keep(operation)
        found += _launches(x, target, chosen, outer, n, inner, count, stream)
        x, form, operation = target, rest, again
    return found


def _launches(x, out, operation, outer, n, inner, count, stream):
    """[(launch, arguments), ...] that reduce (outer, n, inner) over its middle axis."""
    if inner == 1 and n > 1:
        if operation.words is not None and _vector(x, n) >= 4:
            x, n, operation = x.view(operation.words), n // 4, operators.packed(operation)
        vector = _vector(x, n)
        if outer > 1 and n <= WARP * vector * SHORT_LOADS[vector * x.dtype.itemsize]:
            return [_launch_groups(x, out, operation, vector, outer, n, count, stream)]
        return [_launch_rows(x, out, operation, outer, n, count, stream)]
    if inner == 1:
        outer, inner = 1, outer
    widest = min(_widest(x), 8)
    vector = min(_vector(x, inner), widest)
    fill = THREADS * BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT
    if n <= CELL_ROWS and outer * inner // vector >= fill // 2:
        return [_launch_cells(x, out, operation, vector, outer, n, inner, count, stream)]
    found = []
    for o in range(0, outer, MOST_BLOCKS):
        most = min(outer - o, MOST_BLOCKS)
        part = x[o * n * inner : (o + most) * n * inner] if n else x
        part_out = out[o * inner : (o + most) * inner]
        if vector < widest and operation.commutative and n >= CELL_ROWS and inner >= 16 * widest:
            found.append(_launch_skewed(part, part_out, operation, widest, most, n, inner, count, stream))
        else:
            found.append(_launch_columns(part, part_out, operation, vector, most, n, inner, count, stream))
    return found


def _widest(x):
    """Elements in the widest access, of 16 bytes."""
    return 16 // x.dtype.itemsize


def _vector(x, length):
    """Most elements of one access to aligned rows of this length that follow one another."""
    vector, place = _widest(x), x.device_ctypes_pointer.value // x.dtype.itemsize
    while length % vector or place % vector:
        vector //= 2
    return vector


def _power(n):
    """The smallest power of two that is not less than n."""
    return 1 << max(n - 1, 0).bit_length()


def _launch_groups(x, out, operation, vector, outer, n, count, stream):
    lanes = min(WARP, _power(-(-n // vector)))
    loads = _power(-(-n // (vector * lanes)))
    several = max(1, SHORT_ACCESSES // loads)
    kernel = kernels.groups(operation, vector, lanes, loads, several, THREADS)
    blocks = -(-outer // (THREADS // lanes * several))
    return configured(kernel, blocks, THREADS, stream), (x, out, outer, n, count)


def _launch_rows(x, out, operation, outer, n, count, stream):
    vector, loads = _widest(x), ROW_LOADS
    threads = min(THREADS, max(64, _power(n // (vector * loads))))
    offset = x.device_ctypes_pointer.value // x.dtype.itemsize % vector
    tiles, warps = -(-(n + offset) // (WARP * vector * loads)), threads // WARP
    splits = _splits(outer, max(1, tiles // warps))
    run = -(-tiles // (splits * warps))
    partials, counters = _workspace(operation.partial, outer * splits, outer, splits, stream)
    kernel = kernels.rows(operation, vector, threads, loads)
    launch = configured(kernel, outer * splits, threads, stream)
    return launch, (x, out, partials, counters, n, splits, run, offset, count)


def _launch_cells(x, out, operation, vector, outer, n, inner, count, stream):
    kernel = kernels.cells(operation, vector, min(CELL_LOADS, _power(n)), THREADS)
    blocks = -(-outer * (inner // vector) // THREADS)
    return configured(kernel, blocks, THREADS, stream), (x, out, outer, n, inner, count)


def _launch_columns(x, out, operation, vector, outer, n, inner, count, stream):
    if x.dtype.itemsize < 4:
        vector = min(vector, 8 // x.dtype.itemsize)
    width, threads = COLUMN_THREADS[vector * x.dtype.itemsize]
    width = min(width, _power(-(-inner // vector)))
    height, loads = threads // width, COLUMN_LOADS
    while height * width > WARP and height * loads >= 2 * n:
        loads, height = (loads // 2, height) if loads > 1 else (loads, height // 2)
    across = -(-inner // (width * vector))
    splits = min(_splits(across * outer, max(1, n // (height * loads))), MOST_BLOCKS)
    deep = kernels.rows_of_warp(width, height)
    run = -(-n // (deep * loads * splits * (height // deep)))
    partials, counters = _workspace(operation.partial, splits * outer * inner, outer * across, splits, stream)
    kernel = kernels.columns(operation, vector, width, height, loads)
    launch = configured(kernel, (across, splits, outer), (width, height), stream)
    return launch, (x, out, partials, counters, outer, n, inner, run, count)


def _launch_skewed(x, out, operation, vector, outer, n, inner, count, stream):
    (width, height), loads = SKEWED_THREADS, SKEWED_LOADS[vector]
    across = -(-inner // ((width - 1) * vector))
    splits = min(_splits(across * outer, max(1, n // (height * loads))), MOST_BLOCKS)
    offset = x.device_ctypes_pointer.value // x.dtype.itemsize % vector
    partials, counters = _workspace(operation.partial, splits * outer * inner, outer * across, splits, stream)
    kernel = kernels.skewed(operation, vector, width, height, loads)
    launch = configured(kernel, (across, splits, outer), (width, height), stream)
    return launch, (x, out, partials, counters, outer, n, inner, offset, count)


def _splits(blocks, tiles):
    """How many blocks share the tiles of a result: enough to fill the device, and to bound the tiles of each."""
    wanted = BLOCKS * cuda.get_current_device().MULTIPROCESSOR_COUNT
    return min(tiles, max(wanted // blocks, -(-tiles // MOST_TILES), 1))


# -- memory for what blocks leave to each other ----------------------------------------------------


class _Workspace:
    """Of one stream on one device, where one launch follows the other: it is used by one at a time."""

    def __init__(self):
        self.partials = self.counters = None
        self.views = {}
        self.lock = threading.Lock()

    def take(self, dtype, size, counters, stream):
        """(array for ``size`` numbers, array of ``counters`` zeros); both may be larger."""
        # Sizes are powers of two, so that few are ever allocated.
        with self.lock:
            if self.partials is None or self.partials.size < size * dtype.itemsize:
                self.partials = cuda.device_array(_power(size * dtype.itemsize), np.uint8, stream=stream)
                self.views = {}
            if self.counters is None or self.counters.size < counters:
                self.counters = cuda.to_device(np.zeros(_power(counters), np.uint32), stream=stream)
            if dtype not in self.views:
                whole = self.partials.size // dtype.itemsize * dtype.itemsize
                self.views[dtype] = self.partials[:whole].view(dtype)
            return self.views[dtype], self.counters


_DEFAULT_STREAM = {}
_OTHER_STREAMS = weakref.WeakKeyDictionary()


def _workspace(dtype, size, counters, splits, stream):
    """(array for ``size`` partial results, as many ``counters`` that are 0); small ones if nothing is shared."""
    if splits == 1:
        size = counters = 1
    devices = _OTHER_STREAMS.setdefault(stream, {}) if stream else _DEFAULT_STREAM
    workspace = devices.setdefault(cuda.get_current_device().id, _Workspace())
    return workspace.take(dtype, size, counters, stream)
