"""Former names of modules: ``import gpukit.operands`` and its like give the module under its present name."""

from __future__ import annotations  # the doctor runs on older Pythons too

import importlib
import importlib.util
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder

from gpukit import _bench

#: Former name -> present name. What lies below a former name lies below the present one, unless it is listed too.
MOVED = {
    "gpukit.emulator": "warpstep",
    "gpukit.run": "warpstep.run",
    "gpukit.operands": "gpukit._host.arrays",
    "gpukit.checks": "warpstep.checks",
    "gpukit.benchmarks": "bench",
    "gpukit.benchmarks.clinic": "bench.pitfalls",
    "gpukit.benchmarks.convolution": "bench.conv",
    "gpukit.benchmarks.reductions": "bench.reduce",
    "gpukit.benchmarks.references": "bench.cpu",
    "gpukit.benchmarks.shared_memory": "bench.matmul",
    "gpukit.calibration": "bench.evidence",
    "gpukit.calibration.kernels": "bench.corpus.kernels",
    "gpukit.calibration.mistakes": "bench.evidence.launch_errors",
    "gpukit.calibration.planted": "bench.corpus.bugs",
    "gpukit.conv.choice": "gpukit.conv.cost",
    "gpukit.conv.direct": "gpukit.conv.fast",
    "gpukit.conv.host": "gpukit.conv.api",
    "gpukit.matmul.choice": "gpukit.matmul.cost",
    "gpukit.matmul.fast_kernel": "gpukit.matmul.fast",
    "gpukit.matmul.host": "gpukit.matmul.api",
    "gpukit.reduce.host": "gpukit.reduce.api",
    "gpukit.reduce.kernels": "gpukit.reduce.fast",
    "gpukit.reduce.operators": "gpukit.operators",
    "gpukit.resize.host": "gpukit.resize.api",
    "gpukit.resize.kernels": "gpukit.resize.fast",
}
#: Names that stay: no warning.
KEPT = ("gpukit.emulator", "gpukit.run")


def present_name(name: str) -> str | None:
    """The present name of a module that has moved; None if it has not."""
    former = name
    while former.startswith("gpukit."):
        if former in MOVED:
            return MOVED[former] + name[len(former) :]
        former = former.rpartition(".")[0]
    return None


class _Finder(MetaPathFinder, Loader):
    """Finds modules under their former names; it comes first, as the file of a moved package would be found twice."""

    def find_spec(self, fullname, path=None, target=None):
        return None if present_name(fullname) is None else importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module):
        name = module.__name__
        present = present_name(name) or name
        if not name.startswith(KEPT):
            warnings.warn(f"{name} is now {present}", DeprecationWarning, stacklevel=2)
        load = _bench.load if present.partition(".")[0] == "bench" else importlib.import_module
        sys.modules[name] = load(present)  # which the import statement then gives


def install():
    """Let import statements find former names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
