from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numba.cuda import float32

import gpukit
from bench import __main__ as benchmarks
from bench import ceilings, code, profile
from bench import predictions as bench
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
    with pytest.raises(TypeError, match="trace is a function"):
        gpukit.predict(strided.py_func)


def test_text_and_html_say_the_same():
    found = traced(strided, 8, 128, *arrays(1024)).predict(ceilings=CEILINGS)
    text, html = str(found), found._repr_html_()
    assert "strided, grid 8, block 128: at least" in text
    assert f"what limits is {found.limit}" in text
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
        prediction.of_records([record for record in records if record["case"] != "fp64"])


@pytest.mark.skipif(gpukit.on_gpu(), reason="small sizes for the emulator")
def test_kernels_that_measure_ceilings_are_right(monkeypatch):
    for name, value in {"_everywhere": lambda: 2, "L2_BYTES": 2**16, "COPIED": 2**25, "L2_STRIDES": (1, 8)}.items():
        monkeypatch.setattr(ceilings, name, value)
    made = [(ceilings._inside, 16), (ceilings._caches, 64), (ceilings._memory,)]
    for make, *turns in made:
        for case in make(*turns):
            assert case.is_right(), (case.case, case.variant)
            case.right = lambda out: bool((out == 12345).any())
            assert not case.is_right(), (case.case, case.variant)


def test_what_a_cache_must_write_back():
    assert [CEILINGS.writing_back(n) for n in (0, 1024, 3072, 10**9)] == pytest.approx([0, 0.5e-9, 1.5e-9, 2e-9])
    records = [r for r in results.load(prediction.RECORDED) if r["variant"] != "after loads"]
    with pytest.raises(LookupError, match="'replacing'"):
        prediction.of_records(records)


def test_of_all_variants_the_best_is_the_ceiling():
    records = results.load(prediction.RECORDED)
    more = [record | {"value": 2 * record["value"]} for record in records if record["case"] == "shared"][:1]
    assert prediction.of_records(records + more).wavefronts > prediction.of_records(records).wavefronts


@pytest.mark.skipif(gpukit.on_gpu(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(capsys):
    for name in ("ceilings", "clinic", "profile"):
        assert benchmarks.main([name]) == 1
    assert capsys.readouterr().err.count("no GPU") == 3
    with pytest.raises(timing.EmulatedTimeError):
        gpukit.prediction.measured()


# -- predicted and measured --------------------------------------------------------------------------------------------


def test_most_predictions_are_near_what_was_measured():
    records = results.load(bench.RECORDED)
    assert {bench.key_of(record) for record in records} <= {case.text for case in bench.cases()}, "no dead ones"
    for name, fewest, share in ((bench.LEAST, 90, 2 / 3), (bench.EXECUTED, 70, 0.85)):
        pairs = [(least["value"], time["value"]) for least, time in bench.paired(records, name)]
        assert len(pairs) >= fewest
        assert bench.near(pairs) >= share * len(pairs)


def test_kernels_that_the_constants_were_not_taken_from_are_as_near():
    pairs = bench.paired(results.load(bench.RECORDED))
    others = [(least["value"], time["value"]) for least, time in pairs if least["chapter"] not in ("matmul", "resize")]
    assert len(others) >= 35 and bench.near(others) >= 0.75 * len(others)


def is_what_traces_say(source, chosen):
    """Whether a record predicts for some cases what their traces give now, with the ceilings of the record's run."""
    ceilings, records = bench.ceilings_of(results.read(source)[0]), results.load(source, case=bench.LEAST)
    for case in chosen:
        wanted = {"variant": case.variant, "shape": case.shape, "dtype": case.dtype, **case.options}
        seconds = sum(p.seconds for p in bench.predicted(case.traced(), ceilings=ceilings))
        assert seconds == pytest.approx(results.first(records, **wanted)["value"]), case


def test_the_record_is_what_traces_say_now():
    chosen = [case for case in bench.cases(["transpose"]) if case.variant in ("copy", "naive", "tiled")]
    chosen += [case for case in bench.cases(["matmul"]) if case.title in ("naive tile 16", "tiled tile 16")][:2]
    is_what_traces_say(bench.RECORDED, chosen)


@pytest.mark.parametrize("options", [[], ["--measure-only"]])
def test_a_record_made_on_a_gpu_keeps_the_ceilings_of_its_run(tmp_path, monkeypatch, options):
    chosen, path = list(bench.transposes())[:2], tmp_path / "predictions-g.json"
    ceilings = replace(CEILINGS, device="G", l2_stores=0.1e9)
    times = [record for record in results.read(bench.RECORDED)[1] if record["case"] == "time"]
    monkeypatch.setattr(bench, "FAMILIES", {"transpose": lambda: chosen})
    monkeypatch.setattr(bench, "RECORDED", path)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(bench, "on_gpu", lambda: True)
        on_gpu.setattr(results, "machine", lambda: {"gpu": "G", "date": "2026-11-21"})
        on_gpu.setattr(bench.ceilings, "measured", list)
        on_gpu.setattr(bench.prediction, "of_records", lambda records: ceilings)
        on_gpu.setattr(bench, "measure", lambda chosen: (times, True))
        on_gpu.setattr(bench, "count_instructions", lambda chosen: ([], True))
        on_gpu.setattr(benchmarks, "on_gpu", lambda: True)
        assert benchmarks.main(["predictions", "--save", str(path), *options]) == 0
    assert bench.ceilings_of(results.read(path)[0]) == ceilings != prediction.recorded()
    if "--measure-only" in options:
        monkeypatch.setattr(bench, "on_gpu", lambda: False)
        assert benchmarks.main(["predictions", "--save", str(path)]) == 0
    is_what_traces_say(path, chosen)


@pytest.mark.skipif(gpukit.on_gpu(), reason="the record is of another run")
def test_predictions_are_made_anew_and_what_was_measured_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "FAMILIES", {"transpose": lambda: list(bench.transposes())[:2]})
    path = tmp_path / "again.json"
    assert benchmarks.main(["predictions", "--save", str(path)]) == 0
    head, records = results.read(path)
    assert head == results.read(bench.RECORDED)[0]
    assert [record["variant"] for record in records if record["case"] == bench.LEAST] == ["copy", "copy_shared"]
    assert [record["case"] for record in records[:4]] == [bench.LEAST, "time", "instructions", bench.EXECUTED]
    assert all(record in results.read(bench.RECORDED)[1] for record in records if record["case"] == "instructions")
    assert "2 of 2 within a factor of 1.5" in capsys.readouterr().out


def test_near_counts_both_sides():
    assert bench.near([(1, 1), (1, 1.5), (1.5, 1), (1, 1.51), (1.51, 1)]) == 3


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


# -- profiles ----------------------------------------------------------------------------------------------------------

NCU = """==PROF== Connected
"ID","Process ID","Process Name","Host Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","77","python3","somewhere","tiled","Occupancy","Achieved Occupancy","%","90.90"
"0","77","python3","somewhere","tiled","SpeedOfLight","","",""
"1","77","python3","somewhere","swapped","Launch Statistics","Threads","thread","1,048,576"
"""


def test_a_report_keeps_figures_and_nothing_of_the_machine():
    rows = profile.of_ncu(NCU)
    assert rows == [
        {"kernel": "tiled", "section": "Occupancy", "metric": "Achieved Occupancy", "unit": "%", "value": "90.90"},
        {"kernel": "tiled_conflict", "section": "Launch Statistics", "metric": "Threads", "unit": "thread"}
        | {"value": "1048576"},
    ]


def test_tables_come_back_as_they_were_written(tmp_path):
    rows = profile.of_ncu(NCU)
    profile._write(tmp_path / "a.csv", rows, "a GPU, a day")
    assert profile.load("a.csv", tmp_path) == ("a GPU, a day", rows)


def test_a_timeline_is_in_order_and_begins_at_zero():
    events = [
        {"cat": "kernel", "name": "a::b::add[abi:v1](float)", "ts": 30.5, "dur": 2},
        {"cat": "cuda_driver", "name": "cuLaunchKernelEx", "ts": 10.25, "dur": 4},
        {"cat": "overhead", "name": "x", "ts": 1, "dur": 1},
        {"name": "no category"},
    ]
    first, second = profile.of_events(events)
    assert first == {"lane": "host", "name": "cuLaunchKernelEx", "begin": 0, "duration": 4}
    assert second == {"lane": "device", "name": "add", "begin": 20.25, "duration": 2}


def test_machine_code_shows_what_the_compiler_merged():
    loop = code.loop_of((profile.FOLDER / profile.SASS).read_text())
    counts = Counter(map(profile.opcode, loop))
    # Sixteen multiply-adds of a tile, with a load of tile_b for each, and one of tile_a for every four.
    assert (counts["FFMA"], counts["LDS"], counts["LDS.128"]) == (16, 16, 4)
    assert profile.opcode("@!P0 LDG.E R4, desc[UR6][R8.64]") == "LDG.E"


def test_recorded_profiles_name_no_machine():
    for path in profile.FOLDER.iterdir():
        text = path.read_text()
        assert not any(word in text.lower() for word in ("process", "host name", "/home", "127.0.0.1")), path


def test_the_report_the_counters_and_the_record_are_of_the_same_kernels():
    _, rows = profile.load(profile.REPORT)
    wanted = {"shape": (profile.SIZE,) * 3, "dtype": "float32", "tile": profile.TILE}
    for kernel in profile.KERNELS:
        values = {row["metric"]: row["value"] for row in rows if row["kernel"] == kernel}
        for source in ("matmul-h200", bench.RECORDED):
            counted = results.first(results.load(source, case="instructions"), variant=kernel, **wanted)
            assert int(values["Executed Instructions"]) == counted["value"]
