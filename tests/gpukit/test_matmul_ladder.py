"""`gpukit.matmul.ladder`: every rung against float64 and in a trace."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from products import check, operands, poisoned

import gpukit
from gpukit import matmul
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
    assert stores["transposed"] > stores["transposed_padded"] == 1
    assert loads["double_buffered"] == loads["transposed_padded"]
    assert loads["warp_tiles"] == loads["read_ahead"] == loads["asynchronous"]
    barriers = {}
    for variant in ("transposed_padded", "double_buffered", "asynchronous"):
        a, b, out = *operands((128, 64), (64, 128)), poisoned(128, 128)
        ((launch, arguments),) = matmul.steps(variant, a, b, out)
        barriers[variant] = sum(barrier.passed for barrier in gpukit.trace(launch, *arguments).barriers)
    assert barriers == {"transposed_padded": 16, "double_buffered": 8, "asynchronous": 8}
