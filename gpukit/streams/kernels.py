"""Kernels of a chosen duration: one that sleeps, and one that works (source row A13).

Both can record when they started and ended, by the timer that all multiprocessors share.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukit import device
from gpukit._host.arrays import configure_quietly
from gpukit._host.checks import launch_shape
from gpukit.backend import cuda, on_gpu, uint32
from gpukit.intrinsics import clock64, globaltimer
from gpukit.launching import prepare
from gpukit.timing import Timer
from warpstep.integers import ceil_div
from warpstep.values import check_int, check_number, check_type

__all__ = ["BLOCK", "SleepKernel", "WorkKernel", "occupancy", "scrambled", "sleep", "work"]

#: Threads of a block by default.
BLOCK = 256
#: The start stamp of a kernel that has not started.
NEVER = np.iinfo(np.int64).max
#: Cycles or rounds that a kernel can count.
MAX_COUNT = 2**63 - 1


@cuda.jit(device=True)
def linear():
    """Index of this thread in a grid of one or two dimensions, and the number of threads."""
    threads = cuda.blockDim.x * cuda.blockDim.y
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    index = block * threads + cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    return index, threads * cuda.gridDim.x * cuda.gridDim.y


@cuda.jit(device=True)
def stamp_start(stamps):
    """Record the earliest start of a block in stamps[0]; empty ``stamps`` record nothing."""
    if stamps.size > 0 and cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        cuda.atomic.min(stamps, 0, globaltimer())


@cuda.jit(device=True)
def stamp_end(stamps):
    """Record the latest end of a block in stamps[1]."""
    if stamps.size > 0 and cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        cuda.atomic.max(stamps, 1, globaltimer())


@cuda.jit
def sleep(source, target, cycles, stamps):
    """Wait for a number of clock cycles in every thread, then target = source + 1."""
    stamp_start(stamps)
    began = clock64()
    while clock64() - began < cycles:
        pass
    i, threads = linear()
    while i < target.size:
        target[i] = source[i] + source.dtype.type(1)
        i += threads
    stamp_end(stamps)


@cuda.jit
def work(source, target, rounds, stamps):
    """target = source after ``rounds`` rounds of xorshift: three shifts and three exclusive ors each.

    Each round needs the one before, so the compiler can drop none, and each mistake shows in the result.
    """
    stamp_start(stamps)
    i, threads = linear()
    while i < target.size:
        word = uint32(source[i])
        for _ in range(rounds):
            word = uint32(word ^ uint32(word << uint32(13)))
            word = uint32(word ^ uint32(word >> uint32(17)))
            word = uint32(word ^ uint32(word << uint32(5)))
        target[i] = word
        i += threads
    stamp_end(stamps)


def scrambled(words: np.ndarray, rounds: int) -> np.ndarray:
    """Compute with NumPy what ``work`` makes of an array of 4-byte elements; same dtype.

    Examples
    --------
    >>> scrambled(np.arange(3, dtype=np.uint32), rounds=1).dtype
    dtype('uint32')
    """
    rounds = check_int("rounds", rounds, 0, MAX_COUNT)
    if check_type("words", words, np.ndarray, "a NumPy array").dtype.itemsize != 4:
        raise TypeError(f"words has dtype {words.dtype}; its elements must have 4 bytes")
    word = np.ascontiguousarray(words).view(np.uint32).copy()
    for _ in range(rounds):
        word ^= word << np.uint32(13)
        word ^= word >> np.uint32(17)
        word ^= word << np.uint32(5)
    return word.view(words.dtype)


def occupancy(grid: tuple[int, ...], block: tuple[int, ...]) -> tuple[float, int]:
    """Compute how a launch fills the device, for a kernel limited by threads and blocks only.

    Returns
    -------
    tuple of 2
        The share of the device that it takes (at most 1), and the number of waves in which its blocks run.
    """
    info: Any = device.info()
    threads, blocks = math.prod(block), math.prod(grid)
    per_sm = min(
        info.max_threads_per_sm // (ceil_div(threads, info.warp_size) * info.warp_size), info.max_blocks_per_sm
    )
    at_once = info.sm_count * per_sm
    return min(blocks / at_once, 1.0), math.ceil(blocks / at_once)


class _Timed:
    """The launch configuration that both kernels share.

    ``kernel.prepared(source, target, stream)`` returns a function of ``stamps``, an int64 device array, empty or of two
    elements, which launches the kernel.
    """

    takes_stamps = True

    def __init__(self, grid: Any, block: Any) -> None:
        if grid is not None:
            grid, block = launch_shape(grid, block)
            if grid[2] > 1 or block[2] > 1:
                raise ValueError(f"grid is {grid} and block is {block}; they must have one or two dimensions")
        else:
            check_int("block", block, 1, cuda.get_current_device().MAX_THREADS_PER_BLOCK)
        self.grid: Any = grid
        self.block: Any = block

    def shape(self, elements: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Grid and block of a launch for this number of elements, each of 3 sizes."""
        if self.grid is not None:
            return self.grid, self.block
        return launch_shape(max(ceil_div(elements, self.block), 1), self.block)

    def share(self, elements: int) -> float:
        """Share of the device that a launch takes."""
        return occupancy(*self.shape(elements))[0]

    def _prepared(self, kernel, source, target, stream, amount):
        arguments = source.reshape(-1), target.reshape(-1), amount
        launch = configure_quietly(kernel, *self.shape(target.size), stream)
        prepared = prepare(launch, *arguments, cuda.device_array(0, np.int64))

        def run(stamps):
            if prepared.args[-1] is stamps:
                prepared()
            else:
                prepared(*arguments, stamps)

        return run


class SleepKernel(_Timed):
    """A kernel that sleeps, for a pipeline: target = source + 1, after a number of clock cycles (A13).

    Parameters
    ----------
    cycles : int
        Cycles that every block sleeps, 0 or more. Blocks of a later wave sleep after those of the first.
    grid, block : int or tuple of int, optional
        One or two dimensions. Without a grid there is one thread per element, in blocks of ``block`` threads; with a
        grid the threads share the elements.

    Raises
    ------
    TypeError, ValueError
        If ``cycles`` is not an int of 0 or more, or the device does not allow ``grid`` or ``block``.
    """

    def __init__(self, cycles: int, grid: Any = None, block: Any = BLOCK) -> None:
        self.cycles = check_int("cycles", cycles, 0, MAX_COUNT)
        super().__init__(grid, block)

    def __repr__(self):
        return f"SleepKernel({self.cycles:,} cycles)"

    def prepared(self, source: Any, target: Any, stream: Any) -> Callable:
        """Prepare the launch on two device arrays: a function of ``stamps``."""
        return self._prepared(sleep, source, target, stream, self.cycles)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Compute the result of a pipeline with NumPy."""
        return x + x.dtype.type(1)

    def seconds(self, elements: int) -> float:
        """Seconds that a launch sleeps, by the clock rate of the device."""
        info: Any = device.info()
        return occupancy(*self.shape(elements))[1] * self.cycles / info.core_clock


class WorkKernel(_Timed):
    """A kernel that computes, for a pipeline: it scrambles every 4-byte word.

    Parameters
    ----------
    rounds : int
        Rounds of three shifts and three exclusive ors, 0 or more: more rounds take more time, and no more traffic.
    grid, block : int or tuple of int, optional
        As for `SleepKernel`.

    Raises
    ------
    TypeError, ValueError
        If ``rounds`` is not an int of 0 or more, or the device does not allow ``grid`` or ``block``. At launch, if
        elements do not have 4 bytes.
    """

    WORDS_PER_CYCLE = 7.4  # rounds of a word, per multiprocessor and cycle, loop included: measured on an H200

    def __init__(self, rounds: int, grid: Any = None, block: Any = BLOCK) -> None:
        self.rounds = check_int("rounds", rounds, 0, MAX_COUNT)
        super().__init__(grid, block)

    def __repr__(self):
        return f"WorkKernel({self.rounds:,} rounds)"

    def prepared(self, source: Any, target: Any, stream: Any) -> Callable:
        """Prepare the launch on two device arrays: a function of ``stamps``."""
        if source.dtype.itemsize != 4 or target.dtype.itemsize != 4:
            raise TypeError(f"a WorkKernel was given {source.dtype} and {target.dtype}; both must have 4 bytes")
        return self._prepared(work, source.view(np.uint32), target.view(np.uint32), stream, self.rounds)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Compute the result of a pipeline with NumPy."""
        return scrambled(x, self.rounds)

    def seconds(self, elements: int) -> float:
        """Seconds of a launch that fills the device, by its clock rate and number of multiprocessors."""
        info: Any = device.info()
        return elements * self.rounds / (info.sm_count * self.WORDS_PER_CYCLE * info.core_clock)

    @classmethod
    def lasting(cls, seconds: float, elements: int, **options: Any) -> "WorkKernel":
        """Make a kernel with as many rounds as take about ``seconds`` for ``elements``.

        On a GPU two launches are measured; on the emulator the rounds follow from the figures of `seconds`.
        """
        seconds, elements = float(check_number("seconds", seconds, 0)), check_int("elements", elements, 1, MAX_COUNT)
        if on_gpu():
            few, many = (cls(rounds, **options)._measured(elements) for rounds in (64, 320))
            rounds = (seconds - few) / (many - few) * 256 + 64
        else:
            rounds = seconds / cls(1, **options).seconds(elements)
        if rounds > MAX_COUNT:
            raise ValueError(f"seconds is {seconds}; that is {rounds:.3g} rounds, and a kernel counts to 2**63 - 1")
        return cls(max(round(rounds), 1), **options)

    def _measured(self, elements):
        """Seconds of a launch on a GPU, the best of three."""
        source, target = (cuda.device_array(elements, np.uint32) for _ in range(2))
        launch, nothing, best = self.prepared(source, target, 0), cuda.device_array(0, np.int64), math.inf
        for _ in range(4):
            with Timer(device="gpu", unit="s", show=False) as timer:
                launch(nothing)
            best = min(best, timer.elapsed)
        return best
