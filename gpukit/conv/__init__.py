"""Convolution: as a matrix product of windows (B3, B4, C), and directly, as fast as it goes (E).

Images have the shape (N, C, H, W): samples, channels, height, width. A kernel of KH x KW values, set down on an image
at every step of the stride, gives OH x OW windows. As columns they have the shape (N, C KH KW, OH OW): the rows are
ordered by channel, kernel row and kernel column, the columns by out row and out column.

``columns`` has ``im2col`` and ``col2im``, ``host`` has ``conv2d``. ``ladder`` has the direct kernels of the article,
one idea each, ``direct`` the one that they lead to, and ``choice`` knows what is the fastest for a shape.
"""

from gpukit.conv.api import ALGORITHMS, conv2d, extra_memory, free_workspaces, steps, workspace_size
from gpukit.conv.columns import REQUESTS, VARIANTS, col2im, configure_col2im, configure_im2col, im2col
from gpukit.conv.fast import Layout, specialised
from gpukit.conv.ladder import serial
from gpukit.conv.windows import DTYPES

__all__ = [
    "ALGORITHMS",
    "DTYPES",
    "REQUESTS",
    "VARIANTS",
    "Layout",
    "col2im",
    "configure_col2im",
    "configure_im2col",
    "conv2d",
    "extra_memory",
    "free_workspaces",
    "im2col",
    "serial",
    "specialised",
    "steps",
    "workspace_size",
]
