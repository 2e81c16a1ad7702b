"""The trace against slow and obvious models in plain Python: counts by sets, races by clocks, memory by element."""

from collections import Counter
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import float32, float64, int16, int32, uint8

import gpukit
from gpukit import cuda
from gpukit.backend import on_gpu
from gpukit.intrinsics import load2, load4, store2, store4
from warpstep import launch

WARP = 32
EXAMPLES = 12
randoms = st.integers(0, 1 << 32).map(np.random.default_rng)


@contextmanager
def batches(rng):
    """All blocks of a launch together, or one after another: a trace must not depend on it."""
    lanes = launch.BATCH_LANES
    launch.BATCH_LANES = int(rng.choice([lanes, 1]))
    try:
        yield launch.BATCH_LANES > 1
    finally:
        launch.BATCH_LANES = lanes


# -- counts ------------------------------------------------------------------------------------------------------------

ELEMENTS = 256
DTYPES = {"uint8": uint8, "int16": int16, "int32": int32, "float32": float32, "float64": float64}


def touch(space, dtype, width, per_block):
    """A kernel whose active threads load ``width`` elements of ``data`` and store them in the same place, in turns."""
    in_shared, in_local, kind = space == "shared", space == "local", DTYPES[dtype]

    @cuda.jit
    def kernel(memory, where, active, out):
        t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
        b = cuda.blockIdx.x
        if in_shared:
            data = cuda.shared.array(ELEMENTS, kind)
        elif in_local:
            data = cuda.local.array(ELEMENTS, kind)
        else:
            data = memory
        for turn in range(where.shape[0]):
            if active[turn, b, t]:
                i = where[turn, b, t] if per_block else where[turn, 0, t]
                if width == 4:
                    v = load4(data, i)
                    store4(data, i, v[3], v[2], v[1], v[0])
                elif width == 2:
                    v = load2(data, i)
                    store2(data, i, v[1], v[0])
                else:
                    out[b, t] = data[i]
                    data[i] = kind(1)

    return kernel


def change(space, op, per_block):
    """A kernel whose active threads change the element of ``data`` at their index by an atomic operation, in turns."""
    in_shared, swaps = space == "shared", op == "cas"

    @cuda.jit
    def kernel(memory, where, active, out):
        t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
        b = cuda.blockIdx.x
        if in_shared:
            data = cuda.shared.array(ELEMENTS, int32)
        else:
            data = memory
        for turn in range(where.shape[0]):
            if active[turn, b, t]:
                i = where[turn, b, t] if per_block else where[turn, 0, t]
                if swaps:
                    cuda.atomic.cas(data, i, 0, 1)
                else:
                    cuda.atomic.add(data, i, 1)

    return kernel


touch, change = cache(touch), cache(change)


def shared_counts(lanes, nbytes, op):
    """{lane: byte address} of one warp to [wavefronts, ideal wavefronts, bank conflicts, sectors, ideal sectors]."""
    if op in ("add", "cas"):
        passes = max(Counter(a // 4 % 32 for a in lanes.values()).values())
        times = 2 if op == "cas" else 1
        return [times * passes, times, passes - 1, 0, 0]
    size = WARP * 4 // max(nbytes, 4)  # lanes that are served together
    groups = [range(first, first + size) for first in range(0, WARP, size)]
    if op == "load" and nbytes > 4:
        merged = []
        for first, second in zip(groups[::2], groups[1::2], strict=True):
            both = range(first.start, second.stop)
            agree = any(
                all(lanes[k] == lanes[k ^ far] for k in both if k in lanes and k ^ far in lanes) for far in (1, 2)
            )
            merged += [both] if agree else [first, second]
        groups = merged
    wavefronts = ideal = 0
    for group in groups:
        words = {(lanes[k] + byte) // 4 for k in group if k in lanes for byte in range(nbytes)}
        if words:
            wavefronts += max(Counter(word % 32 for word in words).values())
            ideal += 1
    return [wavefronts, ideal, wavefronts - ideal, 0, 0]


def memory_counts(lanes, nbytes, op):
    if op in ("add", "cas"):
        taken, passes = Counter(), set()
        for address in lanes.values():
            passes.add((taken[address], address // 32))
            taken[address] += 1
        sectors = len(passes)
    else:
        sectors = len({(a + byte) // 32 for a in lanes.values() for byte in range(nbytes)})
    return [0, 0, 0, sectors, min(sectors, -(-len(lanes) * nbytes // 32))]


def local_counts(lanes, nbytes, op):
    words = {(a + byte) // 4 * WARP + lane for lane, a in lanes.items() for byte in range(nbytes)}
    return [0, 0, 0, len({word * 4 // 32 for word in words}), -(-len(lanes) * max(nbytes, 4) // 32)]


def expected_counts(model, addresses, active, nbytes, op):
    """(requests, lanes, the five counts summed) of all warps; ``addresses``: (turns, blocks, threads)."""
    requests = taking_part = 0
    sums = np.zeros(5, int)
    threads = addresses.shape[-1]
    for row, on in zip(addresses.reshape(-1, threads), active.reshape(-1, threads), strict=True):
        for first in range(0, row.size, WARP):
            lanes = {k: int(row[first + k]) for k in range(min(WARP, row.size - first)) if on[first + k]}
            if lanes:
                requests += 1
                taking_part += len(lanes)
                sums += model(lanes, nbytes, op)
    return requests, taking_part, sums.tolist()


def random_block(rng, most):
    """Extents of a block of at most so many threads, in 1 to 3 dimensions."""
    while True:
        block = tuple(int(n) for n in rng.integers(1, most + 1, rng.integers(1, 4)) // rng.integers(1, 20) + 1)
        if np.prod(block) <= most:
            return block


def random_indices(rng, shape, width):
    """Indices of ``width`` elements: at random, of neighbours that agree, by stride, all the same."""
    n = ELEMENTS // width
    kind = rng.choice([0, 1, 2, 3, 3, 3, 4, 5])
    lane = np.arange(shape[1])
    if kind == 0:
        where = rng.integers(0, n, shape)
    elif kind == 1:
        where = rng.integers(0, rng.integers(1, n + 1), shape)
    elif kind == 2:
        where = np.broadcast_to(lane * rng.integers(0, 34) + rng.integers(0, n), shape)
    elif kind == 3:  # neighbours agree, at a distance of 1, 2 or 4
        where = rng.integers(0, n, shape)
        where = np.take(where, lane & ~int(rng.choice([1, 2, 4])), axis=1)
    elif kind == 4:  # ... in part of the warps
        where = rng.integers(0, n, shape)
        where = np.where(lane // 16 % 2, np.take(where, lane & ~int(rng.choice([1, 2])), axis=1), where)
    else:
        where = np.full(shape, rng.integers(0, n))
    return (where % n * width).astype(np.int32)


def random_flags(rng, shape):
    kind = rng.integers(4)
    if kind == 0:
        return np.ones(shape, bool)
    if kind == 1:
        return np.broadcast_to(np.arange(shape[1]) < rng.integers(0, shape[1] + 1), shape).copy()
    return rng.random(shape) < rng.random()


def compare_counts(trace, space, model, addresses, active, nbytes, ops):
    for op in ops:
        traced = "atomic" if op in ("add", "cas") else op
        found = [a for a in trace.accesses if (a.op, a.space) == (traced, space) and a.array in ("data", "memory")]
        requests, lanes, sums = expected_counts(model, addresses, active, nbytes, op)
        if not requests:
            assert not found
            continue
        (a,) = found
        assert (a.requests, a.itemsize) == (requests, nbytes)
        assert a.active_lanes == pytest.approx(lanes / requests)
        assert [a.wavefronts, a.ideal_wavefronts, a.bank_conflicts, a.sectors, a.ideal_sectors] == sums, op
        worst = a.worst
        shown = {k: int(worst.addresses[k]) for k in range(WARP) if worst.active[k]}
        figures = [worst.wavefronts, worst.ideal_wavefronts, 0, worst.sectors, worst.ideal_sectors]
        one = model(shown, nbytes, op)
        assert figures == [one[0], one[1], 0, one[3], one[4]]


def compare_coverage(trace, where, active, width, reads, writes):
    (found,) = (c for c in trace.coverage if c.array == "memory")
    touched = {int(i) + k for i in where[active] for k in range(width)}
    assert found.read == (len(touched) if reads else 0) and found.written == (len(touched) if writes else 0)


def random_accesses(rng, width):
    """(grid, block, indices that the threads use, indices, flags, whether blocks differ) of a random access."""
    block, grid, per_block = random_block(rng, 100), int(rng.integers(1, 5)), bool(rng.integers(2))
    shape = (grid, int(np.prod(block)))
    turns = [(random_indices(rng, shape, width), random_flags(rng, shape)) for _ in range(rng.integers(1, 4))]
    if rng.integers(2):  # the same pattern elsewhere
        turns += [((where + 4 * int(rng.integers(9))) % ELEMENTS // width * width, on) for where, on in turns]
    where, active = (np.array(values) for values in zip(*turns, strict=True))
    used = where if per_block else np.broadcast_to(where[:, :1], where.shape)
    return grid, block, used, where.astype(np.int32), active, per_block


@settings(max_examples=EXAMPLES * 4)
@given(randoms)
def test_counts_are_those_of_sets(rng):
    space = rng.choice(["shared", "shared", "local", "global"])
    dtype, width = rng.choice(list(DTYPES)), int(rng.choice([1, 2, 4]))
    size = np.dtype(dtype).itemsize
    width = 1 if space == "local" else min(width, 16 // size)
    grid, block, used, where, active, per_block = random_accesses(rng, width)
    offset = int(rng.integers(0, 8)) if width == 1 else 0
    memory = cuda.to_device(np.ones(ELEMENTS + offset, dtype))[offset:]
    out = np.zeros(where.shape[1:], dtype)
    with batches(rng):
        trace = gpukit.trace(touch(space, dtype, width, per_block)[grid, block], memory, where, active, out)
    model = {"shared": shared_counts, "local": local_counts, "global": memory_counts}[space]
    start = offset * size if space == "global" else 0
    compare_counts(trace, space, model, used * size + start, active, size * width, ("load", "store"))
    if space == "global":
        compare_coverage(trace, used, active, width, True, True)


@settings(max_examples=EXAMPLES * 3)
@given(randoms)
def test_counts_of_atomics_are_those_of_sets(rng):
    space, op = rng.choice(["shared", "global"]), rng.choice(["add", "cas"])
    grid, block, used, where, active, per_block = random_accesses(rng, 1)
    memory = np.zeros(ELEMENTS, np.int32)
    with batches(rng):
        trace = gpukit.trace(change(space, op, per_block)[grid, block], memory, where, active, 0)
    model = shared_counts if space == "shared" else memory_counts
    compare_counts(trace, space, model, used * 4, active, 4, (op,))
    if space == "global":
        compare_coverage(trace, used, active, 1, True, True)
        hits = np.bincount(used[active], minlength=ELEMENTS)
        np.testing.assert_array_equal(memory, hits if op == "add" else hits > 0)


# -- races -------------------------------------------------------------------------------------------------------------

NOTHING, READ, WRITE, ADD, FENCE, LOOK = range(6)
ATOMICS = (ADD, LOOK)
NO_BARRIER, BLOCK, WHOLE_WARP, HALF_WARP = range(4)
CELLS = 4


@cache
def interpreter(space, dtype):
    """A kernel that does what arrays say: in each step every thread does one thing, then all meet at a barrier."""
    in_shared, in_local, type_ = space == "shared", space == "local", DTYPES[dtype]

    @cuda.jit
    def kernel(memory, kinds, cells, values, barriers, out):
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if in_shared:
            data = cuda.shared.array(CELLS, type_)
        elif in_local:
            data = cuda.local.array(CELLS, type_)
        else:
            data = memory
        for step in range(barriers.shape[0]):
            kind, cell = kinds[step, b, t], cells[step, b, t]
            if kind == READ:
                out[step, b, t] = data[cell]
            elif kind == WRITE:
                data[cell] = values[step, b, t]
            elif kind == ADD:
                if not in_local:
                    cuda.atomic.add(data, cell, 0)
            elif kind == LOOK:
                if not in_local:
                    out[step, b, t] = cuda.atomic.add(data, cell, 0)
            elif kind == FENCE:
                cuda.threadfence()
            barrier = barriers[step]
            if barrier == BLOCK:
                cuda.syncthreads()
            elif barrier == WHOLE_WARP:
                cuda.syncwarp()
            elif barrier == HALF_WARP:
                cuda.syncwarp(0xFFFF if t % 32 < 16 else 0xFFFF0000)

    return kernel


class Clocks:
    """Happens-before, exactly: each thread knows up to which of its accesses it has seen every other thread."""

    def __init__(self, blocks, threads):
        self.threads = threads
        n = blocks * threads
        self.seen = np.zeros((n, n), int)
        self.done = np.zeros(n, int)
        self.fenced = {}
        self.released = {}

    def access(self, thread):
        """The number of a new access of a thread."""
        self.done[thread] += 1
        self.seen[thread, thread] = self.done[thread]
        return self.done[thread]

    def meet(self, group):
        self.seen[group] = self.seen[group].max(axis=0)

    def barrier(self, kind, blocks):
        size = {NO_BARRIER: None, BLOCK: self.threads, WHOLE_WARP: WARP, HALF_WARP: WARP // 2}[kind]
        for block in blocks if size else ():
            for first in range(0, self.threads, size):
                self.meet(block * self.threads + np.arange(first, min(first + size, self.threads)))

    def fence(self, thread):
        self.fenced[thread] = self.seen[thread].copy()

    def atomic(self, thread, place):
        """Acquire what was released at a place; release what was done before the last fence."""
        before = self.released.get(place, 0)
        self.seen[thread] = np.maximum(self.seen[thread], before)
        if thread in self.fenced:
            self.released[place] = np.maximum(before, self.fenced[thread])


class Races:
    """Accesses of every cell, and whether any two of them race.

    A thread that has seen the result of an atomic operation, or has met one that has, comes after all earlier ones at
    the same cell.
    """

    def __init__(self, clocks, met):
        self.clocks = clocks
        self.met = met
        self.past = {}
        self.looks = {}
        self.found = set()

    def access(self, thread, place, kind, step, value, there):
        """``value``: of a write; ``there``: what the memory holds before the step."""
        number = self.clocks.access(thread)
        self.met.access(thread)
        past, looks = self.past.setdefault(place, []), self.looks.setdefault(place, [])
        last = max((i for i, looker, when in looks if self.met.seen[thread, looker] >= when), default=-1)
        for i, (other, when, what, before, written) in enumerate(past):
            harmless = {kind, what} == {READ} or kind in ATOMICS and what in ATOMICS
            seen = what in ATOMICS and kind not in ATOMICS and last > i
            if other == thread or harmless or seen or self.clocks.seen[thread, other] >= when:
                continue
            if kind == what == WRITE and value == (written if before == step else there):
                continue
            self.found.add((what, kind))
        if kind == LOOK:
            looks.append((len(past), thread, number))
        past.append((thread, number, kind, step, value))


def expected_races(kinds, cells, values, barriers, shared, together=True):
    """Kinds of the pairs that race; ``together``: all blocks go step by step, not one block after another."""
    steps, blocks, threads = kinds.shape
    clocks, met = Clocks(blocks, threads), Clocks(blocks, threads)
    races, memory = Races(clocks, met), {}
    for group in [range(blocks)] if together else [[block] for block in range(blocks)]:
        for step in range(steps):
            now = group[0], step
            for kind in (READ, WRITE, ADD, LOOK, FENCE):
                there = dict(memory)
                for block, t in ((b, t) for b in group for t in np.flatnonzero(kinds[step, b] == kind).tolist()):
                    thread, place = block * threads + t, (block if shared else 0, int(cells[step, block, t]))
                    if kind == FENCE:
                        clocks.fence(thread)
                        continue
                    value = int(values[step, block, t])
                    races.access(thread, place, kind, now, value, there.get(place))
                    if kind == WRITE:
                        memory[place] = value
                    if kind in ATOMICS:
                        clocks.atomic(thread, place)
            clocks.barrier(barriers[step], group)
            met.barrier(barriers[step], group)
    return races.found


def random_steps(rng, blocks, threads, allowed=(READ, READ, WRITE, WRITE, ADD, LOOK), kinds_of_barrier=4):
    """A random program: few threads act in a step, or whole warps, or all; the first few kinds of barrier only."""
    steps = int(rng.integers(2, 8))
    shape = (steps, blocks, threads)
    kinds, cells = np.zeros(shape, np.int32), rng.integers(0, CELLS, shape).astype(np.int32)
    values = rng.integers(0, int(rng.choice([1, 2, 3])), shape).astype(np.int32)
    for step in range(steps):
        style = rng.integers(8)
        if style == 0:
            kinds[step] = np.where(rng.random(shape[1:]) < 0.5, rng.choice(allowed, shape[1:]), 0)
        else:
            for _ in range(int(rng.integers(1, 3))):
                first = int(rng.integers(0, threads))
                last = first + int(rng.choice([1, 1, 2, WARP]))
                block = int(rng.integers(0, blocks)) if rng.integers(2) else slice(None)
                kinds[step, block, first:last] = rng.choice(allowed)
                if rng.integers(2):
                    cells[step, block, first:last] = rng.integers(0, CELLS)
    barriers = rng.choice([BLOCK, WHOLE_WARP, HALF_WARP, NO_BARRIER][:kinds_of_barrier], steps).astype(np.int32)
    return kinds, cells, values, barriers


def random_messages(rng, blocks, threads):
    """A random program in which few threads write, fence, raise flags, look at them and read, mostly in that order."""
    turns = []
    actors = [(int(rng.integers(0, blocks)), int(rng.integers(0, threads))) for _ in range(rng.integers(2, 5))]
    held = None
    for _ in range(int(rng.integers(2, 6))):
        (block, thread), data, flag = (
            actors[rng.integers(len(actors))],
            int(rng.integers(0, 2)),
            int(rng.integers(2, 4)),
        )
        message = [(READ, data), (WRITE, data), (FENCE, 0), (ADD, flag)]
        look = [(ADD, flag if held is None or rng.random() < 0.3 else held), (READ, data)]
        for kind, cell in (look if rng.integers(2) else []) + message:
            if rng.random() < 0.85:
                turns.append((block, thread, kind, cell))
        held = flag
    shape = (len(turns), blocks, threads)
    kinds, cells = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for step, (block, thread, kind, cell) in enumerate(turns):
        kinds[step, block, thread], cells[step, block, thread] = kind, cell
    values = np.broadcast_to(np.arange(len(turns), dtype=np.int32)[:, None, None], shape).copy()
    barriers = rng.choice([NO_BARRIER, BLOCK, WHOLE_WARP, HALF_WARP], len(turns), p=[0.7, 0.1, 0.1, 0.1])
    return kinds, cells, values, barriers.astype(np.int32)


def traced_races(space, kinds, cells, values, barriers):
    out = np.zeros(kinds.shape, np.int32)
    memory = np.full(CELLS, -1, np.int32)
    trace = gpukit.trace(interpreter(space, "int32")[kinds.shape[1:]], memory, kinds, cells, values, barriers, out)
    assert {f.kind for f in trace.findings} <= {"race", "uninitialised-read"}
    return [f for f in trace.findings if f.kind == "race"]


def compare_races(rng, space, program):
    with batches(rng) as together:
        found = traced_races(space, *program)
    assert bool(found) == bool(expected_races(*program, space == "shared", together)), found


@settings(max_examples=EXAMPLES * 6)
@given(randoms)
def test_races_are_those_of_clocks(rng):
    """Where whole warps and blocks meet at barriers."""
    space, blocks, threads = rng.choice(["shared", "global"]), int(rng.integers(1, 4)), int(rng.choice([2, 40, 96]))
    compare_races(rng, space, random_steps(rng, blocks, threads, kinds_of_barrier=3))


@settings(max_examples=EXAMPLES * 4)
@given(randoms)
def test_no_race_is_invented_where_parts_of_warps_meet(rng):
    space, blocks, threads = rng.choice(["shared", "global"]), int(rng.integers(1, 3)), int(rng.choice([16, 40, 64]))
    program = random_steps(rng, blocks, threads)
    found = traced_races(space, *program)
    assert not found or expected_races(*program, space == "shared")


@settings(max_examples=EXAMPLES * 6)
@given(randoms)
def test_order_by_flags_is_that_of_clocks(rng):
    space, blocks, threads = rng.choice(["shared", "global"]), int(rng.integers(1, 4)), int(rng.choice([2, 40, 64]))
    compare_races(rng, space, random_messages(rng, blocks, threads))


def program(blocks, threads, *turns):
    """Arrays for `interpreter`; a turn is (block, thread or slice of threads, kind, cell, value) or a barrier."""
    steps = [turn if isinstance(turn, tuple) else None for turn in turns]
    shape = (len(steps), blocks, threads)
    kinds, cells, values = (np.zeros(shape, np.int32) for _ in range(3))
    for step, turn in enumerate(steps):
        if turn is not None:
            block, thread, kind, cell, *value = turn
            kinds[step, block, thread], cells[step, block, thread] = kind, cell
            values[step, block, thread] = value[0] if value else 0
    return kinds, cells, values, np.array([NO_BARRIER if isinstance(t, tuple) else t for t in turns], np.int32)


def message(writer, raiser, looker, reader, meet):
    """A thread writes; another, after a barrier, raises a flag; one of the next block sees it, and another reads."""
    return program(
        2,
        64,
        (0, writer, WRITE, 0),
        meet,
        (0, raiser, FENCE, 0),
        (0, raiser, ADD, 2),
        (1, looker, ADD, 2),
        meet,
        (1, reader, READ, 0),
    )


EVERY = slice(None)
#: {name: (program, space, whether it races)}
PROGRAMS = {
    "two flags": (
        program(
            3,
            2,
            *((0, 0, WRITE, 0), (0, 0, FENCE, 0), (0, 0, ADD, 2)),
            *((1, 0, ADD, 2), (1, 0, FENCE, 0), (1, 0, ADD, 3)),
            *((2, 0, ADD, 3), (2, 0, READ, 0)),
        ),
        "global",
        False,
    ),
    "two flags, the second fence too early": (
        program(
            3,
            2,
            *((0, 0, WRITE, 0), (0, 0, FENCE, 0), (0, 0, ADD, 2)),
            *((1, 0, FENCE, 0), (1, 0, ADD, 2), (1, 0, ADD, 3)),
            *((2, 0, ADD, 3), (2, 0, READ, 0)),
        ),
        "global",
        True,
    ),
    "block to block": (message(40, 0, 0, 40, BLOCK), "global", False),
    "warp to warp": (message(5, 0, 20, 31, WHOLE_WARP), "global", False),
    "of another warp": (message(40, 0, 0, 5, WHOLE_WARP), "global", True),
    "for another warp": (message(5, 0, 0, 40, WHOLE_WARP), "global", True),
    "half to half": (message(5, 0, 16, 31, HALF_WARP), "global", False),
    "of another half": (message(20, 0, 0, 5, HALF_WARP), "global", True),
    "for another half": (message(5, 0, 0, 20, HALF_WARP), "global", True),
    "halves meet again after the fence": (
        program(
            *(2, 32, (0, 5, WRITE, 0), HALF_WARP, (0, 0, FENCE, 0), (0, 5, WRITE, 0), HALF_WARP),
            *((0, 0, ADD, 2), (1, 0, ADD, 2), (1, 0, READ, 0)),
        ),
        "global",
        True,
    ),
    "the last of equal writers writes again": (program(1, 40, (0, EVERY, WRITE, 0), (0, 39, WRITE, 0, 1)), None, True),
    "the last of equal writers reads": (
        program(1, 40, (0, 0, WRITE, 0), (0, 1, WRITE, 0), (0, 1, READ, 0)),
        None,
        True,
    ),
    "equal writers": (program(1, 40, (0, EVERY, WRITE, 0), BLOCK, (0, EVERY, READ, 0)), None, False),
    "the last reader writes": (
        program(1, 64, (0, 3, READ, 0), (0, 40, READ, 0), (0, 41, READ, 0), WHOLE_WARP, (0, 41, WRITE, 0)),
        None,
        True,
    ),
    "the last of readers at once writes": (
        program(1, 64, (0, EVERY, READ, 0), WHOLE_WARP, (0, 63, WRITE, 0)),
        None,
        True,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_made_by_hand(name):
    steps, only, races = PROGRAMS[name]
    for space in ("shared", "global") if only is None else (only,):
        assert bool(expected_races(*steps, space == "shared")) == races
        assert bool(traced_races(space, *steps)) == races


@cuda.jit
def flag_in_shared_memory(data, out, senders):
    flag = cuda.shared.array(1, int32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if t == 0:
        flag[0] = 0
        if b < senders:
            data[b % data.size] = 1
            cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(flag, 0, 1)
    elif t == 32:
        cuda.atomic.add(flag, 0, 0)
        out[b] = data[b % data.size]


@cuda.jit
def own_flag(data, out, late):
    flag = cuda.shared.array(1, int32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if t == 0:
        flag[0] = 0
    cuda.syncthreads()
    if t == 0:
        if late:
            cuda.threadfence()
            data[b] = 1
        else:
            data[b] = 1
            cuda.threadfence()
        cuda.atomic.add(flag, 0, 1)
    elif t == 32:
        cuda.atomic.add(flag, 0, 0)
        out[b] = data[b]


@pytest.mark.parametrize("lanes", [launch.BATCH_LANES, 1])
def test_a_flag_in_shared_memory_is_for_one_block(lanes, monkeypatch):
    monkeypatch.setattr(launch, "BATCH_LANES", lanes)
    out = np.zeros(3, np.int32)
    assert not gpukit.trace(own_flag[3, 64], np.zeros(3, np.int32), out, False).findings
    found = gpukit.trace(own_flag[3, 64], np.zeros(3, np.int32), out, True).findings
    assert [(f.kind, f.count) for f in found] == [("race", 3)]
    found = gpukit.trace(flag_in_shared_memory[3, 64], np.zeros(1, np.int32), out, 1).findings
    assert [f.kind for f in found] == ["race"]


@pytest.mark.parametrize("first", [0, 1])
def test_blocks_that_write_different_values(first):
    """What all blocks do alike is looked at once, but the values of each block count."""

    @cuda.jit
    def kernel(x, out):
        data = cuda.shared.array(1, int32)
        data[0] = x[cuda.blockIdx.x, cuda.threadIdx.x]
        cuda.syncthreads()
        out[cuda.blockIdx.x, cuda.threadIdx.x] = data[0]

    x = np.zeros((3, 40), np.int32)
    assert not gpukit.trace(kernel[x.shape], x, np.zeros_like(x)).findings
    x[first, 7] = 1
    (race,) = gpukit.trace(kernel[x.shape], x, np.zeros_like(x)).findings
    assert (race.kind, race.block, race.count, race.threads[0]) == ("race", (first, 0, 0), 1, (7, 0, 0))


# -- memory that nobody has written ------------------------------------------------------------------------------------


@cuda.jit
def fill(array, where):
    for i in where:
        array[i] = 1


def prepare(rng, dtype):
    """(device array of which something is written, which of it may be read)."""
    array = cuda.device_array(CELLS, dtype)
    known = np.full(CELLS, on_gpu())  # a GPU's own memory does not say what was written
    for _ in range(rng.integers(0, 3)):
        first, last = sorted(rng.integers(0, CELLS + 1, 2).tolist())
        one = int(rng.integers(0, CELLS))
        way = rng.integers(5)
        if way == 0:
            array[first:last].copy_to_device(np.zeros(last - first, dtype))
        elif way == 1:
            array[first:last] = 1
        elif way == 2:
            fill[1, 1](array, np.arange(first, last))
        elif way == 3:
            gpukit.trace(fill[1, 1], array, np.arange(first, last))
        else:
            array[one] = 1
            first, last = one, one + 1
        known[first:last] = True
    return array, known


@settings(max_examples=EXAMPLES * 4)
@given(randoms)
def test_reads_of_what_nobody_has_written(rng):
    cases = ("shared", "int32"), ("local", "uint8"), ("global", "int32"), ("global", "float64")
    space, dtype = cases[rng.integers(len(cases))]
    blocks, threads = int(rng.integers(1, 4)), int(rng.choice([1, 5, 40]))
    allowed = (READ, WRITE) if space == "local" else (READ, WRITE, ADD)
    kinds, cells, values, barriers = random_steps(rng, blocks, threads, allowed, 1)
    memory, initially = prepare(rng, dtype)
    with batches(rng) as together:
        out = np.zeros(kinds.shape, dtype)
        trace = gpukit.trace(interpreter(space, dtype)[blocks, threads], memory, kinds, cells, values, barriers, out)

    def place_of(block, thread, cell):
        return {"shared": block, "local": (block, thread), "global": 0}[space], int(cell)

    known = {place_of(0, 0, cell) for cell in np.flatnonzero(initially)} if space == "global" else set()
    expected = Counter()
    for group in [range(blocks)] if together else [[block] for block in range(blocks)]:
        for step in range(len(kinds)):
            for kind in (READ, WRITE, ADD):
                acting = [(block, t) for block in group for t in np.flatnonzero(kinds[step, block] == kind).tolist()]
                for block, t in acting:
                    expected[kind] += kind != WRITE and place_of(block, t, cells[step, block, t]) not in known
                if kind != READ:
                    known |= {place_of(block, t, cells[step, block, t]) for block, t in acting}
    found = Counter()
    for finding in trace.findings:
        if finding.kind == "uninitialised-read":
            found[ADD if "atomic" in finding.code else READ] += finding.count
    assert found == +expected


# -- indices out of bounds ---------------------------------------------------------------------------------------------

ROWS, COLUMNS = 6, 5


@cache
def wild(space):
    """A kernel that loads and stores elements of ``data`` by threads whose index may be anything."""
    in_shared, in_local = space == "shared", space == "local"

    @cuda.jit
    def kernel(memory, source, target, active, loaded, left):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        if in_shared:
            data = cuda.shared.array(ROWS, int32)
        elif in_local:
            data = cuda.local.array(ROWS, int32)
        else:
            data = memory
        for i in range(ROWS):
            data[i] = -i
        cuda.syncthreads()
        if active[b, t]:
            loaded[b, t] = data[source[b, t]]
        cuda.syncthreads()
        if active[b, t]:
            data[target[b, t]] = t + 10
        cuda.syncthreads()
        for i in range(ROWS):
            left[b, t, i] = data[i]

    return kernel


@cuda.jit
def wild_2d(data, row, column, active, pairs):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if active[b, t]:
        cuda.atomic.add(data, (row[b, t], column[b, t]), 1)
        store2(pairs, (row[b, t], 2 * column[b, t]), 1, 2)


def wild_indices(rng, shape, extent):
    """Indices from below -extent to above extent, more or less often within, or all alike."""
    most = int(rng.choice([extent, extent + 1, 3 * extent]))
    low = int(rng.choice([0, -1, -extent, -3 * extent]))
    shape = shape if rng.integers(6) else (1, 1)
    return rng.integers(low, most, shape) + np.zeros((shape[0], 1), int)


def verdicts(indices, extents, active, together):
    """(lanes out of bounds, lanes with a negative index); an index that is the same for all threads may be negative."""
    outside = np.zeros(active.shape, bool)
    negative = np.zeros(active.shape, bool)
    for index, extent in zip(indices, extents, strict=True):
        inside = (-extent <= index) & (index < extent)
        rows = [slice(None)] if together else [slice(b, b + 1) for b in range(len(active))]
        varies = np.concatenate([np.full(index[r].shape, index[r].min() != index[r].max()) for r in rows])
        outside |= active & ~inside
        negative |= active & inside & (index < 0) & varies
    return outside, negative


def count_findings(trace, line):
    found = Counter()
    for finding in trace.findings:
        if line in finding.code:
            found[finding.kind] += finding.count
    return {kind: found[kind] for kind in ("out-of-bounds", "negative-index") if found[kind]}


def as_findings(outside, negative):
    counts = {"out-of-bounds": int(outside.sum()), "negative-index": int(negative.sum())}
    return {kind: count for kind, count in counts.items() if count}


@settings(max_examples=EXAMPLES * 4)
@given(randoms)
def test_accesses_out_of_bounds_are_left_out(rng):
    space = rng.choice(["shared", "local", "global"])
    shape = int(rng.integers(1, 4)), int(rng.choice([2, 7, 40]))
    source, target = (np.broadcast_to(wild_indices(rng, shape, ROWS), shape).copy() for _ in range(2))
    active = random_flags(rng, shape)
    memory, loaded, left = np.zeros(ROWS, np.int32), np.full(shape, -99), np.zeros((*shape, ROWS), np.int32)
    with batches(rng) as together:
        trace = gpukit.trace(wild(space)[shape], memory, source, target, active, loaded, left)

    read = verdicts([source], [ROWS], active, together)
    written = verdicts([target], [ROWS], active, together)
    assert count_findings(trace, "source[") == as_findings(*read)
    assert count_findings(trace, "target[") == as_findings(*written)
    good = active & ~read[0]
    np.testing.assert_array_equal(loaded[good], -(source[good] % ROWS))
    for b in range(shape[0]):
        expected = np.tile(-np.arange(ROWS), (shape[1], 1))
        for t in np.flatnonzero(active[b] & ~written[0][b]):
            expected[slice(t, t + 1) if space == "local" else slice(None), target[b, t]] = t + 10
        if space != "global":
            np.testing.assert_array_equal(left[b], expected)
    stores = [a for a in trace.accesses if "target[" in a.code and a.op == "store"]
    assert sum(a.requests * a.active_lanes for a in stores) == pytest.approx((active & ~written[0]).sum())


@settings(max_examples=EXAMPLES * 3)
@given(randoms)
def test_accesses_out_of_bounds_in_two_dimensions(rng):
    """Of atomics and wide stores too; a thread counts once for each access."""
    shape = int(rng.integers(1, 4)), int(rng.choice([2, 7, 40]))
    row, column = (np.broadcast_to(wild_indices(rng, shape, n), shape).copy() for n in (ROWS, COLUMNS))
    active = random_flags(rng, shape)
    data, pairs = np.zeros((ROWS, COLUMNS), np.int32), np.zeros((ROWS, 2 * COLUMNS), np.int32)
    with batches(rng) as together:
        trace = gpukit.trace(wild_2d[shape], data, row, column, active, pairs)
    outside, negative = verdicts([row, column], [ROWS, COLUMNS], active, together)
    good = active & ~outside
    expected = np.zeros((ROWS, COLUMNS), int)
    np.add.at(expected, (row[good], column[good]), 1)
    np.testing.assert_array_equal(data, expected)
    np.testing.assert_array_equal(pairs.reshape(ROWS, COLUMNS, 2), (expected > 0)[..., None] * [1, 2])
    for line in ("atomic", "store2"):
        assert count_findings(trace, line) == as_findings(outside, negative)


# -- a sample of the blocks --------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(randoms)
def test_a_sample_of_like_blocks_counts_as_the_whole_grid(rng):
    blocks, threads, space = (
        int(rng.integers(2, 9)),
        int(rng.choice([7, 64])),
        rng.choice(["shared", "local", "global"]),
    )
    where = np.broadcast_to(random_indices(rng, (1, threads), 1), (1, blocks, threads))
    active = np.broadcast_to(random_flags(rng, (1, threads)), where.shape)
    arguments = np.ones(ELEMENTS, np.float32), where.copy(), active.copy(), np.zeros((blocks, threads), np.float32)
    kernel = touch(space, "float32", 1, True)[blocks, threads]
    whole = gpukit.trace(kernel, *arguments)
    chosen = rng.choice([1, 2, blocks]), sorted(rng.choice(blocks, rng.integers(1, blocks), replace=False).tolist())
    for sample in chosen:
        part = gpukit.trace(kernel, *arguments, blocks=sample)
        assert part.branches == whole.branches and part.operations == whole.operations
        pairs = zip(part.accesses, whole.accesses, strict=True)
        assert all(a == b for a, b in pairs if a.array in ("data", "memory"))
