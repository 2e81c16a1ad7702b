"""What used to pass silently: wrong kernels that a launch must stop or a trace must report, and their correct twins."""

import contextlib
import linecache
import threading
import time

import numpy as np
import pytest
from numba import from_dtype, int32

import gpukit
import warpstep
from warpstep import cuda  # the emulator, also on a machine with a GPU: some of these loops never end
from warpstep.compiler.loops import Loops
from warpstep.errors import KernelError
from warpstep.machine import progress


def code(found):
    return linecache.getline(found.filename, found.line).strip()


def findings(launch, *args):
    return gpukit.trace(launch, *args).findings


# -- blocks that return before the grid meets --------------------------------------------------------------------------


@cuda.jit
def ragged_grid(a, n):
    i = cuda.grid(1)
    if i >= n:
        return
    a[i] = i
    cuda.cg.this_grid().sync()
    a[(i + 1) % n] += 1


@cuda.jit
def guarded_grid(a, n):
    i = cuda.grid(1)
    if i < n:
        a[i] = i
    cuda.cg.this_grid().sync()
    if i < n:
        a[(i + 1) % n] += 1


@pytest.mark.parametrize(("blocks", "n"), [(6, 128), (3, 128), (8, 100)])
def test_blocks_that_return_before_the_grid_meets(blocks, n):
    gone = [(b, 0, 0) for b in range(-(-n // 64), blocks)]
    with pytest.raises(KernelError) as raised:
        ragged_grid[blocks, 64](np.zeros(n, np.int32), n)
    assert raised.value.kind == "barrier-divergence" and raised.value.block == gone[0]
    assert "sync()" in code(raised.value) and str(gone[0]) in str(raised.value)
    (found,) = findings(ragged_grid[blocks, 64], np.zeros(n, np.int32), n)
    assert found.kind == "barrier-divergence" and found.block == gone[0] and "sync()" in code(found)
    assert all(str(block) in found.message for block in gone[:3])
    assert found.count == 64 * len(gone) and found.cure


def test_grids_that_meet_whole_or_without_idle_threads_of_a_block():
    for kernel, blocks in ((guarded_grid, 6), (ragged_grid, 2)):
        out = np.zeros(100, np.int32)
        kernel[blocks, 64](out, 100)
        assert (out == np.arange(100) + 1).all()
        assert not findings(kernel[blocks, 64], np.zeros(100, np.int32), 100)


def test_a_block_that_returns_while_others_wait_for_the_grid():
    @cuda.jit
    def late(a):
        grid = cuda.cg.this_grid()
        for k in range(3):
            if cuda.blockIdx.x == 1 and k == 2:
                return
            a[cuda.grid(1)] += 1
            grid.sync()

    with pytest.raises(KernelError, match=r"block \(1, 0, 0\) returned before the grid's sync"):
        late[3, 32](np.zeros(96))


# -- threads that synchronise one by one -------------------------------------------------------------------------------

READ, WRITE, ADD, FENCE = range(1, 5)
CELLS = 6


@cuda.jit
def interpret(memory, kinds, cells, masks, in_shared, out):
    """Do what arrays say: in each step every thread does one thing, then it meets those that its mask names."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    shared = cuda.shared.array(CELLS, int32)
    if t == 0:
        for k in range(CELLS):
            shared[k] = 0
    cuda.syncthreads()
    for step in range(kinds.shape[0]):
        kind, cell = kinds[step, b, t], cells[step, b, t]
        if kind == READ:
            out[step, b, t] = shared[cell] if in_shared else memory[cell]
        elif kind == WRITE:
            if in_shared:
                shared[cell] = cuda.grid(1) + 1000 * step
            else:
                memory[cell] = cuda.grid(1) + 1000 * step
        elif kind == ADD:
            if in_shared:
                cuda.atomic.add(shared, cell, 1)
            else:
                cuda.atomic.add(memory, cell, 1)
        elif kind == FENCE:
            cuda.threadfence()
        if masks[step, b, t] == -1:
            cuda.syncthreads()
        elif masks[step, b, t]:
            cuda.syncwarp(masks[step, b, t])


def races_of_clocks(kinds, cells, masks, in_shared):
    """The pairs of steps that race, by vector clocks: ``clock[i][j]`` is the last step of j that i knows of."""
    steps, blocks, threads = kinds.shape
    everyone = [(b, t) for b in range(blocks) for t in range(threads)]
    clock = {i: dict.fromkeys(everyone, -1) for i in everyone}
    fenced, flags, past, found = {}, {}, {}, set()

    def join(target, *others):
        for other in others:
            for j, step in other.items():
                target[j] = max(target.get(j, -1), step)

    for step in range(steps):
        for kind in (READ, WRITE, ADD, FENCE):
            for i in everyone:
                if kinds[step][i] != kind:
                    continue
                place = int(cells[step][i]), i[0] if in_shared else 0
                clock[i][i] = step
                if kind == FENCE:
                    fenced[i] = dict(clock[i])
                    continue
                for j, earlier, what in past.setdefault(place, []):
                    if j != i and {kind, what} not in ({READ}, {ADD}) and clock[i][j] < earlier:
                        found.add((earlier, step))
                past[place].append((i, step, kind))
                if kind == ADD:
                    join(clock[i], flags.get(place, {}))
                    join(flags.setdefault(place, {}), fenced.get(i, {}))
        for i in everyone:
            group = [j for j in everyone if j[0] == i[0] and masks[step][i] == -1]
            group += [
                j
                for j in everyone
                if masks[step][i] > 0 and j[0] == i[0] and j[1] // 32 == i[1] // 32 and masks[step][i] >> j[1] % 32 & 1
            ]
            if group and i == group[0]:
                known = {}
                join(known, *(clock[j] for j in group))
                for j in group:
                    clock[j] = dict(known)
    return found


def partial_program(rng, kinds_of_step):
    """A random program of few actors; in most steps, each warp falls into groups that meet.

    In every other one there is one write, at the end, of what many have read.
    """
    one_write = rng.random() < 0.5
    steps = int(rng.integers(2, 4)) if one_write else int(rng.integers(4, 10))
    blocks, threads = int(rng.integers(1, 3)), int(rng.choice([8, 33, 48]))
    shape = (steps, blocks, threads)
    kinds, cells = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    masks = np.zeros(shape, np.int64)
    actors = rng.choice(threads, int(rng.integers(3, 7)), replace=False)
    for step in range(steps):
        kind, cell, block = rng.choice(kinds_of_step), rng.integers(CELLS), rng.integers(blocks)
        for t in rng.permutation(actors)[: rng.integers(1, 5 if kind == READ else 2)]:
            kinds[step, block, t], cells[step, block, t] = kind, rng.choice([0, 0, 1, cell])
        if one_write:
            kinds[step], cells[step] = 0, 0
            if step == steps - 1:
                kinds[step, 0, actors[0]] = WRITE
            else:
                kinds[step, 0, actors] = READ
        if rng.random() < 0.08:
            masks[step] = -1
        elif rng.random() < 0.7:
            for block in range(blocks):
                groups = rng.integers(0, rng.integers(1, 4), threads)
                for t in range(threads):
                    warp = t // 32 * 32
                    masks[step, block, t] = sum(
                        1 << k - warp for k in range(warp, min(warp + 32, threads)) if groups[k] == groups[t]
                    )
    return kinds, cells, masks


def compare_with_clocks(rng, kinds_of_step):
    kinds, cells, masks = partial_program(rng, kinds_of_step)
    in_shared, out = bool(rng.integers(2)), np.zeros(kinds.shape, np.int32)
    launch = interpret[kinds.shape[1:]]
    found = findings(launch, np.zeros(CELLS, np.int32), kinds, cells, masks, in_shared, out)
    assert {f.kind for f in found} <= {"race"}
    expected = races_of_clocks(kinds, cells, masks, in_shared)
    assert bool(found) == bool(expected), (expected, found)
    return bool(found)


def test_races_where_any_lanes_of_a_warp_meet():
    rng = np.random.default_rng(8)
    found = [compare_with_clocks(rng, [READ, READ, READ, WRITE, ADD]) for _ in range(100)]
    assert 25 < sum(found) < 90


def test_races_where_readers_raise_flags():
    rng = np.random.default_rng(9)
    found = [compare_with_clocks(rng, [READ, READ, WRITE, ADD, FENCE]) for _ in range(60)]
    assert 15 < sum(found) < 55


@pytest.mark.parametrize("missing", range(6))
def test_each_of_many_readers_counts(missing):
    """Lanes 1 to 6 read what lane 0 then writes; lane 0 meets all of them but one."""

    @cuda.jit
    def kernel(out, missing, skip):
        t = cuda.threadIdx.x
        s = cuda.shared.array(1, int32)
        if t == 0:
            s[0] = 1
        cuda.syncthreads()
        if 0 < t < 7:
            out[t] = s[0]
        mask = 0x7F if skip < 0 else 0x7F & ~(2 << skip)
        if mask >> t & 1 and t < 7:
            cuda.syncwarp(mask)
        if t == 0:
            s[0] = 2  # race

    (found,) = findings(kernel[2, 32], np.zeros(32, np.int32), 1, missing)
    assert found.kind == "race" and "# race" in code(found) and set(found.threads) == {(0, 0, 0), (missing + 1, 0, 0)}
    assert not findings(kernel[1, 32], np.zeros(32, np.int32), 1, -1)


def test_warps_meet_in_some_blocks_before_any_uses_shared_memory():
    @cuda.jit
    def kernel(out):
        i, t = cuda.grid(1), cuda.threadIdx.x
        s = cuda.shared.array(64, int32)
        if i < out.size:
            cuda.syncwarp()
            s[t ^ 1] = i
            cuda.syncwarp()
            out[i] = s[t]

    out = np.zeros(160, np.int32)
    assert not findings(kernel[3, 64], out)
    assert (out == np.arange(160) ^ 1).all()


# -- records -----------------------------------------------------------------------------------------------------------

PAIR = np.dtype([("a", np.int32), ("b", np.float64)], align=True)
PAIR_TYPE = from_dtype(PAIR)


@cuda.jit
def write_records(r, q, how, out):
    s = cuda.shared.array(4, PAIR_TYPE)
    t = cuda.threadIdx.x
    if how == 0:
        r[0].a = t  # wrong 0
    elif how == 1:
        s[0].b = t  # wrong 1
    elif how == 2:
        r[0] = q[t]  # wrong 2
    elif how == 3:
        s[0] = q[t]  # wrong 3
    elif how == 4:  # the same value, by all threads and at two lines
        r[0].a = 7
        if t < 32:
            r[0].a = 7
        s[1].b = 1.5
        if t >= 32:
            s[1].b = 1.5
        r[1].b = np.nan
    elif how == 5:  # fields of their own
        if t == 0:
            r[0].a = 1
        if t == 40:
            r[0].b = 2
    elif how == 6:
        r[0].a = t // 32
        r[0].a = 5  # wrong 6
    elif how == 7:
        if t < 4:
            s[t] = q[t]
        cuda.syncthreads()
        out[t] = s[t % 4].b


def records_launch(how, blocks=1):
    q = np.zeros(64, PAIR)
    q["a"], q["b"] = np.arange(64), np.arange(64) / 2
    return write_records[blocks, 64], np.zeros(4, PAIR), q, how, np.zeros(64)


@pytest.mark.parametrize("how", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("blocks", [1, 3])
def test_races_through_fields_of_records(how, blocks):
    found = findings(*records_launch(how, blocks))
    assert found and {f.kind for f in found} == {"race"}
    assert any(f"# wrong {how}" in code(f) and len(f.threads) == 2 for f in found)
    array = "s" if how in (1, 3) else "r"
    assert all(f.array == array and f"a field of {array}[0]" in f.message for f in found)


@pytest.mark.parametrize("how", [4, 5, 7])
def test_records_without_races(how):
    assert not findings(*records_launch(how))


@cuda.jit
def local_records(out, how):
    r = cuda.local.array(3, PAIR_TYPE)
    t = cuda.threadIdx.x
    r[1].a = t
    if how == 0:
        out[t] = r[1].b  # wrong 0
    elif how == 1:
        out[t] = r[t % 3].a  # wrong 1
    elif how == 2:
        out[t] = r[1].a
        r[1].b = 2
        r[2] = r[1]
        out[t] += r[2].b


@pytest.mark.parametrize(("how", "missing"), [(0, 64), (1, 43), (2, 0)])
def test_fields_of_local_records_that_nobody_wrote(how, missing):
    found = findings(local_records[1, 64], np.zeros(64), how)
    assert len(found) == bool(missing)
    for f in found:
        assert (f.kind, f.array, f.count) == ("uninitialised-read", "r", missing) and f"# wrong {how}" in code(f)
        assert f"a field of r[{1 - how}] (local)" in f.message


# -- shuffles from lanes that take no part -----------------------------------------------------------------------------


@cuda.jit
def shuffles(out, how):
    t = cuda.threadIdx.x
    v = t
    if t < 16:
        if how == 0:
            v = cuda.shfl_sync(0xFFFF, t, t + 16)  # wrong 0
        elif how == 1:
            v = cuda.shfl_xor_sync(0xFFFF, t, 16)  # wrong 1
        elif how == 2:
            v = cuda.shfl_sync(0xFFFF, t, 20 if t == 3 else t)  # wrong 2
        elif how == 3:
            v = cuda.shfl_down_sync(0xFFFF, t, 16)  # wrong 3
        elif how == 4:
            v = cuda.shfl_sync(0xFFFF, t, 15 - t) + cuda.shfl_xor_sync(0xFFFF, t, 8)
        elif how == 5:
            step = 8
            while step:
                v += cuda.shfl_down_sync(0xFFFF, v, step)
                step //= 2
            v = cuda.shfl_sync(0xFFFF, v, 0)
        elif how == 6:
            for k in range(4):
                before = cuda.shfl_up_sync(0xFFFF, v, 1 << k)
                if t >= 1 << k:
                    v += before
    elif how == 7:
        before = cuda.shfl_up_sync(0xFFFF0000, v, 1)
        if t > 16:
            v += before
    out[t] = v


@pytest.mark.parametrize(("how", "count", "lane"), [(0, 16, 16), (1, 16, 16), (2, 1, 20), (3, 16, 16)])
def test_a_shuffle_from_a_lane_that_the_mask_does_not_name(how, count, lane):
    (found,) = findings(shuffles[1, 32], np.zeros(32, np.int64), how)
    assert (found.kind, found.count) == ("barrier-divergence", count) and f"# wrong {how}" in code(found)
    assert f"from lane {lane} of its warp, which the mask does not name" in found.message and "mask" in found.cure
    assert found.threads[0] == (3 if how == 2 else 0, 0, 0)


@pytest.mark.parametrize("how", [4, 5, 6, 7])
def test_shuffles_within_the_mask(how):
    assert not findings(shuffles[1, 32], np.zeros(32, np.int64), how)


# -- what a race's message says ----------------------------------------------------------------------------------------


@cuda.jit
def send(data, flag, out, where):
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t
        if where == 0:
            cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            if where == 1:
                cuda.threadfence()
            cuda.atomic.add(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = data[t]


def test_a_fence_before_the_barrier_belongs_behind_it():
    data = np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
    (found,) = findings(send[2, 64], *data, 0)
    assert found.kind == "race" and "out[t] = data[t]" in code(found)
    assert "between the cuda.syncthreads() and the atomic operation" in found.cure
    assert not findings(send[2, 64], np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32), 1)


def test_an_atomic_operation_changes_what_another_thread_writes():
    @cuda.jit
    def mixed(count, first):
        if cuda.threadIdx.x == 40 and first:
            count[0] = 1
        if cuda.threadIdx.x < 32:
            cuda.atomic.add(count, 0, 1)
        if cuda.threadIdx.x == 40 and not first:
            count[0] = 1

    for first, words in ((False, ("writes count[0]", "changes it")), (True, ("changes count[0]", "writes it"))):
        (found,) = findings(mixed[1, 64], np.zeros(1, np.int32), first)
        assert found.kind == "race" and all(word in found.message for word in words) and "reads" not in found.message


# -- loops that never end ----------------------------------------------------------------------------------------------


@cuda.jit
def endless(a, n, how):
    i = cuda.grid(1)
    if how == 0:
        while i < n:  # endless 0
            a[i] = 2
    elif how == 1:
        while i < n:  # endless 1
            total = 0
            for k in range(300):
                total += k
            a[i] = total
    elif how == 2:
        while i >= 0:  # endless 2
            i = (i + 1) % 7
            a[0] = 1
    elif how == 3:
        while cuda.atomic.max(a, 0, 0) < 5:  # endless 3
            cuda.syncwarp()
    elif how == 4:
        total = 0
        while i < n:  # endless 4
            total += a[i] + 1
        a[0] = total
    elif how == 5:
        while a[i] < n:  # endless 5
            for _ in range(1, 300):
                a[i] += 1
            a[i] = 0


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("how", range(6))
def test_a_loop_whose_state_repeats_is_named(how, traced):
    launch = endless[4, 64]
    with pytest.raises(KernelError) as raised:
        if traced:
            gpukit.trace(launch, np.zeros(1024, np.int64), 200, how)
        else:
            launch(np.zeros(1024, np.int64), 200, how)
    assert raised.value.kind == "no-progress" and f"# endless {how}" in code(raised.value)
    assert any(words in str(raised.value) for words in ("without any change", "will go round more than"))


def test_a_long_loop_that_stores_the_same_value_for_a_while_ends():
    @cuda.jit
    def patient(a, n):
        for k in range(n):
            a[0] = k // 20_000

    out = np.zeros(1, np.int64)
    patient[1, 1](out, 50_000)
    assert out[0] == 2


@cuda.jit
def advance(start, step, bound, how, cells, turns):
    t = cuda.threadIdx.x
    x, n = start + t, 0
    if how == 0:
        while x < bound:
            x += step
            n += 1
    elif how == 1:
        while x != bound:
            if x % 2 == 0:
                x += step
            else:
                x -= 2 * step + 1
            n += 1
    elif how == 2:
        while np.int8(x) > np.int8(bound):
            x = np.int8(x * step + 1) & np.int8(99)
            n += 1
    elif how == 3:
        cells[0] = start
        while cells[0] <= bound or cells[1 + t % 3] < 0:
            cells[0] += step
            cells[1 + (n + t) % 3] -= 1
            n += 1
    elif how == 4:
        cells[t] = start
        while cells[t] > bound:
            cuda.atomic.add(cells, t, step)
            n += 1
    elif how == 5:
        y = 0.1 * start
        while y < bound:
            y += 0.25 * step
            n += 1
    turns[t] = n


@pytest.mark.parametrize(("how", "certain"), list(enumerate((2, 2, 0, 1, 2, 3))))
def test_forecasts_of_loops_are_right(how, certain, monkeypatch):
    """A loop that is said to go round 300 times more does so."""
    forecasts = []

    def record(self, header, turns, *state):
        forecasts.append(outlasts(self, header, 300, *state))
        return False

    outlasts = Loops.outlasts
    monkeypatch.setattr(Loops, "outlasts", record)
    monkeypatch.setattr(progress, "FORECAST_DELAY", 0)
    before = warpstep.set_loop_limit(1000)
    rng = np.random.default_rng(how)
    try:
        for _ in range(15):
            start, step = rng.integers(-30, 30), rng.integers(-3, 4)
            bound = rng.integers(-1500, 1500) // 10 ** rng.integers(3)
            turns = np.full(2, -1)
            forecasts.append(False)
            with contextlib.suppress(KernelError):
                advance[1, 2](start, step, bound, how, np.zeros(8, np.int64), turns)
            if forecasts[-1]:
                assert turns.max() < 0 or turns.max() >= 64 + 300, (start, step, bound)
    finally:
        warpstep.set_loop_limit(before)
    assert sum(forecasts) >= certain


def test_loops_beside_what_ends_them():
    @cuda.jit
    def beat(flag, count, out):
        t = cuda.threadIdx.x
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                cuda.atomic.add(count, 0, 1)
        elif t == 32:
            while cuda.atomic.add(count, 0, 0) < 200:
                pass
            cuda.atomic.exch(flag, 0, 1)
        out[t] = 1
        k = 0
        while out[t] == 1:
            k += 1
            if k == 500:
                out[t] = 2

    out = np.zeros(64)
    beat[1, 64](np.zeros(1, np.int32), np.zeros(1, np.int32), out)
    assert np.all(out == 2)


def test_a_mutex_that_every_lane_of_a_warp_takes():
    @cuda.jit
    def count(mutex, out, fence):
        spins = 0
        while cuda.atomic.cas(mutex, 0, 0, 1) != 0:
            spins += 1
        out[0] += 1
        out[1] = max(out[1], spins)
        if fence:
            cuda.threadfence()
        cuda.atomic.exch(mutex, 0, 0)

    out = np.zeros(2, np.int64)
    count[5, 32](np.zeros(1, np.int32), out, True)
    assert out[0] == 160 and out[1] > 0
    assert not findings(count[2, 32], np.zeros(1, np.int32), np.zeros(2, np.int64), True)
    found = findings(count[2, 32], np.zeros(1, np.int32), np.zeros(2, np.int64), False)
    assert {f.kind for f in found} == {"race"}


@cuda.jit
def deadlock(locks, flag, how):
    t = cuda.threadIdx.x
    if how == 0:  # two locks in opposite order
        while cuda.atomic.cas(locks, t % 2, 0, 1) != 0:
            pass
        cuda.syncwarp()
        while cuda.atomic.cas(locks, 1 - t % 2, 0, 1) != 0:  # deadlock 0
            pass
    elif how == 1:  # released after a barrier
        while cuda.atomic.cas(locks, 0, 0, 1) != 0:  # deadlock 1
            flag[1 + t] += 1
        cuda.syncthreads()
        cuda.atomic.exch(locks, 0, 0)
    elif how == 2:  # a flag that nobody raises
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:  # deadlock 2
                cuda.nanosleep(100)
        cuda.syncthreads()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("how", range(3))
def test_a_deadlock_is_named(how, traced):
    launch = deadlock[1, 2 if how == 0 else 64]
    arguments = np.zeros(2, np.int32), np.zeros(65, np.int32), how
    with pytest.raises(KernelError) as raised:
        gpukit.trace(launch, *arguments) if traced else launch(*arguments)
    assert raised.value.kind == "no-progress" and f"# deadlock {how}" in code(raised.value)


def test_blocks_that_wait_for_those_before_them():
    """Look-back in the order of blocks, over several batches; later ones are small."""

    @cuda.jit
    def scan(x, ready, total, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            before = 0
            if block > 0:
                while cuda.atomic.add(ready, block - 1, 0) == 0:
                    pass
                cuda.threadfence()
                before = total[block - 1]
            total[block] = before + x[block]
            cuda.threadfence()
            cuda.atomic.exch(ready, block, 1)
            out[block] = before

    x = np.random.default_rng(0).integers(0, 9, 400)
    out = np.zeros(400, np.int64)
    scan[400, 128](x, np.zeros(400, np.int32), np.zeros(400, np.int64), out)
    assert np.array_equal(out, np.cumsum(x) - x)
    assert not findings(scan[40, 32], x, np.zeros(400, np.int32), np.zeros(400, np.int64), out)


def test_blocks_that_look_back_at_all_before_them():
    """Every block sees the releases of many others, each of which has seen those of many more."""

    @cuda.jit
    def scan(x, state, sums, out, fence):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            sums[block, 0] = x[block]
            if fence:
                cuda.threadfence()
            cuda.atomic.exch(state, block, 1)
            before, other = 0, block - 1
            while other >= 0:
                seen = cuda.atomic.add(state, other, 0)
                if seen == 2:
                    before += sums[other, 1]
                    break
                if seen == 1:
                    before += sums[other, 0]
                    other -= 1
            sums[block, 1] = before + x[block]
            cuda.threadfence()
            cuda.atomic.exch(state, block, 2)
            out[block] = before

    x, out = np.random.default_rng(0).integers(0, 9, 200), np.zeros(200, np.int64)
    start = time.process_time()
    assert not findings(scan[200, 64], x, np.zeros(200, np.int32), np.zeros((200, 2), np.int64), out, True)
    assert np.array_equal(out, np.cumsum(x) - x) and time.process_time() - start < 8
    (found,) = findings(scan[20, 64], x, np.zeros(200, np.int32), np.zeros((200, 2), np.int64), out, False)
    assert found.kind == "race" and "sums[other, 0]" in code(found) and "threadfence" in found.cure


@cuda.jit
def phases(a, b, count, rounds, fence):
    """Each round reads what other blocks wrote in the last one, after a barrier that is written by hand."""
    i = cuda.grid(1)
    for r in range(rounds):
        if i < a.size:
            b[i] = a[(i + 33) % a.size] + 1
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            if fence:
                cuda.threadfence()
            cuda.atomic.add(count, 0, 1)
            while cuda.atomic.add(count, 0, 0) < (r + 1) * cuda.gridDim.x:
                pass
        cuda.syncthreads()
        a, b = b, a


@pytest.mark.parametrize("traced", [False, True])
def test_a_barrier_of_the_grid_written_by_hand(traced):
    """It works as long as the device holds all blocks at once, in several batches here."""
    n = 300 * 256
    a, b = np.arange(n), np.zeros(n, np.int64)
    if traced:
        assert not findings(phases[300, 256], a, b, np.zeros(1, np.int32), 3, True)
        races = findings(phases[300, 256], a.copy(), b.copy(), np.zeros(1, np.int32), 2, False)
        assert {f.kind for f in races} == {"race"}
    else:
        phases[300, 256](a, b, np.zeros(1, np.int32), 3, True)
    assert np.array_equal(b, np.roll(np.arange(n), -99) + 3)


@pytest.mark.parametrize("traced", [False, True])
def test_more_blocks_at_a_barrier_than_the_device_holds(traced):
    threads = threading.active_count()
    for blocks in (1056, 1057, 1400):
        count, fits = np.zeros(1, np.int32), blocks == 1056
        with contextlib.nullcontext() if fits else pytest.raises(KernelError, match="holds at most 1,056\\s") as raised:
            launch, arguments = phases[blocks, 256], (np.zeros(9), np.zeros(9), count, 1, True)
            gpukit.trace(launch, *arguments) if traced else launch(*arguments)
        assert count[0] == (blocks if fits else 0)  # an error leaves host arrays as they were
        if not fits:
            assert raised.value.kind == "no-progress" and "count, 0, 0" in code(raised.value)
            assert f"the other {blocks - 1056} cannot start" in str(raised.value)
    assert threading.active_count() == threads


@cuda.jit
def never_grows(out):
    x = np.float32(0)
    while x < np.float32(1e9):  # from 2**24 on x + 1 is x
        x += np.float32(1)
    out[0] = x


@cuda.jit
def both_grow(out, n):
    low, high = 0, n
    while low < high:
        low += 1
        high += 1
    out[0] = low


@cuda.jit
def long_and_honest(out, turns):
    total = 0
    for i in range(turns):
        total += i & 3
    out[cuda.grid(1)] += total
    print("done")


@pytest.mark.parametrize(("kernel", "more"), [(never_grows, ()), (both_grow, (10,))])
def test_a_trace_names_a_loop_that_only_the_limit_ends_in_seconds(kernel, more):
    for out in (np.zeros(1, np.float32), cuda.to_device(np.zeros(1, np.float32))):
        start = time.process_time()
        with pytest.raises(KernelError) as caught:
            warpstep.trace(kernel[1, 32], out, *more)
        assert caught.value.kind == "no-progress" and caught.value.trace.status == "stopped"
        assert time.process_time() - start < 15


def test_a_long_loop_is_traced_to_its_end(capsys):
    """The launch that is made to see whether it ends changes nothing, and prints nothing."""
    out = np.full(64, 5, np.int64)
    trace = warpstep.trace(long_and_honest[1, 32], out[:32], 200_000)
    assert trace.status == "complete" and (out == [300_005] * 32 + [5] * 32).all()
    assert capsys.readouterr().out == "done\n" * 32
