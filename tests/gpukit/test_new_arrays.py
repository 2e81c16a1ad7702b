"""New arrays of any library, and memory that is lent to one array of Numba after another."""

import random
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from gpukit import _numba, indexing
from gpukit._host import new_arrays
from gpukit._host.arrays import address_of
from gpukit._host.keys import array_key
from gpukit._host.new_arrays import Lender, make_like
from gpukit._numba import cuda_api_error, device_array_class, device_pointer, make_array_in
from gpukit.backend import cuda

LIBRARIES = ["numba", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("torch", "devices", "public", "cupy"))]


@pytest.mark.parametrize("library", LIBRARIES)
def test_new_outputs_are_those_of_their_library(library, monkeypatch):
    if library == "numba":
        make_empty: object = cuda.device_array
    elif library == "cupy":
        make_empty = pytest.importorskip("cupy").empty
    else:
        torch = pytest.importorskip("torch")

        def make_empty(shape, dtype):
            return torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")

        if library == "devices":  # several of them, once PyTorch has counted those there are
            torch.cuda.init()
            monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        elif library == "public":  # a release without the private function
            monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cuda", raising=False)
    like = make_empty(3, "float32")
    for shape in ((), (5,), (3, 4), (0, 3), (3, 0), (1, 2, 1), (1500, 1000)):
        for dtype in ("float16", "uint8", "float64"):
            make, expected = make_like(like, shape, np.dtype(dtype)), array_key(make_empty(shape, dtype))[0]
            addresses = []
            made = [make(addresses) for _ in range(3)]
            assert all(type(array) is type(like) for array in made)
            assert list(map(array_key, made)) == [(expected, at) for at in addresses]
            assert len(set(addresses)) == 3 or 0 in shape


class Tensor:
    """One of PyTorch, as far as new ones like it need it."""

    __module__, device = "torch", "cuda:0"

    def __init__(self, stream):
        self.stream = stream

    def get_device(self):
        return 0

    def data_ptr(self):
        return 4096


def test_new_tensors_are_in_the_memory_of_the_stream(monkeypatch):
    """And the current stream stays the current one, also where there is no memory."""
    current, room = [0], [True]

    def allocate(shape, strides, dtype):
        if not room[0]:
            raise MemoryError
        return Tensor(current[0])

    streams = SimpleNamespace(
        device_count=lambda: 1,
        current_stream=lambda device: current[0],
        set_stream=lambda stream: current.__setitem__(0, stream),
        ExternalStream=lambda handle, device: handle,
    )
    private = SimpleNamespace(
        _dynamo=SimpleNamespace(guards=SimpleNamespace(_empty_strided_cuda=allocate)),
        _cuda_getCurrentRawStream=lambda device: current[0],
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=streams, _C=private))
    for module, name in ((new_arrays, "make_current_of_torch"), (new_arrays, "stream_of_torch")):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)  # nothing of this is kept
    monkeypatch.setattr(new_arrays, "_torch_dtype", str)
    make, addresses = make_like(Tensor(0), (3,), np.dtype(np.float32), SimpleNamespace(handle=7)), []
    for now in (0, 7, 5):
        current[0] = now
        assert make(addresses).stream == 7 and current == [now]
    room[0] = False
    with pytest.raises(MemoryError):
        make(addresses)
    assert current == [5] and addresses == [4096] * 3


def numba_array():
    """An array of Numba's class, although there may be no GPU."""
    return device_array_class()((3, 4), (16, 4), np.float32, gpu_data=SimpleNamespace(context="a context"))


def test_an_array_in_a_block_of_memory():
    """It has all that an array of its own memory has; what is left of it keeps the block."""
    like, back = numba_array(), []
    make, blocks = make_array_in(like, back.append), [(device_pointer(address), "memory") for address in (4096, 8192)]
    array, other = map(make, blocks)
    assert type(array) is type(like) and vars(like).keys() == vars(array).keys()
    interface = {"shape": (3, 4), "strides": None, "data": (4096, False), "typestr": "<f4", "stream": None}
    assert array.__cuda_array_interface__ == interface | {"version": 3}
    plain = type(array.gpu_data).__base__("a context", device_pointer(4096), 48)
    assert all(str(getattr(array.gpu_data, name)) == str(value) for name, value in vars(plain).items())
    assert other.device_ctypes_pointer.value == 8192
    row = other.gpu_data.view(16)
    assert row.device_ctypes_pointer.value == 8208
    del other
    assert not back
    del row
    assert back == blocks[1:]
    del array
    assert back == blocks[::-1]


@pytest.fixture
def lend():
    """Lend memory for arrays of Numba's class."""
    like, makers = numba_array(), {}

    def lend(lender, size):
        make = makers.setdefault(lender, make_array_in(like, lender.back.append))
        return make(lender.lend(size))

    return lend


@pytest.fixture
def host(monkeypatch):
    """What a lender asks of ``cuda``; ``during`` happens while it waits."""
    host = SimpleNamespace(waits=0, during=lambda: None, gpus=cuda.gpus)

    def synchronize():
        host.waits += 1
        host.during()

    host.synchronize = synchronize
    monkeypatch.setattr(new_arrays, "cuda", host)
    return host


def test_memory_is_lent_again_only_after_a_wait(host, lend):
    lender, rng, live, in_use, seen, again = Lender(0, 80 * 512), random.Random(1), [], set(), set(), 0

    def let_go():
        in_use.add(bounds(live.pop(rng.randrange(len(live)))))

    def bounds(array):
        _, address, size, memory = array.gpu_data.block
        assert 0 <= address - address_of(memory) <= memory.size - size
        return address, address + size

    def during():
        in_use.clear()
        if live:  # another thread lets go of an array
            let_go()

    host.during = during
    for _ in range(2000):
        if live and rng.random() < len(live) / 20:
            let_go()
            continue
        size = 512 * rng.randint(1, 3)
        array = lend(lender, size)
        start, end = bounds(array)
        assert end - start == size and all(end <= low or high <= start for low, high in {*in_use, *map(bounds, live)})
        again += start in seen
        seen.add(start)
        live.append(array)
    assert host.waits > 20 and again > 200


def test_many_arrays_cost_one_wait(host, lend):
    lender = Lender(0)
    for _ in range(20 * new_arrays.MAX_BACK):
        lend(lender, 512)
    assert host.waits == 19 and len(lender.back) + len(lender.ready[512]) == new_arrays.MAX_BACK
    large = 2 * lender.max_bytes // 3
    addresses = {lend(lender, size).gpu_data.block[1] for size in (1024, large, large)}
    assert host.waits == 20  # for the small ones
    assert lend(lender, large).gpu_data.block[1] in addresses and host.waits == 21


def test_few_allocations_serve_many_arrays_of_a_size(host, lend, monkeypatch):
    made, allocate = [], new_arrays.allocate
    monkeypatch.setattr(new_arrays, "allocate", lambda *what: made.append(what[1][0]) or allocate(*what))
    lender = Lender(0)
    live = [lend(lender, 512) for _ in range(100)]
    assert made == [512 * n for n in (1, 1, 2, 4, 8, 16, 32, 32, 32)]
    live += [lend(lender, new_arrays.MAX_SHARED // 2) for _ in range(4)]
    assert made[9:] == [new_arrays.MAX_SHARED // 2 * n for n in (1, 1, 2)]


def test_another_thread_may_take_the_last_block(host, lend):
    class Contended(list):
        """Blocks that are gone when they are taken."""

        def __bool__(self):
            return True

    lender = Lender(0)
    lender.ready[512] = Contended()
    assert lend(lender, 512).gpu_data.block[2] == 512


def test_memory_kept_for_new_arrays_is_bounded(host, lend):
    lender = Lender(0, 40 * 512)
    live = [lend(lender, 512) for _ in range(200)]
    del live
    lend(lender, 512)
    assert host.waits == 1 and len(lender.back) == 1 and len(lender.ready[512]) == 39


def test_memory_that_cannot_be_waited_for_stays_back(host, lend):
    """Launches are being captured: the device cannot be waited for, and new memory is allocated."""

    def refuse():
        raise cuda_api_error()(900, "the stream is capturing")

    host.during, lender = refuse, Lender(0)
    addresses = {lend(lender, 512).gpu_data.block[1] for _ in range(3 * new_arrays.MAX_BACK)}
    assert len(lender.back) == len(addresses) == 3 * new_arrays.MAX_BACK


def test_memory_that_is_not_lent_is_let_go_where_any_array_needs_it(host, lend, monkeypatch):
    lender, code, refused = Lender(0), "CUDA_ERROR_OUT_OF_MEMORY", []

    def allocate(size):
        if size > 1000 or lender.back or any(lender.ready.values()):
            refused.append(size)
            raise cuda_api_error()(2, code)
        return size

    manager = SimpleNamespace(memalloc=allocate)
    monkeypatch.setattr(_numba.numba.cuda, "current_context", lambda: SimpleNamespace(memory_manager=manager))
    _numba.free_when_short(lender.free)
    for _ in range(new_arrays.MAX_BACK + 2):
        lend(lender, 512)
    assert lender.back and lender.ready[512]
    assert manager.memalloc(1000) == 1000 and refused == [1000]
    with pytest.raises(cuda_api_error()):
        manager.memalloc(1001)
    assert refused == [1000, 1001, 1001]
    lend(lender, 512)
    code = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(cuda_api_error()):
        manager.memalloc(1)
    assert len(lender.back) == 1


def test_threads_never_share_memory(host, lend):
    lender, taken, wrong = Lender(0), set(), []

    def work(seed):
        rng, live = random.Random(seed), []
        for turn in range(400):
            if live and (rng.random() < 0.5 or turn > 300):
                taken.discard(live[-1].gpu_data.block[1])
                live.pop()
            elif turn < 300:
                live.append(lend(lender, 512))
                if live[-1].gpu_data.block[1] in taken:
                    wrong.append(seed)
                taken.add(live[-1].gpu_data.block[1])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and host.waits


@cuda.jit
def copy_late(x, out, milliseconds):
    for _ in range(milliseconds):
        cuda.nanosleep(1_000_000)
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]


@pytest.mark.gpu
def test_results_of_numba_are_kept_while_they_are_used():
    n, late = 1000, cuda.stream()
    x, zeros = cuda.to_device(np.arange(n, dtype=np.float64)), cuda.to_device(np.zeros(n))
    outs = [cuda.device_array(n) for _ in range(5)]
    for turn, out in enumerate(outs):
        first = indexing.axpy(turn, x, zeros)
        part = indexing.axpy(turn, x, zeros)[10:20]
        cuda.synchronize()
        copy_late[4, 256, late](first, out, 20)
        del first  # the launch on the other stream still reads it
        results = [indexing.axpy(k, x, zeros) for k in range(50)]
        for _ in range(3 * new_arrays.MAX_BACK):
            indexing.axpy(-1.0, x, zeros)
        for k, result in enumerate(results):
            np.testing.assert_array_equal(result.copy_to_host(), k * np.arange(n))
        np.testing.assert_array_equal(part.copy_to_host(), turn * np.arange(10, 20))
        np.testing.assert_array_equal(indexing.axpy(1, part, part).copy_to_host(), 2 * turn * np.arange(10, 20))
    cuda.synchronize()
    for turn, out in enumerate(outs):
        np.testing.assert_array_equal(out.copy_to_host(), turn * np.arange(n))
