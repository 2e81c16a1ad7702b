"""The steps that lead to a letterbox, one idea per kernel (A14).

1. ``nearest``: one source pixel for each target pixel.
2. ``bilinear``: four source pixels around its place, mixed by their distances.
3. ``letterbox_corner``: the aspect ratio is kept; a border fills the rest.
4. ``letterbox_centred``: the picture in the middle of the target.
5. ``letterbox_planes``: normalised, in a plane for each channel, as a network takes it.

A thread has one pixel of the target, with its three channels, in every frame of the batch that its layer of the grid
takes. Images are (N, H, W, 3), uint8 or float32. With ``swap`` the kernels exchange the first and the last channel on
the way (BGR to RGB and back), which costs no traffic.
"""

import functools
from typing import Any

import numpy as np

from gpukit._host.arrays import check_array, configure_quietly, dtype_of, stream_of
from gpukit._host.transfers import to_device
from gpukit.backend import cuda, float32, float64, uint32
from gpukit.resize import cost, frames
from gpukit.resize.placing import as_fill, as_three, placement
from gpukit.resize.sampling import mix, neighbours
from warpstep.integers import ceil_div
from warpstep.limits import MAX_GRID_YZ
from warpstep.values import describe

__all__ = [
    "BLOCK",
    "FAST",
    "VARIANTS",
    "bilinear",
    "letterbox_centred",
    "letterbox_corner",
    "letterbox_planes",
    "nearest",
    "rung",
    "sample",
]

BLOCK = (32, 8)  # threads: a warp writes 32 pixels of one row, 96 bytes of uint8


# -- one thread per pixel --------------------------------------------------------------------------


@cuda.jit
def nearest(image, out, down, across, swap):
    """The source pixel under the top left corner of the target pixel: row int(y * down), column int(x * across).

    The scales are float64, on purpose: where ``x * across`` should be whole, OpenCV's rounding decides.
    """
    x, y = cuda.grid(2)
    if x < out.shape[2] and y < out.shape[1]:
        row, col = uint32(float64(uint32(y)) * down), uint32(float64(uint32(x)) * across)
        frame = cuda.blockIdx.z
        while frame < out.shape[0]:
            for channel in range(3):
                out[frame, y, x, channel] = image[frame, row, col, 2 - channel if swap else channel]
            frame += cuda.gridDim.z


@cuda.jit(device=True)
def sample(image, frame, down, across, channel):
    """One channel at a place: four pixels, mixed. ``down`` and ``across`` are `neighbours` of its row and column."""
    (row, below, low), (col, beside, right) = down, across
    return mix(
        image[frame, row, col, channel],
        image[frame, row, beside, channel],
        image[frame, below, col, channel],
        image[frame, below, beside, channel],
        right,
        low,
    )


@cuda.jit
def bilinear(image, out, swap):
    """Four source pixels around the place of each target pixel, mixed."""
    x, y = cuda.grid(2)
    if x < out.shape[2] and y < out.shape[1]:
        down = neighbours(y, image.shape[1], out.shape[1])
        across = neighbours(x, image.shape[2], out.shape[2])
        frame = cuda.blockIdx.z
        while frame < out.shape[0]:
            for channel in range(3):
                out[frame, y, x, channel] = sample(image, frame, down, across, 2 - channel if swap else channel)
            frame += cuda.gridDim.z


@cuda.jit
def letterbox_corner(image, out, height, width, fill, swap):
    """The image resized to ``height`` x ``width``, at the top left of the target; ``fill`` elsewhere."""
    x, y = cuda.grid(2)
    if x < out.shape[2] and y < out.shape[1]:
        inside = x < width and y < height
        down = neighbours(y, image.shape[1], height)
        across = neighbours(x, image.shape[2], width)
        frame = cuda.blockIdx.z
        while frame < out.shape[0]:
            for channel in range(3):
                value = fill[channel]
                if inside:
                    value = sample(image, frame, down, across, 2 - channel if swap else channel)
                out[frame, y, x, channel] = value
            frame += cuda.gridDim.z


@cuda.jit
def letterbox_centred(image, out, height, width, top, left, fill, swap):
    """The image resized to ``height`` x ``width``, from row ``top`` and column ``left`` of the target on."""
    x, y = cuda.grid(2)
    if x < out.shape[2] and y < out.shape[1]:
        # Above the picture, and left of it, these wrap round to large numbers: one comparison finds both sides.
        row, col = uint32(y - top), uint32(x - left)
        inside = row < uint32(height) and col < uint32(width)
        down = neighbours(row, image.shape[1], height)
        across = neighbours(col, image.shape[2], width)
        frame = cuda.blockIdx.z
        while frame < out.shape[0]:
            for channel in range(3):
                value = fill[channel]
                if inside:
                    value = sample(image, frame, down, across, 2 - channel if swap else channel)
                out[frame, y, x, channel] = value
            frame += cuda.gridDim.z


@cuda.jit
def letterbox_planes(image, out, height, width, top, left, fill, mean, factor, swap):
    """The pixels of ``letterbox_centred`` as (value - mean) * factor, in planes: out is (N, 3, H, W).

    A warp stores 32 neighbours of a plane at a time; in whole pixels its values would be three apart.
    """
    x, y = cuda.grid(2)
    if x < out.shape[3] and y < out.shape[2]:
        row, col = uint32(y - top), uint32(x - left)
        inside = row < uint32(height) and col < uint32(width)
        down = neighbours(row, image.shape[1], height)
        across = neighbours(col, image.shape[2], width)
        frame = cuda.blockIdx.z
        while frame < out.shape[0]:
            for channel in range(3):
                value = fill[channel]
                if inside:
                    value = sample(image, frame, down, across, 2 - channel if swap else channel)
                out[frame, channel, y, x] = (float32(value) - mean[channel]) * factor[channel]
            frame += cuda.gridDim.z


# -- to launch them --------------------------------------------------------------------------------

#: The rungs, in order. All but the last have out (N, height, width, 3) of the image's dtype.
VARIANTS = {
    "nearest": nearest,
    "bilinear": bilinear,
    "letterbox_corner": letterbox_corner,
    "letterbox_centred": letterbox_centred,
    "letterbox_planes": letterbox_planes,
}
#: The kernels that the host functions launch for the last two, to be compared with them.
FAST = ("pixels", "planes")


def rung(
    name: str,
    image: Any,
    out: Any,
    *,
    fill: Any = 0,
    swap_rb: bool = False,
    mean: Any = 0,
    factor: Any = 1,
    stream: Any = None,
) -> tuple[Any, tuple]:
    """A kernel of the ladder with its arguments, to be launched, traced or timed: ``launch(*arguments)``.

    Parameters
    ----------
    name : str
        One of ``VARIANTS`` or ``FAST``.
    image : ndarray or device array, shape (N, H, W, 3)
        uint8 or float32, N, H and W at least 1. For ``FAST`` a device array.
    out : array
        Of the same kind. Shape (N, height, width, 3) and the image's dtype; for "letterbox_planes" and "planes"
        (N, 3, height, width) and float32.
    fill, swap_rb, mean, factor, stream
        As for ``gpukit.resize.blob``.

    Returns
    -------
    (configured kernel, arguments)

    Raises
    ------
    TypeError, ValueError
        For another name, or another kind of image.
    """
    if name not in (*VARIANTS, *FAST):
        raise ValueError(f"name is {describe(name)}; it must be one of {', '.join((*VARIANTS, *FAST))}")
    check_array("image", image, 4, frames.DTYPES)
    stream, swap, planes = stream_of(stream), int(bool(swap_rb)), name.endswith("planes")
    height, width = out.shape[2:] if planes else out.shape[1:3]
    _, *place, _ = placement(image.shape[1:3], (height, width))
    fill = as_fill(fill, dtype_of(image))
    normalise = as_three("mean", mean, np.float32), as_three("factor", factor, np.float32)
    if name in FAST:
        arguments = (fill, *normalise, swap) if planes else (fill, swap)
        images = frames.from_batch(image, place, functools.partial(to_device, stream=stream))
        return cost.launches(images, out, arguments, planes, stream=stream)[0]
    arguments = {
        "nearest": tuple(1 / (to / n) for n, to in zip(image.shape[1:3], (height, width), strict=True)),
        "bilinear": (),
        "letterbox_corner": (*place[:2], fill),
        "letterbox_centred": (*place, fill),
        "letterbox_planes": (*place, fill, *normalise),
    }[name]
    grid = ceil_div(width, BLOCK[0]), ceil_div(height, BLOCK[1]), min(image.shape[0], MAX_GRID_YZ)
    return configure_quietly(VARIANTS[name], grid, BLOCK, stream), (image, out, *arguments, swap)
