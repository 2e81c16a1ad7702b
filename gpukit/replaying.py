"""``gpukit.replay``: the line at which a launch failed on a GPU."""

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukit.backend import cuda, on_gpu
from gpukit.errors import KERNEL_ERRORS, KernelError, driver_error
from warpstep import Trace, trace
from warpstep.api.arrays import as_device_array
from warpstep.launch import configuration
from warpstep.report import text

__all__ = ["Replay", "replay"]

_NOTHING = (
    "nothing is wrong in this launch with these arguments. They may differ from those of the failure, or an earlier "
    "launch failed: a GPU reports an error late, and gpukit.errors.checked(every_launch=True) says which launch it was."
)
_LOST = "Zeros stood in for them. If the kernel computes indices from them, give host arrays of the same values."


@dataclass(frozen=True, repr=False)
class Replay:
    """What a launch that failed on a GPU does in the emulator; printed, the line comes with its reason.

    Attributes
    ----------
    gpu : str
        The driver's name of the error, such as ``CUDA_ERROR_ILLEGAL_ADDRESS``; "" if there is none.
    trace : Trace
        Of the launch in the emulator; its findings are what is wrong with it.
    lost : tuple of str
        Arguments whose contents could not be read from the GPU any more; zeros stood in for them.
    """

    gpu: str
    trace: Trace = field(repr=False)
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = KERNEL_ERRORS.get(self.gpu, ("", ""))[1]
        gpu = self.gpu or ("no error" if on_gpu() else "there is none here")
        parts = text.wrapped(f"On the GPU: {gpu}" + (f", {what}" if what else ""), "  ", "")
        if self.trace.findings:
            parts.append(f"In the emulator: {text.render_findings(self.trace, self.trace.findings)}")
        if self.trace.stopped:
            parts.append(f"In the emulator: {self.trace.stopped}")
        if not self.trace.findings and not self.trace.stopped:
            parts += text.wrapped(f"In the emulator: {_NOTHING}", "  ", "")
        if self.lost:
            parts += text.wrapped(
                f"Lost with the CUDA context: the contents of {', '.join(self.lost)}. {_LOST}", "  ", ""
            )
        return "\n".join(parts)

    __repr__ = __str__


def replay(launch, *args, error: BaseException | None = None) -> Replay:
    """Run a launch that failed on a GPU again in the emulator, and say which line it was.

    The arguments are copied, and nothing is written to them. Arrays on a GPU whose context is lost cannot be read any
    more: zeros of their shapes and types stand in for them, and the report says so. Host arrays of the same values are
    better.

    Parameters
    ----------
    launch : ``kernel[grid, block]``, ``kernel[grid, block, stream]`` or ``kernel[grid, block, stream, shared_bytes]``
    *args
        The arguments of the launch that failed, or host arrays in the place of its device arrays.
    error : exception, optional
        What the GPU's failure raised; unless given, the exception that is being handled, or else the driver is asked.

    Returns
    -------
    Replay

    Raises
    ------
    TypeError, ValueError, LaunchError
        As `trace`.

    Examples
    --------
    >>> try:
    ...     kernel[grid, block](x, out)
    ...     cuda.synchronize()
    ... except Exception:
    ...     print(gpukit.replay(kernel[grid, block], x, out))  # doctest: +SKIP
    On the GPU: CUDA_ERROR_ILLEGAL_ADDRESS, a thread read or wrote where no memory is allocated: ...
    In the emulator: kernel[4, 256] at script.py:5
    1 FINDING: the result is wrong, or can be
      out-of-bounds, line 8:  out[i + 1] = x[i]
    """
    gpu = _name_of(error if error is not None else sys.exception())
    configured = configuration(launch)
    lost: list[str] = []
    known: dict[int, Any] = {}
    names = configured.dispatcher.py_func.__code__.co_varnames
    here = [_copied(value, name, known, lost) for value, name in zip(args, [*names, *[""] * len(args)], strict=False)]
    try:
        made = trace(configured, *here)
    except KernelError as stopped:
        if stopped.trace is None:
            raise
        made = stopped.trace
    return Replay(gpu, made, tuple(lost))


def _name_of(error):
    """The driver's name of an error; without one, of the error that the context is in."""
    while error is not None:
        found = driver_error(error) or next((name for name in KERNEL_ERRORS if name in str(error)), None)
        if found:
            return found
        error = error.__cause__ or error.__context__
    if not on_gpu():
        return ""
    try:
        cuda.synchronize()
    except Exception as pending:
        return driver_error(pending) or type(pending).__name__
    return ""


def _copied(value, name, known, lost):
    """A copy of an argument in host memory; one for each array, so that what was the same stays the same."""
    if isinstance(value, tuple):
        return tuple(_copied(v, name, known, lost) for v in value)
    if not isinstance(value, np.ndarray) and not hasattr(value, "__cuda_array_interface__"):
        return value
    if id(value) not in known:
        known[id(value)] = value.copy(order="K") if isinstance(value, np.ndarray) else _read(value, name, lost)
    return known[id(value)]


def _read(array, name, lost):
    emulated = as_device_array(array)
    if emulated is not None:
        return emulated.copy_to_host()
    interface = array.__cuda_array_interface__
    try:
        return cuda.as_cuda_array(array).copy_to_host()
    except Exception:
        lost.append(name)
        dtype = np.dtype(interface.get("descr") or interface["typestr"])
        return np.zeros(interface["shape"], dtype)
