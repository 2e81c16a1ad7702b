"""`gpukit.trace` as a user meets it: what it takes, what it gives, and what it does to the arrays."""

import inspect
import math
import tracemalloc

import numpy as np
import pytest
from numba import cuda as numba_cuda
from numba import float32, float64, int32, uint32

import gpukit
from gpukit import emulator, indexing, matmul, transpose
from warpstep import cuda as emulated
from warpstep import launch

FULL = 0xFFFFFFFF


def line_of(function, text):
    """Absolute number of the one line of a kernel that contains ``text``."""
    lines, first = inspect.getsourcelines(function)
    found = [first + i for i, line in enumerate(lines) if text in line]
    assert len(found) == 1, (text, found)
    return found[0]


def by_line(records, function, text):
    return [r for r in records if r.line == line_of(function, text)]


def sort_into_classes(x, out, wide):
    t = emulated.threadIdx.x
    i = emulated.grid(1)
    if i < x.size:
        value = x[i] * float32(2) + float32(1)
        if t % 2:
            value = value * 0.1
        out[i] = value
        wide[i] = (i * 3) // x.size


classes = emulated.jit(sort_into_classes)


@pytest.fixture
def data():
    return np.linspace(0, 1, 100, dtype=np.float32), np.zeros(100, np.float32), np.zeros(100, np.int64)


def test_the_launch_happens_and_results_come_back(data):
    x, out, wide = data
    gpukit.trace(classes[2, 64], x, out, wide)
    expected = x * 2 + 1
    expected[1::2] *= 0.1
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert (wide == np.arange(100) * 3 // 100).all()
    on_device = emulated.to_device(x)
    result = emulated.device_array(100, np.float32)
    trace = gpukit.trace(classes[2, 64], on_device, result, wide)
    np.testing.assert_allclose(result.copy_to_host(), expected, rtol=1e-6)
    assert not trace.findings


def test_a_wrong_access_is_left_out_and_the_kernel_goes_on():
    @emulated.jit
    def shift(a, out):
        i = emulated.grid(1)
        out[i + 1] = a[i]
        out[0] = float32(7)

    out = np.zeros(64, np.float32)
    trace = gpukit.trace(shift[1, 64], np.arange(64, dtype=np.float32), out)
    assert (out[1:] == np.arange(63)).all() and out[0] == 7
    (finding,) = trace.findings
    assert finding.kind == "out-of-bounds" and finding.line == line_of(shift.py_func, "out[i + 1]")
    assert finding.block == (0, 0, 0) and finding.threads == ((63, 0, 0),) and finding.count == 1
    assert finding.array == "out" and "64" in finding.message
    store = by_line(trace.accesses, shift.py_func, "out[i + 1]")[-1]
    assert store.op == "store" and store.requests == 2 and store.active_lanes == 31.5


def test_a_row_that_is_not_there_is_not_written():
    @emulated.jit
    def rows(a):
        row = a[emulated.threadIdx.x]
        for j in range(row.size):
            row[j] += float32(1)

    a = np.zeros((20, 3), np.float32)
    (finding,) = gpukit.trace(rows[1, 32], a).findings
    assert finding.kind == "out-of-bounds" and finding.count == 12 and (a == 1).all()


def test_accesses_by_line_array_and_operation(data):
    trace = gpukit.trace(classes[2, 64], *data)
    (load,) = by_line(trace.accesses, sort_into_classes, "float32(2)")
    assert (load.array, load.space, load.op, load.itemsize) == ("x", "global", "load", 4)
    assert (load.requests, load.sectors, load.ideal_sectors, load.active_lanes) == (4, 13, 13, 25)
    assert load.code == "value = x[i] * float32(2) + float32(1)" and load.filename == __file__
    (store,) = by_line(trace.accesses, sort_into_classes, "wide[i]")
    assert (store.op, store.itemsize, store.sectors) == ("store", 8, 25)
    total = trace.total("global")
    assert total.requests == 12 and total.sectors == 13 + 13 + 25 and total.wavefronts == 0
    assert trace.total("global", "load").requests == 4 and trace.total("shared").requests == 0
    assert trace.total().active_lanes == 25
    with pytest.raises(ValueError, match="space is 'constant'.*global, shared, local"):
        trace.total("constant")


def test_branches_and_arithmetic(data):
    trace = gpukit.trace(classes[2, 64], *data)
    guard, odd = trace.branches
    assert (guard.line, odd.line) == tuple(line_of(sort_into_classes, text) for text in ("if i < x.size", "if t % 2"))
    assert (guard.warps, guard.split, guard.waiting_lanes) == (4, 1, 28)
    assert (odd.warps, odd.split) == (4, 4) and odd.waiting_lanes == 12.5  # half of 32, 32, 32 and 4 lanes
    (scaled,) = by_line(trace.operations, sort_into_classes, "float32(2)")
    assert (scaled.fp32, scaled.fp64, scaled.threads, scaled.active_lanes) == (200, 0, 100, 25)
    (tenth,) = by_line(trace.operations, sort_into_classes, "0.1")
    assert (tenth.fp32, tenth.fp64, tenth.threads) == (0, 50, 50) and tenth.fp64_conversions > 0
    (divided,) = by_line(trace.operations, sort_into_classes, "//")
    assert (divided.int64, divided.int64_divisions) == (200, 100)
    kinds = {(a.kind, a.line) for a in trace.advice}
    assert ("float64", tenth.line) in kinds and ("int64-division", divided.line) in kinds
    assert ("idle-lanes", odd.line) in kinds and ("idle-lanes", guard.line) not in kinds


def test_float64_is_no_trap_where_the_arrays_hold_it():
    @emulated.jit
    def scale(a):
        i = emulated.grid(1)
        a[i] = a[i] * 0.5

    assert "float64" in {a.kind for a in gpukit.trace(scale[1, 32], np.ones(32, np.float32)).advice}
    assert "float64" not in {a.kind for a in gpukit.trace(scale[1, 32], np.ones(32)).advice}


def test_constants_are_converted_by_the_compiler_and_narrow_divisions_stay_narrow():
    @emulated.jit
    def scale(a, n, out):
        i = emulated.grid(1)
        out[i] = a[i] * float32(0.5)
        n[i] = n[i] // n[0]

    a, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    for dtype, divisions in ((np.uint32, 0), (np.int32, 32), (np.uint64, 32)):  # as in the PTX
        trace = gpukit.trace(scale[1, 32], a, np.ones(32, dtype), out)
        assert sum(o.int64_divisions for o in trace.operations) == divisions
        assert sum(o.fp64_conversions + o.fp64 for o in trace.operations) == 0


def test_a_division_by_a_constant_is_cheap():
    @emulated.jit
    def halve(a):
        i = emulated.grid(1)
        a[i] = i // 16 + i % 3

    trace = gpukit.trace(halve[1, 32], np.zeros(32, np.int64))
    assert sum(o.int64_divisions for o in trace.operations) == 0 and sum(o.int64 for o in trace.operations) == 96


def test_barriers_and_what_returned_before_them():
    @emulated.jit
    def reverse(a, n):
        s = emulated.shared.array(64, float32)
        t = emulated.threadIdx.x
        if t >= n:
            return
        s[t] = a[t]
        emulated.syncthreads()
        a[t] = s[n - 1 - t]
        emulated.syncwarp()

    trace = gpukit.trace(reverse[3, 64], np.arange(64, dtype=np.float32), 64)
    assert [(b.kind, b.passed) for b in trace.barriers] == [("block", 3), ("warp", 6)]
    assert {f.kind for f in trace.findings} <= {"race"}  # three blocks share one array
    assert not gpukit.trace(reverse[1, 64], np.arange(64, dtype=np.float32), 64).findings
    trace = gpukit.trace(reverse[1, 64], np.arange(64, dtype=np.float32), 40)
    assert not trace.findings
    (advice,) = [a for a in trace.advice if a.kind == "returned-before-barrier"]
    assert advice.line == line_of(reverse.py_func, "syncthreads")


def test_a_grid_of_too_few_dimensions_shows_in_the_coverage():
    """Case 2 of row A7: no error anywhere, and most of the result missing."""

    @emulated.jit
    def copy(a, b):
        x, y = emulated.grid(2)
        if y < a.shape[0] and x < a.shape[1]:
            b[y, x] = a[y, x]

    a = np.ones((50, 40), np.float32)
    trace = gpukit.trace(copy[math.ceil(40 / 8), (8, 8)], a, np.zeros_like(a))
    assert not trace.findings
    read, written = trace.coverage
    assert (read.array, read.elements, read.read, read.written) == ("a", 2000, 320, 0)
    assert (written.read, written.written, written.first_unwritten) == (0, 320, (8, 0))
    assert "unwritten" in {advice.kind for advice in trace.advice}
    whole = gpukit.trace(copy[(5, 7), (8, 8)], a, np.zeros_like(a))
    assert whole.coverage[1].written == 2000 and not {a.kind for a in whole.advice} & {"unwritten"}


def test_coverage_of_strided_and_overlapping_views():
    @emulated.jit
    def add(a, b, out):
        i = emulated.grid(1)
        out[i] = a[i] + b[i]

    base = emulated.to_device(np.arange(64, dtype=np.float32))
    out = np.zeros(16, np.float32)
    trace = gpukit.trace(add[1, 16], base[::2][:16], base[32:48], out)
    assert (out == np.arange(0, 32, 2) + np.arange(32, 48)).all()
    assert [c.read for c in trace.coverage] == [16, 16, 0]
    assert [a.sectors for a in trace.accesses if a.op == "load"] == [4, 2]


def test_traffic_counts_each_element_once():
    @emulated.jit
    def columns(a, out):
        i = emulated.grid(1)
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k]
        out[i] = total

    trace = gpukit.trace(columns[1, 32], np.ones((32, 32), np.float32), np.zeros(32, np.float32))
    assert trace.traffic.needed_bytes == 4 * (32 * 32 + 32)
    assert trace.traffic.moved_bytes == 32 * (32 * 32 + 4)  # every lane its own sector, 32 times
    assert trace.traffic.flops == 32 * 32
    assert trace.traffic.intensity == 32 * 32 / trace.traffic.needed_bytes
    (advice,) = [a for a in trace.advice if a.kind == "uncoalesced"]
    assert advice.line == line_of(columns.py_func, "total += ")
    silent = gpukit.trace(columns[1, 32], np.ones((32, 32), np.float32), np.zeros(32, np.float32), advice=False)
    assert not silent.advice and "Advice" not in str(silent) and silent.accesses == trace.accesses


def test_occupancy():
    @emulated.jit
    def shared(out):
        s = emulated.shared.array(2048, float64)
        s[emulated.threadIdx.x] = 1.0
        out[emulated.grid(1)] = s[emulated.threadIdx.x]

    @emulated.jit
    def plain(out):
        out[emulated.grid(1)] = 1.0

    out = np.zeros(1024)
    found = gpukit.trace(plain[1, 1024], out).occupancy
    assert (found.warps, found.max_warps, found.blocks, found.limited_by) == (64, 64, 2, "threads")
    assert gpukit.trace(plain[1, 32], out).occupancy.limited_by == "blocks"
    found = gpukit.trace(plain[1, 1024], out, registers=40).occupancy
    assert (found.blocks, found.limited_by, found.fraction) == (1, "registers", 0.5)
    found = gpukit.trace(shared[1, 64], out).occupancy  # 16 KB and 1 KB for the system, of 228 KB
    assert (found.blocks, found.shared_bytes, found.limited_by) == (13, 16384, "shared memory")
    with emulator.use_device((7, 5)):
        found = gpukit.trace(plain[1, 1024], out).occupancy
        assert (found.warps, found.max_warps) == (32, 32) and "T4" in found.device


def test_sampled_blocks_are_scaled_and_said():
    x = np.ones(6400, np.float32)
    out, wide = np.zeros(6400, np.float32), np.zeros(6400, np.int64)
    whole = gpukit.trace(classes[100, 64], x, out.copy(), wide.copy())
    sampled = gpukit.trace(classes[100, 64], x, out, wide, blocks=4)
    assert sampled.blocks == 4 and whole.blocks == 100
    assert sampled.total() == whole.total()
    assert [o.fp32 for o in sampled.operations] == [o.fp32 for o in whole.operations]
    assert sampled.traffic == whole.traffic
    assert set(np.flatnonzero(out) // 64) == {0, 33, 66, 99}
    assert "4 of 100 blocks" in str(sampled) and "scaled" in str(sampled)
    assert "unwritten" not in {a.kind for a in sampled.advice}
    assert gpukit.trace(classes[100, 64], x, out, wide, blocks=[5, 6]).blocks == 2
    assert gpukit.trace(classes[100, 64], x, out, wide, blocks=1000).blocks == 100


def test_the_largest_grid_takes_no_memory_by_its_size():
    @emulated.jit
    def clash(a):
        if emulated.threadIdx.x == 0:
            a[0] = emulated.blockIdx.x
            a[emulated.blockIdx.x % 3] = 1

    grid = 2**31 - 1
    tracemalloc.start()
    try:
        found = gpukit.trace(clash[grid, 1024], np.zeros(3), blocks=[5, grid - 1]).findings
        with pytest.raises(ValueError, match="blocks is None; of 2,147,483,647 blocks a trace runs"):
            gpukit.trace(clash[grid, 32], np.zeros(3))
        with pytest.raises(emulator.KernelError, match="index 2 is out of bounds"):
            clash[grid, 32](np.zeros(2))
        assert tracemalloc.get_traced_memory()[1] < 1 << 30
    finally:
        tracemalloc.stop()
    assert any("of block (5, 0, 0)" in f.message for f in found)


@pytest.mark.parametrize(
    "blocks, error, said",
    [(0, ValueError, "blocks is 0"), ([100], ValueError, "from 0 to 99"), ("all", TypeError, "blocks is 'all'")],
)
def test_blocks_that_are_not_there(data, blocks, error, said):
    x, out, wide = data
    with pytest.raises(error, match=said):
        gpukit.trace(classes[100, 64], x, out, wide, blocks=blocks)
    assert not out.any()


def test_what_is_not_a_launch(data):
    with pytest.raises(TypeError, match=r"kernel\[grid, block\]"):
        gpukit.trace(classes, *data)
    with pytest.raises(TypeError, match="takes 3 arguments, not 1"):
        gpukit.trace(classes[1, 32], data[0])
    with pytest.raises(ValueError, match="registers is 300"):
        gpukit.trace(classes[1, 32], *data, registers=300)
    with pytest.raises(emulator.LaunchError, match="2048 threads per block"):
        gpukit.trace(classes[1, (64, 32)], *data)
    with pytest.raises(TypeError, match="it must be a trace"):
        gpukit.compare(gpukit.trace(classes[1, 32], *data), "another")


def test_an_endless_loop_ends_the_trace():
    @emulated.jit
    def spin(flag):
        while flag[0] == 0:
            emulated.syncwarp()

    with pytest.raises(emulator.KernelError) as raised:
        gpukit.trace(spin[1, 32], np.zeros(1, np.int32))
    assert raised.value.kind == "no-progress"
    trace = raised.value.trace
    assert trace.status == "stopped" and trace.total("global", "load").requests >= 2
    assert str(trace).startswith("STOPPED: spin[1, 32]\n") and "went round without any change" in str(trace)
    assert "STOPPED" in trace._repr_html_() and "went round without any change" in trace._repr_html_()


def test_a_report_begins_with_the_status(data):
    for blocks, status in ((None, "complete"), (2, "complete"), (1, "partial"), ([1], "partial")):
        trace = gpukit.trace(classes[2, 64], *data, blocks=blocks)
        assert trace.status == status
        word = "PARTIAL" if status == "partial" else status
        assert str(trace).startswith(f"{word}: sort_into_classes[2, 64]\n")
        assert f"{word}</b>" in trace._repr_html_()
        assert f"{word};" in str(trace.compare(trace))
    assert "1 of 2 blocks traced, counts scaled to all" in str(trace)


def test_a_saved_trace_is_the_same_trace(tmp_path, data):
    @emulated.jit
    def pairs(values, out):
        s = emulated.shared.array(64, float32)
        t = emulated.threadIdx.x
        s[2 * t] = values[t].weight
        out[t] = s[63 - 2 * t]

    values = np.zeros(32, np.dtype([("key", np.int32), ("weight", np.float32)]))
    for trace in (
        gpukit.trace(classes[2, 64], *data),
        gpukit.trace(classes[2, 64], *data, blocks=1),
        gpukit.trace(pairs[1, 32], values, np.zeros(32, np.float32)),
    ):
        trace.save(tmp_path / "trace.json")
        loaded = gpukit.load_trace(str(tmp_path / "trace.json"))
        assert type(loaded) is type(trace) and loaded.status == trace.status
        assert str(loaded) == str(trace) and loaded._repr_html_() == trace._repr_html_()
        for name in vars(trace):
            assert getattr(loaded, name) == getattr(trace, name), name
        for before, after in zip(trace.accesses, loaded.accesses, strict=True):
            assert (after.worst.addresses == before.worst.addresses).all() and after.worst.active.dtype == bool
            assert [after.worst.label(a) for a in after.worst.addresses] == [
                before.worst.label(a) for a in before.worst.addresses
            ]
        assert loaded.predict().seconds == trace.predict().seconds
    loaded.plot_banks()


def test_what_is_no_saved_trace(tmp_path):
    path = tmp_path / "other.json"
    for text in ("", "[1]", '{"format": "another"}', '{"format": "warpstep trace 1", "kernel": "k"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="other.json.*no saved trace"):
            gpukit.load_trace(path)
    with pytest.raises(FileNotFoundError):
        gpukit.load_trace(tmp_path / "none.json")


def test_kernels_of_numba_cuda_itself():
    """Without a GPU too: their compiled form is never asked for."""

    @numba_cuda.jit(device=True)
    def twice(value):
        return value * uint32(2)

    @numba_cuda.jit
    def double(a):
        i = numba_cuda.grid(1)
        a[i] = twice(a[i])

    a = np.arange(32, dtype=np.uint32)
    trace = gpukit.trace(double[1, 32], a)
    assert (a == 2 * np.arange(32)).all() and trace.total("global").requests == 2
    line = line_of(twice.py_func, "return value")
    assert [o.line for o in trace.operations if o.int64] == [line]  # Numba widens uint32


def test_device_functions_are_counted_where_they_stand():
    @emulated.jit(device=True)
    def put(tile, row, column, value):
        tile[row, column] = value

    @emulated.jit
    def fill(out):
        tile = emulated.shared.array((32, 32), int32)
        t = emulated.threadIdx.x
        put(tile, t, 0, t)
        emulated.syncthreads()
        out[t] = tile[31 - t, 0]

    trace = gpukit.trace(fill[1, 32], np.zeros(32, np.int32))
    assert not trace.findings
    (store,) = by_line(trace.accesses, put.py_func, "tile[row, column]")
    assert (store.array, store.wavefronts, store.bank_conflicts) == ("tile", 32, 31)
    worst = store.worst
    assert worst.wavefronts == 32 and worst.active.all() and (np.diff(worst.addresses) == 128).all()
    assert worst.label(worst.addresses[5]) == "tile[5, 0]"


def test_a_race_names_both_sides_and_the_cure():
    @emulated.jit
    def shift(a):
        s = emulated.shared.array(64, float32)
        t = emulated.threadIdx.x
        s[t] = a[t]
        a[t] = s[63 - t]

    trace = gpukit.trace(shift[1, 64], np.ones(64, np.float32))
    (finding,) = trace.findings
    assert finding.kind == "race" and len(finding.threads) == 2 and finding.count == 64
    assert finding.line == line_of(shift.py_func, "s[63 - t]")
    assert f"line {line_of(shift.py_func, 's[t] = ')}" in finding.message and "syncthreads" in finding.cure


def test_a_fence_for_the_block_orders_nothing_between_blocks():
    def kernel_with(whole_device):
        @emulated.jit
        def pass_on(data, flag, out):
            t = emulated.grid(1)
            if t == 0:
                data[0] = 7
                if whole_device:
                    emulated.threadfence()
                else:
                    emulated.threadfence_block()
                emulated.atomic.add(flag, 0, 1)
            elif t == data.size:
                while emulated.atomic.add(flag, 0, 0) == 0:
                    emulated.nanosleep(100)
                out[0] = data[0]

        return pass_on

    for whole_device, reader, kinds in (
        (True, 64, set()),
        (False, 64, {"race"}),  # thread 64 is in the second block
        (False, 40, set()),
    ):
        data, flag, out = np.zeros(reader, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
        trace = gpukit.trace(kernel_with(whole_device)[2, 64], data, flag, out)
        assert {f.kind for f in trace.findings} == kinds and out[0] == 7


def test_shuffles_from_lanes_that_are_not_there():
    @emulated.jit
    def total(a, out, n):
        t = emulated.threadIdx.x
        if t < n:
            value = a[t]
            value += emulated.shfl_down_sync(FULL, value, 16)
            if t == 0:
                out[0] = value

    a, out = np.ones(32, np.float32), np.zeros(1, np.float32)
    assert not gpukit.trace(total[1, 32], a, out, 32).findings
    assert not gpukit.trace(total[1, 32], a, out, 17).findings  # nobody uses what lanes 1 to 15 got
    for threads, n in ((32, 16), (16, 16)):
        (finding,) = gpukit.trace(total[1, threads], a, out, n).findings
        assert finding.kind == "barrier-divergence" and finding.line == line_of(total.py_func, "shfl_down")
        assert finding.count == 1 and "lane 16" in finding.message and "is stored" in finding.message


def test_views_of_a_trace(data):
    trace = gpukit.trace(classes[2, 64], *data)
    assert "sort_into_classes" in str(trace) and repr(trace) == str(trace)
    assert "<table" in trace._repr_html_()
    assert "sort_into_classes" in str(gpukit.compare(trace, trace)) and str(trace.compare(trace))
    assert {"accesses", "findings", "advice", "coverage", "occupancy", "traffic"} <= set(dir(trace))
    with pytest.raises(AttributeError):
        trace.bank_conflicts  # noqa: B018


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_arrays_of_a_gpu_come_and_go():
    @numba_cuda.jit
    def add(a, b, out):
        i = numba_cuda.grid(1)
        if i < out.size:
            out[i] = a[i] + b[i]

    host = np.arange(1000, dtype=np.float32)
    base = numba_cuda.to_device(host)
    out = numba_cuda.to_device(np.zeros(999, np.float32))
    trace = gpukit.trace(add[4, 256], base[1:], base[:-1], out)
    assert (out.copy_to_host() == host[1:] + host[:-1]).all() and (base.copy_to_host() == host).all()
    assert trace.occupancy.registers > 0
    add[4, 256](base[1:], base[:-1], out)
    (first, second) = [a.sectors for a in trace.accesses if a.op == "load"]
    assert first > second  # one element off: the slice keeps its place in the allocation
    # In place through views that overlap: they must overlap in the emulator too.
    trace = gpukit.trace(add[4, 256], base[1:], base[1:], base[:-1])
    assert {f.kind for f in trace.findings} == {"race"}


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_of_other_libraries(library):
    module = pytest.importorskip(library)

    @numba_cuda.jit
    def scale(a, factor):
        y, x = numba_cuda.grid(2)
        if y < a.shape[0] and x < a.shape[1]:
            a[y, x] *= factor

    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = module.asarray(host) if library == "cupy" else module.tensor(host, device="cuda")
    view = array.T if library == "cupy" else array.t()
    trace = gpukit.trace(scale[(1, 1), (8, 8)], view, np.float32(3))
    back = module.asnumpy(array) if library == "cupy" else array.cpu().numpy()
    assert (back == host * 3).all() and not trace.findings


# -- the kernels of the course ---------------------------------------------------------------------


@pytest.fixture
def every_launch_is_traced(monkeypatch):
    """The traces of all launches of a test."""
    traces = []
    monkeypatch.setattr(launch.Configured, "__call__", lambda self, *args: traces.append(gpukit.trace(self, *args)))
    return traces


@pytest.mark.skipif(gpukit.on_gpu(), reason="the launches of gpukit's own functions go to the GPU")
def test_the_kernels_of_the_course_are_correct(every_launch_is_traced):
    rng = np.random.default_rng(7)
    x = rng.random(1000, np.float32)
    indexing.axpy(2, x, x)
    indexing.thread_table((2, 1, 2), (3, 4, 2))
    for dtype in (np.float32, np.float64):
        a, b = rng.random((37, 45)).astype(dtype), rng.random((45, 50)).astype(dtype)
        for variant in matmul.VARIANTS if dtype == np.float32 else matmul.SIMPLE:
            matmul.matmul(a, b, variant=variant)
        for variant in transpose.VARIANTS:
            transpose.transpose(a[:36, :44].copy() if variant == "wide" else a, variant=variant)
    assert len(every_launch_is_traced) >= 2 + len(matmul.VARIANTS) + len(matmul.SIMPLE) + 2 * len(transpose.VARIANTS)
    assert [finding for trace in every_launch_is_traced for finding in trace.findings] == []
