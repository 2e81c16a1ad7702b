"""The errors of the emulator. None of these depends on a CUDA installation."""

from typing import Any


class LaunchError(ValueError):
    """A launch asks for more than the device allows, or for something that makes no sense.

    The message names the limit, the value asked for and a way out.

    Attributes
    ----------
    launch : gpukit.errors.Launch or None
        Which launch it was, where ``gpukit.errors.checked`` has watched it.
    """

    launch = None


class KernelError(RuntimeError):
    """A kernel did something that is wrong on every device, and the launch was stopped.

    Attributes
    ----------
    kind : str
        "out-of-bounds", "peer-access", "barrier-divergence", "no-progress" or "lost-signal"; on a GPU also
        "misaligned", "trap" or "failure".
    line : int or None
        Line in ``filename`` (a file, or a notebook cell) of the statement that did it. A GPU does not tell: there it is
        the line of the launch, or None if it can have been one of several.
    filename : str or None
    block, thread : tuple of 3 int or None
        ``blockIdx`` and ``threadIdx`` of the first offender, as (x, y, z); None on a GPU.
    launch : gpukit.errors.Launch or None
        Which launch it was, where ``gpukit.errors.checked`` has watched it.
    trace : Trace or None
        What `trace` recorded until then, if it ran the kernel; its status is "stopped".
    sticky : bool
        True if nothing works any more on the GPU until the process ends; never on the emulator.
    """

    launch: Any = None
    trace: Any = None
    sticky = False

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        line: int | None,
        filename: str | None,
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
    ):
        super().__init__(message)
        self.kind = kind
        self.line = line
        self.filename = filename
        self.block = block
        self.thread = thread


class UnsupportedError(NotImplementedError):
    """A kernel uses something that the emulator does not know; the message names it and its line."""
