"""The measurements of the chapters check what they time, and notice wrong results."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import gpukit
from bench import axpy, code, conv, fast_matmul, streams
from bench import multi as several
from bench import pitfalls as slow_kernels
from bench import reduce as reductions
from bench import resize as resizing
from bench import scan as scans
from bench import tensor as tensors
from bench import transpose as transposes
from gpukit import emulator, indexing, matmul, multi, pitfalls, results, timing, transpose
from gpukit.backend import cuda
from gpukit.matmul import api


@pytest.fixture
def timed_at_once(monkeypatch):
    """In place of the timers: call each function once, for a made-up time."""

    def bench_many(runs, device="gpu", **_):
        for run in runs.values():
            run()
        return {name: timing.Timing((1e-3,) * 5, name, device, (1e-5,) * 5) for name in runs}

    monkeypatch.setattr(timing, "bench_many", bench_many)


# -- axpy --------------------------------------------------------------------------------------------------------------


def test_axpy_times_what_is_right(monkeypatch):
    real, said = timing.bench_many, []
    monkeypatch.setattr(timing, "bench_many", lambda runs, **_: real(runs, device="cpu", warmup=0, repeat=5))
    records, right = axpy.measure(1000, (1, 4), report=said.append)
    assert right and [r["blocks"] for r in records] == [1, 4] and len(said) == 2
    assert all(r["value"] > 0 and r["nbytes"] == 3 * 4 * 1000 for r in records)

    def half(a, x, y, out):
        i = cuda.grid(1)
        if i < out.size // 2:
            out[i] = a * x[i] + y[i]

    monkeypatch.setattr(indexing, "axpy_grid_stride", cuda.jit(half))
    records, right = axpy.measure(1000, (1, 4), report=said.append)
    assert not right and not records and sum("WRONG" in line for line in said) == 2


def test_the_record_of_axpy_has_every_number_of_blocks():
    assert [r["blocks"] for r in results.load("axpy-h200")] == list(axpy.BLOCKS)


# -- products ----------------------------------------------------------------------------------------------------------


def test_products_are_checked_before_they_are_timed(timed_at_once, monkeypatch, capsys):
    monkeypatch.setattr(fast_matmul, "BATCHES", ((4, 33, 21, 10), (-3, 33, 21, 10)))
    monkeypatch.setattr(fast_matmul, "LADDER", ("tiled", "wide"))
    records, right = fast_matmul.measure_shapes("map", [(33, 21, 10), (1, 5, 7)])
    assert right and {record["shape"] == [33, 21, 10] for record in records} == {True, False}
    assert fast_matmul.measure_batches()[1] and fast_matmul.measure_ladder(33)[1]
    monkeypatch.setattr(matmul, "matmul", lambda a, b, out: api.matmul(a, b, alpha=1.0001, out=out))
    assert fast_matmul.measure_shapes("map", [(33, 21, 10)]) == ([], False)
    assert "WRONG" in capsys.readouterr().out


def test_one_wrong_element_of_a_product_is_seen():
    a, b = fast_matmul.filled((70, 40), 1), fast_matmul.filled((40, 30), 2)
    assert -1 <= a.copy_to_host().min() < -0.9 and len(np.unique(a.copy_to_host())) == 2800
    product = matmul.matmul(a, b).copy_to_host()
    assert fast_matmul.is_right(a, b, cuda.to_device(product))
    product[69, 29] += 1e-4
    assert not fast_matmul.is_right(a, b, cuda.to_device(product))


def test_every_product_whose_code_is_examined_is_there():
    for variant, tile in code.products():
        kernel, arguments, threads = code.kernel_of(variant, tile)
        assert callable(kernel.py_func) and len(arguments) >= 3 and threads % 32 == 0


# -- reductions --------------------------------------------------------------------------------------------------------


def test_reductions_are_checked_before_they_are_timed(timed_at_once, monkeypatch, capsys):
    records, right = reductions.measure_ladder(1000, {})
    assert right and {r["variant"] for r in records} == {*reductions.ladder.VARIANTS, "atomic", "copy"}
    for op in ("sum", "max", "mean", "function"):
        records, right = reductions.measure_case((40, 33), 0, "float32", op, {})
        assert right and [r["case"] for r in records] == [f"{op} over axis 0", f"{op} over axis 0, host"]
    monkeypatch.setattr(reductions.cuda.get_current_device(), "L2_CACHE_SIZE", 4096, raising=False)
    assert reductions.measure_counted(1000, "sum", {})[1]
    monkeypatch.setattr(reductions, "reduce", lambda x, axis, op, out: out.copy_to_device(np.zeros(33, np.float32)))
    assert reductions.measure_case((40, 33), 0, "float32", "sum", {}) == ([], False)
    assert "WRONG" in capsys.readouterr().out


# -- scans -------------------------------------------------------------------------------------------------------------


def test_scans_are_checked_before_they_are_timed(timed_at_once, monkeypatch, capsys):
    """All of ``gpukit bench scan`` but the times and the libraries of a GPU."""
    monkeypatch.setattr(scans.common, "libraries", dict)
    records, right = scans.measure_ladder(1000, {})
    assert right and {r["variant"] for r in records} == {*scans.ladder.VARIANTS, "scan", "copy"}
    measures = [
        partial(scans.measure_case, (40, 33), 1, "int32"),
        partial(scans.measure_histogram, 3001, "uint8", "constant"),
        partial(scans.measure_histogram, 3001, "float32", "uniform"),
        partial(scans.measure_sort, 999, "int32", "pairs"),
        partial(scans.measure_selection, 999, 0.5),
    ]
    for measure in measures:
        records, right = measure({})
        assert right and records
    monkeypatch.setattr(scans.scan, "scan", lambda x, axis=None, out=None: out.copy_to_device(np.zeros_like(out)))
    monkeypatch.setattr(scans.scan, "histogram", lambda x, bins, span, out: None)
    monkeypatch.setattr(scans.scan, "sort", lambda x, values, out: None)
    monkeypatch.setattr(scans.scan, "compress", lambda mask, x: x)
    assert not any(right for _, right in (measure({}) for measure in measures))
    assert capsys.readouterr().out.count("WRONG") == len(measures)


# -- products on tensor cores ------------------------------------------------------------------------------------------


def test_the_ladder_of_tensor_cores_is_checked_before_it_is_timed(timed_at_once, monkeypatch, capsys):
    monkeypatch.setattr(tensors.matmul, "matmul", lambda a, b, out: out)  # it and all rungs have tests of their own
    monkeypatch.setattr(tensors.tensor, "VARIANTS", ("one_warp", "swizzled"))
    records, right = tensors.measure_ladder(40, {})
    assert right and {r["variant"] for r in records} == {*tensors.tensor.VARIANTS, "fast"}
    records, right = tensors.measure_warps(104, {})
    assert right and records[0]["variant"] == "warps"
    monkeypatch.setattr(tensors.tensor, "steps", lambda *_: [])
    records, right = tensors.measure_ladder(40, {})
    assert not right and {r["variant"] for r in records} == {"fast"}
    assert capsys.readouterr().out.count("WRONG") == len(tensors.tensor.VARIANTS)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_every_form_of_a_launch_is_checked(monkeypatch, capsys):
    monkeypatch.setattr(streams, "LAUNCHES", 20)
    records, right = streams.measure_launches({})
    assert right and {"kernel[grid, block](...)", "gpukit.launching, same arguments"} <= {r["variant"] for r in records}
    assert all(record["n"] == 15 and record["value"] > 0 for record in records)


# -- convolutions ------------------------------------------------------------------------------------------------------


def test_every_way_to_convolve_gives_the_same():
    problem = conv.Problem(1, 3, (20, 24), 8, 3, 1, 1)
    random = np.random.default_rng(1)
    x, weight = (random.standard_normal(s).astype(np.float32) for s in (problem.x_shape, problem.weight_shape))
    x, weight, out = cuda.to_device(x), cuda.to_device(weight), cuda.device_array((1, 8, 20, 24), np.float32)
    algorithms, expected = ("im2col", "naive", conv.RUNGS[-1]), []
    for key, launches in conv.launches_of(problem, x, weight, out, algorithms, 2).items():
        out.copy_to_device(np.full(out.shape, np.nan, np.float32))
        for launch in launches:
            launch()
        expected.append(out.copy_to_host())
        np.testing.assert_allclose(expected[-1], expected[0], atol=1e-4, err_msg=str(key))
    assert len(expected) == len(algorithms) + 2


def test_every_variant_of_im2col_is_timed():
    shape, how = (2, 3, 8, 12), {"stride": 1, "padding": 1, "dilation": 1}
    x = cuda.to_device(np.random.default_rng(2).standard_normal(shape).astype(np.float32))
    columns = cuda.to_device(gpukit.conv.im2col(x.copy_to_host(), 3, **how))
    back, out = cuda.device_array(shape, np.float32), cuda.device_array(columns.shape, np.float32)
    launches = conv.column_launches(x, back, columns, out, 3, how)
    assert {variant for case, variant in launches if case == "im2col"} == {*gpukit.conv.VARIANTS}
    for (case, _), launch in launches.items():
        out.copy_to_device(np.full(out.shape, np.nan, np.float32))
        launch()
        if case == "im2col":
            np.testing.assert_array_equal(out.copy_to_host(), columns.copy_to_host())
    np.testing.assert_allclose(
        back.copy_to_host(), gpukit.conv.col2im(columns.copy_to_host(), shape[2:], 3, **how), rtol=1e-5
    )


# -- pitfalls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", pitfalls.CASES, ids=lambda case: case.name)
def test_pitfalls_are_checked_before_they_are_timed(timed_at_once, case):
    size = tuple(min(n, 256) for n in case.size)
    records, right = slow_kernels.measure(case.name, size, report=lambda line: None)
    assert (
        right and {r["case"] for r in records} == {"kernel", "call"} and {r["pitfall"] for r in records} == {case.name}
    )
    assert {r["variant"] for r in records} == {"slow", "slow, prepared", "fixed", "fixed, prepared"}


# -- resize ------------------------------------------------------------------------------------------------------------


def test_resizing_is_checked_before_it_is_timed(timed_at_once, monkeypatch):
    """All of ``gpukit bench resize`` but the times and the libraries of a GPU."""

    for name, value in {
        "SOURCE": (54, 96),
        "TARGET": (32, 32),
        "FRAMES": (1, 2, 5),
        "VIDEO": 8,
        "DEPTHS": (2,),
    }.items():
        monkeypatch.setattr(resizing, name, value)
    monkeypatch.setattr(resizing.common, "libraries", lambda: {"cupy": None})  # a library that fails is left out
    said = []
    for title, measure in resizing.measurements(SimpleNamespace(quick=False)):
        records, right = measure(report=said.append)
        assert records and right, title
    assert not any("WRONG" in line for line in said) and any("left out" in line for line in said)
    frames = resizing.Frames(2)
    assert not frames.is_right(np.zeros((2, 3, 32, 32), np.float32), 1e-5)
    assert not resizing.is_opencvs("bilinear", frames, np.zeros((32, 32, 3), np.uint8))


# -- several devices ---------------------------------------------------------------------------------------------------


def test_several_devices_are_checked_before_they_are_timed(timed_at_once, monkeypatch):
    """``gpukit bench multi`` without the times, the timelines, NCCL and the frames."""
    monkeypatch.setattr(several, "_bars", lambda made: [])
    monkeypatch.setattr(several, "LINK_BYTES", 1024)
    monkeypatch.setattr(several, "STEPS", 3)
    monkeypatch.setattr(several.common, "libraries", dict)
    measured = [
        partial(several.measure_heat, 150, 40, "strong"),
        partial(several.measure_heat, 150, 40, "weak"),
        partial(several.measure_product, 16),
        partial(several.measure_all_reduce, 4000),
    ]
    with emulator.use_device(count=2):
        for measure in (several.measure_links, *measured):
            records, right = measure(2)
            assert right and {r["devices"] for r in records} >= {2}, measure
        monkeypatch.setattr(multi.Heat, "schedule", lambda *_: SimpleNamespace(run=lambda: None))
        monkeypatch.setattr(multi.Product, "run", lambda *_: None)
        monkeypatch.setattr(multi.AllReduce, "run", lambda *_: None)
        for measure in measured:
            assert not measure(2)[1], measure


def test_transposes_are_those_that_take_the_shape():
    for shape in transposes.TRANSPOSE_SHAPES:
        for itemsize in (1, 2, 4, 8):
            names = [name for name, *_ in transposes._configured(shape, np.dtype(f"u{itemsize}"), True)]
            assert {"copy", "naive", "tall"} <= set(names)
            assert ("thin" in names) == (min(shape) <= transpose.MAX_SIDE)
