"""The one way from a host function to its launches: check, plan, launch; and repeat the launches for a call like it.

A chapter writes each host function as two functions. The public one has the signature and the documentation, and hands
everything down; the planner checks the arguments and returns the launches::

    def double(x, factor=2.0, *, out=None, stream=None):
        return call(_double, (x,), out, stream, (factor,))

    def _double(problem):
        (x,), (factor,) = problem.inputs, problem.settings
        check_array("x", x, 1)                                  # TypeError, ValueError: nothing was launched
        target = problem.output(x.shape)                        # what the kernel writes
        if target.size == 0:
            return []
        x = problem.on_device(x)                                # what it reads: C-contiguous, on the device
        launch = configure_quietly(scale, ceil_div(x.size, 256), 256, problem.stream)
        return [(launch, (x, target, factor))]

- ``inputs`` are arrays or None; the first is the one whose library a new result comes from. ``on_device`` copies a
  device array that is not C-contiguous by a launch of its own, ahead of those of the planner, so that it is repeated
  with them. Calls with NumPy arrays are planned anew each time.
- ``settings`` are all other arguments that decide the launches. Where one cannot be hashed (a list, an array), the call
  is planned anew each time.
- The planner runs once for calls that agree in the layout and alignment (modulo 16 bytes) of every array, in stream and
  in settings. It must decide by these alone, and launch nothing itself.
- ``problem.work`` has memory that launches leave to each other: ``work.take("partials", size, dtype)``, or
  ``work.zeros(count)`` for counters. It is the stream's: a later call uses the same memory.
- ``problem.table(values)`` copies a NumPy array to the device, for launches to read. If a planner makes such a copy
  itself, a CUDA graph cannot record the call: the copy would be gone when the graph makes the launches.
- What a call must do on the stream beside its launches, such as an upload that a launch reads, goes with ``call`` into
  one ``with state_of(stream_of(stream)).lock:``.
- The planner of a composed function passes ``problem.work`` on to those that plan its parts.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukit._host.arrays import (
    as_device_array,
    device_made_current,
    is_captured,
    library_of,
    made_current,
    plain_tensors,
    span,
    stream_for,
)
from gpukit._host.kernel_cache import keep_compiled
from gpukit._host.new_arrays import free_lent_memory, make_recorded_allocate
from gpukit._host.prepared import prepare
from gpukit._host.replay import LaunchCache, RecordedCall, queue_of
from gpukit._host.transfers import Output, copy_launches, to_device
from gpukit._host.work_memory import WorkMemory, free_work_memory, state_of
from gpukit._numba import PER_THREAD_DEFAULT_STREAM, beside_a_capture
from gpukit.backend import cuda
from warpstep.values import type_name

__all__ = ["CACHE", "Problem", "call", "forget", "launch", "without_launches"]

#: What the host functions of this process launched.
CACHE = LaunchCache()


def call(plan: Callable, inputs: tuple, out=None, stream=None, settings: tuple = ()) -> Any:
    """Make the launches that ``plan`` decides on, or repeat those of an earlier call like this one.

    Parameters
    ----------
    plan : function
        From a `Problem` to a list of (configured kernel, arguments).
    inputs : tuple of arrays or None
    out : array or None
        Where the caller wants the result.
    stream : None or a CUDA stream, of any library
        None is PyTorch's current one for its tensors, otherwise the default one.
    settings : tuple
        All else that decides the launches.

    Returns
    -------
    array
        ``out``, or a new array of the same library as the first input. A NumPy array is complete; work on a device
        array may be under way. A list of arrays if the planner declares several. PyTorch and CuPy allocate them as
        while ``stream`` is the current one.
    """
    latest = None
    try:  # all of this is here because a small problem waits for it: each further function takes a few percent
        queue = None if stream is None and not PER_THREAD_DEFAULT_STREAM else queue_of(stream)
        latest = CACHE.latest.get((plan, queue, out is None, len(inputs), inputs[0].nbytes, settings))
    except Exception:  # a setting cannot be hashed, or an argument is not what it must be
        pass
    if latest is not None:
        recorded, exact = latest
        for i, setting in exact:
            if settings[i] is not setting:
                break
        else:
            locate, pointers = recorded.locate, [*recorded.blank]
            if locate(inputs if out is None else (*inputs, out), pointers) and (
                out is None or not recorded.overlaps(pointers)
            ):
                if CACHE.crowded:
                    CACHE.touch(recorded.key)
                return recorded.again(pointers, out)
    if device := device_made_current((*inputs, out)):
        with device:
            return call(plan, inputs, out, stream, settings)
    like = inputs[0] if inputs else None
    found = stream_for(stream, like)
    if found and stream is None:  # the current one of the arrays' library
        return call(plan, inputs, out, found, settings)
    if is_captured(found):
        return _call_in_graph(plan, inputs, out, found, settings)
    if stream is not None and out is None and (current := made_current(stream, like)):
        with current:
            return call(plan, inputs, out, found, settings)
    recorded, key, pointers = CACHE.find(plan, inputs, out, found, settings)
    if recorded is not None:
        return recorded.again(pointers, out)
    if key is None and (plain := plain_tensors(inputs, out, stream)):
        made = call(plan, *plain, stream, settings)
        return made if out is None else out
    problem = Problem(inputs, out, found, settings)
    return problem.launch(plan(problem), key)


def _call_in_graph(plan, inputs, out, stream, settings):
    """Make a call while a CUDA graph records its stream.

    The graph makes the launches later, when the memory that calls on a stream share may be gone, or in use on another
    stream. So the call gets memory that stays the graph's, and is not kept for later calls.
    """
    if plain := plain_tensors(inputs, out, stream):
        made = _call_in_graph(plan, *plain, stream, settings)
        return made if out is None else out
    for array in (*inputs, out):
        if array is not None and library_of(array) != "torch" and not getattr(array, "__cuda_ndarray__", False):
            raise RuntimeError(
                f"a CUDA graph records the stream; arrays must be PyTorch tensors, not {type_name(array)}"
            )
    problem = Problem(inputs, out, stream, settings, make_recorded_allocate(inputs[0], stream))
    with beside_a_capture():
        return problem.launch(plan(problem), None)


def forget():
    """Let go of all recorded calls, of the work memory of all streams, and of that of results that are gone."""
    CACHE.clear()
    free_work_memory()
    free_lent_memory()


#: What takes the launches of calls while `without_launches` is open.
_instead: Callable[[list], Any] | None = None


@contextlib.contextmanager
def without_launches(take: Callable[[list], Any]):
    """Pass the launches of each call to a function instead of making them; results stay as they were allocated.

    It holds for all threads.
    """
    global _instead
    _instead = take
    try:
        yield
    finally:
        _instead = None


class Problem:
    """One call, as its planner sees it.

    Attributes
    ----------
    inputs : tuple of arrays or None
        As the caller gave them.
    out : array or None
    settings : tuple
    stream : 0 or a CUDA stream
        As ``kernel[grid, block, stream]`` takes it.
    work : WorkMemory
    repeatable : bool
        A planner sets this to False if its launches depend on more than the layouts and the settings.
    """

    def __init__(self, inputs, out, stream, settings, allocate=None):
        self.repeatable = True
        self.inputs, self.out, self.stream, self.settings = inputs, out, stream, settings
        self.work = WorkMemory(stream, state_of(stream).buffers if allocate is None else None, allocate)
        self._outputs: list[Output] = []
        self._copies: list[tuple] = []

    def on_device(self, array: Any) -> Any:
        """An array as a C-contiguous device array: itself if it is one already, otherwise a copy; None for None."""
        if array is None or not cuda.is_cuda_array(array):
            return None if array is None else to_device(array, self.stream)
        array = as_device_array(array)
        return array if array.is_c_contiguous() else self.copy(array)

    def copy(self, array: Any) -> Any:
        """A C-contiguous copy of a device array, made by a launch before those of the planner."""
        array = as_device_array(array)
        copy = self.work.take(f"copy {len(self._copies)}", array.size, array.dtype).reshape(array.shape)
        self._copies += copy_launches(array, copy, self.stream)
        return copy

    def table(self, values: np.ndarray) -> Any:
        """Copy a NumPy array to the device, for launches that read it and do not write it."""
        if not self.work.recorded:
            return cuda.to_device(values, stream=self.stream)
        array = _lasting_table(cuda.get_current_device().id, values.tobytes(), values.dtype.str)
        self.work.buffers["table", len(self.work.buffers)] = array
        return array

    def output(self, shape: tuple, dtype=None, *, keep: bool = False, like=None) -> Any:
        """Declare the result of the call; gives the C-contiguous device array that the kernels write.

        A call without ``out`` may have several results: each call of this method declares one more.

        Parameters
        ----------
        shape : tuple of int
        dtype : NumPy dtype, optional
            That of ``like`` unless given.
        keep : bool
            The kernels need the contents of ``out``, which must have been given.
        like : array, optional
            The result is of its library; the first input unless given.
        """
        like = self.inputs[0] if like is None else like
        self._outputs.append(Output(like, shape, self.out, self.stream, dtype, keep, self.work))
        return self._outputs[-1].device

    def launch(self, launches: list, key):
        """Make the launches, record them under the key if they can be repeated, and give the caller's result."""
        if not self._outputs:  # nothing was asked for
            return self.out
        key = key if self.repeatable else None
        return launch(self._copies + launches, self.inputs, self._outputs, key, CACHE, self.work)


@functools.cache
def _lasting_table(device: int, values: bytes, dtype: str):
    """Make a table for CUDA graphs. Nothing tells when the last graph that reads it is gone, so it is kept."""
    stream = cuda.stream()  # the copy is no part of a graph
    array = cuda.to_device(np.frombuffer(values, dtype), stream=stream)
    stream.synchronize()
    return array


def launch(
    launches: list, inputs: tuple, outputs: list[Output], key, cache: LaunchCache, work: WorkMemory | None = None
):
    """Make launches, record them in the cache under the key if they can be repeated, and give the caller's result.

    ``work`` is the stream's memory that the launches use, which is looked up again at each replay.
    """
    launches = [
        *(one for output in outputs for one in output.before),
        *launches,
        *(one for output in outputs for one in output.after),
    ]
    for configured, _ in launches:
        keep_compiled(configured)
    if _instead is not None:
        _instead(launches)
        return _finish(outputs)
    state = state_of(outputs[0].stream)
    in_graph = work is not None and work.recorded
    if outputs[0].on_host or key is None and not in_graph:
        with state.lock:
            for configured, arguments in launches:
                configured(*arguments)
        return _finish(outputs)
    prepared = [prepare(configured, *arguments) for configured, arguments in launches]
    if in_graph:
        _check_lasting(prepared, inputs, outputs, work)
    with state.lock:
        for one in prepared:
            one()
    if in_graph:
        return _finish(outputs)
    recorded = RecordedCall(prepared, inputs, outputs, work)
    if recorded.replayable:
        cache.store(key, recorded)
    return _finish(outputs)


def _check_lasting(prepared, inputs, outputs, work):
    """Raise RuntimeError if launches that a CUDA graph records take memory that may be gone when it runs."""
    arrays = [*inputs, *(output.target for output in outputs), *work.buffers.values()]
    lasting = [span(array) for array in arrays if array is not None]
    for launch in prepared:
        for _, array in launch.arrays():
            low, high = span(array)
            if low < high and not any(start <= low and high <= stop for start, stop in lasting):
                raise RuntimeError(f"a CUDA graph cannot record this call: its kernel {launch.name} reads a table")


def _finish(outputs):
    """Give the caller's result, or a list of them if there are several outputs."""
    results = [output.finish() for output in outputs]
    return results[0] if len(results) == 1 else results
