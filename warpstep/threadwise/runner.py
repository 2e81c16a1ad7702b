"""Launches as machine code: when it is worth it, its arguments, and its threads on this machine's cores."""

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from warpstep.compiler.blocks import Branch, Jump, Leave
from warpstep.compiler.expressions import LITERAL, VARIABLE, Trait
from warpstep.integers import ceil_div
from warpstep.machine.memory import RecordRef, View
from warpstep.threadwise import operations  # noqa: F401 (fills the table)
from warpstep.threadwise.function import LOG_SIZE_SHIFT, compile_kernel, reverse_postorder
from warpstep.threadwise.sharing import find_uses
from warpstep.threadwise.table import HANDLERS
from warpstep.threadwise.ufuncs import ufunc_handler
from warpstep.threadwise.values import NotNative, Status

#: Microseconds in lockstep that are worth compiling native code. They are estimated from counts, so that a program
#: takes the same path on every machine.
WORTH_US = 60_000
#: Microseconds of a statement in lockstep: for the call of NumPy, and for each lane; of copying a byte.
CALL_US, LANE_US, BYTE_US = 2.0, 0.0015, 0.0002
#: Microseconds that a copy may always take.
FREE_COPY_US = 200
#: Turns that loops are assumed to take.
ASSUMED_TURNS = 16
#: A thread may take so many times the turns of the loop limit, which is made for lockstep.
TURNS_FACTOR = 10
#: Entries of a log of overwritten values, if the kernel has loops.
MAX_LOG = 1 << 20
#: Turns in lockstep, to find out if a loop repeats itself, once native code has taken too many.
LAST_TURNS = 100_000
#: Pieces of a launch for each core, and the least statements of one if the kernel has no loop.
PIECES, MIN_PIECE = 8, 1_000_000
#: Bytes of the notes which threads used an element, and the most threads they can tell apart.
MAX_SHADOW_BYTES, MAX_THREADS = 1 << 29, 0xFFFF0000


class Threadwise:
    """The native form of a kernel for given argument types.

    Attributes
    ----------
    possible : bool
        False if the kernel has no native form, or if its threads were seen to depend on each other.
    """

    def __init__(self, program):
        self.program = program
        self.possible = _is_possible(program)
        self.has_loop = _has_loop(program.blocks)
        self._statements = sum(len(block.statements) for block in program.blocks)
        self._stores = _count_stores(program)
        self._spent_us = 0.0
        self._overflows = False  # a log of stores was too short
        self._variants = {}
        self._shadows = {}
        self._tag = 0
        self._lock = threading.Lock()

    @functools.cached_property
    def uses(self):
        return find_uses(self.program)

    # -- whether it is worth it ----------------------------------------------------------------------------------------

    def _batch_us(self, lanes):
        """Estimate a batch in lockstep."""
        return self._statements * (CALL_US + LANE_US * lanes) + self.has_loop * ASSUMED_TURNS * self._turn_us(lanes)

    def _turn_us(self, lanes):
        """Estimate one turn of a loop in lockstep."""
        return (CALL_US + LANE_US * lanes) * max(3.0, 2 * self._statements / len(self.program.blocks))

    def is_worth(self, launch, arguments, blocks):
        """True if the last so many blocks of a launch should run natively from the start."""
        if not self.possible:
            return False
        if self._variants or self._spent_us > WORTH_US:
            return True
        step = min(launch.blocks_per_batch(), blocks)
        work = ceil_div(blocks, step) * self._batch_us(step * launch.threads)
        # A loop may turn out to be long, but a copy of these arrays costs too much to change over in the middle.
        stuck = self.has_loop and not self._can_copy(Saved(self.program, arguments, self.uses), step * launch.threads)
        return stuck or self._spent_us + work > 2 * WORTH_US

    def _can_copy(self, saved, lanes):
        """True if copying the written arrays costs little beside running a batch."""
        return saved.nbytes * BYTE_US < max(FREE_COPY_US, self._batch_us(lanes))

    def spent(self, batch):
        """Note a batch that ran in lockstep."""
        self._spent_us += self._batch_us(batch.lanes)

    def before_switch(self, batch, arguments):
        """Let a batch stop after so many turns of its loops that it should rather run natively.

        Returns what then puts memory back; None if the batch has no native form.
        """
        if not (self.possible and self.has_loop):
            return None
        saved = Saved(self.program, arguments, self.uses)
        if not self._can_copy(saved, batch.lanes):
            return None
        batch.turns_to_switch = int((WORTH_US - self._spent_us) / self._turn_us(batch.lanes))
        return saved.take()

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, launch, arguments, first_block):
        """Run the blocks of a launch from ``first_block`` on; False if lockstep has to do it, with memory as before."""
        threads = launch.blocks * launch.threads
        if threads > MAX_THREADS:
            return False
        saved = Saved(self.program, arguments, self.uses)
        lanes = (launch.blocks - first_block) * launch.threads
        entries = MAX_LOG if self.has_loop else lanes * self._stores
        with self._lock:
            status = Status.FULL
            if 16 * entries < saved.nbytes and not self._overflows:
                saved.log(entries)
                status = self._run_on(launch, arguments, first_block, saved)
                self._overflows = status is Status.FULL
            if status is Status.FULL:
                saved.take()
                status = self._run_on(launch, arguments, first_block, saved)
        if status is Status.TURNS:
            launch.turns_allowed = min(launch.loop_limit, LAST_TURNS)
        self.possible = self.possible and status is not Status.CONFLICT
        return status is Status.DONE

    def _run_on(self, launch, arguments, first_block, saved):
        """Run with memory saved; returns the `Status` after memory has been put back if that is not DONE."""
        prepared = self._prepare(launch, arguments, saved.entries > 0)
        if prepared is None:
            return Status.ERROR
        compiled, words = prepared
        count = launch.blocks * launch.threads
        status = self._run_pieces(compiled.run, words, launch, first_block * launch.threads, count, saved)
        if status is not Status.DONE:
            saved.restore()
        return status

    def _prepare(self, launch, arguments, logged):
        """Return (machine code, words of the launch), or None if these arguments have no native form."""
        self._tag += 1
        shared = frozenset(i for i, use in self.uses.items() if use.is_shared(launch.grid, launch.block))
        marshal = _Marshal(self._shadows, shared)
        try:
            forms = tuple(marshal.form(value, i) for i, value in enumerate(arguments))
            if marshal.overlap(self.program.written):
                return None
            key = forms, shared, logged
            if key not in self._variants:
                self._variants[key] = compile_kernel(self.program, *key)
        except NotNative:
            self.possible = bool(self._variants)
            return None
        header = (*launch.block, *launch.grid, self._tag << 32)
        return self._variants[key], np.array(header + tuple(marshal.words), np.int64)

    def _run_pieces(self, run, words, launch, first, last, saved):
        """Run the threads in pieces on all cores; returns the `Status` of the first piece that failed, or DONE."""
        count = last - first
        workers = 1 if any(use.atomics for use in self.uses.values()) else cores()
        piece = max(ceil_div(count, workers * PIECES), 1 if self.has_loop else MIN_PIECE // max(1, self._statements))
        if workers == 1:
            piece = count
        starts = iter(range(first, last, piece))
        failed = []
        workers = min(workers, ceil_div(count, piece))
        controls = np.zeros((workers, 5), np.int64)
        controls[:, 1] = launch.loop_limit * TURNS_FACTOR
        saved.provide_logs(controls)
        arguments = words.ctypes.data

        def work(control):
            for start in starts:
                status = run(arguments, start, min(start + piece, last), control.ctypes.data)
                if status:
                    controls[:, 0] = 1
                    failed.append(Status(status))

        if not self.has_loop and workers == 1:
            work(controls[0])
            return failed[0] if failed else Status.DONE
        futures = [pool().submit(work, control) for control in controls]
        try:
            wait(futures)
        except BaseException:  # Ctrl-C
            controls[:, 0] = 1
            wait(futures)
            raise
        for future in futures:
            future.result()
        return failed[0] if failed else Status.DONE


def _is_possible(program):
    """Return False for barriers, shared memory and operations without a native form."""
    if program.static_shared or program.cooperative or program.fences:
        return False
    if not all(type(block.end) in (Branch, Jump, Leave) for block in program.blocks):
        return False
    nodes = (node for block in program.blocks for expression in _expressions(block) for node in expression.walk())
    templates = {node.op.template for node in nodes if node.op not in (VARIABLE, LITERAL)}
    return all(template in HANDLERS or ufunc_handler(template) for template in templates)


def _has_loop(blocks):
    rank = {label: i for i, label in enumerate(reverse_postorder(blocks))}
    return any(rank[target] <= rank[label] for label in rank for target in blocks[label].end.targets)


def _count_stores(program):
    """Return the entries that a thread may log at most if no store is in a loop: a number may have two parts, each with
    its note that it is known."""
    nodes = (node for block in program.blocks for expression in _expressions(block) for node in expression.walk())
    return 4 * sum(bool(node.op.traits & (Trait.WRITES | Trait.WRITES_ANY)) for node in nodes)


def _expressions(block):
    return [s.expression for s in block.statements] + ([block.end.operand] if block.end.operand else [])


# -- arguments ---------------------------------------------------------------------------------------------------------


class _Marshal:
    """The arguments of a launch as 64-bit words, in the order in which `function.Function` reads them."""

    def __init__(self, shadows, shared):
        self.words = []
        self._shadows = shadows
        self._shared = shared
        self._ranges = []  # (position, first byte, byte after the last) of every array

    def form(self, value, position):
        """Append the words of an argument; returns its form."""
        if value is None:
            return ("none",)
        if isinstance(value, tuple):
            return "tuple", tuple(self.form(item, position) for item in value)
        if isinstance(value, View):
            return self._array(value, position)
        if isinstance(value, RecordRef):
            return self._record(value, position)
        if not isinstance(value, np.generic) or value.dtype.kind not in "biufc":
            raise NotNative(f"an argument {type(value).__name__}")
        return self._number(value)

    def _number(self, value):
        if value.dtype.kind == "c":
            self._number(value.real)
            self._number(value.imag)
            return "complex", value.dtype
        raw = value.tobytes()
        self.words.append(int.from_bytes(raw + bytes(8 - len(raw)), "little", signed=True))
        return "number", value.dtype

    def _buffer(self, view, position):
        items = view.items
        start = items.ctypes.data
        key = position, len(self._ranges)
        self._ranges.append((position, start, start + items.nbytes))
        shadow = 0
        if position in self._shared:
            if 16 * items.size > MAX_SHADOW_BYTES:
                raise NotNative("an array this large that threads share")
            notes = self._shadows.get(key)
            if notes is None or notes.size < 2 * items.size:
                notes = self._shadows[key] = np.zeros(2 * items.size, np.uint64)
            shadow = notes.ctypes.data
        self.words += [start, 0 if view.known is None else view.known.ctypes.data, shadow]
        return key, start

    def _array(self, view, position):
        if view.space not in ("global", "const") or not isinstance(view.base, int) or view.lost is not None:
            raise NotNative("an argument that is no plain array")
        key, start = self._buffer(view, position)
        size = view.items.itemsize
        strides = [s * size for s in view.strides]
        self.words += [start + view.base * size, *view.shape, *strides]
        dense = bool(strides) and strides[-1] == view.dtype.itemsize
        tracked = view.known is not None
        return "array", key, view.dtype, len(view.shape), view.space, dense, tracked, size

    def _record(self, record, position):
        if record.view.known is not None or not isinstance(record.view.base, int):
            raise NotNative("a record whose writes are noted")
        key, start = self._buffer(record.view, position)
        self.words.append(start + record.view.base * record.view.items.itemsize + int(record.offset))
        return "record", key, record.dtype

    def overlap(self, written):
        """True if an array that is written shares memory with another argument."""
        ordered = sorted(self._ranges, key=lambda r: r[1])
        for i, (position, _, end) in enumerate(ordered):
            for other, begin, _ in ordered[i + 1 :]:
                if begin >= end:
                    break
                if position in written or other in written:
                    return True
        return False


class Saved:
    """What the written arrays of a launch held, to be put back: a copy of them, or a log of what was overwritten.

    Arrays that the kernel never reads are left out: running it again writes the same elements.

    Attributes
    ----------
    nbytes : int
        Of the arrays.
    entries : int
        Capacity of each log; 0 for a copy.
    """

    def __init__(self, program, arguments, uses):
        self._arrays = []
        for position in program.written:
            self._find(arguments[position], uses[position].reads or uses[position].atomics)
        self.nbytes = sum(array.nbytes for array in self._arrays)
        self.entries = 0
        self._copies = []
        self._logs = []
        self._controls = np.zeros((0, 5), np.int64)

    def _find(self, value, is_read):
        if isinstance(value, tuple):
            for item in value:
                self._find(item, is_read)
        view = value.view if isinstance(value, RecordRef) else value
        if isinstance(view, View):
            self._arrays += [view.items] * is_read + [view.known] * (view.known is not None)

    def take(self):
        """Copy the arrays; returns self."""
        self.entries = 0
        self._copies = [array.copy() for array in self._arrays]
        return self

    def log(self, entries):
        """Have stores logged instead, as many as ``entries`` for each worker."""
        self.entries = entries

    def provide_logs(self, controls):
        if self.entries:
            self._logs = [np.empty((self.entries, 2), np.uint64) for _ in controls]
            controls[:, 2] = [log.ctypes.data for log in self._logs]
            controls[:, 3] = self.entries
            self._controls = controls

    def restore(self):
        """Put back what the arrays held."""
        if not self.entries:
            for array, copy in zip(self._arrays, self._copies, strict=True):
                array[...] = copy
            return
        for log, control in zip(self._logs, self._controls, strict=True):
            for array in self._arrays:
                _undo(array, log[: control[4]][::-1])  # the first value that was overwritten is the last put back


def _undo(array, entries):
    """Put back what stores to an array overwrote, in the order of the entries."""
    raw = array.reshape(-1).view(np.uint8)
    places = (entries[:, 0] & np.uint64((1 << LOG_SIZE_SHIFT) - 1)).astype(np.int64) - array.ctypes.data
    sizes = 1 << (entries[:, 0] >> np.uint64(LOG_SIZE_SHIFT)).astype(np.int64)
    for size in (1, 2, 4, 8):
        mine = (places >= 0) & (places < raw.size) & (sizes == size)
        old = entries[mine, 1].astype(f"u{size}").view(np.uint8).reshape(-1, size)
        raw[places[mine, None] + np.arange(size)] = old


# -- threads -----------------------------------------------------------------------------------------------------------

_pool = None


def cores():
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pool():
    """Return the threads that run native code, made when first needed."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(cores(), "warpstep")
    return _pool


def _forget_pool():
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
