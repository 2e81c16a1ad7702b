"""Matrix products: from one thread per element to the speed of cuBLAS (A6, A10 to A12).

Throughout, ``a`` has M rows and K columns, ``b`` K rows and N columns, ``out`` M rows and N columns. A kernel made by a
function has that function's arguments as constants, so the compiler knows the shape of its tiles and unrolls its loops.

``tiles`` has the kernels of the chapters on shared memory, ``ladder`` those that lead on to the one of ``fast_kernel``,
``choice`` knows which tile of that fits a shape, ``host`` has the functions for arrays.
"""

from gpukit.matmul.api import DTYPES, LADDER, SIMPLE, TILES, VARIANTS, configure, matmul, steps
from gpukit.matmul.cost import choose
from gpukit.matmul.fast import Tile, fast
from gpukit.matmul.ladder import (
    asynchronous,
    double_buffered,
    padded,
    read_ahead,
    registers_1d,
    registers_2d,
    transposed,
    warp_tiles,
    wide,
)
from gpukit.matmul.tiles import (
    dynamic,
    dynamic_swapped,
    naive,
    naive_float64,
    naive_uint32,
    naive_uncoalesced,
    on_cpu,
    right_pad,
    swapped,
    swizzled,
    tiled,
)

__all__ = [
    "DTYPES",
    "LADDER",
    "SIMPLE",
    "TILES",
    "VARIANTS",
    "Tile",
    "asynchronous",
    "choose",
    "configure",
    "double_buffered",
    "dynamic",
    "dynamic_swapped",
    "fast",
    "matmul",
    "naive",
    "naive_float64",
    "naive_uint32",
    "naive_uncoalesced",
    "on_cpu",
    "padded",
    "read_ahead",
    "registers_1d",
    "registers_2d",
    "right_pad",
    "steps",
    "swapped",
    "swizzled",
    "tiled",
    "transposed",
    "warp_tiles",
    "wide",
]
