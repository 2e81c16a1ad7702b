"""The records that come with gpukit are of variants that exist, under their present names."""

import pytest

from bench import ratios
from gpukit import conv, matmul, pitfalls, reduce, resize, results, scan, transpose

SOURCES = (
    *("matmul-h200", "naive-h200", "fast-matmul-h200", "fast-matmul-code", "transpose-h200", "reduce-h200"),
    *("resize-h200", "conv-h200", "conv-code", "pitfalls-h200", "scan-h200"),
)


def variants_of(source):
    """Return {case: variants} of a record; libraries and copies are left out."""
    from gpukit.conv import cost

    if source == "resize-h200":
        plain = {method: [*resize.VARIANTS, f"resize, {method}"] for method in resize.METHODS}
        return plain | {"letterbox": [*resize.VARIANTS, "letterbox"], "blob": [*resize.VARIANTS, "blob"]}
    return {
        "matmul-h200": dict.fromkeys(("time", "registers", "instructions"), matmul.VARIANTS),
        "naive-h200": dict.fromkeys(("types", "instructions"), matmul.VARIANTS),
        "fast-matmul-h200": dict.fromkeys(("ladder", "shape", "map", "batch"), matmul.VARIANTS),
        "fast-matmul-code": {"code": matmul.VARIANTS},
        "transpose-h200": {"time": [*transpose.VARIANTS, *transpose.CONTROLS]},
        "reduce-h200": {"ladder": [*reduce.VARIANTS, "atomic"]},
        "conv-h200": {"ladder": [*cost.DIRECT, "direct"], "im2col": conv.VARIANTS},
        "conv-code": {"code": cost.DIRECT},
        "scan-h200": {"ladder": [*scan.VARIANTS, "scan"], "topk": ["topk"], "sort, rows": ["sort"]},
        "pitfalls-h200": {"kernel": ["slow", "slow, prepared", "fixed", "fixed, prepared"]},
    }[source]


@pytest.mark.parametrize("source", SOURCES)
def test_recorded_variants_exist(source):
    if not (results.RECORDED / f"{source}.json").is_file():
        pytest.skip(f"{source} has not been recorded yet")
    for case, known in variants_of(source).items():
        records = [r for r in results.load(source, case=case) if not ratios.library_of(r)]
        assert records
        assert {r["variant"] for r in records if not ratios.is_copy(r)} <= {*known}, case


def test_recorded_pitfalls_exist():
    assert {r["pitfall"] for r in results.load("pitfalls-h200")} == {case.name for case in pitfalls.CASES}
