"""Measurements in several processes on one GPU: kernels compile side by side, and one process at a time uses the GPU.

A process uses it in its turn (`mine`), which it gives to others while it compiles a kernel or does what else needs no
GPU (`elsewhere`). So what is timed is not disturbed by another process's kernels.
"""

import contextlib
import functools
import multiprocessing
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

try:
    import fcntl
except ImportError:
    fcntl = None  # Windows, where one process measures

from numba.cuda.core.errors import NumbaPerformanceWarning

from gpukit.backend import cuda, on_gpu
from gpukit.results import cores

__all__ = ["apart", "elsewhere", "held", "mine", "processes", "side_by_side"]

#: Most processes. Each loads Numba, which takes longer than to compile a kernel.
MOST = 15
#: Memory of the device for each process that measures: what its libraries and its arrays take.
MEMORY = 8 * 2**30

_turn = None  # the file whose lock is the turn, in a process that takes turns; who dies with the lock gives it back
_mine = False  # whether it is this process's turn
_since, _held = 0.0, 0.0  # when that began, and how long those before it were, in seconds


def processes(share=1, memory=MEMORY):
    """How many processes can work on the GPU side by side, by one in ``share`` of the CPU's cores and by the device's
    memory, of which each takes so much.

    1 without a GPU.
    """
    if not on_gpu() or fcntl is None:
        return 1
    return max(1, min(MOST, cores() // share - 1, cuda.current_context().get_memory_info().total // memory))


def _begin(turn):
    """This process takes turns with others by a file's lock, ``turn``; what it compiles is compiled `elsewhere`."""
    global _turn
    _turn = open(turn, "w")  # noqa: SIM115 - as long as the process lives
    warnings.simplefilter("ignore", NumbaPerformanceWarning)
    if on_gpu():
        from numba.cuda import dispatcher

        dispatcher._Kernel.__init__ = _compiled_elsewhere(dispatcher._Kernel.__init__)


def _compiled_elsewhere(make):
    @functools.wraps(make)
    def made(*arguments, **options):
        with elsewhere():
            return make(*arguments, **options)

    return made


def _take():
    global _mine, _since
    fcntl.flock(_turn, fcntl.LOCK_EX)
    _mine, _since = True, time.monotonic()


def _give():
    global _mine, _held
    _mine, _held = False, _held + time.monotonic() - _since
    fcntl.flock(_turn, fcntl.LOCK_UN)


def held():
    """Seconds that this process's turns lasted together."""
    return _held


@contextlib.contextmanager
def mine():
    """It is this process's turn inside the block; nothing happens in a process that takes no turns."""
    if _turn is None or _mine:
        yield
        return
    _take()
    try:
        yield
        if on_gpu():
            cuda.synchronize()
    finally:
        _give()


@contextlib.contextmanager
def elsewhere():
    """The GPU is others' inside the block, if it is this process's turn."""
    if not _mine:
        yield
        return
    if on_gpu():
        cuda.synchronize()
    _give()
    try:
        yield
    finally:
        _take()


def side_by_side(functions, jobs=None, fresh=False):
    """Yield what each of some functions gives, in their order; they run in ``jobs`` processes, which may take turns.

    The functions are pickled; with ``fresh`` each gets a process of its own. With one job they run here. Where one of
    the processes dies, BrokenProcessPool is raised in place of all results that are not there yet.
    """
    functions = list(functions)
    jobs = min(processes() if jobs is None else jobs, len(functions))
    if jobs <= 1 or fcntl is None:
        for function in functions:
            yield function()
        return
    with _pool(jobs, 1 if fresh else None) as pool:
        yield from pool.map(_call, functions)


def apart(function):
    """What a function gives in a process of its own; BrokenProcessPool if that dies."""
    with _pool(1) as pool:
        return pool.submit(function).result()


def _call(function):
    return function()


@contextlib.contextmanager
def _pool(jobs, most=None):
    """``jobs`` processes that take turns, each for at most ``most`` functions; this one's turn is theirs meanwhile."""
    context = multiprocessing.get_context("spawn")
    with (
        _turn_of_all() as turn,
        elsewhere(),
        ProcessPoolExecutor(jobs, context, _begin, (turn,), max_tasks_per_child=most) as pool,
    ):
        yield pool


@contextlib.contextmanager
def _turn_of_all():
    """Path of the file whose lock is the turn: that of the processes that this one is of, or of a new one."""
    if _turn is not None:
        yield _turn.name
        return
    with tempfile.NamedTemporaryFile(prefix="gpukit-turn-") as file:
        yield file.name
