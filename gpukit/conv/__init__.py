"""Convolution: as a matrix product of windows (B3, B4, C), and directly, as fast as it goes (E).

Images have the shape (N, C, H, W): samples, channels, height, width. A kernel of KH x KW values, placed on an image at
every step of the stride, gives OH x OW windows. As columns they have the shape (N, C KH KW, OH OW): the rows are
ordered by channel, kernel row and kernel column, the columns by out row and out column.

For reading: ``ladder``, the direct kernels of the article, one idea each; ``columns``, the kernels of ``im2col`` and
``col2im``. For speed: ``fast``, the direct kernel that the ladder leads to; ``implicit``, and on tensor cores
``halves`` and ``warpgroups``, the product of windows that are never written; ``cost``, which kernel is the fastest.
``windows`` has the geometry of windows, and ``api`` the functions for arrays: they raise TypeError or ValueError for a
bad argument, which the message names, and nothing is launched then.
"""

from gpukit.conv.api import (
    ALGORITHMS,
    REQUESTS,
    col2im,
    configure_col2im,
    configure_im2col,
    conv2d,
    extra_memory,
    free_workspaces,
    im2col,
    steps,
    workspace_size,
)
from gpukit.conv.columns import VARIANTS
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
