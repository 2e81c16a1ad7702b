"""``gpukit bench multi``: time several GPUs against one, and an all-reduce beside NCCL.

Each result is checked first. Times are the host's, from the first launch until all devices are done.
"""

import time
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from bench import common
from gpukit import matmul, multi, resize, results, streams, timing
from gpukit.backend import cuda
from gpukit.multi.devices import on_device
from gpukit.multi.ring import make_wide
from gpukit.streams.pipeline import prepare_copy

__all__ = [
    "PLATES",
    "PRODUCTS",
    "REDUCED",
    "machine_name",
    "measure_all_reduce",
    "measure_cluster",
    "measure_frames",
    "measure_heat",
    "measure_links",
    "measure_product",
    "measurements",
    "work_of_a_second",
]

#: (rows, columns, "strong" or "weak": whether the rows are those of all devices or of each)
PLATES = ((16384, 16384, "strong"), (8192, 8192, "strong"), (2048, 2048, "strong"), (8192, 8192, "weak"))
STEPS, ROWS = 60, 64  # timed; rows that are checked
PRODUCTS = (16384, 4096)
#: Bytes of the arrays that are summed.
REDUCED = tuple(2**k for k in (24, 28, 14, 18, 20, 22, 26))
QUEUED = 10  # runs in a row
FRAMES = (256, 1080, 1920, 3)
SMALL, CHUNKS = (640, 640), 64
LINK_BYTES = 2**28
ROUNDS = 5

_record = partial(results.record, "multi")


def machine_name(gpu):
    """Name a machine by its GPUs and their number, for the name of a record."""
    return f"{gpu} x{len(cuda.gpus)}"


def _counts(devices):
    """One device, and all."""
    return (1, devices) if devices > 1 else (1,)


def _timed(functions, report, case, shape, dtype, repeat=ROUNDS, calls=1, further=None):
    """Time functions that wait for their devices, in turns; return {name: (seconds, record)} ."""
    found = {}
    timings = timing.bench_many(functions, device="cpu", warmup=0, repeat=repeat)
    for name, timed in timings.items():
        made = results.of_timing("multi", case, name[0], shape, dtype, timed, devices=name[1], **(further or {}))
        found[name] = made | {"value": made["value"] / calls, "calls": calls}
        found[name]["quartiles"] = [quartile / calls for quartile in made["quartiles"]]
    return found


def _bars(made):
    """What ran when, in a recorded run."""
    return made.run(record=True).record()["bars"]


def _report_speedup(found, report, one):
    for (variant, count), record in found.items():
        gain = one["value"] / record["value"]
        report(f"  {variant:12} on {count}: {record['value'] * 1e3:9.3f} ms, {gain:5.2f} times one device")


# -- links -------------------------------------------------------------------------------------------------------------


def measure_links(devices, report=print):
    """Time copies between two devices, by the copy engine and by a kernel, and from the host to one and to all."""
    records, n = [], LINK_BYTES // 4
    schedule = streams.Schedule()
    arrays, hosts = [], []
    for d in range(devices):
        with on_device(d):
            arrays.append([cuda.device_array(n, np.float32) for _ in range(2)])
        hosts.append(cuda.pinned_array(n, np.float32))
        hosts[-1][...] = d
    reach = multi.connect(range(devices))
    report(f"  peer access: {reach}")
    ways: dict[str, list] = {"copy in, one device": [("copy in", 0, None)]}
    ways["copy in, all devices"] = [("copy in", d, None) for d in range(devices)]
    ways["copy out, all devices"] = [("copy out", d, None) for d in range(devices)]
    if devices > 1:
        ways |= {"peer copy": [("push", 0, 1)], "peer copies, both ways": [("push", 0, 1), ("push", 1, 0)]}
        if reach:
            ways |= {"peer loads": [("load", 0, 1)], "peer loads, both ways": [("load", 0, 1), ("load", 1, 0)]}
    for name, moves in ways.items():
        actions = [_move(schedule, arrays, hosts, *move) for move in moves]

        def run(actions=actions):
            for device, action in actions:
                with on_device(device):
                    action()
            multi.synchronize(range(devices))

        run()
        timed = timing.bench_many({name: run}, device="cpu", warmup=0, repeat=ROUNDS)[name]
        report(f"  {name:24} {LINK_BYTES * len(moves) / timed.median / 1e9:8.1f} GB/s in all")
        records.append(_record("link", name, (n,), "float32", LINK_BYTES / timed.median, "B/s", devices=len(moves)))
    if devices > 1:
        records.append(_latency(arrays, schedule, report))
    right = devices == 1 or bool((arrays[1][1].copy_to_host()[:100] == arrays[0][0].copy_to_host()[:100]).all())
    return records, right


def _move(schedule, arrays, hosts, kind, device, peer):
    """(device, function): queue one copy."""
    stream = schedule.stream(0, device)
    if kind == "load":
        kernel = make_wide(False)
        with on_device(device):
            return device, partial(kernel[264, 512, stream], arrays[device][1], arrays[peer][0])
    source, target = arrays[device][0], hosts[device]
    if kind == "copy in":
        source, target = hosts[device], arrays[device][0]
    elif kind == "push":
        target = arrays[peer][1]
    return device, partial(prepare_copy(target, source, stream), stream)


def _latency(arrays, schedule, report):
    """Seconds of a chain of copies of 4 bytes, each in the other device's stream than the one before, per copy."""
    chain, last = streams.Schedule(), []
    for i in range(50):
        d = i % 2
        stream = chain.stream(0, d)
        action = prepare_copy(arrays[1 - d][1][:1], arrays[d][0][:1], stream)
        last = [chain.add("peer copy", action, device=d, peer=1 - d, after=last, nbytes=4)]
    chain.run()
    timed = timing.bench_many({"": chain.run}, device="cpu", warmup=0, repeat=ROUNDS)[""]
    report(f"  4 bytes and an event: {timed.median / 50 * 1e6:.1f} us")
    return _record("link", "start", (1,), "float32", timed.median / 50, devices=2)


# -- stencil, product, frames ------------------------------------------------------------------------------------------


def measure_heat(rows, columns, scaling, devices, report=print):
    """Time steps of the stencil, in every variant, on one device and on all."""
    runs, right = {}, True
    for count in _counts(devices):
        u = np.zeros((rows * count if scaling == "weak" else rows, columns), np.float32)
        u[0] = 1
        u[len(u) // 2 - ROWS : len(u) // 2 + ROWS] = np.random.default_rng(0).random((2 * ROWS, columns), np.float32)
        for variant in multi.VARIANTS if count > 1 else ("overlap",):
            plate = multi.Heat(u, count, variant)
            plate.schedule(2).run()
            right &= np.allclose(_middle(plate, 2), _two_steps(u, plate.rate), rtol=1e-5, atol=1e-6)
            schedule = plate.schedule(STEPS)
            schedule.run()
            runs[variant, count] = (plate, schedule)
    functions: dict[Any, Any] = {name: schedule.run for name, (_, schedule) in runs.items()}
    case = f"heat, {scaling}"
    found = _timed(functions, report, case, (rows, columns), "float32", calls=STEPS, further={"scaling": scaling})
    _report_speedup(found, report, found["overlap", 1])
    report(f"  one device: {8 * rows * columns / found['overlap', 1]['value'] / 1e9:.0f} GB/s")
    records = list(found.values())
    if scaling == "strong":
        for (variant, count), (plate, _) in runs.items():
            short = plate.schedule(4)
            short.run()
            bars = _bars(short)
            records.append(_record("heat timeline", variant, (rows, columns), "float32", 0.0, devices=count, bars=bars))
    return records, right


def _two_steps(u, rate):
    """What NumPy makes of the rows in the middle, in two steps."""
    first = len(u) // 2 - ROWS // 2 - 2
    window = u[first : first + ROWS + 4]
    for _ in range(2):
        around = window[:-2, 1:-1] + window[2:, 1:-1] + window[1:-1, :-2] + window[1:-1, 2:]
        new = window[1:-1].copy()
        new[:, 1:-1] += rate * (around - 4 * window[1:-1, 1:-1])
        window = new
    return window


def _middle(plate, steps, rows=ROWS):
    """The rows in the middle of a plate, around the seam of two devices."""
    first = len(plate.start) // 2 - 1 - rows // 2
    pieces = []
    for part, device, buffers in zip(plate.parts, plate.devices, plate.buffers, strict=True):
        low, high = max(first, part.start) - part.start, min(first + rows, part.stop) - part.start
        if low < high:
            with on_device(device):
                pieces.append(buffers[steps % 2][1 + low : 1 + high].copy_to_host())
    return np.concatenate(pieces)


def measure_product(n, devices, report=print):
    """Time a product of float32, in every variant, on one device and on all."""
    rng, runs, right = np.random.default_rng(0), {}, True
    with on_device(0):
        a, b, out = (cuda.device_array((n, n), np.float32) for _ in range(3))
    hosts = [rng.random((n, n), np.float32) for _ in range(2)]
    for x, host in zip((a, b), hosts, strict=True):
        x.copy_to_device(host)
    sample = slice(n // 2 - 5, n // 2 + 5)  # rows of both devices
    expected = hosts[0][sample] @ hosts[1]
    for count in _counts(devices):
        for variant in multi.WAYS if count > 1 else ("overlap",):
            if variant == "host" and n > 8192:
                continue  # gigabytes of pinned memory
            made = multi.Product(a, b, out, count, variant)
            with on_device(0):
                out.copy_to_device(np.zeros((n, n), np.float32))
            made.run()
            right &= np.allclose(out[sample].copy_to_host(), expected, rtol=1e-4)
            runs[variant, count] = made
    functions: dict[Any, Any] = {name: made.run for name, made in runs.items()}
    found = _timed(functions, report, "product", (n, n, n), "float32", repeat=3)
    _report_speedup(found, report, found["overlap", 1])
    records = list(found.values())
    for (variant, count), made in runs.items():
        bars = _bars(made)
        records.append(_record("product timeline", variant, (n, n, n), "float32", 0.0, devices=count, bars=bars))
    return records, right


def _shrink(source, target, stream):
    resize.resize(source, SMALL, out=target, stream=stream)


def measure_frames(devices, report=print):
    """Time resizing of frames from pinned memory and back, on one device and on all."""
    frames = cuda.pinned_array(FRAMES, np.uint8)
    frames[...] = np.random.default_rng(3).integers(0, 256, (1, *FRAMES[1:]), np.uint8)
    out, runs = cuda.pinned_array((FRAMES[0], *SMALL, 3), np.uint8), {}
    expected, right = resize.resize(frames[:1], SMALL)[0], True
    for count in _counts(devices):
        out[...] = 0
        pipeline = streams.Pipeline(
            _shrink, frames, chunks=CHUNKS, streams=4, buffers="stream", out=out, devices=range(count)
        )
        pipeline.run()
        right &= all(np.array_equal(frame, expected) for frame in out[::37])
        runs["frames", count] = pipeline.run
    found = _timed(runs, report, "frames", FRAMES, "uint8")
    _report_speedup(found, report, found["frames", 1])
    for (_, count), record in found.items():
        speed = frames.nbytes / record["value"] / 1e9
        report(f"  {count}: {FRAMES[0] / record['value']:,.0f} frames/s, {speed:.1f} GB/s in")
    return list(found.values()), right


# -- all-reduce --------------------------------------------------------------------------------------------------------


def measure_all_reduce(nbytes, devices, report=print):
    """Time the sum of an array of every device, in every variant and by NCCL."""
    n, arrays, runs, right = nbytes // 4, [], {}, True
    for d in range(devices):
        with on_device(d):
            arrays.append(cuda.device_array(n, np.float32))
    total: Any = sum(_summand(n, d) for d in range(devices))
    for variant in multi.RINGS:
        made = multi.AllReduce(arrays, devices, variant)
        _reset(arrays)
        made.run()
        right &= all(np.array_equal(x.copy_to_host(), total) for x in arrays)
        runs[variant] = made.queue
    runs |= _nccl(arrays)
    functions = {(name, devices): partial(_in_a_row, run, devices) for name, run in runs.items()}
    _reset(arrays, 0)
    for run in functions.values():
        run()
    found = _timed(functions, report, "all-reduce", (n,), "float32", calls=QUEUED)
    for (name, count), record in found.items():
        speed = multi.bus_bandwidth(nbytes, record["value"], count)
        record["bus"] = speed
        report(f"  {name:12} {record['value'] * 1e6:9.1f} us  {speed / 1e9:7.1f} GB/s")
    return list(found.values()), right


def _summand(n, d):
    """The array of a device: neighbouring chunks differ, and sums are exact."""
    return np.resize(np.arange(d, 997 + d, dtype=np.float32), n)


def _reset(arrays, value=None):
    for d, array in enumerate(arrays):
        with on_device(d):
            n = array.size
            array.copy_to_device(_summand(n, d) if value is None else np.full(n, value, np.float32))


def _in_a_row(run, devices):
    for _ in range(QUEUED):
        run()
    multi.synchronize(range(devices))


def _nccl(arrays):
    """{"nccl": function} where PyTorch has it."""
    torch = common.libraries().get("torch")
    if torch is None or len(arrays) < 2:
        return {}
    tensors = [torch.as_tensor(array, device=f"cuda:{d}") for d, array in enumerate(arrays)]
    queues = [torch.cuda.Stream(device=d) for d in range(len(arrays))]
    return {"nccl": partial(torch.cuda.nccl.all_reduce, tensors, streams=queues)}


# -- a cluster ---------------------------------------------------------------------------------------------------------


def work_of_a_second(number, products=50, n=8192):
    """Multiply matrices on the current device for about a second, on an H200; returns an element of the result."""
    a, out = cuda.to_device(np.full((n, n), 1 / n, np.float32)), cuda.device_array((n, n), np.float32)
    for _ in range(products):
        matmul.matmul(a, a, out=out)
    return float(out[number, number])


def measure_cluster(devices, report=print, batches=3, **size):
    """Time batches on a cluster of one worker per device, and in a plain loop on one device."""
    work = partial(work_of_a_second, **size)
    expected = work(0)
    began = time.perf_counter()
    right = all(work(number) == expected for number in range(batches))
    loop = (time.perf_counter() - began) / batches
    with multi.local_cluster(devices) as client:
        list(multi.map_frames(work, range(2 * devices), client))  # workers compile
        began = time.perf_counter()
        found = list(multi.map_frames(work, range(batches * devices), client))
        each = (time.perf_counter() - began) / batches
    right &= found == [expected] * len(found)
    report(f"  a batch takes {loop:.3f} s in a loop, {each:.3f} s of each of {devices} workers: {loop / each:.3f}")
    made = partial(_record, "cluster", shape=(batches,), dtype="float32")
    return [made("loop", value=loop, devices=1), made("dask", value=each, devices=devices)], right


def measurements(options):
    """Yield (title, function); with ``--quick`` for one size of each."""
    devices, quick = len(cuda.gpus), options.quick
    yield "links", partial(measure_links, devices)
    for plate in PLATES[2:3] if quick else PLATES:
        yield f"heat on {plate[0]} x {plate[1]}, {plate[2]} scaling", partial(measure_heat, *plate, devices)
    for n in PRODUCTS[1:] if quick else PRODUCTS:
        yield f"product of {n}", partial(measure_product, n, devices)
    yield "frames", partial(measure_frames, devices)
    for nbytes in REDUCED[:1] if quick else REDUCED if devices > 1 else ():
        yield f"all-reduce of {nbytes:,} bytes", partial(measure_all_reduce, nbytes, devices)
    if find_spec("distributed"):
        yield "batches on a cluster", partial(measure_cluster, devices)
