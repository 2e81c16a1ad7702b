"""`gpukit.intrinsics`: wide loads and stores move what single ones do, clocks move forward, and what the hardware
cannot do is refused.
"""

import inspect
import re

import numpy as np
import pytest
from numba.core.errors import TypingError
from numba.cuda import float32, types

import gpukit
from gpukit import intrinsics, on_gpu
from gpukit.backend import cuda
from gpukit.intrinsics import (
    byte_perm,
    clock64,
    commit_copies,
    copy_async,
    copy_async2,
    copy_async4,
    copy_async8,
    dp2a_hi,
    dp2a_lo,
    dp4a,
    globaltimer,
    load2,
    load4,
    load8,
    load16,
    match_byte,
    mma,
    smid,
    store2,
    store4,
    wait_copies,
)
from warpstep import KernelError, LaunchError

WIDE = {2: (np.int8, np.float16, np.int32, np.uint32, np.float32, np.int64, np.float64), 4: (np.uint8, np.int16)}
WIDE[4] += (np.int32, np.uint32, np.float32)
WIDE |= {8: (np.int8, np.uint8, np.int16, np.uint16, np.float16), 16: (np.int8, np.uint8)}


@cuda.jit
def turn2(a, out):
    t = cuda.grid(1)
    if t < a.size // 2:
        x, y = load2(a, 2 * t)
        store2(out, 2 * t, y, x)


@cuda.jit
def turn4(a, out):
    t = cuda.grid(1)
    if t < a.size // 4:
        x, y, z, w = load4(a, 4 * t)
        store4(out, 4 * t, w, z, y, x)


@cuda.jit
def turn8(a, out):
    t = cuda.grid(1)
    if t < a.size // 8:
        values = load8(a, 8 * t)
        for k in range(8):
            out[8 * t + 7 - k] = values[k]


@cuda.jit
def turn16(a, out):
    t = cuda.grid(1)
    if t < a.size // 16:
        values = load16(a, 16 * t)
        for k in range(16):
            out[16 * t + 15 - k] = values[k]


@pytest.mark.parametrize(("count", "dtype"), [(count, dtype) for count in WIDE for dtype in WIDE[count]])
def test_elements_arrive_in_order(count, dtype):
    negative = np.dtype(dtype).kind != "u"
    a = np.random.default_rng(count).integers(-128 if negative else 0, 127, 100 * count).astype(dtype)
    out = np.zeros_like(a)
    {2: turn2, 4: turn4, 8: turn8, 16: turn16}[count][4, 32](a, out)
    np.testing.assert_array_equal(out, a.reshape(-1, count)[:, ::-1].ravel())


@cuda.jit
def through_shared(a, out):
    tile = cuda.shared.array((8, 16), float32, alignment=16)
    x = cuda.threadIdx.x
    y = cuda.threadIdx.y
    if (x + y) % 2 == 0:
        values = load4(a, (y, 4 * x))
        store4(tile, (y, 4 * x), values[0], values[1], values[2], values[3])
    else:
        for k in range(4):
            tile[y, 4 * x + k] = -a[y, 4 * x + k]
    cuda.syncthreads()
    values = load4(tile[7 - y], 4 * (3 - x))
    pair = load2(tile, (y, -2))
    store4(out, (y, 4 * x), values[0] + pair[1], values[1], values[2], index_sum(values))


@cuda.jit(device=True)
def index_sum(values):
    return values[0] + values[3]


def test_shared_memory_in_two_dimensions_by_some_threads():
    a = np.random.default_rng(1).random((8, 16), np.float32)
    out = np.zeros_like(a)
    through_shared[1, (4, 8)](a, out)
    x, y = np.arange(4)[:, None], np.arange(8)[:, None, None]
    tile = np.where((x + y) % 2 == 0, 1, -1).astype(np.float32) * a.reshape(8, 4, 4)
    values = tile[::-1, ::-1]
    expected = values.copy()
    expected[..., 0] = values[..., 0] + tile[:, 3:, 3]
    expected[..., 3] = values[..., 0] + values[..., 3]
    np.testing.assert_array_equal(out, expected.reshape(8, 16))


@cuda.jit
def convert(out):
    store4(out, index=0, a=1.75, b=-2, c=True, d=cuda.threadIdx.x + 7)


def test_stored_values_are_converted():
    for dtype, expected in ((np.int32, [1, -2, 1, 7]), (np.float32, [1.75, -2, 1, 7])):
        out = np.zeros(4, dtype)
        convert[1, 1](out)
        np.testing.assert_array_equal(out, expected)


@cuda.jit
def read_once(a, b, out):
    t = cuda.threadIdx.x
    w, x, y, z = load4(a, 4 * t, True)
    numbers = load8(b, 8 * t, True)
    out[t] = w + 2 * x + 3 * y + 5 * z + numbers[0] + 2 * numbers[7]


def test_what_is_read_once_need_not_stay_in_a_cache():
    a, b, out = np.arange(128, dtype=np.float32), np.arange(256).astype(np.float16), np.zeros(32, np.float32)
    read_once[1, 32](a, b, out)
    expected = a.reshape(32, 4) @ [1, 2, 3, 5] + b.reshape(32, 8) @ [1, 0, 0, 0, 0, 0, 0, 2]
    np.testing.assert_array_equal(out, expected)
    if on_gpu():
        (text,) = read_once.inspect_asm().values()
        assert text.count("ld.global.cs.v4.b32") == 2

    @cuda.jit
    def not_constant(a, once, out):
        out[0] = load4(a, 0, once)[0]

    with pytest.raises(TypingError, match="load4: once is bool.*; it must be True or False, as a constant"):
        not_constant[1, 1](a, True, out)


@cuda.jit
def load4_at(a, index, out):
    out[0] = load4(a, index)[3]


@cuda.jit
def load2_at(a, index, out):
    out[0] = load2(a, index)[1]


@cuda.jit
def load8_at(a, index, out):
    out[0] = load8(a, index)[7]


@cuda.jit
def load16_at(a, index, out):
    out[0] = load16(a, index)[15]


@pytest.mark.parametrize(("kernel", "dtype"), [(turn8, np.float16), (turn16, np.uint8)])
def test_short_elements_are_one_access_too(kernel, dtype):
    a = np.ones(16 * 32 // np.dtype(dtype).itemsize, dtype)
    trace = gpukit.trace(kernel[1, 32], a, np.zeros_like(a))
    loads = trace.total("global", "load")
    assert trace.findings == [] and (loads.requests, loads.sectors) == (1, 16)
    if on_gpu():
        # A kernel of its own: other tests compile this one for shorter elements.
        alone = cuda.jit(kernel.py_func)
        alone[1, 32](a, np.zeros_like(a))
        assert all("ld.global.v4" in text for text in alone.inspect_asm().values())


@pytest.mark.parametrize(
    ("kernel", "a", "index", "message"),
    [
        (load4_at, np.zeros(8), 0, "load4: array holds float64; it must hold integers or floats of at most 4 bytes"),
        (load8_at, np.zeros(8, np.float32), 0, "load8: array holds float32; .* at most 2 bytes"),
        (load16_at, np.zeros(16, np.float16), 0, "load16: array holds float16; .* at most 1 byte,"),
        (load2_at, np.zeros(8, np.complex64), 0, "load2: array holds complex64; .* at most 8 bytes"),
        (load2_at, np.zeros(8, np.bool_), 0, "load2: array holds bool"),
        (load4_at, np.zeros(16, np.float32)[::2], 0, "load4: array is .* must be a C-contiguous array"),
        (load4_at, np.float32(1), 0, "load4: array is float32; it must be a C-contiguous array"),
        (load2_at, np.zeros((4, 4), np.float32), 0, "load2: index is int64; .* one integer for each of .* 2 axes"),
        (load2_at, np.zeros(8, np.float32), 1.5, "load2: index is float64; .* one integer"),
    ],
)
def test_types_that_no_access_has_are_named(kernel, a, index, message):
    with pytest.raises(TypingError, match=message):
        kernel[1, 1](a, index, np.zeros(1))


def test_a_value_that_is_no_number_is_named():
    @cuda.jit
    def kernel(out):
        store2(out, 0, (1, 2), 3)

    with pytest.raises(TypingError, match=r"store2: the values are UniTuple\(.*\), .*; they must be numbers"):
        kernel[1, 1](np.zeros(2, np.float32))


@pytest.mark.parametrize(
    "name",
    [
        "load2",
        "load4",
        "load8",
        "load16",
        "store2",
        "store4",
        "clock64",
        "globaltimer",
        "smid",
        "byte_perm",
        "match_byte",
        "dp2a_lo",
        "dp2a_hi",
        "dp4a",
        "commit_copies",
        "wait_copies",
        "copy_async",
        "copy_async2",
        "copy_async4",
        "copy_async8",
    ],
)
def test_outside_a_kernel_they_say_so(name):
    function = getattr(intrinsics, name)
    count = len(inspect.signature(function).parameters)
    with pytest.raises(TypeError, match=f"{name} is for kernels and device functions"):
        function(*range(count))


@pytest.mark.skipif(on_gpu(), reason="a GPU checks no bounds, and ends the process at a misaligned address")
@pytest.mark.parametrize(("index", "message"), [(6, "out of bounds"), (2, "multiple of 16")])
def test_bounds_and_alignment_are_checked(index, message):
    a = np.arange(8, dtype=np.float32)
    with pytest.raises(KernelError, match=message):
        load4_at[1, 1](a, index, np.zeros(1))


@pytest.mark.skipif(not on_gpu(), reason="needs a GPU's compiler")
def test_each_is_one_instruction():
    through_shared[1, (4, 8)](*np.zeros((2, 8, 16), np.float32))
    (text,) = through_shared.inspect_asm().values()
    for instruction in ("ld.global.v4", "st.shared.v4", "ld.shared.v4", "ld.shared.v2", "st.global.v4"):
        assert instruction in text


# -- clocks ----------------------------------------------------------------------------------------


@cuda.jit
def wait(cycles, nanoseconds, out):
    i = cuda.grid(1)
    first, first_time = clock64(), globaltimer()
    while clock64() - first < cycles[i]:
        pass
    middle, middle_time = clock64(), globaltimer()
    while globaltimer() - middle_time < nanoseconds[i]:
        pass
    out[i, 0], out[i, 1] = middle - first, globaltimer() - middle_time
    out[i, 2], out[i, 3], out[i, 4] = smid(), first_time, globaltimer()


def waited(threads, blocks=3):
    random = np.random.default_rng(1)
    cycles, times = random.integers(0, 10**6, (2, blocks * threads))
    out = np.full((blocks * threads, 5), -1, np.int64)
    return cycles, times, out


def test_each_thread_waits_for_as_long_as_it_shall():
    cycles, times, out = waited(40)
    wait[3, 40](cycles, times, out)
    warps = np.arange(120) // 40 * 2 + np.arange(120) % 40 // 32  # lanes of a warp leave a loop together, on a GPU
    assert (out[:, 0] >= cycles).all() and (out[:, 1] >= times).all()
    for warp in range(6):
        lanes = warps == warp
        assert out[lanes, 0].max() < 2 * cycles[lanes].max() + 10_000
    sms = cuda.get_current_device().MULTIPROCESSOR_COUNT
    assert (out[:, 2] >= 0).all() and (out[:, 2] < sms).all()
    assert all(len(set(out[40 * block : 40 * block + 40, 2])) == 1 for block in range(3))


def test_the_timer_goes_on_from_launch_to_launch():
    cycles, times, out = waited(32)
    for _ in range(2):
        before = out.copy()
        wait[3, 32](cycles, times, out)
        cuda.synchronize()
        assert out[:, 3].min() > before[:, 4].max() or before[0, 4] == -1
        assert (out[:, 4] - out[:, 3] >= times).all()


def test_a_trace_waits_too_and_finds_nothing():
    cycles, times, out = waited(32)
    trace = gpukit.trace(wait[3, 32], cycles, times, out)
    assert not trace.findings and (out[:, 0] >= cycles).all()


@pytest.mark.skipif(on_gpu(), reason="the block scheduler of a GPU decides")
def test_emulated_blocks_are_dealt_out_in_turn():
    sms = cuda.get_current_device().MULTIPROCESSOR_COUNT

    @cuda.jit
    def where(out):
        out[cuda.grid(1)] = smid()

    out = np.full(2 * sms + 3, -1)
    where[out.size, 1](out)
    np.testing.assert_array_equal(out, np.arange(out.size) % sms)


# -- bytes in words --------------------------------------------------------------------------------


@cuda.jit
def on_bytes(a, b, c, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i, 0], out[i, 1] = byte_perm(a[i], b[i], c[i]), byte_perm(a[i], b[i], 0x5410)
        out[i, 2], out[i, 3] = dp2a_lo(a[i], b[i], c[i]), dp2a_hi(a[i], b[i], c[i])


@cuda.jit
def match_bytes(values, out):
    i = cuda.grid(1)
    out[i] = match_byte(values[i])


def test_lanes_with_the_same_byte_are_found():
    """Of all 32 lanes, whatever the other bytes hold."""
    values = np.random.default_rng(3).integers(0, 2**32, (6, 32), np.uint32)
    values[:4] &= np.array([0xFFFFFF00, 0xFFFFFF01, 0xFFFFFF81, 0xFFFFFF07], np.uint32)[:, None]
    out = np.zeros(values.size, np.uint32)
    match_bytes[3, 64](values.reshape(-1), out)
    low = values & 255
    same = (low[:, :, None] == low[:, None, :]).astype(np.uint64)
    np.testing.assert_array_equal(out.reshape(6, 32), same @ (np.uint64(1) << np.arange(32, dtype=np.uint64)))


def test_bytes_are_chosen_and_multiplied():
    """Against their bytes one by one in Python; all selectors' digits occur, and sums go round at 2**32."""
    a, b, c = np.random.default_rng(2).integers(0, 2**32, (3, 500), np.uint32)
    c[:16] = np.arange(16) * 0x1111
    out = np.zeros((a.size, 4), np.uint32)
    trace = gpukit.trace(on_bytes[4, 128], a, b, c, out)
    assert not trace.findings and sum(o.int64_divisions + o.fp64 for o in trace.operations) == 0
    traced = out.copy()
    out[...] = 0
    on_bytes[4, 128](a, b, c, out)
    assert np.array_equal(out, traced)
    for x, y, z, row in zip(a.tolist(), b.tolist(), c.tolist(), out.tolist(), strict=True):
        eight, four = (x | y << 32).to_bytes(8, "little"), y.to_bytes(4, "little")
        digits = [z >> 4 * i & 15 for i in range(4)]
        chosen = [eight[d & 7] >> 7 and 255 if d & 8 else eight[d & 7] for d in digits]
        expected = [
            int.from_bytes(bytes(chosen), "little"),
            int.from_bytes(bytes(eight[i] for i in (0, 1, 4, 5)), "little"),
        ]
        low, high = x & 0xFFFF, x >> 16
        expected += [(z + low * four[i] + high * four[i + 1]) % 2**32 for i in (0, 2)]
        assert row == expected


@cuda.jit
def dot(a, b, c, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = dp4a(a[i], b[i], c[i])


@pytest.mark.parametrize(("number", "byte"), [(np.int32, np.int8), (np.uint32, np.uint8)])
def test_four_products_at_once(number, byte):
    limits = np.iinfo(number)
    a, b, c = np.random.default_rng(3).integers(limits.min, limits.max, (3, 500), number)
    out = np.zeros_like(a)
    dot[4, 128](a, b, c, out)
    products = a.view(byte).astype(np.int64) * b.view(byte)
    assert np.array_equal(out, (c + products.reshape(-1, 4).sum(1)).astype(number))


# -- asynchronous copies ---------------------------------------------------------------------------

COPIES = {1: copy_async, 2: copy_async2, 4: copy_async4, 8: copy_async8}
COPIED = [(1, np.float32), (1, np.int32), (1, np.float64), (2, np.int16), (2, np.float16), (2, np.float32)]
COPIED += [(2, np.int64), (4, np.uint8), (4, np.uint16), (4, np.float32)]
COPIED += [(8, np.uint8), (8, np.float16)]


def turner_by_copies(count, dtype):
    """A kernel that turns two rows of 96 elements around; of the second it leaves out those after ``last``."""
    copy, number, size = COPIES[count], getattr(types, np.dtype(dtype).name), 96

    @cuda.jit
    def turn(a, last, out):
        tile = cuda.shared.array((2, size), number, alignment=16)
        t = cuda.threadIdx.x
        if count * t < size:
            copy(tile, (0, count * t), a, count * t)
        commit_copies()
        if count * t < size:
            first = size + count * t
            copy(tile, (1, count * t), a, (first if count * t <= last else 1 << 40), count * t <= last)
        commit_copies()
        wait_copies(1)
        cuda.syncthreads()
        out[0, t] = tile[0, size - 1 - t]
        wait_copies(0)
        cuda.syncthreads()
        out[1, t] = tile[1, size - 1 - t]

    return turn


@pytest.mark.parametrize(("count", "dtype"), COPIED)
@pytest.mark.parametrize("last", [-1, 40, 95])
def test_copies_arrive_and_leave_zeros_where_they_are_guarded(count, dtype, last):
    a = np.random.default_rng(count).integers(1, 127, 192).astype(dtype)
    out = np.full((2, 96), 99, dtype)
    turner_by_copies(count, dtype)[1, 96](a, last, out)
    expected = a.reshape(2, 96).copy()
    expected[1, np.arange(96) // count * count > last] = 0
    np.testing.assert_array_equal(out, expected[:, ::-1])


@pytest.mark.parametrize("n", [0, 4, 5])
def test_a_guard_may_be_the_same_for_all_threads(n):
    @cuda.jit
    def copy_if(a, n, out):
        tile = cuda.shared.array(40, float32)
        t = cuda.threadIdx.x
        copy_async(tile, t, a, t, n < 5)
        commit_copies()
        wait_copies(0)
        out[t] = tile[t]

    a = np.arange(1, 41, dtype=np.float32)
    out = np.full(40, 99, np.float32)
    trace = gpukit.trace(copy_if[1, 40], a, np.uint32(n), out)
    np.testing.assert_array_equal(out, a if n < 5 else 0)
    assert trace.findings == [] and trace.total("global", "load").sectors == (5 if n < 5 else 0)


def pipeline(pending=0, barrier=True, last_barrier=True, peek=False):
    """A kernel that copies rows to shared memory and reads them there, with what it needs left out."""

    @cuda.jit
    def read_rows(a, out):
        row = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        for i in range(a.shape[0]):
            copy_async(row, t, a, (i, t))
            commit_copies()
            if peek:
                out[i, t] = row[t]
            wait_copies(pending)
            if barrier:
                cuda.syncthreads()
            out[i, t] = row[63 - t]
            if last_barrier:
                cuda.syncthreads()

    return read_rows


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({}, None),
        ({"pending": 1}, r"thread \(0, .* reads row\[63\] .*, thread \(63, .* copies to it .*, and has not waited"),
        ({"barrier": False}, r"thread \(0, .* reads row\[63\] .*, thread \(63, .* writes it .*, and nothing orders"),
        ({"last_barrier": False}, r"thread \(0, .* copies to row\[0\] .*, thread \(63, .* reads it .* nothing orders"),
        ({"peek": True}, r"thread \(0, .* reads row\[0\] .*, thread \(0, .* copies to it .* and has not waited"),
    ],
)
def test_a_trace_demands_the_wait_and_both_barriers(missing, message):
    a = np.random.default_rng(5).random((3, 64), np.float32)
    out = np.zeros_like(a)
    trace = gpukit.trace(pipeline(**missing)[1, 64], a, out)
    races = [finding for finding in trace.findings if finding.kind == "race"]
    if message is None:
        np.testing.assert_array_equal(out, a[:, ::-1])
        assert not trace.findings
        assert trace.total("global", "load").sectors == trace.total("shared", "store").wavefronts * 4 == 24
    else:
        assert any(re.search(message, race.message) for race in races)


@pytest.mark.skipif(on_gpu(), reason="a GPU may be quick enough to hide it")
def test_without_the_wait_what_was_there_before_is_read():
    a = np.random.default_rng(6).random((3, 64), np.float32)
    out = np.zeros_like(a)
    pipeline(pending=1)[1, 64](a, out)
    assert np.isnan(out[0]).all() and np.array_equal(out[1:], a[:2, ::-1])


def copying(copy, target=np.float32, source=np.float32, index=0):
    number, from_number = (getattr(types, np.dtype(dtype).name) for dtype in (target, source))

    @cuda.jit
    def kernel(out):
        tile = cuda.shared.array(16, number)
        from_tile = cuda.shared.array(16, from_number)
        copy(tile, index, from_tile, 0)
        out[0] = 1

    return kernel


@cuda.jit
def wait_for_some(a):
    wait_copies(a.size)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (copying(copy_async, np.int16, np.int16), "copy_async: 1 of int16 are no copy of 4, 8 or 16 bytes"),
        (copying(copy_async4, np.float64, np.float64), "copy_async4: 4 of float64 are no copy"),
        (copying(copy_async, np.int32), "copy_async: target holds int32 and source float32; they must be alike"),
        (copying(copy_async, index=1.5), "copy_async: index is float64; it must be one integer"),
        (wait_for_some, "wait_copies: most is int64; it must be a constant, 0 or more"),
    ],
)
def test_copies_that_there_are_not_are_named(kernel, message):
    with pytest.raises(TypingError, match=message):
        kernel[1, 1](np.zeros(1))


@pytest.mark.skipif(on_gpu(), reason="a GPU checks no bounds, and ends the process at a misaligned address")
@pytest.mark.parametrize(("last", "message"), [(300, "out of bounds"), (-1, None)])
def test_bounds_of_a_source_hold_where_it_is_read(last, message):
    kernel, a, out = turner_by_copies(4, np.float32), np.zeros(96, np.float32), np.zeros((2, 96), np.float32)
    if message is None:
        kernel[1, 96](a, last, out)
    else:
        with pytest.raises(KernelError, match=message):
            kernel[1, 96](a, last, out)


@pytest.mark.skipif(not on_gpu(), reason="needs a GPU's compiler")
def test_each_copy_is_one_instruction():
    kernel = turner_by_copies(4, np.float32)
    kernel[1, 96](np.zeros(192, np.float32), 5, np.zeros((2, 96), np.float32))
    (text,) = kernel.inspect_asm().values()
    assert text.count("cp.async.cg.shared.global") == 2 and text.count("cp.async.wait_group") == 2


# -- dynamic shared memory beyond 48 KB ------------------------------------------------------------


def turner():
    """A new kernel, of which nothing is compiled or allowed yet."""

    @cuda.jit
    def turn(a, out):
        buffer = cuda.shared.array(0, float32)
        for i in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
            buffer[i] = a[i]
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
            out[i] = buffer[a.size - 1 - i]

    return turn


def turned(kernel, n, dtype=np.float32):
    a, out = np.arange(n, dtype=dtype), np.full(n, -1, dtype)
    kernel[1, 64, 0, 4 * n](a, out)
    cuda.synchronize()
    return np.array_equal(out, a[::-1])


def test_a_kernel_gets_the_dynamic_shared_memory_that_was_allowed():
    most = cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    compiled_before, compiled_after = turner(), turner()
    assert turned(compiled_before, 48 * 256)
    for kernel in (compiled_before, compiled_after):
        intrinsics.allow_dynamic_shared(kernel, most)
        intrinsics.allow_dynamic_shared(kernel, 1000)  # does not take back what was allowed
        assert turned(kernel, most // 4)
        assert turned(kernel, most // 4, np.float64), "types that come later are allowed as much"
        assert turned(kernel, 10)


def test_without_leave_48_kb_are_the_limit():
    kernel = turner()
    with pytest.raises(Exception, match="INVALID_VALUE" if on_gpu() else "allow_dynamic_shared.kernel, 49156."):
        turned(kernel, 48 * 256 + 1)
    intrinsics.allow_dynamic_shared(kernel, 60_000)
    assert turned(kernel, 15_000)
    with pytest.raises(Exception, match="INVALID_VALUE" if on_gpu() else "this kernel was allowed 60,000"):
        turned(kernel, 15_001)


def test_a_trace_has_what_was_allowed():
    kernel, n = turner(), 15_000
    a, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    intrinsics.allow_dynamic_shared(kernel, 4 * n)
    trace = gpukit.trace(kernel[1, 64, 0, 4 * n], a, out)
    assert trace.shared_bytes == 4 * n and not trace.findings
    np.testing.assert_array_equal(out, a[::-1])


def test_more_than_the_device_has_is_refused_with_the_limit():
    most = cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN

    @cuda.jit
    def both(out):
        fixed = cuda.shared.array(256, float32)
        buffer = cuda.shared.array(0, float32)
        fixed[cuda.threadIdx.x] = 1
        buffer[cuda.threadIdx.x] = 2
        out[cuda.threadIdx.x] = fixed[cuda.threadIdx.x] + buffer[cuda.threadIdx.x]

    out = np.zeros(32, np.float32)
    both[1, 32, 0, 128](out)
    with pytest.raises(LaunchError, match=f"both: {most:,} bytes of dynamic .* 1,024 static; .* allows {most:,}"):
        intrinsics.allow_dynamic_shared(both, most)
    intrinsics.allow_dynamic_shared(both, most - 1024)
    both[1, 32, 0, most - 1024](out)
    assert (out == 3).all()
    with pytest.raises(LaunchError, match="allows"):
        intrinsics.allow_dynamic_shared(turner(), most + 1)


@pytest.mark.parametrize(
    ("kernel", "nbytes", "error", "message"),
    [
        (print, 1, TypeError, "kernel is <built-in function print>"),
        (turner(), -1, ValueError, "nbytes is -1"),
        (turner(), 1.5, TypeError, "nbytes is 1.5"),
    ],
)
def test_bad_arguments_of_allow_dynamic_shared(kernel, nbytes, error, message):
    with pytest.raises(error, match=message):
        intrinsics.allow_dynamic_shared(kernel, nbytes)


@cuda.jit
def multiply_fragments(a, b, out):
    """One product of a tensor core, 16 x 16 by 16 x 8, each lane with the elements that `mma` names."""
    lane = cuda.threadIdx.x
    g, t = lane // 4, lane % 4
    left = (
        a[g, t],
        a[g + 8, t],
        a[g, t + 4],
        a[g + 8, t + 4],
        a[g, t + 8],
        a[g + 8, t + 8],
        a[g, t + 12],
        a[g + 8, t + 12],
    )
    right = b[t, g], b[t + 4, g], b[t + 8, g], b[t + 12, g]
    c = mma(left, right, (1.0, 2.0, 3.0, 4.0))
    out[g, 2 * t], out[g, 2 * t + 1], out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c[0], c[1], c[2], c[3]


@cuda.jit
def multiply_small_fragments(a, b, out):
    """The same for the smaller products: 16 x 8, 16 x 4 and 8 x 4."""
    lane = cuda.threadIdx.x
    g, t = lane // 4, lane % 4
    c = mma((a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]), (b[t, g], b[t + 4, g]), (0.0, 0.0, 0.0, 0.0))
    c = mma((a[g, t + 8], a[g + 8, t + 8]), (b[t + 8, g],), c)
    top = mma((a[g, t + 12],), (b[t + 12, g],), (c[0], c[1]))
    bottom = mma((a[g + 8, t + 12],), (b[t + 12, g],), (c[2], c[3]))
    out[g, 2 * t], out[g, 2 * t + 1], out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = top[0], top[1], bottom[0], bottom[1]


def test_products_of_tensor_cores():
    random = np.random.default_rng(5)
    a, b = random.standard_normal((16, 16)), random.standard_normal((16, 8))
    added = np.tile([1.0, 2.0], (8, 4)), np.tile([3.0, 4.0], (8, 4))
    for kernel, c in ((multiply_fragments, np.concatenate(added)), (multiply_small_fragments, 0)):
        out = np.full((16, 8), np.nan)
        kernel[1, 32](a, b, out)
        np.testing.assert_allclose(out, a @ b + c, atol=1e-13)


@cuda.jit
def multiply_halves(a, b, out):
    """16 x 16 by 16 x 8 of float16."""
    lane = cuda.threadIdx.x
    g, t = lane // 4, lane % 4 * 2
    left = (
        a[g, t],
        a[g, t + 1],
        a[g + 8, t],
        a[g + 8, t + 1],
        a[g, t + 8],
        a[g, t + 9],
        a[g + 8, t + 8],
        a[g + 8, t + 9],
    )
    zero = np.float32(0)
    c = mma(left, (b[t, g], b[t + 1, g], b[t + 8, g], b[t + 9, g]), (zero, zero, zero, zero))
    c = mma(left[:4], (b[t, g], b[t + 1, g]), c)  # the first half of K once more
    out[g, t], out[g, t + 1], out[g + 8, t], out[g + 8, t + 1] = c[0], c[1], c[2], c[3]


def make_multiply_words(halves):
    """16 rows by 8 columns, of words that hold one TF32, two bfloat16 (or float16) or four bytes each along K; ``out``
    is 0.
    """
    float16 = types.float16

    @cuda.jit
    def multiply_words(a, b, out):
        lane = cuda.threadIdx.x
        g, t = lane // 4, lane % 4
        zero = out[0, 0]
        left, right = (a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]), (b[t, g], b[t + 4, g])
        c = zero, zero, zero, zero
        c = mma(left, right, c, float16) if halves else mma(left, right, c)
        c = mma(left[:2], right[:1], c, float16) if halves else mma(left[:2], right[:1], c)
        out[g, 2 * t], out[g, 2 * t + 1], out[g + 8, 2 * t], out[g + 8, 2 * t + 1] = c[0], c[1], c[2], c[3]

    return multiply_words


multiply_words = make_multiply_words(False)


def twice_the_first_half(a, b):
    half = a.shape[1] // 2
    return a @ b + a[:, :half] @ b[:half]


def test_products_of_short_numbers():
    """Exact for small integers; TF32 ignores the last 13 bits."""
    random = np.random.default_rng(6)
    a, b = (random.integers(-9, 9, shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    out = np.full((16, 8), np.nan, np.float32)
    multiply_halves[1, 32](a, b, out)
    exact = twice_the_first_half(a.astype(np.float32), b.astype(np.float32))
    assert np.array_equal(out, exact)
    out[:] = 0
    words = a.view(np.uint32), b.T.copy().view(np.uint32).T.copy()
    make_multiply_words(True)[1, 32](*words, out)
    assert np.array_equal(out, exact)

    a, b = random.standard_normal((16, 8), np.float32), random.standard_normal((8, 8), np.float32)
    out[:] = 0
    multiply_words[1, 32](a, b, out)
    cut = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(out, twice_the_first_half(*cut), atol=3e-6)
    assert abs(out - twice_the_first_half(a, b)).max() > 1e-5

    a, b = (random.integers(-9, 9, shape).astype(np.float32) for shape in ((16, 16), (16, 8)))
    halves = [np.ascontiguousarray(x).view(np.uint32) >> np.uint32(16) for x in (a, b)]
    words = halves[0][:, ::2] | halves[0][:, 1::2] << np.uint32(16), halves[1][::2] | halves[1][1::2] << np.uint32(16)
    out[:] = 0
    multiply_words[1, 32](*map(np.ascontiguousarray, words), out)
    assert np.array_equal(out, twice_the_first_half(a, b))

    a, b = random.integers(-128, 128, (16, 32)), random.integers(-128, 128, (32, 8))
    words = a.astype(np.int8).view(np.int32), np.ascontiguousarray(b.astype(np.int8).T).view(np.int32).T.copy()
    out = np.zeros((16, 8), np.int32)
    multiply_words[1, 32](*words, out)
    assert np.array_equal(out, twice_the_first_half(a, b))


def test_a_product_needs_whole_warps_and_known_sizes():
    @cuda.jit
    def some_lanes(out):
        if cuda.threadIdx.x < 16:
            c = mma((1.0,), (1.0,), (0.0, 0.0))
            out[cuda.threadIdx.x] = c[0]

    @cuda.jit
    def other_sizes(out):
        out[0] = mma((1.0, 1.0), (1.0, 1.0), (0.0, 0.0))[0]

    with pytest.raises(TypingError, match=r"mma: a, b and c are .*; they must be tuples of one of these"):
        other_sizes[1, 32](np.zeros(1))
    with pytest.raises(TypingError, match=r"mma: dtype is .*float16.*, and a is .*; it must be a tuple of uint32 then"):
        make_multiply_words(True)[1, 32](*(np.zeros((16, 8), np.float32),) * 3)
    assert [f.kind for f in gpukit.trace(some_lanes[1, 32], np.zeros(32)).findings] == ["barrier-divergence"]
