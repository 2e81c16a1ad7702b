"""``gpukit bench naive``: time the matrix product with one thread per element, as chapter 02 shows it (rows A6, A7).

Blocks, axes, types, copies and first launches are timed. Kernel times are of the device, with a cold L2 cache and
without launch cost; end-to-end times are wall times of the host, with the device idle before and after.
"""

import functools
import time
from functools import partial

import numpy as np

from bench import code, common
from bench.common import grid_for
from gpukit import matmul, results, timing
from gpukit.backend import cuda

__all__ = ["BLOCKS", "SIZES", "head", "instructions_per_step", "measurements"]

SIZES = (1024, 4096)
SQUARE = tuple((n, n) for n in (1, 2, 4, 8, 16, 32))
#: Blocks of the sweep as (x, y). Those that are not square have 256 threads, or one warp.
BLOCKS = (*SQUARE, (32, 1), (1, 32), (256, 1), (64, 4), (32, 8), (8, 32), (4, 64), (1, 256))
END_TO_END = ((1, 1), (16, 16), (32, 32))  # the documents' blocks
FIRST_LAUNCHES = 5


class Recorder:
    """Times products of square matrices of one size, and keeps the records."""

    def __init__(self, n, dtype=np.float32, report=print):
        self.n, self.dtype, self.report = n, np.dtype(dtype), report
        self.records = []
        random = np.random.default_rng(n)
        self.a, self.b = (random.uniform(-1, 1, (n, n)).astype(dtype) for _ in range(2))
        self.a_device, self.b_device = cuda.to_device(self.a), cuda.to_device(self.b)
        self.out = cuda.device_array((n, n), dtype)
        self.rows = random.choice(n, 32, replace=False)
        self.expected = self.a[self.rows].astype(np.float64) @ self.b.astype(np.float64)

    def add(self, case, variant, value, unit="s", **further):
        self.keep(results.record("matmul", case, variant, [self.n] * 3, self.dtype, value, unit, **further))

    def add_timing(self, case, variant, timed, **further):
        shape = [self.n] * 3
        self.keep(results.of_timing("matmul", case, variant, shape, self.dtype, timed, **further))

    def keep(self, record):
        self.records.append(record)
        value, unit = record["value"], record["unit"]
        shown = timing.format_seconds(value) if unit == "s" else f"{value:.2f} {unit}"
        self.report(f"{self.n:5} {self.dtype!s:8} {record['case']:15} {record['variant']:28} {shown:>10}")

    def kernel(self, case, variant, kernel, block, rows_along_x=False, grid=None, right=True):
        """Time one launch, and check its result."""
        grid = grid_for((self.n, self.n), block, rows_along_x) if grid is None else grid
        self.out.copy_to_device(np.full((self.n, self.n), np.nan, self.dtype))
        launch = kernel[grid, block]
        options = {"warmup": 0.02, "repeat": None if self.n <= 1024 else 7}
        if self.n > 1024 and block[0] * block[1] < 16:
            options = {"warmup": 0, "repeat": 2}  # seconds each
        timed = timing.bench(lambda: launch(self.a_device, self.b_device, self.out), **options)
        if self.is_right() != right:
            raise AssertionError(f"{case} {variant} at {self.n}: the result is {'wrong' if right else 'right'}")
        self.add_timing(case, variant, timed, grid=list(grid), block=list(block), right=right)

    def is_right(self):
        """Compare some rows with float64, within the rounding errors of a sum of this length."""
        error = np.abs(self.out.copy_to_host()[self.rows] - self.expected)
        return bool((error <= self.n * np.finfo(self.dtype).eps).all())  # elements are below 1, so sums below n

    def wall(self, case, variant, call, repeat=10):
        """Time host code, after one call that does not count; ``call`` waits for the device itself."""
        call()
        self.add_timing(case, variant, timing.bench(call, device="cpu", warmup=0, repeat=repeat))


def sweep(recorder):
    """Time the blocks: which one to take is the documents' question."""
    for block in BLOCKS:
        recorder.kernel("block", "{} x {}".format(*block), matmul.naive, block)


def sweep_uint32(recorder):
    """Time the blocks with 32-bit indices: fewer instructions, so that memory limits."""
    for block in BLOCKS:
        recorder.kernel("block, uint32", "{} x {}".format(*block), matmul.naive_uint32, block)


def axes(recorder):
    """Time the same work with threadIdx.x along the columns of the result, and along its rows."""
    for block in ((16, 16), (32, 32)):
        shape = "{} x {}".format(*block)
        recorder.kernel("axis", f"columns, {shape}", matmul.naive, block)
        recorder.kernel("axis", f"rows, {shape}", matmul.naive_uncoalesced, block, rows_along_x=True)


def types(recorder):
    """Time the cost of Numba's types: a float64 sum, 64-bit indices."""
    only_float32 = (matmul.naive_float64,) if recorder.dtype == np.float32 else ()
    for kernel in (matmul.naive, *only_float32, matmul.naive_uint32):
        name = kernel.py_func.__name__
        recorder.kernel("types", name, kernel, (16, 16))
        count = instructions_per_step(kernel, recorder.a_device)
        if count is not None:
            recorder.add("instructions", name, count, unit="per multiply-add")


def incomplete(recorder):
    """Time the documents' second case, a grid of one row of blocks: fast, and wrong."""
    grid = grid_for((recorder.n, recorder.n), (32, 32))[:1]
    recorder.kernel("incomplete", "1-D grid, 32 x 32", matmul.naive, (32, 32), grid=grid, right=False)


def instructions_per_step(kernel, matrix):
    """Count machine instructions per iteration over k, in the inner loop that is unrolled most.

    None if nvdisasm, a part of the CUDA toolkit, is not there.
    """
    signature = tuple(kernel.typeof_pyval(matrix) for _ in range(3))
    try:
        text = kernel.compile(signature).inspect_sass()
    except RuntimeError:
        return None
    loads, length = max((sum("LDG" in each for each in loop), len(loop)) for loop in code.inner_loops(text))
    return 2 * length / loads  # two loads in each step


def end_to_end(recorder):
    """Time a call with NumPy arrays from end to end, and its parts."""
    a, b, n = recorder.a, recorder.b, recorder.n
    a_device, b_device, out = recorder.a_device, recorder.b_device, recorder.out
    launch = matmul.naive[grid_for((n, n), (16, 16)), (16, 16)]

    def everything(block):
        inputs, result = (cuda.to_device(a), cuda.to_device(b)), cuda.device_array((n, n), recorder.dtype)
        matmul.naive[grid_for((n, n), block), block](*inputs, result)
        return result.copy_to_host()

    def allocate():
        arrays = [cuda.device_array((n, n), recorder.dtype) for _ in range(3)]
        cuda.synchronize()
        return arrays

    def copy_in():
        a_device.copy_to_device(a)
        b_device.copy_to_device(b)
        cuda.synchronize()

    def compute():
        launch(a_device, b_device, out)
        cuda.synchronize()

    for block in END_TO_END if n <= 1024 else ((16, 16),):
        recorder.wall("end to end", "everything, {} x {}".format(*block), partial(everything, block))
    recorder.wall("end to end", "allocate", allocate)
    recorder.wall("end to end", "copy in", copy_in)
    recorder.wall("end to end", "launch and kernel", compute)
    recorder.wall("end to end", "copy out", out.copy_to_host)


def first_launches(recorder):
    """Time the first launches of a kernel: the very first one compiles and loads it."""
    kernel = cuda.jit(matmul.naive.py_func)
    launch = kernel[grid_for((recorder.n, recorder.n), (16, 16)), (16, 16)]
    cuda.synchronize()
    for number in range(1, FIRST_LAUNCHES + 1):
        begin = time.perf_counter()
        launch(recorder.a_device, recorder.b_device, recorder.out)
        cuda.synchronize()
        recorder.add("first launches", f"launch {number}", time.perf_counter() - begin)


def on_the_cpu(recorder):
    """Time NumPy on all cores, and three loops on one, which take minutes beyond 1024."""
    recorder.wall("cpu", "NumPy", lambda: recorder.a @ recorder.b, repeat=5)
    if recorder.n <= 1024:
        recorder.wall("cpu", "three loops, one core", lambda: matmul.on_cpu(recorder.a, recorder.b), repeat=2)


def cublas(recorder):
    """Time cuBLAS in the same run, in float32 without TF32, where PyTorch is installed."""
    torch = common.libraries().get("torch")
    if torch is None:
        return
    a, b = (torch.as_tensor(array, device="cuda") for array in (recorder.a, recorder.b))
    recorder.add_timing("library", "cuBLAS", timing.bench(partial(torch.matmul, a, b, out=torch.empty_like(a))))


#: The function that measures each case, in the order in which they are measured.
MEASURES = {
    "first launches": first_launches,
    "block": sweep,
    "block, uint32": sweep_uint32,
    "axis": axes,
    "types": types,
    "incomplete": incomplete,
    "end to end": end_to_end,
    "cpu": on_the_cpu,
    "library": cublas,
}


def add_options(parser):
    """Add the sizes to the options."""
    parser.add_argument("--sizes", metavar="N", type=int, nargs="+", default=SIZES, help="rows of the square matrices")


def head():
    """Describe the GPU and the CPU, for the records."""
    return common.machine_and_cpu()


def measurements(options):
    """Yield (title, function); with ``--quick`` for the first size only."""
    for n in options.sizes[: 1 if options.quick else None]:
        for dtype, cases in ((np.float32, MEASURES), (np.float64, ("types",))):
            recorder = functools.cache(partial(Recorder, n, dtype, partial(print, flush=True)))
            for case in cases:
                yield f"{case}, {n} {np.dtype(dtype)}", partial(_measured, recorder, case)


def _measured(recorder, case):
    """Measure one case; a result that should be right and is wrong, or the reverse, ends it."""
    records = recorder().records
    done = len(records)
    try:
        MEASURES[case](recorder())
    except AssertionError as error:
        print(f"  WRONG: {error}")
        return records[done:], False
    return records[done:], True
