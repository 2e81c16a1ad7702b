"""``gpukit.trace``: run one launch in the emulator with everything looked at."""

import math
import sys
import time
import weakref
from numbers import Integral

import numpy as np

from warpstep import launch as emulated
from warpstep.launch import Configured, Kernel
from warpstep.tracing import gpu
from warpstep.tracing import machine as traced
from warpstep.tracing.build import record
from warpstep.tracing.trace import Trace

#: Seconds that a trace may take before it shows how far it is.
PATIENCE = 2.0

_kernels = weakref.WeakKeyDictionary()


def trace(launch, *args, blocks=None, registers=None):
    """Run a launch in the emulator and record what every access, branch and barrier does, and what is wrong.

    Works on any machine. The kernel runs as in a launch: its results are in the arrays afterwards, those of a GPU too.
    An access that is wrong is recorded and left out, and the kernel goes on.

    Parameters
    ----------
    launch : ``kernel[grid, block]``, ``kernel[grid, block, stream]`` or ``kernel[grid, block, stream, shared_bytes]``
        A kernel of ``gpukit.cuda`` or of ``numba.cuda`` with its launch configuration.
    *args
        The kernel's arguments: NumPy arrays, device arrays (also of CuPy and PyTorch on a GPU), numbers.
    blocks : int or sequence of int, optional
        Run only so many blocks, evenly spread over the grid, or the blocks of these numbers (x fastest). Counts are
        scaled to the whole grid, and the report says so. Results are those of the blocks that ran.
    registers : int, optional
        Registers per thread, for the occupancy. On a GPU they are read from the compiled kernel unless given; without
        one they are not reckoned with unless given.

    Returns
    -------
    Trace

    Raises
    ------
    TypeError
        If ``launch`` is not a configured kernel, or for arguments that a kernel cannot take.
    ValueError
        If ``blocks`` or ``registers`` is out of range.
    LaunchError
        If a real device could not launch it.
    KernelError
        For a loop that makes no progress.
    """
    kernel, grid, block, stream, shared = _configuration(launch)
    registers = _registers(registers, launch, args)
    with gpu.emulated_arguments(args) as here:
        emulated.check_limits(
            kernel.py_func.__name__,
            grid,
            block,
            shared,
            launch_bounds=kernel.targetoptions["launch_bounds"],
            allowed_shared=kernel.dynamic_shared,
        )
        prepared = emulated.prepare(kernel, grid, block, shared, here, stream)
        wanted = _wanted(blocks, prepared)
        with _progress(kernel.py_func.__name__) as progress:
            recorder = traced.run(prepared, wanted, progress)
        for write in prepared.transfers.copy_back:
            write()
    traced_blocks = prepared.run.blocks if wanted is None else wanted.size
    return Trace(record(prepared, recorder, traced_blocks, registers))


def _configuration(launch):
    """(emulated kernel, grid, block, stream, dynamic shared bytes) of ``kernel[grid, block]``."""
    if isinstance(launch, Configured):
        return launch.dispatcher, launch.griddim, launch.blockdim, launch.stream, launch.sharedmem
    dispatcher = getattr(launch, "dispatcher", None)
    if dispatcher is None or not hasattr(dispatcher, "py_func"):
        hint = "; write trace(kernel[grid, block], ...)" if callable(launch) else ""
        raise TypeError(f"launch is {launch!r}; it must be a kernel with its grid and block, kernel[grid, block]{hint}")
    configured = _emulated(dispatcher)[launch.griddim, launch.blockdim, 0, launch.sharedmem]
    return configured.dispatcher, configured.griddim, configured.blockdim, 0, configured.sharedmem


def _emulated(dispatcher):
    """The emulator's kernel for one of ``numba.cuda``."""
    if dispatcher not in _kernels:
        options = {name: dispatcher.targetoptions.get(name) for name in ("debug", "launch_bounds")}
        declared = None if dispatcher._can_compile else [tuple(s) for s in dispatcher.signatures]
        _kernels[dispatcher] = Kernel(dispatcher.py_func, options, declared, dispatcher.specialized)
    # What gpukit.intrinsics.allow_dynamic_shared notes on a kernel of numba.cuda.
    _kernels[dispatcher].dynamic_shared = getattr(dispatcher, "dynamic_shared", 0)
    return _kernels[dispatcher]


def _registers(registers, launch, args):
    if registers is None:
        return gpu.registers(launch, args)
    if not isinstance(registers, Integral) or not 1 <= registers <= 255:
        raise ValueError(f"registers is {registers!r}; it must be an int from 1 to 255")
    return int(registers)


def _wanted(blocks, prepared):
    """Positions of the blocks to run; None for all."""
    total = prepared.run.blocks
    if blocks is None:
        return None
    if prepared.run.program.cooperative:
        raise ValueError("blocks cannot be chosen in a cooperative launch: its blocks wait for each other")
    if isinstance(blocks, Integral) and not isinstance(blocks, bool):
        if blocks < 1:
            raise ValueError(f"blocks is {blocks}; it must be 1 or more")
        if blocks >= total:
            return None
        return np.unique(np.linspace(0, total - 1, int(blocks)).round().astype(np.int64))
    try:
        numbers = np.unique(np.array([_whole(b) for b in blocks], np.int64))
    except TypeError:
        raise TypeError(f"blocks is {blocks!r}; it must be an int or a sequence of ints") from None
    if not numbers.size or numbers[0] < 0 or numbers[-1] >= total:
        raise ValueError(f"blocks is {blocks!r}; it must name blocks from 0 to {total - 1}")
    return numbers


def _whole(value):
    if not isinstance(value, Integral):
        raise TypeError
    return int(value)


class _progress:
    """Shows how far a long trace is, on a terminal or in a notebook, and wipes it out at the end."""

    WIDTH = 30

    def __init__(self, name):
        self.name = name
        self.shown = False

    def __enter__(self):
        self.start = time.perf_counter()
        return self.show if sys.stderr.isatty() or "ipykernel" in sys.modules else None

    def show(self, share):
        if time.perf_counter() - self.start > PATIENCE and share < 1:
            self.shown = True
            bar = "█" * math.floor(share * self.WIDTH)
            sys.stderr.write(f"\rtracing {self.name} {bar:·<{self.WIDTH}} {share:4.0%}")
            sys.stderr.flush()

    def __exit__(self, *exception):
        if self.shown:
            sys.stderr.write("\r" + " " * (len(self.name) + self.WIDTH + 16) + "\r")
            sys.stderr.flush()
