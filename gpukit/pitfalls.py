"""Five slow kernels and the same kernels fixed (A9): each has one pitfall, and a trace shows which.

1. ``scale``          -> ``scale_fixed``
2. ``running_sums``   -> ``running_sums_fixed``
3. ``swing``          -> ``swing_fixed``
4. ``iterate``        -> ``iterate_fixed``
5. ``add_to_row``     -> ``add_to_rows``

Both versions compute the same and differ in one thing. The slow ones do not say what is wrong: finding out is the
exercise.
"""

import functools
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpukit.backend import cuda, float32, uint32
from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.values import check_choice, check_int, check_items, describe

__all__ = ["CASES", "PATIENTS", "Case", "Pitfall", "make_pitfall"]

#: Of a case: rows or columns, and elements.
MAX_EXTENT, MAX_ELEMENTS = 2**31 - 1, 2**31 - 1
THREADS = 128
WARPS = THREADS // WARP


# -- 1 -----------------------------------------------------------------------------------------------------------------


@cuda.jit
def scale(x, factor, out):
    """out = factor * x."""
    row, col = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        out[row, col] = factor * x[row, col]


@cuda.jit
def scale_fixed(x, factor, out):
    """Coalesced: neighbouring threads take neighbouring columns, so eight lanes share a sector."""
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        out[row, col] = factor * x[row, col]


# -- 2 -----------------------------------------------------------------------------------------------------------------


@functools.cache
def make_running_sums(pitch: int):
    """Make a kernel: prefix sums of rows of 32 elements. A warp takes 32 rows, and each lane walks along one of them.

    In shared memory rows are ``pitch`` elements apart.
    """

    @cuda.jit
    def running_sums(x, out):
        tiles = cuda.shared.array((WARPS, 32, pitch), float32)
        lane, warp = uint32(cuda.threadIdx.x % 32), uint32(cuda.threadIdx.x // 32)
        first = uint32((uint32(cuda.blockIdx.x * WARPS) + warp) * uint32(32))
        rows = uint32(x.shape[0])
        for row in range(32):
            if first + uint32(row) < rows:
                tiles[warp, row, lane] = x[first + uint32(row), lane]
        cuda.syncwarp()
        total = float32(0)
        if first + lane < rows:
            for col in range(32):
                total += tiles[warp, lane, col]
                tiles[warp, lane, col] = total
        cuda.syncwarp()
        for row in range(32):
            if first + uint32(row) < rows:
                out[first + uint32(row), lane] = tiles[warp, row, lane]

    return running_sums


running_sums = make_running_sums(32)
running_sums_fixed = make_running_sums(33)


# -- 3 -----------------------------------------------------------------------------------------------------------------


STEPS = 64


@cuda.jit
def swing(x, out):
    """The position of a mass on a spring, released at x, after `STEPS` time steps."""
    i = cuda.grid(1)
    if i < x.size:
        state = cuda.local.array(2, float32)
        state[0], state[1] = x[i], 0
        for _ in range(STEPS):
            state[1] -= 0.02 * state[0]
            state[0] += 0.02 * state[1]
        out[i] = state[0]


@cuda.jit
def swing_fixed(x, out):
    """No conversions: the factor has the type of the arrays."""
    i = cuda.grid(1)
    if i < x.size:
        state = cuda.local.array(2, float32)
        state[0], state[1] = x[i], 0
        for _ in range(STEPS):
            state[1] -= float32(0.02) * state[0]
            state[0] += float32(0.02) * state[1]
        out[i] = state[0]


# -- 4 -----------------------------------------------------------------------------------------------------------------


@cuda.jit
def iterate(x, steps, order, out):
    """``steps[i]`` steps of Newton's method for the square root of x[i]."""
    i = cuda.grid(1)
    if i < x.size:
        guess = x[i]
        for _ in range(steps[i]):
            guess = float32(0.5) * (guess + x[i] / guess)
        out[i] = guess


@cuda.jit
def iterate_fixed(x, steps, order, out):
    """Less divergence: elements sorted by their steps, so the lanes of a warp take about as many."""
    position = cuda.grid(1)
    if position < x.size:
        i = order[position]
        guess = x[i]
        for _ in range(steps[i]):
            guess = float32(0.5) * (guess + x[i] / guess)
        out[i] = guess


# -- 5 -----------------------------------------------------------------------------------------------------------------


@cuda.jit
def add_to_row(x, offsets, row, out):
    """One row of out = x + offsets[:, None]."""
    col = cuda.grid(1)
    if col < x.shape[1]:
        out[row, col] = x[row, col] + offsets[row]


@cuda.jit
def add_to_rows(x, offsets, out):
    """All rows in one launch: the grid has a second dimension."""
    col, row = cuda.grid(1), cuda.blockIdx.y
    if col < x.shape[1]:
        out[row, col] = x[row, col] + offsets[row]


# -- the cases ---------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """The name of a pitfall, a size to measure on a GPU, and one to trace."""

    name: str
    size: tuple[int, ...]
    small: tuple[int, ...]


CASES = (
    Case("uncoalesced", (8192, 8192), (64, 96)),
    Case("bank conflicts", (2**21, 32), (200, 32)),
    Case("hidden float64", (2**24,), (1000,)),
    Case("divergence", (2**22,), (2048,)),
    Case("launch-bound", (256, 4096), (6, 300)),
)


#: The patients of chapter 10 in their order, which is not that of the kernels above.
PATIENTS = ("hidden float64", "launch-bound", "bank conflicts", "divergence", "uncoalesced")


class Pitfall(NamedTuple):
    """A slow kernel and its fix, ready to be traced or timed.

    Attributes
    ----------
    slow, fixed : list of (launch, arguments)
        The launches, in order: ``for launch, arguments in pitfall.slow: launch(*arguments)``.
    out : device array
        The output of both.
    expected : ndarray
        The right result, in float64 or exact.
    """

    slow: list[tuple]
    fixed: list[tuple]
    out: Any
    expected: np.ndarray


def make_pitfall(name: str, size: tuple[int, ...] | None = None) -> Pitfall:
    """Make the arrays and launches of one case.

    Parameters
    ----------
    name : str
        One of "uncoalesced", "bank conflicts", "hidden float64", "divergence", "launch-bound".
    size : tuple of int, optional
        Size of the array: rows and columns, or elements; the one to trace of ``CASES`` unless given. "bank conflicts"
        takes 32 columns.

    Raises
    ------
    ValueError, TypeError
        If there is no such case, or the size does not fit it.

    Examples
    --------
    >>> pitfall = make_pitfall("uncoalesced")
    >>> for ((launch, arguments),) in (pitfall.slow, pitfall.fixed):
    ...     print(gpukit.trace(launch, *arguments).total("global").sectors)
    12288
    1536
    """
    check_choice("name", name, [case.name for case in CASES])
    case = next(case for case in CASES if case.name == name)
    size = case.small if size is None else tuple(check_items("size", size, f"{len(case.size)} ints"))
    if len(size) != len(case.size):
        raise ValueError(f"size is {describe(size)}; {name!r} takes {len(case.size)} numbers")
    for axis, extent in enumerate(size):
        check_int(f"size[{axis}]", extent, 1, MAX_EXTENT)
    if prod(size) > MAX_ELEMENTS:
        raise ValueError(f"size is {size}; it must have at most {MAX_ELEMENTS:,} elements")
    x = np.random.default_rng(9).random(size, np.float32) + np.float32(0.5)
    out = cuda.to_device(np.full(size, np.nan, np.float32))
    return Pitfall(*_MAKERS[name](x, cuda.to_device(x), out))


def _scaled(host, x, out):
    rows, columns = host.shape
    arguments = (x, np.float32(0.75), out)
    slow = scale[(ceil_div(rows, 32), ceil_div(columns, 8)), (32, 8)]
    fixed = scale_fixed[(ceil_div(columns, 32), ceil_div(rows, 8)), (32, 8)]
    return [(slow, arguments)], [(fixed, arguments)], out, host * np.float32(0.75)


def _summed(host, x, out):
    if host.shape[1] != 32:
        raise ValueError(f"size is {host.shape}; the rows of 'bank conflicts' have 32 elements")
    blocks = ceil_div(host.shape[0], 32 * WARPS)
    slow, fixed = running_sums[blocks, THREADS], running_sums_fixed[blocks, THREADS]
    return [(slow, (x, out))], [(fixed, (x, out))], out, host.astype(np.float64).cumsum(axis=1)


def _swung(host, x, out):
    blocks, position, velocity = ceil_div(host.size, 256), host.astype(np.float64), 0.0
    for _ in range(STEPS):
        velocity = velocity - 0.02 * position
        position = position + 0.02 * velocity
    return [(swing[blocks, 256], (x, out))], [(swing_fixed[blocks, 256], (x, out))], out, position


def _iterated(host, x, out):
    # One element in 32, at random, takes many steps.
    steps = np.where(np.random.default_rng(11).random(host.size) < 1 / 32, 256, 8).astype(np.int32)
    order = np.argsort(steps, kind="stable").astype(np.int32)
    arguments, blocks = (x, cuda.to_device(steps), cuda.to_device(order), out), ceil_div(host.size, 256)
    slow, fixed = iterate[blocks, 256], iterate_fixed[blocks, 256]
    return [(slow, arguments)], [(fixed, arguments)], out, np.sqrt(host.astype(np.float64))


def _offset(host, x, out):
    rows, columns = host.shape
    offsets = np.random.default_rng(12).random(rows, np.float32)
    on_device, blocks = cuda.to_device(offsets), ceil_div(columns, 256)
    slow = [(add_to_row[blocks, 256], (x, on_device, row, out)) for row in range(rows)]
    fixed = [(add_to_rows[(blocks, rows), 256], (x, on_device, out))]
    return slow, fixed, out, host + offsets[:, None]


_MAKERS = {
    "uncoalesced": _scaled,
    "bank conflicts": _summed,
    "hidden float64": _swung,
    "divergence": _iterated,
    "launch-bound": _offset,
}
