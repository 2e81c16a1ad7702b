"""All-reduce: every device has an array, and in the end every one holds the sum of all, element by element.

The devices form a ring, and the arrays are cut into as many chunks as there are devices. In count - 1 steps each device
adds the chunk of the device before it to its own (reduce-scatter); then it has the sum of one chunk. In count - 1 more
steps the sums go round (all-gather). Each device sends 2 (count - 1) / count times its array: less than two arrays for
any number of devices.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpukit._host.arrays import address_of, as_device_array, check_array, configure_quietly
from gpukit.backend import cuda
from gpukit.intrinsics import load4, store4
from gpukit.launching import prepare
from gpukit.multi.devices import choose_devices, connect, on_device, synchronize
from gpukit.streams.pipeline import prepare_copy, split_rows
from gpukit.streams.schedule import Schedule
from gpukit.streams.timeline import PEER_COPY
from warpstep.integers import ceil_div
from warpstep.values import check_choice, check_int, check_items, check_number, type_name

__all__ = ["RINGS", "AllReduce", "add_from", "all_reduce", "bus_bandwidth", "copy_from"]

#: How the chunks go round, in the order of the chapter.
RINGS = ("copies", "loads", "pipelined")
#: Chunks begin at multiples of this many elements.
ALIGN = 32
THREADS, MAX_BLOCKS = 512, 264
#: Bytes of a piece of the array that goes round by itself, and the number of such pieces.
PIECE_BYTES, MAX_PIECES = 32 << 20, 4


@cuda.jit
def add_from(own, peer):
    """own += peer. Reads ``peer`` from another device's memory: 4 bytes of an element over the link."""
    i = cuda.grid(1)
    while i < own.size:
        own[i] += peer[i]
        i += cuda.gridsize(1)


@cuda.jit
def copy_from(own, peer):
    """own = peer."""
    i = cuda.grid(1)
    while i < own.size:
        own[i] = peer[i]
        i += cuda.gridsize(1)


@functools.cache
def make_wide(adding: bool):
    """Make the same kernels for float32 in accesses of 16 bytes: four loads are in flight before the first is used."""

    @cuda.jit(device=True)
    def put(own, at, found):
        a, b, c, d = found
        if adding:
            e, f, g, h = load4(own, at)
            a, b, c, d = a + e, b + f, c + g, d + h
        store4(own, at, a, b, c, d)

    @cuda.jit
    def wide(own, peer):
        at, step = 4 * cuda.grid(1), 4 * cuda.gridsize(1)
        while at + 3 * step + 3 < own.size:
            first, second = load4(peer, at), load4(peer, at + step)
            third, fourth = load4(peer, at + 2 * step), load4(peer, at + 3 * step)
            put(own, at, first)
            put(own, at + step, second)
            put(own, at + 2 * step, third)
            put(own, at + 3 * step, fourth)
            at += 4 * step
        while at + 3 < own.size:
            put(own, at, load4(peer, at))
            at += step
        while at < own.size:
            own[at] = own[at] + peer[at] if adding else peer[at]
            at += 1

    return wide


class Chunk(NamedTuple):
    """A part of the array: of one piece, and of one of as many chunks as there are devices."""

    piece: int
    number: int
    part: slice


class AllReduce:
    """An all-reduce that can run many times.

    Parameters
    ----------
    arrays : sequence of device arrays
        One per device, all of one shape (N,) and dtype, contiguous. They are summed in place.
    devices : int, sequence of int or None
        Where they are: device i for array i unless given.
    variant : {"pipelined", "loads", "copies"}
        "copies": a peer copy brings each chunk, and a kernel adds it. "loads": a kernel loads it from the device
        before. "pipelined": the same for several pieces of the arrays, each in a stream of its own.
    pieces : int, optional
        By the size of the arrays unless given; 1 unless pipelined.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Attributes
    ----------
    schedule : Schedule
        All operations. A second run may be queued after the first: it waits for what it needs.

    Examples
    --------
    >>> x = cuda.to_device(np.arange(3, dtype=np.float32))
    >>> AllReduce([x]).run()
    >>> x.copy_to_host()
    array([0., 1., 2.], dtype=float32)
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        devices: int | Sequence[int] | None = None,
        variant: str = "pipelined",
        pieces: int | None = None,
    ) -> None:
        items = check_items("arrays", arrays, "a device array for each device", 64)
        if not items:
            raise ValueError("arrays is empty; it must have a device array for each device")
        self.devices = choose_devices(len(items) if devices is None else devices)
        self.variant = check_choice("variant", variant, RINGS)
        self.arrays = _check_arrays(items, self.devices)
        if not connect(self.devices):
            raise ValueError("devices cannot reach each other's memory; a ring needs that")
        nbytes = self.arrays[0].nbytes
        if pieces is None:
            pieces = min(max(nbytes // PIECE_BYTES, 1), MAX_PIECES) if variant == "pipelined" else 1
        self.pieces = check_int("pieces", pieces, 1, 64)
        self.schedule = Schedule()
        self._staging = {}
        if len(self.devices) > 1:
            self._plan()

    def run(self, record: bool = False) -> Any:
        """Wait for all devices, sum, and wait again; with ``record`` return the timeline, as `Schedule.run` does."""
        synchronize(self.devices)
        return self.schedule.run(record)

    def queue(self) -> None:
        """Queue all operations and do not wait. The arrays must be ready, or be written by an earlier run."""
        self.schedule.queue()

    def _plan(self):
        count, chunks = len(self.devices), self._chunks()
        last: dict[tuple[int, int], list[int]] = {}  # (device, piece): its last operation
        for adding in (True, False):
            for step in range(count - 1):
                before = dict(last)
                for piece in range(self.pieces):
                    for d in range(count):
                        chunk = chunks[piece, (d - step - adding) % count]
                        if chunk.part.start < chunk.part.stop:
                            last[d, piece] = [self._move(d, chunk, adding, step, before)]
        for piece in range(self.pieces):  # a next run finds everything done
            final = [last[d, piece][-1] for d in range(count) if (d, piece) in last]
            for d in range(count):
                self.schedule.add("kernel", _nothing, piece, name="end", after=final, device=self.devices[d])

    def _chunks(self):
        """{(piece, number): Chunk}"""
        size, count = self.arrays[0].size, len(self.devices)
        ends = np.minimum(np.cumsum((0, *split_rows(self.pieces * count, ceil_div(size, ALIGN)))) * ALIGN, size)
        parts = [slice(int(start), int(end)) for start, end in zip(ends, ends[1:], strict=False)]
        return {divmod(i, count): Chunk(*divmod(i, count), part) for i, part in enumerate(parts)}

    def _move(self, d, chunk, adding, step, last):
        """Queue one step of one device: bring a chunk from the device before it, and add it or keep it."""
        prev, piece = (d - 1) % len(self.devices), chunk.piece
        after = [*last.get((prev, piece), ())]
        if self.variant != "copies":
            return self._kernel(d, chunk, adding, step, self.arrays[prev][chunk.part], after, prev)
        target = self._staged(d, chunk) if adding else self.arrays[d][chunk.part]
        into = f"staged {d}, {piece}, {chunk.number}" if adding else _name(d, chunk)
        source, device = self.arrays[prev][chunk.part], self.devices[prev]
        copied = self.schedule.add(
            PEER_COPY,
            prepare_copy(target, source, self.schedule.stream(piece, device)),
            piece,
            name=f"chunk {chunk.number} from GPU {device} to {self.devices[d]}",
            task=chunk.number,
            after=after,
            reads=[_name(prev, chunk)],
            writes=[into],
            nbytes=source.nbytes,
            device=device,
            peer=self.devices[d],
        )
        return self._kernel(d, chunk, True, step, target, [copied], None) if adding else copied

    def _kernel(self, d, chunk, adding, step, source, after, peer):
        own, device = self.arrays[d][chunk.part], self.devices[d]
        kernel = _kernel_for(own, source, adding)
        blocks = min(ceil_div(own.size, 4 * THREADS), MAX_BLOCKS)
        with on_device(device):
            queue = self.schedule.stream(chunk.piece, device)
            launch = prepare(configure_quietly(kernel, blocks, THREADS, queue), own, source)
        read = f"staged {d}, {chunk.piece}, {chunk.number}" if peer is None else _name(peer, chunk)
        over = {} if peer is None else {"peer": self.devices[peer], "peer_bytes": own.nbytes}
        return self.schedule.add(
            "kernel",
            lambda _: launch(),
            chunk.piece,
            name=f"{'add' if adding else 'copy'} chunk {chunk.number} on GPU {device}",
            task=chunk.number,
            after=after,
            reads=[read],
            writes=[_name(d, chunk)],
            nbytes=own.nbytes * (2 if adding else 1),
            share=min(1.0, blocks / MAX_BLOCKS / 2),
            device=device,
            **over,
        )

    def _staged(self, d, chunk):
        key = d, chunk.piece, chunk.number
        with on_device(self.devices[d]):
            size = chunk.part.stop - chunk.part.start
            return self._staging.setdefault(key, cuda.device_array(size, self.arrays[d].dtype))


def _nothing(stream):
    """Queue nothing: the operation only waits."""


def _name(d, chunk):
    return f"array {d}, {chunk.piece}, {chunk.number}"


def _kernel_for(own, source, adding):
    if own.dtype == np.float32 and address_of(own) % 16 == address_of(source) % 16 == 0:
        return make_wide(adding)
    return add_from if adding else copy_from


def _check_arrays(arrays, devices):
    if len(arrays) != len(devices):
        raise ValueError(f"arrays has {len(arrays)} entries; devices names {len(devices)}")
    for i, array in enumerate(arrays):
        check_array(f"arrays[{i}]", array, 1)
        if not cuda.is_cuda_array(array):
            raise TypeError(f"arrays[{i}] is {type_name(array)}; it must be a device array")
        if array.shape != arrays[0].shape or array.dtype != arrays[0].dtype:
            raise ValueError(
                f"arrays[{i}] is {array.dtype} of shape {tuple(array.shape)}; "
                f"arrays[0] is {arrays[0].dtype} of shape {tuple(arrays[0].shape)}: all must be alike"
            )
    return [as_device_array(array) for array in arrays]


def all_reduce(arrays: Sequence[Any], devices: int | Sequence[int] | None = None, variant: str = "pipelined") -> None:
    """Replace the array of every device by the sum of all of them, and wait until that is done.

    Parameters
    ----------
    arrays, devices, variant
        As for `AllReduce`.

    Examples
    --------
    >>> x = cuda.to_device(np.arange(3, dtype=np.float32))
    >>> all_reduce([x])
    >>> x.copy_to_host()
    array([0., 1., 2.], dtype=float32)
    """
    AllReduce(arrays, devices, variant).run()


def bus_bandwidth(nbytes: int, seconds: float, count: int) -> float:
    """Compute bytes per second over each link: what a device sends in an all-reduce, over the time.

    ``nbytes`` are those of one device's array. TypeError or ValueError for no numbers, and for less than one device.

    Examples
    --------
    >>> bus_bandwidth(10**9, 0.01, count=4) / 1e9
    150.0
    """
    count, nbytes = check_int("count", count, 1), check_number("nbytes", nbytes, 0)
    if check_number("seconds", seconds, 0) == 0:
        raise ValueError("seconds is 0; it must be more")
    return 2 * (count - 1) / count * nbytes / seconds
