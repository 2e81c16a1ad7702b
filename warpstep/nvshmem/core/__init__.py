"""The host functions of ``nvshmem.core``, on emulated processing elements (`warpstep.nvshmem.run` starts them).

What a stream is asked to do is done at once. Arrays are those of the emulator, where the package gives arrays of CuPy;
``cuda.as_cuda_array`` takes both.
"""

import enum
from typing import Any

import numpy as np

from warpstep.api.allocations import Allocation, DevicePointer
from warpstep.api.arrays import DeviceArray, as_device_array, as_layout
from warpstep.api.streams import check_stream
from warpstep.device import pop, push
from warpstep.machine import pes
from warpstep.values import check_int, describe

__all__ = [
    "ComparisonType",
    "InitStatus",
    "NvshmemError",
    "NvshmemInvalid",
    "SignalOp",
    "Teams",
    "UniqueID",
    "array",
    "barrier",
    "barrier_all",
    "broadcast",
    "buffer",
    "fcollect",
    "finalize",
    "flush",
    "free",
    "free_array",
    "get",
    "get_nbi",
    "get_peer_array",
    "get_unique_id",
    "init",
    "init_status",
    "my_pe",
    "n_pes",
    "put",
    "put_nbi",
    "put_signal",
    "put_signal_nbi",
    "quiet",
    "reduce",
    "signal_fetch",
    "signal_op",
    "signal_wait",
    "sync",
    "sync_all",
    "team_my_pe",
    "team_n_pes",
]


class NvshmemInvalid(Exception):
    """A call with wrong arguments, or in the wrong place."""


class NvshmemError(Exception):
    """A call that failed."""


class SignalOp(enum.IntEnum):
    """What `signal_op` does to a signal."""

    SIGNAL_SET = 9
    SIGNAL_ADD = 10


class ComparisonType(enum.IntEnum):
    """How `signal_wait` compares a signal with a value."""

    CMP_EQ = 0
    CMP_NE = 1
    CMP_GT = 2
    CMP_LE = 3
    CMP_LT = 4
    CMP_GE = 5


class Teams(enum.IntEnum):
    """Teams of elements. All elements are of one node, so each of these is all of them."""

    TEAM_WORLD = 0
    TEAM_SHARED = 1
    TEAM_NODE = 2


class InitStatus(enum.IntEnum):
    """How far `init` has come."""

    STATUS_NOT_INITIALIZED = 0
    STATUS_IS_INITIALIZED = 2


class UniqueID:
    """What the elements of one program have in common; `get_unique_id` makes it."""


_REDUCTIONS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
_REDUCTIONS |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}

# -- the program -------------------------------------------------------------------------------------------------------


def get_unique_id(empty: bool = False) -> UniqueID:
    """Make what `init` needs as ``uid`` in every element."""
    return UniqueID()


def init(
    device: Any = None,
    uid: UniqueID | None = None,
    rank: int | None = None,
    nranks: int | None = None,
    mpi_comm: Any = None,
    initializer_method: str = "",
) -> None:
    """Begin to use the symmetric heap. All elements call it.

    Parameters
    ----------
    device : optional
        Not used: an element has the device of its number.
    uid : UniqueID
    rank, nranks : int
        The number of this element, and how many there are.
    initializer_method : "uid"

    Raises
    ------
    NvshmemInvalid
        For other arguments, and for more elements than `warpstep.nvshmem.run` has started.
    """
    if initializer_method != "uid":
        raise NvshmemInvalid(f"initializer_method is {describe(initializer_method)}; the emulator has 'uid' only")
    if uid is None or rank is None or nranks is None or mpi_comm is not None:
        raise NvshmemInvalid("a start by 'uid' needs uid, rank and nranks, and no mpi_comm")
    element = pes.current() or pes.begin_alone()
    count = len(element.world.elements)
    if (rank, nranks) != (element.number, count):
        raise NvshmemInvalid(
            f"rank is {rank} and nranks {nranks}; this is PE {element.number} of {count}: start the program with "
            "warpstep.nvshmem.run(program, pes)"
        )
    element.arrays = []
    _allocate(element, pes.SYNC_WORDS * 8, 8).bytes[:] = 0
    element.meet("init")


def finalize() -> None:
    """End the use of the symmetric heap, and free it. All elements call it."""
    element = _element()
    element.meet("finalize")
    for allocation in element.arrays:
        if not allocation.freed:
            allocation.free()
    element.arrays = None


def init_status() -> InitStatus:
    """Say whether `init` has been called."""
    element = pes.current()
    is_ready = element is not None and element.arrays is not None
    return InitStatus.STATUS_IS_INITIALIZED if is_ready else InitStatus.STATUS_NOT_INITIALIZED


def _element() -> pes.Element:
    element = pes.current()
    if element is None or element.arrays is None:
        raise NvshmemInvalid("NVSHMEM Library is not initialized: call init() first")
    return element


def my_pe() -> int:
    """Return the number of this element."""
    return _element().number


def n_pes() -> int:
    """Return how many elements there are."""
    return len(_element().world.elements)


def team_my_pe(team: Teams) -> int:
    """Return the number of this element in a team."""
    Teams(team)
    return my_pe()


def team_n_pes(team: Teams) -> int:
    """Return how many elements a team has."""
    Teams(team)
    return n_pes()


# -- the symmetric heap ------------------------------------------------------------------------------------------------


def array(
    shape: int | tuple, dtype: Any = "float32", release: bool = False, morder: str = "C", except_on_del: bool = True
) -> DeviceArray:
    """Allocate a symmetric array, uninitialised. All elements call it, with the same arguments.

    Raises
    ------
    NvshmemInvalid
        If the elements ask for different sizes.
    """
    element = _element()
    shape, strides, dtype = as_layout(shape, None, dtype, morder)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    allocation = _allocate(element, nbytes, dtype.itemsize)
    element.meet("array")
    for other in element.world.arrays[len(element.arrays) - 1]:
        if other is None or other.nbytes != nbytes:
            found = "none" if other is None else f"{other.nbytes:,} bytes"
            raise NvshmemInvalid(f"PE {element.number} allocates {nbytes:,} bytes and another PE {found}")
    return DeviceArray(shape, strides, dtype, gpu_data=DevicePointer(allocation))


def _allocate(element, nbytes, itemsize):
    push(element.number)
    try:
        allocation = Allocation(nbytes, "symmetric")
    finally:
        pop()
    allocation.known, allocation.movable = None, True
    element.world.add(len(element.arrays), element, allocation, itemsize)
    element.arrays.append(allocation)
    return allocation


def buffer(size: int, release: bool = False, except_on_del: bool = True) -> DeviceArray:
    """Allocate symmetric bytes, as `array` does."""
    return array(check_int("size", size, 0), np.uint8)


def free_array(array: DeviceArray) -> None:
    """Free a symmetric array. All elements call it."""
    element = _element()
    _check_symmetric("array", array)
    element.meet("free")
    array.allocation.free()


def free(buffer: DeviceArray) -> None:
    """Free a symmetric buffer. All elements call it."""
    free_array(buffer)


def get_peer_array(array: DeviceArray, peer_pe: int) -> DeviceArray:
    """View the counterpart of a symmetric array on another element."""
    element, pe = _element(), _check_pe("peer_pe", peer_pe)
    part = _check_symmetric("array", array)
    memory = array.gpu_data
    there: Any = element.world.arrays[part.array][pe]
    return DeviceArray(
        array.shape, array.strides, array.dtype, gpu_data=DevicePointer(there, memory.offset, memory.size)
    )


def _check_symmetric(name, value) -> pes.Part:
    found = as_device_array(value)
    part = None if found is None else _element().world.find(found.allocation.address)
    if part is None:
        raise NvshmemInvalid(f"{name} is {describe(value)}; it must be an array of nvshmem.core.array")
    return part


def _check_pe(name, pe):
    count = n_pes()
    if not 0 <= check_int(name, pe, -1) < count:
        raise NvshmemInvalid(f"{name} is {pe}; it must be a PE, from 0 to {count - 1}")
    return pe


# -- transfers in a stream ---------------------------------------------------------------------------------------------


def _check_given(stream):
    if stream is None:
        raise NotImplementedError("nvshmem.core has only operations in a stream: give stream=")
    check_stream(stream)


def _bytes(name, array):
    found: Any = as_device_array(array)
    if not isinstance(found, DeviceArray) or not found.is_c_contiguous():
        raise NvshmemInvalid(f"{name} is {describe(array)}; it must be a contiguous device array")
    return found.gpu_data.bytes[: found.nbytes]


def _copy(target, source):
    size = min(target.size, source.size)
    target[:size] = source[:size]
    _element().world.changes += 1


def put(dst: DeviceArray, src: DeviceArray, remote_pe: int = -1, stream: Any = None) -> None:
    """Copy ``src`` to the counterpart of ``dst`` on another element."""
    _check_given(stream)
    _check_symmetric("dst", dst)
    _copy(_bytes("dst", get_peer_array(dst, remote_pe)), _bytes("src", src))


def get(dst: DeviceArray, src: DeviceArray, remote_pe: int = -1, stream: Any = None) -> None:
    """Copy the counterpart of ``src`` on another element to ``dst``."""
    _check_given(stream)
    _check_symmetric("src", src)
    _copy(_bytes("dst", dst), _bytes("src", get_peer_array(src, remote_pe)))


def put_signal(
    dst: DeviceArray,
    src: DeviceArray,
    signal_var: DeviceArray,
    signal_val: int,
    signal_op: SignalOp,
    remote_pe: int = -1,
    stream: Any = None,
) -> None:
    """`put`, then a signal."""
    put(dst, src, remote_pe, stream)
    _signal(signal_var, signal_val, signal_op, remote_pe)


put_nbi, get_nbi, put_signal_nbi = put, get, put_signal


def signal_op(
    signal_var: DeviceArray, signal_val: int, signal_op: SignalOp, remote_pe: int = -1, stream: Any = None
) -> None:
    """Set or increase a signal on another element."""
    _check_given(stream)
    _signal(signal_var, signal_val, signal_op, remote_pe)


def _signal(signal_var, value, operation, pe):
    there, adds = get_peer_array(signal_var, pe), SignalOp(operation) is SignalOp.SIGNAL_ADD
    word = _word(there)
    word[0] = value + (word[0] if adds else 0)
    _element().world.changes += 1
    _note("add" if adds else "set", there)


def _note(what, signal_var, comparison=0, wanted=0):
    """Tell a trace of the order between elements."""
    element, address = _element(), signal_var.gpu_data.device_pointer_value
    tracker = element.world.tracker
    if tracker is not None:
        tracker.complete(element)  # a stream's operations come after its kernels
        value = int(_word(signal_var)[0])
        tracker.signal(element.number, what, element.world.find(address), value, comparison, wanted)


def _word(signal_var):
    _check_symmetric("signal_var", signal_var)
    raw = _bytes("signal_var", signal_var)
    if raw.size < 8:
        raise NvshmemInvalid("signal_var has less than 8 bytes")
    return raw[:8].view(np.uint64)


def signal_wait(signal_var: DeviceArray, signal_val: int, signal_op: ComparisonType, stream: Any = None) -> None:
    """Wait until the own signal compares so with a value.

    Raises
    ------
    Stuck
        If it never will: no element can go on.
    """
    _check_given(stream)
    word, holds, element = _word(signal_var), pes.COMPARISONS[ComparisonType(signal_op)], _element()
    while not holds(word[0], signal_val):
        if not element.wait(f"waits in signal_wait for {signal_val}", False):
            others = element.world.describe(element)
            raise pes.Stuck(f"PE {element.number} waits for signal {signal_val}, which never comes:\n{others}")
    _note("acquire", signal_var, int(signal_op), signal_val)


def signal_fetch(signal_var: DeviceArray) -> int:
    """Return the own signal."""
    return int(_word(signal_var)[0])


def quiet(stream: Any = None) -> None:
    """Wait until all transfers of the stream have arrived: they have."""
    _check_given(stream)


flush = quiet

# -- all elements ------------------------------------------------------------------------------------------------------


def barrier_all(stream: Any = None) -> None:
    """Wait for all elements, and until all transfers have arrived."""
    _check_stream_of_all("barrier", stream)
    _element().meet("barrier")


def barrier(team: Teams, stream: Any = None) -> None:
    """As `barrier_all`, for a team."""
    Teams(team)
    barrier_all(stream)


def sync_all(stream: Any = None) -> None:
    """Wait for all elements."""
    _check_stream_of_all("sync", stream)
    _element().meet("sync")


def _check_stream_of_all(name, stream):
    if stream is None:
        raise NvshmemInvalid(f"Stream may not be None for {name}")
    check_stream(stream)


def sync(team: Teams, stream: Any = None) -> None:
    """As `sync_all`, for a team."""
    Teams(team)
    sync_all(stream)


def reduce(team: Teams, dst_array: DeviceArray, src_array: DeviceArray, op: str, stream: Any = None) -> None:
    """Combine ``src_array`` of all elements into ``dst_array`` of each: "sum", "prod", "min", "max", "and" ..."""
    if op not in _REDUCTIONS:
        raise NvshmemInvalid(f"op is {describe(op)}; it must be one of {', '.join(_REDUCTIONS)}")
    parts = _gathered(team, src_array, stream)
    total = parts[0]
    for part in parts[1:]:
        total = _REDUCTIONS[op](total, part)
    _write(dst_array, total)


def broadcast(team: Teams, dst_array: DeviceArray, src_array: DeviceArray, root: int = 0, stream: Any = None) -> None:
    """Copy ``src_array`` of one element to ``dst_array`` of each."""
    _check_pe("root", root)
    _write(dst_array, _gathered(team, src_array, stream)[root])


def fcollect(team: Teams, dst_array: DeviceArray, src_array: DeviceArray, stream: Any = None) -> None:
    """Copy ``src_array`` of all elements, one after the other, to ``dst_array`` of each."""
    _write(dst_array, np.concatenate([part.reshape(-1) for part in _gathered(team, src_array, stream)]))


def _gathered(team, array, stream):
    """The contents of a symmetric array on every element."""
    Teams(team)
    check_stream(stream)
    element = _element()
    element.meet("a collective")
    found = [get_peer_array(array, pe).copy_to_host() for pe in range(n_pes())]
    element.meet("a collective")
    return found


def _write(array, values):
    raw = _bytes("dst_array", array)
    flat = np.ascontiguousarray(values, array.dtype).reshape(-1).view(np.uint8)
    if flat.size > raw.size:
        raise NvshmemInvalid(f"dst_array has {raw.size:,} bytes; it must have {flat.size:,}")
    raw[: flat.size] = flat
