"""Kernels whose time can be chosen: one that sleeps, and one that works (source row A13).

Both can note when they began and ended, by the timer that all multiprocessors share.
"""

import math

import numpy as np
from numba.cuda import uint32

from gpukit import device
from gpukit._host.arrays import configured
from gpukit._host.checks import launch_shape
from gpukit.backend import cuda, on_gpu
from gpukit.intrinsics import clock64, globaltimer
from gpukit.launching import prepare
from warpstep.checks import check_int

__all__ = ["BLOCK", "SleepKernel", "WorkKernel", "occupancy", "scrambled", "sleep", "work"]

#: Threads of a block unless another is asked for.
BLOCK = 256
#: What a stamp of a beginning is before any block has begun.
NEVER = np.iinfo(np.int64).max


@cuda.jit(device=True)
def linear():
    """(index of the thread among all threads of a grid of one or two dimensions, how many there are)."""
    threads = cuda.blockDim.x * cuda.blockDim.y
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    index = block * threads + cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    return index, threads * cuda.gridDim.x * cuda.gridDim.y


@cuda.jit(device=True)
def stamp_start(stamps):
    """The first thread of each block notes when it began; the earliest stays. Without ``stamps`` nothing is noted."""
    if stamps.size > 0 and cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        cuda.atomic.min(stamps, 0, globaltimer())


@cuda.jit(device=True)
def stamp_end(stamps):
    if stamps.size > 0 and cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        cuda.atomic.max(stamps, 1, globaltimer())


@cuda.jit
def sleep(source, target, cycles, stamps):
    """target = source + 1, after every thread has looked at the clock for a number of cycles."""
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
    """target = source after so many rounds of a scrambler: three shifts and three exclusive ors in each.

    Every round needs the result of the one before, and every word comes from one word only, so nothing can be left out
    and every mistake shows in the result.
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


def scrambled(words, rounds):
    """What ``work`` makes of an array of 4-byte elements, by NumPy; of the same dtype."""
    word = np.ascontiguousarray(words).view(np.uint32).copy()
    for _ in range(rounds):
        word ^= word << np.uint32(13)
        word ^= word >> np.uint32(17)
        word ^= word << np.uint32(5)
    return word.view(words.dtype)


def occupancy(grid, block):
    """How a launch of plain kernels fills a device of this kind.

    Returns
    -------
    tuple of 2
        The share of the device's threads that it takes (at most 1), and in how many turns its blocks run.
    """
    info = device.info()
    threads, blocks = math.prod(block), math.prod(grid)
    per_sm = min(info.max_threads_per_sm // (-(-threads // info.warp_size) * info.warp_size), info.max_blocks_per_sm)
    at_once = info.sm_count * per_sm
    return min(blocks / at_once, 1.0), math.ceil(blocks / at_once)


class _Timed:
    """What both kernels share: the shape of their launch.

    ``kernel.prepared(source, target, stream)`` gives what launches, a function of ``stamps``: an int64 device array,
    empty or of two elements.
    """

    takes_stamps = True

    def __init__(self, grid, block):
        if grid is not None:
            grid, block = launch_shape(grid, block)
            if grid[2] > 1 or block[2] > 1:
                raise ValueError(f"grid is {grid} and block is {block}; they must have one or two dimensions")
        else:
            check_int("block", block, 1, cuda.get_current_device().MAX_THREADS_PER_BLOCK)
        self.grid, self.block = grid, block

    def shape(self, elements):
        """(grid, block) of a launch for so many elements, each of 3 sizes."""
        if self.grid is not None:
            return self.grid, self.block
        return launch_shape(max(-(-elements // self.block), 1), self.block)

    def share(self, elements):
        """The share of the device that a launch takes."""
        return occupancy(*self.shape(elements))[0]

    def _prepared(self, kernel, source, target, stream, amount):
        arguments = source.reshape(-1), target.reshape(-1), amount
        launch = configured(kernel, *self.shape(target.size), stream)
        prepared = prepare(launch, *arguments, cuda.device_array(0, np.int64))

        def run(stamps):
            if prepared.args[-1] is stamps:
                prepared()
            else:
                prepared(*arguments, stamps)

        return run


class SleepKernel(_Timed):
    """A kernel that sleeps, for a pipeline: target = source + 1, after a number of cycles of the clock (A13).

    Parameters
    ----------
    cycles : int
        That every block sleeps, 0 or more. Blocks for which there is no room yet sleep after those before them.
    grid, block : int or tuple of int, optional
        Of one or two dimensions. Without a grid there is one thread for each element, in blocks of ``block`` threads;
        with one the threads share the elements.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.
    """

    def __init__(self, cycles, grid=None, block=BLOCK):
        self.cycles = check_int("cycles", cycles, 0)
        super().__init__(grid, block)

    def __repr__(self):
        return f"SleepKernel({self.cycles:,} cycles)"

    def prepared(self, source, target, stream):
        return self._prepared(sleep, source, target, stream, self.cycles)

    def expected(self, x):
        """What a pipeline makes of an array, by NumPy."""
        return x + x.dtype.type(1)

    def seconds(self, elements):
        """float: how long a launch takes by the clock rate of the device, without what lies around the sleep."""
        return occupancy(*self.shape(elements))[1] * self.cycles / device.info().core_clock


class WorkKernel(_Timed):
    """A kernel that computes, for a pipeline: every 4-byte word goes through rounds of a scrambler.

    Parameters
    ----------
    rounds : int
        Of three shifts and three exclusive ors, 0 or more: the time of a launch grows with them, its traffic does not.
    grid, block : int or tuple of int, optional
        As for `SleepKernel`.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above; when it is launched, for elements that have not 4 bytes.
    """

    WORDS_PER_CYCLE = 7.4  # that a multiprocessor takes through a round, with the loop around it: measured on an H200

    def __init__(self, rounds, grid=None, block=BLOCK):
        self.rounds = check_int("rounds", rounds, 0)
        super().__init__(grid, block)

    def __repr__(self):
        return f"WorkKernel({self.rounds:,} rounds)"

    def prepared(self, source, target, stream):
        if source.dtype.itemsize != 4 or target.dtype.itemsize != 4:
            raise TypeError(f"a WorkKernel was given {source.dtype} and {target.dtype}; both must have 4 bytes")
        return self._prepared(work, source.view(np.uint32), target.view(np.uint32), stream, self.rounds)

    def expected(self, x):
        """What a pipeline makes of an array, by NumPy."""
        return scrambled(x, self.rounds)

    def seconds(self, elements):
        """float: how long a launch that fills the device takes, by its clock rate and its multiprocessors."""
        info = device.info()
        return elements * self.rounds / (info.sm_count * self.WORDS_PER_CYCLE * info.core_clock)

    @classmethod
    def lasting(cls, seconds, elements, **options):
        """A kernel of so many rounds that ``elements`` take about as many seconds.

        On a GPU that is measured, with two launches; on the emulator it follows from what `seconds` assumes.
        """
        if not on_gpu():
            return cls(max(round(seconds / cls(1, **options).seconds(elements)), 1), **options)
        few, many = (cls(rounds, **options)._measured(elements) for rounds in (64, 320))
        per_round = (many - few) / 256
        return cls(max(round((seconds - few) / per_round + 64), 1), **options)

    def _measured(self, elements):
        """Seconds of a launch on a GPU, the best of three."""
        source, target = (cuda.device_array(elements, np.uint32) for _ in range(2))
        launch, nothing, best = self.prepared(source, target, 0), cuda.device_array(0, np.int64), math.inf
        for _ in range(4):
            start, end = cuda.event(), cuda.event()
            start.record()
            launch(nothing)
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) * 1e-3)
        return best
