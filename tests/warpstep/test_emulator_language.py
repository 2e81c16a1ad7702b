"""The kernel language on the emulator.

Each construct against plain Python or NumPy, with the results a device gives.
"""

import gc
import math
from collections import namedtuple
from enum import IntEnum

import numba.extending
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.cuda.random import init_xoroshiro128p_states_cpu, xoroshiro128p_dtype, xoroshiro128p_uniform_float32

from warpstep import KernelError, cuda
from warpstep._numba import NUMBA_ERRORS

RNG = np.random.default_rng(20261121)
FULL = 0xFFFFFFFF


def fill(shape, dtype=np.float64):
    """An output that no kernel would produce by accident."""
    return np.full(shape, -99, dtype)


# -- threads and blocks ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.integers(1, 4)] * 3), st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3)))
def test_indices_of_every_thread(grid, block):
    @cuda.jit
    def record(out):
        x, y, z = cuda.grid(3)
        t, b = cuda.threadIdx, cuda.blockIdx
        cell = out[z, y, x]
        cell[0], cell[1], cell[2] = t.x, t.y, t.z
        cell[3], cell[4], cell[5] = b.x, b.y, b.z
        cell[6] = cuda.gridsize(3)[0] + 1000 * cuda.blockDim.y + 10**6 * cuda.gridDim.z
        cell[7] = cuda.laneid + 100 * cuda.warpsize

    size = tuple(g * b for g, b in zip(grid, block, strict=True))
    out = fill((*size[::-1], 8), np.int64)
    record[grid, block](out)
    z, y, x = np.indices(size[::-1])
    for i, (axis, extent) in enumerate(zip((x, y, z), block, strict=True)):
        assert (out[..., i] == axis % extent).all()
        assert (out[..., 3 + i] == axis // extent).all()
    assert (out[..., 6] == size[0] + 1000 * block[1] + 10**6 * grid[2]).all()
    in_block = (z % block[2] * block[1] + y % block[1]) * block[0] + x % block[0]
    assert (out[..., 7] == in_block % 32 + 3200).all()


def test_a_grid_larger_than_a_batch_runs_every_block_once():
    @cuda.jit
    def count(hits):
        cuda.atomic.add(hits, cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y, 1)

    hits = np.zeros(70 * 50, np.int32)
    count[(70, 50), 96](hits)
    assert (hits == 96).all()


# -- control flow ------------------------------------------------------------------------------------------------------


def wander(n, i):
    """Every kind of control flow; the kernel below calls it as a device function, the test as Python."""
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        elif n % 3 == 0 and n > 30:
            n = n // 3 + 1
            continue
        else:
            n = 3 * n + 1
        steps += 1
        if steps > 40:
            break
    else:
        steps += 10_000
    for j in range(i % 5):
        if j == 2:
            continue
        for k in range(j, i % 7, 2):
            if k * j > 6:
                break
            steps += k
        else:
            steps += 100
        if steps % 11 == 0:
            return -steps
        steps += j
    return steps if i % 2 else steps * 2


wander_on_device = cuda.jit(device=True)(wander)


def test_divergent_control_flow():
    @cuda.jit
    def run(start, out):
        i = cuda.grid(1)
        if i >= start.size:
            return
        out[i] = wander_on_device(start[i], i)

    start = RNG.integers(1, 500, 700)
    out = fill(700, np.int64)
    run[3, 256](start, out)
    assert out.tolist() == [wander(int(n), i) for i, n in enumerate(start)]


def test_a_guard_keeps_a_thread_from_an_access_that_is_out_of_range():
    @cuda.jit
    def guarded(a, out):
        i = cuda.grid(1)
        out[i] = a[i] if i < a.size and a[i] > 2 else -1
        if i >= a.size or a[i] == 4:
            out[i] -= 1

    out = fill(64)
    guarded[2, 32](np.arange(5.0), out)
    assert out.tolist() == [-1, -1, -1, 3, 3] + [-2] * 59


def test_values_that_differ_by_branch_get_the_type_numba_gives_them():
    @cuda.jit
    def unify(out, which):
        x = 7
        if which > 0:
            x = 2.5
        out[0] = x // 2 + x / 2

    for which, expected in ((0, 3 + 3.5), (1, 1 + 1.25)):
        out = fill(1)
        unify[1, 1](out, which)
        assert out[0] == expected


def test_names_swapped_in_a_loop():
    @cuda.jit
    def swap(a, b, out):
        i = cuda.threadIdx.x
        source, target = a, b
        for _ in range(3):
            target[i] = source[i] + 1
            source, target = target, source
        p, q = i, 10 * i
        for _ in range(i):
            p, q = q, p
        out[i] = 1000 * source[i] + p

    out = fill(6)
    swap[1, 6](np.zeros(6), np.zeros(6), out)
    assert out.tolist() == [3000 + (i if i % 2 == 0 else 10 * i) for i in range(6)]


# -- functions ---------------------------------------------------------------------------------------------------------

SCALE = 3
TABLE = np.arange(10.0)
SHAPE = (4, 8)


@cuda.jit(device=True)
def area(width, height=SCALE):
    if width < 0:
        return -1
    return width * height


@cuda.jit("int64(int64)", device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


def test_device_functions_with_defaults_recursion_and_closures():
    offset = 5

    @cuda.jit(device=True)
    def both(x):
        return area(x), area(height=x, width=2) + offset

    @cuda.jit
    def call(out):
        i = cuda.threadIdx.x
        first, second = both(i - 1)
        out[i, 0], out[i, 1], out[i, 2] = first, second, fibonacci(i)

    out = fill((9, 3), np.int64)
    call[1, 9](out)
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21]
    assert out.tolist() == [[-1 if i == 0 else (i - 1) * 3, 2 * (i - 1) + 5, fib[i]] for i in range(9)]


def test_a_barrier_inside_a_device_function():
    @cuda.jit(device=True)
    def rotate(buffer, value):
        t = cuda.threadIdx.x
        buffer[t] = value
        cuda.syncthreads()
        result = buffer[(t + 1) % cuda.blockDim.x]
        cuda.syncthreads()
        return result

    @cuda.jit
    def twice(out):
        buffer = cuda.shared.array(64, np.int32)
        out[cuda.grid(1)] = rotate(buffer, rotate(buffer, cuda.grid(1)))

    out = fill(128, np.int64)
    twice[2, 64](out)
    assert (out == (np.arange(128) // 64) * 64 + (np.arange(64)[None].repeat(2, 0).ravel() + 2) % 64).all()


# -- memory ------------------------------------------------------------------------------------------------------------


def test_shared_arrays_static_two_on_a_line_and_dynamic():
    @cuda.jit
    def exchange(out):
        a, b = cuda.shared.array(SHAPE, np.float32), cuda.shared.array(SHAPE, np.int16)
        ints = cuda.shared.array(0, np.int32)
        floats = cuda.shared.array(0, np.float32)[32:]
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        t = y * 8 + x
        a[y, x], b[y, x], ints[t], floats[t] = t / 2, 10 * t, 100 * t, 0.25
        cuda.syncthreads()
        row = cuda.blockIdx.x
        out[row, t] = a[3 - y, 7 - x] + b[3 - y, x] + ints[31 - t] + floats[31 - t]
        if t == 0:
            out[row, 32] = len(ints)

    out = fill((3, 33))
    exchange[3, (8, 4), 0, 256](out)
    t = np.arange(32)
    expected = (31 - t) / 2 + 10 * ((3 - t // 8) * 8 + t % 8) + 100 * (31 - t) + 0.25
    assert (out[:, :32] == expected).all()
    assert (out[:, 32] == 64).all()


def test_shared_memory_starts_poisoned_in_every_block():
    @cuda.jit
    def leak(out):
        s = cuda.shared.array(1, np.float32)
        out[cuda.blockIdx.x] = s[0]
        s[0] = 1

    out = np.zeros(5, np.float32)
    leak[5, 1](out)
    assert np.isnan(out).all()


def test_local_arrays_are_private():
    @cuda.jit
    def local(out):
        t = cuda.grid(1)
        m = cuda.local.array((4, 3), np.float64)
        for i in range(4):
            for j in range(3):
                m[i, j] = i * t + j
        row = m[t % 4]
        row[1] = 100
        m[2, 1:] = 7
        total = 0.0
        for i in range(4):
            total += m[(i + t) % 4, t % 3]
        out[t] = total

    out = fill(90)
    local[3, 30](out)
    for t in range(90):
        m = np.array([[i * t + j for j in range(3)] for i in range(4)], float)
        m[t % 4, 1] = 100
        m[2, 1:] = 7
        assert out[t] == sum(m[(i + t) % 4, t % 3] for i in range(4))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_slices_and_views_of_any_layout(data):
    host = np.arange(7 * 9 * 4).reshape(7, 9, 4)
    steps = [data.draw(st.sampled_from([1, 2, 3])) for _ in range(3)]
    view = tuple(slice(data.draw(st.integers(0, 2)), None, s) for s in steps)
    order = data.draw(st.sampled_from(["C", "F"]))
    device = cuda.to_device(np.asarray(host, order=order))[view]
    expected = host[view]

    @cuda.jit
    def read(a, out):
        i, j, k = cuda.grid(3)
        if i < a.shape[0] and j < a.shape[1] and k < a.shape[2]:
            plane = a[:, j]
            out[i, j, k] = plane[i, k] + 1000 * a[i, j:, -1][0] + 10**6 * a.T[k, j, i]

    out = fill(expected.shape, np.int64)
    read[(2, 3, 1), (4, 4, 4)](device, out)
    assert (out == expected * (1 + 10**6) + 1000 * expected[:, :, -1:]).all()


def test_array_attributes_reshape_and_view():
    @cuda.jit
    def ask(a, out):
        out[0], out[1], out[2], out[3], out[4] = a.size, a.ndim, a.shape[1], a.strides[0], len(a)
        out[5] = a.reshape(6, 4)[5, 3]
        out[6] = a.reshape(24)[7]
        out[7] = a.view(np.int32)[0, 1]
        out[8] = a.itemsize

    a = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    out = fill(9, np.int64)
    ask[1, 1](a, out)
    assert out.tolist() == [24, 2, 6, 24, 4, 23, 7, int(a.view(np.int32)[0, 1]), 4]


def test_records_and_their_fields():
    particle = np.dtype(
        [("id", np.int32), ("mass", np.float64), ("spin", np.int8, (3,))]
    )  # packed: mass is not aligned

    @cuda.jit
    def move(p, q, out):
        i = cuda.grid(1)
        p[i].id = i
        p[i]["mass"] = i * 0.5
        p[i].spin[2] = i - 3
        q[i] = p[i]
        out[i] = p.mass[i] + p[i].spin[1] + p["id"][i]

    p, q, out = np.zeros(10, particle), np.zeros(10, particle), fill(10)
    p["spin"][:, 1] = 2
    move[1, 10](p, q, out)
    assert (out == np.arange(10) * 1.5 + 2).all()
    assert (q == p).all()
    assert p["spin"][4].tolist() == [0, 2, 1]


def test_constant_arrays_and_global_ones():
    @cuda.jit
    def read(out):
        i = cuda.threadIdx.x
        out[i] = cuda.const.array_like(TABLE)[i] + TABLE[9 - i]

    out = fill(10)
    read[1, 10](out)
    assert (out == 9).all()


def test_iteration_over_arrays_tuples_enumerate_and_zip():
    @cuda.jit
    def loop(a, out):
        i = cuda.threadIdx.x
        total = 0.0
        for j, v in enumerate(a):
            total += j * v
        for v, w in zip(a, a[1:]):  # noqa: B905 - Numba's zip has no strict
            total += v * w
        for v in (1, 2, 3):
            total += v
        choices = (1.5, 2.5, 3.5)
        out[i] = total + choices[i % 3]

    a = RNG.random(6)
    out = fill(6)
    loop[1, 6](a, out)
    expected = (np.arange(6) * a).sum() + (a[:-1] * a[1:]).sum() + 6 + np.array([1.5, 2.5, 3.5] * 2)
    assert np.allclose(out, expected, rtol=1e-14)


def test_tuples_named_tuples_enums_and_scalars_as_arguments():
    Point = namedtuple("Point", "x y")

    class Mode(IntEnum):
        ADD = 1
        MULTIPLY = 2

    @cuda.jit
    def use(pair, point, scalar, arrays, out):
        mode = Mode.MULTIPLY
        value = pair[0] + pair[1] if scalar == Mode.ADD else pair[0] * pair[1]
        out[0] = value + point.x * point.y + arrays[1][2] + mode
        out[1] = (2, 3) == (pair[0], 3)

    out = fill(2)
    use[1, 1]((4, 2.5), Point(2, 0.5), 2, (np.zeros(1), np.arange(3.0)), out)
    assert out.tolist() == [10 + 1 + 2 + 2, 0]


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_arithmetic_has_the_types_of_the_device():
    """Each pair.

    What the kernel stores, what a device stores. The comments say what NumPy or the simulator would get wrong.
    """

    @cuda.jit
    def compute(f, u, i32, out):
        out[0] = f[0] * 0.1  # a float literal is float64
        out[1] = i32[0] + 1  # int32 widens to int64
        out[2] = u[0] - np.uint8(3)  # unsigned subtraction wraps in 64 bits
        out[3], out[4], out[5] = 7 // -2, 7 % -2, -7 // 2
        out[6] = int(-2.7)
        out[7] = np.float32(1) / np.float32(3)
        out[8] = np.float16(1) / np.float16(3)
        out[9] = np.uint8(300) + np.int8(200)
        out[10] = 5 // u[1]  # u[1] is 0: integer division by zero gives 0
        out[11] = 1 << 40
        out[12] = f[0] ** 3 + 2**10 + i32[1] ** 2
        out[13] = round(2.5) + round(-3.5)
        out[14] = -5.5 % 2 + 5.5 // 2
        out[15] = ~i32[1] + True
        out[16] = max(f[0], 2.5) + min(i32[1], 7) + abs(-3)
        out[17] = divmod(-7, 3)[0] * 10 + divmod(-7, 3)[1]

    out = fill(18)
    compute[1, 1](np.array([3], np.float32), np.array([1, 0], np.uint8), np.array([2**31 - 1, 4], np.int32), out)
    expected = [
        np.float32(3) * 0.1,
        2.0**31,
        float(2**64 - 2),
        -4,
        -1,
        -4,
        -2,
        float(np.float32(1) / np.float32(3)),
        float(np.float16(1) / np.float16(3)),
        44 - 56,
        0,
        2.0**40,
        27 + 1024 + 16,
        2 - 4,
        0.5 + 2,
        -5 + 1,
        3 + 4 + 3,
        -30 + 2,
    ]
    assert out.tolist() == expected


UNARY = "ceil floor exp sqrt log log2 log10 log1p expm1 erf erfc gamma lgamma".split()
UNARY += "sin cos tan asin acos atan sinh cosh tanh asinh atanh".split()


@pytest.mark.parametrize("dtype, ulps", [(np.float32, 4), (np.float64, 2)])
@pytest.mark.parametrize("name", UNARY)
def test_math_functions(name, dtype, ulps):
    function = getattr(math, name)

    @cuda.jit
    def apply(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = function(x[i])

    x = RNG.uniform(0.05, 0.95, 50).astype(dtype)
    out = fill(50, dtype)
    apply[2, 32](x, out)
    expected = np.array([function(float(v)) for v in x])
    assert (np.abs(out - expected) <= ulps * np.spacing(np.abs(expected).astype(dtype))).all()


def test_bits_and_selection():
    @cuda.jit
    def bits(x, out):
        i = cuda.threadIdx.x
        v = x[i]
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = cuda.popc(v), cuda.clz(v), cuda.ffs(v), cuda.brev(v)
        out[i, 4] = cuda.selp(v > 100, cuda.threadIdx.x, cuda.threadIdx.y)
        out[i, 5] = v.bit_count()

    x = np.array([0, 1, 2**31, 2**32 - 1, 0b1011000], np.uint32)
    out = fill((5, 6), np.int64)
    bits[1, 5](x, out)
    for i, v in enumerate(int(n) for n in x):
        text = f"{v:032b}"
        low = (v & -v).bit_length()
        assert out[i].tolist() == [
            text.count("1"),
            32 - v.bit_length(),
            low,
            int(text[::-1], 2),
            i if v > 100 else 0,
            text.count("1"),
        ]


def test_a_fused_product_rounds_once():
    @cuda.jit
    def multiply(a, b, c, out):
        out[0] = cuda.fma(a[0], b[0], c[0])

    a, out = np.array([1 + 2**-12], np.float32), np.zeros(1, np.float32)
    multiply[1, 1](a, a, -(a * a), out)
    assert out == 2**-24


def test_cache_hints_change_nothing():
    @cuda.jit
    def copy(a, out):
        i = cuda.grid(1)
        out[0, i], out[1, i], out[2, i] = cuda.ldca(a, i), cuda.ldcg(a, i), cuda.ldcs(a, i)
        out[3, i], out[4, i] = cuda.ldlu(a, i), cuda.ldcv(a, i)
        cuda.stcg(out, (5, i), a[i])
        cuda.stcs(out, (6, i), a[i])
        cuda.stwb(out, (7, i), a[i])
        cuda.stwt(out, (8, i), a[i])

    a, out = RNG.integers(0, 99, 64), fill((9, 64), np.int64)
    copy[2, 32](a, out)
    assert (out == a).all()


def test_complex_numbers_and_vector_types():
    @cuda.jit
    def compute(z, out):
        v = cuda.float32x4(1, 2, 3, 4)
        w = cuda.float32x4(cuda.float32x2(v.x, v.w), 5, 6)
        out[0] = z[0] * z[1] + complex(w.y, w.z)

    out = np.zeros(1, np.complex128)
    compute[1, 1](np.array([1 + 2j, 3 - 1j]), out)
    assert out[0] == (1 + 2j) * (3 - 1j) + (4 + 5j)


# -- atomics, warps, barriers ------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 12), st.sampled_from([np.int32, np.uint32, np.int64, np.uint64]), st.randoms(use_true_random=False)
)
def test_atomics_and_their_old_values(buckets, dtype, random):
    @cuda.jit
    def histogram(x, totals, old, extremes):
        i = cuda.grid(1)
        if i < x.size:
            b = x[i] % totals.size
            old[i] = cuda.atomic.add(totals, b, x[i])
            cuda.atomic.max(extremes, 0, x[i])
            cuda.atomic.min(extremes, 1, x[i])
            cuda.atomic.xor(extremes, 2, x[i])
            cuda.atomic.or_(extremes, 3, x[i])
            cuda.atomic.and_(extremes, 4, x[i])

    x = np.array([random.randrange(1, 100) for _ in range(150)], dtype)
    totals, old = np.zeros(buckets, dtype), np.zeros(150, dtype)
    extremes = np.array([0, 1000, 0, 0, 127], dtype)
    histogram[3, 64](x, totals, old, extremes)
    bucket = x.astype(np.int64) % buckets
    assert (totals == np.bincount(bucket, x, buckets).astype(dtype)).all()
    assert extremes.tolist() == [
        x.max(),
        x.min(),
        np.bitwise_xor.reduce(x),
        np.bitwise_or.reduce(x),
        np.bitwise_and.reduce(x) & 127,
    ]
    for b in range(buckets):
        # In some order of the threads, each one's old value is the sum of those before it.
        mine = bucket == b
        order = np.argsort(old[mine], kind="stable")
        assert (old[mine][order] == np.r_[0, np.cumsum(x[mine][order])[:-1]].astype(dtype)).all()


def test_compare_and_swap_exchange_and_wrapping_counters():
    @cuda.jit
    def contend(slots, winner, counter):
        i = cuda.grid(1)
        if cuda.atomic.cas(slots, i % 5, 0, i + 1) == 0:
            winner[i] = 1
        cuda.atomic.inc(counter, 0, 9)
        cuda.atomic.dec(counter, 1, 9)
        cuda.atomic.exch(counter, 2, 77)

    slots, winner, counter = np.zeros(5, np.int32), np.zeros(128, np.int32), np.zeros(3, np.uint32)
    contend[2, 64](slots, winner, counter)
    assert winner.sum() == 5 and ((slots - 1) % 5 == np.arange(5)).all() and (winner[slots - 1] == 1).all()
    assert counter.tolist() == [128 % 10, (10 - 128 % 10) % 10, 77]


def test_float_atomics_treat_nan_as_the_device_does():
    @cuda.jit
    def extremes(x, out):
        i = cuda.grid(1)
        cuda.atomic.max(out, 0, x[i])
        cuda.atomic.nanmax(out, 1, x[i])
        cuda.atomic.max(out, 2, x[i])
        cuda.atomic.add(out, 3, 0.5)

    out = np.array([np.nan, np.nan, 0, 0], np.float32)
    extremes[1, 4](np.array([1, np.nan, 3, 2], np.float32), out)
    assert np.array_equal(out, np.array([np.nan, 3, 3, 2], np.float32), equal_nan=True)


@pytest.mark.parametrize("threads", [32, 96, 45])
def test_warp_operations(threads):
    @cuda.jit
    def exchange(x, out):
        t = cuda.threadIdx.x
        v = x[t]
        out[0, t] = cuda.shfl_sync(FULL, v, 3)
        out[1, t] = cuda.shfl_up_sync(FULL, v, 2)
        out[2, t] = cuda.shfl_down_sync(FULL, v, 5)
        out[3, t] = cuda.shfl_xor_sync(FULL, v, 1)
        out[4, t] = cuda.ballot_sync(FULL, v > 50)
        out[5, t] = cuda.any_sync(FULL, v == 7) + 2 * cuda.all_sync(FULL, v >= 0) + 4 * cuda.eq_sync(FULL, v < 1000)
        out[6, t] = cuda.match_any_sync(FULL, v % 4)
        mask, agree = cuda.match_all_sync(FULL, t // 32)
        out[7, t] = agree
        out[8, t] = cuda.activemask() if t % 2 else 0
        out[9, t] = cuda.lanemask_lt()
        cuda.syncwarp()

    x = RNG.integers(0, 100, threads).astype(np.int32)
    out = fill((10, threads), np.int64)
    exchange[1, threads](x, out)
    for t in range(threads):
        lane, first = t % 32, t - t % 32
        warp = x[first : first + 32]
        live = len(warp)

        def lane_value(source, own=x[t], warp=warp):
            return int(warp[source]) if 0 <= source < len(warp) else own

        def bits(truth):
            return sum(1 << i for i, yes in enumerate(truth) if yes)

        if live == 32:  # in a partial warp, lanes that do not exist give undefined values
            assert out[:4, t].tolist() == [
                lane_value(3),
                lane_value(lane - 2),
                lane_value(lane + 5),
                lane_value(lane ^ 1),
            ]
        assert out[4, t] == np.int64(np.uint32(bits(warp > 50)).view(np.int32))
        assert out[5, t] == (7 in warp) + 2 + 4
        assert out[6, t] == np.int64(np.uint32(bits(warp % 4 == x[t] % 4)).view(np.int32))
        assert out[7, t] == 1
        assert out[8, t] == (bits(np.arange(live) % 2) if t % 2 else 0)
        assert out[9, t] == (1 << lane) - 1


def test_warp_reduction_in_one_warp_of_a_divergent_block():
    @cuda.jit
    def reduce(x, out):
        t = cuda.threadIdx.x
        partial = cuda.shared.array(4, np.float32)
        v = x[cuda.grid(1)]
        for shift in (16, 8, 4, 2, 1):
            v += cuda.shfl_down_sync(FULL, v, shift)
        if t % 32 == 0:
            partial[t // 32] = v
        cuda.syncthreads()
        if t < 32:
            v = partial[t] if t < 4 else np.float32(0)
            for shift in (2, 1):
                v += cuda.shfl_down_sync(FULL, v, shift)
            if t == 0:
                out[cuda.blockIdx.x] = v

    x = RNG.integers(0, 50, 640).astype(np.float32)
    out = fill(5, np.float32)
    reduce[5, 128](x, out)
    assert (out == x.reshape(5, 128).sum(axis=1)).all()


def test_barriers_that_vote_count_only_living_threads():
    @cuda.jit
    def vote(out):
        t = cuda.threadIdx.x
        if t >= 50:
            return
        out[t, 0] = cuda.syncthreads_count(t % 2)
        out[t, 1] = cuda.syncthreads_and(int(t < 50))
        out[t, 2] = cuda.syncthreads_or(int(t == 3))

    out = fill((50, 3), np.int64)
    vote[1, 64](out)
    assert (out == [25, 1, 1]).all()


def test_tree_reduction_with_barriers_in_a_loop_that_differs_by_block():
    @cuda.jit
    def reduce(x, out):
        s = cuda.shared.array(128, np.float64)
        t = cuda.threadIdx.x
        total = 0.0
        for tile in range(cuda.blockIdx.x + 1):  # block b needs b + 1 rounds of barriers
            s[t] = x[tile * 128 + t]
            cuda.syncthreads()
            half = 64
            while half > 0:
                if t < half:
                    s[t] += s[t + half]
                cuda.syncthreads()
                half //= 2
            total += s[0]
            cuda.syncthreads()
        if t == 0:
            out[cuda.blockIdx.x] = total

    x = RNG.integers(0, 9, 7 * 128).astype(np.float64)
    out = fill(7)
    reduce[7, 128](x, out)
    assert (out == np.cumsum(x.reshape(7, 128).sum(axis=1))).all()


def test_grid_sync_over_many_blocks():
    @cuda.jit
    def shift(a, rounds):
        i = cuda.grid(1)
        grid = cuda.cg.this_grid()
        for _ in range(rounds):
            value = a[(i + 1) % a.size]
            grid.sync()
            a[i] = value
            grid.sync()

    a = np.arange(64 * 300)
    shift[300, 64](a, 3)
    assert (a == np.roll(np.arange(64 * 300), -3)).all()


def test_last_block_reduction_and_a_lock_between_blocks():
    @cuda.jit
    def total(x, partial, arrived, lock, out):
        last = cuda.shared.array(1, np.int32)
        t = cuda.threadIdx.x
        cuda.atomic.add(partial, cuda.blockIdx.x, x[cuda.grid(1)])
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            last[0] = cuda.atomic.add(arrived, 0, 1) == cuda.gridDim.x - 1
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            out[1] += 1  # under the lock: no other block is here
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
        cuda.syncthreads()
        if last[0] and t == 0:
            out[0] = 0
            for p in partial:
                out[0] += p

    x = RNG.integers(0, 9, 40 * 64).astype(np.float64)
    out = np.zeros(2)
    total[40, 64](x, np.zeros(40), np.zeros(1, np.int32), np.zeros(1, np.int32), out)
    assert out.tolist() == [x.sum(), 40]


def test_random_numbers_are_those_of_numba():
    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        for k in range(3):
            out[i, k] = xoroshiro128p_uniform_float32(states, i)

    states = np.zeros(64, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 7, 0)
    expected = []
    s0, s1 = (int(states[5][name]) for name in ("s0", "s1"))
    for _ in range(3):  # the published xoroshiro128+ recurrence, in Python's integers
        result = (s0 + s1) & (2**64 - 1)
        s1 ^= s0
        s0 = ((s0 << 55 | s0 >> 9) ^ s1 ^ (s1 << 14)) & (2**64 - 1)
        s1 = (s1 << 36 | s1 >> 28) & (2**64 - 1)
        expected.append(np.float32(result >> 11) * np.float32(2.0**-53))
    out = fill((64, 3), np.float32)
    draw[1, 64](states, out)
    assert out[5].tolist() == pytest.approx(expected, rel=1e-6)


def test_print_writes_what_the_device_prints(capsys):
    @cuda.jit
    def show(x):
        if cuda.threadIdx.x != 1:
            print("thread", cuda.threadIdx.x, "of block", cuda.blockIdx.x, x[0], cuda.threadIdx.x == 0, (1, 2.5))

    show[2, 3](np.array([1.5]))
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [
        f"thread {t} of block {b} 1.500000 {t == 0} (1, 2.500000)" for t, b in ((0, 0), (0, 1), (2, 0), (2, 1))
    ]


def test_globals_and_closures_are_read_when_a_kernel_is_first_compiled():
    def make(factor):
        def scale(out):
            out[0] = factor

        return scale

    function = make(2)
    kernel = cuda.jit(function)
    out = fill(1)
    kernel[1, 1](out)
    function.__closure__[0].cell_contents = 5
    kernel[1, 1](out)
    assert out[0] == 2  # compiled already
    cuda.jit(function)[1, 1](out)
    assert out[0] == 5  # a new kernel of the same function looks anew


# -- what is easy to get wrong -----------------------------------------------------------------------------------------


def test_names_and_words_of_the_kernel_are_never_taken_for_the_emulators(capsys):
    v1 = np.dtype([("v1", np.int32), ("v2", np.int32)])

    @cuda.jit
    def confuse(v3, out):
        v2 = cuda.threadIdx.x
        v4 = v2
        v3[v4].v1, v3[v4].v2 = 1, 2
        print("v1 v2 m L", v4)
        K = v3[v4].v1 * 10 + v3[v4].v2
        out[v4] = K

    out = fill(2, np.int64)
    confuse[1, 2](np.zeros(2, v1), out)
    assert out.tolist() == [12, 12]
    assert sorted(capsys.readouterr().out.splitlines()) == ["v1 v2 m L 0", "v1 v2 m L 1"]


def test_arrays_and_slices_chosen_by_thread():
    @cuda.jit
    def choose(a, b, out):
        t = cuda.threadIdx.x
        c = a if t % 2 else b
        c[t] += 100
        window = slice(0, 2) if t < 3 else slice(1, 3)
        out[t, 0], out[t, 1], out[t, 2], out[t, 3] = c[t], c.size, a[window][0], a[t::-1].size
        total = 0
        for v in a[: t - 1]:
            total += v
        out[t, 4] = total
        cuda.atomic.add(c, 0, 1)

    device = cuda.to_device(np.arange(12.0))
    out = fill((6, 5))
    choose[1, 6](device[:6], device[4:], out)  # the two overlap
    memory = np.arange(12.0)
    for t in range(6):
        memory[t if t % 2 else 4 + t] += 100
    assert out[:, 0].tolist() == [memory[t if t % 2 else 4 + t] for t in range(6)]
    assert out[:, 1].tolist() == [8, 6] * 3
    assert out[:, 2].tolist() == [memory[0]] * 3 + [memory[1]] * 3
    assert out[:, 3].tolist() == [1, 2, 3, 4, 5, 6]
    assert out[:, 4].tolist() == [memory[: max(0, t - 1) if t else 5].sum() for t in range(6)]
    memory[0] += 3
    memory[4] += 3
    assert (device.copy_to_host() == memory).all()


def test_groups_within_a_warp_work_on_their_own():
    @cuda.jit
    def groups(out):
        lane = cuda.laneid
        mine = np.uint32(0xFF) << np.uint32(lane // 8 * 8)
        if lane // 8 % 2:
            out[0, lane] = cuda.shfl_xor_sync(mine, lane, 3)
        else:
            out[0, lane] = cuda.shfl_xor_sync(mine, lane, 5)
        out[1, lane] = cuda.any_sync(mine, lane == 9)
        same = cuda.match_any_sync(0xFFFFFFFF, lane % 3)
        out[2, lane] = cuda.popc(cuda.ballot_sync(same, lane < 16))

    out = fill((3, 32), np.int64)
    groups[1, 32](out)
    lane = np.arange(32)
    assert (out[0] == np.where(lane // 8 % 2, lane ^ 3, lane ^ 5)).all()
    assert (out[1] == (lane // 8 == 1)).all()
    assert out[2].tolist() == [sum(n % 3 == i % 3 for n in range(16)) for i in range(32)]


def test_ranges_to_the_ends_of_their_type():
    @cuda.jit
    def count(start, stop, step, out):
        i = cuda.threadIdx.x
        turns = 0
        last = 0
        for k in range(start[i], stop[i], step[i]):
            turns += 1
            last = k
        out[i, 0], out[i, 1], out[i, 2] = turns, last, len(range(start[i], stop[i], step[i]))

    top, bottom = 2**63 - 1, -(2**63)
    cases = [(top - 5, top, 3), (bottom + 4, bottom, -3), (0, 10, 4), (5, 5, 1), (3, 9, -1), (9, 0, -2)]
    start, stop, step = (np.array(c, np.int64) for c in zip(*cases, strict=True))
    out = fill((6, 3), np.int64)
    count[1, 6](start, stop, step, out)
    for row, case in zip(out.tolist(), cases, strict=True):
        expected = range(*case)
        assert row == [len(expected), expected[-1] if expected else 0, len(expected)]


def test_local_arrays_of_a_recursion_and_atomics_on_a_field_of_records():
    @cuda.jit("int64(int64)", device=True)
    def deep(n):
        mine = cuda.local.array(1, np.int64)
        mine[0] = n
        if n > 0:
            deep(n - 1)
        return mine[0]

    pair = np.dtype([("key", np.int32), ("sum", np.float64)], align=True)

    @cuda.jit
    def run(records, out):
        t = cuda.threadIdx.x
        out[t] = deep(t)
        cuda.atomic.add(records["sum"], t % 2, t + 0.5)

    out, records = fill(8, np.int64), np.zeros(2, pair)
    run[1, 8](records, out)
    assert out.tolist() == list(range(8))
    assert records["sum"].tolist() == [0 + 2 + 4 + 6 + 2, 1 + 3 + 5 + 7 + 2] and (records["key"] == 0).all()


RESULTS = None


def test_a_device_array_captured_from_a_global_is_memory_to_write_to(monkeypatch):
    monkeypatch.setitem(globals(), "RESULTS", cuda.to_device(np.zeros(8)))  # alive whatever another test has freed

    @cuda.jit
    def fill(value):
        RESULTS[cuda.grid(1)] = value

    fill[2, 4](3.5)
    assert (RESULTS.copy_to_host() == 3.5).all()
    assert not hasattr(RESULTS, "__cuda_array_interface__")  # nobody else can follow an emulated address


def test_a_tuple_spread_over_arguments():
    @cuda.jit(device=True)
    def weigh(a, b, c, scale=2):
        return (a + 10 * b + 100 * c) * scale

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        pair = (i, i + 1)
        out[i] = weigh(*pair, 3) + max(*pair)

    @cuda.jit(device=True)
    def weigh_pair(pair):
        return weigh(*pair, 3)

    @cuda.jit
    def twice(out):
        i = cuda.grid(1)
        out[i] = weigh_pair((i, i + 1)) + weigh_pair((i + 1, i))

    out = np.zeros(8, np.int64)
    kernel[1, 8](out)
    i = np.arange(8)
    assert (out == (i + 10 * (i + 1) + 300) * 2 + i + 1).all()
    twice[1, 8](out)
    assert (out == (11 * (2 * i + 1) + 600) * 2).all()


def test_ufuncs_of_arrays_into_an_array():
    @cuda.jit
    def kernel(a, b, out, small, whole):
        np.arctan2(a, b, out)
        np.sin(a, small)
        np.maximum(a, 1, whole)

    a, b = RNG.normal(size=(3, 4)), RNG.normal(size=4).astype(np.float32)
    out, small, whole = fill((3, 4)), fill((3, 4), np.float32), fill((3, 4))
    kernel[1, 1](a, b, out, small, whole)
    np.testing.assert_array_equal(out, np.arctan2(a, b.astype(np.float64)))
    np.testing.assert_array_equal(small, np.sin(a).astype(np.float32))
    np.testing.assert_array_equal(whole, np.maximum(a, 1))


def always_inlined(x):
    """Stands for what Numba implements in Python (``@overload``), as the two below do."""


def inlined_by_cost(x):
    pass


def implemented_for_every_target(x):
    pass


@cuda.extending.overload(always_inlined, inline="always")
def _always_inlined(x):
    return lambda x: x + 1


@cuda.extending.overload(inlined_by_cost, inline=lambda call, caller, callee: True)
def _inlined_by_cost(x):
    return lambda x: x * 2


@numba.extending.overload(implemented_for_every_target)
def _implemented_for_every_target(x):
    return lambda x: always_inlined(x) - inlined_by_cost(x)


def test_overloads_however_they_are_inlined():
    @cuda.jit
    def kernel(out):
        out[0] = always_inlined(3)
        out[1] = inlined_by_cost(3.5)
        out[2] = implemented_for_every_target(3)

    out = np.zeros(3)
    kernel[1, 1](out)
    assert out.tolist() == [4, 7, -2]


def test_text_becomes_a_float_when_it_is_compiled():
    @cuda.jit
    def smallest(values, out):
        least = float("inf")
        for value in values:
            if value < least:
                least = value
        out[0], out[1], out[2], out[3] = least, float("-Infinity"), float("nan"), float(" 1e5")

    out = fill(4)
    smallest[1, 1](np.array([3.5, 2.5, 7]), out)
    np.testing.assert_array_equal(out, [2.5, -np.inf, np.nan, 1e5])


def test_arrays_are_unpacked():
    @cuda.jit
    def unpack(pairs, out):
        i = cuda.grid(1)
        row, column = pairs[i]
        first, second = pairs
        out[i] = row * 10 + column + first[0] * 100 + second[1] * 1000

    pairs = np.array([[1, 2], [3, 4]])
    out = fill(2)
    unpack[1, 2](pairs, out)
    assert out.tolist() == [4112, 4134]
    with pytest.raises(KernelError, match=r"3 elements of 'pairs' unpacked to 2 variables[\s\S]*row, column = pairs"):
        unpack[1, 2](np.ones((2, 3)), out)


@cuda.extending.overload(len)
def _length_of_a_grid(group):
    return (lambda group: cuda.gridsize(1)) if isinstance(group, type(cuda.types.grid_group)) else None


def test_functions_of_the_grid_group_can_be_overloaded():
    @cuda.jit
    def measure(out):
        out[cuda.grid(1)] = len(cuda.cg.this_grid())

    out = fill(8)
    measure[2, 4](out)
    assert (out == 8).all()


def half(x):
    """Has implementations for kernels only."""


def test_an_overload_counts_from_when_it_is_registered():
    @cuda.jit
    def halve(x, out):
        out[0] = half(x)

    @cuda.extending.overload(half)
    def _half_integer(x):
        return (lambda x: x // 2) if isinstance(x, cuda.types.Integer) else None

    out = np.zeros(1)
    halve[1, 1](7, out)
    assert out[0] == 3
    with pytest.raises(NUMBA_ERRORS, match="half"):
        halve[1, 1](7.0, out)

    @cuda.extending.overload(half)
    def _half_float(x):
        return (lambda x: x / 2) if isinstance(x, cuda.types.Float) else None

    halve[1, 1](7.0, out)
    assert out[0] == 3.5


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_of_garbage_is_as_it_was_after_compiling(enabled):
    @cuda.jit
    def write(x):
        x[0] = 1

    (gc.enable if enabled else gc.disable)()
    try:
        write[1, 1](np.zeros(1))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
