"""check_launch and checked(): they refuse what a launch refuses, on both backends, and translate the driver."""

import inspect
import os
import threading

import numpy as np
import pytest
from cuda.bindings.driver import CUresult
from cuda.core._utils.cuda_utils import CUDAError
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.cuda.cudadrv.driver import CudaAPIError

import gpukit
from bench import __main__ as bench
from bench.evidence import launch_errors as mistakes
from gpukit import backend, cuda, emulator, errors, matmul, on_gpu
from gpukit.errors import KernelError, LaunchError, check_launch, checked
from warpstep import cuda as emulated
from warpstep.launch import Configured


@cuda.jit
def count(out):
    cuda.atomic.add(out, 0, 1)


@emulated.jit
def fill(out):
    out[emulated.grid(1)] = 1


def line_of(code):
    """The number of the one line of the calling test that holds ``code``."""
    lines, first = inspect.getsourcelines(inspect.currentframe().f_back.f_code)
    (found,) = (i for i, line in enumerate(lines) if code in line and "line_of" not in line)
    return first + found


# -- check_launch ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "block", "shared", "words"),
    [
        (1, (64, 64), 0, ["4096 threads per block", "64 x 64 x 1", "1024", "32 x 32"]),
        (1, 1025, 0, ["block dimension x of 1,025", "1,024: use more blocks"]),
        (1, [1, 1, 65], 0, ["block dimension z of 65", "64"]),
        ((1, 65_536), 1, 0, ["grid dimension y of 65,536", "65,535", "grid-stride loop"]),
        (2**31, 1, 0, ["grid dimension x of 2,147,483,648", "2,147,483,647"]),
        (0, 1, 0, ["grid dimension x must be at least 1"]),
        (1, (8, -1), 0, ["block dimension y must be at least 1"]),
        (1, 1, 50_000, ["50,000 dynamic", "49,152", "allow_dynamic_shared"]),
        (1, 1, 300_000, ["300,000 dynamic"]),
    ],
)
def test_check_launch_names_the_limit_the_value_and_a_way_out(grid, block, shared, words):
    with pytest.raises(LaunchError) as raised:
        check_launch(count, grid, block, shared)
    assert all(word in str(raised.value) for word in ["count: ", *words]), str(raised.value)


EDGES = st.sampled_from([0, 1, 2, 31, 64, 65, 512, 1024, 1025, 65_535])
SHAPES = st.one_of(EDGES, st.tuples(EDGES), st.tuples(EDGES, EDGES), st.tuples(EDGES, EDGES, EDGES))


@settings(max_examples=60)
@given(
    block=SHAPES,
    grid=st.sampled_from([0, 1, 3, (2, 2), (1, 65_536), (1, 1, 65_536), (0, 1)]),
    shared=st.sampled_from([0, 4, 49_152, 49_153, 10**6]),
)
def test_check_launch_refuses_what_a_launch_refuses(grid, block, shared):
    """On a GPU the driver has the last word: what passes is launched, what is refused here is refused there."""
    out = cuda.to_device(np.zeros(1, np.int32))
    try:
        check_launch(count, grid, block, shared)
    except LaunchError as error:
        with pytest.raises(LaunchError) as raised, checked():
            count[grid, block, 0, shared](out)
        assert str(raised.value).startswith(str(error))
        assert out.copy_to_host()[0] == 0
    else:
        with checked():
            count[grid, block, 0, shared](out)
        assert out.copy_to_host()[0] == np.prod(grid) * np.prod(block)


def test_check_launch_knows_what_is_compiled():
    @cuda.jit
    def static(out):
        tile = cuda.shared.array(8192, np.float32)
        tile[cuda.threadIdx.x] = 1
        cuda.syncthreads()
        out[0] = tile[0]

    check_launch(static, 1, 1, 40_000)  # not compiled yet: its 32 KB are not known
    static[1, 1](cuda.to_device(np.zeros(1)))
    with pytest.raises(LaunchError, match=r"72,768 bytes.*32,768 static, 40,000 dynamic.*49,152"):
        check_launch(static, 1, 1, 40_000)
    check_launch(static, 1, 1, 16_384)

    @cuda.jit(launch_bounds=96)
    def bounded(out):
        out[0] = 1

    check_launch(bounded, 1, 96)
    with pytest.raises(LaunchError, match="97 threads.*launch_bounds allow 96"):
        check_launch(bounded, 1, 97)

    @cuda.jit
    def cooperative(out):
        cuda.cg.this_grid().sync()
        out[0] = 1

    check_launch(cooperative, 10**6, 256)
    cooperative[1, 256](cuda.to_device(np.zeros(1)))
    with pytest.raises(LaunchError, match="cooperative grid of 1,000,000 blocks"):
        check_launch(cooperative, 10**6, 256)


@pytest.mark.gpu
def test_check_launch_knows_registers():
    kernel = mistakes.sum_in_registers
    check_launch(kernel, 1, 1024)
    kernel[1, 32](cuda.to_device(np.ones(1100, np.float32)), cuda.to_device(np.zeros(32, np.float32)))
    with pytest.raises(LaunchError, match=r"1024 threads.*registers each.*65,536.*max_registers=64"):
        check_launch(kernel, 1, 1024)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: check_launch(len, 1, 1), TypeError, "kernel is <built-in function len>"),
        (lambda: check_launch(count, (1, 1, 1, 1), 1), ValueError, "grid is .* 1 to 3 dimensions"),
        (lambda: check_launch(count, 1, ()), ValueError, r"block is \(\)"),
        (lambda: check_launch(count, 1.5, 1), TypeError, "grid is 1.5"),
        (lambda: check_launch(count, 1, (1, True)), TypeError, "block is"),
        (lambda: check_launch(count, 1, 1, -4), ValueError, "shared_bytes is -4"),
        (lambda: check_launch(count, 1, 1, "48K"), TypeError, "shared_bytes is '48K'"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# -- checked ---------------------------------------------------------------------------------------


def test_a_refused_launch_knows_where_it_stands():
    out = cuda.to_device(np.zeros(1, np.int32))
    with pytest.raises(LaunchError) as raised, checked():
        count[2, 32](out)
        count[1, (64, 64)](out)
    launch = raised.value.launch
    assert (launch.kernel, launch.grid, launch.block) == ("count", (1, 1, 1), (64, 64, 1))
    assert (launch.filename, launch.line) == (__file__, line_of("count[1, (64, 64)]"))
    assert f"test_errors.py:{launch.line}" in str(raised.value)
    assert out.copy_to_host()[0] == 64


def test_a_wrong_kernel_knows_its_launch_and_its_line():
    with pytest.raises(KernelError) as raised, checked():
        fill[1, 32](np.zeros(24))
    error = raised.value
    assert (error.kind, error.thread, error.sticky) == ("out-of-bounds", (24, 0, 0), False)
    assert error.launch.line == line_of("fill[1, 32]")
    assert error.line != error.launch.line


def test_a_launch_inside_gpukit_names_its_caller():
    inside = os.path.join(os.path.dirname(gpukit.__file__), "chapter.py")
    namespace = {}
    exec(compile("def launch_too_much(kernel, out):\n    kernel[1, 4096](out)\n", inside, "exec"), namespace)
    launch_too_much = namespace["launch_too_much"]
    a = np.ones((4, 4), np.float32)
    with pytest.raises(LaunchError) as raised, checked():
        launch_too_much(count, np.zeros(1, np.int32))
    assert raised.value.launch.filename == inside
    assert raised.value.launch.called_from == (__file__, line_of("launch_too_much(count"))
    with checked():
        np.testing.assert_array_equal(matmul.matmul(a, a), a @ a)


def test_other_exceptions_pass_and_nothing_stays_behind():
    before = Configured.__call__
    with pytest.raises(ZeroDivisionError), checked():
        assert Configured.__call__ is not before
        with checked():
            fill[1, 8](np.zeros(8))
        1 / 0  # noqa: B018
    with pytest.raises(TypeError, match="takes 1 argument"), checked():
        fill[1, 8]()
    assert Configured.__call__ is before


def test_other_threads_are_not_watched():
    found = []

    def other():
        try:
            fill[1, (64, 64)](np.zeros(8))
        except LaunchError as error:
            found.append(error.launch)

    with checked():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == [None]


# -- what the driver says --------------------------------------------------------------------------


def api_error(code):
    return CudaAPIError(getattr(CUresult, code), f"Call to cuCtxSynchronize results in {code}")


class Refused:
    """Stands in for ``kernel[grid, block]`` of numba.cuda: its launch is refused, or fails later."""

    griddim, blockdim, sharedmem = (2, 1, 1), (32, 1, 1), 0

    def __init__(self, error=None):
        self.error, self.dispatcher = error, self
        self.py_func, self.targetoptions, self.overloads = fill.py_func, {}, {}

    def typeof_pyval(self, value):
        return type(value)

    def __call__(self, *args):
        if self.error is not None:
            raise self.error


@pytest.fixture
def driver(monkeypatch):
    """A GPU that works until ``driver.error`` is set, and the launches that numba.cuda would make on it."""

    class Driver:
        error = None

        def synchronize(self):
            if self.error is not None:
                raise self.error

    made = Driver()
    monkeypatch.setattr(errors, "cuda", made)
    monkeypatch.setattr(errors, "_launchers", lambda: (Configured, Refused))
    limits = emulator.device.current()
    monkeypatch.setattr(errors, "_gpu_limits", lambda: limits)
    return made


@pytest.mark.parametrize("code", errors.KERNEL_ERRORS)
def test_an_error_at_the_synchronisation(driver, code):
    with pytest.raises(KernelError) as raised, checked():
        Refused()(1)
        driver.error = api_error(code)
    error = raised.value
    assert code in str(error) and "this process must end" in str(error)
    assert error.sticky and error.kind == errors.KERNEL_ERRORS[code][0]
    assert (error.filename, error.line) == (__file__, line_of("Refused()(1)"))
    assert error.__cause__ is driver.error
    with pytest.raises(KernelError, match=r"outside of checked\(\)"), checked():
        pytest.fail("what was wrong before is said before")


def test_an_error_of_one_of_several_launches(driver):
    with pytest.raises(KernelError) as raised, checked():
        for _ in range(3):
            Refused()(1)  # first
        Refused()(1)  # second
        driver.error = api_error("CUDA_ERROR_ILLEGAL_ADDRESS")
        raise RuntimeError("another library's words for it")
    assert raised.value.launch is None and raised.value.line is None
    assert str(raised.value).count("fill launched at") == 2
    assert "every_launch=True" in str(raised.value)

    driver.error = None
    with pytest.raises(KernelError) as raised, checked(every_launch=True):
        Refused()(1)  # not this one
        driver.error = api_error("CUDA_ERROR_ILLEGAL_ADDRESS")
        Refused()(1)  # but this one
        pytest.fail("not reached")
    assert raised.value.line == line_of("but this one")


def test_an_earlier_error_that_comes_up_at_a_launch(driver):
    with pytest.raises(KernelError) as raised, checked():
        Refused()(1)  # this one
        Refused(CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS: While executing a kernel, ..."))(1)
    assert raised.value.line == line_of("this one")


def test_a_launch_that_the_driver_refuses(driver):
    refusal = CUDAError("CUDA_ERROR_INVALID_VALUE: This indicates that one or more of the parameters ...")
    with pytest.raises(LaunchError, match=r"the driver refused the launch \(CUDA_ERROR_INVALID_VALUE\)\n.*grid 2 x 1"):
        with checked():
            Refused(refusal)(1)
    bad = Refused(refusal)
    bad.blockdim = (64, 64, 1)
    with pytest.raises(LaunchError, match="4096 threads per block") as raised, checked():
        bad(1)
    assert raised.value.__cause__ is refusal
    linker = RuntimeError("error: Entry function 'fill' uses too much shared data (0x10000 bytes, 0xc000 max)")
    with pytest.raises(LaunchError, match="65,536 bytes of shared memory.*this device allows 49,152"), checked():
        Refused(linker)(1)
    memory = api_error("CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(CudaAPIError, match="OUT_OF_MEMORY"), checked():
        raise memory


# -- mistakes on purpose ---------------------------------------------------------------------------

REFUSED = "block_too_large grid_too_large empty_grid too_much_shared_memory beyond_launch_bounds".split()
#: kind, and whether a GPU's context survives it.
WRONG = {"far_out_of_bounds": "out-of-bounds", "misaligned_load": "misaligned"}


@pytest.fixture(scope="module")
def outcomes():
    """{(mistake, checked): Outcome}; on a GPU in many processes at a time."""
    return {(found.mistake, found.checked): found for found in mistakes.measure(jobs=10)}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_launches_leave_the_device_as_it_was(outcomes, name):
    raw, outcome = outcomes[name, False], outcomes[name, True]
    assert outcome.error == "LaunchError" and raw.stage == "launch"
    assert outcome.code.startswith("add_one") and outcome.afterwards == raw.afterwards == "works"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels(outcomes, name):
    raw, outcome = outcomes[name, False], outcomes[name, True]
    assert (outcome.error, outcome.kind) == ("KernelError", WRONG[name])
    if on_gpu():
        assert raw.stage == "synchronize" and outcome.sticky and "[1, 32](" in outcome.code
        assert "works" not in (raw.afterwards, outcome.afterwards)
    else:
        assert raw.stage == "launch" and outcome.sticky is False and "cuda.grid(1)" in outcome.code
        assert raw.afterwards == outcome.afterwards == "works"


def test_what_one_backend_does_not_notice(outcomes):
    found = [outcomes[name, True].error for name in ("past_the_end", "too_many_registers")]
    assert found == (["", "LaunchError"] if on_gpu() else ["KernelError", ""])
    endless = outcomes["endless_loop", True]
    assert endless.stage == "no end" if on_gpu() else endless.kind == "no-progress"


def test_the_emulator_survives_all_of_them():
    found = mistakes.emulated()
    assert list(found) == list(mistakes.MISTAKES)
    assert found["past_the_end"].kind == "out-of-bounds"
    with pytest.raises(ValueError, match="'nothing'; it must be one of block_too_large"):
        mistakes.make("nothing")


def test_the_bench_prints_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mistakes, "MISTAKES", {"empty_grid": mistakes.empty_grid})
    target = tmp_path / "errors.json"
    assert bench.main(["errors", "--save", str(target)]) == 0
    assert "grid dimension x must be at least 1" in capsys.readouterr().out
    monkeypatch.setattr(mistakes, "RECORDED", target)
    assert mistakes.recorded("empty_grid", False, backend.NAME) == mistakes.make("empty_grid", checked=False)
    with pytest.raises(KeyError):
        mistakes.recorded("nothing")


# -- replay --------------------------------------------------------------------------------------------


@emulated.jit
def shift(x, out):
    i = emulated.grid(1)
    out[i + 1] = x[i]


@emulated.jit
def spin(x):
    while x[0] >= 0:
        x[0] = 1


class Lost:
    """An array on a GPU whose context is lost."""

    def __init__(self, shape, dtype):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "data": (1 << 8, False),
            "strides": None,
            "version": 3,
        }


def test_replay_says_at_which_line_a_launch_on_a_gpu_failed():
    x = np.arange(64.0)
    try:
        try:
            raise api_error("CUDA_ERROR_ILLEGAL_ADDRESS")
        except CudaAPIError as error:
            raise RuntimeError("in a library") from error
    except RuntimeError:
        replayed = gpukit.replay(shift[1, 64], x, Lost((64,), "f8"))
    assert (replayed.gpu, replayed.lost) == ("CUDA_ERROR_ILLEGAL_ADDRESS", ("out",))
    (finding,) = replayed.trace.findings
    assert (finding.kind, finding.line, finding.threads) == ("out-of-bounds", shift_line(), ((63, 0, 0),))
    shown = str(replayed)
    assert shown.startswith("On the GPU: CUDA_ERROR_ILLEGAL_ADDRESS, a thread read or wrote where no memory")
    assert f"out-of-bounds, line {shift_line()}:  out[i + 1] = x[i]" in shown
    assert "Lost with the CUDA context: the contents of out. Zeros stood in" in shown
    assert list(x) == list(range(64))


def test_replay_of_what_never_ends_and_of_what_is_right():
    x = np.ones(1)
    endless = gpukit.replay(spin[1, 1], x, error=api_error("CUDA_ERROR_LAUNCH_TIMEOUT"))
    assert endless.gpu == "CUDA_ERROR_LAUNCH_TIMEOUT" and "went round without any change" in str(endless)
    right = gpukit.replay(shift[1, 63], np.ones(64), emulated.to_device(np.zeros(64)), error=ValueError("else"))
    assert "nothing is wrong in this launch with these arguments" in str(right) and not right.lost
    assert ("no error" if gpukit.on_gpu() else "there is none here") in str(right)
    with pytest.raises(TypeError, match=r"kernel\[grid, block\]"):
        gpukit.replay(shift, x)


def shift_line():
    return shift.py_func.__code__.co_firstlineno + 3
