"""The plate once more, exchanging its edges from inside the kernel: NVSHMEM, through nvshmem4py's Numba bindings.

A program runs as several processing elements (PEs), each with a GPU. They allocate the same arrays, which together are
the symmetric heap, and a kernel names an array of another PE by its own array and the PE's number. Without a GPU the
same program runs on emulated PEs.
"""

import ctypes
import functools
import multiprocessing
from importlib import import_module
from typing import Any

import numpy as np

from gpukit.backend import cuda, on_gpu
from gpukit.multi.devices import rows_of
from gpukit.multi.stencil import MAX_STEPS, check_plate
from warpstep.values import check_int

__all__ = ["heat_by_signals", "make_step"]

THREADS = 256
#: Seconds in which the PEs of a program on GPUs have to end.
LIMIT = 120
#: Bytes of a unique id.
UID_BYTES = 128


@functools.cache
def make_step() -> Any:
    """Make the kernel of a time step.

    A block computes a row. The blocks of the edges wait until the neighbour's row has arrived, and send theirs on.
    ``above`` and ``below`` count the rows of the neighbours, 0 where there is none.
    """
    core, shmem = _bindings()
    SET, GE = core.SignalOp.SIGNAL_SET, core.ComparisonType.CMP_GE

    @cuda.jit
    def step(u, new, arrived, number, rows, above, below, rate):
        row, tid, me = 1 + cuda.blockIdx.x, cuda.threadIdx.x, shmem.my_pe()
        if tid == 0 and row == 1 and above > 0:
            shmem.signal_wait(arrived[0:1], GE, number)
        if tid == 0 and row == rows and below > 0:
            shmem.signal_wait(arrived[1:2], GE, number)
        cuda.syncthreads()
        col = 1 + tid
        while col < u.shape[1] - 1:
            around = u[row - 1, col] + u[row + 1, col] + u[row, col - 1] + u[row, col + 1]
            new[row, col] = u[row, col] + rate * (around - np.float32(4) * u[row, col])
            col += cuda.blockDim.x
        cuda.syncthreads()
        if row == 1 and above > 0:  # into the halo below the rows of the PE above
            shmem.put_signal_block(new[above + 1], new[1], arrived[1:2], number + 1, SET, me - 1)
        if row == rows and below > 0:
            shmem.put_signal_block(new[0], new[row], arrived[0:1], number + 1, SET, me + 1)

    return step


def heat_by_signals(u: np.ndarray, steps: int, pes: int = 2, rate: float = 0.2) -> np.ndarray:
    """Let heat spread for a number of steps on several PEs, whose kernels exchange the edges themselves.

    On GPUs each PE is a process with a GPU, and needs nvshmem4py and the header ``infiniband/mlx5dv.h``, which its
    bindings include when Numba compiles them. This has run on emulated PEs only: on two H200 that header was missing.
    The kernel waits for signals, so it is launched cooperatively: its blocks, one for each row, must all fit on the GPU
    at once.

    Parameters
    ----------
    u, steps, rate
        As for `heat`.
    pes : int
        At most one for each row that changes.

    Returns
    -------
    ndarray of the shape of ``u``, float32

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    ImportError
        On a GPU without nvshmem4py.
    RuntimeError
        If a PE fails on a GPU, or does not end within two minutes.

    Examples
    --------
    >>> plate = np.zeros((4, 4), np.float32)
    >>> plate[0] = 1
    >>> float(heat_by_signals(plate, steps=2, pes=2, rate=0.25)[1, 1])
    0.3125
    """
    check_plate(u, rate)
    pes, steps = check_int("pes", pes, 1, len(u) - 2), check_int("steps", steps, 0, MAX_STEPS)
    _bindings()
    arguments = (u, steps, np.float32(rate))
    run = _on_gpus if on_gpu() else import_module("warpstep.nvshmem").run
    bands = run(program, pes, arguments)
    return np.concatenate((u[:1], *bands, u[-1:]))


def program(rank: int, nranks: int, uid: Any, u: np.ndarray, steps: int, rate: np.float32) -> np.ndarray:
    """Run one PE; returns its rows."""
    core, _ = _bindings()
    core.init(**_own_device(rank), uid=uid, rank=rank, nranks=nranks, initializer_method="uid")
    parts = rows_of(len(u) - 2, nranks)
    counts = [0, *(part.stop - part.start for part in parts), 0]
    above, rows, below = counts[rank : rank + 3]
    heap = [core.array((max(counts) + 2, u.shape[1]), "float32") for _ in range(2)] + [core.array((2,), "uint64")]
    first, second, arrived = (cuda.as_cuda_array(array) if on_gpu() else array for array in heap)
    own = np.zeros(first.shape, np.float32)
    own[: rows + 2] = u[parts[rank].start : parts[rank].stop + 2]
    for array, values in ((first, own), (second, own), (arrived, np.zeros(2, np.uint64))):
        array.copy_to_device(values)
    _meet(core)
    kernel = make_step()
    for number in range(steps):
        kernel[rows, THREADS](first, second, arrived, number, rows, above, below, rate)
        first, second = second, first
    _meet(core)
    result = first.copy_to_host()[1 : rows + 1]
    for array in heap:
        core.free_array(array)
    core.finalize()
    return result


# -- GPUs or emulated PEs ----------------------------------------------------------------------------------------------


def _bindings():
    """(nvshmem.core, its functions for kernels): the package's on a GPU, the emulator's elsewhere."""
    if not on_gpu():
        return import_module("warpstep.nvshmem.core"), import_module("warpstep.nvshmem.core.device.numba")
    try:
        return import_module("nvshmem.core"), import_module("nvshmem.core.device.numba")
    except ImportError as error:
        raise ImportError("on a GPU this needs nvshmem4py: pip install nvshmem4py-cu13 cffi") from error


def _own_device(rank):
    """Make the PE's device the current one; returns the further arguments of ``init``."""
    if not on_gpu():
        return {}
    cuda.select_device(rank)
    device = import_module("cuda.core").Device(rank)
    device.set_current()
    return {"device": device}


def _meet(core):
    """Wait for all PEs."""
    cuda.synchronize()
    core.barrier_all(cuda.stream() if on_gpu() else cuda.default_stream())
    cuda.synchronize()


def _on_gpus(function, pes, arguments):
    """Run a program in a process for each PE; what they return, in order."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(pes)]
    processes = [context.Process(target=_process, args=(r, pes, pipes[r][1], function, arguments)) for r in range(pes)]
    for process in processes:
        process.start()
    try:
        name = _received(pipes[0][0])
        for ours, _ in pipes[1:]:
            ours.send(name)
        return [_received(ours) for ours, _ in pipes]
    finally:
        for process in processes:
            process.join(5)
            process.kill()


def _received(pipe):
    if not pipe.poll(LIMIT):
        raise RuntimeError(f"a PE did not answer within {LIMIT} s")
    found, failed = pipe.recv()
    if failed:
        raise RuntimeError(f"a PE failed: {found}")
    return found


def _process(rank, nranks, pipe, function, arguments):
    """What the process of a PE does: agree on the unique id, which PE 0 makes, and run the program."""
    try:
        core, _ = _bindings()
        uid = core.get_unique_id(empty=rank > 0)
        if rank == 0:
            pipe.send((ctypes.string_at(uid.ptr, UID_BYTES), False))
        else:
            ctypes.memmove(uid.ptr, pipe.recv(), UID_BYTES)
        pipe.send((function(rank, nranks, uid, *arguments), False))
    except Exception as error:
        pipe.send((f"{type(error).__name__}: {error}", True))
