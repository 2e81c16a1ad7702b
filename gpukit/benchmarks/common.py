"""What the measurements of the chapters share: the libraries beside gpukit, and a run that keeps what it has."""

import functools
import sys

from gpukit import results
from gpukit.backend import on_gpu


@functools.cache
def libraries():
    """{name: module} of CuPy and PyTorch, those that are installed; float32 products in float32 proper."""
    found = {}
    for name in ("cupy", "torch"):
        try:
            found[name] = __import__(name)
        except ImportError:
            print(f"{name} is not installed: left out", file=sys.stderr)
    if "torch" in found:
        found["torch"].backends.cuda.matmul.allow_tf32 = False
    return found


def has_gpu():
    """Whether there is something to time; says so if not."""
    if not on_gpu():
        print("There is no GPU here, so there is nothing to time.", file=sys.stderr)
    return on_gpu()


def run(measurements, path=None):
    """Measure one thing after another and save the records after each, so that a run that is cut short keeps them.

    Parameters
    ----------
    measurements : iterable of (str, function)
        A title, and what gives (records, whether all results were right).
    path : str or Path, optional

    Returns
    -------
    bool
        Whether all results were right.
    """
    head, records, all_right = results.machine(), [], True
    print(f"{head['gpu']}, driver {head['driver']}, {head['power_limit']} W; {head['date']}")
    for title, measure in measurements:
        print(title, flush=True)
        more, right = measure()
        records += more
        all_right &= right
        if path:
            results.save(path, records, head)
    return all_right
