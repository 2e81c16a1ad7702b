"""Run code that knows nothing of the emulator on it: ``gpukit run script.py`` and ``%load_ext gpukit``.

`install` puts the emulator in place of ``numba.cuda`` and ``numba_cuda_mlir.cuda`` in this process, `uninstall` takes
it back. The module object stays what it is and is changed in place, so that every form of import finds the emulator,
before and after.
"""

import argparse
import builtins
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import linecache
import operator
import os
import pkgutil
import runpy
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing import spawn
from types import ModuleType, TracebackType

from warpstep import _compilers
from warpstep.imports import Imports, missing

_ABSENT = object()
OWN_PACKAGES = ("numba", "numba_cuda", "numba_cuda_mlir", "gpukit", "warpstep")
_INSIDE = os.path.join(os.path.dirname(__file__), "")
#: Prefixes of the files whose frames a script's traceback leaves out.
_MACHINERY = (_INSIDE, "<frozen runpy>", "<lockstep ")

# -- in place of numba.cuda --------------------------------------------------------------------------------------------


class _Changes:
    """Attributes and dictionary entries that were changed, and what they were before."""

    def __init__(self):
        self._undo = []

    def attribute(self, owner, name, value):
        before = vars(owner).get(name, _ABSENT)
        self._undo.append(functools.partial(_restore, owner, name, value, before))
        setattr(owner, name, value)

    def item(self, mapping, key, value, store=operator.setitem):
        before = mapping.get(key, _ABSENT)
        undo = (operator.delitem, mapping, key) if before is _ABSENT else (store, mapping, key, before)
        self._undo.append(functools.partial(*undo))
        store(mapping, key, value)

    def undo(self, function):
        """Have ``function()`` called when the changes are taken back."""
        self._undo.append(function)

    def take_back(self):
        while self._undo:
            self._undo.pop()()


def _restore(owner, name, value, before):
    if vars(owner).get(name, _ABSENT) is not value:
        return  # changed again since, by someone else
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


_changes: _Changes | None = None
#: What begins once the program has chosen a compiler by importing it.
_waiting: list[Callable[[], None]] = []


def installed() -> bool:
    """True while the emulator stands in for ``numba.cuda``."""
    return _changes is not None


def install() -> None:
    """Put the emulator in place of ``numba.cuda`` in this process; nothing happens if it is there already.

    ``numba_cuda_mlir.cuda`` becomes the emulator too, whether it is installed or not. Where both are installed, kernels
    are typed with the one that is imported first.

    Everything that the host uses is replaced: in ``numba.cuda``, in ``numba.cuda.cudadrv``, in ``numba.vectorize``
    and in every loaded module that took a name earlier (``from numba.cuda import jit``). Kernels that exist already are
    launched on the emulator from now on. Arrays that are in the memory of a real GPU cannot be used until `uninstall`.

    Raises
    ------
    ImportError
        If Numba's simulator is switched on: it stands in the same place.
    """
    global _changes
    if installed():
        return
    changes = _changes = _Changes()
    try:
        imports = Imports(lambda: _loaded(changes))
        sys.meta_path.insert(0, imports)
        changes.undo(imports.remove)
        _choose_emulator(changes)
        if not _compilers.is_open():
            if "warpstep.cuda" in sys.modules:
                _replace_numba_cuda(changes)
            importlib.import_module("warpstep.cuda")
    except BaseException:
        uninstall()
        raise


def uninstall() -> None:
    """Give ``numba.cuda`` back as it was before `install`. Kernels made in between stay emulated."""
    global _changes
    if _changes is not None:
        _changes.take_back()
        _changes = None


@contextlib.contextmanager
def emulated() -> Iterator[None]:
    """``with emulated(): ...``: the emulator stands in for ``numba.cuda`` inside the block."""
    before = installed()
    install()
    try:
        yield
    finally:
        if not before:
            uninstall()


def _loaded(changes):
    _replace_numba_cuda(changes)
    for start in _waiting:
        start()
    _waiting.clear()


def _replace_numba_cuda(changes):
    taken = {}
    for module, names in _replacements():
        for name, value in names.items():
            old = vars(module).get(name)
            # A module of numba.cuda may lack a name in one of its versions: none is added.
            if old is not None and old is not value and not name.startswith("_"):
                taken[id(old)] = value
                changes.attribute(module, name, value)
    for module in _modules_of_others():
        for name, old in list(vars(module).items()):
            if id(old) in taken:
                changes.attribute(module, name, taken[id(old)])
    if _compilers.chosen() == _compilers.NUMBA_CUDA:
        changes.attribute(sys.modules["numba.cuda"], "__getattr__", missing)
    _replace_ufunc_targets(changes)
    _redirect_dispatchers(changes)
    _redirect_driver(changes)


def _replacements():
    """Pairs of a module of Numba and {name: what stands there while the emulator is installed}."""
    from warpstep import _numba, cuda
    from warpstep.api import allocations, context, streams

    emulator = vars(cuda)
    host = {name: emulator[name] for name in vars(_numba.cuda) if name in emulator}
    # The modules are changed where they are, not exchanged: someone may hold them.
    host = {name: value for name, value in host.items() if callable(value) or name == "gpus"}
    host |= {"event": streams.guest_event, "event_elapsed_time": streams.guest_elapsed_time}
    ufuncs = {"vectorize": cuda.vectorize, "guvectorize": cuda.guvectorize}
    classes = {
        "Context": context.Context,
        "Device": context.Device,
        "Event": streams.Event,
        "IpcHandle": cuda.IpcHandle,
        "MemoryPointer": allocations.DevicePointer,
        "Stream": streams.Stream,
    }
    for module in _numba.HOST_MODULES:
        yield module, host
    yield _numba.devicearray, vars(cuda.devicearray)
    yield _numba.devices, vars(cuda.devices)
    yield _numba.driver, {**classes, **{name: host[name] for name in host if hasattr(_numba.driver, name)}}
    yield _numba.reduction, {"Reduce": cuda.Reduce}
    yield _numba.ufunc_package, ufuncs
    yield _numba.ufunc_package.decorators, ufuncs


def _modules_of_others():
    """The loaded modules that belong neither to Numba nor to gpukit; a notebook's names are among them."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] not in OWN_PACKAGES:
            yield module


def _replace_ufunc_targets(changes):
    """``numba.vectorize(target="cuda")`` looks its compiler up in a registry of Numba's."""
    from warpstep import cuda
    from warpstep._numba import core_ufunc_decorators

    if core_ufunc_decorators is None:
        return
    for kind, decorator in (("Vectorize", cuda.vectorize), ("GUVectorize", cuda.guvectorize)):
        emulated_class = decorator.__globals__[kind].target_registry["cuda"]
        registry = getattr(core_ufunc_decorators, kind).target_registry
        # Asked for once, so that no entry is left that is made on demand. The registry refuses to be given an entry
        # twice; the method of dict, its base, does not.
        registry["cuda"]
        changes.item(registry, "cuda", emulated_class, dict.__setitem__)


def _redirect_dispatchers(changes):
    """Let kernels that numba.cuda.jit made earlier run on the emulator."""
    from warpstep._numba import CUDADispatcher, earlier_launch
    from warpstep.launch import emulated_kernel

    def redirected(name):
        def method(self, *args, **named):
            return getattr(emulated_kernel(self), name)(*args, **named)

        return method

    def launch(dispatcher, grid, block, shared, args):
        return emulated_kernel(dispatcher)[grid, block, 0, shared](*args)  # its stream belongs to the GPU

    for name in ("configure", "forall", "specialize"):
        changes.attribute(CUDADispatcher, name, redirected(name))
    changes.attribute(*earlier_launch(launch))


def _redirect_driver(changes):
    """Let ``cuda.cudadrv.driver.driver`` and ``cuda.runtime`` show the emulated device.

    The rest of it stays, for it frees the memory of a real GPU.
    """
    from warpstep._numba import CUDA_VERSION, AllocationCounts, driver, memory_runtime, runtime
    from warpstep.api import context
    from warpstep.api.driver import FUNCTIONS

    answers = {
        "get_device": lambda driver, devnum=0: context.gpus[devnum]._device,
        "get_device_count": lambda driver: len(context.gpus),
        "get_version": lambda driver: CUDA_VERSION,
        "is_available": True,
        **FUNCTIONS,
    }
    for name, answer in answers.items():
        changes.attribute(driver.Driver, name, answer)
    changes.attribute(runtime.Runtime, "get_version", lambda runtime: CUDA_VERSION)
    # Kernels of the emulator allocate nothing on a heap of the device: there is nothing to set up or to count.
    for name in ("ensure_initialized", "initialize", "memsys_enable_stats", "memsys_disable_stats"):
        changes.attribute(type(memory_runtime), name, lambda runtime, stream=None: None)
    counted = AllocationCounts(*[0] * len(AllocationCounts._fields))
    changes.attribute(type(memory_runtime), "get_allocation_stats", lambda runtime, stream=None: counted)
    _add_enums(changes)


def _add_enums(changes):
    """Programs written for older releases import ``numba.cuda.cudadrv.enums``: the constants of the driver."""
    from warpstep._numba import cudadrv, driver

    if hasattr(cudadrv, "enums"):
        return
    enums = ModuleType(f"{cudadrv.__name__}.enums")
    for name, group in vars(driver.binding).items():
        if name.startswith("CU") and hasattr(group, "__members__"):
            vars(enums).update((constant, int(value)) for constant, value in group.__members__.items())
    changes.item(sys.modules, enums.__name__, enums)
    changes.attribute(cudadrv, "enums", enums)


def _choose_emulator(changes):
    """Let the processes that this one starts have the emulator too: those of multiprocessing, and those of gpukit."""
    changes.item(os.environ, "GPUKIT_BACKEND", "emulator")
    plain = spawn.get_preparation_data

    def get_preparation_data(name):
        data = plain(name)
        if name == "ignore":  # asked for by the fork server, which would import the script before its children do
            data = {key: value for key, value in data.items() if not key.startswith("init_main")}
        return {"warpstep": _InstallInChild(), **data}

    changes.attribute(spawn, "get_preparation_data", get_preparation_data)


class _InstallInChild:
    """Installs the emulator where it is unpickled: in a child process, before the script is imported there."""

    def __reduce__(self):
        return exec, ("import sys; sys.path[:] = path; from warpstep import run; run.install()", {"path": sys.path})


# -- tracing every launch ----------------------------------------------------------------------------------------------


class Launches:
    """Traces launches (``with launches: ...``): of each kernel with each grid and block the first, or those ``wanted``.

    Kernels that Numba brings along (those behind ``cuda.reduce`` and ``vectorize``) run untraced, and so do kernels
    whose source cannot be read.

    Parameters
    ----------
    wanted : function, optional
        Tells from the number of a launch, counted from 1 for each kernel with a grid and a block, whether to trace it.

    Attributes
    ----------
    found : dict
        {(code of the kernel's function, grid, block): [first trace, number of launches]}, in the order of the launches.
    suspicious : list of Trace
        Every trace with findings.
    """

    def __init__(self, wanted: Callable[[int], bool] = lambda number: number == 1):
        self.found = {}
        self.suspicious = []
        self._wanted = wanted
        self._changes = _Changes()
        self._here = threading.local()  # each processing element of NVSHMEM has a thread

    def __enter__(self):
        if installed() and _compilers.is_open():
            _waiting.append(self._start)
        else:
            self._start()
        return self

    def __exit__(self, *exception):
        if self._start in _waiting:
            _waiting.remove(self._start)
        self._changes.take_back()

    def _start(self):
        from warpstep.launch import Configured

        plain = Configured.__call__

        @functools.wraps(plain)
        def launch(configured, *args):
            if getattr(self._here, "tracing", False) or not _is_users(configured.dispatcher.py_func):
                return plain(configured, *args)
            return self._launch(configured, args, plain)

        self._changes.attribute(Configured, "__call__", launch)

    def _launch(self, configured, args, plain):
        from warpstep.tracer import trace

        # A kernel that is made anew in each call of a function is one kernel: it has one code object.
        key = configured.dispatcher.py_func.__code__, configured.griddim, configured.blockdim
        entry = self.found.get(key, [None, 0])
        if not self._wanted(entry[1] + 1):
            entry[1] += 1
            plain(configured, *args)
            return
        self._here.tracing = True
        try:
            made = trace(configured, *args)
        finally:
            self._here.tracing = False
        entry = self.found.get(key, entry)  # another processing element may have launched it meanwhile
        self.found[key] = [entry[0] or made, entry[1] + 1]
        if made.findings:
            self.suspicious.append(made)

    @property
    def findings(self) -> list:
        """The findings of all traces."""
        return [finding for trace in self.suspicious for finding in trace.findings]

    def report(self) -> str:
        """Report every trace, how many launches each stands for, and all findings at the end."""
        if not self.found:
            return "gpukit run --trace: no kernel was launched"
        parts = []
        for (code, _, _), (trace, count) in self.found.items():
            head = f"{code.co_name} was launched {count} times with this grid and block; the first:\n" * (count > 1)
            parts.append(head + str(trace).rstrip("\n"))
        kinds = dict.fromkeys(f"{f.kind} at {f.filename}:{f.line}" for f in self.findings)
        parts.append(f"Launches traced: {len(self.found)}; findings: {', '.join(kinds) or 'none'}")
        return "\n\n".join(parts)

    def report_findings(self, allowed: Collection[str] = ()) -> str:
        """Report the findings alone, each place once; "" if there are none.

        ``allowed`` names those to leave out: "race", "race:kernel", "race:file.py" or "race:file.py:12".
        """
        from warpstep.report import text

        seen = {}
        for trace in self.suspicious:
            for finding in trace.findings:
                name = os.path.basename(finding.filename)
                places = trace.kernel, name, f"{name}:{finding.line}"
                if not {finding.kind, *(f"{finding.kind}:{place}" for place in places)} & set(allowed):
                    key = finding.kind, finding.filename, finding.line, finding.array
                    seen.setdefault(key, (trace, finding))
        by_trace = {id(trace): (trace, []) for trace, _ in seen.values()}
        for trace, finding in seen.values():
            by_trace[id(trace)][1].append(finding)
        return "\n\n".join(text.render_findings(trace, chosen) for trace, chosen in by_trace.values())


def _is_users(function):
    filename = function.__code__.co_filename
    return not filename.startswith(_numba_folders()) and bool(linecache.getlines(filename))


@functools.cache
def _numba_folders():
    from warpstep._numba import cuda, numba

    return tuple(os.path.dirname(module.__file__) + os.sep for module in (numba, cuda))


# -- gpukit run --------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``gpukit run``; returns its exit status, or raises what the script raises.

    It does not uninstall: functions that the script registered for the end of the process still find the emulator.
    """
    arguments = _parse(argv)
    try:
        install()
    except ImportError as error:
        print(f"gpukit run: {error}", file=sys.stderr)
        return 2
    launches = Launches()
    gc.freeze()  # the compiler is here to stay: the collector need not look at it again
    try:
        with launches if arguments.trace else contextlib.nullcontext():
            (_run_module if arguments.module else _run_script)(*arguments.target)
    except SystemExit as stop:
        _report(arguments, launches)
        if stop.code in (None, 0):
            return _status(arguments, launches)
        raise
    except BaseException:
        _report(arguments, launches)
        sys.excepthook = _hook_without_own_frames(sys.excepthook)
        raise
    _report(arguments, launches)
    return _status(arguments, launches)


def _parse(argv):
    text = "run a Python script that uses numba.cuda, with gpukit's emulator in its place: no GPU is needed"
    parser = argparse.ArgumentParser(
        prog="gpukit run",
        usage="gpukit run [--trace [--strict]] [--] script.py [args ...]\n"
        "       gpukit run [--trace [--strict]] -m module [args ...]",
        description=f"{text[0].upper()}{text[1:]}.",
        allow_abbrev=False,
    )
    parser.add_argument("--trace", action="store_true", help="trace the launches and print a report at the end")
    parser.add_argument("--strict", action="store_true", help="with --trace: exit with status 1 if there are findings")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("target", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.target[:1] == ["--"]:
        del arguments.target[0]
    if not arguments.target:
        parser.error(f"say which {'module' if arguments.module else 'script'} to run")
    if arguments.strict and not arguments.trace:
        parser.error("--strict needs --trace")
    return arguments


def _run_script(script, *args):
    """As ``python script.py args``; ``script`` may be a folder or a zip file that has a ``__main__.py``."""
    path = os.path.abspath(script)
    importer = pkgutil.get_importer(path)
    main_module, code = _read_script(path) if importer is None else _read_main(importer, script)
    sys.argv[:] = [script, *args]
    _first_on_path(os.path.dirname(os.path.realpath(path)) if importer is None else path)
    sys.modules["__main__"] = main_module
    exec(code, vars(main_module))


def _read_script(path):
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"gpukit run: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    main_module = ModuleType("__main__")
    vars(main_module).update(
        __file__=path,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    return main_module, compile(source, path, "exec", dont_inherit=True)


def _read_main(importer, script):
    spec = importer.find_spec("__main__")
    if spec is None:
        sys.exit(f"gpukit run: can't find '__main__' module in {script!r}")
    return importlib.util.module_from_spec(spec), spec.loader.get_code("__main__")


def _run_module(module, *args):
    """As ``python -m module args``."""
    _first_on_path(os.getcwd())
    sys.argv[:] = [module, *args]
    try:
        known = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        known = False
    if not known:
        sys.exit(f"gpukit run: No module named {module}")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _first_on_path(folder):
    # Python has put the folder of the command ``gpukit`` there, unless it was told to put nothing (``python -P``).
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _report(arguments, launches):
    if arguments.trace:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(launches.report().encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _status(arguments, launches):
    return int(arguments.strict and bool(launches.findings))


# -- tracebacks --------------------------------------------------------------------------------------------------------


def _hook_without_own_frames(hook):
    """An exception hook that hides the frames of gpukit from another one, so that an error looks as under ``python``.

    The exception goes on to the interpreter, which ends the process as it would without gpukit (KeyboardInterrupt!).
    """

    def show(kind, error, frames):
        _hide_own_frames(error, set())
        hook(kind, error, error.__traceback__)

    return show


def _hide_own_frames(error, seen):
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append((entry, entry.tb_frame.f_code.co_filename))
        entry = entry.tb_next
    # What called this module is the command.
    files = [file for _, file in entries]
    begin = files.index(__file__) if __file__ in files else 0
    shown = None
    for entry, file in reversed(entries[begin:]):
        if not file.startswith(_MACHINERY):
            shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = shown
    _hide_own_frames(error.__cause__, seen)
    _hide_own_frames(error.__context__, seen)


# -- notebooks ---------------------------------------------------------------------------------------------------------


def load_ipython_extension(ipython):
    """``%load_ext gpukit``: the emulator in place of ``numba.cuda`` for this session, and the magic ``%%trace``."""
    install()
    ipython.register_magic_function(functools.partial(_trace_cell, ipython), "cell", "trace")
    print("numba.cuda is gpukit's emulator in this session; %unload_ext gpukit gives it back, %%trace traces a cell")


def unload_ipython_extension(ipython):
    """``%unload_ext gpukit``: ``numba.cuda`` as it was."""
    ipython.magics_manager.magics["cell"].pop("trace", None)
    uninstall()
    print("numba.cuda is Numba's own again; kernels that were made in between stay on the emulator")


def _trace_cell(ipython, line, cell):
    """``%%trace``: run the cell and show a trace of each kernel that it launches."""
    from IPython.core.error import UsageError
    from IPython.display import display

    if line.strip():
        raise UsageError(f"%%trace takes no arguments; it was given {line.strip()!r}")
    # The cell's error is shown once: when it is raised here, so that "run all" and nbconvert stop.
    changes = _Changes()
    try:
        for name in ("showtraceback", "showsyntaxerror"):
            changes.attribute(ipython, name, lambda *args, **named: None)
        with Launches() as launches:
            result = ipython.run_cell(cell)
    finally:
        changes.take_back()
    for trace, _ in launches.found.values():
        display(trace)
    result.raise_error()
