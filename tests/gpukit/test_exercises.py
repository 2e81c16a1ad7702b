"""The exercises: every grader is proven, and says what a learner needs to hear."""

import json

import numpy as np
import pytest

import gpukit
from gpukit import cuda, exercises
from gpukit.exercises import __main__ as command
from gpukit.exercises import proof
from gpukit.intrinsics import mma

NAMES = exercises.names()


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKIT_STATE", str(tmp_path))
    return tmp_path / "exercises.json"


@pytest.mark.parametrize("name", NAMES)
def test_the_grader_is_proven(name):
    """Its starter fails, its solutions pass, every wrong answer is refused for the right reason."""
    found = proof.prove(exercises.get(name))
    assert not found.faults
    assert len(found.unnamed) <= found.wrong // 2, "too many of the mistakes cannot be told apart"


@cuda.jit
def add_in_block(x, y, out):
    i = cuda.threadIdx.x
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def subtract(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] - y[i]


def test_a_verdict_says_which_thread_wrote_the_first_wrong_element(capsys):
    verdict = exercises.check("01-guard", subtract)
    assert not verdict.passed and verdict.reasons == ("wrong",) and verdict.says == ""
    shown = capsys.readouterr().out
    assert shown == str(verdict) + "\n"
    assert "out[0] is" in shown and "Thread (0, 0, 0) of block (0, 0, 0) wrote it. 256 of 256" in shown


def test_a_known_mistake_is_named():
    verdict = exercises.check("01-guard", add_in_block)
    assert verdict.reasons == ("unwritten",) and "threadIdx counts within a block" in verdict.says
    assert verdict.says in verdict._repr_html_()


@cuda.jit
def add_to_x(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        x[i] = x[i] + y[i]


@cuda.jit
def add_nothing(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out = x[i] + y[i]  # noqa: F841


@cuda.jit
def add_whole_arrays(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out = x + y  # noqa: F841


@cuda.jit
def axpy_without_index(a, x, y, out):
    i = cuda.grid(1)
    while i < out.size:
        out[i] = a * x + y[i]
        i += cuda.gridsize(1)


def test_what_leaves_the_same_outputs_may_be_another_mistake():
    """Nothing in the result: stored elsewhere or nowhere. Nothing compiled: for the same reason or another."""
    assert "`out = ...` gives the name a new value" in exercises.check("01-guard", add_nothing).says
    assert exercises.check("01-guard", add_to_x).says == ""
    assert "In NumPy this line adds whole arrays" in exercises.check("01-guard", add_whole_arrays).says
    verdict = exercises.check("01-stride", axpy_without_index)
    assert verdict.reasons == ("does not compile",) and verdict.says == ""


@cuda.jit
def half_a_fragment(a, b, out):
    lane, zero = cuda.threadIdx.x, np.float32(0)
    out[0, 0] = mma((a[0, lane],), (b[lane, 0],), (zero, zero, zero, zero))[0]


def test_a_function_for_kernels_says_itself_what_it_takes():
    shown = str(exercises.check("12-place", half_a_fragment))
    assert "No. NumbaTypeError: mma: a, b and c are" in shown and "Overload" not in shown


def test_a_wrong_prediction_does_not_give_the_right_one_away():
    assert exercises.check("04-strides", (1, 8, 8, 32, 1, 1)).passed
    shown = str(exercises.check("04-strides", [1, 8, 4, 32, 1, 2]))
    assert "2 of 6 are wrong, the first of them 4 at index 2" in shown and "must be" not in shown
    assert "No: 77 is not right." in str(exercises.check("04-strides", 77))


@cuda.jit
def one_row_of_threads_copies(x, weight, out):
    tile = cuda.shared.array((6, 10), np.float32)
    tx, ty, o = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    top, left, total = 4 * cuda.blockIdx.y, 8 * cuda.blockIdx.x, np.float32(0)
    for c in range(x.shape[0]):
        for e in range(tx, 60 if ty == 0 else 0, 8):
            row, col = top + e // 10, left + e % 10
            tile[e // 10, e % 10] = x[c, row, col] if row < x.shape[1] and col < x.shape[2] else np.float32(0)
        cuda.syncthreads()
        for tap in range(9):
            total += tile[ty + tap // 3, tx + tap % 3] * weight[o, c, tap // 3, tap % 3]
        cuda.syncthreads()
    if top + ty < out.shape[1] and left + tx < out.shape[2]:
        out[o, top + ty, left + tx] = total


def test_a_cost_that_no_known_mistake_has_is_not_explained_by_another():
    verdict = exercises.check("09-tile", one_row_of_threads_copies)
    assert verdict.reasons == ("cost: shared wavefronts", "cost: global requests") and not verdict.says
    assert "shared wavefronts," in str(verdict)


@cuda.jit
def tree_with_its_barrier_in_the_branch(x, out):
    values = cuda.shared.array(256, np.float32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    values[tid] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    step = 128
    while step > 0:
        if tid < step:
            values[tid] += values[tid + step]
            cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = values[0]


def test_what_is_right_but_doubtful_is_said():
    verdict = exercises.check("07-tree", tree_with_its_barrier_in_the_branch)
    assert verdict.passed and "let all threads of the block reach it" in str(verdict)
    assert "operations in float64 (par 0)" in str(verdict)


def test_what_is_no_kernel_gets_a_sentence():
    assert "write @cuda.jit above it" in str(exercises.check("01-guard", subtract.py_func))
    assert "pass the kernel alone" in str(exercises.check("01-guard", subtract[1, 32]))
    assert "write @cuda.jit(device=True) above" in str(exercises.check("01-index", subtract.py_func))
    with pytest.raises(ValueError, match="name is '01-gard', and there is no such exercise; near: 01-guard"):
        exercises.check("01-gard", subtract)


@cuda.jit
def never_done(x, y, out):
    i = 0
    while i >= 0:
        out[i % x.size] = i
        i += 1


def test_an_endless_loop_is_stopped():
    verdict = exercises.check("01-guard", never_done)
    assert verdict.reasons == ("no-progress",) and "GPUKIT_LOOP_LIMIT" not in str(verdict)


def test_a_schedule_that_races_is_refused_for_the_race(state):
    def unordered(schedule, tasks, buffers):
        for task in tasks:
            for stream, operation in enumerate(task):
                schedule.add(**operation, stream=stream)

    verdict = exercises.check("06-ring", unordered)
    assert verdict.reasons == ("race",) and "race: copy in 0 and kernel 0 both use data 0" in str(verdict)


def test_a_pipeline_is_watched(state):
    def in_default_stream(cuda, kernel, x, out, chunk, queues):
        for first in range(0, len(x), chunk):
            source = cuda.to_device(x[first : first + chunk], queues[0])
            target = cuda.device_array_like(source)
            kernel[-(-len(source) // 256), 256](source, target)
            target[:].copy_to_host(out[first : first + chunk], queues[0])

    verdict = exercises.check("06-pipeline", in_default_stream)
    assert verdict.reasons == ("wrong", "cost: time")
    assert "kernel 0 is in the default stream" in str(verdict) and "the function returns while copy out" in str(verdict)


def test_work_on_the_host_and_pageable_copies_are_no_pipeline(state):
    def on_the_host(cuda, kernel, x, out, chunk, queues):
        out[:] = 1 - x

    def with_events(cuda, kernel, x, out, chunk, queues):
        cuda.event()

    assert "the kernel is never launched" in str(exercises.check("06-pipeline", on_the_host))
    verdict = str(exercises.check("06-pipeline", with_events))
    assert "stand-in for cuda has no event" in verdict and ": cuda.event()" in verdict


def test_an_open_hole_is_not_a_failure(state):
    exercise = exercises.get("01-guard")
    verdict = exercises.check("01-guard", exercise.made_from(exercise.starter))
    assert verdict.untouched and not verdict.passed and not state.exists()


def test_progress_is_kept_and_survives_a_broken_file(state, capsys):
    exercise = exercises.get("01-guard")
    exercises.check("01-guard", subtract)
    assert exercises.progress().state("01-guard") == "tried"
    passed = exercises.check("01-guard", exercise.solutions[1])
    assert passed.passed and passed.score == passed.par
    exercises.check("01-guard", subtract)
    assert exercises.progress().state("01-guard") == "passed"
    assert json.loads(state.read_text())["01-guard"]["tries"] == 2
    exercises.hint("01-guard")
    exercises.hint("01-guard")
    assert "Hint 2 of" in capsys.readouterr().out
    state.write_text("{")
    assert exercises.progress().passed == 0
    state.write_text('{"version": 9, "01-guard": {"tries": "two", "score": "low", "passed": true, "new": 1}}')
    exercises.hint("01-guard")
    left = json.loads(state.read_text())
    assert left["version"] == 9 and left["01-guard"]["hints"] == left["01-guard"]["new"] == 1
    state.unlink()
    exercises.check("01-guard", exercise.solutions[0])
    assert exercises.progress().passed == 1


def test_a_file_of_solutions_is_verified(tmp_path, capsys):
    cell = "import numpy as np\nfrom gpukit import cuda, exercises\n" + exercises.solved("01-guard")
    cells = ["%matplotlib inline\nraise ValueError('a cell that fails')", cell + '\nexercises.check("01-guard", add)']
    notebook = {"cells": [{"cell_type": "code", "source": text.splitlines(True)} for text in cells]}
    path = tmp_path / "mine.ipynb"
    path.write_text(json.dumps(notebook))
    assert command.main(["verify", str(path)]) == 0
    shown = capsys.readouterr()
    assert "01-guard: passed  score" in shown.out and "1 of 1 passed" in shown.out and "a cell that fails" in shown.err
    path.write_text(json.dumps({"cells": []}))
    assert command.main(["verify", str(path)]) == 1


def test_a_file_that_exits_or_is_no_notebook_passes_nothing(tmp_path, state, capsys):
    script = tmp_path / "mine.py"
    script.write_text('from gpukit import exercises\nexercises.check("06-fill", 3)\nraise SystemExit(0)\n')
    assert command.main(["verify", str(script)]) == 1
    assert "0 of 1 passed" in capsys.readouterr().out and not state.exists()
    broken = tmp_path / "broken.ipynb"
    broken.write_text("[1]")
    with pytest.raises(SystemExit, match="2"):
        command.main(["verify", str(broken)])
    assert "is no notebook" in capsys.readouterr().err


@cuda.jit
def rotate_lanes(x, out):
    values = cuda.shared.array(32, np.float32)
    values[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    out[cuda.threadIdx.x] = cuda.shfl_sync(0xFFFFFFFF, values[cuda.threadIdx.x], (cuda.laneid + 1) % 32)


def test_a_shuffle_is_not_a_barrier_at_which_a_block_waits():
    x = np.arange(32, dtype=np.float32)
    trace = gpukit.trace(rotate_lanes[1, 32], x, np.zeros_like(x))
    assert exercises.METRICS["barriers"](trace) == 1 < len(trace.barriers)


def test_poison_never_equals_what_is_expected():
    for dtype in (np.float32, np.complex64, np.int32, np.uint8, bool):
        expected = np.zeros(3, dtype)
        assert not (exercises.Out(3, dtype).make(expected) == expected).any()
