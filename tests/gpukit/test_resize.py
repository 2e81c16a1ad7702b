"""`gpukit.resize`: OpenCV's pixels at any size, frames and borders in their places, and the kernels' traces."""

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from layouts import view_on_device

import gpukit
from gpukit import resize
from gpukit._host import call as calls
from gpukit._host.arrays import configure_quietly
from gpukit.backend import cuda
from gpukit.resize import cost, ladder

DTYPES = (np.uint8, np.float32)


def picture(*shape, dtype=np.uint8):
    """Noise, the hardest of images: bytes, or floats from 0 to 1."""
    random = np.random.default_rng([*shape])
    return random.integers(0, 256, shape, np.uint8) if dtype == np.uint8 else random.random(shape, np.float32)


def poisoned(shape, dtype):
    out = np.empty(shape, dtype)
    out.view(np.uint8)[...] = 0xAB
    return out


def by_opencv(image, size, interpolation=cv2.INTER_LINEAR):
    return cv2.resize(image, size[::-1], interpolation=interpolation)


def levels_apart(a, b):
    return np.abs(a.astype(int) - b.astype(int))


def weights(n, size):
    """(size, n) float64 matrix that resizes one axis: shares of the source pixels in those of the target."""
    place = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(n)))


def interpolated(image, size):
    """The specification: bilinear with half-pixel centres in float64."""
    return np.einsum(
        "yh,xw,...hwc->...yxc", weights(image.shape[-3], size[0]), weights(image.shape[-2], size[1]), image
    )


def bordered(inner, size, place, fill):
    """The inner image at its place in the target; OpenCV's border around it."""
    below, right = size[0] - place.top - place.height, size[1] - place.left - place.width
    fill = np.broadcast_to(np.asarray(fill, float), 3)
    return cv2.copyMakeBorder(inner, place.top, below, place.left, right, cv2.BORDER_CONSTANT, value=fill.tolist())


pixels = st.one_of(st.integers(1, 70), st.sampled_from([1, 2, 3, 31, 32, 33, 64, 100, 131]))
images = {"rows": pixels, "columns": pixels, "height": pixels, "width": pixels}
CORNERS = [(1, 1, 40, 33), (40, 33, 1, 1), (1, 50, 70, 9), (2, 2, 1, 131), (64, 64, 32, 32), (33, 7, 33, 7)]


def with_corners(test):
    for rows, columns, height, width in CORNERS:
        test = example(rows=rows, columns=columns, height=height, width=width, frames=None, swap=False)(test)
    return test


# -- right to the pixel ----------------------------------------------------------------------------


@settings(max_examples=40)
@given(**images, frames=st.sampled_from([None, 0, 1, 3]), swap=st.booleans())
@with_corners
def test_against_opencv(rows, columns, height, width, frames, swap):
    size, batch = (height, width), () if frames is None else (frames,)
    order = slice(None, None, -1) if swap else slice(None)
    for dtype in DTYPES:
        image = picture(*batch, rows, columns, 3, dtype=dtype)
        for method, interpolation in (("nearest", cv2.INTER_NEAREST), ("bilinear", cv2.INTER_LINEAR)):
            out = poisoned((*batch, *size, 3), dtype)
            assert resize.resize(image, size, method, swap_rb=swap, out=out) is out
            for source, result in [(image, out)] if frames is None else zip(image, out, strict=True):
                expected = by_opencv(source, size, interpolation)[..., order]
                if method == "nearest":
                    assert np.array_equal(result, expected)
                elif dtype == np.uint8:
                    assert levels_apart(result, expected).max() <= 1
        if dtype == np.float32:
            assert np.abs(out - interpolated(image.astype(float), size)[..., order]).max(initial=0) < 4e-7


@pytest.mark.parametrize("size", [(3, 640), (7, 5), (5, 3001), (3, 1919), (4, 1)])
def test_bilinear_bytes_of_wide_frames_are_opencvs(size):
    """At least 98 pixels of 100 equal. OpenCV's own places in float32 are a little off at the far end of a row."""
    image = picture(5, 1920, 3)
    apart = levels_apart(resize.resize(image, size), by_opencv(image, size))
    assert apart.max() <= 1 and (apart == 0).mean() >= 0.98


def test_share_of_bytes_equal_to_opencvs():
    equal = []
    for n in range(40):
        rows, columns, height, width = np.random.default_rng(n).integers(1, 200, 4).tolist()
        image = picture(rows, columns, 3)
        equal.append((resize.resize(image, (height, width)) == by_opencv(image, (height, width))).mean())
    assert min(equal) > 0.99 and np.mean(equal) > 0.999


def test_nearest_where_rounding_decides():
    """Where x n / size is whole, OpenCV's scale in float64 puts some pixels one to the left: x n // size is not it."""
    differ = 0
    for n, size in [(n, size) for n in (18, 36, 98, 161) for size in (22, 28, 62, 98, 322)]:
        image = np.repeat(np.arange(n, dtype=np.float32), 3).reshape(1, n, 3)
        expected = by_opencv(image, (1, size), cv2.INTER_NEAREST)
        assert np.array_equal(resize.resize(image, (1, size), "nearest"), expected)
        assert np.array_equal(resize.resize(image.reshape(n, 1, 3), (size, 1), "nearest"), expected.reshape(size, 1, 3))
        differ += not np.array_equal(expected[0, :, 0], np.arange(size) * n // size)
    assert differ


@settings(max_examples=40)
@given(
    **images, frames=st.sampled_from([None, 2]), swap=st.booleans(), center=st.booleans(), dtype=st.sampled_from(DTYPES)
)
@example(rows=1, columns=131, height=40, width=20, frames=None, swap=True, center=True, dtype=np.uint8)
@example(rows=131, columns=1, height=9, width=100, frames=None, swap=True, center=True, dtype=np.float32)
@example(rows=33, columns=64, height=33, width=64, frames=2, swap=False, center=False, dtype=np.uint8)
def test_letterbox_against_opencv(rows, columns, height, width, frames, swap, center, dtype):
    size, batch = (height, width), () if frames is None else (frames,)
    image = picture(*batch, rows, columns, 3, dtype=dtype)
    fill = (114, 7, 255)
    out = poisoned((*batch, *size, 3), dtype)
    result = resize.letterbox(image, size, fill, center, swap, out=out)
    place = resize.placement((rows, columns), size, center)
    assert result.image is out and result[1:] == (place.scale, place.top, place.left)
    own = resize.resize(image, (place.height, place.width), swap_rb=swap)
    for frame, source, inner in zip(
        *((out, image, own) if frames else (out[None], image[None], own[None])), strict=True
    ):
        # a device contracts sums of float products in its own way in each kernel
        assert np.abs(frame.astype(float) - bordered(inner, size, place, fill)).max() <= (dtype == np.float32) * 4e-7
        expected = by_opencv(source, (place.height, place.width))[..., :: -1 if swap else 1]
        expected = bordered(expected, size, place, fill)
        tolerance = 1 if dtype == np.uint8 else 2e-4  # OpenCV's float32 places and weights
        assert np.abs(frame.astype(float) - expected).max() <= tolerance


@settings(max_examples=20)
@given(
    **images,
    frames=st.sampled_from([None, 0, 2]),
    swap=st.booleans(),
    center=st.booleans(),
    source=st.sampled_from(DTYPES),
    dtype=st.sampled_from([np.float32, np.float16]),
)
def test_blob_is_the_letterbox_normalised(rows, columns, height, width, frames, swap, center, source, dtype):
    size, batch = (height, width), () if frames is None else (frames,)
    image = picture(*batch, rows, columns, 3, dtype=source)
    mean, factor, fill = (123.675, 116.28, 103.53), (0.0171, 0.0175, 0.0174), (114, 0, 255)
    out = poisoned((*batch, 3, *size), dtype)
    result = resize.blob(image, size, mean, factor, fill, center, swap, dtype=dtype, out=out)
    boxed = resize.letterbox(image, size, fill, center, swap)
    expected = (boxed.image.astype(np.float32) - np.float32(mean)) * np.float32(factor)
    assert result.image is out and result[1:] == boxed[1:]
    if source == np.uint8:
        assert np.array_equal(out, np.moveaxis(expected, -1, -3).astype(dtype))
    else:  # a device contracts products and sums in its own way
        assert np.allclose(out, np.moveaxis(expected, -1, -3), rtol=2e-3 if dtype == np.float16 else 2e-6)


def test_blob_is_opencvs():
    """Same size, so that all that is left is the exchange, the arithmetic and the planes; OpenCV's has a batch of 1."""
    image = picture(32, 48, 3)
    expected = cv2.dnn.blobFromImage(image, 1 / 255, (48, 32), (10, 20, 30), swapRB=True)
    result = resize.blob(image[None], (32, 48), (10, 20, 30)).image
    assert result.dtype == np.float32 and np.abs(result - expected).max() < 1e-6
    assert np.array_equal(resize.blob(image, (32, 48), (10, 20, 30)).image, result[0])


# -- where the picture is --------------------------------------------------------------------------


def test_placements():
    place = resize.placement((1080, 1920), (640, 640))
    assert place == (1 / 3, 360, 640, 140, 0, (1080, 1920))
    assert resize.placement((1080, 1920), (640, 640), center=False)[3:5] == (0, 0)
    assert resize.placement((1, 1000), (50, 100))[1:5] == (1, 100, 24, 0)  # never less than one row
    assert resize.placement((5, 10), (640, 640))[:3] == (64, 320, 640)
    assert resize.placement((7, 100), (10, 55))[1:5] == (4, 55, 3, 0)  # 3.85 rows
    corners = [[0, 0, 1920, 1080], [960, 540, 480, 270]]
    assert place.to_target(corners).tolist() == [[0, 140, 640, 500], [320, 320, 160, 230]]


@given(**images, center=st.booleans())
def test_coordinates_go_there_and_back(rows, columns, height, width, center):
    place = resize.placement((rows, columns), (height, width), center)
    points = np.random.default_rng([rows, columns]).random((4, 3, 2)) * (columns, rows)
    there = place.to_target(points)
    assert np.allclose(place.to_source(there), points, rtol=0, atol=1e-9)
    assert (there >= (place.left, place.top)).all()
    assert (there <= (place.left + place.width, place.top + place.height)).all()
    assert place.height <= height and place.width <= width
    assert place.height == height or place.width == width


def test_a_box_follows_its_object():
    """A bright rectangle of the source is where ``to_target`` says, and nowhere else."""
    image = np.zeros((60, 100, 3), np.float32)
    image[20:40, 10:70] = 1
    result = resize.letterbox(image, (150, 200), swap_rb=False)
    place = resize.placement((60, 100), (150, 200))
    left, top, right, bottom = place.to_target([10, 20, 70, 40]).astype(int)
    assert (left, top, right, bottom) == (20, 55, 140, 95)
    inside = result.image[..., 0] > 0.5
    assert inside[top:bottom, left:right].all() and inside.sum() == (bottom - top) * (right - left)


# -- many sizes, many frames -----------------------------------------------------------------------


@settings(max_examples=8)
@given(
    sizes=st.lists(st.tuples(pixels, pixels), min_size=1, max_size=5),
    height=pixels,
    width=pixels,
    dtype=st.sampled_from(DTYPES),
    on_device=st.booleans(),
)
@example(sizes=[(7, 9), (64, 64), (1, 1), (131, 3)], height=40, width=33, dtype=np.uint8, on_device=True)
def test_images_of_many_sizes_at_once(sizes, height, width, dtype, on_device):
    """Each is what it is alone; also views whose rows are apart, and on the device."""
    images = [picture(rows, columns + 2, 3, dtype=dtype)[:, 1:-1] for rows, columns in sizes]
    given_images = [cuda.to_device(np.ascontiguousarray(i)) for i in images] if on_device else images
    target = height, width
    boxed = resize.letterbox(given_images, target, (1, 2, 3))
    assert boxed.scale == tuple(resize.placement(size, target).scale for size in sizes)
    results = [resize.resize(given_images, target), resize.resize(tuple(given_images), target, "nearest"), boxed.image]
    results.append(resize.blob(given_images, target, 7, fill=(1, 2, 3)).image)
    if on_device:
        assert all(cuda.is_cuda_array(result) for result in results)
        results = [result.copy_to_host() for result in results]
    for i, image in enumerate(images):
        alone = resize.letterbox(image, target, (1, 2, 3))
        assert (boxed.top[i], boxed.left[i]) == alone[2:]
        assert np.array_equal(results[0][i], resize.resize(image, target))
        assert np.array_equal(results[1][i], resize.resize(image, target, "nearest"))
        assert np.array_equal(results[2][i], alone.image)
        assert np.array_equal(results[3][i], resize.blob(image, target, 7, fill=(1, 2, 3)).image)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "library", ["numba", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("torch", "cupy"))]
)
def test_cuts_of_a_frame_again_and_again(library, dtype):
    """Other cuts in each call, as many as before and where they lie: each is what it is alone, whatever the one before
    has left.
    """
    module = None if library == "numba" else pytest.importorskip(library)
    frame, target = picture(90, 128, 3, dtype=dtype), (24, 28)
    there = {
        "numba": lambda: cuda.to_device(frame),
        "torch": lambda: module.from_numpy(frame).cuda(),
        "cupy": lambda: module.asarray(frame),
    }[library]()
    random, out = np.random.default_rng(5), None
    for turn in range(6):
        step = 4 if turn % 2 else 1  # from words on, or from anywhere
        cuts = []
        for y, x in random.integers(0, (60, 20), (3, 2)).tolist():
            n = len(cuts)
            cuts.append((slice(y, y + 9 + 7 * n), slice(step * x, step * x + 20 + 5 * n)))
        boxed = resize.blob([there[cut] for cut in cuts], target, turn, fill=(1, 2, 3), out=out if turn > 2 else None)
        out = boxed.image
        assert type(out) is type(there)
        for cut, image, scale in zip(cuts, cuda.as_cuda_array(out).copy_to_host(), boxed.scale, strict=True):
            alone = resize.blob(frame[cut], target, turn, fill=(1, 2, 3))
            assert np.array_equal(image, alone.image) and scale == alone.scale
    with pytest.raises(ValueError, match=r"out shares memory with image\[1\]"):
        resize.resize([there[:2, :2], there[88:, 100:]], (4, 5), out=there.reshape(-1)[-120:].reshape(2, 4, 5, 3))
    with pytest.raises(TypeError, match=r"image\[1\] has dtype"):
        resize.resize(
            [there, cuda.to_device(np.zeros((4, 4, 3), np.float32 if dtype == np.uint8 else np.uint8))], (4, 5)
        )


@pytest.mark.parametrize("depth, count", [(1, 3), (3, 2), (3, 7), (4, 0)])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_video_gives_each_frame_in_order(monkeypatch, depth, count, pinned):
    monkeypatch.setattr("gpukit.resize.videos.is_pinned", lambda frame: pinned)
    frames, options = picture(count, 20, 31, 3), {"mean": (1, 2, 3), "factor": 0.1, "fill": 9}
    results = resize.video((frame.copy() for frame in frames), (24, 16), **options, dtype=np.float16, depth=depth)
    results = [(result.image.copy_to_host(), *result[1:]) for result in results]
    assert len(results) == count
    for frame, (image, *where) in zip(frames, results, strict=True):
        alone = resize.blob(frame, (24, 16), **options, dtype=np.float16)
        assert np.array_equal(image, alone.image) and tuple(where) == alone[1:]


def test_a_video_refuses_what_is_not_alike():
    with pytest.raises(ValueError, match="depth is 0; it must be from 1 to"):
        resize.video([], (2, 2), depth=0)
    with pytest.raises(TypeError, match="size is 5"):
        resize.video([], 5)
    frames = resize.video([picture(4, 5, 3), picture(5, 4, 3)], (2, 2))
    with pytest.raises(ValueError, match=r"frames\[1\] is not of the shape and dtype of the first: \(4, 5, 3\), uint8"):
        list(frames)
    with pytest.raises(TypeError, match=r"frames\[0\] is a list"):
        next(resize.video([[1, 2]], (2, 2)))


# -- arrays of every kind --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_of_any_layout(monkeypatch, dtype):
    whole = picture(40, 60, 4, dtype=dtype)
    size = 23, 71
    for view in (whole[..., :3], whole[::-1, 3:50, 1:], whole[::2, ::-3, 2::-1], np.asfortranarray(whole[..., :3])):
        expected = resize.resize(np.ascontiguousarray(view), size)
        assert np.array_equal(resize.resize(view, size), expected)
        out = np.full((23, 71, 6), 0xAB, dtype)
        resize.resize(view, size, out=out[..., ::2])
        assert np.array_equal(out[..., ::2], expected) and (out[..., 1::2] == 0xAB).all()
    frames = picture(2, 40, 60, 3, dtype=dtype)
    parts = (slice(None), slice(1, None)), (slice(1), slice(None), slice(4, 48)), (1, slice(None, None, 2))
    views = [(frames, frames[part]) for part in parts]
    views += [(whole, whole[:, 5:50, :3]), (whole, whole[3:, :, 2::-1])]
    planes = picture(2, 3, 40, 60, dtype=dtype)
    views += [(planes, planes.transpose(0, 2, 3, 1)), (planes, planes[1, :, 4:, 1:].transpose(1, 2, 0))]
    for base, view in views:
        on_device = view_on_device(view, base, cuda.to_device(base))
        for method in "bilinear", "nearest":
            with monkeypatch.context() as without:
                without.setattr(calls, "copy_launches", None)  # nothing is copied
                result = resize.resize(on_device, size, method)
            expected = resize.resize(np.ascontiguousarray(view), size, method)
            assert np.allclose(result.copy_to_host(), expected, rtol=1e-6, atol=0)  # another kernel, for floats
        result, expected = (resize.blob(x, size).image for x in (on_device, np.ascontiguousarray(view)))
        assert np.allclose(result.copy_to_host(), expected, rtol=1e-6, atol=0)


def test_device_in_device_out():
    image = picture(45, 67, 3)
    on_device, stream = cuda.to_device(image), cuda.stream()
    result = resize.letterbox(on_device, (64, 40), 114, stream=stream)
    stream.synchronize()
    assert cuda.is_cuda_array(result.image)
    assert np.array_equal(result.image.copy_to_host(), resize.letterbox(image, (64, 40), 114, stream=stream).image)
    out = cuda.to_device(poisoned((64, 40, 6), np.uint8))
    resize.resize(on_device, (64, 40), "nearest", out=out[:, :, :3])
    host = out.copy_to_host()
    assert np.array_equal(host[..., :3], resize.resize(image, (64, 40), "nearest")) and (host[..., 3:] == 0xAB).all()
    blob = resize.blob(on_device, (64, 40), dtype=np.float16).image
    assert cuda.is_cuda_array(blob) and blob.dtype == np.float16
    assert np.array_equal(blob.copy_to_host(), resize.blob(image, (64, 40), dtype=np.float16).image)
    with pytest.raises(ValueError, match="out shares memory with image"):
        resize.resize(on_device, (45, 67), out=on_device)


def made(image, size):
    """What the host functions make of an image, by every kernel."""
    yield from (resize.resize(image, size, method) for method in resize.METHODS)
    yield from (resize.letterbox(image, size, (9, 8, 7), center).image for center in (True, False))
    yield from (resize.blob(image, size, 3, dtype=dtype).image for dtype in (np.float32, np.float16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_and_small_grids_alike(monkeypatch, dtype):
    """Several launches where a grid has too few layers, several rows for a thread where it has many blocks."""
    frames = picture(5, 9, 40, 3, dtype=dtype)
    expected = [*made(frames, (75, 44))]
    monkeypatch.setattr(cost, "MAX_GRID_YZ", 2)
    monkeypatch.setattr(cost, "MANY_BLOCKS", 1)
    assert all(np.array_equal(a, b) for a, b in zip(made(frames, (75, 44)), expected, strict=True))


def test_rungs_take_more_frames_than_layers(monkeypatch):
    frames = picture(5, 9, 40, 3)
    for name in list(ladder.VARIANTS)[:-1]:
        requests, outs = [], []
        for layers in (2, 5):
            monkeypatch.setattr(ladder, "MAX_GRID_YZ", layers)
            outs.append(poisoned((5, 12, 13, 3), np.uint8))
            launch, arguments = ladder.rung(name, frames, outs[-1], fill=9)
            requests.append(gpukit.trace(launch, *arguments).total("global", "store").requests)
        assert requests[0] == requests[1] and np.array_equal(*outs), name  # no frame twice


@pytest.mark.parametrize("source, size", [((1, 32767), (1, 5)), ((1, 5), (1, 32767)), ((1, 32767), (1, 32767))])
def test_the_largest_sizes(source, size):
    image = picture(*source, 3, dtype=np.float32)
    assert np.abs(resize.resize(image, size) - interpolated_row(image, size[1])).max() < 4e-7


def interpolated_row(image, size):
    n = image.shape[1]
    place = ((2 * np.arange(size) + 1) * n - size) / (2 * size)
    return np.stack([np.interp(place, np.arange(n), image[0, :, c]) for c in range(3)], axis=1)[None]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_arrays_of_other_libraries(name):
    library = pytest.importorskip(name)
    image = picture(2, 63, 41, 3)
    x = library.asarray(image, device="cuda") if name == "torch" else library.asarray(image)
    planes = resize.blob(x, (64, 64), dtype=np.float16).image
    assert type(planes) is type(x)
    expected = resize.blob(image, (64, 64), dtype=np.float16).image
    assert np.array_equal(cuda.as_cuda_array(planes).copy_to_host(), expected)
    result = resize.letterbox(x, (64, 64), 114).image
    assert type(result) is type(x)
    assert np.array_equal(cuda.as_cuda_array(result).copy_to_host(), resize.letterbox(image, (64, 64), 114).image)
    out = library.zeros_like(result)
    assert resize.letterbox(x, (64, 64), 114, out=out).image is out and bool((out == result).all())


@pytest.mark.gpu
def test_float32_is_pytorchs():
    torch = pytest.importorskip("torch")
    image = picture(2, 63, 141, 3, dtype=np.float32)
    for size in ((200, 50), (63, 141), (17, 640)):
        x = torch.asarray(image, device="cuda")
        channels_first = torch.nn.functional.interpolate(
            x.permute(0, 3, 1, 2), size, mode="bilinear", align_corners=False
        )
        assert float((resize.resize(x, size) - channels_first.permute(0, 2, 3, 1)).abs().max()) < 1e-5


# -- what the kernels do ---------------------------------------------------------------------------


def traced_rung(name, image, size):
    """(trace, out) of a rung of the ladder, with a border and exchanged channels."""
    planes = name == "letterbox_planes"
    shape = (len(image), 3, *size) if planes else (len(image), *size, 3)
    out = poisoned(shape, np.float32 if planes else image.dtype)
    launch, arguments = ladder.rung(name, image, out, fill=(7, 8, 9), swap_rb=True, mean=(1, 2, 3), factor=(0.5, 2, 3))
    return gpukit.trace(launch, *arguments), out


def test_fast_kernels_beside_the_ladder():
    image, size = cuda.to_device(picture(2, 50, 37, 3)), (40, 64)
    for name, like in zip(ladder.FAST, list(ladder.VARIANTS)[-2:], strict=True):
        outs = []
        for rung in (name, like):
            shape, dtype = ((2, 3, *size), np.float32) if rung.endswith("planes") else ((2, *size, 3), np.uint8)
            outs.append(cuda.to_device(poisoned(shape, dtype)))
            launch, arguments = ladder.rung(rung, image, outs[-1], fill=(7, 8, 9), swap_rb=True, mean=3, factor=0.5)
            launch(*arguments)
        assert np.array_equal(*(out.copy_to_host() for out in outs))
    with pytest.raises(ValueError, match="name is 'fast'; it must be one of nearest, bilinear"):
        ladder.rung("fast", image, image)


def by_host_function(name, image, size):
    if name in resize.METHODS:
        return resize.resize(image, size, name, swap_rb=True)
    if name == "letterbox_planes":
        return resize.blob(image, size, (1, 2, 3), (0.5, 2, 3), (7, 8, 9)).image
    return resize.letterbox(image, size, (7, 8, 9), name == "letterbox_centred").image


SIZES = [((13, 21), (37, 50)), ((50, 37), (9, 35)), ((1, 1), (3, 2)), ((7, 40), (64, 64))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source, size", SIZES)
def test_rungs_are_without_error_and_float64(dtype, source, size):
    image = picture(2, *source, 3, dtype=dtype)
    for name in ladder.VARIANTS:
        trace, out = traced_rung(name, image, size)
        assert trace.findings == [], name
        wide = sum(o.fp64 + o.fp64_conversions for o in trace.operations)
        assert bool(wide) == (name == "nearest"), name  # float64 by intent in that one alone
        assert {c.array: c.written for c in trace.coverage} == {"image": 0, "out": out.size}, name
        # a device contracts products and sums of floats in its own way in each kernel
        assert np.abs(out - by_host_function(name, image, size).astype(float)).max() <= (dtype == np.float32) * 4e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source, size", SIZES)
def test_kernels_are_without_error_and_float64(monkeypatch, dtype, source, size):
    """Those that the host functions launch: alike and of many sizes, with one row for each thread and with four."""
    traces = []

    def traced(*what):
        return lambda *arguments: traces.append(gpukit.trace(configure_quietly(*what), *arguments))

    image = picture(2, *source, 3, dtype=dtype)
    monkeypatch.setattr(cost, "configure_quietly", traced)
    for many in (1, 10**9):
        monkeypatch.setattr(cost, "MANY_BLOCKS", many)
        for images in (image, [image[0], image[1, ::-1][:5]]):
            for i, result in enumerate(made(images, size)):
                assert traces[-1].findings == []
                wide = sum(o.fp64 + o.fp64_conversions for o in traces[-1].operations)
                assert bool(wide) == (i == resize.METHODS.index("nearest"))
                (out,) = [c for c in traces[-1].coverage if c.array == "out"]
                assert out.written == result.size


@pytest.mark.parametrize("dtype", DTYPES)
def test_stores_fill_whole_sectors(monkeypatch, dtype):
    """Nothing is written twice or in parts, where one thread for each pixel wants three times the sectors."""
    image, size, totals = picture(2, 16, 64, 3, dtype=dtype), (16, 64), []

    def traced(*what):
        return lambda *arguments: totals.append(
            gpukit.trace(configure_quietly(*what), *arguments).total("global", "store")
        )

    monkeypatch.setattr(cost, "configure_quietly", traced)
    for result, stores in zip(made(image, size), totals, strict=False):
        assert stores.sectors == stores.ideal_sectors == result.nbytes // 32
    for op in ("load", "store"):
        total = traced_rung("nearest", image, size)[0].total("global", op)
        assert total.requests == image.size // 32 and total.sectors == 3 * total.ideal_sectors


def test_a_row_without_a_share_is_not_read(monkeypatch):
    """A reduction by 3 has its places on the centres of every third row: a third of the sectors is enough."""
    loads = []

    def traced(*what):
        return lambda *arguments: loads.append(gpukit.trace(configure_quietly(*what), *arguments).coverage)

    monkeypatch.setattr(cost, "configure_quietly", traced)
    image = picture(96, 192, 3)
    assert np.array_equal(resize.resize(image, (32, 64)), image[1::3, 1::3])
    (read,) = [c.read for c in loads[0] if c.array == "image"]
    assert read <= image.size / 4 / 3  # words


@settings(max_examples=40)
@given(**images, frames=st.integers(0, 9), items=st.sampled_from([1, 4]), nearest=st.booleans())
def test_the_bytes_that_must_move(rows, columns, height, width, frames, items, nearest):
    """Against the addresses of all bytes of the pixels that have a share."""
    if nearest:
        shares = [np.eye(n)[np.arange(to) * n // to] for n, to in ((rows, height), (columns, width))]
    else:
        shares = [np.where(weights(n, to) > 1e-9, 1, 0) for n, to in ((rows, height), (columns, width))]
    needed = shares[0].any(axis=0)[:, None] & shares[1].any(axis=0)
    pixel_bytes = 3 * items
    starts = np.flatnonzero(np.tile(needed.reshape(-1), frames)) * pixel_bytes
    sectors = {(start + i) // 32 for start in starts.tolist() for i in (0, pixel_bytes // 2, pixel_bytes - 1)}
    moved = resize.least_bytes(frames, (rows, columns), (height, width), None, (items, 2), nearest)
    assert moved == 32 * len(sectors) + frames * height * width * 6


def test_a_reduction_by_three_must_move_a_third_of_its_rows():
    place = resize.placement((1080, 1920), (640, 640))
    assert resize.least_bytes(2, (1080, 1920), (640, 640), place) == 2 * (360 * 1920 * 3 + 640 * 640 * 3 * 4)


# -- bad input -------------------------------------------------------------------------------------

A = np.ones((4, 5, 3), np.uint8)
F = A.astype(np.float32)
WRONG = [
    (lambda: resize.resize([[1]], (2, 2)), TypeError, r"image\[0\] is a list; it must be a NumPy array"),
    (
        lambda: resize.resize(A[0], (2, 2)),
        ValueError,
        r"image has shape \(5, 3\); it must be \(H, W, 3\) or \(N, H, W, 3\)",
    ),
    (lambda: resize.resize(A.astype(int), (2, 2)), TypeError, "image has dtype int64; it must be uint8 or float32"),
    (
        lambda: resize.resize(A[..., :2], (2, 2)),
        ValueError,
        r"image has shape \(4, 5, 2\); it must be \(H, W, 3\) or",
    ),
    (lambda: resize.resize(A[:0], (2, 2)), ValueError, r"image has shape \(0, 5, 3\); its height and width must be"),
    (lambda: resize.resize(A, 7), TypeError, "size is 7; it must be a tuple of 2 ints"),
    (lambda: resize.resize(A, (7,)), TypeError, r"size is \(7,\); it must be a tuple"),
    (lambda: resize.resize(A, (7, 2.5)), TypeError, r"size\[1\] is 2.5; it must be an int"),
    (lambda: resize.resize(A, (0, 5)), ValueError, r"size\[0\] is 0; it must be from 1 to 32767"),
    (lambda: resize.resize(A, (5, 40000)), ValueError, r"size\[1\] is 40000"),
    (lambda: resize.resize(A, (2, 2), "cubic"), ValueError, "method is 'cubic'; it must be one of bilinear, nearest"),
    (lambda: resize.resize(A, (2, 2), out=A), ValueError, r"out has shape \(4, 5, 3\); it must be \(2, 2, 3\)"),
    (lambda: resize.resize(A, (4, 5), out=F), TypeError, "out has dtype float32; it must be uint8, as image is"),
    (lambda: resize.resize(A, (4, 5), out=cuda.to_device(A)), TypeError, "out is a device array and image is a NumPy"),
    (lambda: resize.letterbox(A, (0, 5)), ValueError, r"size\[0\] is 0"),
    (lambda: resize.letterbox(A, (4, 5), fill=256), ValueError, "fill is 256; it must be from 0 to 255"),
    (lambda: resize.letterbox(A, (4, 5), fill=0.5), TypeError, "fill is 0.5; it must be one int or 3 of them"),
    (lambda: resize.letterbox(F, (4, 5), fill=(1, 2)), TypeError, r"fill is \(1, 2\); it must be one real number or 3"),
    (lambda: resize.blob(A, (4, 5), mean=(1, 2)), TypeError, r"mean is \(1, 2\); it must be one real number or 3"),
    (lambda: resize.blob(A, (4, 5), factor="1"), TypeError, "factor is '1'; it must be one real number"),
    (lambda: resize.blob(A, (4, 5), dtype=np.uint8), TypeError, "dtype is uint8; it must be float32 or float16"),
    (lambda: resize.blob(A, (4, 5), out=F), ValueError, r"out has shape \(4, 5, 3\); it must be \(3, 4, 5\)"),
    (lambda: resize.blob(A, (4, 5), out=A), TypeError, "out has dtype uint8; it must be float32"),
    (lambda: resize.placement((4, 0), (4, 4)), ValueError, r"source\[1\] is 0"),
    (lambda: resize.placement((4, 4), (4, 4)).to_source([1, 2, 3]), ValueError, r"points has shape \(3,\)"),
    (lambda: resize.placement((4, 4), (4, 4)).to_target(["a", "b"]), TypeError, "points has dtype"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("size", [(4.0, 5.0), (True, 5), (np.float32(4), 5)])
def test_what_equals_a_size_that_came_before_is_refused_all_the_same(size):
    image = cuda.to_device(np.zeros((8, 9, 3), np.uint8))
    for _ in range(2):
        resize.resize(image, (4, 5))
        resize.resize(image, (1, 5))
    with pytest.raises((TypeError, ValueError), match="size"):
        resize.resize(image, size)
