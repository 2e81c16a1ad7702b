"""What a trace keeps of the order of things: steps of the first block, reads and writes by element, and their views."""

import json
import re
import shutil
import subprocess
from collections import Counter

import numpy as np
import pytest

from warpstep import cuda, load_trace, trace

TILE = 32


@cuda.jit(device=True)
def clamp(value, limit):
    if value > limit:
        return limit
    return value


@cuda.jit
def column(x, out):
    tile = cuda.shared.array((TILE, TILE), np.float32)
    t, row = cuda.threadIdx.x, cuda.threadIdx.y
    if t < x.shape[1]:
        tile[row, t] = x[row, t]
    else:
        tile[row, t] = 0
    cuda.syncthreads()
    for k in range(2):
        if t % 2 == k:
            out[row, t] = clamp(tile[t, row], 2)  # </script><b>


@cuda.jit
def scatter(x, bins, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i], 1)
        out[i // 2] = x[i]


@cuda.jit
def spin(out):
    t = cuda.threadIdx.x
    for k in range(400):
        out[t * k % 977] = k


def first_line(kernel):
    return kernel.py_func.__code__.co_firstlineno


def by_line(data):
    """{(line, array, operation): [requests, cost, least cost]} of all warps and steps."""
    sums = Counter()
    for _, line, _, _, accesses in data["steps"]:
        for number, op, _, by_warp in accesses:
            for _, cost, ideal, _ in filter(None, by_warp):
                for i, count in enumerate((1, cost, ideal)):
                    sums[line, data["arrays"][number][0], op, i] += count
    return sums


def test_steps_are_the_lines_in_order_with_lanes_and_addresses():
    x = np.arange(TILE * 30, dtype=np.float32).reshape(TILE, 30)
    traced = trace(column[1, (TILE, 8)], x, np.zeros((TILE, TILE), np.float32))
    data, begin = traced.steps.data, first_line(column)
    assert (data["block"], data["threads"], data["complete"]) == ([0, 0, 0], 256, True)
    lines = [line - begin for _, line, *_ in data["steps"]]
    assert lines[:7] == [2, 3, 4, 5, 7, 8, 9] and lines.count(10) == 2, lines
    full, even = 2**32 - 1, 0x55555555
    masks = {(line, masks[0]) for line, masks in zip(lines, [step[2] for step in data["steps"]], strict=True)}
    assert {(5, 2**30 - 1), (7, 3 << 30), (8, full), (11, even), (11, full - even)} <= masks
    assert [step[3] for step in data["steps"] if step[1] - begin == 8] == ["block"]
    load = next(a for step in data["steps"] for a in step[4] if step[1] - begin == 11)
    assert data["arrays"][load[0]][:3] == ["tile", "shared", 4] and data["arrays"][load[0]][4] == [TILE, TILE]
    mask, cost, ideal, (start, step) = load[3][3]  # the fourth warp reads column 3, its even lanes first
    assert (mask, cost, ideal, start, step) == (even, 16, 1, 3 * 4, TILE * 4)
    # What is kept step by step adds up to what the trace counts.
    sums = by_line(data)
    assert sum(sums[key] for key in sums if key[3] == 0) == traced.total().requests
    for access in traced.accesses:
        shared = access.space == "shared"
        counted = (access.wavefronts, access.ideal_wavefronts) if shared else (access.sectors, access.ideal_sectors)
        found = tuple(sums[access.line, access.array, access.op, i] for i in range(3))
        assert found == (access.requests, *counted), access


def test_long_launches_keep_their_first_steps():
    traced = trace(spin[3, 512], np.zeros(1000))
    data = traced.steps.data
    assert not data["complete"] and data["threads"] == 256 and 300 < len(data["steps"]) <= 1000
    partial = trace(scatter[4, 32], np.zeros(100, np.int64), np.zeros(1, np.int64), np.zeros(50), blocks=[2, 3])
    assert partial.steps.data["block"] == [2, 0, 0]


def test_heat_counts_each_element():
    x = np.random.default_rng(1).integers(0, 10, 100)
    strided = cuda.to_device(np.zeros((10, 3), np.int64))[:, 1]
    traced = trace(scatter[4, 32], x, strided, np.zeros(50))
    found = {h.array: h for h in traced.heat}
    assert (found["x"].reads == 2).all() and not found["x"].writes.any()
    assert list(found["bins"].reads) == list(found["bins"].writes) == list(np.bincount(x, minlength=10))
    assert (found["out"].writes == 2).all() and list(found["out"].writer) == [i * 2 // 32 for i in range(50)]
    traced = trace(column[2, (TILE, 8)], *[np.ones((TILE, TILE), np.float32)] * 2)
    shared = next(h for h in traced.heat if h.array == "tile")
    assert shared.shape == (TILE, TILE)
    assert (shared.writes.reshape(TILE, TILE).sum(axis=1) == [64] * 8 + [0] * 24).all()
    assert (shared.reads.reshape(TILE, TILE).sum(axis=0) == [64] * 8 + [0] * 24).all()


def test_heat_of_shared_arrays_of_the_same_name():
    @cuda.jit(device=True)
    def put_two(x):
        tile = cuda.shared.array(64, np.float32)
        tile[2 * cuda.threadIdx.x] = x

    @cuda.jit
    def put():
        tile = cuda.shared.array(32, np.float32)
        tile[cuda.threadIdx.x] = 1
        put_two(tile[cuda.threadIdx.x])

    maps = [h for h in trace(put[1, 32]).heat if h.array == "tile"]
    assert sorted((h.reads.size, int(h.writes.sum())) for h in maps) == [(32, 32), (64, 32)]


def test_heat_of_a_large_launch_is_asked_for():
    many = np.zeros(300_000)
    few = np.zeros(1, np.int64)
    plain = trace(scatter[1172, 256], many.astype(np.int64), few, many)
    assert plain.heat is None
    with pytest.raises(ValueError, match="not counted; trace it with heat=True"):
        plain.plot_heat()
    traced = trace(scatter[1172, 256], many.astype(np.int64), few, many, heat=True)
    out = next(h for h in traced.heat if h.array == "out")
    assert out.width == 16 and out.writes.size == many.size // 16 and out.writes.sum() == many.size
    assert trace(scatter[1, 32], few, few, many, heat=False).heat is None


def test_heat_is_drawn_and_saved(tmp_path):
    x = np.random.default_rng(1).integers(0, 10, 100)
    traced = trace(scatter[4, 32], x, np.zeros(10, np.int64), np.zeros(50))
    traced.save(tmp_path / "trace.json")
    loaded = load_trace(tmp_path / "trace.json")
    assert loaded.steps.data == json.loads(json.dumps(traced.steps.data))
    for again in (traced, loaded):
        axes = again.plot_heat("out")
        assert [ax.images[0].get_array().shape for ax in axes] == [(1, 50)] * 2
        assert axes[0].images[0].get_array().max() == 2 and axes[1].images[0].get_array().max() == 3
        assert len(again.plot_heat("bins")) == 3 and again.plot_heat() is not None
    assert str(loaded) == str(traced)
    with pytest.raises(ValueError, match="array is 'y'; arrays that the kernel accesses: bins, out, x"):
        traced.plot_heat("y")


def test_the_page_stands_alone(tmp_path):
    x = np.ones((TILE, TILE), np.float32)
    traced = trace(column[1, (TILE, 8)], x, x.copy())
    traced.save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "https:" not in page and "http:" not in page
    assert page.count("</script>") == 2 and "<b>" not in page.partition("gpukit-trace")[0]
    data = json.loads(re.search(r'<script type="application/json" id="steps">(.*?)</script>', page)[1])
    assert any(text.endswith("# </script><b>") for _, _, text in data["source"])
    outside = [line for _, line, _ in data["source"] if line == first_line(clamp) + 2]
    assert outside, "the device function's lines are shown too"
    trace(spin[1, 256], np.zeros(1000)).save_html(tmp_path / "long.html")
    assert (tmp_path / "long.html").stat().st_size < 1_000_000
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("the page's script needs a browser: Chromium or Chrome")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", profile)
    address = (tmp_path / "page.html").as_uri()
    step = next(i for i, s in enumerate(data["steps"], 1) if s[1] == first_line(column) + 11)
    command = [browser, *options, "--virtual-time-budget=2000", "--dump-dom", f"{address}#{step}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
    assert re.search(rf"step {step} of \d+, line {first_line(column) + 11}", shown), shown[:5000]
    assert "16 of 32 lanes are active" in shown and "16 wavefronts, 1 needed" in shown
