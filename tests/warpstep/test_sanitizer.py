"""What used to pass silently: wrong kernels that a launch must stop or a trace must report, and their correct twins."""

import linecache

import numpy as np
import pytest

import gpukit
from gpukit import cuda
from warpstep.errors import KernelError


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
