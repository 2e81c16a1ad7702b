"""The estimate of instruction overhead: its rules, and its error against Nsight Compute's counts."""

import math

import numpy as np
from numba.cuda import float32, uint32

import gpukit
from bench import predictions
from gpukit import results
from warpstep import cuda
from warpstep.compiler.instructions import (
    BRANCH,
    COUNTED,
    ITERATION,
    OPERATION,
    PRODUCT,
    QUOTIENT,
    SCALING,
    SIGN,
    STEP,
    SUM,
    VALUE,
)

COUNT = 7


def overhead(kernel, *arrays):
    """Estimate for one warp, with arguments of 64 x 64 float32 and a number of iterations."""
    x = np.ones((64, 64), np.float32)
    return gpukit.trace(kernel[1, 32], x, np.zeros(64, np.float32), COUNT).overhead


@cuda.jit
def with_sign(x, out, count):
    out[cuda.grid(1)] = 1


@cuda.jit
def without_sign(x, out, count):
    out[uint32(cuda.grid(1))] = 1


@cuda.jit
def known_to_be_positive(x, out, count):
    out[cuda.threadIdx.x] = 1


def test_sign_is_tested_where_an_index_may_be_negative():
    assert overhead(with_sign) == SIGN + SUM + SCALING
    assert overhead(without_sign) == overhead(known_to_be_positive) == SUM + SCALING


@cuda.jit
def two_dimensions(x, out, count):
    x[cuda.threadIdx.y, cuda.threadIdx.x] = 1


@cuda.jit
def at_a_known_place(x, out, count):
    x[3, 4] = 1


@cuda.jit
def in_registers(x, out, count):
    held = cuda.local.array(4, float32)
    held[0] = 1
    out[0] = held[0]


def test_address_is_computed_from_its_parts():
    assert overhead(two_dimensions) == 2 * SUM + PRODUCT + SCALING
    assert overhead(at_a_known_place) == overhead(in_registers) == 0


@cuda.jit
def runtime_range(x, out, count):
    total = float32(0)
    for k in range(count):
        total += x[cuda.threadIdx.x, k]
    out[0] = total


@cuda.jit
def counter_alone(x, out, count):
    total = float32(0)
    for _ in range(count):
        total += float32(1)
    out[0] = total


@cuda.jit
def unrolled_range(x, out, count):
    total = float32(0)
    for k in range(COUNT):
        total += x[cuda.threadIdx.x, k]
    out[0] = total


@cuda.jit
def long_range(x, out, count):
    total = float32(0)
    for _ in range(64):
        total += float32(1)
    out[0] = total


@cuda.jit
def steps(x, out, count):
    total, k = float32(0), uint32(0)
    while k < uint32(count):
        total += x[0, k]
        k = uint32(k + uint32(1))
    out[0] = total


def test_iterations_cost_unless_the_loop_is_unrolled():
    # The row's part of the address is loop invariant. The loop ends in its header, which runs once more than its body.
    before = SUM + PRODUCT
    iteration, load = ITERATION + VALUE + BRANCH, SIGN + SUM + SCALING
    assert overhead(runtime_range) == before + (COUNT + 1) * iteration + COUNT * load
    assert overhead(counter_alone) == (COUNT + 1) * (ITERATION + BRANCH)
    assert overhead(unrolled_range) == before + SCALING
    assert overhead(long_range) == 65 * COUNTED
    # The first comparison is of what is known before the kernel runs.
    # Numba makes the sum a 64-bit number, of which 32 bits are used.
    assert overhead(steps) == COUNT * (OPERATION["int32"] + BRANCH + STEP + OPERATION["int32"])


@cuda.jit
def chosen_index(x, out, count):
    total = float32(0)
    for k in range(COUNT):
        total += x[0, k if k % 2 else 3]
    out[0] = total


@cuda.jit
def swizzled(x, out, count):
    tile = cuda.shared.array((32, 32), float32)
    tid = cuda.threadIdx.x
    for k in range(COUNT):
        tile[k, tid] = 1
        tile[k, tid ^ k] = 1


def test_unrolled_loops():
    assert overhead(chosen_index) == 0, "index and condition are known, once the loop is gone"
    plain = SUM // 2 + SCALING // 2  # in shared memory addresses have 32 bits; computed once
    assert overhead(swizzled) == plain + COUNT * (OPERATION["int64"] + SUM // 2 + SCALING // 2)


@cuda.jit
def of_floats(x, out, count):
    out[3] = x[2, 1] / x[1, 2]


@cuda.jit
def of_whole_numbers(x, out, count):
    lane = uint32(cuda.threadIdx.x)
    out[3] = float32(uint32(uint32(lane // uint32(count)) % uint32(5)))


def test_quotients():
    assert overhead(of_floats) == QUOTIENT["fp32"][0]
    variable, constant = QUOTIENT["int64"]
    assert overhead(of_whole_numbers) == variable + constant + 2 * OPERATION["int32"]


@cuda.jit
def by_lanes(x, out, count):
    total = float32(0)
    for k in range(cuda.threadIdx.x):
        total += x[0, k]
    out[0] = total


def test_values_that_all_lanes_of_a_warp_share():
    def shared(kernel):
        return gpukit.trace(
            kernel[1, 32], np.ones((64, 64), np.float32), np.zeros(64, np.float32), COUNT
        ).shared_overhead

    assert shared(runtime_range) == (COUNT + 1) * (ITERATION + VALUE) + COUNT * SIGN
    assert shared(by_lanes) == shared(with_sign) == 0


def test_long_chains_do_not_exhaust_the_stack():
    lines = "\n".join(f"    k = (k * 3 + {n}) & 1023" for n in range(400))
    source = f"def long(x, out, count):\n    k = cuda.grid(1)\n{lines}\n    out[k & 63] = k\n"
    namespace = {"cuda": cuda}
    exec(compile(source, "<long>", "exec"), namespace)
    assert overhead(cuda.jit(namespace["long"])) >= 400 * OPERATION["int64"]


def test_estimates_are_near_recorded_counts():
    """Includes the kernels that the constants were fitted to."""
    counted = {predictions.key_of(r): r["each"] for r in results.load(predictions.RECORDED, case="instructions")}
    ratios = {}
    for case in predictions.cases(["matmul", "transpose"]):
        if case.text in counted and case.shape[0] != predictions.LADDER_SIZE and case.dtype == "float32":
            ((trace, grid),) = case.traced()
            found = trace.predict(grid=grid).instructions
            ratios[case.title] = counted[case.text][0] / found
    near = [title for title, ratio in ratios.items() if 1 / 1.5 <= ratio <= 1.5]
    assert len(near) >= 0.75 * len(ratios), ratios
    assert math.exp(np.mean(np.abs(np.log(list(ratios.values()))))) < 1.5
