"""Kernels compiled side by side. Numba takes a second or more for each, and compiles one at a time in a process: where
many are to be measured, several processes share them out.
"""

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from bench import turns
from gpukit import backend, results

__all__ = ["FAILED", "compile_first", "side_by_side", "take_numba"]

#: What an error of the processes begins with.
FAILED = "the kernels could not be compiled"


def take_numba(target):
    """Make Numba compile for a compute capability without asking a device; for a process that does nothing else."""
    import numba.cuda.codegen
    import numba.cuda.dispatcher
    from numba import cuda

    backend.cuda, backend.NAME = cuda, "gpu"
    device = SimpleNamespace(compute_capability=target)
    numba.cuda.dispatcher.get_current_device = lambda: device
    numba.cuda.codegen.devices = SimpleNamespace(get_context=lambda: SimpleNamespace(device=device))


def side_by_side(module, jobs, target):
    """Have jobs done in processes of their own, one for each core.

    Parameters
    ----------
    module : str
        Its function ``compile_job(job)`` does one, after `take_numba`.
    jobs : list
        Of anything that can be pickled.
    target : (int, int)
        Compute capability.

    Returns
    -------
    list
        What ``compile_job`` gave for each, in the order of the jobs.

    Raises
    ------
    RuntimeError
        If one failed; the message has what it said.
    """
    count = max(1, min(len(jobs), turns.MOST, results.cores()))
    environment = os.environ | {"GPUKIT_BACKEND": "emulator", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    made = [None] * len(jobs)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        try:
            for i in range(count):
                path = Path(folder, str(i))
                path.write_bytes(pickle.dumps((module, target, [pickle.dumps(job) for job in jobs[i::count]])))
                command = [sys.executable, "-m", "bench.compiling", str(path)]
                said = Path(folder, f"{i}.said").open("w+")
                children.append((path, said, subprocess.Popen(command, stdout=said, stderr=said, env=environment)))
            for i, (path, said, child) in enumerate(children):
                if child.wait():
                    said.seek(0)
                    raise RuntimeError(f"{FAILED}:\n{said.read()}")
                made[i::count] = pickle.loads(path.read_bytes())
        finally:
            for _, said, child in children:  # where one failed, the others are still at work in the folder
                child.kill()
                child.wait()
                said.close()
    return made


def _child(path):
    """Do the jobs that a file holds, and put what they gave in its place."""
    module, target, jobs = pickle.loads(path.read_bytes())
    take_numba(target)
    work = importlib.import_module(module).compile_job
    path.write_bytes(pickle.dumps([work(pickle.loads(job)) for job in jobs]))


# -- for a process that launches them --------------------------------------------------------------


def compile_first(launches, report=print):
    """Compile what some launches need, side by side, so that they find it compiled; nothing to do on the emulator.

    Parameters
    ----------
    launches : iterable of (launch, arguments)
        As `gpukit.matmul.steps` gives them. They are not made.
    """
    if not backend.on_gpu():
        return
    from numba import cuda
    from numba.cuda import serialize

    jobs = {}
    for launch, arguments in launches:
        kernel = launch.dispatcher
        types = tuple(kernel.typeof_pyval(argument) for argument in arguments)
        if types not in kernel.overloads:
            jobs[id(kernel), types] = kernel, types
    target = cuda.get_current_device().compute_capability
    pickled = [serialize.dumps(job) for job in jobs.values()]
    try:
        with turns.elsewhere():
            compiled = side_by_side("bench.compiling", pickled, target)
    except RuntimeError as error:  # then each is compiled when it is first launched, which may say more
        print(error, file=sys.stderr)
        return
    for (kernel, types), binary in zip(jobs.values(), compiled, strict=True):
        kernel.add_overload(pickle.loads(binary), types)
    report(f"{len(jobs)} kernels compiled")


def compile_job(job):
    """Compile a pickled (kernel, types); gives back the compiled kernel, pickled, as Numba's cache on disk keeps it."""
    from numba.cuda import serialize
    from numba.cuda.dispatcher import _Kernel, get_current_device

    kernel, types = pickle.loads(job)
    compiled = _Kernel(kernel.py_func, types, **kernel.targetoptions)
    compiled._codelibrary.get_cubin(cc=get_current_device().compute_capability)
    return serialize.dumps(compiled)


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
