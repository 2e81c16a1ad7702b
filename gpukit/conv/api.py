"""``conv2d``: its arguments, the ways to compute it, and the launches of each (C1, C2, E)."""

import numpy as np

from gpukit import matmul
from gpukit._host.arrays import (
    Output,
    WorkMemory,
    check_alike,
    check_apart,
    check_array,
    dtype_of,
    stream_of,
    to_device,
)
from gpukit.backend import cuda
from gpukit.conv import columns
from gpukit.conv.cost import LADDER, WORKSPACE, choose_algorithm, direct_launch
from gpukit.conv.windows import check_out, check_shape, check_size, windows
from gpukit.launching import Plans
from warpstep.checks import check_int

__all__ = ["ALGORITHMS", "CONV_DTYPES", "conv2d", "extra_memory", "free_workspaces", "steps", "workspace_size"]

#: What ``conv2d`` takes as ``algorithm``, besides "auto": the matrix product of windows, the fastest direct kernel that
#: there is for the shape, and each kernel of the ladder by name.
ALGORITHMS = ("im2col", "direct", *LADDER)
CONV_DTYPES = (np.float16, np.float32, np.float64)
#: The types that each way is for; sums of float16 are float32.
OF_COLUMNS, OF_DIRECT = (np.float32, np.float64), (np.float16, np.float32)

_plans = Plans()
_workspaces = WorkMemory()


def conv2d(
    x,
    weight,
    bias=None,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    algorithm="auto",
    *,
    out=None,
    workspace=None,
    stream=None,
):
    """Convolution as neural networks have it, which does not turn the kernel round (a cross-correlation) (C1, E).

    With "im2col" the windows of a few samples at a time are written to a workspace, and for each sample and group a
    product of the weights, M x K, and that group's columns, K x OH OW, is the result for M = O / groups out channels,
    with K = C / groups KH KW. Windows of one pixel are the image itself, and nothing is written. The direct kernels
    need no further memory.

    Parameters
    ----------
    x : ndarray or device array, shape (N, C, H, W), float16, float32 or float64
        Any N, also 0. Sums of float16 are float32.
    weight : array of shape (O, C / groups, KH, KW)
        Of the same kind and dtype. C and O must be multiples of ``groups``.
    bias : array of shape (O,), optional
        Of the same kind and dtype; it is added to every value of its out channel.
    stride, padding, dilation
        As for ``im2col``.
    groups : int, 1 or more
        Out channels of a group are made of the same group's channels of x alone.
    algorithm : str
        One of ``ALGORITHMS``, or "auto", which is "direct" or "im2col", what a model of both expects to be faster. A
        name from the ladder, "naive" to "paired", is for learners. "im2col" is not for float16, and it alone is
        for float64. "direct" may share products between neighbours ("paired") where a value has 100 terms or more, in
        kernels of 5 columns or more: its errors are somewhat larger, and a value whose window has an infinity may be
        NaN in place of it. By name "paired" is for kernels of 2 columns or more, with a stride and dilation of 1 along
        rows.
    out : array of shape (N, O, OH, OW), optional
        Of the same kind and dtype. On the device it must not share memory with the others.
    workspace : device array of one dimension, optional
        For "im2col", others leave it alone: C-contiguous, of the dtype of x, with at least ``workspace_size`` elements,
        and apart from the others. Without one, gpukit keeps one for each stream: ``free_workspaces`` lets go of them.
    stream : CUDA stream, optional
        The default stream unless given. With device arrays the call returns before the work is done.

    Returns
    -------
    ndarray or device array, shape (N, O, OH, OW)
        ``out`` if that was given, otherwise a new array of the same library.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    how = stride, padding, dilation, groups, algorithm
    call = _plans.call((x, weight, bias), out, stream, *how, None if workspace is None else [])
    if call.plan is not None:
        return call.again()
    at, shape = _check(x, weight, bias, *how)
    check_out(out, shape, "x", x, CONV_DTYPES, weight=weight, **({} if bias is None else {"bias": bias}))
    algorithm = choose_algorithm(algorithm, x.shape, weight.shape, at, groups, dtype_of(x))
    others = {"x": x, "weight": weight, "bias": bias, "out": out}
    size = x.shape[1] * at.counts[0] * at.counts[1]
    _check_workspace(workspace, size, dtype_of(x), others)
    stream = stream_of(stream)
    result = Output(x, shape, out, stream)
    if result.device.size == 0:
        return result.finish()
    operands = (None if array is None else to_device(array, stream) for array in (x, weight, bias))
    return call.first(_launches(algorithm, *operands, result.device, at, groups, workspace, stream), result)


def steps(algorithm, x, weight, out, bias=None, stride=1, padding=0, dilation=1, groups=1, *, stream=None):
    """The launches of one convolution, to be made, traced or timed in this order: ``for launch, arguments in steps()``.

    Parameters
    ----------
    algorithm, stride, padding, dilation, groups, stream
        As for `conv2d`.
    x, weight, out, bias : C-contiguous arrays
        As for `conv2d`, none of them empty; device arrays, or NumPy arrays to be traced.

    Returns
    -------
    list of (launch, arguments)
        A workspace is among the arguments: it lives as long as the list.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    at, shape = _check(x, weight, bias, stride, padding, dilation, groups, algorithm)
    check_out(out, shape, "x", x, CONV_DTYPES)
    if 0 in (*x.shape, *out.shape):
        raise ValueError(f"x has shape {tuple(x.shape)} and out {tuple(out.shape)}; they must not be empty")
    algorithm = choose_algorithm(algorithm, x.shape, weight.shape, at, groups, dtype_of(x))
    own = None
    if algorithm == "im2col":
        size = _samples_at_once(x, at, None) * x.shape[1] * at.counts[0] * at.counts[1]
        own = np.empty(size, x.dtype) if isinstance(x, np.ndarray) else cuda.device_array(size, dtype_of(x))
    return _launches(algorithm, x, weight, bias, out, at, groups, own, stream_of(stream))


def workspace_size(x_shape, kernel_size, stride=1, padding=0, dilation=1):
    """Elements of the workspace of ``conv2d(..., algorithm="im2col")``: C KH KW OH OW, one sample's columns (C2).

    Parameters
    ----------
    x_shape : tuple of 4 int
        N, C, H and W.
    kernel_size, stride, padding, dilation
        As for ``im2col``.

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    _, channels, height, width = check_shape(x_shape, (0, 0, 0, 0), "x_shape")
    taps, positions = windows((height, width), kernel_size, stride, padding, dilation).counts
    return channels * taps * positions


def extra_memory(x_shape, weight_shape, stride=1, padding=0, dilation=1, groups=1, itemsize=4):
    """Bytes that three ways to compute the convolution of one sample need beside x, weight and out (C2).

    "im2col" repeats every pixel KH KW times. A sparse matrix with a row for each value of the result and a column for
    each pixel repeats every weight OH OW times, and needs an index of 4 bytes beside each. "direct" needs nothing.

    Parameters
    ----------
    x_shape, weight_shape : tuple of 4 int
        As for `conv2d`.
    stride, padding, dilation, groups
        As for `conv2d`.
    itemsize : int
        Bytes of an element.

    Returns
    -------
    dict of str to int
        "im2col", "sparse" and "direct".

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """
    made, channels, *kernel = check_shape(weight_shape, (0, 0, 1, 1), "weight_shape")
    if channels * check_int("groups", groups, 1) != check_shape(x_shape, (0, 0, 0, 0), "x_shape")[1]:
        raise ValueError(f"weight_shape is {tuple(weight_shape)}; x_shape is {tuple(x_shape)}, in {groups} groups")
    taps, positions = windows(tuple(x_shape[2:]), tuple(kernel), stride, padding, dilation).counts
    return {
        "im2col": channels * groups * taps * positions * itemsize,
        "sparse": made * channels * taps * positions * (itemsize + 4),
        "direct": 0,
    }


def free_workspaces():
    """Let go of the workspaces that "im2col" keeps for the streams it was called on."""
    _workspaces.clear()


# -- launches --------------------------------------------------------------------------------------


def _launches(algorithm, x, weight, bias, out, at, groups, workspace, stream):
    """[(launch, arguments), ...] for contiguous arrays, none of them empty."""
    if algorithm != "im2col":
        return [direct_launch(algorithm, x, weight, bias, out, at, groups, stream)]
    (taps, positions), (samples, channels) = at.counts, x.shape[:2]
    made, at_once = weight.shape[0], _samples_at_once(x, at, workspace)
    m, k = made // groups, channels // groups * taps
    weight, launches = weight.reshape(groups, m, k), []
    wide = dtype_of(x) == np.float32 if workspace is None else columns.is_wide(workspace)
    variant = None if at.is_image else columns.choose("auto", at_once, channels, at, wide)
    for first in range(0, samples, at_once):
        part = x[first : first + at_once]
        count = part.shape[0]
        if at.is_image:
            windows_of_part = part
        else:
            size = count * channels * taps * positions
            if workspace is None:
                windows_of_part = _workspaces.take(size, dtype_of(x), stream)
            else:
                windows_of_part = workspace[:size]
            launches.append(columns.launch_im2col(variant, part, windows_of_part, at, stream))
        product = out[first : first + count].reshape(count, groups, m, positions)
        matrices = windows_of_part.reshape(count, groups, k, positions)
        launches += matmul.steps("auto", weight, matrices, product, stream=stream)
        if bias is not None:
            launches.append(columns.launch_bias(product, bias, stream))
    return launches


def _samples_at_once(x, at, workspace):
    """Samples whose columns fill the workspace, or one of ``WORKSPACE`` bytes if it is None; at least one."""
    if at.is_image:
        return x.shape[0]
    each = x.shape[1] * at.counts[0] * at.counts[1]
    size = WORKSPACE // dtype_of(x).itemsize if workspace is None else workspace.shape[0]
    return max(1, min(x.shape[0], size // each))


# -- arguments -------------------------------------------------------------------------------------


def _check(x, weight, bias, stride, padding, dilation, groups, algorithm):
    """The Windows and the shape of the result, after a check of the operands."""
    check_array("x", x, 4, CONV_DTYPES)
    check_array("weight", weight, 4, CONV_DTYPES)
    check_alike("weight", weight, "x", x)
    groups, channels, made = check_int("groups", groups, 1), x.shape[1], weight.shape[0]
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm is {algorithm!r}; it must be 'auto' or one of {', '.join(ALGORITHMS)}")
    allowed = OF_COLUMNS if algorithm == "im2col" else OF_DIRECT if algorithm != "auto" else CONV_DTYPES
    if dtype_of(x) not in allowed:
        names = " or ".join(str(np.dtype(d)) for d in allowed)
        raise TypeError(f"x has dtype {dtype_of(x)}; it must be {names} for the algorithm {algorithm!r}")
    if channels == 0 or channels % groups:
        raise ValueError(f"x has {channels} channels; it must have a multiple of groups, {groups}")
    if weight.shape[1] != channels // groups or 0 in weight.shape[2:]:
        expected = f"(O, {channels // groups}, KH, KW), as x has {channels} channels in {groups} groups"
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be {expected}")
    if made % groups:
        raise ValueError(f"weight has {made} out channels; it must have a multiple of groups, {groups}")
    if bias is not None:
        check_array("bias", bias, 1, CONV_DTYPES)
        check_alike("bias", bias, "x", x, (made,))
    at = windows(tuple(x.shape[2:]), tuple(weight.shape[2:]), stride, padding, dilation)
    taps, positions = at.counts
    check_size("x", x.shape[0] * channels, {})
    check_size("weight", 1, {"C / groups KH KW": weight.shape[1] * taps})
    return at, (x.shape[0], made, *at.out_size)


def _check_workspace(workspace, size, dtype, others):
    if workspace is None:
        return
    if not cuda.is_cuda_array(workspace):
        raise TypeError(f"workspace is a {type(workspace).__name__}; it must be a device array")
    check_array("workspace", workspace, 1, (dtype,))
    if workspace.shape[0] < size or not cuda.as_cuda_array(workspace).is_c_contiguous():
        raise ValueError(f"workspace has shape {tuple(workspace.shape)}; it must be contiguous, of {size} or more")
    on_device = {name: array for name, array in others.items() if cuda.is_cuda_array(array)}
    check_apart("workspace", workspace, **on_device)
