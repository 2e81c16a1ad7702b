"""The steps that lead to a letterbox, one idea per kernel: the ladder of A14, and one rung more.

All kernels have one thread for each pixel of the target, which handles its three channels, in every frame of the batch
that its layer of the grid takes. They read the pixels that are needed of N H W 3 values and write N height width 3.
With ``swap`` they exchange the first and the last channel on the way (BGR to RGB and back) at no cost in traffic.
"""

import functools

import numpy as np

from gpukit._host.arrays import as_device_array, check_array, configured, dtype_of, stream_of
from gpukit.backend import cuda, float32, float64, uint32
from gpukit.resize import api as host
from gpukit.resize.placing import fill_of, placement, three
from gpukit.resize.sampling import mix_bytes, mix_floats, neighbours, neighbours_fixed

__all__ = [
    "BLOCK",
    "FAST",
    "RUNGS",
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


@functools.cache
def sample(mix):
    """Device function for one channel of an image at a place: four pixels, mixed by ``mix_bytes`` or ``mix_floats``.

    ``down`` and ``across`` are what ``neighbours_fixed`` or ``neighbours`` give for the row and the column.
    """

    @cuda.jit(device=True)
    def sample(image, frame, down, across, channel):
        (row, below, low), (col, beside, right) = down, across
        return mix(
            image[frame, row, col, channel],
            image[frame, row, beside, channel],
            image[frame, below, col, channel],
            image[frame, below, beside, channel],
            right,
            low,
        )

    return sample


@functools.cache
def bilinear(place, mix):
    """Kernel: four source pixels around the place of each target pixel, mixed."""
    value_at = sample(mix)

    @cuda.jit
    def bilinear(image, out, swap):
        x, y = cuda.grid(2)
        if x < out.shape[2] and y < out.shape[1]:
            down = place(uint32(y), uint32(image.shape[1]), uint32(out.shape[1]))
            across = place(uint32(x), uint32(image.shape[2]), uint32(out.shape[2]))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    out[frame, y, x, channel] = value_at(image, frame, down, across, 2 - channel if swap else channel)
                frame += cuda.gridDim.z

    return bilinear


@functools.cache
def letterbox_corner(place, mix):
    """Kernel: the image resized to ``height`` x ``width``, at the top left of the target; ``fill`` elsewhere."""
    value_at = sample(mix)

    @cuda.jit
    def letterbox_corner(image, out, height, width, fill, swap):
        x, y = cuda.grid(2)
        if x < out.shape[2] and y < out.shape[1]:
            inside = x < width and y < height
            down = place(uint32(y), uint32(image.shape[1]), uint32(height))
            across = place(uint32(x), uint32(image.shape[2]), uint32(width))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    value = fill[channel]
                    if inside:
                        value = value_at(image, frame, down, across, 2 - channel if swap else channel)
                    out[frame, y, x, channel] = value
                frame += cuda.gridDim.z

    return letterbox_corner


@functools.cache
def letterbox_centred(place, mix):
    """Kernel: the image resized to ``height`` x ``width``, from row ``top`` and column ``left`` of the target on."""
    value_at = sample(mix)

    @cuda.jit
    def letterbox_centred(image, out, height, width, top, left, fill, swap):
        x, y = cuda.grid(2)
        if x < out.shape[2] and y < out.shape[1]:
            # What lies above or to the left wraps round to a large number: one comparison finds both sides.
            row, col = uint32(y - top), uint32(x - left)
            inside = row < uint32(height) and col < uint32(width)
            down = place(row, uint32(image.shape[1]), uint32(height))
            across = place(col, uint32(image.shape[2]), uint32(width))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    value = fill[channel]
                    if inside:
                        value = value_at(image, frame, down, across, 2 - channel if swap else channel)
                    out[frame, y, x, channel] = value
                frame += cuda.gridDim.z

    return letterbox_centred


@functools.cache
def letterbox_planes(place, mix):
    """Kernel: the pixels of ``letterbox_centred`` as (value - mean) * factor, in planes: out is (N, 3, H, W).

    A warp's store to a plane is of 32 neighbours, where those to whole pixels are three apart.
    """
    value_at = sample(mix)

    @cuda.jit
    def letterbox_planes(image, out, height, width, top, left, fill, mean, factor, swap):
        x, y = cuda.grid(2)
        if x < out.shape[3] and y < out.shape[2]:
            row, col = uint32(y - top), uint32(x - left)
            inside = row < uint32(height) and col < uint32(width)
            down = place(row, uint32(image.shape[1]), uint32(height))
            across = place(col, uint32(image.shape[2]), uint32(width))
            frame = cuda.blockIdx.z
            while frame < out.shape[0]:
                for channel in range(3):
                    value = fill[channel]
                    if inside:
                        value = value_at(image, frame, down, across, 2 - channel if swap else channel)
                    out[frame, channel, y, x] = (float32(value) - mean[channel]) * factor[channel]
                frame += cuda.gridDim.z

    return letterbox_planes


# -- to launch them --------------------------------------------------------------------------------

#: The rungs, from the lowest. All but the last have out (N, height, width, 3) of the image's dtype.
RUNGS = ("nearest", "bilinear", "letterbox_corner", "letterbox_centred", "letterbox_planes")
#: What the host functions launch for the last two, to be compared with them.
FAST = ("pixels", "planes")
KINDS = {np.dtype(np.uint8): (neighbours_fixed, mix_bytes), np.dtype(np.float32): (neighbours, mix_floats)}
MOST_LAYERS = 65535  # the limit of gridDim.z


def rung(name, image, out, *, fill=0, swap_rb=False, mean=0, factor=1, stream=None):
    """A kernel of the ladder with its arguments, to be launched, traced or timed: ``launch(*arguments)``.

    Parameters
    ----------
    name : str
        One of ``RUNGS`` or ``FAST``.
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
        For a name that is none of those, and for an image that is not as above.
    """
    if name not in (*RUNGS, *FAST):
        raise ValueError(f"name is {name!r}; it must be one of {', '.join((*RUNGS, *FAST))}")
    check_array("image", image, 4, KINDS)
    dtype, stream, swap = dtype_of(image), stream_of(stream), int(bool(swap_rb))
    height, width = out.shape[2:] if name.endswith("planes") else out.shape[1:3]
    place, fill = placement(image.shape[1:3], (height, width)), fill_of(fill, dtype)
    normalise = three("mean", mean, np.float32), three("factor", factor, np.float32)
    if name in FAST:
        further = (fill, *normalise, swap) if name == "planes" else (fill, swap)
        frames = host.alike(as_device_array(image), place[1:5])
        return host.launches(frames, out, further, dtype=out.dtype if name == "planes" else None, stream=stream)[0]
    further = {
        "nearest": tuple(1 / (to / n) for n, to in zip(image.shape[1:3], (height, width), strict=True)),
        "bilinear": (),
        "letterbox_corner": (place.height, place.width, fill),
        "letterbox_centred": (*place[1:5], fill),
        "letterbox_planes": (*place[1:5], fill, *normalise),
    }[name]
    kernel = nearest if name == "nearest" else globals()[name](*KINDS[dtype])
    grid = -(-width // BLOCK[0]), -(-height // BLOCK[1]), min(image.shape[0], MOST_LAYERS)
    return configured(kernel, grid, BLOCK, stream), (image, out, *further, swap)
