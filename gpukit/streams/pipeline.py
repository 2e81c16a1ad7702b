"""Copy in, compute, copy out, in parts that overlap (source rows A13 and C3)."""

from dataclasses import dataclass, field
from numbers import Integral

import numpy as np

from gpukit._host.arrays import configured
from gpukit.backend import cuda, on_gpu
from gpukit.launching import prepare
from gpukit.streams.kernels import BLOCK, occupancy
from gpukit.streams.model import modelled
from gpukit.streams.schedule import Schedule, _check_gpu
from warpstep.checks import as_dim3, check_int

__all__ = ["BUFFERS", "ORDERS", "Pipeline", "Run", "is_pinned", "prepared_copy", "run_pipeline", "sizes_of"]

ORDERS = ("depth", "breadth")
BUFFERS = ("task", "stream", "shared")


def run_pipeline(kernel, x, *, chunks=4, streams=4, order="depth", pinned=True, buffers="task", out=None):
    """Run a kernel over an array in chunks, so that copies and kernels overlap (A13).

    Memory, streams and events are made for this one run, which may take longer than the run: a `Pipeline` keeps them.

    Each chunk is a task of three operations in one stream: its rows are copied to the device, the kernel runs, its rows
    of the result are copied back. Task i goes to stream i modulo ``streams``.

    Parameters
    ----------
    kernel
        One of: a kernel of ``cuda.jit`` with two arguments, the task's part of ``x`` and its part of the result, which
        is launched with a thread for each element of the latter, in blocks of 256; ``kernel[grid, block]``, launched
        like that; a `SleepKernel` or `WorkKernel`; or a function of (source, target, stream) that queues work on two
        device arrays in this stream, and in no other one.
    x : ndarray, shape (n, ...)
        Any dtype. What is not contiguous, or not pinned where it should be, is copied before the streams start.
    chunks : int, or sequence of int
        How many tasks, of rows as equal as can be, or the rows of each. A task without rows does nothing.
    streams : int
        How many streams, 1 or more.
    order : {"depth", "breadth"}
        Ask for all of a task before the next one; or, of as many tasks as there are streams, for the copies in, then
        for the kernels, then for the copies out.
    pinned : bool
        Copy from and to page-locked memory. False: from and to the arrays as they are; if they are ordinary ones, no
        copy overlaps with anything.
    buffers : {"task", "stream", "shared"}
        What has device memory of its own: each task; each stream, whose tasks come one after the other anyway; or
        nobody, which is what the documents did: a race, and a wrong result. `Schedule.races` tells.
    out : ndarray, shape (n, ...), optional
        For the result; of any row shape and dtype. Without it the result is like ``x``.

    Returns
    -------
    Run
        With ``result``, the ``schedule``, and on a GPU a measured ``timeline``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; nothing is launched then.
    """
    pipeline = Pipeline(kernel, x, chunks=chunks, streams=streams, order=order, pinned=pinned, buffers=buffers, out=out)
    return pipeline.run(record=on_gpu())


@dataclass(frozen=True)
class Run:
    """What `run_pipeline` and `Pipeline.run` give back.

    Attributes
    ----------
    result : ndarray
    schedule : Schedule
        What was asked of the device, in order. It keeps the tasks' memory on the device for as long as it lives.
    measured : Timeline or None
    """

    result: np.ndarray = field(repr=False)
    schedule: Schedule = field(repr=False)
    measured: object = None

    @property
    def timeline(self):
        """Timeline: what ran when, measured. EmulatedTimeError on the emulator, ValueError if it was not recorded."""
        if self.measured is None:
            _check_gpu("a timeline")
            raise ValueError("this run was not recorded: run(record=True) does")
        return self.measured

    def modelled(self, model=None):
        """Timeline: the same operations played through on a model. See `gpukit.streams.modelled`."""
        return modelled(self.schedule, model)


class Pipeline:
    """A pipeline that can run again and again: device memory, streams and events are made once.

    Parameters
    ----------
    kernel, x, chunks, streams, order, pinned, buffers, out
        As for `run_pipeline`. For speed, ``x`` and ``out`` should be pinned already (``cuda.pinned_array``): otherwise
        every run copies from and to pinned memory on the host too.

    Attributes
    ----------
    sizes : tuple of int
        Rows of each task.
    schedule : Schedule
    """

    def __init__(self, kernel, x, *, chunks=4, streams=4, order="depth", pinned=True, buffers="task", out=None):
        kernel = _kernel_of(kernel)
        _check(x, out, order, buffers, pinned)
        check_int("streams", streams, 1)
        self.sizes = sizes_of(chunks, len(x))
        self.x = x
        self.out = _host_memory(x, pinned) if out is None else out
        self._source, self._target = _staged(self.x, pinned), _staged(self.out, pinned)
        self.schedule = Schedule()
        tasks = self._tasks(kernel, streams, buffers, pinned)
        for first in range(0, len(tasks), 1 if order == "depth" else streams):
            together = tasks[first : first + (1 if order == "depth" else streams)]
            for stage in range(3):
                for task in together:
                    self.schedule.add(**task[stage])

    def run(self, record=False):
        """Run all tasks and wait for them.

        Parameters
        ----------
        record : bool
            Measure a timeline too; only on a GPU.

        Returns
        -------
        Run
        """
        if self._source is not self.x:
            self._source[...] = self.x
        timeline = self.schedule.run(record)
        if self._target is not self.out:
            self.out[...] = self._target
        return Run(self.out, self.schedule, timeline)

    def _tasks(self, kernel, streams, buffers, pinned):
        """The three operations of each task, as arguments of `Schedule.add`."""
        most = max(self.sizes, default=0)
        starts = np.cumsum((0, *self.sizes))
        memory, tasks = {}, []
        for place, number in enumerate(number for number, rows in enumerate(self.sizes) if rows):
            stream, rows = place % streams, self.sizes[number]
            key = {"task": number, "stream": stream, "shared": 0}[buffers]
            if key not in memory:
                held = rows if buffers == "task" else most
                memory[key] = [
                    cuda.device_array((held, *host.shape[1:]), host.dtype) for host in (self._source, self._target)
                ]
            source, target = (held if len(held) == rows else held[:rows] for held in memory[key])
            part = slice(int(starts[number]), int(starts[number]) + rows)
            hosts, queue = (self._source[part], self._target[part]), self.schedule.stream(stream)
            actions = (
                prepared_copy(source, hosts[0], queue),
                kernel.action(source, target, queue),
                prepared_copy(hosts[1], target, queue),
            )
            stages = _stages(key, hosts, kernel.known(target.size), pinned)
            common = {"stream": stream, "task": number}
            tasks.append([common | {"action": a} | s for a, s in zip(actions, stages, strict=True)])
        return tasks


def _stages(key, hosts, known, pinned):
    """What is said of a task's copy in, kernel and copy out besides what they do; ``known`` of the kernel."""
    names, (bytes_in, bytes_out) = (f"source {key}", f"target {key}"), (host.nbytes for host in hosts)
    return (
        {"engine": "copy in", "writes": names[:1], "nbytes": bytes_in, "pageable": not pinned},
        {"engine": "kernel", "reads": names[:1], "writes": names[1:], "nbytes": bytes_in + bytes_out, **known},
        {"engine": "copy out", "reads": names[1:], "nbytes": bytes_out, "pageable": not pinned},
    )


def prepared_copy(target, source, stream):
    """What queues a copy between host and device: on a GPU a call of the driver with arguments made ready, at a
    fraction of what ``copy_to_device`` and ``copy_to_host`` cost the host.
    """
    to_device = isinstance(source, np.ndarray)
    if source.nbytes == 0:
        return lambda _: None
    if not on_gpu():
        return lambda _: target.copy_to_device(source) if to_device else source.copy_to_host(target)
    from numba.cuda.cudadrv.driver import driver

    call = driver.cuMemcpyHtoDAsync if to_device else driver.cuMemcpyDtoHAsync
    addresses = [
        array.ctypes.data if isinstance(array, np.ndarray) else array.device_ctypes_pointer.value
        for array in (target, source)
    ]
    nbytes, handle = source.nbytes, int(stream.handle)
    return lambda _, keep=(target, source): call(*addresses, nbytes, handle)


# -- arguments -----------------------------------------------------------------------------------------------------


def _check(x, out, order, buffers, pinned):
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x is a {type(x).__name__}; it must be a NumPy array: a pipeline copies it to the device")
    if x.ndim == 0:
        raise ValueError("x has shape (); it must have one dimension or more")
    if x.dtype.hasobject:
        raise TypeError(f"x has dtype {x.dtype}; it must hold no Python objects")
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out is a {type(out).__name__}; it must be a NumPy array")
        if out.ndim == 0 or len(out) != len(x):
            raise ValueError(f"out has shape {out.shape}; it must have {len(x)} rows, as x has")
        if not out.flags.writeable or out.dtype.hasobject:
            raise ValueError("out is read-only or holds Python objects; it must be an array that can be written")
        if np.may_share_memory(x, out):
            raise ValueError("out shares memory with x; they must be apart")
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; it must be 'depth' or 'breadth'")
    if buffers not in BUFFERS:
        raise ValueError(f"buffers is {buffers!r}; it must be 'task', 'stream' or 'shared'")
    if not isinstance(pinned, bool | np.bool_):
        raise TypeError(f"pinned is {pinned!r}; it must be True or False")


def sizes_of(chunks, rows):
    """The rows of each task, as a tuple of int: ``chunks`` of them, the first ones one longer where it must be."""
    if isinstance(chunks, Integral) and not isinstance(chunks, bool):
        count = check_int("chunks", chunks, 1)
        return tuple(rows // count + (i < rows % count) for i in range(count))
    try:
        sizes = tuple(check_int(f"chunks[{i}]", size, 0) for i, size in enumerate(chunks))
    except TypeError as error:
        if "chunks[" in str(error):
            raise
        raise TypeError(f"chunks is {chunks!r}; it must be an int, 1 or more, or the rows of each task") from None
    if sum(sizes) != rows:
        raise ValueError(f"chunks has {sum(sizes)} rows in all; x has {rows}")
    return sizes


# -- kernels -------------------------------------------------------------------------------------------------------


def _kernel_of(kernel):
    """What a pipeline makes its kernels' operations with; TypeError for what it cannot run."""
    if hasattr(kernel, "prepared"):
        return _Stamped(kernel)
    configuration = getattr(kernel, "dispatcher", None)
    dispatcher = kernel if configuration is None else configuration
    if hasattr(dispatcher, "py_func"):
        if dispatcher.targetoptions.get("device"):
            raise TypeError(f"kernel is the device function {dispatcher.py_func.__name__}; it must be a kernel")
        return _Launched(dispatcher, None if configuration is None else kernel)
    if not callable(kernel):
        raise TypeError(f"kernel is {kernel!r}; it must be a kernel, or a function of (source, target, stream)")
    return _Called(kernel)


class _Stamped:
    """A kernel of `gpukit.streams.kernels`."""

    def __init__(self, kernel):
        self.kernel = kernel

    def action(self, source, target, stream):
        launch = self.kernel.prepared(source, target, stream)
        return lambda _, stamps: launch(stamps)

    def known(self, elements):
        seconds, share = self.kernel.seconds(elements), self.kernel.share(elements)
        return {"seconds": seconds, "share": share, "takes_stamps": True}


class _Launched:
    """A kernel of two arrays, with a grid of its own or without."""

    def __init__(self, dispatcher, configuration):
        self.dispatcher, self.configuration = dispatcher, configuration

    def shape(self, elements):
        if self.configuration is None:
            return -(-elements // BLOCK), BLOCK, 0
        return self.configuration.griddim, self.configuration.blockdim, self.configuration.sharedmem

    def action(self, source, target, stream):
        if target.size == 0 and self.configuration is None:
            return lambda _: None
        grid, block, shared = self.shape(target.size)
        launch = configured(self.dispatcher, grid, block, stream, shared)
        if self.dispatcher.targetoptions.get("debug"):
            return lambda _: launch(source, target)
        prepared = prepare(launch, source, target)
        return lambda _: prepared()

    def known(self, elements):
        grid, block, _ = self.shape(elements)
        return {"share": occupancy(as_dim3("grid", grid), as_dim3("block", block))[0]} if elements else {}


class _Called:
    """A function of (source, target, stream)."""

    def __init__(self, function):
        self.function = function

    def action(self, source, target, stream):
        return lambda stream: self.function(source, target, stream)

    def known(self, elements):
        return {}


# -- memory --------------------------------------------------------------------------------------------------------


def is_pinned(array):
    """Whether copies of a NumPy array are those of page-locked memory. Always True on the emulator."""
    if not on_gpu() or array.nbytes == 0:
        return True
    low, high = np.lib.array_utils.byte_bounds(array)
    return _page_locked(low) and _page_locked(high - 1)


def _page_locked(address):
    from cuda.bindings.driver import CUmemorytype, CUpointer_attribute
    from numba.cuda.cudadrv.driver import CudaAPIError, driver

    try:
        kind = driver.cuPointerGetAttribute(CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
    except CudaAPIError:
        return False  # memory that the driver has never heard of
    return int(kind) == int(CUmemorytype.CU_MEMORYTYPE_HOST)


def _staged(array, pinned):
    """What copies to and from the device use: the array itself, or memory that its values pass through."""
    # Of what cannot be written Numba makes a copy that it frees while the device may still be reading it.
    if array.flags.c_contiguous and array.flags.writeable and (not pinned or is_pinned(array)):
        return array
    return _host_memory(array, pinned)


def _host_memory(like, pinned):
    """A new array of the shape and dtype of another."""
    # The driver pins no 0 bytes.
    return cuda.pinned_array(like.shape, like.dtype) if pinned and like.nbytes else np.empty(like.shape, like.dtype)
