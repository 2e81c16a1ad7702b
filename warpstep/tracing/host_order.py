"""Findings of a trace about operations in other streams: those whose memory the kernel uses, and no event orders."""

import numpy as np

from warpstep.api import order
from warpstep.tracing.records import Finding

CURE = (
    "Record an event in that stream after the operation, and let this kernel's stream wait for it, or synchronise that "
    "stream before the launch. The stream of another device is ordered by nothing else."
)


def find_unordered(prepared, recorder, mark, accesses) -> list[Finding]:
    """Find what uses the kernel's memory at the same time, and note what the kernel uses.

    ``accesses`` are those of the trace, which name the lines.
    """
    found = []
    for name, array in prepared.transfers.arrays:
        allocation = array.allocation
        cells = recorder.memories.get(allocation.address)
        if cells is None or not allocation.on_device:
            continue
        read, written = (np.repeat(flags, cells.size) for flags in (cells.read, cells.written))
        for use in order.unordered(allocation, mark):
            for mine, theirs, did, other in (
                (read, use.written, "reads", "writes"),
                (written, use.written, "writes", "writes"),
                (written, use.read, "writes", "reads"),
            ):
                if theirs is not None and _meet(mine, theirs):
                    found.append(_finding(name, did, other, use.what, mark, accesses))
                    break
        what = f"{prepared.overload.kernel.py_func.__name__} in {order.describe(mark)}"
        order.note(allocation, order.Use(mark.key, mark.tick, read, written, what))
    return [finding for finding in found if finding is not None]


def _meet(mine, theirs):
    if isinstance(theirs, slice):
        return bool(mine[theirs].any())
    return bool((mine & theirs).any())


def _finding(name, did, other, what, mark, accesses):
    wanted = ("load", "atomic") if did == "reads" else ("store", "atomic")
    place = next((a for a in accesses if a.array == name and a.op in wanted), None)
    if place is None:
        return None
    message = f"the kernel, in {order.describe(mark)}, {did} {name}; {what} {other} it, and no event orders the two"
    return Finding(
        **place.place,
        kind="race",
        message=message,
        cure=CURE,
        array=name,
        block=(0, 0, 0),
        threads=(),
        count=1,
    )
