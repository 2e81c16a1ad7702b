"""Launch checks that name the limit, and two exceptions for device errors (source row A7).

``check_launch`` checks a launch before it is made. ``checked`` watches the launches of a block of code, waits for them,
and raises ``LaunchError`` or ``KernelError``, on a GPU and on the emulator alike.
"""

import functools
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import warpstep
from gpukit._numba import FOLDER, function_of, launch_configuration_class, numba_driver
from gpukit.backend import cuda, on_gpu
from warpstep import KernelError, LaunchError
from warpstep.checks import as_dim3, check_cooperative, check_limits, format_dim3
from warpstep.launch import Configured, Kernel
from warpstep.machine.batch import short_path
from warpstep.values import check_int, describe, has_attributes

__all__ = ["KernelError", "Launch", "LaunchError", "check_launch", "checked"]

PACKAGE = str(Path(__file__).resolve().parent)
#: Frames of these files stand between a launch and the line that makes it.
INSIDE = (__file__, str(Path(warpstep.__file__).parent), FOLDER, "<frozen")
#: Launches that a message lists.
MAX_LISTED = 6


# -- before a launch -------------------------------------------------------------------------------


def check_launch(kernel: Any, grid: int | tuple[int, ...], block: int | tuple[int, ...], shared_bytes: int = 0) -> None:
    """Raise LaunchError if the device in use could not launch this (A7). Nothing is launched or compiled.

    Always checked: the dimensions of grid and block, threads per block, the kernel's ``launch_bounds``, and dynamic
    shared memory. Of a kernel that has been compiled also its static shared memory, the blocks of a cooperative launch,
    and on a GPU its registers, which the emulator does not know. A kernel compiled for several argument types passes if
    one of them could be launched.

    Parameters
    ----------
    kernel : a kernel made by ``cuda.jit``
    grid, block : int or tuple of 1 to 3 int
    shared_bytes : int
        Dynamic shared memory of each block.

    Raises
    ------
    LaunchError
        Names the limit, the value asked for and a way out.
    TypeError, ValueError
        For an argument of another kind.

    Examples
    --------
    >>> @cuda.jit
    ... def fill(x):
    ...     x[cuda.grid(1)] = 1
    >>> check_launch(fill, 1, (64, 64))  # doctest: +ELLIPSIS +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    LaunchError: fill: 4096 threads per block (64 x 64 x 1) asked for; ...
    """
    if not has_attributes(kernel, "py_func", "targetoptions") or kernel.targetoptions.get("device"):
        raise TypeError(f"kernel is {describe(kernel)}; it must be a kernel made by cuda.jit")
    grid, block = as_dim3("grid", grid, positive=False), as_dim3("block", block, positive=False)
    _check(kernel, grid, block, check_int("shared_bytes", shared_bytes, 0), list(kernel.overloads.values()))


class _Compiled(NamedTuple):
    """Those properties of a compiled kernel that limit its launches."""

    static_shared: int = 0
    allowed_shared: int = 0  # dynamic shared memory that it has opted in to
    registers: int = 0  # of a thread; 0 if unknown
    max_threads: int = 0  # of a block, with so many registers
    cooperative_blocks: int | None = None  # that run at once; None if it has no grid barrier


def _check(kernel, grid, block, shared_bytes, overloads):
    """LaunchError if no kernel could be launched so, or none of the compiled overloads."""
    read = _read_emulated if isinstance(kernel, Kernel) else _read_on_gpu
    limits = None if isinstance(kernel, Kernel) else _gpu_limits()
    allowed: int = getattr(kernel, "dynamic_shared", 0)
    _check_one(kernel, grid, block, shared_bytes, _Compiled(allowed_shared=allowed), limits)
    refused = []
    for overload in overloads:
        compiled = read(overload, block, shared_bytes, allowed)
        if limits is not None and compiled.static_shared > limits.max_shared_memory_per_block:
            # Some versions of the compiler allow more static shared memory than the device reports.
            limits = SimpleNamespace(**vars(limits) | {"max_shared_memory_per_block": compiled.static_shared})
        try:
            _check_one(kernel, grid, block, shared_bytes, compiled, limits)
        except LaunchError as error:
            refused.append(error)
    if refused and len(refused) == len(overloads):
        raise refused[0]


def _check_one(kernel, grid, block, shared_bytes, compiled, limits):
    name = kernel.py_func.__name__
    bounds = kernel.targetoptions.get("launch_bounds")
    shared = {"static_shared": compiled.static_shared, "allowed_shared": compiled.allowed_shared}
    check_limits(name, grid, block, shared_bytes, launch_bounds=bounds, limits=limits, **shared)
    threads = prod(block)
    if compiled.registers and threads > compiled.max_threads:
        raise LaunchError(
            f"{name}: {threads} threads per block ({format_dim3(block)}) asked for, with {compiled.registers} "
            f"registers each, {threads * compiled.registers:,} in all; this device has "
            f"{limits.max_registers_per_block:,} for a block: use at most {compiled.max_threads} threads, or compile "
            "with max_registers="
            f"{limits.max_registers_per_block // threads // 8 * 8}"
        )
    if compiled.cooperative_blocks is not None:
        check_cooperative(name, prod(grid), compiled.cooperative_blocks)


def _read_emulated(overload, block, shared_bytes, allowed):
    program = overload.program
    blocks = overload.max_cooperative_grid_blocks(block, shared_bytes) if program.cooperative else None
    return _Compiled(program.static_bytes, allowed, cooperative_blocks=blocks)


def _read_on_gpu(overload, block, shared_bytes, allowed):
    """Ask the driver, which loads the kernel if it has never been launched."""
    from cuda.bindings.driver import CUfunction_attribute

    function = function_of(overload)
    attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    limit: Any = numba_driver().cuKernelGetAttribute(attribute, function.handle, function.device.id)
    if limit > function.device.MAX_SHARED_MEMORY_PER_BLOCK:  # it has opted in to more than the default
        allowed = limit
    blocks = overload.max_cooperative_grid_blocks(block, shared_bytes) if overload.cooperative else None
    attributes = function.attrs
    return _Compiled(attributes.shared, allowed, attributes.regs, attributes.maxthreads, blocks)


def _gpu_limits():
    """Limits of the current GPU, under the names of ``warpstep.device.Limits``."""
    device = cuda.get_current_device()
    return SimpleNamespace(
        compute_capability=device.compute_capability,
        max_grid_dim=tuple(getattr(device, f"MAX_GRID_DIM_{axis}") for axis in "XYZ"),
        max_block_dim=tuple(getattr(device, f"MAX_BLOCK_DIM_{axis}") for axis in "XYZ"),
        max_threads_per_block=device.MAX_THREADS_PER_BLOCK,
        max_shared_memory_per_block=device.MAX_SHARED_MEMORY_PER_BLOCK,
        max_shared_memory_per_block_optin=device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        max_registers_per_block=device.MAX_REGISTERS_PER_BLOCK,
    )


# -- the launch of an error -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """A launch that ``checked`` has seen.

    Attributes
    ----------
    kernel : str
    grid, block : tuple of 3 int
    shared_bytes : int
    filename : str
    line : int
        Where the launch is in the source.
    called_from : (str, int) or None
        File and line that called gpukit, if the launch is in gpukit itself.
    """

    kernel: str
    grid: tuple
    block: tuple
    shared_bytes: int
    filename: str
    line: int
    called_from: tuple | None = None

    def __str__(self):
        shared = f", {self.shared_bytes:,} bytes of dynamic shared memory" if self.shared_bytes else ""
        called = ""
        if self.called_from is not None:
            called = f", called from {short_path(self.called_from[0])}:{self.called_from[1]}"
        shape = f"grid {format_dim3(self.grid)}, block {format_dim3(self.block)}{shared}"
        return f"{self.kernel} launched at {short_path(self.filename)}:{self.line}{called} ({shape})"


def _launch_of(configuration):
    places = []
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(INSIDE):
            places.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    filename, line = places[0] if places else ("<unknown>", 0)
    called = None
    if filename.startswith(PACKAGE):
        called = next((p for p in places if not p[0].startswith(PACKAGE)), None)
    name = configuration.dispatcher.py_func.__name__
    return Launch(name, configuration.griddim, configuration.blockdim, configuration.sharedmem, filename, line, called)


def _with_launch(error, launch):
    """Add the launch to an error."""
    error.launch = launch
    error.args = (f"{error}\n  {launch}",)
    return error


# -- what the driver says --------------------------------------------------------------------------

#: The driver's errors that a kernel causes: their kind, and what happened. After each of them the context is lost.
KERNEL_ERRORS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "out-of-bounds",
        "a thread read or wrote where no memory is allocated: an index out of bounds, or an array that was freed",
    ),
    "CUDA_ERROR_MISALIGNED_ADDRESS": (
        "misaligned",
        "a thread accessed an address that is not a multiple of the size of the access",
    ),
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": (
        "out-of-bounds",
        "an instruction for one kind of memory got an address of another: an index out of bounds in shared or local "
        "memory",
    ),
    "CUDA_ERROR_LAUNCH_TIMEOUT": (
        "no-progress",
        "the kernel ran longer than a GPU that also drives a display allows: an endless loop, or too much work at once",
    ),
    "CUDA_ERROR_ASSERT": ("trap", "an assertion in the kernel failed"),
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": ("trap", "a thread came to an instruction that stops the kernel"),
    "CUDA_ERROR_HARDWARE_STACK_ERROR": ("failure", "the stack of a thread overflowed or was overwritten"),
    "CUDA_ERROR_INVALID_PC": ("failure", "a thread jumped to an address that holds no instructions"),
    "CUDA_ERROR_LAUNCH_FAILED": (
        "failure",
        "the device stopped the kernel; the usual reasons are a trap, and an index out of bounds in shared memory",
    ),
}

#: The errors with which the driver refuses a launch.
LAUNCH_ERRORS = (
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_INVALID_CONFIGURATION",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
)

#: The linker's message for a kernel whose static shared memory does not fit.
STATIC_SHARED = re.compile(r"uses too much shared data \((0x[0-9a-f]+|\d+) bytes")

STICKY = (
    "The error is sticky: the CUDA context is lost, every further call fails, and this process must end (in a "
    "notebook: restart the kernel)."
)


def driver_error(error) -> str | None:
    """The driver's name of an error that numba-cuda or cuda.core raised; None for other exceptions."""
    module = type(error).__module__
    if module.startswith("numba.cuda"):
        return getattr(getattr(error, "code", None), "name", None)
    found = re.match(r"CUDA_ERROR_\w+", str(error)) if module.startswith("cuda.") else None
    return found and found[0]


def _kernel_error(error, launches):
    """KernelError for a driver error that one of these launches caused; None for other exceptions."""
    code = driver_error(error)
    if code not in KERNEL_ERRORS:
        return None
    kind, what = KERNEL_ERRORS[code]
    launch = launches[0] if len(launches) == 1 else None
    lines = [f"{what} ({code})", *_candidates(launches), STICKY]
    if kind != "no-progress":
        call = f"{launch.kernel}[grid, block]" if launch else "kernel[grid, block]"
        lines.append(f"For line, block and thread: gpukit.replay({call}, ...), with the same arguments.")
    place = {"line": launch.line, "filename": launch.filename} if launch else {"line": None, "filename": None}
    found = KernelError("\n".join(lines), kind=kind, **place)
    found.launch, found.sticky = launch, True
    return found


def _candidates(launches):
    if not launches:
        return ["  in a kernel that was launched outside of checked(), or by another library"]
    if len(launches) == 1:
        return [f"  {launches[0]}"]
    listed = [f"  {launch}" for launch in launches[-MAX_LISTED:]]
    more = [f"  and {len(launches) - MAX_LISTED} before"] if len(launches) > MAX_LISTED else []
    return ["in one of these launches; checked(every_launch=True) says in which:", *listed, *more]


def _launch_error(error, configuration, args, launch):
    """LaunchError for a refused launch on a GPU; None for other exceptions."""
    kernel = configuration.dispatcher
    shape = configuration.griddim, configuration.blockdim, configuration.sharedmem
    too_large = STATIC_SHARED.search(str(error))
    try:
        if too_large:
            _check_one(kernel, *shape, _Compiled(static_shared=int(too_large[1], 0)), _gpu_limits())
        else:
            compiled = kernel.overloads.get(tuple(kernel.typeof_pyval(a) for a in args))
            _check(kernel, *shape, list(kernel.overloads.values()) if compiled is None else [compiled])
    except LaunchError as refused:
        return _with_launch(refused, launch)
    except Exception:
        return None  # the kernel cannot be loaded, which ``error`` says already
    code = driver_error(error)
    if code not in LAUNCH_ERRORS or type(error).__module__.startswith("numba.cuda"):
        return None
    return _with_launch(LaunchError(f"{launch.kernel}: the driver refused the launch ({code})"), launch)


# -- watching launches -----------------------------------------------------------------------------


@contextmanager
def checked(*, every_launch: bool = False) -> Iterator[None]:
    """Watch the launches of a block of code, wait for them at its end, and raise their errors (A7).

    On a GPU a launch returns before the kernel runs, so its error comes up later: in the next call that waits, in the
    driver's words. Inside of ``with errors.checked():`` errors of numba.cuda and of the driver become LaunchError and
    KernelError. They name the launch's file and line, the limit and the value where known, and what to do. On the
    emulator errors have these classes anyway and are raised at once; here they name their launch too.

    Other exceptions pass through: out of memory, wrong arguments, those of a kernel compiled with ``debug=True``, those
    of your own code.

    Parameters
    ----------
    every_launch : bool
        Wait after each launch, so that an error belongs to one launch. Slow, for debugging.

    Raises
    ------
    LaunchError
        A launch was refused, as by ``check_launch``. Nothing was launched, and the device still works.
    KernelError
        A kernel failed. ``launch`` is its launch, or None if it may be one of several. If ``sticky`` is true, the CUDA
        context is lost, and the process must end.

    Examples
    --------
    >>> @cuda.jit
    ... def fill(x):
    ...     x[cuda.grid(1)] = 1
    >>> with checked():
    ...     fill[8, 64](cuda.device_array(512))
    """
    region = _Region(every_launch)
    region.synchronize()  # an error from before is not the block's
    with _watching(region):
        try:
            yield
        except Exception as error:
            if not getattr(error, "sticky", False):
                found = _kernel_error(error, list(region.pending))
                if found is not None:
                    raise found from error
                region.synchronize()
            raise
        region.synchronize()


class _Region:
    """The launches of a ``checked`` block that may still be under way."""

    def __init__(self, every_launch):
        self.every_launch = every_launch
        self.pending = {}  # an ordered set: launches that look alike count once

    def synchronize(self):
        try:
            cuda.synchronize()
        except Exception as error:
            found = _kernel_error(error, list(self.pending))
            if found is None:
                raise
            raise found from error
        self.pending.clear()

    def launch(self, original, configuration, args):
        launch = _launch_of(configuration)
        try:
            original(configuration, *args)
        except (LaunchError, KernelError) as error:
            raise _with_launch(error, launch)  # noqa: B904 - it is the same error
        except Exception as error:
            found = self.explain(error, configuration, args, launch)
            if found is None:
                raise
            raise found from error
        if not isinstance(configuration, Configured):
            self.pending[launch] = None
            if self.every_launch:
                self.synchronize()

    def explain(self, error, configuration, args, launch):
        """The error behind an exception of a launch: of an earlier one, of this one, or neither (None)."""
        if isinstance(configuration, Configured):
            return None
        if driver_error(error) in KERNEL_ERRORS:
            # cuda.core fails before the launch; numba.cuda also after it, when it copies host arrays back.
            launches = self.pending if type(error).__module__.startswith("cuda.") else {**self.pending, launch: None}
            return _kernel_error(error, list(launches))
        return _launch_error(error, configuration, args, launch)


_region = ContextVar("region", default=None)
#: ``__call__`` of the patched classes, and how many ``checked`` blocks need the patch.
_originals = {}
_users = 0
_lock = threading.Lock()


@contextmanager
def _watching(region):
    """Pass all launches of this thread through the region."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for launcher in _launchers():
                _originals[launcher] = launcher.__call__
                launcher.__call__ = _watched(launcher.__call__)
    token = _region.set(region)
    try:
        yield
    finally:
        _region.reset(token)
        with _lock:
            _users -= 1
            if _users == 0:
                for launcher, original in _originals.items():
                    launcher.__call__ = original
                _originals.clear()


def _launchers() -> tuple[Any, ...]:
    """The classes whose instances are ``kernel[grid, block]``."""
    if not on_gpu():
        return (Configured,)
    return Configured, launch_configuration_class()


def _watched(original):
    @functools.wraps(original)
    def call(configuration, *args):
        region = _region.get()
        if region is None:
            original(configuration, *args)
        else:
            region.launch(original, configuration, args)

    return call
