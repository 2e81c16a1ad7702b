"""The former name of `gpukit.pitfalls`, with the names that it had then."""

import warnings
from typing import Any, NamedTuple

from gpukit.pitfalls import CASES, STEPS, Case, add_to_row, add_to_rows, iterate, make_pitfall, scale, swing
from gpukit.pitfalls import iterate_fixed as iterate_cured
from gpukit.pitfalls import make_running_sums as running_sums
from gpukit.pitfalls import scale_fixed as scale_cured
from gpukit.pitfalls import swing_fixed as swing_cured

__all__ = [
    "CASES",
    "STEPS",
    "Case",
    "Treatment",
    "add_to_row",
    "add_to_rows",
    "iterate",
    "iterate_cured",
    "running_sums",
    "scale",
    "scale_cured",
    "swing",
    "swing_cured",
    "treatment",
]

warnings.warn("gpukit.clinic is now gpukit.pitfalls", DeprecationWarning, stacklevel=2)


class Treatment(NamedTuple):
    """A `gpukit.pitfalls.Pitfall`, with its fields' former names."""

    patient: list
    cure: list
    out: Any
    expected: Any


def treatment(name: str, size: tuple[int, ...] | None = None) -> Treatment:
    """Make the arrays and launches of one case, as `gpukit.pitfalls.make_pitfall` does."""
    return Treatment(*make_pitfall(name, size))
