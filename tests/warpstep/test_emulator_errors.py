"""What the emulator refuses, and how it says so.

Limits of the device, wrong accesses, barriers that hang, endless loops, unsupported constructs.
"""

import linecache
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numba.cuda
import numpy as np
import pytest
from numba.core.errors import TypingError as CoreTypingError
from numba.cuda import types as numba_types
from numba.cuda.core.errors import TypingError
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.target import CUDATypingContext
from numba.cuda.typing.templates import Signature

from gpukit import emulator
from warpstep import KernelError, LaunchError, UnsupportedError, cuda


def line_of(error):
    """The source line an error points at."""
    return linecache.getline(error.filename, error.line).strip()


@cuda.jit
def touch(out):
    if cuda.grid(1) == 0:
        out[0] = 1


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid, block, words",
    [
        (1, (64, 64), ["4096 threads per block", "64 x 64 x 1", "1024", "32 x 32"]),
        (1, 1025, ["1,025", "1,024", "dimension x"]),
        (1, (1, 1, 65), ["dimension z of 65", "64"]),
        ((1, 65536), 1, ["dimension y of 65,536", "65,535", "grid-stride loop"]),
        (0, 32, ["at least 1"]),
        (1, (8, 0), ["at least 1"]),
    ],
)
def test_launch_limits_name_the_limit_the_value_and_a_way_out(grid, block, words):
    out = np.zeros(1)
    with pytest.raises(LaunchError) as raised:
        touch[grid, block](out)
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert out[0] == 0


def test_shared_memory_limits():
    @cuda.jit
    def static(out):
        big = cuda.shared.array((128, 128), np.float32)
        out[0] = big.size

    with pytest.raises(LaunchError, match=r"65,536 bytes of shared memory.*allows 49,152"):
        static[1, 1](np.zeros(1))
    with pytest.raises(LaunchError, match=r"50,000 dynamic"):
        touch[1, 1, 0, 50_000](np.zeros(1))

    @cuda.jit
    def both(out):
        word, rest = cuda.shared.array(1, np.int32), cuda.shared.array(0, np.int32)
        word[0] = rest.size
        out[0] = word[0]

    out = np.zeros(1)
    both[1, 1, 0, 49_152 - 16](out)  # dynamic shared memory begins at a multiple of 16 bytes
    assert out[0] == (49_152 - 16) / 4
    with pytest.raises(LaunchError, match="49,152"):
        both[1, 1, 0, 49_152 - 12](out)


def test_dynamic_shared_memory_that_is_too_short_says_how_to_ask_for_more():
    @cuda.jit
    def halves(out):
        both = cuda.shared.array(0, np.float32)
        second = both[4:]
        second[cuda.threadIdx.x] = out[cuda.threadIdx.x]

    halves[1, 4, 0, 32](np.zeros(4))
    with pytest.raises(
        KernelError, match=r"gives a block 16 bytes of dynamic shared memory: give it more, kernel\[grid"
    ):
        halves[1, 4, 0, 16](np.zeros(4))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("alignment", "message"), [(4, "is 4; .* of 8"), (24, "is 24; .* of 2"), (16, None), (None, None)]
)
def test_alignment_of_an_array_is_what_numba_takes(shared, alignment, message):
    @cuda.jit
    def in_shared(out):
        buffer = cuda.shared.array(32, np.uint8, alignment=alignment)
        buffer[0] = 7
        out[0] = buffer[0]

    @cuda.jit
    def in_local(out):
        buffer = cuda.local.array(32, np.uint8, alignment=alignment)
        buffer[0] = 7
        out[0] = buffer[0]

    aligned = in_shared if shared else in_local
    out = np.zeros(1)
    if message is None:
        aligned[1, 1](out)
        assert out[0] == 7
        return
    with pytest.raises(TypingError, match=f"alignment {message}.*line "):
        aligned[1, 1](out)
    assert out[0] == 0
    touch[1, 1, 0, 49_152](np.zeros(1))


def test_limits_follow_the_emulated_device():
    @cuda.jit
    def sync(out):
        cuda.cg.this_grid().sync()
        out[0] = 1

    blocks = sync.compile("void(float64[::1])").max_cooperative_grid_blocks(256)
    sync[blocks, 256](np.zeros(1))
    with pytest.raises(LaunchError, match="cooperative grid"):
        sync[blocks + 1, 256](np.zeros(1))
    with emulator.use_device("7.5"):
        assert sync.compile("void(float64[::1])").max_cooperative_grid_blocks(256) < blocks


@pytest.mark.parametrize(
    "configure, error",
    [
        (lambda k: k[1](np.zeros(1)), ValueError),
        (lambda k: k(np.zeros(1)), ValueError),
        (lambda k: k[1.5, 1](np.zeros(1)), TypeError),
        (lambda k: k[(1, 1, 1, 1), 1](np.zeros(1)), ValueError),
        (lambda k: k[1, 1, 0, -4](np.zeros(1)), ValueError),
        (lambda k: k[1, 1](), TypeError),
        (lambda k: k[1, 1](np.zeros(1), 2), TypeError),
        (lambda k: k[1, 1](np.zeros((4, 4))[::2, ::2]), ValueError),
        (lambda k: k[1, 1]([1.0]), (TypeError, ValueError)),
        (lambda k: k.forall(-1), ValueError),
    ],
)
def test_wrong_launches_are_refused_as_numba_does(configure, error):
    with pytest.raises(error):
        configure(touch)


def test_an_array_that_numba_has_no_type_for_is_refused_by_its_dtype():
    with pytest.raises(TypeError, match="has dtype >f8, which Numba does not support"):
        touch[1, 1](np.zeros(1, ">f8"))
    with pytest.raises(ValueError, match="argument out is 18446744073709551616; an integer of a kernel has 64 bits"):
        touch[1, 1](2**64)


def test_jit_knows_its_options_and_signatures():
    with pytest.raises(TypeError, match="no option 'fastmaths'"):
        cuda.jit(fastmaths=True)
    with pytest.raises(UnsupportedError, match="link"):
        cuda.jit(link=["x.cu"])

    @cuda.jit("void(float32[::1], int32)", fastmath=True, max_registers=32, launch_bounds=64)
    def declared(out, n):
        out[0] = n + 0.5

    out = np.zeros(1, np.float32)
    declared[1, 64](out, 7)
    assert out[0] == 7.5
    with pytest.raises(TypeError, match="argument n is 7.9"):
        declared[1, 64](out, 7.9)
    with pytest.raises(TypeError, match="array of float64; the kernel.s signature declares float32"):
        declared[1, 1](np.zeros(1), 7)
    with pytest.raises(LaunchError, match="launch_bounds"):
        declared[1, 65](out, 1)
    with pytest.raises(TypeError, match="void return type"):
        cuda.jit("int32(int32)")(lambda x: x)


# -- accesses ----------------------------------------------------------------------------------------------------------


def test_out_of_bounds_names_array_shape_index_block_and_thread():
    @cuda.jit
    def copy(x, out):
        i = cuda.grid(1)
        out[i] = x[i]

    x, out = np.arange(40.0), np.zeros(64)
    with pytest.raises(KernelError) as raised:
        copy[2, 32](x, out)
    error = raised.value
    assert (error.kind, error.block, error.thread) == ("out-of-bounds", (1, 0, 0), (8, 0, 0))
    assert line_of(error) == "out[i] = x[i]"
    for word in ("index 40", "'x'", "(40,)", "block (1, 0, 0)", "thread (8, 0, 0)", "out[i] = x[i]"):
        assert word in str(error)
    assert (out == 0).all()  # nothing half-written reaches the host
    assert [entry.path.name for entry in raised.traceback] == ["test_emulator_errors.py", "launch.py"]


@pytest.mark.parametrize("space", ["global", "shared", "local", "atomic", "slice"])
def test_out_of_bounds_in_every_space_and_dimension(space):
    @cuda.jit
    def store(out, row, col):
        s = cuda.shared.array((4, 8), np.float32)
        p = cuda.local.array((4, 8), np.float32)
        if space == "global":
            out[row, col] = 1
        elif space == "shared":
            s[row, col] = 1
        elif space == "local":
            p[row, col] = 1
        elif space == "atomic":
            cuda.atomic.add(out, (row, col), 1)
        else:
            out[row][col] = 1

    for row, col in ((0, 8), (4, 0), (-5, 0), (0, -9)):
        with pytest.raises(KernelError, match="out of bounds"):
            store[1, 1](np.zeros((4, 8), np.float32), row, col)
    out = np.zeros((4, 8), np.float32)
    store[1, 1](out, -1, -8)  # a negative index counts from the end, as on the device
    assert space in ("shared", "local") or (out[3, 0] == 1 and out.sum() == 1)


def test_threads_that_are_masked_off_do_not_count():
    @cuda.jit
    def guarded(x, out):
        i = cuda.grid(1)
        if i < x.size:
            row = x[i:]
            out[i] = row[0] + x[i]

    out = np.zeros(50)
    guarded[2, 32](np.arange(50.0), out)
    assert (out == 2 * np.arange(50)).all()


def test_a_constant_array_cannot_be_written():
    table = np.arange(4.0)

    @cuda.jit
    def write(out):
        c = cuda.const.array_like(table)
        c[0] = out[0]

    with pytest.raises((KernelError, TypingError, CoreTypingError)):
        write[1, 1](np.zeros(1))


# -- barriers and loops ------------------------------------------------------------------------------------------------


def test_barrier_divergence_names_both_places():
    @cuda.jit
    def diverge(out):
        t = cuda.threadIdx.x
        if t < 16:
            cuda.syncthreads()
            out[t] = 1
        else:
            cuda.syncthreads()

    with pytest.raises(KernelError) as raised:
        diverge[2, 32](np.zeros(32))
    error = raised.value
    assert error.kind == "barrier-divergence" and error.block == (0, 0, 0) and line_of(error) == "cuda.syncthreads()"
    assert f"line {error.line + 3}" in str(error)


def test_a_barrier_that_only_some_threads_reach_again():
    @cuda.jit
    def uneven(out):
        for _ in range(cuda.threadIdx.x % 2 + 1):
            cuda.syncthreads()
        out[cuda.threadIdx.x] = cuda.syncthreads_count(1)

    with pytest.raises(KernelError, match="waits in syncthreads"):
        uneven[1, 32](np.zeros(32))


def test_threads_that_have_returned_are_not_waited_for():
    @cuda.jit
    def early(out):
        if cuda.threadIdx.x >= 20:
            return
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    out = np.zeros(32)
    early[1, 32](out)
    assert out.sum() == 20


def test_a_shuffle_that_a_named_lane_never_reaches():
    @cuda.jit
    def half(out):
        t = cuda.threadIdx.x
        if t < 16:
            out[t] = cuda.shfl_sync(0xFFFFFFFF, t, 0)
        else:
            cuda.syncthreads()

    with pytest.raises(KernelError, match="warp operation"):
        half[1, 32](np.zeros(32, np.int32))


def test_loops_that_get_nowhere_are_stopped():
    @cuda.jit
    def lock(flag, out):
        while cuda.atomic.cas(flag, 0, 0, 1) != 0:
            pass
        out[0] += 1

    with pytest.raises(KernelError) as raised:
        lock[1, 32](np.zeros(1, np.int32), np.zeros(1))
    assert raised.value.kind == "no-progress" and "cas" in line_of(raised.value)

    @cuda.jit
    def endless(out):
        while out[0] >= 0:
            out[0] = (out[0] + 7) % 1_000_003

    before = emulator.set_loop_limit(10_000)
    try:
        with pytest.raises(KernelError, match=r"more than 10,000 times"):
            endless[1, 1](np.zeros(1))
    finally:
        emulator.set_loop_limit(before)
    with pytest.raises(ValueError, match="turns is 0; it must be 1 or more"):
        emulator.set_loop_limit(0)


# -- what is not supported ---------------------------------------------------------------------------------------------


def test_unsupported_constructs_name_construct_and_line():
    @cuda.jit
    def vector(a, out):
        np.add(a, a, out)

    with pytest.raises(UnsupportedError, match=r"add.*line \d+, in vector"):
        vector[1, 1](np.zeros(3), np.zeros(3))

    @cuda.jit
    def listed(out):
        values = [1, 2]
        out[0] = values[0]

    with pytest.raises(UnsupportedError, match=r"a list, which a kernel cannot allocate.*line \d+, in listed"):
        listed[1, 1](np.zeros(1))

    @cuda.jit
    def yielding(out):
        yield out[0]

    with pytest.raises(UnsupportedError, match=r"a generator.*line \d+, in yielding"):
        yielding[1, 1](np.zeros(1))

    @cuda.jit
    def halved(x):
        x[0] /= 2

    with pytest.raises(UnsupportedError, match=r"/= on an integer.*write //=.*line \d+, in halved"):
        halved[1, 1](np.ones(1, np.int32))
    halves = np.ones(1, np.float32)
    halved[1, 1](halves)
    assert halves[0] == 0.5


def test_what_numba_refuses_is_refused_with_numbas_words():
    @cuda.jit
    def shape_from_argument(out, n):
        s = cuda.shared.array(n, np.float32)
        out[0] = s[0]

    with pytest.raises((TypingError, CoreTypingError), match="shared.array"):
        shape_from_argument[1, 1](np.zeros(1), 4)


def test_debug_kernels_raise_on_the_host_and_others_just_stop_the_thread():
    source = textwrap.dedent(
        """
        def kernel(out):
            i = cuda.grid(1)
            if i == 3:
                raise ValueError("three")
            out[i] = 1
        """
    )

    def make(**options):
        namespace = {"cuda": cuda}
        exec(source, namespace)  # no source file: lines are known, their text is not
        return cuda.jit(**options)(namespace["kernel"])

    out = np.zeros(8)
    make()[1, 8](out)
    assert out.tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    with pytest.raises(ValueError, match=r"line 5, tid=\[3, 0, 0\] ctaid=\[0, 0, 0\]: three"):
        make(debug=True, opt=False)[1, 8](np.zeros(8))


# -- threads -----------------------------------------------------------------------------------------------------------


def _behaviour(dispatcher):
    """What numba.cuda itself makes of a device function: the signatures that it compiles, or why it cannot."""
    try:
        return str(dispatcher.get_call_template((numba_types.float32,), {})[0].cases)
    except Exception as error:
        return type(error).__name__, str(error)


def test_compiling_in_threads_leaves_numba_cuda_as_it_is():
    def device_function():
        return numba.cuda.jit(device=True)(lambda value: value * np.float32(2))

    def kernel():
        double = device_function()

        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = double(abs(out[i]))

        return kernel

    def compile_and_launch(_):
        out = np.full(8, -3, np.float32)
        together.wait()
        kernel()[1, 8](out)
        return out

    classes = (CUDADispatcher, CUDATypingContext, Signature, numba_types.Dispatcher)
    attributes = [dict(vars(c)) for c in classes]
    behaviour = _behaviour(device_function())
    threads = 6
    together = threading.Barrier(threads)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for out in pool.map(compile_and_launch, range(3 * threads)):
                assert (out == 6).all()
    finally:
        sys.setswitchinterval(interval)
    assert [dict(vars(c)) for c in classes] == attributes
    assert _behaviour(device_function()) == behaviour


def test_more_branches_than_the_compiler_can_follow():
    lines = [f"    if x[0] > {k}:\n        y += 1" for k in range(600)]
    scope = {}
    exec("def kernel(x, out):\n    y = x[0]\n" + "\n".join(lines) + "\n    out[0] = y", scope)
    with pytest.raises(UnsupportedError, match=r"kernel has too many branches .* sys\.setrecursionlimit\(\)"):
        cuda.jit(scope["kernel"])[1, 1](np.ones(1), np.zeros(1))


def test_a_function_of_another_file_that_numba_inlines_keeps_its_place_and_names(tmp_path):
    helpers = tmp_path / "helpers_of_a_kernel.py"
    helpers.write_text(
        textwrap.dedent(
            """
            from numba import float32

            from warpstep import cuda

            @cuda.jit(device=True, inline=True)
            def scratch(x):
                work = cuda.local.array(2, float32)
                work[0] = x
                return work

            @cuda.jit(device=True, inline=True)
            def neighbour(x, i):
                return x[i + 1]
            """
        )
    )
    scope = {}
    exec(compile(helpers.read_text(), helpers, "exec"), scope)
    scratch, neighbour = scope["scratch"], scope["neighbour"]

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        work = scratch(x[i])
        out[i] = work[0] + work[1] + neighbour(x, i)

    arguments = np.zeros(32, np.float32), np.zeros(32, np.float32)
    outside, unwritten = emulator.trace(kernel[1, 32], *arguments).findings
    assert (outside.filename, outside.line, outside.code) == (str(helpers), 14, "return x[i + 1]")
    assert unwritten.filename == __file__ and unwritten.message.startswith("work[1] (local)")
    with pytest.raises(KernelError, match=r"helpers_of_a_kernel\.py:14\n    return x\[i \+ 1\]") as info:
        kernel[1, 32](*arguments)
    assert (info.value.filename, info.value.line) == (str(helpers), 14)


def test_an_error_inside_of_the_compiler_is_shown_with_the_line_it_was_at():
    @cuda.jit(device=True)
    def heat(cell):
        cell["temperature"] = 1

    @cuda.jit
    def kernel(cells):
        heat(cells[cuda.grid(1)])

    with pytest.raises(KeyError, match="temperature") as info:
        kernel[1, 1](np.zeros(1, [("warmth", np.float32)]))
    line = heat.py_func.__code__.co_firstlineno + 2
    (note,) = info.value.__notes__
    assert "types of kernel" in note and note.endswith(f'test_emulator_errors.py:{line}\n    cell["temperature"] = 1')
