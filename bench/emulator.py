"""``gpukit bench emulator``: time the emulator on this machine's CPU, beside Numba's own simulator and loops by
``numba.njit(parallel=True)``.

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
from bench.programs import PROGRAMS
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


#: Programs that a quick run measures, at their small sizes.
QUICK_PROGRAMS = ("collatz",)
#: Runs of a program after the first.
PROGRAM_RUNS = 5


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


# -- programs ----------------------------------------------------------------------------------------------------------


@dataclass
class Compared:
    """Wall seconds of one program: copies to and from the device and all its launches.

    Attributes
    ----------
    size, small : int
    emulator, loop : Measured
        At ``size``, on the emulator and as a CPU loop.
    emulator_small, simulator : Measured
        At the small size.
    """

    size: int
    small: int
    emulator: Measured
    loop: Measured
    emulator_small: Measured
    simulator: Measured


def time_program(run, runs):
    """Run a program once and then ``runs`` times; returns (its result, Measured)."""
    seconds = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - begin)
    return result, Measured(seconds[0], seconds[1:])


def simulate_program(name):
    """Run a program once at its small size, in the simulator's process; return the fields of `Measured`."""
    (program,) = (p for p in PROGRAMS if p.name == name)
    return asdict(time_program(program.launches(cuda, program.small), 0)[1])


def compare(program, size):
    """Measure one program on the emulator, as a CPU loop, and in Numba's simulator; SimulatorError if that fails."""
    from warpstep import cuda as emulated_cuda

    small = time_program(program.launches(emulated_cuda, program.small), PROGRAM_RUNS)[1]
    ours, emulator = time_program(program.launches(emulated_cuda, size), PROGRAM_RUNS)
    theirs, loop = time_program(program.loop(size), PROGRAM_RUNS)
    # The CPU's compiler may contract and reorder floats, which a sum or a chaotic map then shows.
    exact = ours.dtype.kind in "iu"
    emulator.right = bool(np.array_equal(ours, theirs) if exact else np.allclose(ours, theirs, rtol=1e-6, atol=1e-9))
    child = _child.run(simulate_program, program.name, environment={"NUMBA_ENABLE_CUDASIM": "1"})
    if not child.answers:
        raise SimulatorError(f"Numba's simulator failed on {program.name}:\n{child.output.strip()}")
    return Compared(size, program.small, emulator, loop, small, Measured(**child.answers[-1]))


def records_of_program(program, compared):
    """Make records of a program whose results are right."""
    from gpukit import results, timing  # not in the simulator's process

    samples = {
        ("emulator, first run", compared.size): [compared.emulator.first],
        ("emulator, repeated", compared.size): compared.emulator.repeated,
        ("numba.njit(parallel=True)", compared.size): compared.loop.repeated,
        ("emulator, small", compared.small): compared.emulator_small.repeated,
        ("simulator, small", compared.small): [compared.simulator.first],
    }
    return [
        results.of_timing(
            "emulator", f"program: {program.name}", variant, (size,), "", timing.Timing(tuple(seconds), device="cpu")
        )
        for (variant, size), seconds in samples.items()
        if compared.emulator.right
    ]


PROGRAM_HEADER = (
    "program",
    "size",
    "emulator, first run",
    "emulator, repeated",
    "njit(parallel=True)",
    "emulator / njit",
    "small size",
    "emulator",
    "simulator",
    "simulator / emulator",
    "result",
)
PROGRAM_NOTE = """\
Wall time of a whole program: copies to and from the device, and its launches. Repeated, and njit, are medians of
{runs} runs after the first, which compiles. The simulator ran once at the small size, after Python had started."""


def _compared(program, size, rows):
    print(f"  {program.name}: emulator, CPU loop, Numba's simulator ...", file=sys.stderr)
    try:
        compared = compare(program, size)
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return [], False
    ours, loop = median(compared.emulator.repeated), median(compared.loop.repeated)
    small, simulator = median(compared.emulator_small.repeated), compared.simulator.first
    cells = [program.name, f"{size:,}", *map(_seconds, (compared.emulator.first, ours, loop)), f"{ours / loop:.1f} x"]
    cells += [f"{compared.small:,}", _seconds(small), _seconds(simulator), f"{simulator / small:,.0f} x"]
    rows.append((*cells, "right" if compared.emulator.right else "WRONG"))
    return records_of_program(program, compared), compared.emulator.right


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

    rows, programs = [], []
    cases = [(case.title, partial(_measured, case, rows)) for case in (QUICK if options.quick else FULL)]
    for program in PROGRAMS:
        if not options.quick or program.name in QUICK_PROGRAMS:
            size = program.small if options.quick else program.size
            cases.append((program.name, partial(_compared, program, size, programs)))
    right = common.run(cases, options.save, results.host())
    print(Table(HEADER, rows))
    print(NOTE)
    print()
    print(Table(PROGRAM_HEADER, programs))
    print(PROGRAM_NOTE.format(runs=PROGRAM_RUNS))
    return 0 if right else 1
