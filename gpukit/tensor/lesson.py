"""Which lane holds which element of a tensor core's matrices; number formats; a product with all its waits."""

from typing import Any, NamedTuple

import numpy as np

from gpukit._host.checks import as_numbers, check_dtype, check_sizes
from gpukit.backend import cuda, types, uint64
from gpukit.intrinsics import (
    copy_tensor,
    fence_barrier_init,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    store_fragment,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    zeros,
)
from gpukit.intrinsics.signatures import PRODUCTS
from warpstep.machine.tensor import fragments
from warpstep.values import check_choice

__all__ = ["SHAPES", "FragmentMap", "fragment_map", "make_product", "rounded"]

#: The name of a type in PTX, and how many of its elements lie in a register, by the name that users write.
NAMES = {"float64": ("f64", 1), "tf32": ("tf32", 1), "float16": ("f16", 2), "bfloat16": ("bf16", 2), "int8": ("s8", 4)}
#: The shapes M, N, K of the instructions, by type.
SHAPES = {
    name: tuple(sizes.values()) for name, (ptx, _) in NAMES.items() for kind, sizes in PRODUCTS.values() if kind == ptx
}
OPERANDS = ("a", "b", "c")
#: What `rounded` rounds to, and how many of float32's last bits are cut off.
ROUNDED = {"bfloat16": 16, "tf32": 13, "float16": 0, "float32": 0, "float64": 0}


class FragmentMap(NamedTuple):
    """Where the elements of an operand lie: element i of lane n is in row ``rows[n, i]`` and column ``columns[n, i]``.

    Attributes
    ----------
    name : str
        Such as "a of m16n8k16 float16".
    shape : tuple of 2 int
        Of the small matrix.
    rows, columns : arrays of int, (32, elements)
    packed : int
        Elements that share a register of 32 bits.
    """

    name: str
    shape: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray
    packed: int

    @property
    def lanes(self) -> np.ndarray:
        """array of int : The lane that holds each element, in the shape of the matrix."""
        return self._spread(np.arange(32)[:, None] + 0 * self.rows)

    @property
    def elements(self) -> np.ndarray:
        """array of int : Which element of its lane each is, in the shape of the matrix."""
        return self._spread(np.arange(self.rows.shape[1]) + 0 * self.rows)

    def _spread(self, values):
        matrix = np.empty(self.shape, int)
        matrix[self.rows, self.columns] = values
        return matrix


def fragment_map(shape: tuple[int, int, int], dtype: Any, operand: str) -> FragmentMap:
    """Return which lane holds which element of an operand of `gpukit.intrinsics.mma`.

    The emulator multiplies by the same table. ``plot.fragment`` draws it.

    Parameters
    ----------
    shape : tuple of 3 int
        M, N and K of the instruction, such as (16, 8, 16).
    dtype : str or dtype
        Of a and b: "float64", "tf32", "float16", "bfloat16" or "int8".
    operand : str
        "a", "b", or "c" for the sums.

    Raises
    ------
    TypeError, ValueError
        If there is no such instruction or operand.

    Examples
    --------
    >>> held = fragment_map((16, 8, 16), "float16", "a")
    >>> held.rows[5], held.columns[5]
    (array([1, 1, 9, 9, 1, 1, 9, 9]), array([ 2,  3,  2,  3, 10, 11, 10, 11]))
    >>> held.lanes[1, 2]
    np.int64(5)
    """
    name = check_choice("dtype", _name_of(dtype), NAMES)
    check_choice("operand", operand, OPERANDS)
    wanted = check_sizes("shape", shape, (1, 1, 1), (256, 256, 256), "a tuple of 3 ints, M, N and K")
    ptx, packed = NAMES[name]
    for kind, sizes in PRODUCTS.values():
        for counts, size in sizes.items():
            if kind == ptx and size == wanted:
                # The types that are passed as words count registers; the table counts elements.
                words = 1 if name in ("float64", "tf32", "float16") else packed
                held = (counts[0] * words, counts[1] * words, counts[2])
                found = fragments(held, packed)[OPERANDS.index(operand)]
                title = f"{operand} of m{size[0]}n{size[1]}k{size[2]} {name}"
                return FragmentMap(title, *found, 1 if operand == "c" else packed)
    raise ValueError(f"shape is {shape}; for {name} it must be one of {', '.join(map(str, SHAPES[name]))}")


def _name_of(dtype):
    """The name of a type, which NumPy need not know."""
    return dtype if isinstance(dtype, str) else check_dtype("dtype", dtype).name


def rounded(x: Any, dtype: Any) -> np.ndarray:
    """Round numbers to the nearest ones of a type, ties to even; return them as float64.

    Parameters
    ----------
    x : array
        Rounded to float32 first for "bfloat16" and "tf32".
    dtype : str or dtype
        "bfloat16", "tf32", "float16", "float32" or "float64". What is too large for it becomes infinite.

    Raises
    ------
    TypeError, ValueError
        For another type, or if ``x`` holds no real numbers.

    Examples
    --------
    >>> rounded(0.1, "bfloat16"), rounded(0.1, "tf32"), rounded(1e5, "float16")
    (array(0.10009766), array(0.09997559), array(inf))
    """
    name, x = check_choice("dtype", _name_of(dtype), ROUNDED), as_numbers("x", x)
    with np.errstate(over="ignore"):
        if name.startswith("float"):
            return np.asarray(x, np.float64).astype(name).astype(np.float64)
        cut = ROUNDED[name]
        bits = np.asarray(x, np.float32).view(np.uint32)
        half = np.uint32((1 << cut - 1) - 1) + (bits >> np.uint32(cut) & np.uint32(1))
        kept = bits + half & np.uint32(0xFFFFFFFF << cut & 0xFFFFFFFF)
        return np.where(np.isfinite(x), kept.view(np.float32), x).astype(np.float64)


def make_product(wait_for_copy: bool = True, wait_for_product: bool = True):
    """Make a kernel that multiplies 64 x 64 by 64 x 64 float16: one thread copies, four warps multiply.

    ``a`` and ``b`` are tensor maps. Blocks of 128 threads.
    """

    @cuda.jit
    def product(a, b, out):
        tile_a = cuda.shared.array((64, 64), types.float16, alignment=1024)
        tile_b = cuda.shared.array((64, 64), types.float16, alignment=1024)
        full, tid = cuda.shared.array(1, uint64), cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(full, 0, 1)  # one arrival: that of this thread, with the bytes that it announces
            fence_barrier_init()
            mbarrier_expect(full, 0, 2 * 64 * 64 * 2)
            copy_tensor(tile_a, (0, 0), a, (0, 0), full, 0)
            copy_tensor(tile_b, (0, 0), b, (0, 0), full, 0)
        cuda.syncthreads()
        if wait_for_copy:
            mbarrier_wait(full, 0, 0)
        wgmma_fence()
        sums = zeros(32)
        for k in range(0, 64, 16):
            sums = wgmma(sums, tile_a, (0, k), tile_b, (k, 0), False, True)
        wgmma_commit()
        if wait_for_product:
            sums = wgmma_wait(0, sums)
        store_fragment(out, (tid // 32 * 16, 0), sums)

    return product
