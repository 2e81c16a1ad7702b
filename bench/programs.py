"""Typical programs of others, for ``gpukit bench emulator``: each is one loop body, run as a kernel and as a CPU loop.

A body gets the number of its item, the number of the launch and three arrays. The kernel calls it for one item per
thread; the CPU loop, with ``numba.njit(parallel=True)``, for all items of a launch. Like `emulator`, this module must
not import gpukit or the emulator: it is also loaded in the process of Numba's simulator.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import cuda

from warpstep.integers import ceil_div


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes
    ----------
    body : function
        ``body(item, step, a, b, c)``.
    data : function
        Returns (items, a, b, c) for a size.
    size, small : int
        For the emulator and the CPU loop; for Numba's simulator.
    steps : function
        The number of launches for a size.
    swaps : bool
        True if every other launch gets ``a`` and ``b`` the other way round.
    threads : int
        Per block.
    """

    name: str
    body: Callable
    data: Callable
    size: int
    small: int
    steps: Callable = lambda size: 1
    swaps: bool = False
    threads: int = 256

    def launches(self, module, size):
        """Return a function that runs the program on ``module``, a ``cuda``, and returns its third array."""
        kernel = module.jit(make_kernel(module.jit(device=True)(self.body)))
        items, *arrays = self.data(size)
        blocks, steps = ceil_div(items, self.threads), self.steps(size)

        def run():
            a, b, c = (module.to_device(array) for array in arrays)
            for step in range(steps):
                first, second = (b, a) if self.swaps and step % 2 else (a, b)
                kernel[blocks, self.threads](items, step, first, second, c)
            return c.copy_to_host()

        return run

    def loop(self, size):
        """Return a function that runs the program on the CPU and returns its third array."""
        run_items = make_loop(self.body)
        items, *arrays = self.data(size)
        steps = self.steps(size)

        def run():
            a, b, c = (array.copy() for array in arrays)
            for step in range(steps):
                first, second = (b, a) if self.swaps and step % 2 else (a, b)
                run_items(items, step, first, second, c)
            return c

        return run


def make_kernel(body):
    def kernel(items, step, a, b, c):
        i = cuda.grid(1)
        if i < items:
            body(i, step, a, b, c)

    return kernel


def make_loop(body):
    import numba

    compiled = numba.njit(error_model="numpy")(body)

    @numba.njit(parallel=True, error_model="numpy")
    def run_items(items, step, a, b, c):
        for i in numba.prange(items):
            compiled(i, step, a, b, c)

    return run_items


def _random(size, shape=None):
    return np.random.default_rng(size).random(size if shape is None else shape)


NONE = np.zeros(1)


def mandelbrot(i, step, a, b, c):
    width = c.shape[1]
    row, col = i // width, i % width
    re, im = -2 + 3 * col / width, -1.5 + 3 * row / width
    x, y, turns = 0.0, 0.0, 0
    while turns < 500 and x * x + y * y < 4:
        x, y = x * x - y * y + re, 2 * x * y + im
        turns += 1
    c[row, col] = turns


def julia(i, step, a, b, c):
    width = c.shape[1]
    row, col = i // width, i % width
    z = complex(-1.5 + 3 * col / width, -1.5 + 3 * row / width)
    turns = 0
    while turns < 300 and z.real * z.real + z.imag * z.imag < 4:
        z = z * z + complex(-0.8, 0.156)
        turns += 1
    c[row, col] = turns


def collatz(i, step, a, b, c):
    n, turns = i + 1, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        turns += 1
    c[i] = turns


def ray_march(i, step, a, b, c):
    width = c.shape[1]
    row, col = i // width, i % width
    dx, dy = 2 * col / width - 1, 2 * row / width - 1
    norm = 1 / math.sqrt(dx * dx + dy * dy + 1)
    t = 0.0
    for _ in range(64):
        x, y, z = dx * norm * t, dy * norm * t, norm * t - 3
        near = math.sqrt(x * x + y * y + z * z) - 1 + 0.05 * math.sin(8 * x) * math.sin(8 * y)
        if near < 1e-3 or t > 10:
            break
        t += near
    c[row, col] = t


def monte_carlo_pi(i, step, a, b, c):
    state = np.uint64(a[i])
    inside = 0
    for _ in range(1000):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        x = np.float64(state >> np.uint64(40)) / 16777216.0
        y = np.float64((state >> np.uint64(16)) & np.uint64(0xFFFFFF)) / 16777216.0
        if x * x + y * y < 1:
            inside += 1
    c[i] = inside


def n_body(i, step, a, b, c):
    fx, fy, fz = 0.0, 0.0, 0.0
    for j in range(a.shape[0]):
        dx, dy, dz = a[j, 0] - a[i, 0], a[j, 1] - a[i, 1], a[j, 2] - a[i, 2]
        distance = dx * dx + dy * dy + dz * dz + 1e-3
        pull = 1 / (distance * math.sqrt(distance))
        fx += dx * pull
        fy += dy * pull
        fz += dz * pull
    c[i, 0], c[i, 1], c[i, 2] = fx, fy, fz


def game_of_life(i, step, a, b, c):
    rows, cols = a.shape
    row, col = i // cols, i % cols
    alive = 0
    for dy in range(-1, 2):
        for dx in range(-1, 2):
            if dy != 0 or dx != 0:
                alive += a[(row + dy) % rows, (col + dx) % cols]
    lives = alive == 3 or (alive == 2 and a[row, col] == 1)
    b[row, col] = 1 if lives else 0
    c[row, col] = b[row, col]


def k_means(i, step, a, b, c):
    best, nearest = 1e300, 0
    for k in range(b.shape[0]):
        distance = 0.0
        for d in range(a.shape[1]):
            distance += (a[i, d] - b[k, d]) ** 2
        if distance < best:
            best, nearest = distance, k
    c[i] = nearest


def floyd_warshall(i, step, a, b, c):
    n = c.shape[0]
    row, col = i // n, i % n
    way = c[row, step] + c[step, col]
    if way < c[row, col]:
        c[row, col] = way


def jacobi(i, step, a, b, c):
    rows, cols = a.shape
    row, col = i // cols, i % cols
    if 0 < row < rows - 1 and 0 < col < cols - 1:
        b[row, col] = 0.25 * (a[row - 1, col] + a[row + 1, col] + a[row, col - 1] + a[row, col + 1])
        c[row, col] = b[row, col]


def trial_division(i, step, a, b, c):
    n = 2 * i + 3
    prime = 1
    d = 3
    while d * d <= n:
        if n % d == 0:
            prime = 0
            break
        d += 2
    c[i] = prime


def knapsack(i, step, a, b, c):
    weight, value = int(c[0, step]), c[1, step]
    best = a[i]
    if i >= weight and a[i - weight] + value > best:
        best = a[i - weight] + value
    b[i] = best


def pairwise_distances(i, step, a, b, c):
    n = a.shape[0]
    row, col = i // n, i % n
    total = 0.0
    for d in range(a.shape[1]):
        total += (a[row, d] - a[col, d]) ** 2
    c[row, col] = math.sqrt(total)


def time_warp(i, step, a, b, c):
    """Fill one anti-diagonal of the table of dynamic time warping."""
    row, col = i, step - i
    if 0 <= col < b.shape[0]:
        best = 0.0 if row == 0 and col == 0 else 1e300
        if row > 0:
            best = min(best, c[row - 1, col])
        if col > 0:
            best = min(best, c[row, col - 1])
        if row > 0 and col > 0:
            best = min(best, c[row - 1, col - 1])
        c[row, col] = abs(a[row] - b[col]) + best


def cellular_automaton(i, step, a, b, c):
    n = a.shape[0]
    pattern = 4 * a[(i - 1) % n] + 2 * a[i] + a[(i + 1) % n]
    b[i] = (110 >> pattern) & 1
    c[i] += b[i]


def black_scholes(i, step, a, b, c):
    price, strike = 10 + 90 * a[i], 10 + 90 * b[i]
    root = math.sqrt(2.0)
    d1 = (math.log(price / strike) + (0.02 + 0.045) * 2.0) / (0.3 * root)
    d2 = d1 - 0.3 * root
    below1, below2 = 0.5 * math.erfc(-d1 / root), 0.5 * math.erfc(-d2 / root)
    c[i] = price * below1 - strike * math.exp(-0.04) * below2


def blur(i, step, a, b, c):
    rows, cols = a.shape
    row, col = i // cols, i % cols
    total = 0.0
    for dy in range(-4, 5):
        for dx in range(-4, 5):
            y, x = min(max(row + dy, 0), rows - 1), min(max(col + dx, 0), cols - 1)
            total += a[y, x] * b[dy + 4, dx + 4]
    c[row, col] = total


def logistic_map(i, step, a, b, c):
    x = a[i]
    for _ in range(100_000):
        x = 3.7 * x * (1 - x)
    c[i] = x


def bitonic_sort(i, step, a, b, c):
    stage, distance = int(a[step, 0]), int(a[step, 1])
    other = i ^ distance
    if other > i and (c[i] > c[other]) == ((i & stage) == 0):
        c[i], c[other] = c[other], c[i]


def saxpy(i, step, a, b, c):
    c[i] = 2 * a[i] + b[i]


def _image(dtype):
    return lambda n: (n * n, NONE, NONE, np.zeros((n, n), dtype))


def _bitonic(n):
    stages = [2**s for s in range(1, n.bit_length())]
    pairs = [(stage, distance) for stage in stages for distance in _halves(stage)]
    return n, np.array(pairs), NONE, np.random.default_rng(n).permutation(n)


def _halves(stage):
    while stage > 1:
        stage //= 2
        yield stage


def _graph(n):
    weights = np.random.default_rng(n).integers(1, 1000, (n, n))
    np.fill_diagonal(weights, 0)
    return n * n, NONE, NONE, weights


def _items(n):
    generator = np.random.default_rng(n)
    chosen = np.stack([generator.integers(1, 50, 200), generator.integers(1, 100, 200)]).astype(float)
    return n, np.zeros(n), np.zeros(n), chosen


def _field(n, dtype):
    start = (_random(n, (n, n)) * 2).astype(dtype)
    return n * n, start, start.copy(), start.copy()


PROGRAMS = (
    Program("mandelbrot", mandelbrot, _image(np.int32), 1024, 16),
    Program("julia set, complex", julia, _image(np.int32), 1024, 16),
    Program("collatz", collatz, lambda n: (n, NONE, NONE, np.zeros(n, np.int32)), 1 << 20, 64),
    Program("ray marching", ray_march, _image(np.float64), 1024, 16),
    Program(
        "monte carlo pi", monte_carlo_pi, lambda n: (n, np.arange(1, n + 1), NONE, np.zeros(n, np.int64)), 1 << 14, 8
    ),
    Program("n-body", n_body, lambda n: (n, _random(n, (n, 3)), NONE, np.zeros((n, 3))), 4096, 32),
    Program("game of life", game_of_life, lambda n: _field(n, np.int32), 512, 16, lambda n: 100, True),
    Program(
        "k-means", k_means, lambda n: (n, _random(n, (n, 8)), _random(16, (16, 8)), np.zeros(n, np.int32)), 1 << 18, 64
    ),
    Program("floyd-warshall", floyd_warshall, _graph, 256, 12, lambda n: n),
    Program("jacobi", jacobi, lambda n: _field(n, np.float64), 256, 16, lambda n: 1000, True),
    Program("trial division", trial_division, lambda n: (n, NONE, NONE, np.zeros(n, np.int32)), 1 << 20, 64),
    Program("knapsack", knapsack, _items, 20_000, 32, lambda n: 200, True),
    Program(
        "pairwise distances",
        pairwise_distances,
        lambda n: (n * n, _random(n, (n, 16)), NONE, np.zeros((n, n))),
        1024,
        8,
    ),
    Program(
        "dynamic time warping",
        time_warp,
        lambda n: (n, _random(n), _random(n + 1)[:n], np.zeros((n, n))),
        1024,
        16,
        lambda n: 2 * n - 1,
    ),
    Program(
        "cellular automaton",
        cellular_automaton,
        lambda n: (n, np.random.default_rng(n).integers(0, 2, n), np.zeros(n, np.int64), np.zeros(n, np.int64)),
        1 << 14,
        32,
        lambda n: 1000,
        True,
    ),
    Program("black-scholes", black_scholes, lambda n: (n, _random(n), _random(n + 1)[:n], np.zeros(n)), 1 << 20, 64),
    Program(
        "9 x 9 blur", blur, lambda n: (n * n, _random(n, (n, n)), np.full((9, 9), 1 / 81), np.zeros((n, n))), 1024, 8
    ),
    Program(
        "32 threads, 100,000 turns each", logistic_map, lambda n: (n, _random(n), NONE, np.zeros(n)), 32, 1, threads=32
    ),
    Program("bitonic sort", bitonic_sort, _bitonic, 1 << 16, 64, lambda n: len(_bitonic(n)[1])),
    Program(
        "1,000 launches of 32 threads",
        saxpy,
        lambda n: (n, _random(n), _random(n), np.zeros(n)),
        32,
        32,
        lambda n: 1000,
        threads=32,
    ),
)
