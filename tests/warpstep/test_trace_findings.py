"""What `gpukit.trace` finds: in kernels with a planted bug that bug, at its line; in correct ones nothing."""

import json
from functools import cache

import pytest

from bench.corpus.bugs import CORRECT, PLANTED
from bench.evidence import sanitizer
from warpstep.tracing.records import FINDINGS

RECORD = json.loads(sanitizer.RECORDED.read_text()) if sanitizer.RECORDED.exists() else None


@cache
def findings(name):
    return sanitizer.trace_findings((PLANTED | CORRECT)[name])


def shown(found):
    return "\n".join(f"{f.kind}, line {f.line}: {f.message}" for f in found)


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_bug_is_found_at_its_line_and_nothing_else(name):
    case, found = PLANTED[name], findings(name)
    bug, other, then = (case.lines(mark) for mark in ("bug", "other", "then"))
    assert bug, "no line is marked"
    if case.exempt and not found:
        return
    found = [f for f in found if not (f.kind == "race" and f.line in then)]
    assert {f.kind for f in found} == {case.kind}, shown(found)
    assert {f.line for f in found} <= bug | other, shown(found)
    assert {f.line for f in found} & bug, shown(found)
    for finding in found:
        assert finding.count > 0 and len(finding.block) == 3
        assert len(finding.threads) >= (2 if case.kind == "race" else 1)
        assert finding.message and finding.cure


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_kernel_gives_no_finding(name):
    assert not findings(name), shown(findings(name))


def test_every_kind_of_finding_is_planted():
    of_two_devices = {"peer-access"}  # test_devices has it
    assert {case.kind for case in PLANTED.values()} == set(FINDINGS) - of_two_devices
    assert all(name in PLANTED for case in CORRECT.values() for name in case.mends)


# -- what compute-sanitizer finds ------------------------------------------------------------------


@pytest.mark.skipif(RECORD is None, reason="no run of compute-sanitizer is recorded")
@pytest.mark.parametrize("name", PLANTED)
def test_what_compute_sanitizer_finds_is_found_here(name):
    case = PLANTED[name]
    said = RECORD["kernels"][name][sanitizer.TOOL_OF[case.kind]]
    reported = {code for report in said["reports"] for code in report["code"]}
    if not reported:
        return
    found = {sanitizer.code_of(f.line) for f in findings(name) if f.kind == case.kind}
    assert found & reported


# -- reading compute-sanitizer's reports -----------------------------------------------------------

# In the forms that NVIDIA's manual shows, with the names that Numba gives to kernels.
MEMCHECK = """\
========= COMPUTE-SANITIZER
a kernel may print this
========= Invalid __global__ write of size 4 bytes
=========     at gpukit::calibration::bugs::first_kernel[abi:v1](Array<float, 1, C>)+0x90 in bugs.py:33
=========     by thread (6,0,0) in block (2,0,0)
=========     Address 0x7f6510c00118 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6510c00000 of size 280 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: second_kernel [0x1754] in python
=========
========= Invalid __global__ write of size 4 bytes
=========     at gpukit::calibration::bugs::first_kernel[abi:v1](Array<float, 1, C>)+0x90 in bugs.py:33
=========     by thread (7,0,0) in block (2,0,0)
=========
========= Invalid __shared__ read of size 4 bytes
=========     at _ZN6gpukit11calibration4bugs13second_kernelB2v1B8cw51cXTL+0x160 in /home/user/bugs.py:44
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame: helper()+0x30 in bugs.py:21
========= ERROR SUMMARY: 3 errors
========= ERROR SUMMARY: 3 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""

RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at bugs::first_kernel(int *)+0x90 in bugs.py:41
=========     and Read access at bugs::first_kernel(int *)+0x100 in bugs.py:51 [508 hazards]
=========     and Write access at bugs::first_kernel(int *)+0x140 in bugs.py:41 [1,004 hazards]
=========
========= WARNING: Race reported between Read access at bugs::second_kernel(int *)+0xf0 in bugs.py:60
=========     and Write access at bugs::second_kernel(int *)+0x100 in bugs.py:61 [4 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""

SYNCCHECK = """\
========= Barrier error detected. Divergent thread(s) in block.
=========     at [clone first_kernel(int *, int *)] outlineSync()+0x11f0 in test.cu:42
=========     by thread (32,0,0) in block (0,0,0)
=========         Device Frame: first_kernel(int *, int *)+0xe40 in bugs.py:60
=========
========= Barrier error detected. Invalid arguments.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========     by thread (16,0,0) in block (0,0,0)
=========         Device Frame: second_kernel(int *, int *)+0xb0 in bugs.py:25
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at other()+0x70 in memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
========= ERROR SUMMARY: 3 errors
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            MEMCHECK,
            {
                "first_kernel": [("Invalid __global__ write", (33,), 2)],
                "second_kernel": [("Invalid __shared__ read", (44, 21), 1)],
            },
        ),
        (
            RACECHECK,
            {
                "first_kernel": [("Error: race", (41, 51), 1512)],
                "second_kernel": [("Warning: race", (60, 61), 4)],
            },
        ),
        (
            SYNCCHECK,
            {
                "first_kernel": [("Barrier error: divergent thread(s) in block", (60,), 1)],
                "second_kernel": [("Barrier error: invalid arguments", (25,), 1)],
                None: [("Uninitialized __global__ memory read", (), 1)],
            },
        ),
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", {}),
    ],
    ids=["memcheck", "racecheck", "synccheck", "nothing"],
)
def test_reports_are_read(text, expected):
    parsed = sanitizer.parse(text, ["first_kernel", "second_kernel"])
    assert {name: [(r.kind, r.lines, r.count) for r in reports] for name, (reports, _) in parsed.items()} == expected
    assert all(raw for _, raw in parsed.values())
