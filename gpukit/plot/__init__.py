"""Draw the figures of the course, in one style. What was measured or counted says on which device."""

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError('gpukit.plot needs matplotlib: pip install "gpukit[notebooks]"') from error

from gpukit.plot.arrays import fragment, im2col_product, layouts, padded_window, reduce_axes, swizzle
from gpukit.plot.hardware import memory_hierarchy, multiprocessor, waves
from gpukit.plot.in_time import barrier_in_time, butterfly, double_buffering, errors_in_time, scan_steps
from gpukit.plot.measured import dots, image, lines, photograph, rungs, shaded
from gpukit.plot.style import figure
from gpukit.plot.threads import FIELDS, grid_stride, launch, mapping, warps
from gpukit.plot.tiles import edge_blocks, halo_tile, nested_tiles, product_tiles, split_k
from warpstep.prediction.plots import compared, roofline
from warpstep.report.axes import EMULATED, PALETTE, SCALE, WIDTH

__all__ = [
    "EMULATED",
    "FIELDS",
    "PALETTE",
    "SCALE",
    "WIDTH",
    "barrier_in_time",
    "butterfly",
    "compared",
    "dots",
    "double_buffering",
    "edge_blocks",
    "errors_in_time",
    "figure",
    "fragment",
    "grid_stride",
    "halo_tile",
    "im2col_product",
    "image",
    "launch",
    "layouts",
    "lines",
    "mapping",
    "memory_hierarchy",
    "multiprocessor",
    "nested_tiles",
    "padded_window",
    "photograph",
    "product_tiles",
    "reduce_axes",
    "roofline",
    "rungs",
    "scan_steps",
    "shaded",
    "split_k",
    "swizzle",
    "warps",
    "waves",
]
