"""``cuda.jit`` for the emulator: kernels, launches, and the limits that a real device would enforce.

A launch runs the grid in batches of consecutive blocks, so memory stays bounded whatever the grid's size.
"""

import functools
import inspect
import math
import os
from typing import NamedTuple

import numpy as np

from warpstep import device
from warpstep._numba import (
    NUMBA_ERRORS,
    ArgHint,
    In,
    Out,
    Purpose,
    signature,
    sigutils,
    typeof,
    typeof_impl,
    types,
)
from warpstep.api.arrays import as_device_array, from_host
from warpstep.api.streams import check_stream
from warpstep.compiler.frontend import (
    call_template,
    compiling,
    fold_argument_types,
    infer,
    is_inferring,
    typing_context,
    unliteral,
)
from warpstep.compiler.translate import lower
from warpstep.compiler.values import dtype_of
from warpstep.errors import KernelError, LaunchError, UnsupportedError
from warpstep.machine.batch import Batch
from warpstep.machine.memory import RecordRef, View, global_view

#: Lanes of a batch: enough to amortise NumPy's cost per call, few enough that values stay in the CPU's cache.
BATCH_LANES = 1 << 15
#: Bytes that the shared and local arrays of a batch may take.
BATCH_BYTES = 256 << 20
#: Threads per block that forall picks, where the driver would ask the compiled kernel.
FORALL_THREADS = 256

_loop_limit = int(os.environ.get("GPUKIT_LOOP_LIMIT", 50_000_000))


def set_loop_limit(turns):
    """Set how many turns the loops of a launch may take, in one batch of blocks, before it is stopped as endless;
    returns the limit before.

    The environment variable ``GPUKIT_LOOP_LIMIT`` sets it too. Raises ValueError unless ``turns`` is a positive
    integer.
    """
    global _loop_limit
    if not isinstance(turns, int | np.integer) or turns < 1:
        raise ValueError(f"turns is {turns!r}; it must be a positive integer")
    before, _loop_limit = _loop_limit, int(turns)
    return before


# -- kernels -----------------------------------------------------------------------------------------------------------


class Kernel:
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
    """

    def __init__(self, py_func, options=None, signatures=None, specialized=False):
        if not inspect.isfunction(py_func):
            raise TypeError(f"jit takes a Python function; this is {py_func!r}")
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
        self.overloads = {}
        self.specialized = specialized
        self.dynamic_shared = 0
        self._declared = None
        if signatures is not None:
            self._declare(signatures)

    def __repr__(self):
        kind = "device function" if self.targetoptions["device"] else "kernel"
        return f"<emulated {kind} {self.py_func.__qualname__}>"

    def __reduce__(self):
        return Kernel, (self.py_func, self.targetoptions, self._declared, self.specialized)

    # -- compiling -----------------------------------------------------------------------------------------------------

    @property
    def extensions(self):
        """list : what prepares the arguments of a launch."""
        return self.targetoptions["extensions"]

    @property
    def signatures(self):
        return tuple(self.overloads)

    @property
    def _infer_options(self):
        return {"debug": bool(self.targetoptions["debug"]), "compute_capability": device.current().compute_capability}

    def _declare(self, signatures):
        self._declared = {}
        for declared in signatures:
            argument_types, return_type = sigutils.normalize_signature(declared)
            if self.targetoptions["device"]:
                self._declared[argument_types] = return_type
            elif return_type not in (None, types.void):
                raise TypeError("CUDA kernel must have void return type.")
            else:
                self._declared[argument_types] = types.void
                self.compile(argument_types)

    def compile(self, signature):
        """Lower the kernel for argument types (a signature in any form that Numba takes); returns the Overload."""
        argument_types, return_type = sigutils.normalize_signature(signature)
        if return_type not in (None, types.void):
            raise TypeError("CUDA kernel must have void return type.")
        if argument_types not in self.overloads:
            self.overloads[argument_types] = self._lower(argument_types)
        return self.overloads[argument_types]

    def _lower(self, argument_types):
        try:
            typed = infer(self, argument_types, types.void, **self._infer_options)
        except NUMBA_ERRORS as error:
            # The frames between here and the error are the compiler's, of no use to the author of the kernel.
            raise error.with_traceback(None) from None
        with compiling(**self._infer_options):
            return Overload(self, argument_types, lower(typed, self._infer_options))

    def specialize(self, *args):
        """A kernel that is compiled for the types of these arguments and accepts no others."""
        argument_types = tuple(_type_of(a, str(i)) for i, a in enumerate(args))
        kernel = Kernel(self.py_func, self.targetoptions, [argument_types])
        kernel.specialized = True
        return kernel

    # -- called from a kernel ------------------------------------------------------------------------------------------

    @property
    def is_compiling(self):
        """Numba's inference asks this to find a recursion."""
        return is_inferring(self.py_func)

    def fold_argument_types(self, args, kws):
        return fold_argument_types(self.py_func, args, kws)

    def get_call_template(self, args, kws):
        """Numba's inference asks this when a kernel calls the function."""
        declared = None
        if self._declared is not None and self.targetoptions["device"]:
            declared = self._declared_signature(self.fold_argument_types(args, kws)[1])
        return call_template(self, args, kws, declared)

    def _declared_signature(self, argument_types):
        chosen = _best_match(self._declared, argument_types)
        if chosen is None:
            return None
        return_type = self._declared[chosen]
        return signature(
            infer(self, chosen, **self._infer_options).return_type if return_type is None else return_type,
            *chosen,
        )

    # -- launching -----------------------------------------------------------------------------------------------------

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
            raise ValueError("must specify at least the griddim and blockdim")
        return self.configure(*configuration)

    def configure(self, griddim, blockdim, stream=0, sharedmem=0):
        """The kernel with a launch configuration, to be called with its arguments."""
        return Configured(self, griddim, blockdim, stream, sharedmem)

    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        """A 1-D launch of at least ``ntasks`` threads."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        threads = tpb or FORALL_THREADS

        def run(*args):
            if ntasks:
                self[-(-ntasks // threads), threads, stream, sharedmem](*args)

        return run

    def __call__(self, *args):
        if self.targetoptions["device"]:
            raise TypeError(f"{self.py_func.__name__} is a device function: it can be called from a kernel only")
        raise ValueError(
            f"Kernel launch configuration was not specified. Use {self.py_func.__name__}[blocks per grid, threads "
            "per block](...) to launch it"
        )

    def allow_dynamic_shared(self, nbytes):
        """Let launches have up to ``nbytes`` of dynamic shared memory; an allowance made before is never lowered.

        LaunchError if the device does not allow so much with the static shared memory of an overload.
        """
        static = max((sum(o.program.static_shared.values()) for o in self.overloads.values()), default=0)
        check_optin(self.py_func.__name__, static, nbytes, device.current().max_shared_memory_per_block_optin)
        self.dynamic_shared = max(self.dynamic_shared, nbytes)

    def select(self, argument_types):
        """The overload for these argument types: compiled now if the kernel declares no signatures."""
        if self._declared is None:
            return self.compile(tuple(argument_types))
        chosen = next(iter(self._declared)) if self.specialized else _best_match(self._declared, argument_types)
        if chosen is None or len(chosen) != len(argument_types):
            declared = ", ".join(str(s) for s in self._declared)
            raise TypeError(
                f"No matching definition for argument type(s) {', '.join(map(str, argument_types))}; declared: "
                f"{declared}"
            )
        return self.overloads[chosen]

    def _unknown(self, what):
        raise UnsupportedError(
            f"{what} of a kernel is made by the GPU's compiler; the emulator has none. Kernel.inspect_numpy() shows "
            "the program that it runs"
        )

    def inspect_numpy(self, signature=None):
        """The NumPy programs that stand for the kernel: {argument types: source}, or one source for a signature."""
        sources = {key: overload.program.source for key, overload in self.overloads.items()}
        return sources if signature is None else sources[sigutils.normalize_signature(signature)[0]]

    def inspect_asm(self, signature=None):
        self._unknown("the PTX")

    def inspect_llvm(self, signature=None):
        self._unknown("the LLVM IR")

    def inspect_sass(self, signature=None):
        self._unknown("the SASS")

    def get_regs_per_thread(self, signature=None):
        self._unknown("the number of registers")

    def get_shared_mem_per_block(self, signature=None):
        """Bytes of static shared memory, for one signature or {argument types: bytes}."""
        found = {key: sum(overload.program.static_shared.values()) for key, overload in self.overloads.items()}
        if signature is not None:
            return found[sigutils.normalize_signature(signature)[0]]
        return next(iter(found.values())) if self.specialized else found


@typeof_impl.register(Kernel)
def _typeof_kernel(value, context):
    return types.Dispatcher(value)


class Overload:
    """A kernel lowered for given argument types."""

    def __init__(self, kernel, argument_types, program):
        self.kernel = kernel
        self.argument_types = argument_types
        self.program = program

    def max_cooperative_grid_blocks(self, blockdim, dynsmemsize=0):
        """Blocks that the emulated device can hold at once, for a launch that synchronises the whole grid."""
        limits = device.current()
        threads = math.prod(blockdim) if isinstance(blockdim, tuple) else blockdim
        shared = sum(self.program.static_shared.values()) + dynsmemsize
        warps = -(-threads // limits.warp_size) * limits.warp_size
        per_sm = min(limits.max_threads_per_multiprocessor // warps, limits.max_blocks_per_multiprocessor)
        if shared:
            per_sm = min(per_sm, limits.max_shared_memory_per_multiprocessor // shared)
        return per_sm * limits.multiprocessor_count


def _best_match(signatures, argument_types):
    """The declared argument types that fit: exactly if possible, else by conversions that Numba allows."""
    argument_types = tuple(argument_types)
    if argument_types in signatures:
        return argument_types
    context = typing_context()
    fitting = []
    for declared in signatures:
        if len(declared) != len(argument_types):
            continue
        kinds = [context.can_convert(unliteral(a), d) for a, d in zip(argument_types, declared, strict=True)]
        if all(k is not None for k in kinds):
            fitting.append((sum(k.value if hasattr(k, "value") else int(k) for k in kinds), declared))
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else None


class Configured:
    """``kernel[grid, block, stream, shared_bytes]``: call it with the kernel's arguments to launch it."""

    def __init__(self, kernel, griddim, blockdim, stream, sharedmem):
        if kernel.targetoptions["device"]:
            raise TypeError(f"{kernel.py_func.__name__} is a device function: it cannot be launched")
        self.dispatcher = kernel
        self.griddim = _dimensions("grid", griddim)
        self.blockdim = _dimensions("block", blockdim)
        check_stream(stream)
        self.stream = stream
        self.sharedmem = _shared_bytes(sharedmem)

    def __call__(self, *args):
        kernel = self.dispatcher
        check_limits(
            kernel.py_func.__name__,
            self.griddim,
            self.blockdim,
            self.sharedmem,
            launch_bounds=kernel.targetoptions["launch_bounds"],
            allowed_shared=kernel.dynamic_shared,
        )
        launch(kernel, self.griddim, self.blockdim, self.sharedmem, args, self.stream)


def _dimensions(what, value):
    """(x, y, z) of a grid or block."""
    parts = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"{what}dim must be a sequence of 1, 2 or 3 integers, got {value!r}")
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in parts):
        raise TypeError(f"{what}dim must be a sequence of integers, got {value!r}")
    return (*(int(n) for n in parts), 1, 1)[:3]


def _shared_bytes(value):
    if not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"shared memory for a launch must be a number of bytes, 0 or more; got {value!r}")
    return int(value)


# -- limits ------------------------------------------------------------------------------------------------------------


def check_limits(name, grid, block, shared, static_shared=0, launch_bounds=None, allowed_shared=0, limits=None):
    """Raise LaunchError if a device could not launch this: the one emulated now, or one with the ``limits`` given.

    ``grid`` and ``block`` are (x, y, z), the rest bytes; ``allowed_shared`` is the kernel's ``dynamic_shared``.
    """
    limits = limits or device.current()
    which = f"compute capability {limits.compute_capability[0]}.{limits.compute_capability[1]}"
    for what, dimensions, allowed in (("grid", grid, limits.max_grid_dim), ("block", block, limits.max_block_dim)):
        for axis, asked, limit in zip("xyz", dimensions, allowed, strict=True):
            if asked < 1:
                raise LaunchError(
                    f"{name}: a {what} of {by(dimensions)} asked for, but {what} dimension {axis} must be at least 1. "
                    "Skip the launch where there is nothing to do"
                )
            if asked > limit:
                way = (
                    "use a grid-stride loop"
                    if what == "grid"
                    else "put more of the threads along x, or use more blocks"
                )
                raise LaunchError(
                    f"{name}: {what} dimension {axis} of {asked:,} asked for ({by(dimensions)}); {which} allows "
                    f"{limit:,}: {way}"
                )
    threads = math.prod(block)
    if threads > limits.max_threads_per_block:
        raise LaunchError(
            f"{name}: {threads} threads per block ({by(block)}) asked for; this device allows "
            f"{limits.max_threads_per_block}: "
            f"use a block of at most {_largest_block(block, limits.max_threads_per_block)}"
        )
    if launch_bounds is not None:
        most = launch_bounds[0] if isinstance(launch_bounds, tuple | list) else launch_bounds
        if threads > most:
            raise LaunchError(
                f"{name}: {threads} threads per block ({by(block)}) asked for; the kernel's launch_bounds allow {most}"
            )
    if static_shared + shared > limits.max_shared_memory_per_block:
        _check_large_shared(name, static_shared, shared, allowed_shared, limits)


def _check_large_shared(name, static, dynamic, allowed, limits):
    """Raise LaunchError unless more shared memory than any kernel may have is allowed to this one."""
    most, optin = limits.max_shared_memory_per_block, limits.max_shared_memory_per_block_optin
    asked = (
        f"{name}: {static + dynamic:,} bytes of shared memory per block asked for ({static:,} static, {dynamic:,} "
        "dynamic); "
    )
    cure = "use a smaller tile or fewer threads per block"
    if static > most or static + dynamic > optin:
        raise LaunchError(f"{asked}this device allows {most if static > most else optin:,}: {cure}")
    if dynamic > allowed:
        limit = f"this kernel was allowed {allowed:,} dynamic" if allowed else f"this device allows {most:,}"
        raise LaunchError(
            f"{asked}{limit}: {cure}, or call gpukit.intrinsics.allow_dynamic_shared(kernel, {dynamic}) before the "
            "launch"
        )


def check_optin(name, static, dynamic, optin):
    """Raise LaunchError if a kernel asks for more shared memory than any may have, ``optin`` bytes."""
    if static + dynamic > optin:
        raise LaunchError(
            f"{name}: {dynamic:,} bytes of dynamic shared memory asked for beside {static:,} static; this device "
            f"allows {optin:,} together"
        )


def check_cooperative(name, blocks, most):
    """Raise LaunchError if a device that holds ``most`` blocks of a kernel at once is asked for more that must meet."""
    if blocks > most:
        raise LaunchError(
            f"{name}: a cooperative grid of {blocks:,} blocks asked for; this device can hold {most:,} blocks of this "
            "kind at once: use fewer blocks and a grid-stride loop"
        )


def by(dimensions):
    """64 x 64 x 1"""
    return " x ".join(str(n) for n in dimensions)


def _largest_block(block, limit):
    """A block of the same number of dimensions within the limit, as near to a square (cube) as powers of two allow."""
    used = max(1, sum(n > 1 for n in block))
    exponent = limit.bit_length() - 1
    parts = [1 << (exponent + used - 1 - i) // used for i in range(used)]
    return " x ".join(str(n) for n in parts) + ("" if used > 1 else " threads")


# -- launches ----------------------------------------------------------------------------------------------------------


class Launch:
    """One launch in progress: what its batches share."""

    def __init__(self, program, grid, block, dynamic_shared):
        self.program = program
        self.grid = grid
        self.block = block
        self.threads = math.prod(block)
        self.blocks = math.prod(grid)
        self.dynamic_shared = dynamic_shared
        self.loop_limit = _loop_limit
        self.user_error = None
        self._addresses = {}
        address = 0
        for key, nbytes in program.static_shared.items():
            self._addresses[key] = address
            address += -(-nbytes // 16) * 16
        self.dynamic_address = address

    def shared_address(self, key):
        """Byte offset of a static shared array in the block's shared memory."""
        return self._addresses[key]

    def blocks_per_batch(self):
        per_block = (
            sum(self.program.static_shared.values()) + self.dynamic_shared + self.program.local_bytes * self.threads
        )
        by_memory = BATCH_BYTES // per_block if per_block else self.blocks
        return max(1, min(self.blocks, BATCH_LANES // self.threads, by_memory))

    def run_batch(self, batch, arguments):
        try:
            run = self.program.traced_run() if batch.traced else self.program.run
            run(batch, None, *arguments)
        except (KernelError, MemoryError):
            raise
        except Exception as error:
            place = self.program.place_of(error)
            where = f"\n  {place[0]}:{place[1]}" if place else ""
            if isinstance(error, UnsupportedError):
                raise UnsupportedError(str(error) + ("" if "\n" in str(error) else where)) from None
            reason = f"{self.program.name}: the emulator does not know how to do this ({type(error).__name__}: {error})"
            raise UnsupportedError(reason + where) from error

    def run(self, arguments):
        with np.errstate(all="ignore"):
            for ids in self.batches():
                self.run_batch(Batch(self, ids), arguments)
        self.finish()

    def batches(self, wanted=None):
        """Positions of the blocks in each batch; ``wanted``: those to run, all unless given."""
        wanted = np.arange(self.blocks, dtype=np.int64) if wanted is None else wanted
        step = wanted.size if self.program.cooperative else self.blocks_per_batch()
        for first in range(0, wanted.size, step):
            yield wanted[first : first + step]

    def finish(self):
        """After the last batch: raise what the kernel raised."""
        if self.user_error is not None:
            raise self.user_error


class Transfers:
    """The arrays of one launch.

    Attributes
    ----------
    arrays : list of (str, DeviceArray or DeviceRecord)
        Every array argument by its parameter's name; those from the host are copies.
    copy_back : list of function
        What copies results to the host.
    """

    def __init__(self):
        self.arrays = []
        self.copy_back = []


class Prepared(NamedTuple):
    """A launch that is ready to run, with its arguments as the program takes them."""

    run: Launch
    overload: Overload
    arguments: list
    transfers: Transfers


def prepare(kernel, grid, block, shared, args, stream=0):
    """Check a launch and lower its arguments: host arrays are copied to the device.

    Returns
    -------
    Prepared
    """
    parameters = inspect.signature(kernel.py_func).parameters
    expected = len(parameters)
    if len(args) != expected:
        raise TypeError(
            f"{kernel.py_func.__name__} takes {expected} argument{'s' * (expected != 1)}, but {len(args)} were given"
        )
    transfers = Transfers()
    argument_types = tuple(_type_of(a, name) for a, name in zip(args, parameters, strict=True))
    values = list(args)
    for extension in reversed(kernel.targetoptions["extensions"] or []):
        for i, (type_, value) in enumerate(zip(argument_types, values, strict=True)):
            values[i] = extension.prepare_args(type_, value, stream=stream, retr=transfers.copy_back)[1]
    overload = kernel.select(argument_types)
    program = overload.program
    static = sum(program.static_shared.values())
    check_limits(kernel.py_func.__name__, grid, block, shared, static, allowed_shared=kernel.dynamic_shared)
    run = Launch(program, grid, block, shared)
    if program.cooperative:
        most = overload.max_cooperative_grid_blocks(block, shared)
        check_cooperative(kernel.py_func.__name__, run.blocks, most)
    lowered = [
        _argument(v, t, name, transfers) for v, t, name in zip(values, overload.argument_types, parameters, strict=True)
    ]
    return Prepared(run, overload, lowered, transfers)


def launch(kernel, grid, block, shared, args, stream=0):
    """Run a kernel over a grid.

    Host arrays are copied to the device first and back at the end, and only if all went well.
    """
    prepared = prepare(kernel, grid, block, shared, args, stream)
    finish = [_follow_writes(args[i], prepared.arguments[i]) for i in prepared.run.program.written]
    prepared.run.run(prepared.arguments)
    for note in finish:
        note()
    for write in prepared.transfers.copy_back:
        write()


def _follow_writes(argument, lowered):
    """Have a plain launch note which elements of an argument it writes, if some have never been written.

    Returns what to call after the launch. A trace asks for it; once all are written nothing is noted any more.
    """
    on_device = as_device_array(argument)
    if on_device is None or on_device.allocation.known is None:
        return lambda: None
    allocation = on_device.allocation
    if not isinstance(lowered, View) or lowered.dtype != lowered.items.dtype:
        allocation.known = None
        return lambda: None
    lowered.known = np.zeros(lowered.items.size, bool)

    def note():
        size = lowered.items.dtype.itemsize
        start = lowered.address - allocation.address
        known = allocation.known
        known[start : start + lowered.known.size * size].reshape(-1, size)[lowered.known] = True
        if known[: allocation.nbytes].all():
            allocation.known = None

    return note


def _type_of(value, name):
    """Numba type of a kernel argument."""
    if isinstance(value, ArgHint):
        value = value.value
    try:
        type_ = typeof(value, Purpose.argument)
    except (ValueError, *NUMBA_ERRORS):
        type_ = None
    if type_ is None or isinstance(type_, types.List | types.Set | types.UnicodeType):
        raise TypeError(
            f"argument {name} is a {type(value).__name__}; a kernel takes numbers, NumPy or device arrays, records "
            "and tuples of these"
        )
    return type_


def _argument(value, type_, name, transfers):
    """A kernel argument as the lowered program takes it."""
    hint = None
    if isinstance(value, ArgHint):
        hint, value = value, value.value
    if isinstance(type_, types.BaseTuple):
        if not isinstance(value, tuple) or len(value) != len(type_):
            raise TypeError(f"argument {name} is {value!r}; the kernel's signature declares {type_}")
        return tuple(
            _argument(v, t, f"{name}[{i}]", transfers) for i, (v, t) in enumerate(zip(value, type_.types, strict=True))
        )
    if isinstance(type_, types.Array):
        return _as_declared(_array_argument(value, name, hint, transfers), type_, name)
    if isinstance(type_, types.Record):
        return _record_argument(value, type_, name, transfers)
    if isinstance(type_, types.NoneType):
        return None
    if isinstance(type_, types.Number | types.Boolean | types.EnumMember):
        with np.errstate(all="ignore"):
            return _scalar(getattr(value, "value", value), dtype_of(type_), name)
    raise TypeError(f"argument {name} of type {type_} cannot be passed to a kernel")


def _scalar(value, dtype, name):
    integers = (int, np.integer, np.bool_)
    allowed = integers if dtype.kind in "iu" else (*integers, float, complex, np.number)
    if not isinstance(value, allowed) or (dtype.kind == "f" and isinstance(value, complex | np.complexfloating)):
        raise TypeError(f"argument {name} is {value!r}; the kernel's signature declares {dtype}")
    if isinstance(value, int) and not isinstance(value, bool) and dtype.kind in "iu":
        bits = int(value) & ((1 << dtype.itemsize * 8) - 1)
        return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
    return np.asarray(value).astype(dtype)[()]


def _array_argument(value, name, hint, transfers):
    on_device = as_device_array(value)
    if on_device is not None:
        transfers.arrays.append((name, on_device))
        return global_view(on_device.allocation, on_device.host, name)
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"argument {name} is a {type(value).__name__}: the emulator takes NumPy arrays and its own device arrays"
        )
    array = from_host(value, name)
    transfers.arrays.append((name, array))
    if isinstance(hint, Out):
        array.allocation.bytes[:] = 0xFF
        array.allocation.known = np.zeros(array.allocation.bytes.size, bool)
    if not value.flags.writeable:
        return global_view(array.allocation, array.host, name, "const")
    if not isinstance(hint, In):

        def write_back():
            value[...] = array.host

        transfers.copy_back.append(write_back)
    return global_view(array.allocation, array.host, name)


def _as_declared(view, type_, name):
    """A kernel with one signature takes its arrays as declared: Numba does not look at what it is given."""
    declared = dtype_of(type_.dtype)
    if len(view.shape) != type_.ndim:
        raise TypeError(
            f"argument {name} has {len(view.shape)} dimensions; the kernel's signature declares {type_.ndim}"
        )
    if view.dtype == declared:
        return view
    if view.dtype.itemsize == declared.itemsize and view.dtype.kind in "iu" and declared.kind in "iu":
        return View(view.space, view.items.view(declared), view.base, view.shape, view.strides, view.name, view.address)
    raise TypeError(
        f"argument {name} is an array of {view.dtype}; the kernel's signature declares {declared}: on a GPU its "
        "bytes would be misread"
    )


def _record_argument(value, type_, name, transfers):
    """A record passed by reference: an array of one."""
    on_device = as_device_array(value)
    if on_device is not None:
        transfers.arrays.append((name, on_device))
        return RecordRef(
            global_view(on_device.allocation, on_device.host.reshape(1), name), on_device.dtype, np.int64(0)
        )
    dtype = dtype_of(type_)
    held = np.zeros(1, dtype)
    held[0] = value[()] if isinstance(value, np.ndarray) else value
    array = from_host(held, name)
    transfers.arrays.append((name, array))
    if isinstance(value, np.void):

        def write_back():
            for field in dtype.names:
                value[field] = array.host[0][field]

        transfers.copy_back.append(write_back)
    return RecordRef(global_view(array.allocation, array.host, name), dtype, np.int64(0))


# -- the decorator -----------------------------------------------------------------------------------------------------

#: Options of numba.cuda.jit. Those that steer the GPU's compiler change nothing here.
_OPTIONS = frozenset(
    "device inline forceinline link debug opt lineinfo cache launch_bounds lto shared_memory_carveout fastmath "
    "max_registers extensions boundscheck "
    "nvvm_options nopython forceobj argtypes restype bind".split()
)


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
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise TypeError(f"cuda.jit has no option {unknown[0]!r}; it takes {', '.join(sorted(_OPTIONS))}")
    if options.get("boundscheck"):
        raise NotImplementedError("bounds checking is not supported for CUDA")
    if options.get("link"):
        raise UnsupportedError("link= brings in code in another language, which the emulator cannot run")
    if isinstance(options.get("inline"), bool):
        options["inline"] = "always" if options["inline"] else "never"
    if sigutils.is_signature(func_or_sig):
        return lambda function: Kernel(function, options, [func_or_sig], specialized=True)
    if isinstance(func_or_sig, list):
        return lambda function: Kernel(function, options, func_or_sig)
    if func_or_sig is None:
        return lambda function: Kernel(function, options)
    if isinstance(func_or_sig, Kernel):
        return func_or_sig
    return Kernel(func_or_sig, options)
