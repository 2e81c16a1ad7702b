"""``gpukit bench``: every measurement of gpukit."""

import importlib
from itertools import takewhile
from pathlib import Path

#: What follows ``gpukit bench``: the module whose ``main`` runs, the arguments before its options, what it measures.
COMMANDS = {
    "emulator": ("bench.emulator", (), "how fast the emulator is, beside Numba's own simulator"),
    "counters": ("bench.evidence.counters", (), "the trace's counts, beside Nsight Compute's counters"),
    "findings": ("bench.evidence.sanitizer", (), "the errors that the trace finds, beside compute-sanitizer's"),
    "errors": ("bench.evidence.launch_errors", (), "what is said of launches that go wrong on purpose"),
    "cpu": ("bench.references", (), "NumPy, OpenCV and plain loops on this machine's CPU"),
    "axpy": ("bench.axpy", (), "the grid-stride loop by the number of its blocks, on a GPU"),
    "naive": ("bench.naive", (), "the matrix product with one thread per element, on a GPU"),
    "matmul": ("bench.shared_memory", ("matmul",), "matrix products on a GPU, beside cuBLAS"),
    "transpose": ("bench.shared_memory", ("transpose",), "transposes on a GPU, beside CuPy and PyTorch"),
    "streams": ("bench.streams", (), "copies, pipelines and launches on a GPU, beside CuPy and PyTorch"),
    "fast-matmul": ("bench.fast_matmul", (), "products all the way to the speed of cuBLAS, and its map"),
    "reduce": ("bench.reduce", (), "reductions on a GPU, beside a copy, CuPy and PyTorch"),
    "resize": ("bench.resize", (), "frames made to fit on a GPU, beside PyTorch, CuPy and OpenCV"),
    "conv": ("bench.conv", (), "convolutions on a GPU, beside cuDNN, unfold and fold"),
    "ceilings": ("bench.ceilings", (), "what a GPU can do at most: arithmetic, caches, memory, launches"),
    "predictions": ("bench.predictions", (), "kernels' least times by their traces, beside their times"),
    "clinic": ("bench.pitfalls", (), "five slow kernels and their cures, on a GPU"),
    "profile": ("bench.profile", (), "nothing: keeps what profilers say of a product, on a GPU"),
    "code": ("bench.code", (), "nothing: registers, occupancy and instructions of the matrix products"),
    "readme": ("bench.readme", (), "nothing: writes the README's tables and its picture"),
}
#: Those with tables and options of their own: what they are given among others. They save no records that could be
#: compared, and on a GPU, where their tools take long, they run only when they are named.
OTHERS = {"counters": ["--brief"], "findings": [], "errors": [], "profile": [], "code": [], "readme": []}
#: What runs where there is no GPU and nothing is named.
WITHOUT_GPU = ("emulator", "counters", "predictions", "cpu")


def main(argv):
    """Run ``gpukit bench``; ``argv`` is what follows those words. Give back the exit status."""
    from bench import suite

    names = list(takewhile(lambda word: not word.startswith("-"), argv))
    parser = suite.parser()
    unknown = [name for name in names if name not in COMMANDS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(COMMANDS)}")
    rest = argv[len(names) :]
    if len(names) == 1 and (names[0] in OTHERS or {"-h", "--help"} & {*rest}):
        module, before, _ = COMMANDS[names[0]]
        return importlib.import_module(module).main(*before, rest)
    given, further = parser.parse_known_args(rest)
    if further and len(names) != 1:
        parser.error(f"unrecognized arguments: {' '.join(further)} (names come first, then options)")
    for option, path in (("--save", given.save), ("--compare", given.compare)):
        if path in COMMANDS:
            parser.error(f"{option} {path}: names come first, then options")
    if given.save and given.save.endswith(".json") and len(names) != 1:
        parser.error(f"--save {given.save}: several measurements need a folder")
    if given.compare and not Path(given.compare).exists():
        parser.error(f"--compare {given.compare}: it is not there")
    if given.max_fall is not None and not given.compare:
        parser.error("--max-fall needs --compare")
    paths = (path and Path(path) for path in (given.save, given.compare))
    return suite.run(names, suite.Options(given.quick, *paths, given.max_fall, given.jobs, tuple(further)))
