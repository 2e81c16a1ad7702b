"""Kernels that Numba's simulator runs correctly, with their launches and random inputs.

``test_emulator_vs_simulator.py`` imports this file for the emulator, and runs it as a script, with
``NUMBA_ENABLE_CUDASIM=1``, for the simulator. So it imports nothing of gpukit, and the kernels are plain functions
that each side compiles with its own ``cuda.jit``. Arrays are int64, float64 or smaller types that are only stored to,
because the simulator keeps to NumPy's types where the device widens.
"""

import math
import pickle
import sys

import numpy as np
from numba import cuda, float64, int32, int64

CASES = {}


def case(grid, block, arguments, shared_bytes=0):
    """Register a kernel with a launch; ``arguments`` makes its arrays and scalars from a random generator."""

    def register(kernel):
        CASES[kernel.__name__] = kernel, (grid, block, 0, shared_bytes), arguments
        return kernel

    return register


def run(module, name, seed):
    """Launch a kernel with ``module.jit``; give its arguments as they are afterwards."""
    kernel, launch, arguments = CASES[name]
    values = arguments(np.random.default_rng(seed))
    module.jit(kernel)[launch](*values)
    return values


def integers(random, shape, low=-100, high=100, dtype=np.int64):
    return random.integers(low, high, shape).astype(dtype)


def floats(random, shape, low=-10.0, high=10.0):
    return random.uniform(low, high, shape)


# Control flow


@case(4, 48, lambda random: [integers(random, 192, 0, 40), np.zeros(192, np.int64)])
def nested_loops_with_every_exit(limit, out):
    """Divergent for and while in each other, with break, continue and return at every depth."""
    i = cuda.grid(1)
    if i >= 185:
        return
    total = 0
    for j in range(limit[i]):
        if j % 3 == 1:
            continue
        k = j
        while k > 0:
            k -= 2
            if k % 5 == 4:
                break
            if k == 8:
                total += 1000
                continue
            total += k
            if total > 900 and i % 7 == 0:
                out[i] = -total
                return
        if total > 5000:
            break
        for m in range(k, j, 3):
            if m == 12:
                break
            if m % 2:
                continue
            total += m * j
    out[i] = total


@case(3, 64, lambda random: [integers(random, 192, 1, 300), np.zeros((192, 2), np.int64)])
def collatz(start, out):
    i = cuda.grid(1)
    n = start[i]
    steps = 0
    highest = n
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        highest = max(highest, n)
        steps += 1
    out[i, 0] = steps
    out[i, 1] = highest


@case(2, 64, lambda random: [integers(random, (128, 9), 0, 12), np.zeros(128, np.int64)])
def loops_with_else(a, out):
    """The else of a loop runs in the threads that did not break."""
    i = cuda.grid(1)
    for j in range(a.shape[1]):
        if a[i, j] == 5:
            out[i] = j
            break
    else:
        out[i] = -1
    k = 0
    while k < 9:
        if a[i, 8 - k] == 3:
            break
        k += 1
    else:
        out[i] -= 100
    out[i] += 1000 * k


@case(3, 50, lambda random: [floats(random, 137, -3, 3), np.zeros(150), 137])
def guarded_and_chained_conditions(a, out, n):
    """What ``and`` or ``or`` skips is out of range here."""
    i = cuda.grid(1)
    if i < n and a[i] > 1.0:
        out[i] = 1.0
    elif i >= n or a[i] < -1.0:
        out[i] = 2.0 if i >= n else a[i]
    else:
        inside = -0.5 < a[i] <= 0.5
        out[i] = (3.0 if inside else 4.0) + (a[i] if not inside and a[i] > 0 else 0.0)


@case((2, 3), (8, 4), lambda random: [np.zeros((3, 64), np.int64), integers(random, 5, 1, 20)])
def loops_over_ranges_and_sequences(out, weights):
    x, y = cuda.grid(2)
    i = x + 16 * (y % 4)
    forward = 0
    for k in range(i, -1, -3):
        forward = 3 * forward % 1009 + k
    out[0, i] = forward
    total = 0
    for position, weight in enumerate(weights):
        total += position * weight * i
    for left, right in zip(weights, weights[::-1]):  # noqa: B905 (Numba's zip takes no strict)
        total -= left * right
    for weight in (2, 3, 5, 7):
        total += i % weight
    out[1, i] = total
    a, b, c = i, i + 1, i + 2
    for _ in range(i % 4):
        a, b, c = b, c, a + b
    out[2, i] = 10000 * a + 100 * b + c


# Thread indices


@case((3, 2, 2), (4, 3, 2), lambda random: [np.zeros((4, 6, 12, 5), np.int64)])
def three_dimensions(out):
    x, y, z = cuda.grid(3)
    width, height, depth = cuda.gridsize(3)
    out[z, y, x, 0] = x + width * (y + height * z)
    out[z, y, x, 1] = cuda.threadIdx.x + 10 * cuda.threadIdx.y + 100 * cuda.threadIdx.z
    out[z, y, x, 2] = cuda.blockIdx.x + 10 * cuda.blockIdx.y + 100 * cuda.blockIdx.z
    out[z, y, x, 3] = cuda.blockDim.x + 10 * cuda.blockDim.y + 100 * cuda.blockDim.z + depth * 1000
    out[z, y, x, 4] = cuda.gridDim.x + 10 * cuda.gridDim.y + 100 * cuda.gridDim.z


@case(2, 32, lambda random: [floats(random, 501), floats(random, 501), np.zeros(501), 2.5])
def grid_stride_saxpy(x, y, out, a):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = a * x[i] + y[i]


# Shared memory and barriers


@case(4, 64, lambda random: [floats(random, 250), np.zeros(4)])
def block_sum(a, out):
    partial = cuda.shared.array(64, float64)
    tid = cuda.threadIdx.x
    i = cuda.grid(1)
    partial[tid] = a[i] if i < a.size else 0.0
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if tid < step:
            partial[tid] += partial[tid + step]
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = partial[0]


@case((3, 2), (8, 8), lambda random: [integers(random, (13, 20)), np.zeros((20, 13), np.int64)])
def transpose(a, out):
    """A padded 2-D tile, ragged edges on both sides."""
    tile = cuda.shared.array((8, 9), int64)
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        tile[cuda.threadIdx.y, cuda.threadIdx.x] = a[row, col]
    cuda.syncthreads()
    row = cuda.blockIdx.x * 8 + cuda.threadIdx.y
    col = cuda.blockIdx.y * 8 + cuda.threadIdx.x
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = tile[cuda.threadIdx.x, cuda.threadIdx.y]


@case(3, 32, lambda random: [integers(random, 96), np.zeros(96, np.int64)], shared_bytes=2 * 32 * 8)
def scan_in_dynamic_shared_memory(a, out):
    """Two buffers in one dynamic allocation, swapped at each step."""
    memory = cuda.shared.array(0, int64)
    old = memory[:32]
    new = memory[32:]
    tid = cuda.threadIdx.x
    i = cuda.grid(1)
    old[tid] = a[i]
    cuda.syncthreads()
    step = 1
    while step < 32:
        new[tid] = old[tid]
        if tid >= step:
            new[tid] += old[tid - step]
        cuda.syncthreads()
        old, new = new, old
        step *= 2
    out[i] = old[tid]


@case(3, 40, lambda random: [integers(random, 120), np.zeros((3, 3), np.int64)])
def voting_barriers(a, out):
    i = cuda.grid(1)
    count = cuda.syncthreads_count(int32(a[i] > 0))
    every = cuda.syncthreads_and(int32(a[i] > -98))
    some = cuda.syncthreads_or(int32(a[i] > 97))
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x, 0] = count
        out[cuda.blockIdx.x, 1] = 1 if every else 0
        out[cuda.blockIdx.x, 2] = 1 if some else 0


# Atomics


@case(4, 64, lambda random: [integers(random, 256), np.zeros(7, np.int64), np.full(6, 12, np.int64), np.zeros(4)])
def atomics(a, bins, extremes, sums):
    """Operations whose result does not depend on the order, in global and in shared memory."""
    local = cuda.shared.array(7, int64)
    i = cuda.grid(1)
    tid = cuda.threadIdx.x
    if tid < 7:
        local[tid] = 0
    cuda.syncthreads()
    cuda.atomic.add(local, a[i] % 7, 1)
    cuda.syncthreads()
    if tid < 7:
        cuda.atomic.add(bins, tid, local[tid])
    cuda.atomic.max(extremes, 0, a[i])
    cuda.atomic.min(extremes, 1, a[i])
    if i % 3 == 0:
        cuda.atomic.sub(extremes, 2, a[i])
        cuda.atomic.xor(extremes, 3, a[i])
    cuda.atomic.or_(extremes, 4, a[i] & 51)
    cuda.atomic.and_(extremes, 5, a[i] | 12)
    cuda.atomic.add(sums, i % 4, float(a[i]) * 0.25)


@case(3, 64, lambda random: [np.zeros(size, np.int64) for size in (192, 3, 96, 96)])
def atomic_old_values(tickets, counters, locks, slots):
    """Every ticket is drawn once, every lock is taken once, one of the two that exchange a slot finds it full."""
    i = cuda.grid(1)
    ticket = cuda.atomic.add(counters, 0, 1)
    cuda.atomic.add(tickets, ticket, 1)
    if cuda.atomic.cas(locks, i // 2, 0, 1) == 0:
        cuda.atomic.add(counters, 1, 1)
    cuda.atomic.add(counters, 2, cuda.atomic.exch(slots, i % 96, 1))


# Functions, tuples, arrays


@cuda.jit(device=True)
def clamped(x, low=-2.0, high=4.0):
    if x < low:
        return low
    if x > high:
        return high
    return x


@cuda.jit(device=True)
def quotient_and_rest(a, b):
    rest = a
    count = 0
    while rest >= b:
        rest -= b
        count += 1
    return count, rest


@case(3, 40, lambda random: [floats(random, 120), integers(random, 120, 0, 90), np.zeros((120, 3))])
def device_functions(a, n, out):
    i = cuda.grid(1)
    count, rest = quotient_and_rest(n[i], 7 + i % 5)
    out[i, 0] = clamped(a[i])
    out[i, 1] = clamped(a[i], -4.0, 1.0) if i % 2 else clamped(a[i] * 2.0, -1.0)
    out[i, 2] = count * 100 + rest


@case(2, 32, lambda random: [floats(random, (64, 6)), np.zeros((64, 6))])
def sort_in_local_memory(a, out):
    """Insertion sort: the inner loop ends at a different place in every thread."""
    values = cuda.local.array(6, float64)
    i = cuda.grid(1)
    for j in range(6):
        x = a[i, j]
        k = j
        while k > 0 and values[k - 1] > x:
            values[k] = values[k - 1]
            k -= 1
        values[k] = x
    for j in range(6):
        out[i, j] = values[j]


@case(2, 30, lambda random: [integers(random, (60, 12)), np.zeros((60, 4), np.int64), np.zeros((60, 8), np.int64)])
def slices_and_views(a, out, written):
    i = cuda.grid(1)
    row = a[i]
    middle = row[2:-1:3]
    backwards = row[::-1]
    below = a[i // 2 :, 3]
    out[i, 0] = middle.size * 1000 + middle[0] - middle[2]
    out[i, 1] = backwards[0] + 3 * backwards[11] - backwards[-2]
    out[i, 2] = below[0] + 1000 * below.shape[0]
    out[i, 3] = len(row) + a.shape[0] * a.ndim + row[-1]
    target = written[i, 1:7]
    for j in range(target.size):
        target[j] = row[2 * j] + j


TABLE = np.array([[3, 1, 4], [1, 5, 9], [2, 6, 5]], np.int64)


@case(3, 32, lambda random: [integers(random, 96, 0, 9), np.zeros(96, np.int64)])
def constant_memory_and_globals(a, out):
    table = cuda.const.array_like(TABLE)
    i = cuda.grid(1)
    corners = (table[0, 0], table[0, 2], table[2, 0], TABLE.shape[0])
    out[i] = table[a[i] // 3, a[i] % 3] + 10 * corners[a[i] % 4]


# Arithmetic


@case(
    4,
    32,
    lambda random: [
        integers(random, 128, -1000, 1000),
        np.where(random.random(128) < 0.5, -1, 1) * integers(random, 128, 1, 40),
        np.zeros((128, 12), np.int64),
    ],
)
def integer_arithmetic(a, b, out):
    """Floor division and modulo of both signs, shifts, bits."""
    i = cuda.grid(1)
    x = a[i]
    y = b[i]
    out[i, 0] = x // y
    out[i, 1] = x % y
    out[i, 2] = x << (y & 7)
    out[i, 3] = x >> (y & 7)
    out[i, 4] = (x & y) ^ (x | ~y)
    out[i, 5] = abs(x) * -y
    out[i, 6] = min(x, y, 5) + max(x, y, -5)
    out[i, 7] = x**2 - y**3
    out[i, 8] = int(x / y)
    out[i, 9] = (x > y) + (x == y) * 2
    out[i, 10] = cuda.popc(x & 0xFFFF) + 100 * cuda.clz(int32(abs(x)))
    out[i, 11] = cuda.selp(x > 0, x, y)


@case(4, 32, lambda random: [floats(random, 128), floats(random, 128, 0.1, 3.0), np.zeros((128, 24))])
def float64_functions(a, b, out):
    i = cuda.grid(1)
    x = a[i]
    y = b[i]
    out[i, 0] = math.sin(x) + math.cos(y)
    out[i, 1] = math.tan(y / 3.0)
    out[i, 2] = math.exp(x)
    out[i, 3] = math.log(y)
    out[i, 4] = math.sqrt(y)
    out[i, 5] = math.pow(y, x)
    out[i, 6] = math.atan2(x, y)
    out[i, 7] = math.hypot(x, y)
    out[i, 8] = math.floor(x) + 100.0 * math.ceil(y)
    out[i, 9] = math.copysign(y, x)
    out[i, 10] = math.fmod(x, y)
    out[i, 11] = math.tanh(x)
    out[i, 12] = math.log1p(y)
    out[i, 13] = math.expm1(x)
    out[i, 14] = math.erf(x / 4.0)
    out[i, 15] = math.asin(x / 10.5)
    out[i, 16] = math.acos(x / 10.5)
    out[i, 17] = math.sinh(x / 2.0)
    out[i, 18] = math.log10(y) + math.log2(y)
    out[i, 19] = x // y
    out[i, 20] = x % y
    out[i, 21] = abs(x) ** y
    out[i, 22] = round(x)
    out[i, 23] = math.fabs(x) + math.trunc(x)


@case(
    3,
    32,
    lambda random: [
        floats(random, 96, -120, 120),
        integers(random, 96, -40000, 40000),
        *(np.zeros(96, dtype) for dtype in (np.int8, np.uint8, np.int16, np.uint32, np.float32, np.int64, np.bool_)),
    ],
)
def stores_convert(x, n, as_int8, as_uint8, as_int16, as_uint32, as_float32, as_int64, as_bool):
    """A store converts; floats are cut towards zero. Integers fit, because the simulator refuses those that do not."""
    i = cuda.grid(1)
    as_int8[i] = x[i]
    as_uint8[i] = n[i] & 255
    as_int16[i] = n[i] >> 1
    as_uint32[i] = abs(n[i])
    as_float32[i] = x[i]
    as_int64[i] = x[i] * 1e6
    as_bool[i] = n[i] % 3


@case((4, 3), (8, 8), lambda random: [np.zeros((24, 32), np.int64), 0.3])
def mandelbrot(out, shift):
    col, row = cuda.grid(2)
    re, im = col / 12.0 - 2.0, row / 12.0 - shift
    x = y = 0.0
    count = 0
    while count < 30 and x * x + y * y < 4.0:
        x, y = x * x - y * y + re, 2.0 * x * y + im
        count += 1
    out[row, col] = count


@case(2, 32, lambda random: [floats(random, 64) + 1j * floats(random, 64), np.zeros((64, 5), np.complex128)])
def complex_numbers(a, out):
    i = cuda.grid(1)
    z = a[i]
    w = complex(z.imag, 2.5)
    out[i, 0] = z * w
    out[i, 1] = z / w
    out[i, 2] = z.conjugate() if i % 2 else -z
    out[i, 3] = abs(z)
    out[i, 4] = z + (1.0 if w != z else 2.0)


if __name__ == "__main__":
    outputs = {(name, seed): run(cuda, name, seed) for name in CASES for seed in map(int, sys.argv[2:])}
    with open(sys.argv[1], "wb") as file:
        pickle.dump(outputs, file)
