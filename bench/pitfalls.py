"""``gpukit bench pitfalls``: time the slow kernels of chapter 10 and their fixes.

Each result is checked first; then all are timed in turns. "kernel" is time on the device with a cold L2 cache, "call"
time of a call with its launches by the host's clock.
"""

from functools import partial

import numpy as np

from bench import common
from gpukit import launching, pitfalls, results, timing

__all__ = ["measure", "measurements"]


def measure(name, size, report=print):
    """Check and time a slow kernel, its fix, and both with prepared launches.

    Returns
    -------
    list of dict
        Records of the right results.
    bool
        Whether all results were right.
    """
    pitfall = pitfalls.make_pitfall(name, size)
    runs, all_right = {}, True
    for variant, steps in {"slow": pitfall.slow, "fixed": pitfall.fixed}.items():
        if _is_right(steps, pitfall):
            prepared = [(launching.prepare(launch, *arguments), ()) for launch, arguments in steps]
            runs |= {
                variant: partial(common.launch_all, steps),
                f"{variant}, prepared": partial(common.launch_all, prepared),
            }
        else:
            all_right = False
            report(f"  WRONG: {variant}")
    calls = {variant: partial(common.wait_for, run) for variant, run in runs.items()}
    timings = {"kernel": timing.bench_many(runs, min_time=0.05, warmup=0.02)}
    timings["call"] = timing.bench_many(calls, device="cpu", min_time=0.05, warmup=0.02)
    records = []
    for case, timed in timings.items():
        for variant, result in timed.items():
            records.append(results.of_timing("pitfalls", case, variant, size, "float32", result, pitfall=name))
            report(f"  {case:8}{variant:20} {timing.format_seconds(result.median):>10}")
    return records, all_right


def _is_right(steps, pitfall):
    pitfall.out.copy_to_device(np.full(pitfall.out.shape, np.nan, np.float32))
    common.launch_all(steps)
    return np.allclose(pitfall.out.copy_to_host(), pitfall.expected, rtol=1e-5, atol=1e-5)


def measurements(options):
    """Yield (title, function); with ``--quick`` for the first case only."""
    for case in pitfalls.CASES[: 1 if options.quick else None]:
        yield case.name, partial(measure, case.name, case.size)
