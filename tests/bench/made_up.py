"""Made-up records."""

HEAD = {"gpu": "NVIDIA H200", "driver": "580", "power_limit": 700.0, "date": "2026-11-21"}


def record(variant, value, spread=0.01, **further):
    head = {"chapter": "reduce", "case": "sum", "variant": variant, "shape": [1024], "dtype": "float32"}
    return head | {"value": value, "unit": "s", "spread": spread, "n": 10} | further


def run_of(ours, theirs=3.0, variant="tree", **further):
    return [record(variant, ours, **further), record("torch", theirs)]
