"""``gpukit bench``: measurements of gpukit, one command for each."""

import argparse
import importlib

#: What follows ``gpukit bench``: the module whose ``main`` runs, the arguments before its options, what it measures.
COMMANDS = {
    "emulator": ("gpukit.benchmarks.emulator", (), "how fast the emulator is, beside Numba's own simulator"),
    "counters": ("gpukit.calibration.counters", (), "the trace's counts, beside Nsight Compute's counters"),
    "findings": ("gpukit.calibration.sanitizer", (), "the errors that the trace finds, beside compute-sanitizer's"),
    "errors": ("gpukit.calibration.mistakes", (), "what is said of launches that go wrong on purpose"),
    "naive": ("gpukit.benchmarks.naive", (), "the matrix product with one thread per element, on a GPU"),
    "matmul": ("gpukit.benchmarks.shared_memory", ("matmul",), "matrix products on a GPU, beside cuBLAS"),
    "transpose": ("gpukit.benchmarks.shared_memory", ("transpose",), "transposes on a GPU, beside CuPy and PyTorch"),
    "streams": ("gpukit.benchmarks.streams", (), "copies, pipelines and launches on a GPU, beside CuPy and PyTorch"),
    "reduce": ("gpukit.benchmarks.reductions", (), "reductions on a GPU, beside a copy, CuPy and PyTorch"),
}


def main(argv=None):
    """Run ``gpukit bench``; ``argv`` is what follows those words. Give back the exit status."""
    lines = "".join(f"  {name:10}{text}\n" for name, (_, _, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="gpukit bench",
        description=f"Measure gpukit:\n{lines}",
        epilog="`gpukit bench WHAT --help` lists its options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=COMMANDS, metavar="WHAT", help=f"one of {', '.join(COMMANDS)}")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="its options")
    arguments = parser.parse_args(argv)
    module, before, _ = COMMANDS[arguments.what]
    return importlib.import_module(module).main(*before, arguments.options)
