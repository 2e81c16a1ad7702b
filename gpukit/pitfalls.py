"""Five slow kernels and their cures (A9): each has one thing wrong with it, and a trace shows what.

Patient and cure compute the same; what differs is the one thing. What is wrong is not said beside the patients: to find
out is what they are for.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba.cuda import float32, uint32

from gpukit.backend import cuda
from warpstep.checks import check_int

__all__ = ["CASES", "Case", "Treatment", "treatment"]

THREADS = 128
WARPS = THREADS // 32


# -- patient 1 -------------------------------------------------------------------------------------


@cuda.jit
def scale(x, factor, out):
    """out = factor * x."""
    row, col = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        out[row, col] = factor * x[row, col]


@cuda.jit
def scale_cured(x, factor, out):
    """Neighbouring threads take neighbouring columns: eight lanes share a sector."""
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        out[row, col] = factor * x[row, col]


# -- patient 2 -------------------------------------------------------------------------------------


@functools.cache
def running_sums(pitch):
    """Kernel: sums from the left in rows of 32 elements. A warp takes 32 rows, and a lane walks along one of them.

    In shared memory rows are ``pitch`` elements apart: 32 for the patient, 33 for its cure.
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


# -- patient 3 -------------------------------------------------------------------------------------


STEPS = 64


@cuda.jit
def swing(x, out):
    """A mass on a spring that is let go at x, after `STEPS` steps of time."""
    i = cuda.grid(1)
    if i < x.size:
        state = cuda.local.array(2, float32)
        state[0], state[1] = x[i], 0
        for _ in range(STEPS):
            state[1] -= 0.02 * state[0]
            state[0] += 0.02 * state[1]
        out[i] = state[0]


@cuda.jit
def swing_cured(x, out):
    """The factor has the type of the arrays: nothing is converted."""
    i = cuda.grid(1)
    if i < x.size:
        state = cuda.local.array(2, float32)
        state[0], state[1] = x[i], 0
        for _ in range(STEPS):
            state[1] -= float32(0.02) * state[0]
            state[0] += float32(0.02) * state[1]
        out[i] = state[0]


# -- patient 4 -------------------------------------------------------------------------------------


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
def iterate_cured(x, steps, order, out):
    """The elements in the order of their steps: the lanes of a warp have about as many."""
    position = cuda.grid(1)
    if position < x.size:
        i = order[position]
        guess = x[i]
        for _ in range(steps[i]):
            guess = float32(0.5) * (guess + x[i] / guess)
        out[i] = guess


# -- patient 5 -------------------------------------------------------------------------------------


@cuda.jit
def add_to_row(x, offsets, row, out):
    """One row of out = x + offsets[:, None]."""
    col = cuda.grid(1)
    if col < x.shape[1]:
        out[row, col] = x[row, col] + offsets[row]


@cuda.jit
def add_to_rows(x, offsets, out):
    """All rows: one launch, and a second dimension of the grid for them."""
    col, row = cuda.grid(1), cuda.blockIdx.y
    if col < x.shape[1]:
        out[row, col] = x[row, col] + offsets[row]


# -- the cases -------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What is wrong, in a word, and the sizes: one that tells something on a GPU, and one to trace."""

    name: str
    size: tuple
    small: tuple


CASES = (
    Case("uncoalesced", (8192, 8192), (64, 96)),
    Case("bank conflicts", (2**21, 32), (200, 32)),
    Case("hidden float64", (2**24,), (1000,)),
    Case("divergence", (2**22,), (2048,)),
    Case("launch-bound", (256, 4096), (6, 300)),
)


class Treatment(NamedTuple):
    """A patient and its cure, ready to be traced or timed.

    Attributes
    ----------
    patient, cure : list of (launch, arguments)
        To be made in this order: ``for launch, arguments in treatment.patient: launch(*arguments)``.
    out : device array
        What both write.
    expected : ndarray
        What must be in it, in float64 or exactly.
    """

    patient: list
    cure: list
    out: object
    expected: np.ndarray


def treatment(name, size=None):
    """Make the arrays and launches of one case.

    Parameters
    ----------
    name : str
        One of "uncoalesced", "bank conflicts", "hidden float64", "divergence", "launch-bound".
    size : tuple of int, optional
        Of the array: rows and columns, or elements; ``CASES`` has those that are measured and those to trace, the
        latter unless given. "bank conflicts" has 32 columns.

    Returns
    -------
    Treatment

    Raises
    ------
    ValueError, TypeError
        If there is no such case, or the size does not fit.
    """
    case = next((case for case in CASES if case.name == name), None)
    if case is None:
        raise ValueError(f"name is {name!r}; it must be one of {', '.join(case.name for case in CASES)}")
    size = case.small if size is None else tuple(size)
    if len(size) != len(case.size):
        raise ValueError(f"size is {size}; {name!r} takes {len(case.size)} numbers")
    for axis, extent in enumerate(size):
        check_int(f"size[{axis}]", extent, 1)
    x = np.random.default_rng(9).random(size, np.float32) + np.float32(0.5)
    out = cuda.to_device(np.full(size, np.nan, np.float32))
    return Treatment(*MAKERS[name](x, cuda.to_device(x), out))


def _scaled(host, x, out):
    rows, columns = host.shape
    along_x = -(-rows // 32), -(-columns // 8)
    along_y = -(-columns // 32), -(-rows // 8)
    arguments = (x, np.float32(0.75), out)
    patient, cure = scale[along_x, (32, 8)], scale_cured[along_y, (32, 8)]
    return [(patient, arguments)], [(cure, arguments)], out, host * np.float32(0.75)


def _summed(host, x, out):
    if host.shape[1] != 32:
        raise ValueError(f"size is {host.shape}; the rows of 'bank conflicts' have 32 elements")
    blocks = -(-host.shape[0] // (32 * WARPS))
    patient, cure = (running_sums(pitch)[blocks, THREADS] for pitch in (32, 33))
    return [(patient, (x, out))], [(cure, (x, out))], out, host.astype(np.float64).cumsum(axis=1)


def _swung(host, x, out):
    blocks, position, velocity = -(-host.size // 256), host.astype(np.float64), 0.0
    for _ in range(STEPS):
        velocity = velocity - 0.02 * position
        position = position + 0.02 * velocity
    return [(swing[blocks, 256], (x, out))], [(swing_cured[blocks, 256], (x, out))], out, position


def _iterated(host, x, out):
    # One element in 32 needs many steps, and nothing tells which.
    steps = np.where(np.random.default_rng(11).random(host.size) < 1 / 32, 256, 8).astype(np.int32)
    order = np.argsort(steps, kind="stable").astype(np.int32)
    arguments, blocks = (x, cuda.to_device(steps), cuda.to_device(order), out), -(-host.size // 256)
    patient, cure = iterate[blocks, 256], iterate_cured[blocks, 256]
    return [(patient, arguments)], [(cure, arguments)], out, np.sqrt(host.astype(np.float64))


def _offset(host, x, out):
    rows, columns = host.shape
    offsets = np.random.default_rng(12).random(rows, np.float32)
    on_device, blocks = cuda.to_device(offsets), -(-columns // 256)
    patient = [(add_to_row[blocks, 256], (x, on_device, row, out)) for row in range(rows)]
    cure = [(add_to_rows[(blocks, rows), 256], (x, on_device, out))]
    return patient, cure, out, host + offsets[:, None]


MAKERS = {
    "uncoalesced": _scaled,
    "bank conflicts": _summed,
    "hidden float64": _swung,
    "divergence": _iterated,
    "launch-bound": _offset,
}
