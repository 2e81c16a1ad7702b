"""``gpukit bench resize``: time the resizing of frames to a network's input, beside PyTorch, CuPy and OpenCV.

Each result is checked first; then all are timed in turns, with a cold L2 cache, OpenCV on all cores. Single frames and
videos are timed by the host's clock too.
"""

import functools
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import cv2
import numpy as np

from bench import common
from gpukit import resize, results, timing
from gpukit.backend import cuda
from gpukit.launching import upload
from gpukit.resize import ladder

__all__ = ["FRAMES", "SOURCE", "TARGET", "Frames", "head", "measurements"]

SOURCE, TARGET = (1080, 1920), (640, 640)
FRAMES = (1, 32, 256)
FILL, MEAN, FACTOR = (114, 114, 114), (123.675, 116.28, 103.53), (0.01712475, 0.017507, 0.01742919)
SECONDS = 0.03  # of timed repetitions for each function
CUT = (224, 224)
VIDEO = 300  # frames
DEPTHS = (1, 4, 8)  # frames in flight
CHECKED = 4  # frames of a batch that are compared with OpenCV's
MAX_COMPILED = 32  # frames: torch.compile takes seconds for each batch size


# -- frames, and the libraries' ways --------------------------------------------------------------


def by_opencv(frame, place, out):
    """Letterbox and normalise one frame on the host, into planes."""
    height, width, top, left = place[1:5]
    below, right = out.shape[1] - top - height, out.shape[2] - left - width
    inner = cv2.resize(frame, (width, height))
    boxed = cv2.copyMakeBorder(inner, top, below, left, right, cv2.BORDER_CONSTANT, value=FILL)
    for channel in range(3):
        np.multiply(boxed[..., 2 - channel], np.float32(FACTOR[channel]), out=out[channel], dtype=np.float32)
        out[channel] -= np.float32(MEAN[channel] * FACTOR[channel])


class Frames:
    """Frames on the device and on the host, where they are placed in the target, and the check of a result.

    Attributes
    ----------
    hosts : list of ndarray
        A few frames; those on the device repeat them.
    device : device array, shape (N, H, W, 3), uint8
    place : resize.Placement
    """

    def __init__(self, count):
        random = np.random.default_rng(8)
        self.count, self.source, self.target = count, SOURCE, TARGET
        self.hosts = [random.integers(0, 256, (*SOURCE, 3), np.uint8) for _ in range(min(count, CHECKED))]
        self.device = cuda.device_array((count, *SOURCE, 3), np.uint8)
        for i in range(count):
            self.device[i].copy_to_device(self.hosts[i % len(self.hosts)])
        self.place = resize.placement(SOURCE, TARGET)

    def like(self, shape, dtype):
        return cuda.device_array((self.count, *shape), dtype)

    def inside(self, array):
        """Return the part of planes inside the letterbox's border."""
        place = self.place
        return array[..., place.top : place.top + place.height, place.left : place.left + place.width]

    def by_opencv(self, frame, out):
        by_opencv(frame, self.place, out)

    def is_right(self, blobs, tolerance):
        """Compare the first frames' planes with OpenCV's, up to a level of the bytes and a rounding of the planes."""
        expected = np.empty((3, *self.target), np.float32)
        for frame, got in zip(self.hosts, blobs, strict=False):
            self.by_opencv(frame, expected)
            if not np.abs(expected - got.astype(np.float32)).max() <= max(FACTOR) + tolerance:
                return False
        return True


def torch_forms(torch, frames, dtype="float32", compiled=True):
    """Return {name: function} of PyTorch's ways to the same planes.

    "torch interpolate" uses no compiler, but preallocated outputs and as few passes over memory as possible; "torch
    compiled" leaves that to ``torch.compile``, which takes seconds.
    """
    x = torch.as_tensor(frames.device, device="cuda")
    place = frames.place
    mean, factor, fill = (torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in (MEAN, FACTOR, FILL))
    out = torch.empty((frames.count, 3, *frames.target), device="cuda", dtype=getattr(torch, dtype))
    border, offset, inside = (fill - mean) * factor, -mean * factor, frames.inside(out)

    def interpolate():
        planes = x.permute(0, 3, 1, 2).float()
        inner = torch.nn.functional.interpolate(planes, place[1:3], mode="bilinear", align_corners=False).flip(1)
        out.copy_(border.expand(out.shape))
        if dtype == "float32":
            torch.addcmul(offset, inner, factor, out=inside)
        else:
            inside.copy_(torch.addcmul(offset, inner, factor))
        return out

    if not compiled or dtype != "float32" or frames.count > MAX_COMPILED:
        return {"torch interpolate": interpolate}
    return {
        "torch interpolate": interpolate,
        "torch compiled": lambda: _compiled(torch)(x, mean, factor, place[1:3], _pad(frames)),
    }


@functools.cache
def _compiled(torch):
    def straight(x, mean, factor, size, pad):
        planes = x.permute(0, 3, 1, 2).float()
        inner = torch.nn.functional.interpolate(planes, size, mode="bilinear", align_corners=False).flip(1)
        return (torch.nn.functional.pad(inner, pad, value=float(FILL[0])) - mean) * factor

    return torch.compile(straight, dynamic=False)


def _pad(frames):
    place, (height, width) = frames.place, frames.target
    return place.left, width - place.left - place.width, place.top, height - place.top - place.height


def torchvision_form(torch, frames):
    """Return torchvision's resize of the bytes, with PyTorch for the rest."""
    from torchvision.transforms.v2 import functional

    x = torch.as_tensor(frames.device, device="cuda").permute(0, 3, 1, 2)
    mean, factor = (torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in (MEAN, FACTOR))
    place = frames.place

    def run():
        inner = functional.resize(x, [place.height, place.width], antialias=False)
        boxed = torch.nn.functional.pad(inner.flip(1), _pad(frames), value=float(FILL[0]))
        return (boxed.float() - mean) * factor

    return run


def cupy_form(cupy, frames):
    """Return cupyx's zoom with half-pixel centres, with CuPy for the rest."""
    import cupyx.scipy.ndimage as ndimage

    x, place = cupy.asarray(frames.device), frames.place
    mean, factor = (cupy.asarray(v, np.float32)[:, None, None] for v in (MEAN, FACTOR))
    out = cupy.empty((frames.count, 3, *frames.target), np.float32)
    inside = frames.inside(out)
    zooms = (1, place.height / frames.source[0], place.width / frames.source[1], 1)
    fill = (cupy.asarray(FILL, np.float32)[:, None, None] - mean) * factor

    def run():
        inner = ndimage.zoom(x, zooms, np.float32, order=1, mode="nearest", grid_mode=True)
        out[...] = fill
        inside[...] = (inner[..., ::-1].transpose(0, 3, 1, 2) - mean) * factor
        return out

    return run


@functools.cache
def _pool():
    return ThreadPoolExecutor(results.cores())


def opencv_form(frames):
    """Return OpenCV on all cores: a frame for each core at a time, or OpenCV's own threads for a single frame."""
    outs = np.empty((frames.count, 3, *frames.target), np.float32)
    several = frames.count > 1

    def run():
        cv2.setNumThreads(1 if several else results.cores())
        work = [(frames.hosts[i % len(frames.hosts)], out) for i, out in enumerate(outs)]
        for _ in _pool().map(lambda pair: frames.by_opencv(*pair), work) if several else (frames.by_opencv(*work[0]),):
            pass

    return run


def copy_of(nbytes):
    """Return a copy on the device that reads and writes so many bytes together."""
    source, target = (cuda.device_array(nbytes // 2, np.uint8) for _ in range(2))
    return partial(target.copy_to_device, source)


# -- measurements ----------------------------------------------------------------------------------


def _host(array):
    return cuda.as_cuda_array(array).copy_to_host()


def _checked(runs, is_right, report):
    """Return (the runs whose result is right, whether all were)."""
    good = {}
    for name, run in runs.items():
        try:
            result = run()
        except Exception as error:  # a library may lack a function
            report(f"  {name} is left out: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        if is_right(_host(result[:CHECKED])):
            good[name] = run
        else:
            report(f"  WRONG: {name}")
    return good, len(good) == len(runs)


def _timed(case, runs, frames, dtype, moved, report, **options):
    records = []
    further = {"target": list(frames.target), "bytes": moved}
    options = {"min_time": SECONDS, "warmup": 0.005} | options
    for name, timed in timing.bench_many(runs, **options).items():
        shape = (frames.count, *frames.source, 3)
        records.append(results.of_timing("resize", case, name, shape, dtype, timed, **further))
        report(f"  {name:24} {timed.median * 1e6:10.2f} us  {timed.gbps(moved):7.0f} GB/s")
    return records


def measure_blob(count, dtype, libraries, report=print, compiled=True):
    """Time letterbox and normalisation into planes; return (records, whether all of gpukit's were right).

    With ``compiled``, torch.compile is timed too.
    """
    frames = Frames(count)
    moved = resize.least_bytes(count, frames.source, frames.target, frames.place, (1, np.dtype(dtype).itemsize))
    out = frames.like((3, *frames.target), dtype)
    own = {"blob": lambda: resize.blob(frames.device, TARGET, MEAN, FACTOR, FILL, dtype=dtype, out=out).image}
    if dtype == "float32":
        launch, arguments = ladder.rung(
            "letterbox_planes", frames.device, out, fill=FILL, swap_rb=True, mean=MEAN, factor=FACTOR
        )
        own["letterbox_planes"] = lambda: launch(*arguments) or out
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    own, right = _checked(own, lambda got: frames.is_right(got, tolerance), report)
    others = _of_libraries(frames, libraries, dtype, report, compiled)
    others, _ = _checked(others, lambda got: frames.is_right(got, tolerance), report)
    runs = own | others | {"copy": copy_of(moved)}
    records = _timed("blob", runs, frames, dtype, moved, report)
    if dtype == "float32":
        runs = {f"opencv, {results.cores()} cores": opencv_form(frames)}
        records += _timed("blob", runs, frames, dtype, moved, report, device="cpu")
    return records, right


def _of_libraries(frames, libraries, dtype, report, compiled=True):
    """Return {name: function} of the libraries' ways; one that cannot be made is left out."""
    makers = []
    if "torch" in libraries:
        makers.append(lambda: torch_forms(libraries["torch"], frames, dtype, compiled))
        if dtype == "float32":
            makers.append(lambda: {"torchvision": torchvision_form(libraries["torch"], frames)})
    if "cupy" in libraries and dtype == "float32" and frames.count <= MAX_COMPILED:
        makers.append(lambda: {"cupyx zoom": cupy_form(libraries["cupy"], frames)})
    found = {}
    for make in makers:
        try:
            found |= make()
        except Exception as error:
            report(f"  left out: {type(error).__name__}: {error}")
    return found


def measure_ladder(count, report=print):
    """Time the ladder beside ``resize`` and ``letterbox``, bytes to bytes; return (records, whether all were right)."""
    frames = Frames(count)
    out = frames.like((*frames.target, 3), np.uint8)
    runs = {}
    for name in list(ladder.VARIANTS)[:4]:
        launch, arguments = ladder.rung(name, frames.device, out, fill=FILL, swap_rb=True)
        runs[name] = lambda launch=launch, arguments=arguments: launch(*arguments) or out
    for method in resize.METHODS:
        runs[f"resize, {method}"] = partial(resize.resize, frames.device, TARGET, method, swap_rb=True, out=out)
    runs["letterbox"] = lambda: resize.letterbox(frames.device, TARGET, FILL, out=out).image
    records, all_right = [], True
    for case in ("nearest", "bilinear", "letterbox"):
        place = frames.place if case == "letterbox" else None
        moved = resize.least_bytes(count, frames.source, frames.target, place, (1, 1), case == "nearest")
        good = {}
        for name in [name for name in runs if case in name]:
            if is_opencvs(name, frames, _host(runs[name]())[0]):
                good[name] = runs[name]
            else:
                all_right = False
                report(f"  WRONG: {name}")
        records += _timed(case, good | {"copy": copy_of(moved)}, frames, "uint8", moved, report)
    return records, all_right


def is_opencvs(name, frames, got):
    """Compare the first frame, with channels swapped, with OpenCV's, up to a level."""
    place = resize.placement(frames.source, frames.target, name != "letterbox_corner")
    height, width, top, left = place[1:5] if name.startswith("letterbox") else (*frames.target, 0, 0)
    nearest = "nearest" in name
    inner = cv2.resize(
        frames.hosts[0], (width, height), interpolation=cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    )
    expected = np.full((*frames.target, 3), FILL, np.uint8)
    expected[top : top + height, left : left + width] = inner[..., ::-1]
    return cv2.absdiff(got, expected).max() <= (0 if nearest else 1)


def measure_floats(count, libraries, report=print):
    """Time float32 to float32, beside PyTorch's interpolate of the same memory (channels last) and of planes."""
    frames = Frames(count)
    x = cuda.to_device(np.random.default_rng(1).random((count, *SOURCE, 3), np.float32))
    out = frames.like((*TARGET, 3), np.float32)
    runs = {"resize": lambda: resize.resize(x, TARGET, out=out)}
    right = True
    if "torch" in libraries:
        torch = libraries["torch"]
        last = torch.as_tensor(x, device="cuda").permute(0, 3, 1, 2)
        options = {"size": TARGET, "mode": "bilinear", "align_corners": False}
        runs["torch interpolate"] = partial(torch.nn.functional.interpolate, last, **options)
        planar = last.contiguous()
        runs["torch interpolate, planes"] = partial(torch.nn.functional.interpolate, planar, **options)
        own = torch.as_tensor(runs["resize"](), device="cuda").permute(0, 3, 1, 2)
        right = bool((own - runs["torch interpolate"]()).abs().max() < 1e-5)
        if not right:
            report("  WRONG: resize")
    moved = resize.least_bytes(count, SOURCE, TARGET, items=(4, 4))
    return _timed("resize floats", runs | {"copy": copy_of(moved)}, frames, "float32", moved, report), right


CALLS = 50  # in a row, timed by the host's clock


def measure_calls(libraries, report=print):
    """Time one frame by the host's clock, with a warm cache: call and wait, and the host's part of the call."""
    frames, runs = Frames(1), {}
    out = frames.like((3, *TARGET), np.float32)
    runs["blob"] = partial(resize.blob, frames.device, TARGET, MEAN, FACTOR, FILL, out=out)
    if "torch" in libraries:
        torch = libraries["torch"]
        x, y = torch.as_tensor(frames.device, device="cuda"), torch.as_tensor(out, device="cuda")
        runs["blob (torch)"] = partial(resize.blob, x, TARGET, MEAN, FACTOR, FILL, out=y)
        runs["blob (torch), new result"] = partial(resize.blob, x, TARGET, MEAN, FACTOR, FILL)
        others = _of_libraries(frames, {"torch": torch}, "float32", report)
        runs |= _checked(others, lambda got: frames.is_right(got, 1e-5), report)[0]
    waited = {name: partial(common.wait_for, run) for name, run in runs.items()}
    moved = resize.least_bytes(1, SOURCE, TARGET, frames.place)
    records = _timed("blob, call and wait", waited, frames, "float32", moved, report, **BY_THE_HOST)
    for name, timed in timing.bench_many(runs, warmup=0.005, setup=cuda.synchronize, **BY_THE_HOST).items():
        records.append(results.of_timing("resize", "blob, host", name, (1, *SOURCE, 3), "float32", timed))
        report(f"  {name:24} {timed.median * 1e6:10.2f} us of the host for a call")
    return records, True


#: Many calls in a row, so that the CPU's caches hold what a call needs.
BY_THE_HOST = {"device": "cpu", "calls": CALLS, "min_time": 0.1}


def cuts_of(shape, count):
    """Draw (top, left, height, width) of cuts of many sizes from a frame, as a detector would find them."""
    random = np.random.default_rng(3)
    found = []
    for _ in range(count):
        size = tuple(int(random.integers(1 + most // 20, most // 3)) for most in shape)
        found.append((*(int(random.integers(0, most - n)) for most, n in zip(shape, size, strict=True)), *size))
    return found


def torch_cuts(torch, cuts, target):
    """Return PyTorch's way: one cut after another, and the steps that can be shared once for all."""
    mean, factor, fill = (torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in (MEAN, FACTOR, FILL))
    out = torch.empty((len(cuts), 3, *target), device="cuda")
    border, offset = (fill - mean) * factor, -mean * factor
    places = [resize.placement(tuple(cut.shape[:2]), target) for cut in cuts]

    def run():
        out.copy_(border.expand(out.shape))
        for cut, one, (_, height, width, top, left, _) in zip(cuts, out, places, strict=True):
            planes = cut.permute(2, 0, 1)[None].float()
            inner = torch.nn.functional.interpolate(planes, (height, width), mode="bilinear", align_corners=False)
            torch.addcmul(offset, inner.flip(1), factor, out=one[None, :, top : top + height, left : left + width])
        return out

    return run


def opencv_cuts(cuts, target):
    """Return OpenCV on all cores, a cut at a time, into the same planes in every call."""
    places = [resize.placement(cut.shape[:2], target) for cut in cuts]
    planes = np.empty((len(cuts), 3, *target), np.float32)

    def run():
        cv2.setNumThreads(1)
        list(_pool().map(by_opencv, cuts, places, planes))
        return planes

    return run


def _cut_runs(cuts, target, libraries):
    """Return {name: function} of the ways to resize cuts: in one launch, one by one, and by PyTorch."""
    out = cuda.device_array((len(cuts), 3, *target), np.float32)
    outs = [out[i] for i in range(len(cuts))]

    def one_by_one():
        for cut, one in zip(cuts, outs, strict=True):
            resize.blob(cut, target, MEAN, FACTOR, FILL, out=one)
        return out

    runs = {
        "blob": lambda: resize.blob(cuts, target, MEAN, FACTOR, FILL, out=out).image,
        "blob, one by one": one_by_one,
    }
    if "torch" in libraries:
        torch = libraries["torch"]
        tensors = [torch.as_tensor(cut, device="cuda") for cut in cuts]
        runs["blob (torch), new result"] = lambda: resize.blob(tensors, target, MEAN, FACTOR, FILL).image
        runs["torch interpolate"] = torch_cuts(torch, tensors, target)
    return runs


def measure_sizes(count, libraries, report=print):
    """Time cuts of many sizes from one frame: in one launch, one by one, and by PyTorch and OpenCV."""
    frames, places = Frames(1), cuts_of(SOURCE, count)
    cuts, on_host = (
        [frame[top : top + height, left : left + width] for top, left, height, width in places]
        for frame in (frames.device[0], frames.hosts[0])
    )
    by_all_cores = opencv_cuts(on_host, CUT)
    expected = by_all_cores().copy()

    def is_right(got):
        return np.abs(got - expected[: len(got)]).max() <= max(FACTOR) + 1e-5

    runs, right = _checked(_cut_runs(cuts, CUT, libraries), is_right, report)
    waited = {name: partial(common.wait_for, run) for name, run in runs.items()}
    waited[f"opencv, {results.cores()} cores"] = by_all_cores
    options = {"min_time": SECONDS, "warmup": 0.005}
    timings = {
        "many sizes": timing.bench_many(runs, **options),
        "many sizes, call and wait": timing.bench_many(waited, device="cpu", calls=5, **options),
    }
    records = []
    for case, by_name in timings.items():
        for name, timed in by_name.items():
            records.append(results.of_timing("resize", case, name, (count, *CUT, 3), "float32", timed))
            report(f"  {case}: {name:24} {timed.median * 1e6:10.2f} us")
    return records, right


def measure_video(report=print):
    """Time a frame of a video, from the host's memory to planes on the device, beside OpenCV on the host."""
    pinned = [cuda.pinned_array((*SOURCE, 3), np.uint8) for _ in range(16)]
    frames = Frames(1)
    for frame in pinned:
        frame[...] = frames.hosts[0]
    plain = [frame.copy() for frame in pinned]
    seconds = timing.bench(partial(upload, frames.device, pinned[0], 0), min_time=SECONDS).median
    records = [_video_record("copy to the device", seconds)]
    report(f"  copies of pinned frames alone: {1 / seconds:8.0f} frames per second")
    for name, source in (("pinned frames", pinned), ("plain frames", plain)):
        for depth in DEPTHS:
            seconds = _video_seconds(source, depth)
            records.append(_video_record(f"video, {name}", seconds, depth=depth))
            report(f"  {name}, depth {depth}: {1 / seconds:8.0f} frames per second")
    cv2.setNumThreads(1)
    outs = np.empty((len(plain), 3, *TARGET), np.float32)
    for cores in (1, results.cores()):
        with ThreadPoolExecutor(cores) as pool:
            best = []
            for _ in range(5):
                begin = time.perf_counter()
                work = [(plain[i % len(plain)], outs[i % len(plain)]) for i in range(VIDEO // 4)]
                list(pool.map(lambda pair: frames.by_opencv(*pair), work))
                best.append((time.perf_counter() - begin) / len(work))
        seconds = float(np.median(best))
        records.append(_video_record(f"opencv, {cores} cores", seconds))
        report(f"  opencv, {cores} cores: {1 / seconds:8.0f} frames per second")
    return records, True


def _video_seconds(source, depth):
    """Return seconds per frame once memory and streams are allocated, as in a long video."""
    found, first = [], 2 * depth
    for _ in range(3):
        frames = (source[i % len(source)] for i in range(first + VIDEO))
        for number, _ in enumerate(resize.video(frames, TARGET, MEAN, FACTOR, FILL, depth=depth)):
            if number == first - 1:
                begin = time.perf_counter()
        found.append((time.perf_counter() - begin) / VIDEO)
    return float(np.median(found))


def _video_record(variant, seconds, **further):
    made = results.record("resize", "video", variant, (*SOURCE, 3), "float32", seconds, **further)
    return made | {"spread": None, "clock": "host"}


# -- all of them -----------------------------------------------------------------------------------


def head():
    """Describe the GPU and the CPU, for the records."""
    return common.machine_and_cpu()


def measurements(options):
    """Yield (title, function); with ``--quick`` for one frame and a batch of 32 only, without videos."""
    warnings.simplefilter("ignore")  # the libraries' own
    libraries = common.libraries()
    for count in FRAMES[1::-1] if options.quick else (*FRAMES[1::-1], *FRAMES[2:]):
        yield f"blob of {count} frames, float32", partial(measure_blob, count, "float32", libraries)
    yield "one frame, launch included", partial(measure_calls, libraries)
    if options.quick:
        return
    yield "bytes to bytes, 32 frames", partial(measure_ladder, 32)
    yield "blob of 32 frames, float16", partial(measure_blob, 32, "float16", libraries)
    for count in FRAMES[:2]:
        yield f"float32 pixels, {count} frames", partial(measure_floats, count, libraries)
    yield "64 cuts of many sizes", partial(measure_sizes, 64, libraries)
    yield "video", measure_video
