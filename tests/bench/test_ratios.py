"""`bench.ratios`: which records are compared, and what changed since an earlier run."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import record, run_of

from bench import ratios

# -- gpukit beside the libraries ---------------------------------------------------------------------------------------


def test_the_fastest_of_both_sides_are_compared():
    records = [record("tree", 5.0), record("wide", 2.0, tile=4), record("cupy", 4.0), record("torch (sum)", 3.0)]
    (pair,) = ratios.pairs(records)
    assert (pair.ours["variant"], pair.theirs["variant"], pair.ratio) == ("wide", "torch (sum)", 1.5)
    assert pair.valid and pair.remark == ""


@pytest.mark.parametrize(
    ("variant", "library"),
    [
        ("cuBLAS", "cublas"),
        ("cublas (torch)", "cublas"),
        ("cub", "cub"),
        ("cuda.core.launch, arguments packed before", "cuda.core"),
        ("cudnn (torch)", "cudnn"),
        ("cupy, RawKernel", "cupy"),
        ("cupyx zoom", "cupyx"),
        ("opencv, 16 cores", "opencv"),
        ("torch.add(x, y, alpha=3, out=out)", "torch"),
        ("torchvision", "torchvision"),
        ("CUDA graph of 1, replayed", None),
        ("configuration bound before, arrays of CuPy", None),
        ("reduce (torch)", None),
    ],
)
def test_every_library_is_counted(variant, library):
    assert ratios.library_of(record(variant, 1.0)) == library
    assert library in {None, *ratios.LIBRARIES}


@pytest.mark.parametrize("name", ["copy", "wide_copy", "memcpy", "torch copy", "cupy copy"])
def test_controls_are_on_no_side(name):
    (pair,) = ratios.pairs([record("tree", 5.0), record("torch", 3.0), record(name, 0.1)])
    assert (pair.ours["variant"], pair.theirs["variant"]) == ("tree", "torch")


@pytest.mark.parametrize(
    "other",
    [{"shape": [1025]}, {"dtype": "float16"}, {"case": "max"}, {"chapter": "x"}, {"clock": "host"}, {"unit": "B/s"}],
)
def test_sides_that_did_not_do_the_same_are_not_compared(other):
    assert ratios.pairs([record("tree", 5.0), record("torch", 3.0)])
    assert not ratios.pairs([record("tree", 5.0, **other), record("torch", 3.0)])


def test_what_a_library_says_of_the_problem_must_hold_for_ours():
    ours = [record("a", 1.0, stride=1), record("b", 2.0, stride=2, tile=16), record("c", 3.0)]
    (first, second) = ratios.pairs([*ours, record("cudnn (torch)", 6.0, stride=2), record("torch", 9.0, stride=(1, 2))])
    assert first.ours["variant"] == "b" and first.ratio == 3.0
    assert second.ours["variant"] == "c", "which says nothing of its stride"
    assert first.key != second.key


def test_what_is_no_distribution_or_no_rival_is_left_out():
    known, unknown = record("torch", 3.0), record("tree", 5.0, spread=None)
    assert not ratios.pairs([unknown, known])
    assert not ratios.pairs([record("loops", 5.0, case="cpu"), record("opencv", 3.0, case="cpu")])


def test_runs_in_one_file_are_not_mixed():
    records = [record("tree", 5.0), record("torch", 4.0), record("tree", 1.0, run="b"), record("torch", 3.0, run="b")]
    assert [pair.ratio for pair in ratios.pairs(records)] == [0.8, 3.0]
    assert ratios.pairs(records[1:3]) == []


def test_a_wide_spread_makes_a_ratio_invalid():
    (pair,) = ratios.pairs([record("tree", 5.0), record("torch", 3.0, spread=0.31, invalid=True)])
    assert not pair.valid and pair.remark == "INVALID: library's spread 31%"
    assert "INVALID" in str(ratios.table_of_pairs([pair]))


# -- against an earlier run --------------------------------------------------------------------------------------------


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_changes_are_of_times_and_of_ratios(before, now):
    time, library, ratio = ratios.changes(run_of(now), run_of(before))
    assert (time.before, time.now, time.unit) == (before, now, "s") and library.gain == 1
    assert (ratio.before, ratio.now) == (pytest.approx(3 / before), pytest.approx(3 / now))
    assert time.gain == pytest.approx(before / now) and ratio.gain == pytest.approx(before / now)
    fallen = ratios.falls([time, library, ratio], 10)
    assert fallen == ([ratio] if ratio.gain < 0.9 else [])


def test_other_gpus_are_compared_by_ratio_only():
    (change,) = ratios.changes(run_of(3.0), run_of(1.5), times=False)
    assert change.unit == "ratio" and change.gain == 0.5


def test_a_slower_library_is_no_gain_and_a_faster_one_a_fall():
    *_, ratio = ratios.changes(run_of(1.0, theirs=2.0), run_of(1.0, theirs=3.0))
    assert ratios.falls([ratio], 30) == [ratio] and not ratios.falls([ratio], 40)


def test_what_was_not_steady_is_not_judged():
    found = ratios.changes(run_of(9.0, invalid=True), run_of(1.0))
    assert not ratios.falls(found, 10)
    assert "2 were not steady enough" in ratios.table_of_changes(found)


def test_the_table_says_what_changed():
    text = ratios.table_of_changes(ratios.changes(run_of(2.0), run_of(1.0)))
    assert re.search("slower +1.000 s +2.000 s +100%", text) and re.search("ratio fell +3.00 +1.50 +50%", text)
    assert "1 of 3 are within 3%" in text


def test_a_fall_says_which_side_changed():
    *_, ratio = ratios.changes(run_of(2.0, variant="wide"), run_of(1.0))
    assert ratio.sides == "gpukit 1.000 s (tree), now 2.000 s (wide); library 3.000 s (torch), now 3.000 s (torch)"
    worse = ratios.Change("other", 4.0, 1.0, "ratio")
    assert ratios.falls([ratio, worse], 10) == [worse, ratio]
