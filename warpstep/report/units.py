"""Durations as text."""

from warpstep.values import check_number

__all__ = ["UNITS", "format_seconds"]

#: Seconds in each unit that a ``Timer`` can show.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def format_seconds(seconds):
    """Write a duration with four significant digits and the unit that fits: ``0.00001234`` s is ``'12.34 us'``.

    Examples
    --------
    >>> format_seconds(0.00001234)
    '12.34 us'
    """
    check_number("seconds", seconds)
    if seconds == 0:
        return "0 s"
    texts = {unit: f"{seconds / size:#.4g}".rstrip(".") for unit, size in UNITS.items()}
    unit = next((unit for unit, text in texts.items() if abs(float(text)) >= 1), "ns")
    return f"{texts[unit]} {unit}"
