"""``gpukit bench streams``: time copies, pipelines and launches on a GPU.

How fast is each part alone, what does overlap gain, and what does a launch cost the host?
"""

import ctypes
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
from numba.cuda import float32

from bench import common
from gpukit import launching, resize, results, streams, timing
from gpukit._numba import driver_function
from gpukit.backend import cuda, on_gpu
from gpukit.intrinsics import globaltimer
from gpukit.streams import measure
from gpukit.streams.pipeline import prepare_copy

__all__ = ["CHUNKS", "SIZES", "measure_documents", "measure_launches", "measure_pipelines", "measurements"]

#: Elements of the pipelines: 1 MB to 512 MB.
SIZES = tuple(2**k for k in (18, 22, 25, 26, 27))
CHUNKS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128)
#: The size, and the cycles of the documents' kernel, of the recorded timelines.
SHOWN, SHOWN_CYCLES = 2**25, 250_000
STREAMS = 4
ROUNDS = 7
LARGE = 2**26  # bytes
#: Launches in a row; the queue of the driver holds twice as many.
LAUNCHES = 400
TICKS = 4096


_record = partial(results.record, "streams")


def _host_times(functions, rounds=ROUNDS):
    """Return {name: Timing} by the host's clock, in turns; each function waits for the device itself."""
    return timing.bench_many(functions, device="cpu", warmup=0.0, repeat=rounds)


# -- the clocks --------------------------------------------------------------------------------------------------------


@cuda.jit
def read_timer(out):
    """Read the timer again and again, by one thread."""
    for i in range(out.size):
        out[i] = globaltimer()


def measure_timer(report=print):
    """Measure the step of the timer."""
    out = cuda.device_array(TICKS, np.int64)
    for _ in range(2):
        read_timer[1, 1](out)
    steps = np.diff(out.copy_to_host())
    step = int(np.gcd.reduce(steps[steps > 0]))
    report(f"  globaltimer moves in steps of {step} ns; {np.count_nonzero(steps)} steps in {steps.sum()} ns")
    return [_record("timer", "step", (TICKS,), "int64", step * 1e-9)], True


# -- copies ------------------------------------------------------------------------------------------------------------


def measure_copies(nbytes, report=print):
    """Measure bytes per second of copies of one size, in all forms."""
    records = []
    for name, speed in measure.copy_speeds(nbytes).items():
        report(f"  {name:20} {speed * 1e-9:7.2f} GB/s")
        records.append(_record("copy", name, (nbytes,), "uint8", speed, "B/s"))
    return records, True


def measure_costs(report=print):
    """Measure the fixed cost of an operation, on its engine and in a pipeline, and of enqueuing a copy on the host."""
    small, host, stream = cuda.device_array(1, np.float32), cuda.pinned_array(1, np.float32), cuda.stream()
    copy = prepare_copy(small, host, stream)
    costs = {
        **measure.engine_starts(),
        "pipeline": measure.operation_seconds(),
        "host, copy_to_device": _asking(lambda: small.copy_to_device(host, stream=stream)),
        "host, prepared copy": _asking(lambda: copy(stream)),
    }
    records = []
    for name, seconds in costs.items():
        report(f"  {name:22} {seconds * 1e6:7.2f} us for an operation")
        records.append(_record("cost", name, (1,), "float32", seconds))
    return records, True


def _asking(ask):
    """Return seconds of the host for one call, the median of several runs of calls in a row."""
    seconds = []
    for _ in range(ROUNDS):
        cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            ask()
        seconds.append((time.perf_counter() - begin) / LAUNCHES)
    cuda.synchronize()
    return statistics.median(seconds)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def _pinned(shape, dtype, seed=None):
    array = cuda.pinned_array(shape, dtype)
    if seed is None:
        array[...] = 0
    else:
        array[...] = (
            np.random.default_rng(seed).integers(0, 256, (*shape, array.itemsize), np.uint8).view(dtype)[..., 0]
        )
    return array


def measure_pipelines(elements, report=print):
    """Time balanced pipelines of one size by the number of chunks, in both orders, pinned and pageable.

    Returns
    -------
    list of dict
    bool
        Whether all results were right.
    """
    x, out = _pinned((elements,), np.uint32, 1), _pinned((elements,), np.uint32)
    kernel = streams.WorkKernel.lasting(
        _seconds_of(streams.Pipeline(lambda *_: None, x, chunks=1, out=out))[0], elements
    )
    expected = _once(kernel, x)
    serial = streams.Pipeline(kernel, x, chunks=1, streams=1, out=out)
    stages = _seconds_of(serial)
    both = _both(x.nbytes, stages)
    records = [
        _record("stage", name, (elements,), "uint32", seconds, rounds=kernel.rounds)
        for name, seconds in zip(("copy in", "kernel", "copy out", "both copies"), (*stages, both), strict=True)
    ]
    runs, right = _variants(kernel, x, out), True
    for name, pipeline in runs.items():
        pipeline.out[...] = 0
        if not np.array_equal(pipeline.run().result, expected):
            report(f"  WRONG: {name}")
            right = False
    limit = streams.best_speedup(*stages, both)
    report(f"  {kernel}; h, k, d {', '.join(f'{s * 1e3:.3f}' for s in stages)} ms, both copies {both * 1e3:.3f} ms")
    timed = _host_times({name: pipeline.run for name, pipeline in runs.items()})
    for name, result in timed.items():
        chunks, order, memory = name
        gain = sum(stages) / result.median
        share = f"{gain:5.2f} of {limit:.2f} = {gain / limit:4.0%}"
        report(f"  {memory:8} {order:8} {chunks:4} chunks {result.median * 1e3:9.3f} ms  {share}")
        further = {"chunks": chunks, "order": order, "memory": memory, "streams": STREAMS}
        record = results.of_timing("streams", "pipeline", order, (elements,), "uint32", result, **further)
        records.append(record)
    return records + (_timelines(runs, elements) if elements == SHOWN else []), right


def _both(nbytes, stages):
    """Estimate the seconds of copying in and out at once: each direction's time alone, over the share of its speed
    that large copies keep while the other direction is busy.
    """
    speeds = measure.copy_speeds(max(nbytes, LARGE))
    kept = [min(speeds[f"copy {way}, both"] / speeds[f"copy {way}"], 1.0) for way in ("in", "out")]
    return max(stages[0] / kept[0], stages[2] / kept[1])


def _seconds_of(pipeline):
    """Return seconds of copy in, kernel and copy out of a pipeline of one task: medians of several recorded runs."""
    runs = [[pipeline.run(record=True).timeline.busy(engine) for engine in streams.ENGINES] for _ in range(5)]
    return np.median(runs, axis=0).tolist()


def _once(kernel, x):
    """Compute the result without streams."""
    source, target = cuda.to_device(x), cuda.device_array(x.shape, x.dtype)
    kernel.prepared(source, target, 0)(cuda.device_array(0, np.int64))
    return target.copy_to_host()


def _variants(kernel, x, out):
    """Make {(chunks, order, memory): Pipeline}; the pageable ones have arrays of their own."""
    runs = {}
    for order in ("depth", "breadth"):
        for chunks in CHUNKS:
            made = streams.Pipeline(kernel, x, chunks=chunks, streams=STREAMS, order=order, out=out)
            runs[chunks, order, "pinned"] = made
    plain, result = np.array(x), np.zeros_like(x)
    for chunks in (1, 4, 16):
        made = streams.Pipeline(kernel, plain, chunks=chunks, streams=STREAMS, pinned=False, out=result)
        runs[chunks, "depth", "pageable"] = made
    return runs


def _timelines(runs, elements):
    """Record the timelines of some pipelines."""
    records = []
    for name in ((1, "depth", "pinned"), (8, "depth", "pinned"), (8, "breadth", "pinned"), (4, "depth", "pageable")):
        timeline = runs[name].run(record=True).timeline
        chunks, order, memory = name
        further = {"chunks": chunks, "order": order, "memory": memory, "bars": timeline.record()["bars"]}
        records.append(_record("timeline", order, (elements,), "uint32", timeline.duration, **further))
    return records


# -- the documents' experiment -----------------------------------------------------------------------------------------


def measure_documents(report=print):
    """Time four tasks of 1,048,576 floats (copy in, sleeping kernel, copy out), with one stream and with four.

    The grid is the documents', (64, 64) blocks of (16, 16) threads. They do not say how long their kernel sleeps, so
    several lengths are tried.
    """
    elements, tasks, records, right = 1_048_576, 4, [], True
    x, out = _pinned((tasks * elements,), np.float32), _pinned((tasks * elements,), np.float32)
    x[...] = np.arange(x.size, dtype=np.float32)
    for cycles in (0, 100_000, SHOWN_CYCLES, 500_000):
        kernel = streams.SleepKernel(cycles, (64, 64), (16, 16))
        runs = {count: streams.Pipeline(kernel, x, chunks=tasks, streams=count, out=out) for count in (1, 4)}
        for pipeline in runs.values():
            out[...] = 0
            right &= np.array_equal(pipeline.run().result, kernel.expected(x))
        for count, result in _host_times({count: pipeline.run for count, pipeline in runs.items()}, 15).items():
            report(f"  {cycles:8,} cycles, {count} streams {result.median * 1e3:7.3f} ms")
            further = {"cycles": cycles, "streams": count}
            name = f"{count} stream{'s' * (count > 1)}"
            records.append(
                results.of_timing("streams", "documents", name, (tasks, elements), "float32", result, **further)
            )
            if cycles == SHOWN_CYCLES:
                records[-1]["bars"] = runs[count].run(record=True).timeline.record()["bars"]
    return records, right


def measure_small_kernels(report=print):
    """Time four sleeping kernels of one block, in one stream and in four."""
    records, x = [], np.zeros(4, np.float32)
    kernel = streams.SleepKernel(500_000, 1, 32)
    for count in (1, 4):
        pipeline = streams.Pipeline(kernel, x, chunks=4, streams=count)
        pipeline.run(record=True)  # the first run is slower
        timeline = pipeline.run(record=True).timeline
        report(f"  4 kernels of one block, {count} streams: {timeline.busy('kernel') * 1e3:.3f} ms")
        name = f"{count} stream{'s' * (count > 1)}"
        records.append(_record("small kernels", name, (4,), "float32", timeline.busy("kernel"), streams=count))
    return records, True


def measure_frames(report=print):
    """Time resizing 64 frames of 1080p to 640 x 640: without streams, then as a pipeline."""
    frames, out = _pinned((64, 1080, 1920, 3), np.uint8, 2), _pinned((64, 640, 640, 3), np.uint8)

    def kernel(source, target, stream):
        resize.resize(source, (640, 640), out=target, stream=stream)

    expected, right, records = resize.resize(frames, (640, 640)), True, []
    runs = {1: streams.Pipeline(kernel, frames, chunks=1, streams=1, out=out)}
    runs |= {n: streams.Pipeline(kernel, frames, chunks=n, streams=STREAMS, out=out) for n in (4, 8, 16, 32, 64)}
    for pipeline in runs.values():
        out[...] = 0
        right &= np.array_equal(pipeline.run().result, expected)
    for chunks, result in _host_times({n: pipeline.run for n, pipeline in runs.items()}).items():
        report(f"  {chunks:3} chunks {result.median * 1e3:8.3f} ms, {64 / result.median:,.0f} frames per second")
        record = results.of_timing("streams", "frames", "depth", frames.shape, "uint8", result, chunks=chunks)
        records.append(record)
    timeline = runs[16].run(record=True).timeline
    records.append(_record("frames timeline", "depth", frames.shape, "uint8", timeline.duration, chunks=16))
    records[-1]["bars"] = timeline.record()["bars"]
    return records, right


# -- launches ----------------------------------------------------------------------------------------------------------


def add(x, y, out, factor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + factor * y[i]


def measure_launches(libraries, report=print):
    """Time the host's part of one launch of a small kernel, in every form; each form's result is checked.

    The kernel takes three arrays and a number; the libraries' ready-made operations compute the same.
    """
    n = 1024
    arrays = [cuda.to_device(np.full(n, value, np.float32)) for value in (1, 2, 0)]
    forms = _our_forms(arrays, n) | _library_forms(libraries, arrays, n)
    records, right = [], True
    for name, (launch, _) in forms.items():
        arrays[2].copy_to_device(np.zeros(n, np.float32))
        cuda.synchronize()  # a graph is launched in a stream that does not wait for the default stream
        launch()
        cuda.synchronize()
        if not (arrays[2].copy_to_host() == 7).all():
            report(f"  WRONG: {name}")
            right = False
    seconds = {name: [] for name in forms}
    for turn in range(15):
        for name in forms if turn % 2 else reversed(forms):
            launch, each = forms[name]
            cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(LAUNCHES // each):
                launch()
            seconds[name].append((time.perf_counter() - begin) / (LAUNCHES // each * each))
    cuda.synchronize()
    for name, samples in seconds.items():
        first, median, third = statistics.quantiles(samples, n=4)
        report(f"  {name:44} {median * 1e6:7.2f} us")
        further = {"spread": (third - first) / median, "n": len(samples)}
        # Replaying a graph is no launch of a kernel with arguments of its own, and stands for itself; so does the
        # driver's part of a launch, with all that it is passed made ready.
        case = "graph replay" if "graph" in name else "driver" if name.startswith("cuLaunchKernel") else "launch"
        records.append(_record(case, name, (n,), "float32", median, **further))
    return records, right


def _our_forms(arrays, n):
    """Return {name: (function that launches, number of launches in it)}."""
    grid, block, factor = n // 256, 256, np.float32(3)
    plain = cuda.jit(add)
    typed = cuda.jit((float32[::1], float32[::1], float32[::1], float32))(add)
    arguments = (*arrays, factor)
    plain_bound, typed_bound = plain[grid, block], typed[grid, block]
    prepared = launching.prepare(plain_bound, *arguments)
    copies = [cuda.to_device(array.copy_to_host()) for array in arrays[:2]]
    others = *copies, arrays[2], factor

    def alternate():
        prepared(*others)
        prepared(*arguments)

    forms = {
        "kernel[grid, block](...)": lambda: plain[grid, block](*arguments),
        "explicit signature": lambda: typed[grid, block](*arguments),
        "configuration bound before": lambda: plain_bound(*arguments),
        "both": lambda: typed_bound(*arguments),
        "gpukit.launching, same arguments": prepared,
    }
    forms = {name: (launch, 1) for name, launch in forms.items()} | {
        "gpukit.launching, other arguments": (alternate, 2)
    }
    return forms | (_core_forms(plain_bound, arguments, grid, block) if on_gpu() else {})


def _core_forms(bound, arguments, grid, block):
    """Return a CUDA graph of one launch and of twenty, and the compiled kernel launched by ``cuda.core`` and by the
    driver's function alone, on a GPU.
    """
    from cuda import core
    from cuda.bindings import driver

    forms, here = {}, core.Device()
    here.set_current()
    stream = here.create_stream()
    dispatcher = bound.dispatcher
    for count in (1, 20):
        builder = here.create_graph_builder().begin_building()
        for _ in range(count):
            dispatcher[grid, block, builder](*arguments)
        graph = builder.end_building().complete()
        forms[f"CUDA graph of {count}, replayed"] = (partial(graph.launch, stream), count)
    (compiled,) = dispatcher.overloads.values()
    kernel = compiled._codelibrary.get_cufunc().kernel
    config = core.LaunchConfig(grid=grid, block=block)
    packed = []
    for type_, value in zip(compiled.argument_types, arguments, strict=True):
        compiled._prepare_args(type_, value, stream, [], packed)
    forms["cuda.core.launch, arguments packed before"] = (lambda: core.launch(stream, config, kernel, *packed), 1)
    cells = [ctypes.c_uint64(value) if isinstance(value, int) else value for value in packed]
    parameters = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
    _, function = driver.cuKernelGetFunction(kernel.handle)
    passed = int(function), grid, 1, 1, block, 1, 1, 0, 0, ctypes.addressof(parameters), 0
    launch = ctypes.CFUNCTYPE(ctypes.c_int)(driver_function("cuLaunchKernel"))
    bare: Any = partial(launch, *map(ctypes.c_void_p.from_param, passed))
    bare.keeps = cells, parameters
    forms["cuLaunchKernel by ctypes, arguments packed before"] = (bare, 1)
    return forms


def _library_forms(libraries, arrays, n):
    forms = {}
    if "cupy" in libraries:
        cupy = libraries["cupy"]
        x, y, out = (cupy.asarray(array) for array in arrays)
        source = """extern "C" __global__ void add(const float* x, const float* y, float* out, float factor, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = x[i] + factor * y[i];
        }"""
        raw = cupy.RawKernel(source, "add")
        elementwise = cupy.ElementwiseKernel("T x, T y, T f", "T out", "out = x + f * y", "add_scaled")
        factor = np.float32(3)
        forms["cupy, RawKernel"] = (lambda: raw((n // 256,), (256,), (x, y, out, factor, np.int32(n))), 1)
        forms["cupy, ElementwiseKernel"] = (lambda: elementwise(x, y, factor, out), 1)
        kernel = cuda.jit(add)[n // 256, 256]
        forms["configuration bound before, arrays of CuPy"] = (lambda: kernel(x, y, out, factor), 1)
    if "torch" in libraries:
        torch = libraries["torch"]
        tensors = [torch.as_tensor(array, device="cuda") for array in arrays]
        forms["torch.add(x, y, alpha=3, out=out)"] = (
            lambda: torch.add(tensors[0], tensors[1], alpha=3, out=tensors[2]),
            1,
        )
    return forms


# -- all of them -------------------------------------------------------------------------------------------------------


def measurements(options):
    """Yield (title, function); with ``--quick`` for one size of the copies and the pipelines only."""
    yield "timer", measure_timer
    for nbytes in (2**27,) if options.quick else (2**20, 2**23, 2**27):
        yield f"copies of {nbytes:,} bytes", partial(measure_copies, nbytes)
    yield "operations", measure_costs
    for elements in SIZES[1:2] if options.quick else SIZES:
        yield f"pipelines of {elements:,} uint32", partial(measure_pipelines, elements)
    yield "the documents' experiment", measure_documents
    yield "kernels that do not fill the device", measure_small_kernels
    yield "frames", measure_frames
    yield "launches", partial(measure_launches, common.libraries())
