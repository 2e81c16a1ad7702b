"""Compile kernels beforehand: ``gpukit compile``.

The shapes, strides and dtypes of its arrays decide which kernels a call launches. So functions are called with random
arguments, on arrays that have no memory of their own, until no kernel is new. What the calls would launch is compiled
instead, by several processes, and kept on disk (see `gpukit._host.kernel_cache`). Other processes then compile nothing.

`conv2d` is left out: its kernels are made for sizes of weights, strides and dilations too, which have no end.
"""

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Any

import numpy as np

from gpukit import _numba, backend, matmul, reduce, resize, scan, transpose
from gpukit._host import call, kernel_cache, kernel_files
from gpukit._host.arrays import device_array_of
from gpukit.backend import cuda
from gpukit.operators import OPERATORS

__all__ = ["FUNCTIONS", "find_forms", "main"]

#: Elements of an array at most, and bytes of memory that larger arrays share.
MAX_ELEMENTS, SHARED = 1 << 29, 1 << 24
#: Calls without a new kernel, in a row, after which a function is done. Processes share them: each makes other calls.
PATIENCE = 1000
#: Processes, unless more are asked for: each has a context, which takes memory of the device.
MAX_JOBS = 16
#: Seconds from one line that says how far they are to the next.
NEWS = 10
#: Orders of the axes of an operand in memory: rows, columns; and those of attention, where heads lie side by side.
MATRICES, HEADS = ((0, 1), (1, 0)), ((0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 1, 3), (0, 2, 3, 1))


class Drawing:
    """Random arguments for calls with arrays of one dtype.

    Parameters
    ----------
    dtype : str
    most : int
        Elements of an array at most.
    seed : int
    """

    def __init__(self, dtype: str, most: int = MAX_ELEMENTS, seed: int = 0):
        self.dtype = np.dtype("V2" if dtype == "bfloat16" else dtype)
        self.rng, self.most = np.random.default_rng(seed), most

    def one_of(self, *values) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def size(self, most: float) -> int:
        """Draw a size, evenly over its logarithm, and likewise what it is a multiple of."""
        size, step = int(2 ** self.rng.uniform(0, math.log2(max(most, 1) + 1))), 1 << int(self.rng.integers(6))
        return size // step * step if size > step else max(min(size, int(most)), 1)

    def shape(self, dimensions: int) -> list[int]:
        """Draw a shape, evenly over the logarithm of the number of its elements."""
        left = 2 ** self.rng.uniform(0, math.log2(self.most))
        sizes = [self.size(left ** (1 / self.one_of(1, 1, 2, 3)))]
        while len(sizes) < dimensions:
            sizes.append(self.size(left / math.prod(sizes)))
        return [sizes[i] for i in self.rng.permutation(dimensions)]

    def array(self, shape, orders=(), spread: bool = False, dtype=None) -> Any:
        """Make an array whose axes lie in memory in one of some orders.

        If it may be ``spread``, there can be gaps between rows or elements, or it begins anywhere.
        """
        dtype = np.dtype(dtype or self.dtype)
        axes = list(self.one_of(*orders) if orders else range(len(shape)))
        step, gap, offset = self.one_of(*[(1, 0, 0)] * 4, (2, 0, 0), (1, 3, 0), (1, 0, 1)) if spread else (1, 0, 0)
        steps, reach = [0] * len(shape), step
        for axis in reversed(axes):
            steps[axis] = reach * dtype.itemsize
            reach = reach * shape[axis] + (gap if axis == axes[-1] else 0)
        memory = cuda.device_array((reach + offset) * dtype.itemsize, np.uint8)
        return device_array_of(tuple(shape), tuple(steps), dtype, memory, offset * dtype.itemsize)


# -- calls -----------------------------------------------------------------------------------------


def _matmul(drawing):
    m, n, k = (drawing.size(min(1 << 14, drawing.most**0.5)) for _ in range(3))
    batch = drawing.size(min(512, drawing.most / max(m * k, k * n, m * n)))
    heads = drawing.size(min(batch, 16))
    many, orders = drawing.one_of((), (batch,), (batch // heads, heads)), MATRICES
    if len(many) == 1:
        orders = [(0, *(1 + axis for axis in order)) for order in MATRICES]
    elif many:
        orders = HEADS
    a = drawing.array((*many, m, k), orders)
    if drawing.one_of(True, False):
        many, orders = (), MATRICES
    matmul.matmul(a, drawing.array((*many, k, n), orders))


def _rows(drawing):
    """An array, and the axis along which a function works."""
    shape = drawing.shape(drawing.one_of(1, 2, 2, 3))
    return drawing.array(shape, spread=True), drawing.one_of(*range(len(shape)))


def _reduce(drawing):
    shape = drawing.shape(drawing.one_of(1, 2, 2, 3, 3, 4))
    last, spread = range(len(shape)), len(shape) > 1
    x = drawing.array(shape, (last, last, last, (*last[:-2], *last[:-3:-1])), spread)
    axes = [i for i in last if drawing.rng.random() < 0.5] or [drawing.one_of(*last)]
    for op in OPERATORS:
        reduce.reduce(x, tuple(axes), op)


def _scan(drawing):
    x, axis = _rows(drawing)
    for op in ("sum", "prod", "max", "min"):
        scan.scan(x, drawing.one_of(axis, axis, None), op)


def _sort(drawing):
    x, axis = _rows(drawing)
    scan.sort(x, axis=axis)
    scan.argsort(x, axis)


def _topk(drawing):
    x, axis = _rows(drawing)
    scan.topk(x, drawing.size(min(x.shape[axis], 1 << 14)), axis, drawing.one_of(True, False))


def _compress(drawing):
    (n,) = shape = drawing.shape(1)
    x = drawing.array(shape, spread=True)
    scan.compress(drawing.array((n,), dtype=np.bool_), x)
    scan.nonzero(x)


def _histogram(drawing):
    bins = drawing.size(1000 if drawing.dtype == np.float16 else 1 << 14)
    scan.histogram(drawing.array(drawing.shape(1), spread=True), bins, (0, 100))


def _transpose(drawing):
    transpose.transpose(drawing.array(drawing.shape(2), MATRICES, spread=True))


def _resize(drawing):
    samples, method = drawing.size(32), drawing.one_of("bilinear", "nearest")
    (height, width), target = (
        [drawing.size(min(4096, (drawing.most / samples / 3) ** 0.5)) for _ in "hw"] for _ in "st"
    )
    resize.resize(
        drawing.array((samples, height, width, 3)), tuple(target), method, swap_rb=drawing.one_of(True, False)
    )


#: Calls of a function, by its name.
FUNCTIONS: dict[str, Callable[[Drawing], Any]] = {
    "matmul": _matmul,
    "reduce": _reduce,
    "scan": _scan,
    "sort": _sort,
    "topk": _topk,
    "compress": _compress,
    "histogram": _histogram,
    "transpose": _transpose,
    "resize": _resize,
}


def find_forms(
    function: str, dtype: str, most: int = MAX_ELEMENTS, patience: int = PATIENCE, seed: int = 0
) -> dict[tuple, tuple]:
    """Call a function until no kernel is new.

    Parameters
    ----------
    function : str
        Of `FUNCTIONS`.
    dtype : str
    most : int
        Elements of an array at most.
    patience : int
        Calls without a new kernel, in a row.
    seed : int

    Returns
    -------
    dict
        {(kernel, types of its arguments): (configured kernel, arguments)}.

    Raises
    ------
    TypeError
        If the function does not take the dtype.
    """
    found, drawing, since = {}, Drawing(dtype, most, seed), 0

    def note(launches):
        for launch, arguments in launches:
            found.setdefault((launch.dispatcher, tuple(map(_numba.argument_type, arguments))), (launch, arguments))

    with call.without_launches(note):
        while since < patience:
            before = len(found)
            FUNCTIONS[function](drawing)
            since = since + 1 if len(found) == before else 0
    return found


# -- the command -----------------------------------------------------------------------------------


def _compile(names, dtypes, patience, part, wanted, taken):
    """Find the kernels that calls need, and compile those that no other process has ``taken``.

    ``wanted`` gets the names of the files that are missing. Returns [(function, dtype, names of all files)].
    """
    _numba.share_memory(SHARED)
    rows, missing = [], {}
    for name in names:
        for dtype in dtypes:
            found = find_forms(name, dtype, patience=patience, seed=part)
            forms = {kernel_cache.path_of(*form): launch for form, launch in found.items()}
            missing |= {path.name: launch for path, launch in forms.items() if not path.exists()}
            rows.append((name, dtype, {path.name for path in forms}))
            wanted.update(dict.fromkeys(missing))
    for file, launch in missing.items():
        if taken.setdefault(file, part) == part:
            _numba.compiled_kernel(*launch)
    return rows


def _add_options(parser):
    parser.add_argument("functions", nargs="+", choices=FUNCTIONS, metavar="FUNCTION", help=", ".join(FUNCTIONS))
    parser.add_argument("--dtype", nargs="+", default=["float32"], help="of the arrays (default: float32)")
    jobs = min(os.cpu_count() or 1, MAX_JOBS)
    parser.add_argument("--jobs", type=int, default=jobs, help=f"processes (default: {jobs})")


def main(argv=None) -> int:
    """Run ``gpukit compile``; returns the exit status."""
    text = "Compile the kernels that calls with arrays of any shape need, and keep them on disk for later processes."
    parser = argparse.ArgumentParser(prog="gpukit compile", description=text)
    _add_options(parser)
    options = parser.parse_args(argv)
    if not backend.on_gpu() or kernel_files.folder() is None:
        reason = f"{kernel_files.ENVIRONMENT_VARIABLE}=off" if backend.on_gpu() else backend.REASON
        parser.error(f"there is nothing to compile for: {reason}")
    began, spawn = time.perf_counter(), multiprocessing.get_context("spawn")
    what = options.functions, options.dtype, max(1, PATIENCE // options.jobs)
    with spawn.Manager() as manager, ProcessPoolExecutor(options.jobs, spawn) as processes:
        wanted, taken = manager.dict(), manager.dict()
        tasks = [processes.submit(_compile, *what, part, wanted, taken) for part in range(options.jobs)]
        while wait(tasks, NEWS).not_done:
            seconds = time.perf_counter() - began
            print(f"{seconds:.0f} s: {len(taken)} of {len(wanted)} kernels are compiled", flush=True)
        try:
            parts = [task.result() for task in tasks]
        except TypeError as error:
            parser.error(str(error))
        missing = set(wanted.keys())
    for rows in zip(*parts, strict=True):
        (name, dtype, _), files = rows[0], set().union(*(files for *_, files in rows))
        print(f"{name} {dtype}: {len(files)} kernels, {len(files & missing)} of them compiled now")
    print(f"{time.perf_counter() - began:.0f} s, in {kernel_files.folder()}")
    return 0
