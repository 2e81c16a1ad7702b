"""Descriptions of tensors for `copy_tensor` and `store_tensor`, made on the host."""

import ctypes

import numpy as np

from gpukit._host.arrays import as_device_array
from gpukit.backend import cuda, on_gpu
from gpukit.errors import LaunchError
from warpstep.machine.tensor_maps import ELEMENTS, NBYTES, SWIZZLES, TensorMap, Windows
from warpstep.values import check_int, check_items, describe, has_attributes

__all__ = [
    "can_describe_windows",
    "describe_tensor",
    "describe_windows",
    "encode_tensor",
    "tensor_map",
    "window_map",
]

#: A copy has no more along an axis, and bytes are copied by 16.
MAX_BOX, UNIT = 256, 16
#: Limits of windows: pixels before and beyond an edge of the image, the stride, and the last row or column of a window.
MAX_BEFORE, MAX_BEYOND, MAX_STEP, MAX_PIXEL = 128, 127, 8, 255


def tensor_map(array, box, swizzle=None):
    """Describe a tensor in global memory, of which `copy_tensor` and `store_tensor` copy boxes.

    Parameters
    ----------
    array : device array
        Of `gpukit.cuda`, PyTorch, CuPy or anything else with ``__cuda_array_interface__``; of 1 to 5 axes, the last one
        contiguous. Of float16, float32, float64 or integers; bfloat16 is viewed as uint16. Address and strides are
        multiples of 16 bytes.
    box : tuple of int
        Extents of a box, 1 to 256 along each axis; along the last one a multiple of 16 bytes.
    swizzle : int, optional
        0 to leave rows of the box as they are, or the bytes of a row to swizzle rows of 32, 64 or 128 bytes. Unless
        given, such rows are swizzled, as `wgmma` expects.

    Returns
    -------
    device array of 128 bytes
        To be passed to a kernel.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of the above.
    LaunchError
        If the device has no such copies: they need compute capability 9.0.

    Examples
    --------
    See `copy_tensor`.
    """
    return _upload(array, describe_tensor(array, box, swizzle))


def window_map(array, box, kernel_size, stride=1, padding=0, dilation=1):
    """Describe images with their channels last, of which `copy_windows` copies pixels of windows.

    Parameters
    ----------
    array : device array, shape (N, H, W, C)
        As for `tensor_map`.
    box : (int, int)
        Windows of a copy, and channels: 1 to 256 each, and a multiple of 16 bytes of channels. Rows of 32, 64 or 128
        bytes are swizzled.
    kernel_size, stride, padding, dilation : int or (int, int)
        As for `gpukit.conv.conv2d`, for rows and columns. A stride is at most 8, padding at most 128, and dilation
        (kernel_size - 1) at most 255; that minus padding is from -127 to 128.

    Returns
    -------
    device array of 128 bytes
        To be passed to a kernel.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of the above.
    LaunchError
        If the device has no such copies: they need compute capability 9.0.

    Examples
    --------
    See `copy_windows`.
    """
    return _upload(array, describe_windows(array, box, kernel_size, stride, padding, dilation))


def _upload(array, made):
    result = cuda.to_device(encode_tensor(made))
    result.tensor, result.described = as_device_array(array), made  # for traces; the array lives as long as the map
    return result


def describe_windows(array, box, kernel_size, stride=1, padding=0, dilation=1) -> TensorMap:
    """Check what `window_map` takes, and describe it."""
    if len(array.shape) != 4:
        raise ValueError(f"array has {len(array.shape)} axes; it must have 4: N, H, W and C")
    given = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
    kernel, steps, edges, gaps = (
        [check_int(name, n, name != "padding") for n in (value if isinstance(value, tuple | list) else (value,) * 2)]
        for name, value in given.items()
    )
    if not can_describe_windows(kernel, steps, edges, gaps):
        raise ValueError(
            f"{given}; windows must begin and end at most {MAX_BEFORE} pixels from the edges, {MAX_STEP} apart at most"
        )
    beyond = (edge - gap * (n - 1) for n, edge, gap in zip(kernel, edges, gaps, strict=True))
    made = describe_tensor(array, (1, 1, *_box(box)))
    return made._replace(windows=Windows(-edges[0], -edges[1], *beyond, *steps))


def can_describe_windows(kernel, stride, padding, dilation) -> bool:
    """Whether windows, of two numbers each, are such as `window_map` takes."""
    pixels = [gap * (n - 1) for n, gap in zip(kernel, dilation, strict=True)]
    beyond = [edge - pixel for edge, pixel in zip(padding, pixels, strict=True)]
    near = -MAX_BEFORE <= min(beyond) and max(beyond) <= MAX_BEYOND and max(padding) <= MAX_BEFORE
    return near and max(pixels) <= MAX_PIXEL and max(stride) <= MAX_STEP


def describe_tensor(array, box, swizzle=None) -> TensorMap:
    """Check what `tensor_map` takes, and describe it."""
    found = cuda.get_current_device().compute_capability
    if tuple(found) < (9, 0):
        raise LaunchError("copies of tensors need compute capability 9.0, and the device has {}.{}".format(*found))
    if not has_attributes(array, "__cuda_array_interface__") and not has_attributes(array, "__cuda_ndarray__"):
        raise TypeError(f"array is {describe(array)}; it must be a device array")
    array = as_device_array(array)
    shape, dtype, address = array.shape, array.dtype, array.device_ctypes_pointer.value or 0
    strides = (*array.strides[:-1], dtype.itemsize) if shape and shape[-1] == 1 else array.strides
    _check_array(address, shape, strides, dtype)
    extents = tuple(check_int(f"box[{axis}]", n, 1, MAX_BOX) for axis, n in enumerate(_box(box)))
    if len(extents) != len(shape):
        raise ValueError(f"box is {describe(box)}; it must have one extent for each of the array's {len(shape)} axes")
    row = extents[-1] * dtype.itemsize
    if row % UNIT:
        raise ValueError(f"box is {describe(box)}: its rows have {row} bytes; they must have a multiple of {UNIT}")
    if swizzle is None:
        swizzle = row if row in SWIZZLES else 0
    elif swizzle not in ((0, row) if row in SWIZZLES else (0,)):
        rows = f" or {row}, the bytes of a row" if row in SWIZZLES else f": rows of {row} bytes are not swizzled"
        raise ValueError(f"swizzle is {describe(swizzle)}; it must be 0{rows}")
    return TensorMap(address, dtype.str, shape, strides, extents, swizzle)


def encode_tensor(made: TensorMap) -> np.ndarray:
    """The 128 bytes of a description, as the device reads it."""
    return np.frombuffer(_encode(made) if on_gpu() else made.to_bytes(), np.uint8)


def _box(box):
    return check_items("box", box, "a tuple of ints, one for each axis")


def _check_array(address, shape, strides, dtype):
    if not 1 <= len(shape) <= 5:
        raise ValueError(f"array has {len(shape)} axes; it must have 1 to 5")
    if dtype.kind + str(dtype.itemsize) not in ELEMENTS:
        raise TypeError(f"array holds {dtype}; it must hold float16, float32, float64 or integers")
    if strides[-1] != dtype.itemsize or any(stride % UNIT or stride <= 0 for stride in strides[:-1]):
        raise ValueError(
            f"array has strides of {strides} bytes; the last axis must be contiguous, the others multiples of {UNIT}"
        )
    if address % UNIT:
        raise ValueError(f"array is at address {address:#x}, which must be a multiple of {UNIT}")
    if not all(1 <= extent <= 2**32 for extent in shape):
        raise ValueError(f"array has shape {shape}; each extent must be from 1 to 2**32")


def _encode(made):
    """The driver's 128 bytes."""
    import cuda.bindings.driver as driver

    kind = np.dtype(made.dtype)
    names = {"f2": "FLOAT16", "f4": "FLOAT32", "f8": "FLOAT64"}
    name = names.get(kind.kind + str(kind.itemsize)) or f"{'' if kind.kind == 'i' else 'U'}INT{8 * kind.itemsize}"
    if kind.itemsize < 4 and kind.kind in "iu":  # only the size matters: there is no addition, and zeros are zeros
        name = f"UINT{8 * kind.itemsize}"
    long, word = driver.cuuint64_t, driver.cuuint32_t
    swizzle = f"SWIZZLE_{made.swizzle}B" if made.swizzle else "SWIZZLE_NONE"
    encode, box = driver.cuTensorMapEncodeTiled, [[word(extent) for extent in reversed(made.box)]]
    steps = [word(1)] * len(made.shape)
    if made.windows:
        top, left, bottom, right, down, across = made.windows
        encode, box = driver.cuTensorMapEncodeIm2col, [[left, top], [right, bottom], made.box[3], made.box[2]]
        steps = [word(1), word(across), word(down), word(1)]
    error, encoded = encode(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}"),
        len(made.shape),
        made.address,
        [long(extent) for extent in reversed(made.shape)],
        [long(stride) for stride in reversed(made.strides[:-1])] or [long(0)],
        *box,
        steps,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_{swizzle}"),
        # With 256 bytes, products of rows that do not begin at lines take 17 % longer on an H200; others do not differ.
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"the driver cannot describe an array of {made.shape} and boxes of {made.box}: {error.name}")
    return bytes((ctypes.c_char * NBYTES).from_address(int(encoded.getPtr())))
