"""Tensor maps that follow their arrays: a map holds an address, and a repeated call has its arrays elsewhere."""

from collections import OrderedDict
from typing import Any

import numpy as np

from gpukit._host.arrays import configure_quietly
from gpukit._host.transfers import upload
from gpukit._host.work_memory import WorkMemory
from gpukit.backend import cuda
from gpukit.intrinsics.tiles.tensor_map import describe_tensor, describe_windows, encode_tensor
from warpstep.machine.tensor_maps import NBYTES, TensorMap

__all__ = ["MovableMap", "movable_map"]


def movable_map(array, box: tuple, work: WorkMemory, windows: tuple = ()):
    """The `gpukit.intrinsics.tensor_map` of an array, or with ``windows`` (its further arguments) the `window_map`; a
    repeated call has one of its own array in its place.
    """
    described = describe_windows(array, box, *windows) if windows else describe_tensor(array, box)
    if work.recorded:
        memory = work.take(f"map {len(work.maps)}", NBYTES, np.uint8)
        work.maps.append(memory)
        words = encode_tensor(described).view(np.uint64)
        configure_quietly(write_map, 1, 1, work.stream)(memory.view(np.uint64), tuple(words))
        return memory
    work.maps.append(MovableMap(array, described, work.stream))
    return work.maps[-1].memory


@cuda.jit
def write_map(memory, words):
    """Write a tensor map that is an argument: what a CUDA graph would copy from the host may be gone when it runs."""
    for i in range(len(words)):
        memory[i] = words[i]


class MovableMap:
    """A tensor map of an array, and of arrays like it elsewhere.

    Attributes
    ----------
    array : device array
    memory : device array
        Of 128 bytes: the map as launches read it.
    """

    #: Maps of so many addresses are kept.
    MAX_KEPT = 16

    def __init__(self, array, described: TensorMap, stream):
        self.array, self.stream = array, stream
        self._tensor = described
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self.memory: Any = self.at(self._tensor.address)
        self.memory.tensor, self.memory.described = array, described  # for traces; kept as long as the launch

    def release(self):
        """Let go of the array."""
        self.array = self.memory.tensor = None

    def at(self, address: int) -> Any:
        """The map of an array at this address. The caller holds the stream's lock."""
        memory: Any = self._kept.get(address)
        if memory is None:
            # Launches that read a map which is overwritten here come before on the stream.
            full = len(self._kept) == self.MAX_KEPT
            memory = self._kept.popitem(last=False)[1] if full else cuda.device_array(NBYTES, np.uint8)
            # The copy may be made later, when a graph that has recorded it runs.
            memory.encoded = encode_tensor(self._tensor._replace(address=address))
            upload(memory, memory.encoded, self.stream)
            self._kept[address] = memory
        return memory
