"""``warpstep.trace``: run one launch in the emulator and record every access, branch and barrier."""

import contextlib
import io
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np

from warpstep.api import order
from warpstep.api.arrays import DeviceArray, byte_span
from warpstep.api.host import to_device
from warpstep.api.streams import key_of
from warpstep.errors import KernelError
from warpstep.launch import configuration, prepare
from warpstep.limits import WARP
from warpstep.prediction.model import Prediction, predict
from warpstep.report import html, page, text
from warpstep.report.comparison import Comparison, compare
from warpstep.tracing import gpu, storage
from warpstep.tracing.batch import run
from warpstep.tracing.build import summarize
from warpstep.tracing.host_order import find_unordered
from warpstep.tracing.recorder import Recorder
from warpstep.tracing.records import Recording
from warpstep.tracing.shadow import THREAD_BITS
from warpstep.values import check_flag, check_int, check_items, check_path, describe, is_int

__all__ = ["Trace", "load_trace", "trace"]

#: Seconds that a trace may take before it shows its progress.
PATIENCE = 2.0


def _plots():
    """Import the figures when they are asked for: Matplotlib takes its time to load, and is not needed otherwise."""
    try:
        from warpstep.report import plots
    except ModuleNotFoundError as error:
        raise ImportError(f"figures need {error.name}: pip install matplotlib") from error
    return plots


class Trace(Recording):
    """What one launch did, by line of its source: tables when printed and in a notebook, figures, a prediction.

    Its attributes are those of `warpstep.tracing.records.Recording`: status, accesses, findings, advice, coverage,
    branches, barriers, operations, traffic, occupancy, and the launch: kernel, filename, source, grid, block,
    shared_bytes, blocks.
    """

    def __str__(self) -> str:
        return text.render(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.render(self)

    def plot_banks(self, line: int | None = None, array: str | None = None):
        """Draw the lanes and banks of a line's worst request to shared memory.

        Parameters
        ----------
        line : int, optional
            A line with an access to shared memory; the worst unless given.
        array : str, optional
            Which array, if the line accesses several.

        Returns
        -------
        matplotlib Axes
        """
        return _plots().banks(self, line, array=array)

    def plot_sectors(self, line: int | None = None, array: str | None = None):
        """Draw the 32-byte sectors that a line's worst request to global memory touches; as `plot_banks`."""
        return _plots().sectors(self, line, array=array)

    def plot_lines(self):
        """Draw the cost of each line beside the ideal: wavefronts in shared memory, sectors elsewhere."""
        return _plots().lines(self)

    def plot_heat(self, array: str | None = None):
        """Draw how often each element of an array was read and written, and which block wrote it.

        Parameters
        ----------
        array : str, optional
            Name of an array in global or shared memory; the one with the most accesses unless given. An array of one
            dimension is drawn in rows, one of more with its last axis across. A cell of a large array holds several
            elements.

        Returns
        -------
        array of matplotlib Axes
            Reads, writes, and blocks where the array is written.

        Raises
        ------
        ValueError
            If there is no such array, or if the launch was too large to count: trace it with ``heat=True``.
        """
        return _plots().heat(self, array)

    def save_html(self, path: str | PathLike) -> None:
        """Write the report and the first block's steps as one HTML page, which needs no server and no network.

        A slider goes through the steps: the line, the active lanes of a warp, the elements, banks and sectors that they
        access. The arrow keys go one step on and back.
        """
        check_path("path", path).write_text(page.render(self), encoding="utf-8")

    def predict(self, **options) -> Prediction:
        """Bound the time of the launch on a GPU from below, by resource: see `warpstep.predict`."""
        return predict(self, **options)

    def compare(self, other: "Trace") -> Comparison:
        """Lay this trace and another side by side: see `warpstep.compare`."""
        return compare(self, other)

    def save(self, path: str | PathLike) -> None:
        """Write the trace to a JSON file, for `load_trace`."""
        check_path("path", path).write_text(storage.to_json(self), encoding="utf-8")


def load_trace(path: str | PathLike) -> Trace:
    """Read a `Trace` from a file that `Trace.save` wrote, on any machine.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it holds something else.

    Examples
    --------
    >>> import tempfile
    >>> @cuda.jit
    ... def scale(x, out):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         out[i] = 2 * x[i]
    >>> trace = gpukit.trace(scale[4, 256], np.ones(1000), np.zeros(1000))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace.save(f"{folder}/scale")
    ...     loaded = gpukit.load_trace(f"{folder}/scale")
    >>> loaded.total("global", "load").requests
    32
    """
    path = check_path("path", path)
    try:
        return Trace(**storage.from_json(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"path is {str(path)!r}, which is no saved trace: {error}") from None


def trace(
    launch,
    *args,
    blocks: int | Sequence[int] | None = None,
    registers: int | None = None,
    heat: bool | None = None,
    advice: bool = True,
) -> Trace:
    """Run a launch in the emulator; count what each line does, and find what is wrong.

    Works on any machine. The arrays hold the results afterwards, as after a launch, arrays of a GPU too. An access out
    of bounds becomes a finding and is skipped, and the kernel goes on.

    Parameters
    ----------
    launch : ``kernel[grid, block]``, ``kernel[grid, block, stream]`` or ``kernel[grid, block, stream, shared_bytes]``
        A kernel of ``gpukit.cuda`` or of ``numba.cuda`` with its launch configuration.
    *args
        The kernel's arguments: NumPy arrays, device arrays (also of CuPy and PyTorch on a GPU), numbers.
    blocks : int or sequence of int, optional
        Run only so many blocks, evenly spread over the grid, or the blocks of these numbers (x fastest). Counts are
        scaled to the whole grid, and the trace's status is "partial". Results are those of the blocks that ran.
    registers : int, optional
        Registers per thread, for the occupancy. On a GPU they are read from the compiled kernel unless given; without
        a GPU they are ignored unless given.
    heat : bool, optional
        Count reads and writes by element, for `Trace.plot_heat`. Unless given, launches of up to 262,144 accesses by
        single threads do; in larger ones it costs some time.
    advice : bool
        Say what is slow and how to fix it. Without, the counts speak for themselves: an exercise in reading them.

    Returns
    -------
    Trace

    Raises
    ------
    TypeError
        If ``launch`` is not a configured kernel, or for arguments that a kernel cannot take.
    ValueError
        If ``blocks`` or ``registers`` is out of range.
    LaunchError
        If a real device could not launch it.
    KernelError
        For a loop that makes no progress, and a wait that never ends. Its attribute ``trace`` has what was recorded
        until then; the status of that is "stopped".

    Examples
    --------
    >>> @cuda.jit
    ... def scale(x, out):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         out[i] = 2 * x[i]
    >>> x, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    >>> trace = gpukit.trace(scale[4, 256], x, out)
    >>> trace.status, trace.findings
    ('complete', [])
    >>> trace.total("global", "load").sectors
    125
    """
    configured = configuration(launch)
    registers, advice = _registers(registers, launch, args), check_flag("advice", advice)
    with gpu.emulated_arguments(args) as here:
        prepared = prepare(configured, here)
        chosen = _chosen(blocks, prepared)
        recorder = Recorder(prepared.run, heat)
        if chosen is None and prepared.run.element is None:
            prepared.run.rehearse = _rehearsal(configured, here, prepared.overload)
        mark = order.queue(key_of(configured.stream)) if order.watched() else None
        try:
            with _Progress(configured.dispatcher.py_func.__name__) as progress:
                run(prepared, recorder, chosen, progress)
        except KernelError as error:
            error.trace = Trace(**summarize(prepared, recorder, registers, advice, stopped=str(error)))
            raise
        for write in prepared.transfers.copy_back:
            write()
    found = summarize(prepared, recorder, registers, advice)
    if mark is not None:
        found["findings"] += find_unordered(prepared, recorder, mark, found["accesses"])
    return Trace(**found)


#: Bytes of device arrays that are copied for a rehearsal.
MAX_REHEARSED = 1 << 26


def _rehearsal(configured, args, overload) -> Callable[[], None] | None:
    """Make a function that makes the launch without a trace, on copies of its arguments as they are now.

    As machine code it is faster by far, so an endless loop is named in seconds. Other errors are left to the trace,
    which goes on after them. None if the arguments cannot be copied as they are, one apart from the other.
    """
    arrays = [a for a in args if _is_array(a)]
    if any(isinstance(a, DeviceArray) for a in arrays) and not _is_native(overload):
        return None  # nothing needs to be copied
    held = [a if isinstance(a, np.ndarray) else a.copy_to_host() for a in arrays if _is_small(a)]
    plain = all(isinstance(a, bool | int | float | complex | np.generic) for a in args if not _is_array(a))
    if len(held) < len(arrays) or not plain or _overlap(arrays):
        return None

    def rehearse():
        if not _is_native(overload):
            return
        pairs = zip(arrays, held, strict=True)
        copies = iter([x.copy() if isinstance(a, np.ndarray) else to_device(x) for a, x in pairs])
        here = [next(copies) if _is_array(a) else a for a in args]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                configured(*here)
        except KernelError as error:
            if error.kind == "no-progress":
                raise
        except Exception:  # noqa: S110 - the trace meets it too
            pass

    return rehearse


def _is_native(overload):
    """True if a kernel has loops, and a form as machine code."""
    native = overload.threadwise
    return native is not None and native.possible and native.has_loop


def _is_array(value):
    return isinstance(value, np.ndarray | DeviceArray)


def _is_small(array):
    """True if an array need not be copied before the launch, as a NumPy array is not changed before its end, or can."""
    if isinstance(array, np.ndarray):
        return type(array) is np.ndarray
    return array.is_c_contiguous() and array.alloc_size <= MAX_REHEARSED


def _overlap(arrays):
    """True if two of the arrays may share memory."""
    spans = []
    for array in arrays:
        low, high = byte_span(array.shape, array.strides, array.dtype.itemsize)
        host = isinstance(array, np.ndarray)
        start = array.ctypes.data if host else array.device_ctypes_pointer.value or 0
        spans.append((host, start + low, start + high))
    spans.sort()
    return any(a[0] == b[0] and b[1] < a[2] for a, b in itertools.pairwise(spans))


def _registers(registers, launch, args):
    if registers is None:
        return gpu.registers(launch, args)
    return check_int("registers", registers, 1, 255)


def _chosen(blocks, prepared):
    """Positions of the blocks to run; None for all."""
    total, threads = prepared.run.blocks, prepared.run.threads
    most = (1 << THREAD_BITS) // max(threads, WARP)
    if total > most and (blocks is None or (is_int(blocks) and int(blocks) > most)):
        raise ValueError(
            f"blocks is {describe(blocks)}; of {total:,} blocks a trace runs {most:,} at most: give blocks=64"
        )
    if blocks is None:
        return None
    if prepared.run.program.cooperative:
        raise ValueError("blocks cannot be chosen in a cooperative launch: its blocks wait for each other")
    if is_int(blocks):
        if blocks < 1:
            raise ValueError(f"blocks is {describe(blocks)}; it must be 1 or more")
        if blocks >= total:
            return None
        return np.unique(np.linspace(0, total - 1, int(blocks)).round().astype(np.int64))
    chosen = check_items("blocks", blocks, "an int or a sequence of ints")
    numbers = np.unique(np.array([check_int(f"blocks[{i}]", b, 0, total - 1) for i, b in enumerate(chosen)], np.int64))
    if not numbers.size:
        raise ValueError(f"blocks is {describe(blocks)}; it must name blocks from 0 to {total - 1}")
    return numbers


class _Progress:
    """Shows the progress of a long trace on a terminal or in a notebook, and erases it at the end."""

    WIDTH = 30

    def __init__(self, name):
        self.name = name
        self.visible = False

    def __enter__(self):
        self.start = time.perf_counter()
        return self.show if sys.stderr.isatty() or "ipykernel" in sys.modules else None

    def show(self, share):
        if time.perf_counter() - self.start > PATIENCE and share < 1:
            self.visible = True
            bar = "█" * math.floor(share * self.WIDTH)
            sys.stderr.write(f"\rtracing {self.name} {bar:·<{self.WIDTH}} {share:4.0%}")
            sys.stderr.flush()

    def __exit__(self, *exception):
        if self.visible:
            sys.stderr.write("\r" + " " * (len(self.name) + self.WIDTH + 16) + "\r")
            sys.stderr.flush()
