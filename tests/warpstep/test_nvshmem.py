"""NVSHMEM without a GPU: transfers and signals between processing elements, and what goes wrong between them."""

import subprocess
import sys

import numpy as np
import pytest
from numba.core.errors import TypingError

from warpstep import KernelError, cuda, nvshmem, trace
from warpstep.nvshmem import core
from warpstep.nvshmem.bindings.device.numba import fence
from warpstep.nvshmem.core.device import numba as shmem
from warpstep.run import Launches

SET, ADD = core.SignalOp.SIGNAL_SET, core.SignalOp.SIGNAL_ADD
EQ, GE = core.ComparisonType.CMP_EQ, core.ComparisonType.CMP_GE
WORLD = core.Teams.TEAM_WORLD
N = 64


def begin(rank, nranks, uid):
    """The symmetric arrays x, all rank + 1, inbox, all 0, a signal and out."""
    core.init(uid=uid, rank=rank, nranks=nranks, initializer_method="uid")
    x, inbox, signal, out = core.array(N), core.array(N), core.array(1, "uint64"), core.array(N)
    x.copy_to_device(np.full(N, rank + 1, np.float32))
    inbox.copy_to_device(np.zeros(N, np.float32))
    signal.copy_to_device(np.zeros(1, np.uint64))
    core.barrier(WORLD, cuda.default_stream())
    return x, inbox, signal, out


def launched(rank, nranks, uid, kernel, grid=1, block=N, args=()):
    """Launch a kernel on each element; returns what it leaves in out and inbox."""
    arrays = begin(rank, nranks, uid)
    kernel[grid, block](*arrays, *args)
    core.barrier_all(cuda.default_stream())
    found = arrays[3].copy_to_host(), arrays[1].copy_to_host(), core.signal_fetch(arrays[2])
    core.finalize()
    return found


def traced(rank, nranks, uid, kernel):
    made = trace(kernel[1, N], *begin(rank, nranks, uid))
    core.finalize()
    return made


@cuda.jit
def ring(x, inbox, signal, out):
    i, right = cuda.threadIdx.x, (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(inbox, x, signal, 1, SET, right)
    if i == 0:
        shmem.signal_wait(signal, GE, 1)
    cuda.syncthreads()
    out[i] = x[i] + inbox[i]


def test_each_element_has_a_device_and_gets_what_its_neighbour_sends():
    def program(rank, nranks, uid):
        assert (cuda.get_current_device().id, len(cuda.gpus)) == (rank, nranks)
        return launched(rank, nranks, uid, ring)

    for count in (1, 2, 5):
        sums = [found[0] for found in nvshmem.run(program, count)]
        assert [set(s.tolist()) for s in sums] == [{rank + 1 + (rank - 1) % count + 1} for rank in range(count)]
    assert len(cuda.gpus) == 1


@cuda.jit
def many_ways(x, inbox, signal, out, integers):
    me, other = shmem.my_pe(), 1 - shmem.my_pe()
    i = cuda.threadIdx.x
    shmem.put(inbox[i : i + 1], x[i : i + 1], (me + i) % 2)  # a PE that differs by thread
    shmem.barrier_all_block()
    shmem.get_block(out, x, other)
    if i < 32:
        shmem.put_warp(inbox[32:], out[:20], me)
    there = shmem.get_peer_array(integers, other)
    cuda.atomic.add(there, 0, 1)
    if i == 0:
        shmem.atomic_add(integers[1:], 5, other)
        shmem.atomic_set(integers[2:], 9, other)
        integers[3] = shmem.atomic_fetch_add(integers[4:], 7, me) + shmem.g(x, other)
        shmem.p(integers[5:], 11, other)
    shmem.barrier_all_block()


def test_transfers_by_thread_warp_and_block_and_atomic_operations():
    def program(rank, nranks, uid):
        arrays = begin(rank, nranks, uid)
        integers = core.array(6, "int64")
        integers.copy_to_device(np.arange(6) * 100)
        core.barrier_all(cuda.default_stream())
        many_ways[1, N](*arrays, integers)
        return arrays[1].copy_to_host(), arrays[3].copy_to_host(), integers.copy_to_host()

    for rank, (inbox, out, integers) in enumerate(nvshmem.run(program)):
        mine, other = rank + 1, 2 - rank
        expected = np.where(np.arange(N) % 2, other, mine)
        expected[32:52] = other
        np.testing.assert_array_equal(inbox, expected)
        assert set(out.tolist()) == {other}
        assert integers.tolist() == [N, 105, 9, 400 + other, 407, 11]


@cuda.jit
def collectives(x, inbox, everyone, exchanged):
    shmem.reduce_block(WORLD, inbox, x, "sum")
    shmem.fcollect_block(WORLD, everyone, x)
    shmem.alltoall_block(WORLD, exchanged, everyone)
    shmem.broadcast_block(WORLD, x, x, 2)


def test_collectives_in_a_kernel():
    def program(rank, nranks, uid):
        x, inbox, _, _ = begin(rank, nranks, uid)
        everyone, exchanged = core.array(N * nranks), core.array(N * nranks)
        made = trace(collectives[1, 32], x, inbox, everyone, exchanged)
        assert not made.findings
        return [array.copy_to_host().reshape(-1, N)[:, 5].tolist() for array in (inbox, everyone, exchanged, x)]

    found = nvshmem.run(program, 3)
    assert found == [[[6], [1, 2, 3], [rank + 1] * 3, [3]] for rank in range(3)]


@cuda.jit
def block_waits_for_later_blocks(x, inbox, signal, out):
    other = 1 - shmem.my_pe()
    if cuda.blockIdx.x == 0:
        if cuda.threadIdx.x == 0:
            shmem.signal_wait(signal, EQ, cuda.gridDim.x - 1)
    elif cuda.threadIdx.x == 0:
        shmem.signal_op(signal, 1, ADD, other)


def test_a_block_waits_for_blocks_of_another_element_that_have_not_begun():
    found = nvshmem.run(launched, args=(block_waits_for_later_blocks, 400, 128))
    assert [signal for _, _, signal in found] == [399, 399]


@cuda.jit
def lost(x, inbox, signal, out):
    if shmem.my_pe() == 1:
        shmem.signal_op(signal, 1, SET, 0)
        shmem.signal_wait(signal, GE, 1)


def test_a_lost_signal_is_named_with_pe_and_line():
    with pytest.raises(KernelError, match="PE 1: a thread waits for a signal that never comes") as caught:
        nvshmem.run(launched, args=(lost,))
    assert caught.value.kind == "lost-signal"
    assert caught.value.line == lost.py_func.__code__.co_firstlineno + 4
    assert "PE 0 waits for the others in barrier" in str(caught.value)


def test_elements_that_wait_for_each_other_on_the_host():
    def different(rank, nranks, uid):
        begin(rank, nranks, uid)
        core.barrier_all(cuda.default_stream()) if rank else core.array(4)

    def sizes(rank, nranks, uid):
        begin(rank, nranks, uid)
        core.array(4 + rank)

    def nobody_signals(rank, nranks, uid):
        core.signal_wait(begin(rank, nranks, uid)[2], 3, EQ, cuda.default_stream())

    def raises(rank, nranks, uid):
        begin(rank, nranks, uid)
        if rank == 1:
            raise ZeroDivisionError("own")
        core.barrier_all(cuda.default_stream())

    with pytest.raises(nvshmem.Stuck, match="PE 1 waits in barrier for the others.*\n  PE 0 waits .* in array"):
        nvshmem.run(different)
    with pytest.raises(core.NvshmemInvalid, match="allocates 20 bytes and another PE 16"):
        nvshmem.run(sizes)
    with pytest.raises(nvshmem.Stuck, match="waits for signal 3, which never comes"):
        nvshmem.run(nobody_signals)
    with pytest.raises(ZeroDivisionError) as caught:
        nvshmem.run(raises)
    assert caught.value.__notes__ == ["in PE 1 of 2"]


@cuda.jit
def reads_early(x, inbox, signal, out):
    other = 1 - shmem.my_pe()
    shmem.put_signal_block(inbox, x, signal, 1, SET, other)
    out[cuda.threadIdx.x] = inbox[cuda.threadIdx.x]  # bug
    if cuda.threadIdx.x == 0:
        shmem.signal_wait(signal, GE, 1)


@cuda.jit
def signal_overtakes(x, inbox, signal, out):
    other = 1 - shmem.my_pe()
    shmem.put_block(inbox, x, other)
    if cuda.threadIdx.x == 0:
        shmem.signal_op(signal, 1, SET, other)
        shmem.signal_wait(signal, GE, 1)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = inbox[cuda.threadIdx.x]  # bug


@cuda.jit
def fenced(x, inbox, signal, out):
    other = 1 - shmem.my_pe()
    shmem.put_block(inbox, x, other)
    if cuda.threadIdx.x == 0:
        fence()
        shmem.signal_op(signal, 1, SET, other)
        shmem.signal_wait(signal, GE, 1)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = inbox[cuda.threadIdx.x]


@cuda.jit
def meets(x, inbox, signal, out):
    there = shmem.get_peer_array(inbox, 1 - shmem.my_pe())
    there[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    shmem.barrier_all_block()
    out[cuda.threadIdx.x] = inbox[cuda.threadIdx.x]


@cuda.jit
def meets_without_arriving(x, inbox, signal, out):
    shmem.put_block(inbox, x, 1 - shmem.my_pe())
    shmem.sync_all_block()
    out[cuda.threadIdx.x] = inbox[cuda.threadIdx.x]  # bug


@cuda.jit
def overwrites_unread(x, inbox, signal, out):
    other = 1 - shmem.my_pe()
    for turn in range(1, 3):
        shmem.put_signal_block(inbox, x, signal, turn, SET, other)  # bug
        if cuda.threadIdx.x == 0:
            shmem.signal_wait(signal, GE, turn)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = inbox[cuda.threadIdx.x]  # bug


@cuda.jit
def two_inboxes(x, inbox, signal, out):
    other, i = 1 - shmem.my_pe(), cuda.threadIdx.x
    for turn in range(1, 5):
        half = inbox[turn % 2 * 32 : turn % 2 * 32 + 32]  # the other one may still be read
        shmem.put_signal_block(half, x[:32], signal, turn, SET, other)
        if i == 0:
            shmem.signal_wait(signal, GE, turn)
        cuda.syncthreads()
        if i < 32:
            out[i] = half[i]
        cuda.syncthreads()


@pytest.mark.parametrize("kernel", [ring, fenced, meets, two_inboxes])
def test_what_signals_order_is_no_finding(kernel):
    assert [made.findings for made in nvshmem.run(traced, args=(kernel,))] == [[], []]


@pytest.mark.parametrize("kernel", [reads_early, signal_overtakes, meets_without_arriving, overwrites_unread])
def test_what_no_signal_orders_is_found_with_pe_and_line(kernel):
    made = nvshmem.run(traced, args=(kernel,))
    found = [finding for trace in made for finding in trace.findings]
    first, source = made[0].source
    bugs = {first + i for i, line in enumerate(source.splitlines()) if "# bug" in line}
    assert {f.kind for f in found} == {"race"} and bugs & {f.line for f in found}
    for finding in found:
        assert "PE 0 " in finding.message and "PE 1 " in finding.message and "no signal orders" in finding.message
        # Either side of a conflict may come second.
        assert finding.line in bugs or any(f"at line {line}" in finding.message for line in bugs)
    assert any("overtake" in f.cure for f in found) == (kernel in (signal_overtakes, meets_without_arriving))


def test_link_bytes_are_counted_at_the_line_that_calls():
    made = nvshmem.run(traced, args=(ring,))[0]
    assert "PE 0 of 2, 1 block of 64 threads" in str(made).replace(";", ",")
    line = ring.py_func.__code__.co_firstlineno + 3
    counted = {(a.array, a.op): (a.line, a.link_bytes) for a in made.accesses if a.link_bytes}
    assert counted == {("inbox of PE 1", "store"): (line, 4 * N), ("signal of PE 1", "atomic"): (line, 32)}


def test_memory_without_a_counterpart_and_elements_that_are_not_there():
    @cuda.jit
    def put(dst, src, pe):
        shmem.put(dst, src, pe)

    def program(rank, nranks, uid, symmetric, pe):
        x = begin(rank, nranks, uid)[0]
        put[1, 1](x if symmetric else cuda.device_array(N, np.float32), x, pe)

    with pytest.raises(KernelError, match="PE 0: 'dst' of PE 0 is not in the symmetric heap"):
        nvshmem.run(program, args=(False, 1))
    with pytest.raises(KernelError, match="there is no PE 2: there are 2"):
        nvshmem.run(program, args=(True, 2))


@pytest.mark.parametrize(
    ("dtype", "comparison", "value", "message"),
    [
        ("uint64", 5, 1.0, None),  # numbers are converted
        ("uint64", GE, True, None),
        ("int64", GE, 1, r"No match for \w+\(int64\*, .*\n.*\(uint64\*, "),
        ("uint32", 5, 1, r"No match for \w+\(uint32\*, .*\n.*\(uint64\*, "),
        ("uint64", None, 1, r"No match for \w+\(uint64\*, none, int64\)"),
        ("uint64", GE, 1j, r"No match for \w+\(uint64\*, .*complex128"),
    ],
)
def test_signals_take_the_types_of_the_package(dtype, comparison, value, message):
    @cuda.jit
    def sets(signal):
        shmem.signal_op(signal, value, SET, shmem.my_pe())

    @cuda.jit
    def waits(signal):
        shmem.signal_wait(signal, comparison, value)

    @cuda.jit
    def every_other(signal):
        shmem.signal_wait(signal[::2], GE, 1)

    def program(rank, nranks, uid):
        core.init(uid=uid, rank=rank, nranks=nranks, initializer_method="uid")
        signal = core.array(2, dtype)
        with pytest.raises(TypingError, match="unsupported on non-contiguous buffers"):
            every_other[1, 1](signal)
        if message is None:
            sets[1, 1](signal)
            waits[1, 1](signal)
            return core.signal_fetch(signal)
        for kernel in (sets, waits) if comparison is not None else (waits,):
            with pytest.raises(TypingError, match=message):
                kernel[1, 1](signal)
        return 1

    assert nvshmem.run(program, 1) == [1]


def test_host_transfers_and_collectives():
    @cuda.jit
    def copy(x, out):
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x]

    def program(rank, nranks, uid):
        stream = cuda.stream()
        x, inbox, signal, out = begin(rank, nranks, uid)
        copy[1, N](core.get_peer_array(x, 2 - rank), out)
        assert set(out.copy_to_host().tolist()) == {3 - rank}
        core.put_signal(inbox, x, signal, 4, ADD, (rank + 1) % nranks, stream)
        core.signal_wait(signal, 4, EQ, stream)
        core.reduce(WORLD, out, x, "sum", stream)
        everyone = core.array(N * nranks)
        core.fcollect(WORLD, everyone, x, stream)
        core.broadcast(WORLD, x, x, 2, stream)
        parts = inbox, out, everyone[::N] if nranks == 1 else everyone, x
        return [sorted(set(part.copy_to_host().tolist())) for part in parts]

    assert nvshmem.run(program, 3)[1] == [[1], [6], [1, 2, 3], [3]]


def test_gpukit_run_gives_programs_the_emulated_nvshmem(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import numpy as np\n"
        "import nvshmem.core\n"
        "from nvshmem.core.device.numba import my_pe, n_pes, put\n"
        "from numba import cuda\n"
        "nvshmem.core.init(uid=nvshmem.core.get_unique_id(), rank=0, nranks=1, initializer_method='uid')\n"
        "@cuda.jit\n"
        "def kernel(x):\n"
        "    put(x[1:], x[:1], my_pe())\n"
        "    x[2] = n_pes()\n"
        "x = nvshmem.core.array(3)\n"
        "x.copy_to_device(np.full(3, 7, np.float32))\n"
        "kernel[1, 1](x)\n"
        "print(cuda.as_cuda_array(x).copy_to_host())\n"
    )
    command = [sys.executable, "-m", "gpukit", "run", str(script)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[7. 7. 1.]\n"


def test_every_launch_of_every_element_is_traced():
    with Launches(lambda number: True) as launches:
        nvshmem.run(launched, args=(reads_early,))
    assert {finding.kind for finding in launches.findings} == {"race"}
    assert [count for _, count in launches.found.values()] == [2]
