"""Matrix products: from one thread per element to the speed of cuBLAS (A6, A10 to A12).

Throughout, ``a`` has M rows and K columns, ``b`` K rows and N columns, ``out`` M rows and N columns. The arguments of a
function that makes a kernel are constants of it, so the compiler knows the shape of its tiles and unrolls its loops.

``tiles`` has the kernels of the chapters on shared memory, ``ladder`` those that lead on to the one of ``fast``;
``cost`` chooses a tile of that for a shape; ``api`` has the functions for arrays. Tensor cores multiply float64 in
``double``, and shorter elements in ``warpgroups`` and ``turned`` (compute capability 9.0) or ``warps`` (8.0 and above),
small products of them in ``small``; ``tensor`` has their launches.
"""

from gpukit.matmul.api import DTYPES, LADDER, SIMPLE, TILES, VARIANTS, configure, matmul, steps
from gpukit.matmul.cost import choose, predicted_time
from gpukit.matmul.fast import Tile, fast
from gpukit.matmul.ladder import (
    asynchronous,
    double_buffered,
    read_ahead,
    registers_1d,
    registers_2d,
    transposed,
    transposed_padded,
    warp_tiles,
    wide,
)
from gpukit.matmul.tiles import (
    dynamic,
    dynamic_conflict,
    dynamic_padded,
    naive,
    naive_float64,
    naive_uint32,
    naive_uncoalesced,
    on_cpu,
    right_pad,
    tiled,
    tiled_conflict,
    tiled_padded,
    tiled_swizzled,
)

# Names that kernels have had.
padded, swapped, swizzled, dynamic_swapped = transposed_padded, tiled_conflict, tiled_swizzled, dynamic_conflict

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
    "dynamic_conflict",
    "dynamic_padded",
    "dynamic_swapped",
    "fast",
    "matmul",
    "naive",
    "naive_float64",
    "naive_uint32",
    "naive_uncoalesced",
    "on_cpu",
    "padded",
    "predicted_time",
    "read_ahead",
    "registers_1d",
    "registers_2d",
    "right_pad",
    "steps",
    "swapped",
    "swizzled",
    "tiled",
    "tiled_conflict",
    "tiled_padded",
    "tiled_swizzled",
    "transposed",
    "transposed_padded",
    "warp_tiles",
    "wide",
]
