"""Which kernel of `gpukit.scan.fast` for a shape, on which grid, and with how much work memory."""

from typing import Any, NamedTuple

from gpukit.backend import cuda
from gpukit.divisors import MAX_DIVIDED, make_divisor
from gpukit.operators import Operation
from gpukit.scan import fast
from warpstep.integers import ceil_div, next_power_of_two
from warpstep.limits import MAX_GRID_YZ, SECTOR, WARP

__all__ = ["Launch", "choose"]

#: Threads of a block, and the bytes that a thread holds.
THREADS = 256
HELD = 128
#: Threads of a block that scans a row alone, at most, and threads per multiprocessor up to which each has as few
#: elements as possible: its code is shorter, and it scans fewer rounds one after the other.
MAX_ALONE, FEW_THREADS = 512, 1024
#: Tiles per multiprocessor up to which they are half as large: more multiprocessors share the work.
FEW = 2
#: Bytes of shared memory of a block beside its tile's elements, at most.
OTHER_SHARED = 2048
#: Max elements of one access.
MAX_VECTOR = 4
#: Rounds of a lane in ``groups`` at most; and from so many on a block is faster if it has at most a quarter of them.
GROUP_ROUNDS, LONG_ROUNDS = 8, 8
#: Rows that a thread of ``columns`` or ``stripes`` has in flight, at most, and one of ``stripes`` at least; threads of
#: ``columns`` per multiprocessor that share the rows.
COLUMN_LOADS, MIN_LOADS = 8, 4
COLUMN_THREADS = 1024
#: Rows of a share at least. Up to so many shares, each adds up the amounts of those before it; ``offsets`` does so for
#: more. Threads of its block.
MIN_ROWS, MAX_SHARES, OFFSET_THREADS = 64, 32, 1024
#: Threads and columns of a block of ``stripes``, at most. It is faster than shares of rows for at most so many tiles of
#: rows, and bytes of input and output together; and than one thread for all rows of a column from so many rows on. Of
#: columns in so few accesses, whose rows the threads of ``columns`` do not read as neighbours, it takes any number.
STRIPE_THREADS, STRIPE_COLUMNS, STRIPE_TILES, STRIPE_BYTES, MIN_STRIPE_ROWS = 512, WARP, 2, 32 << 20, 32
STRIPE_NARROW = 4
#: Accesses of a block of ``stripes`` to a row, at least, unless the row has fewer. Where there are more blocks than
#: multiprocessors, they cover a sector.
MIN_WIDTH = 4


class Launch(NamedTuple):
    """A launch. Its kernel takes input, output, ``work`` in the order of its names, and ``numbers``.

    Attributes
    ----------
    kernel, grid, block
    numbers : tuple of int or Divisor
    amounts : int or None
        Accumulators that one launch leaves to the next.
    words : int or None
        Words of 64 bits that blocks publish to each other.
    alone : bool
        Whether it takes neither input nor output.
    """

    kernel: Any
    grid: int | tuple[int, int]
    block: int
    numbers: tuple
    amounts: int | None = None
    words: int | None = None
    alone: bool = False


def choose(
    operation: Operation, itemsize: int, aligned: int, outer: int, n: int, inner: int, exclusive: bool
) -> list[Launch]:
    """The launches that scan a flat array seen as (outer, n, inner) along its middle axis.

    Parameters
    ----------
    operation : Operation
    itemsize : int
        Bytes of an element.
    aligned : int
        Elements that both arrays are aligned to: a power of two.
    outer, n, inner : int
    exclusive : bool
    """
    if n == 1:  # each element is alone
        outer, inner = outer * inner, 1
    if inner > 1:
        return _columns(operation, itemsize, aligned, outer, n, inner, exclusive)
    vector = min(MAX_VECTOR, 16 // max(itemsize, operation.result.itemsize, 2), aligned)
    while outer > 1 and n % vector:
        vector //= 2
    lanes = min(WARP, next_power_of_two(ceil_div(n, vector)))
    rounds = next_power_of_two(ceil_div(n, vector * lanes))
    alone = _rounds_alone(outer, n, vector, GROUP_ROUNDS)
    if rounds <= GROUP_ROUNDS and (rounds < LONG_ROUNDS or rounds < 4 * alone):
        kernel = fast.make_groups(operation, vector, lanes, rounds, THREADS, exclusive)
        return [Launch(kernel, ceil_div(outer, THREADS // lanes), THREADS, (outer, n))]
    return [_tiles(operation, itemsize, vector, outer, n, exclusive)]


def _rounds_alone(outer, n, vector, most):
    """Rounds of the threads of a block that scans a row alone: few, as far as the device has room for all threads."""
    rounds, limit = 1, FEW_THREADS * cuda.get_current_device().MULTIPROCESSOR_COUNT
    while rounds < most and ceil_div(n, vector * rounds) > min(MAX_ALONE, limit // outer):
        rounds *= 2
    return rounds


def _tiles(operation, itemsize, vector, outer, n, exclusive):
    device, most = cuda.get_current_device(), HELD // max(itemsize, operation.partial.itemsize, 4) // vector
    processors, rounds = device.MULTIPROCESSOR_COUNT, _rounds_alone(outer, n, vector, most)
    threads = max(WARP, next_power_of_two(ceil_div(n, vector * rounds)))
    if threads <= (MAX_ALONE if rounds < most or outer == 1 else THREADS):
        kernel = fast.make_tiles(operation, vector, rounds, MAX_ALONE, exclusive, "one")
        return Launch(kernel, outer, threads, (n, 1, True), words=1)
    rounds = most
    if rounds > 1 and outer * ceil_div(n, THREADS * vector * rounds // 2) <= FEW * processors:
        rounds //= 2
    # Copies to shared memory that bypass registers: of 4 bytes or more, from compute capability 8.0 on.
    staged = vector * itemsize >= 4 and tuple(device.compute_capability) >= (8, 0)
    size = THREADS * vector * rounds
    tiles = ceil_div(n, size)
    count = "few" if tiles <= THREADS else "many"
    kernel = fast.make_tiles(operation, vector, rounds, THREADS, exclusive, count, staged)
    resident = min(
        device.MAX_THREADS_PER_MULTIPROCESSOR // THREADS,
        device.MAX_REGISTERS_PER_MULTIPROCESSOR // (fast.registers_of(operation, staged) * THREADS),
        device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR // ((size * itemsize if staged else 0) + OTHER_SHARED),
    )
    words = fast.count_words(operation, outer, tiles)
    return Launch(kernel, outer * tiles, THREADS, (n, tiles, outer * tiles <= resident * processors), words=words)


def _columns(operation, itemsize, aligned, outer, n, inner, exclusive):
    vector = min(MAX_VECTOR, aligned, 16 // operation.partial.itemsize)
    while inner % vector:
        vector //= 2
    across, processors = outer * (inner // vector), cuda.get_current_device().MULTIPROCESSOR_COUNT
    wanted, nbytes = COLUMN_THREADS * processors, outer * n * inner * (itemsize + operation.result.itemsize)
    width = min(max(MIN_WIDTH, min(WARP, SECTOR // (vector * itemsize))), next_power_of_two(inner // vector))
    while width > MIN_WIDTH and _loads_of(n, width) > MIN_LOADS and across < processors * width:
        width //= 2
    few = n <= STRIPE_TILES * STRIPE_THREADS // width * COLUMN_LOADS
    narrow = inner // vector <= STRIPE_NARROW and (few or outer >= processors)
    small = few and nbytes <= STRIPE_BYTES and across < wanted // 4
    if n >= MIN_STRIPE_ROWS and (narrow or small):
        return [_stripes(operation, width, vector, outer, n, inner, exclusive)]
    shares = max(1, min(wanted // across, n // MIN_ROWS, MAX_GRID_YZ))
    rows = ceil_div(n, shares)
    shares = ceil_div(n, rows)
    block = min(THREADS, max(WARP, next_power_of_two(across)))
    divisor, loads = make_divisor(min(inner // vector, MAX_DIVIDED)), min(COLUMN_LOADS, next_power_of_two(n))
    numbers, amounts = (outer, n, inner, rows, divisor), shares * outer * inner if shares > 1 else 1

    def launch(part):
        kernel = fast.make_columns(operation, vector, loads, n <= loads, exclusive, part)
        return Launch(kernel, (ceil_div(across, block), shares), block, numbers, amounts)

    if shares == 1:
        return [launch("all")]
    if shares <= MAX_SHARES:
        return [launch("amounts"), launch("scan")]
    columns = outer * inner
    width = min(WARP, next_power_of_two(columns))
    kernel = fast.make_offsets(operation, OFFSET_THREADS, COLUMN_LOADS)
    offsets = Launch(kernel, ceil_div(columns, width), OFFSET_THREADS, (columns, shares, width), amounts, alone=True)
    return [launch("amounts"), offsets, launch("rest")]


def _loads_of(n, width):
    """Rows that a thread of ``stripes`` has in flight."""
    return max(MIN_LOADS, min(COLUMN_LOADS, next_power_of_two(ceil_div(n * width, STRIPE_THREADS))))


def _stripes(operation, width, vector, outer, n, inner, exclusive):
    loads = _loads_of(n, width)
    threads = min(STRIPE_THREADS, max(WARP, next_power_of_two(ceil_div(n, loads) * width)))
    across = ceil_div(inner, width * vector)
    kernel = fast.make_stripes(operation, vector, STRIPE_THREADS, STRIPE_COLUMNS, loads, exclusive)
    numbers = n, inner, make_divisor(across), width.bit_length() - 1, (threads // WARP).bit_length() - 1
    return Launch(kernel, outer * across, threads, numbers)
