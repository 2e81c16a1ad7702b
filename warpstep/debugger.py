"""``warpstep.debug``: stop a kernel at a line, look at every lane, step; and ``breakpoint()`` in a kernel.

The kernel is lowered once more for this, into a program that tells its batch of every line (`DebugBatch.stop`) and of
every variable of the source (`DebugBatch.note`). The lanes that arrive at a line together stop together; one thread is
in focus.
"""

import bdb
import cmd
import contextlib
import functools
import linecache
import operator
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpstep.launch import Launch, Prepared, complete, configuration, prepare
from warpstep.limits import WARP
from warpstep.machine.batch import Batch, short_path, unravel
from warpstep.machine.memory import Either, RecordRef, View
from warpstep.report.table import Table
from warpstep.tracing import gpu

__all__ = ["attach", "debug"]

#: Stops at one breakpoint that are shown where nobody can answer, and items of an array.
MAX_SHOWN, MAX_ITEMS = 5, 8
#: Lines of source around a stop, and columns of a table that are not asked for by name.
CONTEXT, MAX_COLUMNS = 5, 10


def debug(launch, *args, block=None, thread=None, commands: Sequence[str] | None = None) -> None:
    """Run a launch in the emulator and stop at its first line, as Python's debugger does.

    At the prompt, ``help`` lists the commands: step, next, until, continue, break, watch, table, print, thread, block,
    up, down, list, where. An error stops at its line. Afterwards the arrays hold the results, as after a launch;
    ``quit`` ends the launch early.

    Parameters
    ----------
    launch : ``kernel[grid, block]``, ``kernel[grid, block, stream]`` or ``kernel[grid, block, stream, shared_bytes]``
    *args
        The kernel's arguments, as for `trace`.
    block, thread : int or tuple of int, optional
        The block and the thread to follow: breakpoints stop for it alone. Without ``thread`` they stop for any thread,
        and the first one that arrives comes into focus.
    commands : sequence of str, optional
        Commands instead of a prompt, printed with their answers; afterwards the kernel runs to its end.

    Raises
    ------
    TypeError, ValueError
        If ``launch`` is no configured kernel, or for a block or a thread outside of the launch.
    KernelError
        For what ends a launch, after a stop at its line.
    RuntimeError
        If there is neither a terminal nor a notebook to ask in, and ``commands`` is not given.

    Examples
    --------
    >>> debug(kernel[4, 256], x, out, thread=3, commands=["until 12", "table", "print x[i]"])  # doctest: +SKIP
    """
    if commands is None and not _can_ask():
        raise RuntimeError(
            "there is no terminal to ask in: give commands=[...], for example commands=['next', 'table']"
        )
    if isinstance(commands, str):
        raise TypeError(f"commands is {commands!r}; it must be a sequence of str")
    configured = configuration(launch)
    name = configured.dispatcher.py_func.__name__
    try:
        with gpu.emulated_arguments(args) as here:
            prepared = prepare(configured, here)
            shell = Shell(prepared.run.grid, prepared.run.block, commands)
            if block is not None or thread is not None:
                shell.focus(block, thread, pin=thread is not None)
            shell.mode = "step"
            complete(_attached(prepared, shell), here)
    except bdb.BdbQuit:
        print(f"{name} was ended; host arrays are as they were")
    else:
        print(f"{name} has ended")


def attach(prepared: Prepared) -> Prepared:
    """Return a launch that stops at the breakpoints in its kernel; ``PYTHONBREAKPOINT=0`` switches them off."""
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        return prepared
    return _attached(prepared, Shell(prepared.run.grid, prepared.run.block))


def _attached(prepared, shell):
    plain = prepared.run
    run = Launch(prepared.overload.debugged, plain.grid, plain.block, plain.dynamic_shared, plain.cluster)
    run.make_batch = functools.partial(DebugBatch, shell)
    return prepared._replace(run=run)


def _can_ask():
    """True in a terminal, and in a notebook whose front end can answer."""
    if "ipykernel" in sys.modules:
        from IPython.core.getipython import get_ipython

        kernel = getattr(get_ipython(), "kernel", None)
        if kernel is not None:
            return bool(getattr(kernel, "_allow_stdin", False))
    return sys.stdin is not None and sys.stdin.isatty()


# -- the machine -------------------------------------------------------------------------------------------------------


class DebugBatch(Batch):
    """A batch that tells a `Shell` of every line, and keeps the value of every variable."""

    def __init__(self, shell, launch, ids):
        super().__init__(launch, ids)
        self.shell = shell
        #: {(variable, depth of the recursion): [(lanes or None for all, value)]}, the latest value first.
        self.notes = {}
        #: The stop that each lane has passed last; -1 for none.
        self.last = np.full(self.shape, -1, np.int64)
        self.schedulers = []
        numbers = {}
        places = [(s.frame, s.filename, s.line) for s in launch.program.stops]
        #: A number for the line of each stop, and -1 for the stop -1.
        self.line_of = np.array([*(numbers.setdefault(place, len(numbers)) for place in places), -1])

    def scheduler(self, *function):
        made = super().scheduler(*function)
        del self.schedulers[self.depth :]
        self.schedulers.append(made)
        return made

    def note(self, variable, value, mask):
        """Keep the value that the lanes of a mask give a variable."""
        key = variable, self.depth
        kept = []
        if mask is not None:
            earlier = self.notes.get(key, ())
            kept = [(lanes, old) for lanes, old in earlier if lanes is None or (lanes & ~mask).any()]
        self.notes[key] = [(mask, value), *kept]

    def stop(self, number, mask):
        """Let the shell look at the lanes that begin a line."""
        lanes = np.broadcast_to(True if mask is None else mask, self.shape)
        # Numba splits a line into several basic blocks; going back in the program begins the line anew.
        same_line = self.line_of[self.last] == self.line_of[number]
        fresh = lanes & ~(same_line & (self.last < number))
        self.last[lanes] = number
        if fresh.any():
            self.shell.arrive(self, number, lanes, fresh)

    def breakpoint(self, site, mask):
        lanes = np.broadcast_to(True if mask is None else mask, self.shape)
        self.shell.at_breakpoint(self, int(self.last[lanes][0]), lanes)

    def fail(self, kind, message, site, lanes, cure="", array=None):
        where = np.broadcast_to(True if lanes is None else lanes, self.shape)
        self.shell.failed(self, kind, message, where)
        super().fail(kind, message, site, lanes, cure, array)

    def lookup(self, variable, row, thread):
        """The value of a variable in one lane; LookupError if it has none yet."""
        for lanes, value in self.notes.get((variable, self.depth), ()):
            if lanes is None or np.broadcast_to(lanes, self.shape)[row, thread]:
                return _of_lane(value, self.shape, row, thread)
        raise LookupError

    def returned(self, row, thread):
        alive = self.schedulers[0].alive if self.schedulers else None
        return alive is not None and not np.broadcast_to(alive, self.shape)[row, thread]


def _of_lane(value, shape, row, thread):
    """The value that one lane sees: a NumPy scalar, an array, a tuple of these."""
    of_lane = functools.partial(_of_lane, shape=shape, row=row, thread=thread)
    if isinstance(value, np.ndarray):
        return np.broadcast_to(value, shape)[row, thread]
    if isinstance(value, tuple):
        return tuple(map(of_lane, value))
    if isinstance(value, Either):
        return of_lane(value.first if of_lane(np.asarray(value.mask)) else value.second)
    if isinstance(value, RecordRef):
        buffer = _buffer(value.view, row, thread)
        return np.ndarray((), value.dtype, buffer, int(of_lane(value.offset)))[()]
    if isinstance(value, View):
        unit = value.items.dtype.itemsize
        base, *rest = (int(of_lane(n)) for n in (value.base, *value.shape, *value.strides))
        extents, steps = rest[: len(value.shape)], [n * unit for n in rest[len(value.shape) :]]
        return np.ndarray(extents, value.dtype, _buffer(value, row, thread), base * unit, steps)
    return value


def _buffer(view, row, thread):
    """The items of a view that one lane sees."""
    if view.space == "shared":
        return view.items.reshape(-1, view.row)[row]
    return np.ascontiguousarray(view.items[:, row, thread]) if view.space == "local" else view.items


# -- what an expression sees -------------------------------------------------------------------------------------------


@dataclass
class _Dim3:
    x: int
    y: int
    z: int

    def __str__(self):
        return f"({self.x}, {self.y}, {self.z})"

    __repr__ = __str__


class _Cuda:
    """``cuda`` in an expression: the indices of one thread, everything else from the module."""

    def __init__(self, module, batch, row, thread):
        launch = batch.launch
        self._module = module
        self.threadIdx, self.blockIdx = (
            _Dim3(*unravel(thread, launch.block)),
            _Dim3(*unravel(int(batch.ids[row]), launch.grid)),
        )
        self.blockDim, self.gridDim = _Dim3(*launch.block), _Dim3(*launch.grid)
        self.laneid, self.warpsize = thread % WARP, WARP

    def __getattr__(self, name):
        return getattr(self._module, name)

    def grid(self, ndim):
        axes = "xyz"[:ndim]
        values = [getattr(self.blockIdx, a) * getattr(self.blockDim, a) + getattr(self.threadIdx, a) for a in axes]
        return values[0] if ndim == 1 else tuple(values)

    def gridsize(self, ndim):
        values = [getattr(self.gridDim, a) * getattr(self.blockDim, a) for a in "xyz"[:ndim]]
        return values[0] if ndim == 1 else tuple(values)


class _Names(dict):
    """The names of an expression for one lane: variables of a frame, then those of the function's module."""

    def __init__(self, batch, frame, row, thread):
        super().__init__()
        self._of = batch, frame, row, thread
        self._cuda = _Cuda(None, batch, row, thread)

    def __missing__(self, name):
        batch, frame, row, thread = self._of
        if name in frame.variables:
            try:
                return batch.lookup(frame.variables[name], row, thread)
            except LookupError:
                raise NameError(f"{name} has no value yet in this thread") from None
        function = frame.function
        free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        value = free[name].cell_contents if name in free else function.__globals__.get(name, self)
        if value is self:
            return self._without_module(name)
        if getattr(value, "__name__", "") in ("numba.cuda", "warpstep.cuda", "numba_cuda_mlir.cuda"):
            return _Cuda(value, batch, row, thread)
        return value

    def _without_module(self, name):
        if name in ("threadIdx", "blockIdx", "blockDim", "gridDim", "laneid", "warpsize"):
            return getattr(self._cuda, name)
        raise KeyError(name)  # a builtin, or unknown


@dataclass
class _Breakpoint:
    number: int
    filename: str
    line: int
    condition: str = ""

    def __str__(self):
        condition = f", if {self.condition}" if self.condition else ""
        return f"{self.number}  {short_path(self.filename)}:{self.line}{condition}"


# -- the commands ------------------------------------------------------------------------------------------------------


class Shell(cmd.Cmd):
    """The prompt of the debugger, for one launch. Its batches call `arrive`, `at_breakpoint` and `failed`.

    Parameters
    ----------
    grid, block : tuple of 3 int
    commands : sequence of str, optional
        Commands instead of a prompt.
    """

    prompt = "(gpukit) "

    def __init__(self, grid, block, commands=None):
        super().__init__()
        self.use_rawinput = True
        self.grid, self.block = grid, block
        self.script = None if commands is None else list(commands)
        self.asks = commands is None and _can_ask()
        #: "run", or until where: "step", "next", "finish", "until".
        self.mode = "run"
        self.depth, self.line = 0, ("", 0)
        self.thread, self.pinned = (0, 0), False
        self.breakpoints, self.watched = {}, {}
        self.shown = {}
        self.batch: Any = None
        self.lanes: Any = None
        self.frames, self.level = [], 0
        self._stopped_at = None
        self._made = 0

    def focus(self, block, thread, pin):
        """Follow a block and a thread; None leaves one as it is."""
        chosen = list(self.thread)
        for i, (name, value, extents) in enumerate((("block", block, self.grid), ("thread", thread, self.block))):
            if value is not None:
                chosen[i] = _linear(name, value, extents)
        self.thread, self.pinned = (chosen[0], chosen[1]), pin

    # -- stopping ------------------------------------------------------------------------------------------------------

    def arrive(self, batch, number, lanes, fresh):
        """Stop at a line if a command or a breakpoint asks for it; ``fresh``: the lanes that begin it."""
        if self.mode == "run" and not self.breakpoints and not self.watched:
            return
        here = self._position(batch)
        stop = batch.launch.program.stops[number]
        arrived = here is not None and bool(fresh[here])
        self._place(batch, stop, lanes)
        reasons = self._hit(stop, fresh, here) + (self._changed(here) if arrived else [])
        if reasons or arrived and self._reached(stop):
            self._stopped_at = number
            self.interact("; ".join(reasons))

    def at_breakpoint(self, batch, number, lanes):
        """Stop at a ``breakpoint()``, unless a stop at its line was just shown."""
        here = self._position(batch)
        at_stop, self._stopped_at = self._stopped_at == number, None
        if at_stop or self.pinned and (here is None or not lanes[here]):
            return
        stop = batch.launch.program.stops[number]
        self._place(batch, stop, lanes)
        if here is None or not lanes[here]:
            self._look_at(batch, lanes)
        if self.asks or self.script is not None:
            self.interact("breakpoint()")
        else:
            self._show_without_asking(stop)

    def failed(self, batch, kind, message, lanes):
        """Stop at an error."""
        if self.script is None and not self.asks:
            return
        self._look_at(batch, lanes)
        number = int(batch.last[self._position(batch)])
        if number >= 0:
            self._place(batch, batch.launch.program.stops[number], lanes)
            with contextlib.suppress(bdb.BdbQuit):  # the error ends the launch anyway
                self.interact(f"{kind}: {message}")

    def _show_without_asking(self, stop):
        place = stop.filename, stop.line
        count = self.shown[place] = self.shown.get(place, 0) + 1
        if count <= MAX_SHOWN:
            self.say(f"breakpoint() at {self._where()}; nobody can answer here, so the kernel goes on")
            self.do_table("")
        elif count == MAX_SHOWN + 1:
            self.say(f"breakpoint() at {short_path(stop.filename)}:{stop.line}: further stops are not shown")

    def _position(self, batch):
        """(row, thread) of the thread in focus; None if its block is not in this batch."""
        row = int(np.searchsorted(batch.ids, self.thread[0]))
        return (row, self.thread[1]) if row < batch.ids.size and batch.ids[row] == self.thread[0] else None

    def _look_at(self, batch, lanes):
        """Put the first lane of a mask into focus."""
        row, thread = np.unravel_index(int(np.argmax(lanes)), lanes.shape)
        self.thread = int(batch.ids[row]), int(thread)

    def _place(self, batch, stop, lanes):
        self.batch, self.lanes = batch, lanes
        self.frames, self.level = [(stop.frame, stop.line)], 0
        frame = stop.frame
        while frame.caller is not None:
            self.frames.append((frame.caller, frame.line))
            frame = frame.caller

    def _reached(self, stop):
        depth = self._depth(stop)
        if self.mode == "until":
            same = depth == self.depth and stop.filename == self.line[0]
            return depth < self.depth or same and stop.line >= self.line[1]
        limit = {"step": depth, "next": self.depth, "finish": self.depth - 1}.get(self.mode, -1)
        return depth <= limit

    def _depth(self, stop):
        return stop.frame.depth + 1000 * self.batch.depth

    def _hit(self, stop, fresh, here):
        """The breakpoints that hold here, as text. Puts a lane that they hold for into focus."""
        reasons = []
        for each in self.breakpoints.values():
            if (each.filename, each.line) != (stop.filename, stop.line):
                continue
            lanes = fresh
            if self.pinned:
                lanes = np.zeros_like(fresh)
                if here is not None:
                    lanes[here] = fresh[here]
            if each.condition:
                lanes = self._holds(each, lanes)
            if lanes.any():
                if here is None or not lanes[here]:
                    self._look_at(self.batch, lanes)
                    here = self._position(self.batch)
                reasons.append(f"breakpoint {each.number}")
        return reasons

    def _holds(self, each, lanes):
        result = np.zeros_like(lanes)
        code = compile(each.condition, "<condition>", "eval")
        for row, thread in np.argwhere(lanes):
            try:
                result[row, thread] = bool(self._evaluate(code, int(row), int(thread)))
            except Exception as error:
                self.say(f"the condition of breakpoint {each.number} fails: {_one_line(error)}")
                result[row, thread] = True
                break
        return result

    def _changed(self, here):
        reasons = []
        for text, (frame, before) in self.watched.items():
            now = self._try(text, here, frame) if any(frame is each for each, _ in self.frames) else before
            if now != before:
                reasons.append(f"{text}: {before or 'no value'} -> {now or 'no value'}")
                self.watched[text] = frame, now
        return reasons

    def interact(self, reason):
        """Say where the kernel is, and take commands until one lets it go on."""
        self.mode = "run"
        self.say(f"{reason}: " * bool(reason) + f"{self._where()}\n{self._source_line()}")
        if self.script is None:
            self.cmdloop()
            return
        while self.script:
            line = self.script.pop(0)
            self.say(f"{self.prompt}{line}")
            if self.onecmd(line):
                return
        self.mode = "run"
        self.breakpoints.clear()
        self.watched.clear()

    def _where(self):
        frame, line = self.frames[0]
        row, thread = self._here()
        warp = thread // WARP * WARP
        active = int(np.count_nonzero(self.lanes[row, warp : warp + WARP]))
        of = min(WARP, self.lanes.shape[1] - warp)
        block, thread = (unravel(n, extents) for n, extents in zip(self.thread, (self.grid, self.block), strict=True))
        filename = short_path(frame.function.__code__.co_filename)
        return (
            f"{filename}:{line} in {frame.function.__name__}, block {block}, thread {thread}, "
            f"with {active} of the {of} lanes of its warp"
        )

    def _here(self):
        position = self._position(self.batch)
        assert position is not None
        return position

    def _source_line(self):
        frame, line = self.frames[self.level]
        return f"-> {linecache.getline(frame.function.__code__.co_filename, line).strip()}"

    # -- output --------------------------------------------------------------------------------------------------------

    def say(self, text):
        print(text, flush=True)

    def show(self, table):
        """Show a table: as HTML in a notebook, as text elsewhere."""
        if "ipykernel" in sys.modules:
            from IPython.display import display

            display(table)
        else:
            self.say(str(table))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _evaluate(self, code, row, thread, frame=None):
        """The value of an expression in one lane, in a function of the source: that which is looked at unless given."""
        return eval(code, {}, _Names(self.batch, frame or self.frames[self.level][0], row, thread))

    def _try(self, text, here, frame=None):
        """The value of an expression as text; "" where it has none."""
        try:
            return _show(self._evaluate(text, here[0], here[1], frame))
        except Exception:
            return ""

    def default(self, line):
        if line == "EOF":
            return self.do_quit("")
        return self.do_print(line)

    def emptyline(self):
        return self.onecmd(self.lastcmd) if self.lastcmd else None

    def do_print(self, text):
        """print EXPRESSION, or p: its value in the thread in focus. Any expression alone does the same."""
        try:
            self.say(_show(self._evaluate(text, *self._here())))
        except Exception as error:
            self.say(f"*** {_one_line(error)}")

    def do_table(self, text):
        """table [EXPRESSION ...], or t: a row for each lane of the warp; all variables that are numbers unless named.

        Quote an expression that has blanks.
        """
        frame = self.frames[self.level][0]
        row, here = self._here()
        first = here // WARP * WARP
        threads = range(first, min(first + WARP, self.block[0] * self.block[1] * self.block[2]))
        try:
            chosen = shlex.split(text) or self._scalars(frame, row, here)
        except ValueError as error:
            self.say(f"*** {error}")
            return
        rows = []
        for thread in threads:
            index = unravel(thread, self.block)
            name = str(index[0]) if self.block[1:] == (1, 1) else str(index)
            mark = ">" if thread == here else ""
            values = [self._try(each, (row, thread)) for each in chosen]
            rows.append([mark, name, self._state(row, thread), *values])
        self.show(Table(["", "thread", "at", *chosen], rows, words=("at",)))
        arrays = [f"{name}: {shown}" for name, shown in self._arrays(frame, row, here)] if not text else []
        if arrays:
            self.say("\n".join(arrays))

    def _scalars(self, frame, row, thread):
        """The variables of a frame whose values are numbers in some lane of the warp."""
        first = thread // WARP * WARP
        names = []
        for name, variable in frame.variables.items():
            for lane in [thread, *range(first, min(first + WARP, self.lanes.shape[1]))]:
                try:
                    value = self.batch.lookup(variable, row, lane)
                except LookupError:
                    continue
                if not isinstance(value, np.ndarray | np.void):
                    names.append(name)
                break
        if len(names) > MAX_COLUMNS:
            self.say(f"the last {MAX_COLUMNS} of {len(names)} variables; `table NAME ...` shows others")
        return names[-MAX_COLUMNS:]

    def _arrays(self, frame, row, thread):
        for name, variable in frame.variables.items():
            try:
                value = self.batch.lookup(variable, row, thread)
            except LookupError:
                continue
            if isinstance(value, np.ndarray | np.void):
                yield name, _show(value)

    def _state(self, row, thread):
        number = int(self.batch.last[row, thread])
        if self.batch.returned(row, thread):
            return "returned"
        if number < 0:
            return "not begun"
        line = str(self.batch.launch.program.stops[number].line)
        return f"line {line}" if self.lanes[row, thread] else f"waits after line {line}"

    # -- going on ------------------------------------------------------------------------------------------------------

    def _go(self, mode):
        frame = self.frames[self.level][0]
        self.mode, self.depth = mode, frame.depth + 1000 * self.batch.depth
        return True

    def do_step(self, text):
        """step, or s: run the thread in focus to its next line, into device functions."""
        return self._go("step")

    def do_next(self, text):
        """next, or n: run the thread in focus to its next line, past device functions."""
        return self._go("next")

    def do_finish(self, text):
        """finish, return, or r: run to the next line outside of this device function."""
        return self._go("finish")

    def do_until(self, text):
        """until [LINE], or unt: run the thread in focus to that line, or to one after this."""
        frame, line = self.frames[self.level]
        if text and not text.strip().isdigit():
            self.say(f"*** {text!r} is no line")
            return None
        self.line = frame.function.__code__.co_filename, int(text) if text else line + 1
        return self._go("until")

    def do_continue(self, text):
        """continue, or c: run to the next breakpoint."""
        return self._go("run")

    def do_quit(self, text):
        """quit, or q: end the launch."""
        raise bdb.BdbQuit

    # -- breakpoints ---------------------------------------------------------------------------------------------------

    def do_break(self, text):
        """break [[FILE:]LINE [, CONDITION]], or b: stop at a line, in the threads for which the condition is true.

        Without a line: list the breakpoints. Example: break 12, i == 7 and x[i] < 0
        """
        if not text:
            self.say("\n".join(map(str, self.breakpoints.values())) or "there are no breakpoints")
            return
        place, _, condition = (part.strip() for part in text.partition(","))
        name, _, line = place.rpartition(":")
        stops = self.batch.launch.program.stops
        filename = self.frames[self.level][0].function.__code__.co_filename
        if name:
            files = {s.filename for s in stops if s.filename.endswith(name)}
            filename = min(files, default=name)
        lines = sorted({s.line for s in stops if s.filename == filename})
        if not line.isdigit():
            self.say(f"*** {line!r} is no line")
            return
        following = [n for n in lines if n >= int(line)]
        if not following:
            self.say(f"*** nothing runs at line {line} or after it; lines that do: {', '.join(map(str, lines))}")
            return
        try:
            if condition:
                compile(condition, "<condition>", "eval")
        except SyntaxError as error:
            self.say(f"*** {_one_line(error)}")
            return
        self._made += 1
        self.breakpoints[self._made] = _Breakpoint(self._made, filename, following[0], condition)
        self.say(f"breakpoint {self.breakpoints[self._made]}")

    def do_clear(self, text):
        """clear [NUMBER], or cl: remove a breakpoint, or all."""
        if not text:
            self.breakpoints.clear()
        elif not text.isdigit() or self.breakpoints.pop(int(text), None) is None:
            self.say(f"*** there is no breakpoint {text}")

    def do_watch(self, text):
        """watch EXPRESSION: stop when its value changes in the thread in focus."""
        if text:
            value = self._try(text, self._here())
            self.watched[text] = self.frames[self.level][0], value
            self.say(f"{text}: {value or 'no value'}")
        else:
            self.say("\n".join(f"{text}: {value}" for text, (_, value) in self.watched.items()) or "nothing is watched")

    def do_unwatch(self, text):
        """unwatch [EXPRESSION]: watch it no longer, or nothing at all."""
        if not text:
            self.watched.clear()
        elif self.watched.pop(text, None) is None:
            self.say(f"*** {text} is not watched")

    # -- looking around ------------------------------------------------------------------------------------------------

    def do_thread(self, text):
        """thread [INDEX | any]: follow another thread of the block, such as 3 or (3, 1, 0); breakpoints stop for it.

        After `thread any` they stop for any thread.
        """
        if text == "any":
            self.pinned = False
        elif text:
            self._refocus(None, text)
        block, thread = (unravel(n, extents) for n, extents in zip(self.thread, (self.grid, self.block), strict=True))
        row, lane = self._here()
        followed = "followed" if self.pinned else "in focus"
        self.say(f"block {block}, thread {thread}, {followed}: {self._state(row, lane)}")

    def do_block(self, text):
        """block [INDEX]: follow the same thread of another block."""
        if text:
            self._refocus(text, None)
        self.do_thread("")

    def _refocus(self, block, thread):
        before = self.thread, self.pinned
        try:
            parsed = [None if t is None else eval(t, {"__builtins__": {}}) for t in (block, thread)]
            self.focus(*parsed, pin=True)
        except Exception as error:
            self.say(f"*** {_one_line(error)}")
        if self._position(self.batch) is None:
            self.say("that block does not run together with this one; debug(..., block=...) stops in it")
            self.thread, self.pinned = before

    def do_where(self, text):
        """where, or w, bt: the calls from the kernel to here, the innermost last."""
        for level, (frame, line) in reversed(list(enumerate(self.frames))):
            filename = frame.function.__code__.co_filename
            mark = ">" if level == self.level else " "
            code = linecache.getline(filename, line).strip()
            self.say(f"{mark} {short_path(filename)}:{line} in {frame.function.__name__}: {code}")

    def do_up(self, text):
        """up, or u: look at the function that called this one."""
        self._move(1)

    def do_down(self, text):
        """down, or d: back to the function that was called."""
        self._move(-1)

    def _move(self, by):
        if not 0 <= self.level + by < len(self.frames):
            self.say("*** there is no other function that way")
            return
        self.level += by
        self.do_where("")

    def do_list(self, text):
        """list, or l: the source around this line."""
        frame, line = self.frames[self.level]
        filename = frame.function.__code__.co_filename
        broken = {b.line for b in self.breakpoints.values() if b.filename == filename}
        source = linecache.getlines(filename)
        shown = []
        for number in range(max(1, line - CONTEXT), min(len(source), line + CONTEXT) + 1):
            mark = "->" if number == line else "B " if number in broken else "  "
            shown.append(f"{mark}{number:5}  {source[number - 1].rstrip()}")
        self.say("\n".join(shown))

    do_s, do_n, do_r, do_unt, do_c, do_q = do_step, do_next, do_finish, do_until, do_continue, do_quit
    do_return, do_cont, do_exit = do_finish, do_continue, do_quit
    do_p, do_t, do_b, do_cl, do_w, do_bt = do_print, do_table, do_break, do_clear, do_where, do_where
    do_u, do_d, do_l = do_up, do_down, do_list

    def get_names(self):
        """Names of the methods, without the abbreviations: ``help`` lists each command once."""
        seen = {}
        for name in dir(self):
            seen.setdefault(getattr(getattr(self, name), "__func__", name), name)
            if len(name) > len(seen[getattr(getattr(self, name), "__func__", name)]):
                seen[getattr(getattr(self, name), "__func__", name)] = name
        return list(seen.values())


def _linear(name, value, extents):
    """The position of a block or a thread; ValueError or TypeError if there is none."""
    try:
        index = tuple(operator.index(n) for n in (value if isinstance(value, tuple | list) else (value,)))
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an int or a tuple of up to 3") from None
    if len(index) == 1 and index[0] >= extents[0]:
        index = unravel(index[0], extents)
    index += (0,) * (3 - len(index))
    if len(index) != 3 or not all(0 <= i < n for i, n in zip(index, extents, strict=True)):
        raise ValueError(f"{name} is {value!r}; this launch has {extents[0]} x {extents[1]} x {extents[2]}")
    return index[0] + extents[0] * (index[1] + extents[1] * index[2])


def _show(value):
    """A value as text: an array by its type, shape and first items."""
    if isinstance(value, np.ndarray) and value.ndim:
        items = ", ".join(_show(v) for v in value.reshape(-1)[:MAX_ITEMS])
        return f"{value.dtype} {value.shape} [{items}{', ...' if value.size > MAX_ITEMS else ''}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_show, value))}{',' * (len(value) == 1)})"
    return str(value) if isinstance(value, np.generic | np.ndarray) else repr(value)


def _one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
