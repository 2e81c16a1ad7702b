"""Measurements in several processes: one at a time has its turn, and what compiles does not keep the others waiting."""

import os
import time
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import SimpleNamespace

import pytest

from bench import suite, turns


def uses(seconds, name):
    """(name, process, when its turns began and ended), with a pause between them that is others'."""
    spans = []
    with turns.mine():
        for _ in range(2):
            began = time.monotonic()
            time.sleep(seconds)
            spans.append((began, time.monotonic()))
            with turns.elsewhere():
                time.sleep(seconds)
    assert turns._turn is None or turns.held() >= 2 * seconds
    return name, os.getpid(), spans


def starts_others(name):
    with turns.mine():
        return [uses(0.01, name), *turns.side_by_side([partial(uses, 0.02, name + n) for n in "ab"], 2)]


def fails():
    with turns.mine():
        raise ValueError("no memory")


def test_turns_do_not_overlap_and_results_keep_their_order():
    found = [entry for entries in turns.side_by_side([partial(starts_others, n) for n in "xy"], 2) for entry in entries]
    assert [name for name, _, _ in found] == ["x", "xa", "xb", "y", "ya", "yb"]
    assert os.getpid() not in {process for _, process, _ in found}
    spans = sorted(span for _, _, spans in found for span in spans)
    assert len(spans) == 12
    assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))


def dies():
    with turns.mine():
        os._exit(3)


def starts_one_that_dies():
    with turns.mine(), pytest.raises(BrokenProcessPool):
        list(turns.side_by_side([dies, dies], 2))
    return uses(0.01, "after")


def test_a_process_that_dies_in_its_turn_leaves_it_to_the_others():
    assert next(turns.side_by_side([starts_one_that_dies, partial(uses, 0.01, "a")], 2))[0] == "after"
    works = [partial(uses, 0.001, "a"), dies, partial(uses, 0.001, "b")]
    found = list(suite._in_processes(works, 2))
    assert found[1] == (False, "  FAILED: its process died\n") and [found[0][0], found[2][0]] == ["a", "b"]


def test_what_fails_is_raised_and_gives_its_turn_back():
    made = turns.side_by_side([partial(uses, 0.01, "a"), fails, partial(uses, 0.01, "b")], 2)
    assert next(made)[0] == "a"
    with pytest.raises(ValueError, match="no memory"):
        next(made)


def test_with_one_job_nothing_is_started_and_nobody_waited_for():
    ((_, process, spans),) = turns.side_by_side([partial(uses, 0.001, "a")], 5)
    assert process == os.getpid() and len(spans) == 2


@pytest.mark.parametrize(
    ("options", "number"),
    [({}, 5), ({"memory": 4 * 2**30}, 7), ({"share": 2}, 3), ({"share": 8}, 1), ({"memory": 2**60}, 1)],
)
def test_processes_are_as_many_as_cores_and_memory_allow(monkeypatch, options, number):
    context = SimpleNamespace(get_memory_info=lambda: SimpleNamespace(total=40 * 2**30))
    monkeypatch.setattr(turns, "cuda", SimpleNamespace(current_context=lambda: context))
    monkeypatch.setattr(turns, "cores", lambda: 8)
    monkeypatch.setattr(turns, "on_gpu", lambda: True)
    assert turns.processes(**options) == number
    monkeypatch.setattr(turns, "on_gpu", lambda: False)
    assert turns.processes(**options) == 1
