"""`gpukit.pitfalls`: both versions of a kernel give the same, and a trace of the slow one shows what is wrong."""

import importlib
import sys

import numpy as np
import pytest

import gpukit
from gpukit import pitfalls

SYMPTOMS = {
    "uncoalesced": lambda trace: trace.total("global").sectors,
    "bank conflicts": lambda trace: trace.total("shared").bank_conflicts,
    "hidden float64": lambda trace: sum(line.fp64_conversions for line in trace.operations),
    "divergence": lambda trace: 1 / min(line.active_lanes for line in trace.operations if line.fp32),
}


@pytest.mark.parametrize("case", pitfalls.CASES, ids=lambda case: case.name)
def test_both_versions_give_the_same(case):
    pitfall = pitfalls.make_pitfall(case.name)
    for steps in (pitfall.slow, pitfall.fixed):
        pitfall.out.copy_to_device(np.full(pitfall.out.shape, np.nan, np.float32))
        traces = [gpukit.trace(launch, *arguments) for launch, arguments in steps]
        assert not any(trace.findings for trace in traces)
        np.testing.assert_allclose(pitfall.out.copy_to_host(), pitfall.expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SYMPTOMS)
def test_the_trace_shows_what_is_wrong_and_that_the_fix_helps(name):
    pitfall = pitfalls.make_pitfall(name)
    slow, fixed = (SYMPTOMS[name](gpukit.trace(*steps[0][:1], *steps[0][1])) for steps in (pitfall.slow, pitfall.fixed))
    assert slow > 4 * fixed


def test_the_clinic_has_every_case_in_another_order():
    names = [case.name for case in pitfalls.CASES]
    assert sorted(pitfalls.PATIENTS) == sorted(names) and list(pitfalls.PATIENTS) != names


ADVICE = {
    "uncoalesced": "uncoalesced",
    "bank conflicts": "bank-conflicts",
    "hidden float64": "float64",
    "divergence": "idle-lanes",
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_names_what_is_wrong_and_not_in_the_fix(name):
    pitfall = pitfalls.make_pitfall(name)
    slow, fixed = (
        {advice.kind for advice in gpukit.trace(launch, *arguments).advice}
        for ((launch, arguments),) in (pitfall.slow, pitfall.fixed)
    )
    assert ADVICE[name] in slow
    assert ADVICE[name] not in fixed


def test_the_fix_of_many_launches_is_one():
    pitfall = pitfalls.make_pitfall("launch-bound", (7, 40))
    assert (len(pitfall.slow), len(pitfall.fixed)) == (7, 1)


@pytest.mark.parametrize(
    ("name", "size", "error"),
    [("cold", None, ValueError), ("divergence", (3, 4), ValueError)]
    + [
        ("bank conflicts", (64, 31), ValueError),
        ("uncoalesced", (0, 4), ValueError),
        ("divergence", (2.5,), TypeError),
    ],
)
def test_no_such_case(name, size, error):
    with pytest.raises(error):
        pitfalls.make_pitfall(name, size)


def test_its_former_name_warns_and_works(monkeypatch):
    monkeypatch.delitem(sys.modules, "gpukit.clinic", raising=False)
    with pytest.warns(DeprecationWarning, match="gpukit.clinic is now gpukit.pitfalls"):
        clinic = importlib.import_module("gpukit.clinic")
    treatment = clinic.treatment("launch-bound", (3, 40))
    assert isinstance(treatment, clinic.Treatment) and clinic.CASES is pitfalls.CASES
    assert (len(treatment.patient), len(treatment.cure)) == (3, 1)
    for launch, arguments in treatment.cure:
        launch(*arguments)
    np.testing.assert_allclose(treatment.out.copy_to_host(), treatment.expected, rtol=1e-6)
    assert clinic.scale_cured is pitfalls.scale_fixed and clinic.running_sums(33) is pitfalls.running_sums_fixed
