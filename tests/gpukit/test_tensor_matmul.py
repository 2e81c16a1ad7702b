"""`gpukit.matmul` on tensor cores: every dtype and precision, by groups of warps and by single warps."""

import itertools
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import laid_out

import gpukit
from gpukit import matmul, on_gpu
from gpukit._host.call import forget, without_launches
from gpukit.backend import cuda, uint32
from gpukit.errors import LaunchError
from gpukit.matmul import api as host
from gpukit.matmul import loaded, raster, shifted, tensor, warpgroups, warps
from gpukit.matmul.cost import DOUBLE_SPEEDS, MAX_FEW, TENSOR_SPEEDS, choose, choose_tensor
from gpukit.matmul.formats import FORMATS
from gpukit.matmul.shallow import ShallowTile
from gpukit.matmul.sliced import SlicedTile
from warpstep import device

#: Rounding of an operand, by format: bits of float16 and bfloat16 are not lost, for the operands have no more.
LOST = {"float16": 0, "bfloat16": 0, "int8": 0, "tf32": 2.0**-9, "high": 2.0**-20}
#: Rounding of the result.
ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 0, "tf32": 2.0**-24, "high": 2.0**-24}
#: Each product and sum in float32.
STEP = 2.0**-23


@pytest.fixture
def older_device():
    """A device without products of groups; on a GPU, its own."""
    forget()
    with device.device("8.0") if not on_gpu() else nullcontext():
        yield
    forget()


def random_matrix(shape, name, seed=0):
    """(matrix as it is passed, its values in float64)."""
    rng = np.random.default_rng([seed, *shape])
    if name == "int8":
        found = rng.integers(-128, 128, shape).astype(np.int8)
        return found, found.astype(np.float64)
    found = rng.standard_normal(shape).astype(np.float16 if name == "float16" else np.float32)
    if name != "bfloat16":
        return found, found.astype(np.float64)
    bits = found.view(np.uint32) & np.uint32(0xFFFF0000)
    return (bits >> 16).astype(np.uint16).view("V2"), bits.view(np.float32).astype(np.float64)


def values_of(result):
    result = result if isinstance(result, np.ndarray) else result.copy_to_host()
    if result.dtype.kind == "V":
        return (result.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return result.astype(np.float64)


def multiply(a, b, name, **more):
    return matmul.matmul(a, b, precision=name if name in ("tf32", "high") else "highest", **more)


def check(result, a, b, name, alpha=1, beta=0, old=0.0):
    exact = alpha * np.matmul(a, b) + beta * old
    terms = abs(alpha) * np.matmul(abs(a), abs(b)) + abs(beta * old)
    bound = (LOST[name] + STEP * (a.shape[-1] ** 0.5 + 4) * (name != "int8")) * terms + ROUNDED[name] * abs(exact)
    bound += 2.0**-25 * (name == "float16")  # below its smallest normal number
    assert result.shape == exact.shape
    assert (abs(values_of(result) - exact) <= bound).all()


def prefer(monkeypatch, kind):
    """Choose this of what can multiply the operands."""
    monkeypatch.setattr(tensor, "tensor_time", lambda *arguments: arguments[5] != kind)


@settings(max_examples=4)
@given(st.data())
def test_any_problem(data):
    name = data.draw(st.sampled_from(sorted(LOST)))
    m, n, k = (data.draw(st.integers(1, most)) for most in (140, 140, 300))
    lead = data.draw(st.sampled_from(((), (), (3,), (2, 2))))
    orders = [data.draw(st.sampled_from(((0, 1), (1, 0)))) for _ in "ab"]
    step = data.draw(st.sampled_from((1, 1, 1, 2)))
    operands = []
    for shape, order in zip(((m, k), (k, n)), orders, strict=True):
        stored, values = random_matrix((*lead, *shape), name)
        axes = *range(len(lead)), *(len(lead) + axis for axis in order)
        operands.append((laid_out(stored, axes, step), values))
    (a, wide_a), (b, wide_b) = operands
    check(multiply(a, b, name), wide_a, wide_b, name)


def test_single_warps_where_groups_cannot(older_device, monkeypatch):
    """Operands that are aligned, and others, which are copied, also where they have too many chunks for one launch."""
    prefer(monkeypatch, "warps")
    for (m, n, k), chunks in (((70, 40, 200), 1 << 31), ((5, 264, 33), 1 << 31), ((5, 264, 33), 1)):
        forget()
        monkeypatch.setattr(tensor, "MAX_CHUNKS", chunks)
        (a, wide_a), (b, wide_b) = random_matrix((m, k), "bfloat16"), random_matrix((k, n), "bfloat16")
        result = multiply(a, b, "bfloat16")
        assert result.dtype == a.dtype
        check(result, wide_a, wide_b, "bfloat16")


#: (shape, how the operands lie, K of the tile's step in bytes): what each of the small tiles is the fastest for.
SMALL = [
    ((1207, 20, 3), "NT", 64),
    ((47, 47, 30), "TT", 256),
    ((100, 99, 150), "TN", 512),
]


@pytest.mark.parametrize(("shape", "layout", "depth"), SMALL)
def test_small_products_copy_nothing(shape, layout, depth):
    """One launch, for operands that begin anywhere."""
    (m, n, k), name = shape, ("float16", "bfloat16")[layout == "TN"]
    assert choose_tensor(m, n, 2 * k, 1, 132, "small")[0].depth == depth
    (a, wide_a), (b, wide_b) = random_matrix((m, k), name), random_matrix((k, n), name)
    orders = [(0, 1) if letter == "N" else (1, 0) for letter in layout]
    arrays = [laid_out(x, order) for x, order in zip((a, b), orders, strict=True)]
    out = cuda.to_device(np.zeros((m, n), a.dtype))
    assert len(matmul.steps("auto", *arrays, out)) == 1
    check(multiply(*arrays, name), wide_a, wide_b, name)


@pytest.mark.parametrize(("layout", "k"), [("NT", 70), ("TN", 33), ("NN", 7)])
def test_warps_with_tiles_of_their_own(layout, k, monkeypatch):
    """Several matrices in a block, also with pairs along K that lie at multiples of 4 bytes."""
    prefer(monkeypatch, "small")
    tile = [speed.tile for speed in TENSOR_SPEEDS["small"] if getattr(speed.tile, "apart", False)][-1]
    monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, 1))
    (a, wide_a), (b, wide_b) = random_matrix((3, 19, k), "float16"), random_matrix((3, k, 33), "float16")
    orders = [(0, 1, 2) if letter == "N" else (0, 2, 1) for letter in layout]
    arrays = [laid_out(x, order) for x, order in zip((a, b), orders, strict=True)]
    out = cuda.to_device(np.full((3, 19, 33), np.nan, np.float16))
    ((launch, arguments),) = matmul.steps("fast", *arrays, out)
    assert gpukit.trace(launch, *arguments).findings == []
    check(out, wide_a, wide_b, "float16")


@pytest.mark.parametrize(("layout", "shape"), [("NT", (9, 20, 152)), ("TN", (24, 34, 71)), ("NN", (17, 40, 90))])
@pytest.mark.parametrize("tile", [SlicedTile(16, 16, 2, 2), SlicedTile(32, 32, 2, 2), ShallowTile(16, 32, 64, True)])
def test_lanes_load_neighbours(layout, shape, tile, monkeypatch):
    """Several elements in one access, along K and across it: products do not depend on their order."""
    prefer(monkeypatch, "small")
    monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, 1))
    m, n, k = shape
    (a, wide_a), (b, wide_b) = random_matrix((m, k), "bfloat16"), random_matrix((k, n), "bfloat16")
    orders = [(0, 1) if letter == "N" else (1, 0) for letter in layout]
    arrays = [laid_out(x, order) for x, order in zip((a, b), orders, strict=True)]
    nan, one = (cuda.to_device(np.full((m, n), bits, np.uint16).view("V2")) for bits in (0x7FC0, 0x3F80))
    ((launch, arguments),) = matmul.steps("fast", *arrays, nan)
    assert [array.dtype for array in arguments[:2]] == [np.uint32, np.uint32]
    assert gpukit.trace(launch, *arguments).findings == []
    check(nan, wide_a, wide_b, "bfloat16")
    matmul.matmul(*arrays, "fast", beta=2, out=one)
    check(one, wide_a, wide_b, "bfloat16", 1, 2, 1.0)


@pytest.mark.parametrize("tile", [ShallowTile(64, 64, 64), ShallowTile(128, 64, 64, False, 4), ShallowTile(64, 64, 16)])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_one_step_of_one_instruction_or_two(layout, tile, monkeypatch):
    prefer(monkeypatch, "small")
    monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, 1))
    m, n, k = 70, 2 * tile.columns - 5, tile.depth // 2 - 3
    (a, wide_a), (b, wide_b) = random_matrix((m, k), "float16"), random_matrix((k, n), "float16")
    arrays = [laid_out(x, (0, 1) if letter == "N" else (1, 0)) for x, letter in zip((a, b), layout, strict=True)]
    out = cuda.to_device(np.full((m, n), np.nan, np.float16))
    ((launch, arguments),) = matmul.steps("fast", *arrays, out)
    assert gpukit.trace(launch, *arguments).findings == []
    check(out, wide_a, wide_b, "float16")


@pytest.mark.parametrize(
    ("layout", "name", "n"),
    [
        ("NN", "bfloat16", 46),
        ("TT", "float16", 31),
        ("TN", "float16", 62),
        ("NT", "bfloat16", 141),
        ("TN", "float16", 66),
    ],
)
def test_rows_that_begin_anywhere(layout, name, n, monkeypatch):
    """Of as few columns as a warp has, so that they follow one another, or more; with nothing stored beside them."""
    prefer(monkeypatch, "small")
    tile = ShallowTile(128, 64, 32, False, 2) if name == "float16" else ShallowTile(32, 128, 32)
    monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, 1))
    m, k = 38 + (n == 31), 14
    (a, wide_a), (b, wide_b) = random_matrix((3, m, k), name), random_matrix((3, k, n), name)
    orders = [(0, 1, 2) if letter == "N" else (0, 2, 1) for letter in layout]
    arrays = [laid_out(x, order) for x, order in zip((a, b), orders, strict=True)]
    held = cuda.to_device(np.full(3 * m * n + 8, 0x7FFF, np.uint16).view(a.dtype))
    out = held[4:-4].reshape(3, m, n)
    ((launch, arguments),) = matmul.steps("fast", *arrays, out)
    assert gpukit.trace(launch, *arguments).findings == []
    check(out, wide_a, wide_b, name)
    bits = held.copy_to_host().view(np.uint16)
    assert (bits[:4] == 0x7FFF).all() and (bits[-4:] == 0x7FFF).all()


#: (matrices, rows, K, elements before the matrix in memory, how many of the same vector follow one another).
MANY_ROWS = [
    ("float16", 3, 37, 17, 0, 1),
    ("bfloat16", 2, 40, 86, 0, 2),
    ("float16", 1, 300, 64, 0, 1),
    ("bfloat16", 3, 33, 129, 5, 1),
    ("float16", 1, 16, 30, 3, 3),
]


@pytest.mark.parametrize(("name", "matrices", "count", "k", "before", "step"), MANY_ROWS)
def test_many_rows_by_a_vector(name, matrices, count, k, before, step, monkeypatch):
    """Rows that begin anywhere, beside infinite elements of others; what a trace finds; with alpha and beta."""
    monkeypatch.setattr(shifted, "MIN_ROWS", 1)
    monkeypatch.setattr(shifted, "MANY_BLOCKS", 1)
    monkeypatch.setattr(host, "choose_shifts", lambda *sizes: shifted.choose_shifts(*sizes[:-1], 1))
    forget()
    held, values = random_matrix((before + matrices * count * k,), name)
    infinite = np.arange(matrices * count).reshape(matrices, count, 1) % 5 == 1
    held = held.view(np.uint16).copy()
    rows = held[before:].reshape(matrices, count, k)
    rows[...] = np.where(infinite, 0x7C00 if name == "float16" else 0x7F80, rows)
    a = cuda.to_device(held.view(random_matrix((1,), name)[0].dtype))[before:].reshape(matrices, count, k)
    exact = values[before:].reshape(matrices, count, k)
    (b, wide_b), (c, wide_c) = random_matrix((matrices, k, step), name), random_matrix((matrices, count, 1), name)
    vector = cuda.to_device(b)[:, :, :1]
    out, nan = cuda.to_device(c), cuda.to_device(np.full_like(c.view(np.uint16), 0x7FFF).view(c.dtype))
    ((launch, arguments),) = matmul.steps("auto", a, vector, nan)
    assert arguments[1].dtype == np.uint32 and gpukit.trace(launch, *arguments).findings == []
    matmul.matmul(a, vector, alpha=2, beta=-1, out=out)
    finite = ~infinite[..., 0]
    for i in range(matrices):
        of_a, of_b, here = exact[i][finite[i]], wide_b[i, :, :1], finite[i]
        check(nan.copy_to_host()[i][here], of_a, of_b, name)
        check(out.copy_to_host()[i][here], of_a, of_b, name, 2, -1, wide_c[i][here])
    assert not np.isfinite(values_of(nan)[~finite]).any()


def test_an_infinity_of_a_vector_that_meets_the_last_chunk(monkeypatch):
    """Its elements are not loaded whole: the last row is infinite, no NaN."""
    monkeypatch.setattr(host, "takes_shifted", lambda *_: True)
    forget()
    a, b = np.ones((37, 17), np.float16), np.ones((17, 1), np.float16)
    b[16] = np.inf
    out = cuda.to_device(np.zeros((37, 1), np.float16))
    ((launch, arguments),) = matmul.steps("auto", cuda.to_device(a), cuda.to_device(b), out)
    launch(*arguments)
    assert launch.dispatcher.py_func.__name__ == "shifted" and (values_of(out) == np.inf).all()


def test_small_tiles_read_rows_that_begin_anywhere(monkeypatch):
    """All layouts, of memory that begins and ends at no multiple of 16 bytes."""
    prefer(monkeypatch, "small")
    for i, place in enumerate((0, 4, 8, -1)):
        tile = TENSOR_SPEEDS["small"][place].tile
        monkeypatch.setattr(tensor, "choose_tensor", lambda *_, tile=tile: (tile, 1))
        m, n, k = tile.rows // 2 + 7, tile.columns // 2 + 5, min(tile.depth // 2, 75) - 3
        orders = [((0, 1), (1, 0))[i >> bit & 1] for bit in (0, 1)]
        (a, wide_a), (b, wide_b) = random_matrix((m, k + 1), "float16"), random_matrix((k, n + 3), "float16")
        a, b = laid_out(a, orders[0])[:, 1:], laid_out(b, orders[1])[:, 3:]
        check(multiply(a, b, "float16"), wide_a[:, 1:], wide_b[:, 3:], "float16")


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 300 * 8, 600), "float16"),
        ((520, 1, 264), "bfloat16"),
        ((1, 37, 1031), "bfloat16"),
        ((3, 1, 20_001), "float16"),
        ((1, 16_901, 5), "float16"),
        ((700, 1, 5), "bfloat16"),
        ((300, 1, 8), "float16"),
    ],
)
def test_one_row_or_column(shape, name):
    """Read by 16 bytes or by elements, along K or across it, by some threads or all."""
    (m, n, k), lead = shape, (2,)
    (a, wide_a), (b, wide_b) = random_matrix((*lead, m, k), name), random_matrix((*lead, k, n), name)
    c, wide_c = random_matrix((*lead, m, n), name, 1)
    a, b, out = cuda.to_device(a), cuda.to_device(b), cuda.to_device(c)
    assert len(matmul.steps("auto", a, b, out, alpha=2, beta=-1)) == 1
    check(multiply(a, b, name, alpha=2, beta=-1, out=out), wide_a, wide_b, name, 2, -1, wide_c)


@pytest.mark.parametrize(
    ("shape", "layout", "name"),
    [((2, 601, 7), "NN", "bfloat16"), ((70, 131, 5), "TT", "float16")],
)
def test_a_small_k(shape, layout, name):
    """With alpha and beta, in batches, and what a trace finds."""
    (m, n, k), lead = shape, (2,)
    (a, wide_a), (b, wide_b) = random_matrix((*lead, m, k), name), random_matrix((*lead, k, n), name)
    c, wide_c = random_matrix((*lead, m, n), name, 1)
    a, b = (laid_out(x, (0, 1, 2) if letter == "N" else (0, 2, 1)) for x, letter in zip((a, b), layout, strict=True))
    out = cuda.to_device(c)
    ((launch, arguments),) = matmul.steps("auto", a, b, out)
    assert gpukit.trace(launch, *arguments).findings == []
    check(out, wide_a, wide_b, name)
    out = cuda.to_device(c)
    check(multiply(a, b, name, alpha=2, beta=-1, out=out), wide_a, wide_b, name, 2, -1, wide_c)


def test_large_products_are_worth_a_copy():
    a, b, out = (cuda.device_array((1001, 1001), np.float16) for _ in range(3))
    assert len(matmul.steps("auto", a, b, out)) == 2


#: (kind of tile, its place among those, format, order of the operands' axes in memory, compute capability).
TILES = [
    ("groups", 6, "float16", (1, 0), "9.0"),
    ("few", -1, "bfloat16", (0, 1), "9.0"),
    ("groups", -1, "float16", (0, 1), "9.0"),
    ("warps", -1, "int8", (0, 1), "8.0"),
    ("warps", 0, "float16", (0, 1), "8.0"),
    ("across a", -1, "tf32", (1, 0), "9.0"),
    ("across b", -1, "tf32", (0, 1), "9.0"),
    ("small", 5, "float16", (1, 0), "8.0"),
    ("small", -1, "bfloat16", (1, 0), "8.0"),
]


@pytest.mark.skipif(on_gpu(), reason="the emulator cannot read the maps of a GPU")
@pytest.mark.parametrize(("kind", "place", "name", "order", "capability"), TILES)
def test_no_tile_has_a_finding(kind, place, name, order, capability, monkeypatch):
    tile = TENSOR_SPEEDS[kind][place].tile
    m, n, k = tile.rows + 4, tile.columns + 8, (getattr(tile, "stages", 6) + 2) * 128 // FORMATS[name].itemsize
    if kind == "few":
        m, n = n, m
    is_group = isinstance(tile, warpgroups.GroupTile)
    if is_group and tile.cluster == 1:
        tile = tile._replace(slices=2)
    monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, 1 if is_group else 2))
    prefer(monkeypatch, kind)
    (a, wide_a), (b, wide_b) = random_matrix((m, k), name), random_matrix((k, n), name)
    with device.device(capability):
        arrays = laid_out(a, order), laid_out(b, order)
        out = cuda.to_device(np.zeros((m, n), np.int32 if name == "int8" else a.dtype))
        precision = "tf32" if name == "tf32" else "highest"
        for launch, arguments in matmul.steps("fast", *arrays, out, precision=precision):
            assert gpukit.trace(launch, *arguments).findings == []
        check(out, wide_a, wide_b, name)
        old = values_of(out)
        for launch, arguments in matmul.steps("fast", *arrays, out, alpha=-2, beta=3, precision=precision):
            launch(*arguments)
    check(out, wide_a, wide_b, name, -2, 3, old)


#: How the operands lie, elements that a thread copies of each at a time, M, N, K, and changes of the tile.
LOADED = [
    ("NN", (1, 4), (70, 132, 141), {}),
    ("TT", (2, 1), (70, 67, 141), {"slices": 2}),
    ("NT", (8, 2), (65, 70, 144), {"swapped": True}),
    ("TN", (4, 1), (68, 67, 205), {"rows": 128, "groups": 2}),
]


@pytest.mark.parametrize(("layout", "widths", "shape", "changes"), LOADED)
def test_threads_copy_rows_that_begin_anywhere(layout, widths, shape, changes, monkeypatch):
    """Two matrices, in memory that begins at any element, with what a trace finds, and with factors."""
    tile = TENSOR_SPEEDS["loaded"][0].tile._replace(**changes)
    prefer(monkeypatch, "loaded")
    monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, 1))
    m, n, k = shape
    a, wide_a = behind_others((2, m, k), layout[0], widths[0])
    b, wide_b = behind_others((2, k, n), layout[1], widths[1])
    out = cuda.to_device(np.full((2, m, n), np.nan, np.float16))
    ((launch, arguments),) = matmul.steps("fast", a, b, out)
    assert launch.dispatcher.py_func.__name__ == "loaded"
    assert gpukit.trace(launch, *arguments).findings == []
    check(out, wide_a, wide_b, "float16")
    out = cuda.to_device(np.ones((2, m, n), np.float16))
    check(multiply(a, b, "float16", alpha=-2, beta=3, out=out), wide_a, wide_b, "float16", -2, 3, 1.0)


def behind_others(shape, layout, width):
    """(matrices in memory whose rows, or columns, begin behind so many NaNs, their values)."""
    stored, values = random_matrix(shape, "float16")
    axis, order = (2, (0, 1, 2)) if layout == "N" else (1, (0, 2, 1))
    held = laid_out(np.insert(stored, [0] * width, np.nan, axis), order)
    return (held[:, :, width:] if layout == "N" else held[:, width:]), values


#: Kinds of tiles that leave parts of K to a launch of its own, the tile, how the operands lie, parts.
PARTS = [
    ("groups", 8, "float16", (0, 2, 1), 3),
    ("groups", 6, "int8", (0, 1, 2), 2),
    ("few", 2, "bfloat16", (0, 1, 2), 3),
    ("across b", 4, "tf32", (0, 1, 2), 2),
    ("small", 0, "bfloat16", (0, 2, 1), 33),
]


@pytest.mark.skipif(on_gpu(), reason="the emulator cannot read the maps of a GPU")
@pytest.mark.parametrize(("kind", "place", "name", "order", "parts"), PARTS)
def test_many_parts_of_a_long_k(kind, place, name, order, parts, monkeypatch):
    """Two matrices, whose sums of all parts another launch adds up; the last part is shorter."""
    tile = TENSOR_SPEEDS[kind][place].tile
    depth = tile.depth // FORMATS[name].itemsize
    m, n, k = 24, 40, parts * 2 * depth - depth // 4
    monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, parts))
    prefer(monkeypatch, kind)
    (a, wide_a), (b, wide_b) = random_matrix((2, m, k), name), random_matrix((2, k, n), name)
    arrays = laid_out(a, order), laid_out(b, order)
    out = cuda.to_device(np.zeros((2, m, n), np.int32 if name == "int8" else a.dtype))
    precision = "tf32" if name == "tf32" else "highest"
    steps = matmul.steps("fast", *arrays, out, alpha=2, precision=precision)
    assert [launch.dispatcher.py_func.__name__ for launch, _ in steps[-1:]] == ["sum_parts"]
    for launch, arguments in steps:
        assert gpukit.trace(launch, *arguments).findings == []
    check(out, wide_a, wide_b, name, 2)


@pytest.mark.skipif(on_gpu(), reason="a mistake is planted; the GPU would not come back")
@pytest.mark.parametrize(
    ("module", "name", "kind", "capability"),
    [
        (warps, "wait_copies", "warps", "8.0"),
        (warpgroups, "mbarrier_wait", "groups", "9.0"),
        (warpgroups, "cluster_sync", "groups", "9.0"),
    ],
)
def test_a_forgotten_wait_is_found(module, name, kind, capability, monkeypatch):
    @cuda.jit(device=True)
    def nothing(*_):
        pass

    make = getattr(module, module.__name__.rpartition(".")[2])
    monkeypatch.setattr(module, name, nothing)
    make.cache_clear()
    prefer(monkeypatch, kind)
    if name == "cluster_sync":
        tile = TENSOR_SPEEDS[kind][6].tile._replace(slices=2)
        monkeypatch.setattr(tensor, "choose_tensor", lambda *_: (tile, 1))
    try:
        with device.device(capability):
            a, b, out = (cuda.to_device(np.ones((128, 128), np.float16)) for _ in range(3))
            ((launch, arguments),) = matmul.steps("fast", a, b, out)
            assert gpukit.trace(launch, *arguments).findings
    finally:
        make.cache_clear()


@pytest.mark.parametrize(("kind", "size"), [("small", 9), ("loaded", 9), ("groups", 24), ("none", 9)])
def test_heads_of_attention(kind, size, monkeypatch):
    """Stored token by token, queries by keys and weights by values; no copy where the operands can be read so."""
    forget()
    found: list[str] = []
    prefer(monkeypatch, kind)
    if kind == "none":
        monkeypatch.setattr(host, "reads_grouped", lambda *_: False)
    (a, wide_a), (b, wide_b) = random_matrix((3, 2, 40, size), "float16"), random_matrix((3, 2, 40, size), "float16", 1)
    query, value, key = laid_out(a, (0, 2, 1, 3)), laid_out(b, (0, 2, 1, 3)), laid_out(b.swapaxes(2, 3), (0, 3, 1, 2))
    w, wide_w = random_matrix((3, 2, 16, 40), "float16", 2)
    products = (
        (query, key, wide_a, wide_b.swapaxes(2, 3)),
        (cuda.to_device(w), value, wide_w, wide_b),
    )
    for left, right, wide_left, wide_right in products:
        with without_launches(lambda launches: found.extend(x.dispatcher.py_func.__name__ for x, _ in launches)):
            matmul.matmul(left, right)
        check(matmul.matmul(left, right), wide_left, wide_right, "float16")
    assert any(name.startswith("copy") for name in found) == (kind == "none")


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_batches_factors_and_parts_of_k(name):
    (a, wide_a), (b, wide_b) = random_matrix((2, 1, 20, 1500), name), random_matrix((3, 1500, 17), name)
    check(multiply(a, b, name), wide_a, wide_b, name)
    old, wide_old = random_matrix((2, 3, 20, 17), name, 1)
    out = old.astype(np.int32) if name == "int8" else old.copy()
    assert multiply(a, b, name, alpha=-2, beta=3, out=out) is out
    check(out, wide_a, wide_b, name, -2, 3, wide_old)


def test_int8_that_lies_across_k():
    for shape, n in (((3, 20, 300), 48), ((130, 132), 144)):
        (a, wide_a), (b, wide_b) = random_matrix(shape, "int8"), random_matrix((*shape[:-2], shape[-1], n), "int8")
        check(multiply(a, b, "int8"), wide_a, wide_b, "int8")


def test_a_repeated_call_reads_its_own_arrays():
    for seed in range(20):
        (a, wide_a), (b, wide_b) = (random_matrix(shape, "float16", seed) for shape in ((40, 63), (63, 24)))
        check(multiply(cuda.to_device(a), cuda.to_device(b.T).T, "float16"), wide_a, wide_b, "float16")


def test_what_is_not_finite():
    for name in ("float16", "bfloat16", "tf32"):
        (a, wide_a), (b, wide_b) = random_matrix((8, 40), name), random_matrix((40, 8), name)
        a, b = a.copy(), b.copy()
        for value, (row, col) in ((np.inf, (1, 3)), (np.nan, (2, 5)), (-np.inf, (4, 39))):
            bits = np.float32(value).view(np.uint32) >> 16
            a[row, col] = np.uint16(bits).view("V2") if name == "bfloat16" else value
            wide_a[row, col] = value
        with np.errstate(invalid="ignore"):
            exact = wide_a @ wide_b
        found = values_of(multiply(a, b, name))
        assert (np.isnan(found) == np.isnan(exact)).all()
        assert (found[np.isinf(exact)] == exact[np.isinf(exact)]).all()


def test_high_precision_is_close_to_that_of_float32(monkeypatch):
    monkeypatch.setattr("gpukit.matmul.api.takes_high", lambda *_: True)  # float32 itself is faster for this shape
    (a, wide_a), (b, wide_b) = random_matrix((64, 512), "high"), random_matrix((512, 64), "high")
    single, exact = abs(a @ b - wide_a @ wide_b).max(), wide_a @ wide_b
    assert abs(multiply(a, b, "high") - exact).max() < 4 * single
    assert abs(multiply(a, b, "tf32") - exact).max() > 100 * single


@pytest.mark.skipif(on_gpu(), reason="needs devices of several capabilities")
def test_tiles_of_single_warps_fit_into_any_device():
    for found in ("8.0", "8.6", "8.9", "12.0"):
        with device.device(found):
            limit = cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            assert max(speed.tile.shared_bytes for speed in TENSOR_SPEEDS[tensor._warps_kind()]) <= limit, found
            ((piece,), *_) = choose(3, 3072, 768, 1, True, 132, (True, True, limit))
            assert piece.tile.shared_bytes <= limit, found
    assert max(speed.tile.shared_bytes for speed in DOUBLE_SPEEDS) > limit


def test_every_tile_of_groups_has_a_kernel_and_memory():
    """Kernels are made, not compiled; a multiprocessor has 228 KB, of which it takes 1 KB for each block."""
    kinds = ("groups", "float16", "TN"), ("few", "int8", "NT"), ("across a", "tf32", "TT"), ("across b", "tf32", "NN")
    kinds += (("loaded", "float16", "NN"),)
    for kind, name, layout in kinds:
        for speed in TENSOR_SPEEDS[kind]:
            make = loaded.loaded if kind == "loaded" else warpgroups.warpgroups
            make(speed.tile, name, layout, False, True)
            assert speed.resident * (speed.tile.shared_bytes + 1024) <= 228 * 1024


def test_parts_of_k_have_steps():
    for m, n, nbytes in itertools.product((1, 64, 500, 4096), (1, 300, 4096), (2, 130, 1000, 40000)):
        for kind in set(TENSOR_SPEEDS) - ({"few"} if m > MAX_FEW else set()):
            tile, parts = choose_tensor(m, n, nbytes, 1, 132, kind)
            steps, parts = -(-nbytes // tile.depth), parts * getattr(tile, "slices", 1)
            share = -(-steps // parts)
            assert share * (parts - 1) < steps <= share * parts


@cuda.jit
def list_tiles(order, out):
    number = uint32(cuda.grid(1))
    if number < order.tiles:
        z, _, row, col, first, last = raster.place(number, order)
        z_a, z_b = raster.matrices_of(z, order)
        for i, value in enumerate((z, z_a, z_b, row, col, first, last)):
            out[number, i] = value


def test_every_tile_is_computed_once():
    for down, across, steps, parts, matrices in ((1, 1, 1, 1, 1), (35, 3, 7, 3, 6), (16, 5, 4, 2, 2), (5, 40, 9, 1, 1)):
        order = raster.make_order(down, across, steps, parts, matrices, ((2, 3), (1, 2)))
        out = np.zeros((int(order.tiles), 7), np.int32)
        list_tiles[-(-len(out) // 128), 128](order, out)
        share = -(-steps // parts)
        expected = {
            (z, z // 2 % 3, z % 2, row, col, part * share, min(steps, (part + 1) * share))
            for z, row, col, part in itertools.product(*map(range, (matrices, down, across, parts)))
        }
        assert set(map(tuple, out.tolist())) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu(), reason="needs a GPU")
@pytest.mark.parametrize("name", sorted(LOST))
@pytest.mark.parametrize("shape", [(512, 512, 512), (1000, 1001, 999), (2304, 4096, 128), (17, 4100, 1025)])
def test_large_shapes(shape, name):
    m, n, k = shape
    (a, wide_a), (b, wide_b) = random_matrix((m, k), name), random_matrix((k, n), name)
    check(multiply(a, b, name), wide_a, wide_b, name)


HALF, BYTES, SINGLE = np.ones((4, 4), np.float16), np.ones((4, 4), np.int8), np.ones((4, 4), np.float32)
WRONG = [
    (lambda: matmul.matmul(HALF, SINGLE), TypeError, "b has dtype float32; it must be float16, as a is"),
    (lambda: matmul.matmul(HALF, HALF.view("V2")), TypeError, "b has dtype bfloat16; it must be float16"),
    (lambda: matmul.matmul(HALF, HALF, "tiled"), TypeError, "a has dtype float16; variant must be 'auto' or 'fast'"),
    (
        lambda: matmul.matmul(SINGLE, SINGLE, "wide", precision="tf32"),
        TypeError,
        "precision is 'tf32'; variant must be",
    ),
    (lambda: matmul.matmul(SINGLE, SINGLE, precision="medium"), ValueError, "precision is 'medium'; it must be one of"),
    (lambda: matmul.matmul(BYTES, BYTES, out=BYTES.copy()), TypeError, "out has dtype int8; it must be int32"),
    (lambda: matmul.matmul(BYTES, BYTES, alpha=0.5), ValueError, "alpha is 0.5; for int8 it must be an int"),
    (lambda: matmul.matmul(np.ones((4, 4), np.int16), BYTES), TypeError, "a has dtype int16; it must be"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.skipif(on_gpu(), reason="the GPU has one compute capability")
def test_an_older_device_is_named():
    with device.device("7.5"), pytest.raises(LaunchError, match=r"need compute capability 8.0 or more.*has 7.5"):
        matmul.matmul(HALF, HALF)
