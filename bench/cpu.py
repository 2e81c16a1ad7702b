"""``gpukit bench cpu``: time the work of the chapters on this machine's CPU, with NumPy, OpenCV and plain loops.

Times are wall times, taken in turns, with the caches as they are.
"""

from functools import partial

import cv2
import numba
import numpy as np

from gpukit import matmul, results, timing

__all__ = ["SIZES", "head", "measure", "measurements", "product", "resized", "total", "transposed"]

#: Sizes of each case, the quick one first.
SIZES = {
    "product": ((256, 256, 256), (1024, 1024, 1024)),
    "transpose": ((1024, 1024), (8192, 8192)),
    "sum": ((2**20,), (2**26,)),
    "resize": ((360, 640, 3), (1080, 1920, 3)),
}
TARGET = (640, 640)  # rows and columns of a resized frame
SECONDS = 0.3  # of timed repetitions for each function


@numba.njit
def transpose_loops(x):
    out = np.empty((x.shape[1], x.shape[0]), x.dtype)
    for row in range(x.shape[0]):
        for col in range(x.shape[1]):
            out[col, row] = x[row, col]
    return out


@numba.njit
def sum_loop(x):
    """Sum in float64: one running sum of float32 loses digits."""
    total = 0.0
    for value in x:
        total += value
    return total


@numba.njit
def resize_loops(image, height, width):
    """Resize bilinearly, with half-pixel centres, in float32; edges repeat."""
    out = np.empty((height, width, image.shape[2]), np.uint8)
    rows, cols = image.shape[0], image.shape[1]
    for i in range(height):
        y = min(max((i + np.float32(0.5)) * np.float32(rows / height) - np.float32(0.5), 0), rows - 1)
        top = int(y)
        bottom, down = min(top + 1, rows - 1), y - top
        for j in range(width):
            x = min(max((j + np.float32(0.5)) * np.float32(cols / width) - np.float32(0.5), 0), cols - 1)
            left = int(x)
            right, across = min(left + 1, cols - 1), x - left
            for c in range(image.shape[2]):
                upper = image[top, left, c] * (1 - across) + image[top, right, c] * across
                lower = image[bottom, left, c] * (1 - across) + image[bottom, right, c] * across
                out[i, j, c] = int(upper * (1 - down) + lower * down + np.float32(0.5))
    return out


def product(shape, random):
    """Return {name: function} that multiply two random matrices, and a function that checks a result."""
    m, n, k = shape
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = k * np.finfo(np.float32).eps * (abs(a) @ abs(b))
    runs = {
        "numpy": lambda: a @ b,
        "opencv": lambda: cv2.gemm(a, b, 1, None, 0),
        "three loops, one core": lambda: matmul.on_cpu(a, b),
    }
    return runs, lambda found: (abs(found - exact) <= bound).all()


def transposed(shape, random):
    """Return as `product` does, for a transpose that is written out."""
    x = random.standard_normal(shape, np.float32)
    runs = {
        "numpy": lambda: np.ascontiguousarray(x.T),
        "opencv": lambda: cv2.transpose(x),
        "two loops, one core": lambda: transpose_loops(x),
    }
    return runs, lambda found: np.array_equal(found, x.T)


def total(shape, random):
    """Return as `product` does, for a sum."""
    x = random.random(shape, np.float32)
    exact = x.sum(dtype=np.float64)
    runs = {
        "numpy": lambda: x.sum(),
        "opencv": lambda: cv2.sumElems(x)[0],
        "one loop, one core": lambda: sum_loop(x),
    }
    return runs, lambda found: abs(found - exact) <= 32 * np.finfo(np.float32).eps * exact


def resized(shape, random):
    """Return as `product` does, for a frame resized to `TARGET`, bilinear; NumPy has no such function."""
    image = random.integers(0, 256, shape, np.uint8)
    exact = cv2.resize(image.astype(np.float32), TARGET[::-1])
    runs = {
        "opencv": lambda: cv2.resize(image, TARGET[::-1], interpolation=cv2.INTER_LINEAR),
        "loops, one core": lambda: resize_loops(image, *TARGET),
    }
    return runs, lambda found: (abs(found - exact) <= 1).all()


CASES = {"product": product, "transpose": transposed, "sum": total, "resize": resized}


def measure(case, shape, report=print):
    """Check and time one case at one size; return (records, whether all results were right)."""
    runs, is_right = CASES[case](shape, np.random.default_rng(5))
    wrong = [name for name, call in runs.items() if not is_right(call())]
    for name in wrong:
        report(f"  WRONG: {name}")
        del runs[name]
    dtype = "uint8" if case == "resize" else "float32"
    further = {"target": list(TARGET)} if case == "resize" else {}
    records = []
    timings = timing.bench_many(runs, device="cpu", warmup=0.02, min_time=SECONDS) if runs else {}
    for name, timed in timings.items():
        records.append(results.of_timing("cpu", case, name, shape, dtype, timed, **further))
        report(f"  {name:24} {timing.format_seconds(timed.median):>10}{'  noisy' if timed.noisy else ''}")
    return records, not wrong


def head():
    """Describe this machine's CPU, for the records."""
    return results.host()


def measurements(options):
    """Yield (title, function); with ``--quick`` for the first size of each case only."""
    for case, sizes in SIZES.items():
        for shape in sizes[: 1 if options.quick else None]:
            yield f"{case} of {' x '.join(map(str, shape))}", partial(measure, case, shape)
