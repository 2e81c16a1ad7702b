from dataclasses import replace

import numpy as np
import pytest
from numba.cuda import float32

import gpukit
from gpukit import pitfalls, results, timing, transpose
from warpstep import cuda, prediction
from warpstep.prediction import plots
from warpstep.tracing.counting import sectors

#: Round figures, so that times can be worked out by hand: one multiprocessor's worth of a second each.
CEILINGS = prediction.Ceilings(
    device="a GPU of paper",
    date="2026-01-01",
    multiprocessors=4,
    dram_read=32e9,
    dram_copy=64e9 / 3,  # so a write takes twice as long as a read
    l2_loads=1e9,
    l2_stores=1e9,
    l2_lines=0.5e9,
    wavefronts=4e9,
    fp32=64e9,
    fp64=32e9,
    conversions=16e9,
    instructions=1e9,
    turns=1e9 / 11,  # an instruction for what lanes share takes as long as two
    blocks=1e9,
    steps=1e9,
    launch=1e-9,
    touch=2e-9,
    written_back=((2048, 1e-9), (4096, 2e-9)),
)


@cuda.jit
def strided(x, stride, out):
    i = cuda.grid(1)
    out[i] = x[i * stride] + float32(1)


def traced(kernel, grid, block, *args, **options):
    return gpukit.trace(kernel[grid, block], *args, **options)


def arrays(n, stride=1):
    return np.ones(n * stride, np.float32), stride, np.zeros(n, np.float32)


# -- what a trace counts for it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stride", "lines", "passes"),
    # Measured on an H200 with loads that L1 answers: cycles of a request for lanes so many floats apart.
    [(0, 1, 1), (1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 8, 8), (16, 16, 16), (32, 32, 32), (33, 32, 8)],
)
def test_passes_through_l1(stride, lines, passes):
    addresses = 4 * stride * np.arange(32, dtype=np.int64)[None]
    counts = sectors(addresses, None, 4, True)
    assert (counts.lines[0], counts.l1_wavefronts[0]) == (lines, passes)


def test_idle_lanes_and_wide_elements_pass_through_l1():
    addresses = 128 * np.arange(32, dtype=np.int64)[None]
    active = np.arange(32)[None] < 5
    counts = sectors(addresses, active, 4, True)
    assert (counts.lines[0], counts.l1_wavefronts[0]) == (5, 5)
    assert sectors(addresses, np.zeros((1, 32), bool), 4, True).l1_wavefronts[0] == 0
    assert sectors(addresses // 8, None, 16, True).l1_wavefronts[0] == 4
    assert sectors(addresses // 4, None, 32, True).l1_wavefronts[0] == 2  # a record: eight lines, four at a time


def test_cold_bytes_are_whole_sectors_each_once():
    trace = traced(strided, 4, 64, *arrays(256, 4))
    assert trace.traffic.cold_read == 256 * 16
    assert trace.traffic.cold_written == 256 * 4
    assert trace.traffic.needed_bytes == 256 * 8


@cuda.jit
def everyone_reads_all(x, out):
    total = float32(0)
    for i in range(x.size):
        total += x[i]
    out[cuda.grid(1)] = total


def test_blocks_left_out_touch_no_more_than_there_is():
    x, out = np.ones(64, np.float32), np.zeros(8 * 32, np.float32)
    everything, sampled = (traced(everyone_reads_all, 8, 32, x, out, blocks=n) for n in (None, 2))
    assert sampled.traffic == everything.traffic
    assert sampled.traffic.cold_read == x.nbytes


# -- predictions -------------------------------------------------------------------------------------------------------


def test_every_resource_of_a_copy_by_hand():
    trace = traced(strided, 8, 128, *arrays(1024))
    uses = trace.predict(ceilings=CEILINGS).uses
    assert uses["DRAM"].seconds == pytest.approx(4096 / 32e9 + 4096 / 16e9 + 2e-9)  # 8192 bytes in all
    assert uses["L2"].seconds == pytest.approx(128 / 1e9)  # stores: 128 sectors; 32 lines take half as long
    assert uses["shared memory, L1"].seconds == pytest.approx(64 / 4e9)  # a load and a store of 32 warps
    assert uses["FP32"].seconds == pytest.approx(1024 / 64e9)
    assert uses["FP64"].seconds == 0
    assert uses["issue"].seconds == pytest.approx((64 + 1024 / 2 / 32 + trace.overhead) / 1e9)
    assert uses["blocks"].seconds == pytest.approx(8e-9)
    assert uses["waiting"].seconds == pytest.approx(1e-9)
    assert uses["launch"].seconds == 2e-9


def test_what_limits_and_the_launch_beside_it():
    trace = traced(strided, 8, 128, *arrays(1024))
    slow_memory = replace(CEILINGS, dram_read=1e6, dram_copy=1e6)
    found = trace.predict(ceilings=slow_memory)
    assert found.limit == "DRAM"
    assert found.seconds == pytest.approx(2 * 4096 / 1e6 + 2e-9 + CEILINGS.launch)
    slow_launch = replace(CEILINGS, launch=1.0, touch=2.0)
    assert trace.predict(ceilings=slow_launch).limit == "launch"
    assert trace.predict(ceilings=slow_launch).seconds == 2.0


def test_stores_to_scattered_sectors_cost_by_the_line():
    @cuda.jit
    def scatter(out):
        out[cuda.grid(1) * 32] = float32(1)

    trace = traced(scatter, 1, 128, np.zeros(128 * 32, np.float32))
    assert trace.predict(ceilings=CEILINGS).uses["L2"].seconds == pytest.approx(128 / 0.5e9)


def test_shared_memory_and_l1_are_one():
    ((launch, arguments),) = pitfalls.make_pitfall("bank conflicts", (128, 32)).slow
    trace = gpukit.trace(launch, *arguments)
    wavefronts, passes = trace.total("shared").wavefronts, trace.total("global").l1_wavefronts
    assert wavefronts == 4 * (32 + 32 * 32 + 32 * 32 + 32)
    assert passes == 4 * 64
    # One block: one of four multiprocessors does it all.
    seconds = trace.predict(ceilings=CEILINGS).uses["shared memory, L1"].seconds
    assert seconds == pytest.approx((wavefronts + passes) / 4e9 * 4)


@pytest.mark.parametrize(("blocks", "most"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_are_not_divided_among_multiprocessors(blocks, most):
    trace = traced(strided, blocks, 128, *arrays(blocks * 128))
    uses = trace.predict(ceilings=CEILINGS).uses
    assert uses["shared memory, L1"].seconds == pytest.approx(most * 8 / 1e9)  # of one multiprocessor
    assert uses["FP32"].seconds == pytest.approx(most * 128 / 16e9)


def test_a_block_of_one_thread_keeps_one_scheduler_busy():
    trace = traced(strided, 4, 1, *arrays(4))
    # 32 lanes of each of four warps, by the quarter of each multiprocessor that they are on.
    assert trace.predict(ceilings=CEILINGS).uses["FP32"].seconds == pytest.approx(32 / (64e9 / 4 / 4))


def test_a_larger_grid_of_alike_blocks():
    small, large = (transpose.configure("tiled", (n, n)) for n in (64, 256))
    arrays_of = {n: (np.ones((n, n), np.uint32), np.zeros((n, n), np.uint32)) for n in (64, 256)}
    part = gpukit.trace(small, *arrays_of[64]).predict(grid=large.griddim, ceilings=CEILINGS)
    whole = gpukit.trace(large, *arrays_of[256]).predict(ceilings=CEILINGS)
    for name in whole.uses:
        assert part.uses[name].seconds == pytest.approx(whole.uses[name].seconds), name
    assert part.seconds == pytest.approx(whole.seconds)
    assert part.nbytes == whole.nbytes == 2 * 256 * 256 * 4


def test_instructions_that_are_known():
    trace = traced(strided, 8, 128, *arrays(1024))
    found = trace.predict(instructions=10**9, ceilings=CEILINGS)
    assert found.limit == "issue"
    assert found.uses["issue"].seconds == pytest.approx(1.0)


def test_waiting_counts_blocks_that_come_after_each_other():
    n = 65 * 1024
    trace = traced(strided, 65, 1024, *arrays(n))
    assert trace.occupancy.blocks == 2
    # Two blocks on each of four multiprocessors at a time: the 65th block comes ninth, and each makes a trip to memory.
    assert trace.predict(ceilings=CEILINGS).uses["waiting"].seconds == pytest.approx(9 * CEILINGS.trip)

    @cuda.jit
    def fill(out):
        out[cuda.grid(1)] = 1

    assert traced(fill, 65, 1024, np.zeros(n, np.int8)).predict(ceilings=CEILINGS).uses["waiting"].seconds == 0


def test_hidden_float64_is_conversions():
    pitfall = pitfalls.make_pitfall("hidden float64")
    slow, fixed = (
        gpukit.trace(launch, *arguments).predict(ceilings=CEILINGS)
        for ((launch, arguments),) in (pitfall.slow, pitfall.fixed)
    )
    assert fixed.uses["FP64"].seconds == 0
    assert slow.uses["FP64"].seconds > 0
    assert "conversions" in str(slow)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"grid": 0}, ValueError, "grid"),
        ({"grid": (1, 2, 3, 4)}, ValueError, "grid"),
        ({"instructions": -1}, ValueError, "instructions is -1"),
        ({"instructions": 1.5}, TypeError, "instructions is 1.5"),
        ({"ceilings": "h200"}, TypeError, "ceilings is a str"),
    ],
)
def test_bad_arguments(options, error, message):
    trace = traced(strided, 1, 32, *arrays(32))
    with pytest.raises(error, match=message):
        trace.predict(**options)


def test_what_is_no_trace():
    with pytest.raises(TypeError, match="trace is <function strided"):
        gpukit.predict(strided.py_func)


def test_text_and_html_say_the_same():
    found = traced(strided, 8, 128, *arrays(1024)).predict(ceilings=CEILINGS)
    text, html = str(found), found._repr_html_()
    assert "strided, grid 8, block 128: at least" in text
    assert f"limited by {found.limit}" in text
    for name, use in found.uses.items():
        assert name in text and name in html and use.amount in text


# -- ceilings ----------------------------------------------------------------------------------------------------------


def test_recorded_ceilings_are_those_of_an_h200():
    found = prediction.recorded()
    assert found.multiprocessors == 132
    # The clock is 1.98 GHz: 128 multiply-adds, one wavefront, four instructions for each cycle and multiprocessor.
    cycles = 132 * 1.98e9
    assert 0.9 < found.fp32 / (256 * cycles) <= 1
    assert 0.9 < found.fp64 / (128 * cycles) <= 1
    assert 0.95 < found.wavefronts / cycles <= 1
    assert 0.9 < found.instructions / (4 * cycles) <= 1
    assert 0.85 < found.dram_read / 4.8e12 <= 1  # of the data sheet
    assert found.launch < found.touch < 1e-5


def test_a_missing_ceiling_is_named():
    records = results.load(prediction.RECORDED)
    with pytest.raises(LookupError, match="'fp64'"):
        prediction.from_records([record for record in records if record["case"] != "fp64"])


def test_what_a_cache_must_write_back():
    assert [CEILINGS.writing_back(n) for n in (0, 1024, 3072, 10**9)] == pytest.approx([0, 0.5e-9, 1.5e-9, 2e-9])
    records = [r for r in results.load(prediction.RECORDED) if r["variant"] != "after loads"]
    with pytest.raises(LookupError, match="'replacing'"):
        prediction.from_records(records)


def test_of_all_variants_the_best_is_the_ceiling():
    records = results.load(prediction.RECORDED)
    more = [record | {"value": 2 * record["value"]} for record in records if record["case"] == "shared"][:1]
    assert prediction.from_records(records + more).wavefronts > prediction.from_records(records).wavefronts


@pytest.mark.skipif(gpukit.on_gpu(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed():
    with pytest.raises(timing.EmulatedTimeError):
        gpukit.prediction.measured()


def test_figures_show_every_point():
    points = [
        {"group": "a", "flops": 2e9, "bytes": 1e6, "seconds": 1e-3, "label": "one"},
        {"group": "b", "flops": 0, "bytes": 1e6, "seconds": 1e-6},
    ]
    strip, roof = plots.roofline(points, CEILINGS)
    assert sum(len(c.get_offsets()) for ax in (strip, roof) for c in ax.collections) == 2
    ax = plots.compared([{"group": "a", "predicted": 1e-6, "measured": 2e-6, "label": "x"}])
    assert [text.get_text() for text in ax.texts] == ["x"]
    with pytest.raises(TypeError, match="ceilings"):
        plots.roofline(points, {})
