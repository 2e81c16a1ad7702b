"""New arrays of any library, and one after another at little cost."""

import collections
import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukit._host.arrays import (
    address_of,
    allocate,
    as_device_array,
    handle_of,
    library_of,
    make_current_of_torch,
    name_of,
    stream_for,
    stream_of_torch,
)
from gpukit._host.keys import array_key
from gpukit._numba import cuda_api_error, device_pointer, free_when_short, make_array_in
from gpukit.backend import cuda, on_gpu
from warpstep.integers import ceil_div

__all__ = ["Lender", "free_lent_memory", "make_like", "make_recorded_allocate", "new_like"]

#: Memory of Numba's results is lent in multiples of so many bytes.
UNIT = 512
#: The device is waited for when so many parts have come back.
MAX_BACK = 32
#: Bytes that are allocated before sizes that nobody asks for are let go, and that are kept ready at most: so many,
#: or this share of the device's memory.
MAX_MADE, SHARE = 256 << 20, 64
#: Bytes of an allocation that blocks share.
MAX_SHARED = 4 << 20


def new_like(like, shape: tuple, dtype, stream) -> Any:
    """Make an uninitialised device array of the library that ``like`` comes from."""
    library = library_of(like)
    if library == "torch":
        return like.new_empty(shape, dtype=_torch_dtype(dtype))
    if library == "cupy":
        return type(like)(shape, dtype)
    return allocate("the result", shape, dtype, stream)


def make_recorded_allocate(like, stream) -> Callable[[int], Any]:
    """Make a function that allocates bytes for launches that a CUDA graph records in a stream: they stay the graph's.

    PyTorch has such memory, for tensors made on its current stream: what a graph no longer needs there serves what the
    graph does later. It raises RuntimeError if ``like`` is no tensor, or the stream is another one.
    """
    if library_of(like) == "torch" and handle_of(stream_for(None, like)) == handle_of(stream):
        dtype = _torch_dtype(np.dtype(np.uint8))
        return lambda nbytes: as_device_array(like.new_empty(nbytes, dtype=dtype))

    def allocate(nbytes):
        raise RuntimeError(
            "a CUDA graph records the stream, and the call needs memory that stays the graph's: "
            "pass PyTorch tensors, on PyTorch's current stream"
        )

    return allocate


def make_like(like, shape: tuple, dtype, stream=0) -> Callable[[list], Any]:
    """Make a function that makes one array after another as `new_like` does, and adds its address to a list."""
    if library_of(like) == "torch":
        return _make_like_torch(like, shape, _torch_dtype(dtype), handle_of(stream))
    if library_of(like) == "cupy":
        kind = type(like)

        def make_cupy(pointers):
            array = kind(shape, dtype)
            pointers.append(array.data.ptr)
            return array

        return make_cupy

    return _make_like_numba(shape, np.dtype(dtype), stream)


def _make_like_torch(like, shape, dtype, handle):
    torch: Any = sys.modules["torch"]
    shape, device, index = tuple(map(int, shape)), like.device, like.get_device()
    strides, alone = _torch_strides(shape), torch.cuda.device_count() == 1
    # The programs that torch.compile makes allocate with this function, on the current device, in half of the time that
    # the public one takes. It is private: a release may be without it.
    here: Any = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)

    def make_here(pointers):
        array = here(shape, strides, dtype)
        pointers.append(array.data_ptr())
        return array

    def make_there(pointers):
        if here is not None and torch.cuda.current_device() == index:
            return make_here(pointers)
        array = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        pointers.append(array.data_ptr())
        return array

    make = make_here if here is not None and alone else make_there
    if not handle:  # where it is not the current one, a call has made it so
        return make
    current_handle, stream = make_current_of_torch(), stream_of_torch(handle, index)
    current_stream, set_stream = torch.cuda.current_stream, torch.cuda.set_stream

    def make_in_stream(pointers):
        if current_handle(index) == handle:
            return make(pointers)
        before = current_stream(index)
        set_stream(stream)
        try:
            return make(pointers)
        finally:
            set_stream(before)

    return make_in_stream


def _torch_strides(shape):
    """The strides of a contiguous tensor, in elements: an axis of length 0 counts as one of 1."""
    return tuple(math.prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape)))


@functools.cache
def _torch_dtype(dtype):
    return getattr(sys.modules["torch"], name_of(dtype))


# -- Numba -----------------------------------------------------------------------------------------


def _make_like_numba(shape, dtype, stream):
    size = ceil_div(math.prod(shape) * dtype.itemsize, UNIT) * UNIT
    lender = _lender_of(cuda.get_current_device().id) if on_gpu() else None
    if lender is None or not 0 < size <= lender.max_bytes:

        def make_one(pointers):
            array = allocate("the result", shape, dtype, stream)
            pointers.append(address_of(array))
            return array

        return make_one
    like = allocate("the result", shape, dtype, stream)
    make, lend = make_array_in(like, lender.back.append), lender.lend
    array_key(like)  # leaves the keys with it
    key, aligned, _ = like._gpukit_place

    def make_numba(pointers):
        block = lend(size)
        array, address = make(block), block[1]
        array._gpukit_place = key, aligned, address
        pointers.append(address)
        return array

    return make_numba


class Lender:
    """Memory of a device for one array after another: what comes back is lent again.

    When an array is gone, work that uses it may be under way, on any stream. Therefore the device is waited for first,
    once for many arrays. Numba does the same when it frees memory. All that is not lent is let go where an allocation
    of Numba finds no memory; one of another library cannot ask for it.

    Parameters
    ----------
    device : int
    max_made : int
        Bytes that are allocated before sizes that nobody asks for are let go, and bytes that are kept ready at most.

    Attributes
    ----------
    max_bytes : int
        The device is waited for when so many have come back; larger arrays are not lent.
    ready : dict of list
        By size, blocks that no work uses: (device pointer, address, size, device array that it is part of).
    back : deque
        Blocks that came back since the device was waited for. Finalisers append them, at any moment, in any thread.
    made : int
        Bytes allocated since memory was last let go.
    blocks : Counter
        By size, the number of blocks that these bytes are. An allocation makes as many more, because it takes longer
        than a call: the first results of a size need few, and sizes that are asked for once waste nothing.
    """

    def __init__(self, device: int, max_made: int = MAX_MADE):
        self.max_made, self.max_bytes = max_made, max_made // 4
        self.device, self.ready, self.back, self.made = device, collections.defaultdict(list), collections.deque(), 0
        self.blocks: collections.Counter = collections.Counter()
        self._lock = threading.RLock()  # a finaliser may come here, too

    def lend(self, size: int) -> tuple[Any, int, int, Any]:
        """Lend a block of so many bytes; it comes back when it is appended to ``back``."""
        try:
            return self.ready[size].pop()
        except IndexError:
            with self._lock, cuda.gpus[self.device]:
                return self._find(size)

    def _find(self, size):
        if len(self.back) >= MAX_BACK or sum(came for *_, came, _ in [*self.back]) >= self.max_bytes:
            self._wait()
        with contextlib.suppress(IndexError):  # other threads take what is ready without the lock
            return self.ready[size].pop()
        number = max(1, min(self.blocks[size], MAX_BACK, MAX_SHARED // size))
        if self.made + number * size > self.max_made:  # for sizes that may not be asked for again
            self.ready.clear()
            self.blocks.clear()
            self.made, number = 0, 1
        self.made += number * size
        self.blocks[size] += number
        memory = allocate("the result", (number * size,), np.uint8, 0)
        first, *others = range(address_of(memory), address_of(memory) + number * size, size)
        self.ready[size].extend((device_pointer(address), address, size, memory) for address in others)
        return device_pointer(first), first, size, memory

    def free(self):
        """Let go of all that is not lent; Numba waits for the device."""
        with self._lock:
            self.ready.clear()
            self.back.clear()
            self.blocks.clear()

    def _wait(self):
        """Make ready what has come back, and let go of what is too much. What comes back meanwhile may be in use."""
        came = [self.back.popleft() for _ in range(len(self.back))]
        try:
            cuda.synchronize()
        except cuda_api_error():  # while launches are captured for a graph
            self.back.extend(came)
            return
        held = sum(size * len(blocks) for size, blocks in [*self.ready.items()])
        for block in came:
            _, _, size, _ = block
            held += size
            if held <= self.max_made:
                self.ready[size].append(block)


#: By device.
_lenders: dict[int, Lender] = {}


def _lender_of(device):
    """The lender of the current device, whose number is ``device``."""
    if device not in _lenders:
        memory = cuda.current_context().get_memory_info().total
        lender = _lenders.setdefault(device, Lender(device, max(MAX_MADE, memory // SHARE)))
        free_when_short(lender.free)
    return _lenders[device]


def free_lent_memory():
    """Let go of the memory of arrays that are gone."""
    for lender in [*_lenders.values()]:
        lender.free()
