"""Machine code has the results of the lockstep program, and leaves to it whatever is not the same in any order."""

import cmath
import math
import random

import numpy as np
import pytest
import random_kernels

from warpstep import cuda
from warpstep.errors import KernelError
from warpstep.integers import ceil_div
from warpstep.threadwise import runner
from warpstep.threadwise.runner import Threadwise


@pytest.fixture
def native(monkeypatch):
    """Run natively whatever can be; returns a list that collects what came of each attempt."""
    attempts = []
    run = Threadwise.run

    def note(self, *args):
        attempts.append(run(self, *args))
        return attempts[-1]

    monkeypatch.setattr(Threadwise, "is_worth", lambda self, *_: self.possible)
    monkeypatch.setattr(Threadwise, "run", note)
    return attempts


def both_ways(monkeypatch, kernel, launch, *arrays_and_numbers):
    """Launch a kernel in lockstep and natively; returns the arguments after each."""
    results = []
    for worth in (False, True):
        monkeypatch.setattr(Threadwise, "is_worth", lambda self, *_, worth=worth: worth)
        arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays_and_numbers]
        kernel[launch](*arguments)
        results.append(arguments)
    (overload,) = kernel.overloads.values()
    assert overload.threadwise._variants, "it has not run natively"
    return results


def integers(a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        x, y = a[i], b[i]
        out[i, 0] = x // y
        out[i, 1] = x % y
        out[i, 2] = x * y - (x ^ ~y)
        out[i, 3] = x << (y & 71)
        out[i, 4] = x >> (y & 71)
        out[i, 5] = abs(x) + min(x, y) - max(x, np.int8(3))
        out[i, 6] = cuda.popc(x) + cuda.clz(x) + cuda.brev(np.uint64(x)) + cuda.ffs(x)
        out[i, 7] = np.uint8(x) + np.int16(y) + x**3


def floats(a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        x, y = a[i], b[i]
        out[i, 0] = x / y + x * y
        out[i, 1] = x // y
        out[i, 2] = x % y
        out[i, 3] = min(x, y) - max(y, x)
        out[i, 4] = math.sin(x) * math.exp(-abs(y)) + math.atan2(x, y)
        out[i, 5] = np.int32(x) + np.uint8(abs(x)) + np.int64(y)
        out[i, 6] = math.sqrt(abs(x)) + math.floor(y) - math.ceil(x) + round(x)
        out[i, 7] = x**2.5 + y**-3 + math.copysign(x, y) + math.erf(x)


def complexes(a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        z = complex(a[i], b[i])
        w = z * z + z / (1 + 2j) - z.conjugate()
        out[i, 0], out[i, 1] = w.real, w.imag
        out[i, 2] = abs(w)
        out[i, 3] = 1.0 if cmath.isfinite(w) else 0.0


VALUES = {
    integers: [0, 1, -1, 2, -7, 63, 64, -64, 1 << 40, (1 << 63) - 1, -(1 << 63)],
    floats: [0.0, -0.0, 1.5, -2.5, 3.0, -7.25, 1e300, 1e-310, math.inf, -math.inf, math.nan],
    complexes: [0.0, -0.0, 1.5, -2.5, 1e-3],
}


@pytest.mark.parametrize(
    "function, dtype",
    [(integers, np.int64), (floats, np.float64), (floats, np.float32), (complexes, np.float64)],
)
def test_arithmetic_is_that_of_lockstep_bit_by_bit(monkeypatch, function, dtype):
    with np.errstate(over="ignore"):
        values = np.array(VALUES[function], dtype)
    a, b = (m.reshape(-1) for m in np.meshgrid(values, values))
    lockstep, native = both_ways(
        monkeypatch, cuda.jit(function), (ceil_div(a.size, 32), 32), a, b, np.zeros((a.size, 8), dtype)
    )
    # NumPy's loops may fuse the product of complex numbers.
    tolerance = 1e-14 if function is complexes else 0
    np.testing.assert_allclose(native[2], lockstep[2], rtol=tolerance, atol=tolerance)


@cuda.jit
def conditional_walk(table, starts, steps, out):
    i = cuda.grid(1)
    history = cuda.local.array(8, np.int32)
    if i >= starts.size:
        return
    at = starts[i]
    for step in range(steps):
        history[step % 8] = at
        row = table[at]
        at = row[step % 2] if row[0] != row[1] else (at + 1) % table.shape[0]
    total = 0
    for k in range(min(steps, 8)):
        total += history[-k] * (k + 1)
    out[i, 0], out[i, 1] = at, total


def test_loops_local_arrays_rows_and_negative_indices(monkeypatch):
    generator = np.random.default_rng(7)
    table = generator.integers(0, 50, (50, 2), np.int32)
    starts = generator.integers(0, 50, 100, np.int32)
    lockstep, native = both_ways(
        monkeypatch, conditional_walk, (4, 32), table, starts, 37, np.zeros((100, 2), np.int64)
    )
    np.testing.assert_array_equal(native[3], lockstep[3])


def test_random_numbers_histograms_and_records(monkeypatch):
    @cuda.jit
    def draw(states, counts, means):
        i = cuda.grid(1)
        total = 0.0
        for _ in range(50):
            u = cuda.random.xoroshiro128p_uniform_float32(states, i)
            cuda.atomic.add(counts, int(u * 10), 1)
            total += u
        means[i] = total / 50

    states = cuda.random.create_xoroshiro128p_states(64, seed=3).copy_to_host()
    arguments = states, np.zeros(10, np.int32), np.zeros(64)
    lockstep, native = both_ways(monkeypatch, draw, (2, 32), *arguments)
    for left, right in zip(lockstep, native, strict=True):
        np.testing.assert_array_equal(left, right)


@cuda.jit
def lost_updates(out):
    out[0] += 1


@cuda.jit
def smooth_in_place(u):
    i = cuda.grid(1)
    if 0 < i < u.size - 1:
        u[i] = (u[i - 1] + u[i + 1]) / 2


@cuda.jit
def reverse_in_place(u):
    i = cuda.grid(1)
    u[i] = u[u.size - 1 - i]


@pytest.mark.parametrize("kernel", [lost_updates, smooth_in_place, reverse_in_place])
def test_threads_that_meet_what_others_wrote_run_in_lockstep(native, kernel):
    before = np.arange(64.0) ** 2
    after = before.copy()
    kernel[2, 32](after)
    assert native == [False]
    lockstep = before.copy()
    kernel[2, 32](lockstep)  # not tried natively again
    assert native == [False]
    np.testing.assert_array_equal(after, lockstep)


@cuda.jit
def relax(distance, k):
    i, j = cuda.grid(2)
    if i < distance.shape[0] and j < distance.shape[0]:
        way = distance[i, k] + distance[k, j]
        if way < distance[i, j]:
            distance[i, j] = way


@cuda.jit
def exchange(values, j, k):
    i = cuda.grid(1)
    other = i ^ j
    if other > i and (values[i] > values[other]) == (i & k == 0):
        values[i], values[other] = values[other], values[i]


def test_launches_whose_threads_share_an_array_without_a_conflict_stay_native(native):
    generator = np.random.default_rng(2)
    distance = generator.random((20, 20))
    np.fill_diagonal(distance, 0)
    expected = distance.copy()
    for k in range(20):
        relax[(2, 2), (16, 16)](distance, k)
        expected = np.minimum(expected, expected[:, k : k + 1] + expected[k : k + 1])
    np.testing.assert_array_equal(distance, expected)
    values = generator.permutation(128)
    k = 2
    while k <= 128:
        j = k // 2
        while j:
            exchange[4, 32](values, j, k)
            j //= 2
        k *= 2
    assert values.tolist() == list(range(128))
    assert all(native) and len(native) == 20 + 28


def test_an_error_is_the_one_of_lockstep_and_earlier_launches_stand(native):
    @cuda.jit
    def shift(a, by):
        i = cuda.grid(1)
        a[i + by] += 1.0

    a = np.zeros(32)
    shift[1, 32](a, 0)
    with pytest.raises(KernelError, match=r"index 32 is out of bounds.*\n.*thread \(30, 0, 0\), the first of 2"):
        shift[1, 32](a, 2)
    assert native == [True, False] and set(a.tolist()) == {1.0}


@pytest.mark.parametrize("capacity", [10, 400])
@pytest.mark.parametrize("turns", [40, 41])
def test_stores_to_a_large_array_are_undone_from_a_log(native, monkeypatch, capacity, turns):
    """Whether the log is long enough or not; at an error lockstep begins with what the arrays held before."""
    monkeypatch.setattr(runner, "MAX_LOG", capacity)

    @cuda.jit
    def bump(sums, large, turns):
        for i in range(turns):
            sums[i % 7] += i
            large[i + 960] = sums[i % 7] > 9

    def launch():
        sums, large = cuda.to_device(np.arange(7.0)), cuda.to_device(np.zeros(1000))
        try:
            bump[1, 1](sums, large, turns)
        except KernelError as error:
            assert turns == 41 and "index 1000" in str(error)
        return [*sums.copy_to_host(), *large.copy_to_host()]

    natively = launch()
    assert native == [turns == 40]
    monkeypatch.setattr(Threadwise, "is_worth", lambda *_: False)
    assert natively == launch()


def test_endless_native_loops_are_stopped_and_named(native, monkeypatch):
    monkeypatch.setattr(runner, "TURNS_FACTOR", 1 / 50)

    @cuda.jit
    def spin(flag):
        while flag[0] == 0:
            pass

    with pytest.raises(KernelError, match="without any change"):
        spin[1, 32](np.zeros(1, np.int32))
    assert native == [False]


def test_a_long_launch_goes_on_natively_by_itself():
    @cuda.jit
    def collatz(turns):
        n = cuda.grid(1) + 1
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        turns[cuda.grid(1)] += count

    turns = np.zeros(1 << 15, np.int64)
    collatz[128, 256](turns)
    (overload,) = collatz.overloads.values()
    assert overload.threadwise._variants
    assert turns[26] == 111 and turns.max() == 307


@pytest.mark.parametrize("seed", (9, 10))
def test_random_kernels_agree_bit_by_bit(native, monkeypatch, seed):
    case = random_kernels.independent(random.Random(seed), "random")
    natively = case.run(cuda)
    assert native == [True], case.source
    monkeypatch.setattr(Threadwise, "is_worth", lambda *_: False)
    for name, array in case.run(cuda).items():
        np.testing.assert_array_equal(natively[name], array, name)


def test_threads_that_read_what_others_write_by_iterating():
    """Every way to read an array counts, not indices alone."""

    @cuda.jit
    def totals(a, out):
        i = cuda.grid(1)
        total = 0
        for value in a:
            total += value
        if i == 5:
            a[i] = 100
        out[i] = total

    uses = totals.compile("(int64[:], int64[:])").threadwise.uses
    assert uses[0].is_shared((1, 1, 1), (64, 1, 1)) and not uses[1].reads
