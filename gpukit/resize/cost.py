"""Which kernel of `gpukit.resize.fast` for which frames, and on which grid."""

from typing import Any

import numpy as np

from gpukit._host.arrays import address_of, configure_quietly
from gpukit.backend import types
from gpukit.resize import fast, sampling
from gpukit.resize.frames import DTYPES, WORD, Frames
from gpukit.resize.placing import CHANNELS
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ

__all__ = ["launches"]

#: Blocks that a launch should have before each gets more work: about as many as a large GPU runs at a time.
MANY_BLOCKS = 1600
#: Rows of a thread, if that leaves so many blocks, and if not, by kernel; the fastest on an H200.
ROWS = {fast.make_planes: (4, 1), fast.make_pixels: (4, 1), fast.make_values: (8, 2)}

SAMPLERS = {
    "bilinear": {np.dtype(np.uint8): sampling.BYTES, np.dtype(np.float32): sampling.FLOATS, WORD: sampling.WORDS},
    "nearest": dict.fromkeys(DTYPES, sampling.NEAREST) | {WORD: sampling.NEAREST_WORDS},
}
#: Of images whose channels or pixels are apart.
SAMPLERS_APART = {
    "bilinear": {np.dtype(np.uint8): sampling.BYTES_APART, np.dtype(np.float32): sampling.FLOATS_APART},
    "nearest": dict.fromkeys(DTYPES, sampling.NEAREST_APART),
}


def launches(frames: Frames, target: Any, arguments: tuple, planes: bool, method: str = "bilinear", stream: Any = 0):
    """The launches that fit frames into a target.

    Parameters
    ----------
    frames : Frames
    target : contiguous device array
        Of planes, (N, 3, H, W) or (3, H, W), or of pixels, (N, H, W, 3) or (H, W, 3).
    arguments : tuple
        The last arguments of the kernel: fill, mean, factor and swap for planes, fill and swap for pixels.
    planes : bool
    method : {"bilinear", "nearest"}
    stream : 0 or a CUDA stream

    Returns
    -------
    list of (launch, arguments)
    """
    count = target.shape[0] if target.ndim == 4 else 1
    height, width = target.shape[-2:] if planes else target.shape[-3:-1]
    dtype = frames.flat.dtype
    sampler = (SAMPLERS_APART if frames.apart else SAMPLERS)[method][dtype]
    fields_of = fast.fields_of_all if frames.alike else fast.fields_of_each
    make, across = fast.make_planes if planes else fast.make_pixels, ceil_div(width, fast.SPAN)
    if not planes and dtype.kind == "f" and not frames.apart:
        make, across = fast.make_values, ceil_div(CHANNELS * width, fast.LANES)
        kernel = make(sampler, fields_of)
    else:
        kernel = make(sampler, getattr(types, target.dtype.name), fields_of)
    rows, (x, y, z) = _grid(ROWS[make], across, height, count, frames.alike and make is fast.make_pixels)
    together = int(width % 4 == 0 and address_of(target) % (4 * target.dtype.itemsize) == 0)
    found = []
    # Frames that are alike share the layers of a grid; each of the others has a layer of its own.
    for first in range(0, count, count if frames.alike else MAX_GRID_YZ):
        last = count if frames.alike else min(count, first + MAX_GRID_YZ)
        launch = configure_quietly(kernel, (x, y, min(z, last - first)), fast.BLOCK, stream)
        work = first, last, height, width, rows, together
        found.append((launch, (frames.flat, frames.geometry, target.reshape(-1), work, *arguments)))
    return found


def _grid(rows, across, height, count, share):
    """(rows of a thread, grid).

    With few blocks each thread has few rows, so that every multiprocessor has work. With many it has several rows, and
    with ``share`` those of several frames, so that its columns are computed once for more pixels.
    """
    many, few = rows
    rows = many if across * ceil_div(height, fast.WARPS * many) * count >= MANY_BLOCKS else few
    down = ceil_div(height, fast.WARPS * rows)
    layers = min(count, MAX_GRID_YZ, ceil_div(2 * MANY_BLOCKS, across * down) if share else count)
    return rows, (across, down, layers)
