"""`gpukit.matmul.ladder`: every rung against float64 and in a trace; measurements of products, and compiled code."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from products import check, operands, poisoned

import gpukit
from bench import code, fast_matmul
from gpukit import matmul, timing
from gpukit.backend import cuda
from gpukit.matmul import api as host

RUNGS = [(variant, np.float32) for variant in matmul.LADDER] + [(v, np.float64) for v in host.ANY_DTYPE]


sizes = st.one_of(st.integers(0, 40), st.sampled_from([1, 63, 64, 65, 97, 127, 128, 129, 136, 257, 293, 300]))


@settings(max_examples=10)
@given(m=sizes, n=sizes, k=sizes, which=st.sampled_from(RUNGS))
@example(m=131, n=0, k=5, which=("wide", np.float32))
@example(m=3, n=5, k=0, which=("asynchronous", np.float32))
@example(m=3, n=5, k=0, which=("fast", np.float32))
@example(m=260, n=132, k=36, which=("double_buffered", np.float32))
def test_any_shape(m, n, k, which):
    variant, dtype = which
    a, b = operands((m, k), (k, n), dtype=dtype)
    out = poisoned(m, n, dtype=dtype)
    assert matmul.matmul(a, b, variant, out=out) is out
    check(out, a, b)


@pytest.mark.parametrize(("variant", "dtype"), RUNGS[:-2])
@pytest.mark.parametrize("shape", [(5, 132, 20), (129, 3, 9)])
def test_every_rung_with_ragged_edges_and_no_error(variant, dtype, shape):
    m, n, k = shape
    a, b = operands((m, k), (k, n), dtype=dtype)
    out = poisoned(m, n, dtype=dtype)
    for launch, arguments in matmul.steps(variant, a, b, out):
        trace = gpukit.trace(launch, *arguments)
        assert trace.findings == []
        assert not any(operations.fp64 + operations.fp64_conversions for operations in trace.operations)
    check(out, a, b)


def totals(variant, op, size=128, k=8):
    """Wavefronts over the fewest possible, of one block with full tiles."""
    a, b, out = *operands((size, k), (k, size)), poisoned(size, size)
    ((launch, arguments),) = matmul.steps(variant, a, b, out)
    total = gpukit.trace(launch, *arguments).total("shared", op)
    return total.requests, total.wavefronts / total.ideal_wavefronts


def test_what_each_rung_is_for():
    loads = {variant: totals(variant, "load") for variant in matmul.LADDER[1:-1]}
    stores = {variant: totals(variant, "store")[1] for variant in matmul.LADDER[1:-1]}
    assert loads["registers_2d"][0] == 8 * 8 * 16
    assert loads["wide"][0] == 8 * 8 * (8 + 2), "b four at a time"
    assert loads["transposed"][0] == 8 * 8 * 4, "and a too"
    assert loads["wide"][1] == 2 and loads["transposed"][1] > 1.6 and loads["warp_tiles"][1] == 1
    assert stores["transposed"] > stores["padded"] == 1
    assert loads["double_buffered"] == loads["padded"]
    assert loads["warp_tiles"] == loads["read_ahead"] == loads["asynchronous"]
    barriers = {}
    for variant in ("padded", "double_buffered", "asynchronous"):
        a, b, out = *operands((128, 64), (64, 128)), poisoned(128, 128)
        ((launch, arguments),) = matmul.steps(variant, a, b, out)
        barriers[variant] = sum(barrier.passed for barrier in gpukit.trace(launch, *arguments).barriers)
    assert barriers == {"padded": 16, "double_buffered": 8, "asynchronous": 8}


# -- measurements ----------------------------------------------------------------------------------


def test_measurements_check_what_they_time(monkeypatch, capsys):
    def timed_at_once(runs, **_):
        for run in runs.values():
            run()
        return {name: timing.Timing((1e-3,) * 5, name) for name in runs}

    monkeypatch.setattr(timing, "bench_many", timed_at_once)
    monkeypatch.setattr(fast_matmul, "BATCHES", ((4, 33, 21, 10), (-3, 33, 21, 10)))
    monkeypatch.setattr(fast_matmul, "LADDER", ("tiled", "wide"))
    records, right = fast_matmul.measure_shapes("map", [(33, 21, 10), (1, 5, 7)])
    assert right and {record["shape"] == [33, 21, 10] for record in records} == {True, False}
    assert fast_matmul.measure_batches()[1] and fast_matmul.measure_ladder(33)[1]
    monkeypatch.setattr(matmul, "matmul", lambda a, b, out: host.matmul(a, b, alpha=1.0001, out=out))
    assert fast_matmul.measure_shapes("map", [(33, 21, 10)]) == ([], False)
    assert "WRONG" in capsys.readouterr().out


def test_one_wrong_element_is_seen():
    a, b = fast_matmul.filled((70, 40), 1), fast_matmul.filled((40, 30), 2)
    assert -1 <= a.copy_to_host().min() < -0.9 and len(np.unique(a.copy_to_host())) == 2800
    product = matmul.matmul(a, b).copy_to_host()
    assert fast_matmul.is_right(a, b, cuda.to_device(product))
    product[69, 29] += 1e-4
    assert not fast_matmul.is_right(a, b, cuda.to_device(product))


# -- the compiled code -----------------------------------------------------------------------------

DISASSEMBLY = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FFMA R4, R5, R6, R4 ;
.L_x_2:
        /*0020*/              @!PT LDS RZ, [RZ] ;
        /*0030*/                   LDS.128 R4, [R9+0x10] ;
        /*0040*/                   FFMA R4, R5.reuse, R6, R4 ;
        /*0050*/              @!P1 FFMA R4, R5, R6, R4 ;
        /*0060*/                   LDGSTS.E.BYPASS.128 [R18], desc[UR6][R2.64], P0 ;
        /*0070*/               @P0 BRA `(.L_x_2) ;
        /*0080*/               @P1 BRA `(.L_x_1) ;
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
"""


def test_the_loop_with_the_work_is_found_and_counted():
    loop = code.loop_of(DISASSEMBLY)
    assert len(loop) == 6 and loop[0].startswith("@!PT")
    counts = {group: count for group, count in code.mix(loop).items() if count}
    assert counts == {"multiply-add": 2, "shared, 16 bytes": 1, "copies": 1, "other": 1}
    assert code.loop_of("nothing") == []


def test_occupancy():
    assert code.occupancy(32, 0, 256) == (8, 1)
    assert code.occupancy(33, 0, 256) == (6, 0.75), "registers come in units of 8"
    assert code.occupancy(32, 60 * 1024, 256) == (3, 0.375)
    assert code.occupancy(237, 37248, 256) == (1, 0.125)


@pytest.mark.skipif(not code.find_tool("nvdisasm"), reason="needs nvdisasm")
def test_the_products_need_no_local_memory():
    for record in code.measure(report=lambda text: None):
        assert record["local"] == 0 and record["loop"]["local"] == 0 and record["loop"]["float64"] == 0
        if record["variant"] == "fast":
            assert record["loop"]["shared, less"] == 0
