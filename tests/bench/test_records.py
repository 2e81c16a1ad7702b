"""The records that come with gpukit are of variants that exist, under their present names."""

import pytest

from bench import naive, ratios
from gpukit import conv, matmul, pitfalls, resize, results, transpose
from gpukit.conv import cost
from gpukit.reduce import ladder as reductions
from gpukit.resize import ladder as resizing

#: Cases of records and their variants, for each record; libraries and copies are left out.
VARIANTS = {
    "fast-matmul-h200": {"ladder": matmul.VARIANTS, "shape": ["fast"], "map": ["fast"], "batch": ["fast"]},
    "fast-matmul-code": {"code": matmul.VARIANTS},
    "matmul-h200": {"time": matmul.VARIANTS, "registers": matmul.VARIANTS, "instructions": matmul.VARIANTS},
    "naive-h200": {"types": matmul.VARIANTS, "instructions": matmul.VARIANTS},
    "transpose-h200": {"time": [*transpose.VARIANTS, *transpose.CONTROLS, "memcpy"]},
    "reduce-h200": {"ladder": [*reductions.VARIANTS, "atomic"]},
    "conv-h200": {"ladder": [*cost.LADDER, "direct"], "im2col": conv.VARIANTS},
    "pitfalls-h200": {"kernel": ["slow", "slow, prepared", "fixed", "fixed, prepared"]},
    "resize-h200": {
        "nearest": [*resizing.RUNGS, "resize, nearest"],
        "bilinear": [*resizing.RUNGS, "resize, bilinear"],
        "letterbox": [*resizing.RUNGS, "letterbox"],
        "blob": [*resizing.RUNGS, "blob", "cupyx zoom"],
    },
}


@pytest.mark.parametrize("source", VARIANTS)
def test_recorded_variants_exist(source):
    for case, known in VARIANTS[source].items():
        records = [r for r in results.load(source, case=case) if not ratios.library_of(r) and "copy" != r["variant"]]
        assert records
        recorded = {r["variant"] for r in records if not r["variant"].endswith((" copy", "copy of the columns"))}
        assert recorded <= {*known}, case


def test_recorded_pitfalls_and_blocks_exist():
    assert {r["pitfall"] for r in results.load("pitfalls-h200")} == {case.name for case in pitfalls.CASES}
    assert {r["variant"] for r in results.load("naive-h200", case="block")} == {f"{x} x {y}" for x, y in naive.BLOCKS}
    methods = {r["variant"].partition(", ")[2] for r in results.load("resize-h200", case=["nearest", "bilinear"])}
    assert {*resize.METHODS} <= methods
