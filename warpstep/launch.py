"""``cuda.jit`` for the emulator: kernels, launches, and the limits that a real device would enforce.

A launch runs the grid in batches of consecutive blocks, so memory stays bounded whatever the grid's size.
"""

import functools
import inspect
import linecache
import math
import os
import sys
import traceback
import weakref
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from warpstep import device, hooks, native
from warpstep._numba import (
    JIT_OPTIONS,
    MAX_CONFIGURATION,
    NUMBA_ERRORS,
    annotated_signature,
    signature,
    sigutils,
    typeof_impl,
    types,
    unliteral,
)
from warpstep.api.context import get_current_device
from warpstep.api.streams import check_stream, device_of
from warpstep.arguments import Remote, Transfers, follow_writes, type_of
from warpstep.checks import as_dim3, check_cluster, check_cooperative, check_limits, check_optin
from warpstep.compiler.frontend import (
    callee_type,
    compiling,
    infer,
    typing_context,
)
from warpstep.compiler.translate import lower
from warpstep.errors import KernelError, UnsupportedError
from warpstep.inspection import InspectedKernel, InspectedOverload
from warpstep.integers import ceil_div
from warpstep.machine import pes
from warpstep.machine.batch import Batch, short_path
from warpstep.machine.progress import Switch
from warpstep.machine.turns import Turns
from warpstep.stack import with_room
from warpstep.values import check_int, describe, has_attributes

#: Lanes of a batch: enough to amortise NumPy's cost per call, few enough that values stay in the CPU's cache.
BATCH_LANES = 1 << 15
#: Bytes that the shared and local arrays of a batch may take.
BATCH_BYTES = 256 << 20
#: Threads per block that forall picks, where the driver would ask the compiled kernel.
FORALL_THREADS = 256


def _loop_limit_from(setting):
    try:
        return check_int("GPUKIT_LOOP_LIMIT", int(setting), 1)
    except ValueError:
        raise ImportError(f"GPUKIT_LOOP_LIMIT is {describe(setting)}; it must be an int, 1 or more, or unset") from None


_loop_limit = _loop_limit_from(os.environ.get("GPUKIT_LOOP_LIMIT") or 50_000_000)


def set_loop_limit(turns: int) -> int:
    """Set how many turns the loops of a launch may take, in one batch of blocks, before it is stopped as endless.

    As machine code, each thread may take ten times as many. The environment variable ``GPUKIT_LOOP_LIMIT`` sets the
    limit too. Returns the limit before. Raises ValueError or TypeError
    unless ``turns`` is a positive integer.

    Examples
    --------
    >>> before = set_loop_limit(1000)
    >>> set_loop_limit(before)
    1000
    """
    global _loop_limit
    before, _loop_limit = _loop_limit, check_int("turns", turns, 1)
    return before


# -- kernels -----------------------------------------------------------------------------------------------------------


class Kernel(InspectedKernel):
    """What the emulator's ``cuda.jit`` returns: launch it with ``kernel[grid, block](...)``, or call it from a kernel
    if it is a device function.

    Attributes
    ----------
    py_func : function
    targetoptions : dict
    overloads : dict
        {argument types: Overload} compiled so far.
    dynamic_shared : int
        Bytes of dynamic shared memory that a launch may have although the limit for any kernel is less; 0 until
        ``allow_dynamic_shared`` is called.
    cluster : int
        Blocks of a cluster along x.
    """

    def __init__(self, py_func: Callable, options: dict | None = None, signatures=None, specialized: bool = False):
        py_func = getattr(py_func, "py_func", py_func)  # of a function that numba.jit has compiled for the CPU
        if not inspect.isfunction(py_func):
            raise TypeError(f"jit takes a Python function; this is {describe(py_func)}")
        self.py_func = py_func
        self.targetoptions = {
            "device": False,
            "debug": False,
            "inline": "never",
            "launch_bounds": None,
            "extensions": [],
            **(options or {}),
        }
        functools.update_wrapper(self, py_func)
        self.overloads: dict[Any, Overload] = {}
        self.specialized = specialized
        self.specializations = {}
        self.dynamic_shared = 0
        self.cluster = 1
        self._declared = None if signatures is None else dict(map(self._declare, signatures))

    def __repr__(self):
        kind = "device function" if self.targetoptions["device"] else "kernel"
        return f"<emulated {kind} {self.py_func.__qualname__}>"

    def __reduce__(self):
        return Kernel, (self.py_func, self.targetoptions, self._declared, self.specialized)

    # -- compiling -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(inspect.signature(self.py_func).parameters)

    @functools.cached_property
    def source(self) -> tuple[int, str]:
        """The number of its first line, and its lines; (0, "") if there is no source."""
        try:
            lines, first = inspect.getsourcelines(self.py_func)
        except (OSError, TypeError):
            return 0, ""
        return first, "".join(lines)

    @property
    def extensions(self) -> list:
        """What prepares the arguments of a launch."""
        return self.targetoptions["extensions"]

    @property
    def signatures(self) -> tuple:
        return tuple(self.overloads)

    @property
    def nopython_signatures(self) -> list:
        return [overload.signature for overload in self.overloads.values()]

    @property
    def max_threads_per_block(self) -> int:
        """Threads that a block may have, by ``launch_bounds`` or on the device."""
        bounds = self.targetoptions["launch_bounds"]
        most = bounds[0] if isinstance(bounds, tuple | list) else bounds
        return most or device.current().max_threads_per_block

    @property
    def infer_options(self) -> dict:
        """Keyword arguments of the front end for this kernel and what it calls."""
        return {"debug": bool(self.targetoptions["debug"]), "compute_capability": device.current().compute_capability}

    def _declare(self, declared):
        argument_types, return_type = sigutils.normalize_signature(declared)
        if not self.targetoptions["device"]:
            self.compile(declared)
        return argument_types, return_type

    @with_room
    def compile(self, signature) -> "Overload":
        """Lower the kernel for argument types (a signature in any form that Numba takes); returns the Overload."""
        argument_types, return_type = sigutils.normalize_signature(signature)
        if return_type not in (None, types.void):
            raise TypeError("CUDA kernel must have void return type.")
        if argument_types not in self.overloads:
            options = self.infer_options
            with compiling(**options):
                if argument_types not in self.overloads:  # another thread may have made it meanwhile
                    self.overloads[argument_types] = Overload(self, argument_types, options)
        return self.overloads[argument_types]

    def lower(self, argument_types, options, debugging=False):
        """Infer the types of the kernel and lower it; returns the program."""
        try:
            typed = infer(self, argument_types, types.void, **options)
        except (UnsupportedError, *NUMBA_ERRORS) as error:
            # The frames between here and the error are the compiler's, of no use to the author of the kernel.
            raise error.with_traceback(None) from None
        except RecursionError:
            name, limit = self.py_func.__name__, sys.getrecursionlimit()
            raise UnsupportedError(
                f"{name} has too many branches for numba-cuda's compiler, on a GPU too: it calls itself from branch to "
                f"branch, and sys.getrecursionlimit() is {limit}. Raise the limit with sys.setrecursionlimit(), or "
                "split the kernel; functions with inline=True add their branches to it"
            ) from None
        except Exception as error:
            error.add_note(f"numba-cuda could not infer the types of {self.py_func.__name__}{_line_of(error)}")
            raise error.with_traceback(None) from None
        return lower(typed, options, debugging)

    def specialize(self, *args) -> "Kernel":
        """Return the kernel that is compiled for the types of these arguments and accepts no others.

        RuntimeError if this is one.
        """
        if self.specialized:
            raise RuntimeError("Dispatcher already specialized")
        argument_types = tuple(type_of(a, str(i)) for i, a in enumerate(args))
        key = device.current().compute_capability, argument_types
        if key not in self.specializations:
            self.specializations[key] = Kernel(self.py_func, self.targetoptions, [argument_types], specialized=True)
        return self.specializations[key]

    # -- called from a kernel ------------------------------------------------------------------------------------------

    def declared_signatures(self) -> list | None:
        """The signatures with which a kernel can call the device function; None if it declares none."""
        if self._declared is None or not self.targetoptions["device"]:
            return None

        def result(argument_types, return_type):
            return return_type or infer(self, argument_types, **self.infer_options).return_type

        return [signature(result(*each), *each[0]) for each in self._declared.items()]

    def compile_device(self, args, return_type=None):
        """Compile a device function for a GPU; returns numba-cuda's result. UnsupportedError without its compiler."""
        with native.compiling_for(get_current_device()):
            return self.for_gpu.compile_device(tuple(args), return_type)

    @functools.cached_property
    def for_gpu(self):
        """numba-cuda's dispatcher, for callers that are compiled for a GPU."""
        return native.as_dispatcher(self.py_func, self.targetoptions)

    # -- launching -----------------------------------------------------------------------------------------------------

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= MAX_CONFIGURATION:
            raise ValueError("must specify at least the griddim and blockdim")
        return self.configure(*configuration)

    def configure(self, griddim, blockdim, stream=0, sharedmem: int | None = 0, cluster=None) -> "Configured":
        """The kernel with a launch configuration, to be called with its arguments.

        ``cluster`` is an argument of numba-cuda-mlir; UnsupportedError unless all blocks of a cluster are along x.
        """
        blocks, *others = (self.cluster, 1, 1) if cluster is None else as_dim3("cluster", cluster)
        if math.prod(others) != 1:
            raise UnsupportedError(f"cluster is {cluster}: the emulator has clusters of blocks along x only")
        stream, sharedmem = stream or 0, 0 if sharedmem is None else sharedmem
        return Configured(self, griddim, blockdim, stream, sharedmem, blocks)

    def forall(self, ntasks: int, tpb: int = 0, stream=0, sharedmem: int = 0) -> Callable[..., None]:
        """A 1-D launch of at least ``ntasks`` threads."""
        if isinstance(ntasks, Integral) and ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {describe(ntasks)}")
        ntasks = check_int("ntasks", ntasks, 0)
        threads = check_int("tpb", tpb, 0) or min(FORALL_THREADS, self.max_threads_per_block)

        def run(*args):
            if ntasks:
                self[ceil_div(ntasks, threads), threads, stream, sharedmem](*args)

        return run

    def __call__(self, *args):
        if self.targetoptions["device"]:
            raise TypeError(f"{self.py_func.__name__} is a device function: it can be called from a kernel only")
        raise ValueError(
            f"Kernel launch configuration was not specified. Use {self.py_func.__name__}[blocks per grid, threads "
            "per block](...) to launch it"
        )

    def allow_dynamic_shared(self, nbytes: int) -> None:
        """Let launches have up to ``nbytes`` of dynamic shared memory; an allowance made before is never lowered.

        LaunchError if the device does not allow so much with the static shared memory of an overload.
        """
        static = max((overload.static_shared for overload in self.overloads.values()), default=0)
        check_optin(self.py_func.__name__, static, nbytes, device.current().max_shared_memory_per_block_optin)
        self.dynamic_shared = max(self.dynamic_shared, nbytes)

    def select(self, argument_types: tuple) -> "Overload":
        """The overload for these argument types: compiled now if the kernel declares no signatures."""
        if self._declared is None:
            found = self.overloads.get(argument_types)
            if found is not None and found.compute_capability > device.current().compute_capability:
                del self.overloads[argument_types]  # an older device may lack what it uses
                found = None
            return found or self.compile(argument_types)
        fitting = [next(iter(self._declared))] if self.specialized else _best_matches(self._declared, argument_types)
        if len(fitting) > 1:
            candidates = "".join(f"\n{declared} -> none" for declared in fitting)
            raise TypeError(f"Ambiguous overloading for {self.py_func} {tuple(argument_types)}:{candidates}")
        if not fitting or len(fitting[0]) != len(argument_types):
            declared = ", ".join(str(s) for s in self._declared)
            raise TypeError(
                f"No matching definition for argument type(s) {', '.join(map(str, argument_types))}; declared: "
                f"{declared}"
            )
        return self.overloads[fitting[0]]


def _line_of(error):
    """Describe the line of the source at which the compiler failed, from what its frames hold; "" if none has one."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        place: Any = getattr(frame.f_locals.get("self"), "loc", None)
        if getattr(place, "line", None):
            code = linecache.getline(place.filename, place.line).strip()
            return f"\n  {short_path(place.filename)}:{place.line}" + (f"\n    {code}" if code else "")
    return ""


_emulated = weakref.WeakKeyDictionary()


def emulated_kernel(dispatcher) -> Kernel:
    """The emulator's kernel for one that ``numba.cuda.jit`` made."""
    if dispatcher not in _emulated:
        known = ("device", "debug", "inline", "launch_bounds", "extensions")
        options = {name: dispatcher.targetoptions[name] for name in known if name in dispatcher.targetoptions}
        declared = None if dispatcher._can_compile else [tuple(s) for s in dispatcher.signatures]
        _emulated[dispatcher] = Kernel(dispatcher.py_func, options, declared, dispatcher.specialized)
    # Set by gpukit.intrinsics on a kernel of numba.cuda.
    _emulated[dispatcher].dynamic_shared = getattr(dispatcher, "dynamic_shared", 0)
    _emulated[dispatcher].cluster = getattr(dispatcher, "cluster", 1)
    return _emulated[dispatcher]


@typeof_impl.register(Kernel)
def _typeof_kernel(value, context):
    return types.Dispatcher(value.for_gpu) if native.is_compiling() else callee_type(value)


class Overload(InspectedOverload):
    """A kernel lowered for given argument types."""

    def __init__(self, kernel: Kernel, argument_types: tuple, options: dict):
        super().__init__()
        self.kernel = kernel
        self.argument_types = argument_types
        self.program = kernel.lower(argument_types, options)
        self._options = options

    @property
    def compute_capability(self) -> tuple:
        """That of the device for which it was compiled; later devices run it too."""
        return self._options["compute_capability"]

    @functools.cached_property
    def debugged(self):
        """The program that tells a debugger of every line and every variable."""
        with compiling(**self._options):
            return self.kernel.lower(self.argument_types, self._options, debugging=True)

    @functools.cached_property
    def threadwise(self):
        """What runs the kernel as machine code, thread after thread; None where there is no LLVM."""
        try:
            from warpstep.threadwise.runner import Threadwise
        except ImportError:
            return None
        return Threadwise(self.program)

    @property
    def static_shared(self) -> int:
        """Bytes of static shared memory of a block."""
        return self.program.static_bytes

    def max_cooperative_grid_blocks(self, blockdim: int | tuple, dynsmemsize: int = 0) -> int:
        """Blocks that the emulated device can hold at once, for a launch that synchronises the whole grid."""
        return self.blocks_per_multiprocessor(blockdim, dynsmemsize) * device.current().multiprocessor_count

    def blocks_per_multiprocessor(self, blockdim: int | tuple, dynsmemsize: int = 0) -> int:
        """Blocks that a multiprocessor of the emulated device can hold at once, registers aside."""
        threads = math.prod(blockdim) if isinstance(blockdim, tuple) else blockdim
        limits, shared = device.current(), self.static_shared + dynsmemsize
        return min(device.resident_blocks(limits, ceil_div(threads, limits.warp_size), shared).values())


def _best_matches(signatures, argument_types):
    """The declared argument types that fit: exactly if possible, else by conversions that Numba allows.

    As in Numba the fewest unsafe conversions decide, then the fewest safe ones, then the fewest promotions. Several are
    ambiguous.
    """
    argument_types = tuple(argument_types)
    if argument_types in signatures:
        return [argument_types]
    context = typing_context()
    fitting = []
    for declared in signatures:
        if len(declared) != len(argument_types):
            continue
        kinds = [context.can_convert(unliteral(a), d) for a, d in zip(argument_types, declared, strict=True)]
        if all(k is not None for k in kinds):
            fitting.append((sorted(kinds, reverse=True), declared))
    return [declared for kinds, declared in fitting if kinds == min(found for found, _ in fitting)]


class Configured:
    """``kernel[grid, block, stream, shared_bytes]``: call it with the kernel's arguments to launch it."""

    def __init__(self, kernel: Kernel, griddim, blockdim, stream, sharedmem: int, cluster: int):
        if kernel.targetoptions["device"]:
            raise TypeError(f"{kernel.py_func.__name__} is a device function: it cannot be launched")
        self.dispatcher = kernel
        self.griddim = as_dim3("griddim", griddim, positive=False)
        self.blockdim = as_dim3("blockdim", blockdim, positive=False)
        check_stream(stream)
        self.stream = stream
        self.sharedmem = check_int("sharedmem", sharedmem, 0)
        self.cluster = cluster

    def __call__(self, *args) -> None:
        try:
            launch(self, args)
        except (KernelError, UnsupportedError, *NUMBA_ERRORS) as error:
            # The message names the line of the kernel; the frames between are the emulator's own.
            raise error.with_traceback(None)  # noqa: B904


def configuration(launch) -> Configured:
    """``kernel[grid, block]`` on the emulator, for one of the emulator or of ``numba.cuda``; TypeError for others."""
    if isinstance(launch, Configured):
        return launch
    dispatcher = launch.dispatcher if has_attributes(launch, "dispatcher", "griddim", "blockdim") else None
    if not has_attributes(dispatcher, "py_func"):
        hint = "; write kernel[grid, block] as the first argument" if callable(launch) else ""
        raise TypeError(
            f"launch is {describe(launch)}; it must be a kernel with its grid and block, kernel[grid, block]{hint}"
        )
    return emulated_kernel(dispatcher)[launch.griddim, launch.blockdim, 0, launch.sharedmem]


# -- launches ----------------------------------------------------------------------------------------------------------


class Launch:
    """One launch in progress: what its batches share."""

    def __init__(self, program, grid: tuple, block: tuple, dynamic_shared: int, cluster: int = 1):
        self.program = program
        self.grid = grid
        self.block = block
        self.threads = math.prod(block)
        self.blocks = math.prod(grid)
        self.dynamic_shared = dynamic_shared
        #: Blocks of a cluster along x: they are in the same batch.
        self.cluster = cluster
        self.loop_limit = self.turns_allowed = _loop_limit
        self.user_error = None
        #: The number of the device that runs it, and the arrays of other devices.
        self.device = device.number()
        self.remote: list[Remote] = []
        #: True if it may not access one of them.
        self.has_denied = False
        #: How often lanes had to wait until others change memory.
        self.waits = 0
        #: Called once a loop of a trace has taken many turns.
        self.rehearse: Callable[[], None] | None = None
        #: The processing element that makes the launch.
        self.element: Any = pes.current()
        #: Makes the machine for some blocks; the debugger has its own.
        self.make_batch: Callable[[Launch, np.ndarray], Batch] = Batch
        self.turns: Turns = None  # type: ignore[assignment] (while it runs)
        self._addresses, self.dynamic_address = program.shared_addresses

    def shared_address(self, key) -> int:
        """Byte offset of a static shared array in the block's shared memory."""
        return self._addresses[key]

    def reach(self, name, allocation):
        """Note that the kernel reaches memory of another processing element."""
        first, end = allocation.address, allocation.address + allocation.nbytes
        array = Remote(name, self.element.number, allocation.device, True, first, end)
        if array not in self.remote:
            self.remote.append(array)

    @property
    def resident_blocks(self) -> int:
        """Blocks that the emulated device can hold at once, registers aside."""
        limits = device.current()
        shared = self.program.static_bytes + self.dynamic_shared
        each = device.resident_blocks(limits, ceil_div(self.threads, limits.warp_size), shared)
        return min(each.values()) * limits.multiprocessor_count

    def blocks_per_batch(self) -> int:
        per_block = self.program.static_bytes + self.dynamic_shared + self.program.local_bytes * self.threads
        by_memory = BATCH_BYTES // per_block if per_block else self.blocks
        blocks = max(1, min(self.blocks, BATCH_LANES // self.threads, by_memory))
        if blocks > device.current().multiprocessor_count:
            blocks = min(blocks, self.resident_blocks)
        return max(blocks // self.cluster, 1) * self.cluster

    def run_batch(self, batch: Batch, arguments: list) -> None:
        try:
            run = self.program.traced_run() if batch.traced else self.program.run
            run(batch, None, *arguments)
            batch.end()
        except (KernelError, MemoryError, BdbQuit, Switch):
            raise
        except Exception as error:
            place = self.program.place_of(error)
            where = f"\n  {place[0]}:{place[1]}" if place else ""
            if isinstance(error, UnsupportedError):
                raise UnsupportedError(str(error) + ("" if "\n" in str(error) else where)) from None
            reason = f"{self.program.name}: the emulator does not know how to do this ({type(error).__name__}: {error})"
            raise UnsupportedError(reason + where) from error

    def run(self, arguments: list, threadwise=None, wanted: np.ndarray | None = None) -> None:
        """Run all blocks in lockstep, or those at the positions ``wanted``.

        With ``threadwise``, they run as machine code from where that is worth it.
        """
        with np.errstate(all="ignore"), Turns(self, arguments, wanted) as self.turns:
            while (ids := self.turns.next_ids()) is not None:
                if threadwise is not None and threadwise.is_worth(self, arguments, self.blocks - int(ids[0])):
                    if threadwise.run(self, arguments, int(ids[0])):
                        break
                    threadwise = None
                if not self._run_lockstep(ids, arguments, threadwise):
                    break
        self.finish()

    def _run_lockstep(self, ids, arguments, threadwise):
        """Run a batch; False if its loops were so long that it and all blocks after it have run as machine code."""
        batch = self.make_batch(self, ids)
        if threadwise is None:
            self.turns.run(batch)
            return True
        saved = threadwise.before_switch(batch, arguments)
        try:
            self.turns.run(batch)
        except Switch:
            saved.restore()
            if threadwise.run(self, arguments, int(ids[0])):
                return False
            self.turns.run(self.make_batch(self, ids))
        threadwise.spent(batch)
        return True

    def finish(self) -> None:
        """After the last batch: raise what the kernel raised."""
        if self.user_error is not None:
            raise self.user_error


class Prepared(NamedTuple):
    """A launch that is ready to run, with its arguments as the program takes them."""

    run: Launch
    overload: Overload
    arguments: list
    transfers: Transfers


def prepare(configured: "Configured", args: Sequence, borrow: bool = False) -> Prepared:
    """Check a launch and lower its arguments: host arrays are copied to the device.

    ``borrow``: large ones that the kernel does not write are read where they are.
    """
    kernel, shared = configured.dispatcher, configured.sharedmem
    name = kernel.py_func.__name__
    grid, block = configured.griddim, configured.blockdim
    allowed = {"launch_bounds": kernel.targetoptions["launch_bounds"], "allowed_shared": kernel.dynamic_shared}
    check_limits(name, grid, block, shared, **allowed)
    check_cluster(name, grid, configured.cluster)
    parameters = kernel.parameters
    expected = len(parameters)
    if len(args) != expected:
        raise TypeError(f"{name} takes {expected} argument{'s' * (expected != 1)}, not {len(args)}")
    transfers = Transfers()
    argument_types = tuple(type_of(a, p) for a, p in zip(args, parameters, strict=True))
    values = list(args)
    for extension in reversed(kernel.extensions or []):
        for i, (type_, value) in enumerate(zip(argument_types, values, strict=True)):
            prepared = extension.prepare_args(type_, value, stream=configured.stream, retr=transfers.copy_back)
            values[i] = prepared[1]
    overload = kernel.select(argument_types)
    check_limits(name, grid, block, shared, overload.static_shared, **allowed)
    run = Launch(overload.program, grid, block, shared, configured.cluster)
    if run.program.cooperative:
        check_cooperative(name, run.blocks, overload.max_cooperative_grid_blocks(block, shared))
    if borrow and not run.program.breakpoints:
        transfers.borrow(values, parameters, run.program.written)
    lowered = [transfers.lower(*each) for each in zip(values, overload.argument_types, parameters, strict=True)]
    if configured.stream:  # a kernel runs on the device of its stream, which need not be the current one
        run.device = device_of(configured.stream)
    if device.count() > 1:
        run.remote = transfers.remote(run.device)
        if run.element is not None:
            run.remote = [run.element.world.open(array) for array in run.remote]
        run.has_denied = any(not array.allowed for array in run.remote)
    return Prepared(run, overload, lowered, transfers)


def launch(configured: "Configured", args: Sequence) -> None:
    """Run a kernel over a grid.

    Host arrays are copied to the device first and back at the end, and only if all went well.
    """
    prepared = prepare(configured, args, borrow=True)
    threadwise = None if prepared.run.has_denied else prepared.overload.threadwise
    if prepared.run.program.breakpoints:
        prepared, threadwise = hooks.attach(prepared), None
    complete(prepared, args, threadwise)


def complete(prepared: Prepared, args: Sequence, threadwise=None) -> None:
    """Run a launch that has been prepared with these arguments; see `launch`."""
    notes = [follow_writes(args[i], prepared.arguments[i]) for i in prepared.run.program.written]
    prepared.run.run(prepared.arguments, threadwise)
    for finish in (*notes, *prepared.transfers.copy_back):
        if finish is not None:
            finish()


# -- the decorator -----------------------------------------------------------------------------------------------------


def jit(func_or_sig=None, **options):
    """``cuda.jit`` on the emulator, with numba.cuda's arguments.

    Parameters
    ----------
    func_or_sig : function, signature or list of signatures, optional
    **options
        As for ``numba.cuda.jit``. ``device``, ``debug``, ``launch_bounds`` and ``extensions`` have their meaning here;
        those that steer the GPU's compiler (``fastmath``, ``max_registers``, ``lto`` ...) are accepted and change
        nothing.

    Raises
    ------
    TypeError
        For an option that numba.cuda.jit does not have.
    NotImplementedError
        For ``link`` (CUDA C++ or PTX cannot be emulated) and ``boundscheck``.
    """
    unknown = sorted(set(options) - JIT_OPTIONS)
    if unknown:
        raise TypeError(f"cuda.jit has no option {unknown[0]!r}; it takes {', '.join(sorted(JIT_OPTIONS))}")
    if options.get("boundscheck"):
        raise NotImplementedError("bounds checking is not supported for CUDA")
    if options.get("link"):
        raise UnsupportedError("link= brings in code in another language, which the emulator cannot run")
    bounds = options.get("launch_bounds")
    if isinstance(bounds, tuple | list) and len(bounds) > 3:
        raise ValueError(
            f"Got {len(bounds)} launch bounds: {bounds}; there are three: most threads of a block, fewest blocks of a "
            "multiprocessor, most blocks of a cluster"
        )
    if isinstance(options.get("inline"), bool):
        options["inline"] = "always" if options["inline"] else "never"
    if sigutils.is_signature(func_or_sig):
        return lambda function: Kernel(function, options, [func_or_sig], specialized=True)
    if isinstance(func_or_sig, list):
        return lambda function: Kernel(function, options, func_or_sig)
    if func_or_sig is None:
        return lambda function: _without_signature(function, options)
    if isinstance(func_or_sig, Kernel):
        return func_or_sig
    return _without_signature(func_or_sig, options)


def _without_signature(function, options):
    annotated = annotated_signature(function) if options.get("annotations_as_signatures", True) else None
    return Kernel(function, options) if annotated is None else Kernel(function, options, [annotated], specialized=True)
