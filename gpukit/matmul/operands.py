"""How the operands of the fast products lie in memory."""

import functools
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import address_of, dtype_of, span, window
from gpukit.backend import cuda, uint32, uint64
from gpukit.divisors import divided, make_divisor

__all__ = [
    "Flat",
    "Operand",
    "as_rows",
    "block_of",
    "broadcast_rule",
    "is_aligned",
    "is_dense",
    "lie_along",
    "make_starts",
    "operand",
    "start_of",
    "starts_of",
    "steps_of",
    "turned",
    "which_of",
]


class Operand(NamedTuple):
    """Matrices in the memory of a device array, whose rows or columns follow their neighbours in memory.

    Attributes
    ----------
    flat : array of one dimension
        From the first matrix on.
    layout : str
        "N" if the elements of a row follow one another, "T" if those of a column do.
    pitch : int
        Elements from row to row, or from column to column.
    step : int
        Elements from matrix to matrix.
    rule : (int, int)
        (div, mod): matrix z of the result needs matrix z // div % mod.
    wide : bool
        Whether all rows, or columns, begin at multiples of 16 bytes, and end there.
    inner, outer_step : int
        If ``inner`` is not 0, groups of so many matrices follow one another with other gaps than the matrices of a
        group: ``outer_step`` elements from group to group. So lie the heads of attention, stored token by token.
    """

    flat: Any
    layout: str
    pitch: int
    step: int
    rule: tuple
    wide: bool
    inner: int = 0
    outer_step: int = 0

    @property
    def jump(self) -> int:
        """int: elements from group to group beyond the steps of a group's matrices."""
        return self.outer_step - self.inner * self.step if self.inner else 0

    def at(self, row: int, col: int) -> Any:
        """The memory from an element of the first matrix on."""
        return self.flat[row * self.pitch + col if self.layout == "N" else col * self.pitch + row :]


def operand(array, lead, grouped: bool = False) -> Operand | None:
    """An operand as the fast kernels take it; None if neither its rows nor its columns can be read, or if the matrices
    do not follow one another. If it may be ``grouped``, groups of matrices can.
    """
    (rows, columns), item = array.shape[-2:], dtype_of(array).itemsize
    if array.size == 0:  # nothing is read
        flat = np.empty(1, array.dtype) if isinstance(array, np.ndarray) else cuda.device_array(1, array.dtype)
        return Operand(flat, "N", columns, 0, broadcast_rule(array.shape[:-2], lead) or (1, 1), False)
    *outer, down, across = array.strides
    if across == item or columns == 1 and (down != item or rows == 1):
        layout, extent, pitch = "N", columns, down if rows > 1 else columns * item
    elif down == item or rows == 1:
        layout, extent, pitch = "T", rows, across if columns > 1 else rows * item
    else:
        return None
    own = tuple(1 if stride == 0 else n for n, stride in zip(array.shape[:-2], outer, strict=True))
    step = inner = outer_step = 0
    count = 1
    for n, stride in zip(own[::-1], outer[::-1], strict=True):  # from the innermost axis on
        if n == 1:
            continue
        if step == 0:
            step = following = stride
        elif stride != following:
            if inner or not grouped or isinstance(array, np.ndarray):
                return None
            inner, outer_step, following = count, stride, stride
        following, count = following * n, count * n
    rule = broadcast_rule(own, lead)
    if rule is None or pitch < extent * item or step < 0 or any(size % item for size in (pitch, step, outer_step)):
        return None
    if isinstance(array, np.ndarray):
        flat = (array if layout == "N" else array.swapaxes(-1, -2)).reshape(-1)
    else:
        low, high = span(array)
        flat = window(array, dtype_of(array), (high - low) // item)
    wide = all(size % 16 == 0 for size in (address_of(array), pitch, step, outer_step, extent * item))
    return Operand(flat, layout, pitch // item, step // item, rule, wide, inner, outer_step // item)


def turned(matrix: Operand) -> Operand:
    """The transpose of an operand."""
    return matrix._replace(layout="T" if matrix.layout == "N" else "N")


def lie_along(columns: Operand, k: int) -> bool:
    """Whether matrices of one column with ``k`` elements are rows of one matrix."""
    return (columns.layout == "T" or columns.pitch == 1) and columns.step >= k > 0


def as_rows(columns: Operand, k: int) -> Operand:
    """The matrix whose rows they are."""
    item = dtype_of(columns.flat).itemsize
    wide = all(size % 16 == 0 for size in (address_of(columns.flat), columns.step * item, k * item))
    return Operand(columns.flat, "N", columns.step, 0, (1, 1), wide)


def is_dense(matrix: Operand, extent: int, k: int, is_along: bool, batch: int) -> bool:
    """Whether so many different matrices of ``extent`` by ``k`` follow one another in memory without a gap."""
    follow = matrix.step == extent * k and matrix.jump == 0 and matrix.rule == (1, batch)
    return matrix.pitch == (k if is_along else extent) and (batch == 1 or follow)


class Flat(NamedTuple):
    """The operands of the fast kernel, and the factors."""

    a: Operand
    b: Operand
    out: Any
    k: int
    pitch_out: int
    batch: int
    wide_out: bool
    alpha: float
    beta: float


def which_of(z: int, a: Operand, b: Operand) -> tuple:
    """How a kernel finds the matrices of the operands for those of the result: (the first of these; div, mod and group
    of a, and of b, Divisors).
    """
    rules = *a.rule, a.inner or 1, *b.rule, b.inner or 1
    return np.uint32(z), *map(make_divisor, rules)


def steps_of(*operands: Operand) -> tuple:
    """The step and the jump of each operand, for a kernel."""
    return tuple(np.uint64(size % 2**64) for matrix in operands for size in (matrix.step, matrix.jump))


@functools.cache
def make_starts(divide):
    """Make the device functions that find where matrix z of an operand begins, and where those of ``a`` and ``b`` for
    matrix z of the result do, with a function that divides by a Divisor.
    """

    @cuda.jit(device=True, forceinline=True)
    def start_of(z, group, step, jump):
        groups, _ = divide(z, group)
        return uint64(z) * step + uint64(groups) * jump

    @cuda.jit(device=True, forceinline=True)
    def matrices_of(z, which):
        _, div_a, mod_a, _, div_b, mod_b, _ = which
        z_a, _ = divide(z, div_a)
        z_b, _ = divide(z, div_b)
        _, z_a = divide(z_a, mod_a)
        _, z_b = divide(z_b, mod_b)
        return z_a, z_b

    @cuda.jit(device=True, forceinline=True)
    def starts_of(z, which, steps):
        z_a, z_b = matrices_of(z, which)
        return start_of(z_a, which[3], steps[0], steps[1]), start_of(z_b, which[6], steps[2], steps[3])

    return start_of, starts_of


start_of, starts_of = make_starts(divided)


@cuda.jit(device=True, forceinline=True)
def block_of(sizes, which, rows, columns):
    """Find what a block multiplies: where its tile of so many rows and columns begins, where its part of K begins and
    ends, the rows and columns from its tile on, and the matrix. Unsigned 32-bit arithmetic is the cheapest.
    """
    m, n, k, _, _, _, across, part = sizes
    row, col = divided(uint32(cuda.blockIdx.x), across)
    row, col = uint32(row * uint32(rows)), uint32(col * uint32(columns))
    first = uint32(uint32(cuda.blockIdx.y) * part)
    limit = uint32(min(k, uint32(first + part)))
    return row, col, first, limit, uint32(m - row), uint32(n - col), uint32(which[0] + uint32(cuda.blockIdx.z))


def broadcast_rule(own, lead):
    """(div, mod) so that matrix z of the result needs matrix z // div % mod of an operand with these leading axes; None
    if there is no such rule.
    """
    own = (1,) * (len(lead) - len(own)) + own
    axes = [(size, whole) for size, whole in zip(own, lead, strict=True) if whole > 1]
    present = [i for i, (size, _) in enumerate(axes) if size > 1]
    if not present:
        return prod(lead), 1
    first, last = present[0], present[-1]
    if len(present) != last - first + 1:
        return None
    return prod(whole for _, whole in axes[last + 1 :]), prod(whole for _, whole in axes[first : last + 1])


def is_aligned(*arrays):
    """Whether all rows begin at multiples of 16 bytes."""
    return all(array.shape[-1] * dtype_of(array).itemsize % 16 == 0 and address_of(array) % 16 == 0 for array in arrays)
