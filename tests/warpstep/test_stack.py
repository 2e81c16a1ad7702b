"""The memory of Python's frames."""

import pytest

from warpstep.stack import with_room

resource = pytest.importorskip("resource")


def leaf():
    pass


leaf.__code__ = leaf.__code__.replace(co_stacksize=50)  # at some depth its frame, larger than those below, does not fit


def faults(depth):
    """Count the pages that 200 calls take from the system at this depth."""
    if depth:
        return faults(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_no_depth_makes_calls_take_memory_again_and_again():
    most = with_room(lambda: max(map(faults, range(300))))
    assert most() < 200
