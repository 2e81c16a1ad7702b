"""What the emulator raises. None of these depends on a CUDA installation."""


class LaunchError(ValueError):
    """A launch asks for more than the device allows, or for something that makes no sense.

    The message names the limit, the value asked for and a way out.
    """


class KernelError(RuntimeError):
    """A kernel did something that is wrong on every device, and the launch was stopped.

    Attributes
    ----------
    kind : str
        "out-of-bounds", "barrier-divergence" or "no-progress".
    line : int
        Line in ``filename`` (a file, or a notebook cell) of the statement that did it.
    filename : str
    block, thread : tuple of 3 int or None
        ``blockIdx`` and ``threadIdx`` of the first offender, as (x, y, z).
    """

    def __init__(self, message, *, kind, line, filename, block=None, thread=None):
        super().__init__(message)
        self.kind = kind
        self.line = line
        self.filename = filename
        self.block = block
        self.thread = thread


class UnsupportedError(NotImplementedError):
    """A kernel uses something that the emulator does not know; the message names it and its line."""
