"""Kernels as courses and forums have them, each right or wrong by one line: what a trace says of them.

``how`` chooses the variant. The finding of a wrong one is at a line with its name in the comment.
"""

import linecache

import numpy as np
import pytest
from numba import float32, int32

import gpukit
from warpstep import cuda

(
    ADD,
    AFTER,
    AGAIN,
    ANOTHER,
    BRANCH,
    EARLY,
    FENCE,
    FIRST,
    FLUSH,
    FULL,
    GRID,
    GUARD,
    GUESS,
    INDEX,
    LAST,
    MERGE,
    MIN,
    NONE,
    POLL,
    RAGGED,
    RESET,
    RIGHT,
    SELECT,
    SHUFFLE,
    STORE,
    SWAP,
    THROUGH,
    TURN,
    TWO,
    UNION,
    UPDATE,
    VOTE,
    WAIT,
) = range(33)
ALL_LANES = 0xFFFFFFFF
INT = np.int32


def random(*shape, below=32):
    return np.random.default_rng(0).integers(0, below, shape).astype(INT)


def zeros(*shape):
    return np.zeros(shape, INT)


# -- plain reads of what atomic operations change ----------------------------------------------------------------------


@cuda.jit
def histogram(data, out, how):
    counts = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    if t < 32:
        counts[t] = 0
    cuda.syncthreads()
    for turn in range(2):
        cuda.atomic.add(counts, data[turn, t], 1)  # turn
        if how != FLUSH:
            cuda.syncthreads()
        if t < 32:
            if how == INDEX:
                out[counts[t]] = 1
            elif how != UPDATE:
                out[t] = counts[t]  # flush
            else:
                cuda.atomic.add(out, t, counts[t])
        if how != TURN:
            cuda.syncthreads()


@cuda.jit
def decide(data, out, how):
    most = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        most[0] = 0
    cuda.syncthreads()
    if how == GUESS:  # a test saves most of the atomic operations
        if data[t] > most[0]:
            cuda.atomic.max(most, 0, data[t])
    elif how == SWAP:
        old = most[0]
        while data[t] > old:
            seen = cuda.atomic.cas(most, 0, old, data[t])
            if seen == old:
                break
            old = seen
    else:
        cuda.atomic.max(most, 0, data[t])
    if how == AFTER:
        cuda.syncthreads()
    if how == BRANCH or how == AFTER:
        if data[t] == most[0]:  # branch
            out[0] = 1
    elif how == VOTE:
        out[t] = cuda.any_sync(ALL_LANES, most[0] > 3)  # vote
    elif how == SHUFFLE:
        out[t] = cuda.shfl_sync(ALL_LANES, most[0], 0)  # shuffle
    elif how == THROUGH:
        at = out[most[0]]  # through
        out[t + 64] = at


@cuda.jit
def relax(edges, labels, how):
    """Labels spread along edges; the reads only choose what the next atomic operation does."""
    e = cuda.grid(1)
    a, b = edges[e, 0], edges[e, 1]
    if how == UNION:
        while True:
            while labels[a] != a:
                a = labels[a]
            while labels[b] != b:
                b = labels[b]
            if a == b or cuda.atomic.cas(labels, max(a, b), max(a, b), min(a, b)) == max(a, b):
                break
    elif labels[a] < labels[b]:
        cuda.atomic.min(labels, b, labels[a])


@cuda.jit
def total(data, sums, out, how):
    i = cuda.grid(1)
    old = cuda.atomic.add(sums, 0, data[i])
    if how == GRID:
        cuda.cg.this_grid().sync()
    if how == FIRST and i == 0 or how == GRID:
        out[i] = sums[0]  # first
    elif how == LAST and old > 10_000:
        sums[0] = 0


# -- tickets, and a barrier of all blocks by hand ----------------------------------------------------------------------


@cuda.jit
def last_block(data, parts, ticket, out, how):
    last = cuda.shared.array(1, int32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    parts[b, t] = data[b, t]
    if how == EARLY:
        cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        if how != EARLY and how != NONE:
            cuda.threadfence()
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        for other in range(cuda.gridDim.x):
            out[other, t] = parts[other, t]  # early, none
        if t == (5 if how == ANOTHER else 0):
            ticket[0] = 0  # for the next launch
    elif how == RESET and t == 0:
        ticket[0] = 0  # reset


@cuda.jit
def all_blocks_meet(data, arrived, out, how):
    i = cuda.grid(1)
    data[i] = i
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        if how != FENCE:
            cuda.threadfence()
        cuda.atomic.add(arrived, 0, 1)
        if how == POLL:
            while cuda.ldcv(arrived, 0) < cuda.gridDim.x:
                pass
        else:
            while how != WAIT and cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:
                pass
        cuda.threadfence()
    cuda.syncthreads()
    out[i] = data[data.size - 1 - i]  # fence, wait


# -- undefined values of shuffles --------------------------------------------------------------------------------------


@cuda.jit
def tree(data, out, n, how):
    """Sum a ragged warp; lanes from n on have returned."""
    t = cuda.threadIdx.x
    if t >= n:
        return
    mask = cuda.activemask() if how != FULL else ALL_LANES
    v = data[t]
    for k in range(5):
        d = 16 >> k
        other = cuda.shfl_down_sync(mask, v, d)  # full, ragged
        if t + d < n or how == FULL or how == RAGGED:
            v += other
    if t == 0:
        out[0] = v


@cuda.jit
def neighbour(data, out, n, how):
    t = cuda.threadIdx.x
    if t < n:
        right = cuda.shfl_down_sync(cuda.activemask(), data[t], 1)  # branch, store, index, add, vote
        inside = t + 1 < n
        if how == BRANCH:
            if right > data[t]:
                out[t] = 1
        elif how == STORE:
            out[t] = right
        elif how == INDEX:
            out[right] = 1
        elif how == ADD:
            cuda.atomic.add(out, t, right)
        elif how == VOTE:
            out[t] = cuda.any_sync(cuda.activemask(), right > 3)
        elif how == GUARD:
            if inside and right > data[t]:
                out[t] = 1
        elif how == SELECT:
            out[t] = data[t] + cuda.selp(inside, right, int32(0))
        elif how == MERGE:
            v = right if inside else data[t]
            out[t] = v
        elif how == AGAIN:  # the undefined value does not get to lane 0
            out[t] = cuda.shfl_sync(cuda.activemask(), right, 0)


@cuda.jit
def halves(data, out, how):
    """Half a warp sums with its own mask; only lane 0 has the sum."""
    t = cuda.threadIdx.x
    v = float32(data[t])
    if t < 16:
        for k in range(4):
            v += cuda.shfl_down_sync(0xFFFF, v, 8 >> k)  # two
    if t == 0 or how == TWO and t == 1:
        out[t] = v


CASES = {
    "histogram": (
        histogram[1, 128],
        lambda: (random(2, 128), zeros(600)),
        ("flush", "turn"),
        ("right", "index", "update"),
    ),
    "decide": (
        decide[2, 64],
        lambda: (random(64), zeros(128)),
        ("branch", "vote", "shuffle", "through"),
        ("guess", "swap", "after"),
    ),
    "relax": (relax[4, 64], lambda: (random(256, 2, below=50), np.arange(50, dtype=INT)), (), ("union", "min")),
    "total": (total[4, 64], lambda: (random(256), zeros(1), zeros(256)), ("first",), ("grid", "last")),
    "last_block": (
        last_block[5, 64],
        lambda: (random(5, 64), zeros(5, 64), zeros(1), zeros(5, 64)),
        ("early", "none", "reset"),
        ("right", "another"),
    ),
    "all_blocks_meet": (
        all_blocks_meet[4, 64],
        lambda: (zeros(256), zeros(1), zeros(256)),
        ("fence", "wait"),
        ("right", "poll"),
    ),
    "tree": (tree[1, 32], lambda: (random(32), zeros(1), 20), ("full", "ragged"), ("right",)),
    "neighbour": (
        neighbour[1, 32],
        lambda: (random(32), zeros(32), 20),
        ("branch", "store", "index", "add", "vote"),
        ("guard", "select", "merge", "again"),
    ),
    "halves": (halves[1, 32], lambda: (random(32), zeros(32)), ("two",), ("right",)),
}
WRONG_CASES = [(name, how) for name, (_, _, wrong, _) in CASES.items() for how in wrong]
RIGHT_CASES = [(name, how) for name, (_, _, _, right) in CASES.items() for how in right]


def findings(name, how):
    launch, arguments, _, _ = CASES[name]
    return gpukit.trace(launch, *arguments(), globals()[how.upper()]).findings


@pytest.mark.parametrize(("name", "how"), WRONG_CASES)
def test_a_wrong_kernel_is_found_at_its_line(name, how):
    found = findings(name, how)
    marks = [linecache.getline(f.filename, f.line).partition("# ")[2].strip().split(", ") for f in found]
    assert any(how in line for line in marks), found
    kind = "barrier-divergence" if "shfl" in found[0].code and name != "decide" else "race"
    assert {f.kind for f in found} == {kind} and all(f.message and f.cure and f.threads for f in found), found


@pytest.mark.parametrize(("name", "how"), RIGHT_CASES)
def test_a_right_kernel_gives_no_finding(name, how):
    assert not findings(name, how)


def test_what_to_do_about_a_missing_fence():
    (early,), (none,) = findings("last_block", "early"), findings("last_block", "none")
    assert "between the cuda.syncthreads() and the atomic operation" in early.cure
    assert none.block and "of block (4, 0, 0)" in none.message and "of block (0, 0, 0)" in none.message


def test_what_to_do_about_a_kernel_without_fences():
    @cuda.jit
    def kernel(data, ticket, out):
        data[cuda.blockIdx.x] = 1
        if cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1:
            out[0] = data[0]

    (found,) = gpukit.trace(kernel[3, 1], zeros(3), zeros(1), zeros(1)).findings
    assert found.kind == "race" and "put a cuda.threadfence() between the two" in found.cure


def test_threads_that_update_one_element_need_an_atomic_operation():
    @cuda.jit
    def count(data, counts, sums):
        i = cuda.grid(1)
        counts[data[i]] += 1
        sums[i] += sums[(i + 1) % sums.size]

    updates, neighbours = gpukit.trace(count[2, 64], random(128), zeros(32), zeros(128)).findings
    assert "cuda.atomic.add" in updates.cure and "cuda.atomic.add" not in neighbours.cure
