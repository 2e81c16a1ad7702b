"""``gpukit bench emulator``: time the emulator beside Numba's own simulator, in one run on this machine's CPU.

The simulator replaces ``numba.cuda`` in a whole process, so it runs in a child process. There this module must not
import gpukit or the emulator, which need the ``numba.cuda`` that compiles.
"""

import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median

import numpy as np
from numba import cuda, float32

from bench import _child
from warpstep.integers import ceil_div

THREADS = 256  # per block, vector add
TILE = 16


# The kernels are plain functions: each side compiles them with its own cuda.jit.


def vector_add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


def tiled_matmul(a, b, out):
    """Multiply square float32 matrices whose size is a multiple of the tile."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    col, row = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = a[row, k + tx]
        tile_b[ty, tx] = b[k + ty, col]
        cuda.syncthreads()
        for i in range(TILE):
            total += tile_a[ty, i] * tile_b[i, tx]
        cuda.syncthreads()
    out[row, col] = total


def naive_matmul(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


KERNELS = {"vector_add": vector_add, "tiled_matmul": tiled_matmul, "naive_matmul": naive_matmul}


@dataclass(frozen=True)
class Case:
    """One kernel at one size. ``size`` is the number of threads of the vector add and the rows of a matrix."""

    kernel: str
    size: int
    repetitions: int  # emulator launches after the first
    simulate: bool = True

    @property
    def title(self):
        if self.kernel == "vector_add":
            return f"vector add, {self.size:,} threads"
        tiles = f", {TILE}x{TILE} tiles" if self.kernel == "tiled_matmul" else ""
        return f"{self.kernel.replace('_', ' ')}, {self.size}x{self.size}{tiles}"

    def launch(self):
        """Return grid and block."""
        if self.kernel == "vector_add":
            return ceil_div(self.size, THREADS), THREADS
        blocks = ceil_div(self.size, TILE)
        return (blocks, blocks), (TILE, TILE)

    def inputs(self):
        """Draw two random float32 arrays, the same in both processes."""
        shape = (self.size,) if self.kernel == "vector_add" else (self.size, self.size)
        random = np.random.default_rng(self.size)
        return random.random(shape, np.float32), random.random(shape, np.float32)

    def is_right(self, out, a, b):
        """Compare with NumPy: sums exactly, products within the rounding errors of a float32 sum of this length."""
        if self.kernel == "vector_add":
            return bool(np.array_equal(out, a + b))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        return bool(np.all(np.abs(out - exact) <= self.size * np.finfo(np.float32).eps * exact))


FULL = (Case("vector_add", 262_144, 20), Case("tiled_matmul", 64, 20), Case("naive_matmul", 1024, 1, simulate=False))
QUICK = (Case("vector_add", 4096, 10), Case("tiled_matmul", 32, 10), Case("naive_matmul", 128, 3, simulate=False))


class SimulatorError(RuntimeError):
    """Raised if Numba's simulator fails on a case; the message holds its output."""


@dataclass
class Measured:
    """Wall seconds of one case on one side: launch and synchronise, with the data on the device before."""

    first: float  # compilation included
    repeated: list = field(default_factory=list)
    right: bool = True


class Runner:
    """Launches one case with one ``cuda`` module, the emulator's or the simulator's, and keeps the times."""

    def __init__(self, case, module):
        self.case, self.module = case, module
        self.a, self.b = case.inputs()
        self.arrays = [module.to_device(array) for array in (self.a, self.b, np.full_like(self.a, np.nan))]
        self.kernel = module.jit(KERNELS[case.kernel])
        self.measured = Measured(self._launch())
        self._check()

    def _launch(self):
        begin = time.perf_counter()
        self.kernel[self.case.launch()](*self.arrays)
        self.module.synchronize()
        return time.perf_counter() - begin

    def repeat(self, times):
        self.measured.repeated += [self._launch() for _ in range(times)]
        self._check()

    def _check(self):
        right = self.case.is_right(self.arrays[2].copy_to_host(), self.a, self.b)
        self.measured.right = self.measured.right and right


def _simulate(case):
    """Run one case in Numba's simulator, in a child process; SimulatorError if it fails."""
    child = _child.run(simulate, asdict(case), environment={"NUMBA_ENABLE_CUDASIM": "1"})
    if not child.answers:
        raise SimulatorError(f"Numba's simulator failed on {case.title}:\n{child.output.strip()}")
    return Measured(**child.answers[-1])


def simulate(case):
    """Launch a case once, in the simulator's process; return the fields of `Measured`."""
    return asdict(Runner(Case(**case), cuda).measured)


def measure(case, report=lambda text: None):
    """Measure one case: the emulator's first launch, half of its repetitions, the simulator's launch, the other half.

    Returns
    -------
    tuple of Measured
        The emulator's, and the simulator's or None.
    """
    from warpstep import cuda as emulated_cuda

    report(f"{case.title}: emulator")
    runner = Runner(case, emulated_cuda)
    runner.repeat((case.repetitions + 1) // 2)
    simulator = None
    if case.simulate:
        report(f"{case.title}: Numba's simulator")
        simulator = _simulate(case)
    runner.repeat(case.repetitions // 2)
    return runner.measured, simulator


def records_of(case, emulator, simulator):
    """Make records of the times whose results are right."""
    from gpukit import results, timing  # not in the simulator's process

    samples = {"emulator, first launch": [emulator.first], "emulator, repeated": emulator.repeated}
    samples = samples if emulator.right else {}
    if simulator and simulator.right:
        samples["simulator"] = [simulator.first]
    return [
        results.of_timing(
            "emulator", case.title, variant, (case.size,), "float32", timing.Timing(tuple(seconds), device="cpu")
        )
        for variant, seconds in samples.items()
    ]


def _row(case, emulator, simulator):
    """Make the line of a case in the table."""
    first, repeated = emulator.first, median(emulator.repeated)
    right = emulator.right and (simulator is None or simulator.right)
    cells = [case.title, _seconds(first), _seconds(repeated), "not run", "", ""]
    if simulator:
        cells[3:] = _seconds(simulator.first), *(f"{simulator.first / own:,.0f} x" for own in (first, repeated))
    return *cells, "right" if right else "WRONG"


HEADER = (
    "case",
    "emulator, first launch",
    "emulator, repeated",
    "simulator",
    "ratio, first",
    "ratio, repeated",
    "result",
)


def _seconds(value):
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


NOTE = """\
Wall time of launch and synchronise, with the data on the device before. The first launch compiles; repeated is the
median of those after it. The simulator does not compile; it ran once, halfway through the emulator's repetitions."""


def _measured(case, rows):
    """Measure a case and add its line to the table; return (records, whether all results were right)."""
    try:
        emulator, simulator = measure(case, lambda text: print(f"  {text} ...", file=sys.stderr))
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return [], False
    rows.append(_row(case, emulator, simulator))
    return records_of(case, emulator, simulator), rows[-1][-1] == "right"


def run(options):
    """Measure the cases and print their table; return 1 if a result was wrong, or else 0."""
    from bench import common
    from gpukit import results  # not in the simulator's process
    from warpstep.report.table import Table

    rows = []
    cases = ((case.title, partial(_measured, case, rows)) for case in (QUICK if options.quick else FULL))
    right = common.run(cases, options.save, results.host())
    print(Table(HEADER, rows))
    print(NOTE)
    return 0 if right else 1
