"""The functions of ``nvshmem.core.device.numba`` for kernels, on emulated processing elements.

``dst`` of a put and ``src`` of a get are symmetric arrays, the caller's own; ``pe`` says of which element the
counterpart is meant. Of arrays of different sizes, the smaller size is copied. A function whose name ends in ``_warp``
or ``_block`` is called by all threads of a warp or block, with the same arguments.
"""

from warpstep._numba import cuda
from warpstep.compiler.blocks import LIBRARIES
from warpstep.launch import jit
from warpstep.nvshmem.core.device._primitives import (
    acquired,
    as_word,
    begin_data,
    complete_puts,
    flat,
    get_peer_array,
    my_pe,
    n_pes,
    released_by_add,
    released_by_set,
    signal_to_change,
    signal_to_wait_for,
    sync_words,
)

__all__ = [
    "alltoall",
    "alltoall_block",
    "alltoall_warp",
    "atomic_add",
    "atomic_and",
    "atomic_compare_swap",
    "atomic_fetch",
    "atomic_fetch_add",
    "atomic_fetch_and",
    "atomic_fetch_inc",
    "atomic_fetch_or",
    "atomic_fetch_xor",
    "atomic_inc",
    "atomic_or",
    "atomic_set",
    "atomic_swap",
    "atomic_xor",
    "barrier",
    "barrier_all",
    "barrier_all_block",
    "barrier_all_warp",
    "barrier_block",
    "barrier_warp",
    "broadcast",
    "broadcast_block",
    "broadcast_warp",
    "fcollect",
    "fcollect_block",
    "fcollect_warp",
    "g",
    "get",
    "get_block",
    "get_nbi",
    "get_nbi_block",
    "get_nbi_warp",
    "get_peer_array",
    "get_warp",
    "my_pe",
    "n_pes",
    "p",
    "put",
    "put_block",
    "put_nbi",
    "put_nbi_block",
    "put_nbi_warp",
    "put_signal",
    "put_signal_block",
    "put_signal_nbi",
    "put_signal_nbi_block",
    "put_signal_nbi_warp",
    "put_signal_warp",
    "put_warp",
    "reduce",
    "reduce_block",
    "reduce_warp",
    "signal_op",
    "signal_wait",
    "sync",
    "sync_all",
    "sync_all_block",
    "sync_all_warp",
    "sync_block",
    "sync_warp",
    "team_my_pe",
    "team_n_pes",
]

# A finding or count of what these functions do belongs to the line that calls them.
LIBRARIES.add(__file__)

#: ``SignalOp`` and ``ComparisonType`` as they are in a kernel.
_SET, _ADD = 9, 10
_EQ, _NE, _GT, _LE, _LT, _GE = range(6)

_device = jit(device=True)


@_device
def _copy(dst, src, first, step):
    for i in range(first, min(dst.size, src.size), step):
        dst[i] = src[i]


@_device
def _rank():
    return (cuda.threadIdx.z * cuda.blockDim.y + cuda.threadIdx.y) * cuda.blockDim.x + cuda.threadIdx.x


@_device
def _threads():
    return cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z


@_device
def _lanes():
    return min(32, _threads() - (_rank() - cuda.laneid))


@_device
def put(dst, src, pe):
    """Copy ``src`` to ``dst`` of an element. The data may arrive later: before a signal only by `put_signal`."""
    _copy(flat(get_peer_array(dst, pe)), flat(src), 0, 1)


@_device
def get(dst, src, pe):
    """Copy ``src`` of an element to ``dst``."""
    _copy(flat(dst), flat(get_peer_array(src, pe)), 0, 1)


@_device
def put_warp(dst, src, pe):
    """As `put`, by a warp."""
    cuda.syncwarp()
    _copy(flat(get_peer_array(dst, pe)), flat(src), cuda.laneid, _lanes())
    cuda.syncwarp()


@_device
def get_warp(dst, src, pe):
    """As `get`, by a warp."""
    cuda.syncwarp()
    _copy(flat(dst), flat(get_peer_array(src, pe)), cuda.laneid, _lanes())
    cuda.syncwarp()


@_device
def put_block(dst, src, pe):
    """As `put`, by a block."""
    cuda.syncthreads()
    _copy(flat(get_peer_array(dst, pe)), flat(src), _rank(), _threads())
    cuda.syncthreads()


@_device
def get_block(dst, src, pe):
    """As `get`, by a block."""
    cuda.syncthreads()
    _copy(flat(dst), flat(get_peer_array(src, pe)), _rank(), _threads())
    cuda.syncthreads()


put_nbi, put_nbi_warp, put_nbi_block = put, put_warp, put_block
get_nbi, get_nbi_warp, get_nbi_block = get, get_warp, get_block


@_device
def p(dst, value, pe):
    """Store a value in the first element of ``dst`` of an element."""
    flat(get_peer_array(dst, pe))[0] = value


@_device
def g(src, pe):
    """Load the first element of ``src`` of an element."""
    return flat(get_peer_array(src, pe))[0]


# -- signals -----------------------------------------------------------------------------------------------------------


@_device
def signal_op(signal_var, signal_val, signal_op, pe):
    """Set (``SignalOp.SIGNAL_SET``) or increase (``SIGNAL_ADD``) a signal of an element, a symmetric uint64 array."""
    word, value = get_peer_array(signal_to_change(signal_var, signal_val, signal_op, pe), pe), as_word(signal_val)
    if signal_op == _SET:
        cuda.atomic.exch(word, 0, value)
        released_by_set(word)
    elif signal_op == _ADD:
        cuda.atomic.add(word, 0, value)
        released_by_add(word)


@_device
def put_signal(dst, src, signal_var, signal_val, signal_op_, pe):
    """`put`, then `signal_op`: the signal arrives after the data."""
    begin_data()
    _copy(flat(get_peer_array(dst, pe)), flat(src), 0, 1)
    signal_op(signal_var, signal_val, signal_op_, pe)


@_device
def put_signal_warp(dst, src, signal_var, signal_val, signal_op_, pe):
    """As `put_signal`, by a warp."""
    begin_data()
    put_warp(dst, src, pe)
    if cuda.laneid == 0:
        signal_op(signal_var, signal_val, signal_op_, pe)
    cuda.syncwarp()


@_device
def put_signal_block(dst, src, signal_var, signal_val, signal_op_, pe):
    """As `put_signal`, by a block."""
    begin_data()
    put_block(dst, src, pe)
    if _rank() == 0:
        signal_op(signal_var, signal_val, signal_op_, pe)
    cuda.syncthreads()


put_signal_nbi, put_signal_nbi_warp, put_signal_nbi_block = put_signal, put_signal_warp, put_signal_block


@_device
def _holds(value, comparison, wanted):
    if comparison == _EQ:
        return value == wanted
    if comparison == _NE:
        return value != wanted
    if comparison == _GT:
        return value > wanted
    if comparison == _LE:
        return value <= wanted
    if comparison == _LT:
        return value < wanted
    return value >= wanted


@_device
def signal_wait(signal_var, signal_op, signal_val):
    """Wait until the own signal compares so (``ComparisonType.CMP_EQ`` ...) with a value; returns the signal."""
    word, wanted = signal_to_wait_for(signal_var, signal_op, signal_val), as_word(signal_val)
    value = cuda.ldcv(word, 0)
    while not _holds(value, signal_op, wanted):
        value = cuda.ldcv(word, 0)
    acquired(word, signal_op, wanted)
    return value


# -- all elements ------------------------------------------------------------------------------------------------------


@_device
def _meet():
    words = sync_words()
    wanted = (cuda.atomic.add(words, 1, 1) + 1) * n_pes()
    for pe in range(n_pes()):
        word = get_peer_array(words, pe)
        cuda.atomic.add(word, 0, 1)
        released_by_add(word)
    while cuda.ldcv(words, 0) < wanted:
        pass
    acquired(words, _GE, wanted)


@_device
def _meet_as_warp():
    cuda.syncwarp()
    if cuda.laneid == 0:
        _meet()
    cuda.syncwarp()


@_device
def _meet_as_block():
    cuda.syncthreads()
    if _rank() == 0:
        _meet()
    cuda.syncthreads()


@_device
def sync_all():
    """Wait for all elements. Puts need not have arrived: see `barrier_all`."""
    _meet()


@_device
def barrier_all():
    """Wait for all elements, and until all puts have arrived."""
    complete_puts()
    _meet()


@_device
def sync_all_warp():
    """As `sync_all`, by a warp."""
    _meet_as_warp()


@_device
def barrier_all_warp():
    """As `barrier_all`, by a warp."""
    complete_puts()
    sync_all_warp()


@_device
def sync_all_block():
    """As `sync_all`, by a block."""
    _meet_as_block()


@_device
def barrier_all_block():
    """As `barrier_all`, by a block."""
    complete_puts()
    sync_all_block()


@_device
def sync(team):
    """As `sync_all`: every team that there is has all elements."""
    _meet()


@_device
def sync_warp(team):
    """As `sync_all_warp`."""
    sync_all_warp()


@_device
def sync_block(team):
    """As `sync_all_block`."""
    sync_all_block()


@_device
def barrier(team):
    """As `barrier_all`."""
    barrier_all()


@_device
def barrier_warp(team):
    """As `barrier_all_warp`."""
    barrier_all_warp()


@_device
def barrier_block(team):
    """As `barrier_all_block`."""
    barrier_all_block()


@_device
def team_my_pe(team):
    """The number of this element in a team."""
    return my_pe()


@_device
def team_n_pes(team):
    """How many elements a team has."""
    return n_pes()


# -- collectives -------------------------------------------------------------------------------------------------------


@_device
def _collect(dst, src, first, step):
    for pe in range(n_pes()):
        part = flat(get_peer_array(src, pe))
        _copy(dst[pe * part.size : (pe + 1) * part.size], part, first, step)


@_device
def _exchange(dst, src, first, step):
    size = dst.size // n_pes()
    for pe in range(n_pes()):
        part = flat(get_peer_array(src, pe))[my_pe() * size : (my_pe() + 1) * size]
        _copy(dst[pe * size : (pe + 1) * size], part, first, step)


@_device
def _combined(a, b, op):
    if op == "sum":
        return a + b
    if op == "prod":
        return a * b
    if op == "min":
        return min(a, b)
    return max(a, b)


@_device
def _reduce(dst, src, op, first, step):
    for i in range(first, dst.size, step):
        total = flat(get_peer_array(src, 0))[i]
        for pe in range(1, n_pes()):
            total = _combined(total, flat(get_peer_array(src, pe))[i], op)
        dst[i] = total


@_device
def broadcast(team, dst_array, src_array, root=0):
    """Copy ``src_array`` of element ``root`` to ``dst_array`` of each."""
    _meet()
    if my_pe() != root:
        _copy(flat(dst_array), flat(get_peer_array(src_array, root)), 0, 1)
    _meet()
    if my_pe() == root:  # once the others have read its array, which may be this one
        _copy(flat(dst_array), flat(src_array), 0, 1)


@_device
def broadcast_warp(team, dst_array, src_array, root=0):
    """As `broadcast`, by a warp."""
    _meet_as_warp()
    if my_pe() != root:
        _copy(flat(dst_array), flat(get_peer_array(src_array, root)), cuda.laneid, _lanes())
    _meet_as_warp()
    if my_pe() == root:  # once the others have read its array, which may be this one
        _copy(flat(dst_array), flat(src_array), cuda.laneid, _lanes())
    cuda.syncwarp()


@_device
def broadcast_block(team, dst_array, src_array, root=0):
    """As `broadcast`, by a block."""
    _meet_as_block()
    if my_pe() != root:
        _copy(flat(dst_array), flat(get_peer_array(src_array, root)), _rank(), _threads())
    _meet_as_block()
    if my_pe() == root:  # once the others have read its array, which may be this one
        _copy(flat(dst_array), flat(src_array), _rank(), _threads())
    cuda.syncthreads()


@_device
def fcollect(team, dst_array, src_array):
    """Copy ``src_array`` of all elements, one after the other, to ``dst_array`` of each."""
    _meet()
    _collect(flat(dst_array), src_array, 0, 1)
    _meet()


@_device
def fcollect_warp(team, dst_array, src_array):
    """As `fcollect`, by a warp."""
    _meet_as_warp()
    _collect(flat(dst_array), src_array, cuda.laneid, _lanes())
    _meet_as_warp()


@_device
def fcollect_block(team, dst_array, src_array):
    """As `fcollect`, by a block."""
    _meet_as_block()
    _collect(flat(dst_array), src_array, _rank(), _threads())
    _meet_as_block()


@_device
def alltoall(team, dst_array, src_array):
    """Copy part i of ``src_array`` to element i, as its part with the number of this element."""
    _meet()
    _exchange(flat(dst_array), src_array, 0, 1)
    _meet()


@_device
def alltoall_warp(team, dst_array, src_array):
    """As `alltoall`, by a warp."""
    _meet_as_warp()
    _exchange(flat(dst_array), src_array, cuda.laneid, _lanes())
    _meet_as_warp()


@_device
def alltoall_block(team, dst_array, src_array):
    """As `alltoall`, by a block."""
    _meet_as_block()
    _exchange(flat(dst_array), src_array, _rank(), _threads())
    _meet_as_block()


@_device
def reduce(team, dst_array, src_array, op):
    """Combine ``src_array`` of all elements into ``dst_array``, another array, of each: "sum", "prod", "min", "max"."""
    _meet()
    _reduce(flat(dst_array), src_array, op, 0, 1)
    _meet()


@_device
def reduce_warp(team, dst_array, src_array, op):
    """As `reduce`, by a warp."""
    _meet_as_warp()
    _reduce(flat(dst_array), src_array, op, cuda.laneid, _lanes())
    _meet_as_warp()


@_device
def reduce_block(team, dst_array, src_array, op):
    """As `reduce`, by a block."""
    _meet_as_block()
    _reduce(flat(dst_array), src_array, op, _rank(), _threads())
    _meet_as_block()


# -- atomic operations -------------------------------------------------------------------------------------------------


@_device
def atomic_fetch(src, pe):
    """Load the first element of ``src`` of an element."""
    return cuda.atomic.add(flat(get_peer_array(src, pe)), 0, 0)


@_device
def atomic_set(dst, value, pe):
    """Store a value in the first element of ``dst`` of an element."""
    cuda.atomic.exch(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_swap(dst, value, pe):
    """As `atomic_set`; returns the value before."""
    return cuda.atomic.exch(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_compare_swap(dst, cond, value, pe):
    """Store a value if the first element is ``cond``; returns the value before."""
    return cuda.atomic.cas(flat(get_peer_array(dst, pe)), 0, cond, value)


@_device
def atomic_fetch_add(dst, value, pe):
    """Add to the first element of ``dst`` of an element; returns the value before."""
    return cuda.atomic.add(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_add(dst, value, pe):
    """Add to the first element of ``dst`` of an element."""
    cuda.atomic.add(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_fetch_inc(dst, pe):
    """Add 1 to the first element of ``dst`` of an element; returns the value before."""
    return cuda.atomic.add(flat(get_peer_array(dst, pe)), 0, 1)


@_device
def atomic_inc(dst, pe):
    """Add 1 to the first element of ``dst`` of an element."""
    cuda.atomic.add(flat(get_peer_array(dst, pe)), 0, 1)


@_device
def atomic_fetch_and(dst, value, pe):
    """Keep the common bits of the first element of ``dst`` of an element; returns the value before."""
    return cuda.atomic.and_(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_and(dst, value, pe):
    """As `atomic_fetch_and`, without the value."""
    cuda.atomic.and_(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_fetch_or(dst, value, pe):
    """Set bits of the first element of ``dst`` of an element; returns the value before."""
    return cuda.atomic.or_(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_or(dst, value, pe):
    """As `atomic_fetch_or`, without the value."""
    cuda.atomic.or_(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_fetch_xor(dst, value, pe):
    """Flip bits of the first element of ``dst`` of an element; returns the value before."""
    return cuda.atomic.xor(flat(get_peer_array(dst, pe)), 0, value)


@_device
def atomic_xor(dst, value, pe):
    """As `atomic_fetch_xor`, without the value."""
    cuda.atomic.xor(flat(get_peer_array(dst, pe)), 0, value)
